//! Execution of operations, on the crate and on the model.

use super::*;

impl Harness {
    pub(super) fn runtime(&self, slot: usize) -> Option<(usize, Runtime)> {
        lock(&self.real).runtimes[slot].as_ref().map(|(id, runtime)| (*id, runtime.clone()))
    }

    pub(super) fn timer(&self, slot: usize) -> Option<(usize, Arc<Handle>)> {
        lock(&self.real).timers[slot].as_ref().map(|(node, handle)| (*node, Arc::clone(handle)))
    }

    pub(super) fn source(&self, slot: usize) -> Option<(usize, CancellationTokenSource)> {
        lock(&self.real).sources[slot].as_ref().map(|(id, source)| (*id, source.clone()))
    }

    /// A period that a running advance can pass through without ticking for ever.
    pub(super) fn period(&self, clock: usize, period: Duration) -> Duration {
        let left = lock(&self.model).left(clock).unwrap_or(0);
        if period.is_zero() { period } else { period.max(Duration::from_nanos(left / 24)) }
    }

    pub(super) fn affordable(&self, clock: usize, by: Duration) -> Duration {
        by.min(Duration::from_nanos(lock(&self.model).affordable(clock)))
    }

    pub(super) fn apply(self: &Arc<Self>, op: &Op, inside: &Inside<'_, '_>) {
        match *op {
            Op::Panic => {}
            Op::Create { slot, runtime, kind, policy, leeway, due, period, script, spiteful } => {
                self.create(slot, runtime, kind, (policy, leeway), (due, period), (script, spiteful));
            }
            Op::Change { slot, due, period } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                let period = self.period(self.clock_of(node), period);
                let period = if matches!(*handle, Handle::Once(_)) { Duration::ZERO } else { period };
                let want = lock(&self.model).change(node, due, period);
                let is = match &*handle {
                    Handle::Many(timer) => timer.change(due, period),
                    Handle::Once(timer) => timer.reset(due),
                };
                self.same("change", is, want);
            }
            Op::ChangeOwn { due, period } => {
                let (is, want) = match *inside {
                    Inside::Timer(tick, node) => {
                        let period = self.period(self.clock_of(node), period);
                        let want = lock(&self.model).change(node, due, period);
                        (tick.change(due, period), want)
                    }
                    Inside::Wall(tick, node) => {
                        let by = ByWall { by: due, back: false };
                        let Some(at) = self.by_wall(self.clock_of(node), by) else { return };
                        let want = lock(&self.model).change_wall(node, wall_ns(at));
                        (tick.reset_at(at), want)
                    }
                    _ => return,
                };
                self.same("change of the own timer", is, want);
            }
            Op::DisposeOwn => {
                let (Inside::Timer(_, node) | Inside::Wall(_, node)) = *inside else { return };
                lock(&self.model).dispose(node);
                match inside {
                    Inside::Timer(tick, _) => tick.dispose(),
                    Inside::Wall(tick, _) => tick.dispose(),
                    _ => {}
                }
            }
            Op::Dispose { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                match &*handle {
                    Handle::Many(timer) => timer.dispose(),
                    Handle::Once(timer) => timer.dispose(),
                }
            }
            Op::DisposeAndWait { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                let waited = match &*handle {
                    Handle::Many(timer) => timer.dispose_and_wait(),
                    Handle::Once(timer) => timer.dispose_and_wait(),
                };
                self.waited(node, waited, inside);
            }
            Op::DisposeAsync { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                let mut disposal = match &*handle {
                    Handle::Many(timer) => timer.dispose_async(),
                    Handle::Once(timer) => timer.dispose_async(),
                };
                match Pin::new(&mut disposal).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(waited) => self.waited(node, waited, inside),
                    Poll::Pending => self.fail("the end of a timer takes time on virtual time".into()),
                }
            }
            Op::Drop { slot } => self.let_go(slot, false),
            Op::Detach { slot } => self.let_go(slot, true),
            Op::Advance { clock, by } => self.advance(clock, by, inside),
            Op::ToNextDue { clock } => {
                let next = lock(&self.model).next_due(clock);
                let now = lock(&self.model).now(clock);
                self.advance(clock, Duration::from_nanos(next.unwrap_or(now).saturating_sub(now)), inside);
            }
            Op::Stall { clock, by } => {
                let by = self.affordable(clock, by);
                lock(&self.model).stall(clock, by);
                self.clock(clock).stall(by);
            }
            Op::Wall { slot, runtime, at, script, spiteful } => self.create_wall(slot, runtime, at, script, spiteful),
            Op::ChangeWall { slot, at } => {
                let Some((node, handle)) = self.wall(slot) else { return };
                let Some(at) = self.by_wall(self.clock_of(node), at) else { return };
                let want = lock(&self.model).change_wall(node, wall_ns(at));
                self.same("change of a wall timer", handle.reset_at(at), want);
            }
            Op::EndWall { slot, how } => self.end_wall(slot, how, inside),
            Op::SetWall { clock, to } => {
                let Some(to) = self.by_wall(clock, to) else { return };
                lock(&self.model).set_wall(clock, wall_ns(to));
                self.clock(clock).set_wall(to);
            }
            Op::Suspend { clock, by } => {
                let by = self.affordable(clock, by);
                lock(&self.model).suspend(clock, by);
                self.clock(clock).suspend(by);
            }
            Op::Future { slot, runtime, make, after, source } => self.make_future(slot, runtime, make, after, source),
            Op::Poll { slot, waker } => self.poll(slot, waker),
            Op::Reset { slot, after, absolute } => self.reset(slot, after, absolute),
            Op::Finish { slot } => self.finish(slot),
            Op::DropFuture { slot } => {
                let future = lock(&self.real).futures[slot].take();
                if let Some((id, future, _)) = future {
                    lock(&self.model).drop_future(id);
                    drop(future);
                }
            }
            Op::Source { slot, runtime } => {
                let Some((id, runtime)) = self.runtime(runtime) else { return };
                let id = lock(&self.model).source(id);
                self.put_source(slot, id, CancellationTokenSource::on(&runtime));
            }
            Op::Linked { slot, parents } => {
                let parents: Vec<_> = parents.into_iter().filter_map(|parent| self.source(parent)).collect();
                if parents.is_empty() {
                    return;
                }
                let ids: Vec<usize> = parents.iter().map(|(id, _)| *id).collect();
                let tokens: Vec<_> = parents.iter().map(|(_, source)| source.token()).collect();
                let id = lock(&self.model).linked(&ids);
                self.put_source(slot, id, CancellationTokenSource::linked(&tokens));
            }
            Op::Cancel { slot } => self.cancel(slot, CancelReason::Cancelled),
            Op::CancelAfter { slot, after: Duration::ZERO } => self.cancel(slot, CancelReason::Timeout),
            Op::CancelAfter { slot, after } => {
                let Some((id, source)) = self.source(slot) else { return };
                let want = lock(&self.model).cancel_after(id, after);
                self.same("cancel_after", source.try_cancel_after(after).is_ok(), want);
            }
            Op::TryReset { slot } => {
                let Some((id, source)) = self.source(slot) else { return };
                let want = lock(&self.model).try_reset(id);
                self.same("try_reset", source.try_reset(), want);
            }
            Op::DropSource { slot } => {
                let source = lock(&self.real).sources[slot].take();
                if let Some((id, source)) = source {
                    lock(&self.model).release(id);
                    drop(source);
                }
            }
            Op::Register { slot, source, script, panics, spiteful } => {
                self.register(slot, source, script, panics, spiteful);
            }
            Op::Unregister { slot, how } => self.unregister(slot, how),
            Op::Guard { slot, source } => {
                let Some((id, source)) = self.source(source) else { return };
                self.end_guard(slot, GuardEnd::Drop);
                lock(&self.model).retain(id);
                lock(&self.real).guards[slot] = Some((id, source.drop_guard()));
            }
            Op::EndGuard { slot, how } => self.end_guard(slot, how),
            Op::Shutdown { slot, by_drop } => {
                let Some((id, runtime)) = lock(&self.real).runtimes[slot].take() else { return };
                self.shut_down(id, runtime, by_drop);
            }
            Op::Start { slot, clock, queues, boot } => {
                let old = lock(&self.real).runtimes[slot].take();
                if let Some((id, runtime)) = old {
                    self.shut_down(id, runtime, true);
                }
                let which = if boot { RuntimeClock::Boot } else { RuntimeClock::Monotonic };
                let builder = Runtime::builder().manual_clock(&self.clock(clock)).clock(which);
                let started = builder.queues(queues).start();
                let id = lock(&self.model).start(clock, boot);
                lock(&self.real).runtimes[slot] = Some((id, started.expect("nothing to refuse")));
            }
        }
    }

    pub(super) fn clock(&self, clock: usize) -> ManualClock {
        lock(&self.real).clocks[clock].clone()
    }

    pub(super) fn clock_of(&self, node: usize) -> usize {
        let model = lock(&self.model);
        model.runtimes[model.nodes[node].runtime].clock
    }

    pub(super) fn waited(&self, node: usize, waited: Waited, inside: &Inside<'_, '_>) {
        let own = matches!(*inside, Inside::Timer(_, own) | Inside::Wall(_, own) if own == node);
        if own {
            lock(&self.model).seen.insert("waited for itself");
        }
        let nested = self.depth.load(Ordering::SeqCst) > 1;
        if !nested {
            self.same("wait", waited, if own { Waited::InsideCallback } else { Waited::Ended });
        }
        if waited == Waited::Ended && lock(&self.alive).contains(&('t', node)) {
            self.fail("waited for the end, and what the callback owned is still there".into());
        }
    }

    pub(super) fn advance(&self, clock: usize, by: Duration, inside: &Inside<'_, '_>) {
        if matches!(inside, Inside::Registered) {
            // the model allows cancellations within advances, not advances within cancellations
            return;
        }
        let by = self.affordable(clock, by);
        let begun = lock(&self.model).begin_advance(clock, by);
        let ran = self.clock(clock).advance(by);
        let want = if begun { lock(&self.model).end_advance(clock) } else { Ok(0) };
        if let Some(want) = self.ok(want) {
            self.same("callbacks run by an advance", ran, want);
        }
    }

    pub(super) fn shut_down(&self, id: usize, runtime: Runtime, by_drop: bool) {
        lock(&self.model).shutdown(id);
        if by_drop {
            drop(runtime);
        } else {
            self.same("shutdown", runtime.shutdown(Duration::ZERO).is_ok(), true);
            self.same("timers after a shutdown", runtime.metrics().active, 0);
        }
        let outcome = lock(&self.model).all_called_out();
        self.ok(outcome);
    }
}
