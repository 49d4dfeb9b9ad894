//! The baseline of firing: a bare timerfd in an epoll set, and a thread that waits for the set.
//!
//! Ground rules. File descriptors and threads last as long as the process.

#![allow(unsafe_code)] // system calls

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::contenders::Tick;
use crate::measure::clock_ns;

pub(crate) const NAME: &str = "baseline: timerfd and epoll";
pub(crate) const NAME_LEEWAY: &str = "baseline: timerfd and epoll, 1 ms of leeway";

fn checked(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

/// A timerfd and its epoll set. Edge-triggered, so a one-shot timerfd need not be read; a periodic
/// timerfd must be.
fn timer_in_set() -> (i32, i32) {
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: the only pointer is to the event, which lives through the call.
    unsafe {
        let timer = checked(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK));
        let set = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC));
        checked(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, timer, &mut event));
        (timer, set)
    }
}

fn arm(timer: i32, due: u64, period: Duration) {
    let time = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let spec = libc::itimerspec { it_interval: time(period.as_nanos() as u64), it_value: time(due) };
    // SAFETY: the timerfd is open, and the structure lives through the call.
    checked(unsafe { libc::timerfd_settime(timer, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) });
}

fn wait(set: i32) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the buffer holds one event, as the call is told.
    let n = unsafe { libc::epoll_wait(set, &mut event, 1, -1) };
    assert_eq!(n, 1, "only the alarm");
}

/// A single timer, set again and again.
pub(crate) struct Bare {
    timer: i32,
    due: Sender<u64>,
    late: Receiver<i64>,
}

impl Bare {
    pub(crate) fn start() -> Self {
        let ((due, dues), (lates, late)) = (channel::<u64>(), channel());
        let (timer, set) = timer_in_set();
        std::thread::spawn(move || {
            loop {
                wait(set);
                let now = clock_ns();
                let due = dues.try_recv().expect("sent before the alarm was set");
                if lates.send(now as i64 - due as i64).is_err() {
                    return;
                }
            }
        });
        Self { timer, due, late }
    }

    /// Sets the timer to `after` from now. Returns its lateness in nanoseconds.
    pub(crate) fn sample(&self, after: Duration) -> i64 {
        let due = clock_ns() + after.as_nanos() as u64;
        self.due.send(due).expect("the loop runs");
        arm(self.timer, due, Duration::ZERO);
        self.late.recv().expect("the loop runs")
    }
}

/// Calls `fire` with each element of `known` at its due point, or at most `leeway` later, together
/// with the next elements. All elements are sorted before the first is due, so the cost is only the
/// wake-ups of the system and the calls.
pub(crate) fn storm<T: Send + 'static>(mut known: Vec<(u64, T)>, leeway: Duration, fire: impl Fn(T) + Send + 'static) {
    let grid = (leeway.as_nanos() as u64).max(1);
    known.iter_mut().for_each(|(due, _)| *due = due.next_multiple_of(grid));
    known.sort_by_key(|&(due, _)| due);
    let (timer, set) = timer_in_set();
    std::thread::spawn(move || {
        let mut rest = known.into_iter().peekable();
        while let Some(&(next, _)) = rest.peek() {
            let mut now = clock_ns();
            if now < next {
                arm(timer, next, Duration::ZERO);
                wait(set);
                now = clock_ns();
            }
            while let Some((_, what)) = rest.next_if(|&(at, _)| at <= now) {
                fire(what);
            }
        }
    });
}

/// Reads the number of expired ticks. Only then does the kernel begin the next period.
fn take(timer: i32) {
    let mut ticks = 0u64;
    // SAFETY: the buffer holds the eight bytes of a timerfd's read.
    let n = unsafe { libc::read(timer, (&raw mut ticks).cast(), size_of::<u64>()) };
    assert!(n == 8 && ticks > 0, "at least one tick");
}

/// Ticks for ever, by the period of the timerfd.
pub(crate) fn every(first: Duration, period: Duration, tick: Tick) {
    let (timer, set) = timer_in_set();
    arm(timer, clock_ns() + first.as_nanos() as u64, period);
    std::thread::spawn(move || {
        loop {
            wait(set);
            take(timer);
            tick();
        }
    });
}
