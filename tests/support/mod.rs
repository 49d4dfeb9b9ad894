//! Test support: a runtime on virtual time, gates and journals for callbacks, a watchdog.
//! Submodules have single polls of futures, child processes, and counts of threads and descriptors.
//!
//! Ground rules. No helper sleeps in order to synchronise: callbacks meet at a [`Gate`], and
//! [`eventually`] polls a condition that must become true. A test that may hang because of a bug
//! runs under [`within`]. The runtime catches panics, so a check inside a callback stores its
//! result in a [`Journal`].

pub(crate) mod child;
pub(crate) mod poll;
pub(crate) mod process;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use timerqueue::{ManualClock, Runtime, Tick, Timer, TimerBuilder, Timestamp, WallTick};

/// "Never", for due time and period.
pub(crate) const NEVER: Duration = Duration::MAX;
/// The time limit for an event that must happen, generous enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

pub(crate) const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A runtime with one queue on a clock that stands at zero.
pub(crate) fn manual() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    (clock, runtime)
}

/// A runtime on real time with a single queue and few threads, so all threads use the same lock.
pub(crate) fn native() -> Runtime {
    Runtime::builder().queues(1).workers(3).thread_name("tq-test").start().expect("the system has threads and alarms")
}

/// Locks a mutex, also after a panic: the panicking thread fails its own test, and the data is
/// still valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gate: threads wait until it is opened, once and for all.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    pub(crate) fn wait(&self) {
        let (open, opened) = &*self.0;
        let open = opened.wait_while(lock(open), |open| !*open).unwrap_or_else(PoisonError::into_inner);
        drop(open);
    }
}

/// Starts `n` timers with callbacks that wait at a gate, and returns when all of them wait.
pub(crate) fn blocked(runtime: &Runtime, n: usize) -> (Vec<Timer>, Gate) {
    let (blocked, entered, gate) = blocking(runtime, n);
    eventually("all are blocked", || entered.get() == n);
    (blocked, gate)
}

/// Starts `n` timers with callbacks that wait at a gate. The count tells how many wait already.
pub(crate) fn blocking(runtime: &Runtime, n: usize) -> (Vec<Timer>, Count, Gate) {
    let (entered, gate) = (Count::new(), Gate::new());
    let timers = (0..n)
        .map(|_| {
            let (entered, gate) = (entered.clone(), gate.clone());
            Timer::on(runtime, ms(1), NEVER, move |_| {
                entered.bump();
                gate.wait();
            })
        })
        .collect();
    (timers, entered, gate)
}

/// A journal: entries pushed by callbacks, in order.
pub(crate) struct Journal<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Journal<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Journal<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn push(&self, entry: T) {
        lock(&self.0).push(entry);
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// All entries so far; the journal is empty afterwards.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// A payload for callbacks whose drop can be observed.
pub(crate) struct Canary(Count);

/// Tells whether the canary has been dropped.
#[derive(Clone)]
pub(crate) struct Fate(Count);

impl Canary {
    pub(crate) fn new() -> (Self, Fate) {
        let drops = Count::new();
        (Self(drops.clone()), Fate(drops))
    }

    /// For closures: uses the canary, so the closure captures it.
    pub(crate) fn sing(&self) {}
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.0.bump();
    }
}

impl Fate {
    pub(crate) fn is_dropped(&self) -> bool {
        let drops = self.0.get();
        assert!(drops <= 1, "dropped {drops} times");
        drops == 1
    }
}

/// An action run by a destructor.
pub(crate) struct OnDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> OnDrop<F> {
    /// For closures: uses the value, so the closure captures it.
    pub(crate) fn hold(&self) {}
}

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A counter for callbacks.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds one, and returns the new count.
    pub(crate) fn bump(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// As [`Count::callback`], for a wall timer.
    pub(crate) fn wall_callback(&self) -> impl FnMut(&WallTick<'_>) + Send + 'static {
        let count = self.clone();
        move |_| {
            count.bump();
        }
    }

    /// A callback that only bumps the count.
    pub(crate) fn callback(&self) -> impl Fn(&Tick<'_>) + Send + Sync + 'static {
        let count = self.clone();
        move |_| {
            count.bump();
        }
    }
}

/// A handle shared with its own callback.
pub(crate) type Own<T> = Arc<OnceLock<T>>;

pub(crate) fn own<T>(weak: &Weak<OnceLock<T>>) -> Own<T> {
    weak.upgrade().expect("the test keeps it")
}

pub(crate) fn millis(at: Timestamp) -> u64 {
    at.as_duration().as_millis() as u64
}

/// A callback that records when it ran, in ms.
pub(crate) fn recording(journal: &Journal<u64>) -> impl Fn(&Tick<'_>) + Send + Sync + 'static {
    let journal = journal.clone();
    move |tick| journal.push(millis(tick.now()))
}

/// Holds a timer in the state "claimed, not begun": a second timer is due at the same instant of
/// 100 ms, and its callback runs `act` on the first. Returns the result of `act`, and the instants
/// (in ms) at which the first timer ran until 1,000 ms later.
pub(crate) fn claimed<T: Send + 'static>(
    kind: &str,
    period: Duration,
    act: impl Fn(&Timer) -> T + Send + Sync + 'static,
) -> (Vec<T>, Vec<u64>) {
    let (clock, runtime) = manual();
    let (results, journal) = (Journal::new(), Journal::new());
    let victim: Own<Timer> = Arc::default();
    let first = Timer::on(&runtime, ms(100), NEVER, {
        let (victim, results) = (Arc::downgrade(&victim), results.clone());
        move |_| results.push(act(own(&victim).get().expect("set before the clock moves")))
    });
    let timer = match kind {
        "overlapping" => Timer::on(&runtime, ms(100), period, recording(&journal)),
        "exclusive" => TimerBuilder::on(&runtime).due(ms(100)).period(period).start_exclusive(recording(&journal)),
        other => unreachable!("{other}"),
    };
    victim.set(timer).expect("once");
    clock.advance(ms(1_100));
    drop(first);
    (results.take(), journal.take())
}

/// Waits for a condition that must become true.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(us(200));
    }
}

/// A watchdog: runs `body` on a thread of its own, and fails if `body` does not end within `limit`,
/// as after a deadlock.
pub(crate) fn within<T: Send + 'static>(limit: Duration, what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let value = body();
        let _ = done.send(value);
    });
    match result.recv_timeout(limit) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: no end after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => unreachable!("a body that returned has sent its value"),
        },
    }
}

/// The smallest executor: blocks until the future is ready.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Splitmix64: for a given seed the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
