//! Registrations: handles of callbacks registered with a token.

use std::future::poll_fn;
use std::task::Poll;

use super::Handle;
use super::registry::Id;
use crate::engine::Waits;
use crate::runtime::wait::park_on;

/// The registration of a callback with a token. Made by
/// [`CancellationToken::register`](crate::CancellationToken::register).
///
/// **Dropping** the registration unregisters the callback, without waiting for a running callback.
///
/// # Examples
///
/// A callback that is unregistered in time:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let source = CancellationTokenSource::new();
/// let registration = source.token().register(|| unreachable!());
/// assert!(registration.unregister());
/// source.cancel();
/// ```
#[must_use = "dropping a registration unregisters the callback: keep it (`let _registration = ..`; `let _ = ..` drops it at once), or `detach` it"]
pub struct Registration {
    pub(super) at: Option<(Handle, Id)>,
}

impl Registration {
    /// Unregisters the callback, without waiting. True: the callback had not begun, and never will.
    /// It is dropped by this call, and a panic of its destructor surfaces here. False: the callback
    /// runs or has run, or a reset of the source has dropped the callback.
    #[doc(alias("removeEventListener", "stop"))]
    pub fn unregister(mut self) -> bool {
        self.at.take().is_some_and(|(handle, id)| handle.unregister(id))
    }

    /// As [`unregister`](Self::unregister). If the callback runs now on another thread, this call
    /// blocks until the callback has ended. If the callback runs on the calling thread, this call
    /// does not wait. Nor does a call in a callback for whose end the registered callback waits, as
    /// in [`Timer::dispose_and_wait`](crate::Timer::dispose_and_wait).
    ///
    /// # Examples
    ///
    /// After this call, the callback no longer uses its captured values:
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use timerqueue::CancellationTokenSource;
    ///
    /// static IN_USE: AtomicBool = AtomicBool::new(false);
    ///
    /// let source = CancellationTokenSource::new();
    /// let registration = source.token().register(|| {
    ///     IN_USE.store(true, Ordering::Relaxed);
    ///     IN_USE.store(false, Ordering::Relaxed);
    /// });
    /// let canceller = std::thread::spawn(move || source.cancel());
    /// registration.unregister_and_wait();
    /// assert!(!IN_USE.load(Ordering::Relaxed));
    /// # canceller.join().unwrap();
    /// ```
    pub fn unregister_and_wait(mut self) -> bool {
        let Some((handle, id)) = self.at.take() else { return false };
        if handle.unregister(id) {
            return true;
        }
        let mut waits = None;
        park_on(poll_fn(|context| {
            let mut listeners = handle.listeners.lock();
            if listeners.running != id.serial {
                return Poll::Ready(());
            }
            waits = waits.take().or_else(|| Waits::begin(handle.address()));
            if waits.is_none() {
                return Poll::Ready(());
            }
            listeners.late.get_or_insert_default().awaiting = Some(context.waker().clone());
            Poll::Pending
        }));
        false
    }

    /// Keeps the callback registered for as long as the source lives: until the last handle (source
    /// or token) and the last linked source are dropped.
    ///
    /// **A detached callback keeps no source alive, nor does a pending [`cancel_after`].** Dropping
    /// the last handle withdraws the timed cancel, and drops the callback uncalled. For code that
    /// must run at a time in any case, detach a [`OnceTimer`].
    ///
    /// [`cancel_after`]: crate::CancellationTokenSource::cancel_after
    /// [`OnceTimer`]: crate::OnceTimer
    ///
    /// # Examples
    ///
    /// A token keeps the timed cancel pending; without the token the callback would never run:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = CancellationTokenSource::on(&runtime);
    /// let token = source.token();
    /// token.register(|| println!("time is up")).detach();
    /// source.cancel_after(Duration::from_secs(1));
    /// drop(source);
    /// assert_eq!(runtime.metrics().active, 1);
    /// drop(token);
    /// assert_eq!(runtime.metrics().active, 0);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn detach(mut self) {
        self.at = None;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((handle, id)) = self.at.take() {
            handle.unregister(id);
        }
    }
}

shown!([] Registration, |this| "registered" => this.at.is_some());
