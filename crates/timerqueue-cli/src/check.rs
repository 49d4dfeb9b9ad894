//! `check`: reads the whole store.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
#[cfg(feature = "postgres")]
use timerqueue_scheduler::Counts;
use timerqueue_scheduler::store::CheckStep;
#[cfg(feature = "postgres")]
use timerqueue_scheduler::store::{PostgresReader, ServerReport};

#[cfg(feature = "postgres")]
use crate::exit::DAMAGED;
use crate::exit::Fail;
use crate::look::ahead_line;
use crate::out::{Out, Progress};
use crate::place::Place;
use crate::store::Reader;
#[cfg(feature = "postgres")]
use crate::text;

/// How often the time that has passed is shown on a terminal.
const TICK: Duration = Duration::from_millis(200);

#[derive(Serialize)]
struct Sound {
    sound: bool,
    bytes: u64,
    /// Schedules that wait behind a clock that was ahead.
    ahead: u64,
    seconds: f64,
}

/// Shows the part of the work that is under way, and on a terminal for how long.
pub(crate) fn with_progress<T>(wanted: bool, begin: Instant, work: impl FnOnce(Sender<String>) -> T) -> T {
    let (steps, shown) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut progress = Progress::new(wanted);
            let mut now = String::new();
            loop {
                match shown.recv_timeout(TICK) {
                    Ok(step) => now = step,
                    Err(RecvTimeoutError::Timeout) if progress.terminal && progress.on => {}
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                progress.show(&format!("{now}, {:.1} s", begin.elapsed().as_secs_f64()));
            }
        });
        work(steps)
    })
}

fn words(step: CheckStep) -> String {
    format!("{} of {}: {}", step.number, step.of, step.what)
}

pub(crate) fn check(place: &Place, progress: bool, out: &mut Out) -> Result<(), Fail> {
    match (Reader::open(place)?, place) {
        #[cfg(feature = "postgres")]
        (Reader::Server(reader), place) => check_server(&reader, place, progress, out),
        (Reader::File(reader), Place::File(file)) => check_file(&reader, file, place, progress, out),
        #[cfg(feature = "postgres")]
        (Reader::File(_), Place::Server(_)) => unreachable!("a server has no reader of a file"),
    }
}

fn check_file(
    reader: &timerqueue_scheduler::store::SqliteReader,
    file: &Path,
    place: &Place,
    progress: bool,
    out: &mut Out,
) -> Result<(), Fail> {
    let begin = Instant::now();
    let bytes = file.metadata().map_or(0, |data| data.len());
    let checked = with_progress(progress, begin, |steps| {
        reader.check(move |step| {
            let size = if step.number == 1 { format!(" of {}", size(bytes)) } else { String::new() };
            let _ = steps.send(format!("{}{size}", words(step)));
        })
    });
    checked.map_err(|error| place.named(error.into()))?;
    let counts = reader.counts().map_err(|error| place.named(error.into()))?;
    let sound = Sound { sound: true, bytes, ahead: counts.ahead, seconds: begin.elapsed().as_secs_f64() };
    out.thing(&sound, |sound| {
        let sound = format!("{place}: sound, {} read in {:.1} s", size(sound.bytes), sound.seconds);
        std::iter::once(sound).chain(ahead_line(&counts)).collect::<Vec<_>>().join("\n")
    })
}

#[cfg(feature = "postgres")]
#[derive(Serialize)]
struct Checked<'a> {
    sound: bool,
    #[serde(flatten)]
    report: &'a ServerReport,
    /// Schedules that wait behind a clock that was ahead.
    ahead: u64,
    seconds: f64,
}

#[cfg(feature = "postgres")]
fn server_text(report: &ServerReport, counts: &Counts, place: &Place, seconds: f64) -> String {
    let sound = if report.unreadable.is_empty() { "sound" } else { "rows cannot be read" };
    let mut lines = vec![format!("{place}: {sound}, {} jobs read in {seconds:.1} s", report.jobs)];
    let mut field = |name: &str, value: String| lines.push(format!("{name:<12} {value}"));
    field("server", format!("PostgreSQL {}", text::tame(&report.server_version)));
    field("tables", format!("version {}", report.schema_version));
    let (ahead, within) = (report.clock_ahead_micros as f64 / 1e6, report.clock_within.as_secs_f64());
    let which = if ahead < 0.0 { "behind" } else { "ahead of" };
    field("clock", format!("{:.3} s {which} this machine's, within {within:.3} s", ahead.abs()));
    let vacuumed = report.vacuumed.map_or_else(|| "never, as far as is known".to_owned(), text::at);
    let (table, indexes) = (size(report.table_bytes), size(report.index_bytes));
    field("size", format!("{table}, indexes {indexes}, {} dead rows; vacuumed {vacuumed}", report.dead_rows));
    if report.is_standby {
        let age = report.replay_age.map_or_else(|| "unknown".to_owned(), text::rough);
        field("replication", format!("a standby; its last transaction is {age} old"));
    }
    for standby in &report.standbys {
        let kind = if standby.is_synchronous { "synchronous" } else { "asynchronous" };
        let behind = standby.behind.map(|behind| format!(", {:.3} s", behind.as_secs_f64())).unwrap_or_default();
        let name = text::tame(&standby.name);
        field("standby", format!("{name}, {kind}: {} behind{behind}", size(standby.behind_bytes)));
    }
    for (id, reason) in &report.unreadable {
        field("unreadable", format!("job {}: {}", id.0, text::tame(reason)));
    }
    lines.extend(ahead_line(counts));
    lines.join("\n")
}

#[cfg(feature = "postgres")]
fn check_server(reader: &PostgresReader, place: &Place, progress: bool, out: &mut Out) -> Result<(), Fail> {
    let begin = Instant::now();
    let checked = with_progress(progress, begin, |steps| {
        reader.check(move |step| {
            let _ = steps.send(words(step));
        })
    });
    let report = checked.map_err(|error| place.named(error.into()))?;
    let counts = reader.counts().map_err(|error| place.named(error.into()))?;
    let seconds = begin.elapsed().as_secs_f64();
    let checked = Checked { sound: report.unreadable.is_empty(), report: &report, ahead: counts.ahead, seconds };
    out.thing(&checked, |_| server_text(&report, &counts, place, seconds))?;
    match report.unreadable.len() {
        0 => Ok(()),
        _ => Err(place.named(Fail::new(DAMAGED, "rows cannot be read"))),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
