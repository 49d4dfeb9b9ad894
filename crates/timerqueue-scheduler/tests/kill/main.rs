//! Processes that are killed at random moments, and machines whose power is cut, with a ledger
//! outside of the file.

mod ledger;
#[cfg(target_os = "linux")]
mod power;
mod processes;
