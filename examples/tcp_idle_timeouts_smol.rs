//! The echo server of `tcp_idle_timeouts.rs` under smol: another executor, the same delay and the
//! same token.
//!
//! Run it with `cargo run --example tcp_idle_timeouts_smol`: it brings its own clients and ends by
//! itself.

mod tcp_clients;

use std::io;
use std::time::Duration;

use smol::future::FutureExt;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};
use tcp_clients::Ending;
use timerqueue::{CancellationToken, CancellationTokenSource, Delay};

const IDLE: Duration = Duration::from_millis(200);

async fn echo(mut stream: TcpStream, token: CancellationToken) -> io::Result<Ending> {
    let mut buffer = [0; 1024];
    let mut idle = Delay::new(IDLE);
    let mut shutdown = token.cancelled_owned();
    loop {
        let reads = async { stream.read(&mut buffer).await.map(Ok) };
        let is_idle = async {
            let _ = (&mut idle).await;
            Ok(Err(Ending::Idle))
        };
        let is_shut_down = async {
            (&mut shutdown).await;
            Ok(Err(Ending::ShutDown))
        };
        match reads.or(is_idle).or(is_shut_down).await? {
            Ok(0) => return Ok(Ending::Left),
            Ok(read) => stream.write_all(&buffer[..read]).await?,
            Err(ending) => return Ok(ending),
        }
        idle.reset(IDLE);
    }
}

async fn serve(listener: TcpListener, token: CancellationToken) -> io::Result<()> {
    let mut connections = Vec::new();
    while let Some(accepted) = token.run_until_cancelled(listener.accept()).await {
        let (stream, client) = accepted?;
        stream.set_nodelay(true)?;
        connections.push((client, smol::spawn(echo(stream, token.clone()))));
    }
    for (client, connection) in connections {
        println!("  {client}: {:?}", connection.await?);
    }
    Ok(())
}

fn main() -> io::Result<()> {
    println!("an echo server under smol that closes connections after {IDLE:?} of silence");
    smol::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let shutdown = CancellationTokenSource::new();
        let clients = tcp_clients::start(listener.local_addr()?, IDLE, shutdown.clone());
        serve(listener, shutdown.token()).await?;
        println!("{}", clients.join().expect("the clients saw what they should"));
        Ok(())
    })
}
