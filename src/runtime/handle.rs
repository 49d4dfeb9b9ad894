//! Which runtime: that of a timer, future or source about to be made, or of one that was made; and
//! per-core counted references to the runtime's engine.
//!
//! Ground rules. A reference only keeps the memory of the engine alive: the engine is closed when
//! its last [`Runtime`] is dropped. Each reference is counted on a cache line of the core on which
//! it was made (S35).

use super::default::{settle_clock, started};
use super::{ManualClock, Runtime, RuntimeError, usable};
use crate::alarm::{Clock, SystemClock};
use crate::engine::{CoreRef, Engine, Owner, current};
use crate::sync::Arc;
use crate::time::Deadline;
use crate::unwind::{Payload, Tell, discard};

/// A runtime, which may not have been started.
#[derive(Clone)]
pub(crate) enum RuntimeHandle {
    /// The default runtime, looked up when needed. Its clock is the usual clock, for good.
    Global,
    /// A runtime of the user's.
    Engine(Arc<CoreRef>),
}

impl RuntimeHandle {
    /// The current runtime of the calling thread. Starts no runtime.
    ///
    /// # Panics
    /// When that is the default runtime, and the program forbids it.
    #[inline]
    #[track_caller]
    pub(crate) fn current() -> Self {
        if current::is_plain() { Self::Global } else { Self::look() }
    }

    #[cold]
    #[track_caller]
    fn look() -> Self {
        match Self::try_current() {
            Ok(current) => current,
            Err(forbidden) => forbidden.not_started(),
        }
    }

    /// As [`Self::current`], with an error instead of the panic.
    pub(crate) fn try_current() -> Result<Self, RuntimeError> {
        if let Some(core) = current::get() {
            return Ok(Self::Engine(core));
        }
        Ok(match settle_clock()? {
            Some(default) => default.handle(),
            None => {
                current::set_plain();
                Self::Global
            }
        })
    }

    /// A handle of the runtime; starts the default runtime if need be.
    ///
    /// # Panics
    /// When the default runtime cannot be started.
    pub(crate) fn runtime(&self) -> Runtime {
        match self {
            Self::Global => Runtime::global().clone(),
            Self::Engine(core) => Runtime { owner: Owner::of(&core.engine) },
        }
    }

    /// The clock that the program moves, if the runtime is on one. (The default runtime on such a
    /// clock is no [`Self::Global`].)
    pub(super) fn manual_clock(&self) -> Option<ManualClock> {
        match self {
            Self::Global => None, // never on a manual clock
            Self::Engine(core) => core.engine.agenda().map(ManualClock::of),
        }
    }

    /// The clock: of a default runtime without settings, also before its start.
    #[inline]
    fn clock(&self) -> &Clock {
        static USUAL: Clock = Clock::System(SystemClock::MONOTONIC);
        match self {
            Self::Global => &USUAL,
            Self::Engine(core) => &core.engine.clock,
        }
    }

    /// Whether the program moves the clock.
    pub(super) fn is_manual(&self) -> bool {
        matches!(self.clock(), Clock::Manual { .. })
    }

    /// Whether the clock is a clock of the system that stands still in suspend, as that of a parked
    /// thread.
    pub(super) fn is_monotonic(&self) -> bool {
        matches!(self.clock(), Clock::System(SystemClock::MONOTONIC))
    }

    /// Whether both runtimes are on the same clock.
    pub(crate) fn shares_clock(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Engine(one), Self::Engine(other)) => one.engine.clock.is(&other.engine.clock),
            (Self::Global, other) | (other, Self::Global) => other.is_monotonic(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock().now()
    }

    /// A deadline in nanoseconds of the clock.
    pub(crate) fn deadline(&self, deadline: Deadline) -> u64 {
        self.clock().ns(deadline)
    }

    /// An instant that is not after now: cheaper than [`Self::now`].
    pub(crate) fn floor(&self) -> u64 {
        self.clock().floor()
    }

    /// The engine, also after the runtime has ended; starts the default runtime if need be.
    ///
    /// # Panics
    /// When the default runtime cannot be started.
    #[inline]
    pub(crate) fn started(&self) -> &Arc<Engine> {
        match self {
            Self::Global => Runtime::global().engine(),
            Self::Engine(core) => &core.engine,
        }
    }

    /// The engine; starts the default runtime if need be.
    ///
    /// # Errors
    /// When the runtime has ended or belongs to the parent of this process, or the default one
    /// cannot be started.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, RuntimeError> {
        let engine = match self {
            Self::Global => Runtime::start_default()?.engine(),
            Self::Engine(core) => &core.engine,
        };
        usable(engine).map(|()| engine)
    }

    /// Whether the runtime belongs to the parent of this process. Starts no runtime.
    pub(crate) fn is_forked(&self) -> bool {
        self.engine_if_started().is_some_and(|engine| engine.is_forked())
    }

    /// The engine, also after the runtime has ended. `None`: the default runtime has not been
    /// started.
    pub(crate) fn engine_if_started(&self) -> Option<&Arc<Engine>> {
        match self {
            Self::Global => started().map(Runtime::engine),
            Self::Engine(core) => Some(&core.engine),
        }
    }

    /// Whether `instant`, which has come by the clock, came before the runtime ended. Starts no
    /// runtime.
    pub(crate) fn was_there(&self, instant: u64) -> bool {
        self.engine_if_started().is_none_or(|engine| instant <= engine.ended_at())
    }

    /// Whether the clock has shown `instant`. It stands still when the runtime has ended.
    pub(crate) fn has_come(&self, instant: u64) -> bool {
        self.now() >= instant && self.was_there(instant)
    }
}

impl Tell for RuntimeHandle {
    fn tell(&self, payload: Payload) {
        match self.engine_if_started() {
            Some(engine) => engine.tell(payload),
            None => discard(payload),
        }
    }
}

#[cfg(all(test, timerqueue_loom))]
impl From<&Arc<Engine>> for RuntimeHandle {
    fn from(engine: &Arc<Engine>) -> Self {
        Self::Engine(CoreRef::new(engine))
    }
}
