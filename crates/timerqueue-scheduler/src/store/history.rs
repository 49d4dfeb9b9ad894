//! Done jobs that a store keeps, and their keys.
//!
//! Ground rules. A handler says how long its done jobs are kept, and the end of a run brings that
//! along ([`Keep`]): stores have no settings of handlers. What is kept is written in the commit
//! that settles the run. It goes in bounded steps, a few rows with each such commit. A handler that
//! keeps nothing costs nothing: its jobs leave as they would without this file.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{JobId, LastRun, Micros, form};

/// How long the done jobs of a handler are kept, and how long their keys stay taken:
/// [`Handler::history`](crate::Handler::history) and [`Builder::history`](crate::Builder::history).
///
/// A done job is kept for the time, and as long as it is among the last done jobs of its handler.
/// The number is kept to within an eighth. Times count on the store's clock.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use timerqueue::{ManualClock, Runtime};
/// # use timerqueue_scheduler::*;
/// # let clock = ManualClock::new();
/// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let day = Duration::from_secs(86_400);
/// let mail = Handler::new("mail", |_: u32, _: &Run| {}).history(History::new(day).rows(1_000));
/// let scheduler = Scheduler::builder().runtime(&runtime).node_name("n1").register(mail).start()?;
/// let _ = scheduler.put_to("mail", &7).key("a").send().wait()?;
/// clock.advance(Duration::ZERO);
/// let done = scheduler.history(HistoryQuery::new().key("a")).wait()?;
/// assert_eq!((&*done[0].payload, done[0].node.as_deref()), ("7", Some("n1")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct History {
    pub(crate) time: Duration,
    pub(crate) rows: u64,
    pub(crate) keys: Duration,
}

impl History {
    /// The most done jobs of a handler, unless [`rows`](Self::rows) says otherwise.
    pub const ROWS: u64 = 100_000;

    /// Done jobs are kept for this time: at most [`History::ROWS`] of the handler.
    pub const fn new(time: Duration) -> Self {
        Self { time, rows: Self::ROWS, keys: Duration::ZERO }
    }

    /// At most this number of done jobs of the handler: the last ones.
    pub const fn rows(self, most: u64) -> Self {
        Self { rows: most, ..self }
    }

    /// The key of a done job stays taken for this time, and the job is kept for as long: a further
    /// put with the key is refused or kept, as its [`Clash`](crate::Clash) says. A
    /// [`Clash::Replace`](crate::Clash::Replace) puts the new job. For requests that may come
    /// twice.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let hour = Duration::from_secs(3_600);
    /// let pay = Handler::new("pay", |_: u32, _: &Run| {}).history(History::new(hour).keys(hour));
    /// let scheduler = Scheduler::builder().runtime(&runtime).register(pay).start()?;
    /// let put = || scheduler.put_to("pay", &1).key("request/17").send().wait();
    /// let id = put()?.added().unwrap();
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(put()?, Placed::Refused(id));
    /// clock.advance(hour);
    /// assert!(put()?.added().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn keys(self, time: Duration) -> Self {
        Self { keys: time, ..self }
    }

    /// The longer times and the greater number of the two.
    pub(crate) fn max(self, other: Self) -> Self {
        let Self { time, rows, keys } = other;
        Self { time: self.time.max(time), rows: self.rows.max(rows), keys: self.keys.max(keys) }
    }
}

/// What is kept of a done job.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// For how long.
    pub history: History,
    /// The name of the scheduler that has run the job.
    pub node: Option<Arc<str>>,
    /// The value of the handler, as JSON text.
    pub result: Option<Arc<str>>,
}

/// A done job that is to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) id: JobId,
    pub(crate) key: Arc<str>,
    pub(crate) kind: usize,
    pub(crate) payload: Arc<str>,
    pub(crate) ended: Micros,
    pub(crate) last: Option<Box<LastRun>>,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) result: Option<Arc<str>>,
    pub(crate) keep_until: Micros,
    /// Until then the key is taken.
    pub(crate) key_until: Micros,
    /// The most done jobs of the handler.
    pub(crate) most: u64,
}

/// The most rows that are removed for each that is added because their time is over: more go than
/// come.
pub(crate) const OVER_AT_ONCE: usize = 4;

impl Finished {
    pub(crate) fn holds_key(&self) -> bool {
        self.key_until > self.ended
    }

    /// How many of the oldest rows of the handler are looked at, if this one is a chance to remove
    /// those beyond the most. A chance comes once for an eighth of the most on average. It is drawn
    /// by the number of the job, so that no store has to count.
    #[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))] // memory knows the number
    pub(crate) fn surplus_at_once(&self) -> Option<usize> {
        let every = (self.most / 8).clamp(1, 1_024);
        let drawn = self.id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (drawn % every == 0).then(|| OVER_AT_ONCE * usize::try_from(every).unwrap_or(1))
    }
}

/// Which done jobs a list has. Made by [`HistoryQuery::new`]; the default is all, the last ones to
/// end first.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::HistoryQuery;
///
/// let mails = HistoryQuery::new().name("mail").key_prefix("user/17/").limit(100);
/// # drop(mails);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct HistoryQuery {
    pub(crate) key: Option<Arc<str>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) prefix: Option<Arc<str>>,
    pub(crate) after: Option<u64>,
    pub(crate) oldest_first: bool,
    pub(crate) limit: Option<usize>,
}

impl HistoryQuery {
    /// The most done jobs of one list: go on by [`after`](Self::after).
    pub const MOST: usize = 1_000;

    /// All done jobs that are kept, the last ones to end first.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those with this key.
    pub fn key(self, key: &str) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Only those of this handler.
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Only those whose keys begin with this text.
    pub fn key_prefix(self, prefix: &str) -> Self {
        Self { prefix: Some(prefix.into()), ..self }
    }

    /// The first ones to end first.
    pub fn oldest_first(self) -> Self {
        Self { oldest_first: true, ..self }
    }

    /// Only those behind the one with this [number](FinishedJob::seq) in the order of the list.
    pub fn after(self, seq: u64) -> Self {
        Self { after: Some(seq), ..self }
    }

    /// At most this number. Default, and the greatest: [`HistoryQuery::MOST`].
    pub fn limit(self, jobs: usize) -> Self {
        Self { limit: Some(jobs), ..self }
    }

    pub(crate) fn most(&self) -> usize {
        self.limit.unwrap_or(Self::MOST).min(Self::MOST)
    }
}

/// A done job that its store keeps: [`Scheduler::history`](crate::Scheduler::history). Serialized,
/// it has the `state` `done`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename = "done")]
#[non_exhaustive]
pub struct FinishedJob {
    /// The number of the job.
    pub id: JobId,
    /// The key.
    pub key: Arc<str>,
    /// The name of the handler.
    #[serde(rename = "handler")]
    pub name: Arc<str>,
    /// The payload, as JSON text.
    #[serde(serialize_with = "form::json")]
    pub payload: Arc<str>,
    /// When the job was done, on the store's clock.
    #[serde(serialize_with = "form::rfc3339")]
    pub ended: SystemTime,
    /// Its run: when it was due and began, how long it took, and which attempt it was.
    pub last: Option<Box<LastRun>>,
    /// The [name](crate::Builder::node_name) of the scheduler that has run it.
    pub node: Option<Arc<str>>,
    /// The value of the handler, as JSON text.
    #[serde(serialize_with = "form::json_or_none")]
    pub result: Option<Arc<str>>,
    /// Grows with each end: what is behind the greatest one has ended later. On a server a commit
    /// may come late, and then has a smaller number than one before it.
    pub seq: u64,
}

impl FinishedJob {
    /// The value of the handler: [`Returned`](crate::Returned). `None`: it has returned none.
    ///
    /// # Errors
    ///
    /// It is no value of this type.
    pub fn value<T: DeserializeOwned>(&self) -> Option<Result<T, serde_json::Error>> {
        self.result.as_deref().map(serde_json::from_str)
    }
}
