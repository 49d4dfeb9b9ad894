//! The steps of a worker and of the pool, without alarms; with threads only where threads are the
//! subject.

use std::cell::RefCell;
use std::rc::Rc;

use super::jobs::{SharedBatch, run_batch, run_jobs};
use super::stall_check::StallCheck;
use super::worker::{ROOM, stay, wait};
use super::*;
use crate::alarm::{Event, OFF};
use crate::sync::Condvar;

/// A tick that is not useful.
const USELESS: u32 = u32::MAX;
/// A tick that takes longer than the turn of a worker's own jobs.
const SLOW: u32 = u32::MAX - 1;
const LONG: Duration = Duration::from_millis(5);

/// Is told the tick.
type During = Box<dyn FnMut(u32)>;

std::thread_local! {
    /// What this thread does during each tick.
    static DURING: RefCell<Option<During>> = const { RefCell::new(None) };
}

/// Records the requests of the pool. A poller waits for a wake-up; ticks wait until the gate is
/// open.
struct Notes {
    pool: Pool<Self>,
    closed: Mutex<bool>,
    opened: Condvar,
    /// Ticks that have reached the closed gate.
    held: AtomicUsize,
    /// The number of ticks that are still to unwind. (No real tick unwinds.)
    panics: AtomicUsize,
    /// The alarm of each queue covers the stall check.
    covers: AtomicBool,
    /// The ticks that have run.
    ran: Mutex<Vec<u32>>,
    /// What the next sweep gives.
    swept: Mutex<(Swept, Vec<u32>)>,
}

/// A single alarm, the stall check.
#[derive(Default)]
struct Alarms {
    set: Mutex<Vec<Duration>>,
    wakes: AtomicUsize,
    /// The next wake-up comes late: with a job for this pool, and together with the stall check.
    late: Mutex<Option<Arc<Notes>>>,
}

impl Backend for Alarms {
    fn arm(&self, _: usize, _: u64) {}

    fn arm_stall_check(&self, after: Duration) {
        self.set.lock().push(after);
    }

    fn wait(&self, report: &mut dyn FnMut(Event)) {
        let fewer = |n: usize| n.checked_sub(1);
        while self.wakes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_err() {
            std::thread::yield_now();
        }
        report(Event::Wake);
        let late = self.late.lock().take();
        if let Some(notes) = late {
            notes.pool.submit(1, 0);
            report(Event::StallCheck);
        }
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A tick from outside of the pool.
fn submit(notes: &Notes, tick: u32) {
    notes.pool.submit(tick, 0);
    notes.pool.notify(notes);
}

impl Driver for Notes {
    type Tick = u32;
    type Alarms = Box<Alarms>;

    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

    fn sweep(&self, _: usize, batch: &mut Batch<u32>) -> Swept {
        let (swept, ticks) = std::mem::take(&mut *self.swept.lock());
        ticks.into_iter().for_each(|tick| batch.push(tick, 0));
        swept
    }

    fn is_covered(&self, _: usize) -> bool {
        self.covers.load(Ordering::Relaxed)
    }
}

impl Tick<Notes> for u32 {
    fn run(self, notes: &Notes) -> Ran {
        let fewer = |n: usize| n.checked_sub(1);
        if notes.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        if let Some(mut during) = DURING.take() {
            during(self);
            DURING.set(Some(during));
        }
        let mut closed = notes.closed.lock();
        notes.held.fetch_add(usize::from(*closed), Ordering::Relaxed);
        while *closed {
            notes.opened.wait(&mut closed);
        }
        drop(closed);
        notes.ran.lock().push(self);
        if self == SLOW {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self == USELESS { Ran::Void } else { Ran::Callback }
    }

    fn discard(self, _: &Notes) {}
}

/// A job of several ticks.
fn batch(ticks: impl IntoIterator<Item = u32>) -> Option<Job<u32>> {
    let mut batch = Batch::new();
    ticks.into_iter().for_each(|tick| batch.push(tick, 0));
    batch.take_job(&mut Vec::new())
}

/// A batch that has not been run.
fn shared(ticks: impl IntoIterator<Item = u32>) -> Arc<SharedBatch<u32>> {
    let Some(Job::Batch(batch)) = batch(ticks) else { panic!("several ticks") };
    batch
}

/// The tick of a job.
fn tick(job: Job<u32>) -> u32 {
    match job {
        Job::One { tick, .. } => tick,
        _ => panic!("no batch and no sweep here"),
    }
}

fn config(workers: usize, max_threads: usize) -> PoolConfig {
    PoolConfig {
        workers,
        max_threads,
        keep_alive: Duration::MAX,
        name: String::from("pool-test"),
        pin_to: Vec::new(),
        mask: None,
        may_open_files: true,
        timing: Timing { first_look: u32::MAX, ..Timing::REAL },
    }
}

impl Notes {
    fn new(workers: usize, max_threads: usize) -> Self {
        let (closed, opened) = (Mutex::new(false), Condvar::new());
        let [held, panics] = [0; 2].map(AtomicUsize::new);
        let pool = Pool::new(config(workers, max_threads), Box::default(), SystemClock::MONOTONIC);
        Self {
            pool,
            closed,
            opened,
            held,
            panics,
            covers: AtomicBool::new(false),
            ran: Mutex::default(),
            swept: Mutex::default(),
        }
    }

    /// With two pollers, so that a poller can be woken.
    fn watched() -> Self {
        let notes = Self::new(2, 3);
        assert!(notes.pool.idle.join_poll() && notes.pool.idle.join_poll());
        notes
    }

    /// Its workers look at the clock: the turns of other queues come.
    fn with_turns(mut self) -> Self {
        self.pool.config.timing = Timing::REAL;
        self
    }

    /// A worker from which others can steal. It does not look at the clock: the turn of others does
    /// not come, however long this thread stands still.
    fn worker(&self) -> OneDrop<WorkerLocal<u32>> {
        self.pool.join()
    }

    fn stall_check(&self) -> &StallCheck {
        &self.pool.stall_check
    }

    fn push_local(&self, local: &WorkerLocal<u32>, ticks: impl IntoIterator<Item = u32>) {
        ticks.into_iter().for_each(|tick| self.pool.push_local(local, Job::One { tick, due: 0 }));
    }

    fn next_job(&self, local: &WorkerLocal<u32>) -> Option<u32> {
        self.pool.next_job(self, local).map(tick)
    }

    /// A worker that has rested for this long takes an expiry: a job to be run at once, and a job
    /// in its deque.
    fn takes_two(&self, rested: Duration) -> OneDrop<WorkerLocal<u32>> {
        self.takes_two_beside(rested, Swept::default())
    }

    /// The same; its sweep has left and set such alarms.
    fn takes_two_beside(&self, rested: Duration, swept: Swept) -> OneDrop<WorkerLocal<u32>> {
        let local = self.worker();
        local.note(0, swept);
        local.pace.set_job_ns(1);
        local.rests_since.set(self.pool.now() - rested.as_nanos() as u64);
        self.push_local(&local, [2]);
        self.pool.share(self, &local);
        local
    }

    fn runs(&self, local: &WorkerLocal<u32>) {
        self.runs_first(local, 1);
    }

    fn runs_first(&self, local: &WorkerLocal<u32>, tick: u32) {
        run_jobs(self, local, Some(Job::One { tick, due: 0 }));
    }

    #[track_caller]
    fn was_set(&self, to: &[Duration]) {
        assert_eq!(std::mem::take(&mut *self.pool.alarms.set.lock()), to);
    }

    fn wakes(&self) -> &AtomicUsize {
        &self.pool.alarms.wakes
    }

    /// The number of wake-ups of pollers; the token is returned.
    fn woken(&self) -> usize {
        let woken = self.wakes().swap(0, Ordering::Relaxed);
        if let Some(token) = SearchToken::from_word(self.pool.token_sent.swap(0, Ordering::Relaxed)) {
            self.pool.idle.stop_searching(token);
        }
        woken
    }
}

#[test]
fn the_stall_check_is_cancelled_by_a_worker_if_each_demand_was_its_own() {
    let notes = Notes::new(1, 2);
    notes.runs(&notes.takes_two(LONG));
    notes.was_set(&[STALL_CHECK, OFF]);
    let (one, other) = (notes.takes_two(LONG), notes.takes_two(LONG));
    notes.was_set(&[STALL_CHECK]);
    notes.runs(&one);
    notes.runs(&other);
    notes.was_set(&[]);
    // It expires. A further demand arms it again.
    notes.stall_check().has_come();
    notes.runs(&notes.takes_two(LONG));
    notes.was_set(&[STALL_CHECK, OFF]);
}

#[test]
fn a_worker_that_shares_twice_cancels_once() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    notes.pool.share(&notes, &local);
    notes.runs(&local);
    notes.was_set(&[STALL_CHECK, OFF]);
}

#[test]
fn a_worker_that_rests_for_short_times_leaves_the_stall_check_armed() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    local.rests_since.set(u64::MAX); // no time, however long this takes
    notes.runs(&local);
    notes.was_set(&[STALL_CHECK]);
    // The alarm stays set, for the next demand.
    local.pace.set_job_ns(1); // no thread is woken, however long the first one took
    notes.push_local(&local, [2]);
    notes.pool.share(&notes, &local);
    notes.was_set(&[]);
    local.rests_since.set(notes.pool.now() - LONG.as_nanos() as u64);
    notes.runs(&local);
    notes.was_set(&[OFF]);
}

#[test]
fn a_stall_check_demanded_from_outside_is_not_cancelled() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    // No thread is idle: the stall check will find a thread for this job.
    submit(&notes, 3);
    notes.runs(&local);
    notes.was_set(&[STALL_CHECK]);
}

const GIVEN: Swept = Swept { more: false, took_cover: false, gives_cover: true };
const TAKEN: Swept = Swept { more: false, took_cover: true, gives_cover: false };

#[test]
fn a_demand_that_an_alarm_covers_sets_none_and_cancels_none() {
    let notes = Notes::new(1, 2);
    notes.covers.store(true, Ordering::Relaxed);
    for rested in [LONG, Duration::ZERO] {
        let local = notes.takes_two_beside(rested, GIVEN);
        assert!(notes.stall_check().is_covered());
        notes.runs(&local);
        notes.was_set(&[]);
        // Cancelled: the next demand is a first one.
        notes.runs(&notes.takes_two(LONG));
        notes.was_set(&[STALL_CHECK, OFF]);
    }
}

/// The alarm has been taken or replaced by another thread: before the demand, or after it by a
/// thread that does not poll.
#[test]
fn s31_a_demand_whose_cover_is_gone_arms_the_stall_check() {
    let notes = Notes::new(1, 2);
    let _ = notes.takes_two_beside(LONG, GIVEN);
    notes.was_set(&[STALL_CHECK]);
    notes.stall_check().has_come();
    notes.covers.store(true, Ordering::Relaxed);
    let (_one, _other) = (notes.takes_two_beside(LONG, GIVEN), notes.takes_two_beside(LONG, GIVEN));
    notes.was_set(&[]);
    let third = notes.worker();
    notes.stall_check().replace_cover(&notes, &third);
    notes.was_set(&[]);
    third.note(1, TAKEN);
    notes.stall_check().replace_cover(&notes, &third);
    third.note(1, TAKEN);
    notes.stall_check().replace_cover(&notes, &third);
    notes.was_set(&[STALL_CHECK]);
    assert!(!notes.stall_check().took_cover(&third), "nothing is covered any more");
}

#[test]
fn s31_a_poller_that_takes_an_alarm_looks_if_it_covered_a_demand() {
    let notes = Notes::new(1, 2);
    notes.covers.store(true, Ordering::Relaxed);
    let poller = notes.worker();
    poller.note(0, TAKEN);
    assert!(!notes.stall_check().took_cover(&poller), "no demand");
    let _local = notes.takes_two_beside(LONG, GIVEN);
    assert!(!notes.stall_check().took_cover(&poller), "no alarm");
    poller.note(0, TAKEN);
    assert!(notes.stall_check().took_cover(&poller));
    notes.stall_check().has_come();
    assert!(notes.pool.has_work(&poller));
}

/// Further demands of a worker do not delay the stall check.
#[test]
fn s31_further_demands_do_not_delay_an_armed_stall_check() {
    let notes = Notes::new(1, 2);
    (0..5).for_each(|_| notes.stall_check().demand(&notes, None, STALL_CHECK));
    notes.was_set(&[STALL_CHECK]);
    notes.stall_check().has_come();
    notes.stall_check().demand(&notes, None, STALL_CHECK);
    notes.was_set(&[STALL_CHECK]);
}

#[test]
fn at_the_limit_of_threads_a_job_from_outside_demands_no_stall_check() {
    for (threads, set) in [(1, &[STALL_CHECK][..]), (2, &[]), (3, &[])] {
        let notes = Notes::new(1, 2);
        notes.pool.threads.store(threads, Ordering::Relaxed);
        submit(&notes, 1);
        notes.was_set(set);
        // An idle thread may take jobs from a worker's own deque.
        notes.stall_check().has_come();
        let _ = notes.takes_two(LONG);
        notes.was_set(&[STALL_CHECK]);
    }
}

#[test]
fn the_stall_check_is_armed_once() {
    let notes = Notes::new(1, 2);
    (0..5).for_each(|job| submit(&notes, job));
    notes.was_set(&[STALL_CHECK]);
}

#[test]
fn another_thread_is_woken_for_what_takes_long() {
    for (jobs, pace_ns, woken) in [(0, u64::MAX, 0), (2, WORTH_WAKING_NS / 2, 0), (2, WORTH_WAKING_NS / 2 + 1, 1)] {
        let notes = Notes::watched();
        let local = WorkerLocal::new(0, notes.pool.now(), 2);
        local.pace.set_job_ns(pace_ns);
        notes.push_local(&local, 0..jobs);
        notes.pool.share(&notes, &local);
        assert_eq!(notes.woken(), woken, "{jobs} jobs of {pace_ns} ns");
        notes.was_set(if jobs > 0 { &[STALL_CHECK] } else { &[] });
    }
}

#[test]
fn the_pace_is_learnt_from_what_runs() {
    let notes = Notes::new(1, 2);
    let local = WorkerLocal::new(0, notes.pool.now(), 2);
    local.pace.set_job_ns(u64::MAX);
    notes.runs(&local);
    assert!(local.pace.job_ns() < u64::MAX, "running tells");
}

#[test]
fn rest_is_no_part_of_the_pace_and_each_tick_of_a_batch_is() {
    let notes = Notes::new(1, 2);
    let now = notes.pool.now();
    let local = WorkerLocal::new(0, 0, 2); // made when the clock began
    local.pace.set_job_ns(0);
    notes.runs(&local);
    assert!(local.pace.job_ns() < now / 8);

    let local = WorkerLocal::new(0, now, u32::MAX);
    local.pace.set_job_ns(0);
    local.pace.begin(0);
    run_batch(&notes, &local, &shared(1..=3)); // the last one is counted by the caller
    local.pace.measure(8_000);
    assert_eq!(local.pace.job_ns(), 8_000 / 2 / 4);
}

/// I19.
#[test]
fn a_batch_is_in_the_deque_once_and_while_ticks_are_left() {
    let notes = Notes::watched();
    let local = Rc::new(notes.worker());
    local.pace.set_job_ns(u64::MAX);
    let looks = Rc::new(RefCell::new(Vec::new()));
    let (worker, look) = (Rc::clone(&local), Rc::clone(&looks));
    DURING.set(Some(Box::new(move |_| look.borrow_mut().push((worker.deque.len(), worker.shared.jobs())))));
    run_batch(&notes, &local, &shared(1..=3));
    DURING.take();
    assert_eq!(*looks.borrow(), [(1, 3), (1, 2), (0, 0)], "the deque; and with the ticks that are left");
    assert_eq!(notes.woken(), 1, "for the rest");
}

#[test]
fn a_job_that_was_out_of_the_deque_for_a_moment_is_told_of() {
    let notes = Arc::new(Notes::watched());
    let local = Rc::new(notes.worker());
    local.pace.set_job_ns(u64::MAX);
    let (worker, others) = (Rc::clone(&local), Arc::clone(&notes));
    DURING.set(Some(Box::new(move |tick| {
        if tick == 1 {
            drop(worker.deque.pop()); // stolen: the batch
            others.push_local(&worker, [9]);
            assert_eq!(others.woken(), 1, "for the batch");
        }
    })));
    run_batch(&*notes, &local, &shared(1..=3));
    DURING.take();
    assert_eq!((notes.woken(), local.deque.len()), (1, 1));
}

#[test]
fn a_batch_that_others_end_or_that_waits_counts_no_rest() {
    let notes = Notes::new(1, 2);
    let local = notes.worker();
    let batch = shared(1..=3);
    let taken = Arc::clone(&batch);
    DURING.set(Some(Box::new(move |_| while taken.take().is_some() {})));
    run_jobs(&notes, &local, Some(Job::Batch(batch)));
    DURING.take();
    assert_eq!((local.shared.counts.rest_of_batch(), notes.ran.lock().len()), (0, 1));

    let long_ago = notes.pool.now() - Duration::from_secs(1).as_nanos() as u64;
    let local = WorkerLocal::new(0, long_ago, 1); // the turn of others comes after a tick
    run_batch(&notes, &local, &shared(1..=3));
    assert_eq!((local.shared.counts.rest_of_batch(), local.turn.get()), (0, true));
}

#[test]
fn a_sweep_among_the_jobs_wakes_a_thread_for_the_rest_and_counts_no_tick() {
    let more = Swept { more: true, ..Swept::default() };
    for ticks in [vec![], vec![1]] {
        let notes = Notes::watched();
        let local = notes.worker();
        local.pace.set_job_ns(u64::MAX);
        let ran = ticks.len() as i64;
        *notes.swept.lock() = (more, ticks);
        run_jobs(&notes, &local, Some(Job::Sweep(0)));
        assert_eq!(notes.woken(), 1, "{ran}");
        assert_eq!(notes.pool.metrics(0).waiting as i64, -ran, "no tick was counted as claimed here");
    }
    let notes = Notes::new(1, 2);
    let (local, batch) = (notes.worker(), shared(1..=2));
    while batch.take().is_some() {}
    run_jobs(&notes, &local, Some(Job::Batch(batch)));
    assert_eq!(notes.pool.metrics(0).waiting, 0, "others have taken all ticks");
}

#[test]
fn s31_a_sweep_among_the_jobs_that_takes_a_cover_arms_the_stall_check() {
    let notes = Notes::watched();
    notes.covers.store(true, Ordering::Relaxed);
    let _demands = notes.takes_two_beside(LONG, GIVEN);
    notes.was_set(&[]);
    let local = notes.worker();
    *notes.swept.lock() = (TAKEN, vec![]);
    run_jobs(&notes, &local, Some(Job::Sweep(0)));
    notes.was_set(&[STALL_CHECK]);
}

#[test]
fn jobs_are_counted_on_all_threads_and_those_that_have_ended() {
    let notes = Notes::new(1, 2);
    let (one, other) = (notes.worker(), notes.worker());
    notes.push_local(&one, [1, USELESS, 2]);
    notes.push_local(&other, [USELESS, 3]);
    notes.runs_first(&one, 4);
    assert_eq!(notes.pool.metrics(0).callbacks, 4, "it has run the other's as well");
    notes.runs_first(&other, USELESS);
    assert_eq!(notes.pool.metrics(0).callbacks, 4);
    notes.runs_first(&other, 5);
    notes.pool.leave(&other);
    assert_eq!(notes.pool.metrics(0).callbacks, 5);
    notes.pool.leave(&one);
    assert_eq!(notes.pool.metrics(0).callbacks, 5);
}

#[test]
fn work_is_seen_wherever_it_waits() {
    let notes = Notes::new(1, 2);
    let idle = notes.worker();
    assert!(!notes.pool.has_work(&idle));
    let local = notes.worker();
    assert!(!notes.pool.has_work(&idle));
    notes.push_local(&local, [1]);
    assert!(notes.pool.has_work(&idle));
    assert_eq!(local.deque.pop().map(tick), Some(1));
    submit(&notes, 2);
    assert!(notes.pool.has_work(&idle));
}

/// A word of each worker tells of its deque; a look that finds it false goes no further.
#[test]
fn a_worker_tells_whether_its_deque_may_have_jobs() {
    let notes = Notes::new(1, 2);
    let (local, thief) = (notes.worker(), notes.worker());
    let tell = |worker: &WorkerLocal<u32>| worker.shared.may_have_jobs.load(Ordering::Relaxed);
    notes.push_local(&local, 0..4);
    assert!(tell(&local) && !tell(&thief));
    assert_eq!(notes.next_job(&thief), Some(0));
    assert!(tell(&thief) && !thief.deque.is_empty(), "it has brought some");
    assert_eq!(notes.next_job(&thief), Some(1));
    for _ in 0..3 {
        notes.next_job(&thief);
    }
    assert!(!tell(&thief) && tell(&local), "the worker itself tells, when it looks");
    assert!(!local.shared.has_jobs() && !notes.pool.has_work(&thief));
    assert_eq!(notes.next_job(&local), None);
    assert!(!tell(&local));
    (0..4).for_each(|job| submit(&notes, job));
    assert_eq!(notes.next_job(&local), Some(0));
    assert!(tell(&local) && local.shared.has_jobs(), "from the inbox as well");
}

#[test]
fn the_last_poller_moves_its_jobs_to_the_inbox_and_tells_that_it_has_none() {
    let notes = Arc::new(Notes::new(1, 2));
    let local = notes.worker();
    notes.push_local(&local, 0..3);
    stay(&notes, &local, Some(Job::One { tick: 3, due: 0 }), false);
    assert_eq!((notes.pool.inbox.len(), local.deque.len()), (4, 0));
    assert!(!local.shared.may_have_jobs.load(Ordering::Relaxed));
}

#[test]
fn there_are_three_pollers_and_more_where_there_are_many_workers() {
    let pollers = |workers| config(workers, workers).max_pollers();
    let expected = if WORKERS_PER_POLLER == 2 { [1, 2, 3, 33, 49, 65, 129] } else { [1, 2, 3, 3, 4, 5, 9] };
    assert_eq!([1, 2, 3, 65, 96, 129, 257].map(pollers), expected);
}

/// A growing deque would run closures deferred by other crates (I17).
#[test]
fn s29_a_deque_never_grows() {
    let notes = Notes::new(1, 2);
    let (local, thief) = (notes.worker(), notes.worker());
    notes.push_local(&local, 0..200);
    assert_eq!((local.deque.len(), notes.pool.inbox.len()), (ROOM, 200 - ROOM));
    // Stolen batches fit as well.
    let mut seen: Vec<u32> = std::iter::from_fn(|| {
        let job = notes.next_job(&thief);
        assert!(thief.deque.len() < ROOM);
        job
    })
    .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<u32>>());
}

/// The jobs of a worker, in order, while its own deque and other queues have jobs.
#[test]
fn s31_a_worker_with_jobs_of_its_own_takes_some_from_elsewhere() {
    const OTHERS: u32 = 1_000;
    const INJECTED: u32 = 2_000;
    let notes = Notes::new(1, 2).with_turns();
    let (local, stuck) = (notes.worker(), notes.worker());
    notes.push_local(&stuck, OTHERS..OTHERS + 9);
    (0..9).for_each(|job| submit(&notes, INJECTED + job));
    let begun = Instant::now();
    let (mut stolen, mut injected, mut own) = (0, 0, 0);
    while stolen < 9 || injected < 9 {
        notes.push_local(&local, [1]);
        match notes.next_job(&local) {
            Some(INJECTED..) => injected += 1,
            Some(OTHERS..) => stolen += 1,
            _ => own += 1,
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{stolen} {injected} {own}");
    }
    assert!(own > stolen + injected, "its own come first: {own}");
}

/// The turn of other queues comes in the middle of a batch.
#[test]
fn s31_a_batch_of_long_ticks_lets_a_job_from_elsewhere_pass() {
    let notes = Notes::new(1, 2).with_turns();
    let local = notes.worker();
    submit(&notes, 7);
    run_jobs(&notes, &local, batch([SLOW; 10]));
    let ran = notes.ran.lock();
    assert_eq!(ran.len(), 11);
    assert!(ran.iter().position(|&tick| tick == 7).is_some_and(|at| at < 10), "{ran:?}");
}

/// A searching thread that has found a job gives its search to the next thread, if there is more.
#[test]
fn a_worker_that_has_searched_tells_the_next_one_of_further_jobs() {
    let searches = |notes: &Notes| {
        let local = notes.worker();
        local.pace.set_job_ns(1); // so that no thread is woken for the time that the jobs take
        notes.pool.notify(notes);
        let token = SearchToken::from_word(notes.pool.token_sent.swap(0, Ordering::Relaxed)).expect("sent");
        assert_eq!(notes.wakes().swap(0, Ordering::Relaxed), 1);
        local.token.set(Some(token));
        local
    };
    let notes = Notes::watched();
    let local = searches(&notes);
    notes.push_local(&local, [2]);
    notes.runs(&local);
    assert_eq!(notes.woken(), 1, "for the job in its deque");
    run_jobs(&notes, &searches(&notes), batch(0..3));
    assert_eq!(notes.woken(), 1, "for the rest of the batch");
    notes.runs(&searches(&notes));
    assert_eq!(notes.woken(), 0, "there is nothing more");
    run_jobs(&notes, &searches(&notes), None);
    notes.pool.notify(&notes);
    assert_eq!(notes.woken(), 1, "the search is over, and the next may begin");
}

#[test]
fn a_worker_that_brings_a_batch_tells_another_one() {
    for (jobs, woken) in [(1, 0), (8, 1)] {
        let notes = Notes::watched();
        let (thief, victim) = (notes.worker(), notes.worker());
        notes.push_local(&victim, 0..jobs);
        assert_eq!(notes.next_job(&thief), Some(0), "the oldest");
        assert_eq!(notes.woken(), woken, "for {jobs} jobs");
    }
    let notes = Notes::watched();
    assert_eq!(notes.next_job(&notes.worker()), None);
    assert_eq!(notes.woken(), 0);
}

#[test]
fn a_search_that_does_not_come_is_given_to_another_thread() {
    let notes = Arc::new(Notes::watched());
    let (looks, busy) = (notes.worker(), notes.worker());
    notes.push_local(&busy, 0..3);
    notes.pool.notify(notes.as_ref());
    assert_eq!(notes.wakes().swap(0, Ordering::Relaxed), 1);
    let catch_first = SearchToken::from_word(notes.pool.token_sent.load(Ordering::Relaxed)).expect("sent");
    notes.pool.look(&notes, &looks);
    assert_eq!(notes.wakes().load(Ordering::Relaxed), 0, "it has had no time yet");
    notes.pool.look(&notes, &looks);
    assert_eq!(notes.wakes().load(Ordering::Relaxed), 1, "another is told");
    // The first thread comes late: it has no effect on the second search.
    notes.pool.idle.stop_searching(catch_first);
    assert!(matches!(notes.pool.idle.notify(), Notified::Covered(token) if token != catch_first));
    assert_eq!(notes.woken(), 1);
}

/// Stealing may block in a closure of another crate: a further stall check must find a thread for
/// the jobs.
#[test]
fn s31_a_search_that_brings_the_stall_check_along_demands_another() {
    let notes = Arc::new(Notes::watched());
    let local = notes.worker();
    local.polling.set(true);
    notes.pool.notify(notes.as_ref());
    notes.was_set(&[STALL_CHECK]);
    *notes.pool.alarms.late.lock() = Some(Arc::clone(&notes));
    let _ = wait(&notes, &local);
    assert!(local.token.get().is_some() && !local.polling.get(), "it searches");
    notes.was_set(&[STALL_CHECK]);
}

/// After a panic out of a job, a sweep or a search the thread continues, with its registrations put
/// right.
#[test]
fn s31_a_thread_of_the_pool_survives_a_panic() {
    let notes = Arc::new(Notes::new(2, 2));
    notes.panics.store(3, Ordering::Relaxed);
    Pool::start(&notes).expect("threads");
    for job in 0..100 {
        submit(notes.as_ref(), job);
    }
    while notes.pool.metrics(0).callbacks < 97 {
        std::thread::yield_now();
    }
    assert_eq!((notes.pool.threads(), notes.panics.load(Ordering::Relaxed)), (2, 0));
    Pool::stop(notes.as_ref());
    assert_eq!(notes.pool.wait_until_ended(None), 0);
}

#[test]
fn the_first_threads_are_pinned_in_turn() {
    let core = |id| crate::sys::topology::CoreId { id };
    let pinned = PoolConfig { pin_to: vec![core(4), core(6)], ..config(3, 8) };
    let cores: Vec<_> = (0..5).map(|serial| pinned.core_of(serial).map(|core| core.id)).collect();
    assert_eq!(cores, [Some(4), Some(6), Some(4), None, None]);
    assert!((0..5).all(|serial| config(3, 8).core_of(serial).is_none()));
}

/// All threads sleep: one thread more, then two, four, eight, sixteen; up to the limit.
#[test]
fn a_pool_that_is_stuck_grows_faster_and_faster() {
    let notes = Arc::new(Notes::new(1, 40));
    let pool = &notes.pool;
    assert!(pool.idle.join_poll(), "this thread is the last poller");
    pool.threads.store(2, Ordering::Relaxed);
    let looks = notes.worker();
    *notes.closed.lock() = true;
    (0..60).for_each(|job| submit(notes.as_ref(), job));
    let mut grown = Vec::new();
    // Opened also when an assertion fails: the scope waits for the threads at the gate.
    let open = OpensTheGate(&notes);
    std::thread::scope(|scope| {
        let open = open;
        // The single thread of the pool has taken a job.
        let sleeper = scope.spawn({
            let notes = &notes;
            move || notes.runs_first(&notes.worker(), 0)
        });
        for _ in 0..8 {
            while notes.held.load(Ordering::Relaxed) < 1 + pool.threads() || !all_sleep(pool, &looks) {
                // A thread may have parked while all jobs were on their way between deques; the
                // stall check would wake it.
                pool.notify(notes.as_ref());
                std::thread::yield_now();
            }
            pool.look(&notes, &looks);
            // the first look remembers the job
            let wanted = grown.last().map_or(0, |last: &usize| (2 * last + 1).min(38));
            // Each new thread starts further threads, and takes a job that blocks.
            while pool.threads() < wanted {
                std::thread::yield_now();
            }
            grown.push(pool.threads());
        }
        assert_eq!(grown, [0, 1, 3, 7, 15, 31, 38, 38]);
        drop(open);
        sleeper.join().expect("no panic");
    });
    assert_eq!(pool.wait_until_ended(None), 0);
    assert_eq!(pool.threads(), 0);
}

/// Stops the pool, and opens the gate.
struct OpensTheGate<'a>(&'a Notes);

impl Drop for OpensTheGate<'_> {
    fn drop(&mut self) {
        Pool::stop(self.0);
        *self.0.closed.lock() = false;
        self.0.opened.notify_all();
    }
}

/// Whether all threads except `looks` are asleep in a job.
fn all_sleep(pool: &Pool<Notes>, looks: &WorkerLocal<u32>) -> bool {
    let workers = pool.workers_for(looks);
    workers
        .iter()
        .filter(|worker| !Arc::ptr_eq(worker, &looks.shared))
        .all(|worker| worker.counts.edges() % 2 == 1 && worker.thread.sleeps() != Some(false))
}
