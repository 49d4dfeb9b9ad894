//! The firing of a timer: from a claimed tick to the end of its callback.
//!
//! Ground rules. A firing runs on a thread of the pool, of an executor of the program's, or on the
//! driver of a manual clock; the thread holds no lock of the crate. The state word
//! ([`crate::queue::state`]) decides whether the callback may run.

#![allow(unsafe_code)] // the call of a callback, between `begin` and `end`

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::current::{Owner, Scope};
use super::entry::{Firing, finish_disposal};
use super::{Engine, EntryRef, dispose, inside, observe};
use crate::pool::{Ran, Tick};
use crate::queue::state::{Begin, End};
use crate::sync::Arc;
use crate::unwind::contain;

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
    /// Runs the callback on the calling thread. One that names no runtime uses its own.
    pub(crate) fn run(mut self) {
        let Some(firing) = self.firing.take() else { return };
        let engine = &self.engine;
        let _scope = Scope::enter(Owner::of(engine).core());
        inside(engine.address(), || engine.run_by_hand(firing.into(), |deferred| engine.submit(deferred.expired)));
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some(firing) = self.firing.take() {
            self.engine.by_hand.share_begin();
            dispose(&firing.entry);
        }
    }
}

impl Tick<Engine> for Expired {
    /// A thread of the pool has a tick. A deferred tick queues behind all waiting jobs.
    #[inline(always)] // a call would pass the tick through memory
    fn run(self, engine: &Engine) -> Ran {
        match (self, &engine.parts().executor) {
            (Self::Tick(firing), Some(executor)) if firing.entry.is_callback() => firing.hand_over(engine, executor),
            (Self::Tick(firing), _) => firing.run(engine, |deferred| engine.submit(Self::Tick(deferred))),
            (Self::Waker(waker), _) => {
                engine.wake(waker);
                Ran::Waker
            }
        }
    }

    /// The runtime has ended: disposes the timer of a tick; wakes a task, which may wait for the
    /// error (S33).
    fn discard(self, engine: &Engine) {
        match self {
            Self::Tick(firing) => dispose(&firing.entry),
            Self::Waker(waker) => engine.wake(waker),
        }
    }
}

impl Firing {
    /// Passes a claimed tick on to the program's executor.
    #[cold]
    fn hand_over(self, engine: &Engine, executor: &Executor) -> Ran {
        match engine.me.upgrade() {
            None => dispose(&self.entry),
            Some(mine) => {
                engine.by_hand.share_other(); // the pool has taken the tick, and the executor has it now
                let job = HandedOver { engine: mine, firing: Some(self) };
                contain(engine, || executor(job));
            }
        }
        Ran::Void
    }

    /// Runs the callback, unless a change or a disposal came between (I10). `put` takes the firing
    /// of a deferred tick.
    pub(super) fn run(self, engine: &Engine, mut put: impl FnMut(Self)) -> Ran {
        let node = &self.entry;
        match node.get().begin() {
            Begin::Run => {}
            Begin::RunAndSettle => settle(node, &mut put),
            Begin::Settle => {
                settle(node, &mut put);
                return Ran::Void;
            }
            Begin::Refused => return Ran::Void,
        }
        let limit = engine.hooks.slow.as_ref().map(|slow| slow.limit);
        let begun = limit.map(|limit| (limit, Instant::now(), engine.clock.now()));
        // SAFETY: between `begin`, which has given the right to call the callback once, and `end`.
        let call = || unsafe { (node.callback())(node.as_ptr(), &self) };
        let panicked = inside(node.address(), || catch_unwind(AssertUnwindSafe(call)).err());
        let slow = begun.and_then(|(limit, begun, at)| {
            let (took, late) = (begun.elapsed(), at.saturating_sub(self.scheduled));
            (took > limit).then_some((took, Duration::from_nanos(late)))
        });
        if slow.is_some() || panicked.is_some() {
            let slow = slow.filter(|_| !observe::was_told(node.address()));
            inside(node.address(), || engine.ended_badly(node.label().cloned(), slow, panicked));
        }
        match node.get().end() {
            End::Done => {}
            End::Settle => settle(node, &mut put),
            End::DropPayload => finish_disposal(node),
        }
        Ran::Callback
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
