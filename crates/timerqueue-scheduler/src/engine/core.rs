//! The engine of a scheduler: one timer, claims, and the runs under way.
//!
//! Ground rules. One lock ([`Core::state`]), held for a few instructions: no call of the store, of
//! a handler, of a hook or of a token is made under it (J11). Under it the timer is set, which runs
//! no code of users. The path of a job: the timer fires at the first wake instant ([`Core::pump`]),
//! the store answers the claim ([`Core::claimed`]), each run goes to the pool or to its executor
//! ([`super::runs`]), and its end is settled. A claim is under way once at a time; a wake-up
//! meanwhile is remembered ([`super::handshake`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{CancellationTokenSource, OnceTimer, Runtime, Timer, TimerBuilder, Timestamp, WallTimer};

use super::around::Around;
use super::backlog::Backlog;
use super::binding::Rule;
use super::calls::Calls;
use super::close::Closer;
use super::codec::Codec;
use super::handshake::Handshake;
use super::job::Handler;
use super::runs::{self, Begun, Inside};
use super::stats::Stats;
use super::waits::Waits;
use crate::debug::debug_of;
use crate::store::gate::{Entered, Gate, Gated, Listener, SUSPECT, alone_for};
use crate::store::rules::look;
use crate::store::{
    Applied, Claim, Claimed, ClaimedJob, Entry, EntryHandler, Error, Held, JobId, Micros, Notice, Op, Reply, Room,
    Settled, Store, check_trace,
};
use crate::unwind::{caught, quietly};

/// The most jobs of a claim: the length of its lock section, or of its transaction.
const BATCH: usize = 256;
/// The waits after a failure of the store: doubled each time, between these two.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// The wait for the next look at a clock that is beyond schedules.
const WRONG_CLOCK: Duration = Duration::from_secs(10);
/// How long after the wall timer the timer on the running clock fires, which finds that the wall
/// clock was set back.
const BEHIND: Duration = Duration::from_millis(1);
/// The longest limit of a close: a timer with a longer one is in no queue, and would not learn of
/// the runtime's end.
pub(super) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// What follows operations that were applied for sure.
type Then = Box<dyn FnOnce(&Arc<Core>, Vec<Applied>) + Send>;

/// A hook that is told of the end of each run.
pub(crate) type Hook<T> = Option<Box<dyn Fn(&T) + Send + Sync>>;

/// Gives the context of the current trace, if there is one.
pub(crate) type Tracer = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// What a scheduler is built with, and keeps.
#[derive(Default)]
pub(crate) struct Settings {
    /// With their spawners and histories.
    pub(crate) handlers: Vec<Handler>,
    /// The most runs at a time.
    pub(crate) parallel: usize,
    /// The most operations without an answer.
    pub(crate) backlog: usize,
    /// This scheduler, among those of a store.
    pub(crate) owner: u64,
    pub(crate) seed: u64,
    pub(crate) node_name: Arc<str>,
    pub(crate) on_run_end: Hook<super::RunRecord>,
    pub(crate) on_store_error: Hook<Error>,
    pub(crate) codec: Option<Box<dyn Codec>>,
    /// Gives the context of the trace of a put.
    pub(crate) tracer: Option<Tracer>,
    /// The first one is the outermost.
    pub(crate) around: Vec<Around>,
    pub(crate) binding: Rule,
}

/// A run: its job, and the number of its claim. A job may be claimed again before the settle of its
/// last run is answered.
pub(super) type RunKey = (JobId, u64);

pub(super) fn run_key(held: Held) -> RunKey {
    (held.id, held.claim)
}

/// A run under way.
pub(super) struct Live {
    pub(super) source: Arc<CancellationTokenSource>,
    pub(super) handler: usize,
    pub(super) key: Arc<str>,
    pub(super) begun: Timestamp,
    /// A suspect that waits for the end of all other runs.
    pub(super) waits: bool,
    /// The handler has called `close`: that close does not wait for it.
    pub(super) closing: bool,
}

/// What the lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) handshake: Handshake,
    /// When the timer on the running clock fires. `None`: it is set at the next chance.
    behind_at: Option<Timestamp>,
    /// By how far the store's clock was ahead of this machine's when the timers were set.
    skew: i64,
    pub(super) runs: BTreeMap<RunKey, Live>,
    /// A suspect that waits for the end of all other runs, with its ticket of the gate.
    waiting: Option<(u64, Begun)>,
    pub(super) cancels: Cancels,
    /// Timers in a row that have asked a store which fails, or will.
    failures: u32,
    /// When the last of them fires. `None`: it has fired, or a claim has succeeded since.
    asks_at: Option<Timestamp>,
    /// Both clocks at the last claim.
    clocks: Option<(Micros, Timestamp)>,
    pub(super) closers: Vec<Closer>,
}

/// Cancels of jobs that a request under way may have taken: their runs are not known yet.
#[derive(Default)]
pub(super) struct Cancels {
    /// The last request for jobs.
    last: u64,
    under_way: BTreeSet<u64>,
    /// With the last request at that time.
    pub(super) jobs: HashMap<JobId, u64>,
}

impl Cancels {
    /// A request begins.
    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.under_way.insert(self.last);
        self.last
    }

    fn note(&mut self, job: JobId) {
        if !self.under_way.is_empty() {
            self.jobs.insert(job, self.last);
        }
    }

    fn has(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// The jobs of a request are known. What none of those under way can have taken is forgotten.
    fn end(&mut self, request: u64) {
        self.under_way.remove(&request);
        if !self.jobs.is_empty() {
            let first = self.under_way.first().copied().unwrap_or(u64::MAX);
            self.jobs.retain(|_, last| *last >= first);
        }
    }
}

/// The engine of a scheduler.
pub(crate) struct Core {
    pub(crate) runtime: Runtime,
    pub(crate) store: Calls,
    pub(crate) settings: Settings,
    pub(crate) by_name: HashMap<Arc<str>, usize>,
    /// The store keeps the done jobs of all handlers.
    pub(super) keeps_done: bool,
    /// The share of a new node has been looked for.
    pub(super) has_share: AtomicBool,
    /// The awaited occurrences have been compared with the zone data of this day.
    pub(super) knows_zones: AtomicBool,
    pub(super) closing: CancellationTokenSource,
    pub(super) backlog: Backlog,
    pub(crate) stats: Mutex<Stats>,
    pub(super) keys: AtomicU64,
    pub(super) state: Mutex<State>,
    pub(super) waits: Mutex<Waits>,
    /// Of the process: a suspect runs alone.
    gate: Arc<Gate>,
    listener: OnceLock<Arc<Listener>>,
    /// Fires at the first wake instant of the wall clock.
    timer: OnceLock<WallTimer>,
    /// Fires when as much time has passed on the running clock.
    behind: OnceLock<Timer>,
}

impl Core {
    pub(crate) fn start(runtime: Runtime, store: Arc<dyn Store>, settings: Settings) -> Arc<Self> {
        let handlers = &settings.handlers;
        let by_name = handlers.iter().enumerate().map(|(i, handler)| (Arc::clone(&handler.name), i)).collect();
        let state = State { handshake: Handshake::new(handlers.len()), ..State::default() };
        let core = Arc::new(Self {
            closing: CancellationTokenSource::on(&runtime),
            backlog: Backlog::new(settings.backlog),
            state: Mutex::new(state),
            waits: Mutex::default(),
            gate: store.gate().map_or_else(Arc::default, Arc::clone),
            listener: OnceLock::new(),
            timer: OnceLock::new(),
            behind: OnceLock::new(),
            stats: Mutex::default(),
            keys: AtomicU64::new(0),
            keeps_done: store.keeps_done(),
            store: Calls::new(store, &runtime),
            runtime,
            settings,
            by_name,
            has_share: AtomicBool::new(false),
            knows_zones: AtomicBool::new(false),
        });
        // The timers hold the engine weakly: a timer that outlives its scheduler does nothing.
        let (wall, running) = (Arc::downgrade(&core), Arc::downgrade(&core));
        let behind = TimerBuilder::on(&core.runtime).start_exclusive(move |_| {
            if_alive(&running, |core| {
                core.state.lock().behind_at = None; // set again at the end of a claim that is under way
                core.pump();
            });
        });
        let _ = core.behind.set(behind);
        let gated = Arc::downgrade(&core);
        let listener: Arc<Listener> = Arc::new(move |told| if_alive(&gated, |core| core.gated(told)));
        core.gate.listen(&listener);
        let _ = core.listener.set(listener);
        let notices = Arc::downgrade(&core);
        core.store.watch(Arc::new(move |notice| notices.upgrade().is_some_and(|core| core.notice(notice))));
        core.store.enter(Arc::new(core.entry()));
        // The first claim finds the jobs that the store has already.
        let now = core.runtime.wall_now();
        let timer = WallTimer::on(&core.runtime, now, move |_| if_alive(&wall, Self::pump));
        let _ = core.timer.set(timer);
        core
    }

    /// What the store is told of this scheduler.
    fn entry(&self) -> Entry {
        let Settings { owner, node_name, handlers, .. } = &self.settings;
        let handler = |handler: &Handler| EntryHandler {
            name: Arc::clone(&handler.name),
            parallel: handler.parallel,
            limits: handler.limits,
        };
        Entry { owner: *owner, name: Arc::clone(node_name), handlers: handlers.iter().map(handler).collect() }
    }

    /// A store tells. False: no more notices, please.
    pub(super) fn notice(self: &Arc<Self>, notice: Notice) -> bool {
        match notice {
            Notice::Ended(Some(id)) => self.may_have_ended(id),
            Notice::Ended(None) => self.any_may_have_ended(),
            Notice::Wake { at } => {
                if at == Micros::FIRST {
                    self.any_may_have_ended(); // a notice may have been lost
                }
                let mut state = self.state.lock();
                self.arm(&mut state, at);
                return !state.handshake.closing || !state.runs.is_empty() || state.handshake.claiming;
            }
            Notice::Day => {
                self.knows_zones.store(false, Ordering::Relaxed);
                self.arm(&mut self.state.lock(), Micros::FIRST); // the end of a claim asks
            }
            Notice::Joined(owner) if owner == self.settings.owner => self.has_share.store(false, Ordering::Relaxed),
            Notice::Joined(_) => {}
            Notice::Cancelled(id) => {
                let sources: Vec<_> = {
                    let mut state = self.state.lock();
                    state.cancels.note(id);
                    state.runs.range((id, 0)..=(id, u64::MAX)).map(|(_, run)| Arc::clone(&run.source)).collect()
                };
                for source in sources {
                    self.aside(move |_| quietly(|| _ = source.cancel()));
                }
            }
        }
        true
    }

    /// Sets the timer, if this instant is earlier.
    fn arm(&self, state: &mut State, at: Micros) {
        let set = state.handshake.wake(at);
        // The clock may have been set ahead since the timers were set, and be set back before they
        // fire: by the running clock this instant may come first.
        let now = self.store_now();
        if set.is_none() && at > now {
            self.arm_behind(state, at, now);
        }
        self.set(state, set);
    }

    /// Sets the timers as the handshake says; and again, if the store's clock is another one than
    /// was known then. A row may be told of before the clock of its server has been read.
    fn set(&self, state: &mut State, at: Option<Micros>) {
        let skew = self.store.skew();
        let is_askew = || skew.abs_diff(state.skew) > BEHIND.as_micros() as u64;
        let Some(at) = at.or_else(|| state.handshake.armed().filter(|_| is_askew())) else { return };
        state.skew = skew;
        let (now, has_wall) = (self.store_now(), self.has_wall());
        // What is due stays due if the clock is set back from here on.
        let is_due = at <= now && has_wall;
        let wall = if is_due { Micros::FIRST } else { self.to_local(at) };
        if let Some(timer) = self.timer.get().filter(|_| has_wall) {
            timer.reset_at(wall.to_system());
        }
        if !is_due {
            self.arm_behind(state, at, now);
        }
    }

    /// False: the clock of this machine is beyond all that instants can say, and not the store's.
    /// Each instant would be past, for claims without end; the timer on the running clock is
    /// enough.
    fn has_wall(&self) -> bool {
        self.store.now().is_some() || Micros::floor(self.runtime.wall_now()) < Micros::LAST
    }

    /// An instant of the store's clock, on the wall clock of the runtime.
    fn to_local(&self, at: Micros) -> Micros {
        Micros::new(at.as_i64().saturating_sub(self.store.skew()))
    }

    /// The store's clock, as well as this machine knows it.
    pub(super) fn store_now(&self) -> Micros {
        let local = Micros::floor(self.runtime.wall_now());
        Micros::new(local.as_i64().saturating_add(self.store.skew()))
    }

    /// Sets the timer on the running clock: it finds that the wall clock was set back, or is not
    /// the store's.
    fn arm_behind(&self, state: &mut State, at: Micros, now: Micros) {
        // What the clock would show now without a step: the instant may be of a commit before a
        // step back.
        let running = self.runtime.now();
        let unstepped = state.clocks.map_or(now, |(wall, then)| wall.saturating_add(running - then));
        self.look_within(state, at.since(now.max(unstepped)).saturating_add(BEHIND));
    }

    /// Sets the timer on the running clock, if it is not set as early. A close has disposed of the
    /// timer, or is about to.
    fn look_within(&self, state: &mut State, wait: Duration) {
        let Some(behind) = self.behind.get().filter(|_| !state.handshake.closing) else { return };
        let now = self.runtime.now();
        let fires = now + wait;
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
        let (claim, request, open) = {
            let mut state = self.state.lock();
            if !state.handshake.fired() {
                return;
            }
            // After the instant was forgotten: the gate opens before it tells.
            let open = !self.gate.is_closed();
            // A claim that is longer than `BEHIND` would otherwise be asked for another one at each
            // end.
            if let (Some(_), Some(behind)) = (state.behind_at.take(), self.behind.get()) {
                behind.change(Duration::MAX, Duration::ZERO);
            }
            (self.claim_of(&mut state, open), state.cancels.begin(), open)
        };
        let (core, asked) = (Arc::clone(self), self.runtime.now());
        let answer = move |mut claimed: Result<Claimed, Error>| {
            if let Ok(Claimed { jobs, .. }) = &mut claimed {
                core.give_back_if_closing(jobs);
            }
            core.aside(move |core| core.claimed(claimed, request, asked, open));
        };
        self.store.claim(claim, Reply::new(answer));
    }

    /// `open`: jobs may begin.
    fn claim_of(&self, state: &mut State, open: bool) -> Claim {
        let most = self.settings.handlers.iter().map(|handler| if open { handler.parallel } else { 0 });
        let (places, left) = state.handshake.begin_claim(most, if open { self.settings.parallel } else { 0 });
        let room = |(handler, &places): (&Handler, &usize)| Room { name: Arc::clone(&handler.name), places };
        Claim {
            owner: self.settings.owner,
            rooms: self.settings.handlers.iter().zip(places).map(room).collect(),
            at_most: left.min(BATCH),
        }
    }

    /// Gives back the jobs in the answer to a claim or to the end of a run, on the thread that has
    /// the answer: virtual time may stand still once the scheduler has been dropped.
    fn give_back_if_closing(self: &Arc<Self>, jobs: &mut (impl IntoIterator<Item = ClaimedJob> + Default)) {
        if self.state.lock().handshake.closing {
            let unrun: Vec<_> = std::mem::take(jobs).into_iter().map(|job| runs::unrun(job.held)).collect();
            if !unrun.is_empty() {
                self.apply_surely(unrun, |_, _| {});
            }
        }
    }

    /// The store's answer to a claim. `asked`: when the claim was made. `open`: jobs could begin.
    fn claimed(self: &Arc<Self>, claimed: Result<Claimed, Error>, request: u64, asked: Timestamp, open: bool) {
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => return self.claim_failed(&error, request),
        };
        let Claimed { now, jobs, schedules, unbound, next_job, next_schedule } = claimed;
        self.bind(unbound);
        let back = self.set_back(now);
        let (begun, unrun) = self.begin_all(jobs, self.is_late(asked));
        for run in begun {
            self.run(run, false);
        }
        let (rules, rows): (Vec<_>, Vec<_>) = schedules.into_iter().partition(|row| row.recurrence.schedule.has_rule());
        for row in rules {
            let core = Arc::clone(self);
            self.runtime.execute(surely(move || core.look(row, now, back)));
        }
        let looked = !rows.is_empty();
        let advances = rows.iter().map(|row| Op::Advance(Box::new(look(row, now, back)))).collect::<Vec<_>>();
        {
            let mut state = self.state.lock();
            (state.failures, state.asks_at) = (0, None);
        }
        if looked || !unrun.is_empty() {
            self.apply_surely(advances.into_iter().chain(unrun).collect(), |_, _| {});
        }
        let mut state = self.state.lock();
        state.cancels.end(request);
        let is_beyond = next_schedule.is_some() && now >= Micros::BEYOND_SCHEDULES;
        // Behind a closed gate due jobs are no reason to look: the gate tells when it opens.
        let parallel = if open { self.settings.parallel } else { 0 };
        let set = state.handshake.end_claim(next_job, next_schedule.filter(|_| !is_beyond), parallel);
        self.set(&mut state, set);
        if is_beyond {
            self.look_within(&mut state, WRONG_CLOCK);
        }
        drop(state);
        self.take_share();
        self.renew_zones();
        self.close_if_done();
    }

    /// How far the wall clock was set back since the last claim.
    fn set_back(&self, now: Micros) -> Duration {
        let running = self.runtime.now();
        let before = self.state.lock().clocks.replace((now, running));
        before.map_or(Duration::ZERO, |(wall, at)| wall.saturating_add(running - at).since(now))
    }

    /// The process was stopped, or the answer was long under way: by now the jobs may be another
    /// scheduler's, and nothing begins.
    fn is_late(&self, asked: Timestamp) -> bool {
        self.store.lease().is_some_and(|lease| self.runtime.elapsed(asked) >= lease)
    }

    fn claim_failed(self: &Arc<Self>, error: &Error, request: u64) {
        let heals = matches!(error, Error::Store { fault, .. } if fault.heals());
        let wait = {
            let mut state = self.state.lock();
            state.handshake.claiming = false;
            state.cancels.end(request);
            // One timer asks again, also where claims for other reasons have failed meanwhile. Only
            // its own failures make the wait longer.
            (heals && state.asks_at.is_none()).then(|| {
                state.failures = state.failures.saturating_add(1);
                let (failures, wait) = (state.failures, backoff(state.failures));
                (failures, wait, *state.asks_at.insert(self.runtime.now() + wait))
            })
        };
        if let Some((failures, wait, at)) = wait {
            let told = (failures == 1).then(|| error.clone());
            self.later(wait, move |core| {
                {
                    let mut state = core.state.lock();
                    if state.asks_at != Some(at) {
                        return;
                    }
                    state.asks_at = None;
                }
                core.pump();
                core.tell(told);
            });
        }
        self.close_if_done();
    }

    /// Registers the runs of claimed jobs. Second: those that do not run after all. `is_late`: none
    /// does.
    fn begin_all(self: &Arc<Self>, jobs: Vec<ClaimedJob>, is_late: bool) -> (Vec<Begun>, Vec<Op>) {
        let (mut begun, mut unrun) = (Vec::with_capacity(jobs.len()), Vec::new());
        let mut handlers = Vec::with_capacity(jobs.len());
        let now = self.runtime.now();
        for job in jobs {
            let Some(&handler) = self.by_name.get(&job.name).filter(|_| !is_late) else {
                unrun.push(runs::unrun(job.held));
                continue;
            };
            let waits = match self.enter(&job, now) {
                Ok(waits) => waits,
                Err(back) => {
                    unrun.push(back);
                    continue;
                }
            };
            let (run, live) = self.registered(job, handler, now, waits.is_some());
            let (is_open, cancelled) = {
                let mut state = self.state.lock();
                let is_open = state.handshake.begin_run(handler);
                if is_open {
                    state.runs.insert(run_key(run.job.held), live);
                }
                (is_open, state.cancels.has(run.job.held.id))
            };
            if !is_open {
                unrun.push(runs::unrun(run.job.held));
                match waits {
                    Some((ticket, _)) => _ = self.gate.give_up(ticket, now),
                    None => self.gate.leave(),
                }
                continue;
            }
            if cancelled {
                quietly(|| _ = run.source.cancel());
            }
            handlers.push(handler);
            match waits {
                Some((ticket, patience)) => self.wait_alone(ticket, patience, run),
                None => begun.push(run),
            }
        }
        self.state.lock().handshake.begun(handlers.into_iter());
        (begun, unrun)
    }

    /// A claimed job as a run, and what is kept of the run.
    fn registered(&self, job: ClaimedJob, handler: usize, begun: Timestamp, waits: bool) -> (Begun, Live) {
        let source = Arc::new(CancellationTokenSource::on(&self.runtime));
        let (of_live, key) = (Arc::clone(&source), Arc::clone(&job.key));
        (Begun { job, handler, source }, Live { source: of_live, handler, key, begun, waits, closing: false })
    }

    /// A job comes to the gate. A suspect may have to wait: with its ticket, and how long at most.
    /// The error: it does not begin.
    fn enter(&self, job: &ClaimedJob, now: Timestamp) -> Result<Option<(u64, Duration)>, Op> {
        // The handler of one that is dead is not called.
        if job.suspicion < SUSPECT || runs::refusal(job).is_some() {
            return if self.gate.enter() { Ok(None) } else { Err(runs::unrun(job.held)) };
        }
        match self.gate.enter_alone(job.held.id, now) {
            Entered::Begins(ticket) => {
                self.runs_alone(ticket, job.crashes);
                Ok(None)
            }
            Entered::Waits(ticket, patience) => Ok(Some((ticket, patience))),
            Entered::Back(wait) => Err(runs::put_back(job.held, wait)),
            Entered::Closed => Err(runs::unrun(job.held)),
        }
    }

    /// A suspect begins: when its time alone is over, others begin beside it.
    fn runs_alone(&self, ticket: u64, crashes: u32) {
        let gate = Arc::downgrade(&self.gate);
        OnceTimer::on(&self.runtime, alone_for(crashes), move |_| {
            if_alive(&gate, |gate| gate.let_others_in(ticket));
        })
        .detach();
    }

    /// A suspect waits for the end of all other runs.
    fn wait_alone(self: &Arc<Self>, ticket: u64, patience: Duration, run: Begun) {
        let closes = {
            let mut state = self.state.lock();
            state.waiting = Some((ticket, run));
            state.handshake.closing
        };
        if closes {
            return self.give_up_waiting(Some(ticket));
        }
        let core = Arc::downgrade(self);
        OnceTimer::on(&self.runtime, patience, move |_| {
            if_alive(&core, |core| core.give_up_waiting(Some(ticket)));
        })
        .detach();
        // The last run may have ended before.
        if self.gate.begins(ticket) {
            self.gated(Gated::Begins(ticket));
        }
    }

    /// The suspect that waits does not begin: its patience is over, or the scheduler closes.
    pub(super) fn give_up_waiting(self: &Arc<Self>, ticket: Option<u64>) {
        if let Some((ticket, run)) = self.take_waiting(ticket) {
            self.put_waiting_back(ticket, run);
        }
    }

    fn put_waiting_back(self: &Arc<Self>, ticket: u64, run: Begun) {
        let (held, wait) = (run.job.held, self.gate.give_up(ticket, self.runtime.now()));
        let back = if wait.is_zero() { runs::unrun(held) } else { runs::put_back(held, wait) };
        self.apply_surely(vec![back], move |core, _| core.freed(held));
        quietly(|| drop(run));
    }

    fn take_waiting(&self, ticket: Option<u64>) -> Option<(u64, Begun)> {
        let mut state = self.state.lock();
        let is_it = |waiting: &mut (u64, Begun)| ticket.is_none_or(|ticket| ticket == waiting.0);
        state.waiting.take_if(is_it)
    }

    /// The gate tells.
    fn gated(self: &Arc<Self>, told: Gated) {
        match told {
            Gated::Opened => self.arm(&mut self.state.lock(), Micros::FIRST),
            Gated::Begins(ticket) => {
                if self.state.lock().handshake.closing {
                    return; // the close puts it back
                }
                let Some((_, run)) = self.take_waiting(Some(ticket)) else { return };
                // Cancelled meanwhile, or lost to another node.
                if run.source.token().is_cancelled() {
                    return self.put_waiting_back(ticket, run);
                }
                if let Some(live) = self.state.lock().runs.get_mut(&run_key(run.job.held)) {
                    live.waits = false;
                }
                self.runs_alone(ticket, run.job.crashes);
                self.run(run, false);
            }
        }
    }

    /// Settles a run. If jobs may wait for its place, the same commit takes one for it.
    pub(super) fn settle(
        self: &Arc<Self>,
        held: Held,
        handler: usize,
        end: Op,
        settled: impl FnOnce(&Arc<Self>, Vec<Applied>) + Send + 'static,
    ) {
        let then = move |core: &Arc<Self>, applied| {
            settled(core, applied);
            core.freed(held);
        };
        let Some((place, request)) = self.place_of(handler) else { return self.apply_surely(vec![end], then) };
        let (core, asked, copy) = (Arc::clone(self), self.runtime.now(), self.copy_of(std::slice::from_ref(&end)));
        let reply = Reply::new(move |answer: Result<Settled, Error>| match answer {
            Ok(Settled { applied, mut next }) => {
                core.give_back_if_closing(&mut next);
                core.aside(move |core| match next.map(|job| core.hand_over(held, handler, job, request, asked)) {
                    // Closed meanwhile, perhaps by a destructor.
                    Some(Ok(run)) if core.state.lock().handshake.closing => {
                        core.apply_surely(vec![runs::unrun(run.job.held)], |_, _| {});
                        then(core, applied);
                        core.freed(run.job.held);
                    }
                    Some(Ok(run)) => {
                        then(core, applied); // the place is not free
                        let here = core.store.has_thread();
                        core.run(run, here);
                    }
                    Some(Err(unrun)) => {
                        core.apply_surely(vec![unrun], |_, _| {});
                        then(core, applied);
                    }
                    None => {
                        core.state.lock().cancels.end(request);
                        then(core, applied);
                    }
                });
            }
            Err(error) => {
                core.state.lock().cancels.end(request);
                core.apply_failed(&error, copy, 0, Box::new(then));
            }
        });
        quietly(|| self.store.settle(end, place, reply));
    }

    /// The claim for the place of a run that has ended, if jobs may wait for it. After the end of
    /// the runtime no job would run: it would be put back, and its place given on, without an end.
    fn place_of(&self, handler: usize) -> Option<(Claim, u64)> {
        if self.runtime.is_shut_down() || self.gate.is_closed() {
            return None;
        }
        let request = {
            let mut state = self.state.lock();
            state.handshake.may_hand_over(handler).then(|| state.cancels.begin())?
        };
        let room = Room { name: Arc::clone(&self.settings.handlers[handler].name), places: 1 };
        Some((Claim { owner: self.settings.owner, rooms: vec![room], at_most: 1 }, request))
    }

    /// A run gives its place to another one.
    fn hand_over(
        self: &Arc<Self>,
        last: Held,
        handler: usize,
        job: ClaimedJob,
        request: u64,
        asked: Timestamp,
    ) -> Result<Begun, Op> {
        let held = job.held;
        let (run, live) = self.registered(job, handler, self.runtime.now(), false);
        let is_closed = self.gate.is_closed();
        let (last, cancelled) = {
            let mut state = self.state.lock();
            let is_open = !state.handshake.closing && !is_closed && !self.is_late(asked);
            let last = if is_open { state.runs.remove(&run_key(last)) } else { None };
            let cancelled = state.cancels.has(held.id);
            if last.is_some() {
                state.runs.insert(run_key(held), live);
            }
            state.cancels.end(request);
            (last.ok_or_else(|| runs::unrun(held))?, cancelled)
        };
        {
            // With callbacks that users have registered. A close in one of their destructors does
            // not wait for the next run.
            let _inside = Inside::enter(self, held);
            quietly(|| drop(last));
        }
        if cancelled {
            quietly(|| _ = run.source.cancel());
        }
        Ok(run)
    }

    /// The place of a run is free.
    pub(super) fn freed(self: &Arc<Self>, held: Held) {
        let live = {
            let mut state = self.state.lock();
            let Some(live) = state.runs.remove(&run_key(held)) else { return };
            let set = state.handshake.freed(live.handler);
            self.set(&mut state, set);
            live
        };
        if !live.waits {
            self.gate.leave();
        }
        quietly(|| drop(live)); // with callbacks that users have registered
        self.close_if_done();
    }

    /// Applies operations, and again after a failure of the store, until they are applied or the
    /// store is closed.
    pub(super) fn apply_surely(
        self: &Arc<Self>,
        ops: Vec<Op>,
        then: impl FnOnce(&Arc<Self>, Vec<Applied>) + Send + 'static,
    ) {
        self.apply_again(ops, 0, Box::new(then));
    }

    fn apply_again(self: &Arc<Self>, ops: Vec<Op>, failures: u32, then: Then) {
        let core = Arc::clone(self);
        let copy = self.copy_of(&ops);
        let reply = Reply::new(move |applied| match applied {
            Ok(applied) => {
                core.aside(move |core| then(core, applied));
            }
            Err(error) => core.apply_failed(&error, copy, failures, then),
        });
        quietly(|| self.store.apply(ops, reply)); // drops rules, whose destructors may panic
    }

    /// A memory store never fails, and needs no copy.
    fn copy_of(&self, ops: &[Op]) -> Vec<Op> {
        if self.store.can_fail() { ops.to_vec() } else { Vec::new() }
    }

    /// The first failure of a claim, or of the end of a run, that is tried again. On a thread of
    /// the pool: code of the user's may call the scheduler.
    fn tell(&self, error: Option<Error>) {
        let Some(error) = error else { return };
        #[cfg(feature = "tracing")]
        quietly(|| tracing::warn!(%error, "the store has failed, and is asked again"));
        self.settings.on_store_error.iter().for_each(|hook| quietly(|| hook(&error)));
    }

    fn apply_failed(self: &Arc<Self>, error: &Error, ops: Vec<Op>, failures: u32, then: Then) {
        if matches!(error, Error::Store { fault, .. } if fault.heals()) {
            let told = (failures == 0).then(|| error.clone());
            self.later(backoff(failures + 1), move |core| {
                core.apply_again(ops, failures + 1, then);
                core.tell(told);
            });
        } else {
            then(self, Vec::new());
        }
    }

    /// Runs what may run code of users: here, or on a thread of the pool, if this is a thread of
    /// the store's (J11). It runs also if the runtime has ended, since a close waits for it.
    pub(super) fn aside(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if !self.store.has_thread() {
            return work(self);
        }
        let core = Arc::clone(self);
        self.runtime.execute(surely(move || work(&core)));
    }

    /// On a thread of the pool, after a time on the running clock.
    fn later(self: &Arc<Self>, wait: Duration, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let core = Arc::clone(self);
        OnceTimer::on(&self.runtime, wait, move |_| work(&core)).detach();
    }

    /// The context of the trace of a put on this thread. One that no store accepts is left out.
    pub(crate) fn current_trace(&self) -> Option<Arc<str>> {
        let context = caught(self.settings.tracer.as_ref()?).ok().flatten();
        context.filter(|context| check_trace(context).is_ok()).map(Into::into)
    }

    /// A key for a job without one.
    pub(crate) fn new_key(&self) -> Arc<str> {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}-{number}", self.settings.owner).into()
    }

    /// The name, shared with the handler's where there is one.
    pub(crate) fn name(&self, name: &str) -> Arc<str> {
        self.by_name.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }
}

/// Work that is done when it is called, and also if it is dropped uncalled: a runtime that has
/// ended drops its jobs and timers.
pub(super) fn surely(work: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
    struct Surely<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Surely<F> {
        fn drop(&mut self) {
            if let Some(work) = self.0.take() {
                work();
            }
        }
    }
    let surely = Surely(Some(work));
    move || drop(surely)
}

/// Works on a value that is still there.
pub(super) fn if_alive<T>(value: &Weak<T>, work: impl FnOnce(&Arc<T>)) {
    if let Some(value) = value.upgrade() {
        work(&value);
    }
}

fn backoff(failures: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(LONGEST_BACKOFF)
}

impl Drop for Core {
    /// The last reference may be a run's, in an executor: code of users is dropped without a panic.
    fn drop(&mut self) {
        let Settings { handlers, on_run_end, on_store_error, codec, tracer, around, binding, .. } = &mut self.settings;
        handlers.drain(..).for_each(|handler| {
            let Handler { call, spawner, .. } = handler;
            quietly(|| drop(call));
            quietly(|| drop(spawner));
        });
        quietly(|| drop(on_run_end.take()));
        quietly(|| drop(on_store_error.take()));
        quietly(|| drop(codec.take()));
        quietly(|| drop(tracer.take()));
        around.drain(..).for_each(|hook| quietly(|| drop(hook)));
        quietly(|| drop(std::mem::take(binding)));
    }
}

debug_of!(Core, |core| owner: core.settings.owner);
