//! Tests of the promises of the crate, by subject. The name of a test begins with the number of the
//! promise (DESIGN.md).
//!
//! Tests that need a process, an allocator or functions of the C library of their own are in
//! `tests/process`. Random programs against a reference are in `tests/model`, and long runs on real
//! time in `tests/stress`.

#[path = "../support/mod.rs"]
mod support;

mod api;
mod cancellation;
mod change;
mod child_processes;
mod delay;
mod delay_queue;
mod dispose;
mod executors;
#[cfg(feature = "stream")]
mod fused;
mod interval;
mod metrics;
mod names;
mod observer;
mod queues;
mod shared_interval;
mod shutdown;
#[cfg(feature = "stream")]
mod streams;
mod threads;
mod timeout;
mod timers;
mod util;
mod virtual_time;
mod wall;
