//! Disturbances of a process while timers are pending: signals, forks, stops, lost cores, and load.
//!
//! Ground rules. Each test runs in a child process, since its effects cannot be undone or affect
//! all threads. Lateness is only printed, never asserted: a busy machine must not fail a test. The
//! assertions hold on every machine: no timer is lost, fires twice, or fires early (S5).

#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // signals, forks, affinity

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, start};
use crate::support::child::{in_child, skip};
use crate::support::process::threads_named;
use crate::support::{Count, Journal, NEVER, PATIENCE, block_on, eventually, ms, secs, us};
use timerqueue::{
    Alarm, CancellationTokenSource, Delay, DelayQueue, Interval, ManualClock, MissedTicks, OnceTimer, Runtime, Tick,
    Timer, TimerBuilder, Waited, WallTimer,
    error::{RecvTimeoutError, RuntimeError, StartError},
};

/// Prints lateness, which cannot be asserted.
pub(crate) fn print_lateness(what: &str, late: &[i64]) {
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize] as f64 / 1e6;
    let _ = writeln!(
        std::io::stderr(),
        "\nLATENESS {what}: {} timers late by p50 {:.2}, p99 {:.2}, at most {:.2} ms",
        late.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

// ------------------------------------------------------------------------------------------------------------- signals

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

fn own_threads() -> Vec<libc::pid_t> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a /proc to look into");
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Signals interrupt every blocking call repeatedly (EINTR), on every thread.
#[test]
fn s27_a_storm_of_signals_loses_no_timer() {
    in_child(module_path!(), "s27_a_storm_of_signals_loses_no_timer", || {
        // SAFETY: the handler touches a single atomic; it is installed without SA_RESTART.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        let runtime = start("tq-storm");
        let over = Arc::new(AtomicBool::new(false));
        let storm = {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                // SAFETY: no pointers; for an ended thread the call fails.
                let (process, own) = unsafe { (libc::getpid(), libc::gettid()) };
                while !over.load(Ordering::SeqCst) {
                    for thread in own_threads().into_iter().filter(|&thread| thread != own) {
                        // SAFETY: no pointers; for an ended thread the call fails.
                        unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
                    }
                    thread::sleep(us(100));
                }
            })
        };
        let (begin, mut rounds) = (Instant::now(), 0);
        while rounds < 3 || SIGNALS.load(Ordering::Relaxed) <= 500 {
            assert!(begin.elapsed() < PATIENCE, "there is no storm");
            rounds += 1;
            let ledger = Ledger::spread(&runtime, 500, ms(100));
            let ticks = Count::new();
            let periodic = Timer::on(&runtime, ms(1), ms(1), ticks.callback());
            ledger.settle();
            eventually("ticks go on", || ticks.get() > 20);
            assert_eq!(periodic.dispose_and_wait(), Waited::Ended);
        }
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        eventually("threads end", || threads_named("tq-storm") == 0);
        over.store(true, Ordering::SeqCst);
        storm.join().expect("no panic");
    });
}

// --------------------------------------------------------------------------------------------------------------- forks

/// Runs `body` in a forked child of this process, and returns the child's exit status. A child that
/// does not end is killed.
fn in_fork(body: impl FnOnce()) -> String {
    // SAFETY: the child has one thread, and leaves by `_exit`. Its allocations are safe, since the
    // C library's malloc handles forks.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "forked");
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends the child without running destructors, which belong to the parent.
        unsafe { libc::_exit(if ended { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: a child of this process, and a buffer for its status.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if Instant::now() > deadline => {
                // SAFETY: a child of this process, not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
                return String::from("no end");
            }
            0 => thread::sleep(ms(1)),
            _ if libc::WIFEXITED(status) => return format!("exit {}", libc::WEXITSTATUS(status)),
            _ => return format!("status {status}"),
        }
    }
}

/// A child that is killed in the end, also if the test fails: otherwise it would keep the output of
/// the test open.
struct Ended(libc::pid_t);

impl Drop for Ended {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A child forked in a callback returns from the callback into the pool and the alarms of its
/// parent: the child takes no event and no job.
#[test]
fn a_child_forked_in_a_callback_takes_no_alarm_of_its_parents() {
    in_child(module_path!(), "a_child_forked_in_a_callback_takes_no_alarm_of_its_parents", || {
        for alarm in [Alarm::Native, Alarm::Portable] {
            let runtime = Runtime::builder().queues(1).alarm(alarm).start().expect("it starts");
            let (send, receive) = mpsc::channel();
            let forked = OnceTimer::on(&runtime, ms(1), move |_| {
                // SAFETY: the child goes on with its single thread, until it is killed.
                let child = unsafe { libc::fork() };
                if child != 0 {
                    send.send(child).expect("the test listens");
                }
            });
            let child = receive.recv_timeout(PATIENCE).expect("the callback ran");
            assert!(child > 0, "forked");
            let ended = Ended(child);
            for _ in 0..20 {
                Ledger::spread(&runtime, 20, ms(10)).settle();
            }
            drop(ended);
            drop(forked);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        }
    });
}

/// In a forked child an inherited runtime is inert: no timer fires, no call hangs, and the parent
/// is not affected. A runtime started by the child works.
#[test]
fn a_forked_child_finds_an_inert_runtime_and_may_start_its_own() {
    in_child(module_path!(), "a_forked_child_finds_an_inert_runtime_and_may_start_its_own", || {
        let runtime = Runtime::builder().queues(2).thread_name("tq-fork").start().expect("it starts");
        let fired = Count::new();
        let inherited = Timer::on(&runtime, secs(1_000), ms(5), fired.callback());
        inherited.change(NEVER, NEVER);
        // No timer of the parent runs at the fork: a lock held by a further thread would stay
        // locked in the child for ever.
        let (late, pending) = loop {
            let (begin, late) = (Instant::now(), Count::new());
            let pending: Vec<_> = (0..50).map(|i| Timer::on(&runtime, ms(500 + i), NEVER, late.callback())).collect();
            thread::sleep(ms(50));
            if begin.elapsed() < ms(300) {
                break (late, pending);
            }
        };
        let ended = in_fork(|| {
            let own = Count::new();
            // The whole path runs, also through the code that would arm an alarm or wake a thread.
            let timers = [
                Timer::on(&runtime, Duration::ZERO, NEVER, own.callback()),
                Timer::on(&runtime, us(100), ms(1), own.callback()),
                TimerBuilder::on(&runtime).due(ms(1)).period(NEVER).start_exclusive({
                    let own = own.clone();
                    move |_| {
                        own.bump();
                    }
                }),
            ];
            inherited.change(ms(1), ms(1));
            thread::sleep(ms(30));
            assert_eq!((own.get(), fired.get()), (0, 0), "nothing fires here");
            for timer in &timers {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            }
            assert_eq!(inherited.dispose_and_wait(), Waited::Ended);
            // The child has none of the parent's threads to wait for.
            let begun = Instant::now();
            assert!(runtime.shutdown(secs(3_600)).is_ok() && begun.elapsed() < secs(600));
            let fresh = start("tq-child");
            Ledger::spread(&fresh, 50, ms(20)).settle();
            assert_eq!(fresh.shutdown(PATIENCE), Ok(()));
        });
        assert_eq!(ended, "exit 0");
        eventually("the parent's timers fire", || late.get() == 50);
        drop(pending);
        assert_eq!(fired.get(), 0, "stopped here, whatever the child did");
        Ledger::spread(&runtime, 50, ms(20)).settle();
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
    });
}

/// S33, S34. Each call that returns an error says that the process was forked, no wait hangs, and
/// the child may start a default runtime of its own.
#[test]
fn s34_a_forked_child_is_told_so_and_may_start_a_default_runtime() {
    fn forked<T>(what: &str, result: Result<T, RuntimeError>) {
        let error = result.map(drop).expect_err(what);
        assert!(matches!(error, RuntimeError::Forked), "{what}: {error:?}");
        assert!(error.to_string().contains("forked"), "{what}: {error}");
    }
    in_child(module_path!(), "s34_a_forked_child_is_told_so_and_may_start_a_default_runtime", || {
        let named = Runtime::builder().queues(1).thread_name("tq-fork").start().expect("it starts");
        let clock = ManualClock::new();
        let manual = Runtime::builder().manual_clock(&clock).start().expect("it starts");
        let far = Timer::new(secs(1_000), NEVER, |_| {});
        let armed = CancellationTokenSource::after(secs(1_000));
        let queue = DelayQueue::<u32, ()>::on(&named);
        let ended = in_fork(|| {
            assert!(matches!(Runtime::try_global(), Err(StartError::Forked)));
            assert!(Runtime::global().is_shut_down() && named.is_shut_down() && !manual.is_shut_down());
            forked("current", Runtime::try_current());
            forked("timer", Timer::try_new(ms(1), NEVER, |_| {}));
            forked("once", OnceTimer::try_new(ms(1), |_| {}));
            forked("wall", WallTimer::try_new(std::time::SystemTime::now(), |_| {}));
            forked("builder", TimerBuilder::on(&named).due(ms(1)).try_start_exclusive(|_| {}));
            forked("wall builder", TimerBuilder::on(&named).try_start_wall(std::time::SystemTime::now(), |_| {}));
            forked("execute", named.try_execute(|| {}));
            forked("delay", block_on(Delay::new(secs(1_000)).try_wait()));
            forked("interval", block_on(Interval::on(&named, secs(1_000)).try_tick()));
            forked("cancel after", CancellationTokenSource::try_after(ms(1)));
            forked("cancel", CancellationTokenSource::on(&named).try_cancel_after(ms(1)));
            forked("moved", armed.try_cancel_after(ms(1)));
            armed.cancel_after(ms(1));
            forked("queue", DelayQueue::<u32, ()>::try_new());
            forked("watchdog", timerqueue::util::Watchdog::try_new(ms(1), || {}));
            assert!(queue.insert(1, (), ms(1)).is_err() && queue.recv_blocking().is_none());
            assert_eq!(queue.recv_timeout(secs(3_600)).map(drop), Err(RecvTimeoutError::Closed));
            // A manual clock needs no threads.
            manual.try_execute(|| {}).expect("it runs here");
            assert_eq!(clock.advance(ms(1)), 1);

            let own = Runtime::builder().thread_name("tq-own").start_global().expect("the child's own");
            assert!(matches!(Runtime::builder().start_global(), Err(StartError::AlreadyStarted)));
            assert!(own.is_global() && std::ptr::eq(own, Runtime::global()) && !own.is_shut_down());
            let fired = Count::new();
            let timers = [
                Timer::new(ms(1), NEVER, fired.callback()),
                Timer::try_new(ms(1), NEVER, fired.callback()).expect("it fires"),
            ];
            block_on(Delay::new(ms(2)));
            let other = fired.clone();
            thread::spawn(move || Timer::new(ms(1), NEVER, other.callback()).detach()).join().expect("no panic");
            eventually("all fire", || fired.get() == 3);
            drop(timers);
            assert_eq!(Runtime::shutdown_global(PATIENCE), Ok(()));
            assert!(matches!(Runtime::try_global(), Err(StartError::ShutDown)));
        });
        assert_eq!(ended, "exit 0");
        assert!(!Runtime::global().is_shut_down(), "the parent's");
        Ledger::spread(Runtime::global(), 50, ms(20)).settle();
        drop(far);
    });
}

/// A program that forks and execs has none of the descriptors, and its parent misses no tick.
#[test]
fn a_program_that_is_started_inherits_no_descriptor() {
    in_child(module_path!(), "a_program_that_is_started_inherits_no_descriptor", || {
        let list = || {
            let out = Command::new("ls").args(["-l", "/proc/self/fd"]).output();
            out.ok().map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
        };
        let Some(_) = list() else {
            return skip("a_program_that_is_started_inherits_no_descriptor", "there is no ls here");
        };
        let runtime = start("tq-exec");
        let ledger = Ledger::spread(&runtime, 200, ms(200));
        for _ in 0..5 {
            let seen = list().expect("it was there before");
            assert!(!seen.contains("timerfd") && !seen.contains("eventpoll"), "{seen}");
        }
        ledger.settle();
    });
}

// ------------------------------------------------------------------------------------------------------------- stopped

/// Stops this process from outside, after a while and for a while. False: the system refuses this.
fn stopped_for(after: Duration, stop: Duration) -> bool {
    let (after, stop) = (after.as_secs_f64(), stop.as_secs_f64());
    let script = format!("sleep {after}; kill -STOP $PPID; sleep {stop}; kill -CONT $PPID");
    Command::new("sh").args(["-c", &script]).spawn().is_ok()
}

/// S5, S8. After two seconds without a processor every timer is late, no timer is lost, and each
/// missed-tick policy holds.
#[test]
fn s08_a_process_that_was_stopped_for_seconds_loses_nothing() {
    const NAME: &str = "s08_a_process_that_was_stopped_for_seconds_loses_nothing";
    in_child(module_path!(), NAME, || {
        const PERIOD: Duration = ms(10);
        let runtime = start("tq-stop");
        if !stopped_for(ms(300), secs(2)) {
            return skip(NAME, "there is no shell to stop this process");
        }
        let ledger = Ledger::spread(&runtime, 1_000, secs(3));
        let policies = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];
        let journals: Vec<Journal<(u64, u64, u64)>> = policies.iter().map(|_| Journal::new()).collect();
        let timers: Vec<Timer> = policies
            .iter()
            .zip(&journals)
            .map(|(&policy, journal)| {
                let journal = journal.clone();
                let ns = |at: Duration| at.as_nanos() as u64;
                let timer = TimerBuilder::on(&runtime).due(PERIOD).period(PERIOD).missed_ticks(policy);
                // Exclusive: the disposal cuts off only ticks at the end.
                timer.start_exclusive(move |tick: &Tick<'_>| {
                    let now = ns(tick.now().as_duration());
                    journal.push((ns(tick.scheduled().as_duration()), now, tick.missed()));
                })
            })
            .collect();
        let late = ledger.settle();
        for timer in &timers {
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        }
        let worst = Duration::from_nanos(*late.last().expect("a thousand of them") as u64);
        if worst < secs(1) {
            return skip(NAME, "the process was not stopped");
        }
        print_lateness("stopped for 2 s", &late);
        let period = PERIOD.as_nanos() as u64;
        for (policy, journal) in policies.into_iter().zip(&journals) {
            let mut ticks = journal.take();
            ticks.sort_unstable();
            assert!(ticks.iter().all(|&(scheduled, now, _)| now >= scheduled), "{policy:?}: early");
            let first = ticks[0].0;
            let steps: Vec<u64> = ticks.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
            let missed: u64 = ticks.iter().map(|tick| tick.2).sum();
            match policy {
                MissedTicks::Burst => {
                    assert!(missed == 0 && steps.iter().all(|&step| step == period), "every tick is run");
                }
                MissedTicks::Skip => {
                    let on_grid = ticks.iter().all(|&(scheduled, ..)| (scheduled - first) % period == 0);
                    assert!(on_grid && missed > 50, "on the grid, and {missed} missed");
                    let gone = (ticks.last().expect("some").0 - first) / period;
                    let before_last: u64 = ticks[..ticks.len() - 1].iter().map(|tick| 1 + tick.2).sum();
                    assert_eq!(before_last, gone, "run or counted");
                }
                _ => {
                    assert!(missed > 50, "{policy:?}: {missed} missed");
                    assert!(steps.iter().any(|&step| step > 50 * period), "{policy:?}: the grid was left");
                }
            }
        }
    });
}

// ------------------------------------------------------------------------------------------------- cores come and go

/// Restricts these threads to these cores. False: the system refuses this.
fn restrict(threads: &[libc::pid_t], cores: &[usize]) -> bool {
    threads.iter().all(|&thread| {
        // SAFETY: a valid set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for &core in cores {
                libc::CPU_SET(core, &mut set);
            }
            let done = libc::sched_setaffinity(thread, size_of_val(&set), &set);
            done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
        }
    })
}

fn usable_cores() -> Vec<usize> {
    // SAFETY: a valid set; zero is this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

/// S25. A running process loses cores and gets different cores: queues stay, timers fire.
#[test]
fn s25_cores_change_while_timers_are_pending() {
    const NAME: &str = "s25_cores_change_while_timers_are_pending";
    in_child(module_path!(), NAME, || {
        let cores = usable_cores();
        if cores.len() < 2 {
            return skip(NAME, "there is one core only");
        }
        for pinned in [false, true] {
            let runtime = Runtime::builder().pin_workers(pinned).thread_name("tq-cores").start().expect("it starts");
            assert_eq!(runtime.queues(), cores.len());
            let periodic = Count::new();
            let ticking = Timer::on(&runtime, ms(1), ms(1), periodic.callback());
            for allowed in [&cores[..1], &cores[1..], &cores[cores.len() - 1..], &cores[..]] {
                let pending = Ledger::spread(&runtime, 100, ms(60));
                assert!(restrict(&own_threads(), allowed));
                let here = Ledger::spread(&runtime, 100, ms(40));
                let seen = periodic.get();
                here.settle();
                pending.settle();
                eventually("ticks go on", || periodic.get() > seen + 5);
            }
            assert_eq!(ticking.dispose_and_wait(), Waited::Ended);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        }
    });
}

/// S25. A set of cores smaller than the machine, with gaps in its numbers.
#[test]
fn s25_a_set_of_cores_with_gaps() {
    const NAME: &str = "s25_a_set_of_cores_with_gaps";
    in_child(module_path!(), NAME, || {
        let cores = usable_cores();
        // Every second core, without the first: with two cores this is a single core with a number
        // above zero.
        let odd: Vec<usize> = cores.iter().copied().skip(1).step_by(2).collect();
        if odd.is_empty() {
            return skip(NAME, "there is one core only");
        }
        if odd.len() < 2 {
            skip(NAME, "fewer than four cores: tried with one core whose number is not the first");
        }
        assert!(restrict(&own_threads(), &odd));
        let runtime = start("tq-gaps");
        assert_eq!(runtime.queues(), odd.len());
        Ledger::spread(&runtime, 300, ms(50)).settle();
        for &core in &cores {
            // Also from cores unknown to the runtime.
            assert!(restrict(&[0], &[core]));
            Ledger::spread(&runtime, 100, ms(20)).settle();
        }
    });
}

// ---------------------------------------------------------------------------------------------------------------- load

/// No timer is lost or early beside four busy threads per core.
#[test]
fn s05_under_four_times_the_load() {
    in_child(module_path!(), "s05_under_four_times_the_load", || {
        let runtime = start("tq-load");
        let over = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..4 * usable_cores().len())
            .map(|_| {
                let over = Arc::clone(&over);
                thread::spawn(move || {
                    let mut rounds = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        rounds = std::hint::black_box(rounds.wrapping_add(1));
                    }
                })
            })
            .collect();
        let ticks = Count::new();
        let periodic = Timer::on(&runtime, ms(5), ms(5), ticks.callback());
        let ledger = Ledger::spread(&runtime, 2_000, ms(700));
        let late = ledger.settle();
        eventually("ticks go on", || ticks.get() > 20);
        over.store(true, Ordering::Relaxed);
        print_lateness("under four times the load", &late);
        drop(periodic);
        for thread in busy {
            thread.join().expect("no panic");
        }
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
    });
}

fn set_priority(policy: libc::c_int, priority: libc::c_int) -> bool {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: a valid parameter; zero is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &param) == 0 }
}

/// Threads of the pool with real-time priority, beside a thread without that submits jobs on the
/// same core. A thread of the pool never waits in a loop for the other one, which could not run: it
/// would stand still until the system takes the processor away, after most of a second.
#[test]
fn s31_no_thread_with_priority_loops_for_a_thread_without() {
    const NAME: &str = "s31_no_thread_with_priority_loops_for_a_thread_without";
    in_child(module_path!(), NAME, || {
        if !(restrict(&own_threads(), &usable_cores()[..1]) && set_priority(libc::SCHED_FIFO, 1)) {
            return skip(NAME, "no right to real-time priority");
        }
        let runtime = start("tq-rt"); // its threads inherit the priority
        thread::sleep(ms(50));
        assert!(set_priority(libc::SCHED_OTHER, 0));
        let (ticks, jobs) = (Count::new(), Count::new());
        let timers: Vec<_> =
            (0..20).map(|i| Timer::on(&runtime, us(1_000 + 37 * i), us(1_000 + 37 * i), ticks.callback())).collect();
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < secs(3) {
            let jobs = jobs.clone();
            runtime.execute(move || _ = jobs.bump());
            sent += 1;
        }
        let due: usize = (0..20).map(|i| begun.elapsed().as_micros() as usize / (1_000 + 37 * i)).sum();
        drop(timers);
        eventually("each job is run", || jobs.get() == sent);
        assert!(ticks.get() > due / 3, "{} ticks of {due}", ticks.get());
    });
}
