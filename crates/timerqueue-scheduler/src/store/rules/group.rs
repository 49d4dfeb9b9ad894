//! Groups: which member runs the jobs of one group, and how many at a time.
//!
//! Ground rules. A group is a row of its own, for each handler and text. It is *bound* to one
//! member, or to none. It is *open* while its jobs may be claimed: then the storage keeps it in an
//! index by handler, member and the first wake instant of its jobs. The storage calls
//! [`Group::settle`] and [`Group::is_open`] after each change of its jobs. So a claim never
//! passes over jobs of other members, nor over those of a full group (M3). While a run of the
//! group is under way, the member stays the same; the end of a member takes its runs back. So no
//! two members run jobs of one group at a time, as far as leases go (M4).

use std::sync::Arc;

use super::{Rows, Runs};
use crate::store::gate::SUSPECT;
use crate::store::{Bind, Candidate, EntryHandler, GroupId, JobId, Micros, NodeId, State, Unbound};

/// How long a binding lasts without jobs.
pub(crate) const KEPT_MICROS: i64 = 3_600_000_000;

/// A group of a handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: u64,
    pub(crate) kind: usize,
    pub(crate) text: Arc<str>,
    /// The member that runs its jobs. Zero: none.
    pub(crate) member: u64,
    /// The member that will run its jobs once the runs under way have ended. Zero: none.
    pub(crate) next: u64,
    /// Counts the changes of `member` and `next`.
    pub(crate) version: u64,
    /// The most runs at a time, as of the last claim. Zero: no limit.
    pub(crate) most: u64,
}

impl Group {
    /// Without runs under way, the next member takes over, and a member that is dead loses the
    /// group.
    pub(crate) fn settle(&mut self, running: u64, is_live: impl Fn(u64) -> bool) {
        if running > 0 {
            return;
        }
        let before = (self.member, self.next);
        if self.next != 0 {
            (self.member, self.next) = (self.next, 0);
        }
        if self.member != 0 && !is_live(self.member) {
            self.member = 0;
        }
        self.version += u64::from(before != (self.member, self.next));
    }

    /// Whether its jobs may be claimed.
    pub(crate) fn is_open(&self, running: u64) -> bool {
        self.next == 0 && (self.most == 0 || running < self.most)
    }
}

/// A scheduler on the store.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) dead: bool,
    pub(crate) name: Arc<str>,
    pub(crate) handlers: Vec<EntryHandler>,
}

impl Member {
    fn handler(&self, name: &str) -> Option<&EntryHandler> {
        self.handlers.iter().find(|handler| &*handler.name == name)
    }
}

/// The group of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tie {
    pub(crate) group: u64,
    pub(crate) text: Arc<str>,
}

/// Bindings.
pub(crate) trait Bindings: Rows + Sized {
    /// Binds a group to a member. False: it has changed since the caller saw it, or the member
    /// is dead or lacks the handler.
    fn bind(&mut self, bind: &Bind) -> bool {
        let Bind { group, version, node: NodeId(node) } = *bind;
        let Some(found) = self.group(group.0).filter(|found| found.version == version) else { return false };
        let name = self.name_of(found.kind);
        let serves = |member: &Member| member.id == node && !member.dead && member.handler(&name).is_some();
        if !self.members().iter().any(serves) {
            return false;
        }
        self.edit_group(found.id, |found| {
            found.next = if found.member == node { 0 } else { node };
            found.version += 1;
        });
        true
    }

    /// The groups without a member whose jobs are due, with the members that have the handler.
    fn unbound(&mut self, kinds: &[usize], now: Micros, at_most: usize) -> Vec<Unbound> {
        let due = self.due_groups(kinds, 0, now, at_most);
        let mut found: Vec<Unbound> = Vec::new();
        for (_, id, kind) in due {
            let Some(group) = self.group(id) else { continue };
            let known = found.iter().find(|other| other.kind == kind).map(|other| Arc::clone(&other.candidates));
            let candidates = known.unwrap_or_else(|| self.candidates(kind).into());
            found.push(Unbound::new(&group, candidates));
        }
        found
    }

    /// The live members that have the handler, in the order of their numbers.
    fn candidates(&mut self, kind: usize) -> Vec<Candidate> {
        let name = self.name_of(kind);
        let mut members = self.members();
        members.retain(|member| !member.dead);
        let mut candidates = Vec::new();
        for member in members {
            if let Some(handler) = member.handler(&name) {
                let bound = self.bound_to(member.id);
                candidates.push(Candidate::new(member.id, &member.name, handler.parallel, bound));
            }
        }
        candidates
    }

    /// The runs of a process that has ended wait again. `crashed`: the process has ended by itself.
    /// The first two crashes in a row speak against each run of the process, further ones against a
    /// run that was alone. So a job that ends its process goes on from the second one, and a job
    /// beside it does not.
    #[cfg_attr(not(any(test, feature = "sqlite")), expect(dead_code, reason = "only files and tests"))]
    fn take_back_runs(&mut self, ids: &[JobId], crashed: bool, now: Micros) {
        let runs = ids.iter().filter(|&&id| self.row(id).is_some_and(|row| row.state == State::Running)).count();
        for &id in ids {
            self.take_back_run(id, crashed, runs == 1, now);
        }
    }

    fn take_back_run(&mut self, id: JobId, crashed: bool, alone: bool, now: Micros) {
        let freed = self.edit(id, |row| {
            (row.lease, row.process) = (None, 0);
            match &mut row.recurring {
                Some(recurring) => recurring.looked = false,
                None => {
                    row.state = State::Waiting;
                    row.crashes = row.crashes.saturating_add(u32::from(crashed));
                    let speaks = crashed && (alone || row.suspicion < SUSPECT);
                    row.suspicion = row.suspicion.saturating_add(u32::from(speaks));
                }
            }
            (row.cancelled, row.counted)
        });
        let Some((cancelled, counted)) = freed else { return };
        if cancelled {
            self.leave(id, now);
        }
        if counted {
            self.effects().wake_all(now);
        }
    }
}

impl<T: Rows> Bindings for T {}

impl Unbound {
    pub(crate) fn new(group: &Group, candidates: Arc<[Candidate]>) -> Self {
        let Group { id, kind, version, .. } = *group;
        Self { id: GroupId(id), version, group: Arc::clone(&group.text), candidates, kind }
    }
}
