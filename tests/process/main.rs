//! Whole runtimes in processes of their own: other alarms, closed descriptors, signals, forks and
//! load; and programs that must not compile.
//!
//! Ground rules. A test that changes its process, or counts in it, runs in a child process. Two
//! further binaries stand beside this one: `calls` replaces functions of the C library, and
//! `memory` the allocator.

#[cfg(target_os = "linux")]
#[path = "../support/ledger.rs"]
#[allow(dead_code)] // without affinity no file uses it
mod ledger;
#[path = "../support/mod.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod support;

mod alarm_backends;
mod closed_descriptors;
mod compile_fail;
#[cfg(feature = "affinity")]
mod signals_forks_load;
