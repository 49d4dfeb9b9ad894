//! The schedulers on a store in memory, and the groups bound to them.
//!
//! Ground rules. All members are of this process: a member lives until it leaves, and has no lease.
//! Each change of a row of a group, and of the group itself, ends in
//! [`Table::settle_group`], which keeps the indexes right.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::table::Table;
use crate::store::rules::{Group, GroupRows, KEPT_MICROS, Lane, Member, Row};
use crate::store::{Bound, Entry, GroupId, JobId, Micros, Node, NodeId, State};

/// The most groups of dead members that a claim settles.
const UNBOUND_AT_ONCE: usize = 256;
/// The most idle groups that a new one replaces.
const FORGOTTEN_AT_ONCE: usize = 4;

/// The members by their numbers.
#[derive(Debug, Default)]
pub(super) struct Members {
    last: u64,
    live: BTreeMap<u64, (Arc<Entry>, Micros)>,
    /// Their groups are to be settled.
    dead: BTreeMap<u64, Arc<Entry>>,
}

impl Members {
    pub(super) fn enter(&mut self, entry: Arc<Entry>, now: Micros) {
        self.leave(entry.owner);
        self.last += 1;
        self.live.insert(self.last, (entry, now));
    }

    /// True: groups may have lost their member.
    pub(super) fn leave(&mut self, owner: u64) -> bool {
        let gone: Vec<u64> =
            self.live.iter().filter(|(_, (entry, _))| entry.owner == owner).map(|(&id, _)| id).collect();
        for id in &gone {
            if let Some((entry, _)) = self.live.remove(id) {
                self.dead.insert(*id, entry);
            }
        }
        !gone.is_empty()
    }

    pub(super) fn of(&self, owner: u64) -> Option<(u64, Arc<Entry>)> {
        let found = self.live.iter().find(|(_, (entry, _))| entry.owner == owner);
        found.map(|(&id, (entry, _))| (id, Arc::clone(entry)))
    }
}

/// A group with its jobs.
#[derive(Debug, Default)]
struct Jobs {
    group: Group,
    waiting: BTreeSet<(Micros, JobId)>,
    running: u64,
    /// All rows, also dead and recurring ones.
    rows: u64,
    /// As in the index of heads: handler, member and wake instant.
    head: Option<(usize, u64, Micros)>,
    /// As in the index of members.
    member: u64,
    /// Since when it has no row.
    idle: Option<Micros>,
}

/// The groups by their numbers.
#[derive(Debug, Default)]
pub(super) struct Groups {
    last: u64,
    all: BTreeMap<u64, Jobs>,
    by_text: HashMap<(usize, Arc<str>), u64>,
    heads: BTreeSet<(usize, u64, Micros, u64)>,
    by_member: BTreeSet<(u64, u64)>,
    idle: BTreeSet<(Micros, u64)>,
}

impl Groups {
    /// A row comes, in its present state.
    pub(super) fn add(&mut self, row: &Row) {
        let Some(jobs) = row.tie.as_ref().and_then(|tie| self.all.get_mut(&tie.group)) else { return };
        jobs.rows += 1;
        jobs.running += u64::from(row.state == State::Running);
        if let (Lane::Group(_), Some(wake)) = (row.lane(), row.wake()) {
            jobs.waiting.insert((wake, row.id));
        }
    }

    /// A row goes, or is about to change.
    pub(super) fn take(&mut self, row: &Row) {
        let Some(jobs) = row.tie.as_ref().and_then(|tie| self.all.get_mut(&tie.group)) else { return };
        jobs.rows -= 1;
        jobs.running -= u64::from(row.state == State::Running);
        if let (Lane::Group(_), Some(wake)) = (row.lane(), row.wake()) {
            assert!(jobs.waiting.remove(&(wake, row.id)), "a job that waits is among those of its group");
        }
    }

    /// The heads of a handler and a member.
    fn heads_of(&self, kind: usize, member: u64) -> impl Iterator<Item = (Micros, u64, usize)> + '_ {
        let range = (kind, member, Micros::FIRST, 0)..(kind, member + 1, Micros::FIRST, 0);
        self.heads.range(range).map(|&(kind, _, wake, id)| (wake, id, kind))
    }

    /// The same groups without rows.
    #[cfg(test)]
    pub(super) fn emptied(&self) -> Self {
        let empty = |(&id, jobs): (&u64, &Jobs)| {
            let group = jobs.group.clone();
            let (waiting, idle) = (BTreeSet::new(), jobs.idle);
            (id, Jobs { group, waiting, running: 0, rows: 0, head: jobs.head, member: jobs.member, idle })
        };
        Self { all: self.all.iter().map(empty).collect(), ..Self::default() }
    }

    /// The same as those made of all rows, with indexes that agree.
    #[cfg(test)]
    pub(super) fn check(&self, made: &Self) {
        let mut heads = BTreeSet::new();
        for ((id, own), jobs) in self.all.iter().zip(made.all.values()) {
            assert_eq!((&own.waiting, own.running, own.rows), (&jobs.waiting, jobs.running, jobs.rows), "{own:?}");
            assert_eq!((own.idle.is_some(), own.member), (own.rows == 0, own.group.member), "{own:?}");
            let first = own.waiting.first().filter(|_| own.group.is_open(own.running));
            assert_eq!(own.head.map(|head| head.2), first.map(|&(wake, _)| wake), "{own:?}");
            heads.extend(own.head.map(|(kind, member, wake)| (kind, member, wake, *id)));
            assert!(self.by_member.contains(&(own.member, *id)));
        }
        assert_eq!(self.heads, heads);
        assert_eq!((self.by_member.len(), self.by_text.len()), (self.all.len(), self.all.len()));
        assert_eq!(self.idle.len(), self.all.values().filter(|jobs| jobs.idle.is_some()).count());
    }
}

impl Table {
    /// Keeps the indexes of a group right, after a change of its jobs, of itself, or of its
    /// members.
    pub(super) fn settle_group(&mut self, id: u64, now: Micros) {
        let Self { groups, members, effects, kinds, .. } = self;
        let Some(jobs) = groups.all.get_mut(&id) else { return };
        let (head, member, idle) = (jobs.head, jobs.member, jobs.idle);
        jobs.group.settle(jobs.running, |member| members.live.contains_key(&member));
        let Group { kind, member: bound, .. } = jobs.group;
        let first = jobs.waiting.first().filter(|_| jobs.group.is_open(jobs.running)).map(|&(wake, _)| wake);
        jobs.head = first.map(|wake| (kind, bound, wake));
        jobs.member = bound;
        jobs.idle = if jobs.rows > 0 { None } else { idle.or(Some(now)) };
        let changed = (jobs.head, jobs.member, jobs.idle);
        if changed.0 != head {
            if let Some((kind, member, wake)) = head {
                groups.heads.remove(&(kind, member, wake, id));
            }
            if let Some((kind, bound, wake)) = changed.0 {
                groups.heads.insert((kind, bound, wake, id));
                let is_earlier = head.is_none_or(|(_, before, then)| before != bound || wake < then);
                if is_earlier && !kinds[kind].paused {
                    effects.wake(Some(wake));
                }
            }
        }
        if changed.1 != member {
            groups.by_member.remove(&(member, id));
            groups.by_member.insert((bound, id));
        }
        if changed.2 != idle {
            idle.map(|since| groups.idle.remove(&(since, id)));
            changed.2.map(|since| groups.idle.insert((since, id)));
        }
    }

    /// The groups behind one, in the order of their numbers.
    pub(super) fn groups(&self, after: GroupId, limit: usize) -> Vec<Bound> {
        let bound = |(&id, jobs): (&u64, &Jobs)| Bound {
            id: GroupId(id),
            version: jobs.group.version,
            group: Arc::clone(&jobs.group.text),
            name: Arc::clone(&self.kinds[jobs.group.kind].name),
            node: (jobs.group.member != 0).then_some(NodeId(jobs.group.member)),
        };
        self.groups.all.range(after.0.saturating_add(1)..).take(limit).map(bound).collect()
    }

    /// The nodes, as this scheduler sees them.
    pub(super) fn nodes(&self, owner: u64) -> Vec<Node> {
        let node = |(&id, (entry, since)): (&u64, &(Arc<Entry>, Micros))| {
            let running = |name: &str| {
                self.kinds.iter().find(|kind| &*kind.name == name).map_or(0, |kind| kind.runs_of(entry.owner))
            };
            let node = Node::of(id, entry, since.to_system(), None, running);
            Node { is_this: entry.owner == owner, ..node }
        };
        self.members.live.iter().map(node).collect()
    }
}

impl GroupRows for Table {
    fn member_of(&mut self, owner: u64) -> Option<u64> {
        self.members.of(owner).map(|(id, _)| id)
    }

    fn members(&mut self) -> Vec<Member> {
        let live = self.members.live.iter().map(|(&id, (entry, _))| (id, entry, false));
        let all = live.chain(self.members.dead.iter().map(|(&id, entry)| (id, entry, true)));
        let member = |(id, entry, dead): (u64, &Arc<Entry>, bool)| Member {
            id,
            dead,
            name: Arc::clone(&entry.name),
            handlers: entry.handlers.clone(),
        };
        all.map(member).collect()
    }

    fn group_of(&mut self, kind: usize, text: &Arc<str>, now: Micros) -> u64 {
        if let Some(&id) = self.groups.by_text.get(&(kind, Arc::clone(text))) {
            return id;
        }
        self.forget_idle(now);
        let groups = &mut self.groups;
        groups.last += 1;
        let id = groups.last;
        let group = Group { id, kind, text: Arc::clone(text), ..Group::default() };
        groups.all.insert(id, Jobs { group, ..Jobs::default() });
        groups.by_text.insert((kind, Arc::clone(text)), id);
        groups.by_member.insert((0, id));
        id
    }

    fn group(&mut self, id: u64) -> Option<Group> {
        self.groups.all.get(&id).map(|jobs| jobs.group.clone())
    }

    fn edit_group(&mut self, id: u64, change: impl FnOnce(&mut Group)) {
        if let Some(jobs) = self.groups.all.get_mut(&id) {
            change(&mut jobs.group);
            self.settle_tied(Some(id));
        }
    }

    fn runs_of(&mut self, group: u64) -> u64 {
        self.groups.all.get(&group).map_or(0, |jobs| jobs.running)
    }

    fn first_of(&mut self, group: u64) -> Option<(Micros, JobId)> {
        self.groups.all.get(&group)?.waiting.first().copied()
    }

    fn due_groups(&mut self, kinds: &[usize], member: u64, now: Micros, at_most: usize) -> Vec<(Micros, u64, usize)> {
        let groups = &self.groups;
        let due = |&kind: &usize| groups.heads_of(kind, member).take_while(|&(wake, ..)| wake <= now).take(at_most);
        let mut found: Vec<_> = kinds.iter().flat_map(due).collect();
        found.sort_unstable();
        found.truncate(at_most);
        found
    }

    fn next_group(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        let heads = &self.groups.heads;
        match of {
            None => {
                let all = |&kind: &usize| heads.range((kind, 0, Micros::FIRST, 0)..(kind + 1, 0, Micros::FIRST, 0));
                kinds.iter().flat_map(all).map(|&(_, _, wake, _)| wake).min()
            }
            Some((member, now)) => {
                let after = |(kind, member): (usize, u64)| {
                    let range = (kind, member, Micros::new(now.as_i64() + 1), 0)..(kind, member + 1, Micros::FIRST, 0);
                    heads.range(range).next().map(|&(_, _, wake, _)| wake)
                };
                kinds.iter().flat_map(|&kind| [(kind, 0), (kind, member)]).filter_map(after).min()
            }
        }
    }

    fn bound_to(&mut self, member: u64) -> u64 {
        self.groups.by_member.range((member, 0)..(member + 1, 0)).count() as u64
    }

    /// More go than come, until none is left whose time is over.
    fn forget_idle(&mut self, now: Micros) {
        let groups = &mut self.groups;
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some(&(since, id)) = groups.idle.first() else { return };
            if since.as_i64().saturating_add(KEPT_MICROS) > now.as_i64() {
                return;
            }
            groups.idle.remove(&(since, id));
            if let Some(jobs) = groups.all.remove(&id) {
                groups.by_text.remove(&(jobs.group.kind, jobs.group.text));
                groups.by_member.remove(&(jobs.member, id));
            }
        }
    }

    /// Those with runs under way settle when the runs have ended.
    fn unbind_some(&mut self) -> bool {
        let mut left = UNBOUND_AT_ONCE;
        let dead: Vec<u64> = self.members.dead.keys().copied().collect();
        for member in dead {
            let bound = self.groups.by_member.range((member, 0)..(member + 1, 0)).map(|&(_, id)| id);
            let is_still = |id: &u64| self.groups.all.get(id).is_none_or(|jobs| jobs.running == 0);
            let ids: Vec<u64> = bound.filter(is_still).take(left).collect();
            for &id in &ids {
                self.settle_tied(Some(id));
            }
            left -= ids.len();
            if left == 0 {
                return true;
            }
            self.members.dead.remove(&member);
        }
        false
    }
}
