//! Backups, and restored pasts, which do not run again unasked.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use timerqueue_scheduler::Scheduler;

use crate::support::{Folder, Worker, until};

/// Jobs of three kinds that are due or will be soon; a handler that was paused before.
fn past(folder: &Folder) {
    folder.ok(["cron", "h", "every 50ms", "--key", "often", "--overlap", "skip", "--grace", "1h"]);
    let worker = folder.worker(&["h"], "echo x >> ran");
    folder.lines("ran", 1);
    assert_eq!(worker.stop().code, 0);
    std::fs::remove_file(folder.path("ran")).unwrap();
    folder.ok(["put", "h", "--key", "one"]);
    folder.ok(["put", "h", "--key", "two"]);
    folder.ok(["put", "h", "--key", "later", "--in", "1h"]);
    folder.ok(["put", "other", "--key", "paused"]);
    folder.ok(["pause", "--handler", "other"]);
    std::thread::sleep(std::time::Duration::from_millis(60));
}

fn worker(folder: &Folder) -> Worker {
    folder.worker(&["h", "other", "fresh"], "echo $TIMERQUEUE_KEY >> ran")
}

/// A worker has been up and has found nothing of the past to run.
#[track_caller]
fn nothing_runs(folder: &Folder) {
    let worker = worker(folder);
    folder.ok(["put", "fresh", "--key", "fresh"]);
    folder.lines("ran", 1);
    assert_eq!(worker.stop().code, 0);
    assert_eq!(folder.read("ran"), "fresh\n", "a handler of which the backup knew nothing runs, and nothing else");
    std::fs::remove_file(folder.path("ran")).unwrap();
}

/// What follows a restore, up to the release.
fn a_held_past_waits_until_it_is_released(folder: &Folder, by_hold: &Value) {
    nothing_runs(folder);
    let held = &folder.json(["restore"])[0];
    assert_eq!(
        (&held["held"], &held["paused_by_hold"], &held["paused_before"]),
        (&json!(true), by_hold, &json!(["other"]))
    );
    let overdue = &held["overdue"]["h"];
    assert_eq!((&overdue["jobs"], &overdue["recurring"]), (&json!(2), &json!(1)), "{held}");
    let said = folder.ok(["restore", "--hold"]); // again: changes nothing
    assert!(said.contains("held since") && said.contains("one") && said.contains("not released: other"), "{said}");
    folder.ok(["cancel", "two"]);
    folder.ok(["put", "h", "--key", "new"]); // accepted during the hold: no part of the past
    assert_eq!(folder.json(["restore"])[0]["overdue"]["h"]["jobs"], 1);
    let skipped = &folder.json(["restore", "--skip-overdue", "--handler", "h"])[0];
    assert_eq!((&skipped["cancelled"], &skipped["moved_on"]), (&json!(1), &json!(1)), "{skipped}");
    let often = folder.job("often");
    assert_eq!(
        (&often["recurring"]["overlap"], &often["recurring"]["grace_seconds"]),
        (&json!("skip"), &json!(3600.0))
    );
    assert_eq!(folder.job("one"), Value::Null);
    assert_eq!(folder.job("new")["state"], "waiting");
    folder.ok(["restore", "--release"]);
    assert_eq!(folder.fails(["restore", "--release"]).0, 3);
    assert_eq!(folder.json(["restore"])[0]["held"], false);
    let worker = worker(folder);
    until(|| folder.job("new").is_null());
    assert_eq!(worker.stop().code, 0);
    let ran = folder.read("ran");
    assert!(ran.lines().all(|key| key == "new" || key == "often"), "{ran}");
    assert_eq!(folder.job("paused")["state"], "waiting", "its handler was paused before the hold");
    assert_eq!(folder.job("later")["state"], "waiting");
}

fn k13_a_store_is_held_by_a_command(folder: Folder) {
    past(&folder);
    assert_eq!(folder.fails(["restore", "--skip-overdue"]).0, 3, "not held");
    folder.ok(["restore", "--hold"]);
    a_held_past_waits_until_it_is_released(&folder, &json!(["h"]));
}

#[test]
fn a_skip_is_committed_many_at_a_time_shows_its_progress_and_can_be_repeated() {
    let folder = Folder::new();
    let scheduler = Scheduler::open(folder.path("jobs.db")).start().unwrap();
    let due = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let puts = (0..3_000).map(|n| scheduler.put_to("h", &n).key(&format!("{n}")).due(due)).collect::<Vec<_>>();
    assert_eq!(scheduler.put_many(puts).wait().unwrap().len(), 3_000);
    drop(scheduler);
    folder.ok(["cron", "h", "every 1ms", "--key", "often"]);
    folder.ok(["put", "other", "--key", "other"]);
    folder.ok(["restore", "--hold"]);
    let other = &folder.json(["restore", "--skip-overdue", "--handler", "other"])[0];
    assert_eq!(other["cancelled"], 1, "{other}");
    let ended = folder.run(["restore", "--skip-overdue", "--progress"]);
    assert!(ended.code == 0 && ended.out.contains("3000 jobs cancelled, 1 recurring jobs"), "{ended:?}");
    assert!(ended.err.contains("512 of 3001 jobs\n") && ended.err.contains("2560 of 3001 jobs\n"), "{ended:?}");
    let again = &folder.json(["restore", "--skip-overdue"])[0];
    assert_eq!(again["cancelled"], 0, "{again}");
}

#[test]
fn k13_a_backup_of_a_file_in_use_is_held() {
    let folder = Folder::new();
    past(&folder);
    folder.ok(["put", "busy", "--key", "busy"]);
    let busy = folder.worker(&["busy"], "touch up; sleep 1000");
    until(|| folder.path("up").exists());
    folder.ok(["backup", "copy.db"]);
    let (code, said) = folder.fails(["backup", "copy.db"]);
    assert!(code == 4 && said.contains("exists"), "{said}");
    assert_eq!(folder.fails(["backup", "no/such/folder/copy.db"]).0, 4);
    assert_eq!(
        std::fs::read_dir(folder.path(""))
            .unwrap()
            .flatten()
            .filter(|file| { file.file_name().to_string_lossy().contains("unfinished") })
            .count(),
        0
    );
    // The file goes on as before.
    let other = worker(&folder);
    until(|| folder.job("one").is_null());
    assert_eq!(other.stop().code, 0);
    drop(busy);
    std::fs::remove_file(folder.path("ran")).unwrap();
    // A disk is lost, and the copy takes the place of the file.
    for name in ["jobs.db", "jobs.db-wal", "jobs.db-shm"] {
        let _ = std::fs::remove_file(folder.path(name));
    }
    std::fs::rename(folder.path("copy.db"), folder.path("jobs.db")).unwrap();
    folder.ok(["check"]);
    let held = &folder.json(["restore"])[0];
    assert_eq!(held["overdue"]["busy"]["jobs"], 1, "a run that was under way: {held}");
    folder.ok(["cancel", "busy"]);
    until(|| folder.job("busy").is_null());
    a_held_past_waits_until_it_is_released(&folder, &json!(["busy", "h"]));
}

/// The statement of `docs/OPERATIONS.md` that holds a dump in the transaction that restores it.
#[cfg(feature = "postgres")]
#[test]
fn l19_a_restored_dump_of_a_server_is_held() {
    let (Some(folder), Some(server)) = (Folder::on_server(), crate::server::Server::shared()) else { return };
    past(&folder);
    let schema = folder.schema().to_owned();
    let operations = include_str!("../../../../docs/OPERATIONS.md");
    let block = operations.split("<!-- hold -->").nth(1).unwrap();
    let hold = block.split("```sql").nth(1).unwrap().split("```").next().unwrap().replace("timerqueue", &schema);
    let dump = server.program("pg_dump", &["--schema", &schema]);
    // All has run since, and a job that is lost.
    let lost = folder.json(["put", "h", "--key", "lost"]).remove(0);
    let busy = worker(&folder);
    until(|| ["one", "two", "lost"].iter().all(|key| folder.job(key).is_null()));
    assert_eq!(busy.stop().code, 0);
    std::fs::remove_file(folder.path("ran")).unwrap();
    let file = folder.path("restore.sql");
    std::fs::write(&file, format!("DROP SCHEMA {schema} CASCADE;\n{dump}\n{hold}")).unwrap();
    server
        .program("psql", &["-X", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction", "-f", file.to_str().unwrap()]);
    // The numbers of lost jobs, and so their tokens, are given to no other.
    let next = folder.json(["put", "h", "--key", "next", "--in", "1h"]).remove(0);
    assert!(next["id"].as_u64() > lost["id"].as_u64().map(|lost| lost + 1_000_000_000), "{next} {lost}");
    a_held_past_waits_until_it_is_released(&folder, &json!(["h"]));
}

#[cfg(feature = "postgres")]
#[test]
fn a_server_is_not_copied_as_a_file() {
    let Some(folder) = Folder::on_server() else { return };
    assert_eq!(folder.fails(["restore", "--hold"]).0, 4, "there are no tables");
    folder.ok(["put", "h"]);
    let (code, said) = folder.fails(["backup", "copy.db"]);
    assert!(code == 2 && said.contains("pg_dump"), "{said}");
}

on_each_store! {
    k13_a_store_is_held_by_a_command
}
