//! Which node looks at a row that is due: one at once, the others later.
//!
//! Ground rules. A node that goes to sleep writes into the table `nodes` until when, and for which handlers it has places left. Of the nodes that
//! wait for the same row, the first to go to sleep wakes up at its instant. Each further one wakes up a [`STEP`] later than the one before, up to
//! [`STEPS`] of them, in case the first one has gone or has no place any more. A notice of an earlier row names one node that has a place for it. The
//! others that have one hear it too, and look some steps later. So a due row causes one claim at its instant. All further ones of a node are a
//! step apart at least, however many rows become due. A claim that leaves due rows for want of places tells the next node at once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Shared;
use super::error::Failure;
use super::link::Link;
use super::work::Work;
use crate::store::{Claim, Claimed, JobId, Micros, Notice};

/// How much later the next node looks.
pub(super) const STEP: Duration = Duration::from_millis(50);
/// The most steps.
pub(super) const STEPS: u32 = 4;

/// The first wake instant that a transaction has given to rows, or left to others: by handler, the ends of leases apart. What each
/// node must look at stands under [`ALL_NODES`].
pub(super) type Woken = BTreeMap<(i64, bool), i64>;

/// In place of a handler: of jobs with an affinity, which one node alone may run, and of places that are free for all nodes.
pub(super) const ALL_NODES: (i64, bool) = (-1, false);

/// Among the handlers of a node: one that no job has ever been put for, so the server has no number for it.
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

/// `$2` is the row, `$5` the end of the clock, `$6` a step, `$7` the most steps. Nodes that have not been seen for a time are none.
const SLEEP: &str = "INSERT INTO nodes (owner, wakes, seen, handlers) \
     SELECT $1::bigint, CASE WHEN $2::bigint < $5::bigint THEN $2 + $6::bigint * (SELECT least(count(*), $7::bigint) FROM nodes \
     WHERE owner <> $1 AND wakes BETWEEN $2 AND $2 + $6 * $7 AND handlers && $4 AND seen > $3 - $8::bigint) ELSE $2 END, \
     $3::bigint, $4::bigint[] \
     ON CONFLICT (owner) DO UPDATE SET wakes = excluded.wakes, seen = excluded.seen, handlers = excluded.handlers \
     RETURNING wakes";

/// The handlers that have places left after a claim.
fn free(work: &Work<'_>, claim: &Claim, claimed: &Claimed) -> Vec<i64> {
    if claimed.jobs.len() >= claim.at_most {
        return Vec::new();
    }
    let is_free =
        |room: &&crate::store::Room| claimed.jobs.iter().filter(|job| job.name == room.name).count() < room.places;
    let free = claim.rooms.iter().filter(is_free).map(|room| work.number(&room.name));
    let mut free: Vec<i64> = free.map(|kind| kind.map_or(UNKNOWN, |kind| kind as i64)).collect();
    free.sort_unstable();
    free.dedup();
    free
}

/// The scheduler goes to sleep after this claim. Its answer gets the instant at which it wakes up. Returns what the server knows once the claim is
/// committed, if that is new.
pub(super) fn sleep(
    work: &mut Work<'_>,
    claim: &Claim,
    claimed: &mut Claimed,
    shared: &Shared,
    slept: Option<&Sleep>,
) -> Option<Sleep> {
    let next = [claimed.next_job, claimed.next_schedule].into_iter().flatten().min().unwrap_or(Micros::LAST);
    if next <= work.now {
        return None;
    }
    let handlers = free(work, claim, claimed);
    let known = slept.filter(|slept| slept.next == next && slept.handlers == handlers);
    let wakes = known.map_or_else(
        || {
            let (owner, now, seen) = (claim.owner as i64, work.now.as_i64(), micros(shared.settings.lease));
            let (at, last, step) = (next.as_i64(), Micros::LAST.as_i64(), micros(STEP));
            let rows = work.query(SLEEP, &[&owner, &at, &now, &handlers, &last, &step, &i64::from(STEPS), &seen]);
            rows.first().map_or(next, |row| Micros::new(row.get(0)))
        },
        |known| known.wakes,
    );
    // For what no other node may run there is no first one.
    let wakes = work.affinities.next.map_or(wakes, |own| wakes.min(own.max(next)));
    for at in [&mut claimed.next_job, &mut claimed.next_schedule].into_iter().flatten() {
        *at = (*at).max(wakes);
    }
    known.is_none().then_some(Sleep { next, handlers, wakes })
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

impl Sleep {
    /// The row that the scheduler waits for.
    pub(super) fn next(&self) -> Micros {
        self.next
    }

    fn has_place(&self, kind: i64) -> bool {
        self.handlers.contains(&kind) || self.handlers.contains(&UNKNOWN)
    }
}

/// One node with a place for each of the handlers, if it sleeps longer. None, if a scheduler of this store has a place, which has been told; but
/// another node for the end of a lease, which matters when this node has gone.
const ONE: &str = "SELECT pg_notify($1, 'w' || woken.at || ' ' || woken.kind || ' ' || node.owner) \
     FROM unnest($2::bigint[], $3::boolean[], $4::bigint[]) AS woken (kind, leased, at), \
     LATERAL (SELECT owner FROM nodes WHERE owner <> ALL($5) AND wakes > woken.at \
     AND handlers && ARRAY[woken.kind, 0] ORDER BY woken.kind = ANY(handlers) DESC, random() LIMIT 1) AS node \
     WHERE woken.leased OR NOT EXISTS (SELECT FROM nodes WHERE owner = ANY($5) AND woken.kind = ANY(handlers))";

/// All nodes, of a row whose handler is not known here.
const ALL: &str = "SELECT pg_notify($1, 'w' || $2::bigint) FROM nodes WHERE owner <> ALL($3) AND wakes > $2 LIMIT 1";

/// Another node stops the run.
const CANCELLED: &str = "SELECT pg_notify($1, 'c' || $2::bigint) FROM nodes WHERE owner <> ALL($3) LIMIT 1";

/// Tells other nodes of what this one has committed: of a cancelled run, and of rows that are due earlier than what a node waits for. In a transaction
/// without rows, since a notice takes a lock over the whole server at its commit. Never of what each safety look finds before it is due.
pub(super) fn tell(
    link: &Link,
    shared: &Shared,
    notices: impl Iterator<Item = Notice>,
    mut woken: Woken,
) -> Result<(), Failure> {
    let (owners, channel) = (shared.owners(), shared.settings.channel());
    let soon = shared.server_now().saturating_add(shared.settings.safety * 3).as_i64();
    for notice in notices {
        match notice {
            Notice::Cancelled(id) => _ = link.ask(CANCELLED, &[&channel, &(id.0 as i64), &owners])?,
            Notice::Wake { at, .. } if woken.values().all(|&woken| woken > at.as_i64()) && at.as_i64() <= soon => {
                link.ask(ALL, &[&channel, &at.as_i64(), &owners])?;
            }
            Notice::Wake { .. } => {}
        }
    }
    woken.retain(|_, at| *at <= soon);
    if let Some(at) = woken.remove(&ALL_NODES) {
        link.ask(ALL, &[&channel, &at, &owners])?;
    }
    if !woken.is_empty() {
        let (rows, instants): (Vec<(i64, bool)>, Vec<i64>) = woken.into_iter().unzip();
        let (kinds, leased): (Vec<i64>, Vec<bool>) = rows.into_iter().unzip();
        link.ask(ONE, &[&channel, &kinds, &leased, &instants, &owners])?;
    }
    Ok(())
}

/// A notice: `c` and a run that was cancelled; or `w` and an instant, for all, or with a handler and the scheduler that is to look at once.
pub(super) fn hear(shared: &Shared, payload: &str) {
    let Some((verb, numbers)) = payload.split_at_checked(1) else { return };
    let numbers: Vec<i64> = numbers.split(' ').map_while(|number| number.parse().ok()).collect();
    match (verb, &*numbers) {
        ("c", &[id]) => shared.tell(Notice::Cancelled(JobId(id as u64))),
        ("w", &[at]) => shared.tell(Notice::Wake { at: Micros::new(at), span: false }),
        ("w", &[at, kind, owner]) => {
            let at = Micros::new(at);
            let (is_meant, has_place) = {
                let sleeps = shared.sleeps.lock();
                let has_place = |sleep: &Option<Sleep>| sleep.as_ref().is_none_or(|sleep| sleep.has_place(kind));
                (sleeps.contains_key(&(owner as u64)), sleeps.values().any(has_place))
            };
            if is_meant {
                shared.tell(Notice::Wake { at, span: false });
            } else if has_place {
                // Between two steps and all of them.
                let later = shared.spread(STEP * STEPS / 2);
                shared.tell(Notice::Wake { at: at.max(shared.server_now()).saturating_add(later), span: false });
            }
        }
        _ => {}
    }
}
