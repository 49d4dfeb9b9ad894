//! The next occurrence of cron lines, beside the crates `cron` and `croner`; and the most expensive
//! lines of this crate.
//!
//! ```text
//! cargo run --release --locked                    nanoseconds, and their ratios
//! cargo run --release --locked -- instructions    the same in instructions; needs valgrind
//! ```
//!
//! Each answer is for another instant: 100,009 s apart, in 2026 to 2029. Each library takes the
//! instant in its own type, which is made beforehand. The libraries take turns, and the best round
//! of each counts.

use std::hint::black_box;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, TimeZone};
use chrono_tz::Tz;
use timerqueue_schedule::{CalendarUnit, Schedule, ScheduleBuilder, Zones};

/// Different instants.
const INSTANTS: u64 = 1_000;
const ROUNDS: usize = 200;
/// Answers in a round: of ordinary lines, and of expensive ones.
const ANSWERS: usize = 1_000;
const EXPENSIVE: usize = 1;

const ZONES: [&str; 2] = ["UTC", "Europe/Berlin"];

/// The name, the line, and the line as the crate `cron` writes it, if it can.
const LINES: [(&str, &str, Option<&str>); 9] = [
    ("each minute", "* * * * *", Some("0 * * * * *")),
    ("each 15 minutes", "*/15 * * * *", Some("0 */15 * * * *")),
    ("hourly", "0 * * * *", Some("0 0 * * * *")),
    ("daily, 03:30", "30 3 * * *", Some("0 30 3 * * *")),
    ("working hours", "0 9-17 * * MON-FRI", Some("0 0 9-17 * * MON-FRI")),
    ("the 1st and 15th", "30 3 1,15 * *", Some("0 30 3 1,15 * *")),
    ("last day of the month", "0 0 L * *", None),
    ("yearly", "0 0 1 1 *", Some("0 0 0 1 1 *")),
    ("leap day", "0 0 29 2 *", Some("0 0 0 29 2 *")),
];

/// One answer for the instant with this index.
type Answer = Box<dyn Fn(usize)>;

fn instants() -> impl Iterator<Item = u64> {
    (0..INSTANTS).map(|index| 1_767_225_600 + index * 100_009)
}

fn ours(builder: ScheduleBuilder) -> Answer {
    let schedule = builder.clone().build_in(&Zones::bundled()).unwrap_or_else(|error| panic!("{error}: {builder:?}"));
    let at: Vec<SystemTime> = instants().map(|second| UNIX_EPOCH + Duration::from_secs(second)).collect();
    Box::new(move |index| {
        black_box(schedule.next_after(at[index % at.len()]));
    })
}

fn in_zone(zone: &str) -> Vec<DateTime<Tz>> {
    let zone: Tz = zone.parse().expect("a zone");
    instants().map(|second| zone.timestamp_opt(second as i64, 0).single().expect("an instant")).collect()
}

/// This crate, `cron` and `croner` on a line in a zone.
fn contenders(line: usize, zone: &str) -> [Option<Answer>; 3] {
    let (_, line, of_cron) = LINES[line];
    let cron = of_cron.map(|line| {
        let (schedule, at) = (cron::Schedule::from_str(line).expect("a line of cron"), in_zone(zone));
        Box::new(move |index| {
            black_box(schedule.after(&at[index % at.len()]).next());
        }) as Answer
    });
    let (schedule, at) = (croner::Cron::from_str(line).expect("a line of croner"), in_zone(zone));
    let croner = Box::new(move |index| {
        black_box(schedule.find_next_occurrence(&at[index % at.len()], false)).expect("an occurrence");
    }) as Answer;
    [Some(ours(Schedule::cron(line).zone(zone))), cron, Some(croner)]
}

/// Lines whose next occurrence is far away, or does not exist after a long search.
fn expensive() -> Vec<(&'static str, Answer)> {
    let cron = |line: &str| Schedule::cron(line).zone("Europe/Berlin");
    let from = UNIX_EPOCH + Duration::from_secs(68_166_000); // 1972-02-29 in Berlin
    let years = format!("0 * 2 * 3 SUNL {}", vec!["*/1"; 240].join(","));
    let dates = (1..=12).flat_map(|month| (1..=28).map(move |day| format!("{month:02}-{day:02}")));
    let dates: Vec<String> = dates.collect();
    [
        ("Monday, February 29", cron("0 0 29 2 +MON")),
        ("5th Sunday of February", cron("0 0 * 2 SUN#5")),
        ("weekday nearest to February 29", cron("0 0 29W 2 *")),
        ("Tuesday, February 29, each 1,000 days", cron("0 0 29 2 +TUE").from(from).each(1_000, CalendarUnit::Day)),
        ("leap day, each 1,000 weeks", cron("0 0 29 2 *").from(from).each(1_000, CalendarUnit::Week)),
        // From 1981 on, Berlin has no minute from 02:00 to 02:59 on the last Sunday of March.
        ("in skipped hours alone", cron("* 2 * 3 SUNL")),
        ("in skipped hours alone, 240 values of years", cron(&years)),
        ("in skipped hours alone, each week", cron("* 2 * 3 SUNL").from(from).each(1, CalendarUnit::Week)),
        ("336 dates left out", cron("0 0 * * SUN").except(dates)),
        ("union of 50 lines", Schedule::any(vec![cron("0 0 29 2 +MON"); Schedule::MAX_PARTS])),
    ]
    .map(|(name, builder)| (name, ours(builder)))
    .into()
}

/// Nanoseconds of an answer in the best round of each contender.
fn nanoseconds(contenders: &[Option<Answer>], answers: usize) -> Vec<Option<f64>> {
    let mut best = vec![f64::INFINITY; contenders.len()];
    for _ in 0..ROUNDS {
        for (best, answer) in best.iter_mut().zip(contenders) {
            let Some(answer) = answer else { continue };
            let begin = Instant::now();
            (0..answers).for_each(answer);
            *best = best.min(begin.elapsed().as_secs_f64() * 1e9 / answers as f64);
        }
    }
    best.into_iter().map(|best| best.is_finite().then_some(best)).collect()
}

/// Instructions of an answer: two processes with different counts, subtracted.
fn instructions(case: &str, contender: usize, answers: usize) -> f64 {
    let total = |answers: usize| {
        let program = std::env::current_exe().expect("a program");
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(["one", case, &contender.to_string(), &answers.to_string()])
            .output()
            .expect("valgrind");
        let text = String::from_utf8_lossy(&run.stderr);
        let line = text.lines().find(|line| line.contains("Collected")).expect("the count of valgrind");
        line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).expect("a number")
    };
    (total(2 * answers) - total(answers)) / answers as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let counted = match arguments[..] {
        [] => false,
        ["instructions"] => true,
        ["one", case, contender, answers] => return one(case, contender, answers),
        _ => panic!("no argument, or: instructions"),
    };
    let unit = if counted { "instructions" } else { "ns" };
    println!("| next, {unit} | timerqueue | cron | croner | to cron | to croner |\n|---|--:|--:|--:|--:|--:|");
    for (index, (name, ..)) in LINES.iter().enumerate() {
        for zone in ZONES {
            let contenders = contenders(index, zone);
            let costs = if counted {
                let count = |contender| instructions(&format!("{index} {zone}"), contender, ANSWERS);
                (0..3).map(|contender| contenders[contender].as_ref().map(|_| count(contender))).collect()
            } else {
                nanoseconds(&contenders, ANSWERS)
            };
            let cell = |cost: Option<f64>| cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.0}"));
            let ratio = |to: usize| {
                let ratio = costs[0].zip(costs[to]).map(|(ours, to)| ours / to);
                ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            let cells = [cell(costs[0]), cell(costs[1]), cell(costs[2]), ratio(1), ratio(2)].join(" | ");
            println!("| {name}, {zone} | {cells} |");
        }
    }
    println!("\n| expensive lines, {unit} | |\n|---|--:|");
    for (index, (name, answer)) in expensive().into_iter().enumerate() {
        let cost = match counted {
            true => instructions("expensive", index, EXPENSIVE),
            false => nanoseconds(&[Some(answer)], EXPENSIVE)[0].unwrap_or_default(),
        };
        println!("| {name} | {cost:.0} |");
    }
}

/// The answers of one contender, for the counter of instructions.
fn one(case: &str, contender: &str, answers: &str) {
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (contender, answers) = (number(contender), number(answers));
    let answer = match case.split_once(' ') {
        Some((line, zone)) => contenders(number(line), zone)[contender].take().expect("a line of this library"),
        None => expensive().swap_remove(contender).1,
    };
    (0..answers).for_each(answer);
}
