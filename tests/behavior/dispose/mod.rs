//! Disposing, waiting, dropping and detaching: S19 to S24.
//!
//! Ground rules. Tests that hold a state still run on virtual time. Tests of several threads run on
//! real time and always under a watchdog, since a failure is a hang.

mod drop_and_detach;
mod outside_locks;
mod takes_effect;
mod wait;
mod wait_inside;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::support::poll::{PanickingWaker, panics, poll, poll_with};
use crate::support::{
    Canary, Count, Fate, Gate, Journal, NEVER, OnDrop, Own, PATIENCE, Random, block_on, claimed, eventually, lock,
    manual, ms, native, own, secs, us, within,
};
use timerqueue::{
    CancellationTokenSource, Changed, ManualClock, OnceTimer, Registration, Runtime, Tick, Timer, TimerBuilder, Waited,
    futures::Disposal,
};
