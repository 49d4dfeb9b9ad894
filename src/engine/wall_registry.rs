//! The registry of wall timers: entries that are aimed at a time of the wall clock, and follow that clock when it is set.
//!
//! Ground rules. A wall timer is an exclusive timer that is aimed at the instant at which the wall clock will show its time if that
//! clock is not set. When it fires it looks: if the wall clock does not show the time yet, it is aimed again. When the wall clock has
//! been set, all that wait are aimed again. Where the system does not tell of that, one timer of the runtime's own compares the
//! clocks every [`RECHECK`] while wall timers wait.
//!
//! The timers of a queue that wait are in a list ([`super::wall_list`]) under the lock of that queue, and each operation is one section of that
//! lock. To be in the list is to wait: the callback runs only if its timer was in it and has been taken out by the very tick that runs
//! it; `change` puts it in, disposing takes it out. What cores share is read there, and written only when the wall clock was set.
//!
//! Steps of the wall clock are counted. A timer is aimed by the count and the clocks as they are read with the lock held, in this
//! order, and a step is counted after the clock was set. So a timer that carries the count of a step was aimed by the clock as that
//! step left it, and to follow a step is to aim those that carry a lower count: [`SECTION`] of them in a lock section, and
//! [`SECTIONS_AT_ONCE`] in a job of the pool. A step during that makes the count higher, and all are aimed again.
//! `loom-tests/wall_step_vs_change.rs` runs it.

#![allow(unsafe_code)] // the callback behind the node; entries under the lock of their queue

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::{Duration, SystemTime};

use super::entry::{
    self, Entry, EntryRef, Firing, OwnedEntry, VTable, allocate, free_last, layout, payload, start_with,
};
use super::ops::{Rescheduled, hand_over};
use super::shard::{Shard, ShardState};
use super::wall_list::{LinkRef, Reading, WallLink};
use super::{Engine, Fire};
use crate::alarm::Backend;
use crate::queue::{Kind, MissedTicks};
use crate::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};
use crate::time::NEVER;

/// Where the system does not tell that the wall clock was set, the runtime compares the clocks this often.
const RECHECK: Duration = Duration::from_secs(5);
/// By so much the wall clock may gain on the runtime's clock before all wall timers are aimed again, where the system does not tell.
const DRIFT: Duration = Duration::from_millis(1);
/// Timers that are aimed in one lock section, when a step is followed.
const SECTION: usize = if cfg!(all(test, timerqueue_loom)) { 1 } else { 48 };
/// Sections that one job of the pool carries out, when a step is followed: some 100 us.
const SECTIONS_AT_ONCE: usize = 20;

/// What the wall timers of a runtime have in common.
pub(crate) struct WallRegistry {
    /// The number of times that the wall clock was set. Begins with one: an entry that has not been aimed carries zero.
    steps: AtomicU64,
    /// The alarms tell when the wall clock is set. (A manual clock does so itself.)
    told: AtomicBool,
    /// [`Own::look`] is set, or is about to be.
    looks: AtomicBool,
    /// Made with the first wall timer of a runtime that is not on a manual clock.
    own: OnceLock<Own>,
}

/// The runtime's own timers.
struct Own {
    /// Follows a step of the wall clock. Only ever due at once.
    follow: OwnedEntry,
    /// Compares the clocks, where the system does not tell of steps.
    look: OwnedEntry,
}

impl Own {
    fn new(engine: &Engine) -> Self {
        let idle = |job: fn(&Engine)| {
            entry::exclusive(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), move |firing| {
                let engine = firing.entry.shard().lock().engine().map(Arc::clone);
                if let Some(engine) = engine {
                    job(&engine);
                }
            })
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

    /// Before a wall timer is made. A system that could not tell of steps is asked again with each timer.
    fn prepare(&self, engine: &Engine) {
        if let Some(native) = engine.native() {
            self.own.get_or_init(|| Own::new(engine));
            if !self.told.load(Ordering::Acquire) && native.alarms.follow_wall() {
                self.told.store(true, Ordering::Release);
            }
        }
    }

    /// The runtime's own timer that may be filed in a queue.
    pub(crate) fn own_timer(&self) -> Option<&EntryRef> {
        self.own.get().map(|own| &*own.look)
    }

    /// The wall clock has been set: has the pool aim all that wait.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        if let Some(own) = self.own.get() {
            let _ = entry::change(&own.follow, Duration::ZERO, Duration::MAX);
        }
    }

    /// As [`step`](Self::step), on the calling thread. When this returns, all are aimed by the wall clock as it was, or later.
    pub(crate) fn follow(&self, engine: &Engine) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        for shard in engine.shards() {
            while self.follow_section(engine, shard) {}
        }
    }

    /// A job of the pool: goes on with following the last step, and has a further job carry on if there is more.
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

    /// Aims some timers of one queue that the last step has not reached. Whether there are more.
    fn follow_section(&self, engine: &Engine, shard: &Shard) -> bool {
        let mut due = Vec::new();
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
                // SAFETY: linked here, so at shard here and alive. A disposed timer is refused; it stays linked until the thread that
                // has disposed it comes by.
                unsafe {
                    let (_, job) = inner.aim_again(shard, node, aim.by.due(at), aim.by.now).unwrap_or_default();
                    due.extend(job);
                    inner.walls.aimed_again(entry, aim.step, aim.by);
                }
            }
        };
        due.into_iter().for_each(|fire| engine.submit(fire));
        more
    }

    /// Compares the clocks. If the wall clock has gained on the other one since some timer was aimed, all are aimed again. The other
    /// way round timers fire too early, and are aimed again then.
    fn look(&self, engine: &Engine) {
        // Before the queues are looked at: a timer that begins to wait in one after that finds it so.
        self.looks.store(false, Ordering::Relaxed);
        // Before the clocks are read: a step after this reading is told of, and one before it is seen.
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

    /// The runtime ends, and its shards are closed: nothing waits any more.
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

/// What a timer is aimed by. Made with the lock of its queue held.
struct Aim {
    /// A look at the clocks is needed, unless one is set.
    told: bool,
    step: u64,
    by: Reading,
}

impl Aim {
    fn new(walls: &WallRegistry, shard: &Shard) -> Self {
        // The clocks last: what is set after they were read is counted later, and told of, if that is promised here.
        let told = walls.told.load(Ordering::Acquire);
        let step = walls.steps.load(Ordering::Acquire);
        Self { told, step, by: Reading::of(&shard.clock) }
    }
}

/// The lock is held, and a timer has been put into the list. The runtime, if a look at the clocks is to be set for that.
fn wants_look(inner: &ShardState, aim: &Aim) -> Option<Arc<Engine>> {
    let engine = inner.engine()?;
    let set = aim.told || engine.walls().looks.load(Ordering::Relaxed);
    (!set).then(|| Arc::clone(engine))
}

/// Waits for `at`, whatever the timer waited for before.
fn change(node: &EntryRef, entry: LinkRef, at: SystemTime) -> Rescheduled {
    let shard = node.shard();
    let mut inner = shard.lock();
    inner.touch(shard);
    let Some(engine) = inner.engine() else { return Rescheduled::Refused };
    let aim = Aim::new(engine.walls(), shard);
    // SAFETY: alive and at shard here; the caller has a reference.
    let done = unsafe { inner.reschedule(shard, node.as_ptr(), aim.by.due(at), NEVER, aim.by.now) };
    let Some((_, job)) = done else { return Rescheduled::Refused };
    // SAFETY: the entry of this timer, which is alive and at shard here.
    let waited = unsafe { inner.walls.aimed(entry, node, at, aim.step, aim.by) };
    let look = wants_look(&inner, &aim);
    hand_over(inner, job);
    if let Some(engine) = look {
        engine.walls().look_later();
    }
    if waited { Rescheduled::WasWaiting } else { Rescheduled::WasIdle }
}

/// A disposed timer does not wait any more.
fn forget(node: &EntryRef, entry: LinkRef) {
    // SAFETY: the entry of this timer, which is alive and at shard here.
    let held = unsafe { node.shard().lock().walls.unlink(entry) };
    drop(held);
}

/// The timer has fired. Its time, if that has come by the wall clock; then the timer does not wait any more.
fn has_come(node: &EntryRef, entry: LinkRef) -> Option<SystemTime> {
    let shard = node.shard();
    let mut inner = shard.lock();
    // SAFETY: here and below, the entry of this timer, which is alive and at shard here; its job has a reference.
    let at = unsafe { inner.walls.time(entry) }?;
    if shard.clock.wall() >= at {
        // SAFETY: as said.
        let held = unsafe { inner.walls.unlink(entry) };
        drop(inner);
        drop(held);
        return Some(at);
    }
    inner.touch(shard);
    let aim = Aim::new(inner.engine()?.walls(), shard);
    // SAFETY: as said.
    let (_, job) = unsafe { inner.aim_again(shard, node.as_ptr(), aim.by.due(at), aim.by.now) }?;
    // SAFETY: as said.
    unsafe { inner.walls.aimed_again(entry, aim.step, aim.by) };
    hand_over(inner, job);
    None
}

/// What stands behind the header of a wall timer.
struct Carried<F> {
    /// Belongs to the lock of the timer's queue.
    entry: WallLink,
    callback: F,
}

/// The two parts of the payload, by pointers that do not overlap.
///
/// # Safety
/// `node` is alive, and was made with `Carried<F>`.
unsafe fn parts<F>(node: NonNull<Entry>) -> (LinkRef, *mut F) {
    // SAFETY: the contract; a `ManuallyDrop` is its content, and no reference to the whole is ever made.
    unsafe {
        let carried = payload::<Carried<F>>(node).cast::<Carried<F>>();
        (LinkRef::new(NonNull::new_unchecked(&raw mut (*carried).entry)), &raw mut (*carried).callback)
    }
}

/// What the callback of a wall timer is told.
pub(crate) struct WallFiring<'a> {
    entry: &'a EntryRef,
    link: LinkRef,
    /// The time that has come.
    pub(crate) at: SystemTime,
}

impl WallFiring<'_> {
    /// What the wall clock of the runtime shows.
    pub(crate) fn now(&self) -> SystemTime {
        self.entry.shard().clock.wall()
    }

    pub(crate) fn change(&self, at: SystemTime) -> Rescheduled {
        change(self.entry, self.link, at)
    }

    pub(crate) fn dispose(&self) {
        dispose(self.entry, self.link);
    }
}

/// What can be done with a wall timer whose callback is an `F`.
struct Calls<F>(std::marker::PhantomData<F>);

impl<F: FnMut(&WallFiring<'_>)> Calls<F> {
    const VTABLE: &'static VTable =
        &VTable { call: Self::call, drop_payload: Self::DROP, layout: layout::<Carried<F>>() };
    const DROP: Option<unsafe fn(NonNull<Entry>)> =
        if std::mem::needs_drop::<F>() { Some(Self::drop_callback) } else { None };

    /// # Safety
    /// Between `begin` and `end` of an exclusive entry that was made with `Carried<F>`.
    unsafe fn call(entry: NonNull<Entry>, firing: &Firing<'_>) {
        // SAFETY: alive between `begin` and `end`.
        let (link, callback) = unsafe { parts::<F>(entry) };
        if let Some(at) = has_come(firing.entry, link) {
            // SAFETY: an exclusive timer has one callback at a time, and it is not dropped between `begin` and `end`.
            unsafe { (*callback)(&WallFiring { entry: firing.entry, link, at }) };
        }
    }

    /// # Safety
    /// Called once, for an entry that was made with `Carried<F>`, when the callback does not run and will not run.
    unsafe fn drop_callback(entry: NonNull<Entry>) {
        // SAFETY: the contract. The link is left alone: the list may still have it, and it owns nothing when it is not linked.
        unsafe { std::ptr::drop_in_place(parts::<F>(entry).1) }
    }
}

/// The handle of a wall timer: to drop it disposes the timer.
pub(crate) struct WallEntry {
    entry: ManuallyDrop<EntryRef>,
    link: LinkRef,
}

impl WallEntry {
    pub(crate) fn start<F>(engine: &Arc<Engine>, at: SystemTime, callback: F) -> Self
    where
        F: FnMut(&WallFiring<'_>) + Send + 'static,
    {
        engine.walls().prepare(engine);
        let header = engine.header(Kind::Exclusive, MissedTicks::default(), Calls::<F>::VTABLE);
        let node = allocate(header, Carried { entry: WallLink::new(at), callback });
        // SAFETY: just made, with two references; the other one is placed by `schedule` below.
        let (entry, link) = unsafe { (EntryRef::from_raw(node), parts::<F>(node).0) };
        let mut look = None;
        let schedule = |inner: &mut ShardState, shard: &Shard| -> Option<Fire> {
            inner.touch(shard);
            let aim = Aim::new(engine.walls(), shard);
            // SAFETY: just made; one of its references is for this, and the link is its own.
            let job = unsafe {
                inner.walls.aimed(link, &entry, at, aim.step, aim.by);
                inner.schedule(shard, node, aim.by.due(at), NEVER, aim.by.now)
            };
            look = wants_look(inner, &aim);
            job
        };
        // SAFETY: just made; of its two references one is placed by `schedule`, the other is the handle's.
        unsafe { start_with(node, schedule) };
        if let Some(engine) = look {
            engine.walls().look_later();
        }
        Self { entry: ManuallyDrop::new(entry), link }
    }

    pub(crate) fn entry(&self) -> &EntryRef {
        &self.entry
    }

    pub(crate) fn change(&self, at: SystemTime) -> Rescheduled {
        change(&self.entry, self.link, at)
    }

    pub(crate) fn dispose(&self) {
        dispose(&self.entry, self.link);
    }

    /// Gives up the handle; the timer is not disposed.
    pub(crate) fn detach(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; the handle's own drop does not run.
        drop(unsafe { ManuallyDrop::take(&mut this.entry) });
    }
}

impl Drop for WallEntry {
    fn drop(&mut self) {
        let link = self.link;
        // SAFETY: taken once, here.
        let entry = unsafe { ManuallyDrop::take(&mut self.entry) };
        // SAFETY: here and below, the link of this timer, which is alive, and the list is that of its shard, whose lock is held.
        let held = |inner: &ShardState| u32::from(unsafe { inner.walls.waits(link) });
        // SAFETY: as said. The reference is given back with all others.
        let unlink = |inner: &mut ShardState| _ = unsafe { inner.walls.unlink(link) }.map(EntryRef::into_raw);
        if let Err(entry) = free_last(entry, held, unlink) {
            dispose(&entry, link);
        }
    }
}

/// Stops the timer for good. In this order: a disposed timer cannot be put into the list again.
fn dispose(entry: &EntryRef, link: LinkRef) {
    entry::dispose(entry);
    forget(entry, link);
}

#[cfg(all(test, not(timerqueue_loom)))]
#[path = "wall_tests.rs"]
mod tests;

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/wall_step_vs_change.rs"]
mod loom_models;
