//! Lists and counts of a server: what they read, and what they add up.

use std::time::Duration;

use timerqueue_scheduler::store::PostgresReader;
use timerqueue_scheduler::{Query, Scheduler, State};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, Log, connect, logging, options};

#[test]
fn j13_lists_of_few_jobs_do_not_read_those_that_wait() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    drop(connect(server, &options(&schema)));
    server.psql(&format!(
        "INSERT INTO {schema}.handlers (name) VALUES ('h'); \
         INSERT INTO {schema}.jobs (id, key, handler, payload, due, wake) \
         SELECT n, n, 1, '1', 9000000000000000 + n, 9000000000000000 + n FROM generate_series(1, 20000) AS n; \
         UPDATE {schema}.jobs SET state = 3, wake = NULL, holds_key = false, died = id WHERE id <= 30; \
         UPDATE {schema}.jobs SET error = 'e' WHERE id BETWEEN 31 AND 60; ANALYZE {schema}.jobs"
    ));
    let address = format!("{} application_name={schema}", server.address());
    // Statistics come with the end of a session.
    let read = |reads: &dyn Fn(&PostgresReader)| {
        let fetched = format!(
            "SELECT coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relid = '{schema}.jobs'::regclass"
        );
        let fetched = || server.psql(&fetched).parse::<u64>().unwrap();
        let before = fetched();
        let reader = PostgresReader::connect(&options(&schema), &address).unwrap();
        reads(&reader);
        drop(reader);
        let left = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
        until("the session has ended", || server.psql(&left) == "0");
        fetched() - before
    };
    let all = read(&|reader| assert_eq!(reader.list(&Query::new().limit(20_000)).unwrap().len(), 20_000));
    assert!(all >= 20_000, "{all} rows are read for all");
    let queries = [
        Query::new().state(State::Dead),
        Query::new().failing(),
        Query::new().state(State::Recurring),
        Query::new().state(State::Running),
        Query::new().state(State::Queued),
    ];
    let soonest = read(&|reader| {
        let list = |query: Query| reader.list(&query.state(State::Waiting).soonest_first().limit(20)).unwrap();
        let first = list(Query::new());
        assert_eq!((&*first[0].key, &*first[19].key), ("31", "50"));
        assert_eq!(&*list(Query::new().after_due(first[19].due, first[19].id))[0].key, "51");
    });
    assert!(soonest < 200, "{soonest} rows are read for the soonest");
    // More than the server believes there to be.
    let some = read(&|reader| {
        let query = Query::new().state(State::Waiting).soonest_first().limit(500);
        let first = reader.list(&query).unwrap();
        assert_eq!((&*first[0].key, &*first[499].key), ("31", "530"));
        assert_eq!(&*reader.list(&query.after_job(&first[499])).unwrap()[0].key, "531");
    });
    assert!(some < 3_000, "{some} rows are read for a thousand");
    for (query, found) in queries.into_iter().zip([30, 30, 0, 0, 0]) {
        for query in [query.clone(), query.clone().newest_first()] {
            let rows = read(&|reader| assert_eq!(reader.list(&query).unwrap().len(), found));
            assert!(rows < 200, "{rows} rows are read for {query:?}");
        }
    }
    for (prefix, found) in [("1999", 11), ("none", 0), ("1", 11_110)] {
        for query in [Query::new(), Query::new().newest_first(), Query::new().soonest_first()] {
            let query = query.state(State::Waiting).key_prefix(prefix).limit(50);
            let rows = read(&|reader| assert_eq!(reader.list(&query).unwrap().len(), found.min(50)));
            // By the index of the keys: to see how many there are, and then their rows.
            let most = 2 * found as u64 + 200;
            assert!(rows < most, "{rows} rows are read for {query:?}");
        }
    }
}

#[test]
fn j17_minutes_of_an_hour_ago_are_one_row_for_each_handler() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    drop(logging(connect(server, &options(&schema)), &Log::default()));
    let counts = (0..12).map(|n| format!("late{n}")).collect::<Vec<_>>().join(", ");
    server.psql(&format!(
        "INSERT INTO {schema}.handlers (name) VALUES ('h'); \
         INSERT INTO {schema}.minutes (minute, handler, connection, done, again, failed, died, longest, {counts}) \
         SELECT {schema}.clock() / 60000000 - ago, h.id, pid, 2, 0, 1, 0, pid, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
         FROM generate_series(1, 5) AS pid, (VALUES (10), (70), (90)) AS m (ago), {schema}.handlers AS h WHERE name = 'h'"
    ));
    for _ in 0..2 {
        let node = logging(connect(server, &options(&schema)), &Log::default());
        let rows = format!("SELECT count(*), sum(done), sum(late0), max(longest) FROM {schema}.minutes");
        until("they are folded", || server.psql(&rows) == "7|30|45|5");
        let done: u64 = node
            .activity(std::time::SystemTime::now() - HOUR * 3, Duration::from_secs(600))
            .wait()
            .unwrap()
            .iter()
            .map(|at| at.done)
            .sum();
        assert_eq!(done, 30);
    }
}

/// A look that its caller has given up leaves no statement behind on the server.
#[test]
fn j13_a_look_that_nobody_waits_for_is_cancelled() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let patient = options(&schema).patience(HOUR);
    // Without a handler the engine looks at nothing for itself.
    let store = patient.connect(timerqueue::Runtime::global(), &address).unwrap();
    let node = Scheduler::builder().store(store).start().unwrap();
    let _ = node.put_to("log", &1).key("a").due(HOUR).send().wait().unwrap();
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event_type = 'Lock' \
         AND query LIKE 'SELECT job.id%'"
    );
    let locks = format!("BEGIN; LOCK TABLE {schema}.jobs IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(7); COMMIT");
    let locker = std::thread::spawn(move || server.psql(&locks));
    let held = format!(
        "SELECT count(*) FROM pg_locks WHERE relation = '{schema}.jobs'::regclass AND mode = 'AccessExclusiveLock'"
    );
    until("the table is locked", || server.psql(&held) == "1");
    let lists = [(); 3].map(|()| node.list(Query::new()));
    until("a list waits", || server.psql(&waits) == "1");
    drop(lists);
    let begun = std::time::Instant::now();
    until("no list waits", || server.psql(&waits) == "0");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    locker.join().unwrap();
    assert!(node.get("a").wait().unwrap().is_some());
}

/// Blocking calls beside a service of tokio: of a thread that runs a task, on both of its runtimes.
#[test]
fn a_reader_and_a_hold_may_be_used_within_a_task_of_tokio() {
    let Some(server) = Server::shared() else { return };
    let mut one = tokio::runtime::Builder::new_current_thread();
    let mut two = tokio::runtime::Builder::new_multi_thread();
    for tokio in [one.build().unwrap(), two.worker_threads(2).build().unwrap()] {
        let schema = new_schema();
        let address = format!("{} application_name={schema}", server.address());
        let task = async move {
            let hold = options(&schema).hold(&*address).unwrap();
            let reader = PostgresReader::connect(&options(&schema), &*address).unwrap();
            assert_eq!(reader.held().unwrap(), Some(hold));
            // The connection is lost, and made again.
            let ours = format!("FROM pg_stat_activity WHERE application_name = '{schema}'");
            server.psql(&format!("SELECT pg_terminate_backend(pid) {ours}"));
            until("the session has ended", || server.psql(&format!("SELECT count(*) {ours}")) == "0");
            assert_eq!(reader.list(&Query::new()).unwrap(), []);
            drop(reader);
            options(&schema).forget_hold(&*address).unwrap();
            // Of a failure, what was begun is dropped there too.
            let nobody = format!("{address} user=nobody_{schema}");
            assert!(PostgresReader::connect(&options(&schema), &*nobody).is_err());
        };
        tokio.block_on(tokio.spawn(task)).unwrap();
    }
}

#[test]
fn a_count_that_ends_early_comes_with_an_estimate() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let node = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let puts = |name: &'static str, jobs: usize| {
        let node = &node;
        let put = move |n: usize| node.put_to(name, &n).key(&format!("{name}/{n}")).due(HOUR);
        drop(node.put_many((0..jobs).map(put)).wait().unwrap());
    };
    puts("many", 3_000);
    puts("few", 20);
    server.psql(&format!("ANALYZE {schema}.jobs"));
    let counts = node.some_counts(1_000).wait().unwrap();
    let of = |name: &str| counts.kind(name).unwrap().estimate();
    assert_eq!((of("few"), counts.kind("many").unwrap().of(State::Waiting)), (None, 1_000));
    let (many, all) = (of("many").unwrap(), counts.estimate().unwrap());
    assert!((2_700..3_300).contains(&many), "{many}");
    assert_eq!(all, many + 20);
    let counts = node.stats().wait().unwrap().jobs;
    assert_eq!((counts.of(State::Waiting), counts.estimate()), (3_020, None));
}
