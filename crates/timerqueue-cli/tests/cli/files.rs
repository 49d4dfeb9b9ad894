//! Files that are missing, damaged, read-only, or have odd names; outputs that are closed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use timerqueue_scheduler::rusqlite::Connection;

use crate::support::{Ended, Folder, Worker, until};

const LOOKS: [&[&str]; 5] = [&["ls"], &["show", "k"], &["dead"], &["stats"], &["check"]];
const CHANGES: [&[&str]; 6] = [
    &["cancel", "k"],
    &["move", "k", "--in", "1h"],
    &["run", "k"],
    &["pause", "k"],
    &["resume", "--handler", "h"],
    &["retry", "--all"],
];

#[test]
fn a_file_that_does_not_exist_is_made_by_a_put_alone() {
    let folder = Folder::new();
    for command in LOOKS.iter().chain(&CHANGES).chain(&[&["tail"][..]]) {
        let (code, said) = folder.fails(*command);
        assert!(code == 4 && said.contains("jobs.db"), "{command:?}: {code} {said}");
    }
    assert!(!folder.path("jobs.db").exists());
    assert_eq!(folder.fails(["--file", "no/such/folder/jobs.db", "put", "h"]).0, 4);
    folder.ok(["put", "h", "--key", "k", "--in", "1h"]);
    for command in LOOKS {
        folder.ok(command);
    }
}

#[test]
fn the_file_must_be_named() {
    let folder = Folder::new();
    let ended = Ended::of(folder.command(["ls"]).env_remove("TIMERQUEUE_STORE").output().unwrap());
    assert!(ended.code == 2 && ended.err.contains("--store"), "{ended:?}");
    // Before and behind the command.
    folder.ok(["-f", "other.db", "put", "h"]);
    assert_eq!(folder.json(["ls", "--file", "other.db"]).len(), 1);
}

#[test]
fn a_file_that_is_no_file_of_jobs_is_left_alone() {
    let folder = Folder::new();
    let text = "this is a text and no database, and it is longer than a header of a hundred bytes. ".repeat(40);
    std::fs::write(folder.path("jobs.db"), &text).unwrap();
    for command in LOOKS.iter().chain(&CHANGES).chain(&[&["put", "h"][..]]) {
        assert_eq!(folder.fails(*command).0, 5, "{command:?}");
    }
    assert_eq!(folder.read("jobs.db"), text);
    let other = Connection::open(folder.path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE mine (x)").unwrap();
    assert_eq!(folder.fails(["-f", "other.db", "ls"]).0, 4);
}

#[test]
fn tables_of_a_newer_version_are_left_alone() {
    let folder = Folder::new();
    folder.ok(["put", "h"]);
    let db = Connection::open(folder.path("jobs.db")).unwrap();
    db.execute("UPDATE timerqueue_store SET version = 99", []).unwrap();
    drop(db);
    for command in [&["ls"][..], &["put", "h"], &["check"], &["worker", "h", "--exec", "true"]] {
        assert_eq!(folder.fails(command).0, 5, "{command:?}");
    }
}

#[test]
fn a_check_finds_damage_and_writes_nothing() {
    let folder = Folder::new();
    let text = "y".repeat(2_000);
    for n in 0..60 {
        folder.ok([
            "put",
            "h",
            "--text",
            &text,
            "--key",
            &format!("a key that fills an index as well: {n}"),
            "--in",
            "1h",
        ]);
    }
    let sound = folder.run(["check", "--progress"]);
    let parts = sound.err.split_once("1 of ").and_then(|(_, rest)| rest.split(':').next()).unwrap_or("?");
    assert!(sound.code == 0 && sound.err.contains(&format!("{parts} of {parts}:")), "{sound:?}");
    assert_eq!(folder.json(["check"])[0]["sound"], true);
    let path = folder.path("jobs.db");
    let pages = path.metadata().unwrap().len() / 4_096;
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for page in pages - 12..pages {
        file.seek(SeekFrom::Start(page * 4_096)).unwrap();
        file.write_all(&[0xa5; 4_096]).unwrap();
    }
    let before = std::fs::read(&path).unwrap();
    assert_eq!(folder.fails(["check"]).0, 5);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_wrong_count_is_damage() {
    let folder = Folder::new();
    folder.ok(["put", "h", "--in", "1h"]);
    let db = Connection::open(folder.path("jobs.db")).unwrap();
    db.execute("UPDATE timerqueue_handlers SET waiting = 7", []).unwrap();
    drop(db);
    let (code, said) = folder.fails(["check"]);
    assert!(code == 5 && said.contains("count"), "{said}");
}

/// The program as a user without rights, if this test has the rights to become one.
fn as_stranger(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.uid(65_534).gid(65_534);
    }
}

#[test]
fn a_read_only_file_is_looked_at_and_not_changed() {
    let folder = Folder::new();
    folder.ok(["put", "h", "--key", "k", "--in", "1h"]);
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // The program where each user may read it.
    let program = folder.path("program");
    std::fs::copy(env!("CARGO_BIN_EXE_timerqueue"), &program).unwrap();
    mode(&program, 0o555);
    mode(&folder.path("jobs.db"), 0o444);
    // SQLite needs its file of locks beside the file, also to read.
    mode(&folder.path(""), 0o777);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(folder.path("")).env("TIMERQUEUE_STORE", "jobs.db").stdin(Stdio::null());
        as_stranger(&mut command);
        command.output().map(Ended::of)
    };
    match run(&["--version"]) {
        Ok(ended) if ended.code == 0 => {}
        other => return println!("NOT RUN: the program cannot be run as another user: {other:?}"),
    }
    for command in LOOKS {
        let ended = run(command).unwrap();
        assert_eq!(ended.code, 0, "{command:?}: {ended:?}");
    }
    for command in CHANGES.iter().chain(&[&["put", "h"][..], &["worker", "h", "--exec", "true"]]) {
        let ended = run(command).unwrap();
        assert!(ended.code == 4 && ended.err.contains("read"), "{command:?}: {ended:?}");
    }
}

#[test]
fn a_locked_file_is_looked_at_and_not_changed() {
    let folder = Folder::new();
    folder.ok(["put", "h", "--key", "k", "--in", "1h"]);
    let other = Connection::open(folder.path("jobs.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let change = folder.command(["cancel", "k"]).stderr(Stdio::piped()).spawn().unwrap();
    for command in LOOKS {
        folder.ok(command);
    }
    let ended = Ended::of(change.wait_with_output().unwrap()); // after five seconds
    assert!(ended.code == 4 && ended.err.contains("lock"), "{ended:?}");
    other.execute_batch("COMMIT").unwrap();
    folder.ok(["cancel", "k"]);
}

#[test]
fn a_worker_says_that_its_store_fails() {
    let folder = Folder::new();
    folder.ok(["put", "h", "--key", "k"]);
    let script = "echo >> begun; while [ ! -e go ]; do sleep 0.01; done";
    let mut worker = folder.command(["worker", "h", "--exec", "sh", "-c", script]);
    let worker = Worker(worker.stderr(File::create(folder.path("said")).unwrap()).spawn().unwrap());
    folder.lines("begun", 1);
    let other = Connection::open(folder.path("jobs.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::fs::write(folder.path("go"), "").unwrap();
    until(|| folder.read("said").contains("asked again")); // after five seconds
    other.execute_batch("COMMIT").unwrap();
    until(|| folder.job("k").is_null());
    drop(worker);
}

#[test]
fn names_need_not_be_unicode_where_the_system_does_not_ask() {
    let folder = Folder::new();
    let odd = |text: &[u8]| OsString::from_vec(text.to_vec());
    let file = odd(b"jobs-\xff.db");
    let arguments = |words: &[&str]| -> Vec<OsString> {
        [OsString::from("--file"), file.clone()].into_iter().chain(words.iter().map(OsString::from)).collect()
    };
    folder.ok(arguments(&["put", "h", "--key", "k"]));
    assert!(folder.path(&file).exists());
    folder.ok(arguments(&["check"]));
    // A key and a handler are texts.
    for words in [[odd(b"cancel"), odd(b"\xff")], [odd(b"put"), odd(b"h\xff")]] {
        assert_eq!(folder.fails(words).0, 2);
    }
    let script = "printf %s \"$1\" > got; printf %s \"$TIMERQUEUE_STORE\" > file";
    let mut command = folder.command(arguments(&["worker", "h", "--exec", "sh", "-c", script, "sh"]));
    let worker = crate::support::Worker(command.arg(odd(b"a \xfe b")).stderr(Stdio::null()).spawn().unwrap());
    crate::support::until(|| std::fs::read(folder.path("file")).is_ok_and(|got| !got.is_empty()));
    assert_eq!(std::fs::read(folder.path("got")).unwrap(), b"a \xfe b");
    assert!(std::fs::read(folder.path("file")).unwrap().ends_with(b"/jobs-\xff.db"));
    drop(worker);
}

/// The program, with an output whose reader is gone.
fn unread(folder: &Folder, arguments: &[&str]) -> Ended {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    drop(reader);
    let mut command = folder.command(arguments);
    Ended::of(command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap())
}

#[test]
fn a_broken_pipe_is_no_panic() {
    let folder = Folder::new();
    for n in 0..20 {
        folder.ok(["put", "h", "--key", &n.to_string(), "--in", "1h"]);
    }
    for command in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "1"],
        &["stats"],
        &["completions", "bash"],
        &["cancel", "1"],
        &["put", "h"],
    ] {
        let ended = unread(&folder, command);
        assert_eq!((ended.code, ended.err.as_str()), (141, ""), "{command:?}");
    }
    // What was to be done is done.
    assert_eq!(folder.fails(["cancel", "1"]).0, 1);
    let help = unread(&folder, &["--help"]);
    assert!(!help.err.contains("panicked"), "{help:?}");
    // A closed standard error.
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    drop(reader);
    let status = folder.command(["cancel", "absent"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_tail_ends_when_another_file_takes_the_place_of_its_own() {
    let folder = Folder::new();
    folder.ok(["put", "h", "--key", "a", "--in", "1h"]);
    let mut tail = folder.command(["tail", "--json"]);
    let mut tail = Worker(tail.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    // It has begun to look once it tells of a job.
    let mut first = [0];
    let mut number = 0;
    let output = tail.0.stdout.as_mut().unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| output.read_exact(&mut first));
        while !reads.is_finished() {
            number += 1;
            folder.ok(["put", "h", "--key", &number.to_string(), "--in", "1h"]);
        }
    });
    std::fs::write(folder.path("other.db"), []).unwrap();
    std::fs::rename(folder.path("other.db"), folder.path("jobs.db")).unwrap();
    let ended = tail.ended();
    assert!(ended.code == 4 && ended.err.contains("another file"), "{ended:?}");
}
