//! Links between cancellation tokens, in both directions, on real threads and on virtual time.
#![cfg(feature = "tokio-util-0_7")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use timerqueue::{CancellationToken, CancellationTokenSource, ManualClock, Runtime};
use timerqueue_adapters::tokio_util_0_7::{cancel_source, cancel_tokio, link};
use tokio_util::sync::CancellationToken as TokioToken;

const SECOND: Duration = Duration::from_secs(1);
/// A cancellation that comes takes much less.
const LONG: Duration = Duration::from_secs(30);

fn both() -> (CancellationTokenSource, TokioToken) {
    (CancellationTokenSource::new(), TokioToken::new())
}

/// Waits on real time, on the thread of a test: true if the token was cancelled.
fn comes(token: &CancellationToken) -> bool {
    token.wait_timeout(LONG).is_err()
}

#[test]
fn our_cancellation_cancels_their_token_on_the_cancelling_thread() {
    let (ours, theirs) = both();
    let registration = cancel_tokio(&ours.token(), &theirs);
    assert!(!theirs.is_cancelled());
    ours.cancel();
    assert!(theirs.is_cancelled());
    drop(registration);

    let late = TokioToken::new();
    drop(cancel_tokio(&ours.token(), &late));
    assert!(late.is_cancelled(), "a token that was cancelled before cancels at once");
}

#[test]
fn their_cancellation_cancels_our_source_on_a_thread_of_the_pool() {
    let (ours, theirs) = both();
    let link = cancel_source(&theirs, &ours);
    let (send, receive) = mpsc::channel();
    ours.token().register(move || send.send(thread::current().id()).expect("received")).detach();
    assert!(!link.has_fired());
    theirs.cancel();
    assert!(comes(&ours.token()));
    assert!(link.has_fired());
    assert_ne!(receive.recv_timeout(LONG).expect("the callback runs"), thread::current().id());

    let late = CancellationTokenSource::new();
    assert!(cancel_source(&theirs, &late).has_fired());
    assert!(late.is_cancelled(), "a token that was cancelled before cancels at once");
}

#[test]
fn a_link_both_ways_cancels_once_whichever_side_begins() {
    for ours_begins in [true, false] {
        let (ours, theirs) = both();
        let link = link(&ours, &theirs);
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        ours.token().register(move || _ = counted.fetch_add(1, Ordering::SeqCst)).detach();
        if ours_begins {
            ours.cancel();
        } else {
            theirs.cancel();
        }
        assert!(comes(&ours.token()) && theirs.is_cancelled());
        drop(link);
        while count.load(Ordering::SeqCst) == 0 {
            thread::yield_now(); // the callback may still run on a thread of the pool
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_dropped_link_cancels_nothing_and_keeps_nothing() {
    let (ours, theirs) = both();
    let held = Arc::new(());
    let in_callback = Arc::clone(&held);
    ours.token().register(move || drop(in_callback)).detach();
    drop(link(&ours, &theirs));
    drop(cancel_source(&theirs, &ours));
    theirs.cancel();
    assert!(!ours.is_cancelled());
    drop(ours); // the last reference: the link holds none
    assert_eq!(Arc::strong_count(&held), 1);
}

/// tokio-util wakes the waiters of a child while it holds a lock of the parent.
#[test]
fn a_callback_may_use_the_parent_of_the_token_that_cancelled() {
    let (ours, parent) = both();
    let child = parent.child_token();
    let link = cancel_source(&child, &ours);
    let (send, receive) = mpsc::channel();
    let asked = parent.clone();
    ours.token().register(move || send.send(asked.child_token().is_cancelled()).expect("received")).detach();
    let canceller = thread::spawn(move || parent.cancel());
    assert_eq!(receive.recv_timeout(LONG), Ok(true));
    canceller.join().expect("no panic");
    drop(link);
}

#[test]
fn on_a_manual_clock_the_next_advance_cancels() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    let (ours, theirs) = both();
    let link = runtime.enter(|| cancel_source(&theirs, &ours));
    theirs.cancel();
    assert!(!ours.is_cancelled());
    clock.advance(Duration::ZERO);
    assert!(ours.is_cancelled());
    drop(link);

    // A deadline on virtual time, for a library with tokens of tokio-util.
    let deadline = runtime.enter(|| CancellationTokenSource::after(60 * SECOND));
    let theirs = TokioToken::new();
    let registration = cancel_tokio(&deadline.token(), &theirs);
    clock.block_on(theirs.cancelled());
    assert_eq!(clock.now().as_duration(), 60 * SECOND);
    drop(registration);
}

#[test]
fn a_runtime_that_ends_loses_no_cancellation() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    let (first, second) = (both(), both());
    let links = runtime.enter(|| [cancel_source(&first.1, &first.0), cancel_source(&second.1, &second.0)]);
    first.1.cancel(); // the job waits for an advance
    assert!(!first.0.is_cancelled());
    runtime.shutdown(SECOND).expect("no callback runs");
    assert!(first.0.is_cancelled(), "the job was dropped unrun");
    second.1.cancel();
    assert!(second.0.is_cancelled(), "the thread that cancels does so");
    drop(links);
}

/// Both tokens are cancelled, and links made and dropped, all at the same time.
#[test]
fn threads_that_cancel_link_and_drop_at_once_agree_in_the_end() {
    for round in 0..300_u32 {
        let (ours, theirs) = both();
        let keep = link(&ours, &theirs);
        thread::scope(|scope| {
            if round % 3 != 0 {
                scope.spawn(|| theirs.cancel());
            }
            if round % 3 != 1 {
                scope.spawn(|| ours.cancel());
            }
            scope.spawn(|| drop([cancel_source(&theirs, &ours), link(&ours, &theirs)]));
        });
        assert!(comes(&ours.token()), "round {round}");
        assert!(theirs.is_cancelled(), "round {round}");
        drop(keep);
    }
}

#[test]
fn a_task_of_tokio_waits_for_our_deadline_through_its_own_token() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("threads");
    let deadline = CancellationTokenSource::after(Duration::from_millis(20));
    let theirs = TokioToken::new();
    let link = link(&deadline, &theirs);
    let tasks: Vec<_> = (0..10).map(|_| tokio.spawn(theirs.child_token().cancelled_owned())).collect();
    tokio.block_on(async {
        for task in tasks {
            task.await.expect("no panic");
        }
    });
    assert!(deadline.is_cancelled());
    drop(link);
}
