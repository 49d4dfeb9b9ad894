//! The groups of a transaction.
//!
//! Ground rules. A group whose jobs have changed is settled before the commit, and before a
//! query for it ([`Work::flush`]): its runs and its head are read from the index of its jobs. On a
//! server it is locked first, so the last transaction to commit has seen all jobs. Groups are
//! locked in the order of their numbers, after the rows of jobs.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;

use super::{Answer, Dialect, Work, values};
use crate::store::rules::{Group, GroupRows, Lane, Member, Row, Rows};
use crate::store::{JobId, Micros, State, text};

/// The most groups of members that are gone that a claim settles.
const UNBOUND_AT_ONCE: usize = 256;

/// A group that this claim has locked.
#[derive(Debug)]
pub(in crate::store) struct Claimable {
    pub(in crate::store) group: Group,
    pub(in crate::store) running: u64,
    /// Its due jobs, locked here.
    pub(in crate::store) waiting: VecDeque<(Micros, JobId)>,
}

#[derive(Debug, Default)]
pub(in crate::store) struct Groups {
    /// By handler and text, as this transaction has found them.
    pub(in crate::store) found: HashMap<(usize, Arc<str>), u64>,
    /// Those whose jobs have changed.
    pub(in crate::store) unsettled: BTreeSet<u64>,
    pub(in crate::store) claimable: HashMap<u64, Claimable>,
}

impl Groups {
    /// A row has changed, or is about to leave.
    pub(super) fn note(&mut self, row: &Row) {
        let Some(tie) = &row.tie else { return };
        self.unsettled.insert(tie.group);
        if let Some(claimable) = self.claimable.get_mut(&tie.group) {
            let waited = claimable.waiting.iter().position(|&(_, id)| id == row.id);
            if let (Some(at), false) = (waited, matches!(row.lane(), Lane::Group(_))) {
                claimable.waiting.remove(at);
                claimable.running += u64::from(row.state == State::Running);
            }
        }
    }
}

/// The columns `id, handler, group, member, next, version, most`.
pub(in crate::store) fn group_of(row: &impl Answer) -> Group {
    Group {
        id: row.count(0),
        kind: row.count(1) as usize,
        text: row.text(2).unwrap_or_default(),
        member: row.count(3),
        next: row.count(4),
        version: row.count(5),
        most: row.count(6),
    }
}

impl<D: Dialect> Work<D> {
    fn write_group(&mut self, group: &Group) {
        let most = i64::try_from(group.most).unwrap_or(i64::MAX);
        let values = values![group.member, group.next, group.version, most, group.id];
        self.ask(D::TEXTS.change_group, values);
    }

    pub(in crate::store) fn has_unsettled(&self) -> bool {
        !self.groups.unsettled.is_empty()
    }

    /// Keeps the heads of the groups right whose jobs have changed. All rows have been written.
    pub(super) fn settle_groups(&mut self) {
        let ids: Vec<i64> = take(&mut self.groups.unsettled).into_iter().map(|id| id as i64).collect();
        if ids.is_empty() || self.has_failed() {
            return;
        }
        D::lock_groups(self, &ids);
        // A statement of its own, after the locks: it sees all that was committed before.
        for row in D::facts(self, &ids) {
            let mut group = group_of(&row);
            let (before, member, next) = (row.instant(7), group.member, group.next);
            let was_idle = row.flag(13);
            let running = row.count(8);
            let live = [(member, row.flag(11)), (next, row.flag(12))];
            group.settle(running, |wanted| live.iter().any(|&(member, live)| live && member == wanted));
            let first = if group.is_open(running) { row.instant(9) } else { None };
            let (any, now) = (row.flag(10), self.up);
            if (member, next) != (group.member, group.next) {
                self.write_group(&group);
            }
            if (before, was_idle) != (first, !any) {
                self.ask(D::TEXTS.settle, values![first, any, now, group.id]);
            }
            let is_earlier = first.is_some_and(|first| before.is_none_or(|before| first < before));
            if (is_earlier || member != group.member) && !self.is_paused(group.kind) {
                first.into_iter().for_each(|first| self.effects.wake_all(first));
            }
        }
    }
}

impl<D: Dialect> GroupRows for Work<D> {
    fn member_of(&mut self, owner: u64) -> Option<u64> {
        D::member_of(self, owner)
    }

    fn members(&mut self) -> Vec<Member> {
        let found = self.ask(D::TEXTS.members, &[]);
        let member = |row: &D::Answer| Member {
            id: row.count(0),
            dead: row.flag(1),
            name: row.text(2).unwrap_or_default(),
            handlers: text::read_handlers(&row.text(3).unwrap_or_default()),
        };
        found.iter().map(member).collect()
    }

    fn group_of(&mut self, kind: usize, text: &Arc<str>, now: Micros) -> u64 {
        if let Some(&id) = self.groups.found.get(&(kind, Arc::clone(text))) {
            return id;
        }
        let named = values![kind, &**text];
        let mut found = self.number(D::TEXTS.group_named, named);
        if found.is_none() {
            self.forget_idle(now);
            found = self.number(D::TEXTS.add_group, values![kind, &**text, now]);
        }
        // Another transaction may have been first.
        let id = found.or_else(|| self.number(D::TEXTS.group_named, named)).unwrap_or_default() as u64;
        self.groups.found.insert((kind, Arc::clone(text)), id);
        id
    }

    fn group(&mut self, id: u64) -> Option<Group> {
        if let Some(claimable) = self.groups.claimable.get(&id) {
            return Some(claimable.group.clone());
        }
        if !D::LOCKS {
            self.flush(); // on a server once, at the commit
        }
        self.ask(D::TEXTS.group, values![id]).first().map(group_of)
    }

    fn edit_group(&mut self, id: u64, change: impl FnOnce(&mut Group)) {
        let Some(mut group) = self.group(id) else { return };
        change(&mut group);
        self.write_group(&group);
        self.groups.unsettled.insert(id);
        if let Some(claimable) = self.groups.claimable.get_mut(&id) {
            claimable.group = group;
        }
    }

    fn runs_of(&mut self, id: u64) -> u64 {
        if let Some(claimable) = self.groups.claimable.get(&id) {
            return claimable.running;
        }
        self.flush();
        self.number(D::TEXTS.running_of, values![id]).unwrap_or_default() as u64
    }

    fn first_of(&mut self, id: u64) -> Option<(Micros, JobId)> {
        if D::LOCKS {
            // The others are not locked.
            let claimable = self.groups.claimable.get(&id).filter(|_| !self.has_failed());
            return claimable?.waiting.front().copied();
        }
        self.write_rows();
        let found = self.ask(D::TEXTS.first_of, values![id]);
        found.first().and_then(|row| Some((row.instant(0)?, JobId(row.count(1)))))
    }

    fn due_groups(&mut self, kinds: &[usize], member: u64, now: Micros, at_most: usize) -> Vec<(Micros, u64, usize)> {
        D::due_groups(self, kinds, member, now, at_most)
    }

    fn next_group(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        D::next_group(self, kinds, of)
    }

    fn bound_to(&mut self, member: u64) -> u64 {
        self.number(D::TEXTS.bound_to, values![member]).unwrap_or_default() as u64
    }

    fn forget_idle(&mut self, now: Micros) {
        D::forget_idle(self, now);
    }

    /// Settles some of the groups of members that are gone, and forgets the dead ones that have
    /// none. Those with runs under way settle when the runs have ended.
    fn unbind_some(&mut self) -> bool {
        if !D::any_gone(self) {
            return false;
        }
        let found = self.ask(D::TEXTS.unbound, values![UNBOUND_AT_ONCE]);
        self.groups.unsettled.extend(found.iter().map(|row| row.count(0)));
        self.flush();
        let is_more = found.len() >= UNBOUND_AT_ONCE;
        if !is_more {
            self.ask(D::TEXTS.forget_members, &[]);
        }
        is_more
    }
}
