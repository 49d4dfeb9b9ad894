//! tower's middleware and services with our limits, hedges and pauses, on virtual time and over
//! loopback.
#![cfg(all(feature = "tower-0_5", feature = "tower-retry-0_5"))]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use timerqueue::{Delay, ManualClock, Runtime, error::Elapsed};
use timerqueue_adapters::tower_0_5::{HedgeLayer, TimeoutLayer};
use timerqueue_adapters::tower_retry_0_5::DelayBackoffMaker;
use tower::retry::backoff::{Backoff, MakeBackoff};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn virtual_time() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    (clock, runtime)
}

/// A service that answers each request after as many seconds as the request says.
fn slow(runtime: &Runtime) -> impl Service<u64, Response = u64, Error = io::Error, Future: Send> + Clone + use<> {
    let runtime = runtime.clone();
    service_fn(move |seconds| {
        let delay = Delay::on(&runtime, Duration::from_secs(seconds));
        async move {
            delay.await;
            if seconds == 13 { Err(io::Error::other("thirteen")) } else { Ok(seconds) }
        }
    })
}

#[test]
fn a_call_ends_by_its_answer_or_at_the_limit_to_the_nanosecond() {
    let (clock, runtime) = virtual_time();
    let mut service = TimeoutLayer::on(&runtime, 20 * SECOND).layer(slow(&runtime));
    let mut call = |seconds| {
        let begun = clock.now();
        let answer = clock.block_on(async { service.ready().await?.call(seconds).await });
        (answer, clock.now() - begun)
    };
    let (answer, took) = call(3);
    assert_eq!((answer.expect("in time"), took), (3, 3 * SECOND));
    let (answer, took) = call(20); // the answer and the end of the limit at the same instant
    assert_eq!((answer.expect("in time"), took), (20, 20 * SECOND));
    let (answer, took) = call(13);
    assert_eq!((answer.expect_err("thirteen").is::<io::Error>(), took), (true, 13 * SECOND));
    let (answer, took) = call(21);
    assert_eq!((answer.expect_err("late").is::<Elapsed>(), took), (true, 20 * SECOND));
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn dropping_a_call_removes_its_limit_from_the_queue() {
    let (_clock, runtime) = virtual_time();
    let service = TimeoutLayer::on(&runtime, SECOND).layer(service_fn(|()| pending::<Result<(), Infallible>>()));
    {
        let mut call = pin!(service.oneshot(()));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(runtime.metrics().active, 1);
    }
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn on_an_ended_runtime_a_call_goes_on_without_a_limit() {
    let (clock, runtime) = virtual_time();
    let other = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    let service = TimeoutLayer::on(&other, SECOND).layer(slow(&runtime));
    other.shutdown(SECOND).expect("no callback runs");
    assert_eq!(clock.block_on(service.oneshot(3600)).expect("no limit"), 3600);
}

/// After how many seconds an answer comes, and the answer.
type Answer = (u64, Result<u64, &'static str>);

/// A service with an answer for each call in turn: after so many seconds, this result.
#[derive(Clone)]
struct Script {
    runtime: Runtime,
    answers: Rc<RefCell<VecDeque<Answer>>>,
}

impl Service<()> for Script {
    type Response = u64;
    type Error = &'static str;
    type Future = Pin<Box<dyn Future<Output = Result<u64, &'static str>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let (seconds, answer) = self.answers.borrow_mut().pop_front().expect("no further call");
        let delay = Delay::on(&self.runtime, Duration::from_secs(seconds));
        Box::pin(async move {
            delay.await;
            answer
        })
    }
}

/// The result of a call hedged after ten seconds, when it came, and how many answers were not asked
/// for.
fn hedged(answers: &[(u64, Result<u64, &'static str>)]) -> (Result<u64, &'static str>, Duration, usize) {
    let (clock, runtime) = virtual_time();
    let script = Script { runtime: runtime.clone(), answers: Rc::new(RefCell::new(answers.iter().copied().collect())) };
    let left = Rc::clone(&script.answers);
    let service = HedgeLayer::on(&runtime, 10 * SECOND, |&()| Some(())).layer(script);
    let answer = clock.block_on(service.oneshot(()));
    assert_eq!(runtime.metrics().active, 0);
    let left = left.borrow().len();
    (answer, clock.now().as_duration(), left)
}

#[test]
fn a_second_request_is_sent_when_the_first_answer_takes_long() {
    assert_eq!(hedged(&[(9, Ok(1)), (0, Ok(2))]), (Ok(1), 9 * SECOND, 1));
    assert_eq!(hedged(&[(9, Err("first")), (0, Ok(2))]), (Err("first"), 9 * SECOND, 1));
    assert_eq!(hedged(&[(30, Ok(1)), (5, Ok(2))]), (Ok(2), 15 * SECOND, 0));
    assert_eq!(hedged(&[(12, Ok(1)), (5, Ok(2))]), (Ok(1), 12 * SECOND, 0));
    // An error waits for the other request.
    assert_eq!(hedged(&[(12, Err("first")), (5, Ok(2))]), (Ok(2), 15 * SECOND, 0));
    assert_eq!(hedged(&[(30, Ok(1)), (5, Err("second"))]), (Ok(1), 30 * SECOND, 0));
    assert_eq!(hedged(&[(30, Err("first")), (5, Err("second"))]), (Err("first"), 30 * SECOND, 0));
    assert_eq!(hedged(&[(12, Err("first")), (5, Err("second"))]), (Err("second"), 15 * SECOND, 0));
}

#[test]
fn a_request_that_must_not_be_copied_is_sent_once() {
    let (clock, runtime) = virtual_time();
    let service = HedgeLayer::on(&runtime, SECOND, |_: &u64| None).layer(slow(&runtime));
    assert_eq!(clock.block_on(service.oneshot(60)).expect("no error"), 60);
    // the delay of the service alone
    assert_eq!((clock.now().as_duration(), runtime.metrics().fired()), (60 * SECOND, 1));
}

#[test]
fn a_second_service_that_fails_to_become_ready_leaves_the_first_request() {
    /// Ready when made, never when cloned.
    struct Single(Runtime, bool);
    impl Clone for Single {
        fn clone(&self) -> Self {
            Self(self.0.clone(), false)
        }
    }
    impl Service<()> for Single {
        type Response = ();
        type Error = &'static str;
        type Future = Pin<Box<dyn Future<Output = Result<(), &'static str>>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(if self.1 { Ok(()) } else { Err("a clone") })
        }

        fn call(&mut self, (): ()) -> Self::Future {
            assert!(self.1, "called when it was not ready");
            let delay = Delay::on(&self.0, 60 * SECOND);
            Box::pin(async move {
                delay.await;
                Ok(())
            })
        }
    }
    let (clock, runtime) = virtual_time();
    let mut service = HedgeLayer::on(&runtime, SECOND, |&()| Some(())).layer(Single(runtime.clone(), true));
    let answer = clock.block_on(async { service.ready().await?.call(()).await });
    assert_eq!((answer, clock.now().as_duration()), (Ok(()), 60 * SECOND));
}

/// Retries errors, with the pauses of a backoff.
#[derive(Clone)]
struct Retries<B>(B);

impl<B: Backoff> Policy<(), u64, &'static str> for Retries<B> {
    type Future = B::Future;

    fn retry(&mut self, (): &mut (), result: &mut Result<u64, &'static str>) -> Option<B::Future> {
        result.is_err().then(|| self.0.next_backoff())
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[test]
fn a_retry_policy_pauses_by_the_iterator_and_repeats_its_last_pause() {
    let (clock, runtime) = virtual_time();
    let answers = [Err("1"), Err("2"), Err("3"), Err("4"), Ok(5)].map(|answer| (0, answer));
    let script = Script { runtime: runtime.clone(), answers: Rc::new(RefCell::new(answers.into())) };
    let mut maker = DelayBackoffMaker::on(&runtime, || [1, 10, 100].map(Duration::from_secs).into_iter());
    let service = ServiceBuilder::new().layer(RetryLayer::new(Retries(maker.make_backoff()))).service(script);
    assert_eq!(clock.block_on(service.oneshot(())), Ok(5));
    assert_eq!(clock.now().as_duration(), (1 + 10 + 100 + 100) * SECOND);

    let mut none = DelayBackoffMaker::on(&runtime, std::iter::empty).make_backoff();
    let pause: Delay = none.next_backoff();
    assert!(pause.is_elapsed());
}

#[test]
fn limits_retries_and_hedges_stack_as_tower_stacks_them() {
    let (clock, runtime) = virtual_time();
    let answers = [(60, Ok(1)), (60, Ok(2)), (60, Ok(3)), (5, Ok(4))];
    let script = Script { runtime: runtime.clone(), answers: Rc::new(RefCell::new(answers.into())) };
    let backoff = DelayBackoffMaker::on(&runtime, || std::iter::once(SECOND)).make_backoff();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::on(&runtime, 3600 * SECOND))
        .layer(RetryLayer::new(Retries(backoff)))
        .map_err(|_| "elapsed")
        .layer(TimeoutLayer::on(&runtime, 30 * SECOND))
        .layer(HedgeLayer::on(&runtime, 10 * SECOND, |&()| Some(())))
        .service(script);
    assert_eq!(clock.block_on(service.oneshot(())).expect("an answer"), 4);
    assert_eq!(clock.now().as_duration(), (30 + 1 + 10 + 5) * SECOND);
}

/// Real time, on an executor that is not tokio: a client over loopback, whose server does not
/// answer each second question.
#[test]
fn a_client_over_loopback_gives_up_in_time() {
    use smol::io::{AsyncReadExt, AsyncWriteExt};
    const LIMIT: Duration = Duration::from_millis(100);

    async fn ask((server, question): (SocketAddr, u8)) -> io::Result<u8> {
        let mut stream = smol::net::TcpStream::connect(server).await?;
        stream.write_all(&[question]).await?;
        let mut answer = [0];
        stream.read_exact(&mut answer).await?;
        Ok(answer[0])
    }

    smol::block_on(async {
        let listener = smol::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let server = smol::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = [0];
                stream.read_exact(&mut question).await.expect("a question");
                if question[0] % 2 == 0 {
                    stream.write_all(&question).await.expect("the client reads");
                }
                open.push(stream);
            }
        });
        let mut service = ServiceBuilder::new().layer(TimeoutLayer::new(LIMIT)).service(service_fn(ask));
        for question in 0..6 {
            let begun = Instant::now();
            match service.ready().await.expect("always").call((address, question)).await {
                Ok(answer) => assert_eq!((answer, question % 2), (question, 0)),
                Err(error) => assert!(error.is::<Elapsed>() && begun.elapsed() >= LIMIT, "{question}: {error}"),
            }
        }
        drop(server);
    });
}

#[test]
fn futures_of_services_can_be_sent_and_shown() {
    fn shown(future: impl Future + Send + std::fmt::Debug) -> String {
        format!("{future:?}")
    }
    let (_clock, runtime) = virtual_time();
    let echo = service_fn(|number: u64| ready(Ok::<_, Infallible>(number)));
    let mut hedge = HedgeLayer::on(&runtime, SECOND, |number: &u64| Some(*number)).layer(echo);
    assert!(shown(hedge.call(1)).starts_with("HedgeFuture"));
    let mut limited = TimeoutLayer::on(&runtime, SECOND).layer(echo);
    assert!(shown(limited.call(1)).starts_with("TimeoutFuture"));
}
