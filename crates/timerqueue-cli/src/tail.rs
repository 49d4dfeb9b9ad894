//! `tail`: what happens, as it happens.
//!
//! Ground rules. The store keeps no log of events, so they are found by comparing looks. A look
//! reads the jobs that are new, that run, and that are due soon, never all; and the done jobs that
//! are kept since the last look, all of them. Between two looks a job that is not kept may come and
//! go: the numbers that were given tell how many.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use timerqueue_scheduler::{FinishedJob, HistoryQuery, JobId, JobInfo, LastRun, Query, RunEnd, State};

use crate::args;
use crate::exit::Fail;
use crate::look::pages;
use crate::out::Out;
use crate::place::Place;
use crate::store::Reader;
use crate::text;

/// Jobs due within this time, and two intervals, are watched: they may begin before the next look.
const SOON: Duration = Duration::from_secs(1);
/// The most jobs that are watched because they are due soon.
const WATCHED: usize = 2_000;
/// On a server, a transaction may give a number, and commit after one with a greater number. So
/// many numbers are looked at again.
const AGAIN: u64 = 2_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Event {
    at: String,
    event: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<u64>,
}

impl Event {
    fn bare(event: impl Display) -> Self {
        Self { at: text::rfc3339(SystemTime::now()), event: event.to_string(), ..Self::default() }
    }

    fn about(event: impl Display, JobId(id): JobId, key: &str, handler: &str, attempt: Option<u32>) -> Self {
        let (id, key, handler) = (Some(id), Some(key.to_owned()), Some(handler.to_owned()));
        Self { id, key, handler, attempt, ..Self::bare(event) }
    }

    fn of(event: impl Display, job: &JobInfo) -> Self {
        Self::about(event, job.id, &job.key, &job.name, (job.attempt > 0).then_some(job.attempt))
    }

    fn of_done(event: &'static str, job: &FinishedJob) -> Self {
        let attempt = job.last.as_deref().map(|run| run.attempt).filter(|_| event != "put");
        Self::about(event, job.id, &job.key, &job.name, attempt)
    }

    fn due(self, job: &JobInfo) -> Self {
        Self { due: job.due.map(text::rfc3339), ..self }
    }

    fn error(self, error: Option<&str>) -> Self {
        Self { error: error.map(str::to_owned), ..self }
    }

    fn text(&self) -> String {
        let now = text::at(SystemTime::now());
        if let Some(jobs) = self.jobs {
            return format!("{now}  {jobs} jobs came and went between two looks");
        }
        let shown = |text: &Option<String>| text.as_deref().map(text::tame).unwrap_or_default();
        let mut line = format!(
            "{now}  {:<9} {:<16} {:<24} job {}",
            self.event,
            shown(&self.handler),
            shown(&self.key),
            self.id.unwrap_or_default()
        );
        if let Some(attempt) = self.attempt {
            line += &format!(", attempt {attempt}");
        }
        if let Some(due) = &self.due {
            line += &format!(", due {due}");
        }
        if let Some(error) = &self.error {
            line += &format!(": {}", text::short(error, 200));
        }
        line
    }
}

/// A job has left the file, done or cancelled.
const LEFT: &str = "left";

/// The last look.
struct Tail {
    reader: Reader,
    last_id: JobId,
    /// The jobs that were seen among the last numbers, if numbers do not come in order.
    seen: BTreeSet<JobId>,
    /// The last done job, and those that were told of among the last ones, if they do not come in
    /// order.
    last_end: u64,
    ends: BTreeSet<u64>,
    watched: BTreeMap<JobId, JobInfo>,
    /// By recurring job: when its last run began.
    last_runs: BTreeMap<JobId, Option<SystemTime>>,
    within: Duration,
}

impl Tail {
    fn new(reader: Reader, interval: Duration) -> Result<Self, Fail> {
        let last_id = reader.last_id()?;
        let within = SOON.saturating_add(interval.saturating_mul(2));
        let (seen, watched, last_runs) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let last_end = reader.history(&HistoryQuery::new().limit(1))?.first().map_or(0, |job| job.seq);
        let mut tail = Self { reader, last_id, seen, last_end, ends: BTreeSet::new(), watched, last_runs, within };
        tail.ended()?;
        if !tail.reader.is_in_order() {
            pages(&tail.reader, &Query::new().after(tail.first()), |job| {
                tail.seen.insert(job.id);
                Ok(true)
            })?;
        }
        tail.watch_near(BTreeMap::new())?;
        Ok(tail)
    }

    /// Jobs with greater numbers may be new.
    fn first(&self) -> JobId {
        let JobId(last) = self.last_id;
        JobId(if self.reader.is_in_order() { last } else { last.saturating_sub(AGAIN) })
    }

    /// The done jobs that are kept since the last look, in the order of their ends.
    fn ended(&mut self) -> Result<Vec<FinishedJob>, Fail> {
        let again = if self.reader.is_in_order() { 0 } else { AGAIN };
        let mut query = HistoryQuery::new().oldest_first().after(self.last_end.saturating_sub(again));
        let (mut new, mut ends) = (Vec::new(), BTreeSet::new());
        loop {
            let page = self.reader.history(&query)?;
            let Some(last) = page.last() else { break };
            self.last_end = self.last_end.max(last.seq);
            query = query.after(last.seq);
            ends.extend(page.iter().map(|job| job.seq));
            new.extend(page.into_iter().filter(|job| !self.ends.contains(&job.seq)));
        }
        if again > 0 {
            self.ends = ends;
        }
        Ok(new)
    }

    /// Watches the jobs that run or are due soon. `told`: the jobs as they were told of. What has
    /// become of them since then is for the next look to tell, so these stay as they are here. A
    /// job that has come since is new for the next look, with all that becomes of it.
    fn watch_near(&mut self, mut told: BTreeMap<JobId, JobInfo>) -> Result<(), Fail> {
        let (first, near) = (self.first(), self.reader.near(self.within, WATCHED)?);
        let is_told = |job: &JobInfo| job.id <= first || self.seen.contains(&job.id);
        let near = near.into_iter().filter(is_told);
        self.watched = near.map(|job| (job.id, told.remove(&job.id).unwrap_or(job))).collect();
        let until = SystemTime::now().checked_add(self.within);
        let was_near = |job: &JobInfo| match job.state {
            State::Running => true,
            State::Waiting => until.is_none_or(|until| job.due.is_some_and(|due| due <= until)),
            _ => false,
        };
        let room = WATCHED.saturating_sub(self.watched.len());
        self.watched.extend(told.into_iter().filter(|(_, job)| was_near(job)).take(room));
        Ok(())
    }

    /// What has happened since the last look.
    fn look(&mut self) -> Result<Vec<Event>, Fail> {
        let mut events = Vec::new();
        let mut told = BTreeMap::new();
        let given = self.reader.last_id()?;
        let mut new = BTreeSet::new();
        let first = self.first();
        pages(&self.reader, &Query::new().after(first), |job| {
            new.insert(job.id);
            if self.seen.contains(&job.id) {
                return Ok(true);
            }
            // A run of a recurring job begins without a put.
            if job.parent.is_none() {
                events.push(Event::of("put", job).due(job));
            }
            // One that waits may have failed before. A recurring job has the last run of its runs.
            if job.state != State::Recurring {
                events.extend(began_and_ended(None, job));
            }
            if told.len() < WATCHED {
                told.insert(job.id, job.clone());
            }
            Ok(true)
        })?;
        let mut gone = BTreeMap::new();
        for (id, before) in std::mem::take(&mut self.watched) {
            match self.reader.get_by_id(id)? {
                Some(now) => {
                    events.extend(began_and_ended(Some(&before), &now));
                    told.insert(id, now);
                }
                None => _ = gone.insert(id, before),
            }
        }
        // After the looks at single jobs: what was gone then, and is kept, is among these.
        let mut done = 0;
        for job in self.ended()? {
            let is_new = job.id > first && !self.seen.contains(&job.id) && !new.contains(&job.id);
            done += u64::from(is_new && job.id <= given);
            let before = gone.remove(&job.id).or_else(|| told.remove(&job.id));
            let is_run = job.last.as_deref().is_some_and(|run| run.nominal.is_some());
            if is_new && before.is_none() && !is_run {
                events.push(Event::of_done("put", &job));
            }
            if before.is_none_or(|before| before.state != State::Running) {
                events.push(Event::of_done("began", &job));
            }
            events.push(Event::of_done("done", &job));
        }
        for before in gone.into_values() {
            let gone = self.gone(&before)?;
            if before.state != State::Running && gone.event != LEFT {
                // It began and ended between two looks.
                let attempt = Some(before.attempt.saturating_add(1));
                events.push(Event { attempt, ..Event::of("began", &before) });
            }
            events.push(gone);
        }
        let listed = new.iter().filter(|&&id| id <= given).count() as u64;
        let unseen = given.0.saturating_sub(first.0).saturating_sub(listed).saturating_sub(done);
        if unseen > 0 && self.reader.is_in_order() {
            events.push(Event { jobs: Some(unseen), ..Event::bare("unseen") });
        }
        self.last_id = given.max(new.last().copied().unwrap_or(given));
        if !self.reader.is_in_order() {
            self.seen = new;
        }
        self.watch_near(told)?;
        Ok(events)
    }

    /// A job has left the store, and is not kept.
    fn gone(&mut self, before: &JobInfo) -> Result<Event, Fail> {
        if let Some(parent) = before.parent {
            // The recurring job keeps its last run.
            if let Some(last) = self.reader.get_by_id(parent)?.and_then(|job| job.last) {
                let seen = self.last_runs.insert(parent, Some(last.started));
                if seen != Some(Some(last.started)) {
                    return Ok(Event::of(last.end, before).error(last.error.as_deref()));
                }
            }
        }
        // Done or cancelled: the file does not say.
        Ok(Event::of(LEFT, before))
    }
}

/// The attempts that have ended since a look, as far as the job remembers them.
fn ended<'j>(before: Option<&JobInfo>, now: &'j JobInfo) -> Vec<&'j LastRun> {
    let same = |one: &LastRun, other: &LastRun| (one.started, one.attempt) == (other.started, other.attempt);
    let last = now.last.as_deref();
    // A failed attempt is the last run, too, where the whole text of its error is.
    let failures = now.failures.iter().filter(|run| !last.is_some_and(|last| same(run, last)));
    let runs: Vec<&LastRun> = failures.chain(last).collect();
    let known = before.and_then(|job| job.last.as_deref());
    let behind = runs.iter().rposition(|run| known.is_some_and(|known| same(run, known))).map_or(0, |at| at + 1);
    runs[behind..].to_vec()
}

/// What led from one look at a job to the next.
fn began_and_ended(before: Option<&JobInfo>, now: &JobInfo) -> Vec<Event> {
    let mut events = Vec::new();
    let ended = ended(before, now);
    let was_running = before.is_some_and(|job| job.state == State::Running);
    for (n, run) in ended.iter().enumerate() {
        let of = |event: &dyn Display| Event { attempt: Some(run.attempt), ..Event::of(event, now) };
        if n > 0 || !was_running {
            events.push(of(&"began")); // between two looks
        }
        let is_latest = n + 1 == ended.len();
        let event = of(&run.end).error(run.error.as_deref());
        events.push(if is_latest && run.end != RunEnd::Dead { event.due(now) } else { event });
    }
    if ended.is_empty() && was_running && now.state == State::Waiting {
        // Its worker was killed or stopped.
        events.push(Event::of("back", now));
    }
    let attempt = before.map_or(0, |job| job.attempt);
    if now.state == State::Running && (!was_running || !ended.is_empty() || now.attempt != attempt) {
        events.push(Event::of("began", now));
    }
    events
}

pub(crate) fn tail(place: &Place, tail: &args::Tail, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    let interval = tail.interval.max(Duration::from_millis(1));
    let mut looks = Tail::new(reader, interval)?;
    let wanted = |event: &Event| {
        let named = tail.handler.as_deref().is_none_or(|name| event.handler.as_deref() == Some(name));
        let begins = |prefix: &str| event.key.as_deref().is_some_and(|key| key.starts_with(prefix));
        named && tail.prefix.as_deref().is_none_or(begins)
    };
    let mut watched_at = SystemTime::now();
    loop {
        std::thread::sleep(interval);
        if looks.reader.has_changed()? {
            for event in looks.look()?.iter().filter(|event| wanted(event)) {
                out.thing(event, Event::text)?;
            }
            out.flush()?;
            watched_at = SystemTime::now();
        } else if watched_at.elapsed().is_ok_and(|elapsed| elapsed >= SOON) {
            // Other jobs are due soon by now.
            let told = std::mem::take(&mut looks.watched);
            looks.watch_near(told)?;
            watched_at = SystemTime::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use timerqueue_scheduler::{Handler, History, Retry, Run, Scheduler};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    struct Store(std::path::PathBuf);

    impl Store {
        fn new(name: &str) -> Self {
            let name = format!("timerqueue-tail-{name}-{}.db", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn tail(&self) -> Tail {
            Tail::new(Reader::open(&Place::File(self.0.clone())).unwrap(), Duration::from_secs(1)).unwrap()
        }
    }

    impl Drop for Store {
        fn drop(&mut self) {
            for end in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
            }
        }
    }

    fn told(tail: &mut Tail) -> Vec<String> {
        tail.look().unwrap().into_iter().map(|event| event.event).collect()
    }

    fn until(mut is_true: impl FnMut() -> bool) {
        while !is_true() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_job_that_comes_within_a_look_is_told_of_whole_by_the_next_one() {
        let store = Store::new("within");
        let handler = Handler::new("h", |(): (), _: &Run| ()).history(History::new(HOUR));
        let waits = Scheduler::open(&store.0).start().unwrap();
        let mut tail = store.tail();
        let _ = waits.put_to("h", &()).key("a").send().wait().unwrap();
        // The last part of a look, which has begun before the put.
        tail.watch_near(BTreeMap::new()).unwrap();
        let runs = Scheduler::open(&store.0).register(handler).start().unwrap();
        until(|| !runs.history(HistoryQuery::new()).wait().unwrap().is_empty());
        assert_eq!(told(&mut tail), ["put", "began", "done"]);
    }

    #[test]
    fn a_new_job_that_waits_after_a_failure_is_told_of_with_it() {
        let store = Store::new("failed");
        let fails = |(): (), _: &Run| Err::<(), _>("no");
        let runs =
            Scheduler::open(&store.0).register(Handler::new("h", fails).retry(Retry::waits([HOUR]))).start().unwrap();
        let mut tail = store.tail();
        let _ = runs.put_to("h", &()).key("a").send().wait().unwrap();
        until(|| runs.get("a").wait().unwrap().is_some_and(|job| job.last.is_some()));
        assert_eq!(told(&mut tail), ["put", "began", "failed"]);
        assert_eq!(told(&mut tail), [""; 0]);
    }
}
