//! The end of a runtime whose alarms are lost (see [`crate::alarm::Loss`]): the runtime is shut down and its panic handler told.
//!
//! Ground rules. The loss may be found with a lock held (that of a shard when an alarm is set, that of the pool's probe), on
//! any thread. Closing takes locks and runs code of the user's. So a thread of its own does it, unless a watcher found out.

use std::io::Write;

use super::Engine;
use crate::alarm::{Backend, Loss};
use crate::sync::Ordering;
use crate::unwind::catch_all;

impl Engine {
    fn loss(&self) -> Option<&Loss> {
        self.native.as_ref()?.alarms.loss().filter(|loss| loss.is_noted())
    }

    /// After a call to the alarms, perhaps with a lock held: sees to it that a loss is followed by the end.
    #[inline]
    pub(super) fn look_for_loss(&self) {
        if self.loss().is_some() {
            self.end_elsewhere();
        }
    }

    #[cold]
    fn end_elsewhere(&self) {
        // Shut down already: the descriptors are not needed any more.
        if self.is_closed() || self.loss_found.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(engine) = self.me.upgrade() else { return };
        if crate::sync::spawn(String::from("timerqueue-lost"), move || engine.end_for_loss(), || ()).is_err() {
            // The next call finds it again.
            self.loss_found.store(false, Ordering::Release);
        }
    }

    /// With no lock held: closes the runtime, then tells the panic handler, or standard error where there is none. Once.
    pub(super) fn end_for_loss(&self) {
        let Some(loss) = self.loss() else { return };
        // Shut down already, or about to be closed by another thread that has found out.
        if self.is_closed() || self.loss_told.swap(true, Ordering::AcqRel) {
            return std::thread::yield_now();
        }
        self.close();
        match &self.panic_handler {
            Some(handler) => catch_all(|| handler(Box::new(loss.message()))),
            // Nothing is to be done where that is closed too.
            None => _ = writeln!(std::io::stderr(), "{}", loss.message()),
        }
    }
}
