//! Operations inside of a transaction of the user's, on the same server: statements for any driver.
//!
//! Ground rules. What the statements do is written in functions of the schema, which stand beside
//! the rules: they put, call off and move rows, and leave all else to the nodes. A run that a
//! transaction has ended keeps its row, with a mark that the commit sets under the fence of the
//! run. Its engine ends it by the rules, or after the end of its member the next claim does.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::PostgresStore;
use super::error::Failure;
use crate::Error;
use crate::store::rules::{Recurring, first_occurrence, span_of};
use crate::store::sql::checked;
use crate::store::{
    Applied, Cancel, Change, Clash, Expiry, Fault, Invalid, JobId, Micros, Mutation, NewJob, Op, Placed, Statement,
    Terms, Verdict, When, limits, text,
};

/// The code with which the fence refuses a run.
const NOT_HELD: &str = "TQ001";

impl PostgresStore {
    pub(super) fn statement_of(&self, op: Op) -> Result<Statement, Error> {
        limits::check(&op)?;
        let schema = self.inner.shared.settings.schema_name();
        let statement = |call: &str, parameters| Statement { text: format!("SELECT {schema}.{call}"), parameters };
        Ok(match checked(op)? {
            Op::Put(new) => statement(PLACE, self.placing(*new)?),
            Op::Key { key, mutation: Mutation::Cancel } => statement("cancel($1::text) || ' cancel'", vec![some(&key)]),
            Op::Key { key, mutation: Mutation::Move(when) } => {
                let (at, after) = self.instant(when)?;
                statement(MOVE, vec![some(&key), at, after])
            }
            Op::Settle(settle) if matches!(settle.verdict, Verdict::Done | Verdict::Kept(_)) => {
                let lasted = settle.record.map_or(0, |record| span_of(record.duration));
                let keep = if let Verdict::Kept(keep) = settle.verdict { text::write_keep(&keep) } else { None };
                let text = format!("SELECT 'done' FROM {schema}.done($1::text, $2::text::bigint, $3::text::json)");
                Statement { text, parameters: vec![Some(settle.held.fence()), Some(lasted.to_string()), keep] }
            }
            _ => return Err(refused("this operation is none for a transaction of the user's")),
        })
    }

    /// The parameters of [`PLACE`].
    fn placing(&self, new: NewJob) -> Result<Vec<Option<String>>, Error> {
        let NewJob {
            terms,
            key,
            name,
            payload,
            group,
            priority,
            expires,
            when,
            recurrence,
            first: _,
            span: _,
            clash,
            refuse_overdue,
            trace,
            after,
        } = new;
        if after.is_some() {
            return Err(refused("a job that is put after others is none for a transaction of the user's"));
        }
        let clash = match clash {
            Clash::Refuse => "refuse",
            Clash::Keep => "keep",
            Clash::Update if recurrence.is_some() => {
                return Err(refused("`Clash::Update` of a recurring job is none for a transaction of the user's"));
            }
            Clash::Replace | Clash::Update => "replace",
        };
        let recurring = match recurrence {
            None => None,
            Some(recurrence) => {
                first_occurrence(&recurrence.schedule, self.inner.shared.server_now()).ok_or(Error::NoOccurrence)?;
                // The look finds the first occurrence, by the clock of the server.
                let recurring = Recurring::new(recurrence, None, Micros::FIRST);
                Some(text::write_recurring(&recurring).map_err(|reason| Error::NotSerializable { reason })?)
            }
        };
        let (at, after) = self.instant(when)?;
        let time = |time| span_of(time).min(Micros::LAST.as_i64()).to_string();
        let expires = match expires {
            None => [None, None, None],
            Some(Expiry::At(When::At(last))) => [Some(last.as_i64().to_string()), None, None],
            Some(Expiry::At(When::After(from_now))) => [None, Some(time(from_now)), None],
            Some(Expiry::AfterDue(after)) => [None, None, Some(time(after))],
        };
        let (priority, refuse_overdue) = (Some(priority.to_string()), Some(refuse_overdue.to_string()));
        let (clash, group) = (some(clash), group.map(|group| group.to_string()));
        let job = vec![some(&name), some(&key), some(&payload), at, after, clash, group, priority];
        let Terms { at_most_once, attempts, limit, unique_for, kept_for } = terms.kept();
        let micros = |time: Option<Duration>| time.map(|time| span_of(time).to_string());
        let terms = [
            micros(kept_for),
            Some(at_most_once.to_string()),
            attempts.map(|attempts| attempts.to_string()),
            micros(limit),
            micros(unique_for),
        ];
        Ok(job
            .into_iter()
            .chain(expires)
            .chain([refuse_overdue, recurring])
            .chain(terms)
            .chain([trace.map(|trace| trace.to_string())])
            .collect())
    }

    /// An instant, or a time from the commit, in microseconds.
    fn instant(&self, when: When) -> Result<(Option<String>, Option<String>), Invalid> {
        Ok(match when {
            When::At(at) => (Some(at.as_i64().to_string()), None),
            When::After(after) => {
                self.inner.shared.server_now().checked_add(after)?;
                (None, Some(span_of(after).to_string()))
            }
        })
    }
}

/// Each parameter is a text, so that any driver can bind it.
const PLACE: &str = "place($1::text, $2::text, $3::text, $4::text::bigint, $5::text::bigint, $6::text, $7::text, \
     $8::text::bigint, $9::text::bigint, $10::text::bigint, $11::text::bigint, $12::text::boolean, $13::text, \
     $14::text::bigint, $15::text::boolean, $16::text::bigint, $17::text::bigint, $18::text::bigint, $19::text)";

const MOVE: &str = "move_to($1::text, $2::text::bigint, $3::text::bigint)";

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn refused(reason: &str) -> Error {
    Error::Store { fault: Fault::Other, reason: reason.into() }
}

impl Statement {
    /// What the answer means.
    pub fn applied(answer: &str) -> Option<Applied> {
        let (what, number) = answer.split_once(' ').unwrap_or((answer, ""));
        let id = number.parse().ok().map(JobId);
        Some(match what {
            "added" => Applied::Placed(Placed::Added(id?)),
            "replaced" => Applied::Placed(Placed::Replaced { id: id?, was_running: false }),
            "replaced_running" => Applied::Placed(Placed::Replaced { id: id?, was_running: true }),
            "kept" => Applied::Placed(Placed::Kept(id?)),
            "refused" => Applied::Placed(Placed::Refused(id?)),
            "overdue" => Applied::Placed(Placed::Overdue),
            "cancelled" => Applied::Cancel(Cancel::Cancelled),
            "running" if number == "cancel" => Applied::Cancel(Cancel::Running),
            "absent" if number == "cancel" => Applied::Cancel(Cancel::Absent),
            "changed" => Applied::Change(Change::Changed),
            "running" => Applied::Change(Change::Running),
            "other_kind" => Applied::Change(Change::WrongKind),
            "absent" => Applied::Change(Change::Absent),
            "done" => Applied::Held(true),
            _ => return None,
        })
    }

    /// Runs it in a transaction, in one round trip.
    pub async fn run(&self, transaction: &Transaction<'_>) -> Result<String, Error> {
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> =
            self.parameters.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT)).collect();
        let rows = transaction.query_typed(&self.text, &parameters).await.map_err(|error| match error.code() {
            Some(code) if code.code() == NOT_HELD => Error::NotHeld,
            _ => Failure::from(error).error(),
        })?;
        let answer = rows.first().and_then(|row| row.try_get::<_, String>(0).ok());
        answer.ok_or_else(|| refused("the function of the schema has given no answer"))
    }
}
