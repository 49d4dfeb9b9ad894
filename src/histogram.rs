//! Histograms of lengths of time: recorded by one thread without a lock, read by any thread.
//!
//! Ground rules. A bucket covers an eighth of a power of two, so a quantile is at most an eighth
//! too great. Lengths below 128 ns share a bucket, and so do those of some nine hours or more.

use std::fmt;
use std::time::Duration;

use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;

/// The width of the first buckets is 2 to this power, in nanoseconds.
const UNIT: u32 = 7;
/// Each power of two has 2 to this power buckets.
const PRECISION: u32 = 3;
const STEPS: u64 = 1 << PRECISION;
const BUCKETS: usize = 280;

/// The bucket of a length.
fn bucket(ns: u64) -> usize {
    let units = (ns >> UNIT).saturating_add(STEPS);
    let shift = units.ilog2() - PRECISION;
    // The highest bits of `units`, from `STEPS` up to twice as much.
    let place = u64::from(shift) * STEPS + (units >> shift) - STEPS;
    (place as usize).min(BUCKETS - 1)
}

/// The end of a bucket: the least length that belongs to the next bucket; `None` for the last
/// bucket.
fn end_ns(bucket: usize) -> Option<u64> {
    let (shift, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    (bucket + 1 < BUCKETS).then(|| (((step + STEPS + 1) << shift) - STEPS) << UNIT)
}

/// A histogram that a thread records. The atomics are not modelled: no other access pairs with
/// them, so a model need not explore their reads.
pub(crate) struct Recorder {
    counts: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], max_ns: AtomicU64::new(0) }
    }
}

impl Recorder {
    /// Records `times` events of this length. Called by a single thread; a caller with others calls
    /// [`Self::record_shared`].
    pub(crate) fn record(&self, ns: u64, times: u64) {
        let count = &self.counts[bucket(ns)];
        count.store(count.load(Ordering::Relaxed) + times, Ordering::Relaxed);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// As [`Self::record`], for any number of threads.
    pub(crate) fn record_shared(&self, ns: u64, times: u64) {
        self.counts[bucket(ns)].fetch_add(times, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, histogram: &mut Histogram) {
        for (sum, count) in histogram.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        histogram.max_ns = histogram.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

/// A distribution of lengths of time: how many events took how long.
///
/// A quantile is never too small, and at most an eighth (and 128 ns) too great. [`max`](Self::max)
/// is exact.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timer};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |_| {});
/// clock.stall(Duration::from_millis(1_020)); // no callback runs meanwhile
/// clock.advance(Duration::ZERO);
/// let lateness = runtime.metrics().lateness;
/// assert_eq!((lateness.count(), lateness.max()), (1, Duration::from_millis(20)));
/// assert_eq!(lateness.quantile(0.5), lateness.max());
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], max_ns: 0 }
    }
}

impl Histogram {
    /// The number of events.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The length that this part of the events did not exceed: 0.5 for the median, 0.99 for the
    /// 99th percentile. Parts below 0 or above 1 count as 0 and 1, and so does a part that is no
    /// number. Zero if there are no events.
    pub fn quantile(&self, part: f64) -> Duration {
        let all = self.count();
        let rank = ((all as f64 * part).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        for (end, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return end.min(self.max());
            }
        }
        Duration::ZERO
    }

    /// The greatest length; zero if there are no events. In a histogram made by
    /// [`since`](Self::since), at most an eighth too great.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The buckets with events, shortest first: the end of the bucket (its events were shorter),
    /// and the number of events. The last bucket, of some nine hours and more, ends at
    /// [`max`](Self::max).
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let end = |at| end_ns(at).map_or(self.max(), Duration::from_nanos);
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(at, count)| (end(at), *count))
    }

    /// The events since an earlier histogram of the same runtime.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.counts;
        for (count, before) in counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        let last = counts.iter().rposition(|count| *count > 0);
        let max_ns = last.map_or(0, |last| end_ns(last).unwrap_or(u64::MAX).min(self.max_ns));
        Self { counts, max_ns }
    }
}

shown!([] Histogram, |this|
    "count" => this.count(), "p50" => this.quantile(0.5), "p99" => this.quantile(0.99), "max" => this.max()
);

/// Some quantiles in a line, for logs.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p90, p99) = (self.quantile(0.5), self.quantile(0.9), self.quantile(0.99));
        write!(f, "p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, max {:.1?} of {}", self.max(), self.count())
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        assert_eq!(bucket(0), 0);
        for at in 0..BUCKETS - 1 {
            let end = end_ns(at).expect("not the last");
            assert_eq!((bucket(end - 1), bucket(end)), (at, at + 1), "{end}");
        }
        assert_eq!((bucket(u64::MAX), end_ns(BUCKETS - 1)), (BUCKETS - 1, None));
        let last = end_ns(BUCKETS - 2).expect("not the last");
        assert!(Duration::from_nanos(last) > Duration::from_secs(9 * 3600), "{last}");
    }

    #[test]
    fn a_quantile_is_never_too_small_and_at_most_an_eighth_too_great() {
        let mut ns = 1;
        while ns < 1 << 44 {
            let recorder = Recorder::default();
            recorder.record(ns, 1);
            recorder.record(1 << 45, 1);
            let mut histogram = Histogram::default();
            recorder.add_to(&mut histogram);
            let found = histogram.quantile(0.5).as_nanos() as u64;
            assert!(found >= ns && found <= ns + ns / 8 + 128, "{found} for {ns}");
            ns += ns / 3 + 1;
        }
    }

    #[test]
    fn quantiles_of_nothing_and_of_odd_parts() {
        let none = Histogram::default();
        assert_eq!((none.count(), none.quantile(0.5), none.max()), (0, Duration::ZERO, Duration::ZERO));
        let recorder = Recorder::default();
        recorder.record_shared(1_000, 9);
        recorder.record_shared(1_000_000, 1);
        let mut some = Histogram::default();
        recorder.add_to(&mut some);
        for (part, max_us) in [(-1.0, 2), (f64::NAN, 2), (0.9, 2), (0.91, 1_000), (7.0, 1_000)] {
            assert!(some.quantile(part) <= Duration::from_micros(max_us), "{part}");
        }
        assert_eq!(some.quantile(1.0), Duration::from_millis(1));
    }

    #[test]
    fn a_difference_has_the_events_in_between() {
        let recorder = Recorder::default();
        let mut before = Histogram::default();
        recorder.record(5_000_000, 3);
        recorder.add_to(&mut before);
        recorder.record(2_000, 5);
        let mut after = Histogram::default();
        recorder.add_to(&mut after);
        let between = after.since(&before);
        assert_eq!((between.count(), after.count()), (5, 8));
        assert!(between.max() < Duration::from_micros(3), "{between}");
        assert_eq!(after.since(&after).max(), Duration::ZERO);
    }
}
