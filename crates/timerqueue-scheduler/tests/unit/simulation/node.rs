//! A node: a scheduler on clocks of its own, the handlers of its process, and what a
//! `PostgresStore` keeps in a process.
//!
//! Ground rules. A node acts only when the world moves its clock, gives it an answer or tells it
//! something. While a node is stopped, all that is for it waits. Handlers say when they begin and
//! end to the [`Diary`], which stands for effects outside of the database.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{ManualClock, Runtime};

use super::Origin;
use super::plan::{Random, secs};
use super::port::{Back, NodeStore, Port, Wire};
use super::world::Event;
use crate::store::{Applied, Held, Micros, Op};
use crate::{Handler, Outcome, Retry, Run, Scheduler};

/// What handlers say.
pub(super) enum Said {
    Began {
        run: Arc<str>,
        attempt: u32,
        due: Micros,
    },
    Ended {
        run: Arc<str>,
        attempt: u32,
        said: &'static str,
    },
    /// A run that ends its process after this time.
    Dies {
        lasts: u64,
    },
    /// A run that goes on for this time.
    Holds {
        slot: Slot,
        lasts: u64,
    },
}

pub(super) type Diary = Arc<Mutex<Vec<Said>>>;

/// True: the run may end.
pub(super) type Slot = Arc<Mutex<bool>>;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request under way.
pub(super) struct Asked {
    pub(super) wire: Wire,
    pub(super) back: Back,
    pub(super) is_write: bool,
    pub(super) waited: u32,
}

/// Tells the answer of a user's operation, once there is one.
pub(super) type Watch = Box<dyn FnMut() -> Option<Result<Applied, crate::Error>>>;

pub(super) struct Node {
    pub(super) origin: Origin,
    begun: u64,
    pub(super) clock: ManualClock,
    pub(super) runtime: Runtime,
    pub(super) scheduler: Option<Scheduler>,
    pub(super) port: Arc<Port>,
    pub(super) diary: Diary,
    tasks: Arc<Mutex<Vec<Task>>>,
    /// What was said to the node while it was stopped.
    pub(super) frozen: Vec<Event>,
    pub(super) stopped: bool,
    /// Writes wait for the one before, as on a connection.
    pub(super) queue: VecDeque<(u64, Wire, Back)>,
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) writing: bool,
    /// The runs, with their members.
    pub(super) held: Vec<(Held, u64)>,
    pub(super) watches: Vec<(u64, Watch)>,
}

impl Node {
    /// Starts a node at an instant of the history.
    pub(super) fn start(origin: Origin, at: u64, wall: Micros, seed: u64, has_handlers: bool) -> Self {
        let clock = ManualClock::new();
        clock.set_wall(wall.to_system());
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let (port, diary, tasks) = (Port::new(), Diary::default(), Arc::<Mutex<Vec<Task>>>::default());
        let started = Arc::clone(&tasks);
        let mut builder = Scheduler::builder().runtime(&runtime).store(NodeStore(Arc::clone(&port))).seed(seed);
        if has_handlers {
            builder = builder.register(brief(&diary, seed)).register(slow(&diary, seed));
            builder = builder.register(poison(&diary, seed));
        }
        let scheduler = builder.spawner(move |future| started.lock().push(future)).start().unwrap();
        Self {
            origin,
            begun: at,
            clock,
            runtime,
            scheduler: Some(scheduler),
            port,
            diary,
            tasks,
            frozen: Vec::new(),
            stopped: false,
            queue: VecDeque::new(),
            asked: BTreeMap::new(),
            writing: false,
            held: Vec::new(),
            watches: Vec::new(),
        }
    }

    /// The instant of the history at which a timer of the node is due.
    pub(super) fn next_due(&self) -> Option<u64> {
        if self.stopped || self.scheduler.is_none() {
            return None;
        }
        let due = self.clock.next_due()?.as_duration();
        Some(self.begun.saturating_add(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)))
    }

    fn behind(&self, at: u64) -> Duration {
        let past = u64::try_from(self.clock.now().as_duration().as_nanos()).unwrap();
        Duration::from_nanos((at - self.begun).saturating_sub(past))
    }

    /// Lets timers fire and futures run up to an instant of the history.
    pub(super) fn advance(&mut self, at: u64) {
        self.clock.advance(self.behind(at));
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.tasks.lock().extend(tasks);
        self.clock.advance(Duration::ZERO);
    }

    /// The process goes on after a stop: its clocks have gone on, and no timer has fired.
    pub(super) fn resume(&mut self, at: u64) {
        self.stopped = false;
        self.clock.stall(self.behind(at));
    }

    /// The process is gone.
    pub(super) fn kill(&mut self) {
        self.port.gone.store(true, Ordering::Relaxed);
        self.scheduler = None;
        self.tasks.lock().clear();
        self.diary.lock().clear();
        (self.held, self.frozen) = Default::default();
        self.queue.clear();
        self.asked.clear();
        self.watches.clear();
        (self.writing, self.stopped) = (false, false);
    }

    /// Puts runs back of which the scheduler does not know.
    pub(super) fn put_back(&mut self, unrun: Vec<Op>) {
        if !unrun.is_empty() {
            self.port.send(Wire::Apply(unrun), Back::Strays);
        }
    }

    /// Runs whose end is settled.
    pub(super) fn forget_settled(&mut self, ops: &[Op]) {
        let settled =
            |(held, _): &(Held, u64)| ops.iter().any(|op| matches!(op, Op::Settle(settle) if settle.held == *held));
        self.held.retain(|held| !settled(held));
    }

    /// Sees the server's clock in an answer.
    pub(super) fn see_clock(&self, server: Micros) {
        let local = Micros::floor(self.runtime.wall_now());
        self.port.skew.store(server.as_i64() - local.as_i64(), Ordering::Relaxed);
    }
}

fn begins(diary: &Diary, run: &Run) -> Arc<str> {
    let text: Arc<str> = run.run_id().into();
    let due = Micros::ceil(run.due()).unwrap();
    diary.lock().push(Said::Began { run: Arc::clone(&text), attempt: run.attempt(), due });
    text
}

/// How an attempt ends: by the seed, the job and the attempt.
fn outcome(seed: u64, number: u64, attempt: u32, turn: &str) -> (Result<Outcome, String>, &'static str) {
    let turn = turn.rsplit('-').next().and_then(|turn| turn.parse().ok()).unwrap_or(0_u64);
    let mut random = Random::new(seed ^ (number << 20) ^ (turn << 8) ^ u64::from(attempt));
    match random.below(100) {
        0..=64 => (Ok(Outcome::Done), "done"),
        65..=89 => (Err("no".to_owned()), "failed"),
        90..=95 if turn < 3 => (Ok(Outcome::again(Duration::from_secs(random.below(20)))), "again"),
        90..=97 => (Ok(Outcome::Done), "done"),
        _ => (Ok(Outcome::Dead("dead".to_owned())), "failed"),
    }
}

fn retry() -> Retry {
    Retry::new(4).first(Duration::from_secs(1))
}

/// Ends at once.
fn brief(diary: &Diary, seed: u64) -> Handler {
    let diary = Arc::clone(diary);
    let handler = move |number: u64, run: &Run| {
        let text = begins(&diary, run);
        let (outcome, said) = outcome(seed, number, run.attempt(), &text);
        diary.lock().push(Said::Ended { run: text, attempt: run.attempt(), said });
        outcome
    };
    Handler::new("brief", handler).parallel(3).retry(retry())
}

/// Goes on for up to three leases. Some runs end when they are cancelled.
fn slow(diary: &Diary, seed: u64) -> Handler {
    let diary = Arc::clone(diary);
    let handler = move |number: u64, run: Run| {
        let text = begins(&diary, &run);
        let mut random = Random::new(seed ^ number ^ (u64::from(run.attempt()) << 32));
        let lasts = if random.percent(70) { random.below(secs(5)) } else { random.below(secs(95)) };
        let (slot, listens) = (Slot::default(), random.percent(50));
        diary.lock().push(Said::Holds { slot: Arc::clone(&slot), lasts });
        let diary = Arc::clone(&diary);
        poll_fn(move |_| {
            let may_end = *slot.lock() || (listens && run.token().is_cancelled());
            if !may_end {
                return Poll::Pending;
            }
            let (outcome, said) = outcome(seed, number, run.attempt(), &text);
            diary.lock().push(Said::Ended { run: Arc::clone(&text), attempt: run.attempt(), said });
            Poll::Ready(outcome)
        })
    };
    // A run that ignores its token ends by itself: the diary knows each end.
    Handler::new_async("slow", handler).parallel(4).retry(retry()).grace(Duration::from_secs(3_600))
}

/// Ends its process, at once or after a while.
fn poison(diary: &Diary, seed: u64) -> Handler {
    let diary = Arc::clone(diary);
    let handler = move |number: u64, run: Run| {
        begins(&diary, &run);
        let mut random = Random::new(seed ^ number ^ (u64::from(run.attempt()) << 24));
        let lasts = if random.percent(50) { 0 } else { random.below(secs(20)) };
        diary.lock().push(Said::Dies { lasts });
        std::future::pending::<()>()
    };
    Handler::new_async("poison", handler).grace(Duration::from_secs(3_600))
}

/// A watch on an answer.
pub(super) fn watch<T: 'static>(mut pending: crate::Pending<T>, as_applied: impl Fn(T) -> Applied + 'static) -> Watch {
    Box::new(move || match Pin::new(&mut pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.map(&as_applied)),
        Poll::Pending => None,
    })
}
