//! Futures polled by hand: wakers that count, act or panic, and single polls.
//!
//! Ground rules. A [`CountingWaker`] counts its wake-ups and its clones that are left. So a test can assert both which task was
//! woken, and that no future keeps a waker for longer than it needs it. Nothing here blocks.

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

/// A task that counts how often it was woken.
#[derive(Default)]
pub(crate) struct CountingWaker(Arc<WakeCount>);

impl CountingWaker {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// How often it was woken so far.
    pub(crate) fn wakes(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// Clones of its waker that are still there.
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

/// A waker that does this.
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

/// An executor whose wakers panic, each of their three ways when it is told to, or do something else each time.
#[derive(Default)]
pub(crate) struct PanickingWaker {
    pub(crate) on_clone: AtomicBool,
    pub(crate) on_wake: AtomicBool,
    pub(crate) on_drop: AtomicBool,
    /// Panics so far.
    panics: AtomicUsize,
    /// What its wakers do when they are cloned, woken or dropped.
    action: Option<Box<dyn Fn() + Send + Sync>>,
}

impl PanickingWaker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// One whose wakers panic when woken.
    pub(crate) fn on_wake() -> Arc<Self> {
        let panicking = Self::new();
        panicking.on_wake.store(true, Ordering::SeqCst);
        panicking
    }

    /// One whose wakers do this whenever they are cloned, woken or dropped.
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

    #[allow(unsafe_code)] // a waker whose clone panics cannot be had from `Wake`
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        unsafe fn borrow(data: *const ()) -> ManuallyDrop<Arc<PanickingWaker>> {
            // SAFETY: `data` came out of `into_raw` below or in `clone`, and its count is still the waker's.
            ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<PanickingWaker>()) })
        }
        unsafe fn clone(data: *const ()) -> RawWaker {
            // SAFETY: the contract of a waker: `data` is alive.
            let own = unsafe { borrow(data) };
            own.act(&own.on_clone, "cloned");
            RawWaker::new(Arc::into_raw(Arc::clone(&own)).cast(), &VTABLE)
        }
        unsafe fn wake(data: *const ()) {
            // SAFETY: the contract of a waker: the count of `data` is handed over.
            let own = ManuallyDrop::into_inner(unsafe { borrow(data) });
            own.act(&own.on_wake, "woken");
        }
        unsafe fn wake_by_ref(data: *const ()) {
            // SAFETY: as in `clone`.
            let own = unsafe { borrow(data) };
            own.act(&own.on_wake, "woken");
        }
        unsafe fn drop(data: *const ()) {
            // SAFETY: as in `wake`.
            let own = ManuallyDrop::into_inner(unsafe { borrow(data) });
            own.act(&own.on_drop, "dropped");
        }
        static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop);
        // SAFETY: the four functions count references of an `Arc` of a `Send + Sync` type.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(Arc::clone(self)).cast(), &VTABLE)) }
    }

    /// Clones of its waker that are still there.
    pub(crate) fn kept(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }
}
