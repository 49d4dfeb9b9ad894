//! Groups: which member runs their jobs, and how many at a time.

use timerqueue_scheduler::store::{After, Bind, Bound, GroupId, Limits, Unbound};
use timerqueue_scheduler::{NodeId, Until};

use super::*;

fn job(key: &str, group: &str, when: When) -> Op {
    Op::Put(Box::new(NewJob { group: Some(group.into()), ..new_job(key, when) }))
}

impl<R: Rig> Bench<R> {
    fn put_to(&self, key: &str, group: &str, second: i64) {
        let _ = ADDED(self.one(job(key, group, When::At(at(second)))));
    }

    /// The jobs that a node claims.
    fn take(&self, owner: u64) -> Claimed {
        self.claim_as(owner, &[("h", 100)], 100)
    }

    fn taken(&self, owner: u64) -> Vec<String> {
        keys(&self.take(owner).jobs)
    }

    fn groups(&self) -> Vec<Bound> {
        match self.scan(Scan::Groups { after: GroupId(0), limit: 1_000 }) {
            Scanned::Groups(groups) => groups,
            _ => panic!("groups"),
        }
    }

    fn group(&self, group: &str) -> Bound {
        self.groups().into_iter().find(|bound| &*bound.group == group).expect("a group")
    }

    fn node(&self, owner: u64) -> NodeId {
        let name = format!("node {owner}");
        self.nodes().into_iter().find(|node| *node.name == *name).expect("a node").id
    }

    fn bind(&self, one: &Unbound, owner: u64) -> Applied {
        self.one(Op::Bind(Bind { group: one.id, version: one.version, node: self.node(owner) }))
    }

    /// Moves a group, as a new node does.
    fn move_to(&self, group: &str, owner: u64) -> Applied {
        let Bound { id, version, .. } = self.group(group);
        self.one(Op::Bind(Bind { group: id, version, node: self.node(owner) }))
    }

    /// This claimer is one of several.
    fn is_next(&self, claimed: &Claimed, at: Micros) {
        let next = claimed.next_job.expect("a job that is left");
        assert!((at..=at.saturating_add(R::APART)).contains(&next), "{next:?} instead of {at:?}");
    }

    /// Binds all groups whose jobs are due.
    fn bind_due(&self, owner: u64) {
        for one in self.claim_as(owner, &[("h", 100)], 0).unbound {
            assert_eq!(self.bind(&one, owner), Applied::Held(true));
        }
    }
}

pub(crate) fn m2_jobs_of_a_group_go_to_one_member<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    store.put_to("a1", "a", 0);
    store.put_to("b1", "b", 1);
    store.put_to("a2", "a", 5);
    let _ = store.put("free", When::At(at(3)));
    store.clock(1);
    // A claim by no member knows of no group.
    assert!(store.taken(9).is_empty());
    let claimed = store.take(1);
    assert!(claimed.jobs.is_empty());
    let texts: Vec<&str> = claimed.unbound.iter().map(|one| &*one.group).collect();
    assert_eq!(texts, ["a", "b"]);
    store.is_next(&claimed, at(3));
    let names: Vec<&str> = claimed.unbound[0].candidates.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["node 1", "node 2"]);
    assert_eq!(store.bind(&claimed.unbound[0], 1), Applied::Held(true));
    assert_eq!(store.bind(&claimed.unbound[0], 2), Applied::Held(false), "the first choice counts");
    assert_eq!(store.bind(&claimed.unbound[1], 2), Applied::Held(true));
    store.clock(9);
    let second = store.take(2);
    assert_eq!((keys(&second.jobs), second.unbound.len()), (vec!["b1".into(), "free".into()], 0));
    assert_eq!(store.taken(1), ["a1", "a2"]);
    assert_eq!(store.get("a1").unwrap().group.as_deref(), Some("a"));
    // Later jobs too: the claim of another member is not told of them.
    store.put_to("a3", "a", 20);
    assert_eq!(store.take(2).next_job, None);
    store.clock(20);
    assert!(store.taken(2).is_empty());
    assert_eq!(store.taken(1), ["a3"]);
}

pub(crate) fn m2_a_member_without_the_handler_gets_no_group<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    let new = NewJob { name: "other".into(), group: Some("a".into()), ..new_job("a1", When::At(at(0))) };
    let _ = store.one(Op::Put(Box::new(new)));
    assert!(store.take(1).unbound.is_empty());
    assert_eq!(store.move_to("a", 1), Applied::Held(false));
    store.put_to("b1", "b", 0);
    let unbound = store.take(1).unbound;
    assert_eq!((unbound.len(), unbound[0].candidates.len()), (1, 1));
}

pub(crate) fn m2_no_place_is_given_on_while_a_group_waits_for_a_member<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    for (key, second) in [("a", 1), ("b", 6), ("c", 6)] {
        let _ = store.put(key, When::At(at(second)));
    }
    store.clock(5);
    let job = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    store.put_to("bound", "x", 5);
    store.clock(6);
    assert!(store.settle_and_take(&job, Verdict::Done).is_none());
    store.bind_due(1);
    // It is the first to be due, also among places that are given on.
    assert_eq!(store.taken(1)[0], "bound");
}

pub(crate) fn m6_no_place_of_all_members_is_given_on_while_a_job_of_a_group_is_due<R: Rig>() {
    let store = Bench::<R>::new();
    let limits = Limits { everywhere: Some(1), ..Limits::default() };
    store.enter_with(1, limits);
    store.enter_with(2, limits);
    store.put_to("bound", "x", 0);
    let unbound = store.take(1).unbound;
    assert_eq!(store.bind(&unbound[0], 2), Applied::Held(true));
    for key in ["a", "b", "c"] {
        let _ = store.put(key, When::At(at(1)));
    }
    store.clock(5);
    let job = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    assert!(store.settle_and_take(&job, Verdict::Done).is_none(), "the other member has waited longer");
    assert_eq!(store.taken(2)[0], "bound");
}

pub(crate) fn m4_no_place_is_given_on_while_groups_of_a_gone_member_are_left<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    for key in ["a", "b", "c"] {
        let _ = store.put(key, When::At(at(1)));
    }
    let ops = (0..600).map(|n| job(&format!("bound {n}"), &format!("x{n}"), When::At(at(0))));
    let _ = store.apply(ops.collect());
    store.clock(5);
    let first = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    loop {
        let unbound = store.claim_as(1, &[("h", 1)], 0).unbound;
        if unbound.is_empty() {
            break;
        }
        unbound.iter().for_each(|one| assert_eq!(store.bind(one, 2), Applied::Held(true)));
    }
    store.rig.store().leave(2);
    let unbound = store.claim_as(1, &[("h", 1)], 0).unbound;
    assert!((1..600).contains(&unbound.len()), "{}", unbound.len());
    unbound.iter().for_each(|one| assert_eq!(store.bind(one, 1), Applied::Held(true)));
    assert!(store.settle_and_take(&first, Verdict::Done).is_none(), "more of them are to be bound");
}

pub(crate) fn m6_m7_m8_limits_hold_where_places_are_given_on<R: Rig>() {
    for everywhere in [None, Some(1)] {
        limits_hold_where_places_are_given_on::<R>(everywhere);
    }
}

fn limits_hold_where_places_are_given_on<R: Rig>(everywhere: Option<u64>) {
    let store = Bench::<R>::new();
    let rate = timerqueue_scheduler::store::Rate { runs: 3, per: secs(3) };
    let limits = Limits { everywhere, group: Some(1), rate: Some(rate) };
    store.enter_with(1, limits);
    store.enter_with(2, limits);
    for n in 0..6 {
        store.put_to(&n.to_string(), "a", n);
    }
    store.clock(9);
    store.bind_due(1);
    let mut job = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    let mut ran = 1;
    while let Some(next) = store.settle_and_take(&job, Verdict::Done) {
        ran += 1;
        assert!(store.taken(1).is_empty() && store.taken(2).is_empty(), "the one place is taken");
        job = next;
    }
    ran += (0..9)
        .filter(|_| {
            store.take(1).jobs.pop().is_some_and(|job| store.settle(&job, Verdict::Done) == Applied::Held(true))
        })
        .count();
    assert_eq!(ran, 3, "all tokens, and no more");
    assert_eq!(store.take(1).next_job, Some(at(10)));
}

pub(crate) fn m3_jobs_of_other_members_and_of_full_groups_are_in_no_ones_way<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter_with(1, Limits { group: Some(1), ..Limits::default() });
    store.enter(2);
    for n in 0..5 {
        store.put_to(&format!("a{n}"), "a", n);
        store.put_to(&format!("b{n}"), "b", 5 + n);
    }
    store.clock(20);
    store.bind_due(1);
    let claimed = store.take(1);
    assert_eq!(keys(&claimed.jobs), ["a0", "b0"], "one at a time of each");
    assert_eq!(claimed.next_job, None, "the others wait for no instant");
    assert!(store.taken(2).is_empty());
    // The next one follows the end of the run.
    for n in 1..5 {
        let job = store.get(&format!("a{}", n - 1)).unwrap();
        assert_eq!(job.state, State::Running);
        let held = Held { id: job.id, owner: 1, claim: 1 };
        assert_eq!(store.one(settle(held, Verdict::Done)), Applied::Held(true));
        assert_eq!(store.taken(1), [format!("a{n}")]);
    }
}

pub(crate) fn m3_a_retry_and_a_move_keep_the_group<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    store.put_to("a", "x", 0);
    store.bind_due(1);
    let job = store.take(1).jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Retry(secs(5))), Applied::Held(true));
    store.clock(6);
    assert!(store.taken(2).is_empty());
    let job = store.take(1).jobs.remove(0);
    assert_eq!(job.attempt, 2);
    assert_eq!(store.settle(&job, Verdict::Again(When::At(at(50)))), Applied::Held(true));
    assert_eq!(store.change("a", Mutation::Move(When::At(at(8)))), Applied::Change(Change::Changed));
    assert_eq!(store.take(1).next_job, Some(at(8)));
    assert_eq!(store.change("a", Mutation::Pause), Applied::Change(Change::Changed));
    store.clock(9);
    assert!(store.taken(1).is_empty());
    assert_eq!(store.change("a", Mutation::Resume), Applied::Change(Change::Changed));
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: true });
    assert!(store.taken(1).is_empty());
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: false });
    assert!(store.taken(2).is_empty());
    let job = store.take(1).jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Dead), Applied::Held(true));
    assert_eq!(store.one(Op::Revive(job.held.id)), Applied::Revive(Revive::Revived));
    assert!(store.taken(2).is_empty());
    assert_eq!(store.taken(1), ["a"]);
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Running));
}

pub(crate) fn m4_the_share_of_a_member_that_leaves_is_bound_again<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    for n in 0..3 {
        store.put_to(&format!("a{n}"), "a", n);
        store.put_to(&format!("b{n}"), "b", n);
    }
    store.bind_due(1);
    let begun = store.take(1).jobs;
    assert_eq!(keys(&begun), ["a0", "b0"]);
    let _ = store.settle(&begun[0], Verdict::Done);
    store.clock(5);
    store.leave(1);
    // No run of `a` is under way, one of `b` is.
    let unbound = store.take(2).unbound;
    assert_eq!(unbound.iter().map(|one| &*one.group).collect::<Vec<_>>(), ["a"]);
    store.bind_due(2);
    assert_eq!(store.taken(2), ["a1", "a2"]);
    assert_eq!(store.group("b").node, Some(NodeId(store.node(2).0 - 1)), "until the run has ended");
    assert_eq!(store.settle(&begun[1], Verdict::Done), Applied::Held(true));
    store.bind_due(2);
    assert_eq!(store.taken(2), ["b1", "b2"]);
}

pub(crate) fn m5_a_group_moves_when_its_runs_have_ended<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.put_to("a0", "a", 0);
    store.put_to("b0", "b", 0);
    store.bind_due(1);
    let begun = store.take(1).jobs;
    assert_eq!(begun.len(), 2);
    store.put_to("a1", "a", 1);
    store.put_to("b1", "b", 2);
    store.clock(5);
    store.enter(2);
    assert_eq!(store.move_to("a", 2), Applied::Held(true));
    assert!(store.taken(2).is_empty());
    assert_eq!(store.taken(1), ["b1"], "no further run begins on the old holder");
    assert_eq!(store.settle(&begun[0], Verdict::Done), Applied::Held(true));
    assert!(store.taken(1).is_empty());
    assert_eq!(store.taken(2), ["a1"]);
    // Back and forth: the last choice counts.
    assert_eq!(store.move_to("a", 1), Applied::Held(true));
    assert_eq!(store.move_to("a", 2), Applied::Held(true));
    store.put_to("a2", "a", 5);
    assert_eq!(store.taken(2), ["a2"]);
    // The next holder goes before the runs have ended.
    assert_eq!(store.move_to("b", 2), Applied::Held(true));
    store.leave(2);
    assert_eq!(store.settle(&begun[1], Verdict::Done), Applied::Held(true));
    assert_eq!(store.group("b").node, Some(store.node(1)), "another run is under way");
}

pub(crate) fn m5_an_idle_group_is_forgotten_after_an_hour<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.put_to("a", "a", 0);
    store.bind_due(1);
    let job = store.take(1).jobs.remove(0);
    let _ = store.settle(&job, Verdict::Done);
    store.clock(3_000);
    store.put_to("b", "b", 9_000);
    assert_eq!(store.group("a").node, Some(store.node(1)), "the binding lasts");
    store.clock(3_700);
    // No further group comes: a claim forgets it, or the store at its own time.
    let texts = || store.groups().iter().map(|bound| bound.group.to_string()).collect::<Vec<_>>();
    let begun = std::time::Instant::now();
    while texts() != ["b"] {
        assert!(begun.elapsed() < secs(30), "{:?}", texts());
        assert!(store.take(1).jobs.is_empty());
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn m5_a_group_is_not_forgotten_in_the_commit_that_puts_a_job_to_it<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.put_to("a", "a", 0);
    store.bind_due(1);
    let first = store.take(1).jobs.remove(0);
    let _ = store.settle(&first, Verdict::Done);
    store.clock(3_700);
    // The further group of the same commit makes a store forget those whose time is over.
    store.apply(["a", "b"].map(|key| job(key, key, When::At(at(3_700)))).into());
    store.bind_due(1);
    assert_eq!(store.taken(1), ["a", "b"]);
}

pub(crate) fn m2_runs_of_a_recurring_job_have_its_group<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    let schedule = Schedule::every(secs(10)).build().unwrap();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Allow };
    let mut new = NewJob { group: Some("a".into()), ..new_job("r", When::At(at(10))) };
    (new.recurrence, new.first) = (Some(Box::new(recurrence)), Some(occurrence(10)));
    let _ = store.one(Op::Put(Box::new(new)));
    store.clock(10);
    assert_eq!(store.advance(&[10], 20), Applied::Held(true));
    store.bind_due(2);
    assert!(store.taken(1).is_empty());
    assert_eq!(store.taken(2), ["r"]);
}

pub(crate) fn m6_runs_of_all_members_are_limited<R: Rig>() {
    let store = Bench::<R>::new();
    let limits = Limits { everywhere: Some(3), ..Limits::default() };
    store.enter_with(1, limits);
    store.enter_with(2, limits);
    for n in 0..6 {
        let _ = store.put(&n.to_string(), When::At(at(0)));
    }
    store.put_to("6", "a", 0);
    assert_eq!(store.claim_as(1, &[("h", 2)], 9).jobs.len(), 2);
    let second = store.take(2);
    assert_eq!(keys(&second.jobs), ["2"]);
    store.bind_due(2);
    let full = store.take(2);
    assert_eq!((full.jobs.len(), full.next_job), (0, None), "the end of a run frees a place");
    assert_eq!(store.settle(&second.jobs[0], Verdict::Done), Applied::Held(true));
    assert_eq!(store.taken(1), ["3"]);
    assert!(store.taken(2).is_empty());
}

pub(crate) fn m7_jobs_of_a_group_run_one_after_another<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter_with(1, Limits { group: Some(2), ..Limits::default() });
    for n in 0..5 {
        store.put_to(&format!("a{n}"), "a", n);
    }
    store.clock(9);
    store.bind_due(1);
    let begun = store.take(1).jobs;
    assert_eq!(keys(&begun), ["a0", "a1"]);
    assert!(store.taken(1).is_empty());
    let _ = store.settle(&begun[1], Verdict::Retry(secs(60)));
    assert_eq!(store.taken(1), ["a2"]);
    // A run that is cancelled ends, and frees its place.
    let _ = store.change("a0", Mutation::Cancel);
    assert!(store.taken(1).is_empty());
    let _ = store.settle(&begun[0], Verdict::Retry(secs(60)));
    assert_eq!(store.taken(1), ["a3"]);
}

pub(crate) fn m8_a_rate_is_kept_over_all_members<R: Rig>() {
    let store = Bench::<R>::new();
    let rate = timerqueue_scheduler::store::Rate { runs: 3, per: secs(3) };
    let limits = Limits { rate: Some(rate), ..Limits::default() };
    store.enter_with(1, limits);
    store.enter_with(2, limits);
    for n in 0..20 {
        let _ = store.put(&n.to_string(), When::At(at(0)));
    }
    assert_eq!(store.claim_as(1, &[("h", 2)], 9).jobs.len(), 2);
    let second = store.claim_as(2, &[("h", 9)], 9);
    assert_eq!(second.jobs.len(), 1);
    store.is_next(&second, at(1));
    store.is_next(&store.claim_as(1, &[("h", 9)], 9), at(1));
    store.clock(1);
    assert_eq!(store.claim_as(1, &[("h", 9)], 9).jobs.len(), 1);
    assert_eq!(store.claim_as(2, &[("h", 9)], 9).jobs.len(), 0);
    store.clock(3);
    assert_eq!(store.claim_as(2, &[("h", 9)], 9).jobs.len(), 2);
    store.clock(100);
    assert_eq!(store.claim_as(2, &[("h", 9)], 9).jobs.len(), 3, "no more than a burst is saved");
    // After a step back the bucket is empty at most.
    store.clock(50);
    store.is_next(&store.claim_as(2, &[("h", 9)], 9), at(51));
    store.clock(51);
    assert_eq!(store.claim_as(2, &[("h", 9)], 9).jobs.len(), 1);
}

pub(crate) fn limits_of_groups<R: Rig>() {
    use timerqueue_scheduler::store::Invalid;
    let store = Bench::<R>::new();
    let refused = |group: &str| store.one(job("a", group, When::At(at(0))));
    assert_eq!(refused(""), Applied::Invalid(Invalid::EmptyGroup));
    assert_eq!(refused("a\0"), Applied::Invalid(Invalid::NulInGroup));
    let long = "x".repeat(MAX_KEY_BYTES + 1);
    assert_eq!(refused(&long), Applied::Invalid(Invalid::GroupTooLong { bytes: MAX_KEY_BYTES + 1 }));
    let _ = ADDED(store.one(job("a", &long[1..], When::At(at(0)))));
    assert_eq!(store.get("a").unwrap().group.as_deref(), Some(&long[1..]));
}

pub(crate) fn j36_a_follower_of_a_group_goes_to_its_member<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    let _ = store.put("a", When::At(at(0)));
    let after = After { keys: vec!["a".into()], until: Until::AllDone };
    let new = NewJob { group: Some("g".into()), after: Some(Box::new(after)), ..new_job("end", When::At(at(0))) };
    let _ = ADDED(store.one(Op::Put(Box::new(new))));
    let claimed = store.take(1);
    assert!(claimed.unbound.is_empty());
    let _ = store.settle(&claimed.jobs[0], Verdict::Done);
    store.bind_due(1);
    assert_eq!(store.taken(1), ["end"]);
}
