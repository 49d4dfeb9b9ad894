//! A scheduler in OpenTelemetry: figures as instruments, and runs as spans that follow their puts.
//!
//! Ground rules. Only the API of OpenTelemetry is used: the program chooses the SDK and the
//! exporter. [`SchedulerMeter`] asks the store when it is told to, and its instruments show the
//! last answer: so no collection waits for a store. [`traced`] keeps the context of W3C with each
//! job.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{self, Poll};
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, Meter};
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
};
use opentelemetry::{Context, KeyValue};
use timerqueue::{Runtime, Timer, TimerBuilder};
use timerqueue_scheduler::store::MAX_TRACE_BYTES;
use timerqueue_scheduler::{Builder, Ended, Error, Figure, FigureKind, Figures, Next, Outcome, Run, Scheduler};

/// The figures of a [`Scheduler`] and its store as observable instruments of OpenTelemetry.
///
/// The names are those of [`Figure::KINDS`], as on the page `/metrics` of `timerqueue-web`: jobs by
/// handler and state, the age of the oldest due job, ends of runs by kind, lateness, durations and
/// the answer of the store. Counters are observable counters, and the others gauges. Lateness and
/// durations are counters by limit (the attribute `le`, in seconds), as Prometheus keeps
/// histograms. One meter for a store suffices for the figures of the store.
///
/// **Threads.** [`read`](Self::read) asks the store and blocks; [`read_async`](Self::read_async)
/// awaits it; [`every`](Self::every) reads on a thread of a runtime's pool. The callbacks of the
/// instruments run on the thread that collects, and ask nothing: they show what was read last.
///
/// **Dropping** the meter, its clones and its timer ends the figures: the instruments, which
/// OpenTelemetry cannot take back, show nothing any more. A meter keeps its scheduler open.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Runtime;
/// use timerqueue_adapters::scheduler_opentelemetry_0_33::SchedulerMeter;
/// use timerqueue_scheduler::Scheduler;
///
/// let scheduler = Scheduler::builder().handler("mail", |_: u32, _| {}).start()?;
/// let meter = opentelemetry::global::meter("jobs"); // of the provider that the program has set
/// let reads = SchedulerMeter::new(&scheduler, &meter).every(Runtime::global(), Duration::from_secs(10));
/// # drop(reads);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SchedulerMeter {
    inner: Arc<Inner>,
}

struct Inner {
    figures: Figures,
    last: Mutex<Vec<Figure>>,
}

impl SchedulerMeter {
    /// Makes the instruments. They show nothing before the first reading.
    #[must_use = "a dropped meter shows nothing"]
    pub fn new(scheduler: &Scheduler, meter: &Meter) -> Self {
        let inner = Arc::new(Inner { figures: Figures::new(scheduler), last: Mutex::default() });
        for kind in Figure::KINDS {
            let callback = observer(&inner, kind);
            if kind.is_counter {
                meter.f64_observable_counter(kind.name).with_description(kind.help).with_callback(callback).build();
            } else {
                meter.f64_observable_gauge(kind.name).with_description(kind.help).with_callback(callback).build();
            }
        }
        Self { inner }
    }

    /// Asks the store. Blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: the figures stay.
    pub fn read(&self) -> Result<(), Error> {
        self.inner.figures.wait().map(|figures| self.inner.set(figures))
    }

    /// As [`read`](Self::read), and awaits the store.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: the figures stay.
    pub async fn read_async(&self) -> Result<(), Error> {
        self.inner.figures.read().await.map(|figures| self.inner.set(figures))
    }

    /// Reads every `period`, in a callback of this runtime, until the timer is dropped. While the
    /// store does not answer, the callback blocks a thread of the pool, and the figures stay.
    pub fn every(self, runtime: &Runtime, period: Duration) -> Timer {
        TimerBuilder::on(runtime).period(period).start_exclusive(move |_| _ = self.read())
    }
}

impl Inner {
    fn set(&self, figures: Vec<Figure>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }
}

/// Shows the last figures of a kind. The lock is not held while OpenTelemetry takes them.
fn observer(inner: &Arc<Inner>, kind: &'static FigureKind) -> impl Fn(&dyn AsyncInstrument<f64>) + Send + Sync + use<> {
    let inner: Weak<Inner> = Arc::downgrade(inner);
    move |instrument| {
        let Some(inner) = inner.upgrade() else { return };
        let last = inner.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for figure in last.iter().filter(|figure| figure.name == kind.name) {
            let label = |(name, value): &(&'static str, Arc<str>)| KeyValue::new(*name, Arc::clone(value));
            let labels: Vec<KeyValue> = figure.labels.iter().map(label).collect();
            instrument.observe(figure.value, &labels);
        }
    }
}

impl fmt::Debug for SchedulerMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerMeter").field("figures", &self.inner.figures).finish_non_exhaustive()
    }
}

/// Makes a span for each run, which follows the span in which its job was put: on whichever node,
/// after a restart, and after weeks.
///
/// A put takes the current context of its thread along ([`Builder::trace_puts`]), in the form of
/// W3C: `traceparent`, and on a second line `tracestate`. Each attempt at the job is a span of the
/// kind *consumer* in the same trace, a child of the put's span. The runs of a recurring job have
/// traces of their own, each with a link to the span of the put: a trace that grows each hour would
/// have no end. The context of the run is current while the handler runs, also in a future, so
/// spans in the handler and further puts follow the run.
///
/// The span has the name of the handler, and attributes by the conventions for messaging:
/// `messaging.destination.name` (the handler), `messaging.message.id` ([`Run::run_id`]), and
/// `timerqueue.key`, `timerqueue.attempt`, `timerqueue.end`. A failed attempt is an error.
///
/// The hook is a [`Builder::around`]: call this before other hooks whose work is to be inside of
/// the span. A panic of the tracer is a failed attempt.
///
/// With the crate `tracing`, its `run` span (feature `tracing` of the scheduler) stands around this
/// one, and has the context as its field `trace`.
///
/// # Examples
///
/// ```
/// use timerqueue_adapters::scheduler_opentelemetry_0_33::traced;
/// use timerqueue_scheduler::{Run, Scheduler};
///
/// let tracer = opentelemetry::global::tracer("jobs");
/// let scheduler = traced(Scheduler::builder(), tracer).handler("mail", |_: u32, _: &Run| {}).start()?;
/// let _ = scheduler.put_to("mail", &1).send().wait()?; // within a span: the run follows it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn traced<T>(builder: Builder, tracer: T) -> Builder
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    let tracer = Arc::new(tracer);
    builder.trace_puts(|| Context::map_current(|context| written(context.span().span_context()))).around(
        move |run: Run, next: Next| {
            let tracer = Arc::clone(&tracer);
            async move {
                // Ends the span if the run is dropped: by an executor, or after its grace.
                let span = Span(span_of(&*tracer, &run));
                let ended = In { context: span.0.clone(), next }.await;
                let (end, status) = shown(&ended);
                span.0.span().set_attribute(KeyValue::new("timerqueue.end", end));
                span.0.span().set_status(status);
                ended
            }
        },
    )
}

fn span_of<T>(tracer: &T, run: &Run) -> Context
where
    T: Tracer,
    T::Span: Send + Sync + 'static,
{
    let put = run.trace().and_then(read);
    let mut builder = tracer.span_builder(run.name().to_owned()).with_kind(SpanKind::Consumer).with_attributes([
        KeyValue::new("messaging.system", "timerqueue"),
        KeyValue::new("messaging.operation.type", "process"),
        KeyValue::new("messaging.destination.name", run.name().to_owned()),
        KeyValue::new("messaging.message.id", run.run_id().to_owned()),
        KeyValue::new("timerqueue.key", run.key().to_owned()),
        KeyValue::new("timerqueue.attempt", i64::from(run.attempt())),
    ]);
    // The thread may be in a context of its own, which is not that of the run.
    let mut parent = Context::new();
    match put {
        Some(put) if run.nominal().is_some() => builder = builder.with_links(vec![Link::with_context(put)]),
        Some(put) => parent = parent.with_remote_span_context(put),
        None => {}
    }
    let span = builder.start_with_context(tracer, &parent);
    parent.with_span(span)
}

fn shown(ended: &Ended) -> (&'static str, Status) {
    let error = || Status::error(ended.error().unwrap_or_default().to_owned());
    match ended {
        Ended::Outcome(Outcome::Done | Outcome::Returned(_)) => ("done", Status::Ok),
        Ended::Outcome(Outcome::Again(_)) => ("again", Status::Ok),
        Ended::Outcome(Outcome::PutBack) => ("put_back", Status::Unset),
        Ended::Outcome(Outcome::Dead(_)) | Ended::Failed { wait: None, .. } => ("dead", error()),
        Ended::Failed { .. } => ("failed", error()),
        _ => ("other", Status::Unset),
    }
}

/// A run in its context.
struct In {
    context: Context,
    next: Next,
}

impl Future for In {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Ended> {
        let _current = self.context.clone().attach();
        Pin::new(&mut self.next).poll(context)
    }
}

/// The context of a span, which ends with this value.
struct Span(Context);

impl Drop for Span {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

/// A context as W3C writes it: `traceparent`, and `tracestate` on a second line where there is
/// room.
fn written(context: &SpanContext) -> Option<String> {
    if !context.is_valid() {
        return None;
    }
    let flags = context.trace_flags().to_u8();
    let mut text = format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id());
    let state = context.trace_state().header();
    if !state.is_empty() && text.len() + 1 + state.len() <= MAX_TRACE_BYTES {
        text.push('\n');
        text.push_str(&state);
    }
    Some(text)
}

/// The context that [`written`] wrote, or another program by the rules of W3C.
fn read(text: &str) -> Option<SpanContext> {
    let (parent, state) = text.split_once('\n').unwrap_or((text, ""));
    let mut parts = parent.trim().split('-');
    let mut part = |length: usize| {
        let is_hex = |part: &&str| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        parts.next().filter(is_hex)
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = TraceState::from_str(state).unwrap_or_default();
    let context = SpanContext::new(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags, true, state);
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_as_it_was_written() {
        let state = TraceState::from_str("vendor=a,other=b").unwrap();
        let new = |flags| {
            SpanContext::new(
                TraceId::from(0xaf7_u128),
                SpanId::from(0xb7_u64),
                TraceFlags::new(flags),
                true,
                state.clone(),
            )
        };
        for flags in [0, 1] {
            let context = new(flags);
            let text = written(&context).unwrap();
            assert_eq!(read(&text), Some(context), "{text}");
        }
        let long = TraceState::from_key_value((0..6).map(|n| (format!("k{n}"), "x".repeat(200)))).unwrap();
        let context = SpanContext::new(TraceId::from(1), SpanId::from(2), TraceFlags::SAMPLED, false, long);
        assert!(written(&context).unwrap().len() < 60, "a state without room is left out");
        assert_eq!(written(&SpanContext::NONE), None);
    }

    #[test]
    fn a_text_that_is_no_context_is_none() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        assert!(read(&format!("00-{trace}-{span}-01")).is_some());
        assert!(read(&format!("01-{trace}-{span}-01-more")).is_some(), "a later version may have more");
        for text in [
            String::new(),
            "ü-ü-ü-ü".to_owned(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-+{}-{span}-01", &trace[1..]),
        ] {
            assert_eq!(read(&text), None, "{text}");
        }
    }
}
