//! The ordered map of the crate: pairs of numbers, each with two addresses, in a balanced tree.
//!
//! Ground rules. Pure. The map knows nothing of what its addresses name, and follows none. No
//! function is generic: so the crate, and a program with delay queues of several types, has one
//! copy of the tree's code, which is ten times as long as that of a list. A [`WakerMap`] owns the
//! wakers that its addresses name.

#![allow(unsafe_code)] // addresses go from thread to thread; wakers by their parts

use std::collections::BTreeMap;
use std::ptr::{from_ref, null};
use std::task::{RawWakerVTable, Waker};

/// Ordered by the first number, then by the second.
pub(crate) type Key = (u64, u64);

pub(crate) type Value = [*const (); 2];

/// See the module's ground rules.
#[derive(Default)]
pub(crate) struct OrderedMap(BTreeMap<Key, Value>);

// SAFETY: the map reads and writes its addresses, and never follows one. A thread that does so says
// itself why it may.
unsafe impl Send for OrderedMap {}

impl OrderedMap {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value that `key` had before.
    pub(crate) fn insert(&mut self, key: Key, value: Value) -> Option<Value> {
        self.0.insert(key, value)
    }

    /// As [`Self::insert`], of a key that needs no value. True: `key` is new.
    pub(crate) fn insert_key(&mut self, key: Key) -> bool {
        self.insert(key, [null(); 2]).is_none()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Value> {
        self.0.remove(&key)
    }

    /// The first key that is not before `key`.
    pub(crate) fn first_from(&self, key: Key) -> Option<(Key, Value)> {
        self.0.range(key..).next().map(|(key, value)| (*key, *value))
    }

    pub(crate) fn first(&self) -> Option<(Key, Value)> {
        self.0.first_key_value().map(|(key, value)| (*key, *value))
    }

    pub(crate) fn last(&self) -> Option<Key> {
        self.0.last_key_value().map(|(key, _)| *key)
    }

    pub(crate) fn pop_first(&mut self) -> Option<(Key, Value)> {
        self.0.pop_first()
    }

    pub(crate) fn pop_last(&mut self) -> Option<(Key, Value)> {
        self.0.pop_last()
    }

    /// Takes all out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Key, Value)> + '_ {
        std::iter::from_fn(|| self.pop_first())
    }
}

/// An [`OrderedMap`] of wakers.
#[derive(Default)]
pub(crate) struct WakerMap(OrderedMap);

impl WakerMap {
    pub(crate) const fn new() -> Self {
        Self(OrderedMap::new())
    }

    #[inline]
    pub(crate) fn keys(&self) -> &OrderedMap {
        &self.0
    }

    /// Returns the waker that `key` had before.
    pub(crate) fn insert(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        let value = parts(&waker);
        std::mem::forget(waker);
        self.0.insert(key, value).map(waker_of)
    }

    /// Whether `key` has a waker that wakes the same task.
    pub(crate) fn has(&self, key: Key, waker: &Waker) -> bool {
        self.0.0.get(&key) == Some(&parts(waker))
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Waker> {
        self.0.remove(key).map(waker_of)
    }

    pub(crate) fn pop_first(&mut self) -> Option<Waker> {
        self.0.pop_first().map(|(_, value)| waker_of(value))
    }
}

impl Drop for WakerMap {
    fn drop(&mut self) {
        while let Some(waker) = self.pop_first() {
            drop(waker);
        }
    }
}

fn parts(waker: &Waker) -> Value {
    [waker.data(), from_ref(waker.vtable()).cast()]
}

/// Called once for each value that has left a [`WakerMap`].
fn waker_of([data, table]: Value) -> Waker {
    // SAFETY: `WakerMap::insert` took the parts from a waker that it forgot, and alone puts values
    // into the map. The table of a waker is `'static`.
    unsafe { Waker::new(data, &*table.cast::<RawWakerVTable>()) }
}

/// The places of these numbers in the order of the numbers; equal numbers keep their order.
pub(crate) fn in_order(numbers: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut map = OrderedMap::new();
    for (at, number) in numbers.enumerate() {
        map.insert_key((number, at as u64));
    }
    map.drain().map(|((_, at), _)| at as usize).collect()
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    struct Bell;

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_is_dropped_once() {
        let [one, other] = [(); 2].map(|()| Arc::new(Bell));
        let waker = |bell: &Arc<Bell>| Waker::from(Arc::clone(bell));
        let mut map = WakerMap::new();
        assert!(map.insert((2, 0), waker(&one)).is_none() && map.insert((1, 7), waker(&other)).is_none());
        assert!(map.has((2, 0), &waker(&one)) && !map.has((2, 0), &waker(&other)) && !map.has((2, 1), &waker(&one)));
        let before = map.insert((2, 0), waker(&other)).expect("replaced");
        assert!(before.will_wake(&waker(&one)) && Arc::strong_count(&one) == 2);
        drop(before);
        assert_eq!([&one, &other].map(Arc::strong_count), [1, 3]);
        assert!(map.pop_first().is_some_and(|first| first.will_wake(&waker(&other))));
        assert!(map.remove((1, 7)).is_none() && map.remove((2, 0)).is_some() && map.keys().is_empty());
        map.insert((3, 3), waker(&one));
        assert_eq!([&one, &other].map(Arc::strong_count), [2, 1]);
        drop(map);
        assert_eq!([&one, &other].map(Arc::strong_count), [1, 1]);
    }

    #[test]
    fn equal_numbers_keep_their_order() {
        assert_eq!(in_order([3, 1, 3, 0, 1].into_iter()), [3, 1, 4, 0, 2]);
        assert_eq!(in_order(std::iter::empty()), [0usize; 0]);
    }
}
