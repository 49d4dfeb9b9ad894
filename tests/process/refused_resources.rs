//! Resources refused by the system: S34, and the growth of the pool (S31) when threads are refused.
//!
//! Ground rules. Limits hold for a whole process, so each test with a limit runs in a child
//! process. If a fault cannot be caused (for example a limit per user), the test reports this on
//! standard error and passes.
//!
//! This binary defines the calls that make descriptors, and can refuse each of them.

#![cfg(target_os = "linux")]
// limits, users and affinity of the process; stands in for functions of the C library
#![allow(unsafe_code)]

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, start};
use crate::support::child::{in_child, skip};
use crate::support::process::{open_descriptors, threads_named};
use crate::support::{Count, Gate, NEVER, OnDrop, PATIENCE, blocked, blocking, eventually, ms, secs, within};
use timerqueue::{
    Alarm, ManualClock, OnceTimer, Runtime, Timer, Waited, WallTimer,
    error::StartError,
    observe::{Observer, ThreadsChanged},
};

// ------------------------------------------------------------------------------------------------ numbers out of range

#[test]
fn s34_numbers_out_of_range_are_refused() {
    in_child(module_path!(), "s34_numbers_out_of_range_are_refused", || {
        for (asked, good) in [(0, false), (1, true), (1_024, true), (1_025, false), (usize::MAX, false)] {
            for manual in [true, false] {
                let builder = Runtime::builder().queues(asked);
                // A thousand native queues would need a thousand descriptors: the largest number is
                // tested only on virtual time.
                if !manual && asked == 1_024 {
                    continue;
                }
                let builder = if manual { builder.manual_clock(&ManualClock::new()) } else { builder };
                match builder.start() {
                    Ok(runtime) => assert!(good && runtime.queues() == asked, "{asked} queues"),
                    Err(StartError::Queues { asked: told, max, .. }) => {
                        assert!(!good && told == asked && max == 1_024, "{asked} queues: told {told} of {max}");
                    }
                    Err(other) => panic!("{asked} queues: {other:?}"),
                }
            }
        }
        let before = open_descriptors();
        let cases: [(usize, Option<usize>); 7] =
            [(0, None), (1, None), (4_001, None), (usize::MAX, None), (3, Some(2)), (2, Some(0)), (2, Some(4_001))];
        for (workers, max_threads) in cases {
            let mut builder = Runtime::builder().workers(workers);
            if let Some(max_threads) = max_threads {
                builder = builder.max_threads(max_threads);
            }
            match builder.start() {
                Err(error @ StartError::Threads { .. }) => {
                    let StartError::Threads { asked, min, max, .. } = error else { unreachable!("just matched") };
                    assert!(asked == max_threads.unwrap_or(workers) && !(min..=max).contains(&asked) && min >= 2);
                    assert!(error.to_string().contains(&asked.to_string()), "{error}");
                    assert!(error.source().is_none());
                }
                other => panic!("{workers} workers of {max_threads:?}: {other:?}"),
            }
        }
        // but what others have open now
        eventually("nothing was opened and kept", || open_descriptors() <= before + 40);
        // More workers than the usual largest number of threads are fine.
        let runtime = Runtime::builder().workers(2).max_threads(2).start().expect("the smallest numbers");
        assert_eq!(runtime.metrics().threads.alive, 2);
    });
}

#[test]
fn s34_settings_without_meaning_on_a_manual_clock_do_no_harm() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).workers(0).max_threads(usize::MAX).start();
    assert_eq!(runtime.expect("no threads to be refused").metrics().threads.alive, 0);
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_any_thread_name_is_taken_or_refused_without_a_panic() {
    in_child(module_path!(), "s34_any_thread_name_is_taken_or_refused_without_a_panic", || {
        let before = open_descriptors();
        for name in ["", "tq", "a name much longer than the fifteen bytes that the system shows", "Zeit-Ü", "a\0b"] {
            let started = std::panic::catch_unwind(|| Runtime::builder().thread_name(name).start().map(drop));
            assert!(started.is_ok(), "{name:?} panicked");
        }
        eventually("everything is closed", || open_descriptors() == before);
    });
}

// ------------------------------------------------------------------------------------------------- descriptors refused

fn soft_limit(which: libc::__rlimit_resource_t, soft: Option<u64>) -> u64 {
    // SAFETY: a structure that lives through both calls.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(which, &mut limit), 0);
        let before = limit.rlim_cur;
        limit.rlim_cur = soft.unwrap_or(limit.rlim_max);
        assert_eq!(libc::setrlimit(which, &limit), 0, "{}", io::Error::last_os_error());
        before
    }
}

/// Lets the process open exactly `more` further descriptors.
fn allow_descriptors(more: usize) {
    // SAFETY: the call reads flags; no pointers.
    let free = |fd: i32| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1;
    let first_refused = (0..).filter(|&fd| free(fd)).nth(more).expect("descriptors are numbered from zero");
    soft_limit(libc::RLIMIT_NOFILE, Some(first_refused as u64));
}

/// Fires a one-shot and a periodic timer.
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

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_each_descriptor_may_be_refused() {
    in_child(module_path!(), "s34_each_descriptor_may_be_refused", || {
        const QUEUES: usize = 3;
        // whatever the directory walk itself keeps, it keeps from now on
        let _ = open_descriptors();
        let before = open_descriptors();
        let mut needed = 0;
        let runtime = loop {
            allow_descriptors(needed);
            match Runtime::builder().queues(QUEUES).thread_name("tq-fd").start() {
                Ok(runtime) => break runtime,
                Err(StartError::Alarm(error)) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE)),
                Err(other) => panic!("with {needed} descriptors: {other:?}"),
            }
            soft_limit(libc::RLIMIT_NOFILE, None);
            assert_eq!(
                (open_descriptors(), threads_named("tq-fd")),
                (before, 0),
                "with {needed}: nothing is left behind"
            );
            needed += 1;
            assert!(needed < 100, "it starts at last");
        };
        // With exactly the needed number of descriptors the runtime works, and needs no further
        // descriptor: all queues share a timer then, and the runtime says so.
        assert_eq!((needed, runtime.queues(), runtime.metrics().kernel_timers), (4, QUEUES, 1));
        works(&runtime);
        soft_limit(libc::RLIMIT_NOFILE, None);
        assert_eq!(open_descriptors(), before + needed);
        runtime.shutdown(PATIENCE).expect("nothing runs");
        drop(runtime);
        assert_eq!(open_descriptors(), before);
    });
}

#[test]
fn s34_the_default_runtime_tries_again() {
    in_child(module_path!(), "s34_the_default_runtime_tries_again", || {
        let before = (open_descriptors(), threads_named("timerqueue"));
        for more in 0..3 {
            allow_descriptors(more);
            let refused = Runtime::try_global().err().map(|error| matches!(error, StartError::Alarm(_)));
            let timer = Timer::try_new(ms(1), NEVER, |_| {}).err().map(|error| error.source().is_some());
            soft_limit(libc::RLIMIT_NOFILE, None);
            assert_eq!((refused, timer), (Some(true), Some(true)), "with {more} descriptors");
            assert_eq!((open_descriptors(), threads_named("timerqueue")), before, "nothing is kept");
        }
        let runtime = Runtime::global();
        assert!(std::ptr::eq(runtime, Runtime::global()), "one for the whole process");
        works(runtime);
        let fired = Count::new();
        let timer = Timer::new(ms(1), NEVER, fired.callback());
        eventually("a timer of the default runtime fires", || fired.get() == 1);
        drop(timer);
    });
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_the_default_runtime_starts_on_first_use_and_once() {
    in_child(module_path!(), "s34_the_default_runtime_starts_on_first_use_and_once", || {
        // whatever the directory walk itself keeps, it keeps from now on
        let _ = open_descriptors();
        let before = open_descriptors();
        let another = Runtime::builder().thread_name("tq-another").start().expect("it starts");
        let needed = open_descriptors() - before;
        drop(another);
        eventually("the other one has ended", || open_descriptors() == before && threads_named("tq-another") == 0);
        assert_eq!(threads_named("timerqueue"), 0, "not before");
        // The limit allows the descriptors of a single runtime: if several start at once, some are
        // refused.
        allow_descriptors(needed);
        let all_are_there = Arc::new(Barrier::new(8));
        // Named unlike the threads that it starts.
        let users: Vec<_> = (0..8)
            .map(|_| {
                let (user, all_are_there) = (thread::Builder::new().name("user".into()), Arc::clone(&all_are_there));
                let first_use = move || {
                    all_are_there.wait();
                    std::ptr::from_ref(Runtime::global()) as usize
                };
                user.spawn(first_use).expect("a thread")
            })
            .collect();
        let seen: Vec<usize> = users.into_iter().map(|user| user.join().expect("no panic")).collect();
        assert!(seen.iter().all(|one| *one == seen[0]), "the same for all");
        soft_limit(libc::RLIMIT_NOFILE, None);
        let runtime = Runtime::global();
        eventually("its threads, and no others", || threads_named("timerqueue") == runtime.metrics().threads.alive);
    });
}

// ----------------------------------------------------------------------------------------------------- threads refused

/// Becomes a user without further processes, so the number of threads can be limited exactly:
/// threads of the superuser, or of a user with further processes, cannot be. False: the system
/// refuses this.
fn become_an_unused_user() -> bool {
    // A user id beyond the usual range, different for each process of these tests.
    let lonely_user = 1_500_000_000 + std::process::id();
    // SAFETY: no pointers.
    unsafe {
        // The change of user makes the process undumpable, and changes the owner of its /proc.
        libc::setuid(lonely_user) == 0 && libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
    }
}

/// Lets the process start exactly `more` further threads.
fn allow_threads(more: usize) {
    let now = std::fs::read_dir("/proc/self/task").expect("a /proc to look into").count();
    // Ending threads may still be listed; for `more` of zero no count is needed.
    let limit = if more == 0 { 1 } else { now + more };
    soft_limit(libc::RLIMIT_NPROC, Some(limit as u64));
}

/// Whether the system enforces a limit of `more` threads.
fn threads_can_be_limited(test: &str) -> bool {
    if !become_an_unused_user() {
        // An ordinary user can still set the limit of no further thread.
        soft_limit(libc::RLIMIT_NPROC, Some(1));
        let refused = thread::Builder::new().spawn(|| {}).is_err();
        soft_limit(libc::RLIMIT_NPROC, None);
        skip(test, "needs a user without other processes, which only the superuser can become");
        if refused {
            no_thread_at_all();
        }
        return false;
    }
    allow_threads(0);
    let refused = thread::Builder::new().spawn(|| {}).is_err();
    soft_limit(libc::RLIMIT_NPROC, None);
    if !refused {
        skip(test, "the system does not keep to its limit of threads");
    }
    refused
}

/// The part that needs no privilege: the first thread is refused.
fn no_thread_at_all() {
    let before = open_descriptors();
    soft_limit(libc::RLIMIT_NPROC, Some(1));
    let refused = Runtime::builder().thread_name("tq-none").start();
    soft_limit(libc::RLIMIT_NPROC, None);
    assert!(matches!(refused, Err(StartError::Thread(_))), "{refused:?}");
    eventually("nothing is left behind", || open_descriptors() == before && threads_named("tq-none") == 0);
    works(&Runtime::builder().start().expect("a later try works"));
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_each_thread_may_be_refused() {
    const NAME: &str = "s34_each_thread_may_be_refused";
    in_child(module_path!(), NAME, || {
        const WORKERS: usize = 4;
        if !threads_can_be_limited(NAME) {
            return;
        }
        let before = open_descriptors();
        for more in 0..WORKERS {
            allow_threads(more);
            let refused = Runtime::builder().queues(2).workers(WORKERS).thread_name("tq-thread").start();
            soft_limit(libc::RLIMIT_NPROC, None);
            match refused {
                Err(StartError::Thread(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "with {more} threads: {error:?}");
                }
                other => panic!("with {more} threads: {other:?}"),
            }
            assert_eq!(open_descriptors(), before, "with {more} threads: nothing stays open");
            // An ended thread stays in the system's list a moment longer.
            eventually("no thread stays", || threads_named("tq-thread") == 0);
        }
        // The system counts a thread out some time after its end: until then the test tries again.
        let mut started = None;
        eventually("exactly enough threads are enough", || {
            allow_threads(WORKERS);
            started = Runtime::builder().workers(WORKERS).max_threads(WORKERS).start().ok();
            started.is_some()
        });
        let runtime = started.expect("just seen");
        works(&runtime);
        runtime.shutdown(PATIENCE).expect("nothing runs");
    });
}

#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s34_the_default_runtime_tries_again_when_threads_were_refused() {
    const NAME: &str = "s34_the_default_runtime_tries_again_when_threads_were_refused";
    in_child(module_path!(), NAME, || {
        if !threads_can_be_limited(NAME) {
            return;
        }
        let before = open_descriptors();
        // The destructor of a hook uses the default runtime, and no lock is held.
        allow_threads(1);
        let owned = OnDrop(|| _ = Runtime::try_global());
        let refused = Runtime::builder().workers(2).on_panic(move |_| owned.hold()).start_global();
        soft_limit(libc::RLIMIT_NPROC, None);
        assert!(matches!(refused, Err(StartError::Thread(_))), "{refused:?}");
        for more in 0..2 {
            allow_threads(more);
            let refused = Runtime::try_global().err().map(|error| matches!(error, StartError::Thread(_)));
            soft_limit(libc::RLIMIT_NPROC, None);
            assert_eq!((refused, open_descriptors()), (Some(true), before), "with {more} threads");
        }
        works(Runtime::global());
    });
}

#[test]
fn s31_growth_that_is_refused_loses_no_timer() {
    const NAME: &str = "s31_growth_that_is_refused_loses_no_timer";
    in_child(module_path!(), NAME, || {
        if !threads_can_be_limited(NAME) {
            return;
        }
        for lifted in [true, false] {
            let told = Count::new();
            let builder = Runtime::builder().queues(1).workers(2).observer(Refusals(told.clone()));
            let runtime = builder.start().expect("two threads");
            works(&runtime);
            // All threads that the pool has, or could have, are blocked or must poll.
            allow_threads(0);
            let (blocked, entered, gate) = blocking(&runtime, 20);
            // Two threads on an idle machine; on a busy machine a third thread may have been
            // started before.
            let threads = runtime.metrics().threads.alive;
            eventually("all are blocked but one, which watches", || entered.get() == threads - 1);
            let fired = Count::new();
            let waiting: Vec<Timer> = (0..50)
                .map(|i| Timer::on(&runtime, ms(i), NEVER, fired.callback()))
                .chain([Timer::on(&runtime, ms(1), ms(1), |_| {})])
                .collect();
            // Long enough for many refusals, none of which may be counted as a thread.
            let begin = Instant::now();
            while begin.elapsed() < ms(100) {
                assert_eq!(runtime.metrics().threads.alive, threads);
            }
            assert_eq!(entered.get(), threads - 1);
            assert_eq!(fired.get(), 0, "no thread is there to run them");
            eventually("a thread is refused", || runtime.metrics().threads.refused > 0);
            eventually("between two tries", || runtime.metrics().threads.started == threads as u64);
            if lifted {
                soft_limit(libc::RLIMIT_NPROC, None);
                eventually("threads are to be had again", || fired.get() == 50 && entered.get() == 20);
                gate.open();
            } else {
                gate.open();
                eventually("the one thread comes back", || fired.get() == 50 && entered.get() == 20);
                soft_limit(libc::RLIMIT_NPROC, None);
            }
            eventually("the refusals are told", || told.get() > 0);
            drop((blocked, waiting));
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        }
    });
}

/// Counts the refusals of threads that it is told, with their reason (S77).
struct Refusals(Count);

impl Observer for Refusals {
    fn threads_changed(&self, change: &ThreadsChanged) {
        if change.refused > 0 && change.error.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.0.bump();
        }
    }
}

// ----------------------------------------------------------------------------------------------- unusual sets of cores

/// Restricts a thread (zero: the calling thread), and threads that it starts, to these cores.
/// False: the system refuses this.
fn restrict(thread: libc::pid_t, cores: &[usize]) -> bool {
    // SAFETY: a valid set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &core in cores {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(thread, size_of_val(&set), &set) == 0
    }
}

#[test]
fn s25_one_core_whose_number_is_one() {
    const NAME: &str = "s25_one_core_whose_number_is_one";
    in_child(module_path!(), NAME, || {
        // The thread of this test, and the main thread, which waits for it.
        if !restrict(0, &[1]) || !restrict(std::process::id() as libc::pid_t, &[1]) {
            return skip(NAME, "there is no core 1 here");
        }
        for pinned in [false, true] {
            let runtime = Runtime::builder().pin_workers(pinned).start().expect("one core is enough");
            assert_eq!(runtime.queues(), 1);
            works(&runtime);
            let (blocked, gate) = blocked(&runtime, 4);
            works(&runtime);
            gate.open();
            // Timers from a core unknown to the runtime.
            let runtime = Arc::new(runtime);
            let elsewhere = Arc::clone(&runtime);
            let thread = thread::spawn(move || {
                assert!(restrict(0, &[0]), "core 0 was there before");
                works(&elsewhere);
            });
            thread.join().expect("no panic");
            drop(blocked);
            runtime.shutdown(PATIENCE).expect("nothing runs");
        }
        works(Runtime::global());
    });
}

#[test]
fn s25_more_queues_than_cores_and_fewer() {
    within(PATIENCE, "odd numbers of queues", || {
        for queues in [1, 2, 3, 7, 64] {
            let runtime = Runtime::builder().queues(queues).start().expect("the system has descriptors");
            assert_eq!(runtime.queues(), queues);
            works(&runtime);
            assert_eq!(runtime.shutdown(secs(30)), Ok(()));
        }
    });
}

// ------------------------------------------------------------------------------------- descriptors that are given back

/// S33. A runtime that was shut down holds no descriptor, though its handle lives on, as that of
/// the default runtime does: a library may be loaded and unloaded again and again.
#[test]
#[cfg_attr(timerqueue_kqueue, ignore = "counts what a userspace kqueue has some of too")]
fn s33_a_runtime_that_was_shut_down_holds_no_descriptor() {
    in_child(module_path!(), "s33_a_runtime_that_was_shut_down_holds_no_descriptor", || {
        // whatever the directory walk itself keeps, it keeps from now on
        let _ = open_descriptors();
        let before = open_descriptors();
        let far = std::time::SystemTime::now() + secs(1_000);
        let runtime = start("tq-kept");
        let wall = WallTimer::on(&runtime, far, |_| {}); // with a descriptor of its own
        works(&runtime);
        let timer = Timer::new(secs(1_000), NEVER, |_| {});
        works(Runtime::global());
        assert!(open_descriptors() > before + 2);
        assert_eq!((runtime.shutdown(PATIENCE), Runtime::shutdown_global(PATIENCE)), (Ok(()), Ok(())));
        assert_eq!(open_descriptors(), before, "both are closed");
        // Calls on what is left do nothing, and no other file is touched.
        let files: Vec<_> = (0..8).map(|_| std::fs::File::open("/dev/null").expect("it is there")).collect();
        runtime.execute(|| {});
        let _ = (timer.change(ms(1), NEVER), wall.reset_at(far), OnceTimer::on(&runtime, ms(1), |_| {}));
        drop((timer, wall, runtime));
        assert_eq!(open_descriptors(), before + files.len());
        // After a shutdown that did not wait, the last thread closes them.
        let (late, gate) = (start("tq-late"), Gate::new());
        let (entered, held) = (Count::new(), gate.clone());
        let begun = entered.clone();
        late.execute(move || {
            begun.bump();
            held.wait();
        });
        eventually("it runs", || entered.get() == 1);
        assert!(late.shutdown(Duration::ZERO).is_err());
        assert!(open_descriptors() > before + files.len());
        gate.open();
        eventually("closed by the last thread", || open_descriptors() == before + files.len());
    });
}

// --------------------------------------------------------------------------------------------- a single refused call

/// The number of the refused call for a descriptor (counted from one), and its error; zero refuses
/// none.
static REFUSED: AtomicU64 = AtomicU64::new(0);
static ERROR: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Whether this call is to be refused.
fn refused() -> bool {
    let call = CALLS.fetch_add(1, Ordering::SeqCst) + 1;
    let refused = REFUSED.load(Ordering::SeqCst) == call;
    if refused {
        // SAFETY: `errno` of the calling thread.
        unsafe { *libc::__errno_location() = ERROR.load(Ordering::SeqCst) as libc::c_int };
    }
    refused
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_create1(flags: libc::c_int) -> libc::c_int {
    // SAFETY: the same call.
    if refused() { -1 } else { unsafe { libc::syscall(libc::SYS_epoll_create1, flags) as libc::c_int } }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn eventfd(initial: libc::c_uint, flags: libc::c_int) -> libc::c_int {
    // SAFETY: the same call.
    if refused() { -1 } else { unsafe { libc::syscall(libc::SYS_eventfd2, initial, flags) as libc::c_int } }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_create(clock: libc::clockid_t, flags: libc::c_int) -> libc::c_int {
    // SAFETY: the same call.
    if refused() { -1 } else { unsafe { libc::syscall(libc::SYS_timerfd_create, clock, flags) as libc::c_int } }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epoll: libc::c_int,
    op: libc::c_int,
    fd: libc::c_int,
    event: *mut libc::epoll_event,
) -> libc::c_int {
    // SAFETY: the same call with the same arguments.
    if refused() { -1 } else { unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, op, fd, event) as libc::c_int } }
}

/// The error with which a fork handler is refused; zero: not refused.
static REFUSED_HANDLER: AtomicI64 = AtomicI64::new(0);

type Handler = Option<unsafe extern "C" fn()>;

/// # Safety
/// As the function of the C library, which is part of each linked program, and calls this function.
#[cfg(target_env = "gnu")]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> libc::c_int {
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *mut libc::c_void,
        ) -> libc::c_int;
    }
    match REFUSED_HANDLER.load(Ordering::SeqCst) {
        // SAFETY: the same handlers; the program is never unloaded.
        0 => unsafe { __register_atfork(prepare, parent, child, std::ptr::null_mut()) },
        error => error as libc::c_int,
    }
}

/// S34. A runtime does not start if its alarms could not notice a fork.
#[cfg(target_env = "gnu")]
#[test]
fn s34_a_fork_handler_may_be_refused() {
    in_child(module_path!(), "s34_a_fork_handler_may_be_refused", || {
        REFUSED_HANDLER.store(libc::ENOMEM.into(), Ordering::SeqCst);
        for alarm in [Alarm::Native, Alarm::Portable] {
            match Runtime::builder().alarm(alarm).start() {
                Err(StartError::Alarm(told)) => assert_eq!(told.raw_os_error(), Some(libc::ENOMEM)),
                other => panic!("{alarm:?}: {other:?}"),
            }
        }
        REFUSED_HANDLER.store(0, Ordering::SeqCst);
        let runtime = start("tq-handler");
        Ledger::spread(&runtime, 50, ms(20)).settle();
        // Later runtimes need no further handler.
        REFUSED_HANDLER.store(libc::ENOMEM.into(), Ordering::SeqCst);
        Ledger::spread(&start("tq-later"), 50, ms(20)).settle();
    });
}

/// S34. Each call that makes or watches a descriptor is refused once, with each error of a full
/// process or a full system: the runtime does not start, returns the error, and keeps no
/// descriptor.
#[test]
fn s34_each_call_may_be_refused_with_each_error() {
    in_child(module_path!(), "s34_each_call_may_be_refused_with_each_error", || {
        const QUEUES: usize = 3;
        let begin = || Runtime::builder().queues(QUEUES).thread_name("tq-calls").start();
        // whatever the directory walk itself keeps, it keeps from now on
        let _ = open_descriptors();
        let before = open_descriptors();
        let whole = begin().expect("nothing is refused");
        let calls = CALLS.load(Ordering::SeqCst);
        assert!(calls >= 2 * QUEUES as u64, "each alarm is made and watched: {calls} calls");
        assert_eq!(whole.shutdown(PATIENCE), Ok(()));
        drop(whole);
        let all_gone = || threads_named("tq-calls") == 0 && open_descriptors() == before;
        eventually("it is all given back", all_gone);
        for error in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            for call in 1..=calls {
                ERROR.store(error.into(), Ordering::SeqCst);
                CALLS.store(0, Ordering::SeqCst);
                REFUSED.store(call, Ordering::SeqCst);
                let started = begin();
                REFUSED.store(0, Ordering::SeqCst);
                match started {
                    Err(StartError::Alarm(told)) => assert_eq!(told.raw_os_error(), Some(error), "call {call}"),
                    // Out of descriptors once: fewer of them suffice.
                    Ok(runtime) if error != libc::ENOMEM => {
                        assert_eq!((runtime.queues(), runtime.metrics().kernel_timers), (QUEUES, 1), "call {call}");
                        works(&runtime);
                        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
                        eventually("the threads are gone", || threads_named("tq-calls") == 0);
                    }
                    other => panic!("call {call} refused with {error}: {other:?}"),
                }
                assert_eq!(
                    (open_descriptors(), threads_named("tq-calls")),
                    (before, 0),
                    "call {call}: nothing is kept"
                );
            }
        }
        let runtime = begin().expect("nothing is refused");
        Ledger::spread(&runtime, 50, ms(20)).settle();
    });
}
