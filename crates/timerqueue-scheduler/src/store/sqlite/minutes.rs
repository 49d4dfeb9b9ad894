//! The ends of runs by minute and handler, in the file.

use std::collections::BTreeMap;

use rusqlite::params;

use super::statements::Statements;
use crate::store::minutes::{Ends, KEPT};

const ADD: &str = "INSERT INTO timerqueue_minutes (minute, handler, done, again, failed, died, expired, longest, \
     late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11) VALUES \
     (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20) \
     ON CONFLICT (minute, handler) DO UPDATE SET done = done + excluded.done, again = again + excluded.again, \
     failed = failed + excluded.failed, died = died + excluded.died, expired = expired + excluded.expired, longest = max(longest, excluded.longest), \
     late0 = late0 + excluded.late0, late1 = late1 + excluded.late1, late2 = late2 + excluded.late2, \
     late3 = late3 + excluded.late3, late4 = late4 + excluded.late4, late5 = late5 + excluded.late5, \
     late6 = late6 + excluded.late6, late7 = late7 + excluded.late7, late8 = late8 + excluded.late8, \
     late9 = late9 + excluded.late9, late10 = late10 + excluded.late10, late11 = late11 + excluded.late11";

/// What a commit has counted, by minute and handler.
pub(super) type Counted = BTreeMap<(i64, usize), Ends>;

/// Adds the counts of a commit. `pruned`: the minute up to which this connection has removed what
/// is older than a week.
pub(super) fn write(statements: &mut Statements<'_>, counted: &Counted, pruned: &mut i64) -> rusqlite::Result<()> {
    for (&(minute, handler), ends) in counted {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = ends.late;
        let Ends { done, again, failed, died, expired, longest, .. } = *ends;
        let params = params![
            minute,
            handler as i64,
            done,
            again,
            failed,
            died,
            expired,
            longest,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
            i,
            j,
            k,
            l
        ];
        statements.get(ADD)?.execute(params)?;
    }
    let latest = counted.last_key_value().map(|(&(minute, _), _)| minute);
    if let Some(latest) = latest.filter(|latest| latest != pruned) {
        statements.get("DELETE FROM timerqueue_minutes WHERE minute <= ?1")?.execute([latest - KEPT])?;
        *pruned = latest;
    }
    Ok(())
}
