//! Schedules, last runs and handlers as JSON text, for the columns `recurring`, `last`, `failures`
//! and `handlers` of a file or a server.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::form::micros_of;
use super::rules::{Ended, Failures, Recurring};
use super::{EntryHandler, History, Keep, LastRun, Micros, RunEnd};

/// A run, as it is stored: instants and durations in microseconds.
#[derive(Serialize, Deserialize)]
struct StoredRun {
    due: Micros,
    nominal: Option<Micros>,
    started: Micros,
    duration: u64,
    attempt: u32,
    end: RunEnd,
    error: Option<Arc<str>>,
}

impl From<&LastRun> for StoredRun {
    fn from(run: &LastRun) -> Self {
        Self {
            due: Micros::floor(run.due),
            nominal: run.nominal.map(Micros::floor),
            started: Micros::floor(run.started),
            duration: micros_of(run.duration),
            attempt: run.attempt,
            end: run.end,
            error: run.error.clone(),
        }
    }
}

impl From<StoredRun> for LastRun {
    fn from(run: StoredRun) -> Self {
        Self {
            due: run.due.to_system(),
            nominal: run.nominal.map(Micros::to_system),
            started: run.started.to_system(),
            duration: Duration::from_micros(run.duration),
            attempt: run.attempt,
            end: run.end,
            error: run.error,
        }
    }
}

pub(super) fn write_handlers(handlers: &[EntryHandler]) -> String {
    serde_json::to_string(handlers).unwrap_or_default()
}

/// Nothing, if the text was written by hand and is wrong.
pub(super) fn read_handlers(text: &str) -> Vec<EntryHandler> {
    serde_json::from_str(text).unwrap_or_default()
}

pub(super) fn write_recurring(recurring: &Recurring) -> Result<String, String> {
    serde_json::to_string(recurring).map_err(|error| error.to_string())
}

/// Without the runs, which are rows of their own.
pub(super) fn read_recurring(text: &str) -> Result<Box<Recurring>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

pub(super) fn write_last(last: &LastRun) -> Option<String> {
    serde_json::to_string(&StoredRun::from(last)).ok()
}

/// What is kept of a done job, without the value of its handler.
#[derive(Serialize, Deserialize)]
struct StoredKeep {
    time: u64,
    rows: u64,
    keys: u64,
    node: Option<Arc<str>>,
}

impl StoredKeep {
    fn of(keep: &Keep) -> Self {
        let History { time, rows, keys } = keep.history;
        Self { time: micros_of(time), rows, keys: micros_of(keys), node: keep.node.clone() }
    }
}

/// The end of a run, as a transaction of the user's has left it.
#[derive(Serialize, Deserialize)]
struct StoredEnd {
    last: StoredRun,
    keep: Option<StoredKeep>,
}

#[cfg(feature = "postgres")]
pub(super) fn write_keep(keep: &Keep) -> Option<String> {
    serde_json::to_string(&StoredKeep::of(keep)).ok()
}

pub(super) fn write_ended(ended: &Ended) -> Option<String> {
    let keep = ended.keep.as_ref().map(StoredKeep::of);
    serde_json::to_string(&StoredEnd { last: StoredRun::from(&ended.record), keep }).ok()
}

/// `None`: written by hand, and wrong.
pub(super) fn read_ended(text: &str) -> Option<Box<Ended>> {
    let StoredEnd { last, keep } = serde_json::from_str(text).ok()?;
    let keep = keep.map(|StoredKeep { time, rows, keys, node }| {
        let history = History { time: Duration::from_micros(time), rows, keys: Duration::from_micros(keys) };
        Keep { history, node, result: None }
    });
    Some(Box::new(Ended { record: last.into(), keep }))
}

pub(super) fn write_failures(failures: &Failures) -> Option<String> {
    serde_json::to_string(&failures.attempts.iter().map(StoredRun::from).collect::<Vec<_>>()).ok()
}

/// `None`: written by hand, and wrong. The last run is for people, and stands in nothing's way.
pub(super) fn read_last(text: &str) -> Option<Box<LastRun>> {
    serde_json::from_str::<StoredRun>(text).ok().map(|run| Box::new(run.into()))
}

/// `None`: written by hand, and wrong.
pub(super) fn read_failures(text: &str) -> Option<Box<Failures>> {
    let attempts: Vec<StoredRun> = serde_json::from_str(text).ok()?;
    Some(Box::new(Failures { attempts: attempts.into_iter().map(LastRun::from).collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as version 0.1.0 has written them. They are never changed: each later version reads
    /// them, and writes them again.
    #[test]
    fn l17_stored_schedules_stay_readable_and_stay_the_output() {
        for text in [
            concat!(
                r#"{"schedule":{"cron":"30 2 * * *","zone":"Europe/Berlin"},"catchup":{"run_all":3},"grace":60000001,"#,
                r#""overlap":"queue_one","version":7,"next":[1767225600000000,1767225600500000],"look":null,"#,
                r#""looked":false,"last_nominal":1767139200000000,"ended":null,"ending":false,"runs":4,"skipped":1,"#,
                r#""missed":2}"#
            ),
            concat!(
                r#"{"schedule":{"every":"0.25s"},"catchup":"run_last","grace":null,"overlap":"skip","version":0,"#,
                r#""next":null,"look":253402300799999999,"looked":true,"last_nominal":null,"reached":1767139200000000,"#,
                r#""ended":null,"ending":true,"runs":18446744073709551615,"skipped":0,"missed":0}"#
            ),
            concat!(
                r#"{"schedule":{"any":[{"cron":"0 8 * * *"},{"every":"3600s"}]},"catchup":"skip","#,
                r#""grace":18446744073709551615,"overlap":"allow","version":1,"next":null,"look":null,"looked":false,"#,
                r#""last_nominal":null,"ended":1767139200000000,"ending":false,"runs":0,"skipped":0,"missed":0}"#
            ),
        ] {
            assert_eq!(write_recurring(&read_recurring(text).unwrap()).unwrap(), text);
        }
        // As another program may write it: in another order, without what may be nothing.
        let by_hand = concat!(
            r#"{"new":1,"missed":0,"skipped":0,"runs":0,"ending":false,"looked":false,"version":3,"overlap":"skip","#,
            r#""catchup":"skip","schedule":{"every":"1s"}}"#
        );
        assert_eq!(read_recurring(by_hand).unwrap().version, 3);
        for wrong in ["", "{}", "null", &by_hand.replace("\"skip\"", "\"other\""), &by_hand.replace("1s", "1")] {
            assert!(read_recurring(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn l17_stored_runs_stay_readable_and_stay_the_output() {
        let run = concat!(
            r#"{"due":1767225600000000,"nominal":1767225599000000,"started":1767225600000001,"duration":1500,"#,
            r#""attempt":2,"end":"failed","error":"disk \"full\""}"#
        );
        let done = concat!(
            r#"{"due":0,"nominal":null,"started":0,"duration":18446744073709551615,"attempt":1,"end":"done","#,
            r#""error":null}"#
        );
        for text in [run, done, &done.replace("done", "again"), &done.replace("done", "dead")] {
            assert_eq!(write_last(&read_last(text).unwrap()).unwrap(), text);
        }
        let both = format!("[{run},{done}]");
        assert_eq!(write_failures(&read_failures(&both).unwrap()).unwrap(), both);
        assert!(read_last(r#"{"due":0,"started":0,"duration":1,"attempt":1,"end":"done"}"#).is_some());
        assert!(read_last("{}").is_none() && read_failures("{}").is_none());
    }

    #[test]
    fn l17_stored_handlers_stay_readable_and_stay_the_output() {
        let text = r#"[{"name":"mail","parallel":32},{"name":"a \"b\"","parallel":18446744073709551615}]"#;
        assert_eq!(write_handlers(&read_handlers(text)), text);
        assert_eq!(read_handlers(r#"[{"parallel":1,"name":"a","new":0}]"#).len(), 1);
        assert_eq!(read_handlers("{"), []);
    }
}
