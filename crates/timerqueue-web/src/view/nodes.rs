//! Nodes: the schedulers on the store.

use maud::{Markup, html};
use timerqueue_scheduler::{Error, Node};

use super::{Frame, Place, count};
use crate::text;

pub(super) async fn show(frame: &Frame<'_>) -> Result<Markup, Error> {
    let nodes = frame.page.scheduler.nodes().await?;
    let main = html! {
        h1 { "Nodes" }
        (table(frame, &nodes))
    };
    Ok(frame.document(Place::Nodes, "Nodes", &main))
}

fn table(frame: &Frame<'_>, nodes: &[Node]) -> Markup {
    html! {
        div.scroll #list data-live {
            table {
                thead {
                    tr {
                        th.num { "Number" }
                        th { "Name" }
                        th { "Since" }
                        th.wide { "Lease" }
                        th.num { "Runs" }
                        th { "Handlers, runs of places" }
                    }
                }
                tbody {
                    @for node in nodes {
                        tr {
                            td.num { (node.id.0) }
                            td.key-of { bdi { (text::short(&node.name, 60)) } @if node.is_this { " " span.dim { "this page" } } }
                            td.nowrap { (frame.relative(node.since)) }
                            td.nowrap.wide { @if let Some(until) = node.until { (frame.relative(until)) } @else { span.dim { "–" } } }
                            td.num { (count(node.running())) }
                            td {
                                @for (at, handler) in node.handlers.iter().enumerate() {
                                    @if at > 0 { ", " }
                                    bdi { (text::short(&handler.name, 60)) }
                                    " " span.nowrap { (handler.running) " of " (handler.parallel) }
                                }
                                @if node.handlers.is_empty() { span.dim { "none" } }
                            }
                        }
                    }
                }
            }
        }
    }
}
