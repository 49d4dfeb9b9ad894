//! What the page looks like.
//!
//! Ground rules. Templates escape; no text is put into a page without. The style and the script
//! stand in the page, under its nonce. A part with `data-live` and an `id` is replaced by the
//! script; all forms and links work without it.

mod done;
mod form;
mod job;
mod jobs;
mod many;
mod nodes;
mod overview;
mod schedules;

use std::time::SystemTime;

use http::StatusCode;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use timerqueue_scheduler::{Counts, Error, JobId, JobInfo, LastRun, Node, Query, RunEnd, State};

pub(crate) use self::done::find as done;
pub(crate) use self::form::{again, fields_of};
pub(crate) use self::jobs::{find as jobs, search};
pub(crate) use self::overview::activity;
pub(crate) use self::schedules::find as schedules;
use crate::page::{Answer, Inner};
use crate::route::{Action, After, Route, Said, Tab};
use crate::text::{self, Count};

pub(crate) const ICON: &str = include_str!("icon.svg");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("live.js");
/// Jobs of a list.
const PAGE: usize = 50;
/// Handlers of a table, and of a choice.
const HANDLERS: usize = 200;

/// What all pages show.
struct Frame<'a> {
    page: &'a Inner,
    nonce: &'a str,
    counts: &'a Counts,
    now: SystemTime,
    said: Option<Said>,
    /// Where the page names them.
    nodes: Vec<Node>,
}

/// A place in the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Overview,
    Jobs(Tab),
    Done,
    Schedules,
    Nodes,
    Elsewhere,
}

/// A part of a list: the jobs behind `after`, and where the next part begins, if there is one.
async fn part(
    page: &Inner,
    query: Query,
    after: Option<After>,
    by_due: bool,
) -> Result<(Vec<JobInfo>, Option<After>), Error> {
    let mut query = query.limit(PAGE + 1);
    if let Some(after) = after {
        query = after.narrow(query, by_due);
    }
    let mut jobs = page.scheduler.list(query).await?;
    let next = (jobs.len() > PAGE).then(|| After::of(&jobs[PAGE - 1]));
    jobs.truncate(PAGE);
    Ok((jobs, next))
}

/// Answers a route that shows something.
pub(crate) async fn show(page: &Inner, route: Route, said: Option<Said>, nonce: &str) -> Result<Answer, Error> {
    if route == Route::Icon {
        return Ok(Answer::Icon);
    }
    let (counts, now) = page.counts().await?;
    let names_nodes = matches!(route, Route::Overview(_) | Route::Jobs(_) | Route::Schedules { .. } | Route::Job(_));
    let nodes = if names_nodes { page.scheduler.nodes().await? } else { Vec::new() };
    let frame = Frame { page, nonce, counts: &counts, now, said, nodes };
    let shown = match route.clone() {
        Route::Overview(span) => overview::show(&frame, span).await?,
        Route::Jobs(filter) => jobs::show(&frame, &filter).await?,
        Route::Done(past) => done::show(&frame, &past).await?,
        Route::Schedules { after } => schedules::show(&frame, after).await?,
        Route::Nodes => nodes::show(&frame).await?,
        Route::New { like } => form::new(&frame, like).await?,
        Route::Many(many) => many::show(&frame, &many).await?,
        Route::Job(id) | Route::Edit(id) => match one(&frame, &route, id).await? {
            Some(shown) => shown,
            None => {
                let gone = bare(page, nonce, "The job is not there", "It is done, was cancelled, or never was.");
                return Ok(Answer::Html(StatusCode::NOT_FOUND, gone));
            }
        },
        _ => return Ok(Answer::Html(StatusCode::NOT_FOUND, bare(page, nonce, "Not found", "There is no such page."))),
    };
    Ok(Answer::Html(StatusCode::OK, shown))
}

async fn one(frame: &Frame<'_>, route: &Route, id: JobId) -> Result<Option<Markup>, Error> {
    if matches!(route, Route::Edit(_)) { form::edit(frame, id).await } else { job::show(frame, id).await }
}

fn head(page: &Inner, nonce: &str, title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="robots" content="noindex";
            title { (text::short(title, 80)) " · " (text::short(&page.title, 40)) }
            link rel="icon" href=(page.link("/icon.svg"));
            style nonce=(nonce) { (PreEscaped(STYLE)) }
        }
    }
}

impl Frame<'_> {
    fn link(&self, below: &str) -> String {
        self.page.link(below)
    }

    /// The fields of a form that narrow a list to a handler and to keys with a begin.
    fn handler_and_key(&self, handler: Option<&str>, key: Option<&str>) -> Markup {
        let known = || self.counts.kinds.iter().take(HANDLERS);
        html! {
            label {
                "Handler"
                select name="handler" {
                    option value="" { "all" }
                    @if let Some(name) = handler.filter(|&handler| !known().any(|kind| &*kind.name == handler)) {
                        option value=(name) selected { (text::short(name, 60)) }
                    }
                    @for kind in known() {
                        option value=(kind.name) selected[Some(&*kind.name) == handler] { (text::short(&kind.name, 60)) }
                    }
                }
            }
            label {
                "Key begins with"
                input type="text" name="key" value=[key] autocomplete="off" spellcheck="false";
            }
        }
    }

    /// The links to the first and to the next part of a list. `looked`: of a short part, how many
    /// jobs were looked at.
    fn pager(&self, first: Option<String>, next: Option<String>, looked: Option<usize>) -> Markup {
        html! {
            @if first.is_some() || next.is_some() {
                nav.pager #pager data-live aria-label="Parts of the list" {
                    @if let Some(first) = first { a href=(self.link(&first)) { "First part" } }
                    @if let Some(next) = next {
                        @if let Some(looked) = looked { span.dim { (text::number(looked as u64)) " jobs were looked at." } }
                        a rel="next" href=(self.link(&next)) { (if looked.is_some() { "Look further" } else { "Next part" }) }
                    }
                }
            }
        }
    }

    fn document(&self, place: Place, title: &str, main: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                (head(self.page, self.nonce, title))
                body {
                    a.skip href="#main" { "To the content" }
                    header {
                        div.bar {
                            a.brand href=(self.link("/")) {
                                img src=(self.link("/icon.svg")) alt="";
                                bdi { (text::short(&self.page.title, 40)) }
                            }
                            (self.navigation(place))
                            div.state-of-page {
                                label hidden { input #live type="checkbox" checked; "Live" }
                                span #clock data-live { (self.instant(self.now, |at| format!("{} UTC", text::date_time(at)))) }
                            }
                        }
                    }
                    main #main {
                        @if let Some(said) = self.said {
                            p.said.good[said.is_done()].bad[!said.is_done()] role="status" { (said.text()) }
                        }
                        (main)
                    }
                    script nonce=(self.nonce) { (PreEscaped(SCRIPT)) }
                }
            }
        }
    }

    fn navigation(&self, place: Place) -> Markup {
        let count = |count: Count, hot: Option<&'static str>| {
            let class = format!("count{}", hot.filter(|_| count.number > 0).unwrap_or_default());
            html! { span class=(class) { (count) } }
        };
        let item = |own: Place, link: String, name: &str, count: Option<Markup>| {
            html! {
                li {
                    a href=(link) aria-current=[(own == place).then_some("page")] {
                        (name)
                        @if let Some(count) = count { (count) }
                    }
                }
            }
        };
        let jobs = |tab: Tab, number: Count, hot| {
            item(
                Place::Jobs(tab),
                self.link(&format!("/jobs?state={}", tab.word())),
                tab.title(),
                Some(count(number, hot)),
            )
        };
        let of = |state| Count::of(self.counts, state);
        let failing = Count::at_least(self.counts.failing(), self.counts.is_failing_bounded());
        html! {
            nav #nav data-live aria-label="Pages" {
                ul {
                    (item(Place::Overview, self.link("/"), "Overview", None))
                    (jobs(Tab::Waiting, of(State::Waiting), None))
                    (jobs(Tab::Running, of(State::Running), None))
                    (jobs(Tab::Failing, failing, Some(" hot-failing")))
                    (jobs(Tab::Dead, of(State::Dead), Some(" hot-dead")))
                    (item(Place::Done, self.link("/done"), "Done", None))
                    (item(Place::Schedules, self.link("/schedules"), "Schedules", Some(count(of(State::Recurring), None))))
                    (item(Place::Nodes, self.link("/nodes"), "Nodes", None))
                }
            }
        }
    }

    fn instant(&self, at: SystemTime, show: impl FnOnce(SystemTime) -> String) -> Markup {
        html! { time datetime=(text::rfc3339(at)) title=(format!("{} UTC", text::date_time(at))) { (show(at)) } }
    }

    /// How far an instant is from now.
    fn relative(&self, at: SystemTime) -> Markup {
        self.instant(at, |at| text::relative(at, self.now))
    }

    /// An instant, and how far it is from now.
    fn both(&self, at: SystemTime) -> Markup {
        html! { (self.instant(at, |at| format!("{} UTC", text::date_time(at)))) span.dim { ", " (text::relative(at, self.now)) } }
    }

    /// Whether a node that is up has a handler.
    fn is_served(&self, name: &str) -> bool {
        self.nodes.iter().flat_map(|node| &node.handlers).any(|handler| &*handler.name == name)
    }

    /// A mark for a job that no node would run.
    fn unserved(&self, job: &JobInfo) -> Markup {
        let waits = matches!(job.state, State::Waiting | State::Queued | State::Recurring);
        html! {
            @if waits && !self.is_served(&job.name) {
                " " span.paused title="No node that is up has this handler." { "no node" }
            }
        }
    }

    /// The node of a run.
    fn node(&self, job: &JobInfo) -> Markup {
        let name = job.node.map(|id| (id, self.nodes.iter().find(|node| node.id == id)));
        html! {
            @match name {
                Some((_, Some(node))) => bdi { (text::short(&node.name, 60)) },
                Some((id, None)) => { "node " (id.0) },
                None => span.dim { "–" },
            }
        }
    }

    fn job_link(&self, job: &JobInfo) -> Markup {
        html! { a href=(self.link(&format!("/job/{}", job.id.0))) { bdi { (text::short(&job.key, 120)) } } }
    }

    /// A form with one button.
    fn button(&self, path: &str, from: &str, label: &str, of: &str, danger: bool) -> Markup {
        html! {
            form.inline method="post" action=(self.link(path)) {
                input type="hidden" name="form" value=(self.page.guard.form);
                input type="hidden" name="from" value=(from);
                button.danger[danger] type="submit" aria-label=(format!("{label} {}", text::short(of, 120))) { (label) }
            }
        }
    }

    fn action(&self, job: &JobInfo, action: Action, from: &str) -> Markup {
        if self.page.read_only {
            return html! {};
        }
        let path = format!("/job/{}/{}", job.id.0, action.word());
        let danger = matches!(action, Action::Cancel | Action::Discard);
        self.button(&path, from, action.label(), &job.key, danger)
    }
}

/// The changes that a job takes.
fn actions(job: &JobInfo) -> Vec<Action> {
    let pause = if job.paused { Action::Resume } else { Action::Pause };
    match job.state {
        State::Dead => vec![Action::Retry, Action::Discard],
        // Its key is that of its schedule.
        _ if job.parent.is_some() => vec![],
        State::Waiting if job.is_failing() => vec![Action::Retry, pause, Action::Cancel],
        State::Waiting | State::Recurring => vec![Action::RunNow, pause, Action::Cancel],
        State::Running => vec![Action::Cancel],
        _ => vec![],
    }
}

/// The state of a job, as a word with a colour.
fn state(job: &JobInfo) -> Markup {
    let word = if job.is_failing() { "failing".to_owned() } else { job.state.to_string() };
    html! {
        span class=(format!("state {word}")) { (word) }
        @if job.paused { " " span.paused { "paused" } }
    }
}

fn end(run: &LastRun) -> Markup {
    let class = match run.end {
        RunEnd::Done => "is-done",
        RunEnd::Again => "running",
        RunEnd::Failed => "failing",
        _ => "dead",
    };
    html! { span class=(format!("state {class}")) { (run.end) } }
}

fn count(number: u64) -> Markup {
    html! { span.zero[number == 0] { (text::number(number)) } }
}

/// A page without navigation.
fn small(page: &Inner, nonce: &str, title: &str, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(page, nonce, title))
            body { main.login { (main) } }
        }
    }
}

/// A page with a few words.
pub(crate) fn bare(page: &Inner, nonce: &str, title: &str, words: &str) -> Markup {
    let main = html! {
        h1 { (title) }
        p { (text::visible(words)) }
        p { a href=(page.link("/")) { "Overview" } }
    };
    small(page, nonce, title, &main)
}

/// The form for the token.
pub(crate) fn login(page: &Inner, nonce: &str, again: bool) -> Markup {
    let main = html! {
        h1 { (text::short(&page.title, 40)) }
        @if again { p.said.bad role="alert" { "This is not the token." } }
        form method="post" action=(page.link("/login")) {
            label {
                "Token"
                input type="password" name="token" autocomplete="current-password" required autofocus;
            }
            button type="submit" { "Open" }
        }
    };
    small(page, nonce, "Token", &main)
}

/// A page that goes on to another one.
pub(crate) fn forward(target: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "timerqueue" }
                meta http-equiv="refresh" content=(format!("0;url={target}"));
            }
            body { a href=(target) { "Go on" } }
        }
    }
}
