//! Jobs: put, listed, shown, changed.

use std::io::Write;
use std::process::Stdio;
use std::time::SystemTime;

use serde_json::{Value, json};
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::SqliteStore;
use timerqueue_scheduler::{Returned, Run, Scheduler};

use crate::support::{Ended, Folder, Worker, until};

fn a_job_is_put_and_shown(folder: Folder) {
    let said = folder.ok(["put", "mail", r#"{"to":"ann"}"#, "--key", "a", "--in", "5m", "--group", "account-7"]);
    assert!(said.starts_with("job 1 added, key a, due "), "{said}");
    let job = folder.job("a");
    assert_eq!(
        (&job["handler"], &job["state"], &job["payload"]),
        (&json!("mail"), &json!("waiting"), &json!({"to": "ann"}))
    );
    let shown = folder.ok(["show", "--id", "1"]);
    assert!(shown.contains("key       a") && shown.contains("(in 4m"), "{shown}");
    assert!(job["group"] == "account-7" && shown.contains("group     account-7"), "{shown}");
    assert!(shown.contains("mail (no worker"), "a name that is mistyped is seen: {shown}");
    assert_eq!(folder.fails(["show", "b"]).0, 1);
    assert_eq!(folder.fails(["show", "--id", "2"]).0, 1);
}

fn payloads_are_json_text_or_standard_input(folder: Folder) {
    folder.ok(["put", "h", "--key", "none"]);
    folder.ok(["put", "h", "--key", "text", "--text", "--it's \"quoted\"\n"]);
    let mut child = folder.command(["put", "h", "--key", "in", "--stdin"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b" [1, 2.50]\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(folder.job("none")["payload"], Value::Null);
    assert_eq!(folder.job("text")["payload"], json!("--it's \"quoted\"\n"));
    // The text of the number is kept.
    assert!(folder.ok(["--json", "show", "in"]).contains(r#""payload":[1, 2.50]"#));
    for wrong in [&["put", "h", "{"][..], &["put", "h", "hello"], &["put", "", "1"], &["put", "h", "1", "--key", ""]] {
        assert_eq!(folder.fails(wrong).0, 2, "{wrong:?}");
    }
    let large = serde_json::to_string(&"x".repeat(300 << 10)).unwrap();
    let mut child =
        folder.command(["put", "h", "--stdin"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(large.as_bytes()).unwrap();
    assert_eq!(Ended::of(child.wait_with_output().unwrap()).code, 2);
}

fn a_taken_key_is_refused_kept_or_replaced(folder: Folder) {
    folder.ok(["put", "h", "1", "--key", "k", "--in", "1h"]);
    let (code, said) = folder.fails(["put", "h", "2", "--key", "k"]);
    assert!(code == 3 && said.contains("job 1 has the key k"), "{said}");
    assert_eq!(folder.json(["put", "h", "2", "--key", "k", "--keep"])[0]["outcome"], "kept");
    assert_eq!(folder.job("k")["payload"], 1);
    assert_eq!(folder.json(["put", "h", "2", "--key", "k", "--in", "1h", "--replace"])[0]["outcome"], "replaced");
    assert_eq!(folder.job("k")["payload"], 2);
}

fn due_times_are_of_their_zone(folder: Folder) {
    let due = |arguments: &[&str]| {
        let all = [&["put", "h", "--key", "k", "--replace"], arguments].concat();
        folder.ok(all);
        folder.job("k")["due"].as_str().unwrap().to_owned()
    };
    assert_eq!(due(&["--at", "2099-12-24T18:00", "--zone", "Europe/Berlin"]), "2099-12-24T17:00:00Z");
    assert_eq!(due(&["--at", "2099-12-24T18:00"]), "2099-12-24T18:00:00Z");
    assert_eq!(due(&["--at", "2099-12-24T18:00:00+05:30"]), "2099-12-24T12:30:00Z");
    let last =
        ["--at", "2099-12-24T18:00", "--expires-at", "2099-12-24T19:00", "--zone", "Europe/Berlin", "--priority=-3"];
    folder.ok([&["put", "h", "--key", "last"][..], &last].concat());
    let job = folder.job("last");
    assert_eq!((&job["priority"], &job["expires"]), (&json!(-3), &json!("2099-12-24T18:00:00Z")));
    let shown = folder.ok(["show", "last"]);
    assert!(shown.contains("\npriority  -3\n") && shown.contains("\nexpires "), "{shown}");
    let past = ["put", "h", "--at", "2020-01-01T00:00"];
    assert_eq!(folder.fails(past.iter().chain(&["--refuse-overdue"])).0, 3);
    assert!(folder.ok(past).contains("due now"));
    for wrong in [&["--at", "soon"][..], &["--in", "5"], &["--in", "-5m"], &["--at", "18:00", "--zone", "No/Where"]] {
        assert_eq!(folder.fails([&["put", "h"], wrong].concat()).0, 2, "{wrong:?}");
    }
}

fn a_job_waits_for_others(folder: Folder) {
    folder.ok(["put", "h", "--key", "a", "--in", "1h"]);
    folder.ok(["put", "h", "--key", "b", "--in", "1h"]);
    folder.ok(["put", "h", "--key", "end", "--after", "a", "--after", "b", "--until", "all-ended"]);
    let job = folder.job("end");
    assert_eq!((&job["state"], &job["until"]), (&json!("queued"), &json!("all_ended")));
    assert_eq!((&job["predecessors"][0]["key"], &job["predecessors"][1]["end"]), (&json!("a"), &Value::Null));
    folder.ok(["cancel", "a"]);
    let shown = folder.ok(["show", "end"]);
    assert!(
        shown.contains("until all of these have ended")
            && shown.contains(": cancelled")
            && shown.contains(": has not ended"),
        "{shown}"
    );
    folder.ok(["cancel", "b"]);
    assert_eq!(folder.job("end")["state"], "waiting");
    for (key, why) in [("nobody", "no job"), ("a", "no job")] {
        let (code, said) = folder.fails(["put", "h", "--after", "end", "--after", key]);
        assert!(code == 3 && said.contains("number 2") && said.contains(why), "{said}");
    }
    let (code, said) = folder.fails(["put", "h", "--key", "x", "--after", "x"]);
    assert!(code != 0 && said.contains("its own key"), "{said}");
}

fn a_cron_line_is_shown_with_its_next_five_runs(folder: Folder) {
    let said = folder.ok(["cron", "backup", "30 2 * * *", "--zone", "Europe/Berlin", "--key", "b"]);
    let runs: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(runs.len(), 5, "{said}");
    assert!(runs.iter().all(|run| run.contains(" 02:30:00 +0") && run.contains("Europe/Berlin")), "{said}");
    let job = folder.job("b");
    assert_eq!(job["recurring"]["schedule"], json!({"cron": "30 2 * * *", "zone": "Europe/Berlin"}));
    assert_eq!(job["next"].as_array().unwrap().len(), 5);
    // On a server, a node that has the handler computes the first occurrence.
    assert!(job["next"][0] == job["due"] || folder.is_server() && job["due"].is_null(), "{job}");
    folder.ok(["cron", "poll", "every 10s", "--key", "p", "--catchup", "all=3", "--overlap", "queue", "--grace", "1m"]);
    folder.ok(["cron", "poll", "every 1h", "--key", "e", "--priority", "9", "--expires-after", "5m"]);
    assert_eq!(folder.job("e")["expires_after_seconds"], json!(300.0));
    folder.ok([
        "cron",
        "pay",
        "every 1h",
        "--key",
        "t",
        "--at-most-once",
        "--attempts",
        "3",
        "--limit",
        "90s",
        "--unique-for",
        "1h",
    ]);
    let job = folder.job("t");
    assert_eq!(
        (&job["at_most_once"], &job["most_attempts"], &job["limit_seconds"]),
        (&json!(true), &json!(3), &json!(90.0))
    );
    assert_eq!(job["unique_for_seconds"], json!(3_600.0));
    let shown = folder.ok(["show", "t"]);
    assert!(shown.contains("0 of 3, begun at most once\n") && shown.contains("\nlimit "), "{shown}");
    assert_eq!(folder.fails(["put", "h", "--attempts", "0"]).0, 2);
    let rules = &folder.job("p")["recurring"];
    assert_eq!(
        (&rules["catchup"], &rules["overlap"], &rules["grace_seconds"]),
        (&json!({"run_all": 3}), &json!("queue_one"), &json!(60.0))
    );
    assert!(folder.ok(["cron", "rest", "after 1m"]).contains("after the end of each run"));
    assert_eq!(folder.fails(["cron", "backup", "@daily", "--key", "b"]).0, 3);
    for wrong in [
        &["0 0 30 2 *"][..],
        &["nonsense"],
        &["every 5"],
        &["@daily", "--zone", "No/Where"],
        &["every 5m", "--zone", "UTC"],
    ] {
        assert_eq!(folder.fails([&["cron", "h"], wrong].concat()).0, 2, "{wrong:?}");
    }
}

fn next_runs_are_those_that_come(folder: Folder) {
    folder.ok(["cron", "h", "after 1h", "--key", "rest"]);
    let worker = folder.worker(&["h"], "echo x >> ran");
    folder.lines("ran", 1);
    until(|| folder.job("rest")["due"].is_string() && folder.job("rest")["tally"]["runs"] == 1);
    assert_eq!(worker.stop().code, 0);
    let job = folder.job("rest");
    assert_eq!(job["next"], json!([job["due"]]), "in an hour, and not at once");
    folder.ok(["pause", "rest"]);
    assert_eq!(folder.job("rest")["next"], json!([]));
}

fn a_schedule_that_is_stated_again_goes_on(folder: Folder) {
    let cron = |line: &str, how: &str| folder.json(["cron", "h", line, "--key", "k", how]).remove(0);
    let first = cron("0 3 * * *", "--update");
    assert_eq!(first["outcome"], "added");
    for (line, how, outcome) in [
        ("0 3 * * *", "--update", "kept"),
        ("0 3 * * *", "--replace", "kept"),
        ("0 4 * * *", "--update", "updated"),
        ("0 4 * * *", "--keep", "kept"),
    ] {
        let again = cron(line, how);
        assert_eq!((&again["outcome"], &again["id"]), (&json!(outcome), &first["id"]), "{line} {how}");
        assert_eq!(again["next"].is_array(), how != "--keep", "{again}");
    }
    assert_eq!(cron("0 5 * * *", "--replace")["outcome"], "replaced");
    let said = folder.ok(["move", "k", "--realign"]);
    assert!(said.contains("goes on from now") && said.lines().count() == 6, "{said}");
    assert_eq!(folder.fails(["move", "none", "--realign"]).0, 1);
    assert_eq!(folder.json(["stats"])[0]["ahead"], 0);
}

/// The clock was an hour and a half ahead when a schedule was looked at: as its cursor tells.
#[test]
fn a_schedule_that_waits_behind_a_clock_says_so_and_is_set_right() {
    let folder = Folder::new();
    folder.ok(["cron", "h", "* * * * *", "--zone", "UTC", "--key", "k"]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as i64;
    let (last, next) = (now + 5_400_000_000, now + 5_460_000_000);
    let db = Connection::open(folder.path("jobs.db")).unwrap();
    let cursor = "UPDATE timerqueue_jobs SET wake = ?2, earliest = ?1 - 10800000000, recurring = \
                  json_set(recurring, '$.next', json_array(?2, ?2), '$.last_nominal', ?1)";
    db.execute(cursor, [last, next]).unwrap();
    assert!(folder.ok(["show", "k"]).contains("move k --realign"));
    assert_eq!(folder.job("k")["ahead"], true);
    for tells in ["stats", "check"] {
        assert!(folder.ok([tells]).contains("1 schedules wait behind a clock"), "{tells}");
        assert_eq!(folder.json([tells])[0]["ahead"], 1);
    }
    folder.ok(["move", "k", "--realign"]);
    assert_eq!(folder.json(["stats"])[0]["ahead"], 0);
    let worker = folder.worker(&["h"], "exit 0");
    let due = || folder.job("k")["due"].as_str().map(|due| due.parse::<jiff::Timestamp>().unwrap());
    until(|| due().is_some_and(|due| due.as_microsecond() <= now + 120_000_000));
    assert_eq!(worker.stop().code, 0);
}

#[test]
fn a_zone_of_the_system_without_a_name_is_an_error_that_asks_for_one() {
    let folder = Folder::new();
    let in_zone =
        |zone: &str, arguments: &[&str]| Ended::of(folder.command(arguments).env("TZ", zone).output().unwrap());
    let cron = ["cron", "h", "0 9 * * *", "--dry-run"];
    assert_eq!((in_zone("", &cron).code, in_zone("Europe/Berlin", &cron).code), (0, 0));
    let mut zones = vec![
        "CET-1CEST,M3.5.0,M10.5.0/3".to_owned(),
        "CET-1CEST".to_owned(),
        "UTC0".to_owned(),
        "Mars/Base".to_owned(),
        "localtime".to_owned(),
    ];
    // A copy, as /etc/localtime is in a container.
    let copy = folder.path("copy");
    if std::fs::copy("/usr/share/zoneinfo/Europe/Berlin", &copy).is_ok() {
        zones.push(copy.to_str().unwrap().to_owned());
    }
    for zone in &zones {
        let ended = in_zone(zone, &cron);
        assert!(ended.code == 2 && !ended.out.contains("next runs"), "{zone}: {ended:?}");
        assert!(ended.err.contains("zone"), "{zone}: {ended:?}");
        assert_eq!(in_zone(zone, &[&cron[..], &["--zone", "UTC"]].concat()).code, 0, "{zone}");
    }
    // A due time is no matter of names, as long as the zone can be read.
    let put = |zone: &str| in_zone(zone, &["put", "h", "--at", "2099-12-24T18:00", "--json"]);
    let rule = put("CET-1CEST,M3.5.0,M10.5.0/3");
    assert!(rule.out.contains("2099-12-24T17:00:00Z"), "{rule:?}");
    assert!(put("Mars/Base").code == 2 && put("Mars/Base").err.contains("--zone"), "{:?}", put("Mars/Base"));
}

#[test]
fn a_schedule_may_name_its_zone_or_be_json() {
    let folder = Folder::new();
    let shown = |zone: &str, schedule: &str| {
        let mut command = folder.command(["cron", "h", schedule, "--dry-run", "--json"]);
        let ended = Ended::of(command.env("TZ", zone).output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        serde_json::from_str::<Value>(&ended.out).unwrap()["schedule"].clone()
    };
    // The zone of the system plays no part.
    let berlin = json!({"cron": "30 2 * * *", "zone": "Europe/Berlin"});
    assert_eq!(shown("CET-1", "CRON_TZ=Europe/Berlin 30 2 * * *"), berlin);
    let union = json!({"any": [{"cron": "0 8 * * *", "except": ["12-25"]}, {"every": "3600s"}]});
    assert_eq!(shown("CET-1", &union.to_string()), union);
    assert_eq!(folder.fails(["cron", "h", "CRON_TZ=UTC @daily", "--zone", "Europe/Berlin"]).0, 2);
    assert_eq!(folder.fails(["cron", "h", &union.to_string(), "--zone", "UTC"]).0, 2);
    assert_eq!(folder.fails(["cron", "h", "{"]).0, 2);
    folder.ok(["cron", "h", &union.to_string(), "--key", "u"]);
    assert!(folder.ok(["show", "u"]).contains("at 08:00, without 12-25; every 1 h"));
}

#[test]
fn an_error_shows_the_place_in_a_cron_line_and_no_control_characters() {
    let folder = Folder::new();
    let (code, said) = folder.fails(["cron", "h", "0 24 * * *"]);
    let sentence = "timerqueue: invalid cron line: hour \"24\" is not in 0-23\n  0 24 * * *\n    ^^\n";
    assert!(code == 2 && said.starts_with(sentence), "{said}");
    let red = "\u{1b}[31m";
    for arguments in [
        &["cron", "h", &format!("{red} * * * *")][..],
        &["cron", "h", &format!("@{red}")],
        &["cron", "h", "@daily", "--zone", red],
        &["cron", "h", &format!("every {red}")],
        &["put", "h", "--at", red],
        &["put", "h", "--at", "18:00", "--zone", red],
        &["put", red, "{"],
        &["put", &red.repeat(500)],
        &["cancel", red],
        &["--store", &format!("{red}/no.db"), "ls"],
        &[red],
    ] {
        let (_, said) = folder.fails(arguments);
        assert!(!said.replace('\n', "").contains(char::is_control), "{arguments:?}: {said:?}");
    }
}

#[test]
fn a_dry_run_needs_no_file() {
    let folder = Folder::new();
    let mut command = folder.command(["cron", "h", "0 8 * * MON-FRI", "--dry-run", "--json"]);
    let ended = Ended::of(command.env_remove("TIMERQUEUE_STORE").output().unwrap());
    let shown: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(shown["next"].as_array().unwrap().len(), 5);
    assert!(!folder.path("jobs.db").exists());
}

fn lists_are_filtered(folder: Folder) {
    for (key, handler, due) in [("a/1", "x", "1s"), ("a/2", "y", "2h"), ("b/1", "x", "2h"), ("b/2", "y", "1h")] {
        folder.ok(["put", handler, "--key", key, "--in", due]);
    }
    folder.ok(["cron", "x", "0 0 29 2 *", "--zone", "UTC", "--key", "b/3"]);
    folder.ok(["pause", "b/1"]);
    let keys = |arguments: &[&str]| -> Vec<String> {
        let listed = folder.json([&["ls"], arguments].concat());
        listed.iter().map(|job| job["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&[]), ["a/1", "b/2", "a/2", "b/1", "b/3"], "what is due first");
    assert_eq!(keys(&["--handler", "x"]), ["a/1", "b/1", "b/3"]);
    assert_eq!(keys(&["--prefix", "b/"]), ["b/2", "b/1", "b/3"]);
    assert_eq!(keys(&["-n", "2"]), ["a/1", "b/2"]);
    assert_eq!(keys(&["--due-within", "90m"]), ["a/1", "b/2"]);
    assert_eq!(keys(&["--state", "recurring"]), ["b/3"]);
    assert_eq!(keys(&["-s", "recurring", "-s", "dead"]), ["b/3"]);
    assert_eq!(keys(&["--due-within", "90m", "--state", "waiting"]), ["a/1", "b/2"]);
    assert_eq!(keys(&["--paused"]), ["b/1"]);
    assert_eq!(keys(&["--after", "2", "-n", "2"]), ["b/1", "b/2"]);
    assert_eq!(keys(&["-n", "0"]), [""; 0]);
    let table = folder.ok(["ls"]);
    assert!(table.lines().count() == 6 && table.contains("paused"), "{table}");
    let stats = &folder.json(["stats"])[0]["handlers"];
    assert_eq!(
        (&stats[0]["handler"], &stats[0]["waiting"], &stats[0]["recurring"]),
        (&json!("x"), &json!(2), &json!(1))
    );
    assert!(folder.ok(["stats"]).contains("RECURRING"));
}

fn hostile_names_do_not_control_the_terminal(folder: Folder) {
    folder.ok(["put", "h\x1b[2J", "--key", "k\x1b]0;title\x07\n", "--text", "\x1b[31m", "--in", "1h"]);
    for command in [&["ls"][..], &["show", "--id", "1"], &["stats"]] {
        let said = folder.ok(command);
        assert!(!said.contains(['\x1b', '\x07']), "{said:?}");
    }
    assert_eq!(folder.json(["ls"])[0]["key"], "k\x1b]0;title\x07\n");
}

fn jobs_are_edited(folder: Folder) {
    folder.ok(["put", "h", "1", "--key", "k", "--at", "2099-01-01T00:00:00Z"]);
    folder.ok(["cron", "h", "@daily", "--zone", "UTC", "--key", "daily"]);
    let id = folder.job("k")["id"].clone();
    assert_eq!(folder.ok(["edit", "k", "{\"to\": 1.50}", "--priority", "-3"]), "k: changed\n");
    let job = folder.job("k");
    assert_eq!((&job["id"], &job["payload"], &job["priority"]), (&id, &json!({"to": 1.50}), &json!(-3)));
    assert_eq!(job["due"], "2099-01-01T00:00:00Z");
    folder.ok(["edit", "k", "--text", "x", "--at", "2098-01-01", "--zone", "UTC", "--priority", "0"]);
    let job = folder.job("k");
    assert_eq!(
        (&job["payload"], &job["due"], job.get("priority")),
        (&json!("x"), &json!("2098-01-01T00:00:00Z"), None)
    );
    assert!(folder.ok(["show", "k"]).contains("\nput       20"), "{}", folder.ok(["show", "k"]));
    let terms =
        ["--attempts", "3", "--limit", "90s", "--unique-for", "1h", "--keep-for", "2h", "--at-most-once", "true"];
    folder.ok([&["edit", "k", "--expires-after", "1m"][..], &terms].concat());
    let job = folder.job("k");
    let of = |names: [&str; 5]| names.map(|name| job[name].clone());
    let names = ["most_attempts", "limit_seconds", "unique_for_seconds", "kept_for_seconds", "at_most_once"];
    assert_eq!(of(names), [json!(3), json!(90.0), json!(3_600.0), json!(7_200.0), json!(true)]);
    assert_eq!((&job["expires"], &job["payload"]), (&json!("2098-01-01T00:01:00Z"), &json!("x")));
    let terms = ["--attempts", "none", "--limit", "none", "--unique-for", "none", "--at-most-once", "false"];
    folder.ok([&["edit", "k", "--expires-after", "none"][..], &terms].concat());
    let job = folder.job("k");
    assert!(names[..3].iter().chain(&["expires", "at_most_once"]).all(|name| job[name].is_null()), "{job}");
    assert_eq!(job["kept_for_seconds"], 7_200.0);
    folder.ok(["edit", "k", "--expires-at", "2098-01-02"]);
    assert_eq!(folder.job("k")["expires"], "2098-01-02T00:00:00Z");
    folder.ok(["edit", "daily", "2", "--attempts", "7"]);
    assert_eq!(folder.job("daily")["most_attempts"], 7);
    assert_eq!(folder.job("daily")["payload"], json!(2));
    for (arguments, code) in [
        (&["edit", "k"][..], 2),
        (&["edit", "k", "{"], 2),
        (&["edit", "k", "--attempts", "0"], 2),
        (&["edit", "daily", "--expires-at", "2098-01-02"], 2),
        (&["edit", "k", "--priority", "10"], 2),
        (&["edit", "none", "1"], 1),
        (&["edit", "daily", "--in", "1h"], 3),
    ] {
        assert_eq!(folder.fails(arguments).0, code, "{arguments:?}");
    }
    assert_eq!(folder.job("k")["payload"], json!("x"));
}

fn jobs_are_cancelled_and_moved(folder: Folder) {
    for key in ["a", "b", "c"] {
        folder.ok(["put", "h", "--key", key, "--in", "1h"]);
    }
    folder.ok(["cron", "h", "@daily", "--zone", "UTC", "--key", "daily"]);
    assert_eq!(folder.ok(["cancel", "a"]), "a: cancelled\n");
    // The others are cancelled all the same.
    let ended = folder.run(["cancel", "a", "b"]);
    assert_eq!((ended.code, ended.out.as_str()), (1, "b: cancelled\n"));
    assert_eq!(folder.job("b"), Value::Null);
    folder.ok(["move", "c", "--at", "2099-01-01T00:00"]);
    assert_eq!(folder.job("c")["due"], "2099-01-01T00:00:00Z");
    assert_eq!(folder.fails(["move", "daily", "--in", "1h"]).0, 3);
    assert_eq!(folder.fails(["move", "c", "--schedule", "@hourly"]).0, 3);
    assert_eq!(folder.fails(["move", "a", "--in", "1h"]).0, 1);
    assert_eq!(folder.fails(["move", "c", "--in", "1h", "--zone", "UTC"]).0, 2);
    let said = folder.ok(["move", "daily", "--schedule", "0 3 * * *", "--zone", "UTC"]);
    assert_eq!(said.matches("03:00:00").count(), 5, "{said}");
    assert_eq!(folder.job("daily")["recurring"]["schedule"]["cron"], "0 3 * * *");
}

fn paused_jobs_and_handlers_wait(folder: Folder) {
    folder.ok(["put", "h", "--key", "a", "--in", "1h"]);
    folder.ok(["put", "i", "--key", "b"]);
    folder.ok(["pause", "a"]);
    folder.ok(["pause", "--handler", "i"]);
    assert_eq!(folder.job("a")["paused"], true);
    assert_eq!(folder.json(["stats"])[0]["handlers"][1]["paused"], true);
    let worker = folder.worker(&["h", "i"], "echo $TIMERQUEUE_KEY >> ran");
    folder.ok(["put", "h", "--key", "c"]);
    folder.lines("ran", 1);
    // By another process, and the worker sees it.
    folder.ok(["resume", "--handler", "i"]);
    folder.lines("ran", 2);
    folder.ok(["run", "a"]); // resumes it as well
    assert_eq!(folder.lines("ran", 3), ["c", "b", "a"]);
    until(|| folder.job("a").is_null());
    assert_eq!(folder.fails(["run", "a"]).0, 1);
    assert_eq!(folder.fails(["resume", "a"]).0, 1);
    drop(worker);
}

fn dead_jobs_are_listed_revived_and_discarded(folder: Folder) {
    let worker = folder.worker(&["h", "--attempts", "1"], "echo no luck; exit 1");
    for key in ["a", "b", "c", "d"] {
        folder.ok(["put", "h", "--key", key]);
    }
    until(|| folder.json(["dead"]).len() == 4);
    assert_eq!(worker.stop().code, 0);
    // a flush between two puts takes a number
    let [b, c] = ["b", "c"].map(|key| folder.job(key)["id"].to_string());
    assert_eq!(folder.job("a")["error"], "exit code 1: no luck");
    assert!(folder.ok(["dead", "-n", "1"]).contains("no luck"));
    folder.ok(["put", "h", "--key", "b", "--in", "1h"]);
    assert_eq!(folder.fails(["retry", "b"]).0, 3, "its key is taken");
    assert_eq!(folder.fails(["retry", "--id", &b]).0, 3);
    assert_eq!(folder.fails(["retry", "z"]).0, 1);
    folder.ok(["retry", "a"]);
    assert_eq!((&folder.job("a")["state"], &folder.job("a")["attempt"]), (&json!("waiting"), &json!(0)));
    folder.ok(["dead", "--discard", "--id", &c]);
    assert_eq!(folder.fails(["dead", "--discard", "--id", &c]).0, 1);
    assert_eq!(folder.run(["retry", "--all"]).code, 3, "b is taken, d is revived");
    assert_eq!(folder.json(["dead"]).len(), 1);
    assert_eq!(folder.job("d")["state"], "waiting");
    folder.ok(["dead", "--discard", "--all", "--handler", "other"]);
    folder.ok(["dead", "--discard", "--all"]);
    assert_eq!(folder.json(["dead"]).len(), 0);
}

#[test]
fn completions_are_written_for_each_shell() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(folder.ok(["completions", shell]).contains("timerqueue"), "{shell}");
    }
    assert_eq!(folder.fails(["completions", "teletype"]).0, 2);
}

#[test]
fn each_command_has_a_help_text() {
    let folder = Folder::new();
    let help = folder.ok(["--help"]);
    assert!(help.contains("Exit codes:"), "{help}");
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() >= 16, "{commands:?}");
    for command in commands {
        assert!(folder.ok(["help", command]).contains("Usage:"), "{command}");
    }
    assert_eq!(folder.fails([""; 0]).0, 2);
}

/// The exit code says how the job ended.
fn a_put_waits_for_the_end_of_its_job(folder: Folder) {
    let (code, said) = folder.fails(["put", "h", "0", "--key", "late", "--in", "1h", "--wait", "0ms"]);
    assert!(code == 8 && said.contains("job 1 added, key late") && said.contains("job 1 has not ended"), "{said}");
    assert_eq!(folder.job("late")["kept_for_seconds"], 3_600.0);
    // The same line waits again for the job that is there.
    let again = ["put", "h", "0", "--key", "late", "--keep", "--wait", "0ms"];
    assert_eq!(folder.fails(again).0, 8);
    let mut waits = folder.command(["put", "h", "--key", "gone", "--in", "1h", "--wait", "10m", "--keep-for", "1s"]);
    let waits = Worker(waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    until(|| folder.job("gone")["state"] == "waiting");
    assert_eq!(folder.job("gone")["kept_for_seconds"], 1.0);
    assert!(folder.ok(["show", "gone"]).contains("\nkept      for 1 s once"));
    folder.ok(["cancel", "gone"]);
    let ended = waits.ended();
    assert!(ended.code == 7 && ended.err.contains("has left"), "{ended:?}");
    let worker = folder.worker(&["h"], r#"exit "$(cat)""#);
    let ended = folder.run(["put", "h", "0", "--wait", "10m"]);
    assert!(ended.code == 0 && ended.out.is_empty() && ended.err.contains("added, key "), "{ended:?}");
    let (code, said) = folder.fails(["put", "h", "65", "--wait", "10m"]);
    assert!(code == 7 && said.contains("is dead: exit code 65"), "{said}");
    let lines = folder.json(["put", "h", "0", "--key", "told", "--wait", "10m"]);
    assert_eq!((&lines[0]["outcome"], &lines[1]["state"]), (&json!("added"), &json!("done")));
    assert_eq!((&lines[1]["key"], lines.len()), (&json!("told"), 2));
    assert_eq!(worker.stop().code, 0);
}

/// The handler of a program has returned it.
#[test]
fn a_put_that_waits_writes_the_result() {
    let folder = Folder::new();
    let runtime = timerqueue::Runtime::builder().start().unwrap();
    let store = SqliteStore::open(&runtime, folder.path("jobs.db")).unwrap();
    let sum = |parts: Vec<u32>, _: &Run| Returned(parts.iter().sum::<u32>());
    let _scheduler = Scheduler::builder().runtime(&runtime).store(store).handler("sum", sum).start().unwrap();
    assert_eq!(folder.ok(["put", "sum", "[1, 2, 3]", "--wait", "10m"]), "6\n");
    assert_eq!(folder.json(["put", "sum", "[4]", "--wait", "10m"])[1]["result"], 4);
}

on_each_store! {
    a_put_waits_for_the_end_of_its_job
    a_job_is_put_and_shown
    payloads_are_json_text_or_standard_input
    a_taken_key_is_refused_kept_or_replaced
    due_times_are_of_their_zone
    a_job_waits_for_others
    a_cron_line_is_shown_with_its_next_five_runs
    next_runs_are_those_that_come
    a_schedule_that_is_stated_again_goes_on
    lists_are_filtered
    hostile_names_do_not_control_the_terminal
    jobs_are_edited
    jobs_are_cancelled_and_moved
    paused_jobs_and_handlers_wait
    dead_jobs_are_listed_revived_and_discarded
}
