//! The Linux backend: a timerfd per alarm, all in a single epoll set, edge-triggered and never
//! read.
//!
//! Ground rules. Callers hold the lock of the alarm in `arm`, and no lock in `wait`. Instants are
//! absolute, on the clock of the runtime. All descriptors are close-on-exec.
//!
//! Where descriptors are scarce, several alarms share a timer ([`SharedAlarm`]). Its lock, a leaf,
//! is held while the timer is set, to the earliest of their instants. No other lock is taken here.
//!
//! Why no reads: an expired timerfd that is armed again reports the next expiry as a new edge.
//! Reading the expiry count would be a further system call per firing, for an unused number. Why a
//! single set: any thread can wait for all alarms, and the kernel reports each edge to exactly one
//! of the waiting threads.
//!
//! A further timer may be there, on the wall clock, set to the end of time. The kernel cancels this
//! timer at each step of the wall clock, and after a suspend: a cancelled timer is readable, hence
//! an edge. The timer is set again before the edge is reported, so a step that the reader of the
//! report does not see yet makes a new edge. A single call to set the timer resets both the edge
//! and the cancellation; a read would be a further call.
//!
//! # When foreign code closes these descriptors
//!
//! A program that closes unknown descriptors (`closefrom`, a number closed twice) closes the
//! backend's too, and files opened next may get their numbers. So no call here harms a foreign
//! file, as far as the kernel can tell, and each failure is a [`Loss`]:
//!
//! - *Waking* changes the set's registration of a descriptor that is always readable: an edge each
//!   time. (A write to an eventfd would also wake, but could write into a foreign file with the
//!   same number.)
//! - *Closing*: a registration in the set is the pair of a number and its file. A descriptor is
//!   closed only if the set releases its registration, and the set itself only if it has released
//!   any.
//! - *Events* carry a tag that no foreign set has. An event without this tag comes from a foreign
//!   set.
//! - *Blocked threads* do not notice that the set's descriptor is closed, and closed timers do not
//!   wake them. So a thread that waits, or is about to, checks all descriptors at a runtime age of
//!   [`FIRST_LOOK`], twice that, and so on: seventeen times in a day. The error of the next call is
//!   not enough: when all alarms are set, no call comes, and the kernel has taken closed timers out
//!   of the set. Without the checks, a runtime whose descriptors were closed while it waits stays
//!   silent for ever (tried: eight of the ten tests of `closed_descriptors.rs` fail), and so does a
//!   timer beside another that ticks often.
//!
//! A failing call is no proof that a descriptor was closed. A sandbox that the program enters late
//! may refuse the call; then the same call fails without a descriptor in the same way, where the
//! system itself gives `EBADF`: see [`Cause`]. And `EINVAL` tells of an instant:
//!
//! # Clocks that the kernel's timers do not follow
//!
//! A program may be shown another clock than the kernel's (libfaketime, which stands in for
//! functions of the C library and shifts each instant of `timerfd_settime`). Then an alarm at an
//! instant comes too late, at once, or is refused with `EINVAL`. So `new` sets a timer to the
//! present, which must expire now, and to an instant a little ahead, which must not. If an alarm
//! fails this test, or `EINVAL` comes later, or alarms come early again and again
//! ([`Backend::distrust`]), then from now on timers are set to *lengths of time*: this costs a
//! reading of the clock for each alarm, and a thread that is held up between the reading and the
//! call sets the alarm late.
//!
//! Two cases of foreign descriptors cannot be detected. When an alarm is set: a foreign timerfd
//! with the number of ours. When a thread is woken or the descriptors are checked: a foreign epoll
//! set with our set's number that holds a foreign file with the number of ours.

#![allow(unsafe_code)] // system calls

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::loss::{Cause, Failure};
use super::rundown::Rundown;
use super::{Backend, Event, Loss, SharedAlarm, SystemClock};
use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicBool, AtomicU64, OnceLock};
use crate::sys::fork::ForkGuard;
use crate::sys::os::descriptor_limit;

/// The low bits of the epoll data ([`EVENT_MASK`]) name the event; the high bits are the runtime's
/// [`TimerFd::tag`].
const EVENT_MASK: u64 = 0xffff;
const WAKE: u64 = EVENT_MASK;
const STALL_CHECK: u64 = EVENT_MASK - 1;
const WALL: u64 = EVENT_MASK - 2;
/// Events that one `wait` takes at most. Small, so alarms that expire together spread over the
/// waiting threads.
const EVENTS_AT_ONCE: usize = 4;
const NS_PER_SEC: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;
/// The age of a runtime at which the descriptors are first checked, in nanoseconds.
const FIRST_LOOK: u64 = NS_PER_SEC;
/// No more than one in so many of the descriptors that the process may open are timers: a program
/// needs some too.
const SHARE_OF_DESCRIPTORS: usize = 4;
/// If descriptors are out all the same, a start tries with so many times fewer timers.
const FEWER: usize = 8;
/// A timer that is due expires within this time, else the kernel's clock is taken for another. (A
/// thread without a processor for so long takes it for another in vain, which does little harm.)
const EXPIRES_WITHIN_MS: libc::c_int = 20;
/// A timer set to a length that has passed expires within this time, else the system has no timers.
const EXPIRES_SURELY_MS: libc::c_int = 1_000;
/// The shortest length to which a timer is set: code that stands in for the system may divide it,
/// and zero disarms.
const SHORTEST_NS: u64 = 10_000;
/// A timer so far ahead does not expire at once.
const AHEAD_NS: u64 = 250_000_000;
const EDGE: libc::c_int = libc::EPOLLIN | libc::EPOLLET;

/// 32 or 64 bits. The name is deprecated on musl, where the type is going to be 64 bits wide
/// everywhere.
#[allow(deprecated)]
type Seconds = libc::time_t;

/// A descriptor that [`TimerFd::close`] closes, if the number still belongs to the same file.
type Descriptor = ManuallyDrop<OwnedFd>;

/// The alarms of a runtime.
pub(crate) struct TimerFd {
    epoll: Descriptor,
    /// Always readable.
    wake: Descriptor,
    stall_check: Descriptor,
    timers: Vec<Descriptor>,
    /// With each timer, if alarms share timers; else empty.
    shared: Vec<SharedAlarm>,
    /// The number of alarms that share a timer, but for the last timer, which may have fewer.
    alarms_per_timer: usize,
    /// Expires when the wall clock is set. Opened by the first `follow_wall`.
    wall: OnceLock<Descriptor>,
    /// Marks the events of this set among events of foreign sets: high bits, which neither small
    /// numbers nor addresses have.
    tag: u64,
    clock: SystemClock,
    /// Timers are set to lengths of time instead of instants.
    by_length: AtomicBool,
    opened: u64,
    /// The age at which the descriptors are checked next, in nanoseconds.
    next_look: AtomicU64,
    origin: ForkGuard,
    loss: Loss,
    rundown: Rundown,
}

fn check(result: libc::c_int) -> Result<libc::c_int, Failure> {
    if result < 0 { Err(io::Error::last_os_error().into()) } else { Ok(result) }
}

fn owned(result: libc::c_int) -> Result<OwnedFd, Failure> {
    let fd = check(result)?;
    // SAFETY: the kernel has just opened this descriptor for the caller, so it has no further
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn timerfd(clock: libc::clockid_t) -> Result<OwnedFd, Failure> {
    // SAFETY: no pointers.
    owned(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// Sets a timer to an instant or, without `TFD_TIMER_ABSTIME`, to a length of time; zero disarms.
/// The number is of a timer of ours, or of none.
fn set_timer(fd: libc::c_int, flags: libc::c_int, ns: u64) -> Result<(), Failure> {
    // An instant beyond 32 bits of seconds expires early, costs an empty sweep, and is set again.
    let seconds = Seconds::try_from(ns / NS_PER_SEC).unwrap_or(Seconds::MAX);
    let at = libc::timespec { tv_sec: seconds, tv_nsec: (ns % NS_PER_SEC) as _ };
    let spec = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    // SAFETY: the kernel checks the number, and `spec` lives through the call.
    check(unsafe { libc::timerfd_settime(fd, flags, &spec, std::ptr::null_mut()) }).map(drop)
}

/// No file has this number.
const NO_FILE: libc::c_int = -1;

/// Why a call fails, by the result of the same call without a file.
fn cause_by(without_file: Result<(), Failure>) -> Cause {
    match without_file {
        Ok(()) | Err(Failure::System(libc::EBADF)) => Cause::Closed,
        Err(_) => Cause::Refused,
    }
}

/// A call on a set's registration of a descriptor; `flags` are the awaited events.
fn control(
    epoll: libc::c_int,
    op: libc::c_int,
    fd: libc::c_int,
    flags: libc::c_int,
    token: u64,
) -> Result<(), Failure> {
    let mut event = libc::epoll_event { events: flags as u32, u64: token };
    // SAFETY: the kernel checks the numbers; `event` lives through the call.
    check(unsafe { libc::epoll_ctl(epoll, op, fd, &mut event) }).map(drop)
}

/// Room for the events of a call.
type Room = [MaybeUninit<libc::epoll_event>; EVENTS_AT_ONCE];

/// Waits for events of a set; returns the number filled in.
fn wait_for(epoll: libc::c_int, room: &mut Room, limit_ms: libc::c_int) -> Result<usize, Failure> {
    let buffer = room.as_mut_ptr().cast();
    // SAFETY: the kernel checks the number; the buffer has room for the given number of events.
    check(unsafe { libc::epoll_wait(epoll, buffer, EVENTS_AT_ONCE as libc::c_int, limit_ms) }).map(|n| n as usize)
}

/// Whether the timer, which is the only member of the set, expires within this time; disarms the
/// timer.
fn expires(epoll: &OwnedFd, timer: &OwnedFd, within_ms: libc::c_int) -> Result<bool, Failure> {
    let mut room = [const { MaybeUninit::uninit() }; EVENTS_AT_ONCE];
    let expired = loop {
        match wait_for(epoll.as_raw_fd(), &mut room, within_ms) {
            Err(Failure::System(libc::EINTR)) => {}
            result => break result? > 0,
        }
    };
    set_timer(timer.as_raw_fd(), 0, 0).map(|()| expired)
}

/// Whether timers set to an instant of this clock expire then: not late, nor much too early. (A
/// thread without a processor until the instant cannot tell, and takes them for such timers.) Takes
/// a timer that is the only member of the set.
///
/// # Errors
/// The system refuses a call, or timers do not expire at all.
fn follows(epoll: &OwnedFd, timer: &OwnedFd, clock: SystemClock) -> Result<bool, Failure> {
    let expires_at = |at: u64, within_ms| match set_timer(timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, at.max(1)) {
        Err(Failure::System(libc::EINVAL)) => Ok(None),
        result => result.and_then(|()| expires(epoll, timer, within_ms)).map(Some),
    };
    if expires_at(clock.now(), EXPIRES_WITHIN_MS)? == Some(true) {
        let ahead = clock.now().saturating_add(AHEAD_NS);
        return Ok(match expires_at(ahead, 0)? {
            Some(expired) => !expired || clock.now() >= ahead,
            None => false,
        });
    }
    set_timer(timer.as_raw_fd(), 0, SHORTEST_NS)?;
    if expires(epoll, timer, EXPIRES_SURELY_MS)? {
        return Ok(false);
    }
    Err(Failure::Other("a timer of the system that is due does not expire"))
}

impl TimerFd {
    /// Alarms with a timer for each or, where descriptors are scarce, with fewer.
    pub(crate) fn new(clock: SystemClock, alarms: usize) -> io::Result<Self> {
        let mut timers = alarms.min(descriptor_limit() / SHARE_OF_DESCRIPTORS).max(1);
        loop {
            match Self::with_timers(clock, alarms, alarms.div_ceil(timers)) {
                Ok(opened) => return Ok(opened),
                Err(Failure::System(libc::EMFILE | libc::ENFILE)) if timers > 1 => timers = timers.div_ceil(FEWER),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn with_timers(clock: SystemClock, alarms: usize, alarms_per_timer: usize) -> Result<Self, Failure> {
        let origin = ForkGuard::here()?;
        let stall_check = timerfd(clock.id())?;
        let count = alarms.div_ceil(alarms_per_timer);
        let mut timers = Vec::with_capacity(count);
        for _ in 0..count {
            timers.push(timerfd(clock.id())?);
        }
        let shares = if alarms_per_timer > 1 { count } else { 0 };
        // SAFETY: no pointers.
        let wake = owned(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // Last, so its number is not among the first to be reused when all have been closed.
        // SAFETY: no pointers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let opened = clock.now();
        let tag = !(opened << EVENT_MASK.count_ones()) & !EVENT_MASK;
        let add = |fd: &OwnedFd, flags, event| {
            control(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), flags, tag | event)
        };
        add(&stall_check, EDGE, STALL_CHECK)?;
        let by_length = !follows(&epoll, &stall_check, clock)?;
        // Without events yet: the descriptor is readable already.
        add(&wake, 0, WAKE)?;
        for (i, timer) in timers.iter().enumerate() {
            add(timer, EDGE, i as u64)?;
        }
        Ok(Self {
            epoll: Descriptor::new(epoll),
            wake: Descriptor::new(wake),
            stall_check: Descriptor::new(stall_check),
            timers: timers.into_iter().map(Descriptor::new).collect(),
            shared: SharedAlarm::row(shares, alarms_per_timer, 1),
            alarms_per_timer,
            wall: OnceLock::new(),
            tag,
            clock,
            by_length: AtomicBool::new(by_length),
            opened,
            next_look: AtomicU64::new(FIRST_LOOK),
            origin,
            loss: Loss::default(),
            rundown: Rundown::new(),
        })
    }

    /// Runs a call that may come while the descriptors are closed.
    #[inline]
    fn unless_closed(&self, call: impl FnOnce()) {
        self.rundown.during(call, || self.close());
    }

    /// Closes the descriptors that are proven ours. The caller was told to by [`Rundown`], once.
    fn close(&self) {
        // A forked child shares the set with its parent: unregistering here would unregister there.
        // The child leaves all open.
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        // SAFETY: called once, and no call uses the descriptors afterwards: `Rundown` admits none,
        // and no thread waits or sets an alarm any more, as `release` demands. `Descriptor` does
        // not close by itself.
        let close = |fd: &Descriptor| drop(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
        let mut is_ours = false;
        for fd in self.members() {
            if self.control(libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok() {
                is_ours = true;
                close(fd);
            }
        }
        if is_ours {
            close(&self.epoll);
        }
    }

    /// Sets a timer to an instant.
    fn set_to(&self, fd: &OwnedFd, at: u64) {
        if !self.origin.is_here() || self.loss.is_noted() {
            return;
        }
        if !self.by_length.load(Ordering::Relaxed) {
            match set_timer(fd.as_raw_fd(), libc::TFD_TIMER_ABSTIME, at) {
                // Code that stands in for the system makes something else of the instant. (Or the
                // file is none of ours: the next call tells.)
                Err(Failure::System(libc::EINVAL)) => self.distrust(),
                result => return self.note_unless_set(fd, result),
            }
        }
        self.set_to_length(fd, at.saturating_sub(self.clock.now()).max(SHORTEST_NS));
    }

    fn set_to_length(&self, fd: &OwnedFd, ns: u64) {
        self.note_unless_set(fd, set_timer(fd.as_raw_fd(), 0, ns));
    }

    /// A timer of several alarms has expired.
    fn report_shared(&self, timer: usize, report: &mut dyn FnMut(Event)) {
        let (mut due, set) = (Vec::new(), |_, at| self.set_to(&self.timers[timer], at));
        if self.shared[timer].take(0, &|| self.clock.now(), &mut |alarm| due.push(alarm), &set) {
            self.distrust();
        }
        for alarm in due {
            report(Event::Alarm(timer * self.alarms_per_timer + alarm));
        }
    }

    /// A timer accepts each time: the nanoseconds are below a second, and the kernel caps seconds
    /// beyond its range. So an error is a loss.
    fn note_unless_set(&self, fd: &OwnedFd, result: Result<(), Failure>) {
        let Err(error) = result else { return };
        let cause = match cause_by(set_timer(NO_FILE, 0, 0)) {
            Cause::Closed if self.is_member(fd).is_ok() => Cause::Refused,
            cause => cause,
        };
        self.loss.note(cause, "timerfd_settime", error);
    }

    /// Changes the set's registration of a descriptor.
    fn control(&self, op: libc::c_int, fd: &OwnedFd, flags: libc::c_int, event: u64) -> Result<(), Failure> {
        control(self.epoll.as_raw_fd(), op, fd.as_raw_fd(), flags, self.tag | event)
    }

    /// An error of [`Self::control`], which the system gives for a descriptor that is not ours, or
    /// a sandbox for each.
    fn cause_of_refused_control() -> Cause {
        cause_by(control(NO_FILE, libc::EPOLL_CTL_DEL, NO_FILE, 0, 0))
    }

    /// Checks that a descriptor is registered in the set. (One that is cannot be added again: this
    /// fails and changes nothing.)
    fn is_member(&self, fd: &OwnedFd) -> Result<(), Failure> {
        match self.control(libc::EPOLL_CTL_ADD, fd, 0, WAKE) {
            Err(Failure::System(libc::EEXIST)) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
                Err(Failure::Other("another file has the number of a descriptor"))
            }
        }
    }

    /// All descriptors registered in the set.
    fn members(&self) -> Vec<&Descriptor> {
        let mut members = vec![&self.wake, &self.stall_check];
        members.extend(&self.timers);
        members.extend(self.wall.get());
        members
    }

    /// Checks that all descriptors are still open and ours. (Of several threads whose wait ends at
    /// the same time each does so, before it waits again: else it might wait for a foreign set.)
    #[cold]
    fn look(&self, age: u64) {
        self.next_look.store(age.saturating_mul(2), Ordering::Relaxed);
        if self.loss.is_noted() {
            return;
        }
        for fd in self.members() {
            let Err(error) = self.is_member(fd) else { continue };
            let cause = Self::cause_of_refused_control();
            if std::ptr::eq(fd, &self.wake) {
                return self.loss.note_cut_off(cause, "epoll_ctl", error);
            }
            return self.loss.note(cause, "epoll_ctl", error);
        }
    }

    /// Sets the timer on the wall clock to the end of time, to be cancelled when that clock is set.
    fn arm_wall(&self, wall: &OwnedFd) -> Result<(), Failure> {
        if !self.origin.is_here() {
            return Ok(());
        }
        let flags = libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET;
        match set_timer(wall.as_raw_fd(), flags, u64::MAX) {
            // Reports a cancellation that this call resets; the timer is set all the same.
            Err(Failure::System(libc::ECANCELED)) => Ok(()),
            result => result,
        }
    }

    fn open_wall(&self) -> Result<OwnedFd, Failure> {
        let wall = timerfd(libc::CLOCK_REALTIME)?;
        // Refused by emulations of Linux without cancellation.
        self.arm_wall(&wall)?;
        self.control(libc::EPOLL_CTL_ADD, &wall, EDGE, WALL)?;
        Ok(wall)
    }
}

impl Backend for TimerFd {
    fn arm(&self, alarm: usize, at: u64) {
        // The kernel takes zero as disarming.
        let at = at.max(1);
        if self.shared.is_empty() {
            return self.set_to(&self.timers[alarm], at);
        }
        let (timer, alarm) = (alarm / self.alarms_per_timer, alarm % self.alarms_per_timer);
        self.shared[timer].arm(alarm, at, &|_, at| self.set_to(&self.timers[timer], at));
    }

    fn arm_stall_check(&self, after: Duration) {
        if self.origin.is_here() && !self.loss.is_noted() {
            self.unless_closed(|| self.set_to_length(&self.stall_check, after.as_nanos() as u64));
        }
    }

    fn distrust(&self) {
        self.by_length.store(true, Ordering::Relaxed);
    }

    fn wake(&self) {
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        self.unless_closed(|| {
            if let Err(error) = self.control(libc::EPOLL_CTL_MOD, &self.wake, EDGE, WAKE) {
                self.loss.note_cut_off(Self::cause_of_refused_control(), "epoll_ctl", error);
            }
        });
    }

    fn wait(&self, report: &mut dyn FnMut(Event)) {
        // A forked child that returns from a callback has no alarms to wait for: they are its
        // parent's.
        if !self.origin.is_here() {
            return std::thread::park();
        }
        let mut events: Room = [const { MaybeUninit::uninit() }; EVENTS_AT_ONCE];
        let n = loop {
            if self.loss.is_noted() {
                return report(Event::Lost);
            }
            let age = self.clock.floor().saturating_sub(self.opened);
            let look_at = self.next_look.load(Ordering::Relaxed);
            if age >= look_at {
                self.look(age);
                continue;
            }
            let limit = libc::c_int::try_from((look_at - age).div_ceil(NS_PER_MS)).unwrap_or(libc::c_int::MAX);
            match self.loss.waiting(|| wait_for(self.epoll.as_raw_fd(), &mut events, limit)) {
                Ok(0) => self.look(look_at),
                Ok(n) => break n,
                // A signal is a return without an event.
                Err(Failure::System(libc::EINTR)) => return,
                Err(error) => {
                    let cause = cause_by(wait_for(NO_FILE, &mut events, 0).map(drop));
                    self.loss.note_cut_off(cause, "epoll_wait", error);
                }
            }
        };
        for event in &events[..n] {
            // SAFETY: `epoll_wait` returned `n`, so the kernel has filled in the first `n`.
            let token = unsafe { event.assume_init_ref().u64 };
            if token & !EVENT_MASK != self.tag {
                let error = Failure::Other("the event of another set");
                self.loss.note_cut_off(Cause::Closed, "epoll_wait", error);
                return report(Event::Lost);
            }
            report(match token & EVENT_MASK {
                WAKE => Event::Wake,
                STALL_CHECK => Event::StallCheck,
                timer if timer < self.shared.len() as u64 => {
                    self.report_shared(timer as usize, report);
                    continue;
                }
                WALL => {
                    if let Some(wall) = self.wall.get() {
                        // the same call succeeded in `open_wall`
                        self.note_unless_set(wall, self.arm_wall(wall));
                    }
                    Event::WallSet
                }
                alarm => Event::Alarm(alarm as usize),
            });
        }
    }

    fn release(&self) {
        if self.rundown.close() {
            self.close();
        }
    }

    fn timers(&self) -> usize {
        self.timers.len()
    }

    fn loss_record(&self) -> Option<&Loss> {
        Some(&self.loss)
    }

    fn follow_wall(&self) -> bool {
        // A clock that the system's timers do not follow may be set without their notice.
        let follows = !self.by_length.load(Ordering::Relaxed);
        if follows && self.wall.get().is_none() && self.origin.is_here() && !self.loss.is_noted() {
            self.unless_closed(|| {
                if let Ok(wall) = self.open_wall() {
                    if let Err(second) = self.wall.set(Descriptor::new(wall)) {
                        // Two threads have opened a timer at the same time: the second closes its
                        // own, which also unregisters it.
                        drop(ManuallyDrop::into_inner(second));
                    }
                }
            });
        }
        self.wall.get().is_some()
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::alarm::conformance::Rig;

    /// All alarms on one timer.
    struct Shared(TimerFd);

    impl Rig for Shared {
        type Backend = TimerFd;

        fn new(queues: usize) -> Self {
            Self(TimerFd::with_timers(SystemClock::MONOTONIC, queues, queues.max(2)).expect("the system has timers"))
        }

        fn alarms(&self) -> &TimerFd {
            &self.0
        }

        fn now(&self) -> u64 {
            SystemClock::MONOTONIC.now()
        }

        fn pass(&self, time: Duration) {
            std::thread::sleep(time);
        }
    }

    mod shared {
        crate::alarm::conformance::conformance!(super::Shared);
    }

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
        for fd in alarms.members().into_iter().map(|fd| &**fd).chain([&wall]) {
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
        alarms.look(FIRST_LOOK);
        assert!(!alarms.loss.is_noted(), "{}", alarms.loss.message());
    }

    mod monotonic {
        crate::alarm::conformance::conformance!(super::Real<{ libc::CLOCK_MONOTONIC }>);
    }

    mod boot {
        crate::alarm::conformance::conformance!(super::Real<{ libc::CLOCK_BOOTTIME }>);
    }
}
