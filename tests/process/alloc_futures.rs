//! Memory cost of futures and tokens: allocations per operation; memory stays flat, and is freed in
//! the end.
//!
//! Ground rules. Allocations are counted per thread, so a test sees only its own operations. Bytes
//! in use are counted for the whole process, so these tests run in child processes. Their limits
//! allow for the test harness, but the tests run so many rounds that a leak of a few bytes would
//! exceed the limit.

use std::future::{pending, ready};
use std::pin::pin;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::allocator::{allocations, in_use};
use crate::support::child::in_child;
use crate::support::poll::{CountingWaker, poll, poll_pinned, poll_with};
use crate::support::{NEVER, PATIENCE, block_on, manual, ms, native, secs, us};
use timerqueue::{
    CancellationToken, CancellationTokenSource, Delay, DelayQueue, DelayQueueBuilder, Interval, Registration, Runtime,
    Timeout, TimerFutureExt, futures::CancelledFuture, timeout,
};

/// The allowance for the test harness.
const ROOM: i64 = 16 * 1024;

// ----------------------------------------------------------------------------------------------- allocations per operation

#[test]
fn s35_a_delay_that_is_never_polled_allocates_nothing() {
    let (clock, runtime) = manual();
    Runtime::global();
    let later = clock.now() + secs(5);
    let (count, ()) = allocations(|| {
        for _ in 0..100 {
            let mut delay = Delay::on(&runtime, secs(1));
            delay.reset(secs(2));
            delay.reset_at(later);
            assert!(!delay.is_elapsed());
            drop((
                runtime.enter(|| Delay::until(later)),
                Delay::new(secs(1)),
                Delay::new(NEVER),
                Interval::on(&runtime, secs(1)),
            ));
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn s35_a_delay_that_is_ready_at_its_first_poll_allocates_nothing() {
    let (_clock, runtime) = manual();
    let (count, ()) = allocations(|| {
        for _ in 0..100 {
            assert!(poll_with(&mut Delay::on(&runtime, Duration::ZERO), Waker::noop()).is_ready());
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn s35_a_pending_delay_allocates_once() {
    let (clock, on_virtual_time) = manual();
    for (clock, runtime) in [(Some(clock), on_virtual_time), (None, native())] {
        let counters = [CountingWaker::new(), CountingWaker::new()];
        let wakers = counters.each_ref().map(CountingWaker::waker);
        let mut delay = Delay::on(&runtime, secs(1000));
        let (count, first) = allocations(|| poll_with(&mut delay, &wakers[0]));
        assert!(first.is_pending() && count <= 1, "{count} for the first pending poll");
        let (count, ()) = allocations(|| {
            for i in 0..100 {
                assert!(poll_with(&mut delay, &wakers[i % 2]).is_pending(), "wakers that change");
                delay.reset(secs(2000 - i as u64));
                delay.reset(secs(1000 + i as u64));
                delay.reset(NEVER);
            }
        });
        assert_eq!(count, 0, "moved, and polled by two tasks in turn");
        let Some(clock) = clock else { continue };
        for _ in 0..10 {
            delay.reset(secs(1));
            assert!(poll_with(&mut delay, &wakers[0]).is_pending());
            clock.advance(secs(1));
            let (count, ready) = allocations(|| poll_with(&mut delay, &wakers[0]));
            assert!(ready.is_ready());
            assert_eq!(count, 0, "the same node for the next wait");
        }
        let (count, ()) = allocations(|| drop(delay));
        assert_eq!(count, 0);
    }
}

#[test]
fn s38_a_timeout_around_a_future_that_is_ready_allocates_nothing() {
    let (_clock, runtime) = manual();
    Runtime::global();
    let token = CancellationToken::none();
    let (count, ()) = allocations(|| {
        for _ in 0..100 {
            assert!(poll_with(&mut Timeout::on(&runtime, secs(1), ready(1)), Waker::noop()).is_ready());
            assert!(poll_with(&mut timeout(secs(1), ready(1)), Waker::noop()).is_ready());
            assert!(poll_with(&mut ready(1).timeout(NEVER).with_token(&token), Waker::noop()).is_ready());
        }
    });
    assert_eq!(count, 0);
    let mut limited = Timeout::on(&runtime, secs(1), pending::<()>());
    let (count, pending) = allocations(|| poll_with(&mut limited, Waker::noop()));
    assert!(pending.is_pending() && count <= 1);
}

#[test]
fn s39_an_interval_allocates_once() {
    let (clock, runtime) = manual();
    let mut interval: Interval = Interval::on(&runtime, secs(1));
    let counter = CountingWaker::new();
    let (count, pending) = allocations(|| poll_pinned(pin!(interval.tick()), &counter));
    assert!(pending.is_pending() && count <= 1);
    for _ in 0..10 {
        clock.advance(secs(1));
        let (count, ()) = allocations(|| {
            assert!(poll_pinned(pin!(interval.tick()), &counter).is_ready());
            assert!(poll_pinned(pin!(interval.tick()), &counter).is_pending());
            interval.set_period(secs(1));
        });
        assert_eq!(count, 0);
    }
}

#[test]
fn s49_the_none_token_costs_nothing() {
    let (count, ()) = allocations(|| {
        for i in 0..100_u64 {
            let token = CancellationToken::none().clone();
            assert!(token.check().is_ok());
            let big = [i; 32];
            token.register(move || assert!(big.len() == 32)).detach();
            assert!(poll_with(&mut token.cancelled(), Waker::noop()).is_pending());
            assert!(poll_with(&mut token.cancelled_owned(), Waker::noop()).is_pending());
            assert!(poll_with(&mut token.run_until_cancelled(ready(1)), Waker::noop()).is_ready());
            assert!(token.wait_timeout(Duration::ZERO).is_ok());
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn s49_awaiting_a_token_allocates_at_its_first_use_only() {
    let counter = CountingWaker::new();
    let (count, source) = allocations(CancellationTokenSource::new);
    assert!(count <= 1, "{count} for a source");
    let (count, token) = allocations(|| source.token());
    assert_eq!(count, 0, "tokens are counted handles");
    let (count, ()) = allocations(|| {
        let mut first = token.cancelled();
        assert!(poll(&mut first, &counter).is_pending() && poll(&mut first, &counter).is_pending());
    });
    assert!(count <= 1, "{count} for the first wait");
    let (count, ()) = allocations(|| {
        for _ in 0..100 {
            let (mut waiting, cloned) = (token.cancelled_owned(), token.clone());
            assert!(poll(&mut waiting, &counter).is_pending());
            assert!(!cloned.is_cancelled() && token.check().is_ok());
        }
    });
    assert_eq!(count, 0);
    let number = 7;
    for most in [2, 1] {
        let (count, registration) = allocations(|| token.register(move || assert_eq!(number, 7)));
        assert!(count <= most && registration.unregister(), "{count} for a callback that owns something");
    }
}

// ---------------------------------------------------------------------------------------------- flat, and freed

#[test]
fn s47_a_million_children_of_one_parent_leave_its_memory_flat() {
    in_child(module_path!(), "s47_a_million_children_of_one_parent_leave_its_memory_flat", || {
        let parent = CancellationTokenSource::new();
        let token = parent.token();
        let make_and_drop = |count: usize| {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut kept = Vec::with_capacity(16);
                        for i in 0..count / 2 {
                            // Some children live a little longer.
                            kept.push(token.child_source());
                            if kept.len() == 16 || i % 3 == 0 {
                                kept.swap_remove(i % kept.len());
                            }
                        }
                    });
                }
            });
        };
        make_and_drop(10_000);
        let before = in_use();
        make_and_drop(1_000_000);
        let grown = in_use() - before;
        assert!(grown < ROOM, "{grown} bytes after a million children");
        let last = token.child_source();
        assert!(parent.cancel() && last.is_cancelled());
    });
}

#[test]
fn s47_a_parent_with_one_child_has_one_shard() {
    in_child(module_path!(), "s47_a_parent_with_one_child_has_one_shard", || {
        const PARENTS: usize = 100;
        let parents: Vec<CancellationTokenSource> = (0..PARENTS).map(|_| CancellationTokenSource::new()).collect();
        let used = |make: &dyn Fn(usize) -> CancellationTokenSource| {
            let mut made = Vec::with_capacity(PARENTS);
            let before = in_use();
            made.extend((0..PARENTS).map(make));
            let used = (in_use() - before) / PARENTS as i64;
            drop(made);
            used
        };
        let child = used(&|i| parents[i].token().child_source());
        let source = used(&|_| CancellationTokenSource::new());
        assert!(child - source < 512, "{child} bytes for a first child, {source} for a source");
    });
}

#[test]
fn s49_a_token_frees_its_memory_after_a_peak() {
    in_child(module_path!(), "s49_a_token_frees_its_memory_after_a_peak", || {
        const PEAK: usize = 100_000;
        let counter = CountingWaker::new();
        let source = CancellationTokenSource::new();
        let token = source.token();
        for left in [1, 0] {
            let before = in_use();
            let mut waiting: Vec<CancelledFuture<'_>> = (0..PEAK).map(|_| token.cancelled()).collect();
            assert!(waiting.iter_mut().all(|future| poll(future, &counter).is_pending()));
            let mut registrations: Vec<Registration> = (0..PEAK).map(|_| token.register(|| ())).collect();
            let mut children: Vec<CancellationTokenSource> = (0..PEAK).map(|_| token.child_source()).collect();
            // Keeps the last of each, made at the peak.
            waiting.drain(..PEAK - left);
            registrations.drain(..PEAK - left);
            children.drain(..PEAK - left);
            waiting.shrink_to_fit();
            registrations.shrink_to_fit();
            children.shrink_to_fit();
            let kept = in_use() - before;
            let limit = if left == 0 { ROOM } else { 3 * PEAK as i64 };
            assert!(kept < limit, "{kept} bytes are kept with {left} of each left");
            assert!(source.try_reset());
        }
    });
}

/// Memory of a delay queue follows what is in it, not the peak: receivers, inserters, and entries
/// that are due.
#[test]
fn a_delay_queue_frees_its_memory_after_a_peak() {
    in_child(module_path!(), "a_delay_queue_frees_its_memory_after_a_peak", || {
        const PEAK: u32 = 100_000;
        let (clock, runtime) = manual();
        let counter = CountingWaker::new();
        for left in [1, 0] {
            let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(1).build();
            queue.insert(0, (), NEVER).expect("it is empty");
            let before = in_use();
            let mut receiving: Vec<_> = (0..PEAK).map(|_| queue.recv()).collect();
            let mut inserting: Vec<_> = (1..=PEAK).map(|key| queue.insert_wait(key, (), NEVER)).collect();
            assert!(receiving.iter_mut().all(|future| poll(future, &counter).is_pending()));
            assert!(inserting.iter_mut().all(|future| poll(future, &counter).is_pending()));
            receiving.drain(..receiving.len() - left);
            inserting.drain(..inserting.len() - left);
            receiving.shrink_to_fit();
            inserting.shrink_to_fit();
            let kept = in_use() - before;
            assert!(kept < ROOM, "{kept} bytes are kept with {left} of each left");
            drop((receiving, inserting));

            let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
            let before = in_use();
            (0..PEAK).for_each(|key| queue.insert(key, (), secs(1)).expect("there is room"));
            let mut receiver = queue.recv();
            assert!(poll(&mut receiver, &counter).is_pending());
            clock.advance(secs(1));
            (left as u32..PEAK).for_each(|_| _ = queue.try_recv().expect("all are due"));
            let kept = in_use() - before;
            assert!(kept < 4 * ROOM, "{kept} bytes are kept with {left} due entries left");
        }
    });
}

#[test]
fn s36_s43_waits_that_are_given_up_leave_memory_flat() {
    in_child(module_path!(), "s36_s43_waits_that_are_given_up_leave_memory_flat", || {
        let (_clock, runtime) = manual();
        let source = CancellationTokenSource::on(&runtime);
        let token = source.token();
        let counter = CountingWaker::new();
        let give_up = |rounds: u64| {
            for i in 0..rounds {
                let mut delay = Delay::on(&runtime, ms(1 + i * 7)).with_token(&token);
                let mut limited = Timeout::on(&runtime, secs(1 + i), pending::<()>()).with_token(&token);
                assert!(poll(&mut delay, &counter).is_pending() && poll(&mut limited, &counter).is_pending());
                let registrations: [Registration; 3] =
                    std::array::from_fn(|_| token.register(move || assert!(i < rounds)));
                source.try_cancel_after(secs(1 + i)).expect("a runtime of its own");
                if i % 5 == 0 {
                    assert!(source.try_reset());
                }
                drop(registrations);
            }
        };
        give_up(1_000);
        let before = in_use();
        give_up(30_000);
        let grown = in_use() - before;
        assert!(grown < ROOM, "{grown} bytes after 30,000 rounds");
        assert_eq!((counter.kept(), runtime.metrics().active), (0, 1));
    });
}

/// Runs timers, delays, timeouts, intervals and tokens on a runtime, and ends the runtime while
/// they are in use.
fn life_of_a_runtime(runtime: Runtime) {
    let source = CancellationTokenSource::on(&runtime);
    let counter = CountingWaker::new();
    let middle = source.token().child_source();
    middle.try_cancel_after(secs(3)).expect("a runtime of its own");
    let leaf = middle.token().child_source();
    drop(middle);
    leaf.token().register(|| ()).detach();
    let owned = source.token();
    drop(source.token().register(move || drop(owned)));
    let mut delays: Vec<Delay> = (0..100).map(|i| Delay::on(&runtime, us(10 * i))).collect();
    let _ = delays.iter_mut().map(|delay| poll(delay, &counter)).count();
    let mut waiting = leaf.token().cancelled_owned();
    assert!(poll(&mut waiting, &counter).is_pending());
    let mut limited = Timeout::on(&runtime, secs(5), pending::<()>()).with_token(&leaf.token());
    assert!(poll(&mut limited, &counter).is_pending());
    let mut interval = Interval::on(&runtime, secs(1));
    let _handle = interval.stop_handle();
    assert!(poll_pinned(pin!(interval.tick()), &counter).is_pending());
    if runtime.metrics().threads.alive > 0 {
        block_on(Delay::on(&runtime, us(500)));
    }
    runtime.shutdown(PATIENCE).expect("no callback blocks");
    if runtime.metrics().threads.alive > 0 {
        source.cancel();
    }
}

/// The growth of the bytes in use after `lives` runs of `life`. The harness and threads that have
/// just ended get some time.
fn growth(lives: u32, limit: i64, life: impl Fn()) -> i64 {
    for _ in 0..5 {
        life();
    }
    let before = in_use();
    for _ in 0..lives {
        life();
    }
    let deadline = Instant::now() + secs(5);
    while in_use() - before >= limit && Instant::now() < deadline {
        thread::sleep(ms(1));
    }
    in_use() - before
}

#[test]
fn s33_everything_is_given_back_at_the_end() {
    in_child(module_path!(), "s33_everything_is_given_back_at_the_end", || {
        let grown = growth(200, ROOM, || life_of_a_runtime(manual().1));
        assert!(grown < ROOM, "{grown} bytes after 200 lives on virtual time");
        // The deques of the pool free some memory with a delay; a leaked runtime would be several
        // times as much.
        let grown = growth(50, 4 * ROOM, || life_of_a_runtime(native()));
        assert!(grown < 4 * ROOM, "{grown} bytes after 50 lives on real time");
    });
}
