//! What a restart finds.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{Invalid, SqliteOptions};
use timerqueue_scheduler::{
    CalendarUnit, Cancel, Change, Clash, Error, Handler, Outcome, Placed, Query, Retry, Run, RunEnd, Schedule,
    ScheduleBuilder, Scheduler, State,
};

use crate::rows::Bench;
use crate::support::{Folder, LONG, Log, answer, go_until, until, virtual_at};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 2026-01-01T00:00:00Z.
fn begin() -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_767_225_600)
}

#[test]
fn k1_all_that_a_job_is_survives() {
    let folder = Folder::new();
    let fails = || Handler::new("fail", |_: (), _: &Run| Err::<(), _>("no")).retry(Retry::new(1));
    let before = {
        let log = Log::default();
        let scheduler = log.handler(Scheduler::open(folder.file())).register(fails()).start().unwrap();
        let hour = secs(3_600);
        let _ = scheduler.put_to("fail", &()).key("dead").send().wait().unwrap();
        let _ = scheduler.put_to("log", &"über").key("waits").due(hour).send().wait().unwrap();
        let _ = scheduler.put_to("log", &[1, 2]).key("paused").due(hour).send().wait().unwrap();
        let daily = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
        let _ = scheduler.put_to("log", &()).key("daily").schedule(daily).send().wait().unwrap();
        let _ = scheduler.pause("paused").wait().unwrap();
        let _ = scheduler.pause_handler("other").wait().unwrap();
        until(|| scheduler.get("dead").wait().unwrap().is_some_and(|job| job.state == State::Dead));
        scheduler.list(Query::new()).wait().unwrap()
    };
    assert_eq!(before.len(), 4);
    let log = Log::default();
    let scheduler = log.handler(Scheduler::open(folder.file())).register(fails()).start().unwrap();
    assert_eq!(scheduler.list(Query::new()).wait().unwrap(), before);
    let dead = scheduler.get("dead").wait().unwrap().unwrap();
    assert_eq!((dead.error.as_deref(), dead.attempt), (Some("no"), 1));
    assert!(scheduler.stats().wait().unwrap().jobs.kind("other").unwrap().paused);
    let id = scheduler.put_to("log", &()).key("new").due(secs(9)).send().wait().unwrap().added().unwrap();
    assert!(before.iter().all(|job| job.id < id), "numbers are not used again");
}

#[test]
fn a_handler_that_asks_for_another_run_finds_its_job_again() {
    let folder = Folder::new();
    let (send, runs) = mpsc::channel();
    let handler = move |_: (), run: &Run| {
        send.send(run.run_id().to_owned()).unwrap();
        Outcome::Again(secs(3_600).into())
    };
    let scheduler = Scheduler::open(folder.file()).handler("again", handler).start().unwrap();
    let _ = scheduler.put_to("again", &()).key("a").send().wait().unwrap();
    runs.recv_timeout(LONG).unwrap();
    until(|| scheduler.get("a").wait().unwrap().unwrap().state == State::Waiting);
    drop(scheduler);
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    assert_eq!(scheduler.get("a").wait().unwrap().unwrap().attempt, 0);
}

#[test]
fn j9_schedules_on_a_file_outlast_a_clock_in_a_year_beyond_schedules() {
    for year in [5_100, 10_000] {
        let folder = Folder::new();
        let log = Log::default();
        let start = |wall: SystemTime| {
            let (clock, runtime) = virtual_at(wall);
            let scheduler = log.handler(Scheduler::open(folder.file()).runtime(&runtime)).start().unwrap();
            (clock, scheduler)
        };
        let runs = |key: &str| log.keys().iter().filter(|&run| run == key).count();
        let (clock, scheduler) = start(begin());
        let schedules = [
            ("cron", Schedule::cron("* * * * *")),
            ("every", Schedule::every(secs(60))),
            ("rest", Schedule::fixed_delay(secs(60))),
        ];
        for (key, schedule) in schedules {
            let _ = answer(scheduler.put_to("log", &()).key(key).schedule(schedule.build().unwrap()).send()).unwrap();
        }
        go_until(&clock, || log.keys().len() == 3);
        let wrong = begin() + secs((year - 2026) * 31_556_952);
        clock.set_wall(wrong);
        let probe = |clock: &timerqueue::ManualClock, scheduler: &Scheduler, key: &str| {
            let _ = answer(scheduler.put_to("log", &()).key(key).due(begin()).send()).unwrap();
            go_until(clock, || runs(key) == 1);
        };
        probe(&clock, &scheduler, "first");
        clock.advance(secs(20));
        drop(scheduler);
        // The machine is started with its wrong clock, and then with a right one.
        let (clock, scheduler) = start(wrong + secs(30));
        probe(&clock, &scheduler, "second");
        clock.advance(secs(20));
        for key in ["cron", "every", "rest"] {
            assert_eq!(runs(key), 1, "{year}: {key}");
            assert!(answer(scheduler.get(key)).unwrap().is_some(), "{year}: {key}");
        }
        drop(scheduler);
        let (clock, _scheduler) = start(begin() + secs(300));
        until(|| {
            clock.advance(secs(1));
            ["cron", "every", "rest"].iter().all(|key| runs(key) >= 2)
        });
    }
}

#[test]
fn k10_a_schedule_with_a_rule_of_ones_own_is_refused() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let rule = || Schedule::rule("later", |t: SystemTime| Some(t + secs(60))).build().unwrap();
    let invalid = Error::Invalid(Invalid::RuleNotStorable);
    assert_eq!(scheduler.put_to("log", &()).key("a").schedule(rule()).send().wait(), Err(invalid.clone()));
    let every = Schedule::every(secs(3_600)).build().unwrap();
    let _ = scheduler.put_to("log", &()).key("a").schedule(every).send().wait().unwrap();
    assert_eq!(scheduler.reschedule("a", rule()).wait(), Err(invalid.clone()));
    let union = |part| Schedule::any([part, Schedule::cron("@daily")]).build().unwrap();
    let refused = union(Schedule::rule("later", |t: SystemTime| Some(t + secs(60))));
    assert_eq!(scheduler.reschedule("a", refused).wait(), Err(invalid));
    // A union of what can be stored is the same one after a restart.
    let each = Schedule::cron("CRON_TZ=Europe/Berlin 0 9 * * MON").from(begin()).each(2, CalendarUnit::Week);
    let kept = union(each.except(["12-25", "2026-12-24"]));
    assert_eq!(scheduler.reschedule("a", kept.clone()).wait(), Ok(Change::Changed));
    drop(scheduler);
    let scheduler = folder.scheduler(&Log::default());
    let job = scheduler.get("a").wait().unwrap().unwrap();
    assert_eq!(job.recurrence.map(|recurrence| recurrence.schedule), Some(kept));
}

#[test]
fn a_person_can_read_the_file() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let due = begin() + secs(31_536_000 * 5);
    let payload = serde_json::json!({ "to": "ann", "n": 1 });
    let _ = scheduler.put_to("log", &payload).key("a").due(due).send().wait().unwrap();
    let person = Connection::open(folder.file()).unwrap();
    let row: (String, String, String, String) = person
        .query_row("SELECT key, state, due, json_extract(payload, '$.to') FROM timerqueue", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .unwrap();
    assert_eq!(row, ("a".into(), "waiting".into(), "2030-12-31T00:00:00.000000Z".into(), "ann".into()));
    let version: i64 = person.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 0, "the user's");
    assert!(matches!(scheduler.put_to("log", &()).key("a").send().wait().unwrap(), Placed::Refused(_)));
}

#[test]
fn k11_done_jobs_and_their_keys_are_kept_on_request() {
    let folder = Folder::new();
    let (clock, runtime) = virtual_at(begin());
    let options = SqliteOptions::new().keep_finished(secs(100)).remember_keys(secs(10));
    let store = options.open(&runtime, folder.file()).unwrap();
    let log = Log::default();
    let scheduler = log.handler(Scheduler::builder()).runtime(&runtime).store(store.clone()).start().unwrap();
    let put = |clash| answer(scheduler.put_to("log", &1).key("a").clash(clash).send()).unwrap();
    let id = put(Clash::Refuse).added().unwrap();
    go_until(&clock, || answer(scheduler.get("a")).unwrap().is_none());
    assert_eq!((put(Clash::Refuse), put(Clash::Keep)), (Placed::Refused(id), Placed::Kept(id)));
    assert_eq!(answer(scheduler.cancel("a")).unwrap(), Cancel::Absent);
    let kept = store.finished(Some("a"), 9).unwrap();
    assert_eq!((kept.len(), kept[0].id, &*kept[0].name, &*kept[0].payload), (1, id, "log", "1"));
    assert_eq!(kept[0].last.as_ref().unwrap().end, RunEnd::Done);
    clock.set_wall(begin() + secs(11));
    let second = put(Clash::Refuse).added().unwrap();
    go_until(&clock, || answer(scheduler.get("a")).unwrap().is_none());
    assert!(put(Clash::Replace).added().is_some_and(|third| third > second));
    go_until(&clock, || answer(scheduler.get("a")).unwrap().is_none());
    assert_eq!(store.finished(None, 9).unwrap().len(), 3);
    clock.set_wall(begin() + secs(1_000));
    let _ = put(Clash::Refuse);
    go_until(&clock, || answer(scheduler.get("a")).unwrap().is_none());
    assert_eq!(store.finished(None, 9).unwrap().len(), 1, "the others have had their time");
}

/// A key that one store remembers is taken for each other store on the file, with other options or
/// none.
#[test]
fn k11_a_remembered_key_is_taken_for_stores_that_remember_none() {
    let folder = Folder::new();
    let (clock, runtime) = virtual_at(begin());
    let open = |options: SqliteOptions| options.open(&runtime, folder.file()).unwrap();
    let early = Scheduler::builder().runtime(&runtime).store(open(SqliteOptions::new())).start().unwrap();
    let store = open(SqliteOptions::new().remember_keys(secs(10)));
    let log = Log::default();
    let worker = log.handler(Scheduler::builder()).runtime(&runtime).store(store).start().unwrap();
    let put = |by: &Scheduler, clash| answer(by.put_to("log", &1).key("a").clash(clash).send()).unwrap();
    let id = put(&early, Clash::Refuse).added().unwrap();
    go_until(&clock, || answer(worker.get("a")).unwrap().is_none());
    let late = Scheduler::builder().runtime(&runtime).store(open(SqliteOptions::new())).start().unwrap();
    for by in [&early, &late, &worker] {
        assert_eq!((put(by, Clash::Refuse), put(by, Clash::Keep)), (Placed::Refused(id), Placed::Kept(id)));
    }
    clock.set_wall(begin() + secs(11));
    assert!(put(&late, Clash::Refuse).added().is_some());
}

/// The file was once opened with times to keep, and then without.
#[test]
fn k11_done_jobs_leave_in_time_where_nothing_is_kept_any_more() {
    let folder = Folder::new();
    let put = |n: u64, kept: Duration, at: Duration| {
        let (clock, runtime) = virtual_at(begin() + at);
        let store = SqliteOptions::new().keep_finished(kept).open(&runtime, folder.file()).unwrap();
        let scheduler =
            Log::default().handler(Scheduler::builder()).runtime(&runtime).store(store.clone()).start().unwrap();
        let job = |n: u64| scheduler.put_to("log", &n).key(&n.to_string()).send();
        let jobs: Vec<_> = (0..n).map(job).collect();
        jobs.into_iter().for_each(|job| _ = answer(job).unwrap());
        go_until(&clock, || answer(scheduler.list(Query::new())).unwrap().is_empty());
        store.finished(None, 1_000).unwrap().len()
    };
    assert_eq!(put(100, secs(60), Duration::ZERO), 100);
    assert_eq!(put(1, Duration::ZERO, secs(59)), 100, "their time is not over");
    let mut left = put(0, Duration::ZERO, secs(61));
    assert!((60..100).contains(&left), "some at the opening: {left}");
    while left > 0 {
        let before = std::mem::replace(&mut left, put(1, Duration::ZERO, secs(61)));
        assert!(left < before, "and some with each commit that ends runs");
    }
}

/// The next occurrence was computed with the zone data of another day.
#[test]
fn k12_occurrences_are_computed_again_when_a_scheduler_starts() {
    let folder = Folder::new();
    let right = begin() + secs(12 * 3_600);
    for turn in 0..2 {
        let (clock, runtime) = virtual_at(begin());
        let scheduler = Log::default().handler(Scheduler::open(folder.file()).runtime(&runtime)).start().unwrap();
        let daily = Schedule::cron("0 12 * * *").zone("Etc/GMT").build().unwrap();
        let _ = answer(scheduler.put_to("log", &()).key("daily").schedule(daily).clash(Clash::Keep).send()).unwrap();
        go_until(&clock, || answer(scheduler.get("daily")).unwrap().unwrap().due == Some(right));
        drop(scheduler);
        let stale = "UPDATE timerqueue_jobs SET recurring = json_set(recurring, '$.next', json('[1767300000000000,1767300000000000]'))";
        if turn == 0 {
            Connection::open(folder.file()).unwrap().execute(stale, []).unwrap();
        }
    }
}

fn line(line: &str) -> ScheduleBuilder {
    Schedule::cron(line).zone("Etc/GMT")
}

/// A start of a scheduler brings no occurrence back that another schedule has left behind.
#[test]
fn k12_a_start_undoes_no_reschedule() {
    let folder = Folder::new();
    let day = |hour: u64| Some(begin() + secs(hour * 3_600));
    {
        let bench = Bench::at(&folder, 0);
        let _ = answer(bench.job("a").schedule(line("0 2 * * *").build().unwrap()).send()).unwrap();
        bench.go(secs(2 * 3_600), 1);
        bench.clock.advance(secs(13 * 3_600));
        assert_eq!(answer(bench.scheduler.reschedule("a", line("0 12 * * *").build().unwrap())), Ok(Change::Changed));
        go_until(&bench.clock, || bench.get("a").unwrap().due == day(36));
    }
    let bench = Bench::at(&folder, 15 * 3_600 + 60);
    bench.settle();
    assert_eq!((bench.get("a").unwrap().due, bench.seen.len()), (day(36), 0), "today's 12:00 was skipped");
}

/// A start between the nominal and the due instant of a first occurrence.
#[test]
fn k12_a_start_skips_no_occurrence_that_is_not_due_yet() {
    let folder = Folder::new();
    let nightly = |key: usize| line("0 2 * * *").key(&key.to_string()).spread(secs(1_800)).build().unwrap();
    let is_late = |schedule: &Schedule| schedule.first_at(begin()).unwrap().due() > begin() + secs(2 * 3_600 + 600);
    let schedule = (0..).map(nightly).find(is_late).unwrap();
    let due = {
        let bench = Bench::at(&folder, 110 * 60);
        let _ = answer(bench.job("a").schedule(schedule).send()).unwrap();
        bench.get("a").unwrap().due
    };
    let bench = Bench::at(&folder, 125 * 60);
    bench.settle();
    assert_eq!(bench.get("a").unwrap().due, due);
    bench.go(secs(30 * 60), 1);
}

#[test]
fn k2_a_job_that_ends_its_process_each_time_is_dead_in_the_end() {
    const BEGINNINGS: u32 = 5;
    for retry in [Retry::never(), Retry::default()] {
        for before in [BEGINNINGS - 1, BEGINNINGS] {
            let folder = Folder::new();
            let handler = |log: &Log| {
                let log = log.clone();
                Handler::new("log", move |(): (), run: &Run| log.add(run)).retry(retry.clone())
            };
            {
                let (_clock, runtime) = virtual_at(begin());
                let builder = Scheduler::open(folder.file()).register(handler(&Log::default()));
                let scheduler = builder.runtime(&runtime).start().unwrap();
                let _ = answer(scheduler.put_to("log", &()).key("a").due(secs(60)).send()).unwrap();
            }
            // As if so many processes had ended during an attempt.
            let stranger = Connection::open(folder.file()).unwrap();
            let sql = "UPDATE timerqueue_jobs SET attempt = ?1, crashes = ?1, suspicion = ?1";
            stranger.execute(sql, [before]).unwrap();
            let (clock, runtime) = virtual_at(begin() + secs(60));
            let log = Log::default();
            let builder = Scheduler::open(folder.file()).register(handler(&log));
            let scheduler = builder.runtime(&runtime).start().unwrap();
            let stats = || answer(scheduler.stats()).unwrap();
            go_until(&clock, || stats().done + stats().died == 1);
            if before < BEGINNINGS {
                assert_eq!(log.all(), [("a".to_owned(), BEGINNINGS)]);
            } else {
                assert!(log.all().is_empty());
                let list = || answer(scheduler.list(Query::new().state(State::Dead))).unwrap();
                until(|| list().len() == 1);
                let error = list()[0].error.clone().unwrap_or_default();
                assert!(error.contains("the process ended") && error.contains(&BEGINNINGS.to_string()), "{error}");
            }
        }
    }
}

/// A job that is claimed while its scheduler is dropped, on virtual time that stands still from
/// then on, is given back.
#[test]
fn k2_a_claim_under_way_holds_no_job_of_a_scheduler_that_was_dropped() {
    let folder = Folder::new();
    let log = Log::default();
    let (clock, runtime) = virtual_at(begin());
    let old = Scheduler::open(folder.file()).runtime(&runtime).handler("log", |_: (), _| {});
    let old = old.start().unwrap();
    let _ = answer(old.put_to("log", &()).key("a").due(secs(1)).send()).unwrap();
    // The claim waits for the lock of writers.
    let other = Connection::open(folder.file()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    clock.advance(secs(1));
    drop(old);
    other.execute_batch("COMMIT").unwrap();
    std::thread::sleep(Duration::from_millis(100)); // until the old claim has the lock
    let _new = folder.scheduler(&log);
    until(|| log.keys() == ["a"]);
}

/// A job that the end of a run was given while its scheduler is dropped, on virtual time that
/// stands still from then on, is given back.
#[test]
fn k2_an_end_under_way_holds_no_job_of_a_scheduler_that_was_dropped() {
    let folder = Folder::new();
    let log = Log::default();
    let (clock, runtime) = virtual_at(begin());
    let other = Arc::new(Mutex::new(Connection::open(folder.file()).unwrap()));
    let lock = Arc::clone(&other);
    let handler = Handler::new("log", move |_: (), _: &Run| {
        // The end of this run waits for the lock of writers.
        let _ = lock.lock().unwrap().execute_batch("BEGIN IMMEDIATE");
    });
    let old = Scheduler::open(folder.file()).runtime(&runtime).register(handler.parallel(1)).start().unwrap();
    let _ = answer(old.put_to("log", &()).key("a").due(secs(1)).send()).unwrap();
    let _ = answer(old.put_to("log", &()).key("b").due(secs(1)).send()).unwrap();
    clock.advance(secs(1));
    until(|| {
        clock.advance(Duration::ZERO);
        !other.lock().unwrap().is_autocommit()
    });
    std::thread::sleep(Duration::from_millis(100)); // until the end waits
    drop(old);
    other.lock().unwrap().execute_batch("COMMIT").unwrap();
    std::thread::sleep(Duration::from_millis(100)); // until the end has the lock
    let _new = folder.scheduler(&log);
    until(|| log.keys() == ["b"]);
}

/// The begin of a run is flushed by a commit of its own a second later, unless another commit comes
/// first.
#[test]
fn a_flush_takes_no_number_of_a_job() {
    let folder = Folder::new();
    let (send, ends) = mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let handler = move |(): (), _: &Run| _ = ends.lock().unwrap().recv();
    let scheduler = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let db = Connection::open(folder.file()).unwrap();
    let flushes = || db.query_row("SELECT flushes FROM timerqueue_store", [], |row| row.get::<_, i64>(0)).unwrap();
    let put = || scheduler.put_to("h", &()).send().wait().unwrap().added().unwrap().0;
    let (first, mut last) = (put(), 0);
    for puts in 1..40 {
        let begun = std::time::Instant::now();
        while flushes() == 0 && begun.elapsed() < secs(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
        last = put();
        assert_eq!(last, first + puts, "the flush has taken none");
        if flushes() > 0 {
            break;
        }
    }
    assert!(last > first && flushes() > 0);
    drop(send);
}
