//! The schedule of a timer: the due point, an instant of the clock in nanoseconds, and the period,
//! a length.

use std::time::Duration;

use crate::time::{NEVER, whole_ns};

/// The length between two ticks, in nanoseconds. A type of its own: a period is never taken for an
/// instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Period(u64);

impl Period {
    /// The timer fires once. Longer than any other period.
    pub(crate) const NONE: Self = Self(NEVER);

    /// Zero, and a length that does not fit, are [`Self::NONE`].
    #[inline]
    pub(crate) fn new(period: Duration) -> Self {
        Self::from_ns(whole_ns(period))
    }

    #[inline]
    pub(crate) const fn from_ns(ns: u64) -> Self {
        if ns == 0 { Self::NONE } else { Self(ns) }
    }

    /// Never zero.
    #[inline]
    pub(crate) const fn as_ns(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// The instant of the next tick; while a tick is deferred, of that tick. In an idle timer an
    /// old instant, or [`NEVER`].
    pub(crate) due: u64,
    pub(crate) period: Period,
}

impl Schedule {
    /// A single tick.
    #[inline]
    pub(crate) const fn once(due: u64) -> Self {
        Self { due, period: Period::NONE }
    }
}
