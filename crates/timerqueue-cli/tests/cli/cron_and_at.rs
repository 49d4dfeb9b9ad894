//! What users of cron and at look for.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Ended, Folder, until};

/// The program with this standard input.
fn with_input(folder: &Folder, arguments: &[&str], input: &str) -> Ended {
    let mut command = folder.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Ended::of(child.wait_with_output().unwrap())
}

fn keys(folder: &Folder, arguments: &[&str]) -> Vec<String> {
    let jobs = folder.json([&["ls"], arguments].concat());
    jobs.iter().map(|job| job["key"].as_str().unwrap().to_owned()).collect()
}

fn many_jobs_are_put_in_one_call(folder: Folder) {
    let texts: String = (0..2_500).map(|n| format!("user {n}\n")).collect();
    let said = with_input(&folder, &["put", "mail", "--each", "text", "--in", "1h"], &texts);
    assert_eq!((said.code, &*said.out), (0, "2500 jobs put\n"), "{}", said.err);
    let jobs = folder.json(["ls", "--handler", "mail"]);
    assert_eq!(jobs.len(), 2_500);
    assert!(jobs.iter().any(|job| job["payload"] == "user 2499"));

    let lines = "{\"payload\":[1],\"key\":\"a\",\"in\":\"2h\"}\r\n\n{\"key\":\"b\",\"at\":\"2027-01-02\"}\nno json\n\
                 {\"key\":\"a\"}\n{\"kye\":1}\n{\"key\":\"c\",\"in\":\"1h\",\"at\":\"noon\"}\n{\"key\":\"d\"}";
    let said = with_input(&folder, &["put", "h", "--each", "job", "--in", "5m"], lines);
    assert_eq!((said.code, &*said.out), (3, "3 jobs put\n"), "{}", said.err);
    for wrong in ["line 4: ", "line 5: job ", "line 6: unknown field `kye`", "line 7: "] {
        assert!(said.err.contains(wrong), "{wrong}: {}", said.err);
    }
    assert_eq!((&folder.job("a")["payload"], &folder.job("d")["payload"]), (&json!([1]), &Value::Null));
    assert_eq!(folder.job("b")["due"], "2027-01-02T00:00:00Z");
    let again = with_input(&folder, &["--json", "put", "h", "--each", "job", "--keep"], "{\"key\":\"a\"}\n");
    assert!(again.code == 0 && again.out.contains("\"kept\""), "{again:?}");
    assert_eq!(with_input(&folder, &["put", "h", "--each", "json"], "").out, "0 jobs put\n");
    let batch = "{\"key\":\"m\"}\n{\"key\":\"n\"}\n{\"key\":\"end\",\"after\":[\"m\",\"n\"]}\n";
    let said = with_input(&folder, &["put", "h", "--each", "job", "--until", "all-ended"], batch);
    assert_eq!((said.code, &folder.job("end")["predecessors"][1]["key"]), (0, &json!("n")), "{}", said.err);
}

fn times_are_told_as_for_at(folder: Folder) {
    for (at, key) in [("now + 2 hours", "a"), ("noon tomorrow", "b"), ("midnight", "c")] {
        folder.ok(["put", "h", "--key", key, "--at", at]);
    }
    assert!(folder.job("b")["due"].as_str().unwrap().ends_with("T12:00:00Z"));
    assert!(folder.job("c")["due"].as_str().unwrap().ends_with("T00:00:00Z"));
    let shown = folder.ok(["show", "a"]);
    assert!(shown.contains("(in 1h 59m)") || shown.contains("(in 2h 0m)"), "{shown}");
    folder.ok(["move", "a", "--at", "monday"]);
    assert_eq!(folder.fails(["put", "h", "--at", "noon noon"]).0, 2);
}

fn jobs_are_cancelled_by_the_begin_of_their_keys(folder: Folder) {
    for key in ["a/1", "a/2", "b/1"] {
        folder.ok(["put", "h", "--key", key, "--in", "1h"]);
    }
    folder.ok(["put", "other", "--key", "a/3", "--in", "1h"]);
    folder.ok(["cron", "h", "@daily", "--key", "a/daily"]);
    let said = folder.ok(["cancel", "--prefix", "a/", "--handler", "h"]);
    assert_eq!(said, "a/1: cancelled\na/2: cancelled\na/daily: cancelled\n");
    let mut left = keys(&folder, &[]);
    left.sort();
    assert_eq!(left, ["a/3", "b/1"]);
    assert_eq!(folder.fails(["cancel", "--prefix", "a/", "--handler", "h"]).0, 1);
    assert_eq!(folder.json(["cancel", "-p", "a"])[0], json!({"key": "a/3", "outcome": "cancelled"}));
}

fn dead_jobs_are_chosen_by_age(folder: Folder) {
    for key in ["a", "b"] {
        folder.ok(["put", "h", "--key", key]);
    }
    let worker = folder.worker(&["h"], "exit 65");
    until(|| folder.json(["dead"]).len() == 2);
    worker.stop();
    let dead = |age: &[&str]| folder.json([&["dead"], age].concat()).len();
    assert_eq!((dead(&["--older", "1h"]), dead(&["--newer", "1h"]), dead(&["--older", "0s"])), (0, 2, 2));
    assert_eq!(folder.ok(["dead", "--discard", "--all", "--older", "1h"]), "");
    assert_eq!(folder.ok(["retry", "--all", "--older", "1h"]), "");
    assert_eq!(folder.fails(["retry", "a", "--older", "1h"]).0, 2);
    assert_eq!(folder.fails(["dead", "--discard", "--id", "1", "--newer", "1h"]).0, 2);
    assert_eq!(folder.ok(["retry", "--all", "--newer", "1h"]).lines().count(), 2);
    assert_eq!(dead(&[]), 0);
}

fn a_crontab_is_imported(folder: Folder) {
    std::fs::create_dir(folder.path("home")).unwrap();
    let home = folder.path("home");
    let crontab = |time: &str| {
        format!(
            "MAILTO=ann\nHOME={}\nGREETING='it is'\nCRON_TZ=Europe/Berlin\n{time} * * * echo \"$GREETING\" $(cat) 100\\% > out%one%two\n\
             61 * * * * wrong\n@reboot touch boot\n",
            home.display()
        )
    };
    let planned = with_input(&folder, &["import-crontab", "-", "--dry-run"], &crontab("30 2"));
    assert!(planned.code == 3 && planned.out.contains("line 5: crontab/echo-"), "{planned:?}");
    assert!(planned.err.contains("line 1: MAILTO") && planned.err.contains("line 6 is left out: "), "{planned:?}");
    let said = with_input(&folder, &["import-crontab", "-"], &crontab("30 2"));
    assert!(said.out.contains("line 7: job ") && said.out.contains("after each start of the machine"), "{said:?}");
    let jobs = keys(&folder, &["--state", "recurring"]);
    assert_eq!(jobs.len(), 2);
    let echo = jobs.iter().find(|key| key.starts_with("crontab/echo-")).unwrap();
    let job = folder.job(echo);
    assert_eq!(job["recurring"]["schedule"], json!({"cron": "30 2 * * *", "zone": "Europe/Berlin"}));
    assert_eq!((&job["recurring"]["catchup"], &job["recurring"]["overlap"]), (&json!("skip"), &json!("allow")));
    assert!(folder.ok(["show", jobs.iter().find(|key| key.contains("touch")).unwrap()]).contains("@reboot"));

    // Another time is a change, a line that is gone is cancelled, and others stay.
    folder.ok(["cron", "sh", "@daily", "--key", "mine"]);
    with_input(&folder, &["import-crontab", "-"], &crontab("45 3"));
    assert_eq!((folder.job(echo)["id"].clone(), keys(&folder, &[]).len()), (job["id"].clone(), 3));
    assert_eq!(folder.job(echo)["recurring"]["schedule"]["cron"], "45 3 * * *");
    let pruned = with_input(&folder, &["import-crontab", "-", "--prune"], "# none\n@yearly true\n");
    assert!(pruned.out.contains(&format!("{echo}: cancelled")), "{pruned:?}");
    assert_eq!(keys(&folder, &["--prefix", "crontab/"]).len(), 1);
    with_input(&folder, &["import-crontab", "-"], &crontab("45 3"));

    // The script does what the line does.
    folder.ok(["run", echo]);
    let mut command = folder.command(["worker", "sh", "--raw", "--exec", "sh"]);
    let worker = crate::support::Worker(command.stderr(Stdio::piped()).spawn().unwrap());
    let out = || std::fs::read_to_string(home.join("out")).unwrap_or_default();
    until(|| out().ends_with('\n'));
    assert_eq!(out(), "it is one two 100%\n");
    worker.stop();
    assert!(!home.join("boot").exists(), "the machine has started before");
}

fn outputs_are_kept_and_mailed(folder: Folder) {
    std::fs::create_dir(folder.path("kept")).unwrap();
    std::fs::write(folder.path("mail"), "#!/bin/sh\ncat >> mails\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path("mail"), executable).unwrap();
    for (key, script) in [("a b", "echo fine"), ("silent", "true"), ("fails", "echo oh; exit 3")] {
        folder.ok(["put", "h", "--key", key, "--text", script]);
    }
    let options =
        ["h", "--raw", "--attempts", "1", "--output", "kept", "--mail-to", "ann@example.com", "--mailer", "./mail"];
    let worker = folder.worker(&options, "sh");
    until(|| folder.json(["dead"]).len() == 1 && folder.json(["ls"]).len() == 1);
    let said = worker.stop();
    let mails = folder.read("mails");
    assert_eq!(mails.matches("To: ann@example.com\n").count(), 2, "{mails}{}", said.err);
    assert!(
        mails.contains("Subject: timerqueue: a b (h), attempt 1: done\n") && mails.contains("\n\nfine\n"),
        "{mails}"
    );
    assert!(mails.contains("(h), attempt 1: exit code 3\n") && mails.contains("\n\noh\n"), "{mails}");
    assert_eq!(folder.read("kept/a_b.1.1"), "fine\n");
    assert_eq!(folder.read("kept/fails.3.1"), "oh\n");
    let folder_of_none = ["worker", "h", "--output", "none", "--exec", "true"];
    assert_eq!(folder.fails(folder_of_none).0, 2);
    assert_eq!(folder.fails(["worker", "h", "--mail-to", "a", "--mailer", "./none", "--exec", "true"]).0, 2);
}

on_each_store! {
    many_jobs_are_put_in_one_call
    times_are_told_as_for_at
    jobs_are_cancelled_by_the_begin_of_their_keys
    dead_jobs_are_chosen_by_age
    a_crontab_is_imported
    outputs_are_kept_and_mailed
}

#[test]
fn the_manual_is_written() {
    let folder = Folder::new();
    assert!(folder.ok(["man", "put"]).contains(".TH timerqueue-put 1"));
    std::fs::create_dir(folder.path("man1")).unwrap();
    folder.ok(["man", "--all", "man1"]);
    assert!(folder.read("man1/timerqueue.1").contains("TIMERQUEUE_STORE"));
    assert!(folder.read("man1/timerqueue-import-crontab.1").contains("prune"));
    assert_eq!(folder.fails(["man", "nonsense"]).0, 2);
    assert_eq!(folder.fails(["man", "--all", "nowhere"]).0, 4);
}

/// A worker that has put runs back has done what it was told: systemd takes it so.
#[test]
fn the_unit_of_the_readme_ends_well() {
    let readme = include_str!("../../README.md");
    let unit = readme.split("```ini").nth(1).unwrap().split("```").next().unwrap();
    assert!(unit.contains("\nSuccessExitStatus=6\n"), "{unit}");
    assert!(readme.contains("| 6 | the worker was stopped, and has put runs back"));
}
