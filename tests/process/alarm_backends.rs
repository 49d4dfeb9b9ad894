//! Runtimes on non-default alarms and clocks: the portable backend (S34), the boot clock (S54), and
//! forked children.
//!
//! Ground rules. The conformance list tests the alarms themselves (`src/alarm/conformance.rs`);
//! these tests run whole runtimes. Filters, namespaces and forks hold for a whole process, so these
//! tests run in child processes.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // system call filters, forks

use std::error::Error;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::child::{full_name, in_child, skip};
use crate::support::process::{open_descriptors, switches, threads_named};
use crate::support::{Count, Journal, NEVER, PATIENCE, block_on, blocked, eventually, lock, ms, secs, us, within};
use timerqueue::{
    Alarm, CancellationTokenSource, Changed, Delay, MissedTicks, OnceTimer, Runtime, RuntimeBuilder, RuntimeClock,
    Timeout, Timer, TimerBuilder, Waited, WallTimer,
    error::{RuntimeError, StartError},
};

/// A runtime for each available alarm and clock.
fn each() -> Vec<(String, RuntimeBuilder)> {
    let mut all = Vec::new();
    for alarm in [Alarm::Native, Alarm::Portable] {
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            let builder = Runtime::builder().workers(3).thread_name("tq-alarm").alarm(alarm).clock(clock);
            all.push((format!("{alarm:?} on {clock:?}"), builder));
        }
    }
    all
}

/// Runs `test` on each alarm and clock.
fn on_each(test: fn(&Runtime)) {
    for (which, builder) in each() {
        let what = which.clone();
        within(2 * PATIENCE, &which, move || {
            let runtime = builder.start().unwrap_or_else(|error| panic!("{what}: {error:?}"));
            test(&runtime);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()), "{what}");
        });
    }
}

/// Checks that some timers fire, none early.
fn works(runtime: &Runtime) {
    let early = Count::new();
    let fired = Count::new();
    let timers: Vec<Timer> = (0..100u64)
        .map(|i| {
            let due = us(i * 97);
            let (early, fired, at) = (early.clone(), fired.clone(), runtime.now() + due);
            Timer::on(runtime, due, NEVER, move |tick| {
                if tick.now() < tick.scheduled() || tick.now() < at {
                    early.bump();
                }
                fired.bump();
            })
        })
        .collect();
    eventually("all fire", || fired.get() == 100);
    assert_eq!(early.get(), 0);
    drop(timers);
}

#[test]
fn s5_timers_fire_and_never_early() {
    on_each(|runtime| {
        works(runtime);
        // Periodic, with the phase kept.
        let (send, receive) = mpsc::channel();
        let begin = runtime.now();
        let timer =
            TimerBuilder::on(runtime).due(ms(5)).period(ms(3)).missed_ticks(MissedTicks::Skip).start(move |tick| {
                let _ = send.send((tick.scheduled(), tick.now()));
            });
        for (scheduled, now) in receive.iter().take(30) {
            assert!(now >= scheduled);
            let since = scheduled - begin;
            assert!(since >= ms(5));
        }
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        assert!(receive.iter().all(|(scheduled, now)| now >= scheduled), "and then the sender is gone");
    });
}

#[test]
fn s15_s16_change_moves_earlier_later_and_stops() {
    on_each(|runtime| {
        let journal = Journal::new();
        let told = journal.clone();
        let timer = Timer::on(runtime, secs(1_000), NEVER, move |tick| told.push(tick.scheduled()));
        thread::sleep(ms(2)); // by now the poller waits
        let begin = runtime.now();
        assert_eq!(timer.change(ms(5), NEVER), Changed::WasWaiting);
        eventually("earlier", || journal.len() == 1);
        assert!(journal.take()[0] - begin >= ms(5));
        assert_eq!(timer.change(ms(30), NEVER), Changed::WasIdle);
        let later = runtime.now();
        if timer.change(ms(60), NEVER) == Changed::WasWaiting {
            eventually("later", || journal.len() == 1);
            assert!(journal.take()[0] - later >= ms(60));
        }
        let _ = timer.change(ms(20), ms(1));
        let _ = timer.change(NEVER, NEVER);
        let stopped = runtime.now();
        thread::sleep(ms(40));
        assert!(journal.take().iter().all(|&due| due <= stopped), "stopped");
    });
}

#[test]
fn s20_s21_disposed_timers_do_not_fire() {
    on_each(|runtime| {
        let fired = Count::new();
        for i in 0..200 {
            let timer = Timer::on(runtime, us(i % 40 * 10), us(500), fired.callback());
            thread::sleep(us(i % 7 * 50));
            if i % 2 == 0 {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            } else {
                assert_eq!(block_on(timer.dispose_async()), Waited::Ended);
            }
            let after = fired.get();
            thread::sleep(us(100));
            assert_eq!(fired.get(), after, "round {i}");
        }
        assert_eq!(runtime.metrics().active, 0);
    });
}

#[test]
fn s31_blocked_callbacks_delay_no_other_timer() {
    on_each(|runtime| {
        let (blocked, gate) = blocked(runtime, 30);
        works(runtime);
        gate.open();
        drop(blocked);
    });
}

#[test]
fn delays_and_timed_cancels_end() {
    on_each(|runtime| {
        let begin = runtime.now();
        block_on(Delay::on(runtime, ms(5)));
        assert!(runtime.now() - begin >= ms(5));
        let begin = runtime.now();
        assert!(block_on(Timeout::on(runtime, ms(5), std::future::pending::<()>())).is_err());
        assert!(runtime.now() - begin >= ms(5));
        let source = CancellationTokenSource::on(runtime);
        source.try_cancel_after(ms(2)).expect("not cancelled yet");
        eventually("cancelled", || source.is_cancelled());
    });
}

#[test]
fn timers_of_many_threads_fire_on_every_queue() {
    for (which, builder) in each() {
        within(2 * PATIENCE, &which, move || {
            let runtime = builder.queues(8).start().expect("the system has threads and descriptors");
            let fired = Count::new();
            thread::scope(|scope| {
                for thread in 0..4u64 {
                    let (runtime, fired) = (&runtime, &fired);
                    scope.spawn(move || {
                        for i in 0..500 {
                            OnceTimer::on(runtime, us((i * 31 + thread * 17) % 900), {
                                let fired = fired.clone();
                                move |tick| {
                                    assert!(tick.now() >= tick.scheduled());
                                    fired.bump();
                                }
                            })
                            .detach();
                        }
                    });
                }
            });
            eventually("all fire", || fired.get() == 2_000);
            assert_eq!(runtime.metrics().panics, 0);
        });
    }
}

#[test]
fn s33_shutdown_ends_the_threads() {
    // All threads are busy, or all wait for a far due point; only the shutdown wakes them up.
    let all = each().into_iter().map(|each| (true, each)).chain(each().into_iter().map(|each| (false, each)));
    for (is_busy, (which, builder)) in all {
        within(2 * PATIENCE, &which, move || {
            let runtime = builder.thread_name("tq-end").start().expect("the system has threads");
            let far = Timer::on(&runtime, secs(1_000), NEVER, |_| {});
            let busy = Timer::on(&runtime, if is_busy { Duration::ZERO } else { secs(1_000) }, us(100), |_| {});
            let mut delay = Delay::on(&runtime, secs(1_000));
            let waiting = thread::spawn(move || block_on(delay.try_wait()));
            eventually("the delay is filed", || runtime.metrics().active >= 3);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            assert!(waiting.join().expect("no panic").is_err(), "it ends with a defined result");
            eventually("no thread stays", || threads_named("tq-end") == 0);
            drop((far, busy));
        });
    }
}

#[test]
fn s32_the_portable_alarm_does_not_wake_up_with_nothing_due() {
    in_child(module_path!(), "s32_the_portable_alarm_does_not_wake_up_with_nothing_due", || {
        // On the boot clock it wakes up once in five seconds; 400 ms without a wake-up exist there
        // as well.
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            let builder =
                Runtime::builder().workers(4).max_threads(4).thread_name("tq-s32").alarm(Alarm::Portable).clock(clock);
            let runtime = builder.start().expect("the system has threads");
            let fired = Count::new();
            let mut timers: Vec<Timer> =
                [60, 61, 1_000, 100_000].iter().map(|&due| Timer::on(&runtime, secs(due), secs(60), |_| {})).collect();
            timers.extend((0..20).map(|_| Timer::on(&runtime, ms(5), NEVER, fired.callback())));
            eventually("the early ones fire", || fired.get() == 20);
            let silent = (0..6).any(|_| {
                let before = switches("tq-s32");
                thread::sleep(ms(400));
                before == switches("tq-s32") && before.len() == 4
            });
            assert!(silent, "no thread woke up for 400 ms, in one of six tries: {:?}", switches("tq-s32"));
            runtime.shutdown(PATIENCE).expect("nothing runs");
            eventually("no thread stays", || threads_named("tq-s32") == 0);
        }
    });
}

// ------------------------------------------------------------------------------------- S34: where timers are refused

/// Installs a filter: from now on the system refuses timers to this thread, and to threads that it
/// starts, with this error.
fn refuse_timers(error: i32) -> std::io::Result<()> {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call is the first word of the filter's input.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_timerfd_create as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no pointers.
    let allowed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the program is well-formed and lives through the call.
    let set =
        allowed && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } == 0;
    if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_where_timers_are_refused_the_error_says_so_and_the_portable_alarm_works() {
    const NAME: &str = "s34_where_timers_are_refused_the_error_says_so_and_the_portable_alarm_works";
    in_child(module_path!(), NAME, || {
        for errno in [libc::EPERM, libc::ENOSYS] {
            // All installed filters are asked; the first refusal decides.
            if let Err(error) = refuse_timers(errno) {
                return skip(NAME, &format!("no system call filters here: {error}"));
            }
            let before = open_descriptors();
            for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
                let error = Runtime::builder().clock(clock).start().expect_err("timers are refused");
                let StartError::Alarm(refused) = &error else { panic!("{error:?}") };
                assert!([libc::EPERM, libc::ENOSYS].contains(&refused.raw_os_error().expect("the system's")));
                assert!(error.to_string().contains("Alarm::Portable"), "the way out is told: {error}");
                assert!(error.source().is_some());
                assert_eq!(open_descriptors(), before, "nothing is left behind");
                let builder = Runtime::builder().clock(clock).alarm(Alarm::Portable);
                let runtime = builder.start().expect("needs no timers of the system's");
                assert_eq!(open_descriptors(), before, "nor descriptors");
                works(&runtime);
                block_on(Delay::on(&runtime, ms(3)));
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            }
            assert!(
                matches!(Timer::try_new(ms(1), NEVER, |_| {}), Err(RuntimeError::NotStarted(StartError::Alarm(_)))),
                "the default runtime too"
            );
        }
    });
}

/// The files that the process has opened through the standard library. (The C library opens some of
/// its own.)
static OPENED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// # Safety
/// As the function of the C library, of whose further arguments there is one at most.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const libc::c_char, flags: libc::c_int, mode: libc::mode_t) -> libc::c_int {
    // SAFETY: a text that ends with a zero, as the caller promises.
    lock(&OPENED).push(unsafe { std::ffi::CStr::from_ptr(path) }.to_string_lossy().into_owned());
    // SAFETY: the same call with the same arguments.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) as libc::c_int }
}

/// Callbacks that block have the pool grow. To learn that they block the portable alarm opens no
/// file.
#[cfg(target_env = "gnu")]
#[test]
fn s34_the_portable_alarm_opens_no_file_once_started() {
    in_child(module_path!(), "s34_the_portable_alarm_opens_no_file_once_started", || {
        for alarm in [Alarm::Native, Alarm::Portable] {
            let runtime = Runtime::builder().workers(3).alarm(alarm).start().expect("it starts");
            lock(&OPENED).clear();
            let (blocked, gate) = blocked(&runtime, 8);
            works(&runtime);
            gate.open();
            drop(blocked);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            let opened = std::mem::take(&mut *lock(&OPENED));
            assert_eq!(opened.is_empty(), alarm == Alarm::Portable, "{alarm:?}: {opened:?}");
        }
    });
}

#[test]
fn s34_the_portable_alarm_needs_no_descriptors() {
    in_child(module_path!(), "s34_the_portable_alarm_needs_no_descriptors", || {
        // SAFETY: structures that live through the calls.
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = 3;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
        let error = Runtime::builder().start().expect_err("no descriptors");
        let StartError::Alarm(refused) = &error else { panic!("{error:?}") };
        assert_eq!(refused.raw_os_error(), Some(libc::EMFILE));
        works(&Runtime::builder().alarm(Alarm::Portable).start().expect("threads are to be had"));
    });
}

// -------------------------------------------------------------------------------------------------------------- forks

/// Runs `body` in a forked child of this process; fails if `body` returns false.
fn in_fork(what: &str, body: impl FnOnce() -> bool) {
    // SAFETY: the child takes no lock that a further thread may hold at the fork. No timer is due
    // for long, so the lock of the queue is free; and the locks of the alarms are not touched in a
    // child, as these tests check. (A runtime started by the child might meet locks held by threads
    // on their way to sleep.)
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let status = if body() { 0 } else { 1 };
        // SAFETY: ends the child at once, without running its copy of the parent's destructors.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: our own child, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "{what}: in the child");
}

#[test]
fn a_forked_child_cannot_disturb_its_parent() {
    in_child(module_path!(), "a_forked_child_cannot_disturb_its_parent", || {
        for (which, builder) in each() {
            let runtime = builder.queues(1).start().expect("the system has threads");
            let fired = Count::new();
            // No operation on an inherited timer has an effect in the child.
            let disturb = |timer: &Timer| {
                let ran = Count::new();
                let own = Timer::on(&runtime, ms(1), ms(1), ran.callback());
                let _ = timer.change(ms(1), NEVER);
                thread::sleep(ms(30));
                drop(own);
                timer.dispose();
                ran.get() == 0 && fired.get() == 0
            };
            // Nor does it wake the parent. The parent's threads may wake up for different reasons,
            // so one of some tries is enough.
            let far = Timer::on(&runtime, secs(1_000), NEVER, |_| {});
            let silent = (0..8).any(|_| {
                thread::sleep(ms(10));
                let before = switches("tq-alarm");
                in_fork(&which, || disturb(&far));
                before == switches("tq-alarm") && before.len() == 3
            });
            assert!(silent, "{which}: the child woke the parent up, eight times of eight");
            let begin = Instant::now();
            let timer = Timer::on(&runtime, secs(1), NEVER, fired.callback());
            in_fork(&which, || disturb(&timer));
            eventually("the parent's timer fires", || fired.get() == 1);
            assert!(begin.elapsed() >= secs(1), "{which}: not when the child wanted it to");
            drop(far);
            works(&runtime);
            runtime.shutdown(PATIENCE).expect("nothing runs");
            eventually("no thread stays", || threads_named("tq-alarm") == 0);
        }
    });
}

// ---------------------------------------------------------------------------------------------- S54: clocks that differ

/// The offsets of the time namespace that this process runs in: monotonic, boot, in seconds.
fn offsets() -> Option<(i64, i64)> {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").ok()?;
    let offset = |name| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some((offset("monotonic")?, offset("boottime")?))
}

#[test]
fn s54_clocks_with_the_offsets_of_a_time_namespace() {
    const NAME: &str = "s54_clocks_with_the_offsets_of_a_time_namespace";
    const INSIDE: &str = "TIMERQUEUE_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        assert_eq!(offsets(), Some((100_000, 500_000)), "the clocks of this process are shifted");
        for (which, builder) in each() {
            let runtime = builder.start().expect("the system has threads and timers");
            let boot = which.ends_with("Boot");
            let shift = secs(if boot { 500_000 } else { 100_000 });
            assert!(runtime.now().as_duration() >= shift, "{which}: {:?}", runtime.now());
            works(&runtime);
            // On time: the best of some, by a clock different from the runtime's.
            let mut best = NEVER;
            for _ in 0..20 {
                let (send, receive) = mpsc::channel();
                let begin = Instant::now();
                let timer = Timer::on(&runtime, ms(5), NEVER, move |_| {
                    let _ = send.send(begin.elapsed());
                });
                let took = receive.recv_timeout(PATIENCE).expect("fires");
                assert!(took >= ms(5), "{which}: {took:?}");
                best = best.min(took);
                drop(timer);
            }
            assert!(best < ms(50), "{which}: at best {best:?}");
        }
        println!("inside");
        return;
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let inside = Command::new("unshare")
        .args(["--time", "--monotonic", "100000", "--boottime", "500000", "--fork"])
        .arg(own)
        .args([&full_name(module_path!(), NAME), "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output();
    match inside {
        Err(error) => skip(NAME, &format!("no unshare: {error}")),
        Ok(output) => {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if err.contains("unshare:") && !out.contains("running 1 test") {
                return skip(NAME, &format!("no time namespaces here: {}", err.trim()));
            }
            assert!(output.status.success() && out.contains("inside"), "--- stdout\n{out}\n--- stderr\n{err}");
        }
    }
}

/// S5, S27, S56. A library shows the process another time than the kernel's, as programs do to test
/// their schedules: it shifts clocks, lengths of time, and each instant of a timer.
#[test]
fn s27_timers_fire_under_libfaketime() {
    const NAME: &str = "s27_timers_fire_under_libfaketime";
    const INSIDE: &str = "TIMERQUEUE_TEST_FAKETIME";
    if std::env::var_os(INSIDE).is_some() {
        let known = Instant::now();
        for (which, builder) in each() {
            let runtime =
                builder.on_panic(|panic| panic!("{panic}")).start().unwrap_or_else(|error| panic!("{error:?}"));
            works(&runtime);
            block_on(Delay::on(&runtime, ms(5)));
            // A timer that becomes the earliest while the threads wait.
            let far = Timer::on(&runtime, secs(10_000), NEVER, |_| {});
            thread::sleep(ms(2));
            let fired = Count::new();
            let soon = Timer::on(&runtime, ms(3), NEVER, fired.callback());
            eventually("it fires", || fired.get() == 1);
            let wall = WallTimer::on(&runtime, std::time::SystemTime::now() + ms(5), fired.wall_callback());
            eventually("at its wall time", || fired.get() == 2);
            drop((far, soon, wall));
            assert!(!runtime.is_shut_down(), "{which}");
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()), "{which}");
        }
        let fired = Count::new();
        let timer = Timer::new(ms(1), NEVER, fired.callback());
        eventually("the default runtime too", || fired.get() == 1);
        drop(timer);
        println!("inside {:?}", known.elapsed());
        return;
    }
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu", ""]
        .map(|arch| format!("/usr/lib/{arch}/faketime/libfaketime.so.1"))
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let Some(library) = library else { return skip(NAME, "libfaketime is not installed") };
    // The monotonic clock is shown as it is, or shifted too.
    for (time, monotonic) in
        [("+1d", "1"), ("-1d", "1"), ("+0", "0"), ("-1d", "0"), ("@2020-01-01 00:00:00", "0"), ("+0 x4", "0")]
    {
        let own = std::env::current_exe().expect("a test knows its own binary");
        let output = Command::new(own)
            .args([&full_name(module_path!(), NAME), "--exact", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1")
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", time)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", monotonic)
            .output()
            .expect("the test binary starts again");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let ran = output.status.success() && out.contains("inside");
        assert!(ran, "{time}, monotonic {monotonic}: {}\n--- stdout\n{out}\n--- stderr\n{err}", output.status);
    }
}

#[test]
fn s52_s54_runtimes_on_both_clocks_side_by_side() {
    let monotonic = Runtime::builder().start().expect("the system has threads");
    let boot = Runtime::builder().clock(RuntimeClock::Boot).start().expect("the system has threads");
    // The boot clock is never behind the monotonic clock: it also counts suspends.
    let before = monotonic.now().as_duration();
    assert!(boot.now().as_duration() >= before || offsets() != Some((0, 0)));
    works(&monotonic);
    works(&boot);
}
