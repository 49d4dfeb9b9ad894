//! A model of the crate on machines with many cores: a discrete-event simulation of alarms,
//! pollers, sweeps, wake-ups and steals.
//!
//! ```text
//! cargo run --release --example machine tables                # 16 to 256 cores, the design that ships beside groups (DESIGN.md, section 10)
//! cargo run --release --example machine check                 # the model beside the crate itself, at one core and two (Linux)
//! cargo run --release --example machine predict               # the model's half of that alone
//! cargo run --release --example machine measure               # the costs of single steps on this machine (Linux)
//! cargo run --release --example machine one cores=64 rate=1e6 shared=8 pollers=4 inbox=16 token=16 work=10000 line.2=60
//! ```
//!
//! `NAME=VALUE` changes a plan, a load or a cost, in each mode. A run is deterministic: its seed
//! decides.
//!
//! | file | content |
//! |---|---|
//! | `world.rs` | time, cores, the scheduler of the system, shared lines, alarms, epoll sets |
//! | `pool.rs` | a group's pool: wake-ups, the stall check, help between groups |
//! | `worker.rs` | the life of a thread: polls, sweeps, runs batches, steals |
//! | `load.rs`, `costs.rs` | what comes due, and what each step costs |
//! | `real.rs`, `measure.rs` | the crate under the same loads; the costs of steps |
//!
//! The stall detector, the pace and the coalescing delay are the crate's own files. To try a change
//! of the protocol, change the function of the same name here.

// The files of the crate that decide. Their ground rules: pure, no clocks, no locks.
#[allow(dead_code)]
#[path = "../../src/engine/coalesce.rs"]
mod coalesce;
#[allow(dead_code)]
#[path = "../../src/pool/pace.rs"]
mod pace;
#[allow(dead_code)]
#[path = "../../src/pool/stall.rs"]
mod stall;

mod costs;
mod load;
#[cfg(target_os = "linux")]
mod measure;
mod pool;
#[cfg(target_os = "linux")]
mod real;
mod tables;
mod worker;
mod world;

/// For the files of the crate.
mod time {
    pub(crate) const NEVER: u64 = u64::MAX;
}

use std::time::Duration;

use costs::Costs;
use load::{Load, Spread};
use world::{Outcome, Plan, World};

// Constants of `src/pool/mod.rs`, which the files above use.
const STALL_CHECK: Duration = Duration::from_micros(500);
const WORTH_WAKING_NS: u64 = 100_000;
const FAIR_NS: u64 = 200_000;
const FAIR_JOBS: u64 = 61;

/// What the command line asks for.
struct Asked {
    plan: Plan,
    load: Load,
    costs: Costs,
}

impl Asked {
    fn new(settings: &[String]) -> Result<Self, String> {
        let mut asked = Self { plan: Plan::ships(64), load: Load::even(1e6), costs: Costs::HERE };
        let (mut group, mut sleeps) = (None, (0.0, 10e6));
        for setting in settings {
            let wrong = || format!("{setting}: not a plan, load or cost with a number");
            let (name, value) = setting.split_once('=').ok_or_else(wrong)?;
            let value: f64 = value.parse().map_err(|_| wrong())?;
            let count = value as usize;
            match name {
                "cores" => asked.plan = Plan { cores: count.clamp(1, 256), ..Plan::ships(count.clamp(1, 256)) },
                "rate" => asked.load = Load { seed: asked.load.seed, ..Load::even(value) },
                "group" => group = Some(count.max(1)),
                "pollers" => asked.plan.pollers = count.max(1),
                "inbox" => asked.plan.inbox = count,
                "token" => asked.plan.token = count,
                "tells" => asked.plan.tells = count > 0,
                "shared" => asked.plan.shared = count.max(1),
                "cache" => asked.plan.cache = count.max(1),
                "work" => asked.load.work = value as u64,
                "sleep_share" => sleeps.0 = value,
                "sleep" => sleeps.1 = value,
                "one_queue" => asked.load.spread = Spread::OneQueue,
                "uneven" => asked.load.spread = Spread::Uneven,
                "submitters" => asked.load.submitters = (count, 10_000),
                "seed" => asked.load.seed = value as u64,
                cost if asked.costs.set(cost, value as u64) => {}
                _ => return Err(wrong()),
            }
        }
        if let Some(group) = group {
            let theirs = Plan::groups(asked.plan.cores, group);
            asked.plan = Plan { cache: asked.plan.cache, ..theirs };
        }
        asked.load.sleeps = (sleeps.0, sleeps.1 as u64);
        Ok(asked)
    }

    fn run(&self) -> Outcome {
        World::new(self.plan, self.load, self.costs).run()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mode, settings) = args.split_first().map_or(("tables", &args[..]), |(mode, rest)| (mode.as_str(), rest));
    match mode {
        "tables" => tables::all(Asked::new(settings)?.costs),
        "one" => {
            let outcome = Asked::new(settings)?.run();
            println!("{}", tables::HEAD);
            println!("{}", tables::row("as asked", &outcome));
            println!(
                "{} sweeps and {} wake-ups a second",
                per_second(outcome.sweeps, &outcome),
                per_second(outcome.wakes, &outcome)
            );
        }
        #[cfg(target_os = "linux")]
        "measure" => measure::measure(),
        #[cfg(target_os = "linux")]
        "predict" => real::predict(Asked::new(settings)?.costs),
        #[cfg(target_os = "linux")]
        "check" => real::check(Asked::new(settings)?.costs)?,
        #[cfg(target_os = "linux")]
        "real" => real::run(settings)?,
        _ => return Err("modes: tables, one, and on Linux check, predict, measure".into()),
    }
    Ok(())
}

fn per_second(count: u64, outcome: &Outcome) -> u64 {
    (count as f64 * 1e9 / outcome.counted_ns as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(plan: Plan, load: Load) -> Outcome {
        World::new(plan, load, Costs::HERE).run()
    }

    fn short(rate: f64) -> Load {
        Load { until: 30_000_000, ..Load::even(rate) }
    }

    #[test]
    fn a_run_depends_on_its_seed_alone() {
        let figures = |seed| {
            let outcome = run(Plan::ships(16), Load { seed, ..short(300_000.0) });
            (outcome.fired, outcome.cpu_ns, outcome.late.at(0.5), outcome.wakes)
        };
        assert_eq!(figures(1), figures(1));
        assert_ne!(figures(1), figures(2));
    }

    #[test]
    fn every_timer_fires_once_with_one_group_and_with_several_and_none_is_early() {
        for plan in [
            Plan::ships(2),
            Plan::ships(16),
            Plan::groups(16, 4),
            Plan { inbox: 1, token: 2, ..Plan::groups(16, 4) },
            Plan::before(16),
        ] {
            let load = Load { at_once: 4_000, drain: true, ..short(1.0) };
            let outcome = run(plan, load);
            assert_eq!((outcome.fired, outcome.late.all), (4_000, 4_000), "{plan:?}");
            assert!(outcome.late.max < 1_000_000_000, "{plan:?}: an early timer would be late by centuries");
        }
    }

    /// S31: in the model as in the crate. Without the stall check the timers behind the sleeping
    /// callbacks would wait for their end.
    #[test]
    fn callbacks_that_sleep_bring_in_threads_and_delay_no_other_timer_for_long() {
        for plan in [Plan::ships(4), Plan::groups(8, 4)] {
            let sleeps = (1.0, 200_000_000);
            let outcome = run(plan, Load { at_once: 40, sleeps, drain: true, ..short(1.0) });
            assert!(outcome.threads > 30, "{plan:?}: {}", outcome.threads);
            assert!(outcome.late.max < 50_000_000, "{plan:?}: {}", outcome.late.max);
        }
    }

    /// One queue has more work than the cores of its group can do.
    #[test]
    fn a_group_that_is_busy_is_helped_by_others() {
        let load = Load { spread: Spread::OneQueue, work: 20_000, ..short(300_000.0) };
        let helped = run(Plan::groups(16, 4), load);
        let alone = run(Plan { help: false, ..Plan::groups(16, 4) }, load);
        assert!(helped.per_second() > 1.2 * alone.per_second(), "{} {}", helped.per_second(), alone.per_second());
    }

    /// The rest of a sweep goes back to the group of its queue. Else that group runs out of jobs
    /// beside a full queue.
    #[test]
    fn a_group_that_is_helped_keeps_its_own_threads_at_work() {
        let load = Load { spread: Spread::OneQueue, work: 10_000, until: 60_000_000, ..Load::even(2.56e6) };
        let outcome = run(Plan::groups(128, 16), load);
        assert!(outcome.per_second() > 0.9 * load.rate, "{}", outcome.per_second());
    }

    /// Shards that share an alarm cost fewer wake-ups.
    #[test]
    fn shards_that_share_an_alarm_cost_fewer_wake_ups() {
        let load = Load { until: 50_000_000, ..Load::even(1e6) };
        let shared = run(Plan::ships(16), load);
        let apart = run(Plan { shared: 1, ..Plan::ships(16) }, load);
        assert!(shared.fired.abs_diff(apart.fired) < shared.fired / 100);
        assert!(2 * shared.wakes < apart.wakes, "{} {}", shared.wakes, apart.wakes);
        assert!(shared.late.at(0.99) < 500_000, "{}", shared.late.at(0.99));
    }

    #[test]
    fn the_command_line_names_plans_loads_and_costs() {
        let asked = |text: &str| Asked::new(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let some = asked("cores=32 group=8 line.2=60 rate=5e5 work=100").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((some.plan.cores, some.plan.group, some.plan.help), (32, 8, true));
        assert_eq!((some.costs.line[2], some.load.work, some.load.rate as u64), (60, 100, 500_000));
        assert!(asked("cores").is_err() && asked("kernel=3").is_err() && asked("line.7=1").is_err());
    }
}
