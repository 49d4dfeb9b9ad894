//! A1 to A5: sleeps, timeouts and intervals as futures, polled without an executor.
//!
//! Ground rules. Each contender does the same operation with its own API. The measured loop asserts
//! the result where this is free (pending or ready); beforehand a short future of each contender
//! must fire. The futures of this crate use the default runtime. Sleeps of peers are pinned to the
//! stack, so no contender pays for a box that it does not need.

use std::future::{Future, pending, ready};
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use timerqueue::{Delay, Interval, MissedTicks, Runtime};
use tokio::time::MissedTickBehavior;

use crate::measure::{Case, Session, repeat};
use crate::place::{HEARTBEAT, Place, THREADS, Tokio, idle_context, our_heartbeats};

pub(crate) const IDS: [&str; 5] = ["A1", "A2", "A3", "A4", "A5"];
const AFTER: Duration = Duration::from_secs(30);

type Body = fn(u64) -> Duration;

/// Adds a case for each number of threads. The body runs on each thread.
pub(crate) fn on_each<'a>(
    cases: &mut Vec<Case<'a>>,
    contender: &'static str,
    place: Place<'a>,
    body: impl Fn(u64) -> Duration + Copy + Sync + 'a,
) {
    for threads in 1..=THREADS {
        cases.push(Case::new(contender, threads, move |times| {
            place.time(threads, |lane| {
                lane.ready();
                body(times)
            })
        }));
    }
}

/// Makes a future, polls it once, drops it. Asserts that the future is pending.
pub(crate) fn pending_ones<F: Future>(times: u64, make: impl Fn() -> F) -> Duration {
    let mut context = idle_context();
    repeat(times, || {
        let mut future = pin!(make());
        assert!(black_box(future.as_mut().poll(&mut context)).is_pending());
    })
}

/// Makes a future, polls it once, drops it. Asserts that the future is ready.
fn ready_ones<F: Future>(times: u64, make: impl Fn() -> F) -> Duration {
    let mut context = idle_context();
    repeat(times, || {
        let mut future = pin!(make());
        assert!(black_box(future.as_mut().poll(&mut context)).is_ready());
    })
}

/// Makes a single future, polls it, and then resets it repeatedly.
fn resets<F: Future>(times: u64, future: F, mut reset: impl FnMut(Pin<&mut F>)) -> Duration {
    let mut context = idle_context();
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut context).is_pending());
    let took = repeat(times, || reset(black_box(future.as_mut())));
    assert!(future.as_mut().poll(&mut context).is_pending());
    took
}

/// Whether the waker was called.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Checks that a pending future of this contender becomes ready, and that its waker is called.
fn fires<F: Future>(place: Place<'_>, make: impl FnOnce(Duration) -> F) {
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let began = Instant::now();
    let short = Duration::from_millis(5);
    let mut future = place.enter(0, || {
        let mut future = Box::pin(make(short));
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        future
    });
    while !flag.0.load(Ordering::Acquire) {
        assert!(began.elapsed() < Duration::from_secs(20), "the waker is called");
        std::thread::sleep(Duration::from_millis(1));
        place.enter(0, || ()); // lets a driver run that runs on this thread
    }
    assert!(began.elapsed() >= short, "never early");
    place.enter(0, || assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()));
}

fn sleeps(session: &mut Session, tokio: &Tokio) {
    let title = "create, poll, drop a pending sleep of 30 s";
    let (current, multi) = (Place::Current(&tokio.current), Place::Multi(&tokio.multi));
    fires(Place::Thread, Delay::new);
    fires(current, tokio::time::sleep);
    fires(multi, tokio::time::sleep);
    fires(Place::Thread, async_io::Timer::after);
    fires(Place::Thread, futures_timer::Delay::new);
    let ours: Body = |times| pending_ones(times, || Delay::new(AFTER));
    let theirs: Body = |times| pending_ones(times, || tokio::time::sleep(AFTER));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue Delay", Place::Thread, ours);
    on_each(&mut cases, "tokio sleep, current_thread", current, theirs);
    on_each(&mut cases, "tokio sleep, multi_thread", multi, theirs);
    on_each(&mut cases, "async-io Timer", Place::Thread, |times| pending_ones(times, || async_io::Timer::after(AFTER)));
    on_each(&mut cases, "futures-timer Delay", Place::Thread, |times| {
        pending_ones(times, || futures_timer::Delay::new(AFTER))
    });
    session.measure("A1", title, &cases);
}

fn timeouts_of_ready(session: &mut Session, tokio: &Tokio) {
    let title = "timeout of 30 s around a future that is ready: create, poll, drop";
    let (current, multi) = (Place::Current(&tokio.current), Place::Multi(&tokio.multi));
    let ours: Body = |times| ready_ones(times, || timerqueue::timeout(AFTER, ready(black_box(1))));
    let theirs: Body = |times| ready_ones(times, || tokio::time::timeout(AFTER, ready(black_box(1))));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue timeout", Place::Thread, ours);
    on_each(&mut cases, "tokio timeout, current_thread", current, theirs);
    on_each(&mut cases, "tokio timeout, multi_thread", multi, theirs);
    session.measure("A2", title, &cases);
}

fn timeouts_of_pending(session: &mut Session, tokio: &Tokio) {
    let title = "timeout of 30 s around a future that is pending: create, poll, drop";
    let (current, multi) = (Place::Current(&tokio.current), Place::Multi(&tokio.multi));
    fires(Place::Thread, |after| timerqueue::timeout(after, pending::<()>()));
    fires(multi, |after| tokio::time::timeout(after, pending::<()>()));
    let ours: Body = |times| pending_ones(times, || timerqueue::timeout(AFTER, pending::<()>()));
    let theirs: Body = |times| pending_ones(times, || tokio::time::timeout(AFTER, pending::<()>()));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue timeout", Place::Thread, ours);
    on_each(&mut cases, "tokio timeout, current_thread", current, theirs);
    on_each(&mut cases, "tokio timeout, multi_thread", multi, theirs);
    session.measure("A3", title, &cases);
}

fn sleep_resets(session: &mut Session, tokio: &Tokio) {
    let title = "reset a pending sleep to 30 s from now, later than it was";
    let (current, multi) = (Place::Current(&tokio.current), Place::Multi(&tokio.multi));
    let ours: Body = |times| resets(times, Delay::new(AFTER), |mut delay| delay.reset(AFTER));
    let theirs: Body =
        |times| resets(times, tokio::time::sleep(AFTER), |sleep| sleep.reset(tokio::time::Instant::now() + AFTER));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue Delay", Place::Thread, ours);
    on_each(&mut cases, "tokio sleep, current_thread", current, theirs);
    on_each(&mut cases, "tokio sleep, multi_thread", multi, theirs);
    on_each(&mut cases, "async-io Timer", Place::Thread, |times| {
        resets(times, async_io::Timer::after(AFTER), |mut timer| timer.set_after(AFTER))
    });
    on_each(&mut cases, "futures-timer Delay", Place::Thread, |times| {
        resets(times, futures_timer::Delay::new(AFTER), |mut delay| delay.reset(AFTER))
    });
    session.measure("A4", title, &cases);
    session.report.note(
        title,
        "tokio, and our `Delay`, leave the timer in its slot, and insert it again when the old deadline fires.",
    );
}

fn intervals(session: &mut Session, tokio: &Tokio) {
    let title = "take a tick of an interval that is behind: one is always due";
    let (period, backlog) = (Duration::from_nanos(1), Duration::from_secs(1));
    let mut cases = Vec::new();
    on_each(&mut cases, "timerqueue Interval, Burst", Place::Thread, move |times| {
        let mut interval = Interval::new(period).missed_ticks(MissedTicks::Burst);
        // from now on ticks come due faster than the loop takes them
        std::thread::sleep(Duration::from_micros(10));
        let mut context = idle_context();
        repeat(times, || assert!(matches!(black_box(interval.poll_tick(&mut context)), Poll::Ready(Some(_)))))
    });
    let theirs = move |times| {
        let mut interval = tokio::time::interval_at(tokio::time::Instant::now() - backlog, period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut context = idle_context();
        repeat(times, || assert!(black_box(interval.poll_tick(&mut context)).is_ready()))
    };
    on_each(&mut cases, "tokio Interval, Burst, current_thread", Place::Current(&tokio.current), theirs);
    on_each(&mut cases, "tokio Interval, Burst, multi_thread", Place::Multi(&tokio.multi), theirs);
    on_each(&mut cases, "async-io Timer::interval", Place::Thread, move |times| {
        let mut interval = async_io::Timer::interval_at(Instant::now() - backlog, period);
        let mut context = idle_context();
        repeat(times, || assert!(black_box(Pin::new(&mut interval).poll_next(&mut context)).is_ready()))
    });
    session.measure("A5", title, &cases);
    session.report.note(
        title,
        "A period of 1 ns with the policy Burst, so every poll gives a tick: the cost of the arithmetic, and of moving on to \
         the next instant.",
    );
}

/// A round of all wanted workloads.
pub(crate) fn round(session: &mut Session, wanted: impl Fn(&str) -> bool) {
    let heartbeats = our_heartbeats(Runtime::global(), HEARTBEAT);
    let tokio = Tokio::new(Some(HEARTBEAT));
    for (id, run) in IDS.iter().zip([sleeps, timeouts_of_ready, timeouts_of_pending, sleep_resets, intervals]) {
        if wanted(id) {
            run(session, &tokio);
        }
    }
    drop(heartbeats);
}
