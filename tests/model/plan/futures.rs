//! The rules of delays and of the futures with delays in them.

use super::*;

impl Model {
    pub(super) fn future(&self, future: usize) -> &Future {
        &self.futures[&future]
    }

    pub(super) fn future_mut(&mut self, future: usize) -> &mut Future {
        self.futures.get_mut(&future).expect("it is there while it has a node")
    }

    pub(crate) fn new_future(&mut self, id: usize, runtime: usize, deadline: u64, kind: FutureKind) {
        if let Some(source) = kind.source() {
            self.retain(source);
        }
        let delay = Delay { runtime, deadline: deadline.min(LAST), node: None, waker: None, done: None };
        self.futures.insert(id, Future { kind, delay });
    }

    pub(crate) fn drop_future(&mut self, id: usize) {
        self.unlink(id);
        if let Some(source) = self.futures.get(&id).and_then(|future| future.kind.source()) {
            self.withdraw_waker(id, source);
            self.release(source);
        }
        self.futures.remove(&id);
    }

    pub(crate) fn now_of_future(&self, id: usize) -> u64 {
        self.now_of(self.future(id).delay.runtime)
    }

    pub(crate) fn clock_of_future(&self, id: usize) -> usize {
        self.runtimes[self.future(id).delay.runtime].clock
    }

    /// The future inside a future is ready from now on.
    pub(crate) fn finish(&mut self, id: usize) {
        match &mut self.future_mut(id).kind {
            FutureKind::Timeout { ready } | FutureKind::Both { ready, .. } | FutureKind::Until { ready, .. } => {
                *ready = true;
            }
            _ => {}
        }
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
        if self.now_of(runtime) >= deadline {
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
            FutureKind::Both { ready: true, .. } | FutureKind::Until { ready: true, .. } => Polled::Value,
            FutureKind::Both { source, .. } => {
                if let Some(end) = self.poll_delay(id, waker) {
                    self.saw("a limit came before the token", !matches!(end, DelayEnd::Cancelled(_)));
                    self.withdraw_waker(id, source);
                    return Polled::Ended(end);
                }
                match self.poll_source(id, source, waker) {
                    Some(reason) => {
                        self.seen.insert("a token came before the limit");
                        or_pending(self.settle(id, DelayEnd::Cancelled(reason)))
                    }
                    None => Polled::Pending,
                }
            }
            FutureKind::Until { source, .. } => {
                let cancelled = self.poll_source(id, source, waker);
                self.saw("a future ran until its token was cancelled", cancelled.is_some());
                if cancelled.is_some() { Polled::GivenUp } else { Polled::Pending }
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
                        let now = self.now_of_future(id);
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
        let now = self.now_of_future(id);
        if let FutureKind::Interval { period, .. } = &mut self.future_mut(id).kind {
            *period = to;
        }
        self.go_to(id, now.saturating_add(to));
    }

    /// Whether the waker that is called now panics, to the caller.
    pub(crate) fn stop(&mut self, id: usize) -> bool {
        let woken = match &mut self.future_mut(id).kind {
            FutureKind::Interval { stopped, waker, .. } => {
                *stopped = true;
                waker.take()
            }
            _ => None,
        };
        self.called_out.extend(woken.map(|waker| (id, waker)));
        self.saw("a waker panicked when an interval was stopped", woken == Some(GRUMPY));
        woken == Some(GRUMPY)
    }
}
