//! Files that fail: each with its kind of failure, nothing lost that was accepted, and the
//! scheduler goes on when the file heals.

use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant, SystemTime};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{Fault, SqliteOptions, SqliteReader, SqliteStore};
use timerqueue_scheduler::{
    Cancel, Change, Error, Handler, Query, Retry, Revive, Run, Schedule, Scheduler, StartError, State,
};

use crate::support::{Folder, Log, until};

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> Fault {
    match result {
        Err(Error::Store { fault, .. }) => fault,
        other => panic!("a fault of the store: {other:?}"),
    }
}

fn scheduler(folder: &Folder, options: &SqliteOptions, log: &Log) -> Scheduler {
    let store = options.open(Runtime::global(), folder.file()).unwrap();
    log.handler(Scheduler::builder()).store(store).start().unwrap()
}

#[test]
fn k7_a_full_file_is_an_error_and_the_scheduler_goes_on() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = scheduler(&folder, &SqliteOptions::new().most_bytes(1 << 20), &log);
    let soon = Duration::from_millis(1_500);
    let _ = scheduler.put_to("log", &()).key("accepted").due(soon).send().wait().unwrap();
    let text = "x".repeat(100_000);
    let mut accepted = Vec::new();
    let full = (0..100).find_map(|n| {
        let key = format!("big{n}");
        let put = scheduler.put_to("log", &text).key(&key).due(Duration::from_secs(3_600)).send().wait();
        accepted.extend(put.is_ok().then_some(key));
        put.err()
    });
    assert_eq!(fault(Err::<(), _>(full.unwrap())), Fault::Full);
    assert!(!accepted.is_empty());
    // What was accepted runs, and is there.
    until(|| log.keys() == ["accepted"]);
    for key in &accepted {
        assert_eq!(scheduler.cancel(key).wait().unwrap(), Cancel::Cancelled);
    }
    let _ = scheduler.put_to("log", &text).key("after").send().wait().unwrap();
    until(|| log.keys() == ["accepted", "after"]);
}

#[test]
fn k1_many_puts_are_one_commit() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = scheduler(&folder, &SqliteOptions::new().most_bytes(1 << 20), &log);
    let text = "x".repeat(10_000);
    let put = |n: u32| scheduler.put_to("log", &text).key(&n.to_string()).due(Duration::from_secs(3_600));
    // Too much for the file: none is there.
    assert_eq!(fault(scheduler.put_many((0..200).map(put)).wait()), Fault::Full);
    assert!(scheduler.list(Query::new()).wait().unwrap().is_empty());
    let placed = scheduler.put_many((0..50).map(put)).wait().unwrap();
    assert!(placed.iter().all(|placed| placed.as_ref().is_ok_and(|placed| placed.added().is_some())));
    assert_eq!(scheduler.list(Query::new()).wait().unwrap().len(), 50);
}

#[test]
fn k7_a_locked_file_is_an_error_and_the_scheduler_goes_on() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = scheduler(&folder, &SqliteOptions::new().busy_timeout(Duration::from_millis(20)), &log);
    let other = Connection::open(folder.file()).unwrap();
    let due = SystemTime::now() + Duration::from_secs(2); // on a busy machine too, after the lock
    let _ = scheduler.put_to("log", &()).key("accepted").due(due).send().wait().unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(fault(scheduler.put_to("log", &()).key("refused").send().wait()), Fault::Locked);
    while SystemTime::now() < due + Duration::from_millis(100) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(log.all().is_empty(), "no claim was committed");
    assert_eq!(scheduler.list(Query::new()).wait().unwrap().len(), 1, "lists go on");
    other.execute_batch("COMMIT").unwrap();
    until(|| log.keys() == ["accepted"]);
}

/// Each put waits for as long as its own patience, behind however many others; what comes while
/// the file is locked does not wait for the patience of those before it.
#[test]
fn k15_each_operation_waits_for_a_locked_file_for_its_own_patience() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = scheduler(&folder, &SqliteOptions::new().busy_timeout(PATIENCE), &log);
    let put = |n: u32| scheduler.put_to("log", &()).key(&n.to_string()).due(Duration::from_secs(3_600)).send();
    let _ = put(0).wait().unwrap();
    let other = Connection::open(folder.file()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let early = put(1);
    std::thread::sleep(PATIENCE / 2);
    let (asked, late) = (Instant::now(), put(2));
    assert_eq!(fault(early.wait()), Fault::Locked);
    let took = begun.elapsed();
    assert!(took >= PATIENCE, "{took:?}");
    // The file is free before the patience of the second one is over.
    other.execute_batch("COMMIT").unwrap();
    let answer = late.wait();
    assert!(answer.is_ok() || asked.elapsed() >= PATIENCE, "{answer:?} after {:?}", asked.elapsed());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = Instant::now();
    let queue: Vec<_> = (10..5_000).map(put).collect();
    let sent = begun.elapsed();
    assert!(queue.into_iter().all(|put| fault(put.wait()) == Fault::Locked));
    println!("sent within {sent:?}, answered within {:?}", begun.elapsed());
    assert!(begun.elapsed() - sent < PATIENCE * 3, "{:?}", begun.elapsed());
    other.execute_batch("COMMIT").unwrap();
    let _ = put(3).wait().unwrap();
}

#[test]
fn j27_what_waits_for_room_goes_on_when_a_locked_file_is_free() {
    let folder = Folder::new();
    let store = SqliteOptions::new().busy_timeout(Duration::from_secs(60)).open(Runtime::global(), folder.file());
    let scheduler = Scheduler::builder().store(store.unwrap()).backlog(10).start().unwrap();
    let put = |n: u32| scheduler.put_to("log", &()).key(&n.to_string()).due(Duration::from_secs(3_600));
    let other = Connection::open(folder.file()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let first: Vec<_> = (0..10).map(|n| put(n).send()).collect();
    assert_eq!(fault(put(10).send().wait()), Fault::Busy);
    let waiting: Vec<_> = (10..500).map(|n| put(n).wait_for_room().send()).collect();
    let patient = scheduler.waiting_for_room();
    let changes = [patient.move_to("0", Duration::ZERO), patient.edit("1").priority(3).send(), patient.pause("2")];
    let cancelled = patient.cancel("499");
    other.execute_batch("COMMIT").unwrap();
    assert!(first.into_iter().chain(waiting).all(|put| put.wait().is_ok_and(|placed| placed.added().is_some())));
    assert!(changes.into_iter().all(|change| change.wait() == Ok(Change::Changed)));
    assert_eq!(cancelled.wait(), Ok(Cancel::Cancelled));
    let jobs = scheduler.list(Query::new()).wait().unwrap();
    assert!((0..499).eq(jobs.iter().map(|job| job.key.parse::<u32>().unwrap())), "in the order of the calls");
}

#[test]
fn k8_a_file_that_is_no_database_or_damaged_is_an_error_and_stays_as_it_is() {
    let folder = Folder::new();
    std::fs::write(
        folder.file(),
        "not a database, but a text that is longer than a header of a hundred bytes".repeat(9),
    )
    .unwrap();
    let before = std::fs::read(folder.file()).unwrap();
    assert_eq!(fault(SqliteStore::open(Runtime::global(), folder.file())), Fault::Damaged);
    let error = Scheduler::open(folder.file()).start().unwrap_err();
    assert!(matches!(error, StartError::Store(Error::Store { fault: Fault::Damaged, .. })), "{error}");
    assert_eq!(std::fs::read(folder.file()).unwrap(), before);
}

#[test]
fn k8_the_check_finds_damage_and_the_store_writes_nothing_more() {
    let folder = Folder::new();
    {
        let scheduler = folder.scheduler(&Log::default());
        let text = "y".repeat(500);
        for n in 0..500 {
            drop(scheduler.put_to("log", &text).key(&n.to_string()).due(Duration::from_secs(3_600)).send());
        }
        let _ = scheduler.put_to("log", &()).key("last").due(Duration::from_secs(3_600)).send().wait().unwrap();
    }
    SqliteStore::open(Runtime::global(), folder.file()).unwrap().check().unwrap();
    // The last connection takes the log along, whose pages would be read instead.
    until(|| !folder.file().with_extension("db-wal").exists());
    let mut file = std::fs::OpenOptions::new().write(true).open(folder.file()).unwrap();
    let pages = file.metadata().unwrap().len() / 4_096;
    for page in pages / 2..pages / 2 + 8 {
        file.seek(SeekFrom::Start(page * 4_096)).unwrap();
        file.write_all(&[0xa5; 4_096]).unwrap();
    }
    let store = match SqliteStore::open(Runtime::global(), folder.file()) {
        // A page that the opening reads.
        Err(error) => return assert_eq!(fault(Err::<(), _>(error)), Fault::Damaged),
        Ok(store) => store,
    };
    assert_eq!(fault(store.check()), Fault::Damaged);
    let scheduler = Scheduler::builder().store(store).start().unwrap();
    let begin = std::fs::read(folder.file()).unwrap();
    assert_eq!(fault(scheduler.put_to("log", &()).key("new").send().wait()), Fault::Damaged);
    assert_eq!(fault(scheduler.cancel("1").wait()), Fault::Damaged);
    assert_eq!(std::fs::read(folder.file()).unwrap(), begin);
}

#[test]
fn k8_tables_of_a_newer_version_are_left_alone() {
    let folder = Folder::new();
    drop(folder.scheduler(&Log::default()));
    let db = Connection::open(folder.file()).unwrap();
    db.execute("UPDATE timerqueue_store SET version = 99", []).unwrap();
    let opened = SqliteStore::open(Runtime::global(), folder.file());
    assert_eq!(fault(opened), Fault::TooNew { found: 99, known: 7 });
}

#[test]
fn k7_a_folder_that_does_not_exist_is_an_error() {
    let folder = Folder::new();
    let path = folder.file().join("no").join("such");
    assert_eq!(fault(SqliteStore::open(Runtime::global(), path)), Fault::CannotOpen);
}

/// A connection goes on with a deleted file, whose jobs would be lost at its end.
#[cfg(unix)]
#[test]
fn k7_a_file_that_was_deleted_moved_or_replaced_takes_nothing_more() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = folder.scheduler(&log);
    let put = |key: &str| scheduler.put_to("log", &()).key(key).due(Duration::from_millis(1)).send().wait();
    let _ = put("before").unwrap();
    until(|| log.keys() == ["before"]);
    let away = folder.file().with_extension("old");
    let mut reader = SqliteReader::open(folder.file()).unwrap();
    std::fs::rename(folder.file(), &away).unwrap();
    assert_eq!(fault(put("moved")), Fault::CannotOpen);
    std::fs::write(folder.file(), []).unwrap();
    assert_eq!(fault(put("replaced")), Fault::CannotOpen);
    // What is shown would be that of the former file for ever.
    assert_eq!(fault(scheduler.list(Query::new()).wait()), Fault::CannotOpen);
    assert_eq!(fault(reader.has_changed()), Fault::CannotOpen);
    std::fs::rename(&away, folder.file()).unwrap();
    let _ = put("back").unwrap();
    assert_eq!((scheduler.list(Query::new()).wait().map(drop), reader.has_changed()), (Ok(()), Ok(true)));
    until(|| log.keys() == ["back", "before"]);
    std::fs::remove_file(folder.file()).unwrap();
    assert_eq!(fault(put("deleted")), Fault::CannotOpen);
    drop(scheduler);
}

/// Each name would have a log of its own, and the file would be damaged.
#[cfg(unix)]
#[test]
fn k7_a_file_with_two_names_is_refused() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let other = folder.file().with_file_name("other.db");
    std::fs::hard_link(folder.file(), &other).unwrap();
    for name in [&other, &folder.file()] {
        assert_eq!(fault(SqliteStore::open(Runtime::global(), name)), Fault::CannotOpen);
        assert_eq!(fault(SqliteReader::open(name)), Fault::CannotOpen);
        assert_eq!(fault(SqliteStore::hold(name)), Fault::CannotOpen);
    }
    assert!(!other.with_file_name("other.db-wal").exists());
    // A process that has the file open goes on, and the file is taken again when the second name is
    // gone.
    let _ = scheduler.put_to("log", &()).key("a").due(Duration::from_secs(60)).send().wait().unwrap();
    std::fs::remove_file(&other).unwrap();
    assert_eq!(SqliteReader::open(folder.file()).unwrap().list(&Query::new()).unwrap().len(), 1);
    // A symbolic link is another way to the one name.
    std::os::unix::fs::symlink(folder.file(), &other).unwrap();
    let by_link = SqliteStore::open(Runtime::global(), &other).unwrap();
    by_link.check().unwrap();
    assert!(!other.with_file_name("other.db-wal").exists());
}

/// As containers mount a single file. A folder that is mounted twice is one folder.
#[cfg(target_os = "linux")]
#[test]
fn k7_a_file_that_is_mounted_by_itself_is_refused() {
    let Some(disk) = Disk::new() else { return };
    let mount = |from: &std::path::Path, to: &std::path::Path| {
        let bind = std::process::Command::new("mount").arg("--bind").arg(from).arg(to).status();
        assert!(bind.unwrap().success());
    };
    let (log, folder) = (Log::default(), disk.path());
    let scheduler = scheduler(&disk.folder, &SqliteOptions::new(), &log);
    let (alone, whole) = (folder.join("alone.db"), folder.join("again"));
    std::fs::write(&alone, []).unwrap();
    std::fs::create_dir(&whole).unwrap();
    mount(&disk.folder.file(), &alone);
    assert_eq!(fault(SqliteStore::open(Runtime::global(), &alone)), Fault::CannotOpen);
    assert_eq!(fault(SqliteReader::open(&alone)), Fault::CannotOpen);
    mount(&folder, &whole);
    let again = Scheduler::open(whole.join("jobs.db")).start().unwrap();
    let _ = again.put_to("log", &()).key("a").send().wait().unwrap();
    until(|| log.keys() == ["a"]);
    drop((again, scheduler));
}

#[test]
fn k7_a_read_only_file_is_an_error() {
    let folder = Folder::new();
    drop(folder.scheduler(&Log::default()));
    let mut permissions = std::fs::metadata(folder.file()).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(folder.file(), permissions).unwrap();
    if std::fs::OpenOptions::new().write(true).open(folder.file()).is_ok() {
        return println!("NOT RUN: this user may write into read-only files");
    }
    assert_eq!(fault(SqliteStore::open(Runtime::global(), folder.file())), Fault::ReadOnly);
}

/// A reader that stays in its transaction lets the log grow. When it has ended, the log begins
/// anew, and gives its space back.
#[test]
fn k7_a_log_that_a_reader_has_let_grow_becomes_small_again() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let reader = Connection::open(folder.file()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM timerqueue_jobs").unwrap();
    let log = || std::fs::metadata(folder.file().with_extension("db-wal")).unwrap().len();
    let text = "x".repeat(200_000);
    let put = |n: u32| scheduler.put_to("log", &text).key(&n.to_string()).due(Duration::from_secs(3_600));
    let puts = scheduler.put_many((0..120).map(put)).wait().unwrap();
    assert!(puts.iter().all(Result::is_ok));
    assert!(log() > 20_000_000, "the log has grown to {}", log());
    reader.execute_batch("COMMIT").unwrap();
    for n in 200..203 {
        let _ = put(n).send().wait().unwrap();
    }
    assert!(log() < 17_000_000, "the log has {} bytes", log());
}

/// A schedule that a person has spoilt is dead, and in no other job's way.
#[test]
fn k9_a_spoilt_row_is_in_no_other_jobs_way() {
    let folder = Folder::new();
    let log = Log::default();
    {
        let scheduler = folder.scheduler(&log);
        let schedule = Schedule::every(Duration::from_secs(3_600)).build().unwrap();
        let _ = scheduler.put_to("log", &()).key("spoilt").schedule(schedule).send().wait().unwrap();
        let _ = scheduler.put_to("log", &()).key("good").due(Duration::from_millis(300)).send().wait().unwrap();
    }
    let db = Connection::open(folder.file()).unwrap();
    db.execute("UPDATE timerqueue_jobs SET recurring = '{}', wake = 1 WHERE key = 'spoilt'", []).unwrap();
    drop(db);
    let scheduler = folder.scheduler(&log);
    until(|| log.keys().contains(&"good".to_owned()));
    let spoilt = || scheduler.get("spoilt").wait().unwrap().unwrap();
    until(|| spoilt().state == State::Dead); // on a busy machine the good one has run before
    let spoilt = spoilt();
    assert!(spoilt.error.unwrap().contains("cannot be read"));
    assert_eq!(scheduler.revive(spoilt.id).wait(), Ok(Revive::Absent), "nothing can be run");
    assert_eq!(scheduler.discard(spoilt.id).wait(), Ok(true));
    assert_eq!(scheduler.stats().wait().unwrap().jobs.of(State::Dead), 0);
    assert_eq!(scheduler.get("spoilt").wait(), Ok(None));
}

/// Any value that the tables take, in any column of a due row.
#[test]
fn k9_no_value_in_any_column_is_in_another_rows_way() {
    let folder = Folder::new();
    let log = Log::default();
    let texts = ["CAST(x'ff' AS TEXT)", "CAST(x'61ff' AS TEXT)", "CAST(x'00' AS TEXT)", "''", "'{'", "'null'"];
    let numbers = ["-9223372036854775808", "-1", "0", "1", "2", "3", "4", "6", "9223372036854775807"];
    {
        let scheduler = folder.scheduler(&log);
        let hour = Duration::from_secs(3_600);
        let schedule = || Schedule::every(hour).build().unwrap();
        let db = Connection::open(folder.file()).unwrap();
        let mut columns =
            db.prepare("SELECT name, type FROM pragma_table_info('timerqueue_jobs') WHERE pk = 0").unwrap();
        let columns = columns.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let columns: Vec<(String, String)> = columns.map(Result::unwrap).collect();
        let values = |kind: &str| if kind == "TEXT" { &texts[..] } else { &numbers[..] };
        let sets = columns
            .iter()
            .flat_map(|(column, kind)| values(kind).iter().map(move |value| format!("{column} = {value}")));
        let sets: Vec<String> = sets.collect();
        let keys: Vec<String> = (0..2 * sets.len()).map(|n| format!("n{n}")).collect();
        let put = |(n, key): (usize, &String)| {
            let put = scheduler.put_to("log", &()).key(key);
            if n < sets.len() { put.due(hour) } else { put.schedule(schedule()) }
        };
        let puts = scheduler.put_many(keys.iter().enumerate().map(put)).wait().unwrap();
        assert!(puts.iter().all(Result::is_ok));
        db.execute_batch("BEGIN IMMEDIATE; UPDATE timerqueue_jobs SET due = 1, wake = 1").unwrap();
        for (key, set) in keys.iter().zip(sets.iter().cycle()) {
            db.execute(&format!("UPDATE OR IGNORE timerqueue_jobs SET {set} WHERE key = ?1"), [key]).unwrap();
        }
        db.execute_batch("COMMIT").unwrap();
        for (table, column) in
            [("members", "name"), ("members", "handlers"), ("finished", "key"), ("affinities", "affinity")]
        {
            let set = format!("UPDATE OR IGNORE timerqueue_{table} SET {column} = CAST(x'ff' AS TEXT)");
            db.execute(&set, []).unwrap();
        }
        db.execute("INSERT INTO timerqueue_handlers (name) VALUES (CAST(x'ff' AS TEXT))", []).unwrap();
        let shown = "SELECT count(schedule), count(due) FROM timerqueue";
        db.query_row(shown, [], |_| Ok(())).unwrap();
        let _ = scheduler.put_to("log", &()).key("good").due(Duration::ZERO).send().wait().unwrap();
        until(|| log.keys().contains(&"good".to_owned()));
    }
    let scheduler = folder.scheduler(&log);
    let _ = scheduler.put_to("log", &()).key("late").due(Duration::from_millis(50)).send().wait().unwrap();
    until(|| log.keys().contains(&"late".to_owned()));
    assert!(scheduler.list(Query::new()).wait().unwrap().len() > 100);
    let _ = (scheduler.stats().wait().unwrap(), scheduler.nodes().wait().unwrap());
    let reader = SqliteReader::open(folder.file()).unwrap();
    assert!(reader.near(Duration::from_secs(1), 1_000).is_ok() && reader.counts().is_ok());
}

/// The first dead jobs make way by hundreds, also one that cannot be read.
#[test]
fn k9_a_dead_row_that_cannot_be_read_makes_way() {
    let folder = Folder::new();
    let log = Log::default();
    {
        let scheduler = folder.scheduler(&log);
        let schedule = Schedule::every(Duration::from_secs(3_600)).build().unwrap();
        let _ = scheduler.put_to("log", &()).key("spoilt").schedule(schedule).send().wait().unwrap();
    }
    let db = Connection::open(folder.file()).unwrap();
    db.execute_batch(
        "UPDATE timerqueue_jobs SET recurring = '{}', state = 3, died = 1, wake = NULL, holds_key = 0;
         INSERT INTO timerqueue_jobs (id, key, handler, payload, state, due, recurs, holds_key, paused, cancelled, attempt, claims,
                                      turn, owner, died)
         WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 100001)
         SELECT n + 1000, 'd' || n, 1, 'null', 3, 1, 0, 0, 0, 0, 1, 1, 0, 0, n FROM n;
         UPDATE timerqueue_store SET last_id = 200000, deaths = 100351;
         UPDATE timerqueue_handlers SET recurring = 0, dead = 100001;",
    )
    .unwrap();
    drop(db);
    let fails = Handler::new("fail", |_: (), _: &Run| Err::<(), _>("no")).retry(Retry::never());
    let scheduler = Scheduler::open(folder.file()).register(fails).start().unwrap();
    let _ = scheduler.put_to("fail", &()).key("fails").send().wait().unwrap();
    until(|| scheduler.get("fails").wait().unwrap().is_some_and(|job| job.state == State::Dead));
    let dead = scheduler.stats().wait().unwrap().jobs.of(State::Dead);
    assert!(dead < 100_000, "{dead}");
    assert_eq!(scheduler.get("spoilt").wait(), Ok(None));
}

/// A small disk in memory, mounted for a test. Needs root.
#[cfg(target_os = "linux")]
struct Disk {
    folder: Folder,
}

#[cfg(target_os = "linux")]
impl Disk {
    fn new() -> Option<Self> {
        Self::of(1_024)
    }

    fn of(kilobytes: u32) -> Option<Self> {
        let disk = Self { folder: Folder::new() };
        if disk.mount(&["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "none"]) {
            return Some(disk);
        }
        println!("NOT RUN: this user may not mount a disk");
        None
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.file().parent().unwrap().to_owned()
    }

    fn mount(&self, arguments: &[&str]) -> bool {
        let mount = std::process::Command::new("mount").args(arguments).arg(self.path()).output();
        mount.is_ok_and(|mount| mount.status.success())
    }
}

#[cfg(target_os = "linux")]
impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.path()).output();
    }
}

/// The disk is mounted read-only, so that root cannot write either.
#[cfg(target_os = "linux")]
#[test]
fn k7_a_read_only_disk_is_an_error_and_a_copy_can_be_read_there() {
    let Some(disk) = Disk::new() else { return };
    let (file, copy) = (disk.folder.file(), disk.path().join("copy.db"));
    {
        let scheduler = scheduler(&disk.folder, &SqliteOptions::new(), &Log::default());
        let _ = scheduler.put_to("log", &()).key("a").due(Duration::from_secs(60)).send().wait().unwrap();
        SqliteReader::open(&file).unwrap().backup(&copy).unwrap();
    }
    // The threads of the scheduler may still close the file.
    until(|| disk.mount(&["-o", "remount,ro"]));
    assert_eq!(fault(SqliteStore::open(Runtime::global(), &file)), Fault::ReadOnly);
    assert_eq!(fault(SqliteStore::hold(&file)), Fault::ReadOnly);
    assert_eq!(fault(SqliteReader::open(&copy).unwrap().backup(disk.path().join("c"))), Fault::ReadOnly);
    assert_eq!(SqliteReader::open(&copy).unwrap().list(&Query::new()).unwrap().len(), 1);
    assert!(disk.mount(&["-o", "remount,rw"]));
    SqliteStore::open(Runtime::global(), &file).unwrap().check().unwrap();
}

/// Wherever in the opening the disk is full.
#[cfg(target_os = "linux")]
#[test]
fn k7_a_disk_that_is_too_small_for_the_tables_is_an_error() {
    for kilobytes in [4, 8, 16, 32, 48, 64, 96, 128] {
        let Some(disk) = Disk::of(kilobytes) else { return };
        let opened = SqliteStore::open(Runtime::global(), disk.folder.file());
        let text = opened.as_ref().map_or_else(ToString::to_string, |_| String::new());
        assert!(text.contains("full") || text.contains("no room"), "{kilobytes} KB: {text}");
        assert_eq!(fault(opened), Fault::Full, "{kilobytes} KB");
        assert!(disk.mount(&["-o", "remount,size=2m"]));
        SqliteStore::open(Runtime::global(), disk.folder.file()).unwrap().check().unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn k7_a_full_disk_is_an_error_and_the_scheduler_goes_on() {
    let Some(disk) = Disk::new() else { return };
    let log = Log::default();
    let scheduler = scheduler(&disk.folder, &SqliteOptions::new(), &log);
    let _ = scheduler.put_to("log", &()).key("accepted").due(Duration::from_secs(1)).send().wait().unwrap();
    let filler = disk.path().join("filler");
    let full = std::fs::File::create(&filler).and_then(|mut file| file.write_all(&vec![1; 2 << 20]));
    assert!(full.is_err());
    let text = "x".repeat(200_000);
    assert_eq!(fault(scheduler.put_to("log", &text).key("refused").send().wait()), Fault::Full);
    std::thread::sleep(Duration::from_millis(1_200));
    std::fs::remove_file(filler).unwrap();
    until(|| log.keys() == ["accepted"]);
    let _ = scheduler.put_to("log", &()).key("after").send().wait().unwrap();
    until(|| log.keys() == ["accepted", "after"]);
    drop(scheduler);
}

#[cfg(target_os = "linux")]
#[test]
fn k7_a_disk_that_is_full_of_the_log_takes_what_needs_no_room() {
    let Some(disk) = Disk::of(1_000) else { return };
    let log = Log::default();
    let rounds = |scheduler: &Scheduler, rounds: usize| {
        // Each commit writes some pages into the log. No two jobs wait: the file need not grow.
        for n in 0..rounds {
            let put = |key| scheduler.put_to("log", &()).key(key);
            let _ = put("waits").due(Duration::from_secs(3_600)).send().wait().unwrap();
            assert_eq!(scheduler.cancel("waits").wait(), Ok(Cancel::Cancelled), "{n}");
            let _ = put("runs").send().wait().unwrap();
            until(|| scheduler.get("runs").wait() == Ok(None));
        }
    };
    // The file gets pages for all of this, and the log is empty.
    rounds(&scheduler(&disk.folder, &SqliteOptions::new(), &log), 3);
    let other = Connection::open(disk.folder.file()).unwrap();
    until(|| other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)) == Ok(0));
    let scheduler = scheduler(&disk.folder, &SqliteOptions::new(), &log);
    rounds(&scheduler, 300);
    // The other connection keeps the log, as the end of a process by a signal does. Then the disk
    // is full.
    drop(scheduler);
    let filler = std::fs::File::create(disk.path().join("filler"));
    assert!(filler.and_then(|mut file| file.write_all(&vec![1; 1 << 20])).is_err());
    let scheduler = self::scheduler(&disk.folder, &SqliteOptions::new(), &log);
    rounds(&scheduler, 1);
    until(|| std::fs::read_dir(disk.path().join("jobs.db-processes")).unwrap().count() == 1);
}
