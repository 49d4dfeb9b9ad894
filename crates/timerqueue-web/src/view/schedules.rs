//! Recurring jobs.

use maud::{Markup, html};
use timerqueue_scheduler::{Error, JobInfo, Query, Schedule, State};

use super::{Frame, Place, end};
use crate::page::Inner;
use crate::route::{Action, After};
use crate::text;

/// A part of the recurring jobs, and where the next one begins.
pub(crate) async fn find(page: &Inner, after: Option<After>) -> Result<(Vec<JobInfo>, Option<After>), Error> {
    super::part(page, Query::new().state(State::Recurring).soonest_first(), after, true).await
}

pub(super) async fn show(frame: &Frame<'_>, after: Option<After>) -> Result<Markup, Error> {
    let (jobs, next) = find(frame.page, after).await?;
    let main = html! {
        h1 { "Schedules" }
        (table(frame, &jobs))
        (frame.pager(after.map(|_| "/schedules".to_owned()), next.map(|next| format!("/schedules?after={next}")), None))
    };
    Ok(frame.document(Place::Schedules, "Schedules", &main))
}

fn table(frame: &Frame<'_>, jobs: &[JobInfo]) -> Markup {
    html! {
        div.scroll #list data-live {
            table {
                thead {
                    tr {
                        th { "Key" }
                        th.wide { "Handler" }
                        th { "Schedule" }
                        th { "Next run" }
                        th { "Last run" }
                        th.num.wide { "Runs" }
                        th.num.wide { "Skipped" }
                        th.num.wide { "Missed" }
                        th { span.away { "Actions" } }
                    }
                }
                tbody {
                    @for job in jobs {
                        tr {
                            td.key-of { (frame.job_link(job)) @if job.paused { " " span.paused { "paused" } } }
                            td.key-of.wide { bdi { (text::short(&job.name, 60)) } }
                            td { @if let Some(rules) = &job.recurrence { bdi { (text::short(&words(&rules.schedule), 80)) } } }
                            td.nowrap { @if let Some(due) = job.due { (frame.relative(due)) } @else { span.dim { "–" } } }
                            td.nowrap {
                                @if let Some(last) = &job.last { (end(last)) " " span.dim { (frame.relative(last.started)) } }
                                @else { span.dim { "–" } }
                            }
                            td.num.wide { (super::count(job.tally.runs)) }
                            td.num.wide { (super::count(job.tally.skipped)) }
                            td.num.wide { (super::count(job.tally.missed)) }
                            td.actions {
                                (frame.action(job, Action::RunNow, "schedules")) " "
                                (frame.action(job, if job.paused { Action::Resume } else { Action::Pause }, "schedules"))
                            }
                        }
                    }
                    @if jobs.is_empty() {
                        tr { td.empty colspan="9" { "No recurring job." } }
                    }
                }
            }
        }
    }
}

/// A schedule on one line: a cron line is shown as it is.
pub(super) fn words(schedule: &Schedule) -> String {
    match (schedule.line(), schedule.zone()) {
        (Some(line), Some(zone)) => format!("{line} in {zone}"),
        (Some(line), None) => line.to_owned(),
        _ => schedule.describe(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn schedules_have_words() {
        let cron = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
        assert_eq!(words(&cron), "30 2 * * * in Europe/Berlin");
        let every = Schedule::every(Duration::from_secs(90)).jitter(Duration::from_millis(1_500)).build().unwrap();
        assert_eq!(words(&every), "every 1 min 30 s, jitter 1.5s");
        let delay = Schedule::fixed_delay(Duration::from_secs(3_600)).build().unwrap();
        assert_eq!(words(&delay), "1 h after each run");
    }
}
