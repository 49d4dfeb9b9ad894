//! A second request for calls that take long.
//!
//! Ground rules. The first request goes to the service that the caller has found ready; the second
//! to a clone of the service, which is polled until it is ready. The copy of the request is made
//! before the first call, which consumes the request.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use timerqueue::{Delay, Runtime};
use tower_layer::Layer;
use tower_service::Service;

/// Copies a request, or tells that the request must not be sent twice.
type Copier<R> = Arc<dyn Fn(&R) -> Option<R> + Send + Sync>;

/// A layer that sends a request a second time when the answer takes long; see [`Hedge`].
///
/// # Examples
///
/// The first request gets no answer; the second is sent after 10 ms and is answered at once.
///
/// ```
/// use std::convert::Infallible;
/// use std::future::pending;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_adapters::tower_0_5::HedgeLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// static SENT: AtomicU32 = AtomicU32::new(0);
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let service = ServiceBuilder::new()
///     .layer(HedgeLayer::on(&runtime, Duration::from_millis(10), |key: &u32| Some(*key)))
///     .service(service_fn(async |key: u32| match SENT.fetch_add(1, Ordering::Relaxed) {
///         0 => pending().await,
///         _ => Ok::<_, Infallible>(key + 1),
///     }));
/// assert_eq!(clock.block_on(service.oneshot(41)), Ok(42));
/// assert_eq!(clock.now().as_duration(), Duration::from_millis(10));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct HedgeLayer<R> {
    runtime: Runtime,
    after: Duration,
    copier: Copier<R>,
}

impl<R> HedgeLayer<R> {
    /// Sends a second request `after` the first, on the [current runtime](Runtime::current) of the
    /// calling thread. `copy` copies a request; `None`: the request is sent once only, for example
    /// because it changes something. `copy` runs on the thread that calls the service, before the
    /// first request is sent.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_adapters::tower_0_5::HedgeLayer;
    ///
    /// let layer = HedgeLayer::new(Duration::from_millis(10), |request: &String| Some(request.clone()));
    /// # drop(layer);
    /// ```
    pub fn new(after: Duration, copy: impl Fn(&R) -> Option<R> + Send + Sync + 'static) -> Self {
        Self::with(Runtime::current(), after, Arc::new(copy))
    }

    /// As [`new`](Self::new), on this runtime.
    ///
    /// # Examples
    ///
    /// See [`HedgeLayer`].
    pub fn on(runtime: &Runtime, after: Duration, copy: impl Fn(&R) -> Option<R> + Send + Sync + 'static) -> Self {
        Self::with(runtime.clone(), after, Arc::new(copy))
    }

    fn with(runtime: Runtime, after: Duration, copier: Copier<R>) -> Self {
        Self { runtime, after, copier }
    }
}

impl<R> Clone for HedgeLayer<R> {
    fn clone(&self) -> Self {
        Self::with(self.runtime.clone(), self.after, Arc::clone(&self.copier))
    }
}

impl<R> fmt::Debug for HedgeLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgeLayer").field("after", &self.after).field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl<S, R> Layer<S> for HedgeLayer<R> {
    type Service = Hedge<S, R>;

    fn layer(&self, inner: S) -> Hedge<S, R> {
        Hedge { inner, layer: self.clone() }
    }
}

/// A service that sends a request a second time when the answer takes long. Made by a
/// [`HedgeLayer`].
///
/// The second request goes to a clone of the inner service, once the clone is ready. The result is
/// the first answer; the other request is dropped with the future. While both requests are under
/// way, an error waits for the other request: if both fail, the later error is the result. An error
/// of the first request before the second is sent is the result at once. If the clone fails to
/// become ready, no second request is sent.
///
/// **Dropping** a call drops both requests, and removes the delay from its queue at once.
///
/// **When the runtime ends**, no second request is sent any more.
///
/// # Examples
///
/// See [`HedgeLayer`].
#[derive(Debug)]
pub struct Hedge<S, R> {
    inner: S,
    layer: HedgeLayer<R>,
}

impl<S: Clone, R> Clone for Hedge<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, R> Service<R> for Hedge<S, R>
where
    S: Service<R> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = HedgeFuture<S, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> HedgeFuture<S, R> {
        let copy = (self.layer.copier)(&request);
        let spare = copy.map(|copy| Spare { service: self.inner.clone(), copy: Some(copy) });
        let after = if spare.is_some() { self.layer.after } else { Duration::MAX };
        // The service that was found ready takes the request; a clone need not be ready.
        let clone = self.inner.clone();
        let first = mem::replace(&mut self.inner, clone).call(request);
        HedgeFuture { first: Some(first), spare, due: Delay::on(&self.layer.runtime, after), second: None }
    }
}

/// The service and the request of a second call that is not under way yet.
struct Spare<S, R> {
    service: S,
    copy: Option<R>,
}

pin_project! {
    /// A call of a [`Hedge`].
    ///
    /// # Panics
    /// When polled after it was ready.
    ///
    /// # Examples
    ///
    /// See [`HedgeLayer`].
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct HedgeFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        first: Option<S::Future>,
        #[pin]
        second: Option<S::Future>,
        spare: Option<Spare<S, R>>,
        due: Delay,
    }
}

impl<S: Service<R>, R> fmt::Debug for HedgeFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgeFuture")
            .field("first", &self.first.is_some())
            .field("second", &self.second.is_some())
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

impl<S: Service<R>, R> Future for HedgeFuture<S, R> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(first) = this.first.as_mut().as_pin_mut() {
            match first.poll(context) {
                Poll::Pending => {}
                // The second request may still succeed.
                Poll::Ready(Err(_)) if this.second.is_some() => this.first.set(None),
                Poll::Ready(answer) => return Poll::Ready(answer),
            }
        }
        if let Some(spare) = this.spare {
            ready!(Pin::new(this.due).poll(context));
            let is_ready = ready!(spare.service.poll_ready(context)).is_ok();
            if let Some(copy) = spare.copy.take().filter(|_| is_ready) {
                let second = spare.service.call(copy);
                this.second.set(Some(second));
            }
            *this.spare = None;
        }
        let Some(second) = this.second.as_mut().as_pin_mut() else { return Poll::Pending };
        match ready!(second.poll(context)) {
            Err(_) if this.first.is_some() => {
                this.second.set(None); // the first request may still succeed
                Poll::Pending
            }
            answer => Poll::Ready(answer),
        }
    }
}
