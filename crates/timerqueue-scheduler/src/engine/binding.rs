//! Which node runs the jobs of a group: the rules, and the engine that asks them.
//!
//! Ground rules. A rule is code of the user's, so it runs with no lock held, apart from claims, and
//! may panic (J11). The store takes a choice only if the group is as the chooser saw it. So
//! nodes with different rules agree all the same: the first choice counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::core::{Core, surely};
use crate::debug::debug_of;
use crate::store::{Bind, Bound, Candidate, GroupId, Node, Op, Reply, Scan, Scanned, Unbound};
use crate::unwind::caught;

/// The groups of a page, when a new node looks for its share.
const PAGE: usize = 512;

/// Chooses the node that runs the jobs of a group: [`Put::group`](crate::Put::group),
/// [`Builder::binding`](crate::Builder::binding).
///
/// The rule is asked when a job of a group without a node is due, and once for each group
/// when a node has started, which so takes its share. It runs on a thread of the runtime's pool,
/// with no lock held. If it panics, or names no candidate, [`Rendezvous`] chooses.
///
/// # Examples
///
/// All groups on the node that started first:
///
/// ```
/// use timerqueue_scheduler::{Binding, Candidate, Scheduler};
///
/// struct First;
///
/// impl Binding for First {
///     fn choose(&self, _group: &str, _candidates: &[Candidate], _holder: Option<usize>) -> usize {
///         0
///     }
/// }
///
/// let builder = Scheduler::builder().binding(First);
/// # drop(builder);
/// ```
pub trait Binding: Send + Sync + 'static {
    /// The index of a candidate. `candidates`: the live nodes that have the handler, at least one,
    /// in the order of their numbers. `holder`: the one among them that has the group now. With
    /// another answer the group moves, once its runs under way have ended.
    fn choose(&self, group: &str, candidates: &[Candidate], holder: Option<usize>) -> usize;
}

/// Rendezvous hashing, the default: the node with the greatest hash of group and node. A new
/// node takes an even share from all others, and the share of a node that is gone goes to all
/// others evenly. Nothing else moves.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Binding, Candidate, Rendezvous};
///
/// let nodes = [1, 2, 3].map(|number| Candidate::new(number, "node", 32, 0));
/// let chosen = Rendezvous.choose("customer/17", &nodes, None);
/// let without_another = [nodes[chosen].clone(), nodes[(chosen + 1) % 3].clone()];
/// assert_eq!(Rendezvous.choose("customer/17", &without_another, None), 0); // it stays
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Rendezvous;

/// One node after another. A group stays where it is until its node is gone. Each scheduler has
/// a turn of its own.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Binding, Candidate, RoundRobin};
///
/// let (rule, nodes) = (RoundRobin::default(), [1, 2].map(|number| Candidate::new(number, "node", 32, 0)));
/// let chosen = ["a", "b", "c"].map(|group| rule.choose(group, &nodes, None));
/// assert_eq!(chosen, [0, 1, 0]);
/// assert_eq!(rule.choose("a", &nodes, Some(0)), 0);
/// ```
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

/// The node with the fewest groups for each place of the handler; of equal ones the first. A
/// group stays where it is until its node is gone.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Binding, Candidate, LeastLoaded};
///
/// // Ten groups on 32 places are less than two on four.
/// let nodes = [Candidate::new(1, "large", 32, 10), Candidate::new(2, "small", 4, 2)];
/// assert_eq!(LeastLoaded.choose("customer/17", &nodes, None), 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

/// The same on each machine and in each version: FNV-1a, and the finalizer of SplitMix64.
fn weight(group: &str, candidate: &Candidate) -> u64 {
    let bytes = group.bytes().chain(candidate.id.0.to_le_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

impl Binding for Rendezvous {
    fn choose(&self, group: &str, candidates: &[Candidate], _holder: Option<usize>) -> usize {
        let weights = candidates.iter().map(|candidate| (weight(group, candidate), candidate.id));
        weights.enumerate().max_by_key(|&(_, weight)| weight).map_or(0, |(at, _)| at)
    }
}

impl Binding for RoundRobin {
    fn choose(&self, _group: &str, candidates: &[Candidate], holder: Option<usize>) -> usize {
        holder.unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed) % candidates.len().max(1))
    }
}

impl Binding for LeastLoaded {
    fn choose(&self, _group: &str, candidates: &[Candidate], holder: Option<usize>) -> usize {
        // Fractions are compared by their products.
        let load = |at: usize| (u128::from(candidates[at].bound) + 1, candidates[at].parallel.max(1) as u128);
        let less = |a: usize, b: usize| if load(b).0 * load(a).1 < load(a).0 * load(b).1 { b } else { a };
        holder.unwrap_or_else(|| (0..candidates.len()).reduce(less).unwrap_or_default())
    }
}

/// A rule, and whether it is one of the user's.
pub(crate) struct Rule {
    pub(crate) rule: Box<dyn Binding>,
    pub(crate) is_own: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Self { rule: Box::new(Rendezvous), is_own: false }
    }
}

debug_of!(Rule, |rule| is_own: rule.is_own);

impl Rule {
    /// The candidate for a group, whose load counts from now on.
    fn choose(&self, group: &str, candidates: &mut [Candidate], holder: Option<usize>) -> usize {
        let chosen = caught(|| self.rule.choose(group, candidates, holder)).ok().filter(|&at| at < candidates.len());
        let chosen = chosen.unwrap_or_else(|| Rendezvous.choose(group, candidates, holder));
        if let Some(candidate) = candidates.get_mut(chosen).filter(|_| holder != Some(chosen)) {
            candidate.bound += 1;
        }
        chosen
    }
}

impl Core {
    /// Binds groups whose jobs are due.
    pub(super) fn bind(self: &Arc<Self>, unbound: Vec<Unbound>) {
        if unbound.is_empty() {
            return;
        }
        let core = Arc::clone(self);
        let choose = surely(move || core.choose(unbound));
        if self.settings.binding.is_own { self.runtime.execute(choose) } else { choose() }
    }

    fn choose(self: &Arc<Self>, unbound: Vec<Unbound>) {
        let mut candidates: HashMap<usize, Vec<Candidate>> = HashMap::new();
        let mut binds = Vec::with_capacity(unbound.len());
        for one in unbound {
            let candidates = candidates.entry(one.kind).or_insert_with(|| one.candidates.to_vec());
            let chosen = self.settings.binding.choose(&one.group, candidates, None);
            if let Some(candidate) = candidates.get(chosen) {
                binds.push(Op::Bind(Bind { group: one.id, version: one.version, node: candidate.id }));
            }
        }
        self.apply_surely(binds, |_, _| {});
    }

    /// A new node takes its share: once, page by page.
    pub(super) fn take_share(self: &Arc<Self>) {
        if !self.settings.handlers.is_empty() && !self.has_share.swap(true, Ordering::Relaxed) {
            self.review(GroupId(0));
        }
    }

    fn review(self: &Arc<Self>, after: GroupId) {
        let core = Arc::clone(self);
        let reply = Reply::new(move |scanned| match scanned {
            Ok(Scanned::Groups(page)) if !page.is_empty() => core.review_page(page),
            _ => {}
        });
        self.store.scan(Scan::Groups { after, limit: PAGE }, reply);
    }

    fn review_page(self: &Arc<Self>, page: Vec<Bound>) {
        let core = Arc::clone(self);
        let reply = Reply::new(move |scanned| {
            let Ok(Scanned::Nodes(nodes)) = scanned else { return };
            match core.settings.binding.is_own {
                true => core.runtime.clone().execute(surely(move || core.review_all(&page, &nodes))),
                false => core.aside(move |core| core.review_all(&page, &nodes)),
            }
        });
        self.store.scan(Scan::Nodes { owner: self.settings.owner }, reply);
    }

    /// A page of groups, of which some may be those of a new node.
    fn review_all(self: &Arc<Self>, page: &[Bound], nodes: &[Node]) {
        let last = page.last().map(|bound| bound.id);
        if self.closing.is_cancelled() || self.runtime.is_shut_down() {
            return;
        }
        let mut candidates: HashMap<Arc<str>, Vec<Candidate>> = HashMap::new();
        let mut moves = Vec::new();
        for bound in page.iter().filter(|bound| self.by_name.contains_key(&bound.name)) {
            let candidates = candidates.entry(Arc::clone(&bound.name)).or_insert_with(|| {
                let candidate = |node: &Node| {
                    let handler = node.handlers.iter().find(|handler| handler.name == bound.name)?;
                    let load = page.iter().filter(|bound| bound.node == Some(node.id)).count() as u64;
                    Some(Candidate::new(node.id.0, &node.name, handler.parallel, load))
                };
                nodes.iter().filter_map(candidate).collect()
            });
            // One without a node is bound when a job of it is due.
            let Some(holder) = candidates.iter().position(|candidate| Some(candidate.id) == bound.node) else {
                continue;
            };
            let chosen = self.settings.binding.choose(&bound.group, candidates, Some(holder));
            if let (true, Some(candidate)) = (chosen != holder, candidates.get(chosen)) {
                moves.push(Op::Bind(Bind { group: bound.id, version: bound.version, node: candidate.id }));
            }
        }
        self.apply_surely(moves, move |core, _| {
            if let Some(last) = last {
                core.review(last);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::mixed;

    fn nodes(numbers: impl IntoIterator<Item = u64>) -> Vec<Candidate> {
        numbers.into_iter().map(|number| Candidate::new(number, "node", 32, 0)).collect()
    }

    /// At each join and leave: what does not move to the new node, or from the node that is gone,
    /// stays.
    #[test]
    fn m5_rendezvous_moves_the_share_of_one_node_and_is_balanced() {
        const GROUPS: usize = 4_000;
        let mut live = nodes(1..=3);
        let groups: Vec<String> = (0..GROUPS).map(|n| format!("customer/{n}")).collect();
        let bind = |live: &[Candidate]| -> Vec<u64> {
            groups.iter().map(|group| live[Rendezvous.choose(group, live, None)].id.0).collect()
        };
        let mut bound = bind(&live);
        for step in 0..40 {
            let random = mixed(1, step, 0);
            let joins = live.len() < 2 || (live.len() < 12 && random % 2 == 0);
            let (new, gone) = if joins {
                live.push(Candidate::new(10 + step, "node", 32, 0));
                (Some(10 + step), None)
            } else {
                (None, Some(live.remove(random as usize % live.len()).id.0))
            };
            let now = bind(&live);
            for (before, now) in bound.iter().zip(&now) {
                assert!(before == now || Some(*now) == new || Some(*before) == gone, "{before} to {now}");
            }
            for candidate in &live {
                let share = now.iter().filter(|&&id| id == candidate.id.0).count() as f64;
                let (mean, nodes) = (GROUPS as f64 / live.len() as f64, live.len() as f64);
                let deviation = (mean * (1.0 - 1.0 / nodes)).sqrt();
                assert!((share - mean).abs() <= 5.0 * deviation, "{share} of {GROUPS} on {nodes} nodes");
            }
            bound = now;
        }
    }

    #[test]
    fn m5_round_robin_and_least_loaded_are_even_and_stay() {
        let mut candidates = nodes(1..=5);
        for rule in [
            Rule { rule: Box::new(RoundRobin::default()), is_own: true },
            Rule { rule: Box::new(LeastLoaded), is_own: true },
        ] {
            let chosen: Vec<usize> = (0..1_000).map(|n| rule.choose(&n.to_string(), &mut candidates, None)).collect();
            for node in 0..5 {
                assert_eq!(chosen.iter().filter(|&&chosen| chosen == node).count(), 200);
            }
            assert!((0..5).all(|holder| rule.choose("x", &mut candidates, Some(holder)) == holder));
        }
        let mut uneven = vec![Candidate::new(1, "large", 30, 0), Candidate::new(2, "small", 10, 0)];
        let rule = Rule { rule: Box::new(LeastLoaded), is_own: true };
        (0..400).for_each(|n: u32| _ = rule.choose(&n.to_string(), &mut uneven, None));
        assert_eq!((uneven[0].bound, uneven[1].bound), (300, 100));
    }

    #[test]
    fn a_rule_that_panics_or_names_no_candidate_is_replaced() {
        struct Wrong(bool);
        impl Binding for Wrong {
            fn choose(&self, _: &str, candidates: &[Candidate], _: Option<usize>) -> usize {
                assert!(!self.0, "no");
                candidates.len()
            }
        }
        let mut candidates = nodes(1..=5);
        for panics in [true, false] {
            let rule = Rule { rule: Box::new(Wrong(panics)), is_own: true };
            let chosen = rule.choose("a", &mut candidates, None);
            assert_eq!(chosen, Rendezvous.choose("a", &candidates, None));
        }
    }
}
