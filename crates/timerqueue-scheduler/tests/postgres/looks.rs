//! Lists and counts of a server: what they read, and what they add up.

use std::time::Duration;

use timerqueue_scheduler::store::PostgresReader;
use timerqueue_scheduler::{Query, State};

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
    for (query, found) in queries.into_iter().zip([30, 30, 0, 0, 0]) {
        for query in [query.clone(), query.clone().newest_first()] {
            let rows = read(&|reader| assert_eq!(reader.list(&query).unwrap().len(), found));
            assert!(rows < 200, "{rows} rows are read for {query:?}");
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
