//! Timers for quinn 0.11.
//!
//! quinn runs on a [`quinn::Runtime`]: sockets, tasks, timers and the time. [`QuinnRuntime`] wraps
//! quinn's own runtime for tokio or smol, leaves sockets and tasks to it, and replaces timers and
//! time.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket};
use timerqueue::{Delay, Runtime};

use crate::instant;

/// A [`quinn::Runtime`] with the sockets and tasks of another one, and with the timers and the
/// clock of a [`Runtime`].
///
/// Timers of connections (idle timeout, loss detection, pacing, keep-alive) never end early, and
/// are late by tens of microseconds. tokio's timers, which count in milliseconds, are late by about
/// one millisecond.
///
/// On a manual clock, the timers of connections follow virtual time, while packets travel in real
/// time: see the tests of this crate.
///
/// **Dropping** an endpoint and its connections removes their timers from the queues at once.
///
/// **When the runtime ends**, its timers wake no connection any more: an idle connection does not
/// time out, and a lost packet is not sent again. A connection with traffic still looks at the
/// clock, and does what is due by then.
///
/// # Examples
///
/// A client's endpoint on tokio:
///
/// ```
/// use std::io;
/// use std::net::UdpSocket;
/// use std::sync::Arc;
///
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use timerqueue_adapters::quinn_0_11::QuinnRuntime;
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> io::Result<()> {
///     let runtime = QuinnRuntime::new(Arc::new(TokioRuntime));
///     let socket = UdpSocket::bind("127.0.0.1:0")?;
///     let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(runtime))?;
///     assert_eq!(endpoint.open_connections(), 0);
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct QuinnRuntime {
    inner: Arc<dyn quinn::Runtime>,
    runtime: Runtime,
}

impl QuinnRuntime {
    /// Sockets and tasks of `inner`, with timers on the [current runtime](Runtime::current) of the
    /// calling thread. `inner` is `TokioRuntime`, `SmolRuntime`, or the result of
    /// `quinn::default_runtime`.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// See [`QuinnRuntime`].
    pub fn new(inner: Arc<dyn quinn::Runtime>) -> Self {
        Self { inner, runtime: Runtime::current() }
    }

    /// As [`new`](Self::new), with timers on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use quinn::SmolRuntime;
    /// use timerqueue::{ManualClock, Runtime, error::StartError};
    /// use timerqueue_adapters::quinn_0_11::QuinnRuntime;
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let quinn_runtime = QuinnRuntime::on(&runtime, Arc::new(SmolRuntime));
    /// # drop(quinn_runtime);
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn on(runtime: &Runtime, inner: Arc<dyn quinn::Runtime>) -> Self {
        Self { inner, runtime: runtime.clone() }
    }
}

impl fmt::Debug for QuinnRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuinnRuntime").field("inner", &self.inner).field("runtime", &self.runtime).finish()
    }
}

impl quinn::Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(QuinnTimer(self.runtime.enter(|| Delay::until(deadline))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.inner.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.inner.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        instant::now(&self.runtime)
    }
}

/// A delay, as quinn's trait for timers.
#[derive(Debug)]
struct QuinnTimer(Delay);

impl AsyncTimer for QuinnTimer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.0.reset_at(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}
