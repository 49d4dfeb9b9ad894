//! Nodes: the schedulers that are alive on a store.
//!
//! Ground rules. An [`Entry`] is what a scheduler tells a store of itself when it starts. The store
//! makes it a member with a number of its own. A member lives until its scheduler closes, its
//! process ends, or its lease is over, as the store knows it. Afterwards the number is never used
//! again: a scheduler that comes back is a new member.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::form;

/// A node of a store: a member that lives or has lived. Numbers grow in the order of the joins, and
/// are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub u64);

/// What a scheduler tells its store of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The scheduler, as in its claims.
    pub owner: u64,
    /// For people.
    pub name: Arc<str>,
    /// The handlers.
    pub handlers: Vec<EntryHandler>,
}

/// A handler of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryHandler {
    /// The name of the handler.
    pub name: Arc<str>,
    /// The most runs of the handler at a time on this node.
    #[serde(deserialize_with = "clamped")]
    pub parallel: usize,
    /// Its limits over all nodes. Each node keeps its own, and they are not stored.
    #[serde(skip)]
    pub limits: Limits,
}

/// A number of another machine, whose `usize` may be wider.
fn clamped<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    Ok(usize::try_from(u64::deserialize(from)?).unwrap_or(usize::MAX))
}

impl Entry {
    pub(crate) fn limits(&self, name: &str) -> Option<Limits> {
        self.handlers.iter().find(|handler| &*handler.name == name).map(|handler| handler.limits)
    }
}

/// The limits of a handler over all nodes of a store. Each node keeps those of its own handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most runs at a time.
    pub everywhere: Option<u64>,
    /// The most runs at a time of each group.
    pub group: Option<u64>,
    /// How often a run may begin.
    pub rate: Option<Rate>,
}

/// How often a run may begin: a bucket with this number of tokens, which is filled evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The number of runs: at once, and in each `per` from then on.
    pub runs: u32,
    /// The time, rounded up to whole microseconds for each run.
    pub per: Duration,
}

/// A group of a handler in its store. Numbers grow, and are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// A live member that has the handler of a group: what a [`Binding`](crate::Binding) chooses
/// from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The number of the node.
    pub id: NodeId,
    /// The name of the node.
    pub name: Arc<str>,
    /// The most runs of the handler at a time on the node.
    pub parallel: usize,
    /// How many groups are bound to the node, of all handlers.
    pub bound: u64,
}

impl Candidate {
    /// A candidate: for tests of rules.
    #[must_use]
    pub fn new(id: u64, name: &str, parallel: usize, bound: u64) -> Self {
        Self { id: NodeId(id), name: name.into(), parallel, bound }
    }
}

/// A group without a member.
#[derive(Clone, Debug)]
pub struct Unbound {
    /// The group.
    pub id: GroupId,
    /// Counts the changes of its binding.
    pub version: u64,
    /// The text.
    pub group: Arc<str>,
    /// The live members that have the handler, in the order of their numbers.
    pub candidates: Arc<[Candidate]>,
    pub(crate) kind: usize,
}

/// A group as a scan has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The group.
    pub id: GroupId,
    /// Counts the changes of its binding.
    pub version: u64,
    /// The text.
    pub group: Arc<str>,
    /// The name of the handler.
    pub name: Arc<str>,
    /// The member that runs its jobs.
    pub node: Option<NodeId>,
}

/// A scheduler that is alive on a store. Made by [`Scheduler::nodes`](crate::Scheduler::nodes).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Node {
    /// The number of the node. A scheduler whose lease has ended gets another number when it comes
    /// back.
    pub id: NodeId,
    /// The name that [`Builder::node_name`](crate::Builder::node_name) gave, or host and process.
    pub name: Arc<str>,
    /// Whether the node is the scheduler that was asked.
    #[serde(skip_serializing_if = "form::is_default")]
    pub is_this: bool,
    /// Since when the node is alive, on the store's clock.
    #[serde(serialize_with = "form::rfc3339")]
    pub since: SystemTime,
    /// The end of its lease, unless renewed. `None`: the store sees the end of a node by itself.
    #[serde(serialize_with = "form::rfc3339_or_none")]
    pub until: Option<SystemTime>,
    /// Its handlers, in the order of their registration.
    #[serde(flatten, serialize_with = "with_running")]
    pub handlers: Vec<NodeHandler>,
}

/// The handlers, and the sum of their runs.
fn with_running<S: Serializer>(handlers: &[NodeHandler], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Handlers<'a> {
        running: u64,
        handlers: &'a [NodeHandler],
    }
    Handlers { running: running(handlers), handlers }.serialize(to)
}

fn running(handlers: &[NodeHandler]) -> u64 {
    handlers.iter().map(|handler| handler.running).sum()
}

/// A handler of a [`Node`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NodeHandler {
    /// The name of the handler.
    #[serde(rename = "handler")]
    pub name: Arc<str>,
    /// The most runs at a time on this node.
    pub parallel: usize,
    /// The runs of this node.
    pub running: u64,
}

impl Node {
    /// The runs of the node, of all its handlers.
    #[must_use]
    pub fn running(&self) -> u64 {
        running(&self.handlers)
    }

    pub(crate) fn of(
        id: u64,
        entry: &Entry,
        since: SystemTime,
        until: Option<SystemTime>,
        mut running: impl FnMut(&str) -> u64,
    ) -> Self {
        let handler = |handler: &EntryHandler| NodeHandler {
            name: Arc::clone(&handler.name),
            parallel: handler.parallel,
            running: running(&handler.name),
        };
        let handlers = entry.handlers.iter().map(handler).collect();
        Self { id: NodeId(id), name: Arc::clone(&entry.name), is_this: false, since, until, handlers }
    }
}
