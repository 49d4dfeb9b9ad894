//! What a job asks for its runs: at most one begin, its own attempts and limit.

use timerqueue_scheduler::store::LastRun;
use timerqueue_scheduler::{RunEnd, Terms};

use super::*;

fn once() -> Terms {
    let mut terms = Terms::default();
    terms.at_most_once = true;
    terms
}

impl<R: Rig> Bench<R> {
    fn put_with(&self, key: &str, terms: Terms) -> JobId {
        ADDED(self.one(Op::Put(Box::new(NewJob { terms, ..new_job(key, When::At(at(0))) }))))
    }

    fn claim_one(&self) -> ClaimedJob {
        let mut jobs = self.claim().jobs;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }
}

pub(crate) fn j24_a_job_that_is_begun_at_most_once_has_one_begin<R: Rig>() {
    let store = Bench::<R>::new();
    let id = store.put_with("a", once());
    store.put_with("plain", Terms::default());
    assert!(store.get("a").unwrap().terms.at_most_once);
    let jobs = store.claim().jobs;
    assert_eq!(
        jobs.iter().map(|job| (job.terms.at_most_once, job.cut_off)).collect::<Vec<_>>(),
        [(true, false), (false, false)]
    );
    // Whatever puts it back behind a begin: it does not begin again.
    let _ = store.settle(&jobs[0], Verdict::Retry(secs(0)));
    let _ = store.settle(&jobs[1], Verdict::Retry(secs(0)));
    store.clock(1);
    let jobs = store.claim().jobs;
    assert_eq!(jobs.iter().map(|job| (job.cut_off, job.attempt)).collect::<Vec<_>>(), [(true, 1), (false, 2)]);
    // A scheduler that closes puts it back, and the next one finds the same.
    let _ = store.settle(&jobs[0], Verdict::Unrun);
    let _ = store.settle(&jobs[1], Verdict::Done);
    let job = store.claim_one();
    assert_eq!((job.cut_off, job.attempt), (true, 1));
    let _ = store.settle(&job, Verdict::Unbegun(secs(1)));
    store.clock(3);
    let job = store.claim_one();
    assert_eq!((job.cut_off, job.attempt), (true, 1));
    let mut record = LastRun::new(at(0).to_system(), at(1).to_system(), RunEnd::CutOff);
    record.error = Some("cut off".into());
    let end = Settle { held: job.held, verdict: Verdict::Dead, record: Some(Box::new(record.clone())) };
    assert_eq!(store.one(Op::Settle(Box::new(end))), Applied::Held(true));
    let dead = store.get("a").unwrap();
    assert_eq!((dead.state, dead.attempt, dead.last.as_deref()), (State::Dead, 1, Some(&record)));
    // By hand it begins anew, once.
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Revived));
    let job = store.claim_one();
    assert_eq!((job.cut_off, job.attempt), (false, 1));
}

pub(crate) fn j24_a_job_that_was_claimed_and_has_not_begun_may_begin<R: Rig>() {
    let store = Bench::<R>::new();
    store.put_with("a", once());
    let job = store.claim_one();
    let _ = store.settle(&job, Verdict::Unrun);
    let job = store.claim_one();
    assert!(!job.cut_off);
    let _ = store.settle(&job, Verdict::Unbegun(secs(1)));
    store.clock(2);
    let job = store.claim_one();
    assert!(!job.cut_off);
    // Another run at its own request.
    let _ = store.settle(&job, Verdict::Again(When::After(secs(1))));
    store.clock(4);
    assert!(!store.claim_one().cut_off);
}

pub(crate) fn j24_a_run_that_was_in_doubt_does_not_begin<R: Rig>() {
    let store = Bench::<R>::new();
    let (once, plain) = (store.put_with("a", once()), store.put_with("b", Terms::default()));
    assert_eq!([once, plain].map(|id| store.one(Op::Doubt(id))), [true, false].map(Applied::Held));
    assert_eq!(store.claim().jobs.iter().map(|job| job.cut_off).collect::<Vec<_>>(), [true, false]);
    assert_eq!(store.one(Op::Doubt(once)), Applied::Held(false)); // it runs
}

pub(crate) fn j24_runs_of_a_recurring_job_have_its_terms<R: Rig>() {
    let store = Bench::<R>::new();
    let recurrence = Recurrence {
        schedule: Schedule::every(secs(10)).build().unwrap(),
        catchup: Default::default(),
        grace: None,
        overlap: Overlap::Allow,
    };
    let recurring = |terms| {
        let new = new_job("r", When::At(at(10)));
        let (recurrence, first) = (Some(Box::new(recurrence.clone())), Some(occurrence(10)));
        store.one(Op::Put(Box::new(NewJob { terms, recurrence, first, clash: Clash::Update, ..new })))
    };
    let _ = ADDED(recurring(Terms::default()));
    let mut terms = once();
    (terms.attempts, terms.limit) = (Some(0), Some(Duration::from_nanos(1)));
    assert!(matches!(placed(recurring(terms)), Placed::Updated(_)));
    assert!(matches!(placed(recurring(terms)), Placed::Kept(_)));
    // As stores keep them.
    (terms.attempts, terms.limit) = (Some(1), Some(Duration::from_micros(1)));
    assert_eq!(store.get("r").unwrap().terms, terms);
    store.clock(12);
    assert_eq!(store.advance(&[10], 20), Applied::Held(true));
    let job = store.claim_one();
    assert_eq!((job.terms, job.cut_off), (terms, false));
    let _ = store.settle(&job, Verdict::Retry(secs(0)));
    store.clock(13);
    assert!(store.claim_one().cut_off);
}

pub(crate) fn j25_a_job_has_its_own_attempts_and_limit<R: Rig>() {
    let store = Bench::<R>::new();
    let mut terms = Terms::default();
    (terms.attempts, terms.limit, terms.unique_for) = (Some(u32::MAX), Some(Duration::MAX), Some(Duration::MAX));
    store.put_with("greatest", terms);
    (terms.attempts, terms.limit, terms.unique_for) = (Some(3), Some(Duration::ZERO), None);
    store.put_with("a", terms);
    assert_eq!(store.get("a").unwrap().terms, terms);
    let jobs = store.claim().jobs;
    assert_eq!((jobs[0].terms.attempts, jobs[1].terms), (Some(u32::MAX), terms));
    assert!(jobs[0].terms.limit > Some(secs(u64::from(u32::MAX))));
    // After an attempt they are the same.
    let _ = store.settle(&jobs[1], Verdict::Retry(secs(0)));
    store.clock(1);
    assert_eq!(store.claim_one().terms, terms);
}

fn unique(seconds: u64) -> Terms {
    let mut terms = Terms::default();
    terms.unique_for = Some(secs(seconds));
    terms
}

pub(crate) fn j26_a_key_stays_taken_for_the_time_of_its_job<R: Rig>() {
    let store = Bench::<R>::new();
    let id = store.put_with("a", unique(10));
    let job = store.claim_one();
    store.clock(5);
    let _ = store.settle(&job, Verdict::Done);
    assert_eq!(store.get("a").map(|job| job.state), None);
    let put = |clash| {
        let new = NewJob { clash, terms: unique(10), ..new_job("a", When::At(at(0))) };
        placed(store.one(Op::Put(Box::new(new))))
    };
    assert_eq!([Clash::Refuse, Clash::Keep].map(put), [Placed::Refused(id), Placed::Kept(id)]);
    store.clock(14);
    assert_eq!(put(Clash::Refuse), Placed::Refused(id));
    store.clock(16);
    assert!(put(Clash::Refuse).added().is_some());
    // One that replaces is put at any time.
    let _ = store.settle(&store.claim_one(), Verdict::Done);
    assert!(put(Clash::Replace).added().is_some());
    // A job that is dead, or was cancelled, is none that is done.
    let _ = store.settle(&store.claim_one(), Verdict::Dead);
    store.clock(40);
    assert!(put(Clash::Refuse).added().is_some());
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    assert!(put(Clash::Refuse).added().is_some());
}

pub(crate) fn j26_the_time_of_a_job_goes_before_that_of_its_handler<R: Rig>() {
    use timerqueue_scheduler::{History, HistoryQuery, store::Keep};
    let store = Bench::<R>::new();
    for (key, terms) in [("none", Terms::default()), ("short", unique(5)), ("no time", unique(0))] {
        store.put_with(key, terms);
        let keep = Keep { history: History::new(secs(3_600)).keys(secs(60)), ..Keep::default() };
        let _ = store.settle(&store.claim_one(), Verdict::Kept(Box::new(keep)));
    }
    let is_taken = |key: &str| placed(store.put(key, When::At(at(9_000)))).is_refused();
    assert_eq!(["none", "short", "no time"].map(is_taken), [true, true, false]);
    store.clock(6);
    assert_eq!(["none", "short"].map(is_taken), [true, false]);
    // The history is that of the handler.
    assert_eq!(store.past(HistoryQuery::new()).len(), 3);
}

pub(crate) fn j26_runs_of_a_recurring_job_take_no_key<R: Rig>() {
    let store = Bench::<R>::new();
    let recurrence = Recurrence {
        schedule: Schedule::every(secs(10)).build().unwrap(),
        catchup: Default::default(),
        grace: None,
        overlap: Overlap::Skip,
    };
    let (recurrence, first) = (Some(Box::new(recurrence)), Some(occurrence(10)));
    let new = NewJob { terms: unique(3_600), recurrence, first, ..new_job("r", When::At(at(10))) };
    let _ = ADDED(store.one(Op::Put(Box::new(new))));
    store.clock(12);
    assert_eq!(store.advance(&[10], 20), Applied::Held(true));
    let _ = store.settle(&store.claim_one(), Verdict::Done);
    let _ = store.change("r", Mutation::Cancel);
    assert!(placed(store.put("r", When::At(at(0)))).added().is_some());
}

/// A job that is kept for its key alone takes no other done job of its handler along.
pub(crate) fn j26_a_taken_key_removes_no_other_done_job<R: Rig>() {
    use timerqueue_scheduler::{History, HistoryQuery, store::Keep};
    let store = Bench::<R>::new();
    for n in 0..20 {
        store.put_with(&format!("kept {n}"), Terms::default());
        let keep = Keep { history: History::new(secs(3_600)), ..Keep::default() };
        let _ = store.settle(&store.claim_one(), Verdict::Kept(Box::new(keep)));
    }
    for n in 0..20 {
        store.put_with(&format!("unique {n}"), unique(10));
        let _ = store.settle(&store.claim_one(), Verdict::Done);
    }
    assert_eq!(store.past(HistoryQuery::new()).len(), 40);
}
