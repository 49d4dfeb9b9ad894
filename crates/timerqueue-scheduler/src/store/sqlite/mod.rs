//! The store on a file: jobs survive the process, the kernel and the power.
//!
//! Ground rules. All writes are those of one thread ([`writer`]), all lists those of another
//! ([`reader`]). What an operation means is not written here but in [`rules`](super::rules), as for
//! the memory store. [`alive`] knows which processes have the file open.

mod alive;
mod check;
mod error;
mod hold;
mod joint;
mod log;
mod members;
mod place;
mod reader;
mod rows;
mod schema;
mod statements;
mod view;
mod watch;
mod work;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use timerqueue::Runtime;

use self::error::Failure;
use self::reader::{Guard, Reader};
pub use self::view::SqliteReader;
use self::watch::{Stop, Watch};
use self::writer::{Message, Write, Writer};
use super::gate::Gate;
use super::origin::{self, Origin};
use super::questions::Questions;
use super::sql::checked;
use super::{
    Applied, Claim, Claimed, Entry, FinishedJob, History, Hold, Micros, Op, Reply, Scan, Scanned, Settled, Store,
    Watcher, Watchers, sealed, text,
};
use crate::Error;
use crate::debug::debug_of;

/// How long a writer waits for another one, unless set.
const BUSY: Duration = Duration::from_secs(5);

/// A store on a file of SQLite: a job whose put was answered survives the process, the kernel and
/// the power.
///
/// [`Scheduler::open`](crate::Scheduler::open) makes one and is all that most programs need. A
/// `SqliteStore` is a handle: clones share the same jobs. It has three threads: one writes, one
/// reads, and one is told of other processes. When the last handle is dropped, what was asked for
/// is written, and the file closed.
///
/// **Several processes** may open the file, and several schedulers of each. A job is run by one of
/// them. A process that ends or is killed leaves its runs to the others, and these see it at once.
///
/// **Files**: beside `jobs.db` stand `jobs.db-wal` and `jobs.db-shm` of SQLite, and the folder
/// `jobs.db-processes` with a file for each process. Copy or delete them together, while no process
/// has them open. The file has one name: with a second one (a hard link, or a container that mounts
/// the file and not its folder) there would be a second log, so such a file is refused.
///
/// **Your own tables** may stand in the same file. The names of the tables here begin with
/// `timerqueue`. The threads of a store enforce no foreign key: a row of yours that names a job
/// keeps its number, which no other job gets, after the job has left. The view `timerqueue` is for
/// people: `sqlite3 jobs.db 'SELECT * FROM timerqueue'`.
///
/// # Examples
///
/// ```
/// use timerqueue::Runtime;
/// use timerqueue_scheduler::{Scheduler, store::SqliteStore};
///
/// # let folder = std::env::temp_dir().join(format!("timerqueue-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("jobs.db");
/// let store = SqliteStore::open(Runtime::global(), &path)?;
/// let scheduler = Scheduler::builder().store(store).handler("mail", |to: String, _| println!("to {to}")).start()?;
/// let _ = scheduler.put_to("mail", &"ann").send().wait()?; // on the disk
/// # scheduler.close(std::time::Duration::from_secs(5)).wait()?;
/// # drop(scheduler);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

/// What the threads of a store share.
pub(crate) struct Shared {
    path: PathBuf,
    runtime: Runtime,
    history: Option<History>,
    gate: Arc<Gate>,
    watchers: Watchers,
    damaged: AtomicBool,
}

struct Inner {
    shared: Arc<Shared>,
    origin: Origin,
    messages: Sender<Message>,
    questions: Questions,
    guard: Arc<Guard>,
    /// The schedulers that have not left.
    owners: Mutex<HashSet<u64>>,
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

/// The settings of a [`SqliteStore`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::store::SqliteOptions;
///
/// let options = SqliteOptions::new().busy_timeout(Duration::from_secs(1)).most_bytes(1 << 30);
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
#[must_use = "`open` makes the store"]
pub struct SqliteOptions {
    busy: Duration,
    most_bytes: Option<u64>,
    history: Option<History>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { busy: BUSY, most_bytes: None, history: None }
    }
}

impl SqliteOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long an operation waits for another program that writes into the file, from its call on;
    /// then the answer is [`Fault::Locked`](super::Fault::Locked). Default: 5 seconds.
    pub fn busy_timeout(self, limit: Duration) -> Self {
        Self { busy: limit, ..self }
    }

    /// The greatest size of the file, without its log; beyond, the answer is
    /// [`Fault::Full`](super::Fault::Full). For the operations of this store: another one on the
    /// file has a limit of its own. Default: no limit but the disk.
    pub fn most_bytes(self, bytes: u64) -> Self {
        Self { most_bytes: Some(bytes), ..self }
    }

    /// Keeps done jobs of all handlers for this long, in the table `timerqueue_finished` of the
    /// file, without a limit of their number. For single handlers, and with such a limit:
    /// [`Handler::history`](crate::Handler::history). The store whose scheduler has run the job
    /// decides. Default: not at all.
    pub fn keep_finished(mut self, time: Duration) -> Self {
        self.history_of_all().time = time;
        self
    }

    fn history_of_all(&mut self) -> &mut History {
        self.history.get_or_insert(History::new(Duration::ZERO).rows(u64::MAX))
    }

    /// Keeps the key of a done job taken for this long: a further put with it is refused or kept,
    /// as its [`Clash`](super::Clash) says, and [`Clash::Replace`](super::Clash::Replace) puts the
    /// new job. Counted on the wall clock. For requests that may come twice. The store whose
    /// scheduler has run the job decides, and a put by any other store finds the key taken.
    /// Default: not at all.
    pub fn remember_keys(mut self, time: Duration) -> Self {
        self.history_of_all().keys = time;
        self
    }

    /// Opens the file, and makes it if there is none. Its folder must exist. The clock is the wall
    /// clock of the runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: all kinds of [`Fault`](super::Fault).
    pub fn open(&self, runtime: &Runtime, path: impl AsRef<Path>) -> Result<SqliteStore, Error> {
        SqliteStore::start(self, runtime, path.as_ref()).map_err(|failure| failure.error())
    }
}

impl SqliteStore {
    /// Opens the file with the default settings, and makes it if there is none. Its folder must
    /// exist.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: all kinds of [`Fault`](super::Fault).
    pub fn open(runtime: &Runtime, path: impl AsRef<Path>) -> Result<Self, Error> {
        SqliteOptions::new().open(runtime, path)
    }

    /// Reads the whole file, and compares indexes and counts with the rows. Blocks for as long as
    /// the reading takes. After damage was found, the store writes nothing any more.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with [`Fault::Damaged`](super::Fault::Damaged), or with another fault if
    /// the file cannot be read.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::store::SqliteStore;
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-check-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("jobs.db");
    /// let store = SqliteStore::open(Runtime::global(), &path)?;
    /// store.check()?;
    /// # drop(store);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        let shared = &self.inner.shared;
        let checked = schema::open_reader(&shared.path, BUSY).and_then(|db| check::check(&db, |_| {}));
        checked.map_err(|failure| {
            let error = failure.error();
            if failure.fault == super::Fault::Damaged {
                let _ = self.inner.messages.send(Message::Damaged(failure));
            }
            error
        })
    }

    /// The done jobs that the file keeps, the last ones first: at most this number, of a key or of
    /// all. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::{Scheduler, store::SqliteOptions};
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-finished-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("jobs.db");
    /// let store = SqliteOptions::new().keep_finished(Duration::from_secs(86_400)).open(Runtime::global(), &path)?;
    /// let scheduler = Scheduler::builder().store(store.clone()).handler("mail", |_: String, _| {}).start()?;
    /// let _ = scheduler.put_to("mail", "ann").key("a").send().wait()?;
    /// # let _ = scheduler.close(Duration::from_millis(1)).wait();
    /// for job in store.finished(Some("a"), 10)? {
    ///     println!("{} has run for {:?}", job.key, job.last.map(|run| run.duration));
    /// }
    /// # drop((scheduler, store));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finished(&self, key: Option<&str>, limit: usize) -> Result<Vec<FinishedJob>, Error> {
        let found = schema::open_reader(&self.inner.shared.path, BUSY);
        found.and_then(|db| reader::finished(&db, key, limit)).map_err(|failure| failure.error())
    }

    /// Pauses all handlers of a file in one commit: nothing of it runs until the [`Hold`] is
    /// released. For a file that was restored from a backup, whose past has run already. Works
    /// without a scheduler, and beside others, whose runs under way go on. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::store::{SqliteReader, SqliteStore};
    /// use timerqueue_scheduler::{Cancel, Query, Scheduler};
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-hold-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("jobs.db");
    /// # let old = Scheduler::open(&path).start()?;
    /// # let _ = old.put_to("mail", "ann").key("a").send().wait()?;
    /// # drop(old);
    /// let hold = SqliteStore::hold(&path)?; // before the scheduler starts
    /// let scheduler = Scheduler::open(&path).handler("mail", |to: String, _| println!("to {to}")).start()?;
    /// for job in scheduler.list(Query::new()).wait()?.iter().filter(|job| job.due.is_some_and(|due| due < hold.since)) {
    ///     println!("{} may have run already", job.key);
    ///     assert_eq!(scheduler.cancel(&job.key).wait()?, Cancel::Cancelled);
    /// }
    /// hold.release(&scheduler)?;
    /// SqliteStore::forget_hold(&path)?;
    /// assert!(SqliteReader::open(&path)?.held()?.is_none());
    /// # drop(scheduler);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold(path: impl AsRef<Path>) -> Result<Hold, Error> {
        hold::hold(path.as_ref()).map_err(|failure| failure.error())
    }

    /// Forgets the hold of a file, after [`Hold::release`]. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn forget_hold(path: impl AsRef<Path>) -> Result<(), Error> {
        hold::forget(path.as_ref()).map_err(|failure| failure.error())
    }

    fn start(options: &SqliteOptions, runtime: &Runtime, path: &Path) -> Result<Self, Failure> {
        place::check(path)?;
        let db = schema::open_writer(path, options.busy, options.most_bytes)?;
        // By its true name, so that all processes use the same files beside it.
        let path = path.canonicalize()?;
        place::check(&path)?; // where a symbolic link leads to
        let reader = Reader {
            file: place::identity(&path)?,
            db: Some(schema::open_reader(&path, options.busy)?),
            path: path.clone(),
            busy: options.busy,
            runtime: runtime.clone(),
            guard: Arc::default(),
        };
        let shared = Arc::new(Shared {
            path,
            runtime: runtime.clone(),
            history: options.history,
            gate: Arc::default(),
            watchers: Watchers::default(),
            damaged: AtomicBool::new(false),
        });
        let folder = alive::folder_of(&shared.path);
        let alive = alive::Alive::new(&shared.path)?;
        // Before this process reads which others there are: no end of one is missed.
        let (watch, stop) = Watch::new(&folder)?;
        let writer = Writer::new(db, Arc::clone(&shared), alive, options.busy)?;
        let (messages, incoming) = channel();
        let (number, changes) = (writer.alive.number(), messages.clone());
        let (questions, guard) = (Questions::default(), Arc::clone(&reader.guard));
        let asked = questions.clone();
        let threads = vec![
            named("timerqueue-write", move || writer.run(&incoming))?,
            named("timerqueue-read", move || reader.run(&asked))?,
            named("timerqueue-watch", move || watch.run(number, &changes))?,
        ];
        Ok(Self {
            inner: Arc::new(Inner {
                shared,
                origin: Origin::here(),
                messages,
                questions,
                guard,
                owners: Mutex::default(),
                stop,
                threads,
            }),
        })
    }
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

impl Inner {
    /// A dropped reply answers that the store is closed.
    fn write(&self, write: Write) {
        let _ = self.messages.send(Message::Write(write, Instant::now()));
    }

    /// What has no answer.
    fn tell(&self, write: Write) {
        if self.origin.refusal().is_none() {
            self.write(write);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.origin.refusal().is_some() {
            // The last sender of a channel would take a lock to close it.
            let inherited = (self.messages.clone(), std::mem::take(&mut self.threads));
            return std::mem::forget(inherited);
        }
        let _ = self.messages.send(Message::Close);
        self.guard.leaving.store(true, Ordering::Release);
        self.questions.close();
        self.stop.stop();
        origin::join(self.threads.drain(..));
    }
}

impl sealed::Sealed for SqliteStore {}

impl Store for SqliteStore {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        let ops = ops.into_iter().map(checked).collect();
        self.inner.write(Write::Apply(ops, reply));
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        self.inner.write(Write::Claim(claim, reply));
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        self.inner.write(Write::Settle(Box::new(checked(end)), Some(place), reply));
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        self.inner.questions.ask(scan, reply);
    }

    fn enter(&self, entry: Arc<Entry>) {
        if self.inner.origin.refusal().is_none() {
            self.inner.owners.lock().insert(entry.owner);
            self.inner.guard.leaving.store(false, Ordering::Release);
        }
        self.inner.tell(Write::Enter(entry));
    }

    fn leave(&self, owner: u64) {
        if self.inner.origin.refusal().is_none() {
            let mut owners = self.inner.owners.lock();
            owners.remove(&owner);
            self.inner.guard.leaving.store(owners.is_empty(), Ordering::Release);
        }
        self.inner.tell(Write::Leave(owner));
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.shared.watchers.add(watcher);
    }

    fn now(&self) -> Option<Micros> {
        Some(Micros::floor(self.inner.shared.runtime.wall_now()))
    }

    fn keeps_done(&self) -> bool {
        self.inner.shared.history.is_some()
    }

    fn has_thread(&self) -> bool {
        true
    }

    fn gate(&self) -> Option<&Arc<Gate>> {
        Some(&self.inner.shared.gate)
    }

    fn apply_in(&self, transaction: &rusqlite::Transaction<'_>, ops: Vec<Op>) -> Result<Vec<Applied>, Error> {
        self.joined(transaction, ops)
    }
}

debug_of!(SqliteStore, |store|
    path: store.inner.shared.path, damaged: store.inner.shared.damaged.load(Ordering::Acquire)
);
