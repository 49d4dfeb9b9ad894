//! Sources: the cancelling handles.

use std::panic::resume_unwind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{CancelReason, CancellationToken, Handle, Inner};
use crate::engine::{self, Changed, Firing, OwnedEntry, TimedCancel};
use crate::queue::MissedTicks;
use crate::runtime::RuntimeError;
use crate::runtime::{Runtime, RuntimeHandle};
use crate::sync::{Ordering, fence};
use crate::time::NEVER;
use crate::time::instant;
use crate::unwind::{contain_drop, resume};

/// Cancels its tokens: by hand, after a time, or when a parent is cancelled.
///
/// A `CancellationTokenSource` is a handle; clones are the same source.
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
#[doc(alias = "AbortController")]
#[derive(Clone)]
pub struct CancellationTokenSource {
    pub(super) handle: Handle,
}

impl CancellationTokenSource {
    /// A source, not cancelled. Its timed cancels count on the [current runtime](Runtime::current).
    /// (The call does not start the default runtime.)
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
        Self { handle: Handle::new(Arc::new(Inner::new(source, Box::default()))) }
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
    #[must_use = "dropping the last handle withdraws the timed cancel"]
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
        let is_cancelled = || parents.iter().any(|parent| parent.reason().is_some());
        // A source that is born cancelled needs no link. So a cancelled source gets no more
        // children, which a later cancel of another of its parents would have to walk.
        let linked_to = if is_cancelled() { &[][..] } else { &parents };
        let inner = Arc::new_cyclic(|child: &Weak<Inner>| {
            let links = linked_to.iter().map(|parent| parent.children.link(Weak::clone(child))).collect();
            Inner::new(source, links)
        });
        // A parent may have been cancelled before the child was linked, or while the child was
        // incomplete: the canceller then could not upgrade the link. The fence pairs with the
        // fences of the canceller, which marks, then looks for children.
        fence(Ordering::SeqCst);
        if is_cancelled() {
            inner.mark(CancelReason::Parent);
        }
        Self { handle: Handle::new(inner) }
    }

    /// A token of this source.
    pub fn token(&self) -> CancellationToken {
        CancellationToken { handle: Some(self.handle.clone()) }
    }

    /// Whether the source has been cancelled. True before the first registered callback runs.
    pub fn is_cancelled(&self) -> bool {
        self.handle.reason().is_some()
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
        self.cancel_for(CancelReason::Cancelled)
    }

    fn cancel_for(&self, reason: CancelReason) -> bool {
        let (first, panic) = self.handle.cancel(reason);
        resume(panic, &self.handle.source);
        first
    }

    /// Cancels the source after `after` from now: the timed cancel. A source has a single timed
    /// cancel, so a further call moves the timed cancel. `Duration::MAX`, or a time beyond the
    /// range of the clock, withdraws the timed cancel. Zero cancels at once, on this thread. On a
    /// cancelled source the call does nothing.
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
    #[doc(alias("CancelAfter", "timeout", "WithTimeout", "WithDeadline"))]
    pub fn cancel_after(&self, after: Duration) {
        match self.try_cancel_after(after) {
            Ok(()) | Err(RuntimeError::Ended | RuntimeError::Forked) => {}
            Err(error) => error.not_started(),
        }
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
        if after.is_zero() {
            self.cancel_for(CancelReason::Timeout);
        }
        if self.is_cancelled() {
            return Ok(());
        }
        let mut timed = self.handle.timed.lock();
        let never = instant(self.handle.source.now(), after) == NEVER;
        if !never && self.handle.source.is_forked() {
            return Err(RuntimeError::Forked);
        }
        let changed = timed.timer.as_ref().map_or(Changed::Ended, |timer| engine::change(timer, after, Duration::ZERO));
        timed.begun |= timed.armed && changed == Changed::WasIdle;
        timed.armed = false;
        let mut refused = None;
        if changed == Changed::Ended && !never {
            // There is no timer. Or its runtime has ended, and fires no timer, also none armed
            // before: see `begin_timed`. Or an executor of the program's has dropped its job.
            let next = self.timer(after)?;
            refused = timed.timer.replace(next);
        }
        timed.armed = !never;
        // A canceller that ran meanwhile has taken no timer, or an older timer. This timer would
        // fire in vain.
        let leftover = if self.is_cancelled() { timed.timer.take() } else { None };
        drop(timed);
        drop((leftover, refused));
        Ok(())
    }

    /// The timer is the crate's own and has no context: an observer is code of the program's, and
    /// the caller holds a lock.
    fn timer(&self, after: Duration) -> Result<OwnedEntry, RuntimeError> {
        let inner = Arc::downgrade(&self.handle.0);
        let fire = move |_: &Firing| {
            if let Some(inner) = inner.upgrade().filter(|inner| inner.begin_timed()) {
                if let (_, Some(payload)) = inner.cancel(CancelReason::Timeout) {
                    resume_unwind(payload); // caught by the pool, which calls the panic handler
                }
            }
        };
        let when = (after, Duration::ZERO);
        Ok(OwnedEntry::start_own(self.handle.source.engine()?, MissedTicks::Skip, when, TimedCancel(fire)))
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
        let mut timed = self.handle.timed.lock();
        if timed.begun {
            return false;
        }
        if let Some(timer) = timed.timer.as_ref().filter(|_| timed.armed) {
            if engine::change(timer, Duration::MAX, Duration::ZERO) == Changed::WasIdle {
                return false; // the callback of the timer has begun
            }
            timed.armed = false; // also if the runtime has ended: see `begin_timed`
        }
        drop(timed);
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
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { source: Some(self) }
    }
}

impl Default for CancellationTokenSource {
    fn default() -> Self {
        Self::new()
    }
}

shown!([] CancellationTokenSource, |this| "reason" => this.handle.reason());

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
#[must_use = "dropped at once, the guard cancels at once"]
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
