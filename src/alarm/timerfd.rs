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
//!
//! # When other code closes our descriptors
//!
//! A program that closes descriptors it does not know (`closefrom`, a number closed twice) closes ours, and what it opens next
//! may have our numbers. So no call here harms a file that is not ours, as far as the kernel can tell, and each failure is a
//! [`Loss`]:
//!
//! - *Waking* is a change of the set's entry for a descriptor that can always be read: an edge each time. (A write to an eventfd
//!   would do, and would write into a file of another kind that has its number.)
//! - *Closing*: an entry of the set is the pair of a number and the file it stood for. A descriptor is closed if the set
//!   gives its entry back, and the set itself if it has given back any.
//! - *Events* carry numbers that no other set has. Another one is the event of a set that is not ours.
//! - *Threads that wait* do not notice that the descriptor of the set is closed; nor do the timers, which are gone then, wake them.
//!   So no wait is longer than the runtime is old (or [`FIRST_LOOK_MS`]), and a wait that has ended without an event
//!   looks after all descriptors. These looks become rare soon: in a day there are seventeen for a thread that waits all the time.
//!
//! Cannot be told: another timerfd that has the number of ours, when an alarm is set; another epoll set that has our set's
//! number, in which another file is registered that has the number of one of ours, when a thread is woken, or a look taken.

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use super::{Backend, Event, Loss, SystemClock};
use crate::sys::fork::ForkGuard;

/// The low bits of an event's number say what has happened; the others are those of the runtime's [`TimerFd::tag`].
const WHAT: u64 = 0xffff;
const WAKE: u64 = WHAT;
const STALL_CHECK: u64 = WHAT - 1;
const WALL: u64 = WHAT - 2;
/// What one `wait` takes at most. Small, so that alarms that expire together spread over the waiting threads.
const EVENTS_AT_ONCE: usize = 4;
const NS_PER_SEC: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// The shortest wait after which a thread looks after the descriptors.
const FIRST_LOOK_MS: u64 = 1_000;
const EDGE: libc::c_int = libc::EPOLLIN | libc::EPOLLET;

/// 32 or 64 bits. The name is deprecated on musl, since it is going to be 64 everywhere.
#[allow(deprecated)]
type Seconds = libc::time_t;

/// One that is closed by [`TimerFd`]'s `Drop`, if it still is what it was.
type Descriptor = ManuallyDrop<OwnedFd>;

/// The alarms of one runtime.
pub(crate) struct TimerFd {
    epoll: Descriptor,
    /// Can always be read.
    wake: Descriptor,
    stall_check: Descriptor,
    timers: Box<[Descriptor]>,
    /// Expires when the wall clock is set. Opened when first asked for.
    wall: OnceLock<Descriptor>,
    /// Tells our events from those of other sets: high bits, which neither small numbers nor addresses have.
    tag: u64,
    clock: SystemClock,
    opened: u64,
    origin: ForkGuard,
    loss: Loss,
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

/// A call on the set's entry for a descriptor; `flags` are what it waits for.
fn control(epoll: &OwnedFd, op: libc::c_int, fd: &OwnedFd, flags: libc::c_int, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: flags as u32, u64: token };
    // SAFETY: numbers, which the kernel checks, and an event that lives through the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), op, fd.as_raw_fd(), &mut event) }).map(drop)
}

impl TimerFd {
    pub(crate) fn new(clock: SystemClock, queues: usize) -> io::Result<Self> {
        let origin = ForkGuard::here()?;
        let stall_check = timerfd(clock.id())?;
        let timers = (0..queues).map(|_| timerfd(clock.id())).collect::<io::Result<Box<[_]>>>()?;
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // Last, so that its number is none of the first that are given to others when all have been closed.
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let opened = clock.now();
        let tag = !(opened << WHAT.count_ones()) & !WHAT;
        // For nothing yet: it can be read already.
        control(&epoll, libc::EPOLL_CTL_ADD, &wake, 0, tag | WAKE)?;
        control(&epoll, libc::EPOLL_CTL_ADD, &stall_check, EDGE, tag | STALL_CHECK)?;
        for (i, timer) in timers.iter().enumerate() {
            control(&epoll, libc::EPOLL_CTL_ADD, timer, EDGE, tag | i as u64)?;
        }
        Ok(Self {
            epoll: Descriptor::new(epoll),
            wake: Descriptor::new(wake),
            stall_check: Descriptor::new(stall_check),
            timers: timers.into_iter().map(Descriptor::new).collect(),
            wall: OnceLock::new(),
            tag,
            clock,
            opened,
            origin,
            loss: Loss::default(),
        })
    }

    fn set(&self, fd: &OwnedFd, flags: libc::c_int, ns: u64) {
        if !self.origin.is_here() || self.loss.is_noted() {
            return;
        }
        // What 32 bits of seconds cannot hold expires early, is swept in vain, and is set again.
        let seconds = Seconds::try_from(ns / NS_PER_SEC).unwrap_or(Seconds::MAX);
        let at = libc::timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_SEC) as _ };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: a number, which the kernel checks, and a structure that lives through the call. A timerfd takes it: the
        // nanoseconds are below a second, and the kernel caps seconds beyond its range.
        let result = unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &spec, std::ptr::null_mut()) };
        if let Err(error) = check(result) {
            self.loss.note("timerfd_settime", &error);
        }
    }

    /// All that stand in the set.
    fn members(&self) -> impl Iterator<Item = &Descriptor> {
        [&self.wake, &self.stall_check].into_iter().chain(&self.timers).chain(self.wall.get())
    }

    /// Waits for events; how many have been filled in. `None`: lost.
    fn wait(&self, events: &mut [MaybeUninit<libc::epoll_event>; EVENTS_AT_ONCE]) -> Option<usize> {
        loop {
            if self.loss.is_noted() {
                return None;
            }
            let age_ms = self.clock.floor().saturating_sub(self.opened) / NS_PER_MS;
            let limit = libc::c_int::try_from(age_ms.max(FIRST_LOOK_MS)).unwrap_or(libc::c_int::MAX);
            let (set, buffer, room) =
                (self.epoll.as_raw_fd(), events.as_mut_ptr().cast(), EVENTS_AT_ONCE as libc::c_int);
            // SAFETY: a number, which the kernel checks, and a buffer with room for the number of events given.
            match check(self.loss.waiting(|| unsafe { libc::epoll_wait(set, buffer, room, limit) })) {
                Ok(0) => self.look(),
                Ok(n) => return Some(n as usize),
                // A signal is a return with nothing.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(0),
                Err(error) => self.loss.note_cut_off("epoll_wait", &error),
            }
        }
    }

    /// Looks whether all descriptors are there still.
    #[cold]
    fn look(&self) {
        if self.loss.is_noted() {
            return;
        }
        for fd in self.members() {
            // What is there already cannot be added, which changes nothing.
            let error = match control(&self.epoll, libc::EPOLL_CTL_ADD, fd, 0, self.tag | WAKE) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
                Err(error) => error,
                Ok(()) => {
                    let _ = control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
                    io::Error::other("another file has the number of a descriptor")
                }
            };
            if std::ptr::eq(fd, &self.wake) {
                return self.loss.note_cut_off("epoll_ctl", &error);
            }
            return self.loss.note("epoll_ctl", &error);
        }
    }

    /// Sets the timer on the wall clock to the end of time, to be cancelled when that clock is set.
    fn arm_wall(&self, wall: &OwnedFd) -> io::Result<()> {
        if !self.origin.is_here() {
            return Ok(());
        }
        let at = libc::timespec { tv_sec: Seconds::MAX, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
        // SAFETY: a number, which the kernel checks, and a structure that lives through the call. It says ECANCELED when it
        // takes back a cancellation; the timer is set then all the same.
        match check(unsafe { libc::timerfd_settime(wall.as_raw_fd(), flags, &spec, std::ptr::null_mut()) }) {
            Err(error) if error.raw_os_error() != Some(libc::ECANCELED) => Err(error),
            _ => Ok(()),
        }
    }

    fn open_wall(&self) -> io::Result<OwnedFd> {
        let wall = timerfd(libc::CLOCK_REALTIME)?;
        // Refused by systems that stand in for Linux and know no cancelling.
        self.arm_wall(&wall)?;
        control(&self.epoll, libc::EPOLL_CTL_ADD, &wall, EDGE, self.tag | WALL)?;
        Ok(wall)
    }
}

impl Backend for TimerFd {
    fn arm(&self, queue: usize, at: u64) {
        // Zero would disarm.
        self.set(&self.timers[queue], libc::TFD_TIMER_ABSTIME, at.max(1));
    }

    fn arm_stall_check(&self, after: Duration) {
        self.set(&self.stall_check, 0, after.as_nanos() as u64);
    }

    fn wake(&self) {
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        if let Err(error) = control(&self.epoll, libc::EPOLL_CTL_MOD, &self.wake, EDGE, self.tag | WAKE) {
            self.loss.note_cut_off("epoll_ctl", &error);
        }
    }

    fn wait(&self, mut report: impl FnMut(Event)) {
        // A forked child that comes back from a callback has nothing to wait for: the alarms are its parent's.
        if !self.origin.is_here() {
            return std::thread::park();
        }
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; EVENTS_AT_ONCE];
        let Some(n) = self.wait(&mut events) else { return report(Event::Lost) };
        for event in &events[..n] {
            // SAFETY: the kernel has filled in the first `n`.
            let token = unsafe { event.assume_init_ref().u64 };
            if token & !WHAT != self.tag {
                let error = io::Error::other("the event of another set");
                self.loss.note_cut_off("epoll_wait", &error);
                return report(Event::Lost);
            }
            report(match token & WHAT {
                WAKE => Event::Wake,
                STALL_CHECK => Event::StallCheck,
                WALL => {
                    if let Some(Err(error)) = self.wall.get().map(|wall| self.arm_wall(wall)) {
                        self.loss.note("timerfd_settime", &error); // it was not refused before
                    }
                    Event::WallSet
                }
                queue => Event::Queue(queue as usize),
            });
        }
    }

    fn loss(&self) -> Option<&Loss> {
        Some(&self.loss)
    }

    fn follow_wall(&self) -> bool {
        if self.wall.get().is_none() && self.origin.is_here() && !self.loss.is_noted() {
            if let Ok(wall) = self.open_wall() {
                if let Err(second) = self.wall.set(Descriptor::new(wall)) {
                    // Of two threads that open one at a time, the second closes its own, which leaves the set with that.
                    drop(ManuallyDrop::into_inner(second));
                }
            }
        }
        self.wall.get().is_some()
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        // A child has inherited the set too: to take entries out would take them from its parent. It leaves all open.
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        let mut is_ours = false;
        let wall = self.wall.get_mut();
        for fd in [&mut self.wake, &mut self.stall_check].into_iter().chain(&mut self.timers).chain(wall) {
            if control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
                is_ours = true;
                // SAFETY: dropped here and nowhere else, and not used again.
                unsafe { ManuallyDrop::drop(fd) };
            }
        }
        if is_ours {
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.epoll) };
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::alarm::conformance::Rig;

    struct Real<const CLOCK: libc::clockid_t>(TimerFd, SystemClock);

    impl<const CLOCK: libc::clockid_t> Rig for Real<CLOCK> {
        type Backend = TimerFd;

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
        for fd in alarms.members().map(|fd| &**fd).chain([&wall]) {
            assert!(has(fd, libc::F_GETFD, libc::FD_CLOEXEC) && has(fd, libc::F_GETFL, libc::O_NONBLOCK), "{fd:?}");
        }
    }

    /// The set is its parent's too.
    #[test]
    fn a_forked_child_puts_nothing_into_its_set_and_takes_nothing_out() {
        let alarms = TimerFd::new(SystemClock::MONOTONIC, 1).expect("the system has timers");
        let mut status = 0;
        // SAFETY: the child makes system calls at most, and ends; the status is there through the call.
        unsafe {
            let child = check(libc::fork()).expect("a child");
            if child == 0 {
                let (follows, epoll) = (alarms.follow_wall(), alarms.epoll.as_raw_fd());
                drop(alarms);
                let closed = libc::fcntl(epoll, libc::F_GETFD) < 0;
                libc::_exit(libc::c_int::from(follows || closed));
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        assert!(alarms.follow_wall(), "but its parent does");
        alarms.look();
        assert!(!alarms.loss.is_noted(), "{}", alarms.loss.message());
    }

    mod monotonic {
        crate::alarm::conformance::contract!(super::Real<{ libc::CLOCK_MONOTONIC }>);
    }

    mod boot {
        crate::alarm::conformance::contract!(super::Real<{ libc::CLOCK_BOOTTIME }>);
    }
}
