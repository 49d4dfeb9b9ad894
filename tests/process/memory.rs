//! Tests that count memory, or have none.
//!
//! Ground rules. The allocator of this binary counts, and can refuse all allocations of a thread.
//! What is counted for the whole process is compared in child processes alone.

#[path = "../support/mod.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod support;

mod alloc_callbacks;
mod alloc_futures;
mod allocator;
mod out_of_memory;
