//! The figures of a scheduler and its store, for recorders of the crate metrics 0.24.
//!
//! [`SchedulerReporter`] copies the [`Figures`] of a scheduler to the recorder of the program. No
//! run calls a recorder: a report costs when it is made, and nothing else.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::Label;
use timerqueue::{Runtime, Timer, TimerBuilder};
use timerqueue_scheduler::{Error, Figure, Figures, Scheduler};

/// Reports the figures of a [`Scheduler`] and its store to the recorder of the program.
///
/// The names are those of [`Figure::KINDS`], as on the page `/metrics` of `timerqueue-web`: jobs by
/// handler and state, the age of the oldest due job, ends of runs by kind, lateness, durations and
/// the answer of the store. One reporter for a store suffices for the figures of the store; those
/// with `scheduler` in their names are of this scheduler.
///
/// **Threads.** [`report`](Self::report) asks the store, blocks, and runs the recorder on the
/// calling thread. [`report_async`](Self::report_async) awaits the store. [`every`](Self::every)
/// reports on a thread of a runtime's pool.
///
/// **Precision.** A report asks three questions of the store, whose cost grows with the handlers.
/// Lateness and durations are given as Prometheus keeps histograms: for each of 11 limits (the
/// label `le`, in seconds) the number of runs below.
///
/// **Dropping** a reporter leaves the figures at the recorder as they are. A reporter keeps its
/// scheduler open.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use metrics_exporter_prometheus::PrometheusBuilder;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_adapters::scheduler_metrics_0_24::SchedulerReporter;
/// use timerqueue_scheduler::Scheduler;
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
/// let _ = scheduler.put_to("mail", &1).due(Duration::from_secs(60)).send().wait()?;
/// let recorder = PrometheusBuilder::new().build_recorder();
/// let prometheus = recorder.handle();
/// metrics::with_local_recorder(&recorder, || SchedulerReporter::new(&scheduler).report())?;
/// assert!(prometheus.render().contains("timerqueue_jobs{handler=\"mail\",state=\"waiting\"} 1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SchedulerReporter {
    figures: Figures,
    labels: Vec<Label>,
    described: AtomicBool,
}

impl SchedulerReporter {
    /// A reporter for this scheduler. Nothing is reported yet.
    #[must_use = "a reporter does nothing until `report` or `every`"]
    pub fn new(scheduler: &Scheduler) -> Self {
        Self { figures: Figures::new(scheduler), labels: Vec::new(), described: AtomicBool::new(false) }
    }

    /// Adds a label to all figures: for a program with several schedulers, whose figures would else
    /// overwrite each other.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_adapters::scheduler_metrics_0_24::SchedulerReporter;
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let scheduler = Scheduler::builder().start()?;
    /// let reporter = SchedulerReporter::new(&scheduler).label("store", "orders");
    /// # drop(reporter);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn label(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(key, value.into()));
        self
    }

    /// Asks the store, and reports to the recorder of the calling thread: as a rule the global one.
    /// Blocks. Counters are absolute, so a report that is left out loses nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: nothing was reported.
    ///
    /// # Panics
    ///
    /// When the recorder panics.
    pub fn report(&self) -> Result<(), Error> {
        self.figures.wait().map(|figures| self.send(&figures))
    }

    /// As [`report`](Self::report), and awaits the store. The recorder is that of the thread that
    /// polls.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: nothing was reported.
    pub async fn report_async(&self) -> Result<(), Error> {
        self.figures.read().await.map(|figures| self.send(&figures))
    }

    /// Reports every `period`, in a callback of this runtime, until the timer is dropped. While the
    /// store does not answer, its callback blocks a thread of the pool, and the figures stay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    /// use timerqueue_adapters::scheduler_metrics_0_24::SchedulerReporter;
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// let scheduler = Scheduler::builder().start()?;
    /// let reports = SchedulerReporter::new(&scheduler).every(Runtime::global(), Duration::from_secs(10));
    /// # drop(reports);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn every(self, runtime: &Runtime, period: Duration) -> Timer {
        TimerBuilder::on(runtime).period(period).start_exclusive(move |_| _ = self.report())
    }

    fn send(&self, figures: &[Figure]) {
        if !self.described.swap(true, Ordering::Relaxed) {
            describe();
        }
        for figure in figures {
            let own = figure.labels.iter().map(|(name, value)| Label::new(*name, value.to_string()));
            let labels: Vec<Label> = self.labels.iter().cloned().chain(own).collect();
            let is_counter = Figure::KINDS.iter().any(|kind| kind.name == figure.name && kind.is_counter);
            if is_counter {
                metrics::counter!(figure.name, labels).absolute(figure.value as u64);
            } else {
                metrics::gauge!(figure.name, labels).set(figure.value);
            }
        }
    }
}

fn describe() {
    for kind in Figure::KINDS {
        if kind.is_counter {
            metrics::describe_counter!(kind.name, kind.help);
        } else {
            metrics::describe_gauge!(kind.name, kind.help);
        }
    }
}

impl fmt::Debug for SchedulerReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedulerReporter")
            .field("figures", &self.figures)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}
