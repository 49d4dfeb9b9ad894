//! W5: resident memory of a pending timer, a million of them.
//!
//! Ground rules. A process of its own for each contender. The runtime is started and the vector for the handles is written to
//! before the first look at the resident pages, so the difference is timers, and what the contender keeps for them, but not
//! the handles themselves; their size is added. Two threads' worth of arenas would blur it, so one thread makes them all.

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
use crate::contenders::{filed, tokio_multi, wheel_thread};
use crate::measure::Session;
use crate::place::{polled, polled_in_place};

pub(crate) const ID: &str = "W5";
pub(crate) const WHAT: &str = "memory";
const N: usize = 1_000_000;
const METRIC: &str = "bytes";
/// All within one window of nobody's.
const NEAREST: Duration = Duration::from_secs(600);

const CONTENDERS: [&str; 11] = [
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
];

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second is resident pages");
    #[allow(unsafe_code)] // a system call
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * page as u64
}

fn after(i: usize) -> Duration {
    NEAREST + Duration::from_micros(i as u64 * 300)
}

/// Bytes per timer when `make` makes them all, and handles are kept.
fn kept<T>(n: usize, mut make: impl FnMut(usize) -> T) -> f64 {
    // Room that is resident already: write to it, and forget what was written.
    let mut room: Vec<T> = Vec::with_capacity(n);
    #[allow(unsafe_code)] // the vector's own spare room
    // SAFETY: within the capacity; the length stays zero.
    unsafe {
        std::ptr::write_bytes(room.as_mut_ptr().cast::<u8>(), 1, n * size_of::<T>());
    }
    black_box(&mut room);
    let before = resident();
    for i in 0..n {
        room.push(make(i));
    }
    let bytes = (resident() - before) as f64 / n as f64 + size_of::<T>() as f64;
    assert_eq!(room.len(), n);
    std::mem::forget(black_box(room)); // the process ends here
    bytes
}

/// Tasks that have gone to sleep.
static ASLEEP: AtomicUsize = AtomicUsize::new(0);

/// Bytes per task that sleeps.
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
    // A few at a time, so that no run queue grows.
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
    let runtime = Runtime::global().expect("the default runtime starts");
    let bytes = make(runtime);
    assert_eq!(runtime.active_timers(), n, "all are filed");
    bytes
}

/// Timers are filed by a thread: a few at a time, so that its channel stays short.
fn wheel(n: usize) -> f64 {
    let mut timers = wheel_thread();
    kept::<()>(n, |i| {
        let word = black_box(i);
        timers.schedule_action_once(i as u64, after(i), move |_| {
            black_box(word);
        });
        if i % 64 == 63 || i + 1 == n {
            filed(&mut timers);
        }
    })
}

/// One contender's memory.
pub(crate) fn child(contender: &str, n: usize) -> Outcome {
    let bytes = match CONTENDERS.iter().position(|&known| known == contender).expect("a known contender") {
        0 => ours(n, |runtime| {
            kept::<Timer>(n, |i| {
                let word = black_box(i);
                runtime.timer(after(i), Duration::ZERO, move |_| {
                    black_box(word);
                })
            })
        }),
        1 => ours(n, |runtime| {
            kept::<()>(n, |i| {
                let word = black_box(i);
                let timer: OnceTimer = runtime.once(after(i), move |_| {
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
            assert_eq!(queue.len(), n, "all are filed");
            bytes
        }
        7 => kept::<async_io::Timer>(n, |i| polled_in_place(async_io::Timer::after(after(i)))),
        8 => kept::<futures_timer::Delay>(n, |i| polled_in_place(futures_timer::Delay::new(after(i)))),
        9 => kept::<Pin<Box<dyn Future<Output = ()>>>>(n, |i| polled(pingora_timeout::sleep(after(i)))),
        _ => wheel(n),
    };
    Outcome { figures: vec![(METRIC, bytes)], quantiles: None }
}

/// One round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: String::from("resident memory per pending timer, of a million"),
        note: "Handles, vectors of them and tasks included. A boxed `Sleep` has no callback and no task yet: it is what a \
               pending timer costs inside something that is there anyway.",
        what: WHAT,
        n: N,
        span_us: 0,
        metrics: &[METRIC],
        unit: "",
        together: false,
    };
    job.run(session, &CONTENDERS);
}
