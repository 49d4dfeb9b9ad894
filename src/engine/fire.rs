//! The firing of a timer: from a claimed tick to the end of its callback.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::entry::{Begun, Firing, finish_disposal};
use super::{Engine, EntryRef, Label, Slow, dispose, inside, observe};
use crate::queue::state::End;
use crate::sync::Arc;
use crate::unwind::{Payload, contain};

/// The output of a sweep for a due entry.
pub(crate) enum Expired {
    Tick(Firing),
    /// The waker of a waiting future. The future alone has the entry now, so the waker needs no
    /// claim and no reference.
    Waker(Waker),
}

impl Expired {
    /// `None`: a waker, which has come due just now.
    pub(super) fn due(&self) -> Option<u64> {
        match self {
            Self::Tick(firing) => Some(firing.scheduled),
            Self::Waker(_) => None,
        }
    }
}

/// The output of a sweep with its order on virtual time: due point, then arming number (S14).
pub(crate) struct InOrder {
    pub(crate) scheduled: u64,
    /// Of a waker. The number of a tick stands in its entry.
    pub(crate) number_of_waker: u64,
    pub(crate) expired: Expired,
}

impl InOrder {
    pub(crate) fn number(&self) -> u64 {
        match &self.expired {
            Expired::Tick(firing) => firing.entry.get().state.number(),
            Expired::Waker(_) => self.number_of_waker,
        }
    }
}

impl From<Firing> for InOrder {
    fn from(firing: Firing) -> Self {
        Self { scheduled: firing.scheduled, number_of_waker: 0, expired: Expired::Tick(firing) }
    }
}

/// Passes a due callback on to an executor of the program's. Called with no lock held.
pub(crate) type Executor = dyn Fn(HandedOver) + Send + Sync;

/// A claimed tick with an executor of the program's.
pub(crate) struct HandedOver {
    engine: Arc<Engine>,
    /// `None`: taken by [`Self::run`].
    firing: Option<Firing>,
}

impl HandedOver {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn run(mut self) {
        let Some(firing) = self.firing.take() else { return };
        let engine = &self.engine;
        inside(engine.address(), || engine.run_by_hand(firing.into(), |deferred| engine.submit(deferred.expired)));
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some(firing) = self.firing.take() {
            self.engine.by_hand.begin();
            dispose(&firing.entry);
        }
    }
}

impl Engine {
    /// Runs a callback, or calls a waker. Returns whether a callback or waker ran. `put` takes the
    /// firing of a deferred tick.
    #[inline]
    pub(super) fn run_expired(&self, expired: Expired, put: impl FnMut(Firing)) -> bool {
        match expired {
            Expired::Tick(firing) => self.run_firing(firing, put),
            Expired::Waker(waker) => {
                self.wake(waker);
                true
            }
        }
    }

    /// Calls a waker of foreign code: a panic goes to the panic handler (S37).
    pub(super) fn wake(&self, waker: Waker) {
        contain(self, || waker.wake());
    }

    /// Calls wakers of several tasks. In real time all but the first are jobs of the pool, so that
    /// a waker that blocks delays no other (S37). Called with no lock held.
    pub(crate) fn wake_each(&self, wakers: impl IntoIterator<Item = Waker>) {
        let mut wakers = wakers.into_iter();
        let Some(first) = wakers.next() else { return };
        for waker in wakers {
            if self.native.is_some() && !self.is_closed() && !self.is_forked() {
                self.by_hand.claim();
                self.submit(Expired::Waker(waker));
            } else {
                self.wake(waker);
            }
        }
        self.wake(first);
    }

    /// The address that identifies the engine, for [`inside`]: the thread is inside of a callback
    /// that was handed over.
    pub(super) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Passes a claimed tick on to the program's executor.
    #[cold]
    pub(super) fn hand_callback_over(&self, executor: &Executor, firing: Firing) {
        let Some(engine) = self.me.upgrade() else { return dispose(&firing.entry) };
        let job = HandedOver { engine, firing: Some(firing) };
        contain(self, || executor(job));
    }

    /// The runtime has ended: disposes the timer of a tick; wakes a task, which may wait for the
    /// error (S33).
    pub(super) fn discard_one(&self, expired: Expired) {
        match expired {
            Expired::Tick(firing) => dispose(&firing.entry),
            Expired::Waker(waker) => self.wake(waker),
        }
    }

    /// Runs the callback of a claimed tick, unless a change or a disposal came between (I10).
    /// Returns whether the callback ran. `put` takes the firing of a deferred tick.
    pub(super) fn run_firing(&self, firing: Firing, mut put: impl FnMut(Firing)) -> bool {
        let node = &firing.entry;
        let running = match firing.begin() {
            Begun::Run(running) => running,
            Begun::RunAndSettle(running) => {
                settle(node, &mut put);
                running
            }
            Begun::Settle => {
                settle(node, &mut put);
                return false;
            }
            Begun::Refused => return false,
        };
        let limit = self.hooks.slow.as_ref().map(|slow| slow.limit);
        let begun = limit.map(|limit| (limit, Instant::now(), self.clock.now()));
        let panicked = inside(node.address(), || catch_unwind(AssertUnwindSafe(|| running.call())).err());
        let slow = begun.and_then(|(limit, begun, at)| {
            let (took, late) = (begun.elapsed(), at.saturating_sub(firing.scheduled));
            (took > limit).then_some((took, Duration::from_nanos(late)))
        });
        if slow.is_some() || panicked.is_some() {
            let slow = slow.filter(|_| !observe::was_told(node.address()));
            inside(node.address(), || self.ended_badly(running.label(), slow, panicked));
        }
        match running.end() {
            End::Done => {}
            End::Settle => settle(node, &mut put),
            End::DropPayload => finish_disposal(node),
        }
        true
    }
}

impl Engine {
    /// A callback took long (`slow`: how long, and how late it began), or panicked.
    #[cold]
    pub(super) fn ended_badly(
        &self,
        label: Option<Arc<Label>>,
        slow: Option<(Duration, Duration)>,
        panicked: Option<Payload>,
    ) {
        if let (Some((took, late)), Some(hook)) = (slow, &self.hooks.slow) {
            contain(self, || (hook.handler)(Slow { took, late, label: label.clone() }));
        }
        if let Some(payload) = panicked {
            self.handle_panic(payload, label);
        }
    }
}

/// The thread that took the timer's job, or ended its callback, claims the deferred tick, if it is
/// still deferred (I11).
fn settle(node: &EntryRef, put: &mut impl FnMut(Firing)) {
    let shard = node.shard();
    let mut inner = shard.lock();
    if !node.get().state.settle() {
        return;
    }
    if !inner.is_open() {
        drop(inner);
        // the runtime was shut down: the callback will not run, and the waiters are woken
        dispose(node);
    } else {
        let firing = inner.take_deferred_tick(node);
        drop(inner);
        put(firing);
    }
}
