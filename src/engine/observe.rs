//! What a program sees of callbacks and threads: names of timers, hooks, and the observer.
//!
//! Ground rules. Hooks and observer are user code: they run with no lock held. Without an observer
//! a new timer reads one word ([`Hooks::observer`]), and a firing none: the context stands in the
//! annotations of its entry ([`super::entry`]), which has a place for a name only if it has one.
//! The thread that adds threads must go on, so a timer on the pool tells of them ([`PoolNews`]).

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Weak;
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::entry::{Exclusive, change};
use super::{Engine, EntryRef, Firing, OwnedEntry};
use crate::pool::ThreadMetrics;
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::sync::unmodelled::{AtomicU64, Mutex, OnceLock};
use crate::sync::{Arc, Ordering};
use crate::unwind::{Payload, Tell, catch_all, discard};

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

pub(crate) type SlowHook = dyn Fn(&SlowCallback) + Send + Sync;

/// What the program wants to be told.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Called with a panic of a callback, a destructor of user data or a waker.
    pub(crate) panicked: Option<Box<dyn Fn(CallbackPanic) + Send + Sync>>,
    /// Called with each callback that took longer than the limit.
    pub(crate) slow: Option<Box<SlowHook>>,
    /// `None`: the length of callbacks is not measured.
    pub(crate) slow_limit: Option<Duration>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// Called on a thread of the pool, before its first job and after its last.
    pub(crate) thread_begins: Option<Box<dyn Fn() + Send + Sync>>,
    pub(crate) thread_ends: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Hooks {
    /// False: neither the observer nor the program's own hook is there to be told.
    pub(super) fn tell_panic(&self, panic: CallbackPanic) -> bool {
        self.observer.iter().for_each(|observer| catch_all(|| observer.panicked(&panic)));
        match &self.panicked {
            Some(handler) => catch_all(|| handler(panic)),
            None => discard(panic.payload),
        }
        self.observer.is_some() || self.panicked.is_some()
    }

    pub(super) fn tell_slow(&self, slow: &SlowCallback) {
        self.observer.iter().for_each(|observer| observer.slow_callback(slow));
        self.slow.iter().for_each(|hook| hook(slow));
    }
}

/// What is told of the timer of a callback.
macro_rules! named {
    ($told:ident $([$($args:tt)*])?) => {
        impl $told $($($args)*)? {
            /// The [name](crate::TimerBuilder::name) of the timer whose callback this is about.
            #[must_use]
            pub fn timer_name(&self) -> Option<&str> {
                self.label.as_ref().map(|label| &*label.name)
            }

            /// The place in the source at which the timer was named.
            #[must_use]
            pub fn timer_site(&self) -> Option<&'static Location<'static>> {
                self.label.as_ref().map(|label| label.site)
            }
        }
    };
}

/// Is told what a runtime does, and may give the callbacks of new timers a context: see
/// [`RuntimeBuilder::observer`](crate::RuntimeBuilder::observer).
///
/// The crate `timerqueue-adapters` has an observer for subscribers of the crate tracing. Every
/// method has a default that does nothing.
///
/// **Threads.** An observer runs with no lock held. It may block and make timers, as a callback
/// may. Panics of [`panicked`](Self::panicked) are ignored; those of the other methods are panics
/// of the code that calls: see each.
///
/// # Examples
///
/// The tenant that makes a timer is the tenant of its callbacks:
///
/// ```
/// use std::cell::Cell;
/// use std::time::Duration;
/// use timerqueue::{
///     ManualClock, OnceTimer, Runtime, observe::{CallbackContext, ObservedCallback, Observer},
/// };
///
/// thread_local! { static TENANT: Cell<u32> = const { Cell::new(0) } }
///
/// struct Tenants;
///
/// impl Observer for Tenants {
///     fn timer_created(&self) -> Option<CallbackContext> {
///         let tenant = TENANT.get();
///         (tenant != 0).then(|| -> CallbackContext {
///             Box::new(move |callback: ObservedCallback<'_>| {
///                 let outer = TENANT.replace(tenant);
///                 callback.run();
///                 TENANT.set(outer);
///             })
///         })
///     }
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).observer(Tenants).start()?;
/// TENANT.set(7);
/// let timer = OnceTimer::on(&runtime, Duration::from_secs(1), |_| assert_eq!(TENANT.get(), 7));
/// TENANT.set(0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!((runtime.metrics().fired(), runtime.metrics().panics, TENANT.get()), (1, 0, 0));
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The calling thread makes a timer, or calls [`Runtime::execute`](crate::Runtime::execute).
    /// `Some`: the context in which the callbacks run. Futures and tokens have no context, and the
    /// timers of this crate itself have none. A panic goes to the caller of the constructor.
    fn timer_created(&self) -> Option<CallbackContext> {
        None
    }

    /// The runtime has caught a panic: told when and where
    /// [`on_panic`](crate::RuntimeBuilder::on_panic) is, right before that.
    fn panicked(&self, panic: &CallbackPanic) {
        let _ = panic;
    }

    /// A callback ran for longer than the limit of
    /// [`on_slow_callback`](crate::RuntimeBuilder::on_slow_callback), or without that hook for
    /// longer than [`slow_limit`](Self::slow_limit). Called on the thread of the callback, right
    /// before that hook. A panic is told as one of that hook.
    fn slow_callback(&self, slow: &SlowCallback) {
        let _ = slow;
    }

    /// The limit for [`slow_callback`](Self::slow_callback) where the runtime has no hook of its
    /// own; asked once, at the start. `None`: nothing is measured. With a limit each callback costs
    /// three readings of a clock more.
    fn slow_limit(&self) -> Option<Duration> {
        None
    }

    /// The pool has grown since callbacks block, or the system has refused it a thread. Called by a
    /// timer of the runtime, a single one at a time, which is counted as a callback: so an observer
    /// that blocks takes one thread, and a panic is one of a callback.
    fn threads_changed(&self, change: &ThreadsChanged) {
        let _ = change;
    }
}

/// A panic that the runtime has caught: see
/// [`RuntimeBuilder::on_panic`](crate::RuntimeBuilder::on_panic).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_panic(|panic| {
///         assert_eq!(
///             (panic.timer_name(), panic.message()),
///             (Some("nightly report"), Some("no paper"))
///         );
///         // "no paper", in the callback of the timer "nightly report" (src/main.rs:14:10)
///         eprintln!("{panic}");
///     })
///     .start()?;
/// let timer = TimerBuilder::on(&runtime)
///     .name("nightly report")
///     .due(Duration::ZERO)
///     .start(|_| panic!("no paper"));
/// clock.advance(Duration::ZERO);
/// assert_eq!(runtime.metrics().panics, 1);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct CallbackPanic {
    pub(super) payload: Box<dyn Any + Send>,
    /// Of the timer whose callback panicked, if it has a name.
    pub(super) label: Option<Arc<Label>>,
}

impl CallbackPanic {
    /// The value that the panic carries.
    #[must_use]
    pub fn payload(&self) -> &(dyn Any + Send) {
        &*self.payload
    }

    /// As [`payload`](Self::payload), by value, as [`resume_unwind`](std::panic::resume_unwind)
    /// takes it.
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload
    }

    /// The message of the panic; `None` if the panic carries another value than a text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        let payload = self.payload();
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
    }
}

named!(CallbackPanic);

/// ` of the timer "name" (site)`, or nothing.
fn write_label(f: &mut fmt::Formatter<'_>, label: Option<&Label>) -> fmt::Result {
    label.map_or(Ok(()), |Label { name, site }| write!(f, " of the timer {name:?} ({site})"))
}

/// Message, name and site, for logs.
impl fmt::Display for CallbackPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(message) => write!(f, "{message:?}")?,
            None => f.write_str("a panic without a text")?,
        }
        if self.label.is_some() {
            f.write_str(", in the callback")?;
        }
        write_label(f, self.label.as_deref())
    }
}

shown!([] CallbackPanic, |this|
    "message" => this.message(), "timer_name" => this.timer_name(),
    "timer_site" => this.timer_site().map(ToString::to_string)
);

/// A callback that took long: see
/// [`RuntimeBuilder::on_slow_callback`](crate::RuntimeBuilder::on_slow_callback).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_slow_callback(Duration::from_millis(1), |slow| {
///         assert!(slow.took() > Duration::from_millis(1) && slow.timer_name() == Some("sweeper"));
///         // a callback of the timer "sweeper" (src/main.rs:12:42) took 5.1ms, and began 0ns late
///         eprintln!("{slow}");
///     })
///     .start()?;
/// let timer = TimerBuilder::on(&runtime).name("sweeper").due(Duration::ZERO).start(|_| {
///     std::thread::sleep(Duration::from_millis(5));
/// });
/// clock.advance(Duration::ZERO);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct SlowCallback {
    pub(super) took: Duration,
    /// By how much the callback began after its due point.
    pub(super) late: Duration,
    pub(super) label: Option<Arc<Label>>,
}

impl SlowCallback {
    /// How long the callback ran, in real time.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.took
    }

    /// How late the callback began, by the clock of the runtime.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.late
    }
}

named!(SlowCallback);

/// A line for logs.
impl fmt::Display for SlowCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a callback")?;
        write_label(f, self.label.as_deref())?;
        write!(f, " took {:.1?}, and began {:.1?} late", self.took, self.late)
    }
}

shown!([] SlowCallback, |this|
    "took" => this.took, "lateness" => this.late, "timer_name" => this.timer_name(),
    "timer_site" => this.timer_site().map(ToString::to_string)
);

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

named!(ObservedCallback[<'_>]);

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
        engine.hooks.observer.as_ref().and_then(|observer| Self::capture(&engine.hooks, &**observer))
    }

    #[cold]
    #[inline(never)]
    fn capture(hooks: &Hooks, observer: &dyn Observer) -> Option<Self> {
        observer.timer_created().map(|run| Self { run, limit: hooks.slow_limit })
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
    /// Threads that are still to be told of: the number added, refused, and why the last was
    /// refused.
    news: Mutex<(u64, u64, Option<io::Error>)>,
    /// An exclusive timer, idle or due at once: one thread tells at a time, and tells again if
    /// there is news meanwhile. Made with the first news.
    job: OnceLock<OwnedEntry>,
}

impl PoolNews {
    /// A thread was added, or refused with this error. Called with no lock held.
    pub(super) fn send(&self, engine: &Arc<Engine>, refused: Option<&io::Error>) {
        if engine.hooks.observer.is_none() {
            return;
        }
        {
            let (added, all_refused, last) = &mut *self.news.lock();
            *added += u64::from(refused.is_none());
            if let Some(error) = refused {
                *all_refused += 1;
                *last = error.raw_os_error().map(io::Error::from_raw_os_error);
            }
        }
        let job = self.job.get_or_init(|| {
            let weak = Arc::downgrade(engine);
            let tell = Exclusive::<_, true>(move |_: &Firing| {
                if let Some(engine) = weak.upgrade() {
                    engine.pool_news.tell(&engine);
                }
            });
            OwnedEntry::start_own(engine, tell)
        });
        let _ = change(job, Duration::ZERO, Duration::MAX);
    }

    fn tell(&self, engine: &Engine) {
        let (Some(observer), Some(native)) = (&engine.hooks.observer, &engine.native) else { return };
        let (added, refused, error) = std::mem::take(&mut *self.news.lock());
        if added + refused > 0 {
            let threads = native.pool.metrics(engine.clock.now()).threads;
            observer.threads_changed(&ThreadsChanged { added, refused, error, threads });
        }
    }
}

// ---------------------------------------------------------------- how a panic finds its handler when the runtime may be gone

// A timer that is dropped counts itself out of its shard and then runs the destructor of its
// payload. Meanwhile another thread may free engine and shard. So the dropping thread takes the
// number of the runtime along, which is given once, and looks here if the destructor panics. The
// lock is a leaf lock, and no reference to an engine is dropped under it.

/// The engines that have not been freed.
static ENGINES: Mutex<Vec<(EngineNumber, Weak<Engine>)>> = Mutex::new(Vec::new());

/// The number of a runtime, which no other runtime of the process gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EngineNumber(NonZeroU64);

impl EngineNumber {
    /// Numbers an engine that is being made; its drop calls [`Self::remove`].
    pub(super) fn of(engine: &Weak<Engine>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = Self(NonZeroU64::MIN.saturating_add(NEXT.fetch_add(1, Ordering::Relaxed)));
        ENGINES.lock().push((number, Weak::clone(engine)));
        number
    }

    pub(super) fn remove(self) {
        let mut engines = ENGINES.lock();
        let at = engines.iter().position(|(number, _)| *number == self);
        let gone = at.map(|at| engines.swap_remove(at));
        drop(engines);
        drop(gone);
    }

    /// `None`: the runtime is gone.
    pub(super) fn engine(self) -> Option<Arc<Engine>> {
        ENGINES.lock().iter().find(|(number, _)| *number == self)?.1.upgrade()
    }

    /// As [`Tell::tell`], of a timer with this name.
    pub(super) fn tell_of(self, payload: Payload, label: Option<Arc<Label>>) {
        match self.engine() {
            Some(engine) => engine.handle_panic(payload, label),
            None => discard(payload),
        }
    }
}

impl Tell for EngineNumber {
    fn tell(&self, payload: Payload) {
        self.tell_of(payload, None);
    }
}
