//! The engine: timers on shards. Creating, changing and disposing go down ([`entry`]); alarm, sweep
//! and callback come up ([`sweep`]).
//!
//! Ground rules. Each operation locks a single shard, decides, puts a tick that is due into the
//! pool, unlocks, and only then acts: notifies the pool, runs callbacks, wakes, drops. References
//! to an entry are counted: handle 1, list of the queue 1, list of the wall timers 1, queued job 1
//! (which the running callback takes over), each waiter 1 (I15). The state word
//! ([`crate::queue::state`]) decides which thread may run or drop the callback.

use std::io::Write;
use std::sync::Weak;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(crate) use self::agenda::{Agenda, Driver};
use self::agenda::{Before, Membership};
pub(crate) use self::current::{CoreRef, Owner};
pub(crate) use self::entry::{
    EntryPayload, EntryRef, Exclusive, Firing, Once, Overlapping, OwnedEntry, change, dispose, restart,
    restart_under_lock,
};
pub use self::fire::CallbackJob;
pub(crate) use self::fire::{Executor, Expired, InOrder};
pub(crate) use self::frames::{inside, is_inside};
pub use self::observe::{CallbackContext, CallbackPanic, ObservedCallback, Observer, SlowCallback, ThreadsChanged};
use self::observe::{EngineNumber, PoolNews};
pub(crate) use self::observe::{Hooks, Label, Settings};
pub(crate) use self::outlook::soonest;
pub use self::outlook::{PendingTimer, TimerDump, TimerSnapshot, TimerState};
pub use self::shard::Changed;
#[cfg(all(test, timerqueue_loom))]
pub(crate) use self::shard::SWEEPING;
pub(crate) use self::shard::{Notice, Shard};
use self::shard::{ShardRef, ShardState};
pub(crate) use self::timer_arc::{Timed, TimerArc, TimerHandle, TimerWeak};
pub(crate) use self::waits::Waits;
pub(crate) use self::waker_entry::{Looked, WakerEntry};
use self::wall_registry::WallRegistry;
pub(crate) use self::wall_registry::{change_wall, start_wall};
use crate::alarm::{Clock, Loss, SharedAlarm};
use crate::one_drop::OneDrop;
use crate::pool::{BATCH, Counts, Metrics, Pool, Ran, Tick};
use crate::sync::unmodelled::{self, OnceLock};
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sys::cpu;
use crate::sys::fork::ForkGuard;
use crate::sys::topology::{CoreId, queues_of};
use crate::time::NEVER;
use crate::unwind::{Payload, Tell, catch_all, contain, contain_drop, discard};

mod agenda;
mod coalesce;
pub(crate) mod current;
mod entry;
mod fire;
mod frames;
mod lead;
mod observe;
mod outlook;
mod shard;
pub(crate) mod shared_alarm;
mod sweep;
mod timer_arc;
mod waiters;
mod waits;
mod waker_entry;
mod wall_registry;

/// The core of a runtime: shards, alarms and pool.
pub(crate) struct Engine {
    number: EngineNumber,
    shards: Box<[ShardRef]>,
    /// The index of a CPU's shard, by CPU id.
    shard_of_cpu: Box<[u16]>,
    /// Round robin for runtimes on a manual clock, so that nothing depends on the machine.
    next_shard: AtomicU64,
    /// `None` on a manual clock.
    pub(crate) native: Option<NativeParts>,
    /// One for each [`shared_alarm::SHARE`] shards, in real time.
    shared_alarms: Box<[SharedAlarm]>,
    /// The place of this engine in the agenda of a manual clock.
    membership: OnceLock<Box<dyn Membership>>,
    /// Sweeps and ticks that the driver of a manual clock, or an executor of the program's, has
    /// begun: see [`Self::enter_by_hand`].
    running_by_hand: AtomicUsize,
    /// The callbacks that will not run, if the program asks for them: see [`Self::keep_unfired`]. A
    /// leaf lock.
    unfired: unmodelled::Mutex<Option<Vec<Firing>>>,
    /// Of these, the handed-over callbacks that wait in [`Self::wait_for_driver`].
    waiting_by_hand: AtomicUsize,
    hooks: OneDrop<Hooks>,
    pool_news: PoolNews,
    panics: AtomicU64,
    /// The firings on the driver of a manual clock, or on an executor of the program's.
    by_hand: Counts,
    closed: AtomicBool,
    /// The alarms are lost, and a thread is being started to end the runtime.
    loss_found: AtomicBool,
    loss_told: AtomicBool,
    me: Weak<Self>,
    /// The state that the handles of the runtime share; gone with the last of them.
    owner: OnceLock<Weak<Owner>>,
    /// The instant at which closing began; [`NEVER`] before. Stored before the first shard is
    /// closed. A std atomic, since no other access pairs with it: a model need not explore its
    /// reads.
    ended_at: unmodelled::AtomicU64,
    pub(crate) clock: Clock,
    pub(crate) walls: WallRegistry,
    /// The process that made the engine.
    origin: ForkGuard,
}

/// The parts of an engine in real time: the threads, which wait for the alarms.
pub(crate) struct NativeParts {
    pub(crate) pool: OneDrop<Pool<Engine>>,
    /// Where callbacks run instead of the pool.
    pub(crate) executor: Option<Box<Executor>>,
}

impl Engine {
    /// An engine with `queues` shards for `cores`; its threads are not started yet. The parts come
    /// in a box, since a thread of a model has a small stack.
    pub(crate) fn new(
        queues: usize,
        cores: &[CoreId],
        clock: Clock,
        native: Option<Box<NativeParts>>,
        hooks: OneDrop<Hooks>,
    ) -> Arc<Self> {
        let shard_of_cpu = queues_of(cores, queues);
        let walls = WallRegistry::new(native.is_none());
        let shared_alarms = shared_alarm::shared_alarms(if native.is_some() { queues } else { 0 });
        let origin = ForkGuard::here_if_told();
        let engine = Arc::new_cyclic(|me| {
            // First what may unwind, by the signatures: then no code drops the rest.
            let number = EngineNumber::of(me);
            let shards = (0..queues).map(|i| ShardRef::new(i, clock.clone(), number)).collect();
            Self {
                number,
                shards,
                shard_of_cpu,
                next_shard: AtomicU64::new(0),
                native: native.map(|native| *native),
                shared_alarms,
                membership: OnceLock::new(),
                running_by_hand: AtomicUsize::new(0),
                unfired: unmodelled::Mutex::new(None),
                waiting_by_hand: AtomicUsize::new(0),
                hooks,
                pool_news: PoolNews::default(),
                panics: AtomicU64::new(0),
                by_hand: Counts::default(),
                closed: AtomicBool::new(false),
                loss_found: AtomicBool::new(false),
                loss_told: AtomicBool::new(false),
                me: Weak::clone(me),
                owner: OnceLock::new(),
                ended_at: unmodelled::AtomicU64::new(NEVER),
                clock,
                walls,
                origin,
            }
        });
        for shard in engine.shards() {
            shard.open(&engine);
        }
        engine
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        (0..self.shards.len()).map(|queue| self.shard(queue))
    }

    /// Whether the runtime has been shut down.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The instant of the shutdown; [`NEVER`] before. A thread that finds a shard closed reads no
    /// older value, since the lock of the shard orders the store before.
    pub(crate) fn ended_at(&self) -> u64 {
        self.ended_at.load(Ordering::Relaxed)
    }

    /// Whether this process has inherited the engine by a fork.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.origin.is_here()
    }

    /// Whether this process has inherited the engine by a fork, and with it neither threads nor
    /// alarms. (A manual clock needs none.)
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.is_inherited() && self.native.is_some()
    }

    fn parts(&self) -> &NativeParts {
        self.native.as_ref().expect("only a native runtime has a pool that asks")
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// See [`Runtime::metrics`](crate::Runtime::metrics).
    pub(crate) fn metrics(&self) -> Metrics {
        let now = self.clock.now();
        let mut sum = self.native.as_ref().map(|native| native.pool.metrics(now)).unwrap_or_default();
        self.by_hand.add_to(&mut sum);
        // The ticks that have begun are read before those that were claimed: so a tick that is
        // claimed and begins meanwhile is not counted as begun alone.
        self.shards().for_each(|shard| shard.lock().tally.add_to(&mut sum));
        let timers = self.native.as_ref().map_or(0, |native| native.pool.alarms.timers());
        sum.alarms_set += self.shared_alarms.iter().map(SharedAlarm::sets).sum::<u64>();
        sum.callbacks = sum.callbacks.saturating_sub(sum.wakers);
        sum.waiting = if self.is_closed() { 0 } else { (sum.waiting as i64).max(0) as u64 };
        Metrics { panics: self.panics(), active: self.active(), kernel_timers: timers.min(self.shards.len()), ..sum }
    }

    /// The queue of the CPU that the calling thread runs on; `None` on a manual clock, where CPUs
    /// do not count.
    #[inline]
    pub(crate) fn current_queue(&self) -> Option<usize> {
        self.native.as_ref()?;
        let core = cpu::current();
        Some(match self.shard_of_cpu.get(core) {
            Some(&index) => usize::from(index),
            None => core % self.shards.len(),
        })
    }

    /// The shard of a timer made by the calling thread.
    #[inline]
    fn shard_here(&self) -> &ShardRef {
        let in_turn = || (self.next_shard.fetch_add(1, Ordering::Relaxed) % self.shards.len() as u64) as usize;
        &self.shards[self.current_queue().unwrap_or_else(in_turn)]
    }

    /// The agenda of the manual clock that this engine is on.
    pub(crate) fn agenda(&self) -> Option<&std::sync::Arc<Agenda>> {
        self.membership.get().map(|membership| membership.agenda())
    }

    /// Sets the alarm of a queue earlier. Caller: holds the lock of the queue.
    pub(crate) fn arm(&self, queue: usize, at: u64) {
        if let Some(native) = &self.native {
            native.pool.alarms.arm(queue, at);
            self.look_for_loss();
        } else if let Some(membership) = self.membership.get() {
            membership.set(queue, at, Before::Later);
        }
    }

    /// Sets the alarm of a queue that has been swept: to `at`, which may include a coalescing
    /// delay; on a manual clock, which does not coalesce, to the `deadline`. Caller: holds the lock
    /// of the queue.
    pub(crate) fn arm_after_sweep(&self, queue: usize, at: u64, deadline: u64) {
        if let Some(native) = &self.native {
            if at != NEVER {
                native.pool.alarms.arm(queue, at);
            }
        } else if let Some(membership) = self.membership.get() {
            membership.set(queue, deadline, Before::Any);
        }
    }

    /// Puts a job into the pool; [`Self::notify`] follows, after the lock. `_open` is the state of
    /// any shard of this engine, open and locked. So the job is found: the thread that ends the
    /// runtime closes all shards before it looks into the queues of the pool. The caller itself
    /// runs no destructor, waker or hook: it may hold locks of its own.
    fn put(&self, expired: Expired, _open: &ShardState) {
        // On a manual clock every timer goes into a queue, even if due: so this is a native
        // runtime.
        if let Some(native) = &self.native {
            let due = match &expired {
                Expired::Tick(firing) => firing.scheduled,
                Expired::Waker(_) => self.clock.now(), // it has come due just now
            };
            native.pool.submit(expired, due);
        }
    }

    fn notify(&self) {
        if let Some(native) = &self.native {
            native.pool.notify(self);
        }
    }

    /// Gives a job to the pool, or discards this job if the runtime has ended. Called with no lock
    /// held.
    pub(super) fn submit(&self, expired: Expired) {
        let state = self.shard(self.current_queue().unwrap_or(0)).lock();
        if state.is_open() {
            self.put(expired, &state);
            drop(state);
            self.notify();
        } else {
            drop(state);
            expired.discard(self);
        }
    }

    /// Calls a waker of foreign code: a panic goes to the panic handler (S37).
    pub(super) fn wake(&self, waker: Waker) {
        contain(self, || waker.wake());
    }

    /// Calls wakers of several tasks. In real time all but the first are jobs of the pool, so that
    /// a waker that blocks delays no other (S37). Called with no lock held.
    pub(crate) fn wake_each(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut wakers = wakers.into_iter();
        let Some(first) = wakers.next() else { return };
        for waker in wakers {
            if self.native.is_some() && !self.is_closed() && !self.is_forked() {
                self.by_hand.share_other();
                self.submit(Expired::Waker(waker));
            } else {
                self.wake(waker);
            }
        }
        self.wake(first);
    }

    /// The address that identifies the engine, for [`inside`]: the thread is inside of a callback
    /// that was handed over.
    pub(super) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// A callback took long (`slow`: how long, and how late it began), or panicked.
    #[cold]
    fn ended_badly(&self, label: Option<Arc<Label>>, slow: Option<(Duration, Duration)>, panicked: Option<Payload>) {
        if let Some((took, late)) = slow {
            contain(self, || self.hooks.tell_slow(&SlowCallback { took, late, label: label.clone() }));
        }
        if let Some(payload) = panicked {
            self.handle_panic(payload, label);
        }
    }

    /// As [`Tell::tell`]. `label`: of the timer whose callback, or whose destructor, has panicked.
    fn handle_panic(&self, payload: Payload, label: Option<Arc<Label>>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let place = self.address().wrapping_byte_add(1);
        // What panics inside of the handler is not told: else there might be no end.
        if is_inside(place) {
            return discard(payload);
        }
        inside(place, || self.hooks.tell_panic(CallbackPanic { payload, label }));
    }

    // ---------------------------------------------------------------- queries; the path of a firing is in `sweep` and `fire`

    /// The earliest due point, exactly; [`NEVER`]: no timer comes due.
    pub(crate) fn earliest_due(&self) -> u64 {
        (0..self.shards.len()).map(|queue| self.earliest_due_of(queue)).min().unwrap_or(NEVER)
    }

    /// As [`Self::earliest_due`], of a single queue; on a manual clock the entry of the agenda is
    /// set to the result.
    pub(crate) fn earliest_due_of(&self, queue: usize) -> u64 {
        loop {
            let mut inner = self.shard(queue).lock();
            if let Some(earliest) = inner.queue.earliest_due(&mut { BATCH }) {
                // Without an entry a sweep is pending, or no timer of the queue comes due.
                let membership = self.membership.get();
                if membership.is_some_and(|membership| membership.set(queue, earliest, Before::There)) {
                    inner.armed = earliest;
                }
                return earliest;
            }
        }
    }

    // ---------------------------------------------------------------- for the driver of a manual clock, and executors

    /// For the driver of a manual clock: takes all due timers of a queue.
    pub(crate) fn sweep_by_hand(&self, queue: usize, due: &mut Vec<InOrder>) {
        while {
            due.reserve(BATCH); // before the lock is taken
            let put = |expired, scheduled, number_of_waker| due.push(InOrder { scheduled, number_of_waker, expired });
            self.shard(queue).sweep_batch(self.native.is_some(), put).more
        } {}
    }

    /// For the driver of a manual clock, and for an executor of the program's: runs a swept tick or
    /// waker. Returns whether a callback or waker ran. `put` takes a deferred tick, before the
    /// callback begins or after it has ended: it must be passed on at once, since the callback may
    /// block. Caller: is inside of [`Self::enter_by_hand`].
    pub(crate) fn run_by_hand(&self, tick: InOrder, mut put: impl FnMut(InOrder)) -> bool {
        let InOrder { scheduled, expired, .. } = tick;
        self.count_by_hand(scheduled, || match expired {
            // A callback of the same instant, or another thread, has shut the runtime down.
            Expired::Tick(firing) if self.is_closed() => {
                if self.give_up(firing) {
                    self.by_hand.share_other(); // it begins once more
                }
                Ran::Void
            }
            waker if self.is_closed() => {
                waker.discard(self);
                Ran::Void
            }
            Expired::Tick(firing) => firing.run(self, |deferred| put(deferred.into())),
            Expired::Waker(waker) => {
                self.wake(waker);
                Ran::Waker
            }
        })
    }

    /// Counts what runs outside of the pool. Returns whether it was a callback or waker.
    fn count_by_hand(&self, scheduled: u64, run: impl FnOnce() -> Ran) -> bool {
        let late = self.clock.now().saturating_sub(scheduled);
        self.by_hand.share_begin();
        let ran = run();
        if ran != Ran::Void {
            self.by_hand.share_ran(ran, late);
        }
        ran != Ran::Void
    }

    /// A thread that is not of the pool is about to claim ticks, or has some: a shutdown waits for
    /// it.
    fn enter_by_hand(&self) {
        self.running_by_hand.fetch_add(1, Ordering::Relaxed);
        // pairs with `wait_for_driver`: either its thread sees the count, or this thread sees the
        // end
        fence(Ordering::SeqCst);
    }

    fn leave_by_hand(&self) {
        self.running_by_hand.fetch_sub(1, Ordering::Release);
    }

    fn shard(&self, queue: usize) -> &Shard {
        &self.shards[queue]
    }

    /// The number of timers waiting to fire, without the runtime's own.
    pub(crate) fn active(&self) -> usize {
        let look = self.walls.own_timer();
        let of = |shard: &Shard| {
            let inner = shard.lock();
            let own =
                look.is_some_and(|look| std::ptr::eq(look.shard(), shard) && look.get().is_queued(inner.queue.key()));
            inner.queue.len() - usize::from(own)
        };
        self.shards().map(of).sum()
    }

    /// After closing: waits up to `limit` until the driver of a manual clock, or an executor of the
    /// program's, has no tick of this runtime and runs no callback. Does not wait if the calling
    /// thread is the driver. A caller inside of handed-over callbacks waits neither for these
    /// callbacks nor for others that wait here, since they would wait for each other. False: a
    /// callback still runs.
    ///
    /// It looks each millisecond. A callback that tells of its end would have to look for waiters
    /// after each run, for a wait that a shutdown alone has, and only if a callback runs at that
    /// time; its limit bounds the looks.
    pub(crate) fn wait_for_driver(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        fence(Ordering::SeqCst);
        let inside = frames::times_inside(self.address());
        self.waiting_by_hand.fetch_add(inside, Ordering::Relaxed);
        let discounted = || if inside > 0 { self.waiting_by_hand.load(Ordering::Relaxed) } else { 0 };
        let is_driver = self.agenda().is_some_and(|agenda| is_inside(agenda.address()));
        let ended = loop {
            let left = limit.saturating_sub(begun.elapsed());
            if is_driver || self.running_by_hand.load(Ordering::Acquire) <= discounted() {
                break true;
            } else if left.is_zero() {
                break false;
            }
            std::thread::sleep(left.min(Duration::from_millis(1)));
        };
        self.waiting_by_hand.fetch_sub(inside, Ordering::Relaxed);
        ended
    }

    // ---------------------------------------------------------------- closing

    /// Closes all shards and disposes the queued timers. Afterwards no timer fires.
    pub(crate) fn close(&self) {
        let _ = self.ended_at.compare_exchange(NEVER, self.clock.now(), Ordering::Relaxed, Ordering::Relaxed);
        // Shards are closed first. Only then are `run_by_hand` and the pool told to dispose the
        // timers of their jobs: code that finds a timer disposed finds the shard closed as well.
        self.shards().for_each(Shard::close);
        self.closed.store(true, Ordering::Release);
        if self.native.is_some() {
            Pool::stop(self);
        }
        let keeps = self.keeps_unfired();
        if let Some(membership) = self.membership.get() {
            membership.leave(self, keeps);
        }
        self.walls.close(self, keeps);
        let mut batch = Vec::with_capacity(BATCH);
        for shard in self.shards() {
            while shard.drain(&mut batch) {
                batch.drain(..).for_each(|entry| self.leave(entry));
            }
        }
    }

    // ---------------------------------------------------------------- the end, when alarms are lost (see [`crate::alarm::Loss`])

    // Any thread may find the loss, with a lock held: of a shard when an alarm is set, of the pool
    // when the stall check is armed. Closing takes locks and runs code of the user's. So a new
    // thread closes the runtime, unless a poller found the loss.

    fn loss(&self) -> Option<&Loss> {
        self.native.as_ref()?.pool.alarms.loss_record().filter(|loss| loss.is_noted())
    }

    /// After a call to the alarms, perhaps with a lock held: if the alarms are lost, has another
    /// thread end the runtime.
    #[inline]
    pub(super) fn look_for_loss(&self) {
        if self.loss().is_some() {
            self.end_elsewhere();
        }
    }

    #[cold]
    fn end_elsewhere(&self) {
        // Already shut down: the descriptors are not needed any more.
        if self.is_closed() || self.loss_found.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(engine) = self.me.upgrade() else { return };
        let body = Box::new(move || engine.end_for_loss());
        if crate::sync::spawn(String::from("timerqueue-lost"), body, Box::new(|| ())).is_err() {
            // The next call to the alarms finds the loss again.
            self.loss_found.store(false, Ordering::Release);
        }
    }

    /// Caller: holds no lock. Closes the runtime, then tells the panic handler, or standard error
    /// where there is none. Once.
    pub(super) fn end_for_loss(&self) {
        let Some(loss) = self.loss() else { return };
        // Already shut down, or another thread has found the loss and is about to close the
        // runtime.
        if self.is_closed() || self.loss_told.swap(true, Ordering::AcqRel) {
            // The poller that calls would be back at once; the other thread may have less priority.
            return std::thread::sleep(Duration::from_millis(1));
        }
        self.close();
        if !self.hooks.tell_panic(CallbackPanic { payload: Box::new(loss.message()), label: None }) {
            // If standard error is closed too, the message is lost.
            let _ = std::io::stderr().write_all((loss.message() + "\n").as_bytes());
        }
    }
}

impl Tell for Engine {
    fn tell(&self, payload: Payload) {
        self.handle_panic(payload, None);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.number.remove();
        // The thread is any, perhaps in the middle of an operation: a panic of the destructor of a
        // hook is caught. The panic handler goes last, and is told of the others.
        let executor = self.native.as_mut().and_then(|native| native.executor.take());
        let Hooks { slow, thread_begins, thread_ends, observer, .. } = &mut *self.hooks;
        let (slow, observer) = (slow.take(), observer.take());
        let of_threads = [thread_begins.take(), thread_ends.take()];
        contain_drop(self, executor);
        contain_drop(self, slow);
        contain_drop(self, of_threads);
        contain_drop(self, observer);
        catch_all(|| drop(self.hooks.panicked.take()));
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/timer_harness.rs"]
mod loom_models;
