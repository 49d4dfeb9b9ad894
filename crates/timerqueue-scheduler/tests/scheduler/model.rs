//! Random programs against a simple scheduler, which walks over all jobs at each instant.
//!
//! Ground rules. The simple scheduler is the second engine of row C5: one list of laws for both.
//! Jobs that run once are compared exactly: each answer, each start, each instant. Of recurring
//! jobs the laws are checked: no job is early, nominal instants grow, and an interval goes on
//! within a period, or within two where the clock is set back. All instants are whole milliseconds.
//! `TIMERQUEUE_MODEL_CASES` sets the number of programs.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use timerqueue::{Due, Runtime};
use timerqueue_scheduler::{Cancel, Catchup, Change, Clash, Handler, Overlap, Placed, Run, Schedule, Scheduler, State};

use crate::bench::{BEGIN, wall};

/// The places of the handler `hold`.
const PLACES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ends at once.
    Brief,
    /// Ends when the program says so; at most [`PLACES`] at a time.
    Hold,
}

const KINDS: [Kind; 2] = [Kind::Brief, Kind::Hold];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Hold => "hold",
        }
    }
}

/// Milliseconds.
#[derive(Clone, Copy, Debug)]
enum When {
    After(u64),
    /// From now, on the wall clock.
    Wall(i64),
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, Kind, When, Clash),
    Cancel(u8),
    Move(u8, When),
    RunNow(u8),
    Pause(u8, bool),
    PauseHandler(Kind, bool),
    Release(u8),
    Every(u8, u64, Catchup, Overlap),
    CancelEvery(u8),
    PauseEvery(u8, bool),
    Advance(u64),
    Step(i64),
    Suspend(u64),
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        (0_u64..5_000).prop_map(When::After),
        Just(When::After(7_200_000)),
        (-4_000_i64..8_000).prop_map(When::Wall),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0_u8..6;
    let kind = prop_oneof![Just(Kind::Brief), Just(Kind::Hold)];
    let clash = prop_oneof![Just(Clash::Refuse), Just(Clash::Keep), Just(Clash::Replace)];
    let catchup = prop_oneof![Just(Catchup::RunLast), Just(Catchup::RunAll { at_most: 3 }), Just(Catchup::Skip)];
    let overlap = prop_oneof![Just(Overlap::Skip), Just(Overlap::QueueOne), Just(Overlap::Allow)];
    prop_oneof![
        6 => (key.clone(), kind.clone(), when(), clash).prop_map(|(key, kind, when, clash)| Op::Put(key, kind, when, clash)),
        2 => key.clone().prop_map(Op::Cancel),
        2 => (key.clone(), when()).prop_map(|(key, when)| Op::Move(key, when)),
        1 => key.clone().prop_map(Op::RunNow),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, on)| Op::Pause(key, on)),
        1 => (kind, any::<bool>()).prop_map(|(kind, on)| Op::PauseHandler(kind, on)),
        3 => key.prop_map(Op::Release),
        2 => (0_u8..2, 500_u64..3_000, catchup, overlap).prop_map(|(key, ms, c, o)| Op::Every(key, ms, c, o)),
        1 => (0_u8..2).prop_map(Op::CancelEvery),
        1 => (0_u8..2, any::<bool>()).prop_map(|(key, on)| Op::PauseEvery(key, on)),
        5 => prop_oneof![0_u64..20, 0_u64..4_000, Just(60_000)].prop_map(Op::Advance),
        2 => prop_oneof![-5_000_i64..5_000, Just(-7_200_000), Just(7_200_000)].prop_map(Op::Step),
        1 => (0_u64..5_000).prop_map(Op::Suspend),
    ]
}

/// A start: key, and the instant on the running clock.
type Start = (String, u64);

struct Simple {
    jobs: BTreeMap<u64, SimpleJob>,
    keys: HashMap<u8, u64>,
    paused: [bool; 2],
    last: u64,
    wall: i64,
    running: u64,
    starts: Vec<Start>,
}

struct SimpleJob {
    key: u8,
    kind: Kind,
    due: i64,
    paused: bool,
    runs: bool,
}

impl Simple {
    fn new() -> Self {
        let (jobs, keys) = (BTreeMap::new(), HashMap::new());
        Self { jobs, keys, paused: [false; 2], last: 0, wall: BEGIN * 1_000, running: 0, starts: Vec::new() }
    }

    fn due(&self, when: When) -> i64 {
        match when {
            When::After(after) => self.wall + after as i64,
            // A time that has passed means now.
            When::Wall(from_now) => self.wall + from_now.max(0),
        }
    }

    fn has_place(&self, kind: Kind) -> bool {
        kind == Kind::Brief || self.jobs.values().filter(|job| job.runs).count() < PLACES
    }

    fn waits(&self, job: &SimpleJob) -> bool {
        !job.runs && !job.paused && !self.paused[job.kind as usize] && self.has_place(job.kind)
    }

    /// Starts what is due now.
    fn start_due(&mut self) {
        loop {
            let due = self.jobs.iter().filter(|(_, job)| job.due <= self.wall && self.waits(job));
            let Some((_, id)) = due.map(|(&id, job)| (job.due, id)).min() else { return };
            let job = self.jobs.get_mut(&id).unwrap();
            self.starts.push((format!("k{}", job.key), self.running));
            match job.kind {
                Kind::Hold => job.runs = true,
                Kind::Brief => self.leave(id),
            }
        }
    }

    fn leave(&mut self, id: u64) {
        let job = self.jobs.remove(&id).unwrap();
        if self.keys.get(&job.key) == Some(&id) {
            self.keys.remove(&job.key);
        }
    }

    fn advance(&mut self, by: u64) {
        let target = self.running + by;
        loop {
            self.start_due();
            let next = self.jobs.values().filter(|job| self.waits(job)).map(|job| job.due).min();
            let wait = next.map_or(u64::MAX, |due| u64::try_from(due - self.wall).unwrap());
            let wait = wait.min(target - self.running);
            if wait == 0 {
                return;
            }
            self.running += wait;
            self.wall += wait as i64;
        }
    }

    /// The answer of a put, without the number of the job.
    fn put(&mut self, key: u8, kind: Kind, when: When, clash: Clash) -> &'static str {
        let mut answer = "added";
        if let Some(&old) = self.keys.get(&key) {
            match clash {
                Clash::Refuse => return "refused",
                Clash::Keep => return "kept",
                _ if self.jobs[&old].runs => answer = "replaced, running",
                _ => {
                    self.leave(old);
                    answer = "replaced";
                }
            }
        }
        self.last += 1;
        let due = self.due(when);
        self.jobs.insert(self.last, SimpleJob { key, kind, due, paused: false, runs: false });
        self.keys.insert(key, self.last);
        answer
    }

    fn cancel(&mut self, key: u8) -> Cancel {
        match self.keys.get(&key) {
            None => Cancel::Absent,
            Some(id) if self.jobs[id].runs => Cancel::Running,
            Some(&id) => {
                self.leave(id);
                Cancel::Cancelled
            }
        }
    }

    fn change(&mut self, key: u8, waiting_only: bool, change: impl FnOnce(&mut SimpleJob)) -> Change {
        let job = self.keys.get(&key).and_then(|id| self.jobs.get_mut(id));
        match job {
            None => Change::Absent,
            Some(job) if job.runs && waiting_only => Change::Running,
            Some(job) => {
                change(job);
                Change::Changed
            }
        }
    }

    fn release(&mut self, key: u8) {
        let ended: Vec<u64> =
            self.jobs.iter().filter(|(_, job)| job.runs && job.key == key).map(|(&id, _)| id).collect();
        ended.into_iter().for_each(|id| self.leave(id));
    }
}

type Held = Vec<(String, Pin<Box<dyn Future<Output = ()> + Send>>)>;

/// A run of a recurring job.
struct Tick {
    nominal: SystemTime,
    at: Duration,
}

/// The scheduler, with the handlers of the model.
struct Real {
    clock: timerqueue::ManualClock,
    runtime: Runtime,
    scheduler: Scheduler,
    starts: Arc<Mutex<Vec<Start>>>,
    ticks: Arc<Mutex<HashMap<String, Vec<Tick>>>>,
    /// Runs under way of the handler `hold`.
    held: Arc<Mutex<Held>>,
    /// Keys whose runs are to end.
    released: Arc<Mutex<Vec<String>>>,
}

impl Real {
    fn new() -> Self {
        let (clock, runtime) = crate::bench::clock();
        let starts: Arc<Mutex<Vec<Start>>> = Arc::default();
        let ticks: Arc<Mutex<HashMap<String, Vec<Tick>>>> = Arc::default();
        let held: Arc<Mutex<Held>> = Arc::default();
        let released: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = |runtime: &Runtime, starts: &Arc<Mutex<Vec<Start>>>| {
            let (runtime, starts) = (runtime.clone(), Arc::clone(starts));
            move |run: &Run| {
                assert!(runtime.wall_now() >= run.due(), "never early");
                let now = runtime.now().as_duration();
                assert_eq!(now.subsec_micros() % 1_000, 0, "{now:?}");
                starts.lock().unwrap().push((run.key().to_owned(), now.as_millis() as u64));
            }
        };
        let (brief, hold) = (note(&runtime, &starts), note(&runtime, &starts));
        let gate = Arc::clone(&released);
        let hold = Handler::new_async("hold", move |_: (), run: Run| {
            hold(&run);
            let gate = Arc::clone(&gate);
            std::future::poll_fn(move |_| match gate.lock().unwrap().iter().any(|key| key == run.key()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
        });
        let (own, seen) = (runtime.clone(), Arc::clone(&ticks));
        let tick = move |_: (), run: &Run| {
            assert!(own.wall_now() >= run.due(), "never early");
            let tick = Tick { nominal: run.nominal().unwrap(), at: own.now().as_duration() };
            seen.lock().unwrap().entry(run.key().to_owned()).or_default().push(tick);
        };
        let waits = Arc::clone(&held);
        let scheduler = Scheduler::builder()
            .runtime(&runtime)
            .handler("brief", move |_: (), run: &Run| brief(run))
            .handler("tick", tick)
            // A cancelled run ends when the program says so, and not before.
            .register(hold.parallel(PLACES).grace(Duration::from_secs(1 << 30)))
            // An executor that polls a future at once.
            .spawner(move |mut future| {
                if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                    waits.lock().unwrap().push((String::new(), future));
                }
            })
            .start()
            .unwrap();
        Self { clock, runtime, scheduler, starts, ticks, held, released }
    }

    fn due(&self, when: When) -> Due {
        match when {
            When::After(ms) => Due::After(Duration::from_millis(ms)),
            When::Wall(ms) if ms < 0 => Due::Wall(self.clock.wall() - Duration::from_millis(ms.unsigned_abs())),
            When::Wall(ms) => Due::Wall(self.clock.wall() + Duration::from_millis(ms.unsigned_abs())),
        }
    }

    fn put(&self, key: u8, kind: Kind, when: When, clash: Clash) -> &'static str {
        let put = self.scheduler.put_to(kind.name(), &()).key(&format!("k{key}")).due(self.due(when)).clash(clash);
        match put.send().wait().unwrap() {
            Placed::Added(_) => "added",
            Placed::Replaced { was_running: true, .. } => "replaced, running",
            Placed::Replaced { .. } => "replaced",
            Placed::Kept(_) => "kept",
            _ => "refused",
        }
    }

    fn release(&self, key: u8) {
        *self.released.lock().unwrap() = vec![format!("k{key}")];
        self.poll_held();
        self.released.lock().unwrap().clear();
    }

    fn poll_held(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        let pending = held.into_iter().filter_map(|(key, mut future)| {
            let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            poll.is_pending().then_some((key, future))
        });
        let pending: Held = pending.collect();
        self.held.lock().unwrap().extend(pending);
    }

    fn step(&self, ms: i64) {
        let (by, wall) = (Duration::from_millis(ms.unsigned_abs()), self.clock.wall());
        self.clock.set_wall(if ms < 0 { wall - by } else { wall + by });
    }
}

/// What is known of a recurring job.
#[derive(Default)]
struct Every {
    period: Duration,
    /// The law of the gap holds from this instant of the running clock on. `None`: paused.
    since: Option<Duration>,
    /// How often the clock was set back since the last run: each time it may take a further period.
    set_back: u32,
    checked: usize,
}

impl Every {
    /// Nominal instants grow, and no gap is longer than a period. `slack`: a run may wait for a
    /// step to be noticed.
    fn check(&mut self, key: &str, ticks: &[Tick], now: Duration) {
        let slack = Duration::from_millis(2);
        let longest = self.period * (1 + self.set_back) + slack;
        for pair in ticks.windows(2) {
            assert!(pair[0].nominal < pair[1].nominal, "{key}: nominal instants grow");
        }
        for tick in &ticks[self.checked..] {
            if let Some(since) = self.since {
                assert!(tick.at - since <= longest, "{key}: a gap of {:?}", tick.at - since);
                self.since = Some(tick.at);
            }
            self.set_back = 0;
        }
        self.checked = ticks.len();
        if let Some(since) = self.since {
            assert!(now - since <= longest, "{key}: asleep for {:?}", now - since);
        }
    }
}

fn run(program: Vec<Op>) {
    let (mut simple, real) = (Simple::new(), Real::new());
    let mut every: [Option<Every>; 2] = [None, None];
    for op in program {
        let key_text = |key: u8| format!("k{key}");
        match op {
            Op::Put(key, kind, when, clash) => {
                assert_eq!(real.put(key, kind, when, clash), simple.put(key, kind, when, clash));
            }
            Op::Cancel(key) => {
                assert_eq!(real.scheduler.cancel(&key_text(key)).wait().unwrap(), simple.cancel(key));
            }
            Op::Move(key, when) => {
                let due = simple.due(when);
                let answer = real.scheduler.move_to(&key_text(key), real.due(when)).wait().unwrap();
                assert_eq!(answer, simple.change(key, true, |job| job.due = due));
            }
            Op::RunNow(key) => {
                let now = simple.wall;
                let answer = real.scheduler.run_now(&key_text(key)).wait().unwrap();
                assert_eq!(answer, simple.change(key, true, |job| (job.due, job.paused) = (now, false)));
            }
            Op::Pause(key, on) => {
                let key_text = key_text(key);
                let answer = if on { real.scheduler.pause(&key_text) } else { real.scheduler.resume(&key_text) };
                assert_eq!(answer.wait().unwrap(), simple.change(key, false, |job| job.paused = on));
            }
            Op::PauseHandler(kind, on) => {
                let name = kind.name();
                let answer = if on { real.scheduler.pause_handler(name) } else { real.scheduler.resume_handler(name) };
                assert_eq!(answer.wait(), Ok(Change::Changed));
                simple.paused[kind as usize] = on;
            }
            Op::Release(key) => {
                real.release(key);
                simple.release(key);
            }
            Op::Every(n, ms, catchup, overlap) => {
                let schedule = Schedule::every(Duration::from_millis(ms)).build().unwrap();
                let put = real.scheduler.put_to("tick", &()).key(&format!("r{n}")).schedule(schedule);
                let placed = put.catchup(catchup).overlap(overlap).send().wait().unwrap();
                assert_eq!(placed.is_refused(), every[usize::from(n)].is_some());
                if placed.added().is_some() {
                    let since = Some(real.runtime.now().as_duration());
                    real.ticks.lock().unwrap().remove(&format!("r{n}"));
                    every[usize::from(n)] =
                        Some(Every { period: Duration::from_millis(ms), since, set_back: 0, checked: 0 });
                }
            }
            Op::CancelEvery(n) => {
                let expected = if every[usize::from(n)].take().is_some() { Cancel::Cancelled } else { Cancel::Absent };
                assert_eq!(real.scheduler.cancel(&format!("r{n}")).wait(), Ok(expected));
            }
            Op::PauseEvery(n, on) => {
                let key = format!("r{n}");
                let _ = if on { real.scheduler.pause(&key) } else { real.scheduler.resume(&key) }.wait().unwrap();
                if let Some(every) = &mut every[usize::from(n)] {
                    let now = real.runtime.now().as_duration();
                    every.since = if on { None } else { every.since.or(Some(now)) };
                }
            }
            Op::Advance(ms) => {
                real.clock.advance(Duration::from_millis(ms));
                simple.advance(ms);
            }
            Op::Step(ms) => {
                real.step(ms);
                simple.wall += ms;
                every.iter_mut().flatten().for_each(|every| every.set_back += u32::from(ms < 0));
            }
            Op::Suspend(ms) => {
                real.clock.suspend(Duration::from_millis(ms));
                simple.wall += ms as i64;
            }
        }
        real.clock.advance(Duration::ZERO);
        simple.start_due();
        let mut starts = std::mem::take(&mut *real.starts.lock().unwrap());
        let mut expected = std::mem::take(&mut simple.starts);
        starts.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        expected.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        assert_eq!(starts, expected);
        let now = real.runtime.now().as_duration();
        let ticks = real.ticks.lock().unwrap();
        for (n, every) in every.iter_mut().enumerate() {
            let key = format!("r{n}");
            if let Some(every) = every {
                every.check(&key, ticks.get(&key).map_or(&[], Vec::as_slice), now);
            }
        }
    }
    close(&simple, &real);
}

/// At the end nothing is lost: what has not run waits or runs.
fn close(simple: &Simple, real: &Real) {
    let report = real.scheduler.close(Duration::ZERO).wait().unwrap();
    let running = simple.jobs.values().filter(|job| job.runs).count();
    assert_eq!(report.running.len(), running);
    for kind in KINDS {
        let waiting = simple.jobs.values().filter(|job| !job.runs && job.kind == kind).count();
        assert_eq!(report.jobs.kind(kind.name()).map_or(0, |kind| kind.of(State::Waiting)), waiting as u64, "{kind:?}");
    }
    (0..6).for_each(|key| real.release(key));
    assert!(real.scheduler.close(Duration::ZERO).wait().unwrap().is_drained());
    assert!(wall(0) <= real.clock.wall() + Duration::from_secs(1 << 30));
}

fn cases() -> u32 {
    std::env::var("TIMERQUEUE_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c5_a_scheduler_does_what_a_simple_one_does(program in prop::collection::vec(op(), 1..60)) {
        run(program);
    }
}
