//! What disposing, waiting, dropping and detaching promise: S19 to S24.
//!
//! Ground rules. Virtual time where a state can be held still. Where threads must meet, real time and always a watchdog, since
//! a failure here is a hang.

mod drop_and_detach;
mod outside_locks;
mod takes_effect;
mod wait;
mod wait_inside;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::{
    Canary, Count, Fate, Gate, Journal, NEVER, OnDrop, Own, PATIENCE, block_on, claimed, eventually, lock, manual, ms,
    native, own, secs, us, within,
};
use timerqueue::{Changed, Disposal, ManualClock, OnceTimer, Runtime, Tick, Timer, Waited};
