//! Registrations: the place of a callback with its token.

use std::fmt;

use super::Handle;
use super::registry::Id;
use crate::sync::thread_id;

/// A callback's place with a token. Made by [`CancellationToken::register`](crate::CancellationToken::register). Dropping it unregisters, without waiting.
///
/// # Examples
///
/// A callback that is taken out in time:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let source = CancellationTokenSource::new();
/// let registration = source.token().register(|| unreachable!());
/// assert!(registration.unregister());
/// source.cancel();
/// ```
#[must_use = "dropping a registration unregisters the callback"]
pub struct Registration {
    pub(super) at: Option<(Handle, Id)>,
}

impl Registration {
    /// Takes the callback out. True: it had not begun, and never will (S43, S44). Does not wait.
    pub fn unregister(mut self) -> bool {
        self.at.take().is_some_and(|(handle, id)| handle.unregister(id))
    }

    /// As [`unregister`](Self::unregister), and if the callback runs now on another thread, blocks until it has ended. Called
    /// by the callback itself, or by one that runs on the same thread, it does not wait.
    ///
    /// # Examples
    ///
    /// After this, no callback uses what it has captured:
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
        let me = thread_id();
        let mut registered = handle.registered.lock();
        while registered.running.is_some_and(|(running, thread)| running == id && thread != me) {
            handle.callback_ended.wait(&mut registered);
        }
        false
    }

    /// Keeps the callback registered for as long as the source lives: until its last handle, source or token, is dropped, and
    /// the last source that is linked to it.
    ///
    /// **The callback keeps no source alive, nor does a pending [`cancel_after`].** With the last handle the timed cancel is
    /// withdrawn, and the callback is dropped uncalled. For code that must run at a time, whatever else is dropped, use a
    /// [`OnceTimer`] and detach that.
    ///
    /// [`cancel_after`]: crate::CancellationTokenSource::cancel_after
    /// [`OnceTimer`]: crate::OnceTimer
    ///
    /// # Examples
    ///
    /// A token keeps the timed cancel pending; without it the callback would never run:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// let token = source.token();
    /// token.register(|| println!("time is up")).detach();
    /// source.cancel_after(Duration::from_secs(1))?;
    /// drop(source);
    /// assert_eq!(runtime.active_timers(), 1);
    /// drop(token);
    /// assert_eq!(runtime.active_timers(), 0);
    /// # Ok::<(), timerqueue::RuntimeError>(())
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

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}
