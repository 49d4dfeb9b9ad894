//! The system calls of the kqueue backend.
//!
//! Ground rules. No decisions here, and no locks: this file converts widths, and opens and closes
//! descriptors.
//!
//! With `--cfg timerqueue_kqueue` (private, without any promise) this file declares the calls
//! itself and compiles on Linux too, to be linked by hand with a userspace kqueue:
//! docs/PLATFORM.md, "BSD and macOS: kqueue".

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use super::abi::{Kevent, KqueueAbi};
use super::{EVENTS_AT_ONCE, Kqueue, Sys};
use crate::alarm::SystemClock;
use crate::sync::unmodelled::Mutex;

#[cfg(not(timerqueue_kqueue))]
use libc as calls;

#[cfg(timerqueue_kqueue)]
mod calls {
    use libc::{c_int, c_void, timespec};

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct kevent {
        pub(super) ident: usize,
        pub(super) filter: i16,
        pub(super) flags: u16,
        pub(super) fflags: u32,
        pub(super) data: isize,
        pub(super) udata: *mut c_void,
    }

    unsafe extern "C" {
        pub(super) fn kqueue() -> c_int;
        pub(super) fn kevent(
            kqueue: c_int,
            changes: *const kevent,
            nchanges: c_int,
            events: *mut kevent,
            nevents: c_int,
            timeout: *const timespec,
        ) -> c_int;
    }
}

#[cfg(target_os = "freebsd")]
const SYSTEM: KqueueAbi = KqueueAbi::FREEBSD;
#[cfg(target_vendor = "apple")]
const SYSTEM: KqueueAbi = KqueueAbi::APPLE;
#[cfg(target_os = "openbsd")]
const SYSTEM: KqueueAbi = KqueueAbi::OPENBSD;
#[cfg(target_os = "netbsd")]
const SYSTEM: KqueueAbi = KqueueAbi::NETBSD;
#[cfg(target_os = "dragonfly")]
const SYSTEM: KqueueAbi = KqueueAbi::DRAGONFLY;
#[cfg(timerqueue_kqueue)]
const SYSTEM: KqueueAbi = KqueueAbi::USERSPACE;

/// The system's constants, with the limit that follows from the width of its `data`.
const SYSTEM_ABI: KqueueAbi = {
    // SAFETY: `kevent` is plain numbers and a pointer that may be null: all zeroes are a value.
    let data = unsafe { std::mem::zeroed::<calls::kevent>() }.data;
    KqueueAbi { most: if size_of_val(&data) == 4 { i32::MAX as i64 } else { i64::MAX }, ..SYSTEM }
};

// The constants that the tests assume of this system are those of its headers.
#[cfg(not(timerqueue_kqueue))]
const _: () = {
    use super::abi::{EV_ADD, EV_CLEAR, EV_DELETE, NOTE_TRIGGER};
    // Wider than each of these types, so the cast is a conversion everywhere.
    assert!(SYSTEM.timer as i64 == calls::EVFILT_TIMER as i64);
    assert!(SYSTEM.user as i64 == calls::EVFILT_USER as i64);
    assert!(SYSTEM.read as i64 == calls::EVFILT_READ as i64);
    assert!(EV_ADD as u64 == calls::EV_ADD as u64 && EV_DELETE as u64 == calls::EV_DELETE as u64);
    assert!(EV_CLEAR as u64 == calls::EV_CLEAR as u64 && NOTE_TRIGGER == calls::NOTE_TRIGGER);
    #[cfg(target_os = "freebsd")]
    assert!(SYSTEM.unit == calls::NOTE_NSECONDS);
    #[cfg(target_vendor = "apple")]
    assert!(SYSTEM.unit == calls::NOTE_NSECONDS | calls::NOTE_CRITICAL);
};

/// A kqueue of the system.
pub(crate) struct Kernel {
    clock: SystemClock,
    /// The number of the kqueue.
    kqueue: RawFd,
    /// The kqueue, and perhaps the reading end of a pipe whose writing end is closed.
    owned: Mutex<Vec<OwnedFd>>,
}

impl Kqueue<Kernel> {
    pub(crate) fn new(clock: SystemClock, alarms: usize) -> io::Result<Self> {
        Self::open(Kernel::new(clock)?, SYSTEM_ABI, alarms)
    }
}

/// Owns a descriptor returned by a call, and sets close-on-exec.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for the caller, so it has no further
    // owner.
    let fd = unsafe { OwnedFd::from_raw_fd(result) };
    // A forked child does not inherit a kqueue, but a program started in place of this process
    // does. SAFETY: an open descriptor, no pointers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

impl Kernel {
    fn new(clock: SystemClock) -> io::Result<Self> {
        // SAFETY: no arguments.
        let kqueue = owned(unsafe { calls::kqueue() })?;
        Ok(Self { clock, kqueue: kqueue.as_raw_fd(), owned: Mutex::new(vec![kqueue]) })
    }
}

impl Sys for Kernel {
    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn is_boot(&self) -> bool {
        self.clock != SystemClock::MONOTONIC
    }

    fn change(&self, change: &Kevent) -> io::Result<()> {
        // SAFETY: `kevent` is plain numbers and a pointer that may be null: all zeroes are a value.
        let mut raw = unsafe { std::mem::zeroed::<calls::kevent>() };
        raw.ident = change.ident;
        raw.filter = change.filter as _;
        raw.flags = change.flags as _;
        raw.fflags = change.fflags as _;
        raw.data = change.data as _;
        // SAFETY: `raw` lives through the call as its only change; no room for events is given, so
        // the call does not wait.
        let result = unsafe { calls::kevent(self.kqueue, &raw, 1, ptr::null_mut(), 0, ptr::null()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wait(&self, events: &mut [Kevent; EVENTS_AT_ONCE]) -> io::Result<usize> {
        let mut raw = [const { MaybeUninit::<calls::kevent>::uninit() }; EVENTS_AT_ONCE];
        // SAFETY: no changes, and `raw` has room for the requested number of events.
        let n = unsafe {
            calls::kevent(self.kqueue, ptr::null(), 0, raw.as_mut_ptr().cast(), EVENTS_AT_ONCE as _, ptr::null())
        };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        for (event, raw) in events.iter_mut().zip(&raw[..n]) {
            // SAFETY: `kevent` returned `n`, so the kernel has filled in the first `n`.
            let raw = unsafe { raw.assume_init_ref() };
            *event = Kevent {
                ident: raw.ident,
                filter: raw.filter as _,
                flags: raw.flags as _,
                fflags: raw.fflags as _,
                data: raw.data as _,
            };
        }
        Ok(n)
    }

    fn ready_descriptor(&mut self) -> io::Result<usize> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        if unsafe { libc::pipe(ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let [reading, writing] = ends.map(owned);
        drop(writing); // a pipe at its end of file is always readable
        let reading = reading?;
        let number = reading.as_raw_fd() as usize;
        self.owned.lock().push(reading);
        Ok(number)
    }

    fn give_up(&self, close: bool) {
        let owned = std::mem::take(&mut *self.owned.lock());
        if !close {
            owned.into_iter().for_each(std::mem::forget);
        }
    }
}

/// The conformance tests, on a system with kqueue.
#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::alarm::conformance::{Rig, conformance};

    struct Real(Kqueue<Kernel>);

    impl Rig for Real {
        type Backend = Kqueue<Kernel>;

        fn new(queues: usize) -> Self {
            Self(Kqueue::new(SystemClock::MONOTONIC, queues).expect("the system has a kqueue"))
        }

        fn alarms(&self) -> &Kqueue<Kernel> {
            &self.0
        }

        fn now(&self) -> u64 {
            SystemClock::MONOTONIC.now()
        }

        fn pass(&self, time: Duration) {
            std::thread::sleep(time);
        }
    }

    conformance!(Real);
}
