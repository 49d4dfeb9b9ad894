//! The threads of the pool: callbacks that block, fairness, growth, and other users of the crates that the pool depends on.
//!
//! Ground rules. No test relies on an idle machine or on an interleaving. What must happen is awaited, and the load that could
//! prevent it goes on meanwhile.

mod blocked_callbacks;
mod fairness;
mod other_crates;
