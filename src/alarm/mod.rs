//! Alarms: where the runtime meets the kernel's timers, or a manual clock.
//!
//! Ground rules. [`Backend`] is the contract, and [`contract`] the list of tests that every backend passes. A backend is a
//! file: [`timerfd`] on Linux, `kqueue` on BSD and macOS, `windows`, [`portable`] anywhere. [`SystemAlarms`] is the one on this system's own timers; one ladder of
//! `cfg` picks it. What the backends share: the clocks ([`clock`]), what to do after a fork ([`fork`]), and
//! when other code has closed their descriptors ([`loss`]).
//!
//! A manual clock ([`manual`]) has no alarm; whoever moves its hands looks at the queues' deadlines. Virtual time plugs in
//! here and nowhere else.

pub(crate) mod clock;
#[cfg(all(test, not(timerqueue_loom)))]
mod conformance;
mod leader_followers;
mod loss;
pub(crate) mod virtual_time;

// What is neither Linux nor Windows has kqueues, or is turned away at the end of the ladder.
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

/// Something that a watching thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The alarm of this queue has expired.
    Queue(usize),
    /// The pool's own alarm has expired.
    StallCheck,
    /// Somebody called `wake`.
    Wake,
    /// The system's wall clock was set (see [`Backend::follow_wall`]).
    #[cfg_attr(not(all(target_os = "linux", not(timerqueue_kqueue))), allow(dead_code))] // only Linux tells
    WallSet,
    /// The descriptors that the alarms stand on are gone: there are no further events but this one, again and again.
    #[cfg_attr(windows, allow(dead_code))] // no descriptors
    Lost,
}

/// So far ahead that it never comes.
pub(crate) const OFF: Duration = Duration::from_nanos(u64::MAX);

/// The alarms of one runtime: one per queue, one for the pool, and a way to wake a thread that waits for them.
///
/// Made by `new(clock, queues)`, which opens everything or nothing, and says in an [`io::Error`] what could not be had.
/// Queues do not disarm theirs: a stale alarm costs one empty sweep.
///
/// In a process forked from the one that made them nothing has any effect ([`fork`]).
pub(crate) trait Backend {
    /// Sets the one alarm of that queue to the absolute instant `at` on the clock given to `new`; the latest call wins.
    /// Calls for one queue are serialised by its lock. An instant that has passed expires at once; the caller avoids that
    /// since it is dear.
    fn arm(&self, queue: usize, at: u64);

    /// Sets the pool's own alarm; the latest call wins. [`OFF`] calls it off, though it may have been reported by then.
    fn arm_stall_check(&self, after: Duration);

    /// Blocks until something has happened and reports it, with no lock held. Each expiry of an alarm and each `wake` is
    /// reported to exactly one of the threads that watch; none is lost when nobody watches at that moment, though
    /// `wake`s that nobody has taken up yet may become one. No alarm is reported before its instant on the clock. It may
    /// return with nothing, or with an alarm that has been armed again meanwhile: whoever sweeps trusts the clock alone.
    fn wait(&self, report: impl FnMut(Event));

    /// Makes one `wait` return with [`Event::Wake`].
    fn wake(&self);

    /// From now on, each step of the system's wall clock is reported as [`Event::WallSet`]; a suspend is one too. False:
    /// this backend cannot tell, or not now; the caller looks at the wall clock from time to time. Any thread may call this at
    /// any time; all calls after the first that said yes do nothing.
    fn follow_wall(&self) -> bool {
        false
    }

    /// Whether other code has closed the descriptors that the alarms stand on, where there are any. Each call may find that
    /// out. A loss that no call meets is found by the threads that watch, after some time.
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
