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
