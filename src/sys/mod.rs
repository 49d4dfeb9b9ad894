//! What the crate asks of the operating system, but for the alarms: CPUs, threads, forks, memory.
//!
//! Ground rules. Other modules of the crate see safe functions and types. No lock of the crate is taken.

pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod os;
pub(crate) mod thread;
pub(crate) mod topology;
