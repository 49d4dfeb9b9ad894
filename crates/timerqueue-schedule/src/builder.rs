//! The parts of a schedule, and the checks that make a schedule of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;

use crate::cron::{CalendarUnit, Cron, Each};
use crate::grid::Grid;
use crate::instant::{duration_nanos, to_nanos};
use crate::schedule::{FAR, Kind};
use crate::spread::Spread;
use crate::{Rule, Schedule, ScheduleError, Zones};

/// What a schedule repeats by, before any check.
#[derive(Clone)]
pub(crate) enum Spec {
    Every(Duration),
    FixedDelay(Duration),
    Cron(String),
    Rule(String, Arc<dyn Rule>),
    Any(Vec<ScheduleBuilder>),
}

impl PartialEq for Spec {
    /// Rules are compared by name.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Every(a), Self::Every(b)) | (Self::FixedDelay(a), Self::FixedDelay(b)) => a == b,
            (Self::Cron(a), Self::Cron(b)) | (Self::Rule(a, _), Self::Rule(b, _)) => a == b,
            (Self::Any(a), Self::Any(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(period) => write!(f, "Every({period:?})"),
            Self::FixedDelay(delay) => write!(f, "FixedDelay({delay:?})"),
            Self::Cron(line) => write!(f, "Cron({line:?})"),
            Self::Rule(name, _) => write!(f, "Rule({name:?})"),
            Self::Any(parts) => f.debug_tuple("Any").field(parts).finish(),
        }
    }
}

/// The parts of a [`Schedule`], made by [`Schedule::every`], [`Schedule::cron`],
/// [`Schedule::fixed_delay`], [`Schedule::rule`] and [`Schedule::any`]. A second call of a method
/// replaces the value of the first.
///
/// # Examples
///
/// Three Mondays in March at 09:00 in New York, each up to five minutes later:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let march = UNIX_EPOCH + Duration::from_secs(1_772_323_200); // 2026-03-01T00:00:00Z
/// let schedule = Schedule::cron("0 9 * * MON")
///     .zone("America/New_York")
///     .from(march)
///     .times(3)
///     .key("team/7")
///     .jitter(Duration::from_secs(300))
///     .build()?;
/// assert_eq!(schedule.after(march).count(), 3);
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "`build` makes the schedule"]
pub struct ScheduleBuilder {
    pub(crate) spec: Spec,
    pub(crate) from: Option<SystemTime>,
    pub(crate) until: Option<SystemTime>,
    pub(crate) times: Option<u64>,
    pub(crate) zone: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) spread: Duration,
    pub(crate) jitter: Duration,
    pub(crate) each: Option<Each>,
    pub(crate) except: Vec<String>,
}

impl ScheduleBuilder {
    pub(crate) fn new(spec: Spec) -> Self {
        Self {
            spec,
            from: None,
            until: None,
            times: None,
            zone: None,
            key: None,
            spread: Duration::ZERO,
            jitter: Duration::ZERO,
            each: None,
            except: Vec::new(),
        }
    }

    /// No nominal instant is before `first`. For a period, `first` is the anchor of the grid and
    /// the first occurrence.
    pub fn from(mut self, first: SystemTime) -> Self {
        self.from = Some(first);
        self
    }

    /// No nominal instant and no due instant is after `last`.
    pub fn until(mut self, last: SystemTime) -> Self {
        self.until = Some(last);
        self
    }

    /// Ends the schedule after this number of occurrences, counted from the instant of
    /// [`from`](Self::from). A fixed delay counts runs, and needs no such instant: see
    /// [`Schedule::next_after_run`].
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// The time zone of a cron line, by its IANA name in any case, such as `Europe/Berlin`. The
    /// default is UTC. A line may name its zone itself, in front: `CRON_TZ=Europe/Berlin 30 2 * *
    /// *`, or `TZ=`.
    pub fn zone(mut self, name: &str) -> Self {
        self.zone = Some(name.to_owned());
        self
    }

    /// Takes each `n`-th day, week or month of a cron line alone: those whose distance from the one
    /// of the instant of [`from`](Self::from), in the zone of the line, is a multiple of `n`. The
    /// numbers are 1 to [`Schedule::MAX_EACH`].
    ///
    /// # Examples
    ///
    /// Each second Monday at 09:00 in Berlin:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::{CalendarUnit, Schedule};
    ///
    /// let start = UNIX_EPOCH + Duration::from_secs(1_772_323_200); // 2026-03-01, a Sunday
    /// let schedule =
    ///     Schedule::cron("0 9 * * MON").zone("Europe/Berlin").from(start).each(2, CalendarUnit::Week).build()?;
    /// let hours: Vec<u64> =
    ///     schedule.preview(start, 3).iter().map(|next| next.due().duration_since(start).unwrap().as_secs() / 3600).collect();
    /// assert_eq!(hours, [8 * 24 + 8, 22 * 24 + 8, 36 * 24 + 7]); // March 9 and 23, and April 6 in summer time
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn each(mut self, n: u16, unit: CalendarUnit) -> Self {
        self.each = Some(Each { n, unit });
        self
    }

    /// Leaves out days of a cron line, by their dates in its zone: `2026-12-25`, or in each year
    /// `12-25`. At most [`Schedule::MAX_EXCEPT`]. All occurrences with a civil time on such a day
    /// are left out, also one that runs on the next day since its time was skipped.
    ///
    /// # Examples
    ///
    /// Working days without holidays:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let daily = Schedule::cron("0 8 * * MON-FRI").except(["12-25", "12-26", "2026-12-24"]).build()?;
    /// let wednesday = UNIX_EPOCH + Duration::from_secs(1_798_012_800); // 2026-12-23T08:00:00Z
    /// let next = daily.next_after(wednesday).unwrap();
    /// assert_eq!(next.due(), wednesday + Duration::from_secs(5 * 86_400)); // Monday the 28th
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    pub fn except<D: Into<String>>(mut self, dates: impl IntoIterator<Item = D>) -> Self {
        self.except = dates.into_iter().map(Into::into).collect();
        self
    }

    /// The key that spread and jitter are computed from, such as the name of the job. Schedules
    /// without a key, and schedules with equal keys, have equal delays.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Delays all occurrences by the same part of this window. The key alone decides the part, so
    /// that many schedules with one cron line do not all run at the same instant.
    pub fn spread(mut self, window: Duration) -> Self {
        self.spread = window;
        self
    }

    /// Delays each occurrence by another part of this window. Key and nominal instant decide the
    /// part, so all machines compute the same one. Jitter is added to the spread.
    ///
    /// Both together never reach the next nominal instant, nor pass the end of the schedule: where
    /// the windows are longer than this gap, the delays shrink in proportion.
    pub fn jitter(mut self, window: Duration) -> Self {
        self.jitter = window;
        self
    }

    /// Makes the schedule, with the zone data of [`Zones::system`].
    ///
    /// # Errors
    ///
    /// An invalid cron line, an unknown zone, a period that is too short, a schedule that never
    /// fires: [`ScheduleError`].
    pub fn build(self) -> Result<Schedule, ScheduleError> {
        self.build_with(Zones::system)
    }

    /// Makes the schedule, with zone data from this source.
    ///
    /// # Errors
    ///
    /// Those of [`build`](Self::build).
    pub fn build_in(self, zones: &Zones) -> Result<Schedule, ScheduleError> {
        self.build_with(|| zones.clone())
    }

    fn build_with(mut self, zones: impl FnOnce() -> Zones) -> Result<Schedule, ScheduleError> {
        let kind = self.kind(zones)?;
        let until = self.until.map_or(FAR, to_nanos);
        let first = self.from.map_or(-FAR, to_nanos);
        let spread =
            Spread::new(self.key.as_deref().unwrap_or(""), duration_nanos(self.spread), duration_nanos(self.jitter));
        let mut schedule = Schedule { kind, first, until, last: until, spread, spec: self };
        schedule.limit_times()?;
        if schedule.fires() { Ok(schedule) } else { Err(ScheduleError::NeverFires) }
    }

    /// Checks the spec, and gives cron line and zone their usual spelling.
    fn kind(&mut self, zones: impl FnOnce() -> Zones) -> Result<Kind, ScheduleError> {
        let has_dates = self.each.is_some() || !self.except.is_empty();
        match self.spec {
            Spec::Cron(_) => self.check_dates()?,
            _ if self.zone.is_some() => return Err(ScheduleError::ZoneWithoutCron),
            _ if has_dates => return Err(ScheduleError::DatesWithoutCron),
            _ => {}
        }
        let checked = |period: Duration| match period < Schedule::MIN_PERIOD {
            true => Err(ScheduleError::PeriodTooShort { period }),
            false => Ok(duration_nanos(period)),
        };
        Ok(match &mut self.spec {
            Spec::Every(period) => {
                Kind::Every(Grid { anchor: self.from.map_or(0, to_nanos), period: checked(*period)? })
            }
            Spec::FixedDelay(delay) => Kind::FixedDelay(checked(*delay)?),
            Spec::Rule(_, rule) => Kind::Rule(Arc::clone(rule)),
            Spec::Any(parts) => {
                if !(1..=Schedule::MAX_PARTS).contains(&parts.len()) {
                    return Err(ScheduleError::InvalidUnion { reason: "a union has 1 to 50 schedules" });
                }
                let zones = zones();
                let built: Vec<Schedule> = (parts.iter())
                    .map(|part| part.check_part().and_then(|()| part.clone().build_in(&zones)))
                    .collect::<Result<_, _>>()?;
                *parts = built.iter().map(Schedule::to_builder).collect();
                Kind::Any(built.into())
            }
            Spec::Cron(line) => {
                if let Some((zone, rest)) = zone_of_line(line) {
                    match self.zone.as_deref().filter(|given| !given.eq_ignore_ascii_case(zone)) {
                        Some(given) => {
                            let (line, builder) = (zone.to_owned(), given.to_owned());
                            return Err(ScheduleError::TwoZones { line, builder });
                        }
                        None => (self.zone, *line) = (Some(zone.to_owned()), rest.to_owned()),
                    }
                }
                let zone = match &mut self.zone {
                    None => TimeZone::UTC,
                    Some(name) => {
                        let zone = zones().get(name)?;
                        *name = zone.iana_name().unwrap_or(name).to_owned();
                        zone
                    }
                };
                let mut cron = Cron::new(line, zone)?;
                if has_dates {
                    cron = cron.only(self.each.zip(self.from.map(to_nanos)), &self.except)?;
                }
                cron.text().clone_into(line);
                Kind::Cron(Arc::new(cron))
            }
        })
    }

    /// Bounds of `each` and `except`.
    fn check_dates(&self) -> Result<(), ScheduleError> {
        match self.each {
            Some(each) if !(1..=Schedule::MAX_EACH).contains(&each.n) => {
                Err(ScheduleError::InvalidEach { text: each.to_string() })
            }
            Some(_) if self.from.is_none() => Err(ScheduleError::EachWithoutFrom),
            _ if self.except.len() > Schedule::MAX_EXCEPT => {
                Err(ScheduleError::TooManyDates { dates: self.except.len() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a union can have the schedule.
    fn check_part(&self) -> Result<(), ScheduleError> {
        let delays = !self.spread.is_zero() || !self.jitter.is_zero() || self.key.is_some();
        match self.spec {
            Spec::Any(_) => Err(ScheduleError::InvalidUnion { reason: "a union is no part of a union" }),
            Spec::FixedDelay(_) => Err(ScheduleError::InvalidUnion { reason: "a fixed delay is no part of a union" }),
            _ if delays => Err(ScheduleError::InvalidUnion { reason: "key, spread and jitter are those of the union" }),
            _ => Ok(()),
        }
    }
}

/// The zone that a cron line names in front, and the rest.
fn zone_of_line(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_ascii_start();
    let (zone, rest) = line.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((line, ""));
    let zone = zone.strip_prefix("CRON_TZ=").or_else(|| zone.strip_prefix("TZ="))?;
    Some((zone, rest))
}
