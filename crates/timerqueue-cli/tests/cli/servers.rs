//! Servers: what differs from a file, and passwords.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::server::Server;
use crate::support::{Ended, Folder, Worker, until};

/// Commands that may not make tables.
const LOOKS: [&[&str]; 6] = [&["ls"], &["show", "k"], &["stats"], &["check"], &["cancel", "k"], &["retry", "--all"]];

#[test]
fn tables_are_made_by_a_put_alone() {
    let Some(folder) = Folder::on_server() else { return };
    for command in LOOKS {
        let (code, said) = folder.fails(command);
        assert!(
            code == 4 && said.contains("no tables") && said.contains(folder.schema()),
            "{command:?}: {code} {said}"
        );
    }
    folder.ok(["put", "h", "--key", "k", "--in", "1h"]);
    for command in &LOOKS[..4] {
        folder.ok(*command);
    }
}

#[test]
fn a_check_reports_on_the_server() {
    let (Some(folder), Some(server)) = (Folder::on_server(), Server::shared()) else { return };
    for n in 0..3 {
        folder.ok(["put", "h", "--in", "1h", "--key", &n.to_string()]);
    }
    folder.ok(["cron", "h", "@daily", "--key", "daily"]);
    let report = &folder.json(["check"])[0];
    assert_eq!((&report["sound"], &report["jobs"], &report["standby"]), (&json!(true), &json!(4), &json!(false)));
    assert!(report["clock_ahead_seconds"].as_f64().unwrap().abs() < 5.0, "the same machine: {report}");
    assert!(report["table_bytes"].as_u64().unwrap() > 0 && report["index_bytes"].as_u64().unwrap() > 0, "{report}");
    let said = folder.run(["check", "--progress"]);
    let parts = said.err.split_once("1 of ").and_then(|(_, rest)| rest.split(':').next()).unwrap_or("?");
    assert!(
        said.code == 0 && said.out.contains("clock ") && said.err.contains(&format!("{parts} of {parts}:")),
        "{said:?}"
    );
    let schema = folder.schema();
    server.psql(&format!("UPDATE {schema}.jobs SET payload = '{{' WHERE key = '1'"));
    server.psql(&format!("UPDATE {schema}.jobs SET recurring = '{{}}' WHERE key = 'daily'"));
    let ended = folder.run(["--json", "check"]);
    let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert!(ended.code == 5 && report["sound"] == false, "{ended:?}");
    let ids: Vec<_> = report["unreadable"].as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, [json!(2), json!(4)], "{report}");
    server.psql(&format!("DELETE FROM {schema}.handlers"));
    let (code, said) = folder.fails(["check"]);
    assert!(code == 5 && said.contains("no handler"), "{said}");
}

#[test]
fn tables_of_a_newer_version_are_left_alone() {
    let (Some(folder), Some(server)) = (Folder::on_server(), Server::shared()) else { return };
    folder.ok(["put", "h"]);
    server.psql(&format!("UPDATE {}.store SET version = 99, least = 99", folder.schema()));
    for command in [&["ls"][..], &["put", "h"], &["check"], &["worker", "h", "--exec", "true"]] {
        assert_eq!(folder.fails(command).0, 5, "{command:?}");
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_told() {
    let folder = Folder::new();
    for command in [&["ls"][..], &["put", "h"], &["web"], &["worker", "h", "--exec", "true"]] {
        let mut command = folder.command(command);
        command.env("TIMERQUEUE_STORE", "postgres://ann:secret@127.0.0.1:1/app?connect_timeout=2");
        let ended = Ended::of(command.output().unwrap());
        assert!(ended.code == 4 && ended.err.contains("app on 127.0.0.1:1"), "{ended:?}");
        assert!(!ended.err.contains("secret") && !ended.err.contains("ann"), "{ended:?}");
    }
    assert_eq!(folder.fails(["--schema", "jobs", "ls"]).0, 2, "a file has no schema");
}

#[test]
fn a_password_on_the_command_line_is_refused_and_not_repeated() {
    let folder = Folder::new();
    for address in [
        "postgres://ann:hunter2@127.0.0.1:1/app",
        "postgres://127.0.0.1:1/app?user=ann&password=hunter2",
        "host=127.0.0.1 port=1 user=ann password='hunter2'",
        "host=127.0.0.1 password=hun ter2=hunter2",
    ] {
        let (code, said) = folder.fails(["--store", address, "ls"]);
        assert!(code == 2 && !said.contains("hunter2") && !said.contains("ter2"), "{said}");
    }
}

/// All that the processes of this program, and its children, show to other users of the machine.
fn command_lines() -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ") + "\n").collect()
}

/// The server asks for a password, and each way to give it works. No process shows it, and no
/// failure.
#[test]
fn passwords_are_given_in_the_environment_or_a_file_and_shown_nowhere() {
    let Some(server) = Server::new() else { return };
    server.psql("CREATE ROLE ann LOGIN PASSWORD 'hunter2 is''t \\'");
    server.psql("CREATE ROLE wrong LOGIN PASSWORD 'other'");
    server.psql("GRANT CREATE ON DATABASE postgres TO ann");
    let address = server.address();
    let host = address.split(' ').find_map(|word| word.strip_prefix("host=")).unwrap().to_owned();
    fs::write(format!("{host}/data/pg_hba.conf"), "local all test trust\nlocal all all scram-sha-256\n").unwrap();
    server.psql("SELECT pg_reload_conf()");
    let folder = Folder::new();
    let keywords = format!("host={host} user=ann dbname=postgres");
    let url = format!("postgres://ann@{}/postgres", host.replace('/', "%2F"));
    let passfile = folder.path("pass");
    fs::write(&passfile, "localhost:5432:postgres:ann:hunter2 is't \\\\\n").unwrap();
    fs::set_permissions(&passfile, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let run = |store: &str, more: &[(&str, &str)], arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.env("TIMERQUEUE_STORE", store).envs(more.iter().copied());
        Ended::of(command.output().unwrap())
    };
    let in_url = url.replace("ann@", "ann:hunter2%20is%27t%20%5C@");
    let pass = [("PGPASSWORD", r"hunter2 is't \")];
    let ways: [(&str, &[(&str, &str)]); 6] = [
        (&in_url, &[]),
        (&format!(r"{keywords} password='hunter2 is\'t \\'"), &[]),
        (&keywords, &pass),
        (&url, &pass),
        (&keywords, &[("PGPASSFILE", passfile.to_str().unwrap())]),
        (&format!("{keywords} passfile={}", passfile.display()), &[]),
    ];
    for (n, (store, more)) in ways.iter().enumerate() {
        let ended = run(store, more, &["put", "h", "--in", "1h", "--key", &n.to_string()]);
        assert_eq!(ended.code, 0, "way {n}: {}", ended.err);
    }
    for (store, more) in [(&keywords, &[][..]), (&keywords, &[("PGPASSWORD", "hunter3")][..])] {
        let ended = run(store, more, &["ls"]);
        assert!(ended.code == 4 && !ended.err.contains("hunter"), "{ended:?}");
    }
    // A worker with a run under way: worker, guard, and the command.
    let script = "echo $$ > self; while [ ! -e go ]; do sleep 0.01; done";
    let mut command = folder.command(["worker", "h", "--json", "--echo", "--exec", "sh", "-c", script]);
    command.env("TIMERQUEUE_STORE", &in_url).stdout(Stdio::piped()).stderr(Stdio::piped());
    let worker = Worker(command.spawn().unwrap());
    assert_eq!(run(&keywords, &pass, &["run", "0"]).code, 0);
    until(|| !folder.read("self").is_empty());
    let shown = command_lines();
    assert!(shown.contains("__guard") && !shown.contains("hunter2"), "{shown}");
    fs::write(folder.path("go"), "").unwrap();
    worker.signal(Signal::TERM);
    let ended = worker.ended();
    assert!(ended.code == 0 && !(ended.out + &ended.err).contains("hunter2"));
    // The help text shows no environment.
    let help = run(&in_url, &[], &["help", "worker"]);
    assert!(help.code == 0 && !help.out.contains("hunter2"), "{}", help.out);
}

/// A block of SQL of `docs/OPERATIONS.md`, for this schema.
fn block(name: &str, schema: &str) -> String {
    let operations = include_str!("../../../../docs/OPERATIONS.md");
    let block = operations.split(&format!("<!-- {name} -->")).nth(1).unwrap().split("```sql").nth(1).unwrap();
    block.split("```").next().unwrap().replace("timerqueue", schema).replace("app_", &format!("{schema}_"))
}

#[test]
fn roles_with_the_rights_of_the_document_are_enough_and_have_no_more() {
    let (Some(folder), Some(server)) = (Folder::on_server(), Server::shared()) else { return };
    let schema = folder.schema().to_owned();
    server.psql(&format!("CREATE ROLE {schema}_worker LOGIN; CREATE ROLE {schema}_viewer LOGIN"));
    server.psql(&format!("GRANT pg_monitor TO {schema}_viewer"));
    folder.ok(["put", "h", "--key", "first", "--in", "1h"]); // the owner makes the tables
    server.psql(&block("roles", &schema));
    let address = |role: &str| server.address().replace("user=test", &format!("user={schema}_{role}"));
    let run = |role: &str, arguments: &[&str]| {
        Ended::of(folder.command(arguments).env("TIMERQUEUE_STORE", address(role)).output().unwrap())
    };
    // All that a worker does.
    let script = "echo $TIMERQUEUE_KEY >> ran; [ $TIMERQUEUE_KEY != bad ]";
    let mut command = folder.command(["worker", "h", "new", "--attempts", "1", "--exec", "sh", "-c", script]);
    let worker = Worker(command.env("TIMERQUEUE_STORE", address("worker")).spawn().unwrap());
    for arguments in [
        &["put", "h", "--key", "a"][..],
        &["put", "new", "--key", "bad"],
        &["cron", "h", "every 50ms", "--key", "often"],
        &["move", "first", "--in", "2h"],
        &["pause", "first"],
        &["resume", "first"],
        &["run", "first"],
        &["check"],
    ] {
        let ended = run("worker", arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.err);
    }
    until(|| folder.read("ran").lines().count() >= 5 && folder.job("bad")["state"] == "dead");
    for arguments in [&["cancel", "often"][..], &["dead", "--discard", "--all"], &["pause", "--handler", "h"]] {
        assert_eq!(run("worker", arguments).code, 0, "{arguments:?}");
    }
    assert_eq!(worker.stop().code, 0);
    let sql = format!("SET ROLE {schema}_worker; BEGIN; SELECT {schema}.put('h', 'mine'); COMMIT");
    server.psql(&sql);
    // What a worker may not do.
    let ended = run("worker", &["restore", "--hold"]);
    assert!(ended.code == 4 && ended.err.contains("permission denied"), "{ended:?}");
    for arguments in [&["ls"][..], &["show", "mine"], &["stats"], &["dead"], &["check"], &["restore"]] {
        let ended = run("viewer", arguments);
        assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.err);
    }
    for arguments in [&["put", "h", "--key", "b"][..], &["cancel", "mine"], &["restore", "--hold"]] {
        let ended = run("viewer", arguments);
        assert!(ended.code == 4 && ended.err.contains("permission denied"), "{arguments:?}: {ended:?}");
    }
    for statement in block("watch", &schema).split(';').filter(|statement| statement.contains("SELECT")) {
        server.psql(&format!("SET ROLE {schema}_viewer; {statement}"));
    }
}
