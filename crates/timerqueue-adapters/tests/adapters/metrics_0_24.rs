//! The figures of a runtime at the recorder of the Prometheus exporter.
#![cfg(feature = "metrics-0_24")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use timerqueue::{ManualClock, OnceTimer, Runtime, TimerBuilder};
use timerqueue_adapters::metrics_0_24::Reporter;

const SECOND: Duration = Duration::from_secs(1);

fn manual() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    (clock, runtime)
}

fn recorder() -> PrometheusRecorder {
    PrometheusBuilder::new().build_recorder()
}

/// The value in the line that begins so.
fn value(recorder: &PrometheusRecorder, name: &str) -> f64 {
    let text = recorder.handle().render();
    let line =
        text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().expect("a value").parse().expect("a number")
}

#[test]
fn a_report_has_the_figures_of_the_runtime() {
    let ((clock, runtime), recorder) = (manual(), recorder());
    let reporter = Reporter::new(&runtime);
    metrics::with_local_recorder(&recorder, || reporter.report());
    assert_eq!(value(&recorder, "timerqueue_callbacks_total"), 0.0);
    let timer = TimerBuilder::on(&runtime).period(SECOND).start_exclusive(|_| {});
    let gone = OnceTimer::on(&runtime, SECOND, |_| {});
    drop(gone);
    clock.advance(5 * SECOND);
    metrics::with_local_recorder(&recorder, || reporter.report());
    for (name, expected) in [
        ("timerqueue_timers_created_total", 2.0),
        ("timerqueue_timers_disposed_total", 1.0),
        ("timerqueue_callbacks_total", 5.0),
        ("timerqueue_timers_active", 1.0),
        ("timerqueue_threads_alive", 0.0),
        ("timerqueue_lateness_seconds_count", 5.0),
    ] {
        assert_eq!(value(&recorder, name), expected, "{name}");
    }
    let text = recorder.handle().render();
    assert!(text.contains("# HELP timerqueue_waiting Ticks and wakers that are due"), "{text}");
    drop(timer);
}

#[test]
fn lateness_is_reported_once_and_in_its_bucket() {
    let ((clock, runtime), recorder) = (manual(), recorder());
    let reporter = Reporter::new(&runtime);
    for round in 1..=3 {
        let timer = OnceTimer::on(&runtime, SECOND, |_| {});
        clock.stall(2 * SECOND); // a second late
        clock.advance(Duration::ZERO);
        metrics::with_local_recorder(&recorder, || (0..2).for_each(|_| reporter.report()));
        assert_eq!(value(&recorder, "timerqueue_lateness_seconds_count"), f64::from(round));
        for (le, times) in [("0.1", 0), ("1", 0), ("10", round), ("+Inf", round)] {
            let bucket = format!("timerqueue_lateness_seconds_bucket{{le=\"{le}\"}}");
            assert_eq!(value(&recorder, &bucket), f64::from(times), "{le}");
        }
        drop(timer);
    }
}

#[test]
fn runtimes_are_told_apart_by_a_label() {
    let recorder = recorder();
    for (name, timers) in [("one", 1), ("other", 2)] {
        let (clock, runtime) = manual();
        let timers: Vec<_> = (0..timers).map(|_| OnceTimer::on(&runtime, SECOND, |_| {})).collect();
        clock.advance(SECOND);
        metrics::with_local_recorder(&recorder, || Reporter::new(&runtime).label("runtime", name).report());
        drop(timers);
    }
    assert_eq!(value(&recorder, "timerqueue_callbacks_total{runtime=\"one\"}"), 1.0);
    assert_eq!(value(&recorder, "timerqueue_callbacks_total{runtime=\"other\"}"), 2.0);
}

#[test]
fn a_timer_reports_and_keeps_no_runtime_alive() {
    let ((clock, runtime), recorder) = (manual(), recorder());
    let reports = Reporter::new(&runtime).every(SECOND);
    metrics::with_local_recorder(&recorder, || clock.advance(3 * SECOND));
    // The report that runs is not counted yet.
    assert_eq!(value(&recorder, "timerqueue_callbacks_total"), 2.0);
    drop(runtime);
    assert_eq!(clock.advance(3 * SECOND), 0, "the last handle is gone, and the runtime has ended");
    drop(reports);
}

#[test]
fn a_recorder_that_panics_is_a_panic_of_the_callback() {
    /// Panics at each figure.
    struct Broken;
    impl metrics::Recorder for Broken {
        fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
            panic!("on purpose")
        }
        fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
            metrics::Gauge::noop()
        }
        fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::noop()
        }
    }
    let (clock, runtime) = manual();
    let reports = Reporter::new(&runtime).every(SECOND);
    metrics::with_local_recorder(&Broken, || clock.advance(2 * SECOND));
    assert_eq!(runtime.metrics().panics, 2);
    drop(reports);
}

/// A recorder that is never read keeps each sample of a histogram: lateness is none here.
#[test]
fn a_report_costs_the_same_however_much_has_fired() {
    /// Counts what a report asks for.
    #[derive(Default)]
    struct Counting(AtomicUsize);
    impl metrics::Recorder for Counting {
        fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
            self.0.fetch_add(1, Ordering::Relaxed);
            metrics::Counter::noop()
        }
        fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
            self.0.fetch_add(1, Ordering::Relaxed);
            metrics::Gauge::noop()
        }
        fn register_histogram(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
            panic!("a sample for each callback: {key}")
        }
    }
    let (clock, runtime) = manual();
    let (recorder, reporter) = (Counting::default(), Reporter::new(&runtime));
    let timer = TimerBuilder::on(&runtime).period(Duration::from_millis(1)).start_exclusive(|_| {});
    let mut costs = Vec::new();
    for callbacks in [0, 1, 100_000] {
        clock.advance(Duration::from_millis(1) * callbacks);
        recorder.0.store(0, Ordering::Relaxed);
        metrics::with_local_recorder(&recorder, || reporter.report());
        costs.push(recorder.0.load(Ordering::Relaxed));
    }
    assert!(costs.iter().all(|&cost| cost == costs[0] && cost < 50), "{costs:?}");
    drop(timer);
}
