//! The end of a runtime (S33).
//!
//! Ground rules. Real time, under a watchdog. A callback that blocks waits at a gate that the test
//! opens at its end.

mod awaited;
mod discarded;
mod from_inside;
mod handed_back;
mod last_handle;
mod thread_locals;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::process::{open_descriptors, threads_named};
use crate::support::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, block_on, eventually, lock, manual, ms, native, ns,
    secs, us, within,
};
use timerqueue::{Changed, OnceTimer, Runtime, Timer, TimerBuilder, Waited};

/// A runtime with `running` callbacks that wait at the gate, and the records of these callbacks.
fn with_blocked_callbacks(name: &str, running: usize) -> (Runtime, Gate, Count, Vec<Timer>) {
    let runtime = Runtime::builder().queues(1).workers(3).thread_name(name).start().expect("the system has threads");
    let (entered, finished, gate) = (Count::new(), Count::new(), Gate::new());
    let timers = (0..running)
        .map(|_| {
            let (entered, finished, gate) = (entered.clone(), finished.clone(), gate.clone());
            Timer::on(&runtime, ms(1), NEVER, move |_| {
                entered.bump();
                gate.wait();
                finished.bump();
            })
        })
        .collect();
    eventually("callbacks run", || entered.get() == running);
    (runtime, gate, finished, timers)
}

/// A thread has dropped all its resources when it is counted out, and leaves the system's list a
/// moment later.
fn all_gone(name: &str) {
    eventually("threads end", || threads_named(name) == 0);
}
