//! Comparison of crate and model: all answers after each operation, and no object left at the end.

use super::*;

impl Harness {
    pub(super) fn compare_clocks(&self) {
        let (real, model) = (lock(&self.real), lock(&self.model));
        for clock in 0..CLOCKS {
            self.same("the clock", ns(real.clocks[clock].now()), model.now(clock));
            self.same("the wall clock", wall_ns(real.clocks[clock].wall()), model.wall(clock));
        }
        for (id, runtime) in real.runtimes.iter().flatten() {
            self.same("the clock of a runtime", ns(runtime.now()), model.now_of(*id));
        }
    }

    /// Compares the answers to all queries.
    pub(super) fn compare(&self) {
        self.compare_clocks();
        let (real, model) = (lock(&self.real), lock(&self.model));
        for clock in 0..CLOCKS {
            self.same("next due of a clock", real.clocks[clock].next_due().map(ns), model.next_due(clock));
        }
        for (id, runtime) in real.runtimes.iter().flatten() {
            self.same("next due", runtime.next_due().map(ns), model.next_due_of(*id));
            self.same("active timers", runtime.metrics().active, model.active(*id));
            let want = &model.runtimes[*id];
            self.same("callbacks begun", runtime.metrics().fired(), want.fired);
            self.same("panics", runtime.metrics().panics, want.panics);
        }
        for (id, source) in real.sources.iter().flatten() {
            self.same("reason", source.token().reason(), model.reason(*id));
            self.same("root reason", source.token().root_reason(), model.root_reason(*id));
        }
        let timers = (0..model.nodes.len()).filter(|&node| model.owns(node)).map(|node| ('t', node));
        let want: BTreeSet<_> = timers.chain(model.registered().map(|callback| ('r', callback))).collect();
        self.same("what callbacks own", &*lock(&self.alive), &want);
    }

    /// Drops all objects, and checks that none is left.
    pub(super) fn end(self: &Arc<Self>) {
        for slot in 0..RUNTIMES {
            self.apply(&Op::Shutdown { slot, by_drop: slot == 0 }, &Inside::Nothing);
        }
        for slot in 0..TIMERS {
            self.apply(&Op::Drop { slot }, &Inside::Nothing);
        }
        for slot in 0..WALLS {
            self.apply(&Op::EndWall { slot, how: Going::Drop }, &Inside::Nothing);
        }
        for slot in 0..FUTURES {
            self.apply(&Op::DropFuture { slot }, &Inside::Nothing);
        }
        for slot in 0..REGISTRATIONS {
            self.apply(&Op::Unregister { slot, how: slot as u8 % 4 }, &Inside::Nothing);
        }
        for slot in 0..GUARDS {
            self.apply(&Op::EndGuard { slot, how: GuardEnd::Drop }, &Inside::Nothing);
        }
        for slot in 0..SOURCES {
            self.apply(&Op::DropSource { slot }, &Inside::Nothing);
        }
        self.compare();
        self.same("what is left", lock(&self.alive).len(), 0);
    }
}
