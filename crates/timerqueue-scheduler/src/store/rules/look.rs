//! The look at a recurring job: which occurrences run now, and which is the next.
//!
//! Ground rules. A pure function of the claimed row and of the store's clock, so that any scheduler
//! on the store computes the same. Rules of users run here, with no lock held. No loop walks over
//! missed occurrences: at most `Catchup::MOST` are listed, and at most [`MOST_COUNTED`] are counted
//! (J8).

use std::time::Duration;

use super::WRONG_BY;
use crate::store::{Advance, Catchup, ClaimedSchedule, Micros, Occurrence, Step};
use crate::unwind::caught;
use crate::{Occurrence as Exact, Schedule};

/// Missed occurrences are counted up to this number.
const MOST_COUNTED: u64 = 1_000;
const MICRO: Duration = Duration::from_micros(1);

/// The look at `row`. `back`: how far the clock was set back since the last claim, as far as the
/// caller knows.
pub(crate) fn look(row: &ClaimedSchedule, now: Micros, back: Duration) -> Advance {
    caught(|| Look { schedule: &row.recurrence.schedule, now, back }.look(row))
        .unwrap_or_else(|panic| nothing_to_run(row, Step::Failed(format!("the rule failed: {panic}").into()), None))
}

fn nothing_to_run(row: &ClaimedSchedule, step: Step, last: Option<Micros>) -> Advance {
    Advance { id: row.id, version: row.version, step, last, runs: Vec::new(), missed: 0 }
}

/// The first occurrence of a recurring job that is put now, and its span. `None`: there is none, or
/// no store has its instant.
pub(crate) fn first_occurrence(schedule: &Schedule, now: Micros) -> Option<(Occurrence, Option<Duration>)> {
    let look = Look { schedule, now, back: Duration::ZERO };
    match look.first_at_all().0 {
        Step::At { next, span } => Some((next, span)),
        _ => None,
    }
}

struct Look<'a> {
    schedule: &'a Schedule,
    now: Micros,
    back: Duration,
}

impl Look<'_> {
    fn look(&self, row: &ClaimedSchedule) -> Advance {
        match row.next {
            Some(next) if next.due <= self.now => match self.schedule.is_fixed_delay() {
                true => self.run_fixed_delay(row, next),
                false => self.run_due(row, next),
            },
            Some(next) if self.period().is_some() => nothing_to_run(row, self.set_back(next, row.last), row.last),
            Some(next) => self.again(row, next),
            None => {
                let (step, last) = self.first(row);
                nothing_to_run(row, step, last)
            }
        }
    }

    /// The occurrence is not due, and is computed again: there may be new zone data, or the clock
    /// was set back.
    fn again(&self, row: &ClaimedSchedule, next: Occurrence) -> Advance {
        // Without an instant to search from, the occurrence stays.
        let Some(last) = row.last else { return nothing_to_run(row, Step::At { next, span: None }, None) };
        let after = self.trusted(last);
        nothing_to_run(row, self.step(self.schedule.next_after(after.to_system()), Some(after)), Some(after))
    }

    /// The last nominal instant; or now, if the clock of that time was wrong.
    fn trusted(&self, last: Micros) -> Micros {
        if last > self.now.saturating_add(WRONG_BY) { self.before_now() } else { last }
    }

    fn before_now(&self) -> Micros {
        Micros::new(self.now.as_i64() - 1)
    }

    /// The first occurrence of a job that has never run, and the instant after which it was
    /// searched for.
    fn first_at_all(&self) -> (Step, Option<Micros>) {
        let last = (!self.schedule.is_fixed_delay()).then(|| self.before_now());
        (self.step(self.schedule.first_at(self.now.to_system()), last), last)
    }

    /// The next occurrence of a job that waits for none: it is new, has another schedule, or its
    /// fixed delay begins.
    fn first(&self, row: &ClaimedSchedule) -> (Step, Option<Micros>) {
        let Some(last) = row.last else { return self.first_at_all() };
        if let (true, Some(ended)) = (self.schedule.is_fixed_delay(), row.ended) {
            // The run may have ended by a clock that was wrong.
            return (self.after_run(last, ended.min(Micros::BEYOND_SCHEDULES), row.runs), row.last);
        }
        // Occurrences of another schedule up to now were never waited for.
        let last = if self.period().is_some() { last } else { self.trusted(last) };
        let after = last.max(self.before_now());
        (self.step(self.schedule.next_after(after.to_system()), Some(after)), Some(after))
    }

    fn after_run(&self, last: Micros, ended: Micros, runs: u64) -> Step {
        self.step(self.schedule.next_after_run(last.to_system(), ended.to_system(), runs), Some(last))
    }

    /// The occurrence that the job waits for is due.
    fn run_due(&self, row: &ClaimedSchedule, next: Occurrence) -> Advance {
        let (now, mut before) = (self.now.to_system(), next.nominal.to_system() - MICRO);
        let latest = self.schedule.latest_due(now).filter(|latest| latest.nominal() > before).map(Occurrence::of);
        // After a step back an interval runs before its nominal instant.
        let Some(Ok(latest)) = latest else {
            let step = self.step(self.schedule.next_after(next.nominal.to_system()), Some(next.nominal));
            return Advance { runs: vec![next], ..nothing_to_run(row, step, Some(next.nominal)) };
        };
        let (at_most, grace) = match row.recurrence.catchup {
            Catchup::RunLast => (1, None),
            Catchup::RunAll { at_most } => (at_most.clamp(1, Catchup::MOST), None),
            Catchup::Skip => (1, Some(Catchup::SKIP_GRACE)),
        };
        let grace = row.recurrence.grace.or(grace).unwrap_or(Duration::MAX);
        // What came before by a clock that was ahead does not come again.
        if let Some(reached) = row.reached.filter(|&reached| latest.nominal >= reached) {
            before = before.max(reached.to_system());
        }
        let mut runs: Vec<Occurrence> = if latest.nominal.to_system() <= before {
            Vec::new()
        } else if at_most == 1 {
            vec![latest]
        } else {
            let missed = self.schedule.missed(before, now, at_most as usize);
            missed.occurrences().iter().filter_map(|&exact| Occurrence::of(exact).ok()).collect()
        };
        runs.retain(|run| self.now.since(run.due) <= grace);
        let is_lone = latest.nominal == next.nominal && latest.nominal.to_system() > before;
        let due = if is_lone { 1 } else { self.schedule.count_missed(before, now, MOST_COUNTED) };
        let step = self.step(self.schedule.next_after(latest.nominal.to_system()), Some(latest.nominal));
        let missed = due.saturating_sub(runs.len() as u64);
        Advance { runs, missed, ..nothing_to_run(row, step, Some(latest.nominal)) }
    }

    fn run_fixed_delay(&self, row: &ClaimedSchedule, next: Occurrence) -> Advance {
        let grace = row.recurrence.grace.unwrap_or(Duration::MAX);
        let skips = row.recurrence.catchup == Catchup::Skip && row.recurrence.grace.is_none();
        let grace = if skips { Catchup::SKIP_GRACE } else { grace };
        if self.now.since(next.due) > grace {
            let step = self.after_run(next.nominal, self.now, row.runs);
            return Advance { missed: 1, ..nothing_to_run(row, step, Some(next.nominal)) };
        }
        Advance { runs: vec![next], ..nothing_to_run(row, Step::AfterRun, Some(next.nominal)) }
    }

    /// The clock was set back, and the occurrence is further ahead than its span: it comes when as
    /// much time has passed as without the step, and within the span in any case.
    fn set_back(&self, next: Occurrence, last: Option<Micros>) -> Step {
        let Some(span) = self.span() else { return Step::At { next, span: None } };
        let due =
            Micros::new(next.due.as_i64().saturating_sub(i64::try_from(self.back.as_micros()).unwrap_or(i64::MAX)));
        let due = due.clamp(self.now, self.now.saturating_add(span)).min(next.due);
        let nominal = last.map_or(next.nominal, |last| Micros::new(last.as_i64() + 1));
        Step::At { next: Occurrence { nominal, due }, span: Some(span) }
    }

    /// The period of an interval, or the delay of a fixed delay: it goes on within this time,
    /// however the clock is set (J9).
    fn period(&self) -> Option<Duration> {
        u64::try_from(self.schedule.period()?.as_nanos().div_ceil(1000)).ok().map(Duration::from_micros)
    }

    /// The longest wait for an occurrence after another one.
    fn span(&self) -> Option<Duration> {
        // Spread and jitter delay an occurrence by less than a period.
        let periods = if self.schedule.is_spread() { 2 } else { 1 };
        Some(self.period()?.saturating_mul(periods))
    }

    /// Waits for this occurrence. `last`: the nominal instant before, of a job that has run.
    fn step(&self, exact: Option<Exact>, last: Option<Micros>) -> Step {
        let Some((exact, Ok(mut next))) = exact.map(|exact| (exact, Occurrence::of(exact))) else { return Step::Ended };
        if let Some(last) = last {
            // Nominal instants grow, also where the wall clock was set back during the run of a
            // fixed delay.
            next.nominal = next.nominal.max(Micros::new(last.as_i64() + 1));
        }
        let (Some(span), Some(period)) = (self.span(), self.period()) else {
            // A clock that shows less than `last` by so much is noticed.
            let span = last.map(|last| next.due.since(last).saturating_add(WRONG_BY));
            return Step::At { next, span };
        };
        // The first occurrence of a schedule may be far ahead.
        let is_first = match self.schedule.is_fixed_delay() {
            true => last.is_none(),
            false => self.schedule.previous_before(exact.nominal()).is_none(),
        };
        if is_first {
            return Step::At { next, span: None };
        }
        let wait = next.due.since(self.now);
        if wait > span {
            // On the same grid, and at most a period ahead.
            let periods = (wait.as_micros() - 1) / period.as_micros();
            let ahead = i64::try_from(periods * period.as_micros()).unwrap_or(i64::MAX);
            next.due = Micros::new(next.due.as_i64().saturating_sub(ahead));
            // Nominal instants grow by the least until the clock is right again, so that they agree
            // with the clock then.
            next.nominal = last.map_or(next.nominal, |last| Micros::new(last.as_i64() + 1));
        }
        Step::At { next, span: Some(span) }
    }
}
