//! The registry of wall timers: entries aimed at a time of the wall clock, which follow the wall
//! clock when it is set.
//!
//! Ground rules. A wall timer is an exclusive timer, aimed at the instant at which the wall clock
//! will show the timer's time unless the clock is set. If the wall clock does not show the time yet
//! when the timer fires, the timer is aimed again. When the wall clock has been set, all waiting
//! timers are aimed again. Where the system does not report this, a timer of the runtime compares
//! the clocks every [`RECHECK`] while wall timers wait.
//!
//! The waiting timers of a queue are in a list ([`super::wall_list`]) under the lock of the queue,
//! and each operation is a single lock section. A timer waits exactly while it is in the list:
//! `change` links the timer, disposing unlinks it, and the callback runs only if its own tick has
//! unlinked the timer. State shared by cores is written only when the wall clock was set.
//!
//! Steps of the wall clock are counted. With the lock held, a thread reads first the count, then
//! the clocks, and aims a timer by both; a step is counted after the clock was set. So a timer with
//! the count of a step was aimed by a reading after the step. To follow a step is to aim all timers
//! with a lower count: [`SECTION`] timers in a lock section, and [`SECTIONS_AT_ONCE`] sections in a
//! job of the pool. A further step meanwhile raises the count, and all timers are aimed again.
//! `loom-tests/wall_step_vs_change.rs` is the model.

#![allow(unsafe_code)] // the callback behind the header; links under the lock of their queue

use std::mem::{ManuallyDrop, needs_drop};
use std::ptr::NonNull;
use std::time::{Duration, SystemTime};

use super::Engine;
use super::entry::{self, EntryPayload, EntryRef, Firing, OwnJob, OwnedEntry, Started, free_last, run_in};
use super::label::Settings;
use super::observe::Context;
use super::shard::{Rescheduled, Shard, ShardState, hand_over};
use super::wall_list::{LinkRef, Reading, WallLink};
use crate::alarm::Backend;
use crate::queue::{Kind, MissedTicks, Schedule};
use crate::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};

/// The period at which the runtime compares the clocks, where the system does not report steps of
/// the wall clock.
const RECHECK: Duration = Duration::from_secs(5);
/// The gain of the wall clock on the runtime's clock beyond which all wall timers are aimed again,
/// where steps are not reported.
const DRIFT: Duration = Duration::from_millis(1);
/// Timers aimed in a lock section that follows a step.
const SECTION: usize = if cfg!(all(test, timerqueue_loom)) { 1 } else { 48 };
/// Lock sections in a job of the pool that follows a step: some 100 us.
const SECTIONS_AT_ONCE: usize = 20;

/// The shared state of a runtime's wall timers.
pub(crate) struct WallRegistry {
    /// The number of steps of the wall clock. Begins with 1, since the link of a timer that has not
    /// been aimed carries 0.
    steps: AtomicU64,
    /// The backend reports steps of the wall clock. (A manual clock does so itself.)
    told: AtomicBool,
    /// [`Own::look`] is scheduled, or about to be.
    looks: AtomicBool,
    /// Made with the first wall timer of a runtime that is not on a manual clock.
    own: OnceLock<Own>,
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
            let job = OwnJob(move |firing: &Firing| {
                let engine = firing.entry.shard().lock().engine().map(Arc::clone);
                if let Some(engine) = engine {
                    job(&engine);
                }
            });
            OwnedEntry::start_own(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), job)
        };
        Self {
            follow: idle(|engine| engine.walls().follow_some(engine)),
            look: idle(|engine| engine.walls().look(engine)),
        }
    }
}

impl WallRegistry {
    pub(crate) fn new(manual: bool) -> Self {
        Self {
            steps: AtomicU64::new(1),
            told: AtomicBool::new(manual),
            looks: AtomicBool::new(false),
            own: OnceLock::new(),
        }
    }

    /// Called before a wall timer is made. Each call asks the system for reports of steps, until
    /// the system agrees.
    fn prepare(&self, engine: &Engine) {
        if let Some(native) = engine.native() {
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
        self.steps.fetch_add(1, Ordering::AcqRel);
        if let Some(own) = self.own.get() {
            let _ = entry::change(&own.follow, Duration::ZERO, Duration::MAX);
        }
    }

    /// As [`step`](Self::step), on the calling thread. On return all timers are aimed by the wall
    /// clock at the call, or later.
    pub(crate) fn follow(&self, engine: &Engine) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        for shard in engine.shards() {
            while self.follow_section(engine, shard) {}
        }
    }

    /// A job of the pool: continues to follow the last step, and queues a further job if timers are
    /// left.
    fn follow_some(&self, engine: &Engine) {
        let mut sections = 0;
        for shard in engine.shards() {
            while self.follow_section(engine, shard) {
                sections += 1;
                if sections == SECTIONS_AT_ONCE {
                    if let Some(own) = self.own.get() {
                        let _ = entry::change(&own.follow, Duration::ZERO, Duration::MAX);
                    }
                    return;
                }
            }
        }
    }

    /// Aims some timers of a queue that the last step has not reached. True: timers are left.
    fn follow_section(&self, engine: &Engine, shard: &Shard) -> bool {
        let mut due = false;
        let more = {
            let mut inner = shard.lock();
            if !inner.is_open() {
                return false;
            }
            inner.touch(shard);
            let aim = Aim::new(self, shard);
            let mut left = SECTION;
            loop {
                let Some((entry, node, at)) = inner.walls.before(aim.step) else { break false };
                if left == 0 {
                    break true;
                }
                left -= 1;
                let node = node.as_ptr();
                // SAFETY: linked here, so alive and of this shard, whose lock is held. A disposed
                // timer is refused; the disposing thread will unlink the timer.
                let left = unsafe {
                    let left = inner.aim_again(shard, node, aim.by.due(at), aim.by.now);
                    inner.walls.aimed_again(entry, aim.step, aim.by);
                    left
                };
                if let Some(tick) = left.into_job() {
                    engine.put(tick, &inner);
                    due = true;
                }
            }
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
        let told = self.told.load(Ordering::Acquire);
        let offset = Reading::of(engine.clock()).offset();
        let (mut waiting, mut behind) = (false, false);
        for shard in engine.shards() {
            let inner = shard.lock();
            waiting |= !inner.walls.is_empty();
            behind |= inner.walls.is_behind(offset, DRIFT);
        }
        if behind {
            self.step();
        }
        if waiting && !told {
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

    /// The runtime ends, and its shards are closed: disposes all waiting timers.
    pub(crate) fn close(&self, engine: &Engine) {
        if let Some(own) = self.own.get() {
            entry::dispose(&own.follow);
            entry::dispose(&own.look);
        }
        let mut batch = Vec::with_capacity(SECTION);
        for shard in engine.shards() {
            loop {
                {
                    let mut inner = shard.lock();
                    batch.extend(std::iter::from_fn(|| inner.walls.pop()).take(SECTION));
                }
                if batch.is_empty() {
                    break;
                }
                batch.drain(..).for_each(|node| entry::dispose(&node));
            }
        }
    }
}

/// The step and the clocks by which a timer is aimed. Made with the lock of the timer's queue held.
struct Aim {
    /// Steps are reported: no look at the clocks is needed.
    told: bool,
    step: u64,
    by: Reading,
}

impl Aim {
    fn new(walls: &WallRegistry, shard: &Shard) -> Self {
        // The clocks last: a step after reading them is counted later, and reported if `told` says
        // so.
        let told = walls.told.load(Ordering::Acquire);
        let step = walls.steps.load(Ordering::Acquire);
        Self { told, step, by: Reading::of(&shard.clock) }
    }
}

/// Called under the lock when a timer has been linked. Returns the engine if a look at the clocks
/// is to be scheduled.
fn wants_look(inner: &ShardState, aim: &Aim) -> Option<Arc<Engine>> {
    let engine = inner.engine()?;
    let set = aim.told || engine.walls().looks.load(Ordering::Relaxed);
    (!set).then(|| Arc::clone(engine))
}

/// The timer waits for `at` from now on.
fn change(node: &EntryRef, entry: LinkRef, at: SystemTime) -> Rescheduled {
    let shard = node.shard();
    let mut inner = shard.lock();
    inner.touch(shard);
    let Some(engine) = inner.engine() else { return Rescheduled::Refused };
    let aim = Aim::new(engine.walls(), shard);
    // SAFETY: alive by the caller's reference, and of this shard, whose lock is held.
    let (rescheduled, left) =
        unsafe { inner.reschedule(shard, node.as_ptr(), Schedule::once(aim.by.due(at)), aim.by.now) };
    if rescheduled == Rescheduled::Refused {
        return rescheduled;
    }
    // SAFETY: the link of this timer, which is alive by the caller's reference; the lock of its
    // shard is held.
    let waited = unsafe { inner.walls.aimed(entry, node, at, aim.step, aim.by) };
    let look = wants_look(&inner, &aim);
    hand_over(inner, left);
    if let Some(engine) = look {
        engine.walls().look_later();
    }
    Rescheduled::waited(waited)
}

/// The timer has fired. If its time has come by the wall clock, unlinks the timer and returns the
/// time; else aims the timer again.
fn has_come(node: &EntryRef, entry: LinkRef) -> Option<SystemTime> {
    let shard = node.shard();
    let mut inner = shard.lock();
    // SAFETY: here and below, the link of this timer, which is alive by the job's reference; the
    // lock of its shard is held.
    let at = unsafe { inner.walls.time(entry) }?;
    if shard.clock.wall() >= at {
        // SAFETY: see `time` above.
        let held = unsafe { inner.walls.unlink(entry) };
        drop(inner);
        drop(held);
        return Some(at);
    }
    inner.touch(shard);
    let aim = Aim::new(inner.engine()?.walls(), shard);
    // SAFETY: alive by the job's reference, and of this shard, whose lock is held.
    let left = unsafe { inner.aim_again(shard, node.as_ptr(), aim.by.due(at), aim.by.now) };
    // SAFETY: see `time` above; `time` has found the timer linked.
    unsafe { inner.walls.aimed_again(entry, aim.step, aim.by) };
    hand_over(inner, left);
    None
}

/// The facts of a wall timer's firing, for the callback.
pub(crate) struct WallFiring<'a> {
    entry: &'a EntryRef,
    link: LinkRef,
    /// The time that has come.
    pub(crate) at: SystemTime,
}

impl WallFiring<'_> {
    pub(crate) fn entry(&self) -> &EntryRef {
        self.entry
    }

    /// The present reading of the runtime's wall clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.entry.shard().clock.wall()
    }

    pub(crate) fn change(&self, at: SystemTime) -> Rescheduled {
        change(self.entry, self.link, at)
    }
}

/// The payload of a wall timer. `OWN`: of the crate's own, as [`OwnJob`].
struct WallPayload<F, const OWN: bool> {
    /// Guarded by the lock of the timer's queue.
    link: WallLink,
    callback: F,
}

impl<F, const OWN: bool> WallPayload<F, OWN> {
    /// The two parts, by pointers that do not overlap.
    ///
    /// # Safety
    /// The payload is alive.
    unsafe fn parts(this: NonNull<Self>) -> (LinkRef, *mut F) {
        // SAFETY: alive, as the caller promises. No reference to the whole is ever made.
        unsafe {
            let this = this.as_ptr();
            (LinkRef::new(NonNull::new_unchecked(&raw mut (*this).link)), &raw mut (*this).callback)
        }
    }

    /// As [`EntryPayload::DROP`].
    unsafe fn drop_callback(this: NonNull<Self>) {
        // SAFETY: called once, after the last callback (I12). The link is left alone: it may still
        // be in the list, and owns nothing outside of the list.
        unsafe { std::ptr::drop_in_place(Self::parts(this).1) }
    }

    /// As [`EntryPayload::LEAVE_LISTS`].
    unsafe fn unlink(this: NonNull<Self>, entry: &EntryRef) {
        // SAFETY: the link of this timer, which is alive by the reference; the lock of its shard is
        // held.
        let held = unsafe { entry.shard().lock().walls.unlink(Self::parts(this).0) };
        drop(held);
    }
}

// SAFETY: the callback is `Send`, and the lock of the queue guards the link, whose parts may be
// used on any thread: see `LinkRef`.
unsafe impl<F, const OWN: bool> EntryPayload for WallPayload<F, OWN>
where
    F: FnMut(&WallFiring<'_>) + Send + 'static,
{
    const KIND: Kind = Kind::Exclusive;
    const IS_CALLBACK: bool = !OWN;
    const DROP: Option<unsafe fn(NonNull<Self>)> = if needs_drop::<F>() { Some(Self::drop_callback) } else { None };
    const LEAVE_LISTS: Option<unsafe fn(NonNull<Self>, &EntryRef)> = Some(Self::unlink);

    unsafe fn call(this: NonNull<Self>, firing: &Firing, context: Option<&Context>) {
        let entry = &firing.entry;
        // SAFETY: alive between `begin` and `end`.
        let (link, callback) = unsafe { Self::parts(this) };
        if let Some(at) = has_come(entry, link) {
            let tick = WallFiring { entry, link, at };
            // SAFETY: an exclusive timer runs one callback at a time, and no thread drops the
            // callback between `begin` and `end` (I12).
            run_in(context, entry, || tick.now().duration_since(at).ok(), || unsafe { (*callback)(&tick) });
        }
    }
}

/// The handle of a wall timer: dropping it disposes the timer.
pub(crate) struct WallEntry {
    entry: ManuallyDrop<EntryRef>,
    link: LinkRef,
}

impl WallEntry {
    /// Makes and starts a timer of the program, in the context of the calling thread.
    pub(crate) fn start<F>(engine: &Arc<Engine>, at: SystemTime, settings: impl Into<Settings>, callback: F) -> Self
    where
        F: FnMut(&WallFiring<'_>) + Send + 'static,
    {
        Self::start_in::<F, false>(engine, at, (settings.into(), Context::here(engine)), callback)
    }

    /// As [`Self::start`], for a timer of the crate's own: the callback runs on the pool, also
    /// where callbacks are handed over to an executor of the program's.
    pub(crate) fn start_own<F>(engine: &Arc<Engine>, at: SystemTime, callback: F) -> Self
    where
        F: FnMut(&WallFiring<'_>) + Send + 'static,
    {
        Self::start_in::<F, true>(engine, at, (MissedTicks::default().into(), None), callback)
    }

    fn start_in<F, const OWN: bool>(
        engine: &Arc<Engine>,
        at: SystemTime,
        settings: (Settings, Option<Context>),
        callback: F,
    ) -> Self
    where
        F: FnMut(&WallFiring<'_>) + Send + 'static,
    {
        engine.walls().prepare(engine);
        let payload = WallPayload::<F, OWN> { link: WallLink::new(at), callback };
        let mut look = None;
        let Started { entry, payload, .. } = entry::start(engine, settings, payload, |inner, entry, payload| {
            let shard = entry.shard();
            inner.touch(shard);
            let aim = Aim::new(engine.walls(), shard);
            // SAFETY: just made, so alive and idle, with its own link; a reference is for
            // `schedule`. `start` holds the lock.
            let left = unsafe {
                inner.walls.aimed(WallPayload::parts(payload).0, entry, at, aim.step, aim.by);
                inner.insert_or_claim(shard, entry.as_ptr(), Schedule::once(aim.by.due(at)), aim.by.now)
            };
            look = wants_look(inner, &aim);
            left
        });
        if let Some(engine) = look {
            engine.walls().look_later();
        }
        // SAFETY: alive by the handle's reference.
        let (link, _) = unsafe { WallPayload::parts(payload) };
        Self { entry: ManuallyDrop::new(entry), link }
    }

    pub(crate) fn entry(&self) -> &EntryRef {
        &self.entry
    }

    pub(crate) fn change(&self, at: SystemTime) -> Rescheduled {
        change(&self.entry, self.link, at)
    }

    /// Gives up the handle; the timer is not disposed.
    pub(crate) fn detach(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once: `this` is a `ManuallyDrop`, so the handle's own drop does not run.
        drop(unsafe { ManuallyDrop::take(&mut this.entry) });
    }
}

impl Drop for WallEntry {
    fn drop(&mut self) {
        let link = self.link;
        // SAFETY: taken once: the handle is being dropped.
        let entry = unsafe { ManuallyDrop::take(&mut self.entry) };
        // SAFETY: here and below, the link of this timer, which is alive; `free_last` calls with
        // the lock of its shard held.
        let held = |inner: &ShardState| u32::from(unsafe { inner.walls.waits(link) });
        // SAFETY: see `held`. `free_last` gives all references back at once.
        let unlink = |inner: &mut ShardState| _ = unsafe { inner.walls.unlink(link) }.map(EntryRef::into_raw);
        if let Err(entry) = free_last(entry, held, unlink) {
            entry::dispose(&entry);
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[path = "wall_tests.rs"]
mod tests;

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/wall_step_vs_change.rs"]
mod loom_models;
