//! Timers that are neither changed nor disposed: S1 to S13.
//!
//! Ground rules. Each promise has at least one test, named after the promise. Tests run on virtual
//! time unless the promise concerns threads. On real time "never early" is asserted of every
//! sample, and "near" only of the best sample.

mod callbacks;
mod due_and_period;
mod never_early;
mod overlap;
mod panics;
mod schedule;
mod snapshot;

use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::support::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, eventually, lock, manual, ms, native, ns, secs, us,
    within,
};
use timerqueue::{Changed, ManualClock, MissedTicks, OnceTimer, Runtime, Tick, Timer, TimerBuilder, WallTimer};

/// Times of the clock when a timer is made: on both sides of the edges of windows (333 ms) and of
/// groups of 1,024.
const ORIGINS_NS: [u64; 8] =
    [0, 1, 332_999_999, 333_000_000, 333_000_001, 1_000_000_000, 1024 * 333_000_000 - 1, 1024 * 333_000_000];

fn at_origin(origin_ns: u64) -> (ManualClock, Runtime) {
    let (clock, runtime) = manual();
    clock.advance(ns(origin_ns));
    (clock, runtime)
}

/// A journal of the instants at which each callback ran, in nanoseconds since the clock was made.
/// Each callback checks its instant.
fn journal_of(runtime: &Runtime, due: Duration, period: Duration) -> (Timer, Journal<u64>) {
    let journal = Journal::new();
    let timer = Timer::on(runtime, due, period, {
        let journal = journal.clone();
        move |tick: &Tick<'_>| {
            let on_time = tick.lateness().is_zero() && tick.missed() == 0 && tick.scheduled() == tick.now();
            // An impossible instant shows the fault, since a panic does not leave a callback.
            journal.push(if on_time { nanos(tick.now().as_duration()) } else { u64::MAX });
        }
    });
    (timer, journal)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("fits the clock")
}
