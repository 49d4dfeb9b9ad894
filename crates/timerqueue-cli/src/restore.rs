//! `backup` and `restore`: copies, and holds, so that a restored past does not run again unasked.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use timerqueue_scheduler::store::{Hold, SqliteReader, SqliteStore};
use timerqueue_scheduler::{Cancel, Change, Counts, JobInfo, Pending, Query, State};

use crate::args;
use crate::check::with_progress;
use crate::exit::{Fail, REFUSED};
use crate::look::{heading, pages, row};
use crate::out::{Out, Progress};
use crate::place::Place;
use crate::put::with;
use crate::store::{Reader, exists, open};
use crate::text;

/// The overdue jobs that are listed for people.
const LISTED: usize = 20;

/// The most changes that are under way at a time. The store commits them together.
const BATCH: usize = 512;

#[derive(Serialize)]
struct Copied<'a> {
    copy: &'a str,
    bytes: u64,
}

pub(crate) fn backup(place: &Place, backup: &args::Backup, out: &mut Out) -> Result<(), Fail> {
    let file = match place {
        #[cfg(feature = "postgres")]
        Place::Server(_) => {
            let why = "a server is backed up by its own programs, pg_dump or pg_basebackup";
            return Err(Fail::usage(why.to_owned()));
        }
        Place::File(file) => exists(file).map(|()| file),
    };
    let reader = file.and_then(|file| Ok(SqliteReader::open(file)?)).map_err(|fail| place.named(fail))?;
    let copied = with_progress(false, Instant::now(), |steps| {
        let _ = steps.send(format!("copying {place}"));
        reader.backup(&backup.to)
    });
    copied.map_err(|error| place.named(error.into()))?;
    let (copy, bytes) = (backup.to.to_string_lossy(), backup.to.metadata().map_or(0, |data| data.len()));
    out.thing(&Copied { copy: &copy, bytes }, |copied| {
        format!("{}: {} bytes, held: timerqueue restore --release lets its jobs run", text::tame(copied.copy), bytes)
    })
}

/// What is overdue, of a handler.
#[derive(Default, Serialize)]
struct Overdue {
    jobs: u64,
    recurring: u64,
    runs_of_recurring: u64,
    oldest: Option<String>,
    #[serde(skip)]
    first: Option<SystemTime>,
}

#[derive(Serialize)]
struct Restored<'a> {
    held: bool,
    since: Option<String>,
    paused_by_hold: Vec<&'a str>,
    paused_before: Vec<&'a str>,
    overdue: &'a BTreeMap<String, Overdue>,
}

/// Whether a job is due at an instant and would run if nothing was paused. What was accepted after
/// the hold is no part of the restored past.
fn is_overdue(job: &JobInfo, now: SystemTime, hold: Option<&Hold>) -> bool {
    // A run that is under way has no due time ahead; after a restore it is none.
    let is_due = job.state == State::Running || job.due.is_some_and(|due| due <= now);
    // What waits for other jobs would not run yet.
    let is_behind = job.state == State::Queued && job.until.is_some();
    is_due && job.state != State::Dead && !is_behind && hold.is_none_or(|hold| job.id <= hold.last)
}

/// The instant up to which jobs are overdue: by the clock of the store.
fn now_of(counts: &Counts) -> SystemTime {
    counts.now.unwrap_or_else(SystemTime::now)
}

/// How many of the jobs of a store have been looked at.
struct Seen {
    progress: Progress,
    jobs: u64,
    of: u64,
}

impl Seen {
    fn new(wanted: bool, counts: &Counts, handler: Option<&str>) -> Self {
        let kinds = counts.kinds.iter().filter(|kind| handler.is_none_or(|name| name == &*kind.name));
        let of = kinds.map(|kind| State::ALL.iter().map(|&state| kind.of(state)).sum::<u64>()).sum();
        Self { progress: Progress::new(wanted), jobs: 0, of }
    }

    /// One more.
    fn one(&mut self) {
        self.jobs += 1;
        if self.jobs % BATCH as u64 == 0 {
            self.progress.show(&format!("{} of {} jobs", self.jobs, self.of));
        }
    }
}

fn show(place: &Place, progress: bool, out: &mut Out) -> Result<(), Fail> {
    let reader = Reader::open(place)?;
    let counts = reader.counts()?;
    let (hold, now) = (reader.held()?, now_of(&counts));
    let mut seen = Seen::new(progress, &counts, None);
    let mut overdue: BTreeMap<String, Overdue> = BTreeMap::new();
    let (mut rows, mut all) = (Vec::new(), 0_u64);
    pages(&reader, &Query::new(), |job| {
        seen.one();
        if is_overdue(job, now, hold.as_ref()) {
            let of = overdue.entry(job.name.to_string()).or_default();
            let number = match job.state {
                State::Recurring => &mut of.recurring,
                _ if job.parent.is_some() => &mut of.runs_of_recurring,
                _ => &mut of.jobs,
            };
            *number += 1;
            of.first = [of.first, job.due].into_iter().flatten().min();
            if rows.len() < LISTED {
                rows.push(row(job));
            }
            all += 1;
        }
        Ok(true)
    })?;
    drop(seen);
    for of in overdue.values_mut() {
        of.oldest = of.first.map(text::rfc3339);
    }
    let by_hold: Vec<&str> = hold.iter().flat_map(|hold| &hold.handlers).map(|name| &**name).collect();
    let paused = counts.kinds.iter().filter(|kind| kind.paused).map(|kind| &*kind.name);
    let before: Vec<&str> = paused.filter(|name| !by_hold.contains(name)).collect();
    let since = hold.as_ref().map(|hold| text::rfc3339(hold.since));
    let state =
        Restored { held: hold.is_some(), since, paused_by_hold: by_hold, paused_before: before, overdue: &overdue };
    if out.is_json() {
        return out.thing(&state, |_| String::new());
    }
    out.line(&sentence(hold.as_ref(), all))?;
    for (name, of) in &overdue {
        let first = of.first.map(|first| format!(", the first due {}", text::at(first))).unwrap_or_default();
        let (jobs, recurring, runs) = (of.jobs, of.recurring, of.runs_of_recurring);
        out.line(&format!(
            "  {}: {jobs} jobs, {recurring} recurring jobs, {runs} runs of recurring jobs{first}",
            text::tame(name)
        ))?;
    }
    if !rows.is_empty() {
        heading(out)?;
    }
    rows.iter().try_for_each(|row| out.line(row))?;
    if all > rows.len() as u64 {
        out.line(&format!("and {} more: timerqueue ls --due-within 0s", all - rows.len() as u64))?;
    }
    if !state.paused_before.is_empty() {
        out.line(&format!("paused before, and not released: {}", text::tame(&state.paused_before.join(", "))))?;
    }
    Ok(())
}

fn sentence(hold: Option<&Hold>, overdue: u64) -> String {
    match hold {
        Some(hold) => format!(
            "held since {}: {} handlers are paused; {overdue} jobs are overdue and may have run already",
            text::at(hold.since),
            hold.handlers.len()
        ),
        None => format!("not held; {overdue} jobs are overdue, and run as soon as a worker has room"),
    }
}

/// Pauses all handlers, in one commit.
fn hold(place: &Place) -> Result<(), Fail> {
    let held = match place {
        Place::File(file) => exists(file).and_then(|()| SqliteStore::hold(file).map_err(Fail::from)),
        #[cfg(feature = "postgres")]
        Place::Server(server) => {
            drop(Reader::open(place)?); // makes no tables
            server.options().hold(&server.address).map_err(Fail::from)
        }
    };
    held.map(drop).map_err(|fail| place.named(fail))
}

fn forget(place: &Place) -> Result<(), Fail> {
    let forgotten = match place {
        Place::File(file) => SqliteStore::forget_hold(file),
        #[cfg(feature = "postgres")]
        Place::Server(server) => server.options().forget_hold(&server.address),
    };
    forgotten.map_err(|error| place.named(error.into()))
}

#[derive(Default, Serialize)]
struct Skipped {
    cancelled: u64,
    moved_on: u64,
    left: u64,
}

impl Skipped {
    /// Waits for these commits.
    fn count(&mut self, cancels: &mut Vec<Pending<Cancel>>, moves: &mut Vec<Pending<Change>>) -> Result<(), Fail> {
        for cancel in cancels.drain(..) {
            match cancel.wait()? {
                Cancel::Cancelled | Cancel::Running => self.cancelled += 1,
                _ => self.left += 1,
            }
        }
        for change in moves.drain(..) {
            match change.wait()? {
                Change::Changed => self.moved_on += 1,
                _ => self.left += 1,
            }
        }
        Ok(())
    }
}

/// Cancels jobs that are overdue, and lets recurring ones go on from now. What is done when the
/// command is interrupted stays done, and the store stays held: the next one does the rest.
fn skip(place: &Place, restore: &args::Restore, out: &mut Out) -> Result<(), Fail> {
    let (reader, handler) = (Reader::open(place)?, restore.handler.as_deref());
    let Some(hold) = reader.held()? else {
        return Err(Fail::new(REFUSED, "the store is not held: first timerqueue restore --hold"));
    };
    let counts = reader.counts()?;
    let (now, scheduler) = (now_of(&counts), open(place, false)?);
    let mut seen = Seen::new(restore.progress, &counts, handler);
    let (mut skipped, mut cancels, mut moves) = (Skipped::default(), Vec::new(), Vec::new());
    let query = with(Query::new(), handler, Query::name);
    pages(&reader, &query, |job| {
        seen.one();
        if is_overdue(job, now, Some(&hold)) {
            match &job.recurrence {
                Some(_) => moves.push(scheduler.realign(&job.key)),
                // It has the key of its recurring job, which is not to be cancelled.
                None if job.parent.is_some() => skipped.left += 1,
                None => cancels.push(scheduler.cancel(&job.key)),
            }
            if cancels.len() + moves.len() >= BATCH {
                skipped.count(&mut cancels, &mut moves)?;
            }
        }
        Ok(true)
    })?;
    skipped.count(&mut cancels, &mut moves)?;
    drop(seen);
    out.thing(&skipped, |skipped| {
        format!(
            "{} jobs cancelled, {} recurring jobs go on from now, {} jobs left",
            skipped.cancelled, skipped.moved_on, skipped.left
        )
    })
}

#[derive(Serialize)]
struct Released {
    released: Vec<String>,
}

fn release(place: &Place, out: &mut Out) -> Result<(), Fail> {
    let Some(hold) = Reader::open(place)?.held()? else {
        return Err(Fail::new(REFUSED, "the store is not held"));
    };
    let scheduler = open(place, false)?;
    hold.release(&scheduler)?;
    drop(scheduler);
    forget(place)?;
    let released = Released { released: hold.handlers.iter().map(|name| name.to_string()).collect() };
    out.thing(&released, |released| format!("released: {} handlers run again", released.released.len()))
}

pub(crate) fn restore(place: &Place, restore: &args::Restore, out: &mut Out) -> Result<(), Fail> {
    if restore.release {
        return release(place, out);
    }
    if restore.skip_overdue {
        return skip(place, restore, out);
    }
    if restore.hold {
        hold(place)?;
    }
    show(place, restore.progress, out)
}
