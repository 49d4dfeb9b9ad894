//! The settings of a scheduler.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use timerqueue::Runtime;

use super::Scheduler;
use super::error::StartError;
use crate::debug::debug_of;
use crate::engine::{
    Binding, Call, Codec, Core, Handler, IntoOutcome, Job, Next, Rule, Run, RunRecord, Settings, Spawner,
};
#[cfg(feature = "sqlite")]
use crate::store::SqliteStore;
use crate::store::{Error, History, MemoryStore, Store, check_name};

/// The settings of a [`Scheduler`]. Made by [`Scheduler::builder`].
///
/// # Examples
///
/// A blocking handler, an async handler on tokio, and a log:
///
/// ```
/// use timerqueue_scheduler::{Outcome, Run, Scheduler};
///
/// let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
/// let tokio = executor.handle().clone();
/// let scheduler = Scheduler::builder()
///     .handler("thumbnail", |path: String, _: &Run| println!("{path}"))
///     .async_handler("mail", |to: String, _: Run| async move {
///         tokio::task::yield_now().await;
///         println!("to {to}");
///         Ok::<_, std::io::Error>(Outcome::Done)
///     })
///     .spawner(move |future| _ = tokio.spawn(future))
///     .on_run_end(|record| println!("{} took {:?}: {:?}", record.key, record.run.duration, record.run.end))
///     .start()?;
/// let _ = scheduler.put_to("mail", &"ann").send().wait()?;
/// # scheduler.close(std::time::Duration::from_secs(5)).wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "`start` makes the scheduler"]
pub struct Builder {
    runtime: Option<Runtime>,
    store: Option<Arc<dyn Store>>,
    #[cfg(feature = "sqlite")]
    file: Option<std::path::PathBuf>,
    /// Of the handlers that name none.
    spawner: Option<Spawner>,
    history: Option<History>,
    settings: Settings,
}

impl Builder {
    /// The most operations without an answer, unless [`backlog`](Self::backlog) sets another
    /// number: of small ones some 40 MB, at most some 270 MB.
    pub const BACKLOG: usize = 65_536;

    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let settings = Settings {
            parallel: usize::MAX,
            backlog: Self::BACKLOG,
            owner: random.hash_one(1),
            seed: random.hash_one(2),
            node_name: default_name(),
            ..Settings::default()
        };
        Self {
            runtime: None,
            store: None,
            #[cfg(feature = "sqlite")]
            file: None,
            spawner: None,
            history: None,
            settings,
        }
    }

    /// The runtime that has the timer, and whose pool runs blocking handlers. Default: the current
    /// runtime, usually [`Runtime::global`]. On a manual clock all of the scheduler is on virtual
    /// time.
    pub fn runtime(self, runtime: &Runtime) -> Self {
        Self { runtime: Some(runtime.clone()), ..self }
    }

    /// Where the jobs are kept. Default: a [`MemoryStore`] of its own.
    pub fn store(self, store: impl Store) -> Self {
        Self { store: Some(Arc::new(store)), ..self }
    }

    #[cfg(feature = "sqlite")]
    pub(super) fn file(self, path: &std::path::Path) -> Self {
        Self { file: Some(path.to_owned()), ..self }
    }

    /// A handler that may block; short for [`register`](Self::register) with [`Handler::new`].
    pub fn handler<P, R>(self, name: &str, handler: impl Fn(P, &Run) -> R + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned,
        R: IntoOutcome,
    {
        self.register(Handler::new(name, handler))
    }

    /// A handler that may block, for a payload with a name; short for [`register`](Self::register)
    /// with [`Handler::on`].
    pub fn on<J: Job, R: IntoOutcome>(self, handler: impl Fn(J, &Run) -> R + Send + Sync + 'static) -> Self {
        self.register(Handler::on(handler))
    }

    /// An async handler; short for [`register`](Self::register) with [`Handler::new_async`].
    pub fn async_handler<P, R, F>(self, name: &str, handler: impl Fn(P, Run) -> F + Send + Sync + 'static) -> Self
    where
        P: DeserializeOwned,
        R: IntoOutcome,
        F: Future<Output = R> + Send + 'static,
    {
        self.register(Handler::new_async(name, handler))
    }

    /// An async handler, for a payload with a name; short for [`register`](Self::register) with
    /// [`Handler::on_async`].
    pub fn on_async<J, R, F>(self, handler: impl Fn(J, Run) -> F + Send + Sync + 'static) -> Self
    where
        J: Job,
        R: IntoOutcome,
        F: Future<Output = R> + Send + 'static,
    {
        self.register(Handler::on_async(handler))
    }

    /// A handler with its limits.
    pub fn register(mut self, handler: Handler) -> Self {
        self.settings.handlers.push(handler);
        self
    }

    /// Where the futures of async handlers run: a closure that gives a future to an executor. The
    /// closure is called on a thread of the runtime's pool, once for each run. That thread is in no
    /// executor's context: on tokio, take a `Handle` along, since `tokio::spawn` panics there. If
    /// the closure panics, or the future is dropped before its first poll, the job waits for ten
    /// seconds with an error that says so, and the attempt does not count. If the executor drops
    /// the future later, the attempt has failed. If the executor leaks the future, the job stays
    /// *running* and keeps its place.
    ///
    /// Close the scheduler before the executor ends: runs that the executor drops then wait again,
    /// as after the end of the process.
    ///
    /// # Examples
    ///
    /// On smol:
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let builder = Scheduler::builder().spawner(|future| smol::spawn(future).detach());
    /// # drop(builder);
    /// ```
    pub fn spawner(self, spawn: impl Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static) -> Self {
        Self { spawner: Some(Spawner::Own(Arc::new(spawn))), ..self }
    }

    /// Runs async handlers on this runtime of tokio. Without this and without a
    /// [spawner](Self::spawner), [`start`](Self::start) takes the runtime in whose context it is
    /// called. The last call of this method and of `spawner` counts; a handler may have a spawner
    /// of its own all the same.
    ///
    /// Async handlers are tasks of that runtime: its timers, its connections and `tokio::spawn`
    /// work in them. Blocking handlers run on the pool of timerqueue, in the context of the
    /// runtime, so `Handle::current().block_on(..)` works in them. On a runtime with one thread the
    /// tasks run while that thread is in `block_on`, so do not [`wait`](crate::Pending::wait) there
    /// for what a run does.
    ///
    /// **When the runtime ends, the scheduler closes**, as by [`close`](Scheduler::close) with no
    /// time: no run begins, changes are refused, and the runs that the runtime has dropped wait
    /// again, as after the end of the process. On a store that lasts they are run by another
    /// scheduler, or after the next start. To let runs finish, close the scheduler first.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_scheduler::{Run, Scheduler};
    ///
    /// #[tokio::main]
    /// async fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let scheduler = Scheduler::builder()
    ///         .async_handler("mail", |to: String, _: Run| async move {
    ///             tokio::time::sleep(Duration::from_millis(1)).await;
    ///             println!("to {to}");
    ///         })
    ///         .start()?; // on the runtime of `main`
    ///     let _ = scheduler.put_to("mail", "ann").send().await?;
    ///     scheduler.close(Duration::from_secs(10)).await?;
    ///     Ok(())
    /// }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn tokio(self, runtime: &tokio::runtime::Handle) -> Self {
        Self { spawner: Some(Spawner::Tokio(runtime.clone())), ..self }
    }

    /// The most runs at a time, of all handlers. Zero counts as one. Default: the sum of the
    /// handlers' limits. With such a limit a slow handler can keep places from others.
    pub fn parallel(mut self, runs: usize) -> Self {
        self.settings.parallel = runs.max(1);
        self
    }

    /// The most operations of this scheduler that the store has not answered: puts, cancels and all
    /// other changes. A further one is refused with [`Fault::Busy`](crate::store::Fault::Busy), or
    /// [waits](Scheduler::waiting_for_room). So a store that does not answer costs a bounded amount
    /// of memory. Each 4 KiB of a payload count as one operation more. One that is larger than the
    /// limit goes alone. Ends of runs do not count: the places of the handlers bound them. Zero
    /// counts as one. Default: [`Builder::BACKLOG`].
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let builder = Scheduler::builder().backlog(1_000);
    /// # drop(builder);
    /// ```
    pub fn backlog(mut self, operations: usize) -> Self {
        self.settings.backlog = operations.max(1);
        self
    }

    /// How long the done jobs of handlers are kept that do not [say](Handler::history) otherwise.
    /// Default: not at all.
    pub fn history(self, history: History) -> Self {
        Self { history: Some(history), ..self }
    }

    /// The seed of the random part of waits between attempts. Default: random for each scheduler.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// The name of this scheduler among the [nodes](Scheduler::nodes) of the store, for people.
    /// Need not be unique. Default: the name of the host and the number of the process.
    pub fn node_name(mut self, name: &str) -> Self {
        self.settings.node_name = name.into();
        self
    }

    /// The rule by which this scheduler binds [groups](crate::Put::group) to nodes. Default:
    /// [`Rendezvous`](crate::Rendezvous). Nodes may have different rules: the first choice counts.
    pub fn binding(mut self, rule: impl Binding) -> Self {
        self.settings.binding = Rule { rule: Box::new(rule), is_own: true };
        self
    }

    /// Called at the end of each run, on the thread that ran it, before the end is in the store. A
    /// panic is ignored. A close that the hook calls does not wait for the run. A second call of
    /// this method replaces the hook.
    pub fn on_run_end(mut self, hook: impl Fn(&RunRecord) + Send + Sync + 'static) -> Self {
        self.settings.on_run_end = Some(Box::new(hook));
        self
    }

    /// Called when the store fails a claim, or the end of a run, with an error that may pass: a
    /// full disk, a lock, a server that does not answer. Both are tried again, for as long as it
    /// takes, and only the first failure of each is told; until then no job begins, or the run
    /// stays *running*. On a thread of the pool of the runtime. A panic is ignored. A second call
    /// of this method replaces the hook. Puts and changes have their errors in their answers.
    ///
    /// # Examples
    ///
    /// A line in a log:
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let builder = Scheduler::builder().on_store_error(|error| eprintln!("asked again: {error}"));
    /// # let _ = builder;
    /// ```
    pub fn on_store_error(mut self, hook: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.settings.on_store_error = Some(Box::new(hook));
        self
    }

    /// A hook around all runs, of blocking and of async handlers: for a log, a span, a transaction,
    /// a setting of the thread. It gets the run and the rest of it: awaiting [`Next`] calls the
    /// handler, and gives its [`Ended`](crate::Ended), which the hook returns or changes. Without
    /// awaiting it, the handler is not called, and what the hook returns is the end of the run. An
    /// error of the hook's own is a failed attempt, as one of the handler.
    ///
    /// Of several hooks the one that was registered first is the outermost. A hook is a part of the
    /// run: it runs where the handler runs, within its limit of time and with its token, in the
    /// span of the run, and its panic is a failed attempt. A panic of the handler is its end for
    /// the hook ([`Ended::Failed`](crate::Ended::Failed)). Around a blocking handler the future of
    /// the hook is driven by the thread of the handler, which blocks where the hook waits; on a
    /// manual clock it moves the clock. A run that does not come to its handler has no hooks: one
    /// whose last instant has passed, or whose process has ended too often. What is in the store at
    /// the end, and ends of such runs: [`on_run_end`](Self::on_run_end).
    ///
    /// # Examples
    ///
    /// A log, and a limit of attempts for one kind of error:
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use timerqueue_scheduler::{Ended, Next, Run, Scheduler};
    ///
    /// let builder = Scheduler::builder()
    ///     .around(|run: Run, next: Next| async move {
    ///         let begun = Instant::now();
    ///         let ended = next.await;
    ///         println!("{} {}, attempt {}: {:?}, {ended:?}", run.name(), run.key(), run.attempt(), begun.elapsed());
    ///         ended
    ///     })
    ///     .around(|run: Run, next: Next| async move {
    ///         match next.await {
    ///             Ended::Failed { error, is_panic, .. } if error.contains("410 Gone") && run.attempt() > 2 => {
    ///                 Ended::Failed { error, wait: None, is_panic } // no further attempt
    ///             }
    ///             ended => ended,
    ///         }
    ///     });
    /// # drop(builder);
    /// ```
    ///
    /// A transaction for each run, which an async handler finds in its task:
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use timerqueue_scheduler::{Ended, Next, Run, Scheduler};
    /// # #[derive(Clone)] struct Pool;
    /// # #[derive(Clone)] struct Transaction;
    /// # impl Pool { async fn begin(&self) -> Result<Transaction, String> { Ok(Transaction) } }
    /// # impl Transaction { async fn commit(self) -> Result<(), String> { Ok(()) } }
    /// # let pool = Pool;
    /// tokio::task_local! { static TRANSACTION: Transaction; }
    ///
    /// let builder = Scheduler::builder().around(move |_: Run, next: Next| {
    ///     let pool = pool.clone();
    ///     async move {
    ///         let transaction = pool.begin().await?; // an error is a failed attempt
    ///         let ended = TRANSACTION.scope(transaction.clone(), next).await;
    ///         if ended.is_done() {
    ///             transaction.commit().await?;
    ///         }
    ///         Ok::<Ended, String>(ended)
    ///     }
    /// });
    /// # drop(builder);
    /// ```
    pub fn around<F, R>(mut self, hook: impl Fn(Run, Next) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.settings.around.push(Arc::new(move |run, next| {
            let ended = hook(run, next);
            Box::pin(async move { ended.await.into_outcome() })
        }));
        self
    }

    /// Gives each put of this scheduler the context of the trace in which it is made, so that
    /// [`Run::trace`] tells the run, on whichever node, what it follows. Called by
    /// [`send`](crate::Put::send) and its like, on the thread of the call, for puts without a
    /// [`trace`](crate::Put::trace) of their own. A text longer than
    /// [`MAX_TRACE_BYTES`](crate::store::MAX_TRACE_BYTES), or with a NUL, is left out, and so is a
    /// panic. The feature `scheduler-opentelemetry` of `timerqueue-adapters` has one for
    /// OpenTelemetry.
    ///
    /// # Examples
    ///
    /// The `traceparent` of W3C, from wherever the program keeps it:
    ///
    /// ```
    /// use timerqueue_scheduler::{Next, Run, Scheduler};
    ///
    /// let current = || Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    /// let builder = Scheduler::builder().trace_puts(current).around(|run: Run, next: Next| {
    ///     println!("follows {:?}", run.trace());
    ///     next
    /// });
    /// # drop(builder);
    /// ```
    pub fn trace_puts(mut self, current: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.tracer = Some(Box::new(current));
        self
    }

    /// Encodes the payloads that this scheduler puts, and decodes those that its handlers read.
    /// Default: payloads are JSON in the store. [`Codec`] says what one may be, and has an example.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.settings.codec = Some(Box::new(codec));
        self
    }

    /// Starts the scheduler. Jobs already in the store begin to run.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub fn start(mut self) -> Result<Scheduler, StartError> {
        let needs_spawner = |handler: &Handler| matches!(handler.call, Call::Async(_)) && handler.spawner.is_none();
        #[cfg(feature = "tokio")]
        if self.spawner.is_none() && self.settings.handlers.iter().any(needs_spawner) {
            // That whose context this is.
            self.spawner = tokio::runtime::Handle::try_current().ok().map(Spawner::Tokio);
        }
        let handlers = &self.settings.handlers;
        for (at, handler) in handlers.iter().enumerate() {
            let name = || handler.name.as_ref().to_owned();
            check_name(&handler.name).map_err(|reason| StartError::InvalidName { name: name(), reason })?;
            if handlers[..at].iter().any(|other| other.name == handler.name) {
                return Err(StartError::DuplicateHandler { name: name() });
            }
            if needs_spawner(handler) && self.spawner.is_none() {
                return Err(StartError::NoSpawner { name: name() });
            }
        }
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => Runtime::try_current().map_err(StartError::Runtime)?,
        };
        #[cfg(feature = "sqlite")]
        if let (None, Some(path)) = (&self.store, &self.file) {
            self.store = Some(Arc::new(SqliteStore::open(&runtime, path).map_err(StartError::Store)?));
        }
        for handler in &mut self.settings.handlers {
            handler.spawner = handler.spawner.take().or_else(|| self.spawner.clone());
            handler.history.get_or_insert(self.history);
        }
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::own(&runtime)));
        let core = Core::start(runtime, store, self.settings);
        #[cfg(feature = "tokio")]
        if let Some(Spawner::Tokio(handle)) = &self.spawner {
            core.stop_with(handle);
        }
        Ok(Scheduler::owning(core))
    }
}

/// Host and process.
fn default_name() -> Arc<str> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().filter(|host| !host.trim().is_empty());
    let host = host.or_else(|| ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok()));
    format!("{}:{}", host.as_deref().unwrap_or("host").trim(), std::process::id()).into()
}

debug_of!(Builder, |builder| store: builder.store, handlers: builder.settings.handlers, parallel: builder.settings.parallel);
