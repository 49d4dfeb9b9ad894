//! `Delay`: a deadline as a future.
//!
//! Ground rules. Until its first pending poll a delay is a number; then it owns an entry with the waker ([`WakerEntry`]). Whether the
//! deadline has come is decided by the clock, which stands still when the runtime ends.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::cancellable_delay::CancellableDelay;
use crate::alarm::Clock;
use crate::budget;
use crate::cancellation::CancellationToken;
use crate::engine::{Looked, WakerEntry};
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::time::{END, Timestamp, instant};

/// Some ticks of any kernel.
const FAR_NS: u64 = 100_000_000;

impl Runtime {
    /// A [`Delay`] on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let delay = runtime.delay(Duration::from_secs(5));
    /// clock.advance(Duration::from_secs(5));
    /// assert!(delay.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay(&self, after: Duration) -> Delay {
        Delay::on(self.handle(), after)
    }

    /// A [`Delay`] on this runtime that ends at an instant of its clock.
    pub fn delay_until(&self, deadline: Timestamp) -> Delay {
        Delay::on_until(self.handle(), deadline.as_ns())
    }
}

/// A future that is ready when its deadline has come.
///
/// Works under any executor, or polled by hand: `Send`, `Sync`, `Unpin`. The time counts from the making of the delay, not
/// from the first poll (S35). A delay that is never polled, or ready when first polled, takes no lock and no memory; a
/// pending one takes one allocation.
///
/// **Ready** never before the deadline. Fused: once ready it stays ready, until it is [reset](Self::reset).
/// The waker of the latest poll is called on a thread of the runtime's pool (on a manual clock: on the thread that advances
/// it), outside of all locks (S37).
///
/// **Dropping** unlinks it at once (S36).
///
/// **When its runtime has ended**, time stands still for a delay: one that has not come by then stays pending for ever (S33). A task
/// that must learn of the end awaits [`try_wait`](Self::try_wait) instead.
///
/// # Panics
/// At the first pending poll, if the default runtime cannot be started; [`try_wait`](Self::try_wait) gives the reason as an
/// error.
///
/// # Examples
///
/// A quarter of a millisecond, on the default runtime:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Delay;
///
/// # smol::block_on(async {
/// Delay::new(Duration::from_micros(250)).await;
/// # });
/// ```
///
/// # Testing with virtual time
///
/// Code that waits is tested in no time when it is given its [`Runtime`](crate::Runtime) instead of using the default one: in a test the
/// runtime is on a [`ManualClock`](crate::ManualClock), whose [`block_on`](crate::ManualClock::block_on) moves the clock on to
/// what comes due next whenever the code waits. Every run is the same, to the nanosecond.
///
/// ```
/// use std::future::{Future, pending};
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::{CancelReason, CancellationToken, ManualClock, Runtime, TimeoutError};
///
/// /// The code under test: asks, each time for up to 2 s, and waits 1, 2, 4, ... s before it asks again.
/// async fn ask_until_answered<F: Future<Output = u32>>(
///     runtime: &Runtime,
///     token: &CancellationToken,
///     mut ask: impl FnMut(u32) -> F,
/// ) -> io::Result<u32> {
///     let mut pause = Duration::from_secs(1);
///     for attempt in 1.. {
///         match runtime.timeout(Duration::from_secs(2), ask(attempt)).with_token(token).await {
///             Ok(answer) => return Ok(answer),
///             Err(TimeoutError::Elapsed(_)) => runtime.delay(pause).with_token(token).await?,
///             Err(cancelled) => return Err(cancelled.into()),
///         }
///         pause *= 2;
///     }
///     unreachable!("asks for ever")
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
///
/// // Two questions get no answer in time, the third does: 2 + 1 + 2 + 2 + 0.5 s.
/// let begun = clock.now();
/// let answer = clock.block_on(ask_until_answered(&runtime, &CancellationToken::none(), async |attempt| {
///     let takes = if attempt < 3 { Duration::from_secs(10) } else { Duration::from_millis(500) };
///     runtime.delay(takes).await;
///     42
/// }));
/// assert_eq!(answer.unwrap(), 42);
/// assert_eq!(clock.now() - begun, Duration::from_millis(7_500));
///
/// // No answer comes, and after a minute the whole thing is given up.
/// let source = runtime.cancellation_source();
/// source.cancel_after(Duration::from_secs(60))?;
/// let begun = clock.now();
/// let error = clock.block_on(ask_until_answered(&runtime, &source.token(), |_| pending())).unwrap_err();
/// assert_eq!(source.token().reason(), Some(CancelReason::Timeout));
/// assert_eq!(clock.now() - begun, Duration::from_secs(60));
/// assert_eq!(runtime.active_timers(), 0); // nothing is left behind
/// # drop(error);
/// # Ok::<(), timerqueue::RuntimeError>(())
/// ```
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct Delay {
    source: RuntimeHandle,
    /// [`END`] for a delay that never ends: it is filed all the same, and learns when its runtime ends.
    deadline: u64,
    entry: Option<WakerEntry>,
    stage: Stage,
}

/// How far a delay has come since it was made or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// A poll was pending.
    Waited,
    Ready,
}

/// What a look at the runtime found.
type Found = Poll<Result<(), RuntimeError>>;

impl Delay {
    /// A delay on the default runtime. `Duration::MAX`, or what does not fit the clock, never ends.
    ///
    /// # Examples
    ///
    /// The time runs from here, not from the `await`:
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use timerqueue::Delay;
    ///
    /// # smol::block_on(async {
    /// let begun = Instant::now();
    /// let delay = Delay::new(Duration::from_millis(10));
    /// std::thread::sleep(Duration::from_millis(2)); // some work
    /// delay.await; // waits for the other 8 ms
    /// assert!(begun.elapsed() >= Duration::from_millis(10));
    /// # });
    /// ```
    #[inline]
    pub fn new(after: Duration) -> Self {
        Self::on(RuntimeHandle::Global, after)
    }

    /// A delay on the default runtime that ends at an instant of its clock.
    ///
    /// # Examples
    ///
    /// Five seconds from now, as an instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, Runtime};
    ///
    /// let deadline = Runtime::global()?.now() + Duration::from_secs(5);
    /// let delay = Delay::until(deadline);
    /// assert_eq!(delay.deadline(), deadline);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn until(deadline: Timestamp) -> Self {
        Self::on_until(RuntimeHandle::Global, deadline.as_ns())
    }

    #[inline]
    pub(crate) fn on(source: RuntimeHandle, after: Duration) -> Self {
        let now = source.now();
        Self::on_until(source, instant(now, after))
    }

    #[inline]
    pub(crate) fn on_until(source: RuntimeHandle, deadline: u64) -> Self {
        Self { source, deadline: deadline.min(END), entry: None, stage: Stage::New }
    }

    /// When it ends. Of a delay that never ends: an instant that no clock shows.
    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_ns(self.deadline)
    }

    /// Whether the deadline has come. Reads the clock, which for a delay stands still when the runtime has ended.
    pub fn is_elapsed(&self) -> bool {
        self.is_done() || self.source.now() >= self.deadline && self.source.was_there(self.deadline)
    }

    /// Whether a poll was ready since the last reset.
    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(crate) fn source(&self) -> &RuntimeHandle {
        &self.source
    }

    /// Waits for the deadline, and also for the end of the runtime, which is an error.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime ends before the deadline, or has ended; [`RuntimeError::NotStarted`] when the
    /// default runtime cannot be started, and a later call tries again.
    ///
    /// # Examples
    ///
    /// A task that waits learns that its runtime has ended:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, RuntimeError};
    ///
    /// # smol::block_on(async {
    /// let runtime = Runtime::builder().workers(2).start()?;
    /// let mut delay = runtime.delay(Duration::from_secs(3600));
    /// runtime.shutdown(Duration::from_secs(5)).unwrap();
    /// match delay.try_wait().await {
    ///     Ok(()) => println!("an hour has passed"),
    ///     Err(error) => assert!(matches!(error, RuntimeError::Ended)),
    /// }
    /// # Ok::<(), RuntimeError>(())
    /// # }).unwrap();
    /// ```
    pub async fn try_wait(&mut self) -> Result<(), RuntimeError> {
        poll_fn(|context| self.poll_try_wait(context)).await
    }

    /// [`try_wait`](Self::try_wait), polled.
    ///
    /// # Errors
    /// As there.
    pub fn poll_try_wait(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RuntimeError>> {
        let mut now = self.source.floor();
        // A deadline that is far off has not come, whatever the exact time is. (Should the cheap clock ever lag by more than
        // that, the delay is filed as due, and fires at once.)
        if self.deadline.saturating_sub(now) < FAR_NS {
            now = self.source.now();
        }
        let has_come = self.is_done() || now >= self.deadline;
        if has_come && self.stage != Stage::Waited {
            ready!(budget::spend(context));
        }
        let found = match &self.entry {
            _ if self.is_done() => Poll::Ready(Ok(())),
            Some(entry) => self.found(entry.look(context.waker(), self.deadline, now)),
            None if has_come => Poll::Ready(self.by_the_end()),
            None => self.start(context.waker(), now),
        };
        match found {
            Poll::Pending => self.stage = Stage::Waited,
            Poll::Ready(Ok(())) => self.stage = Stage::Ready,
            Poll::Ready(Err(_)) => self.withdraw(), // for good: nothing needs the entry any more
        }
        found
    }

    /// Starts again: ends `after` from now, whether it was pending or ready.
    ///
    /// Moving a pending delay later costs one short lock section and no system call; earlier, at most one system call.
    ///
    /// # Examples
    ///
    /// An idle timeout that each message pushes back:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut idle = runtime.delay(Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// idle.reset(Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(!idle.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn reset(&mut self, after: Duration) {
        let now = self.source.now();
        self.restart(|clock| instant(clock.map_or(now, |clock| clock.with_lock(now)), after));
    }

    /// Starts again, to end at `deadline`; see [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// Two delays that end at the same instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let first = runtime.delay(Duration::from_secs(30));
    /// let mut second = runtime.delay(Duration::ZERO);
    /// second.reset_at(first.deadline());
    /// clock.advance(Duration::from_secs(30));
    /// assert!(first.is_elapsed() && second.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn reset_at(&mut self, deadline: Timestamp) {
        self.reset_to(deadline.as_ns());
    }

    pub(crate) fn reset_to(&mut self, deadline: u64) {
        self.restart(|_| deadline);
    }

    /// Starts again, to end when `deadline` says, which is asked once more under the lock of the shard and then gets its clock.
    fn restart(&mut self, deadline: impl Fn(Option<&Clock>) -> u64) {
        self.stage = Stage::New;
        self.deadline = match &self.entry {
            None => deadline(None).min(END),
            Some(entry) => entry.reset(|clock| deadline(Some(clock))),
        };
    }

    /// Waits for this delay or for the cancellation of `token`, whichever comes first (S50).
    ///
    /// # Examples
    ///
    /// An hour that another thread cuts short:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, Delay};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let delay = Delay::new(Duration::from_secs(3600)).with_token(&source.token());
    /// std::thread::spawn(move || source.cancel());
    /// assert!(delay.await.is_err());
    /// # });
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableDelay {
        CancellableDelay { cancelled: token.cancelled_owned(), delay: self }
    }

    /// What a runtime that may have ended made of the deadline.
    fn by_the_end(&self) -> Result<(), RuntimeError> {
        if self.source.was_there(self.deadline) { Ok(()) } else { Err(RuntimeError::Ended) }
    }

    /// The first poll that is not ready: makes an entry.
    fn start(&mut self, waker: &Waker, now: u64) -> Found {
        let engine = match self.source.engine() {
            Ok(engine) => engine,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let (entry, looked) = WakerEntry::start(engine, waker, self.deadline, now);
        self.entry = Some(entry);
        self.found(looked)
    }

    fn found(&self, looked: Looked) -> Found {
        match looked {
            Looked::Waits => Poll::Pending,
            Looked::HasCome => Poll::Ready(Ok(())),
            Looked::Closed => Poll::Ready(self.by_the_end()),
        }
    }

    /// Has the task that waits, if there is one, poll again.
    pub(crate) fn wake_task(&self) {
        if let Some(waker) = self.entry.as_ref().and_then(WakerEntry::take_waker) {
            waker.wake();
        }
    }

    /// No task waits any more: leaves the queue, and lets go of entry and waker. A further poll begins anew.
    #[inline]
    pub(crate) fn withdraw(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.abandon();
        }
    }
}

impl Future for Delay {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match ready!(self.poll_try_wait(context)) {
            Ok(()) => Poll::Ready(()),
            Err(error) => error.stands_still(),
        }
    }
}

impl Drop for Delay {
    #[inline]
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay")
            .field("deadline", &self.deadline())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/delay_poll_vs_fire.rs"]
mod loom_models;
