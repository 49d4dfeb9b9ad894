//! The model: sorted maps, and rules written down from the promises.
//!
//! Ground rules. Knows nothing of the crate but its answers' types. Each operation changes the model and returns what the
//! crate must answer. What the crate runs by itself on the way (callbacks, wakers) is announced to the model at that
//! moment, and the model says whether it is the one thing that may happen now. Here are the timers; the rooms below are the rest.

mod cancellation;
mod futures;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use timerqueue::{CancelReason, Changed, MissedTicks};

pub(crate) const NEVER: u64 = u64::MAX;
/// A delay until then never ends.
const END: u64 = NEVER - 1;
/// The last instant that a clock shows.
const LAST: u64 = NEVER - 2;
pub(crate) const CLOCKS: usize = 2;

/// The waker of a future that panics when it is called.
pub(crate) const GRUMPY: u8 = 2;

/// The instant `ns` after `at`, or never.
pub(crate) fn later(at: u64, ns: u64) -> u64 {
    let sum = at.saturating_add(ns);
    if sum > LAST { NEVER } else { sum }
}

pub(crate) fn instant(now: u64, after: Duration) -> u64 {
    u64::try_from(after.as_nanos()).map_or(NEVER, |ns| later(now, ns))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Overlapping,
    Exclusive,
    Once,
}

/// Who stands behind something that is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Timer,
    Wall,
    Future(usize),
    Source(usize),
}

/// Something that is, or was, filed in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) runtime: usize,
    pub(crate) what: What,
    pub(crate) kind: Kind,
    policy: MissedTicks,
    leeway: Duration,
    due: u64,
    period: u64,
    /// Breaks ties between equal due points: the order of arming (S14).
    number: u64,
    filed: bool,
    claimed: bool,
    owed: bool,
    disposed: bool,
    spent: bool,
    pub(crate) handle: bool,
    pub(crate) ticks: u64,
}

impl Node {
    /// The first point of its grid at or after an instant: the widest of 1, 2, 5, 10, ... us that its leeway allows (S58).
    fn on_grid(&self, at: u64) -> u64 {
        let steps = (3..14).flat_map(|decade| [1, 2, 5].map(|digit| digit * 10_u64.pow(decade)));
        let widest = steps.take_while(|&step| u128::from(step) <= self.leeway.as_nanos()).last();
        widest.and_then(|step| at.checked_next_multiple_of(step)).unwrap_or(at)
    }

    /// When it comes due, by leave of its leeway.
    fn fires_at(&self) -> u64 {
        self.on_grid(self.due)
    }

    /// Its place among what waits.
    fn key(&self) -> (u64, u64) {
        (self.fires_at(), self.number)
    }
}

/// A tick that has come due, and is to run.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    node: usize,
    scheduled: u64,
    missed: u64,
}

#[derive(Default)]
struct Clock {
    /// What the clock shows that stands still in suspend.
    now: u64,
    suspended: u64,
    /// What the wall clock was set to, in ns since the epoch, and what the boot clock showed then.
    wall: (i128, u64),
    /// How far the running advance goes.
    target: Option<u64>,
    /// All that waits, by due point and arming, on either clock: [`Runtime::boot`].
    filed: [BTreeMap<(u64, u64), usize>; 2],
    /// What was due when the clock last stopped, in the order in which it runs.
    claimed: BTreeMap<(u64, u64), Claimed>,
    ran: u64,
}

impl Clock {
    fn shown(&self, boot: bool) -> u64 {
        if boot { self.now.saturating_add(self.suspended).min(LAST) } else { self.now }
    }

    /// An instant on the clock that stands still in suspend.
    fn on_monotonic(&self, at: u64, boot: bool) -> u64 {
        if boot && at <= LAST { at.saturating_sub(self.suspended) } else { at }
    }

    fn wall(&self) -> i128 {
        self.wall.0 + i128::from(self.shown(true) - self.wall.1)
    }

    /// The first of what waits, on the clock that stands still in suspend.
    fn first(&self) -> Option<u64> {
        let first =
            |boot| self.filed[usize::from(boot)].first_key_value().map(|(key, _)| self.on_monotonic(key.0, boot));
        [false, true].into_iter().filter_map(first).min().filter(|&first| first <= LAST)
    }
}

#[derive(Clone, Default)]
pub(crate) struct Runtime {
    pub(crate) clock: usize,
    /// On the clock that goes on in suspend.
    boot: bool,
    pub(crate) open: bool,
    /// What its clock showed when it was shut down.
    closed_at: u64,
    pub(crate) fired: u64,
    pub(crate) panics: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Callback(usize),
    Waker(usize, u8),
}

#[derive(Default)]
struct Source {
    runtime: usize,
    reason: Option<CancelReason>,
    /// Last registered at the end.
    stack: Vec<Entry>,
    timer: Option<usize>,
    armed: bool,
    parents: Vec<usize>,
    children: BTreeSet<usize>,
    handles: usize,
    gone: bool,
}

/// A cancellation that is being told.
struct Telling {
    root: usize,
    sources: Vec<usize>,
    /// The clock that drives it, for a timed one.
    driven: Option<usize>,
    pub(crate) panicked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DelayEnd {
    Over,
    RuntimeEnded,
    Cancelled(CancelReason),
}

#[derive(Clone, Debug)]
pub(crate) struct Delay {
    runtime: usize,
    pub(crate) deadline: u64,
    node: Option<usize>,
    waker: Option<u8>,
    pub(crate) done: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum FutureKind {
    Delay,
    /// With a future that is ready when its flag is set.
    Timeout {
        ready: bool,
    },
    /// Waits for a source.
    Cancelled {
        source: usize,
    },
    /// A delay with a token.
    Either {
        source: usize,
    },
    /// As `Timeout`, with a token.
    Both {
        ready: bool,
        source: usize,
    },
    /// The same future until a source is cancelled.
    Until {
        ready: bool,
        source: usize,
    },
    Interval {
        next: u64,
        period: u64,
        policy: MissedTicks,
        stopped: bool,
        waker: Option<u8>,
        ended: bool,
    },
}

impl FutureKind {
    /// The source whose token it has.
    fn source(&self) -> Option<usize> {
        match *self {
            Self::Cancelled { source }
            | Self::Either { source }
            | Self::Both { source, .. }
            | Self::Until { source, .. } => Some(source),
            Self::Delay | Self::Timeout { .. } | Self::Interval { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Future {
    pub(crate) kind: FutureKind,
    pub(crate) delay: Delay,
}

/// What a poll must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Pending,
    Ended(DelayEnd),
    Value,
    Cancelled(CancelReason),
    Tick {
        scheduled: u64,
        missed: u64,
    },
    NoTick,
    /// What ran until the cancellation.
    GivenUp,
}

/// What the crate has done by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Tick { node: usize, scheduled: u64, missed: u64 },
    WallTick { node: usize, scheduled: i128 },
    Called { callback: usize },
    Woken { future: usize, waker: u8 },
}

#[derive(Default)]
pub(crate) struct Model {
    clocks: [Clock; CLOCKS],
    pub(crate) runtimes: Vec<Runtime>,
    /// Clocks that are driven, the innermost last.
    driving: Vec<usize>,
    pub(crate) nodes: Vec<Node>,
    sources: Vec<Source>,
    pub(crate) futures: BTreeMap<usize, Future>,
    telling: Vec<Telling>,
    /// Wakers that a shutdown or a stop handle calls now.
    called_out: Vec<(usize, u8)>,
    /// Wall timers that wait, and for what.
    walls: BTreeMap<usize, i128>,
    numbers: u64,
    /// Registered callbacks that panic.
    pub(crate) panicking: BTreeSet<usize>,
    /// Registered callbacks that own something that panics when it is dropped.
    pub(crate) spiteful: BTreeSet<usize>,
    /// Scopes that are being left by a panic; destructors do not panic in there.
    pub(crate) unwinding: usize,
    pub(crate) events: u64,
    /// Situations that came up, for a test that they do.
    pub(crate) seen: BTreeSet<&'static str>,
}

impl Model {
    fn saw(&mut self, what: &'static str, really: bool) {
        if really {
            self.seen.insert(what);
        }
    }

    /// What a clock shows that stands still in suspend.
    pub(crate) fn now(&self, clock: usize) -> u64 {
        self.clocks[clock].now
    }

    /// What the clock of a runtime shows.
    pub(crate) fn now_of(&self, runtime: usize) -> u64 {
        let Runtime { clock, boot, .. } = self.runtimes[runtime];
        self.clocks[clock].shown(boot)
    }

    /// What the wall clock shows, in ns since the epoch.
    pub(crate) fn wall(&self, clock: usize) -> i128 {
        self.clocks[clock].wall()
    }

    /// What is left of the running advance.
    pub(crate) fn left(&self, clock: usize) -> Option<u64> {
        self.clocks[clock].target.map(|target| target.saturating_sub(self.clocks[clock].now))
    }

    fn clock_of(&self, node: usize) -> usize {
        self.runtimes[self.nodes[node].runtime].clock
    }

    fn is_on_boot(&self, node: usize) -> bool {
        self.runtimes[self.nodes[node].runtime].boot
    }

    /// What this node's clock shows.
    fn now_at(&self, node: usize) -> u64 {
        self.now_of(self.nodes[node].runtime)
    }

    /// Time that may pass without more than some dozen ticks of one timer.
    pub(crate) fn affordable(&self, clock: usize) -> u64 {
        let filed = self.clocks[clock].filed.iter().flat_map(BTreeMap::values);
        let shortest = filed.map(|&node| self.nodes[node].period).min().unwrap_or(NEVER).min(self.frequent(clock));
        shortest.saturating_mul(24).min((1 << 61_u64) - self.clocks[clock].shown(true).min(1 << 61))
    }

    /// The shortest period of a timer that is owed a tick, hence not filed.
    fn frequent(&self, clock: usize) -> u64 {
        let owed = self.nodes.iter().filter(|node| node.owed && self.runtimes[node.runtime].clock == clock);
        owed.map(|node| node.period).min().unwrap_or(NEVER)
    }

    // ------------------------------------------------------------------------------------------------------- filing

    fn file(&mut self, node: usize) {
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let n = &mut self.nodes[node];
        n.filed = true;
        let before = self.clocks[clock].filed[usize::from(boot)].insert(n.key(), node);
        assert_eq!(before, None, "arming numbers are unique");
    }

    /// Takes a node out of wherever it waits. Whether it waited.
    fn withdraw(&mut self, node: usize) -> bool {
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let n = &mut self.nodes[node];
        let waited = n.filed || n.claimed || n.owed;
        if n.filed {
            self.clocks[clock].filed[usize::from(boot)].remove(&n.key());
        }
        if n.claimed {
            self.clocks[clock].claimed.retain(|_, claimed| claimed.node != node);
        }
        (n.filed, n.claimed, n.owed) = (false, false, false);
        waited
    }

    fn arm(&mut self, node: usize, due: u64, period: u64) {
        let number = self.next_number();
        self.arm_as(node, due, period, number);
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn arm_as(&mut self, node: usize, due: u64, period: u64, number: u64) {
        let n = &mut self.nodes[node];
        (n.due, n.period, n.number) = (due, period, number);
        if due != NEVER {
            self.file(node);
        }
    }

    fn new_node(
        &mut self,
        runtime: usize,
        what: What,
        kind: Kind,
        policy: MissedTicks,
        due: u64,
        period: u64,
    ) -> usize {
        let open = self.runtimes[runtime].open;
        self.nodes.push(Node {
            runtime,
            what,
            kind,
            policy,
            leeway: Duration::ZERO,
            due,
            period,
            number: 0,
            filed: false,
            claimed: false,
            owed: false,
            disposed: !open,
            spent: false,
            handle: true,
            ticks: 0,
        });
        let node = self.nodes.len() - 1;
        if open {
            self.arm(node, due, period);
        }
        node
    }

    fn period(period: Duration) -> u64 {
        if period.is_zero() { NEVER } else { u64::try_from(period.as_nanos()).unwrap_or(NEVER) }
    }

    pub(crate) fn create(
        &mut self,
        runtime: usize,
        kind: Kind,
        (policy, leeway): (MissedTicks, Duration),
        due: Duration,
        period: Duration,
    ) -> usize {
        let due = instant(self.now_of(runtime), due);
        // Filed when it is known how late it may be.
        let node = self.new_node(runtime, What::Timer, kind, policy, NEVER, NEVER);
        self.nodes[node].leeway = leeway;
        if !self.nodes[node].disposed {
            self.arm(node, due, Self::period(period));
        }
        node
    }

    // --------------------------------------------------------------------------------------------------- wall timers

    pub(crate) fn create_wall(&mut self, runtime: usize, at: i128) -> usize {
        let node = self.new_node(runtime, What::Wall, Kind::Exclusive, MissedTicks::default(), NEVER, NEVER);
        let _ = self.change_wall(node, at);
        node
    }

    pub(crate) fn change_wall(&mut self, node: usize, at: i128) -> Changed {
        let n = &self.nodes[node];
        if !self.runtimes[n.runtime].open || n.disposed {
            return Changed::Ended;
        }
        let waited = self.walls.insert(node, at).is_some();
        self.withdraw(node);
        self.nodes[node].number = self.next_number();
        self.aim(node, at);
        if waited { Changed::WasWaiting } else { Changed::WasIdle }
    }

    /// As the clocks are now. Its place among those that are due at one instant stays.
    fn aim(&mut self, node: usize, at: i128) {
        self.withdraw(node);
        let left = (at - self.wall(self.clock_of(node))).max(0);
        let due = u64::try_from(left).map_or(NEVER, |left| later(self.now_at(node), left));
        self.saw("a wall timer waited for a time beyond the end of the clock", due == NEVER);
        self.arm_as(node, due, NEVER, self.nodes[node].number);
    }

    /// The wall clock has been set, or has gone on by itself: the timers follow.
    fn follow(&mut self, clock: usize) {
        let mut waiting: Vec<_> = self.walls.iter().map(|(&node, &at)| (self.nodes[node].runtime, node, at)).collect();
        waiting.retain(|&(runtime, ..)| self.runtimes[runtime].clock == clock);
        waiting.sort_unstable();
        for (_, node, at) in waiting {
            let claimed = self.nodes[node].claimed;
            self.aim(node, at);
            let waits_on = self.nodes[node].due > self.now_at(node);
            self.saw("the wall clock was set back before a swept wall timer ran", claimed && waits_on);
        }
    }

    pub(crate) fn set_wall(&mut self, clock: usize, to: i128) {
        let before = self.wall(clock);
        let c = &mut self.clocks[clock];
        c.wall = (to, c.shown(true));
        let stepped_over = self
            .walls
            .iter()
            .any(|(&node, &at)| self.runtimes[self.nodes[node].runtime].clock == clock && before < at && at < to);
        self.saw("the wall clock was set past the time of a timer", stepped_over);
        self.saw("the wall clock was set back", to < before && !self.walls.is_empty());
        self.follow(clock);
    }

    pub(crate) fn suspend(&mut self, clock: usize, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(LAST);
        let c = &mut self.clocks[clock];
        let before = c.shown(true);
        c.suspended = c.suspended.saturating_add(by);
        let after = c.shown(true);
        let due = c.filed[1].first_key_value().is_some_and(|(key, _)| before < key.0 && key.0 <= after);
        let waits = c.filed[0].first_key_value().is_some_and(|(key, _)| c.now < key.0 && key.0 <= after);
        self.saw("a timer came due in suspend", due);
        self.saw("a timer slept through a suspend", waits && by > 0);
        let driven = self.left(clock).is_some();
        self.saw("a suspend in a callback", driven && by > 0);
        self.follow(clock);
    }

    // -------------------------------------------------------------------------------------------- changes and the end

    pub(crate) fn change(&mut self, node: usize, due: Duration, period: Duration) -> Changed {
        let n = &self.nodes[node];
        if !self.runtimes[n.runtime].open || n.disposed || n.spent {
            return Changed::Ended;
        }
        let now = self.now_at(node);
        let (claimed, owed) = (n.claimed, n.owed);
        self.saw("a claimed tick was withdrawn by a change", claimed);
        self.saw("an owed tick was withdrawn by a change", owed);
        let waited = self.withdraw(node);
        self.arm(node, instant(now, due), Self::period(period));
        if waited { Changed::WasWaiting } else { Changed::WasIdle }
    }

    pub(crate) fn dispose(&mut self, node: usize) {
        let n = &self.nodes[node];
        let (claimed, owed) = (n.claimed, n.owed);
        self.saw("a claimed tick was disposed", claimed);
        self.saw("an owed tick was disposed", owed);
        self.withdraw(node);
        self.nodes[node].disposed = true;
        self.walls.remove(&node);
    }

    /// Whether it can be left alone without making time dear.
    pub(crate) fn is_slow(&self, node: usize) -> bool {
        self.nodes[node].period >= 3_600_000_000_000
    }

    /// Whether the callback of this timer still owns what it owned.
    pub(crate) fn owns(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        let waits = n.filed || self.walls.contains_key(&node);
        matches!(n.what, What::Timer | What::Wall) && !n.disposed && !n.spent && (n.handle || waits)
    }

    // -------------------------------------------------------------------------------------------------------- firing

    /// The arithmetic of S7 and S8.
    fn take_up(policy: MissedTicks, due: u64, period: u64, now: u64) -> (u64, u64) {
        if period == NEVER {
            return (0, NEVER);
        }
        let passed = (now - due) / period;
        if passed == 0 || policy == MissedTicks::Burst {
            return (0, later(due, period));
        }
        match policy {
            MissedTicks::Rebase => (passed - 1, later(now, period.min(1_000_000))),
            MissedTicks::Skip => (passed, later(due, period.saturating_mul(passed + 1))),
            _ => (passed, later(now, period)),
        }
    }

    fn claim(&mut self, node: usize) {
        let (clock, boot, now) = (self.clock_of(node), self.is_on_boot(node), self.now_at(node));
        let n = &mut self.nodes[node];
        let (missed, next) = Self::take_up(n.policy, n.due, n.period, now);
        let order = (self.clocks[clock].on_monotonic(n.due, boot), n.number);
        self.clocks[clock].claimed.insert(order, Claimed { node, scheduled: n.due, missed });
        (n.claimed, n.filed, n.owed) = (true, false, false);
        let (policy, put_off) = (n.policy, n.due < n.fires_at());
        self.saw("a leeway put a timer off", put_off);
        self.saw("Rebase missed ticks", missed > 0 && policy == MissedTicks::Rebase);
        self.saw("Skip missed ticks", missed > 0 && policy == MissedTicks::Skip);
        self.saw("Delay missed ticks", missed > 0 && policy == MissedTicks::Delay);
        let n = &mut self.nodes[node];
        if next != NEVER {
            n.due = next;
            if n.fires_at() > now {
                self.file(node);
            } else {
                n.owed = true;
                let kind = n.kind;
                self.saw("Burst of overlapping ticks", kind == Kind::Overlapping);
                self.saw("Burst of exclusive ticks", kind == Kind::Exclusive);
            }
        }
    }

    /// Moves the clock to what is due next within the running advance, and claims all of that.
    fn step(&mut self, clock: usize) -> bool {
        let c = &mut self.clocks[clock];
        let Some(due) = c.first() else { return false };
        if c.target.is_none_or(|target| due > target) {
            return false;
        }
        c.now = c.now.max(due);
        for boot in [false, true] {
            let now = self.clocks[clock].shown(boot);
            while let Some(first) = self.clocks[clock].filed[usize::from(boot)].first_entry() {
                if first.key().0 > now {
                    break;
                }
                let node = first.remove();
                self.claim(node);
            }
        }
        true
    }

    /// Goes on to the next thing that can be seen from outside, which is not taken up yet.
    fn next_visible(&mut self, clock: usize) -> Option<((u64, u64), Claimed)> {
        loop {
            if self.telling.last().is_some_and(|t| t.driven == Some(clock)) {
                self.end_telling();
            }
            let first = self.clocks[clock].claimed.first_key_value().map(|(&key, &claimed)| (key, claimed));
            let Some((key, claimed)) = first else {
                if self.step(clock) {
                    continue;
                }
                return None;
            };
            let node = claimed.node;
            let n = &self.nodes[node];
            let (what, runtime, now) = (n.what, n.runtime, self.now_of(n.runtime));
            if !self.runtimes[runtime].open {
                self.seen.insert("claimed when its runtime was shut down");
                if let What::Future(future) = what {
                    if self.future(future).delay.waker.is_some() {
                        return Some((key, claimed));
                    }
                }
                self.dispose(node);
                continue;
            }
            match what {
                What::Timer => return Some((key, claimed)),
                What::Wall => {
                    let at = self.walls[&node];
                    if at <= self.wall(clock) {
                        return Some((key, claimed));
                    }
                    self.ran(clock, key, node);
                    self.aim(node, at);
                }
                What::Future(future) => {
                    let deadline = self.future(future).delay.deadline;
                    if deadline <= now {
                        return Some((key, claimed));
                    }
                    // It was moved later, and is filed again.
                    self.seen.insert("a delay was moved later while it was filed");
                    self.ran(clock, key, node);
                    self.nodes[node].due = deadline;
                    self.file(node);
                }
                What::Source(source) => {
                    let told = self.with_descendants(source);
                    if told.iter().any(|&source| !self.sources[source].stack.is_empty()) {
                        return Some((key, claimed));
                    }
                    self.ran(clock, key, node);
                    self.begin_cancel(source, CancelReason::Timeout, Some(clock));
                    self.end_telling();
                }
            }
        }
    }

    /// A claimed node is run.
    fn ran(&mut self, clock: usize, key: (u64, u64), node: usize) {
        self.clocks[clock].claimed.remove(&key);
        self.nodes[node].claimed = false;
        self.clocks[clock].ran += 1;
        self.runtimes[self.nodes[node].runtime].fired += 1;
    }

    /// Something has happened: whether it is what had to happen now.
    pub(crate) fn happened(&mut self, event: Event, clocks_now: [u64; CLOCKS]) -> Result<(), String> {
        self.events += 1;
        if let Event::Woken { future, waker } = event {
            if let Some(at) = self.called_out.iter().position(|&out| out == (future, waker)) {
                self.called_out.swap_remove(at);
                self.seen.insert("woken by a shutdown or a stop");
                return Ok(());
            }
        }
        if self.told(event) {
            return Ok(());
        }
        // A runtime of the innermost clock that is driven has run this.
        let Some(&clock) = self.driving.last() else { return Err(format!("{event:?}, and nothing had to happen")) };
        let Some((key, Claimed { node, scheduled, missed })) = self.next_visible(clock) else {
            return Err(format!("{event:?}, and nothing was due at {}", clocks_now[clock]));
        };
        let n = &self.nodes[node];
        let (what, runtime) = (n.what, n.runtime);
        let want = match what {
            What::Timer => Event::Tick { node, scheduled, missed },
            What::Wall => Event::WallTick { node, scheduled: self.walls[&node] },
            What::Future(future) => {
                Event::Woken { future, waker: self.future(future).delay.waker.expect("filed, so somebody waits") }
            }
            What::Source(_) => event, // below
        };
        if want != event || clocks_now[clock] != self.now(clock) {
            let (is, should) = (clocks_now[clock], self.now(clock));
            return Err(format!("{event:?} at {is} instead of {want:?} at {should}"));
        }
        self.saw("late", key.0 < self.now(clock));
        self.saw(
            "at the same instant as others",
            self.clocks[clock].claimed.keys().nth(1).is_some_and(|k| k.0 == key.0),
        );
        self.saw("a clock driven by a callback of another", self.driving.len() > 1);
        match what {
            What::Timer => {
                self.seen.insert("a timer ticked");
                self.ran(clock, key, node);
                self.nodes[node].ticks += 1;
                match self.nodes[node].kind {
                    Kind::Once => self.nodes[node].spent = true,
                    // Settled before the callback begins.
                    Kind::Overlapping if self.nodes[node].owed => self.claim(node),
                    _ => {}
                }
            }
            What::Wall => {
                self.seen.insert("a wall timer ticked");
                self.ran(clock, key, node);
                self.nodes[node].ticks += 1;
                self.walls.remove(&node);
            }
            What::Future(future) => {
                self.seen.insert("a delay woke");
                let waker = self.future_mut(future).delay.waker.take();
                if self.runtimes[runtime].open {
                    self.ran(clock, key, node);
                    self.runtimes[runtime].panics += u64::from(waker == Some(GRUMPY));
                    self.saw("a waker panicked when a delay was over", waker == Some(GRUMPY));
                } else {
                    self.dispose(node);
                }
            }
            What::Source(source) => {
                self.ran(clock, key, node);
                self.seen.insert("a timed cancel told");
                self.begin_cancel(source, CancelReason::Timeout, Some(clock));
                if !self.told(event) {
                    return Err(format!("{event:?} instead of what a timed cancel has to tell"));
                }
            }
        }
        Ok(())
    }

    /// The callback of a timer has ended.
    pub(crate) fn ended(&mut self, node: usize) {
        // A further tick that was claimed when it began takes its place among the others now.
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let number = self.nodes[node].number;
        let c = &mut self.clocks[clock];
        let own = c.claimed.iter().find(|(_, claimed)| claimed.node == node).map(|(&key, &claimed)| (key, claimed));
        if let Some((key, claimed)) = own {
            c.claimed.remove(&key);
            c.claimed.insert((c.on_monotonic(claimed.scheduled, boot), number), claimed);
        }
        let n = &self.nodes[node];
        if n.kind == Kind::Exclusive && n.owed && !n.disposed {
            if self.runtimes[n.runtime].open {
                self.claim(node);
            } else {
                self.dispose(node);
            }
        }
    }

    // -------------------------------------------------------------------------------------------------------- clocks

    /// Begins an advance; false: it makes the running one go on for longer.
    pub(crate) fn begin_advance(&mut self, clock: usize, by: Duration) -> bool {
        let c = &mut self.clocks[clock];
        match &mut c.target {
            Some(target) => {
                *target = instant(*target, by).min(LAST);
                self.seen.insert("an advance went on for longer");
                false
            }
            None => {
                c.target = Some(instant(c.now, by).min(LAST));
                c.ran = 0;
                self.driving.push(clock);
                true
            }
        }
    }

    /// Ends an advance. The number of callbacks run, or what should have happened.
    pub(crate) fn end_advance(&mut self, clock: usize) -> Result<u64, String> {
        if let Some((key, claimed)) = self.next_visible(clock) {
            return Err(format!("lost: {:?}, due at {key:?}", self.nodes[claimed.node]));
        }
        let c = &mut self.clocks[clock];
        let target = c.target.take().expect("driving");
        self.driving.pop();
        c.now = c.now.max(target);
        Ok(c.ran)
    }

    pub(crate) fn stall(&mut self, clock: usize, by: Duration) {
        self.saw("the clock stalled in a callback", self.left(clock).is_some());
        let c = &mut self.clocks[clock];
        c.now = instant(c.now, by).min(LAST);
    }

    pub(crate) fn next_due(&self, clock: usize) -> Option<u64> {
        self.clocks[clock].first()
    }

    pub(crate) fn next_due_of(&self, runtime: usize) -> Option<u64> {
        self.filed_of(runtime).map(Node::fires_at).min().filter(|&first| first <= LAST)
    }

    pub(crate) fn active(&self, runtime: usize) -> usize {
        self.filed_of(runtime).count()
    }

    fn filed_of(&self, runtime: usize) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.runtime == runtime && node.filed)
    }

    // ------------------------------------------------------------------------------------------------------ runtimes

    pub(crate) fn start(&mut self, clock: usize, boot: bool) -> usize {
        self.runtimes.push(Runtime { clock, boot, open: true, closed_at: NEVER, fired: 0, panics: 0 });
        self.runtimes.len() - 1
    }

    pub(crate) fn shutdown(&mut self, runtime: usize) {
        if self.runtimes[runtime].open {
            self.runtimes[runtime].closed_at = self.now_of(runtime);
        }
        self.runtimes[runtime].open = false;
        let waiting: Vec<_> = self.walls.keys().copied().filter(|&node| self.nodes[node].runtime == runtime).collect();
        self.saw("a wall timer waited when its runtime was shut down", !waiting.is_empty());
        waiting.into_iter().for_each(|node| self.dispose(node));
        for node in 0..self.nodes.len() {
            if self.nodes[node].runtime != runtime || !self.nodes[node].filed {
                continue; // what is claimed is disposed when its turn comes
            }
            self.dispose(node);
            if let What::Future(future) = self.nodes[node].what {
                if let Some(waker) = self.future_mut(future).delay.waker.take() {
                    self.called_out.push((future, waker));
                }
            }
        }
    }

    /// After a poll: nobody had to be woken.
    pub(crate) fn forget_called_out(&mut self) {
        self.called_out.clear();
    }

    /// After a shutdown or a stop: whether all were woken.
    pub(crate) fn all_called_out(&mut self) -> Result<(), String> {
        let left = std::mem::take(&mut self.called_out);
        if left.is_empty() { Ok(()) } else { Err(format!("not woken: {left:?}")) }
    }
}
