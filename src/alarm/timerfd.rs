//! The Linux backend: a timerfd per shard, all in a single epoll set, edge-triggered and never read.
//!
//! Ground rules. Callers hold the lock of the shard in `arm`, and no lock in `wait`; this file takes no lock. Instants are
//! absolute, on the clock of the runtime. All descriptors are close-on-exec.
//!
//! Why no reads: an expired timerfd that is armed again reports the next expiry as a new edge. Reading the expiry count
//! would be a further system call per firing, for an unused number. Why a single set: any thread can wait for all alarms, and
//! the kernel reports each edge to exactly one of the waiting threads.
//!
//! A further timer may be there, on the wall clock, set to the end of time. The kernel cancels this timer at each step of the
//! wall clock, and after a suspend: a cancelled timer is readable, hence an edge. The timer is set again before the edge is
//! reported, so a step that the reader of the report does not see yet makes a new edge. A single call to set the timer resets
//! both the edge and the cancellation; a read would be a further call.
//!
//! # When foreign code closes these descriptors
//!
//! A program that closes unknown descriptors (`closefrom`, a number closed twice) closes the backend's too, and files opened next
//! may get their numbers. So no call here harms a foreign file, as far as the kernel can tell, and each failure is a [`Loss`]:
//!
//! - *Waking* changes the set's registration of a descriptor that is always readable: an edge each time. (A write to an eventfd
//!   would also wake, but could write into a foreign file with the same number.)
//! - *Closing*: a registration in the set is the pair of a number and its file. A descriptor is closed only if the set
//!   releases its registration, and the set itself only if it has released any.
//! - *Events* carry a tag that no foreign set has. An event without this tag comes from a foreign set.
//! - *Blocked threads* do not notice that the set's descriptor is closed, and closed timers do not wake them.
//!   So no wait is longer than the age of the runtime (or [`FIRST_LOOK_MS`]), and a wait that ends without an event
//!   checks all descriptors. These checks soon become rare: seventeen in a day for a thread that waits all the time.
//!
//! Two cases cannot be detected. When an alarm is set: a foreign timerfd with the number of ours. When a thread is woken or the
//! descriptors are checked: a foreign epoll set with our set's number that holds a foreign file with the number of ours.

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::{Backend, Event, Loss, SystemClock};
use crate::sync::unmodelled::OnceLock;
use crate::sys::fork::ForkGuard;

/// The low bits of the epoll data ([`EVENT_MASK`]) name the event; the high bits are the runtime's [`TimerFd::tag`].
const EVENT_MASK: u64 = 0xffff;
const WAKE: u64 = EVENT_MASK;
const STALL_CHECK: u64 = EVENT_MASK - 1;
const WALL: u64 = EVENT_MASK - 2;
/// Events that one `wait` takes at most. Small, so alarms that expire together spread over the waiting threads.
const EVENTS_AT_ONCE: usize = 4;
const NS_PER_SEC: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// The shortest wait after which a thread checks the descriptors.
const FIRST_LOOK_MS: u64 = 1_000;
const EDGE: libc::c_int = libc::EPOLLIN | libc::EPOLLET;

/// 32 or 64 bits. The name is deprecated on musl, where the type is going to be 64 bits wide everywhere.
#[allow(deprecated)]
type Seconds = libc::time_t;

/// A descriptor that [`TimerFd`]'s `Drop` closes, if the number still belongs to the same file.
type Descriptor = ManuallyDrop<OwnedFd>;

/// The alarms of a runtime.
pub(crate) struct TimerFd {
    epoll: Descriptor,
    /// Always readable.
    wake: Descriptor,
    stall_check: Descriptor,
    timers: Box<[Descriptor]>,
    /// Expires when the wall clock is set. Opened by the first `follow_wall`.
    wall: OnceLock<Descriptor>,
    /// Marks the events of this set among events of foreign sets: high bits, which neither small numbers nor addresses have.
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
    // SAFETY: the kernel has just opened this descriptor for the caller, so it has no further owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn timerfd(clock: libc::clockid_t) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// A call on the set's registration of a descriptor; `flags` are the awaited events.
fn control(epoll: &OwnedFd, op: libc::c_int, fd: &OwnedFd, flags: libc::c_int, token: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: flags as u32, u64: token };
    // SAFETY: the kernel checks the numbers; `event` lives through the call.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), op, fd.as_raw_fd(), &mut event) }).map(drop)
}

impl TimerFd {
    pub(crate) fn new(clock: SystemClock, queues: usize) -> io::Result<Self> {
        let origin = ForkGuard::here()?;
        let stall_check = timerfd(clock.id())?;
        let timers = (0..queues).map(|_| timerfd(clock.id())).collect::<io::Result<Box<[_]>>>()?;
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // Last, so its number is not among the first to be reused when all have been closed.
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let opened = clock.now();
        let tag = !(opened << EVENT_MASK.count_ones()) & !EVENT_MASK;
        // Without events yet: the descriptor is readable already.
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
        // An instant beyond 32 bits of seconds expires early, costs an empty sweep, and is set again.
        let seconds = Seconds::try_from(ns / NS_PER_SEC).unwrap_or(Seconds::MAX);
        let at = libc::timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_SEC) as _ };
        let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        // SAFETY: the kernel checks the number, and `spec` lives through the call. A timerfd accepts `spec`: the nanoseconds are
        // below a second, and the kernel caps seconds beyond its range.
        let result = unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &spec, std::ptr::null_mut()) };
        if let Err(error) = check(result) {
            self.loss.note("timerfd_settime", &error);
        }
    }

    /// All descriptors registered in the set.
    fn members(&self) -> impl Iterator<Item = &Descriptor> {
        [&self.wake, &self.stall_check].into_iter().chain(&self.timers).chain(self.wall.get())
    }

    /// Waits for events; returns the number filled in. `None`: the descriptors are lost.
    fn wait(&self, events: &mut [MaybeUninit<libc::epoll_event>; EVENTS_AT_ONCE]) -> Option<usize> {
        loop {
            if self.loss.is_noted() {
                return None;
            }
            let age_ms = self.clock.floor().saturating_sub(self.opened) / NS_PER_MS;
            let limit = libc::c_int::try_from(age_ms.max(FIRST_LOOK_MS)).unwrap_or(libc::c_int::MAX);
            let (set, buffer, room) =
                (self.epoll.as_raw_fd(), events.as_mut_ptr().cast(), EVENTS_AT_ONCE as libc::c_int);
            // SAFETY: the kernel checks the number; the buffer has room for the given number of events.
            match check(self.loss.waiting(|| unsafe { libc::epoll_wait(set, buffer, room, limit) })) {
                Ok(0) => self.look(),
                Ok(n) => return Some(n as usize),
                // A signal is a return without an event.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(0),
                Err(error) => self.loss.note_cut_off("epoll_wait", &error),
            }
        }
    }

    /// Checks that all descriptors are still open and ours.
    #[cold]
    fn look(&self) {
        if self.loss.is_noted() {
            return;
        }
        for fd in self.members() {
            // A registered descriptor cannot be added again: this fails and changes nothing.
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
        // SAFETY: the kernel checks the number, and `spec` lives through the call. (ECANCELED reports a cancellation that this
        // call resets; the timer is set all the same.)
        match check(unsafe { libc::timerfd_settime(wall.as_raw_fd(), flags, &spec, std::ptr::null_mut()) }) {
            Err(error) if error.raw_os_error() != Some(libc::ECANCELED) => Err(error),
            _ => Ok(()),
        }
    }

    fn open_wall(&self) -> io::Result<OwnedFd> {
        let wall = timerfd(libc::CLOCK_REALTIME)?;
        // Refused by emulations of Linux without cancellation.
        self.arm_wall(&wall)?;
        control(&self.epoll, libc::EPOLL_CTL_ADD, &wall, EDGE, self.tag | WALL)?;
        Ok(wall)
    }
}

impl Backend for TimerFd {
    fn arm(&self, queue: usize, at: u64) {
        // The kernel takes zero as disarming.
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
        // A forked child that returns from a callback has no alarms to wait for: they are its parent's.
        if !self.origin.is_here() {
            return std::thread::park();
        }
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; EVENTS_AT_ONCE];
        let Some(n) = self.wait(&mut events) else { return report(Event::Lost) };
        for event in &events[..n] {
            // SAFETY: `epoll_wait` returned `n`, so the kernel has filled in the first `n`.
            let token = unsafe { event.assume_init_ref().u64 };
            if token & !EVENT_MASK != self.tag {
                let error = io::Error::other("the event of another set");
                self.loss.note_cut_off("epoll_wait", &error);
                return report(Event::Lost);
            }
            report(match token & EVENT_MASK {
                WAKE => Event::Wake,
                STALL_CHECK => Event::StallCheck,
                WALL => {
                    if let Some(Err(error)) = self.wall.get().map(|wall| self.arm_wall(wall)) {
                        self.loss.note("timerfd_settime", &error); // the same call succeeded in `open_wall`
                    }
                    Event::WallSet
                }
                queue => Event::Shard(queue as usize),
            });
        }
    }

    fn loss_record(&self) -> Option<&Loss> {
        Some(&self.loss)
    }

    fn follow_wall(&self) -> bool {
        if self.wall.get().is_none() && self.origin.is_here() && !self.loss.is_noted() {
            if let Ok(wall) = self.open_wall() {
                if let Err(second) = self.wall.set(Descriptor::new(wall)) {
                    // Two threads have opened a timer at the same time: the second closes its own, which also unregisters it.
                    drop(ManuallyDrop::into_inner(second));
                }
            }
        }
        self.wall.get().is_some()
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        // A forked child shares the set with its parent: unregistering here would unregister there. The child leaves all open.
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        let mut is_ours = false;
        let wall = self.wall.get_mut();
        for fd in [&mut self.wake, &mut self.stall_check].into_iter().chain(&mut self.timers).chain(wall) {
            if control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
                is_ours = true;
                // SAFETY: dropped only here, in `Drop`, and not used again.
                unsafe { ManuallyDrop::drop(fd) };
            }
        }
        if is_ours {
            // SAFETY: dropped only here, in `Drop`, and not used again.
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

    /// A program started in place of this process must not inherit them.
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

    /// The child shares the set with its parent.
    #[test]
    fn a_forked_child_puts_nothing_into_its_set_and_takes_nothing_out() {
        let alarms = TimerFd::new(SystemClock::MONOTONIC, 1).expect("the system has timers");
        let mut status = 0;
        // SAFETY: the child only makes system calls, and ends; `status` lives through the call.
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
        crate::alarm::conformance::conformance!(super::Real<{ libc::CLOCK_MONOTONIC }>);
    }

    mod boot {
        crate::alarm::conformance::conformance!(super::Real<{ libc::CLOCK_BOOTTIME }>);
    }
}
