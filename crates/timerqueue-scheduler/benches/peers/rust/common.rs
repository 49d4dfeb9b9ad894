//! What the drivers in Rust share: arguments, callers, due times and answers. The README of the
//! folder has the list of works.

#![allow(dead_code)] // no driver needs all of it

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Jobs of a call that puts many.
pub const MANY: usize = 1_000;
/// Delays whose lateness is measured.
pub const DELAYS: usize = 1_000;
/// Places of a handler where lateness is measured.
pub const PLACES: usize = 16;
/// The payload of a put.
pub const BYTES: usize = 200;
/// Waiting jobs are due so much later.
pub const FAR: Duration = Duration::from_secs(36_000);

/// `DRIVER CONTENDER WORK PLACE NUMBER SECONDS`
pub struct Arguments {
    pub contender: String,
    pub work: String,
    pub place: String,
    pub number: usize,
    pub seconds: f64,
}

impl Arguments {
    pub fn read() -> Self {
        let mut left = std::env::args().skip(1);
        let mut next = || left.next().expect("CONTENDER WORK PLACE NUMBER SECONDS");
        let (contender, work, place) = (next(), next(), next());
        let (number, seconds) = (next().parse().expect("a number"), next().parse().expect("seconds"));
        Self { contender, work, place, number, seconds }
    }

    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

pub fn micros_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as i64
}

pub fn payload() -> String {
    "x".repeat(BYTES)
}

/// One line of the answer.
pub fn answer(name: &str, value: f64) {
    println!("{name} {value}");
}

/// Ends the process without waiting for what a library leaves behind.
pub fn end() -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    std::process::exit(0)
}

/// Counts what is done while the time lasts.
#[derive(Clone)]
pub struct Count {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    begun: Instant,
}

impl Count {
    pub fn new() -> Self {
        Self { done: Arc::default(), stop: Arc::default(), begun: Instant::now() }
    }

    pub fn add(&self, many: u64) {
        self.done.fetch_add(many, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// How many were done in a second, until now.
    pub fn rate(&self) -> f64 {
        self.get() as f64 / self.begun.elapsed().as_secs_f64()
    }
}

/// Callers on threads of their own: each calls `put` with its number and a count, again and again.
pub fn call_on_threads(callers: usize, time: Duration, put: impl Fn(usize, u64) + Sync) -> f64 {
    let count = Count::new();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (count, put) = (&count, &put);
            scope.spawn(move || {
                for n in 0.. {
                    if !count.goes_on() {
                        break;
                    }
                    put(caller, n);
                    count.add(1);
                }
            });
        }
        std::thread::sleep(time);
        count.stop();
        count.rate()
    })
}

/// The delays of a measurement, in microseconds: 0.1 to 5 s, with the same numbers for each
/// contender.
pub fn delays() -> Vec<i64> {
    let mut seed: u64 = 17;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as i64
    };
    (0..DELAYS).map(|_| 100_000 + next() % 4_900_000).collect()
}

/// How late jobs ran, in microseconds. Below zero: early.
#[derive(Clone, Default)]
pub struct Late(Arc<Mutex<Vec<i64>>>);

impl Late {
    pub fn ran(&self, due: i64) {
        let late = micros_now() - due;
        self.0.lock().expect("no panic").push(late);
    }

    pub fn count(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    /// Waits for all delays, and answers.
    pub fn report(&self) {
        let begun = Instant::now();
        while self.count() < DELAYS && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut late = self.0.lock().expect("no panic").clone();
        late.sort_unstable();
        let at = |part: f64| late.get(((late.len() as f64 * part) as usize).min(late.len().saturating_sub(1)));
        answer("ran", late.len() as f64);
        answer("early", late.iter().filter(|&&late| late < 0).count() as f64);
        for (name, part) in [("first", 0.0), ("p50", 0.5), ("p99", 0.99), ("worst", 1.0)] {
            answer(name, at(part).map_or(f64::NAN, |&late| late as f64 / 1_000.0));
        }
    }
}

/// The jobs of `run`. Faster contenders are done with them before the time is over.
pub fn jobs(arguments: &Arguments) -> usize {
    ((arguments.seconds * 5_000.0) as usize / MANY).max(1) * MANY
}

/// One of several processes that run the jobs which are due: from when to when it ran jobs, in
/// seconds, and how many.
pub fn node(ran: &Count, time: Duration) {
    let (started, mut first, mut last, mut seen) = (Instant::now(), f64::NAN, micros_now(), 0);
    while started.elapsed() < time && (seen == 0 || micros_now() - last < 1_000_000) {
        std::thread::sleep(Duration::from_millis(1));
        let now = ran.get();
        if now > seen {
            first = if seen == 0 { micros_now() as f64 / 1e6 } else { first };
            (last, seen) = (micros_now(), now);
        }
    }
    answer("ran", seen as f64);
    answer("from", first);
    answer("to", last as f64 / 1e6);
}

/// Says that the contender waits for jobs, and leaves it alone.
pub fn idle(time: Duration) {
    println!("ready");
    std::thread::sleep(time);
}

/// Jobs that are due: how many ran in a second, until all have run or the time is over. The count
/// begins with the first of them.
pub fn drained(ran: &Count, jobs: u64, time: Duration) {
    let started = Instant::now();
    while ran.get() == 0 && started.elapsed() < time * 4 {
        std::thread::sleep(Duration::from_micros(100));
    }
    let (begun, before) = (Instant::now(), ran.get());
    let (mut last, mut seen) = (begun, before);
    while ran.get() < jobs && begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(1));
        if ran.get() > seen {
            (last, seen) = (Instant::now(), ran.get());
        }
    }
    answer(
        "rate",
        (ran.get() - before) as f64 / (if ran.get() >= jobs { last - begun } else { begun.elapsed() }).as_secs_f64(),
    );
    answer("first_after", (begun - started).as_secs_f64());
}
