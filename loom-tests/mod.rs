//! Models of the concurrent protocols, run under loom: `RUSTFLAGS="--cfg timerqueue_loom" cargo test --lib --release loom_`,
//! or `.ci/loom`.
//!
//! Ground rules. The whole crate is compiled with loom's locks and atomics in place of the real ones (`src/sync.rs`), so a
//! model runs the code that ships wherever that is possible. Here are the models that need nothing private; those of
//! [`crate::pool::sleep`], of the count of a shard, of the portable alarm and of wall timers are mounted by these rooms
//! themselves. Each is named after what it
//! defends; the head of each file shows the bad interleavings, and lists what was broken to see the models fail.

mod alarm;
mod cancellation;
mod clock;
mod delay;
mod engine;
pub(crate) mod explore;
pub(crate) mod manual;
mod refs;
