//! The rules of timers and wall timers (S1 to S3, S7, S8, S15 to S20, S56).

use super::*;

impl Model {
    pub(super) fn file(&mut self, node: usize) {
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let n = &mut self.nodes[node];
        n.filed = true;
        let before = self.clocks[clock].filed[usize::from(boot)].insert(n.key(), node);
        assert_eq!(before, None, "arming numbers are unique");
    }

    /// Takes a node out of its queue or list. Returns whether the node waited.
    pub(super) fn withdraw(&mut self, node: usize) -> bool {
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

    pub(super) fn arm(&mut self, node: usize, due: u64, period: u64) {
        let number = self.next_number();
        self.arm_as(node, due, period, number);
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn arm_as(&mut self, node: usize, due: u64, period: u64, number: u64) {
        let n = &mut self.nodes[node];
        (n.due, n.period, n.number) = (due, period, number);
        if due != NEVER {
            self.file(node);
        }
    }

    pub(super) fn new_node(
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

    pub(super) fn period(period: Duration) -> u64 {
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
        // Inserted once its leeway is known.
        let node = self.new_node(runtime, What::Timer, kind, policy, NEVER, NEVER);
        self.nodes[node].leeway = leeway;
        if !self.nodes[node].disposed {
            self.arm(node, due, Self::period(period));
        }
        node
    }

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

    /// Aims a wall timer by the current clocks. Its order among timers due at the same instant
    /// stays.
    pub(super) fn aim(&mut self, node: usize, at: i128) {
        self.withdraw(node);
        let left = (at - self.wall(self.clock_of(node))).max(0);
        let due = u64::try_from(left).map_or(NEVER, |left| later(self.now_at(node), left));
        self.saw("a wall timer waited for a time beyond the end of the clock", due == NEVER);
        self.arm_as(node, due, NEVER, self.nodes[node].number);
    }

    /// Aims the wall timers again: the wall clock has been set, or has advanced.
    pub(super) fn follow(&mut self, clock: usize) {
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

    /// The destructor of what a timer owned panics: the runtime counts it, also where the callback
    /// was consumed.
    pub(crate) fn owned_panicked(&mut self, node: usize) {
        self.seen.insert("what a timer owned panicked");
        self.runtimes[self.nodes[node].runtime].panics += 1;
    }

    /// Whether its period is long enough that it may tick to the end of the program.
    pub(crate) fn is_slow(&self, node: usize) -> bool {
        self.nodes[node].period >= 3_600_000_000_000
    }

    /// Whether the payload of this timer is alive.
    pub(crate) fn owns(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        let waits = n.filed || self.walls.contains_key(&node);
        matches!(n.what, What::Timer | What::Wall) && !n.disposed && !n.spent && (n.handle || waits)
    }

    /// The arithmetic of S7 and S8.
    pub(super) fn take_up(policy: MissedTicks, due: u64, period: u64, now: u64) -> (u64, u64) {
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
}
