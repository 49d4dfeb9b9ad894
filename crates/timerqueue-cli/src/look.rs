//! `ls`, `show`, `dead` and `stats`: looks.

use std::sync::Arc;
use std::time::SystemTime;

use timerqueue_scheduler::{
    Catchup, Counts, FinishedJob, HistoryQuery, JobId, JobInfo, LastRun, Node, Overlap, Query, State,
};

use crate::args;
use crate::exit::Fail;
use crate::out::Out;
use crate::place::Place;
use crate::put::{SHOWN, is_reboot, next_lines};
use crate::store::Reader;
use crate::text;

/// The rows that are read at a time.
const PAGE: usize = 512;

fn state_of(state: args::State) -> State {
    match state {
        args::State::Waiting => State::Waiting,
        args::State::Queued => State::Queued,
        args::State::Running => State::Running,
        args::State::Dead => State::Dead,
        args::State::Recurring => State::Recurring,
    }
}

fn catchup(catchup: Catchup) -> String {
    match catchup {
        Catchup::RunLast => "last".to_owned(),
        Catchup::Skip => "skip".to_owned(),
        Catchup::RunAll { at_most } => format!("all={at_most}"),
        _ => "unknown".to_owned(),
    }
}

fn overlap(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Skip => "skip",
        Overlap::QueueOne => "queue",
        Overlap::Allow => "allow",
        _ => "unknown",
    }
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

/// The parts of a history, up to a number of jobs.
fn done_pages(
    reader: &Reader,
    mut query: HistoryQuery,
    mut left: usize,
    mut each: impl FnMut(&FinishedJob) -> Result<(), Fail>,
) -> Result<(), Fail> {
    while left > 0 {
        let page = reader.history(&query.clone().limit(left))?;
        let Some(last) = page.last() else { break };
        query = query.after(last.seq);
        left -= page.len();
        page.iter().try_for_each(&mut each)?;
    }
    Ok(())
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
    let mut query = HistoryQuery::new();
    if let Some(handler) = &ls.handler {
        query = query.name(handler);
    }
    if let Some(prefix) = &ls.prefix {
        query = query.key_prefix(prefix);
    }
    if !out.is_json() {
        let (number, handler, key, ended) = ("NUMBER", "HANDLER", "KEY", "ENDED");
        let (took, node) = ("TOOK", "NODE");
        out.line(&format!("{number:>8}  {handler:<16} {key:<24} {ended:<30} {took:>12} ATT  {node:<20} RESULT"))?;
    }
    done_pages(reader, query, ls.limit.unwrap_or(usize::MAX), |job| out.thing(job, done_row))
}

pub(crate) fn ls(place: &Place, ls: &args::Ls, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    if ls.done {
        return ls_done(&reader, ls, out);
    }
    let states: Vec<State> = ls.state.iter().copied().map(state_of).collect();
    let mut query = Query::new();
    if let [state] = states[..] {
        query = query.state(state);
    }
    if let Some(handler) = &ls.handler {
        query = query.name(handler);
    }
    if let Some(prefix) = &ls.prefix {
        query = query.key_prefix(prefix);
    }
    let until = ls.due_within.map(|within| SystemTime::now().checked_add(within));
    let is_soon = |job: &JobInfo| match until {
        None | Some(None) => true,
        Some(Some(until)) => job.state != State::Dead && job.due.is_some_and(|due| due <= until),
    };
    let mut left = ls.limit.unwrap_or(usize::MAX);
    heading(out)?;
    if left == 0 {
        return Ok(());
    }
    query = match ls.after {
        Some(after) => query.after(JobId(after)),
        None => query.soonest_first(),
    };
    let is_by_due = ls.after.is_none();
    pages(&reader, &query, |job| {
        if is_by_due && job.due.is_some() && !is_soon(job) {
            return Ok(false); // and so are all that follow
        }
        let listed = (states.is_empty() || states.contains(&job.state)) && (!ls.paused || job.paused) && is_soon(job);
        if listed {
            out.thing(&job.shown(SystemTime::now()), |_| row(job))?;
            left -= 1;
        }
        Ok(left > 0)
    })
}

pub(crate) fn dead(place: &Place, dead: &args::Dead, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    let mut query = Query::new().state(State::Dead);
    if let Some(handler) = &dead.handler {
        query = query.name(handler);
    }
    let mut left = dead.limit.unwrap_or(usize::MAX);
    heading(out)?;
    if left == 0 {
        return Ok(());
    }
    let now = SystemTime::now();
    pages(&reader, &query, |job| {
        if dead.age.has(job, now) {
            out.thing(&job.shown(now), |_| row(job))?;
            left -= 1;
        }
        Ok(left > 0)
    })
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
    let mut field = |name: &str, value: String| lines.push(format!("{name:<9} {value}"));
    field("number", job.id.0.to_string());
    field("key", text::tame(&job.key));
    let nodes =
        if is_served || job.state == State::Dead { "" } else { " (no worker or program that is up has this handler)" };
    field("handler", format!("{}{nodes}", text::tame(&job.name)));
    field("state", format!("{}{}", job.state, if job.paused { ", paused" } else { "" }));
    if let Some(due) = job.due.filter(|_| job.state != State::Dead) {
        field("due", format!("{} ({})", text::at(due), text::relative(due, SystemTime::now())));
    }
    if let Some(added) = job.added {
        field("put", text::at(added));
    }
    if let Some(begun) = job.begun {
        let node = job.node.map(|node| format!(", on node {}", node.0)).unwrap_or_default();
        field("runs", format!("since {}{node}", text::at(begun)));
    }
    if let Some(nominal) = job.nominal {
        field("nominal", text::at(nominal));
    }
    if let Some(parent) = job.parent {
        field("run of", format!("job {}", parent.0));
    }
    if let Some(until) = job.until {
        field("waits", format!("until {until}"));
    }
    for before in &job.predecessors {
        field(
            "after",
            format!(
                "{}, job {}: {}",
                text::tame(&before.key),
                before.id.0,
                before.end.map_or_else(|| "has not ended".to_owned(), |end| end.to_string())
            ),
        );
    }
    if let Some(group) = &job.group {
        field("group", text::tame(group));
    }
    if job.priority != 0 {
        field("priority", job.priority.to_string());
    }
    if let Some(last) = job.expires {
        field("expires", format!("{} ({})", text::at(last), text::relative(last, SystemTime::now())));
    }
    if let Some(after) = job.expires_after {
        field("expires", format!("{} after each due time", text::rough(after)));
    }
    let most = job.terms.attempts.map(|most| format!(" of {most}")).unwrap_or_default();
    let once = if job.terms.at_most_once { ", begun at most once" } else { "" };
    field("attempts", format!("{}{most}{once}", job.attempt));
    if let Some(limit) = job.terms.limit {
        field("limit", text::rough(limit));
    }
    if let Some(time) = job.terms.unique_for {
        field("unique", format!("for {} once it is done", text::rough(time)));
    }
    if let Some(time) = job.terms.kept_for {
        field("kept", format!("for {} once it is done", text::rough(time)));
    }
    if job.crashes > 0 {
        field("crashes", format!("{} (attempts that the end of their process has cut off)", job.crashes));
    }
    if let Some(error) = &job.error {
        field("error", text::tame(error));
    }
    field("payload", text::tame(&job.payload));
    if let Some(progress) = &job.progress {
        field("progress", text::tame(progress));
    }
    if let Some(last) = &job.last {
        field("last run", last_line(last));
    }
    for failure in job.failures.iter().rev().filter(|failure| job.last.as_deref() != Some(*failure)) {
        field("failed", last_line(failure));
    }
    if let Some(recurrence) = &job.recurrence {
        let schedule = serde_json::to_string(&recurrence.schedule).unwrap_or_default();
        let words = match is_reboot(&recurrence.schedule) {
            true => "@reboot".to_owned(),
            false => recurrence.schedule.describe(),
        };
        field("schedule", text::tame(&schedule));
        field("in words", text::tame(&words));
        let grace = recurrence.grace.map(|grace| format!(", grace {}", text::rough(grace))).unwrap_or_default();
        field(
            "rules",
            format!("catchup {}, overlap {}{grace}", catchup(recurrence.catchup), overlap(recurrence.overlap)),
        );
        let tally = job.tally;
        field("so far", format!("{} runs, {} skipped, {} missed", tally.runs, tally.skipped, tally.missed));
        if job.is_ahead(SystemTime::now()) {
            field(
                "waits",
                format!("behind a clock that was ahead: timerqueue move {} --realign", text::tame(&job.key)),
            );
        }
        lines.push("next runs".to_owned());
        lines.extend(next_lines(&recurrence.schedule, &job.next_runs(SystemTime::now(), SHOWN)));
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

fn is_served(reader: &Reader, name: &str) -> Result<bool, Fail> {
    let nodes = reader.nodes()?;
    Ok(nodes.iter().flat_map(|node| &node.handlers).any(|handler| &*handler.name == name))
}

pub(crate) fn show(place: &Place, show: &args::Show, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    let found = match (&show.key, show.id) {
        (Some(key), _) => reader.get(key)?,
        (None, id) => reader.get_by_id(JobId(id.unwrap_or_default()))?,
    };
    if let Some(job) = found {
        let is_served = out.is_json() || is_served(&reader, &job.name)?;
        return out.thing(&job.shown(SystemTime::now()), |_| described(&job, is_served));
    }
    let kept = match (&show.key, show.id) {
        (Some(key), _) => reader.history(&HistoryQuery::new().key(key).limit(1))?.into_iter().next(),
        (None, id) => reader.finished_by_id(JobId(id.unwrap_or_default()))?,
    };
    match kept {
        Some(job) => out.thing(&job, finished_text),
        None => Err(Fail::Absent("no such job".to_owned())),
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
