//! Delays and the futures that contain delays, on the crate and on the model.

use super::*;

impl Harness {
    pub(super) fn make_future(
        self: &Arc<Self>,
        slot: usize,
        runtime: usize,
        make: Make,
        after: Duration,
        source: usize,
    ) {
        let Some((runtime_id, runtime)) = self.runtime(runtime) else { return };
        let source = self.source(source);
        let old = lock(&self.real).futures[slot].take();
        if let Some((id, old, _)) = old {
            lock(&self.model).drop_future(id);
            drop(old);
        }
        let id = self.ids.fetch_add(1, Ordering::SeqCst);
        let (clock, now) = {
            let model = lock(&self.model);
            (model.runtimes[runtime_id].clock, model.now_of(runtime_id))
        };
        let deadline = instant(now, after);
        let flag = Arc::new(AtomicBool::new(false));
        let (future, kind) = match make {
            Make::Delay => (Future::Delay(Delay::on(&runtime, after)), FutureKind::Delay),
            Make::Timeout => {
                let timeout = Timeout::on(&runtime, after, Flag(Arc::clone(&flag)));
                (Future::Timeout(timeout, flag), FutureKind::Timeout { ready: false })
            }
            Make::Cancelled => {
                let Some((source_id, source)) = source else { return };
                (Future::Cancelled(source.token().cancelled_owned()), FutureKind::Cancelled { source: source_id })
            }
            Make::Either => {
                let Some((source_id, source)) = source else { return };
                let delay = Delay::on(&runtime, after).with_token(&source.token());
                (Future::Either(delay), FutureKind::Either { source: source_id })
            }
            Make::Both => {
                let Some((source, handle)) = source else { return };
                let timeout = Timeout::on(&runtime, after, Flag(Arc::clone(&flag))).with_token(&handle.token());
                (Future::Both(timeout, flag), FutureKind::Both { ready: false, begun: false, source })
            }
            Make::Until => {
                let Some((source, handle)) = source else { return };
                let until = handle.token().run_until_cancelled(Flag(Arc::clone(&flag)));
                (Future::Until(until, flag), FutureKind::Until { ready: false, begun: false, source })
            }
            Make::Interval(policy) => {
                let period = self.period(clock, after);
                let mut interval = Interval::on(&runtime, period).missed_ticks(policy);
                let stop = interval.stop_handle();
                let period = u64::try_from(period.as_nanos()).unwrap_or(NEVER).max(1);
                let next = reference::later(now, period);
                let kind = FutureKind::Interval { next, period, policy, stopped: false, waker: None, ended: false };
                lock(&self.model).new_future(id, runtime_id, next, kind);
                self.put_future(slot, id, Future::Interval(interval, stop));
                return;
            }
        };
        lock(&self.model).new_future(id, runtime_id, deadline, kind);
        self.put_future(slot, id, future);
    }

    fn put_future(self: &Arc<Self>, slot: usize, id: usize, future: Future) {
        let waker = |waker| Waker::from(Arc::new(ReportingWaker { harness: Arc::clone(self), future: id, waker }));
        lock(&self.real).futures[slot] = Some((id, future, [waker(0), waker(1), waker(PANICKING)]));
    }

    pub(super) fn poll(&self, slot: usize, waker: u8) {
        let Some((id, mut future, wakers)) = lock(&self.real).futures[slot].take() else { return };
        let want = lock(&self.model).poll(id, waker);
        let mut context = Context::from_waker(&wakers[usize::from(waker)]);
        let is = match &mut future {
            Future::Delay(future) => match future.poll_try_wait(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(Ok(())) => Polled::Ended(DelayEnd::Over),
                Poll::Ready(Err(_)) => Polled::Ended(DelayEnd::RuntimeEnded),
            },
            Future::Either(future) => match Pin::new(future).poll(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(Ok(())) => Polled::Ended(DelayEnd::Over),
                Poll::Ready(Err(cancelled)) => Polled::Ended(DelayEnd::Cancelled(cancelled.reason())),
            },
            Future::Cancelled(future) => match Pin::new(future).poll(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(cancelled) => Polled::Cancelled(cancelled.reason()),
            },
            Future::Timeout(future, _) => match Pin::new(future).poll(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(Ok(())) => Polled::Value,
                Poll::Ready(Err(_)) => Polled::Ended(DelayEnd::Over),
            },
            Future::Both(future, _) => match Pin::new(future).poll(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(Ok(())) => Polled::Value,
                Poll::Ready(Err(TimeoutError::Elapsed(_))) => Polled::Ended(DelayEnd::Over),
                Poll::Ready(Err(TimeoutError::Cancelled(cancelled))) => {
                    Polled::Ended(DelayEnd::Cancelled(cancelled.reason()))
                }
            },
            Future::Until(future, _) => match Pin::new(future).poll(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(value) => value.map_or(Polled::GivenUp, |()| Polled::Value),
            },
            Future::Interval(future, _) => match future.poll_tick(&mut context) {
                Poll::Pending => Polled::Pending,
                Poll::Ready(None) => Polled::NoTick,
                Poll::Ready(Some(tick)) => Polled::Tick { scheduled: ns(tick.scheduled()), missed: tick.missed() },
            },
        };
        lock(&self.model).forget_called_out();
        self.same("poll", is, want);
        lock(&self.real).futures[slot] = Some((id, future, wakers));
    }

    pub(super) fn reset(&self, slot: usize, after: Duration, absolute: bool) {
        let Some((id, mut future, wakers)) = lock(&self.real).futures[slot].take() else { return };
        let now = lock(&self.model).now_of_future(id);
        let deadline = instant(now, after);
        let delay = match &mut future {
            Future::Delay(delay) => Some(delay),
            Future::Timeout(timeout, _) => Some(timeout.delay_mut()),
            Future::Interval(interval, _) => {
                let period = u64::try_from(after.as_nanos()).unwrap_or(NEVER).max(1);
                lock(&self.model).set_period(id, period);
                interval.set_period(after);
                None
            }
            Future::Cancelled(_) | Future::Either(_) | Future::Both(..) | Future::Until(..) => None,
        };
        if let Some(delay) = delay {
            lock(&self.model).reset(id, deadline);
            if absolute {
                delay.reset_at(self.timestamp(id) + after);
            } else {
                delay.reset(after);
            }
            let deadline = lock(&self.model).futures[&id].delay.deadline;
            self.same("deadline", ns(delay.deadline()), deadline);
        }
        lock(&self.real).futures[slot] = Some((id, future, wakers));
    }

    /// The time now on the clock of a future.
    fn timestamp(&self, future: usize) -> Timestamp {
        let (clock, now) = {
            let model = lock(&self.model);
            (model.clock_of_future(future), model.now_of_future(future))
        };
        let monotonic = self.clock(clock).now();
        monotonic + Duration::from_nanos(now - ns(monotonic))
    }

    pub(super) fn finish(&self, slot: usize) {
        enum Finish {
            Flag(Arc<AtomicBool>),
            Stop(StopHandle),
        }
        let (id, finish) = match &lock(&self.real).futures[slot] {
            Some((id, Future::Timeout(_, flag) | Future::Both(_, flag) | Future::Until(_, flag), _)) => {
                (*id, Finish::Flag(Arc::clone(flag)))
            }
            Some((id, Future::Interval(_, stop), _)) => (*id, Finish::Stop(stop.clone())),
            _ => return,
        };
        match finish {
            Finish::Flag(flag) => {
                flag.store(true, Ordering::SeqCst);
                lock(&self.model).finish(id);
            }
            Finish::Stop(stop) => {
                let panics = lock(&self.model).stop(id);
                let panicked = catch_unwind(AssertUnwindSafe(|| stop.stop())).is_err();
                self.same("a panic on stopping an interval", panicked, panics);
                let outcome = lock(&self.model).all_called_out();
                self.ok(outcome);
            }
        }
    }
}
