//! Futures: delays, timeouts, intervals.
//!
//! Ground rules. No `unsafe`, and no lock of a queue: a waiting future owns an entry of the engine,
//! [`crate::engine::WakerEntry`].

mod delay;
mod ext;
mod interval;
mod running;
mod shared_interval;
#[cfg(feature = "stream")]
pub mod stream;
mod timeout;

pub use self::delay::{CancellableDelay, Delay};
pub use self::ext::TimerFutureExt;
pub use self::interval::{CancellableInterval, Interval, IntervalTick, StopHandle};
pub use self::running::Running;
pub use self::shared_interval::SharedInterval;
pub use self::timeout::{CancellableTimeout, Elapsed, Timeout, TimeoutError, timeout, timeout_at};
