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
//! To follow a step is to walk over each list, and to aim each timer in it: [`SECTION`] timers in a
//! lock section, and [`SECTIONS_AT_ONCE`] sections in a job of the pool. With the lock held, a
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
use crate::sync::unmodelled::{self, AtomicUsize};
use crate::sync::{Arc, AtomicBool, OnceLock, Ordering};
use crate::time::instant;

/// The period at which the runtime compares the clocks, where the system does not report steps of
/// the wall clock.
const RECHECK: Duration = Duration::from_secs(5);
/// The gain of the wall clock on the runtime's clock beyond which all wall timers are aimed again,
/// where steps are not reported.
const DRIFT: Duration = Duration::from_millis(1);
/// Timers aimed in a lock section that follows a step.
pub(super) const SECTION: usize = 48;
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
    pub(crate) fn follow(&self, engine: &Engine, section: usize) {
        for shard in engine.shards() {
            shard.lock().walls.begin();
            while self.follow_section(engine, shard, section) {}
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
            while self.follow_section(engine, shard, SECTION) {
                sections += 1;
                if sections == SECTIONS_AT_ONCE {
                    return self.follow_soon();
                }
            }
        }
    }

    /// Aims some timers that the walk of a list has yet to reach. True: timers are left.
    fn follow_section(&self, engine: &Engine, shard: &Shard, section: usize) -> bool {
        let mut due = false;
        let more = {
            let mut inner = shard.lock();
            if !inner.is_open() {
                return false;
            }
            inner.touch(shard);
            let aim = Aim::new(self, &shard.clock);
            for _ in 0..section {
                let Some((node, at)) = inner.walls.next_behind(&aim) else { break };
                // SAFETY: in the list, so alive and of this shard, whose lock is held. A disposed
                // timer is refused; the disposing thread will take the timer out.
                let left = unsafe { inner.aim(shard, node, aim.due(at), aim.now, node.as_ref().state.number()) };
                if let Some(tick) = left.0 {
                    engine.put(tick, &inner);
                    due = true;
                }
            }
            inner.walls.behind > 0
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
            waiting |= !inner.walls.is_empty();
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
        let mut batch = Vec::with_capacity(SECTION);
        for shard in engine.shards() {
            loop {
                {
                    let mut inner = shard.lock();
                    batch.extend(std::iter::from_fn(|| inner.walls.pop()).map(|last| last.entry).take(SECTION));
                }
                if batch.is_empty() {
                    break;
                }
                batch.drain(..).for_each(|node| entry::dispose(&node));
            }
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
    let has_come = shard.clock.wall() >= at || firing.missed == Firing::GIVEN_BACK;
    if has_come || !inner.is_open() {
        let held = inner.walls.remove(entry);
        drop(inner);
        drop(held);
        if !has_come {
            entry::dispose(entry); // the runtime has ended
        }
        return has_come.then_some(at);
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

/// The timers of a block of the list. Blocks do not move, so what an operation copies at most is a
/// block, or the table of blocks: 96 kB for a million timers.
const BLOCK: usize = 256;

/// The index of a timer that does not wait.
const IDLE: usize = usize::MAX;

/// A timer in the list.
pub(crate) struct WaitingTimer {
    entry: EntryRef,
    /// The time that the timer waits for.
    at: SystemTime,
}

/// The waiting wall timers of a shard, without gaps. The payload of each has its index, which the
/// thread with the lock of the shard reads and writes ([`EntryRef::wall_index`]).
pub(crate) struct WallList {
    blocks: Vec<Vec<WaitingTimer>>,
    len: usize,
    /// The walk of the last step has yet to reach the first so many timers. It goes from the end to
    /// the beginning. A timer that is put into the list is put behind; a timer that fills a gap
    /// comes from the end. So neither is left out.
    behind: usize,
    /// The lowest offset of the wall clock among the readings by which timers were aimed since the
    /// last walk began. Not updated when a timer leaves, so it may be lower than of any timer; nor
    /// where the system reports steps, and no thread compares it.
    lowest: i128,
}

impl WallList {
    pub(crate) fn new() -> Self {
        Self { blocks: Vec::new(), len: 0, behind: 0, lowest: i128::MAX }
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Begins a walk.
    fn begin(&mut self) {
        (self.behind, self.lowest) = (self.len, i128::MAX);
    }

    /// The next timer of the walk, which the caller aims by this reading.
    fn next_behind(&mut self, aim: &Aim) -> Option<(NonNull<Entry>, SystemTime)> {
        self.behind = self.behind.checked_sub(1)?;
        self.note(aim);
        let WaitingTimer { entry, at } = &self.blocks[self.behind / BLOCK][self.behind % BLOCK];
        Some((entry.as_ptr(), *at))
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
        !self.is_empty() && offset.saturating_sub(self.lowest) > drift.as_nanos() as i128
    }

    fn get_mut(&mut self, entry: &EntryRef) -> Option<&mut WaitingTimer> {
        let index = entry.wall_index()?.load(Ordering::Relaxed);
        let found = self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)?;
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
        if self.is_empty() {
            self.lowest = i128::MAX;
        }
        self.note(aim);
        if let Some(found) = self.get_mut(entry) {
            found.at = at;
            return true;
        }
        let block = self.len / BLOCK;
        if block == self.blocks.len() {
            self.blocks.push(Vec::new());
        }
        self.blocks[block].push(WaitingTimer { entry: entry.clone(), at });
        set_index(entry, self.len);
        self.len += 1;
        false
    }

    /// Takes a timer out, and returns the list's reference, to be dropped after the lock has been
    /// released. The last timer fills the gap.
    #[must_use]
    pub(super) fn remove(&mut self, entry: &EntryRef) -> Option<EntryRef> {
        let place = entry.wall_index()?;
        let index = place.load(Ordering::Relaxed);
        if index == IDLE {
            return None;
        }
        let last = self.pop()?;
        if index == self.len {
            return Some(last.entry);
        }
        place.store(IDLE, Ordering::Relaxed);
        set_index(&last.entry, index);
        Some(std::mem::replace(&mut self.blocks[index / BLOCK][index % BLOCK], last).entry)
    }

    /// Takes the last timer out, as [`remove`](Self::remove).
    #[must_use]
    fn pop(&mut self) -> Option<WaitingTimer> {
        self.len = self.len.checked_sub(1)?;
        self.behind = self.behind.min(self.len);
        let block = self.len / BLOCK;
        let last = self.blocks[block].pop()?;
        set_index(&last.entry, IDLE);
        // An empty block stays for the next timer.
        if self.blocks.len() > block + 2 {
            self.blocks.pop();
        }
        Some(last)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// The index of a wall timer, whose lock is held.
fn set_index(entry: &EntryRef, index: usize) {
    if let Some(place) = entry.wall_index() {
        place.store(index, Ordering::Relaxed);
    }
}

// ---------------------------------------------------------------- timers

/// The callback of a wall timer, which is told the timer and the time that has come.
pub(crate) trait WallCallback: FnMut(&EntryRef, SystemTime) + Send + 'static {}

impl<F: FnMut(&EntryRef, SystemTime) + Send + 'static> WallCallback for F {}

/// The payload of a wall timer. `OWN`: of the crate's own, as [`Exclusive`].
struct WallPayload<F, const OWN: bool> {
    /// See [`WallList`].
    index: AtomicUsize,
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
    let payload = WallPayload::<F, OWN> { index: AtomicUsize::new(IDLE), callback };
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
