//! A6 to A10: cancellation tokens.
//!
//! Ground rules. As in [`crate::futures`]. If the peer lacks an operation of this crate, the case
//! builds the operation as the peer's users do, and the row's name says how.

use std::cell::Cell;
use std::future::{Future, pending};
use std::hint::black_box;
use std::pin::pin;
use std::time::{Duration, Instant};

use timerqueue::{CancelReason, CancellationTokenSource, Runtime};
use tokio_util::sync::CancellationToken as TheirToken;

use crate::futures::{on_each, pending_ones};
use crate::measure::{Case, Session, repeat};
use crate::place::{HEARTBEAT, Place, THREADS, Tokio, idle_context, our_heartbeats};

pub(crate) const IDS: [&str; 5] = ["A6", "A7", "A8", "A9", "A10"];
const AFTER: Duration = Duration::from_secs(30);

fn cancels(session: &mut Session, _: &Tokio) {
    let title = "make a source and a second handle, cancel, read the status, drop";
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue source and token", Place::Thread, |times| {
        repeat(times, || {
            let source = CancellationTokenSource::new();
            let token = black_box(source.token());
            assert!(source.cancel() && black_box(&token).is_cancelled());
        })
    });
    on_each(&mut cases, "tokio-util token and clone", Place::Thread, |times| {
        repeat(times, || {
            let source = TheirToken::new();
            let token = black_box(source.clone());
            source.cancel();
            assert!(black_box(&token).is_cancelled());
        })
    });
    session.measure("A6", title, &cases);
}

fn waiters(session: &mut Session, _: &Tokio) {
    let title = "register and unregister a waiter on a token that all threads share";
    let source = CancellationTokenSource::new();
    let (token, theirs) = (source.token(), TheirToken::new());
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue cancelled(), polled once", Place::Thread, |times| {
        pending_ones(times, || token.cancelled())
    });
    on_each(&mut cases, "tokio-util cancelled(), polled once", Place::Thread, |times| {
        pending_ones(times, || theirs.cancelled())
    });
    on_each(&mut cases, "timerqueue register a callback", Place::Thread, |times| {
        let word = black_box(1u64);
        repeat(times, || {
            let registration = token.register(move || {
                black_box(word);
            });
            assert!(black_box(registration).unregister());
        })
    });
    session.measure("A7", title, &cases);
    session.report.note(title, "tokio-util has no callbacks; ours are boxed.");
}

thread_local! {
    /// Tasks of [`task_pairs`] that have gone to sleep on this thread.
    static ASLEEP: Cell<u64> = const { Cell::new(0) };
}

/// Cancels a token later, as tokio's users do: a task sleeps and then cancels, and is aborted when
/// it is not needed.
fn task_pairs(times: u64, runtime: &tokio::runtime::Runtime) -> Duration {
    runtime.block_on(tokio::task::unconstrained(async {
        let asleep = ASLEEP.get();
        let start = Instant::now();
        for _ in 0..times {
            let token = TheirToken::new();
            let theirs = token.clone();
            let task = tokio::spawn(async move {
                ASLEEP.set(ASLEEP.get() + 1);
                tokio::time::sleep(AFTER).await;
                theirs.cancel();
            });
            tokio::task::yield_now().await; // the task goes to sleep
            assert!(!black_box(&token).is_cancelled());
            task.abort();
            tokio::task::yield_now().await; // the task is dropped
        }
        let took = start.elapsed();
        assert_eq!(ASLEEP.get() - asleep, times, "every task has gone to sleep");
        took
    }))
}

fn timed_cancels(session: &mut Session, tokio: &Tokio) {
    let title = "have a token cancelled after 30 s; withdraw the timed cancel, and drop";
    let short = CancellationTokenSource::try_after(Duration::from_millis(2)).expect("the default runtime starts");
    let cancelled = short.token().wait_timeout(Duration::from_secs(20)).expect_err("it is cancelled");
    assert_eq!(cancelled.reason(), CancelReason::Timeout);
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue cancel_after", Place::Thread, |times| {
        repeat(times, || {
            let source = CancellationTokenSource::new();
            let token = source.token();
            source.try_cancel_after(AFTER).expect("the default runtime runs");
            assert!(!black_box(&token).is_cancelled());
        })
    });
    on_each(&mut cases, "timerqueue cancel_after, source reused by try_reset", Place::Thread, |times| {
        let source = CancellationTokenSource::new();
        repeat(times, || {
            source.try_cancel_after(AFTER).expect("the default runtime runs");
            assert!(black_box(&source).try_reset());
        })
    });
    for threads in 1..=THREADS {
        cases.push(Case::new("tokio spawn(sleep, cancel), abort, current_thread", threads, move |times| {
            Place::Thread.time(threads, |lane| {
                lane.ready();
                task_pairs(times, &tokio.current[lane.index])
            })
        }));
    }
    session.measure("A8", title, &cases);
    session.report.note(
        title,
        "tokio-util tokens have no timed cancel: users spawn a task that sleeps and then cancels, and abort the task. The \
         peer's figures include two turns of its executor, so the task has really gone to sleep, and is really dropped.",
    );
}

fn limits_with_token(session: &mut Session, tokio: &Tokio) {
    let title = "pending work under a limit of 30 s and a token: create, poll, drop";
    let source = CancellationTokenSource::new();
    let (token, theirs) = (source.token(), TheirToken::new());
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue timeout().with_token()", Place::Thread, |times| {
        pending_ones(times, || timerqueue::timeout(AFTER, pending::<()>()).with_token(&token))
    });
    let with = |times| pending_ones(times, || tokio::time::timeout(AFTER, theirs.run_until_cancelled(pending::<()>())));
    on_each(&mut cases, "tokio timeout(run_until_cancelled()), current_thread", Place::Current(&tokio.current), with);
    on_each(&mut cases, "tokio timeout(run_until_cancelled()), multi_thread", Place::Multi(&tokio.multi), with);
    session.measure("A9", title, &cases);
    session.report.note(title, "The token is shared by all threads.");
}

fn children(session: &mut Session, _: &Tokio) {
    let title = "make and drop a child of a long-lived parent that all threads share";
    let parent = CancellationTokenSource::new();
    let (token, theirs) = (parent.token(), TheirToken::new());
    // The parent lives on, and has had children before the measurement.
    drop((token.child_source(), theirs.child_token()));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue child_source", Place::Thread, |times| {
        repeat(times, || {
            assert!(!black_box(token.child_source()).is_cancelled());
        })
    });
    on_each(&mut cases, "tokio-util child_token", Place::Thread, |times| {
        repeat(times, || {
            assert!(!black_box(theirs.child_token()).is_cancelled());
        })
    });
    session.measure("A10", title, &cases);
    // A cancel of the parent reaches its children.
    let (ours, other) = (token.child_source(), theirs.child_token());
    parent.cancel();
    theirs.cancel();
    assert!(ours.is_cancelled() && other.is_cancelled());
    let mut waiting = pin!(other.cancelled());
    assert!(waiting.as_mut().poll(&mut idle_context()).is_ready());
}

/// A round of all wanted workloads.
pub(crate) fn round(session: &mut Session, wanted: impl Fn(&str) -> bool) {
    let heartbeats = our_heartbeats(Runtime::global(), HEARTBEAT);
    let tokio = Tokio::new(Some(HEARTBEAT));
    for (id, run) in IDS.iter().zip([cancels, waiters, timed_cancels, limits_with_token, children]) {
        if wanted(id) {
            run(session, &tokio);
        }
    }
    drop(heartbeats);
}
