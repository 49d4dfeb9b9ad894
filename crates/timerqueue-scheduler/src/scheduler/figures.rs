//! Figures for tools that watch: what a scheduler and its store come to, by the names of a table.
//!
//! Ground rules. There is one table, [`Figure::KINDS`]: each report of figures takes the names
//! from there. Counters do not fall: a store keeps the ends of runs for a week, so what is older
//! than some minutes is added up here. No lock is held while a store is asked.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::Scheduler;
use crate::debug::debug_of;
use crate::engine::{Stats, block_on};
use crate::histogram::Histogram;
use crate::store::{Activity, Error, Node, Scan, State};

/// A figure, as Prometheus has it: a name, labels and a value. Made by [`Figures`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Figure {
    /// The name: that of a kind of [`KINDS`](Self::KINDS).
    pub name: &'static str,
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, Arc<str>)>,
    /// The value.
    pub value: f64,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FigureKind {
    /// The name of the figure.
    pub name: &'static str,
    /// What it counts, in English.
    pub help: &'static str,
    /// Whether it only grows, for as long as there is the [`Figures`].
    pub is_counter: bool,
}

/// The names of the figures, and what they count.
macro_rules! kinds {
    (gauges { $($gauge:ident: $gauge_name:literal, $gauge_help:literal;)+ }
     counters { $($counter:ident: $counter_name:literal, $counter_help:literal;)+ }) => {
        $(const $gauge: &str = $gauge_name;)+
        $(const $counter: &str = $counter_name;)+

        impl Figure {
            /// All kinds of figures.
            pub const KINDS: &'static [FigureKind] = &[
                $(FigureKind { name: $gauge, help: $gauge_help, is_counter: false },)+
                $(FigureKind { name: $counter, help: $counter_help, is_counter: true },)+
            ];
        }
    };
}

kinds! {
    gauges {
        JOBS: "timerqueue_jobs", "Jobs of the store, by handler and state";
        ESTIMATED: "timerqueue_jobs_estimated", "1 for a handler with too many waiting jobs to be counted each time: their number is an estimate";
        FAILING: "timerqueue_jobs_failing", "Jobs that wait after a failed attempt, by handler";
        PAUSED: "timerqueue_handler_paused", "1 for a handler that is paused";
        PLACES: "timerqueue_places", "Runs that all nodes allow at a time, by handler";
        OVERDUE: "timerqueue_oldest_overdue_seconds", "For how long the job that waits longest has been due";
        AHEAD: "timerqueue_schedules_ahead", "Schedules that wait behind a clock that was ahead";
        NODES: "timerqueue_nodes", "Schedulers that are alive on the store";
        STORE: "timerqueue_store_seconds", "How long the store took to answer for these figures";
    }
    counters {
        RUNS: "timerqueue_runs_total", "Runs on the store that ended, by handler and end; `dead` are those cut off and blocked, too";
        LATE_BUCKET: "timerqueue_run_lateness_seconds_bucket", "Runs on the store that began late by less than `le` seconds, by handler";
        LATE_COUNT: "timerqueue_run_lateness_seconds_count", "Runs on the store whose lateness is known, by handler";
        OWN_RUNS: "timerqueue_scheduler_runs_total", "Runs of this scheduler that ended, by end";
        OWN_PANICS: "timerqueue_scheduler_panics_total", "Panics of handlers of this scheduler";
        OWN_LOST: "timerqueue_scheduler_lost_total", "Ends of runs of this scheduler that were refused, since the run was another's by then";
        OWN_BUCKET: "timerqueue_scheduler_run_seconds_bucket", "Runs of this scheduler that took less than `le` seconds";
        OWN_COUNT: "timerqueue_scheduler_run_seconds_count", "Runs of this scheduler whose duration is known";
        CALL_BUCKET: "timerqueue_scheduler_store_seconds_bucket", "Calls of this scheduler that the store answered in less than `le` seconds, by call";
        CALL_COUNT: "timerqueue_scheduler_store_seconds_count", "Calls of this scheduler that the store answered, by call";
    }
}

impl Figure {
    /// Figures as a page of Prometheus' text format, with a help and a type for each name.
    ///
    /// # Examples
    ///
    /// See [`Figures`].
    #[must_use]
    pub fn page(figures: &[Self]) -> String {
        let mut page = String::new();
        for kind in Self::KINDS {
            let type_of = if kind.is_counter { "counter" } else { "gauge" };
            let _ = writeln!(page, "# HELP {} {}\n# TYPE {} {type_of}", kind.name, kind.help, kind.name);
            for figure in figures.iter().filter(|figure| figure.name == kind.name) {
                let _ = writeln!(page, "{figure}");
            }
        }
        page
    }
}

/// A line of Prometheus' text format.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for (at, (name, value)) in self.labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{}{name}=\"{value}\"", if at == 0 { '{' } else { ',' })?;
        }
        write!(f, "{} {}", if self.labels.is_empty() { "" } else { "}" }, self.value)
    }
}

/// As [`Activity::ends`] has them.
const ENDS: [&str; 5] = ["done", "again", "failed", "dead", "expired"];

type ByHandler = BTreeMap<Arc<str>, Activity>;

fn add(sum: &mut ByHandler, part: &Activity) {
    let none = || Activity::new(Arc::clone(&part.name), part.begin);
    sum.entry(Arc::clone(&part.name)).or_insert_with(none).merge(part);
}

/// What was counted before an instant, and that instant.
#[derive(Default)]
struct Before {
    ends: ByHandler,
    until: Option<SystemTime>,
}

/// Reads the figures of a scheduler and its store, again and again, for tools that watch:
/// `timerqueue-web` has them on a page, `timerqueue-adapters` for the crate metrics and for
/// OpenTelemetry.
///
/// Figures of the store are those of all its schedulers, so one of them suffices. Those with
/// `scheduler` in their names are this scheduler's. Counters of the store begin at zero in the
/// minute of the first reading; so they fall when there is another `Figures`, as after a start of a
/// process.
///
/// A `Figures` has a handle of its scheduler, which goes on while there is one.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use timerqueue::{ManualClock, Runtime};
/// # use timerqueue_scheduler::*;
/// # let clock = ManualClock::new();
/// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
/// let figures = Figures::new(&scheduler);
/// figures.wait()?; // counters begin
/// let _ = scheduler.put_to("mail", &1).send().wait()?;
/// let _ = scheduler.put_to("mail", &2).due(Duration::from_secs(60)).send().wait()?;
/// clock.advance(Duration::from_secs(1));
/// let page = Figure::page(&figures.wait()?); // in async code: `read().await`
/// assert!(page.contains("timerqueue_jobs{handler=\"mail\",state=\"waiting\"} 1\n"));
/// assert!(page.contains("timerqueue_runs_total{handler=\"mail\",end=\"done\"} 1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Figures {
    scheduler: Scheduler,
    before: Mutex<Before>,
}

impl Figures {
    /// For this scheduler. Nothing is read yet.
    #[must_use]
    pub fn new(scheduler: &Scheduler) -> Self {
        Self { scheduler: scheduler.clone(), before: Mutex::default() }
    }

    /// Reads the figures: three questions to the store.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub async fn read(&self) -> Result<Vec<Figure>, Error> {
        let begun = Instant::now();
        let stats = self.scheduler.stats_by(Scan::SomeCounts { most: MOST_COUNTED }).await?;
        let took = begun.elapsed();
        let nodes = self.scheduler.nodes().await?;
        let activity = self.scheduler.activity(self.since(&stats), MINUTE).await?;
        Ok(self.made(&stats, took, &nodes, &activity))
    }

    /// As [`read`](Self::read), and blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn wait(&self) -> Result<Vec<Figure>, Error> {
        block_on(&self.scheduler.core.runtime, pin!(self.read()))
    }

    /// Since when ends are asked for.
    fn since(&self, stats: &Stats) -> SystemTime {
        *self.before.lock().until.get_or_insert_with(|| stats.jobs.now.unwrap_or_else(SystemTime::now))
    }

    /// The ends of runs so far. What is older than some minutes does not change any more.
    fn ends(&self, now: SystemTime, activity: &[Activity]) -> ByHandler {
        let mut before = self.before.lock();
        let settled = now.checked_sub(SETTLED).unwrap_or(now);
        let from = before.until.unwrap_or(now);
        let mut sum = before.ends.clone();
        // Another reading may have taken in some of it meanwhile.
        for part in activity.iter().filter(|part| part.begin + MINUTE > from) {
            add(&mut sum, part);
        }
        let old = |part: &&Activity| part.begin + MINUTE > from && part.begin + MINUTE <= settled;
        if let Some(last) = activity.iter().filter(old).map(|part| part.begin + MINUTE).max() {
            for part in activity.iter().filter(old) {
                add(&mut before.ends, part);
            }
            before.until = Some(last);
        }
        sum
    }

    fn made(&self, stats: &Stats, took: Duration, nodes: &[Node], activity: &[Activity]) -> Vec<Figure> {
        let jobs = &stats.jobs;
        let mut made = Vec::new();
        let mut add = |name, labels: &[(&'static str, &str)], value: f64| {
            let labels = labels.iter().map(|&(name, value)| (name, value.into())).collect();
            made.push(Figure { name, labels, value });
        };
        for kind in &jobs.kinds {
            let handler = ("handler", &*kind.name);
            let estimate = kind.estimate();
            for state in State::ALL {
                let jobs = estimate.filter(|_| state == State::Waiting).unwrap_or_else(|| kind.of(state));
                add(JOBS, &[handler, ("state", &state.to_string())], jobs as f64);
            }
            add(ESTIMATED, &[handler], f64::from(u8::from(estimate.is_some())));
            add(FAILING, &[handler], kind.failing as f64);
            add(PAUSED, &[handler], f64::from(u8::from(kind.paused)));
        }
        let mut places: BTreeMap<&str, f64> = BTreeMap::new();
        for handler in nodes.iter().flat_map(|node| &node.handlers) {
            *places.entry(&handler.name).or_default() += handler.parallel as f64;
        }
        for (name, places) in places {
            add(PLACES, &[("handler", name)], places);
        }
        add(OVERDUE, &[], jobs.overdue().unwrap_or_default().as_secs_f64());
        add(AHEAD, &[], jobs.ahead as f64);
        add(NODES, &[], nodes.len() as f64);
        add(STORE, &[], took.as_secs_f64());
        for (name, ends) in self.ends(jobs.now.unwrap_or_else(SystemTime::now), activity) {
            let handler = ("handler", &*name);
            for (end, runs) in ENDS.into_iter().zip(ends.ends()) {
                add(RUNS, &[handler, ("end", end)], runs as f64);
            }
            buckets(&ends.lateness, |le, runs| add(LATE_BUCKET, &[handler, ("le", le)], runs));
            add(LATE_COUNT, &[handler], ends.lateness.count() as f64);
        }
        let own = ENDS.into_iter().zip([stats.done, stats.again, stats.retried, stats.died, stats.expired]);
        for (end, runs) in own.chain([("cut_off", stats.cut_off), ("blocked", stats.blocked)]) {
            add(OWN_RUNS, &[("end", end)], runs as f64);
        }
        add(OWN_PANICS, &[], stats.panics as f64);
        add(OWN_LOST, &[], stats.lost as f64);
        buckets(&stats.durations, |le, runs| add(OWN_BUCKET, &[("le", le)], runs));
        add(OWN_COUNT, &[], stats.durations.count() as f64);
        let times = &stats.store;
        for (call, times) in
            [("change", &times.changes), ("claim", &times.claims), ("end", &times.ends), ("look", &times.looks)]
        {
            buckets(times, |le, calls| add(CALL_BUCKET, &[("call", call), ("le", le)], calls));
            add(CALL_COUNT, &[("call", call)], times.count() as f64);
        }
        made
    }
}

/// What a server walks to count, of each index: some milliseconds. Beyond, its statistics tell.
const MOST_COUNTED: u64 = 50_000;
const MINUTE: Duration = Duration::from_secs(60);
/// After this time no run is counted for a minute that has passed, unless the clock was set.
const SETTLED: Duration = Duration::from_secs(600);

/// Calls `add` with the end of each bucket in seconds, and with how many durations are below it.
/// Every other class of a [`Histogram`] is the end of a bucket: stores keep lateness by these.
fn buckets(durations: &Histogram, mut add: impl FnMut(&str, f64)) {
    let (mut classes, mut sum) = (durations.classes().peekable(), 0);
    for end in (8..=28).step_by(2).map(|class| Duration::from_micros(1 << class)) {
        while let Some((_, count)) = classes.next_if(|&(class, _)| class <= end) {
            sum += count;
        }
        add(&end.as_secs_f64().to_string(), sum as f64);
    }
    add("+Inf", durations.count() as f64);
}

debug_of!(Figures, |figures| scheduler: figures.scheduler);

#[cfg(test)]
mod tests {
    use timerqueue::{ManualClock, Runtime};

    use super::*;
    use crate::store::{Counts, KindCounts};
    use crate::{Handler, Retry, Run};

    fn value(figures: &[Figure], line: &str) -> f64 {
        let found = figures.iter().find(|figure| figure.to_string().starts_with(&format!("{line} ")));
        found.unwrap_or_else(|| panic!("{line}: {}", Figure::page(figures))).value
    }

    #[test]
    fn counters_do_not_fall_when_the_store_forgets() {
        let clock = ManualClock::new();
        clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(1_790_000_000));
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let dies = Handler::new("dies", |_: u32, _: &Run| Err::<(), _>("no")).retry(Retry::never());
        let mail = |_: u32, _: &Run| {};
        let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", mail).register(dies).start().unwrap();
        let figures = Figures::new(&scheduler);
        figures.wait().unwrap();
        // Two weeks, in steps of twelve hours; a store keeps one week.
        for round in 1..=28 {
            let late = Duration::from_millis(5 * (round % 2));
            let _ = scheduler.put_to("mail", &1).due(Duration::from_secs(1)).send().wait().unwrap();
            let _ = scheduler.put_to("dies", &1).send().wait().unwrap();
            clock.stall(Duration::from_secs(1) + late);
            clock.advance(Duration::from_secs(12 * 3_600));
            let read = figures.wait().unwrap();
            assert_eq!(value(&read, "timerqueue_runs_total{handler=\"mail\",end=\"done\"}"), round as f64);
            assert_eq!(value(&read, "timerqueue_jobs{handler=\"dies\",state=\"dead\"}"), round as f64);
        }
        let read = figures.wait().unwrap();
        let bucket =
            |le| value(&read, &format!("timerqueue_run_lateness_seconds_bucket{{handler=\"mail\",le=\"{le}\"}}"));
        assert_eq!((bucket("0.004096"), bucket("0.016384"), bucket("+Inf")), (14.0, 28.0, 28.0));
        assert_eq!(value(&read, "timerqueue_scheduler_runs_total{end=\"dead\"}"), 28.0);
        assert_eq!(value(&read, "timerqueue_scheduler_run_seconds_count"), 56.0);
        let cut_off = Stats { cut_off: 3, blocked: 2, ..scheduler.stats().wait().unwrap() };
        let told = figures.made(&cut_off, Duration::ZERO, &[], &[]);
        assert_eq!(value(&told, "timerqueue_scheduler_runs_total{end=\"cut_off\"}"), 3.0);
        assert_eq!(value(&told, "timerqueue_scheduler_runs_total{end=\"blocked\"}"), 2.0);
        let mut many = KindCounts::new("mail".into(), false, [50_000, 0, 0, 0, 0], 0);
        many.estimate = Some(1_000_000);
        let jobs = Counts { kinds: vec![many], ..Counts::default() };
        let told = figures.made(&Stats { jobs, ..cut_off }, Duration::ZERO, &[], &[]);
        assert_eq!(value(&told, "timerqueue_jobs{handler=\"mail\",state=\"waiting\"}"), 1e6);
        assert_eq!(value(&told, "timerqueue_jobs_estimated{handler=\"mail\"}"), 1.0);
        assert_eq!(value(&read, "timerqueue_places{handler=\"mail\"}"), 32.0);
        let named = |kind: &FigureKind| read.iter().any(|figure| figure.name == kind.name);
        assert!(Figure::KINDS.iter().all(named));
        assert!(read.iter().all(|figure| Figure::KINDS.iter().any(|kind| kind.name == figure.name)));
    }

    #[test]
    fn labels_are_escaped() {
        let labels = vec![("handler", "a\"b\\c\nd".into()), ("le", "1".into())];
        let figure = Figure { name: JOBS, labels, value: 0.5 };
        assert_eq!(figure.to_string(), r#"timerqueue_jobs{handler="a\"b\\c\nd",le="1"} 0.5"#);
    }

    /// The dashboard asks for figures that there are.
    #[test]
    fn the_dashboard_shows_figures_that_exist() {
        let text = include_str!("../../docs/grafana.json");
        let board: serde_json::Value = serde_json::from_str(text).unwrap();
        let panels = board["panels"].as_array().unwrap();
        let asked: Vec<&str> = (panels.iter())
            .flat_map(|panel| panel["targets"].as_array().unwrap())
            .map(|target| target["expr"].as_str().unwrap())
            .collect();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = asked.iter().flat_map(|expr| expr.split(|c| !is_word(c)));
        let names: std::collections::BTreeSet<&str> = words.filter(|word| word.starts_with("timerqueue_")).collect();
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            assert!(Figure::KINDS.iter().any(|kind| kind.name == name), "{name}");
        }
    }
}
