//! Dumps of the rows alone, restored into tables that are there.

use timerqueue_scheduler::store::PostgresReader;

use super::*;

/// The triggers of the tables see the rows as new ones.
#[test]
fn j2_rows_that_are_restored_into_new_tables_run() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let put = |key: &str| front.put_to("log", &0).key(key);
    for put in [put("plain"), put("grouped").group("g"), put("prior").priority(1), put("both").group("g").priority(1)] {
        assert!(put.send().wait().unwrap().added().is_some());
    }
    drop(front);
    let file = server.folder().join(&schema);
    let file = file.to_str().unwrap();
    server.program("pg_dump", &["--data-only", "-n", &schema, "-f", file]);
    let names = server.psql(&format!("SELECT '{schema}.' || tablename FROM pg_tables WHERE schemaname = '{schema}'"));
    server.psql(&format!("TRUNCATE {}", names.lines().collect::<Vec<_>>().join(", ")));
    server.program("psql", &["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", file]);

    let reader = PostgresReader::connect(&options(&schema), &*server.address()).unwrap();
    let check = || reader.check(|_| ()).map(drop).map_err(|error| error.to_string());
    assert!(check().unwrap_err().contains("not one head"), "a trigger has made one beside that of the dump");
    let hold = options(&schema).hold(&*server.address()).unwrap();
    check().unwrap();
    for (broken, mended, wrong) in [
        (
            "UPDATE jobs SET apart = NULL WHERE key = 'prior'",
            "UPDATE jobs SET apart = due WHERE key = 'prior'",
            "no wake instant",
        ),
        ("UPDATE heads SET head = head + 1", "UPDATE heads SET head = head - 1", "too late"),
        ("ALTER TABLE jobs DISABLE TRIGGER ALL", "ALTER TABLE jobs ENABLE TRIGGER ALL", "a trigger is disabled"),
    ] {
        server.psql(&format!("SET search_path = {schema}; {broken}"));
        assert!(check().unwrap_err().contains(wrong), "{wrong}");
        server.psql(&format!("SET search_path = {schema}; {mended}"));
        check().unwrap();
    }
    let node = logging(connect(server, &options(&schema)), &log);
    hold.release(&node).unwrap();
    until("all have run", || log.lock().unwrap().len() == 4);
}
