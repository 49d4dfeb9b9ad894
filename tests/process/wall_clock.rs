//! Wall timers on the machine's wall clock (S56, S32).
//!
//! Ground rules. The wall clock is only set to its own value, which suffices for the system to
//! report a step. This binary defines `timerfd_settime` and `clock_gettime` itself: they see the
//! crate's calls, and can show a process a different wall clock, or a monotonic clock that the
//! kernel's alarms do not follow. `tests/behavior/wall.rs` has the tests on virtual time.

#![cfg(target_os = "linux")]
// stands in for two functions of the C library; sets the clock to its own value; limits
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::SystemTime;

use crate::support::child::{in_child, skip};
use crate::support::process::open_descriptors;
use crate::support::{Count, Gate, Journal, NEVER, PATIENCE, block_on, eventually, ms, secs, us, within};
use timerqueue::{Alarm, Changed, OnceTimer, Runtime, RuntimeBuilder, RuntimeClock, Timer, Waited, WallTimer};

/// The number of calls that set a timer to be cancelled by a step of the wall clock.
static TOLD_OF_STEPS: AtomicU64 = AtomicU64::new(0);

/// Each call of `timerfd_settime` passes through here. False: it is refused.
pub(crate) fn allow_setting(flags: libc::c_int) -> bool {
    SET.fetch_add(1, Ordering::SeqCst);
    if flags == libc::TFD_TIMER_ABSTIME {
        std::thread::sleep(ms(STALLED_MS.load(Ordering::SeqCst)));
        SET_TO_INSTANT.fetch_add(1, Ordering::SeqCst);
    }
    if flags & libc::TFD_TIMER_CANCEL_ON_SET != 0 {
        TOLD_OF_STEPS.fetch_add(1, Ordering::SeqCst);
        return !REFUSED.load(Ordering::SeqCst);
    }
    true
}

/// For so long the thread that sets a timer to an instant has no processor.
static STALLED_MS: AtomicU64 = AtomicU64::new(0);

/// Whether the system refuses timers that a step of the wall clock cancels.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The number of seconds by which the wall clock of this process is ahead of the machine's.
static SHIFT: AtomicI64 = AtomicI64::new(0);

/// The calls that set a timer, and those that read a clock.
static SET: AtomicU64 = AtomicU64::new(0);
/// Of these, the calls that set an alarm to an instant of the clock. (On a busy machine the pool's
/// stall check sets many lengths.)
static SET_TO_INSTANT: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

/// The number of seconds by which the monotonic clock and the boot clock of this process are behind
/// the kernel's.
static BEHIND: AtomicI64 = AtomicI64::new(0);
/// The monotonic clock of this process stops at this instant, in nanoseconds.
static STOPS_AT: AtomicI64 = AtomicI64::new(i64::MAX);

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, now: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the same call with the same arguments, which fills in the structure.
    unsafe {
        let result = libc::syscall(libc::SYS_clock_gettime, clock, now) as libc::c_int;
        if clock == libc::CLOCK_REALTIME && result == 0 {
            (*now).tv_sec += SHIFT.load(Ordering::SeqCst) as libc::time_t;
        }
        if [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE, libc::CLOCK_BOOTTIME].contains(&clock) {
            READ.fetch_add(1, Ordering::SeqCst);
            (*now).tv_sec -= BEHIND.load(Ordering::SeqCst) as libc::time_t;
            let ns = (*now).tv_sec * NS_PER_SEC + (*now).tv_nsec;
            let stopped = ns.min(STOPS_AT.load(Ordering::SeqCst));
            ((*now).tv_sec, (*now).tv_nsec) = (stopped / NS_PER_SEC, stopped % NS_PER_SEC);
        }
        result
    }
}

const NS_PER_SEC: i64 = 1_000_000_000;

/// A runtime for each available alarm and clock.
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
                    WallTimer::on(&runtime, SystemTime::now() + us(i * 531), move |tick| {
                        journal.push((tick.scheduled(), SystemTime::now(), tick.now()));
                    })
                })
                .collect();
            eventually("all fire", || journal.len() == 50);
            for (scheduled, now, told) in journal.take() {
                assert!(scheduled <= now && scheduled <= told, "{scheduled:?} {now:?} {told:?}");
            }
            drop(timers);
            // In the past, before and after the epoch.
            let fired = Count::new();
            for at in [SystemTime::now(), SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH - secs(1_000)] {
                WallTimer::on(&runtime, at, fired.wall_callback()).detach();
            }
            eventually("at once", || fired.get() == 3);
            // The disposal of a timer waits for its running callback.
            let (entered, gate) = (Count::new(), Gate::new());
            let timer = WallTimer::on(&runtime, SystemTime::now(), {
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
            let far = WallTimer::on(&runtime, SystemTime::now() + secs(1_000), |_| {});
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            assert_eq!(far.reset_at(SystemTime::now()), Changed::Ended);
        });
    }
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_one_descriptor_with_the_first_wall_timer_and_none_before() {
    in_child(module_path!(), "s56_one_descriptor_with_the_first_wall_timer_and_none_before", || {
        let outside = open_descriptors();
        let runtime = Runtime::builder().start().expect("the system has threads and timers");
        let before = open_descriptors();
        let at = SystemTime::now() + secs(1_000);
        let first = WallTimer::on(&runtime, at, |_| {});
        assert_eq!(open_descriptors(), before + 1);
        let others: Vec<WallTimer> = (0..10).map(|_| WallTimer::on(&runtime, at, |_| {})).collect();
        assert_eq!(open_descriptors(), before + 1);
        drop((first, others));
        // A single descriptor also when many threads start the first wall timer at once.
        let shared = Runtime::builder().start().expect("the system has threads and timers");
        let (none, start) = (open_descriptors(), std::sync::Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    drop(WallTimer::on(&shared, at, |_| {}));
                });
            }
        });
        assert_eq!(open_descriptors(), none + 1);
        drop(shared);
        drop(runtime);
        eventually("closed with the runtimes", || open_descriptors() == outside);
        let portable = Runtime::builder().alarm(Alarm::Portable).start().expect("the system has threads");
        let before = open_descriptors();
        let timer = WallTimer::on(&portable, at, |_| {});
        assert_eq!(open_descriptors(), before);
        drop(timer);
    });
}

/// A start tries whether the timers follow the clock. A thread that gets no processor meanwhile
/// must not take them for timers that do not, or the runtime is not told of steps.
#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_a_runtime_started_on_a_busy_machine_is_told_of_steps() {
    in_child(module_path!(), "s56_a_runtime_started_on_a_busy_machine_is_told_of_steps", || {
        STALLED_MS.store(400, Ordering::SeqCst);
        let runtime = Runtime::builder().queues(1).start().expect("the system has threads and timers");
        STALLED_MS.store(0, Ordering::SeqCst);
        let timer = WallTimer::on(&runtime, SystemTime::now() + secs(1_000), |_| {});
        assert_eq!(TOLD_OF_STEPS.load(Ordering::SeqCst), 1);
        drop(timer);
    });
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_works_without_that_descriptor() {
    in_child(module_path!(), "s56_works_without_that_descriptor", || {
        let runtime = Runtime::builder().start().expect("the system has threads and timers");
        // SAFETY: the structures live through the calls.
        let limit = |soft: Option<u64>| unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = soft.unwrap_or(limit.rlim_max);
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        };
        limit(Some(3));
        let fired = Count::new();
        let timer = WallTimer::on(&runtime, SystemTime::now() + ms(20), fired.wall_callback());
        // The wall clock is checked again before the timer's time.
        let journal = Journal::new();
        let later = WallTimer::on(&runtime, SystemTime::now() + ms(5_200), {
            let journal = journal.clone();
            move |tick| journal.push(tick.now() >= tick.scheduled())
        });
        eventually("it fires", || fired.get() == 1);
        limit(None);
        let before = open_descriptors();
        let next = WallTimer::on(&runtime, SystemTime::now() + ms(20), fired.wall_callback());
        assert_eq!(open_descriptors(), before + 1, "asked for again");
        eventually("all fire", || fired.get() == 2 && journal.len() == 1);
        assert_eq!(journal.take(), [true], "not before its time");
        drop((timer, later, next));
    });
}

/// Sets the wall clock to its own value, as nearly as possible. An error if the process may not set
/// the clock.
fn set_the_clock_to_its_own_value() -> std::io::Result<()> {
    // SAFETY: the structure lives through both calls.
    let result = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        // The real wall clock, not the clock shown to this process.
        assert_eq!(libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut now), 0);
        libc::clock_settime(libc::CLOCK_REALTIME, &now)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "about the timerfd that follows the wall clock")]
fn s56_the_clock_set_to_its_own_value_sets_the_alarm_again_and_fires_nothing() {
    const NAME: &str = "s56_the_clock_set_to_its_own_value_sets_the_alarm_again_and_fires_nothing";
    in_child(module_path!(), NAME, || {
        let runtime = Runtime::builder().queues(1).workers(3).start().expect("the system has threads and timers");
        let (fired, others) = (Count::new(), Count::new());
        let far: Vec<WallTimer> = (0..10)
            .map(|i| WallTimer::on(&runtime, SystemTime::now() + secs(1_000 + i), fired.wall_callback()))
            .collect();
        let ordinary = Timer::on(&runtime, secs(1_000), NEVER, others.callback());
        assert_eq!(TOLD_OF_STEPS.load(Ordering::SeqCst), 1, "set once, with the first of them");
        for round in 1..=4 {
            if let Err(error) = set_the_clock_to_its_own_value() {
                return skip(NAME, &format!("the clock cannot be set here: {error}"));
            }
            // A call for each step; a different process may also set the clock.
            eventually("the alarm is set again", || TOLD_OF_STEPS.load(Ordering::SeqCst) > round);
            assert_eq!((fired.get(), others.get()), (0, 0), "round {round}");
            assert_eq!(runtime.metrics().active, 11);
        }
        // A timer due soon fires on time all the same.
        let journal = Journal::new();
        let soon = WallTimer::on(&runtime, SystemTime::now() + ms(30), {
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

/// Makes three timers, due in one, two and three hours; then a step of the wall clock past the
/// second, and a step back. `tell` makes the system report a step, if it does.
fn stepped(runtime: &Runtime, tell: impl Fn()) {
    let journal = Journal::new();
    let begin = SystemTime::now();
    let timers: Vec<WallTimer> = (1..=3)
        .map(|hours| {
            let journal = journal.clone();
            WallTimer::on(runtime, begin + secs(3_600 * hours), move |tick| {
                journal.push((hours, tick.now() >= tick.scheduled()));
            })
        })
        .collect();
    let ordinary = Timer::on(runtime, secs(600), NEVER, |_| unreachable!("only the wall clock was stepped (S55)"));
    thread::sleep(ms(5));
    assert_eq!(journal.len(), 0);
    SHIFT.store(2 * 3_600 + 60, Ordering::SeqCst);
    tell();
    eventually("those it has stepped past fire", || journal.len() == 2);
    SHIFT.store(-3_600, Ordering::SeqCst);
    tell();
    assert_eq!(timers[0].reset_at(begin), Changed::WasIdle);
    thread::sleep(ms(50));
    assert_eq!(journal.len(), 2);
    SHIFT.store(0, Ordering::SeqCst);
    tell();
    eventually("one whose time has come again", || journal.len() == 3);
    let mut seen = journal.take();
    seen.sort();
    assert_eq!(seen, [(1, true), (1, true), (2, true)], "and the third waits");
    // If the system reports no steps, the regular check may also have run, perhaps just now.
    eventually("it does", || runtime.metrics().active == 2);
    assert_eq!(runtime.metrics().panics, 0);
    drop((timers, ordinary));
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "a kqueue does not tell")]
fn s56_a_step_is_followed_when_the_system_reports_it() {
    const NAME: &str = "s56_a_step_is_followed_when_the_system_reports_it";
    in_child(module_path!(), NAME, || {
        if let Err(error) = set_the_clock_to_its_own_value() {
            return skip(NAME, &format!("the clock cannot be set here: {error}"));
        }
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            let builder = Runtime::builder().workers(3).clock(clock);
            let runtime = builder.start().expect("the system has threads and timers");
            stepped(&runtime, || set_the_clock_to_its_own_value().expect("as before"));
            // Steps are reported, so there is no regular check: alarms are set to the times of the
            // timers.
            let far = WallTimer::on(&runtime, SystemTime::now() + secs(1_000), |_| {});
            assert!(runtime.next_due().expect("one waits") - runtime.now() > secs(900));
            drop(far);
        }
    });
}

#[test]
fn s56_a_step_is_followed_within_seconds_where_the_system_reports_none() {
    in_child(module_path!(), "s56_a_step_is_followed_within_seconds_where_the_system_reports_none", || {
        let runtime = Runtime::builder().workers(3).alarm(Alarm::Portable).start().expect("the system has threads");
        let far = WallTimer::on(&runtime, SystemTime::now() + secs(1_000), |_| {});
        assert!(runtime.next_due().expect("one waits") - runtime.now() <= secs(5));
        drop(far);
        stepped(&runtime, || {});
    });
}

#[test]
fn s32_where_steps_are_not_reported_one_check_serves_all_wall_timers() {
    const TIMERS: usize = 300;
    in_child(module_path!(), "s32_where_steps_are_not_reported_one_check_serves_all_wall_timers", || {
        let runtime = Runtime::builder().alarm(Alarm::Portable).start().expect("the system has threads");
        assert_eq!(runtime.next_due(), None, "no look without wall timers");
        let begun = std::time::Instant::now();
        let at = SystemTime::now() + secs(3_600);
        let timers: Vec<WallTimer> = (0..TIMERS).map(|_| WallTimer::on(&runtime, at, |_| {})).collect();
        eventually("a look", || runtime.metrics().fired() > 0);
        thread::sleep(ms(300));
        let fired = runtime.metrics().fired();
        // A check delayed between its readings of the two clocks may see a step, and run one more
        // job.
        let looks = begun.elapsed().as_secs() / 5 + 1;
        assert!(fired <= 2 * looks, "{fired} callbacks in {:?}", begun.elapsed());
        assert_eq!(runtime.metrics().active, TIMERS, "the runtime's own are not counted");
        assert!(runtime.next_due().expect("a look") - runtime.now() <= secs(5));
        drop(timers);
        assert_eq!(runtime.metrics().active, 0);
        eventually("no look is set any more", || runtime.next_due().is_none());
    });
}

#[test]
fn s56_where_steps_cannot_cancel_timers_the_wall_clock_is_checked() {
    in_child(module_path!(), "s56_where_steps_cannot_cancel_timers_the_wall_clock_is_checked", || {
        REFUSED.store(true, Ordering::SeqCst);
        let before = open_descriptors();
        let runtime = Runtime::builder().queues(1).start().expect("it starts");
        let opened = open_descriptors();
        let timer = WallTimer::on(&runtime, SystemTime::now() + secs(3600), |_| {});
        assert_eq!(open_descriptors(), opened, "{before} before: what is of no use is closed again");
        let next = runtime.next_due().expect("it waits");
        assert!(next - runtime.now() <= secs(5), "looks again in {:?}", next - runtime.now());
        drop(timer);
    });
}

// ------------------------------------------------------- a monotonic clock that the kernel's alarms do not follow

/// A clock that stands a second behind the kernel's, from the start of the runtime or later: each
/// alarm at an instant comes a second early, at once. The timer fires on time, and the wait for it
/// costs few alarms.
#[test]
fn s32_a_clock_behind_the_kernels_costs_no_storm_of_alarms() {
    in_child(module_path!(), "s32_a_clock_behind_the_kernels_costs_no_storm_of_alarms", || {
        for from_the_start in [true, false] {
            for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
                BEHIND.store(i64::from(from_the_start), Ordering::SeqCst);
                let runtime = Runtime::builder().queues(1).workers(2).clock(clock).start().expect("it starts");
                BEHIND.store(1, Ordering::SeqCst);
                let journal = Journal::new();
                let before = SET_TO_INSTANT.load(Ordering::SeqCst);
                for due in [ms(100), ms(150)] {
                    let journal = journal.clone();
                    OnceTimer::on(&runtime, due, move |tick| journal.push((tick.scheduled(), tick.now()))).detach();
                }
                eventually("both fire", || journal.len() == 2);
                assert!(journal.take().iter().all(|(scheduled, now)| now >= scheduled), "never early");
                let calls = SET_TO_INSTANT.load(Ordering::SeqCst) - before;
                assert!(calls < 60, "{clock:?}: {calls} alarms for two timers");
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
                BEHIND.store(0, Ordering::SeqCst);
            }
        }
    });
}

/// A clock that stops a nanosecond before a timer is due: no thread waits awake for it, nor sets
/// alarm after alarm.
#[test]
fn s32_a_clock_that_stands_still_keeps_no_thread_awake() {
    in_child(module_path!(), "s32_a_clock_that_stands_still_keeps_no_thread_awake", || {
        let runtime = Runtime::builder().queues(1).workers(2).start().expect("it starts");
        let fired = Count::new();
        // By then the shard has learnt to set its alarm early.
        for i in 1..=40 {
            let timer = OnceTimer::on(&runtime, ms(2), fired.callback());
            eventually("it fires", || fired.get() == i);
            drop(timer);
        }
        let due = runtime.now() + ms(50);
        STOPS_AT.store(due.as_duration().as_nanos() as i64 - 1, Ordering::SeqCst);
        let timer = OnceTimer::on(&runtime, due - runtime.now(), fired.callback());
        thread::sleep(ms(100));
        let before = (SET.load(Ordering::SeqCst), READ.load(Ordering::SeqCst));
        thread::sleep(ms(200));
        let (set, read) = (SET.load(Ordering::SeqCst) - before.0, READ.load(Ordering::SeqCst) - before.1);
        assert!(set <= 400 && read < 10_000, "{set} alarms, {read} readings in 200 ms");
        assert_eq!(fired.get(), 40, "the instant has not come");
        STOPS_AT.store(i64::MAX, Ordering::SeqCst);
        eventually("the clock goes on", || fired.get() == 41);
        drop(timer);
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
    });
}
