//! Missed occurrences: those due while no process ran them.

use std::time::SystemTime;

use crate::instant::to_nanos;
use crate::schedule::Kind;
use crate::{Occurrence, Schedule};

/// The occurrences that a process missed. Made by [`Schedule::missed`].
///
/// # Examples
///
/// Two of four:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::Schedule;
///
/// let at = |second| UNIX_EPOCH + Duration::from_secs(second);
/// let missed = Schedule::every(Duration::from_secs(10)).build()?.missed(at(0), at(45), 2);
/// assert_eq!(missed.occurrences()[0].nominal(), at(30));
/// assert_eq!(missed.occurrences()[1].nominal(), at(40));
/// assert!(missed.has_older());
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    occurrences: Vec<Occurrence>,
    older: bool,
}

impl Missed {
    /// The latest missed occurrences, earliest first.
    #[must_use]
    pub fn occurrences(&self) -> &[Occurrence] {
        &self.occurrences
    }

    /// Whether more occurrences were missed, before the listed ones.
    #[must_use]
    pub fn has_older(&self) -> bool {
        self.older
    }
}

/// Occurrences that were missed. None of these methods walks over more occurrences than it returns
/// or counts.
impl Schedule {
    /// The latest occurrence that is due at or before `now`: the one to run when only the last of
    /// the missed ones matters. The [next one](Self::next_after) is after its nominal instant.
    ///
    /// A fixed delay knows the instant of [`from`](crate::ScheduleBuilder::from) alone.
    ///
    /// # Examples
    ///
    /// After a week without runs, the last nightly run only:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let at = |second| UNIX_EPOCH + Duration::from_secs(second);
    /// let nightly = Schedule::cron("@daily").build()?;
    /// let now = at(7 * 86_400 + 5);
    /// let latest = nightly.latest_due(now).unwrap();
    /// assert_eq!(latest.nominal(), at(7 * 86_400));
    /// assert_eq!(nightly.next_after(latest.nominal()).unwrap().nominal(), at(8 * 86_400));
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn latest_due(&self, now: SystemTime) -> Option<Occurrence> {
        let nominal = self.nominal_before(to_nanos(now) + 1)?;
        let latest = self.occurrence(nominal)?;
        if latest.due() <= now {
            return Some(latest);
        }
        // The occurrence before is due before this nominal instant.
        self.occurrence(self.nominal_before(nominal)?)
    }

    /// The occurrences with nominal instants after `after`, due at or before `now`. Where there are
    /// more than `at_most`, the latest ones are listed. For the earliest ones, use
    /// [`after`](Self::after).
    ///
    /// # Examples
    ///
    /// A process was down for a year. It runs the last three of 31,536,000 missed occurrences,
    /// unless older than a grace:
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use timerqueue_schedule::Schedule;
    ///
    /// let schedule = Schedule::every(Duration::from_secs(1)).build()?;
    /// let (last_run, now) = (UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(365 * 24 * 60 * 60));
    /// let grace = Duration::from_millis(1500);
    ///
    /// assert_eq!(schedule.count_missed(last_run, now, u64::MAX), 31_536_000);
    /// let missed = schedule.missed(last_run, now, 3);
    /// assert_eq!((missed.occurrences().len(), missed.has_older()), (3, true));
    /// let in_time = missed.occurrences().iter().filter(|occurrence| occurrence.due() + grace >= now);
    /// assert_eq!(in_time.count(), 2);
    /// # Ok::<(), timerqueue_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn missed(&self, after: SystemTime, now: SystemTime, at_most: usize) -> Missed {
        let Some(latest) = self.latest_due(now) else { return Missed::default() };
        let mut missed = std::iter::once(latest)
            .chain(self.before(latest.nominal()))
            .take_while(|occurrence| occurrence.nominal() > after);
        let mut occurrences: Vec<Occurrence> = missed.by_ref().take(at_most).collect();
        occurrences.reverse();
        Missed { occurrences, older: missed.next().is_some() }
    }

    /// The number of occurrences with nominal instants after `after`, due at or before `now`, and
    /// `at_most` where there are more. For a period the answer is arithmetic. For cron lines and
    /// rules, the time grows with the answer.
    #[must_use]
    pub fn count_missed(&self, after: SystemTime, now: SystemTime, at_most: u64) -> u64 {
        let Some(latest) = self.latest_due(now) else { return 0 };
        let (after, latest) = (to_nanos(after).max(self.first - 1), to_nanos(latest.nominal()));
        if let Kind::Every(grid) = self.kind {
            return grid.count(after, latest).min(at_most);
        }
        let nominals = std::iter::successors(Some(latest), |&nominal| self.nominal_before(nominal));
        let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
        nominals.take_while(|&nominal| nominal > after).take(at_most).count() as u64
    }
}
