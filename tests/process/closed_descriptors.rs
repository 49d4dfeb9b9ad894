//! Loss of the alarms (S33): other code of the process closes descriptors, or a sandbox refuses
//! their calls. The runtime ends and reports the reason, no thread spins, and files opened under
//! the same numbers are left alone.
//!
//! Ground rules. Each test runs in a child process, since it closes descriptors that it has not
//! opened. The runtimes are young, so their threads check the descriptors within seconds.

// a userspace kqueue has descriptors of its own
#![cfg(all(target_os = "linux", not(timerqueue_kqueue)))]
#![allow(unsafe_code)] // descriptors

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::child::{in_child, skip};
use crate::support::process::{open_descriptors, threads_named};
use crate::support::{Count, Gate, Journal, NEVER, PATIENCE, block_on, blocked, eventually, ms, secs};
use timerqueue::{
    Changed, Delay, OnceTimer, Runtime, RuntimeBuilder, Timer, Waited, WallTimer,
    error::{RuntimeError, StartError},
};

/// Checks that timers fire.
fn works(runtime: &Runtime) {
    let fired = Count::new();
    let timers = [
        Timer::on(runtime, Duration::ZERO, NEVER, fired.callback()),
        Timer::on(runtime, ms(2), ms(1), fired.callback()),
    ];
    eventually("timers fire", || fired.get() >= 3);
    for timer in timers {
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    }
}

/// Closes all descriptors but the standard descriptors, as a careless daemon does. Returns their
/// numbers.
fn close_all() -> Vec<libc::c_int> {
    let all: Vec<libc::c_int> = own_descriptors().into_iter().filter(|&fd| fd > 2).collect();
    all.iter().copied().for_each(close);
    all
}

/// Runs `body`, which makes a runtime, until its own step was the first to meet the loss; else it
/// tells the age of the runtime after this step. A poller looks for a loss at an age of 1 s, 2 s,
/// 4 s and so on: where the thread of the test gets no processor for long, the look comes first.
fn until_unchecked(body: impl Fn() -> Result<(), Duration>) {
    let is_first = |_| body().map_err(|age| assert!(age >= secs(1), "no poller has looked by {age:?}")).is_ok();
    assert!((0..5).any(is_first), "the look of a poller does not come first in each of five runs");
}

fn close(fd: libc::c_int) {
    // SAFETY: the argument is a number. It may be a descriptor of the runtime; this is the purpose
    // of the test.
    let _ = unsafe { libc::close(fd) };
}

/// Sets a panic handler, and returns the journal of its messages.
fn told(builder: RuntimeBuilder) -> (RuntimeBuilder, Journal<String>) {
    let journal = Journal::new();
    let tell = journal.clone();
    (builder.on_panic(move |panic| tell.push(*panic.into_payload().downcast::<String>().expect("a text"))), journal)
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    // SAFETY: the buffer has the size of the result.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage
    };
    let of = |time: libc::timeval| secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Checks that the runtime has ended, and that its remaining threads sleep.
fn has_ended(runtime: &Runtime, name: &str) {
    let fired = Count::new();
    let timer = Timer::on(runtime, ms(1), NEVER, fired.callback());
    assert_eq!(timer.change(ms(1), NEVER), Changed::Ended);
    assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    assert!(matches!(block_on(Delay::on(runtime, secs(1_000)).try_wait()), Err(RuntimeError::Ended)));
    let ended = if runtime.is_global() { Runtime::shutdown_global(secs(5)) } else { runtime.shutdown(secs(5)) };
    assert_eq!(ended, Ok(()));
    // A spinning thread takes all its processor time, also on a busy machine.
    let quiet = (0..5).any(|_| {
        let (before, begin) = (cpu_time(), Instant::now());
        thread::sleep(ms(100));
        cpu_time() - before < begin.elapsed() / 4
    });
    assert!(quiet, "no thread spins");
    eventually("those that slept end when they look", || threads_named(name) == 0);
    assert_eq!(fired.get(), 0);
}

#[test]
fn s33_a_runtime_whose_descriptors_are_closed_ends_and_says_so() {
    in_child(module_path!(), "s33_a_runtime_whose_descriptors_are_closed_ends_and_says_so", || {
        for (i, busy) in [false, true, false].into_iter().enumerate() {
            let (builder, told) = told(Runtime::builder().queues(2).workers(4).thread_name("tq-lost"));
            let runtime = builder.start().expect("it starts");
            works(&runtime);
            let ticks = Count::new();
            let periodic = busy.then(|| Timer::on(&runtime, ms(1), ms(1), ticks.callback()));
            eventually("it ticks", || !busy || ticks.get() > 5);
            let (mut far, mut soon) = (Delay::on(&runtime, secs(1_000)), Delay::on(&runtime, ms(200)));
            let waiting = thread::spawn(move || (block_on(far.try_wait()), block_on(soon.try_wait())));
            thread::sleep(ms(20));
            close_all();
            if i == 2 {
                // A timer that becomes the earliest: the call that arms the alarm finds the loss,
                // without a poller.
                drop(Timer::on(&runtime, ms(1), NEVER, |_| {}));
            }
            eventually("the handler is told", || told.len() > 0);
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended.0, Err(RuntimeError::Ended)), "{ended:?}");
            has_ended(&runtime, "tq-lost");
            drop(periodic);
            let told = told.take();
            assert!(told.len() == 1 && told[0].contains("closed"), "once: {told:?}");
            // The process goes on, and a new runtime works.
            let another = Runtime::builder().thread_name("tq-next").start().expect("it starts");
            works(&another);
            drop(runtime);
            works(&another);
            assert_eq!(another.shutdown(PATIENCE), Ok(()));
        }
    });
}

#[test]
fn s33_shutdown_does_not_wait_for_threads_that_no_descriptor_wakes() {
    in_child(module_path!(), "s33_shutdown_does_not_wait_for_threads_that_no_descriptor_wakes", || {
        until_unchecked(|| {
            let (builder, told) = told(Runtime::builder().thread_name("tq-lost"));
            let begun = Instant::now();
            let runtime = builder.start().expect("it starts");
            let timer = Timer::on(&runtime, secs(1_000), NEVER, |_| {});
            works(&runtime);
            let gate = Gate::new();
            let (held, entered) = (gate.clone(), Count::new());
            let running = entered.clone();
            OnceTimer::on(&runtime, Duration::ZERO, move |_| {
                running.bump();
                held.wait();
            })
            .detach();
            eventually("it runs", || entered.get() == 1);
            close_all();
            // The shutdown still waits for a running callback.
            eventually("it is left", || runtime.shutdown(ms(100)).map_err(|late| late.threads()) == Err(1));
            let age = begun.elapsed();
            gate.open();
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            assert_eq!(timer.change(ms(1), NEVER), Changed::Ended);
            has_ended(&runtime, "tq-lost");
            // Nothing is told where the runtime had been shut down already.
            if told.len() == 0 { Ok(()) } else { Err(age) }
        })
    });
}

#[test]
fn s33_the_default_runtime_ends_when_its_descriptors_are_closed() {
    in_child(module_path!(), "s33_the_default_runtime_ends_when_its_descriptors_are_closed", || {
        let runtime = Runtime::global();
        works(runtime);
        let timer = Timer::new(ms(500), NEVER, |_| {});
        close_all();
        eventually("it ends", || matches!(Runtime::try_global(), Err(StartError::ShutDown)));
        assert!(matches!(Timer::try_new(ms(1), NEVER, |_| {}), Err(RuntimeError::Ended)));
        assert_eq!(timer.change(ms(1), NEVER), Changed::Ended);
        has_ended(runtime, "timerqueue");
    });
}

/// A single closed descriptor of the runtime is enough, for each of its descriptors.
#[test]
fn s33_each_descriptor_may_be_closed() {
    in_child(module_path!(), "s33_each_descriptor_may_be_closed", || {
        for closed in 0.. {
            let (builder, told) = told(Runtime::builder().queues(2).workers(3).thread_name("tq-each"));
            let others = anonymous_files();
            let before = open_descriptors();
            let runtime = builder.start().expect("it starts");
            works(&runtime);
            // Also the descriptor of the wall clock.
            let wall = WallTimer::on(&runtime, SystemTime::now() + secs(1_000), |_| {});
            let ours = anonymous_files().into_iter().filter(|fd| !others.contains(fd)).nth(closed);
            let Some(fd) = ours else {
                assert!(closed >= 8, "{closed}");
                break;
            };
            close(fd);
            eventually("the handler is told", || told.len() > 0);
            has_ended(&runtime, "tq-each");
            drop((wall, runtime));
            assert_eq!(told.len(), 1);
            // Without the epoll set, or the descriptor for wake-ups, the runtime cannot tell its
            // own descriptors: then all stay open.
            let cut_off = closed == 5 || closed == 6;
            let left = if cut_off { before + 7 } else { before };
            eventually("the others are closed", || open_descriptors() == left);
        }
    });
}

/// The same, where a timer of one queue keeps both threads from waiting for long.
#[test]
fn s33_a_closed_descriptor_is_missed_beside_a_periodic_timer() {
    in_child(module_path!(), "s33_a_closed_descriptor_is_missed_beside_a_periodic_timer", || {
        let mut runtimes = Vec::new();
        for closed in 0.. {
            let (builder, told) = told(Runtime::builder().queues(2).workers(2).thread_name("tq-often"));
            let others = anonymous_files();
            let runtime = builder.start().expect("it starts");
            works(&runtime);
            let often = Timer::on(&runtime, ms(2), ms(2), |_| thread::sleep(ms(3)));
            let ours = anonymous_files().into_iter().filter(|fd| !others.contains(fd)).nth(closed);
            let Some(fd) = ours else {
                assert!(closed >= 7, "{closed}");
                break;
            };
            runtimes.push((fd, runtime, often, told));
        }
        // Not before all are open: else one would get the number of another's.
        runtimes.iter().for_each(|&(fd, ..)| close(fd));
        for (.., told) in &runtimes {
            eventually("the handler is told", || told.len() > 0);
        }
        runtimes.iter().for_each(|(_, runtime, ..)| has_ended(runtime, "tq-often"));
    });
}

/// The open descriptors of kinds that runtimes keep. (The pool opens files of `/proc` for moments.)
fn anonymous_files() -> Vec<libc::c_int> {
    let is_anonymous = |fd: &libc::c_int| {
        let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        file.is_ok_and(|file| file.to_string_lossy().starts_with("anon_inode:"))
    };
    own_descriptors().into_iter().filter(is_anonymous).collect()
}

fn own_descriptors() -> Vec<libc::c_int> {
    let all = std::fs::read_dir("/proc/self/fd").expect("a /proc to look into").flatten();
    let mut all: Vec<libc::c_int> = all.filter_map(|fd| fd.file_name().to_str()?.parse().ok()).collect();
    // The list contains the directory itself, which is closed by now.
    // SAFETY: the argument is a number.
    all.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
    all.sort_unstable();
    all
}

/// Files opened under the closed numbers are neither written to nor closed.
#[test]
fn s33_files_that_reuse_closed_descriptor_numbers_are_left_alone() {
    type Open = fn() -> libc::c_int;
    // SAFETY: the pointers are to a zero-terminated text and to a buffer of two numbers.
    let kinds: [(&str, Open); 5] = unsafe {
        [
            ("a file", || libc::memfd_create(c"other".as_ptr(), 0)),
            ("an eventfd", || libc::eventfd(0, libc::EFD_NONBLOCK)),
            ("an epoll set", || libc::epoll_create1(0)),
            ("a timerfd", || libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK)),
            ("a socket", || libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 0)),
        ]
    };
    in_child(module_path!(), "s33_files_that_reuse_closed_descriptor_numbers_are_left_alone", || {
        for (what, open) in kinds {
            for late in [false, true] {
                let (builder, told) = told(Runtime::builder().queues(2).thread_name("tq-lost"));
                let runtime = builder.start().expect("it starts");
                works(&runtime);
                let timer = Timer::on(&runtime, secs(1_000), NEVER, |_| {});
                let all = close_all();
                for &number in &all {
                    let fd = open();
                    if fd != number {
                        // SAFETY: the numbers are descriptors of this test.
                        assert_eq!(unsafe { libc::dup2(fd, number) }, number);
                        close(fd);
                    }
                }
                if late {
                    // The loss is found by the pollers.
                    eventually("the handler is told", || told.len() == 1);
                } else {
                    // The loss is found by the end of the runtime, or by an earlier call.
                    let _ = timer.change(secs(10), NEVER);
                    let _ = OnceTimer::on(&runtime, Duration::ZERO, |_| {});
                }
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()), "{what}");
                drop((timer, runtime));
                eventually("all threads have looked", || threads_named("tq-lost") == 0);
                for &fd in &all {
                    // SAFETY: the descriptors are of this test, and the buffer has the requested
                    // size.
                    unsafe {
                        assert!(libc::fcntl(fd, libc::F_GETFD) >= 0, "{what} {fd} is open");
                        let mut stat: libc::stat = std::mem::zeroed();
                        assert_eq!((libc::fstat(fd, &mut stat), stat.st_size), (0, 0), "{what} {fd} is empty");
                        let mut eight = [0u8; 8];
                        let read = libc::read(fd, eight.as_mut_ptr().cast(), 8);
                        let nothing = if what == "a socket" { read == -1 } else { read <= 0 };
                        assert!(nothing, "{what} {fd}: {read}");
                    }
                    close(fd);
                }
            }
        }
    });
}

/// The epoll set of a foreign event loop has the number of the runtime's set: its first event shows
/// the loss.
#[test]
fn s33_the_events_of_another_set_are_not_taken_for_ours() {
    in_child(module_path!(), "s33_the_events_of_another_set_are_not_taken_for_ours", || {
        until_unchecked(|| {
            let (builder, told) = told(Runtime::builder().queues(2).workers(3).max_threads(3).thread_name("tq-lost"));
            let begun = Instant::now();
            let runtime = builder.start().expect("it starts");
            let (timers, gate) = blocked(&runtime, 1);
            let all = close_all();
            for &number in &all {
                // SAFETY: the descriptors are of this test.
                unsafe {
                    let (set, ready) = (libc::epoll_create1(0), libc::fcntl(libc::eventfd(1, 0), libc::F_DUPFD, 100));
                    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
                    assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, ready, &mut event), 0);
                    assert_eq!(libc::dup2(set, number), number);
                }
            }
            // The poller that comes back waits in the foreign set.
            gate.open();
            eventually("the handler is told", || told.len() > 0);
            let age = begun.elapsed();
            let by_the_event = told.take()[0].contains("another set");
            has_ended(&runtime, "tq-lost");
            drop((timers, runtime));
            // SAFETY: the arguments are numbers.
            assert!(all.iter().all(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0));
            if by_the_event { Ok(()) } else { Err(age) }
        })
    });
}

/// A call that meets the loss ends the runtime, without waiting for the regular check of a poller.
#[test]
fn s33_the_first_call_that_meets_closed_descriptors_ends_the_runtime() {
    in_child(module_path!(), "s33_the_first_call_that_meets_closed_descriptors_ends_the_runtime", || {
        type Meet = fn(&Runtime, Gate);
        // The descriptor, the call that meets the loss, and the thread that ends the runtime, which
        // must not hold a lock.
        let ways: [(Meet, &str, &str); 3] = [
            (|runtime, _| Timer::on(runtime, secs(10), NEVER, |_| {}).detach(), "timerfd_settime", "timerqueue-lost"),
            (|runtime, _| OnceTimer::on(runtime, Duration::ZERO, |_| {}).detach(), "epoll_ctl", "timerqueue-lost"),
            (|_, gate| gate.open(), "epoll_wait", "tq-first"),
        ];
        for (meet, call, thread) in ways {
            // On a slow machine a poller may have checked just before, but not each time.
            let met = (0..5).any(|_| {
                let told = Journal::new();
                let tell = told.clone();
                let builder = Runtime::builder().queues(1).workers(3).max_threads(3).thread_name("tq-first");
                let runtime = builder
                    .on_panic(move |panic| {
                        let thread = thread::current().name().unwrap_or_default().to_owned();
                        tell.push((panic.payload().downcast_ref::<String>().expect("a text").clone(), thread));
                    })
                    .start()
                    .expect("it starts");
                let (timers, gate) = blocked(&runtime, 1);
                close_all();
                meet(&runtime, gate.clone());
                eventually("the handler is told", || told.len() > 0);
                gate.open();
                drop(timers);
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
                eventually("all threads have ended", || threads_named("tq-first") == 0);
                let told = told.take();
                told.len() == 1 && told[0].0.contains(call) && told[0].1.starts_with(thread)
            });
            assert!(met, "{call} on {thread}");
        }
    });
}

// ---------------------------------------------------------------------------------------- a sandbox entered too late

/// Installs a filter for all threads of the process: from now on the system refuses this call.
/// False: no filters here.
fn refuse(call: libc::c_long) -> bool {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call is the first word of the filter's input.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no pointers but the program, which is well-formed and lives through the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &raw const program,
            ) == 0
    }
}

/// The runtime ends, and says that the system refuses a call: no code has closed a descriptor.
fn refused_late(name: &str, call: libc::c_long, named: &str) {
    in_child(module_path!(), name, || {
        let (builder, told) = told(Runtime::builder().queues(1).workers(2).max_threads(2).thread_name("tq-late"));
        let runtime = builder.start().expect("it starts");
        works(&runtime);
        if !refuse(call) {
            return skip(name, "no system call filters here");
        }
        // A timer that becomes the earliest, and a job for a thread that waits.
        let timer = Timer::on(&runtime, secs(10), NEVER, |_| {});
        let _ = runtime.try_execute(|| {});
        eventually("the handler is told", || told.len() > 0);
        let told = told.take();
        let right = told[0].contains(named) && told[0].contains("refuses") && !told[0].contains("closed");
        assert!(right && told.len() == 1, "{told:?}");
        has_ended(&runtime, "tq-late");
        drop(timer);
    });
}

#[test]
fn s33_a_late_sandbox_that_refuses_timers_is_not_taken_for_closed_descriptors() {
    const NAME: &str = "s33_a_late_sandbox_that_refuses_timers_is_not_taken_for_closed_descriptors";
    refused_late(NAME, libc::SYS_timerfd_settime, "timerfd_settime");
}

#[test]
fn s33_a_late_sandbox_that_refuses_wake_ups_is_not_taken_for_closed_descriptors() {
    const NAME: &str = "s33_a_late_sandbox_that_refuses_wake_ups_is_not_taken_for_closed_descriptors";
    refused_late(NAME, libc::SYS_epoll_ctl, "epoll_ctl");
}

#[cfg(target_arch = "x86_64")] // elsewhere the C library makes another call
#[test]
fn s33_a_late_sandbox_that_refuses_waits_is_not_taken_for_closed_descriptors() {
    const NAME: &str = "s33_a_late_sandbox_that_refuses_waits_is_not_taken_for_closed_descriptors";
    refused_late(NAME, libc::SYS_epoll_wait, "epoll_wait");
}
