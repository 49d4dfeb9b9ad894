//! The BSD and macOS backend: a kqueue with an `EVFILT_TIMER` per alarm and for the stall check,
//! and an `EVFILT_USER` for waking.
//!
//! Ground rules. Each alarm has its own lock, a leaf: `arm` takes it with the lock of the shard, or
//! of the shared alarm, held. The timers of a kqueue differ from system to system: in units and
//! grain, in limits, in grouping, and in whether a pending expiry survives a second `EV_ADD`. So
//! this backend needs little of them and trusts no event:
//!
//! - *Relative.* A timer is set to the remaining time, rounded up, between
//!   [`SHORTEST_NS`](abi::SHORTEST_NS) and a day. An absolute timer would follow the wall clock.
//! - *The clock decides.* Each alarm keeps its instant, under its own lock. An event only causes a
//!   look at the clock. Before the instant (a day is over, a grain was cut short, the event
//!   belonged to an earlier setting) the timer is set to the rest and no event is reported. At or
//!   after the instant the alarm is reported, once, and is consumed.
//! - *For ever.* A timer is attached when the runtime starts and later only set anew, so the system
//!   cannot refuse it later for its limit on timers. Hence the timer repeats. Most often the engine
//!   sets it again before this shows. If not, the event of a consumed alarm postpones the timer by
//!   a day.
//!
//! The same code runs on each system ([`sys`]) and, for tests, on a simulated kqueue of each system
//! (`fake`). The constants of each system are in [`abi`].
//!
//! A forked child does not inherit a kqueue. The same number may be a foreign descriptor in the
//! child: no call uses or closes it. The same holds for a kqueue closed by foreign code of the
//! process: each failing call, except by a signal, is a [`Loss`]. Before the kqueue is closed, the
//! backend tests that the wake-up event is attached to it. A foreign kqueue with the same number
//! cannot be detected.

pub(crate) mod abi;
#[cfg(all(test, unix, not(timerqueue_loom)))]
mod fake;
#[cfg(any(timerqueue_kqueue, not(any(target_os = "linux", windows))))]
pub(crate) mod sys;
#[cfg(all(test, unix, not(timerqueue_loom)))]
mod tests;

use std::io;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use self::abi::{EV_ADD, EV_CLEAR, EV_DELETE, Kevent, KqueueAbi, LONGEST_NS, NOTE_TRIGGER};
use super::loss::Cause;
use super::rundown::Rundown;
use super::{Backend, Event, Loss};
use crate::sync::Mutex;
use crate::sys::fork::ForkGuard;
use crate::time::NEVER;

/// Events that one `wait` takes at most. Small, so alarms that expire together spread over the
/// waiting threads.
const EVENTS_AT_ONCE: usize = 4;

/// The instant of an alarm that has been reported, or was never set.
const CONSUMED: u64 = NEVER;

/// A kqueue with its clock.
pub(crate) trait Sys: Send + Sync {
    /// The reading of the alarms' clock.
    fn now(&self) -> u64;
    /// Whether timers must count time in suspend.
    fn is_boot(&self) -> bool;
    /// Applies a change to the kqueue.
    fn change(&self, change: &Kevent) -> io::Result<()>;
    /// Waits for events. Returns the number filled in.
    fn wait(&self, events: &mut [Kevent; EVENTS_AT_ONCE]) -> io::Result<usize>;
    /// An always readable descriptor, for systems without user events.
    fn ready_descriptor(&mut self) -> io::Result<usize>;
    /// Gives the kqueue up. `close`: it is ours; else it belongs to the parent process, or foreign
    /// code has closed it. (A kqueue that was not given up is closed on drop.)
    fn give_up(&self, close: bool);
}

/// The alarms of a runtime.
pub(crate) struct Kqueue<S: Sys> {
    sys: S,
    abi: KqueueAbi,
    /// The instant of each alarm, and last of the stall check. An alarm's lock is held
    /// while its timer is set: else two threads could leave a timer whose setting differs from the
    /// instant. A leaf.
    alarms: Box<[CachePadded<Mutex<u64>>]>,
    /// The change that wakes a poller.
    trigger: Kevent,
    origin: ForkGuard,
    loss: Loss,
    rundown: Rundown,
}

/// Applies a change, and again after each signal.
fn insist(sys: &impl Sys, change: &Kevent) -> io::Result<()> {
    loop {
        match sys.change(change) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl<S: Sys> Kqueue<S> {
    pub(crate) fn open(mut sys: S, abi: KqueueAbi, alarms: usize) -> io::Result<Self> {
        if sys.is_boot() && abi.boot.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let origin = ForkGuard::here()?;
        let user = Kevent { filter: abi.user, flags: EV_ADD | EV_CLEAR, ..Kevent::default() };
        let trigger = match insist(&sys, &user) {
            Ok(()) => Kevent { filter: abi.user, fflags: NOTE_TRIGGER, ..Kevent::default() },
            // Each time that an always readable descriptor is added, there is an event.
            Err(_) if abi.may_lack_user => Kevent { ident: sys.ready_descriptor()?, filter: abi.read, ..user },
            Err(error) => return Err(error),
        };
        for ident in 0..=alarms {
            insist(&sys, &abi.set_timer(ident, LONGEST_NS, sys.is_boot()))?;
        }
        let alarms = (0..=alarms).map(|_| CachePadded::new(Mutex::new(CONSUMED))).collect();
        Ok(Self { sys, abi, alarms, trigger, origin, loss: Loss::default(), rundown: Rundown::new() })
    }

    /// Closes the kqueue, if it is ours. The caller was told to by [`Rundown`], once.
    fn close(&self) {
        self.trigger();
        self.sys.give_up(self.origin.is_here() && !self.loss.is_cut_off());
    }

    /// Triggers the wake-up event. It is attached, so this cannot fail while the kqueue is ours.
    fn trigger(&self) {
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        if let Err(error) = insist(&self.sys, &self.trigger) {
            self.loss.note_cut_off(Cause::Closed, "kevent", error.into());
        }
    }

    fn stall_check(&self) -> usize {
        self.alarms.len() - 1
    }

    /// Sets the timer of an alarm whose lock is held.
    fn set_timer(&self, index: usize, ns: u64) {
        let timer = self.abi.set_timer(index, ns, self.sys.is_boot());
        if self.abi.add_keeps {
            // After a failed `EV_ADD` there is no timer to delete: this error is ignored.
            let _ = insist(&self.sys, &Kevent { flags: EV_DELETE, ..timer });
        }
        // An attached timer accepts every time in range.
        if let Err(error) = insist(&self.sys, &timer) {
            self.loss.note(Cause::Closed, "kevent", error.into());
        }
    }

    fn set(&self, index: usize, at: impl FnOnce(u64) -> u64) {
        if !self.origin.is_here() || self.loss.is_noted() {
            return;
        }
        let mut alarm = self.alarms[index].lock();
        let now = self.sys.now();
        *alarm = at(now);
        self.set_timer(index, alarm.saturating_sub(now));
    }

    /// Handles an event of this alarm's timer. True: the alarm has expired, and was not reported
    /// yet.
    fn has_expired(&self, index: usize) -> bool {
        let mut alarm = self.alarms[index].lock();
        if *alarm == CONSUMED {
            self.set_timer(index, LONGEST_NS);
            return false;
        }
        let now = self.sys.now();
        if now < *alarm {
            self.set_timer(index, *alarm - now);
            return false;
        }
        *alarm = CONSUMED;
        true
    }
}

impl<S: Sys> Backend for Kqueue<S> {
    fn arm(&self, alarm: usize, at: u64) {
        self.set(alarm, |_| at.min(CONSUMED - 1));
    }

    fn arm_stall_check(&self, after: Duration) {
        let set = || self.set(self.stall_check(), |now| now.saturating_add(after.as_nanos() as u64).min(CONSUMED - 1));
        self.rundown.during(set, || self.close());
    }

    fn wait(&self, report: &mut dyn FnMut(Event)) {
        if !self.origin.is_here() {
            // A forked child that returns from a callback has no alarms to wait for: they are its
            // parent's.
            std::thread::park();
            return;
        }
        if self.loss.is_noted() {
            return report(Event::Lost);
        }
        let mut events = [Kevent::default(); EVENTS_AT_ONCE];
        let n = match self.loss.waiting(|| self.sys.wait(&mut events)) {
            Ok(n) => n,
            // A signal is a return without an event.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                self.loss.note_cut_off(Cause::Closed, "kevent", error.into());
                return report(Event::Lost);
            }
        };
        for event in &events[..n] {
            if event.filter != self.abi.timer {
                report(Event::Wake);
            } else if self.has_expired(event.ident) {
                report(if event.ident == self.stall_check() { Event::StallCheck } else { Event::Alarm(event.ident) });
            }
        }
    }

    fn wake(&self) {
        self.rundown.during(|| self.trigger(), || self.close());
    }

    fn timers(&self) -> usize {
        self.stall_check()
    }

    fn release(&self) {
        if self.rundown.close() {
            self.close();
        }
    }

    fn loss_record(&self) -> Option<&Loss> {
        Some(&self.loss)
    }
}

impl<S: Sys> Drop for Kqueue<S> {
    fn drop(&mut self) {
        self.release();
    }
}
