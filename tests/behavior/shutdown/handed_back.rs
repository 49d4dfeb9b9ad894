//! A shutdown hands back what never ran (S89).

use super::*;
use crate::support::child::in_child;
use crate::support::poll::poll_with;
use timerqueue::error::ShutdownError;
use timerqueue::observe::CallbackJob;
use timerqueue::{CancellationTokenSource, Delay, WallTimer};

fn names(jobs: &[CallbackJob]) -> Vec<(Option<&str>, Duration, Option<Duration>)> {
    jobs.iter().map(|job| (job.timer_name(), job.scheduled().as_duration(), job.period())).collect()
}

#[test]
fn s89_a_shutdown_hands_back_each_callback_that_waits_in_order() {
    let (clock, runtime) = manual();
    let ran = Journal::new();
    let note = |name: &'static str| {
        let ran = ran.clone();
        move || ran.push(name)
    };
    let [one, two, three, four, five] = ["once", "ticks", "wall", "job", "exclusive"].map(note);
    let (canary, fate) = Canary::new();
    let once = TimerBuilder::on(&runtime).name("once").due(secs(5)).start_once(move |_| {
        canary.sing();
        one();
    });
    let ticks = TimerBuilder::on(&runtime).due(secs(1)).period(secs(60)).start(move |_| two());
    let wall = TimerBuilder::on(&runtime).name("wall").start_wall(clock.wall() + secs(7), move |_| three());
    let exclusive = TimerBuilder::on(&runtime).due(secs(9)).start_exclusive(move |_| five());
    let idle = Timer::on(&runtime, NEVER, NEVER, |_| unreachable!("it waits for nothing"));
    let source = runtime.enter(|| CancellationTokenSource::after(secs(3)));
    let mut delay = Delay::on(&runtime, secs(3));
    assert!(poll_with(&mut delay, std::task::Waker::noop()).is_pending());
    clock.advance(secs(2));
    assert_eq!(ran.take(), ["ticks"]);
    runtime.execute(four);
    let (unfired, ended) = runtime.shutdown_now(secs(1));
    ended.expect("nothing runs");
    assert_eq!(
        names(&unfired),
        [
            (None, secs(2), None),
            (Some("once"), secs(5), None),
            (Some("wall"), secs(7), None),
            (None, secs(9), None),
            (None, secs(61), Some(secs(60))),
        ]
    );
    assert!(!fate.is_dropped() && !source.is_cancelled() && source.try_reset());
    assert_eq!((once.reset(secs(1)), ticks.change(secs(1), NEVER)), (Changed::Ended, Changed::Ended));
    assert_eq!(runtime.shutdown_now(secs(1)).0.len(), 0, "each once");
    unfired.into_iter().for_each(CallbackJob::run);
    assert_eq!(ran.take(), ["job", "once", "wall", "exclusive", "ticks"]);
    assert!(fate.is_dropped());
    for waited in [once.dispose_and_wait(), ticks.dispose_and_wait(), exclusive.dispose_and_wait()] {
        assert_eq!(waited, Waited::Ended);
    }
    assert_eq!((wall.dispose_and_wait(), idle.dispose_and_wait()), (Waited::Ended, Waited::Ended));
    assert_eq!((runtime.metrics().fired(), runtime.metrics().waiting), (6, 0));
}

#[test]
fn s89_a_job_that_is_dropped_or_whose_timer_is_disposed_does_not_run() {
    let (_clock, runtime) = manual();
    let fates = [(); 3].map(|()| Canary::new());
    let [(one, first), (two, second), (three, third)] = fates;
    let kept = OnceTimer::on(&runtime, secs(1), move |_| one.sing());
    OnceTimer::on(&runtime, secs(2), move |_| two.sing()).detach();
    WallTimer::on(&runtime, runtime.wall_now() + secs(3), move |_| three.sing()).detach();
    let (mut unfired, ended) = runtime.shutdown_now(secs(1));
    assert_eq!((unfired.len(), ended), (3, Ok(())));
    assert!(![&first, &second, &third].into_iter().any(|fate| fate.is_dropped()));
    kept.dispose();
    assert!(first.is_dropped(), "as ever");
    unfired.remove(0).run();
    drop(unfired);
    assert!(second.is_dropped() && third.is_dropped());
    assert_eq!((runtime.metrics().fired(), runtime.metrics().panics), (0, 0));
}

#[test]
fn s89_a_callback_that_shuts_its_runtime_down_gets_what_was_due_with_it() {
    let (clock, runtime) = manual();
    let (ran, count) = (Count::new(), Journal::new());
    let (own, counts) = (runtime.clone(), count.clone());
    let first = Timer::on(&runtime, secs(1), NEVER, move |_| {
        let (unfired, ended) = own.shutdown_now(secs(1));
        counts.push((unfired.len(), ended));
        unfired.into_iter().for_each(CallbackJob::run);
    });
    let others = [1, 1, 2].map(|due| Timer::on(&runtime, secs(due), NEVER, ran.callback()));
    clock.advance(secs(3));
    assert_eq!((count.take(), ran.get()), (vec![(3, Ok(()))], 3));
    assert_eq!((runtime.metrics().fired(), runtime.metrics().waiting), (4, 0));
    drop((first, others));
}

/// The threads of the pool are all blocked, so what is due waits in its queues; a timer changed
/// meanwhile is handed back under its new schedule, one stopped meanwhile is not.
#[test]
fn s89_ticks_without_a_thread_are_handed_back_and_the_default_runtime_is_refused() {
    let runtime = Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads");
    let (blocking, gate) = crate::support::blocked(&runtime, 1);
    let (ran, far) = (Count::new(), secs(3600));
    let due: Vec<_> = (0..100).map(|_| Timer::on(&runtime, Duration::ZERO, NEVER, ran.callback())).collect();
    due[0].change(far, NEVER);
    due[1].stop();
    due[2].stop();
    due[2].change(far, far);
    eventually("the timers are claimed", || runtime.metrics().waiting >= 97);
    let (unfired, ended) = runtime.shutdown_now(Duration::ZERO);
    assert!(matches!(ended, Err(ShutdownError::TimedOut { .. })), "{ended:?}");
    assert_eq!(unfired.len(), 99);
    unfired.into_iter().for_each(CallbackJob::run);
    assert_eq!(ran.get(), 99);
    gate.open();
    drop((due, blocking));
    runtime.shutdown(PATIENCE).expect("the gate is open");
    let (unfired, ended) = Runtime::global().shutdown_now(Duration::ZERO);
    assert_eq!((unfired.len(), ended), (0, Err(ShutdownError::DefaultRuntime)));
}

#[test]
fn s89_the_default_runtime_hands_back_too() {
    in_child(module_path!(), "s89_the_default_runtime_hands_back_too", || {
        let ran = Count::new();
        let timer = Timer::new(secs(3600), NEVER, ran.callback());
        let (unfired, ended) = Runtime::shutdown_global_now(PATIENCE);
        ended.expect("nothing runs");
        assert_eq!(unfired.len(), 1);
        unfired.into_iter().for_each(CallbackJob::run);
        assert_eq!(ran.get(), 1);
        drop(timer);
    });
}

/// In the middle of a storm, with threads that change and drop timers: each once callback runs once
/// or is handed back.
#[test]
fn s89_in_a_storm_each_callback_runs_once_or_is_handed_back() {
    within(4 * PATIENCE, "the shutdowns end", || {
        let mut random = Random(84);
        for _ in 0..30 {
            let runtime = Runtime::builder().queues(2).workers(3).start().expect("the system has threads");
            let (ran, dropped) = (Count::new(), Count::new());
            let timers: Vec<_> = (0..2_000)
                .map(|i| {
                    let (ran, dropped) = (ran.clone(), dropped.clone());
                    let owned = OnDrop(move || _ = dropped.bump());
                    let due = us(if i % 4 == 0 { 3_600_000_000 } else { random.below(4_000) });
                    OnceTimer::on(&runtime, due, move |_| {
                        owned.hold();
                        ran.bump();
                    })
                })
                .collect();
            let changes = thread::scope(|scope| {
                let changes =
                    scope.spawn(|| timers.iter().filter(|timer| timer.reset(us(500)) == Changed::WasWaiting).count());
                thread::sleep(us(random.below(3_000)));
                let (unfired, ended) = runtime.shutdown_now(PATIENCE);
                ended.expect("no callback blocks");
                let handed_back = unfired.len();
                assert_eq!(ran.get() + handed_back, 2_000);
                unfired.into_iter().for_each(CallbackJob::run);
                assert_eq!((ran.get(), dropped.get()), (2_000, 2_000));
                changes.join().expect("no panic")
            });
            assert!(changes <= 2_000);
        }
    });
}

/// On virtual time, while another thread advances the clock: each callback has run or is handed
/// back when the shutdown returns.
#[test]
fn s89_beside_an_advance_each_callback_runs_once_or_is_handed_back() {
    for round in 0..300 {
        let (clock, runtime) = manual();
        let ran = Count::new();
        let timers: Vec<_> = (0..20).map(|i| OnceTimer::on(&runtime, ms(1 + i / 5), ran.callback())).collect();
        thread::scope(|scope| {
            let advance = scope.spawn(|| clock.advance(ms(10)));
            while ran.get() < round % 20 {
                std::hint::spin_loop();
            }
            let (unfired, ended) = runtime.shutdown_now(PATIENCE);
            ended.expect("no callback blocks");
            assert_eq!(ran.get() + unfired.len(), 20);
            drop(unfired);
            advance.join().expect("no panic");
        });
        drop(timers);
    }
}

/// A tick that came due while the callback of its exclusive timer ran.
#[test]
fn s89_a_tick_that_waits_for_the_end_of_a_callback_is_handed_back() {
    let runtime = Runtime::builder().start().expect("the system has threads");
    let (gate, ran) = (Gate::new(), Count::new());
    let (held, runs) = (gate.clone(), ran.clone());
    let timer = TimerBuilder::on(&runtime).due(Duration::ZERO).start_exclusive(move |_| {
        runs.bump();
        held.wait();
    });
    eventually("the callback runs", || ran.get() == 1);
    assert_eq!(timer.change(Duration::ZERO, NEVER), Changed::WasIdle);
    let unfired = thread::scope(|scope| {
        let ending = scope.spawn(|| runtime.shutdown_now(PATIENCE));
        eventually("the runtime ends", || runtime.is_shut_down());
        gate.open();
        let (unfired, ended) = ending.join().expect("no panic");
        ended.expect("the gate is open");
        unfired
    });
    assert_eq!(unfired.len(), 1);
    unfired.into_iter().for_each(CallbackJob::run);
    assert_eq!(ran.get(), 2);
    drop(timer);
}
