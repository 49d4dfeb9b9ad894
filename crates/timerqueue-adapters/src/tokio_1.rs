//! Tasks of tokio 1 that keep the current runtime of the code which spawns them.
//!
//! A task that code under test spawns by `tokio::spawn` has left the test's
//! [scope](timerqueue::Runtime::scope): its delays count in real time. [`spawn`] and
//! [`spawn_local`] take the scope along. For a `JoinSet` and further ways to spawn, and for other
//! executors: [`in_current_runtime`](timerqueue::TimerFutureExt::in_current_runtime).

use std::future::Future;

use timerqueue::TimerFutureExt;
use tokio::task::JoinHandle;

/// Spawns a task by `tokio::spawn`; its polls have the [current
/// runtime](timerqueue::Runtime::current) of this call as their current runtime. Where that is the
/// default runtime, the same as `tokio::spawn`.
///
/// # Panics
/// Outside of a tokio runtime, as `tokio::spawn`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Delay, ManualClock, Runtime};
/// use timerqueue_adapters::tokio_1::spawn;
///
/// async fn code_under_test() {
///     spawn(async { Delay::new(Duration::from_secs(3600)).await }).await.unwrap();
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// clock.run(runtime.scope(code_under_test())).await;
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(3600));
/// # Ok(())
/// # })
/// # }
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future.in_current_runtime())
}

/// As [`spawn`], for a future that is not `Send`: by `tokio::task::spawn_local`.
///
/// # Panics
/// Outside of a `LocalSet`, as `tokio::task::spawn_local`.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(future.in_current_runtime())
}
