//! An echo server under tokio that closes idle connections and shuts down when it is told to.
//!
//! Each connection has one [`Delay`], which every read moves on: that costs one short lock section
//! and no system call, however many connections there are. A [`CancellationToken`] ends them all.
//! The same server under smol is in `tcp_idle_timeouts_smol.rs`, and on plain threads in
//! `tcp_idle_timeouts_threads.rs`.
//!
//! Run it with `cargo run --example tcp_idle_timeouts`: it brings its own clients and ends by
//! itself.

mod tcp_clients;

use std::io;
use std::time::Duration;

use tcp_clients::Ending;
use timerqueue::{CancellationToken, CancellationTokenSource, Delay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const IDLE: Duration = Duration::from_millis(200);

async fn echo(mut stream: TcpStream, token: CancellationToken) -> io::Result<Ending> {
    let mut buffer = [0; 1024];
    let mut idle = Delay::new(IDLE);
    let mut shutdown = token.cancelled_owned();
    loop {
        let read = tokio::select! {
            read = stream.read(&mut buffer) => read?,
            _ = &mut idle => return Ok(Ending::Idle),
            _ = &mut shutdown => return Ok(Ending::ShutDown),
        };
        if read == 0 {
            return Ok(Ending::Left);
        }
        stream.write_all(&buffer[..read]).await?;
        idle.reset(IDLE);
    }
}

async fn serve(listener: TcpListener, token: CancellationToken) -> io::Result<()> {
    let mut connections = JoinSet::new();
    while let Some(accepted) = token.run_until_cancelled(listener.accept()).await {
        let (stream, client) = accepted?;
        stream.set_nodelay(true)?;
        let token = token.clone();
        connections.spawn(async move { (client, echo(stream, token).await) });
    }
    while let Some(ended) = connections.join_next().await {
        let (client, ending) = ended.expect("a connection does not panic");
        println!("  {client}: {:?}", ending?);
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> io::Result<()> {
    println!("an echo server under tokio that closes connections after {IDLE:?} of silence");
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let shutdown = CancellationTokenSource::new();
    let clients = tcp_clients::start(listener.local_addr()?, IDLE, shutdown.clone());
    serve(listener, shutdown.token()).await?;
    println!("{}", clients.join().expect("the clients saw what they should"));
    Ok(())
}
