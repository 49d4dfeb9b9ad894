//! The list of waiting receivers, or of waiting inserters: wakers in the order in which the waits
//! began.
//!
//! Ground rules. Under the lock of the queue. Wakers go in and come out, and are cloned, called and
//! dropped by the caller outside of the lock. A *notified* waiter has been given a wake-up and has
//! not looked since. It keeps its ticket: if it finds no entry, it sleeps in its old place, before
//! all later waiters. A waiter that leaves while notified passes the wake-up on; that is the
//! caller's duty.
//!
//! The list has the sleeping waiters alone: a waiter with a ticket that is not in the list is
//! notified. So no operation passes over waiters, however many there are, and a waiter that leaves
//! gives its memory back.

use std::task::Waker;

use crate::ordered_map::{Key, WakerMap};

/// See the module's ground rules.
#[derive(Default)]
pub(super) struct WaitList {
    /// The sleeping waiters, by ticket.
    asleep: WakerMap,
    notified: usize,
    next_ticket: u64,
}

impl WaitList {
    pub(super) fn is_empty(&self) -> bool {
        self.asleep.keys().is_empty() && self.notified == 0
    }

    /// Waiters that sleep.
    pub(super) fn asleep(&self) -> usize {
        self.asleep.keys().len()
    }

    /// Whether a waiter sleeps with a waker that wakes the same task.
    pub(super) fn sleeps_with(&self, ticket: Option<u64>, waker: &Waker) -> bool {
        ticket.is_some_and(|ticket| self.asleep.has(key(ticket), waker))
    }

    /// Lets a waiter sleep. One without a ticket gets the next one, the end of the list. Returns
    /// the waiter's former waker.
    pub(super) fn sleep(&mut self, ticket: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let is_new = ticket.is_none();
        let before = self.asleep.insert(key(*ticket.get_or_insert(self.next_ticket)), waker);
        self.next_ticket += u64::from(is_new);
        self.notified -= usize::from(!is_new && before.is_none());
        before
    }

    /// Notifies the first waiter that sleeps.
    fn notify(&mut self) -> Option<Waker> {
        let waker = self.asleep.pop_first()?;
        self.notified += 1;
        Some(waker)
    }

    /// Notifies waiters that sleep, until `most` are notified, and `more` by this call. Puts their
    /// wakers into `wake`.
    pub(super) fn notify_up_to(&mut self, most: usize, mut more: usize, wake: &mut Vec<Waker>) {
        while self.notified < most || more > 0 {
            let Some(waker) = self.notify() else { break };
            wake.push(waker);
            more = more.saturating_sub(1);
        }
    }

    /// Removes a waiter. Returns its waker; `None`: it was notified, or has no ticket.
    pub(super) fn leave(&mut self, ticket: &mut Option<u64>) -> Option<Waker> {
        let waker = self.asleep.remove(key(ticket.take()?));
        self.notified -= usize::from(waker.is_none());
        waker
    }
}

fn key(ticket: u64) -> Key {
    (ticket, 0)
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn waker() -> Waker {
        Waker::noop().clone()
    }

    /// A new waiter, which sleeps.
    fn sleeper(list: &mut WaitList) -> Option<u64> {
        let mut ticket = None;
        assert!(list.sleep(&mut ticket, waker()).is_none());
        ticket
    }

    #[test]
    fn waiters_are_notified_in_order_and_keep_their_place() {
        let mut list = WaitList::default();
        let mut tickets = [(); 3].map(|()| sleeper(&mut list));
        assert!(list.notify().is_some() && list.notify().is_some());
        assert_eq!((list.notified, list.asleep()), (2, 1));
        // The first finds nothing, sleeps again, and is the first again.
        assert!(list.sleep(&mut tickets[0], waker()).is_none());
        assert_eq!((list.notified, list.asleep()), (1, 2));
        assert!(list.notify().is_some());
        assert!(list.sleeps_with(tickets[2], &waker()) && !list.sleeps_with(tickets[0], &waker()));
        assert_eq!([0, 2, 1, 1].map(|i| list.leave(&mut tickets[i]).is_some()), [false, true, false, false]);
        assert!(list.is_empty() && list.notified == 0 && list.notify().is_none());
    }

    /// With a search from the front, these are some ten billion steps.
    #[test]
    fn waiters_that_were_notified_and_do_not_look_cost_nothing() {
        const MANY: u64 = 150_000;
        let mut list = WaitList::default();
        for _ in 0..MANY {
            sleeper(&mut list);
        }
        for ticket in 0..MANY {
            assert!(list.notify().is_some() && !list.sleeps_with(Some(ticket), &waker()));
        }
        let mut late = sleeper(&mut list);
        for _ in 0..MANY {
            assert!(list.notify().is_some() && list.notify().is_none());
            list.sleep(&mut late, waker());
        }
        // One at the front that sleeps again is the first.
        list.sleep(&mut Some(3), waker());
        assert!(list.notify().is_some() && list.sleeps_with(late, &waker()));
        (0..MANY).for_each(|ticket| assert!(list.leave(&mut Some(ticket)).is_none()));
        assert!(list.notify().is_some() && list.leave(&mut late).is_none() && list.is_empty());
    }

    /// With a search, or with a shift of the waiters behind the one that leaves, these are more
    /// than ten billion steps.
    #[test]
    fn waiters_that_leave_from_the_middle_cost_nothing() {
        const MANY: u64 = 400_000;
        let mut list = WaitList::default();
        (0..MANY).for_each(|_| _ = sleeper(&mut list));
        for i in 0..MANY / 2 {
            let (before, after) = (MANY / 2 - 1 - i, MANY / 2 + i);
            assert!(list.leave(&mut Some(before)).is_some() && list.leave(&mut Some(after)).is_some());
        }
        assert!(list.is_empty());
    }

    /// A search for the first that sleeps passes over the others each time: these are more than ten
    /// billion steps.
    #[test]
    fn waiters_that_do_not_look_cost_nothing_when_the_first_sleeps_again() {
        const MANY: u64 = 150_000;
        let mut list = WaitList::default();
        (0..MANY).for_each(|_| _ = sleeper(&mut list));
        (0..MANY).for_each(|_| assert!(list.notify().is_some()));
        let mut late = sleeper(&mut list);
        for _ in 0..MANY {
            list.sleep(&mut Some(0), waker());
            assert!(list.notify().is_some() && !list.sleeps_with(Some(0), &waker()), "the first is notified first");
            assert!(list.notify().is_some());
            list.sleep(&mut late, waker());
        }
    }
}
