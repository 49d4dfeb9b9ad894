//! Lists of jobs.

use std::time::SystemTime;

use maud::{Markup, html};
use timerqueue_scheduler::{Error, JobInfo, Query};

use super::{Frame, PAGE, Place, state};
use crate::page::Inner;
use crate::route::{Action, After, Filter, Sort, Tab};
use crate::text;

/// The most jobs that a request looks at, to find those of a filter, and the most bytes of their
/// texts.
pub(super) const LOOKED: usize = 1_000;
const LOOKED_BYTES: usize = 16 << 20;
/// The jobs that are asked for at a time.
const SOME: usize = 500;

/// A part of a list.
pub(crate) struct Part {
    pub(crate) jobs: Vec<JobInfo>,
    /// Where the next part begins, if there may be one.
    pub(crate) next: Option<After>,
    /// How many jobs were looked at.
    pub(crate) looked: usize,
}

/// The jobs of a list, and where its next part begins.
pub(crate) async fn find(page: &Inner, filter: &Filter) -> Result<Part, Error> {
    if !filter.is_of_store() {
        return search(page, filter, PAGE).await;
    }
    let (jobs, next) = super::part(page, query(filter), filter.after, filter.sort == Sort::Due).await?;
    Ok(Part { looked: jobs.len(), jobs, next })
}

/// At most this number of jobs of a list, among a bounded number that are looked at. No store has
/// an index of texts, or of the times of puts.
pub(crate) async fn search(page: &Inner, filter: &Filter, most: usize) -> Result<Part, Error> {
    let by_due = filter.sort == Sort::Due;
    let mut part = Part { jobs: Vec::new(), next: filter.after, looked: 0 };
    let mut bytes = 0;
    loop {
        let mut some = query(filter).limit(SOME);
        if let Some(after) = part.next {
            some = after.narrow(some, by_due);
        }
        let jobs = page.scheduler.list(some).await?;
        let is_last = jobs.len() < SOME;
        for job in jobs {
            if part.jobs.len() == most {
                return Ok(part);
            }
            part.looked += 1;
            bytes += job.payload.len() + job.error.as_ref().map_or(0, |error| error.len());
            part.next = Some(After::of(&job));
            if filter.takes(&job) {
                part.jobs.push(job);
            }
        }
        if is_last {
            part.next = None;
            return Ok(part);
        }
        if part.looked >= LOOKED || bytes >= LOOKED_BYTES {
            return Ok(part);
        }
    }
}

/// What the store has of a list.
fn query(filter: &Filter) -> Query {
    let mut query = Query::new();
    if let Some(state) = filter.tab.state() {
        query = query.state(state);
    }
    if filter.tab == Tab::Failing {
        query = query.failing();
    }
    query = match filter.sort {
        Sort::Due => query.soonest_first(),
        Sort::Newest => query.newest_first(),
        Sort::Oldest => query,
    };
    if let Some(handler) = &filter.handler {
        query = query.name(handler);
    }
    if let Some(key) = &filter.key {
        query = query.key_prefix(key);
    }
    query
}

pub(super) async fn show(frame: &Frame<'_>, filter: &Filter) -> Result<Markup, Error> {
    let part = find(frame.page, filter).await?;
    let (title, next) = (filter.tab.title(), part.next.map(|next| format!("{}&after={next}", base(filter))));
    let main = html! {
        h1 { (title) }
        (form(frame, filter))
        (many(frame, filter, &part))
        (table(frame, &part.jobs, filter.tab, Some(filter)))
        (frame.pager(filter.after.map(|_| base(filter)), next, (part.jobs.len() < PAGE).then_some(part.looked)))
    };
    Ok(frame.document(Place::Jobs(filter.tab), title, &main))
}

/// The list without its position.
fn base(filter: &Filter) -> String {
    format!("/jobs?{}", filter.query())
}

/// Changes of all jobs of the list.
fn many(frame: &Frame<'_>, filter: &Filter, part: &Part) -> Markup {
    let actions = if frame.page.read_only { &[] } else { filter.tab.actions() };
    let is_empty = part.jobs.is_empty() && part.next.is_none();
    html! {
        div.actions-bar.many #many data-live {
            @if !actions.is_empty() && !is_empty {
                span.dim { "All of this list:" }
                @for action in actions {
                    a href=(frame.link(&format!("/many?{}&action={}", filter.query(), action.word()))) { (action.label()) "…" }
                }
            }
            @if !frame.page.read_only { a.more href=(frame.link("/new")) { "New job" } }
        }
    }
}

fn form(frame: &Frame<'_>, filter: &Filter) -> Markup {
    html! {
        form.filter method="get" action=(frame.link("/jobs")) role="search" {
            label {
                "State"
                select name="state" {
                    @for &tab in Tab::ALL {
                        option value=(tab.word()) selected[tab == filter.tab] { (tab.title()) }
                    }
                }
            }
            (frame.handler_and_key(filter.handler.as_deref(), filter.key.as_deref()))
            label {
                "With the text"
                input type="search" name="find" value=[filter.find.as_deref()] autocomplete="off" spellcheck="false"
                    title="In key, handler, payload and error";
            }
            button type="submit" { "Show" }
            details.further open[filter.since.or(filter.until).is_some() || filter.sort != filter.tab.sort()] {
                summary { "More" }
                div.fields {
                    label {
                        "Put from, UTC"
                        input type="datetime-local" name="since" step="1" value=[filter.since.map(text::input)];
                    }
                    label {
                        "Put before, UTC"
                        input type="datetime-local" name="until" step="1" value=[filter.until.map(text::input)];
                    }
                    label {
                        "Order"
                        select name="sort" {
                            option value="" { "as usual" }
                            @for &sort in Sort::ALL {
                                option value=(sort.word()) selected[sort == filter.sort && sort != filter.tab.sort()] { (sort.title()) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The change that a list offers for each of its jobs.
fn offered(job: &JobInfo) -> Option<Action> {
    super::actions(job).into_iter().find(|action| matches!(action, Action::Retry | Action::RunNow))
}

/// A column by which a list is in order, or can be.
fn sorted(frame: &Frame<'_>, filter: Option<&Filter>, name: &str, up: Sort, down: Option<Sort>) -> Markup {
    let Some(filter) = filter else { return html! { (name) } };
    let next = if filter.sort == up { down.unwrap_or(up) } else { up };
    let url = frame.link(&base(&Filter { sort: next, ..filter.clone() }));
    html! {
        a href=(url) { (name) }
        @if filter.sort == up { span aria-hidden="true" { " ↑" } } @else if Some(filter.sort) == down { span aria-hidden="true" { " ↓" } }
    }
}

/// In the words of ARIA.
fn order(filter: Option<&Filter>, up: Sort, down: Option<Sort>) -> Option<&'static str> {
    let sort = filter?.sort;
    if sort == up { Some("ascending") } else { (Some(sort) == down).then_some("descending") }
}

/// `filter`: of a whole list; without one, the table is a short one of the overview.
pub(super) fn table(frame: &Frame<'_>, jobs: &[JobInfo], tab: Tab, filter: Option<&Filter>) -> Markup {
    let errors = matches!(tab, Tab::Dead | Tab::Failing | Tab::All);
    let from = if filter.is_some() { tab.word() } else { "overview" };
    let id = if filter.is_some() { "list".to_owned() } else { format!("few-{}", tab.word()) };
    let (oldest, newest) = (Sort::Oldest, Some(Sort::Newest));
    html! {
        div.scroll id=(id) data-live {
            table {
                thead {
                    tr {
                        th { "Key" }
                        th.wide { "Handler" }
                        th { "State" }
                        @if tab == Tab::Dead { th { "Ran" } }
                        @else { th aria-sort=[order(filter, Sort::Due, None)] { (sorted(frame, filter, "Due", Sort::Due, None)) } }
                        th.wide aria-sort=[order(filter, oldest, newest)] { (sorted(frame, filter, "Put", oldest, newest)) }
                        @if tab == Tab::Running { th { "Began" } th.wide { "Node" } }
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
                            td.nowrap { (state(job)) (frame.unserved(job)) }
                            td.nowrap { (when(frame, job, tab)) }
                            td.nowrap.wide { (instant(frame, job.added)) }
                            @if tab == Tab::Running {
                                td.nowrap { (instant(frame, job.begun)) }
                                td.key-of.wide { (frame.node(job)) }
                            }
                            td.num.wide { (job.attempt) }
                            @if errors { td.error.wide { bdi { (error.unwrap_or_default()) } } }
                            td.actions { @if let Some(action) = offered(job) { (frame.action(job, action, from)) } }
                        }
                    }
                    @if jobs.is_empty() {
                        tr { td.empty colspan="9" { "No job." } }
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
    instant(frame, at)
}

fn instant(frame: &Frame<'_>, at: Option<SystemTime>) -> Markup {
    html! { @if let Some(at) = at { (frame.relative(at)) } @else { span.dim { "–" } } }
}
