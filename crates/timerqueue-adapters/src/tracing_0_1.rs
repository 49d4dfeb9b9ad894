//! Spans of callbacks and events of a runtime, for subscribers of the crate tracing 0.1.
//!
//! Ground rules. A subscriber is user code: it runs through `ask`, which contains its panics.
//! While a subscriber runs, timers that it makes keep no span: so no subscriber calls itself.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::Duration;

use timerqueue::observe::{CallbackContext, CallbackPanic, ObservedCallback, Observer, SlowCallback, ThreadsChanged};
use tracing::dispatcher::{DefaultGuard, set_default};
use tracing::field::display;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;
use tracing::{Dispatch, Span, error, info, info_span, warn};

/// Spans of callbacks and events of a runtime: an observer, for
/// [`RuntimeBuilder::observer`](timerqueue::RuntimeBuilder::observer).
///
/// **Spans.** A timer keeps the span in which it is made, as .NET's execution context flows. Each
/// of its callbacks runs in a span `callback` of its own (level `INFO`, target `timerqueue`), which
/// follows from that span, and with the subscriber of that span as the subscriber of the thread.
/// The fields are `timer.name` and `timer.site`
/// ([`TimerBuilder::name`](timerqueue::TimerBuilder::name)) and `timer.late_us`, the lateness in
/// microseconds. This holds for `Timer`, `OnceTimer`, `WallTimer` and `Runtime::execute`. Futures
/// stay in the spans of their tasks, and callbacks of tokens in the span of the thread that
/// cancels. The span in which a timer was made stays open until the callback is dropped: when the
/// timer is disposed, or when a once timer has fired.
///
/// **Events**, with the target `timerqueue`: `ERROR` for each panic in user code; `WARN` for a
/// callback that ran for longer than the limit of
/// [`on_slow_callback`](timerqueue::RuntimeBuilder::on_slow_callback), or than 100 ms without that
/// hook, and for threads that the system refused; `INFO` for threads that were added. Those of a
/// callback with a span are in its span.
///
/// **Threads.** A subscriber runs on the thread of the callback, outside of all locks. It may
/// block, as a callback may, and its panics end there. A timer that a subscriber makes while it is
/// called here keeps no span.
///
/// **Cost.** In a span, a timer costs two further allocations. Outside of all spans it costs a
/// call, and without any subscriber a load. Each callback costs three readings of a clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, OnceTimer, Runtime};
/// use timerqueue_adapters::tracing_0_1::TracingObserver;
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).observer(TracingObserver::new()).start()?;
/// let request = tracing::info_span!("request", id = 7);
/// let timeout = request.in_scope(|| OnceTimer::on(&runtime, Duration::from_secs(30), |_| tracing::info!("too late")));
/// clock.advance(Duration::from_secs(30)); // the event is in a span that follows from `request`
/// # drop(timeout);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
///
/// The default runtime, before its first use:
///
/// ```
/// use timerqueue::Runtime;
/// use timerqueue_adapters::tracing_0_1::TracingObserver;
///
/// Runtime::builder().observer(TracingObserver::new()).start_global()?;
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

impl TracingObserver {
    /// An observer for the subscriber of the calling thread, whichever that is.
    #[must_use = "an observer does nothing until a runtime has it"]
    pub fn new() -> Self {
        Self
    }
}

impl Observer for TracingObserver {
    fn timer_created(&self) -> Option<CallbackContext> {
        if LevelFilter::current() == LevelFilter::OFF {
            return None;
        }
        let mut made_in = Kept(None);
        ask(|| made_in.0 = Some(Span::current()));
        if made_in.0.as_ref().is_none_or(Span::is_disabled) {
            return None;
        }
        Some(Box::new(move |callback| {
            let mut scope = Scope::default();
            ask(|| scope.open(&made_in, &callback));
            scope.with_span(|id, dispatch| dispatch.enter(id));
            callback.run();
        }))
    }

    fn panicked(&self, panic: &CallbackPanic) {
        let (name, site) = (panic.timer_name(), panic.timer_site().map(display));
        ask(|| {
            error!(
                target: "timerqueue",
                { panic.message = panic.message(), timer.name = name, timer.site = site },
                "user code panicked"
            );
        });
    }

    fn slow_callback(&self, slow: &SlowCallback) {
        let (name, site) = (slow.timer_name(), slow.timer_site().map(display));
        let (took, late) = (micros(slow.took()), micros(slow.lateness()));
        ask(|| {
            warn!(
                target: "timerqueue",
                { timer.took_us = took, timer.late_us = late, timer.name = name, timer.site = site },
                "a callback took long"
            );
        });
    }

    fn slow_limit(&self) -> Option<Duration> {
        Some(Duration::from_millis(100))
    }

    fn threads_changed(&self, change: &ThreadsChanged) {
        let (alive, limit) = (change.threads.alive, change.threads.limit);
        if change.added > 0 {
            ask(|| {
                info!(
                    target: "timerqueue",
                    { threads.added = change.added, threads.alive = alive, threads.limit = limit },
                    "the pool grew"
                );
            });
        }
        if change.refused > 0 {
            let error = change.error.as_ref().map(display);
            ask(|| {
                warn!(
                    target: "timerqueue",
                    { threads.refused = change.refused, threads.alive = alive, threads.limit = limit, error },
                    "the system refused a thread"
                );
            });
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

thread_local! {
    /// A subscriber runs on this thread, called by this module.
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of a subscriber, unless this thread runs such code already.
fn ask(code: impl FnOnce()) {
    if !ASKING.replace(true) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
            // The destructor of the payload may panic in turn: then that payload is leaked.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
        }
        ASKING.set(false);
    }
}

/// A span that is given back through [`ask`].
struct Kept(Option<Span>);

impl Drop for Kept {
    fn drop(&mut self) {
        let span = self.0.take();
        ask(move || drop(span));
    }
}

/// The span of a callback that runs, and the subscriber of its thread meanwhile.
///
/// A span that closes while a panic of its subscriber unwinds would abort the process, if the
/// subscriber panics again. So each step is a call of its own, and the span outlives them all.
#[derive(Default)]
struct Scope {
    default: Option<DefaultGuard>,
    span: Option<Span>,
}

impl Scope {
    fn open(&mut self, made_in: &Kept, callback: &ObservedCallback<'_>) {
        let Some(made_in) = &made_in.0 else { return };
        let of_maker = made_in.with_subscriber(|(id, dispatch)| (id.clone(), dispatch.clone()));
        let Some((id, dispatch)) = of_maker else { return };
        self.default = Some(set_default(&dispatch));
        let site: Option<&Location<'_>> = callback.timer_site();
        let span = info_span!(
            target: "timerqueue",
            parent: None,
            "callback",
            timer.name = callback.timer_name(),
            timer.site = site.map(display),
            timer.late_us = callback.lateness().map(micros)
        );
        self.span.insert(span).follows_from(id);
    }

    fn with_span(&self, step: impl FnOnce(&Id, &Dispatch)) {
        if let Some(span) = &self.span {
            ask(|| _ = span.with_subscriber(|(id, dispatch)| step(id, dispatch)));
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.with_span(|id, dispatch| dispatch.exit(id));
        let (default, span) = (self.default.take(), self.span.take());
        // After a panic at the end of the span, the subscriber of the thread is put back all the
        // same.
        ask(move || drop(span));
        ask(move || drop(default));
    }
}
