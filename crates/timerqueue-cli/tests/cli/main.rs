//! The program, run as a user runs it, on files in folders of their own.

#![cfg(unix)]

mod files;
mod jobs;
mod processes;
mod support;
mod web;
mod worker;
