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
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use timerqueue::{ManualClock, Runtime};
    use timerqueue_scheduler::store::{Micros, SqliteStore};

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

    struct Sqlite {
        clock: ManualClock,
        store: SqliteStore,
        _runtime: Runtime,
        _folder: Folder,
    }

    impl crate::conformance::Rig for Sqlite {
        type Store = SqliteStore;

        fn new() -> Self {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
            let folder = Folder::new();
            let store = SqliteStore::open(&runtime, folder.0.join("jobs.db")).unwrap();
            Self { store, clock, _runtime: runtime, _folder: folder }
        }

        fn store(&self) -> &SqliteStore {
            &self.store
        }

        fn set_clock(&self, at: Micros) {
            self.clock.set_wall(at.to_system());
        }
    }

    /// After each test the rows agree with each other.
    impl Drop for Sqlite {
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
    }
}

#[cfg(all(feature = "postgres", unix))]
#[path = "postgres/server.rs"]
mod server;

#[cfg(all(feature = "postgres", unix))]
#[path = "postgres/pooler.rs"]
mod pooler;

#[cfg(all(feature = "postgres", unix))]
mod postgres {
    use std::sync::OnceLock;
    use std::time::Duration;

    use timerqueue::Runtime;
    use timerqueue_scheduler::store::{Micros, PostgresOptions, PostgresStore};

    use crate::pooler::Pooler;
    use crate::server::{Server, new_schema};

    /// With `TIMERQUEUE_POOLED` the list runs through a pooler in transaction mode.
    fn pooler() -> Option<&'static Pooler> {
        static POOLER: OnceLock<Option<Pooler>> = OnceLock::new();
        let new = || std::env::var_os("TIMERQUEUE_POOLED").map(|_| Pooler::new(Server::shared().unwrap()).unwrap());
        POOLER.get_or_init(new).as_ref()
    }

    struct Postgres {
        server: &'static Server,
        schema: String,
        store: PostgresStore,
    }

    impl crate::conformance::Rig for Postgres {
        type Store = PostgresStore;

        const APART: Duration = Duration::from_millis(200);

        fn is_here() -> bool {
            Server::shared().is_some()
        }

        fn new() -> Self {
            let (server, schema) = (Server::shared().unwrap(), new_schema());
            let (mut options, mut address) = (PostgresOptions::new().schema(&schema), server.address());
            if let Some(pooler) = pooler() {
                (options, address) = (options.pooled(), pooler.address());
            }
            let store = options.connect(Runtime::global(), &address).unwrap();
            Self { server, schema, store }
        }

        fn store(&self) -> &PostgresStore {
            &self.store
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
}
