//! Single polls of futures, and wakers that count, act or panic.
//!
//! Ground rules. A [`CountingWaker`] counts its wake-ups and its remaining clones. So a test can
//! assert which task was woken, and that no future keeps a waker longer than needed. No helper here
//! blocks.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};

/// Wake-ups so far.
#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that counts its wake-ups.
#[derive(Default)]
pub(crate) struct CountingWaker(Arc<WakeCount>);

impl CountingWaker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// The number of wake-ups so far.
    pub(crate) fn wakes(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// The number of remaining clones of its waker.
    pub(crate) fn kept(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// Polls once, with the counting waker.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F, counter: &CountingWaker) -> Poll<F::Output> {
    poll_with(future, &counter.waker())
}

/// Polls once, with this waker.
pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls a pinned future once, with the counting waker.
pub(crate) fn poll_pinned<F: Future>(future: Pin<&mut F>, counter: &CountingWaker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&counter.waker()))
}

/// A waker that calls `action`.
pub(crate) fn waker_that(action: impl Fn() + Send + Sync + 'static) -> Waker {
    struct Act<F>(F);
    impl<F: Fn() + Send + Sync + 'static> Wake for Act<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    Waker::from(Arc::new(Act(action)))
}

/// Whether `action` panics.
pub(crate) fn panics<T>(action: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(action)).is_err()
}

/// An executor with wakers that panic when cloned, woken or dropped, as the flags say, or that run
/// an action each time.
#[derive(Default)]
pub(crate) struct PanickingWaker {
    pub(crate) on_clone: AtomicBool,
    pub(crate) on_wake: AtomicBool,
    pub(crate) on_drop: AtomicBool,
    /// Panics so far.
    panics: AtomicUsize,
    /// The action of its wakers when they are cloned, woken or dropped.
    action: Option<Box<dyn Fn() + Send + Sync>>,
}

impl PanickingWaker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An executor with wakers that panic when woken.
    pub(crate) fn on_wake() -> Arc<Self> {
        let panicking = Self::new();
        panicking.on_wake.store(true, Ordering::SeqCst);
        panicking
    }

    /// An executor with wakers that call `action` whenever they are cloned, woken or dropped.
    pub(crate) fn that(action: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { action: Some(Box::new(action)), ..Self::default() })
    }

    pub(crate) fn set(flag: &AtomicBool, to: bool) {
        flag.store(to, Ordering::SeqCst);
    }

    pub(crate) fn panics(&self) -> usize {
        self.panics.load(Ordering::SeqCst)
    }

    fn act(&self, flag: &AtomicBool, what: &str) {
        if let Some(action) = &self.action {
            action();
        }
        if flag.load(Ordering::SeqCst) {
            self.panics.fetch_add(1, Ordering::SeqCst);
            panic!("a waker panics when it is {what}");
        }
    }

    #[allow(unsafe_code)] // `Wake` cannot give a waker whose clone panics
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        unsafe fn borrow(data: *const ()) -> ManuallyDrop<Arc<PanickingWaker>> {
            // SAFETY: `data` came out of `into_raw` below or in `clone`, and its count is still the
            // waker's.
            ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<PanickingWaker>()) })
        }
        unsafe fn clone(data: *const ()) -> RawWaker {
            // SAFETY: by the contract of `RawWakerVTable`, `data` is alive.
            let own = unsafe { borrow(data) };
            own.act(&own.on_clone, "cloned");
            RawWaker::new(Arc::into_raw(Arc::clone(&own)).cast(), &VTABLE)
        }
        unsafe fn wake(data: *const ()) {
            // SAFETY: by the contract of `RawWakerVTable`, this call takes over the count of
            // `data`.
            let own = ManuallyDrop::into_inner(unsafe { borrow(data) });
            own.act(&own.on_wake, "woken");
        }
        unsafe fn wake_by_ref(data: *const ()) {
            // SAFETY: by the contract of `RawWakerVTable`, `data` is alive; its count stays with
            // the waker.
            let own = unsafe { borrow(data) };
            own.act(&own.on_wake, "woken");
        }
        unsafe fn drop(data: *const ()) {
            // SAFETY: by the contract of `RawWakerVTable`, this call takes over the count of
            // `data`.
            let own = ManuallyDrop::into_inner(unsafe { borrow(data) });
            own.act(&own.on_drop, "dropped");
        }
        static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop);
        // SAFETY: the four functions count references of an `Arc` of a `Send + Sync` type.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(Arc::clone(self)).cast(), &VTABLE)) }
    }

    /// The number of remaining clones of its waker.
    pub(crate) fn kept(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }
}
