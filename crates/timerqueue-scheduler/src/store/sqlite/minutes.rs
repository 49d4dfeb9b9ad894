//! The ends of runs by minute and handler, in the file.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::error::Failure;
use super::rows;
use super::statements::Statements;
use crate::store::Micros;
use crate::store::minutes::{self, Activity, CLASSES, Ends, KEPT, minute_of, minutes_of};

const ADD: &str = "INSERT INTO timerqueue_minutes (minute, handler, done, again, failed, died, longest, \
     late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11) VALUES \
     (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19) \
     ON CONFLICT (minute, handler) DO UPDATE SET done = done + excluded.done, again = again + excluded.again, \
     failed = failed + excluded.failed, died = died + excluded.died, longest = max(longest, excluded.longest), \
     late0 = late0 + excluded.late0, late1 = late1 + excluded.late1, late2 = late2 + excluded.late2, \
     late3 = late3 + excluded.late3, late4 = late4 + excluded.late4, late5 = late5 + excluded.late5, \
     late6 = late6 + excluded.late6, late7 = late7 + excluded.late7, late8 = late8 + excluded.late8, \
     late9 = late9 + excluded.late9, late10 = late10 + excluded.late10, late11 = late11 + excluded.late11";

const WINDOWS: &str = "SELECT minute - minute % ?2 AS begin, handler.name, sum(done), sum(again), sum(failed), sum(died), \
     max(longest), sum(late0), sum(late1), sum(late2), sum(late3), sum(late4), sum(late5), sum(late6), sum(late7), \
     sum(late8), sum(late9), sum(late10), sum(late11) FROM timerqueue_minutes AS counted \
     JOIN timerqueue_handlers AS handler ON handler.id = counted.handler WHERE minute >= ?1 \
     GROUP BY begin, handler.name ORDER BY begin, handler.name";

/// What a commit has counted, by minute and handler.
pub(super) type Counted = HashMap<(i64, usize), Ends>;

/// Adds the counts of a commit. `pruned`: the minute up to which this connection has removed what
/// is older than a week.
pub(super) fn write(statements: &mut Statements<'_>, counted: &Counted, pruned: &mut i64) -> rusqlite::Result<()> {
    for (&(minute, handler), ends) in counted {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = ends.late;
        let Ends { done, again, failed, died, longest, .. } = *ends;
        let params =
            params![minute, handler as i64, done, again, failed, died, longest, a, b, c, d, e, f, g, h, i, j, k, l];
        statements.get(ADD)?.execute(params)?;
    }
    let latest = counted.keys().map(|&(minute, _)| minute).max();
    if let Some(latest) = latest.filter(|latest| latest != pruned) {
        statements.get("DELETE FROM timerqueue_minutes WHERE minute <= ?1")?.execute([latest - KEPT])?;
        *pruned = latest;
    }
    Ok(())
}

/// The ends of runs from an instant on, by window and handler.
pub(super) fn read(db: &Connection, since: Micros, window: Duration) -> Result<Vec<Activity>, Failure> {
    let window = minutes_of(window);
    let first = minute_of(since);
    let mut statement = db.prepare_cached(WINDOWS)?;
    let windows = statement.query_map([first - first % window, window], |row| {
        // What a person has written into the file may be anything.
        let count = |column: usize| row.get::<_, i64>(column).map(|count| u64::try_from(count).unwrap_or_default());
        let mut late = [0; CLASSES];
        for (class, late) in late.iter_mut().enumerate() {
            *late = count(7 + class)?;
        }
        let name = rows::text(row, 1)?;
        let counts = [count(2)?, count(3)?, count(4)?, count(5)?];
        Ok(minutes::activity(row.get(0)?, name, counts, late, row.get(6)?))
    })?;
    Ok(windows.collect::<Result<_, _>>()?)
}
