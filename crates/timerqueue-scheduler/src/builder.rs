//! The parts of a schedule, and the checks that make a schedule of them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;

use crate::cron::Cron;
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
}

impl PartialEq for Spec {
    /// Rules are compared by name.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Every(a), Self::Every(b)) | (Self::FixedDelay(a), Self::FixedDelay(b)) => a == b,
            (Self::Cron(a), Self::Cron(b)) | (Self::Rule(a, _), Self::Rule(b, _)) => a == b,
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
        }
    }
}

/// The parts of a [`Schedule`], made by [`Schedule::every`], [`Schedule::cron`], [`Schedule::fixed_delay`] and
/// [`Schedule::rule`]. A second call of a method replaces the value of the first.
///
/// # Examples
///
/// Three Mondays in March at 09:00 in New York, each up to five minutes later:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_scheduler::Schedule;
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
/// # Ok::<(), timerqueue_scheduler::ScheduleError>(())
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
        }
    }

    /// No nominal instant is before `first`. For a period, `first` is the anchor of the grid and the first occurrence.
    pub fn from(mut self, first: SystemTime) -> Self {
        self.from = Some(first);
        self
    }

    /// No nominal instant and no due instant is after `last`.
    pub fn until(mut self, last: SystemTime) -> Self {
        self.until = Some(last);
        self
    }

    /// Ends the schedule after this number of occurrences, counted from the instant of [`from`](Self::from). A fixed delay
    /// counts runs, and needs no such instant: see [`Schedule::next_after_run`].
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// The time zone of a cron line, by its IANA name in any case, such as `Europe/Berlin`. The default is UTC.
    pub fn zone(mut self, name: &str) -> Self {
        self.zone = Some(name.to_owned());
        self
    }

    /// The key that spread and jitter are computed from, such as the name of the job. Schedules without a key, and
    /// schedules with equal keys, have equal delays.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Delays all occurrences by the same part of this window. The key alone decides the part, so that many schedules with
    /// one cron line do not all run at the same instant.
    pub fn spread(mut self, window: Duration) -> Self {
        self.spread = window;
        self
    }

    /// Delays each occurrence by another part of this window. Key and nominal instant decide the part, so all machines
    /// compute the same one. Jitter is added to the spread.
    ///
    /// Both together never reach the next nominal instant, nor pass the end of the schedule: where the windows are longer
    /// than this gap, the delays shrink in proportion.
    pub fn jitter(mut self, window: Duration) -> Self {
        self.jitter = window;
        self
    }

    /// Makes the schedule, with the zone data of [`Zones::system`].
    ///
    /// # Errors
    ///
    /// An invalid cron line, an unknown zone, a period that is too short, a schedule that never fires: [`ScheduleError`].
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
        if self.zone.is_some() && !matches!(self.spec, Spec::Cron(_)) {
            return Err(ScheduleError::ZoneWithoutCron);
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
            Spec::Cron(line) => {
                let zone = match &mut self.zone {
                    None => TimeZone::UTC,
                    Some(name) => {
                        let zone = zones().get(name)?;
                        *name = zone.iana_name().unwrap_or(name).to_owned();
                        zone
                    }
                };
                let cron = Cron::new(line, zone)?;
                cron.text().clone_into(line);
                Kind::Cron(Arc::new(cron))
            }
        })
    }
}
