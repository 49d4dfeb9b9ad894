//! Claims and settles.

use super::*;

pub(crate) fn a_job_is_claimed_at_its_due_time_and_not_before<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(5)));
    for second in [0, 1, 4] {
        store.clock(second);
        assert!(store.due().is_empty());
    }
    store.rig.set_clock(Micros::new(at(5).as_i64() - 1));
    assert!(store.due().is_empty());
    store.clock(5);
    let claimed = store.claim();
    let job = &claimed.jobs[0];
    assert_eq!((&*job.key, &*job.name, &*job.payload, job.due, job.attempt), ("a", "h", "null", at(5), 1));
    assert_eq!((claimed.now, job.nominal, job.held.owner), (at(5), None, 1));
    assert!(store.due().is_empty());
}

pub(crate) fn due_jobs_come_in_order_of_due_time_then_of_their_puts<R: Rig>() {
    let store = Bench::<R>::new();
    for (key, second) in [("c", 3), ("a", 1), ("b1", 2), ("b2", 2), ("b3", 2)] {
        let _ = store.put(key, When::At(at(second)));
    }
    store.clock(9);
    assert_eq!(store.due(), ["a", "b1", "b2", "b3", "c"]);
}

pub(crate) fn a_due_time_that_has_passed_means_now<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(1_000);
    let _ = store.put("put", When::At(at(0)));
    let _ = store.put("moved", When::At(at(2_000)));
    assert_eq!(store.change("moved", Mutation::Move(When::At(at(0)))), Applied::Change(Change::Changed));
    let mut tied = new_job("tied", When::At(at(0)));
    tied.group = Some("x".into());
    let _ = store.one(Op::Put(Box::new(tied)));
    for key in ["put", "moved", "tied"] {
        assert_eq!(store.get(key).unwrap().due, Some(at(1_000).to_system()), "{key}");
    }
    assert_eq!(store.counts().oldest_overdue, None, "nothing is late");
    let again = store.claim().jobs.remove(0);
    assert_eq!(again.due, at(1_000));
    let _ = store.settle(&again, Verdict::Again(When::At(at(0))));
    assert_eq!(store.get(&again.key).unwrap().due, Some(at(1_000).to_system()));
    // An occurrence keeps its instants, and what was due before stays as late as it is.
    let _ = store.put("late", When::After(secs(5)));
    store.clock(2_000);
    assert_eq!(store.get("late").unwrap().due, Some(at(1_005).to_system()));
}

pub(crate) fn a_duration_is_added_to_the_clock_of_the_commit<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(100);
    let _ = store.put("a", When::After(secs(5)));
    let _ = store.put("b", When::After(Duration::from_nanos(1)));
    assert_eq!(store.get("a").unwrap().due, Some(at(105).to_system()));
    assert_eq!(store.get("b").unwrap().due, Some(at(100).to_system() + Duration::from_micros(1)));
}

pub(crate) fn a_claim_tells_the_next_wake_instant<R: Rig>() {
    let store = Bench::<R>::new();
    assert_eq!(store.claim().next_job, None);
    for (key, second) in [("a", 7), ("b", 3), ("c", 1)] {
        let _ = store.put(key, When::At(at(second)));
    }
    store.clock(1);
    let claimed = store.claim();
    assert_eq!((keys(&claimed.jobs), claimed.next_job), (vec!["c".to_owned()], Some(at(3))));
    // A job that is due and was not taken is named as well.
    store.clock(8);
    let claimed = store.claim_as(1, &[("h", 100)], 1);
    assert_eq!((keys(&claimed.jobs), claimed.next_job), (vec!["b".to_owned()], Some(at(7))));
}

pub(crate) fn a_claim_takes_no_more_than_the_places<R: Rig>() {
    let store = Bench::<R>::new();
    for key in ["a", "b", "c", "d"] {
        let _ = store.put(key, When::At(at(0)));
    }
    let claimed = store.claim_as(1, &[("h", 3)], 2);
    assert_eq!(keys(&claimed.jobs), ["a", "b"]);
    assert_eq!(keys(&store.claim_as(1, &[("h", 1)], 2).jobs), ["c"]);
    let full = store.claim_as(1, &[("h", 0)], 2);
    assert_eq!((full.jobs.len(), full.next_job), (0, None));
}

pub(crate) fn rows_of_full_paused_and_unknown_handlers_are_passed_over<R: Rig>() {
    let store = Bench::<R>::new();
    for name in ["full", "paused", "unknown", "h"] {
        for n in 0..3 {
            let new = NewJob { name: name.into(), ..new_job(&format!("{name}{n}"), When::At(at(n))) };
            let _ = store.one(Op::Put(Box::new(new)));
        }
    }
    let _ = store.one(Op::PauseHandler { name: "paused".into(), paused: true });
    store.clock(9);
    let claimed = store.claim_as(1, &[("full", 0), ("paused", 9), ("h", 9)], 100);
    assert_eq!((keys(&claimed.jobs), claimed.next_job), (vec!["h0".into(), "h1".into(), "h2".into()], None));
    // They wait for a scheduler that has places for them.
    assert_eq!(keys(&store.claim_as(2, &[("unknown", 9)], 100).jobs).len(), 3);
    assert_eq!(keys(&store.claim_as(2, &[("full", 2)], 100).jobs), ["full0", "full1"]);
}

pub(crate) fn the_end_of_a_run_may_give_its_place_to_the_first_due_job<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.one(Op::Put(Box::new(NewJob { name: "other".into(), ..new_job("other", When::At(at(0))) })));
    for (key, second) in [("far", 99), ("c", 3), ("b", 2), ("a", 1)] {
        let _ = store.put(key, When::At(at(second)));
    }
    store.clock(5);
    let mut job = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    let mut ran = vec![job.key.to_string()];
    while let Some(next) = store.settle_and_take(&job, Verdict::Done) {
        assert_eq!((store.get(&job.key), store.get(&next.key).unwrap().state), (None, State::Running));
        assert_eq!((next.attempt, next.held.owner), (1, 1));
        ran.push(next.key.to_string());
        job = next;
    }
    // A store that gives no place on leaves the jobs to the next claim.
    ran.extend(store.due());
    assert_eq!(ran, ["a", "b", "c"]);

    // A job that is due again at once comes after the others, and none comes while the handler is
    // paused.
    store.clock(99);
    let job = store.claim().jobs.remove(0);
    let _ = store.put("later", When::At(at(99)));
    let next = store.settle_and_take(&job, Verdict::Again(When::At(at(99))));
    assert!(next.is_none_or(|next| *next.key == *"far"), "a tie goes by number");
    let job = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: true });
    assert!(store.settle_and_take(&job, Verdict::Done).is_none());
}

pub(crate) fn a_settled_job_is_gone_and_its_key_free<R: Rig>() {
    let store = Bench::<R>::new();
    let first = ADDED(store.put("a", When::At(at(0))));
    let job = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Done), Applied::Held(true));
    assert_eq!(store.get("a"), None);
    assert!(store.list(Query::new()).is_empty());
    let second = ADDED(store.put("a", When::At(at(0))));
    assert!(second > first, "numbers are not used again");
}

pub(crate) fn a_retry_and_another_run_wait<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Retry(secs(5))), Applied::Held(true));
    store.clock(4);
    assert!(store.due().is_empty());
    store.clock(5);
    let job = store.claim().jobs.remove(0);
    assert_eq!((job.attempt, job.due), (2, at(5)));
    assert_eq!(store.settle(&job, Verdict::Again(When::At(at(60)))), Applied::Held(true));
    store.clock(59);
    assert!(store.due().is_empty());
    store.clock(60);
    let job = store.claim().jobs.remove(0);
    assert_eq!((job.attempt, job.due), (1, at(60)));
    // An instant that has passed is at once.
    assert_eq!(store.settle(&job, Verdict::Again(When::At(at(1)))), Applied::Held(true));
    assert_eq!(store.due(), ["a"]);
}

pub(crate) fn a_dead_job_is_kept_and_its_key_is_free<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Dead), Applied::Held(true));
    store.clock(1_000_000);
    assert!(store.due().is_empty());
    let dead = store.get("a").unwrap();
    assert_eq!((dead.state, dead.due, dead.id), (State::Dead, None, job.held.id));
    assert_eq!(store.list(Query::new().state(State::Dead)).len(), 1);
    let new = ADDED(store.put("a", When::At(at(0))));
    assert_eq!(store.get("a").unwrap().id, new, "the job that waits comes before the dead one");
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Absent), "the dead one is not cancelled");
    assert_eq!(store.one(Op::Discard(dead.id)), Applied::Held(true));
    assert_eq!(store.one(Op::Discard(dead.id)), Applied::Held(false));
    assert_eq!(store.get("a"), None);
}

pub(crate) fn a_revived_job_needs_its_key<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.put("a", When::At(at(0))));
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Absent), "it waits");
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Retry(secs(1)));
    store.clock(1);
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Dead);
    let _ = store.put("a", When::At(at(100)));
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Taken));
    let _ = store.change("a", Mutation::Cancel);
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Revived));
    let job = store.claim().jobs.remove(0);
    assert_eq!((job.held.id, job.attempt), (id, 1), "attempts count anew");
    assert_eq!(store.put("a", When::At(at(0))), Applied::Placed(Placed::Refused(id)), "it has its key again");
}

pub(crate) fn a_late_settle_is_refused<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    for held in [
        Held { owner: 2, ..job.held },
        Held { claim: job.held.claim + 1, ..job.held },
        Held { id: JobId(job.held.id.0 + 1), ..job.held },
    ] {
        assert_eq!(store.one(settle(held, Verdict::Done)), Applied::Held(false));
    }
    let _ = store.settle(&job, Verdict::Retry(secs(0)));
    assert_eq!(store.settle(&job, Verdict::Done), Applied::Held(false), "settled already");
    store.clock(1);
    let again = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Done), Applied::Held(false), "an earlier claim");
    assert_eq!(store.settle(&again, Verdict::Done), Applied::Held(true));
}

pub(crate) fn an_unrun_attempt_does_not_count<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&job, Verdict::Unrun), Applied::Held(true));
    let job = store.claim().jobs.remove(0);
    assert_eq!(job.attempt, 1);
}

pub(crate) fn a_run_has_one_identity_over_its_attempts<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let _ = store.put("b", When::At(at(0)));
    let jobs = store.claim().jobs;
    assert_ne!(jobs[0].run, jobs[1].run);
    let _ = store.settle(&jobs[0], Verdict::Retry(secs(0)));
    let again = store.claim().jobs.remove(0);
    assert_eq!(again.run, jobs[0].run);
    let _ = store.settle(&again, Verdict::Again(When::At(at(0))));
    let next = store.claim().jobs.remove(0);
    assert_ne!(next.run, jobs[0].run);
    // Runs of a schedule: one identity for each occurrence.
    let _ = store.put_recurring("r", Overlap::Allow, 10);
    store.clock(20);
    let _ = store.advance(&[10, 20], 30);
    let runs = store.claim().jobs;
    assert_eq!(runs.len(), 2);
    assert_ne!(runs[0].run, runs[1].run);
}

pub(crate) fn two_schedulers_never_get_the_same_job<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..100 {
        let _ = store.put(&format!("{n:02}"), When::At(at(0)));
    }
    let taken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for owner in 1..=2 {
            let (store, taken) = (store.rig.store(), &taken);
            scope.spawn(move || {
                loop {
                    let (send, receive) = mpsc::channel();
                    let rooms = vec![Room { name: "h".into(), places: 3 }];
                    let reply = Reply::new(move |claimed| send.send(claimed).unwrap());
                    store.claim(Claim { owner, rooms, at_most: 3 }, reply);
                    let jobs = receive.recv().unwrap().unwrap().jobs;
                    if jobs.is_empty() {
                        break;
                    }
                    taken.lock().unwrap().extend(keys(&jobs));
                }
            });
        }
    });
    let mut taken = taken.into_inner().unwrap();
    taken.sort();
    assert_eq!(taken, (0..100).map(|n| format!("{n:02}")).collect::<Vec<_>>());
}
