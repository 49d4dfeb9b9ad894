//! Occurrences, and sequences of them.

use std::iter::FusedIterator;
use std::time::SystemTime;

use crate::Schedule;

/// One occurrence of a schedule.
///
/// The nominal instant is the instant of the period, cron line or rule. It identifies the
/// occurrence: a scheduler stores the nominal instant of the last run, and asks for the [next
/// one](Schedule::next_after). The due instant is later by spread and jitter. Nominal instants and
/// due instants have the same order, and each occurrence is due before the next nominal instant.
///
/// # Examples
///
/// The delay of a spread:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let hourly = Schedule::cron("@hourly").key("report/42").spread(Duration::from_secs(600)).build()?;
/// let occurrence = hourly.next_after(UNIX_EPOCH).unwrap();
/// assert_eq!(occurrence.nominal(), UNIX_EPOCH + Duration::from_secs(3600));
/// let delay = occurrence.due().duration_since(occurrence.nominal()).unwrap();
/// assert_eq!(delay.as_secs(), 485); // on every machine, for this key
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Occurrence {
    nominal: SystemTime,
    due: SystemTime,
}

impl Occurrence {
    pub(crate) fn new(nominal: SystemTime, due: SystemTime) -> Self {
        Self { nominal, due }
    }

    /// The instant on the grid, of the cron line, or of the rule.
    #[must_use]
    pub fn nominal(&self) -> SystemTime {
        self.nominal
    }

    /// The instant to run at: the nominal instant, plus spread and jitter.
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.due
    }
}

/// The occurrences after an instant, earliest first. Made by [`Schedule::after`].
///
/// # Examples
///
/// The earliest missed occurrences:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let at = |second| UNIX_EPOCH + Duration::from_secs(second);
/// let schedule = Schedule::every(Duration::from_secs(10)).build()?;
/// let (last_run, now) = (at(0), at(1_000));
/// let missed = schedule.after(last_run).take_while(|occurrence| occurrence.due() <= now);
/// let nominals: Vec<_> = missed.take(2).map(|occurrence| occurrence.nominal()).collect();
/// assert_eq!(nominals, [at(10), at(20)]);
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct After<'a> {
    schedule: &'a Schedule,
    /// The nominal instant of the last item. `None`: there is no further item.
    last: Option<i128>,
}

/// The occurrences before an instant, latest first. Made by [`Schedule::before`].
///
/// # Examples
///
/// The occurrences of the last minute:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let at = |second| UNIX_EPOCH + Duration::from_secs(second);
/// let schedule = Schedule::every(Duration::from_secs(25)).build()?;
/// let now = at(1_000);
/// let recent = schedule.before(now).take_while(|occurrence| occurrence.nominal() >= now - Duration::from_secs(60));
/// let nominals: Vec<_> = recent.map(|occurrence| occurrence.nominal()).collect();
/// assert_eq!(nominals, [at(975), at(950)]);
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Before<'a> {
    schedule: &'a Schedule,
    /// The nominal instant of the last item. `None`: there is no further item.
    last: Option<i128>,
}

impl<'a> After<'a> {
    pub(crate) fn new(schedule: &'a Schedule, t: i128) -> Self {
        Self { schedule, last: Some(t) }
    }
}

impl<'a> Before<'a> {
    pub(crate) fn new(schedule: &'a Schedule, t: i128) -> Self {
        Self { schedule, last: Some(t) }
    }
}

impl Iterator for After<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        self.last = self.schedule.nominal_after(self.last?);
        self.schedule.occurrence(self.last?)
    }
}

impl Iterator for Before<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        self.last = self.schedule.nominal_before(self.last?);
        self.schedule.occurrence(self.last?)
    }
}

impl FusedIterator for After<'_> {}
impl FusedIterator for Before<'_> {}
