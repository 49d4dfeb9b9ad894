//! The default runtime: chosen before its first use, and not shut down by accident.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn s63_the_program_chooses_the_default_runtime_before_its_first_use() {
    in_child(module_path!(), "s63_the_program_chooses_the_default_runtime_before_its_first_use", || {
        let refused = Runtime::builder().queues(0).start_global();
        assert!(matches!(refused, Err(StartError::Queues { .. })), "and a later try works");
        let clock = ManualClock::new();
        clock.advance(secs(5));
        let runtime = Runtime::builder().manual_clock(&clock).start_global().expect("before the first use");
        assert!(std::ptr::eq(runtime, Runtime::global()) && runtime.is_global() && Runtime::current().is_global());
        // All that names no runtime counts on it, on any thread.
        let timer = thread::spawn(|| Timer::once(secs(1), |_| {})).join().expect("no panic");
        let delay = Delay::new(secs(2));
        assert_eq!(delay.deadline().as_duration(), secs(7));
        let source = CancellationTokenSource::after(secs(1));
        assert_eq!((runtime.metrics().active, clock.advance(secs(1))), (2, 2));
        assert!(source.is_cancelled() && !delay.is_elapsed());
        clock.block_on(delay);
        assert_eq!(CancellationToken::none().wait_timeout(secs(3600)), Ok(()));
        assert_eq!(clock.now().as_duration(), secs(3607));
        assert!(matches!(Runtime::builder().start_global(), Err(StartError::AlreadyStarted)));
        drop(timer);
    });
}

#[test]
fn s63_the_clock_of_the_default_runtime_is_settled_by_its_first_reading() {
    in_child(module_path!(), "s63_the_clock_of_the_default_runtime_is_settled_by_its_first_reading", || {
        let mut delay = Delay::new(ms(1)); // starts nothing
        let manual = Runtime::builder().manual_clock(&ManualClock::new()).start_global();
        assert!(matches!(manual, Err(StartError::AlreadyStarted)), "the delay counts on another clock");
        // Settings that leave the clock are welcome.
        let runtime = Runtime::builder().thread_name("chosen").workers(2).max_threads(2).start_global();
        let runtime = runtime.expect("not started yet");
        block_on(&mut delay);
        Timer::once(Duration::ZERO, |_| {}).detach();
        eventually("it fires", || runtime.metrics().fired() > 0);
        assert_eq!(runtime.metrics().threads.alive, 2);
        assert!(matches!(Runtime::builder().start_global(), Err(StartError::AlreadyStarted)));
    });
}

/// A hook may own a value whose destructor uses the default runtime. A start that fails drops its
/// hooks, with no lock held.
#[test]
fn s63_the_hooks_of_a_start_that_fails_may_use_the_default_runtime() {
    in_child(module_path!(), "s63_the_hooks_of_a_start_that_fails_may_use_the_default_runtime", || {
        within(PATIENCE, "destructors of hooks that make timers", || {
            let timer = || OnDrop(|| drop(Timer::once(secs(3600), |_| {})));
            let builder = || {
                let owned = [timer(), timer(), timer()];
                let [on_panic, on_slow, executor] = owned.map(|owned| move || owned.hold());
                (Runtime::builder().on_panic(move |_| on_panic()).on_slow_callback(secs(1), move |_| on_slow()))
                    .callback_executor(move |_| executor())
            };
            assert!(matches!(builder().queues(0).start_global(), Err(StartError::Queues { .. })));
            let again = builder().start_global();
            assert!(matches!(again, Err(StartError::AlreadyStarted)), "by the destructors: {again:?}");
        });
    });
}

/// Either the program's choice comes first, and everything counts on it; or a delay comes first,
/// and the choice is refused.
#[test]
fn s63_a_choice_that_races_with_the_first_use_is_made_for_all_or_refused() {
    const NAME: &str = "s63_a_choice_that_races_with_the_first_use_is_made_for_all_or_refused";
    static RAN: AtomicBool = AtomicBool::new(false);
    for _ in 0..8 {
        in_child(module_path!(), NAME, || {
            if RAN.swap(true, Ordering::Relaxed) {
                return; // the child runs this loop, too, and has a single default runtime
            }
            const AHEAD: Duration = Duration::from_secs(1 << 32); // no usual clock shows this
            let clock = ManualClock::new();
            clock.advance(AHEAD);
            let start = std::sync::Barrier::new(4);
            thread::scope(|scope| {
                let users: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            let delays = [(); 20].map(|()| Delay::new(secs(3600)).deadline().as_duration() > AHEAD);
                            let timer = Timer::once(secs(3600), |_| {});
                            (delays, timer)
                        })
                    })
                    .collect();
                start.wait();
                let chosen = Runtime::builder().manual_clock(&clock).start_global().is_ok();
                for user in users {
                    let (delays, timer) = user.join().expect("no panic");
                    assert_eq!(delays, [chosen; 20]);
                    drop(timer);
                }
                assert_eq!(Runtime::global().metrics().threads.alive == 0, chosen);
            });
        });
    }
}

#[test]
fn s63_a_default_runtime_on_the_boot_clock_counts_on_it() {
    in_child(module_path!(), "s63_a_default_runtime_on_the_boot_clock_counts_on_it", || {
        let Ok(runtime) = Runtime::builder().clock(RuntimeClock::Boot).workers(2).start_global() else { return };
        let (before, delay, after) = (runtime.now(), Delay::new(secs(1)), runtime.now());
        assert!(delay.deadline() >= before + secs(1) && delay.deadline() <= after + secs(1));
        block_on(Delay::new(ms(1)));
        Timer::once(ms(1), |_| {}).detach();
        eventually("it fires", || runtime.metrics().fired() > 0);
    });
}

#[test]
fn s65_a_handle_does_not_shut_the_default_runtime_down() {
    let (runtime, current) = (Runtime::global(), Runtime::current());
    for handle in [runtime, &current, &runtime.clone()] {
        assert_eq!(handle.shutdown(Duration::ZERO), Err(ShutdownError::DefaultRuntime));
    }
    drop(current);
    assert!(!runtime.is_shut_down() && !native().is_global());
    // Nor does a handle in a callback on it.
    let answers = Journal::new();
    runtime.execute({
        let answers = answers.clone();
        move || answers.push(Runtime::current().shutdown(Duration::ZERO))
    });
    eventually("the job has run", || answers.len() == 1);
    assert_eq!(answers.take(), [Err(ShutdownError::DefaultRuntime)]);
}

#[test]
fn s65_the_program_shuts_the_default_runtime_down_by_name() {
    in_child(module_path!(), "s65_the_program_shuts_the_default_runtime_down_by_name", || {
        assert_eq!(Runtime::shutdown_global(Duration::ZERO), Ok(()), "not started: nothing to do");
        let (canary, fate) = Canary::new();
        let timer = Timer::once(secs(3600), move |_| canary.sing());
        Runtime::shutdown_global(PATIENCE).expect("no callback runs");
        assert!(fate.is_dropped() && Runtime::global().is_shut_down());
        assert_eq!(timer.reset(secs(1)), Changed::Ended);
        // Plain forms make what never fires, `try_` forms say why.
        assert_eq!(Timer::every(secs(1), |_| {}).reset(secs(1)), Changed::Ended);
        assert!(matches!(Timer::try_new(secs(1), NEVER, |_| {}), Err(RuntimeError::Ended)));
        assert!(matches!(Runtime::try_global(), Err(StartError::ShutDown)));
        assert!(!CancellationTokenSource::after(secs(1)).is_cancelled());
    });
}
