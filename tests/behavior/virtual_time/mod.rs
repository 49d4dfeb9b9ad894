//! Virtual time: order (S14), the manual clock (S51 to S53, S57), and leeway (S58).
//!
//! Ground rules. All checks are exact: instants, order, and the number of callbacks that an advance
//! reports. The tests run the shipped code; only the thread that looks at the deadlines of the
//! queues differs.

mod block_on;
mod end_of_clock;
mod endless;
mod leeway;
mod manual_clock;
mod months;
mod order;
mod runtimes;
mod threads;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::process::threads_named;
use crate::support::{Count, Gate, Journal, NEVER, PATIENCE, Random, lock, manual, ms, ns, secs, us, within};
use timerqueue::{
    CancellationTokenSource, Changed, Delay, ManualClock, MissedTicks, OnceTimer, Runtime, RuntimeClock, Timer,
    TimerBuilder,
};

fn on(clock: &ManualClock, queues: usize) -> Runtime {
    Runtime::builder().manual_clock(clock).queues(queues).start().expect("nothing to refuse")
}

/// A callback that records its name and the instant, in ms, at which it ran.
fn named<T: Copy + Send + Sync + 'static>(
    journal: &Journal<(T, u64)>,
    name: T,
) -> impl Fn(&timerqueue::Tick<'_>) + Send + Sync + 'static {
    let journal = journal.clone();
    move |tick| journal.push((name, tick.now().as_duration().as_millis() as u64))
}
