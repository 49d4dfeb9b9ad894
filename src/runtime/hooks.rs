//! The hooks and the observer of a runtime: what they are told.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{CallbackContext, CallbackPanic, Hooks, SlowCallback, SlowHandler, ThreadsChanged};
use crate::unwind::{catch_all, discard};

/// Is told what a runtime does, and may give the callbacks of new timers a context: see
/// [`RuntimeBuilder::observer`](crate::RuntimeBuilder::observer).
///
/// The crate `timerqueue-adapters` has an observer for subscribers of the crate tracing. Every
/// method has a default that does nothing.
///
/// **Threads.** An observer runs with no lock held. It may block and make timers, as a callback
/// may. Panics of [`panicked`](Self::panicked) are ignored; those of the other methods are panics
/// of the code that calls: see each.
///
/// # Examples
///
/// The tenant that makes a timer is the tenant of its callbacks:
///
/// ```
/// use std::cell::Cell;
/// use std::time::Duration;
/// use timerqueue::{
///     ManualClock, OnceTimer, Runtime, observe::{CallbackContext, ObservedCallback, Observer},
/// };
///
/// thread_local! { static TENANT: Cell<u32> = const { Cell::new(0) } }
///
/// struct Tenants;
///
/// impl Observer for Tenants {
///     fn timer_created(&self) -> Option<CallbackContext> {
///         let tenant = TENANT.get();
///         (tenant != 0).then(|| -> CallbackContext {
///             Box::new(move |callback: ObservedCallback<'_>| {
///                 let outer = TENANT.replace(tenant);
///                 callback.run();
///                 TENANT.set(outer);
///             })
///         })
///     }
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).observer(Tenants).start()?;
/// TENANT.set(7);
/// let timer = OnceTimer::on(&runtime, Duration::from_secs(1), |_| assert_eq!(TENANT.get(), 7));
/// TENANT.set(0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!((runtime.metrics().fired(), runtime.metrics().panics, TENANT.get()), (1, 0, 0));
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The calling thread makes a timer, or calls [`Runtime::execute`](crate::Runtime::execute).
    /// `Some`: the context in which the callbacks run. Futures and tokens have no context, and the
    /// timers of this crate itself have none. A panic goes to the caller of the constructor.
    fn timer_created(&self) -> Option<CallbackContext> {
        None
    }

    /// The runtime has caught a panic: told when and where
    /// [`on_panic`](crate::RuntimeBuilder::on_panic) is, right before that.
    fn panicked(&self, panic: &CallbackPanic) {
        let _ = panic;
    }

    /// A callback ran for longer than the limit of
    /// [`on_slow_callback`](crate::RuntimeBuilder::on_slow_callback), or without that hook for
    /// longer than [`slow_limit`](Self::slow_limit). Called on the thread of the callback, right
    /// before that hook. A panic is told as one of that hook.
    fn slow_callback(&self, slow: &SlowCallback) {
        let _ = slow;
    }

    /// The limit for [`slow_callback`](Self::slow_callback) where the runtime has no hook of its
    /// own; asked once, at the start. `None`: nothing is measured. With a limit each callback costs
    /// three readings of a clock more.
    fn slow_limit(&self) -> Option<Duration> {
        None
    }

    /// The pool has grown since callbacks block, or the system has refused it a thread. Called by a
    /// timer of the runtime, a single one at a time, which is counted as a callback: so an observer
    /// that blocks takes one thread, and a panic is one of a callback.
    fn threads_changed(&self, change: &ThreadsChanged) {
        let _ = change;
    }
}

/// Tells the observer too.
pub(super) fn observe(hooks: &mut Hooks, observer: Arc<dyn Observer>) {
    let (told, handler) = (Arc::clone(&observer), hooks.panicked.take());
    hooks.panicked = Some(Box::new(move |panic| {
        catch_all(|| told.panicked(&panic));
        match &handler {
            Some(handler) => handler(panic),
            None => discard(panic.into_payload()),
        }
    }));
    let hook = hooks.slow.take();
    if let Some(limit) = hook.as_ref().map(|hook| hook.limit).or_else(|| observer.slow_limit()) {
        let told = Arc::clone(&observer);
        let handler = Box::new(move |slow: &SlowCallback| {
            told.slow_callback(slow);
            if let Some(hook) = &hook {
                (hook.handler)(slow);
            }
        });
        hooks.slow = Some(SlowHandler { limit, handler });
    }
    let told = Arc::clone(&observer);
    hooks.context = Some(Box::new(move || told.timer_created()));
    hooks.threads = Some(Box::new(move |change| observer.threads_changed(&change)));
}
