//! A run: from a claimed job to its settle.
//!
//! Ground rules. Code of users runs here with no lock held: handlers, executors, hooks, payloads. A
//! [`Guard`] goes with each run; if the run is dropped instead of finished (an executor that ends,
//! a runtime that has ended), the guard settles it.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue::{CancellationTokenSource, Delay, Due, Timestamp};

use super::core::{Core, RunKey, run_key};
use super::job::{
    Answer, Async, BoxFuture, Call, Failure, Handler, Outcome, Run, RunInner, Spawner, contained, dropped, polled,
};
use super::pending::block_on;
use super::retry::{Failed, HandlerError, mixed};
use crate::store::gate::MOST_CRASHES;
use crate::store::{
    Applied, ClaimedJob, Held, Invalid, JobId, Keep, LastRun, Micros, Op, RunEnd, Settle, Verdict, When, check_payload,
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

/// Settles a run.
fn end_of(held: Held, verdict: Verdict, record: Option<Box<LastRun>>) -> Op {
    Op::Settle(Box::new(Settle { held, verdict, record }))
}

/// Settles a run that did not take place.
pub(super) fn unrun(held: Held) -> Op {
    end_of(held, Verdict::Unrun, None)
}

/// Settles a run that did not take place: the job waits for this time.
pub(super) fn put_back(held: Held, wait: Duration) -> Op {
    end_of(held, Verdict::Unbegun(wait), None)
}

/// Why the handler of a claimed job is not called, if it is not: how that counts, and the error.
pub(super) fn refusal(job: &ClaimedJob) -> Option<(RunEnd, String)> {
    let (end, error) = match job {
        job if job.expired => (RunEnd::Expired, "the last instant at which a run might begin had passed"),
        job if job.blocked => (RunEnd::Blocked, "a job that this one was put after was not done"),
        job if job.cut_off => (RunEnd::CutOff, "the run was cut off, and the job is begun at most once"),
        job if job.suspicion >= MOST_CRASHES => {
            let times = job.crashes;
            let error = format!("the process ended during the run, {times} times, at last without another run");
            return Some((RunEnd::Dead, error));
        }
        _ => return None,
    };
    Some((end, error.to_owned()))
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

/// Settles its run: at the end of the handler, or when it is dropped.
struct Guard {
    run: Arc<RunInner>,
    claimed: Micros,
    begun: Option<Timestamp>,
    finished: bool,
}

impl RunInner {
    fn record(&self, started: SystemTime, duration: Duration, end: RunEnd, error: Option<String>) -> Box<LastRun> {
        Box::new(LastRun {
            due: self.job.due.to_system(),
            nominal: self.job.nominal.map(Micros::to_system),
            started,
            duration,
            attempt: self.job.attempt,
            end,
            error: error.map(Into::into),
        })
    }
}

impl Core {
    /// What becomes of a job of a handler that is done.
    fn done_verdict(&self, handler: usize, result: Option<Arc<str>>) -> Verdict {
        let history = self.settings.handlers[handler].history.flatten();
        if history.is_none() && result.is_none() && !self.keeps_done {
            return Verdict::Done;
        }
        let node = Some(Arc::clone(&self.settings.node_name));
        Verdict::Kept(Box::new(Keep { history: history.unwrap_or_default(), node, result }))
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Core {
    /// The end of a run that is done, for a transaction of the handler's.
    pub(crate) fn done(&self, run: &RunInner) -> Op {
        let wall = self.runtime.wall_now();
        let begun = self.state.lock().runs.get(&run_key(run.job.held)).map(|live| live.begun);
        let duration = begun.map_or(Duration::ZERO, |begun| self.runtime.elapsed(begun));
        let started = wall.checked_sub(duration).unwrap_or(UNIX_EPOCH);
        let (held, verdict) = (run.job.held, self.done_verdict(run.handler, None));
        end_of(held, verdict, Some(run.record(started, duration, RunEnd::Done, None)))
    }
}

impl Core {
    /// Starts a run: on the pool, or on its executor. `here`: this is a thread of the pool that has
    /// nothing else to do, so a blocking handler runs on it.
    pub(super) fn run(self: &Arc<Self>, begun: Begun, here: bool) {
        let Begun { job, handler, source } = begun;
        let registered = &self.settings.handlers[handler];
        let (held, grace) = (job.held, registered.grace);
        let refused = refusal(&job);
        let inner = Arc::new(RunInner { core: Arc::clone(self), job, handler, settled: AtomicBool::new(false) });
        let limit = inner.limit();
        let mut guard = Guard { run: Arc::clone(&inner), claimed: self.store_now(), begun: None, finished: false };
        if let Some((end, error)) = refused {
            // The end of a run may call a hook of the user's.
            return self.runtime.execute(move || guard.settle(Err(Failure::Refused(end, error))));
        }
        let run = Run { inner, token: source.token() };
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
                    guard.begin(&source, limit);
                    let inside = Inside::enter(&guard.run.core, held);
                    #[cfg(feature = "tracing")]
                    let span = guard.span().entered();
                    let called = || match guard.run.core.settings.around.is_empty() {
                        true => call(&run),
                        false => {
                            let inner = run.clone();
                            let code = Box::pin(async move { call(&inner) });
                            let core = &guard.run.core;
                            block_on(&core.runtime, core.wrapped(&run, code).as_mut())
                        }
                    };
                    let ended = contained(|| Spawner::inside(spawner.as_ref(), called));
                    // Values that the handler shares with nothing else are dropped before the run
                    // counts as ended.
                    drop(run);
                    #[cfg(feature = "tracing")]
                    drop(span);
                    drop(inside);
                    guard.settle(ended.map_err(Failure::Error));
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
        let RunInner { core, job, .. } = &*self.run;
        self.begun = Some(core.runtime.now());
        core.stats.lock().lateness.add(core.store_now().since(job.due));
        if let Some(limit) = limit {
            let _ = source.try_cancel_after(limit); // an ended runtime has no limits
        }
    }

    /// The handler has run, or will not.
    fn settle(&mut self, ended: Result<Outcome, Failure>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let RunInner { core, job, handler, .. } = &*self.run;
        let (held, duration) = (job.held, self.begun.map_or(Duration::ZERO, |begun| core.runtime.elapsed(begun)));
        let panicked = matches!(&ended, Err(Failure::Error(error)) if error.is_panic);
        let (verdict, end, error) = {
            // The rule of a retry and the destructor of an error are code of users.
            let _inside = Inside::enter(core, held);
            self.judge(ended)
        };
        let record = end.map(|end| self.run.record(self.claimed.to_system(), duration, end, error));
        if let Some(record) = &record {
            self.count(record, panicked);
            let _inside = Inside::enter(core, held);
            quietly(|| self.tell(record));
        }
        let settled = self.run.settled.load(Ordering::Acquire);
        core.settle(held, *handler, end_of(held, verdict, record), move |core, applied| {
            // Settled by the handler itself, the run is not the job's any more.
            if applied.first() == Some(&Applied::Held(false)) && !settled {
                core.stats.lock().lost += 1;
            }
        });
    }

    fn judge(&self, ended: Result<Outcome, Failure>) -> (Verdict, Option<RunEnd>, Option<String>) {
        let RunInner { core, job, handler, .. } = &*self.run;
        let dead = |end, error| (Verdict::Dead, Some(end), Some(error));
        let error = match ended {
            Ok(Outcome::Done) => return (core.done_verdict(*handler, None), Some(RunEnd::Done), None),
            Ok(Outcome::Returned(value)) => match check_payload(&value) {
                Ok(()) => return (core.done_verdict(*handler, Some(value.into())), Some(RunEnd::Done), None),
                Err(invalid) => {
                    return dead(RunEnd::Dead, format!("the value of the handler cannot be kept: {invalid}"));
                }
            },
            Ok(Outcome::Again(due)) => return (Verdict::Again(core.when_again(due)), Some(RunEnd::Again), None),
            Ok(Outcome::Dead(error)) => return dead(RunEnd::Dead, error),
            Ok(Outcome::PutBack) if job.terms.at_most_once => {
                HandlerError::of_text("the run was put back, and is to be begun at most once".to_owned())
            }
            Ok(Outcome::PutBack) if core.closing.is_cancelled() => return (Verdict::Unrun, None, None),
            Ok(Outcome::PutBack) => {
                HandlerError::of_text("the run was put back while the scheduler is open".to_owned())
            }
            Err(Failure::Unrun) => return (Verdict::Unrun, None, None),
            Err(Failure::Unbegun) => {
                return (Verdict::Unbegun(UNBEGUN_AGAIN), Some(RunEnd::Failed), Some(UNBEGUN.to_owned()));
            }
            Err(Failure::Refused(end, error)) => return dead(end, error),
            Err(Failure::Interrupted) => {
                let error = "the executor ended during the run".to_owned();
                if job.terms.at_most_once {
                    return dead(RunEnd::CutOff, error);
                }
                return (Verdict::Retry(Duration::ZERO), Some(RunEnd::Failed), Some(error));
            }
            Err(Failure::Error(error)) => error,
        };
        let wait = core.wait_after(&self.run, &error);
        let text = error.text.clone();
        quietly(|| drop(error));
        match wait {
            Some(wait) => (Verdict::Retry(wait), Some(RunEnd::Failed), Some(text)),
            None => dead(RunEnd::Dead, text),
        }
    }

    fn count(&self, record: &LastRun, panicked: bool) {
        let mut stats = self.run.core.stats.lock();
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
        let RunInner { core, job, .. } = &*self.run;
        let Some(hook) = &core.settings.on_run_end else { return };
        let (key, name) = (Arc::clone(&job.key), Arc::clone(&job.name));
        let record = RunRecord { id: job.held.id, key, name, run: record.clone() };
        hook(&record);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.finished {
            let RunInner { core, job, handler, .. } = &*self.run;
            if core.settings.handlers[*handler].spawner.as_ref().is_some_and(Spawner::drops_at_its_end) {
                core.stop();
            }
            let (closes, begun) = (core.closing.is_cancelled(), self.begun.is_some());
            let failure = match core.runtime.is_shut_down() {
                true if begun && job.terms.at_most_once => Failure::Interrupted,
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
    pub(super) fn wait_after(&self, run: &RunInner, error: &HandlerError) -> Option<Duration> {
        let RunInner { job, handler, .. } = run;
        if job.terms.at_most_once {
            return None;
        }
        if let Some(next) = error.next {
            return next;
        }
        if error.is_permanent() {
            return None;
        }
        let Handler { name, retry, .. } = &self.settings.handlers[*handler];
        let random = mixed(self.settings.seed, job.held.id.0, job.attempt);
        let attempt = job.attempt.saturating_sub(job.crashes);
        let wait = retry.wait_of(job.terms.attempts, attempt, random);
        retry.decide(&Failed { key: &job.key, name, attempt, wait, error })
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
            let started = contained(|| match core.settings.around.is_empty() {
                true => call(run),
                false => {
                    let inner = run.clone();
                    let code = Box::pin(async move {
                        let code = call(inner)?; // apart, since an error is not `Send`
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
        self.future.as_mut().map_or(Poll::Pending, |future| polled(future, context))
    }

    fn poll_overdue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(guard) = &self.guard else { return Poll::Pending };
        let overdue = self.overdue.get_or_insert_with(|| {
            let (token, runtime, grace) = (self.source.token(), guard.run.core.runtime.clone(), self.grace);
            Box::pin(async move {
                token.cancelled().await;
                Delay::on(&runtime, grace).await;
            })
        });
        overdue.as_mut().poll(context)
    }
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(guard) = &mut this.guard else { return Poll::Ready(()) };
        if guard.begun.is_none() {
            guard.begin(&this.source, this.limit);
        }
        let inside = Inside::enter(&guard.run.core, guard.run.job.held);
        let mut ended = match this.poll_handler(context) {
            Poll::Ready(answer) => answer.map_err(Failure::Error),
            Poll::Pending if this.poll_overdue(context).is_pending() => return Poll::Pending,
            Poll::Pending if this.guard.as_ref().is_some_and(|guard| guard.run.core.closing.is_cancelled()) => {
                Err(Failure::Interrupted)
            }
            Poll::Pending => Err(Failure::Error(HandlerError::of_text(format!(
                "the run did not end: its future was dropped {:?} after it was asked to",
                this.grace
            )))),
        };
        // The values of the future are dropped before the run counts as ended, and while the thread
        // is inside the run.
        if let Err(panic) = dropped(this.future.take()) {
            ended = ended.and(Err(Failure::Error(panic)));
        }
        drop(inside);
        if let Some(mut guard) = this.guard.take() {
            guard.settle(ended);
        }
        Poll::Ready(())
    }
}

impl Drop for Running {
    /// An executor drops the run: first the values of the handler, then the guard settles.
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            let _inside = Inside::enter(&guard.run.core, guard.run.job.held);
            quietly(|| drop(self.future.take()));
            quietly(|| drop(self.start.take()));
        }
    }
}

#[cfg(feature = "tracing")]
impl Guard {
    fn span(&self) -> tracing::Span {
        let ClaimedJob { name, key, attempt, run: run_id, trace, .. } = &self.run.job;
        let (name, key, run_id, trace) = (&**name, &**key, &**run_id, trace.as_deref());
        tracing::info_span!("run", handler = name, key, attempt, run_id, trace)
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
