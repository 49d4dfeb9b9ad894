//! Models of the concurrent protocols, run under loom: `RUSTFLAGS="--cfg timerqueue_loom" cargo test --lib --release loom_`,
//! or `.ci/loom`.
//!
//! Ground rules. The whole crate is compiled with loom's locks and atomics in place of the real ones (`src/sync.rs`), so a
//! model runs the code that ships wherever that is possible. Each file is named after the property that its models defend, and
//! is mounted, as `loom_models`, by the module of `src` that it tests. The head of a file shows the bad interleavings, and
//! lists the broken variants with which its models were seen to fail. Here are the tools that all models use.

pub(crate) mod explore;
pub(crate) mod harness;
