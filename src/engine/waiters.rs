//! The wakers of tasks and threads that wait for the end of a timer: a list for each timer with
//! waiters.
//!
//! Ground rules. Each queue has a [`Waiters`], with its own leaf lock, held for a single search.
//! The lock of the queue is not taken, so waiters make no timer late. Wakers are cloned, woken and
//! dropped outside of the lock.
//!
//! First polls, later polls and drops cost a search, for any number of waiters. The end of a timer
//! takes its waiters out one by one. A timer without waiters ends without a look here.
//!
//! The state word decides the order. A waiter sets `WAITED` and is listed in the same lock section.
//! The thread that ends the timer sets `DROPPED` and then, if `WAITED` is set, takes the list. If
//! `WAITED` came first, the ending thread finds the waiter in the list. If `DROPPED` came first,
//! the waiter finds `DROPPED` and is not listed.

use std::task::Waker;

use super::EntryRef;
use crate::ordered_map::{Key, WakerMap};
use crate::sync::Mutex;
use crate::unwind::contain_drop;

/// See the module's ground rules.
pub(crate) struct Waiters(Mutex<Lists>);

struct Lists {
    /// By the address of a timer's entry, which stays allocated while a waiter refers to the entry
    /// (I15), and by the number of the waiter. Made with the first waiter.
    wakers: Option<Box<dyn Wakers>>,
    next_waiter: u64,
}

/// A [`WakerMap`], called by its table: so a program without waiters is not linked with a tree.
trait Wakers: Send {
    fn insert(&mut self, key: Key, waker: Waker) -> Option<Waker>;

    fn remove(&mut self, key: Key) -> Option<Waker>;

    /// The first key that is not before `key`.
    fn first_from(&self, key: Key) -> Option<Key>;
}

impl Wakers for WakerMap {
    fn insert(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        Self::insert(self, key, waker)
    }

    fn remove(&mut self, key: Key) -> Option<Waker> {
        Self::remove(self, key)
    }

    fn first_from(&self, key: Key) -> Option<Key> {
        self.keys().first_from(key).map(|(key, _)| key)
    }
}

fn key(timer: &EntryRef, waiter: u64) -> Key {
    (timer.address().addr() as u64, waiter)
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Lists { wakers: None, next_waiter: 0 }))
    }

    /// Has `waker` woken at the end of `timer`, instead of an earlier waker of the same waiter:
    /// `waiter` identifies the waiter from the first call on. False: the timer has ended.
    #[must_use]
    pub(crate) fn wait(&self, timer: &EntryRef, waiter: &mut Option<u64>, waker: Waker) -> bool {
        let mut lists = self.0.lock();
        let waits = !timer.get().state.wait_for_dropped();
        let unused = if waits {
            let next = lists.next_waiter;
            lists.next_waiter += u64::from(waiter.is_none());
            let wakers = lists.wakers.get_or_insert_with(|| Box::new(WakerMap::new()));
            wakers.insert(key(timer, *waiter.get_or_insert(next)), waker)
        } else {
            Some(waker)
        };
        drop(lists);
        contain_drop(&timer.shard().number, unused);
        waits
    }

    /// A waiter gives up, or has been woken.
    pub(crate) fn leave(&self, timer: &EntryRef, waiter: u64) {
        let waker = self.0.lock().wakers.as_mut().and_then(|wakers| wakers.remove(key(timer, waiter)));
        contain_drop(&timer.shard().number, waker);
    }

    /// Takes the wakers of all waiters for `timer`, one at a time. Caller: has set `DROPPED`, so
    /// that no waiter is added.
    pub(crate) fn take<'a>(&'a self, timer: &'a EntryRef) -> impl Iterator<Item = Waker> + 'a {
        std::iter::from_fn(move || {
            let mut lists = self.0.lock();
            let wakers = lists.wakers.as_mut()?;
            let first = wakers.first_from(key(timer, 0))?;
            if first == key(timer, first.1) { wakers.remove(first) } else { None }
        })
    }

    /// The numbers of waiters, and of timers with waiters.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, usize) {
        let lists = self.0.lock();
        let Some(wakers) = &lists.wakers else { return (0, 0) };
        let ((mut waiters, mut timers), mut last) = ((0, 0), 0);
        let mut next = wakers.first_from((0, 0));
        while let Some((timer, waiter)) = next {
            (waiters, timers) = (waiters + 1, timers + usize::from(timer != last));
            (next, last) = (wakers.first_from((timer, waiter + 1)), timer);
        }
        (waiters, timers)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::task::{Context, Poll, Wake};
    use std::time::Duration;

    use crate::{ManualClock, Runtime, Timer, Waited, futures::Disposal};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Counts the calls.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(waiting: &mut Disposal, bell: &Arc<Bell>) -> Poll<Waited> {
        Pin::new(waiting).poll(&mut Context::from_waker(&Arc::clone(bell).into()))
    }

    /// A timer whose callback runs, on another thread, until the sender is used.
    fn running(clock: &ManualClock, runtime: &Runtime) -> (Timer, mpsc::Sender<()>, std::thread::JoinHandle<u64>) {
        let (go, wait) = mpsc::channel();
        let (began, begins) = mpsc::channel();
        let wait = std::sync::Mutex::new(wait);
        let timer = Timer::on(runtime, Duration::ZERO, Duration::ZERO, move |_| {
            began.send(()).expect("the test listens");
            wait.lock().expect("once").recv().expect("the test says when");
        });
        let clock = clock.clone();
        let driver = std::thread::spawn(move || clock.advance(Duration::ZERO));
        begins.recv_timeout(PATIENCE).expect("the callback begins");
        (timer, go, driver)
    }

    /// First and later polls, drops, and the end of the timer all go on while another thread holds
    /// the lock of the queue.
    #[test]
    fn s30_waiting_for_the_end_of_a_timer_does_not_take_the_lock_of_its_queue() {
        const MANY: usize = 1_000;
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let (timer, go, driver) = running(&clock, &runtime);
        timer.dispose();
        let mut waiting: Vec<Disposal> = (0..MANY).map(|_| timer.dispose_async()).collect();
        let engine = runtime.engine();
        let shard = engine.shards().next().expect("one queue");
        let (done, is_done) = mpsc::channel();
        let queue = shard.lock();
        let other = std::thread::spawn(move || {
            let (bell, late) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
            waiting.iter_mut().for_each(|waiting| assert!(poll(waiting, &bell).is_pending()));
            waiting.iter_mut().take(MANY / 2).for_each(|waiting| assert!(poll(waiting, &late).is_pending()));
            drop(waiting.drain(..MANY / 4));
            drop(waiting.drain(MANY / 2..));
            go.send(()).expect("the callback waits");
            while bell.0.load(Ordering::SeqCst) + late.0.load(Ordering::SeqCst) < MANY / 2 {
                std::thread::yield_now();
            }
            assert!(waiting.iter_mut().all(|waiting| poll(waiting, &bell).is_ready()));
            drop(waiting);
            done.send((bell, late)).expect("the test listens");
        });
        let bells = is_done.recv_timeout(PATIENCE).expect("nothing waits for the lock of the queue");
        drop(queue);
        other.join().expect("no panic");
        driver.join().expect("no panic");
        assert_eq!([bells.0, bells.1].map(|bell| bell.0.load(Ordering::SeqCst)), [MANY / 4, MANY / 4]);
        assert_eq!(shard.waiters.count(), (0, 0));
    }

    /// The end of a timer takes the list of its own waiters, and leaves the waiters of another
    /// timer.
    #[test]
    fn s21_the_end_of_a_timer_wakes_its_own_waiters() {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let (one, end_one, driver) = running(&clock, &runtime);
        let shard = runtime.engine().shards().next().expect("one queue");
        let (mut first, mut second) = (one.dispose_async(), one.dispose_async());
        // The third waiter is of another timer: another thread is dropping the payload.
        let (go, wait) = mpsc::channel();
        struct Slow(std::sync::Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);
        impl Drop for Slow {
            fn drop(&mut self) {
                self.1.send(()).expect("the test listens");
                self.0.lock().expect("once").recv().expect("the test says when");
            }
        }
        let (began, begins) = mpsc::channel();
        let slow = Slow(std::sync::Mutex::new(wait), began);
        let other = Arc::new(Timer::on(&runtime, Duration::MAX, Duration::MAX, move |_| drop(slow.1.clone())));
        let disposer = std::thread::spawn({
            let other = Arc::clone(&other);
            move || other.dispose()
        });
        begins.recv_timeout(PATIENCE).expect("the destructor begins");
        let mut third = other.dispose_async();
        let bells: [Arc<Bell>; 3] = Default::default();
        let rings = || bells.iter().map(|bell| bell.0.load(Ordering::SeqCst)).collect::<Vec<_>>();
        for (waiting, bell) in [&mut first, &mut second, &mut third].into_iter().zip(&bells) {
            assert!(poll(waiting, bell).is_pending());
        }
        assert_eq!(shard.waiters.count(), (3, 2));
        end_one.send(()).expect("the callback waits");
        driver.join().expect("no panic");
        assert_eq!((rings(), shard.waiters.count()), (vec![1, 1, 0], (1, 1)));
        assert!(poll(&mut first, &bells[0]).is_ready() && poll(&mut third, &bells[2]).is_pending());
        drop(third);
        assert_eq!(shard.waiters.count(), (0, 0), "given up");
        go.send(()).expect("the destructor waits");
        disposer.join().expect("no panic");
        assert_eq!(rings(), [1, 1, 0]);
    }
}
