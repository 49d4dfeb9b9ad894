//! An echo over QUIC, with an idle timeout: quinn on tokio, and on timers of `timerqueue`.
//!
//! ```text
//! cargo run -p timerqueue-adapters --features quinn-0_11 --example quinn_echo
//! ```
//!
//! The client sends some texts, which come back, and then nothing. Both sides give up when the idle
//! timeout has elapsed. tokio's own timers are off. The certificate is one for tests.

use std::error::Error;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig};
use timerqueue_adapters::quinn_0_11::QuinnRuntime;

const IDLE: Duration = Duration::from_millis(300);

/// An endpoint that can serve and call.
fn endpoint() -> Result<Endpoint, Box<dyn Error>> {
    let certificate = CertificateDer::from(&include_bytes!("../tests/data/localhost.cert.der")[..]);
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(&include_bytes!("../tests/data/localhost.key.der")[..]));
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(IDLE.try_into()?));
    let transport = Arc::new(transport);

    let mut server = ServerConfig::with_single_cert(vec![certificate.clone()], key)?;
    server.transport_config(Arc::clone(&transport));
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    client.transport_config(transport);

    // Sockets and tasks of tokio, timers of timerqueue.
    let runtime = Arc::new(QuinnRuntime::new(Arc::new(TokioRuntime)));
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let mut endpoint = Endpoint::new(EndpointConfig::default(), Some(server), socket, runtime)?;
    endpoint.set_default_client_config(client);
    Ok(endpoint)
}

/// Sends back what comes in on each stream, until the connection ends.
async fn serve(endpoint: Endpoint) -> Result<(), Box<dyn Error + Send + Sync>> {
    while let Some(incoming) = endpoint.accept().await {
        let connection = incoming.await?;
        let ended = loop {
            match connection.accept_bi().await {
                Ok((mut send, mut receive)) => {
                    let text = receive.read_to_end(1 << 16).await?;
                    send.write_all(&text).await?;
                    send.finish()?;
                }
                Err(ended) => break ended,
            }
        };
        println!("server: {ended}");
    }
    Ok(())
}

async fn talk() -> Result<(), Box<dyn Error>> {
    let server = endpoint()?;
    let address = server.local_addr()?;
    tokio::spawn(serve(server));
    let client = endpoint()?;
    let connection = client.connect(address, "localhost")?.await?;
    for text in ["hello", "again", "and again"] {
        let (mut send, mut receive) = connection.open_bi().await?;
        send.write_all(text.as_bytes()).await?;
        send.finish()?;
        let echo = receive.read_to_end(1 << 16).await?;
        println!("client: {}", String::from_utf8(echo)?);
    }
    let begun = Instant::now();
    let ended = connection.closed().await;
    println!("client: {ended}, after {:.0?} of silence", begun.elapsed());
    assert_eq!(ended, ConnectionError::TimedOut);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // No `enable_time`.
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build()?.block_on(talk())
}
