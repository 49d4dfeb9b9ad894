//! The rules of delays, and of futures that contain delays.

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
        let delay = Delay { runtime, deadline: deadline.min(END), node: None, waker: None, done: false };
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
        delay.deadline = deadline.min(END);
        delay.done = false;
        let Delay { runtime, deadline, node: Some(node), waker, .. } = *delay else { return };
        if !self.runtimes[runtime].open || waker.is_none() {
            return;
        }
        self.seen.insert("a delay was moved while a task waited");
        let n = &self.nodes[node];
        let (is_later, number) = (n.filed && n.due <= deadline, n.number);
        self.saw("a delay was moved later while it was filed", is_later);
        self.withdraw(node);
        // To later: it keeps its place among those due at one instant (S14).
        let number = if is_later { number } else { self.next_number() };
        self.arm_as(node, deadline, NEVER, number);
    }

    /// Polls a delay. On a runtime that has ended, a delay has elapsed only if its deadline had
    /// come before the end.
    fn poll_delay(&mut self, id: usize, waker: u8) -> Option<DelayEnd> {
        let Delay { runtime, deadline, node, waker: stored, done } = self.future(id).delay;
        if done {
            return Some(DelayEnd::Over);
        }
        let Runtime { open, closed_at, .. } = self.runtimes[runtime];
        if !open && deadline > closed_at {
            self.unlink(id);
            return Some(DelayEnd::RuntimeEnded);
        }
        if !open || self.now_of(runtime) >= deadline {
            self.settle(id);
            return Some(DelayEnd::Over);
        }
        match node {
            None => {
                let what = What::Future(id);
                let node = self.new_node(runtime, what, Kind::Overlapping, MissedTicks::Skip, deadline, NEVER);
                let delay = &mut self.future_mut(id).delay;
                (delay.node, delay.waker) = (Some(node), Some(waker));
            }
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

    fn settle(&mut self, id: usize) {
        let delay = &mut self.future_mut(id).delay;
        delay.done = true;
        let (node, runtime) = (delay.node, delay.runtime);
        if let Some(node) = node {
            if self.runtimes[runtime].open && self.future_mut(id).delay.waker.take().is_some() {
                self.withdraw(node);
            }
        }
    }

    fn poll_source(&mut self, id: usize, source: usize, waker: u8) -> Option<CancelReason> {
        if let Some(reason) = self.sources[source].reason {
            self.withdraw_waker(id, source);
            return Some(reason);
        }
        let s = &mut self.sources[source];
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
        let polled = self.poll_as(id, waker);
        if let FutureKind::Both { begun, .. } | FutureKind::Until { begun, .. } = &mut self.future_mut(id).kind {
            *begun = polled == Polled::Pending;
        }
        polled
    }

    /// Whether the future inside a future is polled: not if its token is cancelled before.
    fn begins(&mut self, begun: bool, source: usize) -> bool {
        let begins = begun || self.reason(source).is_none();
        self.saw("a future was not begun under a cancelled token", !begins);
        begins
    }

    fn poll_as(&mut self, id: usize, waker: u8) -> Polled {
        // Without an error to return, time stands still.
        let plain = |end: Option<DelayEnd>| match end {
            None | Some(DelayEnd::RuntimeEnded) => Polled::Pending,
            Some(end) => Polled::Ended(end),
        };
        match self.future(id).kind.clone() {
            FutureKind::Delay => self.poll_delay(id, waker).map_or(Polled::Pending, Polled::Ended),
            FutureKind::Timeout { ready: true } => {
                self.unlink(id);
                Polled::Value
            }
            FutureKind::Timeout { .. } => plain(self.poll_delay(id, waker)),
            FutureKind::Cancelled { source } => {
                self.poll_source(id, source, waker).map_or(Polled::Pending, Polled::Cancelled)
            }
            FutureKind::Both { ready: true, begun, source } if self.begins(begun, source) => {
                self.unlink(id);
                self.withdraw_waker(id, source);
                Polled::Value
            }
            FutureKind::Until { ready: true, begun, source } if self.begins(begun, source) => {
                self.withdraw_waker(id, source);
                Polled::Value
            }
            FutureKind::Either { source } | FutureKind::Both { source, .. } => {
                if !self.future(id).delay.done {
                    if let Some(reason) = self.poll_source(id, source, waker) {
                        self.seen.insert("a token came before the limit");
                        self.unlink(id);
                        return Polled::Ended(DelayEnd::Cancelled(reason));
                    }
                }
                let end = plain(self.poll_delay(id, waker));
                if end != Polled::Pending {
                    self.seen.insert("a limit came before the token");
                    self.withdraw_waker(id, source);
                }
                end
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
                match plain(self.poll_delay(id, waker)) {
                    Polled::Pending => Polled::Pending,
                    _ => {
                        if let FutureKind::Interval { waker: stored, .. } = &mut self.future_mut(id).kind {
                            *stored = None;
                        }
                        let now = self.now_of_future(id);
                        let (missed, following) = Self::take_up(policy, next, period, now);
                        self.saw("an interval missed ticks", missed > 0);
                        self.go_to(id, following);
                        Polled::Tick { scheduled: next, missed }
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
        self.go_to(id, later(now, to));
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
        self.saw("a waker panicked when an interval was stopped", woken == Some(PANICKING));
        woken == Some(PANICKING)
    }
}
