//! Retries of backon with our pauses, on virtual time and on threads.
#![cfg(feature = "backon-1")]

use std::cell::Cell;
use std::future::{Future, ready};
use std::io;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use backon::{BlockingRetryable, BlockingSleeper, ConstantBuilder, ExponentialBuilder, Retryable, Sleeper};
use timerqueue::{Delay, ManualClock, Runtime, TimerBuilder, Timestamp};
use timerqueue_adapters::backon_1::BackonSleeper;

const SECOND: Duration = Duration::from_secs(1);

fn virtual_time() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    (clock, runtime)
}

/// Pauses of 1, 2, 4 and 8 s, then the end.
fn doubling() -> ExponentialBuilder {
    ExponentialBuilder::new().with_min_delay(SECOND).with_max_times(4)
}

#[test]
fn a_future_is_tried_again_at_exact_instants() {
    let (clock, runtime) = virtual_time();
    let tried = Cell::new(Vec::new());
    let attempt = || {
        let mut instants: Vec<Timestamp> = tried.take();
        instants.push(clock.now());
        let count = instants.len();
        tried.set(instants);
        let delay = Delay::on(&runtime, SECOND / 4); // the attempt itself takes a quarter of a second
        async move {
            delay.await;
            if count < 4 { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) } else { Ok(count) }
        }
    };
    let retry = attempt.retry(doubling()).sleep(BackonSleeper::on(&runtime));
    assert_eq!(clock.block_on(retry).expect("the fourth attempt"), 4);
    let millis: Vec<_> = tried.take().iter().map(|at| at.as_duration().as_millis()).collect();
    assert_eq!(millis, [0, 1_250, 3_500, 7_750]);
}

#[test]
fn a_retry_that_gives_up_gives_the_last_error() {
    let (clock, runtime) = virtual_time();
    let attempts = Cell::new(0);
    let attempt = || {
        attempts.set(attempts.get() + 1);
        ready(Err::<(), _>(attempts.get()))
    };
    let retry = attempt.retry(doubling()).sleep(BackonSleeper::on(&runtime));
    assert_eq!(clock.block_on(retry), Err(5));
    assert_eq!(clock.now().as_duration(), (1 + 2 + 4 + 8) * SECOND);
}

#[test]
fn dropping_a_retry_removes_its_pause_from_the_queue() {
    let (_clock, runtime) = virtual_time();
    {
        let retry = (|| ready(Err::<(), _>(()))).retry(doubling()).sleep(BackonSleeper::on(&runtime));
        let mut retry = pin!(retry);
        assert!(retry.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(runtime.metrics().active, 1);
    }
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn a_blocking_retry_moves_a_manual_clock_and_runs_what_is_due() {
    let (clock, runtime) = virtual_time();
    let ticks = TimerBuilder::on(&runtime).period(SECOND).start_exclusive(|_| {});
    let mut attempts = 0;
    let attempt = || {
        attempts += 1;
        if attempts < 4 { Err("not now") } else { Ok(clock.now().as_duration()) }
    };
    let answer = attempt.retry(doubling()).sleep(runtime.enter(BackonSleeper::new)).call();
    assert_eq!(answer, Ok((1 + 2 + 4) * SECOND));
    ticks.dispose();
    assert_eq!(runtime.metrics().panics, 0);
    assert!(runtime.metrics().fired() >= 6, "{}", runtime.metrics().fired());
}

#[test]
fn on_an_ended_runtime_the_pause_of_a_future_stays_pending_and_a_blocking_one_ends() {
    let (clock, runtime) = virtual_time();
    let sleeper = BackonSleeper::on(&runtime);
    runtime.shutdown(SECOND).expect("no callback runs");
    let mut pause = pin!(Sleeper::sleep(&sleeper, SECOND));
    clock.advance(3600 * SECOND);
    assert!(pause.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    BlockingSleeper::sleep(&sleeper, SECOND);

    let real = Runtime::builder().workers(2).start().expect("the system has threads");
    let sleeper = BackonSleeper::on(&real);
    real.shutdown(SECOND).expect("no callback runs");
    let begun = Instant::now();
    BlockingSleeper::sleep(&sleeper, Duration::from_millis(5));
    assert!(begun.elapsed() >= Duration::from_millis(5));
}

/// Real time: threads that try to connect to a listener that is bound late.
#[test]
fn threads_and_futures_connect_once_the_listener_is_there() {
    use std::net::{TcpListener, TcpStream};
    const PAUSE: Duration = Duration::from_millis(20);

    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("loopback");
    let forever = ConstantBuilder::new().with_delay(PAUSE).without_max_times();
    let begun = Instant::now();
    let blocking = thread::spawn(move || {
        (|| TcpStream::connect(address)).retry(forever).sleep(BackonSleeper::new()).call().map(|_| ())
    });
    let future = thread::spawn(move || {
        let connect = || smol::net::TcpStream::connect(address);
        smol::block_on(async { connect.retry(forever).sleep(BackonSleeper::new()).await.map(|_| ()) })
    });
    thread::sleep(2 * PAUSE);
    let listener = TcpListener::bind(address).expect("still free");
    for client in [blocking, future] {
        client.join().expect("no panic").expect("connected");
    }
    assert!(begun.elapsed() >= 2 * PAUSE);
    drop(listener);
}
