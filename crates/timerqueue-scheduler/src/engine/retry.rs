//! How often and how late a failed attempt is repeated.

use std::time::Duration;

/// How often and how late a failed attempt is repeated. Waits grow by a factor, up to a longest
/// wait, and each is longer by a random part: jobs with failures at the same instant are not
/// repeated together.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::Retry;
///
/// let retry = Retry::new(4).first(Duration::from_secs(2)).factor(3.0).longest(Duration::from_secs(10)).jitter(0.0);
/// let waits: Vec<_> = (1..=4).map(|attempt| retry.wait_after(attempt, 0)).collect();
/// let seconds = |s| Some(Duration::from_secs(s));
/// assert_eq!(waits, [seconds(2), seconds(6), seconds(10), None]); // the fourth attempt is the last
/// assert_eq!(Retry::never().wait_after(1, 0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Retry {
    attempts: u32,
    first: Duration,
    factor: f64,
    longest: Duration,
    jitter: f64,
}

/// A job whose process ends during each attempt begins at least so often.
const LEAST_BEGINNINGS: u32 = 5;

impl Retry {
    /// Up to this number of attempts, with the first. Zero counts as one. An attempt during which
    /// the process ends counts, but is repeated all the same until the job has begun five times:
    /// its failure is perhaps not the job's. The first wait is a second, each further wait twice as
    /// long, the longest an hour, and each up to a quarter longer by chance.
    pub fn new(attempts: u32) -> Self {
        Self {
            attempts: attempts.max(1),
            first: Duration::from_secs(1),
            factor: 2.0,
            longest: Duration::from_secs(3600),
            jitter: 0.25,
        }
    }

    /// One attempt.
    pub fn never() -> Self {
        Self::new(1)
    }

    /// The wait after the first attempt.
    pub fn first(mut self, wait: Duration) -> Self {
        self.first = wait;
        self
    }

    /// Each wait is longer than the wait before by this factor. A factor below 1.0 counts as 1.0,
    /// as NaN does.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor.max(1.0); // `max` gives 1.0 for NaN
        self
    }

    /// No wait is longer than this, before its random part.
    pub fn longest(mut self, wait: Duration) -> Self {
        self.longest = wait;
        self
    }

    /// Each wait is longer by a random part of itself, up to this fraction, from 0.0 to 1.0.
    pub fn jitter(mut self, fraction: f64) -> Self {
        self.jitter = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        self
    }

    /// Whether this attempt may begin. Else the processes of all attempts before have ended, and
    /// the job is perhaps what ends them.
    pub(crate) fn may_begin(&self, attempt: u32) -> bool {
        attempt <= self.attempts.max(LEAST_BEGINNINGS)
    }

    /// The wait after this attempt, counted from 1. `None`: no attempt follows. `random` decides
    /// the random part.
    #[must_use]
    pub fn wait_after(&self, attempt: u32, random: u64) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        // Zero times infinity is not a number.
        let factor = if self.first.is_zero() { 1.0 } else { self.factor.powi(exponent) };
        let grown = self.first.as_secs_f64() * factor;
        let longest = self.longest.as_secs_f64();
        let part = (random >> 11) as f64 / (1_u64 << 53) as f64; // at least 0, below 1
        let wait = if grown < longest { grown } else { longest } * (1.0 + self.jitter * part);
        Some(Duration::try_from_secs_f64(wait).unwrap_or(self.longest))
    }
}

impl Default for Retry {
    /// Five attempts.
    fn default() -> Self {
        Self::new(5)
    }
}

/// A random number of these three (SplitMix64).
pub(crate) fn mixed(seed: u64, job: u64, attempt: u32) -> u64 {
    let mut x = seed ^ job.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(attempt).rotate_left(32);
    for _ in 0..2 {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}
