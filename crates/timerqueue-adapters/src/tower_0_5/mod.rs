//! Middleware for tower 0.5: time limits and hedged requests.
//!
//! tower's own `Timeout` and `Hedge` count on tokio's timers and need a tokio runtime. [`Timeout`]
//! and [`Hedge`] count on a [`Runtime`](timerqueue::Runtime) of this project and run on any
//! executor. They use `tower-layer` and `tower-service` only.
//!
//! A retry policy that pauses needs no adapter: [`Delay`](timerqueue::Delay) is a `Future<Output =
//! ()>`, as `tower::retry::Policy` asks for. Backoffs for such policies: the feature
//! `tower-retry-0_5`.

mod hedge;
mod timeout;

pub use hedge::{Hedge, HedgeFuture, HedgeLayer};
pub use timeout::{Timeout, TimeoutFuture, TimeoutLayer};

/// The error of a limited service: [`timerqueue::error::Elapsed`], or the error of the inner
/// service. The same type as `tower::BoxError`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
