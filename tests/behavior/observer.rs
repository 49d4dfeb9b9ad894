//! Observers: contexts of callbacks, and what an observer is told (S76, S77).

use std::cell::Cell;
use std::time::Duration;

use timerqueue::{
    CancellationTokenSource, Delay, ManualClock, OnceTimer, Runtime, Tick, Timer, TimerBuilder, WallTimer,
    observe::{CallbackContext, CallbackPanic, ObservedCallback, Observer, SlowCallback, ThreadsChanged},
};

use crate::support::{Count, Gate, Journal, NEVER, OnDrop, eventually, ms, secs};

thread_local! {
    /// The context in which this thread is: zero for none.
    static CONTEXT: Cell<u32> = const { Cell::new(0) };
}

/// Keeps the context of the thread that makes a timer, and writes down what it is told.
#[derive(Clone)]
struct Keeper {
    told: Journal<String>,
    dropped: Count,
}

impl Keeper {
    fn new() -> Self {
        Self { told: Journal::new(), dropped: Count::new() }
    }
}

impl Keeper {
    fn note(&self, what: &str, name: Option<&str>) {
        self.told.push(format!("{what} of {name:?} in {}", CONTEXT.get()));
    }
}

impl Observer for Keeper {
    fn timer_created(&self) -> Option<CallbackContext> {
        let (context, dropped) = (CONTEXT.get(), self.dropped.clone());
        (context != 0).then(|| -> CallbackContext {
            let dropped = OnDrop(move || _ = dropped.bump());
            Box::new(move |callback: ObservedCallback<'_>| {
                let _ = &dropped;
                let outer = CONTEXT.replace(context);
                callback.run();
                CONTEXT.set(outer);
            })
        })
    }

    fn panicked(&self, panic: &CallbackPanic) {
        self.note("panic", panic.timer_name());
        panic!("of the observer");
    }

    fn slow_callback(&self, slow: &SlowCallback) {
        self.note("length", slow.timer_name());
    }

    fn slow_limit(&self) -> Option<Duration> {
        Some(ms(1))
    }

    fn threads_changed(&self, change: &ThreadsChanged) {
        self.note(&format!("{} added, {} refused", change.added, change.refused), None);
    }
}

/// A runtime on virtual time with this observer.
fn observed(observer: impl Observer) -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).observer(observer).start().expect("nothing to refuse");
    (clock, runtime)
}

/// Runs in a context.
fn in_context<T>(context: u32, code: impl FnOnce() -> T) -> T {
    let outer = CONTEXT.replace(context);
    let made = code();
    CONTEXT.set(outer);
    made
}

#[test]
fn s76_callbacks_of_each_kind_run_in_the_context_in_which_their_timer_was_made() {
    let keeper = Keeper::new();
    let (clock, runtime) = observed(keeper.clone());
    let seen = Journal::new();
    let see = |kind: &'static str| {
        let seen = seen.clone();
        move || seen.push((kind, CONTEXT.get()))
    };
    let (plain, exclusive, once, named) = (see("plain"), see("exclusive"), see("once"), see("named"));
    let (wall, job, outside) = (see("wall"), see("job"), see("outside"));
    let timers = in_context(7, || {
        runtime.execute(job);
        WallTimer::on(&runtime, clock.wall() + secs(5), move |_| wall()).detach();
        let once = OnceTimer::on(&runtime, secs(3), move |_| once());
        let named = TimerBuilder::on(&runtime).name("named").due(secs(4)).start(move |_| named());
        (
            Timer::on(&runtime, secs(1), secs(10), move |_| plain()),
            TimerBuilder::on(&runtime).due(secs(2)).period(NEVER).start_exclusive(move |_| exclusive()),
            once,
            named,
        )
    });
    let outside = Timer::on(&runtime, secs(6), NEVER, move |_| outside());
    in_context(8, || clock.advance(secs(11)));
    let expected = [
        ("job", 7),
        ("plain", 7),
        ("exclusive", 7),
        ("once", 7),
        ("named", 7),
        ("wall", 7),
        ("outside", 8),
        ("plain", 7),
    ];
    assert_eq!(seen.take(), expected);
    // The context goes with the callback: of the job, the once timer and the wall timer by now.
    assert_eq!(keeper.dropped.get(), 3);
    drop((timers, outside));
    assert_eq!(keeper.dropped.get(), 6);
}

/// A token's timer, a delay and a timeout are the crate's own: no code of the program's is called
/// for them.
#[test]
fn s76_futures_and_timed_cancels_have_no_context() {
    let keeper = Keeper::new();
    let (clock, runtime) = observed(keeper.clone());
    let seen = Journal::new();
    let source = CancellationTokenSource::on(&runtime);
    in_context(7, || source.cancel_after(secs(1)));
    let see = seen.clone();
    source.token().register(move || see.push(CONTEXT.get())).detach();
    let delay = in_context(7, || Delay::on(&runtime, secs(2)));
    clock.block_on(delay);
    assert_eq!((seen.take(), keeper.dropped.get()), (vec![0], 0));
}

#[test]
fn s77_panics_and_slow_callbacks_are_told_once_and_in_their_context() {
    let (keeper, hooked) = (Keeper::new(), Journal::new());
    let clock = ManualClock::new();
    let (on_panic, on_slow) = (hooked.clone(), hooked.clone());
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .observer(keeper.clone())
        .on_panic(move |panic| on_panic.push((panic.message().map(str::to_owned), CONTEXT.get())))
        .on_slow_callback(ms(2), move |_| on_slow.push((None, CONTEXT.get())))
        .start()
        .expect("nothing to refuse");
    let both = |_: &Tick<'_>| {
        std::thread::sleep(ms(3));
        panic!("why");
    };
    let outside = TimerBuilder::on(&runtime).name("outside").due(secs(1)).start(both);
    let inside = in_context(7, || TimerBuilder::on(&runtime).name("inside").due(secs(2)).start(both));
    clock.advance(secs(2));
    let told = ["length", "panic"].map(|what| {
        [("outside", 0), ("inside", 7)].map(|(name, context)| format!("{what} of {:?} in {context}", Some(name)))
    });
    assert_eq!(keeper.told.take(), [&told[0][0], &told[1][0], &told[0][1], &told[1][1]].map(String::clone));
    // The panics of the observer itself are told to no code, and the hooks are told all the same.
    let why = Some(String::from("why"));
    assert_eq!(hooked.take(), [(None, 0), (why.clone(), 0), (None, 7), (why, 7)]);
    assert_eq!(runtime.metrics().panics, 2);
    drop((outside, inside));
}

/// Without the hook, the observer's own limit counts.
#[test]
fn s77_without_a_hook_the_observer_sets_the_limit() {
    let keeper = Keeper::new();
    let (clock, runtime) = observed(keeper.clone());
    runtime.execute(|| std::thread::sleep(ms(2)));
    clock.advance(Duration::ZERO);
    assert_eq!(keeper.told.take(), ["length of None in 0"]);
}

/// Contexts that run no callback, run it and panic, or panic before.
#[test]
fn s77_a_context_that_misbehaves_hurts_no_runtime() {
    struct Misbehaves(u32);
    impl Observer for Misbehaves {
        fn timer_created(&self) -> Option<CallbackContext> {
            let how = self.0;
            Some(Box::new(move |callback: ObservedCallback<'_>| {
                if how == 1 {
                    callback.run();
                }
                assert!(how == 0, "a context");
            }))
        }
    }
    for (how, ran, panics) in [(0, 0, 0), (1, 4, 4), (2, 0, 4)] {
        let (clock, runtime) = observed(Misbehaves(how));
        let fired = Count::new();
        let count = || {
            let fired = fired.clone();
            move || _ = fired.bump()
        };
        let (once, exclusive, plain) = (count(), count(), count());
        let timers = (
            OnceTimer::on(&runtime, secs(1), move |_| once()),
            TimerBuilder::on(&runtime).due(secs(1)).period(NEVER).start_exclusive(move |_| exclusive()),
            Timer::on(&runtime, secs(1), secs(1), move |_| plain()),
        );
        clock.advance(secs(2));
        assert_eq!((fired.get(), runtime.metrics().panics), (ran, panics), "{how}");
        drop(timers);
        assert_eq!(runtime.metrics().active, 0);
    }
}

/// An executor of the program's could drop the timer that tells, and no further news would be told.
#[test]
fn s77_news_of_the_pool_is_told_on_the_pool_by_one_thread_at_a_time() {
    struct Blocks(Keeper, Gate);
    impl Observer for Blocks {
        fn threads_changed(&self, change: &ThreadsChanged) {
            assert!(change.added > 0 && change.refused == 0 && change.error.is_none(), "{change:?}");
            assert!(change.threads.alive > 2 && change.threads.limit == LIMIT, "{change:?}");
            self.0.threads_changed(change);
            self.1.wait();
        }
    }
    const LIMIT: usize = 23;
    let (keeper, gate, handed) = (Keeper::new(), Gate::new(), Count::new());
    let (reached, shut) = (handed.clone(), gate.clone());
    let runtime = Runtime::builder()
        .queues(1)
        .workers(2)
        .max_threads(LIMIT)
        .observer(Blocks(keeper.clone(), gate.clone()))
        .callback_executor(move |job| {
            drop(job);
            reached.bump();
            shut.wait();
        })
        .start()
        .expect("the system has threads and timers");
    for _ in 0..8 {
        runtime.execute(|| unreachable!("the executor drops it"));
    }
    eventually("all jobs are handed over", || handed.get() == 8);
    eventually("growth is told", || keeper.told.len() > 0);
    std::thread::sleep(ms(50));
    assert_eq!(keeper.told.len(), 1, "a second thread would block too");
    assert!(runtime.metrics().threads.alive < LIMIT, "news makes no threads without end");
    gate.open();
    runtime.shutdown(crate::support::PATIENCE).expect("no callback runs");
    assert_eq!(runtime.metrics().panics, 0);
}

#[test]
fn s76_a_context_is_told_how_late_its_callback_begins() {
    struct Notes(Journal<Option<Duration>>);
    impl Observer for Notes {
        fn timer_created(&self) -> Option<CallbackContext> {
            let told = self.0.clone();
            Some(Box::new(move |callback: ObservedCallback<'_>| {
                told.push(callback.lateness());
                callback.run();
            }))
        }
    }
    let told = Journal::new();
    let (clock, runtime) = observed(Notes(told.clone()));
    let timer = OnceTimer::on(&runtime, secs(1), |_| {});
    clock.stall(secs(3));
    clock.advance(Duration::ZERO);
    assert_eq!(told.take(), [Some(secs(2))]);
    drop(timer);
}
