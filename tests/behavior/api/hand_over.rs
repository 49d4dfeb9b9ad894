//! Callbacks on an executor of the program's.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use timerqueue::{
    CancellationTokenSource, Delay, DelayQueue, OnceTimer, Timer, TimerBuilder, WallTimer, observe::CallbackJob,
};

/// A runtime whose due callbacks come out of a queue.
fn queued() -> (Runtime, Receiver<CallbackJob>) {
    let (jobs, queue) = mpsc::channel();
    let builder = Runtime::builder().queues(1).workers(3).callback_executor(move |job| _ = jobs.send(job));
    (builder.start().expect("the system has threads"), queue)
}

fn next(queue: &Receiver<CallbackJob>) -> CallbackJob {
    queue.recv_timeout(PATIENCE).expect("a job")
}

#[test]
fn s69_callbacks_run_where_the_executor_runs_them() {
    let (runtime, queue) = queued();
    let (seen, here) = (Journal::new(), thread::current().id());
    let note = |name: &'static str| {
        let (seen, here) = (seen.clone(), here);
        move || seen.push((name, thread::current().id() == here, Runtime::current().metrics().active < 100))
    };
    let (once, job) = (note("once"), note("job"));
    let timer = OnceTimer::on(&runtime, ms(1), move |tick| {
        assert!(tick.now() >= tick.scheduled());
        once();
    });
    next(&queue).run();
    runtime.execute(job);
    next(&queue).run();
    let wall = WallTimer::on(&runtime, runtime.wall_now(), {
        let wall = note("wall");
        move |_| wall()
    });
    next(&queue).run();
    let source = runtime.enter(|| CancellationTokenSource::after(ms(1)));
    let cancelled = note("cancelled");
    let registration = source.token().register(cancelled);
    next(&queue).run();
    assert_eq!(seen.take(), ["once", "job", "wall", "cancelled"].map(|name| (name, true, true)));
    runtime.execute(|| panic!("on purpose"));
    next(&queue).run();
    assert_eq!((runtime.metrics().fired(), runtime.metrics().panics), (5, 1));
    // Wakers of delays stay with the pool.
    block_on(Delay::on(&runtime, ms(1)));
    assert!(queue.try_recv().is_err());
    drop((timer, wall, registration));
}

#[test]
fn s69_a_timer_has_one_job_with_the_executor_and_counts_what_it_missed() {
    let (runtime, queue) = queued();
    let missed = Journal::new();
    let timer = Timer::on(&runtime, ms(1), ms(1), {
        let missed = missed.clone();
        move |tick| missed.push(tick.missed())
    });
    let first = next(&queue);
    thread::sleep(ms(20));
    assert!(queue.try_recv().is_err(), "the ticks meanwhile are deferred");
    first.run();
    next(&queue).run();
    timer.dispose();
    let ticks = missed.take();
    assert!(ticks.len() == 2 && ticks.iter().sum::<u64>() > 5, "{ticks:?}");
}

/// On an executor neither threads nor depths bound the running callbacks of a timer. Here each runs
/// the next inside of itself, up to the last that the timer counts, and further.
#[test]
fn s09_the_callbacks_of_a_timer_that_run_at_once_end_at_4_095() {
    const MOST: usize = 4_095;
    #[derive(Default)]
    struct Run {
        now: AtomicUsize,
        most: AtomicUsize,
        deepest: AtomicUsize,
        timer: Mutex<Option<Timer>>,
    }
    let (runtime, queue) = queued();
    let (run, queue) = (Arc::new(Run::default()), Arc::new(Mutex::new(queue)));
    let (canary, fate) = Canary::new();
    let alive = fate.clone();
    let timer = Timer::on(&runtime, NEVER, NEVER, {
        let (run, queue) = (Arc::clone(&run), Arc::clone(&queue));
        move |_| {
            let now = run.now.fetch_add(1, Ordering::Relaxed) + 1;
            run.most.fetch_max(now, Ordering::Relaxed);
            if let Some(timer) = &*run.timer.lock().unwrap() {
                assert!(timer.fire_now() != Changed::Ended);
            }
            if now < MOST {
                let job = next(&queue.lock().unwrap());
                job.run();
            } else {
                run.deepest.fetch_add(1, Ordering::Relaxed);
                let more = queue.lock().unwrap().recv_timeout(ms(20));
                if let Ok(job) = more {
                    job.run();
                }
                if run.deepest.load(Ordering::Relaxed) == 2 {
                    drop(run.timer.lock().unwrap().take()); // while as many run as are counted
                }
            }
            assert!(!alive.is_dropped(), "a callback runs");
            canary.sing();
            run.now.fetch_sub(1, Ordering::Relaxed);
        }
    });
    timer.fire_now();
    *run.timer.lock().unwrap() = Some(timer);
    // The stack is deep.
    let deep = thread::Builder::new().stack_size(256 << 20);
    let (ran, queued) = (Arc::clone(&run), Arc::clone(&queue));
    let thread = deep.spawn(move || {
        // The tick that came due at the end of the count runs after it, and goes down once more.
        for round in 1..=2 {
            let job = next(&queued.lock().unwrap());
            job.run();
            assert_eq!((ran.now.load(Ordering::Relaxed), ran.deepest.load(Ordering::Relaxed)), (0, round));
        }
    });
    within(2 * PATIENCE, "all end", move || thread.expect("a thread").join()).expect("no panic");
    assert_eq!((run.most.load(Ordering::Relaxed), runtime.metrics().panics), (MOST, 0));
    assert_eq!(runtime.metrics().fired(), 2 * MOST as u64);
    assert!(fate.is_dropped());
    assert!(queue.lock().unwrap().try_recv().is_err(), "no job of a dropped timer");
}

/// S9, S16. A tick that came due while the job waited is with the executor before the callback
/// begins.
#[test]
fn s69_a_callback_that_blocks_does_not_keep_the_ticks_of_its_timer() {
    let (runtime, queue) = queued();
    let (gate, count) = (Gate::new(), Count::new());
    let timer = Timer::on(&runtime, ms(1), ms(1), {
        let (gate, count) = (gate.clone(), count.clone());
        move |_| {
            count.bump();
            gate.wait();
        }
    });
    let late = next(&queue);
    thread::sleep(ms(5));
    let mut threads = vec![thread::spawn(move || late.run())];
    for begun in 1..=3 {
        eventually("it has begun", || count.get() == begun);
        let mut job = next(&queue);
        if begun == 3 {
            assert_eq!(timer.change(NEVER, NEVER), Changed::WasWaiting);
            assert_eq!(timer.fire_now(), Changed::WasIdle);
            job.run(); // of the old schedule: void, and the tick of the new one takes its place
            job = next(&queue);
        }
        threads.push(thread::spawn(move || job.run()));
    }
    eventually("each began beside those that block", || count.get() == 4);
    gate.open();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(queue.try_recv().is_err() && timer.dispose_and_wait() == timerqueue::Waited::Ended);
}

#[test]
fn s69_a_changed_or_disposed_timer_does_not_start_from_its_job() {
    let (runtime, queue) = queued();
    let count = Count::new();
    let timer = Timer::on(&runtime, ms(1), NEVER, count.callback());
    let job = next(&queue);
    assert_eq!(timer.reset(secs(3600)), Changed::WasWaiting);
    job.run();
    assert_eq!(count.get(), 0);
    timer.fire_now();
    let job = next(&queue);
    timer.dispose();
    job.run();
    assert_eq!((count.get(), runtime.metrics().fired()), (0, 0));
}

#[test]
fn s69_a_dropped_job_disposes_its_timer_and_an_executor_that_panics_is_contained() {
    let (runtime, queue) = queued();
    let (canary, fate) = Canary::new();
    let timer = TimerBuilder::on(&runtime).period(ms(1)).start_exclusive(move |_| canary.sing());
    drop(next(&queue));
    assert!(fate.is_dropped() && timer.reset(secs(1)) == Changed::Ended);
    assert!(timer.dispose_and_wait() == timerqueue::Waited::Ended);
    let panics = Runtime::builder().workers(2).callback_executor(|_| panic!("on purpose")).start().expect("starts");
    let (canary, fate) = Canary::new();
    panics.execute(move || canary.sing());
    eventually("it is counted and dropped", || panics.metrics().panics == 1 && fate.is_dropped());
    block_on(Delay::on(&panics, ms(1)));
}

#[test]
fn s69_a_shutdown_waits_for_callbacks_that_run_and_voids_those_that_do_not() {
    let (runtime, queue) = queued();
    let (gate, entered) = (Gate::new(), Count::new());
    runtime.execute({
        let (gate, entered) = (gate.clone(), entered.clone());
        move || {
            entered.bump();
            gate.wait();
        }
    });
    let running = next(&queue);
    let thread = thread::spawn(move || running.run());
    eventually("it runs", || entered.get() == 1);
    let (canary, fate) = Canary::new();
    runtime.execute(move || canary.sing());
    let waiting = next(&queue);
    let one_is_left = || matches!(runtime.shutdown(ms(20)), Err(ShutdownError::TimedOut { threads: 1, .. }));
    eventually("the threads of the pool have ended", one_is_left);
    waiting.run();
    assert!(fate.is_dropped() && runtime.metrics().fired() == 0, "the other callback has not ended");
    gate.open();
    runtime.shutdown(PATIENCE).expect("it has ended");
    thread.join().expect("no panic");
}

#[test]
fn s69_a_shutdown_inside_of_a_callback_does_not_wait_for_it() {
    within(PATIENCE, "shutdown", || {
        let (runtime, queue) = queued();
        let result = Journal::new();
        runtime.execute({
            let (runtime, result) = (runtime.clone(), result.clone());
            move || result.push(runtime.shutdown(PATIENCE))
        });
        next(&queue).run();
        assert_eq!(result.take(), [Ok(())]);
    });
}

/// S33. With another callback of this thread in between: of another runtime, of the same, of a
/// manual clock.
#[test]
fn s69_a_shutdown_waits_for_no_callback_that_its_thread_is_inside_of() {
    within(2 * PATIENCE, "shutdown", || {
        for between in 0..3 {
            let (runtime, queue) = queued();
            let (other, others) = if between == 0 { queued() } else { (runtime.clone(), mpsc::channel().1) };
            let (queue, result) = (Arc::new(Mutex::new(queue)), Journal::new());
            runtime.execute({
                let (runtime, queue, result) = (runtime.clone(), Arc::clone(&queue), result.clone());
                move || {
                    let ended = result.clone();
                    let shut_down = move || ended.push(runtime.shutdown(PATIENCE));
                    if between == 2 {
                        let (clock, manual) = manual();
                        manual.execute(shut_down);
                        clock.advance(ns(0));
                    } else {
                        other.execute(shut_down);
                        let job = if between == 0 { next(&others) } else { next(&queue.lock().unwrap()) };
                        job.run();
                    }
                    assert_eq!(result.take(), [Ok(())], "{between}");
                    result.push(Ok(()));
                }
            });
            let job = next(&queue.lock().unwrap());
            job.run();
            assert_eq!(result.take(), [Ok(())], "{between}");
        }
    });
}

#[test]
fn s69_callbacks_that_shut_their_runtime_down_do_not_wait_for_each_other() {
    within(PATIENCE, "shutdown", || {
        let (runtime, queue) = queued();
        let (result, met) = (Journal::new(), Arc::new(std::sync::Barrier::new(2)));
        for _ in 0..2 {
            let (runtime, result, met) = (runtime.clone(), result.clone(), Arc::clone(&met));
            runtime.clone().execute(move || {
                met.wait();
                result.push(runtime.shutdown(NEVER));
            });
        }
        let (one, other) = (next(&queue), next(&queue));
        thread::scope(|scope| {
            scope.spawn(|| one.run());
            other.run();
        });
        assert_eq!(result.take(), [Ok(()), Ok(())]);
    });
}

#[test]
fn s69_on_tokio_and_in_callbacks_that_block() {
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("nothing to refuse");
    let handle = executor.handle().clone();
    let runtime =
        Runtime::builder().workers(2).callback_executor(move |job| _ = handle.spawn_blocking(move || job.run()));
    let runtime = runtime.start().expect("the system has threads");
    let (gate, count) = (Gate::new(), Count::new());
    for _ in 0..8 {
        let (gate, count) = (gate.clone(), count.clone());
        runtime.execute(move || {
            count.bump();
            gate.wait();
        });
    }
    eventually("all run at once", || count.get() == 8);
    gate.open();
    runtime.shutdown(PATIENCE).expect("all end");
    assert_eq!(runtime.metrics().fired(), 8);
}

/// S45, S46. A timed cancel is over with its job, and another can be set.
#[test]
fn s45_s46_after_a_dropped_job_a_source_can_be_cancelled_by_time_again() {
    let (runtime, queue) = queued();
    let source = CancellationTokenSource::on(&runtime);
    for _ in 0..2 {
        source.cancel_after(ms(1));
        drop(next(&queue));
        assert!(!source.is_cancelled());
    }
    assert!(source.try_reset(), "no timed cancel is under way");
    assert!(source.try_cancel_after(ms(1)).is_ok());
    next(&queue).run();
    assert!(source.is_cancelled());
}

/// The wall timer of a delay queue is the crate's own: no executor can drop or hold up its job.
#[test]
fn s69_the_timers_of_a_delay_queue_are_not_handed_over() {
    let (runtime, queue) = queued();
    let delays: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
    for key in 0..2 {
        delays.insert(key, (), runtime.wall_now() + ms(5)).expect("a new key");
        assert_eq!(delays.recv_timeout(PATIENCE).expect("it rings").key, key);
    }
    assert!(queue.try_recv().is_err(), "no job was handed over");
}

/// As the destructor of a panic handler.
#[test]
fn s69_a_panicking_destructor_of_an_executor_is_contained() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let owned = Panics;
    let runtime = Runtime::builder()
        .callback_executor(move |job| {
            let _owned = &owned;
            job.run();
        })
        .start()
        .expect("threads");
    runtime.shutdown(PATIENCE).expect("nothing runs");
    assert!(catch_unwind(AssertUnwindSafe(|| drop(runtime))).is_ok());
}
