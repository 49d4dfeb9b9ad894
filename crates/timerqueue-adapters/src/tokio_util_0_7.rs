//! Links between our cancellation tokens and those of tokio-util 0.7.
//!
//! A program that uses both kinds, its own and a library's, links them: a cancellation of one
//! cancels the other.
//!
//! | from, to | function | which thread cancels |
//! |---|---|---|
//! | our token, their token | [`cancel_tokio`] | the canceller |
//! | their token, our source | [`cancel_source`] | a thread of the pool of the runtime |
//! | both ways | [`link`] | as above |
//!
//! No function needs an executor or starts a task.
//!
//! # Ground rules
//!
//! tokio-util wakes those that wait for a child token while it holds a lock of the parent. A
//! callback of our source that asks the parent would wait for this lock for ever. So the waker of a
//! link only hands a job to the pool, and the job cancels. The job owns a `Look`, whose destructor
//! does the work: a runtime that ends drops its jobs, and no cancellation is lost.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use timerqueue::{CancellationToken, CancellationTokenSource, Registration, Runtime};
use tokio_util::sync::{CancellationToken as TokioToken, WaitForCancellationFutureOwned};

/// Cancels `target` when `token` is cancelled.
///
/// The thread that cancels our token cancels `target`, as it runs other callbacks of the token: see
/// [`CancellationToken::register`]. If `token` has been cancelled, `target` is cancelled at once,
/// on the calling thread.
///
/// **Dropping** the registration removes the link, without waiting. `Registration::detach` keeps
/// the link for as long as the source of the token exists.
///
/// # Examples
///
/// A deadline for a library that takes a token of tokio-util:
///
/// ```
/// use std::time::Duration;
///
/// use timerqueue::CancellationTokenSource;
/// use timerqueue_adapters::tokio_util_0_7::cancel_tokio;
/// use tokio_util::sync::CancellationToken;
///
/// # smol::block_on(async {
/// let deadline = CancellationTokenSource::after(Duration::from_millis(5));
/// let theirs = CancellationToken::new();
/// let registration = cancel_tokio(&deadline.token(), &theirs);
/// theirs.cancelled().await;
/// # drop(registration);
/// # });
/// ```
pub fn cancel_tokio(token: &CancellationToken, target: &TokioToken) -> Registration {
    let target = target.clone();
    token.register(move || target.cancel())
}

/// Cancels `target` when `token` is cancelled, on a thread of the pool of the [current
/// runtime](Runtime::current).
///
/// On a manual clock, `target` is cancelled by the thread that advances the clock, at the next
/// advance, even by zero. When the runtime has ended, the thread that cancels `token` cancels
/// `target` itself. If `token` has been cancelled before this call, `target` is cancelled at once,
/// on the calling thread.
///
/// **Dropping** the link removes it, without waiting for a cancellation that is under way.
///
/// # Panics
/// When the default runtime is the current runtime, and cannot be started.
///
/// # Examples
///
/// Code with our tokens, stopped by a token of tokio-util:
///
/// ```
/// use timerqueue::CancellationTokenSource;
/// use timerqueue_adapters::tokio_util_0_7::cancel_source;
/// use tokio_util::sync::CancellationToken;
///
/// let theirs = CancellationToken::new();
/// let ours = CancellationTokenSource::new();
/// let link = cancel_source(&theirs, &ours);
/// theirs.cancel();
/// ours.token().wait(); // a thread of the pool cancels
/// # drop(link);
/// ```
pub fn cancel_source(token: &TokioToken, target: &CancellationTokenSource) -> TokioLink {
    let waiting = Mutex::new(Some(Box::pin(token.clone().cancelled_owned())));
    let waiter = Arc::new(Waiter { waiting, target: target.clone(), runtime: Runtime::current() });
    waiter.look();
    TokioLink { waiter, registration: None }
}

/// Links a source and a token both ways: a cancellation of one cancels the other.
///
/// As [`cancel_tokio`] and [`cancel_source`] together, with one link for both ways.
///
/// # Panics
/// When the default runtime is the current runtime, and cannot be started.
///
/// # Examples
///
/// ```
/// use timerqueue::CancellationTokenSource;
/// use timerqueue_adapters::tokio_util_0_7::link;
/// use tokio_util::sync::CancellationToken;
///
/// let (ours, theirs) = (CancellationTokenSource::new(), CancellationToken::new());
/// let link = link(&ours, &theirs);
/// ours.cancel();
/// assert!(theirs.is_cancelled());
/// # drop(link);
/// ```
pub fn link(source: &CancellationTokenSource, token: &TokioToken) -> TokioLink {
    let registration = cancel_tokio(&source.token(), token);
    let mut link = cancel_source(token, source);
    link.registration = Some(registration);
    link
}

/// A link from a token of tokio-util to a source of ours. Made by [`cancel_source`] and [`link`].
///
/// **Dropping** the link removes it, both ways if it leads both ways, without waiting for a
/// cancellation that is under way. So the link is kept for as long as it is needed.
///
/// # Examples
///
/// A link that has been removed:
///
/// ```
/// use timerqueue::CancellationTokenSource;
/// use timerqueue_adapters::tokio_util_0_7::link;
/// use tokio_util::sync::CancellationToken;
///
/// let (ours, theirs) = (CancellationTokenSource::new(), CancellationToken::new());
/// drop(link(&ours, &theirs));
/// ours.cancel();
/// assert!(!theirs.is_cancelled());
/// ```
#[must_use = "dropping a link removes it"]
pub struct TokioLink {
    waiter: Arc<Waiter>,
    registration: Option<Registration>,
}

impl TokioLink {
    /// Whether the link has cancelled its source, or is about to.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    /// use timerqueue_adapters::tokio_util_0_7::cancel_source;
    /// use tokio_util::sync::CancellationToken;
    ///
    /// let theirs = CancellationToken::new();
    /// theirs.cancel();
    /// assert!(cancel_source(&theirs, &CancellationTokenSource::new()).has_fired());
    /// ```
    pub fn has_fired(&self) -> bool {
        self.waiter.waiting().is_none()
    }
}

impl Drop for TokioLink {
    fn drop(&mut self) {
        // The future holds the waker, which holds the waiter, which holds the future.
        let waiting = self.waiter.waiting().take();
        drop(waiting);
    }
}

impl fmt::Debug for TokioLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioLink")
            .field("has_fired", &self.has_fired())
            .field("both_ways", &self.registration.is_some())
            .finish_non_exhaustive()
    }
}

type Waiting = Option<Pin<Box<WaitForCancellationFutureOwned>>>;

/// Waits for the cancellation of a token of tokio-util, as a task would, and cancels a source.
struct Waiter {
    /// `None`: the source is cancelled or about to be, or the link was dropped.
    waiting: Mutex<Waiting>,
    target: CancellationTokenSource,
    runtime: Runtime,
}

impl Waiter {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the future. Cancels the source if the token is cancelled.
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut waiting = self.waiting();
        let Some(future) = waiting.as_mut() else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            return;
        }
        let future = waiting.take();
        drop(waiting);
        drop(future);
        self.target.cancel();
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        let look = Look(Arc::clone(&self));
        // On a runtime that has ended, the job is dropped at once, which looks too.
        let _ = self.runtime.try_execute(move || drop(look));
    }
}

/// A look that happens when this value is dropped: by the job, or in its place.
struct Look(Arc<Waiter>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.look();
    }
}
