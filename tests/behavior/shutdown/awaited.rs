//! A shutdown waits for the callbacks that run, and for the end of the threads (S33).

use super::*;

#[test]
fn s33_running_callbacks_are_awaited_and_threads_end() {
    within(PATIENCE, "a shutdown", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-await", 5);
        let (about, begin) = mpsc::channel();
        let closer = thread::spawn({
            let (runtime, finished) = (runtime.clone(), finished.clone());
            move || {
                about.send(()).expect("the test listens");
                (runtime.shutdown(PATIENCE), finished.get())
            }
        });
        begin.recv().expect("it begins");
        gate.open();
        assert_eq!(closer.join().expect("no panic"), (Ok(()), 5));
        all_gone("tq-await");
        drop(timers);
    });
}

#[test]
fn s33_shutdown_with_a_time_limit() {
    within(PATIENCE, "shutdowns with a limit", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-late", 2);
        for limit in [Duration::ZERO, ms(1), ms(20)] {
            let begin = Instant::now();
            let late = runtime.shutdown(limit).expect_err("two callbacks are blocked");
            assert!(begin.elapsed() >= limit && late.threads() >= 2, "{late:?}");
            assert!(late.to_string().contains(&late.threads().to_string()), "{late}");
        }
        eventually("idle threads are gone", || threads_named("tq-late") == 2);
        assert_eq!(runtime.shutdown(ms(1)).map_err(|late| late.threads()), Err(2));
        gate.open();
        assert_eq!(runtime.shutdown(NEVER), Ok(()), "a later call waits again");
        assert_eq!((finished.get(), runtime.metrics().threads.alive), (2, 0));
        all_gone("tq-late");
        assert_eq!(runtime.shutdown(Duration::ZERO), Ok(()));
        drop(timers);
    });
}

#[test]
fn s33_shutdown_from_several_threads_at_once() {
    within(PATIENCE, "shutdowns from several threads", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-several", 3);
        let closers: Vec<_> = (0..4)
            .map(|_| {
                let (runtime, finished) = (runtime.clone(), finished.clone());
                thread::spawn(move || (runtime.shutdown(PATIENCE), finished.get()))
            })
            .collect();
        gate.open();
        for closer in closers {
            assert_eq!(closer.join().expect("no panic"), (Ok(()), 3));
        }
        drop(timers);
    });
}

#[test]
fn s33_shutdown_races_with_everything() {
    within(2 * PATIENCE, "shutdowns in the middle of it all", || {
        let mut random = Random(33);
        for round in 0..60 {
            let runtime = Runtime::builder().queues(2).workers(2).start().expect("the system has threads");
            let over = Arc::new(AtomicBool::new(false));
            let (started_late, running) = (Count::new(), Arc::new(AtomicUsize::new(0)));
            let busy: Vec<_> = (0..2)
                .map(|_| {
                    let (runtime, over) = (runtime.clone(), Arc::clone(&over));
                    let (late, running) = (started_late.clone(), Arc::clone(&running));
                    let mut random = Random(random.next());
                    thread::spawn(move || {
                        let mut kept = Vec::new();
                        loop {
                            let (over, late, running) = (Arc::clone(&over), late.clone(), Arc::clone(&running));
                            let timer =
                                Timer::on(&runtime, us(random.below(80)), us(1 + random.below(50)), move |tick| {
                                    running.fetch_add(1, Ordering::SeqCst);
                                    if over.load(Ordering::SeqCst) {
                                        late.bump();
                                    }
                                    let _ = tick.change(us(7), us(9));
                                    running.fetch_sub(1, Ordering::SeqCst);
                                });
                            if timer.change(us(random.below(60)), NEVER) == Changed::Ended {
                                return kept;
                            }
                            match random.below(3) {
                                0 => timer.detach(),
                                1 => drop(timer),
                                _ => kept.push(timer),
                            }
                        }
                    })
                })
                .collect();
            let until = runtime.now() + us(random.below(2_000));
            while runtime.now() < until {
                thread::yield_now();
            }
            runtime.shutdown(PATIENCE).expect("no callback blocks");
            assert_eq!(running.load(Ordering::SeqCst), 0, "round {round}: running callbacks are awaited");
            over.store(true, Ordering::SeqCst);
            let kept: Vec<_> = busy.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
            for timer in &kept {
                assert_eq!(timer.change(ns(1), NEVER), Changed::Ended);
            }
            assert_eq!((started_late.get(), runtime.metrics().active), (0, 0), "round {round}");
        }
    });
}
