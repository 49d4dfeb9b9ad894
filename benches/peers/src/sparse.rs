//! W4: how late a timer is that fires when nothing else does.
//!
//! Ground rules. Sample by sample: each sample gives every party the same wait, 1 to 10 ms, one after the other in random
//! order, since the lateness of a wake-up depends on the day. The floor is a bare timerfd in an epoll set with a thread of
//! its own. Lateness ends where the party's user code begins: in the callback, in the task, or behind `block_on`. Nobody
//! may ever be early.

#![allow(unsafe_code)] // the system calls of the bare loop

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use tokio::runtime;

use crate::measure::{Session, clock_ns, quantile};
use crate::place::wait_for;
use crate::report::{Row, quantiles};

pub(crate) const ID: &str = "W4";
const SAMPLES: usize = 80;
const NEAREST: Duration = Duration::from_millis(1);
const FURTHEST: Duration = Duration::from_millis(10);
const METRICS: [&str; 4] = ["late p50, us", "late p90, us", "late p99, us", "best, us"];
const TITLE: &str = "lateness of a timer, 1 to 10 ms ahead, when no other one fires";

/// A timerfd in an epoll set, edge-triggered and never read, and a thread that waits for it. Both last as long as the
/// process.
struct Bare {
    timer: i32,
    due: Sender<u64>,
    late: Receiver<u64>,
}

fn checked(result: i32) -> i32 {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

fn late(due: u64) -> u64 {
    clock_ns().checked_sub(due).expect("nothing fires early")
}

impl Bare {
    fn start() -> Self {
        let ((due, dues), (lates, late_ones)) = (channel::<u64>(), channel());
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        // SAFETY: no pointers but to the event, which lives through the call.
        let (timer, epoll) = unsafe {
            let timer = checked(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK));
            let epoll = checked(libc::epoll_create1(libc::EPOLL_CLOEXEC));
            checked(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer, &mut event));
            (timer, epoll)
        };
        std::thread::spawn(move || {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            loop {
                // SAFETY: room for one event.
                let n = unsafe { libc::epoll_wait(epoll, &mut event, 1, -1) };
                assert_eq!(n, 1, "the alarm, and nothing else");
                let now = clock_ns();
                let due = dues.try_recv().expect("sent before the alarm was set");
                if lates.send(now.checked_sub(due).expect("nothing fires early")).is_err() {
                    return;
                }
            }
        });
        Self { timer, due, late: late_ones }
    }

    fn sample(&self, wait: Duration) -> u64 {
        let due = clock_ns() + wait.as_nanos() as u64;
        self.due.send(due).expect("the loop runs");
        let at = libc::timespec { tv_sec: (due / 1_000_000_000) as i64, tv_nsec: (due % 1_000_000_000) as i64 };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: an open timerfd and a structure that lives through the call.
        checked(unsafe { libc::timerfd_settime(self.timer, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) });
        self.late.recv().expect("the loop runs")
    }
}

/// All parties, started once.
pub(crate) struct Sparse {
    ours: Runtime,
    bare: Bare,
    current: runtime::Runtime,
    multi: runtime::Runtime,
}

/// A due point on both clocks; the instant is not the earlier one.
fn due_after(wait: Duration) -> (u64, Instant) {
    (clock_ns() + wait.as_nanos() as u64, Instant::now() + wait)
}

type Sample = fn(&Sparse, Duration) -> u64;

const PARTIES: [(&str, Sample); 7] = [
    ("timerqueue callback", |sparse, wait| {
        let (send, receive) = channel();
        let timer = sparse.ours.once(wait, move |tick| {
            let late = late(tick.scheduled().as_duration().as_nanos() as u64);
            send.send(late).expect("somebody listens");
        });
        let late = receive.recv().expect("the timer fires");
        drop(timer);
        late
    }),
    ("timerqueue Delay, thread parked in block_on", |sparse, wait| {
        let (due, _) = due_after(wait);
        wait_for(sparse.ours.delay(wait)).expect("the runtime goes on");
        late(due)
    }),
    ("floor: timerfd and epoll", |sparse, wait| sparse.bare.sample(wait)),
    ("tokio sleep, current_thread, block_on", |sparse, wait| {
        let (due, at) = due_after(wait);
        sparse.current.block_on(async { tokio::time::sleep_until(at.into()).await });
        late(due)
    }),
    ("tokio sleep, task of multi_thread", |sparse, wait| {
        let (send, receive) = channel();
        let (due, at) = due_after(wait);
        sparse.multi.spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            send.send(late(due)).expect("somebody listens");
        });
        receive.recv().expect("the task ends")
    }),
    ("async-io Timer, block_on", |_, wait| {
        let (due, at) = due_after(wait);
        async_io::block_on(async_io::Timer::at(at));
        late(due)
    }),
    ("futures-timer Delay, thread parked in block_on", |_, wait| {
        let (due, _) = due_after(wait);
        wait_for(futures_timer::Delay::new(wait));
        late(due)
    }),
];

impl Sparse {
    pub(crate) fn start() -> Self {
        Self {
            ours: Runtime::builder().start().expect("a runtime starts"),
            bare: Bare::start(),
            current: runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts"),
            multi: runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime starts"),
        }
    }

    /// One round of samples.
    pub(crate) fn round(&self, session: &mut Session) {
        let row = |party, metric| Row { party, threads: 1, metric };
        for (party, _) in PARTIES {
            for metric in METRICS {
                session.report.declare(ID, TITLE, row(party, metric));
            }
        }
        session
            .report
            .note(TITLE, "Quantiles of each round; median of the rounds. tokio counts in whole milliseconds.");
        let mut lates = vec![Vec::with_capacity(SAMPLES); PARTIES.len()];
        let mut order: Vec<usize> = (0..PARTIES.len()).filter(|&i| session.wants(PARTIES[i].0)).collect();
        for _ in 0..SAMPLES {
            let wait = session.random.between(NEAREST, FURTHEST);
            session.random.shuffle(&mut order);
            for &i in &order {
                lates[i].push(PARTIES[i].1(self, wait));
            }
        }
        for ((party, _), lates) in PARTIES.into_iter().zip(&mut lates).filter(|(_, lates)| !lates.is_empty()) {
            lates.sort_unstable();
            for (metric, q) in METRICS.into_iter().zip([0.5, 0.9, 0.99, 0.0]) {
                session.report.add(TITLE, row(party, metric), quantile(lates, q) as f64 / 1e3);
            }
            session.report.add_distribution(ID, TITLE, party, "us late", quantiles(lates, 1e3));
        }
    }
}
