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
use timerqueue_scheduler::{Cancel, Change, Error, JobId, JobInfo, Placed, Query, Revive, State};

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
        Route::Put => return put(page, form, nonce).await,
        Route::Save(id) => return save(page, id, form, nonce).await,
        _ => (Said::NotNow, None),
    };
    // Back to where the form was, unless the job has gone.
    let there = match id {
        Some(id) => find(page, id).await?.is_some(),
        None => false,
    };
    let back = match (form.get("from"), id) {
        (Some("schedules"), _) => "/schedules?".to_owned(),
        (Some("overview"), _) => "/?".to_owned(),
        (Some("job"), Some(JobId(id))) if there => format!("/job/{id}?"),
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

type Asked = Pin<Box<dyn Future<Output = Result<Said, Error>> + Send>>;

/// Asks for a change, at once. The answer is awaited.
fn ask(page: &Inner, job: &JobInfo, action: Action) -> Asked {
    let scheduler = &page.scheduler;
    let action = match (action, job.state) {
        (Action::Retry, State::Dead) => {
            let revived = scheduler.revive(job.id);
            return Box::pin(async {
                Ok(match revived.await? {
                    Revive::Revived => Said::Revived,
                    Revive::Taken => Said::Taken,
                    _ => Said::Gone,
                })
            });
        }
        (Action::Discard, State::Dead) => {
            let discarded = scheduler.discard(job.id);
            return Box::pin(async { Ok(if discarded.await? { Said::Discarded } else { Said::Gone }) });
        }
        (Action::Retry, _) if job.is_failing() => Action::RunNow,
        (Action::Retry | Action::Discard, _) | (_, State::Dead) => return Box::pin(ready(Ok(Said::NotNow))),
        // A run of a schedule has the key of the schedule.
        _ if job.parent.is_some() => return Box::pin(ready(Ok(Said::NotNow))),
        (action, _) => action,
    };
    let job = scheduler.job(job.id);
    let changed = match action {
        Action::Cancel => {
            let cancelled = job.cancel();
            return Box::pin(async {
                Ok(match cancelled.await? {
                    Cancel::Cancelled => Said::Cancelled,
                    Cancel::Running => Said::Cancelling,
                    _ => Said::Gone,
                })
            });
        }
        Action::Pause => job.pause(),
        Action::Resume => job.resume(),
        Action::RunNow | Action::Retry | Action::Discard => job.run_now(),
    };
    Box::pin(async move {
        Ok(match (changed.await?, action) {
            (Change::Changed, Action::Pause) => Said::Paused,
            (Change::Changed, Action::Resume) => Said::Resumed,
            (Change::Changed, _) => Said::WillRun,
            (Change::Running, _) => Said::Runs,
            (Change::Absent, _) => Said::Gone,
            _ => Said::NotNow,
        })
    })
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

fn priority(values: &Values) -> Result<i8, String> {
    let number = values.priority.trim();
    if number.is_empty() { Ok(0) } else { number.parse().map_err(|_| "A priority lies between -9 and 9.".to_owned()) }
}

fn instant(text: &str, what: &str) -> Result<Option<SystemTime>, String> {
    match text.trim() {
        "" => Ok(None),
        text => {
            text::read_instant(text).map(Some).ok_or_else(|| format!("The {what} is none: 2026-12-24T18:00, in UTC."))
        }
    }
}

/// A field with a number of seconds, or with nothing.
fn seconds(text: &str) -> Result<Option<Duration>, String> {
    let read = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
    match text.trim() {
        "" => Ok(None),
        text => read(text).map(Some).ok_or_else(|| format!("No number of seconds: {text}.")),
    }
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
        let attempts = match values.attempts.trim() {
            "" => None,
            text => {
                Some(text.parse().ok().filter(|&n| n > 0).ok_or_else(|| format!("No number of attempts: {text}."))?)
            }
        };
        Ok(Self {
            payload: payload(values)?,
            priority: priority(values)?,
            due: instant(&values.due, "due time")?,
            expires: instant(&values.expires, "last instant")?,
            expires_after: seconds(&values.expires_after)?,
            attempts,
            limit: seconds(&values.limit)?,
            unique_for: seconds(&values.unique_for)?,
            kept_for: seconds(&values.kept_for)?,
        })
    }
}

/// What the user can set right, as opposed to a store that fails.
fn users(error: &Error) -> bool {
    matches!(error, Error::Invalid(_) | Error::UnknownHandler { .. } | Error::NotSerializable { .. })
}

async fn put(page: &Inner, form: &Fields, nonce: &str) -> Result<Answer, Error> {
    let values = Values::of(form);
    let parts = match Parts::of(&values) {
        Ok(parts) => parts,
        Err(wrong) => return view::again(page, nonce, None, &values, wrong).await,
    };
    let mut put = page.scheduler.put_to(&values.handler, &parts.payload).priority(parts.priority);
    if let Some(due) = parts.due {
        put = put.due(due);
    }
    if let Some(last) = parts.expires {
        put = put.expires(last);
    }
    if let Some(attempts) = parts.attempts {
        put = put.attempts(attempts);
    }
    if let Some(limit) = parts.limit {
        put = put.limit(limit);
    }
    if let Some(time) = parts.unique_for {
        put = put.unique_for(time);
    }
    if let Some(time) = parts.kept_for {
        put = put.kept_for(time);
    }
    if values.at_most_once {
        put = put.at_most_once();
    }
    if !values.key.is_empty() {
        put = put.key(&values.key);
    }
    if !values.group.is_empty() {
        put = put.group(&values.group);
    }
    let wrong = match put.send().await {
        Ok(Placed::Added(id)) => {
            // It may have run already.
            let there = find(page, id).await?.is_some();
            let path = if there { format!("/job/{}?", id.0) } else { "/jobs?".to_owned() };
            return Ok(said_at(page, &path, Said::Put));
        }
        Ok(_) => "Another job has this key.".to_owned(),
        Err(error) if users(&error) => error.to_string(),
        Err(error) => return Err(error),
    };
    view::again(page, nonce, None, &values, wrong).await
}

async fn save(page: &Inner, id: JobId, form: &Fields, nonce: &str) -> Result<Answer, Error> {
    let Some(job) = find(page, id).await? else { return Ok(said_at(page, "/jobs?", Said::Gone)) };
    let path = format!("/job/{}?", id.0);
    if form.get("was") != Some(&version(&job)) {
        return Ok(said_at(page, &path, Said::Outdated));
    }
    let (shown, values) = (Values::of_job(&job), Values::of(form));
    let parts = match Parts::of(&values) {
        Ok(parts) => parts,
        Err(wrong) => return view::again(page, nonce, Some(&job), &values, wrong).await,
    };
    // What stays as it was shown is left alone: a due time is shown in seconds.
    let mut edit = page.scheduler.job(id).edit();
    if values.payload != shown.payload {
        edit = edit.payload(&parts.payload);
    }
    if parts.priority != job.priority {
        edit = edit.priority(parts.priority);
    }
    if let Some(due) = parts.due.filter(|_| values.due != shown.due) {
        edit = edit.due(due);
    }
    match parts.expires {
        _ if values.expires == shown.expires => {}
        Some(last) => edit = edit.expires(last),
        None => edit = edit.expires_after(None),
    }
    if values.expires_after != shown.expires_after {
        edit = edit.expires_after(parts.expires_after);
    }
    if values.attempts != shown.attempts {
        edit = edit.attempts(parts.attempts);
    }
    if values.limit != shown.limit {
        edit = edit.limit(parts.limit);
    }
    if values.unique_for != shown.unique_for {
        edit = edit.unique_for(parts.unique_for);
    }
    if values.kept_for != shown.kept_for {
        edit = edit.kept_for(parts.kept_for);
    }
    if values.at_most_once != shown.at_most_once {
        edit = edit.at_most_once(values.at_most_once);
    }
    let said = match edit.send().await {
        Ok(Change::Changed) => Said::Edited,
        Ok(Change::Running) => Said::Runs,
        Ok(Change::Absent) => Said::Gone,
        Ok(_) => Said::NotNow,
        Err(error) if users(&error) => {
            return view::again(page, nonce, Some(&job), &values, error.to_string()).await;
        }
        Err(error) => return Err(error),
    };
    let there = find(page, id).await?.is_some();
    Ok(said_at(page, if there { &path } else { "/jobs?" }, said))
}
