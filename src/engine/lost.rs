//! The end of a runtime whose alarms are lost (see [`crate::alarm::Loss`]): the runtime is shut
//! down and its panic handler told.
//!
//! Ground rules. Any thread may find the loss, with a lock held: of a shard when an alarm is set,
//! of the pool when the stall check is armed. Closing takes locks and runs code of the user's. So a
//! new thread closes the runtime, unless a poller found the loss.

use std::io::Write;
use std::time::Duration;

use super::{CallbackPanic, Engine};
use crate::alarm::Loss;
use crate::sync::Ordering;

impl Engine {
    fn loss(&self) -> Option<&Loss> {
        self.native.as_ref()?.pool.alarms.loss_record().filter(|loss| loss.is_noted())
    }

    /// After a call to the alarms, perhaps with a lock held: if the alarms are lost, has another
    /// thread end the runtime.
    #[inline]
    pub(super) fn look_for_loss(&self) {
        if self.loss().is_some() {
            self.end_elsewhere();
        }
    }

    #[cold]
    fn end_elsewhere(&self) {
        // Already shut down: the descriptors are not needed any more.
        if self.is_closed() || self.loss_found.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(engine) = self.me.upgrade() else { return };
        if crate::sync::spawn(String::from("timerqueue-lost"), move || engine.end_for_loss(), || ()).is_err() {
            // The next call to the alarms finds the loss again.
            self.loss_found.store(false, Ordering::Release);
        }
    }

    /// Caller: holds no lock. Closes the runtime, then tells the panic handler, or standard error
    /// where there is none. Once.
    pub(super) fn end_for_loss(&self) {
        let Some(loss) = self.loss() else { return };
        // Already shut down, or another thread has found the loss and is about to close the
        // runtime.
        if self.is_closed() || self.loss_told.swap(true, Ordering::AcqRel) {
            // The poller that calls would be back at once; the other thread may have less priority.
            return std::thread::sleep(Duration::from_millis(1));
        }
        self.close();
        if !self.hooks.tell_panic(CallbackPanic { payload: Box::new(loss.message()), label: None }) {
            // If standard error is closed too, the message is lost.
            let _ = writeln!(std::io::stderr(), "{}", loss.message());
        }
    }
}
