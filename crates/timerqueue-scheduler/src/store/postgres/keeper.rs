//! The thread that keeps: renews leases, hears of other nodes, and looks for what no notice told.
//!
//! Ground rules. A connection of its own, so that no slow transaction of the writer delays a
//! renewal. A row that is locked is left out, and renewed the next time: a lease is three renewals
//! long. No code of users runs here.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::AsyncMessage;

use super::error::{Failure, Remedy};
use super::minutes::{self, FOLDS};
use super::wire::{self, Wire, limited};
use super::{Shared, link, members, sleepers};
use crate::store::rules::KEPT_MICROS;
use crate::store::{Fault, Held, JobId, Micros, Notice};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How often schedulers ask whether there is new zone data.
const DAY: Duration = Duration::from_secs(86_400);
/// How long the last commit of a connection is known, in microseconds: a week.
const WRITERS_KEPT: i64 = 7 * 86_400_000_000;

/// What a notice of another node says.
enum Heard {
    Notice(String),
    /// The connection has ended.
    Silence,
}

pub(super) fn run(shared: &Arc<Shared>, stop: oneshot::Receiver<()>) {
    let Ok(runtime) = link::new_runtime() else { return };
    runtime.block_on(async {
        let (keeping, days) = (std::pin::pin!(keep(shared)), std::pin::pin!(tell_days(shared)));
        drop(select(select(keeping, days), stop).await);
    });
}

async fn tell_days(shared: &Shared) {
    loop {
        sleep(DAY).await;
        shared.tell(Notice::Day);
    }
}

/// Serves connections, one after another.
async fn keep(shared: &Shared) {
    let mut wait = FIRST_WAIT;
    loop {
        let begun = Instant::now();
        let _ = serve(shared).await;
        if begun.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        sleep(shared.spread(wait)).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

async fn connect(shared: &Shared) -> Result<(Wire, mpsc::UnboundedReceiver<Heard>), Failure> {
    let settings = &shared.settings;
    let (client, mut connection) = wire::connect(settings, settings.patience).await?;
    let (send, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notice) = message {
                let _ = send.send(Heard::Notice(notice.payload().to_owned()));
            }
        }
        let _ = send.send(Heard::Silence);
    });
    let wire = limited(settings.patience, Wire::new(client, settings, &[])).await?;
    // A pooler in transaction mode would listen on a connection that others use.
    if !settings.is_pooled {
        let listen = format!("LISTEN {}", super::quoted(&settings.channel()));
        limited(settings.patience, wire.batch(&listen)).await?;
    }
    Ok((wire, heard))
}

async fn serve(shared: &Shared) -> Result<(), Failure> {
    let (wire, mut heard) = connect(shared).await?;
    // What was missed before.
    shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
    let renews = shared.settings.lease / 3;
    let (mut renew_at, mut look_at) = (Instant::now(), Instant::now() + shared.spread(shared.settings.safety));
    let (mut suspects, mut fold_at) = (HashSet::new(), Instant::now());
    loop {
        let next = std::pin::pin!(heard.recv());
        let tick = std::pin::pin!(sleep_until(renew_at.min(look_at)));
        match select(next, tick).await {
            Either::Left((Some(Heard::Notice(payload)), _)) => sleepers::hear(shared, &payload),
            Either::Left((Some(Heard::Silence) | None, _)) => return Err(Failure::lost("the connection has ended")),
            Either::Right(_) => {}
        }
        let now = Instant::now();
        if now >= renew_at {
            renew_at = now + renews;
            match limited(shared.settings.patience, renew(shared, &wire, &mut suspects)).await {
                // Another session has locked a row: the next time.
                Err(failure) if failure.fault == Fault::Locked => {}
                renewed => renewed?,
            }
        }
        if now >= fold_at {
            fold_at = now + shared.spread(FOLDS);
            match limited(shared.settings.patience, minutes::fold(&wire)).await {
                // Another node folds.
                Err(failure) if failure.remedy != Remedy::Reconnect => {}
                folded => folded?,
            }
        }
        if now >= look_at {
            look_at = now + shared.spread(shared.settings.safety);
            shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
        }
    }
}

const RENEW: &str = "WITH mine AS (SELECT j.id FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS h (id, owner, claims) \
     JOIN jobs j ON j.id = h.id AND j.owner = h.owner AND j.claims = h.claims AND j.state = 2 FOR UPDATE OF j SKIP LOCKED) \
     UPDATE jobs SET lease = clock() + $4, wake = clock() + $4 FROM mine WHERE jobs.id = mine.id \
     RETURNING jobs.id, jobs.cancelled";

const LOST: &str = "SELECT h.id, h.owner, h.claims FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS h (id, owner, claims) \
     LEFT JOIN jobs j ON j.id = h.id AND j.owner = h.owner AND j.claims = h.claims AND j.state = 2 WHERE j.id IS NULL";

/// Renews the leases of all runs. A run that is another node's by now, or was cancelled, learns of
/// it.
async fn renew(shared: &Shared, wire: &Wire, suspects: &mut HashSet<Held>) -> Result<(), tokio_postgres::Error> {
    let held: Vec<Held> = shared.held.lock().iter().copied().collect();
    if !held.is_empty() {
        let ids: Vec<i64> = held.iter().map(|held| held.id.0 as i64).collect();
        let owners: Vec<i64> = held.iter().map(|held| held.owner as i64).collect();
        let claims: Vec<i64> = held.iter().map(|held| held.claim as i64).collect();
        let lease = i64::try_from(shared.settings.lease.as_micros()).unwrap_or(i64::MAX / 4);
        let renewed = wire.ask(RENEW, &[&ids, &owners, &claims, &lease]).await?;
        for row in &renewed {
            if row.get(1) {
                shared.tell(Notice::Cancelled(JobId(row.get::<_, i64>(0) as u64)));
            }
        }
        if renewed.len() < held.len() {
            let lost = wire.ask(LOST, &[&ids, &owners, &claims]).await?;
            let lost = lost.iter().map(|row| Held {
                id: JobId(row.get::<_, i64>(0) as u64),
                owner: row.get::<_, i64>(1) as u64,
                claim: row.get::<_, i64>(2) as u64,
            });
            // A run that has just been settled is lost as well, and is forgotten until the next
            // time.
            let (lost, before): (Vec<Held>, _) = (lost.collect(), std::mem::take(suspects));
            for held in lost {
                let is_known = shared.held.lock().contains(&held);
                if is_known && before.contains(&held) {
                    shared.held.lock().remove(&held);
                    shared.tell(Notice::Cancelled(held.id));
                } else if is_known {
                    suspects.insert(held);
                }
            }
        }
    }
    members::renew(shared, wire).await?;
    keep_nodes(shared, wire).await
}

/// The nodes of this store live; others that have not been seen for long do not.
async fn keep_nodes(shared: &Shared, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    let owners = shared.owners();
    let written = shared.sleeps.lock().values().filter(|sleeps| sleeps.is_some()).count();
    let seen = "UPDATE nodes SET seen = clock() WHERE owner = ANY($1::bigint[]) RETURNING owner";
    let seen = wire.ask(seen, &[&owners]).await?.len();
    let long = i64::try_from(shared.settings.lease.as_micros() * 10).unwrap_or(i64::MAX / 4);
    wire.ask("DELETE FROM nodes WHERE seen < clock() - $1", &[&long.max(60_000_000)]).await?;
    // Those that others have locked are in use again.
    let idle = "DELETE FROM affinities WHERE id IN (SELECT id FROM affinities WHERE idle <= clock() - $1 ORDER BY idle \
                LIMIT 1000 FOR UPDATE SKIP LOCKED)";
    wire.ask(idle, &[&KEPT_MICROS]).await?;
    // No commit waits this long for its answer.
    wire.ask("DELETE FROM writers WHERE at < clock() - $1", &[&WRITERS_KEPT]).await?;
    if seen < written {
        // This node was taken for dead: others told it nothing.
        shared.sleeps.lock().values_mut().for_each(|sleeps| *sleeps = None);
        shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
    }
    Ok(())
}
