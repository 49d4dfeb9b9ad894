//! Sources: the handles that cancel.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{CancelReason, CancellationToken, Handle, Inner};
use crate::queue::MissedTicks;
use crate::runtime::RuntimeError;
use crate::runtime::{Runtime, RuntimeHandle};
use crate::sync::{Ordering, fence};
use crate::time::NEVER;
use crate::time::instant;
use crate::timer::{Changed, Timer};
use crate::unwind::resume;

impl Runtime {
    /// A cancellation source whose [`cancel_after`](CancellationTokenSource::cancel_after) counts on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// source.cancel_after(Duration::from_secs(10))?;
    /// clock.advance(Duration::from_secs(10));
    /// assert!(source.is_cancelled());
    /// # Ok::<(), timerqueue::RuntimeError>(())
    /// ```
    pub fn cancellation_source(&self) -> CancellationTokenSource {
        CancellationTokenSource::on(self.handle())
    }
}

/// Cancels its tokens: by hand, after a time, or with another source.
///
/// A `CancellationTokenSource` is a handle; clones are the same source. **Dropping** it cancels nothing: tokens that are
/// left are then never cancelled, but by a `cancel_after` in force or a source it is linked to. For a cancel on drop
/// there is [`drop_guard`](Self::drop_guard).
///
/// # Examples
///
/// A thread that works until it is told to stop:
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
#[derive(Clone)]
pub struct CancellationTokenSource {
    pub(super) handle: Handle,
}

impl CancellationTokenSource {
    /// A source that is not cancelled. Timed cancels count on the default runtime, which this does not start.
    pub fn new() -> Self {
        Self::on(RuntimeHandle::Global)
    }

    pub(crate) fn on(source: RuntimeHandle) -> Self {
        Self { handle: Handle::new(Arc::new(Inner::new(source, Vec::new()))) }
    }

    /// A source that is cancelled after `after`, unless it is moved, withdrawn or cancelled before.
    ///
    /// # Errors
    /// When the default runtime has ended or cannot be started.
    ///
    /// # Examples
    ///
    /// A thread that waits for a millisecond to pass:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let source = CancellationTokenSource::after(Duration::from_millis(1))?;
    /// let cancelled = source.token().wait_timeout(Duration::from_secs(10)).unwrap_err();
    /// assert_eq!(cancelled.reason(), CancelReason::Timeout);
    /// # Ok::<(), timerqueue::RuntimeError>(())
    /// ```
    pub fn after(after: Duration) -> Result<Self, RuntimeError> {
        let source = Self::new();
        source.cancel_after(after)?;
        Ok(source)
    }

    /// A source that is cancelled when any of these tokens is, and not the other way round; born cancelled if one of them
    /// already is (S47). Timed cancels count on the runtime of the first of them that is not [`none`](CancellationToken::none), on the
    /// default runtime if all are.
    ///
    /// Dropping the last handle of the linked source takes it out of its parents at once.
    ///
    /// # Examples
    ///
    /// A request that ends with its connection or with the server:
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
    pub fn linked<'a>(parents: impl IntoIterator<Item = &'a CancellationToken>) -> Self {
        let parents: Vec<&Handle> = parents.into_iter().filter_map(|token| token.handle.as_ref()).collect();
        let source = parents.first().map_or(RuntimeHandle::Global, |parent| parent.source.clone());
        let inner = Arc::new_cyclic(|child: &Weak<Inner>| {
            let links = parents.iter().map(|parent| parent.children.link(Weak::clone(child))).collect();
            Inner::new(source, links)
        });
        // A parent that was cancelled before the child was linked, or that could not see it before it was complete. The fence
        // pairs with those of the canceller, which marks, and then looks for children.
        fence(Ordering::SeqCst);
        if parents.iter().any(|parent| parent.reason().is_some()) {
            inner.mark(CancelReason::Parent);
        }
        Self { handle: Handle::new(inner) }
    }

    /// A token of this source.
    pub fn token(&self) -> CancellationToken {
        CancellationToken { handle: Some(self.handle.clone()) }
    }

    /// Whether it has been cancelled. True before the first registered callback runs (S40).
    pub fn is_cancelled(&self) -> bool {
        self.handle.reason().is_some()
    }

    /// Cancels: first marks the source and all that are linked to it, directly or not, as cancelled. Then calls what is
    /// registered on this thread, outside all locks: with this source, last registered first, and then the same for each
    /// linked source. A linked source comes after the one that it was found through; beyond that there is no order between
    /// linked sources. Returns whether this call was the one that cancelled (S40, S41).
    ///
    /// # Panics
    /// With the first panic of a registered callback, or of a waker, after all of them have run. If the thread panics
    /// already, such a panic ends here: this may be called by a destructor.
    ///
    /// # Examples
    ///
    /// The first call cancels, a further one does nothing:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let _registration = source.token().register(|| println!("cleaning up"));
    /// assert!(source.cancel());
    /// assert!(!source.cancel());
    /// ```
    pub fn cancel(&self) -> bool {
        self.cancel_for(CancelReason::Cancelled)
    }

    fn cancel_for(&self, reason: CancelReason) -> bool {
        let (first, panic) = self.handle.cancel(reason);
        resume(panic);
        first
    }

    /// Cancels after `after` from now (S45). There is one timed cancel: a further call moves it, `Duration::MAX`, or
    /// what does not fit the clock, withdraws it, zero cancels here and now. On a cancelled source it does nothing. Registered callbacks run on the runtime's pool;
    /// a panic of one goes to the runtime's panic handler.
    ///
    /// **With the last handle, source or token, a pending timed cancel is withdrawn**, and registered callbacks are dropped
    /// uncalled, detached ones too: see [`Registration::detach`](crate::Registration::detach). (Linked sources that live on
    /// keep it pending.)
    ///
    /// When the runtime is shut down, its timed cancels never come: what must end with the runtime, too, is to be cancelled
    /// by hand.
    ///
    /// # Errors
    /// When the runtime has ended, or the default one cannot be started: nothing is cancelled then. (Zero and never need no runtime.)
    ///
    /// # Examples
    ///
    /// Moved, and then withdrawn:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// source.cancel_after(Duration::from_secs(5))?;
    /// source.cancel_after(Duration::from_secs(60))?; // moved
    /// clock.advance(Duration::from_secs(59));
    /// assert!(!source.is_cancelled());
    /// source.cancel_after(Duration::MAX)?; // withdrawn
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(!source.is_cancelled());
    /// # Ok::<(), timerqueue::RuntimeError>(())
    /// ```
    pub fn cancel_after(&self, after: Duration) -> Result<(), RuntimeError> {
        if self.is_cancelled() {
            return Ok(());
        }
        if after.is_zero() {
            self.cancel_for(CancelReason::Timeout);
            return Ok(());
        }
        let mut timed = self.handle.timed.lock();
        let never = instant(self.handle.source.now(), after) == NEVER;
        match &timed.timer {
            Some(timer) => {
                let changed = timer.change(after, Duration::ZERO);
                // Of an ended runtime nothing comes any more, nor does what was armed before: see `begin_timed`.
                if changed == Changed::Ended {
                    timed.armed = false;
                    return if never { Ok(()) } else { Err(RuntimeError::Ended) };
                }
                timed.begun |= timed.armed && changed == Changed::WasIdle;
                timed.armed = !never;
            }
            None if never => return Ok(()),
            None => {
                timed.timer = Some(self.timer(after)?);
                timed.armed = true;
            }
        }
        // A canceller that came between has taken no timer, or an older one: this one would fire for nothing.
        let leftover = if self.is_cancelled() { timed.timer.take() } else { None };
        drop(timed);
        drop(leftover);
        Ok(())
    }

    fn timer(&self, after: Duration) -> Result<Timer, RuntimeError> {
        let inner = Arc::downgrade(&self.handle.0);
        let fire = move |_: &crate::timer::Tick<'_>| {
            if let Some(inner) = inner.upgrade().filter(|inner| inner.begin_timed()) {
                if let (_, Some(payload)) = inner.cancel(CancelReason::Timeout) {
                    resume_unwind(payload); // caught by the pool, which tells the panic handler
                }
            }
        };
        let when = (after, Duration::ZERO);
        Ok(crate::timer::overlapping(self.handle.source.engine()?, MissedTicks::Skip, when, fire))
    }

    /// Makes an un-cancelled source ready for another use: withdraws the timed cancel and drops all registered callbacks
    /// without calling them (S46). Tasks that await a token go on waiting.
    ///
    /// True only if no cancellation has happened, nor can still happen from an earlier `cancel_after`. False: take a new
    /// source.
    ///
    /// # Examples
    ///
    /// One source for one request after the other:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// for _request in 0..3 {
    ///     source.cancel_after(Duration::from_secs(10))?;
    ///     // ... the request, well within its time ...
    ///     assert!(source.try_reset());
    /// }
    /// # Ok::<(), timerqueue::RuntimeError>(())
    /// ```
    pub fn try_reset(&self) -> bool {
        let mut timed = self.handle.timed.lock();
        if timed.begun {
            return false;
        }
        if let Some(timer) = timed.timer.as_ref().filter(|_| timed.armed) {
            if timer.change(Duration::MAX, Duration::ZERO) == Changed::WasIdle {
                return false; // its callback has begun
            }
            timed.armed = false; // of an ended runtime as well: see `begin_timed`
        }
        drop(timed);
        let orphans = {
            let mut registered = self.handle.registered.lock();
            if self.is_cancelled() {
                return false;
            }
            registered.registry.orphan_callbacks()
        };
        self.handle.drop_orphans(orphans);
        true
    }

    /// A guard that cancels this source when it is dropped.
    ///
    /// # Examples
    ///
    /// Whatever was started in a scope ends with it:
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

impl fmt::Debug for CancellationTokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationTokenSource").field("reason", &self.handle.reason()).finish_non_exhaustive()
    }
}

/// Cancels a source when it is dropped. Made by [`CancellationTokenSource::drop_guard`].
///
/// Dropped while its thread panics, it cancels all the same; a panic of a registered callback is swallowed then, since a
/// second one would end the process.
///
/// # Examples
///
/// The work has gone well, and nothing is cancelled:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let guard = CancellationTokenSource::new().drop_guard();
/// let source = guard.disarm();
/// assert!(!source.is_cancelled());
/// ```
#[derive(Debug)]
#[must_use = "dropped at once, it cancels at once"]
pub struct DropGuard {
    source: Option<CancellationTokenSource>,
}

impl DropGuard {
    /// Gives the source back; nothing is cancelled.
    pub fn disarm(mut self) -> CancellationTokenSource {
        self.source.take().expect("taken only here and by drop")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            let (_, panic) = source.handle.cancel(CancelReason::Cancelled);
            resume(panic);
        }
    }
}
