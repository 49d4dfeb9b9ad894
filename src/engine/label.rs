//! Names of timers, and the hooks that are told of them.
//!
//! Ground rules. A timer without a name pays nothing: only an entry with a name has a place for it
//! (`Annotations` in [`super::entry`]).

use std::any::Any;
use std::borrow::Cow;
use std::panic::Location;
use std::time::Duration;

use super::observe::{CallbackContext, ThreadsChanged};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::sync::Arc;

/// The name of a timer, and the place in the source at which the timer was named.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) name: Cow<'static, str>,
    pub(crate) site: &'static Location<'static>,
}

/// The settings of a new entry.
pub(crate) struct Settings {
    pub(crate) tick_policy: TickPolicy,
    pub(crate) label: Option<Arc<Label>>,
}

impl From<TickPolicy> for Settings {
    #[inline]
    fn from(tick_policy: TickPolicy) -> Self {
        Self { tick_policy, label: None }
    }
}

impl From<MissedTicks> for Settings {
    #[inline]
    fn from(policy: MissedTicks) -> Self {
        TickPolicy::from(policy).into()
    }
}

/// A panic that was caught.
pub(crate) struct Panicked {
    pub(crate) payload: Box<dyn Any + Send>,
    /// Of the timer whose callback panicked, if it has a name.
    pub(crate) label: Option<Arc<Label>>,
}

/// A callback that took long.
pub(crate) struct Slow {
    pub(crate) took: Duration,
    /// By how much the callback began after its due point.
    pub(crate) late: Duration,
    pub(crate) label: Option<Arc<Label>>,
}

/// Called with a panic of a callback, a destructor of user data or a waker.
pub(crate) type PanicHandler = dyn Fn(Panicked) + Send + Sync;

/// Called with each callback that took longer than `limit`.
pub(crate) struct SlowHandler {
    pub(crate) limit: Duration,
    pub(crate) handler: Box<dyn Fn(Slow) + Send + Sync>,
}

/// Called by a thread that makes a timer: the context for the callbacks.
pub(crate) type ContextHook = dyn Fn() -> Option<CallbackContext> + Send + Sync;

/// Called by a timer on the pool.
pub(crate) type ThreadsHook = dyn Fn(ThreadsChanged) + Send + Sync;

/// Called on a thread of the pool, before its first job or after its last.
pub(crate) type ThreadHook = dyn Fn() + Send + Sync;

/// What the program wants to be told.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) panicked: Option<Box<PanicHandler>>,
    pub(crate) slow: Option<SlowHandler>,
    pub(crate) context: Option<Box<ContextHook>>,
    pub(crate) threads: Option<Box<ThreadsHook>>,
    pub(crate) thread_begins: Option<Box<ThreadHook>>,
    pub(crate) thread_ends: Option<Box<ThreadHook>>,
}
