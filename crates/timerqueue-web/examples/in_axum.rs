//! The page below `/admin` of a server with axum.
//!
//! ```sh
//! cargo run -p timerqueue-web --example in_axum
//! ```

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use timerqueue_scheduler::Scheduler;
use timerqueue_web::{Page, Peer};

/// Without a token, the page needs the address of the caller: it answers callers of this machine
/// alone.
async fn tell_peer(ConnectInfo(peer): ConnectInfo<SocketAddr>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Peer(peer));
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scheduler = Scheduler::builder().handler("mail", |to: String, _| println!("to {to}")).start()?;
    let _ = scheduler.put_to("mail", "ann").key("welcome/ann").due(std::time::Duration::from_secs(600)).send().await?;
    let page = Page::builder(&scheduler).nested_at("/admin").build()?;
    let app = axum::Router::new()
        .route("/", get(|| async { "the rest of the server" }))
        .nest_service("/admin", page)
        .layer(from_fn(tell_peer));
    // As a test it takes any port, and asks once.
    let listener = tokio::net::TcpListener::bind(if cfg!(test) { "127.0.0.1:0" } else { "127.0.0.1:8788" }).await?;
    let address = listener.local_addr()?;
    println!("http://{address}/admin/");
    let served = axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>());
    if cfg!(test) {
        let asked = tokio::task::spawn_blocking(move || ask(address));
        tokio::select! {
            served = async { served.await } => served?,
            asked = asked => assert!(asked??.contains("href=\"/admin/jobs?state=waiting\"")),
        }
    } else {
        served.await?;
    }
    Ok(())
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(stream, "GET /admin/ HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
