//! hyper servers on our timers: real connections over loopback, and exact limits on virtual time.
#![cfg(feature = "hyper-1")]

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use timerqueue::{Delay, ManualClock, Runtime};
use timerqueue_adapters::hyper_1::HyperTimer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};

const SECOND: Duration = Duration::from_secs(1);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";

async fn answer(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(String::from("hello")))
}

fn virtual_time() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    (clock, runtime)
}

/// Serves one connection of HTTP/1 with a header-read timeout.
async fn serve<I>(stream: I, timer: HyperTimer, limit: Duration) -> hyper::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(timer).header_read_timeout(limit);
    builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await
}

/// Sends a request and reads its answer.
async fn ask(client: &mut DuplexStream) {
    client.write_all(REQUEST).await.expect("the server reads");
    let (mut text, mut buffer) = (String::new(), [0; 256]);
    while !text.ends_with("hello") {
        let read = client.read(&mut buffer).await.expect("the server answers");
        assert!(read > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&buffer[..read]).expect("text"));
    }
}

#[test]
fn headers_that_do_not_come_end_the_connection_at_the_limit_to_the_nanosecond() {
    let (clock, runtime) = virtual_time();
    let (server, mut client) = tokio::io::duplex(1024);
    let error = clock.block_on(async {
        client.write_all(b"GET / HTTP/1.1\r\nhost: te").await.expect("room");
        serve(server, HyperTimer::on(&runtime), 30 * SECOND).await.expect_err("no headers")
    });
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(clock.now().as_duration(), 30 * SECOND);
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn a_kept_alive_connection_gets_the_limit_anew_for_each_request() {
    let (clock, runtime) = virtual_time();
    let (server, mut client) = tokio::io::duplex(1024);
    let executor = smol::LocalExecutor::new();
    let connection = executor.spawn(serve(server, HyperTimer::on(&runtime), 30 * SECOND));
    let error = clock.block_on(executor.run(async {
        for _ in 0..5 {
            ask(&mut client).await;
            Delay::on(&runtime, 29 * SECOND).await;
        }
        connection.await.expect_err("the client is idle")
    }));
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(clock.now().as_duration(), 4 * 29 * SECOND + 30 * SECOND);
}

#[test]
fn dropping_a_connection_removes_its_sleeps_from_the_queue() {
    let (clock, runtime) = virtual_time();
    let (server, _client) = tokio::io::duplex(1024);
    {
        let mut connection = pin!(serve(server, HyperTimer::on(&runtime), SECOND));
        assert!(connection.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(runtime.metrics().active, 1);
    }
    assert_eq!((runtime.metrics().active, clock.advance(SECOND)), (0, 0));
}

#[test]
fn on_an_ended_runtime_a_connection_goes_on_without_a_limit() {
    let (clock, runtime) = virtual_time();
    let (server, mut client) = tokio::io::duplex(1024);
    let executor = smol::LocalExecutor::new();
    let connection = executor.spawn(serve(server, HyperTimer::on(&runtime), SECOND));
    clock.block_on(executor.run(ask(&mut client)));
    runtime.shutdown(SECOND).expect("no callback runs");
    clock.advance(3600 * SECOND);
    clock.block_on(executor.run(ask(&mut client)));
    drop(client);
    smol::block_on(executor.run(connection)).expect("closed by the client");
}

#[test]
fn a_constructor_that_names_no_runtime_keeps_the_current_one() {
    let (clock, runtime) = virtual_time();
    let timer = runtime.enter(HyperTimer::new);
    let (begun, sleep) = (timer.now(), timer.sleep(5 * SECOND));
    clock.block_on(sleep);
    assert_eq!((timer.now() - begun, clock.now().as_duration()), (5 * SECOND, 5 * SECOND));
    drop(runtime); // the timer keeps the runtime
    clock.block_on(timer.sleep_until(begun + 7 * SECOND));
    assert_eq!(clock.now().as_duration(), 7 * SECOND);
}

/// A sleep of another library.
struct Foreign;

impl Future for Foreign {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Sleep for Foreign {}

#[test]
fn a_reset_moves_a_sleep_in_place_and_replaces_a_foreign_one() {
    let (clock, runtime) = virtual_time();
    let timer = HyperTimer::on(&runtime);
    let mut sleep = timer.sleep(SECOND);
    let place = |sleep: &Pin<Box<dyn Sleep>>| std::ptr::from_ref(&**sleep).addr();
    let before = place(&sleep);
    timer.reset(&mut sleep, timer.now() + 10 * SECOND);
    assert_eq!(place(&sleep), before);
    clock.block_on(&mut sleep);
    assert_eq!(clock.now().as_duration(), 10 * SECOND);

    let mut sleep: Pin<Box<dyn Sleep>> = Box::pin(Foreign);
    timer.reset(&mut sleep, timer.now() + SECOND);
    clock.block_on(sleep);
    assert_eq!(clock.now().as_duration(), 11 * SECOND);
}

/// The beginning of a client's HTTP/2 connection: the preface, and an empty frame of settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn a_client_that_answers_no_ping_is_closed_at_the_keep_alive_timeout() {
    let (clock, runtime) = virtual_time();
    let (server, mut client) = tokio::io::duplex(4096);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(HyperTimer::on(&runtime)).keep_alive_interval(20 * SECOND).keep_alive_timeout(5 * SECOND);
    let connection = builder.serve_connection(TokioIo::new(server), service_fn(answer));
    let error = clock.block_on(async {
        client.write_all(PREFACE).await.expect("room");
        connection.await.expect_err("no answer to the ping")
    });
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(clock.now().as_duration(), 25 * SECOND);
}

/// Real time: 50 clients over loopback, some quick, some idle, some slow, on the default runtime.
#[test]
fn a_server_over_loopback_closes_those_clients_that_send_no_headers_in_time() {
    // Longer than a busy machine holds up a client that is quick.
    const LIMIT: Duration = Duration::from_secs(2);
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build().expect("threads");
    let timeouts = Arc::new(AtomicUsize::new(0));
    tokio.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let counted = Arc::clone(&timeouts);
        tokio::spawn(async move {
            let timer = HyperTimer::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (timer, counted) = (timer.clone(), Arc::clone(&counted));
                tokio::spawn(async move {
                    let result = serve(stream, timer, LIMIT).await;
                    counted.fetch_add(usize::from(result.is_err_and(|e| e.is_timeout())), Ordering::SeqCst);
                });
            }
        });
        let mut clients = Vec::new();
        for sends in 0..50 {
            clients.push(tokio::spawn(async move {
                let begun = Instant::now();
                let mut client = TcpStream::connect(address).await.expect("the server listens");
                let request = if sends % 2 == 0 { REQUEST } else { &REQUEST[..20] };
                client.write_all(request).await.expect("the server reads");
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.expect("closed in order");
                assert!(begun.elapsed() >= LIMIT, "closed early: {:?}", begun.elapsed());
                assert_eq!(answer.ends_with("hello"), sends % 2 == 0, "{answer:?}");
            }));
        }
        for client in clients {
            client.await.expect("no panic");
        }
    });
    drop(tokio); // all tasks have ended, or were dropped
    assert_eq!(timeouts.load(Ordering::SeqCst), 50);
}
