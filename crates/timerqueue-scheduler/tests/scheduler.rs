//! What the scheduler promises beyond the rows of `rows.rs`: the promises J1 to J16 of DESIGN.md.

#[path = "support/bench.rs"]
mod bench;

#[path = "scheduler/attacks.rs"]
mod attacks;
#[path = "scheduler/changes.rs"]
mod changes;
#[path = "scheduler/clocks.rs"]
mod clocks;
#[path = "scheduler/close.rs"]
mod close;
#[path = "scheduler/executors.rs"]
mod executors;
#[path = "scheduler/hostile.rs"]
mod hostile;
#[path = "scheduler/limits.rs"]
mod limits;
#[path = "scheduler/places.rs"]
mod places;
#[path = "scheduler/threads.rs"]
mod threads;
