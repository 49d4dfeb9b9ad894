//! A shard: the timer queue of a core behind its lock, with the alarm that belongs to the queue.
//!
//! Ground rules. [`ShardState`] is reached through the lock only. Under the lock: decide, insert,
//! unlink, arm. Never under the lock: a callback, a waker, a destructor of user data, a wake-up of
//! a thread, a last reference given back. With the lock held no further lock is taken, least of all
//! another shard's, but for the leaf lock of the backend, of the agenda, or of the inbox of the
//! pool.
//!
//! A shard outlives its runtime, since timers point to the shard. The shard is freed when the
//! runtime has departed and the last timer is freed. Counting must not cost an atomic operation per
//! timer: see [`LocalRefs`]. The delay of the alarm of a busy shard is in
//! [`coalesce`](super::coalesce). The wakers of waiters for the end of a timer are in [`Waiters`],
//! beside the lock.
//!
//! A lock section that claims a due tick leaves a step for the time after it: [`AfterUnlock`].

#![allow(unsafe_code)] // lifetime of shards

use std::ops::Deref;
use std::ptr::NonNull;

use super::coalesce::Coalescer;
use super::entry::{Entry, EntryMeta, EntryRef};
use super::lead::Lead;
use super::observe::EngineNumber;
use super::shared_alarm::Shares;
use super::waiters::Waiters;
use super::wall_registry::WallList;
use super::{Engine, Expired, Firing};
use crate::alarm::{Clock, PAUSE_NS};
use crate::pool::{BATCH, Metrics};
use crate::queue::node::Location;
use crate::queue::state::{Claim, Rearm};
use crate::queue::{Kind, Schedule, TimerWheel, next_tick};
use crate::sync::{Arc, AtomicI64, Mutex, MutexGuard, Ordering};
use crate::sys::os::fetch_line;
use crate::time::NEVER;

/// `armed` while a sweep is pending or running: no instant is earlier than zero, so inserting a
/// timer sets no alarm (I7).
pub(crate) const SWEEPING: u64 = 0;

/// See the module's ground rules. Aligned so that two shards never share a cache line.
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) inner: Mutex<ShardState>,
    pub(crate) clock: Clock,
    pub(crate) index: usize,
    pub(crate) waiters: Waiters,
    /// The number of the runtime.
    pub(super) number: EngineNumber,
    shared_refs: SharedRefs,
}

/// The state that the lock guards.
pub(crate) struct ShardState {
    pub(crate) queue: TimerWheel<EntryMeta>,
    /// The instant for which the alarm is set, somewhat early: see [`Lead`]. [`NEVER`]: it is not
    /// set; or [`SWEEPING`] (I7).
    pub(crate) armed: u64,
    pub(crate) coalescer: Coalescer,
    pub(super) shares: Shares,
    pub(super) lead: Lead,
    /// The alarm covers the stall check: see [`Swept`](crate::pool::Swept).
    pub(super) covers: bool,
    /// This queue is on the list of the driver of the manual clock.
    pub(crate) touched: bool,
    /// The runtime; `None` after its shutdown. Cloned out to notify the pool after unlocking.
    engine: Option<Arc<Engine>>,
    local_refs: LocalRefs,
    /// The wall timers that belong to this queue and wait.
    pub(crate) walls: WallList,
    pub(crate) tally: Tally,
}

/// The operations of a shard since its start.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) created: u64,
    pub(crate) changed: u64,
    /// Disposed while queued.
    pub(crate) disposed: u64,
    /// Claimed ticks, and wakers taken out.
    pub(super) claimed: u64,
    /// Saturates: a tick may have missed as many as the count holds.
    pub(super) missed_ticks: u64,
    /// Alarms set.
    pub(super) alarms: u64,
}

impl Tally {
    pub(super) fn add_to(&self, sum: &mut Metrics) {
        sum.created += self.created;
        sum.changed += self.changed;
        sum.disposed += self.disposed;
        sum.waiting = sum.waiting.wrapping_add(self.claimed);
        sum.missed_ticks = sum.missed_ticks.saturating_add(self.missed_ticks);
        sum.alarms_set += self.alarms;
    }
}

impl Shard {
    /// Prefetches the shard: most of its lines are read in a sweep.
    #[inline]
    pub(super) fn fetch(&self) {
        let start = std::ptr::from_ref(self).cast::<u8>();
        (0..size_of::<Self>()).step_by(64).for_each(|at| fetch_line(start.wrapping_add(at)));
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, ShardState> {
        self.inner.lock()
    }

    /// Opens the shard: from now on timers may be started on this runtime.
    pub(crate) fn open(&self, engine: &Arc<Engine>) {
        self.inner.lock().engine = Some(Arc::clone(engine));
    }

    /// Closes the shard: no timer fires any more, none is armed. Queued timers stay until
    /// [`Self::drain`].
    ///
    /// The caller has the engine's reference to the shard, which [`ShardRef`] gives back.
    pub(crate) fn close(&self) {
        let engine = {
            let mut inner = self.inner.lock();
            inner.local_refs.close(&self.shared_refs);
            inner.engine.take()
        };
        drop(engine);
    }

    /// Takes a batch of the entries left in the queue of a closed shard. False: none was left.
    pub(super) fn drain(&self, batch: &mut Vec<EntryRef>) -> bool {
        let mut state = self.lock();
        let left = std::iter::from_fn(|| state.queue.pop_any()).take(BATCH);
        // SAFETY: `pop_any` unlinks the entry, and gives its list's reference to the caller.
        batch.extend(left.map(|entry| unsafe { EntryRef::from_raw(entry) }));
        !batch.is_empty()
    }

    /// Walks the queue and asserts the invariants that hold with the lock free: I1 to I3 by the
    /// queue's own check, and I7.
    #[cfg(timerqueue_check)]
    pub(crate) fn check(&self) {
        let inner = self.inner.lock();
        let (due, armed) = (inner.queue.check(), inner.armed);
        if !matches!(self.clock, Clock::Manual { .. }) && inner.is_open() {
            // A busy shard delays its alarm from now, or to the grid from the next deadline.
            let delayed = self.clock.now().max(due).saturating_add(Coalescer::LONGEST_NS);
            assert!(armed == SWEEPING || due == NEVER || armed <= delayed, "armed {armed}, due {due}");
        }
    }

    /// The number of timers counted in, while the shard is open.
    #[cfg(test)]
    pub(crate) fn counted_in(&self) -> Option<i64> {
        self.lock().local_refs.total(&self.shared_refs)
    }

    /// Gives back a counted reference to this shard, of a timer or of the runtime, without the
    /// lock.
    ///
    /// # Safety
    /// The caller owns the reference, and does not use the shard afterwards.
    pub(crate) unsafe fn depart(shard: NonNull<Self>) {
        // SAFETY: the caller's count keeps the shard alive until the subtraction. No `&Shard` is
        // made, since another thread may free the shard while this call still runs.
        if unsafe { SharedRefs::depart(&raw const (*shard.as_ptr()).shared_refs) } {
            // SAFETY: the count of a closed shard is zero, and every last use happens before this
            // (see `SharedRefs::depart`).
            drop(unsafe { Box::from_raw(shard.as_ptr()) });
        }
    }
}

impl ShardState {
    pub(crate) fn is_open(&self) -> bool {
        self.engine.is_some()
    }

    /// The runtime. `None`: the shard is closed.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        self.engine.as_ref()
    }

    /// The reading of the clock by which a timer is armed; `before` was read before the lock was
    /// taken: see [`Clock::reading_under_lock`].
    #[inline]
    pub(crate) fn now(&mut self, shard: &Shard, before: u64) -> u64 {
        if matches!(shard.clock, Clock::System(_)) {
            return before;
        }
        self.touch(shard);
        shard.clock.reading_under_lock(before)
    }

    /// A timer is going to be armed. On a manual clock, called before the clock is read: see
    /// `Membership::touch` in `agenda`.
    #[inline]
    pub(crate) fn touch(&mut self, shard: &Shard) {
        if matches!(shard.clock, Clock::Manual { .. }) {
            self.put_on_list(shard);
        }
    }

    #[inline(never)] // a path of its own in real time
    fn put_on_list(&mut self, shard: &Shard) {
        if std::mem::replace(&mut self.touched, true) {
            return;
        }
        if let Some(membership) = self.engine.as_ref().and_then(|engine| engine.membership.get()) {
            membership.touch(shard.index);
        }
    }

    /// Counts a new timer in: on a closed shard, in the shared count.
    pub(crate) fn arrive(&mut self, shard: &Shard) {
        self.local_refs.arrive(&shard.shared_refs);
    }

    /// Counts an entry out that is in no list, unless it has been counted out before. False: the
    /// shard is closed, and the thread that frees the entry departs after the lock is released.
    #[inline]
    pub(super) fn count_out(&mut self, entry: &Entry) -> bool {
        let is_out = entry.location(self.queue.key()) == Location::COUNTED_OUT || self.local_refs.leave();
        if is_out {
            entry.set_location(Location::COUNTED_OUT, self.queue.key());
        }
        is_out
    }

    /// The next arming number, which orders the timers due at the same instant of virtual time.
    /// Real time promises no order and gives no numbers (S14).
    #[inline]
    pub(crate) fn number(shard: &Shard) -> u64 {
        match &shard.clock {
            Clock::Manual { virtual_time, .. } => virtual_time.next_number(),
            Clock::System(_) => 0,
        }
    }

    /// Sets the alarm to `at` if `at` is earlier than the armed instant (I7).
    #[inline]
    pub(super) fn arm_earlier(&mut self, shard: &Shard, at: u64, now: u64) {
        if at < self.armed {
            self.set_alarm(shard, at, now);
        }
    }

    #[inline(never)] // seldom
    fn set_alarm(&mut self, shard: &Shard, at: u64, now: u64) {
        self.armed = at;
        let Some(engine) = &self.engine else { return };
        if self.shares.arm(engine, shard.index, at) {
            self.lead.rest();
            engine.look_for_loss();
        } else {
            self.tally.alarms += 1;
            engine.arm(shard.index, self.lead.aim(at, now, self.coalescer.wait_ns() > 0));
        }
    }

    /// Inserts an entry that fires at `at` into the queue; an entry that had been counted out is
    /// counted in again.
    ///
    /// # Safety
    /// As [`TimerWheel::insert`]; the shard is open.
    #[inline]
    unsafe fn insert(&mut self, shard: &Shard, node: NonNull<Entry>, at: u64) -> u64 {
        // SAFETY: alive, as the caller promises.
        if unsafe { node.as_ref() }.location(self.queue.key()) == Location::COUNTED_OUT {
            self.arrive(shard);
        }
        // SAFETY: the caller promises the same as `TimerWheel::insert` asks.
        unsafe { self.queue.insert_at(node, at) }
    }

    /// Gives a timer that is in no list a new schedule. Takes over a reference: for the list, for
    /// the returned job, or (where there is neither) to be given back.
    ///
    /// # Safety
    /// `node` is alive, idle, and belongs to this shard. The caller owns the reference, which is
    /// not the last.
    #[inline(always)] // creating is the hot path
    pub(crate) unsafe fn insert_or_claim(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        schedule: Schedule,
        now: u64,
    ) -> AfterUnlock {
        // SAFETY: alive, by the reference that is taken over.
        let shared = unsafe { node.as_ref() };
        shared.set_due(schedule.due, self.queue.key());
        shared.set_period(schedule.period, self.queue.key());
        if schedule.due == NEVER {
            // SAFETY: the reference taken over; it is not the last.
            let last = unsafe { Entry::release(node) };
            debug_assert!(!last, "the caller keeps a reference");
            return AfterUnlock::NOTHING;
        }
        // On a manual clock due timers wait for the driver.
        let at = shared.tick_policy().fires_at(schedule.due);
        if at > now || matches!(shard.clock, Clock::Manual { .. }) {
            self.queue.advance(now);
            // SAFETY: idle, so in no list; the reference taken over becomes the list's and keeps
            // the entry alive.
            let at = unsafe { self.insert(shard, node, at) };
            self.arm_earlier(shard, at, now);
            return AfterUnlock::NOTHING;
        }
        // SAFETY (both): idle and due; the reference taken over is passed on.
        #[allow(clippy::undocumented_unsafe_blocks)]
        let expired = match shared.kind() {
            Kind::Waker => unsafe { self.take_waker(node) }.map(Expired::Waker),
            _ => unsafe { self.claim(shard, node, now) }.map(Expired::Tick),
        };
        self.tally.claimed += u64::from(expired.is_some());
        AfterUnlock(expired)
    }

    /// Claims the tick of a timer that is due at `now` and in no list, and inserts the timer for
    /// its next tick. Takes over a reference. `None`: the tick is deferred (I11).
    ///
    /// # Safety
    /// `node` is alive, idle, due, and belongs to this shard; its payload is a callback. The caller
    /// owns a reference, perhaps the last.
    #[inline(always)] // a call would return the tick through memory
    pub(crate) unsafe fn claim(&mut self, shard: &Shard, node: NonNull<Entry>, now: u64) -> Option<Firing> {
        // SAFETY: alive, by the reference that is taken over.
        let shared = unsafe { node.as_ref() };
        match shared.claim(self.queue.key()) {
            Claim::Queue => {
                // SAFETY: the caller's promises to this function, and the tick has just been
                // claimed.
                let firing = unsafe { self.take_tick(shard, node, now) };
                // Detached: the list had the only reference, which the job has now. Not counted out
                // before: an entry that was counted out is inserted again only by a thread with a
                // second reference.
                if shared.has_only(1) {
                    self.count_out(shared);
                }
                Some(firing)
            }
            Claim::Defer => {
                // SAFETY: the reference taken over. The job or callback that settles the tick holds
                // another, and gives it back without the lock only after `DISPOSED` was set. Then
                // the disposing thread has a reference, and waits for this lock.
                let last = unsafe { Entry::release(node) };
                debug_assert!(!last, "the queued job or the running callback holds a reference");
                None
            }
        }
    }

    /// The second half of a claim: computes the tick, inserts the timer for the next tick.
    ///
    /// # Safety
    /// As [`Self::claim`]; the tick has been claimed.
    #[inline(always)] // as `claim`
    pub(crate) unsafe fn take_tick(&mut self, shard: &Shard, node: NonNull<Entry>, now: u64) -> Firing {
        // SAFETY: alive, by the reference that is taken over.
        let shared = unsafe { node.as_ref() };
        let key = self.queue.key();
        let schedule = shared.schedule(key);
        let taken = next_tick(shared.tick_policy().policy(), schedule, now);
        if taken.missed > 0 {
            self.tally.missed_ticks = self.tally.missed_ticks.saturating_add(taken.missed);
        }
        if taken.next != NEVER {
            shared.set_due(taken.next, key);
            let at = shared.tick_policy().fires_at(taken.next);
            if at > now {
                shared.retain();
                // SAFETY: in no list, as the caller promises; the reference just made becomes the
                // list's and keeps the entry alive.
                let at = unsafe { self.insert(shard, node, at) };
                self.arm_earlier(shard, at, now);
            } else {
                shared.state.defer();
            }
        }
        // SAFETY: the caller has passed on its reference.
        Firing { entry: unsafe { EntryRef::from_raw(node) }, scheduled: schedule.due, missed: taken.missed }
    }

    /// Computes a deferred tick that `settle` has just claimed; the caller has the job of the
    /// entry.
    pub(super) fn take_deferred_tick(&mut self, entry: &EntryRef) -> Firing {
        let shard = entry.shard();
        let now = shard.clock.now();
        entry.get().retain();
        self.tally.claimed += 1;
        // SAFETY: an entry with a deferred tick is not in the queue; the reference is for the job.
        unsafe { self.take_tick(shard, entry.as_ptr(), now) }
    }

    /// Gives a timer a new schedule, in any state, under this arming number. What is left after
    /// unlocking: a job, if the new due point has come already.
    ///
    /// # Safety
    /// `node` is alive and belongs to this shard, and the caller has a reference.
    #[inline(always)] // into all callers: so many arguments would slow the hot one
    pub(crate) unsafe fn reschedule(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        schedule: Schedule,
        now: u64,
        number: u64,
    ) -> (Changed, AfterUnlock) {
        // SAFETY: alive, as the caller promises.
        let shared = unsafe { node.as_ref() };
        let Rearm::Armed { withdrawn } = shared.state.rearm(number) else {
            return (Changed::Ended, AfterUnlock::NOTHING);
        };
        // SAFETY: alive, and belongs to this shard, as the caller promises.
        if let Some(at) = unsafe { self.queue.reschedule_lazily(node, schedule.due) } {
            shared.set_period(schedule.period, self.queue.key());
            self.arm_earlier(shard, at, now);
            return (Changed::WasWaiting, AfterUnlock::NOTHING);
        }
        // SAFETY: the caller's promises are the same.
        let (was_queued, left) = unsafe { self.move_entry(shard, node, schedule, now) };
        (Changed::waited(was_queued || withdrawn), left)
    }

    /// As [`Self::reschedule`], to a single firing. With the entry's own number it keeps its order
    /// among timers due at the same instant (S14).
    ///
    /// # Safety
    /// As [`Self::reschedule`].
    pub(crate) unsafe fn aim(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        now: u64,
        number: u64,
    ) -> AfterUnlock {
        // SAFETY: the caller's promises are the same.
        unsafe { self.reschedule(shard, node, Schedule::once(due), now, number) }.1
    }

    /// The part of [`Self::reschedule`] that moves the entry in the queue. Returns whether the
    /// entry was queued as well.
    ///
    /// # Safety
    /// As [`Self::reschedule`].
    #[inline(never)]
    unsafe fn move_entry(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        schedule: Schedule,
        now: u64,
    ) -> (bool, AfterUnlock) {
        // SAFETY: alive, and belongs to this shard, as the caller promises.
        let was_queued = unsafe { self.queue.unlink(node) };
        if !was_queued {
            // SAFETY: alive, as the caller promises.
            unsafe { node.as_ref() }.retain();
        }
        // SAFETY: unlinked; the list's reference, or the reference just made, is passed on, and the
        // caller has another.
        (was_queued, unsafe { self.insert_or_claim(shard, node, schedule, now) })
    }

    /// Stops the entry without disposing it. True: the entry was queued, and the list's reference
    /// is the caller's now.
    ///
    /// # Safety
    /// `node` is alive and belongs to this shard.
    #[must_use]
    pub(crate) unsafe fn withdraw(&mut self, shard: &Shard, node: NonNull<Entry>) -> bool {
        // SAFETY: alive, and belongs to this shard, as the caller promises.
        unsafe { node.as_ref().state.rearm(Self::number(shard)) != Rearm::Refused && self.queue.unlink(node) }
    }

    /// Takes the entry of a timer that is being disposed out of the queue. Returns whether the
    /// entry was queued.
    ///
    /// # Safety
    /// As [`TimerWheel::unlink`].
    #[inline]
    pub(super) unsafe fn unlink_disposed(&mut self, node: NonNull<Entry>) -> bool {
        // SAFETY: the caller promises the same.
        let was_queued = unsafe { self.queue.unlink(node) };
        self.tally.disposed += u64::from(was_queued);
        was_queued
    }

    /// Sets the alarm after a sweep: for the next deadline, later where the shard is busy; no
    /// deadline, no alarm (I7). `before`: what `armed` was.
    pub(super) fn arm_after_sweep(&mut self, shard: &Shard, next: u64, now: u64, before: u64) {
        // After an empty sweep the alarm is not delayed.
        let at = if self.coalescer.end(now) { self.coalescer.aim(next, now) } else { next };
        self.armed = if next == NEVER { NEVER } else { at };
        let Some(engine) = &self.engine else { return };
        if self.shares.arm_after_sweep(engine, shard.index, self.armed) {
            return self.lead.rest();
        }
        self.tally.alarms += u64::from(next != NEVER);
        // The alarm of a busy shard has waited, so it need not be early.
        let exact = self.coalescer.wait_ns() > 0;
        let mut alarm = if self.armed == NEVER { NEVER } else { self.lead.aim(self.armed, now, exact) };
        if self.lead.is_often_early(self.armed == before && before != NEVER) {
            alarm = alarm.max(now.saturating_add(PAUSE_NS));
            engine.native.iter().for_each(|native| native.pool.alarms.distrust());
        }
        engine.arm_after_sweep(shard.index, alarm, next);
    }
}

/// The engine's counted reference to a shard, which keeps the shard alive.
pub(super) struct ShardRef(NonNull<Shard>);

// SAFETY: a shard may be used on any thread: its state lies behind the lock, its other fields are
// `Sync`.
unsafe impl Send for ShardRef {}
// SAFETY: see `Send`.
unsafe impl Sync for ShardRef {}

impl ShardRef {
    /// A shard that is not open yet.
    pub(super) fn new(index: usize, clock: Clock, number: EngineNumber) -> Self {
        let inner = ShardState {
            queue: TimerWheel::new(clock.now()),
            armed: NEVER,
            coalescer: Coalescer::new(),
            shares: Shares::default(),
            lead: Lead::default(),
            covers: false,
            touched: false,
            engine: None,
            local_refs: LocalRefs::new(),
            walls: WallList::new(),
            tally: Tally::default(),
        };
        let (inner, waiters) = (Mutex::new(inner), Waiters::new());
        let shard = Shard { inner, clock, index, waiters, number, shared_refs: SharedRefs::new() };
        Self(NonNull::from(Box::leak(Box::new(shard))))
    }

    /// For an entry, which is counted in when the timer is started.
    #[inline]
    pub(super) fn as_ptr(&self) -> NonNull<Shard> {
        self.0
    }
}

impl Deref for ShardRef {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        // SAFETY: the engine's count is given back only when this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ShardRef {
    fn drop(&mut self) {
        // SAFETY: given back once, here. (An open shard keeps its engine alive, so this shard is
        // closed.)
        unsafe { Shard::depart(self.0) };
    }
}

// ---------------------------------------------------------------- the reference count

/// The reference count of a shard, split in two like the kernel's `percpu_ref`, so that counting
/// costs no atomic operation while the shard is open.
///
/// This part is a plain number under the shard's lock, for threads that hold the lock anyway; once
/// the shard is closed, it is gone. [`SharedRefs`] is an atomic beside the lock, for timers freed
/// without the lock. While the shard is open, the shared count is zero or negative, so no decrement
/// finds itself the last. Closing adds the local count, and 1 for the runtime, to the shared count
/// in a single step. Afterwards the thread that brings the shared count to zero frees the shard.
///
/// A timer that the runtime is sure to outlive may be counted out early, since the runtime is
/// counted until its end. A detached timer is counted out with the lock held when its last tick is
/// claimed: from then on only threads that hold the runtime use the timer.
///
/// Neither part can overflow. Each step goes with the making or freeing of a timer, so 63 bits last
/// for centuries; and forgotten timers stay in memory, which is full long before.
/// `loom-tests/shard_teardown.rs` runs the end of a shard.
struct LocalRefs(Option<i64>);

impl LocalRefs {
    /// The count of an open shard.
    fn new() -> Self {
        Self(Some(0))
    }

    /// Counts a new timer in: in the shared count if the shard is closed. The thread that makes the
    /// timer keeps the runtime, and so the shard, alive meanwhile.
    fn arrive(&mut self, shared_refs: &SharedRefs) {
        match &mut self.0 {
            Some(local_refs) => *local_refs += 1,
            None => shared_refs.add(1),
        }
    }

    /// Counts a timer out if the shard is open. False: the shard is closed, and the caller departs
    /// after the lock is released.
    #[must_use]
    fn leave(&mut self) -> bool {
        match &mut self.0 {
            Some(local_refs) => *local_refs -= 1,
            None => return false,
        }
        true
    }

    /// The number of timers counted in here and in `shared_refs`; `None`: closed.
    #[cfg(test)]
    fn total(&self, shared_refs: &SharedRefs) -> Option<i64> {
        self.0.map(|local_refs| local_refs + shared_refs.0.load(Ordering::Relaxed))
    }

    /// Moves the local count, and 1 for the runtime, into the shared count. The first call closes,
    /// later calls do nothing.
    fn close(&mut self, shared_refs: &SharedRefs) {
        if let Some(local_refs) = self.0.take() {
            shared_refs.add(local_refs + 1);
        }
    }
}

/// The part beside the lock.
struct SharedRefs(AtomicI64);

impl SharedRefs {
    fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Relaxed: additions are made with the lock held, which orders them. The sum cannot come to
    /// zero before the last of the timers added here departs, and each departs later than this.
    fn add(&self, shared_refs: i64) {
        self.0.fetch_add(shared_refs, Ordering::Relaxed);
    }

    /// Counts out without the lock. True: this was the last reference to a closed shard, and the
    /// caller frees the shard.
    ///
    /// Release publishes the caller's use of the shard to the thread that frees the shard; the
    /// acquire load there pairs with all these releases. (An acquire load instead of a fence, since
    /// race detectors understand loads.)
    ///
    /// The argument is a pointer: a `&SharedRefs` would have to stay valid until this returns, but
    /// another thread may free the shard right after the subtraction.
    ///
    /// # Safety
    /// The caller is counted in, so `shared_refs` is alive until the subtraction. After `false` the
    /// caller does not use the shard.
    #[must_use]
    unsafe fn depart(shared_refs: *const Self) -> bool {
        // SAFETY: the caller is counted in, which keeps the shard alive up to the subtraction.
        let count = unsafe { &(*shared_refs).0 };
        let last = count.fetch_sub(1, Ordering::Release) == 1;
        if last {
            count.load(Ordering::Acquire);
        }
        last
    }
}

// ---------------------------------------------------------------- after the lock

/// The step that is left when the lock of the shard is released: a due tick goes to the pool.
#[must_use = "a tick that has been claimed is lost: see `end_section`"]
#[derive(Default)]
pub(crate) struct AfterUnlock(pub(super) Option<Expired>);

impl AfterUnlock {
    pub(super) const NOTHING: Self = Self(None);
}

/// A job has been put into the pool: dropping this has a thread of the pool look for it. Perhaps
/// the last reference to the runtime: so a caller with a lock of its own drops this after that
/// lock.
#[must_use = "dropped while a lock is held, it may run destructors of hooks"]
pub(crate) struct Notice(Option<Arc<Engine>>);

impl Notice {
    pub(super) const NOTHING: Self = Self(None);
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(engine) = &self.0 {
            engine.notify();
        }
    }
}

/// Ends a lock section: puts the tick that is left into the pool, releases the lock, and notifies
/// the pool.
#[inline(always)] // most often nothing is left
pub(super) fn end_section(state: impl Deref<Target = ShardState>, left: AfterUnlock) {
    if let Some(expired) = left.0 {
        put_and_notify(state, expired);
    }
}

/// As [`end_section`], for a caller with a lock of its own, which drops the notice after that lock.
pub(super) fn end_section_apart(state: impl Deref<Target = ShardState>, left: AfterUnlock) -> Notice {
    left.0.map_or(Notice::NOTHING, |expired| put(state, expired))
}

#[cold]
#[inline(never)]
fn put_and_notify(state: impl Deref<Target = ShardState>, expired: Expired) {
    drop(put(state, expired));
}

fn put(state: impl Deref<Target = ShardState>, expired: Expired) -> Notice {
    let engine = state.engine().map(Arc::clone);
    match &engine {
        Some(engine) => engine.put(expired, &state),
        None => debug_assert!(false, "a closed shard claims no tick"),
    }
    drop(state);
    Notice(engine)
}

/// The outcome of a change.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Changed, ManualClock, Runtime, Timer};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let timer = Timer::on(&runtime, Duration::MAX, Duration::ZERO, |_| {});
/// assert_eq!(timer.change(Duration::from_secs(1), Duration::ZERO), Changed::WasIdle);
/// assert_eq!(timer.change(Duration::from_secs(2), Duration::ZERO), Changed::WasWaiting);
/// timer.dispose();
/// assert_eq!(timer.change(Duration::from_secs(3), Duration::ZERO), Changed::Ended);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Changed {
    /// The timer was waiting to fire; the pending firing will not take place.
    WasWaiting,
    /// The timer was idle: never started, stopped, or a one-shot that has fired (its callback may
    /// still run).
    WasIdle,
    /// Nothing was changed: the timer is disposed, its runtime is shut down, or its callback is
    /// consumed.
    Ended,
}

impl Changed {
    #[inline]
    pub(super) fn waited(waited: bool) -> Self {
        if waited { Self::WasWaiting } else { Self::WasIdle }
    }

    /// Whether the timer was waiting to fire.
    pub fn was_waiting(self) -> bool {
        self == Self::WasWaiting
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use crate::{Delay, ManualClock, Runtime, Timer};

    /// A shard whose count is wrong is freed too early, or never.
    #[test]
    fn each_timer_is_counted_in_once_and_out_once() {
        const SECOND: Duration = Duration::from_secs(1);
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let counted = || runtime.engine().shards().map(|shard| shard.counted_in().expect("open")).sum::<i64>();
        let timer = |due| Timer::on(&runtime, due, Duration::ZERO, |_| {});
        let mut context = Context::from_waker(Waker::noop());
        let mut delay = |after| {
            let mut delay = Delay::on(&runtime, after);
            assert!(Pin::new(&mut delay).poll(&mut context).is_pending());
            delay
        };
        let (waiting, idle, fired) = (timer(2 * SECOND), timer(Duration::MAX), timer(SECOND));
        let (pending, elapsed) = (delay(2 * SECOND), delay(SECOND));
        timer(SECOND).detach();
        timer(2 * SECOND).dispose();
        assert_eq!(counted(), 6);
        assert_eq!(clock.advance(SECOND), 3);
        assert_eq!(counted(), 4, "the detached timer and the delay, which have fired, are counted out");
        drop((elapsed, fired));
        assert_eq!(counted(), 3);
        drop((idle, waiting, pending));
        assert_eq!(counted(), 0);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/arm_vs_sweep.rs"]
mod loom_models;

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/shard_teardown.rs"]
mod loom_models_of_teardown;
