//! The system calls of the crate: S18, S25, S27, S28 and S32.
//!
//! Ground rules. This binary defines `timerfd_settime` and `epoll_wait` itself: they record the
//! crate's calls, then make them. Records of a test's own calls are kept by thread, since the tests
//! of this binary run side by side. Tests of a whole process run in a child process.

#![cfg(all(target_os = "linux", not(timerqueue_kqueue)))]
// stands in for two functions of the C library; affinity and filters of threads
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::support::child::{in_child, skip};
use crate::support::process::switches;
use crate::support::{Count, NEVER, PATIENCE, Random, eventually, lock, ms, native, secs, within};
use timerqueue::{Runtime, Timer, Timestamp};

// --------------------------------------------------------------------------------------------------- the two functions

const NS_PER_SEC: u64 = 1_000_000_000;

thread_local! {
    /// Arming calls of this thread.
    static ARMED: Cell<u64> = const { Cell::new(0) };
    /// The descriptors that this thread has armed last, with their instants.
    static LAST: RefCell<HashMap<i32, u64>> = RefCell::new(HashMap::new());
    static LAST_FD: Cell<i32> = const { Cell::new(-1) };
    /// The number of returns of this thread from the kernel with an event.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The last armed instant of each descriptor, by any thread. The lock of a queue orders its
/// armings.
static ALARMS: Mutex<Option<HashMap<i32, u64>>> = Mutex::new(None);
/// Returns from waiting for alarms, in the whole process.
static WAKE_UPS: AtomicU64 = AtomicU64::new(0);

/// Each call of `timerfd_settime` passes through here.
pub(crate) fn note_setting(fd: libc::c_int, flags: libc::c_int, at: libc::timespec) {
    if flags & libc::TFD_TIMER_ABSTIME != 0 {
        let at = (at.tv_sec as u64).saturating_mul(NS_PER_SEC).saturating_add(at.tv_nsec as u64);
        ARMED.set(ARMED.get() + 1);
        LAST_FD.set(fd);
        // (An ending thread may set an alarm after its map is gone.)
        let _ = LAST.try_with(|last| last.borrow_mut().insert(fd, at));
        lock(&ALARMS).get_or_insert_default().insert(fd, at);
    }
}

/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    room: libc::c_int,
    limit_ms: libc::c_int,
) -> libc::c_int {
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: the same call with the same arguments; without a mask the kernel ignores its size.
    let n = unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, room, limit_ms, no_mask, 8) as libc::c_int };
    TAKEN.set(TAKEN.get() + 1);
    WAKE_UPS.fetch_add(1, Ordering::SeqCst);
    n
}

/// Arming calls that this thread makes in `action`.
fn armings<T>(action: impl FnOnce() -> T) -> (u64, T) {
    let before = ARMED.get();
    let value = action();
    (ARMED.get() - before, value)
}

#[test]
fn the_calls_pass_through_here() {
    let runtime = native();
    let (calls, timer) = armings(|| Timer::on(&runtime, secs(100), NEVER, |_| {}));
    assert_eq!(calls, 1, "else nothing in this file means anything");
    let before = WAKE_UPS.load(Ordering::SeqCst);
    let fired = Count::new();
    let soon = Timer::on(&runtime, ms(1), NEVER, fired.callback());
    eventually("it fires", || fired.get() == 1);
    assert!(WAKE_UPS.load(Ordering::SeqCst) > before);
    drop((timer, soon));
}

// -------------------------------------------------------------------------------------------- S18: what a change costs

#[test]
fn s18_moving_earlier_arms_at_most_once_and_only_the_earliest() {
    let runtime = native();
    let (first_call, first) = armings(|| Timer::on(&runtime, secs(1_000), NEVER, |_| {}));
    assert_eq!(first_call, 1, "the first of its queue");
    let (calls, other) = armings(|| Timer::on(&runtime, secs(2_000), secs(1), |_| {}));
    assert_eq!(calls, 0, "a later one");
    let change = |timer: &Timer, due| armings(|| timer.change(due, NEVER)).0;
    assert_eq!(change(&other, secs(1_500)), 0, "earlier than it was, but not the earliest");
    assert_eq!(change(&other, secs(500)), 1, "becomes the earliest");
    assert_eq!(change(&other, secs(400)), 1, "and earlier still");
    assert_eq!(change(&other, secs(600)), 0, "later");
    assert_eq!(change(&other, secs(3_000)), 0, "later");
    assert_eq!(change(&first, NEVER), 0, "stopped");
    assert_eq!(change(&first, secs(450)), 0, "the alarm stands earlier already: one empty sweep is cheaper");
    assert_eq!(armings(|| first.dispose()).0, 0);
    assert_eq!(armings(|| drop((first, other))).0, 0);
}

#[test]
fn s18_every_change_makes_at_most_one_call() {
    let runtime = native();
    let timers: Vec<Timer> = (0..20).map(|_| Timer::on(&runtime, NEVER, NEVER, |_| {})).collect();
    let mut random = Random(18);
    for _ in 0..5_000 {
        let before = runtime.next_due();
        let timer = &timers[random.below(20) as usize];
        let due = if random.below(5) == 0 { NEVER } else { secs(500 + random.below(5_000)) };
        let (calls, _) = armings(|| timer.change(due, NEVER));
        let earlier = match (before, runtime.next_due()) {
            (Some(before), Some(after)) => after < before,
            (before, after) => before.is_none() && after.is_some(),
        };
        assert!(calls <= u64::from(earlier), "{calls} calls; became the earliest: {earlier}");
    }
}

/// Installs a filter: from now on the calling thread may write, end itself and read the clock. Any
/// further system call kills the process.
fn forbid_system_calls() -> std::io::Result<()> {
    let allow = [libc::SYS_write, libc::SYS_exit, libc::SYS_clock_gettime];
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first word of the filter's input.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (i, call) in allow.into_iter().enumerate() {
        let to_the_end = (allow.len() - i) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        filter.push(libc::sock_filter { code, jt: to_the_end, jf: 0, k: call as u32 });
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no pointers.
    let allowed = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0;
    // SAFETY: the program is well-formed and lives through the call.
    let set =
        allowed && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } == 0;
    if set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn s18_moving_later_and_stopping_make_no_system_call() {
    const NAME: &str = "s18_moving_later_and_stopping_make_no_system_call";
    in_child(module_path!(), NAME, || {
        let runtime = native();
        let timers: Vec<Timer> = (0..10).map(|i| Timer::on(&runtime, secs(1_000 + i), NEVER, |_| {})).collect();
        // 0: not done yet. 1: done under the filter. Otherwise the error of setting the filter.
        static OUTCOME: AtomicI32 = AtomicI32::new(0);
        thread::spawn(move || {
            let outcome = match forbid_system_calls() {
                Ok(()) => {
                    for round in 1..1_000u64 {
                        for timer in &timers {
                            let _ = timer.change(secs(2_000 + round), secs(round));
                        }
                        let _ = timers[0].change(NEVER, NEVER);
                        let _ = timers[0].change(secs(2_000 + round), NEVER);
                    }
                    timers.iter().for_each(Timer::dispose);
                    1
                }
                Err(error) => -error.raw_os_error().unwrap_or(1),
            };
            OUTCOME.store(outcome, Ordering::SeqCst);
            // Freeing would make system calls, and so would the ordinary end of a thread.
            std::mem::forget(timers);
            // SAFETY: ends only this thread; no thread waits for a value on its stack.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        eventually("the filtered thread gets through", || OUTCOME.load(Ordering::SeqCst) != 0);
        match OUTCOME.load(Ordering::SeqCst) {
            1 => assert_eq!(runtime.metrics().active, 0),
            error => skip(NAME, &format!("no system call filters here: {}", std::io::Error::from_raw_os_error(-error))),
        }
    });
}

// --------------------------------------------------------------------------------------------- S25: one queue per core

/// The cores that this thread may use.
fn usable_cores() -> Vec<usize> {
    // SAFETY: all zeroes is a valid set, and the call fills it in.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect()
    }
}

/// Binds this thread to one core.
fn move_to(core: usize) {
    // SAFETY: a valid set; zero is this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

#[test]
fn s25_one_queue_per_usable_core_and_a_timer_stays_where_it_was_made() {
    // On a separate thread, which moves between cores.
    let test = thread::spawn(|| {
        let cores = usable_cores();
        let runtime = Runtime::builder().start().expect("the system has threads");
        assert_eq!(runtime.queues(), cores.len());
        if cores.len() == 1 {
            skip("s25_one_queue_per_usable_core", "one core: nothing to tell apart");
        }
        // Each new timer is the earliest of all, so the alarm of its queue is set.
        let mut due = 1_000_000;
        let mut made_on = |core| {
            move_to(core);
            due -= 1;
            let (calls, timer) = armings(|| Timer::on(&runtime, secs(due), NEVER, |_| {}));
            assert_eq!(calls, 1);
            (LAST_FD.get(), timer)
        };
        let rounds: Vec<Vec<(i32, Timer)>> =
            (0..3).map(|_| cores.iter().map(|&core| made_on(core)).collect()).collect();
        let alarms: Vec<i32> = rounds[0].iter().map(|(fd, _)| *fd).collect();
        assert_eq!(alarms.iter().collect::<HashSet<_>>().len(), cores.len(), "each core has an alarm of its own");
        for round in &rounds {
            assert!(round.iter().map(|(fd, _)| fd).eq(&alarms), "and always the same one");
        }
        // Changed from any core, a timer stays with its queue.
        for &core in &cores {
            move_to(core);
            for (fd, timer) in &rounds[1] {
                due -= 1;
                assert_eq!(armings(|| timer.change(secs(due), NEVER)).0, 1);
                assert_eq!(LAST_FD.get(), *fd);
            }
        }
    });
    test.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload));
}

// ---------------------------------------------------------------------------------- S27: the alarm is set early enough

fn ns_of(at: Timestamp) -> u64 {
    u64::try_from(at.as_duration().as_nanos()).expect("fits the clock")
}

#[test]
fn s27_the_alarm_is_never_later_than_the_earliest_due_point() {
    let runtime = native();
    let anchor = Timer::on(&runtime, secs(100_000), NEVER, |_| {});
    let fd = LAST_FD.get();
    let mut timers: Vec<Timer> = Vec::new();
    let mut random = Random(27);
    for _ in 0..5_000 {
        // The due points are far, so no timer fires: without a sweep only this thread arms.
        let due = secs(200 + random.below(90_000));
        match random.below(6) {
            0 | 1 => timers.push(Timer::on(&runtime, due, NEVER, |_| {})),
            2 if !timers.is_empty() => drop(timers.swap_remove(random.below(timers.len() as u64) as usize)),
            3 if !timers.is_empty() => timers[random.below(timers.len() as u64) as usize].dispose(),
            _ if !timers.is_empty() => {
                let due = if random.below(4) == 0 { NEVER } else { due };
                let _ = timers[random.below(timers.len() as u64) as usize].change(due, NEVER);
            }
            _ => {}
        }
        let earliest = runtime.next_due().expect("the anchor is there");
        let alarm = LAST.with_borrow(|last| last[&fd]);
        assert!(alarm <= ns_of(earliest), "set to {alarm}, but {earliest:?} is due earlier");
    }
    drop(anchor);
}

#[test]
fn s27_nor_when_many_threads_arm_at_once() {
    let runtime = native();
    let anchor = Timer::on(&runtime, secs(100_000), NEVER, |_| {});
    let fd = LAST_FD.get();
    for round in 0..50 {
        let start = Barrier::new(4);
        let timers: Vec<Timer> = thread::scope(|scope| {
            let makers: Vec<_> = (0..4)
                .map(|i| {
                    let (runtime, start) = (&runtime, &start);
                    scope.spawn(move || {
                        start.wait();
                        // All four threads set the earliest due point, repeatedly.
                        (0..20)
                            .map(|k| Timer::on(runtime, secs(90_000 - 1_000 * round - 20 * k - i), NEVER, |_| {}))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            makers.into_iter().flat_map(|maker| maker.join().expect("no panic")).collect()
        });
        let earliest = ns_of(runtime.next_due().expect("many"));
        let alarm = lock(&ALARMS).as_ref().expect("armed")[&fd];
        assert!(alarm <= earliest, "round {round}: set to {alarm}, but {earliest} is due earlier");
        drop(timers);
    }
    drop(anchor);
}

#[test]
fn s27_a_timer_armed_behind_a_stale_alarm_fires() {
    within(PATIENCE, "alarms that have nothing to say", || {
        let runtime = native();
        for k in 0..50u64 {
            // The alarm is set to 1 ms, and expires with no timer due; or it is moved to later at
            // the last moment.
            let timer = Timer::on(&runtime, ms(1), NEVER, |_| {});
            let fired = Count::new();
            let other = Timer::on(&runtime, Duration::from_micros(900 + 10 * k), NEVER, fired.callback());
            timer.dispose();
            let late = Timer::on(&runtime, ms(3), NEVER, fired.callback());
            eventually("both fire", || fired.get() == 2);
            drop((other, late));
        }
    });
}

// ---------------------------------------------------------------------------- S28: which thread runs a due callback

#[test]
fn s28_the_thread_that_takes_the_alarm_runs_the_first_callback() {
    let runtime = Runtime::builder().queues(1).workers(4).start().expect("the system has threads");
    let (send, receive) = mpsc::channel();
    let timer = Timer::on(&runtime, ms(10), ms(10), move |_| {
        thread_local! {
            static TAKEN_BEFORE: Cell<u64> = const { Cell::new(0) };
        }
        // A thread that takes a callback from a different thread has not fetched events from the
        // kernel since its last callback.
        let taken = TAKEN.get();
        let _ = send.send(taken > TAKEN_BEFORE.replace(taken));
    });
    let direct = (0..20).filter(|_| receive.recv_timeout(PATIENCE).expect("ticks")).count();
    drop(timer);
    // On a busy machine the next tick may find no second poller; then the tick is handed over.
    assert!(direct >= 10, "{direct} of 20 ran on the thread that took the alarm");
}

#[test]
fn s28_all_others_that_are_due_are_handed_to_the_pool() {
    within(PATIENCE, "callbacks that wait for each other", || {
        let runtime = Runtime::builder().queues(1).workers(4).start().expect("the system has threads");
        for _ in 0..5 {
            let together = Arc::new(Barrier::new(8));
            let met = Count::new();
            let at = runtime.now() + ms(5);
            let timers: Vec<Timer> = (0..8)
                .map(|_| {
                    let (together, met) = (Arc::clone(&together), met.clone());
                    Timer::on(&runtime, at - runtime.now(), NEVER, move |_| {
                        together.wait();
                        met.bump();
                    })
                })
                .collect();
            eventually("eight at the same time", || met.get() == 8);
            drop(timers);
        }
    });
}

// -------------------------------------------------------------------------------------- S32: nothing due, nothing done

#[test]
fn s32_with_nothing_due_the_process_does_not_wake_up() {
    in_child(module_path!(), "s32_with_nothing_due_the_process_does_not_wake_up", || {
        let runtime =
            Runtime::builder().workers(4).max_threads(4).thread_name("tq-s32").start().expect("the system has threads");
        let fired = Count::new();
        // Short and long timers on every list, and some activity before.
        let mut timers: Vec<Timer> = [60, 61, 1_000, 100_000, 10_000_000]
            .iter()
            .map(|&due| Timer::on(&runtime, secs(due), secs(60), |_| {}))
            .collect();
        timers.extend((0..20).map(|_| Timer::on(&runtime, ms(5), NEVER, fired.callback())));
        eventually("the early ones fire", || fired.get() == 20);
        // Longer than a window of 333 ms. In the first rounds earlier activity may still end.
        let silent = (0..6).any(|_| {
            let before = (WAKE_UPS.load(Ordering::SeqCst), switches("tq-s32"));
            thread::sleep(ms(400));
            before == (WAKE_UPS.load(Ordering::SeqCst), switches("tq-s32")) && before.1.len() == 4
        });
        assert!(silent, "no thread woke up for 400 ms, in one of six tries: {:?}", switches("tq-s32"));
        assert_eq!(runtime.metrics().active, 5);
    });
}
