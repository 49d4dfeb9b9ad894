//! The report: results by title and row, printed as Markdown tables and as JSON lines. The JSON
//! lines also have distributions and curves, from which the plots are drawn.
//!
//! Every line has a `kind`:
//!
//! - `run`: the `machine`, the `versions` of the contenders, the `rounds`, and the most processor
//!   time that others took while a group of workloads ran, `others_percent`.
//! - `row`: a contender's samples of a metric.
//! - `distribution`: `quantiles` is a list of pairs, a share of the samples (0 to 1) and its
//!   quantile, the median of `rounds` rounds.
//! - `curve`: `points` is a list of quadruples: x, and the median, least and greatest y; `x` and
//!   `y` name the axes.
//!
//! Ground rules. The rows of a title get their samples in the same rhythm, so the n-th samples of
//! two rows were taken next to each other. A ratio is the median of the ratios of such pairs. The
//! base of the ratios is the first declared row of this crate with the same metric and number of
//! threads.

use std::fmt::Write as _;

use crate::json::quoted;
use crate::measure;

/// The prefix of the names of this crate's contenders.
pub(crate) const OURS: &str = "timerqueue";

/// Names a row of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) contender: &'static str,
    pub(crate) threads: usize,
    /// The name of the metric, with the unit.
    pub(crate) metric: &'static str,
}

struct Series {
    row: Row,
    samples: Vec<f64>,
}

struct Title {
    id: &'static str,
    title: String,
    note: &'static str,
    series: Vec<Series>,
}

/// The shares at which distributions are kept: closer in the tails.
pub(crate) const SHARES: [f64; 25] = [
    0.0, 0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99,
    0.995, 0.998, 0.999, 0.9999, 1.0,
];

/// Values at [`SHARES`].
pub(crate) type Quantiles = [f64; SHARES.len()];

/// The quantiles of sorted samples, each divided by `unit`.
pub(crate) fn quantiles(sorted: &[i64], unit: f64) -> Quantiles {
    SHARES.map(|share| measure::quantile(sorted, share) as f64 / unit)
}

struct Distribution {
    id: &'static str,
    title: String,
    contender: &'static str,
    unit: &'static str,
    rounds: Vec<Quantiles>,
}

/// The axes of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
}

struct Curve {
    id: &'static str,
    title: String,
    contender: &'static str,
    axes: Axes,
    /// In the order of x.
    points: Vec<(f64, Vec<f64>)>,
}

/// All titles, in the order in which they were declared.
#[derive(Default)]
pub(crate) struct Report {
    titles: Vec<Title>,
    distributions: Vec<Distribution>,
    curves: Vec<Curve>,
}

/// The median and the range of some samples.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Self { median: measure::median(&sorted), min, max })
    }
}

impl Title {
    /// The base of the ratios of `row`. `None`: this crate has no such row.
    fn base(&self, row: Row) -> Option<&Series> {
        let like = |series: &&Series| series.row.metric == row.metric && series.row.threads == row.threads;
        self.series.iter().filter(like).find(|series| series.row.contender.starts_with(OURS))
    }

    /// The median of the ratios of neighbouring samples of `series` and of its base.
    fn ratio(&self, series: &Series) -> Option<f64> {
        if series.row.metric.contains('%') {
            return None; // a ratio of two tiny shares says nothing
        }
        let base = self.base(series.row)?;
        let pairs = series.samples.iter().zip(&base.samples).filter(|&(&peer, &base)| peer > 0.0 && base > 0.0);
        let mut ratios: Vec<f64> = pairs.map(|(&peer, &base)| peer / base).collect();
        ratios.sort_by(f64::total_cmp);
        (!ratios.is_empty()).then(|| measure::median(&ratios))
    }

    /// Operations per second of all threads, divided by the operations per second of one thread.
    fn scaling(&self, series: &Series) -> Option<f64> {
        let one = Row { threads: 1, ..series.row };
        let alone = self.series.iter().find(|other| other.row == one && series.row.threads > 1)?;
        let (alone, together) = (Spread::of(&alone.samples)?, Spread::of(&series.samples)?);
        Some(alone.median * series.row.threads as f64 / together.median)
    }

    fn metrics(&self) -> Vec<&'static str> {
        let mut metrics: Vec<&'static str> = Vec::new();
        for series in &self.series {
            if !metrics.contains(&series.row.metric) {
                metrics.push(series.row.metric);
            }
        }
        metrics
    }

    fn markdown(&self) -> String {
        let mut out = format!("\n### {} {}\n\n", self.id, self.title);
        if !self.note.is_empty() {
            let _ = writeln!(out, "{}\n", self.note);
        }
        match self.metrics()[..] {
            [metric] => self.one_metric(&mut out, metric),
            ref metrics => self.many_metrics(&mut out, metrics),
        }
        out
    }

    fn one_metric(&self, out: &mut String, metric: &str) {
        let _ =
            writeln!(out, "| contender | threads | {metric}, median | min | max | peer / ours | speed-up by threads |");
        let _ = writeln!(out, "|---|---:|---:|---:|---:|---:|---:|");
        for series in &self.series {
            let Some(spread) = Spread::of(&series.samples) else { continue };
            let Row { contender, threads, .. } = series.row;
            let (ratio, scaling) = (decimals(self.ratio(series), 2), decimals(self.scaling(series), 2));
            let [median, min, max] = [spread.median, spread.min, spread.max].map(short);
            let _ = writeln!(out, "| {contender} | {threads} | {median} | {min} | {max} | {ratio} | {scaling} |");
        }
    }

    /// A row per contender; each cell has the median, the range, and the ratio to this crate.
    fn many_metrics(&self, out: &mut String, metrics: &[&str]) {
        let _ = writeln!(out, "| contender | {} |", metrics.join(" | "));
        let _ = writeln!(out, "|---|{}", "---:|".repeat(metrics.len()));
        let mut contenders: Vec<&str> = Vec::new();
        for series in self.series.iter().filter(|series| !series.samples.is_empty()) {
            if !contenders.contains(&series.row.contender) {
                contenders.push(series.row.contender);
            }
        }
        for contender in contenders {
            let _ = write!(out, "| {contender} |");
            for metric in metrics {
                let cell = self.series.iter().find(|s| s.row.contender == contender && s.row.metric == *metric);
                let text = cell.and_then(|series| {
                    let spread = Spread::of(&series.samples)?;
                    let [median, min, max] = [spread.median, spread.min, spread.max].map(short);
                    let ends = if series.samples.len() > 1 { format!(" ({min} to {max})") } else { String::new() };
                    let ratio = self.ratio(series).map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
                    Some(format!("{median}{ends}{ratio}"))
                });
                let _ = write!(out, " {} |", text.unwrap_or_default());
            }
            out.push('\n');
        }
    }
}

fn decimals(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

/// Only significant digits.
fn short(value: f64) -> String {
    if value < 1_000.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

impl Report {
    fn title(&mut self, title: &str) -> Option<&mut Title> {
        self.titles.iter_mut().find(|known| known.title == title)
    }

    /// Declares a row. A second declaration has no effect.
    pub(crate) fn declare(&mut self, id: &'static str, title: &str, row: Row) {
        if self.title(title).is_none() {
            self.titles.push(Title { id, title: title.to_owned(), note: "", series: Vec::new() });
        }
        let known = self.title(title).expect("just made");
        if known.series.iter().all(|series| series.row != row) {
            known.series.push(Series { row, samples: Vec::new() });
        }
    }

    /// Sets the note of a declared title, for the reader.
    pub(crate) fn note(&mut self, title: &str, note: &'static str) {
        if let Some(known) = self.title(title) {
            known.note = note;
        }
    }

    /// Adds a sample to a declared row.
    pub(crate) fn add(&mut self, title: &str, row: Row, sample: f64) {
        let series = self.title(title).and_then(|known| known.series.iter_mut().find(|series| series.row == row));
        series.expect("declared").samples.push(sample);
    }

    /// Adds a contender's distribution of a round.
    pub(crate) fn add_distribution(
        &mut self,
        id: &'static str,
        title: &str,
        contender: &'static str,
        unit: &'static str,
        quantiles: Quantiles,
    ) {
        match self.distributions.iter_mut().find(|known| known.title == title && known.contender == contender) {
            Some(known) => known.rounds.push(quantiles),
            None => {
                let title = title.to_owned();
                self.distributions.push(Distribution { id, title, contender, unit, rounds: vec![quantiles] });
            }
        }
    }

    /// Adds a sample to the point at `x` of a contender's curve.
    pub(crate) fn add_curve(
        &mut self,
        id: &'static str,
        title: &str,
        contender: &'static str,
        axes: Axes,
        (x, y): (f64, f64),
    ) {
        let known = self.curves.iter().position(|known| known.title == title && known.contender == contender);
        let known = known.unwrap_or_else(|| {
            self.curves.push(Curve { id, title: title.to_owned(), contender, axes, points: Vec::new() });
            self.curves.len() - 1
        });
        let points = &mut self.curves[known].points;
        match points.binary_search_by(|(known, _)| known.total_cmp(&x)) {
            Ok(at) => points[at].1.push(y),
            Err(at) => points.insert(at, (x, vec![y])),
        }
    }

    /// All tables, as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut titles: Vec<&Title> = self.titles.iter().collect();
        let number = |id: &str| id[1..].parse::<u32>().unwrap_or(0);
        titles.sort_by_key(|title| (title.id.as_bytes()[0], number(title.id)));
        titles.iter().map(|title| title.markdown()).collect()
    }

    /// JSON lines: for the run, and for each row, distribution and curve.
    pub(crate) fn json(&self, machine: &str, versions: &str, rounds: usize, others: f64) -> String {
        let mut out = String::new();
        let (machine, versions) = (quoted(machine), quoted(versions));
        let _ = writeln!(
            out,
            "{{\"kind\":\"run\",\"machine\":{machine},\"versions\":{versions},\"rounds\":{rounds},\"others_percent\":{others:.1}}}"
        );
        for title in &self.titles {
            for series in &title.series {
                let Some(Spread { median, min, max }) = Spread::of(&series.samples) else { continue };
                let Row { contender, threads, metric } = series.row;
                let ratio = self.json_number(title.ratio(series));
                let _ = writeln!(
                    out,
                    "{{\"kind\":\"row\",\"id\":{},\"title\":{},\"contender\":{},\"threads\":{threads},\"metric\":{},\"samples\":{},\
                     \"median\":{median:.3},\"min\":{min:.3},\"max\":{max:.3},\"ratio_to_ours\":{ratio}}}",
                    quoted(title.id),
                    quoted(&title.title),
                    quoted(contender),
                    quoted(metric),
                    series.samples.len(),
                );
            }
        }
        for Distribution { id, title, contender, unit, rounds } in &self.distributions {
            let middle = |i: usize| Spread::of(&rounds.iter().map(|round| round[i]).collect::<Vec<_>>());
            let pair = |(i, share)| middle(i).map(|Spread { median, .. }| format!("[{share},{median:.3}]"));
            let quantiles: Vec<String> = SHARES.into_iter().enumerate().filter_map(pair).collect();
            let _ = writeln!(
                out,
                "{{\"kind\":\"distribution\",\"id\":{},\"title\":{},\"contender\":{},\"unit\":{},\"rounds\":{},\
                 \"quantiles\":[{}]}}",
                quoted(id),
                quoted(title),
                quoted(contender),
                quoted(unit),
                rounds.len(),
                quantiles.join(","),
            );
        }
        for Curve { id, title, contender, axes, points } in &self.curves {
            let point = |(x, samples): &(f64, Vec<f64>)| {
                Spread::of(samples).map(|Spread { median, min, max }| format!("[{x},{median:.3},{min:.3},{max:.3}]"))
            };
            let points: Vec<String> = points.iter().filter_map(point).collect();
            let _ = writeln!(
                out,
                "{{\"kind\":\"curve\",\"id\":{},\"title\":{},\"contender\":{},\"x\":{},\"y\":{},\"points\":[{}]}}",
                quoted(id),
                quoted(title),
                quoted(contender),
                quoted(axes.x),
                quoted(axes.y),
                points.join(","),
            );
        }
        out
    }

    fn json_number(&self, value: Option<f64>) -> String {
        value.map_or_else(|| String::from("null"), |value| format!("{value:.4}"))
    }
}
