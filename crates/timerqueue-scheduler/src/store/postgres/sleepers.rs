//! Which node looks at a row that is due: one at once, the others later.
//!
//! Ground rules. A node that goes to sleep writes into the table `nodes` until when, and for which
//! handlers it has places left. Of the nodes that wait for the same row, the first to go to sleep
//! wakes up at its instant. Each further one wakes up a [`STEP`] later than the one before, up to
//! [`STEPS`] of them, in case the first one has gone or has no place any more. A notice of an
//! earlier row names one node that has a place for it. The others that have one hear it too, and
//! look some steps later. So a due row causes one claim at its instant. All further ones of a node
//! are a step apart at least, however many rows become due. A claim that leaves due rows for want
//! of places tells the next node at once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::{Step, run};
use super::work::Work;
use super::{Shared, micros};
use crate::store::{Claim, Claimed, JobId, Micros, Notice};

/// How much later the next node looks.
pub(super) const STEP: Duration = Duration::from_millis(50);
/// The most steps.
pub(super) const STEPS: u32 = 4;

/// The first wake instant that a transaction has given to rows, or left to others: by handler. What
/// each node must look at stands under [`ALL_NODES`].
pub(super) type Woken = BTreeMap<i64, i64>;

/// In place of a handler: of jobs with a group, which one node alone may run, and of places
/// that are free for all nodes.
pub(super) const ALL_NODES: i64 = -1;

/// Among the handlers of a node: one that no job has ever been put for, so the server has no number
/// for it.
const UNKNOWN: i64 = 0;

/// What the server knows of the sleep of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sleep {
    /// The row that the scheduler waits for.
    next: Micros,
    /// The handlers with places left.
    handlers: Vec<i64>,
    /// When it wakes up: then, or some steps later.
    wakes: Micros,
}

/// `$2` is the row, `$5` the end of the clock, `$6` a step, `$7` the most steps. Nodes that have
/// not been seen for a time are none.
const SLEEP: &str = "INSERT INTO nodes (owner, wakes, seen, handlers, safety) \
     SELECT $1::bigint, CASE WHEN $2::bigint < $5::bigint THEN $2 + $6::bigint * (SELECT least(count(*), $7::bigint) FROM nodes \
     WHERE owner <> $1 AND wakes BETWEEN $2 AND $2 + $6 * $7 AND handlers && $4 AND seen > $3 - $8::bigint) ELSE $2 END, \
     $3::bigint, $4::bigint[], $9::bigint \
     ON CONFLICT (owner) DO UPDATE SET wakes = excluded.wakes, seen = excluded.seen, handlers = excluded.handlers, \
     safety = excluded.safety \
     RETURNING wakes";

/// The handlers that have places left after a claim.
fn free(work: &Work<'_>, claim: &Claim, claimed: &Claimed) -> Vec<i64> {
    if claimed.jobs.len() >= claim.at_most {
        return Vec::new();
    }
    let is_free =
        |room: &&crate::store::Room| claimed.jobs.iter().filter(|job| job.name == room.name).count() < room.places;
    let free = claim.rooms.iter().filter(is_free).map(|room| work.dialect.number_of(&room.name));
    let mut free: Vec<i64> = free.map(|kind| kind.map_or(UNKNOWN, |kind| kind as i64)).collect();
    free.sort_unstable();
    free.dedup();
    free
}

/// The sleep of a scheduler after a claim.
#[derive(Debug)]
pub(super) struct Bedtime {
    sleep: Sleep,
    /// The server knows of it.
    is_known: bool,
    /// The next instant of a group of the member.
    own: Option<Micros>,
}

/// Whether the scheduler goes to sleep after this claim. `slept`: what the server knows.
pub(super) fn bedtime(work: &Work<'_>, claim: &Claim, claimed: &Claimed, slept: Option<&Sleep>) -> Option<Bedtime> {
    let next = [claimed.next_job, claimed.next_schedule].into_iter().flatten().min().unwrap_or(Micros::LAST);
    if next <= work.up {
        return None;
    }
    let handlers = free(work, claim, claimed);
    let known = slept.filter(|slept| slept.next == next && slept.handlers == handlers);
    let sleep = known.cloned().unwrap_or(Sleep { next, handlers, wakes: next });
    Some(Bedtime { sleep, is_known: known.is_some(), own: work.dialect.next_bound })
}

impl Bedtime {
    /// The row that the scheduler waits for.
    pub(super) fn next(&self) -> Micros {
        self.sleep.next
    }

    /// What tells the server of it, if that is new.
    pub(super) fn step(&self, claim: &Claim, now: Micros, shared: &Shared) -> Option<Step<'static>> {
        let (seen, last) = (micros(shared.settings.lease), Micros::LAST.as_i64());
        let (owner, next, now) = (claim.owner as i64, self.sleep.next.as_i64(), now.as_i64());
        let handlers = self.sleep.handlers.clone();
        (!self.is_known).then(|| {
            run!(
                SLEEP,
                owner,
                next,
                now,
                handlers,
                last,
                micros(STEP),
                i64::from(STEPS),
                seen,
                micros(shared.settings.safety)
            )
        })
    }

    /// The answer to the claim gets the instant at which the scheduler wakes up. `answer`: that of
    /// the server. Returns what the server knows, if that is new.
    pub(super) fn sleep(mut self, answer: &[tokio_postgres::Row], claimed: &mut Claimed) -> Option<Sleep> {
        if let Some(row) = answer.first() {
            self.sleep.wakes = Micros::new(row.get(0));
        }
        // For what no other node may run there is no first one.
        let Sleep { next, wakes, .. } = self.sleep;
        self.sleep.wakes = self.own.map_or(wakes, |own| wakes.min(own.max(next)));
        for at in [&mut claimed.next_job, &mut claimed.next_schedule].into_iter().flatten() {
            *at = (*at).max(self.sleep.wakes);
        }
        (!self.is_known).then_some(self.sleep)
    }
}

impl Sleep {
    fn has_place(&self, kind: i64) -> bool {
        self.handlers.contains(&kind) || self.handlers.contains(&UNKNOWN)
    }
}

/// A notice to be sent: what it says, and from which instant on.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) at: Option<i64>,
    pub(super) what: String,
}

/// One node with a place for each of the handlers, if it sleeps longer. None, if a scheduler of
/// this store has a place, which has been told.
///
/// A node is not told of what its own safety look finds before it is due.
const ONE: &str = "SELECT woken.at, ' ' || woken.kind || ' ' || node.owner \
     FROM unnest($1::bigint[], $2::bigint[]) AS woken (kind, at), \
     LATERAL (SELECT owner FROM nodes WHERE owner <> ALL($3) AND wakes > woken.at \
     AND (safety IS NULL OR woken.at <= clock() + safety * 3) AND handlers && ARRAY[woken.kind, 0] ORDER BY woken.kind = ANY(handlers) DESC, random() LIMIT 1) AS node \
     WHERE NOT EXISTS (SELECT FROM nodes WHERE owner = ANY($3) AND woken.kind = ANY(handlers))";

/// All nodes, of a row whose handler is not known here.
const ALL: &str = "SELECT $1::bigint, '' WHERE EXISTS (SELECT FROM nodes WHERE owner <> ALL($2::bigint[]) AND wakes > $1 \
     AND (safety IS NULL OR $1 <= clock() + safety * 3))";

/// Another node stops a run that was cancelled, or waits for the end of a job.
const OF_JOBS: &str = "SELECT NULL::bigint, what FROM unnest($1::text[]) AS told (what) \
     WHERE EXISTS (SELECT FROM nodes WHERE owner <> ALL($2::bigint[]))";

/// The nodes that a commit concerns: of a cancelled run, and of rows that are due earlier than what
/// a node waits for. Asked after the commit.
pub(super) fn concerned(
    shared: &Shared,
    notices: impl Iterator<Item = Notice>,
    mut woken: Woken,
) -> Vec<Step<'static>> {
    let owners = shared.owners();
    let (mut of_jobs, mut for_all) = (Vec::new(), woken.get(&ALL_NODES).copied());
    for notice in notices {
        match notice {
            Notice::Cancelled(id) => of_jobs.push(format!("c{}", id.0)),
            Notice::Ended(id) => of_jobs.extend(id.map(|id| format!("e{}", id.0))),
            Notice::Wake { at, .. } if woken.values().all(|&woken| woken > at.as_i64()) => {
                for_all = for_all.into_iter().chain([at.as_i64()]).min();
            }
            Notice::Wake { .. } | Notice::Joined(_) | Notice::Day => {}
        }
    }
    let mut steps = Vec::new();
    if !of_jobs.is_empty() {
        steps.push(run!(OF_JOBS, of_jobs, owners.clone()));
    }
    if let Some(at) = for_all {
        steps.push(run!(ALL, at, owners.clone()));
    }
    woken.remove(&ALL_NODES);
    if !woken.is_empty() {
        let (kinds, instants): (Vec<i64>, Vec<i64>) = woken.into_iter().unzip();
        steps.push(run!(ONE, kinds, instants, owners));
    }
    steps
}

/// The answers to [`concerned`].
pub(super) fn told(answers: &[Vec<tokio_postgres::Row>]) -> Vec<Told> {
    answers.iter().flatten().map(|row| Told { at: row.get(0), what: row.get(1) }).collect()
}

/// A notice: `c` and a run that was cancelled; `e` and a job that has ended; or `w` and an instant,
/// for all, or with a handler and the scheduler that is to look at once.
pub(super) fn hear(shared: &Shared, payload: &str) {
    let Some((verb, numbers)) = payload.split_at_checked(1) else { return };
    let numbers: Vec<i64> = numbers.split(' ').map_while(|number| number.parse().ok()).collect();
    match (verb, &*numbers) {
        ("e", &[id]) => shared.watchers.tell(Notice::Ended(Some(JobId(id as u64)))),
        ("c", &[id]) => shared.watchers.tell(Notice::Cancelled(JobId(id as u64))),
        ("w", &[at]) => shared.watchers.tell(Notice::Wake { at: Micros::new(at) }),
        ("w", &[at, kind, owner]) => {
            let at = Micros::new(at);
            let (is_meant, has_place) = {
                let sleeps = shared.sleeps.lock();
                let has_place = |sleep: &Option<Sleep>| sleep.as_ref().is_none_or(|sleep| sleep.has_place(kind));
                (sleeps.contains_key(&(owner as u64)), sleeps.values().any(has_place))
            };
            if is_meant {
                shared.watchers.tell(Notice::Wake { at });
            } else if has_place {
                // Between two steps and all of them.
                let later = shared.spread(STEP * STEPS / 2);
                shared.watchers.tell(Notice::Wake { at: at.max(shared.server_now()).saturating_add(later) });
            }
        }
        _ => {}
    }
}
