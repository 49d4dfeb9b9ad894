//! The command line of `timerqueue-scheduler`: `timerqueue`.
//!
//! Ground rules. Commands that only look use a [`Reader`](store::Reader), which writes nothing.
//! Commands that change start a scheduler without handlers, which runs no job. [`worker`] alone
//! runs jobs. No output goes through `println!`: a closed pipe is no panic ([`out`]).

#![forbid(unsafe_code)]

#[cfg(unix)]
mod args;
#[cfg(unix)]
mod change;
#[cfg(unix)]
mod check;
#[cfg(unix)]
mod crontab;
#[cfg(unix)]
mod exit;
#[cfg(unix)]
mod look;
#[cfg(unix)]
mod man;
#[cfg(unix)]
mod out;
#[cfg(unix)]
mod place;
#[cfg(unix)]
mod put;
#[cfg(unix)]
mod restore;
#[cfg(unix)]
mod store;
#[cfg(unix)]
mod tail;
#[cfg(unix)]
mod text;
#[cfg(unix)]
mod web;
#[cfg(unix)]
mod worker;

#[cfg(unix)]
mod program;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    eprintln!("timerqueue: the store on a file needs a Unix");
    std::process::ExitCode::FAILURE
}
