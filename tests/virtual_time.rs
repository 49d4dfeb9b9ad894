//! Virtual time: S14 (order) and S51 to S53.
//!
//! Ground rules. Everything here is exact: instants, order, and the number of callbacks that an advance reports. The
//! code under the clock is the code that ships; only who looks at the queues' deadlines differs.

mod common;
#[path = "virtual_time/ends.rs"]
mod ends;
#[path = "virtual_time/threads.rs"]
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Count, Gate, Journal, NEVER, PATIENCE, Random, lock, manual, ms, ns, secs, threads_named, us, within};
use timerqueue::{Changed, ManualClock, MissedTicks, Runtime, RuntimeClock, Timer};

fn on(clock: &ManualClock, queues: usize) -> Runtime {
    Runtime::builder().manual_clock(clock).queues(queues).start().expect("nothing to refuse")
}

/// A callback that records its name and the instant, in ms, at which it ran.
fn named<T: Copy + Send + Sync + 'static>(
    journal: &Journal<(T, u64)>,
    name: T,
) -> impl Fn(&timerqueue::Tick<'_>) + Send + Sync + 'static {
    let journal = journal.clone();
    move |tick| journal.push((name, tick.now().as_duration().as_millis() as u64))
}

// ---------------------------------------------------------------------------------------------------------- S14: order

#[test]
fn s14_order_is_by_due_point_then_by_arming() {
    for queues in [1, 2, 7] {
        let clock = ManualClock::new();
        let runtime = on(&clock, queues);
        let journal = Journal::new();
        // Armed in this order; many share an instant, in one queue and across queues, short and long.
        let dues = [400, 20, 400, 10, 20, 1_000_000, 20, 10, 400, 333, 1_000_000, 332, 20];
        let timers: Vec<Timer> =
            dues.iter().enumerate().map(|(i, &due)| runtime.timer(ms(due), NEVER, named(&journal, i))).collect();
        assert_eq!(clock.advance(ms(1_000_000)), dues.len() as u64);
        let mut want: Vec<(usize, u64)> = dues.into_iter().enumerate().collect();
        want.sort_by_key(|&(i, due)| (due, i));
        assert_eq!(journal.take(), want, "{queues} queues");
        drop(timers);
    }
}

#[test]
fn s14_a_late_sweep_keeps_the_order() {
    let clock = ManualClock::new();
    let runtime = on(&clock, 3);
    let journal = Journal::new();
    let mut random = Random(14);
    let dues: Vec<u64> = (0..2_000).map(|_| random.below(700)).collect();
    let timers: Vec<Timer> =
        dues.iter().enumerate().map(|(i, &due)| runtime.timer(ms(due), NEVER, named(&journal, i))).collect();
    clock.stall(secs(1));
    assert_eq!(clock.advance(Duration::ZERO), 2_000);
    let mut want: Vec<(u64, usize)> = dues.into_iter().enumerate().map(|(i, due)| (due, i)).collect();
    want.sort();
    let want: Vec<(usize, u64)> = want.into_iter().map(|(_, i)| (i, 1_000)).collect();
    assert_eq!(journal.take(), want);
    drop(timers);
}

#[test]
fn s14_a_change_arms_anew() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timers: Vec<Timer> = (0..5).map(|i| runtime.timer(ms(10), NEVER, named(&journal, i))).collect();
    for i in [3, 0, 3] {
        assert_eq!(timers[i].change(ms(10), NEVER), Changed::WasWaiting);
    }
    clock.advance(ms(10));
    assert_eq!(journal.take(), [1, 2, 4, 0, 3].map(|i| (i, 10)));
}

#[test]
fn s14_periodic_timers_keep_their_order() {
    let clock = ManualClock::new();
    let runtime = on(&clock, 2);
    let journal = Journal::new();
    let timers: Vec<Timer> = (0..5).map(|i| runtime.timer(ms(50), ms(50), named(&journal, i))).collect();
    clock.advance(ms(500));
    let want: Vec<(usize, u64)> = (1..=10).flat_map(|k| (0..5).map(move |i| (i, 50 * k))).collect();
    assert_eq!(journal.take(), want);
    drop(timers);
}

#[test]
fn s14_a_burst_takes_its_place_among_the_others() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let record = |name: &'static str| {
        let journal = journal.clone();
        move |tick: &timerqueue::Tick<'_>| journal.push((name, tick.scheduled().as_duration().as_millis() as u64))
    };
    let burst =
        runtime.timer_builder().due(ms(10)).period(ms(10)).missed_ticks(MissedTicks::Burst).start(record("burst"));
    let other = runtime.timer(ms(25), NEVER, record("other"));
    clock.stall(ms(40));
    clock.advance(Duration::ZERO);
    assert_eq!(journal.take(), [("burst", 10), ("burst", 20), ("other", 25), ("burst", 30), ("burst", 40)]);
    drop((burst, other));
}

// ----------------------------------------------------------------------------------------------- S51: the manual clock

#[test]
fn s51_no_threads_and_everything_on_the_callers_thread() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .queues(4)
        .workers(3)
        .thread_name("tq-s51")
        .start()
        .expect("nothing to refuse");
    assert_eq!((runtime.threads(), runtime.queues(), threads_named("tq-s51")), (0, 4, 0));
    let ran_on = Journal::new();
    let timers: Vec<Timer> = (0..10)
        .map(|i| {
            let ran_on = ran_on.clone();
            runtime.timer(ms(i), ms(i), move |_| ran_on.push(thread::current().id()))
        })
        .collect();
    clock.advance(ms(100));
    let here = thread::current().id();
    assert!(ran_on.take().into_iter().all(|id| id == here));
    let there = thread::spawn({
        let clock = clock.clone();
        move || {
            clock.advance(ms(100));
            thread::current().id()
        }
    });
    let there = there.join().expect("no panic");
    assert!(ran_on.take().into_iter().all(|id| id == there));
    drop(timers);
}

#[test]
fn s51_nothing_happens_until_somebody_advances() {
    let (clock, runtime) = manual();
    let timer = runtime.timer(ms(1), ms(1), |_| {});
    let before = clock.now();
    clock.stall(secs(100));
    assert_eq!((clock.now() - before, runtime.fired()), (secs(100), 0), "a stall moves the clock and runs nothing");
    assert_eq!(clock.next_due(), Some(before + ms(1)), "what is overdue stays due");
    assert_eq!(clock.advance(Duration::ZERO), 1, "one tick at once, the rest was missed");
    assert_eq!(clock.next_due(), Some(clock.now() + ms(1)));
    drop(timer);
    assert_eq!((clock.next_due(), clock.advance(secs(1))), (None, 0));
}

#[test]
fn s51_advance_steps_from_due_point_to_due_point() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let mut random = Random(51);
    let mut dues: Vec<u64> = (0..500).map(|_| random.next() >> (1 + random.below(50))).collect();
    let timers: Vec<Timer> = dues
        .iter()
        .map(|&due| {
            let (journal, clock) = (journal.clone(), clock.clone());
            runtime.timer(ns(due), NEVER, move |tick| {
                assert_eq!(clock.now(), tick.now());
                journal.push(tick.now().as_duration());
            })
        })
        .collect();
    assert_eq!(clock.advance(NEVER), 500);
    dues.sort();
    assert_eq!(journal.take(), dues.into_iter().map(ns).collect::<Vec<_>>(), "from nanoseconds to centuries");
    drop(timers);
}

#[test]
fn s51_advance_arrives_where_it_was_told_to() {
    let (clock, runtime) = manual();
    let timer = runtime.timer(ms(7), ms(7), |_| {});
    assert_eq!(clock.advance(ms(20)), 2);
    assert_eq!(clock.now().as_duration(), ms(20));
    assert_eq!(clock.advance(ms(1)), 1, "the end of the span belongs to it");
    assert_eq!(clock.advance(ns(6_999_999)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
    assert_eq!(clock.now().as_duration(), ms(28));
    drop(timer);
}

#[test]
fn s51_a_timer_armed_within_the_span_fires_within_the_same_advance() {
    for step in [us(1), ms(1), ms(333), ms(400), secs(1_000)] {
        let (clock, runtime) = manual();
        let journal = Journal::new();
        fn link(runtime: &Runtime, journal: &Journal<Duration>, step: Duration, left: u32) {
            let (next, journal) = (runtime.clone(), journal.clone());
            runtime
                .once(step, move |tick| {
                    journal.push(tick.now().as_duration());
                    if left > 0 {
                        link(&next, &journal, step, left - 1);
                    }
                })
                .detach();
        }
        link(&runtime, &journal, step, 19);
        assert_eq!(clock.advance(20 * step), 20);
        assert_eq!(journal.take(), (1..=20).map(|k| k * step).collect::<Vec<_>>());
    }
}

#[test]
fn s51_a_change_within_the_span_holds_within_the_same_advance() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let late = Arc::new(runtime.timer(ms(100), NEVER, named(&journal, "late")));
    let gone = Arc::new(runtime.timer(ms(50), NEVER, named(&journal, "gone")));
    let first = runtime.once(ms(10), {
        let (late, gone) = (Arc::clone(&late), Arc::clone(&gone));
        move |_| {
            assert_eq!(late.change(ms(5), ms(400)), Changed::WasWaiting);
            gone.dispose();
        }
    });
    assert_eq!(clock.advance(ms(500)), 3);
    assert_eq!(journal.take(), [("late", 15), ("late", 415)]);
    assert_eq!(runtime.panics(), 0);
    drop(first);
}

#[test]
fn s51_advance_from_inside_a_callback_makes_the_running_one_go_on() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let first = runtime.once(ms(10), {
        let (clock, journal) = (clock.clone(), journal.clone());
        move |_| journal.push(("inside", clock.advance(ms(100))))
    });
    let second = runtime.timer(ms(50), ms(50), named(&journal, "second"));
    assert_eq!(clock.advance(ms(20)), 1 + 2);
    assert_eq!(journal.take(), [("inside", 0), ("second", 50), ("second", 100)]);
    assert_eq!(clock.now().as_duration(), ms(120));
    drop((first, second));
}

#[test]
fn s51_a_second_thread_that_advances_waits_for_the_first() {
    within(PATIENCE, "two threads that advance one clock", || {
        let (clock, runtime) = manual();
        let (entered, gate) = (Gate::new(), Gate::new());
        let journal = Journal::new();
        let first = runtime.once(ms(10), {
            let (entered, gate, journal) = (entered.clone(), gate.clone(), journal.clone());
            move |_| {
                entered.open();
                gate.wait();
                journal.push(("first", 0));
            }
        });
        let later = runtime.timer(ms(25), NEVER, named(&journal, "later"));
        let one = thread::spawn({
            let clock = clock.clone();
            move || clock.advance(ms(20))
        });
        entered.wait();
        let (about, begin) = mpsc::channel();
        let two = thread::spawn({
            let clock = clock.clone();
            move || {
                about.send(()).expect("the test listens");
                clock.advance(ms(20))
            }
        });
        begin.recv().expect("it begins");
        gate.open();
        assert_eq!((one.join().expect("no panic"), two.join().expect("no panic")), (1, 1));
        assert_eq!(journal.take(), [("first", 0), ("later", 25)]);
        assert_eq!(clock.now().as_duration(), ms(40));
        drop((first, later));
    });
}

#[test]
fn s51_the_number_reported_is_the_number_of_callbacks() {
    let clock = ManualClock::new();
    let runtime = on(&clock, 3);
    let fired = Count::new();
    let timers: Vec<Timer> = (1..=20).map(|i| runtime.timer(ms(i), ms(i), fired.callback())).collect();
    let mut reported = 0;
    for k in 0..50 {
        if k % 3 == 0 {
            clock.stall(ms(k));
        }
        reported += clock.advance(ms(k));
        let _ = timers[k as usize % 20].change(ms(k), ms(20 + k));
    }
    assert_eq!((reported, runtime.fired()), (fired.get() as u64, fired.get() as u64));
}

#[test]
fn s51_a_script_gives_the_same_journal_every_time() {
    let run = |queues| {
        let clock = ManualClock::new();
        let runtime = on(&clock, queues);
        let journal = Journal::new();
        let mut random = Random(1951);
        let timers: Vec<Timer> = (0..40).map(|i| runtime.timer(NEVER, NEVER, named(&journal, i))).collect();
        for _ in 0..1_000 {
            let timer = &timers[random.below(40) as usize];
            match random.below(8) {
                0 => timer.dispose(),
                1 => clock.stall(ms(random.below(500))),
                2 | 3 => {
                    clock.advance(ms(random.below(500)));
                }
                _ => {
                    let _ = timer.change(ms(random.below(800)), ms(30 + random.below(500)));
                }
            }
        }
        journal.take()
    };
    let first = run(1);
    assert!(first.len() > 500);
    assert_eq!(run(1), first);
    assert_eq!(run(5), first, "nor does it depend on the number of queues");
}

// ------------------------------------------------------------------------------------------ S52: runtimes side by side

#[test]
fn s52_runtimes_with_different_clocks_live_side_by_side() {
    let (fast, fast_runtime) = manual();
    let (slow, slow_runtime) = manual();
    let native = common::native();
    let (fast_fired, slow_fired) = (Count::new(), Count::new());
    let (send, receive) = mpsc::channel();
    let a = fast_runtime.timer(secs(1), secs(1), fast_fired.callback());
    let b = slow_runtime.timer(secs(1), secs(1), slow_fired.callback());
    let c = native.once(ms(1), move |tick| {
        let _ = send.send(tick.now() >= tick.scheduled());
    });
    assert_eq!((fast.advance(secs(3600)), slow.advance(ms(999))), (3600, 0));
    assert_eq!((fast_fired.get(), slow_fired.get()), (3600, 0));
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(true));
    assert_eq!((fast.now().as_duration(), slow.now().as_duration()), (secs(3600), ms(999)));
    assert_eq!((fast_runtime.now(), slow_runtime.now()), (fast.now(), slow.now()));
    native.shutdown(PATIENCE).expect("nothing runs");
    assert_eq!((slow.advance(ms(1)), fast.advance(secs(1))), (1, 1), "one runtime's end is not another's");
    drop((a, b, c));
}

#[test]
fn s52_two_runtimes_on_one_clock_run_in_one_order() {
    let clock = ManualClock::new();
    let (one, two) = (on(&clock, 1), on(&clock, 3));
    let journal = Journal::new();
    let mut timers = Vec::new();
    for i in 0..12 {
        let runtime = if i % 2 == 0 { &one } else { &two };
        timers.push(runtime.timer(ms(400 - 100 * (i / 6)), ms(400), named(&journal, i)));
    }
    assert_eq!(clock.next_due(), Some(clock.now() + ms(300)));
    assert_eq!(clock.advance(ms(800)), 24);
    let at = |instant: u64, who: std::ops::Range<u64>| who.map(move |i| (i, instant));
    let want: Vec<(u64, u64)> =
        at(300, 6..12).chain(at(400, 0..6)).chain(at(700, 6..12)).chain(at(800, 0..6)).collect();
    assert_eq!(journal.take(), want, "by due point, then by arming order, whatever the runtime");
    one.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!(clock.advance(ms(400)), 6, "the other one goes on");
    drop(two);
    assert_eq!((clock.advance(secs(10)), clock.next_due()), (0, None));
}

#[test]
fn s52_a_runtime_may_be_made_late_and_by_a_callback() {
    let clock = ManualClock::new();
    clock.advance(secs(1_000_000));
    let runtime = on(&clock, 2);
    let late = Arc::new(Mutex::new(None));
    let journal = Journal::new();
    let timer = runtime.once(ms(333), {
        let (clock, late, journal) = (clock.clone(), Arc::clone(&late), journal.clone());
        move |_| {
            let runtime = on(&clock, 1);
            runtime.timer(ms(1), NEVER, named(&journal, "late")).detach();
            *lock(&late) = Some(runtime);
        }
    });
    assert_eq!(clock.advance(secs(1)), 2);
    assert_eq!(journal.take(), [("late", 1_000_000_334)]);
    drop(timer);
}

// ----------------------------------------------------------------------------------- S53: a million timers over months

/// In debug builds the work is scaled down to a tenth, to keep the whole run short; in release builds it is the full
/// million.
const TIMERS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn s53_many_timers_over_months_take_seconds() {
    const MONTHS: Duration = Duration::from_secs(180 * 24 * 60 * 60);
    let begin = Instant::now();
    let clock = ManualClock::new();
    let runtime = on(&clock, 2);
    let mut random = Random(53);
    let fired: Arc<Vec<AtomicU32>> = Arc::new((0..TIMERS).map(|_| AtomicU32::new(0)).collect());
    let (last, wrong) = (Arc::new(AtomicU64::new(0)), Count::new());
    let timers: Vec<Timer> = (0..TIMERS)
        .map(|i| {
            let due = ns(random.below(MONTHS.as_nanos() as u64));
            let at = clock.now() + due;
            let (fired, last, wrong) = (Arc::clone(&fired), Arc::clone(&last), wrong.clone());
            runtime.timer(due, NEVER, move |tick| {
                let now = tick.now().as_duration().as_nanos() as u64;
                if tick.now() != at || last.swap(now, Ordering::Relaxed) > now {
                    wrong.bump();
                }
                fired[i as usize].fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    assert_eq!(runtime.active_timers() as u64, TIMERS);
    let heartbeat = runtime.timer(secs(60 * 60), secs(60 * 60), |_| {});
    assert_eq!(clock.advance(MONTHS), TIMERS + 180 * 24);
    assert_eq!((wrong.get(), runtime.active_timers()), (0, 1), "each at its instant, in order");
    assert!(fired.iter().all(|fired| fired.load(Ordering::Relaxed) == 1), "each once");
    drop((timers, heartbeat));
    let took = begin.elapsed();
    assert!(took < secs(60), "months in seconds: {took:?}");
}

#[test]
fn s53_a_million_ticks_of_long_lived_timers() {
    // A timer a minute apart each, with periods of days: all rings of the queue are passed through again and again.
    const DAY: u64 = 24 * 60 * 60;
    let (clock, runtime) = manual();
    let count = TIMERS / 100;
    let ticks = Count::new();
    let timers: Vec<Timer> =
        (0..count).map(|i| runtime.timer(secs(60 * i % DAY), secs(DAY + i % 7), ticks.callback())).collect();
    let days = 100;
    clock.advance(secs(days * DAY));
    let want: u64 = (0..count).map(|i| (days * DAY - 60 * i % DAY) / (DAY + i % 7) + 1).sum();
    assert_eq!(ticks.get() as u64, want);
    drop(timers);
}

// ------------------------------------------------------------------------------------------- S57: the clock goes by itself

#[test]
fn s57_the_clock_goes_when_everything_waits_and_only_then() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let executor = smol::LocalExecutor::new();
    for (name, every) in [("slow", 7), ("fast", 2)] {
        let (clock, runtime, journal) = (clock.clone(), &runtime, journal.clone());
        let task = executor.spawn(async move {
            for _ in 0..3 {
                runtime.delay(secs(every)).await;
                journal.push((name, clock.now().as_duration()));
                // As long as somebody can go on, no time passes.
                let before = clock.now();
                for _ in 0..10 {
                    smol::future::yield_now().await;
                }
                assert_eq!(clock.now(), before);
            }
        });
        task.detach();
    }
    clock.block_on(async {
        while !executor.is_empty() {
            executor.tick().await;
        }
    });
    let want = [("fast", 2), ("fast", 4), ("fast", 6), ("slow", 7), ("slow", 14), ("slow", 21)];
    assert_eq!(journal.take(), want.map(|(name, at)| (name, secs(at))));
    assert_eq!(clock.now().as_duration(), secs(21), "and stands still afterwards");
}

#[test]
fn s57_a_future_that_wakes_itself_does_not_wait() {
    let (clock, runtime) = manual();
    let timer = runtime.once(secs(1), |_| {});
    clock.block_on(async {
        for _ in 0..10 {
            smol::future::yield_now().await;
            assert_eq!(clock.now().as_duration(), ns(0));
        }
    });
    drop(timer);
}

#[test]
fn s57_a_clock_that_is_told_to_stand_still_waits_for_whoever_moves_it() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let mut delay = runtime.delay(secs(5));
    let (hands, gate) = (clock.clone(), Gate::new());
    let opened = gate.clone();
    let other = thread::spawn(move || {
        opened.wait();
        // Whether the other thread waits already, or is about to: it must be woken.
        (0..5).map(|_| hands.advance(secs(1))).sum::<u64>()
    });
    let filed = std::future::poll_fn(|cx| {
        let polled = Pin::new(&mut delay).poll(cx);
        gate.open();
        polled
    });
    clock.block_on(filed);
    assert_eq!(clock.now().as_duration(), secs(5));
    assert_eq!(other.join().unwrap(), 1);
    clock.set_auto_advance(true);
    clock.block_on(runtime.delay(secs(5)));
    assert_eq!(clock.now().as_duration(), secs(10));
}

#[test]
fn s57_without_timers_it_waits_for_another_thread_and_the_clock_stands() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let never = runtime.delay(NEVER);
    let token = source.token();
    let other = thread::spawn(move || {
        thread::sleep(ms(20));
        source.cancel();
    });
    // A delay without an end is no reason to go to the end of the clock.
    clock.block_on(never.with_token(&token)).expect_err("cancelled");
    assert_eq!(clock.now().as_duration(), ns(0));
    other.join().unwrap();
}

/// The last 333 ms of the clock are as good as any.
#[test]
fn s51_an_advance_to_the_end_of_the_clock_runs_what_is_due_there() {
    let (clock, runtime) = manual();
    let last = ns(u64::MAX - 2);
    let count = Count::new();
    let timers = [last, last - ms(1), last - secs(1)].map(|due| runtime.timer(due, NEVER, count.callback()));
    let tick = runtime.timer(last - ms(10), ms(6), count.callback());
    let hands = clock.clone();
    let fired = within(PATIENCE, "the end of the clock", move || hands.advance(NEVER));
    assert_eq!((fired, count.get()), (5, 5), "the period ends with the clock");
    assert_eq!((clock.now().as_duration(), clock.next_due()), (last, None));
    drop((timers, tick));
}

#[test]
fn s57_a_callback_may_run_a_future_on_its_own_clock() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let (hands, seen, inner) = (clock.clone(), journal.clone(), runtime.clone());
    let timer = runtime.once(secs(1), move |_| {
        hands.block_on(inner.delay(secs(10)));
        seen.push(hands.now().as_duration());
    });
    assert_eq!(clock.advance(secs(2)), 2, "the timer, and the waker of the delay");
    assert_eq!((journal.take(), clock.now().as_duration()), (vec![secs(11)], secs(11)));
    assert_eq!(runtime.fired(), 2);
    drop(timer);
}

#[test]
fn s57_callbacks_that_wait_inside_one_another_are_bounded_and_end_last_in_first_out() {
    let (clock, runtime) = manual();
    let (begun, ended) = (Journal::new(), Journal::new());
    let (hands, inner, begins, ends) = (clock.clone(), runtime.clone(), begun.clone(), ended.clone());
    // Before one has waited for long enough the next one begins.
    let timer = runtime.timer(secs(1), secs(1), move |tick| {
        let at = tick.scheduled();
        begins.push(at);
        hands.block_on(inner.delay(ms(1_500)));
        ends.push(at);
    });
    clock.advance(secs(1));
    let (begun, mut ended) = (begun.take(), ended.take());
    assert_eq!((begun.len(), ended.len()), (101, 100), "one has found the stack too deep");
    assert_eq!(runtime.panics(), 1);
    ended.reverse();
    assert_eq!(ended, begun[..100]);
    // And the clock goes on.
    timer.dispose();
    let later = runtime.once(secs(1), |_| {});
    assert_eq!(clock.advance(secs(1)), 1);
    drop(later);
}

/// The bound holds for each clock and each timer, also where callbacks of two clocks wait inside one another in turn: what is
/// counted as running, in 12 bits of each timer, stays far below its end.
#[test]
fn s57_callbacks_of_two_clocks_that_drive_each_other_are_bounded() {
    let sides = [manual(), manual()];
    let running: [Arc<(AtomicUsize, AtomicUsize)>; 2] = Default::default();
    let timers: Vec<Timer> = (0..2)
        .map(|side| {
            let ((other, there), running) = (sides[1 - side].clone(), Arc::clone(&running[side]));
            sides[side].1.timer(secs(1), secs(1), move |_| {
                let now = running.0.fetch_add(1, Ordering::Relaxed) + 1;
                running.1.fetch_max(now, Ordering::Relaxed);
                let panicked = catch_unwind(AssertUnwindSafe(|| other.block_on(there.delay(ms(1_500)))));
                running.0.fetch_sub(1, Ordering::Relaxed);
                panicked.map_or_else(|panic| resume_unwind(panic), drop);
            })
        })
        .collect();
    // Deep stacks: a thread with room.
    let deep = thread::Builder::new().stack_size(64 << 20);
    let clock = sides[0].0.clone();
    let driver = deep.spawn(move || clock.advance(secs(1))).expect("a thread");
    within(2 * PATIENCE, "the clocks", move || driver.join()).expect("no panic but those of callbacks");
    for (side, running) in running.iter().enumerate() {
        let (now, most) = (running.0.load(Ordering::Relaxed), running.1.load(Ordering::Relaxed));
        assert_eq!(now, 0, "all have ended");
        assert!((50..=102).contains(&most), "clock {side}: {most} at once");
    }
    drop(timers);
}

#[test]
fn s57_in_a_callback_the_clock_goes_as_far_as_it_has_been_told_to() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let journal = Journal::new();
    let (hands, seen, inner) = (clock.clone(), journal.clone(), runtime.clone());
    let timer = runtime.once(secs(1), move |_| {
        // Within the advance that runs this callback.
        hands.block_on(inner.delay(secs(1)));
        seen.push(hands.now().as_duration());
        // Beyond it.
        hands.block_on(async {
            let delay = inner.delay(secs(5));
            assert_eq!(hands.advance(secs(5)), 0);
            delay.await;
        });
        seen.push(hands.now().as_duration());
    });
    let hands = clock.clone();
    assert_eq!(within(PATIENCE, "nobody else moves the clock", move || hands.advance(secs(3))), 3);
    assert_eq!((journal.take(), clock.now().as_duration()), (vec![secs(2), secs(7)], secs(8)));
    drop(timer);
}

#[test]
fn s57_a_future_in_a_callback_waits_for_what_is_due_beside_it() {
    let (clock, runtime) = manual();
    let (send, receive) = mpsc::channel();
    let told = runtime.cancellation_source();
    let (hands, token) = (clock.clone(), told.token());
    let first = runtime.once(secs(1), move |tick| {
        hands.block_on(token.cancelled());
        send.send(tick.now()).expect("the test listens");
    });
    // Swept together with the first.
    let second = runtime.once(secs(1), move |_| {
        told.cancel();
    });
    let heartbeat = runtime.timer(secs(60), secs(60), |_| {});
    clock.advance(secs(2));
    assert_eq!(receive.try_recv().map(|at| at.as_duration()), Ok(secs(1)), "no time has passed");
    drop((first, second, heartbeat));
}

#[test]
fn s57_a_delay_without_end_has_none_after_a_suspend_either() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot).start().expect("nothing to refuse");
    clock.suspend(secs(1));
    let source = runtime.cancellation_source();
    source.cancel_after(secs(5)).expect("it runs");
    clock.block_on(runtime.delay(NEVER).with_token(&source.token())).expect_err("cancelled");
    assert_eq!(clock.now().as_duration(), secs(5));
}

#[test]
fn s57_a_clock_that_is_told_to_go_while_a_future_waits_goes() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let hands = clock.clone();
    let other = thread::spawn(move || {
        thread::sleep(ms(20));
        hands.set_auto_advance(true);
    });
    clock.block_on(runtime.delay(secs(5)));
    other.join().unwrap();
}

// ----------------------------------------------------------------------------------------------------------- S58: leeway

#[test]
fn s58_leeway_delays_to_the_grid_and_the_schedule_stays_exact() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let seen = journal.clone();
    let timer = runtime.timer_builder().due(us(1_300)).period(us(2_500)).leeway(ms(1)).start(move |tick| {
        seen.push((tick.scheduled().as_duration(), tick.now().as_duration(), tick.missed()));
    });
    assert_eq!(runtime.next_due().map(|at| at.as_duration()), Some(ms(2)), "when it will fire");
    clock.advance(ms(10));
    let want = [(1_300, 2), (3_800, 4), (6_300, 7), (8_800, 9)];
    assert_eq!(journal.take(), want.map(|(due, at)| (us(due), ms(at), 0)));
    // A change keeps the leeway, and counts from now.
    assert_eq!(timer.change(us(100), Duration::ZERO), Changed::WasWaiting);
    clock.advance(ms(5));
    assert_eq!(journal.take(), [(us(10_100), ms(11), 0)]);
}

#[test]
fn s58_timers_with_leeway_share_instants_with_others_and_none_is_early_or_later_than_allowed() {
    let (clock, runtime) = manual();
    let (fired, instants) = (Count::new(), Journal::new());
    let mut random = Random(58);
    let timers: Vec<Timer> = (0..10_000)
        .map(|_| {
            let (due, leeway) = (us(random.below(1_000_000)), [ms(10), ms(50)][random.below(2) as usize]);
            let (fired, instants) = (fired.callback(), instants.clone());
            runtime.timer_builder().due(due).leeway(leeway).start(move |tick| {
                assert!(tick.lateness() <= leeway, "late by {:?}", tick.lateness());
                instants.push(tick.now());
                fired(tick);
            })
        })
        .collect();
    clock.advance(secs(2));
    let mut instants = instants.take();
    instants.dedup();
    assert_eq!((fired.get(), runtime.panics()), (10_000, 0));
    assert!(instants.len() <= 101, "a hundred instants a second, not 10,000: {}", instants.len());
    drop(timers);
}
