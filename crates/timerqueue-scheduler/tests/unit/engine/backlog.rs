//! Operations without an answer: a bounded number, and what waits for room.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::{Cancel, Change, Pending, Placed, Query, Revive};

const HOUR: Duration = Duration::from_secs(3_600);

fn scheduler(backlog: usize) -> (ManualClock, Gate, Scheduler) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    gate.holds_all.store(true, Ordering::SeqCst);
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone()).backlog(backlog);
    (clock, gate, builder.start().unwrap())
}

/// The answer that is there: the store answers in its call, and a wait for none would not end.
trait Now<T> {
    fn now(self) -> Result<T, Error>;
}

impl<T> Now<T> for Pending<T> {
    fn now(mut self) -> Result<T, Error> {
        let poll = Pin::new(&mut self).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(answer) = poll else { panic!("no answer") };
        answer
    }
}

fn is_busy<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Store { fault: Fault::Busy, .. }))
}

fn put(scheduler: &Scheduler, key: &str) -> Pending<Placed> {
    scheduler.put_to("log", &1).key(key).due(HOUR).send()
}

fn waiting(scheduler: &Scheduler, key: &str) -> Pending<Placed> {
    scheduler.put_to("log", &1).key(key).due(HOUR).wait_for_room().send()
}

fn keys(scheduler: &Scheduler) -> Vec<String> {
    let jobs = scheduler.list(Query::new()).now().unwrap();
    jobs.iter().map(|job| job.key.as_ref().to_owned()).collect()
}

#[test]
fn j27_what_has_no_room_is_refused_or_waits_in_its_order() {
    let (_clock, gate, scheduler) = scheduler(3);
    let mut first = vec![put(&scheduler, "a"), put(&scheduler, "b")];
    let long = scheduler.put_to("log", &"x".repeat(5_000)).key("long").send(); // counts as two
    assert!(is_busy(long.now()));
    first.push(put(&scheduler, "c"));
    assert!(is_busy(put(&scheduler, "refused").now()));
    assert!(is_busy(scheduler.cancel("a").now()), "each change counts");
    let (given_up, mut kept) = (waiting(&scheduler, "given up"), waiting(&scheduler, "d"));
    let last = waiting(&scheduler, "e");
    assert!(is_busy(put(&scheduler, "refused").now()), "none goes before those that wait");
    drop(given_up);
    assert_eq!(keys(&scheduler), ["a", "b", "c"], "what waits has not begun");
    assert_eq!(gate.held_settles.lock().len(), 3);
    gate.release_one();
    assert_eq!(keys(&scheduler), ["a", "b", "c", "d"]);
    assert!(is_busy(put(&scheduler, "refused").now()));
    gate.release_one();
    assert_eq!(keys(&scheduler), ["a", "b", "c", "d", "e"]);
    gate.holds_all.store(false, Ordering::SeqCst);
    gate.release();
    first.extend([std::mem::replace(&mut kept, put(&scheduler, "f")), kept, last]);
    assert!(first.into_iter().all(|put| put.now().is_ok_and(|placed| placed.added().is_some())));
    assert_eq!(keys(&scheduler).len(), 6, "all room is free again");
}

#[test]
fn j27_each_change_by_a_handle_that_waits_has_its_turn() {
    let (_clock, gate, scheduler) = scheduler(1);
    let first = put(&scheduler, "a");
    let id = scheduler.list(Query::new()).now().unwrap()[0].id;
    let changes = |by: &Scheduler| {
        let edit = by.edit("a").priority(3).send();
        let handler = (by.pause_handler("log"), by.resume_handler("log"));
        let changes = [by.move_to("a", 2 * HOUR), edit, by.job(id).pause(), by.resume("a"), handler.0, handler.1];
        (changes, by.revive(id), by.discard(id), by.job(id).cancel(), put(by, "b"), by.put_many([by.put_to("log", &2)]))
    };
    let patient = scheduler.waiting_for_room();
    let (changed, revived, discarded, cancelled, placed, many) = changes(&patient);
    let refused = changes(&scheduler);
    assert!(refused.0.into_iter().all(|change| is_busy(change.now())));
    assert!(is_busy(refused.1.now()) && is_busy(refused.2.now()) && is_busy(refused.3.now()));
    assert!(is_busy(refused.4.now()) && is_busy(refused.5.now()));
    let (job, moved) = (scheduler.get("a").now().unwrap().unwrap(), patient.move_to("a", HOUR));
    assert_eq!((job.priority, keys(&scheduler).len()), (0, 1), "what waits has not begun");
    gate.holds_all.store(false, Ordering::SeqCst);
    gate.release();
    assert!(first.now().is_ok());
    assert!(changed.into_iter().all(|change| change.now() == Ok(Change::Changed)));
    assert_eq!((revived.now(), discarded.now()), (Ok(Revive::Absent), Ok(false)));
    assert_eq!((cancelled.now(), moved.now()), (Ok(Cancel::Cancelled), Ok(Change::Absent)));
    assert!(placed.now().is_ok() && many.now().is_ok());
    assert_eq!(keys(&scheduler).len(), 2);
}

#[test]
fn j27_one_commit_that_is_larger_than_the_limit_goes_alone() {
    let (_clock, gate, scheduler) = scheduler(2);
    let many = || (0..10).map(|n| scheduler.put_to("log", &n).due(HOUR));
    let all = scheduler.put_many(many());
    assert!(is_busy(put(&scheduler, "refused").now()));
    let next = scheduler.put_many(many().map(crate::Put::wait_for_room));
    let one = waiting(&scheduler, "one");
    gate.release_one();
    assert_eq!(keys(&scheduler).len(), 20);
    gate.release_one();
    assert_eq!(keys(&scheduler).len(), 21);
    gate.release();
    assert_eq!((all.now().unwrap().len(), next.now().unwrap().len()), (10, 10));
    assert!(one.now().is_ok());
}

/// Answers that come inside of the call that asks: the store is not called by itself again and
/// again.
#[test]
fn j27_many_that_wait_begin_one_after_another() {
    let (_clock, gate, scheduler) = scheduler(1);
    let first = put(&scheduler, "first");
    let rest: Vec<_> = (0..20_000).map(|n| waiting(&scheduler, &n.to_string())).collect();
    gate.holds_all.store(false, Ordering::SeqCst);
    gate.release();
    assert!(first.now().is_ok());
    assert!(rest.into_iter().all(|put| put.now().is_ok()));
    assert_eq!(keys(&scheduler).len(), 20_001);
}

#[test]
fn j27_callers_that_give_up_leave_nothing_behind() {
    let (_clock, gate, scheduler) = scheduler(1);
    let (first, kept) = (put(&scheduler, "first"), waiting(&scheduler, "kept"));
    for n in 0..10_000 {
        drop(waiting(&scheduler, &n.to_string()));
        assert!(scheduler.core.backlog.waiting() < 200);
    }
    gate.holds_all.store(false, Ordering::SeqCst);
    gate.release();
    assert!(first.now().is_ok() && kept.now().is_ok());
    assert_eq!(keys(&scheduler), ["first", "kept"]);
    assert_eq!(scheduler.core.backlog.waiting(), 0);
}

#[test]
fn j27_a_close_answers_what_waits_for_room() {
    let (_clock, gate, scheduler) = scheduler(1);
    let (first, second) = (put(&scheduler, "first"), waiting(&scheduler, "second"));
    let report = scheduler.close(Duration::ZERO);
    assert!(matches!(second.now(), Err(Error::Closed)));
    assert!(matches!(waiting(&scheduler, "third").now(), Err(Error::Closed)));
    gate.release();
    assert!(first.now().is_ok() && report.now().is_ok());
    assert_eq!(keys(&scheduler), ["first"]);
}
