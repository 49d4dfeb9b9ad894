//! The state of a delay queue under its lock: entries on two axes, the table of keys, waiters, core
//! timers.
//!
//! Ground rules. All code here runs with the lock of the queue held. It calls no user code but the
//! `Eq` of keys, in [`super::shared`]: hashes come from the caller, and wakers go into the
//! [`Outbox`], for after the lock. An entry that has left the queue goes to the caller, for after
//! the lock as well.
//!
//! An entry in the queue waits until it is due: in a wheel, by the runtime's clock, or in a map by
//! the wall clock. Then it is *ready*, in a further map in order of delivery, until a receiver
//! takes it. At each place it can be removed and moved.
//!
//! The clock of a wheel does not go back, and the wall clock does. In a map an entry waits for a
//! wall time, not for a reading of the clock, so a step in either direction moves no entry: the
//! next look at the clock finds those that are due. The core timer at the first of them follows the
//! clock ([`super::alarms`]). A wheel for the wall clock would insert in constant time, but it has
//! to be replaced after a step back, with its entries on their way from wheel to wheel.
//!
//! References to an entry in the queue are made and given back with the lock held: one by the
//! table, one by wheel or maps, one by the caller of `Section::find`. So an entry that has left the
//! queue has a single reference, and [`parts`] takes it apart.

use std::task::Waker;
use std::time::Duration;

use super::alarms::Alarms;
use super::item_wheel::{ItemMap, ItemRef, ItemWheel};
use super::key_table::KeyTable;
use super::types::{AXES, Axis, wall_instant};
use super::wait_list::WaitList;
use crate::alarm::Clock;
use crate::queue::Next;
use crate::queue::tick_policy::TickPolicy;
use crate::time::{END, LAST};

/// Items looked at in a lock section.
pub(super) const SECTION: usize = 96;

/// The part of an entry that each thread with a reference may read.
pub(super) struct Keyed<K> {
    pub(super) hash: u64,
    pub(super) key: K,
}

/// The part of an entry under the lock.
pub(super) struct Body<K, V> {
    pub(super) value: V,
    /// The next entry of the bucket, for [`KeyTable`].
    pub(super) next: Option<QueueEntry<K, V>>,
}

/// Where an entry waits, and its number of insertion: ties are delivered in the order of the
/// numbers. Kept in the word of its item.
#[derive(Clone, Copy)]
struct Standing {
    axis: Axis,
    /// The entry is in a map of [`QueueState::ready`], and waits no more.
    is_ready: bool,
    /// From 1 on.
    number: u64,
}

impl Standing {
    #[inline]
    fn to_word(self) -> u64 {
        self.number << 2 | u64::from(self.is_ready) << 1 | self.axis as u64
    }

    #[inline]
    fn of_word(word: u64) -> Self {
        Self { axis: AXES[(word & 1) as usize], is_ready: word & 2 != 0, number: word >> 2 }
    }
}

pub(super) type QueueEntry<K, V> = ItemRef<Keyed<K>, Body<K, V>>;

/// Key and value of an entry that has left the queue. Called without the lock.
pub(super) fn parts<K, V>(entry: QueueEntry<K, V>) -> (K, V) {
    let Ok((keyed, body)) = entry.into_parts() else { unreachable!("references are made under the lock") };
    (keyed.key, body.value)
}

/// Entries in order of delivery: by due point and number of insertion.
type InOrder<K, V> = ItemMap<Keyed<K>, Body<K, V>>;

/// Wakers to be woken, and wakers to be dropped, after the lock.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) wake: Vec<Waker>,
    pub(super) wakers: Vec<Waker>,
}

/// An entry on its way into the queue.
pub(super) struct New<K, V> {
    pub(super) hash: u64,
    pub(super) key: K,
    pub(super) value: V,
    pub(super) due: (Axis, u64),
}

/// An entry taken by a receiver.
pub(super) struct Taken<K, V> {
    pub(super) entry: QueueEntry<K, V>,
    pub(super) due: (Axis, u64),
    pub(super) lateness: Duration,
}

/// An entry that has left the queue, its due point, and its number of insertion.
type Popped<K, V> = (QueueEntry<K, V>, (Axis, u64), u64);

/// See the module's ground rules.
pub(super) struct QueueState<K, V> {
    /// Owns the bodies of all entries; in the wheel, those that wait by the runtime's clock.
    entries: ItemWheel<Keyed<K>, Body<K, V>>,
    /// Entries that wait by the wall clock.
    on_wall: InOrder<K, V>,
    /// Entries that are ready, for each axis.
    ready: [InOrder<K, V>; 2],
    table: KeyTable<K, V>,
    policy: TickPolicy,
    next_number: u64,
    /// Entries that have become ready since receivers were last woken.
    fresh: usize,
    pub(super) capacity: usize,
    pub(super) closed: bool,
    pub(super) receivers: WaitList,
    pub(super) inserters: WaitList,
    pub(super) alarms: Alarms,
    pub(super) outbox: Outbox,
}

impl<K, V> QueueState<K, V> {
    pub(super) fn new(capacity: usize, policy: TickPolicy, alarms: Alarms) -> Self {
        Self {
            entries: ItemWheel::new(),
            on_wall: ItemMap::new(),
            ready: [ItemMap::new(), ItemMap::new()],
            table: KeyTable::new(),
            policy,
            next_number: 1,
            fresh: 0,
            capacity,
            closed: false,
            receivers: WaitList::default(),
            inserters: WaitList::default(),
            alarms,
            outbox: Outbox::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// No entry will be delivered any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.len() == 0
    }

    // ---------------------------------------------------------------- the table

    /// The entries with this hash, in no order.
    #[inline]
    pub(super) fn with_hash(&self, hash: u64) -> impl Iterator<Item = &QueueEntry<K, V>> {
        self.table.chain(&self.entries, hash).filter(move |entry| entry.shared().hash == hash)
    }

    /// A step of a walk over all entries, which begins with a cursor of zero and ends with `None`
    /// ([`super::key_table`]).
    pub(super) fn walk(&self, cursor: u64, mut visit: impl FnMut(&QueueEntry<K, V>)) -> Option<u64> {
        (0..SECTION).try_fold(cursor, |cursor, _| self.table.walk(&self.entries, cursor, &mut visit))
    }

    /// Makes an entry, and puts it into table and queue.
    pub(super) fn link(&mut self, New { hash, key, value, due }: New<K, V>, now: u64) {
        let entry = self.entries.item(Keyed { hash, key }, Body { value, next: None }, self.policy, now);
        self.table.insert(&mut self.entries, entry.clone());
        self.schedule(entry, due, now);
    }

    // ---------------------------------------------------------------- due points

    #[inline]
    fn standing(&self, entry: &QueueEntry<K, V>) -> Standing {
        Standing::of_word(self.entries.word(entry))
    }

    /// Makes an entry the latest insertion of an axis. Returns its number.
    fn number(&mut self, entry: &QueueEntry<K, V>, axis: Axis) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.entries.set_word(entry, Standing { axis, is_ready: false, number }.to_word());
        number
    }

    /// Lets an entry that is in neither wheel nor map wait, as the latest insertion.
    fn schedule(&mut self, entry: QueueEntry<K, V>, (axis, due): (Axis, u64), now: u64) {
        let number = self.number(&entry, axis);
        match axis {
            Axis::Running => self.entries.insert(entry, due, now),
            Axis::Wall => {
                self.entries.set_due(&entry, due);
                self.on_wall.insert((due, number), entry);
            }
        }
    }

    /// Takes an entry out of wheel or map.
    fn unschedule(&mut self, entry: &QueueEntry<K, V>) {
        let (Standing { axis, is_ready, number }, due) = (self.standing(entry), self.entries.due(entry));
        // The reference of wheel or map goes; the caller has another.
        drop(match axis {
            _ if is_ready => self.ready[axis as usize].remove((due, number)),
            Axis::Running => self.entries.unlink(entry),
            Axis::Wall => self.on_wall.remove((due, number)),
        });
    }

    /// Gives an entry a new due point. One that waits in the wheel, and is moved later, stays in
    /// its slot: that touches the memory of no other entry.
    pub(super) fn reschedule(&mut self, entry: &QueueEntry<K, V>, due: (Axis, u64), now: u64) {
        let waits = matches!(self.standing(entry), Standing { axis: Axis::Running, is_ready: false, .. });
        if waits && due.0 == Axis::Running && self.entries.reschedule_lazily(entry, due.1) {
            self.number(entry, Axis::Running);
            return;
        }
        self.unschedule(entry);
        self.schedule(entry.clone(), due, now);
    }

    /// Removes an entry, which is the caller's own.
    pub(super) fn remove(&mut self, entry: &QueueEntry<K, V>) {
        self.unschedule(entry);
        self.leave(entry);
    }

    /// Makes an entry that has left wheel and map the caller's own: its reference is the last.
    fn leave(&mut self, entry: &QueueEntry<K, V>) {
        self.table.remove(&mut self.entries, entry);
        if !self.inserters.is_empty() {
            self.admit(1);
        }
    }

    /// Wakes as many inserters as there is room for, and one for each of `fresh` places; all of
    /// them, if the queue is closed.
    pub(super) fn admit(&mut self, fresh: usize) {
        let room = if self.closed { usize::MAX } else { self.capacity.saturating_sub(self.len()) };
        self.inserters.notify_up_to(room, fresh, &mut self.outbox.wake);
    }

    pub(super) fn value<'a>(&'a self, entry: &'a QueueEntry<K, V>) -> &'a V {
        &self.entries.body_ref(entry).value
    }

    pub(super) fn value_mut<'a>(&'a mut self, entry: &'a QueueEntry<K, V>) -> &'a mut V {
        &mut self.entries.body(entry).value
    }

    pub(super) fn due(&self, entry: &QueueEntry<K, V>) -> (Axis, u64) {
        (self.standing(entry).axis, self.entries.due(entry))
    }

    // ---------------------------------------------------------------- delivery

    fn make_ready(&mut self, entry: QueueEntry<K, V>) {
        let (standing, due) = (Standing { is_ready: true, ..self.standing(&entry) }, self.entries.due(&entry));
        self.entries.set_word(&entry, standing.to_word());
        self.ready[standing.axis as usize].insert((due, standing.number), entry);
        self.fresh += 1;
    }

    /// The axes with the readings of their clocks; the wall clock's only if an entry is on it.
    fn axes(&self, clock: &Clock, now: u64) -> impl Iterator<Item = (Axis, u64)> + Clone + use<K, V> {
        let has_wall = !(self.on_wall.keys().is_empty() && self.ready[Axis::Wall as usize].keys().is_empty());
        let wall = has_wall.then(|| (Axis::Wall, wall_instant(clock.wall())));
        std::iter::once((Axis::Running, now)).chain(wall)
    }

    /// The instant at which the first entry that waits by the wall clock is delivered.
    fn first_on_wall(&self) -> u64 {
        self.on_wall.keys().first().map_or(END, |((due, _), _)| self.policy.fires_at(due))
    }

    /// Makes due entries ready. False: the work is used up, and more entries may be due.
    fn pull(&mut self, axis: Axis, now: u64, work: &mut usize) -> bool {
        loop {
            let entry = match axis {
                Axis::Running => match self.entries.next_due(now, work) {
                    Next::Due(entry) => entry,
                    Next::Nothing => return true,
                    Next::Exhausted => return false,
                },
                // The end of the clock does not come.
                Axis::Wall if self.first_on_wall() > now.min(LAST) => return true,
                Axis::Wall => {
                    let Some(left) = work.checked_sub(1) else { return false };
                    *work = left;
                    let Some(entry) = self.on_wall.pop_first() else { return true };
                    entry
                }
            };
            self.make_ready(entry);
        }
    }

    /// Makes due entries ready. Returns the lateness and the axis of the one to be delivered first.
    /// `Err`: the work is used up.
    fn first_due(&mut self, clock: &Clock, now: u64) -> Result<Option<(u64, usize)>, ()> {
        let (mut work, axes) = (SECTION, self.axes(clock, now));
        if !axes.clone().all(|(axis, now)| self.pull(axis, now, &mut work)) {
            return Err(());
        }
        // The latest first; of equally late entries the one that was given its due time first.
        let mut best = None;
        for (axis, now) in axes {
            let Some((due, number)) = self.first_ready(axis) else { continue };
            // The wall clock may have been set back since.
            if axis == Axis::Running || due <= now {
                best = best.max(Some((now.saturating_sub(due), std::cmp::Reverse(number), axis as usize)));
            }
        }
        Ok(best.map(|(lateness, _, axis)| (lateness, axis)))
    }

    /// Takes the entry that is due first.
    pub(super) fn take(&mut self, clock: &Clock, now: u64) -> Next<Taken<K, V>> {
        let Ok(first) = self.first_due(clock, now) else { return Next::Exhausted };
        let Some((lateness, axis)) = first else { return Next::Nothing };
        let Some(entry) = self.ready[axis].pop_first() else { return Next::Nothing };
        let due = self.release(&entry);
        self.fresh = self.fresh.saturating_sub(1);
        Next::Due(Taken { entry, due, lateness: Duration::from_nanos(lateness) })
    }

    /// As [`Self::leave`], for an entry that was taken out of wheel or map by their order. Returns
    /// its due point.
    fn release(&mut self, entry: &QueueEntry<K, V>) -> (Axis, u64) {
        let due = self.due(entry);
        self.leave(entry);
        due
    }

    /// The due point and number of the first entry that is ready.
    fn first_ready(&self, axis: Axis) -> Option<(u64, u64)> {
        self.ready[axis as usize].keys().first().map(|(first, _)| first)
    }

    /// Wakes a sleeping receiver for each entry that is due. Returns the instants at which a core
    /// timer must fire, for receivers that still sleep: by the runtime's clock, and by the wall
    /// clock. `None`: the work is used up; call again.
    pub(super) fn wake_receivers(&mut self, clock: &Clock, now: u64) -> Option<[u64; 2]> {
        let mut work = SECTION;
        let (mut due, mut next) = (0, [END; 2]);
        for (axis, now) in self.axes(clock, now) {
            if !self.pull(axis, now, &mut work) {
                return None;
            }
            next[axis as usize] = match axis {
                Axis::Running => self.entries.next_deadline(),
                Axis::Wall => self.first_on_wall(),
            };
            match self.first_ready(axis) {
                Some((first, _)) if axis == Axis::Wall && first > now => {
                    next[axis as usize] = next[axis as usize].min(first)
                }
                _ => due += self.ready[axis as usize].keys().len(),
            }
        }
        // One for each entry that has become ready, even if notified receivers have not looked yet:
        // those may have been forgotten.
        let most = if self.is_over() { usize::MAX } else { due };
        let fresh = std::mem::take(&mut self.fresh).min(due);
        self.receivers.notify_up_to(most, fresh, &mut self.outbox.wake);
        Some(next)
    }

    /// Wakes all receivers and inserters: the queue is over.
    pub(super) fn wake_all(&mut self) {
        for waiters in [&mut self.receivers, &mut self.inserters] {
            waiters.notify_up_to(usize::MAX, 0, &mut self.outbox.wake);
        }
    }

    /// The instant at which the next entry of an axis is delivered; [`END`]: none comes due. `Err`:
    /// the work is used up.
    fn next_at(&mut self, axis: Axis, work: &mut usize) -> Result<u64, ()> {
        let waits = match axis {
            Axis::Running => self.entries.earliest_due(work).ok_or(())?,
            Axis::Wall => self.first_on_wall(),
        };
        Ok(self.first_ready(axis).map_or(waits, |(due, _)| due.min(waits)))
    }

    /// The instant at which the next entry is delivered: of both clocks, the one with less time to
    /// go. `None`: no entry comes due. `Err`: the work is used up.
    pub(super) fn next_due(&mut self, clock: &Clock, now: u64) -> Result<Option<(Axis, u64)>, ()> {
        let (mut work, mut best) = (SECTION, None);
        for (axis, now) in self.axes(clock, now) {
            let at = self.next_at(axis, &mut work)?;
            let left = i128::from(at) - i128::from(now);
            if at < END && best.is_none_or(|(least, _)| left < least) {
                best = Some((left, (axis, at)));
            }
        }
        Ok(best.map(|(_, at)| at))
    }

    /// The entry that is delivered next. `Err`: the work is used up.
    pub(super) fn next_entry(&mut self, clock: &Clock, now: u64) -> Result<Option<QueueEntry<K, V>>, ()> {
        if let Some((_, axis)) = self.first_due(clock, now)? {
            return Ok(self.ready[axis].first().map(|(_, entry)| entry));
        }
        let (mut work, mut best) = (SECTION, None);
        for (axis, now) in self.axes(clock, now) {
            let at = self.next_at(axis, &mut work)?;
            // After a step back of the wall clock, an entry that is ready may have to wait again.
            let ready = self.ready[axis as usize].first().filter(|&((due, _), _)| due == at);
            let first = match (ready, axis) {
                (Some((_, entry)), _) => Some(entry),
                (None, Axis::Running) if at < END => self.entries.first(at),
                (None, Axis::Wall) if at < END => self.on_wall.first().map(|(_, entry)| entry),
                (None, _) => None,
            };
            if let Some(entry) = first {
                let order = (i128::from(at) - i128::from(now), self.standing(&entry).number);
                if best.as_ref().is_none_or(|(least, _)| order < *least) {
                    best = Some((order, entry));
                }
            }
        }
        Ok(best.map(|(_, entry)| entry))
    }

    // ---------------------------------------------------------------- handing back

    /// Takes any entry out of the queue, with its due point and its number of insertion.
    pub(super) fn pop_any(&mut self) -> Option<Popped<K, V>> {
        let ready = self.ready.iter_mut().find_map(ItemMap::pop_first);
        let waits = || self.on_wall.pop_first();
        let entry = ready.or_else(waits).or_else(|| self.entries.pop_any())?;
        let number = self.standing(&entry).number;
        let due = self.release(&entry);
        Some((entry, due, number))
    }
}
