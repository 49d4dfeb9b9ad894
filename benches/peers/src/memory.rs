//! W5: resident memory per pending timer, for a million timers.
//!
//! Ground rules. Each contender has its own process. The runtime is started, and the vector for the
//! handles is written to, before the first reading of the resident pages. So the difference is the
//! memory of the timers and of the contender's bookkeeping, without the handles; the size of the
//! handles is added. A single thread makes all timers, since the allocator's arenas of a second
//! thread would blur the result.

use std::collections::HashMap;
use std::fs;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use hierarchical_hash_wheel_timer::ClosureTimer;
use timerqueue::{Delay, OnceTimer, Runtime, Timer};
use tokio::time::Sleep;
use tokio_util::time::DelayQueue;

use crate::child::{Job, Outcome};
use crate::contenders::{settled, tokio_multi, wheel_thread};
use crate::measure::Session;
use crate::place::{polled, polled_in_place};

pub(crate) const ID: &str = "W5";
pub(crate) const WHAT: &str = "memory";
const N: usize = 1_000_000;
const METRIC: &str = "bytes";
/// Due points of all timers, in a single span far ahead.
const NEAREST: Duration = Duration::from_secs(600);

const CONTENDERS: [&str; 13] = [
    "timerqueue Timer, callback of one word",
    "timerqueue OnceTimer, detached",
    "timerqueue Delay, polled",
    "timerqueue Delay, tasks of tokio multi_thread",
    "tokio sleep, boxed, polled",
    "tokio sleep, tasks of multi_thread",
    "tokio-util DelayQueue",
    "async-io Timer, polled",
    "futures-timer Delay, polled",
    "pingora-timeout sleep, boxed, polled",
    "hierarchical_hash_wheel_timer, its thread, callback of one word",
    "timerqueue DelayQueue, keyed",
    "tokio-util DelayQueue and HashMap, keyed",
];

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second is resident pages");
    #[allow(unsafe_code)] // a system call
    // SAFETY: the call has no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * page as u64
}

fn after(i: usize) -> Duration {
    NEAREST + Duration::from_micros(i as u64 * 300)
}

/// Bytes per timer. `make` makes each timer, and the handles are kept.
fn kept<T>(n: usize, mut make: impl FnMut(usize) -> T) -> f64 {
    // Makes the vector's memory resident: writes to it, and forgets the values.
    let mut handles: Vec<T> = Vec::with_capacity(n);
    #[allow(unsafe_code)] // the vector's spare capacity
    // SAFETY: the write stays within the capacity; the length stays zero.
    unsafe {
        std::ptr::write_bytes(handles.as_mut_ptr().cast::<u8>(), 1, n * size_of::<T>());
    }
    black_box(&mut handles);
    let before = resident();
    for i in 0..n {
        handles.push(make(i));
    }
    let bytes = (resident() - before) as f64 / n as f64 + size_of::<T>() as f64;
    assert_eq!(handles.len(), n);
    std::mem::forget(black_box(handles)); // the process ends here
    bytes
}

/// The number of tasks that have gone to sleep.
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// Bytes per sleeping task.
fn tasks<F: Future + Send + 'static>(n: usize, runtime: &tokio::runtime::Runtime, make: fn(Duration) -> F) -> f64 {
    let spawn = |i| {
        runtime.spawn(async move {
            let mut sleep = pin!(make(after(i)));
            poll_fn(|context| {
                assert!(sleep.as_mut().poll(context).is_pending());
                ASLEEP.fetch_add(1, Ordering::Relaxed); // polled once, and never again
                Poll::<()>::Pending
            })
            .await;
        });
    };
    let before = resident();
    // Spawns a few tasks at a time, so no run queue grows.
    for i in 0..n {
        spawn(i);
        while i + 1 - ASLEEP.load(Ordering::Relaxed) > 64 {
            std::thread::yield_now();
        }
    }
    while ASLEEP.load(Ordering::Relaxed) < n {
        std::thread::yield_now();
    }
    (resident() - before) as f64 / n as f64
}

fn ours(n: usize, make: impl FnOnce(&Runtime) -> f64) -> f64 {
    let runtime = Runtime::global();
    let bytes = make(runtime);
    assert_eq!(runtime.metrics().active, n, "all are in the queue");
    bytes
}

/// A thread inserts the timers, so they are made a few at a time, and its channel stays short.
fn wheel(n: usize) -> f64 {
    let mut timers = wheel_thread();
    kept::<()>(n, |i| {
        let word = black_box(i);
        timers.schedule_action_once(i as u64, after(i), move |_| {
            black_box(word);
        });
        if i % 64 == 63 || i + 1 == n {
            settled(&mut timers);
        }
    })
}

/// The memory of a contender, in the child process.
pub(crate) fn child(contender: &str, n: usize) -> Outcome {
    let bytes = match CONTENDERS.iter().position(|&known| known == contender).expect("a known contender") {
        0 => ours(n, |runtime| {
            kept::<Timer>(n, |i| {
                let word = black_box(i);
                Timer::on(runtime, after(i), Duration::ZERO, move |_| {
                    black_box(word);
                })
            })
        }),
        1 => ours(n, |runtime| {
            kept::<()>(n, |i| {
                let word = black_box(i);
                let timer: OnceTimer = OnceTimer::on(runtime, after(i), move |_| {
                    black_box(word);
                });
                timer.detach();
            })
        }),
        2 => ours(n, |_| kept::<Delay>(n, |i| polled_in_place(Delay::new(after(i))))),
        3 => ours(n, |_| tasks(n, tokio_multi(), Delay::new)),
        4 => {
            let _inside = tokio_multi().enter();
            kept::<Pin<Box<Sleep>>>(n, |i| polled(tokio::time::sleep(after(i))))
        }
        5 => tasks(n, tokio_multi(), tokio::time::sleep),
        6 => {
            let _inside = tokio_multi().enter();
            let mut queue = DelayQueue::new();
            let bytes = kept::<()>(n, |i| {
                black_box(queue.insert((), after(i)));
            });
            assert_eq!(queue.len(), n, "all are in the queue");
            bytes
        }
        7 => kept::<async_io::Timer>(n, |i| polled_in_place(async_io::Timer::after(after(i)))),
        8 => kept::<futures_timer::Delay>(n, |i| polled_in_place(futures_timer::Delay::new(after(i)))),
        9 => kept::<Pin<Box<dyn Future<Output = ()>>>>(n, |i| polled(pingora_timeout::sleep(after(i)))),
        10 => wheel(n),
        11 => {
            let queue = timerqueue::DelayQueue::<u64, u64>::new();
            let bytes = kept::<()>(n, |i| queue.insert(i as u64, 0, after(i)).expect("a new key"));
            assert_eq!(queue.len(), n, "all are in the queue");
            bytes
        }
        _ => {
            let _inside = tokio_multi().enter();
            let (mut queue, mut keys) = (DelayQueue::new(), HashMap::new());
            let bytes = kept::<()>(n, |i| {
                keys.insert(i as u64, queue.insert(i as u64, after(i)));
            });
            assert_eq!((queue.len(), keys.len()), (n, n), "all are in the queue");
            bytes
        }
    };
    Outcome { figures: vec![(METRIC, bytes)], quantiles: None }
}

/// A round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: String::from("resident memory per pending timer, of a million"),
        note: "Includes handles, vectors of handles, and tasks. A boxed `Sleep` has no callback and no task yet: it shows the \
               cost of a pending timer inside an existing task.",
        what: WHAT,
        n: N,
        span_us: 0,
        metrics: &[METRIC],
        unit: "",
        together: false,
    };
    job.run(session, &CONTENDERS);
}
