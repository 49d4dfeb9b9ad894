//! Plots, as SVG in the page.
//!
//! Ground rules. A plot is a function of windows of time. Colours are classes of the style, so that
//! plots follow the colour scheme. Each window has a text of its own, shown under the pointer;
//! the table below the plots has the same figures.

use std::time::Duration;

use maud::{Markup, html};
use timerqueue_scheduler::Activity;

use crate::text;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 172.0;
/// Wide enough for `999 ms` in the larger letters of small screens.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 6.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 20.0;
/// The least lateness that stores tell apart, and the foot of the plot.
const LEAST_MICROS: f64 = 256.0;

/// The classes of the style, in the order of [`Activity::ends`].
const CLASSES: [&str; 5] = ["done", "again", "failed", "died", "expired"];

/// The runs that have ended in a window.
pub(crate) fn all(window: &Activity) -> u64 {
    window.ends().iter().sum()
}

/// The runs that have ended badly.
pub(crate) fn wrong(window: &Activity) -> u64 {
    window.failed + window.died + window.expired
}

/// The axis of time.
struct Axis {
    step: f64,
}

impl Axis {
    fn of(windows: &[Activity]) -> Self {
        Self { step: (WIDTH - LEFT - RIGHT) / windows.len().max(1) as f64 }
    }

    fn x(&self, window: usize) -> f64 {
        LEFT + self.step * window as f64
    }

    /// Some six instants, each centred below its window.
    fn ticks(&self, windows: &[Activity], days: bool) -> Markup {
        let every = windows.len().div_ceil(6).max(1);
        html! {
            @for (at, window) in windows.iter().enumerate().filter(|(at, _)| at % every == every / 2) {
                text x=(px(self.x(at) + self.step / 2.0)) y=(px(HEIGHT - 4.0)) text-anchor="middle" {
                    (text::clock(window.begin, days))
                }
            }
        }
    }

    /// Fields that say what their window has.
    fn fields(&self, windows: &[Activity], days: bool, say: impl Fn(&Activity) -> String) -> Markup {
        let when = |window: &Activity| {
            let clock = text::clock(window.begin, false);
            if days { format!("{} {clock}", text::clock(window.begin, true)) } else { clock }
        };
        html! {
            @for (at, window) in windows.iter().enumerate().filter(|(_, window)| all(window) > 0) {
                rect.hover x=(px(self.x(at))) y=(px(TOP)) width=(px(self.step)) height=(px(HEIGHT - TOP - BOTTOM)) {
                    title { (when(window)) " UTC: " (say(window)) }
                }
            }
        }
    }
}

/// A number of pixels, as short as can be.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A line of the grid with its label.
fn grid(y: f64, label: &str) -> Markup {
    html! {
        line.grid x1=(px(LEFT)) x2=(px(WIDTH - RIGHT)) y1=(px(y)) y2=(px(y)) {}
        text x=(px(LEFT - 6.0)) y=(px(y + 3.5)) text-anchor="end" { (label) }
    }
}

/// The least of 2, 3, 4, 5, 6, 8, 10, 20, 30 and so on that is no less.
fn round_up(most: u64) -> u64 {
    let mut ten = 1_u64;
    loop {
        for factor in [2, 3, 4, 5, 6, 8, 10] {
            let round = ten.saturating_mul(factor);
            if round >= most {
                return round;
            }
        }
        ten = ten.saturating_mul(10);
    }
}

fn svg(title: &str, inside: &Markup) -> Markup {
    html! {
        svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(title) { (inside) }
    }
}

fn nothing() -> Markup {
    html! {
        text x=(px(LEFT + (WIDTH - LEFT - RIGHT) / 2.0)) y=(px(HEIGHT / 2.0)) text-anchor="middle" { "No run has ended in this time." }
    }
}

/// How many runs ended, by their ends.
pub(crate) fn throughput(windows: &[Activity], days: bool) -> Markup {
    let axis = Axis::of(windows);
    let most = round_up(windows.iter().map(all).max().unwrap_or_default());
    let high = HEIGHT - TOP - BOTTOM;
    let y = |count: u64| TOP + high - high * count as f64 / most as f64;
    let gap = if axis.step > 5.0 { 1.5 } else { 0.5 };
    let total: u64 = windows.iter().map(all).sum();
    let parts = |window: &Activity| {
        let mut foot = 0;
        window.ends().map(|count| {
            let from = foot;
            foot += count;
            (from, foot)
        })
    };
    let say = |window: &Activity| {
        let [done, again, failed, died, expired] = window.ends();
        format!("{done} done, {again} again, {failed} failed, {died} dead, {expired} expired")
    };
    svg(
        &format!("Runs that ended, over time: {total} in all"),
        &html! {
            (grid(y(0), "0"))
            @if most % 2 == 0 { (grid(y(most / 2), &text::number(most / 2))) }
            (grid(y(most), &text::number(most)))
            (axis.ticks(windows, days))
            @for (at, window) in windows.iter().enumerate() {
                @for (class, (from, to)) in CLASSES.into_iter().zip(parts(window)) {
                    @if to > from {
                        rect class=(class) x=(px(axis.x(at) + gap / 2.0)) width=(px((axis.step - gap).max(0.5)))
                            y=(px(y(to))) height=(px((y(from) - y(to)).max(0.5))) {}
                    }
                }
            }
            @if total == 0 { (nothing()) }
            (axis.fields(windows, days, say))
        },
    )
}

/// Decades of microseconds, up to this lateness.
fn decades(longest: f64) -> Vec<f64> {
    let mut decades = vec![1e3];
    while decades.last().is_some_and(|&last| last < longest || last < 1e5) && decades.len() < 12 {
        decades.push(decades.last().copied().unwrap_or(1e3) * 10.0);
    }
    decades
}

fn decade_label(micros: f64) -> String {
    match micros {
        ..1e6 => format!("{} ms", micros / 1e3),
        ..1e7 => "1 s".to_owned(),
        _ => format!("{} s", text::number((micros / 1e6) as u64)),
    }
}

/// How late runs began, on a scale of powers of ten.
pub(crate) fn lateness(windows: &[Activity], days: bool) -> Markup {
    let axis = Axis::of(windows);
    let micros = |lateness: Duration| (lateness.as_micros() as f64).max(LEAST_MICROS);
    let longest = windows.iter().map(|window| micros(window.lateness.longest())).fold(LEAST_MICROS, f64::max);
    let decades = decades(longest);
    let top = decades.last().copied().unwrap_or(1e5).log10();
    let foot = LEAST_MICROS.log10();
    let high = HEIGHT - TOP - BOTTOM;
    let y = |lateness: Duration| TOP + high * (top - micros(lateness).log10().min(top)) / (top - foot);
    let line = |part: f64| {
        let (mut path, mut joined) = (String::new(), false);
        for (at, window) in windows.iter().enumerate() {
            if window.lateness.count() == 0 {
                joined = false;
                continue;
            }
            let y = px(y(window.lateness.at_most(part)));
            path.push_str(&format!(
                "{}{} {y}H{}",
                if joined { "L" } else { "M" },
                px(axis.x(at)),
                px(axis.x(at) + axis.step)
            ));
            joined = true;
        }
        path
    };
    let say = |window: &Activity| {
        let late = |part| text::duration(window.lateness.at_most(part));
        format!(
            "half below {}, 99 of 100 below {}, the longest {}",
            late(0.5),
            late(0.99),
            text::duration(window.lateness.longest())
        )
    };
    let any = windows.iter().any(|window| window.lateness.count() > 0);
    svg(
        "How late runs began, over time",
        &html! {
            (grid(TOP + high, ""))
            @for &decade in &decades {
                (grid(TOP + high * (top - decade.log10()) / (top - foot), &decade_label(decade)))
            }
            (axis.ticks(windows, days))
            @for (at, window) in windows.iter().enumerate().filter(|(_, window)| window.lateness.count() > 0) {
                circle.longest cx=(px(axis.x(at) + axis.step / 2.0)) cy=(px(y(window.lateness.longest()))) r="1.6" {}
            }
            path.p99 d=(line(0.99)) {}
            path.p50 d=(line(0.5)) {}
            @if !any { (nothing()) }
            (axis.fields(windows, days, say))
        },
    )
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0, 1, 2, 3, 7, 11, 60, 1_000_001].map(round_up), [2, 2, 2, 3, 8, 20, 60, 2_000_000]);
        assert_eq!(round_up(u64::MAX), u64::MAX);
        assert_eq!(decades(300.0), [1e3, 1e4, 1e5]);
        assert_eq!(decades(5e6), [1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_eq!([1e3, 1e5, 1e6, 1e9].map(decade_label), ["1 ms", "100 ms", "1 s", "1\u{2009}000 s"]);
    }

    #[test]
    fn plots_of_nothing_and_of_the_greatest_figures_are_well_formed() {
        let mut windows = vec![Activity::new("mail".into(), UNIX_EPOCH); 3];
        for plot in
            [throughput(&windows, false), lateness(&windows, true), throughput(&[], false), lateness(&[], false)]
        {
            assert!(plot.into_string().contains("No run has ended"));
        }
        windows[1].done = u64::MAX / 2;
        windows[1].lateness.add(Duration::MAX);
        windows[2].failed = 1;
        windows[2].lateness.add(Duration::ZERO);
        for plot in [throughput(&windows, false), lateness(&windows, true)] {
            let plot = plot.into_string();
            assert!(!plot.contains("NaN") && !plot.contains("inf") && !plot.contains("\"-"), "{plot}");
        }
    }
}
