//! Resets of a pending delay (S35).

use super::*;

#[test]
fn s35_a_pending_delay_can_be_moved() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    for (first, then) in [(10, 20), (20, 10), (10, 10), (10, 3600), (3600, 10), (400, 1), (1, 0)] {
        let mut delay = Delay::on(&runtime, ms(first));
        assert!(poll(&mut delay, &counter).is_pending());
        let before = counter.wakes();
        delay.reset(ms(then));
        assert_eq!(delay.deadline(), clock.now() + ms(then));
        assert_eq!(clock.next_due(), Some(delay.deadline()), "exact on a manual clock");
        if then > 0 {
            clock.advance(ms(then) - ns(1));
            assert_eq!(counter.wakes(), before, "{first} to {then} ms: no task is woken for the old deadline");
            clock.advance(ns(1));
        } else {
            clock.advance(Duration::ZERO);
        }
        assert_eq!(counter.wakes(), before + 1, "{first} to {then} ms: the task that waits is woken without a poll");
        assert_eq!(poll(&mut delay, &counter), READY);
    }
}

#[test]
fn s35_moved_by_deadline_to_never_and_back() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    delay.reset(NEVER);
    clock.advance(secs(10));
    assert!(poll(&mut delay, &counter).is_pending());
    assert_eq!(counter.wakes(), 0);
    let deadline = clock.now() + secs(3);
    delay.reset_at(deadline);
    assert_eq!(delay.deadline(), deadline);
    clock.advance(secs(3));
    assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (1, READY));
    delay.reset_at(deadline);
    assert_eq!(poll(&mut delay, &counter), READY, "a deadline that has passed");
    delay.reset_at(clock.now() + secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    delay.reset_at(deadline);
    assert_eq!(poll(&mut delay, &counter), READY, "and for one that was pending");
    assert_eq!((runtime.metrics().active, counter.wakes(), counter.kept()), (0, 1, 0));
}

#[test]
fn s35_a_reset_while_the_delay_is_about_to_fire() {
    // The clock has passed the deadline, but no thread has swept yet: the reset comes first.
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    clock.stall(secs(2));
    delay.reset(secs(1));
    clock.advance(secs(1) - ns(1));
    assert_eq!(counter.wakes(), 0);
    clock.advance(ns(1));
    assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (1, READY));

    // The waker has been taken, together with the tick of a timer whose callback runs first and
    // resets the delay: the task is woken in vain once, and its poll gives the delay a waker again.
    let delay = Arc::new(Mutex::new(Delay::on(&runtime, secs(1))));
    let resetting = OnceTimer::on(&runtime, secs(1), {
        let delay = Arc::clone(&delay);
        move |_| lock(&delay).reset(secs(1))
    });
    assert!(poll(&mut *lock(&delay), &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 2);
    assert!(poll(&mut *lock(&delay), &counter).is_pending(), "the delay has not elapsed");
    assert_eq!(runtime.metrics().active, 1);
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), poll(&mut *lock(&delay), &counter)), (3, READY));
    drop(resetting);
}

/// A delay of a random program, with its expected state.
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
                let delay = Delay::on(&runtime, length(&mut random));
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
                    assert_eq!(got, want, "each at its instant, each once, and no other");
                }
            }
            let waiting = models.iter().filter(|model| model.waits.is_some()).count();
            assert_eq!(runtime.metrics().active, waiting, "queued if and only if a task waits");
            assert_eq!(rung.len(), 0, "woken by the clock alone");
        }
    }
}

#[test]
fn s35_resets_against_the_firing_thread_are_never_early_and_never_lost() {
    within(PATIENCE, "resetting delays that are about to fire", || {
        let runtime = native();
        let mut random = Random(351);
        let mut delay = Delay::on(&runtime, Duration::ZERO);
        let counter = CountingWaker::new();
        for _ in 0..4_000 {
            delay.reset(us(20 + random.below(60)));
            let _ = poll(&mut delay, &counter);
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
        eventually("it is filed no more", || runtime.metrics().active == 0);
    });
}

/// On a clock of the system a reset to later takes no lock, and the entry stays queued at the first
/// deadline.
#[test]
fn s35_resets_to_later_wake_no_task_before_the_last_deadline() {
    within(PATIENCE, "moving delays to later", || {
        let runtime = native();
        let counter = CountingWaker::new();
        // A busy machine may stand still between two resets, so that the delay fires in between.
        let in_time = |attempt: u64| {
            let mut delay = Delay::on(&runtime, ms(50));
            assert!(poll(&mut delay, &counter).is_pending());
            let (before, mut in_time) = (counter.wakes(), true);
            for step in 0..6 {
                let old = delay.deadline();
                match (attempt + step) % 3 {
                    0 => delay.reset_at(old + ms(40)),
                    1 => delay.reset_at(old + ns(1)),
                    _ => delay.reset_at(old),
                }
                in_time &= runtime.now() < old;
                // The first deadline passes before the last comes.
                std::thread::sleep(ms(10));
            }
            let last = delay.deadline();
            eventually("the task is woken without a poll", || counter.wakes() > before && runtime.now() >= last);
            // A sweep that has read an older deadline wakes the task in vain, but only if the reset
            // came too late.
            let woken_once = counter.wakes() == before + 1;
            assert_eq!(poll(&mut delay, &counter), READY);
            assert!(woken_once || !in_time, "woken for an old deadline");
            in_time
        };
        assert!((0..50).any(in_time), "no attempt was in time");
        eventually("nothing is left", || (runtime.metrics().active, counter.kept()) == (0, 0));
    });
}

#[test]
fn s35_moved_to_later_and_back_on_the_systems_clock() {
    within(PATIENCE, "moving delays to and fro", || {
        let runtime = native();
        let counter = CountingWaker::new();
        let in_time = |first: u64, later: u64, then: u64| {
            let mut delay = Delay::on(&runtime, ms(first));
            let old = delay.deadline();
            assert!(poll(&mut delay, &counter).is_pending());
            let before = counter.wakes();
            delay.reset(ms(later));
            delay.reset(ms(then));
            if runtime.now() >= old {
                return false; // a busy machine: it may have fired before
            }
            eventually("the task is woken without a poll", || counter.wakes() > before);
            assert!(runtime.now() >= delay.deadline(), "early");
            assert_eq!(poll(&mut delay, &counter), READY);
            eventually("nothing is left", || (runtime.metrics().active, counter.kept()) == (0, 0));
            true
        };
        for (first, later, then) in [(20, 3_600_000, 40), (20, 3_600_000, 5), (3_600_000, 7_200_000, 10), (20, 30, 0)] {
            assert!((0..50).any(|_| in_time(first, later, then)), "no attempt was in time");
        }
        let is_put_off_for_ever = || {
            let mut delay = Delay::on(&runtime, ms(20));
            let old = delay.deadline();
            assert!(poll(&mut delay, &counter).is_pending());
            delay.reset(NEVER);
            if runtime.now() >= old {
                return false;
            }
            std::thread::sleep(ms(40));
            assert_eq!(runtime.metrics().active, 1);
            assert_eq!(runtime.dump(9).timers.len(), 0, "it never comes due");
            drop(delay);
            assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
            true
        };
        assert!((0..50).any(|_| is_put_off_for_ever()), "no attempt was in time");
    });
}

/// The queue knows of the old deadline only.
#[test]
fn s35_a_dump_shows_a_delay_moved_later_at_its_new_deadline() {
    let runtime = native();
    let counter = CountingWaker::new();
    let mut delays: Vec<_> = [1, 2].map(|hours| Delay::on(&runtime, secs(hours * 3_600))).into();
    for delay in &mut delays {
        assert!(poll(delay, &counter).is_pending());
    }
    delays[0].reset(secs(3 * 3_600));
    let mut want = [delays[1].deadline(), delays[0].deadline()];
    let shown = |n| runtime.dump(n).timers.iter().map(|timer| timer.due).collect::<Vec<_>>();
    assert_eq!(shown(9), want);
    assert_eq!(shown(1), want[..1]);
    delays[1].reset(secs(4 * 3_600));
    want = [delays[0].deadline(), delays[1].deadline()];
    assert_eq!(shown(9), want);
    assert_eq!(runtime.metrics().changed, 0, "a reset to later is not counted");
    delays[1].reset(secs(1_800));
    assert_eq!(runtime.metrics().changed, 1);
    assert_eq!(shown(9)[0], delays[1].deadline());
}

/// The end of the runtime wakes a task whose delay was moved, and tells it.
#[test]
fn s33_a_delay_moved_later_learns_of_the_end() {
    let runtime = native();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1_000));
    assert!(poll(&mut delay, &counter).is_pending());
    delay.reset(secs(2_000));
    runtime.shutdown(PATIENCE).expect("ends");
    assert_eq!(counter.wakes(), 1);
    delay.reset(secs(3_000));
    assert!(matches!(block_on(delay.try_wait()), Err(RuntimeError::Ended)));
}
