//! Sweeps: due timers leave their queue and become ticks of the pool, or, on a manual clock, of the
//! driver.
//!
//! Ground rules. The thread that has taken the alarm of a queue calls [`Driver::sweep`], or the
//! driver of a manual clock [`Engine::sweep_by_hand`]; it holds no lock. A sweep is a sequence of
//! lock sections: under the lock of the shard due entries are claimed and collected, and the alarm
//! is set. Nothing runs here: the pool makes a job of what was collected.

#![allow(unsafe_code)] // entries that the queue has just emitted

use super::lead::Lead;
use super::shard::SWEEPING;
use super::{Engine, Expired, Shard};
use crate::alarm::Backend;
use crate::pool::{BATCH, Batch, COVERS_WITHIN_NS, Driver, News, Pool, Swept};
use crate::queue::{Kind, Next, Period};
use crate::unwind::contain;

/// Entries cascaded ahead of time in a lock section whose batch was full.
const AHEAD: usize = 96;
/// For a deadline closer than this the clock is read again before the alarm is set: setting an
/// alarm to a past instant costs more than reading the clock.
const NEAR_NS: u64 = 20_000;

impl Driver for Engine {
    type Tick = Expired;
    type Alarms = Box<dyn Backend>;

    fn pool(&self) -> &Pool<Self> {
        &self.parts().pool
    }

    #[inline]
    fn sweep(&self, queue: usize, batch: &mut Batch<Expired>) -> Swept {
        let shard = self.shard(queue);
        shard.fetch();
        shard.sweep_batch(true, |expired, due, _| batch.push(expired, due))
    }

    #[inline]
    fn queues(&self, alarm: usize) -> impl Iterator<Item = usize> {
        let own = (alarm < self.shards.len()).then_some(alarm);
        let shared = if own.is_none() { Some(self.take_shared(alarm)) } else { None };
        own.into_iter().chain(shared.into_iter().flatten())
    }

    fn is_covered(&self, queue: usize) -> bool {
        self.shard(queue).lock().covers
    }

    fn tell(&self, news: News<'_>) {
        match news {
            // Callbacks that name no runtime use the runtime of their thread.
            News::ThreadBegins => {
                let core = self.me.upgrade().map(|engine| super::CoreRef::new(&engine));
                drop(super::current::replace(core));
                self.hooks.thread_begins.iter().for_each(|hook| contain(self, hook));
            }
            News::ThreadEnds => {
                self.hooks.thread_ends.iter().for_each(|hook| contain(self, hook));
                drop(super::current::replace(None));
            }
            News::ThreadsChanged(refused) => {
                _ = self.me.upgrade().map(|engine| self.pool_news.send(&engine, refused));
            }
            News::WallSet => self.walls.step(),
            News::Lost => self.end_for_loss(),
            News::LossFound => self.look_for_loss(),
        }
    }
}

impl Shard {
    /// Gives due entries to `put`, at most [`BATCH`], each with its due point and, if it is a
    /// waker, with its number. (Single values: a struct of them would go through memory.) Then sets
    /// the alarm, unless more are due.
    ///
    /// `wakes`: real time, so timers that come due meanwhile may be swept at once.
    #[inline]
    pub(super) fn sweep_batch(&self, wakes: bool, mut put: impl FnMut(Expired, u64, u64)) -> Swept {
        let mut swept = Swept::default();
        // A lock section. One that puts no entry, and has more entries to insert again, is followed
        // by the next at once: else the alarm would be set after the callbacks of other jobs.
        loop {
            let mut inner = self.lock();
            if !inner.is_open() {
                return swept;
            }
            inner.queue.fetch(inner.armed);
            let mut now = self.clock.now();
            let deadline = inner.armed;
            if wakes && inner.lead.is_early(deadline, now) {
                drop(inner);
                (0..Lead::MOST_LOOKS).take_while(|_| self.clock.now() < deadline).for_each(|_| std::hint::spin_loop());
                continue;
            }
            swept.took_cover |= std::mem::take(&mut inner.covers);
            inner.armed = SWEEPING;
            let mut work = BATCH;
            let (mut fired, mut shortest) = (0, Period::NONE);
            loop {
                match inner.queue.next_due(now, &mut work) {
                    Next::Due(node) => {
                        // SAFETY: emitted by the queue with the list's reference, so alive.
                        let (schedule, kind) =
                            unsafe { (node.as_ref().schedule(inner.queue.key()), node.as_ref().kind()) };
                        let scheduled = schedule.due;
                        shortest = shortest.min(schedule.period);
                        // SAFETY (three): emitted by the queue: due, unlinked, with the list's
                        // reference.
                        #[allow(clippy::undocumented_unsafe_blocks)]
                        if kind == Kind::Waker {
                            let number_of_waker = unsafe { node.as_ref().state.number() };
                            if let Some(waker) = unsafe { inner.take_waker(node) } {
                                fired += 1;
                                put(Expired::Waker(waker), scheduled, number_of_waker);
                            }
                        } else if let Some(firing) = unsafe { inner.claim(self, node, now) } {
                            fired += 1;
                            put(Expired::Tick(firing), scheduled, 0);
                        }
                    }
                    Next::Exhausted => {
                        inner.queue.cascade_ahead(now, AHEAD);
                        inner.tally.claimed += fired;
                        inner.coalescer.fired(now, fired, shortest.as_ns());
                        return Swept { more: true, ..swept };
                    }
                    // An alarm may turn out too early once, but not again and again.
                    Next::Nothing if fired == 0 && !inner.queue.look_ahead(&mut work) => break,
                    Next::Nothing => {
                        let next = inner.queue.next_deadline();
                        // An entry of the agenda at the present instant would be swept again, for
                        // ever.
                        assert!(next > now || wakes, "a sweep at {now} leaves behind what is due at {next}");
                        let busy = fired > 0 && inner.coalescer.wait_ns() > 0;
                        if !busy && next <= now.saturating_add(NEAR_NS) && wakes {
                            let later = self.clock.now();
                            if next <= later {
                                now = later;
                                continue;
                            }
                        }
                        inner.coalescer.fired(now, fired, shortest.as_ns());
                        inner.tally.claimed += fired;
                        inner.arm_after_sweep(self, next, now, deadline);
                        inner.covers = fired > 0 && wakes && inner.armed.saturating_sub(now) <= COVERS_WITHIN_NS;
                        return Swept { gives_cover: inner.covers, ..swept };
                    }
                }
            }
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::InOrder;
    use crate::runtime::{ManualClock, Runtime};
    use crate::sync::{Arc, AtomicUsize, Ordering};
    use crate::timer::Tick;
    use crate::{Delay, OnceTimer, Timer, TimerBuilder};

    impl Engine {
        /// A batch of a sweep. Returns whether more are due.
        fn sweep_into(&self, shard: &Shard, put: impl FnMut(InOrder)) -> bool {
            let mut batch = Batch::new();
            let swept = shard.sweep_batch(self.native.is_some(), |expired, scheduled, number_of_waker| {
                batch.push(InOrder { scheduled, number_of_waker, expired }, 0);
            });
            batch.drain().for_each(put);
            swept.more
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
            let timers: Vec<_> = (0..MANY).map(|_| Timer::on(&runtime, due, Duration::MAX, |_| {})).collect();
            clock.stall(due);
            let engine = runtime.engine();
            let shard = engine.shards().next().expect("one queue");
            let (mut fires, mut sections) = (Vec::new(), 0);
            loop {
                let before = fires.len();
                let more = engine.sweep_into(shard, |fire| {
                    assert!(shard.inner.try_lock().is_some(), "the lock has been given back");
                    fires.push(fire);
                });
                sections += 1;
                let handed_out = fires.len() - before;
                assert!(handed_out <= BATCH, "{handed_out} in one lock section");
                if !more {
                    break;
                }
            }
            assert_eq!((fires.len(), runtime.metrics().active), (MANY, 0));
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
        let soon = Timer::on(&runtime, Duration::from_millis(5), Duration::MAX, |_| {});
        // Fewer in each window than a batch, and more in all.
        let timers: Vec<_> =
            (0..200).map(|i| Timer::on(&runtime, WINDOW * (2 + i % 10), Duration::MAX, |_| {})).collect();
        for timer in &timers {
            assert!(timer.change(WINDOW * 90, Duration::MAX).was_waiting());
        }
        let shard = runtime.engine().shards().next().expect("one queue");
        // A single call per sweep.
        let sweep = || {
            let mut fires = Vec::new();
            assert!(!runtime.engine().sweep_into(shard, |fire| fires.push(fire)));
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
            let mut delay = Delay::on(&runtime, LENGTH);
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
        assert!(!runtime.engine().sweep_into(shard, |_| panic!("nothing is due")));
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
            let quick = TimerBuilder::on(&runtime).due(MS).period(MS).leeway(MS).start(tick);
            wait_for(&ticks, 8); // callbacks are short, so no worker wakes another for one of them
            let timers = [0; 2].map(|_| {
                let begun = Arc::clone(&begun);
                TimerBuilder::on(&runtime).due(3 * MS).leeway(MS).start(move |_| {
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
            let timer = OnceTimer::on(&runtime, Duration::from_millis(2), |_| {});
            // None, where the timer has fired before this thread went on.
            let armed = |shard| {
                let state = Shard::lock(shard);
                (state.queue.len() > 0).then_some((shard, state.armed))
            };
            let Some((shard, due)) = engine.shards().find_map(armed) else { continue };
            while engine.clock.now() < due - Lead::MOST_NS * 9 / 10 {
                std::hint::spin_loop();
            }
            shard.lock().lead.has_expired();
            // None, where a thread of the pool was first.
            let more = engine.sweep_into(shard, |fire| assert!(engine.clock.now() >= fire.scheduled, "early"));
            assert!(!more);
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
            let _timers: Vec<_> = (1..=timers).map(|i| Timer::on(&runtime, step * i, period, |_| {})).collect();
            let engine = runtime.engine();
            let shard = engine.shards().next().expect("one queue");
            for _ in 0..10 * timers {
                clock.stall(step);
                let mut fires = Vec::new();
                assert!(!engine.sweep_into(shard, |fire| fires.push(fire)));
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
