//! Timers for hyper 1.
//!
//! hyper has no timers of its own: its time limits need a [`hyper::rt::Timer`], given to a
//! connection builder by `timer`. [`HyperTimer`] is one. Through hyper-util it serves axum and
//! other frameworks as well.
//!
//! Limits that use it: `header_read_timeout` of HTTP/1 servers, which also limits how long a
//! kept-alive connection is idle; `keep_alive_interval` and `keep_alive_timeout` of HTTP/2 servers
//! and clients.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use timerqueue::{Delay, Runtime};

use crate::instant;

/// A [`hyper::rt::Timer`] on a [`Runtime`].
///
/// Exact to the nanosecond: no limit of a connection elapses early. A moved limit costs a short
/// lock section, no allocation, and mostly no system call. `now` shows the clock of the runtime, so
/// limits count on virtual time as well.
///
/// **Dropping** the timer changes nothing for sleeps that were made. Dropping a connection drops
/// its sleeps, which leave their queue at once.
///
/// **When the runtime ends**, sleeps stay pending: connections go on without a limit.
///
/// # Examples
///
/// A server that waits for up to ten seconds for the headers of each request:
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
///
/// use hyper::server::conn::http1;
/// use hyper::{Request, Response, body::Incoming, service::service_fn};
/// use hyper_util::rt::TokioIo;
/// use timerqueue_adapters::hyper_1::HyperTimer;
///
/// async fn serve(connection: tokio::net::TcpStream) -> hyper::Result<()> {
///     let hello = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(String::from("hello"))));
///     http1::Builder::new()
///         .timer(HyperTimer::new())
///         .header_read_timeout(Duration::from_secs(10))
///         .serve_connection(TokioIo::new(connection), hello)
///         .await
/// }
/// # let _ = serve;
/// ```
#[derive(Clone, Debug)]
pub struct HyperTimer {
    runtime: Runtime,
}

impl HyperTimer {
    /// A timer on the [current runtime](Runtime::current) of the calling thread.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use hyper::server::conn::http1;
    /// use timerqueue_adapters::hyper_1::HyperTimer;
    ///
    /// let mut builder = http1::Builder::new();
    /// builder.timer(HyperTimer::new());
    /// ```
    // A runtime may be started, so there is no `Default`.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { runtime: Runtime::current() }
    }

    /// A timer on this runtime.
    ///
    /// # Examples
    ///
    /// A client on virtual time, which never sends its headers:
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    ///
    /// use hyper::server::conn::http1;
    /// use hyper::{Request, Response, body::Incoming, service::service_fn};
    /// use hyper_util::rt::TokioIo;
    /// use timerqueue::{ManualClock, Runtime, error::StartError};
    /// use timerqueue_adapters::hyper_1::HyperTimer;
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let (server, _client) = tokio::io::duplex(1024);
    /// let hello = service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(String::new())));
    /// let connection = http1::Builder::new()
    ///     .timer(HyperTimer::on(&runtime))
    ///     .header_read_timeout(Duration::from_secs(10))
    ///     .serve_connection(TokioIo::new(server), hello);
    /// assert!(clock.block_on(connection).unwrap_err().is_timeout());
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(10));
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn on(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone() }
    }
}

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(HyperSleep(Delay::on(&self.runtime, duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HyperSleep(self.runtime.enter(|| Delay::until(deadline))))
    }

    fn now(&self) -> Instant {
        instant::now(&self.runtime)
    }

    /// Moves a sleep of a `HyperTimer`, which stays on its runtime. Replaces a sleep of another
    /// timer.
    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            Some(sleep) => sleep.get_mut().0.reset_at(new_deadline),
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

/// A delay, as hyper's trait for sleeps.
struct HyperSleep(Delay);

impl Future for HyperSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Sleep for HyperSleep {}
