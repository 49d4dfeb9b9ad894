//! The thread that tells other nodes.
//!
//! Ground rules. A notice takes a lock over the whole server at its commit, and another session may
//! hold that lock for long: one that has notified, and waits for a standby. So notices have a
//! connection of their own, made when there is one to send, and no write, claim or renewal waits
//! for them. What has queued up meanwhile is sent at once. A notice that is not sent within the
//! patience is dropped: the safety look of the others finds the row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::Shared;
use super::error::{Failure, Remedy};
use super::link::Link;
use super::sleepers::Told;

/// The wait before another connection.
const WAIT: Duration = Duration::from_millis(50);
/// The most notices at a time. Further ones are dropped.
const MOST: usize = 4_096;

const SAY: &str = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS told (payload)";

/// What is to be said, with the earliest instant of each.
type Waiting = BTreeMap<String, Option<i64>>;

/// Ends when all of what the writer has left is said, or dropped.
pub(super) fn run(shared: &Shared, told: &Receiver<Vec<Told>>) {
    let mut link: Option<Link> = None;
    while let Ok(first) = told.recv() {
        let mut waiting = Waiting::new();
        take_in(&mut waiting, first);
        let begun = Instant::now();
        loop {
            while let Ok(more) = told.try_recv() {
                take_in(&mut waiting, more);
            }
            let Err(failure) = say(shared, &mut link, &waiting) else { break };
            if begun.elapsed() >= shared.settings.patience || shared.closing.load(Ordering::Acquire) {
                break;
            }
            if failure.remedy == Remedy::Reconnect {
                link = None;
                std::thread::sleep(shared.spread(WAIT));
            }
        }
    }
}

fn take_in(waiting: &mut Waiting, told: Vec<Told>) {
    for Told { at, what } in told {
        if let Some(before) = waiting.get_mut(&what) {
            *before = at.into_iter().chain(*before).min();
        } else if waiting.len() < MOST {
            waiting.insert(what, at);
        }
    }
}

fn say(shared: &Shared, link: &mut Option<Link>, waiting: &Waiting) -> Result<(), Failure> {
    if link.is_none() {
        let mut new = Link::open(&shared.settings)?;
        new.hurry = Some(Arc::clone(&shared.closing));
        *link = Some(new);
    }
    let (Some(link), channel) = (link, shared.settings.channel()) else { return Ok(()) };
    let payload = |(what, at): (&String, &Option<i64>)| at.map_or_else(|| what.clone(), |at| format!("w{at}{what}"));
    let payloads: Vec<String> = waiting.iter().map(payload).collect();
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    link.ask(SAY, &[&channel, &payloads]).map(drop)
}
