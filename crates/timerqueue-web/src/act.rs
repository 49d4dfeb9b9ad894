//! Changes: what the forms of the page ask of the scheduler.
//!
//! Ground rules. A form names a job by its number, which is never used again. Most changes of the
//! scheduler are by key: each of them is made only if the key is that job's. So a form that was
//! shown a while ago changes no other job.

use timerqueue_scheduler::{Cancel, Change, Error, JobId, JobInfo, Query, Revive, State};

use crate::page::{Answer, Inner};
use crate::route::{Action, Fields, Route, Said};

/// The job with a number.
pub(crate) async fn find(page: &Inner, id: JobId) -> Result<Option<JobInfo>, Error> {
    let query = match id.0.checked_sub(1) {
        Some(before) => Query::new().after(JobId(before)).limit(1),
        None => return Ok(None),
    };
    let jobs = page.scheduler.list(query).await?;
    Ok(jobs.into_iter().find(|job| job.id == id))
}

/// Does what a form asks for.
pub(crate) async fn act(page: &Inner, route: Route, form: &Fields) -> Result<Answer, Error> {
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
            Some(job) => (change(page, &job, action).await?, Some(id)),
            None => (Said::Gone, None),
        },
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
    Ok(Answer::SeeOther(page.link(&format!("{back}said={}", said.word()))))
}

async fn change(page: &Inner, job: &JobInfo, action: Action) -> Result<Said, Error> {
    let scheduler = &page.scheduler;
    let action = match (action, job.state) {
        (Action::Retry, State::Dead) => {
            return Ok(match scheduler.revive(job.id).await? {
                Revive::Revived => Said::Revived,
                Revive::Taken => Said::Taken,
                _ => Said::Gone,
            });
        }
        (Action::Discard, State::Dead) => {
            return Ok(if scheduler.discard(job.id).await? { Said::Discarded } else { Said::Gone });
        }
        (Action::Retry, _) if job.is_failing() => Action::RunNow,
        (Action::Retry | Action::Discard, _) | (_, State::Dead) => return Ok(Said::NotNow),
        (action, _) => action,
    };
    // A run of a schedule has the key of the schedule, and a job that was replaced has its key no
    // more.
    if scheduler.get(&job.key).await?.is_none_or(|holder| holder.id != job.id) {
        return Ok(Said::NotNow);
    }
    let changed = match action {
        Action::Cancel => {
            return Ok(match scheduler.cancel(&job.key).await? {
                Cancel::Cancelled => Said::Cancelled,
                Cancel::Running => Said::Cancelling,
                _ => Said::Gone,
            });
        }
        Action::Pause => scheduler.pause(&job.key).await?,
        Action::Resume => scheduler.resume(&job.key).await?,
        Action::RunNow | Action::Retry | Action::Discard => scheduler.run_now(&job.key).await?,
    };
    Ok(match (changed, action) {
        (Change::Changed, Action::Pause) => Said::Paused,
        (Change::Changed, Action::Resume) => Said::Resumed,
        (Change::Changed, _) => Said::WillRun,
        (Change::Running, _) => Said::Runs,
        (Change::Absent, _) => Said::Gone,
        _ => Said::NotNow,
    })
}
