//! Alarms: where the runtime meets the kernel's timers, or a manual clock.
//!
//! The contract of a native backend, [`Native`] on this system:
//!
//! - `new(queues)` opens everything or nothing, and says in an [`std::io::Error`] what could not be had.
//! - `now()` reads the clock of the alarms in nanoseconds. It never runs backwards.
//! - `arm(queue, at)` sets the one alarm of that queue to the absolute instant `at`; the latest call wins. Calls for one
//!   queue are serialised by its lock. The caller never arms an instant that has passed (that works, but is dear).
//! - `arm_probe(after)` sets one further alarm that belongs to the pool.
//! - `watch(events)` blocks until something has happened and reports it. Each expiry of an alarm and each `wake` is
//!   reported to exactly one of the threads that watch; none is lost when nobody watches at that moment. It may return
//!   with nothing, or with an alarm that has been re-armed meanwhile: whoever sweeps trusts the clock alone.
//! - `wake()` makes one `watch` return with [`Event::Wake`].
//!
//! There is no disarming and no reading: a stale alarm costs one empty sweep.
//!
//! A manual clock ([`manual`]) has `now()` only; it looks at the queues' deadlines itself. Virtual time plugs in here and
//! nowhere else.

pub(crate) mod manual;

#[cfg(target_os = "linux")]
mod timerfd;
#[cfg(target_os = "linux")]
pub(crate) use timerfd::TimerFd as Native;

#[cfg(not(target_os = "linux"))]
compile_error!("timerqueue has no alarm for this system yet: it needs timerfd and epoll (Linux)");

/// Something that a watching thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The alarm of this queue has expired.
    Queue(usize),
    /// The pool's own alarm has expired.
    Probe,
    /// Somebody called `wake`.
    Wake,
}

/// The clock that a queue reads.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The monotonic clock of the native alarms.
    Native,
    /// A clock that moves when it is told to.
    Manual(std::sync::Arc<manual::Hands>),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Native => Native::now(),
            Self::Manual(hands) => hands.now(),
        }
    }
}
