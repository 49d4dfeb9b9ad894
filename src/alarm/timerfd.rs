//! Linux: one timerfd per queue, all in one epoll set, edge-triggered and never read.
//!
//! Why not read: an expired timerfd that is armed again reports the next expiry as a new edge, so reading the expiry
//! count would be one more system call per firing for a number nobody needs. Why one set: any thread can wait for all
//! alarms, and the kernel hands each edge to exactly one of the waiters.
//!
//! One more timer may be there, on the wall clock, set to the end of time and cancelled by the kernel whenever somebody
//! sets that clock, and after a suspend: a cancelled timer is ready to be read, and so an edge. It is set again before the edge is
//! reported, so a step that the reader of the report does not see yet makes another edge. Setting takes back the edge and the
//! cancellation in one, where reading would take one more call.
//!
//! All descriptors are close-on-exec. Instants are absolute, on the clock of the runtime.

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use super::fork::Origin;
use super::{Alarms, Event, SystemClock};

const WAKE: u64 = u64::MAX;
const PROBE: u64 = u64::MAX - 1;
const WALL: u64 = u64::MAX - 2;
/// What one `watch` takes at most. Small, so that alarms that expire together spread over the waiting threads.
const EVENTS_AT_ONCE: usize = 4;
const NS_PER_SEC: u64 = 1_000_000_000;

/// 32 or 64 bits. The name is deprecated on musl, since it is going to be 64 everywhere.
#[allow(deprecated)]
type Seconds = libc::time_t;

/// The alarms of one runtime.
pub(crate) struct TimerFd {
    epoll: OwnedFd,
    wake: OwnedFd,
    probe: OwnedFd,
    timers: Box<[OwnedFd]>,
    /// Expires when the wall clock is set. Opened when first asked for.
    wall: OnceLock<OwnedFd>,
    origin: Origin,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: a descriptor that the kernel has just made for us; nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn timerfd(clock: libc::clockid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

impl TimerFd {
    pub(crate) fn new(clock: SystemClock, queues: usize) -> io::Result<Self> {
        let origin = Origin::here()?;
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let probe = timerfd(clock.id())?;
        let timers = (0..queues).map(|_| timerfd(clock.id())).collect::<io::Result<Box<[_]>>>()?;
        let alarms = Self { epoll, wake, probe, timers, wall: OnceLock::new(), origin };
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

    fn set(&self, fd: &OwnedFd, flags: libc::c_int, ns: u64) {
        if !self.origin.is_here() {
            return;
        }
        // What 32 bits of seconds cannot hold expires early, is swept in vain, and is set again.
        let seconds = Seconds::try_from(ns / NS_PER_SEC).unwrap_or(Seconds::MAX);
        let at = libc::timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_SEC) as _ };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: an open timerfd and a structure that lives through the call. It cannot fail: the descriptor is ours,
        // the nanoseconds are below a second, and the kernel caps seconds beyond its range.
        let result = unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &spec, std::ptr::null_mut()) };
        debug_assert_eq!(result, 0, "timerfd_settime of our own descriptor: {}", io::Error::last_os_error());
    }

    /// Sets the timer on the wall clock to the end of time, to be cancelled when that clock is set.
    fn arm_wall(&self, wall: &OwnedFd) -> io::Result<()> {
        if !self.origin.is_here() {
            return Ok(());
        }
        let at = libc::timespec { tv_sec: Seconds::MAX, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
        // SAFETY: an open timerfd and a structure that lives through the call. It says ECANCELED when it takes back a
        // cancellation; the timer is set then all the same.
        match check(unsafe { libc::timerfd_settime(wall.as_raw_fd(), flags, &spec, std::ptr::null_mut()) }) {
            Err(error) if error.raw_os_error() != Some(libc::ECANCELED) => Err(error),
            _ => Ok(()),
        }
    }

    fn open_wall(&self) -> io::Result<OwnedFd> {
        let wall = timerfd(libc::CLOCK_REALTIME)?;
        // Refused by systems that stand in for Linux and know no cancelling.
        self.arm_wall(&wall)?;
        self.add(&wall, WALL)?;
        Ok(wall)
    }
}

impl Alarms for TimerFd {
    fn arm(&self, queue: usize, at: u64) {
        // Zero would disarm.
        self.set(&self.timers[queue], libc::TFD_TIMER_ABSTIME, at.max(1));
    }

    fn arm_probe(&self, after: Duration) {
        self.set(&self.probe, 0, after.as_nanos() as u64);
    }

    fn wake(&self) {
        if !self.origin.is_here() {
            return;
        }
        let one = 1u64;
        // SAFETY: an open eventfd and eight readable bytes. It is never read, and 2^64 - 2 writes would be needed for it
        // to refuse one.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn watch(&self, mut report: impl FnMut(Event)) {
        // A forked child that comes back from a callback has nothing to wait for: the alarms are its parent's.
        if !self.origin.is_here() {
            return std::thread::park();
        }
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
                WALL => {
                    if let Some(wall) = self.wall.get() {
                        let _ = self.arm_wall(wall); // it was not refused before
                    }
                    Event::WallSet
                }
                queue => Event::Queue(queue as usize),
            });
        }
    }

    fn follow_wall(&self) -> bool {
        if self.wall.get().is_none() && self.origin.is_here() {
            if let Ok(wall) = self.open_wall() {
                let _ = self.wall.set(wall);
            }
        }
        self.wall.get().is_some()
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::alarm::contract::Rig;

    struct Real<const CLOCK: libc::clockid_t>(TimerFd, SystemClock);

    impl<const CLOCK: libc::clockid_t> Rig for Real<CLOCK> {
        type Alarms = TimerFd;

        fn new(queues: usize) -> Self {
            let boot = SystemClock::BOOT.filter(|_| CLOCK == libc::CLOCK_BOOTTIME);
            let clock = boot.unwrap_or(SystemClock::MONOTONIC);
            Self(TimerFd::new(clock, queues).expect("the system has timers"), clock)
        }

        fn alarms(&self) -> &TimerFd {
            &self.0
        }

        fn now(&self) -> u64 {
            self.1.now()
        }

        fn pass(&self, time: Duration) {
            std::thread::sleep(time);
        }
    }

    /// A program that this one starts has no use for them.
    #[test]
    fn descriptors_are_closed_where_another_program_is_executed_and_never_block() {
        let alarms = TimerFd::new(SystemClock::MONOTONIC, 2).expect("the system has timers");
        let wall = alarms.open_wall().expect("the system has a wall clock");
        // SAFETY: an open descriptor, and no pointers.
        let has = |fd: &OwnedFd, get, flag| unsafe { libc::fcntl(fd.as_raw_fd(), get) } & flag != 0;
        assert!(has(&alarms.epoll, libc::F_GETFD, libc::FD_CLOEXEC));
        for fd in [&alarms.wake, &alarms.probe, &wall].into_iter().chain(&alarms.timers) {
            assert!(has(fd, libc::F_GETFD, libc::FD_CLOEXEC) && has(fd, libc::F_GETFL, libc::O_NONBLOCK), "{fd:?}");
        }
    }

    /// The set is its parent's too.
    #[test]
    fn a_forked_child_puts_nothing_into_its_set() {
        let alarms = TimerFd::new(SystemClock::MONOTONIC, 1).expect("the system has timers");
        let mut status = 0;
        // SAFETY: the child makes system calls at most, and ends; the status is there through the call.
        unsafe {
            let child = check(libc::fork()).expect("a child");
            if child == 0 {
                libc::_exit(libc::c_int::from(alarms.follow_wall()));
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        assert!(alarms.follow_wall(), "but its parent does");
    }

    mod monotonic {
        crate::alarm::contract::contract!(super::Real<{ libc::CLOCK_MONOTONIC }>);
    }

    mod boot {
        crate::alarm::contract::contract!(super::Real<{ libc::CLOCK_BOOTTIME }>);
    }
}
