//! Jobs in OpenTelemetry: a span for each run, which follows that of its put, and the figures.
//!
//! ```text
//! cargo run -p timerqueue-adapters --features scheduler-opentelemetry-0_33 --example opentelemetry_jobs
//! ```
//!
//! Without a collector, the exporters keep in memory what they get, and the example prints it. A
//! program takes those of the crate `opentelemetry-otlp` in their places; nothing else differs.

use std::error::Error;
use std::time::Duration;

use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::{SpanKind, Tracer, TracerProvider};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use timerqueue::Runtime;
use timerqueue_adapters::scheduler_opentelemetry_0_33::{SchedulerMeter, traced};
use timerqueue_scheduler::{JobEnd, Run, Scheduler};

fn main() -> Result<(), Box<dyn Error>> {
    let (to_spans, to_metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
    let spans = SdkTracerProvider::builder().with_simple_exporter(to_spans.clone()).build();
    let metrics = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(to_metrics.clone()).build()).build();

    let mail = |to: String, run: &Run| println!("a mail to {to}: attempt {}", run.attempt());
    let scheduler = traced(Scheduler::builder(), spans.tracer("jobs")).handler("mail", mail).start()?;
    // Read now and then: an export shows what was read last, and waits for no store.
    let meter = SchedulerMeter::new(&scheduler, &metrics.meter("jobs"));
    let _reads = meter.clone().every(Runtime::global(), Duration::from_secs(10));

    // A request of a user puts a job, which runs later.
    let minute = Duration::from_secs(60);
    let ended = spans.tracer("web").in_span("request", |_| {
        let put = scheduler.put_to("mail", "ann").due(Duration::from_millis(20)).kept_for(minute);
        let id = put.send().wait()?.added().expect("a key of its own");
        scheduler.wait_for(id, minute).wait()
    })?;
    assert!(matches!(ended, JobEnd::Done(_)));

    meter.read()?;
    metrics.force_flush()?;
    let exported = to_metrics.get_finished_metrics()?;
    for metric in exported.iter().flat_map(|all| all.scope_metrics()).flat_map(|scope| scope.metrics()) {
        println!("{}: {}", metric.name(), metric.description());
    }
    let spans = to_spans.get_finished_spans()?;
    for span in &spans {
        println!("{}: trace {}, parent {}", span.name, span.span_context.trace_id(), span.parent_span_id);
    }
    let run = spans.iter().find(|span| span.span_kind == SpanKind::Consumer).ok_or("no run")?;
    let request = spans.iter().find(|span| span.name == "request").ok_or("no request")?;
    assert_eq!(run.parent_span_id, request.span_context.span_id());
    Ok(())
}
