//! When a store that fails is asked again.

use super::*;

/// Puts jobs into the store of `rig` as another scheduler does, so that the scheduler of `rig` asks
/// the store.
fn other(rig: &Rig) -> impl Fn(&str) + use<> {
    let runtime = Runtime::builder().manual_clock(&rig.clock).start().unwrap();
    let other = Scheduler::builder().runtime(&runtime).store(rig.gate.store.clone()).start().unwrap();
    move |key| assert!(other.put_to("hold", &()).key(key).send().wait().unwrap().added().is_some())
}

/// The times at which a store that fails is asked again do not add up.
#[test]
fn a_store_that_fails_is_asked_again_by_one_timer() {
    let rig = rig(1);
    rig.gate.fails.store(true, Ordering::SeqCst);
    let put = other(&rig);
    for i in 0..50 {
        put(&i.to_string());
        rig.clock.advance(Duration::from_millis(10));
    }
    let asked = rig.gate.failures.swap(0, Ordering::SeqCst);
    assert!((10..=70).contains(&asked), "{asked} times while jobs came");
    rig.clock.advance(Duration::from_secs(600));
    let asked = rig.gate.failures.load(Ordering::SeqCst);
    assert!((20..=30).contains(&asked), "{asked} times in ten minutes: at last each 30 s");
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(31));
    assert_eq!(rig.tokens.lock().len(), 1, "a job runs");
}

/// Failures of claims that others have caused do not make the waits longer.
#[test]
fn a_store_that_fails_for_a_moment_is_asked_again_soon() {
    let rig = rig(99);
    rig.gate.fails.store(true, Ordering::SeqCst);
    let put = other(&rig);
    for i in 0..30 {
        put(&i.to_string());
        rig.clock.advance(Duration::from_millis(10));
    }
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_millis(400));
    assert_eq!(rig.tokens.lock().len(), 30);
}

/// The timer of a long outage does not stand for that of a later failure.
#[test]
fn a_store_that_has_healed_and_fails_again_is_asked_again_soon() {
    let rig = rig(9);
    rig.gate.fails.store(true, Ordering::SeqCst);
    let put = other(&rig);
    put("a");
    rig.clock.advance(Duration::from_secs(52)); // the next timer is for 81.1 s
    rig.gate.fails.store(false, Ordering::SeqCst);
    put("b");
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!(rig.tokens.lock().len(), 2, "a claim has succeeded");
    rig.gate.fails.store(true, Ordering::SeqCst);
    put("c");
    rig.clock.advance(Duration::from_millis(10));
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_millis(100));
    assert_eq!(rig.tokens.lock().len(), 3);
}
