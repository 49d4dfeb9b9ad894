//! The figures of a runtime, for recorders of the crate metrics 0.24.
//!
//! [`Reporter`] copies a snapshot of [`Runtime::metrics`] to the recorder of the program. The
//! runtime counts anyway, and no timer calls a recorder: so a report costs when it is made, and
//! nothing else.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::Label;
use timerqueue::{Runtime, Timer, TimerBuilder, observe::Metrics};

const LATENESS_BUCKET: &str = "timerqueue_lateness_seconds_bucket";
const LATENESS_COUNT: &str = "timerqueue_lateness_seconds_count";

/// The upper ends of the buckets of lateness, in microseconds, and as labels in seconds.
const LATE_UP_TO: [(u64, &str); 15] = [
    (10, "0.00001"),
    (25, "0.000025"),
    (50, "0.00005"),
    (100, "0.0001"),
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (1_000_000, "1"),
    (10_000_000, "10"),
];

/// A counter: its name, its text, and where the snapshot has it.
type Counter = (&'static str, &'static str, fn(&Metrics) -> u64);
/// A gauge, as a counter.
type Gauge = (&'static str, &'static str, fn(&Metrics) -> f64);

const COUNTERS: &[Counter] = &[
    ("timerqueue_timers_created_total", "Timers made, with the entries of futures", |m| m.created),
    ("timerqueue_timers_changed_total", "Changes of due times; of futures, those to earlier", |m| m.changed),
    ("timerqueue_timers_disposed_total", "Timers disposed or dropped before a tick", |m| m.disposed),
    ("timerqueue_callbacks_total", "Callbacks that have returned", |m| m.callbacks),
    ("timerqueue_wakers_total", "Wakers of futures called", |m| m.wakers),
    ("timerqueue_panics_total", "Panics caught in callbacks, wakers and destructors", |m| m.panics),
    ("timerqueue_missed_ticks_total", "Ticks left out by the policy for missed ticks", |m| m.missed_ticks),
    ("timerqueue_alarms_set_total", "Alarms set by queues", |m| m.alarms_set),
    ("timerqueue_wake_ups_total", "Wake-ups of threads of the pool", |m| m.wake_ups),
    ("timerqueue_threads_started_total", "Threads started", |m| m.threads.started),
    ("timerqueue_threads_refused_total", "Threads refused by the system", |m| m.threads.refused),
];

const GAUGES: &[Gauge] = &[
    ("timerqueue_timers_active", "Timers that wait for a tick", |m| m.active as f64),
    ("timerqueue_waiting", "Ticks and wakers that are due and have not begun", |m| m.waiting as f64),
    ("timerqueue_threads_alive", "Threads of the pool", |m| m.threads.alive as f64),
    ("timerqueue_threads_busy", "Threads that run a callback", |m| m.threads.busy as f64),
    ("timerqueue_threads_polling", "Threads that wait for an alarm", |m| m.threads.polling as f64),
    ("timerqueue_threads_parked", "Threads that are idle and wait for no alarm", |m| m.threads.parked as f64),
    ("timerqueue_threads_limit", "The greatest number of threads allowed", |m| m.threads.limit as f64),
    ("timerqueue_longest_running_seconds", "For how long the oldest callback has been running", |m| {
        m.longest_running.as_secs_f64()
    }),
];

/// Reports the figures of a [`Runtime`] to the recorder of the program.
///
/// | name | kind | content |
/// |---|---|---|
/// | `timerqueue_timers_created_total`, `_changed_total`, `_disposed_total` | counter | timers and entries of futures |
/// | `timerqueue_callbacks_total`, `timerqueue_wakers_total` | counter | what has fired |
/// | `timerqueue_panics_total`, `timerqueue_missed_ticks_total` | counter | panics caught; ticks left out |
/// | `timerqueue_alarms_set_total`, `timerqueue_wake_ups_total` | counter | alarms set; wake-ups of threads |
/// | `timerqueue_threads_started_total`, `_refused_total` | counter | threads of the pool |
/// | `timerqueue_timers_active`, `timerqueue_waiting` | gauge | timers that wait now; what is due and has not begun |
/// | `timerqueue_threads_alive`, `_busy`, `_polling`, `_parked`, `_limit` | gauge | threads now |
/// | `timerqueue_longest_running_seconds` | gauge | how long the callback that has run the longest has been running |
/// | `timerqueue_lateness_seconds_bucket{le}`, `_count` | counter | how late callbacks and wakers began |
///
/// [`Metrics`] has the exact meaning of each.
///
/// **Threads.** [`report`](Self::report) runs the recorder on the calling thread, with no lock of
/// the runtime held. So a recorder may block or panic, and the caller of `report` sees it.
/// [`every`](Self::every) calls it on a thread of the runtime's pool.
///
/// **Precision.** A report calls the recorder for each line of the table, however much has fired:
/// 4 us with the Prometheus exporter, after 100,000 callbacks as after 1,200,000, and no memory.
/// Gauges show the moment of the last report. Lateness is given
/// as Prometheus keeps histograms: for 15 limits from 10 us to 10 s (the label `le`, in seconds)
/// the number of callbacks and wakers that were late by at most that; `+Inf` has all. An event
/// counts by the end of its bucket in [`Metrics::lateness`]: at most an eighth (and 128 ns) too
/// great. (A histogram of the crate metrics would get a sample for each event, and a recorder that
/// is never asked would keep them all.)
///
/// **Dropping** a reporter leaves the figures at the recorder as they are. A reporter keeps its
/// runtime alive.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use metrics_exporter_prometheus::PrometheusBuilder;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
/// use timerqueue_adapters::metrics_0_24::Reporter;
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let recorder = PrometheusBuilder::new().build_recorder();
/// let prometheus = recorder.handle();
/// metrics::with_local_recorder(&recorder, || {
///     let reporter = Reporter::new(&runtime);
///     let _timer = TimerBuilder::on(&runtime).period(Duration::from_secs(1)).start_exclusive(|_| {});
///     clock.advance(Duration::from_secs(60));
///     reporter.report();
/// });
/// assert!(prometheus.render().contains("timerqueue_callbacks_total 60"));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct Reporter {
    runtime: Runtime,
    reports: Reports,
}

/// What a reporter needs besides its runtime.
#[derive(Default)]
struct Reports {
    labels: Vec<Label>,
    described: AtomicBool,
}

impl Reporter {
    /// A reporter for this runtime. Nothing is reported yet.
    #[must_use = "a reporter does nothing until `report` or `every`"]
    pub fn new(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone(), reports: Reports::default() }
    }

    /// Adds a label to all figures: for a program with several runtimes, whose figures would else
    /// overwrite each other.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::Runtime;
    /// use timerqueue_adapters::metrics_0_24::Reporter;
    ///
    /// let reporter = Reporter::new(Runtime::global()).label("runtime", "default");
    /// # drop(reporter);
    /// ```
    #[must_use]
    pub fn label(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.reports.labels.push(Label::new(key, value.into()));
        self
    }

    /// Reports what the runtime has done so far, and what it does now, to the recorder of the
    /// calling thread: as a rule the global one.
    ///
    /// Call it before each scrape, or now and then: see [`every`](Self::every). Any thread may, and
    /// several at once. Every figure is absolute, so a report that is left out loses nothing.
    ///
    /// # Panics
    /// When the recorder panics. The next report has what this one lacks.
    ///
    /// # Examples
    ///
    /// See [`Reporter`].
    pub fn report(&self) {
        self.reports.send(self.runtime.metrics());
    }

    /// Reports every `period`, in a callback of the runtime, until the timer is dropped: for
    /// recorders that send what they have, or are asked at any time. The reports are counted as
    /// callbacks of the runtime. A panic of the recorder is one of a callback.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    /// use timerqueue_adapters::metrics_0_24::Reporter;
    ///
    /// let reports = Reporter::new(Runtime::global()).every(Duration::from_secs(10));
    /// # drop(reports);
    /// ```
    pub fn every(self, period: Duration) -> Timer {
        let Self { runtime, reports } = self;
        // In a callback, the current runtime is the one that runs it. A callback with a handle
        // would keep its runtime alive for ever.
        TimerBuilder::on(&runtime).period(period).start_exclusive(move |_| reports.send(Runtime::current().metrics()))
    }
}

impl Reports {
    fn send(&self, now: Metrics) {
        if !self.described.swap(true, Ordering::Relaxed) {
            describe();
        }
        for &(name, _, value) in COUNTERS {
            metrics::counter!(name, self.labels.clone()).absolute(value(&now));
        }
        for &(name, _, value) in GAUGES {
            metrics::gauge!(name, self.labels.clone()).set(value(&now));
        }
        // The buckets of the runtime, in the order of their ends, are summed up on the way.
        let (mut buckets, mut sum) = (now.lateness.buckets().peekable(), 0);
        for (us, le) in LATE_UP_TO {
            while let Some((_, times)) = buckets.next_if(|&(end, _)| end <= Duration::from_micros(us)) {
                sum += times;
            }
            self.late(le, sum);
        }
        self.late("+Inf", now.lateness.count());
        metrics::counter!(LATENESS_COUNT, self.labels.clone()).absolute(now.lateness.count());
    }

    fn late(&self, le: &'static str, times: u64) {
        let mut labels = self.labels.clone();
        labels.push(Label::from_static_parts("le", le));
        metrics::counter!(LATENESS_BUCKET, labels).absolute(times);
    }
}

fn describe() {
    for &(name, text, _) in COUNTERS {
        metrics::describe_counter!(name, text);
    }
    for &(name, text, _) in GAUGES {
        metrics::describe_gauge!(name, text);
    }
    metrics::describe_counter!(LATENESS_BUCKET, "Callbacks and wakers that began late by at most `le` seconds");
    metrics::describe_counter!(LATENESS_COUNT, "Callbacks and wakers whose lateness is known");
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("runtime", &self.runtime)
            .field("labels", &self.reports.labels)
            .finish_non_exhaustive()
    }
}
