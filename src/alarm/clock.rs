//! Clocks: the system's clocks, and the manual clock.
//!
//! Ground rules. Nanoseconds in 64 bits, which last for 584 years; no clock runs backwards. Reading
//! a system clock is on every hot path: a predictable branch and a `clock_gettime`, which on Linux
//! is no system call.
//!
//! Each system's clock that stands still while the system is suspended, and its clock that goes on:
//!
//! | system | stands still | goes on |
//! |---|---|---|
//! | Linux | `CLOCK_MONOTONIC` | `CLOCK_BOOTTIME` |
//! | macOS and its kin | `CLOCK_UPTIME_RAW` (`CLOCK_MONOTONIC` goes on, and is cut to microseconds) | `CLOCK_MONOTONIC_RAW` |
//! | OpenBSD | `CLOCK_UPTIME` (`CLOCK_MONOTONIC` goes on) | `CLOCK_BOOTTIME`, which no timer follows: timed waits only |
//! | Windows | `QueryUnbiasedInterruptTimePrecise` | `QueryInterruptTimePrecise`, which no timer follows |
//! | FreeBSD, NetBSD, DragonFly | `CLOCK_MONOTONIC` | none |

use std::time::{Instant, SystemTime};

use super::virtual_time::VirtualTime;
use crate::sync::unmodelled::OnceLock;
use crate::time::{At, Deadline, LAST, Moment};

#[cfg(all(test, timerqueue_loom))]
thread_local! {
    /// The reading of the system's clocks in a model that moves them.
    pub(crate) static MODEL_CLOCK: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

#[cfg(not(windows))]
const NS_PER_SEC: u64 = 1_000_000_000;

#[cfg(target_vendor = "apple")]
const MONOTONIC: libc::clockid_t = libc::CLOCK_UPTIME_RAW;
#[cfg(target_os = "openbsd")]
const MONOTONIC: libc::clockid_t = libc::CLOCK_UPTIME;
#[cfg(not(any(target_vendor = "apple", target_os = "openbsd", windows)))]
const MONOTONIC: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// Whether `std::time::Instant` reads the same clock as [`SystemClock::MONOTONIC`]. Elsewhere the
/// two may drift apart: by the time in suspend (OpenBSD), or by rate (Windows).
const INSTANT_IS_MONOTONIC: bool = cfg!(not(any(windows, target_os = "openbsd")));

/// A clock of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemClock(Id);

#[cfg(not(windows))]
type Id = libc::clockid_t;
#[cfg(windows)]
type Id = super::windows::InterruptTime;

#[cfg(windows)]
const MONOTONIC: Id = Id::Unbiased;

impl SystemClock {
    /// Stands still while the system is suspended.
    pub(crate) const MONOTONIC: Self = Self(MONOTONIC);
    /// Goes on while the system is suspended; not every system has such a clock.
    #[cfg(any(target_os = "linux", target_os = "openbsd"))]
    pub(crate) const BOOT: Option<Self> = Some(Self(libc::CLOCK_BOOTTIME));
    #[cfg(target_vendor = "apple")]
    pub(crate) const BOOT: Option<Self> = Some(Self(libc::CLOCK_MONOTONIC_RAW));
    #[cfg(windows)]
    pub(crate) const BOOT: Option<Self> = Some(Self(Id::Biased));
    #[cfg(not(any(target_os = "linux", target_os = "openbsd", target_vendor = "apple", windows)))]
    pub(crate) const BOOT: Option<Self> = None;

    /// The system's identifier of the clock.
    #[cfg(all(target_os = "linux", not(timerqueue_kqueue)))]
    pub(crate) fn id(self) -> libc::clockid_t {
        self.0
    }

    #[inline]
    pub(crate) fn now(self) -> u64 {
        #[cfg(all(test, timerqueue_loom))]
        if let Some(now) = MODEL_CLOCK.get() {
            return now;
        }
        #[cfg(windows)]
        {
            self.0.now()
        }
        #[cfg(not(windows))]
        {
            let time = crate::sys::os::clock_time(self.0);
            time.tv_sec as u64 * NS_PER_SEC + time.tv_nsec as u64
        }
    }

    /// As [`now`](Self::now), or up to some milliseconds earlier for a fifth of the price: the
    /// instant of the kernel's last tick, where the system keeps this instant for the clock.
    #[inline]
    pub(crate) fn floor(self) -> u64 {
        #[cfg(target_os = "linux")]
        if self == Self::MONOTONIC {
            return Self(libc::CLOCK_MONOTONIC_COARSE).now();
        }
        self.now()
    }

    /// The present moment on the clock of `Instant` and on this clock.
    ///
    /// `Instant` is read first, so `ns` may be ahead of `instant` by the time between two readings,
    /// never behind. So an `Instant` converted into nanoseconds is never early.
    fn moment(self) -> Moment {
        let instant = Instant::now();
        Moment { instant, ns: self.now() }
    }

    /// A moment on both clocks, for conversions; always the same one where both clocks are the
    /// same, so conversions are inverse to each other.
    fn pair(self) -> Moment {
        static SAME: OnceLock<Moment> = OnceLock::new();
        if !(INSTANT_IS_MONOTONIC && self == Self::MONOTONIC) {
            return self.moment();
        }
        // The closest pair of readings of several: a thread may lose its processor in between.
        let closest = || {
            let lead = |moment: &Moment| moment.instant.elapsed();
            (0..16).map(|_| self.moment()).map(|moment| (lead(&moment), moment)).min_by_key(|(lead, _)| *lead)
        };
        *SAME.get_or_init(|| closest().map_or_else(|| self.moment(), |(_, moment)| moment))
    }
}

/// The clock of a shard.
#[derive(Clone)]
pub(crate) enum Clock {
    /// A system clock.
    System(SystemClock),
    /// A clock that moves when the program advances it.
    Manual {
        virtual_time: std::sync::Arc<VirtualTime>,
        /// Whether the clock goes on in suspend.
        boot: bool,
    },
}

impl Clock {
    /// Whether both are the same clock, and show the same instants.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::System(one), Self::System(other)) => one == other,
            (Self::Manual { virtual_time: one, boot }, Self::Manual { virtual_time: other, boot: other_boot }) => {
                std::sync::Arc::ptr_eq(one, other) && boot == other_boot
            }
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual { virtual_time, boot: false } => virtual_time.now(),
            Self::Manual { virtual_time, boot: true } => virtual_time.boot(),
        }
    }

    /// The clock's reading with a shard's lock held; `before` is the reading before the lock was
    /// taken. A system clock has moved a little, and a later sweep is sure to come. A manual clock
    /// may have been advanced and the shard swept meanwhile: no sweep would come for a timer
    /// inserted by the old reading.
    #[inline]
    pub(crate) fn reading_under_lock(&self, before: u64) -> u64 {
        match self {
            Self::System(_) => before,
            Self::Manual { .. } => self.now(),
        }
    }

    /// The wall clock that belongs to this clock.
    pub(crate) fn wall(&self) -> SystemTime {
        match self {
            Self::System(_) => SystemTime::now(),
            Self::Manual { virtual_time, .. } => virtual_time.wall(),
        }
    }

    fn pair(&self) -> Moment {
        match self {
            Self::System(clock) => clock.pair(),
            Self::Manual { virtual_time, boot: false } => virtual_time.origin(),
            // The clock of `Instant` stands still in suspend.
            Self::Manual { virtual_time, boot: true } => {
                Moment { ns: virtual_time.suspended(), ..virtual_time.origin() }
            }
        }
    }

    /// See [`Moment::instant`].
    pub(crate) fn instant(&self, ns: u64) -> Option<Instant> {
        self.pair().instant(ns)
    }

    /// A deadline on this clock: never early, and late by at most the time of some readings.
    pub(crate) fn ns(&self, deadline: Deadline) -> u64 {
        match deadline.0 {
            At::Timestamp(at) => at.as_ns(),
            At::Instant(at) => self.pair().ns(at),
        }
    }

    /// An instant of this clock on the clock that stands still in suspend. A manual clock's driver
    /// counts on the latter.
    pub(crate) fn on_monotonic(&self, at: u64) -> u64 {
        match self {
            // An instant that never comes stays such an instant.
            Self::Manual { virtual_time, boot: true } if at <= LAST => at.saturating_sub(virtual_time.suspended()),
            _ => at,
        }
    }

    /// See [`SystemClock::floor`].
    #[inline]
    pub(crate) fn floor(&self) -> u64 {
        match self {
            Self::System(clock) => clock.floor(),
            Self::Manual { .. } => self.now(),
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::time::{END, NEVER};

    #[test]
    fn instants_of_the_boot_clock_come_sooner_on_the_other_and_never_is_never() {
        let virtual_time = std::sync::Arc::new(VirtualTime::default());
        virtual_time.suspend(100);
        let clock = |boot| Clock::Manual { virtual_time: std::sync::Arc::clone(&virtual_time), boot };
        for (at, monotonic) in [(50, 0), (100, 0), (150, 50), (LAST, LAST - 100), (END, END), (NEVER, NEVER)] {
            assert_eq!(clock(true).on_monotonic(at), monotonic);
            assert_eq!(clock(false).on_monotonic(at), at);
        }
    }

    #[test]
    fn the_floor_is_never_ahead_and_not_far_behind() {
        for clock in [Some(SystemClock::MONOTONIC), SystemClock::BOOT].into_iter().flatten() {
            let (mut nearest, mut last) = (u64::MAX, 0);
            for _ in 0..10_000 {
                let floor = clock.floor();
                let now = clock.now();
                assert!(last <= floor && floor <= now, "{last} <= {floor} <= {now}");
                nearest = nearest.min(now - floor);
                last = floor;
            }
            assert!(nearest < 50_000_000, "{nearest} ns behind at best");
        }
    }
}
