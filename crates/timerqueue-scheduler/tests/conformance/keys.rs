//! Keys: clashes, and changes by key.

use super::*;

pub(crate) fn a_taken_key_is_an_answer<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.put("a", When::At(at(100))));
    assert_eq!(store.put("a", When::At(at(7))), Applied::Placed(Placed::Refused(id)), "also at another second");
    assert_eq!(store.one(put_over("a", Clash::Keep)), Applied::Placed(Placed::Kept(id)));
    let other = NewJob { name: "other".into(), ..new_job("a", When::At(at(0))) };
    assert_eq!(
        store.one(Op::Put(Box::new(other))),
        Applied::Placed(Placed::Refused(id)),
        "keys are those of all handlers"
    );
    assert_eq!(store.list(Query::new()).len(), 1);
    assert_eq!(store.get("a").unwrap().due, Some(at(100).to_system()));
}

pub(crate) fn a_replaced_job_never_starts<R: Rig>() {
    let store = Bench::<R>::new();
    let old = ADDED(store.put("a", When::At(at(100))));
    let replaced = placed(store.one(put_over("a", Clash::Replace)));
    let Placed::Replaced { id, was_running: false } = replaced else { panic!("{replaced:?}") };
    assert_ne!(id, old);
    store.clock(200);
    let jobs = store.claim().jobs;
    assert_eq!((jobs.len(), jobs[0].held.id), (1, id));
}

pub(crate) fn a_replaced_run_goes_on_without_its_key<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put("a", When::At(at(0)));
    let old = store.claim().jobs.remove(0);
    let replaced = placed(store.one(put_over("a", Clash::Replace)));
    let Placed::Replaced { id, was_running: true } = replaced else { panic!("{replaced:?}") };
    assert_eq!(store.get("a").unwrap().id, id);
    assert_eq!(store.settle(&old, Verdict::Retry(secs(0))), Applied::Held(true));
    let jobs = store.claim().jobs;
    assert_eq!((jobs.len(), jobs[0].held.id), (1, id), "the old job is not repeated");
}

pub(crate) fn cancel_says_what_it_found<R: Rig>() {
    let store = Bench::<R>::new();
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Absent));
    let _ = store.put("a", When::At(at(0)));
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    assert!(store.due().is_empty());
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Running));
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Running), "the key is taken until the end");
    let _ = store.settle(&job, Verdict::Done);
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Absent));
}

pub(crate) fn a_cancelled_run_is_not_repeated<R: Rig>() {
    let store = Bench::<R>::new();
    for verdict in [Verdict::Retry(secs(0)), Verdict::Again(When::At(at(0))), Verdict::Unrun, Verdict::Dead] {
        let _ = store.put("a", When::At(at(0)));
        let job = store.claim().jobs.remove(0);
        let _ = store.change("a", Mutation::Cancel);
        assert_eq!(store.settle(&job, verdict), Applied::Held(true));
        assert!(store.list(Query::new()).is_empty());
    }
}

pub(crate) fn a_moved_job_is_due_at_its_new_time_alone<R: Rig>() {
    let store = Bench::<R>::new();
    assert_eq!(store.change("a", Mutation::Move(When::At(at(5)))), Applied::Change(Change::Absent));
    let _ = store.put("a", When::At(at(10)));
    assert_eq!(store.change("a", Mutation::Move(When::At(at(20)))), Applied::Change(Change::Changed));
    store.clock(10);
    assert!(store.due().is_empty());
    assert_eq!(store.change("a", Mutation::Move(When::After(secs(5)))), Applied::Change(Change::Changed));
    store.clock(14);
    assert!(store.due().is_empty());
    assert_eq!(store.change("a", Mutation::RunNow), Applied::Change(Change::Changed));
    let job = store.claim().jobs.remove(0);
    assert_eq!(job.due, at(14));
    for mutation in [Mutation::Move(When::At(at(99))), Mutation::RunNow] {
        assert_eq!(store.change("a", mutation), Applied::Change(Change::Running));
    }
    store.clock(30);
    assert!(store.due().is_empty());
}

pub(crate) fn a_paused_job_is_in_no_index<R: Rig>() {
    let store = Bench::<R>::new();
    assert_eq!(store.change("a", Mutation::Pause), Applied::Change(Change::Absent));
    let _ = store.put("a", When::At(at(5)));
    assert_eq!(store.change("a", Mutation::Pause), Applied::Change(Change::Changed));
    store.clock(9);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.next_job), (0, None));
    assert!(store.get("a").unwrap().paused);
    assert_eq!(store.change("a", Mutation::Resume), Applied::Change(Change::Changed));
    let job = store.claim().jobs.remove(0);
    // A run that is paused goes on, and its next attempt waits.
    let _ = store.change("a", Mutation::Pause);
    let _ = store.settle(&job, Verdict::Retry(secs(0)));
    assert!(store.due().is_empty());
    assert_eq!(store.change("a", Mutation::RunNow), Applied::Change(Change::Changed), "by hand, a pause ends");
    assert_eq!(store.due(), ["a"]);
}

pub(crate) fn a_paused_handler_is_not_looked_at<R: Rig>() {
    let store = Bench::<R>::new();
    let pause = |paused| store.one(Op::PauseHandler { name: "h".into(), paused });
    assert_eq!(pause(true), Applied::Change(Change::Changed), "also before its first job");
    let _ = store.put("a", When::At(at(0)));
    let _ = store.put_recurring("r", Overlap::Skip, 0);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.schedules.len()), (0, 0));
    assert_eq!((claimed.next_job, claimed.next_schedule), (None, None));
    assert!(store.counts().kind("h").unwrap().paused);
    let _ = pause(false);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.schedules.len()), (1, 1));
}

pub(crate) fn an_overdue_job_is_refused_on_request<R: Rig>() {
    let store = Bench::<R>::new();
    let put = |when| Op::Put(Box::new(NewJob { refuse_overdue: true, ..new_job("a", when) }));
    assert_eq!(store.one(put(When::At(at(-1)))), Applied::Placed(Placed::Overdue));
    let just = Micros::new(at(0).as_i64() - 1);
    assert_eq!(store.one(put(When::At(just))), Applied::Placed(Placed::Overdue));
    let _ = ADDED(store.one(put(When::At(at(0)))));
    assert_eq!(store.change("a", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    let _ = ADDED(store.one(put(When::After(Duration::ZERO))));
    // Without the request, an overdue job is due now.
    let _ = store.put("b", When::At(at(-100)));
    assert_eq!(store.due(), ["a", "b"]);
}

pub(crate) fn a_commit_applies_its_operations_in_order<R: Rig>() {
    let store = Bench::<R>::new();
    let cancel = || Op::Key { key: "a".into(), mutation: Mutation::Cancel };
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    let applied = store.apply(vec![
        cancel(),
        put("a", When::At(at(0))),
        put(&long, When::At(at(0))),
        cancel(),
        put("a", When::At(at(0))),
    ]);
    assert_eq!(applied[0], Applied::Cancel(Cancel::Absent));
    assert!(matches!(applied[2], Applied::Invalid(_)), "an invalid operation stops no other");
    assert_eq!(applied[3], Applied::Cancel(Cancel::Cancelled));
    assert_eq!(store.due(), ["a"]);
    assert!(store.apply(Vec::new()).is_empty());
}

/// The notices of a store, as they come.
pub(super) fn notices<R: Rig>(store: &Bench<R>) -> Arc<Mutex<Vec<Notice>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    store.rig.store().watch(Arc::new(move |notice| {
        notes.lock().unwrap().push(notice);
        true
    }));
    seen
}

pub(crate) fn a_notice_follows_each_earlier_wake_instant<R: Rig>() {
    let store = Bench::<R>::new();
    let seen = notices(&store);
    let first = |seen: &Mutex<Vec<Notice>>| {
        let notices: Vec<Notice> = seen.lock().unwrap().drain(..).collect();
        // A new connection of the store asks for a look at once, also if no row is due.
        let wake = |notice: Notice| match notice {
            Notice::Wake { at, .. } if at > Micros::FIRST => Some(at),
            _ => None,
        };
        notices.into_iter().filter_map(wake).min()
    };
    let _ = store.put("a", When::At(at(50)));
    assert_eq!(first(&seen), Some(at(50)));
    let _ = store.change("a", Mutation::Move(When::At(at(20))));
    assert_eq!(first(&seen), Some(at(20)));
    let _ = store.change("a", Mutation::Pause);
    assert_eq!(first(&seen), None);
    let _ = store.change("a", Mutation::Resume);
    assert_eq!(first(&seen), Some(at(20)));
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: true });
    let _ = store.change("a", Mutation::RunNow);
    assert_eq!(first(&seen), None, "the handler is paused");
    let _ = store.one(Op::PauseHandler { name: "h".into(), paused: false });
    assert_eq!(first(&seen), Some(at(0)));
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Retry(secs(3)));
    assert_eq!(first(&seen), Some(at(3)));
}

pub(crate) fn a_cancelled_run_is_noticed<R: Rig>() {
    let store = Bench::<R>::new();
    let seen = notices(&store);
    let _ = store.put("a", When::At(at(0)));
    let _ = store.put("b", When::At(at(0)));
    let jobs = store.claim().jobs;
    let _ = store.change("a", Mutation::Cancel);
    let _ = store.one(put_over("b", Clash::Replace));
    let cancelled: Vec<Notice> =
        seen.lock().unwrap().iter().copied().filter(|notice| matches!(notice, Notice::Cancelled(_))).collect();
    assert_eq!(cancelled, [Notice::Cancelled(jobs[0].held.id), Notice::Cancelled(jobs[1].held.id)]);
}
