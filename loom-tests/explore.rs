//! Exploration of a model: loom runs all its executions.
//!
//! Ground rules. A model is a closure that sets up a few objects, spawns a thread or two, joins the
//! threads and asserts. Models of two threads are explored without a bound; of three threads with
//! [`PREEMPTIONS`] preemptions; of four threads with a preemption less, or, where they run for
//! long, with one. `LOOM_MAX_PREEMPTIONS` overrides all of these bounds. A model with more than
//! [`LIMIT`] executions fails; loom's own time limit would stop the model silently, as if the model
//! had passed.
//!
//! Counters of a model that loom need not see are atomics and locks of std. Loom switches threads
//! only before its own operations, so an access to such a counter is a single step together with
//! the preceding operation.

#![allow(unsafe_code)] // `Sync` for plain data in a loom cell

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use loom::cell::UnsafeCell;

/// Preemptions: switches away from a thread that could run on. Nearly all known bugs need at most
/// two.
const PREEMPTIONS: usize = 3;
/// Executions of a single model, which take about a minute. All models together should take a
/// minute or two.
const LIMIT: u64 = 400_000;

/// Explores every execution of a model of two threads.
pub(crate) fn explore_all(model: impl Fn() + Send + Sync + 'static) {
    run(None, model);
}

/// Explores every execution of a model of three threads with at most [`PREEMPTIONS`] preemptions.
pub(crate) fn explore_bounded(model: impl Fn() + Send + Sync + 'static) {
    run(Some(PREEMPTIONS), model);
}

/// Explores every execution of a model of four threads with a preemption less.
pub(crate) fn explore_few(model: impl Fn() + Send + Sync + 'static) {
    run(Some(PREEMPTIONS - 1), model);
}

/// Explores every execution of a model of four threads that run for long, with a single preemption.
pub(crate) fn explore_fewest(model: impl Fn() + Send + Sync + 'static) {
    run(Some(1), model);
}

fn run(bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(bound);
    // With these limits loom would stop early and report success.
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

/// Stands for plain data shared by the threads of a model. Loom reports unordered accesses.
pub(crate) struct Plain(UnsafeCell<()>);

// SAFETY: the cell holds no data, and the threads of a model are coroutines of a single thread.
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
