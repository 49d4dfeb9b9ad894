//! A put: a job with its key, its time and its rules.

use std::sync::Arc;
use std::time::Duration;

use timerqueue::Due;

use super::{Scheduler, placed};
use crate::Schedule;
use crate::debug::debug_of;
use crate::engine::{Core, Pending, picked};
use crate::store::rules::first_occurrence;
use crate::store::{After, Catchup, Clash, Error, Expiry, NewJob, Op, Overlap, Placed, Recurrence, Terms, Until, When};

/// The last instant of a job, before the engine has read its clock.
#[derive(Clone, Copy)]
enum PutExpiry {
    At(Due),
    AfterDue(Duration),
}

/// A job about to be put. Made by [`Scheduler::put`](crate::Scheduler::put) and
/// [`Scheduler::put_to`](crate::Scheduler::put_to).
///
/// Without a due time and a schedule, the job is due now. Of [`due`](Self::due) and
/// [`schedule`](Self::schedule), the last one called counts.
///
/// # Examples
///
/// Once, and again and again:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Catchup, Overlap, Schedule, Scheduler};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("report", |_: u32, _| {}).start()?;
///
/// let placed = scheduler.put_to("report", &17).key("report/17").due(Duration::from_secs(3600)).send().wait()?;
/// assert!(placed.added().is_some());
///
/// let hourly = Schedule::every(Duration::from_secs(3600)).build()?;
/// let placed = scheduler
///     .put_to("report", &0)
///     .key("report/hourly")
///     .schedule(hourly)
///     .catchup(Catchup::RunAll { at_most: 3 })
///     .overlap(Overlap::QueueOne)
///     .send()
///     .wait()?;
/// assert!(!placed.is_refused());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "`send` puts the job"]
pub struct Put<'a> {
    pub(super) core: &'a Arc<Core>,
    name: Arc<str>,
    payload: Result<String, String>,
    key: Option<Arc<str>>,
    group: Option<Arc<str>>,
    priority: i8,
    expires: Option<PutExpiry>,
    terms: Terms,
    after: Option<Box<After>>,
    due: Due,
    schedule: Option<Schedule>,
    catchup: Catchup,
    grace: Option<Duration>,
    overlap: Overlap,
    clash: Clash,
    refuse_overdue: bool,
    waits: bool,
    trace: Option<Arc<str>>,
}

impl<'a> Put<'a> {
    pub(super) fn new(scheduler: &'a Scheduler, name: &str, payload: Result<String, String>) -> Self {
        let core = &scheduler.core;
        Self {
            core,
            name: core.name(name),
            payload,
            key: None,
            group: None,
            priority: 0,
            expires: None,
            terms: Terms::default(),
            after: None,
            due: Due::After(Duration::ZERO),
            schedule: None,
            catchup: Catchup::default(),
            grace: None,
            overlap: Overlap::default(),
            clash: Clash::default(),
            refuse_overdue: false,
            waits: scheduler.waits,
            trace: None,
        }
    }

    /// The key: 1 to 512 bytes, without NUL. It is unique among the jobs that wait or run, of all
    /// handlers. Default: a key of the scheduler's making.
    pub fn key(self, key: &str) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The group: 1 to 512 bytes, without NUL. All jobs of the handler with one group run on
    /// one [node](crate::Scheduler::nodes) for as long as that node is alive: for what the node
    /// keeps of a customer, or to run them [one after
    /// another](crate::Handler::parallel_per_group). When the node is gone, the group is
    /// bound to another node, once no run of it has a lease any more. The
    /// [rule](crate::Builder::binding) chooses the node. Default: none, so any node with a free
    /// place runs the job.
    ///
    /// A new node may take groups over, as its rule says. Each moves when no run of it is under
    /// way. A group without jobs is forgotten after an hour. The runs of a recurring job have
    /// its group.
    ///
    /// # Examples
    ///
    /// Two nodes in one process; each job of a customer runs on the same one:
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use std::sync::{Arc, Mutex};
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::{Run, Scheduler, store::MemoryStore};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let store = MemoryStore::new(&runtime);
    /// let seen = Arc::new(Mutex::new(HashSet::new()));
    /// let node = |name: &'static str| {
    ///     let seen = Arc::clone(&seen);
    ///     let handler = move |customer: u32, _: &Run| _ = seen.lock().unwrap().insert((customer, name));
    ///     Scheduler::builder().runtime(&runtime).store(store.clone()).node_name(name).handler("book", handler).start()
    /// };
    /// let nodes = [node("a")?, node("b")?];
    /// for n in 0..100 {
    ///     let customer = n % 10;
    ///     let put = nodes[0].put_to("book", &customer).group(&format!("customer/{customer}"));
    ///     let _ = put.send().wait()?;
    /// }
    /// clock.advance(std::time::Duration::ZERO);
    /// assert_eq!(seen.lock().unwrap().len(), 10); // one node for each customer
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(self, group: &str) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    /// The priority, from -9 to 9; 0 if this is not called. Of the due jobs of the handler, the one
    /// with the highest priority begins first. Each step is worth an hour: a job goes before those
    /// of one step above that became due more than an hour after it. So no job waits for ever
    /// behind others, however many come with a higher priority.
    ///
    /// It counts among jobs that wait for a place of one handler, and takes no place from a run.
    /// Among the jobs of a [group](Self::group) the due time alone counts; the first of them
    /// has its priority among the other jobs of the handler. The runs of a recurring job have its
    /// priority. On a server, nodes of version 0.1.0 and before do not find jobs with a priority.
    ///
    /// # Examples
    ///
    /// One place, and a mail that goes before the others:
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Handler, Run, Scheduler};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// # let sent = Arc::new(Mutex::new(Vec::new()));
    /// # let seen = Arc::clone(&sent);
    /// let mail = Handler::new("mail", move |to: String, _: &Run| seen.lock().unwrap().push(to)).parallel(1);
    /// let scheduler = Scheduler::builder().runtime(&runtime).register(mail).start()?;
    /// let put = |to: &str| scheduler.put_to("mail", &to).due(Duration::from_secs(60));
    /// let puts = [put("digest").priority(-1), put("news"), put("password").priority(5)];
    /// let _ = scheduler.put_many(puts).wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(*sent.lock().unwrap(), ["password", "news", "digest"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn priority(self, priority: i8) -> Self {
        Self { priority, ..self }
    }

    /// The last instant at which a run begins. A job that is due and has not begun by then is not
    /// run any more: it is dead, with [`RunEnd::Expired`](crate::RunEnd::Expired) as the end of its
    /// last run, and [`on_run_end`](crate::Builder::on_run_end) is told. Further attempts at a
    /// failed job do not begin after it either; a run that has begun goes on. The job is found when
    /// it would begin, so a full or paused handler keeps it. A job that is
    /// [revived](crate::Scheduler::revive) has no last instant any more.
    ///
    /// A `Duration` is added to the store's clock, as by [`due`](Self::due); a `SystemTime` is a
    /// time of that clock. A recurring job takes no instant, but
    /// [`expires_after`](Self::expires_after).
    ///
    /// # Examples
    ///
    /// A code that is of no use after ten minutes:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{RunEnd, Scheduler, State};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("sms", |_: u32, _| {}).start()?;
    /// # let _ = scheduler.pause_handler("sms").wait()?;
    /// let _ = scheduler.put_to("sms", &1234).key("code").expires(Duration::from_secs(600)).send().wait()?;
    /// clock.advance(Duration::from_secs(601)); // the handler was paused
    /// # let _ = scheduler.resume_handler("sms").wait()?;
    /// # clock.advance(Duration::ZERO);
    /// let job = scheduler.get("code").wait()?.unwrap();
    /// assert_eq!((job.state, job.last.unwrap().end), (State::Dead, RunEnd::Expired));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expires(self, last: impl Into<Due>) -> Self {
        Self { expires: Some(PutExpiry::At(last.into())), ..self }
    }

    /// As [`expires`](Self::expires), by a time after the due time: of a recurring job, after that
    /// of each run. The last one called counts.
    pub fn expires_after(self, after_due: Duration) -> Self {
        Self { expires: Some(PutExpiry::AfterDue(after_due)), ..self }
    }

    /// A run of the job is begun at most once: for what is better left undone than done twice. No
    /// attempt follows a failed one. If the run is cut off, by the end of its process or of its
    /// lease, the job is dead. Then [`RunEnd::CutOff`](crate::RunEnd::CutOff) is the end of its
    /// last run, and [`on_run_end`](crate::Builder::on_run_end) is told by the scheduler that finds
    /// it. It may have done all of its work then, a part or none. The same holds if its future is
    /// dropped, and if it is [put back](crate::Outcome::PutBack) during a close.
    ///
    /// A run begins with its claim, which is flushed before the handler is called. So a cut of the
    /// power in between leaves a job dead that did nothing. A job that was claimed and was not
    /// begun for a reason that its scheduler knows (a close, a full executor) waits as before. Of a
    /// recurring job, this holds for each run. [`Scheduler::revive`](crate::Scheduler::revive) and
    /// [`Outcome::Again`](crate::Outcome::Again) ask for a new run, which is begun at most once,
    /// too. After a restore from a backup, [`Hold::release`](crate::store::Hold::release) lets no
    /// job begin that was due before and may have begun in the lost store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Run, Scheduler, State};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// # let builder = Scheduler::builder().runtime(&runtime);
    /// let pay = |_: u64, _: &Run| Err::<(), _>("the bank has not answered");
    /// let scheduler = builder.handler("pay", pay).start()?;
    /// let _ = scheduler.put_to("pay", &1_200).key("invoice/17").at_most_once().send().wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// let job = scheduler.get("invoice/17").wait()?.unwrap();
    /// assert_eq!((job.state, job.attempt), (State::Dead, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_most_once(mut self) -> Self {
        self.terms.at_most_once = true;
        self
    }

    /// The attempts at a run of this job, with the first, instead of those of its handler's
    /// [`Retry`](crate::Retry): the waits stay, and the last one of a list comes again beyond its
    /// end. Zero counts as one. A [rule](crate::Retry::adjust) has the last word, as it has on the
    /// handler's own number.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Run, Scheduler, State};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// # let builder = Scheduler::builder().runtime(&runtime);
    /// let scheduler = builder.handler("call", |_: u64, _: &Run| Err::<(), _>("no")).start()?;
    /// let _ = scheduler.put_to("call", &1).key("once more").attempts(2).send().wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// let job = scheduler.get("once more").wait()?.unwrap();
    /// assert_eq!((job.state, job.attempt), (State::Dead, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.terms.attempts = Some(attempts);
        self
    }

    /// The limit of time of each run of this job, instead of that of its handler:
    /// [`Handler::limit`](crate::Handler::limit). Rounded up to microseconds. On the runtime's
    /// clock.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.terms.limit = Some(limit);
        self
    }

    /// The key stays taken for this time once the job is done, instead of for that of its handler's
    /// [`History::keys`](crate::History::keys): a further put with the key is refused or kept, as
    /// its [`Clash`] says, and [`Clash::Replace`] puts the new job. The done job is kept for as
    /// long, at least. The key of a job that was cancelled, or is dead, is free at once. Of a
    /// recurring job this says nothing. On the store's clock, rounded up to microseconds.
    ///
    /// # Examples
    ///
    /// One report of a kind in ten minutes:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Placed, Scheduler};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("report", |_: u32, _| {}).start()?;
    /// let put = || scheduler.put_to("report", &7).key("report/7").unique_for(Duration::from_secs(600)).send().wait();
    /// let id = put()?.added().unwrap();
    /// clock.advance(Duration::from_secs(60)); // it is done
    /// assert_eq!(put()?, Placed::Refused(id));
    /// clock.advance(Duration::from_secs(600));
    /// assert!(put()?.added().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unique_for(mut self, time: Duration) -> Self {
        self.terms.unique_for = Some(time);
        self
    }

    /// The done job is kept for this time, at least, with the [value](crate::Returned) of its
    /// handler; and the end of the job, whatever it is, is told to those who
    /// [wait](crate::Scheduler::wait_for) for it. The number of done jobs that the handler's
    /// [`History`](crate::History) says holds here too. On the store's clock, rounded up to
    /// microseconds.
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.terms.kept_for = Some(time);
        self
    }

    /// The job waits for others, its predecessors: at most [`MAX_LINKS`](crate::store::MAX_LINKS)
    /// keys of jobs that wait or run, or are done and [kept](crate::History), by the commit of
    /// this put. [`Until`] says for which ends. So a job follows those alone that were put before
    /// it, or [in the same commit](Scheduler::put_many) and before it, and none waits for itself.
    /// If one of the jobs is not there, nothing is put, and the answer is [`Placed::Unfollowed`].
    /// The last one called counts, and no key means no predecessor.
    ///
    /// The job is [queued](crate::State::Queued) until the commit in which the last of these ends
    /// takes place. Then it waits for its due time, if that has not passed.
    /// [`run_now`](Scheduler::run_now) lets it begin before. A recurring job, which does not end,
    /// is neither followed nor put after others, and a transaction of the user's on a server puts
    /// no such job. On a server, ends that nodes of version 0.1.0 and before bring about count as
    /// well; in a file they are seen as soon as a process of this version looks.
    ///
    /// # Examples
    ///
    /// A batch with an end, which asks what has become of the members:
    ///
    /// ```
    /// # use std::sync::{Arc, Mutex};
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Outcome, PredecessorEnd, Run, Scheduler, Until};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mail = |to: String, _: &Run| if to.contains('@') { Outcome::Done } else { Outcome::Dead("no address".into()) };
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", mail).handler("end", |_: (), _: &Run| {}).start()?;
    /// # let _ = scheduler.pause_handler("end").wait()?;
    /// let users = ["ann@example.org", "bob"];
    /// let puts = users.iter().map(|user| scheduler.put_to("mail", user).key(user));
    /// let end = scheduler.put_to("end", &()).key("end").after(users, Until::AllEnded);
    /// for placed in scheduler.put_many(puts.chain([end])).wait()? {
    ///     assert!(placed?.added().is_some());
    /// }
    /// clock.advance(Duration::ZERO);
    /// let end = scheduler.get("end").wait()?.unwrap(); // the handler can ask so, too
    /// let dead = end.predecessors.iter().filter(|job| job.end == Some(PredecessorEnd::Dead));
    /// assert_eq!(dead.map(|job| &*job.key).collect::<Vec<_>>(), ["bob"]);
    /// # let _ = scheduler.resume_handler("end").wait()?;
    /// # clock.advance(Duration::ZERO);
    /// # assert_eq!(scheduler.stats().wait()?.done, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn after<K: AsRef<str>>(mut self, keys: impl IntoIterator<Item = K>, until: Until) -> Self {
        let keys = keys.into_iter().map(|key| key.as_ref().into()).collect();
        self.after = Some(Box::new(After { keys, until }));
        self
    }

    /// When the job is due. A `Duration`, and the time until a
    /// [`Timestamp`](timerqueue::Timestamp), are added to the store's wall clock; a `SystemTime` is
    /// a time of that clock. Due times follow the clock when it is set. They are rounded up to
    /// microseconds. An instant that has passed means now.
    pub fn due(mut self, due: impl Into<Due>) -> Self {
        self.due = due.into();
        self.schedule = None;
        self
    }

    /// Makes a recurring job: a run at each occurrence.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule: Some(schedule), ..self }
    }

    /// Which missed occurrences run: when the process was stopped, the job paused, or the clock set
    /// forward. Default: [`Catchup::RunLast`].
    pub fn catchup(self, catchup: Catchup) -> Self {
        Self { catchup, ..self }
    }

    /// An occurrence that is later than this does not run. Default: no limit, except for
    /// [`Catchup::Skip`].
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
    }

    /// What happens to an occurrence during a run. Default: [`Overlap::Skip`].
    pub fn overlap(self, overlap: Overlap) -> Self {
        Self { overlap, ..self }
    }

    /// What happens if the key is taken. Default: [`Clash::Refuse`].
    pub fn clash(self, clash: Clash) -> Self {
        Self { clash, ..self }
    }

    /// Refuses the job if its due time, a `SystemTime`, has passed: [`Placed::Overdue`].
    pub fn refuse_overdue(self) -> Self {
        Self { refuse_overdue: true, ..self }
    }

    /// Waits for room, if the scheduler has its [greatest number](crate::Builder::backlog) of
    /// operations under way that the store has not answered. Without this, the put is refused then:
    /// [`Fault::Busy`](crate::store::Fault::Busy). Puts that wait begin in the order of their
    /// calls. Until then, nothing is put, and dropping the answer of [`send`](Self::send) gives the
    /// put up. Of [`put_many`](Scheduler::put_many) all puts wait together, if one of them does.
    /// [`Scheduler::waiting_for_room`] is the same for all operations.
    ///
    /// Each operation is answered within the patience of its store, so a put waits for room as long
    /// as the operations before it, and no longer.
    ///
    /// # Examples
    ///
    /// A million puts, of which no more than a thousand are under way:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::Scheduler;
    /// # let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// # let million = 100;
    /// let scheduler = Scheduler::builder().runtime(&runtime).backlog(1_000).handler("mail", |_: u32, _| {}).start()?;
    /// for n in 0..million {
    ///     let put = scheduler.put_to("mail", &n).due(Duration::from_secs(60)).wait_for_room();
    ///     let _ = put.send().wait()?; // in async code: `send().await`
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_room(self) -> Self {
        Self { waits: true, ..self }
    }

    /// The context of the trace that the job belongs to, such as the `traceparent` of W3C: a text
    /// of at most [`MAX_TRACE_BYTES`](crate::store::MAX_TRACE_BYTES), without NUL. The store keeps
    /// it with the job, and [`Run::trace`](crate::Run::trace) has it, on whichever node. Default:
    /// what [`Builder::trace_puts`](crate::Builder::trace_puts) gives.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Run, Scheduler};
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let mail = move |_: u32, run: &Run| assert_eq!(run.trace(), Some(traceparent));
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", mail).start()?;
    /// let _ = scheduler.put_to("mail", &1).trace(traceparent).send().wait()?;
    /// # clock.advance(Duration::ZERO);
    /// # assert_eq!(scheduler.stats().wait()?.done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace(self, context: &str) -> Self {
        Self { trace: Some(context.into()), ..self }
    }

    /// Puts the job. When the answer is there, the job is in the store.
    ///
    /// # Errors
    ///
    /// All variants of [`Error`]. A taken key is no error: see [`Placed`].
    pub fn send(self) -> Pending<Placed> {
        let (core, waits) = (self.core, self.waits);
        Pending::begun(self.op(core).map(|op| core.mutate(op, waits, placed)))
    }

    /// The operation, for this engine.
    pub(super) fn op(self, core: &Core) -> Result<Op, Error> {
        if !core.by_name.contains_key(&self.name) && !core.store.is_shared() {
            return Err(Error::UnknownHandler { name: self.name.as_ref().to_owned() });
        }
        let payload = self.payload.map_err(|reason| Error::NotSerializable { reason })?;
        let mut when = core.when(self.due)?;
        let (mut first, mut span) = (None, None);
        let recurrence = self.schedule.map(|schedule| {
            let (catchup, grace, overlap) = (self.catchup, self.grace, self.overlap);
            Box::new(Recurrence { schedule, catchup, grace, overlap })
        });
        if let Some(recurrence) = &recurrence {
            when = When::After(Duration::ZERO);
            // Without a clock at hand, the store refuses a schedule without an occurrence, and the
            // first look finds the first one.
            if let Some(now) = core.store.now() {
                let (occurrence, longest) = first_occurrence(&recurrence.schedule, now).ok_or(Error::NoOccurrence)?;
                (first, span) = (Some(occurrence), longest);
                when = When::At(occurrence.due);
            }
        }
        Ok(Op::Put(Box::new(NewJob {
            key: self.key.unwrap_or_else(|| core.new_key()),
            name: self.name,
            payload: payload.into(),
            group: self.group,
            priority: self.priority,
            trace: self.trace.or_else(|| core.current_trace()),
            expires: match self.expires {
                None => None,
                Some(PutExpiry::At(at)) => Some(Expiry::At(core.when(at)?)),
                Some(PutExpiry::AfterDue(after)) => Some(Expiry::AfterDue(after)),
            },
            terms: self.terms,
            after: self.after.filter(|after| !after.keys.is_empty()),
            when,
            // An occurrence that is due is not overdue.
            refuse_overdue: self.refuse_overdue && recurrence.is_none(),
            recurrence,
            first,
            span,
            clash: self.clash,
        })))
    }
}

impl Scheduler {
    /// Puts many jobs in one commit: on a file or a server this takes little longer than a single
    /// [`send`](Put::send). When the answer is there, the jobs are in the store. It has an answer
    /// for each put, in their order: one that is refused or invalid keeps none of the others back.
    ///
    /// The jobs are put into this scheduler, also if another one has made the [`Put`]. The store
    /// works at nothing else meanwhile: put some thousands at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::RuntimeEnded`], [`Error::Store`]: no job was put. Of a single
    /// job: all variants of [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let users = [17, 18, 17];
    /// let puts = users.map(|user| scheduler.put_to("mail", &user).key(&format!("mail/{user}")).due(Duration::from_secs(60)));
    /// let placed = scheduler.put_many(puts).wait()?;
    /// assert!(placed[0].as_ref().is_ok_and(|placed| placed.added().is_some()));
    /// assert!(placed[2].as_ref().is_ok_and(|placed| placed.is_refused())); // its key is taken
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_many<'a>(&self, puts: impl IntoIterator<Item = Put<'a>>) -> Pending<Vec<Result<Placed, Error>>> {
        let (mut ops, mut bad, mut waits) = (Vec::new(), Vec::new(), self.waits);
        for (n, put) in puts.into_iter().enumerate() {
            waits |= put.waits;
            match put.op(&self.core) {
                Ok(op) => ops.push(op),
                Err(error) => bad.push((n, error)),
            }
        }
        self.core.mutate_all(ops, waits, move |applied| {
            let mut placed = Vec::with_capacity(applied.len() + bad.len());
            let mut applied = applied.into_iter().map(|applied| picked(Some(applied), super::placed));
            for (n, error) in bad {
                placed.extend(applied.by_ref().take(n - placed.len()));
                placed.push(Err(error));
            }
            placed.extend(applied);
            Ok(placed)
        })
    }
}

debug_of!(Put<'_>, |put| name: put.name, key: put.key, due: put.due, schedule: put.schedule);
