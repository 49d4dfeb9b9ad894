//! Small helpers that many programs write on a timer: [`Debounce`], [`Throttle`], [`Watchdog`],
//! [`Heartbeat`].
//!
//! Each is one timer. Its callback runs on a thread of the runtime's pool (on a manual clock: on
//! the thread that advances the clock), never twice at once, and its panics are contained and
//! counted as those of other callbacks. All operations take `&self`, from any thread and from the
//! callback itself; none waits, allocates or fails. Dropping the helper disposes its timer, without
//! waiting for a callback that runs. After the runtime has been shut down nothing is called any
//! more.
//!
//! Each has three constructors: `new` for the [current runtime](crate::Runtime::current), `try_new`
//! for an error instead of a panic when the default runtime cannot be started, and `on` for a
//! chosen runtime.
//!
//! In a task there is no need for them: a [`Delay`](crate::Delay) with
//! [`reset`](crate::Delay::reset) in a `select!` is a debounce or a watchdog, and an
//! [`Interval`](crate::Interval) is a throttle or a heartbeat.

/// Constructors and snapshot of a helper, which has a function `start`.
macro_rules! constructors {
    ($(#[$doc:meta])* $helper:ident, $duration:ident) => {
        impl $helper {
            $(#[$doc])*
            ///
            /// # Panics
            /// When the default runtime cannot be started; [`try_new`](Self::try_new) returns the
            /// reason.
            #[track_caller]
            pub fn new($duration: Duration, callback: impl FnMut() + Send + 'static) -> Self {
                Self::start(Timer::builder(), $duration, callback)
            }

            /// As [`new`](Self::new), with an error instead of a panic.
            ///
            /// # Errors
            /// As for [`Timer::try_new`].
            pub fn try_new(
                $duration: Duration,
                callback: impl FnMut() + Send + 'static,
            ) -> Result<Self, $crate::error::RuntimeError> {
                let builder = Timer::builder();
                builder.usable().map(|()| Self::start(builder, $duration, callback))
            }

            /// As [`new`](Self::new), on this runtime.
            pub fn on(runtime: &$crate::Runtime, $duration: Duration, callback: impl FnMut() + Send + 'static) -> Self {
                Self::start(TimerBuilder::on(runtime), $duration, callback)
            }

            /// The state of its timer now, with the next due point; see [`Timer::snapshot`].
            #[must_use]
            pub fn snapshot(&self) -> $crate::observe::TimerSnapshot {
                self.timer.snapshot()
            }
        }
    };
}

mod debounce;
mod heartbeat;
mod throttle;
mod watchdog;

pub use self::debounce::Debounce;
pub use self::heartbeat::Heartbeat;
pub use self::throttle::Throttle;
pub use self::watchdog::Watchdog;

// A panic of a callback leaves the state whole.
unwind_safe!(Debounce, Throttle);

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};
    use std::time::{Duration, SystemTime};

    use super::{Debounce, Throttle};
    use crate::engine::Expired;
    use crate::pool::Pool;
    use crate::runtime::{Alarm, Runtime};
    use crate::{CancellationTokenSource, DelayQueue, Timer, WallTimer};

    /// What a call that comes with the end of its runtime finds in the queues of the pool: a job
    /// that is none of its own.
    #[derive(Default)]
    struct Stranger(AtomicUsize);

    impl Wake for Stranger {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Each call here holds a lock of the crate's or of the program's, and makes a tick due at
    /// once. The pool has stopped, as if between the claim of that tick and its job.
    #[test]
    fn s24_a_call_as_its_runtime_ends_drops_no_jobs_of_others() {
        // Without descriptors: a pool that has stopped closes them, and here alarms are set later.
        let builder = Runtime::builder().alarm(Alarm::Portable).queues(1).workers(2).max_threads(2);
        let runtime = builder.start().expect("the system has threads");
        let native = runtime.engine().native.as_ref().expect("real time");
        Pool::stop(&**runtime.engine());
        assert_eq!(native.pool.wait_until_ended(None), 0);
        let stranger = Arc::new(Stranger::default());
        let check = |call: &str, code: &mut dyn FnMut()| {
            let expired = Expired::Waker(Waker::from(Arc::clone(&stranger)));
            native.pool.submit(expired, 0);
            code();
            assert_eq!(stranger.0.load(Ordering::SeqCst), 0, "{call}");
        };
        let throttle = Throttle::on(&runtime, Duration::from_secs(1), || {});
        check("a throttle", &mut || assert!(throttle.call()));
        let debounce = Debounce::on(&runtime, Duration::from_secs(1), || {});
        debounce.call();
        check("a debounce", &mut || assert!(debounce.flush()));
        let queue = DelayQueue::<u32, ()>::on(&runtime);
        let mut receiver = std::pin::pin!(queue.recv());
        let mut context = Context::from_waker(Waker::noop());
        check("a delay queue", &mut || {
            queue.insert(1, (), SystemTime::now() + Duration::from_secs(3600)).expect("a new key");
            assert!(receiver.as_mut().poll(&mut context).is_pending());
            queue.insert(2, (), SystemTime::now() - Duration::from_secs(1)).expect("a new key");
        });
        let source = CancellationTokenSource::on(&runtime);
        check("a timed cancel", &mut || source.cancel_after(Duration::from_nanos(1)));
        check("a job", &mut || runtime.execute(|| {}));
        let timer = Timer::on(&runtime, Duration::MAX, Duration::MAX, |_| {});
        check("a timer", &mut || _ = timer.fire_now());
        let wall = WallTimer::on(&runtime, SystemTime::now() + Duration::from_secs(3600), |_| {});
        check("a wall timer", &mut || _ = wall.reset_at(SystemTime::UNIX_EPOCH));
        runtime.shutdown(Duration::ZERO).expect("all threads have ended");
        assert_eq!(stranger.0.load(Ordering::SeqCst), 7, "by the thread that ends the runtime");
    }
}
