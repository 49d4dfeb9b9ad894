//! Futures: delays, timeouts, intervals, waits for the end of timers, under the smallest of
//! executors.
//!
//! Ground rules. Each task loops through random scenes until the end. A task that waits for an
//! instant says so on the board, [`Waits`], and the thread that reviews the board finds tasks
//! that were forgotten.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use timerqueue::{
    CancelReason, CancellationTokenSource, Delay, Interval, MissedTicks, OnceTimer, Runtime, Timeout, Timer, Timestamp,
    Waited, error::TimeoutError,
};

use crate::ledger::{FIGURES, NEVER, fault, lock, must, nanos, patience};
use crate::random::Random;
use crate::world::World;

const TASKS: usize = 80;

// ----------------------------------------------------------------------------------------------------------- executors

/// Blocks until the future is ready.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    queued: AtomicBool,
    queue: mpsc::Sender<Arc<Task>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            let _ = self.queue.clone().send(self); // an executor that has ended needs no task
        }
    }
}

/// Runs all tasks on this thread until each of them has ended.
pub(crate) fn run_tasks(world: &Arc<World>, seed: u64) {
    let (queue, ready) = mpsc::channel::<Arc<Task>>();
    for id in 0..TASKS {
        let future = Box::pin(live(Arc::clone(world), id, Random(seed.wrapping_add(id as u64))));
        let task = Task { future: Mutex::new(Some(future)), queued: AtomicBool::new(false), queue: queue.clone() };
        Arc::new(task).wake();
    }
    let mut left = TASKS;
    while left > 0 {
        let task = ready.recv().expect("this thread has a sender too");
        task.queued.store(false, Ordering::SeqCst);
        let mut future = lock(&task.future);
        if let Some(running) = future.as_mut() {
            let waker = Waker::from(Arc::clone(&task));
            if running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                *future = None;
                left -= 1;
            }
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- board

/// What each task waits for: the instant at which it must be ready, or [`NEVER`].
pub(crate) struct Waits(Vec<AtomicU64>);

impl Waits {
    pub(crate) fn new() -> Self {
        Self((0..TASKS).map(|_| AtomicU64::new(NEVER)).collect())
    }

    fn set(&self, id: usize, until: u64) {
        self.0[id].store(until, Ordering::SeqCst);
    }

    /// Finds tasks that were forgotten.
    pub(crate) fn review(&self, now: u64) {
        for (id, wait) in self.0.iter().enumerate() {
            let until = wait.load(Ordering::SeqCst);
            if until != NEVER && now > until.saturating_add(patience().as_nanos() as u64) {
                fault(format_args!("task {id} should have been woken {} ms ago", (now - until) / 1_000_000));
                self.set(id, NEVER);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------------- scenes

struct Stage<'a> {
    world: &'a World,
    id: usize,
}

async fn live(world: Arc<World>, id: usize, mut random: Random) {
    while !world.is_ending() {
        let stage = Stage { world: &world, id };
        match random.below(11) {
            0 => stage.plain(&mut random).await,
            1 => stage.moved(&mut random).await,
            2 => stage.dropped(&mut random).await,
            3 => stage.other_wakers(&mut random).await,
            4 => stage.limited(&mut random).await,
            5 => stage.ticks(&mut random).await,
            6 => stage.stopped(&mut random).await,
            7 => stage.cancelled_delay(&mut random).await,
            8 => stage.cancelled_timeout(&mut random).await,
            9 => stage.until_cancelled(&mut random).await,
            _ => stage.end_of_a_timer(&mut random).await,
        }
        world.waits.set(id, NEVER);
        FIGURES.futures.bump();
        // Not more than some hundred scenes a second, short ones too.
        let rest = Delay::on(&world.main, Duration::from_millis(20 + random.below(400)));
        rest.await;
    }
}

fn some_wait(random: &mut Random) -> Duration {
    match random.below(8) {
        0 => Duration::ZERO,
        1 => Duration::from_nanos(random.below(2_000)),
        2..5 => Duration::from_nanos(random.below(2_000_000)),
        5 | 6 => Duration::from_nanos(random.below(60_000_000)),
        _ => Duration::from_nanos(random.below(1_500_000_000)),
    }
}

/// Polls once and says whether it is ready.
async fn once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

impl Stage<'_> {
    fn main(&self) -> &Runtime {
        &self.world.main
    }

    fn now(&self) -> Timestamp {
        self.main().now()
    }

    fn until(&self, at: Timestamp) {
        self.world.waits.set(self.id, nanos(at));
    }

    fn came(&self, what: &str, due: Timestamp) {
        let now = self.now();
        if now < due {
            fault(format_args!("{what} came {:?} early", due - now));
        }
        FIGURES.latest_ns.raise((now - due).as_nanos() as u64);
    }

    async fn plain(&self, random: &mut Random) {
        let mut delay = Delay::on(self.main(), some_wait(random));
        let due = delay.deadline();
        self.until(due);
        (&mut delay).await;
        self.came("a delay", due);
        (&mut delay).await; // stays ready
    }

    /// Pending, moved several times, waited for.
    async fn moved(&self, random: &mut Random) {
        let mut delay = Delay::on(self.main(), some_wait(random));
        for _ in 0..1 + random.below(4) {
            let _ = once(&mut delay).await;
            if random.below(3) == 0 {
                let rest = Delay::on(self.main(), Duration::from_micros(random.below(3_000)));
                self.until(rest.deadline());
                let _ = rest.await;
            }
            match random.below(3) {
                0 => delay.reset(some_wait(random)),
                1 => delay.reset_at(self.now() + some_wait(random)),
                _ => {
                    delay.reset(Duration::MAX);
                    must(once(&mut delay).await.is_pending(), || "an endless delay has ended".into());
                    delay.reset(some_wait(random));
                }
            }
        }
        let due = delay.deadline();
        self.until(due);
        (&mut delay).await;
        self.came("a moved delay", due);
    }

    /// Pending and dropped, at any time near its deadline.
    async fn dropped(&self, random: &mut Random) {
        let mut delay = Delay::on(self.main(), some_wait(random));
        let _ = once(&mut delay).await;
        let rest = Delay::on(self.main(), some_wait(random).min(Duration::from_millis(5)));
        self.until(rest.deadline());
        let _ = rest.await;
        drop(delay);
    }

    /// Polled with other wakers before the right one (S37).
    async fn other_wakers(&self, random: &mut Random) {
        struct Dud(AtomicU64);
        impl Wake for Dud {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let mut delay = Delay::on(self.main(), some_wait(random));
        let dud = Arc::new(Dud(AtomicU64::new(0)));
        for _ in 0..1 + random.below(3) {
            let waker = Waker::from(Arc::clone(&dud));
            let polled = Pin::new(&mut delay).poll(&mut Context::from_waker(&waker));
            if polled.is_ready() {
                self.came("a delay polled by hand", delay.deadline());
                return;
            }
            thread::yield_now();
        }
        let due = delay.deadline();
        self.until(due);
        (&mut delay).await;
        self.came("a delay with several wakers", due);
        drop(delay);
        // One that was on its way to be woken is let go of in a moment.
        for tries in 1.. {
            if Arc::strong_count(&dud) == 1 {
                return;
            }
            must(tries < 1_000, || "a waker of an ended delay is still kept".into());
            Delay::on(self.main(), Duration::from_millis(tries)).await;
        }
    }

    async fn limited(&self, random: &mut Random) {
        let inner = Delay::on(self.main(), some_wait(random));
        let (ready, limit) = (inner.deadline(), some_wait(random));
        let over = self.now() + limit;
        let limited = Timeout::on(self.main(), limit, inner);
        self.until(ready.min(self.now() + limit));
        match limited.await {
            Ok(()) => self.came("a future within its limit", ready),
            Err(_) => self.came("a limit", over),
        }
    }

    async fn ticks(&self, random: &mut Random) {
        let policy = [MissedTicks::Skip, MissedTicks::Burst][random.below(2) as usize];
        let mut period = Duration::from_nanos(100_000 + random.below(20_000_000));
        let mut interval = Interval::on(self.main(), period).missed_ticks(policy);
        let mut before: Option<(Timestamp, u64)> = None;
        for _ in 0..random.below(30) {
            if random.below(10) == 0 {
                period = Duration::from_nanos(100_000 + random.below(20_000_000));
                interval.set_period(period);
                before = None;
            }
            let due = interval.next_due().expect("a finite period");
            self.until(due);
            let Some(tick) = interval.tick().await else { return fault("an interval ended by itself") };
            must(self.now() >= due, || "a tick came early".into());
            must(tick.scheduled() == due, || format!("a tick for {:?} was due at {due:?}", tick.scheduled()));
            if let Some((scheduled, missed)) = before {
                let want = scheduled + period * (1 + missed as u32);
                must(want == due, || format!("{policy:?}: due at {due:?} instead of {want:?}"));
            }
            before = Some((tick.scheduled(), tick.missed()));
            if random.below(6) == 0 {
                let rest = Delay::on(self.main(), Duration::from_micros(random.below(40_000)));
                self.until(rest.deadline());
                let _ = rest.await;
            }
        }
    }

    /// An interval that a callback stops.
    async fn stopped(&self, random: &mut Random) {
        let mut interval = Interval::on(self.main(), Duration::from_nanos(200_000 + random.below(50_000_000)));
        let handle = interval.stop_handle();
        let after = Duration::from_nanos(random.below(30_000_000));
        let stopper = OnceTimer::on(self.main(), after, move |_| handle.stop());
        self.until(self.now() + after);
        while let Some(tick) = interval.tick().await {
            self.came("a tick", tick.scheduled());
        }
        must(stopper.dispose_async().await == Waited::Ended, || "waited in vain".into());
        must(interval.tick().await.is_none(), || "a stopped interval ticks".into());
    }

    async fn cancelled_delay(&self, random: &mut Random) {
        let source = CancellationTokenSource::on(self.main());
        let (after, cancel_after) = (some_wait(random), some_wait(random));
        let from = self.now();
        must(source.try_cancel_after(cancel_after).is_ok(), || "cancel_after failed".into());
        let delay = Delay::on(self.main(), after);
        let due = delay.deadline();
        self.until(due.min(self.now() + cancel_after));
        match delay.with_token(&source.token()).await {
            Ok(()) => self.came("a delay with a token", due),
            Err(cancelled) => {
                self.came("a timed cancel", from + cancel_after);
                must(cancelled.reason() == CancelReason::Timeout, || "the reason is wrong".into());
            }
        }
    }

    async fn cancelled_timeout(&self, random: &mut Random) {
        let source = CancellationTokenSource::on(self.main());
        let child = source.token().child_source();
        let (limit, cancel_after) = (some_wait(random), some_wait(random));
        let from = self.now();
        must(source.try_cancel_after(cancel_after).is_ok(), || "cancel_after failed".into());
        let over = self.now() + limit;
        let limited = Timeout::on(self.main(), limit, pending::<()>()).with_token(&child.token());
        self.until((self.now() + limit).min(self.now() + cancel_after));
        match limited.await {
            Ok(()) => fault("a pending future was ready"),
            Err(TimeoutError::Elapsed(_)) => self.came("a limit", over),
            Err(TimeoutError::Cancelled(cancelled)) => {
                self.came("a timed cancel", from + cancel_after);
                must(cancelled.reason() == CancelReason::Parent, || "the reason is wrong".into());
            }
        }
    }

    async fn until_cancelled(&self, random: &mut Random) {
        let source = CancellationTokenSource::on(self.main());
        let token = source.token();
        let (after, cancel_after) = (some_wait(random), some_wait(random));
        let from = self.now();
        must(source.try_cancel_after(cancel_after).is_ok(), || "cancel_after failed".into());
        let delay = Delay::on(self.main(), after);
        let due = delay.deadline();
        self.until(due.min(self.now() + cancel_after));
        match token.run_until_cancelled(delay).await {
            Some(_) => self.came("a delay", due),
            None => self.came("a timed cancel", from + cancel_after),
        }
        drop(source);
        // A token whose source is gone is never cancelled but by its timer or its parents.
        let cancelled = token.cancelled();
        drop(cancelled);
    }

    /// Waits, twice at once, for the end of a timer that is busy.
    async fn end_of_a_timer(&self, random: &mut Random) {
        let running = Arc::new(AtomicU64::new(0));
        let timer = Timer::on(self.main(), Duration::ZERO, Duration::from_micros(300 + random.below(2_000)), {
            let running = Arc::clone(&running);
            move |_| {
                running.fetch_add(1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(200));
                running.fetch_sub(1, Ordering::SeqCst);
            }
        });
        let rest = Delay::on(self.main(), Duration::from_micros(random.below(3_000)));
        self.until(rest.deadline());
        let _ = rest.await;
        let (first, second) = (timer.dispose_async(), timer.dispose_async());
        self.until(self.now());
        must(first.await == Waited::Ended, || "waited in vain".into());
        must(running.load(Ordering::SeqCst) == 0, || "a callback runs although its end was waited for".into());
        must(Arc::strong_count(&running) == 1, || "what a callback owns outlives the wait for its end".into());
        must(second.await == Waited::Ended, || "waited in vain".into());
    }
}
