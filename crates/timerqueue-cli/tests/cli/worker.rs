//! Workers: commands, their environment, ends and outputs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Folder, lives, until};

fn a_command_gets_its_job_without_a_shell(folder: Folder) {
    folder.ok(["put", "h", r#"{"a": [1,2]}"#, "--key", "k", "--at", "2026-01-02T03:04:05"]);
    // an instant that has passed means now
    let due = folder.job("k")["due"].as_str().unwrap().to_owned();
    let script = r#"{ cat; echo; printf '%s|' "$@"; echo
        echo "$TIMERQUEUE_KEY $TIMERQUEUE_HANDLER $TIMERQUEUE_ATTEMPT $TIMERQUEUE_ID $TIMERQUEUE_DUE [$TIMERQUEUE_NOMINAL]"
        echo "$TIMERQUEUE_TOKEN"; echo "$TIMERQUEUE_STORE"; } > got.new; mv got.new got"#;
    let mut command =
        folder.command(["worker", "h", "--exec", "sh", "-c", script, "sh", "a b", "$HOME", "*", "--raw", "--", ""]);
    let worker = crate::support::Worker(command.spawn().unwrap());
    let lines = folder.lines("got", 5);
    assert_eq!(lines[0], r#"{"a": [1,2]}"#, "the payload as it was put");
    assert_eq!(lines[1], "a b|$HOME|*|--raw|--||");
    assert_eq!(lines[2], format!("k h 1 1 {due} []"));
    assert!(!lines[3].is_empty());
    let is_file = lines[4].ends_with("/jobs.db") && lines[4].starts_with('/');
    assert_eq!(is_file, !folder.is_server(), "{}", lines[4]);
    // A command puts further jobs into the same store.
    let mut command =
        folder.command(["worker", "next", "--exec", "sh", "-c", "\"$0\" put further --in 1h --key further"]);
    let other = crate::support::Worker(command.arg(env!("CARGO_BIN_EXE_timerqueue")).spawn().unwrap());
    folder.ok(["put", "next"]);
    until(|| folder.job("further")["state"] == "waiting");
    assert_eq!(other.stop().code, 0);
    until(|| folder.job("k") == Value::Null);
    assert_eq!(worker.stop().code, 0);
}

fn raw_payloads_are_texts(folder: Folder) {
    folder.ok(["put", "sh", "--text", "echo \"it's me\" > said"]);
    folder.ok(["put", "sh", "[1]", "--key", "list"]);
    let mut command = folder.command(["worker", "sh", "--raw", "--attempts", "1", "--exec", "sh"]);
    let worker = crate::support::Worker(command.spawn().unwrap());
    assert_eq!(folder.lines("said", 1), ["it's me"]);
    // JSON that is no text is given as it is: here, no command of the shell.
    until(|| folder.job("list")["error"].as_str().is_some_and(|error| error.starts_with("exit code 127")));
    drop(worker);
}

fn exit_codes_say_what_becomes_of_the_job(folder: Folder) {
    for (key, code) in [("done", "0"), ("again", "75"), ("dead", "65"), ("fails", "3")] {
        folder.ok(["put", "h", code, "--key", key]);
    }
    folder.ok(["put", "h", "--text", "killed", "--key", "killed"]);
    let script = r#"echo "$TIMERQUEUE_KEY $TIMERQUEUE_ATTEMPT $TIMERQUEUE_TOKEN" >> ran
        code=$(cat); echo "said by $TIMERQUEUE_KEY"; echo "and by the error output" >&2
        [ "$code" = '"killed"' ] && kill -9 $$
        [ "$code" = 75 ] && [ "$(grep -c ^again ran)" = 2 ] && exit 0
        exit "$code""#;
    let worker = folder.worker(&["h", "--attempts", "2", "--wait", "10ms", "--again", "20ms"], script);
    until(|| folder.job("done").is_null() && folder.job("again").is_null() && folder.json(["dead"]).len() == 3);
    let error = |key: &str| (folder.job(key)["error"].as_str().unwrap().to_owned(), folder.job(key)["attempt"].clone());
    let said = |key: &str, how: &str| format!("{how}: said by {key}\nand by the error output");
    assert_eq!(error("dead"), (said("dead", "exit code 65"), json!(1)));
    assert_eq!(error("fails"), (said("fails", "exit code 3"), json!(2)));
    assert_eq!(error("killed"), (said("killed", "ended by signal 9"), json!(2)));
    let ran = folder.read("ran");
    let runs = |key: &str| -> Vec<(String, String)> {
        let words = ran.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|words| words[0] == key);
        words.map(|words| (words[1].to_owned(), words[2].to_owned())).collect()
    };
    // Attempts at a run share their token; another run has another one.
    let (again, fails) = (runs("again"), runs("fails"));
    assert!(again.len() == 2 && again[0].0 == "1" && again[1].0 == "1" && again[0].1 != again[1].1, "{again:?}");
    assert!(fails.len() == 2 && fails[0].0 == "1" && fails[1].0 == "2" && fails[0].1 == fails[1].1, "{fails:?}");
    let ended = worker.stop();
    assert_eq!(ended.code, 0);
    assert!(ended.err.contains("fails: dead after "), "{}", ended.err);
}

fn waits_between_attempts_come_from_a_list(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--waits", "10ms,20ms,30ms"], "exit 1");
    until(|| folder.job("k")["state"] == "dead");
    assert_eq!(folder.job("k")["attempt"], 4);
    assert_eq!(worker.stop().code, 0);
    let both = folder.run(["worker", "h", "--waits", "1s", "--attempts", "3", "--exec", "true"]);
    assert_eq!(both.code, 2);
}

fn the_end_of_the_output_is_kept_up_to_a_limit(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let script = "head -c 3000000 /dev/zero; yes much | head -c 3000000; echo; echo the end; exit 1";
    let worker = folder.worker(&["h", "--attempts", "1", "--keep-output", "40", "--echo", "--quiet"], script);
    let mut worker = worker;
    // Read along, or the worker waits for the reader.
    let mut err = worker.0.stderr.take().unwrap();
    let echoed = std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::sink()).unwrap());
    until(|| folder.job("k")["state"] == "dead");
    let error = folder.job("k")["error"].as_str().unwrap().to_owned();
    assert!(error.starts_with("exit code 1: ...") && error.ends_with("much\n\nthe end") && error.len() < 80, "{error}");
    assert_eq!(worker.stop().code, 0);
    assert!(echoed.join().unwrap() >= 6_000_000);
}

/// On a busy machine the limit may pass before the command has said anything: then another one has
/// its turn.
fn a_run_is_ended_at_its_limit(folder: Folder) {
    let worker = folder.worker(&["h", "--attempts", "1", "--limit", "1h"], "echo begun; touch said; sleep 1000");
    let has_said = |key: &str| {
        let begin = Instant::now();
        // The limit of a job counts, and not that of the worker.
        folder.ok(["put", "h", "--key", key, "--limit", "2s"]);
        until(|| folder.job(key)["state"] == "dead");
        assert!(begin.elapsed() >= Duration::from_secs(2));
        folder.path("said").exists()
    };
    let key = ["a", "b", "c", "d", "e"].into_iter().find(|key| has_said(key)).unwrap();
    assert_eq!(folder.job(key)["error"], "ended at the limit of 2 s: begun");
    drop(worker);
}

/// A script that leaves processes behind which ignore SIGTERM, and writes their numbers down.
const STUBBORN: &str = r#"trap '' TERM
    sh -c 'trap "" TERM; while :; do sleep 0.05; done' & echo $! > child
    sh -c 'trap "" TERM; while :; do sleep 0.05; done' & echo $! > other
    echo $$ > self.new; mv self.new self; "#;

fn none_lives(folder: &Folder) -> bool {
    ["self", "child", "other"].iter().all(|name| !lives(&folder.read(name)))
}

fn a_cancel_ends_the_whole_group(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--grace", "50ms"], &format!("{STUBBORN} wait; while :; do sleep 0.05; done"));
    folder.lines("self", 1);
    assert!(lives(&folder.read("child")));
    assert_eq!(folder.ok(["cancel", "k"]), "k: stopping\n");
    until(|| folder.job("k").is_null() && none_lives(&folder));
    let ended = worker.stop();
    assert!(ended.code == 0 && ended.err.contains("h k: cancelled after "), "{}", ended.err);
}

fn what_a_command_leaves_behind_ends_with_its_run(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--grace", "50ms"], &format!("{STUBBORN} exit 0"));
    until(|| !folder.read("self").is_empty() && folder.job("k").is_null());
    assert!(none_lives(&folder), "the run has ended after its group");
    drop(worker);
}

/// A process that has left the group and keeps the output open delays nothing.
fn a_process_that_leaves_the_group_holds_no_run(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder
        .worker(&["h"], "setsid sh -c 'echo $$ > away; exec sleep 1000' & while [ ! -s away ]; do sleep 0.01; done");
    until(|| !folder.read("away").is_empty() && folder.job("k").is_null());
    if let Some(away) = folder.read("away").trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(away, Signal::KILL);
    }
    drop(worker);
}

fn a_command_that_does_not_exist_is_told_at_once(folder: Folder) {
    for wrong in ["no-such-command-here", "./no-such-file", "/"] {
        let (code, said) = folder.fails(["worker", "h", "--exec", wrong]);
        assert!(code == 2 && said.contains("there is no command"), "{said}");
    }
    assert_eq!(folder.fails(["worker", "", "--exec", "true"]).0, 2);
    assert_eq!(folder.fails(["worker", "h", "--exec"]).0, 2);
}

fn a_stopped_worker_finishes_its_runs(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    folder.ok(["put", "h", "--key", "next"]);
    let worker = folder.worker(&["h"], "echo $$ >> begun; while [ ! -e go ]; do sleep 0.01; done");
    folder.lines("begun", 1);
    worker.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(500)); // until the signal is handled
    assert_eq!(folder.job("k")["state"], "running");
    std::fs::write(folder.path("go"), "").unwrap();
    let ended = worker.ended();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(folder.job("k").is_null());
    assert_eq!(folder.job("next")["state"], "waiting", "no further run has begun");
}

fn a_stopped_worker_puts_runs_back_after_its_limit(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--finish", "100ms", "--grace", "50ms"], &format!("{STUBBORN} wait; sleep 1000"));
    folder.lines("self", 1);
    let ended = worker.stop();
    assert!(ended.code == 6 && ended.err.contains("1 run was put back"), "{}", ended.err);
    assert!(none_lives(&folder));
    let job = folder.job("k");
    assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(0)), "the attempt does not count");
    // A second signal shortens the wait.
    std::fs::remove_file(folder.path("self")).unwrap();
    let worker =
        folder.worker(&["h", "--finish", "1h", "--grace", "50ms"], "echo $$ > self.new; mv self.new self; sleep 1000");
    folder.lines("self", 1);
    let ended = worker.stop_by_two();
    assert_eq!(ended.code, 6, "{}", ended.err);
    assert!(none_lives(&folder));
    assert_eq!(folder.job("k")["state"], "waiting");
}

fn runs_go_side_by_side_if_allowed(folder: Folder) {
    for key in ["a", "b", "c"] {
        folder.ok(["put", "h", "--key", key]);
    }
    // Each waits for the others.
    let worker =
        folder.worker(&["h", "--parallel", "3"], "echo x >> all; while [ $(wc -l < all) -lt 3 ]; do sleep 0.01; done");
    until(|| folder.json(["ls"]).is_empty());
    drop(worker);
    let worker = folder.worker(&["h"], "[ -e one ] && exit 65; touch one; sleep 0.05; rm one; echo x >> single");
    for n in 0..4 {
        folder.ok(["put", "h", "--key", &n.to_string()]);
    }
    folder.lines("single", 4);
    assert_eq!(worker.stop().code, 0);
    assert_eq!(folder.json(["dead"]).len(), 0);
}

fn the_log_is_json_on_request(folder: Folder) {
    folder.ok(["put", "h", "--key", "k"]);
    let worker = folder.worker(&["h", "--json", "--keep-finished", "1h"], "exit 0");
    until(|| folder.job("k")["state"] == "done");
    let ended = worker.stop();
    let line: Value = serde_json::from_str(ended.out.lines().next().unwrap()).unwrap();
    assert_eq!((&line["end"], &line["key"], &line["attempt"]), (&json!("done"), &json!("k"), &json!(1)));
    let shown = folder.ok(["show", "k"]);
    assert!(shown.contains("state     done") && shown.contains("\nnode      "), "{shown}");
    assert_eq!(folder.json(["show", "--id", "1"])[0]["key"], "k");
}

fn done_jobs_are_listed_and_their_keys_taken(folder: Folder) {
    let options = ["h", "other", "--keep-finished", "1h", "--keep-last", "3", "--remember-keys", "1h"];
    let worker = folder.worker(&options, "exit 0");
    for key in ["user/1", "user/2", "order/1"] {
        folder.ok(["put", "h", "--key", key]);
        until(|| folder.job(key)["state"] == "done");
    }
    folder.ok(["put", "other", "--key", "last"]);
    until(|| folder.job("last")["state"] == "done");
    let keys = |arguments: &[&str]| -> Vec<String> {
        let done = folder.json([&["ls", "--done"], arguments].concat());
        done.iter().map(|job| job["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&[]), ["last", "order/1", "user/2", "user/1"]);
    assert_eq!(keys(&["--handler", "h", "--prefix", "user/"]), ["user/2", "user/1"]);
    assert_eq!(keys(&["-n", "1"]), ["last"]);
    let table = folder.ok(["ls", "--done"]);
    assert!(table.lines().next().unwrap().contains("ENDED") && table.contains("order/1"), "{table}");
    assert_eq!(folder.fails(["ls", "--done", "--paused"]).0, 2);
    let (code, said) = folder.fails(["put", "h", "--key", "user/1"]);
    assert!(code == 3 && said.contains("job 1 has the key"), "{code}: {said}");
    assert_eq!(worker.stop().code, 0);
}

fn a_cron_job_runs_again_and_again(folder: Folder) {
    let worker = folder.worker(&["h"], "echo $TIMERQUEUE_NOMINAL >> ran");
    folder.ok(["cron", "h", "every 50ms", "--key", "k"]);
    let lines = folder.lines("ran", 3);
    let nominal: Vec<jiff::Timestamp> = lines.iter().map(|line| line.parse().unwrap()).collect();
    assert!(nominal.windows(2).all(|pair| pair[0] < pair[1]), "{lines:?}");
    folder.ok(["cancel", "k"]);
    drop(worker);
}

on_each_store! {
    a_command_gets_its_job_without_a_shell
    raw_payloads_are_texts
    exit_codes_say_what_becomes_of_the_job
    waits_between_attempts_come_from_a_list
    the_end_of_the_output_is_kept_up_to_a_limit
    a_run_is_ended_at_its_limit
    a_cancel_ends_the_whole_group
    what_a_command_leaves_behind_ends_with_its_run
    a_process_that_leaves_the_group_holds_no_run
    a_command_that_does_not_exist_is_told_at_once
    a_stopped_worker_finishes_its_runs
    a_stopped_worker_puts_runs_back_after_its_limit
    runs_go_side_by_side_if_allowed
    the_log_is_json_on_request
    done_jobs_are_listed_and_their_keys_taken
    a_cron_job_runs_again_and_again
}

/// Reports a skipped test past the test harness.
#[cfg(target_os = "linux")]
fn skip(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {why}");
}

/// The program is shown another time than the kernel's, as a user does to test a schedule.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_runs_jobs_under_libfaketime() {
    let library = ["x86_64-linux-gnu", "aarch64-linux-gnu", ""]
        .map(|arch| format!("/usr/lib/{arch}/faketime/libfaketime.so.1"))
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
    let Some(library) = library else {
        return skip("a_worker_runs_jobs_under_libfaketime", "libfaketime is not installed");
    };
    for (time, monotonic) in [("+1d", "1"), ("-1d", "1"), ("+1d", "0")] {
        let folder = Folder::new();
        let faked = |command: &mut std::process::Command| {
            command.env("LD_PRELOAD", &library).env("FAKETIME", time).env("FAKETIME_DONT_FAKE_MONOTONIC", monotonic);
        };
        let mut put = folder.command(["put", "h", "--in", "50ms"]);
        faked(&mut put);
        assert_eq!(crate::support::Ended::of(put.output().unwrap()).code, 0);
        let mut command = folder.command(["worker", "h", "--exec", "sh", "-c", "echo ran >> ran"]);
        faked(&mut command);
        let worker = crate::support::Worker(command.spawn().unwrap());
        folder.lines("ran", 1);
        assert_eq!(worker.stop().code, 0, "{time}, monotonic {monotonic}");
    }
}

/// A sandbox that refuses its calls late leaves the worker without timers: it says so, and ends.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_whose_timers_are_refused_ends_and_says_why() {
    const NAME: &str = "a_worker_whose_timers_are_refused_ends_and_says_why";
    let folder = Folder::new();
    let begins = folder.command(["worker", "h", "--exec", "true"]);
    let traced = |inject: &[&str]| {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=epoll_wait"]).args(inject);
        strace.current_dir(folder.path("")).envs(begins.get_envs().filter_map(|(key, value)| Some((key, value?))));
        strace.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        strace.stderr(std::process::Stdio::piped());
        strace
    };
    if !traced(&[]).arg("true").status().is_ok_and(|status| status.success()) {
        return skip(NAME, "no strace that may trace a program");
    }
    // From the fourth call of a thread on. The jobs give it something to wait for.
    for i in 0..20 {
        folder.ok(["put", "h", "--in", &format!("{}ms", 25 * i)]);
    }
    let mut command = traced(&["-e", "inject=epoll_wait:error=EPERM:when=4+"]);
    command.arg(begins.get_program()).args(begins.get_args());
    let mut worker = crate::support::Worker(command.spawn().unwrap());
    until(|| worker.0.try_wait().unwrap().is_some());
    let ended = worker.ended();
    assert_eq!(ended.code, 6, "{}", ended.err);
    assert!(ended.err.contains("refuses a call") && ended.err.contains("runtime has ended"), "{}", ended.err);
}
