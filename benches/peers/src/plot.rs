//! SVG plots of the results: lateness as quantile curves, and cost against the number of pending
//! timers.
//!
//! Ground rules. Plots are drawn only from the report's JSON lines, so a stored run can be drawn
//! again. All scales are logarithmic; the scale of shares is logarithmic at both ends (1 % and 99 %
//! are equally far from the middle). Each curve is labelled at its end. A plot serves light and
//! dark pages: it has its own background, and follows the preference of the reader's system.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::json::Value;
use crate::report;

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 64.0;
/// The x where curves end and labels begin.
const RIGHT: f64 = 600.0;
const TOP: f64 = 48.0;
/// The height of the plot itself; greater if many labels need more.
const HEIGHT: f64 = 380.0;
const LABEL: f64 = 16.0;
/// The height below the plot: numbers, the name of the axis, the machine.
const FOOT: f64 = 62.0;

/// b: background, t: text, s: text of less weight, g: grid.
const STYLE: &str = ".b{fill:#fff}.t{fill:#24292f}.s{fill:#57606a}.g{stroke:#d8dee4}path{fill:none;stroke-linejoin:round}\
                     @media(prefers-color-scheme:dark){.b{fill:#0d1117}.t{fill:#e6edf3}.s{fill:#9198a1}.g{stroke:#30363d}}";
const OURS: &str = "#2f81f7";
const BASELINE: &str = "#8b949e";
/// A colour for each family of contenders, visible on black and on white.
const COLOURS: [&str; 11] = [
    "#d9730d", "#2da44e", "#a371f7", "#e5534b", "#1b9aaa", "#db61a2", "#9a8c16", "#b0764a", "#6e7fa3", "#6f9e2a",
    "#c28fd0",
];
/// Families in the order of their colours; an unknown family has the last colour.
const FAMILIES: [&str; 10] = [
    "tokio",
    "tokio-util",
    "async-io",
    "futures-timer",
    "pingora-timeout",
    "hierarchical_hash_wheel_timer",
    "Java",
    "Netty",
    "Node",
    "Go",
];
const DASHES: [&str; 4] = ["", "6 3", "2 3", "9 3 2 3"];
/// Marked shares.
const SHARES: [(f64, &str); 9] = [
    (0.0001, "0.01 %"),
    (0.001, "0.1 %"),
    (0.01, "1 %"),
    (0.1, "10 %"),
    (0.5, "half"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];
/// Values further below the greatest than this are drawn at the bottom.
const DECADES: f64 = 5.0;

/// A point, with the least and the greatest y.
struct Point {
    x: f64,
    y: f64,
    ends: Option<(f64, f64)>,
}

struct Curve {
    contender: String,
    points: Vec<Point>,
    /// The text of the label after the contender's name.
    remark: String,
}

struct Plot {
    title: String,
    x: String,
    y: String,
    curves: Vec<Curve>,
    /// The marks of the x axis, on the scale of the points.
    marks: Vec<(f64, String)>,
}

/// A share on the scale of the plot.
fn logit(share: f64) -> f64 {
    (share / (1.0 - share)).log10()
}

/// The unit of a name such as "us late" in seconds, and the rest of the name.
fn unit(name: &str) -> (Option<f64>, &str) {
    let units = [("ns ", 1e-9), ("us ", 1e-6), ("ms ", 1e-3)];
    let found = units.into_iter().find_map(|(unit, seconds)| Some((seconds, name.strip_prefix(unit)?)));
    found.map_or((None, name), |(seconds, rest)| (Some(seconds), rest))
}

/// Three digits at the most.
fn plain(value: f64) -> String {
    let digits = 2 - value.abs().log10().clamp(0.0, 2.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A value with its unit, of time where it is one.
fn label(value: f64, seconds: Option<f64>) -> String {
    let steps: &[(f64, &str)] = match seconds {
        Some(_) => &[(1.0, " s"), (1e-3, " ms"), (1e-6, " us"), (1e-9, " ns")],
        None => &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
    };
    let value = value * seconds.unwrap_or(1.0);
    let (step, name) =
        steps.iter().copied().find(|(step, _)| value.abs() >= step * 0.9999).unwrap_or(steps[steps.len() - 1]);
    format!("{}{name}", plain(value / step))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Plot {
    fn named<'a>(plots: &'a mut Vec<Self>, title: &str, new: impl FnOnce() -> Self) -> &'a mut Self {
        let known = plots.iter().position(|plot| plot.title == title);
        let at = known.unwrap_or_else(|| {
            plots.push(new());
            plots.len() - 1
        });
        &mut plots[at]
    }

    /// Adds a JSON line to the plot of its title. `None`: the line is neither a distribution nor a
    /// curve.
    fn add(plots: &mut Vec<Self>, line: &Value) -> Option<()> {
        let (id, title, contender) = (line.text("id")?, line.text("title")?, line.text("contender")?);
        let title = format!("{id} {title}");
        match line.text("kind")? {
            "distribution" => {
                let unit = line.text("unit")?.to_owned();
                let quantiles: Vec<(f64, f64)> =
                    line.tuples("quantiles")?.iter().map(|pair| (pair[0], pair[1])).collect();
                let plot = Self::named(plots, &title, || Self::of_shares(title.clone(), unit));
                plot.curves.push(Curve::of_quantiles(contender, &quantiles, &plot.y)?);
            }
            "curve" => {
                let (x, y) = (line.text("x")?.to_owned(), line.text("y")?.to_owned());
                let plot =
                    Self::named(plots, &title, || Self { title: title.clone(), x, y, curves: vec![], marks: vec![] });
                let points = line.tuples("points")?;
                let points = points.iter().map(|p| Point { x: p[0], y: p[1], ends: Some((p[2], p[3])) }).collect();
                plot.curves.push(Curve { contender: contender.to_owned(), points, remark: String::new() });
            }
            _ => return None,
        }
        Some(())
    }

    fn of_shares(title: String, y: String) -> Self {
        let marks = SHARES.map(|(share, name)| (logit(share), name.to_owned())).to_vec();
        Self { title, x: "share of the samples that are not above".to_owned(), y, curves: vec![], marks }
    }

    /// Puts the x of curves on the scale of the plot. Zero is drawn a decade before the least
    /// number above zero.
    fn scale_x(&mut self) {
        if !self.marks.is_empty() {
            return; // shares are scaled already
        }
        let mut all: Vec<f64> = self.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.x)).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        let nothing = all.iter().find(|&&x| x > 0.0).map_or(0.0, |x| x.log10() - 1.0);
        let scaled = |x: f64| if x > 0.0 { x.log10() } else { nothing };
        self.marks = all.iter().map(|&x| (scaled(x), label(x, None))).collect();
        let (seconds, _) = unit(&self.y);
        for curve in &mut self.curves {
            for point in &mut curve.points {
                point.x = scaled(point.x);
            }
            curve.remark = curve.points.last().map_or_else(String::new, |last| label(last.y, seconds));
        }
    }

    /// Colour and dash of each curve: a colour for a family, a dash for each of its members.
    fn styles(&self) -> Vec<(&'static str, &'static str)> {
        let family = |contender: &str| contender.split([' ', ':', ',']).next().unwrap_or_default().to_owned();
        let mut families: Vec<(String, usize)> = Vec::new();
        let style = |curve: &Curve| {
            let family = family(&curve.contender);
            let colour = match (family.as_str(), FAMILIES.iter().position(|known| *known == family)) {
                (report::OURS, _) => OURS,
                ("baseline", _) => BASELINE,
                (_, known) => COLOURS[known.unwrap_or(COLOURS.len() - 1)],
            };
            let at = families.iter().position(|(known, _)| *known == family).unwrap_or_else(|| {
                families.push((family, 0));
                families.len() - 1
            });
            families[at].1 += 1;
            (colour, DASHES[(families[at].1 - 1) % DASHES.len()])
        };
        self.curves.iter().map(style).collect()
    }

    fn frame(&self) -> Frame {
        let xs = || self.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.x));
        let ys = || {
            let all = self.curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.y));
            all.filter(|&y| y > 0.0)
        };
        let high = ys().fold(f64::MIN_POSITIVE, f64::max).log10();
        let low = ys().fold(f64::MAX, f64::min).log10().min(high).max(high - DECADES);
        let margin = (high - low) * 0.03 + 0.02;
        Frame {
            first: xs().fold(f64::MAX, f64::min),
            last: xs().fold(f64::MIN, f64::max),
            low: low - margin,
            high: high + margin,
            height: HEIGHT.max(LABEL * self.curves.len() as f64),
        }
    }

    fn svg(&mut self, machine: &str) -> String {
        self.scale_x();
        let frame = self.frame();
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" width=\"{WIDTH}\" \
             height=\"{total}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n<style>{STYLE}</style>\n\
             <rect class=\"b\" width=\"100%\" height=\"100%\"/>",
            total = frame.bottom() + FOOT,
        );
        self.axes(&mut out, &frame, machine);
        let last_of = |curve: &Curve| curve.points.last().map_or(frame.bottom(), |last| frame.y(last.y));
        let places = spread_out(&self.curves.iter().map(last_of).collect::<Vec<_>>(), TOP, frame.bottom());
        for (i, (curve, style)) in self.curves.iter().zip(self.styles()).enumerate() {
            // Places the whiskers of neighbouring curves beside each other.
            let aside = (i % 7) as f64 * 2.5 - 7.5;
            curve.draw(&mut out, &frame, style, places[i], aside);
        }
        out.push_str("</svg>\n");
        out
    }

    fn axes(&self, out: &mut String, frame: &Frame, machine: &str) {
        let (seconds, name) = unit(&self.y);
        let bottom = frame.bottom();
        text(out, "t\" font-size=\"15\" font-weight=\"600", (12.0, 22.0), &self.title);
        text(out, "s", (12.0, TOP - 10.0), name.trim_start_matches("of "));
        for y in ticks(frame.low, frame.high) {
            let place = frame.y(y);
            let _ = writeln!(out, "<path class=\"g\" d=\"M{LEFT} {place:.1}H{RIGHT}\"/>");
            text(out, "s\" text-anchor=\"end", (LEFT - 6.0, place + 4.0), &label(y, seconds));
        }
        for (x, mark) in self.marks.iter().filter(|(x, _)| (frame.first - 1e-9..=frame.last + 1e-9).contains(x)) {
            let place = frame.x(*x);
            let _ = writeln!(out, "<path class=\"g\" d=\"M{place:.1} {TOP}V{bottom}\"/>");
            text(out, "s\" text-anchor=\"middle", (place, bottom + 16.0), mark);
        }
        text(out, "s\" text-anchor=\"middle", ((LEFT + RIGHT) / 2.0, bottom + 33.0), &self.x);
        text(out, "s\" font-size=\"11", (12.0, bottom + 53.0), machine);
    }

    /// The name of the file: letters, digits and dashes.
    fn file_name(&self) -> String {
        let mut name = String::new();
        for c in self.title.to_ascii_lowercase().chars() {
            match c {
                'a'..='z' | '0'..='9' => name.push(c),
                ',' => {}
                _ if name.ends_with('-') => {}
                _ => name.push('-'),
            }
        }
        format!("{}.svg", name.trim_end_matches('-'))
    }
}

/// The visible range: x as scaled, y as a logarithm.
struct Frame {
    first: f64,
    last: f64,
    low: f64,
    high: f64,
    height: f64,
}

impl Frame {
    fn bottom(&self) -> f64 {
        TOP + self.height
    }

    fn x(&self, x: f64) -> f64 {
        let share = if self.last > self.first { (x - self.first) / (self.last - self.first) } else { 0.5 };
        LEFT + (RIGHT - LEFT - 12.0) * share
    }

    /// A value above or below the range is drawn at the edge.
    fn y(&self, y: f64) -> f64 {
        let power = y.max(f64::MIN_POSITIVE).log10().clamp(self.low, self.high);
        TOP + self.height * (self.high - power) / (self.high - self.low)
    }
}

/// Writes text at a position. `class` may contain further attributes.
fn text(out: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

impl Curve {
    /// The curve, a line from the least to the greatest sample of each point, and the label at the
    /// end.
    fn draw(&self, out: &mut String, frame: &Frame, (colour, dash): (&str, &str), place: f64, aside: f64) {
        let Some(last) = self.points.last() else { return };
        let (width, weight) = if colour == OURS { (2.6, 600) } else { (1.6, 400) };
        let steps: Vec<String> =
            self.points.iter().map(|point| format!("{:.1} {:.1}", frame.x(point.x), frame.y(point.y))).collect();
        let _ = writeln!(
            out,
            "<path stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dash}\" d=\"M{}\"/>",
            steps.join("L"),
        );
        for point in &self.points {
            let Some((least, greatest)) = point.ends else { continue };
            let (x, y) = (frame.x(point.x), frame.y(point.y));
            let _ = writeln!(
                out,
                "<circle fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/><path stroke=\"{colour}\" \
                 opacity=\".4\" d=\"M{:.1} {:.1}V{:.1}\"/>",
                x + aside,
                frame.y(least),
                frame.y(greatest),
            );
        }
        let _ = writeln!(
            out,
            "<path stroke=\"{colour}\" opacity=\".45\" d=\"M{:.1} {:.1}L{start:.1} {place:.1}\"/><path stroke=\"{colour}\" \
             stroke-width=\"{width}\" stroke-dasharray=\"{dash}\" d=\"M{start:.1} {place:.1}h24\"/>",
            frame.x(last.x),
            frame.y(last.y),
            start = RIGHT + 8.0,
        );
        let _ = writeln!(
            out,
            "<text class=\"t\" x=\"{:.0}\" y=\"{:.1}\" font-weight=\"{weight}\">{} <tspan class=\"s\" \
             font-weight=\"400\">{}</tspan></text>",
            RIGHT + 38.0,
            place + 4.0,
            escaped(&self.contender),
            escaped(&self.remark),
        );
    }

    /// The curve of some quantiles. `None`: there are none. The ends of the scale are infinite.
    /// Points that repeat the least or the greatest sample are left out, since they only show that
    /// the samples were few.
    fn of_quantiles(contender: &str, quantiles: &[(f64, f64)], y: &str) -> Option<Self> {
        let (&(_, least), &(_, greatest)) = (quantiles.first()?, quantiles.last()?);
        let from = quantiles.iter().rposition(|&(_, value)| value == least)?;
        let to = quantiles.iter().position(|&(_, value)| value == greatest)?;
        let kept = quantiles.get(from..=to).unwrap_or(quantiles);
        let inside = kept.iter().filter(|&&(share, _)| share > 0.0 && share < 1.0);
        let points = inside.map(|&(share, value)| Point { x: logit(share), y: value, ends: None }).collect();
        let &(_, half) = quantiles.iter().find(|&&(share, _)| share == 0.5)?;
        Some(Self { contender: contender.to_owned(), points, remark: format!("p50 {}", label(half, unit(y).0)) })
    }
}

/// Round values between two powers of ten: the powers, and also 2 and 5 times each power if the
/// range is small.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = match high - low {
        decades if decades > 3.5 => &[1.0],
        decades if decades > 1.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
    };
    let powers = low.floor() as i32..=high.ceil() as i32;
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
    all.filter(|tick| (low..=high).contains(&tick.log10())).collect()
}

/// The positions of labels near `wanted`: in the same order, not overlapping, and within the plot.
fn spread_out(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut places = wanted.to_vec();
    let mut free = top;
    for &i in &order {
        places[i] = places[i].max(free);
        free = places[i] + LABEL;
    }
    let mut free = bottom;
    for &i in order.iter().rev() {
        places[i] = places[i].min(free);
        free = places[i] - LABEL;
    }
    places
}

/// Draws the distributions and curves among the report's JSON lines into a folder. Returns the
/// names of the files.
pub(crate) fn draw(lines: &str, folder: &Path) -> io::Result<Vec<String>> {
    let wrong = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
    let (mut plots, mut machine) = (Vec::new(), String::new());
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        let value = Value::parse(line).map_err(wrong)?;
        match value.text("kind") {
            Some("run") => value.text("machine").unwrap_or_default().clone_into(&mut machine),
            Some("distribution" | "curve") => {
                Plot::add(&mut plots, &value).ok_or_else(|| wrong(format!("something is missing in {line}")))?;
            }
            _ => {}
        }
    }
    fs::create_dir_all(folder)?;
    let mut names = Vec::new();
    for plot in &mut plots {
        let name = plot.file_name();
        fs::write(folder.join(&name), plot.svg(&machine))?;
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::{LABEL, Plot, label, logit, spread_out, ticks};
    use crate::json::Value;

    fn plot(lines: &[&str]) -> Plot {
        let mut plots = Vec::new();
        for line in lines {
            Plot::add(&mut plots, &Value::parse(line).expect("JSON")).expect("a line to draw");
        }
        assert_eq!(plots.len(), 1, "one title, one plot");
        plots.remove(0)
    }

    #[test]
    fn a_distribution_is_drawn_between_its_ends() {
        let quantiles = "[[0,10],[0.01,10],[0.1,20],[0.5,40],[0.9,80],[0.99,90],[0.999,90],[1,90]]";
        let line = format!(
            "{{\"kind\":\"distribution\",\"id\":\"W4\",\"title\":\"late <, > & so\",\"contender\":\"timerqueue\",\
             \"unit\":\"us late\",\"rounds\":3,\"quantiles\":{quantiles}}}"
        );
        let mut plot = plot(&[&line, &line.replace("timerqueue", "tokio sleep")]);
        let shares: Vec<f64> = plot.curves[0].points.iter().map(|point| point.x).collect();
        assert_eq!(shares, [0.01, 0.1, 0.5, 0.9, 0.99].map(logit), "one point each for the least and the greatest");
        assert_eq!(plot.curves[0].remark, "p50 40 us");
        let svg = plot.svg("a machine");
        assert!(svg.contains("W4 late &lt;, &gt; &amp; so") && svg.contains("a machine") && svg.contains(">20 us<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(plot.file_name(), "w4-late-so.svg");
    }

    #[test]
    fn a_curve_has_a_place_for_nothing_pending() {
        let line = "{\"kind\":\"curve\",\"id\":\"W1\",\"title\":\"cost\",\"contender\":\"baseline: list\",\"x\":\"pending\",\
                    \"y\":\"ns each\",\"points\":[[0,50,40,60],[10000,60,50,1000000],[1000000,70,60,80]]}";
        let mut plot = plot(&[line]);
        let svg = plot.svg("");
        assert_eq!(plot.marks, [(3.0, "0".to_owned()), (4.0, "10k".to_owned()), (6.0, "1M".to_owned())]);
        assert_eq!(plot.curves[0].remark, "70 ns");
        assert!(svg.contains(">50 ns<") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!svg.contains(">1 ms<"), "the worst sample does not make the scale");
    }

    #[test]
    fn values_are_told_as_people_say_them() {
        let told = [0.5, 999.0, 1_234.0, 12_345_678.0, -250.0].map(|value| label(value, Some(1e-6)));
        assert_eq!(told, ["500 ns", "999 us", "1.23 ms", "12.3 s", "-250 us"]);
        assert_eq!([0.0, 950.0, 10_000.0].map(|value| label(value, None)), ["0", "950", "10k"]);
        assert_eq!(ticks(0.0, 4.0), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(ticks(0.9, 2.01), [10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn labels_stand_apart_and_within() {
        let places = spread_out(&[300.0, 10.0, 12.0, 299.0, 11.0], 0.0, 300.0);
        let mut sorted = places.clone();
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= LABEL - 1e-9), "{places:?}");
        assert!(sorted[0] >= 0.0 && sorted[4] <= 300.0);
        assert!(places[1] < places[4] && places[4] < places[2] && places[3] < places[0], "in their order: {places:?}");
    }
}
