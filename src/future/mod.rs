//! Futures: delays, timeouts, intervals.
//!
//! Ground rules. No `unsafe`, and no lock of a queue: a waiting future owns an entry of the engine,
//! [`crate::engine::WakerEntry`].

mod cancellable_delay;
mod cancellable_interval;
mod delay;
mod ext;
mod interval;
mod running;
mod shared_interval;
#[cfg(feature = "stream")]
pub mod stream;
mod timeout;

pub use self::cancellable_delay::CancellableDelay;
pub use self::cancellable_interval::CancellableInterval;
pub use self::delay::Delay;
pub use self::ext::TimerFutureExt;
pub use self::interval::{Interval, IntervalTick, StopHandle};
pub use self::running::Running;
pub use self::shared_interval::SharedInterval;
pub use self::timeout::{CancellableTimeout, Elapsed, Timeout, TimeoutError, timeout, timeout_at};
