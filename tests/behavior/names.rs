//! Names of timers: told to the hooks of a runtime and by its dump.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use timerqueue::{Delay, ManualClock, OnceTimer, Runtime, Timer, TimerBuilder};

use crate::support::poll::{CountingWaker, poll};
use crate::support::{Journal, block_on, eventually, manual, ms, native};

const SECOND: Duration = Duration::from_secs(1);

/// Starts timers of each kind by `start`, one after the other.
fn with_panics(start: impl Fn(&Runtime) -> Timer) -> (Option<String>, Option<String>, u32) {
    let (clock, told) = (ManualClock::new(), Journal::new());
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic({
            let told = told.clone();
            move |panic| {
                let line = panic.timer_site().map_or(0, |site| site.line());
                told.push((panic.timer_name().map(str::to_owned), panic.message().map(str::to_owned), line));
            }
        })
        .start()
        .expect("nothing to refuse");
    let timer = start(&runtime);
    clock.advance(SECOND);
    drop(timer);
    let mut told = told.take();
    assert_eq!(told.len(), 1);
    told.remove(0)
}

#[test]
fn s71_a_panic_tells_the_name_of_its_timer_whatever_the_kind() {
    let named = |runtime: &Runtime| TimerBuilder::on(runtime).due(SECOND).name("mine").start(|_| panic!("why"));
    let here = line!() - 1;
    let (name, message, line) = with_panics(named);
    assert_eq!((name.as_deref(), message.as_deref(), line), (Some("mine"), Some("why"), here));
    let (name, ..) =
        with_panics(|runtime| TimerBuilder::on(runtime).due(SECOND).name("mut").start_exclusive(|_| panic!("why")));
    assert_eq!(name.as_deref(), Some("mut"));
    // A callback that is consumed has gone when the handler is told; the name has not.
    let (name, message, _) = with_panics(|runtime| {
        let text = String::from("gone");
        let builder = TimerBuilder::on(runtime).due(SECOND).name(format!("once {}", 1));
        builder.start_once(move |_| panic!("{text}")).detach();
        Timer::on(runtime, SECOND, Duration::ZERO, |_| {})
    });
    assert_eq!((name.as_deref(), message.as_deref()), (Some("once 1"), Some("gone")));
    let (name, ..) = with_panics(|runtime| Timer::on(runtime, SECOND, Duration::ZERO, |_| panic!("nameless")));
    assert_eq!(name, None);
}

#[test]
fn s71_a_panic_tells_the_name_of_a_timer_that_its_callback_has_disposed() {
    let (name, message, _) = with_panics(|runtime| {
        let own: Arc<Mutex<Option<Timer>>> = Arc::default();
        let handle = Arc::clone(&own);
        let timer = TimerBuilder::on(runtime).due(SECOND).name("mine").start(move |_| {
            drop(handle.lock().unwrap().take());
            panic!("why");
        });
        *own.lock().unwrap() = Some(timer);
        Timer::on(runtime, Duration::MAX, Duration::ZERO, |_| {})
    });
    assert_eq!((name.as_deref(), message.as_deref()), (Some("mine"), Some("why")));
}

#[test]
fn s71_a_name_is_dropped_with_its_timer() {
    // Under the sanitizer, a leak fails the test.
    let (clock, runtime) = manual();
    for kind in 0..4 {
        let builder = TimerBuilder::on(&runtime).due(SECOND).period(SECOND).name(format!("timer {kind}"));
        match kind {
            0 => drop(builder.start(|_| {})),
            1 => drop(builder.start_exclusive(|_| {})),
            2 => drop(builder.start_once(|_| {})),
            _ => builder.start_once(|_| {}).detach(),
        }
    }
    clock.advance(SECOND);
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s71_slow_callbacks_are_told_of_after_their_end() {
    let told = Journal::new();
    let runtime = Runtime::builder()
        .on_slow_callback(ms(20), {
            let told = told.clone();
            move |slow| told.push((slow.timer_name().map(str::to_owned), slow.took() >= ms(25)))
        })
        .start()
        .expect("threads");
    let _quick = TimerBuilder::on(&runtime).name("quick").period(ms(1)).start(|_| {});
    let _slow = TimerBuilder::on(&runtime).name("slow").due(ms(1)).start(|_| thread::sleep(ms(25)));
    let _late = OnceTimer::on(&runtime, ms(1), |_| {
        thread::sleep(ms(25));
        panic!("a callback that panics is measured as well");
    });
    let slow = || told.len() >= 2;
    eventually("both are told of", slow);
    let mut told = told.take();
    told.retain(|(name, _)| name.as_deref() != Some("quick")); // the machine may have stood still
    told.sort();
    assert_eq!(told, [(None, true), (Some(String::from("slow")), true)]);
}

#[test]
fn s71_a_hook_that_panics_does_no_harm_and_is_told() {
    let (clock, runs, told) = (ManualClock::new(), Journal::new(), Journal::new());
    let messages = told.clone();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic(move |panic| messages.push(panic.message().map(str::to_owned)))
        .on_slow_callback(Duration::ZERO, |_| panic!("the hook"))
        .start()
        .expect("nothing to refuse");
    let ran = runs.clone();
    let _timer = Timer::on(&runtime, SECOND, SECOND, move |_| ran.push(()));
    clock.advance(SECOND * 3);
    assert_eq!((runs.len(), runtime.metrics().panics), (3, 3));
    assert_eq!(told.take(), [(); 3].map(|()| Some(String::from("the hook"))));
}

#[test]
fn s71_a_dump_has_the_next_timers_in_order() {
    let (clock, runtime) = manual();
    // every level
    let far: Vec<_> = (0..50).map(|i| Timer::on(&runtime, SECOND * (400 + 7 * i), Duration::ZERO, |_| {})).collect();
    let year = Timer::on(&runtime, SECOND * 86_400 * 365, Duration::ZERO, |_| {});
    let never = Timer::on(&runtime, Duration::MAX, Duration::ZERO, |_| {});
    let soon = TimerBuilder::on(&runtime).due(ms(3)).name("soon").start(|_| {});
    let mid: Vec<_> = (1..=20).rev().map(|i| Timer::on(&runtime, ms(50) * i, Duration::ZERO, |_| {})).collect();
    let mut sleep = Delay::on(&runtime, ms(1));
    assert!(poll(&mut sleep, &CountingWaker::new()).is_pending());
    let due = |dump: &timerqueue::observe::TimerDump| -> Vec<u64> {
        dump.timers.iter().map(|timer| timer.due.as_duration().as_millis() as u64).collect()
    };
    for n in [0, 1, 5, 23, 1_000] {
        let dump = runtime.dump(n);
        let mut all: Vec<u64> = [1, 3].into_iter().chain((1..=20).map(|i| 50 * i)).collect();
        all.extend((0..50).map(|i| 1_000 * (400 + 7 * i)));
        all.push(86_400_000 * 365);
        all.truncate(n);
        assert_eq!((due(&dump), dump.complete), (all, true), "{n}");
    }
    let dump = runtime.dump(2);
    assert!(dump.timers[0].is_future && dump.timers[1].name.as_deref() == Some("soon"));
    assert_eq!(dump.timers[1].site.map(|site| site.file()), Some(file!()));
    assert_eq!(dump.to_string().lines().count(), 2);
    // What has come due and is not taken up yet comes first, and a walk changes nothing.
    clock.stall(ms(120));
    assert_eq!(due(&runtime.dump(4)), [1, 3, 50, 100]);
    assert_eq!(clock.advance(Duration::ZERO), 4);
    assert_eq!(due(&runtime.dump(1)), [150]);
    drop((far, year, never, soon, mid, sleep));
}

/// Far more timers than a walk looks at.
#[test]
fn s71_a_dump_of_a_crowded_queue_says_that_it_is_not_complete() {
    let (_clock, runtime) = manual();
    let timers: Vec<_> =
        (0..10_000u32).map(|i| Timer::on(&runtime, SECOND + Duration::from_nanos(i.into()), SECOND, |_| {})).collect();
    let dump = runtime.dump(10);
    assert_eq!((dump.timers.len(), dump.complete), (10, false));
    assert!(dump.timers.is_sorted_by_key(|timer| timer.due));
    drop(timers);
    assert_eq!((runtime.dump(10).timers.len(), runtime.dump(10).complete), (0, true));
}

/// Callbacks that run, end and are changed while another thread reads their names.
#[test]
fn s71_a_dump_beside_timers_that_fire_and_go() {
    let runtime = native();
    let mut dumps = 0;
    let named = |i: u64| {
        let builder = TimerBuilder::on(&runtime).due(Duration::from_micros(50 * (i % 40))).name(format!("timer {i}"));
        match i % 3 {
            0 => builder.period(Duration::from_micros(100)).start(|_| {}),
            1 => builder.period(Duration::from_micros(90)).start_exclusive(|_| {}),
            _ => builder.start(|_| {}),
        }
    };
    for round in 0..200 {
        let timers: Vec<_> = (0..30).map(|i| named(30 * round + i)).collect();
        dumps += runtime.dump(20).timers.iter().filter(|timer| timer.name.is_some()).count();
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(timers)));
        assert!(dropped.is_ok());
    }
    assert!(dumps > 0, "names were read");
    block_on(Delay::on(&runtime, ms(1)));
}

/// A disposal waits for the lock that a long walk holds. Meanwhile the callback ends, and its
/// thread drops the callback of a timer that is still in its list: the walk reads the name of this
/// timer. (For AddressSanitizer.)
#[test]
fn s71_a_dump_reads_the_name_of_a_timer_whose_callback_is_gone() {
    let runtime = Runtime::builder().queues(1).start().unwrap();
    let timer = |due, period| TimerBuilder::on(&runtime).due(due).period(period).name("a name of a timer".to_owned());
    let (far, soon) = (Duration::from_secs(3600), Duration::from_micros(30));
    let _walked: Vec<_> = (0..2_000).map(|_| timer(far, far).start(|_| {})).collect();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let dump = runtime.dump(4_000);
                    assert!(dump.timers.iter().all(|timer| timer.name.as_deref() == Some("a name of a timer")));
                }
            });
        }
        for _ in 0..300 {
            let guard = Arc::new(());
            let timers: Vec<_> = (0..16)
                .map(|_| {
                    let guard = Arc::clone(&guard);
                    timer(soon, soon).start(move |_| {
                        let _ = &guard;
                        thread::sleep(soon);
                    })
                })
                .collect();
            thread::sleep(soon);
            timers.iter().for_each(Timer::dispose);
        }
        ends.store(true, Ordering::Relaxed);
    });
}
