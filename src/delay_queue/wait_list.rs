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

    pub(super) fn notified(&self) -> usize {
        self.notified
    }

    /// Waiters that sleep.
    pub(super) fn asleep(&self) -> usize {
        self.asleep.keys().len()
    }

    /// Whether a waiter sleeps with a waker that wakes the same task.
    pub(super) fn sleeps_with(&self, ticket: Option<u64>, waker: &Waker) -> bool {
        ticket.is_some_and(|ticket| self.asleep.has(key(ticket), waker))
    }

    /// Lets a waiter sleep, at the end of the list if it has no ticket yet. Returns the ticket and
    /// the waiter's former waker.
    pub(super) fn sleep(&mut self, ticket: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let own = ticket.unwrap_or(self.next_ticket);
        let before = self.asleep.insert(key(own), waker);
        match ticket {
            None => self.next_ticket += 1,
            Some(_) => self.notified -= usize::from(before.is_none()),
        }
        (own, before)
    }

    /// Notifies the first waiter that sleeps.
    pub(super) fn notify(&mut self) -> Option<Waker> {
        let waker = self.asleep.pop_first()?;
        self.notified += 1;
        Some(waker)
    }

    /// Removes a waiter. Returns its waker; `None`: it was notified.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<Waker> {
        let waker = self.asleep.remove(key(ticket));
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
        assert!(
            list.leave(tickets[0]).is_none() && list.leave(tickets[2]).is_some() && list.leave(tickets[1]).is_none()
        );
        assert!(list.is_empty() && list.notified() == 0 && list.notify().is_none());
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
        (0..MANY).for_each(|ticket| assert!(list.leave(ticket).is_none()));
        assert!(list.notify().is_some() && list.leave(late).is_none() && list.is_empty());
    }

    /// With a search, or with a shift of the waiters behind the one that leaves, these are more
    /// than ten billion steps.
    #[test]
    fn waiters_that_leave_from_the_middle_cost_nothing() {
        const MANY: u64 = 400_000;
        let mut list = WaitList::default();
        (0..MANY).for_each(|_| _ = list.sleep(None, waker()));
        for i in 0..MANY / 2 {
            let (before, after) = (MANY / 2 - 1 - i, MANY / 2 + i);
            assert!(list.leave(before).is_some() && list.leave(after).is_some());
        }
        assert!(list.is_empty());
    }

    /// A search for the first that sleeps passes over the others each time: these are more than ten
    /// billion steps.
    #[test]
    fn waiters_that_do_not_look_cost_nothing_when_the_first_sleeps_again() {
        const MANY: u64 = 150_000;
        let mut list = WaitList::default();
        (0..MANY).for_each(|_| _ = list.sleep(None, waker()));
        (0..MANY).for_each(|_| assert!(list.notify().is_some()));
        let (late, _) = list.sleep(None, waker());
        for _ in 0..MANY {
            list.sleep(Some(0), waker());
            assert!(list.notify().is_some() && !list.sleeps_with(Some(0), &waker()), "the first is notified first");
            assert!(list.notify().is_some());
            list.sleep(Some(late), waker());
        }
    }
}
