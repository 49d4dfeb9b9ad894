//! The path of a timer: create, change, dispose going down (`calls`); alarm, sweep, callback coming up.
//!
//! Ground rules. Each operation locks one home, decides, unlocks, and only then acts: hands over jobs, runs callbacks,
//! wakes, drops. References to a node are counted: one for the handle, one while it is filed, one for a queued job, one
//! for a running callback, one for each waiter. The state word ([`crate::queue::state`]) decides who may do what.

#![allow(unsafe_code)] // lifetime of nodes

use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, fence};
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::alarm::{Alarms, Clock, Event, Native};
use crate::cores::queues_of;
use crate::here;
use crate::home::{Home, SWEEPING, Then};
use crate::pool::{Local, Pool, Work};
use crate::queue::leeway::Manner;
use crate::queue::state::{Begin, End};
use crate::queue::{Kind, NEVER, Next, Node};
use crate::runtime::Seat;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, thread_id};
use crate::timer::Tick;
use crate::user_code::{contained, inside};
use crate::wall::Walls;

mod calls;
mod lost;
mod refs;

use calls::finish_disposal;
pub(crate) use calls::{
    Rescheduled, change, dispose, dispose_last, free_last, hand_over, instant, start, start_at, start_with,
};
pub(crate) use refs::{Hook, NodeRef, TimerNode, VTable};

/// Due nodes looked at in one lock section of a sweep: some microseconds. Fewer than an empty deque of the pool holds at first
/// (64), since growing and shrinking it costs more than another lock section; only a sweep of several busy queues may have it grow.
const BATCH: usize = 48;
/// Nodes dealt ahead of time in a lock section whose batch was full.
const AHEAD: usize = 96;
/// A busy queue that is swept takes up to so many others along.
const COMPANIONS: usize = 3;
/// By how much the alarm of a queue that was taken along comes after the one that will, most likely, take it along again.
pub(crate) const PATIENCE_NS: u64 = 50_000;
/// A deadline closer than this is looked at again before it is armed: arming an instant that has passed costs more than
/// reading the clock.
const NEAR_NS: u64 = 20_000;

/// How a sweep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swept {
    /// What was due has been handed out.
    Done,
    /// The same, and the next alarm waits for company until then.
    Busy { until: u64 },
    /// The batch was full.
    More,
}

/// A due tick on its way to the callback. Carries a reference.
pub(crate) struct Fire {
    pub(crate) node: NodeRef,
    pub(crate) scheduled: u64,
    pub(crate) missed: u64,
}

/// What one lock section of a sweep has claimed. Of fixed size, on the stack: under the lock nothing is allocated, and no
/// queue of the pool is touched, which may run code of other crates.
struct Batch {
    fires: [MaybeUninit<Fire>; BATCH],
    filled: usize,
}

impl Batch {
    #[inline]
    fn new() -> Self {
        Self { fires: [const { MaybeUninit::uninit() }; BATCH], filled: 0 }
    }

    /// At most [`BATCH`] of them: each takes one from the work that a section may do.
    #[inline]
    fn push(&mut self, fire: Fire) {
        self.fires[self.filled].write(fire);
        self.filled += 1;
    }

    fn drain(&mut self) -> impl Iterator<Item = Fire> + '_ {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: `push` has written the first `filled`, each is read once, and no later call sees them.
        self.fires[..filled].iter().map(|fire| unsafe { fire.assume_init_read() })
    }
}

/// What the pool runs.
pub(crate) enum Job {
    /// Run a callback.
    Fire(Fire),
    /// The batch was full: go on sweeping this queue.
    Sweep(u32),
}

/// Where jobs that arise while a job runs are put.
pub(crate) trait Sink {
    fn put(&mut self, fire: Fire);
}

/// The pool. A timer that goes on by itself goes to the back, behind all that waits: it takes its turn, whatever its period.
struct Shared<'a>(&'a Engine);

impl Sink for Shared<'_> {
    fn put(&mut self, fire: Fire) {
        self.0.submit(fire);
    }
}

impl Sink for &mut Vec<Fire> {
    fn put(&mut self, fire: Fire) {
        self.push(fire);
    }
}

/// A callback, a destructor of user data or a waker has panicked.
pub(crate) type PanicHandler = dyn Fn(Box<dyn Any + Send>) + Send + Sync;

/// What a runtime is made of.
pub(crate) struct Engine {
    homes: Box<[NonNull<Home>]>,
    /// Core id to index of its home.
    home_of_core: Box<[u16]>,
    /// Round robin for manual runtimes, so that they do not depend on the machine.
    next_home: AtomicU64,
    /// `None` on a manual clock.
    native: Option<NativeParts>,
    /// Where it has its deadlines looked after on a manual clock.
    seat: OnceLock<Seat>,
    /// Callbacks that the driver of a manual clock runs now.
    running_by_hand: AtomicUsize,
    panic_handler: Option<Arc<PanicHandler>>,
    panics: AtomicU64,
    fired_by_hand: AtomicU64,
    closed: AtomicBool,
    /// The alarms are lost, and a thread is on its way to end the runtime ([`lost`]).
    loss_found: AtomicBool,
    loss_told: AtomicBool,
    me: Weak<Self>,
    /// The instant at which closing began; [`NEVER`] before. Stored before the first home is closed. An atomic of std: nothing pairs with
    /// it, so reading it is one step in a model.
    ended_at: std::sync::atomic::AtomicU64,
    clock: Clock,
    walls: Walls,
}

/// Threads and alarms.
pub(crate) struct NativeParts {
    pub(crate) alarms: Native,
    pub(crate) pool: Pool<Job>,
}

// SAFETY: homes are shared between threads by design.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

impl Engine {
    /// Homes for `cores` (or just `queues` of them), not started yet.
    pub(crate) fn new(
        queues: usize,
        cores: &[core_affinity::CoreId],
        clock: Clock,
        native: Option<NativeParts>,
        panic_handler: Option<Arc<PanicHandler>>,
    ) -> Arc<Self> {
        let home_of_core = queues_of(cores, queues);
        let homes = (0..queues).map(|i| Home::new(i, clock.clone())).collect();
        let walls = Walls::new(native.is_none());
        let engine = Arc::new_cyclic(|me| Self {
            homes,
            home_of_core,
            next_home: AtomicU64::new(0),
            native,
            seat: OnceLock::new(),
            running_by_hand: AtomicUsize::new(0),
            panic_handler,
            panics: AtomicU64::new(0),
            fired_by_hand: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            loss_found: AtomicBool::new(false),
            loss_told: AtomicBool::new(false),
            me: Weak::clone(me),
            ended_at: std::sync::atomic::AtomicU64::new(NEVER),
            clock,
            walls,
        });
        for home in engine.homes() {
            home.open(&engine);
        }
        engine
    }

    pub(crate) fn homes(&self) -> impl Iterator<Item = &Home> {
        (0..self.homes.len()).map(|queue| self.home(queue))
    }

    /// Shut down.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The instant at which it was shut down; [`NEVER`] before. A thread that finds a home closed reads no older value: the lock of
    /// the home orders it.
    pub(crate) fn ended_at(&self) -> u64 {
        self.ended_at.load(Ordering::Relaxed)
    }

    /// The timers that wait for the wall clock.
    pub(crate) fn walls(&self) -> &Walls {
        &self.walls
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn native(&self) -> Option<&NativeParts> {
        self.native.as_ref()
    }

    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Callbacks begun.
    pub(crate) fn fired(&self) -> u64 {
        let pool = self.native.as_ref().map_or(0, |native| native.pool.useful());
        pool + self.fired_by_hand.load(Ordering::Relaxed)
    }

    /// The queue of the core that the calling thread runs on; `None` on a manual clock, which knows no cores.
    #[inline]
    pub(crate) fn queue_here(&self) -> Option<usize> {
        self.native.as_ref()?;
        let core = here::core_id();
        Some(match self.home_of_core.get(core) {
            Some(&index) => usize::from(index),
            None => core % self.homes.len(),
        })
    }

    /// The home of a timer that is made by the calling thread.
    #[inline]
    fn home_here(&self) -> NonNull<Home> {
        let in_turn = || (self.next_home.fetch_add(1, Ordering::Relaxed) % self.homes.len() as u64) as usize;
        self.homes[self.queue_here().unwrap_or_else(in_turn)]
    }

    /// On a manual clock: the engine has its deadlines looked after from now on.
    pub(crate) fn sit(&self, seat: Seat) {
        let before = self.seat.set(seat);
        debug_assert!(before.is_ok(), "an engine is on one clock");
    }

    /// Sets the alarm of a queue earlier. Caller: holds the lock of the queue.
    pub(crate) fn arm(&self, queue: usize, at: u64) {
        if let Some(native) = &self.native {
            native.alarms.arm(queue, at);
            self.look_for_loss();
        } else if let Some(seat) = self.seat.get() {
            seat.lower(queue, at);
        }
    }

    /// Sets the alarm of a queue that has been swept: to `at`, which may wait for company, or, since a manual clock waits for none, to
    /// the `deadline` itself. Caller: holds the lock of the queue.
    pub(crate) fn arm_after_sweep(&self, queue: usize, at: u64, deadline: u64) {
        if let Some(native) = &self.native {
            if at != NEVER {
                native.alarms.arm(queue, at);
            }
        } else if let Some(seat) = self.seat.get() {
            seat.set(queue, deadline);
        }
    }

    /// Takes over a job from outside the pool.
    pub(crate) fn submit(&self, fire: Fire) {
        // A manual clock files everything, so this is a native runtime.
        if self.native.is_some() {
            Pool::submit(self, Job::Fire(fire));
        }
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        match &self.panic_handler {
            Some(handler) => contained(|| handler(payload)),
            None => contained(|| drop(payload)),
        }
    }

    // ---------------------------------------------------------------- down: create, change, dispose

    /// A header for a new timer of this runtime, at home with the core it is made on.
    #[inline]
    pub(crate) fn header(&self, kind: Kind, manner: impl Into<Manner>, vtable: &'static VTable) -> TimerNode {
        // Two references: the handle's, and the one that `start` places.
        Node::with(2, kind, manner, Hook { home: self.home_here(), vtable })
    }

    // ---------------------------------------------------------------- up: sweep, run

    /// Sweeps one queue, a batch at most, and hands it to `put` when the lock has been released. On account of company its next
    /// alarm is put off by `patience_ns` more.
    fn sweep_into(&self, home: &Home, patience_ns: u64, put: impl FnMut(Fire)) -> Swept {
        let mut batch = Batch::new();
        let swept = loop {
            // At once: who waits for the alarm to be set would else wait behind callbacks.
            if let Some(swept) = self.sweep_section(home, patience_ns, &mut batch) {
                break swept;
            }
        };
        batch.drain().for_each(put);
        swept
    }

    /// One lock section of [`Self::sweep_into`]. `None`: nothing was due, and there is more to be filed anew.
    fn sweep_section(&self, home: &Home, patience_ns: u64, batch: &mut Batch) -> Option<Swept> {
        let mut inner = home.inner.lock();
        if !inner.is_open() {
            return Some(Swept::Done);
        }
        let mut now = home.clock.now();
        inner.armed = SWEEPING;
        let mut work = BATCH;
        let (mut fired, mut shortest) = (0, NEVER);
        loop {
            match inner.queue.next_due(now, &mut work) {
                Next::Due(node) => {
                    // SAFETY: handed out, so alive.
                    shortest = shortest.min(unsafe { node.as_ref() }.period(inner.queue.key()));
                    // SAFETY: handed out due and unlinked, with the list's reference.
                    if let Some(fire) = unsafe { inner.fire(home, node, now) } {
                        fired += 1;
                        batch.push(fire);
                    }
                }
                Next::Exhausted => {
                    inner.queue.deal_ahead(now, AHEAD);
                    inner.crowd.fired(now, fired, shortest);
                    home.no_rendezvous();
                    return Some(Swept::More);
                }
                // For nothing once, but not again and again.
                Next::Nothing if fired == 0 && !inner.queue.look_ahead(&mut work) => return None,
                Next::Nothing => {
                    let next = inner.queue.next_deadline();
                    // The manual clock goes to where it is asked to: to be asked for the present instant again would never end.
                    assert!(
                        next > now || self.native.is_some(),
                        "a sweep at {now} leaves behind what is due at {next}"
                    );
                    let busy = fired > 0 && inner.crowd.wait_ns(0) > 0;
                    if !busy && next <= now.saturating_add(NEAR_NS) && self.native.is_some() {
                        let later = home.clock.now();
                        if next <= later {
                            now = later;
                            continue;
                        }
                    }
                    inner.crowd.fired(now, fired, shortest);
                    // An empty sweep makes nobody wait.
                    let company_ns = if inner.crowd.end(now) { inner.crowd.wait_ns(patience_ns) } else { 0 };
                    if company_ns == 0 {
                        inner.arm_after_sweep(home, next, Then::Alone);
                        return Some(Swept::Done);
                    }
                    let until = now.saturating_add(company_ns);
                    let guest =
                        next >= until && next != NEVER && self.hosts_of(home.index).any(|host| host.hosts(next));
                    let then = if guest {
                        Then::Guest { patience_ns: inner.crowd.bounded(PATIENCE_NS) }
                    } else {
                        Then::Company { until }
                    };
                    inner.arm_after_sweep(home, next, then);
                    return Some(Swept::Busy { until });
                }
            }
        }
    }

    /// For the driver of a manual clock: takes all due timers of a queue.
    pub(crate) fn sweep_by_hand(&self, queue: usize, put: &mut Vec<Fire>) {
        while self.sweep_into(self.home(queue), 0, |fire| put.push(fire)) == Swept::More {}
    }

    /// The earliest due point, exactly; [`NEVER`]: nothing comes due.
    pub(crate) fn earliest_due(&self) -> u64 {
        (0..self.homes.len()).map(|queue| self.earliest_due_of(queue)).min().unwrap_or(NEVER)
    }

    /// The same of one queue, and a manual clock goes by that from now on.
    pub(crate) fn earliest_due_of(&self, queue: usize) -> u64 {
        loop {
            let mut inner = self.home(queue).inner.lock();
            if let Some(earliest) = inner.queue.earliest_due(&mut { BATCH }) {
                // Without an entry the queue is about to be swept, or has nothing that comes due.
                if self.seat.get().is_some_and(|seat| seat.replace(queue, earliest)) {
                    inner.armed = earliest;
                }
                return earliest;
            }
        }
    }

    /// For the driver of a manual clock: waits until no thread arms a timer in this queue by what the clock showed before.
    pub(crate) fn wait_for_arming(&self, queue: usize) {
        self.home(queue).inner.lock().touched = false;
    }

    /// See [`Seat::touch`].
    pub(crate) fn touch(&self, queue: usize) {
        if let Some(seat) = self.seat.get() {
            seat.touch(queue);
        }
    }

    fn home(&self, queue: usize) -> &Home {
        // SAFETY: the engine's own reference keeps each home alive.
        unsafe { self.homes[queue].as_ref() }
    }

    /// Timers waiting to fire, without the runtime's own.
    pub(crate) fn active(&self) -> usize {
        let look = self.walls.own_timer();
        let of = |home: &Home| {
            let inner = home.inner.lock();
            let own =
                look.is_some_and(|look| std::ptr::eq(look.home(), home) && look.get().is_filed(inner.queue.key()));
            inner.queue.len() - usize::from(own)
        };
        self.homes().map(of).sum()
    }

    /// For the driver of a manual clock: runs what has been swept. Whether a callback ran.
    pub(crate) fn run_by_hand(&self, fire: Fire, sink: &mut Vec<Fire>) -> bool {
        self.running_by_hand.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // with that of `wait_for_driver`: either it sees the count, or this sees the end
        let ran = if self.is_closed() {
            dispose(&fire.node); // shut down by a callback of the same instant
            drop(fire);
            false
        } else {
            self.run_fire(fire, sink)
        };
        self.fired_by_hand.fetch_add(u64::from(ran), Ordering::Relaxed);
        self.running_by_hand.fetch_sub(1, Ordering::Release);
        ran
    }

    /// Closed, and on a manual clock: waits up to `limit` until no callback runs in the thread that drives the clock, unless that is
    /// the calling thread, and looks after each `pause`. False: one still runs.
    pub(crate) fn wait_for_driver(&self, limit: Duration, pause: Duration) -> bool {
        let begun = Instant::now();
        fence(Ordering::SeqCst);
        while self.running_by_hand.load(Ordering::Acquire) > 0 {
            if self.seat.get().is_some_and(|seat| seat.agenda.driver() == Some(thread_id())) {
                return true;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(pause));
        }
        true
    }

    /// Runs the callback of a claimed tick, unless a change or a disposal came between. Whether it ran.
    fn run_fire(&self, fire: Fire, mut sink: impl Sink) -> bool {
        let node = &fire.node;
        let shared = node.get();
        match shared.state.begin(shared.kind, shared.has_only(1)) {
            Begin::Run => {}
            Begin::RunAndSettle => settle(node, &mut sink),
            Begin::Settle => {
                settle(node, &mut sink);
                return false;
            }
            Begin::Refused => return false,
        }
        let tick = Tick::new(node, fire.scheduled, fire.missed);
        let call = shared.extra().vtable.call;
        // SAFETY: between `begin` and `end`.
        let callback = || unsafe { call(node.as_ptr(), &tick) };
        inside(node.address(), || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(callback)) {
                self.panicked(payload);
            }
        });
        match shared.state.end(shared.kind, shared.has_only(1)) {
            End::Done => {}
            End::Settle => settle(node, &mut sink),
            End::DropPayload => finish_disposal(node),
        }
        true
    }

    // ---------------------------------------------------------------- the end

    /// Closes all homes and disposes what was filed. Afterwards nothing fires.
    pub(crate) fn close(&self) {
        let _ = self.ended_at.compare_exchange(NEVER, self.clock.now(), Ordering::Relaxed, Ordering::Relaxed);
        // Homes first, and only then the word to those who dispose what they hold (`run_by_hand`, the pool): whoever finds
        // its timer disposed finds its home closed as well.
        self.homes().for_each(Home::close);
        self.closed.store(true, Ordering::Release);
        if self.native.is_some() {
            Pool::stop(self);
        }
        if let Some(seat) = self.seat.get() {
            seat.leave();
        }
        self.walls.close(self);
        let mut batch = Vec::with_capacity(BATCH);
        for home in self.homes() {
            loop {
                {
                    let mut inner = home.inner.lock();
                    // SAFETY: `pop_any` unlinks, and the list's reference is ours now.
                    batch.extend(
                        std::iter::from_fn(|| inner.queue.pop_any())
                            .take(BATCH)
                            .map(|node| unsafe { NodeRef::from_raw(node) }),
                    );
                }
                if batch.is_empty() {
                    break;
                }
                for node in batch.drain(..) {
                    dispose(&node);
                }
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for &home in &self.homes {
            // SAFETY: the engine's own reference, given back once. (Open homes keep the engine alive, so this is closed.)
            unsafe { Home::depart(home) };
        }
        // On whatever thread this is, perhaps in the middle of something.
        contained(|| drop(self.panic_handler.take()));
    }
}

impl Work for Engine {
    type Job = Job;

    fn pool(&self) -> &Pool<Job> {
        &self.parts().pool
    }

    fn watch(&self, mut report: impl FnMut(Event)) {
        self.parts().alarms.watch(|event| match event {
            Event::WallSet => self.walls.step(),
            Event::Lost => self.end_for_loss(),
            event => report(event),
        });
    }

    fn wake(&self) {
        self.parts().alarms.wake();
        self.look_for_loss();
    }

    fn arm_probe(&self, after: Duration) {
        self.parts().alarms.arm_probe(after);
        self.look_for_loss();
    }

    fn sweep(&self, queue: usize, local: &Local<Job>) -> Option<Job> {
        let mut first = None;
        let mut put = |job| {
            if first.is_none() {
                first = Some(job);
            } else if let Err(job) = local.keep(job) {
                self.parts().pool.inject(job);
            }
        };
        match self.sweep_into(self.home(queue), 0, |fire| put(Job::Fire(fire))) {
            Swept::Done => {}
            Swept::More => put(Job::Sweep(queue as u32)),
            // Other busy queues would each cost a wake-up of their own about now.
            Swept::Busy { until } => {
                for other in self.companions(|step| queue + step) {
                    if self.home(other).joins(until) {
                        let swept = self.sweep_into(self.home(other), PATIENCE_NS, |fire| put(Job::Fire(fire)));
                        if swept == Swept::More {
                            put(Job::Sweep(other as u32));
                        }
                    }
                }
            }
        }
        first
    }

    fn discard(&self, job: Job) {
        // Disposed, so that whoever waits for it learns of the end.
        if let Job::Fire(fire) = job {
            dispose(&fire.node);
        }
    }

    fn run(&self, job: Job, local: &Local<Job>) -> bool {
        match job {
            Job::Fire(fire) => self.run_fire(fire, Shared(self)),
            Job::Sweep(queue) => {
                if let Some(job) = self.sweep(queue as usize, local) {
                    self.parts().pool.keep(local, job);
                    self.parts().pool.share(self, local);
                }
                false
            }
        }
    }
}

impl Engine {
    /// The queues that whoever sweeps a busy one looks at too, if `to` goes forward; if back, those for which somebody looks at it.
    fn companions(&self, to: impl Fn(usize) -> usize) -> impl Iterator<Item = usize> {
        let n = self.homes.len();
        (1..=COMPANIONS.min(n - 1)).map(move |step| to(step) % n)
    }

    /// Those whose sweepers may take this queue along.
    fn hosts_of(&self, queue: usize) -> impl Iterator<Item = &Home> {
        let n = self.homes.len();
        self.companions(move |step| queue + n - step).map(|host| self.home(host))
    }

    fn parts(&self) -> &NativeParts {
        self.native.as_ref().expect("only a native runtime has a pool that asks")
    }
}

/// The holder of the timer's queued job claims an owed tick, if it is still owed.
fn settle(node: &NodeRef, sink: &mut impl Sink) {
    let home = node.home();
    let mut inner = home.inner.lock();
    if !node.get().state.settle() {
        return;
    }
    if !inner.is_open() {
        drop(inner);
        dispose(node); // shut down: it will not run, and whoever waits for it learns of that
    } else {
        let now = home.clock.now();
        node.get().retain();
        // SAFETY: an owed timer is filed nowhere; the reference is for the job.
        let fire = unsafe { inner.take_tick(home, node.as_ptr(), now) };
        drop(inner);
        sink.put(fire);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/timer_harness.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::runtime::{ManualClock, Runtime};

    /// A call of `sweep_into` is a lock section: it hands out a batch at most, and who waits for the lock comes in between.
    #[test]
    fn s30_a_crowd_that_is_due_at_once_is_swept_in_steps() {
        const CROWD: usize = 20_000;
        const SOON: Duration = Duration::from_millis(1);
        // Due in a slot that has been dealt, or in one that is dealt in the course of it.
        for windows_ahead in [0, 5] {
            let due = SOON + windows_ahead * Duration::from_millis(333);
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let timers: Vec<_> = (0..CROWD).map(|_| runtime.timer(due, Duration::MAX, |_| {})).collect();
            clock.stall(due);
            let engine = runtime.engine();
            let home = engine.homes().next().expect("one queue");
            let (mut fires, mut sections) = (Vec::new(), 0);
            loop {
                let before = fires.len();
                let swept = engine.sweep_into(home, 0, |fire| {
                    assert!(home.inner.try_lock().is_some(), "the lock has been given back");
                    fires.push(fire);
                });
                sections += 1;
                let handed_out = fires.len() - before;
                assert!(handed_out <= BATCH, "{handed_out} in one lock section");
                if swept != Swept::More {
                    break;
                }
            }
            assert_eq!((fires.len(), runtime.active_timers()), (CROWD, 0));
            assert!(sections <= 3 * CROWD.div_ceil(BATCH), "each section gets on: {sections}");
            drop((fires, timers));
        }
    }

    /// Timeouts that were moved later stay in the slots of windows that come sooner. Filing them anew is nothing that callbacks wait
    /// for, nor an alarm; and nothing to wake up for more than once.
    #[test]
    fn s32_timers_that_were_moved_later_are_filed_anew_by_a_sweep_that_finds_nothing_due() {
        const WINDOW: Duration = Duration::from_millis(333);
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let soon = runtime.timer(Duration::from_millis(5), Duration::MAX, |_| {});
        // Fewer in each window than a batch, and more in all.
        let timers: Vec<_> = (0..200).map(|i| runtime.timer(WINDOW * (2 + i % 10), Duration::MAX, |_| {})).collect();
        for timer in &timers {
            assert!(timer.change(WINDOW * 90, Duration::MAX).was_waiting());
        }
        let home = runtime.engine().homes().next().expect("one queue");
        // One call each.
        let sweep = || {
            let mut fires = Vec::new();
            assert!(runtime.engine().sweep_into(home, 0, |fire| fires.push(fire)) == Swept::Done);
            (fires.len(), Duration::from_nanos(home.inner.lock().armed))
        };
        let start = Duration::from_nanos(clock.now().as_duration().as_nanos() as u64);
        clock.stall(Duration::from_millis(5));
        assert_eq!(sweep(), (1, start + WINDOW * 2), "an alarm is set at once, if for nothing");
        clock.stall(WINDOW * 2 - Duration::from_millis(5));
        let (fired, armed) = sweep();
        assert!(fired == 0 && armed > start + WINDOW * 89, "then it is known when there is something: {armed:?}");
        drop((soon, timers));
    }

    /// Queues with so many periodic timers each, which are all due at the same instants.
    struct Meeting {
        clock: ManualClock,
        runtime: Runtime,
        period: Duration,
        _timers: Vec<crate::Timer>,
    }

    impl Meeting {
        fn new(queues: usize, each: usize, period: Duration) -> Self {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).queues(queues).start().expect("nothing to refuse");
            let timers = (0..queues * each).map(|_| runtime.timer(period, period, |_| {})).collect();
            Self { clock, runtime, period, _timers: timers }
        }

        /// Each queue is swept, one after the other, and long enough that it is known how busy it is.
        fn ticks(&self) {
            let engine = self.runtime.engine();
            for _ in 0..20 {
                self.clock.stall(self.period);
                let mut fires = Vec::new();
                for home in engine.homes() {
                    assert!(engine.sweep_into(home, 0, |fire| fires.push(fire)) != Swept::More);
                }
                for fire in fires {
                    assert!(engine.run_by_hand(fire, &mut Vec::new()));
                }
            }
        }

        /// By how much the alarm of each queue is behind what it is for.
        fn behind(&self) -> Vec<Duration> {
            let behind = |home: &Home| {
                let inner = home.inner.lock();
                Duration::from_nanos(inner.armed - inner.queue.next_deadline())
            };
            self.runtime.engine().homes().map(behind).collect()
        }
    }

    const ONCE: Duration = Duration::ZERO;
    const PATIENCE: Duration = Duration::from_nanos(PATIENCE_NS);

    #[test]
    fn busy_queues_that_meet_are_guests_of_those_whose_sweepers_take_them_along() {
        let meeting = Meeting::new(5, 10, Duration::from_millis(1));
        meeting.ticks();
        // Whoever sweeps the first takes three along, and not the fifth.
        assert_eq!(meeting.behind(), [ONCE, PATIENCE, PATIENCE, PATIENCE, ONCE]);
        let engine = meeting.runtime.engine();
        meeting.clock.stall(meeting.period);
        let swept = engine.sweep(0, &Local::new());
        assert!(matches!(swept, Some(Job::Fire(_))));
        let now = engine.clock().now();
        let next: Vec<u64> = engine.homes().map(|home| home.inner.lock().queue.next_deadline() - now).collect();
        assert_eq!(next, [1_000_000, 1_000_000, 1_000_000, 1_000_000, 0]);
    }

    #[test]
    fn queues_that_are_not_busy_are_nobodys_guests() {
        let meeting = Meeting::new(3, 10, Duration::from_millis(100));
        meeting.ticks();
        assert_eq!(meeting.behind(), [ONCE; 3]);
    }

    #[test]
    fn a_guest_is_behind_by_a_quarter_of_its_shortest_period_at_most() {
        let meeting = Meeting::new(2, 10, Duration::from_micros(100));
        meeting.ticks();
        assert_eq!(meeting.behind(), [ONCE, Duration::from_micros(25)]);
    }
}
