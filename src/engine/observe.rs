//! The engine's side of an observer: contexts of callbacks, and news of the pool's threads.
//!
//! Ground rules. An observer is user code: it runs with no lock held. Without an observer a new
//! timer reads one word ([`Hooks::context`]), and a firing none: the context stands in the
//! annotations of its entry ([`super::entry`]). The thread that adds threads must
//! go on, so a timer on the pool tells of them ([`PoolNews`]).

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::time::{Duration, Instant};

use super::entry::{Exclusive, change};
use super::label::{Hooks, Label};
use super::{Engine, EntryRef, Firing, OwnedEntry};
use crate::pool::ThreadMetrics;
use crate::queue::MissedTicks;
use crate::sync::unmodelled::{AtomicI64, AtomicU64, OnceLock};
use crate::sync::{Arc, Ordering};
use crate::unwind::discard;

/// Threads of a pool that were added or refused: see
/// [`Observer::threads_changed`](crate::observe::Observer::threads_changed).
#[derive(Debug)]
#[non_exhaustive]
pub struct ThreadsChanged {
    /// Threads added since the last call.
    pub added: u64,
    /// Threads refused by the system since the last call.
    pub refused: u64,
    /// The reason for the last of these refusals, if the system gave one.
    pub error: Option<io::Error>,
    /// The threads *now*.
    pub threads: ThreadMetrics,
}

thread_local! {
    /// The timer whose callback has just ended, if its length was told in its context.
    static TOLD: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// The context in which the callbacks of a timer run: it runs each of them.
///
/// Called on the thread of the callback. Where callbacks may overlap, several threads call it at
/// once. It is dropped with the callback: when the timer is disposed, or when a once timer has
/// fired.
///
/// # Examples
///
/// See [`Observer`](crate::observe::Observer).
pub type CallbackContext = Box<dyn Fn(ObservedCallback<'_>) + Send + Sync>;

/// A callback that is due: to be run by its [`CallbackContext`].
///
/// Dropping it without [`run`](Self::run) leaves the callback out.
///
/// # Examples
///
/// See [`Observer`](crate::observe::Observer).
pub struct ObservedCallback<'a> {
    label: Option<&'a Label>,
    late: Option<Duration>,
    run: &'a mut dyn FnMut(),
}

impl ObservedCallback<'_> {
    /// The [name](crate::TimerBuilder::name) of the timer.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.label.map(|label| &*label.name)
    }

    /// The place in the source at which the timer was named.
    #[must_use]
    pub fn timer_site(&self) -> Option<&'static Location<'static>> {
        self.label.map(|label| label.site)
    }

    /// How late the callback begins. `None`: the wall clock was set back before a wall timer's time
    /// meanwhile.
    #[must_use]
    pub fn lateness(&self) -> Option<Duration> {
        self.late
    }

    /// Runs the callback. If it panics, or takes long, the hooks of the runtime and the observer
    /// are told before this returns; it never unwinds.
    pub fn run(self) {
        (self.run)();
    }
}

shown!([] ObservedCallback [<'_>], |this| "timer_name" => this.timer_name(), "lateness" => this.lateness());

/// The observer's context of a new timer.
pub(crate) struct Context {
    run: CallbackContext,
    limit: Option<Duration>,
}

impl Context {
    /// Of a timer that the calling thread makes. `None`: the observer has no context for it.
    #[inline]
    pub(super) fn here(engine: &Engine) -> Option<Self> {
        engine.hooks.context.as_ref().and_then(|context| Self::capture(&engine.hooks, &**context))
    }

    #[cold]
    #[inline(never)]
    fn capture(hooks: &Hooks, context: &dyn Fn() -> Option<CallbackContext>) -> Option<Self> {
        context().map(|run| Self { run, limit: hooks.slow.as_ref().map(|slow| slow.limit) })
    }

    /// Runs a callback. Hooks and observer are told of its panic and of its length here, inside of
    /// the context.
    pub(super) fn run(&self, node: &EntryRef, late: Option<Duration>, callback: &mut dyn FnMut()) {
        TOLD.set(std::ptr::null());
        let mut told = false;
        (self.run)(ObservedCallback {
            label: node.label().map(|label| &**label),
            late,
            run: &mut || {
                let begun = Instant::now();
                let panicked = catch_unwind(AssertUnwindSafe(&mut *callback)).err();
                let took = begun.elapsed();
                let slow = self.limit.is_some_and(|limit| took > limit).then(|| (took, late.unwrap_or_default()));
                told = slow.is_some();
                if slow.is_some() || panicked.is_some() {
                    match node.shard().number.engine() {
                        Some(engine) => engine.ended_badly(node.label().cloned(), slow, panicked),
                        None => panicked.into_iter().for_each(discard),
                    }
                }
            },
        });
        if told {
            TOLD.set(node.address());
        }
    }
}

/// Whether the length of the callback of this timer, which has just ended on this thread, was told
/// in its context.
pub(super) fn was_told(timer: *const ()) -> bool {
    TOLD.replace(std::ptr::null()) == timer
}

/// Tells the observer of threads that were added or refused.
#[derive(Default)]
pub(super) struct PoolNews {
    /// Threads that are still to be told of.
    added: AtomicU64,
    refused: AtomicU64,
    /// Of the last refusal, as the system numbers errors; zero for none.
    error: AtomicI64,
    /// An exclusive timer, idle or due at once: one thread tells at a time, and tells again if
    /// there is news meanwhile. Made with the first news.
    job: OnceLock<OwnedEntry>,
}

impl PoolNews {
    /// A thread was added, or refused with this error. Called with no lock held.
    pub(super) fn send(&self, engine: &Arc<Engine>, refused: Option<&io::Error>) {
        if engine.hooks.threads.is_none() {
            return;
        }
        if let Some(error) = refused {
            self.error.store(error.raw_os_error().map_or(0, i64::from), Ordering::Relaxed);
        }
        let count = if refused.is_some() { &self.refused } else { &self.added };
        count.fetch_add(1, Ordering::Relaxed);
        let job = self.job.get_or_init(|| {
            let weak = Arc::downgrade(engine);
            let tell = Exclusive::<_, true>(move |_: &Firing| {
                if let Some(engine) = weak.upgrade() {
                    engine.pool_news.tell(&engine);
                }
            });
            OwnedEntry::start_own(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), tell)
        });
        let _ = change(job, Duration::ZERO, Duration::MAX);
    }

    fn tell(&self, engine: &Engine) {
        let (Some(hook), Some(native)) = (&engine.hooks.threads, engine.native()) else { return };
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let (added, refused) = (take(&self.added), take(&self.refused));
        if added + refused > 0 {
            let error = match self.error.load(Ordering::Relaxed) {
                0 => None,
                code => Some(io::Error::from_raw_os_error(code as i32)).filter(|_| refused > 0),
            };
            let threads = native.pool.metrics(engine.clock.now()).threads;
            hook(ThreadsChanged { added, refused, error, threads });
        }
    }
}
