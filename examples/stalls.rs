//! Callbacks that block, or look as if they did: how late other timers are beside them, and how
//! many threads the pool adds.
//!
//! `cargo run --release --example stalls [NAME...]`. Nothing is asserted; figures are of this
//! machine, at this moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{MissedTicks, OnceTimer, Runtime, Timer, TimerBuilder};

const NEVER: Duration = Duration::MAX;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Lateness of callbacks, and the most threads that were there.
#[derive(Clone, Default)]
struct Seen(Arc<(Mutex<Vec<u64>>, AtomicUsize)>);

impl Seen {
    fn note(&self, late: Duration) {
        self.0.0.lock().unwrap().push(late.as_nanos() as u64);
    }

    fn watch_threads(&self, runtime: &Runtime, for_so_long: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < for_so_long {
            self.0.1.fetch_max(runtime.metrics().threads.alive, Ordering::Relaxed);
            thread::sleep(ms(1));
        }
    }

    fn say(&self, name: &str) {
        let mut late = self.0.0.lock().unwrap().clone();
        late.sort_unstable();
        let at = |q: f64| late.get(((late.len() as f64 - 1.0) * q) as usize).map_or(f64::NAN, |&ns| ns as f64 / 1e6);
        println!(
            "{name:<10} {:>7} fired, late p50 {:>9.3} ms, p99 {:>9.3} ms, worst {:>9.3} ms, at most {:>3} threads",
            late.len(),
            at(0.5),
            at(0.99),
            at(1.0),
            self.0.1.load(Ordering::Relaxed)
        );
    }
}

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().queues(1).workers(workers).start().expect("the system has threads")
}

/// Processes' worth of load: threads of this one will do.
struct Hogs(Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Hogs {
    fn new(n: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let hog = |stop: Arc<AtomicBool>| move || while !stop.load(Ordering::Relaxed) {};
        let hogs = (0..n).map(|_| thread::spawn(hog(Arc::clone(&stop)))).collect();
        Self(stop, hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|hog| hog.join().unwrap());
    }
}

/// One callback sleeps; 99 are due with it; another thread is busy with a timer that never catches
/// up.
fn behind() {
    let (runtime, seen) = (runtime(3), Seen::default());
    let busy = TimerBuilder::on(&runtime).period(us(100)).missed_ticks(MissedTicks::Burst);
    let busy = busy.start_exclusive(|_| work(us(150)));
    thread::sleep(ms(50));
    let due = runtime.now() + ms(20);
    let entered = Arc::new(AtomicUsize::new(0));
    let timers: Vec<Timer> = (0..100)
        .map(|_| {
            let (seen, entered) = (seen.clone(), Arc::clone(&entered));
            Timer::on(&runtime, due - runtime.now(), NEVER, move |tick| {
                let late = tick.lateness();
                if entered.fetch_add(1, Ordering::Relaxed) == 0 {
                    thread::sleep(ms(1_000));
                }
                seen.note(late);
            })
        })
        .collect();
    seen.watch_threads(&runtime, ms(1_200));
    drop((busy, timers));
    seen.say("behind");
}

/// Twenty thousand callbacks a second that sleep for 0.1 ms each. Lateness of those in the second
/// half.
fn trickle() {
    let (runtime, seen) = (runtime(3), Seen::default());
    let begun = runtime.now();
    let timers: Vec<Timer> = (0..200)
        .map(|i| {
            let seen = seen.clone();
            TimerBuilder::on(&runtime).due(us(50 * i) + ms(10)).period(ms(10)).missed_ticks(MissedTicks::Burst).start(
                move |tick| {
                    if tick.scheduled() - begun > ms(1_500) {
                        seen.note(tick.lateness());
                    }
                    thread::sleep(us(100));
                },
            )
        })
        .collect();
    seen.watch_threads(&runtime, ms(3_000));
    drop(timers);
    seen.say("trickle");
}

/// Callbacks that share a lock, 20 us inside, 20,000 of them, with so many busy threads beside
/// them.
fn lock(name: &str, workers: usize, max_threads: usize, hogs: usize) {
    let runtime = Runtime::builder().queues(1).workers(workers).max_threads(max_threads).start().unwrap();
    let seen = Seen::default();
    let _hogs = Hogs::new(hogs);
    let (shared, left) = (Arc::new(Mutex::new(0u64)), Arc::new(AtomicU64::new(20_000)));
    let due = runtime.now() + ms(50);
    let timers: Vec<Timer> = (0..20_000)
        .map(|_| {
            let (seen, shared, left) = (seen.clone(), Arc::clone(&shared), Arc::clone(&left));
            Timer::on(&runtime, due - runtime.now(), NEVER, move |tick| {
                let mut shared = shared.lock().unwrap();
                *shared += 1;
                work(us(20));
                drop(shared);
                seen.note(tick.lateness());
                left.fetch_sub(1, Ordering::Relaxed);
            })
        })
        .collect();
    while left.load(Ordering::Relaxed) > 0 {
        seen.watch_threads(&runtime, ms(5));
    }
    drop(timers);
    seen.say(name);
}

/// A cache behind one lock whose million entries come due within a second.
fn cache() {
    let (runtime, seen) = (Runtime::builder().start().unwrap(), Seen::default());
    let cache = Arc::new(Mutex::new(HashMap::new()));
    for key in 0..1_000_000u64 {
        let (theirs, seen) = (Arc::downgrade(&cache), seen.clone());
        let due = ms(3_000) + us(key.wrapping_mul(0x9e37_79b9) % 1_000_000);
        let timer = OnceTimer::on(&runtime, due, move |tick| {
            let gone = theirs.upgrade().map(|cache| cache.lock().unwrap().remove(&key));
            if key % 64 == 0 {
                seen.note(tick.lateness());
            }
            drop(gone);
        });
        cache.lock().unwrap().insert(key, timer);
    }
    while !cache.lock().unwrap().is_empty() {
        seen.watch_threads(&runtime, ms(5));
    }
    seen.say("cache");
}

/// Forty callbacks that sleep for 200 ms, due at one instant.
fn sleepers() {
    let (runtime, seen) = (Runtime::builder().start().unwrap(), Seen::default());
    let timers: Vec<Timer> = (0..40)
        .map(|_| {
            let seen = seen.clone();
            Timer::on(&runtime, ms(20), NEVER, move |tick| {
                seen.note(tick.lateness());
                thread::sleep(ms(200));
            })
        })
        .collect();
    seen.watch_threads(&runtime, ms(300));
    drop(timers);
    seen.say("sleepers");
}

/// Timers of 1 ms with 2 ms of work that catch up on every tick.
fn overload(timers: usize) {
    let (runtime, seen) = (Runtime::builder().start().unwrap(), Seen::default());
    let timers: Vec<Timer> = (0..timers)
        .map(|_| {
            let builder = TimerBuilder::on(&runtime).period(ms(1)).missed_ticks(MissedTicks::Burst);
            builder.start(|_| work(ms(2)))
        })
        .collect();
    let others: Vec<Timer> = (1..=100)
        .map(|i| {
            let seen = seen.clone();
            Timer::on(&runtime, ms(10 * i), NEVER, move |tick| seen.note(tick.lateness()))
        })
        .collect();
    seen.watch_threads(&runtime, ms(1_500));
    let n = timers.len();
    drop((timers, others));
    seen.say(&format!("overload {n}"));
}

/// Sixteen timers of 10 ms beside 64 callbacks that block for 2 s.
fn blocked() {
    let (runtime, seen) = (Runtime::builder().start().unwrap(), Seen::default());
    let ticking: Vec<Timer> = (0..16)
        .map(|i| {
            let seen = seen.clone();
            Timer::on(&runtime, us(625 * i), ms(10), move |tick| seen.note(tick.lateness()))
        })
        .collect();
    thread::sleep(ms(500));
    let blocked: Vec<Timer> =
        (0..64).map(|_| Timer::on(&runtime, ms(20), NEVER, |_| thread::sleep(ms(2_000)))).collect();
    seen.watch_threads(&runtime, ms(2_500));
    drop((ticking, blocked));
    seen.say("blocked");
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let all: [(&str, fn()); 10] = [
        ("behind", behind),
        ("trickle", trickle),
        ("lock", || lock("lock", 3, 512, 0)),
        ("hogs", || lock("hogs", 3, 512, 2)),
        ("hogs3", || lock("hogs3", 3, 3, 2)),
        ("cache", cache),
        ("sleepers", sleepers),
        ("overload1", || overload(1)),
        ("overload2", || overload(2)),
        ("blocked", blocked),
    ];
    for (name, run) in all {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            run();
        }
    }
}
