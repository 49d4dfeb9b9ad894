//! The kqueue constants of each system: numbers of filters, units of timers, and the effect of a
//! second `EV_ADD`.
//!
//! Ground rules. Pure: tables and arithmetic, no system call, so Linux can test the code of all
//! systems. [`super::sys`] compares the table of its system with the numbers of the libc crate at
//! compile time.

#![cfg_attr(not(test), allow(dead_code))] // a build uses a single table

pub(crate) const EV_ADD: u32 = 0x01;
pub(crate) const EV_DELETE: u32 = 0x02;
pub(crate) const EV_CLEAR: u32 = 0x20;
pub(crate) const NOTE_TRIGGER: u32 = 0x0100_0000;

/// Longer waits are cut into pieces: every system accepts a day.
pub(crate) const LONGEST_NS: u64 = 24 * 60 * 60 * 1_000_000_000;
/// Shorter waits gain no precision, and a timer repeats, so a shorter period would cost events: see
/// [`super::Kqueue`].
pub(crate) const SHORTEST_NS: u64 = 2_000;

const NANOSECONDS: u64 = 1;
const MILLISECONDS: u64 = 1_000_000;

/// A change or an event: the common fields of every system's `struct kevent`, without their widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kevent {
    pub(crate) ident: usize,
    pub(crate) filter: i32,
    pub(crate) flags: u32,
    pub(crate) fflags: u32,
    pub(crate) data: i64,
}

/// The constants of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KqueueAbi {
    /// `EVFILT_READ`.
    pub(crate) read: i32,
    /// `EVFILT_TIMER`.
    pub(crate) timer: i32,
    /// `EVFILT_USER`.
    pub(crate) user: i32,
    /// Releases without user events are in use, and are otherwise suitable.
    pub(crate) may_lack_user: bool,
    /// The unit of a timer's `data`, in nanoseconds.
    pub(crate) unit_ns: u64,
    /// The flags that select this unit and exclude the timer from grouping.
    pub(crate) unit: u32,
    /// The largest `data`: if `data` has 32 bits and the unit is a nanosecond, waits are cut into
    /// pieces of two seconds.
    pub(crate) most: i64,
    /// The flag that makes a timer count the time in suspend, where the system has such a flag.
    pub(crate) boot: Option<u32>,
    /// A second `EV_ADD` leaves a pending timer unchanged, so the timer must be deleted first.
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
    /// macOS 10.12 and its kin. `NOTE_NSECONDS | NOTE_CRITICAL`: else the system may delay timers
    /// of a background program without limit. `NOTE_MACH_CONTINUOUS_TIME`.
    pub(crate) const APPLE: Self = Self { user: -10, unit: 0x4 | 0x20, boot: Some(0x80), ..Self::FREEBSD };
    /// OpenBSD 7.0 and later; user events since 7.8. A kernel tick is 10 ms, and only the latest
    /// releases have units finer than a millisecond, so milliseconds lose no precision.
    pub(crate) const OPENBSD: Self = Self { user: -10, may_lack_user: true, ..Self::TICKS };
    /// NetBSD 10 and later. The release before has neither user events (hence is refused) nor
    /// timers with a second setting. Milliseconds as in OpenBSD.
    pub(crate) const NETBSD: Self = Self { read: 0, timer: 6, user: 8, ..Self::TICKS };
    pub(crate) const DRAGONFLY: Self = Self { user: -9, add_keeps: true, ..Self::TICKS };
    /// A userspace kqueue on Linux, for tests. (Its timers do not follow the boot clock, but tests
    /// do not suspend.)
    pub(crate) const USERSPACE: Self = Self { unit: 0x4, boot: Some(0), ..Self::FREEBSD };

    const TICKS: Self = Self { unit_ns: MILLISECONDS, unit: 0, ..Self::FREEBSD };

    /// The change that sets timer `ident` to expire in `ns` nanoseconds, rounded up; a longer time
    /// than the system takes is cut.
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
