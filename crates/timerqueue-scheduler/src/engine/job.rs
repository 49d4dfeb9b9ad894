//! What users write: jobs, handlers, and what a handler gets and returns.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use timerqueue::{CancellationToken, Due};

use super::core::Core;
use super::pending::Pending;
use super::retry::{HandlerError, Permanent, Retry};
use crate::debug::debug_of;
use crate::store::{ClaimedJob, Error, History, JobId, Limits, Micros, Rate, RunEnd};
use crate::unwind::caught;

/// A type of payload with the name of its handler.
///
/// The payload is kept as JSON text, so a job waits as data and not as code: a later process with a
/// handler of this name can run it. The name is part of the stored data; a type may be renamed, its
/// `NAME` should not.
///
/// # Examples
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use timerqueue_scheduler::Job;
///
/// #[derive(Serialize, Deserialize)]
/// struct SendSms {
///     campaign: u64,
///     to: String,
/// }
///
/// impl Job for SendSms {
///     const NAME: &'static str = "send-sms";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the handler: 1 to 512 bytes, without NUL.
    const NAME: &'static str;
}

/// What a handler says about its run.
///
/// # Examples
///
/// A campaign in parts, with its progress in the payload of another job, or a look again in a
/// minute:
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::Outcome;
///
/// fn look(ready: bool) -> Outcome {
///     if ready { Outcome::Done } else { Outcome::again(Duration::from_secs(60)) }
/// }
/// # assert!(matches!(look(true), Outcome::Done));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is done, and leaves the store.
    Done,
    /// The job is done, with this value as JSON text: at most 256 KiB, without NUL. It is kept with
    /// the done job, if that is [kept](Handler::history). Made by [`Outcome::returned`] and
    /// [`Returned`].
    Returned(String),
    /// The job is to run again then, as a new run: attempts count from 1. An instant that has
    /// passed means at once.
    Again(Due),
    /// The job is dead, without further attempts. The text is kept as its error.
    Dead(String),
    /// The run was stopped by the end of the scheduler: the job waits as before, and the attempt
    /// does not count. A run whose token is cancelled at the limit of a
    /// [close](crate::Scheduler::close) may return it. While the scheduler is open, it is a failed
    /// attempt.
    PutBack,
}

impl Outcome {
    /// [`Outcome::Returned`], with this value.
    ///
    /// # Errors
    ///
    /// The value cannot be written as JSON.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Outcome;
    ///
    /// assert_eq!(Outcome::returned(&[1, 2]).unwrap(), Outcome::Returned("[1,2]".into()));
    /// ```
    pub fn returned(value: &impl Serialize) -> Result<Self, HandlerError> {
        serde_json::to_string(value).map(Self::Returned).map_err(|error| HandlerError::new(Permanent::new(error)))
    }

    /// [`Outcome::Again`], from a `Duration`, a `Timestamp` or a `SystemTime`.
    #[must_use]
    pub fn again(due: impl Into<Due>) -> Self {
        Self::Again(due.into())
    }
}

/// A value that a handler may return: `()`, an [`Outcome`], or a `Result` of either, whose error is
/// a failed attempt. The error is kept as `{:#}` writes it: with its causes, if it is one of
/// `anyhow` or `eyre`. After one that is [`Permanent`](crate::Permanent) no attempt follows.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{IntoOutcome, Outcome};
///
/// assert_eq!(().into_outcome().unwrap(), Outcome::Done);
/// let parsed: Result<(), _> = "x".parse::<u32>().map(|_| ());
/// assert_eq!(parsed.into_outcome().unwrap_err().to_string(), "invalid digit found in string");
/// ```
pub trait IntoOutcome {
    /// The outcome, or the error of a failed attempt.
    ///
    /// # Errors
    ///
    /// The attempt failed.
    fn into_outcome(self) -> Result<Outcome, HandlerError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<Outcome, HandlerError> {
        Ok(Outcome::Done)
    }
}

/// The value of a handler, which is kept with its done job, if that is [kept](Handler::history).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use timerqueue::{ManualClock, Runtime};
/// # use timerqueue_scheduler::*;
/// # let clock = ManualClock::new();
/// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let sum = Handler::new("sum", |parts: Vec<u32>, _: &Run| Returned(parts.iter().sum::<u32>()));
/// let sum = sum.history(History::new(Duration::from_secs(3_600)));
/// let scheduler = Scheduler::builder().runtime(&runtime).register(sum).start()?;
/// let id = scheduler.put_to("sum", &[1, 2, 3]).send().wait()?.added().unwrap();
/// clock.advance(Duration::ZERO);
/// let done = scheduler.get_finished(id).wait()?.unwrap();
/// assert_eq!(done.value::<u32>().unwrap()?, 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned<T>(pub T);

impl<T: Serialize> IntoOutcome for Returned<T> {
    fn into_outcome(self) -> Result<Outcome, HandlerError> {
        Outcome::returned(&self.0)
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Result<Outcome, HandlerError> {
        Ok(self)
    }
}

impl<T: IntoOutcome, E: fmt::Display + 'static> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<Outcome, HandlerError> {
        self.map_err(HandlerError::new)?.into_outcome()
    }
}

/// One run of a job, as its handler sees it. A handle: clones are the same run.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Outcome, Run, Scheduler};
///
/// let builder = Scheduler::builder().handler("import", |file: String, run: &Run| {
///     for part in 0..10 {
///         if run.token().is_cancelled() {
///             return Err(format!("stopped in part {part} of {file}"));
///         }
///     }
///     Ok(Outcome::Done)
/// });
/// # drop(builder);
/// ```
#[derive(Clone)]
pub struct Run {
    pub(crate) inner: Arc<RunInner>,
    pub(super) token: CancellationToken,
}

/// What is known of a run from its claim on.
pub(crate) struct RunInner {
    pub(crate) core: Arc<Core>,
    pub(crate) job: ClaimedJob,
    pub(super) handler: usize,
    /// The handler has settled the run in a transaction of its own.
    pub(crate) settled: AtomicBool,
}

impl RunInner {
    pub(super) fn limit(&self) -> Option<Duration> {
        self.job.terms.limit.or(self.core.settings.handlers[self.handler].limit)
    }
}

impl Run {
    /// The number of the job. A run of a recurring job has its own.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.inner.job.held.id
    }

    /// The key of the job.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.inner.job.key
    }

    /// The name of the handler.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.job.name
    }

    /// The number of this attempt, from 1. On a file a cut of the power may take the count of an
    /// attempt with it that had begun within the last second: then the next one has the same
    /// number.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.job.attempt
    }

    /// How many of the attempts before the end of their process has cut off, since the last
    /// success. They are no failures. From the second one in a row on, no other run of the process
    /// is under way.
    #[must_use]
    pub fn crashes(&self) -> u32 {
        self.inner.job.crashes
    }

    /// When the job was due; a repeated attempt is due after its wait.
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.inner.job.due.to_system()
    }

    /// The nominal instant of the occurrence, for a run of a recurring job that a schedule asked
    /// for.
    #[must_use]
    pub fn nominal(&self) -> Option<SystemTime> {
        self.inner.job.nominal.map(Micros::to_system)
    }

    /// What the attempts before this one have [left](Self::save_progress). `None`: nothing.
    ///
    /// # Errors
    ///
    /// It is no value of this type.
    pub fn progress<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.inner.job.progress.as_deref().map(serde_json::from_str).transpose()
    }

    /// Leaves a value to the next attempt at this run, such as how far it has come: at most 256 KiB
    /// of JSON, instead of what was left before. One commit of the store. The value is there after
    /// a failure, a crash and a revival of the job; another run at the request of the handler
    /// ([`Outcome::Again`]) begins without. [`JobInfo::progress`](crate::JobInfo::progress) shows
    /// it. False: the run is not the job's any more, and nothing was written. A handler that goes
    /// on then does what another run does again.
    ///
    /// # Errors
    ///
    /// [`Error::NotSerializable`](crate::Error::NotSerializable),
    /// [`Error::Invalid`](crate::Error::Invalid), [`Error::Store`](crate::Error::Store).
    ///
    /// # Examples
    ///
    /// An import that goes on where the attempt before has failed:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let import = |lines: Vec<String>, run: &Run| -> Result<(), Box<dyn std::error::Error>> {
    ///     let first = run.progress()?.unwrap_or(0);
    ///     for (n, line) in lines.iter().enumerate().skip(first) {
    ///         if line == "bad" && run.attempt() == 1 {
    ///             return Err("a line that fails once".into());
    ///         }
    ///         if !run.save_progress(&(n + 1)).wait()? {
    ///             break; // another node runs the job by now
    ///         }
    ///     }
    ///     assert_eq!(first, if run.attempt() == 1 { 0 } else { 1 });
    ///     Ok(())
    /// };
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("import", import).start()?;
    /// let _ = scheduler.put_to("import", &["good", "bad"]).key("a").send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.get("a").wait()?.unwrap().progress.as_deref(), Some("1"));
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(scheduler.stats().wait()?.done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save_progress(&self, value: &impl Serialize) -> Pending<bool> {
        let RunInner { core, job, .. } = &*self.inner;
        let json = serde_json::to_string(value).map_err(|error| Error::NotSerializable { reason: error.to_string() });
        Pending::begun(json.map(|json| core.save_progress(job.held, json.into())))
    }

    /// A text that all attempts at this run share, and no other run has: for calls elsewhere that
    /// must take effect once. In a store that lasts it is the same after a restart and in each
    /// process.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.inner.job.run
    }

    /// The payload as the store has it: JSON text, encoded if there is a
    /// [`Codec`](crate::Codec).
    #[must_use]
    pub fn payload(&self) -> &str {
        &self.inner.job.payload
    }

    /// The context of the trace in which the job was put, as [`Put::trace`](crate::Put::trace) or
    /// [`Builder::trace_puts`](crate::Builder::trace_puts) has given it. All runs of a recurring
    /// job have that of its put.
    #[must_use]
    pub fn trace(&self) -> Option<&str> {
        self.inner.job.trace.as_deref()
    }

    /// Cancelled when the run is asked to stop: its limit of time has passed, its job was cancelled
    /// or replaced, or the limit of a close has passed. An async handler that ignores the token is
    /// dropped after its [grace](Handler::grace); a blocking one goes on, and keeps its place.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// How long this attempt may take: by its [put](crate::Put::limit), or else by its
    /// [handler](Handler::limit). `None`: without a limit.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.inner.limit()
    }

    /// Cancelled when the scheduler begins to close. The run may finish within the limit of the
    /// close.
    #[must_use]
    pub fn closing(&self) -> CancellationToken {
        self.inner.core.closing.token()
    }
}

debug_of!(Run, |run| name: run.name(), key: run.key(), attempt: run.attempt(), due: run.due());

/// How an attempt went wrong.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error or a panic of the handler, or of a hook around it: there may be another attempt.
    Error(HandlerError),
    /// The executor has dropped the run while the scheduler closes: there is another attempt, as
    /// after the end of the process.
    Interrupted,
    /// The run did not begin, since its scheduler ends.
    Unrun,
    /// The run did not begin, since its executor took no future.
    Unbegun,
    /// The run did not begin, and the job is dead: how that counts, and why.
    Refused(RunEnd, String),
}

/// What the code of a run has ended with.
pub(crate) type Answer = Result<Outcome, HandlerError>;
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Blocking = dyn Fn(&Run) -> Answer + Send + Sync;
pub(crate) type Async = dyn Fn(Run) -> Result<BoxFuture<Answer>, HandlerError> + Send + Sync;

/// Where the futures of async handlers run.
#[derive(Clone)]
pub(crate) enum Spawner {
    /// A closure of the user's.
    Own(Arc<dyn Fn(BoxFuture<()>) + Send + Sync>),
    #[cfg(feature = "tokio")]
    Tokio(tokio::runtime::Handle),
}

impl Spawner {
    pub(super) fn spawn(&self, future: BoxFuture<()>) {
        match self {
            Self::Own(spawn) => spawn(future),
            #[cfg(feature = "tokio")]
            Self::Tokio(handle) => drop(handle.spawn(future)),
        }
    }

    /// Whether a future is dropped only at the end of its executor.
    pub(super) fn drops_at_its_end(&self) -> bool {
        !matches!(self, Self::Own(_))
    }

    /// The code runs in the context of the executor, where there is one.
    pub(super) fn inside<R>(spawner: Option<&Self>, code: impl FnOnce() -> R) -> R {
        #[cfg(feature = "tokio")]
        if let Some(Self::Tokio(handle)) = spawner {
            let _entered = handle.enter();
            return code();
        }
        let _ = spawner;
        code()
    }
}

#[derive(Clone)]
pub(crate) enum Call {
    Blocking(Arc<Blocking>),
    Async(Arc<Async>),
}

/// A handler with its limits: the code that runs the jobs of a name.
///
/// # Examples
///
/// At most two at a time, ten seconds each, three attempts:
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::{Handler, Retry, Run, Scheduler};
///
/// let handler = Handler::new("thumbnail", |path: String, run: &Run| println!("{path}, attempt {}", run.attempt()))
///     .parallel(2)
///     .limit(Duration::from_secs(10))
///     .retry(Retry::new(3));
/// let builder = Scheduler::builder().register(handler);
/// # drop(builder);
/// ```
#[must_use = "a handler does nothing until it is registered"]
pub struct Handler {
    pub(crate) name: Arc<str>,
    pub(crate) call: Call,
    pub(crate) parallel: usize,
    pub(crate) limits: Limits,
    pub(crate) limit: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) retry: Retry,
    pub(crate) spawner: Option<Spawner>,
    /// `None`: as the scheduler says.
    pub(crate) history: Option<Option<History>>,
}

fn decoded<P: DeserializeOwned>(run: &Run) -> Result<P, HandlerError> {
    let json = run.inner.core.decoded(run.payload())?;
    serde_json::from_str(&json).map_err(HandlerError::unreadable)
}

impl Handler {
    /// The number of runs at a time, unless [`parallel`](Self::parallel) sets another.
    pub const PARALLEL: usize = 32;
    /// How long an async run may go on after it was asked to end, unless [`grace`](Self::grace)
    /// sets another time.
    pub const GRACE: Duration = Duration::from_secs(10);

    /// A handler that may block. It runs on the pool of the runtime, which grows while handlers
    /// block.
    pub fn new<P, R>(name: &str, handler: impl Fn(P, &Run) -> R + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned,
        R: IntoOutcome,
    {
        let call = move |run: &Run| handler(decoded(run)?, run).into_outcome();
        Self::of(name, Call::Blocking(Arc::new(call)))
    }

    /// As [`new`](Self::new), for a payload with a name.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::{Handler, Run};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct SendSms { to: String }
    /// # impl timerqueue_scheduler::Job for SendSms { const NAME: &'static str = "send-sms"; }
    ///
    /// let handler = Handler::on(|sms: SendSms, _: &Run| println!("{}", sms.to)).parallel(4);
    /// # drop(handler);
    /// ```
    pub fn on<J: Job, R: IntoOutcome>(handler: impl Fn(J, &Run) -> R + Send + Sync + 'static) -> Self {
        Self::new(J::NAME, handler)
    }

    /// An async handler. Its future runs where the [spawner](Self::spawner) puts it.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::{Handler, Outcome, Run};
    ///
    /// let handler = Handler::new_async("mail", |to: String, run: Run| async move {
    ///     println!("to {to}, due {:?}", run.due());
    ///     Outcome::Done
    /// });
    /// # drop(handler);
    /// ```
    pub fn new_async<P, R, F>(name: &str, handler: impl Fn(P, Run) -> F + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned,
        R: IntoOutcome,
        F: Future<Output = R> + Send + 'static,
    {
        let call = move |run: Run| {
            let future = handler(decoded(&run)?, run);
            let ended = async move { future.await.into_outcome() };
            Ok::<BoxFuture<Answer>, HandlerError>(Box::pin(ended))
        };
        Self::of(name, Call::Async(Arc::new(call)))
    }

    /// As [`new_async`](Self::new_async), for a payload with a name.
    pub fn on_async<J, R, F>(handler: impl Fn(J, Run) -> F + Send + Sync + 'static) -> Self
    where
        J: Job,
        R: IntoOutcome,
        F: Future<Output = R> + Send + 'static,
    {
        Self::new_async(J::NAME, handler)
    }

    fn of(name: &str, call: Call) -> Self {
        Self {
            name: name.into(),
            call,
            parallel: Self::PARALLEL,
            limits: Limits::default(),
            limit: None,
            grace: Self::GRACE,
            retry: Retry::default(),
            spawner: None,
            history: None,
        }
    }

    /// The most runs at a time. Zero counts as one. Default: [`Handler::PARALLEL`].
    pub fn parallel(self, runs: usize) -> Self {
        Self { parallel: runs.max(1), ..self }
    }

    /// The most runs at a time on all nodes of the store together, beside
    /// [`parallel`](Self::parallel) on each. Zero counts as one. Default: no limit.
    ///
    /// The store keeps the limit as it gives jobs out, so it holds at each instant. The runs of a
    /// node that is gone keep their places until their leases end. Each node keeps the limit that
    /// its own handler has: give all of them the same.
    ///
    /// # Examples
    ///
    /// A service that takes five calls at a time, on any number of nodes:
    ///
    /// ```
    /// use timerqueue_scheduler::{Handler, Run};
    ///
    /// let handler = Handler::new("invoice", |id: u64, _: &Run| println!("{id}")).parallel(4).parallel_everywhere(5);
    /// # drop(handler);
    /// ```
    pub fn parallel_everywhere(mut self, runs: u64) -> Self {
        self.limits.everywhere = Some(runs.max(1));
        self
    }

    /// The most runs at a time of the jobs with one [group](crate::Put::group). With one,
    /// jobs of a group run one after another, in the order of their due times. Zero counts as
    /// one. Default: no limit but the others.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::{Handler, Run, Scheduler};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let notes = Arc::clone(&seen);
    /// let handler = Handler::new("book", move |n: u32, _: &Run| notes.lock().unwrap().push(n)).parallel_per_group(1);
    /// let scheduler = Scheduler::builder().runtime(&runtime).register(handler).start()?;
    /// for n in 0..10 {
    ///     let _ = scheduler.put_to("book", &n).group("account/17").send().wait()?;
    /// }
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(*seen.lock().unwrap(), (0..10).collect::<Vec<_>>());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parallel_per_group(mut self, runs: u64) -> Self {
        self.limits.group = Some(runs.max(1));
        self
    }

    /// How often a run may begin on all nodes of the store together: at most this number of runs at
    /// once, and one more each `per / runs` from then on. So in any time `t` at most `runs + t *
    /// runs / per` begin. Counted on the store's clock, in whole microseconds. Attempts that follow
    /// a failed one count as well. Zero runs count as one. Default: no limit.
    ///
    /// # Examples
    ///
    /// Ten mails a second, at most ten at once:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::{Handler, Run, Scheduler};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let handler = Handler::new("mail", |_: u32, _: &Run| {}).rate(10, Duration::from_secs(1));
    /// let scheduler = Scheduler::builder().runtime(&runtime).register(handler).start()?;
    /// for n in 0..100 {
    ///     let _ = scheduler.put_to("mail", &n).send().wait()?;
    /// }
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.stats().wait()?.done, 10);
    /// clock.advance(Duration::from_millis(500));
    /// assert_eq!(scheduler.stats().wait()?.done, 15);
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(scheduler.stats().wait()?.done, 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rate(mut self, runs: u32, per: Duration) -> Self {
        self.limits.rate = Some(Rate { runs: runs.max(1), per });
        self
    }

    /// The limit of time of each run, on the runtime's clock. When it has passed, the
    /// [token](Run::token) of the run is cancelled. An async run that ignores the token is dropped
    /// after its [grace](Self::grace). A blocking run that ignores it goes on and keeps its place.
    /// Default: no limit.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// How long an async run may go on after its [token](Run::token) was cancelled: by its
    /// [limit](Self::limit), by a cancel or a replacement of its job, or by the limit of a close.
    /// Then its future is dropped, on its executor, and the attempt has failed. A future that
    /// blocks its thread cannot be dropped, nor can a blocking handler. On the runtime's clock.
    /// Default: [`Handler::GRACE`].
    ///
    /// # Examples
    ///
    /// A call that may take a minute, and two seconds more to clean up:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_scheduler::{Handler, Run};
    ///
    /// let call = |url: String, run: Run| async move {
    ///     println!("call {url}");
    ///     run.token().cancelled().await; // or the answer
    /// };
    /// let handler = Handler::new_async("call", call).limit(Duration::from_secs(60)).grace(Duration::from_secs(2));
    /// # drop(handler);
    /// ```
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// What follows a failed attempt. Default: [`Retry::default`], 25 attempts over three weeks.
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// How long done jobs are kept, and their keys taken; `None`: not at all. Default: as the
    /// [scheduler](crate::Builder::history) says. A handler that keeps nothing costs nothing.
    pub fn history(self, history: impl Into<Option<History>>) -> Self {
        Self { history: Some(history.into()), ..self }
    }

    /// Where the futures of this async handler run, if not where the
    /// [scheduler's](crate::Builder::spawner) do.
    pub fn spawner(self, spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static) -> Self {
        Self { spawner: Some(Spawner::Own(Arc::new(spawn))), ..self }
    }
}

debug_of!(Handler, |handler|
    name: handler.name, parallel: handler.parallel, limit: handler.limit, retry: handler.retry
);

/// Drops a value of the user's. A panic is a failure.
pub(super) fn dropped<T>(value: T) -> Result<(), HandlerError> {
    contained(|| {
        drop(value);
        Ok(())
    })
}

/// Polls code of the user's. A panic is a failure.
pub(super) fn polled(code: &mut BoxFuture<Answer>, context: &mut Context<'_>) -> Poll<Answer> {
    contained(|| Ok(code.as_mut().poll(context))).unwrap_or_else(|panic| Poll::Ready(Err(panic)))
}

/// Runs code of the user's. A panic is a failure.
pub(super) fn contained<T>(code: impl FnOnce() -> Result<T, HandlerError>) -> Result<T, HandlerError> {
    caught(code).unwrap_or_else(|text| Err(HandlerError::of_panic(text)))
}
