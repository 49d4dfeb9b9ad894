//! Claims that begin behind the rows that have left, while a snapshot keeps these in the indexes.

use std::time::Duration;

use timerqueue_scheduler::store::{Applied, PostgresStore};

use crate::locks::Open;
use crate::server::{Server, new_schema, until};
use crate::{Log, claim, connect, logging, options, put_raw};

/// A store whose clock is set by hand, after so many claims that a cursor follows it. A stall of
/// the machine looks like a step of the clock back, and costs the cursor: then less is tested.
struct Follower<'s> {
    server: &'s Server,
    schema: String,
    store: PostgresStore,
    now: i64,
}

impl<'s> Follower<'s> {
    fn new(server: &'s Server) -> Self {
        let schema = new_schema();
        let store = connect(server, &options(&schema));
        let mut new = Self { server, schema, store, now: 1_800_000_000_000_000 };
        new.follow("first");
        new
    }

    fn set(&mut self, by: i64) {
        self.now += by;
        let (schema, now) = (&self.schema, self.now);
        let sql = format!("CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql AS 'SELECT {now}'");
        self.server.psql(&sql);
    }

    fn follow(&mut self, name: &str) {
        for n in 0..10 {
            self.set(400_000);
            assert!(matches!(put_raw(&self.store, &format!("{name}/{n}")), Applied::Placed(_)));
            assert_eq!(self.claimed(), [format!("{name}/{n}")]);
        }
    }

    fn claimed(&self) -> Vec<String> {
        claim(&self.store, 7).jobs.iter().map(|job| job.key.to_string()).collect()
    }

    fn put(&self, key: &str, wake: i64) -> String {
        self.put_with(key, wake, 0)
    }

    fn put_with(&self, key: &str, wake: i64, priority: i8) -> String {
        let schema = &self.schema;
        format!(
            "INSERT INTO {schema}.jobs (id, key, handler, payload, due, wake, priority) SELECT nextval('{schema}.ids'), '{key}', id, \
             'null', {wake}, {wake}, {priority} FROM {schema}.handlers WHERE name = 'h'"
        )
    }
}

#[test]
fn j20_a_row_that_is_written_late_is_claimed_in_its_order() {
    let Some(server) = Server::shared() else { return };
    let mut node = Follower::new(server);
    let (hour, minute) = (3_600_000_000, 60_000_000);
    server.psql(&node.put("an hour ago", node.now - hour));
    assert_eq!(node.claimed(), ["an hour ago"]);
    node.follow("second");
    let schema = &node.schema;
    // As the end of a member does.
    server.psql(&format!("UPDATE {schema}.jobs SET state = 0, owner = 0, wake = due WHERE key = 'first/3'"));
    server.psql(&format!("{}; {}", node.put("now", node.now), node.put("a minute ago", node.now - minute)));
    assert_eq!(node.claimed(), ["a minute ago", "first/3", "now"]);
    assert!(claim(&node.store, 7).jobs.is_empty());
}

#[test]
fn j20_a_row_with_a_priority_that_is_written_late_is_claimed_in_its_order() {
    let Some(server) = Server::shared() else { return };
    let mut node = Follower::new(server);
    let (hour, minute) = (3_600_000_000, 60_000_000);
    server.psql(&node.put_with("first", node.now, 2));
    assert_eq!(node.claimed(), ["first"]);
    node.follow("second");
    // At once: a claim much later would look like a step of the clock.
    let ago = [("a minute ago", minute, 2), ("now", 0, 2), ("an hour ago", hour, 2)];
    let puts = ago.into_iter().chain([("now, without", 0, 0), ("now, before that", 0, 1)]);
    let puts: Vec<_> = puts.map(|(key, ago, priority)| node.put_with(key, node.now - ago, priority)).collect();
    server.psql(&puts.join("; "));
    assert_eq!(node.claimed(), ["an hour ago", "a minute ago", "now", "now, before that", "now, without"]);
}

/// Later commits move the cursor on, and it stays before what this one may have.
#[test]
fn l21_a_transaction_that_stays_open_puts_in_its_order() {
    let Some(server) = Server::shared() else { return };
    let mut node = Follower::new(server);
    let mut open = Open::new(server, &node.schema);
    open.run("SELECT put('h', 'open')");
    node.follow("second");
    open.end("COMMIT");
    assert_eq!(node.claimed(), ["open"]);
}

/// Its rows are not among those that each claim reads apart from the others.
#[test]
fn l23_a_put_whose_transaction_takes_long_is_behind_the_cursor() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    server.psql(&format!(
        "CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END'; \
         CREATE TRIGGER a_slow BEFORE INSERT ON {schema}.jobs FOR EACH ROW EXECUTE FUNCTION {schema}.slow()"
    ));
    assert!(matches!(put_raw(&store, "slow"), Applied::Placed(_)));
    assert_eq!(server.psql(&format!("SELECT early FROM {schema}.jobs")), "f");
}

#[test]
fn j9_after_a_step_back_of_the_clock_puts_are_claimed() {
    let Some(server) = Server::shared() else { return };
    let mut node = Follower::new(server);
    node.set(-10_000_000);
    assert!(matches!(put_raw(&node.store, "back"), Applied::Placed(_)));
    assert_eq!(node.claimed(), ["back"]);
    node.follow("second");
}

/// How many entries of the index of due rows a run reads, its put and its end included.
#[test]
fn l23_with_a_held_snapshot_a_run_reads_no_rows_of_those_before() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    let mut report = Open::new(server, &schema);
    report.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs");
    let run = |name: &str, jobs: usize| {
        let before = log.lock().unwrap().len();
        let put = |n: usize| node.put_to("log", &n).key(&format!("{name}/{n}"));
        assert!(node.put_many((0..jobs).map(put)).wait().unwrap().iter().all(Result::is_ok));
        until("all have run", || log.lock().unwrap().len() == before + jobs);
    };
    let entries = |name: &str| {
        let sql =
            format!("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelid = '{schema}.jobs_due'::regclass");
        // A session tells what it has read with a transaction that comes a second later.
        for n in 0..2 {
            std::thread::sleep(Duration::from_millis(1_200));
            run(&format!("{name} {n}"), 1);
        }
        server.psql(&sql).parse::<u64>().unwrap()
    };
    run("before", 3_000);
    // The cursor follows half a second behind.
    for n in 0..3 {
        std::thread::sleep(Duration::from_millis(600));
        run(&format!("then {n}"), 1);
    }
    // A stall of the machine costs the cursor, and all runs until it is back: so the best of some.
    let each = (0..5).map(|time| {
        let before = entries(&format!("told {time}"));
        (0..50).for_each(|n| run(&format!("counted {time} {n}"), 1));
        (entries(&format!("told again {time}")) - before) / 50
    });
    let few =
        each.inspect(|each| println!("{each} entries a run, beside 3,000 that have left")).find(|&each| each < 1_000);
    assert!(few.is_some());
    report.end("COMMIT");
}
