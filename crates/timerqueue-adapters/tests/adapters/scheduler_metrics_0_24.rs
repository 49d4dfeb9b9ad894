//! The figures of a scheduler at the recorder of the Prometheus exporter.
#![cfg(feature = "scheduler-metrics-0_24")]

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use timerqueue::{ManualClock, Runtime};
use timerqueue_adapters::scheduler_metrics_0_24::SchedulerReporter;
use timerqueue_scheduler::Scheduler;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_report_has_the_figures_of_scheduler_and_store() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start().unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = || recorder.handle().render();
    let reporter = SchedulerReporter::new(&scheduler).label("store", "orders");
    metrics::with_local_recorder(&recorder, || reporter.report()).unwrap();
    for due in [0, 1, 3_600] {
        let _ = scheduler.put_to("mail", &due).due(due * SECOND).send().wait().unwrap();
    }
    clock.advance(10 * SECOND);
    metrics::with_local_recorder(&recorder, || reporter.report()).unwrap();
    for line in [
        "timerqueue_jobs{store=\"orders\",handler=\"mail\",state=\"waiting\"} 1",
        "timerqueue_runs_total{store=\"orders\",handler=\"mail\",end=\"done\"} 2",
        "timerqueue_run_lateness_seconds_bucket{store=\"orders\",handler=\"mail\",le=\"0.000256\"} 2",
        "timerqueue_scheduler_run_seconds_count{store=\"orders\"} 2",
        "timerqueue_nodes{store=\"orders\"} 1",
        "# HELP timerqueue_store_seconds How long the store took to answer",
    ] {
        assert!(page().contains(line), "{line}\n{}", page());
    }
    // A timer reports, and its drop lets the scheduler go.
    let reports = reporter.every(&runtime, SECOND);
    let _ = scheduler.put_to("mail", &9).send().wait().unwrap();
    metrics::with_local_recorder(&recorder, || clock.advance(2 * SECOND));
    assert!(page().contains("handler=\"mail\",end=\"done\"} 3"), "{}", page());
    drop(reports);
}
