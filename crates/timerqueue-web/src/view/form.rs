//! The forms for a new job, and for other parts of a job.

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
}

impl Values {
    pub(crate) fn of(form: &Fields) -> Self {
        let text = |name: &str| form.text(name).unwrap_or_default();
        // A browser sends lines as those of a mail.
        let payload = text("payload").replace("\r\n", "\n");
        let (handler, key, due) = (text("handler"), text("key"), text("due"));
        Self { handler, key, payload, due, priority: text("priority"), group: text("group") }
    }

    pub(crate) fn of_job(job: &JobInfo) -> Self {
        Self {
            handler: job.name.to_string(),
            key: job.key.to_string(),
            payload: job::pretty(&job.payload),
            due: job.due.filter(|_| job.state != State::Recurring).map(text::input).unwrap_or_default(),
            priority: job.priority.to_string(),
            group: job.group.as_deref().unwrap_or_default().to_owned(),
        }
    }
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
        Values { key, due: String::new(), ..Values::of_job(&job) }
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
            div.actions-bar {
                button type="submit" { (if job.is_some() { "Save" } else { "Put" }) }
                a href=(frame.link(&job.map_or_else(|| "/jobs".to_owned(), |job| format!("/job/{}", job.id.0)))) { "Back" }
            }
        }
    };
    frame.document(Place::Elsewhere, title, &main)
}
