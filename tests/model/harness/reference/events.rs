//! Events: the callback or waker that must run next, and its effects.

use super::*;

impl Model {
    /// Takes an event. An error, unless exactly this event had to happen next.
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
        let Some((key, Claimed { node, scheduled, missed, woken })) = self.next_visible(clock) else {
            return Err(format!("{event:?}, and nothing was due at {}", clocks_now[clock]));
        };
        let n = &self.nodes[node];
        let (what, runtime) = (n.what, n.runtime);
        let want = match what {
            What::Timer => Event::Tick { node, scheduled, missed },
            What::Wall => Event::WallTick { node, scheduled: self.walls[&node] },
            What::Future(_) => {
                woken.map(|(future, waker)| Event::Woken { future, waker }).expect("its waker was taken")
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
            What::Wall => {
                self.seen.insert("a wall timer ticked");
                self.ran(clock, key, node);
                self.nodes[node].ticks += 1;
                self.walls.remove(&node);
            }
            What::Future(future) => {
                self.seen.insert("a delay woke");
                let panics = woken.is_some_and(|(_, waker)| waker == PANICKING);
                if self.runtimes[runtime].open {
                    self.ran(clock, key, node);
                    self.saw("a waker panicked when a delay was over", panics);
                    self.saw("a waker was called in vain", !self.futures.contains_key(&future));
                } else {
                    self.clocks[clock].claimed.remove(&key);
                }
                self.runtimes[runtime].panics += u64::from(panics);
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
        // A further tick, claimed when the callback began, is now queued among the rest.
        let (clock, boot) = (self.clock_of(node), self.is_on_boot(node));
        let number = self.nodes[node].number;
        let c = &mut self.clocks[clock];
        let own = c.claimed.iter().find(|(_, claimed)| claimed.node == node).map(|(&key, &claimed)| (key, claimed));
        if let Some((key, claimed)) = own {
            c.claimed.remove(&key);
            c.claimed.insert((c.on_monotonic(claimed.scheduled, boot), number), claimed);
        }
        let n = &self.nodes[node];
        if n.kind == Kind::Exclusive && n.owed && !n.disposed {
            if self.runtimes[n.runtime].open {
                self.claim(node);
            } else {
                self.dispose(node);
            }
        }
    }
}
