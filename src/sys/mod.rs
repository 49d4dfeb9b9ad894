//! The interface to the operating system, except for the alarms: CPUs, threads, forks, memory.
//!
//! Ground rules. The rest of the crate sees safe functions and types. No function here takes a lock of the crate.

pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod os;
pub(crate) mod thread;
pub(crate) mod topology;
