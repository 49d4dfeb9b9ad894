//! The keeper of a node: renewals, and runs that are another node's by now.
//!
//! Ground rules. The protocol of `store::postgres::keeper`: three renewals in a lease; a run is
//! lost if its renewal is refused twice, since once could be a settle that was just committed.

use super::plan::{LEASE, millis, secs};
use super::port::{Answer, Back, Wire};
use super::world::{Event, World};
use super::{Break, Origin};
use crate::Error;
use crate::store::{Held, Notice};

impl World {
    pub(super) fn renew(&mut self, of: Origin) {
        let held = self.nodes[of.0].held.clone();
        if self.broken == Some(Break::Renewal) || held.is_empty() {
            let next = self.now + u64::try_from(LEASE.as_nanos()).unwrap() / 3;
            return self.at(next, Event::Renew(of));
        }
        self.nodes[of.0].port.send(Wire::Renew(held), Back::Keeper);
        self.serve(of.0);
    }

    pub(super) fn renewed(&mut self, n: usize, held: &[Held], answer: &Result<Answer, Error>) {
        let of = self.nodes[n].origin;
        let Ok(Answer::Renewed(renewed, cancelled)) = answer else {
            let wait = self.random.between(millis(50), secs(4));
            return self.at(self.now + wait, Event::Renew(of));
        };
        let node = &mut self.nodes[n];
        cancelled.iter().for_each(|&id| node.port.tell(Notice::Cancelled(id)));
        let before = std::mem::take(&mut node.suspects);
        let refused = held.iter().zip(renewed).filter(|&(_, renewed)| !renewed).map(|(&held, _)| held);
        for held in refused {
            if !node.held.contains(&held) {
                continue; // settled meanwhile
            }
            if before.contains(&held) {
                node.held.retain(|other| *other != held);
                node.port.tell(Notice::Cancelled(held.id));
            } else {
                node.suspects.push(held);
            }
        }
        self.at(self.now + u64::try_from(LEASE.as_nanos()).unwrap() / 3, Event::Renew(of));
    }
}
