//! The keeper of a node: the renewal of its lease, and runs of a member that has ended.
//!
//! Ground rules. The protocol of `store::postgres::keeper`: three renewals in a lease, and each
//! ends the members of others whose lease is over.

use super::Origin;
use super::plan::{LEASE, millis, secs};
use super::port::{Answer, Back, Wire};
use super::world::{Event, World};
use crate::Error;
use crate::store::{Held, Notice};

impl World {
    pub(super) fn renew(&mut self, of: Origin) {
        let Some(entry) = self.nodes[of.0].port.entry() else { return self.renew_later(of) };
        // Before the renewal: what is claimed after it is of members that it does not know.
        let held = self.nodes[of.0].held.clone();
        self.nodes[of.0].port.send(Wire::Renew(entry.owner, held), Back::Keeper);
        self.serve(of.0);
    }

    fn renew_later(&mut self, of: Origin) {
        self.at(self.now + u64::try_from(LEASE.as_nanos()).unwrap() / 3, Event::Renew(of));
    }

    pub(super) fn renewed(&mut self, n: usize, held: &[(Held, u64)], answer: &Result<Answer, Error>) {
        let of = self.nodes[n].origin;
        let Ok(Answer::Renewed(live, cancelled)) = answer else {
            let wait = self.random.between(millis(50), secs(4));
            return self.at(self.now + wait, Event::Renew(of));
        };
        let node = &mut self.nodes[n];
        cancelled.iter().for_each(|&id| node.port.tell(Notice::Cancelled(id)));
        for lost in held.iter().filter(|(_, member)| Some(*member) != *live) {
            if node.held.contains(lost) {
                node.held.retain(|other| other != lost);
                node.port.tell(Notice::Cancelled(lost.0.id));
            }
        }
        self.renew_later(of);
    }
}
