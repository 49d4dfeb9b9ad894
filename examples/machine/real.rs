//! The check of the model: the same loads on the crate itself, at one core and at two.
//!
//! Ground rules. Each real run is a process of its own, confined by `taskset`. Medians of three
//! rounds stand beside the model's figures.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use timerqueue::{Runtime, TimerBuilder, Timestamp};

use crate::costs::Costs;
use crate::load::{Load, Random};
use crate::measure::{cpu, median, pin};
use crate::world::{Plan, World};

const NOT_FIRED: i64 = i64::MIN;
/// Model and crate agree within this part.
const WITHIN: f64 = 0.2;

/// A row of the check.
#[derive(Clone, Copy)]
struct Case {
    timers: u64,
    span_ms: u64,
    sleeps_ms: u64,
}

const CASES: [Case; 5] = [
    Case { timers: 10_000, span_ms: 1_000, sleeps_ms: 0 },
    Case { timers: 100_000, span_ms: 1_000, sleeps_ms: 0 },
    Case { timers: 1_000_000, span_ms: 1_000, sleeps_ms: 0 },
    Case { timers: 1_000_000, span_ms: 0, sleeps_ms: 0 },
    Case { timers: 40, span_ms: 0, sleeps_ms: 200 },
];

/// Processor time of a firing, lateness p50, p99, of the last; most threads.
type Figures = [u64; 5];

/// In the process of a real run: prints its figures.
pub(crate) fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [timers, span_ms, sleeps_ms] = args else { return Err("timers, span and sleep".into()) };
    let (timers, span_ms): (u64, u64) = (timers.parse()?, span_ms.parse()?);
    let sleep = Duration::from_millis(sleeps_ms.parse()?);
    let runtime = Runtime::builder().start()?;
    let late: &'static [AtomicI64] = (0..timers).map(|_| AtomicI64::new(NOT_FIRED)).collect::<Vec<_>>().leak();
    let first_due = runtime.now() + Duration::from_millis(200) + Duration::from_micros(2 * timers);
    let cores = thread::available_parallelism()?.get();
    // As many on each core, so on each queue.
    thread::scope(|scope| {
        for (place, late) in late.chunks(timers.div_ceil(cores as u64) as usize).enumerate() {
            let runtime = &runtime;
            scope.spawn(move || {
                pin(place);
                let mut random = Random::new(place as u64);
                for late in late {
                    let due = first_due + Duration::from_millis(span_ms).mul_f64(random.part());
                    let callback = move |tick: &timerqueue::Tick<'_>| {
                        let ns = |at: Timestamp| at.as_duration().as_nanos() as i64;
                        late.store(ns(tick.now()) - ns(tick.scheduled()), Ordering::Relaxed);
                        if !sleep.is_zero() {
                            thread::sleep(sleep);
                        }
                    };
                    TimerBuilder::on(runtime).due(due - runtime.now()).start(callback).detach();
                }
            });
        }
    });
    let (before, most) = (cpu(true), Arc::new(AtomicUsize::new(0)));
    while late.iter().any(|late| late.load(Ordering::Relaxed) == NOT_FIRED) {
        most.fetch_max(runtime.metrics().threads.alive, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
    }
    most.fetch_max(runtime.metrics().threads.alive, Ordering::Relaxed);
    let spent = cpu(true) - before;
    let mut late: Vec<i64> = late.iter().map(|late| late.load(Ordering::Relaxed)).collect();
    late.sort_unstable();
    let at = |part: f64| late[((late.len() - 1) as f64 * part) as usize];
    println!("{} {} {} {} {}", spent / timers, at(0.5), at(0.99), at(1.0), most.load(Ordering::Relaxed));
    Ok(())
}

fn real(case: Case, cores: usize) -> Result<Figures, Box<dyn std::error::Error>> {
    let list = if cores == 1 { "0" } else { "0,1" };
    let mut rounds = Vec::new();
    for _ in 0..3 {
        let mut command = Command::new("taskset");
        command.args(["-c", list]).arg(std::env::current_exe()?).arg("real");
        command.args([case.timers, case.span_ms, case.sleeps_ms].map(|number| number.to_string()));
        let output = command.output().map_err(|error| format!("taskset: {error}"))?;
        let text = String::from_utf8(output.stdout)?;
        let figures: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        rounds.push(Figures::try_from(figures).map_err(|figures| format!("a run printed {figures:?}"))?);
    }
    Ok(std::array::from_fn(|figure| median(rounds.iter().map(|round| round[figure]).collect())))
}

fn model(case: Case, cores: usize, costs: Costs) -> Figures {
    let at_once = if case.span_ms == 0 { case.timers } else { 0 };
    let rate = case.timers as f64 * 1e3 / case.span_ms.max(1) as f64;
    let load = Load {
        at_once,
        until: case.span_ms * 1_000_000,
        sleeps: if case.sleeps_ms > 0 { (1.0, case.sleeps_ms * 1_000_000) } else { (0.0, 0) },
        memory: if case.timers < 300_000 { 0 } else { 1 + usize::from(at_once == 0) },
        drain: true,
        ..Load::even(rate)
    };
    let outcome = World::new(Plan::ships(cores), load, costs).run();
    let late = |part| outcome.late.at(part);
    [outcome.cpu_each() as u64, late(0.5), late(0.99), outcome.late.max, outcome.threads as u64]
}

/// Prints the model's figures alone.
pub(crate) fn predict(costs: Costs) {
    println!("cores  load                cpu, ns; late p50, p99, last, ns; threads");
    for case in CASES {
        for cores in [1, 2] {
            println!("{cores:>5}  {} in {} ms   {:?}", case.timers, case.span_ms, model(case, cores, costs));
        }
    }
}

/// Prints the comparison, and how many figures are within the bound.
pub(crate) fn check(costs: Costs) -> Result<(), Box<dyn std::error::Error>> {
    println!("cores  load                              figure            crate      model   model / crate");
    let (mut all, mut within) = (0, 0);
    for case in CASES {
        for cores in [1, 2] {
            let (crate_has, model_has) = (real(case, cores)?, model(case, cores, costs));
            let sleeps = if case.sleeps_ms > 0 { format!(", sleep {} ms", case.sleeps_ms) } else { String::new() };
            let name = format!("{} in {} ms{sleeps}", case.timers, case.span_ms);
            for (figure, what) in ["cpu, ns", "late p50, ns", "late p99, ns", "last, ns", "threads"].iter().enumerate()
            {
                let ratio = model_has[figure] as f64 / crate_has[figure].max(1) as f64;
                let counts = matches!(figure, 0 | 1) && case.sleeps_ms == 0 || case.sleeps_ms > 0 && figure == 4;
                let ok = (ratio - 1.0).abs() <= WITHIN;
                all += u32::from(counts);
                within += u32::from(counts && ok);
                let verdict = if !counts {
                    ""
                } else if ok {
                    "  within"
                } else {
                    "  NOT within"
                };
                println!(
                    "{cores:>5}  {name:<32}  {what:<12}  {:>9}  {:>9}   {ratio:>6.2}{verdict}",
                    crate_has[figure], model_has[figure]
                );
            }
        }
    }
    println!("{within} of {all} figures within {:.0} %", WITHIN * 100.0);
    Ok(())
}
