//! A second opinion on cron lines: the `cronexpr` crate, which parses and searches by itself, on
//! random lines in UTC. Rules for daylight saving differ between the two, so other zones are not
//! compared.

use crate::support::{Random, second, unix};
use timerqueue_schedule::Schedule;

const LINES: usize = 1_000;

/// A field in the syntax that both understand.
fn field(random: &mut Random, first: u64, last: u64, names: &[&str]) -> String {
    let (a, b) = (random.between(first, last), random.between(first, last));
    let (a, b, step) = (a.min(b), a.max(b), random.between(1, (last - first).div_ceil(2)));
    match random.below(8) {
        0..3 => String::from("*"),
        3 => format!("*/{step}"),
        4 if !names.is_empty() => names[random.below(names.len() as u64) as usize].to_owned(),
        4 | 5 => a.to_string(),
        6 => format!("{a}-{b}/{step}"),
        _ => format!("{a},{b}"),
    }
}

fn line(random: &mut Random) -> String {
    let months = ["JAN", "feb", "Mar", "APR", "OCT", "DEC"];
    let days = match random.below(8) {
        0 => String::from("L"),
        1 => format!("{}W", random.between(1, 28)),
        _ => field(random, 1, 31, &[]),
    };
    let weekdays = match random.below(8) {
        0 => format!("{}#{}", random.between(1, 5), random.between(1, 4)),
        1 => format!("{}L", random.between(1, 5)),
        _ => field(random, 0, 6, &["SUN", "mon", "Wed", "FRI", "7"]),
    };
    let (minutes, hours) = (field(random, 0, 59, &[]), field(random, 0, 23, &[]));
    // `cronexpr` 1.7.0 finds no last day, and no last Friday, in December.
    let months =
        if days == "L" || weekdays.ends_with('L') { String::from("1-11") } else { field(random, 1, 12, &months) };
    format!("{minutes} {hours} {days} {months} {weekdays}")
}

/// The next occurrences by `cronexpr`, or fewer.
fn opinion(line: &str, t: i64, n: usize) -> Vec<i64> {
    let crontab = cronexpr::parse_crontab(&format!("{line} UTC")).unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut t = cronexpr::MakeTimestamp::from_second(t).expect("in range");
    let mut found = Vec::new();
    while found.len() < n {
        // It gives up after four years without an occurrence.
        let Ok(next) = crontab.find_next(t).map(|next| next.timestamp()) else { break };
        found.push(next.as_second());
        t = cronexpr::MakeTimestamp(next);
    }
    found
}

#[test]
fn a_thousand_random_lines_agree() {
    let mut random = Random(82);
    let (mut lines, mut compared) = (0, 0);
    while lines < LINES {
        let line = line(&mut random);
        // Lines without a date, such as February 30, are refused here and found nowhere by the
        // other.
        let Ok(schedule) = Schedule::cron(&line).build() else { continue };
        let fields: Vec<&str> = line.split(' ').collect();
        // `*/2` in one day field: Vixie's rule, which the other crate does not have.
        if fields[2].starts_with("*/") && fields[4] != "*" || fields[4].starts_with("*/") && fields[2] != "*" {
            continue;
        }
        let t = second(crate::support::at("2020-01-01T00:00:00Z")) + random.below(20 * 365 * 86_400) as i64;
        let found: Vec<i64> = schedule.preview(unix(t), 5).iter().map(|next| second(next.nominal())).collect();
        let opinion = opinion(&line, t, found.len());
        assert_eq!(found[..opinion.len()], opinion, "{line} after {t}");
        compared += opinion.len();
        lines += 1;
    }
    assert!(compared > 4 * LINES, "{compared} occurrences");
}
