//! The threads of the pool: callbacks that block, fairness, growth, and other users of the crates
//! that the pool depends on.
//!
//! Ground rules. No test relies on an idle machine or on an interleaving. A test awaits the event
//! that must happen, and the load that could prevent the event goes on meanwhile.

mod blocked_callbacks;
mod fairness;
mod hooks;
mod other_crates;
mod sleeping;
