//! The model: sorted maps, and rules written down from the promises.
//!
//! Ground rules. Knows nothing of the crate but its answers' types. Each operation changes the model and returns what the
//! crate must answer. What the crate runs by itself on the way (callbacks, wakers) is announced to the model at that
//! moment, and the model says whether it is the one thing that may happen now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use timerqueue::{CancelReason, Changed, MissedTicks};

pub(crate) const NEVER: u64 = u64::MAX;
const LAST: u64 = NEVER - 1;
pub(crate) const CLOCKS: usize = 2;

pub(crate) fn instant(now: u64, after: Duration) -> u64 {
    u64::try_from(after.as_nanos()).map_or(NEVER, |ns| now.saturating_add(ns))
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

#[derive(Default)]
struct Clock {
    now: u64,
    /// How far the running advance goes.
    target: Option<u64>,
    /// All that waits, by due point and arming.
    filed: BTreeMap<(u64, u64), usize>,
    /// What was due when the clock last stopped, with the ticks missed.
    claimed: BTreeMap<(u64, u64), (usize, u64)>,
    ran: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Runtime {
    pub(crate) clock: usize,
    pub(crate) open: bool,
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
    pub(crate) done: Option<DelayEnd>,
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
    Interval {
        next: u64,
        period: u64,
        policy: MissedTicks,
        stopped: bool,
        waker: Option<u8>,
        ended: bool,
    },
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
    Tick { scheduled: u64, missed: u64 },
    NoTick,
}

/// What the crate has done by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Tick { node: usize, scheduled: u64, missed: u64 },
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
    numbers: u64,
    /// Callbacks that panic.
    pub(crate) panicking: BTreeSet<usize>,
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

    pub(crate) fn now(&self, clock: usize) -> u64 {
        self.clocks[clock].now
    }

    /// What is left of the running advance.
    pub(crate) fn left(&self, clock: usize) -> Option<u64> {
        self.clocks[clock].target.map(|target| target.saturating_sub(self.clocks[clock].now))
    }

    fn clock_of(&self, node: usize) -> usize {
        self.runtimes[self.nodes[node].runtime].clock
    }

    /// Time that may pass without more than some dozen ticks of one timer.
    pub(crate) fn affordable(&self, clock: usize) -> u64 {
        let periods = self.clocks[clock].filed.values().map(|&node| self.nodes[node].period);
        let shortest = periods.min().unwrap_or(NEVER).min(self.frequent(clock));
        shortest.saturating_mul(24).min((1 << 61_u64) - self.now(clock).min(1 << 61))
    }

    /// The shortest period of a timer that is owed a tick, hence not filed.
    fn frequent(&self, clock: usize) -> u64 {
        let owed = self.nodes.iter().filter(|node| node.owed && self.runtimes[node.runtime].clock == clock);
        owed.map(|node| node.period).min().unwrap_or(NEVER)
    }

    // ------------------------------------------------------------------------------------------------------- filing

    fn file(&mut self, node: usize) {
        let clock = self.clock_of(node);
        let n = &mut self.nodes[node];
        n.filed = true;
        let before = self.clocks[clock].filed.insert((n.due, n.number), node);
        assert_eq!(before, None, "arming numbers are unique");
    }

    /// Takes a node out of wherever it waits. Whether it waited.
    fn withdraw(&mut self, node: usize) -> bool {
        let clock = self.clock_of(node);
        let n = &mut self.nodes[node];
        let waited = n.filed || n.claimed || n.owed;
        if n.filed {
            self.clocks[clock].filed.remove(&(n.due, n.number));
        }
        if n.claimed {
            self.clocks[clock].claimed.retain(|_, (claimed, _)| *claimed != node);
        }
        (n.filed, n.claimed, n.owed) = (false, false, false);
        waited
    }

    fn arm(&mut self, node: usize, due: u64, period: u64) {
        self.numbers += 1;
        let n = &mut self.nodes[node];
        (n.due, n.period, n.number) = (due, period, self.numbers);
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
        policy: MissedTicks,
        due: Duration,
        period: Duration,
    ) -> usize {
        let now = self.now(self.runtimes[runtime].clock);
        self.new_node(runtime, What::Timer, kind, policy, instant(now, due), Self::period(period))
    }

    pub(crate) fn change(&mut self, node: usize, due: Duration, period: Duration) -> Changed {
        let n = &self.nodes[node];
        if !self.runtimes[n.runtime].open || n.disposed || n.spent {
            return Changed::Ended;
        }
        let now = self.now(self.clock_of(node));
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
    }

    /// Whether it can be left alone without making time dear.
    pub(crate) fn is_slow(&self, node: usize) -> bool {
        self.nodes[node].period >= 3_600_000_000_000
    }

    /// Whether the callback of this timer still owns what it owned.
    pub(crate) fn owns(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        n.what == What::Timer && !n.disposed && !n.spent && (n.handle || n.filed)
    }

    // -------------------------------------------------------------------------------------------------------- firing

    /// The arithmetic of S7 and S8.
    fn take_up(policy: MissedTicks, due: u64, period: u64, now: u64) -> (u64, u64) {
        if period == NEVER {
            return (0, NEVER);
        }
        let passed = (now - due) / period;
        if passed == 0 || policy == MissedTicks::Burst {
            return (0, due.saturating_add(period));
        }
        match policy {
            MissedTicks::Rebase => (passed - 1, now.saturating_add(period.min(1_000_000))),
            MissedTicks::Skip => (passed, due.saturating_add(period.saturating_mul(passed + 1))),
            _ => (passed, now.saturating_add(period)),
        }
    }

    fn claim(&mut self, node: usize) {
        let clock = self.clock_of(node);
        let now = self.now(clock);
        let n = &mut self.nodes[node];
        let (missed, next) = Self::take_up(n.policy, n.due, n.period, now);
        self.clocks[clock].claimed.insert((n.due, n.number), (node, missed));
        (n.claimed, n.filed, n.owed) = (true, false, false);
        let policy = n.policy;
        self.saw("Rebase missed ticks", missed > 0 && policy == MissedTicks::Rebase);
        self.saw("Skip missed ticks", missed > 0 && policy == MissedTicks::Skip);
        self.saw("Delay missed ticks", missed > 0 && policy == MissedTicks::Delay);
        let n = &mut self.nodes[node];
        if next != NEVER {
            n.due = next;
            if next > now {
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
        let Some((&(due, _), _)) = c.filed.first_key_value() else { return false };
        if c.target.is_none_or(|target| due > target) {
            return false;
        }
        c.now = c.now.max(due);
        while let Some((&(due, number), &node)) = self.clocks[clock].filed.first_key_value() {
            if due > self.clocks[clock].now {
                break;
            }
            self.clocks[clock].filed.remove(&(due, number));
            self.claim(node);
        }
        true
    }

    /// Goes on to the next thing that can be seen from outside, which is not taken up yet.
    fn next_visible(&mut self, clock: usize) -> Option<((u64, u64), usize, u64)> {
        loop {
            if self.telling.last().is_some_and(|t| t.driven == Some(clock)) {
                self.end_telling();
            }
            let first = self.clocks[clock].claimed.first_key_value().map(|(&key, &(node, missed))| (key, node, missed));
            let Some((key, node, missed)) = first else {
                if self.step(clock) {
                    continue;
                }
                return None;
            };
            let n = &self.nodes[node];
            let (what, runtime, now) = (n.what, n.runtime, self.now(clock));
            if !self.runtimes[runtime].open {
                self.seen.insert("claimed when its runtime was shut down");
                if let What::Future(future) = what {
                    if self.future(future).delay.waker.is_some() {
                        return Some((key, node, missed));
                    }
                }
                self.dispose(node);
                continue;
            }
            match what {
                What::Timer => return Some((key, node, missed)),
                What::Future(future) => {
                    let deadline = self.future(future).delay.deadline;
                    if deadline <= now {
                        return Some((key, node, missed));
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
                        return Some((key, node, missed));
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
        let Some((key, node, missed)) = self.next_visible(clock) else {
            return Err(format!("{event:?}, and nothing was due at {}", clocks_now[clock]));
        };
        let n = &self.nodes[node];
        let (what, runtime) = (n.what, n.runtime);
        let want = match what {
            What::Timer => Event::Tick { node, scheduled: key.0, missed },
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
            What::Future(future) => {
                self.seen.insert("a delay woke");
                if self.runtimes[runtime].open {
                    self.ran(clock, key, node);
                } else {
                    self.dispose(node);
                }
                self.future_mut(future).delay.waker = None;
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
        if let Some((key, node, _)) = self.next_visible(clock) {
            return Err(format!("lost: {:?}, due at {key:?}", self.nodes[node]));
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
        self.clocks[clock].filed.first_key_value().map(|(key, _)| key.0)
    }

    pub(crate) fn next_due_of(&self, runtime: usize) -> Option<u64> {
        self.filed_of(runtime).map(|node| node.due).min()
    }

    pub(crate) fn active(&self, runtime: usize) -> usize {
        self.filed_of(runtime).count()
    }

    fn filed_of(&self, runtime: usize) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.runtime == runtime && node.filed)
    }

    // ------------------------------------------------------------------------------------------------------ runtimes

    pub(crate) fn start(&mut self, clock: usize) -> usize {
        self.runtimes.push(Runtime { clock, open: true, fired: 0, panics: 0 });
        self.runtimes.len() - 1
    }

    pub(crate) fn shutdown(&mut self, runtime: usize) {
        self.runtimes[runtime].open = false;
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

    // --------------------------------------------------------------------------------------------------- cancellation

    pub(crate) fn source(&mut self, runtime: usize) -> usize {
        self.sources.push(Source { runtime, handles: 1, ..Source::default() });
        self.sources.len() - 1
    }

    pub(crate) fn linked(&mut self, parents: &[usize]) -> usize {
        let source = self.source(self.sources[parents[0]].runtime);
        self.sources[source].parents = parents.to_vec();
        for &parent in parents {
            self.sources[parent].children.insert(source);
            if self.sources[parent].reason.is_some() {
                self.sources[source].reason = Some(CancelReason::Parent);
            }
        }
        source
    }

    pub(crate) fn reason(&self, source: usize) -> Option<CancelReason> {
        self.sources[source].reason
    }

    fn with_descendants(&self, source: usize) -> Vec<usize> {
        let mut all = vec![source];
        let mut at = 0;
        while at < all.len() {
            for &child in &self.sources[all[at]].children {
                if self.sources[child].reason.is_none() && !all.contains(&child) {
                    all.push(child);
                }
            }
            at += 1;
        }
        all
    }

    fn begin_cancel(&mut self, root: usize, reason: CancelReason, driven: Option<usize>) {
        let sources = self.with_descendants(root);
        for &source in &sources {
            let s = &mut self.sources[source];
            s.reason = Some(if source == root { reason } else { CancelReason::Parent });
            if let Some(timer) = s.timer.take() {
                self.dispose(timer);
            }
        }
        self.saw("a tree was cancelled", sources.len() > 2);
        self.telling.push(Telling { root, sources, driven, panicked: false });
    }

    /// Whether the innermost cancellation had to tell this now.
    fn told(&mut self, event: Event) -> bool {
        let entry = match event {
            Event::Called { callback } => Entry::Callback(callback),
            Event::Woken { future, waker } => Entry::Waker(future, waker),
            Event::Tick { .. } => return false,
        };
        let Some(telling) = self.telling.last_mut() else { return false };
        for &source in &telling.sources {
            if self.sources[source].stack.last() == Some(&entry) {
                self.sources[source].stack.pop();
                if let Entry::Callback(callback) = entry {
                    telling.panicked |= self.panicking.contains(&callback);
                }
                let (panicked, driven) = (telling.panicked, telling.driven.is_some());
                self.saw("a panic in a timed cancel", panicked && driven);
                self.saw("a panic in a cancel by hand", panicked && !driven);
                self.saw("a cancel woke", matches!(entry, Entry::Waker(..)));
                return true;
            }
            if source == telling.root && !self.sources[source].stack.is_empty() {
                return false; // the root's own come first
            }
        }
        false
    }

    /// Whether callbacks of a tree are being told now: in what order its members are, nobody promises.
    pub(crate) fn is_telling_a_tree(&self) -> bool {
        self.telling.iter().any(|telling| telling.sources.len() > 1)
    }

    /// Ends the innermost cancellation if it has told everybody.
    fn end_telling(&mut self) {
        let Some(telling) = self.telling.last() else { return };
        if telling.sources.iter().any(|&source| !self.sources[source].stack.is_empty()) {
            return;
        }
        if telling.driven.is_some() && telling.panicked {
            self.runtimes[self.sources[telling.root].runtime].panics += 1;
        }
        let telling = self.telling.pop().expect("looked at above");
        telling.sources.into_iter().for_each(|source| self.free(source));
    }

    /// Cancels by hand, or on the spot. Whether it is the first.
    pub(crate) fn begin_cancel_by_hand(&mut self, source: usize, reason: CancelReason) -> bool {
        let first = self.sources[source].reason.is_none();
        if first {
            self.begin_cancel(source, reason, None);
        }
        first
    }

    /// After a cancel by hand that was the first: whether one of the callbacks has panicked, or what was not told.
    pub(crate) fn end_cancel_by_hand(&mut self) -> Result<bool, String> {
        let telling = self.telling.pop().expect("begun");
        let left: Vec<_> = telling.sources.iter().flat_map(|&source| &self.sources[source].stack).collect();
        if !left.is_empty() {
            return Err(format!("not told: {left:?}"));
        }
        telling.sources.into_iter().for_each(|source| self.free(source));
        Ok(telling.panicked)
    }

    /// Not zero, which cancels on the spot.
    pub(crate) fn cancel_after(&mut self, source: usize, after: Duration) {
        let s = &self.sources[source];
        let (runtime, timer) = (s.runtime, s.timer);
        if s.reason.is_some() {
            return;
        }
        let never = after == Duration::MAX;
        match timer {
            Some(timer) => {
                let _ = self.change(timer, after, Duration::ZERO);
            }
            None if never => return,
            None => {
                let due = instant(self.now(self.runtimes[runtime].clock), after);
                let what = What::Source(source);
                let timer = self.new_node(runtime, what, Kind::Overlapping, MissedTicks::Skip, due, NEVER);
                self.sources[source].timer = Some(timer);
            }
        }
        self.sources[source].armed = !never;
    }

    pub(crate) fn try_reset(&mut self, source: usize) -> bool {
        if let Some(timer) = self.sources[source].timer.filter(|_| self.sources[source].armed) {
            if !self.change(timer, Duration::MAX, Duration::ZERO).was_waiting() {
                return false;
            }
            self.sources[source].armed = false;
        }
        if self.sources[source].reason.is_some() {
            return false;
        }
        self.seen.insert("a reset");
        self.sources[source].stack.retain(|entry| matches!(entry, Entry::Waker(..)));
        true
    }

    /// A callback is registered; false: the source is cancelled and it is called at once.
    pub(crate) fn register(&mut self, source: usize, callback: usize) -> bool {
        if self.sources[source].reason.is_some() {
            return false;
        }
        self.sources[source].handles += 1;
        self.sources[source].stack.push(Entry::Callback(callback));
        true
    }

    /// Whether it was in time.
    pub(crate) fn unregister(&mut self, source: usize, callback: usize) -> bool {
        let stack = &mut self.sources[source].stack;
        let at = stack.iter().position(|&entry| entry == Entry::Callback(callback));
        let in_time = at.map(|at| stack.remove(at)).is_some();
        self.saw("unregistered in time", in_time);
        self.saw("unregistered too late", !in_time);
        in_time
    }

    /// A handle of a source is dropped.
    pub(crate) fn release(&mut self, source: usize) {
        self.sources[source].handles -= 1;
        self.free(source);
    }

    fn free(&mut self, source: usize) {
        let s = &mut self.sources[source];
        let told = self.telling.iter().any(|telling| telling.sources.contains(&source));
        if s.handles > 0 || !s.children.is_empty() || s.gone || told {
            return; // who is told is kept until it is
        }
        s.gone = true;
        s.stack.clear();
        let (timer, parents) = (s.timer.take(), std::mem::take(&mut s.parents));
        if let Some(timer) = timer {
            self.dispose(timer);
        }
        for parent in parents {
            self.sources[parent].children.remove(&source);
            self.free(parent);
        }
    }

    pub(crate) fn registered(&self) -> impl Iterator<Item = usize> {
        let entries = self.sources.iter().flat_map(|source| &source.stack);
        entries.filter_map(|entry| match entry {
            Entry::Callback(callback) => Some(*callback),
            Entry::Waker(..) => None,
        })
    }

    // -------------------------------------------------------------------------------------------------------- futures

    fn future(&self, future: usize) -> &Future {
        &self.futures[&future]
    }

    fn future_mut(&mut self, future: usize) -> &mut Future {
        self.futures.get_mut(&future).expect("it is there while it has a node")
    }

    pub(crate) fn new_future(&mut self, id: usize, runtime: usize, deadline: u64, kind: FutureKind) {
        if let FutureKind::Cancelled { source } | FutureKind::Either { source } = kind {
            self.sources[source].handles += 1;
        }
        let delay = Delay { runtime, deadline: deadline.min(LAST), node: None, waker: None, done: None };
        self.futures.insert(id, Future { kind, delay });
    }

    pub(crate) fn drop_future(&mut self, id: usize) {
        self.unlink(id);
        if let Some(Future { kind: FutureKind::Cancelled { source } | FutureKind::Either { source }, .. }) =
            self.futures.get(&id)
        {
            let source = *source;
            self.withdraw_waker(id, source);
            self.release(source);
        }
        self.futures.remove(&id);
    }

    pub(crate) fn now_of_future(&self, id: usize) -> u64 {
        self.now(self.runtimes[self.future(id).delay.runtime].clock)
    }

    /// The delay inside a future is dropped.
    fn unlink(&mut self, id: usize) {
        let delay = &mut self.future_mut(id).delay;
        delay.waker = None;
        if let Some(node) = delay.node.take() {
            self.dispose(node);
        }
    }

    pub(crate) fn reset(&mut self, id: usize, deadline: u64) {
        let delay = &mut self.future_mut(id).delay;
        delay.deadline = deadline.min(LAST);
        delay.done = None;
        let Delay { runtime, deadline, node: Some(node), waker: Some(_), .. } = *delay else { return };
        if !self.runtimes[runtime].open {
            return;
        }
        self.seen.insert("a delay was moved while somebody waited");
        let n = &self.nodes[node];
        if n.filed && n.due <= deadline {
            return; // stays where it is, and is filed again when its turn comes
        }
        self.withdraw(node);
        self.arm(node, deadline, NEVER);
    }

    fn poll_delay(&mut self, id: usize, waker: u8) -> Option<DelayEnd> {
        let Delay { runtime, deadline, node, waker: stored, done } = self.future(id).delay;
        if done.is_some() {
            return done;
        }
        if self.now(self.runtimes[runtime].clock) >= deadline {
            return self.settle(id, DelayEnd::Over);
        }
        match node {
            None => {
                let what = What::Future(id);
                let node = self.new_node(runtime, what, Kind::Overlapping, MissedTicks::Skip, deadline, NEVER);
                let delay = &mut self.future_mut(id).delay;
                (delay.node, delay.waker) = (Some(node), Some(waker));
                if !self.runtimes[runtime].open {
                    self.future_mut(id).delay.waker = None;
                    self.called_out.push((id, waker)); // allowed, and of no use
                    return self.settle(id, DelayEnd::RuntimeEnded);
                }
            }
            Some(_) if !self.runtimes[runtime].open => return self.settle(id, DelayEnd::RuntimeEnded),
            Some(node) => {
                if stored != Some(waker) {
                    self.future_mut(id).delay.waker = Some(waker);
                    if !self.nodes[node].filed {
                        self.withdraw(node);
                        self.arm(node, deadline, NEVER);
                    }
                }
            }
        }
        None
    }

    fn settle(&mut self, id: usize, end: DelayEnd) -> Option<DelayEnd> {
        let delay = &mut self.future_mut(id).delay;
        delay.done = Some(end);
        let (node, runtime) = (delay.node, delay.runtime);
        if let Some(node) = node {
            if self.runtimes[runtime].open && self.future_mut(id).delay.waker.take().is_some() {
                self.withdraw(node);
            }
        }
        Some(end)
    }

    fn poll_source(&mut self, id: usize, source: usize, waker: u8) -> Option<CancelReason> {
        let s = &mut self.sources[source];
        if s.reason.is_some() {
            return s.reason;
        }
        let mine = |entry: &&mut Entry| matches!(entry, Entry::Waker(future, _) if *future == id);
        match s.stack.iter_mut().find(mine) {
            Some(entry) => *entry = Entry::Waker(id, waker),
            None => s.stack.push(Entry::Waker(id, waker)),
        }
        None
    }

    fn withdraw_waker(&mut self, id: usize, source: usize) {
        self.sources[source].stack.retain(|entry| !matches!(entry, Entry::Waker(future, _) if *future == id));
    }

    pub(crate) fn poll(&mut self, id: usize, waker: u8) -> Polled {
        let or_pending = |end: Option<DelayEnd>| end.map_or(Polled::Pending, Polled::Ended);
        match self.future(id).kind.clone() {
            FutureKind::Delay => or_pending(self.poll_delay(id, waker)),
            FutureKind::Timeout { ready: true } => Polled::Value,
            FutureKind::Timeout { .. } => or_pending(self.poll_delay(id, waker)),
            FutureKind::Cancelled { source } => {
                self.poll_source(id, source, waker).map_or(Polled::Pending, Polled::Cancelled)
            }
            FutureKind::Either { source } => {
                if self.future(id).delay.done.is_none() {
                    if let Some(reason) = self.poll_source(id, source, waker) {
                        return or_pending(self.settle(id, DelayEnd::Cancelled(reason)));
                    }
                }
                let end = self.poll_delay(id, waker);
                if end.is_some() {
                    self.withdraw_waker(id, source);
                }
                or_pending(end)
            }
            FutureKind::Interval { ended: true, .. } => Polled::NoTick,
            FutureKind::Interval { stopped: true, .. } => {
                self.unlink(id);
                self.end_interval(id);
                Polled::NoTick
            }
            FutureKind::Interval { next, period, policy, .. } => {
                if let FutureKind::Interval { waker: stored, .. } = &mut self.future_mut(id).kind {
                    *stored = Some(waker);
                }
                match self.poll_delay(id, waker) {
                    None => Polled::Pending,
                    Some(DelayEnd::Over) => {
                        let now = self.now(self.runtimes[self.future(id).delay.runtime].clock);
                        let (missed, following) = Self::take_up(policy, next, period, now);
                        self.saw("an interval missed ticks", missed > 0);
                        self.go_to(id, following);
                        Polled::Tick { scheduled: next, missed }
                    }
                    Some(_) => {
                        self.end_interval(id);
                        Polled::NoTick
                    }
                }
            }
        }
    }

    fn end_interval(&mut self, id: usize) {
        if let FutureKind::Interval { ended, .. } = &mut self.future_mut(id).kind {
            *ended = true;
        }
    }

    fn go_to(&mut self, id: usize, to: u64) {
        if let FutureKind::Interval { next, .. } = &mut self.future_mut(id).kind {
            *next = to;
        }
        self.reset(id, to);
    }

    pub(crate) fn set_period(&mut self, id: usize, to: u64) {
        let now = self.now(self.runtimes[self.future(id).delay.runtime].clock);
        if let FutureKind::Interval { period, .. } = &mut self.future_mut(id).kind {
            *period = to;
        }
        self.go_to(id, now.saturating_add(to));
    }

    pub(crate) fn stop(&mut self, id: usize) {
        let woken = match &mut self.future_mut(id).kind {
            FutureKind::Interval { stopped, waker, .. } => {
                *stopped = true;
                waker.take()
            }
            _ => None,
        };
        self.called_out.extend(woken.map(|waker| (id, waker)));
    }
}
