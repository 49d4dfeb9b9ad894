//! The inbox of a pool: the jobs that no worker has taken up yet.
//!
//! Ground rules. Any thread pushes, and workers take. Under the lock nothing is allocated or freed,
//! and no job is dropped.
//!
//! Why a lock: in a list without one a thread that takes a job waits in a loop for the thread that
//! is just pushing it. If the former has real-time priority, and the latter has none and no
//! processor, that takes as long as the system lets the loop run (a second on Linux). A thread that
//! finds a lock taken soon sleeps.

use std::collections::{LinkedList, VecDeque};

use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicUsize, Mutex};

const BLOCK: usize = 64;
/// Jobs in order, in blocks of at most [`BLOCK`]: so they never move, and blocks come and go
/// without an allocation under the lock. There is at least one block, and none of several is empty.
type Blocks<J> = LinkedList<VecDeque<J>>;

/// A single block, empty.
fn block<J>() -> Blocks<J> {
    let mut blocks = LinkedList::new();
    blocks.push_back(VecDeque::with_capacity(BLOCK));
    blocks
}

/// Takes a job. With the last job of a block that is not the only one, the block is put into
/// `emptied`.
fn pop<J>(jobs: &mut Blocks<J>, emptied: &mut Blocks<J>) -> Option<J> {
    let block = jobs.front_mut()?;
    let job = block.pop_front();
    if block.is_empty() && jobs.len() > 1 {
        let rest = jobs.split_off(1);
        emptied.append(&mut std::mem::replace(jobs, rest));
    }
    job
}

pub(super) struct Inbox<J> {
    /// The number of jobs; written with the lock held. The last look before a thread rests, and
    /// that of the thread that stops the pool, follow a fence, as does what a thread does after a
    /// push (I14). Other looks may miss a job.
    len: AtomicUsize,
    jobs: Mutex<Blocks<J>>,
}

impl<J> Inbox<J> {
    pub(super) fn new() -> Self {
        Self { len: AtomicUsize::new(0), jobs: Mutex::new(block()) }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&self, job: J) {
        let mut fresh = LinkedList::new(); // made and dropped without the lock
        loop {
            let mut jobs = self.jobs.lock();
            if jobs.back().is_some_and(|last| last.len() == BLOCK) {
                jobs.append(&mut fresh);
            }
            match jobs.back_mut().filter(|last| last.len() < BLOCK) {
                Some(last) => {
                    last.push_back(job);
                    return self.len.store(self.len() + 1, Ordering::Relaxed);
                }
                None => drop(jobs),
            }
            fresh = block();
        }
    }

    /// Takes a job, and gives up to `more` of the next, half of all at most, to `put`.
    pub(super) fn take(&self, more: usize, put: &mut dyn FnMut(J)) -> Option<J> {
        if self.is_empty() {
            return None;
        }
        let mut emptied = LinkedList::new(); // dropped after the lock
        let mut jobs = self.jobs.lock();
        let first = pop(&mut jobs, &mut emptied)?;
        let left = self.len() - 1;
        let more = more.min(left.div_ceil(2));
        (0..more).filter_map(|_| pop(&mut jobs, &mut emptied)).for_each(put);
        self.len.store(left - more, Ordering::Relaxed);
        drop(jobs);
        Some(first)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

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
            let first = inbox.take((random >> 50) as usize % 60, &mut |job| more.push(job));
            assert_eq!(first, model.pop_front());
            assert!(more.len() <= model.len().div_ceil(2), "half is left to others");
            for job in more {
                assert_eq!(Some(job), model.pop_front());
            }
            assert_eq!((inbox.len(), inbox.is_empty()), (model.len(), model.is_empty()));
            let blocks = &*inbox.jobs.lock();
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
                    all.extend(inbox.take(room.min(32), &mut |job| more.push(job)));
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
}
