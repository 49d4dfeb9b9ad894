//! Runtimes that come and go: started in many shapes, filled, used for a moment, shut down or
//! dropped.
//!
//! Ground rules. One guest at a time on this thread, so that its threads and descriptors can be
//! counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{CancellationTokenSource, Delay, ManualClock, Runtime, Timer, error::RuntimeError};

use crate::ledger::{FIGURES, fault, must, patience};
use crate::neighbours;
use crate::random::Random;
use crate::timers::{self, timed};
use crate::world::World;

const NAME: &str = "soak-guest";

/// Threads of this process whose name begins with `name`.
pub(crate) fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").map(|tasks| {
        tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|comm| comm.starts_with(name))
            .count()
    });
    tasks.unwrap_or(0)
}

pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Guests until the end.
pub(crate) fn receive(world: &Arc<World>, mut random: Random) {
    let neighbours = neighbours::runtime();
    while !world.is_ending() {
        match random.below(8) {
            0..2 => virtual_time(world, &mut random),
            2..5 => neighbours::scene(world, &neighbours, &mut random),
            _ => visit(world, &mut random),
        }
        FIGURES.guests.bump();
        thread::sleep(Duration::from_millis(random.below(1_000)));
    }
    shut_down(&neighbours);
}

/// Shuts down and waits; says what the threads are at when they do not end.
pub(crate) fn shut_down(runtime: &Runtime) {
    let begun = Instant::now();
    while let Err(late) = runtime.shutdown(Duration::from_secs(1)) {
        if begun.elapsed() > patience() {
            let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
            for task in tasks.map(|task| task.path()) {
                let read = |name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
                let (name, state) = (read("comm"), read("stat"));
                println!("{} {} {} {}", name.trim(), read("wchan").trim(), read("syscall").trim(), state.trim());
            }
            return fault(late);
        }
    }
}

fn visit(world: &Arc<World>, random: &mut Random) {
    let descriptors = open_descriptors();
    let (panics, workers) = (Arc::new(AtomicU64::new(0)), 2 + random.below(3) as usize);
    let guest = Runtime::builder()
        .queues(1 + random.below(5) as usize)
        .workers(workers)
        .max_threads(workers + 20)
        .keep_alive(Duration::from_millis(random.below(50)))
        .pin_workers(random.below(4) == 0)
        .thread_name(NAME)
        .start();
    let guest = match guest {
        Ok(guest) => guest,
        Err(error) => return fault(format_args!("a runtime could not be started: {error}")),
    };
    let timers: Vec<_> = (0..random.below(300)).map(|_| timers::make_on(world, &guest, &panics, random)).collect();
    let mut delays: Vec<_> = (0..random.below(20)).map(|_| Delay::on(&guest, Duration::from_secs(3_600))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for delay in &mut delays {
        must(Pin::new(delay).poll(&mut context).is_pending(), || "an hour has passed".into());
    }
    let source = CancellationTokenSource::on(&guest);
    must(source.try_cancel_after(Duration::from_secs(3_600)).is_ok(), || "cancel_after failed".into());
    thread::sleep(Duration::from_millis(random.below(400)));

    let by_drop = random.below(4) == 0;
    let (call, ()) = timed(&world.main, || {
        if !by_drop {
            shut_down(&guest);
        }
    });
    if !by_drop {
        must(guest.metrics().threads.alive == 0 && guest.metrics().active == 0, || {
            format!("left after a shutdown: {guest:?}")
        });
        let caught = guest.metrics().panics;
        let intended = panics.load(Ordering::SeqCst);
        must(caught == intended, || format!("{caught} panics caught, {intended} intended"));
    }
    let owner_alive = guest.clone();
    drop(guest);
    let (drop_call, ()) = timed(&world.main, || drop(owner_alive));
    let call = if by_drop { drop_call } else { call };
    for delay in &mut delays {
        must(Pin::new(&mut *delay).poll(&mut context).is_pending(), || "a delay of an ended runtime is ready".into());
        let tried = delay.poll_try_wait(&mut context);
        must(matches!(tried, Poll::Ready(Err(RuntimeError::Ended))), || {
            format!("a delay without a runtime: {tried:?}")
        });
    }
    must(!source.is_cancelled(), || "cancelled by the end of its runtime".into());
    drop((delays, source));
    for entry in timers {
        timers::after_shutdown(world, entry, call, random);
    }
    let begun = Instant::now();
    while threads_named(NAME) > 0 || open_descriptors() > descriptors {
        if begun.elapsed() > patience() {
            return fault(format_args!(
                "a runtime has ended and left {} threads, {} descriptors",
                threads_named(NAME),
                open_descriptors() as i64 - descriptors as i64,
            ));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A runtime on a clock of its own beside the others (S52).
fn virtual_time(world: &World, random: &mut Random) {
    let clock = ManualClock::new();
    let runtime = match Runtime::builder().manual_clock(&clock).queues(1 + random.below(4) as usize).start() {
        Ok(runtime) => runtime,
        Err(error) => return fault(format_args!("a virtual runtime could not be started: {error}")),
    };
    let real = world.main.now();
    let mut timers = Vec::new();
    let mut want = 0;
    let span = Duration::from_secs(1 + random.below(100_000));
    for _ in 0..random.below(200) {
        let period = Duration::from_nanos(1 + random.below(span.as_nanos() as u64));
        let period = period.max(span / 50);
        want += (span.as_nanos() / period.as_nanos()) as u64;
        timers.push(Timer::on(&runtime, period, period, |tick| {
            must(tick.lateness().is_zero(), || "late on virtual time".into());
        }));
    }
    let ran = clock.advance(span);
    must(ran == want, || format!("{ran} ticks on virtual time, not {want}"));
    must(runtime.metrics().active == timers.len(), || "timers are missing on virtual time".into());
    must(world.main.now() >= real, || "the clock ran backwards".into());
}
