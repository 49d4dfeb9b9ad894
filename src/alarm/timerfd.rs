//! Linux: one timerfd per queue, all in one epoll set, edge-triggered and never read.
//!
//! Why not read: an expired timerfd that is armed again reports the next expiry as a new edge, so reading the expiry
//! count would be one more system call per firing for a number nobody needs. Why one set: any thread can wait for all
//! alarms, and the kernel hands each edge to exactly one of the waiters.
//!
//! All descriptors are close-on-exec. Instants are absolute, on `CLOCK_MONOTONIC`.

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Event;

const WAKE: u64 = u64::MAX;
const PROBE: u64 = u64::MAX - 1;
/// What one `watch` takes at most. Small, so that alarms that expire together spread over the waiting threads.
const EVENTS_AT_ONCE: usize = 4;
const NS_PER_SEC: u64 = 1_000_000_000;

/// The alarms of one runtime.
pub(crate) struct TimerFd {
    epoll: OwnedFd,
    wake: OwnedFd,
    probe: OwnedFd,
    timers: Box<[OwnedFd]>,
    /// `FORKS` when this was made.
    generation: u32,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: a descriptor that the kernel has just made for us; nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn timerfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// Forks between the process that the program began as and this one. A forked child shares the parent's descriptors: setting
/// them would set, or silence, the parent's timers.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

fn forks() -> u32 {
    static HOOK: Once = Once::new();
    // SAFETY: the handler touches one atomic, which is allowed in a forked child.
    HOOK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(count_fork));
    });
    FORKS.load(Ordering::Relaxed)
}

impl TimerFd {
    pub(crate) fn new(queues: usize) -> io::Result<Self> {
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let probe = timerfd()?;
        let timers = (0..queues).map(|_| timerfd()).collect::<io::Result<Box<[_]>>>()?;
        let alarms = Self { epoll, wake, probe, timers, generation: forks() };
        alarms.add(&alarms.wake, WAKE)?;
        alarms.add(&alarms.probe, PROBE)?;
        for (i, timer) in alarms.timers.iter().enumerate() {
            alarms.add(timer, i as u64)?;
        }
        Ok(alarms)
    }

    fn add(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: token };
        // SAFETY: both descriptors are open; the event lives through the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// `CLOCK_MONOTONIC` in nanoseconds.
    #[inline]
    pub(crate) fn now() -> u64 {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the kernel (or its vDSO) fills the structure in; with this clock and a valid pointer it cannot fail.
        let time = unsafe {
            libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
            time.assume_init()
        };
        time.tv_sec as u64 * NS_PER_SEC + time.tv_nsec as u64
    }

    /// Whether this process made the descriptors, and did not inherit them by a fork.
    fn is_ours(&self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.generation
    }

    fn set(&self, fd: &OwnedFd, flags: libc::c_int, ns: u64) {
        if !self.is_ours() {
            return;
        }
        let at = libc::timespec { tv_sec: (ns / NS_PER_SEC) as _, tv_nsec: (ns % NS_PER_SEC) as _ };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: an open timerfd and a structure that lives through the call. It cannot fail: the descriptor is ours,
        // the nanoseconds are below a second, and the kernel caps seconds beyond its range.
        let result = unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &spec, std::ptr::null_mut()) };
        debug_assert_eq!(result, 0, "timerfd_settime of our own descriptor: {}", io::Error::last_os_error());
    }

    pub(crate) fn arm(&self, queue: usize, at: u64) {
        // Zero would disarm.
        self.set(&self.timers[queue], libc::TFD_TIMER_ABSTIME, at.max(1));
    }

    pub(crate) fn arm_probe(&self, after: Duration) {
        self.set(&self.probe, 0, after.as_nanos() as u64);
    }

    pub(crate) fn wake(&self) {
        if !self.is_ours() {
            return;
        }
        let one = 1u64;
        // SAFETY: an open eventfd and eight readable bytes. It is never read, and 2^64 - 2 writes would be needed for it
        // to refuse one.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    pub(crate) fn watch(&self, mut report: impl FnMut(Event)) {
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; EVENTS_AT_ONCE];
        // SAFETY: the buffer has room for the number of events given.
        let n = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr().cast(), EVENTS_AT_ONCE as libc::c_int, -1)
        };
        // A signal (EINTR) is a return with nothing; nothing else can fail here.
        for event in &events[..usize::try_from(n).unwrap_or(0)] {
            // SAFETY: the kernel has filled in the first `n`.
            let token = unsafe { event.assume_init_ref().u64 };
            report(match token {
                WAKE => Event::Wake,
                PROBE => Event::Probe,
                queue => Event::Queue(queue as usize),
            });
        }
    }
}
