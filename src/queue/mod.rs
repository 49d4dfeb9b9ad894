//! The timer queue: pure data structures, no threads, no clock, and of the kernel nothing but memory.
//!
//! From the ground up: [`node`] (one timer), [`list`] (the intrusive list), [`level`] (lists in slots, found by bitmap; in
//! `pages` of their own), `fine` (a crowded slot, to the nanosecond), [`wheel`] (short, long and far timers, the rolling threshold); [`state`] (the atomic word
//! about firing and disposal), [`missed_ticks`] (when a periodic timer ticks next) and [`tick_policy`] (how late it may be).
//! `reference` is the plain two-list form of .NET, which tests compare with and benches measure against.
//!
//! This room imports nothing but `crate::sync`; `benches/queue.rs` compiles it on its own.

pub(crate) mod level;
pub(crate) mod list;
pub(crate) mod missed_ticks;
pub(crate) mod node;
pub(crate) mod state;
pub(crate) mod tick_policy;
pub(crate) mod wheel;

#[cfg(all(test, not(timerqueue_loom)))]
pub(crate) mod reference;
#[cfg(all(test, not(timerqueue_loom)))]
mod tests;

pub use missed_ticks::MissedTicks;
pub(crate) use missed_ticks::next_tick;
pub(crate) use node::{Kind, Node};
pub(crate) use wheel::{Next, TimerWheel};
