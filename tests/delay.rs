//! What a delay promises: S35 to S37, its half of S50, and how it learns that its runtime has ended (S33).
//!
//! Ground rules. Delays are polled by hand on virtual time, where every wake-up can be counted; the tests on real time are
//! there for races between a delay and the thread that fires it, and assert "never early", "never lost" and "nothing is
//! left behind".

mod common;
mod hand;

use std::error::Error as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{Count, Gate, Journal, NEVER, PATIENCE, Random, block_on, eventually, lock, manual, ms, native, ns, secs};
use common::{us, within};
use hand::{Bell, Grumpy, panics, poll, poll_with, waker_that};
use timerqueue::{
    CancelReason, CancellableDelay, CancellationToken, CancellationTokenSource, Cancelled, Delay, Runtime,
    RuntimeError, StartError, Timestamp,
};

const READY: Poll<()> = Poll::Ready(());

/// Whether the delay says that its runtime has ended when it is asked, and else stays pending.
fn has_ended(delay: &mut Delay, bell: &Bell) -> bool {
    let tried = delay.poll_try_wait(&mut Context::from_waker(&bell.waker()));
    poll(delay, bell).is_pending() && matches!(tried, Poll::Ready(Err(RuntimeError::Ended)))
}

// ------------------------------------------------------------------------------------------- S35: a future for any executor

#[test]
fn s35_a_delay_can_be_sent_shared_and_moved() {
    fn any_executor_will_do<T: Send + Sync + Unpin + 'static>() {}
    any_executor_will_do::<Delay>();
    any_executor_will_do::<CancellableDelay>();
    any_executor_will_do::<RuntimeError>();
}

#[test]
fn s35_the_deadline_counts_from_the_making_not_from_the_first_poll() {
    let (clock, runtime) = manual();
    let mut delay = runtime.delay(secs(10));
    assert_eq!(delay.deadline(), clock.now() + secs(10));
    clock.advance(secs(4));
    let bell = Bell::new();
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(secs(6) - ns(1));
    assert_eq!((bell.rings(), delay.is_elapsed()), (0, false), "a nanosecond before");
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(ns(1));
    assert_eq!((bell.rings(), delay.is_elapsed()), (1, true), "on the nanosecond");
    assert_eq!(poll(&mut delay, &bell), READY);
}

#[test]
fn s35_exact_whatever_the_length() {
    let lengths =
        [1, 999, 262_143, 262_145, 332_999_999, 333_000_001, 1_234_567_891, 341_000_000_001, 1 << 50, 1 << 60];
    for origin in [0, 1, 332_999_999, 333_000_001, 1024 * 333_000_000] {
        let (clock, runtime) = manual();
        clock.advance(ns(origin));
        let bells = lengths.map(|_| Bell::new());
        let mut delays = lengths.map(|length| runtime.delay(ns(length)));
        for (delay, bell) in delays.iter_mut().zip(&bells) {
            assert!(poll(delay, bell).is_pending());
        }
        for (i, length) in lengths.into_iter().enumerate() {
            let at = ns(origin + length);
            clock.advance(at - ns(1) - clock.now().as_duration());
            assert_eq!(bells[i].rings(), 0, "{length} ns from {origin}: early");
            clock.advance(ns(1));
            assert_eq!(bells[i].rings(), 1, "{length} ns from {origin}: late");
            assert_eq!(poll(&mut delays[i], &bells[i]), READY);
        }
        assert!(bells.iter().all(|bell| bell.rings() == 1 && bell.kept() == 0));
    }
}

#[test]
fn s35_it_takes_its_place_in_a_queue_at_the_first_pending_poll() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let mut delay = runtime.delay(secs(5));
    let never_polled = runtime.delay(secs(3));
    clock.advance(secs(1));
    assert_eq!((runtime.active_timers(), runtime.next_due()), (0, None));
    assert!(poll(&mut delay, &bell).is_pending());
    assert_eq!((runtime.active_timers(), runtime.next_due()), (1, Some(delay.deadline())));
    assert!(poll(&mut delay, &bell).is_pending());
    assert_eq!(runtime.active_timers(), 1, "once, however often it is polled");
    clock.advance(secs(10));
    assert_eq!((runtime.active_timers(), runtime.fired()), (0, 1));
    drop(never_polled);
}

#[test]
fn s35_ready_at_the_first_poll_touches_no_queue() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let mut at_once = runtime.delay(Duration::ZERO);
    let mut passed = runtime.delay(secs(1));
    clock.advance(secs(1));
    assert_eq!(poll(&mut at_once, &bell), READY);
    assert_eq!(poll(&mut passed, &bell), READY);
    assert_eq!((runtime.active_timers(), clock.advance(secs(10)), bell.rings(), bell.kept()), (0, 0, 0, 0));
}

#[test]
fn s35_ready_stays_ready() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let mut delay = runtime.delay(secs(1));
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(secs(1));
    for _ in 0..3 {
        assert_eq!(poll(&mut delay, &bell), READY);
        clock.advance(secs(1));
    }
    assert_eq!((bell.rings(), bell.kept(), runtime.active_timers()), (1, 0, 0));
    delay.reset(secs(1));
    assert!(poll(&mut delay, &bell).is_pending(), "until it is reset");
}

#[test]
fn s35_until_an_instant_of_the_clock() {
    let (clock, runtime) = manual();
    clock.advance(secs(7));
    let bell = Bell::new();
    let mut delay = runtime.delay_until(clock.now() + secs(2));
    let mut passed = runtime.delay_until(clock.now());
    assert_eq!(poll(&mut passed, &bell), READY);
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(secs(2));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, READY));
}

#[test]
fn s35_a_delay_without_end_never_ends() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let endless = [NEVER, ns(u64::MAX), ns(u64::MAX) + ns(1), secs(u64::MAX / 2)];
    let mut delays = endless.map(|after| runtime.delay(after));
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell).is_pending()));
    clock.advance(secs(500 * 365 * 24 * 3600));
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell).is_pending()));
    assert_eq!(bell.rings(), 0);
    delays[0].reset(secs(1));
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut delays[0], &bell)), (1, READY), "unless it is given one");
}

#[test]
fn s35_a_pending_delay_can_be_moved() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    for (first, then) in [(10, 20), (20, 10), (10, 10), (10, 3600), (3600, 10), (400, 1), (1, 0)] {
        let mut delay = runtime.delay(ms(first));
        assert!(poll(&mut delay, &bell).is_pending());
        let before = bell.rings();
        delay.reset(ms(then));
        assert_eq!(delay.deadline(), clock.now() + ms(then));
        if then > 0 {
            clock.advance(ms(then) - ns(1));
            assert_eq!(bell.rings(), before, "{first} to {then} ms: nobody is woken for the old deadline");
            clock.advance(ns(1));
        } else {
            clock.advance(Duration::ZERO);
        }
        assert_eq!(bell.rings(), before + 1, "{first} to {then} ms: the task that waits is woken without a poll");
        assert_eq!(poll(&mut delay, &bell), READY);
    }
}

#[test]
fn s35_moved_by_deadline_to_never_and_back() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let mut delay = runtime.delay(secs(1));
    assert!(poll(&mut delay, &bell).is_pending());
    delay.reset(NEVER);
    clock.advance(secs(10));
    assert!(poll(&mut delay, &bell).is_pending());
    assert_eq!(bell.rings(), 0);
    let deadline = clock.now() + secs(3);
    delay.reset_at(deadline);
    assert_eq!(delay.deadline(), deadline);
    clock.advance(secs(3));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, READY));
    delay.reset_at(deadline);
    assert_eq!(poll(&mut delay, &bell), READY, "a deadline that has passed");
    delay.reset_at(clock.now() + secs(1));
    assert!(poll(&mut delay, &bell).is_pending());
    delay.reset_at(deadline);
    assert_eq!(poll(&mut delay, &bell), READY, "and for one that was pending");
    assert_eq!((runtime.active_timers(), bell.rings(), bell.kept()), (0, 1, 0));
}

#[test]
fn s35_a_reset_while_the_delay_is_about_to_fire() {
    // The hands have passed the deadline, but nobody has swept yet: the reset comes first.
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let mut delay = runtime.delay(secs(1));
    assert!(poll(&mut delay, &bell).is_pending());
    clock.stall(secs(2));
    delay.reset(secs(1));
    clock.advance(secs(1) - ns(1));
    assert_eq!(bell.rings(), 0);
    clock.advance(ns(1));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, READY));

    // It has been taken up for firing, together with a timer that is called first and resets it.
    let delay = Arc::new(Mutex::new(runtime.delay(secs(1))));
    let resetting = runtime.once(secs(1), {
        let delay = Arc::clone(&delay);
        move |_| lock(&delay).reset(secs(1))
    });
    assert!(poll(&mut *lock(&delay), &bell).is_pending());
    clock.advance(secs(1));
    assert_eq!((bell.rings(), runtime.active_timers()), (1, 1), "the old firing is void");
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut *lock(&delay), &bell)), (2, READY));
    drop(resetting);
}

/// One of several delays that are driven at random, and what must be true of it.
struct Model {
    delay: Delay,
    deadline: Timestamp,
    done: bool,
    /// The waker that must be called when the deadline comes.
    waits: Option<usize>,
}

#[test]
fn s35_random_polls_resets_and_time_against_a_model() {
    let mut random = Random(35);
    for _round in 0..20 {
        let (clock, runtime) = manual();
        let origin = clock.now();
        clock.advance(ns(random.below(2_000_000_000)));
        let rung = Journal::new();
        let wakers: [Waker; 3] = std::array::from_fn(|i| {
            let (rung, clock) = (rung.clone(), clock.clone());
            waker_that(move || rung.push((clock.now(), i)))
        });
        let length = |random: &mut Random| match random.below(8) {
            0 => Duration::ZERO,
            1 => NEVER,
            2 => secs(random.below(1_000)),
            _ => ns(random.below(1_000_000_000)),
        };
        let mut models: Vec<Model> = (0..6)
            .map(|_| {
                let delay = runtime.delay(length(&mut random));
                Model { deadline: delay.deadline(), delay, done: false, waits: None }
            })
            .collect();
        for _step in 0..600 {
            let now = clock.now();
            let at = random.below(6) as usize;
            let model = &mut models[at];
            match random.below(10) {
                0..=3 => {
                    let who = random.below(3) as usize;
                    model.done |= now >= model.deadline;
                    model.waits = (!model.done).then_some(who);
                    let want = if model.done { READY } else { Poll::Pending };
                    assert_eq!(poll_with(&mut model.delay, &wakers[who]), want);
                }
                4..=5 => {
                    let after = length(&mut random);
                    model.delay.reset(after);
                    (model.deadline, model.done) = (now + after, false);
                }
                6 => {
                    // In the past or in the future.
                    let deadline = origin + now.as_duration().saturating_sub(ms(200)) + ms(random.below(500));
                    model.delay.reset_at(deadline);
                    (model.deadline, model.done) = (deadline, false);
                }
                7 => clock.stall(ns(random.below(400_000_000))),
                _ => {
                    let until = now + ns(random.below(400_000_000));
                    clock.advance(until - now);
                    let mut want = Vec::new();
                    for model in models.iter_mut().filter(|model| model.deadline <= until) {
                        want.extend(model.waits.take().map(|who| (model.deadline.max(now), who)));
                    }
                    let mut got = rung.take();
                    want.sort();
                    got.sort();
                    assert_eq!(got, want, "each at its instant, each once, and nobody else");
                }
            }
            let waiting = models.iter().filter(|model| model.waits.is_some()).count();
            assert_eq!(runtime.active_timers(), waiting, "filed if and only if somebody waits");
            assert_eq!(rung.len(), 0, "woken by the clock alone");
        }
    }
}

#[test]
fn s35_resets_against_the_firing_thread_are_never_early_and_never_lost() {
    within(PATIENCE, "resetting delays that are about to fire", || {
        let runtime = native();
        let mut random = Random(351);
        let mut delay = runtime.delay(Duration::ZERO);
        let bell = Bell::new();
        for _ in 0..4_000 {
            delay.reset(us(20 + random.below(60)));
            let _ = poll(&mut delay, &bell);
            let until = runtime.now() + us(random.below(100));
            while runtime.now() < until {
                std::hint::spin_loop();
            }
            // Earlier, later, or just when it fires.
            delay.reset(us(random.below(80)));
            let deadline = delay.deadline();
            block_on(&mut delay);
            assert!(runtime.now() >= deadline, "early");
        }
        eventually("it is filed no more", || runtime.active_timers() == 0);
    });
}

#[test]
fn s35_never_early_and_near_at_best_on_real_time() {
    let runtime = native();
    let mut best = Duration::MAX;
    for i in 0..60 {
        let (started, before) = (Instant::now(), runtime.now());
        let after = us(i * 50);
        let mut delay = runtime.delay(after);
        block_on(&mut delay);
        let (now, late) = (runtime.now(), started.elapsed().checked_sub(after));
        assert!(now >= before + after && now >= delay.deadline(), "early by the clock of the runtime");
        best = best.min(late.expect("not early by the clock of the standard library"));
    }
    assert!(best < ms(20), "near, at least once: {best:?}");
}

#[test]
fn s35_the_default_runtime_is_used_without_being_asked_for() {
    let before = Runtime::global().expect("starts").now();
    let mut delay = Delay::new(ms(1));
    assert!(delay.deadline() >= before + ms(1));
    block_on(&mut delay);
    assert!(Runtime::global().expect("started").now() >= delay.deadline() && delay.is_elapsed());
    let deadline = delay.deadline() + ms(1);
    block_on(Delay::until(deadline));
    assert!(Runtime::global().expect("started").now() >= deadline);
}

// ------------------------------------------------------------------------------------------------------- S36: dropping

#[test]
fn s36_dropping_unlinks_at_once() {
    let (clock, runtime) = manual();
    let mut random = Random(36);
    let bell = Bell::new();
    let mut delays: Vec<Delay> = (0..1_000).map(|_| runtime.delay(ns(1 + random.below(10_000_000_000_000)))).collect();
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell).is_pending()));
    assert_eq!((runtime.active_timers(), bell.kept()), (1_000, 1_000));
    while !delays.is_empty() {
        let at = random.below(delays.len() as u64) as usize;
        drop(delays.swap_remove(at));
        assert_eq!((runtime.active_timers(), bell.kept()), (delays.len(), delays.len()), "the waker is gone, too");
        assert_eq!(runtime.next_due(), delays.iter().map(Delay::deadline).min());
    }
    assert_eq!((clock.advance(secs(100_000)), bell.rings()), (0, 0));
}

#[test]
fn s36_a_delay_dropped_by_its_own_waker() {
    let (clock, runtime) = manual();
    let slot: Arc<Mutex<Option<Delay>>> = Arc::default();
    let waker = waker_that({
        let slot = Arc::clone(&slot);
        move || drop(lock(&slot).take())
    });
    let mut delay = runtime.delay(secs(1));
    assert!(poll_with(&mut delay, &waker).is_pending());
    *lock(&slot) = Some(delay);
    clock.advance(secs(1));
    assert!(lock(&slot).is_none());
    assert_eq!((runtime.active_timers(), runtime.panics()), (0, 0));
}

#[test]
fn s36_a_delay_dropped_after_it_was_taken_up_for_firing() {
    // Two due at one instant, and the first to be woken drops the other.
    let (clock, runtime) = manual();
    let other: Arc<Mutex<Option<Delay>>> = Arc::default();
    let dropping = waker_that({
        let other = Arc::clone(&other);
        move || drop(lock(&other).take())
    });
    let bell = Bell::new();
    let (mut first, mut second) = (runtime.delay(secs(1)), runtime.delay(secs(1)));
    assert!(poll_with(&mut first, &dropping).is_pending());
    assert!(poll(&mut second, &bell).is_pending());
    *lock(&other) = Some(second);
    clock.advance(secs(1));
    assert_eq!((bell.rings(), bell.kept()), (0, 0));
    assert_eq!(poll(&mut first, &bell), READY);
}

#[test]
fn s36_delays_dropped_while_they_fire_leave_nothing_behind() {
    within(PATIENCE, "dropping delays that are about to fire", || {
        let runtime = native();
        let mut random = Random(361);
        for _ in 0..400 {
            let bells: Vec<Bell> = (0..32).map(|_| Bell::new()).collect();
            let mut delays: Vec<Delay> = bells.iter().map(|_| runtime.delay(us(60 + random.below(60)))).collect();
            for (delay, bell) in delays.iter_mut().zip(&bells) {
                let _ = poll(delay, bell);
            }
            for delay in delays {
                while !delay.is_elapsed() {
                    std::hint::spin_loop();
                }
                drop(delay);
            }
            eventually("all wakers are gone", || bells.iter().all(|bell| bell.kept() == 0));
            assert!(bells.iter().all(|bell| bell.rings() <= 1));
        }
        assert_eq!((runtime.active_timers(), runtime.panics()), (0, 0));
    });
}

// --------------------------------------------------------------------------------------------------------- S37: wakers

#[test]
fn s37_the_waker_of_the_latest_poll_is_called() {
    let (clock, runtime) = manual();
    let bells = [Bell::new(), Bell::new(), Bell::new()];
    let mut delay = runtime.delay(secs(1));
    for bell in &bells {
        assert!(poll(&mut delay, bell).is_pending());
        let kept: usize = bells.iter().map(Bell::kept).sum();
        assert_eq!((bell.kept(), kept), (1, 1), "the one before is dropped at once");
    }
    for _ in 0..3 {
        assert!(poll(&mut delay, &bells[2]).is_pending());
        assert_eq!(bells[2].kept(), 1, "the same one is not kept twice");
    }
    clock.advance(secs(1));
    assert_eq!(bells.each_ref().map(Bell::rings), [0, 0, 1]);
    assert_eq!(bells.each_ref().map(Bell::kept), [0, 0, 0]);
}

#[test]
fn s37_wakers_that_change_while_the_delay_fires_lose_no_wake_up() {
    within(PATIENCE, "changing wakers", || {
        let runtime = native();
        let mut random = Random(37);
        for _ in 0..3_000 {
            let mut delay = runtime.delay(us(20 + random.below(50)));
            let changes = random.below(200);
            for change in 0.. {
                // A waker of its own for each poll; nobody else keeps it.
                let (woken, wait) = mpsc::channel();
                let waker = waker_that(move || {
                    let _ = woken.send(());
                });
                if poll_with(&mut delay, &waker).is_ready() {
                    break;
                }
                drop(waker);
                if change >= changes {
                    // Disconnected: it is gone without having been called.
                    assert_eq!(wait.recv_timeout(PATIENCE), Ok(()), "the latest waker was not woken");
                }
            }
            assert!(runtime.now() >= delay.deadline());
        }
        assert_eq!(runtime.panics(), 0);
    });
}

#[test]
fn s37_no_lock_is_held_while_a_waker_is_called() {
    within(PATIENCE, "a waker that uses its own queue", || {
        let (clock, runtime) = manual();
        let done = Count::new();
        let make = |after: Duration| {
            let (runtime, clock, done) = (runtime.clone(), clock.clone(), done.clone());
            let kept: Mutex<Vec<Delay>> = Mutex::default();
            let mut delay = runtime.delay(after);
            let waker = waker_that(move || {
                let mut other = runtime.delay(secs(1));
                assert!(poll_with(&mut other, Waker::noop()).is_pending());
                other.reset(secs(2));
                assert!(runtime.active_timers() > 0 && runtime.next_due().is_some());
                drop(runtime.timer(ms(1), ms(1), |_| ()));
                lock(&kept).push(other);
                lock(&kept).truncate(1);
                let _ = (clock.next_due(), clock.advance(Duration::ZERO));
                done.bump();
            });
            assert!(poll_with(&mut delay, &waker).is_pending());
            delay
        };
        let delays = [make(secs(1)), make(secs(1)), make(secs(2))];
        clock.advance(secs(2));
        assert_eq!((done.get(), runtime.panics()), (3, 0));
        drop(delays);
    });
}

#[test]
fn s37_no_lock_is_held_while_a_waker_is_cloned_or_dropped() {
    within(PATIENCE, "wakers that use the queue when they are cloned and dropped", || {
        let (clock, runtime) = manual();
        let uses = Count::new();
        let task = || {
            let (runtime, uses) = (runtime.clone(), uses.clone());
            Grumpy::that(move || {
                let mut other = runtime.delay(secs(5));
                let _ = poll_with(&mut other, Waker::noop());
                other.reset(secs(1));
                let _ = runtime.active_timers();
                uses.bump();
            })
        };
        let wakers = [task().waker(), task().waker()];
        let mut woken = runtime.delay(secs(1));
        let mut dropped = runtime.delay(secs(2));
        let mut late = runtime.delay(secs(1)).with_token(&CancellationToken::none());
        for waker in &wakers {
            assert!(poll_with(&mut woken, waker).is_pending());
            assert!(poll_with(&mut dropped, waker).is_pending() && poll_with(&mut late, waker).is_pending());
        }
        clock.stall(secs(1));
        assert_eq!(poll_with(&mut late, &wakers[0]), Poll::Ready(Ok(())));
        clock.advance(Duration::ZERO);
        drop(dropped);
        let mut ended = runtime.delay(secs(1));
        assert!(poll_with(&mut ended, &wakers[0]).is_pending());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        // Cloned 7 times, replaced 3 times, given back, woken, dropped with its delay, woken by the end.
        assert!(uses.get() >= 14, "{}", uses.get());
    });
}

#[test]
fn s37_a_waker_that_panics_when_woken_hurts_nobody_else() {
    let (clock, runtime) = manual();
    let grumpy = Grumpy::on_wake();
    let bell = Bell::new();
    let mut delays: Vec<Delay> = (0..9).map(|_| runtime.delay(secs(1))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 3 == 1 { grumpy.waker() } else { bell.waker() };
        assert!(poll_with(delay, &waker).is_pending());
    }
    clock.advance(secs(1));
    assert_eq!((bell.rings(), grumpy.outbursts(), runtime.panics()), (6, 3, 3));
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell) == READY), "theirs are ready as well");
    assert_eq!((bell.kept(), grumpy.kept()), (0, 0));
}

#[test]
fn s37_a_panicking_waker_goes_to_the_panic_handler_and_stops_no_worker() {
    let told = Count::new();
    let runtime = Runtime::builder().queues(1).workers(2).on_panic({
        let told = told.clone();
        move |_| {
            told.bump();
        }
    });
    let runtime = runtime.start().expect("the system has threads and alarms");
    let (grumpy, bell) = (Grumpy::on_wake(), Bell::new());
    let mut delays: Vec<Delay> = (0..200).map(|i| runtime.delay(us(100 + 10 * i))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { grumpy.waker() } else { bell.waker() };
        let _ = poll_with(delay, &waker);
    }
    eventually("all are woken", || grumpy.kept() == 0 && bell.kept() == 0);
    assert!(bell.rings() <= 100);
    eventually("all are told", || told.get() == grumpy.outbursts() && runtime.panics() == told.get() as u64);
    delays.iter_mut().for_each(block_on);
    block_on(runtime.delay(ms(1)));
}

#[test]
fn s37_a_waker_that_panics_when_cloned_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let grumpy = Grumpy::new();
    let bell = Bell::new();
    let waker = grumpy.waker();
    let mut delay = runtime.delay(secs(1));
    Grumpy::set(&grumpy.on_clone, true);
    assert!(panics(|| poll_with(&mut delay, &waker)), "at the first poll");
    assert_eq!(runtime.active_timers(), 0);
    assert!(poll(&mut delay, &bell).is_pending());
    assert!(panics(|| poll_with(&mut delay, &waker)), "at a later poll");
    assert_eq!((runtime.active_timers(), bell.kept()), (1, 1), "it waits for the one before");
    clock.advance(secs(1));
    assert_eq!((bell.rings(), runtime.panics()), (1, 0));
    assert_eq!(poll_with(&mut delay, &waker), READY, "no clone is needed any more");
    drop(waker);
    assert_eq!(grumpy.kept(), 0);
}

#[test]
fn s37_a_waker_that_panics_when_dropped_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let grumpy = Grumpy::new();
    let waiting = || {
        let mut delay = runtime.delay(secs(1));
        assert!(poll_with(&mut delay, &grumpy.waker()).is_pending());
        assert_eq!(grumpy.kept(), 1);
        delay
    };
    // Replaced by a later poll.
    let mut replaced = waiting();
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut replaced, &bell)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept(), bell.kept()), (1, 0, 1), "the new one has taken its place");
    // Given back because the delay is ready.
    let mut ready = waiting();
    clock.stall(secs(1));
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut ready, &bell)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept(), poll(&mut ready, &bell)), (2, 0, READY));
    // Dropped with the delay.
    let dropped = waiting();
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept()), (3, 0));
    clock.advance(Duration::ZERO);
    assert_eq!((bell.rings(), runtime.active_timers(), poll(&mut replaced, &bell)), (1, 0, READY));
}

// --------------------------------------------------------------------------------------- S33: the end of the runtime

#[test]
fn s33_a_pending_delay_learns_that_its_runtime_was_shut_down() {
    let (clock, runtime) = manual();
    let bells = [Bell::new(), Bell::new(), Bell::new(), Bell::new()];
    let mut polled = runtime.delay(secs(1));
    let mut endless = runtime.delay(NEVER);
    let mut moved = runtime.delay(secs(1));
    let mut unpolled = runtime.delay(secs(1));
    let mut passed = runtime.delay(ms(1));
    assert!(poll(&mut polled, &bells[0]).is_pending());
    assert!(poll(&mut endless, &bells[1]).is_pending());
    assert!(poll(&mut moved, &bells[2]).is_pending());
    moved.reset(secs(2));
    clock.advance(ms(1));
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert_eq!(bells.each_ref().map(Bell::rings), [1, 1, 1, 0], "those who wait are told");
    assert!(has_ended(&mut polled, &bells[0]));
    assert!(has_ended(&mut endless, &bells[1]));
    assert!(has_ended(&mut moved, &bells[2]));
    assert!(has_ended(&mut unpolled, &bells[3]), "and so is who polls for the first time");
    assert_eq!(poll(&mut passed, &bells[3]), READY, "what had passed has passed");
    clock.advance(secs(5));
    assert!(has_ended(&mut polled, &bells[0]) && !polled.is_elapsed(), "the time after the end does not count");
    polled.reset(secs(1));
    assert!(has_ended(&mut polled, &bells[0]));
    clock.advance(secs(5));
    assert!(has_ended(&mut polled, &bells[0]));
    polled.reset(Duration::ZERO);
    assert!(has_ended(&mut polled, &bells[0]), "not even no time at all");
    assert!(has_ended(&mut runtime.delay(Duration::ZERO), &bells[0]));
    drop((polled, endless, moved, unpolled));
    assert!(bells.iter().all(|bell| bell.kept() == 0));
}

#[test]
fn s33_a_pending_delay_learns_that_the_last_handle_of_its_runtime_was_dropped() {
    for mut runtime in [Some(manual().1), Some(native())] {
        let bell = Bell::new();
        let mut delay = runtime.as_ref().expect("just made").delay(secs(3600));
        let mut unpolled = runtime.as_ref().expect("just made").delay(secs(3600));
        assert!(poll(&mut delay, &bell).is_pending());
        let clone = runtime.clone();
        runtime = None;
        assert_eq!((bell.rings(), poll(&mut delay, &bell)), (0, Poll::Pending), "there is another one");
        drop((clone, runtime));
        assert_eq!(bell.rings(), 1);
        assert!(has_ended(&mut delay, &bell) && has_ended(&mut unpolled, &bell));
        assert_eq!(bell.kept(), 0, "and no waker is kept");
        drop(delay);
        assert_eq!(bell.kept(), 0);
    }
}

#[test]
fn s33_a_shutdown_with_many_delays_and_wakers_that_panic() {
    let (_clock, runtime) = manual();
    let (bell, grumpy) = (Bell::new(), Grumpy::on_wake());
    let mut delays: Vec<Delay> = (0..1_000).map(|i| runtime.delay(secs(1 + i * i))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 10 == 3 { grumpy.waker() } else { bell.waker() };
        assert!(poll_with(delay, &waker).is_pending());
    }
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert_eq!((bell.rings(), grumpy.outbursts()), (900, 100));
    assert!(delays.iter_mut().all(|delay| has_ended(delay, &bell)));
}

#[test]
fn s33_a_shutdown_against_tasks_that_wait_hangs_nobody() {
    for round in 0..60 {
        within(PATIENCE, "waiting while the runtime is shut down", move || {
            let runtime = native();
            let ends = Journal::new();
            thread::scope(|scope| {
                for who in 0..3_u64 {
                    let (runtime, ends) = (&runtime, ends.clone());
                    scope.spawn(move || {
                        let mut random = Random(round * 10 + who);
                        let mut delay = runtime.delay(Duration::ZERO);
                        loop {
                            delay.reset(us(random.below(120)));
                            if random.below(4) == 0 {
                                let _ = poll_with(&mut delay, Waker::noop());
                                delay.reset(us(random.below(120)));
                            }
                            match block_on(delay.try_wait()) {
                                Ok(()) => assert!(delay.is_elapsed()),
                                Err(error) => break ends.push(error.to_string()),
                            }
                        }
                    });
                }
                block_on(runtime.delay(us(500 + round * 31)));
                runtime.shutdown(PATIENCE).expect("no callback blocks");
            });
            assert_eq!(ends.take(), [const { "the timer runtime was shut down" }; 3]);
        });
    }
}

#[test]
fn s33_a_delay_whose_firing_was_queued_when_the_runtime_ended_is_told() {
    // One thread is blocked and the other must watch: what comes due is queued, and discarded by the shutdown.
    let runtime = Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads");
    let (begun, gate) = (Gate::new(), Gate::new());
    let blocking = runtime.once(Duration::ZERO, {
        let (begun, gate) = (begun.clone(), gate.clone());
        move |_| {
            begun.open();
            gate.wait();
        }
    });
    begun.wait();
    let bell = Bell::new();
    let pending = || {
        let mut delay = runtime.delay(secs(3600));
        assert!(poll(&mut delay, &bell).is_pending());
        delay
    };
    // Few enough for one lock section of a sweep, also when a window has to be dealt: what is left then waits for a thread.
    let (mut delays, mut moved): (Vec<Delay>, _) = ((0..5).map(|_| pending()).collect(), pending());
    delays.iter_mut().for_each(|delay| delay.reset(ms(2)));
    let begin = Instant::now();
    moved.reset(ms(2));
    moved.reset(secs(3600));
    // What is moved later stays where it is filed, and is taken up there; unless it was taken up before it was moved.
    let filed_anew = usize::from(begin.elapsed() >= ms(2));
    eventually("all are taken up for firing", || runtime.active_timers() <= filed_anew);
    assert_eq!(bell.rings(), 0, "and nobody is there to wake their tasks");
    assert!(runtime.shutdown(Duration::ZERO).is_err(), "a callback blocks");
    eventually("all tasks are told", || bell.rings() == 6);
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell) == READY));
    assert!(has_ended(&mut moved, &bell));
    gate.open();
    drop(blocking);
}

#[test]
fn s33_a_delay_that_was_moved_later_is_told_when_the_runtime_ends_as_its_old_deadline_comes() {
    let (clock, runtime) = manual();
    let ending = runtime.once(secs(1), {
        let runtime = runtime.clone();
        move |_| runtime.shutdown(PATIENCE).expect("on a manual clock there is nothing to wait for")
    });
    let bell = Bell::new();
    let mut delay = runtime.delay(secs(1));
    assert!(poll(&mut delay, &bell).is_pending());
    delay.reset(secs(5));
    clock.advance(secs(1));
    assert!(bell.rings() == 1 && has_ended(&mut delay, &bell));
    drop(ending);
}

#[test]
fn s33_a_shutdown_against_firings_that_are_handed_over_loses_no_task() {
    // A reset to "now" hands a job to the pool after it has let go of the queue: the runtime may end in between.
    within(PATIENCE, "resetting to now while the runtime is shut down", || {
        for round in 0..300 {
            let runtime = native();
            let bell = Bell::new();
            let mut delays: Vec<Delay> = (0..8).map(|_| runtime.delay(secs(3600))).collect();
            assert!(delays.iter_mut().all(|delay| poll(delay, &bell).is_pending()));
            let gate = Gate::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    for delay in &mut delays {
                        delay.reset(Duration::ZERO);
                    }
                });
                gate.open();
                let until = Instant::now() + us(round % 60);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                runtime.shutdown(PATIENCE).expect("no callback blocks");
            });
            eventually("all tasks are told", || bell.rings() == 8);
            drop(delays);
            assert_eq!(bell.kept(), 0);
        }
    });
}

#[test]
#[allow(unsafe_code)] // a limit of the process can be set in no other way
fn s34_without_a_default_runtime_a_delay_says_so() {
    common::in_child("s34_without_a_default_runtime_a_delay_says_so", || {
        let limit = |soft: u64| {
            let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a structure that lives through both calls.
            let set = unsafe {
                libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits);
                limits.rlim_cur = soft.min(limits.rlim_max);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits)
            };
            assert_eq!(set, 0, "a lower soft limit is never refused");
        };
        limit(common::open_descriptors() as u64);
        let bell = Bell::new();
        let mut delay = Delay::new(secs(3600));
        let mut passed = Delay::new(Duration::ZERO);
        let tried = delay.poll_try_wait(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(tried, Poll::Ready(Err(RuntimeError::NotStarted(StartError::Alarm(_))))), "{tried:?}");
        let said = catch_unwind(AssertUnwindSafe(|| poll(&mut delay, &bell))).expect_err("no error to give");
        let said = said.downcast::<String>().expect("a message");
        assert!(said.contains("failed to start") && said.contains("Alarm"), "with the reason: {said}");
        assert!(panics(|| poll(&mut delay.with_token(&CancellationToken::none()), &bell)));
        assert!(panics(|| poll(&mut timerqueue::timeout(secs(1), std::future::pending::<()>()), &bell)));
        assert!(panics(|| block_on(timerqueue::Interval::new(secs(1)).tick())));
        let tried = block_on(timerqueue::Interval::new(secs(1)).try_tick());
        assert!(matches!(tried, Err(RuntimeError::NotStarted(_))), "{tried:?}");
        let mut delay = Delay::new(secs(3600));
        assert_eq!(poll(&mut passed, &bell), READY, "which needs no runtime");
        let source = CancellationTokenSource::new();
        assert!(source.cancel_after(secs(1)).is_err() && CancellationTokenSource::after(secs(1)).is_err());
        assert!(source.cancel_after(NEVER).is_ok() && !source.is_cancelled(), "which needs none either");
        // A later try works.
        limit(u64::MAX);
        delay.reset(ms(1));
        block_on(&mut delay);
        source.cancel_after(ms(1)).expect("starts");
        assert!(source.token().wait_timeout(PATIENCE).is_err());
        // Until it is shut down: what waits ends, and nothing new begins.
        let mut waiting = Delay::new(secs(3600));
        assert!(poll(&mut waiting, &bell).is_pending());
        Runtime::global().expect("started").shutdown(PATIENCE).expect("no callback runs");
        assert!(bell.rings() == 1 && has_ended(&mut waiting, &bell));
        assert!(has_ended(&mut Delay::new(secs(1)), &bell) && has_ended(&mut Delay::new(Duration::ZERO), &bell));
        assert!(matches!(source.cancel_after(secs(1)), Ok(())), "cancelled before");
        let refused = CancellationTokenSource::after(secs(1)).expect_err("no runtime");
        assert!(matches!(refused, RuntimeError::Ended));
    });
}

// --------------------------------------------------------------------------------------------- S50: a delay with a token

/// By what the token ended it, if the token did.
fn ended_by(outcome: Poll<Result<(), Cancelled>>) -> Option<CancelReason> {
    match outcome {
        Poll::Ready(Err(cancelled)) => Some(cancelled.reason()),
        _ => None,
    }
}

/// A delay of a second with a token, polled once on behalf of the bell.
fn guarded(runtime: &Runtime, source: &CancellationTokenSource, bell: &Bell) -> CancellableDelay {
    let mut delay = runtime.delay(secs(1)).with_token(&source.token());
    assert!(poll(&mut delay, bell).is_pending());
    assert_eq!((runtime.active_timers(), bell.kept()), (1, 2), "it waits for both");
    delay
}

#[test]
fn s50_the_token_comes_first() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    assert!(source.cancel());
    assert_eq!(bell.rings(), 1);
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "the other is cleaned up at once");
    clock.advance(secs(2));
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled), "fused, whatever happens later");
    assert_eq!(bell.rings(), 1);
}

#[test]
fn s50_the_time_comes_first() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "the other is cleaned up at once");
    assert!(source.cancel());
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))), "fused, whatever happens later");
}

#[test]
fn s50_a_cancelled_token_and_a_token_that_is_never_cancelled() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    source.cancel();
    let mut delay = runtime.delay(secs(1)).with_token(&source.token());
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "no queue was touched");
    let mut delay = runtime.delay(secs(1)).with_token(&CancellationToken::none());
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))));
}

#[test]
fn s50_a_timed_cancel_or_a_parent_gives_its_reason() {
    let (clock, runtime) = manual();
    let (source, bell) = (runtime.cancellation_source(), Bell::new());
    source.cancel_after(ms(500)).expect("a runtime of its own");
    let child = source.token().child_source();
    let mut timed = runtime.delay(secs(1)).with_token(&source.token());
    let mut linked = runtime.delay(secs(1)).with_token(&child.token());
    assert!(poll(&mut timed, &bell).is_pending() && poll(&mut linked, &bell).is_pending());
    clock.advance(ms(500));
    assert_eq!(ended_by(poll(&mut timed, &bell)), Some(CancelReason::Timeout));
    assert_eq!(ended_by(poll(&mut linked, &bell)), Some(CancelReason::Parent));
    assert_eq!((bell.rings(), bell.kept(), runtime.active_timers()), (2, 0, 0));
}

#[test]
fn s50_dropped_it_leaves_both() {
    let (_clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    drop(guarded(&runtime, &source, &bell));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0));
    source.cancel();
    assert_eq!(bell.rings(), 0);
}

#[test]
fn s33_s50_after_the_end_of_the_runtime_only_the_token_is_waited_for() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    runtime.shutdown(PATIENCE).expect("no callback runs");
    clock.advance(secs(10));
    let rings = bell.rings();
    assert!(poll(&mut delay, &bell).is_pending());
    assert_eq!(bell.kept(), 1, "with the token alone");
    assert!(source.cancel());
    assert_eq!((bell.rings(), bell.kept()), (rings + 1, 0));
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
}

#[test]
fn s50_token_against_time_on_real_time_exactly_one_wins() {
    within(PATIENCE, "cancelling delays that are about to fire", || {
        let runtime = native();
        let (mut by_token, mut by_time) = (0, 0);
        for round in 0..1_500_u64 {
            let source = CancellationTokenSource::new();
            let delay = runtime.delay(us(40)).with_token(&source.token());
            let gate = Gate::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    let until = runtime.now() + us(round % 80);
                    while runtime.now() < until {
                        std::hint::spin_loop();
                    }
                    source.cancel();
                });
                gate.open();
                match block_on(delay) {
                    Ok(()) => by_time += 1,
                    Err(_) => by_token += 1,
                }
            });
        }
        assert_eq!((by_token + by_time, runtime.active_timers()), (1_500, 0));
    });
}

#[test]
fn s33_errors_tell_what_happened_and_are_no_timeouts() {
    fn not_started() -> RuntimeError {
        RuntimeError::NotStarted(StartError::Thread(io::ErrorKind::TimedOut.into()))
    }
    for make in [|| RuntimeError::Ended, || RuntimeError::from(StartError::ShutDown)] {
        assert!(matches!(make(), RuntimeError::Ended) && make().source().is_none());
    }
    assert!(not_started().source().is_some_and(|source| source.to_string().contains("thread")));
    for make in [(|| RuntimeError::Ended) as fn() -> RuntimeError, not_started] {
        let io = io::Error::from(make());
        assert_eq!((io.kind(), io.to_string()), (io::ErrorKind::Other, make().to_string()));
        assert!(io.get_ref().is_some_and(|inner| inner.is::<RuntimeError>()));
    }
}

#[test]
fn s33_what_waits_in_a_loop_on_an_ended_runtime_stands_still() {
    for runtime in [manual().1, native()] {
        let (bell, rounds) = (Bell::new(), Count::new());
        assert!(!runtime.is_shut_down());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        assert!(runtime.is_shut_down() && runtime.clone().is_shut_down());
        let mut spinning = Box::pin(async {
            loop {
                runtime.delay(ns(1)).await;
                rounds.bump();
            }
        });
        thread::sleep(ms(2));
        for _ in 0..10 {
            let polled: Poll<()> = poll(&mut spinning, &bell);
            assert!(polled.is_pending());
        }
        assert_eq!((rounds.get(), bell.rings(), bell.kept()), (0, 0, 0));
        // What gives a `Result` says so at once.
        assert!(matches!(block_on(runtime.delay(secs(1)).try_wait()), Err(RuntimeError::Ended)));
        let source = runtime.cancellation_source();
        assert!(matches!(source.cancel_after(ms(1)), Err(RuntimeError::Ended)));
        assert!(source.cancel_after(NEVER).is_ok() && !source.is_cancelled(), "nothing to withdraw");
        assert!(source.cancel_after(Duration::ZERO).is_ok() && source.is_cancelled(), "needs no clock");
    }
}

#[test]
fn s33_s45_a_timed_cancel_in_force_when_its_runtime_ends_cannot_be_moved() {
    let (_clock, runtime) = manual();
    let source = runtime.cancellation_source();
    source.cancel_after(secs(1)).expect("there is time");
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert!(matches!(source.cancel_after(secs(2)), Err(RuntimeError::Ended)));
    assert!(source.cancel_after(NEVER).is_ok());
    assert!(!source.is_cancelled());
}

#[test]
fn s35_a_delay_can_be_shown() {
    let (_clock, runtime) = manual();
    let mut delay = runtime.delay(secs(1));
    assert!(poll_with(&mut delay, Waker::noop()).is_pending());
    let shown = format!("{delay:?} {:?}", runtime.delay(NEVER).with_token(&CancellationToken::none()));
    assert!(shown.contains("Delay") && shown.contains("deadline") && shown.contains("Token"), "{shown}");
}
