//! A file that outlives its process, and one that goes to a machine with another time zone and
//! another clock.
//!
//! Ground rules. Each machine is a process: the test runs itself as a child, with its own `TZ` and
//! a virtual clock of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{SqliteReader, SqliteStore};
use timerqueue_scheduler::{Clash, Handler, Outcome, Query, Retry, Run, Schedule, Scheduler, State};

use crate::processes::claim_and_forget;
use crate::rows::{Bench, HOUR, expect, secs, wall};
use crate::support::{Folder, LONG, answer, go_until, until, virtual_at};

fn child(folder: &Folder, test: &str, zone: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env("MOVED_FILE", folder.file())
        .env("TZ", zone)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn file() -> Option<PathBuf> {
    std::env::var_os("MOVED_FILE").map(PathBuf::from)
}

/// What the child says in lines that begin with this word.
fn said(child: &mut Child, word: &str, lines: usize) -> Vec<String> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let said = output.lines().map(Result::unwrap).filter_map(|line| line.strip_prefix(word).map(str::to_owned));
    said.take(lines).collect()
}

/// A handler that says which run it got, and returns what it is told to.
fn teller(ids: mpsc::Sender<(u32, String)>, outcome: fn(u32) -> Result<Outcome, &'static str>) -> Handler {
    let run = move |_: (), run: &Run| {
        ids.send((run.attempt(), run.run_id().to_owned())).unwrap();
        outcome(run.attempt())
    };
    Handler::new("h", run).retry(Retry::new(9).first(secs(1)))
}

#[test]
#[ignore = "a process of k14"]
fn process_that_is_killed() {
    let Some(file) = file() else { return };
    let (clock, runtime) = virtual_at(wall(3_600));
    let handler = |_: (), run: &Run| {
        println!("\nrun {}", run.run_id());
        std::thread::sleep(Duration::from_secs(3_600));
    };
    let scheduler = Scheduler::open(file).runtime(&runtime).handler("h", handler).start().unwrap();
    // Until it is killed: the handler runs inside of an advance, and does not return.
    go_until(&clock, || answer(scheduler.stats()).unwrap().done > 0);
}

#[test]
fn k14_all_attempts_at_an_occurrence_have_one_token_and_no_other_run_has_it() {
    let folder = Folder::new();
    {
        let (_clock, runtime) = virtual_at(wall(0));
        let scheduler = Scheduler::open(folder.file()).runtime(&runtime).start().unwrap();
        let hourly = Schedule::cron("0 * * * *").build().unwrap();
        let _ = answer(scheduler.put_to("h", &()).key("a").schedule(hourly).send()).unwrap();
    }
    let mut killed = child(&folder, "moved::process_that_is_killed", "UTC");
    let token = said(&mut killed, "run ", 1).remove(0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (send, ids) = mpsc::channel();
    let next = || ids.recv_timeout(LONG).unwrap();
    {
        // The second attempt fails, and this process ends too.
        let (clock, runtime) = virtual_at(wall(3_600));
        let handler = teller(send.clone(), |_| Err("no"));
        let scheduler = Scheduler::open(folder.file()).runtime(&runtime).register(handler).start().unwrap();
        go_until(&clock, || answer(scheduler.stats()).unwrap().jobs.failing() == 1);
        assert_eq!(next(), (2, token.clone()));
    }
    let (clock, runtime) = virtual_at(wall(3_601));
    let handler =
        teller(send, |attempt| if attempt == 3 { Ok(Outcome::Done) } else { Ok(Outcome::Again(secs(1).into())) });
    let scheduler = Scheduler::open(folder.file()).runtime(&runtime).register(handler).start().unwrap();
    let ended = |runs| {
        go_until(&clock, || {
            let stats = answer(scheduler.stats()).unwrap();
            stats.lateness.count() >= runs && stats.jobs.of(State::Running) == 0
        });
    };
    clock.advance(secs(2)); // the wait and its random part
    ended(1);
    assert_eq!(next(), (3, token.clone()));
    // The next occurrence, twice as the handler asks for it; then a job with the key of before, and
    // another one in its place.
    clock.advance(HOUR);
    ended(2);
    clock.advance(secs(1));
    ended(3);
    assert!(answer(scheduler.cancel("a")).is_ok());
    for runs in [4, 5] {
        let put = scheduler.put_to("h", &()).key("b").clash(Clash::Replace).send();
        assert!(answer(put).unwrap().added().is_some());
        ended(runs);
    }
    let mut tokens: Vec<String> = std::iter::once(token).chain((0..4).map(|_| next().1)).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 5, "{tokens:?}");
}

/// The token of the one run of a new job.
fn token_of_a_run(file: &std::path::Path, key: &str) -> String {
    let (send, ids) = mpsc::channel();
    let handler = move |_: (), run: &Run| send.send(run.run_id().to_owned()).unwrap();
    let scheduler = Scheduler::open(file).handler("h", handler).start().unwrap();
    if let Some(hold) = SqliteReader::open(file).unwrap().held().unwrap() {
        hold.release(&scheduler).unwrap();
        SqliteStore::forget_hold(file).unwrap();
    }
    let _ = scheduler.put_to("h", &()).key(key).send().wait().unwrap();
    let id = ids.recv_timeout(LONG).unwrap();
    assert!(scheduler.close(LONG).wait().unwrap().is_drained());
    drop(scheduler);
    // The thread that ran the job may hold the store a little longer. The last connection removes
    // the log by its name.
    let is_of_file = |name: PathBuf| name.to_string_lossy().starts_with(&*file.to_string_lossy());
    let open = || std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    until(|| !open().filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(is_of_file));
    id
}

/// A file that a copy takes the place of: held or not, and the same copy several times.
#[test]
fn k14_a_restored_file_gives_no_token_of_a_lost_run_again() {
    let folder = Folder::new();
    let file = folder.file();
    let beside = |name: &str| file.with_file_name(name);
    let mut tokens = vec![token_of_a_run(&file, "a")];
    SqliteReader::open(&file).unwrap().backup(beside("backup.db")).unwrap();
    Connection::open(&file).unwrap().execute("VACUUM INTO ?1", [beside("plain.db").to_str().unwrap()]).unwrap();
    tokens.push(token_of_a_run(&file, "b")); // will be lost
    for copy in ["backup.db", "backup.db", "plain.db", "plain.db"] {
        for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
            let _ = std::fs::remove_file(beside(name));
        }
        std::fs::copy(beside(copy), &file).unwrap();
        tokens.push(token_of_a_run(&file, "c"));
        SqliteReader::open(&file).unwrap().check(|_| {}).unwrap();
    }
    // The same file, opened again or moved away and back, has no past of its own.
    let last = |file| SqliteReader::open(file).unwrap().last_id().unwrap().0;
    let before = last(&file);
    std::fs::rename(&file, beside("moved.db")).unwrap();
    tokens.push(token_of_a_run(&beside("moved.db"), "d"));
    assert!(last(&beside("moved.db")) < before + 100);
    let all = tokens.clone();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), all.len(), "{all:?}");
}

/// What was due before the release may have begun in the file that was lost.
#[test]
fn j24_a_restored_file_begins_no_job_again_that_is_begun_at_most_once() {
    let folder = Folder::new();
    let (file, copy) = (folder.file(), folder.file().with_file_name("backup.db"));
    let hourly = || Schedule::cron("0 * * * *").build().unwrap();
    {
        let (_clock, runtime) = virtual_at(wall(10));
        let scheduler = Scheduler::open(&file).runtime(&runtime).start().unwrap();
        let once = |n: u64| scheduler.put_to("h", &()).key(&format!("once {n}")).at_most_once().due(secs(60 + n));
        let _ = answer(scheduler.put_many((0..300).map(once))).unwrap();
        let _ = answer(scheduler.put_to("h", &()).key("plain").due(secs(60)).send()).unwrap();
        let _ = answer(scheduler.put_to("h", &()).key("later").at_most_once().due(3 * HOUR).send()).unwrap();
        let _ = answer(scheduler.put_to("h", &()).key("hourly").at_most_once().schedule(hourly()).send()).unwrap();
        SqliteReader::open(&file).unwrap().backup(&copy).unwrap();
    }
    let (clock, runtime) = virtual_at(wall(7_000));
    let (send, runs) = mpsc::channel();
    let handler = move |_: (), run: &Run| send.send(run.key().to_owned()).unwrap();
    let hold = SqliteReader::open(&copy).unwrap().held().unwrap().unwrap();
    let scheduler = Scheduler::open(&copy).runtime(&runtime).handler("h", handler).start().unwrap();
    let _ = answer(scheduler.put_to("h", &()).key("new").at_most_once().send()).unwrap();
    clock.advance(secs(1));
    assert!(runs.try_recv().is_err(), "the copy is held");
    // The calls of a release move no clock but to wait.
    hold.release(&scheduler).unwrap();
    SqliteStore::forget_hold(&copy).unwrap();
    go_until(&clock, || answer(scheduler.stats()).unwrap().cut_off == 300);
    go_until(&clock, || answer(scheduler.stats()).unwrap().done == 2);
    let mut ran: Vec<String> = runs.try_iter().collect();
    ran.sort();
    assert_eq!(ran, ["new", "plain"]);
    let hourly = answer(scheduler.get("hourly")).unwrap().unwrap();
    assert_eq!((hourly.due, hourly.tally.runs), (Some(wall(7_200)), 0));
    assert_eq!(answer(scheduler.get("later")).unwrap().unwrap().state, State::Waiting);
    clock.advance(4 * HOUR);
    go_until(&clock, || answer(scheduler.get("later")).unwrap().is_none());
}

/// Puts jobs, and says when they are due.
#[test]
#[ignore = "a machine of k12"]
fn process_in_new_york() {
    let Some(file) = file() else { return };
    let (_clock, runtime) = virtual_at(wall(0));
    let scheduler = Scheduler::open(file).runtime(&runtime).start().unwrap();
    let zone = jiff::tz::TimeZone::system();
    let berlin = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
    let here = Schedule::cron("30 2 * * *").zone(zone.iana_name().unwrap()).build().unwrap();
    let utc = Schedule::cron("30 2 * * *").build().unwrap();
    for (key, schedule) in [("berlin", berlin), ("here", here), ("utc", utc)] {
        let _ = answer(scheduler.put_to("log", &()).key(key).schedule(schedule).send()).unwrap();
    }
    let _ = answer(scheduler.put_to("log", &()).key("in an hour").due(HOUR).send()).unwrap();
    let _ = answer(scheduler.put_to("log", &()).key("at an instant").due(wall(5_000)).send()).unwrap();
    say(&scheduler);
}

/// The same file on a machine further east, whose clock is two hours behind.
#[test]
#[ignore = "a machine of k12"]
fn process_in_tokyo() {
    let Some(file) = file() else { return };
    let (_clock, runtime) = virtual_at(wall(-7_200));
    let scheduler = Scheduler::open(file).runtime(&runtime).start().unwrap();
    say(&scheduler);
}

fn say(scheduler: &Scheduler) {
    println!("\nzone {}", jiff::tz::TimeZone::system().iana_name().unwrap_or_default());
    for job in answer(scheduler.list(Query::new())).unwrap() {
        let due = job.due.unwrap().duration_since(wall(0)).unwrap().as_secs();
        println!("due {} {due} {:?}", job.key, job.state);
    }
}

#[test]
fn k12_a_file_on_a_machine_with_another_zone_and_another_clock_keeps_its_instants() {
    let folder = Folder::new();
    let dues = [
        "berlin 5400 Recurring", // 02:30 at UTC+1
        "here 27000 Recurring",  // 02:30 at UTC-5
        "utc 9000 Recurring",
        "in an hour 3600 Waiting",
        "at an instant 5000 Waiting",
    ];
    for (test, zone) in [("process_in_new_york", "America/New_York"), ("process_in_tokyo", "Asia/Tokyo")] {
        let mut machine = child(&folder, &format!("moved::{test}"), zone);
        let lines = said(&mut machine, "", usize::MAX);
        assert!(machine.wait().unwrap().success());
        assert!(lines.contains(&format!("zone {zone}")), "{lines:?}");
        let found: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("due ")).collect();
        assert_eq!(found, dues, "{zone}");
    }
    // Here the clock is right: nothing is early, and each job runs at its instant.
    let bench = Bench::at(&folder, 0);
    bench.go(secs(3_599), 0);
    bench.go(secs(1), 1);
    bench.go(secs(27_000 - 3_600), 5);
    // How far the clock has gone while the file takes a claim is a matter of chance; that nothing
    // is early is asserted by the handler.
    let mut seen = bench.seen.take();
    assert_eq!(seen.remove(0), ("in an hour".to_owned(), 3_600));
    let mut seen: Vec<_> = seen.into_iter().map(|(key, _)| key).collect();
    seen.sort();
    let runs = ["at an instant", "berlin", "here", "utc"];
    assert_eq!(seen, runs);
}

/// A clock that is days ahead makes jobs due, each once. Set right again, schedules go on, and
/// nothing runs a second time.
#[test]
fn k12_a_clock_that_was_ahead_repeats_nothing() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let daily = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
        let _ = answer(bench.job("daily").schedule(daily).send()).unwrap();
        let _ = bench.put("a", HOUR);
    }
    {
        let ahead = Bench::at(&folder, 3 * 86_400);
        // Until the ends are in the file: an occurrence beside a run that goes on is left out.
        go_until(&ahead.clock, || ahead.stats().done == 2 && ahead.stats().jobs.of(State::Running) == 0);
        let mut keys = ahead.seen.keys();
        keys.sort();
        assert_eq!(keys, ["a", "daily"], "the last occurrence alone");
    }
    let bench = Bench::at(&folder, 0);
    go_until(&bench.clock, || bench.get("daily").is_some_and(|job| job.due == Some(wall(5_400))));
    for (day, done) in [(0, 1), (1, 2), (2, 2), (3, 3)] {
        bench.go(secs(86_400), done);
        let keys: &[&str] = if day == 2 { &[] } else { &["daily"] };
        assert_eq!(bench.seen.keys(), keys, "the night of the third day has run");
    }
}

/// A run is its process's for as long as the process lives, and no clock is asked.
#[test]
fn j9_k2_suspend_counts_on_a_file_and_a_run_stays_with_its_process() {
    let folder = Folder::new();
    let bench = Bench::with(&folder, 0, |builder, runtime, seen| {
        let (runtime, seen) = (runtime.clone(), seen.clone());
        builder.handler("h", move |_: (), run: &Run| seen.add(&runtime, run))
    });
    let holder = SqliteStore::open(&bench.runtime, folder.file()).unwrap();
    let _ = answer(bench.scheduler.put_to("h", &()).key("held").send()).unwrap();
    claim_and_forget(&holder);
    let _ = bench.put("a", HOUR);
    let hourly = Schedule::every(HOUR).from(wall(3_600)).build().unwrap();
    let _ = answer(bench.job("hourly").schedule(hourly).send()).unwrap();
    bench.clock.suspend(10 * HOUR + secs(5));
    go_until(&bench.clock, || bench.stats().done == 2);
    let mut seen = bench.seen.take();
    seen.sort();
    assert_eq!(seen, expect(&[("a", 36_005), ("hourly", 36_005)]), "each once, at the end of the suspend");
    bench.go(secs(3_595), 3);
    assert_eq!(bench.seen.take(), expect(&[("hourly", 39_600)]), "on its grid again");
    let held = bench.get("held").unwrap();
    assert_eq!((held.state, held.attempt), (State::Running, 1));
    drop(holder);
    go_until(&bench.clock, || bench.stats().done == 4);
    assert_eq!(bench.seen.keys(), ["held"]);
}
