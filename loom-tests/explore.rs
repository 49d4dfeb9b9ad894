//! Takes a model through all its executions.
//!
//! Ground rules. A model is a closure that sets up a few objects, spawns a thread or two, joins them and asserts. Two
//! threads are explored without a bound, three with [`PREEMPTIONS`] of them, four with one fewer (`LOOM_MAX_PREEMPTIONS` overrides all). A model
//! that is not through within [`LIMIT`] fails: loom's own limit of time would end it in silence, as if it had passed.
//!
//! What a model counts for itself, and what loom need not see, is kept in atomics and locks of std: loom switches threads
//! only before an operation of its own, so these are as good as one step with the operation that precedes them.

#![allow(unsafe_code)] // plain data, see below

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::cell::UnsafeCell;

/// Interruptions of a thread that could have gone on; nearly all known bugs need no more than two.
const PREEMPTIONS: usize = 3;
/// Executions of one model, about a minute of them. All models together are meant to take a minute or two.
const LIMIT: u64 = 400_000;

/// Every execution of a model of two threads.
pub(crate) fn explore_all(model: impl Fn() + Send + Sync + 'static) {
    run(None, model);
}

/// Every execution of a model of three threads with few preemptions.
pub(crate) fn explore_bounded(model: impl Fn() + Send + Sync + 'static) {
    run(Some(PREEMPTIONS), model);
}

/// Executions of a model of four threads with fewer.
pub(crate) fn explore_few(model: impl Fn() + Send + Sync + 'static) {
    run(Some(PREEMPTIONS - 1), model);
}

fn run(bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(bound);
    // Loom would stop early and call it a success.
    builder.max_duration = None;
    builder.max_permutations = None;
    let bound = builder.preemption_bound;

    let begun = Instant::now();
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    builder.check(move || {
        let count = count.fetch_add(1, Ordering::Relaxed);
        assert!(count < LIMIT, "{count} executions, and more to come");
        model();
    });
    let (executions, took) = (executions.load(Ordering::Relaxed), begun.elapsed());
    assert!(executions > 1, "nothing happens concurrently in this model");
    let bound = bound.map_or(String::from("no bound"), |bound| format!("{bound} preemptions"));
    let thread = std::thread::current();
    println!("{}: {executions} executions, {bound}, {took:.2?}", thread.name().unwrap_or("model"));
}

/// Stands for plain data that threads of a model share. Loom reports accesses that nothing orders.
pub(crate) struct Plain(UnsafeCell<()>);

// SAFETY: there is nothing in it, and the threads of a model are coroutines of one thread.
unsafe impl Sync for Plain {}

impl Plain {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(()))
    }

    pub(crate) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
