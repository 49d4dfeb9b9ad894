//! W1 and W2: create and dispose, and change, timers that do not fire, beside pending timers.
//!
//! Ground rules. The timer of this crate is a [`Timer`] with a callback of one word. The peers have
//! no callbacks, so their timer is a sleep polled once, which does less. The pending timers lie in
//! the same span as the measured timers and do not come due meanwhile; half of them are in the
//! queue of each measured core (or in the runtime of each measuring thread).

use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hierarchical_hash_wheel_timer::wheels::cancellable::QuadWheelWithOverflow;
use hierarchical_hash_wheel_timer::{ClosureTimer, IdOnlyTimerEntry, Timer as _, TimerReturn};
use timerqueue::{Changed, Delay, Runtime, Timer, TimerBuilder};
use tokio::time::{Instant, Sleep};
use tokio_util::time::DelayQueue;

use crate::baseline::Baseline;
use crate::contenders::{WheelRef, WheelThread, settled};
use crate::drivers::{self, Task};
use crate::futures::{on_each, pending_ones};
use crate::measure::{Case, Random, Session, lagged, on_cores, repeat};
use crate::place::{
    GlobalHeartbeats, HEARTBEAT, Place, THREADS, Tokio, idle_context, our_heartbeats, polled, polled_in_place,
};
use crate::report::Axes;

pub(crate) const IDS: [&str; 2] = ["W1", "W2"];
const AFTER: Duration = Duration::from_secs(30);
const SOONER: Duration = Duration::from_secs(20);
const NEAREST: Duration = Duration::from_secs(21);
const FURTHEST: Duration = Duration::from_secs(60);
/// The period of the timer that keeps a contender busy.
const BUSY: Duration = Duration::from_millis(10);
const LEEWAY: Duration = Duration::from_millis(10);
/// The number of timers made before the first is disposed.
const LAG: usize = 10_000;
const DELAY_QUEUE: &str = "tokio-util DelayQueue, one owner each";
const WHEEL: &str = "hierarchical_hash_wheel_timer, a wheel each, no clock";
const WHEEL_THREAD: &str = "hierarchical_hash_wheel_timer, its thread, until it is done";
const OF_WHEELS: &str = "A wheel of hierarchical_hash_wheel_timer reads no clock: its owner tells the wheel the time. A \
                         cancelled timer leaves its slot only when it is due.";

const COST_OF_PENDING: Axes = Axes { x: "timers pending", y: "ns per create and dispose" };

/// A level: the timers that exist while timers are made.
#[derive(Clone, Copy)]
struct Level {
    name: &'static str,
    pending: usize,
    /// The period of a periodic timer beside the measured timers.
    heartbeat: Option<Duration>,
    /// Whether peers with a balanced tree or a heap take part; their set-up takes too long for a
    /// million timers.
    with_trees: bool,
    /// Whether changes are measured as well.
    changes: bool,
    /// Whether the level is a point of the curve of cost against number.
    point: bool,
}

const SOME: Level =
    Level { name: "", pending: 0, heartbeat: Some(HEARTBEAT), with_trees: true, changes: false, point: true };

const LEVELS: [Level; 7] = [
    Level { name: "nothing pending, not even a heartbeat", heartbeat: None, point: false, ..SOME },
    Level { name: "a periodic timer of 10 ms running", heartbeat: Some(BUSY), point: false, ..SOME },
    Level { name: "a heartbeat pending", changes: true, ..SOME },
    Level { name: "1,000 pending", pending: 1_000, ..SOME },
    Level { name: "10,000 pending", pending: 10_000, changes: true, ..SOME },
    Level { name: "100,000 pending", pending: 100_000, ..SOME },
    Level { name: "1,000,000 pending", pending: 1_000_000, with_trees: false, changes: true, ..SOME },
];

impl Level {
    fn created(&self) -> String {
        format!("create and dispose a timer due in 30 s; {}", self.name)
    }

    fn created_before(&self) -> String {
        format!("create a timer due in 30 s, dispose the one created {LAG} before; {}", self.name)
    }

    fn changed_later(&self) -> String {
        format!("change a timer to 30 s from now, later than it was; {}", self.name)
    }

    fn changed_to_and_fro(&self) -> String {
        format!("change a timer to and fro, to 20 s and to 30 s from now; {}", self.name)
    }

    /// Whether the disposal of a timer made long before is measured as well.
    fn lags(&self) -> bool {
        self.point && self.pending == 0
    }

    /// The curve and the x of samples with this number of threads.
    fn point_of(&self, threads: usize) -> Option<(String, Axes, f64)> {
        let what = "create and dispose a timer due in 30 s, against the number pending";
        let threads = if threads == 1 { String::from("1 thread") } else { format!("{threads} threads") };
        self.point.then_some((format!("{what}; {threads}"), COST_OF_PENDING, self.pending as f64))
    }

    /// Runs the contenders of other languages. They take seconds to start, in which pending timers
    /// of this process would come due; so the caller has dropped them. The drivers do not take part
    /// in every point of a curve.
    fn drivers(&self, session: &mut Session, wanted: impl Fn(&str) -> bool) {
        let Some(heartbeat) = self.heartbeat.filter(|_| self.changes || !self.point) else { return };
        let parameters = [("pending", self.pending as u64), ("heartbeat_us", heartbeat.as_micros() as u64)];
        if wanted("W1") {
            let task = Task::new("W1", &parameters);
            drivers::measure(session, "W1", &self.created(), &task, |threads| self.point_of(threads));
            if self.lags() {
                let task = task.with("behind", LAG as u64);
                drivers::measure(session, "W1", &self.created_before(), &task, |_| None);
            }
        }
        if wanted("W2") && self.changes {
            let task = Task::new("W2", &parameters);
            drivers::measure(session, "W2", &self.changed_later(), &task, |_| None);
            drivers::measure(session, "W2", &self.changed_to_and_fro(), &task.with("to_and_fro", 1), |_| None);
        }
    }
}

/// A wheel of hierarchical_hash_wheel_timer and all its timers.
struct Wheel(QuadWheelWithOverflow<IdOnlyTimerEntry<u64>>);

#[allow(unsafe_code)] // its reference counts are not atomic
// SAFETY: all counted references are inside the wheel, so they move to a different thread together.
unsafe impl Send for Wheel {}

impl Wheel {
    fn insert(&mut self, delay: Duration) -> u64 {
        let id = ids(1);
        self.0.insert(IdOnlyTimerEntry { id, delay }).expect("not due yet");
        id
    }

    fn cancel(&mut self, id: u64) {
        self.0.cancel(&id).expect("the timer is in the wheel");
    }
}

/// Reserves `n` unused ids, and returns the first.
fn ids(n: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(n, Ordering::Relaxed)
}

/// All contenders with the pending timers of a level.
struct Stage {
    ours: Vec<Timer>,
    _heartbeats: (Vec<Timer>, Option<GlobalHeartbeats>),
    _sleeps: Vec<Pin<Box<Sleep>>>,
    _async_io: Vec<async_io::Timer>,
    _futures_timer: Vec<futures_timer::Delay>,
    _pingora: Vec<Pingora>,
    queues: Vec<Mutex<DelayQueue<()>>>,
    wheels: Vec<Mutex<Wheel>>,
    wheel: WheelThread,
    tokio: Arc<Tokio>,
    runtime: Runtime,
    baseline: Baseline,
}

type Pingora = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// The durations of a thread's share of `n` timers.
fn spread(n: usize, thread: usize) -> impl Iterator<Item = Duration> {
    let mut random = Random::new(7 + thread as u64);
    (0..n / THREADS).map(move |_| random.between(NEAREST, FURTHEST))
}

fn timer(runtime: &Runtime, after: Duration) -> Timer {
    let word = black_box(1u64);
    Timer::on(runtime, after, Duration::ZERO, move |_| {
        black_box(word);
        unreachable!("it is not due yet");
    })
}

/// Makes a timer, and drops the timer made [`LAG`] operations before.
fn kept<T>(times: u64, make: impl Fn() -> T) -> Duration {
    lagged(&mut (), LAG, times, |()| black_box(make()), |(), old| drop(old))
}

/// Schedules a timer that never fires, for a thread that runs callbacks.
fn schedule(timers: &mut WheelRef, id: u64, after: Duration) {
    timers.schedule_action_once(id, after, |_| unreachable!("it is not due yet"));
}

/// Adds a case for each number of threads; each thread has its own context.
fn on_owned<'a, C: Send>(
    cases: &mut Vec<Case<'a>>,
    contender: &'static str,
    place: Place<'a>,
    contexts: &'a [Mutex<C>],
    body: impl Fn(&mut C, u64) -> Duration + Copy + Sync + 'a,
) {
    for threads in 1..=THREADS {
        cases.push(Case::new(contender, threads, move |times| {
            place.time(threads, |lane| {
                let mut context = contexts[lane.index].lock().expect("no thread panics with the lock held");
                lane.ready();
                body(&mut context, times)
            })
        }));
    }
}

impl Stage {
    fn new(level: &Level) -> Self {
        let n = level.pending;
        let runtime = Runtime::builder().start().expect("a runtime starts");
        let heartbeats = level.heartbeat.map_or(Vec::new(), |period| our_heartbeats(&runtime, period));
        let other = level.heartbeat.filter(|&period| period != HEARTBEAT);
        let ours: Vec<Timer> =
            on_cores(THREADS, |i, _| spread(n, i).map(|after| timer(&runtime, after)).collect::<Vec<_>>())
                .into_iter()
                .flatten()
                .collect();
        assert_eq!(ours.len(), n);
        assert_eq!(runtime.metrics().active, n + heartbeats.len(), "all are in the queue");

        let tokio = Arc::new(Tokio::new(level.heartbeat));
        let places = [Place::Current(&tokio.current), Place::Multi(&tokio.multi)];
        let mut sleeps = Vec::with_capacity(2 * n);
        for (place, thread) in places.into_iter().flat_map(|place| (0..THREADS).map(move |thread| (place, thread))) {
            place.enter(thread, || {
                sleeps.extend(spread(n, thread).map(|after| polled(tokio::time::sleep(after))));
            });
        }
        let queues = (0..THREADS).map(|thread| {
            Place::Current(&tokio.current).enter(thread, || {
                let mut queue = DelayQueue::with_capacity(n / THREADS + 64);
                if level.heartbeat.is_some() {
                    queue.insert((), SOONER);
                }
                for after in spread(n, thread) {
                    queue.insert((), after);
                }
                Mutex::new(queue)
            })
        });
        let queues = queues.collect();
        let trees = if level.with_trees { n } else { 0 };
        let dues = || (0..THREADS).flat_map(|thread| spread(trees, thread));
        let async_io = dues().map(|after| {
            let mut timer = async_io::Timer::after(after);
            assert!(Pin::new(&mut timer).poll(&mut idle_context()).is_pending());
            timer
        });
        let futures_timer = dues().map(|after| {
            let mut delay = futures_timer::Delay::new(after);
            assert!(Pin::new(&mut delay).poll(&mut idle_context()).is_pending());
            delay
        });
        let (_async_io, _futures_timer) = (async_io.collect(), futures_timer.collect());
        let pingora = on_cores(THREADS, |i, _| {
            spread(n, i).map(|after| polled(pingora_timeout::sleep(after)) as Pingora).collect::<Vec<_>>()
        });
        let mut wheel = WheelThread::start();
        if let Some(period) = level.heartbeat {
            wheel.timers.schedule_action_periodic(ids(1), period, period, |_| TimerReturn::Reschedule(()));
        }
        for after in (0..THREADS).flat_map(|thread| spread(n, thread)) {
            schedule(&mut wheel.timers, ids(1), after);
        }
        settled(&mut wheel.timers);
        let wheels = (0..THREADS).map(|thread| {
            let mut wheel = Wheel(QuadWheelWithOverflow::new());
            for after in spread(n, thread) {
                wheel.insert(after);
            }
            Mutex::new(wheel)
        });
        let wheels = wheels.collect();
        Self {
            ours,
            _heartbeats: (heartbeats, other.map(GlobalHeartbeats::start)),
            _sleeps: sleeps,
            _async_io,
            _futures_timer,
            _pingora: pingora.into_iter().flatten().collect(),
            queues,
            wheels,
            wheel,
            tokio,
            runtime,
            baseline: Baseline::new(),
        }
    }

    /// Checks that the pending timers are still pending.
    fn check(&self) {
        for timer in &self.ours {
            assert_eq!(timer.change(Duration::MAX, Duration::ZERO), Changed::WasWaiting, "nothing has come due");
        }
        assert_eq!(self.runtime.metrics().panics, 0, "no callback has run");
    }

    /// Cases on a queue of tokio-util per thread.
    fn on_queues<'a>(
        &'a self,
        cases: &mut Vec<Case<'a>>,
        body: impl Fn(&mut DelayQueue<()>, u64) -> Duration + Copy + Sync + 'a,
    ) {
        on_owned(cases, DELAY_QUEUE, Place::Current(&self.tokio.current), &self.queues, body);
    }

    /// Cases on a wheel of hierarchical_hash_wheel_timer per thread.
    fn on_wheels<'a>(
        &'a self,
        cases: &mut Vec<Case<'a>>,
        body: impl Fn(&mut Wheel, u64) -> Duration + Copy + Sync + 'a,
    ) {
        on_owned(cases, WHEEL, Place::Thread, &self.wheels, body);
    }

    /// Cases that send requests to the thread of hierarchical_hash_wheel_timer, until this thread
    /// has done them all. At least `LEAST` requests per sample, so the cost of waking the thread
    /// does not dominate.
    fn on_wheel_thread<'a>(
        &'a self,
        cases: &mut Vec<Case<'a>>,
        body: impl Fn(&mut WheelRef, u64) -> Duration + Copy + Sync + 'a,
    ) {
        const LEAST: u64 = 2_000;
        on_each(cases, WHEEL_THREAD, Place::Thread, move |times| {
            let mut timers = self.wheel.timers.clone();
            let enough = times.max(LEAST);
            let took = body(&mut timers, enough);
            let rest = std::time::Instant::now(); // not tokio's `Instant`
            settled(&mut timers);
            (took + rest.elapsed()).mul_f64(times as f64 / enough as f64)
        });
    }

    fn create_dispose(&self, session: &mut Session, level: &Level) {
        let title = level.created();
        let (current, multi) = (Place::Current(&self.tokio.current), Place::Multi(&self.tokio.multi));
        let mut cases = Vec::new();
        on_each(&mut cases, "timerqueue Timer", Place::Thread, |times| {
            repeat(times, || drop(black_box(timer(&self.runtime, AFTER))))
        });
        on_each(&mut cases, "timerqueue Delay, polled", Place::Thread, |times| {
            pending_ones(times, || Delay::on(&self.runtime, AFTER))
        });
        let sleeps = |times| pending_ones(times, || tokio::time::sleep(AFTER));
        let boxed = |times| pending_ones(times, || Box::pin(tokio::time::sleep(AFTER)));
        on_each(&mut cases, "tokio sleep, polled, current_thread", current, sleeps);
        on_each(&mut cases, "tokio sleep, polled, multi_thread", multi, sleeps);
        on_each(&mut cases, "tokio sleep, boxed, polled, multi_thread", multi, boxed);
        self.on_queues(&mut cases, |queue, times| {
            repeat(times, || {
                let key = queue.insert((), AFTER);
                black_box(queue.remove(&key));
            })
        });
        if level.with_trees {
            on_each(&mut cases, "async-io Timer, polled", Place::Thread, |times| {
                pending_ones(times, || async_io::Timer::after(AFTER))
            });
            on_each(&mut cases, "futures-timer Delay, polled", Place::Thread, |times| {
                pending_ones(times, || futures_timer::Delay::new(AFTER))
            });
        }
        on_each(&mut cases, "pingora-timeout sleep, polled", Place::Thread, |times| {
            pending_ones(times, || pingora_timeout::sleep(AFTER))
        });
        self.on_wheels(&mut cases, |wheel, times| {
            repeat(times, || {
                let id = wheel.insert(AFTER);
                wheel.cancel(black_box(id));
            })
        });
        self.on_wheel_thread(&mut cases, |timers, times| {
            let mut id = ids(times);
            repeat(times, || {
                schedule(timers, id, AFTER);
                timers.cancel(&id);
                id += 1;
            })
        });
        if level.changes && level.pending == 0 {
            on_each(&mut cases, "std thread in park_timeout, ended and joined", Place::Thread, |times| {
                repeat(times, || {
                    let asleep = std::thread::spawn(|| std::thread::park_timeout(AFTER));
                    asleep.thread().unpark();
                    asleep.join().expect("it sleeps");
                })
            });
        }
        on_each(&mut cases, "baseline: list, lock, clock", Place::Thread, |times| {
            self.baseline.without_allocation(AFTER, times)
        });
        on_each(&mut cases, "baseline: with malloc and free", Place::Thread, |times| {
            self.baseline.with_allocation(AFTER, times)
        });
        session.measure_point("W1", &title, &cases, |threads| level.point_of(threads));
        session.report.note(&title, OF_WHEELS);
    }

    /// Disposes a timer made earlier: [`LAG`] more timers have been inserted since.
    fn create_dispose_later(&self, session: &mut Session, level: &Level) {
        let title = level.created_before();
        let (current, multi) = (Place::Current(&self.tokio.current), Place::Multi(&self.tokio.multi));
        let mut cases = Vec::new();
        on_each(&mut cases, "timerqueue Timer", Place::Thread, |times| kept(times, || timer(&self.runtime, AFTER)));
        on_each(&mut cases, "timerqueue Delay, polled", Place::Thread, |times| {
            kept(times, || polled_in_place(Delay::on(&self.runtime, AFTER)))
        });
        let sleeps = |times| kept(times, || polled(tokio::time::sleep(AFTER)));
        on_each(&mut cases, "tokio sleep, boxed, polled, current_thread", current, sleeps);
        on_each(&mut cases, "tokio sleep, boxed, polled, multi_thread", multi, sleeps);
        self.on_queues(&mut cases, |queue, times| {
            let remove = |queue: &mut DelayQueue<()>, key| {
                queue.remove(&key);
            };
            lagged(queue, LAG, times, |queue| queue.insert((), AFTER), remove)
        });
        on_each(&mut cases, "async-io Timer, polled", Place::Thread, |times| {
            kept(times, || polled_in_place(async_io::Timer::after(AFTER)))
        });
        on_each(&mut cases, "futures-timer Delay, polled", Place::Thread, |times| {
            kept(times, || polled_in_place(futures_timer::Delay::new(AFTER)))
        });
        on_each(&mut cases, "pingora-timeout sleep, boxed, polled", Place::Thread, |times| {
            kept(times, || polled(pingora_timeout::sleep(AFTER)))
        });
        self.on_wheels(&mut cases, |wheel, times| {
            lagged(wheel, LAG, times, |wheel| wheel.insert(AFTER), |wheel, id| wheel.cancel(id))
        });
        on_each(&mut cases, "baseline: with malloc and free", Place::Thread, |times| {
            self.baseline.with_lag(AFTER, LAG, times)
        });
        session.measure("W1", &title, &cases);
        session.report.note(&title, OF_WHEELS);
    }

    /// Changes a timer repeatedly, to the due times given by `next`.
    fn change(&self, session: &mut Session, title: &str, level: &Level, next: impl Fn(u64) -> Duration + Copy + Sync) {
        let (current, multi) = (Place::Current(&self.tokio.current), Place::Multi(&self.tokio.multi));
        let mut cases = Vec::new();
        let changes = move |times, timer: Timer| {
            let mut turn = 0;
            repeat(times, || {
                turn += 1;
                assert_eq!(black_box(timer.change(next(turn), Duration::ZERO)), Changed::WasWaiting);
            })
        };
        on_each(&mut cases, "timerqueue Timer", Place::Thread, move |times| {
            changes(times, timer(&self.runtime, AFTER))
        });
        on_each(&mut cases, "timerqueue Timer, 10 ms of leeway", Place::Thread, move |times| {
            let builder = TimerBuilder::on(&self.runtime).due(AFTER).period(Duration::ZERO).leeway(LEEWAY);
            changes(times, builder.start(|_| unreachable!("it is not due yet")))
        });
        let resets = |times| {
            let mut sleep = pin!(tokio::time::sleep(AFTER));
            assert!(sleep.as_mut().poll(&mut idle_context()).is_pending());
            let mut turn = 0;
            let took = repeat(times, || {
                turn += 1;
                black_box(sleep.as_mut()).reset(Instant::now() + next(turn));
            });
            assert!(sleep.as_mut().poll(&mut idle_context()).is_pending());
            took
        };
        on_each(&mut cases, "timerqueue Delay", Place::Thread, |times| {
            let mut delay = Delay::on(&self.runtime, AFTER);
            assert!(Pin::new(&mut delay).poll(&mut idle_context()).is_pending());
            let mut turn = 0;
            repeat(times, || {
                turn += 1;
                black_box(&mut delay).reset(next(turn));
            })
        });
        on_each(&mut cases, "tokio sleep, current_thread", current, resets);
        on_each(&mut cases, "tokio sleep, multi_thread", multi, resets);
        self.on_queues(&mut cases, |queue, times| {
            let key = queue.insert((), AFTER);
            let mut turn = 0;
            let took = repeat(times, || {
                turn += 1;
                queue.reset(black_box(&key), next(turn));
            });
            queue.remove(&key);
            took
        });
        if level.with_trees {
            on_each(&mut cases, "async-io Timer", Place::Thread, |times| {
                let mut timer = async_io::Timer::after(AFTER);
                assert!(Pin::new(&mut timer).poll(&mut idle_context()).is_pending());
                let mut turn = 0;
                repeat(times, || {
                    turn += 1;
                    black_box(&mut timer).set_after(next(turn));
                })
            });
            on_each(&mut cases, "futures-timer Delay", Place::Thread, |times| {
                let mut delay = futures_timer::Delay::new(AFTER);
                assert!(Pin::new(&mut delay).poll(&mut idle_context()).is_pending());
                let mut turn = 0;
                repeat(times, || {
                    turn += 1;
                    black_box(&mut delay).reset(next(turn));
                })
            });
        }
        self.on_wheels(&mut cases, |wheel, times| {
            let id = wheel.insert(AFTER);
            let mut turn = 0;
            let took = repeat(times, || {
                turn += 1;
                wheel.cancel(id);
                wheel.0.insert(IdOnlyTimerEntry { id, delay: next(turn) }).expect("not due yet");
            });
            wheel.cancel(id);
            took
        });
        self.on_wheel_thread(&mut cases, |timers, times| {
            let id = ids(1);
            schedule(timers, id, AFTER);
            let mut turn = 0;
            let took = repeat(times, || {
                turn += 1;
                timers.cancel(&id);
                schedule(timers, id, next(turn));
            });
            timers.cancel(&id);
            took
        });
        on_each(&mut cases, "baseline: list, lock, clock", Place::Thread, |times| self.baseline.relink(AFTER, times));
        session.measure("W2", title, &cases);
    }

    fn changes(&self, session: &mut Session, level: &Level) {
        let title = level.changed_later();
        self.change(session, &title, level, |_| AFTER);
        session.report.note(
            &title,
            "tokio's sleep, our `Delay` and our `Timer` stay in their slot when they are changed to later. They are inserted \
             again when the slot comes due, or at its cascade. hierarchical_hash_wheel_timer has no change: the timer is \
             cancelled and scheduled again.",
        );
        let title = level.changed_to_and_fro();
        self.change(session, &title, level, |turn| if turn % 2 == 0 { AFTER } else { SOONER });
    }
}

/// A round of all wanted workloads.
pub(crate) fn round(session: &mut Session, wanted: impl Fn(&str) -> bool) {
    if !IDS.into_iter().any(&wanted) {
        return;
    }
    for level in &LEVELS {
        let stage = Stage::new(level);
        if wanted("W1") {
            stage.create_dispose(session, level);
        }
        if wanted("W1") && level.lags() {
            stage.create_dispose_later(session, level);
        }
        if wanted("W2") && level.changes {
            stage.changes(session, level);
        }
        stage.check();
        drop(stage);
        level.drivers(session, &wanted);
    }
}
