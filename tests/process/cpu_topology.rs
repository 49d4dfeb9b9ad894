//! CPU topology (S25): core numbers with gaps, cores that come and go, pinned threads, a quota, and
//! a core unknown to the runtime.
//!
//! Ground rules. This binary defines `sched_getcpu` and `sched_getaffinity` itself, and can show a
//! thread cores that the machine does not have. It defines `sched_setaffinity`, which can then be
//! refused. Tests that concern a whole process run in a child process.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // stands in for functions of the C library; affinity

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::child::{in_child, skip};
use crate::support::{Count, Gate, NEVER, PATIENCE, Random, blocked, eventually, ms, secs, us, within};
use timerqueue::{Alarm, CancellationTokenSource, OnceTimer, Runtime, Timer, Waited};

// ------------------------------------------------------------------------------------------------------- the functions

thread_local! {
    /// The core shown to this thread as its current core; `None` for the real core.
    static CORE: Cell<Option<i32>> = const { Cell::new(None) };
    /// The cores shown to this thread as its affinity; empty for the real affinity.
    static CORES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The number of calls of this thread.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

#[unsafe(no_mangle)]
extern "C" fn sched_getcpu() -> libc::c_int {
    if let Ok(Some(core)) = CORE.try_with(Cell::get) {
        return core;
    }
    let mut core: libc::c_uint = 0;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the first pointer is to a number for the core; the two further pointers may be null.
    let result = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut core, nothing, nothing) };
    if result == 0 { core as libc::c_int } else { -1 }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_getaffinity(pid: libc::pid_t, size: libc::size_t, set: *mut libc::cpu_set_t) -> libc::c_int {
    ASKED.set(ASKED.get() + 1);
    let told = CORES.with_borrow(|cores| {
        let highest = *cores.iter().max()?;
        // A kernel built for so many cores fills no smaller set.
        if highest / 8 >= size {
            // SAFETY: `errno` of the calling thread.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            return Some(-1);
        }
        // SAFETY: the caller's set has this size, and a bit for each core.
        unsafe {
            set.cast::<u8>().write_bytes(0, size);
            cores.iter().for_each(|&core| *set.cast::<u8>().add(core / 8) |= 1 << (core % 8));
        }
        Some(0)
    });
    if let Some(result) = told {
        return result;
    }
    // SAFETY: the same call with the same arguments. The kernel returns the number of written
    // bytes, and leaves the rest.
    unsafe {
        set.cast::<u8>().write_bytes(0, size);
        if libc::syscall(libc::SYS_sched_getaffinity, pid, size, set) < 0 { -1 } else { 0 }
    }
}

/// Whether `sched_setaffinity` is refused, and the number of refusals.
static REFUSE: AtomicBool = AtomicBool::new(false);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_setaffinity(
    pid: libc::pid_t,
    size: libc::size_t,
    set: *const libc::cpu_set_t,
) -> libc::c_int {
    if REFUSE.load(Ordering::SeqCst) {
        REFUSED.fetch_add(1, Ordering::SeqCst);
        // SAFETY: `errno` of the calling thread.
        unsafe { *libc::__errno_location() = libc::EPERM };
        return -1;
    }
    // SAFETY: the same call with the same arguments.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, pid, size, set) as libc::c_int }
}

/// Checks that some timers made on this core fire, none early.
fn works_on(runtime: &Runtime, core: Option<i32>) {
    CORE.set(core);
    let fired = Count::new();
    let timers: Vec<Timer> = (0..20u64)
        .map(|i| {
            let fired = fired.clone();
            Timer::on(runtime, us(i * 97), NEVER, move |tick| {
                assert!(tick.now() >= tick.scheduled());
                fired.bump();
            })
        })
        .collect();
    eventually("all fire", || fired.get() == 20);
    // A timer can also be changed and disposed from a different core.
    CORE.set(Some(core.unwrap_or(0).wrapping_add(1)));
    let _ = timers[0].change(us(50), NEVER);
    eventually("it fires again", || fired.get() == 21);
    timers.iter().for_each(|timer| assert_eq!(timer.dispose_and_wait(), Waited::Ended));
    CORE.set(None);
    assert_eq!(runtime.metrics().panics, 0);
}

#[test]
fn s47_children_do_not_ask_for_the_cores() {
    let shutdown = CancellationTokenSource::new();
    // The first one may.
    drop(CancellationTokenSource::linked([&shutdown.token()]));
    let before = ASKED.get();
    for _ in 0..100 {
        let request = CancellationTokenSource::linked([&shutdown.token()]);
        drop(CancellationTokenSource::linked([&request.token()]));
    }
    assert_eq!(ASKED.get(), before);
    drop(std::thread::available_parallelism());
    assert!(ASKED.get() > before, "else this test means nothing");
}

// ------------------------------------------------------------------------------------------------------ cores with gaps

#[test]
fn s25_cores_whose_numbers_have_gaps() {
    let sets: [&[usize]; 6] = [&[1], &[3], &[1_023], &[3, 64, 700], &[0, 2, 4, 6, 8, 10], &[1, 1_000, 1_001]];
    for cores in sets {
        for (pin, alarm) in [(false, Alarm::Native), (true, Alarm::Native), (false, Alarm::Portable)] {
            within(PATIENCE, &format!("{cores:?}"), move || {
                CORES.set(cores.to_vec());
                // The system refuses pinning to missing cores, which does no harm.
                let runtime = Runtime::builder().pin_workers(pin).alarm(alarm).start().expect("the system has threads");
                assert_eq!(runtime.queues(), cores.len());
                for &core in cores {
                    works_on(&runtime, Some(core as i32));
                }
                // Cores unknown to the runtime, and no core number at all.
                for core in [0, 2, 5, 999, 5_000, i32::MAX - 1, -1] {
                    works_on(&runtime, Some(core));
                }
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            });
        }
    }
}

/// A kernel built for more cores than a `cpu_set_t` has bits.
#[test]
fn s25_cores_beyond_the_first_thousand() {
    within(PATIENCE, "cores beyond the first thousand", || {
        CORES.set(vec![7, 1_500, 2_000]);
        let runtime = Runtime::builder().start().expect("the system has threads");
        assert_eq!((runtime.queues(), runtime.metrics().threads.alive), (3, 4));
        works_on(&runtime, Some(2_000));
        works_on(&runtime, Some(1_999));
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
    });
}

/// A machine of a thousand cores, and a process that may open a thousand files.
#[test]
fn s25_more_queues_than_descriptors() {
    const NAME: &str = "s25_more_queues_than_descriptors";
    in_child(module_path!(), NAME, || {
        crate::support::process::limit_descriptors(1_024);
        CORES.set((0..1_024).collect());
        let runtime = Runtime::builder().workers(3).max_threads(4).start().expect("queues share timers");
        // At most one in four descriptors is a timer. With two shared alarms for eight queues
        // there are 1,280 alarms, five to a timer.
        assert_eq!((runtime.queues(), runtime.metrics().kernel_timers), (1_024, 256));
        let early = Count::new();
        let fired = Count::new();
        let timers: Vec<Timer> = (0..1_024u64)
            .map(|i| {
                CORE.set(Some(i as i32));
                let (early, fired) = (early.clone(), fired.clone());
                Timer::on(&runtime, us(i * 37 % 5_000), NEVER, move |tick| {
                    fired.bump();
                    if tick.now() < tick.scheduled() {
                        early.bump();
                    }
                })
            })
            .collect();
        eventually("each queue fires", || fired.get() == 1_024);
        assert_eq!(early.get(), 0);
        works_on(&runtime, Some(1_023));
        drop(timers);
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
    });
}

#[test]
fn s25_more_cores_than_queues() {
    within(PATIENCE, "two queues for sixty cores", || {
        let cores: Vec<usize> = (100..160).collect();
        CORES.set(cores.clone());
        let runtime = Runtime::builder().queues(2).workers(3).start().expect("the system has threads");
        assert_eq!(runtime.queues(), 2);
        for core in cores {
            works_on(&runtime, Some(core as i32));
        }
    });
}

#[test]
fn s25_cancellation_sources_where_the_core_is_unknown() {
    let (_, runtime) = crate::support::manual();
    let parent = CancellationTokenSource::on(&runtime);
    for core in [-1, 0, 77, i32::MAX] {
        CORE.set(Some(core));
        let child = timerqueue::CancellationTokenSource::linked([&parent.token()]);
        CORE.set(Some(core ^ 1));
        drop(child);
    }
    CORE.set(Some(-1));
    let child = timerqueue::CancellationTokenSource::linked([&parent.token()]);
    CORE.set(None);
    parent.cancel();
    assert!(child.is_cancelled());
}

#[test]
fn s25_threads_that_move_from_core_to_core() {
    within(2 * PATIENCE, "threads that wander", || {
        CORES.set(vec![0, 5, 9]);
        let runtime = Runtime::builder().start().expect("the system has threads");
        let fired = Count::new();
        const TIMERS: usize = 2_000;
        thread::scope(|scope| {
            for seed in 0..3 {
                let (runtime, fired) = (&runtime, &fired);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..TIMERS {
                        let wander = |random: &mut Random| CORE.set(Some(random.below(12) as i32 - 1));
                        wander(&mut random);
                        let timer = OnceTimer::on(runtime, us(random.below(3_000)), {
                            let fired = fired.clone();
                            move |tick| {
                                assert!(tick.now() >= tick.scheduled());
                                fired.bump();
                            }
                        });
                        wander(&mut random);
                        // Too late for some timers, which have fired.
                        let _ = timer.reset(us(random.below(2_000)));
                        wander(&mut random);
                        timer.detach();
                    }
                });
            }
        });
        eventually("each fires once", || fired.get() == 3 * TIMERS);
        assert_eq!((runtime.metrics().panics, runtime.metrics().active), (0, 0));
    });
}

// ------------------------------------------------------------------------------------------------ cores that come and go

/// Restricts all threads of this process to these cores. False: the system refuses this.
fn restrict_all_to(cores: &[usize]) -> bool {
    let threads = fs::read_dir("/proc/self/task").expect("a /proc to look into").flatten();
    let ids = threads.filter_map(|thread| thread.file_name().to_string_lossy().parse::<libc::pid_t>().ok());
    ids.into_iter().all(|id| {
        // SAFETY: a valid set.
        let result = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
            libc::sched_setaffinity(id, size_of_val(&set), &set)
        };
        // A thread that has ended meanwhile needs no restriction.
        result == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    })
}

#[test]
fn s25_cores_that_come_and_go() {
    const NAME: &str = "s25_cores_that_come_and_go";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[0]) || !restrict_all_to(&[1]) || !restrict_all_to(&[0, 1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        let early = Count::new();
        for begin in [&[0, 1][..], &[1], &[0]] {
            assert!(restrict_all_to(begin));
            let runtime = Runtime::builder().start().expect("the system has threads");
            assert_eq!(runtime.queues(), begin.len());
            let ticks = Count::new();
            let ticking = Timer::on(&runtime, ms(1), ms(1), {
                let (ticks, early) = (ticks.clone(), early.clone());
                move |tick| {
                    ticks.bump();
                    if tick.now() < tick.scheduled() {
                        early.bump();
                    }
                }
            });
            for now in [&[0][..], &[1], &[0, 1], &[1], &[0]] {
                assert!(restrict_all_to(now));
                works_on(&runtime, None);
                let before = ticks.get();
                eventually("it goes on", || ticks.get() >= before + 5);
            }
            drop(ticking);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        }
        assert_eq!(early.get(), 0);
    });
}

// ------------------------------------------------------------------------------------------------------- pinned threads

/// Restricts the calling thread to these cores.
fn pin(cores: &[usize]) {
    // SAFETY: a valid set; zero is this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0, "core {cores:?} was there before");
    }
}

/// The cores that each thread of this name may use, as the kernel lists them.
fn cores_of(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("a /proc to look into").flatten();
    let all = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let named = all.filter(|status| status.lines().next().is_some_and(|line| line.contains(name)));
    let mut cores: Vec<String> = named
        .filter_map(|status| {
            Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().into())
        })
        .collect();
    cores.sort();
    cores
}

/// The final result of `cores_of`: a thread sets its name and affinity only when it begins to run.
#[track_caller]
fn expect_cores(name: &str, expected: &[&str]) {
    let mut seen = Vec::new();
    let begin = std::time::Instant::now();
    while begin.elapsed() < PATIENCE {
        seen = cores_of(name);
        if seen == expected {
            return;
        }
        thread::sleep(ms(1));
    }
    panic!("{name}: {seen:?}, not {expected:?}");
}

/// Runs `body` on a thread that is pinned to core 0, beside an unpinned main thread.
fn on_a_pinned_thread(body: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            pin(&[0]);
            body();
        });
        pinned.join().expect("no panic");
    });
}

#[test]
fn s25_a_runtime_started_on_a_pinned_thread_has_the_cores_of_the_process() {
    const NAME: &str = "s25_a_runtime_started_on_a_pinned_thread_has_the_cores_of_the_process";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[1]) || !restrict_all_to(&[0, 1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        on_a_pinned_thread(|| {
            for alarm in [Alarm::Native, Alarm::Portable] {
                let runtime = Runtime::builder().thread_name("tq-all").alarm(alarm).start().expect("it starts");
                assert_eq!((runtime.queues(), runtime.metrics().threads.alive), (2, 3));
                expect_cores("tq-all", &["0-1"; 3]);
                works_on(&runtime, None);
                // Also the threads started later.
                let (timers, gate) = blocked(&runtime, 4);
                assert!(cores_of("tq-all").len() > 3);
                let all = vec!["0-1"; runtime.metrics().threads.alive];
                expect_cores("tq-all", &all);
                gate.open();
                drop(timers);
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            }
            let runtime = Runtime::global();
            assert_eq!(runtime.queues(), 2);
            expect_cores("timerqueue", &["0-1"; 3]);
        });
    });
}

#[test]
fn s25_only_the_workers_of_a_pinned_runtime_are_pinned() {
    const NAME: &str = "s25_only_the_workers_of_a_pinned_runtime_are_pinned";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[1]) || !restrict_all_to(&[0, 1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        on_a_pinned_thread(|| {
            let builder = Runtime::builder().workers(2).max_threads(4).pin_workers(true).thread_name("tq-pin");
            let runtime = builder.start().expect("it starts");
            expect_cores("tq-pin", &["0", "1"]);
            // A pinned thread starts each of the two additional threads.
            let (timers, gate) = blocked(&runtime, 3);
            expect_cores("tq-pin", &["0", "0-1", "0-1", "1"]);
            gate.open();
            drop(timers);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        });
    });
}

#[test]
fn s25_a_restricted_process_stays_so() {
    const NAME: &str = "s25_a_restricted_process_stays_so";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[0]) || !restrict_all_to(&[1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        let starts = || {
            let runtime = Runtime::builder().thread_name("tq-few").start().expect("it starts");
            assert_eq!((runtime.queues(), runtime.metrics().threads.alive), (1, 2));
            expect_cores("tq-few", &["1"; 2]);
            works_on(&runtime, None);
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        };
        starts();
        thread::spawn(starts).join().expect("no panic");
        // A thread has moved to a different core; the rest of the threads may not use this core,
        // but the process may use both.
        assert!(restrict_all_to(&[1]));
        on_a_pinned_thread(|| {
            let runtime = Runtime::builder().thread_name("tq-two").start().expect("it starts");
            assert_eq!(runtime.queues(), 2);
            expect_cores("tq-two", &["0-1"; 3]);
        });
    });
}

#[test]
fn s25_a_runtime_works_where_affinity_cannot_be_set() {
    const NAME: &str = "s25_a_runtime_works_where_affinity_cannot_be_set";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[1]) || !restrict_all_to(&[0, 1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        on_a_pinned_thread(|| {
            REFUSE.store(true, Ordering::SeqCst);
            for pin in [false, true] {
                let before = REFUSED.load(Ordering::SeqCst);
                let runtime = Runtime::builder().pin_workers(pin).thread_name("tq-no").start().expect("it starts");
                eventually("each thread has tried", || {
                    REFUSED.load(Ordering::SeqCst) >= before + runtime.metrics().threads.alive
                });
                expect_cores("tq-no", &vec!["0"; runtime.metrics().threads.alive]);
                works_on(&runtime, None);
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            }
        });
    });
}

#[test]
fn s25_a_runtime_starts_beside_thousands_of_threads() {
    const NAME: &str = "s25_a_runtime_starts_beside_thousands_of_threads";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[0]) {
            return skip(NAME, "needs core 0");
        }
        // The union is never the whole machine if this has two cores, so all masks are read, up to
        // the limit.
        let gate = Gate::new();
        let wait = || {
            let gate = gate.clone();
            thread::Builder::new().stack_size(16 * 1024).spawn(move || gate.wait()).ok()
        };
        let crowd: Vec<_> = (0..5_000).map_while(|_| wait()).collect();
        if crowd.len() < 5_000 {
            skip(NAME, "the system has no 5,000 threads for it; tried with fewer");
        }
        let before = ASKED.get();
        let runtime = Runtime::builder().start().expect("it starts");
        // Further calls: for the calling thread, for the main thread, and by std.
        let asked = ASKED.get() - before;
        assert!(asked <= 4_096 + 4, "{asked} masks");
        works_on(&runtime, None);
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        gate.open();
        crowd.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

// --------------------------------------------------------------------------------------------------------------- quotas

/// A control group of this process, and its previous group.
struct Quota {
    group: PathBuf,
    before: PathBuf,
}

impl Quota {
    /// Sets the quota: time per 100 ms, in microseconds. `None`: the system refuses this.
    fn of(quota_us: u64) -> Option<Self> {
        let name = format!("timerqueue-test-{}-{quota_us}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        for (root, field) in
            [("/sys/fs/cgroup/cpu", "cpu"), ("/sys/fs/cgroup/cpu,cpuacct", "cpu"), ("/sys/fs/cgroup", "")]
        {
            let mut lines = own.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
            let Some(line) = lines.find(|line| line[1].split(',').any(|one| one == field)) else { continue };
            let before = Path::new(root).join(line[2].trim_start_matches('/'));
            let group = before.join(&name);
            if !before.join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                continue;
            }
            let quota = Self { group, before };
            let limited = if field.is_empty() {
                fs::write(quota.group.join("cpu.max"), format!("{quota_us} 100000"))
            } else {
                fs::write(quota.group.join("cpu.cfs_period_us"), "100000")
                    .and_then(|()| fs::write(quota.group.join("cpu.cfs_quota_us"), quota_us.to_string()))
            };
            if limited.is_ok() && fs::write(quota.group.join("cgroup.procs"), "0").is_ok() {
                return Some(quota);
            }
        }
        None
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn s25_queues_and_workers_follow_the_quota() {
    const NAME: &str = "s25_queues_and_workers_follow_the_quota";
    in_child(module_path!(), NAME, || {
        if !restrict_all_to(&[1]) || !restrict_all_to(&[0, 1]) {
            return skip(NAME, "needs cores 0 and 1");
        }
        for (quota_us, queues) in [(190_000, 1), (100_000, 1), (200_000, 2), (1_000_000, 2)] {
            let Some(quota) = Quota::of(quota_us) else {
                return skip(NAME, "needs a control group of its own");
            };
            let starts = || {
                let runtime = Runtime::builder().thread_name("tq-quota").start().expect("it starts");
                assert_eq!(
                    (runtime.queues(), runtime.metrics().threads.alive),
                    (queues, queues + 1),
                    "{quota_us} us in 100 ms"
                );
                // Fewer threads, on all cores.
                expect_cores("tq-quota", &vec!["0-1"; queues + 1]);
                works_on(&runtime, None);
                // Explicit settings are kept.
                let asked = Runtime::builder().queues(3).start().expect("it starts");
                assert_eq!((asked.queues(), asked.metrics().threads.alive), (3, queues + 1));
                assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            };
            starts();
            on_a_pinned_thread(starts);
            drop(quota);
        }
    });
}

#[test]
fn s25_under_a_quota_timers_are_late_but_none_is_lost_or_early() {
    const NAME: &str = "s25_under_a_quota_timers_are_late_but_none_is_lost_or_early";
    in_child(module_path!(), NAME, || {
        let Some(quota) = Quota::of(10_000) else {
            return skip(NAME, "needs a control group of its own");
        };
        // A tenth of a processor counts as one processor.
        let runtime = Runtime::builder().start().expect("the system has threads");
        assert_eq!((runtime.queues(), runtime.metrics().threads.alive), (1, 2));
        works_on(&runtime, None);
        let ticks = Count::new();
        let ticking = Timer::on(&runtime, ms(5), ms(5), ticks.callback());
        // Threads that use up the quota repeatedly.
        let busy: Duration = (0..20).map(|i| (0..20_000 * i).fold(Duration::ZERO, |sum, n| sum + us(n % 2))).sum();
        assert!(busy > Duration::ZERO);
        eventually("they fire in the end", || ticks.get() >= 20);
        works_on(&runtime, None);
        drop(ticking);
        assert_eq!(runtime.shutdown(secs(30)), Ok(()));
        drop(quota);
    });
}
