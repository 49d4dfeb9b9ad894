//! Shared alarms: shards whose timers have leeway, and busy shards, share a wake-up, since their
//! alarms lie on the same grid.
//!
//! Ground rules. A shard that has been swept, with its next alarm on a *shared point* (a multiple
//! of one of [`GRIDS_NS`]), looks whether another shard, among the [`SHARE`] with which it shares,
//! has set its alarm to this point. If so, the shard *relies* on that alarm: it enters itself here
//! and sets its own alarm later, by [`FALLBACK_NS`]. The poller that takes an alarm of these shards
//! sweeps all relying ones whose point has come. So a grid point costs the process one wake-up and
//! not one for each shard.
//!
//! The fallback alone keeps I7: whatever is read here too old or written here too late costs a
//! wake-up, or at most [`FALLBACK_NS`] of lateness, and loses no timer. So all accesses are
//! relaxed. [`Share`] is under the lock of its shard, [`SharedAlarms`] under no lock. Other
//! deadlines lie on a shared point by chance only.

use super::coalesce::Coalescer;
use crate::sync::{AtomicU64, Ordering};
use crate::time::NEVER;

/// Points are shared that are multiples of one of these: grids of leeway from 500 us on (for a
/// finer grid the fallback would be late), and the grid of busy shards.
const GRIDS_NS: [u64; 2] = [500_000, Coalescer::LONGEST_NS];
/// All such points are multiples of this.
const POINT_NS: u64 = 100_000;
/// A relying shard sets its own alarm later than its point by this.
pub(super) const FALLBACK_NS: u64 = Coalescer::LONGEST_NS;
/// The shards that may share an alarm. One poller sweeps all shards of a point in turn, so more
/// shards would make the last of them late.
const SHARE: usize = 8;
/// Holders are kept by point, modulo this: 6.4 ms. (Fewer in a model, where each word takes time.)
const HOLDERS: usize = if cfg!(all(test, timerqueue_loom)) { 2 } else { 64 };

/// The alarms that some shards share.
pub(crate) struct SharedAlarms {
    /// The first of the shards.
    first: usize,
    /// The shard that has set its alarm to a point, by point: see [`Self::word`]. Empty with a
    /// single shard.
    holders: Box<[AtomicU64]>,
    /// A bit for each shard that may rely on an alarm.
    relying: AtomicU64,
    /// By shard: the point at which the shard relies on another's alarm; [`NEVER`]: at none.
    points: [AtomicU64; SHARE],
}

/// The part of a shard in the shared alarms.
pub(crate) struct Share {
    /// The point at which the shard relies on another's alarm; [`NEVER`]: at none.
    relies_on: u64,
    /// The last point for which the shard is entered as the holder of the alarm.
    holds: u64,
}

impl Share {
    pub(super) const fn new() -> Self {
        Self { relies_on: NEVER, holds: 0 }
    }

    /// Another shard's alarm is set to this instant, which is earlier than the own alarm (and so
    /// not [`NEVER`]).
    #[inline]
    pub(super) fn relies_on(&self, at: u64) -> bool {
        self.relies_on == at
    }

    /// The alarm is set to a shared point, or relies on one.
    pub(super) fn is_shared(&self) -> bool {
        self.holds != 0 || self.relies_on != NEVER
    }

    /// The own alarm may be late by [`FALLBACK_NS`].
    #[cfg(any(all(test, not(timerqueue_loom)), timerqueue_check))]
    pub(super) fn relies(&self) -> bool {
        self.relies_on != NEVER
    }

    /// The shard's next deadline is `at`: returns the instant to which the shard sets its alarm.
    #[inline]
    pub(super) fn aim(&mut self, alarms: &SharedAlarms, shard: usize, at: u64, now: u64) -> u64 {
        let is_alone = at % POINT_NS != 0 && self.holds == 0 && self.relies_on == NEVER;
        if is_alone { at } else { self.aim_shared(alarms, shard, at, now) }
    }

    #[inline(never)]
    fn aim_shared(&mut self, alarms: &SharedAlarms, shard: usize, at: u64, now: u64) -> u64 {
        if self.holds > now && self.holds != at {
            alarms.release(shard, self.holds);
        }
        self.holds = 0;
        let on_point = GRIDS_NS.iter().any(|grid| at % grid == 0) && !alarms.holders.is_empty();
        let relies = on_point && alarms.is_held(shard, at, now);
        let entered = self.relies_on != NEVER;
        if relies {
            alarms.enter(shard, at, entered);
            self.relies_on = at;
            return at.saturating_add(FALLBACK_NS);
        }
        if entered {
            alarms.leave(shard);
            self.relies_on = NEVER;
        }
        if on_point {
            self.holds = at;
        }
        at
    }
}

impl SharedAlarms {
    /// The shared alarms of so many shards, by [`Self::of`].
    pub(super) fn all(shards: usize) -> Box<[Self]> {
        let firsts = (0..shards).step_by(SHARE);
        firsts.map(|first| Self { first, ..Self::new((shards - first).min(SHARE)) }).collect()
    }

    /// The alarms that this shard shares with others. `None`: on a manual clock.
    pub(super) fn of(all: &[Self], shard: usize) -> Option<&Self> {
        all.get(shard / SHARE)
    }

    fn new(shards: usize) -> Self {
        let holders = if shards > 1 { HOLDERS } else { 0 };
        Self {
            first: 0,
            holders: (0..holders).map(|_| AtomicU64::new(0)).collect(),
            relying: AtomicU64::new(0),
            points: std::array::from_fn(|_| AtomicU64::new(NEVER)),
        }
    }

    /// Point and shard in a word. (Points count in units, so 46 bits hold them, and there are fewer
    /// shards than 2^16.)
    fn word(shard: usize, at: u64) -> u64 {
        (at / POINT_NS) << 16 | shard as u64 & 0xffff
    }

    fn holder(&self, at: u64) -> &AtomicU64 {
        &self.holders[(at / POINT_NS) as usize % HOLDERS]
    }

    /// Whether another shard has set its alarm to this point. If none has, the caller becomes the
    /// holder, and sets its own.
    fn is_held(&self, shard: usize, at: u64, now: u64) -> bool {
        let (own, holder) = (Self::word(shard, at), self.holder(at));
        let mut held = holder.load(Ordering::Relaxed);
        loop {
            let point = (held >> 16) * POINT_NS;
            if held == own || point > now && point < at {
                return false; // the place of the word is taken by an earlier point
            }
            if point == at {
                return true;
            }
            match holder.compare_exchange(held, own, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return false,
                Err(other) => held = other,
            }
        }
    }

    /// The holder sets its alarm to another instant.
    #[cold]
    fn release(&self, shard: usize, at: u64) {
        let _ = self.holder(at).compare_exchange(Self::word(shard, at), 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// `entered`: the shard's bit is set already.
    fn enter(&self, shard: usize, at: u64, entered: bool) {
        let shard = shard - self.first;
        self.points[shard].store(at, Ordering::Relaxed);
        if !entered {
            self.relying.fetch_or(1 << shard, Ordering::Relaxed);
        }
    }

    fn leave(&self, shard: usize) {
        let shard = shard - self.first;
        self.points[shard].store(NEVER, Ordering::Relaxed);
        self.relying.fetch_and(!(1 << shard), Ordering::Relaxed);
    }

    /// A poller has taken an alarm: calls `sweep` for each relying shard whose point has come.
    /// Called with no lock held. A shard is given to one poller; its sweep enters the shard anew,
    /// or takes it out.
    pub(super) fn take_due(&self, now: impl Fn() -> u64, mut sweep: impl FnMut(usize)) {
        let mut bits = self.relying.load(Ordering::Relaxed);
        if bits == 0 {
            return;
        }
        // Read once: a shard that is entered anew meanwhile has a later point.
        let now = now();
        while bits != 0 {
            let shard = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let at = self.points[shard].load(Ordering::Relaxed);
            let due = at <= now
                && self.points[shard].compare_exchange(at, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if due {
                sweep(self.first + shard);
            }
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::runtime::Runtime;
    use crate::sys::topology::{CoreId, Cores, confine};
    use crate::timer::{Tick, Timer};

    const MS: u64 = 1_000_000;

    fn taken(alarms: &SharedAlarms, now: u64) -> Vec<usize> {
        let mut shards = Vec::new();
        alarms.take_due(|| now, |shard| shards.push(shard));
        shards
    }

    const MS_LONG: Duration = Duration::from_millis(1);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Ticks of 1 ms with leeway in each of two queues. `None`: the machine has a single core, or
    /// threads cannot be pinned here.
    fn two_queues(tick: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Option<(Runtime, Vec<Timer>)> {
        let cores = Cores::of_process().ids;
        let runtime = Runtime::builder().start().expect("a runtime starts");
        let tick = Arc::new(tick);
        let make = |&core: &CoreId| {
            let (runtime, tick) = (runtime.clone(), Arc::clone(&tick));
            let maker = thread::spawn(move || {
                confine(Some(core), None);
                let builder = runtime.timer_builder().due(5 * MS_LONG).period(MS_LONG).leeway(MS_LONG);
                (runtime.engine().current_queue(), builder.start(move |due| tick(due)))
            });
            maker.join().expect("no panic")
        };
        let (queues, timers): (Vec<_>, Vec<_>) = cores.iter().take(2).map(make).unzip();
        (queues == [Some(0), Some(1)]).then_some((runtime, timers))
    }

    /// Looks again and again, after `before` each time, until so many of the two shards rely on an
    /// alarm at once.
    fn until_rely(runtime: &Runtime, shards: usize, mut before: impl FnMut()) {
        let rely = || runtime.engine().shards().take(2).filter(|shard| shard.lock().share.relies()).count();
        let found = (0..20_000).any(|_| {
            before();
            thread::sleep(MS_LONG / 2);
            rely() >= shards
        });
        assert!(found, "no moment at which {shards} rely");
    }

    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s58_a_queue_with_leeway_relies_on_the_alarm_of_another() {
        let (sender, ticks) = mpsc::channel();
        let Some((runtime, timers)) = two_queues(move |_| _ = sender.send(())) else { return };
        until_rely(&runtime, 1, || {});
        (0..100).for_each(|_| ticks.recv_timeout(PATIENCE).expect("all ticks come"));
        drop(timers);
    }

    /// Both shards rely on alarms that no shard has set: their own alarms follow, later.
    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s27_a_shared_alarm_that_does_not_come_loses_no_timer() {
        let (sender, ticks) = mpsc::channel();
        let Some((runtime, timers)) = two_queues(move |_| _ = sender.send(())) else { return };
        let engine = runtime.engine();
        // A holder that is no shard, of each point that comes next.
        let hold = || {
            let next = engine.clock().now() / POINT_NS + 1;
            for point in next..next + HOLDERS as u64 {
                let holder = engine.shared_alarms(0).expect("real time").holder(point * POINT_NS);
                holder.store(SharedAlarms::word(0xffff, point * POINT_NS), Ordering::Relaxed);
            }
        };
        until_rely(&runtime, 2, hold);
        ticks.try_iter().for_each(drop);
        for _ in 0..100 {
            hold();
            ticks.recv_timeout(PATIENCE).expect("all ticks come");
        }
        drop(timers);
    }

    #[test]
    fn one_shard_sets_its_alarm_and_the_others_rely_on_it() {
        let alarms = SharedAlarms::new(SHARE);
        let mut shares: Vec<_> = (0..SHARE).map(|_| Share::new()).collect();
        for point in [5 * MS, 6 * MS, 7 * MS + GRIDS_NS[0]] {
            let now = point - MS / 2;
            let aims: Vec<u64> =
                shares.iter_mut().enumerate().map(|(i, share)| share.aim(&alarms, i, point, now)).collect();
            assert_eq!(aims[0], point);
            assert!(aims[1..].iter().all(|&aim| aim == point + FALLBACK_NS));
            assert!(!shares[0].relies_on(point) && shares[1..].iter().all(|share| share.relies_on(point)));
            assert_eq!(taken(&alarms, point - 1), [], "not before the point");
            assert_eq!(taken(&alarms, point), (1..SHARE).collect::<Vec<_>>());
            assert_eq!(taken(&alarms, point + MS), [], "each shard is given to one poller");
        }
    }

    #[test]
    fn shards_share_alarms_by_eight() {
        let all = SharedAlarms::all(19);
        assert_eq!(all.iter().map(|alarms| alarms.first).collect::<Vec<_>>(), [0, 8, 16]);
        let mut shares: Vec<_> = (0..19).map(|_| Share::new()).collect();
        let aims = shares.iter_mut().enumerate().map(|(i, share)| share.aim(&all[i / SHARE], i, 5 * MS, 0));
        let late: Vec<_> = aims.enumerate().filter(|&(_, aim)| aim > 5 * MS).map(|(shard, _)| shard).collect();
        assert_eq!(late, [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18]);
        assert_eq!(taken(&all[1], 5 * MS), [9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(taken(&all[2], 5 * MS), [17, 18]);
        let [mut last, mut other] = [const { Share::new() }; 2];
        assert_eq!(last.aim(&all[2], 18, 6 * MS, 5 * MS), 6 * MS);
        assert_eq!(other.aim(&all[2], 16, 6 * MS, 5 * MS), 6 * MS + FALLBACK_NS);
        assert_eq!(other.aim(&all[2], 16, NEVER, 5 * MS), NEVER);
        assert_eq!(taken(&all[2], 9 * MS), []);
        assert!((0..19).all(|i| SharedAlarms::of(&all, i).is_some_and(|alarms| (0..8).contains(&(i - alarms.first)))));
        assert!(SharedAlarms::of(&SharedAlarms::all(0), 0).is_none(), "a manual clock has no alarms");
    }

    #[test]
    fn a_deadline_off_the_points_is_not_shared_and_ends_what_was() {
        let alarms = SharedAlarms::new(2);
        let (mut one, mut other) = (Share::new(), Share::new());
        assert_eq!(one.aim(&alarms, 0, 5 * MS, 0), 5 * MS);
        assert_eq!(other.aim(&alarms, 1, 5 * MS, 0), 5 * MS + FALLBACK_NS);
        for at in [5 * MS - 1, NEVER] {
            assert_eq!(other.aim(&alarms, 1, at, 0), at);
            assert!(!other.relies_on(5 * MS - 1) && !other.relies_on(5 * MS));
            assert_eq!(taken(&alarms, 9 * MS), []);
        }
        assert_eq!(alarms.relying.load(Ordering::Relaxed), 0);
        assert_eq!(SharedAlarms::new(1).holders.len(), 0, "a single shard shares with none");
        assert_eq!(Share::new().aim(&SharedAlarms::new(1), 0, MS, 0), MS);
    }

    #[test]
    fn a_holder_that_sets_its_alarm_to_another_instant_is_none_any_more() {
        let alarms = SharedAlarms::new(3);
        let [mut one, mut other, mut third] = [const { Share::new() }; 3];
        assert_eq!(one.aim(&alarms, 0, 5 * MS, MS), 5 * MS);
        assert_eq!(one.aim(&alarms, 0, 5 * MS, 2 * MS), 5 * MS, "again, after an earlier alarm: still the holder");
        assert_eq!(one.aim(&alarms, 0, 8 * MS, 3 * MS), 8 * MS);
        assert_eq!(other.aim(&alarms, 1, 5 * MS, 3 * MS), 5 * MS, "the next becomes the holder");
        assert_eq!(third.aim(&alarms, 2, 8 * MS, 3 * MS), 8 * MS + FALLBACK_NS);
    }

    #[test]
    fn the_earlier_of_two_points_with_one_place_is_shared() {
        let alarms = SharedAlarms::new(3);
        let [mut one, mut other, mut third] = [const { Share::new() }; 3];
        let (near, far) = (5 * MS, 5 * MS + HOLDERS as u64 * POINT_NS);
        assert_eq!(one.aim(&alarms, 0, far, 0), far);
        assert_eq!(other.aim(&alarms, 1, near, 0), near);
        assert_eq!(third.aim(&alarms, 2, far, 0), far, "not known any more");
        assert_eq!(third.aim(&alarms, 2, near, 0), near + FALLBACK_NS);
        // When the near point has passed, its place is free.
        assert_eq!(third.aim(&alarms, 2, far, near), far);
        assert_eq!(other.aim(&alarms, 1, far, near), far + FALLBACK_NS);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/relying_vs_taken.rs"]
mod loom_models;
