//! The forms for a new job, and for other parts of a job.

use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};
use timerqueue_scheduler::{Error, JobId, JobInfo, State};

use super::{Frame, HANDLERS, Place, job};
use crate::act::{find, version};
use crate::page::{Answer, Inner};
use crate::route::Fields;
use crate::text;

/// What the form of a job shows, by the names of its fields.
pub(crate) fn fields_of(job: &JobInfo) -> Fields {
    let is_recurring = job.state == State::Recurring;
    Fields::new([
        ("handler", job.name.to_string()),
        ("key", job.key.to_string()),
        ("payload", job::pretty(&job.payload)),
        ("due", job.due.filter(|_| !is_recurring).map(text::input).unwrap_or_default()),
        ("priority", job.priority.to_string()),
        ("group", job.group.as_deref().unwrap_or_default().to_owned()),
        ("expires-after", seconds(job.expires_after)),
        ("expires", job.expires.map(text::input).unwrap_or_default()),
        ("attempts", job.terms.attempts.map(|attempts| attempts.to_string()).unwrap_or_default()),
        ("limit", seconds(job.terms.limit)),
        ("unique-for", seconds(job.terms.unique_for)),
        ("kept-for", seconds(job.terms.kept_for)),
        ("at-most-once", if job.terms.at_most_once { "on".to_owned() } else { String::new() }),
    ])
}

fn seconds(time: Option<Duration>) -> String {
    time.map(|time| time.as_secs_f64().to_string()).unwrap_or_default()
}

/// Whether parts of a job can be changed.
pub(super) fn takes_edits(job: &JobInfo) -> bool {
    matches!(job.state, State::Waiting | State::Recurring) && job.parent.is_none()
}

/// For a job like another one, which may be dead, and has its key.
pub(super) async fn new(frame: &Frame<'_>, like: Option<JobId>) -> Result<Markup, Error> {
    let other = match like {
        Some(id) => find(frame.page, id).await?,
        None => None,
    };
    let fields = other.map_or_else(Fields::default, |job| {
        let has_key = job.state == State::Dead && job.parent.is_none();
        fields_of(&job).without(if has_key { &["due", "expires"] } else { &["key", "due", "expires"] })
    });
    Ok(show(frame, None, &fields, None))
}

/// `None`: there is no such job, or it runs or is dead.
pub(super) async fn edit(frame: &Frame<'_>, id: JobId) -> Result<Option<Markup>, Error> {
    let job = find(frame.page, id).await?.filter(takes_edits);
    Ok(job.map(|job| show(frame, Some(&job), &fields_of(&job), None)))
}

/// The form again, with what is wrong in it.
pub(crate) async fn again(
    page: &Inner,
    nonce: &str,
    job: Option<&JobInfo>,
    fields: &Fields,
    wrong: String,
) -> Result<Answer, Error> {
    let (counts, now) = page.counts().await?;
    let frame = Frame { page, nonce, counts: &counts, now, said: None, nodes: Vec::new() };
    Ok(Answer::Html(StatusCode::UNPROCESSABLE_ENTITY, show(&frame, job, fields, Some(&wrong))))
}

fn show(frame: &Frame<'_>, job: Option<&JobInfo>, fields: &Fields, wrong: Option<&str>) -> Markup {
    let (title, path) = match job {
        Some(job) => ("Edit a job", format!("/job/{}/save", job.id.0)),
        None => ("New job", "/put".to_owned()),
    };
    let is_due = job.is_none_or(|job| job.state != State::Recurring);
    let all = [
        ("attempts", "Attempts at most; as the handler says if left out"),
        ("limit", "Limit of each run, in seconds"),
        ("unique-for", "Key stays taken once it is done, in seconds"),
        ("kept-for", "Kept once it is done, in seconds"),
        ("expires-after", "Each run begins no later after it is due than, in seconds"),
    ];
    let terms = &all[..if is_due { 4 } else { 5 }];
    let (value, at_most_once) = (|name: &str| fields.value(name), !fields.value("at-most-once").is_empty());
    let main = html! {
        h1 { (title) @if let Some(job) = job { ": " bdi { (text::visible(&job.key)) } } }
        @if let Some(wrong) = wrong { p.said.bad role="alert" { "Nothing was changed. " (text::visible(wrong)) } }
        form.parts.card method="post" action=(frame.link(&path)) data-still {
            input type="hidden" name="form" value=(frame.page.guard.form);
            @if let Some(job) = job {
                input type="hidden" name="was" value=(version(job));
            } @else {
                label {
                    "Handler"
                    input type="text" name="handler" value=(value("handler")) required list="handlers" autocomplete="off" spellcheck="false";
                }
                datalist #handlers { @for kind in frame.counts.kinds.iter().take(HANDLERS) { option value=(kind.name) {} } }
                label {
                    "Key, or none for one that is made up"
                    input type="text" name="key" value=(value("key")) autocomplete="off" spellcheck="false";
                }
            }
            label {
                "Payload, as JSON"
                textarea name="payload" rows="10" spellcheck="false" { (value("payload")) }
            }
            @if is_due {
                label {
                    @if job.is_none() { "Due, in UTC; at once if left out" } @else { "Due, in UTC" }
                    input type="datetime-local" name="due" step="1" value=(value("due"));
                }
            }
            label {
                "Priority, from -9 to 9"
                input type="number" name="priority" min="-9" max="9" value=(if value("priority").is_empty() { "0" } else { value("priority") });
            }
            @if job.is_none() {
                label {
                    "Group, or none"
                    input type="text" name="group" value=(value("group")) autocomplete="off" spellcheck="false";
                }
            }
            details open[terms.iter().any(|(name, _)| !value(name).is_empty()) || at_most_once] {
                summary { "Terms: attempts, times" }
                @for &(name, label) in terms {
                    label {
                        (label)
                        input type="number" name=(name) min=(if name == "attempts" { "1" } else { "0" }) step=(if name == "attempts" { "1" } else { "any" }) value=(value(name));
                    }
                }
                @if is_due {
                    label {
                        "Begins no later than, in UTC"
                        input type="datetime-local" name="expires" step="1" value=(value("expires"));
                    }
                }
                label.check {
                    input type="checkbox" name="at-most-once" checked[at_most_once];
                    " Is begun at most once"
                }
            }
            div.actions-bar {
                button type="submit" { (if job.is_some() { "Save" } else { "Put" }) }
                a href=(frame.link(&job.map_or_else(|| "/jobs".to_owned(), |job| format!("/job/{}", job.id.0)))) { "Back" }
            }
        }
    };
    frame.document(Place::Elsewhere, title, &main)
}
