//! Other users of the epoch collector that the pool's deques share: what they defer may do
//! anything, on any thread that pins.
//!
//! Ground rules. A deque pins where a thread steals and where a deque grows.
//! `while_a_thread_steals` and the test about a sweep make a closure run at exactly these moments;
//! `storms` makes many run at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_epoch as epoch;
use timerqueue::{Runtime, Timer};

use crate::support::{Count, Gate, NEVER, PATIENCE, blocked, eventually, ms, us, within};

/// Defers what `make` makes, all the time, until dropped; counts what has run on threads with this
/// name, and in all.
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
                // This thread only defers: what it has deferred runs on others, or at the end.
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

/// A thousand timers that are due within some microseconds.
fn storm(runtime: &Runtime) {
    let fired = Count::new();
    let timers: Vec<Timer> = (0..1_000).map(|_| Timer::on(runtime, ms(2), NEVER, fired.callback())).collect();
    eventually("all fire", || fired.get() == 1_000);
    drop(timers);
}

/// Storms of timers on a runtime of this name, until the neighbour's closures have run on its
/// threads often enough.
fn storms<F: FnOnce() + Send + 'static>(name: &'static str, make: impl Fn(&Runtime) -> F + Send + 'static) {
    within(4 * PATIENCE, "timers beside a neighbour", move || {
        let runtime = runtime(name, 3, 512);
        let neighbour = Neighbour::new(name, {
            let runtime = runtime.clone();
            move || make(&runtime)
        });
        eventually("its closures run on threads of the pool", || {
            storm(&runtime);
            neighbour.on_the_pool.get() >= 20
        });
        drop(neighbour);
        runtime.shutdown(PATIENCE).expect("all threads end");
    });
}

fn runtime(name: &str, workers: usize, max_threads: usize) -> Runtime {
    let builder = Runtime::builder().queues(1).workers(workers).max_threads(max_threads).thread_name(name);
    builder.start().expect("the system has threads")
}

/// Defers `action` so that it runs on the next thread that pins for the first time: such a thread
/// advances the epoch, and then runs closures that were deferred two epochs before. If that thread
/// has another name, since other tests run too, `action` is dropped.
fn defer(name: &'static str, action: impl FnOnce() + Send + 'static) {
    let defer = move || {
        // The first pin of a thread advances the epoch. That must happen before the closure is
        // deferred.
        drop(epoch::pin());
        let guard = epoch::pin();
        guard.defer(move || {
            if std::thread::current().name().is_some_and(|own| own.starts_with(name)) {
                action();
            }
        });
        guard.flush();
    };
    std::thread::spawn(defer).join().expect("the closure does not panic");
}

/// `n` timers that are due at one instant.
fn at_once(runtime: &Runtime, n: usize, callback: impl Fn() + Clone + Send + Sync + 'static) -> Vec<Timer> {
    let due = runtime.now() + ms(5);
    (0..n)
        .map(|_| {
            let callback = callback.clone();
            Timer::on(runtime, due - runtime.now(), NEVER, move |_| callback())
        })
        .collect()
}

/// The first thread is blocked in a callback and has jobs in its deque. The second steals from it,
/// and runs `action` as it pins. `action` is given the runtime, and a function that says whether
/// these jobs have run; it goes on until they have. So the pool must run them on a third thread.
fn while_a_thread_steals(name: &'static str, action: fn(&Runtime, &dyn Fn() -> bool)) {
    const JOBS: usize = 9;
    within(4 * PATIENCE, "a closure while a thread steals", move || {
        let ran = Count::new();
        // Again if the thread of another test has taken the closure.
        eventually("the closure runs on a thread of the pool", || {
            let runtime = runtime(name, 3, 512);
            let (entered, fired, gate) = (Count::new(), Count::new(), Gate::new());
            let ended = Count::new();
            let begun = Count::new();
            defer(name, {
                let (runtime, fired, begun, ended) = (runtime.clone(), fired.clone(), begun.clone(), ended.clone());
                move || {
                    begun.bump();
                    action(&runtime, &|| fired.get() == JOBS);
                    ended.bump();
                }
            });
            let timers = at_once(&runtime, 1 + JOBS, {
                let (entered, fired, gate) = (entered.clone(), fired.clone(), gate.clone());
                move || {
                    if entered.bump() == 1 {
                        gate.wait();
                    } else {
                        fired.bump();
                    }
                }
            });
            eventually("the jobs run", || fired.get() == JOBS);
            eventually("the closure returns", || ended.get() == begun.get());
            gate.open();
            drop(timers);
            runtime.shutdown(PATIENCE).expect("all threads end");
            begun.get() == 1 && ran.bump() == 3
        });
    });
}

/// All other threads are blocked, so the last poller sweeps more jobs than an empty deque has room
/// for. A deque that grew would pin, and would run the closure with the lock of the queue held.
#[test]
fn s29_what_another_crate_defers_may_drop_and_make_timers_during_a_sweep() {
    const NAME: &str = "tq-epoch-sweep";
    within(2 * PATIENCE, "a closure in the middle of a sweep", || {
        for _ in 0..3 {
            let runtime = runtime(NAME, 2, 2);
            let (blocked, gate) = blocked(&runtime, 1);
            let timer = Timer::on(&runtime, NEVER, NEVER, |_| {});
            defer(NAME, {
                let runtime = runtime.clone();
                move || {
                    drop(timer);
                    drop(Timer::on(&runtime, ms(500), NEVER, |_| {}));
                }
            });
            let fired = Count::new();
            let mut timers = Vec::new();
            for _ in 0..6 {
                // Fewer than a lock section of a sweep takes, also with the cascade of a window.
                let fired = fired.clone();
                timers.extend(at_once(&runtime, 24, move || _ = fired.bump()));
                eventually("they are swept", || runtime.metrics().active == 0);
            }
            gate.open();
            eventually("all fire", || fired.get() == timers.len());
            drop((blocked, timers));
            runtime.shutdown(PATIENCE).expect("all threads end");
        }
    });
}

/// Where a thread steals. No lock of a queue has ever been held there; this test keeps it so.
#[test]
fn s29_what_another_crate_defers_may_drop_and_make_timers_while_a_thread_steals() {
    storms("tq-epoch-drop", |runtime| {
        let (timer, runtime) = (Timer::on(runtime, ms(500), NEVER, |_| {}), runtime.clone());
        move || {
            drop(timer);
            drop(Timer::on(&runtime, ms(500), NEVER, |_| {}));
        }
    });
}

#[test]
fn s29_what_another_crate_defers_may_ask_the_runtime() {
    while_a_thread_steals("tq-epoch-ask", |runtime, all_have_run| {
        while !all_have_run() {
            let _ = (runtime.metrics().fired(), runtime.metrics().threads.alive, runtime.metrics().active);
            std::thread::sleep(us(100));
        }
    });
}

#[test]
fn s29_what_another_crate_defers_may_panic() {
    const NAME: &str = "tq-epoch-panic";
    within(4 * PATIENCE, "timers beside a neighbour whose closures panic", || {
        // Without the message of the hook, which each of them would print.
        let neighbour = Neighbour::new(NAME, || || std::panic::resume_unwind(Box::new("on purpose")));
        eventually("its closures run on threads of the pool", || {
            // A panic ends the turn of a thread, and its next turn is far. The first one is at its
            // first pin, so each round has new threads.
            let runtime = runtime(NAME, 3, 512);
            storm(&runtime);
            runtime.shutdown(PATIENCE).expect("all threads end");
            neighbour.on_the_pool.get() >= 20
        });
    });
}

#[test]
fn s31_what_another_crate_defers_may_block() {
    while_a_thread_steals("tq-epoch-block", |_, all_have_run| {
        while !all_have_run() {
            std::thread::sleep(ms(1));
        }
    });
}
