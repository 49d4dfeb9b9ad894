//! Synchronization primitives: locks, atomics and thread handles, by the names that the crate uses.
//!
//! Ground rules. Everything visible to a loom model comes from here. An ordinary build gets std and
//! parking_lot. A model build (`--cfg timerqueue_loom`, tests only) gets loom's primitives with the
//! same functions. [`unmodelled`] has the ordinary primitives in each build: for statics (the
//! default runtime, the counts of cores and forks), values made once (a timerfd on the wall clock),
//! atomics that a model takes as a single step with the previous operation (the time of a manual
//! clock, the flags of its driver, the due point of a node), and the inbox of the pool, which is
//! single steps as its deques.
//! A build that counts accesses (`--cfg timerqueue_audit`) gets those of the audit's test. Tests
//! use std's.

#[cfg(timerqueue_audit)]
#[path = "../tests/process/audit_primitives.rs"]
#[allow(unreachable_pub)] // for a test alone
pub mod audit;

/// Primitives that no model explores.
pub(crate) mod unmodelled {
    #![allow(unused_imports)] // some are for one system, or for no model

    pub(crate) use std::sync::atomic::AtomicPtr; // written once, so no audit counts it

    #[cfg(not(timerqueue_audit))]
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    #[cfg(not(timerqueue_audit))]
    pub(crate) use std::sync::OnceLock;
    #[cfg(not(timerqueue_audit))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};

    #[cfg(timerqueue_audit)]
    pub(crate) use super::audit::{
        AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, fence,
    };
}

#[cfg(not(all(test, timerqueue_loom)))]
mod imp {
    use super::Body;
    pub(crate) use super::unmodelled::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, OnceLock, fence,
    };
    pub(crate) use parking_lot::Condvar;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::thread::{Thread, ThreadId, current, park, park_timeout};
    pub(crate) use std::thread_local;

    pub(crate) fn thread_id() -> ThreadId {
        current().id()
    }

    pub(crate) type JoinHandle = std::thread::JoinHandle<()>;

    /// Runs its function on drop.
    struct Last(Option<Body>);

    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(last) = self.0.take() {
                last();
            }
        }
    }

    /// Starts a thread that runs `body`, and `last` after the destructors of all its thread-local
    /// values.
    ///
    /// Thread-local destructors run in reverse order of the first use of their values. The thread
    /// uses the value with `last` first, so `last` runs last. (Only destructors of C code, by
    /// `pthread_key_create`, may run later.)
    pub(crate) fn spawn(name: String, body: Body, last: Body) -> std::io::Result<JoinHandle> {
        std::thread_local! {
            static LAST: std::cell::RefCell<Last> = const { std::cell::RefCell::new(Last(None)) };
        }
        std::thread::Builder::new().name(name).spawn(move || {
            LAST.with(|slot| slot.borrow_mut().0 = Some(last));
            body();
        })
    }
}

#[cfg(all(test, timerqueue_loom))]
mod imp {
    #![allow(dead_code)] // code outside the models need only compile

    use super::Body;
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, fence};
    pub(crate) use loom::thread::ThreadId;
    // The models do not check reference counts, which would cost many executions.
    pub(crate) use std::sync::Arc;

    /// The threads of a model are coroutines of a single thread, and would share std's thread-local
    /// values.
    macro_rules! local_to_threads {
        ($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };) => {
            loom::thread_local! { $(#[$attr])* static $name: $type = $init; }
        };
    }
    pub(crate) use local_to_threads as thread_local;

    /// loom's lock behind parking_lot's signatures. No model panics with a lock held.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    /// `None` while a condition variable has the guard.
    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap()
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    /// The result of a timed wait. Never timed out: time does not pass in a model.
    pub(crate) struct TimedOut;

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = Some(self.0.wait(guard.0.take().unwrap()).unwrap());
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> TimedOut {
            self.wait(guard);
            TimedOut
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// std's `OnceLock`, with a flag that orders the content before its discovery for loom.
    pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>, AtomicBool);

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self(std::sync::OnceLock::new(), AtomicBool::new(false))
        }

        pub(crate) fn get(&self) -> Option<&T> {
            if self.1.load(Ordering::Acquire) { self.0.get() } else { None }
        }

        pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            if let Some(content) = self.get() {
                return content;
            }
            let content = self.0.get_or_init(init);
            self.1.store(true, Ordering::Release);
            content
        }
    }

    /// The parking token of a thread. Loom's own token wakes a thread from any wait, also for a
    /// lock, and is lost when the thread takes a lock. This token persists, like std's, and `park`
    /// may return once without the token, as with std.
    #[derive(Clone, Debug)]
    pub(crate) struct Thread(Arc<loom::sync::Notify>);

    loom::thread_local! {
        static TOKEN: Arc<loom::sync::Notify> = Arc::new(loom::sync::Notify::new());
    }

    pub(crate) fn current() -> Thread {
        Thread(TOKEN.with(Arc::clone))
    }

    pub(crate) fn park() {
        current().0.wait();
    }

    pub(crate) fn park_timeout(_: Duration) {
        park();
    }

    pub(crate) fn thread_id() -> ThreadId {
        loom::thread::current().id()
    }

    pub(crate) type JoinHandle = loom::thread::JoinHandle<()>;

    pub(crate) fn spawn(_: String, body: Body, last: Body) -> std::io::Result<JoinHandle> {
        Ok(loom::thread::spawn(move || {
            body();
            last();
        }))
    }

    impl Thread {
        pub(crate) fn unpark(&self) {
            self.0.notify();
        }
    }
}

pub(crate) use imp::*;

/// What a thread runs. Boxed: the code of std that starts a thread is linked once.
pub(crate) type Body = Box<dyn FnOnce() + Send>;
pub(crate) use std::sync::atomic::Ordering;

/// Parks the calling thread until it is unparked, or until an instant; may return early. False: the
/// instant had come before, and the thread has not been parked.
#[inline(never)] // one copy
pub(crate) fn park_until(until: Option<std::time::Instant>) -> bool {
    match until.map(|until| until.saturating_duration_since(std::time::Instant::now())) {
        None => park(),
        Some(std::time::Duration::ZERO) => return false,
        Some(left) => park_timeout(left),
    }
    true
}
