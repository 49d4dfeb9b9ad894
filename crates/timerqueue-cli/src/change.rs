//! `cancel`, `move`, `run`, `pause`, `resume`, `retry`, `dead --discard`: changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;
use timerqueue_scheduler::{
    Cancel, Change, EditJob, JobId, JobInfo, Pending, Query, Revive, Schedule, Scheduler, State,
};

use crate::args;
use crate::exit::{ABSENT, DONE, Fail, REFUSED};
use crate::look::pages;
use crate::out::{Out, Progress};
use crate::place::Place;
use crate::put::{When, last_of, next_lines, next_of, schedule, with};
use crate::store::{Reader, open};
use crate::text;

/// Other parts of a job that waits.
pub(crate) fn edit(place: &Place, mut edit: args::Edit, out: &mut Out) -> Result<(), Fail> {
    let (payload, args::Due { after, at, zone }) = (edit.payload.read()?, &edit.due);
    let when = match after.is_some() || at.is_some() {
        true => Some(When::new(*after, at.as_deref(), zone.as_deref())?),
        false => None,
    };
    let last = last_of(edit.expires_at.as_deref(), zone.as_deref())?;
    let (scheduler, key) = (open(place, false)?, edit.key.as_str());
    let change = with(scheduler.edit(key), payload.as_ref(), EditJob::payload);
    let change = with(change, edit.priority, EditJob::priority);
    let change = with(change, when.map(|when| when.due()), EditJob::due);
    let change = with(change, last, EditJob::expires);
    let change = with(change, edit.expires_after.map(|after| after.0), EditJob::expires_after);
    let change = with(change, edit.at_most_once, EditJob::at_most_once);
    let change = with(change, edit.attempts.map(|attempts| attempts.0), EditJob::attempts);
    let change = with(change, edit.limit.map(|limit| limit.0), EditJob::limit);
    let change = with(change, edit.unique_for.map(|time| time.0), EditJob::unique_for);
    let change = with(change, edit.keep_for.map(|time| time.0), EditJob::kept_for);
    out.thing(&changed(key, change.send().wait()?, "changed")?, Changed::text)
}

/// What became of a job, a handler or a dead job.
#[derive(Serialize)]
struct Changed<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    outcome: &'static str,
}

impl<'a> Changed<'a> {
    fn key(key: &'a str, outcome: &'static str) -> Self {
        Self { key: Some(key), handler: None, id: None, outcome }
    }

    fn id(JobId(id): JobId, outcome: &'static str) -> Self {
        Self { key: None, handler: None, id: Some(id), outcome }
    }

    fn text(&self) -> String {
        match (self.key, self.handler, self.id) {
            (Some(key), ..) => format!("{}: {}", text::tame(key), self.outcome),
            (_, Some(handler), _) => format!("handler {}: {}", text::tame(handler), self.outcome),
            (.., id) => format!("job {}: {}", id.unwrap_or_default(), self.outcome),
        }
    }
}

/// Does `change` for each: what fails is told at once and does not keep the others from being done.
/// The greatest exit code stays.
fn each<'a, T>(
    things: impl IntoIterator<Item = T>,
    out: &mut Out,
    mut change: impl FnMut(T) -> Result<Changed<'a>, Fail>,
) -> Result<(), Fail> {
    let mut code = DONE;
    for thing in things {
        match change(thing) {
            Ok(changed) => out.thing(&changed, Changed::text)?,
            Err(fail) => {
                out.flush()?;
                code = code.max(fail.report());
            }
        }
    }
    Fail::told(code)
}

fn absent(key: &str) -> Fail {
    Fail::new(ABSENT, format!("{}: no job with this key waits, runs or recurs", text::tame(key)))
}

fn changed<'a>(key: &'a str, change: Change, outcome: &'static str) -> Result<Changed<'a>, Fail> {
    let shown = || text::tame(key);
    match change {
        Change::Changed => Ok(Changed::key(key, outcome)),
        Change::Absent => Err(absent(key)),
        Change::Running => Err(Fail::new(REFUSED, format!("{}: the job runs", shown()))),
        Change::WrongKind => Err(Fail::new(REFUSED, format!("{}: this change is for jobs of another kind", shown()))),
        _ => Err(Fail::new(REFUSED, format!("{}: refused", shown()))),
    }
}

fn cancelled(key: &str, cancel: Cancel) -> Result<Changed<'_>, Fail> {
    match cancel {
        Cancel::Cancelled => Ok(Changed::key(key, "cancelled")),
        Cancel::Running => Ok(Changed::key(key, "stopping")),
        _ => Err(absent(key)),
    }
}

pub(crate) fn cancel(place: &Place, cancel: &args::Cancel, out: &mut Out) -> Result<(), Fail> {
    let scheduler = open(place, false)?;
    let Some(prefix) = &cancel.prefix else {
        return each(&cancel.keys, out, |key| cancelled(key, scheduler.cancel(key).wait()?));
    };
    let query = with(Query::new().key_prefix(prefix), cancel.handler.as_deref(), Query::name);
    // A recurring job and its runs have the same key.
    let mut keys = BTreeSet::new();
    pages(&Reader::open(place)?, &query, |job| {
        if job.state != State::Dead {
            keys.insert(Arc::clone(&job.key));
        }
        Ok(true)
    })?;
    if keys.is_empty() {
        return Err(Fail::new(
            ABSENT,
            format!("no job waits, runs or recurs whose key begins with {}", text::tame(prefix)),
        ));
    }
    cancel_all(&scheduler, &keys.into_iter().collect::<Vec<_>>(), out)
}

/// Cancels the jobs with these keys.
pub(crate) fn cancel_all(scheduler: &Scheduler, keys: &[Arc<str>], out: &mut Out) -> Result<(), Fail> {
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    in_batches(&keys, out, |key| scheduler.cancel(key), cancelled)
}

pub(crate) fn run_now(place: &Place, keys: &args::Keys, out: &mut Out) -> Result<(), Fail> {
    let scheduler = open(place, false)?;
    each(&keys.keys, out, |key| changed(key, scheduler.run_now(key).wait()?, "due now"))
}

/// A recurring job goes on.
fn goes_on(changed: &Changed<'_>, schedule: &Schedule, scheduler: &Scheduler, out: &mut Out) -> Result<(), Fail> {
    let runs = next_of(scheduler, changed.key.unwrap_or_default(), schedule)?;
    out.thing(changed, |changed| format!("{}, next runs:\n{}", changed.text(), next_lines(schedule, &runs).join("\n")))
}

pub(crate) fn move_to(place: &Place, to: &args::Move, out: &mut Out) -> Result<(), Fail> {
    let key = to.key.as_str();
    if to.realign {
        let scheduler = open(place, false)?;
        let changed = changed(key, scheduler.realign(key).wait()?, "goes on from now")?;
        let rules = scheduler.get(key).wait()?.and_then(|job| job.recurrence).ok_or_else(|| absent(key))?;
        return goes_on(&changed, &rules.schedule, &scheduler, out);
    }
    if let Some(line) = &to.schedule {
        let schedule = schedule(line, to.zone.as_deref())?;
        let scheduler = open(place, false)?;
        let change = scheduler.reschedule(key, schedule.clone()).wait()?;
        return goes_on(&changed(key, change, "moved")?, &schedule, &scheduler, out);
    }
    if to.zone.is_some() && to.at.is_none() {
        return Err(Fail::usage("--zone is for --at and --schedule"));
    }
    let when = When::new(to.after, to.at.as_deref(), to.zone.as_deref())?;
    let scheduler = open(place, false)?;
    let changed = changed(key, scheduler.move_to(key, when.due()).wait()?, "moved")?;
    out.thing(&changed, |changed| format!("{}, due {}", changed.text(), text::at(when.shown)))
}

pub(crate) fn pause(place: &Place, what: &args::What, pause: bool, out: &mut Out) -> Result<(), Fail> {
    let scheduler = open(place, false)?;
    let outcome = if pause { "paused" } else { "resumed" };
    if let Some(handler) = what.handler.as_deref() {
        let change = if pause { scheduler.pause_handler(handler) } else { scheduler.resume_handler(handler) };
        change.wait()?;
        let changed = Changed { key: None, handler: Some(handler), id: None, outcome };
        return out.thing(&changed, Changed::text);
    }
    each(&what.keys, out, |key| {
        let change = if pause { scheduler.pause(key) } else { scheduler.resume(key) };
        changed(key, change.wait()?, outcome)
    })
}

fn revived(id: JobId, revive: Revive) -> Result<Changed<'static>, Fail> {
    match revive {
        Revive::Revived => Ok(Changed::id(id, "due now")),
        Revive::Taken => Err(Fail::new(REFUSED, format!("job {}: another job has its key by now", id.0))),
        _ => Err(Fail::new(ABSENT, format!("job {}: no such dead job", id.0))),
    }
}

pub(crate) fn retry(place: &Place, retry: &args::Retry, out: &mut Out) -> Result<(), Fail> {
    retry.age.is_for(retry.all)?;
    let scheduler = open(place, false)?;
    if retry.all {
        return all(place, retry.handler.as_deref(), retry.age, out, |id| scheduler.revive(id), revived);
    }
    let reader = Reader::open(place)?;
    let by_key = each(&retry.keys, out, |key| {
        let shown = text::tame(key);
        match reader.get(key)? {
            Some(job) if job.state == State::Dead => revived(job.id, scheduler.revive(job.id).wait()?),
            Some(_) => Err(Fail::new(
                REFUSED,
                format!("{shown}: a job with this key is not dead (a dead one by its number: --id)"),
            )),
            None => Err(Fail::new(ABSENT, format!("{shown}: no dead job has this key"))),
        }
    });
    let by_id = each(&retry.id, out, |&id| revived(JobId(id), scheduler.revive(JobId(id)).wait()?));
    joined(by_key, by_id)
}

fn discarded(id: JobId, was_there: bool) -> Result<Changed<'static>, Fail> {
    match was_there {
        true => Ok(Changed::id(id, "discarded")),
        false => Err(Fail::new(ABSENT, format!("job {}: no such dead job", id.0))),
    }
}

pub(crate) fn discard(place: &Place, dead: &args::Dead, out: &mut Out) -> Result<(), Fail> {
    dead.age.is_for(dead.all)?;
    let scheduler = open(place, false)?;
    if dead.all {
        return all(place, dead.handler.as_deref(), dead.age, out, |id| scheduler.discard(id), discarded);
    }
    each(&dead.id, out, |&id| discarded(JobId(id), scheduler.discard(JobId(id)).wait()?))
}

/// Changes all dead jobs of a handler, or of all.
fn all<T>(
    place: &Place,
    handler: Option<&str>,
    age: args::Age,
    out: &mut Out,
    change: impl FnMut(JobId) -> Pending<T>,
    judge: impl Fn(JobId, T) -> Result<Changed<'static>, Fail>,
) -> Result<(), Fail> {
    let query = with(Query::new().state(State::Dead), handler, Query::name);
    let mut ids = Vec::new();
    let now = SystemTime::now();
    pages(&Reader::open(place)?, &query, |job| {
        if age.has(job, now) {
            ids.push(job.id);
        }
        Ok(true)
    })?;
    in_batches(&ids, out, change, judge)
}

impl args::Age {
    /// Whether a dead job is of this age.
    pub(crate) fn has(self, job: &JobInfo, now: SystemTime) -> bool {
        let died = job.last.as_ref().map(|last| last.started + last.duration).or(job.due);
        let ago = died.and_then(|died| now.duration_since(died).ok()).unwrap_or_default();
        self.older.is_none_or(|older| ago >= older) && self.newer.is_none_or(|newer| ago < newer)
    }

    /// An age chooses among all jobs.
    fn is_for(self, all: bool) -> Result<(), Fail> {
        match (self.older.or(self.newer), all) {
            (Some(_), false) => Err(Fail::usage("--older and --newer are for lists, and for --all")),
            _ => Ok(()),
        }
    }
}

/// Changes each of many things. The store commits many at a time.
fn in_batches<'a, K: Copy, T>(
    things: &[K],
    out: &mut Out,
    mut change: impl FnMut(K) -> Pending<T>,
    judge: impl Fn(K, T) -> Result<Changed<'a>, Fail>,
) -> Result<(), Fail> {
    const BATCH: usize = 512;
    let mut progress = Progress::new(false);
    let mut code = Ok(());
    for (at, batch) in things.chunks(BATCH).enumerate() {
        if things.len() > BATCH {
            progress.show(&format!("{} of {}", at * BATCH, things.len()));
        }
        let pending: Vec<_> = batch.iter().map(|&thing| (thing, change(thing))).collect();
        let done = each(pending, out, |(thing, pending)| judge(thing, pending.wait()?));
        code = joined(code, done);
    }
    code
}

/// Both results: the greater exit code.
fn joined(one: Result<(), Fail>, two: Result<(), Fail>) -> Result<(), Fail> {
    match (one, two) {
        (Err(one), Err(two)) => Err(if two.code() > one.code() { two } else { one }),
        (one, two) => one.and(two),
    }
}
