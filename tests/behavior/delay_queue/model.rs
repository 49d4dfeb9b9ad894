//! Random programs against a sorted map: insert, replace, remove, move, receive, close, drain,
//! advance, wall steps, suspend.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use crate::support::{manual, ns};
use timerqueue::{
    DelayQueue, Due, Timestamp,
    error::{Refusal, TryRecvError},
};

#[derive(Clone, Copy, Debug)]
enum When {
    After(u64),
    /// Relative to the present reading.
    At(i64),
    Wall(i64),
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, When),
    Replace(u8, When),
    InsertMany(Vec<(u8, When)>),
    Remove(u8),
    Move(u8, When),
    Receive(u8),
    ReceiveAll,
    /// Keeps the keys that leave this remainder.
    Retain(u8, u8),
    Advance(u64),
    Step(i64),
    Suspend(u64),
    Drain,
    Close,
    Look(u8),
}

/// Lengths from a nanosecond to centuries.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..2_000u64, (0..60u32).prop_flat_map(|bits| (1u64 << bits)..(1u64 << (bits + 1)))]
}

/// Mostly lengths of a few hours.
fn step() -> impl Strategy<Value = u64> {
    prop_oneof![9 => length().prop_map(|ns| ns % (1 << 44)), 1 => length().prop_map(|ns| ns % (1 << 55))]
}

fn signed() -> impl Strategy<Value = i64> {
    (step(), any::<bool>()).prop_map(|(ns, back)| if back { -(ns as i64) } else { ns as i64 })
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![length().prop_map(When::After), signed().prop_map(When::At), signed().prop_map(When::Wall)]
}

fn key() -> impl Strategy<Value = u8> {
    0..24u8
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (key(), when()).prop_map(|(key, when)| Op::Insert(key, when)),
        3 => (key(), when()).prop_map(|(key, when)| Op::Replace(key, when)),
        1 => prop::collection::vec((key(), when()), 0..40).prop_map(Op::InsertMany),
        4 => key().prop_map(Op::Remove),
        4 => (key(), when()).prop_map(|(key, when)| Op::Move(key, when)),
        6 => (0..6u8).prop_map(Op::Receive),
        2 => Just(Op::ReceiveAll),
        1 => (2..5u8, 0..5u8).prop_map(|(by, rest)| Op::Retain(by, rest)),
        6 => step().prop_map(Op::Advance),
        2 => signed().prop_map(Op::Step),
        1 => step().prop_map(Op::Suspend),
        1 => Just(Op::Drain),
        1 => Just(Op::Close),
        2 => key().prop_map(Op::Look),
    ]
}

/// The oracle: entries by key, with due time, number of insertion and value.
#[derive(Default)]
struct Model {
    entries: BTreeMap<u8, (Due, u64, u64)>,
    inserted: u64,
    closed: bool,
}

fn signed_ns(later: SystemTime, earlier: SystemTime) -> i128 {
    match later.duration_since(earlier) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

impl Model {
    fn put(&mut self, key: u8, due: Due, value: u64) {
        self.inserted += 1;
        self.entries.insert(key, (due, self.inserted, value));
    }

    /// How long an entry has been due; negative: to go.
    fn late(due: Due, now: Timestamp, wall: SystemTime) -> i128 {
        match due {
            Due::At(at) => now.as_duration().as_nanos() as i128 - at.as_duration().as_nanos() as i128,
            Due::Wall(at) => signed_ns(wall, at),
            Due::After(_) => unreachable!("resolved"),
        }
    }

    /// The keys in order of delivery.
    fn order(&self, now: Timestamp, wall: SystemTime) -> Vec<(i128, u8)> {
        let mut order: Vec<_> =
            self.entries.iter().map(|(&key, &(due, number, _))| (-Self::late(due, now, wall), number, key)).collect();
        order.sort_unstable();
        order.into_iter().map(|(left, _, key)| (left, key)).collect()
    }
}

struct World {
    clock: timerqueue::ManualClock,
    _runtime: timerqueue::Runtime,
    queue: DelayQueue<u8, u64>,
    model: Model,
    values: u64,
}

impl World {
    fn new() -> Self {
        let (clock, runtime) = manual();
        let queue = DelayQueue::on(&runtime);
        Self { clock, _runtime: runtime, queue, model: Model::default(), values: 0 }
    }

    /// The due time for the queue, and as an instant.
    fn due(&self, when: When) -> (Due, Due) {
        let now = self.clock.now();
        match when {
            When::After(after) => (Due::After(ns(after)), Due::At(now + ns(after))),
            When::At(distance) if distance < 0 => {
                let ago = ns(distance.unsigned_abs()).min(now.as_duration());
                let zero = now.as_duration() - ago;
                // Instants of the past, by way of a clock that stands at zero.
                let at = timerqueue::ManualClock::new().now() + zero;
                (Due::At(at), Due::At(at))
            }
            When::At(distance) => (Due::At(now + ns(distance as u64)), Due::At(now + ns(distance as u64))),
            When::Wall(distance) => {
                let at = self.stepped(distance);
                (Due::Wall(at), Due::Wall(at))
            }
        }
    }

    fn stepped(&self, distance: i64) -> SystemTime {
        let by = ns(distance.unsigned_abs());
        if distance < 0 { self.clock.wall() - by } else { self.clock.wall() + by }
    }

    fn insert(&mut self, key: u8, when: When) {
        let (asked, due) = self.due(when);
        self.values += 1;
        let refused = self.queue.insert(key, self.values, asked).err().map(|refused| refused.reason);
        self.inserted(key, due, self.values, refused);
    }

    fn inserted(&mut self, key: u8, due: Due, value: u64, refused: Option<Refusal>) {
        let expected = if self.model.closed {
            Some(Refusal::Closed)
        } else {
            self.model.entries.contains_key(&key).then_some(Refusal::Occupied)
        };
        assert_eq!(refused, expected);
        if expected.is_none() {
            self.model.put(key, due, value);
        }
    }

    fn insert_many(&mut self, rows: &[(u8, When)]) {
        let (mut asked, mut expected) = (Vec::new(), Vec::new());
        for &(key, when) in rows {
            let (ask, due) = self.due(when);
            self.values += 1;
            asked.push((key, self.values, ask));
            if self.model.closed || self.model.entries.contains_key(&key) {
                expected.push(self.values);
            } else {
                self.model.put(key, due, self.values);
            }
        }
        let refused: Vec<u64> = self.queue.insert_many(asked).into_iter().map(|refused| refused.value).collect();
        assert_eq!(refused, expected);
    }

    fn receive(&mut self) {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let first = self.model.order(now, wall).first().copied().filter(|&(left, _)| left <= 0);
        match (self.queue.try_recv(), first) {
            (Ok(expired), Some((left, key))) => {
                let (due, _, value) = self.model.entries.remove(&key).unwrap();
                assert_eq!((expired.key, expired.value, expired.due), (key, value, due));
                assert_eq!(expired.lateness.as_nanos() as i128, -left);
            }
            (Err(TryRecvError::Closed), None) => assert!(self.model.closed && self.model.entries.is_empty()),
            (Err(TryRecvError::Empty), None) => assert!(!self.model.closed || !self.model.entries.is_empty()),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    fn receive_all(&mut self) {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let order = self.model.order(now, wall);
        let received: Vec<_> = self
            .queue
            .try_recv_all()
            .into_iter()
            .map(|expired| (-(expired.lateness.as_nanos() as i128), expired.key))
            .collect();
        assert!(received.iter().eq(order.iter().take_while(|&&(left, _)| left <= 0)));
        received.iter().for_each(|(_, key)| _ = self.model.entries.remove(key));
    }

    fn retain(&mut self, by: u8, rest: u8) {
        let entries = &mut self.model.entries;
        let mut visited = 0;
        self.queue.retain(|key, value, due| {
            visited += 1;
            let entry = entries.get_mut(key).unwrap();
            assert_eq!((*value, due), (entry.2, entry.0));
            *value += 1_000_000;
            entry.2 = *value;
            key % by != rest
        });
        assert_eq!(visited, entries.len());
        entries.retain(|key, _| key % by != rest);
    }

    /// The next entry, and all.
    fn look(&self, order: &[(i128, u8)]) {
        let entries = &self.model.entries;
        self.queue.for_each(|key, value, due| assert_eq!((due, *value), (entries[key].0, entries[key].2)));
        let mut keys = Vec::new();
        self.queue.for_each(|key, _, _| keys.push(*key));
        keys.sort_unstable();
        assert!(keys.iter().eq(entries.keys()));
        assert_eq!(self.queue.peek(|key, _, _| *key), order.first().map(|&(_, key)| key));
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert(key, when) => self.insert(key, when),
            Op::Replace(key, when) => {
                let (asked, due) = self.due(when);
                self.values += 1;
                match self.queue.replace(key, self.values, asked) {
                    Ok(before) => {
                        assert!(!self.model.closed);
                        assert_eq!(before, self.model.entries.get(&key).map(|entry| entry.2));
                        self.model.put(key, due, self.values);
                    }
                    Err(refused) => assert!(self.model.closed && refused.reason == Refusal::Closed),
                }
            }
            Op::InsertMany(ref rows) => self.insert_many(rows),
            Op::Remove(key) => {
                assert_eq!(self.queue.remove(&key), self.model.entries.remove(&key).map(|entry| entry.2));
            }
            Op::Move(key, when) => {
                let (asked, due) = self.due(when);
                let value = self.model.entries.get(&key).map(|entry| entry.2);
                assert_eq!(self.queue.reset(&key, asked), value.is_some());
                if let Some(value) = value {
                    self.model.put(key, due, value);
                }
            }
            Op::ReceiveAll => self.receive_all(),
            Op::Retain(by, rest) => self.retain(by, rest),
            Op::Receive(times) => (0..times).for_each(|_| self.receive()),
            Op::Advance(by) => _ = self.clock.advance(ns(by)),
            Op::Step(distance) => self.clock.set_wall(self.stepped(distance)),
            Op::Suspend(by) => self.clock.suspend(ns(by)),
            Op::Drain => self.drain(),
            Op::Close => {
                self.queue.close();
                self.model.closed = true;
            }
            Op::Look(key) => {
                assert_eq!(self.queue.due(&key), self.model.entries.get(&key).map(|entry| entry.0));
                let (now, wall) = (self.clock.now(), self.clock.wall());
                let order = self.model.order(now, wall);
                if key % 2 == 0 {
                    self.look(&order); // before and after `next_due`, which both look into slots
                }
                let first = order.first().copied();
                let next = self.queue.next_due().map(|due| -Model::late(due, now, wall));
                assert_eq!(next, first.map(|(left, _)| left));
                self.look(&order);
            }
        }
        assert_eq!(self.queue.len(), self.model.entries.len());
    }

    fn drain(&mut self) {
        let order = self.model.order(self.clock.now(), self.clock.wall());
        let drained = self.queue.drain();
        assert_eq!(drained.len(), order.len());
        for (entry, (_, key)) in drained.into_iter().zip(order) {
            let (due, _, value) = self.model.entries.remove(&key).unwrap();
            assert_eq!((entry.key, entry.value, entry.due), (key, value, due));
        }
    }

    /// An awaiting receiver gets each remaining entry that comes due, at its very instant.
    fn finish(mut self) {
        self.queue.close();
        self.model.closed = true;
        while let Some(&(left, key)) = self.model.order(self.clock.now(), self.clock.wall()).first() {
            if left > Duration::from_secs(86_400 * 365 * 20).as_nanos() as i128 {
                break;
            }
            let begun = self.clock.now();
            let expired = self.clock.block_on(self.queue.recv()).unwrap();
            let (due, _, value) = self.model.entries.remove(&key).unwrap();
            assert_eq!((expired.key, expired.value, expired.due), (key, value, due));
            assert_eq!((self.clock.now() - begun).as_nanos() as i128, left.max(0));
        }
        self.drain();
        assert!(self.queue.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn a_delay_queue_is_a_sorted_map(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        ops.iter().for_each(|op| world.apply(op));
        world.finish();
    }
}

fn cases() -> u32 {
    let asked = std::env::var("TIMERQUEUE_MODEL_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(if cfg!(miri) { 2 } else { 300 })
}
