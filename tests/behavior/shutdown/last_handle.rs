//! Dropping the last handle of a runtime ends the runtime (S33).

use super::*;

#[test]
fn s33_dropping_the_last_handle_ends_the_runtime() {
    within(PATIENCE, "dropping runtimes", || {
        let (entered, gate) = (Gate::new(), Gate::new());
        let fired = Count::new();
        let (pending, pending_fate) = Canary::new();
        let (running, running_fate) = Canary::new();
        let runtime = Runtime::builder().queues(2).thread_name("tq-last").start().expect("the system has threads");
        let clone = runtime.clone();
        let blocked = Timer::on(&runtime, Duration::ZERO, ms(1), {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |tick| {
                running.sing();
                let _ = tick.change(NEVER, NEVER);
                entered.open();
                gate.wait();
            }
        });
        OnceTimer::on(&runtime, secs(1_000), move |_| pending.sing()).detach();
        let mut idle = Timer::on(&runtime, NEVER, NEVER, fired.callback());
        entered.wait();
        drop(runtime);
        assert_eq!(idle.change(secs(1_000), NEVER), Changed::WasIdle, "another handle is left");
        drop(clone);
        assert!(pending_fate.is_dropped(), "pending timers go at once");
        assert_eq!(idle.change(ms(1), NEVER), Changed::Ended);
        assert_eq!(blocked.change(ms(1), NEVER), Changed::Ended);
        assert!(!running_fate.is_dropped(), "running callbacks are not waited for");
        // A handle may be dropped and used in any order with the rest.
        let waiter = thread::spawn(move || blocked.dispose_and_wait());
        gate.open();
        assert_eq!(waiter.join().expect("no panic"), Waited::Ended);
        all_gone("tq-last");
        assert!(running_fate.is_dropped());
        idle = within(PATIENCE, "a handle on another thread", move || {
            idle.dispose();
            idle
        });
        drop(idle);
        assert_eq!(fired.get(), 0);
    });
}

#[test]
fn s33_the_last_handle_may_be_dropped_by_a_callback() {
    within(PATIENCE, "a callback with the last handle", || {
        for due in [Duration::ZERO, ms(1)] {
            let runtime =
                Runtime::builder().queues(1).thread_name("tq-suicide").start().expect("the system has threads");
            let slot = Arc::new(Mutex::new(None));
            let (send, receive) = mpsc::channel();
            let timer = Timer::on(&runtime, due, ms(1), {
                let slot = Arc::clone(&slot);
                move |tick| {
                    let last: Option<Runtime> = lock(&slot).take();
                    let had = last.is_some();
                    drop(last);
                    let _ = send.send((had, tick.change(ms(1), ms(1))));
                }
            });
            // Only after the timer is made; otherwise it might be disposed from the start.
            *lock(&slot) = Some(runtime);
            let last = receive.iter().find(|(had, _)| *had);
            assert_eq!(last, Some((true, Changed::Ended)));
            all_gone("tq-suicide");
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        }
        let (clock, runtime) = manual();
        let slot = Arc::new(Mutex::new(None));
        let fired = Count::new();
        let timers = [
            OnceTimer::on(&runtime, ms(1), {
                let slot: Arc<Mutex<Option<Runtime>>> = Arc::clone(&slot);
                move |_| drop(lock(&slot).take())
            }),
            OnceTimer::on(&runtime, ms(2), {
                let fired = fired.clone();
                move |_| {
                    fired.bump();
                }
            }),
        ];
        *lock(&slot) = Some(runtime);
        assert_eq!((clock.advance(secs(1)), fired.get()), (1, 0));
        drop(timers);
    });
}

#[test]
fn s33_a_callback_that_owns_its_runtime_keeps_it_until_shutdown() {
    let (clock, runtime) = manual();
    let ticks = Count::new();
    let owner = runtime.clone();
    Timer::on(&runtime, ms(1), ms(1), {
        let ticks = ticks.clone();
        move |_| {
            let _ = owner.metrics().active;
            ticks.bump();
        }
    })
    .detach();
    let closer = OnceTimer::on(&runtime, ms(10), {
        let slot = Mutex::new(Some(runtime.clone()));
        move |_| lock(&slot).take().expect("once").shutdown(Duration::ZERO).expect("no threads")
    });
    drop(runtime);
    clock.advance(secs(1));
    assert_eq!(ticks.get(), 10);
    drop(closer);
}
