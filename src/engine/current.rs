//! The current runtime of a thread: the runtime that constructors use which name none.
//!
//! Ground rules. A thread of a pool has its own runtime as its current runtime, from its start to
//! its end. A scope, and the driver of a manual clock, set the current runtime of their thread for
//! a while. A further thread has none, and uses the default runtime. Values of the thread alone,
//! and no lock.
//!
//! The usual case costs a single read of a thread-local byte: [`is_plain`] tells that the default
//! runtime is to be used, and that its clock is the usual clock.

use std::cell::{Cell, RefCell};

use super::Engine;
use crate::sync::Arc;

/// A counted reference to an engine. It only keeps the memory alive. Aligned so that the counts of
/// two references never share a cache line.
#[repr(align(128))]
pub(crate) struct CoreRef {
    pub(crate) engine: Arc<Engine>,
}

impl CoreRef {
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { engine: Arc::clone(engine) })
    }
}

crate::sync::thread_local! {
    /// The thread has no current runtime, and the default runtime has the usual clock.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

crate::sync::thread_local! {
    static CURRENT: RefCell<Option<Arc<CoreRef>>> = const { RefCell::new(None) };
}

/// Whether the default runtime is to be used, and its clock is the usual clock. False: not known,
/// see [`get`].
#[inline]
pub(crate) fn is_plain() -> bool {
    PLAIN.with(Cell::get)
}

/// The caller knows that the default runtime has the usual clock, for good.
pub(crate) fn set_plain() {
    PLAIN.with(|plain| plain.set(get().is_none()));
}

/// The current runtime of the calling thread. `None`: the default runtime; also while the values of
/// the thread are destroyed.
pub(crate) fn get() -> Option<Arc<CoreRef>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Replaces the current runtime of the calling thread, and returns the previous one.
pub(crate) fn replace(new: Option<Arc<CoreRef>>) -> Option<Arc<CoreRef>> {
    PLAIN.with(|plain| plain.set(false));
    // An error: the values of the thread are destroyed, and the thread has no current runtime.
    CURRENT.try_with(|current| current.replace(new)).ok().flatten()
}

/// A change of the current runtime of a thread, undone on drop. Does not leave its thread.
pub(crate) struct Scope {
    before: Option<Arc<CoreRef>>,
    _of_a_thread: std::marker::PhantomData<*const ()>,
}

impl Scope {
    pub(crate) fn enter(core: Arc<CoreRef>) -> Self {
        Self { before: replace(Some(core)), _of_a_thread: std::marker::PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        drop(replace(self.before.take()));
    }
}
