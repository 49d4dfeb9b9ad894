//! The registry of wall timers: entries aimed at a time of the wall clock, which follow the wall
//! clock when it is set.
//!
//! Ground rules. A wall timer is an exclusive timer, aimed at the instant at which the wall clock
//! will show the timer's time unless the clock is set. If the wall clock does not show the time yet
//! when the timer fires, the timer is aimed again. When the wall clock has been set, all waiting
//! timers are aimed again. Where the system does not report this, a timer of the runtime compares
//! the clocks every [`RECHECK`] while wall timers wait.
//!
//! The waiting timers of a shard are in a list ([`WallList`]) under the lock of the shard, and each
//! operation is a single lock section. A timer waits exactly while it is in the list: `change` puts
//! the timer there, disposing takes it out, and the callback runs only if its own tick has taken
//! the timer out. State shared by cores is written only when the wall clock was set.
//!
//! To follow a step is to walk over each list, and to aim each timer in it: a [`PAGE`] of timers in
//! a lock section, and [`SECTIONS_AT_ONCE`] sections in a job of the pool. With the lock held, a
//! thread first reads the clocks, then aims the timer. So a timer that was aimed before the walk of
//! its list began is in the list, and the walk reaches it; a timer that was aimed later was aimed
//! by a clock that had been set. A further step begins the walks again. A leaf lock with one list
//! for the runtime would be written by all cores, and a walk would have to take two locks for each
//! timer. `loom-tests/wall_step_vs_change.rs` is the model.

#![allow(unsafe_code)] // the callback behind the header; the contract of the queue

use std::mem::{needs_drop, offset_of};
use std::ptr::NonNull;
use std::time::{Duration, SystemTime};

use super::Engine;
use super::entry::{self, Entry, EntryPayload, EntryRef, Exclusive, Firing, OwnedEntry, run_in};
use super::observe::{Context, Settings};
use super::shard::{Changed, Shard, ShardState, end_section};
use crate::alarm::Clock;
use crate::queue::{Kind, Schedule};
use crate::slab::{More, NONE, PAGE, Slab};
use crate::sync::unmodelled::{self, AtomicU32};
use crate::sync::{Arc, AtomicBool, OnceLock, Ordering};
use crate::time::instant;

/// The period at which the runtime compares the clocks, where the system does not report steps of
/// the wall clock.
const RECHECK: Duration = Duration::from_secs(5);
/// The gain of the wall clock on the runtime's clock beyond which all wall timers are aimed again,
/// where steps are not reported.
const DRIFT: Duration = Duration::from_millis(1);
/// Lock sections in a job of the pool that follows a step: some 100 us.
const SECTIONS_AT_ONCE: usize = 20;

/// The shared state of a runtime's wall timers.
pub(crate) struct WallRegistry {
    /// The wall clock has been set, and the walks have not begun.
    stepped: AtomicBool,
    /// The backend reports steps of the wall clock. (A manual clock does so itself.)
    told: AtomicBool,
    /// [`Own::look`] is scheduled, or about to be.
    looks: AtomicBool,
    /// Made with the first wall timer of a runtime that is not on a manual clock.
    own: OnceLock<Own>,
    /// [`Self::end`], once a wall timer is made: a program without one is linked without that.
    ends: unmodelled::OnceLock<fn(&Engine, bool)>,
}

/// The runtime's own timers.
struct Own {
    /// Follows a step of the wall clock. Always due at once.
    follow: OwnedEntry,
    /// Compares the clocks, where the system does not report steps.
    look: OwnedEntry,
}

impl Own {
    fn new(engine: &Engine) -> Self {
        let idle = |job: fn(&Engine)| {
            let job = Exclusive::<_, true>(move |firing: &Firing| {
                let engine = firing.entry.shard().lock().engine().map(Arc::clone);
                if let Some(engine) = engine {
                    job(&engine);
                }
            });
            OwnedEntry::start_own(engine, job)
        };
        Self { follow: idle(|engine| engine.walls.follow_some(engine)), look: idle(|engine| engine.walls.look(engine)) }
    }
}

impl WallRegistry {
    pub(crate) fn new(manual: bool) -> Self {
        Self {
            stepped: AtomicBool::new(false),
            told: AtomicBool::new(manual),
            looks: AtomicBool::new(false),
            own: OnceLock::new(),
            ends: unmodelled::OnceLock::new(),
        }
    }

    /// Called before a wall timer is made. Each call asks the system for reports of steps, until
    /// the system agrees.
    fn prepare(&self, engine: &Engine) {
        self.ends.get_or_init(|| Self::end);
        if let Some(native) = &engine.native {
            self.own.get_or_init(|| Own::new(engine));
            if !self.told.load(Ordering::Acquire) && native.pool.alarms.follow_wall() {
                self.told.store(true, Ordering::Release);
            }
        }
    }

    /// The runtime's own timer that may be in a queue.
    pub(crate) fn own_timer(&self) -> Option<&EntryRef> {
        self.own.get().map(|own| &*own.look)
    }

    /// The wall clock has been set: has the pool aim all waiting timers.
    pub(crate) fn step(&self) {
        // Release: the job that finds the flag set reads the clocks after the step.
        self.stepped.store(true, Ordering::Release);
        self.follow_soon();
    }

    fn follow_soon(&self) {
        if let Some(own) = self.own.get() {
            let _ = entry::change(&own.follow, Duration::ZERO, Duration::MAX);
        }
    }

    /// As [`step`](Self::step), on the calling thread. On return all timers are aimed by the wall
    /// clock at the call, or later.
    pub(crate) fn follow(&self, engine: &Engine) {
        for shard in engine.shards() {
            shard.lock().walls.begin();
            while self.follow_section(engine, shard) {}
        }
    }

    /// A job of the pool: continues to follow the last step, and queues a further job if timers are
    /// left.
    fn follow_some(&self, engine: &Engine) {
        if self.stepped.swap(false, Ordering::Acquire) {
            engine.shards().for_each(|shard| shard.lock().walls.begin());
        }
        let mut sections = 0;
        for shard in engine.shards() {
            while self.follow_section(engine, shard) {
                sections += 1;
                if sections == SECTIONS_AT_ONCE {
                    return self.follow_soon();
                }
            }
        }
    }

    /// Aims the next page of timers of the walk of a list. True: pages are left.
    fn follow_section(&self, engine: &Engine, shard: &Shard) -> bool {
        let (mut section, mut due) = (Vec::with_capacity(PAGE), false);
        let more = {
            let mut inner = shard.lock();
            if !inner.is_open() {
                return false;
            }
            inner.touch(shard);
            let aim = Aim::new(self, &shard.clock);
            inner.walls.next_page(&aim, &mut section);
            for &(node, at) in &section {
                // SAFETY: in the list, so alive and of this shard, whose lock is held. A disposed
                // timer is refused; the disposing thread will take the timer out.
                let left = unsafe { inner.aim(shard, node, aim.due(at), aim.now, node.as_ref().state.number()) };
                if let Some(tick) = left.0 {
                    engine.put(tick, &inner);
                    due = true;
                }
            }
            inner.walls.next.is_some()
        };
        if due {
            engine.notify();
        }
        more
    }

    /// Compares the clocks. If the wall clock has gained on the runtime's clock since some timer
    /// was aimed, all timers are aimed again. If it has lost, timers fire too early, and are aimed
    /// again then.
    fn look(&self, engine: &Engine) {
        // Cleared before the queues are checked: a timer that begins to wait after the check finds
        // `looks` cleared.
        self.looks.store(false, Ordering::Relaxed);
        // Read before the clocks: a step after this reading is reported, and the clocks show a step
        // before.
        let aim = Aim::new(self, &engine.clock);
        let (mut waiting, mut behind) = (false, false);
        for shard in engine.shards() {
            let inner = shard.lock();
            waiting |= !inner.walls.waiting.is_empty();
            behind |= inner.walls.is_behind(aim.offset(), DRIFT);
        }
        if behind {
            self.step();
        }
        if waiting && !aim.told {
            self.look_later();
        }
    }

    fn look_later(&self) {
        if !self.looks.swap(true, Ordering::Relaxed) {
            if let Some(own) = self.own.get() {
                let _ = entry::change(&own.look, RECHECK, Duration::MAX);
            }
        }
    }

    /// The runtime ends, and its shards are closed: disposes all waiting timers. `keeps`: but those
    /// of the program, which are in the queues too, or have a job there.
    pub(crate) fn close(&self, engine: &Engine, keeps: bool) {
        if let Some(end) = self.ends.get() {
            end(engine, keeps);
        }
    }

    fn end(engine: &Engine, keeps: bool) {
        if let Some(own) = engine.walls.own.get() {
            entry::dispose(&own.follow);
            entry::dispose(&own.look);
        }
        if keeps {
            return;
        }
        for shard in engine.shards() {
            // No timer is put into the list of a closed shard, so no index is taken for another's.
            let waiting = std::mem::take(&mut shard.lock().walls.waiting);
            waiting.take_each(&mut |timer| entry::dispose(&timer.entry));
        }
    }
}

/// The readings of both clocks by which timers are aimed.
struct Aim {
    /// Steps of the wall clock are reported.
    told: bool,
    now: u64,
    wall: SystemTime,
}

impl Aim {
    /// In this order: a step after reading the clocks is reported if `told` says so; and if the
    /// thread is preempted between the clocks, timers are aimed too early, and aimed again when
    /// they fire.
    fn new(walls: &WallRegistry, clock: &Clock) -> Self {
        let told = walls.told.load(Ordering::Acquire);
        let now = clock.now();
        Self { told, now, wall: clock.wall() }
    }

    /// The instant at which the wall clock will show `at`, unless the clock is set.
    fn due(&self, at: SystemTime) -> u64 {
        instant(self.now, at.duration_since(self.wall).unwrap_or(Duration::ZERO))
    }

    /// By how many nanoseconds the wall clock is ahead. A preempted reading is too high, and never
    /// too low.
    fn offset(&self) -> i128 {
        let since_epoch = match self.wall.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => after.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        since_epoch - i128::from(self.now)
    }
}

/// Called under the lock when a timer waits. Returns the engine if a look at the clocks is to be
/// scheduled.
fn wants_look(inner: &ShardState, aim: &Aim) -> Option<Arc<Engine>> {
    let engine = inner.engine()?;
    let set = aim.told || engine.walls.looks.load(Ordering::Relaxed);
    (!set).then(|| Arc::clone(engine))
}

/// The timer waits for `at` from now on.
pub(crate) fn change_wall(entry: &EntryRef, at: SystemTime) -> Changed {
    let shard = entry.shard();
    let mut inner = shard.lock();
    inner.touch(shard);
    let Some(engine) = inner.engine() else { return Changed::Ended };
    let aim = Aim::new(&engine.walls, &shard.clock);
    // SAFETY: alive by the caller's reference, and of this shard, whose lock is held.
    let (rescheduled, left) = unsafe {
        let schedule = Schedule::once(aim.due(at));
        inner.reschedule(shard, entry.as_ptr(), schedule, aim.now, ShardState::number(shard))
    };
    if rescheduled == Changed::Ended {
        return rescheduled;
    }
    let waited = inner.walls.aimed(entry, at, &aim);
    let look = wants_look(&inner, &aim);
    end_section(inner, left);
    if let Some(engine) = look {
        engine.walls.look_later();
    }
    Changed::waited(waited)
}

/// The timer has fired. If its time has come by the wall clock, takes the timer out of the list and
/// returns the time; else aims the timer again.
fn has_come(firing: &Firing) -> Option<SystemTime> {
    let entry = &firing.entry;
    let shard = entry.shard();
    let mut inner = shard.lock();
    let at = inner.walls.time(entry)?;
    if shard.clock.wall() >= at || firing.missed == Firing::GIVEN_BACK {
        let held = inner.walls.remove(entry);
        drop(inner);
        drop(held);
        return Some(at);
    }
    if !inner.is_open() {
        entry.get().state.defer(); // the end of this callback gives it up
        return None;
    }
    inner.touch(shard);
    let aim = Aim::new(&inner.engine()?.walls, &shard.clock);
    // SAFETY: alive by the job's reference, and of this shard, whose lock is held.
    let left = unsafe { inner.aim(shard, entry.as_ptr(), aim.due(at), aim.now, entry.get().state.number()) };
    inner.walls.aimed(entry, at, &aim);
    end_section(inner, left);
    None
}

// ---------------------------------------------------------------- the list

/// A timer in the list.
pub(super) struct WaitingTimer {
    entry: EntryRef,
    /// The time that the timer waits for.
    at: SystemTime,
}

/// The waiting wall timers of a shard. The payload of each has its index, which the thread with the
/// lock of the shard reads and writes ([`EntryRef::wall_index`]); [`NONE`]: the timer does not
/// wait.
pub(crate) struct WallList {
    /// An operation copies its table of pages at most: 640 kB for a million timers.
    waiting: Slab<WaitingTimer>,
    /// The page at which the walk of the last step goes on; `None`: it has reached all. Timers keep
    /// their places meanwhile, so none is left out.
    next: Option<usize>,
    /// The lowest offset of the wall clock among the readings by which timers were aimed since the
    /// last walk began. Not updated when a timer leaves, so it may be lower than of any timer; nor
    /// where the system reports steps, and no thread compares it.
    lowest: i128,
}

/// A timer of a list with what that has left of a peak, to be dropped after the lock.
type Removed = (Option<WaitingTimer>, Option<Box<More<WaitingTimer>>>);

impl WallList {
    pub(crate) const fn new() -> Self {
        Self { waiting: Slab::new(), next: None, lowest: i128::MAX }
    }

    /// Begins a walk.
    fn begin(&mut self) {
        (self.next, self.lowest) = (Some(0), i128::MAX);
    }

    /// The next page of the walk, whose timers the caller aims by this reading.
    fn next_page(&mut self, aim: &Aim, page: &mut Vec<(NonNull<Entry>, SystemTime)>) {
        let Some(next) = self.next else { return };
        self.note(aim);
        self.next = self.waiting.scan(next, |timer| page.push((timer.entry.as_ptr(), timer.at)));
    }

    /// A timer is aimed by this reading.
    fn note(&mut self, aim: &Aim) {
        if !aim.told {
            self.lowest = self.lowest.min(aim.offset());
        }
    }

    /// Whether some timer may have been aimed when the wall clock was less far ahead than `offset`
    /// by more than `drift`. The timers that a walk has yet to reach do not count.
    fn is_behind(&self, offset: i128, drift: Duration) -> bool {
        !self.waiting.is_empty() && offset.saturating_sub(self.lowest) > drift.as_nanos() as i128
    }

    fn get_mut(&mut self, entry: &EntryRef) -> Option<&mut WaitingTimer> {
        let found = self.waiting.get_mut(entry.wall_index()?.load(Ordering::Relaxed))?;
        debug_assert!(found.entry.as_ptr() == entry.as_ptr(), "a timer in a list is where its index says");
        Some(found)
    }

    /// The time for which a timer waits; `None`: the timer does not wait.
    pub(super) fn time(&mut self, entry: &EntryRef) -> Option<SystemTime> {
        self.get_mut(entry).map(|found| found.at)
    }

    /// The timer has been aimed at `at`, by this reading of the clocks, with the lock held. Returns
    /// whether the timer waited before.
    fn aimed(&mut self, entry: &EntryRef, at: SystemTime, aim: &Aim) -> bool {
        if self.waiting.is_empty() {
            self.lowest = i128::MAX;
        }
        self.note(aim);
        if let Some(found) = self.get_mut(entry) {
            found.at = at;
            return true;
        }
        if let Some(index) = entry.wall_index() {
            index.store(self.waiting.insert(WaitingTimer { entry: entry.clone(), at }), Ordering::Relaxed);
        }
        false
    }

    /// Takes a timer out, with the list's reference, to be dropped after the lock has been
    /// released.
    #[must_use]
    pub(super) fn remove(&mut self, entry: &EntryRef) -> Option<Removed> {
        let index = entry.wall_index()?;
        let removed = self.waiting.take_out(index.load(Ordering::Relaxed));
        index.store(NONE, Ordering::Relaxed);
        Some(removed)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

// ---------------------------------------------------------------- timers

/// The callback of a wall timer, which is told the timer and the time that has come.
pub(crate) trait WallCallback: FnMut(&EntryRef, SystemTime) + Send + 'static {}

impl<F: FnMut(&EntryRef, SystemTime) + Send + 'static> WallCallback for F {}

/// The payload of a wall timer. `OWN`: of the crate's own, as [`Exclusive`].
struct WallPayload<F, const OWN: bool> {
    /// See [`WallList`].
    index: AtomicU32,
    callback: F,
}

impl<F, const OWN: bool> WallPayload<F, OWN> {
    /// As [`EntryPayload::DROP`].
    unsafe fn drop_callback(this: NonNull<Self>) {
        // SAFETY: called once, after the last callback (I12). The index, which is left alone, may
        // still be in use.
        unsafe { std::ptr::drop_in_place(&raw mut (*this.as_ptr()).callback) }
    }
}

// SAFETY: the callback is `Send`.
unsafe impl<F: WallCallback, const OWN: bool> EntryPayload for WallPayload<F, OWN> {
    const KIND: Kind = Kind::Exclusive;
    const IS_CALLBACK: bool = !OWN;
    const DROP: Option<unsafe fn(NonNull<Self>)> = if needs_drop::<F>() { Some(Self::drop_callback) } else { None };
    const WALL_INDEX_AT: Option<usize> = Some(offset_of!(Self, index));

    unsafe fn call(this: NonNull<Self>, firing: &Firing, context: Option<&Context>) {
        let entry = &firing.entry;
        if let Some(at) = has_come(firing) {
            // SAFETY: alive between `begin` and `end`. An exclusive timer runs one callback at a
            // time, and no thread drops the callback meanwhile (I12).
            let callback = unsafe { &mut (*this.as_ptr()).callback };
            let late = || entry.shard().clock.wall().duration_since(at).ok();
            run_in(context, entry, late, || callback(entry, at));
        }
    }
}

/// Makes and starts a wall timer, in the context of the calling thread. `OWN`: a timer of the
/// crate's own has no context, and its callback runs on the pool also where callbacks are handed
/// over to an executor of the program's.
pub(crate) fn start_wall<F: WallCallback, const OWN: bool>(
    engine: &Arc<Engine>,
    at: SystemTime,
    settings: Settings,
    callback: F,
) -> OwnedEntry {
    let settings = (settings, if OWN { None } else { Context::here(engine) });
    engine.walls.prepare(engine);
    let payload = WallPayload::<F, OWN> { index: AtomicU32::new(NONE), callback };
    let entry = entry::make(engine, settings, payload);
    // SAFETY: just made.
    unsafe { enter_wall(engine, &entry, at) };
    OwnedEntry::of(entry)
}

/// # Safety
/// As [`entry::enter`].
#[inline(never)] // one copy, however many types of callbacks there are
unsafe fn enter_wall(engine: &Engine, entry: &EntryRef, at: SystemTime) {
    let mut look = None;
    // SAFETY: the caller says so.
    unsafe {
        entry::enter(entry, |inner, shard| {
            inner.touch(shard);
            let aim = Aim::new(&engine.walls, &shard.clock);
            inner.walls.aimed(entry, at, &aim);
            look = wants_look(inner, &aim);
            (Schedule::once(aim.due(at)), aim.now)
        })
    };
    if let Some(engine) = look {
        engine.walls.look_later();
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[path = "wall_tests.rs"]
mod tests;

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/wall_step_vs_change.rs"]
mod loom_models;
