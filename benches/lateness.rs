//! The lateness of a lone timer, and what it costs. Claim: a timer that fires alone is hardly later
//! than a bare timerfd on the same machine: p50 within 15 %, p99 within 50 %. Pending timers make
//! no difference.
//!
//! Sparse one-shots, 1 to 10 ms ahead, take turns with a bare timerfd in an epoll set with a thread
//! of its own. Both get the same waits, [`PART`] samples at a time in the same run, since the
//! lateness of a wake-up varies from day to day. Processor time is that of the whole process, from
//! the making of a timer to the next, so with both threads.

#![allow(unsafe_code)] // the system calls of the bare loop

#[path = "common/mod.rs"]
mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use timerqueue::{OnceTimer, Runtime, Timer};

use self::common::{Random, clock_ns, cpu_ns, is_bench_run, quantile};

const NEAREST: Duration = Duration::from_millis(1);
const FURTHEST: Duration = Duration::from_millis(10);
/// Samples in a row of the same timer: what a thread does after its last sample is counted for the
/// other timer.
const PART: usize = 25;
/// The due point at which the bare loop ends.
const END: u64 = 0;

/// A timerfd in an epoll set, edge-triggered and never read, and a thread that waits for it.
struct Bare {
    timer: i32,
    due: Sender<u64>,
    late: Receiver<u64>,
}

fn checked(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

impl Bare {
    fn start() -> Self {
        let (due, dues) = channel();
        let (lates, late) = channel();
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: the only pointer is to the event, which lives through the call. The descriptors
        // stay open until the end.
        let (timer, epoll) = unsafe {
            let timer = checked(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK));
            let epoll = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            checked(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer, &mut event));
            (timer, epoll)
        };
        std::thread::spawn(move || {
            loop {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: the buffer holds one event, as the call is told.
                let n = unsafe { libc::epoll_wait(epoll, &mut event, 1, -1) };
                let now = clock_ns();
                if n < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                    continue; // for example after the process was stopped and continued
                }
                assert_eq!(n, 1, "only the alarm");
                // The due point was sent before the alarm was set.
                let due: u64 = dues.try_recv().expect("an alarm has a due point");
                if due == END || lates.send(signed_lateness(now, due)).is_err() {
                    return;
                }
            }
        });
        Self { timer, due, late }
    }

    fn arm(&self, at: u64) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: the timerfd is open, and the structure lives through the call.
        checked(unsafe { libc::timerfd_settime(self.timer, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) });
    }

    fn sample(&self, wait: Duration) -> u64 {
        let due = clock_ns() + wait.as_nanos() as u64;
        self.due.send(due).expect("the loop runs");
        self.arm(due);
        self.late.recv().expect("the loop runs")
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // An error means that the loop has ended already.
        let _ = self.due.send(END);
        self.arm(1);
    }
}

fn signed_lateness(now: u64, due: u64) -> u64 {
    now.checked_sub(due).expect("nothing fires early")
}

fn ours(runtime: &Runtime, wait: Duration) -> u64 {
    let (send, receive) = channel();
    let timer = OnceTimer::on(runtime, wait, move |tick| {
        let (now, due) = (tick.now().as_duration().as_nanos() as u64, tick.scheduled().as_duration().as_nanos() as u64);
        // The receiver lives until it has received this message.
        let _ = send.send((now, due));
    });
    let (now, due) = receive.recv().expect("the timer fires");
    drop(timer);
    signed_lateness(now, due)
}

/// The samples of a timer.
#[derive(Default)]
struct Samples {
    late_ns: Vec<u64>,
    /// Processor time of a firing, a part each.
    cpu_ns: Vec<u64>,
}

impl Samples {
    fn part(&mut self, waits: &[Duration], sample: impl FnMut(Duration) -> u64) {
        let before = cpu_ns();
        self.late_ns.extend(waits.iter().copied().map(sample));
        self.cpu_ns.push((cpu_ns() - before) / waits.len() as u64);
    }

    fn sort(&mut self) {
        self.late_ns.sort_unstable();
        self.cpu_ns.sort_unstable();
    }
}

/// Samples of both timers, taken in turns; sorted.
fn samples(runtime: &Runtime, n: usize) -> [Samples; 2] {
    let bare = Bare::start();
    let mut random = Random::new(17);
    let (mut of_ours, mut of_bare) = (Samples::default(), Samples::default());
    let waits: Vec<_> = (0..n).map(|_| random.between(NEAREST, FURTHEST)).collect();
    for (i, waits) in waits.chunks(PART).enumerate() {
        if i % 2 == 0 {
            of_ours.part(waits, |wait| ours(runtime, wait));
            of_bare.part(waits, |wait| bare.sample(wait));
        } else {
            of_bare.part(waits, |wait| bare.sample(wait));
            of_ours.part(waits, |wait| ours(runtime, wait));
        }
    }
    of_ours.sort();
    of_bare.sort();
    [of_ours, of_bare]
}

fn main() {
    let (n, many) = if is_bench_run() { (1_800, 100_000) } else { (10, 1_000) };
    println!("{n} samples each; lateness and processor time in us.\n");
    println!("| | timer p50 | p90 | p99 | CPU | timerfd p50 | p90 | p99 | CPU | ratio p50 | p90 | p99 | CPU |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for pending in [0, many] {
        let runtime = Runtime::builder().start().expect("the runtime starts");
        let mut random = Random::new(19);
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let others: Vec<_> = (0..pending)
            .map(|_| {
                Timer::on(&runtime, random.between(hours(1), hours(2)), Duration::ZERO, |_| unreachable!("not today"))
            })
            .collect();
        assert_eq!(runtime.metrics().active, others.len(), "these are pending");
        let sides = samples(&runtime, n);
        assert_eq!(
            (runtime.metrics().fired(), runtime.metrics().active),
            (n as u64, pending),
            "each fired once, the others wait"
        );
        print!("| {pending} others pending |");
        let [ours, bare] = sides.map(|side| {
            let late = [0.5, 0.9, 0.99].map(|q| quantile(&side.late_ns, q));
            [late[0], late[1], late[2], quantile(&side.cpu_ns, 0.5)].map(|ns| ns as f64 / 1e3)
        });
        ours.iter().chain(&bare).for_each(|us| print!(" {us:.1} |"));
        ours.iter().zip(&bare).for_each(|(ours, bare)| print!(" {:.2} |", ours / bare));
        println!();
    }
}
