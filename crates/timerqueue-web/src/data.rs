//! The data of each page as JSON.
//!
//! Ground rules. Jobs, counts, nodes and activity are the serialized types of the scheduler, as the
//! command line writes them. What this module adds stands in the documentation of the crate.

use std::time::SystemTime;

use serde::Serialize;
use timerqueue_scheduler::{Activity, Counts, Error, JobInfo, Node};

use crate::act::find;
use crate::page::Inner;
use crate::route::{After, Route};
use crate::view::{activity, done, jobs, schedules};

#[derive(Serialize)]
struct Overview<'a> {
    counts: &'a Counts,
    activity: Vec<Activity>,
}

/// A part of a list.
#[derive(Serialize)]
struct Jobs<J> {
    jobs: Vec<J>,
    /// Where the next part begins, for `after` of the query.
    next: Option<String>,
}

#[derive(Serialize)]
struct Nodes {
    nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Failed<'a> {
    error: &'a str,
}

/// An error as JSON.
pub(crate) fn failed(error: &str) -> String {
    text(&Failed { error })
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

fn list(jobs: &[JobInfo], next: Option<After>, now: SystemTime) -> String {
    let jobs: Vec<_> = jobs.iter().map(|job| job.shown(now)).collect();
    text(&Jobs { jobs, next: next.map(|next| next.to_string()) })
}

/// `None`: there is no such page, or no such job.
pub(crate) async fn of(page: &Inner, route: Route) -> Result<Option<String>, Error> {
    let (counts, now) = page.counts().await?;
    Ok(Some(match route {
        Route::Overview(span) => text(&Overview { counts: &counts, activity: activity(page, now, span).await?.1 }),
        Route::Jobs(filter) => {
            let part = jobs(page, &filter).await?;
            list(&part.jobs, part.next, now)
        }
        Route::Done(past) => {
            let (jobs, next) = done(page, &past).await?;
            text(&Jobs { jobs, next: next.map(|next| next.to_string()) })
        }
        Route::Schedules { after } => {
            let (found, next) = schedules(page, after).await?;
            list(&found, next, now)
        }
        Route::Nodes => text(&Nodes { nodes: page.scheduler.nodes().await? }),
        Route::Job(id) => match find(page, id).await? {
            Some(job) => text(&job.shown(now)),
            None => return Ok(page.scheduler.get_finished(id).await?.map(|job| text(&job))),
        },
        _ => return Ok(None),
    }))
}
