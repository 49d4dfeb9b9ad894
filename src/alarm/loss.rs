//! The loss of a backend's alarms: foreign code of the process has closed descriptors, or the
//! system refuses the calls.
//!
//! Ground rules. A backend whose call fails notes the loss here, for good. From then on the backend
//! sets no alarm, and its `wait` reports [`Event::Lost`](super::Event::Lost) at once. `Drop` closes
//! only descriptors that are proven the backend's own: the other numbers may belong to foreign
//! files by now. If threads in `wait` cannot be woken any more, they are *cut off*, and `Drop`
//! closes none. The engine decides how the runtime ends. No lock is needed or taken here.
//!
//! A thread blocked in a wait when its descriptor is closed goes on blocking: the kernel keeps the
//! file for this thread, and without a descriptor no thread can reach the file. Such threads are
//! counted, so a shutdown need not wait for them ([`Loss::stranded`]).

#![cfg_attr(windows, allow(dead_code))] // no descriptors

use std::io;

use crossbeam_utils::CachePadded;

use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicBool, AtomicUsize, OnceLock};

/// Why a call failed for good.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// The descriptor is not the backend's any more.
    Closed,
    /// The descriptor is the backend's, or the call fails with any descriptor: a sandbox, or code
    /// that stands in for the system.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))] // elsewhere not told from the other
    Refused,
}

/// Why a call failed; without a destructor, unlike an error of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The number of the system's error.
    System(i32),
    Other(&'static str),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Other("no error of the system"), Self::System)
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::System(number) => Self::from_raw_os_error(number),
            Failure::Other(text) => Self::other(text),
        }
    }
}

/// Whether the alarms of a runtime are lost.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// The cause, the call that failed, and the system's error.
    told: OnceLock<(Cause, &'static str, Failure)>,
    /// Blocked threads cannot be woken any more.
    cut_off: AtomicBool,
    /// The number of blocked threads. Written at each wait, hence on its own cache line.
    waiting: CachePadded<AtomicUsize>,
}

impl Loss {
    /// Notes a call that fails for good; threads in `wait` can still be woken.
    #[cold]
    pub(super) fn note(&self, cause: Cause, call: &'static str, error: Failure) {
        let _ = self.told.set((cause, call, error));
    }

    /// The same, for the descriptor through which threads are woken: threads in `wait` are cut off.
    #[cold]
    pub(super) fn note_cut_off(&self, cause: Cause, call: &'static str, error: Failure) {
        self.cut_off.store(true, Ordering::Release);
        self.note(cause, call, error);
    }

    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.told.get().is_some()
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// The loss that was noted, as a sentence for the user.
    pub(crate) fn message(&self) -> String {
        let Some((cause, call, error)) = self.told.get() else { return String::new() };
        let error = io::Error::from(*error);
        let happened = match cause {
            Cause::Closed => "the descriptors of a timer runtime were closed by other code of this process",
            Cause::Refused => "the system refuses a call to a timer runtime that it allowed before",
        };
        format!("timerqueue: {happened} ({call}: {error}); the runtime has ended")
    }

    /// Runs a blocking call, and counts the thread meanwhile.
    #[inline]
    pub(super) fn waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// The number of blocked threads without a way to wake them. They run no user code, and end
    /// when their wait ends.
    pub(crate) fn stranded(&self) -> usize {
        if self.is_cut_off() { self.waiting.load(Ordering::SeqCst) } else { 0 }
    }
}
