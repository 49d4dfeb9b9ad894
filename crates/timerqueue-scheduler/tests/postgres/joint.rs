//! Operations and ends of runs in transactions of the user's.

use std::sync::atomic::{AtomicUsize, Ordering};

use timerqueue_scheduler::store::PostgresReader;
use timerqueue_scheduler::tokio_postgres::IsolationLevel;
use timerqueue_scheduler::{Change, History, HistoryQuery, Outcome, Overlap, Placed};

use super::locks::Open;
use super::shop::{Failed, Shop};
use super::*;

type Anything = Box<dyn std::error::Error>;

/// A schema with a table of the user's, and its numbers.
fn effects(server: &Server) -> (String, impl Fn() -> String + use<'_>) {
    let schema = new_schema();
    server.psql(&format!("CREATE SCHEMA {schema}; CREATE TABLE {schema}.effects (n bigint)"));
    let sql = format!("SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM {schema}.effects");
    (schema, move || server.psql(&sql))
}

/// A node whose handler `h` writes its attempt into the table, in the transaction that ends the
/// run, and then does as told.
fn booking(
    server: &Server,
    (schema, lease): (&str, Duration),
    inside: impl Fn(&Run) -> Result<(), Anything> + Send + Sync + 'static,
    after: impl Fn(&Run, Result<(), Failed>) -> Result<Outcome, Anything> + Send + Sync + 'static,
) -> Scheduler {
    let (address, insert) = (server.address(), format!("INSERT INTO {schema}.effects VALUES ($1)"));
    let handler = move |_: (), run: &Run| {
        let Shop { client, runtime } = &mut Shop::connect(&address);
        let transaction = runtime.block_on(async {
            let transaction = client.transaction().await?;
            transaction.execute(&insert, &[&i64::from(run.attempt())]).await?;
            run.done_in(&transaction).await?;
            Ok::<_, Anything>(transaction)
        })?;
        inside(run)?;
        let committed = runtime.block_on(transaction.commit()).map_err(Failed);
        after(run, committed)
    };
    let store = connect(server, &options(schema).lease(lease));
    let retry = Retry::new(9).first(Duration::from_millis(1));
    Scheduler::builder()
        .store(store)
        .register(Handler::new("h", handler).retry(retry).history(History::new(HOUR)))
        .start()
        .unwrap()
}

#[test]
fn l21_a_put_in_a_transaction_is_there_with_it_and_is_seen() {
    let Some(server) = Server::shared() else { return };
    let ((schema, effects), log) = (effects(server), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    let mut shop = Shop::connect(&server.address());
    let insert = format!("INSERT INTO {schema}.effects VALUES (1)");
    for (key, commits) in [("rolled back", false), ("committed", true)] {
        let done = shop.transaction(async |sale| {
            sale.execute(&insert, &[]).await.unwrap();
            let put = || node.put_to("log", &1).key(key).group("x").send_in(sale);
            let placed = put().await?;
            assert!(placed.added().is_some());
            assert_eq!(put().await?, Placed::Refused(placed.added().unwrap()), "the key is taken");
            assert!(node.get(key).await?.is_none(), "not yet");
            if commits { Ok(()) } else { Err(Error::Closed) }
        });
        assert_eq!(done.is_ok(), commits);
    }
    until("it has run", || *log.lock().unwrap() == ["committed#1"]);
    assert_eq!(effects(), "1");
    // A savepoint.
    shop.runtime.block_on(async {
        let mut sale = shop.client.transaction().await.unwrap();
        let part = sale.transaction().await.unwrap();
        let _ = node.put_to("log", &1).key("undone").send_in(&part).await.unwrap();
        part.rollback().await.unwrap();
        let put = node.put_to("log", &1).key("kept").expires(HOUR);
        let sql = put.sql().unwrap();
        let parameters: Vec<_> = sql.parameters().iter().map(|value| value as _).collect();
        let row = sale.query_one(sql.text(), &parameters).await.unwrap();
        assert!(sql.answer(row.get(0)).unwrap().added().is_some());
        sale.commit().await.unwrap();
    });
    until("it has run", || log.lock().unwrap().len() == 2);
    assert_eq!(log.lock().unwrap()[1], "kept#1");
    assert!(node.put_to("log", &1).key("again").sql().unwrap().answer("none").is_err());
}

/// A node that looks while the transaction is open sees nothing, and goes to sleep for long.
#[test]
fn l21_a_node_that_goes_to_sleep_during_the_transaction_is_told() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let mut shop = Shop::connect(&server.address());
    let wakes = format!("SELECT count(*) FROM {schema}.nodes WHERE wakes > {schema}.clock() + 60000000");
    let _ = node.put_to("log", &1).key("far").due(HOUR / 2).send().wait().unwrap();
    until("the node sleeps", || server.psql(&wakes) == "1");
    // As if it was to look before the job is due.
    server.psql(&format!("UPDATE {schema}.nodes SET wakes = {schema}.clock() + 1800000"));
    let _ = shop.transaction(async |sale| {
        let placed = node.put_to("log", &1).key("a").due(Duration::from_millis(2_500)).send_in(sale).await;
        server.psql(&format!("UPDATE {schema}.nodes SET wakes = {schema}.clock() + 1800000000"));
        placed
    });
    until("it has run", || log.lock().unwrap().len() == 1);
}

/// What the snapshot shows of the nodes is over at the commit.
#[test]
fn l21_a_node_is_told_of_a_put_by_an_old_snapshot() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let wakes = |after: Duration| format!("UPDATE {schema}.nodes SET wakes = {schema}.clock() + {}", after.as_micros());
    let _ = node.put_to("log", &1).key("far").due(HOUR / 2).send().wait().unwrap();
    let sleeps = format!("SELECT count(*) FROM {schema}.nodes WHERE wakes > {schema}.clock() + 60000000");
    until("the node sleeps", || server.psql(&sleeps) == "1");
    // As if it was to look before the job is due.
    server.psql(&wakes(Duration::from_secs(4)));
    let mut open = Open::new(server, &schema);
    open.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes");
    server.psql(&wakes(HOUR / 2));
    open.run("SELECT put('log', 'a', due => now() + interval '4500 ms')");
    open.end("COMMIT");
    until("it has run", || log.lock().unwrap().len() == 1);
}

/// The head of the group that the snapshot shows is over: the put is undone, and made again.
#[test]
fn l21_a_put_into_a_group_by_an_old_snapshot_is_seen_or_undone() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let mut shop = Shop::connect(&server.address());
    let idle = || {
        let count = format!("SELECT count(*) FROM {schema}.heads WHERE idle IS NOT NULL");
        until("the group is idle", || server.psql(&count) == "1");
    };
    let put = |key: &str, due: Duration| {
        let put = node.put_to("log", &1).key(key).group("g").due(due).send();
        assert!(put.wait().unwrap().added().is_some());
    };
    put("binds the group", Duration::ZERO);
    idle();
    put("first", Duration::from_secs(1));
    let put = format!("SELECT {schema}.put('log', 'second', due => now() + interval '1 s', in_group => 'g')");
    let tries = (1..3).find(|&time| {
        let done = shop.runtime.block_on(async {
            let begin = shop.client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
            let transaction = begin.start().await.unwrap();
            transaction.batch_execute("SELECT count(*) FROM pg_class").await.unwrap();
            idle();
            transaction.batch_execute(&put).await?;
            transaction.commit().await
        });
        done.inspect_err(|error| assert_eq!((time, error.code().unwrap().code()), (1, "40001"))).is_ok()
    });
    assert!(tries.is_some());
    until("all have run", || log.lock().unwrap().len() == 3);
}

#[test]
fn l21_tables_that_are_published_take_puts_of_groups() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let tables = format!(
        "SELECT string_agg('{schema}.' || relname, ', ') FROM pg_class \
         WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r' AND relpersistence = 'p'"
    );
    server.psql(&format!("CREATE PUBLICATION {schema} FOR TABLE {}", server.psql(&tables)));
    server.psql(&format!("SELECT {schema}.put('log', 'a', in_group => 'g')"));
    let _ = node.put_to("log", &1).key("b").group("g").send().wait().unwrap();
    until("both have run", || log.lock().unwrap().len() == 2);
}

#[test]
fn l21_what_no_store_accepts_is_refused_before_the_server_is_asked() {
    let Some(server) = Server::shared() else { return };
    let node = logging(connect(server, &options(&new_schema())), &Log::default());
    let past = Schedule::every(HOUR).until(std::time::SystemTime::now() - HOUR * 9).build().unwrap();
    let hourly = || Schedule::every(HOUR).build().unwrap();
    let long = "k".repeat(513);
    for put in [
        node.put_to("log", &1).key(""),
        node.put_to("log", &1).key(&long),
        node.put_to("log", &"\0"),
        node.put_to("log", &1).priority(10),
        node.put_to("log", &1).due(Duration::MAX),
        node.put_to("log", &1).schedule(past),
        node.put_to("log", &1).schedule(hourly()).expires(HOUR),
        node.put_to("log", &1).schedule(hourly()).clash(Clash::Update),
    ] {
        assert!(put.sql().is_err());
    }
    assert!(node.cancel_sql("").is_err() && node.move_sql("a", Duration::MAX).is_err());
    let memory = Scheduler::builder().handler("log", |_: u32, _: &Run| {}).start().unwrap();
    assert!(matches!(memory.put_to("log", &1).sql(), Err(Error::Store { .. })));
}

#[test]
fn l21_a_recurring_job_is_put_in_a_transaction() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    let mut shop = Shop::connect(&server.address());
    let mut put = |millis: u64| {
        let schedule = Schedule::every(Duration::from_millis(millis)).build().unwrap();
        let put = node
            .put_to("log", &1)
            .key("tick")
            .group("x")
            .priority(3)
            .trace("00-1")
            .expires_after(HOUR)
            .overlap(Overlap::QueueOne);
        let put = put.attempts(7).unique_for(HOUR).kept_for(HOUR * 2).schedule(schedule).clash(Clash::Replace);
        shop.transaction(async |transaction| put.send_in(transaction).await).unwrap()
    };
    let id = put(50).added().unwrap();
    until("it runs", || log.lock().unwrap().len() >= 3);
    assert_eq!(put(50), Placed::Kept(id), "the same");
    assert!(matches!(put(70), Placed::Replaced { .. }));
    let before = log.lock().unwrap().len();
    until("the other one runs", || log.lock().unwrap().len() >= before + 3);
    let job = node.get("tick").wait().unwrap().unwrap();
    assert_eq!((job.group.as_deref(), job.priority, job.expires_after), (Some("x"), 3, Some(HOUR)));
    assert_eq!(job.trace.as_deref(), Some("00-1"));
    let terms = (job.terms.attempts, job.terms.unique_for, job.terms.kept_for);
    assert_eq!(terms, (Some(7), Some(HOUR), Some(HOUR * 2)));
    let gone = shop.transaction(async |transaction| node.cancel_in("tick", transaction).await).unwrap();
    assert_ne!(gone, Cancel::Absent);
    until("it is gone", || server.psql(&format!("SELECT count(*) FROM {schema}.jobs")) == "0");
}

#[test]
fn l21_a_cancel_and_a_move_are_those_of_the_transaction() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let mut shop = Shop::connect(&server.address());
    let put = |key: &str, group: Option<&str>| {
        let put = node.put_to("log", &1).key(key).due(HOUR);
        let put = if let Some(group) = group { put.group(group) } else { put };
        assert!(put.send().wait().unwrap().added().is_some());
    };
    ["a", "b", "c"].iter().for_each(|key| put(key, None));
    put("d", Some("x"));
    put("e", Some("x"));
    let undone = shop.transaction(async |payment| {
        assert_eq!(node.cancel_in("a", payment).await?, Cancel::Cancelled);
        assert_eq!(node.move_in("b", Duration::ZERO, payment).await?, Change::Changed);
        assert_eq!(node.cancel_in("a", payment).await?, Cancel::Absent);
        Err::<(), _>(Error::Closed)
    });
    assert_eq!(undone, Err(Error::Closed));
    let waits = |key| node.get(key).wait().unwrap().map(|job| job.state) == Some(State::Waiting);
    assert!(waits("a") && waits("b"), "nothing has changed");
    let done = shop.transaction(async |payment| {
        assert_eq!(node.cancel_in("a", payment).await?, Cancel::Cancelled);
        assert_eq!(node.cancel_in("none", payment).await?, Cancel::Absent);
        assert_eq!(node.move_in("none", HOUR, payment).await?, Change::Absent);
        assert_eq!(node.move_in("c", HOUR * 2, payment).await?, Change::Changed);
        assert_eq!(node.move_in("e", Duration::ZERO, payment).await?, Change::Changed);
        node.move_in("b", std::time::SystemTime::now(), payment).await
    });
    assert_eq!(done, Ok(Change::Changed));
    until("the moved ones have run", || log.lock().unwrap().len() == 2);
    assert!(node.get("a").wait().unwrap().is_none());
    let due = node.get("c").wait().unwrap().unwrap().due.unwrap();
    assert!(due > std::time::SystemTime::now() + HOUR * 3 / 2);
    // From any language.
    assert_eq!(
        server.psql(&format!("SELECT {schema}.cancel('c'), {schema}.move('d', now() + interval '1 day')")),
        "cancelled|changed"
    );
    assert_eq!(server.psql(&format!("SELECT {schema}.cancel('c'), {schema}.move('c', now())")), "absent|absent");
}

#[test]
fn l21_a_cancel_in_a_transaction_reaches_the_run() {
    let Some(server) = Server::shared() else { return };
    let (schema, begun) = (new_schema(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&begun);
    // Without the mark of the row, another attempt would follow.
    let handler = move |_: u32, run: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        run.token().wait();
        Err::<(), _>("cancelled")
    };
    let store = connect(server, &options(&schema).lease(HOUR)); // no renewal finds the mark
    let node = Scheduler::builder().store(store).handler("hold", handler).start().unwrap();
    let mut shop = Shop::connect(&server.address());
    let schedule = Schedule::every(Duration::from_millis(20)).build().unwrap();
    let _ = node.put_to("hold", &1).key("a").send().wait().unwrap();
    let put = node.put_to("hold", &1).key("tick").overlap(Overlap::QueueOne).schedule(schedule);
    let _ = put.send().wait().unwrap();
    until("both run", || begun.load(Ordering::SeqCst) == 2);
    let tick = || server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE key = 'tick'"));
    until("one is queued", || tick() == "3");
    let done = shop.transaction(async |payment| {
        assert_eq!(node.move_in("a", HOUR, payment).await?, Change::Running);
        assert_eq!(node.move_in("tick", HOUR, payment).await?, Change::WrongKind);
        assert_eq!(node.cancel_in("a", payment).await?, Cancel::Running);
        node.cancel_in("tick", payment).await
    });
    assert_eq!(done, Ok(Cancel::Running));
    until("nothing is left", || server.psql(&format!("SELECT count(*) FROM {schema}.jobs")) == "0");
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}

#[test]
fn l22_a_run_that_is_done_in_a_transaction_has_its_effect_once() {
    let Some(server) = Server::shared() else { return };
    let (schema, effects) = effects(server);
    let before = |run: &Run| if run.attempt() == 1 { Err("before the commit".into()) } else { Ok(()) };
    let node = booking(server, (&schema, HOUR), before, |_, committed| {
        committed?;
        Err("after the commit".into())
    });
    let _ = node.put_to("h", &()).key("a").group("x").send().wait().unwrap();
    until("it is done", || node.get("a").wait().unwrap().is_none());
    // What is done twice in one transaction is refused, and so is what has ended.
    let _ = node.put_to("h", &()).key("b").group("x").send().wait().unwrap();
    until("it is done", || node.get("b").wait().unwrap().is_none());
    assert_eq!(effects(), "2 2");
    assert_eq!(node.stats().wait().unwrap().lost, 0, "ended by the handler itself");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.done_runs")), "0");
}

/// Whatever happens to the run meanwhile: the transaction holds no lock, and its commit is refused.
#[test]
fn l22_a_run_that_is_lost_before_the_commit_has_no_effect() {
    let Some(server) = Server::shared() else { return };
    let (schema, effects) = effects(server);
    let (ended, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (may_go_on, count, psql) = (Arc::clone(&ended), Arc::clone(&refused), server.address());
    let state = format!("SELECT state FROM {schema}.jobs WHERE key = 'a'");
    let end = format!("UPDATE {schema}.members SET dead = true, until = 0");
    let inside = move |run: &Run| {
        if run.attempt() == 1 {
            // Another node takes this one for dead, and is not held up.
            let other = Shop::connect(&psql);
            other.runtime.block_on(other.client.batch_execute(&end))?;
            let row = other.runtime.block_on(other.client.query_one(&state, &[]))?;
            assert_eq!(row.get::<_, i64>(0), 0, "it waits again");
            may_go_on.store(1, Ordering::SeqCst);
        }
        Ok(())
    };
    let node = booking(server, (&schema, Duration::from_secs(5)), inside, move |_, committed| {
        if let Err(Failed(error)) = &committed {
            assert_eq!(error.code().unwrap().code(), "TQ001");
            count.fetch_add(1, Ordering::SeqCst);
        }
        Ok(committed.map(|()| Outcome::Done)?)
    });
    let _ = node.put_to("h", &()).key("a").send().wait().unwrap();
    until("it is done", || node.get("a").wait().unwrap().is_none());
    assert_eq!((ended.load(Ordering::SeqCst), refused.load(Ordering::SeqCst), &*effects()), (1, 1, "2"));
}

#[test]
fn l22_a_run_that_was_done_and_whose_member_has_ended_is_not_repeated() {
    let Some(server) = Server::shared() else { return };
    let (schema, effects) = effects(server);
    let ends = Arc::new(AtomicUsize::new(0));
    let may_end = Arc::clone(&ends);
    let node = booking(
        server,
        (&schema, HOUR),
        |_| Ok(()),
        move |run, committed| {
            committed?;
            while may_end.load(Ordering::SeqCst) == 0 && !run.token().is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err("lost".into())
        },
    );
    let _ = node.put_to("h", &()).key("a").group("x").send().wait().unwrap();
    until("it is done", || effects() == "1");
    until("as the row says", || {
        server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE ended IS NOT NULL")) == "1"
    });
    let reader = PostgresReader::connect(&options(&schema), &server.address()).unwrap();
    server.psql(&format!("BEGIN; UPDATE {schema}.members SET dead = true, until = 0; COMMIT"));
    reader.check(|_| {}).unwrap();
    // A claim, here of the same scheduler, which is a new member.
    let _ = node.put_to("h", &()).key("b").send().wait().unwrap();
    until("it has left", || node.get("a").wait().unwrap().is_none());
    ends.store(1, Ordering::SeqCst);
    until("the other one is done", || node.get("b").wait().unwrap().is_none());
    assert_eq!(effects(), "1 1");
    let history = node.history(HistoryQuery::new().oldest_first()).wait().unwrap();
    let kept: Vec<_> = history.iter().map(|done| (&*done.key, done.node.is_some(), done.last.is_some())).collect();
    assert_eq!(kept, [("a", true, true), ("b", true, true)], "each once, and by which node");
    let done = "sum(done), sum(failed)";
    until("both are counted once", || {
        ["2|0", "2|1"].contains(&&*server.psql(&format!("SELECT {done} FROM {schema}.minutes")))
    });
}

/// The engine ends the run by what the handler has returned, and the commit comes too late.
#[test]
fn l22_a_commit_after_the_end_of_the_run_is_refused() {
    let Some(server) = Server::shared() else { return };
    let (schema, effects) = effects(server);
    let (send, runs) = mpsc::channel();
    let handler = move |_: (), run: &Run| send.send(run.clone()).unwrap();
    let store = connect(server, &options(&schema));
    let node = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    let mut shop = Shop::connect(&server.address());
    let insert = format!("INSERT INTO {schema}.effects VALUES (1)");
    let _ = node.put_to("h", &()).key("a").send().wait().unwrap();
    let run = runs.recv_timeout(LONG).unwrap();
    let late = shop.transaction(async |transaction| {
        transaction.execute(&insert, &[]).await.unwrap();
        let done = run.done_in(transaction).await;
        until("the run has ended", || node.get("a").wait().unwrap().is_none());
        done
    });
    assert_eq!(late, Err(Error::NotHeld));
    assert_eq!(shop.transaction(async |transaction| run.done_in(transaction).await), Err(Error::NotHeld));
    assert_eq!(effects(), "");
}

#[test]
fn l22_a_run_is_done_once_in_a_transaction_and_not_by_a_wrong_fence() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema).lease(HOUR));
    enter(&store, 1);
    assert!(matches!(put_raw(&store, "a"), Applied::Placed(Placed::Added(_))));
    let held = claim(&store, 1).jobs.remove(0).held;
    let mut shop = Shop::connect(&server.address());
    let mut done = |fences: &[String]| {
        shop.transaction(async |transaction| {
            for fence in fences {
                let call = format!("SELECT {schema}.done('{fence}')");
                transaction.batch_execute(&call).await.map_err(Failed)?;
            }
            Ok::<_, Failed>(())
        })
        .map_err(|Failed(error)| error.code().unwrap().code().to_owned())
    };
    let fence = |claim: u64| format!("{}/{}/{claim}", held.id.0, held.owner);
    let refused = Err("TQ001".to_owned());
    assert_eq!(done(&[fence(held.claim), fence(held.claim)]), refused, "twice");
    assert_eq!(done(&[fence(held.claim + 1)]), refused, "of another claim");
    assert_eq!(done(&["1/2".to_owned()]), refused);
    assert_eq!(done(&["mail".to_owned()]), Err("22P02".to_owned()), "no number");
    assert_eq!(done(&[fence(held.claim)]), Ok(()));
    assert_eq!(done(&[fence(held.claim)]), refused, "it has ended");
    let settle = Op::Settle(Box::new(Settle { held, verdict: Verdict::Retry(HOUR), record: None }));
    assert_eq!(apply(&store, settle), Ok(Applied::Held(true)));
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.jobs")), "0");
}

#[test]
fn l22_a_commit_that_another_one_has_overtaken_is_made_again() {
    let Some(server) = Server::shared() else { return };
    let (schema, effects) = effects(server);
    let (address, insert) = (server.address(), format!("INSERT INTO {schema}.effects VALUES ($1)"));
    let touch = format!("UPDATE {schema}.jobs SET died = died + 1");
    let handler = move |_: (), run: &Run| {
        let (mut shop, other) = (Shop::connect(&address), Shop::connect(&address));
        for n in 0..2_i64 {
            let transaction = shop.runtime.block_on(async {
                let begin = shop.client.build_transaction().isolation_level(IsolationLevel::Serializable);
                let transaction = begin.start().await.unwrap();
                transaction.execute(&insert, &[&n]).await.unwrap();
                run.done_in(&transaction).await.unwrap();
                transaction
            });
            if n == 0 {
                other.runtime.block_on(other.client.batch_execute(&touch)).unwrap();
            }
            match shop.runtime.block_on(transaction.commit()) {
                Ok(()) => return n,
                Err(error) => assert_eq!(error.code().unwrap().code(), "40001"),
            }
        }
        panic!("twice")
    };
    let handler = move |payload: (), run: &Run| assert_eq!(handler(payload, run), 1);
    let store = connect(server, &options(&schema));
    let node = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    let _ = node.put_to("h", &()).key("a").send().wait().unwrap();
    until("it is done", || node.get("a").wait().unwrap().is_none());
    assert_eq!((effects(), node.stats().wait().unwrap().died), ("1".to_owned(), 0));
}

/// The commit waits for a standby when its session ends: it is done, and the handler does not know.
#[test]
fn l22_a_commit_whose_answer_is_lost_is_not_done_twice() {
    let Some(server) = Server::new() else { return };
    let (schema, effects) = effects(&server);
    let failed = Arc::new(AtomicUsize::new(0));
    let (count, address) = (Arc::clone(&failed), server.address());
    let follow = move |names: &str| {
        let shop = Shop::connect(&address);
        let run = |sql: &str| shop.runtime.block_on(shop.client.batch_execute(sql)).unwrap();
        run("SET synchronous_commit = local");
        run(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        run("SELECT pg_reload_conf()");
    };
    let begin = follow.clone();
    let inside = move |_: &Run| {
        begin("none");
        std::thread::sleep(Duration::from_millis(300)); // until each session has read it
        Ok(())
    };
    let node = booking(&server, (&schema, HOUR), inside, move |_, committed| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(committed.map(|()| Outcome::Done)?)
    });
    let _ = node.put_to("h", &()).key("a").send().wait().unwrap();
    // A commit of the node's may wait before the handler's does.
    until("the handler knows", || {
        let waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        server.psql(&format!("SET synchronous_commit = local; SELECT pg_terminate_backend(pid) {waiting}"));
        failed.load(Ordering::SeqCst) == 1
    });
    follow("");
    until("it is done", || node.get("a").wait().is_ok_and(|job| job.is_none()));
    assert_eq!((&*effects(), failed.load(Ordering::SeqCst)), ("1", 1));
}

#[test]
fn l21_temporary_tables_of_a_session_hide_none_of_the_schema() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    for key in ["cancelled", "moved"] {
        put_raw(&store, key);
    }
    let names = server.psql(&format!("SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"));
    let likes = names.lines().map(|name| format!("CREATE TEMP TABLE {name} (LIKE {schema}.{name} INCLUDING ALL); "));
    let answer = server.psql(&format!(
        "{} SELECT {schema}.put('h', 'put', in_group => 'g') > 0, {schema}.cancel('cancelled'), {schema}.move('moved', now())",
        likes.collect::<String>()
    ));
    assert_eq!(answer, "t|cancelled|changed");
    assert_eq!(server.psql(&format!("SELECT string_agg(key, ' ' ORDER BY key) FROM {schema}.jobs")), "moved put");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.heads WHERE head IS NOT NULL")), "1");
}

/// By a policy for rows or a trigger of the user's.
#[test]
fn l21_a_put_ends_where_the_server_takes_no_row() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let _store = connect(server, &options(&schema));
    server.psql(&format!(
        "CREATE FUNCTION {schema}.keeps_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER keeps_out BEFORE INSERT ON {schema}.jobs FOR EACH ROW EXECUTE FUNCTION {schema}.keeps_out()"
    ));
    let put = format!("PERFORM {schema}.put('h', 'key')");
    server.psql(&format!(
        "SET statement_timeout = '100s'; DO $$ BEGIN {put}; RAISE division_by_zero; EXCEPTION WHEN raise_exception THEN RETURN; END $$"
    ));
}
