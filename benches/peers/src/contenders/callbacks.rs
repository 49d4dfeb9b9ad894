//! Contenders with callbacks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hierarchical_hash_wheel_timer::thread_timer::{TimerRef, TimerWithThread};
use hierarchical_hash_wheel_timer::{ClosureTimer, OneShotClosureState, PeriodicClosureState, TimerReturn};
use parking_lot::{Condvar, Mutex, MutexGuard};
use timerqueue::{OnceTimer, Runtime, RuntimeBuilder, Timer, TimerBuilder};

use super::{Contender, LEEWAY, Once, Tick, small_thread};
use crate::measure::clock_ns;

/// A runtime that lasts as long as the process.
pub(crate) fn our_runtime() -> &'static Runtime {
    kept(Runtime::builder())
}

/// The runtime of a builder, which lasts as long as the process.
pub(super) fn kept(builder: RuntimeBuilder) -> &'static Runtime {
    Box::leak(Box::new(builder.start().expect("a runtime starts")))
}

/// Timers of this crate.
pub(super) struct Ours(pub(super) &'static Runtime);

impl Contender for Ours {
    fn once(&self, after: Duration, run: Once) {
        OnceTimer::on(self.0, after, move |_| run()).detach();
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        Timer::on(self.0, first, period, move |_| tick()).detach();
    }
}

/// Timers of this crate, each with a leeway of [`LEEWAY`].
pub(super) struct Leeway(pub(super) &'static Runtime);

impl Contender for Leeway {
    fn once(&self, after: Duration, run: Once) {
        let mut run = Some(run);
        let fire = move |_: &timerqueue::Tick<'_>| {
            if let Some(run) = run.take() {
                run();
            }
        };
        TimerBuilder::on(self.0).due(after).leeway(LEEWAY).start_exclusive(fire).detach();
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        TimerBuilder::on(self.0).due(first).period(period).leeway(LEEWAY).start(move |_| tick()).detach();
    }
}

/// A handle to the thread of hierarchical_hash_wheel_timer, with closures and numeric ids.
pub(crate) type WheelRef = TimerRef<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>;

/// hierarchical_hash_wheel_timer's own thread, which ends when this value is dropped.
pub(crate) struct WheelThread {
    core: Option<TimerWithThread<u64, OneShotClosureState<u64>, PeriodicClosureState<u64>>>,
    pub(crate) timers: WheelRef,
}

impl WheelThread {
    pub(crate) fn start() -> Self {
        let core = TimerWithThread::new().expect("a thread starts");
        let timers = core.timer_ref();
        Self { core: Some(core), timers }
    }
}

impl Drop for WheelThread {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.shutdown().expect("its thread ends");
        }
    }
}

/// A thread of hierarchical_hash_wheel_timer that lasts as long as the process.
pub(crate) fn wheel_thread() -> WheelRef {
    let thread = WheelThread::start();
    let timers = thread.timers.clone();
    std::mem::forget(thread);
    timers
}

/// Waits until the thread has done all earlier requests.
pub(crate) fn settled(timers: &mut WheelRef) {
    let (send, receive) = channel();
    timers.schedule_action_once(u64::MAX, Duration::ZERO, move |_| send.send(()).expect("the receiver waits"));
    receive.recv().expect("its thread goes on");
}

/// hierarchical_hash_wheel_timer.
pub(super) struct Wheel {
    timers: Mutex<WheelRef>,
    last: AtomicU64,
}

impl Wheel {
    pub(super) fn start() -> Self {
        Self { timers: Mutex::new(wheel_thread()), last: AtomicU64::new(0) }
    }

    fn id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }
}

impl Contender for Wheel {
    fn once(&self, after: Duration, run: Once) {
        self.timers.lock().schedule_action_once(self.id(), after, |_| run());
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        let fire = move |_| {
            tick();
            TimerReturn::Reschedule(())
        };
        self.timers.lock().schedule_action_periodic(self.id(), first, period, fire);
    }
}

/// A sleeping thread per timer.
pub(super) struct OsThreads;

fn sleep_until(at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
}

impl Contender for OsThreads {
    fn once(&self, after: Duration, run: Once) {
        let at = Instant::now() + after;
        small_thread(move || {
            sleep_until(at);
            run();
        });
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        let mut at = Instant::now() + first;
        small_thread(move || {
            loop {
                sleep_until(at);
                tick();
                at += period;
            }
        });
    }
}

/// The work of a due timer.
pub(crate) enum Work {
    Once(Once),
    Every(Tick, Duration),
}

impl Work {
    /// Does the work. Returns the work to repeat, and after which time.
    pub(super) fn run(self) -> Option<(Self, Duration)> {
        match self {
            Work::Once(run) => {
                run();
                None
            }
            Work::Every(tick, period) => {
                tick();
                Some((Work::Every(tick, period), period))
            }
        }
    }
}

/// A hand-written timer: a heap under a lock, and a thread that sleeps until the earliest due
/// point.
pub(crate) struct HeapThread(Arc<Shared>);

struct Shared {
    heap: Mutex<Heap>,
    earlier: Condvar,
}

#[derive(Default)]
struct Heap {
    order: BinaryHeap<Reverse<(u64, usize)>>,
    work: Vec<Option<Work>>,
}

impl HeapThread {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared { heap: Mutex::new(Heap::default()), earlier: Condvar::new() });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || own.run());
        Self(shared)
    }

    pub(crate) fn add(&self, due: u64, work: Work) {
        let mut heap = self.0.heap.lock();
        let key = heap.work.len();
        heap.work.push(Some(work));
        let first = heap.order.peek().is_none_or(|&Reverse((earliest, _))| due < earliest);
        heap.order.push(Reverse((due, key)));
        drop(heap);
        if first {
            self.0.earlier.notify_one();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut heap = self.heap.lock();
        loop {
            let now = clock_ns();
            match heap.order.peek().copied() {
                Some(Reverse((due, key))) if due <= now => {
                    heap.order.pop();
                    let work = heap.work[key].take().expect("a key in the heap has work");
                    if let Some((work, period)) = MutexGuard::unlocked(&mut heap, || work.run()) {
                        heap.work[key] = Some(work);
                        heap.order.push(Reverse((due + period.as_nanos() as u64, key)));
                    }
                }
                Some(Reverse((due, _))) => {
                    self.earlier.wait_for(&mut heap, Duration::from_nanos(due - now));
                }
                None => self.earlier.wait(&mut heap),
            }
        }
    }
}

fn due_in(after: Duration) -> u64 {
    clock_ns() + after.as_nanos() as u64
}

impl Contender for HeapThread {
    fn once(&self, after: Duration, run: Once) {
        self.add(due_in(after), Work::Once(run));
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        self.add(due_in(first), Work::Every(tick, period));
    }
}
