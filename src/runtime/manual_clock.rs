//! The manual clock: virtual time, moved by calls.
//!
//! Ground rules. A clock is an [`Agenda`], which says which queue is to be swept next. The driver
//! is the thread that moves the clock and runs the engines' callbacks; only a single thread drives
//! at a time. No lock is held while callbacks run.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use super::wait::{NO_LIMIT, park_on, poll_on};
use crate::engine::{Agenda, Driver, Waits, inside};
use crate::sync::{MutexGuard, Ordering, thread_id};
use crate::time::{At, Deadline, LAST, NEVER, Timestamp, whole_ns};

/// A clock that moves only by calls, for tests and simulations.
///
/// Runtimes on a manual clock have no threads: [`advance`](Self::advance) steps from due point to
/// due point and runs all due callbacks on the calling thread. The order is by due point, then by
/// the order of arming. The rest is the code of real time; only the clock and the alarm are
/// replaced.
///
/// A `ManualClock` is a handle: clones share the same clock. Several runtimes can run on one clock,
/// and several clocks can live in one process.
///
/// # Examples
///
/// A month in no time:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timer};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let daily = Timer::on(&runtime, DAY, DAY, |tick| assert_eq!(tick.lateness(), Duration::ZERO));
/// assert_eq!(clock.advance(30 * DAY), 30);
/// # drop(daily);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias("FakeTimeProvider", "mock"))]
#[derive(Clone, Default)]
pub struct ManualClock {
    pub(super) inner: std::sync::Arc<Agenda>,
}

/// The limit on callbacks of a clock that wait inside one another: all have frames on the same
/// stack.
const DEEPEST: usize = 100;

impl ManualClock {
    /// The clock with this agenda.
    pub(super) fn of(inner: &std::sync::Arc<Agenda>) -> Self {
        Self { inner: std::sync::Arc::clone(inner) }
    }

    /// The agenda of the runtimes on this clock.
    pub(crate) fn agenda(&self) -> &std::sync::Arc<Agenda> {
        &self.inner
    }

    /// A new clock, at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The present reading of the clock.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.inner.virtual_time.now())
    }

    /// Moves the clock by `by`, from due point to due point, and runs every callback that comes due
    /// on the way, each at its exact instant, on this thread. A timer that a callback arms within
    /// the span fires within the same advance. Returns the number of callbacks run, with the
    /// runtime's own, as in [`Metrics::fired`](crate::observe::Metrics::fired).
    ///
    /// A timer that another thread arms meanwhile either counts from the end of this advance, or
    /// fires within the advance when due. A second thread that advances the same clock waits for
    /// the first, also while the first runs callbacks. A call from inside a callback of this clock
    /// extends the running advance by `by` and returns 0. If a callback arms a timer with due time
    /// zero each time, the clock does not move and the advance does not end. At the end of its
    /// range, after 584 years, the clock stands still; timers due later never fire.
    ///
    /// # Panics
    /// In a deadlock: the call is made in a callback, and the driver of this clock waits, itself or
    /// through further callbacks, for the end of that callback, or of the advance that runs it.
    /// (The panic is caught and counted, as any panic of a callback.)
    ///
    /// In a callback, if 100,000 callbacks in a row have each extended the running advance, and its
    /// end has not come nearer: for example, a timer whose callback advances the clock by its
    /// period. From then on no callback extends the running advance, which ends where its caller
    /// has asked for, or now.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let ticks =
    ///     Timer::on(&runtime, Duration::from_millis(10), Duration::from_millis(10), |_| {});
    /// assert_eq!(clock.advance(Duration::from_millis(35)), 3);
    /// assert_eq!(clock.advance(Duration::from_millis(5)), 1);
    /// # drop(ticks);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("tick", "advanceTimersByTime"))]
    pub fn advance(&self, by: Duration) -> u64 {
        self.drive_from(|from| crate::time::instant(from, by))
    }

    /// As [`advance`](Self::advance), up to `at`: a [`Timestamp`] of this clock, or a
    /// `std::time::Instant` as [`Runtime::instant`](crate::Runtime::instant) gives it. If the clock
    /// shows a later instant already, the clock stays, and only the callbacks that are due now run.
    ///
    /// # Panics
    /// As for [`advance`](Self::advance).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let deadline = clock.now() + Duration::from_secs(60);
    /// let timer =
    ///     TimerBuilder::on(&runtime).period(Duration::from_secs(10)).start_exclusive(|_| {});
    /// assert_eq!(clock.advance_to(deadline), 6);
    /// assert_eq!(clock.advance_to(deadline), 0);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn advance_to(&self, at: impl Into<Deadline>) -> u64 {
        let at = match at.into().0 {
            At::Timestamp(at) => at.as_ns(),
            At::Instant(at) => self.inner.virtual_time.origin().ns(at),
        };
        self.drive_from(|from| at.max(from))
    }

    /// Moves the clock to the next due point, and runs all callbacks that are due there. Returns
    /// the instant; `None`, if no timer waits. (An instant at which no callback runs is possible:
    /// see [`Runtime::next_due`](crate::Runtime::next_due).)
    ///
    /// # Panics
    /// As for [`advance`](Self::advance).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, OnceTimer, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let seconds = Duration::from_secs;
    /// let timers = [5, 2, 5].map(|due| OnceTimer::on(&runtime, seconds(due), |_| {}));
    /// let zero = clock.now();
    /// assert_eq!(
    ///     [(); 3].map(|()| clock.step()),
    ///     [Some(zero + seconds(2)), Some(zero + seconds(5)), None]
    /// );
    /// # drop(timers);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn step(&self) -> Option<Timestamp> {
        let at = self.next_due()?;
        self.advance_to(at);
        Some(at)
    }

    /// The number of timers armed on this clock so far.
    pub(crate) fn armed(&self) -> u64 {
        self.inner.virtual_time.armed()
    }

    /// Drives the clock up to the instant that `target` computes from the present one, or from the
    /// target of the running advance.
    fn drive_from(&self, target: impl FnOnce(u64) -> u64) -> u64 {
        let inner = &*self.inner;
        let mut driver = inner.driver.lock();
        if driver.thread == Some(thread_id()) {
            let target = target(driver.target).min(LAST);
            inner.extend(driver, target);
            return 0;
        }
        if driver.thread.is_some() {
            drop(driver);
            driver = self.wait_to_drive();
        }
        let target = target(inner.virtual_time.now()).min(LAST);
        self.drive(driver, target)
    }

    /// Waits until no thread drives.
    #[cold]
    fn wait_to_drive(&self) -> MutexGuard<'_, Driver> {
        let inner = &*self.inner;
        let mut waits = None;
        let free = park_on(poll_fn(|context| {
            let mut driver = inner.driver.lock();
            if driver.thread.is_none() {
                return Poll::Ready(Some(driver));
            }
            waits = waits.take().or_else(|| Waits::begin(inner.address()));
            if waits.is_none() {
                return Poll::Ready(None);
            }
            driver.waiting.push(context.waker().clone());
            Poll::Pending
        }));
        free.expect("this advance would wait for itself: the driver of the clock waits for the calling callback")
    }

    /// Drives the clock up to `target` on this thread. Caller: has found that no thread drives.
    fn drive(&self, mut driver: MutexGuard<'_, Driver>, target: u64) -> u64 {
        let inner = &*self.inner;
        let waiting = std::mem::take(&mut driver.waiting);
        *driver = Driver { thread: Some(thread_id()), asked: target, target, waiting, ..Driver::default() };
        drop(driver);
        inside(inner.address(), || {
            loop {
                let run = inner.run_due();
                let mut driver = inner.driver.lock();
                driver.run += run;
                if inner.virtual_time.now() >= driver.target {
                    // A thread may be about to arm a timer by an earlier reading of the clock.
                    drop(driver);
                    inner.wait_for_arming();
                    driver = inner.driver.lock();
                }
                let (now, next) = (inner.virtual_time.now(), inner.first());
                if next > driver.target && now >= driver.target {
                    driver.thread = None;
                    // The wakers are of threads: they may be called with the lock held.
                    while let Some(waker) = driver.waiting.pop() {
                        waker.wake();
                    }
                    return driver.run;
                }
                inner.virtual_time.set(next.min(driver.target).max(now));
            }
        })
    }

    /// Runs a future on this thread. Whenever the future waits, the clock advances automatically to
    /// the next due point. Returns the output of the future. So a test of code that waits takes no
    /// time, and repeats exactly.
    ///
    /// The future may run an executor with any number of tasks: the clock moves when no task can
    /// continue. If no timer waits, or [automatic advance](Self::set_auto_advance) is switched off,
    /// a waiting future blocks the thread until its waker is called, by a further thread for
    /// instance. (While timers wait, the clock advances even if the future waits for a further
    /// thread.)
    ///
    /// May be called in a callback of this clock. The call then moves the clock, and due callbacks
    /// run inside of the calling callback. So waits in callbacks end last in, first out: a callback
    /// continues when its future is ready and all callbacks begun during the wait have returned.
    ///
    /// # Panics
    /// In a deadlock, as [`advance`](Self::advance): the future waits, and the clock cannot go to
    /// the next due point, since its driver waits for the callback that makes this call.
    ///
    /// In a callback, if 100 callbacks of this clock already wait inside one another: for example,
    /// a timer of one second whose callbacks overlap and wait for two seconds never lets the first
    /// callback continue. (The panic is caught and counted, as any panic of a callback.) Also if
    /// 100,000 callbacks in a row have each extended the running advance: see
    /// [`advance`](Self::advance).
    ///
    /// # Examples
    ///
    /// Two tasks that wait for a day and for an hour:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// const HOUR: Duration = Duration::from_secs(3600);
    /// let executor = smol::LocalExecutor::new();
    /// let day = executor.spawn(Delay::on(&runtime, 24 * HOUR));
    /// let hour = executor.spawn(Delay::on(&runtime, HOUR));
    /// clock.block_on(executor.run(async {
    ///     hour.await;
    ///     assert_eq!(clock.now().as_duration(), HOUR);
    ///     day.await;
    ///     assert_eq!(clock.now().as_duration(), 24 * HOUR);
    /// }));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        poll_on(Some(self), None, future).expect(NO_LIMIT)
    }

    /// Runs the callbacks due next, and moves the clock to their instant if need be and allowed.
    /// False: this thread has nothing to do, and `rest` has been called.
    ///
    /// # Panics
    /// See [`Self::block_on`].
    pub(crate) fn go_on(&self, rest: impl FnOnce()) -> bool {
        let inner = &*self.inner;
        let next = inner.earliest_due();
        let driver = inner.driver.lock();
        let inside = driver.thread == Some(thread_id());
        let now = inner.virtual_time.now();
        let goes = !inner.stands_still.load(Ordering::Relaxed);
        // Inside a callback the clock goes up to the target of the running advance in any case.
        let limit = if inside { now.max(driver.target) } else { now };
        let waits = next == NEVER || (next > limit && !goes);
        // The driver may have swept further ticks than the waiting callback's.
        let swept = inside && !inner.due.lock().is_empty();
        if waits && !swept {
            drop(driver);
            rest();
            return false;
        }
        if !inside && driver.thread.is_none() {
            self.drive(driver, next.max(now));
            return true;
        }
        if !inside {
            drop(driver);
            let Some(_waits) = Waits::begin(inner.address()) else {
                panic!("this wait would never end: the driver of the manual clock waits for the calling callback");
            };
            rest();
            return false;
        }
        if driver.depth == DEEPEST {
            drop(driver);
            panic!("{DEEPEST} callbacks of a manual clock wait inside one another");
        }
        let to = if swept { now } else { next.max(now) };
        let target = driver.target.max(to);
        inner.extend(driver, target);
        let mut driver = inner.driver.lock();
        driver.depth += 1;
        let outer = std::mem::take(&mut driver.extensions);
        inner.virtual_time.set(to);
        drop(driver);
        let run = inner.run_due();
        let mut driver = inner.driver.lock();
        driver.depth -= 1;
        driver.extensions = outer;
        driver.run += run;
        true
    }

    /// Switches automatic advance on or off: whether [`block_on`](Self::block_on) moves the clock
    /// when the future waits. Default: on. While off, the clock moves by
    /// [`advance`](Self::advance), called by the future itself or by another thread.
    ///
    /// # Examples
    ///
    /// A test that looks between two instants:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// clock.set_auto_advance(false);
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// clock.block_on(async {
    ///     let delay = Delay::on(&runtime, Duration::from_secs(2));
    ///     clock.advance(Duration::from_secs(1));
    ///     assert!(!delay.is_elapsed());
    ///     clock.advance(Duration::from_secs(1));
    ///     delay.await;
    /// });
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("pause", "resume"))]
    pub fn set_auto_advance(&self, on: bool) {
        self.inner.stands_still.store(!on, Ordering::Relaxed);
    }

    /// Moves the clock by `by` at once, as if the process had been stopped: no callback runs on the
    /// way. Timers that came due fire late, at the next [`advance`](Self::advance), even by zero.
    /// For testing [`MissedTicks`](crate::MissedTicks) policies.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |tick| {
    ///     assert_eq!(tick.lateness(), Duration::from_secs(4));
    /// });
    /// clock.stall(Duration::from_secs(5));
    /// assert_eq!(clock.advance(Duration::ZERO), 1);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn stall(&self, by: Duration) {
        let inner = &*self.inner;
        let _driver = inner.driver.lock();
        inner.virtual_time.set(crate::time::instant(inner.virtual_time.now(), by).min(LAST));
    }

    /// The wall clock that goes with this clock. It shows [`SystemTime::UNIX_EPOCH`] at first, and
    /// advances with this clock and in [`suspend`](Self::suspend).
    pub fn wall(&self) -> SystemTime {
        self.inner.virtual_time.wall()
    }

    /// Sets the wall clock, forward or back. Timers that count elapsed time do not notice. A
    /// [`WallTimer`](crate::WallTimer) follows: if stepped over, it fires at the next
    /// [`advance`](Self::advance), even by zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, WallTimer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let hour = Duration::from_secs(3600);
    /// let timer = WallTimer::on(&runtime, clock.wall() + 3 * hour, |_| println!("three o'clock"));
    /// clock.set_wall(clock.wall() - hour);
    /// assert_eq!(clock.advance(3 * hour), 0); // it is two o'clock
    /// clock.set_wall(clock.wall() + 5 * hour);
    /// assert_eq!(clock.advance(Duration::ZERO), 1);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn set_wall(&self, wall: SystemTime) {
        self.inner.virtual_time.set_wall(wall);
        self.inner.follow_wall();
    }

    /// Simulates a suspend of the system: `by` passes on the wall clock and for runtimes on
    /// [`RuntimeClock::Boot`](crate::RuntimeClock::Boot), and for no further runtimes. No callback
    /// runs meanwhile; timers that came due fire at the next [`advance`](Self::advance), even by
    /// zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, RuntimeClock, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let boot = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot).start()?;
    /// let second = Duration::from_secs(1);
    /// let one = Timer::on(&runtime, second, Duration::ZERO, |_| println!("a second of use"));
    /// let other = Timer::on(&boot, second, Duration::ZERO, |_| println!("a second, or more"));
    /// clock.suspend(second);
    /// assert_eq!(clock.advance(Duration::ZERO), 1);
    /// assert_eq!(clock.advance(second), 1);
    /// # drop((one, other));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn suspend(&self, by: Duration) {
        {
            let _driver = self.inner.driver.lock();
            self.inner.virtual_time.suspend(whole_ns(by).min(LAST));
        }
        self.inner.follow_wall();
    }

    /// The instant at which a timer of some runtime on this clock fires next; see
    /// [`Runtime::next_due`](crate::Runtime::next_due).
    pub fn next_due(&self) -> Option<Timestamp> {
        Timestamp::shown(self.inner.earliest_due())
    }
}

shown!([] ManualClock, |this| "now" => format_args!("{}", this.now()), "wall" => this.wall());

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/advance_vs_arm.rs"]
mod loom_models;
