//! The agenda of a manual clock: the instants at which its queues are to be swept next.
//!
//! Ground rules. The agenda replaces the alarms of a runtime on a clock of the system. A queue has
//! at most a single entry, set with the lock of the queue held: at or before the earliest due
//! point, unless a sweep is pending or running (I7). The driver takes each entry whose instant has
//! come, and sweeps the queue. So idle queues add nothing to the cost of a step of the clock.
//!
//! A thread that arms a timer reads the clock with the queue's lock held. The driver may move the
//! clock past the due point, and find no entry, before the thread has inserted the timer. So the
//! thread first puts the queue on a list (`touch`). The driver, at its target, waits for the lock
//! of each queue on the list before looking for entries again ([`Agenda::wait_for_arming`]):
//!
//! ```text
//!   arms a timer, with the queue's lock         drives the clock to 5
//!     T1  puts the queue on the list              D1  moves the clock to 5
//!     T2  reads the clock                         D2  takes the list, locks each queue
//!     T3  inserts the timer, sets the entry       D3  looks for entries
//! ```
//!
//! If T1 comes before D2, the lock section ends before D3, which sees the entry. If D2 comes before
//! T1, T2 reads 5.
//!
//! A read-write lock would be shorter: held for reading from T1 to T3, taken for writing in D2. But
//! each of the eight places that arm would have to release it before code of the program runs after
//! the section, which may drive this clock. A list leaves nothing to release.
//!
//! The locks of the entries and of the due ticks are leaves. They may be taken with the lock of a
//! queue held, or that of the driver.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Weak;
use std::task::Waker;

use super::current::{Owner, Scope};
use super::{Engine, InOrder};
use crate::alarm::virtual_time::VirtualTime;
use crate::ordered_map::{Key, OrderedMap};
use crate::pool::Tick;
use crate::queue::state::whole_number;
use crate::sync::Ordering::Relaxed;
use crate::sync::unmodelled::{AtomicBool, AtomicU64};
use crate::sync::{Arc, Mutex, MutexGuard, ThreadId};
use crate::time::{END, NEVER};

/// The capacity for swept ticks that is kept between instants.
const KEPT: usize = 256;

/// See the module's ground rules.
#[derive(Default)]
pub(crate) struct Agenda {
    pub(crate) virtual_time: std::sync::Arc<VirtualTime>,
    entries: Mutex<Entries>,
    pub(crate) driver: Mutex<Driver>,
    /// The clock does not advance automatically.
    pub(crate) stands_still: AtomicBool,
    /// Swept ticks that are about to run, in order. Shared, since a callback may run a future,
    /// which drives in turn.
    pub(crate) due: Mutex<BinaryHeap<Due>>,
    /// The callbacks and wakers begun so far; and the number of the one that runs, the innermost.
    /// The driver alone writes and reads them.
    begun: AtomicU64,
    running: AtomicU64,
}

/// The thread that drives the clock, and its progress.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) thread: Option<ThreadId>,
    /// The end of the running advance: as asked for by its caller, and as callbacks have moved it.
    pub(crate) asked: u64,
    pub(crate) target: u64,
    /// The number of callbacks run by the running advance, with nested callbacks.
    pub(crate) run: u64,
    /// The number of callbacks that wait for a future, each inside the previous.
    pub(crate) depth: usize,
    pub(crate) extensions: Extensions,
    /// The wakers of the threads that wait to drive.
    pub(crate) waiting: Vec<Waker>,
}

/// The limit on callbacks in a row that each move the end of the running advance.
const MOST_EXTENSIONS: u32 = 100_000;

/// Callbacks that moved the end of the running advance, and the end has not come nearer since: a
/// timer whose callback moves the clock by its period would run for ever. After a row of
/// [`MOST_EXTENSIONS`] the end is where the caller of the advance has asked for it, and stays
/// there.
///
/// A callback that waits for a future moves the clock by its own wish, as far as the future needs:
/// what its wait runs has a row of its own.
#[derive(Default)]
pub(crate) struct Extensions {
    row: u32,
    /// The number of the last callback of the row.
    by: u64,
    /// The shortest way to the end that a callback of the row has found.
    shortest: Option<u64>,
}

impl Extensions {
    /// The running callback, of this number, is about to move the end, which is `left` away. False:
    /// it may not.
    #[must_use]
    fn may_extend(&mut self, by: u64, left: u64) -> bool {
        if self.row == MOST_EXTENSIONS {
            return false;
        }
        if self.shortest.is_none_or(|shortest| left < shortest) {
            *self = Self { row: 1, by, shortest: Some(left) };
        } else if self.by != by {
            (self.row, self.by) = (self.row + 1, by);
        }
        true
    }
}

struct Entries {
    /// The runtimes on this clock, in the order of the numbers of their queues.
    members: Vec<Member>,
    /// The number of the next queue.
    next_number: u64,
    /// Of all members.
    queues: usize,
    /// Instant, and number of the queue: of runtimes on the clock that stands still in suspend, and
    /// of runtimes on the boot clock. Each set ends with [`NO_ENTRY`], which keeps the memory of
    /// the tree when the last entry is taken: arming a timer allocates nothing.
    order: [OrderedMap; 2],
    /// Numbers of queues, each once: where timers were armed since the driver was last at its
    /// target. There is room for all.
    touched: VecDeque<u64>,
}

const NO_ENTRY: Key = (NEVER, u64::MAX);

impl Default for Entries {
    fn default() -> Self {
        let mut order = [OrderedMap::new(), OrderedMap::new()];
        order.iter_mut().for_each(|order| _ = order.insert_key(NO_ENTRY));
        Self { members: Vec::new(), next_number: 0, queues: 0, order, touched: VecDeque::new() }
    }
}

struct Member {
    engine: Weak<Engine>,
    boot: bool,
    /// The number of the runtime's first queue on this clock; the others follow.
    first: u64,
    /// The instant of each queue's entry; [`NEVER`]: no entry.
    at: Box<[u64]>,
}

impl Member {
    /// The index of a queue in its runtime. Caller: it is the member's.
    fn queue(&self, number: u64) -> usize {
        (number - self.first) as usize
    }
}

/// The entry of a queue, before it is set.
#[derive(Clone, Copy)]
pub(crate) enum Before {
    Any,
    Later,
    /// There is one.
    There,
}

/// A runtime's membership. The engine calls it by its table: so a program without a manual clock
/// is linked without the code of an agenda.
pub(crate) trait Membership: Send + Sync {
    fn agenda(&self) -> &std::sync::Arc<Agenda>;

    /// Sets the entry of a queue, if it is like this before. Returns whether it was. Caller: holds
    /// the lock of the queue.
    fn set(&self, queue: usize, at: u64, before: Before) -> bool;

    /// Puts a queue, where a timer is about to be armed, on the driver's list. Caller: holds the
    /// lock of the queue.
    fn touch(&self, queue: usize);

    /// The runtime has been shut down: its queues are not swept any more. `discards`: what was
    /// swept of this engine, and has not run, is discarded. Caller: holds no lock.
    fn leave(&self, engine: &Engine, discards: bool);
}

/// The numbers of a runtime's queues.
struct Numbers {
    agenda: std::sync::Arc<Agenda>,
    /// The number of the runtime's first queue.
    first: u64,
}

impl Membership for Numbers {
    fn agenda(&self) -> &std::sync::Arc<Agenda> {
        &self.agenda
    }

    fn set(&self, queue: usize, at: u64, before: Before) -> bool {
        self.agenda.entries.lock().set(self.first + queue as u64, at, before)
    }

    fn touch(&self, queue: usize) {
        self.agenda.entries.lock().touched.push_back(self.first + queue as u64);
    }

    fn leave(&self, engine: &Engine, discards: bool) {
        self.agenda.entries.lock().remove(self.first);
        if !discards {
            return;
        }
        let mut due = self.agenda.due.lock();
        let (own, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *due).into_iter().partition(|due| std::ptr::eq(&*due.engine, engine));
        *due = others.into();
        drop(due);
        own.into_iter().for_each(|due| due.tick.expired.discard(engine));
    }
}

impl Entries {
    /// The runtime whose first queue has this number leaves.
    fn remove(&mut self, first: u64) {
        let Some(place) = place_of(&self.members, first) else { return };
        let queues = self.members[place].at.len();
        (first..first + queues as u64).for_each(|number| _ = self.set(number, NEVER, Before::Any));
        self.members.remove(place);
        self.queues -= queues;
    }

    /// As [`Membership::set`]. False also: the runtime has left.
    fn set(&mut self, number: u64, at: u64, before: Before) -> bool {
        let Some(place) = place_of(&self.members, number) else { return false };
        let member = &mut self.members[place];
        let queue = member.queue(number);
        let (entry, at) = (&mut member.at[queue], if at < END { at } else { NEVER });
        let sets = match before {
            Before::Any => true,
            Before::Later => at < *entry,
            Before::There => *entry != NEVER,
        };
        if sets && at != *entry {
            let order = &mut self.order[usize::from(member.boot)];
            if *entry != NEVER {
                order.remove((*entry, number));
            }
            if at != NEVER {
                order.insert_key((at, number));
            }
            *entry = at;
        }
        sets
    }

    /// The earliest entry: its instant on the clock which stands still in suspend, and the number
    /// of the queue.
    fn first(&self, virtual_time: &VirtualTime) -> Option<Key> {
        let first = |boot: usize| self.order[boot].first().map(|(entry, _)| entry).filter(|&entry| entry != NO_ENTRY);
        let on_boot = first(1).map(|(at, number)| (at.saturating_sub(virtual_time.suspended()), number));
        match (first(0), on_boot) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

/// The place of the runtime that has the queue of this number; `None`: it has left.
fn place_of(members: &[Member], number: u64) -> Option<usize> {
    let place = members.partition_point(|member| member.first <= number).checked_sub(1)?;
    (members[place].queue(number) < members[place].at.len()).then_some(place)
}

impl Agenda {
    /// Puts a new runtime on this clock.
    pub(crate) fn join(self: &std::sync::Arc<Self>, engine: &Arc<Engine>, boot: bool) {
        let mut entries = self.entries.lock();
        if entries.touched.len() > entries.queues {
            // Some belong to runtimes that have ended. The list is longer than there are queues, so
            // the cost is amortized.
            let Entries { members, touched, .. } = &mut *entries;
            touched.retain(|number| place_of(members, *number).is_some());
        }
        let first = entries.next_number;
        let at = vec![NEVER; engine.shards().count()].into_boxed_slice();
        entries.next_number += at.len() as u64;
        entries.queues += at.len();
        let room = entries.queues;
        entries.touched.reserve(room);
        entries.members.push(Member { engine: std::sync::Arc::downgrade(engine), boot, first, at });
        drop(entries);
        let before = engine.membership.set(Box::new(Numbers { agenda: std::sync::Arc::clone(self), first }));
        debug_assert!(before.is_ok(), "an engine is on one clock");
    }

    /// The runtimes on this clock. A returned reference may be the last, and dropping the runtime
    /// drops a panic handler of the user's: the caller drops the references with no lock held.
    pub(crate) fn engines(&self) -> Vec<Arc<Engine>> {
        self.entries.lock().members.iter().filter_map(|member| member.engine.upgrade()).collect()
    }

    /// The earliest instant of all entries, on the clock which stands still in suspend; [`NEVER`]:
    /// no entry.
    pub(crate) fn first(&self) -> u64 {
        self.entries.lock().first(&self.virtual_time).map_or(NEVER, |(at, ..)| at)
    }

    /// The earliest entry up to `until`, and its queue. `takes`: the entry is removed, and the
    /// caller sweeps the queue. The reference to the runtime may be the last, and is dropped with
    /// no lock held.
    fn find(&self, until: u64, takes: bool) -> Option<(u64, Arc<Engine>, usize)> {
        let mut entries = self.entries.lock();
        loop {
            let (at, number) = entries.first(&self.virtual_time).filter(|&(at, _)| at <= until)?;
            let member = &entries.members[place_of(&entries.members, number)?];
            let (engine, queue) = (member.engine.upgrade(), member.queue(number));
            if takes || engine.is_none() {
                entries.set(number, NEVER, Before::Any);
            }
            if let Some(engine) = engine {
                return Some((at, engine, queue));
            }
        }
    }

    /// Waits for the threads that are about to arm a timer by an earlier reading of the clock.
    pub(crate) fn wait_for_arming(&self) {
        // Each queue once: threads go on arming timers, by the present reading of the clock.
        let touched = self.entries.lock().touched.len();
        for _ in 0..touched {
            let next = self.next_touched();
            if let Some((engine, queue)) = next {
                engine.shard(queue).lock().touched = false;
            }
        }
    }

    /// Takes a queue from the list; `None`: its runtime has ended.
    fn next_touched(&self) -> Option<(Arc<Engine>, usize)> {
        let mut entries = self.entries.lock();
        let number = entries.touched.pop_front()?;
        let member = &entries.members[place_of(&entries.members, number)?];
        Some((member.engine.upgrade()?, member.queue(number)))
    }

    /// The wall clock has been set: aims all wall timers again.
    pub(crate) fn follow_wall(&self) {
        self.engines().iter().for_each(|engine| engine.walls.follow(engine));
    }

    /// Runs all due callbacks, ordered by due point and arming. Returns their number.
    pub(crate) fn run_due(&self) -> u64 {
        let mut swept = Vec::new();
        while let Some((_, engine, queue)) = self.find(self.virtual_time.now(), true) {
            engine.enter_by_hand();
            engine.sweep_by_hand(queue, &mut swept);
            self.put(&engine, swept.drain(..));
            engine.leave_by_hand();
        }
        let (mut run, mut scope) = (0, None::<(*const Engine, Scope)>);
        loop {
            let next = {
                let mut due = self.due.lock();
                let next = due.pop();
                // With the lock held: a shutdown finds it in the list, or waits for it.
                next.iter().for_each(|due| due.engine.enter_by_hand());
                next
            };
            let Some(Due { engine, tick, .. }) = next else {
                self.due.lock().shrink_to(KEPT); // an instant may have many due timers
                return run;
            };
            // A callback that names no runtime uses its own, which the scope keeps alive.
            let of = Arc::as_ptr(&engine);
            if scope.as_ref().is_none_or(|&(before, _)| before != of) {
                drop(scope.take());
                scope = Some((of, Scope::enter(Owner::of(&engine).core())));
            }
            // A further tick of the same timer takes its place in the order; the callback may wait,
            // and it runs meanwhile.
            let number = self.begun.load(Relaxed) + 1;
            self.begun.store(number, Relaxed);
            let outer = self.running.swap(number, Relaxed);
            run += u64::from(engine.run_by_hand(tick, |deferred| self.put(&engine, [deferred])));
            engine.leave_by_hand();
            self.running.store(outer, Relaxed);
        }
    }

    /// The running callback is about to move the end of the advance: see [`Extensions`]. Caller:
    /// drives the clock.
    ///
    /// # Panics
    /// When it may not.
    pub(crate) fn extend(&self, mut driver: MutexGuard<'_, Driver>, to: u64) {
        let now = self.virtual_time.now();
        let left = driver.target.saturating_sub(now);
        if to <= driver.target || driver.extensions.may_extend(self.running.load(Relaxed), left) {
            driver.target = to;
            return;
        }
        driver.target = driver.asked.max(now);
        drop(driver);
        panic!(
            "{MOST_EXTENSIONS} callbacks in a row have each moved the end of the advance of a manual clock: it has no end"
        );
    }

    /// Gives swept ticks and wakers their place among those that are about to run.
    fn put(&self, engine: &Arc<Engine>, swept: impl IntoIterator<Item = InOrder>) {
        let next = self.virtual_time.armed();
        let mut due = self.due.lock();
        if engine.is_closed() {
            drop(due); // a shutdown looks into the list once
            return swept.into_iter().for_each(|tick| tick.expired.discard(engine));
        }
        due.extend(swept.into_iter().map(|due| Due::new(engine, due, next)));
    }

    /// The earliest due point of all queues, exactly, on the clock which stands still in suspend;
    /// [`NEVER`]: no timer comes due.
    pub(crate) fn earliest_due(&self) -> u64 {
        while let Some((at, engine, queue)) = self.find(NEVER, false) {
            // `earliest_due_of` moves the entry of the queue, if too early.
            if engine.clock.on_monotonic(engine.earliest_due_of(queue)) <= at {
                return at;
            }
        }
        NEVER
    }

    /// The address that identifies the driving of the clock, for [`super::inside`].
    pub(crate) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }
}

/// A claimed tick or a waker, ordered by instant and arming. (The order is read once: a change by
/// another thread may alter the arming number.)
pub(crate) struct Due {
    order: Reverse<(u64, u64)>,
    engine: Arc<Engine>,
    tick: InOrder,
}

impl Due {
    /// `next`: the arming number to be given next.
    fn new(engine: &Arc<Engine>, due: InOrder, next: u64) -> Self {
        let number = whole_number(due.number(), next);
        let order = Reverse((engine.clock.on_monotonic(due.scheduled), number));
        Self { order, engine: Arc::clone(engine), tick: due }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use crate::runtime::{ManualClock, Runtime, RuntimeClock};
    use crate::timer::Timer;

    const SECOND: Duration = Duration::from_secs(1);

    /// A step does not even lock the queues of idle runtimes: a simulation may have a runtime for
    /// each of its machines.
    #[test]
    fn s53_a_step_of_the_clock_has_nothing_to_do_with_queues_that_are_idle() {
        let clock = ManualClock::new();
        let start = |queues| Runtime::builder().manual_clock(&clock).queues(queues).start().expect("nothing to refuse");
        let (busy, idle, empty) = (start(2), start(3), start(1));
        let _timers: Vec<_> = (0..3).map(|_| Timer::on(&idle, 3600 * SECOND, SECOND, |_| {})).collect();
        let ticks: Vec<_> = (0..2).map(|_| Timer::on(&busy, SECOND, SECOND, |_| {})).collect();
        // After timers have been armed in a queue, the driver takes its lock once: see
        // `wait_for_arming`.
        assert_eq!(clock.advance(Duration::ZERO), 0);
        let locked: Vec<_> =
            [&idle, &empty].iter().flat_map(|runtime| runtime.engine().shards().map(|shard| shard.lock())).collect();
        let (send, receive) = mpsc::channel();
        let other = clock.clone();
        let driver = std::thread::spawn(move || {
            let fired = other.advance(10 * SECOND);
            let due = other.next_due().map(|due| due - other.now());
            other.block_on(async { ticks[0].change(SECOND, SECOND) });
            send.send((fired, due)).expect("the test listens");
            ticks
        });
        assert_eq!(receive.recv_timeout(60 * SECOND), Ok((20, Some(SECOND))));
        drop(locked);
        let _ticks = driver.join().expect("no panic");
        assert_eq!(clock.advance(3590 * SECOND), 2 * 3590 + 3);
    }

    #[test]
    fn a_queue_has_one_entry_and_none_when_its_runtime_has_ended() {
        let clock = ManualClock::new();
        let entries = || {
            let entries = clock.agenda().entries.lock();
            (entries.members.len(), entries.order[0].len() - 1, entries.order[1].len() - 1)
        };
        let runtime = Runtime::builder().manual_clock(&clock).queues(1).start().expect("nothing to refuse");
        let builder = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot);
        let boot = builder.queues(1).start().expect("nothing to refuse");
        assert_eq!(entries(), (2, 0, 0));
        // Each is the earliest of its queue.
        let timers: Vec<_> = (0..100).rev().map(|i| Timer::on(&runtime, SECOND + i * SECOND, SECOND, |_| {})).collect();
        let on_boot = Timer::on(&boot, SECOND, SECOND, |_| {});
        assert_eq!((entries(), clock.next_due().map(|at| at.as_duration())), ((2, 1, 1), Some(SECOND)));
        clock.suspend(SECOND / 2);
        assert_eq!(clock.next_due().map(|at| at.as_duration()), Some(SECOND / 2), "earlier, on the boot clock");
        // A disposed timer leaves the entry of its queue behind until `next_due` asks, or the clock
        // passes the entry.
        drop((timers, on_boot));
        assert_eq!((entries(), clock.next_due(), entries()), ((2, 1, 1), None, (2, 0, 0)));
        let timers = [&runtime, &boot].map(|runtime| Timer::on(runtime, SECOND, SECOND, |_| {}));
        runtime.shutdown(Duration::ZERO).expect("no threads");
        assert_eq!(entries(), (1, 0, 1));
        drop(boot);
        assert_eq!((entries(), clock.advance(SECOND)), ((0, 0, 0), 0));
        drop(timers);
    }

    /// A simulation may start and end runtimes without number and never move the clock.
    #[test]
    fn what_was_armed_on_runtimes_that_have_ended_is_forgotten() {
        let clock = ManualClock::new();
        for _ in 0..1_000 {
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            Timer::on(&runtime, SECOND, SECOND, |_| {}).detach();
        }
        let touched = clock.agenda().entries.lock().touched.len();
        assert!(touched <= 3, "{touched}");
    }
}
