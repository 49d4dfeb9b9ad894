//! Edits, changes by number, and what a job shows of its put and its run.

use timerqueue_scheduler::store::{Edit, Expiry, Invalid, MAX_PAYLOAD_BYTES, Term};

use super::*;

fn edited(edit: Edit) -> Mutation {
    Mutation::Edit(Box::new(edit))
}

fn payload(json: &str) -> Edit {
    Edit { payload: Some(json.into()), ..Edit::default() }
}

fn priority(priority: i8) -> Edit {
    Edit { priority: Some(priority), ..Edit::default() }
}

pub(crate) fn j23_an_edited_job_runs_with_what_it_has_by_then<R: Rig>() {
    let store = Bench::<R>::new();
    let change = |edit: Edit| store.change("a", edited(edit));
    assert_eq!(change(payload("1")), Applied::Change(Change::Absent));
    let grouped = NewJob { group: Some("g".into()), ..new_job("a", When::At(at(10))) };
    let id = ADDED(store.one(Op::Put(Box::new(grouped))));
    let all = Edit { priority: Some(2), when: Some(When::At(at(5))), ..payload("[1]") };
    assert_eq!(change(all), Applied::Change(Change::Changed));
    let job = store.get("a").unwrap();
    assert_eq!((job.id, &*job.payload, job.priority, job.group.as_deref()), (id, "[1]", 2, Some("g")));
    assert_eq!(job.due, Some(at(5).to_system()));
    assert_eq!(change(Edit::default()), Applied::Change(Change::Changed), "of nothing");
    // A run goes on with what it has begun with, and so does its next attempt.
    let _ = store.put("b", When::At(at(0)));
    let run = store.claim().jobs.remove(0);
    assert_eq!(store.change("b", edited(payload("2"))), Applied::Change(Change::Running));
    let _ = store.settle(&run, Verdict::Retry(secs(1)));
    assert_eq!(&*store.get("b").unwrap().payload, "null");
    // One that waits for another attempt keeps its attempts.
    assert_eq!(store.change("b", edited(payload("3"))), Applied::Change(Change::Changed));
    store.clock(4);
    let run = store.claim().jobs.remove(0);
    assert_eq!((&*run.key, &*run.payload, run.attempt), ("b", "3", 2));
    let _ = store.settle(&run, Verdict::Dead);
    assert_eq!(store.change("b", edited(payload("4"))), Applied::Change(Change::Absent), "a dead job has no key");
}

pub(crate) fn j23_an_edit_of_a_priority_moves_the_job_among_the_others<R: Rig>() {
    let store = Bench::<R>::new();
    for key in ["a", "b", "c"] {
        let _ = store.put(key, When::At(at(10)));
    }
    for (key, to) in [("b", 5), ("c", 5), ("c", 0), ("a", -4)] {
        assert_eq!(store.change(key, edited(priority(to))), Applied::Change(Change::Changed));
    }
    assert_eq!(store.claim().next_job, Some(at(10)));
    assert_eq!(store.counts().of(State::Waiting), 3);
    let soonest: Vec<_> = store.list(Query::new().soonest_first()).into_iter().map(|job| job.key).collect();
    assert_eq!(soonest, ["a", "b", "c"].map(Arc::from));
    store.clock(10);
    let mut order = Vec::new();
    while let [job] = &*store.claim_as(1, &[("h", 1)], 1).jobs {
        order.push(job.key.to_string());
    }
    assert_eq!(order, ["b", "c", "a"]);
    // Paused, edited, resumed.
    let _ = store.put("d", When::At(at(10)));
    let _ = store.change("d", Mutation::Pause);
    for to in [3, 0] {
        let _ = store.change("d", edited(priority(to)));
        assert!(store.due().is_empty());
    }
    let _ = store.change("d", Mutation::Resume);
    assert_eq!(store.due(), ["d"]);
}

pub(crate) fn j23_runs_of_an_edited_schedule_are_as_it_says<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Allow, 0);
    let _ = store.advance(&[0], 10);
    let both = Edit { priority: Some(1), ..payload("7") };
    assert_eq!(store.change("r", edited(both)), Applied::Change(Change::Changed));
    let moved = Edit { when: Some(When::At(at(5))), ..payload("8") };
    assert_eq!(store.change("r", edited(moved)), Applied::Change(Change::WrongKind));
    store.clock(10);
    let _ = store.advance(&[10], 20);
    let runs: Vec<_> = store.list(Query::new().state(State::Waiting));
    let seen: Vec<_> = runs.iter().map(|run| (&*run.payload, run.priority)).collect();
    assert_eq!(seen, [("null", 0), ("7", 1)], "a run that was put before is as it was");
    assert_eq!(store.get("r").unwrap().due, Some(at(20).to_system()));
}

pub(crate) fn j23_terms_of_a_job_are_edited_one_by_one<R: Rig>() {
    let store = Bench::<R>::new();
    let terms = |terms: &[Term]| Edit { terms: terms.to_vec(), ..Edit::default() };
    let expires = |expires| Edit { expires: Some(expires), ..Edit::default() };
    let change = |key: &str, edit: Edit| store.change(key, edited(edit));
    const CHANGED: Applied = Applied::Change(Change::Changed);
    let _ = store.put("a", When::At(at(10)));
    let some = [Term::Attempts(Some(0)), Term::Limit(Some(Duration::from_nanos(1_001)))];
    assert_eq!(change("a", terms(&some)), CHANGED);
    assert_eq!(change("a", terms(&[Term::UniqueFor(Some(secs(5))), Term::KeptFor(Some(secs(7)))])), CHANGED);
    let found = store.get("a").unwrap().terms;
    assert_eq!((found.attempts, found.limit), (Some(1), Some(Duration::from_micros(2))), "as of a put");
    assert_eq!((found.unique_for, found.kept_for, found.at_most_once), (Some(secs(5)), Some(secs(7)), false));
    let back = [Term::Attempts(None), Term::Limit(None), Term::UniqueFor(None)];
    assert_eq!(change("a", terms(&back)), CHANGED);
    let found = store.get("a").unwrap().terms;
    assert_eq!((found.attempts, found.limit, found.unique_for, found.kept_for), (None, None, None, Some(secs(7))));
    // The last instant follows the due time that the same edit says, and no later one.
    let moved = Edit { when: Some(When::At(at(20))), ..expires(Some(Expiry::AfterDue(secs(3)))) };
    let last = |second| Some(at(second).to_system());
    for (edit, found) in [
        (moved, last(23)),
        (Edit { when: Some(When::At(at(21))), ..Edit::default() }, last(23)),
        (expires(Some(Expiry::At(When::At(at(30))))), last(30)),
        (expires(None), None),
        (expires(Some(Expiry::AfterDue(secs(1)))), last(22)),
    ] {
        assert_eq!(change("a", edit), CHANGED);
        assert_eq!(store.get("a").unwrap().expires, found);
    }
    // A recurring job has them for its runs to come.
    let _ = store.put_recurring("r", Overlap::Allow, 0);
    let once = Edit { expires: Some(Some(Expiry::AfterDue(secs(2)))), ..terms(&[Term::AtMostOnce(true)]) };
    assert_eq!(change("r", once), CHANGED);
    let at_once = expires(Some(Expiry::At(When::At(at(30)))));
    assert_eq!(change("r", at_once), Applied::Invalid(Invalid::ExpiresWithSchedule));
    let job = store.get("r").unwrap();
    assert_eq!((job.expires, job.expires_after), (None, Some(secs(2))));
    let _ = store.advance(&[0], 10);
    let run = store.list(Query::new().key_prefix("r").state(State::Waiting)).remove(0);
    assert_eq!((run.terms.at_most_once, run.expires), (true, last(2)));
    // A job that has begun is not begun again, and one that is let off is.
    let _ = store.put("b", When::At(at(0)));
    let of_b = |store: &Bench<R>| store.claim().jobs.into_iter().find(|job| &*job.key == "b").unwrap();
    let run = of_b(&store);
    let _ = store.settle(&run, Verdict::Retry(secs(1)));
    assert_eq!(change("b", terms(&[Term::AtMostOnce(true)])), CHANGED);
    assert_eq!(change("b", terms(&[Term::AtMostOnce(false)])), CHANGED);
    store.clock(4);
    let run = of_b(&store);
    assert_eq!((run.cut_off, run.attempt), (false, 2));
    let _ = store.settle(&run, Verdict::Retry(secs(1)));
    assert_eq!(change("b", terms(&[Term::AtMostOnce(true)])), CHANGED);
    store.clock(8);
    assert!(of_b(&store).cut_off);
}

pub(crate) fn j23_a_change_by_number_changes_that_job_alone<R: Rig>() {
    let store = Bench::<R>::new();
    let old = ADDED(store.put("a", When::At(at(10))));
    let replaced = placed(store.one(put_over("a", Clash::Replace)));
    let Placed::Replaced { id: new, .. } = replaced else { panic!("{replaced:?}") };
    let by = |id, mutation| store.one(Op::Job { id, mutation });
    for mutation in [Mutation::Move(When::At(at(1))), Mutation::Pause, Mutation::RunNow, edited(payload("1"))] {
        assert_eq!(by(old, mutation.clone()), Applied::Change(Change::Absent), "{mutation:?}");
        assert_eq!(by(new, mutation), Applied::Change(Change::Changed));
    }
    assert_eq!(by(old, Mutation::Cancel), Applied::Cancel(Cancel::Absent));
    // A run of a schedule has not its own key.
    let _ = store.put_recurring("r", Overlap::Skip, 0);
    let _ = store.advance(&[0], 10);
    let run = store.list(Query::new().key_prefix("r").state(State::Waiting)).remove(0);
    assert_eq!(by(run.id, Mutation::Cancel), Applied::Cancel(Cancel::Absent));
    assert_eq!(by(run.parent.unwrap(), Mutation::RunNow), Applied::Change(Change::Running), "as its overlap says");
    assert_eq!(by(new, Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    // A run under way, and then without its key.
    let _ = store.put("b", When::At(at(0)));
    let jobs = store.claim().jobs;
    let job = jobs.iter().find(|job| &*job.key == "b").unwrap();
    assert_eq!(by(job.held.id, Mutation::RunNow), Applied::Change(Change::Running));
    assert_eq!(by(job.held.id, Mutation::Cancel), Applied::Cancel(Cancel::Running));
    let _ = store.one(put_over("b", Clash::Replace));
    assert_eq!(by(job.held.id, Mutation::Cancel), Applied::Cancel(Cancel::Absent));
}

pub(crate) fn limits_of_edits<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.put("a", When::At(at(10))));
    let long = format!("\"{}\"", "x".repeat(MAX_PAYLOAD_BYTES));
    for (edit, invalid) in [
        (payload("{"), Invalid::PayloadNotJson),
        (payload(r#""\u0000""#), Invalid::NulInPayload),
        (payload(&long), Invalid::PayloadTooLong { bytes: long.len() }),
        (priority(10), Invalid::PriorityOutOfRange { priority: 10 }),
        (priority(i8::MIN), Invalid::PriorityOutOfRange { priority: i8::MIN }),
        (Edit { when: Some(When::After(Duration::MAX)), ..payload("1") }, Invalid::InstantOutOfRange),
    ] {
        for op in [
            Op::Key { key: "a".into(), mutation: edited(edit.clone()) },
            Op::Job { id, mutation: edited(edit.clone()) },
        ] {
            assert_eq!(store.one(op), Applied::Invalid(invalid), "{:?}", edit.priority);
        }
    }
    let job = store.get("a").unwrap();
    assert_eq!((&*job.payload, job.priority, job.due), ("null", 0, Some(at(10).to_system())), "nothing was changed");
    for id in [0, u64::MAX] {
        let op = Op::Job { id: JobId(id), mutation: edited(payload("1")) };
        assert_eq!(store.one(op), Applied::Change(Change::Absent));
    }
}

pub(crate) fn a_job_shows_when_it_was_put_and_its_run_began<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(3);
    let _ = store.put("first", When::At(at(900)));
    let _ = store.put("plain", When::At(at(5)));
    let grouped = NewJob { group: Some("g".into()), ..new_job("grouped", When::At(at(900))) };
    let _ = ADDED(store.one(Op::Put(Box::new(grouped))));
    store.clock(4);
    let _ = store.put_recurring("r", Overlap::Skip, 4);
    let shown = |key: &str| store.get(key).map(|job| (job.added, job.begun)).unwrap();
    let instant = |second| Some(at(second).to_system());
    assert_eq!((shown("first"), shown("plain")), ((instant(3), None), (instant(3), None)));
    assert_eq!(shown("grouped"), (instant(3), None));
    assert_eq!(shown("r"), (instant(4), None));
    store.clock(6);
    let _ = store.advance(&[4], 40);
    assert_eq!(store.list(Query::new().key_prefix("r")).iter().map(|job| job.added).max(), Some(instant(6)), "its run");
    store.clock(8);
    let jobs = store.claim().jobs;
    let run = jobs.iter().find(|job| &*job.key == "plain").unwrap();
    assert_eq!(shown("plain"), (instant(3), instant(8)));
    let _ = store.settle(run, Verdict::Retry(secs(1)));
    assert_eq!(shown("plain"), (instant(3), None));
}

pub(crate) fn a_run_shows_its_node<R: Rig>() {
    let store = Bench::<R>::new();
    store.enter(1);
    store.enter(2);
    for key in ["a", "b"] {
        let _ = store.put(key, When::At(at(0)));
    }
    let first = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    let second = store.claim_as(2, &[("h", 1)], 1).jobs.remove(0);
    let ids: Vec<_> = store.nodes().iter().map(|node| node.id).collect();
    let node = |key: &str| store.get(key).unwrap().node;
    assert_eq!((node(&first.key), node(&second.key)), (Some(ids[0]), Some(ids[1])));
    let mut of_list: Vec<_> = store.list(Query::new().soonest_first()).iter().map(|job| job.node).collect();
    of_list.sort_by_key(|node| node.map(|node| node.0));
    assert_eq!(of_list, [Some(ids[0]), Some(ids[1])]);
    let _ = store.settle(&first, Verdict::Again(When::At(at(9))));
    assert_eq!(node(&first.key), None);
}

pub(crate) fn bounded_counts_are_exact_or_say_that_there_are_more<R: Rig>() {
    let store = Bench::<R>::new();
    let some = |most: u64| match store.scan(Scan::SomeCounts { most }) {
        Scanned::Counts(counts) => counts,
        _ => panic!("counts"),
    };
    for (name, number) in [("h", 30), ("other", 4)] {
        let new = |n| NewJob { name: name.into(), ..new_job(&format!("{name}/{n}"), When::At(at(9))) };
        let _ = store.apply((0..number).map(|n| Op::Put(Box::new(new(n)))).collect());
    }
    let _ = store.put("dies", When::At(at(0)));
    for (at, job) in store.claim().jobs.iter().enumerate() {
        let _ = store.settle(job, if at == 0 { Verdict::Dead } else { Verdict::Done });
    }
    let exact = store.counts();
    assert_eq!((exact.of(State::Waiting), exact.of(State::Dead)), (34, 1));
    assert!(State::ALL.iter().all(|&state| !exact.is_bounded(state)) && !exact.is_failing_bounded());
    let of = |counts: &Counts| counts.kinds.iter().map(|kind| kind.of(State::Waiting)).collect::<Vec<_>>();
    assert_eq!(of(&some(1_000)), of(&exact), "as many as a bound has are walked for each handler");
    assert!(!some(1_000).is_bounded(State::Waiting) && !some(2).is_bounded(State::Dead));
    for most in [1, 20] {
        let counts = some(most);
        for (kind, exact) in counts.kinds.iter().zip(&exact.kinds) {
            for state in State::ALL {
                let (some, all) = (kind.of(state), exact.of(state));
                assert!(some == all || some < all && kind.is_bounded(state), "{kind:?} of {exact:?}");
            }
        }
        // Of a store that keeps its counts, each is exact.
        let is_cut = counts.of(State::Waiting) < 34;
        assert_eq!(counts.kind("h").unwrap().is_bounded(State::Waiting), is_cut, "{counts:?}");
    }
}
