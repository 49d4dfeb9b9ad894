//! Spans of callbacks, and events of a runtime (S76, S77). One test sets the subscriber of the
//! process, another the default runtime.
#![cfg(feature = "tracing-0_1")]

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{
    CancellationTokenSource, ManualClock, OnceTimer, Runtime, RuntimeBuilder, Timer, TimerBuilder, WallTimer,
};
use timerqueue_adapters::tracing_0_1::TracingObserver;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::subscriber::{set_global_default, with_default};
use tracing::{Event, Subscriber, info, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

const SECOND: Duration = Duration::from_secs(1);
/// Generous enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Threads wait until it is opened, once and for all.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// What a subscriber was told: a line for each new span, link, event and closed span.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn push(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn have(&self, part: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(part))
    }

    fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        Registry::default().with(self.clone())
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Times and places differ from run to run.
        match field.name() {
            "timer.took_us" | "timer.late_us" | "timer.site" => write!(self.0, " {}", field.name()).unwrap(),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        let span = context.span(id).unwrap();
        let parent = span.parent().map_or("none", |parent| parent.name());
        self.push(format!("new {}{} in {parent}", span.name(), fields.0));
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let name = |id: &Id| context.span(id).map(|span| span.name());
        self.push(format!("{:?} follows from {:?}", name(id).unwrap(), name(follows).expect("the span is still open")));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let span = context.event_span(event).map_or("none", |span| span.name());
        self.push(format!("{}{} in {span}", event.metadata().level(), fields.0));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.push(format!("close {}", context.span(&id).unwrap().name()));
    }
}

/// Runs with a subscriber of the thread, on a manual clock.
fn told(set: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder, test: impl FnOnce(&Runtime, &ManualClock)) -> Vec<String> {
    let lines = Lines::default();
    let clock = ManualClock::new();
    let runtime = set(Runtime::builder().manual_clock(&clock).observer(TracingObserver::new())).start().unwrap();
    with_default(lines.subscriber(), || test(&runtime, &clock));
    lines.take()
}

/// The timer is made in a span; a tick and its end follow, outside of the span.
fn one_tick(make: impl FnOnce(&Runtime) -> Timer) -> Vec<String> {
    told(
        |builder| builder,
        |runtime, clock| {
            let timer = info_span!("request").in_scope(|| make(runtime));
            info_span!("driver").in_scope(|| clock.advance(SECOND));
            drop(timer);
        },
    )
}

#[test]
fn s76_the_span_of_a_callback_follows_from_the_span_in_which_its_timer_was_made() {
    let expected = [
        "new request in none",
        "new driver in none",
        "new callback timer.late_us in none",
        "\"callback\" follows from \"request\"",
        "INFO message=hello in callback",
        "close callback",
        "close driver",
        "close request",
    ];
    assert_eq!(one_tick(|runtime| Timer::on(runtime, SECOND, Duration::MAX, |_| info!("hello"))), expected);
    assert_eq!(
        one_tick(|runtime| TimerBuilder::on(runtime)
            .due(SECOND)
            .period(Duration::MAX)
            .start_exclusive(|_| info!("hello"))),
        expected
    );
    let scoped = |runtime: &Runtime| runtime.enter(|| Timer::new(SECOND, Duration::MAX, |_| info!("hello")));
    assert_eq!(one_tick(scoped), expected);
}

#[test]
fn s76_a_name_is_a_field_of_the_span() {
    let named = |builder: TimerBuilder<'_>| builder.name("mine").due(SECOND).start(|_| {});
    let lines = one_tick(|runtime| named(TimerBuilder::on(runtime)));
    assert!(
        lines.contains(&String::from("new callback timer.name=\"mine\" timer.site timer.late_us in none")),
        "{lines:?}"
    );
}

#[test]
fn s76_a_span_stays_open_while_a_callback_may_follow_and_closes_then() {
    // A once timer gives its span back when it has fired, while its handle lives on.
    let lines = told(
        |builder| builder,
        |runtime, clock| {
            let once = info_span!("once").in_scope(|| OnceTimer::on(runtime, SECOND, |_| {}));
            let never = info_span!("never").in_scope(|| OnceTimer::on(runtime, 2 * SECOND, |_| {}));
            clock.advance(SECOND);
            info!("fired");
            drop(never);
            info!("disposed");
            info_span!("job").in_scope(|| runtime.execute(|| info!("executed")));
            info_span!("wall").in_scope(|| WallTimer::on(runtime, clock.wall() + SECOND, |_| info!("shown"))).detach();
            clock.advance(SECOND);
            drop(once);
        },
    );
    let at =
        |line: &str| lines.iter().position(|found| found.starts_with(line)).unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(at("close once") < at("INFO message=fired"));
    assert!(at("INFO message=fired") < at("close never") && at("close never") < at("INFO message=disposed"));
    assert!(at("\"callback\" follows from \"job\"") < at("INFO message=executed in callback"));
    assert!(at("\"callback\" follows from \"wall\"") < at("INFO message=shown in callback"));
    at("close job");
}

#[test]
fn s76_a_timer_made_in_a_callback_follows_from_that_callback() {
    let lines = one_tick(|runtime| {
        let inner = runtime.clone();
        Timer::on(runtime, Duration::ZERO, Duration::MAX, move |_| {
            OnceTimer::on(&inner, SECOND, |_| info!("last")).detach()
        })
    });
    assert!(lines.contains(&String::from("\"callback\" follows from \"callback\"")), "{lines:#?}");
}

/// The timer of a timed cancel is the crate's own: it keeps no span, whether the source is dropped,
/// cancelled by hand, or cancelled by the timer.
#[test]
fn s76_a_timed_cancel_keeps_no_span() {
    let lines = told(
        |builder| builder,
        |runtime, clock| {
            let source = CancellationTokenSource::on(runtime);
            info_span!("first").in_scope(|| source.cancel_after(SECOND));
            assert!(source.try_reset());
            info_span!("second").in_scope(|| source.cancel_after(SECOND));
            source.token().register(|| info!("cancelled")).detach();
            info_span!("driver").in_scope(|| clock.advance(SECOND));
            assert!(source.is_cancelled());
        },
    );
    let expected = [
        "new first in none",
        "close first",
        "new second in none",
        "close second",
        "new driver in none",
        "INFO message=cancelled in driver",
        "close driver",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn s76_without_a_span_nothing_is_opened() {
    let lines = told(
        |builder| builder,
        |runtime, clock| {
            let timer = Timer::on(runtime, SECOND, Duration::MAX, |_| info!("plain"));
            clock.advance(SECOND);
            drop(timer);
        },
    );
    assert_eq!(lines, ["INFO message=plain in none"]);
}

#[test]
fn s76_on_the_pool_the_callback_runs_with_the_subscriber_of_its_maker() {
    Runtime::builder().observer(TracingObserver::new()).start_global().unwrap();
    let lines = Lines::default();
    let (send, receive) = mpsc::channel();
    let timer = with_default(lines.subscriber(), || {
        let _span = info_span!("request").entered();
        Timer::once(Duration::from_millis(1), move |_| {
            info!("on the pool");
            send.send(()).unwrap();
        })
    });
    receive.recv().unwrap();
    eventually("the span closes", || lines.have("close callback"));
    assert!(lines.have("INFO message=on the pool in callback") && lines.have("follows from"));
    // The thread is back on its own subscriber.
    let (send, receive) = mpsc::channel();
    Runtime::global().execute(move || {
        info!("after");
        send.send(()).unwrap();
    });
    receive.recv().unwrap();
    assert!(!lines.have("after"));
    drop(timer);
}

#[test]
fn s77_panics_and_slow_callbacks_are_events_in_their_span_and_told_once() {
    let hooked = Arc::new(AtomicUsize::new(0));
    let count = |by: usize| {
        let hooked = Arc::clone(&hooked);
        move || _ = hooked.fetch_add(by, Ordering::Relaxed)
    };
    let (on_panic, on_slow) = (count(1), count(10));
    let lines = told(
        |builder| builder.on_panic(move |_| on_panic()).on_slow_callback(Duration::from_millis(1), move |_| on_slow()),
        |runtime, clock| {
            let both = |_: &timerqueue::Tick<'_>| {
                thread::sleep(Duration::from_millis(2));
                panic!("why {}", 7);
            };
            let plain = TimerBuilder::on(runtime).name("plain").due(SECOND).start_once(both);
            let traced = info_span!("request").in_scope(|| OnceTimer::on(runtime, SECOND, both));
            clock.advance(SECOND);
            drop((plain, traced));
        },
    );
    let events: Vec<_> = lines.iter().filter(|line| line.starts_with(['E', 'W'])).collect();
    assert_eq!(
        events,
        [
            "WARN message=a callback took long timer.took_us timer.late_us timer.name=\"plain\" timer.site in none",
            "ERROR message=user code panicked panic.message=\"why 7\" timer.name=\"plain\" timer.site in none",
            "WARN message=a callback took long timer.took_us timer.late_us in callback",
            "ERROR message=user code panicked panic.message=\"why 7\" in callback",
        ]
    );
    assert_eq!(hooked.load(Ordering::Relaxed), 22);
}

#[test]
fn s77_without_a_hook_a_callback_is_slow_from_a_tenth_of_a_second() {
    let lines = told(
        |builder| builder,
        |runtime, clock| {
            for ms in [1, 110] {
                runtime.execute(move || thread::sleep(Duration::from_millis(ms)));
                clock.advance(Duration::ZERO);
            }
        },
    );
    // The first may be slow on a machine that is busy.
    assert!(lines.iter().filter(|line| line.contains("took long")).count() >= 1, "{lines:?}");
}

/// Panics in each call of a subscriber, or makes timers there.
#[derive(Clone, Default)]
struct Hostile {
    on: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
    /// The steps in the life of a span before this one are spared.
    first: usize,
}

impl Hostile {
    fn act(&self, step: usize) {
        if self.on.load(Ordering::Relaxed) && step >= self.first {
            self.calls.fetch_add(1, Ordering::Relaxed);
            match &self.runtime {
                Some(runtime) => OnceTimer::on(runtime, 3600 * SECOND, |_| {}).detach(),
                None => std::panic::resume_unwind(Box::new("a subscriber")),
            }
        }
    }
}

impl<S: Subscriber> Layer<S> for Hostile {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.act(0);
    }

    fn on_follows_from(&self, _: &Id, _: &Id, _: Context<'_, S>) {
        self.act(1);
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.act(3);
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        self.act(2);
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        self.act(4);
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.act(5);
    }
}

/// Two timers made in a span, one of which panics, under a hostile subscriber. Returns its calls.
fn with_hostile(runtime: &Runtime, clock: &ManualClock, hostile: &Hostile) -> usize {
    let ran = Arc::new(AtomicUsize::new(0));
    with_default(Registry::default().with(hostile.clone()), || {
        let timers = info_span!("request").in_scope(|| {
            [false, true].map(|panics| {
                let ran = Arc::clone(&ran);
                OnceTimer::on(runtime, SECOND, move |_| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(!panics, "on purpose");
                })
            })
        });
        hostile.on.store(true, Ordering::Relaxed);
        clock.advance(SECOND);
        drop(timers);
        hostile.on.store(false, Ordering::Relaxed);
    });
    assert_eq!((ran.load(Ordering::Relaxed), runtime.metrics().panics), (2, 1));
    hostile.calls.load(Ordering::Relaxed)
}

#[test]
fn s77_a_subscriber_that_panics_hurts_no_callback_and_no_thread() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).observer(TracingObserver::new()).start().unwrap();
    assert!(with_hostile(&runtime, &clock, &Hostile::default()) >= 4);
}

/// After the panic at a step, the span is dropped: a panic then, while the first unwinds, would end
/// the process.
#[test]
fn s77_a_subscriber_may_panic_at_each_step_and_again_when_the_span_closes() {
    for first in 1..=5 {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).observer(TracingObserver::new()).start().unwrap();
        assert!(with_hostile(&runtime, &clock, &Hostile { first, ..Hostile::default() }) >= 3, "{first}");
    }
}

#[test]
fn s77_a_subscriber_that_makes_timers_does_not_call_itself() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).observer(TracingObserver::new()).start().unwrap();
    let hostile = Hostile { runtime: Some(runtime.clone()), ..Hostile::default() };
    let calls = with_hostile(&runtime, &clock, &hostile);
    assert_eq!(runtime.metrics().active, calls, "a timer for each call");
    assert!(calls >= 4);
}

#[test]
fn s77_growth_is_an_event_and_a_subscriber_that_blocks_stops_no_growth() {
    const LIMIT: usize = 23;
    let (lines, gate) = (Lines::default(), Gate::default());
    /// Blocks the thread that tells of growth.
    struct Blocks(Gate);
    impl<S: Subscriber> Layer<S> for Blocks {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if event.metadata().target() == "timerqueue" {
                self.0.wait();
            }
        }
    }
    set_global_default(Registry::default().with(lines.clone()).with(Blocks(gate.clone()))).unwrap();
    let runtime =
        Runtime::builder().queues(1).workers(2).max_threads(LIMIT).observer(TracingObserver::new()).start().unwrap();
    let running = Arc::new(AtomicUsize::new(0));
    for _ in 0..8 {
        let (running, gate) = (Arc::clone(&running), gate.clone());
        runtime.execute(move || {
            running.fetch_add(1, Ordering::Relaxed);
            gate.wait();
        });
    }
    eventually("all jobs begin", || running.load(Ordering::Relaxed) == 8);
    eventually("growth is told", || lines.have("the pool grew"));
    assert!(lines.have("INFO message=the pool grew threads.added="));
    assert!(lines.have(&format!("threads.limit={LIMIT} in none")));
    // The jobs, the thread that tells, the thread that polls, and what was added for a moment in
    // between.
    thread::sleep(Duration::from_millis(50));
    let alive = runtime.metrics().threads.alive;
    assert!(alive < LIMIT, "news of growth makes no threads without end: {alive}");
    gate.open();
    runtime.shutdown(PATIENCE).unwrap();
}
