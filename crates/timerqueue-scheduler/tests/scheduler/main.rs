//! What the scheduler promises beyond the rows of `rows`: the promises J1 to J16 of DESIGN.md.

#[path = "../support/bench.rs"]
mod bench;
#[path = "../support/members.rs"]
mod members;
#[path = "../rows/mod.rs"]
mod rows;

mod around;
mod attacks;
mod changes;
mod clocks;
mod close;
mod codec;
mod executors;
mod faulty;
mod follow;
mod hostile;
mod limits;
mod model;
mod places;
mod results;
mod shown;
mod terms;
mod threads;
