//! `import-crontab`: the lines of a crontab as recurring jobs.
//!
//! Ground rules. Lines are read as Vixie's cron reads them: variables count for the lines behind
//! them, a `%` ends the command, and what follows is its standard input. A job's payload is a
//! script that says all of this for itself. What a script cannot say is told with its line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::Read;
use std::sync::Arc;

use serde::Serialize;
use timerqueue_scheduler::{Clash, Query, Schedule, State};

use crate::args;
use crate::exit::{DONE, Fail, REFUSED, note};
use crate::look::pages;
use crate::out::Out;
use crate::place::Place;
use crate::put::{accepted, is_reboot, next_of, next_runs, schedule, sentence};
use crate::store::{Reader, open};
use crate::text;

/// A line with a time and a command.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    line: usize,
    time: String,
    zone: Option<String>,
    key: String,
    script: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Crontab {
    entries: Vec<Entry>,
    /// What is not carried over, by line. True: the line is left out.
    told: Vec<(usize, bool, String)>,
}

/// A variable and its value, if the line sets one.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let (name, value) = (unquoted(name.trim()), unquoted(value.trim()));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_name.then_some((name, value))
}

/// A text without the quotes around it.
fn unquoted(text: &str) -> &str {
    let within = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    within('"').or_else(|| within('\'')).unwrap_or(text)
}

/// The first word, and the rest.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let (word, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    (!word.is_empty()).then(|| (word, rest.trim_start()))
}

/// The command and its standard input: lines divided by `%`, of which `\%` is a `%` itself.
fn command_and_input(text: &str) -> (String, Option<String>) {
    let (mut parts, mut chars) = (vec![String::new()], text.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next_if_eq(&'%').is_some() => parts.last_mut().into_iter().for_each(|part| part.push('%')),
            '%' => parts.push(String::new()),
            c => parts.last_mut().into_iter().for_each(|part| part.push(c)),
        }
    }
    // A `%` with nothing behind it is an end of the command alone.
    let input = (parts.len() > 1 && parts[1..] != [""]).then(|| parts[1..].join("\n") + "\n");
    (parts.swap_remove(0), input)
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn script(variables: &BTreeMap<String, String>, command: &str, input: Option<&str>) -> String {
    let mut script = String::new();
    for (name, value) in variables {
        let _ = writeln!(script, "export {name}={}", quoted(value));
    }
    script.push_str("cd \"${HOME:-/}\" || exit\n");
    let shell = variables.get("SHELL").filter(|shell| *shell != "/bin/sh");
    let run = shell.map_or_else(|| command.to_owned(), |shell| format!("{} -c {}", quoted(shell), quoted(command)));
    match input {
        None => script.push_str(&run),
        // Of the whole command, also if it is several.
        Some(input) => _ = write!(script, "printf %s {} | {{ {run}\n}}", quoted(input)),
    }
    script.push('\n');
    script
}

/// A key that stays with its command: its name, and a hash (FNV-1a) of all of it.
fn key(prefix: &str, command: &str) -> String {
    let hash = command
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let name = word(command).map_or("", |(name, _)| name.rsplit('/').next().unwrap_or(name));
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.chars().filter(plain).take(40).collect();
    format!("{prefix}{name}-{:08x}", hash >> 32)
}

impl Crontab {
    fn of(text: &str, prefix: &str, is_system: bool) -> Self {
        let mut found = Self::default();
        let (mut variables, mut zone) = (BTreeMap::new(), None);
        let mut keys: BTreeMap<String, u32> = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let (number, line) = (at + 1, line.trim());
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut tell = |left_out: bool, text: String| found.told.push((number, left_out, text));
            if let Some((name, value)) = variable(line) {
                match name {
                    "CRON_TZ" => zone = Some(value.to_owned()).filter(|zone| !zone.is_empty()),
                    "MAILTO" if value.is_empty() => {}
                    "MAILTO" | "MAILFROM" => {
                        tell(false, format!("{name} is an option of the worker: --mail-to {value}"))
                    }
                    "RANDOM_DELAY" => {
                        tell(false, "RANDOM_DELAY does not delay: `spread` of a schedule in JSON does".to_owned())
                    }
                    _ => _ = variables.insert(name.to_owned(), value.to_owned()),
                }
                continue;
            }
            // A line that cron would not log.
            let line = line.strip_prefix('-').unwrap_or(line);
            let fields = if line.starts_with('@') { 1 } else { 5 };
            let (mut rest, mut time) = (line, Vec::new());
            while let (true, Some((field, behind))) = (time.len() < fields, word(rest)) {
                time.push(field);
                rest = behind;
            }
            if is_system {
                let Some((user, behind)) = word(rest) else {
                    tell(true, "the line has no user".to_owned());
                    continue;
                };
                tell(false, format!("runs as the user of the worker, and not as {}", text::tame(user)));
                rest = behind;
            }
            let (command, input) = command_and_input(rest);
            if command.trim().is_empty() || time.len() < fields {
                tell(true, "the line has no command".to_owned());
                continue;
            }
            let key = key(prefix, rest);
            let times = keys.entry(key.clone()).or_default();
            *times += 1;
            let key = if *times > 1 { format!("{key}-{times}") } else { key };
            let time = match time.join(" ") {
                every if every == "@every_minute" => "* * * * *".to_owned(),
                time => time,
            };
            let script = script(&variables, &command, input.as_deref());
            found.entries.push(Entry { line: number, time, zone: zone.clone(), key, script });
        }
        found
    }
}

/// What an import answers of a line.
#[derive(Serialize)]
struct Imported<'a, A> {
    line: usize,
    #[serde(flatten)]
    accepted: A,
    script: &'a str,
    next: Option<String>,
}

/// As it would be put.
#[derive(Serialize)]
struct Planned<'a> {
    key: &'a str,
    schedule: &'a Schedule,
}

fn read(crontab: &args::ImportCrontab) -> Result<String, Fail> {
    let failed =
        |error: std::io::Error| Fail::usage(format!("{}: {error}", text::tame(&crontab.file.to_string_lossy())));
    let mut bytes = Vec::new();
    if crontab.file.as_os_str() == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(failed)?;
    } else {
        bytes = std::fs::read(&crontab.file).map_err(failed)?;
    }
    String::from_utf8(bytes).map_err(|_| Fail::usage("the crontab is no UTF-8"))
}

fn when(schedule: &Schedule, next: Option<&String>) -> String {
    match next {
        _ if is_reboot(schedule) => "after each start of the machine".to_owned(),
        Some(next) => format!("next run {next}"),
        None => "no run".to_owned(),
    }
}

pub(crate) fn import<'p>(
    place: impl Fn() -> Result<&'p Place, Fail>,
    crontab: &args::ImportCrontab,
    out: &mut Out,
) -> Result<(), Fail> {
    let Crontab { entries, mut told } = Crontab::of(&read(crontab)?, &crontab.prefix, crontab.system);
    let mut jobs: Vec<(&Entry, Schedule)> = Vec::new();
    for entry in &entries {
        match schedule(&entry.time, entry.zone.as_deref().or(crontab.zone.as_deref())) {
            Ok(schedule) => jobs.push((entry, schedule)),
            Err(fail) => told.push((entry.line, true, fail.wrong_line()?)),
        }
    }
    told.sort();
    for (line, left_out, why) in &told {
        note(&format!("line {line}{}: {why}", if *left_out { " is left out" } else { "" }));
    }
    let mut code = if told.iter().any(|(_, left_out, _)| *left_out) { REFUSED } else { DONE };
    if crontab.dry_run {
        for (entry, schedule) in &jobs {
            let next = next_runs(schedule).first().copied().map(text::rfc3339);
            let accepted = Planned { key: &entry.key, schedule };
            let planned = Imported { line: entry.line, accepted, script: &entry.script, next };
            out.thing(&planned, |planned| {
                let when = when(schedule, planned.next.as_ref());
                format!("line {}: {}, {when}\n{}", entry.line, text::tame(&entry.key), entry.script.trim_end())
            })?;
        }
        return Fail::told(code);
    }
    let scheduler = open(place()?, true)?;
    let puts = jobs.iter().map(|(entry, schedule)| {
        let put = scheduler.put_to(&crontab.handler, &entry.script).key(&entry.key).schedule(schedule.clone());
        put.catchup(crontab.catchup).overlap(crontab.overlap).clash(Clash::Update)
    });
    for ((entry, schedule), placed) in jobs.iter().zip(scheduler.put_many(puts).wait()?) {
        match placed.map_err(Fail::from).and_then(|placed| accepted(placed, &entry.key)) {
            Ok(accepted) => {
                let first = next_of(&scheduler, &entry.key, schedule)?.first().copied();
                let next = first.filter(|_| !is_reboot(schedule)).map(text::rfc3339);
                let imported = Imported { line: entry.line, accepted, script: &entry.script, next };
                out.thing(&imported, |imported| {
                    let when = when(schedule, imported.next.as_ref());
                    format!("line {}: {}, {when}", entry.line, sentence(&imported.accepted))
                })?;
            }
            Err(fail) => {
                out.flush()?;
                code = code.max(fail.with(|why| format!("line {}: {why}", entry.line)).report());
            }
        }
    }
    if crontab.prune {
        let kept: BTreeSet<&str> = entries.iter().map(|entry| &*entry.key).collect();
        let query = Query::new().state(State::Recurring).name(&crontab.handler).key_prefix(&crontab.prefix);
        let mut gone: Vec<Arc<str>> = Vec::new();
        pages(&Reader::open(place()?)?, &query, |job| {
            if !kept.contains(&*job.key) {
                gone.push(Arc::clone(&job.key));
            }
            Ok(true)
        })?;
        crate::change::cancel_all(&scheduler, &gone, out)?;
    }
    Fail::told(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Crontab {
        Crontab::of(text, "crontab/", false)
    }

    #[test]
    fn lines_become_scripts() {
        let found = of(
            "# of ann\n\nPATH = \"/opt/bin:/bin\"\nCRON_TZ=Europe/Berlin\n30 2 * * *\tbackup  --all 'x y'\n\
                        @daily mail -s hi ann%Dear Ann,%100\\% done\nSHELL=/bin/bash\nCRON_TZ=\n-@reboot [[ -e x ]] && it's\n",
        );
        assert_eq!(found.told, []);
        assert_eq!(command_and_input("a%"), ("a".to_owned(), None));
        assert_eq!(command_and_input("a%%"), ("a".to_owned(), Some("\n\n".to_owned())));
        let [backup, mail, boot] = &found.entries[..] else { panic!("{found:?}") };
        assert_eq!((backup.line, &*backup.time, backup.zone.as_deref()), (5, "30 2 * * *", Some("Europe/Berlin")));
        let begin = "export PATH='/opt/bin:/bin'\n";
        assert_eq!(backup.script, format!("{begin}cd \"${{HOME:-/}}\" || exit\nbackup  --all 'x y'\n"));
        assert!(backup.key.starts_with("crontab/backup-"), "{}", backup.key);
        assert!(mail.script.ends_with("printf %s 'Dear Ann,\n100% done\n' | { mail -s hi ann\n}\n"), "{}", mail.script);
        assert_eq!((&*boot.time, boot.zone.as_deref()), ("@reboot", None));
        assert!(boot.script.ends_with("'/bin/bash' -c '[[ -e x ]] && it'\\''s'\n"), "{}", boot.script);
    }

    #[test]
    fn keys_stay_with_their_commands() {
        let one = of("0 1 * * * a\n0 2 * * * /bin/b\n0 3 * * * a\n");
        let other = of("# new\n5 5 * * * /bin/b\n0 1 * * * a\n0 3 * * * a\n");
        let keys = |crontab: &Crontab| crontab.entries.iter().map(|entry| entry.key.clone()).collect::<BTreeSet<_>>();
        assert_eq!(keys(&one), keys(&other));
        assert_eq!(keys(&one).len(), 3);
    }

    #[test]
    fn what_is_not_carried_over_is_told_by_line() {
        let found =
            of("MAILTO=ann@example.com\nMAILTO=\"\"\nRANDOM_DELAY=5\n* * * *\n@daily\n* * * * *\n1 1 1 1 1 %x\n");
        let lines: Vec<_> = found.told.iter().map(|(line, left_out, _)| (*line, *left_out)).collect();
        assert_eq!(lines, [(1, false), (3, false), (4, true), (5, true), (6, true), (7, true)]);
        assert!(found.entries.is_empty());
        let found = Crontab::of("17 * * * * root cd / && run\n@daily root\n", "", true);
        assert!(found.entries[0].script.ends_with("exit\ncd / && run\n"));
        assert_eq!((found.told[0].1, found.told[2].1), (false, true));
    }
}
