//! The list of tests of `conformance`, for each store.

mod conformance;

mod memory {
    use timerqueue::{ManualClock, Runtime};
    use timerqueue_scheduler::store::{MemoryStore, Micros};

    struct Memory {
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

    crate::conformance::conformance!(Sqlite);
}
