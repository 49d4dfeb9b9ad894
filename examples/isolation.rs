//! Callbacks that block delay no other timer: 1,000 periodic timers of 10 ms tick while 64
//! callbacks block for 2 s each.
//!
//! ```text
//! cargo run --release --example isolation [blockers] [timers]
//! ```
//!
//! Prints the gaps between consecutive ticks of each timer: before the blockers start, while they
//! block, and after.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use timerqueue::{OnceTimer, Runtime, TimerBuilder, Timestamp};

const PERIOD: Duration = Duration::from_millis(10);
const PHASE: Duration = Duration::from_secs(2);

/// Instants at which a timer has ticked.
type Ticks = Arc<Mutex<Vec<Timestamp>>>;

/// The sorted gaps between ticks that end within the span.
fn gaps(ticks: &[Ticks], from: Timestamp, to: Timestamp) -> Vec<Duration> {
    let mut gaps = Vec::new();
    for ticks in ticks {
        let ticks = ticks.lock().expect("callbacks do not panic");
        gaps.extend(ticks.windows(2).filter(|pair| pair[1] > from && pair[1] <= to).map(|pair| pair[1] - pair[0]));
    }
    gaps.sort_unstable();
    gaps
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let blockers: usize = args.next().map_or(Ok(64), |arg| arg.parse())?;
    let timers: u32 = args.next().map_or(Ok(1_000), |arg| arg.parse())?;

    let runtime = Runtime::builder().start()?;
    let ticks: Vec<Ticks> = (0..timers).map(|_| Arc::new(Mutex::new(Vec::with_capacity(1_000)))).collect();
    let periodic: Vec<_> = ticks
        .iter()
        .zip(0..)
        .map(|(ticks, i)| {
            let ticks = Arc::clone(ticks);
            // Spread over the period.
            TimerBuilder::on(&runtime).due(PERIOD + PERIOD * i / timers).period(PERIOD).start_exclusive(move |tick| {
                ticks.lock().expect("callbacks do not panic").push(tick.now());
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(200)); // let it get going

    let began = runtime.now();
    let threads_before = runtime.metrics().threads.alive;
    thread::sleep(PHASE);

    let blocking = runtime.now();
    let (done, blocked) = channel();
    for _ in 0..blockers {
        let done = done.clone();
        let callback = move |_: &timerqueue::Tick<'_>| {
            thread::sleep(PHASE);
            // The main thread waits for all of them.
            let _ = done.send(());
        };
        OnceTimer::on(&runtime, Duration::from_millis(1), callback).detach();
    }
    drop(done);
    thread::sleep(PHASE / 2);
    let threads_while = runtime.metrics().threads.alive;
    let finished = blocked.iter().count();
    let over = runtime.now();
    thread::sleep(PHASE);
    let end = runtime.now();
    drop(periodic);

    println!("{timers} timers of {PERIOD:?}; {finished} callbacks blocked for {PHASE:?} each\n");
    println!("{:<16}{:>9}{:>14}{:>12}{:>12}{:>9}", "gap in ms", "ticks", "median", "p99", "worst", "threads");
    let phases = [
        ("before", began, blocking, threads_before),
        ("while blocked", blocking, over, threads_while),
        ("after", over, end, runtime.metrics().threads.alive),
    ];
    for (name, from, to, threads) in phases {
        let gaps = gaps(&ticks, from, to);
        let ms = |q: f64| gaps.get((gaps.len().saturating_sub(1) as f64 * q) as usize).map_or(0.0, ms);
        println!("{name:<16}{:>9}{:>14.3}{:>12.3}{:>12.3}{threads:>9}", gaps.len(), ms(0.5), ms(0.99), ms(1.0));
    }
    println!("\nThe blockers were over after {:.3} s.", (over - blocking).as_secs_f64());
    Ok(())
}

fn ms(gap: &Duration) -> f64 {
    gap.as_secs_f64() * 1e3
}
