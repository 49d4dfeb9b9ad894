//! What the crate asks of the operating system, but for the alarms: CPUs, threads, forks, memory.
//!
//! Ground rules. Everything here is a safe function or type; no lock of the crate is taken.

pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod thread;
pub(crate) mod topology;
pub(crate) mod zeroed;
