//! The program, run as a user runs it, on files in folders of their own, and on schemas of a server
//! that goes with the tests.

#![cfg(unix)]

/// The same tests on a file and on a server.
macro_rules! on_each_store {
    ($($name:ident)*) => {
        mod on_a_file {
            $(#[test] fn $name() { super::$name(crate::support::Folder::new()); })*
        }
        #[cfg(feature = "postgres")]
        mod on_a_server {
            $(#[test] fn $name() { crate::support::Folder::on_server().map(super::$name); })*
        }
    };
}

mod cron_and_at;
mod files;
mod jobs;
mod processes;
mod restore;
#[cfg(feature = "postgres")]
#[path = "../../../timerqueue-scheduler/tests/postgres/server.rs"]
mod server;
#[cfg(feature = "postgres")]
mod servers;
mod support;
mod web;
mod worker;
