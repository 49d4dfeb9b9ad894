//! The model: sorted maps, and rules taken from the promises.
//!
//! Ground rules. The model uses no part of the crate but the types of its answers. Each operation
//! changes the model and returns the answer that the crate must give. When the crate runs a
//! callback or waker, the harness reports this event to the model, and the model checks that
//! exactly this event may happen next. This module has the types; the submodules have the rules.

mod events;
mod futures;
mod time;
mod timers;
mod tokens;

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
pub(crate) const PANICKING: u8 = 2;

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

/// The owner of a queued node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Timer,
    Wall,
    Future(usize),
    Source(usize),
}

/// A node that is, or was, in a queue.
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
    /// The first point of its grid at or after an instant: the widest of 1, 2, 5, 10, ... us that
    /// its leeway allows (S58).
    fn on_grid(&self, at: u64) -> u64 {
        let steps = (3..14).flat_map(|decade| [1, 2, 5].map(|digit| digit * 10_u64.pow(decade)));
        let widest = steps.take_while(|&step| u128::from(step) <= self.leeway.as_nanos()).last();
        widest.and_then(|step| at.checked_next_multiple_of(step)).unwrap_or(at)
    }

    /// The instant at which the node fires, with its leeway.
    fn fires_at(&self) -> u64 {
        self.on_grid(self.due)
    }

    /// The sort key among waiting nodes.
    fn key(&self) -> (u64, u64) {
        (self.fires_at(), self.number)
    }
}

/// A claimed tick, or a waker that a sweep has taken: due, and still to run.
#[derive(Clone, Copy, Debug)]
struct Claimed {
    node: usize,
    scheduled: u64,
    missed: u64,
    /// A future and its waker. The waker is called even if the future is reset or dropped
    /// meanwhile.
    woken: Option<(usize, u8)>,
}

#[derive(Default)]
struct Clock {
    /// The time of the monotonic clock, which stops in suspend.
    now: u64,
    suspended: u64,
    /// The wall time of the last setting, in ns since the epoch, and the boot time at that moment.
    wall: (i128, u64),
    /// The target of the running advance.
    target: Option<u64>,
    /// All waiting nodes, by due point and arming number, on both clocks: [`Runtime::boot`].
    filed: [BTreeMap<(u64, u64), usize>; 2],
    /// The ticks due when the clock last stopped, in the order in which they run.
    claimed: BTreeMap<(u64, u64), Claimed>,
    ran: u64,
}

impl Clock {
    fn shown(&self, boot: bool) -> u64 {
        if boot { self.now.saturating_add(self.suspended).min(LAST) } else { self.now }
    }

    /// Converts an instant to the monotonic clock, which stops in suspend.
    fn on_monotonic(&self, at: u64, boot: bool) -> u64 {
        if boot && at <= LAST { at.saturating_sub(self.suspended) } else { at }
    }

    fn wall(&self) -> i128 {
        self.wall.0 + i128::from(self.shown(true) - self.wall.1)
    }

    /// The first due point of all waiting nodes, on the monotonic clock.
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
    /// The time of its clock at the shutdown.
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
    /// The reason where the cancellation began.
    root: Option<CancelReason>,
    /// Last registered at the end.
    stack: Vec<Entry>,
    timer: Option<usize>,
    armed: bool,
    parents: Vec<usize>,
    children: BTreeSet<usize>,
    handles: usize,
    gone: bool,
}

/// A running cancellation, with callbacks and wakers still to call.
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
        /// A poll was pending.
        begun: bool,
        source: usize,
    },
    /// The same future until a source is cancelled.
    Until {
        ready: bool,
        begun: bool,
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
    /// The source of its token.
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

/// The expected result of a poll.
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
    /// The future that ran until the cancellation.
    GivenUp,
}

/// An event: the crate has run a callback or called a waker.
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
    /// Waiting wall timers, with their wall times.
    walls: BTreeMap<usize, i128>,
    numbers: u64,
    /// Registered callbacks that panic.
    pub(crate) panicking: BTreeSet<usize>,
    /// Registered callbacks with a payload that panics when dropped.
    pub(crate) spiteful: BTreeSet<usize>,
    /// The number of scopes being unwound by a panic; destructors do not panic inside.
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

    /// The time of a monotonic clock, which stops in suspend.
    pub(crate) fn now(&self, clock: usize) -> u64 {
        self.clocks[clock].now
    }

    /// The time of a runtime's clock.
    pub(crate) fn now_of(&self, runtime: usize) -> u64 {
        let Runtime { clock, boot, .. } = self.runtimes[runtime];
        self.clocks[clock].shown(boot)
    }

    /// The time of the wall clock, in ns since the epoch.
    pub(crate) fn wall(&self, clock: usize) -> i128 {
        self.clocks[clock].wall()
    }

    fn clock_of(&self, node: usize) -> usize {
        self.runtimes[self.nodes[node].runtime].clock
    }

    fn is_on_boot(&self, node: usize) -> bool {
        self.runtimes[self.nodes[node].runtime].boot
    }

    /// The time of a node's clock.
    fn now_at(&self, node: usize) -> u64 {
        self.now_of(self.nodes[node].runtime)
    }

    pub(crate) fn active(&self, runtime: usize) -> usize {
        self.filed_of(runtime).count()
    }

    fn filed_of(&self, runtime: usize) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.runtime == runtime && node.filed)
    }

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
                continue; // a claimed tick is disposed when its turn comes
            }
            self.dispose(node);
            if let What::Future(future) = self.nodes[node].what {
                if let Some(waker) = self.future_mut(future).delay.waker.take() {
                    self.called_out.push((future, waker));
                }
            }
        }
    }

    /// After a poll: no task had to be woken.
    pub(crate) fn forget_called_out(&mut self) {
        self.called_out.clear();
    }

    /// After a shutdown or a stop: whether all were woken.
    pub(crate) fn all_called_out(&mut self) -> Result<(), String> {
        let left = std::mem::take(&mut self.called_out);
        if left.is_empty() { Ok(()) } else { Err(format!("not woken: {left:?}")) }
    }
}
