//! The contenders behind a common trait of callback timers, for workloads with many timers.
//!
//! Ground rules. Each contender runs as its users would run it: with callbacks if it has them,
//! otherwise with a task per timer. A periodic task uses the contender's own interval; without an
//! interval it sleeps until the next due point of its schedule. All callbacks are boxed, which
//! costs little here; workloads that count nanoseconds per timer call the contenders directly. A
//! started contender lasts as long as the process.

mod callbacks;
mod tasks;

use std::process::exit;
use std::time::Duration;

use timerqueue::{Alarm, Runtime, RuntimeClock};

pub(crate) use self::callbacks::{HeapThread, WheelRef, WheelThread, Work, our_runtime, settled, wheel_thread};
pub(crate) use self::tasks::{executor, tokio_current, tokio_multi};
use crate::child::UNABLE;

/// Called at every tick.
pub(crate) type Tick = Box<dyn Fn() + Send + Sync>;
/// Called once.
pub(crate) type Once = Box<dyn FnOnce() + Send>;

/// Callback timers. All timers are detached: the caller keeps no handle.
pub(crate) trait Contender: Send + Sync {
    /// Calls `run` once after `after`.
    fn once(&self, after: Duration, run: Once);
    /// Calls `tick` for the first time after `first`, and from then on every `period`.
    fn every(&self, first: Duration, period: Duration, tick: Tick);
}

pub(crate) const OURS: &str = "timerqueue callbacks";
pub(crate) const OURS_LEEWAY: &str = "timerqueue callbacks, 1 ms of leeway";
pub(crate) const OURS_BOOT: &str = "timerqueue callbacks, boot clock";
pub(crate) const OURS_PORTABLE: &str = "timerqueue callbacks, portable alarm";
pub(crate) const OURS_PORTABLE_BOOT: &str = "timerqueue callbacks, portable alarm, boot clock";
pub(crate) const OUR_TASKS: &str = "timerqueue Delay and Interval, tasks of tokio multi_thread";
pub(crate) const OUR_TASKS_CURRENT: &str = "timerqueue Delay, tasks of tokio current_thread";
pub(crate) const OUR_TASKS_EXECUTOR: &str = "timerqueue Delay, tasks of async-executor, 2 threads";
pub(crate) const OUR_TASKS_LEEWAY: &str = "timerqueue Delay, 1 ms of leeway, tasks of tokio multi_thread";
pub(crate) const OUR_TASKS_CURRENT_LEEWAY: &str = "timerqueue Delay, 1 ms of leeway, tasks of tokio current_thread";
pub(crate) const TOKIO_MULTI: &str = "tokio, tasks of multi_thread";
pub(crate) const TOKIO_CURRENT: &str = "tokio, tasks of current_thread";
pub(crate) const DELAY_QUEUE: &str = "tokio-util DelayQueue, owned by a task of multi_thread";
pub(crate) const ASYNC_IO: &str = "async-io, tasks of async-executor, 2 threads";
pub(crate) const FUTURES_TIMER: &str = "futures-timer, tasks of async-executor, 2 threads";
pub(crate) const PINGORA: &str = "pingora-timeout, tasks of tokio multi_thread";
pub(crate) const WHEEL: &str = "hierarchical_hash_wheel_timer, its thread";
pub(crate) const HEAP: &str = "one thread with a heap, boxed callbacks";
pub(crate) const THREADS: &str = "std threads, one each";

/// All contenders but the threads, which no program starts by the thousand.
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

/// The leeway of timers with leeway.
pub(crate) const LEEWAY: Duration = Duration::from_millis(1);

/// Whether this contender promises never to fire early; then an early timer is an error.
pub(crate) fn never_early(contender: &str) -> bool {
    contender.starts_with("timerqueue") || [HEAP, THREADS].contains(&contender)
}

/// Starts a contender.
pub(crate) fn start(contender: &str) -> Box<dyn Contender> {
    use callbacks::{Leeway, OsThreads, Ours, Wheel, kept};
    use tasks::{AsyncIo, FuturesTimer, OurDelays, Owner, Pingora, Tasks, Tokio};
    let ours = |alarm, clock| Box::new(Ours(kept(Runtime::builder().alarm(alarm).clock(clock))));
    match contender {
        OURS => Box::new(Ours(our_runtime())),
        OURS_BOOT => ours(Alarm::Native, RuntimeClock::Boot),
        OURS_PORTABLE => ours(Alarm::Portable, RuntimeClock::Monotonic),
        OURS_PORTABLE_BOOT => ours(Alarm::Portable, RuntimeClock::Boot),
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

/// Starts a thread with a small stack. If the system refuses the thread, the process ends with
/// [`UNABLE`].
pub(crate) fn small_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(problem) = std::thread::Builder::new().stack_size(64 << 10).spawn(work) {
        eprintln!("no more threads: {problem}");
        exit(UNABLE);
    }
}
