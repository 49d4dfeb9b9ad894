//! What a worker and the pool do step by step, with no alarm set, and no thread but where threads are the point.

use super::*;

/// A job that comes to nothing.
const VAIN: u32 = u32::MAX;
const LONG: Duration = Duration::from_millis(5);

/// Notes what the pool asks for. Whoever watches waits until the pool stops; jobs wait until the gate is open.
struct Notes {
    pool: Pool<u32>,
    set: Mutex<Vec<Duration>>,
    wakes: AtomicUsize,
    closed: Mutex<bool>,
    opened: Condvar,
    /// Jobs that have come to the gate while it was closed.
    held: AtomicUsize,
}

impl Work for Notes {
    type Job = u32;

    fn pool(&self) -> &Pool<u32> {
        &self.pool
    }

    fn watch(&self, _: impl FnMut(Event)) {
        while !self.pool.is_stopping() {
            std::thread::yield_now();
        }
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    fn arm_probe(&self, after: Duration) {
        self.set.lock().push(after);
    }

    fn sweep(&self, _: usize, _: &Local<u32>) -> Option<u32> {
        None
    }

    fn discard(&self, _: u32) {}

    fn run(&self, job: u32, _: &Local<u32>) -> bool {
        let mut closed = self.closed.lock();
        self.held.fetch_add(usize::from(*closed), Ordering::Relaxed);
        while *closed {
            self.opened.wait(&mut closed);
        }
        job != VAIN
    }
}

fn shape(workers: usize, max_threads: usize) -> Shape {
    Shape { workers, max_threads, keep_alive: Duration::MAX, name: String::from("pool-test"), pin_to: Vec::new() }
}

impl Notes {
    fn new(workers: usize, max_threads: usize) -> Self {
        let (set, closed, opened) = (Mutex::default(), Mutex::new(false), Condvar::new());
        let (wakes, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pool: Pool::new(shape(workers, max_threads)), set, wakes, closed, opened, held }
    }

    /// Two watchers sit there, of whom one can be woken.
    fn watched() -> Self {
        let notes = Self::new(2, 3);
        assert!(notes.pool.idle.join_watch() && notes.pool.idle.join_watch());
        notes
    }

    /// A worker that others can steal from.
    fn worker(&self) -> Local<u32> {
        let local = Local::new();
        self.pool.seats.write().push(Arc::clone(&local.seat));
        local
    }

    /// A worker that has rested so long takes an alarm: a job to be run at once, and one in its deque.
    fn takes_two(&self, rested: Duration) -> Local<u32> {
        let local = Local::new();
        local.pace_ns.set(1);
        local.rests_since.set(Instant::now().checked_sub(rested).expect("the machine is up for longer"));
        local.push(2);
        self.pool.share(self, &local);
        local
    }

    fn runs(&self, local: &Local<u32>) {
        run_jobs(self, local, Some(1), false, &mut 0);
    }

    #[track_caller]
    fn was_set(&self, to: &[Duration]) {
        assert_eq!(std::mem::take(&mut *self.set.lock()), to);
    }

    /// How often a watcher was woken; it gives its token back.
    fn woken(&self) -> usize {
        let woken = self.wakes.swap(0, Ordering::Relaxed);
        for _ in 0..woken {
            self.pool.idle.stop_searching();
        }
        woken
    }
}

#[test]
fn the_probe_is_called_off_when_nobody_relies_on_it() {
    let notes = Notes::new(1, 2);
    let (one, other) = (notes.takes_two(LONG), notes.takes_two(LONG));
    notes.was_set(&[PROBE]);
    notes.runs(&one);
    notes.was_set(&[]);
    notes.runs(&other);
    notes.was_set(&[OFF]);
    // And it can be had again.
    notes.runs(&notes.takes_two(LONG));
    notes.was_set(&[PROBE, OFF]);
}

#[test]
fn who_shares_twice_relies_once() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    notes.pool.share(&notes, &local);
    notes.runs(&local);
    notes.was_set(&[PROBE, OFF]);
}

#[test]
fn who_is_up_all_the_time_lets_the_probe_come() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    local.rests_since.set(Instant::now() + Duration::from_secs(3_600)); // which is no time at all, however long this takes
    notes.runs(&local);
    notes.was_set(&[PROBE]);
    // It still comes, for whoever relies on it then.
    let local = notes.takes_two(LONG);
    notes.was_set(&[]);
    notes.runs(&local);
    notes.was_set(&[OFF]);
}

#[test]
fn a_probe_that_must_come_is_not_called_off() {
    let notes = Notes::new(1, 2);
    let local = notes.takes_two(LONG);
    // Nobody is idle: the probe will find this job's thread.
    Pool::submit(&notes, 3);
    notes.runs(&local);
    notes.was_set(&[PROBE]);
}

#[test]
fn at_the_limit_of_threads_nobody_probes_for_a_job_from_outside() {
    for (threads, set) in [(1, &[PROBE][..]), (2, &[]), (3, &[])] {
        let notes = Notes::new(1, 2);
        notes.pool.threads.store(threads, Ordering::Relaxed);
        Pool::submit(&notes, 1);
        notes.was_set(set);
        // Those of a worker's own may be taken up by a thread that is idle.
        notes.pool.probe.lock().armed = false;
        let _ = notes.takes_two(LONG);
        notes.was_set(&[PROBE]);
    }
}

#[test]
fn the_probe_is_armed_once() {
    let notes = Notes::new(1, 2);
    (0..5).for_each(|job| Pool::submit(&notes, job));
    notes.was_set(&[PROBE]);
}

#[test]
fn another_thread_is_woken_for_what_takes_long() {
    for (jobs, pace_ns, woken) in [(0, u64::MAX, 0), (2, WORTH_WAKING_NS / 2, 0), (2, WORTH_WAKING_NS / 2 + 1, 1)] {
        let notes = Notes::watched();
        let local = Local::new();
        local.pace_ns.set(pace_ns);
        (0..jobs).for_each(|job| local.push(job));
        notes.pool.share(&notes, &local);
        assert_eq!(notes.woken(), woken, "{jobs} jobs of {pace_ns} ns");
        notes.was_set(if jobs > 0 && woken == 0 { &[PROBE] } else { &[] });
    }
}

#[test]
fn the_pace_is_a_moving_average() {
    let local: Local<u32> = Local::new();
    local.pace_ns.set(30_000);
    local.note_pace(2, Duration::from_nanos(20_000));
    assert_eq!(local.pace_ns.get(), 25_000);
    local.note_pace(0, Duration::from_secs(1));
    assert_eq!(local.pace_ns.get(), 25_000, "no jobs tell nothing");
    let notes = Notes::new(1, 2);
    local.pace_ns.set(u64::MAX);
    notes.runs(&local);
    assert!(local.pace_ns.get() < u64::MAX, "running tells");
}

#[test]
fn jobs_are_counted_on_all_threads_and_those_that_have_ended() {
    let notes = Notes::new(1, 2);
    let (one, other) = (notes.worker(), notes.worker());
    [1, VAIN, 2].into_iter().for_each(|job| one.push(job));
    [VAIN, 3].into_iter().for_each(|job| other.push(job));
    run_jobs(&notes, &one, Some(4), false, &mut 0);
    assert_eq!((notes.pool.done(), notes.pool.useful()), (6, 4), "it has run the other's as well");
    run_jobs(&notes, &other, Some(VAIN), false, &mut 0);
    assert_eq!((notes.pool.done(), notes.pool.useful()), (7, 4));
    Counts::add(&notes.pool.ended.done, 20);
    Counts::add(&notes.pool.ended.useful, 10);
    assert_eq!((notes.pool.done(), notes.pool.useful()), (27, 14));
}

#[test]
fn work_is_seen_wherever_it_waits() {
    let notes = Notes::new(1, 2);
    assert!(!notes.pool.has_work());
    let local = notes.worker();
    assert!(!notes.pool.has_work());
    local.push(1);
    assert!(notes.pool.has_work());
    assert_eq!(local.deque.pop(), Some(1));
    Pool::submit(&notes, 2);
    assert!(notes.pool.has_work());
}

#[test]
fn the_injector_has_its_turn() {
    let every = INJECTOR_EVERY;
    for injected in [true, false] {
        let notes = Notes::new(1, 2);
        let local = notes.worker();
        (0..2 * every).for_each(|job| local.push(job));
        if injected {
            Pool::submit(&notes, VAIN);
        }
        let mut turn = 0;
        let took: Vec<u32> = (0..every + 1).filter_map(|_| notes.pool.next_job(&notes, &local, &mut turn)).collect();
        let own = every - u32::from(injected);
        let mut expected: Vec<u32> = (0..=own).collect();
        if injected {
            expected.insert(every as usize - 1, VAIN);
        }
        assert_eq!(took, expected, "one of the injector's, if there is one, in {every}");
    }
}

#[test]
fn whoever_brings_a_batch_tells_another_one() {
    for (jobs, woken) in [(1, 0), (8, 1)] {
        let notes = Notes::watched();
        let (thief, victim) = (notes.worker(), notes.worker());
        (0..jobs).for_each(|job| victim.push(job));
        assert_eq!(notes.pool.next_job(&notes, &thief, &mut 0), Some(0), "the oldest");
        assert_eq!(notes.woken(), woken, "for {jobs} jobs");
    }
    let notes = Notes::watched();
    assert_eq!(notes.pool.next_job(&notes, &notes.worker(), &mut 0), None);
    assert_eq!(notes.woken(), 0);
}

#[test]
fn the_first_threads_are_pinned_in_turn() {
    let core = |id| core_affinity::CoreId { id };
    let pinned = Shape { pin_to: vec![core(4), core(6)], ..shape(3, 8) };
    let cores: Vec<_> = (0..5).map(|serial| pinned.core_of(serial).map(|core| core.id)).collect();
    assert_eq!(cores, [Some(4), Some(6), Some(4), None, None]);
    assert!((0..5).all(|serial| shape(3, 8).core_of(serial).is_none()));
}

/// No job returns between two probes: one thread more, then two, four, eight, sixteen; up to the limit.
#[test]
fn a_pool_that_is_stuck_grows_faster_and_faster() {
    let notes = Arc::new(Notes::new(1, 40));
    let pool = &notes.pool;
    assert!(pool.idle.join_watch(), "this thread is the last watcher");
    *notes.closed.lock() = true;
    (0..60).for_each(|job| Pool::submit(notes.as_ref(), job));
    let mut grown = Vec::new();
    for _ in 0..7 {
        pool.probe(&notes);
        let threads = pool.threads();
        // Each new one takes up a job, at which it stays.
        while notes.held.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        grown.push(threads);
    }
    assert_eq!(grown, [1, 3, 7, 15, 31, 40, 40]);
    *notes.closed.lock() = false;
    notes.opened.notify_all();
    Pool::stop(notes.as_ref());
    assert_eq!(pool.wait_until_ended(None), 0);
    assert_eq!(pool.threads(), 0);
}
