//! Done jobs in tables.

use super::{Answer, Texts, Value, values};
use crate::store::history::OVER_AT_ONCE;
use crate::store::sql::looks::Look;
use crate::store::{Finished, FinishedJob, HistoryQuery, JobId, Micros, text};

/// The parts of done jobs that are texts of this store: the last run, and the node.
pub(in crate::store) struct Texted(Vec<(Option<String>, Option<String>)>);

impl Texted {
    /// `clean`: a text as the database takes it.
    pub(in crate::store) fn of(done: &[Finished], clean: fn(&str) -> String) -> Self {
        let texts =
            |done: &Finished| (done.last.as_deref().and_then(text::write_last), done.node.as_deref().map(clean));
        Self(done.iter().map(texts).collect())
    }
}

/// What writes the done jobs of a transaction: a statement for each of them.
pub(in crate::store) fn kept<'v>(
    texts: &Texts,
    done: &'v [Finished],
    Texted(texted): &'v Texted,
) -> impl Iterator<Item = (&'static str, Vec<Value<'v>>)> {
    let finish = texts.finish;
    done.iter().zip(texted).map(move |(one, (last, node))| {
        let Finished { id, key, kind, payload, ended, result, keep_until, key_until, .. } = one;
        let (last, node, result) = (last.as_deref(), node.as_deref(), result.as_deref());
        let (keep, taken) = (*keep_until, *key_until);
        (finish, values![*id, &**key, *kind, &**payload, *ended, last, node, result, keep, taken].to_vec())
    })
}

/// Which done jobs are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::store) enum Removal {
    /// Those whose time is over.
    Over,
    /// Those of a handler beyond the most.
    Surplus(usize),
}

/// What removes done jobs, along with those of a transaction: a few statements.
pub(in crate::store) fn removals(
    texts: &Texts,
    done: &[Finished],
    now: Micros,
) -> Vec<(Removal, &'static str, Vec<Value<'static>>)> {
    let mut removals = Vec::new();
    // First, since those whose time is over are none of the most that are kept.
    if !done.is_empty() {
        removals.push((Removal::Over, texts.finished_over, values![now, OVER_AT_ONCE * done.len()].to_vec()));
    }
    for one in done {
        if let Some(most) = one.surplus_at_once() {
            let kept = i64::try_from(one.most).unwrap_or(i64::MAX);
            let values = values![one.kind, kept, most, now].to_vec();
            removals.push((Removal::Surplus(one.kind), texts.finished_surplus, values));
        }
    }
    removals
}

fn job(row: &impl Answer) -> FinishedJob {
    let text = |column| row.text(column).unwrap_or_default();
    FinishedJob {
        id: JobId(row.count(0)),
        key: text(1),
        name: text(2),
        payload: text(3),
        ended: row.instant(4).unwrap_or(Micros::FIRST).to_system(),
        last: row.text(5).as_deref().and_then(text::read_last),
        node: row.text(6),
        result: row.text(7),
        seq: row.count(8),
    }
}

/// The done jobs of a query.
pub(in crate::store) fn list<L: Look>(db: &L, query: &HistoryQuery) -> Result<Vec<FinishedJob>, L::Failure> {
    let HistoryQuery { key, name, prefix, after, oldest_first, .. } = query;
    let from = if *oldest_first { -1 } else { i64::MAX };
    let after = after.map_or(from, |seq| i64::try_from(seq).unwrap_or(i64::MAX));
    let (name, prefix, most) = (name.as_deref(), prefix.as_deref(), query.most());
    if ![key.as_deref(), name, prefix].into_iter().flatten().all(L::can_have) {
        return Ok(Vec::new());
    }
    let either = |first, last| if *oldest_first { first } else { last };
    let texts = L::TEXTS;
    let rows = match (key.as_deref(), name) {
        (Some(key), _) if !key.starts_with(prefix.unwrap_or_default()) => return Ok(Vec::new()),
        (Some(key), name) => {
            db.look(either(texts.done_first_with, texts.done_last_with), values![key, after, name, most])
        }
        (None, Some(name)) => {
            db.look(either(texts.done_first_of, texts.done_last_of), values![after, prefix, name, most])
        }
        (None, None) => db.look(either(texts.done_first, texts.done_last), values![after, prefix, most]),
    };
    Ok(rows?.iter().map(job).collect())
}

/// The done job with a number.
pub(in crate::store) fn one<L: Look>(db: &L, id: JobId) -> Result<Option<FinishedJob>, L::Failure> {
    Ok(db.look(L::TEXTS.done_job, values![id])?.first().map(job))
}
