//! `put` and `cron`: new jobs.

use std::io::{BufRead, Read};
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use timerqueue_scheduler::store::{MAX_PAYLOAD_BYTES, Micros};
use timerqueue_scheduler::{Clash, Due, JobEnd, JobId, Placed, Put, Schedule, Scheduler, Unfollowed};

use crate::args;
use crate::exit::{DONE, ENDED, Fail, LATE, REFUSED, note};
use crate::out::Out;
use crate::place::Place;
use crate::store::open;
use crate::text;

/// The runs of a schedule that are shown.
pub(crate) const SHOWN: usize = 5;

fn json(text: String) -> Result<Box<RawValue>, Fail> {
    RawValue::from_string(text)
        .map_err(|error| Fail::usage(format!("the payload is no JSON: {error} (--text takes any text)")))
}

impl args::Payload {
    /// `None`: it is left out.
    pub(crate) fn read(&mut self) -> Result<Option<Box<RawValue>>, Fail> {
        if let Some(text) = self.text.take() {
            return json(serde_json::Value::from(text).to_string()).map(Some);
        }
        if !self.stdin {
            return self.payload.take().map(json).transpose();
        }
        // Space around the value does not count.
        let most = 4 * MAX_PAYLOAD_BYTES as u64;
        let mut text = String::new();
        let read = std::io::stdin().lock().take(most + 1).read_to_string(&mut text);
        read.map_err(|error| Fail::usage(format!("the payload cannot be read: {error}")))?;
        if text.len() as u64 > most {
            return Err(Fail::usage(format!("the payload is larger than {MAX_PAYLOAD_BYTES} bytes")));
        }
        json(text.trim().to_owned()).map(Some)
    }
}

impl args::NewJob {
    fn payload(&mut self) -> Result<Box<RawValue>, Fail> {
        self.payload.read()?.map_or_else(|| json("null".to_owned()), Ok)
    }

    /// The key, or a new one, so that the user learns of it.
    fn key(&mut self) -> Result<String, Fail> {
        match self.key.take() {
            None if self.replace || self.keep => Err(Fail::usage("--replace and --keep need --key")),
            key => Ok(key.unwrap_or_else(made_up)),
        }
    }

    fn clash(&self) -> Clash {
        match (self.replace, self.keep) {
            (true, _) => Clash::Replace,
            (_, true) => Clash::Keep,
            _ => Clash::Refuse,
        }
    }

    /// A put with the rules of the command line.
    fn with<'s>(&self, put: Put<'s>) -> Put<'s> {
        let put = put.clash(self.clash()).priority(self.priority);
        let put = if self.at_most_once { put.at_most_once() } else { put };
        let put = with(put, self.group.as_deref(), Put::group);
        let put = with(put, self.attempts, Put::attempts);
        let put = with(put, self.limit, Put::limit);
        let put = with(put, self.unique_for, Put::unique_for);
        let put = with(put, self.keep_for, Put::kept_for);
        with(put, self.expires_after, Put::expires_after)
    }
}

/// With a value, if there is one.
pub(crate) fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// The last instant at which a run may begin.
pub(crate) fn last_of(text: Option<&str>, zone: Option<&str>) -> Result<Option<SystemTime>, Fail> {
    text.map(|text| text::instant(text, zone, SystemTime::now())).transpose().map_err(Fail::usage)
}

/// A key that no other job has.
fn made_up() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", since.as_nanos(), std::process::id())
}

/// What a put answers.
#[derive(Serialize)]
pub(crate) struct Accepted<'a> {
    id: u64,
    key: &'a str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Vec<String>>,
}

pub(crate) fn accepted(placed: Placed, key: &str) -> Result<Accepted<'_>, Fail> {
    let (id, outcome) = match placed {
        Placed::Added(id) => (id, "added"),
        Placed::Replaced { id, .. } => (id, "replaced"),
        Placed::Kept(id) => (id, "kept"),
        Placed::Updated(id) => (id, "updated"),
        Placed::Refused(id) => {
            let key = text::tame(key);
            return Err(Fail::new(REFUSED, format!("job {} has the key {key} (--replace or --keep?)", id.0)));
        }
        Placed::Overdue => return Err(Fail::new(REFUSED, "the due time has passed")),
        Placed::Unfollowed { nth, why } => {
            let why = match why {
                Unfollowed::Absent => "no job that waits or runs has this key",
                Unfollowed::Recurring => "it is a schedule, which does not end",
                Unfollowed::Full => "too many jobs wait for it",
                _ => "it cannot be waited for",
            };
            return Err(Fail::new(REFUSED, format!("of the jobs to wait for, number {}: {why}", nth + 1)));
        }
        _ => return Err(Fail::new(REFUSED, "the job was not accepted")),
    };
    Ok(Accepted { id: id.0, key, outcome, due: None, next: None })
}

pub(crate) fn sentence(accepted: &Accepted<'_>) -> String {
    format!("job {} {}, key {}", accepted.id, accepted.outcome, text::tame(accepted.key))
}

/// When a job is to be due.
pub(crate) struct When {
    /// A time from now, which is the store's: the clock of a server may differ from this machine's.
    after: Option<Duration>,
    /// By this machine's clock, in whole microseconds, as stores keep it.
    pub(crate) shown: SystemTime,
}

impl When {
    pub(crate) fn new(after: Option<Duration>, at: Option<&str>, zone: Option<&str>) -> Result<Self, Fail> {
        let now = SystemTime::now();
        let (after, at) = match at {
            Some(at) => (None, text::instant(at, zone, now).map_err(Fail::usage)?),
            None => {
                let far = || Fail::usage("the due time is out of range");
                let after = after.unwrap_or_default();
                (Some(after), now.checked_add(after).ok_or_else(far)?)
            }
        };
        Ok(Self { after, shown: Micros::ceil(at).map_err(timerqueue_scheduler::Error::from)?.to_system() })
    }

    pub(crate) fn due(&self) -> Due {
        self.after.map_or_else(|| self.shown.into(), Due::from)
    }
}

pub(crate) fn put(place: &Place, mut put: args::Put, out: &mut Out) -> Result<(), Fail> {
    if let Some(form) = put.each {
        return put_each(place, &put, form, out);
    }
    let (payload, key) = (put.job.payload()?, put.job.key()?);
    let when = When::new(put.due.after, put.due.at.as_deref(), put.due.zone.as_deref())?;
    if put.wait.is_some() {
        put.job.keep_for.get_or_insert(KEPT);
    }
    let scheduler = open(place, true)?;
    let last = last_of(put.expires_at.as_deref(), put.due.zone.as_deref())?;
    let job = with(scheduler.put_to(&put.handler, &*payload).due(when.due()), last, Put::expires);
    let job = if put.refuse_overdue { job.refuse_overdue() } else { job };
    let job = job.after(&put.predecessors, put.until);
    let placed = put.job.with(job.key(&key)).send().wait()?;
    let mut accepted = accepted(placed, &key)?;
    // The due time of a job that stays is its own.
    let is_new = placed.added().is_some();
    // The store has added a time from now to its own clock. A job that has run by now was due at
    // about this time.
    let at = match scheduler.get(&key).wait() {
        Ok(Some(job)) if is_new && job.id.0 == accepted.id => job.due.unwrap_or(when.shown),
        _ => when.shown,
    };
    accepted.due = is_new.then(|| text::rfc3339(at));
    let words = |accepted: &Accepted<'_>| match is_new {
        true if at <= SystemTime::now() => format!("{}, due now", sentence(accepted)),
        true => format!("{}, due {} ({})", sentence(accepted), text::at(at), text::relative(at, SystemTime::now())),
        false => sentence(accepted),
    };
    let Some(limit) = put.wait else { return out.thing(&accepted, words) };
    match out.is_json() {
        true => out.thing(&accepted, words).and_then(|()| out.flush())?,
        false => note(&words(&accepted)),
    }
    wait(&scheduler, accepted.id, limit, out)
}

/// How long a job is kept that is waited for: its end is looked for when the store tells of it, on
/// a server some minutes later at the latest.
const KEPT: Duration = Duration::from_secs(3_600);

/// Waits for the end of a job, and writes its result.
fn wait(scheduler: &Scheduler, id: u64, limit: Duration, out: &mut Out) -> Result<(), Fail> {
    match scheduler.wait_for(JobId(id), limit).wait()? {
        JobEnd::Done(job) if out.is_json() => out.thing(&job, |_| String::new()),
        JobEnd::Done(job) => job.result.as_deref().map_or(Ok(()), |result| out.line(result)),
        JobEnd::Dead(job) => {
            if out.is_json() {
                out.thing(&job.shown(SystemTime::now()), |_| String::new())?;
            }
            let error = job.error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
            Err(Fail::new(ENDED, format!("job {id} is dead{error}")))
        }
        JobEnd::Gone => Err(Fail::new(ENDED, format!("job {id} has left: cancelled, replaced, or done and not kept"))),
        _ => Err(Fail::new(LATE, format!("job {id} has not ended within {}", text::rough(limit)))),
    }
}

/// A line of [`args::Each::Job`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    payload: Option<Box<RawValue>>,
    key: Option<String>,
    #[serde(rename = "in")]
    after: Option<String>,
    at: Option<String>,
    #[serde(rename = "after", default)]
    predecessors: Vec<String>,
}

/// A job that is to be put.
struct ToPut {
    /// The number of its line.
    line: u64,
    payload: Box<RawValue>,
    key: String,
    when: When,
    predecessors: Vec<String>,
}

impl ToPut {
    fn of(line: u64, text: &str, put: &args::Put, form: args::Each) -> Result<Self, Fail> {
        let bare =
            |payload| Line { payload: Some(payload), key: None, after: None, at: None, predecessors: Vec::new() };
        let read = match form {
            args::Each::Json => bare(json(text.to_owned())?),
            args::Each::Text => bare(json(serde_json::Value::from(text).to_string())?),
            args::Each::Job => serde_json::from_str(text).map_err(|error| Fail::usage(error.to_string()))?,
        };
        let after = read.after.as_deref().map(text::duration).transpose().map_err(Fail::usage)?;
        let is_own = after.is_some() || read.at.is_some();
        let when = match (after.is_some() && read.at.is_some(), is_own) {
            (true, _) => return Err(Fail::usage("`in` and `at` are said at once")),
            (_, true) => When::new(after, read.at.as_deref(), put.due.zone.as_deref())?,
            _ => When::new(put.due.after, put.due.at.as_deref(), put.due.zone.as_deref())?,
        };
        let key = read.key.unwrap_or_else(|| format!("{}-{line}", made_up()));
        let payload = read.payload.map_or_else(|| json("null".to_owned()), Ok)?;
        Ok(Self { line, payload, key, when, predecessors: read.predecessors })
    }
}

/// The longest line: a payload, and what else a line may have.
const LONGEST_LINE: usize = 4 * MAX_PAYLOAD_BYTES;
/// The jobs of a commit.
const BATCH: usize = 1_000;

/// Puts a job for each line of the standard input. The lines of a commit are all put before the
/// next ones are read.
fn put_each(place: &Place, put: &args::Put, form: args::Each, out: &mut Out) -> Result<(), Fail> {
    let scheduler = open(place, true)?;
    let mut input = std::io::stdin().lock();
    let (mut number, mut done, mut code) = (0, 0_u64, DONE);
    let mut told = |out: &mut Out, line: u64, fail: Fail| {
        out.flush()?;
        code = code.max(fail.with(|text| format!("line {line}: {text}")).report());
        Ok::<_, Fail>(())
    };
    loop {
        let (mut jobs, mut is_end) = (Vec::new(), false);
        while jobs.len() < BATCH && !is_end {
            let mut line = Vec::new();
            let read = (&mut input).take(LONGEST_LINE as u64).read_until(b'\n', &mut line);
            let read = read.map_err(|error| Fail::usage(format!("the standard input cannot be read: {error}")))?;
            if read == LONGEST_LINE && !line.ends_with(b"\n") {
                return Err(Fail::usage(format!("line {}: longer than {LONGEST_LINE} bytes", number + 1)));
            }
            is_end = read == 0;
            number += u64::from(!is_end);
            let job = match std::str::from_utf8(&line).map(|line| line.trim_end_matches(['\n', '\r'])) {
                Ok(text) if text.trim().is_empty() => continue,
                Ok(text) => ToPut::of(number, text, put, form),
                Err(_) => Err(Fail::usage("no UTF-8")),
            };
            match job {
                Ok(job) => jobs.push(job),
                Err(fail) => told(out, number, fail)?,
            }
        }
        let last = last_of(put.expires_at.as_deref(), put.due.zone.as_deref())?;
        let puts = jobs.iter().map(|job| {
            let new = put.job.with(scheduler.put_to(&put.handler, &*job.payload).key(&job.key));
            let new = new.due(job.when.due()).after(put.predecessors.iter().chain(&job.predecessors), put.until);
            let new = with(new, last, Put::expires);
            if put.refuse_overdue { new.refuse_overdue() } else { new }
        });
        for (job, placed) in jobs.iter().zip(scheduler.put_many(puts).wait()?) {
            match placed.map_err(Fail::from).and_then(|placed| accepted(placed, &job.key)) {
                Ok(accepted) => {
                    done += 1;
                    if out.is_json() {
                        out.thing(&accepted, sentence)?;
                    }
                }
                Err(fail) => told(out, job.line, fail)?,
            }
        }
        if is_end {
            break;
        }
    }
    if !out.is_json() {
        out.line(&format!("{done} jobs put"))?;
    }
    Fail::told(code)
}

/// The schedule of `@reboot`: an instant that does not come. A worker runs its jobs by themselves.
pub(crate) fn reboot() -> Result<Schedule, Fail> {
    Ok(Schedule::cron("0 0 0 1 1 * 4800").zone("UTC").build()?)
}

/// Whether the jobs of a schedule run when the machine has started.
pub(crate) fn is_reboot(schedule: &Schedule) -> bool {
    reboot().is_ok_and(|reboot| reboot == *schedule)
}

/// A schedule of one argument: `@reboot`, `every 5m`, `after 5m`, a cron line, which may name its
/// zone itself, or the JSON text of a schedule.
pub(crate) fn schedule(line: &str, zone: Option<&str>) -> Result<Schedule, Fail> {
    if line.trim() == "@reboot" {
        return reboot();
    }
    let (word, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line, ""));
    let builder = match word {
        "every" => Schedule::every(text::duration(rest).map_err(Fail::usage)?),
        "after" => Schedule::fixed_delay(text::duration(rest).map_err(Fail::usage)?),
        _ if word.starts_with('{') && zone.is_some() => {
            return Err(Fail::usage("--zone is for cron lines: the JSON text of a schedule has a field `zone`"));
        }
        _ if word.starts_with('{') => return Ok(line.parse()?),
        _ if zone.is_none() && ["CRON_TZ=", "TZ="].iter().any(|name| word.starts_with(name)) => {
            return Ok(Schedule::cron(line).build()?);
        }
        _ => {
            let name = zone.map_or_else(text::system_zone, |zone| Ok(zone.to_owned())).map_err(Fail::usage)?;
            return Ok(Schedule::cron(line.trim()).zone(&name).build()?);
        }
    };
    match zone {
        Some(zone) => Ok(builder.zone(zone).build()?), // an error, which says why
        None => Ok(builder.build()?),
    }
}

/// The next runs of a schedule that begins now.
pub(crate) fn next_runs(schedule: &Schedule) -> Vec<SystemTime> {
    if is_reboot(schedule) {
        return Vec::new();
    }
    if schedule.is_fixed_delay() {
        return schedule.first_at(SystemTime::now()).map(|first| first.due()).into_iter().collect();
    }
    schedule.preview(SystemTime::now(), SHOWN).iter().map(|run| run.due()).collect()
}

/// The lines that show the next runs, in the zone of the schedule.
pub(crate) fn next_lines(schedule: &Schedule, runs: &[SystemTime]) -> Vec<String> {
    if is_reboot(schedule) {
        return vec!["  after each start of the machine".to_owned()];
    }
    let zone = text::zone(schedule.zone()).unwrap_or(TimeZone::UTC);
    let name = schedule.zone().map(|zone| format!(" {}", text::tame(zone))).unwrap_or_default();
    let now = SystemTime::now();
    let line = |&run: &SystemTime| format!("  {}{name}  ({})", text::at_in(run, &zone), text::relative(run, now));
    let mut lines: Vec<String> = runs.iter().map(line).collect();
    if schedule.is_fixed_delay() {
        lines.push("  and after the end of each run".to_owned());
    } else if lines.is_empty() {
        lines.push("  none".to_owned());
    }
    lines
}

/// The next runs of the job with this key.
pub(crate) fn next_of(scheduler: &Scheduler, key: &str, schedule: &Schedule) -> Result<Vec<SystemTime>, Fail> {
    let job = scheduler.get(key).wait()?;
    Ok(job.map_or_else(|| next_runs(schedule), |job| job.next_runs(SystemTime::now(), SHOWN)))
}

/// What `cron --dry-run` answers.
#[derive(Serialize)]
struct Preview<'a> {
    schedule: &'a Schedule,
    next: Vec<String>,
}

pub(crate) fn preview(cron: &args::Cron, out: &mut Out) -> Result<(), Fail> {
    let schedule = schedule(&cron.schedule, cron.zone.as_deref())?;
    let runs = next_runs(&schedule);
    let next = runs.iter().copied().map(text::rfc3339).collect();
    let lines = next_lines(&schedule, &runs).join("\n");
    out.thing(&Preview { schedule: &schedule, next }, |_| {
        format!("{}\nnext runs:\n{lines}", text::tame(&schedule.describe()))
    })
}

pub(crate) fn cron(place: &Place, mut cron: args::Cron, out: &mut Out) -> Result<(), Fail> {
    let schedule = schedule(&cron.schedule, cron.zone.as_deref())?;
    let (payload, key) = (cron.job.payload()?, cron.job.key()?);
    let (catchup, overlap) = (cron.catchup, cron.overlap);
    let scheduler = open(place, true)?;
    let job = scheduler.put_to(&cron.handler, &*payload).schedule(schedule.clone()).catchup(catchup).overlap(overlap);
    let job = cron.job.with(with(job, cron.grace, Put::grace).key(&key));
    let job = if cron.update { job.clash(Clash::Update) } else { job };
    let placed = job.send().wait()?;
    let mut accepted = accepted(placed, &key)?;
    // What another one has put stays as it is with --keep.
    let is_mine = placed.added().is_some() || !cron.job.keep;
    let runs = if is_mine { next_of(&scheduler, &key, &schedule)? } else { Vec::new() };
    accepted.next = is_mine.then(|| runs.iter().copied().map(text::rfc3339).collect());
    out.thing(&accepted, |accepted| match is_mine {
        true => format!("{}, next runs:\n{}", sentence(accepted), next_lines(&schedule, &runs).join("\n")),
        false => sentence(accepted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::USAGE;

    #[test]
    fn a_schedule_is_one_argument() {
        assert!(schedule("every 5m", None).is_ok());
        assert!(schedule("after  10s", None).unwrap().is_fixed_delay());
        assert_eq!(schedule("30 2 * * *", Some("Europe/Berlin")).unwrap().zone(), Some("Europe/Berlin"));
        assert_eq!(next_runs(&schedule("@daily", Some("UTC")).unwrap()).len(), SHOWN);
        for (wrong, zone) in
            [("", None), ("every", None), ("every 5", None), ("every 5m", Some("UTC")), ("61 * * * *", None)]
        {
            assert!(schedule(wrong, zone).is_err_and(|fail| fail.code() == USAGE), "{wrong}");
        }
    }
}
