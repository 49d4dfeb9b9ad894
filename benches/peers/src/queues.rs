//! Q1 to Q3: delay queues with 0, 10,000 and 1,000,000 pending entries.
//!
//! Ground rules. All threads use one queue, behind a lock. No receiver waits, as in the other
//! workloads of single operations: what a wake-up costs is measured in W4. Q3 inserts a batch, and
//! measures the taking alone. A contender is *keyed* if the user's own key finds an entry, as in
//! ours. Without a key the user keeps the handle that the insertion returns. Entries are due 600 to
//! 660 s from now, the pending ones too, in random order.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use timerqueue::{DelayQueueBuilder, Runtime};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::drivers::{self, Task};
use crate::measure::{Case, Random, Session, repeat};
use crate::place::{HEARTBEAT, Place, THREADS, Tokio, idle_context};

pub(crate) const IDS: [&str; 3] = ["Q1", "Q2", "Q3"];
/// Not due during the measurement.
const NEAREST: Duration = Duration::from_secs(600);
const PENDING: [usize; 3] = [0, 10_000, 1_000_000];

/// A delay queue of numbers.
trait Queue: Send + Sync {
    /// Names an entry for removal.
    type Handle: Copy;
    fn insert(&self, key: u64, after: Duration) -> Self::Handle;
    fn remove(&self, handle: Self::Handle) -> bool;
    fn move_to(&self, handle: Self::Handle, after: Duration) -> Self::Handle;
    /// Takes an entry that is due.
    fn take(&self) -> Option<u64>;
}

// ---------------------------------------------------------------- ours

struct Ours<S>(timerqueue::DelayQueue<u64, u64, S>);

impl<S: BuildHasher + Send + Sync> Queue for Ours<S> {
    type Handle = u64;

    fn insert(&self, key: u64, after: Duration) -> u64 {
        self.0.insert(key, key, after).expect("a new key");
        key
    }

    fn remove(&self, key: u64) -> bool {
        self.0.remove(&key).is_some()
    }

    fn move_to(&self, key: u64, after: Duration) -> u64 {
        assert!(self.0.reset(&key, after));
        key
    }

    fn take(&self) -> Option<u64> {
        self.0.try_recv().ok().map(|expired| expired.key)
    }
}

/// A multiplication, as hashers for numbers use it.
#[derive(Clone, Default)]
pub(crate) struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

// ---------------------------------------------------------------- tokio-util

/// The handle is the queue's own.
struct Theirs(Mutex<DelayQueue<u64>>);

impl Queue for Theirs {
    type Handle = Key;

    fn insert(&self, key: u64, after: Duration) -> Key {
        self.0.lock().insert(key, after)
    }

    fn remove(&self, handle: Key) -> bool {
        self.0.lock().remove(&handle);
        true
    }

    fn move_to(&self, handle: Key, after: Duration) -> Key {
        self.0.lock().reset(&handle, after);
        handle
    }

    fn take(&self) -> Option<u64> {
        match self.0.lock().poll_expired(&mut idle_context()) {
            Poll::Ready(expired) => expired.map(tokio_util::time::delay_queue::Expired::into_inner),
            Poll::Pending => None,
        }
    }
}

/// With a map from the user's keys.
struct TheirsKeyed(Mutex<(DelayQueue<u64>, HashMap<u64, Key>)>);

impl Queue for TheirsKeyed {
    type Handle = u64;

    fn insert(&self, key: u64, after: Duration) -> u64 {
        let (queue, keys) = &mut *self.0.lock();
        keys.insert(key, queue.insert(key, after));
        key
    }

    fn remove(&self, key: u64) -> bool {
        let (queue, keys) = &mut *self.0.lock();
        keys.remove(&key).is_some_and(|handle| {
            queue.remove(&handle);
            true
        })
    }

    fn move_to(&self, key: u64, after: Duration) -> u64 {
        let (queue, keys) = &mut *self.0.lock();
        queue.reset(&keys[&key], after);
        key
    }

    fn take(&self) -> Option<u64> {
        let (queue, keys) = &mut *self.0.lock();
        let Poll::Ready(Some(expired)) = queue.poll_expired(&mut idle_context()) else { return None };
        keys.remove(expired.get_ref());
        Some(expired.into_inner())
    }
}

// ---------------------------------------------------------------- a sorted map, and a heap, with a condition variable

/// Unkeyed: the user keeps due time and number.
#[derive(Default)]
struct Sorted {
    entries: Mutex<BTreeMap<(Instant, u64), u64>>,
    earlier: Condvar,
}

impl Queue for Sorted {
    type Handle = (Instant, u64);

    fn insert(&self, key: u64, after: Duration) -> (Instant, u64) {
        let handle = (Instant::now() + after, key);
        let mut entries = self.entries.lock();
        if entries.first_key_value().is_none_or(|(first, _)| handle < *first) {
            self.earlier.notify_one();
        }
        entries.insert(handle, key);
        handle
    }

    fn remove(&self, handle: (Instant, u64)) -> bool {
        self.entries.lock().remove(&handle).is_some()
    }

    fn move_to(&self, handle: (Instant, u64), after: Duration) -> (Instant, u64) {
        let to = (Instant::now() + after, handle.1);
        let mut entries = self.entries.lock();
        let value = entries.remove(&handle).expect("pending");
        entries.insert(to, value);
        to
    }

    fn take(&self) -> Option<u64> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let first = entries.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

type Order = BinaryHeap<Reverse<(Instant, u64)>>;

/// Keyed, with removed and moved entries left in the heap until they are at its top.
#[derive(Default)]
struct Heap {
    entries: Mutex<(Order, HashMap<u64, Instant>)>,
    earlier: Condvar,
}

impl Queue for Heap {
    type Handle = u64;

    fn insert(&self, key: u64, after: Duration) -> u64 {
        let due = Instant::now() + after;
        let (heap, live) = &mut *self.entries.lock();
        if heap.peek().is_none_or(|first| due < first.0.0) {
            self.earlier.notify_one();
        }
        heap.push(Reverse((due, key)));
        live.insert(key, due);
        // Without this, a program that removes most entries fills the memory.
        if heap.len() > 2 * live.len() + 64 {
            heap.retain(|Reverse((due, key))| live.get(key) == Some(due));
        }
        key
    }

    fn remove(&self, key: u64) -> bool {
        self.entries.lock().1.remove(&key).is_some()
    }

    fn move_to(&self, key: u64, after: Duration) -> u64 {
        self.insert(key, after)
    }

    fn take(&self) -> Option<u64> {
        let now = Instant::now();
        let (heap, live) = &mut *self.entries.lock();
        while let Some(&Reverse((due, key))) = heap.peek().filter(|first| first.0.0 <= now) {
            heap.pop();
            if live.get(&key) == Some(&due) {
                live.remove(&key);
                return Some(key);
            }
        }
        None
    }
}

// ---------------------------------------------------------------- the workloads

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(1) };
}

/// 600 to 660 s, as of the pending entries; cheap.
fn some_delay() -> Duration {
    let next = RANDOM.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    RANDOM.set(next);
    NEAREST + Duration::from_nanos((next >> 20) % 60_000_000_000)
}

fn fill(queue: &impl Queue, entries: usize) {
    let mut random = Random::new(7);
    for _ in 0..entries {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        queue.insert(key, random.between(NEAREST, NEAREST + Duration::from_secs(60)));
    }
}

/// The operations of a title, each `times` times.
fn operate<Q: Queue>(id: &str, queue: &Q, times: u64) -> Duration {
    let mut key = NEXT_KEY.fetch_add(times + 1, Ordering::Relaxed);
    match id {
        "Q1" => repeat(times, || {
            let handle = queue.insert(black_box(key), some_delay());
            assert!(queue.remove(black_box(handle)));
            key += 1;
        }),
        "Q2" => {
            let mut handle = queue.insert(key, some_delay());
            let took = repeat(times, || handle = queue.move_to(black_box(handle), some_delay()));
            assert!(queue.remove(handle));
            took
        }
        _ => {
            for _ in 0..times {
                queue.insert(key, Duration::ZERO);
                key += 1;
            }
            // A queue that counts in milliseconds has the entries due a little later.
            std::thread::sleep(Duration::from_millis(3));
            repeat(times, || while queue.take().is_none() {})
        }
    }
}

fn cases<'a, Q: Queue + 'a>(id: &'static str, name: &'static str, queue: Q, place: Place<'a>) -> Vec<Case<'a>> {
    let queue = Arc::new(queue);
    (1..=THREADS)
        .map(|threads| {
            let queue = Arc::clone(&queue);
            Case::new(name, threads, move |times| {
                place.time(threads, |lane| {
                    lane.ready();
                    operate(id, &*queue, times)
                })
            })
        })
        .collect()
}

fn filled<Q: Queue>(queue: Q, entries: usize) -> Q {
    fill(&queue, entries);
    queue
}

fn workload(session: &mut Session, id: &'static str, title: &str, pending: usize) {
    let tokio = Tokio::new(Some(HEARTBEAT));
    let runtime = Runtime::builder().start().expect("the system has threads");
    let multi = Place::Multi(&tokio.multi);
    let quick = BuildHasherDefault::<Quick>::default();
    let theirs = || multi.enter(0, || filled(Theirs(Mutex::new(DelayQueue::new())), pending));
    let keyed = || TheirsKeyed(Mutex::new((DelayQueue::new(), HashMap::new())));
    let all = [
        cases(
            id,
            "timerqueue DelayQueue, keyed",
            filled(Ours(timerqueue::DelayQueue::on(&runtime)), pending),
            Place::Thread,
        ),
        cases(
            id,
            "timerqueue DelayQueue, keyed, a quick hasher",
            filled(Ours(DelayQueueBuilder::on(&runtime).hasher(quick).build()), pending),
            Place::Thread,
        ),
        cases(id, "tokio-util DelayQueue and a mutex, unkeyed", theirs(), multi),
        cases(
            id,
            "tokio-util DelayQueue, HashMap and a mutex, keyed",
            multi.enter(0, || filled(keyed(), pending)),
            multi,
        ),
        cases(id, "BTreeMap, mutex and condvar, unkeyed", filled(Sorted::default(), pending), Place::Thread),
        cases(id, "heap, HashMap, mutex and condvar, keyed", filled(Heap::default(), pending), Place::Thread),
    ];
    session.measure(id, title, &all.into_iter().flatten().collect::<Vec<_>>());
    drivers::measure(session, id, title, &Task::new(id, &[("pending", pending as u64)]), |_| None);
}

/// Runs the wanted workloads once.
pub(crate) fn round(session: &mut Session, wants: impl Fn(&str) -> bool) {
    for pending in PENDING {
        for (id, what) in [("Q1", "insert and remove an entry"), ("Q2", "move an entry"), ("Q3", "take a due entry")] {
            if wants(id) {
                workload(session, id, &format!("{what}, {pending} pending"), pending);
            }
        }
    }
}
