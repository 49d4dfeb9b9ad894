//! Sweeps: due timers leave the queue and become jobs of the pool, or, on a manual clock, of the
//! driver.
//!
//! Ground rules. A sweep is a sequence of lock sections ([`Shard::sweep_step`]). Between sections,
//! with no lock held, the sweeping thread emits the ticks of a section as a single job.
//!
//! **Shared batches.** A thread that takes up a batch puts the batch back into its deque before the
//! first callback, unless a single tick is left. From there any other thread takes the batch, and
//! does the same. While a callback of a batch runs and ticks are left, the batch is in a queue of
//! the pool, so a callback that blocks delays no other tick (S31, I19).

use std::io;
use std::time::Duration;

use super::batch::{BATCH, Batch, SharedBatch};
use super::{Engine, Expired, InOrder, Shard};
use crate::alarm::{AlarmSet, Backend, Event};
use crate::pool::{Cover, Driver, LocalQueue, Pool};
use crate::sync::unmodelled::fence;
use crate::sync::{Arc, Ordering};

/// A job of the pool.
pub(crate) enum Job {
    /// Run a callback or call a waker, due at this instant.
    One { expired: Expired, due: u64 },
    /// The ticks and wakers of a lock section.
    Batch(Arc<SharedBatch>),
    /// The batch was full: continue the sweep of this queue (I7).
    Sweep(u32),
}

/// How a sweep ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Swept {
    /// All due timers have been emitted.
    Done,
    /// The batch was full.
    More,
}

impl Engine {
    /// Sweeps a queue, at most a batch. `put`: see [`Shard::sweep_step`].
    fn sweep_batch(&self, shard: &Shard, mut put: impl FnMut(Expired, u64, u64)) -> (Swept, Cover) {
        let mut cover = Cover::default();
        loop {
            // The next section follows at once: else the alarm would be set after the callbacks of
            // other jobs.
            if let Some(swept) = shard.sweep_step(self.native.is_some(), &mut cover, &mut put) {
                return (swept, cover);
            }
        }
    }

    /// For the driver of a manual clock: takes all due timers of a queue.
    pub(crate) fn sweep_by_hand(&self, queue: usize, due: &mut Vec<InOrder>) {
        while {
            due.reserve(BATCH); // before the lock is taken
            let put = |expired, scheduled, number_of_waker| due.push(InOrder { scheduled, number_of_waker, expired });
            self.sweep_batch(self.shard(queue), put).0 == Swept::More
        } {}
    }

    /// For the driver of a manual clock, and for an executor of the program's: runs a swept tick or
    /// waker. Returns whether a callback or waker ran. `put` takes a deferred tick, before the
    /// callback begins or after it has ended: it must be passed on at once, since the callback may
    /// block.
    pub(crate) fn run_by_hand(&self, tick: InOrder, mut put: impl FnMut(InOrder)) -> bool {
        let InOrder { scheduled, expired, .. } = tick;
        let (late, is_waker) = (self.clock.now().saturating_sub(scheduled), matches!(expired, Expired::Waker(_)));
        self.by_hand.begin();
        self.running_by_hand.fetch_add(1, Ordering::Relaxed);
        // pairs with `wait_for_driver`: either its thread sees the count, or this thread sees the
        // end
        fence(Ordering::SeqCst);
        let ran = if self.is_closed() {
            self.discard_one(expired); // a callback of the same instant has shut the runtime down
            false
        } else {
            self.run_expired(expired, |deferred| put(deferred.into()))
        };
        if ran {
            self.by_hand.ran(late, is_waker);
        }
        self.running_by_hand.fetch_sub(1, Ordering::Release);
        ran
    }
}

impl Engine {
    /// Runs the ticks of a batch until none is left, or until the thread has another job to run
    /// first. Returns whether the last callback ran; the pool has counted those before.
    fn run_batch(&self, batch: &Arc<SharedBatch>, local: &LocalQueue<Job>) -> bool {
        let pool = self.pool();
        let mut shared = false;
        while let Some((expired, left)) = batch.take() {
            local.set_rest_of_batch(left);
            if left > 0 && !shared {
                pool.push_local(local, Job::Batch(Arc::clone(batch)));
                if local.is_searcher() {
                    // The thread that began the batch may be blocked, and this thread may be
                    // blocked soon: the next thread is woken.
                    pool.notify(self);
                } else {
                    pool.share(self, local);
                }
                shared = true;
                if pool.is_stopping() {
                    // The thread that stops the pool may have searched the deques while the batch
                    // was in none.
                    self.discard_one(expired);
                    return false;
                }
            } else if left == 0 && shared {
                let is_batch = |job: &Job| matches!(job, Job::Batch(other) if Arc::ptr_eq(batch, other));
                if local.drop_if_alone(is_batch) == Some(false) {
                    pool.share(self, local); // a search may have found the deque empty meanwhile
                }
            }
            let ran = self.run_one(expired, local);
            if left == 0 || !pool.continues_batch(self, local, ran) {
                local.set_rest_of_batch(0);
                return ran;
            }
        }
        local.set_rest_of_batch(0);
        local.count_other();
        false
    }

    /// A thread of the pool has a tick or waker. Returns whether a callback or waker ran here. A
    /// deferred tick queues behind all waiting jobs.
    #[inline(always)] // a call would pass the tick through memory
    fn run_one(&self, expired: Expired, local: &LocalQueue<Job>) -> bool {
        match (&self.parts().executor, expired) {
            (Some(executor), Expired::Tick(firing)) if firing.entry.is_callback() => {
                local.count_other(); // the firing begins on the executor
                self.hand_callback_over(executor, firing);
                false
            }
            (_, Expired::Tick(firing)) => self.run_firing(firing, |deferred| self.submit(Expired::Tick(deferred))),
            (_, Expired::Waker(waker)) => {
                local.count_waker();
                self.wake(waker);
                true
            }
        }
    }
}

impl Driver for Engine {
    type Job = Job;

    fn pool(&self) -> &Pool<Job> {
        &self.parts().pool
    }

    fn wait(&self, mut report: impl FnMut(Event)) {
        self.parts().alarms.wait(|event| match event {
            Event::WallSet => self.walls.step(),
            Event::Lost => self.end_for_loss(),
            event => report(event),
        });
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn wake(&self) {
        self.parts().alarms.wake();
        self.look_for_loss();
    }

    fn arm_stall_check(&self, after: Duration) {
        self.parts().alarms.arm_stall_check(after);
        self.look_for_loss();
    }

    fn sweep(&self, queue: usize, local: &LocalQueue<Job>) -> Option<Job> {
        self.shard(queue).fetch();
        let mut batch = Batch::new();
        let (swept, cover) =
            self.sweep_batch(self.shard(queue), |expired, scheduled, _| batch.push(expired, scheduled));
        local.cover(queue, cover);
        let spare = || match self.parts().pool.take_spare(local) {
            Some(Job::Batch(spare)) => Some(spare),
            _ => None,
        };
        let first = batch.take_job(spare);
        if swept == Swept::Done {
            return first;
        }
        let more = Job::Sweep(queue as u32);
        if first.is_none() {
            return Some(more);
        }
        // Another thread takes this job, and so sweeps a batch of its own.
        self.parts().pool.push_local(local, more);
        first
    }

    /// Callbacks that name no runtime use the runtime of their thread.
    fn adopt(work: &Arc<Self>) {
        drop(super::current::replace(Some(super::CoreRef::new(work))));
    }

    /// All shards were closed before the pool was stopped, so none sets its alarm any more.
    fn no_more_waits(&self) {
        self.parts().alarms.release();
    }

    fn threads_changed(work: &Arc<Self>, refused: Option<&io::Error>) {
        work.pool_news.send(work, refused);
    }

    fn release(&self) {
        drop(super::current::replace(None));
    }

    /// The portable alarm promises that a sandbox refuses none of its calls.
    fn may_open_files(&self) -> bool {
        matches!(self.parts().alarms, AlarmSet::System(_))
    }

    fn is_covered(&self, queue: usize) -> bool {
        self.shard(queue).lock().covers
    }

    fn sweep_relying(&self, queue: usize, sweep: impl FnMut(usize)) {
        if let Some(alarms) = self.shared_alarms(queue) {
            alarms.take_due(|| self.clock.now(), sweep);
        }
    }

    fn discard(&self, job: Job) {
        match job {
            Job::One { expired, .. } => self.discard_one(expired),
            Job::Batch(batch) => {
                while let Some((expired, _)) = batch.take() {
                    self.discard_one(expired);
                }
            }
            Job::Sweep(_) => {}
        }
    }

    fn run(&self, job: Job, local: &LocalQueue<Job>) -> bool {
        let job = match job {
            Job::Sweep(queue) => {
                let first = self.sweep(queue as usize, local);
                self.parts().pool.replace_cover(self, local);
                let Some(first) = first else {
                    local.count_other();
                    return false;
                };
                self.parts().pool.share(self, local);
                first
            }
            job => job,
        };
        match job {
            Job::One { expired, due } => {
                let ran = self.run_one(expired, local);
                local.record_lateness(due, u64::from(ran));
                ran
            }
            Job::Batch(mut batch) => {
                let before = local.useful();
                let ran = self.run_batch(&batch, local);
                local.record_lateness(batch.earliest(), local.useful() - before + u64::from(ran));
                // The last thread to have the batch: firing allocates no memory.
                if Arc::get_mut(&mut batch).is_some() {
                    self.parts().pool.keep_spare(local, Job::Batch(batch));
                }
                ran
            }
            Job::Sweep(_) => {
                // No tick was claimed in that section.
                local.count_other();
                self.parts().pool.push_local(local, job);
                self.parts().pool.share(self, local);
                false
            }
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    use std::time::Instant;

    use super::*;
    use crate::engine::lead::Lead;
    use crate::runtime::{ManualClock, Runtime};
    use crate::sync::AtomicUsize;
    use crate::timer::Tick;

    impl Engine {
        /// A batch of a sweep.
        fn sweep_into(&self, shard: &Shard, put: impl FnMut(InOrder)) -> Swept {
            let mut batch = Batch::new();
            let (swept, _) = self.sweep_batch(shard, |expired, scheduled, number_of_waker| {
                batch.push(InOrder { scheduled, number_of_waker, expired }, 0);
            });
            batch.drain().for_each(put);
            swept
        }
    }

    /// A call of `sweep_into` emits at most a batch, and releases the lock, so that waiting threads
    /// get the lock in between.
    #[test]
    fn s30_timers_due_at_one_instant_are_swept_in_steps() {
        const MANY: usize = 20_000;
        const SOON: Duration = Duration::from_millis(1);
        // Due in a slot that has been cascaded, or in a slot cascaded by this sweep.
        for windows_ahead in [0, 5] {
            let due = SOON + windows_ahead * Duration::from_millis(333);
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let timers: Vec<_> = (0..MANY).map(|_| runtime.timer(due, Duration::MAX, |_| {})).collect();
            clock.stall(due);
            let engine = runtime.engine();
            let shard = engine.shards().next().expect("one queue");
            let (mut fires, mut sections) = (Vec::new(), 0);
            loop {
                let before = fires.len();
                let swept = engine.sweep_into(shard, |fire| {
                    assert!(shard.inner.try_lock().is_some(), "the lock has been given back");
                    fires.push(fire);
                });
                sections += 1;
                let handed_out = fires.len() - before;
                assert!(handed_out <= BATCH, "{handed_out} in one lock section");
                if swept != Swept::More {
                    break;
                }
            }
            assert_eq!((fires.len(), runtime.active_timers()), (MANY, 0));
            assert!(sections <= 3 * MANY.div_ceil(BATCH), "each section gets on: {sections}");
            drop((fires, timers));
        }
    }

    /// Timeouts that were moved later stay in the slots of earlier windows. Neither callbacks nor
    /// the alarm wait until they are inserted again, and at most a single wake-up is spent on them.
    #[test]
    fn s32_timers_that_were_moved_later_are_inserted_again_by_a_sweep_that_finds_nothing_due() {
        const WINDOW: Duration = Duration::from_millis(333);
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let soon = runtime.timer(Duration::from_millis(5), Duration::MAX, |_| {});
        // Fewer in each window than a batch, and more in all.
        let timers: Vec<_> = (0..200).map(|i| runtime.timer(WINDOW * (2 + i % 10), Duration::MAX, |_| {})).collect();
        for timer in &timers {
            assert!(timer.change(WINDOW * 90, Duration::MAX).was_waiting());
        }
        let shard = runtime.engine().shards().next().expect("one queue");
        // A single call per sweep.
        let sweep = || {
            let mut fires = Vec::new();
            assert!(runtime.engine().sweep_into(shard, |fire| fires.push(fire)) == Swept::Done);
            (fires.len(), Duration::from_nanos(shard.lock().armed))
        };
        let start = Duration::from_nanos(clock.now().as_duration().as_nanos() as u64);
        clock.stall(Duration::from_millis(5));
        assert_eq!(sweep(), (1, start + WINDOW * 2), "an alarm is set at once, if for nothing");
        clock.stall(WINDOW * 2 - Duration::from_millis(5));
        let (fired, armed) = sweep();
        assert!(fired == 0 && armed > start + WINDOW * 89, "then it is known when there is something: {armed:?}");
        drop((soon, timers));
    }

    /// Futures whose deadline moves on with each message: a sweep at the first old deadline finds
    /// the true deadlines of all.
    #[test]
    fn s32_delays_that_were_reset_cost_one_empty_sweep() {
        const LENGTH: Duration = Duration::from_millis(25);
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let mut context = Context::from_waker(Waker::noop());
        let mut delays = Vec::new();
        for _ in 0..50 {
            let mut delay = runtime.delay(LENGTH);
            assert!(Pin::new(&mut delay).poll(&mut context).is_pending());
            delays.push(delay);
            clock.stall(Duration::from_micros(400));
        }
        for delay in &mut delays {
            delay.reset(LENGTH);
        }
        let shard = runtime.engine().shards().next().expect("one queue");
        let true_deadline = clock.now() + LENGTH;
        clock.stall(Duration::from_millis(5));
        assert!(runtime.engine().sweep_into(shard, |_| panic!("nothing is due")) == Swept::Done);
        assert_eq!(shard.lock().armed, true_deadline.as_ns());
    }

    /// Two callbacks of a batch each wait for the other, and the alarm that covers the stall check
    /// belongs to a timer that is gone when the alarm expires.
    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s31_a_callback_that_blocks_strands_no_other_where_an_alarm_covers_the_stall_check() {
        const MS: Duration = Duration::from_millis(1);
        fn wait_for(count: &AtomicUsize, least: usize) {
            let begun = Instant::now();
            while count.load(Ordering::Acquire) < least {
                assert!(begun.elapsed() < Duration::from_secs(60), "a callback waits behind one that blocks");
                std::thread::yield_now();
            }
        }
        let runtime = Runtime::builder().start().expect("a runtime starts");
        for _ in 0..30 {
            let [ticks, begun] = [0; 2].map(|_| Arc::new(AtomicUsize::new(0)));
            let count = Arc::clone(&ticks);
            let tick = move |_: &Tick<'_>| _ = count.fetch_add(1, Ordering::Release);
            let quick = runtime.timer_builder().due(MS).period(MS).leeway(MS).start(tick);
            wait_for(&ticks, 8); // callbacks are short, so no worker wakes another for one of them
            let timers = [0; 2].map(|_| {
                let begun = Arc::clone(&begun);
                runtime.timer_builder().due(3 * MS).leeway(MS).start(move |_| {
                    begun.fetch_add(1, Ordering::Release);
                    wait_for(&begun, 2);
                })
            });
            wait_for(&begun, 1);
            drop(quick);
            wait_for(&begun, 2);
            drop(timers);
        }
    }

    /// A thread sweeps some microseconds before the deadline, as if woken by an early alarm.
    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s05_a_sweep_that_comes_before_the_deadline_waits_for_it() {
        let runtime = Runtime::builder().start().expect("a runtime starts");
        let engine = runtime.engine();
        for _ in 0..50 {
            let timer = runtime.once(Duration::from_millis(2), |_| {});
            // None, where the timer has fired before this thread went on.
            let Some(shard) = engine.shards().find(|shard| shard.lock().queue.len() > 0) else { continue };
            let due = shard.lock().armed;
            while engine.clock.now() < due - Lead::MOST_NS * 9 / 10 {
                std::hint::spin_loop();
            }
            shard.lock().lead.has_expired();
            // None, where a thread of the pool was first.
            let swept = engine.sweep_into(shard, |fire| assert!(engine.clock.now() >= fire.scheduled, "early"));
            assert!(swept == Swept::Done);
            drop(timer);
        }
    }

    /// The alarm of a busy queue is delayed, so that timers due shortly after the next timer fire
    /// in the same sweep. The alarm of a queue with few timers is not.
    #[test]
    fn the_alarm_of_a_busy_queue_waits_for_what_comes_due_soon_after() {
        let behind = |timers: u32, period: Duration| {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let step = period / timers;
            let _timers: Vec<_> = (1..=timers).map(|i| runtime.timer(step * i, period, |_| {})).collect();
            let engine = runtime.engine();
            let shard = engine.shards().next().expect("one queue");
            for _ in 0..10 * timers {
                clock.stall(step);
                let mut fires = Vec::new();
                assert!(engine.sweep_into(shard, |fire| fires.push(fire)) == Swept::Done);
                assert_eq!(fires.len(), 1);
                for fire in fires {
                    assert!(engine.run_by_hand(fire, |_| {}));
                }
            }
            let inner = shard.lock();
            Duration::from_nanos(inner.armed - inner.queue.next_deadline())
        };
        assert_eq!(behind(2, Duration::from_millis(100)), Duration::ZERO);
        let late = behind(50, Duration::from_millis(1));
        assert!(late > Duration::from_micros(100) && late <= Duration::from_micros(200), "{late:?}");
        let late = behind(10, Duration::from_micros(100));
        assert_eq!(late, Duration::from_micros(25 - 10), "a quarter of the period at most");
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/batch_vs_stop.rs"]
mod loom_models;
