//! W3: storms. Many one-shots are due within a second, or at a single instant: the cost of firing a
//! timer, and the lateness.
//!
//! Ground rules. Every storm has its own process. All timers are made and inserted before the first
//! is due. Two threads make half of the timers each, on cores of their own (tokio's
//! `current_thread` makes all on its only thread). The callback is the same for all contenders: it
//! reads the clock and stores the lateness. Processor time is the time of all threads but the
//! measuring thread, from the moment that all timers are inserted until the last has fired and the
//! process is quiet. So it includes sweeping, waking, running and freeing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::exit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use hierarchical_hash_wheel_timer::ClosureTimer;
use timerqueue::{Delay, OnceTimer, Tick, TimerBuilder};
use tokio_util::time::DelayQueue;

use crate::bare;
use crate::baseline::{Baseline, Linked};
use crate::child::{Job, Outcome, TOO_LATE};
use crate::contenders::{
    ALL_BUT_THREADS, ASYNC_IO, DELAY_QUEUE, FUTURES_TIMER, HEAP, HeapThread, LEEWAY, OUR_TASKS, OUR_TASKS_CURRENT,
    OUR_TASKS_CURRENT_LEEWAY, OUR_TASKS_EXECUTOR, OUR_TASKS_LEEWAY, OURS, OURS_LEEWAY, PINGORA, THREADS, TOKIO_CURRENT,
    TOKIO_MULTI, WHEEL, Work, executor, our_runtime, settled, small_thread, tokio_current, tokio_multi, wheel_thread,
};
use crate::measure::{
    Random, Session, clock_ns, cpu_ns, cpu_of_others_ns, late_by, on_cores, quantile, sleeps_of_others,
};
use crate::report::quantiles;
use crate::sparse::early;

pub(crate) const ID: &str = "W3";
pub(crate) const WHAT: &str = "storm";
/// The same, with callbacks that share something.
pub(crate) const SHARING: &str = "sharing storm";

const NOT_FIRED: i64 = i64::MIN;
/// Within this time after the last callback, its timer is freed.
const QUIET: Duration = Duration::from_millis(30);
const MAKERS: usize = 2;
/// Generous estimates of the time to make a timer.
const MAKE_CALLBACK_NS: u64 = 400;
const MAKE_TASK_NS: u64 = 1_500;
const MAKE_THREAD_NS: u64 = 60_000;
/// A timer not fired after this time never fires.
const PATIENCE_NS: u64 = 60_000_000_000;
/// The greatest storm of threads.
const FEW: usize = 10_000;
/// The greatest storm with leeway.
const MANY: usize = 100_000;

const METRICS: [&str; 8] = [
    "CPU ns to fire one",
    "CPU ns to make one",
    "late p50, us",
    "late p99, us",
    "late max, us",
    "last one ran after the last was due, ms",
    "early, %",
    "thread wake-ups per 1,000",
];
/// Other executors under our futures.
const OTHER_TASKS: [&str; 2] = [OUR_TASKS_CURRENT, OUR_TASKS_EXECUTOR];
/// In storms of [`MANY`] and fewer.
const WITH_LEEWAY: [&str; 3] = [OUR_TASKS_LEEWAY, OUR_TASKS_CURRENT_LEEWAY, bare::NAME_LEEWAY];
/// The baselines of futures: a thread that knows all wakers, sorted by due point, and calls them;
/// the tasks are those of the contenders.
const WAKERS_MULTI: &str = "baseline: sorted wakers, tasks of tokio multi_thread";
const WAKERS_CURRENT: &str = "baseline: sorted wakers, tasks of tokio current_thread";
const WAKERS_EXECUTOR: &str = "baseline: sorted wakers, tasks of async-executor, 2 threads";

/// The storms: number of timers, and the span of their due points in microseconds.
const STORMS: [(usize, u64); 4] = [(10_000, 1_000_000), (100_000, 1_000_000), (1_000_000, 1_000_000), (1_000_000, 0)];

/// What sharing callbacks share, laid out like the `Arc` of a counter: each adds to the counter,
/// and drops its reference.
struct Shared {
    references: AtomicUsize,
    counter: AtomicUsize,
}

/// The due points of all timers, and their lateness.
struct Plan {
    first_due: u64,
    due: Vec<u64>,
    late: Vec<AtomicI64>,
    /// For the baselines of futures.
    wakers: Vec<Mutex<Option<Waker>>>,
    /// The number of inserted timers.
    placed: AtomicUsize,
    shared: Option<Shared>,
    /// The same instant on both clocks.
    origin: (u64, Instant),
}

impl Plan {
    /// A plan of `n` timers, due within `span_us`, after enough time to make them at `each_ns` per
    /// timer.
    fn new(n: usize, span_us: u64, each_ns: u64, is_sharing: bool) -> &'static Self {
        let mut random = Random::new(11);
        let first_due = clock_ns() + 100_000_000 + each_ns * n as u64;
        // The clock in nanoseconds is read first, so instants are never early.
        let origin = (clock_ns(), Instant::now());
        let plan = Self {
            first_due,
            due: (0..n).map(|_| first_due + random.below(span_us * 1_000 + 1)).collect(),
            late: (0..n).map(|_| AtomicI64::new(NOT_FIRED)).collect(),
            wakers: (0..n).map(|_| Mutex::default()).collect(),
            placed: AtomicUsize::new(0),
            shared: is_sharing.then(|| Shared { references: AtomicUsize::new(n), counter: AtomicUsize::new(0) }),
            origin,
        };
        Box::leak(Box::new(plan))
    }

    fn instant(&self, i: usize) -> Instant {
        self.origin.1 + Duration::from_nanos(self.due[i] - self.origin.0)
    }

    /// The time from now to the due point.
    fn after(&self, i: usize) -> Duration {
        Duration::from_nanos(self.due[i].saturating_sub(clock_ns()))
    }

    fn fired(&self, i: usize, due: u64) {
        self.late[i].store(late_by(due), Ordering::Relaxed);
        if let Some(Shared { references, counter }) = &self.shared {
            counter.fetch_add(1, Ordering::Relaxed);
            references.fetch_sub(1, Ordering::Release);
        }
    }

    /// The timers that a maker makes.
    fn share(&self, maker: usize) -> impl Iterator<Item = usize> + use<> {
        (maker..self.due.len()).step_by(MAKERS)
    }

    /// A task that counts itself as placed when it goes to sleep, and stores its lateness when it
    /// wakes up. (The task makes its sleep itself: a sleep passed as an argument would be stored
    /// twice.)
    async fn task<F: Future>(&'static self, i: usize, make: Make<F>) {
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

    /// Ends the process if the first timer came due before all were inserted.
    fn check_time(&self) {
        if clock_ns() >= self.first_due {
            exit(TOO_LATE);
        }
    }
}

/// Makes a sleep.
type Make<F> = fn(&'static Plan, usize) -> F;

/// Timers of this crate, with or without leeway.
fn callbacks(plan: &'static Plan, leeway: bool) {
    let runtime = our_runtime();
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            let after = plan.after(i);
            let fire = move |tick: &Tick<'_>| plan.fired(i, tick.scheduled().as_duration().as_nanos() as u64);
            if leeway {
                TimerBuilder::on(runtime).due(after).leeway(LEEWAY).start(fire).detach();
            } else {
                OnceTimer::on(runtime, after, fire).detach();
            }
        }
    });
    let active = runtime.metrics().active;
    plan.check_time();
    assert_eq!(active, plan.due.len(), "all are in the queue");
}

fn multi<F: Future + Send + 'static>(plan: &'static Plan, make: Make<F>) {
    let runtime = tokio_multi();
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            runtime.spawn(plan.task(i, make));
        }
    });
    plan.wait_until_placed();
}

/// The only thread of the runtime makes all timers.
fn current<F: Future + Send + 'static>(plan: &'static Plan, make: Make<F>) {
    tokio_current().spawn(async move {
        for i in 0..plan.due.len() {
            tokio::spawn(plan.task(i, make));
        }
    });
    plan.wait_until_placed();
}

/// A queue for each maker, owned and filled by a task.
fn delay_queues(plan: &'static Plan) {
    let runtime = tokio_multi();
    for maker in 0..MAKERS {
        runtime.spawn(async move {
            let mut queue = DelayQueue::new();
            for i in plan.share(maker) {
                queue.insert_at(i, plan.instant(i).into());
            }
            plan.placed.fetch_add(queue.len(), Ordering::Relaxed);
            while let Some(expired) = poll_fn(|context| queue.poll_expired(context)).await {
                let i = expired.into_inner();
                plan.fired(i, plan.due[i]);
            }
        });
    }
    plan.wait_until_placed();
}

fn tasks<F: Future + Send + 'static>(plan: &'static Plan, reactor: bool, make: Make<F>) {
    let executor = executor(reactor);
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            executor.spawn(plan.task(i, make)).detach();
        }
    });
    plan.wait_until_placed();
}

fn wheel(plan: &'static Plan) {
    let mut timers = wheel_thread();
    on_cores(MAKERS, |maker, _| {
        let mut timers = timers.clone();
        for i in plan.share(maker) {
            timers.schedule_action_once(i as u64, plan.after(i), move |_| plan.fired(i, plan.due[i]));
        }
    });
    settled(&mut timers);
}

fn heap(plan: &'static Plan) {
    let timers = HeapThread::start();
    on_cores(MAKERS, |maker, _| {
        for i in plan.share(maker) {
            timers.add(plan.due[i], Work::Once(Box::new(move || plan.fired(i, plan.due[i]))));
        }
    });
}

/// A node per timer, in the list of its core; returned by maker.
fn nodes(plan: &'static Plan) -> Vec<Vec<Linked<'static>>> {
    let baseline: &'static Baseline = Box::leak(Box::new(Baseline::new()));
    let made: Vec<_> = (0..MAKERS).map(|_| Mutex::default()).collect();
    on_cores(MAKERS, |maker, _| {
        *made[maker].lock().expect("no panic") = plan.share(maker).map(|i| baseline.make(plan.after(i))).collect();
    });
    made.into_iter().map(|nodes| nodes.into_inner().expect("no panic")).collect()
}

/// A single thread that runs the callbacks and ends the nodes.
fn bare_storm(plan: &'static Plan, nodes: Vec<Vec<Linked<'static>>>, leeway: Duration) {
    let known = nodes.into_iter().zip(0..).flat_map(|(nodes, maker)| plan.share(maker).zip(nodes));
    let known = known.map(|(i, node)| (plan.due[i], (i, node))).collect();
    bare::storm(known, leeway, |(i, node)| {
        plan.fired(i, plan.due[i]);
        node.end();
    });
}

/// A sleeping thread per timer.
fn threads(plan: &'static Plan) {
    for i in 0..plan.due.len() {
        small_thread(move || {
            plan.placed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(plan.after(i));
            plan.fired(i, plan.due[i]);
        });
    }
    plan.wait_until_placed();
}

fn our_delay(plan: &'static Plan, i: usize) -> Delay {
    Delay::new(plan.after(i))
}

fn our_delay_with_leeway(plan: &'static Plan, i: usize) -> Delay {
    our_delay(plan, i).leeway(LEEWAY)
}

fn tokio_sleep(plan: &'static Plan, i: usize) -> tokio::time::Sleep {
    tokio::time::sleep_until(plan.instant(i).into())
}

/// A sleep of the baselines: leaves its waker in the plan, and is ready when its due point has
/// come.
fn known_sleep(plan: &'static Plan, i: usize) -> impl Future<Output = ()> + Send {
    poll_fn(move |context| {
        if clock_ns() >= plan.due[i] {
            return Poll::Ready(());
        }
        let before = plan.wakers[i].lock().expect("no panic").replace(context.waker().clone());
        assert!(before.is_none(), "no task is woken before its time");
        Poll::Pending
    })
}

/// A thread calls the wakers of all tasks, each at its due point, and keeps none: a task that has
/// ended is freed, as with the timers.
fn wake_sorted(plan: &'static Plan) {
    let waker = |place: &Mutex<Option<Waker>>| place.lock().expect("no panic").take().expect("all tasks wait");
    let known = plan.due.iter().zip(&plan.wakers).map(|(&due, place)| (due, waker(place))).collect();
    bare::storm(known, Duration::ZERO, Waker::wake);
}

/// Callbacks that do nothing: no clock, no store, nothing shared. What is left is the timer's own.
const OURS_EMPTY: &str = "timerqueue callbacks that do nothing";
const BARE_EMPTY: &str = "baseline: timerfd and epoll, callbacks that do nothing";

/// A storm of such callbacks. The lateness is not measured.
fn empty(contender: &str, plan: &'static Plan) -> Outcome {
    let before = cpu_ns();
    let fired: Box<dyn Fn() -> usize> = if contender == OURS_EMPTY {
        let runtime = our_runtime();
        on_cores(MAKERS, |maker, _| {
            for i in plan.share(maker) {
                OnceTimer::on(runtime, plan.after(i), |_| {}).detach();
            }
        });
        Box::new(|| runtime.metrics().callbacks as usize)
    } else {
        let known = nodes(plan).into_iter().zip(0..).flat_map(|(nodes, maker)| plan.share(maker).zip(nodes));
        bare::storm(known.map(|(i, node)| (plan.due[i], node)).collect(), Duration::ZERO, |node| {
            node.end();
            // A single thread counts.
            plan.placed.store(plan.placed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        });
        Box::new(|| plan.placed.load(Ordering::Relaxed))
    };
    let made = cpu_ns() - before;
    let (before, asleep) = (cpu_of_others_ns(), sleeps_of_others());
    plan.check_time();
    while fired() < plan.due.len() {
        assert!(clock_ns() < plan.first_due + PATIENCE_NS, "{contender}: all of them fire");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(QUIET);
    let n = plan.due.len() as f64;
    let values = [cpu_of_others_ns() - before, made].map(|ns| ns as f64 / n);
    let wakes = (sleeps_of_others() - asleep) as f64 * 1e3 / n;
    let figures = [(METRICS[0], values[0]), (METRICS[1], values[1]), (METRICS[7], wakes)];
    Outcome { figures: figures.into(), quantiles: None }
}

/// Makes the timers of a contender; the baselines are made elsewhere.
fn make(contender: &str, plan: &'static Plan) {
    match contender {
        OURS => callbacks(plan, false),
        OURS_LEEWAY => callbacks(plan, true),
        OUR_TASKS => multi(plan, our_delay),
        TOKIO_MULTI => multi(plan, tokio_sleep),
        OUR_TASKS_CURRENT => current(plan, our_delay),
        OUR_TASKS_EXECUTOR => tasks(plan, false, our_delay),
        OUR_TASKS_LEEWAY => multi(plan, our_delay_with_leeway),
        OUR_TASKS_CURRENT_LEEWAY => current(plan, our_delay_with_leeway),
        TOKIO_CURRENT => current(plan, tokio_sleep),
        WAKERS_MULTI => multi(plan, known_sleep),
        WAKERS_CURRENT => current(plan, known_sleep),
        WAKERS_EXECUTOR => tasks(plan, false, known_sleep),
        DELAY_QUEUE => delay_queues(plan),
        ASYNC_IO => tasks(plan, true, |plan, i| async_io::Timer::at(plan.instant(i))),
        FUTURES_TIMER => tasks(plan, false, |plan, i| futures_timer::Delay::new(plan.after(i))),
        PINGORA => multi(plan, |plan, i| pingora_timeout::sleep(plan.after(i))),
        WHEEL => wheel(plan),
        HEAP => heap(plan),
        THREADS => threads(plan),
        other => panic!("no such contender: {other}"),
    }
}

/// A storm of a contender, in the child process.
pub(crate) fn child(contender: &str, what: &str, n: usize, span_us: u64, patience: u64) -> Outcome {
    let each_ns = match contender {
        OURS | OURS_LEEWAY | HEAP | bare::NAME | bare::NAME_LEEWAY | OURS_EMPTY | BARE_EMPTY => MAKE_CALLBACK_NS,
        THREADS => MAKE_THREAD_NS,
        _ => MAKE_TASK_NS,
    };
    let plan = Plan::new(n, span_us, each_ns * patience, what == SHARING);
    if [OURS_EMPTY, BARE_EMPTY].contains(&contender) {
        return empty(contender, plan);
    }
    let leeway_of_baseline = match contender {
        bare::NAME => Some(Duration::ZERO),
        bare::NAME_LEEWAY => Some(LEEWAY),
        _ => None,
    };
    let before = cpu_ns();
    let baseline = leeway_of_baseline.map(|leeway| (nodes(plan), leeway));
    if baseline.is_none() {
        make(contender, plan);
    }
    let made = cpu_ns() - before;
    if [WAKERS_MULTI, WAKERS_CURRENT, WAKERS_EXECUTOR].contains(&contender) {
        wake_sorted(plan);
    }
    if let Some((nodes, leeway)) = baseline {
        bare_storm(plan, nodes, leeway);
    }
    let (before, asleep) = (cpu_of_others_ns(), sleeps_of_others());
    plan.check_time();
    let mut late: Vec<i64> = Vec::with_capacity(n);
    let mut last = 0;
    for (slot, &due) in plan.late.iter().zip(&plan.due) {
        let ns = loop {
            match slot.load(Ordering::Relaxed) {
                NOT_FIRED => {
                    assert!(clock_ns() < due + PATIENCE_NS, "{contender}: all of them fire");
                    std::thread::sleep(Duration::from_millis(1));
                }
                ns => break ns,
            }
        };
        late.push(ns);
        last = last.max(due.saturating_add_signed(ns));
    }
    std::thread::sleep(QUIET);
    let fired = cpu_of_others_ns() - before;
    let wakes = (sleeps_of_others() - asleep) as f64 * 1e3 / n as f64;
    late.sort_unstable();
    let last_due = plan.due.iter().max().expect("a storm of some");
    let last = (last as f64 - *last_due as f64) / 1e6;
    let per = |ns: u64| ns as f64 / n as f64;
    let us = |q| quantile(&late, q) as f64 / 1e3;
    let values = [per(fired), per(made), us(0.5), us(0.99), us(1.0), last, early(contender, &late) * 1e2, wakes];
    Outcome { figures: METRICS.into_iter().zip(values).collect(), quantiles: Some(quantiles(&late, 1e3)) }
}

/// A round: the storms of every contender.
pub(crate) fn round(session: &mut Session) {
    for (n, span_us) in STORMS {
        let title = match span_us {
            0 => format!("storm of {n}, all due at one instant"),
            us => format!("storm of {n}, due within {} s", us as f64 / 1e6),
        };
        let mut contenders: Vec<&'static str> =
            ALL_BUT_THREADS.into_iter().filter(|&contender| contender != OURS_LEEWAY || n <= MANY).collect();
        contenders.extend(OTHER_TASKS);
        contenders.extend((n <= FEW).then_some(THREADS));
        contenders.extend([bare::NAME, OURS_EMPTY, BARE_EMPTY, WAKERS_MULTI, WAKERS_CURRENT, WAKERS_EXECUTOR]);
        contenders.extend(if n <= MANY { &WITH_LEEWAY[..] } else { &[] });
        let job = Job {
            id: ID,
            title,
            note: "Each storm in a process of its own. tokio rounds up to the next millisecond, so its p50 is at least half a \
                   millisecond; it fires all timers of a millisecond together, so a storm is cheap. pingora-timeout does the \
                   same with ten milliseconds, so it may be early. The baseline makes the nodes of W1's baseline. A single \
                   thread with all due points sorted in advance ends them: the cost of the wake-ups, of a node in a locked \
                   list, and of the store. The baselines of tasks have a thread that calls all wakers, sorted in advance.",
            what: WHAT,
            n,
            span_us,
            metrics: &METRICS,
            unit: "us late",
            together: false,
        };
        job.run(session, &contenders);
    }
    let (n, span_us) = STORMS[STORMS.len() - 1];
    let job = Job {
        id: ID,
        title: format!("storm of {n}, all due at one instant, callbacks that share a counter and a reference"),
        note: "As above, but each callback also adds to one counter and drops a reference to it, which costs two threads more \
               than one. In Java it adds to the counter.",
        what: SHARING,
        n,
        span_us,
        metrics: &METRICS,
        unit: "",
        together: false,
    };
    job.run(session, &[OURS, bare::NAME, TOKIO_MULTI, TOKIO_CURRENT, ASYNC_IO, WHEEL, HEAP]);
}
