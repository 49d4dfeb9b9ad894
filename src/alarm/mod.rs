//! Alarms: the interface of the runtime to the kernel's timers, and to virtual time.
//!
//! Ground rules. [`Backend`] is the contract; `conformance` is the list of tests that every backend
//! passes. CONTRIBUTING.md has the steps to a new backend. A backend is a file: `timerfd` on Linux,
//! `kqueue` on BSD and macOS, `windows`, [`leader_followers`] on any system. [`SystemAlarms`] is
//! the backend on this system's own timers, picked by `cfg` below; a program may choose
//! `leader_followers` when it starts a runtime ([`open`]). All backends share the clocks
//! ([`clock`]), the check for a fork ([`crate::sys::fork`]) and the note that their calls fail for
//! good ([`loss`]). No backend knows a timer.
//!
//! A manual clock ([`virtual_time`]) has no alarm: each shard enters its deadline in the clock's
//! agenda, and the thread that advances the clock reads the agenda.

pub(crate) mod clock;
#[cfg(all(test, not(timerqueue_loom)))]
mod conformance;
mod leader_followers;
mod loss;
#[cfg_attr(windows, allow(dead_code))] // no descriptors
mod rundown;
mod shared;
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
pub(crate) use shared::{OFTEN_EARLY, PAUSE_NS, SharedAlarm};

/// An event that a backend reports to a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The alarm of this index has expired.
    Alarm(usize),
    /// The pool's stall check has expired.
    StallCheck,
    /// A thread has called `wake`.
    Wake,
    /// The system's wall clock was set (see [`Backend::follow_wall`]).
    // only Linux tells
    #[cfg_attr(not(all(target_os = "linux", not(timerqueue_kqueue))), allow(dead_code))]
    WallSet,
    /// The alarms are lost (see [`Loss`]): from now on each `wait` reports this event and no
    /// further.
    #[cfg_attr(windows, allow(dead_code))] // no descriptors
    Lost,
}

/// A delay so long that it never ends.
pub(crate) const OFF: Duration = Duration::from_nanos(u64::MAX);

/// The alarms of a runtime: `alarms` by index, one for the pool's stall check, and a way to wake a
/// poller.
///
/// The first indices are those of the shards; behind them come those of shared alarms, two per
/// eight shards ([`crate::engine::shared_alarm`]). A backend makes no difference between them.
///
/// Made by `new(clock, alarms)`, which opens all descriptors or none, and returns the failed call's
/// [`io::Error`]. Descriptors are close-on-exec. Any number of threads may call any method at once.
/// Locks of a backend come from [`crate::sync`] and are leaves. Alarms are not disarmed: a stale
/// alarm costs an empty sweep.
///
/// In a forked child `wait` blocks for ever, `follow_wall` returns false, the other methods do
/// nothing, and `Drop` closes nothing ([`crate::sys::fork`]).
pub(crate) trait Backend: Send + Sync {
    /// Sets an alarm to the absolute instant `at` on the clock given to `new`; the latest call
    /// wins. `at` is from 0 to [`LAST`](crate::time::LAST). An instant in the past expires at once;
    /// the engine avoids this because of its cost. The caller holds a lock that serialises the
    /// calls for this alarm: that of its shard, or of the shared alarm.
    fn arm(&self, alarm: usize, at: u64);

    /// Sets the pool's stall check; the latest call wins. `after` is at most [`OFF`], which
    /// disarms. A stall check that expired before this call may still be reported. The caller holds
    /// the lock of the pool's stall check.
    fn arm_stall_check(&self, after: Duration);

    /// Blocks until there are events and reports them. The caller holds no lock. The backend holds
    /// none while it calls `report`, since `report` sweeps and calls [`arm`](Self::arm).
    ///
    /// Each expiry of an alarm and each `wake` is reported to exactly one poller, though several
    /// pending `wake`s may become one. An event stays pending until a `wait` takes the event, even
    /// if no thread is in `wait` now (I8). A call reports at most a few events, so the others stay
    /// for the other pollers; no alarm waits for ever behind others.
    ///
    /// An alarm is not reported before its latest instant on the clock. Exceptions: an alarm that
    /// was armed again after it had expired, and instants beyond the range of the system. `wait`
    /// may return without an event. A sweep trusts the clock alone.
    fn wait(&self, report: &mut dyn FnMut(Event));

    /// Makes one `wait` return with [`Event::Wake`]. The caller holds no lock.
    fn wake(&self);

    /// From now on, each step of the system's wall clock is reported as [`Event::WallSet`], and so
    /// is a suspend. Before the event is reported, the backend is ready for the next step, so no
    /// step after the first `true` goes unreported. False: this backend cannot tell, or not now;
    /// the caller looks at the wall clock from time to time. Any thread may call this at any time;
    /// all calls after the first `true` do nothing.
    fn follow_wall(&self) -> bool {
        false
    }

    /// Alarms come before their instants, again and again: the clock stands behind the clock of the
    /// system's timers. From now on the backend sets its timers to lengths of time, if they follow
    /// instants. The caller holds the lock of a shard or of a shared alarm.
    fn distrust(&self) {}

    /// Closes the descriptors: afterwards the other methods do nothing. No shard sets its alarm any
    /// more, and no thread is in `wait` or enters it; the other methods may be called at the same
    /// time. `Drop` does the same.
    fn release(&self) {}

    /// The number of the system's timers for the alarms, if it limits them: several alarms may
    /// share one.
    fn timers(&self) -> usize {
        0
    }

    /// The record of lost alarms; `None` if the backend has no descriptors. [`Loss::is_noted`] says
    /// whether foreign code has closed some, or the system refuses their calls. Any method may find
    /// a loss. A loss that no call meets is found by the pollers, after some time.
    fn loss_record(&self) -> Option<&Loss> {
        None
    }
}

/// Opens the alarms of a runtime. A pointer, so that a program has the code of the alarms that it
/// asks for.
pub(crate) type Open = fn(SystemClock, usize) -> io::Result<Box<dyn Backend>>;

/// The system's own timers.
pub(crate) fn native(clock: SystemClock, alarms: usize) -> io::Result<Box<dyn Backend>> {
    Ok(Box::new(SystemAlarms::new(clock, alarms)?))
}

/// Timed waits.
pub(crate) fn portable(clock: SystemClock, alarms: usize) -> io::Result<Box<dyn Backend>> {
    Ok(Box::new(LeaderFollowers::new(clock, alarms)?))
}
