//! The state of a delay queue under its lock: entries on two axes, the table of keys, waiters, core
//! timers.
//!
//! Ground rules. All code here runs with the lock of the queue held. It calls no user code but the
//! `Eq` of keys, in [`QueueState::find`]: hashes come from the caller, and wakers go into the
//! [`Outbox`], for after the lock. An entry that has left the queue goes to the caller, for after
//! the lock as well.
//!
//! An entry in the queue waits until it is due: in a wheel, by the runtime's clock, or in a map by
//! the wall clock. Then it is *ready*, in a further map in order of delivery, until a receiver
//! takes it. At each place it can be removed and moved.
//!
//! The clock of a wheel does not go back, and the wall clock does. In a map an entry waits for a
//! wall time whatever the clock shows, so a step in either direction moves no entry: the next look
//! at the clock finds those that are due. The core timer at the first of them follows the clock
//! ([`super::alarms`]). A wheel for the wall clock would insert in constant time, but it has to be
//! replaced after a step back, with its entries on their way from wheel to wheel.
//!
//! References to an entry in the queue are made and given back with the lock held: one by the
//! table, one by wheel or maps, one by the caller of `find`. So an entry that has left the queue
//! has a single reference, and [`parts`] takes it apart.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;
use std::time::Duration;

use super::alarms::Alarms;
use super::item_wheel::{ItemRef, ItemWheel};
use super::types::{AXES, Axis, due_at, wall_instant};
use super::wait_list::WaitList;
use crate::alarm::Clock;
use crate::queue::Next;
use crate::queue::tick_policy::TickPolicy;
use crate::time::{END, LAST};

/// Items looked at in a lock section.
pub(super) const SECTION: usize = 96;
/// With fewer places than this, the table keeps its memory.
const SMALL_TABLE: usize = 1024;

/// The part of an entry that each thread with a reference may read.
pub(super) struct Keyed<K> {
    pub(super) hash: u64,
    pub(super) key: K,
}

/// The part of an entry under the lock.
pub(super) struct Body<K, V> {
    value: V,
    /// The next entry with the same hash, linked before this one.
    next: Option<QueueEntry<K, V>>,
    axis: Axis,
    due: u64,
    /// The number of insertion: ties are delivered in this order.
    number: u64,
    /// The entry is in a map of [`QueueState::ready`], and waits no more.
    is_ready: bool,
}

pub(super) type QueueEntry<K, V> = ItemRef<Keyed<K>, Body<K, V>>;

/// Key and value of an entry that has left the queue. Called without the lock.
pub(super) fn parts<K, V>(entry: QueueEntry<K, V>) -> (K, V) {
    let Ok((keyed, body)) = entry.into_parts() else { unreachable!("references are made under the lock") };
    (keyed.key, body.value)
}

/// The hashes of the table are mixed already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the table's keys are numbers");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// From the hash of a key to the first entry with that hash.
type Table<K, V> = HashMap<u64, QueueEntry<K, V>, BuildHasherDefault<Mixed>>;

/// Entries in order of delivery: by due point and number of insertion.
type InOrder<K, V> = BTreeMap<(u64, u64), QueueEntry<K, V>>;

/// Wakers to be woken, and wakers to be dropped, after the lock.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) wake: Vec<Waker>,
    pub(super) wakers: Vec<Waker>,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.wake.is_empty() && self.wakers.is_empty()
    }
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
    table: Table<K, V>,
    len: usize,
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
            on_wall: BTreeMap::new(),
            ready: [BTreeMap::new(), BTreeMap::new()],
            table: HashMap::default(),
            len: 0,
            policy,
            next_number: 0,
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
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// No entry will be delivered any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.len == 0
    }

    // ---------------------------------------------------------------- the table

    /// The first entry with this hash: the one that was linked last.
    pub(super) fn first_with(&self, hash: u64) -> Option<&QueueEntry<K, V>> {
        self.table.get(&hash)
    }

    /// The entry whose key `is_equal`, from the first with its hash on. `is_equal` is user code,
    /// which may panic. The caller gives the reference back before the lock, unless it takes the
    /// entry out of the queue.
    #[inline]
    pub(super) fn find(&mut self, first: QueueEntry<K, V>, is_equal: impl Fn(&K) -> bool) -> Option<QueueEntry<K, V>> {
        let mut entry = first;
        while !is_equal(&entry.shared().key) {
            entry = self.entries.body(&entry).next.clone()?;
        }
        Some(entry)
    }

    /// Makes an entry, and puts it into table and queue.
    pub(super) fn link(&mut self, New { hash, key, value, due }: New<K, V>, now: u64) {
        let body = Body { value, next: None, axis: due.0, due: due.1, number: 0, is_ready: false };
        let entry = self.entries.item(Keyed { hash, key }, body, self.policy);
        if let Some(second) = self.table.insert(hash, entry.clone()) {
            self.entries.body(&entry).next = Some(second);
        }
        self.len += 1;
        self.schedule(entry, due, now);
    }

    /// Takes an entry out of the table.
    fn unlink_key(&mut self, entry: &QueueEntry<K, V>) {
        let hash = entry.shared().hash;
        let next = self.entries.body(entry).next.take();
        let Some(first) = self.table.remove(&hash) else { return };
        if first.is(entry) {
            // The reference of the table goes; the caller has another.
            drop(first);
            if let Some(next) = next {
                self.table.insert(hash, next);
            }
        } else {
            let mut before = first.clone();
            while let Some(at) = self.entries.body(&before).next.take() {
                if at.is(entry) {
                    self.entries.body(&before).next = next;
                    break;
                }
                self.entries.body(&before).next = Some(at.clone());
                before = at;
            }
            self.table.insert(hash, first);
        }
        let capacity = self.table.capacity();
        if capacity > SMALL_TABLE && self.table.len() < capacity / 16 {
            self.table.shrink_to(self.table.len() * 2);
        }
    }

    // ---------------------------------------------------------------- due points

    /// Lets an entry that is in neither wheel nor map wait, as the latest insertion.
    fn schedule(&mut self, entry: QueueEntry<K, V>, (axis, due): (Axis, u64), now: u64) {
        let number = self.next_number;
        self.next_number += 1;
        let body = self.entries.body(&entry);
        (body.axis, body.due, body.number, body.is_ready) = (axis, due, number, false);
        match axis {
            Axis::Running => self.entries.insert(entry, due, now),
            Axis::Wall => _ = self.on_wall.insert((due, number), entry),
        }
    }

    /// Takes an entry out of wheel or map.
    fn unschedule(&mut self, entry: &QueueEntry<K, V>) {
        let &mut Body { axis, due, number, is_ready, .. } = self.entries.body(entry);
        // The reference of wheel or map goes; the caller has another.
        drop(match axis {
            _ if is_ready => self.ready[axis as usize].remove(&(due, number)),
            Axis::Running => self.entries.unlink(entry),
            Axis::Wall => self.on_wall.remove(&(due, number)),
        });
    }

    /// Gives an entry a new due point.
    pub(super) fn reschedule(&mut self, entry: &QueueEntry<K, V>, due: (Axis, u64), now: u64) {
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
        self.unlink_key(entry);
        self.len -= 1;
        if !self.inserters.is_empty() {
            self.admit(1);
        }
    }

    /// Wakes as many inserters as there is room for, and one for each of `fresh` places; all of
    /// them, if the queue is closed.
    pub(super) fn admit(&mut self, mut fresh: usize) {
        let room = if self.closed { usize::MAX } else { self.capacity.saturating_sub(self.len) };
        while self.inserters.notified() < room || fresh > 0 {
            let Some(waker) = self.inserters.notify() else { break };
            self.outbox.wake.push(waker);
            fresh = fresh.saturating_sub(1);
        }
    }

    pub(super) fn value<'a>(&'a mut self, entry: &'a QueueEntry<K, V>) -> &'a mut V {
        &mut self.entries.body(entry).value
    }

    pub(super) fn due(&mut self, entry: &QueueEntry<K, V>) -> (Axis, u64) {
        let body = self.entries.body(entry);
        (body.axis, body.due)
    }

    // ---------------------------------------------------------------- delivery

    fn make_ready(&mut self, entry: QueueEntry<K, V>) {
        let body = self.entries.body(&entry);
        body.is_ready = true;
        let (axis, at) = (body.axis, (body.due, body.number));
        self.ready[axis as usize].insert(at, entry);
        self.fresh += 1;
    }

    /// The reading of the clock of an axis. `None`: no entry is on that clock.
    fn now(&self, axis: Axis, clock: &Clock, now: u64) -> Option<u64> {
        let is_empty = || self.on_wall.is_empty() && self.ready[Axis::Wall as usize].is_empty();
        match axis {
            Axis::Running => Some(now),
            Axis::Wall => (!is_empty()).then(|| wall_instant(clock.wall())),
        }
    }

    /// The instant at which the first entry that waits by the wall clock is delivered.
    fn first_on_wall(&self) -> u64 {
        self.on_wall.first_key_value().map_or(END, |(&(due, _), _)| self.policy.fires_at(due))
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
                    let Some((_, entry)) = self.on_wall.pop_first() else { return true };
                    entry
                }
            };
            self.make_ready(entry);
        }
    }

    /// Takes the entry that is due first.
    pub(super) fn take(&mut self, clock: &Clock, now: u64) -> Next<Taken<K, V>> {
        let mut work = SECTION;
        let mut nows = [None; 2];
        for axis in AXES {
            nows[axis as usize] = self.now(axis, clock, now);
            if let Some(now) = nows[axis as usize] {
                if !self.pull(axis, now, &mut work) {
                    return Next::Exhausted;
                }
            }
        }
        // By lateness: an instant of the wall clock counts by the present distance of both clocks.
        let mut best = None;
        for axis in AXES {
            let (Some(now), Some((due, number))) = (nows[axis as usize], self.first_ready(axis)) else {
                continue;
            };
            // After a step back of the wall clock, ready entries may not be due any more.
            if axis == Axis::Running || due <= now {
                best = best.max(Some((now.saturating_sub(due), std::cmp::Reverse(number), axis as usize)));
            }
        }
        let Some((lateness, _, axis)) = best else { return Next::Nothing };
        let Some((_, entry)) = self.ready[axis].pop_first() else { return Next::Nothing };
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
        self.ready[axis as usize].first_key_value().map(|(&first, _)| first)
    }

    /// Wakes a sleeping receiver for each entry that is due. Returns the instants at which a core
    /// timer must fire, for receivers that still sleep: by the runtime's clock, and by the wall
    /// clock. `None`: the work is used up; call again.
    pub(super) fn wake_receivers(&mut self, clock: &Clock, now: u64) -> Option<[u64; 2]> {
        let mut work = SECTION;
        let (mut due, mut next) = (0, [END; 2]);
        for axis in AXES {
            let Some(now) = self.now(axis, clock, now) else { continue };
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
                _ => due += self.ready[axis as usize].len(),
            }
        }
        // One for each entry that has become ready, even if notified receivers have not looked yet:
        // those may have been forgotten.
        let most = if self.is_over() { usize::MAX } else { due };
        let mut fresh = std::mem::take(&mut self.fresh).min(due);
        while self.receivers.notified() < most || fresh > 0 {
            let Some(waker) = self.receivers.notify() else { break };
            self.outbox.wake.push(waker);
            fresh = fresh.saturating_sub(1);
        }
        Some(next)
    }

    /// Wakes all receivers and inserters: the queue is over.
    pub(super) fn wake_all(&mut self) {
        while let Some(waker) = self.receivers.notify().or_else(|| self.inserters.notify()) {
            self.outbox.wake.push(waker);
        }
    }

    /// The instant at which the next entry is delivered: of both clocks, the one with less time to
    /// go. `None`: no entry comes due. `Err`: the work is used up.
    pub(super) fn next_due(&mut self, clock: &Clock, now: u64) -> Result<Option<super::Due>, ()> {
        let mut work = SECTION;
        let mut best: Option<(i128, (Axis, u64))> = None;
        for axis in AXES {
            let Some(now) = self.now(axis, clock, now) else { continue };
            let waits = match axis {
                Axis::Running => self.entries.earliest_due(&mut work).ok_or(())?,
                Axis::Wall => self.first_on_wall(),
            };
            let at = self.first_ready(axis).map_or(waits, |(due, _)| due.min(waits));
            let left = i128::from(at) - i128::from(now);
            if at < END && best.is_none_or(|(least, _)| left < least) {
                best = Some((left, (axis, at)));
            }
        }
        Ok(best.map(|(_, at)| due_at(at)))
    }

    // ---------------------------------------------------------------- handing back

    /// Takes any entry out of the queue, with its due point and its number of insertion.
    pub(super) fn pop_any(&mut self) -> Option<Popped<K, V>> {
        let ready = self.ready.iter_mut().find_map(BTreeMap::pop_first).map(|(_, entry)| entry);
        let waits = || self.on_wall.pop_first().map(|(_, entry)| entry);
        let entry = ready.or_else(waits).or_else(|| self.entries.pop_any())?;
        let number = self.entries.body(&entry).number;
        let due = self.release(&entry);
        Some((entry, due, number))
    }
}
