//! Puts, and changes by key.

use std::sync::Arc;
use std::time::Duration;

use super::{Bindings, Follows, Recurring, Row, Rows, Runs, Tie, span_of};
use crate::store::{Applied, limits};
use crate::store::{
    Cancel, Change, Clash, Edit, Expiry, Invalid, JobId, Micros, Mutation, NewJob, Occurrence, Op, Overlap, Placed,
    Recurrence, State, When,
};

/// Puts and changes by key.
pub(crate) trait Changes: Rows + Sized {
    /// The instant that an operation means, by the clock of the commit.
    fn resolve(&self, when: When, now: Micros) -> Result<Micros, Invalid> {
        match when {
            // An instant that has passed means now: the job is not late by the time before its put.
            When::At(at) => Ok(at.max(now)),
            When::After(Duration::ZERO) => Ok(now),
            When::After(after) => self.up().checked_add(after),
        }
    }

    /// Applies an operation.
    fn apply(&mut self, op: Op, now: Micros) -> Applied {
        if let Err(invalid) = limits::check(&op) {
            self.effects().drop_later(Box::new(op));
            return Applied::Invalid(invalid);
        }
        match op {
            Op::Put(new) => match self.put_plain(&new, now) {
                None => self.put(*new, now).map_or_else(Applied::Invalid, Applied::Placed),
                Some(answer) => {
                    self.effects().drop_later(new);
                    answer
                }
            },
            Op::Key { key, mutation } => {
                let id = self.holder(&key);
                self.change(id, mutation, now)
            }
            Op::Job { id, mutation } => {
                let id = self.row(id).filter(|row| row.holds_key).map(|row| row.id);
                self.change(id, mutation, now)
            }
            Op::PauseHandler { name, paused } => self.pause_handler(&name, paused),
            Op::Settle(settle) => Applied::Held(self.settle(*settle, now)),
            Op::Progress { held, progress } => Applied::Held(self.note_progress(held, progress)),
            Op::Advance(advance) => Applied::Held(self.advance(*advance, now)),
            Op::Revive(id) => Applied::Revive(self.revive(id, now)),
            Op::Discard(id) => Applied::Held(self.discard(id)),
            Op::Doubt(id) => Applied::Held(self.doubt(id)),
            Op::Bind(bind) => Applied::Held(self.bind(&bind)),
        }
    }

    /// A put that is refused, or that the storage can do at once. `None`: nothing is done yet, and
    /// nothing refuses the job.
    fn put_plain(&mut self, new: &NewJob, now: Micros) -> Option<Applied> {
        let due = match self.resolve(new.when, now) {
            Ok(due) => due,
            Err(invalid) => return Some(Applied::Invalid(invalid)),
        };
        if new.refuse_overdue && matches!(new.when, When::At(at) if at < now) {
            return Some(Applied::Placed(Placed::Overdue));
        }
        if let Some(id) = self.insert_plain(new, due) {
            return Some(Applied::Placed(Placed::Added(id)));
        }
        let old = self.holder(&new.key).or_else(|| self.remembered(&new.key, now))?;
        match new.clash {
            Clash::Refuse => Some(Applied::Placed(Placed::Refused(old))),
            Clash::Keep => Some(Applied::Placed(Placed::Kept(old))),
            Clash::Replace | Clash::Update => None,
        }
    }

    /// Caller: nothing refuses the job.
    fn put(&mut self, mut new: NewJob, now: Micros) -> Result<Placed, Invalid> {
        let due = self.resolve(new.when, now)?;
        let replaces = matches!(new.clash, Clash::Replace | Clash::Update);
        let old = if replaces { self.holder(&new.key) } else { None };
        if let Some(placed) = old.and_then(|old| self.state_again(old, &mut new, now)) {
            return Ok(placed);
        }
        let after = match new.after.take().map(|after| self.predecessors(&after)).transpose() {
            Ok(after) => after,
            Err(unfollowed) => return Ok(unfollowed),
        };
        let replaced = old.map(|old| {
            let was_running = self.cancel(old) == Cancel::Running;
            self.edit(old, |row| row.holds_key = false);
            was_running
        });
        let (id, kind) = (self.next_id(), self.kind(&new.name));
        let recurring = new.recurrence.map(|recurrence| Recurring::new(recurrence, new.first, now));
        let (recurs, looks) = (recurring.is_some(), recurring.as_ref().is_some_and(|one| one.look.is_some()));
        let row = Box::new(Row {
            id,
            key: new.key,
            holds_key: true,
            kind,
            payload: new.payload,
            state: if recurs { State::Recurring } else { State::Waiting },
            due,
            span: if looks { Some(0) } else { new.span.map(span_of) },
            recurring,
            tie: new.group.map(|text| Box::new(Tie { group: self.group_of(kind, &text, now), text })),
            priority: new.priority,
            added: Some(self.up()),
            terms: new.terms.kept(),
            trace: new.trace,
            expires: new.expires.map(|expires| self.last_of(expires, due, recurs)),
            ..Row::default()
        });
        if row.priority != 0 {
            self.note_priority(kind, row.priority);
        }
        match after {
            None => self.insert(row),
            Some((links, until)) => self.insert_after(row, &links, until),
        }
        Ok(match replaced {
            None => Placed::Added(id),
            Some(was_running) => Placed::Replaced { id, was_running },
        })
    }

    /// The last instant at which a job begins; of a recurring job, which has no `Expiry::At`, the
    /// time after each due time.
    fn last_of(&self, expires: Expiry, due: Micros, recurs: bool) -> i64 {
        match expires {
            Expiry::AfterDue(after) if recurs => span_of(after),
            Expiry::AfterDue(after) => due.saturating_add(after).as_i64(),
            Expiry::At(When::At(last)) => last.as_i64(),
            Expiry::At(When::After(after)) => self.up().saturating_add(after).as_i64(),
        }
    }

    /// A recurring job is stated again. `None`: the new job is to replace the old one.
    fn state_again(&mut self, old: JobId, new: &mut NewJob, now: Micros) -> Option<Placed> {
        let mut recurrence = new.recurrence.take()?;
        let kind = self.kind(&new.name);
        let tie = |row: &Row| row.tie.as_ref().map(|tie| Arc::clone(&tie.text));
        let (priority, terms) = (new.priority, new.terms.kept());
        let expires = new.expires.map(|expires| self.last_of(expires, now, true));
        let compared = self.row(old).and_then(|row| {
            let recurring = row.recurring.as_deref().filter(|recurring| !recurring.ending)?;
            let is_same = row.kind == kind && row.payload == new.payload && tie(row) == new.group;
            let is_same = is_same && (row.priority, row.expires, row.terms) == (priority, expires, terms);
            Some((is_same, recurring.recurrence == *recurrence))
        });
        let Some((is_same, recurs_same)) = compared.filter(|same| new.clash == Clash::Update || *same == (true, true))
        else {
            new.recurrence = Some(recurrence);
            return None;
        };
        if !is_same {
            let tie = new.group.take();
            let tie = tie.map(|text| Box::new(Tie { group: self.group_of(kind, &text, now), text }));
            self.rewrite(old, kind, &new.payload, tie);
        }
        if priority != 0 {
            self.note_priority(kind, priority);
        }
        self.edit(old, |row| {
            (row.priority, row.expires, row.terms) = (priority, expires, terms);
            if let Some(recurring) = &mut row.recurring {
                let rules = &mut recurring.recurrence;
                std::mem::swap(&mut rules.catchup, &mut recurrence.catchup);
                std::mem::swap(&mut rules.grace, &mut recurrence.grace);
                std::mem::swap(&mut rules.overlap, &mut recurrence.overlap);
            }
        });
        let _ = self.reschedule(old, recurrence, now);
        Some(if is_same && recurs_same { Placed::Kept(old) } else { Placed::Updated(old) })
    }

    /// Changes the job that holds a key.
    fn change(&mut self, id: Option<JobId>, mutation: Mutation, now: Micros) -> Applied {
        if let Mutation::Cancel = mutation {
            return Applied::Cancel(id.map_or(Cancel::Absent, |id| self.cancel(id)));
        }
        let Some((id, state)) = id.and_then(|id| Some((id, self.row(id)?.state))) else {
            if let Mutation::Reschedule(recurrence) = mutation {
                self.effects().drop_later(recurrence);
            }
            return Applied::Change(Change::Absent);
        };
        Applied::Change(match (mutation, state) {
            (Mutation::Move(_) | Mutation::RunNow | Mutation::Edit(_), State::Running) => Change::Running,
            (Mutation::Edit(edit), State::Waiting | State::Recurring | State::Queued) => {
                match self.rework(id, &edit, now) {
                    Err(invalid) => return Applied::Invalid(invalid),
                    Ok(change) => change,
                }
            }
            (Mutation::Move(when), State::Waiting | State::Queued) => match self.resolve(when, now) {
                Err(invalid) => return Applied::Invalid(invalid),
                Ok(due) => self.wait_until(id, due),
            },
            (Mutation::RunNow, State::Waiting | State::Queued) => {
                self.edit(id, |row| (row.paused, row.state) = (false, State::Waiting));
                self.wait_until(id, now)
            }
            (Mutation::RunNow, State::Recurring) => self.run_by_hand(id, now),
            (Mutation::Pause, _) => self.pause(id, true),
            (Mutation::Resume, _) => self.pause(id, false),
            (Mutation::Reschedule(recurrence), State::Recurring) => self.reschedule(id, recurrence, now),
            (Mutation::Reschedule(recurrence), _) => {
                self.effects().drop_later(recurrence);
                Change::WrongKind
            }
            (Mutation::Look, State::Recurring) => {
                self.ask_look(id, now);
                Change::Changed
            }
            (Mutation::Realign, State::Recurring) => self.realign(id, now),
            _ => Change::WrongKind,
        })
    }

    /// Changes parts of a job that does not run.
    fn rework(&mut self, id: JobId, edit: &Edit, now: Micros) -> Result<Change, Invalid> {
        let due = edit.when.map(|when| self.resolve(when, now)).transpose()?;
        let Some(row) = self.row(id) else { return Ok(Change::Absent) };
        let (recurs, was_due) = (row.recurring.is_some(), row.due);
        if due.is_some() && recurs {
            return Ok(Change::WrongKind);
        }
        if recurs && matches!(edit.expires, Some(Some(Expiry::At(_)))) {
            return Err(Invalid::ExpiresWithSchedule);
        }
        let (kind, tie) = (row.kind, row.tie.clone());
        let terms = edit.terms.iter().fold(row.terms, |terms, &term| terms.with(term)).kept();
        let expires = edit.expires.map(|to| to.map(|expires| self.last_of(expires, due.unwrap_or(was_due), recurs)));
        if let Some(payload) = &edit.payload {
            self.rewrite(id, kind, payload, tie);
        }
        if let Some(priority) = edit.priority {
            if priority != 0 {
                self.note_priority(kind, priority);
            }
            self.edit(id, |row| row.priority = priority);
        }
        if !edit.terms.is_empty() {
            self.edit(id, |row| row.terms = terms);
        }
        if let Some(expires) = expires {
            self.edit(id, |row| row.expires = expires);
        }
        Ok(due.map_or(Change::Changed, |due| self.wait_until(id, due)))
    }

    fn wait_until(&mut self, id: JobId, due: Micros) -> Change {
        self.edit(id, |row| (row.due, row.span) = (due, None));
        Change::Changed
    }

    /// No attempt of this job starts any more. A running job keeps its key until its end.
    fn cancel(&mut self, id: JobId) -> Cancel {
        let Some(state) = self.row(id).map(|row| row.state) else { return Cancel::Absent };
        if state == State::Running {
            self.edit(id, |row| row.cancelled = true);
            self.effects().cancelled.push(id);
            return Cancel::Running;
        }
        if state != State::Recurring {
            self.remove(id);
            return Cancel::Cancelled;
        }
        let runs: Option<Vec<JobId>> = self
            .edit(id, |row| {
                let recurring = row.recurring.as_mut()?;
                Some(recurring.queued.drain(..).chain(recurring.live.drain(..)).collect())
            })
            .flatten();
        let runs = runs.unwrap_or_default().into_iter();
        let running: Vec<JobId> = runs.filter(|&run| self.cancel(run) == Cancel::Running).collect();
        if running.is_empty() {
            self.remove(id);
            return Cancel::Cancelled;
        }
        self.edit(id, |row| {
            if let Some(recurring) = &mut row.recurring {
                (recurring.live, recurring.ending) = (running, true);
                (recurring.next, recurring.look, recurring.looked) = (None, None, false);
                recurring.version += 1;
            }
        });
        Cancel::Running
    }

    /// Pauses or resumes a job; of a recurring job, its runs as well. A row that is as it is to be
    /// is not written: such a commit would flush.
    fn pause(&mut self, id: JobId, paused: bool) -> Change {
        let mut all = vec![id];
        if let Some(recurring) = self.row(id).and_then(|row| row.recurring.as_ref()) {
            all.extend(recurring.live.iter().chain(&recurring.queued));
        }
        for id in all {
            if self.row(id).is_some_and(|row| row.paused != paused) {
                self.edit(id, |row| row.paused = paused);
            }
        }
        Change::Changed
    }

    fn pause_handler(&mut self, name: &Arc<str>, paused: bool) -> Applied {
        let kind = self.kind(name);
        self.set_paused(kind, paused);
        if !paused {
            let schedule = self.first_schedule(kind).map(|(wake, _)| wake);
            let heads = [self.first_wake(kind), schedule, self.next_group(&[kind], None)];
            self.effects().wake(heads.into_iter().flatten().min());
        }
        Applied::Change(Change::Changed)
    }

    fn run_by_hand(&mut self, id: JobId, now: Micros) -> Change {
        let Some(recurring) = self.row(id).and_then(|row| row.recurring.as_ref()) else { return Change::Absent };
        if recurring.ending || !recurring.takes(1) {
            return Change::Running;
        }
        self.put_run(id, None, now, false);
        Change::Changed
    }

    /// Another schedule, under the rules for late occurrences of before. The same one may have
    /// other zone data: it waits on after the same last occurrence.
    fn reschedule(&mut self, id: JobId, mut recurrence: Box<Recurrence>, now: Micros) -> Change {
        let changed = self.edit(id, |row| {
            let recurring = row.recurring.as_mut().filter(|recurring| !recurring.ending)?;
            std::mem::swap(&mut recurring.recurrence.schedule, &mut recurrence.schedule);
            let is_same = recurring.recurrence.schedule == recurrence.schedule;
            Some((is_same, recurrence.schedule.has_zone()))
        });
        self.effects().drop_later(recurrence);
        match changed.flatten() {
            Some((false, _)) => self.start_anew(id, now),
            Some((true, true)) => self.ask_look(id, now),
            _ => {}
        }
        Change::Changed
    }

    /// Occurrences up to now are not waited for.
    fn start_anew(&mut self, id: JobId, now: Micros) {
        self.ask_look(id, now);
        self.edit(id, |row| {
            if let Some(recurring) = row.recurring.as_mut().filter(|recurring| !recurring.ending) {
                recurring.next = None;
                // A fixed delay counts from the end of its run.
                if recurring.recurrence.schedule.is_fixed_delay() && !recurring.live.is_empty() {
                    recurring.look = None;
                }
            }
        });
    }

    fn realign(&mut self, id: JobId, now: Micros) -> Change {
        self.edit(id, |row| {
            if let Some(recurring) = &mut row.recurring {
                let last = recurring.last_nominal.map(|last| last.min(Micros::new(now.as_i64() - 1)));
                recurring.move_cursor(last);
            }
        });
        self.start_anew(id, now);
        Change::Changed
    }
}

impl<T: Rows> Changes for T {}

impl Recurring {
    pub(crate) fn new(recurrence: Box<Recurrence>, next: Option<Occurrence>, now: Micros) -> Box<Self> {
        // The first occurrence is the first one after this instant.
        let awaited = next.filter(|_| !recurrence.schedule.is_fixed_delay());
        let last_nominal = awaited.map(|next| Micros::new(next.nominal.min(now).as_i64() - 1));
        Box::new(Self {
            recurrence: *recurrence,
            version: 0,
            next,
            look: next.is_none().then_some(now),
            looked: false,
            last_nominal,
            reached: None,
            ended: None,
            live: Vec::new(),
            queued: Default::default(),
            ending: false,
            tally: Default::default(),
        })
    }

    /// The last nominal instant is this one from now on, if it is known.
    pub(crate) fn move_cursor(&mut self, last: Option<Micros>) {
        let Some(last) = last else { return };
        let before = self.last_nominal.replace(last).filter(|&before| before > last);
        self.reached = before.max(self.reached);
    }

    /// A run comes among the others. True: it waits for the end of the live one.
    pub(crate) fn queues(&mut self, run: JobId) -> bool {
        let waits = self.recurrence.overlap != Overlap::Allow && !self.live.is_empty();
        match waits {
            true => self.queued.insert(self.queued.partition_point(|&queued| queued < run), run),
            false => self.live.push(run),
        }
        waits
    }

    /// Whether this number of further runs may be put.
    pub(crate) fn takes(&self, runs: usize) -> bool {
        match self.recurrence.overlap {
            Overlap::Allow => self.live.len() + runs <= Overlap::MOST,
            Overlap::Skip => self.live.is_empty(),
            Overlap::QueueOne => self.queued.is_empty(),
        }
    }
}
