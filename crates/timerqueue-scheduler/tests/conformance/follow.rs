//! Jobs that wait for the ends of others.

use timerqueue_scheduler::store::{After, Invalid, LastRun, MAX_LINKS};
use timerqueue_scheduler::{PredecessorEnd, RunEnd, Terms, Unfollowed, Until};

use super::*;

fn after(key: &str, keys: &[&str], until: Until) -> NewJob {
    let after = After { keys: keys.iter().map(|&key| key.into()).collect(), until };
    NewJob { after: Some(Box::new(after)), ..new_job(key, When::At(at(0))) }
}

const DONE: Option<PredecessorEnd> = Some(PredecessorEnd::Done);
const DEAD: Option<PredecessorEnd> = Some(PredecessorEnd::Dead);
const CANCELLED: Option<PredecessorEnd> = Some(PredecessorEnd::Cancelled);

impl<R: Rig> Bench<R> {
    fn put_plain(&self, keys: &[&str]) -> Vec<JobId> {
        keys.iter().map(|key| ADDED(self.put(key, When::At(at(0))))).collect()
    }

    fn put_after(&self, key: &str, keys: &[&str], until: Until) -> JobId {
        ADDED(self.one(Op::Put(Box::new(after(key, keys, until)))))
    }

    /// Claims the one job that is due, and ends its run.
    fn end(&self, key: &str, verdict: Verdict) {
        let jobs = self.claim().jobs;
        assert_eq!(keys(&jobs), [key]);
        assert_eq!(self.settle(&jobs[0], verdict), Applied::Held(true));
    }

    fn state(&self, key: &str) -> Option<State> {
        self.get(key).map(|job| job.state)
    }

    fn ends_of(&self, key: &str) -> Vec<Option<PredecessorEnd>> {
        self.get(key).unwrap().predecessors.iter().map(|job| job.end).collect()
    }

    /// The one job that is due is blocked, and dies as its engine lets it.
    fn is_blocked(&self, key: &str) {
        let jobs = self.claim().jobs;
        assert_eq!(keys(&jobs), [key]);
        assert_eq!((jobs[0].blocked, jobs[0].attempt), (true, 0));
        let mut record = LastRun::new(at(0).to_system(), at(0).to_system(), RunEnd::Blocked);
        record.attempt = 0;
        let settle = Settle { held: jobs[0].held, verdict: Verdict::Dead, record: Some(Box::new(record)) };
        assert_eq!(self.one(Op::Settle(Box::new(settle))), Applied::Held(true));
        let dead = self.get(key).unwrap();
        assert_eq!((dead.state, dead.attempt, dead.last.unwrap().end), (State::Dead, 0, RunEnd::Blocked));
    }
}

pub(crate) fn j36_a_job_begins_once_all_that_it_was_put_after_are_done<R: Rig>() {
    let store = Bench::<R>::new();
    let ids = store.put_plain(&["a", "b"]);
    store.put_after("end", &["b", "a", "b"], Until::AllDone);
    let end = store.get("end").unwrap();
    assert_eq!((end.state, end.until), (State::Queued, Some(Until::AllDone)));
    assert_eq!(
        end.predecessors.iter().map(|job| (job.id, &*job.key)).collect::<Vec<_>>(),
        [(ids[0], "a"), (ids[1], "b")]
    );
    let jobs = store.claim().jobs;
    assert_eq!(keys(&jobs), ["a", "b"]);
    // Neither another attempt nor another run is an end.
    let _ = store.settle(&jobs[0], Verdict::Retry(secs(0)));
    let _ = store.settle(&jobs[1], Verdict::Again(When::After(secs(1))));
    store.clock(1);
    let jobs = store.claim().jobs;
    assert_eq!(jobs.len(), 2);
    let _ = store.settle(&jobs[0], Verdict::Done);
    assert!(store.due().is_empty());
    assert_eq!(store.state("end"), Some(State::Queued));
    store.clock(5);
    assert_eq!(store.settle(&jobs[1], Verdict::Done), Applied::Held(true));
    assert_eq!(store.ends_of("end"), [DONE, DONE]);
    let jobs = store.claim().jobs;
    // It was not late before.
    assert_eq!((keys(&jobs), jobs[0].due, jobs[0].blocked), (vec!["end".to_owned()], at(5), false));
    let _ = store.settle(&jobs[0], Verdict::Done);
    assert_eq!(store.get("end"), None);
}

pub(crate) fn j36_a_follower_waits_for_its_due_time_as_well<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    let new = NewJob { when: When::At(at(10)), priority: 3, ..after("end", &["a"], Until::AllDone) };
    let _ = ADDED(store.one(Op::Put(Box::new(new))));
    store.end("a", Verdict::Done);
    assert_eq!(store.state("end"), Some(State::Waiting));
    assert_eq!(store.claim().next_job, Some(at(10)));
    store.clock(10);
    assert_eq!(store.due(), ["end"]);
}

pub(crate) fn j36_a_claim_is_told_of_a_follower_that_may_begin<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    store.put_after("end", &["a"], Until::AllDone);
    let jobs = store.claim().jobs;
    let (send, receive) = mpsc::channel();
    store.rig.store().watch(Arc::new(move |notice| send.send(notice).is_ok()));
    let _ = store.settle(&jobs[0], Verdict::Done);
    let wakes = |notice: &Notice| matches!(notice, Notice::Wake { at: wake } if *wake <= at(0));
    assert!(wakes(&receive.recv_timeout(secs(60)).unwrap()));
}

pub(crate) fn j36_each_end_counts_as_the_put_says<R: Rig>() {
    use Until::{AllDone, AllDoneOrDead, AllEnded, AnyDead};
    let cases = [(AllDone, "done"), (AllDoneOrDead, "done or dead"), (AllEnded, "ended"), (AnyDead, "any dead")];
    // How `a` ends, beside `b` that goes on, and then is done. Then, of each: whether it has begun,
    // is blocked, waits, or has left.
    for (how, early, late) in [
        ("done", ["waits", "waits", "waits", "waits"], ["begins", "begins", "begins", "left"]),
        ("dead", ["waits", "blocked", "waits", "begins"], ["waits", "blocked", "begins", "begins"]),
        ("cancelled", ["blocked", "blocked", "waits", "begins"], ["blocked", "blocked", "begins", "begins"]),
        ("cancelled run", ["blocked", "blocked", "waits", "begins"], ["blocked", "blocked", "begins", "begins"]),
        ("discarded", ["blocked", "blocked", "waits", "begins"], ["blocked", "blocked", "begins", "begins"]),
    ] {
        let store = Bench::<R>::new();
        let id = store.put_plain(&["a"])[0];
        let a = store.claim().jobs.remove(0);
        store.put_plain(&["b"]);
        let b = store.claim().jobs.remove(0);
        for (until, key) in cases {
            store.put_after(key, &["a", "b"], until);
        }
        match how {
            "done" => _ = store.settle(&a, Verdict::Done),
            "dead" => _ = store.settle(&a, Verdict::Dead),
            "cancelled" => {
                let _ = store.settle(&a, Verdict::Retry(secs(100)));
                assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
            }
            "cancelled run" => {
                assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Running));
                let _ = store.settle(&a, Verdict::Done);
            }
            _ => {
                let _ = store.settle(&a, Verdict::Dead);
                assert_eq!(store.one(Op::Discard(id)), Applied::Held(true));
            }
        }
        let mut begun = Vec::new();
        for expected in [early, late] {
            begun.extend(store.claim().jobs);
            let found = cases.map(|(_, key)| match begun.iter().find(|job| *job.key == *key) {
                Some(job) if job.blocked => "blocked",
                Some(_) => "begins",
                None if store.state(key) == Some(State::Queued) => "waits",
                None => "left",
            });
            assert_eq!(found, expected, "{how}");
            let _ = store.settle(&b, Verdict::Done);
        }
    }
}

pub(crate) fn j36_a_revived_predecessor_is_waited_for_again<R: Rig>() {
    let store = Bench::<R>::new();
    let id = store.put_plain(&["a"])[0];
    store.put_after("done", &["a"], Until::AllDone);
    store.put_plain(&["b"]);
    store.put_after("ended", &["a", "b"], Until::AllEnded);
    let jobs = store.claim().jobs;
    let _ = store.settle(&jobs[0], Verdict::Dead);
    assert_eq!((store.ends_of("done"), store.ends_of("ended")), (vec![DEAD], vec![DEAD, None]));
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Revived));
    assert_eq!((store.ends_of("done"), store.ends_of("ended")), (vec![None], vec![None, None]));
    let _ = store.settle(&jobs[1], Verdict::Done);
    store.end("a", Verdict::Done);
    assert_eq!(store.due(), ["done", "ended"]);
}

pub(crate) fn j36_a_blocked_job_is_dead_and_its_followers_with_it<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    let b = store.put_after("b", &["a"], Until::AllDoneOrDead);
    store.put_after("c", &["b"], Until::AllDoneOrDead);
    store.put_after("any", &["b"], Until::AnyDead);
    store.end("a", Verdict::Dead);
    store.is_blocked("b");
    assert_eq!(store.ends_of("b"), [DEAD]);
    let jobs = store.claim().jobs;
    assert_eq!((keys(&jobs), jobs[0].blocked, jobs[1].blocked), (vec!["c".to_owned(), "any".to_owned()], true, false));
    // By hand it runs, and waits for nothing.
    assert_eq!(store.one(Op::Revive(b)), Applied::Revive(Revive::Revived));
    let jobs = store.claim().jobs;
    assert_eq!((keys(&jobs), jobs[0].blocked), (vec!["b".to_owned()], false));
}

pub(crate) fn j36_a_follower_that_leaves_is_an_end_for_its_followers<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    store.put_after("b", &["a"], Until::AnyDead);
    store.put_after("c", &["b"], Until::AnyDead);
    store.put_after("d", &["c"], Until::AllEnded);
    store.end("a", Verdict::Done);
    // `b` has left without a run, so `c` begins.
    assert_eq!((store.get("b"), store.ends_of("c")), (None, vec![CANCELLED]));
    store.end("c", Verdict::Done);
    store.end("d", Verdict::Done);
}

pub(crate) fn j36_nothing_is_put_after_a_job_that_is_not_there<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    let _ = store.put_recurring("r", Overlap::Skip, 100);
    let refused = |keys: &[&str]| placed(store.one(Op::Put(Box::new(after("end", keys, Until::AllEnded)))));
    let unfollowed = |nth, why| Placed::Unfollowed { nth, why };
    assert_eq!(refused(&["a", "x"]), unfollowed(1, Unfollowed::Absent));
    assert_eq!(refused(&["r"]), unfollowed(0, Unfollowed::Recurring));
    store.end("a", Verdict::Done);
    assert_eq!(refused(&["a"]), unfollowed(0, Unfollowed::Absent));
    assert_eq!(store.get("end"), None);
    // A done job that is kept is there.
    let terms = {
        let mut terms = Terms::default();
        terms.kept_for = Some(secs(100));
        terms
    };
    let _ = ADDED(store.one(Op::Put(Box::new(NewJob { terms, ..new_job("kept", When::At(at(0))) }))));
    store.end("kept", Verdict::Done);
    store.put_after("end", &["kept"], Until::AllDone);
    store.end("end", Verdict::Done);
    store.put_after("never", &["kept"], Until::AnyDead);
    assert_eq!(store.get("never"), None);
    // Unless the key had a later job, which is dead.
    let id = store.put_plain(&["kept"])[0];
    store.end("kept", Verdict::Dead);
    assert_eq!(refused(&["kept"]), unfollowed(0, Unfollowed::Absent));
    assert_eq!(store.one(Op::Discard(id)), Applied::Held(true));
    store.put_after("end", &["kept"], Until::AllDone);
}

pub(crate) fn j36_jobs_of_one_commit_follow_each_other<R: Rig>() {
    let store = Bench::<R>::new();
    let chain = |key: &str, before: &[&str]| Op::Put(Box::new(after(key, before, Until::AllDone)));
    let applied =
        store.apply(vec![put("a", When::At(at(0))), chain("b", &["a"]), chain("c", &["a", "b"]), chain("d", &["e"])]);
    assert_eq!(placed(applied[3]), Placed::Unfollowed { nth: 0, why: Unfollowed::Absent });
    assert_eq!(
        store.list(Query::new()).iter().map(|job| job.state).collect::<Vec<_>>(),
        [State::Waiting, State::Queued, State::Queued]
    );
    store.end("a", Verdict::Done);
    store.end("b", Verdict::Done);
    store.end("c", Verdict::Done);
    // The end of a job in the commit that puts its follower, before and behind it.
    store.put_plain(&["a"]);
    let a = store.claim().jobs.remove(0);
    let applied = store.apply(vec![chain("b", &["a"]), settle(a.held, Verdict::Done), chain("c", &["a"])]);
    assert_eq!(placed(applied[2]), Placed::Unfollowed { nth: 0, why: Unfollowed::Absent });
    store.end("b", Verdict::Done);
    // Of two changes of the predecessor the last one is its end.
    for how in 0..3 {
        let id = store.put_plain(&["a"])[0];
        store.put_after("b", &["a"], Until::AllDone);
        let a = store.claim().jobs.remove(0);
        let cancel = || Op::Key { key: "a".into(), mutation: Mutation::Cancel };
        let _ = store.apply(match how {
            0 => vec![settle(a.held, Verdict::Retry(secs(100))), cancel()],
            1 => vec![cancel(), settle(a.held, Verdict::Done)],
            _ => vec![settle(a.held, Verdict::Dead), Op::Discard(id)],
        });
        assert_eq!((store.get("a"), store.ends_of("b")), (None, vec![CANCELLED]), "{how}");
        store.is_blocked("b");
    }
    // A job that leaves in the commit that puts it and its follower, and a follower that does so.
    let cancel = |key: &str| Op::Key { key: key.into(), mutation: Mutation::Cancel };
    let _ = store.apply(vec![put("a", When::At(at(0))), chain("b", &["a"]), cancel("a")]);
    assert_eq!(store.ends_of("b"), [CANCELLED]);
    store.is_blocked("b");
    let puts = [put("a", When::At(at(0))), chain("b", &["a"]), cancel("b"), chain("c", &["a"])];
    let _ = store.apply(puts.into());
    store.end("a", Verdict::Done);
    store.end("c", Verdict::Done);
    // And a change of the follower.
    store.put_plain(&["a"]);
    store.put_after("b", &["a"], Until::AllDone);
    let a = store.claim().jobs.remove(0);
    let pause = |mutation| Op::Key { key: "b".into(), mutation };
    let _ = store.apply(vec![pause(Mutation::Pause), settle(a.held, Verdict::Done)]);
    assert!(store.due().is_empty());
    assert_eq!(store.state("b"), Some(State::Waiting));
    let _ = store.apply(vec![pause(Mutation::Resume)]);
    store.end("b", Verdict::Done);
}

pub(crate) fn j36_a_follower_can_be_changed_while_it_waits<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_plain(&["a"]);
    store.put_after("now", &["a"], Until::AllDone);
    store.put_after("moved", &["a"], Until::AllDone);
    store.put_after("cancelled", &["a"], Until::AllDone);
    store.put_after("behind", &["cancelled"], Until::AllEnded);
    assert_eq!(store.change("now", Mutation::RunNow), Applied::Change(Change::Changed));
    assert_eq!(store.change("moved", Mutation::Move(When::At(at(10)))), Applied::Change(Change::Changed));
    assert_eq!(store.state("moved"), Some(State::Queued));
    assert_eq!(store.change("cancelled", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    let jobs = store.claim().jobs;
    assert_eq!(keys(&jobs), ["a", "now", "behind"]);
    let _ = store.settle(&jobs[0], Verdict::Done);
    assert!(store.due().is_empty());
    store.clock(10);
    assert_eq!(store.due(), ["moved"]);
}

pub(crate) fn j36_links_are_bounded<R: Rig>() {
    let store = Bench::<R>::new();
    let names: Vec<String> = (0..=MAX_LINKS).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let put_end = |keys: &[&str]| store.one(Op::Put(Box::new(after("end", keys, Until::AllDone))));
    assert_eq!(put_end(&names), Applied::Invalid(Invalid::TooManyPredecessors { keys: MAX_LINKS + 1 }));
    assert_eq!(put_end(&["end"]), Applied::Invalid(Invalid::AfterItself));
    let mut new = after("r", &["m0"], Until::AllDone);
    let schedule = Schedule::every(secs(10)).build().unwrap();
    let (catchup, overlap) = (Default::default(), Overlap::Skip);
    (new.recurrence, new.first) =
        (Some(Box::new(Recurrence { schedule, catchup, grace: None, overlap })), Some(occurrence(10)));
    assert_eq!(store.one(Op::Put(Box::new(new))), Applied::Invalid(Invalid::AfterWithSchedule));
    let puts = names.iter().map(|name| put(name, When::At(at(0))));
    let _ = store.apply(puts.collect());
    let _ = ADDED(put_end(&names[1..]));
    let followers = (0..MAX_LINKS).map(|n| Op::Put(Box::new(after(&format!("f{n}"), &["m0"], Until::AllDone))));
    assert!(store.apply(followers.collect()).into_iter().all(|applied| placed(applied).added().is_some()));
    let full = Placed::Unfollowed { nth: 0, why: Unfollowed::Full };
    assert_eq!(placed(store.one(Op::Put(Box::new(after("one more", &["m0"], Until::AllDone))))), full);
    // All of them go on.
    let first = store.claim_as(1, &[("h", 1)], 1).jobs.remove(0);
    assert_eq!(&*first.key, "m0");
    let _ = store.settle(&first, Verdict::Done);
    assert_eq!(store.counts().of(State::Queued), 1);
    let members = store.claim_as(1, &[("h", MAX_LINKS)], MAX_LINKS).jobs;
    let _ = store.apply(members.iter().map(|job| settle(job.held, Verdict::Done)).collect());
    let rest = store.claim_as(1, &[("h", 3 * MAX_LINKS)], 3 * MAX_LINKS).jobs;
    let _ = store.apply(rest.iter().map(|job| settle(job.held, Verdict::Done)).collect());
    assert_eq!(store.counts().of(State::Queued), 0);
}

/// A file remembers so many runs, as they were claimed.
pub(crate) fn j36_a_job_is_followed_while_thousands_run<R: Rig>() {
    const RUNS: usize = 4_096;
    let store = Bench::<R>::new();
    let names: Vec<String> = (0..RUNS).map(|n| format!("m{n}")).collect();
    let _ = store.apply(names.iter().map(|name| put(name, When::At(at(0)))).collect());
    let runs = store.claim_as(1, &[("h", RUNS)], RUNS).jobs;
    assert_eq!(runs.len(), RUNS);
    store.put_after("end", &["m0"], Until::AllDone);
    let m0 = runs.iter().find(|job| &*job.key == "m0").unwrap();
    let _ = store.settle(m0, Verdict::Done);
    assert_eq!(store.state("end"), Some(State::Waiting));
}
