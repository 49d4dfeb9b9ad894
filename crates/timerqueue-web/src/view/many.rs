//! A change of many jobs: what it would change, how far it is, and what it came to.

use maud::{Markup, html};
use timerqueue_scheduler::{Error, JobId, JobInfo, Query};

use super::jobs::{LOOKED, search};
use super::{Frame, Place};
use crate::page::Inner;
use crate::route::{Action, Filter, Many};
use crate::text;

/// The jobs that are named before a change.
const NAMED: usize = 8;

/// The jobs that a change is for, as far as they are counted.
struct Found {
    jobs: u64,
    first: Vec<JobInfo>,
    /// All jobs were looked at.
    is_whole: bool,
    last: JobId,
}

async fn found(page: &Inner, many: &Many) -> Result<Found, Error> {
    let newest = page.scheduler.list(Query::new().newest_first().limit(1)).await?;
    let last = newest.first().map_or(JobId(0), |job| job.id);
    let part = search(page, &many.filter, LOOKED).await?;
    let is_whole = part.next.is_none();
    let mut first = part.jobs;
    let jobs = first.len() as u64;
    first.truncate(NAMED);
    Ok(Found { jobs, first, is_whole, last })
}

pub(super) async fn show(frame: &Frame<'_>, many: &Many) -> Result<Markup, Error> {
    let main = match many.until {
        None => before(frame, many, &found(frame.page, many).await?),
        Some(_) => under_way(frame, many),
    };
    Ok(frame.document(Place::Jobs(many.filter.tab), many.action.label(), &main))
}

fn form(frame: &Frame<'_>, many: &Many, goes_on: bool, button: &Markup) -> Markup {
    if frame.page.read_only {
        return html! { p.dim { "This page shows, and changes nothing." } };
    }
    let danger = matches!(many.action, Action::Cancel | Action::Discard);
    html! {
        form.inline method="post" action=(frame.link("/step")) data-go-on[goes_on] {
            input type="hidden" name="form" value=(frame.page.guard.form);
            @for (name, value) in many.fields() { input type="hidden" name=(name) value=(value); }
            button.danger[danger] type="submit" { (button) }
        }
    }
}

fn before(frame: &Frame<'_>, many: &Many, found: &Found) -> Markup {
    let (title, back) = (many.action.label(), back(frame, many));
    let number = format!("{}{}", if found.is_whole { "" } else { "more than " }, text::number(found.jobs));
    let jobs = if found.jobs == 1 && found.is_whole { "job" } else { "jobs" };
    let asked = Many { until: Some(found.last), ..many.clone() };
    html! {
        h1 { (title) " many jobs" }
        div.card data-still {
            p { b { (number) " " (jobs) } " of this list:" }
            dl {
                @for (name, value) in many.filter.fields().iter().filter(|(name, _)| *name != "sort") {
                    dt { (named(name)) }
                    dd { bdi { (text::visible(value)) } }
                }
            }
            @if !found.first.is_empty() {
                p.dim { "The first ones:" }
                ul { @for job in &found.first { li { (frame.job_link(job)) } } }
            }
            @if !found.is_whole {
                p.dim { "Of the jobs of this state, the first " (text::number(LOOKED as u64)) " at most were looked at to count. The change goes on behind them." }
            }
            p.dim { "Jobs that are put from now on are not among them." }
            div.actions-bar {
                @if found.jobs > 0 || !found.is_whole { (form(frame, &asked, false, &html! { (title) " " (number) " " (jobs) })) }
                a href=(back) { "Back" }
            }
        }
    }
}

/// The list of the filter, in its usual order.
fn back(frame: &Frame<'_>, many: &Many) -> String {
    let filter = Filter { sort: many.filter.tab.sort(), ..many.filter.clone() };
    frame.link(&format!("/jobs?{}", filter.query()))
}

fn named(field: &str) -> &'static str {
    match field {
        "state" => "State",
        "handler" => "Handler",
        "key" => "Key begins with",
        "find" => "With the text",
        "since" => "Put from, UTC",
        "until" => "Put before, UTC",
        _ => "",
    }
}

fn under_way(frame: &Frame<'_>, many: &Many) -> Markup {
    let back = back(frame, many);
    html! {
        h1 { (many.action.label()) " many jobs" }
        div.card data-still {
            p role="status" {
                b { (text::number(many.changed)) } " " (many.action.past()) "."
                @if many.kept > 0 { " " (text::number(many.kept)) " were left as they were: they take no such change by now." }
            }
            div.actions-bar {
                @if many.is_done {
                    a href=(back) { "To the list" }
                } @else {
                    (form(frame, many, true, &html! { "Go on" }))
                    a href=(back) { "Stop here" }
                }
            }
        }
    }
}
