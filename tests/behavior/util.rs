//! Debounce, throttle, watchdog, heartbeat (S74): when they run their callbacks, on virtual time;
//! hostile callbacks; many threads.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::util::{Debounce, Heartbeat, Throttle, Watchdog};
use timerqueue::{ManualClock, OnceTimer, Runtime};

use crate::support::{Journal, eventually, manual, ms, native, secs};

/// The instants of the runs, in milliseconds.
fn record(runtime: &Runtime) -> (Journal<u64>, impl FnMut() + Send + 'static) {
    let (journal, runtime) = (Journal::new(), runtime.clone());
    let seen = journal.clone();
    (journal, move || seen.push(runtime.now().as_duration().as_millis() as u64))
}

fn calls_at(clock: &ManualClock, instants: &[u64], call: impl Fn()) {
    for &at in instants {
        clock.advance(ms(at).saturating_sub(clock.now().as_duration()));
        call();
    }
}

#[test]
fn s74_a_debounce_runs_once_after_the_last_call() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let debounce = Debounce::on(&runtime, ms(10), run);
    assert!(!debounce.is_pending());
    calls_at(&clock, &[0, 5, 14, 100, 110, 200], || debounce.call());
    assert!(debounce.is_pending());
    clock.advance(secs(1));
    assert_eq!(runs.take(), [24, 110, 120, 210], "at 110 the quiet time has passed, and a new burst begins");
    assert!(!debounce.is_pending());
}

#[test]
fn s74_a_debounce_with_a_limit_answers_each_call_in_time() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let debounce = Debounce::on(&runtime, ms(10), run).max_wait(ms(25));
    calls_at(&clock, &(0..20).map(|i| 5 * i).collect::<Vec<_>>(), || debounce.call());
    clock.advance(secs(1));
    assert_eq!(runs.take(), [25, 50, 75, 100]);
}

#[test]
fn s74_a_debounce_is_flushed_and_cancelled() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let debounce = Debounce::on(&runtime, ms(10), run);
    assert!(!debounce.flush() && !debounce.cancel(), "nothing is pending");
    debounce.call();
    assert!(debounce.flush());
    debounce.call(); // does not move the run that is due
    clock.advance(ms(3));
    debounce.call();
    assert!(debounce.cancel() && !debounce.is_pending());
    clock.advance(ms(50));
    assert_eq!(runs.take(), [0]);
    debounce.call();
    drop(debounce);
    clock.advance(secs(1));
    assert_eq!(runs.take(), [0; 0]);
}

#[test]
fn s74_a_throttle_runs_at_once_and_then_once_in_a_period() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let throttle = Throttle::on(&runtime, ms(10), run);
    calls_at(&clock, &[0, 1, 2, 9, 11, 40, 50, 51, 99], || assert!(throttle.call()));
    clock.advance(secs(1));
    assert_eq!(runs.take(), [0, 10, 20, 40, 50, 60, 99]);
    assert!(!throttle.is_pending());
    assert!(throttle.call() && throttle.cancel() && !throttle.cancel());
    clock.advance(secs(1));
    assert_eq!(runs.take(), [0; 0]);
}

#[test]
fn s74_a_throttle_without_a_trailing_run_ignores_early_calls() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let throttle = Throttle::on(&runtime, ms(10), run).trailing(false);
    let accepted = Journal::new();
    calls_at(&clock, &[0, 1, 9, 10, 12, 25], || {
        accepted.push(throttle.call());
        clock.advance(Duration::ZERO);
    });
    assert_eq!(accepted.take(), [true, false, false, true, false, true]);
    assert_eq!(runs.take(), [0, 10, 25]);
}

#[test]
fn s74_a_watchdog_barks_once_until_it_is_fed() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let watchdog = Watchdog::on(&runtime, ms(10), run);
    assert_eq!(watchdog.limit(), ms(10));
    calls_at(&clock, &[5, 14, 20], || assert!(watchdog.feed()));
    clock.advance(ms(80));
    assert_eq!(runs.take(), [30]);
    assert!(!watchdog.feed(), "it has run");
    assert!(watchdog.pause() && !watchdog.pause());
    clock.advance(ms(80));
    assert!(!watchdog.feed(), "it was paused");
    clock.advance(ms(80));
    assert_eq!(runs.take(), [190]);
}

#[test]
fn s74_a_heartbeat_beats_unless_a_beat_was_given_in_another_way() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let heartbeat = Heartbeat::on(&runtime, ms(10), run);
    assert_eq!(heartbeat.period(), ms(10));
    clock.advance(ms(25));
    assert!(heartbeat.beaten());
    clock.advance(ms(15));
    heartbeat.beat();
    clock.advance(ms(12));
    assert!(heartbeat.pause() && !heartbeat.pause());
    clock.advance(ms(48));
    assert!(!heartbeat.beaten());
    clock.advance(ms(15));
    assert_eq!(runs.take(), [10, 20, 35, 40, 50, 110]);
    // Beats that are missed are left out.
    clock.stall(ms(100));
    clock.advance(Duration::ZERO);
    assert_eq!(runs.take().len(), 1);
}

/// A timer that is armed again goes to the end of those due at one instant (S14).
#[test]
fn s74_a_beat_that_is_due_is_not_put_off_by_further_calls() {
    let (clock, runtime) = manual();
    let order = Journal::new();
    let seen = order.clone();
    let heartbeat = Heartbeat::on(&runtime, ms(10), move || seen.push("beat"));
    for _ in 0..2 {
        heartbeat.beat();
        let seen = order.clone();
        let other = OnceTimer::on(&runtime, Duration::ZERO, move |_| seen.push("other"));
        heartbeat.beat();
        assert_eq!(clock.advance(Duration::ZERO), 2);
        assert_eq!(order.take(), ["beat", "other"]);
        drop(other);
    }
    // A beat that was withdrawn can be asked for again.
    heartbeat.beat();
    assert!(heartbeat.pause());
    heartbeat.beat();
    assert!(heartbeat.beaten());
    assert_eq!(clock.advance(ms(9)), 0);
    heartbeat.beat();
    assert_eq!(clock.advance(Duration::ZERO), 1);
}

#[test]
fn s74_times_at_their_ends() {
    let (clock, runtime) = manual();
    for extreme in [Duration::ZERO, Duration::MAX] {
        let (runs, run) = record(&runtime);
        let debounce = Debounce::on(&runtime, extreme, run).max_wait(extreme);
        debounce.call();
        let (more, run) = record(&runtime);
        let throttle = Throttle::on(&runtime, extreme, run);
        throttle.call();
        clock.advance(secs(1));
        throttle.call();
        clock.advance(secs(1));
        assert_eq!(runs.take().len(), usize::from(extreme.is_zero()));
        assert_eq!(more.take().len(), 1 + usize::from(extreme.is_zero()));
        let (beats, run) = record(&runtime);
        let heartbeat = Heartbeat::on(&runtime, extreme, run);
        heartbeat.beaten();
        clock.advance(secs(1));
        assert_eq!(beats.take(), [], "{extreme:?}");
        let (barks, run) = record(&runtime);
        let watchdog = Watchdog::on(&runtime, extreme, run);
        clock.advance(secs(1));
        watchdog.feed();
        clock.advance(secs(1));
        assert_eq!(barks.take().len(), 2 * usize::from(extreme.is_zero()));
    }
}

/// The callback calls and drops its own helper, and panics.
#[test]
fn s74_a_callback_may_use_and_drop_its_own_helper() {
    let (clock, runtime) = manual();
    let own = Arc::new(std::sync::Mutex::new(None::<Debounce>));
    let runs = Arc::new(AtomicUsize::new(0));
    let debounce = Debounce::on(&runtime, ms(10), {
        let (own, runs) = (Arc::clone(&own), Arc::clone(&runs));
        move || {
            let mut own = own.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match runs.fetch_add(1, Ordering::Relaxed) {
                0 => own.as_ref().unwrap().call(),
                1 => {
                    own.as_ref().unwrap().call();
                    panic!("contained");
                }
                _ => drop(own.take()),
            }
        }
    });
    debounce.call();
    *own.lock().unwrap() = Some(debounce);
    clock.advance(secs(1));
    assert_eq!((runs.load(Ordering::Relaxed), runtime.metrics().panics), (3, 1));
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s74_nothing_is_called_after_the_end_of_the_runtime() {
    let (clock, runtime) = manual();
    let (runs, run) = record(&runtime);
    let debounce = Debounce::on(&runtime, ms(1), run);
    let (_, run) = record(&runtime);
    let throttle = Throttle::on(&runtime, ms(1), run);
    let watchdog = Watchdog::on(&runtime, ms(1), || {});
    let heartbeat = Heartbeat::on(&runtime, ms(1), || {});
    debounce.call();
    assert!(throttle.call());
    runtime.shutdown(secs(1)).unwrap();
    assert!(!throttle.is_pending() && !debounce.is_pending(), "no run comes");
    debounce.call();
    assert!(!debounce.is_pending() && !throttle.call() && !throttle.cancel() && !debounce.cancel());
    assert!(!debounce.flush() && !throttle.call() && !watchdog.feed() && !heartbeat.beaten());
    heartbeat.beat();
    clock.advance(secs(1));
    assert_eq!(runs.take(), [0; 0]);
    assert!(Debounce::try_new(ms(1), || {}).is_ok(), "on the default runtime");
    runtime.enter(|| {
        assert!(Throttle::try_new(ms(1), || {}).is_err());
        assert!(Watchdog::try_new(ms(1), || {}).is_err());
        assert!(Heartbeat::try_new(ms(1), || {}).is_err());
    });
}

/// Each call is followed by the beginning of a run, whichever threads call, and no two runs begin
/// within a period.
#[test]
fn s74_no_call_is_lost_among_threads() {
    fn is_shared(_: &(impl Send + Sync + UnwindSafe + RefUnwindSafe)) {}
    let runtime = native();
    let called = Arc::new(AtomicUsize::new(0));
    let (seen, last) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&called));
    let (begun, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let throttle = Throttle::on(&runtime, ms(1), {
        let (seen, begun) = (Arc::clone(&seen), Arc::clone(&begun));
        move || {
            begun.fetch_add(1, Ordering::SeqCst);
            seen.store(last.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    });
    let (debounced, last) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&called));
    let debounce = Debounce::on(&runtime, Duration::from_micros(50), {
        let debounced = Arc::clone(&debounced);
        move || debounced.store(last.load(Ordering::SeqCst), Ordering::SeqCst)
    });
    is_shared(&throttle);
    is_shared(&debounce);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    called.fetch_add(1, Ordering::SeqCst);
                    throttle.call();
                    debounce.call();
                }
            });
        }
    });
    eventually("the last call is answered", || {
        seen.load(Ordering::SeqCst) == 80_000 && debounced.load(Ordering::SeqCst) == 80_000
    });
    let (runs, periods) = (begun.load(Ordering::SeqCst), start.elapsed().as_millis() as usize);
    assert!(runs <= periods + 2, "{runs} runs in {periods} periods");
}
