//! A live view of a runtime in a terminal: rates, lateness, threads, and the timers that are due
//! next.
//!
//! The program makes a load of its own: timeouts that are nearly all cancelled, tasks that sleep,
//! periodic timers with names, and now and then a callback that blocks.
//!
//! ```text
//! cargo run --release --example top          # until Ctrl-C
//! cargo run --release --example top -- 5     # for five seconds
//! ```
//!
//! Written to a file or a pipe, the view is a block of lines per second, without control
//! characters.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{
    Delay, OnceTimer, Runtime, Timer, TimerBuilder,
    observe::{Histogram, Metrics, TimerDump},
};

const SECOND: Duration = Duration::from_secs(1);
const BAR: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(u64::MAX), |text| text.parse())?;
    let runtime = Runtime::builder().thread_name("top").start()?;
    let ends = Arc::new(AtomicBool::new(false));
    let load = thread::spawn({
        let (runtime, ends) = (runtime.clone(), Arc::clone(&ends));
        move || make_load(&runtime, &ends)
    });
    let named = named_timers(&runtime);

    let terminal = std::io::stdout().is_terminal();
    let (mut before, mut at) = (runtime.metrics(), Instant::now());
    for _ in 0..seconds {
        thread::sleep(SECOND);
        let (now, took) = (runtime.metrics(), at.elapsed());
        at = Instant::now();
        let frame = frame(&before, &now, took, &runtime.dump(8));
        // Home, the frame with the rest of each line erased, and the rest of the screen erased:
        // nothing flickers.
        let frame = if terminal { format!("\x1b[H{}\x1b[J", frame.replace('\n', "\x1b[K\n")) } else { frame };
        let mut out = std::io::stdout().lock();
        if out.write_all(frame.as_bytes()).and_then(|()| out.flush()).is_err() {
            break; // the reader has gone
        }
        before = now;
    }
    ends.store(true, Ordering::Relaxed);
    drop(named);
    load.join().expect("the load does not panic");
    assert!(runtime.metrics().callbacks > 0 || seconds == 0, "the timers have fired");
    runtime.shutdown(5 * SECOND)?;
    Ok(())
}

/// A second of a runtime, as text.
fn frame(before: &Metrics, now: &Metrics, took: Duration, dump: &TimerDump) -> String {
    let rate = |count: fn(&Metrics) -> u64| (count(now) - count(before)) as f64 / took.as_secs_f64();
    let lateness = now.lateness.since(&before.lateness);
    let threads = now.threads;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "timers     {:>10} waiting {:>10} due and not begun", now.active, now.waiting);
    let _ = writeln!(
        text,
        "a second   {:>10.0} created {:>10.0} changed {:>10.0} disposed",
        rate(|m| m.created),
        rate(|m| m.changed),
        rate(|m| m.disposed)
    );
    let _ = writeln!(
        text,
        "           {:>10.0} callbacks {:>8.0} wakers {:>11.0} wake-ups {:>6.0} alarms set",
        rate(|m| m.callbacks),
        rate(|m| m.wakers),
        rate(|m| m.wake_ups),
        rate(|m| m.alarms_set)
    );
    let _ = writeln!(
        text,
        "threads    {:>10} busy of {} (limit {}), {} polling, {} parked; longest callback {:.0?}",
        threads.busy, threads.alive, threads.limit, threads.polling, threads.parked, now.longest_running
    );
    let _ = writeln!(text, "lateness   {lateness}");
    text.push_str(&bars(&lateness));
    let _ = writeln!(text, "next");
    let _ = writeln!(text, "{dump}");
    text
}

/// A bar for each power of four of microseconds.
fn bars(lateness: &Histogram) -> String {
    let mut counts = [0u64; 16];
    for (end, count) in lateness.buckets() {
        let us = (end.as_nanos() / 1_000).max(1) as u64;
        counts[(us.ilog2() as usize / 2).min(15)] += count;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let length = (*count as usize * BAR).div_ceil(most as usize);
        let below = Duration::from_micros(4 << (2 * power));
        let _ = writeln!(text, "  < {:>9.0?} {:<BAR$} {count}", below, "#".repeat(length));
    }
    text
}

/// Timers that a dump shows by name.
fn named_timers(runtime: &Runtime) -> Vec<Timer> {
    let heartbeat = TimerBuilder::on(runtime).name("heartbeat").period(Duration::from_millis(250)).start(|_| {});
    let report = TimerBuilder::on(runtime).name("report").period(10 * SECOND).start(|_| {});
    // Blocks a thread; the pool gets on.
    let backup = TimerBuilder::on(runtime).name("backup").period(3 * SECOND);
    let backup = backup.start_exclusive(|_| thread::sleep(Duration::from_millis(400)));
    vec![heartbeat, report, backup]
}

/// Timeouts and sleeping tasks, until told to end.
fn make_load(runtime: &Runtime, ends: &AtomicBool) {
    let mut timeouts = std::collections::VecDeque::new();
    while !ends.load(Ordering::Relaxed) {
        for _ in 0..200 {
            timeouts.push_back(Timer::on(runtime, 30 * SECOND, Duration::ZERO, |_| {}));
            if timeouts.len() > 20_000 {
                drop(timeouts.pop_front()); // answered in time
            }
        }
        for i in 0..20 {
            OnceTimer::on(runtime, Duration::from_micros(50 * i), |_| {}).detach();
        }
        smol::block_on(Delay::on(runtime, Duration::from_millis(2)));
    }
}
