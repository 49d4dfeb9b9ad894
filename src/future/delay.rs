//! Delays: a deadline as a future.
//!
//! Ground rules. Before its first pending poll a delay is a number; from then on the delay owns an
//! entry with the waker ([`WakerEntry`]). The clock decides whether the deadline has come. For
//! delays the clock stands still when the runtime ends.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::alarm::Clock;
use crate::budget;
use crate::cancellation::{CancellationToken, Cancelled, CancelledOwned};
use crate::engine::{Looked, WakerEntry};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::time::{Deadline, END, Timestamp, instant};

/// Longer than a few kernel ticks, by which the cheap clock may lag.
const FAR_NS: u64 = 100_000_000;

/// A future that is ready when its deadline has elapsed.
///
/// Works under any executor, or polled by hand: `Send`, `Sync`, `Unpin`. The time counts from the
/// making of the delay, not from the first poll. A delay never polled, or ready at its first poll,
/// takes no lock and no memory. A pending delay takes a single allocation.
///
/// **Ready** never before the deadline. Fused: once ready, the delay stays ready until a
/// [reset](Self::reset). The waker of the latest poll is called on a thread of the runtime's pool
/// (on a manual clock: on the thread that advances the clock), outside all locks.
///
/// **Dropping** a delay removes the delay from its queue at once. A task whose delay is dropped or
/// reset while it fires may be woken once in vain.
///
/// **When its runtime ends**, time stands still for a delay: a delay still pending stays pending
/// for ever. A task that must learn of the end awaits [`try_wait`](Self::try_wait) instead.
///
/// # Panics
/// At the first pending poll, if the default runtime cannot be started;
/// [`try_wait`](Self::try_wait) gives the reason as an error.
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
/// In a test the code runs in the [scope](crate::Runtime::scope) of a runtime on a
/// [`ManualClock`](crate::ManualClock), whose [`block_on`](crate::ManualClock::block_on) moves the
/// clock to the next due point whenever the code waits. Every run takes no time, and is the same to
/// the nanosecond. The code under test need not name a runtime.
///
/// ```
/// use std::future::{Future, pending};
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::{
///     CancelReason, CancellationToken, CancellationTokenSource, Delay, ManualClock, Runtime,
///     error::TimeoutError, timeout,
/// };
///
/// /// The code under test: asks, each time for up to 2 s, and waits 1, 2, 4, ... s before it asks
/// /// again.
/// async fn ask_until_answered<F: Future<Output = u32>>(
///     token: &CancellationToken,
///     mut ask: impl FnMut(u32) -> F,
/// ) -> io::Result<u32> {
///     let mut pause = Duration::from_secs(1);
///     for attempt in 1.. {
///         match timeout(Duration::from_secs(2), ask(attempt)).with_token(token).await {
///             Ok(answer) => return Ok(answer),
///             Err(TimeoutError::Elapsed(_)) => Delay::new(pause).with_token(token).await?,
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
/// let answers = async |attempt| {
///     let takes = if attempt < 3 { Duration::from_secs(10) } else { Duration::from_millis(500) };
///     Delay::new(takes).await;
///     42
/// };
/// let token = CancellationToken::none();
/// let answer = clock.block_on(runtime.scope(ask_until_answered(&token, answers)));
/// assert_eq!(answer.unwrap(), 42);
/// assert_eq!(clock.now() - begun, Duration::from_millis(7_500));
///
/// // No answer comes, and after a minute the whole thing is given up.
/// let source = runtime.enter(|| CancellationTokenSource::after(Duration::from_secs(60)));
/// let begun = clock.now();
/// let error = clock
///     .block_on(runtime.scope(ask_until_answered(&source.token(), |_| pending())))
///     .unwrap_err();
/// assert_eq!(source.token().reason(), Some(CancelReason::Timeout));
/// assert_eq!(clock.now() - begun, Duration::from_secs(60));
/// assert_eq!(runtime.metrics().active, 0); // nothing is left behind
/// # drop(error);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias("sleep", "Sleep"))]
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct Delay {
    /// From the first pending poll on. Dropped before the runtime: see `entry::free`.
    entry: Option<WakerEntry>,
    source: RuntimeHandle,
    /// [`END`] for a delay that never ends: its entry is in the queue too, so that the end of the
    /// runtime finds the delay.
    deadline: u64,
    stage: Stage,
    /// The leeway.
    tick_policy: TickPolicy,
}

/// The progress of a delay since it was made or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// A poll was pending.
    Waited,
    Ready,
}

/// The result of a look at the runtime.
type Found = Poll<Result<(), RuntimeError>>;

impl Delay {
    /// A delay of `after` from now, on the [current runtime](Runtime::current). `Duration::MAX`, or
    /// a time beyond the range of the clock, never ends.
    ///
    /// # Examples
    ///
    /// The time counts from the call of `new`, not from the `await`:
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use timerqueue::Delay;
    ///
    /// # smol::block_on(async {
    /// let begun = Instant::now();
    /// let delay = Delay::new(Duration::from_millis(10));
    /// std::thread::sleep(Duration::from_millis(2)); // some work
    /// delay.await; // waits for the remaining 8 ms
    /// assert!(begun.elapsed() >= Duration::from_millis(10));
    /// # });
    /// ```
    #[doc(alias("sleep", "setTimeout"))]
    #[inline]
    #[track_caller]
    pub fn new(after: Duration) -> Self {
        Self::after(RuntimeHandle::current(), after)
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let delay = Delay::on(&runtime, Duration::from_secs(5));
    /// clock.advance(Duration::from_secs(5));
    /// assert!(delay.is_elapsed());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("sleep", "setTimeout", "After"))]
    #[inline]
    pub fn on(runtime: &Runtime, after: Duration) -> Self {
        Self::after(runtime.handle(), after)
    }

    /// A delay on the [current runtime](Runtime::current), until a [`Timestamp`] of the runtime's
    /// clock, or a `std::time::Instant`.
    ///
    /// # Examples
    ///
    /// Five seconds from now, as an instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, Timestamp};
    ///
    /// let deadline = Timestamp::now() + Duration::from_secs(5);
    /// let delay = Delay::until(deadline);
    /// assert_eq!(delay.deadline(), deadline);
    /// ```
    #[doc(alias("sleep_until", "deadline"))]
    #[track_caller]
    pub fn until(deadline: impl Into<Deadline>) -> Self {
        let source = RuntimeHandle::current();
        let deadline = source.deadline(deadline.into());
        Self::at(source, deadline)
    }

    #[inline]
    pub(crate) fn after(source: RuntimeHandle, after: Duration) -> Self {
        let now = source.now();
        Self::at(source, instant(now, after))
    }

    #[inline]
    pub(crate) fn at(source: RuntimeHandle, deadline: u64) -> Self {
        Self {
            source,
            deadline: deadline.min(END),
            entry: None,
            stage: Stage::New,
            tick_policy: MissedTicks::Skip.into(),
        }
    }

    /// Lets the waiting task be woken up to `leeway` after the deadline, so that delays and timers
    /// share wake-ups; see [`TimerBuilder::leeway`](crate::TimerBuilder::leeway). Default: zero. A
    /// poll at the deadline or later finds the delay ready in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// clock.block_on(
    ///     Delay::on(&runtime, Duration::from_micros(3_100)).leeway(Duration::from_millis(1)),
    /// );
    /// assert_eq!(clock.now().as_duration(), Duration::from_millis(4));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("slack", "tolerance"))]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.set_leeway(leeway);
        self
    }

    /// The next pending poll makes an entry with this leeway.
    pub(crate) fn set_leeway(&mut self, leeway: Duration) {
        self.withdraw();
        self.tick_policy = TickPolicy::new(MissedTicks::Skip, leeway);
    }

    /// A delay on the same runtime, with the same leeway.
    pub(super) fn like(&self, deadline: u64) -> Self {
        Self { tick_policy: self.tick_policy, ..Self::at(self.source.clone(), deadline) }
    }

    /// The deadline. For a delay that never ends: an instant that no clock shows.
    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_ns(self.deadline)
    }

    /// Whether the deadline has elapsed. Reads the clock, which for a delay stands still when the
    /// runtime has ended.
    pub fn is_elapsed(&self) -> bool {
        self.is_done() || self.source.has_come(self.deadline)
    }

    /// Whether a poll was ready since the last reset.
    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(crate) fn source(&self) -> &RuntimeHandle {
        &self.source
    }

    /// Waits for the deadline, or for the end of the runtime, which is an error.
    ///
    /// Dropping the future leaves the delay as it is.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime has ended before the deadline.
    /// [`RuntimeError::NotStarted`] when the default runtime cannot be started; a later call tries
    /// again.
    ///
    /// # Examples
    ///
    /// A waiting task learns that its runtime has ended:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, Runtime, error::RuntimeError};
    ///
    /// # smol::block_on(async {
    /// let runtime = Runtime::builder().workers(2).start()?;
    /// let mut delay = Delay::on(&runtime, Duration::from_secs(3600));
    /// runtime.shutdown(Duration::from_secs(5)).unwrap();
    /// match delay.try_wait().await {
    ///     Ok(()) => println!("an hour has passed"),
    ///     Err(error) => assert!(matches!(error, RuntimeError::Ended)),
    /// }
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    pub async fn try_wait(&mut self) -> Result<(), RuntimeError> {
        poll_fn(|context| self.poll_try_wait(context)).await
    }

    /// Polls for [`try_wait`](Self::try_wait).
    ///
    /// # Errors
    /// As for [`try_wait`](Self::try_wait).
    pub fn poll_try_wait(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RuntimeError>> {
        if self.entry.is_none() && !self.is_done() { self.poll_first(context) } else { self.poll_again(context) }
    }

    /// A poll of a delay that has no entry and was not ready. A function of its own, as the next
    /// one: both paths are straight.
    #[inline(never)]
    fn poll_first(&mut self, context: &mut Context<'_>) -> Found {
        let now = self.reading();
        if now < self.deadline {
            let found = match self.source.engine() {
                Err(error) => Poll::Ready(Err(error)),
                Ok(engine) => {
                    let (waker, deadline) = (context.waker(), self.deadline);
                    let looked = WakerEntry::start(&mut self.entry, engine, self.tick_policy, waker, deadline, now);
                    self.found(looked)
                }
            };
            return self.keep(found);
        }
        if self.stage != Stage::Waited {
            ready!(budget::spend(context));
        }
        let found = Poll::Ready(self.by_the_end());
        self.keep(found)
    }

    #[inline(never)]
    fn poll_again(&mut self, context: &mut Context<'_>) -> Found {
        // A sweep has read the clock before it took the entry out. Since the last poll the deadline
        // was not moved.
        let has_fired = self.stage == Stage::Waited && self.entry.as_mut().is_some_and(WakerEntry::has_fired);
        let now = if has_fired { self.deadline } else { self.reading() };
        if (self.is_done() || now >= self.deadline) && self.stage != Stage::Waited {
            ready!(budget::spend(context));
        }
        let found = match &self.entry {
            Some(entry) if self.stage != Stage::Ready && !has_fired => {
                let looked = entry.look(context.waker(), self.deadline, now);
                self.found(looked)
            }
            _ => Poll::Ready(Ok(())),
        };
        self.keep(found)
    }

    /// The clock's reading. A far deadline has not come, so the cheap clock is enough. (If the
    /// cheap clock lagged by more than [`FAR_NS`], the delay would be inserted although due, and
    /// would fire at once.)
    #[inline]
    fn reading(&self) -> u64 {
        let now = self.source.floor();
        if self.deadline.saturating_sub(now) < FAR_NS { self.source.now() } else { now }
    }

    /// The result of a poll, which the next poll finds in `stage`.
    #[inline]
    fn keep(&mut self, found: Found) -> Found {
        match found {
            Poll::Pending => self.stage = Stage::Waited,
            Poll::Ready(Ok(())) => self.stage = Stage::Ready,
            Poll::Ready(Err(_)) => self.withdraw(), // final: the delay needs no entry any more
        }
        found
    }

    /// Moves the deadline to `after` from now. A ready delay starts again.
    ///
    /// Moving a delay later takes no lock: when the old deadline comes, the runtime moves the delay
    /// on, and wakes no task. Moving a pending delay earlier takes a short lock section, and at
    /// most a single system call.
    ///
    /// # Examples
    ///
    /// An idle timeout, moved later by each message:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut idle = Delay::on(&runtime, Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// idle.reset(Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(!idle.is_elapsed());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "change")]
    pub fn reset(&mut self, after: Duration) {
        let now = self.source.now();
        self.restart(Some(now), |clock| instant(clock.map_or(now, |clock| clock.reading_under_lock(now)), after));
    }

    /// Moves the deadline to `deadline`; see [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// Two delays with the same deadline:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let first = Delay::on(&runtime, Duration::from_secs(30));
    /// let mut second = Delay::on(&runtime, Duration::ZERO);
    /// second.reset_at(first.deadline());
    /// clock.advance(Duration::from_secs(30));
    /// assert!(first.is_elapsed() && second.is_elapsed());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn reset_at(&mut self, deadline: impl Into<Deadline>) {
        self.reset_to(self.source.deadline(deadline.into()));
    }

    pub(crate) fn reset_to(&mut self, deadline: u64) {
        self.restart(None, |_| deadline);
    }

    /// Moves the deadline. `deadline` computes the new deadline, perhaps twice; if there is an
    /// entry, with the clock of its shard, under the lock where that is needed. `before`: a reading
    /// of the clock, shortly before.
    #[inline]
    fn restart(&mut self, before: Option<u64>, deadline: impl Fn(Option<&Clock>) -> u64) {
        self.stage = Stage::New;
        self.deadline = match &self.entry {
            None => deadline(None).min(END),
            Some(entry) => entry.reset(before, |clock| deadline(Some(clock))),
        };
    }

    /// Waits for this delay or for the cancellation of `token`, the first to come; see
    /// [`CancellableDelay`].
    ///
    /// # Examples
    ///
    /// A delay of an hour, cancelled by another thread:
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

    /// The result at the deadline, on a runtime that may have ended: `Ok` if the deadline came
    /// before the end.
    fn by_the_end(&self) -> Result<(), RuntimeError> {
        if self.source.was_there(self.deadline) { Ok(()) } else { Err(RuntimeError::Ended) }
    }

    fn found(&self, looked: Looked) -> Found {
        match looked {
            Looked::Waits => Poll::Pending,
            Looked::HasCome => Poll::Ready(Ok(())),
            Looked::Closed => Poll::Ready(self.by_the_end()),
        }
    }

    /// Wakes the waiting task, if any, so that the task polls again.
    pub(crate) fn wake_task(&self) {
        if let Some(waker) = self.entry.as_ref().and_then(WakerEntry::take_waker) {
            waker.wake();
        }
    }

    /// No task waits any more: removes the delay from its queue, and drops entry and waker. A
    /// further poll makes a new entry.
    #[inline]
    pub(crate) fn withdraw(&mut self) {
        self.entry = None;
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

fused!([] FusedFuture for Delay, |this| this.is_done());

shown!([] Delay, |this|
    "deadline" => format_args!("{}", this.deadline()), "elapsed" => this.is_elapsed(),
    "waiting" => this.entry.is_some()
);

/// A delay with a token. Made by [`Delay::with_token`].
///
/// Ready with `Ok(())` at the deadline, or with [`Cancelled`] when the token is cancelled first. If
/// a poll finds both, the cancellation counts. The first result removes the delay from its queue
/// and the waker from the token at once, and stays. **Dropping** the future does the same.
///
/// # Examples
///
/// A cancellable pause in a loop:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, CancellationTokenSource, Delay, error::Cancelled};
///
/// async fn heartbeat(token: &CancellationToken) -> Cancelled {
///     loop {
///         // ... a heartbeat ...
///         if let Err(cancelled) = Delay::new(Duration::from_millis(1)).with_token(token).await {
///             return cancelled;
///         }
///     }
/// }
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(5));
/// let cancelled = heartbeat(&source.token()).await;
/// assert_eq!(cancelled.to_string(), "cancelled by a timeout");
/// # });
/// ```
#[derive(Debug)]
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct CancellableDelay {
    pub(super) cancelled: CancelledOwned,
    pub(super) delay: Delay,
}

impl CancellableDelay {
    /// A poll has been ready.
    #[cfg(feature = "stream")]
    pub(super) fn is_done(&self) -> bool {
        self.delay.is_done() || self.cancelled.has_returned()
    }
}

impl Future for CancellableDelay {
    type Output = Result<(), Cancelled>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { cancelled, delay } = &mut *self;
        if delay.is_done() {
            return Pin::new(delay).poll(context).map(Ok);
        }
        let first = ready!(cancelled.or_poll(context, |context| Pin::new(&mut *delay).poll(context)));
        if first.is_err() {
            delay.withdraw();
        }
        Poll::Ready(first)
    }
}

fused!([] FusedFuture for CancellableDelay, |this| this.is_done());

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/delay_poll_vs_fire.rs"]
mod loom_models;
