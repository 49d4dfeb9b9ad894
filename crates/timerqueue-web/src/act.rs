//! Changes: what the forms of the page ask of the scheduler.
//!
//! Ground rules. A form names a job by its number, which is never used again, and so do the changes
//! of the scheduler that are made here. So a form that was shown a while ago changes no other job.
//! A change of many jobs goes in steps, each of which a form asks for: none is longer than a
//! request, and the jobs that are put meanwhile are not among them.

use std::future::{Future, ready};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use timerqueue_scheduler::{
    Cancel, Change, EditJob, Error, JobId, JobInfo, Pending, Placed, Put, Query, Revive, State,
};

use crate::page::{Answer, Inner};
use crate::route::{Action, Fields, Many, Route, Said};
use crate::text;
use crate::view;

/// What instants are, in words.
const DUE: &str = "due time";
const LAST: &str = "last instant";
/// The most jobs that a step changes.
const STEP: usize = 500;

/// The job with a number.
pub(crate) async fn find(page: &Inner, id: JobId) -> Result<Option<JobInfo>, Error> {
    let query = match id.0.checked_sub(1) {
        Some(before) => Query::new().after(JobId(before)).limit(1),
        None => return Ok(None),
    };
    let jobs = page.scheduler.list(query).await?;
    let Some(job) = jobs.into_iter().find(|job| job.id == id) else { return Ok(None) };
    if job.until.is_none() {
        return Ok(Some(job));
    }
    // A list leaves out what it waits for.
    let whole = page.scheduler.get(&job.key).await?.filter(|whole| whole.id == id);
    Ok(Some(whole.unwrap_or(job)))
}

/// Does what a form asks for.
pub(crate) async fn act(page: &Inner, route: Route, form: &Fields, nonce: &str) -> Result<Answer, Error> {
    let (said, id) = match route {
        Route::Handler { name, paused } => {
            if paused {
                page.scheduler.pause_handler(&name).await?;
                (Said::HandlerPaused, None)
            } else {
                page.scheduler.resume_handler(&name).await?;
                (Said::HandlerResumed, None)
            }
        }
        Route::Change { id, action } => match find(page, id).await? {
            Some(job) => (ask(page, &job, action).await?, Some(id)),
            None => (Said::Gone, None),
        },
        Route::Step => return step(page, form).await,
        Route::Put => {
            let put = put(page, form).await;
            return changed(page, nonce, None, form, put).await;
        }
        Route::Save(id) => {
            let Some(job) = find(page, id).await? else { return Ok(said_at(page, "/jobs?", Said::Gone)) };
            if form.get("was") != Some(&version(&job)) {
                return Ok(said_at(page, &format!("/job/{}?", id.0), Said::Outdated));
            }
            let saved = save(page, &job, form).await;
            return changed(page, nonce, Some(&job), form, saved).await;
        }
        _ => (Said::NotNow, None),
    };
    // Back to where the form was.
    let back = match (form.get("from"), id) {
        (Some("schedules"), _) => "/schedules?".to_owned(),
        (Some("overview"), _) => "/?".to_owned(),
        (Some("job"), Some(id)) => return said_at_job(page, id, said).await,
        (Some(word @ ("waiting" | "running" | "failing" | "dead" | "all")), _) => format!("/jobs?state={word}&"),
        (_, Some(_)) => "/jobs?".to_owned(),
        _ => "/?".to_owned(),
    };
    Ok(said_at(page, &back, said))
}

/// `path`: with a query that has begun.
fn said_at(page: &Inner, path: &str, said: Said) -> Answer {
    Answer::SeeOther(page.link(&format!("{path}said={}", said.word())))
}

/// At the job, or at the list if the job has gone.
async fn said_at_job(page: &Inner, id: JobId, said: Said) -> Result<Answer, Error> {
    let is_there = find(page, id).await?.is_some();
    let path = if is_there { format!("/job/{}?", id.0) } else { "/jobs?".to_owned() };
    Ok(said_at(page, &path, said))
}

type Asked = Pin<Box<dyn Future<Output = Result<Said, Error>> + Send>>;

fn then<T: Send + 'static>(pending: Pending<T>, said: impl FnOnce(T) -> Said + Send + 'static) -> Asked {
    Box::pin(async { Ok(said(pending.await?)) })
}

fn said_of(change: Change, changed: Said) -> Said {
    match change {
        Change::Changed => changed,
        Change::Running => Said::Runs,
        Change::Absent => Said::Gone,
        _ => Said::NotNow,
    }
}

/// Asks for a change, at once. The answer is awaited.
fn ask(page: &Inner, job: &JobInfo, action: Action) -> Asked {
    let (scheduler, by_id) = (&page.scheduler, page.scheduler.job(job.id));
    let change = |change, changed| then(change, move |change| said_of(change, changed));
    match (action, job.state) {
        (Action::Retry, State::Dead) => then(scheduler.revive(job.id), |revive| match revive {
            Revive::Revived => Said::Revived,
            Revive::Taken => Said::Taken,
            _ => Said::Gone,
        }),
        (Action::Discard, State::Dead) => {
            then(scheduler.discard(job.id), |was_there| if was_there { Said::Discarded } else { Said::Gone })
        }
        (Action::Retry, _) if job.is_failing() => change(by_id.run_now(), Said::WillRun),
        (Action::Retry | Action::Discard, _) | (_, State::Dead) => Box::pin(ready(Ok(Said::NotNow))),
        // A run of a schedule has the key of the schedule.
        _ if job.parent.is_some() => Box::pin(ready(Ok(Said::NotNow))),
        (Action::Cancel, _) => then(by_id.cancel(), |cancel| match cancel {
            Cancel::Cancelled => Said::Cancelled,
            Cancel::Running => Said::Cancelling,
            _ => Said::Gone,
        }),
        (Action::Pause, _) => change(by_id.pause(), Said::Paused),
        (Action::Resume, _) => change(by_id.resume(), Said::Resumed),
        (Action::RunNow, _) => change(by_id.run_now(), Said::WillRun),
    }
}

/// The next step of a change of many jobs.
async fn step(page: &Inner, form: &Fields) -> Result<Answer, Error> {
    let Some((mut many, last)) = Many::read(form).and_then(|many| Some((many.clone(), many.until?))) else {
        return Ok(said_at(page, "/jobs?", Said::NotNow));
    };
    let part = view::search(page, &many.filter, STEP).await?;
    // All are asked for before the first answer, so the store commits them together.
    let asked: Vec<Asked> =
        part.jobs.iter().filter(|job| job.id <= last).map(|job| ask(page, job, many.action)).collect();
    for answer in asked {
        match answer.await?.is_done() {
            true => many.changed += 1,
            false => many.kept += 1,
        }
    }
    many.filter.after = part.next;
    many.is_done = part.next.is_none_or(|next| next.id >= last);
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(many.fields()).finish();
    Ok(Answer::SeeOther(page.link(&format!("/many?{query}"))))
}

/// Changes with each change of what the form of a job shows.
pub(crate) fn version(job: &JobInfo) -> String {
    let mut hasher = DefaultHasher::new();
    (&job.payload, job.priority, job.due, job.attempt, job.terms, job.expires, job.expires_after).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The payload that a form has: JSON without its lines.
fn payload(form: &Fields) -> Result<Box<RawValue>, String> {
    let text = form.value("payload");
    let text = if text.trim().is_empty() { "null".to_owned() } else { text::compact(text).map(|(c, _)| c).collect() };
    RawValue::from_string(text).map_err(|error| format!("The payload is no JSON: {error}."))
}

/// What a field says. `None`: it is empty.
fn field<T>(
    form: &Fields,
    name: &str,
    read: impl FnOnce(&str) -> Option<T>,
    wrong: impl FnOnce(&str) -> String,
) -> Result<Option<T>, String> {
    match form.value(name).trim() {
        "" => Ok(None),
        text => read(text).map(Some).ok_or_else(|| wrong(text)),
    }
}

fn instant(form: &Fields, name: &str, what: &str) -> Result<Option<SystemTime>, String> {
    field(form, name, text::read_instant, |_| format!("The {what} is none: 2026-12-24T18:00, in UTC."))
}

fn seconds(form: &Fields, name: &str) -> Result<Option<Duration>, String> {
    let read = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    field(form, name, read, |text| format!("No number of seconds: {text}."))
}

fn priority(form: &Fields) -> Result<i8, String> {
    let wrong = |_: &str| "A priority lies between -9 and 9.".to_owned();
    field(form, "priority", |text| text.parse().ok(), wrong).map(Option::unwrap_or_default)
}

fn attempts(form: &Fields) -> Result<Option<u32>, String> {
    let number = |text: &str| text.parse().ok().filter(|&number| number > 0);
    field(form, "attempts", number, |text| format!("No number of attempts: {text}."))
}

/// Why a form changed nothing.
enum Wrong {
    /// The user can set it right.
    Form(String),
    Store(Error),
}

impl From<String> for Wrong {
    fn from(wrong: String) -> Self {
        Self::Form(wrong)
    }
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(_) | Error::UnknownHandler { .. } | Error::NotSerializable { .. } => {
                Self::Form(error.to_string())
            }
            error => Self::Store(error),
        }
    }
}

/// The answer to a form for a job: the job, or the form again with what is wrong in it.
async fn changed(
    page: &Inner,
    nonce: &str,
    job: Option<&JobInfo>,
    form: &Fields,
    changed: Result<(JobId, Said), Wrong>,
) -> Result<Answer, Error> {
    match changed {
        Ok((id, said)) => said_at_job(page, id, said).await,
        Err(Wrong::Form(wrong)) => view::again(page, nonce, job, form, wrong).await,
        Err(Wrong::Store(error)) => Err(error),
    }
}

/// With a value, if there is one.
pub(crate) fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

async fn put(page: &Inner, form: &Fields) -> Result<(JobId, Said), Wrong> {
    let put = page.scheduler.put_to(form.value("handler"), &payload(form)?).priority(priority(form)?);
    let put = with(put, instant(form, "due", DUE)?, Put::due);
    let put = with(put, instant(form, "expires", LAST)?, Put::expires);
    let put = with(put, attempts(form)?, Put::attempts);
    let put = with(put, seconds(form, "limit")?, Put::limit);
    let put = with(put, seconds(form, "unique-for")?, Put::unique_for);
    let put = with(put, seconds(form, "kept-for")?, Put::kept_for);
    let put = if form.value("at-most-once").is_empty() { put } else { put.at_most_once() };
    let put = with(put, form.text("key"), |put, key| put.key(&key));
    let put = with(put, form.text("group"), |put, group| put.group(&group));
    match put.send().await? {
        Placed::Added(id) => Ok((id, Said::Put)),
        _ => Err(Wrong::Form("Another job has this key.".to_owned())),
    }
}

async fn save(page: &Inner, job: &JobInfo, form: &Fields) -> Result<(JobId, Said), Wrong> {
    // What stays as it was shown is left alone: a due time is shown in seconds.
    let shown = view::fields_of(job);
    // A browser sends lines as those of a mail.
    let is_other = |name: &str| form.value(name).replace("\r\n", "\n") != shown.value(name);
    let (payload, priority) = (payload(form)?, priority(form)?);
    let edit = page.scheduler.job(job.id).edit();
    let edit = with(edit, is_other("payload").then_some(&payload), EditJob::payload);
    let edit = with(edit, Some(priority).filter(|&priority| priority != job.priority), EditJob::priority);
    let edit = with(edit, instant(form, "due", DUE)?.filter(|_| is_other("due")), EditJob::due);
    let edit = match instant(form, "expires", LAST)? {
        _ if !is_other("expires") => edit,
        Some(last) => edit.expires(last),
        None => edit.expires_after(None),
    };
    let after = seconds(form, "expires-after")?;
    let edit = with(edit, is_other("expires-after").then_some(after), EditJob::expires_after);
    let edit = with(edit, is_other("attempts").then_some(attempts(form)?), EditJob::attempts);
    let edit = with(edit, is_other("limit").then_some(seconds(form, "limit")?), EditJob::limit);
    let edit = with(edit, is_other("unique-for").then_some(seconds(form, "unique-for")?), EditJob::unique_for);
    let edit = with(edit, is_other("kept-for").then_some(seconds(form, "kept-for")?), EditJob::kept_for);
    let at_most_once = !form.value("at-most-once").is_empty();
    let edit = with(edit, is_other("at-most-once").then_some(at_most_once), EditJob::at_most_once);
    Ok((job.id, said_of(edit.send().await?, Said::Edited)))
}
