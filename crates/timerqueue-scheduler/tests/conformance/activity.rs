//! What a store remembers of runs: counts by minute, and failed attempts.

use timerqueue_scheduler::store::MAX_ERROR_BYTES;
use timerqueue_scheduler::{Activity, LastRun, RunEnd};

use super::*;

/// The end of a run that was due and claimed at these seconds.
fn record_of(due: i64, started: i64, attempt: u32, end: RunEnd, error: Option<&str>) -> Box<LastRun> {
    let mut record = LastRun::new(at(due).to_system(), at(started).to_system(), end);
    record.attempt = attempt;
    record.error = error.map(Into::into);
    Box::new(record)
}

fn settle_with(job: &ClaimedJob, verdict: Verdict, record: Box<LastRun>) -> Op {
    Op::Settle(Box::new(Settle { held: job.held, verdict, record: Some(record) }))
}

impl<R: Rig> Bench<R> {
    fn activity(&self, since: i64, window: Duration) -> Vec<Activity> {
        match self.scan(Scan::Activity { since: at(since), window }) {
            Scanned::Activity(activity) => activity,
            _ => panic!("activity"),
        }
    }

    /// Puts a job, claims it now, and settles it as done: late by these seconds.
    fn done_late(&self, name: &str, now: i64, late: i64) {
        self.clock(now);
        let new = NewJob { name: name.into(), ..new_job(&format!("{name}/{now}/{late}"), When::At(at(now - late))) };
        let _ = self.one(Op::Put(Box::new(new)));
        let job = self.claim_as(1, &[(name, 1)], 1).jobs.remove(0);
        let _ = self.one(settle_with(&job, Verdict::Done, record_of(now - late, now, 1, RunEnd::Done, None)));
    }
}

pub(crate) fn j17_ends_of_runs_are_counted_by_minute_and_handler<R: Rig>() {
    let store = Bench::<R>::new();
    assert!(store.activity(0, secs(60)).is_empty());
    for (name, now, late) in [("h", 1, 0), ("h", 59, 2), ("other", 59, 0), ("h", 60, 0), ("h", 3_600, 9)] {
        store.done_late(name, now, late);
    }
    let seen = |window| {
        let activity = store.activity(0, secs(window));
        let second = |window: &Activity| window.begin.duration_since(at(0).to_system()).unwrap().as_secs();
        activity.iter().map(|window| (second(window), window.name.to_string(), window.done)).collect::<Vec<_>>()
    };
    let row = |second: u64, name: &str, done: u64| (second, name.to_owned(), done);
    assert_eq!(seen(1), [row(0, "h", 2), row(0, "other", 1), row(60, "h", 1), row(3_600, "h", 1)]);
    assert_eq!(seen(60), seen(1), "whole minutes");
    assert_eq!(seen(3_600), [row(0, "h", 3), row(0, "other", 1), row(3_600, "h", 1)]);
    assert_eq!(store.activity(119, secs(60)).len(), 2, "from the window with this instant on");
    assert_eq!(store.activity(120, secs(60)).len(), 1);
    assert_eq!(store.activity(59, secs(60)).len(), 4);
    let lateness = &store.activity(0, secs(60))[0].lateness;
    assert_eq!((lateness.count(), lateness.longest()), (2, secs(2)));
    assert_eq!(lateness.at_most(0.5), Duration::from_micros(256));
    let whole = &store.activity(0, secs(7_200))[0].lateness;
    assert_eq!((whole.count(), whole.longest()), (4, secs(9)));
}

pub(crate) fn j17_each_end_counts_once<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let ends = [
        (RunEnd::Failed, Verdict::Retry(secs(0))),
        (RunEnd::Again, Verdict::Again(When::At(at(0)))),
        (RunEnd::Dead, Verdict::Dead),
        (RunEnd::Expired, Verdict::Dead),
    ];
    for (end, verdict) in ends {
        if end == RunEnd::Expired {
            let _ = store.put("late", When::At(at(0)));
        }
        let job = store.claim().jobs.remove(0);
        let settled = store.one(settle_with(&job, verdict.clone(), record_of(0, 0, 1, end, Some("no"))));
        assert_eq!(settled, Applied::Held(true));
        let late = store.one(settle_with(&job, verdict, record_of(0, 0, 1, end, Some("no"))));
        assert_eq!(late, Applied::Held(false), "a late settle counts nothing");
    }
    let _ = store.put("b", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Unrun);
    let activity = store.activity(0, secs(60));
    assert_eq!(activity.len(), 1);
    let window = &activity[0];
    assert_eq!((window.done, window.again, window.failed, window.died, window.expired), (0, 1, 1, 1, 1));
    assert_eq!(window.lateness.count(), 4);
}

pub(crate) fn j17_a_week_is_kept<R: Rig>() {
    let store = Bench::<R>::new();
    let week = 7 * 86_400;
    store.done_late("h", 0, 0);
    store.done_late("h", 60, 0);
    store.done_late("h", week - 1, 0);
    assert_eq!(store.activity(0, secs(60)).len(), 3);
    store.done_late("h", week, 0);
    assert_eq!(store.activity(0, secs(60)).len(), 3, "the first minute has gone");
    let windows = store.activity(0, Duration::MAX);
    assert_eq!(windows.iter().map(|window| window.done).sum::<u64>(), 3, "a window is at most a week");
    // After a step back, runs count in the minutes that the clock shows.
    store.done_late("h", 120, 0);
    assert_eq!(store.activity(0, secs(60)).len(), 4);
}

pub(crate) fn j18_the_last_failed_attempts_are_kept<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let most = JobInfo::MOST_FAILURES as u32;
    let long = "ü".repeat(JobInfo::LONGEST_FAILURE);
    for attempt in 1..=most + 2 {
        let job = store.claim().jobs.remove(0);
        let error = if attempt == most + 2 { long.clone() } else { format!("no {attempt}") };
        let record = record_of(0, 0, attempt, RunEnd::Failed, Some(&error));
        let _ = store.one(settle_with(&job, Verdict::Retry(secs(0)), record));
    }
    let job = store.get("a").unwrap();
    assert!(job.is_failing());
    let attempts: Vec<u32> = job.failures.iter().map(|failure| failure.attempt).collect();
    assert_eq!(attempts, (3..=most + 2).collect::<Vec<_>>());
    assert_eq!(job.failures[0].error.as_deref(), Some("no 3"));
    let last = job.failures.last().unwrap();
    assert_eq!(last.error.as_deref(), Some(&long[..JobInfo::LONGEST_FAILURE]));
    assert_eq!(job.last.unwrap().error.as_deref(), Some(&*long), "the last run has the whole text");
    // A text without end is cut: the beginning and the length are kept.
    let job = store.claim().jobs.remove(0);
    let endless = "ü".repeat(1 << 20);
    let record = record_of(0, 0, 1, RunEnd::Failed, Some(&endless));
    let _ = store.one(settle_with(&job, Verdict::Retry(secs(0)), record));
    let job = store.get("a").unwrap();
    let kept = format!("{} … (2097152 bytes)", &endless[..MAX_ERROR_BYTES]);
    assert!(job.error.as_deref() == Some(&*kept) && job.last.unwrap().error.as_deref() == Some(&*kept));
    // Another run at the handler's request begins with none.
    let running = store.claim().jobs.remove(0);
    let again = Verdict::Again(When::At(at(0)));
    let _ = store.one(settle_with(&running, again, record_of(0, 0, 1, RunEnd::Again, None)));
    assert!(store.get("a").unwrap().failures.is_empty());
    // A dead job and a revived one have theirs.
    let running = store.claim().jobs.remove(0);
    let _ = store.one(settle_with(&running, Verdict::Dead, record_of(0, 0, 1, RunEnd::Dead, Some("never"))));
    let dead = store.get("a").unwrap();
    assert_eq!((dead.state, dead.failures.len()), (State::Dead, 1));
    assert_eq!(store.one(Op::Revive(dead.id)), Applied::Revive(Revive::Revived));
    assert_eq!(store.get("a").unwrap().failures.len(), 1);
}

pub(crate) fn j18_a_recurring_job_keeps_the_failures_of_its_runs<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Skip, 0);
    let _ = store.advance(&[0], 10);
    let run = store.claim().jobs.remove(0);
    let _ = store.one(settle_with(&run, Verdict::Retry(secs(0)), record_of(0, 0, 1, RunEnd::Failed, Some("no"))));
    let run = store.claim().jobs.remove(0);
    let _ = store.one(settle_with(&run, Verdict::Done, record_of(0, 0, 2, RunEnd::Done, None)));
    let job = store.get("r").unwrap();
    assert_eq!(job.failures.len(), 1);
    assert_eq!((job.failures[0].error.as_deref(), job.last.unwrap().end), (Some("no"), RunEnd::Done));
}

pub(crate) fn failing_jobs_are_listed_and_counted<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..4 {
        let _ = store.put(&n.to_string(), When::At(at(0)));
    }
    for job in &store.claim().jobs[..2] {
        let record = record_of(0, 0, 1, RunEnd::Failed, Some("no"));
        let _ = store.one(settle_with(job, Verdict::Retry(secs(100)), record));
    }
    let keys = |query: Query| store.list(query).into_iter().map(|job| job.key.to_string()).collect::<Vec<_>>();
    assert_eq!(keys(Query::new().failing()), ["0", "1"]);
    assert_eq!(keys(Query::new().failing().newest_first().limit(1)), ["1"]);
    assert!(keys(Query::new().failing().name("other")).is_empty());
    assert_eq!((store.counts().failing(), store.counts().kind("h").unwrap().failing), (2, 2));
    // Under way again, a job is running and not failing.
    store.clock(100);
    assert_eq!(store.claim().jobs.len(), 2);
    assert_eq!((store.counts().failing(), store.list(Query::new().failing()).len()), (0, 0));
}

pub(crate) fn lists_begin_with_the_newest_on_request<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..1_100 {
        let _ = store.put(&n.to_string(), When::At(at(n % 7)));
    }
    let all = store.list(Query::new().newest_first());
    assert_eq!(all.len(), 1_100);
    assert!(all.windows(2).all(|pair| pair[0].id > pair[1].id));
    let next = store.list(Query::new().newest_first().after(all[9].id).limit(5));
    assert_eq!(next, all[10..15]);
    assert!(store.list(Query::new().newest_first().after(all[1_099].id)).is_empty());
    // Each state, with a limit and without.
    store.clock(0);
    let jobs = store.claim().jobs;
    let _ = store.settle(&jobs[0], Verdict::Dead);
    let _ = store.settle(&jobs[1], Verdict::Dead);
    let _ = store.put_recurring("r", Overlap::QueueOne, 0);
    let _ = store.advance(&[0, 0], 10);
    for state in State::ALL {
        for query in [Query::new().state(state), Query::new().state(state).newest_first()] {
            let whole = store.list(query.clone());
            assert_eq!(whole.len() as u64, store.counts().of(state), "{state:?}");
            let few = store.list(query.clone().limit(2));
            assert_eq!(few, whole[..whole.len().min(2)], "{state:?}");
            if let Some(first) = few.first() {
                assert_eq!(store.list(query.after(first.id).limit(1)), whole[1..whole.len().min(2)], "{state:?}");
            }
        }
    }
}

pub(crate) fn lists_by_the_begin_of_a_key_have_each_job_with_it<R: Rig>() {
    let store = Bench::<R>::new();
    let keys = ["a", "a/1", "a/2", "a/10", "a\u{10ffff}z", "ab", "b", "A/1", "a/ä", "a/ä/1", "\u{10ffff}", "a_1", "a%"];
    let _ = store.apply(keys.iter().map(|key| put(key, When::At(at(0)))).collect());
    let verdicts = [Some(Verdict::Dead), Some(Verdict::Retry(secs(9))), None, None];
    for (job, verdict) in store.claim().jobs.iter().zip(verdicts.into_iter().cycle()) {
        let _ = verdict.map(|verdict| store.settle(job, verdict));
    }
    // A run without its key, another job with it, and the runs of a recurring job.
    let _ = store.one(put_over("a/2", Clash::Replace));
    let _ = store.put("a", When::At(at(70)));
    let _ = store.put_recurring("a/r", Overlap::Allow, 1);
    store.clock(2);
    let _ = store.advance(&[1], 2);
    let all = store.list(Query::new());
    assert!(all.len() > keys.len() + 3, "{}", all.len());
    for prefix in ["", "a", "a/", "a/1", "a/ä", "ab", "A", "a\u{10ffff}", "\u{10ffff}", "a_", "a%", "none"] {
        let states = State::ALL.map(|state| Query::new().state(state));
        let filters = [Query::new(), Query::new().name("h"), Query::new().name("none"), Query::new().failing()];
        for query in filters.into_iter().chain(states) {
            let mut expected = store.list(query.clone());
            expected.retain(|job| job.key.starts_with(prefix));
            let query = query.key_prefix(prefix);
            assert_eq!(store.list(query.clone()), expected, "{query:?}");
            if let [first, .., last] = &expected[..] {
                assert_eq!(store.list(query.clone().after(first.id).limit(1)), expected[1..2], "{query:?}");
                let newest = query.clone().newest_first();
                assert_eq!(store.list(newest.clone().limit(1)), std::slice::from_ref(last), "{query:?}");
                let newest = store.list(newest.after(last.id));
                assert!(newest.iter().rev().eq(&expected[..expected.len() - 1]), "{query:?}");
            }
            expected.sort_by_key(|job| (job.due.is_none(), job.due, job.id));
            assert_eq!(store.list(query.clone().soonest_first()), expected, "{query:?}");
        }
    }
}

pub(crate) fn lists_begin_with_the_soonest_on_request<R: Rig>() {
    let store = Bench::<R>::new();
    let one = |n: i64| {
        let new = new_job(&n.to_string(), When::At(at(n % 7)));
        let name = if n % 3 == 0 { "other" } else { "h" };
        let group = (n % 5 == 0).then(|| format!("{}", n % 4).into());
        Op::Put(Box::new(NewJob { group, name: name.into(), ..new }))
    };
    let _ = store.apply((0..700).map(one).collect());
    // Jobs of each kind, some of them without a due time.
    for n in 0..20 {
        let _ = store.change(&(n * 3).to_string(), Mutation::Pause);
        let _ = store.change(&(n * 3 + 1).to_string(), Mutation::Pause);
    }
    store.clock(3);
    for (n, job) in store.claim_as(1, &[("h", 40), ("other", 40)], 80).jobs.iter().enumerate() {
        let verdicts = [Verdict::Dead, Verdict::Retry(secs(n as u64 % 9)), Verdict::Again(When::At(at(5)))];
        if let Some(verdict) = verdicts.get(n % 4) {
            let _ = store.settle(job, verdict.clone());
        }
    }
    for (key, second) in [("r", 4), ("s", 60), ("t", 5)] {
        let _ = store.put_recurring(key, Overlap::QueueOne, second);
    }
    store.clock(4);
    let _ = store.advance(&[1, 2], 40);
    let _ = store.change("t", Mutation::Pause);
    let place = |job: &JobInfo| (job.due.is_none(), job.due, job.id);
    let filters = [
        Query::new(),
        Query::new().name("h"),
        Query::new().name("other"),
        Query::new().name("none"),
        Query::new().key_prefix("1"),
        Query::new().failing(),
    ];
    let states = State::ALL.map(|state| Query::new().state(state));
    let named = State::ALL.map(|state| Query::new().state(state).name("h").key_prefix("10"));
    for query in filters.into_iter().chain(states).chain(named) {
        let mut expected = store.list(query.clone());
        expected.sort_by_key(place);
        let query = query.soonest_first();
        assert_eq!(store.list(query.clone()), expected, "{query:?}");
        for part in [1, 7, 600] {
            let mut parts: Vec<JobInfo> = Vec::new();
            // The first parts, of single jobs.
            for _ in 0..6 {
                let next = match parts.last() {
                    Some(last) => query.clone().after_due(last.due, last.id),
                    None => query.clone(),
                };
                parts.extend(store.list(next.limit(part)));
            }
            let most = expected.len().min(6 * part);
            assert_eq!(parts, expected[..most], "{query:?} in parts of {part}");
        }
    }
}
