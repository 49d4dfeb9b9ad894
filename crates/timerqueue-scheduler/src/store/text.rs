//! Schedules, last runs and handlers as JSON text, for the columns `recurring`, `last` and
//! `handlers` of a file or a server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Schedule;
use crate::store::rules::{Failures, Recurring};
use crate::store::{Catchup, EntryHandler, LastRun, Micros, Occurrence, Overlap, Recurrence, RunEnd, Tally};

#[derive(Serialize, Deserialize)]
struct RecurringText {
    schedule: Schedule,
    catchup: CatchupText,
    /// Microseconds.
    grace: Option<u64>,
    overlap: OverlapText,
    version: u64,
    /// Nominal instant and due time.
    next: Option<(i64, i64)>,
    look: Option<i64>,
    looked: bool,
    last_nominal: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reached: Option<i64>,
    ended: Option<i64>,
    ending: bool,
    runs: u64,
    skipped: u64,
    missed: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CatchupText {
    RunLast,
    RunAll(u32),
    Skip,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OverlapText {
    Skip,
    QueueOne,
    Allow,
}

#[derive(Serialize, Deserialize)]
struct LastRunText {
    due: i64,
    nominal: Option<i64>,
    started: i64,
    /// Microseconds.
    duration: u64,
    attempt: u32,
    end: EndText,
    error: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EndText {
    Done,
    Again,
    Failed,
    Dead,
}

/// A handler of a member.
#[derive(Serialize, Deserialize)]
struct HandlerText {
    name: String,
    parallel: u64,
}

pub(super) fn write_handlers(handlers: &[EntryHandler]) -> String {
    let text = |handler: &EntryHandler| HandlerText {
        name: handler.name.to_string(),
        parallel: u64::try_from(handler.parallel).unwrap_or(u64::MAX),
    };
    serde_json::to_string(&handlers.iter().map(text).collect::<Vec<_>>()).unwrap_or_default()
}

/// Nothing, if the text was written by hand and is wrong.
pub(super) fn read_handlers(text: &str) -> Vec<EntryHandler> {
    let handlers: Vec<HandlerText> = serde_json::from_str(text).unwrap_or_default();
    let handler = |text: HandlerText| EntryHandler {
        name: text.name.into(),
        parallel: usize::try_from(text.parallel).unwrap_or(usize::MAX),
        limits: Default::default(), // each node keeps its own
    };
    handlers.into_iter().map(handler).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

pub(super) fn write_recurring(recurring: &Recurring) -> Result<String, String> {
    let Recurrence { schedule, catchup, grace, overlap } = &*recurring.recurrence;
    let text = RecurringText {
        schedule: schedule.clone(),
        catchup: match *catchup {
            Catchup::RunLast => CatchupText::RunLast,
            Catchup::RunAll { at_most } => CatchupText::RunAll(at_most),
            Catchup::Skip => CatchupText::Skip,
        },
        grace: grace.map(micros),
        overlap: match overlap {
            Overlap::Skip => OverlapText::Skip,
            Overlap::QueueOne => OverlapText::QueueOne,
            Overlap::Allow => OverlapText::Allow,
        },
        version: recurring.version,
        next: recurring.next.map(|next| (next.nominal.as_i64(), next.due.as_i64())),
        look: recurring.look.map(Micros::as_i64),
        looked: recurring.looked,
        last_nominal: recurring.last_nominal.map(Micros::as_i64),
        reached: recurring.reached.map(Micros::as_i64),
        ended: recurring.ended.map(Micros::as_i64),
        ending: recurring.ending,
        runs: recurring.tally.runs,
        skipped: recurring.tally.skipped,
        missed: recurring.tally.missed,
    };
    serde_json::to_string(&text).map_err(|error| error.to_string())
}

/// Without the runs, which are rows of their own.
pub(super) fn read_recurring(text: &str) -> Result<Box<Recurring>, String> {
    let text: RecurringText = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let recurrence = Recurrence {
        schedule: text.schedule,
        catchup: match text.catchup {
            CatchupText::RunLast => Catchup::RunLast,
            CatchupText::RunAll(at_most) => Catchup::RunAll { at_most },
            CatchupText::Skip => Catchup::Skip,
        },
        grace: text.grace.map(Duration::from_micros),
        overlap: match text.overlap {
            OverlapText::Skip => Overlap::Skip,
            OverlapText::QueueOne => Overlap::QueueOne,
            OverlapText::Allow => Overlap::Allow,
        },
    };
    let occurrence = |(nominal, due)| Occurrence { nominal: Micros::new(nominal), due: Micros::new(due) };
    Ok(Box::new(Recurring {
        recurrence: Box::new(recurrence),
        version: text.version,
        next: text.next.map(occurrence),
        look: text.look.map(Micros::new),
        looked: text.looked,
        last_nominal: text.last_nominal.map(Micros::new),
        reached: text.reached.map(Micros::new),
        ended: text.ended.map(Micros::new),
        live: Vec::new(),
        queued: Default::default(),
        ending: text.ending,
        tally: Tally { runs: text.runs, skipped: text.skipped, missed: text.missed },
    }))
}

fn last_text(last: &LastRun) -> LastRunText {
    LastRunText {
        due: Micros::floor(last.due).as_i64(),
        nominal: last.nominal.map(|nominal| Micros::floor(nominal).as_i64()),
        started: Micros::floor(last.started).as_i64(),
        duration: micros(last.duration),
        attempt: last.attempt,
        end: match last.end {
            RunEnd::Done => EndText::Done,
            RunEnd::Again => EndText::Again,
            RunEnd::Failed => EndText::Failed,
            RunEnd::Dead => EndText::Dead,
        },
        error: last.error.as_deref().map(str::to_owned),
    }
}

pub(super) fn write_last(last: &LastRun) -> Option<String> {
    serde_json::to_string(&last_text(last)).ok()
}

pub(super) fn write_failures(failures: &Failures) -> Option<String> {
    serde_json::to_string(&failures.attempts.iter().map(last_text).collect::<Vec<_>>()).ok()
}

/// `None`: written by hand, and wrong. The last run is for people, and stands in nothing's way.
pub(super) fn read_last(text: &str) -> Option<Box<LastRun>> {
    serde_json::from_str(text).ok().map(|text| Box::new(last_of(text)))
}

/// `None`: written by hand, and wrong.
pub(super) fn read_failures(text: &str) -> Option<Box<Failures>> {
    let attempts: Vec<LastRunText> = serde_json::from_str(text).ok()?;
    Some(Box::new(Failures { attempts: attempts.into_iter().map(last_of).collect() }))
}

fn last_of(text: LastRunText) -> LastRun {
    LastRun {
        due: Micros::new(text.due).to_system(),
        nominal: text.nominal.map(|nominal| Micros::new(nominal).to_system()),
        started: Micros::new(text.started).to_system(),
        duration: Duration::from_micros(text.duration),
        attempt: text.attempt,
        end: match text.end {
            EndText::Done => RunEnd::Done,
            EndText::Again => RunEnd::Again,
            EndText::Failed => RunEnd::Failed,
            EndText::Dead => RunEnd::Dead,
        },
        error: text.error.map(Into::into),
    }
}
