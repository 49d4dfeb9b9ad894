//! A scheduler with the SDK of OpenTelemetry: spans and figures as an exporter gets them.
#![cfg(feature = "scheduler-opentelemetry-0_33")]

use std::time::Duration;

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceContextExt, Tracer, TracerProvider as _};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use timerqueue::{ManualClock, Runtime};
use timerqueue_adapters::scheduler_opentelemetry_0_33::{SchedulerMeter, traced};
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Handler, Retry, Run, Schedule, Scheduler};

const SECOND: Duration = Duration::from_secs(1);

fn attribute(span: &SpanData, key: &str) -> Option<Value> {
    span.attributes.iter().find(|attribute| attribute.key.as_str() == key).map(|found| found.value.clone())
}

/// Put on a node, run on another one, which puts in turn: one trace.
#[test]
fn the_span_of_a_run_follows_that_of_the_put_over_nodes() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let store = MemoryStore::new(&runtime);
    let builder = || traced(Scheduler::builder().runtime(&runtime).store(store.clone()), provider.tracer("jobs"));
    let front = builder().start().unwrap();
    let first = |n: u32, run: &Run| {
        assert!(Context::current().has_active_span(), "the run is current");
        match (n, run.attempt()) {
            (7, 1) => Err("refused"),
            _ => run.scheduler().put_to("second", &n).send().wait().map(drop).map_err(|_| "not put"),
        }
    };
    let second = Handler::new_async("second", |_: u32, _: Run| async {
        smol::future::yield_now().await;
        assert!(Context::current().has_active_span(), "in a future too");
    });
    let first = Handler::new("first", first).retry(Retry::waits([SECOND]));
    let _back = builder().register(first).register(second).spawner(smol::block_on).start().unwrap();
    let tracer = provider.tracer("web");
    let request = tracer.start("request");
    let context = Context::new().with_span(request);
    let request = context.span().span_context().clone();
    {
        let _current = context.clone().attach();
        let _ = front.put_to("first", &7).key("order/7").due(SECOND).send().wait().unwrap();
    }
    let _ = front.put_to("second", &1).send().wait().unwrap(); // in no span: a trace of its own
    clock.advance(5 * SECOND);
    context.span().end();
    let spans = exporter.get_finished_spans().unwrap();
    let runs: Vec<&SpanData> = spans.iter().filter(|span| span.span_kind == SpanKind::Consumer).collect();
    let names: Vec<(&str, Option<Value>)> =
        runs.iter().map(|span| (&*span.name, attribute(span, "timerqueue.end"))).collect();
    let end = |name: &'static str, end: &'static str| (name, Some(Value::from(end)));
    assert_eq!(names, [end("second", "done"), end("first", "failed"), end("first", "done"), end("second", "done")]);
    let [alone, failed, done, next] = runs[..] else { unreachable!("four runs") };
    assert_ne!(alone.span_context.trace_id(), request.trace_id());
    assert_eq!(alone.parent_span_id, SpanId::INVALID);
    for attempt in [failed, done] {
        assert_eq!(attempt.span_context.trace_id(), request.trace_id());
        assert_eq!(attempt.parent_span_id, request.span_id());
        assert!(attempt.parent_span_is_remote);
        assert_eq!(attribute(attempt, "timerqueue.key"), Some(Value::from("order/7")));
    }
    assert_eq!(failed.status, Status::error("refused"));
    assert_eq!(attribute(done, "timerqueue.attempt"), Some(Value::from(2_i64)));
    assert_eq!((next.span_context.trace_id(), next.parent_span_id), (request.trace_id(), done.span_context.span_id()));
}

#[test]
fn each_run_of_a_recurring_job_has_a_trace_with_a_link_to_the_put() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let builder = traced(Scheduler::builder().runtime(&runtime), provider.tracer("jobs"));
    let scheduler = builder.handler("tick", |(): (), _: &Run| {}).start().unwrap();
    let tracer = provider.tracer("web");
    let put = tracer.in_span("deploy", |context| {
        let every = Schedule::every(SECOND).build().unwrap();
        let _ = scheduler.put_to("tick", &()).key("tick").schedule(every).send().wait().unwrap();
        context.span().span_context().clone()
    });
    clock.advance(3 * SECOND);
    let spans = exporter.get_finished_spans().unwrap();
    let runs: Vec<&SpanData> = spans.iter().filter(|span| span.name == "tick").collect();
    assert!(runs.len() >= 3);
    let mut traces: Vec<_> = runs.iter().map(|span| span.span_context.trace_id()).collect();
    traces.push(put.trace_id());
    traces.sort_by_key(ToString::to_string);
    traces.dedup();
    assert_eq!(traces.len(), runs.len() + 1, "each has its own");
    for run in runs {
        let links: Vec<_> = run.links.iter().map(|link| link.span_context.span_id()).collect();
        assert_eq!(links, [put.span_id()]);
    }
}

#[test]
fn instruments_show_what_was_read_last() {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).with_interval(3_600 * SECOND).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start().unwrap();
    let meter = SchedulerMeter::new(&scheduler, &provider.meter("jobs"));
    meter.read().unwrap();
    for due in [0, 1, 3_600] {
        let _ = scheduler.put_to("mail", &due).due(due * SECOND).send().wait().unwrap();
    }
    clock.advance(10 * SECOND);
    meter.read().unwrap();
    let shown = |name: &str, labels: &[(&str, &str)]| -> Option<f64> {
        exporter.reset();
        provider.force_flush().unwrap();
        let exported = exporter.get_finished_metrics().unwrap();
        let metrics = exported.iter().flat_map(|all| all.scope_metrics()).flat_map(|scope| scope.metrics());
        let fits = |attributes: &mut dyn Iterator<Item = &opentelemetry::KeyValue>| {
            let own: Vec<(String, String)> =
                attributes.map(|label| (label.key.to_string(), label.value.to_string())).collect();
            labels.iter().all(|&(key, value)| own.contains(&(key.to_owned(), value.to_owned())))
        };
        let mut values = metrics.filter(|metric| metric.name() == name).filter_map(|metric| match metric.data() {
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                gauge.data_points().find(|point| fits(&mut point.attributes())).map(|point| point.value())
            }
            AggregatedMetrics::F64(MetricData::Sum(sum)) => {
                sum.data_points().find(|point| fits(&mut point.attributes())).map(|point| point.value())
            }
            _ => None,
        });
        values.next()
    };
    assert_eq!(shown("timerqueue_jobs", &[("handler", "mail"), ("state", "waiting")]), Some(1.0));
    assert_eq!(shown("timerqueue_runs_total", &[("handler", "mail"), ("end", "done")]), Some(2.0));
    assert_eq!(shown("timerqueue_run_lateness_seconds_bucket", &[("le", "0.000256")]), Some(2.0));
    assert!(shown("timerqueue_store_seconds", &[]).is_some());
    // A timer reads, and its drop lets the scheduler go.
    let reads = meter.every(&runtime, SECOND);
    let _ = scheduler.put_to("mail", &9).send().wait().unwrap();
    clock.advance(2 * SECOND);
    assert_eq!(shown("timerqueue_runs_total", &[("end", "done")]), Some(3.0));
    drop(reads);
    clock.advance(2 * SECOND);
    assert_eq!(shown("timerqueue_jobs", &[]), None, "a dropped meter shows nothing");
}
