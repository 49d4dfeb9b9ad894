//! Harness for the models of cancellation: registered callbacks that record their calls and their
//! drop.
//!
//! The models run the shipped code through its public API; a timed cancel goes by a manual clock. A
//! source that has spread has a single additional shard, since a model has a single CPU
//! (`src/sys/cpu.rs`).

mod cancel_async_vs_close;
mod cancel_vs_register;
mod link_vs_cancel;
mod mark_vs_cause;
mod timed_vs_reset;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use loom::thread::{self, JoinHandle};

use crate::cancellation::{CancelReason, CancellationToken, CancellationTokenSource, Registration};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};
use crate::loom_models::harness::{Manual, Task};
use crate::runtime::wait::park_on as block_on;
use crate::sync::Mutex;

/// The records of a registered callback.
#[derive(Clone)]
struct Traces(Arc<Trace>);

struct Trace {
    called: Tally,
    dropped: Tally,
    /// The data that the callback writes.
    data: Plain,
}

/// The payload of a callback.
struct Payload(Traces);

impl Drop for Payload {
    fn drop(&mut self) {
        self.0.0.dropped.fetch_add(1, Relaxed);
    }
}

impl Traces {
    fn new() -> Self {
        Self(Arc::new(Trace { called: Tally::new(0), dropped: Tally::new(0), data: Plain::new() }))
    }

    fn callback(&self) -> impl FnOnce() + Send + 'static {
        let payload = Payload(self.clone());
        move || {
            let trace = &payload.0.0;
            trace.data.write();
            trace.called.fetch_add(1, Relaxed);
        }
    }

    fn register(&self, token: &CancellationToken) -> Registration {
        token.register(self.callback())
    }

    fn called(&self) -> usize {
        self.0.called.load(Relaxed)
    }

    fn dropped(&self) -> usize {
        self.0.dropped.load(Relaxed)
    }
}

fn cancel(source: &CancellationTokenSource) -> JoinHandle<bool> {
    let source = source.clone();
    thread::spawn(move || source.cancel())
}
