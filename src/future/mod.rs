//! Futures: delays, timeouts, intervals.
//!
//! Ground rules. No `unsafe`, and no lock of a queue: a waiting future owns an entry of the engine,
//! [`crate::engine::WakerEntry`].

/// `Stream` and `FusedStream` for a kind of interval: when it has ended, and the item of a tick.
macro_rules! stream_of_ticks {
    ($interval:ty, |$this:ident| $has_ended:expr, |$tick:ident| $item:expr) => {
        #[cfg(feature = "stream")]
        impl futures_core::Stream for $interval {
            type Item = $crate::IntervalTick;

            fn poll_next(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                self.poll_tick(context).map(|$tick| $item)
            }
        }

        fused!([] FusedStream for $interval, |$this| $has_ended);
    };
}

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
