//! The threads of the pool beside code of other people: fairness, growth, the end of a runtime, and other users of what the
//! crate depends on.
//!
//! Ground rules. Nothing here relies on an idle machine or on an interleaving: what must happen is awaited, while what would
//! have kept it from happening goes on.

#[path = "../common/mod.rs"]
mod common;

mod end;
mod fairness;
mod neighbours;
