//! Memory cost of timers: number of allocations, bytes as requested and as malloc gives them, and
//! all memory freed in the end (S19, S23, S33).
//!
//! Ground rules. Allocations are counted by thread, so tests may run side by side; tests of a
//! pool's threads run in child processes. Memory that grows with use and not with the number of
//! timers (such as the vectors of virtual time) is no cost of a timer.

#![allow(unsafe_code)] // asks the system for the size of a page

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::allocator::{allocations, allocations_of_all, in_use, mine};
use crate::support::child::in_child;
use crate::support::{Count, Gate, NEVER, PATIENCE, eventually, manual, ms, native, ns, secs, us};
use timerqueue::{
    CancellationTokenSource, Delay, ManualClock, OnceTimer, Runtime, Tick, Timer, TimerBuilder, Waited, WallTick,
    WallTimer,
};

#[test]
fn the_allocator_counts() {
    let before = mine();
    let (count, block) = allocations(|| Box::new(black_box([0u8; 100])));
    let after = mine();
    assert_eq!((count, after.asked - before.asked), (1, 100), "else nothing in this file means anything");
    assert!(after.used - before.used >= 104);
    drop(block);
    assert_eq!((mine().asked, mine().used), (before.asked, before.used));
}

// -------------------------------------------------------------------------------------------- one allocation, no more

/// A runtime whose lists have been used before.
fn warm(runtime: Runtime) -> Runtime {
    for due in [1, 100, 1_000, 1_000_000] {
        let timer = Timer::on(&runtime, secs(due), ms(1), |_| {});
        let _ = timer.change(secs(due + 1), ms(1));
        let _ = timer.dispose_and_wait();
    }
    runtime
}

/// Makes a callback own something.
fn use_up<T>(owned: T) {
    let _ = black_box(owned);
}

#[test]
fn creating_a_timer_is_one_allocation() {
    let owned = [1u64; 16];
    for runtime in [warm(manual().1), warm(native())] {
        for due in [secs(10), secs(1_000), secs(1_000_000), NEVER] {
            let made = |count_and_timer: (u64, Timer)| assert_eq!(count_and_timer.0, 1, "due {due:?}");
            made(allocations(|| Timer::on(&runtime, due, secs(1), |_| {})));
            made(allocations(|| Timer::on(&runtime, due, NEVER, move |_| use_up(owned))));
            made(allocations(|| {
                TimerBuilder::on(&runtime).due(due).period(secs(1)).start_exclusive(move |_| use_up(owned))
            }));
            made(allocations(|| TimerBuilder::on(&runtime).due(due).period(secs(1)).start(|_| {})));
            let (count, once) = allocations(|| OnceTimer::on(&runtime, due, move |_| use_up(owned)));
            assert_eq!(count, 1);
            drop(once);
        }
    }
}

#[test]
fn changing_and_disposing_allocate_nothing() {
    for runtime in [warm(manual().1), warm(native())] {
        let mut timers: Vec<Timer> = (0..100).map(|i| Timer::on(&runtime, secs(10 + i), NEVER, |_| {})).collect();
        let once = OnceTimer::on(&runtime, secs(10), |_| {});
        assert_eq!(runtime.metrics().active, 101);
        let (count, ()) = allocations(|| {
            for due in [5, 500, 50, 5_000_000, 5_000] {
                for timer in &timers {
                    let _ = timer.change(secs(due), secs(due));
                }
                let _ = once.reset(secs(due));
            }
            for timer in &timers[..30] {
                let _ = timer.change(NEVER, NEVER);
            }
            assert!(runtime.metrics().active > 0 && runtime.next_due().is_some());
            timers[..40].iter().for_each(Timer::dispose);
            for timer in &timers[40..60] {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            }
            timers.truncate(80);
            timers.drain(60..).for_each(Timer::detach);
            timers.clear();
            drop(once);
        });
        assert_eq!(count, 0);
    }
}

#[test]
fn firing_on_virtual_time_allocates_nothing_per_timer() {
    let clock = ManualClock::new();
    let runtime = warm(Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse"));
    let per_advance = |timers: u64| {
        let fired = Count::new();
        let timers: Vec<Timer> = (0..timers).map(|_| Timer::on(&runtime, ms(10), ms(10), fired.callback())).collect();
        clock.advance(ms(10));
        let (count, run) = allocations(|| clock.advance(ms(10)));
        assert_eq!(run, timers.len() as u64);
        count
    };
    let (few, many) = (per_advance(10), per_advance(1_000));
    // The vectors of the clock double as they grow; a hundred times as many timers give some seven
    // doublings.
    assert!(many <= few + 30, "{few} allocations for 10 timers, {many} for 1,000");
    // A callback that changes its own timer allocates no memory.
    let timer = Timer::on(&runtime, ms(1), NEVER, |tick| {
        let (count, _) = allocations(|| tick.change(ms(1), NEVER));
        assert_eq!(count, 0);
    });
    clock.advance(ms(5));
    assert_eq!(runtime.metrics().panics, 0);
    drop(timer);
}

#[test]
fn firing_on_the_pool_allocates_nothing() {
    in_child(module_path!(), "firing_on_the_pool_allocates_nothing", || {
        // No more threads than may poll, and no growth: starting a thread is not a cost of a timer.
        let runtime = Runtime::builder().queues(1).workers(3).max_threads(3).start().expect("the system has threads");
        let ticks = Count::new();
        let alone = Timer::on(&runtime, us(500), us(500), ticks.callback());
        let during = |more: usize| {
            let until = ticks.get() + more;
            let before = allocations_of_all();
            eventually("ticks", || ticks.get() >= until);
            allocations_of_all() - before
        };
        // How many allocations come before the first round without any.
        let before_silence = |more| {
            let mut rounds = (0..20).map(|_| during(more));
            let mut in_all = 0;
            let silent = rounds.any(|allocations| {
                in_all += allocations;
                allocations == 0
            });
            assert!(silent, "{more} ticks without an allocation, in one of twenty rounds");
            in_all
        };
        before_silence(300); // the threads have started
        // Swept together, handed over, stolen.
        let some: Vec<Timer> = (0..50).map(|_| Timer::on(&runtime, ms(2), ms(2), ticks.callback())).collect();
        let count = before_silence(5_000);
        println!("{count} allocations until 5,000 ticks of fifty timers took none");
        // Each of three workers keeps four batches; only with more of its own under way it
        // allocates again. A sweep that allocated would come to two hundred in a round.
        assert!(count <= 24, "{count} allocations for batches");
        let many_timers: Vec<Timer> = (0..400).map(|_| Timer::on(&runtime, ms(5), ms(5), ticks.callback())).collect();
        during(5_000);
        let count = during(20_000);
        println!("{count} allocations in 20,000 ticks of many timers");
        assert!(count < 100, "{count} allocations in 20,000 ticks"); // a sweep that allocates: 500
        drop(some);
        drop((alone, many_timers));
        runtime.shutdown(PATIENCE).expect("nothing blocks");
    });
}

// ---------------------------------------------------------------------------------------------------------------- size

#[test]
fn a_handle_is_one_pointer() {
    assert_eq!(size_of::<Timer>(), 8);
    assert_eq!(size_of::<Option<Timer>>(), 8, "with room for none");
    assert_eq!((size_of::<OnceTimer>(), size_of::<Runtime>()), (8, 8));
}

#[test]
fn a_pending_timer_takes_at_most_128_bytes() {
    const COUNT: i64 = 10_000;
    for runtime in [warm(manual().1), warm(native())] {
        let mut timers = Vec::with_capacity(COUNT as usize);
        let before = mine();
        for i in 0..COUNT as u64 {
            // A payload of eight bytes.
            timers.push(Timer::on(&runtime, secs(100 + i), NEVER, move |_| use_up(i)));
        }
        let after = mine();
        assert_eq!(after.allocations - before.allocations, COUNT as u64);
        let handle = size_of::<Timer>() as i64;
        let asked = (after.asked - before.asked) / COUNT + handle;
        let used = (after.used - before.used) / COUNT + handle;
        timers.clear();
        let emptied = mine();
        assert_eq!((emptied.asked, emptied.used), (before.asked, before.used), "and gives all of them back");
        println!("a pending timer with 8 bytes to own: {asked} bytes asked for, {used} used, handle included");
        assert!(asked <= 128 && used <= 128, "{asked} bytes asked for, {used} used");
    }
}

#[test]
fn a_pending_delay_takes_at_most_128_bytes() {
    const COUNT: usize = 10_000;
    let runtime = warm(manual().1);
    let mut delays: Vec<_> = (0..COUNT as u64).map(|i| Delay::on(&runtime, secs(100 + i))).collect();
    let before = mine();
    let mut context = Context::from_waker(Waker::noop());
    for delay in &mut delays {
        assert_eq!(Pin::new(delay).poll(&mut context), Poll::Pending);
    }
    let after = mine();
    delays.clear();
    assert_eq!(mine().used, before.used, "and gives all of them back");
    let used = (after.used - before.used) as usize / COUNT + size_of::<timerqueue::Delay>();
    println!("a pending delay: {used} bytes used, itself included");
    assert!(used <= 128, "{used} bytes used");
}

/// Waiters for the end of a timer take memory while they wait, and no longer.
#[test]
fn s21_waiters_that_gave_up_leave_no_memory() {
    const WAITERS: usize = 10_000;
    let runtime = native();
    let (entered, gate) = (Gate::new(), Gate::new());
    let timer = Timer::on(&runtime, Duration::ZERO, NEVER, {
        let (entered, gate) = (entered.clone(), gate.clone());
        move |_| {
            entered.open();
            gate.wait();
        }
    });
    entered.wait();
    let mut context = Context::from_waker(Waker::noop());
    let mut waiting = Vec::with_capacity(WAITERS);
    // The list of waited-for timers keeps a node of its own.
    let _ = Pin::new(&mut timer.dispose_async()).poll(&mut context);
    let before = mine();
    let mut each = 0;
    for _ in 0..3 {
        waiting.extend((0..WAITERS).map(|_| timer.dispose_async()));
        for disposal in &mut waiting {
            assert_eq!(Pin::new(disposal).poll(&mut context), Poll::Pending);
        }
        each = (mine().used - before.used) / WAITERS as i64;
        assert!((1..=128).contains(&each), "{each} bytes");
        waiting.clear();
        assert_eq!((mine().asked, mine().used), (before.asked, before.used));
    }
    println!("a waiter for the end of a timer takes {each} bytes");
    gate.open();
    assert_eq!(timer.dispose_and_wait(), Waited::Ended);
}

/// Memory of this process: mapped, and resident.
#[cfg(target_os = "linux")]
fn mapped_and_resident() -> [usize; 2] {
    // SAFETY: the call only reads a constant of the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let statm = std::fs::read_to_string("/proc/self/statm").expect("linux");
    let mut pages = statm.split(' ').map(|pages| pages.parse::<usize>().expect("pages") * page);
    std::array::from_fn(|_| pages.next().expect("two of seven"))
}

#[test]
fn s45_a_source_is_the_node_of_its_timed_cancel() {
    let (_clock, runtime) = manual();
    let (count, source) = allocations(|| CancellationTokenSource::on(&runtime));
    assert_eq!(count, 1);
    for after in [NEVER, secs(1), secs(2), NEVER] {
        let (count, done) = allocations(|| source.try_cancel_after(after));
        done.expect("a runtime of its own");
        assert_eq!((count, runtime.metrics().active), (0, usize::from(after != NEVER)));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn slots_are_in_memory_where_they_are_used_and_are_given_back() {
    in_child(module_path!(), "slots_are_in_memory_where_they_are_used_and_are_given_back", || {
        const QUEUES: usize = 256;
        let start = || Runtime::builder().manual_clock(&ManualClock::new()).queues(QUEUES).start().expect("starts");
        drop(start());
        let [mapped, resident] = mapped_and_resident();
        let runtime = start();
        let [more_mapped, more_resident] = mapped_and_resident();
        let [slots, each] = [(more_mapped - mapped) / QUEUES, more_resident.saturating_sub(resident) / QUEUES];
        println!("a queue that is not used: {each} of {slots} bytes resident");
        assert!(each < 16 << 10, "{each} bytes");
        assert!(slots > 256 << 10, "only {slots} bytes more: this test does not see the slots");
        drop(runtime);
        let left = mapped_and_resident()[0].saturating_sub(mapped) / QUEUES;
        assert!(left < 16 << 10, "{left} bytes of {slots} stay with each queue that is gone");
    });
}

// ------------------------------------------------------------------------------------------------ all memory is freed

/// Checks that this thread frees all memory that it allocates in `action`.
fn comes_back(what: &str, action: impl FnOnce()) {
    // The process has a list of its runtimes. It grows with those of other tests, and keeps its
    // capacity.
    static ROOM: Once = Once::new();
    ROOM.call_once(|| drop(std::array::from_fn::<_, 64, _>(|_| manual())));
    let before = mine();
    action();
    let after = mine();
    assert_eq!((after.asked, after.used), (before.asked, before.used), "{what}");
}

#[test]
fn dropping_and_disposing_give_everything_back() {
    let (clock, runtime) = manual();
    clock.advance(ms(1));
    for due in [ns(0), ms(1), ms(400), secs(1_000), secs(1_000_000), NEVER] {
        comes_back("drop", || drop(Timer::on(&runtime, due, ms(1), |_| {})));
        comes_back("drop of a timer with a name", || {
            drop(TimerBuilder::on(&runtime).due(due).name("with a name").start(|_| {}));
        });
        comes_back("drop of a once-timer", || {
            let owned = vec![1u8; 1_000];
            drop(OnceTimer::on(&runtime, due, move |_| drop(owned)));
        });
        comes_back("dispose", || {
            let owned = vec![1u8; 1_000];
            let timer = TimerBuilder::on(&runtime).due(due).period(ms(1)).start_exclusive(move |_| use_up(&owned));
            let before = mine();
            timer.dispose();
            assert!(mine().asked <= before.asked - 1_000, "what it owned is gone though the handle is there");
        });
        comes_back("waiting", || {
            let timer = Timer::on(&runtime, due, ms(1), |_| {});
            let waiting = timer.dispose_async();
            drop(timer);
            assert_eq!(crate::support::block_on(waiting), Waited::Ended);
        });
    }
}

#[test]
fn detached_timers_give_everything_back() {
    let (clock, runtime) = manual();
    // The clock keeps its vector for swept jobs.
    OnceTimer::on(&runtime, ms(1), |_| {}).detach();
    clock.advance(ms(1));
    for round in 0..3 {
        comes_back("detached", || {
            let owned = vec![1u8; 1_000];
            OnceTimer::on(&runtime, ms(2), move |_| drop(owned)).detach();
            let owned = vec![1u8; 1_000];
            Timer::on(&runtime, ms(400), Duration::ZERO, move |_| use_up(&owned)).detach();
            let mut left = 3;
            TimerBuilder::on(&runtime)
                .period(ms(1))
                .start_exclusive(move |tick| {
                    left -= 1;
                    if left == 0 {
                        tick.dispose();
                    }
                })
                .detach();
            Timer::on(&runtime, NEVER, NEVER, |_| {}).detach();
            assert_eq!(clock.advance(secs(1)), 5, "round {round}");
        });
    }
}

/// In a process of its own: all runtimes of a process stand in one list, which any thread may
/// enlarge.
#[test]
fn a_runtime_on_virtual_time_gives_everything_back() {
    in_child(module_path!(), "a_runtime_on_virtual_time_gives_everything_back", || {
        drop(manual()); // the list keeps its first node
        for runtime_first in [true, false] {
            for shut_down in [true, false] {
                comes_back("a runtime", || {
                    let clock = ManualClock::new();
                    let runtime = Runtime::builder().manual_clock(&clock).queues(3).start().expect("nothing to refuse");
                    let owned = vec![1u8; 1_000];
                    let mut timers: Vec<Timer> =
                        (0..500u64).map(|i| Timer::on(&runtime, ms(i * i), ms(i), |_| {})).collect();
                    timers.push(Timer::on(&runtime, secs(1), NEVER, move |_| use_up(&owned)));
                    for i in 0..100 {
                        let owned = vec![1u8; 100];
                        Timer::on(&runtime, secs(i), secs(1), move |_| use_up(&owned)).detach();
                    }
                    clock.advance(secs(5));
                    timers.truncate(400);
                    if shut_down {
                        runtime.shutdown(Duration::ZERO).expect("no threads");
                        let late = Timer::on(&runtime, secs(1), NEVER, |_| {});
                        timers.push(late);
                    }
                    if runtime_first {
                        drop(runtime);
                        clock.advance(secs(1));
                        drop(timers);
                    } else {
                        drop(timers);
                        drop(runtime);
                    }
                });
            }
        }
    });
}

/// A detached timer is counted out at its last tick. A callback that inserts its timer again counts
/// the timer in again, and the next last tick counts it out.
#[test]
fn a_runtime_whose_detached_timers_start_themselves_again_gives_everything_back() {
    for clock_goes_on_for in [ms(1), ms(25), secs(1)] {
        comes_back("a runtime", || {
            let (clock, runtime) = manual();
            let again = |tick: &Tick<'_>| assert!(!tick.change(ms(10), Duration::ZERO).was_waiting());
            let mut left = 3;
            let three_times = move |tick: &Tick<'_>| {
                left -= 1;
                if left > 0 {
                    again(tick);
                }
            };
            let mut first = true;
            let at_once = move |tick: &Tick<'_>| {
                if std::mem::take(&mut first) {
                    tick.change(Duration::ZERO, ms(10));
                }
            };
            Timer::on(&runtime, ms(1), Duration::ZERO, again).detach();
            TimerBuilder::on(&runtime).due(ms(1)).period(Duration::ZERO).start_exclusive(at_once).detach();
            TimerBuilder::on(&runtime).due(ms(1)).period(Duration::ZERO).start_exclusive(three_times).detach();
            OnceTimer::on(&runtime, ms(1), |_| {}).detach();
            let wall = clock.wall();
            let once_more = move |tick: &WallTick<'_>| {
                if tick.scheduled() < wall + ms(20) {
                    tick.reset_at(wall + ms(20));
                }
            };
            WallTimer::on(&runtime, wall + ms(1), once_more).detach();
            clock.advance(clock_goes_on_for);
            drop(runtime);
        });
    }
}

#[test]
fn a_runtime_that_callbacks_end_gives_everything_back() {
    comes_back("a runtime shut down by a callback", || {
        let (clock, runtime) = manual();
        let closer = runtime.clone();
        OnceTimer::on(&runtime, ms(10), move |_| closer.shutdown(Duration::ZERO).expect("no threads")).detach();
        let kept = Timer::on(&runtime, ms(10), ms(1), |_| {});
        Timer::on(&runtime, ms(10), ms(1), |_| {}).detach();
        Timer::on(&runtime, ms(20), ms(1), |_| {}).detach();
        drop(runtime);
        clock.advance(secs(1));
        drop(kept);
    });
}

#[test]
fn runtimes_on_real_time_give_everything_back() {
    in_child(module_path!(), "runtimes_on_real_time_give_everything_back", || {
        let round = |i: u64| {
            let runtime = Runtime::builder().queues(2).workers(2).start().expect("the system has threads");
            let fired = Count::new();
            let mut timers: Vec<Timer> =
                (0..200).map(|k| Timer::on(&runtime, us(k * 10), us(300), fired.callback())).collect();
            for k in 0..200 {
                let owned = vec![1u8; 100];
                OnceTimer::on(&runtime, us(k * 13), move |_| drop(owned)).detach();
                // Fires once more, at once or a little later.
                let mut again = k % 3 > 0;
                let restart = move |tick: &Tick<'_>| {
                    if std::mem::take(&mut again) {
                        tick.change(us(k % 3 - 1), Duration::ZERO);
                    }
                };
                TimerBuilder::on(&runtime).due(us(k * 11)).period(Duration::ZERO).start_exclusive(restart).detach();
                Timer::on(&runtime, us(k * 7), us(400), fired.callback()).detach();
            }
            eventually("some fire", || fired.get() > 100);
            if i % 2 == 0 {
                runtime.shutdown(PATIENCE).expect("nothing blocks");
                timers.clear();
                drop(runtime);
            } else {
                // No thread waits for them: threads and timers end by themselves.
                drop(runtime);
                drop(timers);
            }
        };
        let settled = || {
            eventually("all threads are gone", || crate::support::process::threads_named("timerqueue") == 0);
            in_use()
        };
        (0..10).for_each(round);
        let before = settled();
        (0..30).for_each(round);
        let after = settled();
        println!("{before} bytes before, {after} after");
        // A leaked timer would keep its queue, more than 100,000 bytes, in each of 30 rounds.
        // Memory deferred by the deques is freed later, and is much less.
        assert!(after <= before + 1_000_000, "{before} bytes before 30 rounds, {after} after");
    });
}
