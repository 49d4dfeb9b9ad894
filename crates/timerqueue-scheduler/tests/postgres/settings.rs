//! Settings of a server, and tables of others, that a store must not rely on.

use timerqueue::Runtime;
use timerqueue_scheduler::store::Fault;
use timerqueue_scheduler::{Error, Scheduler};

use crate::pooler::Pooler;
use crate::server::{Server, new_schema, until};
use crate::shop::Shop;
use crate::{HOUR, Log, logging, options};

/// Its `COMMIT` does not wait for the log, which is written later than this test lasts.
#[test]
fn l7_a_crash_loses_no_answered_put_of_a_server_with_asynchronous_commits() {
    let lazy = "-c synchronous_commit=off -c wal_writer_delay=10s -c wal_writer_flush_after=1GB";
    let Some(server) = Server::with(lazy, |_| {}) else { return };
    let pooler = Pooler::with(&server, 4);
    let addresses = [Some((server.address(), false)), pooler.as_ref().map(|pooler| (pooler.address(), true))];
    for (address, is_pooled) in addresses.into_iter().flatten() {
        let schema = new_schema();
        let options = if is_pooled { options(&schema).pooled() } else { options(&schema) };
        let front = Scheduler::builder().store(options.connect(Runtime::global(), &address).unwrap()).start().unwrap();
        server.psql("CHECKPOINT");
        for n in 0..20 {
            assert!(front.put_to("log", &n).key(&n.to_string()).due(HOUR).send().wait().unwrap().added().is_some());
        }
        server.stop("immediate");
        server.start();
        assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.jobs")), "20", "pooled: {is_pooled}");
    }
}

#[test]
fn l10_tables_of_another_program_in_the_schema_are_an_error() {
    let Some(server) = Server::shared() else { return };
    for columns in ["version int, least int", "version text, least text", "version int[]", "name text"] {
        for row in ["", "; INSERT INTO {schema}.store DEFAULT VALUES"] {
            let schema = new_schema();
            let row = row.replace("{schema}", &schema);
            server.psql(&format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.store ({columns}){row}"));
            let error = options(&schema).connect(Runtime::global(), &server.address()).unwrap_err();
            assert!(matches!(error, Error::Store { fault: Fault::Other, .. }), "{columns}{row}: {error:?}");
            let reader = timerqueue_scheduler::store::PostgresReader::connect(&options(&schema), &server.address());
            assert!(matches!(reader, Err(Error::Store { fault: Fault::Other, .. })), "{columns}{row}: {reader:?}");
        }
    }
    let schema = new_schema();
    server.psql(&format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.store (version int, least int)"));
    server.psql(&format!("INSERT INTO {schema}.store VALUES (2, 1)"));
    assert!(options(&schema).connect(Runtime::global(), &server.address()).is_err());
}

/// Sessions of a subscription run no triggers, nor do those of a role that is set up like them.
#[test]
fn j2_a_role_whose_sessions_run_no_triggers_loses_no_job() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    server.psql(&format!("CREATE ROLE {schema} LOGIN SUPERUSER"));
    server.psql(&format!("ALTER ROLE {schema} SET session_replication_role = replica"));
    let address = server.address().replace("user=test", &format!("user={schema}"));
    let node = logging(options(&schema).connect(Runtime::global(), &address).unwrap(), &log);
    assert!(node.put_to("log", &0).key("a").group("g").send().wait().unwrap().added().is_some());
    until("the job has run", || log.lock().unwrap().len() == 1);
    let Shop { client, runtime } = &mut Shop::connect(&address);
    for call in ["put('log', 'b')", "cancel('b')", "move('b', now())", "done('1/1/1')"] {
        let refused = runtime.block_on(client.query(&format!("SELECT {schema}.{call}"), &[])).unwrap_err();
        let text = refused.as_db_error().unwrap().message().to_owned();
        assert!(text.contains("session_replication_role"), "{call}: {text}");
    }
}
