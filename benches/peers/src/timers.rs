//! W1 and W2: creating and disposing, and changing, timers that do not fire, with others pending.
//!
//! Ground rules. Ours is a [`Timer`] with a callback of a word; the peers have no callbacks, so theirs is a sleep that is
//! polled once: less than ours does. What is pending lies in the same span as what is measured, half of it in the queue of
//! each core (or in the runtime of each thread) that is measured on, and does not come due meanwhile.

use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::{Changed, Runtime, Timer};
use tokio::time::{Instant, Sleep};
use tokio_util::time::DelayQueue;

use crate::floor::Floor;
use crate::futures::{on_each, pending_ones};
use crate::measure::{Case, Random, Session, on_cores, repeat};
use crate::place::{Place, THREADS, Tokio, idle_context, our_heartbeats};
use crate::report::Axes;

pub(crate) const IDS: [&str; 2] = ["W1", "W2"];
const AFTER: Duration = Duration::from_secs(30);
const SOONER: Duration = Duration::from_secs(20);
const NEAREST: Duration = Duration::from_secs(21);
const FURTHEST: Duration = Duration::from_secs(60);

const COST_OF_PENDING: Axes = Axes { x: "timers pending", y: "ns per create and dispose" };

/// What lies about while timers are made.
struct Level {
    name: &'static str,
    pending: usize,
    heartbeat: bool,
    /// Peers whose timers are kept in a balanced tree or a heap take too long to set this up.
    with_trees: bool,
}

const LEVELS: [Level; 4] = [
    Level { name: "nothing pending, not even a heartbeat", pending: 0, heartbeat: false, with_trees: true },
    Level { name: "a heartbeat pending", pending: 0, heartbeat: true, with_trees: true },
    Level { name: "10,000 pending", pending: 10_000, heartbeat: true, with_trees: true },
    Level { name: "1,000,000 pending", pending: 1_000_000, heartbeat: true, with_trees: false },
];

/// All parties with so many timers pending.
struct Stage {
    ours: Vec<Timer>,
    _heartbeats: Vec<Timer>,
    _sleeps: Vec<Pin<Box<Sleep>>>,
    _async_io: Vec<async_io::Timer>,
    _futures_timer: Vec<futures_timer::Delay>,
    queues: Vec<Mutex<DelayQueue<()>>>,
    tokio: Arc<Tokio>,
    runtime: Runtime,
    floor: Floor,
}

/// Some of `n` durations for each of the threads.
fn spread(n: usize, thread: usize) -> impl Iterator<Item = Duration> {
    let mut random = Random::new(7 + thread as u64);
    (0..n / THREADS).map(move |_| random.between(NEAREST, FURTHEST))
}

fn timer(runtime: &Runtime, after: Duration) -> Timer {
    let word = black_box(1u64);
    runtime.timer(after, Duration::ZERO, move |_| {
        black_box(word);
        unreachable!("it is not due yet");
    })
}

fn polled(sleep: Sleep) -> Pin<Box<Sleep>> {
    let mut sleep = Box::pin(sleep);
    assert!(sleep.as_mut().poll(&mut idle_context()).is_pending());
    sleep
}

impl Stage {
    fn new(level: &Level) -> Self {
        let n = level.pending;
        let runtime = Runtime::builder().start().expect("a runtime starts");
        let heartbeats = if level.heartbeat { our_heartbeats(&runtime) } else { Vec::new() };
        let ours: Vec<Timer> =
            on_cores(THREADS, |i, _| spread(n, i).map(|after| timer(&runtime, after)).collect::<Vec<_>>())
                .into_iter()
                .flatten()
                .collect();
        assert_eq!(ours.len(), n);
        assert_eq!(runtime.active_timers(), n + heartbeats.len(), "all are filed");

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
                if level.heartbeat {
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
        Self {
            ours,
            _heartbeats: heartbeats,
            _sleeps: sleeps,
            _async_io,
            _futures_timer,
            queues,
            tokio,
            runtime,
            floor: Floor::new(),
        }
    }

    /// What was pending is so still.
    fn check(&self) {
        for timer in &self.ours {
            assert_eq!(timer.change(Duration::MAX, Duration::ZERO), Changed::WasWaiting, "nothing has come due");
        }
        assert_eq!(self.runtime.panics(), 0, "and no callback has run");
    }

    /// A case for each number of threads that works on its thread's own queue.
    fn on_queues<'a>(
        &'a self,
        cases: &mut Vec<Case<'a>>,
        party: &'static str,
        body: impl Fn(&mut DelayQueue<()>, u64) -> Duration + Copy + Sync + 'a,
    ) {
        let place = Place::Current(&self.tokio.current);
        for threads in 1..=THREADS {
            cases.push(Case::new(party, threads, move |times| {
                place.time(threads, |lane| {
                    let mut queue = self.queues[lane.index].lock().expect("nobody panics with a queue");
                    lane.ready();
                    body(&mut queue, times)
                })
            }));
        }
    }

    fn create_dispose(&self, session: &mut Session, level: &Level) {
        let title = format!("create and dispose a timer due in 30 s; {}", level.name);
        let (current, multi) = (Place::Current(&self.tokio.current), Place::Multi(&self.tokio.multi));
        let mut cases = Vec::new();
        on_each(&mut cases, "timerqueue Timer", Place::Thread, |times| {
            repeat(times, || drop(black_box(timer(&self.runtime, AFTER))))
        });
        on_each(&mut cases, "timerqueue Delay, polled", Place::Thread, |times| {
            pending_ones(times, || self.runtime.delay(AFTER))
        });
        let sleeps = |times| pending_ones(times, || tokio::time::sleep(AFTER));
        let boxed = |times| pending_ones(times, || Box::pin(tokio::time::sleep(AFTER)));
        on_each(&mut cases, "tokio sleep, polled, current_thread", current, sleeps);
        on_each(&mut cases, "tokio sleep, polled, multi_thread", multi, sleeps);
        on_each(&mut cases, "tokio sleep, boxed, polled, multi_thread", multi, boxed);
        self.on_queues(&mut cases, "tokio-util DelayQueue, one owner each", |queue, times| {
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
        on_each(&mut cases, "floor: list, lock, clock", Place::Thread, |times| {
            self.floor.without_allocation(AFTER, times)
        });
        on_each(&mut cases, "floor: with malloc and free", Place::Thread, |times| {
            self.floor.with_allocation(AFTER, times)
        });
        session.measure_point("W1", &title, &cases, |threads| {
            let title =
                format!("create and dispose a timer due in 30 s, against the number pending; {threads} thread(s)");
            level.heartbeat.then_some((title, COST_OF_PENDING, level.pending as f64))
        });
    }

    /// Changes one timer again and again to what `next` says.
    fn change(&self, session: &mut Session, title: &str, level: &Level, next: impl Fn(u64) -> Duration + Copy + Sync) {
        let (current, multi) = (Place::Current(&self.tokio.current), Place::Multi(&self.tokio.multi));
        let mut cases = Vec::new();
        on_each(&mut cases, "timerqueue Timer", Place::Thread, |times| {
            let timer = timer(&self.runtime, AFTER);
            let mut turn = 0;
            repeat(times, || {
                turn += 1;
                assert_eq!(black_box(timer.change(next(turn), Duration::ZERO)), Changed::WasWaiting);
            })
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
            let mut delay = self.runtime.delay(AFTER);
            assert!(Pin::new(&mut delay).poll(&mut idle_context()).is_pending());
            let mut turn = 0;
            repeat(times, || {
                turn += 1;
                black_box(&mut delay).reset(next(turn));
            })
        });
        on_each(&mut cases, "tokio sleep, current_thread", current, resets);
        on_each(&mut cases, "tokio sleep, multi_thread", multi, resets);
        self.on_queues(&mut cases, "tokio-util DelayQueue, one owner each", |queue, times| {
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
        on_each(&mut cases, "floor: list, lock, clock", Place::Thread, |times| self.floor.relink(AFTER, times));
        session.measure("W2", title, &cases);
    }

    fn changes(&self, session: &mut Session, level: &Level) {
        let title = format!("change a timer to 30 s from now, later than it was; {}", level.name);
        self.change(session, &title, level, |_| AFTER);
        session.report.note(
            &title,
            "tokio's sleep, and our `Delay`, stay filed where they are when they are put off, and are looked at again when \
             that fires; our `Timer` is filed anew.",
        );
        let title = format!("change a timer to and fro, to 20 s and to 30 s from now; {}", level.name);
        self.change(session, &title, level, |turn| if turn % 2 == 0 { AFTER } else { SOONER });
    }
}

/// One round of all that `wanted` asks for.
pub(crate) fn round(session: &mut Session, wanted: impl Fn(&str) -> bool) {
    if !IDS.into_iter().any(&wanted) {
        return;
    }
    for level in &LEVELS {
        let stage = Stage::new(level);
        if wanted("W1") {
            stage.create_dispose(session, level);
        }
        if wanted("W2") && level.heartbeat {
            stage.changes(session, level);
        }
        stage.check();
    }
}
