//! The inboxes of a pool: the jobs that no worker has taken up yet.
//!
//! Ground rules. Up to 47 workers there is one inbox. Beyond that each [`SHARE`] workers add one,
//! since all cores that submit jobs write to the same words of an inbox. A thread pushes to the
//! inbox of its core. A worker takes from the inbox of its core first, and then from all others: so
//! no job depends on the workers of some cores, and *no lost wake-up* (I14) needs only that a look
//! goes through all inboxes. The core is a hint: any inbox is right.
//!
//! Why a lock: in a list without one a thread that takes a job waits in a loop for the thread that
//! is just pushing it. If the former has real-time priority, and the latter has none and no
//! processor, that takes as long as the system lets the loop run (a second on Linux). A thread that
//! finds a lock taken soon sleeps. Under the lock nothing is allocated or freed, and no job is
//! dropped.

use std::collections::{LinkedList, VecDeque};

use crossbeam_deque::Worker;
use crossbeam_utils::CachePadded;

use super::SHARE;
use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicUsize, Mutex};
use crate::sys::cpu;
use crate::sys::os::fetch_line;

/// The most jobs that a worker moves to its deque at once. A worker does so only when its deque is
/// empty, and the deque has room for so many.
const AT_ONCE: usize = 32;

const BLOCK: usize = 64;
/// Jobs in order, in blocks of at most [`BLOCK`]: so they never move, and blocks come and go
/// without an allocation under the lock.
type Blocks<J> = LinkedList<VecDeque<J>>;

/// There is at least one block, and none of several is empty.
struct Jobs<J>(Blocks<J>);

impl<J> Jobs<J> {
    /// A single block, empty.
    fn new() -> Self {
        Self(LinkedList::from([VecDeque::with_capacity(BLOCK)]))
    }

    /// If the last block is full, `fresh` becomes the last. `Err`: there is none.
    fn push(&mut self, job: J, fresh: &mut Blocks<J>) -> Result<(), J> {
        if self.0.back().is_some_and(|block| block.len() == BLOCK) {
            if fresh.is_empty() {
                return Err(job);
            }
            self.0.append(fresh);
        }
        let Some(block) = self.0.back_mut() else { return Err(job) };
        block.push_back(job);
        Ok(())
    }

    /// Takes a job. With the last job of a block that is not the only one, the block is put into
    /// `emptied`.
    fn pop(&mut self, emptied: &mut Blocks<J>) -> Option<J> {
        let block = self.0.front_mut()?;
        let job = block.pop_front();
        if block.is_empty() && self.0.len() > 1 {
            let rest = self.0.split_off(1);
            emptied.append(&mut std::mem::replace(&mut self.0, rest));
        }
        job
    }
}

struct Inbox<J> {
    /// The number of jobs; written with the lock held. The last look before a thread rests, and
    /// that of the thread that stops the pool, follow a fence, as does what a thread does after a
    /// push (I14). Other looks may miss a job.
    len: AtomicUsize,
    jobs: Mutex<Jobs<J>>,
}

impl<J> Inbox<J> {
    fn new() -> Self {
        Self { len: AtomicUsize::new(0), jobs: Mutex::new(Jobs::new()) }
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&self, mut job: J) {
        let mut fresh = LinkedList::new(); // made and dropped without the lock
        loop {
            let mut jobs = self.jobs.lock();
            match jobs.push(job, &mut fresh) {
                Ok(()) => return self.len.store(self.len() + 1, Ordering::Relaxed),
                Err(back) => job = back,
            }
            drop(jobs);
            fresh = Jobs::new().0;
        }
    }

    /// Takes a job, and gives up to `more` of the next, half of all at most, to `put`.
    fn take(&self, more: usize, mut put: impl FnMut(J)) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        let mut emptied = LinkedList::new(); // dropped after the lock
        let mut jobs = self.jobs.lock();
        let first = jobs.pop(&mut emptied)?;
        let left = self.len() - 1;
        let more = more.min(left.div_ceil(2));
        (0..more).filter_map(|_| jobs.pop(&mut emptied)).for_each(&mut put);
        self.len.store(left - more, Ordering::Relaxed);
        drop(jobs);
        Some(first)
    }
}

pub(crate) struct Inboxes<J> {
    /// On lines of its own: each look at another inbox reads `others`.
    first: CachePadded<Inbox<J>>,
    /// Most pools have none.
    others: Box<[CachePadded<Inbox<J>>]>,
}

/// The number of inboxes for so many workers.
fn inboxes_for(workers: usize) -> usize {
    match workers / SHARE {
        0..=2 => 1,
        inboxes => inboxes,
    }
}

impl<J> Inboxes<J> {
    pub(crate) fn new(workers: usize) -> Self {
        let others = (1..inboxes_for(workers)).map(|_| CachePadded::new(Inbox::new())).collect();
        Self { first: CachePadded::new(Inbox::new()), others }
    }

    /// The inbox of the calling thread's core.
    fn own(&self) -> usize {
        if self.others.is_empty() { 0 } else { cpu::current() / SHARE % (self.others.len() + 1) }
    }

    fn at(&self, inbox: usize) -> &Inbox<J> {
        inbox.checked_sub(1).map_or(&*self.first, |other| &*self.others[other])
    }

    fn all(&self) -> impl Iterator<Item = &Inbox<J>> {
        std::iter::once(&self.first).chain(&self.others).map(|inbox| &**inbox)
    }

    /// Prefetches the first inbox.
    pub(crate) fn fetch(&self) {
        fetch_line((&raw const self.first).cast());
    }

    pub(crate) fn push(&self, job: J) {
        self.push_to(self.own(), job);
    }

    pub(crate) fn push_to(&self, inbox: usize, job: J) {
        self.at(inbox).push(job);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.iter().all(|inbox| inbox.is_empty())
    }

    pub(crate) fn len(&self) -> usize {
        self.all().map(Inbox::len).sum()
    }

    /// Takes a job, and moves some more to this deque, which is empty; from the own inbox, or else
    /// from the next with jobs.
    pub(crate) fn take_some(&self, deque: &Worker<J>) -> Option<J> {
        self.take_from(self.own(), |inbox| inbox.take(AT_ONCE, |job| deque.push(job)))
    }

    /// Takes a job from the first inbox with jobs, beginning with another one for each `turn`: so
    /// no inbox starves.
    pub(crate) fn take_one(&self, turn: usize) -> Option<J> {
        let from = if self.others.is_empty() { 0 } else { turn % (self.others.len() + 1) };
        self.take_from(from, |inbox| inbox.take(0, |_| {}))
    }

    fn take_from(&self, from: usize, take: impl Fn(&Inbox<J>) -> Option<J>) -> Option<J> {
        let others = || (0..=self.others.len()).filter(|&inbox| inbox != from).find_map(|inbox| take(self.at(inbox)));
        take(self.at(from)).or_else(others)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    /// More than two, in any build.
    const MANY: usize = 5 * SHARE;

    #[test]
    fn jobs_are_taken_in_order_across_blocks() {
        let (inbox, mut model) = (Inbox::new(), VecDeque::new());
        let mut next = 0u64;
        let mut random = 1u64;
        for _ in 0..3_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Some rounds fill it, some empty it.
            let pushed = if random >> 63 == 0 { 90 } else { 10 };
            for _ in 0..(random >> 33) % pushed {
                inbox.push(next);
                model.push_back(next);
                next += 1;
            }
            let mut more = Vec::new();
            let first = inbox.take((random >> 50) as usize % 60, |job| more.push(job));
            assert_eq!(first, model.pop_front());
            assert!(more.len() <= model.len().div_ceil(2), "half is left to others");
            for job in more {
                assert_eq!(Some(job), model.pop_front());
            }
            assert_eq!((inbox.len(), inbox.is_empty()), (model.len(), model.is_empty()));
            let blocks = &inbox.jobs.lock().0;
            assert!(blocks.len() == 1 || blocks.iter().all(|block| !block.is_empty()), "an empty block between others");
            assert!(blocks.iter().all(|block| block.capacity() == BLOCK), "no block grows");
            assert!(blocks.len() <= model.len().div_ceil(BLOCK) + 1, "memory is given back");
        }
    }

    #[test]
    fn each_job_of_many_threads_is_taken_once() {
        const EACH: u64 = if cfg!(miri) { 200 } else { 30_000 };
        let inbox = Inbox::new();
        let taken: Vec<u64> = std::thread::scope(|scope| {
            for pusher in 0..3 {
                let inbox = &inbox;
                scope.spawn(move || (0..EACH).for_each(|i| inbox.push(pusher * EACH + i)));
            }
            let take = || {
                let mut all = Vec::new();
                while all.len() < EACH as usize {
                    let room = EACH as usize - all.len() - 1;
                    let mut more = Vec::new();
                    all.extend(inbox.take(room.min(AT_ONCE), |job| more.push(job)));
                    all.extend(more);
                }
                all
            };
            let takers = [0; 3].map(|_| scope.spawn(take));
            takers.into_iter().flat_map(|taker| taker.join().expect("no panic")).collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..3 * EACH) && inbox.is_empty());
    }

    #[test]
    fn there_is_one_inbox_up_to_47_workers_and_then_one_for_16() {
        let inboxes = |workers: usize| Inboxes::<u32>::new(workers).all().count();
        let expected = if SHARE == 1 { [1, 47, 48, 65, 257] } else { [1, 1, 3, 4, 16] };
        assert_eq!([1, 47, 48, 65, 257].map(inboxes), expected);
    }

    #[test]
    fn a_job_is_seen_and_taken_in_any_inbox() {
        let inboxes = Inboxes::new(MANY);
        let deque = Worker::new_fifo();
        assert_eq!((inboxes.is_empty(), inboxes.len()), (true, 0));
        for inbox in 0..5 {
            inboxes.push_to(inbox, inbox);
            assert_eq!((inboxes.is_empty(), inboxes.len()), (false, 1), "{inbox}");
            assert_eq!(inboxes.take_some(&deque), Some(inbox));
            inboxes.push_to(inbox, inbox);
            assert_eq!(inboxes.take_one(3), Some(inbox));
        }
        assert_eq!((inboxes.is_empty(), inboxes.take_one(0), inboxes.take_some(&deque)), (true, None, None));
    }

    #[test]
    fn the_own_inbox_comes_first_and_its_jobs_come_by_the_batch() {
        let inboxes = Inboxes::new(MANY);
        let deque = Worker::new_fifo();
        // The inbox of this thread's core may change under the test, so all have jobs.
        (0..5).for_each(|inbox| (0..8).for_each(|_| inboxes.push_to(inbox, inbox)));
        let first = inboxes.take_some(&deque);
        assert!(deque.len() > 1, "{}", deque.len());
        assert!(std::iter::from_fn(|| deque.pop()).all(|job| Some(job) == first), "all from one inbox");
        let own = inboxes.own();
        inboxes.push(5);
        assert!(own < 5 && inboxes.len() < 41);
    }

    #[test]
    fn s31_each_inbox_has_its_turn_while_others_are_full() {
        let inboxes = Inboxes::new(MANY);
        (0..5).for_each(|inbox| (0..9).for_each(|_| inboxes.push_to(inbox, inbox)));
        let taken: Vec<_> = (7..17).map(|turn| inboxes.take_one(turn)).collect();
        assert_eq!(taken, [2, 3, 4, 0, 1, 2, 3, 4, 0, 1].map(Some));
    }
}
