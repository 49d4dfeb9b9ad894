//! Timers and wall timers, on the crate and on the model: creation, callbacks, end.

use super::*;

impl Harness {
    pub(super) fn tick(self: &Arc<Self>, node: usize, tick: &Tick<'_>, script: usize) {
        let scheduled = ns(tick.scheduled());
        self.happened(Event::Tick { node, scheduled, missed: tick.missed() });
        self.same("lateness", tick.lateness(), tick.now() - tick.scheduled());
        self.ticked(node, script, &Inside::Timer(tick, node));
    }

    pub(super) fn wall_tick(self: &Arc<Self>, node: usize, tick: &WallTick<'_>, script: usize) {
        self.happened(Event::WallTick { node, scheduled: wall_ns(tick.scheduled()) });
        let clock = self.clock_of(node);
        let shown = lock(&self.model).wall(clock);
        self.same("the wall clock in a callback", wall_ns(tick.now()), shown);
        self.ticked(node, script, &Inside::Wall(tick, node));
    }

    pub(super) fn ticked(self: &Arc<Self>, node: usize, script: usize, inside: &Inside<'_, '_>) {
        let (runtime, nth) = {
            let model = lock(&self.model);
            (model.nodes[node].runtime, model.nodes[node].ticks)
        };
        let mut panics = false;
        // Every second tick does nothing.
        if let Some(op) = self.script(script).filter(|_| nth % 2 == 1) {
            if matches!(op, Op::Panic) {
                panics = true;
            } else {
                self.carry_out(op, inside);
            }
        }
        let mut model = lock(&self.model);
        model.ended(node);
        model.runtimes[runtime].panics += u64::from(panics);
        drop(model);
        if panics {
            panic_any(Intended);
        }
    }

    pub(super) fn create(
        self: &Arc<Self>,
        slot: usize,
        runtime: usize,
        kind: Kind,
        (policy, leeway): (MissedTicks, Duration),
        (due, period): (Duration, Duration),
        (script, spiteful): (usize, bool),
    ) {
        self.let_go(slot, false);
        let Some((id, runtime)) = self.runtime(runtime) else { return };
        let clock = lock(&self.model).runtimes[id].clock;
        let period = if kind == Kind::Once { Duration::ZERO } else { self.period(clock, period) };
        let manner = if kind == Kind::Once { Default::default() } else { (policy, leeway) };
        let node = lock(&self.model).create(id, kind, manner, due, period);
        let canary = self.canary('t', node, spiteful);
        let callback = move |tick: &Tick<'_>| canary.harness.tick(canary.id.1, tick, script);
        let builder = || TimerBuilder::on(&runtime).due(due).period(period).missed_ticks(policy).leeway(leeway);
        let plain = (MissedTicks::Rebase, Duration::ZERO);
        let handle = match kind {
            Kind::Once => Handle::Once(OnceTimer::on(&runtime, due, callback)),
            Kind::Overlapping if manner == plain => Handle::Many(Timer::on(&runtime, due, period, callback)),
            Kind::Overlapping => Handle::Many(builder().start(callback)),
            Kind::Exclusive if manner == plain => {
                Handle::Many(TimerBuilder::on(&runtime).due(due).period(period).start_exclusive(callback))
            }
            Kind::Exclusive => Handle::Many(builder().start_exclusive(callback)),
        };
        lock(&self.real).timers[slot] = Some((node, Arc::new(handle)));
    }

    /// Drops or detaches the handle of a slot.
    pub(super) fn let_go(&self, slot: usize, detach: bool) {
        let Some((node, handle)) = lock(&self.real).timers[slot].take() else { return };
        let handle = match Arc::try_unwrap(handle) {
            Ok(handle) => handle,
            Err(_) => return self.fail("the handle is held elsewhere".into()),
        };
        let mut model = lock(&self.model);
        model.nodes[node].handle = false;
        // A detached fast timer would tick for ever.
        if detach && model.is_slow(node) {
            drop(model);
            match handle {
                Handle::Many(timer) => timer.detach(),
                Handle::Once(timer) => timer.detach(),
            }
        } else {
            model.dispose(node);
            drop(model);
            drop(handle);
        }
    }

    pub(super) fn wall(&self, slot: usize) -> Option<(usize, Arc<WallTimer>)> {
        lock(&self.real).walls[slot].as_ref().map(|(node, handle)| (*node, Arc::clone(handle)))
    }

    /// `None`: no wall clock can show this time.
    pub(super) fn by_wall(&self, clock: usize, ByWall { by, back }: ByWall) -> Option<SystemTime> {
        let shown = self.clock(clock).wall();
        let at = if back { shown.checked_sub(by) } else { shown.checked_add(by) };
        // Some thousand years, so that the wall clock itself never comes to its end.
        at.filter(|&at| wall_ns(at).unsigned_abs() < 4 * u128::from(u64::MAX))
    }

    pub(super) fn create_wall(
        self: &Arc<Self>,
        slot: usize,
        runtime: usize,
        at: ByWall,
        script: usize,
        spiteful: bool,
    ) {
        self.end_wall(slot, Going::Drop, &Inside::Nothing);
        let Some((id, runtime)) = self.runtime(runtime) else { return };
        let clock = lock(&self.model).runtimes[id].clock;
        let Some(at) = self.by_wall(clock, at) else { return };
        let node = lock(&self.model).create_wall(id, wall_ns(at));
        let canary = self.canary('t', node, spiteful);
        let timer = WallTimer::on(&runtime, at, move |tick| canary.harness.wall_tick(canary.id.1, tick, script));
        lock(&self.real).walls[slot] = Some((node, Arc::new(timer)));
    }

    pub(super) fn end_wall(&self, slot: usize, how: Going, inside: &Inside<'_, '_>) {
        let Some((node, handle)) = self.wall(slot) else { return };
        if matches!(how, Going::Drop | Going::Detach) {
            let slot = lock(&self.real).walls[slot].take();
            drop(slot);
            let Ok(handle) = Arc::try_unwrap(handle) else { return self.fail("the handle is held elsewhere".into()) };
            let mut model = lock(&self.model);
            model.nodes[node].handle = false;
            if how == Going::Detach {
                drop(model);
                return handle.detach();
            }
            model.dispose(node);
            drop(model);
            return drop(handle);
        }
        lock(&self.model).dispose(node);
        match how {
            Going::DisposeAndWait => self.waited(node, handle.dispose_and_wait(), inside),
            Going::DisposeAsync => {
                let mut disposal = handle.dispose_async();
                match Pin::new(&mut disposal).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(waited) => self.waited(node, waited, inside),
                    Poll::Pending => self.fail("the end of a wall timer takes time on virtual time".into()),
                }
            }
            _ => handle.dispose(),
        }
    }
}
