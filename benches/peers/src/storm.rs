//! W3: storms. Many one-shots due within a second, or all at one instant: what firing one costs, and how late they are.
//!
//! Ground rules. Every storm has a process of its own. All timers are made, and have taken their places, before the first is
//! due; two threads make half of them each, on a core of their own (tokio's `current_thread` makes them on its one thread).
//! What fires does the same for everybody: it reads the clock and stores how late it is. Processor time is that of all
//! threads but the one that looks on, from the moment that all are in place until the last has fired and everything is
//! quiet again; so it holds sweeping, waking, running and freeing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_executor::Executor;
use parking_lot::{Condvar, Mutex};
use timerqueue::{Delay, Runtime};

use crate::child::{self, Figures, TOO_LATE};
use crate::measure::{Random, Session, clock_ns, cpu_ns, cpu_of_others_ns, on_cores, quantile, sleeps_of_others};
use crate::report::Row;

pub(crate) const ID: &str = "W3";

const NOT_FIRED: u64 = u64::MAX;
const EARLY: u64 = u64::MAX - 1;
/// The last that fires is seen, and freed, within this time.
const QUIET: Duration = Duration::from_millis(30);
const MAKERS: usize = 2;
/// Time to make one, generously.
const MAKE_CALLBACK_NS: u64 = 400;
const MAKE_TASK_NS: u64 = 1_500;

const CALLBACKS: &str = "timerqueue callbacks";
const PARTIES: [&str; 6] = [
    CALLBACKS,
    "timerqueue Delay, tasks of tokio multi_thread",
    "tokio sleep, tasks of multi_thread",
    "tokio sleep, tasks of current_thread",
    "async-io Timer, tasks of async-executor, 2 threads",
    "one thread with a heap, boxed callbacks",
];
const METRICS: [&str; 6] = [
    "CPU ns to fire one",
    "CPU ns to make one",
    "late p50, us",
    "late p99, us",
    "late max, us",
    "thread wake-ups per 1,000",
];
/// How many, and within how many microseconds.
const STORMS: [(usize, u64); 4] = [(10_000, 1_000_000), (100_000, 1_000_000), (1_000_000, 1_000_000), (1_000_000, 0)];

/// When each timer is due, and where it says how late it was.
struct Plan {
    first_due: u64,
    due: Vec<u64>,
    late: Vec<AtomicU64>,
    /// Timers that have taken their place.
    placed: AtomicUsize,
    /// An instant on both clocks.
    origin: (u64, Instant),
}

impl Plan {
    /// All are due within `span_us`, once there was time enough, at `each_ns`, to make them.
    fn new(n: usize, span_us: u64, each_ns: u64) -> &'static Self {
        let mut random = Random::new(11);
        let first_due = clock_ns() + 100_000_000 + each_ns * n as u64;
        // The clock in nanoseconds first: instants are never early then.
        let origin = (clock_ns(), Instant::now());
        let plan = Self {
            first_due,
            due: (0..n).map(|_| first_due + random.below(span_us * 1_000 + 1)).collect(),
            late: (0..n).map(|_| AtomicU64::new(NOT_FIRED)).collect(),
            placed: AtomicUsize::new(0),
            origin,
        };
        Box::leak(Box::new(plan))
    }

    fn instant(&self, i: usize) -> Instant {
        self.origin.1 + Duration::from_nanos(self.due[i] - self.origin.0)
    }

    fn fired(&self, i: usize, due: u64) {
        let late = clock_ns().checked_sub(due).unwrap_or(EARLY);
        self.late[i].store(late, Ordering::Relaxed);
    }

    /// The share of the timers that one of the makers makes.
    fn share(&self, maker: usize) -> impl Iterator<Item = usize> + use<> {
        (maker..self.due.len()).step_by(MAKERS)
    }

    /// A task that sleeps, says when it has gone to sleep, and how late it woke up. (It makes its sleep itself: an argument
    /// would be kept twice.)
    async fn task<F: Future>(&self, i: usize, make: fn(&Self, usize) -> F) {
        let mut sleep = pin!(make(self, i));
        let mut placed = false;
        poll_fn(|context| {
            let polled = sleep.as_mut().poll(context);
            if !placed {
                placed = true;
                self.placed.fetch_add(usize::from(polled.is_pending()), Ordering::Relaxed);
            }
            polled.map(|_| ())
        })
        .await;
        self.fired(i, self.due[i]);
    }

    fn wait_until_placed(&self) {
        while self.placed.load(Ordering::Relaxed) < self.due.len() {
            self.check_time();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is due before all have taken their places is no storm.
    fn check_time(&self) {
        if clock_ns() >= self.first_due {
            exit(TOO_LATE);
        }
    }
}

fn callbacks(plan: &'static Plan) {
    let runtime = Box::leak(Box::new(Runtime::builder().start().expect("a runtime starts")));
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            let after = Duration::from_nanos(plan.due[i].saturating_sub(clock_ns()));
            let fire =
                move |tick: &timerqueue::Tick<'_>| plan.fired(i, tick.scheduled().as_duration().as_nanos() as u64);
            runtime.once(after, fire).detach();
        }
    });
    let active = runtime.active_timers();
    plan.check_time();
    assert_eq!(active, plan.due.len(), "all are filed");
}

fn tokio_multi<F: Future + Send + 'static>(plan: &'static Plan, make: fn(&Plan, usize) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts");
    let runtime = Box::leak(Box::new(runtime));
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            runtime.spawn(plan.task(i, make));
        }
    });
    plan.wait_until_placed();
}

fn tokio_current(plan: &'static Plan) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async {
            for i in 0..plan.due.len() {
                tokio::spawn(plan.task(i, |plan, i| tokio::time::sleep_until(plan.instant(i).into())));
            }
            pending::<()>().await;
        });
    });
    plan.wait_until_placed();
}

fn async_io_tasks(plan: &'static Plan) {
    let executor: &'static Executor<'static> = Box::leak(Box::new(Executor::new()));
    for _ in 0..MAKERS {
        std::thread::spawn(|| async_io::block_on(executor.run(pending::<()>())));
    }
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            executor.spawn(plan.task(i, |plan, i| async_io::Timer::at(plan.instant(i)))).detach();
        }
    });
    plan.wait_until_placed();
}

/// What people write by hand: a heap under a lock, and a thread that sleeps until the first is due.
struct HeapThread {
    heap: Mutex<Heap>,
    earlier: Condvar,
}

#[derive(Default)]
struct Heap {
    order: BinaryHeap<Reverse<(u64, usize)>>,
    callbacks: Vec<Option<Box<dyn FnOnce() + Send>>>,
}

impl HeapThread {
    fn start() -> Arc<Self> {
        let timers = Arc::new(Self { heap: Mutex::new(Heap::default()), earlier: Condvar::new() });
        let own = Arc::clone(&timers);
        std::thread::spawn(move || own.run());
        timers
    }

    fn add(&self, due: u64, callback: Box<dyn FnOnce() + Send>) {
        let mut heap = self.heap.lock();
        let key = heap.callbacks.len();
        heap.callbacks.push(Some(callback));
        let first = heap.order.peek().is_none_or(|&Reverse((earliest, _))| due < earliest);
        heap.order.push(Reverse((due, key)));
        drop(heap);
        if first {
            self.earlier.notify_one();
        }
    }

    fn run(&self) {
        let mut heap = self.heap.lock();
        loop {
            let now = clock_ns();
            match heap.order.peek().copied() {
                Some(Reverse((due, key))) if due <= now => {
                    heap.order.pop();
                    let callback = heap.callbacks[key].take();
                    parking_lot::MutexGuard::unlocked(&mut heap, || {
                        if let Some(callback) = callback {
                            callback();
                        }
                    });
                }
                Some(Reverse((due, _))) => {
                    self.earlier.wait_for(&mut heap, Duration::from_nanos(due - now));
                }
                None => self.earlier.wait(&mut heap),
            }
        }
    }
}

fn heap_thread(plan: &'static Plan) {
    let timers = HeapThread::start();
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            timers.add(plan.due[i], Box::new(move || plan.fired(i, plan.due[i])));
        }
    });
}

fn our_delay(plan: &Plan, i: usize) -> Delay {
    Delay::new(Duration::from_nanos(plan.due[i].saturating_sub(clock_ns())))
}

/// One storm.
pub(crate) fn child(party: &str, n: usize, span_us: u64, patience: u64) -> Figures {
    let which = PARTIES.iter().position(|&known| known == party).expect("a known party");
    let each_ns = if matches!(which, 0 | 5) { MAKE_CALLBACK_NS } else { MAKE_TASK_NS };
    let plan = Plan::new(n, span_us, each_ns * patience);
    let before = cpu_ns();
    match which {
        0 => callbacks(plan),
        1 => tokio_multi(plan, our_delay),
        2 => tokio_multi(plan, |plan, i| tokio::time::sleep_until(plan.instant(i).into())),
        3 => tokio_current(plan),
        4 => async_io_tasks(plan),
        _ => heap_thread(plan),
    }
    let made = cpu_ns() - before;
    let (before, asleep) = (cpu_of_others_ns(), sleeps_of_others());
    plan.check_time();
    let mut late: Vec<u64> = Vec::with_capacity(n);
    for slot in &plan.late {
        loop {
            match slot.load(Ordering::Relaxed) {
                NOT_FIRED => std::thread::sleep(Duration::from_millis(1)),
                EARLY => panic!("{party}: early"),
                ns => break late.push(ns),
            }
        }
    }
    std::thread::sleep(QUIET);
    let fired = cpu_of_others_ns() - before;
    let wakes = (sleeps_of_others() - asleep) as f64 * 1e3 / n as f64;
    late.sort_unstable();
    let per = |ns: u64| ns as f64 / n as f64;
    let us = |q| quantile(&late, q) as f64 / 1e3;
    let values = [per(fired), per(made), us(0.5), us(0.99), us(1.0), wakes];
    METRICS.iter().zip(values).map(|(&name, value)| (name.to_owned(), value)).collect()
}

/// One round: every party's storms.
pub(crate) fn round(session: &mut Session) {
    for (n, span_us) in STORMS {
        let title = match span_us {
            0 => format!("storm of {n}, all due at one instant"),
            us => format!("storm of {n}, due within {} s", us as f64 / 1e6),
        };
        let row = |party, metric| Row { party, threads: 1, metric };
        for party in PARTIES {
            for metric in METRICS {
                session.report.declare(ID, &title, row(party, metric));
            }
        }
        session.report.note(
            &title,
            "Each storm in a process of its own. tokio rounds up to the next millisecond, and half of that is its p50 at \
             the least; it then fires a millisecond's worth at a time, which is what makes a storm cheap for it.",
        );
        let mut order = PARTIES;
        session.random.shuffle(&mut order);
        for party in order.into_iter().filter(|party| session.wants(party)).collect::<Vec<_>>() {
            for (name, value) in child::run("storm", party, n, span_us) {
                let metric = METRICS.into_iter().find(|&metric| metric == name).expect("a known metric");
                session.report.add(&title, row(party, metric), value);
            }
        }
    }
}
