//! The thread that keeps: renews leases, hears of other nodes, and looks for what no notice told.
//!
//! Ground rules. A connection of its own, so that no slow transaction of the writer delays a renewal. A row that is locked is left out, and
//! renewed the next time: a lease is three renewals long. No code of users runs here.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::error::Failure;
use super::{Shared, link};
use crate::store::{Held, JobId, Micros, Notice};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What a notice of another node says.
enum Heard {
    Notice(String),
    /// The connection has ended.
    Silence,
}

pub(super) fn run(shared: &Arc<Shared>, stop: oneshot::Receiver<()>) {
    let Ok(runtime) = link::new_runtime() else { return };
    runtime.block_on(async {
        let keeping = std::pin::pin!(keep(shared));
        drop(select(keeping, stop).await);
    });
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

async fn connect(shared: &Shared) -> Result<(Client, mpsc::UnboundedReceiver<Heard>), Failure> {
    let settings = &shared.settings;
    let connecting = settings.config.connect(NoTls);
    let silent = |_| Failure::lost("the server does not answer");
    let (client, mut connection) = timeout(settings.patience, connecting).await.map_err(silent)??;
    let (send, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notice) = message {
                let _ = send.send(Heard::Notice(notice.payload().to_owned()));
            }
        }
        let _ = send.send(Heard::Silence);
    });
    let setup = format!(
        "SET search_path TO {}; SET enable_seqscan = off; SET jit = off; LISTEN {}",
        settings.schema_name(),
        super::quoted(&settings.channel())
    );
    timeout(settings.patience, client.batch_execute(&setup)).await.map_err(silent)??;
    Ok((client, heard))
}

async fn serve(shared: &Shared) -> Result<(), Failure> {
    let (client, mut heard) = connect(shared).await?;
    // What was missed before.
    shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
    let renews = shared.settings.lease / 3;
    let (mut renew_at, mut look_at) = (Instant::now(), Instant::now() + shared.spread(shared.settings.safety));
    let mut suspects = HashSet::new();
    loop {
        let next = std::pin::pin!(heard.recv());
        let tick = std::pin::pin!(sleep_until(renew_at.min(look_at)));
        match select(next, tick).await {
            Either::Left((Some(Heard::Notice(payload)), _)) => hear(shared, &payload),
            Either::Left((Some(Heard::Silence) | None, _)) => return Err(Failure::lost("the connection has ended")),
            Either::Right(_) => {}
        }
        let now = Instant::now();
        if now >= renew_at {
            renew_at = now + renews;
            let renewing = renew(shared, &client, &mut suspects);
            timeout(shared.settings.patience, renewing)
                .await
                .map_err(|_| Failure::lost("the server does not answer"))??;
        }
        if now >= look_at {
            look_at = now + shared.spread(shared.settings.safety);
            shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
        }
    }
}

/// `w` and an instant, or `c` and a number.
fn hear(shared: &Shared, payload: &str) {
    let number = payload.get(1..).and_then(|number| number.parse::<i64>().ok());
    match (payload.as_bytes().first(), number) {
        (Some(b'w'), Some(at)) => shared.tell(Notice::Wake { at: Micros::new(at), span: false }),
        (Some(b'c'), Some(id)) => shared.tell(Notice::Cancelled(JobId(id as u64))),
        _ => {}
    }
}

const RENEW: &str = "WITH mine AS (SELECT j.id FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS h (id, owner, claims) \
     JOIN jobs j ON j.id = h.id AND j.owner = h.owner AND j.claims = h.claims AND j.state = 2 FOR UPDATE OF j SKIP LOCKED) \
     UPDATE jobs SET lease = clock() + $4, wake = clock() + $4 FROM mine WHERE jobs.id = mine.id \
     RETURNING jobs.id, jobs.cancelled";

const LOST: &str = "SELECT h.id, h.owner, h.claims FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS h (id, owner, claims) \
     LEFT JOIN jobs j ON j.id = h.id AND j.owner = h.owner AND j.claims = h.claims AND j.state = 2 WHERE j.id IS NULL";

/// Renews the leases of all runs. A run that is another node's by now, or was cancelled, learns of it.
async fn renew(shared: &Shared, client: &Client, suspects: &mut HashSet<Held>) -> Result<(), Failure> {
    let held: Vec<Held> = shared.held.lock().iter().copied().collect();
    if !held.is_empty() {
        let ids: Vec<i64> = held.iter().map(|held| held.id.0 as i64).collect();
        let owners: Vec<i64> = held.iter().map(|held| held.owner as i64).collect();
        let claims: Vec<i64> = held.iter().map(|held| held.claim as i64).collect();
        let lease = i64::try_from(shared.settings.lease.as_micros()).unwrap_or(i64::MAX / 4);
        let renewed = client.query(RENEW, &[&ids, &owners, &claims, &lease]).await?;
        for row in &renewed {
            if row.get(1) {
                shared.tell(Notice::Cancelled(JobId(row.get::<_, i64>(0) as u64)));
            }
        }
        if renewed.len() < held.len() {
            let lost = client.query(LOST, &[&ids, &owners, &claims]).await?;
            let lost = lost.iter().map(|row| Held {
                id: JobId(row.get::<_, i64>(0) as u64),
                owner: row.get::<_, i64>(1) as u64,
                claim: row.get::<_, i64>(2) as u64,
            });
            // A run that has just been settled is lost as well, and is forgotten until the next time.
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
    keep_nodes(shared, client).await
}

/// The nodes of this store live; others that have not been seen for long do not.
async fn keep_nodes(shared: &Shared, client: &Client) -> Result<(), Failure> {
    let owners = shared.owners();
    let written = shared.sleeps.lock().values().filter(|sleeps| sleeps.is_some()).count() as u64;
    let seen = client.execute("UPDATE nodes SET seen = clock() WHERE owner = ANY($1::bigint[])", &[&owners]).await?;
    let long = i64::try_from(shared.settings.lease.as_micros() * 10).unwrap_or(i64::MAX / 4);
    client.execute("DELETE FROM nodes WHERE seen < clock() - $1", &[&long.max(60_000_000)]).await?;
    if seen < written {
        // This node was taken for dead: others told it nothing.
        shared.sleeps.lock().values_mut().for_each(|sleeps| *sleeps = None);
        shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
    }
    Ok(())
}
