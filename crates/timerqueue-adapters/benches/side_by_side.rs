//! Servers on our timers beside the same servers on tokio's: requests per second, and the server's
//! processor time per request.
//!
//! ```text
//! cargo bench -p timerqueue-adapters --all-features --bench side_by_side -- [http|quic|all] [rounds] [seconds] [connections]
//! ```
//!
//! Usually all, 9 rounds of 2 s, and 10,000 connections for HTTP, or as many as the limit of open
//! files allows. The servers take turns, so that a busy moment of the machine meets all of them.
//! The one on tokio's timers takes part twice: what its two medians differ by is noise. The medians
//! are compared. The clients are a process of their own, which is the same for both servers and
//! counts on tokio's timers; only the server's process is measured, on Linux, in steps of 10 ms.
//!
//! - **http**: hyper with HTTP/1.1 and keep-alive, a header-read timeout of 10 s (hyper-util's
//!   `TokioTimer`, or `HyperTimer`), and a limit of 5 s for each request (`tokio::time::timeout`,
//!   or `timerqueue::timeout`). Each connection sends its next request when it has its answer.
//! - **quic**: quinn on `TokioRuntime`, or on `QuinnRuntime` around it; 100 connections, each of
//!   which echoes 100 bytes on one stream after the other.

use std::convert::Infallible;
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use timerqueue_adapters::hyper_1::HyperTimer;
use timerqueue_adapters::quinn_0_11::QuinnRuntime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LIMIT: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(10);
const QUIC_CONNECTIONS: usize = 100;
/// Files beside the connections.
const OTHER_FILES: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timers {
    Tokio,
    Ours,
}

// ---------------------------------------------------------------- servers

/// The answer to a request, after a turn of the executor: so the limit is set each time, and never
/// elapses.
async fn answer() -> String {
    tokio::task::yield_now().await;
    String::from("hello")
}

async fn respond(timers: Timers) -> std::result::Result<Response<String>, Infallible> {
    let answered = match timers {
        Timers::Tokio => tokio::time::timeout(LIMIT, answer()).await.ok(),
        Timers::Ours => timerqueue::timeout(LIMIT, answer()).await.ok(),
    };
    let (status, text) = answered.map_or((StatusCode::GATEWAY_TIMEOUT, String::new()), |text| (StatusCode::OK, text));
    let mut response = Response::new(text);
    *response.status_mut() = status;
    Ok(response)
}

async fn serve_http(listener: TcpListener, timers: Timers) -> io::Result<()> {
    let mut builder = http1::Builder::new();
    match timers {
        Timers::Tokio => builder.timer(TokioTimer::new()),
        Timers::Ours => builder.timer(HyperTimer::new()),
    };
    builder.header_read_timeout(HEADERS);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service_fn(move |_: Request<Incoming>| respond(timers));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _ = connection.await; // the client leaves
        });
    }
}

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from(&include_bytes!("../tests/data/localhost.cert.der")[..])
}

fn quic_server(timers: Timers) -> Result<Endpoint> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(&include_bytes!("../tests/data/localhost.key.der")[..]));
    let server = ServerConfig::with_single_cert(vec![certificate()], key)?;
    let tokio: Arc<dyn quinn::Runtime> = Arc::new(TokioRuntime);
    let runtime = match timers {
        Timers::Tokio => tokio,
        Timers::Ours => Arc::new(QuinnRuntime::new(tokio)),
    };
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    Ok(Endpoint::new(EndpointConfig::default(), Some(server), socket, runtime)?)
}

async fn serve_quic(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                let Ok(text) = receive.read_to_end(1 << 10).await else { return };
                let _ = send.write_all(&text).await;
                let _ = send.finish();
            }
        });
    }
}

// ---------------------------------------------------------------- clients, in a process of their own

async fn http_client(address: SocketAddr, until: tokio::time::Instant, done: &AtomicU64) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    let mut stream: TcpStream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 1024];
    while tokio::time::Instant::now() < until {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"hello") {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn quic_client(
    endpoint: Endpoint,
    address: SocketAddr,
    until: tokio::time::Instant,
    done: &AtomicU64,
) -> Result<()> {
    let connection = endpoint.connect(address, "localhost")?.await?;
    while tokio::time::Instant::now() < until {
        let (mut send, mut receive) = connection.open_bi().await?;
        send.write_all(&[7; 100]).await?;
        send.finish()?;
        if receive.read_to_end(1 << 10).await?.len() != 100 {
            return Err("an echo of another length".into());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Prints the number of requests.
async fn clients(kind: &str, address: SocketAddr, connections: usize, length: Duration) -> Result<()> {
    let done: &'static AtomicU64 = Box::leak(Box::default());
    let until = tokio::time::Instant::now() + length;
    let mut tasks = tokio::task::JoinSet::new();
    if kind == "http" {
        for _ in 0..connections {
            tasks.spawn(async move { Ok(http_client(address, until, done).await?) });
        }
    } else {
        let mut roots = RootCertStore::empty();
        roots.add(certificate())?;
        let mut endpoint = Endpoint::client("127.0.0.1:0".parse()?)?;
        endpoint.set_default_client_config(ClientConfig::with_root_certificates(Arc::new(roots))?);
        for _ in 0..connections {
            let endpoint = endpoint.clone();
            tasks.spawn(quic_client(endpoint, address, until, done));
        }
    }
    let mut failed = 0;
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended? {
            failed += 1;
            if failed == 1 {
                eprintln!("a connection failed: {error}");
            }
        }
    }
    println!("{} {failed}", done.load(Ordering::Relaxed));
    Ok(())
}

// ---------------------------------------------------------------- measuring

/// Processor time of this process; zero where the system does not tell.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain spaces: fields 14 and 15 of the line, in hundredths of a
    // second.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// The soft limit of open files.
fn most_files() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok()).unwrap_or(1_024)
}

/// Requests per second, and microseconds of the server's processor time for each.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    processor_us: f64,
}

fn round(kind: &str, timers: Timers, connections: usize, length: Duration) -> Result<Figures> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let address = runtime.block_on(async {
        if kind == "http" {
            let socket = TcpSocket::new_v4()?;
            socket.bind("127.0.0.1:0".parse()?)?;
            let listener = socket.listen(4_096)?;
            let address = listener.local_addr()?;
            tokio::spawn(serve_http(listener, timers));
            Ok::<_, Box<dyn Error + Send + Sync>>(address)
        } else {
            let endpoint = quic_server(timers)?;
            let address = endpoint.local_addr()?;
            tokio::spawn(serve_quic(endpoint));
            Ok(address)
        }
    })?;
    let (begun, before) = (Instant::now(), processor_time());
    let output = Command::new(env::current_exe()?)
        .args(["clients", kind, &address.to_string(), &connections.to_string(), &length.as_millis().to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    let (took, used) = (begun.elapsed(), processor_time() - before);
    runtime.shutdown_background();
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(requests)), Some(Ok(failed))) = (numbers.next(), numbers.next()) else {
        return Err(format!("the clients ended with {}", output.status).into());
    };
    if failed > 0 {
        println!("  {failed} of {connections} connections failed");
    }
    let requests = requests.max(1) as f64;
    Ok(Figures { per_second: requests / took.as_secs_f64(), processor_us: used.as_secs_f64() * 1e6 / requests })
}

fn median(rounds: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(kind: &str, rounds: usize, connections: usize, length: Duration) -> Result<()> {
    println!("{kind}: {connections} connections, {rounds} rounds of {length:?}");
    const CONTENDERS: [(&str, Timers); 3] =
        [("tokio", Timers::Tokio), ("ours", Timers::Ours), ("tokio again", Timers::Tokio)];
    let mut measured = [const { Vec::new() }; CONTENDERS.len()];
    for i in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            // Each has each place in turn.
            let at = (i + turn) % CONTENDERS.len();
            let (name, timers) = CONTENDERS[at];
            let figures = round(kind, timers, connections, length)?;
            println!("  {name}: {:.0} requests/s, {:.2} us each", figures.per_second, figures.processor_us);
            measured[at].push(figures);
        }
    }
    for (what, of) in [
        ("requests/s", (|figures| figures.per_second) as fn(&Figures) -> f64),
        ("us of the server's processor time per request", |figures| figures.processor_us),
    ] {
        let [tokio, ours, again] = measured.each_ref().map(|rounds| median(rounds, of));
        println!("{kind}, median {what}: tokio {tokio:.2}, ours {ours:.2}, tokio again {again:.2}");
        println!("  ours/tokio {:.3}, tokio again/tokio {:.3}", ours / tokio, again / tokio);
    }
    Ok(())
}

fn main() -> Result<()> {
    // cargo adds `--bench`.
    let args: Vec<String> = env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let number = |at: usize, usual: usize| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(usual);
    if args.first().is_some_and(|arg| arg == "clients") {
        let length = Duration::from_millis(args[4].parse()?);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        return runtime.block_on(clients(&args[1], args[2].parse()?, args[3].parse()?, length));
    }
    let kind = args.first().map_or("all", String::as_str);
    let (rounds, length) = (number(1, 9).max(1), Duration::from_secs(number(2, 2) as u64));
    if kind != "quic" {
        let most = most_files().saturating_sub(OTHER_FILES);
        compare("http", rounds, number(3, 10_000).min(most), length)?;
    }
    if kind != "http" {
        compare("quic", rounds, QUIC_CONNECTIONS, length)?;
    }
    Ok(())
}
