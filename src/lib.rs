//! timerqueue
#![allow(dead_code)]
mod queue;
mod sync;
pub use queue::MissedTicks;
