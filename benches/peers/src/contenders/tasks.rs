//! Contenders with futures: each timer is a task of an executor.

use std::future::{Future, pending, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::{Duration, Instant};

use async_executor::Executor;
use futures_core::Stream;
use timerqueue::{Delay, Interval};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::time::DelayQueue;

use super::{Contender, Once, Tick, Work};
use crate::place::wait_for;

/// The number of threads for executors that start no threads themselves.
const THREADS: usize = 2;

/// A runtime that lasts as long as the process.
pub(crate) fn tokio_multi() -> &'static Runtime {
    Box::leak(Box::new(Builder::new_multi_thread().enable_all().build().expect("a runtime starts")))
}

/// A runtime of a single thread that lasts as long as the process.
pub(crate) fn tokio_current() -> &'static Runtime {
    let runtime: &'static Runtime =
        Box::leak(Box::new(Builder::new_current_thread().enable_all().build().expect("a runtime starts")));
    std::thread::spawn(|| runtime.block_on(pending::<()>()));
    runtime
}

/// An executor and its threads. With `reactor` the threads drive async-io's reactor while they
/// wait.
pub(crate) fn executor(reactor: bool) -> &'static Executor<'static> {
    let executor: &'static Executor<'static> = Box::leak(Box::new(Executor::new()));
    for _ in 0..THREADS {
        std::thread::spawn(move || {
            let run = executor.run(pending::<()>());
            if reactor { async_io::block_on(run) } else { wait_for(run) }
        });
    }
    executor
}

/// An executor that spawns tasks.
pub(super) trait Spawn: Send + Sync {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

impl Spawn for &'static Runtime {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Runtime::spawn(self, task);
    }
}

impl Spawn for &'static Executor<'static> {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Executor::spawn(self, task).detach();
    }
}

/// The sleep and the interval of a contender. The futures are first polled on the executor.
pub(super) trait Clockwork: 'static {
    fn sleep(until: Instant) -> impl Future<Output = ()> + Send;

    /// Ticks for ever.
    fn tick(first: Instant, period: Duration, tick: Tick) -> impl Future<Output = ()> + Send {
        async move {
            let mut at = first;
            loop {
                Self::sleep(at).await;
                tick();
                at += period;
            }
        }
    }
}

fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

pub(super) struct OurDelays;

impl Clockwork for OurDelays {
    async fn sleep(until: Instant) {
        Delay::new(remaining(until)).await;
    }

    async fn tick(first: Instant, period: Duration, tick: Tick) {
        Self::sleep(first).await;
        let mut interval = Interval::new(period);
        tick();
        while interval.tick().await.is_some() {
            tick();
        }
    }
}

pub(super) struct Tokio;

impl Clockwork for Tokio {
    async fn sleep(until: Instant) {
        tokio::time::sleep_until(until.into()).await;
    }

    async fn tick(first: Instant, period: Duration, tick: Tick) {
        let mut interval = tokio::time::interval_at(first.into(), period);
        loop {
            interval.tick().await;
            tick();
        }
    }
}

pub(super) struct AsyncIo;

impl Clockwork for AsyncIo {
    async fn sleep(until: Instant) {
        async_io::Timer::at(until).await;
    }

    async fn tick(first: Instant, period: Duration, tick: Tick) {
        let mut interval = async_io::Timer::interval_at(first, period);
        loop {
            poll_fn(|context| Pin::new(&mut interval).poll_next(context)).await;
            tick();
        }
    }
}

pub(super) struct FuturesTimer;

impl Clockwork for FuturesTimer {
    async fn sleep(until: Instant) {
        futures_timer::Delay::new(remaining(until)).await;
    }
}

pub(super) struct Pingora;

impl Clockwork for Pingora {
    async fn sleep(until: Instant) {
        pingora_timeout::sleep(remaining(until)).await;
    }
}

/// Timers as tasks of an executor.
pub(super) struct Tasks<C, S> {
    spawner: S,
    clock: PhantomData<fn() -> C>,
}

impl<C, S> Tasks<C, S> {
    pub(super) fn on(spawner: S) -> Self {
        Self { spawner, clock: PhantomData }
    }
}

impl<C: Clockwork, S: Spawn> Contender for Tasks<C, S> {
    fn once(&self, after: Duration, run: Once) {
        let until = Instant::now() + after;
        self.spawner.spawn(async move {
            C::sleep(until).await;
            run();
        });
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        self.spawner.spawn(C::tick(Instant::now() + first, period, tick));
    }
}

/// A `DelayQueue`, owned by a task that receives the timers to add through a channel.
pub(super) struct Owner(UnboundedSender<(Instant, Work)>);

impl Owner {
    pub(super) fn start() -> Self {
        let (add, added) = unbounded_channel();
        tokio_multi().spawn(own(added));
        Self(add)
    }

    fn add(&self, after: Duration, work: Work) {
        let added = self.0.send((Instant::now() + after, work));
        assert!(added.is_ok(), "the owner goes on");
    }
}

async fn own(mut added: UnboundedReceiver<(Instant, Work)>) {
    let mut queue = DelayQueue::new();
    loop {
        tokio::select! {
            new = added.recv() => {
                let Some((at, work)) = new else { return };
                queue.insert_at((at, work), at.into());
            }
            Some(expired) = poll_fn(|context| queue.poll_expired(context)), if !queue.is_empty() => {
                let (at, work) = expired.into_inner();
                if let Some((work, period)) = work.run() {
                    queue.insert_at((at + period, work), (at + period).into());
                }
            }
        }
    }
}

impl Contender for Owner {
    fn once(&self, after: Duration, run: Once) {
        self.add(after, Work::Once(run));
    }

    fn every(&self, first: Duration, period: Duration, tick: Tick) {
        self.add(first, Work::Every(tick, period));
    }
}
