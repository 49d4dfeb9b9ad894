//! The timer queue of a shard: a hierarchical timing wheel with exact deadlines (Varghese & Lauck
//! 1987).
//!
//! Ground rules. Pure data structures: no threads, no clock, and of the kernel nothing but memory.
//! This folder imports only `crate::{sync, time, sys}`; `benches/queue.rs` compiles it alone.
//!
//! From the ground up: [`node`] (a timer), [`list`] (the intrusive list), [`level`] (the table of
//! levels: lists in slots under a bitmap), [`wheel`] (which level and slot a timer is in, the
//! advancing threshold, what is due and what comes next). Beside them: [`state`] (the atomic word
//! about firing and disposal), [`missed_ticks`] (the next tick of a [`schedule`]), [`tick_policy`]
//! (leeway). `reference` is the plain two-list form of .NET: tests compare with it, benches measure
//! against it.

pub(crate) mod level;
pub(crate) mod list;
pub(crate) mod missed_ticks;
pub(crate) mod node;
pub(crate) mod schedule;
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
pub(crate) use schedule::{Period, Schedule};
pub(crate) use wheel::{Next, TimerWheel};
