//! The rules of time: due ticks as a clock moves, and their order (S4, S5, S9, S10, S14, S51).

use super::*;

impl Model {
    /// The rest of the running advance.
    pub(crate) fn left(&self, clock: usize) -> Option<u64> {
        self.clocks[clock].target.map(|target| target.saturating_sub(self.clocks[clock].now))
    }

    /// A time in which no timer has more than some dozen ticks.
    pub(crate) fn affordable(&self, clock: usize) -> u64 {
        let filed = self.clocks[clock].filed.iter().flat_map(BTreeMap::values);
        let shortest = filed.map(|&node| self.nodes[node].period).min().unwrap_or(NEVER).min(self.frequent(clock));
        shortest.saturating_mul(24).min((1 << 61_u64) - self.clocks[clock].shown(true).min(1 << 61))
    }

    /// The shortest period of the timers with a deferred tick, which are not in the queue.
    pub(super) fn frequent(&self, clock: usize) -> u64 {
        let owed = self.nodes.iter().filter(|node| node.owed && self.runtimes[node.runtime].clock == clock);
        owed.map(|node| node.period).min().unwrap_or(NEVER)
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

    /// A future has come due: its waker is taken.
    fn take_waker(&mut self, node: usize, future: usize) {
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let n = &mut self.nodes[node];
        n.filed = false;
        let (order, scheduled) = ((n.due, n.number), n.due);
        let delay = &mut self.future_mut(future).delay;
        if let Some(waker) = delay.waker.take() {
            let order = (self.clocks[clock].on_monotonic(order.0, boot), order.1);
            let woken = Some((future, waker));
            self.clocks[clock].claimed.insert(order, Claimed { node, scheduled, missed: 0, woken });
        }
    }

    pub(super) fn claim(&mut self, node: usize) {
        if let What::Future(future) = self.nodes[node].what {
            return self.take_waker(node, future);
        }
        let (clock, boot, now) = (self.clock_of(node), self.is_on_boot(node), self.now_at(node));
        let n = &mut self.nodes[node];
        let (missed, next) = Self::take_up(n.policy, n.due, n.period, now);
        let order = (self.clocks[clock].on_monotonic(n.due, boot), n.number);
        self.clocks[clock].claimed.insert(order, Claimed { node, scheduled: n.due, missed, woken: None });
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

    /// Moves the clock to the next due point within the running advance, and claims all ticks due
    /// there.
    pub(super) fn step(&mut self, clock: usize) -> bool {
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

    /// Goes on to the next event that is visible from outside, without running it.
    pub(super) fn next_visible(&mut self, clock: usize) -> Option<((u64, u64), Claimed)> {
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
            let (what, runtime) = (n.what, n.runtime);
            if claimed.woken.is_some() {
                return Some((key, claimed));
            }
            if !self.runtimes[runtime].open {
                self.seen.insert("claimed when its runtime was shut down");
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
                What::Future(_) => unreachable!("its waker was taken"),
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

    /// Removes a claimed node, which has run.
    pub(super) fn ran(&mut self, clock: usize, key: (u64, u64), node: usize) {
        self.clocks[clock].claimed.remove(&key);
        self.nodes[node].claimed = false;
        self.clocks[clock].ran += 1;
        self.runtimes[self.nodes[node].runtime].fired += 1;
    }

    /// Begins an advance. False: it extends the running advance.
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

    /// Ends an advance. Returns the number of callbacks run, or as an error the event that is
    /// missing.
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
}
