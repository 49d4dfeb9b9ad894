//! Lists of jobs.

use maud::{Markup, html};
use timerqueue_scheduler::{Error, JobInfo, Query};

use super::{Frame, HANDLERS, Place, state};
use crate::page::Inner;
use crate::route::{Action, After, Filter, Tab};
use crate::text;

/// Those that are about to run first, the overdue ones before all others, or else those that came
/// last.
fn is_by_due(tab: Tab) -> bool {
    !matches!(tab, Tab::Dead | Tab::All)
}

/// The jobs of a list, and where its next part begins.
pub(crate) async fn find(page: &Inner, filter: &Filter) -> Result<(Vec<JobInfo>, Option<After>), Error> {
    let mut query = Query::new();
    if let Some(state) = filter.tab.state() {
        query = query.state(state);
    }
    if filter.tab == Tab::Failing {
        query = query.failing();
    }
    let by_due = is_by_due(filter.tab);
    query = if by_due { query.soonest_first() } else { query.newest_first() };
    if let Some(handler) = &filter.handler {
        query = query.name(handler);
    }
    if let Some(key) = &filter.key {
        query = query.key_prefix(key);
    }
    super::part(page, query, filter.after, by_due).await
}

pub(super) async fn show(frame: &Frame<'_>, filter: &Filter) -> Result<Markup, Error> {
    let (jobs, next) = find(frame.page, filter).await?;
    let title = filter.tab.title();
    let main = html! {
        h1 { (title) }
        (form(frame, filter))
        (table(frame, &jobs, filter.tab, "list"))
        (pager(frame, filter, next))
    };
    Ok(frame.document(Place::Jobs(filter.tab), title, &main))
}

/// The list without its position.
fn base(filter: &Filter) -> String {
    let mut url = format!("/jobs?state={}", filter.tab.word());
    for (name, value) in [("handler", &filter.handler), ("key", &filter.key)] {
        if let Some(value) = value {
            url.push('&');
            url.push_str(&text::pair(name, value));
        }
    }
    url
}

fn pager(frame: &Frame<'_>, filter: &Filter, next: Option<After>) -> Markup {
    let first = filter.after.map(|_| frame.link(&base(filter)));
    let next = next.map(|next| frame.link(&format!("{}&after={next}", base(filter))));
    html! {
        @if first.is_some() || next.is_some() {
            nav.pager #pager data-live aria-label="Parts of the list" {
                @if let Some(first) = first { a href=(first) { "First part" } }
                @if let Some(next) = next { a rel="next" href=(next) { "Next part" } }
            }
        }
    }
}

fn form(frame: &Frame<'_>, filter: &Filter) -> Markup {
    let handler = filter.handler.as_deref();
    let known = frame.counts.kinds.iter().take(HANDLERS).any(|kind| Some(&*kind.name) == handler);
    html! {
        form.filter method="get" action=(frame.link("/jobs")) role="search" {
            label {
                "State"
                select name="state" {
                    @for tab in Tab::ALL {
                        option value=(tab.word()) selected[tab == filter.tab] { (tab.title()) }
                    }
                }
            }
            label {
                "Handler"
                select name="handler" {
                    option value="" { "all" }
                    @if let Some(name) = handler.filter(|_| !known) {
                        option value=(name) selected { (text::short(name, 60)) }
                    }
                    @for kind in frame.counts.kinds.iter().take(HANDLERS) {
                        option value=(kind.name) selected[Some(&*kind.name) == handler] { (text::short(&kind.name, 60)) }
                    }
                }
            }
            label {
                "Key begins with"
                input type="text" name="key" value=[filter.key.as_deref()] autocomplete="off" spellcheck="false";
            }
            button type="submit" { "Show" }
        }
    }
}

/// The change that a list offers for each of its jobs.
fn offered(job: &JobInfo) -> Option<Action> {
    super::actions(job).into_iter().find(|action| matches!(action, Action::Retry | Action::RunNow))
}

/// `id`: of the part of the page, for the script.
pub(super) fn table(frame: &Frame<'_>, jobs: &[JobInfo], tab: Tab, id: &str) -> Markup {
    let errors = matches!(tab, Tab::Dead | Tab::Failing | Tab::All);
    let from = if id == "list" { tab.word() } else { "overview" };
    html! {
        div.scroll id=(id) data-live {
            table {
                thead {
                    tr {
                        th { "Key" }
                        th.wide { "Handler" }
                        th { "State" }
                        th { (if tab == Tab::Dead { "Ran" } else { "Due" }) }
                        th.num.wide { "Attempt" }
                        @if errors { th.wide { "Error" } }
                        th { span.away { "Actions" } }
                    }
                }
                tbody {
                    @for job in jobs {
                        @let error = job.error.as_deref().filter(|_| errors).map(|error| text::short(error, 140));
                        tr {
                            td.key-of {
                                (frame.job_link(job))
                                @if let Some(error) = &error { div.narrow.error { bdi { (error) } } }
                            }
                            td.key-of.wide { bdi { (text::short(&job.name, 60)) } }
                            td.nowrap { (state(job)) }
                            td.nowrap { (when(frame, job, tab)) }
                            td.num.wide { (job.attempt) }
                            @if errors { td.error.wide { bdi { (error.unwrap_or_default()) } } }
                            td.actions { @if let Some(action) = offered(job) { (frame.action(job, action, from)) } }
                        }
                    }
                    @if jobs.is_empty() {
                        tr { td.empty colspan="7" { "No job." } }
                    }
                }
            }
        }
    }
}

fn when(frame: &Frame<'_>, job: &JobInfo, tab: Tab) -> Markup {
    let at = match (tab, &job.last) {
        (Tab::Dead, Some(last)) => Some(last.started),
        _ => job.due,
    };
    html! { @if let Some(at) = at { (frame.relative(at)) } @else { span.dim { "–" } } }
}
