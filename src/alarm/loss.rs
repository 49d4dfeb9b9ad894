//! The loss of a backend's descriptors: other code of the process has closed them.
//!
//! Ground rules. A backend that finds a descriptor gone notes that here, once and for all. From then on it sets no alarm, its
//! `wait` reports [`Event::Lost`](super::Event::Lost) and waits for nothing, and it closes nothing: the numbers may be those
//! of other files by now. What becomes of the runtime is decided by the engine.
//!
//! A thread that blocks in a wait when its descriptor is closed goes on blocking: the kernel keeps the file behind the
//! descriptor for it, and nothing can be done to that file without a descriptor. Such threads are counted, so that a shutdown
//! need not wait for them ([`Loss::stranded`]).

#![cfg_attr(windows, allow(dead_code))] // no descriptors

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// Whether the descriptors of one runtime are lost.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// The call that found out, and what the system said to it.
    told: OnceLock<String>,
    /// No thread that waits can be woken any more.
    cut_off: AtomicBool,
    /// Threads that wait. Written at each wait, so it has a cache line of its own.
    waiting: CachePadded<AtomicUsize>,
}

impl Loss {
    /// A call has failed as it can only on a descriptor that is not ours any more.
    #[cold]
    pub(super) fn note(&self, call: &str, error: &io::Error) {
        let _ = self.told.set(format!("{call}: {error}"));
    }

    /// The same, and it was the descriptor by which threads are woken.
    #[cold]
    pub(super) fn note_cut_off(&self, call: &str, error: &io::Error) {
        self.cut_off.store(true, Ordering::Release);
        self.note(call, error);
    }

    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.told.get().is_some()
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// What was lost, in words.
    pub(crate) fn message(&self) -> String {
        let told = self.told.get().map_or("", String::as_str);
        format!(
            "timerqueue: the descriptors of a timer runtime were closed by other code of this process ({told}); the runtime has ended"
        )
    }

    /// Runs a call that waits.
    #[inline]
    pub(super) fn waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Threads that wait and cannot be woken. They run no code of the user's, and end when their wait does.
    pub(crate) fn stranded(&self) -> usize {
        if self.is_cut_off() { self.waiting.load(Ordering::SeqCst) } else { 0 }
    }
}
