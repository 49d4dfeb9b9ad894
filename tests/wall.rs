//! Wall timers: S56, and what setting the wall clock, or a suspend, does to all others (S54, S55).
//!
//! Ground rules. On virtual time the wall clock is stepped both ways at will. The machine's own wall clock is set to its
//! own value and to nothing else: that is enough for the system to tell everybody that it was set. This binary defines
//! `timerfd_settime` and `clock_gettime` itself, so that the crate's calls pass through here, and a process can be shown
//! another wall clock than the machine's.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // stands in for two functions of the C library; sets the clock to its own value; limits

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use common::{
    Canary, Count, Gate, Journal, NEVER, PATIENCE, Random, block_on, eventually, in_child, manual, ms, ns,
    open_descriptors, secs, skip, us, within,
};
use timerqueue::{Alarm, Changed, ManualClock, Runtime, RuntimeBuilder, RuntimeClock, Waited, WallTick, WallTimer};

/// Times that a timer was set to be cancelled when the wall clock is set.
static TOLD_OF_STEPS: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_settime(
    fd: libc::c_int,
    flags: libc::c_int,
    new: *const libc::itimerspec,
    old: *mut libc::itimerspec,
) -> libc::c_int {
    if flags & libc::TFD_TIMER_CANCEL_ON_SET != 0 {
        TOLD_OF_STEPS.fetch_add(1, Ordering::SeqCst);
        if REFUSED.load(Ordering::SeqCst) {
            // SAFETY: this thread's own.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return -1;
        }
    }
    // SAFETY: the same call with the same arguments.
    unsafe { libc::syscall(libc::SYS_timerfd_settime, fd, flags, new, old) as libc::c_int }
}

/// The system knows no timers that are cancelled when the wall clock is set.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// By how many seconds this process is shown a later wall clock than the machine's.
static SHIFT: AtomicI64 = AtomicI64::new(0);

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, now: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the same call with the same arguments, and the structure that it has filled in.
    unsafe {
        let result = libc::syscall(libc::SYS_clock_gettime, clock, now) as libc::c_int;
        if clock == libc::CLOCK_REALTIME && result == 0 {
            (*now).tv_sec += SHIFT.load(Ordering::SeqCst) as libc::time_t;
        }
        result
    }
}

// -------------------------------------------------------------------------------------------------------- virtual time

/// What the wall clock showed when each callback ran.
fn noting(journal: &Journal<SystemTime>) -> impl FnMut(&WallTick<'_>) + Send + 'static {
    let journal = journal.clone();
    move |tick| journal.push(tick.now())
}

/// A callback that bumps the count and does nothing else.
fn bumping(count: &Count) -> impl FnMut(&WallTick<'_>) + Send + 'static {
    let count = count.clone();
    move |_| {
        count.bump();
    }
}

#[test]
fn s56_fires_once_when_the_wall_clock_shows_the_time() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let at = clock.wall() + secs(10);
    let timer = runtime.wall_timer(at, noting(&journal));
    assert_eq!(runtime.wall_now(), clock.wall());
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
    assert_eq!(clock.advance(secs(1_000)), 0);
    assert_eq!(journal.take(), [at]);
    assert_eq!(timer.change(at), Changed::WasIdle, "passed: it fires at once");
    assert_eq!(clock.advance(Duration::ZERO), 1);
    assert_eq!(journal.take(), [clock.wall()]);
}

#[test]
fn s56_follows_steps_in_both_directions() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let start = clock.wall();
    let timer = runtime.wall_timer(start + secs(100), noting(&journal));
    clock.advance(secs(50));
    // Back: it waits longer.
    clock.set_wall(start);
    assert_eq!(clock.advance(secs(99)), 0);
    // Forward, short of it: it waits shorter.
    clock.set_wall(start);
    clock.set_wall(start + secs(90));
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
    assert_eq!(journal.take(), [start + secs(100)]);
    // Past it: at once.
    assert_eq!(timer.change(start + secs(200)), Changed::WasIdle);
    clock.set_wall(start + secs(5_000));
    assert_eq!(clock.advance(Duration::ZERO), 1);
    assert_eq!(journal.take(), [start + secs(5_000)]);
    // And back again: it has fired, and does not fire twice.
    clock.set_wall(start);
    assert_eq!(clock.advance(secs(10_000)), 0);
    // Past it and back before anything could run: it has not been shown to anybody.
    let now = clock.wall();
    assert_eq!(timer.change(now + secs(10)), Changed::WasIdle);
    clock.set_wall(now + secs(20));
    clock.set_wall(now);
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
}

#[test]
fn s56_a_callback_that_is_queued_does_not_run_early_after_a_step_back() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let at = clock.wall() + secs(10);
    // Both due at one instant; the first to run sets the clock back.
    let first = runtime.timer(secs(10), NEVER, {
        let clock = clock.clone();
        move |_| clock.set_wall(clock.wall() - secs(3))
    });
    let timer = runtime.wall_timer(at, noting(&journal));
    clock.advance(secs(13) - ns(1));
    assert_eq!(journal.len(), 0);
    clock.advance(ns(1));
    assert_eq!(journal.take(), [at]);
    drop((first, timer));
}

#[test]
fn s54_s56_a_suspend_counts_on_the_wall_and_on_the_boot_clock() {
    let (clock, runtime) = manual();
    let boot = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot).start().expect("nothing to refuse");
    let (walls, counted, slept) = (Journal::new(), Count::new(), Count::new());
    for runtime in [&runtime, &boot] {
        runtime.wall_timer(clock.wall() + secs(100), noting(&walls)).detach();
    }
    let awake = runtime.timer(secs(100), NEVER, counted.callback());
    let always = boot.timer(secs(100), NEVER, slept.callback());
    let before = clock.wall();
    clock.suspend(secs(60));
    assert_eq!((clock.now().as_duration(), boot.now().as_duration()), (secs(0), secs(60)));
    assert_eq!((runtime.now(), clock.wall()), (clock.now(), before + secs(60)));
    assert_eq!(clock.next_due().expect("three wait").as_duration(), secs(40));
    assert_eq!(clock.advance(secs(40) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 3);
    assert_eq!((walls.len(), slept.get(), counted.get()), (2, 1, 0));
    assert_eq!(clock.advance(secs(60)), 1);
    assert_eq!(counted.get(), 1);
    // Due within a suspend: late, at once when it is over, and in order.
    let order = Journal::new();
    let timers: Vec<_> = [30, 10, 20]
        .into_iter()
        .map(|due| {
            let order = order.clone();
            boot.timer(secs(due), NEVER, move |tick| order.push((due, tick.lateness())))
        })
        .collect();
    clock.suspend(secs(25));
    assert_eq!(clock.advance(Duration::ZERO), 2);
    assert_eq!(clock.advance(secs(5)), 1);
    assert_eq!(order.take(), [(10, secs(15)), (20, secs(5)), (30, secs(0))]);
    drop((timers, awake, always));
}

#[test]
fn s55_setting_the_wall_clock_moves_no_other_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.timer(ms(10), ms(10), common::recording(&journal));
    for (by, forward) in [(1_000, true), (500, false), (100_000, true), (200_000, false)] {
        let wall = clock.wall();
        clock.set_wall(if forward { wall + secs(by) } else { wall - secs(by) });
        clock.advance(ms(10));
    }
    assert_eq!(journal.take(), [10, 20, 30, 40]);
    drop(timer);
}

#[test]
fn s56_change_dispose_drop_detach_and_shutdown() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let soon = clock.wall() + secs(10);
    let timer = runtime.wall_timer(soon, noting(&journal));
    assert_eq!(timer.change(soon + secs(10)), Changed::WasWaiting);
    assert_eq!(clock.advance(secs(19)), 0);
    assert_eq!(timer.change(soon), Changed::WasWaiting, "passed: at once");
    assert_eq!(clock.advance(Duration::ZERO), 1);
    timer.dispose();
    assert_eq!(timer.change(clock.wall() + secs(1)), Changed::Ended);
    assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    journal.take();
    // Whatever ends a timer, neither time nor steps bring it back, and what it owned is dropped.
    type End = fn(WallTimer, &Runtime);
    let ends: [(&str, End); 5] = [
        ("dispose", |timer, _| timer.dispose()),
        ("dispose_and_wait", |timer, _| assert_eq!(timer.dispose_and_wait(), Waited::Ended)),
        ("dispose_async", |timer, _| assert_eq!(block_on(timer.dispose_async()), Waited::Ended)),
        ("drop", |timer, _| drop(timer)),
        ("shutdown", |timer, runtime| {
            timer.detach();
            assert_eq!(runtime.shutdown(secs(1)), Ok(()));
        }),
    ];
    for (how, end) in ends {
        for far in [secs(10), Duration::from_secs(4_000_000_000)] {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let (canary, fate) = Canary::new();
            let fired = Count::new();
            let timer = runtime.wall_timer(clock.wall() + far, {
                let fired = fired.clone();
                move |_| {
                    canary.sing();
                    fired.bump();
                }
            });
            end(timer, &runtime);
            assert!(fate.is_dropped(), "{how}");
            clock.set_wall(clock.wall() + secs(5_000_000_000));
            assert_eq!((clock.advance(secs(100)), fired.get(), runtime.active_timers()), (0, 0, 0), "{how}");
        }
    }
    // Detached: fires, and is gone.
    let (canary, fate) = Canary::new();
    runtime.wall_timer(clock.wall() + secs(1), move |_| canary.sing()).detach();
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(secs(1)), 1);
    assert!(fate.is_dropped());
    // Born disposed.
    runtime.shutdown(secs(1)).expect("nothing runs");
    let (canary, fate) = Canary::new();
    let timer = runtime.wall_timer(clock.wall(), move |_| canary.sing());
    assert!(fate.is_dropped());
    assert_eq!(timer.change(clock.wall()), Changed::Ended);
}

#[test]
fn s56_the_callback_changes_and_disposes_its_own_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let start = clock.wall();
    let (canary, fate) = Canary::new();
    let timer = runtime.wall_timer(start + secs(60), {
        let journal = journal.clone();
        move |tick| {
            canary.sing();
            journal.push(tick.scheduled());
            if tick.scheduled() == start + secs(180) {
                tick.dispose();
            } else {
                assert_eq!(tick.change(tick.scheduled() + secs(60)), Changed::WasIdle);
            }
        }
    });
    clock.set_wall(start + secs(90)); // the first is late, the second is not
    assert_eq!(clock.advance(secs(1_000)), 3);
    assert_eq!(journal.take(), [start + secs(60), start + secs(120), start + secs(180)]);
    assert!(fate.is_dropped());
    assert_eq!(timer.change(start), Changed::Ended);
}

#[test]
fn s56_times_that_no_clock_reaches() {
    let (clock, runtime) = manual();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(i64::MAX as u64);
    let fired = Count::new();
    let far = runtime.wall_timer(end, bumping(&fired));
    clock.advance(Duration::from_secs(3_600_000_000));
    assert_eq!(fired.get(), 0);
    // A step past it counts all the same.
    clock.set_wall(end);
    assert_eq!(clock.advance(Duration::ZERO), 1);
    // The wall clock is at its end and stands still; nothing panics.
    clock.advance(secs(10));
    let before_all = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000_000);
    clock.set_wall(before_all);
    assert_eq!(far.change(before_all + secs(1)), Changed::WasIdle);
    assert_eq!(clock.advance(secs(1)), 1);
}

/// Random steps, suspends, advances and changes, against what a list of times and a wall clock would make of them.
#[test]
fn s56_agrees_with_a_plain_list() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let clock = ManualClock::new();
        let builder = Runtime::builder().manual_clock(&clock).queues(1 + seed as usize % 3);
        let on = if seed % 2 == 0 { RuntimeClock::Monotonic } else { RuntimeClock::Boot };
        let runtime = builder.clock(on).start().expect("nothing to refuse");
        let journal = Journal::new();
        let mut wall = SystemTime::UNIX_EPOCH + secs(1_000_000);
        clock.set_wall(wall);
        let mut timers: BTreeMap<u64, WallTimer> = BTreeMap::new();
        let mut waiting: BTreeMap<u64, SystemTime> = BTreeMap::new();
        let mut made = 0;
        for _ in 0..600 {
            let some_time = || ns(1 + random.0 % 100_000_000_000);
            let time = some_time();
            let near = if random.below(2) == 0 { wall + time } else { wall - time / 4 };
            match random.below(8) {
                0 | 1 => {
                    let (journal, id) = (journal.clone(), made);
                    let timer = runtime.wall_timer(near, move |tick| journal.push((id, tick.now())));
                    timers.insert(made, timer);
                    waiting.insert(made, near);
                    made += 1;
                }
                2 if !timers.is_empty() => {
                    let id = *timers.keys().nth(random.below(timers.len() as u64) as usize).expect("some");
                    let was = if waiting.insert(id, near).is_some() { Changed::WasWaiting } else { Changed::WasIdle };
                    assert_eq!(timers[&id].change(near), was, "seed {seed}");
                }
                3 if timers.len() > 20 => {
                    let id = *timers.keys().nth(random.below(timers.len() as u64) as usize).expect("some");
                    timers.remove(&id);
                    waiting.remove(&id);
                }
                4 => {
                    wall = near;
                    clock.set_wall(wall);
                }
                5 => {
                    wall += time / 8;
                    clock.suspend(time / 8);
                }
                _ => {}
            }
            // What is due now fires now, the rest when the clock comes by.
            let by = time / 16;
            let mut expected = Vec::new();
            waiting.retain(|&id, &mut at| {
                let fires = at <= wall + by;
                if fires {
                    expected.push((id, at.max(wall)));
                }
                !fires
            });
            wall += by;
            clock.advance(by);
            let mut seen = journal.take();
            seen.sort();
            expected.sort();
            assert_eq!(seen, expected, "seed {seed}");
            assert_eq!(clock.wall(), wall, "seed {seed}");
        }
    }
}

#[test]
fn s56_threads_that_change_and_dispose_while_the_clock_is_set() {
    within(PATIENCE, "wall timers of many threads", || {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).queues(2).start().expect("nothing to refuse");
        const THREADS: u64 = 3;
        let (done, early) = (Count::new(), Count::new());
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let (runtime, clock, done, early) = (&runtime, &clock, &done, &early);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..2_000 {
                        let fired = Count::new();
                        let timer = runtime.wall_timer(clock.wall() + us(random.below(2_000)), bumping(&fired));
                        if random.below(2) == 0 {
                            let _ = timer.change(clock.wall() + us(random.below(2_000)));
                        }
                        if random.below(8) == 0 {
                            timer.detach();
                        } else {
                            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
                            let after = fired.get();
                            thread::yield_now();
                            if fired.get() != after {
                                early.bump();
                            }
                        }
                    }
                    done.bump();
                });
            }
            let mut random = Random(99);
            while done.get() < THREADS as usize {
                clock.advance(us(random.below(500)));
                let wall = clock.wall();
                let by = us(random.below(1_000));
                clock.set_wall(if random.below(2) == 0 { wall + by } else { wall - by });
            }
        });
        assert_eq!(early.get(), 0, "after it has been waited for");
        clock.set_wall(clock.wall() + secs(10));
        clock.advance(Duration::ZERO);
        assert_eq!(runtime.active_timers(), 0, "all detached ones have fired, the others are gone");
    });
}

// ----------------------------------------------------------------------------------------------------------- real time

/// A runtime for each alarm and clock there is.
fn each() -> Vec<(String, RuntimeBuilder)> {
    let mut all = Vec::new();
    for alarm in [Alarm::Native, Alarm::Portable] {
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            all.push((format!("{alarm:?} on {clock:?}"), Runtime::builder().workers(3).alarm(alarm).clock(clock)));
        }
    }
    all
}

#[test]
fn s56_fires_on_real_time_and_never_early() {
    for (which, builder) in each() {
        within(PATIENCE, &which, move || {
            let runtime = builder.start().expect("the system has threads and timers");
            let journal = Journal::new();
            let timers: Vec<WallTimer> = (0..50)
                .map(|i| {
                    let journal = journal.clone();
                    runtime.wall_timer(SystemTime::now() + us(i * 531), move |tick| {
                        journal.push((tick.scheduled(), SystemTime::now(), tick.now()));
                    })
                })
                .collect();
            eventually("all fire", || journal.len() == 50);
            for (scheduled, now, told) in journal.take() {
                assert!(scheduled <= now && scheduled <= told, "{scheduled:?} {now:?} {told:?}");
            }
            drop(timers);
            // In the past, before and after the beginning of time as computers count it.
            let fired = Count::new();
            for at in [SystemTime::now(), SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH - secs(1_000)] {
                runtime.wall_timer(at, bumping(&fired)).detach();
            }
            eventually("at once", || fired.get() == 3);
            // One whose callback runs is waited for.
            let (entered, gate) = (Count::new(), Gate::new());
            let timer = runtime.wall_timer(SystemTime::now(), {
                let (entered, gate) = (entered.clone(), gate.clone());
                move |_| {
                    entered.bump();
                    gate.wait();
                }
            });
            eventually("it runs", || entered.get() == 1);
            let waiting = timer.dispose_async();
            gate.open();
            assert_eq!(block_on(waiting), Waited::Ended);
            let far = runtime.wall_timer(SystemTime::now() + secs(1_000), |_| {});
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            assert_eq!(far.change(SystemTime::now()), Changed::Ended);
        });
    }
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_one_descriptor_with_the_first_wall_timer_and_none_before() {
    in_child("s56_one_descriptor_with_the_first_wall_timer_and_none_before", || {
        let runtime = Runtime::builder().start().expect("the system has threads and timers");
        let before = open_descriptors();
        let at = SystemTime::now() + secs(1_000);
        let first = runtime.wall_timer(at, |_| {});
        assert_eq!(open_descriptors(), before + 1);
        let others: Vec<WallTimer> = (0..10).map(|_| runtime.wall_timer(at, |_| {})).collect();
        assert_eq!(open_descriptors(), before + 1);
        drop((first, others));
        // And one when many threads are the first.
        let crowded = Runtime::builder().start().expect("the system has threads and timers");
        let (none, start) = (open_descriptors(), std::sync::Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    drop(crowded.wall_timer(at, |_| {}));
                });
            }
        });
        assert_eq!(open_descriptors(), none + 1);
        drop(crowded);
        drop(runtime);
        eventually("closed with the runtime", || open_descriptors() < before);
        let portable = Runtime::builder().alarm(Alarm::Portable).start().expect("the system has threads");
        let before = open_descriptors();
        let timer = portable.wall_timer(at, |_| {});
        assert_eq!(open_descriptors(), before);
        drop(timer);
    });
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_works_without_that_descriptor() {
    in_child("s56_works_without_that_descriptor", || {
        let runtime = Runtime::builder().start().expect("the system has threads and timers");
        // SAFETY: structures that live through the calls.
        let limit = |soft: Option<u64>| unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = soft.unwrap_or(limit.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        };
        limit(Some(3));
        let fired = Count::new();
        let timer = runtime.wall_timer(SystemTime::now() + ms(20), bumping(&fired));
        // Looked at again before its time.
        let journal = Journal::new();
        let later = runtime.wall_timer(SystemTime::now() + ms(5_200), {
            let journal = journal.clone();
            move |tick| journal.push(tick.now() >= tick.scheduled())
        });
        eventually("it fires", || fired.get() == 1);
        limit(None);
        let before = open_descriptors();
        let next = runtime.wall_timer(SystemTime::now() + ms(20), bumping(&fired));
        assert_eq!(open_descriptors(), before + 1, "asked for again");
        eventually("all fire", || fired.get() == 2 && journal.len() == 1);
        assert_eq!(journal.take(), [true], "not before its time");
        drop((timer, later, next));
    });
}

/// Sets the wall clock to what it shows, as nearly as can be. An error where that is not allowed.
fn set_the_clock_to_its_own_value() -> std::io::Result<()> {
    // SAFETY: a structure that lives through both calls.
    let result = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        // The machine's, not what this process is shown.
        assert_eq!(libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut now), 0);
        libc::clock_settime(libc::CLOCK_REALTIME, &now)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_the_clock_set_to_its_own_value_sets_the_alarm_again_and_fires_nothing() {
    const NAME: &str = "s56_the_clock_set_to_its_own_value_sets_the_alarm_again_and_fires_nothing";
    in_child(NAME, || {
        let runtime = Runtime::builder().queues(1).workers(3).start().expect("the system has threads and timers");
        let (fired, others) = (Count::new(), Count::new());
        let far: Vec<WallTimer> =
            (0..10).map(|i| runtime.wall_timer(SystemTime::now() + secs(1_000 + i), bumping(&fired))).collect();
        let ordinary = runtime.timer(secs(1_000), NEVER, others.callback());
        assert_eq!(TOLD_OF_STEPS.load(Ordering::SeqCst), 1, "set once, with the first of them");
        for round in 1..=4 {
            if let Err(error) = set_the_clock_to_its_own_value() {
                return skip(NAME, &format!("the clock cannot be set here: {error}"));
            }
            // One call for each time; somebody else may set it, too.
            eventually("the alarm is set again", || TOLD_OF_STEPS.load(Ordering::SeqCst) > round);
            assert_eq!((fired.get(), others.get()), (0, 0), "round {round}");
            assert_eq!(runtime.active_timers(), 11);
        }
        // And one that is due soon fires on time all the same.
        let journal = Journal::new();
        let soon = runtime.wall_timer(SystemTime::now() + ms(30), {
            let journal = journal.clone();
            move |tick| journal.push((tick.scheduled(), tick.now()))
        });
        set_the_clock_to_its_own_value().expect("as before");
        eventually("it fires", || journal.len() == 1);
        let (scheduled, now) = journal.take()[0];
        assert!(now >= scheduled);
        assert_eq!((fired.get(), others.get()), (0, 0));
        drop((far, ordinary, soon));
    });
}

/// Three timers, an hour apart and the first in an hour; then a step of the wall clock past the second, and one back.
/// `tell` makes the system tell of a step, where it does.
fn stepped(runtime: &Runtime, tell: impl Fn()) {
    let journal = Journal::new();
    let begin = SystemTime::now();
    let timers: Vec<WallTimer> = (1..=3)
        .map(|hours| {
            let journal = journal.clone();
            runtime.wall_timer(begin + secs(3_600 * hours), move |tick| {
                journal.push((hours, tick.now() >= tick.scheduled()));
            })
        })
        .collect();
    let ordinary = runtime.timer(secs(600), NEVER, |_| unreachable!("only the wall clock was stepped (S55)"));
    thread::sleep(ms(5));
    assert_eq!(journal.len(), 0);
    SHIFT.store(2 * 3_600 + 60, Ordering::SeqCst);
    tell();
    eventually("those it has stepped past fire", || journal.len() == 2);
    SHIFT.store(-3_600, Ordering::SeqCst);
    tell();
    assert_eq!(timers[0].change(begin), Changed::WasIdle);
    thread::sleep(ms(50));
    assert_eq!(journal.len(), 2);
    SHIFT.store(0, Ordering::SeqCst);
    tell();
    eventually("one whose time has come again", || journal.len() == 3);
    let mut seen = journal.take();
    seen.sort();
    assert_eq!(seen, [(1, true), (1, true), (2, true)], "and the third waits");
    // Where the system does not tell, it too has come up to look, perhaps just now.
    eventually("it does", || runtime.active_timers() == 2);
    assert_eq!(runtime.panics(), 0);
    drop((timers, ordinary));
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "a kqueue does not tell")]
fn s56_a_step_is_followed_when_the_system_tells_of_it() {
    const NAME: &str = "s56_a_step_is_followed_when_the_system_tells_of_it";
    in_child(NAME, || {
        if let Err(error) = set_the_clock_to_its_own_value() {
            return skip(NAME, &format!("the clock cannot be set here: {error}"));
        }
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            let builder = Runtime::builder().workers(3).clock(clock);
            let runtime = builder.start().expect("the system has threads and timers");
            stepped(&runtime, || set_the_clock_to_its_own_value().expect("as before"));
            // Nobody looks from time to time: those that wait are aimed at their time.
            let far = runtime.wall_timer(SystemTime::now() + secs(1_000), |_| {});
            assert!(runtime.next_due().expect("one waits") - runtime.now() > secs(900));
            drop(far);
        }
    });
}

#[test]
fn s56_a_step_is_followed_within_seconds_where_the_system_does_not_tell() {
    in_child("s56_a_step_is_followed_within_seconds_where_the_system_does_not_tell", || {
        let runtime = Runtime::builder().workers(3).alarm(Alarm::Portable).start().expect("the system has threads");
        let far = runtime.wall_timer(SystemTime::now() + secs(1_000), |_| {});
        assert!(runtime.next_due().expect("one waits") - runtime.now() <= secs(5));
        drop(far);
        stepped(&runtime, || {});
    });
}

#[test]
fn s32_where_the_system_does_not_tell_one_look_serves_all_wall_timers() {
    const TIMERS: usize = 300;
    in_child("s32_where_the_system_does_not_tell_one_look_serves_all_wall_timers", || {
        let runtime = Runtime::builder().alarm(Alarm::Portable).start().expect("the system has threads");
        assert_eq!(runtime.next_due(), None, "no look without wall timers");
        let begun = std::time::Instant::now();
        let at = SystemTime::now() + secs(3_600);
        let timers: Vec<WallTimer> = (0..TIMERS).map(|_| runtime.wall_timer(at, |_| {})).collect();
        eventually("a look", || runtime.fired() > 0);
        thread::sleep(ms(300));
        let fired = runtime.fired();
        // A look that is held up between the two clocks may take that for a step, and have one job more.
        let looks = begun.elapsed().as_secs() / 5 + 1;
        assert!(fired <= 2 * looks, "{fired} callbacks in {:?}", begun.elapsed());
        assert_eq!(runtime.active_timers(), TIMERS, "the runtime's own are not counted");
        assert!(runtime.next_due().expect("a look") - runtime.now() <= secs(5));
        drop(timers);
        assert_eq!(runtime.active_timers(), 0);
        eventually("no look is set any more", || runtime.next_due().is_none());
    });
}

#[test]
fn s56_where_the_system_knows_no_cancelling_the_wall_clock_is_looked_at() {
    in_child("s56_where_the_system_knows_no_cancelling_the_wall_clock_is_looked_at", || {
        REFUSED.store(true, Ordering::SeqCst);
        let before = open_descriptors();
        let runtime = Runtime::builder().queues(1).start().expect("it starts");
        let opened = open_descriptors();
        let timer = runtime.wall_timer(SystemTime::now() + secs(3600), |_| {});
        assert_eq!(open_descriptors(), opened, "{before} before: what is of no use is closed again");
        let next = runtime.next_due().expect("it waits");
        assert!(next - runtime.now() <= secs(5), "looks again in {:?}", next - runtime.now());
        drop(timer);
    });
}
