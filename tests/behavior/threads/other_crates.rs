//! Foreign code in the epoch collector of the pool's deques: its deferred closures may run any code, on any thread that
//! pins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_epoch as epoch;
use timerqueue::{Runtime, Timer};

use crate::support::{Count, NEVER, PATIENCE, eventually, ms, us, within};

/// Defers closures of `make`, all the time, until dropped. Counts the closures that have run on threads with this name,
/// and in total.
struct Neighbour {
    stop: Arc<AtomicBool>,
    on_the_pool: Count,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Neighbour {
    fn new<F: FnOnce() + Send + 'static>(name: &'static str, make: impl Fn() -> F + Send + 'static) -> Self {
        let (stop, on_the_pool) = (Arc::new(AtomicBool::new(false)), Count::new());
        let thread = std::thread::spawn({
            let (stop, on_the_pool) = (Arc::clone(&stop), on_the_pool.clone());
            move || {
                // This thread only defers: its closures run on further threads, or at the end.
                while !stop.load(Ordering::Relaxed) {
                    let guard = epoch::pin();
                    for _ in 0..16 {
                        let (action, on_the_pool) = (make(), on_the_pool.clone());
                        guard.defer(move || {
                            if std::thread::current().name().is_some_and(|own| own.starts_with(name)) {
                                on_the_pool.bump();
                                action();
                            }
                        });
                    }
                    drop(guard);
                    std::thread::sleep(us(20));
                }
            }
        });
        Self { stop, on_the_pool, thread: Some(thread) }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Storms of timers on a runtime of this name, until the neighbour's closures have run on its threads often enough.
fn storms<F: FnOnce() + Send + 'static>(name: &'static str, make: impl Fn(&Runtime) -> F + Send + 'static) {
    within(4 * PATIENCE, "timers beside a neighbour", move || {
        let runtime =
            Runtime::builder().queues(1).workers(3).thread_name(name).start().expect("the system has threads");
        let neighbour = Neighbour::new(name, {
            let runtime = runtime.clone();
            move || make(&runtime)
        });
        eventually("its closures run on threads of the pool", || {
            let fired = Count::new();
            let timers: Vec<Timer> = (0..1_000).map(|_| runtime.timer(ms(2), NEVER, fired.callback())).collect();
            eventually("all fire", || fired.get() == 1_000);
            drop(timers);
            neighbour.on_the_pool.get() >= 20
        });
        drop(neighbour);
        runtime.shutdown(PATIENCE).expect("all threads end");
    });
}

#[test]
fn s29_closures_deferred_by_another_crate_may_drop_and_make_timers_of_the_same_runtime() {
    storms("tq-epoch-drop", |runtime| {
        let (timer, runtime) = (runtime.timer(ms(500), NEVER, |_| {}), runtime.clone());
        move || {
            drop(timer);
            drop(runtime.timer(ms(500), NEVER, |_| {}));
        }
    });
}

#[test]
fn s29_closures_deferred_by_another_crate_may_ask_the_runtime() {
    storms("tq-epoch-ask", |runtime| {
        let runtime = runtime.clone();
        move || {
            let _ = (runtime.fired(), runtime.threads(), runtime.active_timers());
        }
    });
}

#[test]
fn s29_closures_deferred_by_another_crate_may_panic() {
    // Without the panic hook, which would print a message for each closure.
    storms("tq-epoch-panic", |_| || std::panic::resume_unwind(Box::new("on purpose")));
}

#[test]
fn s31_closures_deferred_by_another_crate_may_block() {
    storms("tq-epoch-block", |_| || std::thread::sleep(ms(50)));
}
