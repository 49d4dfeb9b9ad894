//! The inboxes of a pool: the jobs that no worker has taken up yet.
//!
//! Ground rules. An inbox is an injector of crossbeam: a list without a lock, which does not pin the epoch collector. Up to 47 workers there is
//! one inbox. Beyond that each [`SHARE`] workers add one, since all cores that submit jobs write to the same words of an inbox. A thread pushes
//! to the inbox of its core. A worker takes from the inbox of its core first, and then from all others: so no job depends on the workers
//! of some cores, and *no lost wake-up* (I14) needs only that a look goes through all inboxes. The core is a hint: any inbox is right.

use crossbeam_deque::{Injector, Steal, Worker};
use crossbeam_utils::CachePadded;

use super::{SHARE, until_settled};
use crate::sys::cpu;

pub(crate) struct Inboxes<J> {
    first: Injector<J>,
    /// Most pools have none.
    others: Box<[CachePadded<Injector<J>>]>,
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
        let others = (1..inboxes_for(workers)).map(|_| CachePadded::new(Injector::new())).collect();
        Self { first: Injector::new(), others }
    }

    /// The inbox of the calling thread's core.
    fn own(&self) -> usize {
        if self.others.is_empty() { 0 } else { cpu::current() / SHARE % (self.others.len() + 1) }
    }

    fn at(&self, inbox: usize) -> &Injector<J> {
        inbox.checked_sub(1).map_or(&self.first, |other| &self.others[other])
    }

    fn all(&self) -> impl Iterator<Item = &Injector<J>> {
        std::iter::once(&self.first).chain(self.others.iter().map(|inbox| &**inbox))
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
        self.all().map(Injector::len).sum()
    }

    /// Takes a job, and moves some more to this deque; from the own inbox, or else from the next with jobs.
    pub(crate) fn take_some(&self, deque: &Worker<J>) -> Option<J> {
        self.take_from(self.own(), |inbox| inbox.steal_batch_and_pop(deque))
    }

    /// Takes a job from the first inbox with jobs, beginning with another one for each `turn`: so no inbox starves.
    pub(crate) fn take_one(&self, turn: usize) -> Option<J> {
        let from = if self.others.is_empty() { 0 } else { turn % (self.others.len() + 1) };
        self.take_from(from, Injector::steal)
    }

    fn take_from(&self, from: usize, steal: impl Fn(&Injector<J>) -> Steal<J>) -> Option<J> {
        // An attempt has a fence, so an inbox is looked at first.
        let take = |inbox| {
            let inbox = self.at(inbox);
            if inbox.is_empty() { None } else { until_settled(|| steal(inbox)) }
        };
        take(from).or_else(|| (0..=self.others.len()).filter(|&inbox| inbox != from).find_map(take))
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    /// More than two, in any build.
    const MANY: usize = 5 * SHARE;

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
