//! Virtual time under executors: a future that moves a manual clock when its executor has nothing
//! else to do.
//!
//! Ground rules. The future is always woken, and counts the polls in which nothing happened: its
//! inner future was not woken, and no timer was armed on a runtime of the clock. After enough of
//! them the clock goes to the next due point. Tasks of the executor are seen only by the timers
//! that they arm.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::runtime::ManualClock;
use crate::runtime::wait::Woken;
use crate::time::Timestamp;

/// Polls in a row in which nothing happened. In between, an executor with a single thread polls
/// further tasks.
const QUIET: u32 = 64;
/// The real time between two looks while no timer waits, or while the future settles.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

pin_project! {
    /// A future on an executor of the program's, on virtual time. Made by [`ManualClock::run`].
    ///
    /// **Dropping** it drops the inner future; the clock stays where it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime, futures::Running};
    ///
    /// # smol::block_on(async {
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let running: Running<_> =
    ///     clock.run(runtime.scope(async { Delay::new(Duration::from_secs(60)).await }));
    /// running.await;
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(60));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct Running<F> {
        #[pin]
        future: F,
        clock: ManualClock,
        // The inner future. (The outer task is woken in any case.)
        woken: Arc<Woken>,
        waker: Waker,
        // The count of armed timers at the last look.
        armed: u64,
        // The time at the last look.
        at: Timestamp,
        quiet: u32,
        quiet_since: Instant,
        settle: Duration,
    }
}

impl ManualClock {
    /// Runs a future as a task of any executor, on virtual time: the clock goes to the next due
    /// point when neither the future nor a further task of the executor goes on.
    /// [`block_on`](Self::block_on) does the same for a thread without an executor, and knows
    /// exactly when nothing goes on.
    ///
    /// For tests under an executor that cannot be left, such as `#[tokio::test]`. The future polls
    /// itself again and again; after 64 polls in which it was not woken, and in which no timer was
    /// armed on the clock, the clock moves. In between, an executor with a single thread runs its
    /// other tasks.
    ///
    /// What cannot be known: a task that computes on another thread, or that waits for a file, a
    /// socket or another thread, looks like a task that waits for time. For executors with several
    /// threads see [`Running::settle`].
    ///
    /// If no timer waits, or [automatic advance](Self::set_auto_advance) is switched off, the
    /// future looks again every 200 us, and its thread sleeps in between, with the executor on it.
    ///
    /// # Examples
    ///
    /// Under tokio, with a spawned task:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// const HOUR: Duration = Duration::from_secs(3600);
    ///
    /// #[tokio::main(flavor = "current_thread")]
    /// async fn main() -> Result<(), timerqueue::error::StartError> {
    ///     let clock = ManualClock::new();
    ///     let runtime = Runtime::builder().manual_clock(&clock).start()?;
    ///     let task = tokio::spawn(runtime.scope(async { Delay::new(HOUR).await }));
    ///     clock.run(runtime.scope(async { Delay::new(2 * HOUR).await })).await;
    ///     assert!(task.is_finished());
    ///     assert_eq!(clock.now().as_duration(), 2 * HOUR);
    ///     Ok(())
    /// }
    /// ```
    pub fn run<F: Future>(&self, future: F) -> Running<F> {
        let woken = Woken::new(None);
        Running {
            future,
            clock: self.clone(),
            waker: Waker::from(Arc::clone(&woken)),
            woken,
            armed: self.armed(),
            at: self.now(),
            quiet: 0,
            quiet_since: Instant::now(),
            settle: Duration::ZERO,
        }
    }
}

impl<F> Running<F> {
    /// The real time for which nothing must happen before the clock moves. Default: zero, for
    /// executors with a single thread. With several threads a task that was woken by the last step
    /// may not have been polled yet: a millisecond or more is a usual choice, and no choice is safe
    /// on a machine that is busy enough.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// # smol::block_on(async {
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// // On another thread:
    /// let task = smol::spawn(runtime.scope(async { Delay::new(Duration::from_secs(60)).await }));
    /// clock.run(task).settle(Duration::from_millis(5)).await;
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(60));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    pub fn settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }
}

impl<F: Future> Future for Running<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.woken.take();
        if polled {
            if let Poll::Ready(value) = this.future.poll(&mut Context::from_waker(this.waker)) {
                return Poll::Ready(value);
            }
        }
        context.waker().wake_by_ref();
        // Another `run` of the same clock may have moved it, and woken tasks that are to be polled
        // first.
        let (armed, at) = (this.clock.armed(), this.clock.now());
        if polled || (armed, at) != (*this.armed, *this.at) {
            (*this.armed, *this.at) = (armed, at);
            (*this.quiet, *this.quiet_since) = (0, Instant::now());
            return Poll::Pending;
        }
        *this.quiet = this.quiet.saturating_add(1);
        if *this.quiet < QUIET {
            return Poll::Pending;
        }
        let rest = || std::thread::sleep(LOOK_AGAIN);
        if this.quiet_since.elapsed() < *this.settle {
            rest();
        } else if this.clock.go_on(rest) {
            (*this.armed, *this.at) = (this.clock.armed(), this.clock.now());
            (*this.quiet, *this.quiet_since) = (0, Instant::now());
        }
        Poll::Pending
    }
}

fused!([F: futures_core::FusedFuture] FusedFuture for Running<F>, |this| this.future.is_terminated());

shown!([F] Running [<F>], |this| "clock" => this.clock, "settle" => this.settle);
