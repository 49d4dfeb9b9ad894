//! The figures of a runtime for Prometheus: a server of a few lines answers scrapes.
//!
//! ```text
//! cargo run -p timerqueue-adapters --features metrics-0_24 --example prometheus_scrape [seconds]
//! curl http://127.0.0.1:9898/metrics        # meanwhile, from another terminal
//! ```
//!
//! Without an argument, the example scrapes itself once, and checks what it gets.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use timerqueue::{Runtime, Timer, TimerBuilder};
use timerqueue_adapters::metrics_0_24::Reporter;

/// Answers each request with the present figures: a report right before the scrape, so the figures
/// are new.
fn serve(listener: TcpListener, prometheus: &PrometheusHandle, reporter: Reporter) {
    for stream in listener.incoming() {
        let answer = |mut stream: TcpStream, text: String| -> std::io::Result<()> {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            for line in BufReader::new(&stream).lines() {
                if line?.is_empty() {
                    break; // the end of the headers
                }
            }
            let kind = "text/plain; version=0.0.4";
            let length = text.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
            )
        };
        reporter.report();
        if let Err(error) = stream.and_then(|stream| answer(stream, prometheus.render())) {
            eprintln!("a scrape failed: {error}");
        }
    }
}

fn scrape(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: Option<u64> = std::env::args().nth(1).and_then(|arg| arg.parse().ok());
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    let runtime = Runtime::global();
    let port = if seconds.is_some() { 9898 } else { 0 };
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let address = listener.local_addr()?;
    let reporter = Reporter::new(runtime).label("runtime", "default");
    thread::spawn(move || serve(listener, &prometheus, reporter));

    // The work of the program: a hundred timers with a period of 10 ms.
    let timers: Vec<Timer> =
        (0..100).map(|_| TimerBuilder::on(runtime).period(Duration::from_millis(10)).start_exclusive(|_| {})).collect();
    if let Some(seconds) = seconds {
        println!("http://{address}/metrics for {seconds} s");
        thread::sleep(Duration::from_secs(seconds));
        return Ok(());
    }
    let begun = runtime.now();
    while runtime.metrics().fired() < 200 && runtime.elapsed(begun) < Duration::from_secs(30) {
        thread::sleep(Duration::from_millis(10));
    }
    let text = scrape(address)?;
    for line in text.lines().filter(|line| line.starts_with("timerqueue_")) {
        println!("{line}");
    }
    let value = |name: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    assert!(value("timerqueue_callbacks_total") >= Some(200.0));
    assert_eq!(value("timerqueue_timers_active"), Some(100.0));
    assert!(value("timerqueue_lateness_seconds_count") >= Some(200.0));
    drop(timers);
    Ok(())
}
