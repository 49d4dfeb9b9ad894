//! The ends of runs, counted by minute and handler.
//!
//! Ground rules. A settle counts in its own commit (J17). A store adds up what a commit has
//! counted, and writes each minute and handler once. Minutes are numbers: whole minutes since the
//! Unix epoch.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{LastRun, Micros, RunEnd, form};
use crate::Histogram;

/// How many minutes a store keeps: a week.
pub(crate) const KEPT: i64 = 7 * 24 * 60;
/// The classes of lateness: below 256 us, and each four times as wide as the one before. The last
/// one has no upper end.
pub(crate) const CLASSES: usize = 12;
/// The class of [`Histogram`] that holds what is below 256 us.
const FIRST_CLASS: usize = 8;
const MICROS: i64 = 60_000_000;

/// What a handler's runs came to in a window of time. Made by
/// [`Scheduler::activity`](crate::Scheduler::activity).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Activity {
    /// The begin of the window.
    #[serde(serialize_with = "form::rfc3339")]
    pub begin: SystemTime,
    /// The name of the handler.
    #[serde(rename = "handler")]
    pub name: Arc<str>,
    /// Runs that ended with [`RunEnd::Done`].
    pub done: u64,
    /// Runs that ended with [`RunEnd::Again`].
    pub again: u64,
    /// Attempts that ended with [`RunEnd::Failed`].
    pub failed: u64,
    /// Jobs that died, but for those that have expired: by an attempt that ended with
    /// [`RunEnd::Dead`], or with [`RunEnd::CutOff`] or [`RunEnd::Blocked`]. [`Stats`](crate::Stats)
    /// has the three apart, for one scheduler.
    pub died: u64,
    /// Jobs that ended with [`RunEnd::Expired`], without a run. Nodes of version 0.1.0 and before
    /// count them as dead.
    pub expired: u64,
    /// How long after its due time each attempt began. The classes are those below 256 us, below
    /// 1,024 us, and so on: each four times as wide as the one before.
    pub lateness: Histogram,
}

/// The counts of a minute and a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) done: u32,
    pub(crate) again: u32,
    pub(crate) failed: u32,
    pub(crate) died: u32,
    pub(crate) expired: u32,
    pub(crate) late: [u32; CLASSES],
    /// Microseconds.
    pub(crate) longest: i64,
}

/// The minute of an instant.
pub(crate) fn minute_of(at: Micros) -> i64 {
    at.as_i64() / MICROS
}

fn begin_of(minute: i64) -> SystemTime {
    Micros::new(minute.saturating_mul(MICROS)).to_system()
}

/// The length of a window in minutes, at least one.
pub(crate) fn minutes_of(window: Duration) -> i64 {
    i64::try_from(window.as_secs().div_ceil(60)).unwrap_or(i64::MAX).clamp(1, KEPT)
}

impl Ends {
    pub(crate) fn add(&mut self, record: &LastRun) {
        let count = match record.end {
            RunEnd::Done => &mut self.done,
            RunEnd::Again => &mut self.again,
            RunEnd::Failed => &mut self.failed,
            RunEnd::Dead | RunEnd::CutOff | RunEnd::Blocked => &mut self.died,
            RunEnd::Expired => &mut self.expired,
        };
        *count = count.saturating_add(1);
        // Without a division: this is in the path of each settle.
        let late = record.started.duration_since(record.due).unwrap_or_default();
        let micros = late.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(late.subsec_micros()));
        let bits = (u64::BITS - micros.leading_zeros()) as usize;
        let class = bits.saturating_sub(FIRST_CLASS).div_ceil(2).min(CLASSES - 1);
        self.late[class] = self.late[class].saturating_add(1);
        self.longest = self.longest.max(i64::try_from(micros).unwrap_or(i64::MAX));
    }

    /// As an activity of one window.
    pub(crate) fn activity(&self, minute: i64, name: &Arc<str>) -> Activity {
        let counts = [self.done, self.again, self.failed, self.died, self.expired].map(u64::from);
        activity(minute, Arc::clone(name), counts, self.late.map(u64::from), self.longest)
    }
}

/// An activity of the window that begins with this minute.
pub(crate) fn activity(
    minute: i64,
    name: Arc<str>,
    [done, again, failed, died, expired]: [u64; 5],
    late: [u64; CLASSES],
    longest: i64,
) -> Activity {
    let mut lateness = Histogram::default();
    for (class, &count) in late.iter().enumerate() {
        let last = class == CLASSES - 1;
        lateness.add_class(if last { Histogram::CLASSES - 1 } else { FIRST_CLASS + 2 * class }, count);
    }
    lateness.reach(Duration::from_micros(u64::try_from(longest).unwrap_or_default()));
    Activity { begin: begin_of(minute), name, done, again, failed, died, expired, lateness }
}

impl Activity {
    /// A window in which no run has ended.
    #[must_use]
    pub fn new(name: Arc<str>, begin: SystemTime) -> Self {
        let lateness = Histogram::default();
        Self { begin, name, done: 0, again: 0, failed: 0, died: 0, expired: 0, lateness }
    }

    /// The numbers of runs, in the order of the fields: done, again, failed, died, expired.
    #[must_use]
    pub fn ends(&self) -> [u64; 5] {
        [self.done, self.again, self.failed, self.died, self.expired]
    }

    /// Takes the counts of another window in.
    pub fn merge(&mut self, other: &Self) {
        self.done += other.done;
        self.again += other.again;
        self.failed += other.failed;
        self.died += other.died;
        self.expired += other.expired;
        self.lateness.merge(&other.lateness);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn late(micros: u64) -> LastRun {
        LastRun {
            due: UNIX_EPOCH,
            nominal: None,
            started: UNIX_EPOCH + Duration::from_micros(micros),
            duration: Duration::ZERO,
            attempt: 1,
            end: RunEnd::Done,
            error: None,
        }
    }

    #[test]
    fn a_lateness_is_below_the_upper_end_of_its_class_and_not_below_the_one_before() {
        for (micros, below) in [
            (0, 256),
            (255, 256),
            (256, 1_024),
            (1_023, 1_024),
            (1_024, 4_096),
            (65_535, 65_536),
            (65_536, 262_144),
            (1 << 27, 1 << 28),
        ] {
            let mut ends = Ends::default();
            ends.add(&late(micros));
            let lateness = ends.activity(0, &"h".into()).lateness;
            let class = lateness.classes().find(|&(_, count)| count > 0).unwrap();
            assert_eq!(class, (Duration::from_micros(below), 1), "{micros} us");
            assert_eq!(lateness.longest(), Duration::from_micros(micros));
        }
        let mut ends = Ends::default();
        ends.add(&late(1 << 40));
        assert_eq!(ends.activity(0, &"h".into()).lateness.at_most(1.0), Duration::from_micros(1 << 40));
    }
}
