//! The timer queue: pure data structures, no threads, no clock, and of the kernel nothing but memory.
//!
//! From the ground up: [`node`] (one timer), [`list`] (the intrusive list), [`level`] (lists in slots, found by bitmap; in
//! `pages` of their own), `fine` (a crowded slot, to the nanosecond), [`wheel`] (short, long and far timers, the rolling threshold); [`state`] (the atomic word
//! about firing and disposal), [`policy`] (when a periodic timer ticks next) and [`leeway`] (how late it may be).
//! `reference` is the plain two-list form of .NET, which tests compare with and benches measure against.
//!
//! This room imports nothing but `crate::sync`; `benches/queue.rs` compiles it on its own.

pub(crate) mod leeway;
pub(crate) mod level;
pub(crate) mod list;
pub(crate) mod node;
pub(crate) mod policy;
pub(crate) mod state;
pub(crate) mod wheel;

#[cfg(all(test, not(timerqueue_loom)))]
pub(crate) mod reference;
#[cfg(all(test, not(timerqueue_loom)))]
mod tests;

pub(crate) use node::{Kind, Node};
pub use policy::MissedTicks;
pub(crate) use policy::take_up;
pub(crate) use wheel::{Next, TimerQueue};
