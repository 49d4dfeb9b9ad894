//! A soak: every feature at random, on real time, for hours, with an outside ledger that must
//! agree.
//!
//! ```text
//! cargo run --release --features affinity --example soak [seconds] [seed]     # 60 s; prints a line a minute and a verdict
//! ```
//!
//! `.ci/soak` builds it with debug assertions and with walks through all queues, once a second. It
//! takes about a third of one core. What it checks: no callback before its instant; every tick
//! explained by exactly one schedule, and every schedule by its ticks; none after `change`,
//! `dispose` or a wait said so; everything dropped once; delays, limits, intervals and tokens by
//! the clock; runtimes that end without leaving threads or descriptors; memory that stays; all of
//! it beside hostile neighbours. How late things are is printed and not judged, but what does not
//! come within half a minute counts as lost.

mod guests;
mod ledger;
mod neighbours;
mod random;
mod tasks;
mod timers;
mod tokens;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ledger::{FIGURES, fault, must, nanos, patience};
use random::Random;
use world::{Intended, MAX_THREADS, World};

const ACTORS: u64 = 3;
/// The share of one core to take.
const LOAD: f64 = 0.35;

/// Processor time of this process.
#[allow(unsafe_code)] // a system call
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "processor clocks can be read");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Resident memory of this process in kB.
fn memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Walks through all queues of the long-lived runtime, where the build has it.
fn check(world: &World) {
    #[cfg(timerqueue_check)]
    world.main.check();
    #[cfg(not(timerqueue_check))]
    let _ = world;
}

fn act(world: &Arc<World>, mut random: Random) {
    while !world.is_ending() {
        match random.below(10) {
            0 => tokens::step(world, &mut random),
            _ => timers::step(world, &mut random),
        }
        FIGURES.steps.bump();
        world.pause(&mut random);
    }
}

/// Reviews, governs and reports until the time is over. Returns memory after the warm-up.
fn watch(world: &World, seconds: u64) -> u64 {
    let begun = Instant::now();
    let end = Duration::from_secs(seconds);
    let (mut warm_kb, mut reported, mut cpu_before, mut cpu_reported) = (0, 0, cpu_time(), cpu_time());
    let mut most_threads = 0;
    while begun.elapsed() < end {
        let looked = Instant::now();
        thread::sleep(Duration::from_secs(1));
        let cpu = cpu_time();
        world.govern((cpu - cpu_before).as_secs_f64() / looked.elapsed().as_secs_f64(), LOAD);
        cpu_before = cpu;
        world.retired.review();
        world.waits.review(nanos(world.main.now()));
        check(world);
        let threads = guests::threads_named("");
        most_threads = most_threads.max(threads);
        // Ours, the main runtime's, a guest's, the neighbours'.
        must(threads <= 10 + MAX_THREADS + 30 + 10, || format!("{threads} threads"));
        let minutes = begun.elapsed().as_secs() / 60;
        if warm_kb == 0 && begun.elapsed() > (end / 4).min(Duration::from_secs(300)) {
            warm_kb = memory_kb();
        }
        if minutes > reported {
            reported = minutes;
            let share = (cpu - cpu_reported).as_secs_f64() / 60.0 * 100.0;
            cpu_reported = cpu;
            report(world, &format!("{minutes:>4} min, {share:.0} % of a core, {most_threads} threads"));
            most_threads = 0;
        }
    }
    warm_kb
}

fn report(world: &World, when: &str) {
    let f = &FIGURES;
    println!(
        "{when}, {} MB: {} steps, {} timers, {} changes, {} ticks, {} pages closed ({} unclear, {} open), {} futures, \
         {} token scenes, {} runtimes, {} scenes of neighbours, {} panics, latest {:.1} ms, {} faults",
        memory_kb() / 1024,
        f.steps.get(),
        f.made.get(),
        f.changed.get(),
        f.ticks.get(),
        f.verified.get(),
        f.unclear.get(),
        world.retired.len(),
        f.futures.get(),
        f.tokens.get(),
        f.guests.get() - f.neighbours.get(),
        f.neighbours.get(),
        f.panics.get(),
        f.latest_ns.take() as f64 / 1e6,
        f.faults.get(),
    );
}

/// Ends everything and looks at what is left.
fn end(world: &World, seed: u64) {
    timers::end_all(world, &mut Random(seed));
    let begun = Instant::now();
    while world.retired.len() > 0 && begun.elapsed() < 2 * patience() {
        world.retired.review();
        thread::sleep(Duration::from_millis(10));
    }
    must(world.retired.len() == 0, || format!("{} timers have not ended", world.retired.len()));
    must(world.main.metrics().active == 0, || format!("{} timers are left", world.main.metrics().active));
    guests::shut_down(&world.main);
    let (caught, intended) = (world.main.metrics().panics, world.panics.load(Ordering::SeqCst));
    must(caught == intended, || format!("{caught} panics caught, {intended} intended"));
    let (made, closed) = (FIGURES.made.get(), FIGURES.verified.get() + FIGURES.unclear.get());
    must(made == closed, || format!("{made} timers made, {closed} closed"));
    let begun = Instant::now();
    while guests::threads_named("soak-") > 0 && begun.elapsed() < patience() {
        thread::sleep(Duration::from_millis(1)); // the last instructions of a thread
    }
    must(guests::threads_named("soak-") == 0, || "threads are left".into());
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(code) = std::env::args().nth(1).and_then(|scene| neighbours::child(&scene)) {
        return Ok(code);
    }
    let mut args = std::env::args().skip(1);
    let seconds: u64 = args.next().map_or(Ok(60), |arg| arg.parse())?;
    let seed: u64 = args.next().map_or(Ok(1), |arg| arg.parse())?;
    println!("{seconds} s, seed {seed}, assertions {}", cfg!(debug_assertions));
    // Panics on purpose are silent; any other is a fault.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Intended>() {
            print(info);
            fault("a panic that nobody intended");
        }
    }));

    let world = Arc::new(World::new()?);
    thread::Builder::new().name("pulse".into()).spawn(ledger::pulse)?;
    let mut threads = Vec::new();
    for i in 0..ACTORS {
        let (world, random) = (Arc::clone(&world), Random(seed.wrapping_mul(1_000).wrapping_add(i)));
        threads.push(thread::Builder::new().name(format!("actor-{i}")).spawn(move || act(&world, random))?);
    }
    let guest_world = Arc::clone(&world);
    threads
        .push(thread::Builder::new().name("host".into()).spawn(move || guests::receive(&guest_world, Random(!seed)))?);
    let task_world = Arc::clone(&world);
    threads.push(thread::Builder::new().name("tasks".into()).spawn(move || tasks::run_tasks(&task_world, seed))?);

    let warm_kb = watch(&world, seconds);
    world.end();
    for thread in threads {
        must(thread.join().is_ok(), || "a thread of the soak has panicked".into());
    }
    end(&world, seed);
    let memory_kb = memory_kb();
    must(warm_kb == 0 || memory_kb < 2 * warm_kb + 32 * 1024, || {
        format!("memory grew from {warm_kb} to {memory_kb} kB")
    });
    report(&world, "at the end");
    let faults = FIGURES.faults.get();
    println!("{}", if faults == 0 { "passed" } else { "FAILED" });
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
