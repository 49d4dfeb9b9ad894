//! The list of done jobs that the store keeps.

use maud::{Markup, html};
use timerqueue_scheduler::{Error, FinishedJob, HistoryQuery};

use super::{Frame, PAGE, Place};
use crate::act::with;
use crate::page::Inner;
use crate::route::Past;
use crate::text;

/// The done jobs of a part of the list, and where its next part begins.
pub(crate) async fn find(page: &Inner, past: &Past) -> Result<(Vec<FinishedJob>, Option<u64>), Error> {
    let query = with(HistoryQuery::new().limit(PAGE + 1), past.handler.as_deref(), HistoryQuery::name);
    let query = with(query, past.key.as_deref(), HistoryQuery::key_prefix);
    let query = with(query, past.after, HistoryQuery::after);
    let mut jobs = page.scheduler.history(query).await?;
    let next = (jobs.len() > PAGE).then(|| jobs[PAGE - 1].seq);
    jobs.truncate(PAGE);
    Ok((jobs, next))
}

pub(super) async fn show(frame: &Frame<'_>, past: &Past) -> Result<Markup, Error> {
    let (jobs, next) = find(frame.page, past).await?;
    let main = html! {
        h1 { "Done" }
        (form(frame, past))
        (table(frame, &jobs, past))
        (frame.pager(past.after.map(|_| base(past)), next.map(|next| format!("{}&after={next}", base(past))), None))
    };
    Ok(frame.document(Place::Done, "Done", &main))
}

/// The list without its position.
fn base(past: &Past) -> String {
    let parts = [("handler", &past.handler), ("key", &past.key)];
    let parts: Vec<String> =
        parts.iter().filter_map(|(name, value)| Some(text::pair(name, value.as_deref()?))).collect();
    format!("/done?{}", parts.join("&"))
}

fn form(frame: &Frame<'_>, past: &Past) -> Markup {
    html! {
        form.filter method="get" action=(frame.link("/done")) role="search" {
            (frame.handler_and_key(past.handler.as_deref(), past.key.as_deref()))
            button type="submit" { "Show" }
        }
    }
}

fn table(frame: &Frame<'_>, jobs: &[FinishedJob], past: &Past) -> Markup {
    let narrow = past.handler.is_some() || past.key.is_some();
    html! {
        div.scroll #list data-live {
            table {
                thead {
                    tr {
                        th { "Key" }
                        th.wide { "Handler" }
                        th { "Ended" }
                        th.num { "Took" }
                        th.num.wide { "Attempt" }
                        th.wide { "Node" }
                        th.wide { "Result" }
                    }
                }
                tbody {
                    @for job in jobs {
                        @let run = job.last.as_deref();
                        tr {
                            td.key-of {
                                a href=(frame.link(&format!("/job/{}", job.id.0))) { bdi { (text::short(&job.key, 120)) } }
                            }
                            td.key-of.wide { bdi { (text::short(&job.name, 60)) } }
                            td.nowrap { (frame.relative(job.ended)) }
                            td.num { @if let Some(run) = run { (text::duration(run.duration)) } }
                            td.num.wide { @if let Some(run) = run { (run.attempt) } }
                            td.wide { bdi { (job.node.as_deref().map(|node| text::short(node, 60)).unwrap_or_default()) } }
                            td.key-of.wide {
                                bdi { (job.result.as_deref().map(|result| text::short(result, 140)).unwrap_or_default()) }
                            }
                        }
                    }
                    @if jobs.is_empty() {
                        tr {
                            td.empty colspan="7" {
                                "No done job is kept. "
                                @if !narrow { "Handlers keep them on request: " code { "Handler::history" } "." }
                            }
                        }
                    }
                }
            }
        }
    }
}
