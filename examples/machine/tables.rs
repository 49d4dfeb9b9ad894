//! The tables of the model: each load, at 16 to 256 cores, on the design that ships and on others.

use crate::costs::Costs;
use crate::load::{Load, Spread};
use crate::world::{Outcome, Plan, World};

pub(crate) const HEAD: &str = "| | fired a second | cores at work | CPU each, ns | late p50, us | p99, us | threads |\n|---|--:|--:|--:|--:|--:|--:|";

pub(crate) fn row(name: &str, outcome: &Outcome) -> String {
    let us = |part| outcome.late.at(part) as f64 / 1e3;
    format!(
        "| {name} | {} | {:.1} | {:.0} | {:.0} | {:.0} | {} |",
        grouped(outcome.per_second()),
        outcome.cpu_ns as f64 / outcome.counted_ns as f64,
        outcome.cpu_each(),
        us(0.5),
        us(0.99),
        outcome.threads
    )
}

/// Three digits that count, and the thousands apart.
fn grouped(number: f64) -> String {
    let digits = 10f64.powf((number.max(1.0).log10().floor() - 2.0).max(0.0));
    let text = format!("{:.0}", (number / digits).round() * digits);
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for (place, digit) in bytes.iter().enumerate() {
        if place > 0 && (bytes.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(*digit);
    }
    out
}

/// Processor time of a firing in ns; lateness p50 / p99 in us. Also how many were fired a second
/// where that is not what came due, and how many threads there were at the end where some were
/// added.
fn cell(plan: Plan, load: Load, costs: Costs) -> String {
    let outcome = World::new(plan, load, costs).run();
    let us = |part| grouped((outcome.late.at(part) as f64 / 1e3).round());
    let mut cell = format!("{} ns, {} / {}", grouped(outcome.cpu_each()), us(0.5), us(0.99));
    if load.submitters.0 > 0 || outcome.per_second() < 0.97 * load.rate {
        cell += &format!("; fires {}", grouped(outcome.per_second()));
    }
    let started = plan.cores + plan.cores.div_ceil(plan.group);
    if outcome.threads > started {
        cell += &format!("; {} threads", outcome.threads);
    }
    cell
}

/// A table with a column for each plan, and a row for each load.
struct Table {
    costs: Costs,
    plans: Vec<(String, Plan)>,
}

impl Table {
    fn new(title: &str, costs: Costs, plans: Vec<(String, Plan)>) -> Self {
        let names: Vec<&str> = plans.iter().map(|(name, _)| name.as_str()).collect();
        println!("\n### {title}\n\n| | {} |\n|---|{}", names.join(" | "), "--:|".repeat(names.len()));
        Self { costs, plans }
    }

    /// The design that ships beside the one before, and beside groups of two sizes.
    fn designs(title: &str, cores: usize, costs: Costs) -> Self {
        let groups = [32, 16, 8].into_iter().filter(|&group| group < cores).take(2);
        let groups = groups.map(|group| (format!("groups of {group}"), Plan::groups(cores, group)));
        let plans = [(String::from("before"), Plan::before(cores)), (String::from("ships"), Plan::ships(cores))];
        Self::new(title, costs, plans.into_iter().chain(groups).collect())
    }

    fn row(&self, name: &str, load: Load) {
        let cells: Vec<String> = self.plans.iter().map(|(_, plan)| cell(*plan, load, self.costs)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// The loads of the first tables, on so many cores.
fn loads(cores: usize, costs: Costs) {
    let table = Table::designs(&format!("{cores} cores"), cores, costs);
    for rate in [1e4, 1e5, 1e6, 1e7] {
        table.row(&format!("{} a second", grouped(rate)), Load::even(rate));
    }
    table.row("all that it can", Load { until: 12_000_000, ..Load::even(cores as f64 * 3e6) });
    let of = |share: f64| Load { work: 10_000, ..Load::even(cores as f64 * 1e5 * share) };
    table.row("10 us each, half of the machine", of(0.5));
    table.row("10 us each, 4/5 of the machine", of(0.8));
    table.row(
        "10 us each, 2/5 of the machine, 9/10 of it on 1/8 of the queues",
        Load { spread: Spread::Uneven, ..of(0.4) },
    );
    table.row("10 us each, 1/5 of the machine, one queue", Load { spread: Spread::OneQueue, ..of(0.2) });
    table.row("1,000,000 a second, one queue", Load { spread: Spread::OneQueue, ..Load::even(1e6) });
    let sleeps = Load { sleeps: (0.02, 10_000_000), ..Load::even(1e6) };
    table.row("1,000,000 a second, one in 50 sleeps 10 ms", sleeps);
}

/// Variants of the design that ships, and the loads that part them.
fn variants(cores: usize, costs: Costs) {
    let ships = Plan::ships(cores);
    let of = |share: f64| Load { work: 10_000, ..Load::even(cores as f64 * 1e5 * share) };
    let uneven = Load { spread: Spread::Uneven, ..of(0.4) };
    let pollers = [3, 5, 9, 17].map(|pollers| (format!("{pollers} pollers"), Plan { pollers, ..ships }));
    let table = Table::new(&format!("{cores} cores, by the number of pollers"), costs, pollers.into());
    table.row("1,000,000 a second", Load::even(1e6));
    table.row("10,000,000 a second", Load::even(1e7));
    table.row("10 us each, half of the machine", of(0.5));

    let mut tokens = vec![(String::from("one search token"), ships)];
    tokens.extend([32, 16].map(|token| (format!("a token for {token} cores"), Plan { token, ..ships })));
    let table = Table::new(&format!("{cores} cores, by the search tokens"), costs, tokens);
    table.row("1,000,000 a second", Load::even(1e6));
    table.row("10 us each, half of the machine", of(0.5));
    table.row("10 us each, 4/5 of the machine", of(0.8));
    table.row("10 us each, 2/5 of the machine, uneven", uneven);

    let looks = [("into each deque", Plan { tells: false, ..ships }), ("at a word of each thread", ships)];
    let looks = looks.map(|(name, plan)| (String::from(name), plan));
    let table = Table::new(&format!("{cores} cores, by how a thread looks for jobs"), costs, looks.into());
    table.row("1,000,000 a second", Load::even(1e6));
    table.row("10,000,000 a second", Load::even(1e7));
    table.row("10 us each, half of the machine", of(0.5));

    let shared = [1, 8, 16, 32].map(|shared| (format!("{shared} shards share"), Plan { shared, ..ships }));
    let table = Table::new(&format!("{cores} cores, by the shards that may share an alarm"), costs, shared.into());
    for per_core in [20e3, 80e3] {
        table.row(&format!("{} a second for each core", grouped(per_core)), Load::even(cores as f64 * per_core));
    }

    let mut plans = vec![(String::from("one inbox"), Plan { inbox: 0, ..ships })];
    plans.extend([16, 8, 1].map(|inbox| (format!("an inbox for {inbox}"), Plan { inbox, ..ships })));
    plans.push((String::from("groups of 16"), Plan::groups(cores, 16)));
    let table = Table::new(&format!("{cores} cores, half of them submit a job each 10 us"), costs, plans);
    let load = Load { submitters: (cores / 2, 10_000), until: 100_000_000, ..Load::even(1e4) };
    table.row("jobs from outside", load);
}

/// Prints all tables.
pub(crate) fn all(costs: Costs) {
    [16, 64, 128, 256].into_iter().for_each(|cores| loads(cores, costs));
    [64, 128, 256].into_iter().for_each(|cores| variants(cores, costs));
    let fifth = |pair: [u64; 2]| pair.map(|ns| ns / 5);
    let assumptions = [
        (
            "a far core's line costs as much as a near core's",
            Costs { line: [costs.line[0], costs.line[1], costs.line[1]], ..costs },
        ),
        (
            "a far core's line costs three times as much",
            Costs { line: [costs.line[0], costs.line[1], 3 * costs.line[2]], ..costs },
        ),
        ("no two lines are fetched at once", Costs { at_a_time: 1, ..costs }),
        (
            "wake-ups are late by a fifth of that here",
            Costs { alarm_late: fifth(costs.alarm_late), unpark_late: fifth(costs.unpark_late), ..costs },
        ),
    ];
    for (name, costs) in assumptions {
        for cores in [64, 256] {
            let table = Table::designs(&format!("{cores} cores, if {name}"), cores, costs);
            table.row("10,000,000 a second", Load::even(1e7));
            table.row("10 us each, half of the machine", Load { work: 10_000, ..Load::even(cores as f64 * 5e4) });
        }
    }
}
