//! The contenders as timers of callbacks, in one manner of speaking: for the workloads that ask everybody for the same crowd.
//!
//! Ground rules. Each contender is what its users would run: callbacks where it has them, otherwise tasks, each of which
//! sleeps, or ticks by the contender's own interval where there is one. Whoever has none sleeps until the next due point on
//! its schedule. Callbacks are boxed for everybody, which costs nothing that matters here; workloads that count
//! nanoseconds per timer speak to the contenders themselves. What was started lasts as long as the process.

mod callbacks;
mod tasks;

use std::process::exit;
use std::time::Duration;

pub(crate) use self::callbacks::{HeapThread, WheelRef, WheelThread, Work, filed, our_runtime, wheel_thread};
pub(crate) use self::tasks::{executor, tokio_current, tokio_multi};
use crate::child::UNABLE;

/// Called at every tick.
pub(crate) type Tick = Box<dyn Fn() + Send + Sync>;
/// Called once.
pub(crate) type Once = Box<dyn FnOnce() + Send>;

/// Timers of callbacks. All of them are detached: nobody keeps a handle.
pub(crate) trait Contender: Send + Sync {
    /// Calls `run` after that time.
    fn once(&self, after: Duration, run: Once);
    /// Calls `tick` for the first time after `first`, and from then on every `period`.
    fn every(&self, first: Duration, period: Duration, tick: Tick);
}

pub(crate) const OURS: &str = "timerqueue callbacks";
pub(crate) const OURS_LEEWAY: &str = "timerqueue callbacks, 1 ms of leeway";
pub(crate) const OUR_TASKS: &str = "timerqueue Delay and Interval, tasks of tokio multi_thread";
pub(crate) const TOKIO_MULTI: &str = "tokio, tasks of multi_thread";
pub(crate) const TOKIO_CURRENT: &str = "tokio, tasks of current_thread";
pub(crate) const DELAY_QUEUE: &str = "tokio-util DelayQueue, owned by a task of multi_thread";
pub(crate) const ASYNC_IO: &str = "async-io, tasks of async-executor, 2 threads";
pub(crate) const FUTURES_TIMER: &str = "futures-timer, tasks of async-executor, 2 threads";
pub(crate) const PINGORA: &str = "pingora-timeout, tasks of tokio multi_thread";
pub(crate) const WHEEL: &str = "hierarchical_hash_wheel_timer, its thread";
pub(crate) const HEAP: &str = "one thread with a heap, boxed callbacks";
pub(crate) const THREADS: &str = "std threads, one each";

/// All of them but the threads: nobody writes those by the thousand.
pub(crate) const ALL_BUT_THREADS: [&str; 11] = [
    OURS,
    OURS_LEEWAY,
    OUR_TASKS,
    TOKIO_MULTI,
    TOKIO_CURRENT,
    DELAY_QUEUE,
    ASYNC_IO,
    FUTURES_TIMER,
    PINGORA,
    WHEEL,
    HEAP,
];

/// How late a timer with leeway may be.
pub(crate) const LEEWAY: Duration = Duration::from_millis(1);

/// Whether this contender promises never to fire early, so that one that is early is an error here.
pub(crate) fn never_early(contender: &str) -> bool {
    contender.starts_with("timerqueue") || [HEAP, THREADS].contains(&contender)
}

/// Starts a contender.
pub(crate) fn start(contender: &str) -> Box<dyn Contender> {
    use callbacks::{Leeway, OsThreads, Ours, Wheel};
    use tasks::{AsyncIo, FuturesTimer, OurDelays, Owner, Pingora, Tasks, Tokio};
    match contender {
        OURS => Box::new(Ours(our_runtime())),
        OURS_LEEWAY => Box::new(Leeway(our_runtime())),
        OUR_TASKS => Box::new(Tasks::<OurDelays, _>::on(tokio_multi())),
        TOKIO_MULTI => Box::new(Tasks::<Tokio, _>::on(tokio_multi())),
        TOKIO_CURRENT => Box::new(Tasks::<Tokio, _>::on(tokio_current())),
        DELAY_QUEUE => Box::new(Owner::start()),
        ASYNC_IO => Box::new(Tasks::<AsyncIo, _>::on(executor(true))),
        FUTURES_TIMER => Box::new(Tasks::<FuturesTimer, _>::on(executor(false))),
        PINGORA => Box::new(Tasks::<Pingora, _>::on(tokio_multi())),
        WHEEL => Box::new(Wheel::start()),
        HEAP => Box::new(HeapThread::start()),
        THREADS => Box::new(OsThreads),
        other => panic!("no such contender: {other}"),
    }
}

/// A thread that needs little, or the end of this process where the system gives no more of them.
pub(crate) fn small_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(problem) = std::thread::Builder::new().stack_size(64 << 10).spawn(work) {
        eprintln!("no more threads: {problem}");
        exit(UNABLE);
    }
}
