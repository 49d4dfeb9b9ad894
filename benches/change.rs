//! The cost of a change. Claim: a change to later costs one lock section and one reading of the
//! clock. A change to earlier costs the same, and one system call more only if the timer becomes
//! the earliest of its queue.
//!
//! Measured against the baseline of exactly these steps ([`baseline`]), in the same run, with 0 and
//! with 100,000 timers pending.

#![allow(unsafe_code)] // the system call of the baseline

#[path = "common/baseline.rs"]
mod baseline;
#[path = "common/mod.rs"]
mod common;
// the baseline needs the list and the node only
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/queue/mod.rs"]
mod queue;
#[allow(dead_code, unused_imports)]
#[path = "../src/sync.rs"]
mod sync;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/sys/mod.rs"]
mod sys;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/time.rs"]
mod time;

use std::hint::black_box;
use std::time::{Duration, Instant};

use timerqueue::{Changed, Runtime, Timer};

use self::baseline::Baseline;
use self::common::{Case, Random, measure, on_cores};

const CORES: usize = 2;
const ONCE: Duration = Duration::ZERO;
const MINUTE: Duration = Duration::from_secs(60);
/// More than the duration of a change, so each due point is earlier than the previous due point.
const EARLIER_BY: Duration = Duration::from_micros(5);

fn idle(runtime: &Runtime) -> Timer {
    Timer::on(runtime, Duration::MAX, ONCE, |_| unreachable!("due in minutes at the earliest"))
}

/// Changes a timer to 30 s from now, repeatedly.
fn later(runtime: &Runtime, times: u64) -> Duration {
    let timer = idle(runtime);
    timer.change(MINUTE / 2, ONCE);
    let start = Instant::now();
    for _ in 0..times {
        let changed = black_box(&timer).change(MINUTE / 2, ONCE);
        debug_assert_eq!(changed, Changed::WasWaiting);
        black_box(changed);
    }
    start.elapsed()
}

/// Changes a timer to earlier, repeatedly: from three hours ahead down to one hour ahead at least.
/// The first change is not timed.
fn earlier(runtime: &Runtime, times: u64) -> Duration {
    let timer = idle(runtime);
    let mut due = 180 * MINUTE;
    assert!(EARLIER_BY * (times as u32) < 120 * MINUTE, "{times} changes do not fit");
    timer.change(due, ONCE);
    let start = Instant::now();
    for _ in 0..times {
        due -= EARLIER_BY;
        black_box(black_box(&timer).change(due, ONCE));
    }
    start.elapsed()
}

/// The baseline of `earlier` where each change becomes the earliest: relink, and set a timerfd.
fn baseline_with_arming(baseline: &Baseline, times: u64) -> Duration {
    // SAFETY: no pointers.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    assert!(fd >= 0, "a timerfd can be had");
    let mut step = 0;
    let took = baseline.relink_and(times, |due| {
        step += 1;
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at =
            libc::timespec { tv_sec: (due / 1_000_000_000) as i64 + 7200, tv_nsec: 999_999_999 - step % 999_999_999 };
        let spec = libc::itimerspec { it_interval: zero, it_value: at };
        // SAFETY: the timerfd is open, and the structure lives through the call.
        let result = unsafe { libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) };
        assert_eq!(result, 0, "the timerfd is set");
    });
    // SAFETY: opened above, closed once.
    unsafe { libc::close(fd) };
    took
}

/// A timer in the queue of each core, due before all measured timers, so no measured timer is the
/// earliest.
fn guards(runtime: &Runtime) -> Vec<Timer> {
    let made = parking_lot::Mutex::new(Vec::new());
    on_cores(CORES, |_| {
        let guard = idle(runtime);
        guard.change(10 * MINUTE, ONCE);
        made.lock().push(guard);
        Duration::ZERO
    });
    made.into_inner()
}

fn start() -> Runtime {
    Runtime::builder().start().expect("the runtime starts")
}

fn main() {
    let mut criterion = common::criterion();
    let baseline = &Baseline::new();
    let others = if common::is_bench_run() { 100_000 } else { 100 };
    for pending in [0, others] {
        let guarded = &start();
        let guards = guards(guarded);
        let mut random = Random::new(5);
        let pending_timers: Vec<_> = (0..pending)
            .map(|_| {
                let timer = idle(guarded);
                timer.change(random.between(20 * MINUTE, 300 * MINUTE), ONCE);
                timer
            })
            .collect();
        assert_eq!(guarded.metrics().active, guards.len() + pending_timers.len(), "these are pending");

        let mut cases = Vec::new();
        for threads in [1, CORES] {
            let mut add = |name: &str, run: fn(&Baseline, &Runtime, u64) -> Duration| {
                let name = format!("{name}, {threads} thread(s)");
                cases.push(Case::new(name, move |times| on_cores(threads, |_| run(baseline, guarded, times))));
            };
            add("baseline", |baseline, _, times| baseline.relink(times));
            add("later", |_, runtime, times| later(runtime, times));
            add("earlier", |_, runtime, times| earlier(runtime, times));
            if pending == 0 {
                add("baseline with arming", |baseline, _, times| baseline_with_arming(baseline, times));
                // An alarm is never set to a later instant, so only a new runtime has no earlier
                // alarm set.
                cases.push(Case::new(format!("earlier, and the earliest, {threads} thread(s)"), move |times| {
                    let alone = start();
                    on_cores(threads, |_| earlier(&alone, times))
                }));
            }
        }
        measure(&mut criterion, &format!("change, {pending} others pending"), &mut cases, || {});
        assert_eq!(guarded.metrics().fired(), 0, "nothing came due");
    }
    criterion.final_summary();
}
