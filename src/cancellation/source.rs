//! Sources: the cancelling handles.

use std::error::Error;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::children::Shards;
use super::{CancelReason, Cancellation, CancellationToken, Cause, Handle, Inner};
use crate::engine::{Changed, TimerArc, TimerWeak};
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::sync::{Ordering, fence};
use crate::time::{Deadline, LAST, NEVER, instant};
use crate::unwind::{Payload, contain_drop, resume};

/// Cancels its tokens: by hand, after a time, or when a parent is cancelled.
///
/// A `CancellationTokenSource` is a handle; clones are the same source. The source cancels, and its
/// [`token`](Self::token) is told: the token is awaited, asked and cloned.
///
/// **Dropping** a source cancels nothing: only a pending `cancel_after` or a parent can still
/// cancel the remaining tokens. To cancel on drop, use [`drop_guard`](Self::drop_guard).
///
/// # Examples
///
/// A thread that works until its token is cancelled:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let source = CancellationTokenSource::new();
/// let token = source.token();
/// let worker = std::thread::spawn(move || {
///     let mut rounds = 0u64;
///     while !token.is_cancelled() {
///         rounds += 1; // ... work ...
///     }
///     rounds
/// });
/// assert!(source.cancel());
/// println!("{} rounds", worker.join().unwrap());
/// ```
#[doc(alias("AbortController", "CancelFunc"))]
#[derive(Clone)]
pub struct CancellationTokenSource {
    pub(super) handle: Handle,
}

impl CancellationTokenSource {
    /// A source, not cancelled. Its timed cancels count on the [current runtime](Runtime::current).
    /// (The call does not start the default runtime.)
    #[doc(alias = "CancellationToken::new")]
    #[track_caller]
    pub fn new() -> Self {
        Self::of(RuntimeHandle::current())
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = CancellationTokenSource::on(&runtime);
    /// source.cancel_after(Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(10));
    /// assert!(source.is_cancelled());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn on(runtime: &Runtime) -> Self {
        Self::of(runtime.handle())
    }

    pub(crate) fn of(source: RuntimeHandle) -> Self {
        Self { handle: Handle::new(TimerArc::new_cyclic(|_| Inner::new(source, Box::default()))) }
    }

    /// A source cancelled after `after`, on the [current runtime](Runtime::current). A later
    /// [`cancel_after`](Self::cancel_after) can move or withdraw the timed cancel. On a runtime
    /// that has ended, the timed cancel never comes.
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`try_after`](Self::try_after) returns the
    /// reason.
    ///
    /// # Examples
    ///
    /// A thread that waits for the cancellation, a millisecond:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let source = CancellationTokenSource::after(Duration::from_millis(1));
    /// assert_eq!(source.token().wait().reason(), CancelReason::Timeout);
    /// ```
    #[doc(alias("WithTimeout", "deadline"))]
    #[must_use = "dropping the last handle, source or token, withdraws the timed cancel"]
    #[track_caller]
    pub fn after(after: Duration) -> Self {
        let source = Self::new();
        source.cancel_after(after);
        source
    }

    /// As [`after`](Self::after), with an error instead of a panic, and instead of a timed cancel
    /// that never comes.
    ///
    /// # Errors
    /// When the runtime has ended, or the default runtime cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::try_after(Duration::from_secs(1))?;
    /// # drop(source);
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_after(after: Duration) -> Result<Self, RuntimeError> {
        let source = Self::of(RuntimeHandle::try_current()?);
        source.try_cancel_after(after)?;
        Ok(source)
    }

    /// A source that is cancelled when any of these tokens, its parents, is cancelled; not the
    /// other way round. If a parent is cancelled already, so is the new source. Its timed cancels
    /// count on the runtime of the first parent except [`none`](CancellationToken::none), or else
    /// on the [current runtime](Runtime::current).
    ///
    /// **Dropping** the last handle of the linked source unlinks the source from its parents at
    /// once, unless sources linked to this source live on.
    ///
    /// # Examples
    ///
    /// A request cancelled by its client or by the shutdown of the server:
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let (shutdown, request) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    /// let linked = CancellationTokenSource::linked([&shutdown.token(), &request.token()]);
    /// request.cancel();
    /// assert_eq!(linked.token().reason(), Some(CancelReason::Parent));
    /// assert_eq!(linked.token().root_reason(), Some(CancelReason::Cancelled));
    /// assert!(!shutdown.is_cancelled());
    /// ```
    #[doc(alias("CreateLinkedTokenSource", "WithCancel"))]
    #[track_caller]
    pub fn linked<'a>(parents: impl IntoIterator<Item = &'a CancellationToken>) -> Self {
        let parents: Vec<&Handle> = parents.into_iter().filter_map(|token| token.handle.as_ref()).collect();
        let source = match parents.first() {
            Some(parent) => parent.source.clone(),
            None => RuntimeHandle::current(),
        };
        let cancelled = || parents.iter().find_map(|parent| parent.for_children());
        // A source that is born cancelled needs no link. So a cancelled source gets no more
        // children, which a later cancel of another of its parents would have to walk.
        let linked_to = if cancelled().is_some() { &[][..] } else { &parents };
        let inner = TimerArc::new_cyclic(|child: &TimerWeak<Inner>| {
            let links = linked_to.iter().map(|parent| Shards::link(parent, child.clone())).collect();
            Inner::new(source, links)
        });
        // A parent may have been cancelled before the child was linked, or while the child was
        // incomplete: the canceller then could not upgrade the link. The fence pairs with the
        // fences of the canceller, which marks, then looks for children.
        fence(Ordering::SeqCst);
        if let Some((mark, cause)) = cancelled() {
            inner.try_mark(mark, cause.as_ref());
        }
        Self { handle: Handle::new(inner) }
    }

    /// A token of this source: to await, to ask, to clone.
    #[doc(alias("cancelled", "Token"))]
    pub fn token(&self) -> CancellationToken {
        CancellationToken { handle: Some(self.handle.clone()) }
    }

    /// Whether the source has been cancelled. True before the first registered callback runs.
    #[doc(alias = "IsCancellationRequested")]
    pub fn is_cancelled(&self) -> bool {
        self.handle.is_cancelled()
    }

    /// Cancels the source. Returns whether this call has cancelled, rather than an earlier call, a
    /// timed cancel or a parent.
    ///
    /// The call first marks the source and all linked sources, direct and indirect, as cancelled.
    /// Then, on this thread and outside all locks, the call wakes the tasks that wait for a token
    /// of this source, and runs the registered callbacks, last registered first; then likewise for
    /// each linked source. A linked source comes after the parent through which this call found the
    /// source; no further order between linked sources or between tasks is defined.
    ///
    /// [`cancel_async`](Self::cancel_async) leaves the waking and the callbacks to the pool.
    ///
    /// # Panics
    /// With the first panic of a callback or waker, after all callbacks and wakers have run. The
    /// [panic handler](crate::RuntimeBuilder::on_panic) of the source's runtime is told of further
    /// panics; if the thread is panicking already, of the first too: so a destructor may call this.
    ///
    /// # Examples
    ///
    /// The first call cancels, a further call does nothing:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let _registration = source.token().register(|| println!("cleaning up"));
    /// assert!(source.cancel());
    /// assert!(!source.cancel());
    /// ```
    #[doc(alias = "abort")]
    pub fn cancel(&self) -> bool {
        self.surface(self.handle.cancel(CancelReason::Cancelled, None))
    }

    /// As [`cancel`](Self::cancel), with a cause: an error of the program's own that says why. The
    /// tokens of this source, and those of all linked sources that this call cancels, return it
    /// from [`CancellationToken::cause`]. If the source was cancelled before, the cause is dropped.
    ///
    /// The sources keep the cause until they are dropped. So a cause that owns a handle of one of
    /// them would keep itself alive for ever.
    ///
    /// # Panics
    /// As [`cancel`](Self::cancel).
    ///
    /// # Examples
    ///
    /// The cause of a shutdown, as a request finds it:
    ///
    /// ```
    /// use std::io;
    /// use std::sync::Arc;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let server = CancellationTokenSource::new();
    /// let request = server.token().child_source().token();
    /// server.cancel_with_cause(Arc::new(io::Error::other("a new version is deployed")));
    /// let cause = request.cause().unwrap();
    /// assert_eq!(cause.to_string(), "a new version is deployed");
    /// assert!(cause.downcast_ref::<io::Error>().is_some());
    /// ```
    #[doc(alias("CancelCauseFunc", "WithCancelCause"))]
    pub fn cancel_with_cause(&self, cause: Arc<dyn Error + Send + Sync>) -> bool {
        self.surface(self.handle.cancel(CancelReason::Cancelled, Some(cause)))
    }

    /// Cancels the source, and leaves the waking of tasks and the registered callbacks to the pool
    /// of the source's runtime. When this call returns, the source and all linked sources are
    /// marked as cancelled. The call runs no code of others, and so does not wait for it.
    ///
    /// One thread of the pool does the rest, in the order of [`cancel`](Self::cancel); on a manual
    /// clock, the thread that advances the clock, at the next advance, even by zero. If the runtime
    /// ends before, the thread that ends it does the rest; if it has ended or cannot be started,
    /// this call does, so that each callback runs in any case. Panics go to the [panic
    /// handler](crate::RuntimeBuilder::on_panic).
    ///
    /// The returned future is ready when all callbacks have run. **Dropping** the future changes
    /// nothing.
    ///
    /// # Examples
    ///
    /// A signal handler that must not block, and a task that waits for the cleaning up:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let _registration = shutdown.token().register(|| println!("flushing the log"));
    /// let flushed = shutdown.cancel_async();
    /// assert!(shutdown.is_cancelled());
    /// assert!(flushed.await);
    /// # });
    /// ```
    #[doc(alias = "CancelAsync")]
    pub fn cancel_async(&self) -> Cancellation {
        self.cancel_on_pool(None)
    }

    /// As [`cancel_async`](Self::cancel_async), with a cause: see
    /// [`cancel_with_cause`](Self::cancel_with_cause).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::io;
    /// use std::sync::Arc;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let flushed = shutdown.cancel_async_with_cause(Arc::new(io::Error::other("SIGTERM")));
    /// assert_eq!(shutdown.token().cause().unwrap().to_string(), "SIGTERM");
    /// assert!(flushed.await);
    /// # });
    /// ```
    pub fn cancel_async_with_cause(&self, cause: Arc<dyn Error + Send + Sync>) -> Cancellation {
        self.cancel_on_pool(Some(cause))
    }

    fn cancel_on_pool(&self, cause: Option<Cause>) -> Cancellation {
        Cancellation::start(&self.handle, self.handle.mark_all(CancelReason::Cancelled, cause))
    }

    /// Ends a call that has cancelled on this thread.
    fn surface(&self, (first, panic): (bool, Option<Payload>)) -> bool {
        resume(panic, &self.handle.source);
        first
    }

    /// Cancels the source after `after` from now: the timed cancel. A source has a single timed
    /// cancel, so a further call, also of [`cancel_at`](Self::cancel_at), moves the timed cancel.
    /// `Duration::MAX`, or a time beyond the range of the clock, withdraws the timed cancel. Zero
    /// cancels at once, on this thread. On a cancelled source the call does nothing.
    ///
    /// A timed cancel runs the registered callbacks on the runtime's pool (on a manual clock: on
    /// the thread that advances it). A panic of a callback goes to the runtime's panic handler.
    ///
    /// **Dropping the last handle, source or token, withdraws a pending timed cancel** and drops
    /// the registered callbacks uncalled, also detached callbacks: see
    /// [`Registration::detach`](crate::Registration::detach). (Linked sources that live on keep the
    /// timed cancel pending.)
    ///
    /// When the runtime is shut down, its timed cancels never come, as for a delay time stands
    /// still; [`try_cancel_after`](Self::try_cancel_after) tells. Work that must end with the
    /// runtime is to be cancelled by hand.
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`try_cancel_after`](Self::try_cancel_after)
    /// returns the reason.
    ///
    /// # Examples
    ///
    /// A timed cancel, moved and then withdrawn:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = CancellationTokenSource::on(&runtime);
    /// source.cancel_after(Duration::from_secs(5));
    /// source.cancel_after(Duration::from_secs(60)); // moved
    /// clock.advance(Duration::from_secs(59));
    /// assert!(!source.is_cancelled());
    /// source.cancel_after(Duration::MAX); // withdrawn
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(!source.is_cancelled());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("CancelAfter", "timeout", "WithTimeout"))]
    pub fn cancel_after(&self, after: Duration) {
        RuntimeError::or_none(self.try_cancel_after(after));
    }

    /// As [`cancel_after`](Self::cancel_after), with an error instead of a panic, and instead of a
    /// timed cancel that never comes.
    ///
    /// # Errors
    /// When the runtime has ended, or the default runtime cannot be started: the call then cancels
    /// nothing. (Zero and `Duration::MAX` need no runtime.)
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let source = CancellationTokenSource::on(&runtime);
    /// assert!(source.try_cancel_after(Duration::from_secs(1)).is_ok());
    /// runtime.shutdown(Duration::ZERO)?;
    /// assert!(source.try_cancel_after(Duration::from_secs(1)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_cancel_after(&self, after: Duration) -> Result<(), RuntimeError> {
        self.set_timed(|now| instant(now, after))
    }

    /// Cancels the source at `deadline`, a [`Timestamp`](crate::Timestamp) of its runtime's clock
    /// or a `std::time::Instant`: the timed cancel, set to an instant. Otherwise as
    /// [`cancel_after`](Self::cancel_after). A deadline that has passed cancels at once, on this
    /// thread; one beyond the range of the clock withdraws the timed cancel.
    ///
    /// # Panics
    /// As [`cancel_after`](Self::cancel_after); [`try_cancel_at`](Self::try_cancel_at) returns the
    /// reason.
    ///
    /// # Examples
    ///
    /// A call with a deadline of its caller's, and the time that is left for a call of its own:
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use timerqueue::CancellationTokenSource;
    ///
    /// fn call(deadline: Instant) -> Option<Duration> {
    ///     let source = CancellationTokenSource::new();
    ///     source.cancel_at(deadline);
    ///     source.token().remaining()
    /// }
    ///
    /// assert!(call(Instant::now() + Duration::from_secs(5)).unwrap() <= Duration::from_secs(5));
    /// assert_eq!(call(Instant::now()), Some(Duration::ZERO));
    /// ```
    #[doc(alias("WithDeadline", "deadline"))]
    pub fn cancel_at(&self, deadline: impl Into<Deadline>) {
        RuntimeError::or_none(self.try_cancel_at(deadline));
    }

    /// As [`cancel_at`](Self::cancel_at), with an error instead of a panic, and instead of a timed
    /// cancel that never comes.
    ///
    /// # Errors
    /// As [`try_cancel_after`](Self::try_cancel_after).
    pub fn try_cancel_at(&self, deadline: impl Into<Deadline>) -> Result<(), RuntimeError> {
        let deadline = self.handle.source.deadline(deadline.into());
        self.set_timed(|_| deadline)
    }

    /// Sets the cause of the timed cancel, one that is pending or set later: what
    /// [`CancellationToken::cause`] returns if this source is cancelled by its own timed cancel. A
    /// further call replaces the cause, and [`try_reset`](Self::try_reset) takes it away. On a
    /// cancelled source the call has no effect. As to a cause that owns a handle, see
    /// [`cancel_with_cause`](Self::cancel_with_cause).
    ///
    /// # Examples
    ///
    /// Which of several limits was it?
    ///
    /// ```
    /// use std::io;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let request = CancellationTokenSource::after(Duration::from_secs(30));
    /// let upload = request.token().child_source();
    /// upload.set_timeout_cause(Arc::new(io::Error::other("the upload took too long")));
    /// upload.cancel_after(Duration::from_millis(1));
    /// let token = upload.token();
    /// assert_eq!(io::Error::from(token.wait()).kind(), io::ErrorKind::TimedOut);
    /// assert_eq!(token.cause().unwrap().to_string(), "the upload took too long");
    /// ```
    #[doc(alias("WithTimeoutCause", "WithDeadlineCause"))]
    pub fn set_timeout_cause(&self, cause: Arc<dyn Error + Send + Sync>) {
        let unused = if self.is_cancelled() { Some(cause) } else { self.handle.set_timeout_cause(Some(cause)) };
        contain_drop(&self.handle.source, unused);
    }

    /// Sets, moves or withdraws the timed cancel, or cancels at once. `deadline` gets the time.
    fn set_timed(&self, deadline: impl FnOnce(u64) -> u64) -> Result<(), RuntimeError> {
        if self.is_cancelled() {
            return Ok(());
        }
        let mut timer = self.handle.lock();
        let now = self.handle.source.now();
        let deadline = Some(deadline(now)).filter(|&deadline| deadline <= LAST).unwrap_or(NEVER);
        if deadline <= now {
            drop(timer);
            self.surface(self.handle.cancel_in_time());
            return Ok(());
        }
        let never = deadline == NEVER;
        if !never && self.handle.source.is_forked() {
            return Err(RuntimeError::Forked);
        }
        let changed = timer.change_at(deadline, now);
        if timer.deadline.take().is_some() && changed == Changed::WasIdle {
            self.handle.timed_begun.store(1, Ordering::Relaxed);
        }
        if changed == Changed::Ended && !never {
            // The first timed cancel. Or the runtime has ended, and fires no timer, also none armed
            // before: see `begin_timed`.
            timer.start_at(self.handle.source.engine()?, deadline, now);
        }
        *timer.deadline = NonZeroU64::new(deadline).filter(|_| !never);
        // A canceller that ran meanwhile has found no timer. This timer would fire in vain.
        if self.is_cancelled() {
            timer.dispose();
        }
        Ok(())
    }

    /// Makes a source reusable if the source is not cancelled: withdraws the timed cancel and drops
    /// all registered callbacks without calling them. Tasks that await a token keep waiting.
    ///
    /// True only if the source is not cancelled, and an earlier `cancel_after` can no longer cancel
    /// it. False: the caller needs a new source.
    ///
    /// # Examples
    ///
    /// The same source for several requests in turn:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = CancellationTokenSource::on(&runtime);
    /// for _request in 0..3 {
    ///     source.cancel_after(Duration::from_secs(10));
    ///     // ... the request, well within its time ...
    ///     assert!(source.try_reset());
    /// }
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "reset")]
    pub fn try_reset(&self) -> bool {
        let mut timer = self.handle.lock();
        if self.handle.timed_begun.load(Ordering::Relaxed) != 0 {
            return false;
        }
        if timer.deadline.is_some() {
            if timer.change_at(NEVER, self.handle.source.floor()) == Changed::WasIdle {
                return false; // the callback of the timer has begun
            }
            *timer.deadline = None; // also if the runtime has ended: see `begin_timed`
        }
        drop(timer);
        contain_drop(&self.handle.source, self.handle.set_timeout_cause(None));
        let mut callbacks = {
            let mut listeners = self.handle.listeners.lock();
            if self.is_cancelled() {
                return false;
            }
            if listeners.callbacks.is_empty() {
                return true; // the memory stays
            }
            listeners.callbacks.take()
        };
        // A destructor that panics keeps no callback from being dropped.
        contain_drop(&self.handle.source, std::iter::from_fn(|| callbacks.pop()));
        true
    }

    /// A guard whose drop cancels this source.
    ///
    /// # Examples
    ///
    /// The end of a scope cancels the token:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// {
    ///     let _guard = source.drop_guard();
    /// }
    /// assert!(token.is_cancelled());
    /// ```
    #[doc(alias = "drop_guard_ref")]
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { source: Some(self) }
    }
}

impl Default for CancellationTokenSource {
    fn default() -> Self {
        Self::new()
    }
}

shown!([] CancellationTokenSource, |this| "reason" => this.token().reason());

/// A guard whose drop cancels a source. Made by [`CancellationTokenSource::drop_guard`].
///
/// **Dropping** the guard runs the registered callbacks on this thread, as
/// [`CancellationTokenSource::cancel`] does, and panics likewise. A guard dropped while its thread
/// panics cancels too. A panic of a callback then goes to the panic handler of the source's
/// runtime, since a second panic would abort the process.
///
/// # Examples
///
/// The work has succeeded, and nothing is cancelled:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let guard = CancellationTokenSource::new().drop_guard();
/// let source = guard.disarm();
/// assert!(!source.is_cancelled());
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard cancels: keep it (`let _guard = ..`; `let _ = ..` drops it at once)"]
pub struct DropGuard {
    source: Option<CancellationTokenSource>,
}

impl DropGuard {
    /// Returns the source, without cancelling.
    pub fn disarm(mut self) -> CancellationTokenSource {
        self.source.take().expect("taken only here and by drop")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            source.cancel();
        }
    }
}
