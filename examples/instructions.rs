//! One operation of the crate, many times over, so that a counter of instructions can be put under
//! it: `.ci/instructions` runs it under callgrind and prints what each operation takes.
//!
//! ```text
//! cargo run --release --example instructions create 100000
//! ```

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use timerqueue::{
    CancellationTokenSource, Delay, DelayQueue, ManualClock, OnceTimer, Runtime, Timer, TimerBuilder, WallTimer,
};

const DUE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(1);

/// Runs an operation this many times.
type Operation = fn(u32);

/// The operations by name. A timer that fires does so on a manual clock, alone in its queue.
const OPERATIONS: &[(&str, Operation)] = &[
    ("create", create),
    ("change", change),
    ("wall", wall),
    ("delay", delay),
    ("token", token),
    ("register", register),
    ("source", source),
    ("after", after),
    ("fire", fire),
    ("fire_exclusive", fire_exclusive),
    ("fire_once", fire_once),
    ("insert", insert),
    ("insert_wall", insert_wall),
];

/// Creates and disposes a timer.
fn create(count: u32) {
    let runtime = Runtime::global();
    for _ in 0..count {
        drop(black_box(Timer::on(runtime, DUE, Duration::ZERO, |_| unreachable!("disposed long before"))));
    }
}

/// Changes a timer to the same length from now.
fn change(count: u32) {
    let timer = Timer::on(Runtime::global(), DUE, Duration::ZERO, |_| unreachable!("changed long before"));
    for _ in 0..count {
        black_box(timer.change(DUE, Duration::ZERO));
    }
}

/// Creates and disposes a wall timer.
fn wall(count: u32) {
    let (runtime, at) = (Runtime::global(), SystemTime::now() + DUE);
    for _ in 0..count {
        drop(black_box(WallTimer::on(runtime, at, |_| unreachable!("disposed long before"))));
    }
}

fn poll_pending<F: Future>(future: F) {
    let mut future = std::pin::pin!(future);
    let poll = Pin::as_mut(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(black_box(poll), Poll::Pending));
}

/// Makes, polls and drops a delay.
fn delay(count: u32) {
    let runtime = Runtime::global();
    (0..count).for_each(|_| poll_pending(Delay::on(runtime, DUE)));
}

/// Polls and drops a wait for a token.
fn token(count: u32) {
    let source = CancellationTokenSource::new();
    let token = source.token();
    (0..count).for_each(|_| poll_pending(token.cancelled()));
}

/// Registers a callback with a token, and drops the registration.
fn register(count: u32) {
    let source = CancellationTokenSource::new();
    let token = source.token();
    (0..count).for_each(|_| drop(black_box(token.register(|| unreachable!("unregistered")))));
}

/// Makes and drops a source.
fn source(count: u32) {
    (0..count).for_each(|_| drop(black_box(CancellationTokenSource::new())));
}

/// Makes a source with a timed cancel, and drops it long before.
fn after(count: u32) {
    let runtime = Runtime::global();
    (0..count).for_each(|_| {
        let source = CancellationTokenSource::on(runtime);
        source.cancel_after(DUE);
        drop(black_box(source));
    });
}

fn manual() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    (clock, runtime)
}

/// A tick of a periodic timer whose callbacks may overlap.
fn fire(count: u32) {
    let (clock, runtime) = manual();
    let _timer = Timer::on(&runtime, STEP, STEP, |tick| {
        black_box(tick.missed());
    });
    for _ in 0..count {
        clock.advance(STEP);
    }
}

/// A tick of a periodic exclusive timer.
fn fire_exclusive(count: u32) {
    let (clock, runtime) = manual();
    let mut ticks = 0_u32;
    let _timer = TimerBuilder::on(&runtime).period(STEP).start_exclusive(move |_| ticks = black_box(ticks + 1));
    for _ in 0..count {
        clock.advance(STEP);
    }
}

/// Creates a one-shot, fires it, and drops its handle.
fn fire_once(count: u32) {
    let (clock, runtime) = manual();
    for _ in 0..count {
        let timer = OnceTimer::on(&runtime, STEP, |tick| {
            black_box(tick.lateness());
        });
        clock.advance(STEP);
        drop(timer);
    }
}

/// Inserts an entry into a delay queue, and removes it.
fn insert(count: u32) {
    let (_clock, runtime) = manual();
    let queue = DelayQueue::<u32, u32>::on(&runtime);
    for key in 0..count {
        queue.insert(key, key, DUE).expect("no limit");
        black_box(queue.remove(&key));
    }
}

/// As `insert`, of an entry that is due by the wall clock.
fn insert_wall(count: u32) {
    let (clock, runtime) = manual();
    let (queue, at) = (DelayQueue::<u32, u32>::on(&runtime), clock.wall() + DUE);
    for key in 0..count {
        queue.insert(key, key, at).expect("no limit");
        black_box(queue.remove(&key));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, count] = &arguments[..] else {
        let names: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        return println!("{}", names.join(" "));
    };
    let operation =
        OPERATIONS.iter().find(|(of, _)| of == name).expect("an operation: without arguments they are listed");
    operation.1(count.parse().expect("a count"));
}
