//! Priorities, and the last instants of jobs.

use timerqueue_scheduler::RunEnd;
use timerqueue_scheduler::store::{Expiry, Invalid, LastRun};

use super::*;

fn job(key: &str, priority: i8, second: i64) -> NewJob {
    NewJob { priority, ..new_job(key, When::At(at(second))) }
}

fn expiring(key: &str, expires: Expiry) -> NewJob {
    NewJob { expires: Some(expires), ..new_job(key, When::At(at(0))) }
}

impl<R: Rig> Bench<R> {
    fn put_new(&self, new: NewJob) {
        let _ = ADDED(self.one(Op::Put(Box::new(new))));
    }

    /// A claim for so many places.
    fn take_some(&self, places: usize) -> Claimed {
        self.claim_as(1, &[("h", places)], places)
    }
}

pub(crate) fn j20_a_higher_priority_goes_before_the_due_time<R: Rig>() {
    let store = Bench::<R>::new();
    let jobs = [("low", -1, 0), ("early", 0, 1), ("late", 0, 2), ("high", 1, 3), ("highest", 9, 4), ("next", 9, 60)];
    for (key, priority, second) in jobs {
        store.put_new(job(key, priority, second));
    }
    store.clock(5);
    let claimed = store.take_some(3);
    assert_eq!(keys(&claimed.jobs), ["highest", "high", "early"]);
    assert!(claimed.next_job <= Some(at(5)), "{:?}", claimed.next_job);
    let claimed = store.take_some(3);
    assert_eq!((keys(&claimed.jobs), claimed.next_job), (vec!["late".into(), "low".into()], Some(at(60))));
    store.clock(60);
    assert_eq!(store.due(), ["next"]);
}

pub(crate) fn j20_a_step_of_priority_is_worth_an_hour<R: Rig>() {
    let store = Bench::<R>::new();
    for (key, priority, second) in [("old", 0, 0), ("tie", 1, 3_600), ("ahead", 2, 7_199), ("behind", 1, 3_601)] {
        store.put_new(job(key, priority, second));
    }
    store.clock(7_200);
    let mut order = Vec::new();
    while let [job] = &*store.take_some(1).jobs {
        order.push(job.key.to_string());
    }
    assert_eq!(order, ["ahead", "old", "tie", "behind"]);
}

pub(crate) fn j20_a_job_with_a_priority_waits_as_any_other<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_new(job("a", 5, 10));
    assert_eq!(store.claim().next_job, Some(at(10)));
    assert_eq!(store.change("a", Mutation::Move(When::At(at(5)))), Applied::Change(Change::Changed));
    assert_eq!(store.claim().next_job, Some(at(5)));
    let _ = store.change("a", Mutation::Pause);
    assert_eq!(store.claim().next_job, None);
    let _ = store.change("a", Mutation::Resume);
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: true });
    store.clock(6);
    assert_eq!(store.due(), Vec::<String>::new());
    assert_eq!(store.counts().oldest_overdue, None);
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: false });
    assert_eq!(store.counts().oldest_overdue, Some(at(5).to_system()));
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Retry(secs(3)));
    assert!(store.claim().next_job.is_some_and(|next| next >= at(9)));
    store.clock(10);
    let job = store.claim().jobs.remove(0);
    assert_eq!(job.attempt, 2);
    let _ = store.settle(&job, Verdict::Unrun);
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Again(When::At(at(20))));
    let soonest: Vec<_> =
        store.list(Query::new().soonest_first()).into_iter().map(|job| (job.priority, job.due)).collect();
    assert_eq!(soonest, [(5, Some(at(20).to_system()))]);
    store.clock(20);
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Dead);
    assert_eq!(store.one(Op::Revive(job.held.id)), Applied::Revive(Revive::Revived));
    assert_eq!((store.get("a").unwrap().priority, store.due()), (5, vec!["a".to_owned()]));
}

pub(crate) fn j20_a_place_goes_to_the_highest_priority<R: Rig>() {
    let store = Bench::<R>::new();
    for (key, priority) in [("first", 0), ("second", 0), ("high", 3), ("low", -3)] {
        store.put_new(job(key, priority, 0));
    }
    let mut job = store.take_some(1).jobs.remove(0);
    let mut order = vec![job.key.to_string()];
    // A store that gives no place on leaves the jobs to the next claim.
    while let Some(next) = store.settle_and_take(&job, Verdict::Done).or_else(|| store.take_some(1).jobs.pop()) {
        order.push(next.key.to_string());
        job = next;
    }
    assert_eq!(order, ["high", "first", "second", "low"]);
}

pub(crate) fn j20_runs_of_a_recurring_job_have_its_priority<R: Rig>() {
    let store = Bench::<R>::new();
    let schedule = Schedule::every(secs(10)).build().unwrap();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Allow };
    let recurring = |priority, expires| NewJob {
        recurrence: Some(Box::new(recurrence.clone())),
        first: Some(occurrence(10)),
        expires,
        clash: Clash::Update,
        ..job("r", priority, 10)
    };
    store.put_new(recurring(1, None));
    let updated = store.one(Op::Put(Box::new(recurring(2, Some(Expiry::AfterDue(secs(3)))))));
    assert!(matches!(updated, Applied::Placed(Placed::Updated(_))), "{updated:?}");
    let again = store.one(Op::Put(Box::new(recurring(2, Some(Expiry::AfterDue(secs(3)))))));
    assert!(matches!(again, Applied::Placed(Placed::Kept(_))), "{again:?}");
    let shown = store.get("r").unwrap();
    assert_eq!((shown.priority, shown.expires, shown.expires_after), (2, None, Some(secs(3))));
    store.put_new(job("plain", 0, 0));
    store.clock(12);
    assert_eq!(store.advance(&[10], 20), Applied::Held(true));
    let claimed = store.take_some(1);
    assert_eq!((keys(&claimed.jobs), claimed.jobs[0].expired), (vec!["r".to_owned()], false));
    // J21: each run has an instant of its own.
    store.clock(24);
    assert_eq!(store.advance(&[20], 30), Applied::Held(true));
    let claimed = store.take_some(1);
    assert_eq!((keys(&claimed.jobs), claimed.jobs[0].expired), (vec!["r".to_owned()], true));
    let infos = store.list(Query::new().state(State::Running));
    assert_eq!(infos.iter().map(|job| job.expires).collect::<Vec<_>>(), [13, 23].map(|n| Some(at(n).to_system())));
}

pub(crate) fn j21_a_job_does_not_begin_after_its_last_instant<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_new(expiring("exact", Expiry::At(When::At(at(5)))));
    store.put_new(expiring("after", Expiry::AfterDue(secs(5))));
    store.clock(5);
    assert_eq!(store.claim().jobs.iter().map(|job| job.expired).collect::<Vec<_>>(), [false, false]);
    store.put_new(expiring("late", Expiry::At(When::After(secs(5)))));
    store.put_new(new_job("plain", When::At(at(5))));
    assert_eq!(store.get("late").unwrap().expires, Some(at(10).to_system()));
    store.clock(11);
    let jobs = store.claim().jobs;
    let seen: Vec<_> = jobs.iter().map(|job| (&*job.key, job.expired, job.attempt)).collect();
    assert_eq!(seen, [("late", true, 0), ("plain", false, 1)]);
    let mut record = LastRun::new(at(5).to_system(), at(11).to_system(), RunEnd::Expired);
    record.attempt = 0;
    let (held, verdict) = (jobs[0].held, Verdict::Dead);
    let end = Settle { held, verdict, record: Some(Box::new(record.clone())) };
    assert_eq!(store.one(Op::Settle(Box::new(end))), Applied::Held(true));
    let dead = store.get("late").unwrap();
    assert_eq!((dead.state, dead.last.as_deref(), dead.failures.len()), (State::Dead, Some(&record), 0));
    // A job that is revived begins, however late it is.
    assert_eq!(store.one(Op::Revive(held.id)), Applied::Revive(Revive::Revived));
    let jobs = store.claim().jobs;
    assert_eq!((keys(&jobs), jobs[0].expired, jobs[0].attempt), (vec!["late".to_owned()], false, 1));
    assert_eq!(store.get("late").unwrap().expires, None);
}

pub(crate) fn j21_no_attempt_begins_after_the_last_instant<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_new(expiring("a", Expiry::AfterDue(secs(10))));
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Retry(secs(8)));
    store.clock(9);
    let job = store.claim().jobs.remove(0);
    assert_eq!((job.attempt, job.expired), (2, false));
    let _ = store.settle(&job, Verdict::Retry(secs(8)));
    store.clock(18);
    let job = store.claim().jobs.remove(0);
    assert_eq!((job.attempt, job.expired), (2, true));
}

pub(crate) fn limits_of_priorities_and_last_instants<R: Rig>() {
    let store = Bench::<R>::new();
    for priority in [i8::MIN, -10, 10, i8::MAX] {
        let invalid = Applied::Invalid(Invalid::PriorityOutOfRange { priority });
        assert_eq!(store.one(Op::Put(Box::new(job("a", priority, 0)))), invalid);
    }
    let mut new = expiring("a", Expiry::At(When::At(at(9))));
    let schedule = Schedule::every(secs(10)).build().unwrap();
    let overlap = Overlap::Skip;
    new.recurrence = Some(Box::new(Recurrence { schedule, catchup: Default::default(), grace: None, overlap }));
    assert_eq!(store.one(Op::Put(Box::new(new))), Applied::Invalid(Invalid::ExpiresWithSchedule));
    store.put_new(job("least", -9, 0));
    store.put_new(NewJob { expires: Some(Expiry::AfterDue(Duration::MAX)), ..job("greatest", 9, 0) });
    let jobs = store.claim().jobs;
    assert_eq!((keys(&jobs), jobs[0].expired), (vec!["greatest".to_owned(), "least".to_owned()], false));
}

/// Of each attempt, of another run that the handler asks for, of each run of a recurring job, and
/// after a revival.
pub(crate) fn j35_the_context_of_a_trace_goes_from_the_put_to_each_run<R: Rig>() {
    let store = Bench::<R>::new();
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nvendor=ü";
    let traced = |key: &str| NewJob { trace: Some(context.into()), ..new_job(key, When::At(at(0))) };
    store.put_new(traced("a"));
    store.put_new(new_job("plain", When::At(at(0))));
    let seen = |job: &ClaimedJob| job.trace.as_deref() == Some(context);
    let mut jobs = store.claim().jobs;
    assert_eq!(jobs.iter().map(seen).collect::<Vec<_>>(), [true, false]);
    let _ = store.settle(&jobs.remove(1), Verdict::Done);
    let _ = store.settle(&jobs[0], Verdict::Retry(secs(0)));
    let again = store.claim().jobs.remove(0);
    assert!(seen(&again) && again.attempt == 2);
    let _ = store.settle(&again, Verdict::Again(When::At(at(0))));
    let again = store.claim().jobs.remove(0);
    assert!(seen(&again));
    let _ = store.settle(&again, Verdict::Dead);
    let dead = store.get("a").unwrap();
    assert_eq!(dead.trace.as_deref(), Some(context));
    let _ = store.one(Op::Revive(dead.id));
    assert!(seen(&store.claim().jobs[0]));
    // The runs of a recurring job.
    let schedule = Schedule::every(secs(10)).build().unwrap();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Allow };
    let (recurrence, first) = (Some(Box::new(recurrence)), Some(occurrence(10)));
    store.put_new(NewJob { recurrence, first, when: When::At(at(10)), ..traced("cron") });
    store.clock(10);
    assert_eq!(store.advance(&[10], 20), Applied::Held(true));
    let jobs = store.claim().jobs;
    assert!(jobs.len() == 1 && seen(&jobs[0]));
    for (trace, invalid) in
        [("a\0b".to_owned(), Invalid::NulInTrace), ("x".repeat(1_025), Invalid::TraceTooLong { bytes: 1_025 })]
    {
        let new = NewJob { trace: Some(trace.into()), ..new_job("b", When::At(at(0))) };
        assert_eq!(store.one(Op::Put(Box::new(new))), Applied::Invalid(invalid));
    }
}
