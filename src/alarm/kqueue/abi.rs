//! What the systems call things: the numbers of filters, the units of timers, and what a second `EV_ADD` does.
//!
//! Ground rules. Pure: tables and arithmetic, no system call, so that Linux can test what other systems run. [`super::sys`]
//! compares the table of its system with the numbers of the libc crate when it is compiled.

#![cfg_attr(not(test), allow(dead_code))] // a build speaks one of the dialects

pub(crate) const EV_ADD: u32 = 0x01;
pub(crate) const EV_DELETE: u32 = 0x02;
pub(crate) const EV_CLEAR: u32 = 0x20;
pub(crate) const NOTE_TRIGGER: u32 = 0x0100_0000;

/// Longer waits are cut into pieces: no system has trouble with a day.
pub(crate) const LONGEST_NS: u64 = 24 * 60 * 60 * 1_000_000_000;
/// Shorter waits are not worth it, and a timer repeats: see [`super::Kqueue`].
pub(crate) const SHORTEST_NS: u64 = 2_000;

const NANOSECONDS: u64 = 1;
const MILLISECONDS: u64 = 1_000_000;

/// A change or an event: the fields of `struct kevent` that all systems have, without their widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kevent {
    pub(crate) ident: usize,
    pub(crate) filter: i32,
    pub(crate) flags: u32,
    pub(crate) fflags: u32,
    pub(crate) data: i64,
}

/// What a system calls things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KqueueAbi {
    /// `EVFILT_READ`.
    pub(crate) read: i32,
    /// `EVFILT_TIMER`.
    pub(crate) timer: i32,
    /// `EVFILT_USER`.
    pub(crate) user: i32,
    /// Releases without user events are in use, and fit otherwise.
    pub(crate) may_lack_user: bool,
    /// The unit of a timer's `data`, in nanoseconds.
    pub(crate) unit_ns: u64,
    /// What says so, and that the timer is not to be grouped with others.
    pub(crate) unit: u32,
    /// The largest `data`: where that is as wide as a pointer of 32 bits, waits are cut into pieces of two seconds.
    pub(crate) most: i64,
    /// What has a timer count the time that the system is suspended, where that can be had.
    pub(crate) boot: Option<u32>,
    /// A second `EV_ADD` leaves a pending timer as it is, so it has to be deleted first.
    pub(crate) add_keeps: bool,
}

impl KqueueAbi {
    /// FreeBSD 12 and later. `NOTE_NSECONDS`.
    pub(crate) const FREEBSD: Self = Self {
        read: -1,
        timer: -7,
        user: -11,
        may_lack_user: false,
        unit_ns: NANOSECONDS,
        unit: 0x8,
        most: i64::MAX,
        boot: None,
        add_keeps: false,
    };
    /// macOS 10.12 and its kin. `NOTE_NSECONDS | NOTE_CRITICAL`: else timers of a background program are late by as much as
    /// the system likes. `NOTE_MACH_CONTINUOUS_TIME`.
    pub(crate) const APPLE: Self = Self { user: -10, unit: 0x4 | 0x20, boot: Some(0x80), ..Self::FREEBSD };
    /// OpenBSD 7.0 and later; user events since 7.8. A kernel tick is 10 ms, and only the latest releases have units finer
    /// than a millisecond, so nothing is lost by milliseconds.
    pub(crate) const OPENBSD: Self = Self { user: -10, may_lack_user: true, ..Self::TICKS };
    /// NetBSD 10 and later. The release before has neither user events (so it is refused) nor timers that can be set again.
    /// Milliseconds as in OpenBSD.
    pub(crate) const NETBSD: Self = Self { read: 0, timer: 6, user: 8, ..Self::TICKS };
    pub(crate) const DRAGONFLY: Self = Self { user: -9, add_keeps: true, ..Self::TICKS };
    /// A userspace kqueue on Linux, for tests. (Its timers do not follow the boot clock, but tests do not suspend.)
    pub(crate) const USERSPACE: Self = Self { unit: 0x4, boot: Some(0), ..Self::FREEBSD };

    const TICKS: Self = Self { unit_ns: MILLISECONDS, unit: 0, ..Self::FREEBSD };

    /// The change that sets timer `ident` to expire in `ns` nanoseconds; in some that are fewer when that is
    /// too far away, and never in fewer otherwise.
    pub(crate) fn set_timer(&self, ident: usize, ns: u64, boot: bool) -> Kevent {
        let boot = if boot { self.boot.unwrap_or(0) } else { 0 };
        let units = ns.clamp(SHORTEST_NS, LONGEST_NS).div_ceil(self.unit_ns) as i64;
        Kevent {
            ident,
            filter: self.timer,
            flags: EV_ADD | EV_CLEAR,
            fflags: self.unit | boot,
            data: units.min(self.most),
        }
    }
}
