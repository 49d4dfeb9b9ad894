//! Several processes on one store, and processes that are killed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Folder, LONG, Worker, lives, until};

fn two_workers_share_the_jobs(folder: Folder) {
    let one = folder.worker(&["h", "--parallel", "2"], "echo $TIMERQUEUE_KEY >> one");
    let two = folder.worker(&["h", "--parallel", "2"], "echo $TIMERQUEUE_KEY >> two");
    for n in 0..40 {
        folder.ok(["put", "h", "--key", &format!("{n:02}"), "--in", "1s"]);
    }
    until(|| folder.json(["ls"]).is_empty());
    let mut ran: Vec<String> = (folder.read("one") + &folder.read("two")).lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, (0..40).map(|n| format!("{n:02}")).collect::<Vec<_>>());
    assert_eq!((one.stop().code, two.stop().code), (0, 0));
}

const LONG_RUN: &str = r#"sleep 1000 & echo $! > child; setsid true
    echo $$ > self.new; mv self.new self; wait"#;

fn a_killed_worker_leaves_no_process_and_its_job_runs_again(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h"], LONG_RUN);
    folder.lines("self", 1);
    let other = folder.worker(&["h"], "echo $TIMERQUEUE_ATTEMPT $TIMERQUEUE_KEY >> again");
    folder.ok(["put", "h", "--key", "next"]); // the other one is up
    folder.lines("again", 1);
    worker.signal(Signal::KILL);
    until(|| !lives(&folder.read("self")) && !lives(&folder.read("child")));
    assert_eq!(folder.lines("again", 2), ["1 next", "2 k"]);
    until(|| folder.json(["ls"]).is_empty());
    assert_eq!(other.stop().code, 0);
    drop(worker);
}

/// The number of the guard: the parent of the command.
fn parent(process: &str) -> Pid {
    let ps = std::process::Command::new("ps").args(["-o", "ppid=", "-p", process.trim()]).output().unwrap();
    String::from_utf8_lossy(&ps.stdout).trim().parse().ok().and_then(Pid::from_raw).unwrap()
}

fn a_job_that_is_begun_at_most_once_is_dead_with_its_worker(folder: Folder) {
    let script = "echo begun >> ran; sleep 1000";
    folder.ok(["put", "h", "--key", "killed", "--at-most-once"]);
    let worker = folder.worker(&["h"], script);
    folder.lines("ran", 1);
    drop(worker); // killed
    let worker = folder.worker(&["h", "--finish", "0s"], script);
    until(|| folder.job("killed")["state"] == "dead");
    assert_eq!(folder.job("killed")["last"]["end"], "cut_off");
    folder.ok(["put", "h", "--key", "stopped", "--at-most-once"]);
    folder.lines("ran", 2);
    assert_eq!(worker.stop().code, 6);
    let job = folder.job("stopped");
    assert_eq!((&job["state"], &job["attempt"]), (&json!("dead"), &json!(1)));
    assert_eq!(folder.lines("ran", 2).len(), 2);
}

fn a_killed_guard_leaves_no_process_and_the_attempt_has_failed(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--attempts", "1"], LONG_RUN);
    folder.lines("self", 1);
    kill_process(parent(&folder.read("self")), Signal::KILL).unwrap();
    until(|| !lives(&folder.read("self")) && !lives(&folder.read("child")));
    until(|| folder.job("k")["state"] == "dead");
    assert_eq!(folder.job("k")["error"], "the process that guards the command was killed");
    assert_eq!(worker.stop().code, 0);
}

/// The guard does not end before its command does: it ignores the signals that its group or the
/// whole session gets.
fn a_guard_ignores_the_signals_of_its_worker(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h"], "echo $$ > self; while [ ! -e go ]; do sleep 0.01; done");
    folder.lines("self", 1);
    let guard = parent(&folder.read("self"));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(guard, signal).unwrap();
    }
    std::fs::write(folder.path("go"), "").unwrap();
    until(|| folder.job("k").is_null());
    assert_eq!(worker.stop().code, 0);
}

fn a_worker_goes_on_when_its_outputs_are_closed(folder: Folder) {
    let mut command =
        folder.command(["worker", "h", "--json", "--echo", "--exec", "sh", "-c", "echo out; echo x >> ran"]);
    let mut worker = Worker(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    drop((worker.0.stdout.take(), worker.0.stderr.take()));
    for n in 1..=3 {
        folder.ok(["put", "h"]);
        folder.lines("ran", n);
    }
    until(|| folder.json(["ls"]).is_empty());
    assert_eq!(worker.stop().code, 0);
}

/// The lines that `tail --json` writes until this event of this key.
fn events(lines: &Receiver<String>, event: &str, key: &str) -> Vec<Value> {
    let mut found = Vec::new();
    loop {
        let Ok(line) = lines.recv_timeout(LONG) else { panic!("{key} is not {event}: {found:#?}") };
        let said: Value = serde_json::from_str(&line).unwrap();
        let last = said["event"] == event && said["key"] == key;
        found.push(said);
        if last {
            break;
        }
    }
    found
}

/// A tail that is up: it has told of a put.
fn tail_of(folder: &Folder, interval: &str) -> (Worker, Receiver<String>) {
    folder.ok(["put", "other", "--key", "first", "--in", "1h"]); // makes the store
    let mut command = folder.command(["tail", "--json", "--interval", interval]);
    let mut tail = Worker(command.stdout(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    let (send, lines) = channel();
    std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| send.send(line)));
    let (is_up, up) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0.. {
                folder.ok(["put", "other", "--key", &format!("probe{n}"), "--in", "1h"]);
                if up.recv_timeout(std::time::Duration::from_millis(30)) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
        });
        let told = lines.recv_timeout(LONG);
        drop(is_up);
        assert_eq!(serde_json::from_str::<Value>(&told.unwrap()).unwrap()["event"], "put");
    });
    (tail, lines)
}

/// The names of the events of a job.
fn kinds<'s>(said: &'s [Value], key: &str) -> Vec<&'s str> {
    said.iter().filter(|event| event["key"] == key).map(|event| event["event"].as_str().unwrap()).collect()
}

fn a_slow_tail_tells_of_each_attempt(folder: Folder) {
    let (tail, lines) = tail_of(&folder, "1s");
    let _worker = folder.worker(&["h", "--attempts", "3", "--wait", "1ms"], "exit 1");
    folder.ok(["put", "h", "1", "--key", "bad"]);
    let said = events(&lines, "dead", "bad");
    let kinds = kinds(&said, "bad");
    assert_eq!(kinds, ["put", "began", "failed", "began", "failed", "began", "dead"], "{said:#?}");
    drop(tail);
}

/// However short their lives are, and however long the interval is.
fn a_tail_misses_no_done_job_that_is_kept(folder: Folder) {
    let (tail, lines) = tail_of(&folder, "1s");
    let worker = folder.worker(&["h", "--parallel", "4", "--keep-finished", "1h"], "exit 0");
    let keys: Vec<String> = (0..30).map(|n| format!("k{n}")).collect();
    for key in &keys {
        folder.ok(["put", "h", "--key", key]);
    }
    until(|| folder.json(["ls", "--done"]).len() == 30);
    folder.ok(["put", "h", "--key", "end"]);
    let said = events(&lines, "done", "end");
    for key in &keys {
        assert_eq!(kinds(&said, key), ["put", "began", "done"], "{key}");
    }
    drop((tail, worker));
}

fn a_tail_tells_what_happens(folder: Folder) {
    folder.ok(["put", "h", "--key", "before", "--in", "1h"]);
    let (mut tail, lines) = tail_of(&folder, "10ms");
    let options = ["h", "--attempts", "2", "--wait", "2s", "--keep-finished", "1h"];
    let worker = folder.worker(&options, "sleep 1; exit $(cat)");
    folder.ok(["put", "h", "0", "--key", "good", "--in", "1500ms"]);
    let said = events(&lines, "done", "good");
    assert_eq!(kinds(&said, "good"), ["put", "began", "done"]);
    folder.ok(["put", "h", "1", "--key", "bad"]);
    let said = events(&lines, "dead", "bad");
    assert_eq!(kinds(&said, "bad"), ["put", "began", "failed", "began", "dead"]);
    assert_eq!(said.last().unwrap()["error"], "exit code 1");
    folder.ok(["run", "before"]);
    events(&lines, "failed", "before");
    worker.signal(Signal::TERM);
    tail.signal(Signal::TERM); // an interrupt may be ignored, as in a background job of a shell
    tail.0.wait().unwrap();
}

/// Without the commands that have just ended.
fn nodes(folder: &Folder) -> Vec<Value> {
    folder.json(["nodes"]).into_iter().filter(|node| !node["handlers"].as_array().unwrap().is_empty()).collect()
}

/// Also if the command did not find what it was to change.
fn a_command_that_has_ended_is_no_node(folder: Folder) {
    folder.ok(["put", "h", "--key", "k", "--in", "1h"]);
    for _ in 0..10 {
        folder.fails(["cancel", "none"]);
        folder.ok(["pause", "k"]);
        assert_eq!(folder.json(["nodes"]), Vec::<Value>::new());
    }
}

fn nodes_are_listed_while_they_live(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let one =
        folder.worker(&["h", "other", "--parallel", "3"], "echo $$ > self; while [ ! -e go ]; do sleep 0.01; done");
    folder.lines("self", 1);
    until(|| nodes(&folder).len() == 1);
    let node = &nodes(&folder)[0];
    assert_eq!((&node["running"], node["until"].is_null()), (&Value::from(1), !folder.is_server()), "{node}");
    assert_eq!(node["handlers"][0], serde_json::json!({"handler": "h", "parallel": 3, "running": 1}));
    let two = folder.worker(&["h"], "true");
    until(|| nodes(&folder).len() == 2);
    let table = folder.ok(["nodes"]);
    assert!(table.contains("h 1/3, other 0/3") && table.contains("h 0/1"), "{table}");
    assert_eq!(two.stop().code, 0);
    until(|| nodes(&folder).len() == 1);
    std::fs::write(folder.path("go"), "").unwrap();
    until(|| nodes(&folder)[0]["running"] == 0);
    one.signal(Signal::KILL);
    // Others notice its end.
    let other = folder.worker(&["other"], "true");
    until(|| nodes(&folder).iter().all(|node| node["handlers"][0]["handler"] == "other"));
    drop((one, other));
}

on_each_store! {
    a_command_that_has_ended_is_no_node
    nodes_are_listed_while_they_live
    two_workers_share_the_jobs
    a_killed_worker_leaves_no_process_and_its_job_runs_again
    a_job_that_is_begun_at_most_once_is_dead_with_its_worker
    a_killed_guard_leaves_no_process_and_the_attempt_has_failed
    a_guard_ignores_the_signals_of_its_worker
    a_worker_goes_on_when_its_outputs_are_closed
    a_tail_tells_what_happens
    a_slow_tail_tells_of_each_attempt
    a_tail_misses_no_done_job_that_is_kept
}
