//! Timestamps, and `std::time::Instant` both ways.

use super::*;

#[test]
fn s60_on_a_manual_clock_conversions_are_exact_and_stay_the_same_while_real_time_passes() {
    let (clock, runtime) = manual();
    let zero = runtime.instant(runtime.now()).expect("an instant");
    clock.advance(secs(3600));
    std::thread::sleep(ms(2)); // real time, which does not count
    let now = runtime.instant(runtime.now()).expect("an instant");
    assert_eq!((now - zero, runtime.timestamp(now)), (secs(3600), runtime.now()));
    for at in [zero, now, now + ns(1), now + secs(1 << 30)] {
        assert_eq!(runtime.instant(runtime.timestamp(at)), Some(at));
    }
    // Ends of the clock.
    let never = runtime.now() + Duration::MAX;
    assert_eq!((runtime.instant(never), runtime.timestamp(zero + secs(1 << 35))), (None, never));
    assert_eq!(zero.checked_sub(secs(1)).map(|before| runtime.timestamp(before).as_duration()), Some(secs(0)));
}

#[test]
fn s60_after_a_suspend_the_boot_clock_converts_by_the_time_in_suspend() {
    let clock = ManualClock::new();
    let on = |which| Runtime::builder().manual_clock(&clock).clock(which).start().expect("nothing to refuse");
    let (monotonic, boot) = (on(RuntimeClock::Monotonic), on(RuntimeClock::Boot));
    clock.advance(secs(1));
    clock.suspend(secs(10));
    assert_eq!(boot.now() - monotonic.now().min(boot.now()), secs(10));
    let now = monotonic.instant(monotonic.now()).expect("an instant");
    assert_eq!(boot.instant(boot.now()), Some(now), "the same moment");
    assert_eq!(boot.timestamp(now + secs(5)), boot.now() + secs(5));
}

#[test]
fn s60_on_real_time_a_deadline_given_as_an_instant_is_never_early() {
    for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
        let Ok(runtime) = Runtime::builder().clock(clock).workers(2).start() else { continue };
        for _ in 0..50 {
            let deadline = Instant::now() + ms(1);
            block_on(runtime.enter(|| Delay::until(deadline)));
            assert!(Instant::now() >= deadline, "{clock:?}");
        }
        let at = runtime.now() + secs(5);
        let back = runtime.timestamp(runtime.instant(at).expect("an instant"));
        let apart = back.saturating_duration_since(at) + at.saturating_duration_since(back);
        assert!(apart < secs(1), "{apart:?}");
        if clock == RuntimeClock::Monotonic {
            assert!(cfg!(windows) || cfg!(target_os = "openbsd") || apart.is_zero(), "{apart:?}");
        }
    }
}

#[test]
fn s60_delays_and_timeouts_take_either_kind_of_deadline() {
    let (clock, runtime) = manual();
    let now = runtime.instant(runtime.now()).expect("an instant");
    let (one, mut other) =
        (runtime.enter(|| Delay::until(now + secs(5))), runtime.enter(|| Delay::until(runtime.now() + secs(7))));
    assert_eq!(other.deadline() - one.deadline(), secs(2));
    other.reset_at(now + secs(5));
    clock.advance(secs(5) - ns(1));
    assert!(!one.is_elapsed() && !other.is_elapsed());
    clock.advance(ns(1));
    assert!(one.is_elapsed() && other.is_elapsed());
    // Of the default runtime, on real time.
    assert!(block_on(timeout_at(Instant::now() + ms(1), std::future::pending::<()>())).is_err());
    let deadline = Delay::until(Instant::now() + secs(5)).deadline();
    assert_eq!(Delay::until(deadline).deadline(), deadline);
    drop(native());
}

#[test]
fn s60_the_time_since_a_timestamp_is_read_from_the_runtime() {
    let (clock, runtime) = manual();
    let begun = clock.now();
    clock.advance(ms(20));
    assert_eq!((runtime.elapsed(begun), runtime.elapsed(begun + secs(1))), (ms(20), secs(0)));
}
