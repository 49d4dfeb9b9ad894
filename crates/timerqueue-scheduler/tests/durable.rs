//! The scheduler on a file: restarts, several processes, transactions of the user's, and files that
//! fail.

#[path = "support/members.rs"]
mod members;
#[path = "durable/support.rs"]
mod support;

#[path = "durable/bound.rs"]
mod bound;
#[path = "durable/faults.rs"]
mod faults;
#[path = "durable/follow.rs"]
mod follow;
#[path = "durable/moved.rs"]
mod moved;
#[path = "durable/places.rs"]
mod places;
#[path = "durable/processes.rs"]
mod processes;
#[path = "durable/reader.rs"]
mod reader;
#[path = "durable/restart.rs"]
mod restart;
#[path = "durable/rows.rs"]
mod rows;
#[path = "durable/transactions.rs"]
mod transactions;
#[cfg(unix)]
#[path = "durable/users.rs"]
mod users;
