//! The list of waiting receivers, or of waiting inserters: wakers in the order in which the waits began.
//!
//! Ground rules. Under the lock of the queue. Wakers go in and come out, and are cloned, called and dropped by the caller outside
//! of the lock. A *notified* waiter has been given a wake-up and has not looked since. It keeps its place: if it finds no entry,
//! it is the first to be notified again. A waiter that leaves while notified passes the wake-up on; that is the caller's duty.

use std::collections::VecDeque;
use std::task::Waker;

struct Waiter {
    ticket: u64,
    /// `None`: notified.
    waker: Option<Waker>,
}

/// See the module's ground rules.
#[derive(Default)]
pub(super) struct WaitList {
    /// By ticket, ascending.
    waiters: VecDeque<Waiter>,
    notified: usize,
    /// All waiters before this place are notified. So waiters that do not look, perhaps forgotten, are not passed over again and again.
    first_asleep: usize,
    next_ticket: u64,
}

impl WaitList {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn notified(&self) -> usize {
        self.notified
    }

    /// Waiters that sleep.
    pub(super) fn asleep(&self) -> usize {
        self.waiters.len() - self.notified
    }

    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// Whether a waiter sleeps with a waker that wakes the same task.
    pub(super) fn sleeps_with(&self, ticket: Option<u64>, waker: &Waker) -> bool {
        let waiter = ticket.and_then(|ticket| self.position(ticket)).and_then(|at| self.waiters.get(at));
        waiter.and_then(|waiter| waiter.waker.as_ref()).is_some_and(|stored| stored.will_wake(waker))
    }

    /// Lets a waiter sleep, at the end of the list if it has no ticket yet. Returns the ticket and the waiter's former waker.
    pub(super) fn sleep(&mut self, ticket: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        if let Some((ticket, at)) = ticket.and_then(|ticket| Some((ticket, self.position(ticket)?))) {
            let before = self.waiters[at].waker.replace(waker);
            self.notified -= usize::from(before.is_none());
            self.first_asleep = self.first_asleep.min(at);
            return (ticket, before);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiters.push_back(Waiter { ticket, waker: Some(waker) });
        (ticket, None)
    }

    /// Notifies the first waiter that sleeps.
    pub(super) fn notify(&mut self) -> Option<Waker> {
        let asleep = self.waiters.range(self.first_asleep..).position(|waiter| waiter.waker.is_some());
        self.first_asleep += asleep.unwrap_or(self.waiters.len() - self.first_asleep);
        let waker = self.waiters.get_mut(self.first_asleep)?.waker.take();
        self.notified += 1;
        self.first_asleep += 1;
        waker
    }

    /// Removes a waiter. Returns whether it was notified, and its waker.
    pub(super) fn leave(&mut self, ticket: u64) -> (bool, Option<Waker>) {
        let Some(at) = self.position(ticket) else { return (false, None) };
        let Some(waiter) = self.waiters.remove(at) else { return (false, None) };
        self.first_asleep -= usize::from(at < self.first_asleep);
        let was_notified = waiter.waker.is_none();
        self.notified -= usize::from(was_notified);
        (was_notified, waiter.waker)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::noop().clone()
    }

    #[test]
    fn waiters_are_notified_in_order_and_keep_their_place() {
        let mut list = WaitList::default();
        let tickets: Vec<u64> = (0..3).map(|_| list.sleep(None, waker()).0).collect();
        assert!(list.notify().is_some() && list.notify().is_some());
        assert_eq!((list.notified(), list.asleep()), (2, 1));
        // The first finds nothing, sleeps again, and is the first again.
        assert!(list.sleep(Some(tickets[0]), waker()).1.is_none());
        assert_eq!((list.notified(), list.asleep()), (1, 2));
        assert!(list.notify().is_some());
        assert!(list.sleeps_with(Some(tickets[2]), &waker()) && !list.sleeps_with(Some(tickets[0]), &waker()));
        assert!(list.leave(tickets[0]).0 && !list.leave(tickets[2]).0 && list.leave(tickets[1]).0);
        assert!(list.is_empty() && list.notified() == 0 && list.notify().is_none() && !list.leave(7).0);
    }

    /// With a search from the front, these are some ten billion steps.
    #[test]
    fn waiters_that_were_notified_and_do_not_look_cost_nothing() {
        const MANY: u64 = 150_000;
        let mut list = WaitList::default();
        for _ in 0..MANY {
            list.sleep(None, waker());
        }
        for ticket in 0..MANY {
            assert!(list.notify().is_some() && !list.sleeps_with(Some(ticket), &waker()));
        }
        let (late, _) = list.sleep(None, waker());
        for _ in 0..MANY {
            assert!(list.notify().is_some() && list.notify().is_none());
            list.sleep(Some(late), waker());
        }
        // One at the front that sleeps again is the first.
        list.sleep(Some(3), waker());
        assert!(list.notify().is_some() && list.sleeps_with(Some(late), &waker()));
        (0..MANY).for_each(|ticket| assert!(list.leave(ticket).0));
        assert!(list.notify().is_some() && list.leave(late).0);
    }
}
