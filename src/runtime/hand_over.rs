//! Handing callbacks over to an executor of the program's.
//!
//! Ground rules. The pool claims a tick as ever, and passes the tick on as a job. The thread that
//! runs the job takes the step from queued to running; so all rules of the state word hold on any
//! thread.

use std::time::Duration;

use super::RuntimeBuilder;
use crate::engine::{HandedOver, Outline};
use crate::time::{NEVER, Timestamp};

/// A callback to be run by the program: a due one for its executor
/// ([`RuntimeBuilder::callback_executor`]), or one that never ran, after the end of its runtime
/// ([`Runtime::shutdown_now`](crate::Runtime::shutdown_now)).
///
/// **Dropping** a job that was not run disposes its timer: the callback never runs again, and
/// waiters for the end of the timer are woken.
///
/// # Examples
///
/// Callbacks on a thread of the program's own, one after another:
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use timerqueue::{OnceTimer, Runtime, observe::CallbackJob};
///
/// let (jobs, queue) = mpsc::channel::<CallbackJob>();
/// let runtime = Runtime::builder()
///     .callback_executor(move |job| _ = jobs.send(job))
///     .start()?;
/// let own = std::thread::current().id();
/// let timer = OnceTimer::on(&runtime, Duration::from_millis(1), move |_| {
///     assert_eq!(std::thread::current().id(), own)
/// });
/// queue.recv().unwrap().run();
/// assert_eq!((runtime.metrics().fired(), runtime.metrics().panics), (1, 0));
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "dropping a job disposes its timer"]
pub struct CallbackJob {
    job: HandedOver,
}

impl CallbackJob {
    pub(super) fn of(job: HandedOver) -> Self {
        Self { job }
    }

    /// The [name](crate::TimerBuilder::name) of the timer.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.job.entry()?.name()
    }

    /// The due point of the tick. After the end of the runtime perhaps still to come; of a wall
    /// timer, the instant at which the runtime would have looked at the wall clock.
    #[must_use]
    pub fn scheduled(&self) -> Timestamp {
        Timestamp::from_ns(self.job.scheduled())
    }

    /// The period of the timer; `None` for a one-shot.
    #[must_use]
    pub fn period(&self) -> Option<Duration> {
        let period = Outline::of(self.job.entry()?).period;
        (period != NEVER).then(|| Duration::from_nanos(period))
    }

    /// Runs the callback on the calling thread, unless the timer was changed or disposed. A due
    /// callback of an executor's does not run either if its runtime has ended. A panic of the
    /// callback is caught and counted. The runtime of the timer is the
    /// [current](crate::Runtime::current) one meanwhile.
    pub fn run(self) {
        self.job.run();
    }
}

shown!([] CallbackJob, |this|
    "timer_name" => this.timer_name(), "scheduled" => format_args!("{}", this.scheduled())
);

impl RuntimeBuilder {
    /// Runs callbacks on an executor of the program's instead of the pool: `executor` gets a job
    /// for each due callback, on a thread of the pool, and passes the job on to a thread that calls
    /// [`CallbackJob::run`]. Without meaning on a manual clock.
    ///
    /// Callbacks of timers, of timed cancels and of wall timers, and jobs of
    /// [`Runtime::execute`](crate::Runtime::execute), are handed over. Wakers of delays, timeouts
    /// and intervals are not.
    ///
    /// **What stays.** No callback starts early, nor after a change or disposal. A timer has at
    /// most one job at a time with the executor; ticks that come due meanwhile are deferred and
    /// counted. A job that begins late passes the deferred tick to the executor first, so a
    /// callback that blocks does not keep the ticks of its timer. Panics are contained. A shutdown
    /// waits for the callbacks that run; a job that has not begun by then does nothing.
    ///
    /// **What the executor decides.** How late a callback is, and in which order callbacks run.
    /// That a callback that blocks delays no other holds only as far as the executor has a further
    /// thread. A job that waits in the executor's queue keeps the memory of its timer.
    ///
    /// If `executor` panics, the panic is counted as that of a callback, and the job is dropped.
    ///
    /// # Examples
    ///
    /// Callbacks that block, on the threads that tokio has for this:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{OnceTimer, Runtime};
    ///
    /// # let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # executor.block_on(async {
    /// let tokio = tokio::runtime::Handle::current();
    /// let runtime = Runtime::builder()
    ///     .callback_executor(move |job| _ = tokio.spawn_blocking(move || job.run()))
    ///     .start()?;
    /// let (send, receive) = tokio::sync::oneshot::channel();
    /// let timer = OnceTimer::on(&runtime, Duration::from_millis(1), move |_| {
    ///     send.send("on a thread of tokio's").unwrap()
    /// });
    /// println!("{}", receive.await.unwrap());
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "spawn_blocking")]
    pub fn callback_executor(mut self, executor: impl Fn(CallbackJob) + Send + Sync + 'static) -> Self {
        self.executor = Some(Box::new(move |job| executor(CallbackJob { job })));
        self
    }
}
