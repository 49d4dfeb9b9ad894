//! Waiting for the end of running callbacks (S21).

use super::*;

#[test]
fn s21_every_waiter_waits_for_every_running_callback() {
    within(2 * PATIENCE, "waiting for callbacks", || {
        for kind in ["overlapping", "exclusive", "once"] {
            let runtime = native();
            let (entered, finished, gate) = (Count::new(), Count::new(), Gate::new());
            let (canary, fate) = Canary::new();
            let run = {
                let (entered, finished, gate) = (entered.clone(), finished.clone(), gate.clone());
                move |_: &Tick<'_>| {
                    canary.sing();
                    entered.bump();
                    gate.wait();
                    finished.bump();
                }
            };
            // Several callbacks at once where that can be.
            let (timer, running) = match kind {
                "overlapping" => (Arc::new(Timer::on(&runtime, ms(1), ms(1), run)), 3),
                "exclusive" => (Arc::new(TimerBuilder::on(&runtime).period(ms(1)).start_exclusive(run)), 1),
                _ => {
                    let timer = OnceTimer::on(&runtime, Duration::ZERO, run);
                    eventually("the callback runs", || entered.get() == 1);
                    waiters_see_the_end(&finished, &entered, &fate, &gate, {
                        let timer = Arc::new(timer);
                        move |blocking| match blocking {
                            true => timer.dispose_and_wait(),
                            false => block_on(timer.dispose_async()),
                        }
                    });
                    continue;
                }
            };
            eventually("callbacks run", || entered.get() >= running);
            waiters_see_the_end(&finished, &entered, &fate, &gate, move |blocking| match blocking {
                true => timer.dispose_and_wait(),
                false => block_on(timer.dispose_async()),
            });
        }
    });
}

fn waiters_see_the_end(
    finished: &Count,
    entered: &Count,
    fate: &Fate,
    gate: &Gate,
    wait: impl Fn(bool) -> Waited + Clone + Send + 'static,
) {
    let (about_to_wait, waiting) = mpsc::channel();
    let waiters: Vec<_> = (0..8)
        .map(|i| {
            let (wait, about_to_wait) = (wait.clone(), about_to_wait.clone());
            let (finished, entered, fate) = (finished.clone(), entered.clone(), fate.clone());
            thread::spawn(move || {
                about_to_wait.send(()).expect("the test listens");
                let waited = wait(i % 2 == 0);
                (waited, finished.get() == entered.get(), fate.is_dropped())
            })
        })
        .collect();
    for _ in 0..8 {
        waiting.recv().expect("all begin to wait");
    }
    assert!(!fate.is_dropped());
    gate.open();
    for waiter in waiters {
        let (waited, all_finished, dropped) = waiter.join().expect("no panic");
        assert_eq!(waited, Waited::Ended);
        assert!(all_finished, "no callback runs when the wait returns");
        assert!(dropped, "and what they owned is gone");
    }
    assert_eq!(wait(true), Waited::Ended, "a late waiter does not wait");
}

#[test]
fn s21_a_slow_destructor_is_waited_for() {
    within(PATIENCE, "a destructor that takes its time", || {
        let runtime = native();
        let (dropping, gate) = (Gate::new(), Gate::new());
        let dropped = Count::new();
        let slow = {
            let (dropping, gate, dropped) = (dropping.clone(), gate.clone(), dropped.clone());
            OnDrop(move || {
                dropping.open();
                gate.wait();
                dropped.bump();
            })
        };
        let timer = Arc::new(Timer::on(&runtime, secs(1_000), NEVER, move |_| slow.hold()));
        let disposer = thread::spawn({
            let timer = Arc::clone(&timer);
            move || timer.dispose()
        });
        dropping.wait();
        let mut waiting = timer.dispose_async();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut waiting).poll(&mut context), Poll::Pending, "another thread is still dropping");
        let waiter = thread::spawn({
            let (timer, dropped) = (Arc::clone(&timer), dropped.clone());
            move || (timer.dispose_and_wait(), dropped.get())
        });
        gate.open();
        assert_eq!(waiter.join().expect("no panic"), (Waited::Ended, 1));
        assert_eq!(block_on(waiting), Waited::Ended);
        disposer.join().expect("no panic");
    });
}

/// A waker that counts.
struct CountingWaker(Count);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.bump();
    }
}

#[test]
fn s21_the_waker_of_the_latest_poll_is_called() {
    within(PATIENCE, "wakers", || {
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
        let counters: Vec<Count> = (0..4).map(|_| Count::new()).collect();
        let wakers: Vec<Waker> =
            counters.iter().map(|count| Waker::from(Arc::new(CountingWaker(count.clone())))).collect();
        let mut moved = timer.dispose_async();
        let mut other = timer.dispose_async();
        let mut dropped = timer.dispose_async();
        let pend = |future: &mut Disposal, counter: usize| {
            assert_eq!(Pin::new(future).poll(&mut Context::from_waker(&wakers[counter])), Poll::Pending);
        };
        pend(&mut moved, 0);
        pend(&mut other, 2);
        pend(&mut dropped, 3);
        pend(&mut moved, 1);
        pend(&mut moved, 1);
        drop(dropped);
        gate.open();
        eventually("both are woken", || counters[1].get() == 1 && counters[2].get() == 1);
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut moved).poll(&mut context), Poll::Ready(Waited::Ended));
        assert_eq!(Pin::new(&mut other).poll(&mut context), Poll::Ready(Waited::Ended));
        runtime.shutdown(PATIENCE).expect("nothing runs");
        assert_eq!(counters.iter().map(Count::get).collect::<Vec<_>>(), [0, 1, 1, 0]);
    });
}

#[test]
fn s21_a_disposal_outlives_its_handle_and_may_be_dropped() {
    let (clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    let timer = Timer::on(&runtime, ms(1), ms(1), move |_| canary.sing());
    let first = timer.dispose_async();
    assert!(fate.is_dropped(), "disposed by the call, not by the first poll");
    let second = timer.dispose_async();
    drop(timer);
    drop(first);
    drop(runtime);
    assert_eq!(block_on(second), Waited::Ended);
    assert_eq!(clock.advance(secs(1)), 0);
}

/// A waker may panic when it is woken, replaced or dropped: the runtime is told, and the others are
/// woken. A panic of `clone` surfaces in the poll.
#[test]
fn s12_s21_wakers_of_waiters_that_panic_are_told_and_hurt_no_other_waiter() {
    within(PATIENCE, "wakers that panic", || {
        let (clock, runtime) = manual();
        let (entered, gate) = (Gate::new(), Gate::new());
        let timer = Timer::on(&runtime, ms(1), NEVER, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        let driver = thread::spawn(move || clock.advance(ms(1)));
        entered.wait();
        let (panicking, counter) = (PanickingWaker::on_wake(), crate::support::poll::CountingWaker::new());
        let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| timer.dispose_async());
        assert!(poll_with(&mut first, &panicking.waker()).is_pending());
        assert!(poll_with(&mut second, &panicking.waker()).is_pending());
        assert!(poll_with(&mut third, &panicking.waker()).is_pending());
        PanickingWaker::set(&panicking.on_drop, true);
        assert!(poll(&mut second, &counter).is_pending());
        drop(third);
        PanickingWaker::set(&panicking.on_drop, false);
        assert_eq!((panicking.panics(), runtime.metrics().panics), (2, 2), "replaced, and dropped");
        PanickingWaker::set(&panicking.on_clone, true);
        assert!(panics(|| poll_with(&mut fourth, &panicking.waker())));
        PanickingWaker::set(&panicking.on_clone, false);
        assert!(poll(&mut fourth, &counter).is_pending(), "usable all the same");
        assert_eq!(runtime.metrics().panics, 2);
        gate.open();
        assert_eq!(driver.join().expect("no panic"), 1);
        assert_eq!((counter.wakes(), panicking.panics(), runtime.metrics().panics), (2, 4, 3));
        for waiting in [&mut first, &mut second, &mut fourth] {
            assert_eq!(poll(waiting, &counter), Poll::Ready(Waited::Ended));
        }
        assert_eq!((panicking.kept(), counter.kept()), (0, 0));
    });
}
