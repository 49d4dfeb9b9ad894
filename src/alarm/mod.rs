//! Alarms: the interface of the runtime to the kernel's timers, and to virtual time.
//!
//! Ground rules. [`Backend`] is the contract; `conformance` is the list of tests that every backend passes. A backend is a file:
//! `timerfd` on Linux, `kqueue` on BSD and macOS, `windows`, [`leader_followers`] on any system. [`SystemAlarms`] is the backend
//! on this system's own timers; a single ladder of `cfg` picks it. All backends share the clocks ([`clock`]), the check for a
//! fork ([`crate::sys::fork`]) and the note that foreign code has closed their descriptors ([`loss`]). No backend knows a timer.
//!
//! A manual clock ([`virtual_time`]) has no alarm: the thread that advances the clock asks the shards for their deadlines.

pub(crate) mod clock;
#[cfg(all(test, not(timerqueue_loom)))]
mod conformance;
mod leader_followers;
mod loss;
pub(crate) mod virtual_time;

// A system except Linux and Windows has kqueues, or is refused at the end of the ladder.
#[cfg(any(timerqueue_kqueue, not(any(target_os = "linux", windows)), all(test, unix, not(timerqueue_loom)),))]
mod kqueue;
#[cfg(any(timerqueue_kqueue, not(any(target_os = "linux", windows))))]
pub(crate) type SystemAlarms = kqueue::Kqueue<kqueue::sys::Kernel>;

#[cfg(all(target_os = "linux", not(timerqueue_kqueue)))]
mod timerfd;
#[cfg(all(target_os = "linux", not(timerqueue_kqueue)))]
pub(crate) use timerfd::TimerFd as SystemAlarms;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
pub(crate) use windows::WaitableTimer as SystemAlarms;

#[cfg(not(any(
    target_os = "linux",
    target_vendor = "apple",
    target_os = "freebsd",
    target_os = "openbsd",
    target_os = "netbsd",
    target_os = "dragonfly",
    windows,
)))]
compile_error!(
    "timerqueue has no alarm for this system: it needs timerfd and epoll (Linux), kqueue (BSD, macOS), or waitable timers (Windows)"
);

use std::io;
use std::time::Duration;

pub(crate) use clock::{Clock, SystemClock};
use leader_followers::LeaderFollowers;
pub(crate) use loss::Loss;

/// An event that a backend reports to a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The alarm of this shard has expired.
    Queue(usize),
    /// The pool's stall check has expired.
    StallCheck,
    /// A thread has called `wake`.
    Wake,
    /// The system's wall clock was set (see [`Backend::follow_wall`]).
    #[cfg_attr(not(all(target_os = "linux", not(timerqueue_kqueue))), allow(dead_code))] // only Linux tells
    WallSet,
    /// The descriptors of the alarms are lost: from now on each `wait` reports this event and no further.
    #[cfg_attr(windows, allow(dead_code))] // no descriptors
    Lost,
}

/// A delay so long that it never ends.
pub(crate) const OFF: Duration = Duration::from_nanos(u64::MAX);

/// The alarms of a runtime: one per shard, one for the pool's stall check, and a way to wake a poller.
///
/// Made by `new(clock, queues)`, which opens all descriptors or none, and returns the failed call's [`io::Error`].
/// Shards do not disarm their alarms: a stale alarm costs an empty sweep.
///
/// In a forked child no call has any effect ([`crate::sys::fork`]).
pub(crate) trait Backend {
    /// Sets the alarm of shard `queue` to the absolute instant `at` on the clock given to `new`; the latest call wins.
    /// Calls for the same shard are serialised by its lock. An instant in the past expires at once; the caller avoids this
    /// because of its cost.
    fn arm(&self, queue: usize, at: u64);

    /// Sets the pool's stall check; the latest call wins. [`OFF`] disarms, though the alarm may have been reported by then.
    fn arm_stall_check(&self, after: Duration);

    /// Blocks until there are events and reports them, with no lock held. Each expiry of an alarm and each `wake` is reported
    /// to exactly one poller. No event is lost while no thread polls (I8), though several pending `wake`s may become one.
    /// No alarm is reported before its instant on the clock. `wait` may return without an event, or with an alarm that has been
    /// armed again meanwhile: a sweep trusts the clock alone.
    fn wait(&self, report: impl FnMut(Event));

    /// Makes one `wait` return with [`Event::Wake`].
    fn wake(&self);

    /// From now on, each step of the system's wall clock is reported as [`Event::WallSet`], and so is a suspend. False: this
    /// backend cannot tell, or not now; the caller looks at the wall clock from time to time. Any thread may call this at
    /// any time; all calls after the first `true` do nothing.
    fn follow_wall(&self) -> bool {
        false
    }

    /// Whether foreign code has closed the descriptors of the alarms, where there are any. Each call may detect this.
    /// A loss that no call meets is detected by the pollers, after some time.
    fn loss(&self) -> Option<&Loss> {
        None
    }
}

/// The alarms that a runtime uses.
#[allow(clippy::large_enum_variant)] // one for each runtime
pub(crate) enum AlarmSet {
    /// The system's own timers.
    System(SystemAlarms),
    /// Timed waits.
    LeaderFollowers(LeaderFollowers),
}

impl AlarmSet {
    /// The system's own timers.
    pub(crate) fn system(clock: SystemClock, queues: usize) -> io::Result<Self> {
        SystemAlarms::new(clock, queues).map(Self::System)
    }

    /// Timed waits, where the system's own timers are refused.
    pub(crate) fn portable(clock: SystemClock, queues: usize) -> io::Result<Self> {
        LeaderFollowers::new(clock, queues).map(Self::LeaderFollowers)
    }
}

impl Backend for AlarmSet {
    fn arm(&self, queue: usize, at: u64) {
        match self {
            Self::System(alarms) => alarms.arm(queue, at),
            Self::LeaderFollowers(alarms) => alarms.arm(queue, at),
        }
    }

    fn arm_stall_check(&self, after: Duration) {
        match self {
            Self::System(alarms) => alarms.arm_stall_check(after),
            Self::LeaderFollowers(alarms) => alarms.arm_stall_check(after),
        }
    }

    fn wait(&self, report: impl FnMut(Event)) {
        match self {
            Self::System(alarms) => alarms.wait(report),
            Self::LeaderFollowers(alarms) => alarms.wait(report),
        }
    }

    fn wake(&self) {
        match self {
            Self::System(alarms) => alarms.wake(),
            Self::LeaderFollowers(alarms) => alarms.wake(),
        }
    }

    fn follow_wall(&self) -> bool {
        match self {
            Self::System(alarms) => alarms.follow_wall(),
            Self::LeaderFollowers(alarms) => alarms.follow_wall(),
        }
    }
    fn loss(&self) -> Option<&Loss> {
        match self {
            Self::System(alarms) => alarms.loss(),
            Self::LeaderFollowers(alarms) => alarms.loss(),
        }
    }
}
