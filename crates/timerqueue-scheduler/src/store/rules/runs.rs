//! Begins and ends of runs, and the occurrences of recurring jobs.

use std::sync::Arc;
use std::time::Duration;

use super::{Changes, Row, Rows, StoreFacts, kept_error, span_of};
use crate::store::minutes::minute_of;
use crate::store::{
    Advance, Claim, ClaimedJob, ClaimedSchedule, Finished, Held, History, JobId, Keep, LastRun, Micros, Occurrence,
    Overlap, Revive, RunEnd, Settle, State, Step, Verdict,
};

/// The most recurring jobs in an answer to a claim, and the most rows that follow a step of the
/// clock in one.
pub(super) const LOOKS: usize = 256;

/// The scheduler that begins a run.
pub(crate) struct Claimer {
    pub(super) owner: u64,
    /// When another scheduler may look at a recurring job that this one looks at.
    pub(super) look_ends: Option<Micros>,
    /// Tells runs of this store from those of others.
    pub(super) seed: u64,
    /// Whether the run has a place among those of all members.
    pub(super) counted: bool,
}

impl Claimer {
    pub(super) fn of(claim: &Claim, facts: StoreFacts, now: Micros, seed: u64) -> Self {
        let look_ends = facts.look_time.map(|time| now.saturating_add(time));
        Self { owner: claim.owner, look_ends, seed, counted: false }
    }
}

/// Begins and ends of runs, and occurrences.
pub(crate) trait Runs: Rows + Sized {
    /// After a step back of the clock: retries wait their time from now, and recurring jobs with a
    /// span are looked at. True: there are more such rows.
    fn follow_clock(&mut self, known: &[usize], by: &Claimer, now: Micros) -> (Vec<ClaimedSchedule>, bool) {
        let mut schedules = Vec::new();
        let behind = self.behind(now, LOOKS);
        let is_full = behind.len() == LOOKS;
        for id in behind {
            // As of the lock on the row.
            let Some(row) = self.row(id).filter(|row| row.is_behind(now)) else { continue };
            let (kind, span, recurs) = (row.kind, row.span, row.recurring.is_some());
            match recurs {
                true if known.contains(&kind) => schedules.extend(self.look_at(id, by)),
                // Of a handler that is not known here, or paused: the next claim that knows it
                // looks at it.
                true => self.ask_look(id, now),
                false => {
                    let due = Micros::new(now.as_i64().saturating_add(span.unwrap_or_default()));
                    self.edit(id, |row| row.due = due);
                }
            }
        }
        (schedules, is_full)
    }

    /// A recurring job is looked at as soon as a scheduler with its handler claims. A look that is
    /// under way counts no more.
    fn ask_look(&mut self, id: JobId, now: Micros) {
        self.edit(id, |row| {
            if let Some(recurring) = row.recurring.as_mut().filter(|recurring| !recurring.ending) {
                recurring.version += 1;
                (recurring.looked, recurring.look, row.span) = (false, Some(now), Some(0));
            }
        });
    }

    /// A scheduler looks at a recurring job.
    fn look_at(&mut self, id: JobId, by: &Claimer) -> Option<ClaimedSchedule> {
        let process = self.facts().process;
        if self.row(id)?.recurring.is_none() {
            // written by hand
            self.bury(id, Some("the schedule cannot be read: there is none".into()));
            return None;
        }
        self.edit(id, |row| {
            (row.lease, row.process) = (by.look_ends, process);
            let recurring = row.recurring.as_mut()?;
            recurring.looked = true;
            Some(ClaimedSchedule {
                id,
                version: recurring.version,
                recurrence: Box::new(recurring.recurrence.clone()),
                next: recurring.next,
                last: recurring.last_nominal,
                reached: recurring.reached,
                ended: recurring.ended,
                runs: recurring.tally.runs,
            })
        })?
    }

    /// A job runs from now on.
    fn begin(&mut self, id: JobId, by: &Claimer, now: Micros) -> Option<ClaimedJob> {
        let &Claimer { owner, seed, .. } = by;
        if self.row(id)?.wake().is_none_or(|wake| wake > now) {
            // A row that was written by hand stands at a wrong place of an index: it is written
            // again, to its own place.
            self.edit(id, |_| ());
            return None;
        }
        let (kind, cancelled) = self.row(id).map(|row| (row.kind, row.cancelled))?;
        if cancelled {
            // Cancelled during a run whose holder is gone: no attempt follows.
            self.leave(id, now);
            return None;
        }
        let (name, process) = (self.name_of(kind), self.facts().process);
        self.edit(id, |row| {
            let due = row.due;
            // It counts as begun from its claim on: whether its handler was called, its holder
            // alone knows, which is gone.
            let blocked = row.blocked;
            let cut_off = !blocked && row.terms.at_most_once && row.attempt > 0;
            let expired = !blocked && !cut_off && row.expires.is_some_and(|last| last < now.as_i64());
            (row.state, row.owner, row.lease, row.span) = (State::Running, owner, None, None);
            (row.counted, row.begun) = (by.counted, Some(now));
            row.process = process;
            row.claims += 1;
            row.attempt = row.attempt.saturating_add(1);
            let run = match (row.parent, row.nominal) {
                (Some(parent), Some(nominal)) => format!("{seed:016x}-{}-{}-{}", parent.0, nominal.as_i64(), row.turn),
                _ => format!("{seed:016x}-{}-{}", id.0, row.turn),
            };
            debug_assert!(due <= now, "a job is never early");
            ClaimedJob {
                held: Held { id, owner, claim: row.claims },
                key: Arc::clone(&row.key),
                name,
                payload: Arc::clone(&row.payload),
                due,
                nominal: row.nominal,
                attempt: row.attempt - u32::from(expired || cut_off || blocked),
                crashes: row.crashes,
                suspicion: row.suspicion,
                run: run.into(),
                trace: row.trace.clone(),
                expired,
                cut_off,
                blocked,
                terms: row.terms,
                progress: row.progress.clone(),
            }
        })
        .inspect(|job| self.effects().begins_once |= job.terms.at_most_once)
    }

    fn is_held(&mut self, held: Held) -> bool {
        self.row(held.id)
            .is_some_and(|row| row.state == State::Running && row.owner == held.owner && row.claims == held.claim)
    }

    /// A run leaves something to the next attempt. False: the run is another's by now.
    fn note_progress(&mut self, held: Held, progress: Arc<str>) -> bool {
        self.is_held(held) && self.edit(held.id, |row| row.progress = Some(progress)).is_some()
    }

    /// The end of a run. False: the run is another's by now.
    fn settle(&mut self, settle: Settle, now: Micros) -> bool {
        let Settle { held, mut verdict, mut record } = settle;
        if !self.is_held(held) {
            return false;
        }
        if let Some(ended) = self.row(held.id).and_then(|row| row.ended.clone()) {
            // Whatever the handler has returned after its commit.
            if !matches!(verdict, Verdict::Kept(_)) {
                verdict = ended.keep.map_or(Verdict::Done, |keep| Verdict::Kept(Box::new(keep)));
            }
            record = Some(Box::new(ended.record));
        }
        if let Some(record) = &mut record {
            record.error = record.error.take().map(kept_error);
        }
        let Some(row) = self.row(held.id) else { return false };
        let (id, kind, parent, cancelled, counted) = (held.id, row.kind, row.parent, row.cancelled, row.counted);
        if let Some(record) = &record {
            self.ended(kind, minute_of(now), record);
            if let Some(parent) = parent {
                self.edit(parent, |row| {
                    row.last = Some(record.clone());
                    row.remember(record);
                });
            }
        }
        match verdict {
            _ if cancelled => self.leave(id, now),
            Verdict::Done => {
                self.keep_done(id, record, None, now);
                self.leave(id, now);
            }
            Verdict::Kept(keep) => {
                self.keep_done(id, record, Some(*keep), now);
                self.leave(id, now);
            }
            Verdict::Again(when) => {
                let due = self.resolve(when, now).unwrap_or(Micros::LAST);
                self.wait_again(id, due, record, |row| {
                    row.turn += 1;
                    (row.crashes, row.suspicion, row.progress) = (0, 0, None);
                    (row.attempt, row.span, row.error, row.failures) = (0, None, None, None);
                })
            }
            Verdict::Retry(after) | Verdict::Unbegun(after) => {
                // A fixed delay waits for the end of its run, and so for no longer than itself.
                let longest = parent.and_then(|parent| self.delay_of(parent));
                let after = longest.map_or(after, |longest| after.min(longest));
                let is_unbegun = matches!(verdict, Verdict::Unbegun(_));
                // Put back without a record, the job is as before.
                let error = match &record {
                    None if is_unbegun => self.row(id).and_then(|row| row.error.clone()),
                    record => record.as_ref().and_then(|record| record.error.clone()),
                };
                let due = self.up().saturating_add(after);
                self.wait_again(id, due, record, |row| {
                    match is_unbegun {
                        true => row.attempt = row.attempt.saturating_sub(1),
                        false => row.suspicion = 0,
                    }
                    // A microsecond more, for the rounding of the clock.
                    (row.span, row.error) = (Some(span_of(after).saturating_add(1)), error);
                });
            }
            Verdict::Dead => {
                let error = record.as_ref().and_then(|record| record.error.clone());
                self.edit(id, |row| {
                    // The handler was not called, and so the attempt does not count.
                    let unbegun =
                        |record: &LastRun| matches!(record.end, RunEnd::Expired | RunEnd::CutOff | RunEnd::Blocked);
                    if let Some(record) = record.as_deref().filter(|record| unbegun(record)) {
                        row.attempt = record.attempt;
                    }
                    row.end_with(record);
                });
                self.bury(id, error);
                self.left(parent, id, now);
            }
            Verdict::Unrun => {
                let due = self.row(id).map_or(now, |row| row.due);
                self.wait_again(id, due, None, |row| row.attempt = row.attempt.saturating_sub(1));
            }
        }
        if counted {
            // A place among those of all members is free.
            self.effects().wake_all(now);
        }
        true
    }

    /// Keeps a job that is done, if its handler, the store or the job itself asks for that.
    fn keep_done(&mut self, id: JobId, last: Option<Box<LastRun>>, keep: Option<Keep>, now: Micros) {
        let Some(row) = self.row(id) else { return };
        let (own, holds_key, unique_for) = (row.terms.kept_for, row.holds_key, row.terms.unique_for);
        if own.is_none() && keep.is_none() && unique_for.is_none() && self.facts().history.is_none() {
            return;
        }
        let Keep { history, node, result } = keep.unwrap_or_default();
        let history = self.facts().history.map_or(history, |all| history.max(all));
        let own = own.unwrap_or_default();
        let keys = if holds_key { unique_for.unwrap_or(history.keys) } else { Duration::ZERO };
        let keep_until = now.saturating_add(history.time.max(keys).max(own));
        // One that is kept for its own sake is no reason for others of the handler to go.
        let for_itself = !own.is_zero() || unique_for.is_some_and(|time| !time.is_zero());
        let most = if history.rows == 0 && for_itself { History::ROWS } else { history.rows };
        if keep_until <= now || (most == 0 && keys.is_zero()) {
            return;
        }
        let Some(row) = self.row(id) else { return };
        let done = Finished {
            id,
            key: Arc::clone(&row.key),
            kind: row.kind,
            payload: Arc::clone(&row.payload),
            ended: now,
            last,
            node,
            result,
            keep_until,
            key_until: now.saturating_add(keys),
            most,
        };
        self.keep(done);
    }

    /// The delay of a recurring job with a fixed one.
    fn delay_of(&mut self, id: JobId) -> Option<Duration> {
        let schedule = &self.row(id)?.recurring.as_ref()?.recurrence.schedule;
        schedule.period().filter(|_| schedule.is_fixed_delay())
    }

    /// An occurrence has come for which no run is put beside these. One that waits for another
    /// attempt is due with it.
    fn hasten(&mut self, runs: Vec<JobId>, now: Micros) {
        for id in runs {
            // Not one that its handler has asked for: its attempts count anew.
            let waits = |row: &Row| row.state == State::Waiting && row.attempt > 0 && row.due > now;
            if self.row(id).is_some_and(waits) {
                self.edit(id, |row| (row.due, row.span) = (now, Some(0)));
            }
        }
    }

    fn wait_again(&mut self, id: JobId, due: Micros, record: Option<Box<LastRun>>, change: impl FnOnce(&mut Row)) {
        self.edit(id, |row| {
            (row.state, row.due, row.lease) = (State::Waiting, due, None);
            row.end_with(record);
            change(row);
        });
    }

    /// A run leaves the store.
    fn leave(&mut self, id: JobId, now: Micros) {
        let parent = self.row(id).and_then(|row| row.parent);
        self.remove(id);
        self.left(parent, id, now);
    }

    /// A run of a recurring job waits and runs no more: the next one in the queue may, and a fixed
    /// delay begins.
    fn left(&mut self, parent: Option<JobId>, run: JobId, now: Micros) {
        let Some(parent) = parent else { return };
        let freed = self.edit(parent, |row| {
            let recurring = row.recurring.as_mut()?;
            recurring.live.retain(|&live| live != run);
            if !recurring.live.is_empty() {
                return None;
            }
            let next = recurring.queued.pop_front();
            recurring.live.extend(next);
            let rests = recurring.recurrence.schedule.is_fixed_delay() && recurring.next.is_none() && !recurring.ending;
            if next.is_none() && rests {
                (recurring.ended, recurring.look, row.span) = (Some(now), Some(now), Some(0));
            }
            Some((next, recurring.ending && next.is_none()))
        });
        match freed.flatten() {
            Some((Some(next), _)) => _ = self.edit(next, |row| row.state = State::Waiting),
            Some((None, true)) => self.remove(parent),
            _ => {}
        }
    }

    /// Puts a run of a recurring job: behind the live one, unless runs may overlap.
    fn put_run(&mut self, parent: JobId, occurrence: Option<Occurrence>, now: Micros, counts: bool) {
        let (id, added) = (self.next_id(), self.up());
        let run = self
            .edit(parent, |row| {
                let recurring = row.recurring.as_mut()?;
                recurring.tally.runs += u64::from(counts);
                let state = if recurring.queues(id) { State::Queued } else { State::Waiting };
                let due = occurrence.map_or(now, |occurrence| occurrence.due);
                Some(Row {
                    id,
                    key: Arc::clone(&row.key),
                    kind: row.kind,
                    payload: Arc::clone(&row.payload),
                    state,
                    due,
                    span: Some(0), // it is due, and stays so if the clock is set back
                    parent: Some(parent),
                    nominal: occurrence.map(|occurrence| occurrence.nominal),
                    paused: row.paused && occurrence.is_some(),
                    tie: row.tie.clone(),
                    priority: row.priority,
                    added: Some(added),
                    terms: row.terms,
                    trace: row.trace.clone(),
                    expires: row.expires.map(|after| due.as_i64().saturating_add(after)),
                    ..Row::default()
                })
            })
            .flatten();
        run.into_iter().for_each(|run| self.insert(Box::new(run)));
    }

    /// Moves the cursor of a recurring job, and puts its runs. False: the job waits for another
    /// occurrence by now.
    fn advance(&mut self, advance: Advance, now: Micros) -> bool {
        let Advance { id, version, step, last, runs, missed } = advance;
        let Some(row) = self.row(id).filter(|row| row.state == State::Recurring) else { return false };
        let Some(recurring) =
            row.recurring.as_ref().filter(|recurring| recurring.version == version && !recurring.ending)
        else {
            return false;
        };
        let takes = match recurring.recurrence.overlap {
            Overlap::Allow => Overlap::MOST.saturating_sub(recurring.live.len()),
            _ if recurring.takes(1) => usize::MAX,
            _ => 0,
        };
        let skipped = runs.len().saturating_sub(takes) as u64;
        let is_alone = recurring.recurrence.overlap != Overlap::Allow && !runs.is_empty();
        let live = if is_alone { recurring.live.clone() } else { Vec::new() };
        self.hasten(live, now);
        for &run in runs.iter().take(takes) {
            self.put_run(id, Some(run), now, true);
        }
        let failed = self.edit(id, |row| {
            let recurring = row.recurring.as_mut()?;
            recurring.version += 1;
            recurring.tally.skipped += skipped;
            recurring.tally.missed += missed;
            recurring.move_cursor(last);
            (recurring.looked, recurring.next, recurring.look, recurring.ended) = (false, None, None, None);
            (row.lease, row.span) = (None, None);
            match step {
                Step::At { next, span } => (recurring.next, row.span) = (Some(next), span.map(span_of)),
                Step::AfterRun => {}
                Step::Ended => recurring.ending = true,
                Step::Failed(error) => return Some(error),
            }
            None
        });
        if let Some(error) = failed.flatten() {
            self.bury(id, Some(kept_error(error)));
            return true;
        }
        let recurring = self.row(id).and_then(|row| row.recurring.as_ref());
        if recurring.is_some_and(|recurring| recurring.ending && recurring.live.is_empty()) {
            self.remove(id);
        }
        true
    }

    /// The job is dead from now on, and its key is free.
    fn bury(&mut self, id: JobId, error: Option<Arc<str>>) {
        let died = self.next_death();
        let is_awaited = self.edit(id, |row| {
            (row.state, row.died, row.error, row.lease) = (State::Dead, died, error, None);
            row.holds_key = false;
            row.terms.kept_for.is_some()
        });
        if is_awaited == Some(true) {
            self.effects().ended.push(id);
        }
    }

    fn revive(&mut self, id: JobId, now: Micros) -> Revive {
        let Some(row) = self.row(id).filter(|row| row.state == State::Dead) else { return Revive::Absent };
        let (key, parent, recurs) = (Arc::clone(&row.key), row.parent, row.recurring.is_some());
        let parent = parent.filter(|&parent| self.row(parent).is_some_and(|parent| parent.state == State::Recurring));
        if parent.is_none() && self.holder(&key).is_some() {
            return Revive::Taken;
        }
        self.edit(id, |row| {
            row.state = if recurs { State::Recurring } else { State::Waiting };
            (row.due, row.attempt, row.span, row.parent) = (now, 0, None, parent);
            (row.crashes, row.suspicion) = (0, 0);
            (row.error, row.holds_key) = (None, parent.is_none());
            row.expires = row.expires.filter(|_| recurs);
            row.blocked = false;
            if let Some(recurring) = &mut row.recurring {
                recurring.version += 1;
                (recurring.looked, recurring.next, recurring.look, row.span) = (false, None, Some(now), Some(0));
            }
        });
        // Back among the runs of its recurring job, behind the live one.
        if let Some(parent) = parent {
            let waits = self.edit(parent, |row| row.recurring.as_mut().is_some_and(|recurring| recurring.queues(id)));
            if waits == Some(true) {
                self.edit(id, |row| row.state = State::Queued);
            }
        }
        Revive::Revived
    }

    /// A job that waits and is to be begun at most once may have begun. False: it is none.
    fn doubt(&mut self, id: JobId) -> bool {
        let waits = |row: &Row| matches!(row.state, State::Waiting | State::Queued) && row.terms.at_most_once;
        let waits = self.row(id).is_some_and(waits);
        if waits {
            self.edit(id, |row| row.attempt = row.attempt.max(1));
        }
        waits
    }

    fn discard(&mut self, id: JobId) -> bool {
        let dead = self.row(id).is_some_and(|row| row.state == State::Dead);
        if dead {
            self.remove(id);
        }
        dead || self.discard_unreadable(id)
    }
}

impl<T: Rows> Runs for T {}
