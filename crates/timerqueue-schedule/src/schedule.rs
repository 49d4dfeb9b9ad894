//! The schedule: a value that answers which occurrences are next, previous and missed.
//!
//! Inside, nominal instants are nanoseconds (`crate::instant`). The kind of a schedule knows no
//! bounds; the methods here add them, and convert to `SystemTime` last.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::builder::{ScheduleBuilder, Spec};
use crate::cron::Cron;
use crate::grid::Grid;
use crate::instant::{SECOND, duration_words, to_nanos, to_system, to_text};
use crate::spread::Spread;
use crate::{After, Before, Occurrence, Rule, ScheduleError};

/// Beyond every `SystemTime`, and far enough from the ends of `i128` for all sums.
pub(crate) const FAR: i128 = 1 << 100;

/// What a schedule repeats by.
#[derive(Clone)]
pub(crate) enum Kind {
    Every(Grid),
    /// Nanoseconds.
    FixedDelay(i128),
    Cron(Arc<Cron>),
    Rule(Arc<dyn Rule>),
    Any(Arc<[Schedule]>),
}

/// When to run, again and again: a value, without threads and without a clock of its own.
///
/// A schedule is made by a [`ScheduleBuilder`], and does not change. It has an [`Occurrence`] at
/// each instant of
///
/// * a [period](Self::every) on an anchor grid,
/// * a [cron line](Self::cron) in a time zone,
/// * a [rule](Self::rule) of your own, or
/// * a [union](Self::any) of these,
///
/// or runs a [fixed delay](Self::fixed_delay) after the end of the run before. All answers are
/// functions of the schedule and of the given instants: a second machine, or a second call, gives
/// the same ones.
///
/// # Ends of time
///
/// No method panics or overflows. Periods and rules have occurrences wherever `SystemTime` has
/// instants, also before 1970 and after 9999. Cron lines have occurrences in the years 1 to 4999.
/// Beyond, the answer is `None`. A due instant that `SystemTime` cannot represent becomes the
/// nominal instant.
///
/// # Serialization
///
/// A schedule serializes as a map of its parts; parts that were not given are left out. In binary
/// formats (such as postcard), the fields up to `jitter` are written in the order of the table; a
/// schedule with one of the others is written as its JSON text, in the field `every`. Field names
/// and texts are stable.
///
/// | field | value | example |
/// |---|---|---|
/// | `every`, `fixed_delay` | duration: seconds, with up to 9 digits behind the point | `"90s"`, `"0.25s"` |
/// | `cron` | the line, with single blanks | `"30 2 * * *"` |
/// | `rule` | the name of the rule | `"working-days"` |
/// | `zone` | the IANA name | `"Europe/Berlin"` |
/// | `from`, `until` | RFC 3339; outside the years 0 to 9999: `@` and seconds since the Unix epoch | `"2026-03-29T01:00:00Z"`, `"@253402300800.5"` |
/// | `times` | number | `3` |
/// | `key` | text | `"report/42"` |
/// | `spread`, `jitter` | duration | `"600s"` |
/// | `each` | number and unit: `days`, `weeks` or `months` | `"2 weeks"` |
/// | `except` | list of dates | `["2026-12-24", "12-25"]` |
/// | `any` | list of schedules | `[{"cron":"0 8 * * *"},{"every":"3600s"}]` |
///
/// Exactly one of `every`, `fixed_delay`, `cron`, `rule` and `any` is present; unknown fields are
/// refused. Deserializing builds the schedule, with the same errors. Zone data and rules are not
/// part of the form: a [`Loader`](crate::Loader) supplies them. `Deserialize` itself uses
/// [`Zones::system`](crate::Zones::system) and knows no rules.
///
/// ```
/// use timerqueue_schedule::Schedule;
///
/// let text = r#"{"cron":"30 2 * * *","zone":"Europe/Berlin","until":"2030-01-01T00:00:00Z"}"#;
/// let schedule: Schedule = serde_json::from_str(text)?;
/// assert_eq!(serde_json::to_string(&schedule)?, text);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// Two schedules are equal when their parts are. Rules are compared by name.
///
/// # Examples
///
/// The nights around the begin of summer time in Berlin, where 02:30 does not exist on March 29:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let schedule = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build()?;
/// let noon = UNIX_EPOCH + Duration::from_secs(1_774_612_800); // 2026-03-27T12:00:00Z
/// let hours: Vec<f64> = schedule
///     .preview(noon, 3)
///     .iter()
///     .map(|occurrence| occurrence.due().duration_since(noon).unwrap().as_secs_f64() / 3600.0)
///     .collect();
/// assert_eq!(hours, [13.5, 37.0, 60.5]); // 02:30 winter time, 03:00 summer time, 02:30 summer time
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct Schedule {
    pub(crate) spec: ScheduleBuilder,
    pub(crate) kind: Kind,
    /// The first nominal instant is at or after this one.
    pub(crate) first: i128,
    /// No occurrence is due after this instant.
    pub(crate) until: i128,
    /// The last nominal instant is at or before this one: `until`, or earlier by the number of
    /// times.
    pub(crate) last: i128,
    pub(crate) spread: Spread,
}

/// How schedules are made.
impl Schedule {
    /// The shortest period and the shortest fixed delay.
    pub const MIN_PERIOD: Duration = Duration::from_micros(1);

    /// The largest number of [times](ScheduleBuilder::times) for cron lines and rules. `build`
    /// walks over the occurrences up to the last one, which takes about a microsecond each. Periods
    /// have no such limit.
    pub const MAX_TIMES: u64 = 10_000;

    /// Every `period`, at a fixed rate: the instants `anchor + k * period`. The anchor is the
    /// instant of [`from`](ScheduleBuilder::from), and the Unix epoch without one, so that `every(1
    /// h)` means the full hours of UTC. The duration of runs does not move the grid.
    ///
    /// # Examples
    ///
    /// Every ten minutes from a first instant:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    /// let schedule = Schedule::every(Duration::from_secs(600)).from(at(42)).build()?;
    /// assert_eq!(schedule.next_after(at(0)).unwrap().due(), at(42));
    /// assert_eq!(schedule.next_after(at(42)).unwrap().due(), at(642));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn every(period: Duration) -> ScheduleBuilder {
        ScheduleBuilder::new(Spec::Every(period))
    }

    /// Again after `delay`, counted from the end of the run before.
    /// [`next_after_run`](Self::next_after_run) is the method for it, as the instants depend on the
    /// runs: there is no grid. The other methods read a given instant as the end of a run, or know
    /// the instant of [`from`](ScheduleBuilder::from) alone; each says so.
    ///
    /// # Examples
    ///
    /// A minute of rest between two runs:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    /// let schedule = Schedule::fixed_delay(Duration::from_secs(60)).build()?;
    /// let first = schedule.first_at(at(1000)).unwrap().nominal();
    /// assert_eq!(first, at(1000)); // the first run starts at once
    /// assert_eq!(schedule.next_after_run(first, at(1007), 1).unwrap().nominal(), at(1067));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn fixed_delay(delay: Duration) -> ScheduleBuilder {
        ScheduleBuilder::new(Spec::FixedDelay(delay))
    }

    /// The civil times of a cron line, in UTC or in a [time zone](ScheduleBuilder::zone). The
    /// [crate documentation](crate) has the syntax and the rules for daylight saving.
    ///
    /// # Examples
    ///
    /// The first leap day after the Unix epoch:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let schedule = Schedule::cron("0 0 29 2 *").build()?; // leap days
    /// let next = schedule.next_after(UNIX_EPOCH).unwrap();
    /// assert_eq!(next.due(), UNIX_EPOCH + Duration::from_secs(68_169_600)); // 1972-02-29T00:00:00Z
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn cron(line: &str) -> ScheduleBuilder {
        ScheduleBuilder::new(Spec::Cron(line.to_owned()))
    }

    /// The largest number of [`each`](ScheduleBuilder::each).
    pub const MAX_EACH: u16 = 1_000;

    /// The largest number of days [left out](ScheduleBuilder::except).
    pub const MAX_EXCEPT: usize = 500;

    /// The largest number of schedules in a [union](Self::any).
    pub const MAX_PARTS: usize = 50;

    /// The instants of several schedules: periods, cron lines in zones of their own, and rules. An
    /// instant of several of them is one occurrence. Key, spread and jitter are those of the union.
    /// A union of unions, and one with a fixed delay, is refused. The cost of an answer grows with
    /// the number of schedules, which is at most [`MAX_PARTS`](Self::MAX_PARTS).
    ///
    /// # Examples
    ///
    /// At 08:30 from Monday to Friday, and at 10:00 on Saturdays and Sundays:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let schedule = Schedule::any([Schedule::cron("30 8 * * MON-FRI"), Schedule::cron("0 10 * * SAT,SUN")]).build()?;
    /// let friday = UNIX_EPOCH + Duration::from_secs(86_400); // 1970-01-02
    /// let hours: Vec<f64> = schedule
    ///     .preview(friday, 3)
    ///     .iter()
    ///     .map(|next| next.due().duration_since(friday).unwrap().as_secs_f64() / 3600.0)
    ///     .collect();
    /// assert_eq!(hours, [8.5, 34.0, 58.0]);
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn any(parts: impl IntoIterator<Item = ScheduleBuilder>) -> ScheduleBuilder {
        ScheduleBuilder::new(Spec::Any(parts.into_iter().collect()))
    }

    /// The instants of a [`Rule`]. The name stands for the rule in the serialized form, and in
    /// comparisons.
    ///
    /// # Examples
    ///
    /// The days of another schedule, without Sundays:
    ///
    /// ```
    /// use std::time::{Duration, SystemTime, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// const DAY: u64 = 24 * 60 * 60;
    /// let daily = Schedule::cron("@daily").build()?;
    /// let is_sunday = |t: SystemTime| {
    ///     let days = t.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY);
    ///     days % 7 == 3 // 1970-01-01 was a Thursday
    /// };
    /// let rule = move |t| daily.after(t).map(|day| day.nominal()).find(|&day| !is_sunday(day));
    /// let schedule = Schedule::rule("not-on-sundays", rule).build()?;
    ///
    /// let saturday = UNIX_EPOCH + Duration::from_secs(2 * DAY);
    /// assert_eq!(schedule.next_after(saturday).unwrap().due(), saturday + Duration::from_secs(2 * DAY));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn rule(name: &str, rule: impl Rule + 'static) -> ScheduleBuilder {
        ScheduleBuilder::new(Spec::Rule(name.to_owned(), Arc::new(rule)))
    }

    /// The parts of this schedule, to change some, or to build it again with newer zone data.
    pub fn to_builder(&self) -> ScheduleBuilder {
        self.spec.clone()
    }
}

/// Occurrences around an instant.
impl Schedule {
    /// The earliest occurrence with a nominal instant after `t`.
    ///
    /// Given the nominal instant of the last run, the answer is the next run. A step of the wall
    /// clock plays no part: after a step back, no nominal instant is repeated.
    ///
    /// A fixed delay takes `t` for the end of a run.
    #[must_use]
    pub fn next_after(&self, t: SystemTime) -> Option<Occurrence> {
        self.occurrence(self.nominal_after(to_nanos(t))?)
    }

    /// The latest occurrence with a nominal instant before `t`.
    ///
    /// A fixed delay knows the instant of [`from`](ScheduleBuilder::from) alone.
    #[must_use]
    pub fn previous_before(&self, t: SystemTime) -> Option<Occurrence> {
        let previous = self.occurrence(self.nominal_before(to_nanos(t))?)?;
        if previous.nominal() < t {
            return Some(previous);
        }
        // `SystemTime` is coarser than a nanosecond here, and the nominal instant was rounded up to
        // `t`.
        self.occurrence(self.nominal_before(self.nominal_before(to_nanos(t))?)?)
    }

    /// The occurrence for a job that has never run: the earliest one with a nominal instant at or
    /// after `t`.
    ///
    /// A fixed delay starts at `t`, or at the instant of [`from`](ScheduleBuilder::from) where this
    /// is later.
    ///
    /// # Examples
    ///
    /// A job put at the full minute runs at once:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let at = |second| UNIX_EPOCH + Duration::from_secs(second);
    /// let schedule = Schedule::cron("* * * * *").build()?;
    /// assert_eq!(schedule.first_at(at(60)).unwrap().nominal(), at(60));
    /// assert_eq!(schedule.next_after(at(60)).unwrap().nominal(), at(120));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn first_at(&self, t: SystemTime) -> Option<Occurrence> {
        let t = to_nanos(t);
        let nominal = match self.kind {
            Kind::FixedDelay(_) => Some(t.max(self.first)).filter(|&nominal| nominal <= self.last),
            _ => self.nominal_after(t - 1),
        };
        self.occurrence(nominal?)
    }

    /// The occurrence after a run that was nominally at `nominal` and ended at `ended`, as the wall
    /// clock showed it. It was the run with the number `runs`, counted from 1.
    ///
    /// Only a fixed delay looks at `ended` and `runs`. Its answer is a delay after `ended`, also
    /// where the wall clock has stepped back behind `nominal`. The answer is never `nominal` again.
    ///
    /// # Examples
    ///
    /// Two runs, and no third:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    /// let schedule = Schedule::fixed_delay(Duration::from_secs(60)).times(2).build()?;
    /// assert_eq!(schedule.next_after_run(at(0), at(5), 1).unwrap().due(), at(65));
    /// assert_eq!(schedule.next_after_run(at(65), at(70), 2), None);
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn next_after_run(&self, nominal: SystemTime, ended: SystemTime, runs: u64) -> Option<Occurrence> {
        let Kind::FixedDelay(delay) = self.kind else { return self.next_after(nominal) };
        if self.spec.times.is_some_and(|times| runs >= times) {
            return None;
        }
        let next = (to_nanos(ended) + delay).max(self.first);
        let next = if next == to_nanos(nominal) { next + 1 } else { next };
        self.occurrence(Some(next).filter(|&next| next <= self.last)?)
    }

    /// The occurrences with nominal instants after `t`, earliest first. The iterator computes each
    /// when asked for it.
    #[must_use]
    pub fn after(&self, t: SystemTime) -> After<'_> {
        After::new(self, to_nanos(t))
    }

    /// The occurrences with nominal instants before `t`, latest first. The iterator computes each
    /// when asked for it.
    #[must_use]
    pub fn before(&self, t: SystemTime) -> Before<'_> {
        Before::new(self, to_nanos(t))
    }

    /// The next `n` occurrences after `t`, or fewer where the schedule ends.
    ///
    /// A fixed delay is previewed with runs that take no time.
    #[must_use]
    pub fn preview(&self, t: SystemTime, n: usize) -> Vec<Occurrence> {
        self.after(t).take(n).collect()
    }
}

/// The parts.
impl Schedule {
    /// The name of the time zone, if one was given.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.spec.zone.as_deref()
    }

    /// Whether zone data decides about occurrences, of the schedule itself or of a part of a union.
    #[must_use]
    pub fn has_zone(&self) -> bool {
        self.zone().is_some() || matches!(&self.kind, Kind::Any(parts) if parts.iter().any(Self::has_zone))
    }

    /// Whether a [`Rule`] decides about occurrences, by itself or in a union. The serialized form
    /// has its name alone.
    #[must_use]
    pub fn has_rule(&self) -> bool {
        match &self.kind {
            Kind::Rule(_) => true,
            Kind::Any(parts) => parts.iter().any(Self::has_rule),
            _ => false,
        }
    }

    /// The cron line, with single blanks and without a zone.
    #[must_use]
    pub fn line(&self) -> Option<&str> {
        match &self.kind {
            Kind::Cron(cron) => Some(cron.text()),
            _ => None,
        }
    }

    /// The schedule in English words, for people. The words may change; [`Display`](fmt::Display)
    /// is for programs.
    ///
    /// # Examples
    ///
    /// A line and its zone:
    ///
    /// ```
    /// use timerqueue_schedule::Schedule;
    ///
    /// let schedule: Schedule = "CRON_TZ=Europe/Berlin */15 9-17 * * MON-FRI".parse()?;
    /// assert_eq!(schedule.describe(), "each 15th minute of hour 9 to 17, on Monday to Friday, in Europe/Berlin");
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn describe(&self) -> String {
        let mut words = match (&self.spec.spec, &self.kind) {
            (Spec::Every(period), _) => format!("every {}", duration_words(*period)),
            (Spec::FixedDelay(delay), _) => format!("{} after each run", duration_words(*delay)),
            (Spec::Rule(name, _), _) => format!("by the rule {name:?}"),
            (_, Kind::Cron(cron)) => cron.words(),
            (_, Kind::Any(parts)) => parts.iter().map(Self::describe).collect::<Vec<_>>().join("; "),
            _ => String::new(),
        };
        let spec = &self.spec;
        let mut add = |part: Option<String>| words.extend(part.iter().flat_map(|part| [", ", part]));
        add(spec.zone.as_ref().map(|zone| format!("in {zone}")));
        add(spec.each.map(|each| format!("every {each}")));
        add(match spec.except.len() {
            0 => None,
            1..=5 => Some(format!("without {}", spec.except.join(", "))),
            days => Some(format!("without {days} days")),
        });
        for (name, window) in [("spread over", spec.spread), ("jitter", spec.jitter)] {
            add((!window.is_zero()).then(|| format!("{name} {}", duration_words(window))));
        }
        for (name, at) in [("from", spec.from), ("until", spec.until)] {
            add(at.map(|at| format!("{name} {}", to_text(at))));
        }
        add(spec.times.map(|times| format!("{times} times")));
        words
    }

    /// Whether an occurrence has its nominal instant in the same second as `t`.
    ///
    /// # Examples
    ///
    /// A quarter past each hour:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let schedule = Schedule::cron("15 * * * *").build()?;
    /// assert!(schedule.matches(UNIX_EPOCH + Duration::from_millis(900_900)));
    /// assert!(!schedule.matches(UNIX_EPOCH + Duration::from_secs(901)));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn matches(&self, t: SystemTime) -> bool {
        let second = to_nanos(t).div_euclid(SECOND) * SECOND;
        self.nominal_after(second - 1).is_some_and(|nominal| nominal < second + SECOND)
    }

    /// The key of spread and jitter, if one was given.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.spec.key.as_deref()
    }

    /// The period of [`every`](Self::every), or the delay of [`fixed_delay`](Self::fixed_delay).
    /// `None`: the occurrences are instants of the clock, of a cron line, a rule or a union.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_schedule::Schedule;
    ///
    /// let minute = Duration::from_secs(60);
    /// assert_eq!(Schedule::every(minute).build()?.period(), Some(minute));
    /// assert_eq!(Schedule::cron("* * * * *").build()?.period(), None);
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn period(&self) -> Option<Duration> {
        match self.spec.spec {
            Spec::Every(period) | Spec::FixedDelay(period) => Some(period),
            Spec::Cron(_) | Spec::Rule(..) | Spec::Any(_) => None,
        }
    }

    /// Whether spread or jitter delays occurrences beyond their nominal instants.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        !self.spread.is_none()
    }

    /// Whether the next occurrence depends on the end of the run before.
    #[must_use]
    pub fn is_fixed_delay(&self) -> bool {
        matches!(self.kind, Kind::FixedDelay(_))
    }
}

/// Nominal instants, in nanoseconds.
impl Schedule {
    pub(crate) fn nominal_after(&self, t: i128) -> Option<i128> {
        self.unbounded_after(t.max(self.first - 1)).filter(|&nominal| nominal <= self.last)
    }

    /// Without the end of the schedule; not before its begin.
    fn unbounded_after(&self, t: i128) -> Option<i128> {
        match &self.kind {
            Kind::Every(grid) => Some(grid.next(t)),
            Kind::FixedDelay(_) if t < self.first => Some(self.first),
            Kind::FixedDelay(delay) => Some(t + delay),
            Kind::Cron(cron) => cron.next(t),
            Kind::Any(parts) => parts.iter().filter_map(|part| part.nominal_after(t)).min(),
            Kind::Rule(rule) => {
                rule.next_after(to_system(t).or_else(|| to_system(t + 1))?).map(to_nanos).filter(|&nominal| nominal > t)
            }
        }
    }

    pub(crate) fn nominal_before(&self, t: i128) -> Option<i128> {
        let t = t.min(self.last + 1);
        let nominal = match &self.kind {
            Kind::Every(grid) => Some(grid.previous(t)),
            Kind::FixedDelay(_) => self.spec.from.map(to_nanos).filter(|&first| first < t),
            Kind::Cron(cron) => cron.previous(t),
            Kind::Any(parts) => parts.iter().filter_map(|part| part.nominal_before(t)).max(),
            Kind::Rule(rule) => rule
                .previous_before(to_system(t).or_else(|| to_system(t - 1))?)
                .map(to_nanos)
                .filter(|&nominal| nominal < t),
        };
        nominal.filter(|&nominal| nominal >= self.first)
    }

    /// The occurrence of a nominal instant. `None`: `SystemTime` cannot represent the instant.
    pub(crate) fn occurrence(&self, nominal: i128) -> Option<Occurrence> {
        let at = to_system(nominal)?;
        if self.spread.is_none() {
            return Some(Occurrence::new(at, at));
        }
        let next = self.unbounded_after(nominal).unwrap_or(FAR).min(self.until + 1);
        let delay = self.spread.delay(nominal, Some(next - nominal).filter(|_| next < FAR));
        Some(Occurrence::new(at, to_system(nominal + delay).unwrap_or(at)))
    }
}

/// Checks of `build`.
impl Schedule {
    /// Moves the end of the schedule to the last of the times.
    pub(crate) fn limit_times(&mut self) -> Result<(), ScheduleError> {
        let Some(times) = self.spec.times else { return Ok(()) };
        let Some(more) = times.checked_sub(1) else { return Err(ScheduleError::NeverFires) };
        if let Kind::FixedDelay(_) = self.kind {
            return Ok(());
        }
        if self.spec.from.is_none() {
            return Err(ScheduleError::TimesWithoutFrom);
        }
        let last = match self.kind {
            Kind::Every(grid) => grid.nth(more),
            _ if times > Self::MAX_TIMES => return Err(ScheduleError::TooManyTimes { times }),
            _ => {
                let first = self.nominal_after(self.first - 1);
                std::iter::successors(first, |&nominal| self.nominal_after(nominal)).nth(more as usize)
            }
        };
        self.last = self.last.min(last.unwrap_or(FAR));
        Ok(())
    }

    /// Whether there is an occurrence.
    pub(crate) fn fires(&self) -> bool {
        let epoch = to_nanos(UNIX_EPOCH);
        // The next point of a long period may be beyond `SystemTime`.
        let exists = |nominal: Option<i128>| nominal.and_then(to_system).is_some();
        match (self.spec.from, self.spec.until) {
            _ if self.first > self.last => false,
            _ if self.is_fixed_delay() => true,
            (Some(_), _) => exists(self.nominal_after(self.first - 1)),
            (None, Some(_)) => exists(self.nominal_before(self.last + 1)),
            (None, None) => exists(self.nominal_after(epoch)) || exists(self.nominal_before(epoch + 1)),
        }
    }
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Eq for Schedule {}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}
