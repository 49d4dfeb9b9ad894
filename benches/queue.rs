//! The cost of the queue alone. Claim: the cost per fired timer does not depend on the number of
//! timers in the queue, and no sweep walks pending timers.
//!
//! The queue, without threads, clock and kernel, against the two unordered lists of .NET
//! (`queue/reference.rs`): the same nodes and calls, on a virtual clock that goes from deadline to
//! deadline. Times are processor time.

#![allow(unsafe_code)] // the contract of the queue: nodes outlive it

#[path = "common/mod.rs"]
mod common;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/queue/mod.rs"]
mod queue;
#[allow(dead_code, unused_imports)]
#[path = "../src/sync.rs"]
mod sync;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/sys/mod.rs"]
mod sys;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/time.rs"]
mod time;

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::time::Duration;

use self::common::{Case, Random, Stopwatch, measure};
use self::queue::node::Key;
use self::queue::reference::TwoLists;
use self::queue::{Kind, MissedTicks, Next, Node, TimerWheel};
use self::time::NEVER;

/// A node of the size of a timer's.
type Plain = Node<[usize; 2]>;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The start of the virtual clock: not zero, as for a clock that has run for a while.
const START_NS: u64 = 1_000 * SECOND;
/// The nodes looked at in a lock section.
const BATCH: usize = 256;
/// The time between a deadline and its sweep in a real runtime: a wake-up takes some time, and a
/// busy sweep is followed by a pause (`src/engine/coalesce.rs`).
struct Wakeups {
    late_ns: u64,
    busy_from: u64,
    pause_ns: u64,
}

/// Each sweep exactly at its deadline: the greatest possible number of sweeps.
const EXACT: Wakeups = Wakeups { late_ns: 0, busy_from: u64::MAX, pause_ns: 0 };
/// Roughly the delays of a thread that waits for an alarm.
const WOKEN: Wakeups = Wakeups { late_ns: 20_000, busy_from: 4, pause_ns: 50_000 };

impl Wakeups {
    /// The instant of the next sweep. The previous sweep at `now` fired `fired` timers and set the
    /// alarm to `next`.
    fn sweep_at(&self, now: u64, fired: u64, next: u64) -> u64 {
        let pause = if fired >= self.busy_from { self.pause_ns } else { 0 };
        black_box(next).max(now + pause).saturating_add(self.late_ns)
    }
}

/// The step by which the reference advances its threshold.
const ROLL_NS: u64 = 333 * MS;

/// A key lent by a wheel that stays: here each queue has one thread.
static KEY: LazyLock<&Key> = LazyLock::new(|| Box::leak(Box::new(TimerWheel::<()>::new(0))).key());

/// The operations of both queues.
trait Queue {
    fn new(now: u64) -> Self;
    fn len(&self) -> usize;
    /// # Safety
    /// As [`TimerWheel::insert`].
    unsafe fn insert(&mut self, node: NonNull<Plain>);
    /// # Safety
    /// As [`TimerWheel::unlink`].
    unsafe fn unlink(&mut self, node: NonNull<Plain>);
    /// Emits all nodes due at `now`, and inserts each again `period` later; without a period the
    /// node stays out. Returns the number of fired nodes and the next deadline. Calls `section` at
    /// the end of each stretch of work that is a lock section in the engine.
    fn sweep(&mut self, now: u64, period: Option<u64>, section: impl FnMut()) -> (u64, u64);
}

/// Inserts a fired node for its next tick.
///
/// # Safety
/// `queue` has just emitted the node, and the node is alive for as long as `queue` needs.
unsafe fn reinsert(queue: &mut impl Queue, node: NonNull<Plain>, period: Option<u64>) -> u64 {
    let key = *KEY;
    let Some(period) = period else { return NEVER };
    // SAFETY: the caller promises a node that `queue` has just emitted: in no list, and alive.
    unsafe {
        let due = node.as_ref().due(key) + period;
        node.as_ref().set_due(due, key);
        queue.insert(node);
        due
    }
}

impl Queue for TimerWheel<[usize; 2]> {
    fn new(now: u64) -> Self {
        TimerWheel::new(now)
    }

    fn len(&self) -> usize {
        TimerWheel::len(self)
    }

    unsafe fn insert(&mut self, node: NonNull<Plain>) {
        // SAFETY: the caller keeps the contract of `TimerWheel::insert`.
        unsafe { TimerWheel::insert(self, node) };
    }

    unsafe fn unlink(&mut self, node: NonNull<Plain>) {
        // SAFETY: the caller keeps the contract of `TimerWheel::unlink`.
        unsafe { TimerWheel::unlink(self, node) };
    }

    fn sweep(&mut self, now: u64, period: Option<u64>, mut section: impl FnMut()) -> (u64, u64) {
        let (mut fired, mut work) = (0, BATCH);
        loop {
            match self.next_due(now, &mut work) {
                Next::Due(node) => {
                    fired += 1;
                    // SAFETY: the queue has just emitted the node, which the stage keeps alive.
                    unsafe { reinsert(self, node, period) };
                }
                Next::Exhausted => {
                    work = BATCH;
                    section();
                }
                Next::Nothing => {
                    section();
                    return (fired, self.next_deadline());
                }
            }
        }
    }
}

/// The reference and the buffer that its sweeps fill.
struct Reference {
    lists: TwoLists<[usize; 2]>,
    due: Vec<NonNull<Plain>>,
}

impl Queue for Reference {
    fn new(now: u64) -> Self {
        Self { lists: TwoLists::new(now), due: Vec::new() }
    }

    fn len(&self) -> usize {
        self.lists.len()
    }

    unsafe fn insert(&mut self, node: NonNull<Plain>) {
        // SAFETY: the caller keeps the contract of `TimerWheel::insert`, which covers the
        // reference.
        unsafe { self.lists.insert(node) }
    }

    unsafe fn unlink(&mut self, node: NonNull<Plain>) {
        // SAFETY: the caller keeps the contract of `TimerWheel::unlink`, which covers the
        // reference.
        unsafe { self.lists.unlink(node) };
    }

    fn sweep(&mut self, now: u64, period: Option<u64>, mut section: impl FnMut()) -> (u64, u64) {
        let mut due = std::mem::take(&mut self.due);
        let mut next = self.lists.sweep(now, &mut due);
        let fired = due.len() as u64;
        for node in due.drain(..) {
            // SAFETY: the queue has just emitted the node, which the stage keeps alive.
            next = next.min(unsafe { reinsert(self, node, period) });
        }
        self.due = due;
        section();
        (fired, next)
    }
}

/// A queue with its nodes and its virtual clock.
struct Stage<Q> {
    queue: Q,
    now: u64,
    /// Boxed one by one, as timers are; the boxes outlive their use by the queue.
    #[allow(clippy::vec_box)]
    // a node must not move, and adjacent nodes of the vector must not be adjacent in memory
    nodes: Vec<Box<Plain>>,
}

impl<Q: Queue> Stage<Q> {
    /// A stage of `n` nodes, due at random between `after` and `after + spread`.
    fn new(n: usize, after: u64, spread: u64) -> Self {
        let mut nodes: Vec<_> =
            (0..n).map(|_| Box::new(Node::with(1, Kind::Overlapping, MissedTicks::default(), [0; 2]))).collect();
        // In a process that has run for a while, adjacent nodes of a list are not adjacent in
        // memory.
        let mut random = Random::new(13);
        for i in 1..n {
            nodes.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut stage = Self { queue: Q::new(START_NS), now: START_NS, nodes };
        stage.file_all(after, spread);
        stage
    }

    fn file_all(&mut self, after: u64, spread: u64) {
        let (key, mut random) = (*KEY, Random::new(3));
        for node in &self.nodes {
            node.set_due(self.now + after + random.below(spread), key);
            // SAFETY: the node is in no list, and its box lives as long as the queue.
            unsafe { self.queue.insert(NonNull::from(&**node)) };
        }
        assert_eq!(self.queue.len(), self.nodes.len(), "all are pending");
    }

    /// Fires at least `times` periodic timers, deadline after deadline; returns the time for
    /// `times`.
    fn fire(&mut self, times: u64, period: u64, wakeups: &Wakeups) -> Duration {
        let (start, mut fired) = (Stopwatch::start(), 0);
        while fired < times {
            let (some, next) = self.queue.sweep(self.now, Some(period), || {});
            fired += some;
            self.now = wakeups.sweep_at(self.now, some, next);
        }
        let took = start.elapsed();
        assert_eq!(self.queue.len(), self.nodes.len(), "each node was inserted again");
        took.mul_f64(times as f64 / fired as f64)
    }

    /// Inserts and unlinks an additional node, due in 30 s.
    fn pairs(&mut self, times: u64) -> Duration {
        let key = *KEY;
        let node: Plain = Node::with(1, Kind::Overlapping, MissedTicks::default(), [0; 2]);
        let at = NonNull::from(&node);
        let start = Stopwatch::start();
        for i in 0..times {
            node.set_due(self.now + 30 * SECOND + i, key);
            // SAFETY: the node lives here, and is inserted and then unlinked.
            unsafe {
                self.queue.insert(black_box(at));
                self.queue.unlink(black_box(at));
            }
        }
        start.elapsed()
    }

    /// Lets 29 s pass with timeouts of 30 s and more pending. Returns the mean time per advance of
    /// the threshold.
    fn advance(mut self) -> Duration {
        const ROLLS: u64 = 29 * SECOND / ROLL_NS;
        let start = Stopwatch::start();
        for _ in 0..ROLLS {
            self.now += ROLL_NS;
            let (fired, _) = self.queue.sweep(black_box(self.now), None, || {});
            assert_eq!(fired, 0, "nothing is due yet");
        }
        start.elapsed() / ROLLS as u32
    }

    /// Fires all nodes, and returns the longest time of a lock section.
    fn longest_section(mut self) -> Duration {
        let mut longest = Duration::ZERO;
        let mut fired = 0;
        while fired < self.nodes.len() as u64 {
            let mut start = Stopwatch::start();
            let (some, next) = self.queue.sweep(self.now, None, || {
                longest = longest.max(start.elapsed());
                start = Stopwatch::start();
            });
            fired += some;
            self.now = WOKEN.sweep_at(self.now, some, next);
        }
        assert_eq!(self.queue.len(), 0, "all have fired");
        longest
    }
}

type Ours = TimerWheel<[usize; 2]>;

fn periodic<'a, Q: Queue + 'a>(name: &str, n: usize, period: u64, wakeups: &'static Wakeups) -> Case<'a> {
    let mut stage = Stage::<Q>::new(n, 0, period);
    Case::new(name, move |times| stage.fire(times, period, wakeups))
}

fn pair<'a, Q: Queue + 'a>(name: &str, pending: usize) -> Case<'a> {
    let mut stage = Stage::<Q>::new(pending, 30 * SECOND, SECOND);
    Case::new(name, move |times| stage.pairs(times))
}

/// The best of five runs on new queues with `n` timeouts, the first due in 30 s: load of the
/// machine only makes a longest time longer.
fn best_of_runs<Q: Queue>(n: usize, spread: u64, run: fn(Stage<Q>) -> Duration) -> Duration {
    (0..5).map(|_| run(Stage::new(n, 30 * SECOND, spread))).min().unwrap_or_default()
}

fn main() {
    let mut criterion = common::criterion();
    let full = common::is_bench_run();
    let many = if full { 100_000 } else { 1_000 };

    for n in [10, 100, 1_000, 10_000] {
        let mut cases = [
            periodic::<Ours>("slots", n, 100 * MS, &EXACT),
            periodic::<Ours>("slots, woken", n, 100 * MS, &WOKEN),
            periodic::<Reference>("two lists", n, 100 * MS, &EXACT),
        ];
        measure(&mut criterion, &format!("fire one of {n} periodic 100 ms timers"), &mut cases, || {});
    }
    let mut cases = [
        periodic::<Ours>("100 ms", many, 100 * MS, &EXACT),
        periodic::<Ours>("100 ms, woken", many, 100 * MS, &WOKEN),
        periodic::<Ours>("30 s", many, 30 * SECOND, &EXACT),
        periodic::<Ours>("30 s, woken", many, 30 * SECOND, &WOKEN),
    ];
    measure(&mut criterion, &format!("fire one of {many} periodic timers, slots"), &mut cases, || {});

    for n in [0, many] {
        let mut cases = [pair::<Ours>("slots", n), pair::<Reference>("two lists", n)];
        measure(&mut criterion, &format!("insert and unlink, {n} pending"), &mut cases, || {});
    }

    println!("\n| {many} timeouts of 30 s | slots | two lists |\n|---|---:|---:|");
    let row = |name: &str, spread, ours: fn(Stage<Ours>) -> Duration, reference: fn(Stage<Reference>) -> Duration| {
        let (ours, reference) = (best_of_runs(many, spread, ours), best_of_runs(many, spread, reference));
        println!("| {name} | {ours:.1?} | {reference:.1?} |");
    };
    row("pending: each advance of the threshold", 30 * SECOND, Stage::advance, Stage::advance);
    let longest = "longest time in one lock section, coming due within";
    row(&format!("{longest} 30 s"), 30 * SECOND, Stage::longest_section, Stage::longest_section);
    row(&format!("{longest} 1 ms"), MS, Stage::longest_section, Stage::longest_section);
    criterion.final_summary();
}
