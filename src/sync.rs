//! The only file that names a lock, an atomic or a thread handle of another crate.
//!
//! Everything that a loom model must see goes through here: an ordinary build gets std and parking_lot, a model build
//! (`--cfg timerqueue_loom`, tests only) gets loom's stand-ins with the same calls.

#[cfg(not(all(test, timerqueue_loom)))]
mod imp {
    pub(crate) use parking_lot::{Condvar, Mutex, RwLock};
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, fence};
    pub(crate) use std::thread::{Thread, current, park, park_timeout};
}

#[cfg(all(test, timerqueue_loom))]
mod imp {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::thread::{Thread, current, park};

    /// loom's mutex behind parking_lot's signature (no poisoning).
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no model panics with the lock held")
        }
    }
}

pub(crate) use imp::*;
pub(crate) use std::sync::atomic::Ordering;
