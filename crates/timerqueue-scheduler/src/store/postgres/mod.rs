//! The store on a server: many nodes share the same jobs.
//!
//! Ground rules. All writes of a store are those of one thread ([`writer`]), lists those of another
//! ([`reader`]), leases and what other nodes tell those of a third ([`keeper`]), what other nodes
//! are told that of a fourth ([`notifier`]), each with a connection and a runtime of tokio of its
//! own. What an operation means is not written here but in [`rules`](super::rules), as for the
//! other stores. The only clock is the server's.

mod address;
mod aside;
mod check;
mod cursor;
mod error;
mod hold;
pub(crate) mod joint;
mod keeper;
mod link;
mod members;
mod minutes;
mod notifier;
mod params;
mod reader;
mod rows;
mod schema;
mod sleepers;
mod tls;
mod view;
mod wire;
mod work;
mod writer;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use timerqueue::Runtime;
use tokio::sync::oneshot;
use tokio_postgres_rustls::MakeRustlsConnect;

use self::address::Place;
pub use self::address::{AddressError, PostgresAddress};
pub use self::check::{ServerReport, Standby};
use self::error::Failure;
use self::reader::Reader;
use self::sleepers::Sleep;
pub use self::view::PostgresReader;
use self::writer::{Back, Message, Write, Writer};
use super::gate::Gate;
use super::origin::{self, Origin};
use super::questions::Questions;
use super::sql::checked;
use super::{
    Applied, Claim, Claimed, Entry, Fault, Held, Hold, Limits, Micros, Op, Reply, Room, Scan, Scanned, Settled,
    Statement, Store, Watcher, Watchers, sealed,
};
use crate::Error;
use crate::debug::debug_of;

/// The longest name of a schema: the server cuts longer names of channels.
const MAX_SCHEMA_BYTES: usize = 48;
const SHORTEST: Duration = Duration::from_millis(100);

/// A store on a PostgreSQL server (version 13 or later): any number of nodes run the same jobs, and
/// each run is one node's.
///
/// A `PostgresStore` is a handle: clones share the same connections. It has four threads with a
/// connection each; that of the last one is made when another node is to be told of something. It
/// brings its own async runtime, so programs with any executor, or none, can use it. When the last
/// handle is dropped, what was asked for is written, and the connections end. If the server does
/// not answer, this takes two seconds, and the patience while an operation is under way.
///
/// **Leases.** A run is its node's for as long as the node renews its lease, which is one for all
/// of its runs. If a node is gone, the lease ends, and another node runs the jobs: the attempts
/// count. A node that comes back late is refused (its settles change nothing), and the tokens of
/// its runs fire.
///
/// **Clock.** Due times follow the server's clock. The clocks of the nodes may be wrong.
///
/// **Lost connections.** A transaction is repeated on a new connection, and none is done twice: the
/// server is asked whether it was committed. After the [patience](PostgresOptions::patience) an
/// operation fails; ends of runs are kept and repeated for as long as it takes. So it is with rows
/// and keys that another transaction has locked ([`Fault::Locked`]); all else goes on. The fault
/// says what is wrong meanwhile: [`Fault::Io`], [`Fault::ReadOnly`] for a standby, or one about a
/// certificate.
///
/// **Fail-over.** The address may name several servers (`host=a,b`), of which the one that takes
/// writes is used. A server that does not answer takes its share of the patience. With synchronous
/// replication no put that was answered is lost. The clock that counts is that of the new primary.
///
/// **TLS.** By `sslmode` of the address:
///
/// | | encrypted | the certificate of the server |
/// |---|---|---|
/// | none, to this machine; sockets of Unix | no | |
/// | none, to another machine | yes | as `verify-full` |
/// | `disable` | no | |
/// | `prefer` | where the server offers it | is not checked: a protection against listeners only |
/// | `verify-ca` | yes | must be of a known authority |
/// | `verify-full`, `require` | yes | must be of a known authority, and have the name of the address |
///
/// So `require` is stricter than with `psql`, and nothing goes over a network in the clear unless
/// the address says so. The authorities are those of a PEM file ([`PostgresOptions::authorities`],
/// or `sslrootcert` of the address), or the system's.
///
/// **Own transactions.** A job is put, cancelled or moved, and a run ended, in a transaction of
/// yours: see [`Joint`](crate::Joint), and [`Sql`](crate::Sql) for other drivers. From any
/// language by the SQL functions `timerqueue.put(handler, key, payload, due, clash, in_group,
/// priority, expires)`, all but the first two with defaults, as in `timerqueue.put('mail', 'key',
/// priority => 5)`; `timerqueue.cancel(key)`, whose answer is `cancelled`, `running` or `absent`;
/// `timerqueue.move(key, due)`; and `timerqueue.done(fence)` with
/// [`Run::fence`](crate::Run::fence). The view `timerqueue.overview` is for people.
///
/// **Poolers** in transaction mode: [`PostgresOptions::pooled`].
///
/// # Examples
///
/// ```no_run
/// use timerqueue::Runtime;
/// use timerqueue_scheduler::{Scheduler, store::PostgresStore};
///
/// let store = PostgresStore::connect(Runtime::global(), "host=db.example user=app dbname=app")?;
/// let scheduler = Scheduler::builder().store(store).handler("mail", |to: String, _| println!("to {to}")).start()?;
/// let _ = scheduler.put_to("mail", &"ann").send().wait()?; // one of the nodes runs it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

/// The settings of a [`PostgresStore`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::store::PostgresOptions;
///
/// let options = PostgresOptions::new().schema("jobs").lease(Duration::from_secs(10));
/// # drop(options);
/// ```
#[derive(Clone, Debug)]
#[must_use = "`connect` makes the store"]
pub struct PostgresOptions {
    schema: String,
    lease: Duration,
    safety: Duration,
    patience: Duration,
    roots: Option<PathBuf>,
    is_pooled: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "timerqueue".to_owned(),
            lease: Duration::from_secs(30),
            safety: Duration::from_secs(20),
            patience: Duration::from_secs(10),
            roots: None,
            is_pooled: false,
        }
    }
}

impl PostgresOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The schema of the tables, made if there is none. At most 48 bytes. Default: `timerqueue`.
    pub fn schema(mut self, name: &str) -> Self {
        name.clone_into(&mut self.schema);
        self
    }

    /// How long runs are a node's that is not heard of; at least 100 milliseconds. The lease of a
    /// node is renewed three times in this time. Default: 30 seconds.
    pub fn lease(self, time: Duration) -> Self {
        Self { lease: time.clamp(SHORTEST, Duration::from_secs(86_400)), ..self }
    }

    /// How often a node looks for due jobs of which no notice has told; at least 100 milliseconds.
    /// The node waits between once and twice this time. Default: 20 seconds.
    pub fn safety_look(self, time: Duration) -> Self {
        Self { safety: time.clamp(SHORTEST, Duration::from_secs(86_400)), ..self }
    }

    /// How long an operation waits for a lost connection, and for what another transaction has
    /// locked, such as one of yours that stays open; how long each statement waits for its answer.
    /// At least 100 milliseconds. Default: 10 seconds.
    pub fn patience(self, time: Duration) -> Self {
        Self { patience: time.clamp(SHORTEST, Duration::from_secs(86_400)), ..self }
    }

    /// The authorities whose certificates are accepted from a server: a PEM file, read once when
    /// the store connects. It goes before `sslrootcert` of the address. Default: the authorities
    /// that the system knows.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::store::PostgresOptions;
    ///
    /// let options = PostgresOptions::new().authorities("/etc/app/database-ca.pem");
    /// let store = options.connect(Runtime::global(), "host=db.example user=app sslmode=verify-full")?;
    /// # drop(store);
    /// # Ok::<(), timerqueue_scheduler::Error>(())
    /// ```
    pub fn authorities(self, file: impl AsRef<Path>) -> Self {
        Self { roots: Some(file.as_ref().to_owned()), ..self }
    }

    /// The address is that of a pooler in transaction mode, such as PgBouncer. The store then uses
    /// nothing that outlives a transaction: no named statements, no settings of a session, no
    /// `LISTEN`.
    ///
    /// What this costs: this node hears no notices. What other nodes put, it finds at its [safety
    /// look](Self::safety_look), so such a job may be late by twice that time, and a cancel of its
    /// run by another node reaches the run at a renewal of its lease. What its own schedulers put
    /// is in time, and nodes that are connected directly are told as before. Each statement is
    /// planned anew, which costs the server some 0.1 ms.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::store::PostgresOptions;
    ///
    /// let options = PostgresOptions::new().pooled().safety_look(Duration::from_secs(1));
    /// let store = options.connect(Runtime::global(), "host=localhost port=6432 user=app dbname=app")?;
    /// # drop(store);
    /// # Ok::<(), timerqueue_scheduler::Error>(())
    /// ```
    pub fn pooled(self) -> Self {
        Self { is_pooled: true, ..self }
    }

    /// Connects to a server, and makes or migrates the tables. `address`: a [`PostgresAddress`], or
    /// its text. Tries each server once, and blocks meanwhile; for as long as it takes if tables of
    /// an older version are brought up to date.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], with the [`Fault`].
    pub fn connect(
        &self,
        runtime: &Runtime,
        address: impl TryInto<PostgresAddress, Error: Into<Error>>,
    ) -> Result<PostgresStore, Error> {
        let address = address.try_into().map_err(Into::into)?;
        PostgresStore::start(self, runtime, address).map_err(|failure| failure.error())
    }
}

impl PostgresOptions {
    /// Pauses all handlers of the schema in one commit: nothing of it runs until the [`Hold`] is
    /// released. For tables that were restored from a backup, whose past has run already; best done
    /// before nodes can reach them. Runs under way go on. The role needs the right to make a table
    /// in the schema. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::{Scheduler, store::PostgresOptions};
    ///
    /// let (options, address) = (PostgresOptions::new(), "host=db.example user=app dbname=app");
    /// let hold = options.hold(address)?;
    /// let scheduler = Scheduler::builder().store(options.connect(Runtime::global(), address)?).start()?;
    /// // Look at the jobs, and cancel those that have run since the backup.
    /// hold.release(&scheduler)?;
    /// options.forget_hold(address)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hold(&self, address: impl TryInto<PostgresAddress, Error: Into<Error>>) -> Result<Hold, Error> {
        let address = address.try_into().map_err(Into::into)?;
        Settings::of(self, address).and_then(|settings| hold::hold(&settings)).map_err(|failure| failure.error())
    }

    /// Forgets the hold of the schema, after [`Hold::release`]. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn forget_hold(&self, address: impl TryInto<PostgresAddress, Error: Into<Error>>) -> Result<(), Error> {
        let address = address.try_into().map_err(Into::into)?;
        Settings::of(self, address).and_then(|settings| hold::forget(&settings)).map_err(|failure| failure.error())
    }
}

/// What the threads of a store need to connect.
pub(crate) struct Settings {
    places: Vec<(Place, MakeRustlsConnect)>,
    /// Which of the places was connected to last.
    used: AtomicUsize,
    schema: String,
    lease: Duration,
    safety: Duration,
    patience: Duration,
    is_pooled: bool,
}

impl Settings {
    fn of(options: &PostgresOptions, mut address: PostgresAddress) -> Result<Self, Failure> {
        let PostgresOptions { schema, lease, safety, patience, roots, is_pooled } = options.clone();
        if schema.is_empty() || schema.len() > MAX_SCHEMA_BYTES || schema.contains(['\0', '$']) {
            return Err(Failure::new(Fault::CannotOpen, "the name of a schema has 1 to 48 bytes, without NUL and `$`"));
        }
        let mut places = address.places()?;
        for place in &mut places {
            place.config.keepalives_idle(Duration::from_secs(10));
        }
        let tls = tls::connectors(&places, roots.or(address.roots).as_deref())?;
        let places = places.into_iter().zip(tls).collect();
        Ok(Self { places, used: AtomicUsize::new(0), schema, lease, safety, patience, is_pooled })
    }

    /// For SQL.
    fn schema_name(&self) -> String {
        quoted(&self.schema)
    }

    fn channel(&self) -> String {
        format!("timerqueue {}", self.schema)
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What the threads of a store share.
pub(crate) struct Shared {
    settings: Settings,
    runtime: Runtime,
    gate: Arc<Gate>,
    watchers: Watchers,
    /// The runs of this store, with their members.
    held: Mutex<HashMap<Held, i64>>,
    /// The schedulers of this store.
    entries: Mutex<HashMap<u64, Arc<Entry>>>,
    /// The schedulers, also those that have left and have runs, and what the server knows of their
    /// sleep.
    sleeps: Mutex<HashMap<u64, Option<Sleep>>>,
    /// By how many microseconds the server's clock is ahead of this machine's.
    skew: AtomicI64,
    /// The last handle was dropped.
    closing: Arc<AtomicBool>,
    /// All schedulers have left.
    leaving: Arc<AtomicBool>,
}

/// Of a setting, so that the server may add it to an instant.
fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

impl Shared {
    fn owners(&self) -> Vec<i64> {
        self.sleeps.lock().keys().map(|&owner| owner as i64).collect()
    }

    fn local_now(&self) -> Micros {
        Micros::floor(self.runtime.wall_now())
    }

    /// The server's clock was read after the question and before now. What is known of it stays if
    /// that agrees; otherwise it is as far behind as it may be, so that no timer fires before the
    /// instant of its row.
    fn see_clock(&self, now: Micros, asked: Micros) {
        let ahead = |local: Micros| now.as_i64() - local.as_i64();
        let (least, most) = (ahead(self.local_now()), ahead(asked));
        if !(least..=most).contains(&self.skew.load(Ordering::Acquire)) {
            self.skew.store(least, Ordering::Release);
        }
    }

    fn server_now(&self) -> Micros {
        let local = self.local_now().as_i64();
        Micros::new(local.saturating_add(self.skew.load(Ordering::Acquire)))
    }

    /// Between this time and its double, so that nodes do not act at the same time.
    fn spread(&self, time: Duration) -> Duration {
        let random = RandomState::new().hash_one(0u8) % 1_000;
        time + time * u32::try_from(random).unwrap_or_default() / 1_000
    }
}

struct Inner {
    shared: Arc<Shared>,
    origin: Origin,
    messages: Sender<Message>,
    questions: Questions,
    stop: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl PostgresStore {
    /// Connects with the default settings. `address`: a [`PostgresAddress`], or its text. Blocks
    /// for the [patience](PostgresOptions::patience) at most, and tries each server once.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], with the [`Fault`].
    pub fn connect(
        runtime: &Runtime,
        address: impl TryInto<PostgresAddress, Error: Into<Error>>,
    ) -> Result<Self, Error> {
        PostgresOptions::new().connect(runtime, address)
    }

    fn start(options: &PostgresOptions, runtime: &Runtime, address: PostgresAddress) -> Result<Self, Failure> {
        let settings = Settings::of(options, address)?;
        let shared = Arc::new(Shared {
            settings,
            runtime: runtime.clone(),
            gate: Arc::default(),
            watchers: Watchers::default(),
            held: Mutex::default(),
            entries: Mutex::default(),
            sleeps: Mutex::default(),
            skew: AtomicI64::new(0),
            closing: Arc::default(),
            leaving: Arc::default(),
        });
        let (messages, incoming) = channel();
        let questions = Questions::default();
        let asked = questions.clone();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = channel();
        let (told, to_tell) = channel();
        let ends = told.clone();
        let (writing, telling) = (Arc::clone(&shared), Arc::clone(&shared));
        // A link belongs to its thread, so the writer connects for itself.
        let writer = named("timerqueue-pgwr", move || {
            let opened = writer::open_tables(&writing.settings);
            let teller = named("timerqueue-pgnt", move || notifier::run(&telling, &to_tell));
            match opened.and_then(|(link, seed)| Ok((link, seed, teller?))) {
                Ok((link, seed, teller)) => {
                    let _ = ready.send(Ok(()));
                    Writer::new(writing, link, seed, told).run(&incoming);
                    // It ends when the writer is gone, which may be the thread that drops the
                    // store.
                    let _ = teller.join();
                }
                Err(failure) => _ = ready.send(Err(failure)),
            }
        })?;
        is_ready.recv().unwrap_or_else(|_| Err(Failure::new(Fault::Other, "the writer has ended")))?;
        let reader = Reader { shared: Arc::clone(&shared), link: None };
        let keeping = Arc::clone(&shared);
        let threads = vec![
            writer,
            named("timerqueue-pgrd", move || reader.run(&asked))?,
            named("timerqueue-pgkp", move || keeper::run(&keeping, &ends, stopped))?,
        ];
        Ok(Self {
            inner: Arc::new(Inner { shared, origin: Origin::here(), messages, questions, stop: Some(stop), threads }),
        })
    }
}

fn named(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| Failure::new(Fault::Other, error.to_string()))
}

impl Inner {
    /// What has no answer.
    fn tell(&self, message: Message) {
        if self.origin.refusal().is_none() {
            let _ = self.messages.send(message);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.origin.refusal().is_some() {
            // The last sender of a channel would take a lock to close it.
            let threads = std::mem::take(&mut self.threads);
            return std::mem::forget((self.messages.clone(), self.stop.take(), threads));
        }
        self.shared.closing.store(true, Ordering::Release);
        self.shared.leaving.store(true, Ordering::Release);
        let _ = self.messages.send(Message::Close);
        self.questions.close();
        self.stop.take().map(|stop| stop.send(()));
        origin::join(self.threads.drain(..));
    }
}

impl sealed::Sealed for PostgresStore {}

impl Store for PostgresStore {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        let ops = ops.into_iter().map(checked).collect();
        // A dropped reply answers that the store is closed.
        let _ = self.inner.messages.send(Message::Apply(Write::new(ops, None, Back::Applied(reply))));
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        let _ = self.inner.messages.send(Message::Claim(claim, Instant::now(), reply));
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        // Limits over all nodes take further round trips under a lock: a claim keeps them for many
        // jobs at once.
        let entry = self.inner.shared.entries.lock().get(&place.owner).cloned();
        let is_limited =
            |room: &Room| entry.as_ref().and_then(|entry| entry.limits(&room.name)) != Some(Limits::default());
        let place = (!place.rooms.iter().any(is_limited)).then_some(place);
        let write = Write::new(vec![checked(end)], place, Back::Settled(reply));
        let _ = self.inner.messages.send(Message::Apply(write));
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        let Some(reply) = self.inner.origin.admits(reply) else { return };
        self.inner.questions.ask(scan, reply);
    }

    fn enter(&self, entry: Arc<Entry>) {
        self.inner.shared.entries.lock().insert(entry.owner, Arc::clone(&entry));
        // Before others know of its sleep: their notices may come before the answer to the claim.
        self.inner.shared.sleeps.lock().entry(entry.owner).or_default();
        self.inner.shared.leaving.store(false, Ordering::Release);
        self.inner.tell(Message::Enter(entry, Instant::now()));
    }

    fn leave(&self, owner: u64) {
        let is_last = {
            let mut entries = self.inner.shared.entries.lock();
            entries.remove(&owner);
            entries.is_empty()
        };
        self.inner.shared.leaving.store(is_last, Ordering::Release);
        self.inner.tell(Message::Leave(owner, Instant::now()));
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.shared.watchers.add(watcher);
    }

    fn now(&self) -> Option<Micros> {
        None
    }

    fn statement(&self, op: Op) -> Result<Statement, Error> {
        self.statement_of(op)
    }

    fn has_thread(&self) -> bool {
        true
    }

    fn gate(&self) -> Option<&Arc<Gate>> {
        Some(&self.inner.shared.gate)
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.inner.shared.settings.lease / 2)
    }

    fn skew(&self) -> i64 {
        self.inner.shared.skew.load(Ordering::Acquire)
    }
}

debug_of!(PostgresStore, |store| schema: store.inner.shared.settings.schema);
