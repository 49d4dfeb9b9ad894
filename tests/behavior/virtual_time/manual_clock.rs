//! The manual clock: it moves only when the program advances it, from due point to due point (S51).

use super::*;

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
    assert_eq!((runtime.metrics().threads.alive, runtime.queues(), threads_named("tq-s51")), (0, 4, 0));
    let ran_on = Journal::new();
    let timers: Vec<Timer> = (0..10)
        .map(|i| {
            let ran_on = ran_on.clone();
            Timer::on(&runtime, ms(i), ms(i), move |_| ran_on.push(thread::current().id()))
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
fn s51_no_callback_runs_until_the_clock_is_advanced() {
    let (clock, runtime) = manual();
    let timer = Timer::on(&runtime, ms(1), ms(1), |_| {});
    let before = clock.now();
    clock.stall(secs(100));
    assert_eq!(
        (clock.now() - before, runtime.metrics().fired()),
        (secs(100), 0),
        "a stall moves the clock and runs nothing"
    );
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
            Timer::on(&runtime, ns(due), NEVER, move |tick| {
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
    let timer = Timer::on(&runtime, ms(7), ms(7), |_| {});
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
            OnceTimer::on(runtime, step, move |tick| {
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
    let late = Arc::new(Timer::on(&runtime, ms(100), NEVER, named(&journal, "late")));
    let gone = Arc::new(Timer::on(&runtime, ms(50), NEVER, named(&journal, "gone")));
    let first = OnceTimer::on(&runtime, ms(10), {
        let (late, gone) = (Arc::clone(&late), Arc::clone(&gone));
        move |_| {
            assert_eq!(late.change(ms(5), ms(400)), Changed::WasWaiting);
            gone.dispose();
        }
    });
    assert_eq!(clock.advance(ms(500)), 3);
    assert_eq!(journal.take(), [("late", 15), ("late", 415)]);
    assert_eq!(runtime.metrics().panics, 0);
    drop(first);
}

#[test]
fn s51_advance_from_inside_a_callback_makes_the_running_one_go_on() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let first = OnceTimer::on(&runtime, ms(10), {
        let (clock, journal) = (clock.clone(), journal.clone());
        move |_| journal.push(("inside", clock.advance(ms(100))))
    });
    let second = Timer::on(&runtime, ms(50), ms(50), named(&journal, "second"));
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
        let first = OnceTimer::on(&runtime, ms(10), {
            let (entered, gate, journal) = (entered.clone(), gate.clone(), journal.clone());
            move |_| {
                entered.open();
                gate.wait();
                journal.push(("first", 0));
            }
        });
        let later = Timer::on(&runtime, ms(25), NEVER, named(&journal, "later"));
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
    let timers: Vec<Timer> = (1..=20).map(|i| Timer::on(&runtime, ms(i), ms(i), fired.callback())).collect();
    let mut reported = 0;
    for k in 0..50 {
        if k % 3 == 0 {
            clock.stall(ms(k));
        }
        reported += clock.advance(ms(k));
        let _ = timers[k as usize % 20].change(ms(k), ms(20 + k));
    }
    assert_eq!((reported, runtime.metrics().fired()), (fired.get() as u64, fired.get() as u64));
}

#[test]
fn s51_a_script_gives_the_same_journal_every_time() {
    let run = |queues| {
        let clock = ManualClock::new();
        let runtime = on(&clock, queues);
        let journal = Journal::new();
        let mut random = Random(1951);
        let timers: Vec<Timer> = (0..40).map(|i| Timer::on(&runtime, NEVER, NEVER, named(&journal, i))).collect();
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

/// The last 333 ms of the clock are as good as any.
#[test]
fn s51_an_advance_to_the_end_of_the_clock_runs_what_is_due_there() {
    let (clock, runtime) = manual();
    let last = ns(u64::MAX - 2);
    let count = Count::new();
    let timers = [last, last - ms(1), last - secs(1)].map(|due| Timer::on(&runtime, due, NEVER, count.callback()));
    let tick = Timer::on(&runtime, last - ms(10), ms(6), count.callback());
    let hands = clock.clone();
    let fired = within(PATIENCE, "the end of the clock", move || hands.advance(NEVER));
    assert_eq!((fired, count.get()), (5, 5), "the period ends with the clock");
    assert_eq!((clock.now().as_duration(), clock.next_due()), (last, None));
    drop((timers, tick));
}
