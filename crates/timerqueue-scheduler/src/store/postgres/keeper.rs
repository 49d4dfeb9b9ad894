//! The thread that keeps: renews the leases of members, ends those whose lease is over, hears of
//! other nodes, and looks for what no notice told.
//!
//! Ground rules. A connection of its own, so that no slow transaction of the writer delays a
//! renewal. A lease is three renewals long. No code of users runs here.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::AsyncMessage;

use super::error::{Failure, Remedy};
use super::minutes::{self, FOLDS};
use super::sleepers::{self, Told};
use super::wire::{self, Wire, limited};
use super::{Shared, link, micros};
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

/// `told`: to the thread that tells other nodes.
pub(super) fn run(shared: &Arc<Shared>, told: &Sender<Vec<Told>>, stop: oneshot::Receiver<()>) {
    let Ok(runtime) = link::new_runtime() else { return };
    runtime.block_on(async {
        let (keeping, days) = (std::pin::pin!(keep(shared, told)), std::pin::pin!(tell_days(shared)));
        drop(select(select(keeping, days), stop).await);
    });
}

async fn tell_days(shared: &Shared) {
    loop {
        sleep(DAY).await;
        shared.watchers.tell(Notice::Day);
    }
}

/// Serves connections, one after another.
async fn keep(shared: &Shared, told: &Sender<Vec<Told>>) {
    let mut wait = FIRST_WAIT;
    loop {
        let begun = Instant::now();
        let _ = serve(shared, told).await;
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
    // Between two renewals two statements may wait: for rows, where a user has locked their table.
    let wait = wire::lock_wait(settings.patience).min(settings.lease / 6).as_millis().to_string();
    let wire = limited(settings.patience, Wire::new(client, settings, &[("lock_timeout", wait)])).await?;
    // A pooler in transaction mode would listen on a connection that others use.
    if !settings.is_pooled {
        let listen = format!("LISTEN {}", super::quoted(&settings.channel()));
        limited(settings.patience, wire.batch(&listen)).await?;
    }
    Ok((wire, heard))
}

async fn serve(shared: &Shared, told: &Sender<Vec<Told>>) -> Result<(), Failure> {
    let (wire, mut heard) = connect(shared).await?;
    // What was missed before.
    shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
    let renews = shared.settings.lease / 3;
    let (mut renew_at, mut look_at) = (Instant::now(), Instant::now() + shared.spread(shared.settings.safety));
    // When the first lease of a member is over, unless it is renewed.
    let (mut end_at, mut fold_at) = (None, Instant::now());
    loop {
        let next = std::pin::pin!(heard.recv());
        let tick = std::pin::pin!(sleep_until(end_at.unwrap_or(renew_at).min(renew_at).min(look_at)));
        match select(next, tick).await {
            Either::Left((Some(Heard::Notice(payload)), _)) => sleepers::hear(shared, &payload),
            Either::Left((Some(Heard::Silence) | None, _)) => return Err(Failure::lost("the connection has ended")),
            Either::Right(_) => {}
        }
        let now = Instant::now();
        let (renews_now, ends_now) = (now >= renew_at, end_at.is_some_and(|end| now >= end));
        if renews_now {
            renew_at = now + renews;
            unless_locked(limited(shared.settings.patience, renew(shared, &wire)).await)?;
        }
        if renews_now || ends_now {
            end_at = end_others(shared, &wire, told).await?.map(|left| Instant::now() + left);
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
            shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
        }
    }
}

/// Another session has locked a row: the next time.
fn unless_locked<T: Default>(done: Result<T, Failure>) -> Result<T, Failure> {
    done.or_else(|failure| if failure.fault == Fault::Locked { Ok(T::default()) } else { Err(failure) })
}

/// Renews the leases of the members of this store. The runs of one that has ended, and those that
/// were cancelled, learn of it.
async fn renew(shared: &Shared, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    // Before the renewal: what is claimed after it is of members that it does not know.
    let held: HashMap<Held, i64> = shared.held.lock().clone();
    let entered: Vec<i64> = shared.entries.lock().keys().map(|&owner| owner as i64).collect();
    let leaving = held.keys().map(|held| held.owner as i64).filter(|owner| !entered.contains(owner));
    let owners: Vec<i64> = entered.iter().copied().chain(leaving.collect::<HashSet<i64>>()).collect();
    let sql = "UPDATE members SET until = (SELECT clock()) + $2 WHERE owner = ANY($1::bigint[]) AND NOT dead \
               RETURNING id, owner";
    let renewed = wire.ask(sql, &[&owners, &micros(shared.settings.lease)]).await?;
    let live: HashSet<i64> = renewed.iter().map(|row| row.get(0)).collect();
    for (held, _) in held.iter().filter(|(_, member)| !live.contains(member)) {
        if shared.held.lock().remove(held).is_some() {
            shared.watchers.tell(Notice::Cancelled(held.id));
        }
    }
    if !held.is_empty() {
        let sql = "SELECT id FROM jobs WHERE owner = ANY($1::bigint[]) AND state = 2 AND cancelled";
        for row in wire.ask(sql, &[&owners]).await? {
            shared.watchers.tell(Notice::Cancelled(JobId(row.get::<_, i64>(0) as u64)));
        }
    }
    let is_member = |owner: &i64| renewed.iter().any(|row| row.get::<_, i64>(1) == *owner);
    if !entered.iter().all(is_member) {
        // The next claim makes the scheduler a member.
        shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
    }
    keep_nodes(shared, wire).await
}

/// Ends the members whose lease is over, so their runs wait again. Returns the time to the next end
/// of a lease.
async fn end_others(shared: &Shared, wire: &Wire, told: &Sender<Vec<Told>>) -> Result<Option<Duration>, Failure> {
    // The clock is read once, and not for each member.
    const SEEN: &str =
        "SELECT id, until - now, now FROM members, (SELECT clock() AS now) AS one WHERE NOT dead ORDER BY until";
    const END: &str = "UPDATE members SET dead = true WHERE id IN (SELECT id FROM members WHERE id = $1 \
         AND until < (SELECT clock()) AND NOT dead FOR UPDATE SKIP LOCKED) RETURNING id";
    // The runs of nodes of an older version, each of which renews a lease of its own.
    const OLDER: &str = "SELECT take_back(ids) FROM (SELECT ARRAY(SELECT id FROM jobs WHERE state = 2 \
         AND lease < (SELECT clock()) ORDER BY id FOR UPDATE SKIP LOCKED) AS ids) AS one WHERE ids <> '{}'";
    // What nodes of an older version claim groups by.
    const HEADS: &str = "SELECT FROM copy_heads() AS copied WHERE copied > 0";
    let patience = shared.settings.patience;
    let seen = limited(patience, wire.ask(SEEN, &[])).await?;
    let (over, rest): (Vec<_>, Vec<_>) = seen.iter().partition(|row| row.get::<_, i64>(1) < 0);
    let mut has_changed = false;
    for sql in [OLDER, HEADS] {
        has_changed |= !unless_locked(limited(patience, wire.ask(sql, &[])).await)?.is_empty();
    }
    for row in &over {
        // One by one: a row of one that is locked is in no other one's way.
        let ended = limited(patience, wire.ask(END, &[&row.get::<_, i64>(0)])).await;
        has_changed |= !unless_locked(ended)?.is_empty();
    }
    if let Some(row) = seen.first().filter(|_| has_changed) {
        // A claim of some node binds the groups of the dead again, and takes what was theirs.
        shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
        let _ = told.send(vec![Told { at: Some(row.get(2)), what: String::new() }]);
    }
    let left = |row: &&tokio_postgres::Row| Duration::from_micros(row.get::<_, i64>(1) as u64 + 1_000);
    Ok(rest.first().map(left))
}

/// The nodes of this store live; others that have not been seen for long do not.
async fn keep_nodes(shared: &Shared, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    let owners = shared.owners();
    let written = shared.sleeps.lock().values().filter(|sleeps| sleeps.is_some()).count();
    let seen = "UPDATE nodes SET seen = clock() WHERE owner = ANY($1::bigint[]) RETURNING owner";
    let seen = wire.ask(seen, &[&owners]).await?.len();
    let long = micros(shared.settings.lease * 10).max(60_000_000);
    wire.ask("DELETE FROM nodes WHERE seen < clock() - $1", &[&long]).await?;
    // Those that others have locked are in use again.
    wire.ask("SELECT forget_idle($1)", &[&KEPT_MICROS]).await?;
    // Also where no job is kept any more.
    let over = "DELETE FROM finished WHERE id IN (SELECT id FROM finished WHERE keep_until <= (SELECT clock()) \
                ORDER BY keep_until LIMIT 1000 FOR UPDATE SKIP LOCKED)";
    wire.ask(over, &[]).await?;
    // No commit waits this long for its answer.
    wire.ask("DELETE FROM writers WHERE at < clock() - $1", &[&WRITERS_KEPT]).await?;
    if seen < written {
        // This node was taken for dead: others told it nothing.
        shared.sleeps.lock().values_mut().for_each(|sleeps| *sleeps = None);
        shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
    }
    Ok(())
}
