//! Small helpers that many programs write on a timer: [`Debounce`], [`Throttle`], [`Watchdog`], [`Heartbeat`].
//!
//! Each is one timer. Its callback runs on a thread of the runtime's pool (on a manual clock: on the thread that advances the clock), never
//! twice at once, and its panics are contained and counted as those of other callbacks. All operations take `&self`, from any thread and
//! from the callback itself; none waits, allocates or fails. Dropping the helper disposes its timer, without waiting for a callback that
//! runs. After the runtime has been shut down nothing is called any more.
//!
//! Each has three constructors: `new` for the [current runtime](crate::Runtime::current), `try_new` for an error instead of a panic when
//! the default runtime cannot be started, and `on` for a chosen runtime.
//!
//! In a task there is no need for them: a [`Delay`](crate::Delay) with [`reset`](crate::Delay::reset) in a `select!` is a debounce or a
//! watchdog, and an [`Interval`](crate::Interval) is a throttle or a heartbeat.

mod debounce;
mod heartbeat;
mod throttle;
mod watchdog;

pub use self::debounce::Debounce;
pub use self::heartbeat::Heartbeat;
pub use self::throttle::Throttle;
pub use self::watchdog::Watchdog;
