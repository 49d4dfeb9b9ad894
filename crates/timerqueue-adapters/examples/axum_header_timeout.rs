//! An axum application, served through hyper-util's types by hyper on timers of `timerqueue`.
//!
//! A first client gets an answer and then leaves its connection idle; a second client sends half of
//! its headers. The server closes both connections when the header-read timeout has elapsed.

use std::io;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use timerqueue_adapters::hyper_1::HyperTimer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_millis(200);

async fn serve(listener: TcpListener) -> io::Result<()> {
    let application = Router::new().route("/", get(async || "hello"));
    let mut builder = http1::Builder::new();
    builder.timer(HyperTimer::new()).header_read_timeout(LIMIT);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(application.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            match connection.await {
                Err(error) if error.is_timeout() => println!("server: no headers in time"),
                result => println!("server: {result:?}"),
            }
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));

    for request in ["GET / HTTP/1.1\r\nhost: example\r\n\r\n", "GET / HTTP/1.1\r\nhost: exam"] {
        let begun = Instant::now();
        let mut client = TcpStream::connect(address).await?;
        client.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await?; // until the server closes the connection
        println!("client: closed after {:?}; {:?}", begun.elapsed(), answer.lines().next().unwrap_or_default());
        assert!(begun.elapsed() >= LIMIT);
    }
    Ok(())
}
