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
use super::{Engine, EntryRef, TimerSnapshot, dispose, inside, observe};
use crate::ordered_map::in_order;
use crate::pool::{Ran, Tick};
use crate::queue::state::{Begin, Claim, End};
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::unwind::contain;

/// The output of a sweep for a due entry.
pub(crate) enum Expired {
    Tick(Firing),
    /// The waker of a waiting future. The future alone has the entry now, so the waker needs no
    /// claim and no reference.
    Waker(Waker),
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
pub(crate) type Executor = dyn Fn(CallbackJob) + Send + Sync;

/// A callback to be run by the program: a due one for its executor
/// ([`callback_executor`](crate::RuntimeBuilder::callback_executor)), or one that never ran, after
/// the end of its runtime ([`Runtime::shutdown_now`](crate::Runtime::shutdown_now)).
///
/// **Dropping** a job that was not run disposes its timer: the callback never runs again, and
/// waiters for the end of the timer are woken.
///
/// # Examples
///
/// Callbacks on a thread of the program's own, one after another:
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use timerqueue::{OnceTimer, Runtime, observe::CallbackJob};
///
/// let (jobs, queue) = mpsc::channel::<CallbackJob>();
/// let runtime = Runtime::builder()
///     .callback_executor(move |job| _ = jobs.send(job))
///     .start()?;
/// let own = std::thread::current().id();
/// let timer = OnceTimer::on(&runtime, Duration::from_millis(1), move |_| {
///     assert_eq!(std::thread::current().id(), own)
/// });
/// queue.recv().unwrap().run();
/// assert_eq!((runtime.metrics().fired(), runtime.metrics().panics), (1, 0));
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "dropping a job disposes its timer"]
pub struct CallbackJob {
    engine: Arc<Engine>,
    /// `None`: taken by [`Self::run`].
    firing: Option<Firing>,
    /// The runtime has ended, and given the callback back.
    given_back: bool,
}

impl CallbackJob {
    /// The [name](crate::TimerBuilder::name) of the timer.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.firing.as_ref()?.entry.name()
    }

    /// The due point of the tick. After the end of the runtime perhaps still to come; of a wall
    /// timer, the instant at which the runtime would have looked at the wall clock.
    #[must_use]
    pub fn scheduled(&self) -> Timestamp {
        Timestamp::from_ns(self.firing.as_ref().map_or(0, |firing| firing.scheduled))
    }

    /// The period of the timer; `None` for a one-shot.
    #[must_use]
    pub fn period(&self) -> Option<Duration> {
        TimerSnapshot::of(&self.firing.as_ref()?.entry).period
    }

    /// Runs the callback on the calling thread, unless the timer was changed or disposed. A due
    /// callback of an executor's does not run either if its runtime has ended. A panic of the
    /// callback is caught and counted. The runtime of the timer is the
    /// [current](crate::Runtime::current) one meanwhile.
    pub fn run(mut self) {
        let Some(mut firing) = self.firing.take() else { return };
        let engine = &self.engine;
        let _scope = Scope::enter(Owner::of(engine).core());
        engine.enter_by_hand();
        if !self.given_back {
            inside(engine.address(), || engine.run_by_hand(firing.into(), |deferred| engine.submit(deferred.expired)));
            return engine.leave_by_hand();
        }
        let (entry, scheduled) = (firing.entry.clone(), firing.scheduled);
        if entry.wall_index().is_some() {
            firing.missed = Firing::GIVEN_BACK;
        }
        let run = || firing.run(engine, |deferred| dispose(&deferred.entry));
        inside(engine.address(), || engine.count_by_hand(scheduled, run));
        engine.leave_by_hand();
        dispose(&entry);
    }
}

shown!([] CallbackJob, |this|
    "timer_name" => this.timer_name(), "scheduled" => format_args!("{}", this.scheduled())
);

impl Drop for CallbackJob {
    fn drop(&mut self) {
        if let Some(mut firing) = self.firing.take() {
            self.engine.by_hand.share_begin();
            if firing.entry.is_of_program() {
                return dispose(&firing.entry);
            }
            // A source, whose next timed cancel has the same entry: this one is over.
            firing.missed = Firing::DROPPED;
            firing.run(&self.engine, |deferred| self.engine.submit(Expired::Tick(deferred)));
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
            Self::Tick(firing) => _ = engine.give_up(firing),
            Self::Waker(waker) => engine.wake(waker),
        }
    }
}

/// The end of a runtime whose program asks for the callbacks that never ran: instead of being
/// disposed, a timer that waits is claimed, and a job that is discarded is kept. Each is given back
/// as a job that was handed over; so all rules of the state word hold.
impl Engine {
    /// From now on callbacks that will not run are kept: called before [`Self::close`].
    pub(crate) fn keep_unfired(&self) {
        self.unfired.lock().get_or_insert_default();
    }

    pub(super) fn keeps_unfired(&self) -> bool {
        self.unfired.lock().is_some()
    }

    /// A claimed tick will not run. Returns whether it is kept; else its timer is disposed.
    pub(super) fn give_up(&self, firing: Firing) -> bool {
        if firing.entry.is_of_program() {
            if let Some(kept) = &mut *self.unfired.lock() {
                kept.push(firing);
                return true;
            }
        }
        dispose(&firing.entry);
        false
    }

    /// A timer was left in the queue of a closed shard, and is in no list now.
    pub(super) fn leave(&self, entry: EntryRef) {
        if !(entry.is_of_program() && self.keeps_unfired()) {
            return dispose(&entry);
        }
        let claimed = {
            let state = entry.shard().lock();
            let key = state.queue.key();
            // Deferred: the job in the list of those kept, or the callback that runs, settles the
            // tick.
            (entry.get().claim(key) == Claim::Queue).then(|| entry.get().due(key))
        };
        if let Some(scheduled) = claimed {
            self.give_up_uncounted(entry, scheduled);
        }
    }

    /// As [`Self::give_up`], of a tick that no shard has counted as claimed, since it is closed.
    fn give_up_uncounted(&self, entry: EntryRef, scheduled: u64) {
        self.by_hand.share_other();
        self.give_up(Firing { entry, scheduled, missed: 0 });
    }

    /// The callbacks that were kept, in the order of their due points. None is kept any more.
    pub(crate) fn take_unfired(self: &Arc<Self>) -> Vec<CallbackJob> {
        let kept = self.unfired.lock().take().unwrap_or_default();
        let order = in_order(kept.iter().map(|firing| firing.scheduled));
        let mut kept: Vec<_> = kept.into_iter().map(Some).collect();
        let give_back = |firing: Firing| {
            let state = firing.entry.shard().lock();
            let given = firing.entry.get().state.give_back();
            drop(state);
            if given {
                return Some(CallbackJob { engine: Arc::clone(self), firing: Some(firing), given_back: true });
            }
            self.by_hand.share_begin();
            dispose(&firing.entry);
            None
        };
        order.into_iter().filter_map(|at| kept[at].take()).filter_map(give_back).collect()
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
                let job = CallbackJob { engine: mine, firing: Some(self), given_back: false };
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
            Begin::RunAndSettle => settle(engine, node, &mut put),
            Begin::Settle => {
                settle(engine, node, &mut put);
                return Ran::Void;
            }
            Begin::Refused => return Ran::Void,
        }
        let limit = engine.hooks.slow_limit;
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
            End::Settle => settle(engine, node, &mut put),
            End::DropPayload => finish_disposal(node),
        }
        Ran::Callback
    }
}

/// The thread that took the timer's job, or ended its callback, claims the deferred tick, if it is
/// still deferred (I11).
fn settle(engine: &Engine, node: &EntryRef, put: &mut impl FnMut(Firing)) {
    let mut inner = node.shard().lock();
    if !node.get().state.settle() {
        return;
    }
    if inner.is_open() {
        let firing = inner.take_deferred_tick(node);
        drop(inner);
        return put(firing);
    }
    let scheduled = node.get().due(inner.queue.key());
    drop(inner);
    engine.give_up_uncounted(node.clone(), scheduled);
}
