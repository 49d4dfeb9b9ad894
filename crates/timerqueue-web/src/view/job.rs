//! One job.

use maud::{Markup, Render, html};
use timerqueue_scheduler::{Catchup, Error, FinishedJob, JobId, JobInfo, LastRun, Overlap, Recurrence, State};

use super::form::takes_edits;
use super::{Frame, Place, actions, end, schedules, state};
use crate::act::find;
use crate::route::{Action, Tab};
use crate::text;

/// The longest text of a payload with its lines: indentation may be most of it.
const LONGEST: usize = 1024 * 1024;
/// The next occurrences of a schedule.
const OCCURRENCES: usize = 5;

pub(super) async fn show(frame: &Frame<'_>, id: JobId) -> Result<Option<Markup>, Error> {
    let Some(job) = find(frame.page, id).await? else {
        let kept = frame.page.scheduler.get_finished(id).await?;
        return Ok(kept.map(|job| done(frame, &job)));
    };
    let place = match job.state {
        State::Waiting if job.is_failing() => Place::Jobs(Tab::Failing),
        State::Waiting => Place::Jobs(Tab::Waiting),
        State::Running => Place::Jobs(Tab::Running),
        State::Dead => Place::Jobs(Tab::Dead),
        State::Recurring => Place::Schedules,
        _ => Place::Elsewhere,
    };
    let main = html! {
        h1 { bdi { (text::visible(&job.key)) } }
        div.actions-bar #actions data-live { (changes(frame, &job)) }
        div.two {
            div.card #facts data-live { (facts(frame, &job)) }
            (payload(&job.payload))
        }
        div #progress data-live { @if let Some(progress) = &job.progress { (json("Progress", progress)) } }
        section #runs data-live { (runs(frame, &job)) }
    };
    Ok(Some(frame.document(place, &job.key, &main)))
}

/// A done job that its store keeps.
fn done(frame: &Frame<'_>, job: &FinishedJob) -> Markup {
    let handler = frame.link(&format!("/jobs?state=all&{}", text::pair("handler", &job.name)));
    let main = html! {
        h1 { bdi { (text::visible(&job.key)) } }
        div.actions-bar #actions data-live {}
        div.two {
            div.card #facts data-live {
                dl {
                    dt { "State" }
                    dd { span.state.is-done { "done" } }
                    dt { "Handler" }
                    dd { a href=(handler) { bdi { (text::visible(&job.name)) } } }
                    dt { "Ended" }
                    dd { (frame.both(job.ended)) }
                    (fact("Node", job.node.as_deref().map(name)))
                    dt { "Number" }
                    dd { (job.id.0) }
                }
            }
            (payload(&job.payload))
        }
        @if let Some(result) = &job.result { (json("Result", result)) }
        section #runs data-live {
            div.head { h2 { "Attempts" } span.dim { "the last one" } }
            div.card {
                @match &job.last {
                    Some(run) => ol.runs { li { (attempt(frame, run)) } },
                    None => span.dim { "It is not kept." },
                }
            }
        }
    };
    frame.document(Place::Done, &job.key, &main)
}

fn payload(text: &str) -> Markup {
    json("Payload", text)
}

fn json(title: &str, json: &str) -> Markup {
    html! {
        div.card {
            h2 { (title) }
            pre tabindex="0" aria-label=(title) { bdi { (text::visible_lines(&pretty(json))) } }
        }
    }
}

fn changes(frame: &Frame<'_>, job: &JobInfo) -> Markup {
    if frame.page.read_only {
        return html! {};
    }
    html! {
        @for action in actions(job) {
            @if matches!(action, Action::Cancel | Action::Discard) {
                details.sure {
                    summary { (action.label()) "…" }
                    span.dim { (if action == Action::Cancel { "No attempt will start any more." } else { "The dead job is removed for good." }) }
                    (frame.action(job, action, "job"))
                }
            } @else {
                (frame.action(job, action, "job"))
            }
        }
        @if takes_edits(job) { a.button href=(frame.link(&format!("/job/{}/edit", job.id.0))) { "Edit" } }
        @if job.recurrence.is_none() { a.button href=(frame.link(&format!("/new?like={}", job.id.0))) { "Put another one" } }
        @if let (Some(JobId(parent)), true) = (job.parent, job.state != State::Dead) {
            span.dim { "A run of a schedule: " a href=(frame.link(&format!("/job/{parent}"))) { "cancel or pause the schedule" } "." }
        }
    }
}

fn fact(name: &str, value: Option<impl Render>) -> Markup {
    html! { @if let Some(value) = value { dt { (name) } dd { (value) } } }
}

fn name(text: &str) -> Markup {
    html! { bdi { (text::visible(text)) } }
}

fn facts(frame: &Frame<'_>, job: &JobInfo) -> Markup {
    let both = |at| frame.both(at);
    let once_done = |time| format!("for {} once it is done", text::duration(time));
    let handler = frame.link(&format!("/jobs?state=all&{}", text::pair("handler", &job.name)));
    let paused = frame.counts.kind(&job.name).is_some_and(|kind| kind.paused);
    html! {
        dl {
            dt { "State" }
            dd { (state(job)) (frame.unserved(job)) }
            dt { "Handler" }
            dd { a href=(handler) { bdi { (text::visible(&job.name)) } } @if paused { " " span.paused { "handler paused" } } }
            (fact(if job.state == State::Recurring { "Next run" } else { "Due" }, job.due.map(both)))
            (fact("Put", job.added.map(both)))
            (fact("Runs since", job.begun.map(both)))
            (fact("Node", job.node.map(|_| frame.node(job))))
            (fact("Occurrence of", job.nominal.filter(|&nominal| Some(nominal) != job.due).map(both)))
            (fact("Priority", Some(job.priority).filter(|&priority| priority != 0)))
            (fact("Expires", job.expires.map(both)))
            (fact("Expires", job.expires_after.map(|after| format!("{} after each due time", text::duration(after)))))
            (fact("Begun", job.terms.at_most_once.then_some("at most once")))
            (fact("Attempts at most", job.terms.attempts))
            (fact("Limit", job.terms.limit.map(text::duration)))
            (fact("Key taken", job.terms.unique_for.map(once_done)))
            (fact("Kept", job.terms.kept_for.map(once_done)))
            @if job.state != State::Recurring {
                dt { "Attempts begun" }
                dd { (job.attempt) @if job.crashes > 0 { ", of which the end of their process has cut off " (job.crashes) } }
            }
            (fact("Waits until", job.until.map(|until| until.to_string())))
            @if !job.predecessors.is_empty() {
                dt { "After" }
                dd { ul {
                    @for one in &job.predecessors {
                        li {
                            a href=(frame.link(&format!("/job/{}", one.id.0))) { bdi { (text::visible(&one.key)) } }
                            ", " @match one.end { Some(end) => (end), None => "has not ended" }
                        }
                    }
                } }
            }
            (fact("Group", job.group.as_deref().map(name)))
            @if let Some(JobId(parent)) = job.parent {
                dt { "Schedule" }
                dd { a href=(frame.link(&format!("/job/{parent}"))) { "job " (parent) } }
            }
            @if let Some(rules) = &job.recurrence { (recurrence(frame, job, rules)) }
            dt { "Number" }
            dd { (job.id.0) }
        }
    }
}

fn recurrence(frame: &Frame<'_>, job: &JobInfo, rules: &Recurrence) -> Markup {
    let catchup = match rules.catchup {
        Catchup::RunLast => "the last one runs".to_owned(),
        Catchup::RunAll { at_most } => format!("the last {at_most} run"),
        Catchup::Skip => "none runs".to_owned(),
        _ => "?".to_owned(),
    };
    let overlap = match rules.overlap {
        Overlap::Skip => "skipped while a run goes on",
        Overlap::QueueOne => "one waits for the end of a run",
        Overlap::Allow => "side by side",
        _ => "?",
    };
    // A rule is code of the program's, and runs where the program runs it. The next run stands
    // above.
    let foretold = !rules.schedule.has_rule() && !frame.counts.kind(&job.name).is_some_and(|kind| kind.paused);
    let next = if foretold { job.next_runs(frame.now, 1 + OCCURRENCES) } else { Vec::new() };
    let tally = job.tally;
    let runs = frame.link(&format!("/jobs?state=all&{}", text::pair("key", &job.key)));
    html! {
        dt { "Schedule" }
        dd.mono { bdi { (text::visible(&schedules::words(&rules.schedule))) } }
        @if rules.schedule.line().is_some() { dd { bdi { (text::visible(&rules.schedule.describe())) } } }
        dt { "Missed ones" }
        dd {
            (catchup)
            @if let Some(grace) = rules.grace { ", if late by " (text::duration(grace)) " at most" }
        }
        dt { "Overlapping ones" }
        dd { (overlap) }
        dt { "So far" }
        dd {
            (text::number(tally.runs)) " runs, " (text::number(tally.skipped)) " skipped, " (text::number(tally.missed)) " missed; "
            a href=(runs) { "those that wait or run" }
        }
        @if next.len() > 1 {
            dt { "Then" }
            dd { @for &run in &next[1..] { (frame.both(run)) br; } }
        }
        @if job.is_ahead(frame.now) {
            dt { "Waits" }
            dd { "behind a clock that was ahead: " code { "timerqueue move KEY --realign" } " lets it go on from now." }
        }
    }
}

/// The last run and the failed ones, the latest first.
fn runs(frame: &Frame<'_>, job: &JobInfo) -> Markup {
    let last = job.last.as_deref();
    let is_last =
        |failure: &LastRun| last.is_some_and(|last| (last.started, last.attempt) == (failure.started, failure.attempt));
    let failures = job.failures.iter().rev().filter(|failure| !is_last(failure));
    let runs: Vec<&LastRun> = last.into_iter().chain(failures).collect();
    html! {
        div.head {
            h2 { (if job.state == State::Recurring { "Last runs" } else { "Attempts" }) }
            span.dim { "the last one, and the last failed ones" }
        }
        div.card {
            @if runs.is_empty() {
                @match (&job.error, job.state) {
                    (Some(error), _) => pre tabindex="0" aria-label="Error" { bdi { (text::visible_lines(error)) } },
                    _ => span.dim { "None has ended yet." },
                }
            } @else {
                ol.runs {
                    @for run in runs { li { (attempt(frame, run)) } }
                }
            }
        }
    }
}

fn attempt(frame: &Frame<'_>, run: &LastRun) -> Markup {
    let late = run.started.duration_since(run.due).unwrap_or_default();
    html! {
        (end(run))
        " attempt " (run.attempt)
        span.dim {
            " began " (frame.both(run.started)) ", took " (text::duration(run.duration)) ", "
            (text::duration(late)) " late"
        }
        @if let Some(error) = &run.error {
            pre tabindex="0" aria-label="Error" { bdi { (text::visible_lines(error)) } }
        }
    }
}

/// JSON with a line for each value; what is none as it is. Numbers, texts and the order of the
/// fields stay as they were written.
pub(super) fn pretty(payload: &str) -> String {
    if serde_json::from_str::<serde_json::Value>(payload).is_err() {
        return payload.to_owned();
    }
    let (mut lines, mut depth) = (String::with_capacity(payload.len() * 2), 0);
    let newline = |lines: &mut String, depth: usize| {
        lines.push('\n');
        lines.extend(std::iter::repeat_n("  ", depth));
    };
    let mut characters = text::compact(payload).peekable();
    while let Some((c, in_text)) = characters.next() {
        if lines.len() > LONGEST {
            return payload.to_owned();
        }
        match c {
            c if in_text => lines.push(c),
            '{' | '[' => {
                lines.push(c);
                match characters.next_if(|&(next, _)| next == '}' || next == ']') {
                    Some((end, _)) => lines.push(end),
                    None => {
                        depth += 1;
                        newline(&mut lines, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                newline(&mut lines, depth);
                lines.push(c);
            }
            ',' => {
                lines.push(c);
                newline(&mut lines, depth);
            }
            ':' => lines.push_str(": "),
            c => lines.push(c),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_as_it_was_written() {
        let payload = r#"{"b":12345678901234567890123456,"a":[1, {"x":"}\",:["}],"none":[ ],"o":{}}"#;
        let lines = "{\n  \"b\": 12345678901234567890123456,\n  \"a\": [\n    1,\n    {\n      \"x\": \"}\\\",:[\"\n    }\n  ],\n  \
                     \"none\": [],\n  \"o\": {}\n}";
        assert_eq!(pretty(payload), lines);
        assert_eq!(pretty("no json {"), "no json {");
        let deep = format!("{}{}1{}", "[".repeat(100), "1,".repeat(100_000), "]".repeat(100));
        assert_eq!(pretty(&deep), deep);
        assert_eq!(pretty(r#""a\"b""#), r#""a\"b""#);
    }
}
