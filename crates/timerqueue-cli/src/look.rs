//! `ls`, `show`, `dead` and `stats`: looks.

use std::sync::Arc;
use std::time::SystemTime;

use timerqueue_scheduler::{
    Catchup, Counts, FinishedJob, HistoryQuery, JobId, JobInfo, LastRun, Node, Overlap, Query, State,
};

use crate::args;
use crate::exit::{ABSENT, Fail};
use crate::out::Out;
use crate::place::Place;
use crate::put::{SHOWN, is_reboot, next_lines, with};
use crate::store::Reader;
use crate::text;

/// The rows that are read at a time.
const PAGE: usize = 512;

fn catchup(catchup: Catchup) -> String {
    match catchup {
        Catchup::RunLast => "last".to_owned(),
        Catchup::Skip => "skip".to_owned(),
        Catchup::RunAll { at_most } => format!("all={at_most}"),
        _ => "unknown".to_owned(),
    }
}

fn overlap(overlap: Overlap) -> &'static str {
    args::OVERLAPS.iter().find(|(.., own)| *own == overlap).map_or("unknown", |(word, ..)| word)
}

pub(crate) fn heading(out: &mut Out) -> Result<(), Fail> {
    if out.is_json() {
        return Ok(());
    }
    out.line(&format!(
        "{:>8}  {:<10} {:<16} {:<24} {:<30} {:>3}  ERROR",
        "NUMBER", "STATE", "HANDLER", "KEY", "DUE", "ATT"
    ))
}

pub(crate) fn row(job: &JobInfo) -> String {
    let state = if job.paused { "paused".to_owned() } else { job.state.to_string() };
    let due = job.due.filter(|_| job.state != State::Dead).map(text::at).unwrap_or_else(|| "-".to_owned());
    let error = job.error.as_deref().map(|error| text::short(error, 80)).unwrap_or_default();
    let (name, key) = (text::short(&job.name, 40), text::tame(&job.key));
    let line = format!("{:>8}  {state:<10} {name:<16} {key:<24} {due:<30} {:>3}  {error}", job.id.0, job.attempt);
    line.trim_end().to_owned()
}

/// Calls `each` for the jobs of a query, up to the limit, in pages: a long list is not held in
/// memory.
pub(crate) fn pages(
    reader: &Reader,
    query: &Query,
    mut each: impl FnMut(&JobInfo) -> Result<bool, Fail>,
) -> Result<(), Fail> {
    let mut page = query.clone().limit(PAGE);
    loop {
        let jobs = reader.list(&page)?;
        for job in &jobs {
            if !each(job)? {
                return Ok(());
            }
        }
        match jobs.last() {
            Some(last) if jobs.len() == PAGE => page = page.after_job(last),
            _ => return Ok(()),
        }
    }
}

fn done_row(job: &FinishedJob) -> String {
    let run = job.last.as_deref();
    let took = run.map_or_else(String::new, |run| format!("{:.3} s", run.duration.as_secs_f64()));
    let attempt = run.map_or_else(String::new, |run| run.attempt.to_string());
    let (name, key) = (text::short(&job.name, 40), text::tame(&job.key));
    let node = job.node.as_deref().map(|node| text::short(node, 40)).unwrap_or_default();
    let result = job.result.as_deref().map(|result| text::short(result, 80)).unwrap_or_default();
    let (id, ended) = (job.id.0, text::at(job.ended));
    let line = format!("{id:>8}  {name:<16} {key:<24} {ended:<30} {took:>12} {attempt:>3}  {node:<20} {result}");
    line.trim_end().to_owned()
}

fn ls_done(reader: &Reader, ls: &args::Ls, out: &mut Out) -> Result<(), Fail> {
    let query = with(HistoryQuery::new(), ls.handler.as_deref(), HistoryQuery::name);
    let query = with(query, ls.prefix.as_deref(), HistoryQuery::key_prefix);
    if !out.is_json() {
        let (number, handler, key, ended) = ("NUMBER", "HANDLER", "KEY", "ENDED");
        let (took, node) = ("TOOK", "NODE");
        out.line(&format!("{number:>8}  {handler:<16} {key:<24} {ended:<30} {took:>12} ATT  {node:<20} RESULT"))?;
    }
    let (mut query, mut left) = (query, ls.limit.unwrap_or(usize::MAX));
    while left > 0 {
        let page = reader.history(&query.clone().limit(left))?;
        let Some(last) = page.last() else { break };
        query = query.after(last.seq);
        left -= page.len();
        page.iter().try_for_each(|job| out.thing(job, done_row))?;
    }
    Ok(())
}

pub(crate) fn ls(place: &Place, ls: &args::Ls, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    if ls.done {
        return ls_done(&reader, ls, out);
    }
    let states = &ls.state;
    let query = if let [state] = states[..] { Query::new().state(state) } else { Query::new() };
    let query = with(query, ls.handler.as_deref(), Query::name);
    let query = with(query, ls.prefix.as_deref(), Query::key_prefix);
    let until = ls.due_within.map(|within| SystemTime::now().checked_add(within));
    let is_soon = |job: &JobInfo| match until {
        None | Some(None) => true,
        Some(Some(until)) => job.state != State::Dead && job.due.is_some_and(|due| due <= until),
    };
    let query = match ls.after {
        Some(after) => query.after(JobId(after)),
        None => query.soonest_first(),
    };
    let is_by_due = ls.after.is_none();
    listed(&reader, &query, ls.limit, out, |job| {
        if is_by_due && job.due.is_some() && !is_soon(job) {
            return None; // and so are all that follow
        }
        Some((states.is_empty() || states.contains(&job.state)) && (!ls.paused || job.paused) && is_soon(job))
    })
}

/// Shows the jobs that are taken. `None`: none follows.
fn listed(
    reader: &Reader,
    query: &Query,
    limit: Option<usize>,
    out: &mut Out,
    takes: impl Fn(&JobInfo) -> Option<bool>,
) -> Result<(), Fail> {
    heading(out)?;
    let mut left = limit.unwrap_or(usize::MAX);
    if left == 0 {
        return Ok(());
    }
    pages(reader, query, |job| {
        let Some(is_taken) = takes(job) else { return Ok(false) };
        if is_taken {
            out.thing(&job.shown(SystemTime::now()), |_| row(job))?;
            left -= 1;
        }
        Ok(left > 0)
    })
}

pub(crate) fn dead(place: &Place, dead: &args::Dead, out: &mut Out) -> Result<(), Fail> {
    let query = with(Query::new().state(State::Dead), dead.handler.as_deref(), Query::name);
    let now = SystemTime::now();
    listed(&Reader::open(place)?, &query, dead.limit, out, |job| Some(dead.age.has(job, now)))
}

fn last_line(last: &LastRun) -> String {
    let error = last.error.as_deref().map(|error| format!(": {}", text::tame(error))).unwrap_or_default();
    format!(
        "{} after {:.3} s, attempt {}, begun {}{error}",
        last.end,
        last.duration.as_secs_f64(),
        last.attempt,
        text::at(last.started)
    )
}

/// `is_served`: a node that is up has the handler.
fn described(job: &JobInfo, is_served: bool) -> String {
    let mut lines = Vec::new();
    let mut field = |name: &str, value: Option<String>| lines.extend(value.map(|value| format!("{name:<9} {value}")));
    let now = SystemTime::now();
    let from_now = |at| format!("{} ({})", text::at(at), text::relative(at, now));
    let once_done = |time| format!("for {} once it is done", text::rough(time));
    let tame = |text: &Arc<str>| text::tame(text);
    let nodes =
        if is_served || job.state == State::Dead { "" } else { " (no worker or program that is up has this handler)" };
    field("number", Some(job.id.0.to_string()));
    field("key", Some(text::tame(&job.key)));
    field("handler", Some(format!("{}{nodes}", text::tame(&job.name))));
    field("state", Some(format!("{}{}", job.state, if job.paused { ", paused" } else { "" })));
    field("due", job.due.filter(|_| job.state != State::Dead).map(from_now));
    field("put", job.added.map(text::at));
    let node = job.node.map(|node| format!(", on node {}", node.0)).unwrap_or_default();
    field("runs", job.begun.map(|begun| format!("since {}{node}", text::at(begun))));
    field("nominal", job.nominal.map(text::at));
    field("run of", job.parent.map(|parent| format!("job {}", parent.0)));
    field("waits", job.until.map(|until| format!("until {until}")));
    for before in &job.predecessors {
        let end = before.end.map_or_else(|| "has not ended".to_owned(), |end| end.to_string());
        field("after", Some(format!("{}, job {}: {end}", text::tame(&before.key), before.id.0)));
    }
    field("group", job.group.as_ref().map(tame));
    field("priority", Some(job.priority).filter(|&priority| priority != 0).map(|priority| priority.to_string()));
    field("expires", job.expires.map(from_now));
    field("expires", job.expires_after.map(|after| format!("{} after each due time", text::rough(after))));
    let most = job.terms.attempts.map(|most| format!(" of {most}")).unwrap_or_default();
    let once = if job.terms.at_most_once { ", begun at most once" } else { "" };
    field("attempts", Some(format!("{}{most}{once}", job.attempt)));
    field("limit", job.terms.limit.map(text::rough));
    field("unique", job.terms.unique_for.map(once_done));
    field("kept", job.terms.kept_for.map(once_done));
    let crashes = format!("{} (attempts that the end of their process has cut off)", job.crashes);
    field("crashes", Some(crashes).filter(|_| job.crashes > 0));
    field("error", job.error.as_ref().map(tame));
    field("payload", Some(text::tame(&job.payload)));
    field("progress", job.progress.as_ref().map(tame));
    field("last run", job.last.as_deref().map(last_line));
    for failure in job.failures.iter().rev().filter(|failure| job.last.as_deref() != Some(*failure)) {
        field("failed", Some(last_line(failure)));
    }
    if let Some(recurrence) = &job.recurrence {
        let schedule = &recurrence.schedule;
        let words = if is_reboot(schedule) { "@reboot".to_owned() } else { schedule.describe() };
        field("schedule", serde_json::to_string(schedule).ok().as_deref().map(text::tame));
        field("in words", Some(text::tame(&words)));
        let grace = recurrence.grace.map(|grace| format!(", grace {}", text::rough(grace))).unwrap_or_default();
        let (catchup, overlap) = (catchup(recurrence.catchup), overlap(recurrence.overlap));
        field("rules", Some(format!("catchup {catchup}, overlap {overlap}{grace}")));
        let tally = job.tally;
        field("so far", Some(format!("{} runs, {} skipped, {} missed", tally.runs, tally.skipped, tally.missed)));
        let behind = || format!("behind a clock that was ahead: timerqueue move {} --realign", text::tame(&job.key));
        field("waits", job.is_ahead(now).then(behind));
        lines.push("next runs".to_owned());
        lines.extend(next_lines(schedule, &job.next_runs(now, SHOWN)));
    }
    lines.join("\n")
}

fn finished_text(job: &FinishedJob) -> String {
    let last = job.last.as_deref().map(|last| format!("\nlast run  {}", last_line(last))).unwrap_or_default();
    let (key, name, payload) = (text::tame(&job.key), text::tame(&job.name), text::tame(&job.payload));
    let more = |name: &str, value: &Option<Arc<str>>| {
        value.as_deref().map(|value| format!("\n{name:<9} {}", text::tame(value))).unwrap_or_default()
    };
    let (node, result) = (more("node", &job.node), more("result", &job.result));
    format!(
        "number    {}\nkey       {key}\nhandler   {name}\nstate     done, {}\npayload   {payload}{last}{node}{result}",
        job.id.0,
        text::at(job.ended)
    )
}

pub(crate) fn show(place: &Place, show: &args::Show, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    let found = match (&show.key, show.id) {
        (Some(key), _) => reader.get(key)?,
        (None, id) => reader.get_by_id(JobId(id.unwrap_or_default()))?,
    };
    if let Some(job) = found {
        let nodes = if out.is_json() { Vec::new() } else { reader.nodes()? };
        let is_served = nodes.iter().flat_map(|node| &node.handlers).any(|handler| handler.name == job.name);
        return out.thing(&job.shown(SystemTime::now()), |_| described(&job, is_served));
    }
    let kept = match (&show.key, show.id) {
        (Some(key), _) => reader.history(&HistoryQuery::new().key(key).limit(1))?.into_iter().next(),
        (None, id) => reader.finished_by_id(JobId(id.unwrap_or_default()))?,
    };
    match kept {
        Some(job) => out.thing(&job, finished_text),
        None => Err(Fail::new(ABSENT, "no such job")),
    }
}

fn stats_text(counts: &Counts) -> String {
    let line = |name: &str, numbers: [u64; 5], paused: bool| {
        let numbers: String = numbers.iter().map(|number| format!(" {number:>9}")).collect();
        format!("{name:<24}{numbers}{}", if paused { "  paused" } else { "" })
    };
    let mut lines = vec![format!(
        "{:<24} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "HANDLER", "WAITING", "QUEUED", "RUNNING", "DEAD", "RECURRING"
    )];
    for kind in &counts.kinds {
        lines.push(line(&text::short(&kind.name, 40), State::ALL.map(|state| kind.of(state)), kind.paused));
    }
    lines.push(line("all", State::ALL.map(|state| counts.of(state)), false));
    if let (Some(at), Some(time)) = (counts.oldest_overdue, counts.overdue()) {
        lines.push(format!("the job that waits longest was due {} ago, {}", text::rough(time), text::at(at)));
    }
    lines.extend(ahead_line(counts));
    lines.join("\n")
}

/// Schedules that stand still because the clock was wrong.
pub(crate) fn ahead_line(counts: &Counts) -> Option<String> {
    let ahead = counts.ahead;
    (ahead > 0).then(|| {
        format!("{ahead} schedules wait behind a clock that was ahead: timerqueue show KEY, move KEY --realign")
    })
}

pub(crate) fn stats(place: &Place, out: &mut Out) -> Result<(), Fail> {
    let counts = Reader::open(place)?.counts()?;
    out.thing(&counts, stats_text)
}

fn node_row(node: &Node) -> String {
    let handlers: Vec<String> = (node.handlers.iter())
        .map(|handler| format!("{} {}/{}", text::short(&handler.name, 40), handler.running, handler.parallel))
        .collect();
    let handlers = if handlers.is_empty() { "none".to_owned() } else { handlers.join(", ") };
    let (since, name) = (text::at(node.since), text::short(&node.name, 60));
    format!("{:>8}  {name:<28} {since:<30} {:>7}  {handlers}", node.id.0, node.running())
}

pub(crate) fn nodes(place: &Place, out: &mut Out) -> Result<(), Fail> {
    let nodes = Reader::open(place)?.nodes()?;
    if !out.is_json() {
        out.line(&format!("{:>8}  {:<28} {:<30} {:>7}  HANDLERS, RUNS OF PLACES", "NUMBER", "NAME", "SINCE", "RUNS"))?;
    }
    nodes.iter().try_for_each(|node| out.thing(node, node_row))
}
