//! timerqueue
mod alarm;
mod engine;
mod home;
mod pool;
mod queue;
mod runtime;
mod sync;
mod time;
mod timer;

pub use queue::MissedTicks;
pub use runtime::{ManualClock, Runtime, RuntimeBuilder, ShutdownTimedOut, StartError, TimerBuilder};
pub use time::Timestamp;
pub use timer::{Changed, Disposal, OnceTimer, Tick, Timer, Waited};
