//! The engine of a scheduler: one timer, claims, and the runs under way.
//!
//! Ground rules. One lock ([`Core::state`]), held for a few instructions: no call of the store, of a handler, of a hook or of a token
//! is made under it (J11). Under it the timer is set, which runs no code of users. The path of a job: the timer fires at the first wake
//! instant ([`Core::pump`]), the store answers the claim ([`Core::claimed`]), each run goes to the pool or to its executor
//! ([`super::runs`]), and its end is settled. A claim is under way once at a time; a wake-up meanwhile is remembered ([`State::again`]).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{CancellationTokenSource, Runtime, Timer, Timestamp, WallTimer};

use super::close::Closer;
use super::error::Error;
use super::job::{Call, Handler, Spawner, quietly};
use super::look::look;
use super::retry::Retry;
use super::stats::Stats;
use crate::store::{Applied, Claim, Claimed, JobId, Micros, Notice, Op, Reply, Room, Store};

/// The most jobs of a claim: the length of its lock section, or of its transaction.
const BATCH: usize = 256;
/// The waits after a failure of the store: doubled each time, between these two.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// How long after the wall timer the timer on the running clock fires, which finds that the wall clock was set back.
const BEHIND: Duration = Duration::from_millis(1);
/// The longest limit of a close: a timer with a longer one is in no queue, and would not learn of the runtime's end.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What follows operations that were applied for sure.
type Then = Box<dyn FnOnce(&Arc<Core>, Vec<Applied>) + Send>;

/// A hook that is told of the end of each run.
pub(super) type Hook = Box<dyn Fn(&super::RunRecord) + Send + Sync>;

/// A handler, as the engine runs it.
pub(crate) struct Registered {
    pub(super) name: Arc<str>,
    pub(super) call: Call,
    pub(super) parallel: usize,
    pub(super) limit: Option<Duration>,
    pub(super) retry: Retry,
    pub(super) spawner: Option<Spawner>,
}

impl Registered {
    pub(super) fn of(handler: Handler, spawner: Option<&Spawner>) -> Self {
        let Handler { name, call, parallel, limit, retry, spawner: own } = handler;
        Self { name, call, parallel, limit, retry, spawner: own.or_else(|| spawner.cloned()) }
    }
}

/// A run under way.
pub(super) struct Live {
    pub(super) source: Arc<CancellationTokenSource>,
    pub(super) handler: usize,
    pub(super) key: Arc<str>,
    pub(super) begun: Timestamp,
    /// The handler has called `close`: that close does not wait for it.
    pub(super) closing: bool,
}

/// What the lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) closing: bool,
    pub(super) claiming: bool,
    /// A wake-up came during a claim.
    again: bool,
    /// The instant that the timer is set to. `None`: it has fired, or was never set.
    armed: Option<Micros>,
    /// Some row has a span.
    spans: bool,
    /// When the timer on the running clock fires. `None`: it is set at the next chance.
    behind_at: Option<Timestamp>,
    /// Runs of each handler.
    running: Vec<usize>,
    total: usize,
    /// The last claim may have left due jobs of the handler for want of a place, so its next free place asks for a claim.
    full: Vec<bool>,
    /// The same, for want of a place among those of all handlers. Also true during a claim: a place that becomes free meanwhile is
    /// not among the places of the claim.
    all_full: bool,
    /// The places of the claim under way, and the most jobs of it.
    places: Vec<usize>,
    left: usize,
    pub(super) runs: HashMap<JobId, Live>,
    /// Cancelled while the claim is under way that may have taken them.
    cancelled: HashSet<JobId>,
    /// Failures of the store in a row.
    failures: u32,
    /// Both clocks at the last claim.
    clocks: Option<(Micros, Timestamp)>,
    pub(super) closers: Vec<Closer>,
}

/// The engine of a scheduler.
pub(crate) struct Core {
    pub(super) runtime: Runtime,
    pub(super) store: Arc<dyn Store>,
    pub(super) handlers: Vec<Registered>,
    pub(super) by_name: HashMap<Arc<str>, usize>,
    /// The most runs at a time.
    pub(super) parallel: usize,
    /// This scheduler, among those of a store.
    pub(super) owner: u64,
    pub(super) seed: u64,
    pub(super) hook: Option<Hook>,
    pub(super) closing: CancellationTokenSource,
    pub(super) stats: Mutex<Stats>,
    pub(super) keys: AtomicU64,
    pub(super) state: Mutex<State>,
    /// Fires at the first wake instant of the wall clock.
    timer: OnceLock<WallTimer>,
    /// Fires when as much time has passed on the running clock.
    behind: OnceLock<Timer>,
}

/// The parts of a new engine.
pub(super) struct Parts {
    pub(super) runtime: Runtime,
    pub(super) store: Arc<dyn Store>,
    pub(super) handlers: Vec<Registered>,
    pub(super) parallel: usize,
    pub(super) owner: u64,
    pub(super) seed: u64,
    pub(super) hook: Option<Hook>,
}

impl Core {
    pub(super) fn start(parts: Parts) -> Arc<Self> {
        let Parts { runtime, store, handlers, parallel, owner, seed, hook } = parts;
        let by_name = handlers.iter().enumerate().map(|(i, handler)| (Arc::clone(&handler.name), i)).collect();
        let state = State { running: vec![0; handlers.len()], full: vec![false; handlers.len()], ..State::default() };
        let core = Arc::new(Self {
            closing: runtime.cancellation_source(),
            state: Mutex::new(state),
            timer: OnceLock::new(),
            behind: OnceLock::new(),
            stats: Mutex::default(),
            keys: AtomicU64::new(0),
            runtime,
            store,
            handlers,
            by_name,
            parallel,
            owner,
            seed,
            hook,
        });
        let pump = |core: &Weak<Self>| {
            if let Some(core) = core.upgrade() {
                core.pump();
            }
        };
        // The timers hold the engine weakly: a timer that outlives its scheduler does nothing.
        let (wall, running) = (Arc::downgrade(&core), Arc::downgrade(&core));
        let behind = core.runtime.exclusive_timer(Duration::MAX, Duration::ZERO, move |_| pump(&running));
        let _ = core.behind.set(behind);
        let notices = Arc::downgrade(&core);
        core.store.watch(Arc::new(move |notice| notices.upgrade().is_some_and(|core| core.notice(notice))));
        // The first claim finds the jobs that the store has already.
        let now = core.runtime.wall_now();
        let _ = core.timer.set(core.runtime.wall_timer(now, move |_| pump(&wall)));
        core
    }

    /// A store tells. False: no more notices, please.
    fn notice(&self, notice: Notice) -> bool {
        match notice {
            Notice::Wake { at, span } => {
                let mut state = self.state.lock();
                state.spans |= span;
                self.arm(&mut state, at);
                !state.closing || !state.runs.is_empty() || state.claiming
            }
            Notice::Cancelled(id) => {
                let source = {
                    let mut state = self.state.lock();
                    if state.claiming {
                        state.cancelled.insert(id);
                    }
                    state.runs.get(&id).map(|run| Arc::clone(&run.source))
                };
                if let Some(source) = source {
                    self.aside(move || quietly(|| _ = source.cancel()));
                }
                true
            }
        }
    }

    /// Sets the timer, if this instant is earlier.
    fn arm(&self, state: &mut State, at: Micros) {
        if state.closing {
            return;
        }
        if state.armed.is_some_and(|armed| armed <= at) {
            return self.arm_behind(state);
        }
        state.armed = Some(at);
        if let Some(timer) = self.timer.get() {
            timer.change(at.to_system());
        }
        self.arm_behind(state);
    }

    /// Sets the timer on the running clock, if some row has a span.
    fn arm_behind(&self, state: &mut State) {
        let (true, Some(at), Some(behind)) = (state.spans, state.armed, self.behind.get()) else { return };
        let wait = at.since(Micros::floor(self.runtime.wall_now()));
        let now = self.runtime.now();
        let fires = now + wait.saturating_add(BEHIND);
        // Never later before a claim: the wall clock may have been set back since.
        if state.behind_at.is_none_or(|set| fires < set) {
            state.behind_at = Some(fires);
            behind.change(fires - now, Duration::ZERO);
        }
    }

    pub(super) fn disarm(&self) {
        if let Some(timer) = self.timer.get() {
            timer.dispose();
        }
        if let Some(behind) = self.behind.get() {
            behind.dispose();
        }
    }

    /// Looks for due jobs. On a thread of the pool.
    fn pump(self: &Arc<Self>) {
        let claim = {
            let mut state = self.state.lock();
            state.armed = None;
            if state.closing {
                return;
            }
            if state.claiming {
                state.again = true;
                return;
            }
            (state.claiming, state.again, state.spans, state.behind_at) = (true, false, false, None);
            self.claim_of(&mut state)
        };
        let core = Arc::clone(self);
        let answer = move |claimed| {
            let engine = Arc::clone(&core);
            engine.aside(move || core.claimed(claimed));
        };
        self.store.claim(claim, Reply::new(answer));
    }

    fn claim_of(&self, state: &mut State) -> Claim {
        let left = self.parallel - state.total.min(self.parallel);
        let places = self.handlers.iter().zip(&state.running).map(|(handler, &running)| handler.parallel - running);
        state.places.clear();
        state.places.extend(places);
        state.left = left;
        state.all_full = true;
        let room = |(handler, &places): (&Registered, &usize)| Room { name: Arc::clone(&handler.name), places };
        Claim {
            owner: self.owner,
            lease: None, // until the stores whose schedulers may vanish
            rooms: self.handlers.iter().zip(&state.places).map(room).collect(),
            at_most: left.min(BATCH),
        }
    }

    /// The store's answer to a claim.
    fn claimed(self: &Arc<Self>, claimed: Result<Claimed, Error>) {
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => return self.claim_failed(&error),
        };
        let Claimed { now, jobs, schedules, next_job, next_schedule, spans } = claimed;
        let back = self.set_back(now);
        let looked = !schedules.is_empty();
        let (begun, unrun) = self.begin_all(jobs);
        for run in begun {
            self.run(run);
        }
        let advances = schedules.into_iter().map(|row| Op::Advance(Box::new(look(row, now, back)))).collect::<Vec<_>>();
        {
            let mut state = self.state.lock();
            state.spans |= spans;
            state.failures = 0;
        }
        if looked || !unrun.is_empty() {
            self.apply_surely(advances.into_iter().chain(unrun).collect(), |_, _| {});
        }
        let mut state = self.state.lock();
        state.claiming = false;
        state.cancelled.clear();
        // With no place left, the end of a run asks for the next claim.
        let next_job = next_job.filter(|_| state.total < self.parallel);
        if let Some(at) = next_job.into_iter().chain(next_schedule).min() {
            self.arm(&mut state, at);
        }
        if std::mem::take(&mut state.again) {
            self.arm(&mut state, Micros::FIRST);
        }
        self.arm_behind(&mut state);
        drop(state);
        self.close_if_done();
    }

    /// How far the wall clock was set back since the last claim.
    fn set_back(&self, now: Micros) -> Duration {
        let running = self.runtime.now();
        let before = self.state.lock().clocks.replace((now, running));
        before.map_or(Duration::ZERO, |(wall, at)| wall.saturating_add(running - at).since(now))
    }

    fn claim_failed(self: &Arc<Self>, error: &Error) {
        let heals = matches!(error, Error::Store { fault, .. } if fault.heals());
        let wait = {
            let mut state = self.state.lock();
            state.claiming = false;
            state.failures = state.failures.saturating_add(1);
            backoff(state.failures)
        };
        if heals {
            self.later(wait, Self::pump);
        }
        self.close_if_done();
    }

    /// Registers the runs of claimed jobs. Second: those that do not run after all.
    fn begin_all(self: &Arc<Self>, jobs: Vec<crate::store::ClaimedJob>) -> (Vec<super::runs::Begun>, Vec<Op>) {
        let (mut begun, mut unrun) = (Vec::with_capacity(jobs.len()), Vec::new());
        let now = self.runtime.now();
        for job in jobs {
            let Some(&handler) = self.by_name.get(&job.name) else {
                unrun.push(super::runs::unrun(job.held));
                continue;
            };
            let source = Arc::new(self.runtime.cancellation_source());
            let live =
                Live { source: Arc::clone(&source), handler, key: Arc::clone(&job.key), begun: now, closing: false };
            let cancelled = {
                let mut state = self.state.lock();
                if state.closing {
                    unrun.push(super::runs::unrun(job.held));
                    continue;
                }
                state.running[handler] += 1;
                state.total += 1;
                state.runs.insert(job.held.id, live);
                state.cancelled.contains(&job.held.id)
            };
            if cancelled {
                quietly(|| _ = source.cancel());
            }
            begun.push(super::runs::Begun { job, handler, source });
        }
        let mut state = self.state.lock();
        let State { places, left, full, all_full, .. } = &mut *state;
        for run in &begun {
            places[run.handler] -= 1;
        }
        full.iter_mut().zip(&*places).for_each(|(full, &places)| *full = places == 0);
        *all_full = begun.len() >= *left;
        drop(state);
        (begun, unrun)
    }

    /// The place of a run is free.
    pub(super) fn freed(self: &Arc<Self>, id: JobId) {
        let live = {
            let mut state = self.state.lock();
            let Some(live) = state.runs.remove(&id) else { return };
            state.running[live.handler] -= 1;
            state.total -= 1;
            if state.full[live.handler] || state.all_full {
                self.arm(&mut state, Micros::FIRST);
            }
            live
        };
        quietly(|| drop(live)); // with callbacks that users have registered
        self.close_if_done();
    }

    /// Applies operations, and again after a failure of the store, until they are applied or the store is closed.
    pub(super) fn apply_surely(
        self: &Arc<Self>,
        ops: Vec<Op>,
        then: impl FnOnce(&Arc<Self>, Vec<Applied>) + Send + 'static,
    ) {
        self.apply_again(ops, 0, Box::new(then));
    }

    fn apply_again(self: &Arc<Self>, ops: Vec<Op>, failures: u32, then: Then) {
        let core = Arc::clone(self);
        // A memory store never fails, and needs no copy.
        let copy = if self.store.can_fail() { ops.clone() } else { Vec::new() };
        let reply = Reply::new(move |applied| match applied {
            Ok(applied) => {
                let engine = Arc::clone(&core);
                engine.aside(move || then(&core, applied));
            }
            Err(Error::Store { fault, .. }) if fault.heals() => {
                core.later(backoff(failures + 1), move |core| core.apply_again(copy, failures + 1, then));
            }
            Err(_) => then(&core, Vec::new()),
        });
        self.store.apply(ops, reply);
    }

    /// Runs what may run code of users: here, or on a thread of the pool, if this is a thread of the store's (J11). A runtime that ends
    /// drops its jobs; this one runs all the same, since a close waits for it.
    fn aside(&self, work: impl FnOnce() + Send + 'static) {
        struct Surely<F: FnOnce()>(Option<F>);
        impl<F: FnOnce()> Drop for Surely<F> {
            fn drop(&mut self) {
                if let Some(work) = self.0.take() {
                    work();
                }
            }
        }
        let surely = Surely(Some(work));
        if self.store.has_thread() {
            self.runtime.execute(move || drop(surely));
        }
    }

    /// On a thread of the pool, after a time on the running clock.
    fn later(self: &Arc<Self>, wait: Duration, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let core = Arc::clone(self);
        self.runtime.once(wait, move |_| work(&core)).detach();
    }

    /// A key for a job without one.
    pub(super) fn new_key(&self) -> Arc<str> {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}-{number}", self.owner).into()
    }

    /// The name, shared with the handler's where there is one.
    pub(super) fn name(&self, name: &str) -> Arc<str> {
        self.by_name.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }
}

fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(LONGEST_BACKOFF)
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("owner", &self.owner).finish_non_exhaustive()
    }
}
