//! Tokens: awaited, waited for, and made into errors (S49, S86).

use super::*;

#[test]
fn s49_a_token_can_be_awaited() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let counters = [CountingWaker::new(), CountingWaker::new()];
    let mut borrowing = token.cancelled();
    let mut owning = token.cancelled_owned();
    assert!(poll(&mut borrowing, &counters[0]).is_pending() && poll(&mut owning, &counters[0]).is_pending());
    assert_eq!(counters[0].kept(), 2);
    assert!(poll(&mut borrowing, &counters[1]).is_pending());
    assert_eq!(counters.each_ref().map(CountingWaker::kept), [1, 1], "the waker of the latest poll");
    source.cancel();
    assert_eq!(counters.each_ref().map(CountingWaker::wakes), [1, 1]);
    for _ in 0..2 {
        assert_eq!(
            poll(&mut borrowing, &counters[1]).map(|cancelled| cancelled.reason()),
            Poll::Ready(CancelReason::Cancelled)
        );
        assert_eq!(
            poll(&mut owning, &counters[1]).map(|cancelled| cancelled.reason()),
            Poll::Ready(CancelReason::Cancelled)
        );
    }
    assert_eq!(counters.each_ref().map(CountingWaker::kept), [0, 0]);
    assert!(poll(&mut token.cancelled(), &counters[0]).is_ready(), "at once when it was before");
}

#[test]
fn s49_waiting_ends_with_the_future_that_waits() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let counter = CountingWaker::new();
    for _ in 0..100 {
        let (mut borrowing, mut owning) = (token.cancelled(), token.cancelled_owned());
        assert!(poll(&mut borrowing, &counter).is_pending() && poll(&mut owning, &counter).is_pending());
    }
    assert_eq!(counter.kept(), 0);
    source.cancel();
    assert_eq!(counter.wakes(), 0);
}

#[test]
fn s49_a_thread_can_wait_with_a_limit() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    for limit in [Duration::ZERO, ms(1), ms(5)] {
        let begun = Instant::now();
        assert!(token.wait_timeout(limit).is_ok());
        assert!(begun.elapsed() >= limit, "never early");
    }
    within(PATIENCE, "waiting for a cancellation", || {
        for round in 0..200 {
            let source = CancellationTokenSource::new();
            let token = source.token();
            let limit = if round % 2 == 0 { NEVER } else { 2 * PATIENCE };
            let (_, waited) = race(us(round), || source.cancel(), || token.wait_timeout(limit));
            assert_eq!(waited.map_err(|cancelled| cancelled.reason()), Err(CancelReason::Cancelled));
        }
    });
    source.cancel();
    assert!(token.wait_timeout(Duration::ZERO).is_err() && token.wait_timeout(NEVER).is_err());
}

#[test]
fn s49_a_token_turns_into_an_error() {
    fn step(token: &CancellationToken) -> io::Result<u32> {
        token.check()?;
        Ok(1)
    }
    let source = CancellationTokenSource::new();
    assert_eq!(step(&source.token()).expect("goes on"), 1);
    source.cancel();
    assert_eq!(step(&source.token()).map_err(|error| error.kind()), Err(io::ErrorKind::Other));
}

#[test]
fn s49_the_none_token_is_never_cancelled() {
    const NONE: CancellationToken = CancellationToken::none();
    let none = NONE;
    let counter = CountingWaker::new();
    assert!(!none.is_cancelled() && none.reason().is_none() && none.check().is_ok());
    let (canary, fate) = Canary::new();
    let registration = none.register(move || canary.sing());
    assert!(fate.is_dropped(), "a callback that is never called is not kept");
    assert!(!registration.unregister());
    assert!(
        poll(&mut none.cancelled(), &counter).is_pending() && poll(&mut none.cancelled_owned(), &counter).is_pending()
    );
    assert_eq!(counter.kept(), 0);
    let begun = Instant::now();
    assert!(none.wait_timeout(ms(3)).is_ok() && begun.elapsed() >= ms(3));
    assert_eq!(block_on(none.run_until_cancelled(ready(4))), Some(4));
    assert!(!none.child_source().is_cancelled());
}

#[test]
fn s49_a_future_runs_until_it_is_cancelled() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::on(&runtime), CountingWaker::new());
    let token = source.token();
    assert_eq!(block_on(token.run_until_cancelled(async { 7 })), Some(7));
    // Ready in time.
    let mut in_time = token.run_until_cancelled(Delay::on(&runtime, secs(1)));
    assert!(poll(&mut in_time, &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(poll(&mut in_time, &counter), Poll::Ready(Some(())));
    drop(in_time);
    assert_eq!(counter.kept(), 0);
    // Ready together with the cancellation: the result is kept. (The delay is ready when the task
    // is polled.)
    let mut together = token.run_until_cancelled(Delay::on(&runtime, secs(1)));
    assert!(poll(&mut together, &counter).is_pending());
    let (canary, fate) = Canary::new();
    let mut too_late = Box::pin(token.run_until_cancelled(async move {
        let _owned = canary;
        pending::<()>().await;
    }));
    assert!(poll_pinned(too_late.as_mut(), &counter).is_pending());
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!(poll(&mut together, &counter), Poll::Ready(Some(())));
    assert_eq!(poll_pinned(too_late.as_mut(), &counter), Poll::Ready(None));
    drop(too_late);
    assert!(fate.is_dropped());
    assert_eq!(poll_pinned(pin!(token.run_until_cancelled(pending::<()>())), &counter), Poll::Ready(None));
}

/// A future that counts its polls, and is pending at the first.
fn polled(polls: &Count) -> impl Future<Output = u8> + Unpin + use<> {
    let polls = polls.clone();
    poll_fn(move |_| if polls.bump() == 1 { Poll::Pending } else { Poll::Ready(7) })
}

#[test]
fn s86_under_a_cancelled_token_a_future_is_not_begun() {
    let (_clock, runtime) = manual();
    let (token, counter, polls) = (CancellationToken::new_cancelled(), CountingWaker::new(), Count::new());
    let mut until = token.run_until_cancelled(polled(&polls));
    let mut with_token = polled(&polls).with_token(&token);
    let mut limited = Timeout::on(&runtime, secs(1), polled(&polls)).with_token(&token);
    let mut passed = Timeout::on(&runtime, Duration::ZERO, polled(&polls)).with_token(&token);
    for _ in 0..2 {
        assert_eq!(poll(&mut until, &counter), Poll::Ready(None));
        assert!(matches!(poll(&mut with_token, &counter), Poll::Ready(Err(_))), "and again, if polled again");
        assert!(matches!(poll(&mut limited, &counter), Poll::Ready(Err(TimeoutError::Cancelled(_)))));
        assert!(matches!(poll(&mut passed, &counter), Poll::Ready(Err(TimeoutError::Cancelled(_)))));
    }
    assert_eq!((polls.get(), counter.kept(), runtime.metrics().active), (0, 0, 0));
    assert_eq!(poll(&mut with_token.into_inner(), &counter), Poll::Pending, "the future can be had all the same");
    // Made before the cancellation, polled after it.
    let source = CancellationTokenSource::on(&runtime);
    let mut made_before = polled(&polls).with_token(&source.token());
    source.cancel();
    assert!(matches!(poll(&mut made_before, &counter), Poll::Ready(Err(_))));
    assert_eq!(polls.get(), 1);
    // Polled before the cancellation: the result counts.
    let source = CancellationTokenSource::on(&runtime);
    let polls = [(); 3].map(|()| Count::new());
    let token = source.token();
    let mut until = token.run_until_cancelled(polled(&polls[0]));
    let mut with_token = polled(&polls[1]).with_token(&token);
    let mut limited = Timeout::on(&runtime, secs(1), polled(&polls[2])).with_token(&token);
    assert!(poll(&mut until, &counter).is_pending() && poll(&mut with_token, &counter).is_pending());
    assert!(poll(&mut limited, &counter).is_pending());
    source.cancel();
    assert_eq!(
        (poll(&mut until, &counter), poll(&mut with_token, &counter)),
        (Poll::Ready(Some(7)), Poll::Ready(Ok(7)))
    );
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok(7)));
}

/// A task whose budget is spent is told of the cancellation later. A future that has not begun does
/// not begin meanwhile, and one that has begun keeps its result.
#[test]
fn s86_a_spent_budget_changes_nothing() {
    let (_clock, runtime) = manual();
    for begun in [false, true] {
        for limited in [false, true] {
            let (source, counter, polls) = (CancellationTokenSource::new(), CountingWaker::new(), Count::new());
            let (spent, token) = (CancellationToken::new_cancelled(), source.token());
            while poll(&mut spent.cancelled(), &counter).is_ready() {}
            for _ in 0..128 {
                assert!(poll(&mut spent.cancelled(), &counter).is_ready());
            }
            let counting = polls.clone();
            let future = poll_fn(move |_| {
                source.cancel();
                if counting.bump() == 1 { Poll::Pending } else { Poll::Ready(7) }
            });
            let token = if begun { token } else { spent.clone() };
            let mut future: Pin<Box<dyn Future<Output = Option<u8>>>> = if limited {
                let limited = Timeout::on(&runtime, secs(1), future).with_token(&token);
                Box::pin(async { limited.await.ok() })
            } else {
                Box::pin(async { future.with_token(&token).await.ok() })
            };
            assert!(poll(&mut future, &counter).is_pending(), "the budget is spent");
            assert_eq!(polls.get(), usize::from(begun));
            assert_eq!(poll(&mut future, &counter), Poll::Ready(begun.then_some(7)));
            assert_eq!((polls.get(), counter.kept()), (if begun { 2 } else { 0 }, 0));
        }
    }
}

#[test]
fn s49_wakers_that_panic_when_cloned_or_dropped_leave_the_token_usable() {
    let (_clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let token = source.token();
    let (panicking, counter) = (PanickingWaker::new(), CountingWaker::new());
    let waker = panicking.waker();
    let mut waiting = token.cancelled();
    PanickingWaker::set(&panicking.on_clone, true);
    assert!(panics(|| poll_with(&mut waiting, &waker)));
    PanickingWaker::set(&panicking.on_clone, false);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    PanickingWaker::set(&panicking.on_drop, true);
    assert!(poll(&mut waiting, &counter).is_pending(), "the one before is dropped");
    assert_eq!((counter.kept(), runtime.metrics().panics), (1, 1), "the new one has taken its place");
    PanickingWaker::set(&panicking.on_drop, false);
    let mut dropped = token.cancelled();
    assert!(poll_with(&mut dropped, &waker).is_pending());
    PanickingWaker::set(&panicking.on_drop, true);
    drop(dropped);
    PanickingWaker::set(&panicking.on_drop, false);
    assert_eq!(runtime.metrics().panics, 2);
    drop(waker);
    assert!(source.cancel());
    assert_eq!((counter.wakes(), panicking.kept()), (1, 0));
    assert!(poll(&mut waiting, &counter).is_ready());
}

#[test]
fn s49_no_lock_is_held_while_a_waker_is_cloned_woken_or_dropped() {
    within(PATIENCE, "wakers that use their token", || {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let uses = Count::new();
        let task = || {
            let (token, uses) = (source.token(), uses.clone());
            PanickingWaker::that(move || {
                drop(token.register(|| ()));
                drop(token.child_source());
                uses.bump();
            })
        };
        let wakers = [task().waker(), task().waker()];
        let (mut waiting, mut dropped) = (token.cancelled(), token.cancelled_owned());
        for waker in &wakers {
            assert!(poll_with(&mut waiting, waker).is_pending() && poll_with(&mut dropped, waker).is_pending());
        }
        drop(dropped);
        assert!(source.cancel());
        assert!(poll_with(&mut waiting, &wakers[0]).is_ready());
        // Cloned 4 times, replaced twice, dropped with its future, woken.
        assert!(uses.get() >= 8, "{}", uses.get());
    });
}

#[test]
fn s49_a_waker_may_drop_its_future() {
    let source = CancellationTokenSource::new();
    let slot: Arc<Mutex<Option<CancelledOwned>>> = Arc::default();
    let waker = waker_that({
        let slot = Arc::clone(&slot);
        move || drop(lock(&slot).take())
    });
    for _ in 0..2 {
        let mut waiting = source.token().cancelled_owned();
        assert!(poll_with(&mut waiting, &waker).is_pending());
        *lock(&slot) = Some(waiting);
    }
    assert!(source.cancel());
    assert!(lock(&slot).is_none());
}

#[test]
fn s49_a_task_that_waits_against_the_cancel_is_always_woken() {
    within(PATIENCE, "awaiting a token", || {
        for round in 0..1_000 {
            let source = CancellationTokenSource::new();
            let token = source.token();
            let (_, cancelled) = race(Duration::from_nanos(round), || source.cancel(), || block_on(token.cancelled()));
            assert_eq!(cancelled.reason(), CancelReason::Cancelled);
        }
    });
}
