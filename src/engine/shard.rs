//! The shard of a timer: one core's queue behind its lock, with the alarm that belongs to it.
//!
//! Ground rules. [`ShardState`] is reached through the lock only. Under the lock: decide, file, unlink, arm. Never under the
//! lock: a callback, a waker, a destructor of user data, a wake-up of a thread, a last reference given back. No other lock is taken
//! with it, another shard's least of all, but for the one that an alarm may have of its own, when the alarm is set.
//!
//! A shard outlives its runtime, since timers point to it. It is freed when the runtime has let go of it and its last
//! timer is freed. Counting that must not cost an atomic operation per timer; [`count`] says how it is done. [`crowd`] says how long
//! a busy queue waits for company. [`waiters`] has the wakers of those who wait for the end of a timer, beside the lock.

#![allow(unsafe_code)] // lifetime of shards

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::coalesce::Coalescer;
use super::entry::{Entry, EntryMeta, EntryRef};
use super::shard_refs::{LocalRefs, SharedRefs};
use super::waiters::Waiters;
use super::wall_list::WallList;
use super::{Engine, Fire};
use crate::alarm::Clock;
use crate::queue::node::Place;
use crate::queue::state::{Claim, Rearm};
use crate::queue::{Next, TimerWheel, next_tick};
use crate::sync::{Arc, Mutex, MutexGuard, Ordering};
use crate::time::NEVER;

/// `armed` of a queue whose sweep is pending or running: no alarm is needed, whatever is filed.
pub(crate) const SWEEPING: u64 = 0;

/// Due nodes looked at in one lock section of a sweep: some microseconds. Fewer than an empty deque of the pool holds at first
/// (64), since growing and shrinking it costs more than another lock section; only a sweep of several busy queues may have it grow.
pub(super) const BATCH: usize = 48;
/// Nodes dealt ahead of time in a lock section whose batch was full.
const AHEAD: usize = 96;
/// A deadline closer than this is looked at again before it is armed: arming an instant that has passed costs more than
/// reading the clock.
const NEAR_NS: u64 = 20_000;

/// How a sweep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    /// What was due has been handed out.
    Done,
    /// The batch was full.
    More,
}

/// What one lock section of a sweep has claimed. Of fixed size, on the stack: under the lock nothing is allocated, and no
/// queue of the pool is touched, which may run code of other crates.
pub(super) struct Batch {
    fires: [MaybeUninit<Fire>; BATCH],
    filled: usize,
}

impl Batch {
    #[inline]
    pub(super) fn new() -> Self {
        Self { fires: [const { MaybeUninit::uninit() }; BATCH], filled: 0 }
    }

    /// At most [`BATCH`] of them: each takes one from the work that a section may do.
    #[inline]
    fn push(&mut self, fire: Fire) {
        self.fires[self.filled].write(fire);
        self.filled += 1;
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Fire> + '_ {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: `push` has written the first `filled`, each is read once, and no later call sees them.
        self.fires[..filled].iter().map(|fire| unsafe { fire.assume_init_read() })
    }
}

/// See the module's ground rules. Aligned so that two shards never share a cache line.
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) inner: Mutex<ShardState>,
    pub(crate) clock: Clock,
    pub(crate) index: usize,
    pub(crate) waiters: Waiters,
    shared_refs: SharedRefs,
}

/// What the lock guards.
pub(crate) struct ShardState {
    pub(crate) queue: TimerWheel<EntryMeta>,
    /// The instant the alarm is set to; [`NEVER`] when it is not set; [`SWEEPING`].
    pub(crate) armed: u64,
    pub(crate) coalescer: Coalescer,
    /// The driver of a manual clock has been told that timers are armed here.
    pub(crate) touched: bool,
    /// The runtime; `None` when it has been shut down. Cloned out when work must be handed to it.
    engine: Option<Arc<Engine>>,
    local_refs: LocalRefs,
    /// The wall timers that belong to this queue and wait.
    pub(crate) walls: WallList,
}

// SAFETY: the entries of `walls` are reached with the lock held, and each is kept alive by the reference that it has while it is
// linked; everything else is `Send`.
unsafe impl Send for ShardState {}

impl Shard {
    pub(crate) fn new(index: usize, clock: Clock) -> NonNull<Self> {
        let inner = ShardState {
            queue: TimerWheel::new(clock.now()),
            armed: NEVER,
            coalescer: Coalescer::new(),
            touched: false,
            engine: None,
            local_refs: LocalRefs::new(),
            walls: WallList::default(),
        };
        let shard =
            Self { inner: Mutex::new(inner), clock, index, waiters: Waiters::new(), shared_refs: SharedRefs::new() };
        NonNull::from(Box::leak(Box::new(shard)))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, ShardState> {
        self.inner.lock()
    }

    /// Opens the shard for business.
    pub(crate) fn open(&self, engine: &Arc<Engine>) {
        self.inner.lock().engine = Some(Arc::clone(engine));
    }

    /// No timer fires any more, none is armed. What was filed stays to be drained with [`ShardState::queue`]'s `pop_any`.
    ///
    /// The caller holds the shard's own reference and gives it back with [`Self::depart`].
    pub(crate) fn close(&self) {
        let engine = {
            let mut inner = self.inner.lock();
            inner.local_refs.close(&self.shared_refs);
            inner.engine.take()
        };
        drop(engine);
    }

    /// One lock section of a sweep: fills `batch`. `None`: nothing was due, and there is more to be inserted anew.
    ///
    /// `wakes`: an alarm wakes this shard, so an instant that has come meanwhile may be swept at once.
    pub(super) fn sweep_step(&self, wakes: bool, batch: &mut Batch) -> Option<Swept> {
        let mut inner = self.lock();
        if !inner.is_open() {
            return Some(Swept::Done);
        }
        let mut now = self.clock.now();
        inner.armed = SWEEPING;
        let mut work = BATCH;
        let (mut fired, mut shortest) = (0, NEVER);
        loop {
            match inner.queue.next_due(now, &mut work) {
                Next::Due(node) => {
                    // SAFETY: handed out, so alive.
                    shortest = shortest.min(unsafe { node.as_ref() }.period(inner.queue.key()));
                    // SAFETY: handed out due and unlinked, with the list's reference.
                    if let Some(fire) = unsafe { inner.fire(self, node, now) } {
                        fired += 1;
                        batch.push(fire);
                    }
                }
                Next::Exhausted => {
                    inner.queue.cascade_ahead(now, AHEAD);
                    inner.coalescer.fired(now, fired, shortest);
                    return Some(Swept::More);
                }
                // For nothing once, but not again and again.
                Next::Nothing if fired == 0 && !inner.queue.look_ahead(&mut work) => return None,
                Next::Nothing => {
                    let next = inner.queue.next_deadline();
                    // The manual clock goes to where it is asked to: to be asked for the present instant again would never end.
                    assert!(next > now || wakes, "a sweep at {now} leaves behind what is due at {next}");
                    let busy = fired > 0 && inner.coalescer.wait_ns() > 0;
                    if !busy && next <= now.saturating_add(NEAR_NS) && wakes {
                        let later = self.clock.now();
                        if next <= later {
                            now = later;
                            continue;
                        }
                    }
                    inner.coalescer.fired(now, fired, shortest);
                    // An empty sweep makes nobody wait.
                    let wait_ns = if inner.coalescer.end(now) { inner.coalescer.wait_ns() } else { 0 };
                    inner.arm_after_sweep(self, next, now.saturating_add(wait_ns));
                    return Some(Swept::Done);
                }
            }
        }
    }

    /// Takes a batch of what is left in the queue of a closed shard.
    pub(super) fn drain(&self, batch: &mut Vec<EntryRef>) {
        let mut state = self.lock();
        let left = std::iter::from_fn(|| state.queue.pop_any()).take(BATCH);
        // SAFETY: `pop_any` unlinks, and the list's reference is the caller's now.
        batch.extend(left.map(|entry| unsafe { EntryRef::from_raw(entry) }));
    }

    /// Walks the queue and asserts what must hold with the lock free: I1 to I3 by the queue's own check, and I7.
    #[cfg(timerqueue_check)]
    pub(crate) fn check(&self) {
        let inner = self.inner.lock();
        let (due, armed) = (inner.queue.check(), inner.armed);
        if !matches!(self.clock, Clock::Manual { .. }) && inner.is_open() {
            let latest = due.max(self.clock.now().saturating_add(Coalescer::LONGEST_NS));
            assert!(armed == SWEEPING || due == NEVER || armed <= latest, "armed {armed}, due {due}");
        }
    }

    /// One timer, or the runtime, lets go of this shard without its lock.
    ///
    /// # Safety
    /// The caller's own reference is given back, and with it the right to touch the shard.
    pub(crate) unsafe fn depart(shard: NonNull<Self>) {
        // SAFETY: the caller's count keeps the shard alive until it is subtracted. No reference to the shard is made: the
        // shard may be freed while this still runs.
        if unsafe { SharedRefs::depart(&raw const (*shard.as_ptr()).shared_refs) } {
            // SAFETY: everybody has left a closed shard, and their last use of it happens before (see `SharedRefs::depart`).
            drop(unsafe { Box::from_raw(shard.as_ptr()) });
        }
    }
}

impl SharedRefs {
    /// Counts one out who does not hold the lock, and may not touch the shard any more. True: that was the last one of a
    /// closed shard, and the caller frees it.
    ///
    /// Release publishes the caller's use of the shard to whoever frees it; the acquire load pairs with the releases of all
    /// others. (An acquire load instead of a fence: race detectors understand it.)
    ///
    /// It takes a pointer: a `&SharedRefs` argument would have to stay valid until this returns, but another thread may free
    /// the shard right after the subtraction.
    ///
    /// # Safety
    /// The caller is counted in, so `shared_refs` is alive until the subtraction. After `false` the caller does not use it.
    #[must_use]
    pub(crate) unsafe fn depart(shared_refs: *const Self) -> bool {
        // SAFETY: the caller is counted in, and that keeps the shard alive up to the subtraction.
        let count = unsafe { &(*shared_refs).0 };
        let last = count.fetch_sub(1, Ordering::Release) == 1;
        if last {
            count.load(Ordering::Acquire);
        }
        last
    }
}

impl ShardState {
    pub(crate) fn is_open(&self) -> bool {
        self.engine.is_some()
    }

    /// The runtime, for handing it a job after the lock is released. `None` when the shard is closed.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        self.engine.as_ref()
    }

    /// What the clock shows, for a timer to be armed by, given what it showed before the lock was taken: see [`Clock::with_lock`].
    #[inline]
    pub(crate) fn now(&mut self, shard: &Shard, before: u64) -> u64 {
        self.touch(shard);
        shard.clock.with_lock(before)
    }

    /// A timer is going to be armed by what the clock shows. Called before that is read; see [`WorkerShared::touch`](crate::runtime::Seat).
    #[inline]
    pub(crate) fn touch(&mut self, shard: &Shard) {
        if matches!(shard.clock, Clock::Manual { .. }) && !self.touched {
            self.touched = true;
            if let Some(engine) = &self.engine {
                engine.touch(shard.index);
            }
        }
    }

    /// Whether the entry is in the queue.
    pub(super) fn is_queued(&self, entry: &EntryRef) -> bool {
        entry.get().is_filed(self.queue.key())
    }

    /// Whether the entry is in the queue, and is due at `deadline` or before.
    pub(super) fn is_queued_by(&self, entry: &EntryRef, deadline: u64) -> bool {
        self.is_queued(entry) && entry.get().due(self.queue.key()) <= deadline
    }

    /// Counts a new timer in. On a closed shard it is a stray from the start.
    pub(crate) fn arrive(&mut self, shard: &Shard) {
        self.local_refs.arrive(&shard.shared_refs);
    }

    /// Counts a timer out if the shard is open. False: the caller departs after the lock is released.
    #[must_use]
    pub(crate) fn count_out(&mut self) -> bool {
        self.local_refs.leave()
    }

    /// The next arming number, which orders what is due at one instant of virtual time. Real time promises no order and
    /// gives no numbers (S14).
    #[inline]
    pub(crate) fn number(shard: &Shard) -> u64 {
        match &shard.clock {
            Clock::Manual { virtual_time, .. } => virtual_time.next_number(),
            Clock::System(_) => 0,
        }
    }

    /// Sets the alarm to `at` if that is earlier than what it is set to.
    #[inline]
    fn arm_earlier(&mut self, shard: &Shard, at: u64) {
        if at < self.armed {
            self.armed = at;
            if let Some(engine) = &self.engine {
                engine.arm(shard.index, at);
            }
        }
    }

    /// Files a timer; who had been counted out is counted in again.
    ///
    /// # Safety
    /// As [`TimerWheel::file`]; the shard is open.
    #[inline]
    unsafe fn file(&mut self, shard: &Shard, node: NonNull<Entry>) -> u64 {
        // SAFETY: alive by the contract.
        if unsafe { node.as_ref() }.place(self.queue.key()) == Place::LEFT {
            self.arrive(shard);
        }
        // SAFETY: the contract.
        unsafe { self.queue.file(node) }
    }

    /// Puts a timer that is filed nowhere under a new schedule. Takes over one reference: for the list, for the job that
    /// is returned, or (when there is neither) it is given back.
    ///
    /// # Safety
    /// `node` is alive, idle, at shard here, and the reference is the caller's; it is not the last one.
    #[inline]
    pub(crate) unsafe fn schedule(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        period: u64,
        now: u64,
    ) -> Option<Fire> {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        shared.set_due(due, self.queue.key());
        shared.set_period(period, self.queue.key());
        if due == NEVER {
            // SAFETY: the reference that is handed over; the caller has another one.
            let last = unsafe { Entry::release(node) };
            debug_assert!(!last, "the caller keeps a reference");
            return None;
        }
        // On a manual clock what is due waits for whoever drives it.
        if shared.fires_at(self.queue.key()) > now || matches!(shard.clock, Clock::Manual { .. }) {
            self.queue.roll(now);
            // SAFETY: idle, and the list's reference keeps it alive.
            let at = unsafe { self.file(shard, node) };
            self.arm_earlier(shard, at);
            return None;
        }
        // SAFETY: idle and due; the reference goes along.
        unsafe { self.fire(shard, node, now) }
    }

    /// Claims the tick of a timer that is due at `now` and filed nowhere, and files it for its next one.
    /// Takes over one reference. `None`: the tick is owed.
    ///
    /// # Safety
    /// As [`Self::schedule`]; due.
    pub(crate) unsafe fn fire(&mut self, shard: &Shard, node: NonNull<Entry>, now: u64) -> Option<Fire> {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        // Detached: the list had the one reference that there is, and the job has it from now on.
        let alone = shared.has_only(1);
        match shared.state.claim(shared.kind, alone) {
            Claim::Queue => {
                // SAFETY: the contract of this function.
                let fire = unsafe { self.take_tick(shard, node, now) };
                if alone && !shared.is_filed(self.queue.key()) && self.count_out() {
                    shared.set_place(Place::LEFT, self.queue.key());
                }
                Some(fire)
            }
            Claim::Owe => {
                // SAFETY: the reference that is handed over. The job or callback that settles holds another one.
                let last = unsafe { Entry::release(node) };
                debug_assert!(!last, "the queued job or the running callback holds a reference");
                None
            }
        }
    }

    /// The second half of a claim: computes the tick, files the timer for the next one.
    ///
    /// # Safety
    /// As [`Self::fire`]; the tick has been claimed.
    pub(crate) unsafe fn take_tick(&mut self, shard: &Shard, node: NonNull<Entry>, now: u64) -> Fire {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let key = self.queue.key();
        let scheduled = shared.due(key);
        let taken = next_tick(shared.tick_policy.policy(), scheduled, shared.period(key), now);
        if taken.next != NEVER {
            shared.set_due(taken.next, key);
            if shared.fires_at(key) > now {
                shared.retain();
                // SAFETY: filed nowhere; the reference just taken keeps it alive.
                let at = unsafe { self.file(shard, node) };
                self.arm_earlier(shard, at);
            } else {
                shared.state.owe();
            }
        }
        // SAFETY: the reference is handed over by the caller.
        Fire { node: unsafe { EntryRef::from_raw(node) }, scheduled, missed: taken.missed }
    }

    /// Claims the deferred tick of an entry, whose queued job the caller has.
    pub(super) fn take_deferred_tick(&mut self, entry: &EntryRef) -> Fire {
        let shard = entry.shard();
        let now = shard.clock.now();
        entry.get().retain();
        // SAFETY: an entry with a deferred tick is not in the queue; the reference is for the job.
        unsafe { self.take_tick(shard, entry.as_ptr(), now) }
    }

    /// Puts a timer under a new schedule, whatever it does at the moment. `None`: disposed or consumed, nothing changed.
    /// Else whether the timer was waiting to fire, and a job for the pool if the new due point has come already.
    ///
    /// # Safety
    /// `node` is alive and at shard here, and the caller has a reference.
    #[inline]
    pub(crate) unsafe fn reschedule(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        period: u64,
        now: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: the contract.
        unsafe { self.reschedule_as(shard, node, due, period, now, Self::number(shard)) }
    }

    /// As [`Self::reschedule`], under this arming number.
    ///
    /// # Safety
    /// As there.
    #[inline(always)] // into both callers: an argument more would cost the hot one
    unsafe fn reschedule_as(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        period: u64,
        now: u64,
        number: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let Rearm::Armed { withdrawn } = shared.state.rearm(number) else { return None };
        // SAFETY: at shard here.
        if let Some(at) = unsafe { self.queue.keep(node, due) } {
            shared.set_period(period, self.queue.key());
            self.arm_earlier(shard, at);
            return Some((true, None));
        }
        // SAFETY: the contract.
        let (filed, job) = unsafe { self.refile(shard, node, due, period, now) };
        Some((filed || withdrawn, job))
    }

    /// As [`Self::reschedule`], to one firing, by the runtime and not by the timer's user: its place in the order of timers that are
    /// due at one instant stays (S14).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn aim_again(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        now: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: alive by the contract; the number is changed with the lock held alone.
        unsafe { self.reschedule_as(shard, node, due, NEVER, now, node.as_ref().state.number()) }
    }

    /// The part of [`Self::reschedule`] that moves it. Whether it was filed, and a job for the pool.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn refile(
        &mut self,
        shard: &Shard,
        node: NonNull<Entry>,
        due: u64,
        period: u64,
        now: u64,
    ) -> (bool, Option<Fire>) {
        // SAFETY: at shard here.
        let filed = unsafe { self.queue.unlink(node) };
        if !filed {
            // SAFETY: alive by the contract.
            unsafe { node.as_ref() }.retain();
        }
        // SAFETY: unlinked; one reference is for this, and the caller has another.
        (filed, unsafe { self.schedule(shard, node, due, period, now) })
    }

    /// Stops `node` without disposing it. Whether it was filed: then the list's reference is the caller's now.
    ///
    /// # Safety
    /// `node` is alive and at shard here.
    #[must_use]
    pub(crate) unsafe fn withdraw(&mut self, shard: &Shard, node: NonNull<Entry>) -> bool {
        // SAFETY: alive by the contract, and at shard here.
        unsafe { node.as_ref().state.rearm(Self::number(shard)) != Rearm::Refused && self.queue.unlink(node) }
    }

    /// Sets the alarm after a sweep: to the next deadline, but not before `earliest`; or not at all.
    pub(crate) fn arm_after_sweep(&mut self, shard: &Shard, next: u64, earliest: u64) {
        self.armed = if next == NEVER { NEVER } else { next.max(earliest) };
        if let Some(engine) = &self.engine {
            engine.arm_after_sweep(shard.index, self.armed, next);
        }
    }
}

/// The engine's own reference to a shard, which keeps it alive.
pub(super) struct ShardRef(NonNull<Shard>);

// SAFETY: shards are shared between threads by design.
unsafe impl Send for ShardRef {}
// SAFETY: as above.
unsafe impl Sync for ShardRef {}

impl ShardRef {
    pub(super) fn new(index: usize, clock: Clock) -> Self {
        Self(Shard::new(index, clock))
    }

    /// For an entry, which is counted in when it is started.
    #[inline]
    pub(super) fn as_ptr(&self) -> NonNull<Shard> {
        self.0
    }
}

impl std::ops::Deref for ShardRef {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        // SAFETY: this reference is given back when it is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ShardRef {
    fn drop(&mut self) {
        // SAFETY: given back once. (An open shard keeps its engine alive, so this one is closed.)
        unsafe { Shard::depart(self.0) };
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/arm_vs_sweep.rs"]
mod loom_models;
