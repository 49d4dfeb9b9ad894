//! A time limit for each call of a service.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use timerqueue::Runtime;
use tower_layer::Layer;
use tower_service::Service;

use super::BoxError;

/// A layer that limits each call of a service; see [`Timeout`].
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::future::pending;
/// use std::time::Duration;
///
/// use timerqueue::{ManualClock, Runtime, error::Elapsed};
/// use timerqueue_adapters::tower_0_5::TimeoutLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let service = ServiceBuilder::new()
///     .layer(TimeoutLayer::on(&runtime, Duration::from_secs(5)))
///     .service(service_fn(|()| pending::<Result<(), Infallible>>()));
/// let error = clock.block_on(service.oneshot(())).unwrap_err();
/// assert!(error.is::<Elapsed>());
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TimeoutLayer {
    runtime: Runtime,
    limit: Duration,
}

impl TimeoutLayer {
    /// A limit on the [current runtime](Runtime::current) of the calling thread. `Duration::MAX`
    /// never elapses.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_adapters::tower_0_5::TimeoutLayer;
    ///
    /// let layer = TimeoutLayer::new(Duration::from_secs(5));
    /// # drop(layer);
    /// ```
    pub fn new(limit: Duration) -> Self {
        Self { runtime: Runtime::current(), limit }
    }

    /// A limit on this runtime.
    ///
    /// # Examples
    ///
    /// See [`TimeoutLayer`].
    pub fn on(runtime: &Runtime, limit: Duration) -> Self {
        Self { runtime: runtime.clone(), limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout { inner, layer: self.clone() }
    }
}

/// A service whose calls have a time limit. Made by a [`TimeoutLayer`].
///
/// The limit of a call counts from `call`. Waiting for `poll_ready` of the inner service has no
/// limit. Each poll asks the inner future first, so an answer found together with the end of the
/// limit is never lost, and a call answered at its first poll touches no queue of timers.
///
/// **Dropping** a call drops the inner future, and removes the limit from its queue at once.
///
/// **When the runtime ends**, the limit never elapses, and the call goes on without a limit.
///
/// # Errors
/// [`Elapsed`](timerqueue::error::Elapsed) after the limit; else the error of the inner service.
/// Both are boxed, as is usual with tower: `error.is::<Elapsed>()` tells them apart.
///
/// # Examples
///
/// See [`TimeoutLayer`].
#[derive(Clone, Debug)]
pub struct Timeout<S> {
    inner: S,
    layer: TimeoutLayer,
}

impl<S, R> Service<R> for Timeout<S>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> TimeoutFuture<S::Future> {
        let call = self.inner.call(request);
        TimeoutFuture { limited: timerqueue::Timeout::on(&self.layer.runtime, self.layer.limit, call) }
    }
}

pin_project! {
    /// A call of a [`Timeout`].
    ///
    /// # Examples
    ///
    /// See [`TimeoutLayer`].
    #[derive(Debug)]
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct TimeoutFuture<F> {
        #[pin]
        limited: timerqueue::Timeout<F>,
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().limited.poll(context)) {
            Ok(answer) => answer.map_err(Into::into),
            Err(elapsed) => Err(elapsed.into()),
        })
    }
}
