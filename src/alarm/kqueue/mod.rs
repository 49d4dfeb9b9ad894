//! BSD and macOS: one kqueue, in it one `EVFILT_TIMER` per queue and one for the pool, and one `EVFILT_USER` for waking.
//!
//! Ground rules. What kqueues make of a timer differs from system to system: in units and grain, in what is too short or
//! too long, in when timers are grouped, in whether an expiry that nobody has taken up survives a second `EV_ADD`. So
//! little is asked of them, and nothing is believed:
//!
//! - *Relative.* A timer is set to the time that is left, rounded up, between [`SHORTEST_NS`](dialect::SHORTEST_NS) and a
//!   day. An absolute one would follow the wall clock.
//! - *The clock decides.* Each alarm keeps its instant, under a lock of its own. An event only says: look. Before the
//!   instant (a day is over, a grain was cut short, the event belonged to an earlier setting) what is left is set once more
//!   and nothing is reported; at or after it the alarm is reported, once, and is spent.
//! - *For ever.* A timer is attached when the runtime starts and only ever set anew, so later it cannot be refused: there
//!   is a limit on how many a system has. It follows that it repeats. Most often its queue sets it again before that
//!   shows. If not, the event of a spent alarm puts it off for a day.
//!
//! The same code runs on each system ([`sys`]) and, for tests, on kqueues of our own making that behave like theirs
//! (`fake`). What a system calls things is in [`abi`].
//!
//! A kqueue is not inherited by a forked child. The child's descriptor of that number, if there is one, is somebody
//! else's: nothing is done with it, not even closing it. The same holds for a kqueue that other code of the process has closed:
//! each call that fails, but for a signal, is a [`Loss`]. Before it is closed the kqueue is asked whether it knows what wakes us.
//! Cannot be told: another kqueue that has the number of ours.

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
use super::{Backend, Event, Loss};
use crate::sync::Mutex;
use crate::sys::fork::ForkGuard;
use crate::time::NEVER;

/// What one `wait` takes at most. Small, so that alarms that expire together spread over the waiting threads.
const EVENTS_AT_ONCE: usize = 4;

/// The instant of an alarm that has been reported, or was never set.
const CONSUMED: u64 = NEVER;

/// A kqueue with its clock.
pub(crate) trait Sys {
    /// The clock that instants are on.
    fn now(&self) -> u64;
    /// Whether its timers must count the time that the system is suspended.
    fn is_boot(&self) -> bool;
    /// Hands one change to the kqueue.
    fn change(&self, change: &Kevent) -> io::Result<()>;
    /// Waits for events. How many have been filled in.
    fn wait(&self, events: &mut [Kevent; EVENTS_AT_ONCE]) -> io::Result<usize>;
    /// A descriptor that can always be read, for systems without user events.
    fn ready_descriptor(&mut self) -> io::Result<usize>;
    /// The kqueue belongs to another process, or other code has closed it: lets go of it without closing it.
    fn forget(&mut self);
}

/// The alarms of one runtime.
pub(crate) struct Kqueue<S: Sys> {
    sys: S,
    abi: KqueueAbi,
    /// The instant of each queue's alarm, and last of the probe. Its lock is held while the timer is set: else two threads
    /// could leave the later of two settings standing. A leaf.
    alarms: Box<[CachePadded<Mutex<u64>>]>,
    /// The change that wakes.
    trigger: Kevent,
    origin: ForkGuard,
    loss: Loss,
}

/// Makes a change, whatever signals come.
fn insist(sys: &impl Sys, change: &Kevent) -> io::Result<()> {
    loop {
        match sys.change(change) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl<S: Sys> Kqueue<S> {
    pub(crate) fn open(mut sys: S, abi: KqueueAbi, queues: usize) -> io::Result<Self> {
        if sys.is_boot() && abi.boot.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let origin = ForkGuard::here()?;
        let user = Kevent { filter: abi.user, flags: EV_ADD | EV_CLEAR, ..Kevent::default() };
        let trigger = match insist(&sys, &user) {
            Ok(()) => Kevent { filter: abi.user, fflags: NOTE_TRIGGER, ..Kevent::default() },
            // Adding what can always be read is an event each time.
            Err(_) if abi.may_lack_user => Kevent { ident: sys.ready_descriptor()?, filter: abi.read, ..user },
            Err(error) => return Err(error),
        };
        for ident in 0..=queues {
            insist(&sys, &abi.set_timer(ident, LONGEST_NS, sys.is_boot()))?;
        }
        let alarms = (0..=queues).map(|_| CachePadded::new(Mutex::new(CONSUMED))).collect();
        Ok(Self { sys, abi, alarms, trigger, origin, loss: Loss::default() })
    }

    fn stall_check(&self) -> usize {
        self.alarms.len() - 1
    }

    /// Sets the timer of an alarm whose lock is held.
    fn set_timer(&self, index: usize, ns: u64) {
        let timer = self.abi.set_timer(index, ns, self.sys.is_boot());
        if self.abi.add_keeps {
            // There is nothing to delete when setting it has failed before.
            let _ = insist(&self.sys, &Kevent { flags: EV_DELETE, ..timer });
        }
        // A timer that is attached takes any time that is in range.
        if let Err(error) = insist(&self.sys, &timer) {
            self.loss.note("kevent", &error);
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

    /// There was an event of this alarm's timer: whether the alarm has expired, and was not reported yet.
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
    fn arm(&self, queue: usize, at: u64) {
        self.set(queue, |_| at.min(CONSUMED - 1));
    }

    fn arm_stall_check(&self, after: Duration) {
        self.set(self.stall_check(), |now| now.saturating_add(after.as_nanos() as u64).min(CONSUMED - 1));
    }

    fn wait(&self, mut report: impl FnMut(Event)) {
        if !self.origin.is_here() {
            // A callback has forked, and the child has come back from it. Here there is nothing to watch.
            std::thread::park();
            return;
        }
        if self.loss.is_noted() {
            return report(Event::Lost);
        }
        let mut events = [Kevent::default(); EVENTS_AT_ONCE];
        let n = match self.loss.waiting(|| self.sys.wait(&mut events)) {
            Ok(n) => n,
            // A signal is a return with nothing.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                self.loss.note_cut_off("kevent", &error);
                return report(Event::Lost);
            }
        };
        for event in &events[..n] {
            if event.filter != self.abi.timer {
                report(Event::Wake);
            } else if self.has_expired(event.ident) {
                report(if event.ident == self.stall_check() { Event::StallCheck } else { Event::Queue(event.ident) });
            }
        }
    }

    fn wake(&self) {
        if !self.origin.is_here() || self.loss.is_cut_off() {
            return;
        }
        // What wakes is attached.
        if let Err(error) = insist(&self.sys, &self.trigger) {
            self.loss.note_cut_off("kevent", &error);
        }
    }

    fn loss(&self) -> Option<&Loss> {
        Some(&self.loss)
    }
}

impl<S: Sys> Drop for Kqueue<S> {
    fn drop(&mut self) {
        self.wake();
        if !self.origin.is_here() || self.loss.is_cut_off() {
            self.sys.forget();
        }
    }
}
