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
use std::sync::Weak;

use super::Engine;
use crate::sync::Arc;
use crate::sync::unmodelled::OnceLock;

/// A counted reference to an engine. It only keeps the memory alive. Aligned so that the counts of
/// two references never share a cache line.
#[repr(align(128))]
pub(crate) struct CoreRef {
    pub(crate) engine: Arc<Engine>,
    /// Of a reference that a [guard](Scope::guard) owns alone: set when the guard is dropped, to
    /// what was current before it.
    left: OnceLock<Option<Arc<CoreRef>>>,
}

impl CoreRef {
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(Self { engine: Arc::clone(engine), left: OnceLock::new() })
    }
}

/// The state that the handles of a runtime share. The last handle closes the engine.
pub(crate) struct Owner {
    pub(crate) engine: Arc<Engine>,
    /// A reference for each queue of the engine.
    refs: Vec<Arc<CoreRef>>,
}

impl Owner {
    /// The first owner of an engine.
    pub(crate) fn new(engine: Arc<Engine>) -> std::sync::Arc<Self> {
        let owner = std::sync::Arc::new(Self::beside(&engine));
        let before = engine.owner.set(std::sync::Arc::downgrade(&owner));
        debug_assert!(before.is_ok(), "an engine has one owner");
        owner
    }

    /// The owner of an engine; if the last handle is gone, and the engine closed, a further one.
    pub(crate) fn of(engine: &Arc<Engine>) -> std::sync::Arc<Self> {
        let owner = engine.owner.get().and_then(Weak::upgrade);
        owner.unwrap_or_else(|| std::sync::Arc::new(Self::beside(engine)))
    }

    fn beside(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), refs: engine.shards().map(|_| CoreRef::new(engine)).collect() }
    }

    /// A reference to the engine, counted on the core of the calling thread.
    #[inline]
    pub(crate) fn core(&self) -> Arc<CoreRef> {
        Arc::clone(&self.refs[self.engine.current_queue().unwrap_or(0)])
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.engine.close();
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
///
/// A guard is dropped in any order with other guards and scopes. If a later one is current then,
/// the guard leaves that one alone, and marks its own reference as left: whichever restores it goes
/// on to what was current before. The end of the scope in which a guard was made ends what the
/// guard has set.
pub(crate) struct Scope {
    before: Option<Arc<CoreRef>>,
    /// Of a guard: its reference, which no other code has.
    guard: Option<Arc<CoreRef>>,
    _of_a_thread: std::marker::PhantomData<*const ()>,
}

impl Scope {
    pub(crate) fn enter(core: Arc<CoreRef>) -> Self {
        Self { before: replace(Some(core)), guard: None, _of_a_thread: std::marker::PhantomData }
    }

    pub(crate) fn guard(engine: &Arc<Engine>) -> Self {
        let own = CoreRef::new(engine);
        let mut scope = Self::enter(Arc::clone(&own));
        scope.guard = Some(own);
        scope
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let mut before = self.before.take();
        // Of guards dropped meanwhile, what was current before them.
        while let Some(left) = before.as_ref().and_then(|core| core.left.get()).cloned() {
            before = left;
        }
        if let Some(own) = &self.guard {
            let _ = own.left.set(before.clone());
            if !get().is_some_and(|current| Arc::ptr_eq(&current, own)) {
                return;
            }
        }
        drop(replace(before));
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::{Delay, Runtime};

    /// S35. A reference made on a core is counted there; no two queues count on the same cache
    /// line.
    #[test]
    fn a_delay_counts_on_the_core_on_which_it_is_made() {
        let runtime = Runtime::builder().start().expect("the system has threads");
        let owner = Owner::of(runtime.engine());
        let refs = &owner.refs;
        let places: BTreeSet<_> = refs.iter().map(|core| Arc::as_ptr(core).addr() / align_of::<CoreRef>()).collect();
        assert_eq!((places.len(), align_of::<CoreRef>()), (runtime.queues(), 128));
        for core in core_affinity::get_core_ids().unwrap_or_default() {
            let runtime = &runtime;
            let made = move || {
                if !core_affinity::set_for_current(core) {
                    return; // the system does not allow this core
                }
                let queue = runtime.engine().current_queue().expect("no manual clock");
                let sources: Vec<_> = (0..10).map(|_| runtime.core()).collect();
                let counts: Vec<usize> = refs.iter().map(Arc::strong_count).collect();
                assert!(counts.iter().enumerate().all(|(i, &count)| count == if i == queue { 11 } else { 1 }));
                drop((sources, Delay::on(runtime, Duration::ZERO)));
            };
            std::thread::scope(|scope| scope.spawn(made).join().expect("no panic"));
        }
    }
}
