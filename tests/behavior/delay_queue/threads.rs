//! Delay queues on real time: threads, executors, and the default runtime.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::poll::{poll_with, waker_that};
use crate::support::{Gate, PATIENCE, Random, blocked, ms, native, secs, us, within};
use timerqueue::{DelayQueue, Runtime, error::RecvTimeoutError};

/// Never early on any sample; near on the best.
#[test]
fn a_blocked_thread_is_woken_at_the_due_time() {
    let runtime = native();
    let queue = DelayQueue::on(&runtime);
    let mut best = Duration::MAX;
    for key in 0..20 {
        let begun = Instant::now();
        queue.insert(key, (), ms(3)).unwrap();
        assert_eq!(queue.recv_blocking().unwrap().key, key);
        assert!(begun.elapsed() >= ms(3));
        best = best.min(begun.elapsed() - ms(3));
    }
    assert!(best < ms(20), "{best:?}");
}

#[test]
fn a_limit_ends_a_wait_and_an_earlier_entry_ends_it_sooner() {
    let queue: DelayQueue<u32, ()> = DelayQueue::new();
    let begun = Instant::now();
    assert_eq!(queue.recv_timeout(ms(5)), Err(RecvTimeoutError::Timeout));
    assert!(begun.elapsed() >= ms(5));
    within(PATIENCE, "woken by an insertion", move || {
        let receiver = thread::spawn({
            let queue = queue.clone();
            move || queue.recv_timeout(secs(3600))
        });
        thread::sleep(ms(5));
        queue.insert(1, (), ms(1)).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().key, 1);
        let receiver = thread::spawn({
            let queue = queue.clone();
            move || queue.recv_timeout(secs(3600))
        });
        thread::sleep(ms(5));
        queue.close();
        assert_eq!(receiver.join().unwrap(), Err(RecvTimeoutError::Closed));
    });
}

/// Producers insert, move and remove while receivers of all kinds take: each entry is delivered
/// once or removed once, and never early.
#[test]
fn many_threads_lose_nothing_and_deliver_nothing_twice() {
    const THREADS: u64 = 3;
    const EACH: u64 = 3_000;
    within(PATIENCE * 2, "all delivered", || {
        let runtime = native();
        let queue: DelayQueue<u64, Instant> = DelayQueue::on(&runtime);
        let (delivered, sum, removed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let took = |key: u64, due: Instant| {
            assert!(Instant::now() >= due, "never early");
            delivered.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(key, Ordering::Relaxed);
        };
        let gone = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(expired) = queue.recv_blocking() {
                        took(expired.key, expired.value);
                    }
                });
            }
            scope.spawn(|| {
                smol::block_on(async {
                    while let Some(expired) = queue.recv().await {
                        took(expired.key, expired.value);
                    }
                });
            });
            let producers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (queue, removed, gone) = (&queue, &removed, &gone);
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        for n in 0..EACH {
                            let (key, delay) = (thread * EACH + n, us(random.below(3_000)));
                            // The value is at or before the due time of the queue, which counts
                            // from later.
                            queue.insert(key, Instant::now() + delay, delay).unwrap();
                            match random.below(4) {
                                0 => _ = queue.reset(&(thread * EACH + random.below(n + 1)), us(4_000)),
                                1 => {
                                    let key = thread * EACH + random.below(n + 1);
                                    if queue.remove(&key).is_some() {
                                        removed.fetch_add(1, Ordering::Relaxed);
                                        gone.fetch_add(key, Ordering::Relaxed);
                                    }
                                }
                                _ => {}
                            }
                        }
                    })
                })
                .collect();
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            queue.close();
        });
        let all = THREADS * EACH;
        assert_eq!(delivered.load(Ordering::Relaxed) + removed.load(Ordering::Relaxed), all);
        assert_eq!(sum.load(Ordering::Relaxed) + gone.load(Ordering::Relaxed), all * (all - 1) / 2);
        assert!(queue.is_empty());
    });
}

/// All threads use the same few keys, so comparisons of keys meet deliveries, removals and drains.
#[test]
fn threads_that_meet_at_the_same_keys_agree_on_each_value() {
    within(PATIENCE * 2, "all accounted for", || {
        let runtime = native();
        let queue: DelayQueue<u64, u64> = DelayQueue::on(&runtime);
        let (inserted, out) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(expired) = queue.recv_blocking() {
                    out.fetch_add(expired.value, Ordering::Relaxed);
                }
            });
            let users: Vec<_> = (0..3)
                .map(|thread| {
                    let (queue, inserted, out) = (&queue, &inserted, &out);
                    scope.spawn(move || {
                        let mut random = Random(thread + 7);
                        for _ in 0..4_000 {
                            let (key, delay, value) = (random.below(4), us(random.below(300)), random.below(1 << 30));
                            let add = |to: &AtomicU64, value: Option<u64>| {
                                to.fetch_add(value.unwrap_or(0), Ordering::Relaxed);
                            };
                            match random.below(6) {
                                0 | 1 => {
                                    if queue.insert(key, value, delay).is_ok() {
                                        add(inserted, Some(value));
                                    }
                                }
                                2 => {
                                    add(out, queue.replace(key, value, delay).unwrap());
                                    add(inserted, Some(value));
                                }
                                3 => add(out, queue.remove(&key)),
                                4 => _ = queue.reset(&key, delay),
                                _ if random.below(20) == 0 => {
                                    queue.drain().iter().for_each(|entry| add(out, Some(entry.value)));
                                }
                                _ => _ = queue.due(&key),
                            }
                        }
                    })
                })
                .collect();
            users.into_iter().for_each(|user| user.join().unwrap());
            queue.close();
        });
        assert_eq!(inserted.load(Ordering::Relaxed), out.load(Ordering::Relaxed));
    });
}

#[test]
fn the_end_of_the_runtime_ends_blocked_threads() {
    within(PATIENCE, "the receivers end", || {
        let runtime = native();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
        queue.insert(1, (), secs(3600)).unwrap();
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || queue.recv_blocking())
            })
            .collect();
        thread::sleep(ms(5));
        runtime.shutdown(PATIENCE).unwrap();
        assert!(receivers.into_iter().all(|receiver| receiver.join().unwrap().is_none()));
    });
}

/// S37. The first of two receivers has a waker that blocks.
#[test]
fn a_waker_that_blocks_delays_no_other_receiver() {
    within(PATIENCE, "the other receiver", || {
        let runtime = native();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
        let gate = Gate::new();
        let blocks = waker_that({
            let gate = gate.clone();
            move || gate.wait()
        });
        let mut first = queue.recv();
        assert!(poll_with(&mut first, &blocks).is_pending());
        let other = thread::spawn({
            let queue = queue.clone();
            move || queue.recv_blocking().map(|expired| expired.key)
        });
        thread::sleep(ms(20)); // the other waits by now, as a rule
        queue.insert_many([(1, (), ms(5)), (2, (), ms(5))]);
        assert!(other.join().expect("no panic").is_some());
        queue.insert(3, (), ms(1)).expect("a new key");
        assert!(queue.recv_blocking().is_some(), "and the next entry is delivered");
        gate.open();
    });
}

/// A runtime whose pool does not grow.
fn of_two_threads() -> Runtime {
    Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads")
}

/// The limit of a receiver needs no thread of the pool.
#[test]
fn a_limit_is_kept_while_each_thread_of_the_pool_blocks() {
    within(PATIENCE, "a limit beside callbacks that block", || {
        let runtime = of_two_threads();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
        // The second thread waits for alarms, and never runs callbacks.
        let (timers, gate) = blocked(&runtime, 1);
        let begun = Instant::now();
        assert_eq!(queue.recv_timeout(ms(5)), Err(RecvTimeoutError::Timeout));
        assert!(begun.elapsed() >= ms(5), "not early");
        // An entry that comes due within the limit is taken, though no thread is there to tell of
        // it.
        queue.insert(1, (), ms(5)).expect("a new key");
        assert_eq!(queue.recv_timeout(ms(10)).map(|expired| expired.key), Ok(1));
        gate.open();
        drop(timers);
    });
}

#[test]
fn receivers_on_all_threads_of_the_pool_keep_their_limits() {
    within(PATIENCE, "receivers on the pool", || {
        let runtime = of_two_threads();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
        let (send, receive) = mpsc::channel();
        for _ in 0..4 {
            let (queue, send) = (queue.clone(), send.clone());
            runtime.execute(move || send.send(queue.recv_timeout(ms(5))).expect("the test listens"));
        }
        for _ in 0..4 {
            assert_eq!(receive.recv(), Ok(Err(RecvTimeoutError::Timeout)));
        }
    });
}
