//! The list of tests of `conformance`, for each store.

mod conformance;

mod memory {
    use timerqueue::{ManualClock, Runtime};
    use timerqueue_scheduler::store::{MemoryStore, Micros};

    pub(crate) struct Memory {
        clock: ManualClock,
        store: MemoryStore,
        _runtime: Runtime,
    }

    impl crate::conformance::Rig for Memory {
        type Store = MemoryStore;

        fn new() -> Self {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
            Self { store: MemoryStore::new(&runtime), clock, _runtime: runtime }
        }

        fn store(&self) -> &MemoryStore {
            &self.store
        }

        fn set_clock(&self, at: Micros) {
            self.clock.set_wall(at.to_system());
        }
    }

    crate::conformance::conformance!(Memory);
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::cell::RefCell;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use timerqueue::{ManualClock, Runtime};
    use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
    use timerqueue_scheduler::store::{Applied, Micros, Op, SqliteStore, Store};

    /// A folder that goes with its test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("timerqueue-stores-{}-{number}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// With `JOINS`, operations run in transactions of the user's.
    struct Sqlite<const JOINS: bool = false> {
        clock: ManualClock,
        store: SqliteStore,
        shop: Option<RefCell<Connection>>,
        _runtime: Runtime,
        _folder: Folder,
    }

    impl<const JOINS: bool> crate::conformance::Rig for Sqlite<JOINS> {
        type Store = SqliteStore;

        fn new() -> Self {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
            let folder = Folder::new();
            let store = SqliteStore::open(&runtime, folder.0.join("jobs.db")).unwrap();
            let shop = JOINS.then(|| RefCell::new(Connection::open(folder.0.join("jobs.db")).unwrap()));
            Self { store, clock, shop, _runtime: runtime, _folder: folder }
        }

        fn join(&self, op: &Op) -> Option<Applied> {
            let mut shop = self.shop.as_ref()?.borrow_mut();
            let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let applied = self.store.apply_in(&transaction, vec![op.clone()]).unwrap();
            transaction.commit().unwrap();
            Some(applied[0])
        }

        fn store(&self) -> &SqliteStore {
            &self.store
        }

        fn set_clock(&self, at: Micros) {
            self.clock.set_wall(at.to_system());
        }
    }

    /// After each test the rows agree with each other.
    impl<const JOINS: bool> Drop for Sqlite<JOINS> {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                self.store.check().unwrap();
            }
        }
    }

    crate::conformance::conformance!(Sqlite);

    /// `TIMERQUEUE_SEEDS` gives other seeds: how many.
    #[test]
    fn random_programs_get_the_same_answers_of_memory_and_file() {
        let seeds = std::env::var("TIMERQUEUE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(10);
        crate::conformance::random_programs::<crate::memory::Memory, Sqlite>(0..seeds, 200);
        crate::conformance::random_programs::<crate::memory::Memory, Sqlite<true>>(0..seeds / 3, 200);
    }
}

#[cfg(all(feature = "postgres", unix))]
#[path = "postgres/server.rs"]
mod server;

#[cfg(all(feature = "postgres", unix))]
#[path = "postgres/pooler.rs"]
mod pooler;

#[cfg(all(feature = "postgres", unix))]
#[path = "postgres/shop.rs"]
mod shop;

#[cfg(all(feature = "postgres", unix))]
mod postgres {
    use std::cell::RefCell;
    use std::sync::OnceLock;
    use std::time::Duration;

    use timerqueue::Runtime;
    use timerqueue_scheduler::store::{
        Applied, Micros, Op, PostgresOptions, PostgresStore, Reply, Settle, Statement, Store, Verdict,
    };

    use crate::pooler::Pooler;
    use crate::server::{Server, new_schema};
    use crate::shop::Shop;

    /// With `TIMERQUEUE_POOLED` the list runs through a pooler in transaction mode.
    fn pooler() -> Option<&'static Pooler> {
        static POOLER: OnceLock<Option<Pooler>> = OnceLock::new();
        let new = || std::env::var_os("TIMERQUEUE_POOLED").map(|_| Pooler::new(Server::shared().unwrap()).unwrap());
        POOLER.get_or_init(new).as_ref()
    }

    /// With `JOINS`, operations run in transactions of the user's as far as there are such.
    struct Postgres<const JOINS: bool = false> {
        server: &'static Server,
        schema: String,
        store: PostgresStore,
        shop: Option<RefCell<Shop>>,
    }

    impl<const JOINS: bool> Postgres<JOINS> {
        fn with_lease(lease: Duration) -> Self {
            let (server, schema) = (Server::shared().unwrap(), new_schema());
            let (mut options, mut address) = (PostgresOptions::new().schema(&schema).lease(lease), server.address());
            if let Some(pooler) = pooler() {
                (options, address) = (options.pooled(), pooler.address());
            }
            let store = options.connect(Runtime::global(), &address).unwrap();
            let shop = JOINS.then(|| RefCell::new(Shop::connect(&server.address())));
            Self { server, schema, store, shop }
        }
    }

    impl<const JOINS: bool> crate::conformance::Rig for Postgres<JOINS> {
        type Store = PostgresStore;

        const APART: Duration = Duration::from_millis(200);
        const JOINS: bool = JOINS;

        fn is_here() -> bool {
            Server::shared().is_some()
        }

        fn new() -> Self {
            Self::with_lease(Duration::from_secs(30))
        }

        fn still() -> Self {
            Self::with_lease(Duration::from_secs(86_400))
        }

        fn store(&self) -> &PostgresStore {
            &self.store
        }

        fn join(&self, op: &Op) -> Option<Applied> {
            let mut shop = self.shop.as_ref()?.borrow_mut();
            let is_recurring = matches!(op, Op::Put(new) if new.recurrence.is_some());
            let statement = self.store.statement(op.clone()).ok().filter(|_| !is_recurring)?;
            let answer = shop.transaction(async |transaction| statement.run(transaction).await);
            match op {
                // Then the engine ends the run as it likes.
                Op::Settle(settle) => {
                    let held = settle.held;
                    let end = Settle { held, verdict: Verdict::Retry(Duration::from_secs(3)), record: None };
                    let (send, receive) = std::sync::mpsc::channel();
                    let reply = Reply::new(move |applied| send.send(applied).unwrap());
                    self.store.apply(vec![Op::Settle(Box::new(end))], reply);
                    let applied = receive.recv().unwrap().unwrap()[0];
                    assert_eq!(applied, Applied::Held(answer.is_ok()));
                    Some(applied)
                }
                _ => Statement::applied(&answer.unwrap()),
            }
        }

        /// The store asks the function `clock` of its schema for the time.
        fn set_clock(&self, at: Micros) {
            let (schema, at) = (&self.schema, at.as_i64());
            let body = format!("SELECT {at}::bigint");
            self.server
                .psql(&format!("CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql AS '{body}'"));
        }
    }

    crate::conformance::conformance!(Postgres);

    /// What becomes of followers is written twice: in the rules, and in the schema.
    #[test]
    fn j36_random_programs_without_schedules_get_the_same_answers_of_memory_and_server() {
        let seeds = std::env::var("TIMERQUEUE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
        if Server::shared().is_some() {
            crate::conformance::random_jobs::<crate::memory::Memory, Postgres>(0..seeds, 80);
        }
    }

    /// Puts, cancels, moves and ends of runs mean the same in transactions of the user's.
    #[test]
    fn l21_random_programs_get_the_same_answers_in_transactions_of_the_users() {
        let seeds = std::env::var("TIMERQUEUE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(3);
        if Server::shared().is_some() {
            crate::conformance::random_programs::<Postgres, Postgres<true>>(0..seeds, 150);
        }
    }
}
