//! The ledger: what was asked of each timer, what its callbacks saw, and whether the two agree.
//!
//! Ground rules. Kept by rules of its own, from outside the crate. A call is known to lie between
//! two readings of the clock, hence a due point lies in an interval; ticks are matched with the
//! schedules that explain them when the timer has ended and its callback was dropped. Nothing in
//! here waits for a timer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use timerqueue::{Changed, MissedTicks, Tick, Timestamp};

/// "Never", in nanoseconds.
pub(crate) const NEVER: u64 = u64::MAX;
/// What is due and has not come after this long is lost, however busy the machine.
const LOST_AFTER: Duration = Duration::from_secs(30);
const PULSE: Duration = Duration::from_millis(50);
static STOPPED_NS: AtomicU64 = AtomicU64::new(0);

/// Notices when the whole process is stopped for a while (SIGSTOP, a frozen machine): [`patience`]
/// grows by as much.
pub(crate) fn pulse() {
    loop {
        let begun = Instant::now();
        std::thread::sleep(PULSE);
        let stopped = begun.elapsed().saturating_sub(5 * PULSE);
        STOPPED_NS.fetch_add(stopped.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How long to wait before something counts as lost.
pub(crate) fn patience() -> Duration {
    LOST_AFTER + Duration::from_nanos(STOPPED_NS.load(Ordering::Relaxed))
}
/// The catch-up tick of [`MissedTicks::Rebase`].
const CATCH_UP_NS: u64 = 1_000_000;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn nanos(at: Timestamp) -> u64 {
    at.as_duration().as_nanos() as u64
}

/// The instant `after` from `now`.
pub(crate) fn instant(now: u64, after: Duration) -> u64 {
    u64::try_from(after.as_nanos()).map_or(NEVER, |ns| now.saturating_add(ns))
}

// ------------------------------------------------------------------------------------------------------------- figures

/// A figure of the report.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn bump(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Reads and sets to zero.
    pub(crate) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::SeqCst)
    }
}

/// All figures, and what went wrong.
pub(crate) struct Figures {
    pub(crate) steps: Count,
    pub(crate) made: Count,
    pub(crate) changed: Count,
    pub(crate) ticks: Count,
    pub(crate) verified: Count,
    /// Timers that could not be judged: a call was interrupted for so long that two schedules
    /// explain one tick.
    pub(crate) unclear: Count,
    pub(crate) panics: Count,
    pub(crate) futures: Count,
    pub(crate) tokens: Count,
    pub(crate) guests: Count,
    pub(crate) neighbours: Count,
    pub(crate) latest_ns: Count,
    pub(crate) faults: Count,
}

pub(crate) static FIGURES: Figures = Figures {
    steps: Count::new(),
    made: Count::new(),
    changed: Count::new(),
    ticks: Count::new(),
    verified: Count::new(),
    unclear: Count::new(),
    panics: Count::new(),
    futures: Count::new(),
    tokens: Count::new(),
    guests: Count::new(),
    neighbours: Count::new(),
    latest_ns: Count::new(),
    faults: Count::new(),
};

/// Something is wrong. Printed at once; the verdict counts them.
pub(crate) fn fault(what: impl std::fmt::Display) {
    FIGURES.faults.bump();
    if FIGURES.faults.get() <= 50 {
        println!("FAULT: {what}");
    }
}

/// Checks one statement.
pub(crate) fn must(holds: bool, what: impl FnOnce() -> String) {
    if !holds {
        fault(what());
    }
}

// ------------------------------------------------------------------------------------------------------ one timer's page

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Overlapping,
    Exclusive,
    Once,
}

/// A call, between two readings of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) before: u64,
    pub(crate) after: u64,
}

/// One schedule that the timer was put under.
#[derive(Clone, Copy, Debug)]
struct Arming {
    call: Call,
    /// The first due point lies in here, both ends included.
    due: (u64, u64),
    /// [`NEVER`] for a one-shot.
    period: u64,
    /// What the change said about the schedule before it; `None` for the first.
    found: Option<Changed>,
}

/// What a callback saw.
#[derive(Clone, Copy, Debug)]
struct Seen {
    scheduled: u64,
    missed: u64,
    now: u64,
}

#[derive(Default)]
struct Books {
    armings: Vec<Arming>,
    seen: Vec<Seen>,
    /// Disposal, drop or shutdown; the first of them.
    end: Option<Call>,
    /// A change of a once-timer that came too late.
    too_late: Option<Call>,
}

/// Everything about one timer. See the module's ground rules.
pub(crate) struct Page {
    pub(crate) kind: Kind,
    pub(crate) policy: MissedTicks,
    books: Mutex<Books>,
    running: AtomicU32,
    drops: AtomicU32,
    /// Somebody has waited for the end: from here on nothing may run.
    over: AtomicBool,
}

/// Owned by the callback; says when it is dropped.
pub(crate) struct Canary(Arc<Page>);

impl Canary {
    pub(crate) fn page(&self) -> &Arc<Page> {
        &self.0
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let page = &self.0;
        if page.drops.fetch_add(1, Ordering::SeqCst) != 0 {
            fault("what a callback owned was dropped twice");
        }
        if page.running.load(Ordering::SeqCst) != 0 {
            fault("what a callback owned was dropped while it ran");
        }
        if page.over.load(Ordering::SeqCst) {
            fault("what a callback owned was dropped after the wait for its end was over");
        }
    }
}

/// Marks a callback as running, also when it panics.
pub(crate) struct Running<'a>(&'a Page);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.0.over.load(Ordering::SeqCst) {
            fault("a callback ran on after the wait for its end was over");
        }
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Page {
    pub(crate) fn new(kind: Kind, policy: MissedTicks) -> (Arc<Self>, Canary) {
        let page = Arc::new(Self {
            kind,
            policy,
            books: Mutex::default(),
            running: AtomicU32::new(0),
            drops: AtomicU32::new(0),
            over: AtomicBool::new(false),
        });
        FIGURES.made.bump();
        (Arc::clone(&page), Canary(page))
    }

    /// A callback begins. Returns how many have begun so far, this one included.
    pub(crate) fn begin(&self, tick: &Tick<'_>) -> (Running<'_>, usize) {
        let now = nanos(tick.now());
        let seen = Seen { scheduled: nanos(tick.scheduled()), missed: tick.missed(), now };
        let others = self.running.fetch_add(1, Ordering::SeqCst);
        FIGURES.ticks.bump();
        if now < seen.scheduled {
            fault(format_args!("early by {} ns", seen.scheduled - now));
        }
        FIGURES.latest_ns.raise(now.saturating_sub(seen.scheduled));
        if self.kind != Kind::Overlapping && others != 0 {
            fault("callbacks of an exclusive timer overlap");
        }
        if self.over.load(Ordering::SeqCst) || self.drops.load(Ordering::SeqCst) != 0 {
            fault("a callback began after its timer's end");
        }
        let mut books = lock(&self.books);
        books.seen.push(seen);
        (Running(self), books.seen.len())
    }

    /// Ticks so far.
    pub(crate) fn ticks(&self) -> usize {
        lock(&self.books).seen.len()
    }

    /// A schedule was set by `call`; `found` is what a change answered.
    pub(crate) fn armed(&self, call: Call, due: Duration, period: Duration, found: Option<Changed>) {
        let mut books = lock(&self.books);
        if found.is_some() {
            FIGURES.changed.bump();
        }
        if found == Some(Changed::Ended) {
            if self.kind == Kind::Once && books.end.is_none() {
                books.too_late = Some(call);
            }
            return;
        }
        let period = if period.is_zero() { NEVER } else { u64::try_from(period.as_nanos()).unwrap_or(NEVER) };
        let due = (instant(call.before, due), instant(call.after, due));
        books.armings.push(Arming { call, due, period, found });
    }

    /// The timer was disposed, dropped or shut down by `call`.
    pub(crate) fn ended(&self, call: Call) {
        let mut books = lock(&self.books);
        if books.end.is_none_or(|end| call.before < end.before) {
            books.end = Some(call);
        }
    }

    /// Somebody has waited for the end of the timer: nothing runs, and what the callback owned is
    /// gone.
    pub(crate) fn waited(&self) {
        if self.running.load(Ordering::SeqCst) != 0 {
            fault("a callback runs although its end was waited for");
        }
        if !self.is_dropped() {
            fault("the wait for the end was over before the callback was dropped");
        }
        self.over.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.drops.load(Ordering::SeqCst) != 0
    }

    /// When the last schedule is due at the latest, if it is due at all.
    fn last_due(&self) -> u64 {
        lock(&self.books).armings.last().map_or(NEVER, |arming| arming.due.1)
    }

    /// Whether ticks and schedules agree. `None`: it cannot be told.
    fn verify(&self) -> Option<Result<(), String>> {
        let mut books = lock(&self.books);
        let books = &mut *books;
        // Callbacks that change their own timer may write here out of order.
        books.armings.sort_by_key(|arming| arming.call.before);
        books.seen.sort_by_key(|seen| seen.scheduled);
        let verdict = match_ticks(self.kind, self.policy, books);
        verdict.map(|verdict| {
            verdict.map_err(|what| {
                let (armings, seen) = (&books.armings, &books.seen);
                let (last_armings, last_seen) = (armings.len().saturating_sub(6), seen.len().saturating_sub(12));
                format!(
                    "{what}\n  {:?} {:?}, end {:?}, too late {:?}\n  last schedules {:#?}\n  last ticks {:#?}",
                    self.kind,
                    self.policy,
                    books.end,
                    books.too_late,
                    &armings[last_armings..],
                    &seen[last_seen..],
                )
            })
        })
    }
}

/// See [`Page::verify`].
fn match_ticks(kind: Kind, policy: MissedTicks, books: &Books) -> Option<Result<(), String>> {
    let wrong = |what: &str, k: usize| Some(Err(format!("{what} (schedule {k})")));
    let mut ticks = Ticks { seen: &books.seen, used: vec![false; books.seen.len()], low: 0 };
    for (k, arming) in books.armings.iter().enumerate() {
        let next = books.armings.get(k + 1);
        let found = next.and_then(|next| next.found);
        let end = books.end.map_or(NEVER, |end| end.after);
        // What has begun before it was replaced or ended was due by then (S16, S20).
        let bound = next.map_or(NEVER, |next| next.call.after).min(end);
        let (one_shot, idle) = (arming.period == NEVER, arming.due.0 == NEVER);
        let withdrawn = one_shot && found == Some(Changed::WasWaiting);
        let mut last: Option<&Seen> = None;
        let mut count = 0;
        loop {
            let tick = ticks.take(bound, |tick| match last {
                None => !withdrawn && (arming.due.0..=arming.due.1).contains(&tick.scheduled),
                Some(last) => !one_shot && follows(policy, arming.period, last, tick),
            });
            let Some(tick) = tick else { break };
            if !one_shot && next.is_some_and(|next| (next.due.0..=next.due.1).contains(&tick.scheduled)) {
                return None; // the next schedule explains it as well
            }
            last = Some(tick);
            count += 1;
        }
        // The answers of the next change, and of the one that came too late.
        let spent =
            books.too_late.filter(|late| next.is_none() && late.after < books.end.map_or(NEVER, |end| end.before));
        match found {
            Some(Changed::WasWaiting) if idle => return wrong("a change found an idle timer waiting", k),
            Some(Changed::WasIdle) if !one_shot && !idle => return wrong("a change found a periodic timer idle", k),
            Some(Changed::WasIdle) if !idle && count != 1 => {
                return wrong("fired by its answer, but not by its ticks", k);
            }
            _ if spent.is_some() && count != 1 => return wrong("spent by its answer, but not by its ticks", k),
            _ => {}
        }
        // Nothing that was due long before the timer's end or its next schedule is missing.
        let expected = match last {
            None => arming.due.1,
            Some(_) if one_shot => NEVER,
            Some(last) => {
                let on = arming.period.saturating_mul(last.missed.saturating_add(1));
                last.scheduled.saturating_add(on).max(last.now.saturating_add(arming.period))
            }
        };
        let until = next.map_or(NEVER, |next| next.call.before).min(books.end.map_or(NEVER, |end| end.before));
        if until != NEVER && expected.saturating_add(patience().as_nanos() as u64) < until {
            return wrong("a tick is lost", k);
        }
        if kind == Kind::Once && count == 1 && next.is_some() {
            return wrong("a once-timer was changed after it had fired", k);
        }
    }
    match ticks.take(NEVER, |_| true) {
        None => Some(Ok(())),
        Some(tick) => Some(Err(format!("no schedule explains this tick: {tick:?}"))),
    }
}

/// The ticks of a timer in the order of their instants; each is taken once.
///
/// Those of two schedules may be interleaved: a thread that is stopped in the middle of a change
/// has read the clock before, and its new due point may be earlier than a tick of the old schedule
/// that ran meanwhile.
struct Ticks<'a> {
    seen: &'a [Seen],
    used: Vec<bool>,
    /// All before this one are used.
    low: usize,
}

impl<'a> Ticks<'a> {
    fn take(&mut self, bound: u64, explained: impl Fn(&Seen) -> bool) -> Option<&'a Seen> {
        while self.used.get(self.low).is_some_and(|used| *used) {
            self.low += 1;
        }
        let until = self.seen.partition_point(|tick| tick.scheduled <= bound);
        let at = (self.low..until).find(|&at| !self.used[at] && explained(&self.seen[at]))?;
        self.used[at] = true;
        Some(&self.seen[at])
    }
}

/// Whether `tick` is the one that follows `last` under the policy (S7, S8).
fn follows(policy: MissedTicks, period: u64, last: &Seen, tick: &Seen) -> bool {
    let next = tick.scheduled;
    let on_grid = next == last.scheduled.saturating_add(period.saturating_mul(last.missed.saturating_add(1)));
    // When the late tick before was taken up, if `next` was counted from there: it had been late by
    // `whole` periods.
    let taken_up = |whole: u64, ahead: u64| {
        let at = next.saturating_sub(ahead);
        let from = last.scheduled.saturating_add(period.saturating_mul(whole));
        (from..from.saturating_add(period)).contains(&at) && at <= last.now
    };
    match policy {
        MissedTicks::Skip => on_grid && last.scheduled.saturating_add(period.saturating_mul(last.missed)) <= last.now,
        MissedTicks::Burst => on_grid && last.missed == 0,
        MissedTicks::Delay if last.missed == 0 => on_grid,
        MissedTicks::Delay => taken_up(last.missed, period),
        _ => (on_grid && last.missed == 0) || taken_up(last.missed.saturating_add(1), period.min(CATCH_UP_NS)),
    }
}

// ----------------------------------------------------------------------------------------------------- pages to be closed

/// Pages of timers that have ended, or will by themselves; verified when the callback was dropped.
#[derive(Default)]
pub(crate) struct Retired(Mutex<VecDeque<(Arc<Page>, Instant)>>);

impl Retired {
    /// A timer has ended.
    pub(crate) fn push(&self, page: Arc<Page>) {
        lock(&self.0).push_back((page, Instant::now()));
    }

    /// A timer without a handle: it ends by itself some time after it is due.
    pub(crate) fn push_detached(&self, page: Arc<Page>, now: u64, lives: Duration) {
        let wait = Duration::from_nanos(page.last_due().saturating_sub(now)).min(Duration::from_secs(3600));
        lock(&self.0).push_back((page, Instant::now() + wait + lives));
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Closes the pages that can be closed.
    pub(crate) fn review(&self) {
        let mut left = self.len();
        while left > 0 {
            left -= 1;
            let Some((page, deadline)) = lock(&self.0).pop_front() else { return };
            if page.is_dropped() {
                match page.verify() {
                    None => FIGURES.unclear.bump(),
                    Some(Ok(())) => FIGURES.verified.bump(),
                    Some(Err(what)) => fault(what),
                }
            } else if Instant::now() > deadline + patience() {
                let (kind, books) = (page.kind, lock(&page.books));
                let (armings, end) = (&books.armings, books.end);
                fault(format_args!(
                    "not dropped in time: {kind:?} {armings:#?} ended {end:?}, {} ticks",
                    books.seen.len()
                ));
            } else {
                lock(&self.0).push_back((page, deadline));
            }
        }
    }
}
