//! Loom models of the concurrent protocols: `RUSTFLAGS="--cfg timerqueue_loom" cargo test --lib
//! --release loom_`, or `.ci/loom`.
//!
//! Ground rules. The whole crate is compiled with loom's locks and atomics in place of the real
//! ones (`src/sync.rs`), so a model runs the shipped code wherever possible. Each file is named
//! after the two sides of its race, and the module of `src` under test mounts the file as
//! `loom_models`. The head of a file shows the bad interleavings. The docs list the mutations of
//! the code with which the models were seen to fail. This module has the tools of all models.

pub(crate) mod explore;
pub(crate) mod harness;
