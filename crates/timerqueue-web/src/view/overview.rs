//! The overview: figures, plots, handlers, what fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use maud::{Markup, html};
use timerqueue_scheduler::{Activity, Error, Histogram, KindCounts, Query, State};

use super::{Frame, HANDLERS, Place, count, jobs};
use crate::page::Inner;
use crate::plot::{self, all, wrong};
use crate::route::{Span, Tab};
use crate::text::{self, Count};

/// Jobs of the short lists.
const FEW: usize = 5;

/// The ends of runs in a span, and the begin of its first window.
pub(crate) async fn activity(page: &Inner, now: SystemTime, span: Span) -> Result<(SystemTime, Vec<Activity>), Error> {
    let (minutes, number) = span.windows();
    let first = first_window(now, minutes, number);
    Ok((first, page.scheduler.activity(first, Duration::from_secs(60 * minutes)).await?))
}

pub(super) async fn show(frame: &Frame<'_>, span: Span) -> Result<Markup, Error> {
    let (minutes, number) = span.windows();
    let scheduler = &frame.page.scheduler;
    let (first, activity) = activity(frame.page, frame.now, span).await?;
    let windows = windows(&activity, first, minutes, number);
    let sums = sums(&activity);
    let running = scheduler.list(Query::new().state(State::Running).limit(FEW)).await?;
    let failing = scheduler.list(Query::new().failing().newest_first().limit(FEW)).await?;
    let dead = scheduler.list(Query::new().state(State::Dead).newest_first().limit(FEW)).await?;
    let lists = [(Tab::Running, running), (Tab::Failing, failing), (Tab::Dead, dead)];
    let main = html! {
        h1.away { "Overview" }
        div.tiles #tiles data-live { (tiles(frame, &windows, span)) }
        section #plots data-live { (plots(frame, &windows, span)) }
        section { (handlers(frame, &sums, span)) }
        @for (tab, list) in lists.iter().filter(|(_, list)| !list.is_empty()) {
            section {
                div.head {
                    h2 { (tab.title()) }
                    a.more href=(frame.link(&format!("/jobs?state={}", tab.word()))) { "All" }
                }
                (jobs::table(frame, list, *tab, None))
            }
        }
    };
    Ok(frame.document(Place::Overview, "Overview", &main))
}

/// The begin of the first of some windows, of which the last one has this instant.
fn first_window(now: SystemTime, minutes: u64, number: usize) -> SystemTime {
    let window = 60 * minutes;
    let last = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / window;
    UNIX_EPOCH + Duration::from_secs(last.saturating_sub(number as u64 - 1) * window)
}

fn windows(activity: &[Activity], first: SystemTime, minutes: u64, number: usize) -> Vec<Activity> {
    let (window, nobody) = (Duration::from_secs(60 * minutes), Arc::from(""));
    let mut windows: Vec<Activity> =
        (0..number as u32).map(|at| Activity::new(Arc::clone(&nobody), first + window * at)).collect();
    for part in activity {
        let at = part.begin.duration_since(first).map(|after| (after.as_secs() / window.as_secs()) as usize);
        // Behind the last one: the clock was set back.
        let Some(window) = at.ok().and_then(|at| windows.get_mut(at)) else { continue };
        window.merge(part);
    }
    windows
}

/// What the runs of each handler came to, in the span.
fn sums(activity: &[Activity]) -> HashMap<Arc<str>, Activity> {
    let mut sums: HashMap<Arc<str>, Activity> = HashMap::new();
    for part in activity {
        sums.entry(Arc::clone(&part.name))
            .or_insert_with(|| Activity::new(Arc::clone(&part.name), part.begin))
            .merge(part);
    }
    sums
}

fn tiles(frame: &Frame<'_>, windows: &[Activity], span: Span) -> Markup {
    let of = |state| Count::of(frame.counts, state);
    let tile = |tab: Tab, count: Count, below: Markup| {
        let class = format!("tile {}{}", tab.word(), if count.number == 0 { " none" } else { "" });
        html! {
            a class=(class) href=(frame.link(&format!("/jobs?state={}", tab.word()))) {
                span.name { (tab.title()) }
                b { (count) }
                span { (below) }
            }
        }
    };
    let overdue = html! {
        @if let Some(due) = frame.counts.oldest_overdue { "overdue since " (text::relative(due, frame.now).trim_end_matches(" ago")) }
        @else { "none overdue" }
    };
    let ended: u64 = windows.iter().map(all).sum();
    let wrong: u64 = windows.iter().map(wrong).sum();
    let paused = frame.counts.kinds.iter().filter(|kind| kind.paused).count();
    html! {
        (tile(Tab::Waiting, of(State::Waiting), overdue))
        (tile(Tab::Running, of(State::Running), html! { (of(State::Queued)) " queued" }))
        (tile(Tab::Failing, Count::at_least(frame.counts.failing(), frame.counts.is_failing_bounded()), html! { "to be repeated" }))
        (tile(Tab::Dead, of(State::Dead), html! { "kept until retried" }))
        a.tile href=(frame.link("/schedules")) {
            span.name { "Schedules" }
            b { (of(State::Recurring)) }
            span { (frame.counts.kinds.len()) " handlers, " (paused) " paused" }
        }
        div.tile {
            span.name { "Runs, last " (span.word()) }
            b { (text::number(ended)) }
            span { (text::number(wrong)) " failed" }
        }
    }
}

fn key(class: &str, line: bool, word: &str) -> Markup {
    html! { span.key.line[line] { i class=(class) {} (word) } }
}

fn plots(frame: &Frame<'_>, windows: &[Activity], span: Span) -> Markup {
    let days = span == Span::Week;
    html! {
        div.head {
            h2 { "Over time" }
            div.tabs {
                @for &other in Span::ALL {
                    a href=(frame.link(&format!("/?span={}", other.word()))) aria-current=[(other == span).then_some("true")] {
                        (other.word())
                    }
                }
            }
        }
        div.plots {
            figure {
                figcaption {
                    b { "Runs ended, " (span.each()) }
                    (key("done", false, "done")) (key("again", false, "again")) (key("failed", false, "failed")) (key("died", false, "dead")) (key("expired", false, "expired"))
                }
                (plot::throughput(windows, days))
            }
            figure {
                figcaption {
                    b { "Begun late by" }
                    (key("p50", true, "half below")) (key("p99", true, "99 % below")) (key("longest", false, "longest"))
                }
                (plot::lateness(windows, days))
            }
        }
        (figures(windows, days))
    }
}

/// The figures of the plots, as a table that unfolds.
fn figures(windows: &[Activity], days: bool) -> Markup {
    html! {
        details.data {
            summary { "Figures" }
            div.scroll {
                table {
                    thead {
                        tr {
                            th { "From, UTC" }
                            @for name in ["Done", "Again", "Failed", "Dead", "Expired", "Half below", "99 % below", "Longest"] { th.num { (name) } }
                        }
                    }
                    tbody {
                        @for window in windows.iter().rev().filter(|window| all(window) > 0) {
                            tr {
                                td.nowrap {
                                    @if days { (text::clock(window.begin, true)) " " }
                                    (text::clock(window.begin, false))
                                }
                                @for runs in window.ends() { td.num { (count(runs)) } }
                                (late(&window.lateness, false))
                            }
                        }
                        @if windows.iter().all(|window| all(window) == 0) {
                            tr { td.empty colspan="9" { "No run has ended in this time." } }
                        }
                    }
                }
            }
        }
    }
}

fn late(lateness: &Histogram, wide: bool) -> Markup {
    html! {
        @for late in [lateness.at_most(0.5), lateness.at_most(0.99), lateness.longest()] {
            td.num.wide[wide] { @if lateness.count() > 0 { (text::duration(late)) } @else { span.dim { "–" } } }
        }
    }
}

fn handlers(frame: &Frame<'_>, sums: &HashMap<Arc<str>, Activity>, span: Span) -> Markup {
    let kinds = &frame.counts.kinds;
    html! {
        div.head {
            h2 { "Handlers" }
            span.dim { "runs and lateness of the last " (span.word()) }
            @if kinds.len() > HANDLERS { span.dim { "the first " (HANDLERS) " of " (kinds.len()) } }
        }
        div.scroll #handlers data-live {
            table {
                thead {
                    tr {
                        th { "Handler" }
                        @for name in ["Waiting", "Running", "Failing", "Dead"] { th.num { (name) } }
                        @for name in ["Schedules", "Done", "Failed", "Half below", "99 % below", "Longest"] { th.num.wide { (name) } }
                        th { span.away { "Actions" } }
                    }
                }
                tbody {
                    @for kind in kinds.iter().take(HANDLERS) { (handler(frame, kind, sums.get(&kind.name))) }
                    @if kinds.is_empty() { tr { td.empty colspan="12" { "No handler has had a job yet." } } }
                }
            }
        }
    }
}

fn handler(frame: &Frame<'_>, kind: &KindCounts, sum: Option<&Activity>) -> Markup {
    let none = Activity::new(Arc::clone(&kind.name), frame.now);
    let sum = sum.unwrap_or(&none);
    let name = text::pair("handler", &kind.name);
    let cell = |tab: Tab, jobs: Count| {
        html! {
            td.num {
                @if jobs.is_none() { (count(0)) }
                @else { a href=(frame.link(&format!("/jobs?state={}&{name}", tab.word()))) { (jobs) } }
            }
        }
    };
    let (action, label) = if kind.paused { ("resume", "Resume") } else { ("pause", "Pause") };
    let path = format!("/handler/{action}?{}", text::pair("name", &kind.name));
    html! {
        tr {
            td.key-of {
                a href=(frame.link(&format!("/jobs?state=all&{name}"))) { bdi { (text::short(&kind.name, 80)) } }
                @if kind.paused { " " span.paused { "paused" } }
                @if !frame.is_served(&kind.name) { " " span.paused { "no node" } }
            }
            (cell(Tab::Waiting, Count::of_kind(kind, State::Waiting)))
            (cell(Tab::Running, Count::of_kind(kind, State::Running)))
            (cell(Tab::Failing, Count::at_least(kind.failing, kind.is_failing_bounded())))
            (cell(Tab::Dead, Count::of_kind(kind, State::Dead)))
            td.num.wide { (count(kind.of(State::Recurring))) }
            td.num.wide { (count(sum.done + sum.again)) }
            td.num.wide { (count(wrong(sum))) }
            (late(&sum.lateness, true))
            td.actions { @if !frame.page.read_only { (frame.button(&path, "overview", label, &kind.name, false)) } }
        }
    }
}
