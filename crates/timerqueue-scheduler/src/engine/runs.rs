//! A run: from a claimed job to its settle.
//!
//! Ground rules. Code of users runs here with no lock held: handlers, executors, hooks, payloads. A
//! [`Guard`] goes with each run; if the run is dropped instead of finished (an executor that ends,
//! a runtime that has ended), the guard settles it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

use timerqueue::{CancellationTokenSource, Delay, Due, Timestamp};

use super::core::{Core, Registered, RunKey, run_key};
use super::job::{Answer, Async, BoxFuture, Call, Failure, Outcome, Run, RunInner, Spawner, contained};
use super::pending::block_on;
use super::retry::{Failed, HandlerError, mixed};
use crate::store::gate::MOST_CRASHES;
use crate::store::{
    Applied, ClaimedJob, Held, Invalid, JobId, Keep, LastRun, Micros, Op, RunEnd, Settle, Terms, Verdict, When,
    check_payload,
};
use crate::unwind::quietly;

/// When a job is tried again that its executor did not begin. At once would be for ever.
const UNBEGUN_AGAIN: Duration = Duration::from_secs(10);

/// `tokio::spawn` drops its future before it panics for want of a runtime, so that a panic cannot
/// be told from an executor that has ended.
const UNBEGUN: &str = "the run did not begin: the spawner panicked, or its executor dropped the future at once; \
                       `tokio::spawn` does both outside of a runtime, and `Handle::spawn` is for that";

/// A claimed job, registered as a run.
pub(super) struct Begun {
    pub(super) job: ClaimedJob,
    pub(super) handler: usize,
    pub(super) source: Arc<CancellationTokenSource>,
}

/// The end of a run, as a hook is told of it: [`Builder::on_run_end`](crate::Builder::on_run_end).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunRecord {
    /// The number of the job.
    pub id: JobId,
    /// The key of the job.
    pub key: Arc<str>,
    /// The name of the handler.
    pub name: Arc<str>,
    /// How it went.
    pub run: LastRun,
}

/// Settles a run that did not take place.
pub(super) fn unrun(held: Held) -> Op {
    Op::Settle(Box::new(Settle { held, verdict: Verdict::Unrun, record: None }))
}

/// Settles a run that did not take place: the job waits for this time.
pub(super) fn put_back(held: Held, wait: Duration) -> Op {
    Op::Settle(Box::new(Settle { held, verdict: Verdict::Unbegun(wait), record: None }))
}

thread_local! {
    /// The runs whose code this thread is in, innermost last: with the address of their engine.
    static INSIDE: RefCell<Vec<(usize, RunKey)>> = const { RefCell::new(Vec::new()) };
}

/// The runs of an engine whose code the calling thread is in.
pub(super) fn inside(core: &Core) -> Vec<RunKey> {
    let address = std::ptr::from_ref(core) as usize;
    let runs = INSIDE.try_with(|inside| {
        inside.borrow().iter().filter(|(engine, _)| *engine == address).map(|&(_, run)| run).collect()
    });
    runs.unwrap_or_default()
}

/// The thread is in the code of a run until this is dropped.
pub(super) struct Inside;

impl Inside {
    pub(super) fn enter(core: &Arc<Core>, held: Held) -> Self {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().push((Arc::as_ptr(core) as usize, run_key(held))));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().pop());
    }
}

/// What is known of a run from its claim to its settle.
struct Guard {
    core: Arc<Core>,
    held: Held,
    handler: usize,
    key: Arc<str>,
    #[cfg(feature = "tracing")]
    run_id: Arc<str>,
    #[cfg(feature = "tracing")]
    trace: Option<Arc<str>>,
    due: Micros,
    nominal: Option<Micros>,
    claimed: Micros,
    attempt: u32,
    /// How many of the attempts were no failures.
    crashes: u32,
    terms: Terms,
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    settled: Arc<std::sync::atomic::AtomicBool>,
    begun: Option<Timestamp>,
    finished: bool,
}

impl Core {
    /// What becomes of a job of a handler that is done.
    fn done_verdict(&self, handler: usize, result: Option<Arc<str>>) -> Verdict {
        let history = self.handlers[handler].history;
        if history.is_none() && result.is_none() && !self.keeps_done {
            return Verdict::Done;
        }
        let node = Some(Arc::clone(&self.node_name));
        Verdict::Kept(Box::new(Keep { history: history.unwrap_or_default(), node, result }))
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Core {
    /// The end of a run that is done, for a transaction of the handler's.
    pub(crate) fn done(&self, run: &RunInner) -> Op {
        let wall = self.runtime.wall_now();
        let begun = self.state.lock().runs.get(&run_key(run.held)).map(|live| live.begun);
        let duration = begun.map_or(Duration::ZERO, |begun| self.runtime.elapsed(begun));
        let record = LastRun {
            due: run.due,
            nominal: run.nominal,
            started: wall.checked_sub(duration).unwrap_or(UNIX_EPOCH),
            duration,
            attempt: run.attempt,
            end: RunEnd::Done,
            error: None,
        };
        let verdict = self.by_name.get(&run.name).map_or(Verdict::Done, |&handler| self.done_verdict(handler, None));
        Op::Settle(Box::new(Settle { held: run.held, verdict, record: Some(Box::new(record)) }))
    }
}

impl Core {
    /// Starts a run: on the pool, or on its executor. `here`: this is a thread of the pool that has
    /// nothing else to do, so a blocking handler runs on it.
    pub(super) fn run(self: &Arc<Self>, begun: Begun, here: bool) {
        let Begun { job, handler, source } = begun;
        let registered = &self.handlers[handler];
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        let settled = Arc::default();
        let run = Run {
            inner: Arc::new(RunInner {
                core: Arc::clone(self),
                id: job.held.id,
                held: job.held,
                progress: job.progress,
                #[cfg(any(feature = "postgres", feature = "sqlite"))]
                settled: Arc::clone(&settled),
                key: Arc::clone(&job.key),
                name: Arc::clone(&registered.name),
                attempt: job.attempt,
                crashes: job.crashes,
                due: job.due.to_system(),
                nominal: job.nominal.map(Micros::to_system),
                run_id: Arc::clone(&job.run),
                payload: job.payload,
                terms: job.terms,
                trace: job.trace.clone(),
                token: source.token(),
            }),
        };
        let guard = Guard {
            core: Arc::clone(self),
            held: job.held,
            handler,
            key: job.key,
            #[cfg(feature = "tracing")]
            run_id: job.run,
            #[cfg(feature = "tracing")]
            trace: job.trace,
            due: job.due,
            nominal: job.nominal,
            claimed: self.store_now(),
            attempt: job.attempt,
            crashes: job.crashes,
            terms: job.terms,
            #[cfg(any(feature = "postgres", feature = "sqlite"))]
            settled,
            begun: None,
            finished: false,
        };
        if job.expired {
            self.runtime.execute(move || guard.finish(Err(Failure::Expired)));
            return;
        }
        if job.blocked {
            self.runtime.execute(move || guard.finish(Err(Failure::Blocked)));
            return;
        }
        if job.cut_off {
            self.runtime.execute(move || guard.finish(Err(Failure::CutOff)));
            return;
        }
        if job.suspicion >= MOST_CRASHES {
            let error = format!("the process ended during the run, {} times, at last without another run", job.crashes);
            // The end of a run may call a hook of the user's.
            self.runtime.execute(move || guard.finish(Ok(Outcome::Dead(error))));
            return;
        }
        let (held, limit, grace) = (job.held, job.terms.limit.or(registered.limit), registered.grace);
        match (&registered.call, &registered.spawner) {
            (Call::Async(call), Some(spawner)) => {
                let (call, spawner) = (Arc::clone(call), spawner.clone());
                let running = Running {
                    guard: Some(guard),
                    source,
                    limit,
                    grace,
                    start: Some((call, run)),
                    future: None,
                    overdue: None,
                };
                #[cfg(feature = "tracing")]
                let running = Traced { running: Box::pin(running), span: None };
                // An executor may block, or panic: its code runs apart from the timer.
                let core = Arc::clone(self);
                self.runtime.execute(move || {
                    let _inside = Inside::enter(&core, held);
                    quietly(|| spawner.spawn(Box::pin(running)));
                });
            }
            (Call::Async(_), None) => drop(guard), // refused at the start
            (Call::Blocking(call), spawner) => {
                let (call, spawner) = (Arc::clone(call), spawner.clone());
                let run = move || {
                    let mut guard = guard;
                    guard.begin(&source, limit);
                    let inside = Inside::enter(&guard.core, held);
                    #[cfg(feature = "tracing")]
                    let span = guard.span().entered();
                    let called = || match guard.core.around.is_empty() {
                        true => call(&run),
                        false => {
                            let inner = run.clone();
                            let code = Box::pin(async move { call(&inner) });
                            block_on(&guard.core.runtime, guard.core.wrapped(&run, code).as_mut())
                        }
                    };
                    let ended = contained(|| Spawner::inside(spawner.as_ref(), called));
                    // Values that the handler shares with nothing else are dropped before the run
                    // counts as ended.
                    drop(run);
                    #[cfg(feature = "tracing")]
                    drop(span);
                    drop(inside);
                    guard.finish(ended.map_err(Failure::Error));
                };
                // A runtime that has ended drops its jobs on the thread that ends it.
                match here && !self.runtime.is_shut_down() {
                    true => run(),
                    false => self.runtime.execute(run),
                }
            }
        }
    }
}

impl Guard {
    /// The handler is about to run.
    fn begin(&mut self, source: &CancellationTokenSource, limit: Option<Duration>) {
        self.begun = Some(self.core.runtime.now());
        let late = self.core.store_now().since(self.due);
        self.core.stats.lock().lateness.add(late);
        if let Some(limit) = limit {
            let _ = source.try_cancel_after(limit); // an ended runtime has no limits
        }
    }

    /// The handler has run.
    fn finish(mut self, ended: Result<Outcome, Failure>) {
        self.settle(ended);
    }

    fn settle(&mut self, ended: Result<Outcome, Failure>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let core = &self.core;
        let duration = self.begun.map_or(Duration::ZERO, |begun| core.runtime.elapsed(begun));
        let panicked = matches!(&ended, Err(Failure::Error(error)) if error.is_panic);
        let (verdict, end, error) = {
            // The rule of a retry and the destructor of an error are code of users.
            let _inside = Inside::enter(core, self.held);
            self.judge(ended)
        };
        let record = end.map(|end| {
            Box::new(LastRun {
                due: self.due.to_system(),
                nominal: self.nominal.map(Micros::to_system),
                started: self.claimed.to_system(),
                duration,
                attempt: self.attempt,
                end,
                error: error.map(Into::into),
            })
        });
        if let Some(record) = &record {
            self.count(record, panicked);
            let _inside = Inside::enter(core, self.held);
            quietly(|| self.tell(record));
        }
        let held = self.held;
        #[cfg(any(feature = "postgres", feature = "sqlite"))]
        let settled = self.settled.load(std::sync::atomic::Ordering::Acquire);
        #[cfg(not(any(feature = "postgres", feature = "sqlite")))]
        let settled = false;
        let end = Op::Settle(Box::new(Settle { held, verdict, record }));
        core.settle(held, self.handler, end, move |core, applied| {
            // Settled by the handler itself, the run is not the job's any more.
            if applied.first() == Some(&Applied::Held(false)) && !settled {
                core.stats.lock().lost += 1;
            }
        });
    }

    fn judge(&self, ended: Result<Outcome, Failure>) -> (Verdict, Option<RunEnd>, Option<String>) {
        let error = match ended {
            Ok(Outcome::Done) => return (self.core.done_verdict(self.handler, None), Some(RunEnd::Done), None),
            Ok(Outcome::Returned(value)) => match check_payload(&value) {
                Ok(()) => {
                    let verdict = self.core.done_verdict(self.handler, Some(value.into()));
                    return (verdict, Some(RunEnd::Done), None);
                }
                Err(invalid) => {
                    let error = format!("the value of the handler cannot be kept: {invalid}");
                    return (Verdict::Dead, Some(RunEnd::Dead), Some(error));
                }
            },
            Ok(Outcome::Again(due)) => return (Verdict::Again(self.core.when_again(due)), Some(RunEnd::Again), None),
            Ok(Outcome::Dead(error)) => return (Verdict::Dead, Some(RunEnd::Dead), Some(error)),
            Ok(Outcome::PutBack) if self.terms.at_most_once => {
                HandlerError::of_text("the run was put back, and is to be begun at most once".to_owned())
            }
            Ok(Outcome::PutBack) if self.core.closing.is_cancelled() => return (Verdict::Unrun, None, None),
            Ok(Outcome::PutBack) => {
                HandlerError::of_text("the run was put back while the scheduler is open".to_owned())
            }
            Err(Failure::Unrun) => return (Verdict::Unrun, None, None),
            Err(Failure::Unbegun) => {
                return (Verdict::Unbegun(UNBEGUN_AGAIN), Some(RunEnd::Failed), Some(UNBEGUN.to_owned()));
            }
            Err(Failure::Expired) => {
                let error = "the last instant at which a run might begin had passed".to_owned();
                return (Verdict::Dead, Some(RunEnd::Expired), Some(error));
            }
            Err(Failure::CutOff) => {
                let error = "the run was cut off, and the job is begun at most once".to_owned();
                return (Verdict::Dead, Some(RunEnd::CutOff), Some(error));
            }
            Err(Failure::Blocked) => {
                let error = "a job that this one was put after was not done".to_owned();
                return (Verdict::Dead, Some(RunEnd::Blocked), Some(error));
            }
            Err(Failure::Interrupted) => {
                let error = "the executor ended during the run".to_owned();
                if self.terms.at_most_once {
                    return (Verdict::Dead, Some(RunEnd::CutOff), Some(error));
                }
                return (Verdict::Retry(Duration::ZERO), Some(RunEnd::Failed), Some(error));
            }
            Err(Failure::Error(error)) => error,
        };
        let attempts = (self.attempt, self.crashes, self.terms);
        let wait = self.core.wait_after(self.handler, self.held.id, &self.key, attempts, &error);
        let text = error.text.clone();
        quietly(|| drop(error));
        match wait {
            Some(wait) => (Verdict::Retry(wait), Some(RunEnd::Failed), Some(text)),
            None => (Verdict::Dead, Some(RunEnd::Dead), Some(text)),
        }
    }

    fn count(&self, record: &LastRun, panicked: bool) {
        let mut stats = self.core.stats.lock();
        match record.end {
            RunEnd::Done => stats.done += 1,
            RunEnd::Again => stats.again += 1,
            RunEnd::Failed => stats.retried += 1,
            RunEnd::Dead => stats.died += 1,
            RunEnd::Expired => stats.expired += 1,
            RunEnd::CutOff => stats.cut_off += 1,
            RunEnd::Blocked => stats.blocked += 1,
        }
        stats.panics += u64::from(panicked);
        stats.durations.add(record.duration);
    }

    fn tell(&self, record: &LastRun) {
        #[cfg(feature = "tracing")]
        self.trace(record);
        let Some(hook) = &self.core.hook else { return };
        let name = Arc::clone(&self.core.handlers[self.handler].name);
        let record = RunRecord { id: self.held.id, key: Arc::clone(&self.key), name, run: record.clone() };
        hook(&record);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.finished {
            if self.core.handlers[self.handler].spawner.as_ref().is_some_and(Spawner::drops_at_its_end) {
                self.core.stop();
            }
            let (closes, begun) = (self.core.closing.is_cancelled(), self.begun.is_some());
            let failure = match self.core.runtime.is_shut_down() {
                true if begun && self.terms.at_most_once => Failure::Interrupted,
                true => Failure::Unrun,
                false if closes && begun => Failure::Interrupted,
                false if closes => Failure::Unrun,
                false if !begun => Failure::Unbegun,
                false => Failure::Error(HandlerError::of_text("the executor dropped the run".to_owned())),
            };
            self.settle(Err(failure));
        }
    }
}

impl Core {
    /// The due time of an operation, for the store: it adds times to its own clock.
    pub(crate) fn when(&self, due: Due) -> Result<When, Invalid> {
        Ok(match due {
            Due::After(after) => When::After(after),
            Due::At(at) => When::After(at - self.runtime.now()),
            Due::Wall(at) => When::At(Micros::ceil(at)?),
        })
    }

    /// What follows a failed attempt: how long the job waits, or that it is dead.
    pub(super) fn wait_after(
        &self,
        handler: usize,
        id: JobId,
        key: &str,
        (attempt, crashes, terms): (u32, u32, Terms),
        error: &HandlerError,
    ) -> Option<Duration> {
        if terms.at_most_once {
            return None;
        }
        if let Some(next) = error.next {
            return next;
        }
        if error.is_permanent() {
            return None;
        }
        let Registered { name, retry, .. } = &self.handlers[handler];
        let random = mixed(self.seed, id.0, attempt);
        let attempt = attempt.saturating_sub(crashes);
        let wait = retry.wait_of(terms.attempts, attempt, random);
        retry.decide(&Failed { key, name, attempt, wait, error })
    }

    /// The due time of another run: an instant that stores do not have is moved to the nearest one.
    fn when_again(&self, due: Due) -> When {
        self.when(due).unwrap_or(match due {
            Due::Wall(at) if at < UNIX_EPOCH => When::At(Micros::FIRST),
            _ => When::At(Micros::LAST),
        })
    }
}

/// The future of a run on its executor. The handler is called at the first poll.
struct Running {
    guard: Option<Guard>,
    source: Arc<CancellationTokenSource>,
    limit: Option<Duration>,
    grace: Duration,
    start: Option<(Arc<Async>, Run)>,
    future: Option<BoxFuture<Answer>>,
    /// Ready when the grace is over after the token was cancelled. `None` before the first poll.
    overdue: Option<BoxFuture<()>>,
}

impl Running {
    fn poll_handler(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        if let Some((call, run)) = self.start.take() {
            let core = Arc::clone(&run.inner.core);
            let started = contained(|| match core.around.is_empty() {
                true => call(run),
                false => {
                    let inner = run.clone();
                    let code = Box::pin(async move {
                        let code = match call(inner) {
                            Ok(code) => code,
                            Err(error) => return Err(error),
                        };
                        code.await
                    });
                    Ok(core.wrapped(&run, code))
                }
            });
            match started {
                Ok(future) => self.future = Some(future),
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        let Some(future) = &mut self.future else { return Poll::Pending };
        match contained(|| Ok(future.as_mut().poll(context))) {
            Ok(poll) => poll,
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }

    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(guard) = &self.guard else { return Poll::Pending };
        let overdue = self.overdue.get_or_insert_with(|| {
            let (token, runtime, grace) = (self.source.token(), guard.core.runtime.clone(), self.grace);
            Box::pin(async move {
                token.cancelled().await;
                Delay::on(&runtime, grace).await;
            })
        });
        overdue.as_mut().poll(context)
    }
}

fn guard_closes(guard: Option<&Guard>) -> bool {
    guard.is_some_and(|guard| guard.core.closing.is_cancelled())
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(guard) = &mut this.guard else { return Poll::Ready(()) };
        if guard.begun.is_none() {
            guard.begin(&this.source, this.limit);
        }
        let inside = Inside::enter(&guard.core, guard.held);
        let mut ended = match this.poll_handler(context) {
            Poll::Ready(answer) => answer.map_err(Failure::Error),
            Poll::Pending if this.poll_overdue(context).is_pending() => return Poll::Pending,
            Poll::Pending if guard_closes(this.guard.as_ref()) => Err(Failure::Interrupted),
            Poll::Pending => Err(Failure::Error(HandlerError::of_text(format!(
                "the run did not end: its future was dropped {:?} after it was asked to",
                this.grace
            )))),
        };
        // The values of the future are dropped before the run counts as ended, and while the thread
        // is inside the run.
        let dropped = contained(|| {
            drop(this.future.take());
            Ok(())
        });
        if let Err(panic) = dropped {
            ended = ended.and(Err(Failure::Error(panic)));
        }
        drop(inside);
        if let Some(guard) = this.guard.take() {
            guard.finish(ended);
        }
        Poll::Ready(())
    }
}

impl Drop for Running {
    /// An executor drops the run: first the values of the handler, then the guard settles.
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            let _inside = Inside::enter(&guard.core, guard.held);
            quietly(|| drop(self.future.take()));
            quietly(|| drop(self.start.take()));
        }
    }
}

#[cfg(feature = "tracing")]
impl Guard {
    fn span(&self) -> tracing::Span {
        let name = &*self.core.handlers[self.handler].name;
        let (run_id, trace) = (&*self.run_id, self.trace.as_deref());
        tracing::info_span!("run", handler = name, key = &*self.key, attempt = self.attempt, run_id, trace)
    }

    fn trace(&self, record: &LastRun) {
        let (error, duration) = (record.error.as_deref().unwrap_or_default(), record.duration);
        let _span = self.span().entered();
        match record.end {
            RunEnd::Done | RunEnd::Again => tracing::debug!(?duration, end = ?record.end, "run ended"),
            RunEnd::Failed => tracing::warn!(?duration, error, "attempt failed"),
            RunEnd::Dead => tracing::error!(?duration, error, "job is dead"),
            RunEnd::Expired => tracing::warn!(error, "job has expired"),
            RunEnd::CutOff => tracing::error!(error, "run was cut off, and the job is dead"),
            RunEnd::Blocked => tracing::error!(error, "job is dead"),
        }
    }
}

/// A run whose polls are inside of its span.
#[cfg(feature = "tracing")]
struct Traced {
    running: Pin<Box<Running>>,
    span: Option<tracing::Span>,
}

#[cfg(feature = "tracing")]
impl Future for Traced {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.span.is_none() {
            this.span = this.running.guard.as_ref().map(Guard::span);
        }
        let _entered = this.span.as_ref().map(tracing::Span::enter);
        this.running.as_mut().poll(context)
    }
}
