//! The home of a timer: one core's queue behind its lock, with the alarm that belongs to it.
//!
//! Ground rules. [`Inner`] is reached through the lock only. Under the lock: decide, file, unlink, arm. Never under the
//! lock: a callback, a waker, a destructor of user data, a wake-up of a thread, a last reference given back. No other lock is taken
//! with it, another home's least of all, but for the one that an alarm may have of its own, when the alarm is set.
//!
//! A home outlives its runtime, since timers point to it. It is freed when the runtime has let go of it and its last
//! timer is freed. Counting that must not cost an atomic operation per timer; [`count`] says how it is done. [`crowd`] says how long
//! a busy queue waits for company. [`waiters`] has the wakers of those who wait for the end of a timer, beside the lock.

#![allow(unsafe_code)] // lifetime of homes

mod count;
mod crowd;
mod waiters;

use std::ptr::NonNull;

use self::count::{Residents, Strays};
use self::crowd::Crowd;
use self::waiters::Waiters;
use crate::alarm::Clock;
use crate::engine::{Engine, Fire, NodeRef, TimerNode};
use crate::queue::node::Place;
use crate::queue::state::{Claim, Rearm};
use crate::queue::{NEVER, TimerQueue, take_up};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};
use crate::wall::list::WallList;

/// `armed` of a queue whose sweep is pending or running: no alarm is needed, whatever is filed.
pub(crate) const SWEEPING: u64 = 0;

/// See the module's ground rules. Aligned so that two homes never share a cache line.
#[repr(align(128))]
pub(crate) struct Home {
    pub(crate) inner: Mutex<Inner>,
    pub(crate) clock: Clock,
    pub(crate) index: usize,
    /// If the alarm was put off for the sake of company, the instant from which whoever is up may as well sweep this queue too,
    /// else [`NEVER`]. A hint, read without the lock.
    rendezvous: AtomicU64,
    /// The instant the alarm is set to, if somebody will be up then who takes others along, else [`NEVER`]. A hint.
    host: AtomicU64,
    pub(crate) waiters: Waiters,
    strays: Strays,
}

/// Whom the alarm that is set after a sweep has regard to.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    /// Nobody.
    Alone,
    /// What comes due until then is fired then.
    Company { until: u64 },
    /// Whoever will be up, at the next deadline, for another queue.
    Guest { patience_ns: u64 },
}

/// What the lock guards.
pub(crate) struct Inner {
    pub(crate) queue: TimerQueue<crate::engine::Hook>,
    /// The instant the alarm is set to; [`NEVER`] when it is not set; [`SWEEPING`].
    pub(crate) armed: u64,
    pub(crate) crowd: Crowd,
    /// The driver of a manual clock has been told that timers are armed here.
    pub(crate) touched: bool,
    /// The runtime; `None` when it has been shut down. Cloned out when work must be handed to it.
    engine: Option<Arc<Engine>>,
    residents: Residents,
    /// The wall timers that belong to this queue and wait.
    pub(crate) walls: WallList,
}

// SAFETY: the entries of `walls` are reached with the lock held, and each is kept alive by the reference that it has while it is
// linked; everything else is `Send`.
unsafe impl Send for Inner {}

impl Home {
    pub(crate) fn new(index: usize, clock: Clock) -> NonNull<Self> {
        let inner = Inner {
            queue: TimerQueue::new(clock.now()),
            armed: NEVER,
            crowd: Crowd::new(),
            touched: false,
            engine: None,
            residents: Residents::new(),
            walls: WallList::default(),
        };
        let never = || AtomicU64::new(NEVER);
        let home = Self {
            inner: Mutex::new(inner),
            clock,
            index,
            rendezvous: never(),
            host: never(),
            waiters: Waiters::new(),
            strays: Strays::new(),
        };
        NonNull::from(Box::leak(Box::new(home)))
    }

    /// A sweep goes on after this section: nobody need join it.
    pub(crate) fn no_rendezvous(&self) {
        self.rendezvous.store(NEVER, Ordering::Relaxed);
    }

    /// Whether the alarm waits for company, and that would do at `at`.
    pub(crate) fn joins(&self, at: u64) -> bool {
        self.rendezvous.load(Ordering::Relaxed) <= at
    }

    /// Whether whoever takes the alarm at just that instant will take others along.
    pub(crate) fn hosts(&self, at: u64) -> bool {
        self.host.load(Ordering::Relaxed) == at
    }

    /// Opens the home for business.
    pub(crate) fn open(&self, engine: &Arc<Engine>) {
        self.inner.lock().engine = Some(Arc::clone(engine));
    }

    /// No timer fires any more, none is armed. What was filed stays to be drained with [`Inner::queue`]'s `pop_any`.
    ///
    /// The caller holds the home's own reference and gives it back with [`Self::depart`].
    pub(crate) fn close(&self) {
        let engine = {
            let mut inner = self.inner.lock();
            inner.residents.close(&self.strays);
            inner.engine.take()
        };
        drop(engine);
    }

    /// Walks the queue and asserts what must hold with the lock free: I1 to I3 by the queue's own check, and I7.
    #[cfg(timerqueue_check)]
    pub(crate) fn check(&self) {
        let inner = self.inner.lock();
        let (due, armed) = (inner.queue.check(), inner.armed);
        if !matches!(self.clock, Clock::Manual { .. }) && inner.is_open() {
            let latest =
                due.max(self.clock.now().saturating_add(Crowd::LONGEST_NS)).saturating_add(crate::engine::PATIENCE_NS);
            assert!(armed == SWEEPING || due == NEVER || armed <= latest, "armed {armed}, due {due}");
        }
    }

    /// One timer, or the runtime, lets go of this home without its lock.
    ///
    /// # Safety
    /// The caller's own reference is given back, and with it the right to touch the home.
    pub(crate) unsafe fn depart(home: NonNull<Self>) {
        // SAFETY: the caller's count keeps the home alive until it is subtracted. No reference to the home is made: the
        // home may be freed while this still runs.
        if unsafe { Strays::depart(&raw const (*home.as_ptr()).strays) } {
            // SAFETY: everybody has left a closed home, and their last use of it happens before (see `Strays::depart`).
            drop(unsafe { Box::from_raw(home.as_ptr()) });
        }
    }
}

impl Inner {
    pub(crate) fn is_open(&self) -> bool {
        self.engine.is_some()
    }

    /// The runtime, for handing it a job after the lock is released. `None` when the home is closed.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        self.engine.as_ref()
    }

    /// What the clock shows, for a timer to be armed by, given what it showed before the lock was taken: see [`Clock::with_lock`].
    #[inline]
    pub(crate) fn now(&mut self, home: &Home, before: u64) -> u64 {
        self.touch(home);
        home.clock.with_lock(before)
    }

    /// A timer is going to be armed by what the clock shows. Called before that is read; see [`Seat::touch`](crate::runtime::Seat).
    #[inline]
    pub(crate) fn touch(&mut self, home: &Home) {
        if matches!(home.clock, Clock::Manual { .. }) && !self.touched {
            self.touched = true;
            if let Some(engine) = &self.engine {
                engine.touch(home.index);
            }
        }
    }

    /// Counts a new timer in. On a closed home it is a stray from the start.
    pub(crate) fn arrive(&mut self, home: &Home) {
        self.residents.arrive(&home.strays);
    }

    /// Counts a timer out if the home is open. False: the caller departs after the lock is released.
    #[must_use]
    pub(crate) fn count_out(&mut self) -> bool {
        self.residents.leave()
    }

    /// The next arming number, which orders what is due at one instant of virtual time. Real time promises no order and
    /// gives no numbers (S14).
    #[inline]
    pub(crate) fn number(home: &Home) -> u64 {
        match &home.clock {
            Clock::Manual { hands, .. } => hands.next_number(),
            Clock::System(_) => 0,
        }
    }

    /// Sets the alarm to `at` if that is earlier than what it is set to.
    #[inline]
    fn arm_earlier(&mut self, home: &Home, at: u64) {
        if at < self.armed {
            self.armed = at;
            if let Some(engine) = &self.engine {
                engine.arm(home.index, at);
            }
        }
    }

    /// Files a timer; who had been counted out is counted in again.
    ///
    /// # Safety
    /// As [`TimerQueue::file`]; the home is open.
    #[inline]
    unsafe fn file(&mut self, home: &Home, node: NonNull<TimerNode>) -> u64 {
        // SAFETY: alive by the contract.
        if unsafe { node.as_ref() }.place(self.queue.key()) == Place::LEFT {
            self.arrive(home);
        }
        // SAFETY: the contract.
        unsafe { self.queue.file(node) }
    }

    /// Puts a timer that is filed nowhere under a new schedule. Takes over one reference: for the list, for the job that
    /// is returned, or (when there is neither) it is given back.
    ///
    /// # Safety
    /// `node` is alive, idle, at home here, and the reference is the caller's; it is not the last one.
    #[inline]
    pub(crate) unsafe fn schedule(
        &mut self,
        home: &Home,
        node: NonNull<TimerNode>,
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
            let last = unsafe { TimerNode::release(node) };
            debug_assert!(!last, "the caller keeps a reference");
            return None;
        }
        // On a manual clock what is due waits for whoever drives it.
        if shared.fires_at(self.queue.key()) > now || matches!(home.clock, Clock::Manual { .. }) {
            self.queue.roll(now);
            // SAFETY: idle, and the list's reference keeps it alive.
            let at = unsafe { self.file(home, node) };
            self.arm_earlier(home, at);
            return None;
        }
        // SAFETY: idle and due; the reference goes along.
        unsafe { self.fire(home, node, now) }
    }

    /// Claims the tick of a timer that is due at `now` and filed nowhere, and files it for its next one.
    /// Takes over one reference. `None`: the tick is owed.
    ///
    /// # Safety
    /// As [`Self::schedule`]; due.
    pub(crate) unsafe fn fire(&mut self, home: &Home, node: NonNull<TimerNode>, now: u64) -> Option<Fire> {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        // Detached: the list had the one reference that there is, and the job has it from now on.
        let alone = shared.has_only(1);
        match shared.state.claim(shared.kind, alone) {
            Claim::Queue => {
                // SAFETY: the contract of this function.
                let fire = unsafe { self.take_tick(home, node, now) };
                if alone && !shared.is_filed(self.queue.key()) && self.count_out() {
                    shared.set_place(Place::LEFT, self.queue.key());
                }
                Some(fire)
            }
            Claim::Owe => {
                // SAFETY: the reference that is handed over. The job or callback that settles holds another one.
                let last = unsafe { TimerNode::release(node) };
                debug_assert!(!last, "the queued job or the running callback holds a reference");
                None
            }
        }
    }

    /// The second half of a claim: computes the tick, files the timer for the next one.
    ///
    /// # Safety
    /// As [`Self::fire`]; the tick has been claimed.
    pub(crate) unsafe fn take_tick(&mut self, home: &Home, node: NonNull<TimerNode>, now: u64) -> Fire {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let key = self.queue.key();
        let scheduled = shared.due(key);
        let taken = take_up(shared.manner.policy(), scheduled, shared.period(key), now);
        if taken.next != NEVER {
            shared.set_due(taken.next, key);
            if shared.fires_at(key) > now {
                shared.retain();
                // SAFETY: filed nowhere; the reference just taken keeps it alive.
                let at = unsafe { self.file(home, node) };
                self.arm_earlier(home, at);
            } else {
                shared.state.owe();
            }
        }
        // SAFETY: the reference is handed over by the caller.
        Fire { node: unsafe { NodeRef::from_raw(node) }, scheduled, missed: taken.missed }
    }

    /// Puts a timer under a new schedule, whatever it does at the moment. `None`: disposed or consumed, nothing changed.
    /// Else whether the timer was waiting to fire, and a job for the pool if the new due point has come already.
    ///
    /// # Safety
    /// `node` is alive and at home here, and the caller has a reference.
    #[inline]
    pub(crate) unsafe fn reschedule(
        &mut self,
        home: &Home,
        node: NonNull<TimerNode>,
        due: u64,
        period: u64,
        now: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: the contract.
        unsafe { self.reschedule_as(home, node, due, period, now, Self::number(home)) }
    }

    /// As [`Self::reschedule`], under this arming number.
    ///
    /// # Safety
    /// As there.
    #[inline]
    unsafe fn reschedule_as(
        &mut self,
        home: &Home,
        node: NonNull<TimerNode>,
        due: u64,
        period: u64,
        now: u64,
        number: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let Rearm::Armed { withdrawn } = shared.state.rearm(number) else { return None };
        // SAFETY: at home here.
        if let Some(at) = unsafe { self.queue.keep(node, due) } {
            shared.set_period(period, self.queue.key());
            self.arm_earlier(home, at);
            return Some((true, None));
        }
        // SAFETY: the contract.
        let (filed, job) = unsafe { self.refile(home, node, due, period, now) };
        Some((filed || withdrawn, job))
    }

    /// As [`Self::reschedule`], to one firing, by the runtime and not by the timer's user: its place in the order of timers that are
    /// due at one instant stays (S14).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn aim_again(
        &mut self,
        home: &Home,
        node: NonNull<TimerNode>,
        due: u64,
        now: u64,
    ) -> Option<(bool, Option<Fire>)> {
        // SAFETY: alive by the contract; the number is changed with the lock held alone.
        unsafe { self.reschedule_as(home, node, due, NEVER, now, node.as_ref().state.number()) }
    }

    /// The part of [`Self::reschedule`] that moves it. Whether it was filed, and a job for the pool.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn refile(
        &mut self,
        home: &Home,
        node: NonNull<TimerNode>,
        due: u64,
        period: u64,
        now: u64,
    ) -> (bool, Option<Fire>) {
        // SAFETY: at home here.
        let filed = unsafe { self.queue.unlink(node) };
        if !filed {
            // SAFETY: alive by the contract.
            unsafe { node.as_ref() }.retain();
        }
        // SAFETY: unlinked; one reference is for this, and the caller has another.
        (filed, unsafe { self.schedule(home, node, due, period, now) })
    }

    /// Stops `node` without disposing it. Whether it was filed: then the list's reference is the caller's now.
    ///
    /// # Safety
    /// `node` is alive and at home here.
    #[must_use]
    pub(crate) unsafe fn withdraw(&mut self, home: &Home, node: NonNull<TimerNode>) -> bool {
        // SAFETY: alive by the contract, and at home here.
        unsafe { node.as_ref().state.rearm(Self::number(home)) != Rearm::Refused && self.queue.unlink(node) }
    }

    /// Sets the alarm after a sweep: to the next deadline, or not at all.
    pub(crate) fn arm_after_sweep(&mut self, home: &Home, next: u64, then: Then) {
        let (at, rendezvous, host) = match then {
            Then::Alone => (next, NEVER, NEVER),
            Then::Company { until } if next < until => (until, until, NEVER),
            Then::Company { .. } => (next, NEVER, next),
            Then::Guest { patience_ns } => (next.saturating_add(patience_ns), next, NEVER),
        };
        self.armed = if next == NEVER { NEVER } else { at };
        if let Some(engine) = &self.engine {
            engine.arm_after_sweep(home.index, self.armed, next);
        }
        home.rendezvous.store(rendezvous, Ordering::Relaxed);
        home.host.store(host, Ordering::Relaxed);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/arm_vs_sweep.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_that_was_put_off_is_a_rendezvous_and_one_that_was_not_may_host() {
        let home = Home::new(0, Clock::System(crate::alarm::SystemClock::MONOTONIC));
        // SAFETY: closed and left below, once.
        let shared = unsafe { home.as_ref() };
        let (company, guest) = (|until| Then::Company { until }, Then::Guest { patience_ns: 50 });
        for (next, then, armed, joins, hosts) in [
            (500, Then::Alone, 500, NEVER, NEVER),
            (500, company(400), 500, NEVER, 500),
            (500, company(700), 700, 700, NEVER),
            (500, guest, 550, 500, NEVER),
            (NEVER, Then::Alone, NEVER, NEVER, NEVER),
            (NEVER, company(700), NEVER, NEVER, NEVER),
        ] {
            shared.inner.lock().arm_after_sweep(shared, next, then);
            assert_eq!(shared.inner.lock().armed, armed);
            assert!(shared.joins(joins) && !shared.joins(joins - 1), "next {next}, armed {armed}");
            assert!(shared.hosts(hosts) && !shared.hosts(hosts - 1), "next {next}, armed {armed}");
        }
        shared.close();
        // SAFETY: its own reference.
        unsafe { Home::depart(home) };
    }
}
