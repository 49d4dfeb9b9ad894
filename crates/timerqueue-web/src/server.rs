//! A server of its own: hyper for HTTP/1.1, on a runtime of tokio that ends with it.
//!
//! Ground rules. A page without a token is served at loopback addresses alone. Connections are
//! bounded in number, and a request's head in time and size.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use timerqueue::CancellationToken;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

use crate::{Body, Page, Peer};

/// Connections at a time; further ones wait.
const CONNECTIONS: usize = 256;
/// The longest time for the head of a request, also of the next one on a connection; and for its
/// form and answer; and for the client to take a part of the answer.
const HEAD: Duration = Duration::from_secs(20);
/// How long answers under way may take, once the server was asked to end.
const LAST: Duration = Duration::from_secs(2);
/// After a failed accept, such as one for which the process has too many files open.
const REST: Duration = Duration::from_millis(100);

/// Why a page is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address can be reached from other machines, and the page has no
    /// [token](crate::PageBuilder::token).
    #[error("{address} can be reached from other machines: a page there needs a token")]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
    /// The socket, or the threads of the server, cannot be had.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Serves a page by HTTP/1.1 on a socket, until the token is cancelled. Blocks the thread, on which
/// all of the server runs. Answers under way get two seconds to end.
///
/// # Errors
///
/// [`ServeError::NoToken`]: the socket can be reached from other machines, and the page has no
/// token.
///
/// # Examples
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Duration;
/// use timerqueue::CancellationTokenSource;
/// use timerqueue_scheduler::Scheduler;
/// use timerqueue_web::{Page, serve};
///
/// let scheduler = Scheduler::builder().handler("mail", |_: String, _| {}).start()?;
/// let page = Page::builder(&scheduler).build()?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// println!("http://{}/", listener.local_addr()?);
/// let stop = CancellationTokenSource::after(Duration::from_millis(10)); // a real program: at the end, or at a signal
/// serve(&page, listener, &stop.token())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve(page: &Page, listener: TcpListener, stop: &CancellationToken) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    if !page.has_token() && !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NoToken { address });
    }
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let accept = accept(page, &listener, &places, stop);
        tokio::select! {
            () = accept => {}
            _ = stop.cancelled() => {}
        }
        drop(listener);
        // Each connection gives its place back at its end.
        let _ = tokio::time::timeout(LAST, places.acquire_many(CONNECTIONS as u32)).await;
        Ok(())
    })
}

async fn accept(page: &Page, listener: &tokio::net::TcpListener, places: &Arc<Semaphore>, stop: &CancellationToken) {
    loop {
        let Ok(place) = Arc::clone(places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (page, stop) = (page.clone(), stop.clone());
                tokio::spawn(async move {
                    connection(page, stream, peer, stop, HEAD).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(REST).await,
        }
    }
}

async fn connection(page: Page, stream: TcpStream, peer: SocketAddr, stop: CancellationToken, limit: Duration) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let page = page.clone();
        request.extensions_mut().insert(Peer(peer));
        async move {
            let answer = tokio::time::timeout(limit, page.respond(request)).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|_| {
                let mut late = hyper::Response::new(Body::default());
                *late.status_mut() = hyper::StatusCode::REQUEST_TIMEOUT;
                late
            }))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(64 * 1024);
    // A client that reads nothing would keep its place for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limit));
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use timerqueue::CancellationTokenSource;
    use timerqueue_scheduler::Scheduler;

    use super::*;

    #[test]
    fn a_client_that_takes_no_answer_loses_its_place() {
        let scheduler = Scheduler::builder().handler("mail", |_: String, _| {}).start().unwrap();
        let page = Page::builder(&scheduler).build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap();
        let mut client = std::net::TcpStream::connect(host).unwrap();
        // Some 20 MB of answers: more than the system keeps for a client that reads nothing.
        client.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").repeat(1_000).as_bytes()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stop = CancellationTokenSource::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = TcpStream::from_std(stream).unwrap();
            let ended = connection(page, stream, peer, stop.token(), Duration::from_secs(1));
            assert!(tokio::time::timeout(Duration::from_secs(60), ended).await.is_ok(), "it has its place for ever");
        });
        drop(client);
    }
}
