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
use crate::view::{self, Values};

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
            let values = Values::of(form);
            let put = put(page, &values).await;
            return changed(page, nonce, None, &values, put).await;
        }
        Route::Save(id) => {
            let Some(job) = find(page, id).await? else { return Ok(said_at(page, "/jobs?", Said::Gone)) };
            if form.get("was") != Some(&version(&job)) {
                return Ok(said_at(page, &format!("/job/{}?", id.0), Said::Outdated));
            }
            let values = Values::of(form);
            let saved = save(page, &job, &values).await;
            return changed(page, nonce, Some(&job), &values, saved).await;
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
fn payload(values: &Values) -> Result<Box<RawValue>, String> {
    let text = if values.payload.trim().is_empty() { "null".to_owned() } else { text::compact(&values.payload) };
    RawValue::from_string(text).map_err(|error| format!("The payload is no JSON: {error}."))
}

/// What a field says. `None`: it is empty.
fn field<T>(
    text: &str,
    read: impl FnOnce(&str) -> Option<T>,
    wrong: impl FnOnce(&str) -> String,
) -> Result<Option<T>, String> {
    match text.trim() {
        "" => Ok(None),
        text => read(text).map(Some).ok_or_else(|| wrong(text)),
    }
}

fn instant(text: &str, what: &str) -> Result<Option<SystemTime>, String> {
    field(text, text::read_instant, |_| format!("The {what} is none: 2026-12-24T18:00, in UTC."))
}

fn seconds(text: &str) -> Result<Option<Duration>, String> {
    let read = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    field(text, read, |text| format!("No number of seconds: {text}."))
}

/// What the fields of a form say.
struct Parts {
    payload: Box<RawValue>,
    priority: i8,
    due: Option<SystemTime>,
    expires: Option<SystemTime>,
    expires_after: Option<Duration>,
    attempts: Option<u32>,
    limit: Option<Duration>,
    unique_for: Option<Duration>,
    kept_for: Option<Duration>,
}

impl Parts {
    fn of(values: &Values) -> Result<Self, String> {
        let priority =
            field(&values.priority, |text| text.parse().ok(), |_| "A priority lies between -9 and 9.".to_owned());
        let number = |text: &str| text.parse().ok().filter(|&number| number > 0);
        let attempts = field(&values.attempts, number, |text| format!("No number of attempts: {text}."));
        Ok(Self {
            payload: payload(values)?,
            priority: priority?.unwrap_or_default(),
            due: instant(&values.due, "due time")?,
            expires: instant(&values.expires, "last instant")?,
            expires_after: seconds(&values.expires_after)?,
            attempts: attempts?,
            limit: seconds(&values.limit)?,
            unique_for: seconds(&values.unique_for)?,
            kept_for: seconds(&values.kept_for)?,
        })
    }
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
    values: &Values,
    changed: Result<(JobId, Said), Wrong>,
) -> Result<Answer, Error> {
    match changed {
        Ok((id, said)) => said_at_job(page, id, said).await,
        Err(Wrong::Form(wrong)) => view::again(page, nonce, job, values, wrong).await,
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

async fn put(page: &Inner, values: &Values) -> Result<(JobId, Said), Wrong> {
    let parts = Parts::of(values)?;
    let put = page.scheduler.put_to(&values.handler, &parts.payload).priority(parts.priority);
    let put = with(put, parts.due, Put::due);
    let put = with(put, parts.expires, Put::expires);
    let put = with(put, parts.attempts, Put::attempts);
    let put = with(put, parts.limit, Put::limit);
    let put = with(put, parts.unique_for, Put::unique_for);
    let put = with(put, parts.kept_for, Put::kept_for);
    let put = if values.at_most_once { put.at_most_once() } else { put };
    let put = with(put, Some(&*values.key).filter(|key| !key.is_empty()), Put::key);
    let put = with(put, Some(&*values.group).filter(|group| !group.is_empty()), Put::group);
    match put.send().await? {
        Placed::Added(id) => Ok((id, Said::Put)),
        _ => Err(Wrong::Form("Another job has this key.".to_owned())),
    }
}

async fn save(page: &Inner, job: &JobInfo, values: &Values) -> Result<(JobId, Said), Wrong> {
    let (shown, parts) = (Values::of_job(job), Parts::of(values)?);
    // What stays as it was shown is left alone: a due time is shown in seconds.
    let edit = page.scheduler.job(job.id).edit();
    let edit = with(edit, (values.payload != shown.payload).then_some(&parts.payload), EditJob::payload);
    let edit = with(edit, Some(parts.priority).filter(|&priority| priority != job.priority), EditJob::priority);
    let edit = with(edit, parts.due.filter(|_| values.due != shown.due), EditJob::due);
    let edit = match parts.expires {
        _ if values.expires == shown.expires => edit,
        Some(last) => edit.expires(last),
        None => edit.expires_after(None),
    };
    let changed = values.expires_after != shown.expires_after;
    let edit = with(edit, changed.then_some(parts.expires_after), EditJob::expires_after);
    let edit = with(edit, (values.attempts != shown.attempts).then_some(parts.attempts), EditJob::attempts);
    let edit = with(edit, (values.limit != shown.limit).then_some(parts.limit), EditJob::limit);
    let edit = with(edit, (values.unique_for != shown.unique_for).then_some(parts.unique_for), EditJob::unique_for);
    let edit = with(edit, (values.kept_for != shown.kept_for).then_some(parts.kept_for), EditJob::kept_for);
    let changed = values.at_most_once != shown.at_most_once;
    let edit = with(edit, changed.then_some(values.at_most_once), EditJob::at_most_once);
    Ok((job.id, said_of(edit.send().await?, Said::Edited)))
}
