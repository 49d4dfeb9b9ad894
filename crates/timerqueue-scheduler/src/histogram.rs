//! Durations, counted by classes whose widths double.

use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// How often each duration was seen, in classes whose widths double: below a microsecond, below 2
/// us, below 4 us, and so on.
///
/// Serializes with its count, and with what half and 99 % of the durations are
/// [at most](Self::at_most), and the longest one, in seconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::Histogram;
///
/// let mut lateness = Histogram::default();
/// for micros in [3, 3, 5, 900] {
///     lateness.add(Duration::from_micros(micros));
/// }
/// assert_eq!(lateness.count(), 4);
/// assert_eq!(lateness.at_most(0.5), Duration::from_micros(4)); // half of them took less than 4 us
/// assert_eq!(lateness.longest(), Duration::from_micros(900));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    classes: [u64; Self::CLASSES],
    longest: Duration,
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_struct("Histogram", 4)?;
        map.serialize_field("count", &self.count())?;
        map.serialize_field("p50_seconds", &self.at_most(0.5).as_secs_f64())?;
        map.serialize_field("p99_seconds", &self.at_most(0.99).as_secs_f64())?;
        map.serialize_field("longest_seconds", &self.longest.as_secs_f64())?;
        map.end()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { classes: [0; Self::CLASSES], longest: Duration::ZERO }
    }
}

impl Histogram {
    /// The number of classes. The last class has no upper end: 2 to the power of 46 us are two
    /// years.
    pub const CLASSES: usize = 48;

    /// Counts a duration.
    pub fn add(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        self.classes[class.min(Self::CLASSES - 1)] += 1;
        self.longest = self.longest.max(duration);
    }

    /// Counts durations of a class.
    pub(crate) fn add_class(&mut self, class: usize, durations: u64) {
        let count = &mut self.classes[class.min(Self::CLASSES - 1)];
        *count = count.saturating_add(durations);
    }

    /// The longest duration is at least this one.
    pub(crate) fn reach(&mut self, longest: Duration) {
        self.longest = self.longest.max(longest);
    }

    /// Takes the counts of another histogram in.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_scheduler::Histogram;
    ///
    /// let (mut monday, mut tuesday) = (Histogram::default(), Histogram::default());
    /// monday.add(Duration::from_micros(3));
    /// tuesday.add(Duration::from_micros(900));
    /// monday.merge(&tuesday);
    /// assert_eq!((monday.count(), monday.longest()), (2, Duration::from_micros(900)));
    /// ```
    pub fn merge(&mut self, other: &Self) {
        for (class, &count) in other.classes.iter().enumerate() {
            self.add_class(class, count);
        }
        self.reach(other.longest);
    }

    /// The number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The longest duration.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The classes: the upper end, which is not part of the class, and the count.
    pub fn classes(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, &count)| (Duration::from_micros(1 << class), count))
    }

    /// The upper end of the class in which this part of all durations is reached: 0.5 for the
    /// median, 0.99. At most [`longest`](Self::longest). Zero if there is no duration.
    #[must_use]
    pub fn at_most(&self, part: f64) -> Duration {
        let wanted = (self.count() as f64 * part.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (end, count) in self.classes() {
            seen += count;
            if seen >= wanted {
                return end.min(self.longest);
            }
        }
        self.longest
    }
}
