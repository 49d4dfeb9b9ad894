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

/// What the fields of a form have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    pub(crate) handler: String,
    pub(crate) key: String,
    pub(crate) payload: String,
    pub(crate) due: String,
    pub(crate) priority: String,
    pub(crate) group: String,
    /// A time after the due time of each run, in seconds, of a recurring job.
    pub(crate) expires_after: String,
    pub(crate) expires: String,
    pub(crate) attempts: String,
    /// In seconds, as the times that follow.
    pub(crate) limit: String,
    pub(crate) unique_for: String,
    pub(crate) kept_for: String,
    pub(crate) at_most_once: bool,
}

impl Values {
    pub(crate) fn of(form: &Fields) -> Self {
        let text = |name: &str| form.text(name).unwrap_or_default();
        // A browser sends lines as those of a mail.
        let payload = text("payload").replace("\r\n", "\n");
        let (handler, key, due) = (text("handler"), text("key"), text("due"));
        Self {
            handler,
            key,
            payload,
            due,
            priority: text("priority"),
            group: text("group"),
            expires_after: text("expires-after"),
            expires: text("expires"),
            attempts: text("attempts"),
            limit: text("limit"),
            unique_for: text("unique-for"),
            kept_for: text("kept-for"),
            at_most_once: form.get("at-most-once").is_some(),
        }
    }

    pub(crate) fn of_job(job: &JobInfo) -> Self {
        Self {
            handler: job.name.to_string(),
            key: job.key.to_string(),
            payload: job::pretty(&job.payload),
            due: job.due.filter(|_| job.state != State::Recurring).map(text::input).unwrap_or_default(),
            priority: job.priority.to_string(),
            group: job.group.as_deref().unwrap_or_default().to_owned(),
            expires_after: seconds(job.expires_after),
            expires: job.expires.map(text::input).unwrap_or_default(),
            attempts: job.terms.attempts.map(|attempts| attempts.to_string()).unwrap_or_default(),
            limit: seconds(job.terms.limit),
            unique_for: seconds(job.terms.unique_for),
            kept_for: seconds(job.terms.kept_for),
            at_most_once: job.terms.at_most_once,
        }
    }
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
    let values = other.map_or_else(Values::default, |job| {
        let key = if job.state == State::Dead && job.parent.is_none() { job.key.to_string() } else { String::new() };
        Values { key, due: String::new(), expires: String::new(), ..Values::of_job(&job) }
    });
    Ok(show(frame, None, &values, None))
}

/// `None`: there is no such job, or it runs or is dead.
pub(super) async fn edit(frame: &Frame<'_>, id: JobId) -> Result<Option<Markup>, Error> {
    let job = find(frame.page, id).await?.filter(takes_edits);
    Ok(job.map(|job| show(frame, Some(&job), &Values::of_job(&job), None)))
}

/// The form again, with what is wrong in it.
pub(crate) async fn again(
    page: &Inner,
    nonce: &str,
    job: Option<&JobInfo>,
    values: &Values,
    wrong: String,
) -> Result<Answer, Error> {
    let (counts, now) = page.counts().await?;
    let frame = Frame { page, nonce, counts: &counts, now, said: None, nodes: Vec::new() };
    Ok(Answer::Html(StatusCode::UNPROCESSABLE_ENTITY, show(&frame, job, values, Some(&wrong))))
}

fn show(frame: &Frame<'_>, job: Option<&JobInfo>, values: &Values, wrong: Option<&str>) -> Markup {
    let (title, path) = match job {
        Some(job) => ("Edit a job", format!("/job/{}/save", job.id.0)),
        None => ("New job", "/put".to_owned()),
    };
    let is_due = job.is_none_or(|job| job.state != State::Recurring);
    let all = [
        ("attempts", "Attempts at most; as the handler says if left out", &values.attempts),
        ("limit", "Limit of each run, in seconds", &values.limit),
        ("unique-for", "Key stays taken once it is done, in seconds", &values.unique_for),
        ("kept-for", "Kept once it is done, in seconds", &values.kept_for),
        ("expires-after", "Each run begins no later after it is due than, in seconds", &values.expires_after),
    ];
    let terms = &all[..if is_due { 4 } else { 5 }];
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
                    input type="text" name="handler" value=(values.handler) required list="handlers" autocomplete="off" spellcheck="false";
                }
                datalist #handlers { @for kind in frame.counts.kinds.iter().take(HANDLERS) { option value=(kind.name) {} } }
                label {
                    "Key, or none for one that is made up"
                    input type="text" name="key" value=(values.key) autocomplete="off" spellcheck="false";
                }
            }
            label {
                "Payload, as JSON"
                textarea name="payload" rows="10" spellcheck="false" { (values.payload) }
            }
            @if is_due {
                label {
                    @if job.is_none() { "Due, in UTC; at once if left out" } @else { "Due, in UTC" }
                    input type="datetime-local" name="due" step="1" value=(values.due);
                }
            }
            label {
                "Priority, from -9 to 9"
                input type="number" name="priority" min="-9" max="9" value=(if values.priority.is_empty() { "0" } else { &values.priority });
            }
            @if job.is_none() {
                label {
                    "Group, or none"
                    input type="text" name="group" value=(values.group) autocomplete="off" spellcheck="false";
                }
            }
            details open[terms.iter().any(|(_, _, value)| !value.is_empty()) || values.at_most_once] {
                summary { "Terms: attempts, times" }
                @for &(name, label, value) in terms {
                    label {
                        (label)
                        input type="number" name=(name) min=(if name == "attempts" { "1" } else { "0" }) step=(if name == "attempts" { "1" } else { "any" }) value=(value);
                    }
                }
                @if is_due {
                    label {
                        "Begins no later than, in UTC"
                        input type="datetime-local" name="expires" step="1" value=(values.expires);
                    }
                }
                label.check {
                    input type="checkbox" name="at-most-once" checked[values.at_most_once];
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
