//! quinn endpoints over loopback on our timers: echoes, and idle timeouts in real and in virtual
//! time.
//!
//! The certificate in `data` is for `localhost`, signed by its own key, valid from 2020 to 2119,
//! and used by these tests alone.
#![cfg(feature = "quinn-0_11")]

use std::future::Future;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig, SmolRuntime, TokioRuntime,
    TransportConfig,
};
use timerqueue::{ManualClock, Runtime, timeout};
use timerqueue_adapters::quinn_0_11::QuinnRuntime;

const SECOND: Duration = Duration::from_secs(1);
/// What is to come takes much less.
const LONG: Duration = Duration::from_secs(30);

fn transport(idle: Duration) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(idle.try_into().expect("a short time")));
    Arc::new(transport)
}

/// An endpoint for both directions, bound to loopback.
fn endpoint(runtime: &QuinnRuntime, idle: Duration) -> Endpoint {
    let certificate = CertificateDer::from(&include_bytes!("../data/localhost.cert.der")[..]);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(&include_bytes!("../data/localhost.key.der")[..]));
    let mut server = ServerConfig::with_single_cert(vec![certificate.clone()], key).expect("they belong together");
    server.transport_config(transport(idle));
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a store");
    client.transport_config(transport(idle));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let runtime = Arc::new(runtime.clone());
    let mut endpoint = Endpoint::new(EndpointConfig::default(), Some(server), socket, runtime).expect("a socket");
    endpoint.set_default_client_config(client);
    endpoint
}

/// Accepts connections for ever, and sends back what comes in on each stream.
async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        let Ok(connection) = incoming.await else { continue };
        // One connection at a time is enough here.
        while let Ok((mut send, mut receive)) = connection.accept_bi().await {
            let Ok(text) = receive.read_to_end(1 << 20).await else { break };
            let _ = send.write_all(&text).await;
            let _ = send.finish();
        }
    }
}

async fn connect(client: &Endpoint, server: SocketAddr) -> Connection {
    let connecting = client.connect(server, "localhost").expect("a configuration");
    timeout(LONG, connecting).await.expect("in time").expect("a connection")
}

async fn echo(connection: &Connection, text: &[u8]) {
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    send.write_all(text).await.expect("the server reads");
    send.finish().expect("open");
    let echoed = timeout(LONG, receive.read_to_end(1 << 20)).await.expect("in time").expect("an echo");
    assert!(echoed == text, "{} bytes came back of {}", echoed.len(), text.len());
}

/// A client and a server that echo, then an idle connection on which both sides give up.
async fn echoes_and_idle_timeout(runtime: QuinnRuntime) {
    // Longer than a busy machine holds up the packets of an echo.
    const IDLE: Duration = Duration::from_secs(3);
    let server = endpoint(&runtime, IDLE);
    let address = server.local_addr().expect("bound");
    quinn::Runtime::spawn(&runtime, Box::pin(serve(server)));
    let client = endpoint(&runtime, IDLE);
    let connection = connect(&client, address).await;
    for size in [0, 1, 1_000, 100_000, 1 << 20] {
        echo(&connection, &vec![7; size]).await;
    }
    let begun = Instant::now();
    echo(&connection, b"the last one").await;
    let error = timeout(LONG, connection.closed()).await.expect("in time");
    assert_eq!(error, ConnectionError::TimedOut);
    assert!(begun.elapsed() >= IDLE, "{:?}", begun.elapsed());
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    // Without tokio's timers: those of quinn are ours.
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build().expect("threads")
}

#[test]
fn on_tokio_without_its_timers_connections_echo_and_time_out() {
    tokio_runtime().block_on(async { echoes_and_idle_timeout(QuinnRuntime::new(Arc::new(TokioRuntime))).await });
}

#[test]
fn on_smol_connections_echo_and_time_out() {
    smol::block_on(echoes_and_idle_timeout(QuinnRuntime::new(Arc::new(SmolRuntime))));
}

fn virtual_time() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
    (clock, runtime)
}

/// Packets travel in real time; the idle timeout is a minute of virtual time.
#[test]
fn a_connection_times_out_when_its_virtual_minute_is_over_and_not_before() {
    let (clock, runtime) = virtual_time();
    tokio_runtime().block_on(async {
        let quinn_runtime = QuinnRuntime::on(&runtime, Arc::new(TokioRuntime));
        let server = endpoint(&quinn_runtime, 60 * SECOND);
        let address = server.local_addr().expect("bound");
        tokio::spawn(serve(server));
        let client = endpoint(&quinn_runtime, 60 * SECOND);
        let connection = connect(&client, address).await;
        echo(&connection, b"hello").await;
        // The last acknowledgements wait for virtual time as well, some milliseconds.
        for _ in 0..10 {
            clock.advance(Duration::from_millis(30));
            timerqueue::Delay::new(Duration::from_millis(5)).await; // real time
        }
        clock.advance(58 * SECOND);
        let moment = timeout(Duration::from_millis(50), connection.closed()).await;
        assert!(moment.is_err(), "closed early: {moment:?}");
        clock.advance(2 * SECOND);
        let error = timeout(LONG, connection.closed()).await.expect("in time");
        assert_eq!(error, ConnectionError::TimedOut);
    });
}

#[test]
fn dropping_the_endpoints_removes_their_timers_from_the_queue() {
    let (_clock, runtime) = virtual_time();
    let quinn_runtime = QuinnRuntime::on(&runtime, Arc::new(TokioRuntime));
    let tokio = tokio_runtime();
    tokio.block_on(async {
        let server = endpoint(&quinn_runtime, 60 * SECOND);
        let address = server.local_addr().expect("bound");
        tokio::spawn(serve(server));
        let client = endpoint(&quinn_runtime, 60 * SECOND);
        let connection = connect(&client, address).await;
        echo(&connection, b"hello").await;
        assert!(runtime.metrics().active >= 2, "a timer on each side: {}", runtime.metrics().active);
    });
    drop(tokio); // drops the tasks of endpoints and connections
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn on_an_ended_runtime_connections_work_and_no_timer_wakes_them() {
    let (clock, runtime) = virtual_time();
    let quinn_runtime = QuinnRuntime::on(&runtime, Arc::new(TokioRuntime));
    runtime.shutdown(SECOND).expect("no callback runs");
    tokio_runtime().block_on(async {
        let server = endpoint(&quinn_runtime, SECOND);
        let address = server.local_addr().expect("bound");
        tokio::spawn(serve(server));
        let client = endpoint(&quinn_runtime, SECOND);
        let connection = connect(&client, address).await;
        echo(&connection, b"hello").await;
        clock.advance(3600 * SECOND);
        assert_eq!((runtime.metrics().fired(), runtime.metrics().active), (0, 0));
    });
}

#[test]
fn timers_are_moved_to_instants_of_the_clock_of_the_runtime() {
    let (clock, runtime) = virtual_time();
    let quinn_runtime: &dyn quinn::Runtime = &runtime.enter(|| QuinnRuntime::new(Arc::new(SmolRuntime)));
    let begun = quinn_runtime.now();
    let mut timer = quinn_runtime.new_timer(begun + SECOND);
    let is_ready = |timer: &mut Pin<Box<dyn quinn::AsyncTimer>>| {
        timer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    assert!(!is_ready(&mut timer));
    timer.as_mut().reset(begun + 2 * SECOND); // later
    clock.advance(SECOND);
    assert!(!is_ready(&mut timer));
    clock.advance(SECOND);
    assert!(is_ready(&mut timer) && is_ready(&mut timer));
    assert_eq!(quinn_runtime.now() - begun, 2 * SECOND);
    timer.as_mut().reset(begun + 4 * SECOND); // after it was ready
    assert!(!is_ready(&mut timer));
    timer.as_mut().reset(begun + 3 * SECOND); // earlier
    clock.advance(SECOND);
    assert!(is_ready(&mut timer));
    timer.as_mut().reset(begun); // in the past
    assert!(is_ready(&mut timer));
}

#[test]
fn sockets_and_tasks_are_those_of_the_inner_runtime() {
    let quinn_runtime = QuinnRuntime::new(Arc::new(SmolRuntime));
    let (send, receive) = smol::channel::bounded(1);
    quinn::Runtime::spawn(&quinn_runtime, Box::pin(async move { send.send(42).await.expect("received") }));
    assert_eq!(smol::block_on(timeout(LONG, receive.recv())), Ok(Ok(42)));
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = socket.local_addr().expect("bound");
    let wrapped = quinn::Runtime::wrap_udp_socket(&quinn_runtime, socket).expect("a socket");
    assert_eq!(wrapped.local_addr().expect("bound"), address);
    assert!(format!("{quinn_runtime:?}").contains("SmolRuntime"));
}

/// A connection is a future that can be sent between threads, with our timers inside.
#[test]
fn connections_can_be_sent() {
    fn is_send(_: &(impl Future + Send)) {}
    let quinn_runtime = QuinnRuntime::new(Arc::new(SmolRuntime));
    is_send(&echoes_and_idle_timeout(quinn_runtime));
}
