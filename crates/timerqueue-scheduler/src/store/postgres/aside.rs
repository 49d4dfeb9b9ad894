//! Operations that wait for locks of others: put aside, so that all else goes on.
//!
//! Ground rules. A plain value without clock or server; the writer asks it what to try next. A
//! transaction of a user's may keep a key, a row or a group locked for as long as it likes. A
//! batch that meets such a lock comes here whole. It is tried again in halves, until what waits
//! stands alone: that is tried again after a pause, until its patience is over. Operations that
//! name the same thing are a chain, and stay in their order.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::writer::Write;
use crate::store::{JobId, Op};

/// How long a transaction waits for a lock at its first try. Transactions of other nodes are
/// shorter.
const LONG: Duration = Duration::from_millis(200);
/// The same, while locks are known that last longer. All else waits as long for each try.
const SHORT: Duration = Duration::from_millis(20);
/// How much longer than its try the pause after it is: tries of what is known to wait take at most
/// a fifth of the writer's time.
const PAUSE: u32 = 4;

/// What an operation may have to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    Key(Arc<str>),
    Job(JobId),
    /// Of a handler.
    Group(Arc<str>, Arc<str>),
    /// The group with this number.
    Bound(u64),
    Handler(Arc<str>),
}

/// `has_row`: whether the row of a handler is there. A put for another one writes it.
fn names(write: &Write, has_row: impl Fn(&Arc<str>) -> bool) -> HashSet<Name> {
    let mut names = HashSet::new();
    for op in write.ops.iter().flatten() {
        match op {
            Op::Put(new) => {
                names.insert(Name::Key(Arc::clone(&new.key)));
                names.extend(new.group.iter().map(|text| Name::Group(Arc::clone(&new.name), Arc::clone(text))));
                names.extend((!has_row(&new.name)).then(|| Name::Handler(Arc::clone(&new.name))));
            }
            Op::Key { key, .. } => _ = names.insert(Name::Key(Arc::clone(key))),
            Op::PauseHandler { name, .. } => _ = names.insert(Name::Handler(Arc::clone(name))),
            Op::Settle(settle) => _ = names.insert(Name::Job(settle.held.id)),
            Op::Progress { held, .. } => _ = names.insert(Name::Job(held.id)),
            Op::Advance(advance) => _ = names.insert(Name::Job(advance.id)),
            Op::Revive(id) | Op::Discard(id) | Op::Doubt(id) | Op::Job { id, .. } => _ = names.insert(Name::Job(*id)),
            Op::Bind(bind) => _ = names.insert(Name::Bound(bind.group.0)),
        }
    }
    names
}

/// Operations that name the same things, in their order.
#[derive(Default)]
struct Chain {
    names: HashSet<Name>,
    writes: VecDeque<Write>,
}

impl Chain {
    /// Of both, the write that was asked for first comes first.
    fn take_in(&mut self, other: Self) {
        self.names.extend(other.names);
        self.writes.extend(other.writes);
        self.writes.make_contiguous().sort_by_key(|write| write.asked);
    }
}

/// Chains that are tried in one transaction.
struct Group {
    chains: Vec<Chain>,
    /// How often the only chain has been tried: from then on its first write alone. Zero: all are
    /// tried together, and soon.
    tries: u32,
}

/// What is tried in one transaction, without its writes.
pub(super) struct Tried {
    /// How long it waits for a lock.
    pub(super) wait: Duration,
    /// What is left of the group, and how many writes are those of each chain.
    group: Group,
    counts: Vec<usize>,
}

/// The operations that wait.
#[derive(Default)]
pub(super) struct Aside {
    groups: VecDeque<Group>,
    /// When what is known to wait may be tried again.
    again: Option<Instant>,
    /// Until then, locks are expected to last.
    wary: Option<Instant>,
}

impl Aside {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How long a first try may wait for a lock.
    pub(super) fn first_wait(&self, patience: Duration, now: Instant) -> Duration {
        let is_wary = self.wary.is_some_and(|until| now < until);
        (if is_wary { SHORT } else { LONG }).min(patience / 4)
    }

    /// A transaction has met a lock that lasts.
    pub(super) fn beware(&mut self, patience: Duration, now: Instant) {
        self.wary = Some(now + patience);
    }

    /// Takes in a write that must not go before one that waits; any other one is given back.
    pub(super) fn behind(&mut self, write: Write) -> Option<Write> {
        if self.is_empty() {
            return Some(write);
        }
        // A handler is among the names of a chain if it has no row.
        let Some((mut chain, tries)) = self.join(&names(&write, |_| false)) else { return Some(write) };
        chain.names.extend(names(&write, |_| true));
        chain.writes.push_back(write);
        self.groups.push_back(Group { chains: vec![chain], tries });
        None
    }

    /// Takes out all chains that have one of the names: one chain from now on. Second: how often it
    /// has been tried.
    fn join(&mut self, names: &HashSet<Name>) -> Option<(Chain, u32)> {
        let is_one = |chain: &Chain| !chain.names.is_disjoint(names);
        let (mut joined, mut tries): (Option<Chain>, u32) = (None, 0);
        for group in &mut self.groups {
            let (named, rest): (Vec<Chain>, _) = std::mem::take(&mut group.chains).into_iter().partition(is_one);
            group.chains = rest;
            for chain in named {
                joined.get_or_insert_default().take_in(chain);
                tries = tries.max(group.tries);
            }
        }
        self.groups.retain(|group| !group.chains.is_empty());
        joined.map(|joined| (joined, tries))
    }

    /// A batch has met a lock. `has_row`: whether the row of a handler is there.
    pub(super) fn put(&mut self, batch: Vec<Write>, has_row: impl Fn(&Arc<str>) -> bool, now: Instant) {
        let mut chains: Vec<Chain> = Vec::new();
        for write in batch {
            let mut chain = Chain { names: names(&write, &has_row), writes: VecDeque::from([write]) };
            let is_one = |other: &Chain| !other.names.is_disjoint(&chain.names);
            let (joined, rest): (Vec<Chain>, _) = chains.into_iter().partition(is_one);
            chains = rest;
            joined.into_iter().for_each(|other| chain.take_in(other));
            chains.push(chain);
        }
        // What came later may be aside already.
        for chain in &mut chains {
            if let Some((other, _)) = self.join(&chain.names) {
                chain.take_in(other);
            }
        }
        let is_alone = matches!(&*chains, [chain] if chain.writes.len() == 1);
        let groups = halves(chains);
        if is_alone {
            self.again.get_or_insert(now + SHORT * PAUSE);
        }
        self.groups.extend(groups.into_iter().map(|group| Group { tries: u32::from(is_alone), ..group }));
    }

    /// The writes whose patience is over.
    pub(super) fn expired(&mut self, patience: Duration, now: Instant) -> Vec<Write> {
        let mut expired = Vec::new();
        for chain in self.groups.iter_mut().flat_map(|group| &mut group.chains) {
            // The first one has waited for longest.
            while chain.writes.front().is_some_and(|write| now >= write.asked + patience) {
                expired.extend(chain.writes.pop_front());
            }
        }
        for group in &mut self.groups {
            group.chains.retain(|chain| !chain.writes.is_empty());
        }
        self.groups.retain(|group| !group.chains.is_empty());
        expired
    }

    /// When the next try may be.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_fresh = self.groups.iter().any(|group| group.tries == 0);
        (!self.is_empty()).then(|| if is_fresh { now } else { self.again.unwrap_or(now) })
    }

    /// What is to be tried now. What is not known to wait comes first.
    pub(super) fn next(&mut self, now: Instant) -> Option<(Vec<Write>, Tried)> {
        let is_again = self.again.is_none_or(|again| again <= now);
        let fresh = self.groups.iter().position(|group| group.tries == 0);
        let mut group = self.groups.remove(fresh.or(is_again.then_some(0))?)?;
        let most = if group.tries == 0 { usize::MAX } else { 1 };
        let counts: Vec<usize> = group.chains.iter().map(|chain| chain.writes.len().min(most)).collect();
        let chains = group.chains.iter_mut().zip(&counts);
        let writes = chains.flat_map(|(chain, &count)| chain.writes.drain(..count)).collect();
        let wait = (SHORT * (1 << group.tries.saturating_sub(1).min(2))).min(LONG);
        Some((writes, Tried { wait, group, counts }))
    }

    /// A try was answered. What is behind it may follow at once, and so may the others: the lock
    /// may have been theirs as well.
    pub(super) fn passed(&mut self, tried: Tried) {
        let Tried { mut group, .. } = tried;
        if group.tries > 0 {
            self.again = None;
        }
        group.chains.retain(|chain| !chain.writes.is_empty());
        if !group.chains.is_empty() {
            group.tries = 0;
            self.groups.push_front(group);
        }
    }

    /// A try has met a lock.
    pub(super) fn failed(&mut self, writes: Vec<Write>, tried: Tried, now: Instant) {
        let Tried { wait, mut group, counts } = tried;
        let mut writes = writes.into_iter();
        for (chain, count) in group.chains.iter_mut().zip(counts) {
            let mut first: VecDeque<Write> = writes.by_ref().take(count).collect();
            first.append(&mut chain.writes);
            chain.writes = first;
        }
        if group.chains.len() > 1 {
            return halves(group.chains).into_iter().rev().for_each(|half| self.groups.push_front(half));
        }
        let is_alone = group.tries > 0 || group.chains.iter().all(|chain| chain.writes.len() == 1);
        group.tries += 1;
        if is_alone {
            self.again = Some(now + wait * PAUSE);
        }
        self.groups.push_back(group);
    }
}

/// Two groups, or one of a single chain.
fn halves(mut chains: Vec<Chain>) -> Vec<Group> {
    let second = chains.split_off(chains.len().div_ceil(2));
    let group = |chains| Group { chains, tries: 0 };
    [chains, second].into_iter().filter(|chains| !chains.is_empty()).map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::writer::Back;
    use crate::store::{Mutation, Reply};

    fn write(keys: &[usize]) -> Write {
        let op = |key: &usize| Ok(Op::Key { key: format!("{key}").into(), mutation: Mutation::Pause });
        Write::new(keys.iter().map(op).collect(), None, Back::Applied(Reply::new(|_| {})))
    }

    fn keys(write: &Write) -> Vec<usize> {
        let key = |op: &Op| match op {
            Op::Key { key, .. } => key.parse().unwrap(),
            _ => unreachable!("all are changes by key"),
        };
        write.ops.iter().flatten().map(key).collect()
    }

    /// Keys are locked and freed at random. Each write is applied once, and those that name the
    /// same key in the order of their calls. With all keys free but one, all writes that do not
    /// name it are applied.
    #[test]
    fn all_are_applied_once_and_in_the_order_of_each_key() {
        const KEYS: usize = 12;
        let mut random = 1u64;
        let mut next = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % most
        };
        for _ in 0..30 {
            let (mut aside, mut now) = (Aside::default(), Instant::now());
            let mut locked: HashSet<usize> = (0..next(KEYS)).map(|_| next(KEYS)).collect();
            // A key is followed by the number of the write in its order.
            let (mut calls, mut applied) = (vec![0; KEYS], vec![0; KEYS]);
            let (mut asked, mut done) = (Vec::new(), 0);
            let mut check = |writes: &[Write], asked: &[(Instant, Vec<(usize, usize)>)]| {
                for write in writes {
                    let (_, numbers) = asked.iter().find(|(at, _)| *at == write.asked).unwrap();
                    for &(key, number) in numbers {
                        assert_eq!(applied[key], number, "in the order of the calls");
                        applied[key] += 1;
                    }
                    done += 1;
                }
            };
            for step in 0..400 {
                now += Duration::from_millis(next(60) as u64);
                if step < 300 && next(20) == 0 {
                    locked = (0..next(3)).map(|_| next(KEYS)).collect();
                }
                let is_last = step >= 200;
                let mut batch = Vec::new();
                for _ in 0..if is_last { 0 } else { next(6) } {
                    let mut named: Vec<usize> = (0..=next(2)).map(|_| next(KEYS)).collect();
                    named.sort_unstable();
                    named.dedup();
                    let mut write = write(&named);
                    while asked.iter().any(|(at, _)| *at == write.asked) {
                        write.asked += Duration::from_nanos(1);
                    }
                    let mut number = |key: usize| {
                        calls[key] += 1;
                        (key, calls[key] - 1)
                    };
                    asked.push((write.asked, named.into_iter().map(&mut number).collect()));
                    batch.extend(aside.behind(write));
                }
                let waits = |writes: &[Write]| writes.iter().flat_map(keys).any(|key| locked.contains(&key));
                if waits(&batch) {
                    aside.put(batch, |_| true, now);
                } else {
                    check(&batch, &asked);
                }
                for _ in 0..if is_last { 40 } else { 1 } {
                    let Some((writes, tried)) = aside.next(now) else { break };
                    if waits(&writes) {
                        aside.failed(writes, tried, now);
                    } else {
                        check(&writes, &asked);
                        aside.passed(tried);
                    }
                }
                if step == 300 {
                    locked.clear();
                }
            }
            assert!(aside.is_empty());
            assert_eq!(done, asked.len());
        }
    }

    #[test]
    fn what_waits_for_longer_than_the_patience_is_given_back() {
        let (mut aside, now) = (Aside::default(), Instant::now());
        aside.put(vec![write(&[1]), write(&[2]), write(&[1, 2]), write(&[3])], |_| true, now);
        assert!(aside.expired(Duration::from_secs(60), now).is_empty());
        let expired = aside.expired(Duration::from_secs(60), now + Duration::from_secs(61));
        assert_eq!(expired.iter().map(keys).collect::<Vec<_>>().len(), 4);
        assert!(aside.is_empty());
    }
}
