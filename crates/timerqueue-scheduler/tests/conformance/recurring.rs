//! Recurring jobs: the cursor, overlap, and the end.

use super::keys::notices;
use super::*;

pub(crate) fn an_occurrence_is_put_once<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Allow, 10);
    let claimed = store.claim();
    assert_eq!((claimed.schedules.len(), claimed.next_schedule), (0, Some(at(10))));
    store.clock(10);
    let row = store.claim_as(1, &[("h", 0)], 100).schedules.remove(0);
    assert_eq!((row.next, row.runs), (Some(occurrence(10)), 0));
    assert!(store.claim().schedules.is_empty(), "a scheduler looks already");
    // Another look is asked for, and the first one comes late.
    store.clock(15);
    assert_eq!(store.change("r", Mutation::Look), Applied::Change(Change::Changed));
    let other = store.claim().schedules.remove(0);
    assert_eq!(store.one(advance(other.id, other.version, &[10], Some(20))), Applied::Held(true));
    assert_eq!(store.one(advance(row.id, row.version, &[10], Some(20))), Applied::Held(false));
    let runs = store.claim().jobs;
    assert_eq!((runs.len(), runs[0].nominal, &*runs[0].key), (1, Some(at(10)), "r"));
    let info = store.get("r").unwrap();
    assert_eq!((info.state, info.due, info.tally.runs), (State::Recurring, Some(at(20).to_system()), 1));
}

pub(crate) fn overlap_skip_puts_no_second_run<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Skip, 10);
    store.clock(10);
    let _ = store.advance(&[10], 20);
    let run = store.claim().jobs.remove(0);
    for (second, next) in [(20, 30), (30, 40)] {
        store.clock(second);
        let _ = store.advance(&[second], next);
        assert!(store.due().is_empty());
    }
    let tally = store.get("r").unwrap().tally;
    assert_eq!((tally.runs, tally.skipped), (1, 2));
    // A run that is to be repeated counts as well; its end frees the way.
    let _ = store.settle(&run, Verdict::Retry(secs(5)));
    store.clock(35);
    let run = store.claim().jobs.remove(0);
    assert_eq!((run.nominal, run.attempt), (Some(at(10)), 2));
    let _ = store.settle(&run, Verdict::Done);
    store.clock(40);
    let _ = store.advance(&[40], 50);
    assert_eq!(store.claim().jobs[0].nominal, Some(at(40)));
}

/// Waits between attempts may be days: an occurrence ends them.
pub(crate) fn j19_an_occurrence_ends_the_wait_of_a_failed_run<R: Rig>() {
    for overlap in [Overlap::Skip, Overlap::QueueOne, Overlap::Allow] {
        let store = Bench::<R>::new();
        let _ = store.put_recurring("r", overlap, 10);
        store.clock(10);
        let _ = store.advance(&[10], 20);
        let run = store.claim().jobs.remove(0);
        // While the run goes on, nothing changes.
        store.clock(20);
        let _ = store.advance(&[20], 30);
        if overlap == Overlap::Allow {
            let other = store.claim().jobs.remove(0);
            let _ = store.settle(&other, Verdict::Done);
        }
        let _ = store.settle(&run, Verdict::Retry(secs(86_400)));
        assert!(store.due().is_empty());
        store.clock(30);
        let _ = store.advance(&[30], 40);
        let jobs = store.claim().jobs;
        let expected = if overlap == Overlap::Allow { (30, 1) } else { (10, 2) };
        assert_eq!((jobs.len(), jobs[0].due), (1, at(30)));
        assert_eq!((jobs[0].nominal, jobs[0].attempt), (Some(at(expected.0)), expected.1));
    }
}

pub(crate) fn j19_a_failed_run_of_a_fixed_delay_waits_no_longer_than_the_delay<R: Rig>() {
    let store = Bench::<R>::new();
    let schedule = Schedule::fixed_delay(secs(20)).build().unwrap();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
    let mut new = new_job("r", When::At(at(10)));
    (new.recurrence, new.first) = (Some(Box::new(recurrence)), Some(occurrence(10)));
    let _ = store.one(Op::Put(Box::new(new)));
    store.clock(10);
    let row = store.claim().schedules.remove(0);
    let Op::Advance(mut advance) = advance(row.id, row.version, &[10], None) else { panic!("an advance") };
    advance.step = Step::AfterRun;
    let _ = store.one(Op::Advance(advance));
    for (second, waits, attempt) in [(10, 5, 1), (15, 86_400, 2), (35, 1, 3)] {
        store.clock(second - 1);
        assert!(second == 10 || store.due().is_empty());
        store.clock(second);
        let run = store.claim().jobs.remove(0);
        assert_eq!(run.attempt, attempt);
        let _ = store.settle(&run, Verdict::Retry(secs(waits)));
    }
}

pub(crate) fn overlap_queue_one_holds_one_run_back<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::QueueOne, 10);
    store.clock(10);
    let _ = store.advance(&[10], 20);
    let run = store.claim().jobs.remove(0);
    for (second, next) in [(20, 30), (30, 40)] {
        store.clock(second);
        let _ = store.advance(&[second], next);
        assert!(store.due().is_empty());
    }
    assert_eq!(store.counts().of(State::Queued), 1);
    assert_eq!(store.get("r").unwrap().tally.skipped, 1);
    let _ = store.settle(&run, Verdict::Dead);
    let next = store.claim().jobs.remove(0);
    assert_eq!(next.nominal, Some(at(20)), "a dead run is no live one");
    let _ = store.settle(&next, Verdict::Done);
    assert!(store.due().is_empty());
}

pub(crate) fn overlap_allow_puts_runs_side_by_side<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Allow, 10);
    for (second, next) in [(10, 20), (20, 30), (30, 40)] {
        store.clock(second);
        let _ = store.advance(&[second], next);
        assert_eq!(store.due(), ["r"]);
    }
    assert_eq!(store.counts().of(State::Running), 3);
}

pub(crate) fn several_missed_occurrences_run_one_after_another<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Skip, 10);
    store.clock(35);
    let _ = store.advance(&[10, 20, 30], 40);
    for second in [10, 20, 30] {
        let mut jobs = store.claim().jobs;
        assert_eq!(jobs.len(), 1);
        let run = jobs.remove(0);
        assert_eq!(run.nominal, Some(at(second)));
        let _ = store.settle(&run, Verdict::Done);
    }
    assert!(store.due().is_empty());
}

pub(crate) fn an_ended_schedule_leaves_with_its_last_run<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Skip, 10);
    store.clock(10);
    let row = store.claim().schedules.remove(0);
    let _ = store.one(advance(row.id, row.version, &[10], None));
    assert_eq!(store.get("r").unwrap().due, None);
    assert!(matches!(store.put("r", When::At(at(0))), Applied::Placed(Placed::Refused(_))));
    let run = store.claim().jobs.remove(0);
    let _ = store.settle(&run, Verdict::Done);
    assert_eq!(store.get("r"), None);
}

pub(crate) fn a_cancelled_schedule_takes_its_waiting_runs_along<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::QueueOne, 10);
    store.clock(30);
    let _ = store.advance(&[10, 20, 30], 40);
    assert_eq!(store.change("r", Mutation::Cancel), Applied::Cancel(Cancel::Cancelled));
    assert!(store.list(Query::new()).is_empty());
    // With a run under way:
    let _ = store.put_recurring("r", Overlap::QueueOne, 10);
    let _ = store.advance(&[10, 20, 30], 40);
    let run = store.claim().jobs.remove(0);
    assert_eq!(store.change("r", Mutation::Cancel), Applied::Cancel(Cancel::Running));
    store.clock(100);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.schedules.len()), (0, 0));
    let _ = store.settle(&run, Verdict::Retry(secs(0)));
    assert!(store.list(Query::new()).is_empty());
    assert_eq!(store.change("r", Mutation::Cancel), Applied::Cancel(Cancel::Absent));
}

pub(crate) fn a_paused_schedule_is_not_looked_at<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::QueueOne, 10);
    store.clock(20);
    let _ = store.advance(&[10, 20], 30);
    let _ = store.change("r", Mutation::Pause);
    store.clock(50);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.schedules.len()), (0, 0), "its waiting runs are paused as well");
    let _ = store.change("r", Mutation::Resume);
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.schedules.len()), (1, 1));
}

pub(crate) fn run_now_of_a_schedule_respects_overlap<R: Rig>() {
    for (overlap, second) in
        [(Overlap::Skip, Change::Running), (Overlap::QueueOne, Change::Changed), (Overlap::Allow, Change::Changed)]
    {
        let store = Bench::<R>::new();
        let _ = store.put_recurring("r", overlap, 10);
        assert_eq!(store.change("r", Mutation::RunNow), Applied::Change(Change::Changed));
        let run = store.claim().jobs.remove(0);
        assert_eq!((run.nominal, run.due), (None, at(0)));
        assert_eq!(store.change("r", Mutation::RunNow), Applied::Change(second));
        assert_eq!(store.get("r").unwrap().due, Some(at(10).to_system()), "the schedule goes on");
        assert_eq!(store.change("r", Mutation::Move(When::At(at(5)))), Applied::Change(Change::WrongKind));
    }
}

pub(crate) fn a_rescheduled_job_waits_for_a_look<R: Rig>() {
    let store = Bench::<R>::new();
    let schedule = Schedule::cron("@daily").build().unwrap();
    let recurrence = || {
        let schedule = schedule.clone();
        Box::new(Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip })
    };
    let _ = store.put("a", When::At(at(5)));
    assert_eq!(store.change("a", Mutation::Reschedule(recurrence())), Applied::Change(Change::WrongKind));
    let _ = store.put_recurring("r", Overlap::Allow, 10);
    store.clock(10);
    let row = store.claim().schedules.remove(0);
    assert_eq!(store.change("r", Mutation::Reschedule(recurrence())), Applied::Change(Change::Changed));
    assert_eq!(store.one(advance(row.id, row.version, &[10], Some(20))), Applied::Held(false), "a look at the old one");
    let row = store.claim().schedules.remove(0);
    assert_eq!((row.recurrence.schedule == schedule, row.recurrence.overlap, row.next), (true, Overlap::Allow, None));
}

pub(crate) fn the_same_schedule_again_changes_nothing<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.put_recurring("r", Overlap::Skip, 10));
    store.clock(10);
    let _ = store.advance(&[10], 20);
    let run = store.claim().jobs.remove(0);
    store.clock(25);
    // A missed occurrence is due, and a run is under way.
    let recurrence = store.get("r").unwrap().recurrence.unwrap();
    assert_eq!(store.change("r", Mutation::Reschedule(recurrence.clone())), Applied::Change(Change::Changed));
    let mut new = new_job("r", When::At(at(30)));
    (new.recurrence, new.first, new.clash) = (Some(recurrence), Some(occurrence(30)), Clash::Replace);
    assert_eq!(store.one(Op::Put(Box::new(new))), Applied::Placed(Placed::Kept(id)));
    let row = store.claim().schedules.remove(0);
    assert_eq!((row.id, row.next, row.last), (id, Some(occurrence(20)), Some(at(10))));
    assert_eq!(store.settle(&run, Verdict::Done), Applied::Held(true));
    // Another schedule, and another payload, are another job.
    for change in 0..2 {
        let schedule = Schedule::every(secs(if change == 0 { 7 } else { 10 })).build().unwrap();
        let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
        let mut new = new_job("r", When::At(at(30)));
        (new.recurrence, new.first, new.clash) = (Some(Box::new(recurrence)), Some(occurrence(30)), Clash::Replace);
        new.payload = if change == 0 { "null" } else { "1" }.into();
        assert!(matches!(placed(store.one(Op::Put(Box::new(new)))), Placed::Replaced { .. }));
    }
}

pub(crate) fn an_update_keeps_cursor_and_runs<R: Rig>() {
    let store = Bench::<R>::new();
    let stated = |period: u64, payload: &str, group: Option<&str>| {
        let schedule = Schedule::every(secs(period)).build().unwrap();
        let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
        let mut new = new_job("r", When::At(at(100)));
        (new.recurrence, new.first, new.clash) = (Some(Box::new(recurrence)), Some(occurrence(100)), Clash::Update);
        (new.payload, new.group) = (payload.into(), group.map(Into::into));
        placed(store.one(Op::Put(Box::new(new))))
    };
    let id = stated(10, "null", None).added().unwrap();
    store.clock(100);
    let _ = store.advance(&[100], 110);
    let run = store.claim().jobs.remove(0);
    store.clock(115);
    assert_eq!(stated(10, "null", None), Placed::Kept(id));
    assert_eq!(stated(10, "1", None), Placed::Updated(id));
    let look = store.claim().schedules.remove(0);
    assert_eq!((look.id, look.next, look.last), (id, Some(occurrence(110)), Some(at(100))), "the missed one is due");
    assert_eq!(stated(7, "1", Some("x")), Placed::Updated(id));
    assert_eq!(store.one(advance(look.id, look.version, &[110], Some(120))), Applied::Held(false), "of the old one");
    assert_eq!(store.settle(&run, Verdict::Done), Applied::Held(true), "the run goes on");
    let look = store.claim().schedules.remove(0);
    assert_eq!((look.next, look.last), (None, Some(at(100))), "from now on");
    let info = store.get("r").unwrap();
    assert_eq!((&*info.payload, info.group.as_deref(), info.tally.runs), ("1", Some("x"), 1));
    let _ = store.one(advance(look.id, look.version, &[119], Some(126)));
    assert_eq!(store.list(Query::new().state(State::Waiting))[0].group.as_deref(), Some("x"));
    // To another handler, and back.
    for name in ["other", "h"] {
        let recurrence = store.get("r").unwrap().recurrence;
        let mut new = new_job("r", When::At(at(100)));
        (new.recurrence, new.first, new.clash) = (recurrence, Some(occurrence(100)), Clash::Update);
        new.name = name.into();
        assert_eq!(placed(store.one(Op::Put(Box::new(new)))), Placed::Updated(id));
        let info = store.get("r").unwrap();
        assert_eq!((&*info.name, info.due), (name, Some(at(126).to_system())));
        assert_eq!(store.counts().kind(name).unwrap().of(State::Recurring), 1);
    }
    assert!(matches!(placed(store.one(put_over("r", Clash::Update))), Placed::Replaced { .. }), "of another kind");
    assert!(matches!(stated(10, "null", None), Placed::Replaced { .. }));
}

pub(crate) fn a_realigned_schedule_goes_on_from_now<R: Rig>() {
    let minutes = Schedule::cron("* * * * *");
    for schedule in [minutes.clone(), Schedule::any([minutes, Schedule::every(secs(600))])] {
        goes_on_from_now::<R>(schedule.build().unwrap());
    }
}

fn goes_on_from_now<R: Rig>(schedule: Schedule) {
    let store = Bench::<R>::new();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
    let mut new = new_job("r", When::At(at(60)));
    (new.recurrence, new.first) = (Some(Box::new(recurrence)), Some(occurrence(60)));
    (new.span, new.group) = (Some(secs(10_000)), Some("x".into()));
    let _ = store.one(Op::Put(Box::new(new)));
    store.clock(7_200);
    let look = store.claim().schedules.remove(0);
    let Op::Advance(mut step) = advance(look.id, look.version, &[7_200], Some(7_260)) else { unreachable!() };
    step.step = Step::At { next: occurrence(7_260), span: Some(secs(3 * 3_600 + 60)) };
    assert_eq!(store.one(Op::Advance(step)), Applied::Held(true));
    assert_eq!(store.counts().ahead, 0);
    store.clock(30);
    let job = store.get("r").unwrap();
    assert_eq!((job.is_ahead(at(30).to_system()), job.after), (true, Some(at(7_200).to_system())));
    assert_eq!(store.counts().ahead, 1);
    assert!(store.claim().schedules.is_empty(), "two hours are no wrong clock");
    assert_eq!(store.change("r", Mutation::Realign), Applied::Change(Change::Changed));
    let look = store.claim().schedules.remove(0);
    assert_eq!((look.next, look.reached), (None, Some(at(7_200))));
    assert!(look.last <= Some(at(30)));
    assert_eq!(store.change("none", Mutation::Realign), Applied::Change(Change::Absent));
}

pub(crate) fn a_retry_after_a_step_back_waits_its_time_only<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(7_200);
    let _ = store.put("a", When::At(at(0)));
    let job = store.claim().jobs.remove(0);
    let _ = store.settle(&job, Verdict::Retry(secs(10)));
    store.clock(0);
    let claimed = store.claim();
    // A microsecond more for the rounding of the clock.
    let next = claimed.next_job.unwrap();
    assert!(claimed.jobs.is_empty() && next >= at(10) && next.as_i64() <= at(10).as_i64() + 1, "{next:?}");
    store.rig.set_clock(next);
    assert_eq!(store.due(), ["a"]);
}

pub(crate) fn a_look_ends_after_a_step_back<R: Rig>() {
    let store = Bench::<R>::new();
    let first = occurrence(100);
    let step = Step::At { next: first, span: Some(secs(1)) };
    let _ = store.put_recurring("a", Overlap::Skip, 0);
    let look = store.claim().schedules.remove(0);
    let advance = Advance { id: look.id, version: look.version, step, last: None, runs: Vec::new(), missed: 0 };
    assert_eq!(store.one(Op::Advance(Box::new(advance))), Applied::Held(true));
    // The clock is far behind the span, and the look ends later than the span.
    let claimed = store.claim_as(1, &[("h", 1)], 10);
    assert_eq!(claimed.schedules.len(), 1);
    assert_eq!(store.claim_as(1, &[("h", 1)], 10).schedules.len(), 0, "one look at a time");
}

pub(crate) fn a_step_back_is_noticed_by_the_next_commit<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(7_200);
    let mut new = new_job("r", When::At(at(7_205)));
    let recurrence = Recurrence {
        schedule: Schedule::every(secs(10)).build().unwrap(),
        catchup: Default::default(),
        grace: None,
        overlap: Overlap::Skip,
    };
    (new.recurrence, new.first, new.span) = (Some(Box::new(recurrence)), Some(occurrence(7_205)), Some(secs(10)));
    let _ = store.one(Op::Put(Box::new(new)));
    let _ = store.change("r", Mutation::Pause);
    store.clock(0);
    assert!(store.claim().schedules.is_empty());
    let seen = notices(&store);
    let _ = store.change("r", Mutation::Resume);
    assert!(
        seen.lock().unwrap().iter().any(|notice| matches!(notice, Notice::Wake { at: wake, .. } if *wake <= at(0)))
    );
    let row = store.claim().schedules.remove(0);
    assert_eq!(row.next, Some(occurrence(7_205)));
}

/// A commit of before the step that ends after a claim by the clock of now.
pub(crate) fn j9_a_row_that_comes_after_a_claim_has_noticed_the_step_is_found<R: Rig>() {
    let store = Bench::<R>::new();
    store.clock(7_200);
    let _ = store.put_recurring("a", Overlap::Skip, 7_200);
    let look = store.claim().schedules.remove(0);
    store.clock(0);
    assert!(store.claim().schedules.is_empty());
    let step = Step::At { next: occurrence(7_210), span: Some(secs(10)) };
    let advance = Advance { id: look.id, version: look.version, step, last: None, runs: Vec::new(), missed: 0 };
    let seen = notices(&store);
    assert_eq!(store.one(Op::Advance(Box::new(advance))), Applied::Held(true));
    let at_once = |notice: &Notice| matches!(notice, Notice::Wake { at: wake } if *wake <= at(0));
    assert!(seen.lock().unwrap().iter().any(at_once), "{seen:?}");
    assert_eq!(store.claim().schedules.remove(0).next, Some(occurrence(7_210)));
}

pub(crate) fn a_fixed_delay_begins_at_the_end_of_its_run<R: Rig>() {
    let store = Bench::<R>::new();
    let schedule = Schedule::fixed_delay(secs(10)).build().unwrap();
    let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
    let mut new = new_job("r", When::At(at(0)));
    (new.recurrence, new.first) = (Some(Box::new(recurrence)), Some(occurrence(0)));
    let _ = store.one(Op::Put(Box::new(new)));
    let row = store.claim().schedules.remove(0);
    let after_run = Advance {
        id: row.id,
        version: row.version,
        step: Step::AfterRun,
        last: Some(at(0)),
        runs: vec![occurrence(0)],
        missed: 0,
    };
    assert_eq!(store.one(Op::Advance(Box::new(after_run))), Applied::Held(true));
    let claimed = store.claim();
    assert_eq!((claimed.jobs.len(), claimed.next_schedule), (1, None));
    store.clock(7);
    let _ = store.settle(&claimed.jobs[0], Verdict::Done);
    let row = store.claim().schedules.remove(0);
    assert_eq!((row.next, row.last, row.ended, row.runs), (None, Some(at(0)), Some(at(7)), 1));
}

pub(crate) fn a_failed_rule_makes_a_dead_job<R: Rig>() {
    let store = Bench::<R>::new();
    let id = ADDED(store.put_recurring("r", Overlap::Skip, 0));
    let row = store.claim().schedules.remove(0);
    let failed =
        Advance { id, version: row.version, step: Step::Failed("no".into()), last: None, runs: Vec::new(), missed: 0 };
    assert_eq!(store.one(Op::Advance(Box::new(failed))), Applied::Held(true));
    let dead = store.get("r").unwrap();
    assert_eq!((dead.state, dead.error.as_deref()), (State::Dead, Some("no")));
    store.clock(100);
    assert!(store.claim().schedules.is_empty());
    assert_eq!(store.one(Op::Revive(id)), Applied::Revive(Revive::Revived));
    assert_eq!(store.claim().schedules.len(), 1);
}

pub(crate) fn a_revived_run_waits_in_the_order_of_puts<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::QueueOne, 10);
    let claim_at = |second| {
        store.clock(second);
        let _ = store.advance(&[second], second + 10);
        store.claim().jobs
    };
    let dead = claim_at(10).remove(0);
    let _ = store.settle(&dead, Verdict::Dead);
    let live = claim_at(20).remove(0);
    assert!(claim_at(30).is_empty(), "queued behind the live one");
    assert_eq!(store.one(Op::Revive(dead.held.id)), Applied::Revive(Revive::Revived));
    let mut run = live;
    for nominal in [10, 30] {
        let _ = store.settle(&run, Verdict::Done);
        run = store.claim().jobs.remove(0);
        assert_eq!(run.nominal, Some(at(nominal)));
    }
}

pub(crate) fn j9_no_schedule_is_looked_at_in_a_year_beyond_schedules<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = store.put_recurring("r", Overlap::Skip, 10);
    let _ = store.put_recurring("other", Overlap::Skip, 1_000_000);
    let _ = store.put("job", When::At(at(10)));
    for wrong in [Micros::new(92_461_824_000_000_000), Micros::LAST] {
        store.rig.set_clock(wrong);
        let schedule = Schedule::every(secs(30)).build().unwrap();
        let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Overlap::Skip };
        let changed = store.change("other", Mutation::Reschedule(Box::new(recurrence)));
        assert_eq!(changed, Applied::Change(Change::Changed));
        let claimed = store.claim();
        assert!(claimed.schedules.is_empty());
        assert!(claimed.next_schedule.is_some_and(|at| at <= claimed.now), "there are some to be looked at");
    }
    store.clock(20);
    let mut schedules = store.claim().schedules;
    schedules.sort_by_key(|row| row.id);
    assert_eq!(schedules.iter().map(|row| row.next).collect::<Vec<_>>(), [Some(occurrence(10)), None]);
}
