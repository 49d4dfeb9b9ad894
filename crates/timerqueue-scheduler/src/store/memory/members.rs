//! The schedulers on a store in memory.
//!
//! Ground rules. All of them are of this process: a member lives until it leaves, and has no lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::table::Table;
use crate::store::{Entry, Micros, Node};

/// The members by their numbers.
#[derive(Debug, Default)]
pub(super) struct Members {
    last: u64,
    members: BTreeMap<u64, (Arc<Entry>, Micros)>,
}

impl Members {
    pub(super) fn enter(&mut self, entry: Arc<Entry>, now: Micros) {
        self.leave(entry.owner);
        self.last += 1;
        self.members.insert(self.last, (entry, now));
    }

    pub(super) fn leave(&mut self, owner: u64) {
        self.members.retain(|_, (entry, _)| entry.owner != owner);
    }
}

impl Table {
    /// The nodes, as this scheduler sees them.
    pub(super) fn nodes(&self, owner: u64) -> Vec<Node> {
        let node = |(&id, (entry, since)): (&u64, &(Arc<Entry>, Micros))| {
            let running = |name: &str| {
                self.kinds.iter().find(|kind| &*kind.name == name).map_or(0, |kind| kind.runs_of(entry.owner))
            };
            let node = Node::of(id, entry, since.to_system(), None, running);
            Node { is_this: entry.owner == owner, ..node }
        };
        self.members.members.iter().map(node).collect()
    }
}
