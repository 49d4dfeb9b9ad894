//! Done jobs that are kept, and their keys.

use timerqueue_scheduler::store::Keep;
use timerqueue_scheduler::{FinishedJob, History, HistoryQuery, LastRun, RunEnd};

use super::*;

impl<R: Rig> Bench<R> {
    pub(super) fn past(&self, query: HistoryQuery) -> Vec<FinishedJob> {
        match self.scan(Scan::History(query)) {
            Scanned::History(jobs) => jobs,
            _ => panic!("a history"),
        }
    }

    fn past_keys(&self, query: HistoryQuery) -> Vec<String> {
        self.past(query).iter().map(|job| job.key.to_string()).collect()
    }

    /// A job that is put, begun and done now.
    fn done(&self, new: NewJob, history: History) -> JobId {
        let name = Arc::clone(&new.name);
        let id = ADDED(self.one(Op::Put(Box::new(new))));
        let job = self.claim_as(1, &[(&name, 100)], 100).jobs.remove(0);
        assert_eq!((job.held.id, self.one(kept(&job, history, None))), (id, Applied::Held(true)));
        id
    }
}

fn kept(job: &ClaimedJob, history: History, result: Option<&str>) -> Op {
    let keep = Keep { history, node: Some("n1".into()), result: result.map(Into::into) };
    let mut record = LastRun::new(job.due.to_system(), job.due.to_system(), RunEnd::Done);
    (record.duration, record.attempt) = (secs(3), job.attempt);
    let verdict = Verdict::Kept(Box::new(keep));
    Op::Settle(Box::new(Settle { held: job.held, verdict, record: Some(Box::new(record)) }))
}

fn job(key: &str) -> NewJob {
    new_job(key, When::At(at(0)))
}

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn j30_a_done_job_is_kept_with_its_run_node_and_result<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.one(Op::Put(Box::new(NewJob { payload: "[1]".into(), ..job("a") }))));
    let run = store.claim().jobs.remove(0);
    store.clock(5);
    assert_eq!(store.one(kept(&run, History::new(HOUR), Some("{\"sum\":3}"))), Applied::Held(true));
    assert!(store.get("a").is_none());
    let done = store.past(HistoryQuery::new());
    let [done] = &done[..] else { panic!("{done:?}") };
    assert_eq!((done.id, &*done.key, &*done.name, &*done.payload), (id, "a", "h", "[1]"));
    assert_eq!((done.ended, done.node.as_deref()), (at(5).to_system(), Some("n1")));
    assert_eq!(done.result.as_deref(), Some("{\"sum\":3}"));
    let last = done.last.as_deref().unwrap();
    assert_eq!((last.end, last.duration, last.attempt), (RunEnd::Done, secs(3), 1));
    match store.scan(Scan::Finished(id)) {
        Scanned::Finished(Some(found)) => assert_eq!(*found, *done),
        other => panic!("{other:?}"),
    }
    assert!(matches!(store.scan(Scan::Finished(JobId(id.0 + 1))), Scanned::Finished(None)));
    assert!(placed(store.put("a", When::At(at(0)))).added().is_some(), "its key is free");
}

pub(crate) fn j30_a_job_is_kept_only_where_it_is_asked_for<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let run = store.claim().jobs.remove(0);
    assert_eq!(store.settle(&run, Verdict::Done), Applied::Held(true));
    store.done(job("b"), History::new(Duration::ZERO));
    store.done(job("c"), History::new(HOUR).rows(0));
    assert!(store.past(HistoryQuery::new()).is_empty());
    // A cancelled run is not done.
    let _ = store.put("d", When::At(at(0)));
    let run = store.claim().jobs.remove(0);
    let _ = store.change("d", Mutation::Cancel);
    assert_eq!(store.one(kept(&run, History::new(HOUR), None)), Applied::Held(true));
    assert!(store.past(HistoryQuery::new()).is_empty());
}

pub(crate) fn j30_done_jobs_are_listed_by_handler_key_and_number<R: Rig>() {
    let store = Bench::<R>::new();
    let (long, other) = (History::new(HOUR), "other".into());
    for key in ["user/1", "user/2", "order/1"] {
        store.done(job(key), long);
    }
    store.done(NewJob { name: Arc::clone(&other), ..job("user/1") }, long);
    assert_eq!(store.past_keys(HistoryQuery::new()), ["user/1", "order/1", "user/2", "user/1"]);
    assert_eq!(store.past_keys(HistoryQuery::new().oldest_first().limit(2)), ["user/1", "user/2"]);
    assert_eq!(store.past_keys(HistoryQuery::new().name("h")), ["order/1", "user/2", "user/1"]);
    assert_eq!(store.past_keys(HistoryQuery::new().name("h").key_prefix("user/")), ["user/2", "user/1"]);
    assert_eq!(store.past_keys(HistoryQuery::new().name("none")), [""; 0]);
    assert_eq!(store.past(HistoryQuery::new().key("user/1")).len(), 2);
    assert_eq!(store.past(HistoryQuery::new().key("user/1").name("other")).len(), 1);
    assert_eq!(store.past(HistoryQuery::new().key("user/1").key_prefix("order")).len(), 0);
    for query in [HistoryQuery::new(), HistoryQuery::new().oldest_first(), HistoryQuery::new().key_prefix("user/")] {
        let all = store.past(query.clone());
        let (mut found, mut rest) = (Vec::new(), query.limit(1));
        while let Some(next) = store.past(rest.clone()).pop() {
            rest = rest.after(next.seq);
            found.push(next);
        }
        assert_eq!(found, all);
    }
    assert!(store.past(HistoryQuery::new().name("a\0b")).is_empty());
}

pub(crate) fn j30_done_jobs_leave_after_their_time<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..3 {
        store.done(job(&format!("short {n}")), History::new(secs(10)));
        store.done(job(&format!("long {n}")), History::new(secs(100)));
    }
    store.clock(9);
    store.done(job("x"), History::new(secs(100)));
    assert_eq!(store.past(HistoryQuery::new()).len(), 7);
    store.clock(10);
    store.done(job("y"), History::new(secs(100)));
    assert_eq!(store.past_keys(HistoryQuery::new()), ["y", "x", "long 2", "long 1", "long 0"]);
}

pub(crate) fn j30_a_done_job_whose_time_is_over_is_none_of_the_last_ones<R: Rig>() {
    let store = Bench::<R>::new();
    let long = History::new(HOUR).rows(3);
    store.done(job("long 0"), long);
    store.done(job("long 1"), long);
    store.done(job("short"), History::new(secs(10)).rows(3));
    store.clock(10);
    store.done(job("long 2"), long);
    assert_eq!(store.past_keys(HistoryQuery::new()), ["long 2", "long 1", "long 0"]);
}

pub(crate) fn j30_the_last_done_jobs_of_a_handler_are_kept<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..5 {
        store.done(NewJob { name: "other".into(), ..job(&format!("other {n}")) }, History::new(HOUR));
    }
    for n in 0..10 {
        store.done(job(&format!("{n}")), History::new(HOUR).rows(3));
    }
    assert_eq!(store.past_keys(HistoryQuery::new().name("h")), ["9", "8", "7"]);
    assert_eq!(store.past(HistoryQuery::new().name("other")).len(), 5, "of each handler");
    // Many: the number is kept to within an eighth, and in small steps.
    for n in 10..400 {
        store.done(job(&format!("{n}")), History::new(HOUR).rows(80));
    }
    let left = store.past(HistoryQuery::new().name("h")).len();
    assert!((80..=160).contains(&left), "{left}");
}

pub(crate) fn j30_keys_of_done_jobs_are_taken_for_a_time<R: Rig>() {
    let store = Bench::<R>::new();
    let history = History::new(secs(1)).rows(1).keys(secs(10));
    let id = store.done(job("a"), history);
    assert_eq!(store.put("a", When::At(at(0))), Applied::Placed(Placed::Refused(id)));
    assert_eq!(store.one(put_over("a", Clash::Keep)), Applied::Placed(Placed::Kept(id)));
    for n in 0..5 {
        store.done(job(&format!("{n}")), history); // more than the rows, and the keys stay
    }
    store.clock(9);
    assert_eq!(store.put("a", When::At(at(0))), Applied::Placed(Placed::Refused(id)));
    assert!(placed(store.put("other", When::At(at(99)))).added().is_some());
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Absent), "there is nothing to cancel");
    assert!(placed(store.one(put_over("a", Clash::Replace))).added().is_some());
    let _ = store.change("a", Mutation::Cancel);
    store.clock(10);
    assert!(placed(store.put("a", When::At(at(0)))).added().is_some());
}

pub(crate) fn j30_a_key_is_taken_in_the_commit_of_its_end<R: Rig>() {
    let store = Bench::<R>::new();
    let history = History::new(secs(10)).keys(secs(10));
    let id = ADDED(store.put("a", When::At(at(0))));
    let run = store.claim().jobs.remove(0);
    let answers = store.apply(vec![kept(&run, history, None), put("a", When::At(at(0))), put("b", When::At(at(99)))]);
    assert_eq!(answers[..2], [Applied::Held(true), Applied::Placed(Placed::Refused(id))]);
    ADDED(answers[2]);
}

pub(crate) fn j31_a_run_leaves_its_progress_to_the_next_attempt<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let first = store.claim().jobs.remove(0);
    assert_eq!(first.progress, None);
    let save = |job: &ClaimedJob, progress: &str| store.one(Op::Progress { held: job.held, progress: progress.into() });
    for progress in ["1", "{\"line\":2}"] {
        assert_eq!(save(&first, progress), Applied::Held(true));
        assert_eq!(store.get("a").unwrap().progress.as_deref(), Some(progress));
    }
    assert_eq!(save(&first, "no json"), Applied::Invalid(timerqueue_scheduler::store::Invalid::PayloadNotJson));
    assert_eq!(store.settle(&first, Verdict::Retry(secs(0))), Applied::Held(true));
    assert_eq!(save(&first, "3"), Applied::Held(false), "a late holder writes nothing");
    let second = store.claim().jobs.remove(0);
    assert_eq!((second.progress.as_deref(), second.attempt), (Some("{\"line\":2}"), 2));
    assert_eq!(save(&first, "3"), Applied::Held(false), "nor does it write into the run of another claim");
    assert_eq!(store.settle(&second, Verdict::Dead), Applied::Held(true));
    assert_eq!(store.one(Op::Revive(second.held.id)), Applied::Revive(Revive::Revived));
    let third = store.claim().jobs.remove(0);
    assert_eq!(third.progress.as_deref(), Some("{\"line\":2}"));
    let _ = store.change("a", Mutation::Cancel);
    assert_eq!(save(&third, "4"), Applied::Held(true), "it runs until it ends");
    let _ = store.settle(&third, Verdict::Done);
    assert_eq!(save(&third, "5"), Applied::Held(false));
}

pub(crate) fn j31_another_run_begins_without_progress<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let run = store.claim().jobs.remove(0);
    assert_eq!(store.one(Op::Progress { held: run.held, progress: "1".into() }), Applied::Held(true));
    assert_eq!(store.settle(&run, Verdict::Again(When::At(at(0)))), Applied::Held(true));
    assert_eq!(store.get("a").unwrap().progress, None);
    assert_eq!(store.claim().jobs[0].progress, None);
}

pub(crate) fn j32_the_end_of_a_job_that_is_kept_is_told<R: Rig>() {
    let store = Bench::<R>::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    store.rig.store().watch(Arc::new(move |notice| {
        if let Notice::Ended(Some(id)) = notice {
            notes.lock().unwrap().push(id);
        }
        true
    }));
    let told = || std::mem::take(&mut *seen.lock().unwrap());
    let put = |key: &str| {
        let mut new = job(key);
        new.terms.kept_for = Some(secs(10));
        ADDED(store.one(Op::Put(Box::new(new))))
    };
    let by_id = |id: JobId| match store.scan(Scan::Job(id)) {
        Scanned::Jobs(jobs) => jobs.into_iter().next().map(|job| job.state),
        _ => panic!("a job"),
    };
    let ended = |ids: &[JobId]| match store.scan(Scan::Ended(ids.to_vec())) {
        Scanned::Ended(ended) => ended,
        _ => panic!("numbers"),
    };
    let done = put("done");
    let run = store.claim().jobs.remove(0);
    assert_eq!((by_id(done), told()), (Some(State::Running), vec![]));
    assert_eq!((ended(&[done]), ended(&[])), (vec![], vec![]));
    assert_eq!(store.settle(&run, Verdict::Done), Applied::Held(true));
    assert_eq!((by_id(done), told()), (None, vec![done]));
    assert_eq!(store.past_keys(HistoryQuery::new()), ["done"], "though its handler keeps nothing");
    let dead = put("dead");
    let run = store.claim().jobs.remove(0);
    let _ = store.settle(&run, Verdict::Retry(secs(0)));
    assert_eq!(told(), [], "there is another attempt");
    let run = store.claim().jobs.remove(0);
    let _ = store.settle(&run, Verdict::Dead);
    assert_eq!((by_id(dead), told()), (Some(State::Dead), vec![dead]));
    let cancelled = put("cancelled");
    let _ = store.change("cancelled", Mutation::Cancel);
    assert_eq!((by_id(cancelled), told()), (None, vec![cancelled]));
    let waits = put("waits");
    assert_eq!(ended(&[done, waits, dead, cancelled]), [done, dead, cancelled]);
    let _ = store.change("waits", Mutation::Cancel);
    assert_eq!(told(), [waits]);
    let _ = store.put("other", When::At(at(0)));
    let _ = store.change("other", Mutation::Cancel);
    assert_eq!(told(), [], "nobody has asked");
    store.clock(10);
    let _ = put("next");
    let run = store.claim().jobs.remove(0);
    let _ = store.settle(&run, Verdict::Done);
    assert_eq!(store.past_keys(HistoryQuery::new()), ["next"]);
}
