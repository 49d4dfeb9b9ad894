//! Claims: which due jobs a member takes.
//!
//! Ground rules. A claim looks at heads of indexes alone: of each handler, and of each open
//! group of the member. No row of another member, of a full handler or of a full group is
//! read (J15, M3). Limits over all members are kept here, under the lock of [`Rows::counted`] (M6,
//! M8).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::pace::Pace;
use super::runs::{Claimer, LOOKS};
use super::{Bindings, Lane, Rows, Runs, span_of};
use crate::store::gate::SUSPECT;
use crate::store::{Claim, Claimed, ClaimedJob, ClaimedSchedule, Entry, JobId, Limits, Micros};

/// The room of a handler.
pub(crate) struct Room {
    kind: usize,
    places: usize,
    limits: Limits,
    pace: Option<Pace>,
    taken: usize,
}

/// How much earlier a job counts as due for each step of its priority. So a job that is due later
/// goes before another one only by a higher priority, and never before one that has been due for
/// so much longer: each job waits for a bounded time, however many come with a higher priority.
/// And the order of two jobs never changes, so indexes have it.
const STEP: Duration = Duration::from_secs(3_600);

/// A due job: its place in the order of claims, its number, the index of its room, the index that
/// has it, and its wake instant.
type Head = Reverse<(i64, JobId, usize, Lane, Micros)>;

/// The first jobs of indexes.
pub(crate) struct Heads {
    now: Micros,
    due: BinaryHeap<Head>,
    /// Those that are due later: when, and the index of the room.
    later: Vec<(Micros, usize)>,
}

impl Heads {
    fn add(&mut self, at: usize, lane: Lane, priority: i8, (wake, id): (Micros, JobId)) {
        if wake <= self.now {
            let ahead = i64::from(priority) * span_of(STEP);
            self.due.push(Reverse((wake.as_i64() - ahead, id, at, lane, wake)));
        } else {
            self.later.push((wake, at));
        }
    }

    /// The first wake instant of a job that is left, in rooms with places.
    fn first(&self, rooms: &[Room]) -> Option<Micros> {
        let due = self.due.iter().map(|&Reverse((_, _, at, _, wake))| (wake, at));
        let all = due.chain(self.later.iter().copied());
        all.filter(|&(_, at)| rooms[at].places > 0).map(|(wake, _)| wake).min()
    }
}

/// Claims.
pub(crate) trait Claims: Rows + Sized {
    /// Takes due rows. `entry`: the claimer, if it is a member. `seed` tells runs of this store
    /// from those of others.
    fn claim(&mut self, claim: &Claim, entry: Option<&Entry>, now: Micros, seed: u64) -> Claimed {
        let mut by = Claimer::of(claim, self.facts(), now, seed);
        self.forget_idle(now);
        let more_to_unbind = self.unbind_some();
        let mut rooms = self.rooms(claim, entry, now);
        let known: Vec<usize> = rooms.iter().map(|room| room.kind).collect();
        let is_beyond = now >= Micros::BEYOND_SCHEDULES;
        let (schedules, more_behind) =
            if is_beyond { (Vec::new(), false) } else { self.due_schedules(&known, &by, now) };
        let free: Vec<usize> = rooms.iter().filter(|room| room.places > 0).map(|room| room.kind).collect();
        let member = entry.and_then(|entry| self.member_of(entry.owner));
        let unbound = if member.is_some() { self.unbound(&free, now, LOOKS) } else { Vec::new() };
        let mut heads = self.heads(&rooms, &free, member, now, claim.at_most);
        let jobs = self.take(&mut heads, &mut rooms, claim.at_most, true, &mut by, now);
        let paced = self.keep_pace(&mut rooms, now);
        let left = heads.first(&rooms);
        let later = member.and_then(|member| self.next_group(&free, Some((member, now))));
        let again = (more_to_unbind || unbound.len() >= LOOKS).then_some(now);
        let first = known.iter().filter_map(|&kind| Some(self.first_schedule(kind)?.0)).min();
        // Rows that are left of a step of the clock: the next claim goes on.
        let next_schedule = first.into_iter().chain(more_behind.then_some(now)).min();
        Claimed {
            now,
            next_schedule,
            next_job: [left, later, again, paced].into_iter().flatten().min(),
            schedules,
            jobs,
            unbound,
        }
    }

    /// Takes due jobs for places whose runs end in this commit. Of all that a claim does this is
    /// the part with jobs, since rows that come due have wake-ups of their own. While a group
    /// waits for a member, no place is filled: they become free, and a claim follows.
    fn fill(&mut self, claim: &Claim, entry: Option<&Entry>, now: Micros, seed: u64) -> Vec<ClaimedJob> {
        let mut by = Claimer::of(claim, self.facts(), now, seed);
        let mut rooms = self.rooms(claim, entry, now);
        let free: Vec<usize> = rooms.iter().filter(|room| room.places > 0).map(|room| room.kind).collect();
        let member = entry.and_then(|entry| self.member_of(entry.owner));
        if member.is_some() && (self.unbind_some() || !self.due_groups(&free, 0, now, 1).is_empty()) {
            return Vec::new();
        }
        // Another member's jobs may have waited longer for a place among those of all members.
        for room in rooms.iter_mut().filter(|room| room.places > 0 && room.limits.everywhere.is_some()) {
            if self.next_group(&[room.kind], None).is_some_and(|at| at <= now) {
                room.places = 0;
            }
        }
        let mut heads = self.heads(&rooms, &free, member, now, claim.at_most);
        let jobs = self.take(&mut heads, &mut rooms, claim.at_most, false, &mut by, now);
        self.keep_pace(&mut rooms, now);
        jobs
    }

    /// Begins due jobs in their order. Afterwards `heads` has the first job that is left of each
    /// handler with places. A suspect is given by itself, and only to a claim.
    fn take(
        &mut self,
        heads: &mut Heads,
        rooms: &mut [Room],
        at_most: usize,
        suspects: bool,
        by: &mut Claimer,
        now: Micros,
    ) -> Vec<ClaimedJob> {
        let mut jobs: Vec<ClaimedJob> = Vec::new();
        while jobs.len() < at_most {
            let Some(&Reverse((_, id, at, lane, _))) = heads.due.peek() else { break };
            let room = &mut rooms[at];
            let is_suspect = room.places > 0 && self.row(id).is_some_and(|row| row.suspicion >= SUSPECT);
            if is_suspect && !(suspects && jobs.is_empty()) {
                break;
            }
            heads.due.pop();
            if room.places == 0 {
                continue;
            }
            by.counted = room.limits.everywhere.is_some();
            if let Some(job) = self.begin(id, by, now) {
                jobs.push(job);
                (room.places, room.taken) = (room.places - 1, room.taken + 1);
            }
            let (kind, most, is_full) = (room.kind, room.limits.group, room.places == 0);
            let next = match lane {
                _ if is_full => None,
                Lane::Priority(priority) => self.first_job(kind, priority),
                Lane::Group(group) => self.next_of(group, most),
            };
            if let Some(next) = next {
                heads.add(at, lane, self.priority_of(lane, next.1), next);
            }
            if is_suspect && !jobs.is_empty() {
                break;
            }
        }
        jobs
    }

    /// The handlers that are not paused, with their places within all limits.
    fn rooms(&mut self, claim: &Claim, entry: Option<&Entry>, now: Micros) -> Vec<Room> {
        let mut rooms = Vec::with_capacity(claim.rooms.len());
        for room in &claim.rooms {
            let Some(kind) = self.known(&room.name).filter(|&kind| !self.is_paused(kind)) else { continue };
            let limits = entry.and_then(|entry| entry.limits(&room.name)).unwrap_or_default();
            let (mut places, mut pace) = (room.places, None);
            if let Some(most) = limits.everywhere.filter(|_| places > 0) {
                places = places.min(usize::try_from(most.saturating_sub(self.counted(kind))).unwrap_or(usize::MAX));
            }
            if let Some(rate) = limits.rate {
                let full_at = self.full_at(kind);
                let found = Pace::new(rate, full_at, now);
                if full_at.is_some_and(|full_at| full_at > found.full_at()) {
                    self.set_full_at(kind, found.full_at()); // the clock was set back
                }
                // Without a place, a token is of no use.
                pace = (places > 0).then_some(found);
                places = places.min(found.tokens());
            }
            rooms.push(Room { kind, places, limits, pace, taken: 0 });
        }
        rooms
    }

    /// The recurring jobs to be looked at, by wake instant, so that no handler keeps another one
    /// from its looks. True: a step of the clock has left more rows.
    fn due_schedules(&mut self, known: &[usize], by: &Claimer, now: Micros) -> (Vec<ClaimedSchedule>, bool) {
        let (mut schedules, more_behind) = self.follow_clock(known, by, now);
        let due = |table: &mut Self, kind: usize| {
            let (wake, id) = table.first_schedule(kind).filter(|&(wake, _)| wake <= now)?;
            Some(Reverse((wake, id, kind)))
        };
        let mut looks: BinaryHeap<_> = known.iter().filter_map(|&kind| due(self, kind)).collect();
        while schedules.len() < LOOKS {
            let Some(Reverse((_, id, kind))) = looks.pop() else { break };
            schedules.extend(self.look_at(id, by));
            looks.extend(due(self, kind));
        }
        (schedules, more_behind)
    }

    /// The first job of each handler with places, and of each open group of the member with due
    /// jobs.
    fn heads(&mut self, rooms: &[Room], free: &[usize], member: Option<u64>, now: Micros, at_most: usize) -> Heads {
        let mut heads = Heads { now, due: BinaryHeap::new(), later: Vec::new() };
        for (at, room) in rooms.iter().enumerate().filter(|(_, room)| room.places > 0) {
            for priority in [0].into_iter().chain(self.priorities(room.kind)) {
                if let Some(first) = self.first_job(room.kind, priority) {
                    heads.add(at, Lane::Priority(priority), priority, first);
                }
            }
        }
        let Some(member) = member else { return heads };
        for (_, group, kind) in self.due_groups(free, member, now, at_most.saturating_add(1)) {
            let Some(at) = rooms.iter().position(|room| room.kind == kind) else { continue };
            if let Some(next) = self.next_of(group, rooms[at].limits.group) {
                let lane = Lane::Group(group);
                heads.add(at, lane, self.priority_of(lane, next.1), next);
            }
        }
        heads
    }

    /// The priority of the first job of an index. Among the jobs of a group the due time alone
    /// counts, and the first one has its priority among the others of the handler.
    fn priority_of(&mut self, lane: Lane, id: JobId) -> i8 {
        match lane {
            Lane::Priority(priority) => priority,
            Lane::Group(_) => self.row(id).map_or(0, |row| row.priority),
        }
    }

    /// The first waiting job of a group, if it may have another run. The limit is noted, so
    /// that a full group is in no index.
    fn next_of(&mut self, group: u64, most: Option<u64>) -> Option<(Micros, JobId)> {
        let most = most.unwrap_or_default();
        if self.group(group)?.most != most {
            self.edit_group(group, |group| group.most = most);
        }
        let is_open = self.group(group)?.is_open(self.runs_of(group));
        if is_open { self.first_of(group) } else { None }
    }

    /// Takes the tokens of the claimed jobs. Returns when a handler that has run out of them has
    /// one again.
    fn keep_pace(&mut self, rooms: &mut [Room], now: Micros) -> Option<Micros> {
        let mut next = None;
        for room in rooms {
            let Some(pace) = &mut room.pace else { continue };
            if room.taken > 0 {
                let full_at = pace.take(room.taken);
                self.set_full_at(room.kind, full_at);
            }
            if pace.tokens() == 0 {
                let heads = [self.first_wake(room.kind), self.next_group(&[room.kind], None)];
                let head = heads.into_iter().flatten().min();
                next = [next, head.map(|head| head.max(pace.next()).max(now))].into_iter().flatten().min();
            }
        }
        next
    }
}

impl<T: Rows> Claims for T {}
