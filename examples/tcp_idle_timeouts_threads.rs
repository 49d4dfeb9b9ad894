//! The echo server of `tcp_idle_timeouts.rs` without an executor: plain threads, blocking sockets.
//!
//! A thread that blocks in a read cannot wait for anything else, so the timer comes to it: each
//! connection has a [`Timer`] that shuts the socket down, and every read moves it on. The token
//! does the same by a registered callback. The main thread waits for the end in an `async` block,
//! with a `block_on` of ten lines: a [`Delay`] needs no more than that.
//!
//! Run it with `cargo run --example tcp_idle_timeouts_threads`: it brings its own clients and ends
//! by itself.

mod tcp_clients;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tcp_clients::Ending;
use timerqueue::{CancellationToken, CancellationTokenSource, Delay, Timer, Timestamp};

const IDLE: Duration = Duration::from_millis(200);

/// Ends a blocked read of this socket. If the client has left already, that is as good.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn echo(mut stream: TcpStream, token: &CancellationToken) -> io::Result<Ending> {
    let (idle_end, shutdown_end) = (stream.try_clone()?, stream.try_clone()?);
    let idle = Timer::new(IDLE, Duration::ZERO, move |_| end(&idle_end));
    let _registration = token.register(move || end(&shutdown_end));
    let mut buffer = [0; 1024];
    loop {
        // Once the socket is shut down, a read gives nothing and a write an error.
        let echoed = stream.read(&mut buffer).and_then(|read| stream.write_all(&buffer[..read]).map(|()| read > 0));
        let next = if matches!(echoed, Ok(true)) { IDLE } else { Duration::MAX };
        let in_time = idle.change(next, Duration::ZERO).was_waiting();
        match echoed {
            Ok(true) if in_time => {}
            _ if token.is_cancelled() => return Ok(Ending::ShutDown),
            _ if !in_time => return Ok(Ending::Idle),
            Ok(_) => return Ok(Ending::Left),
            Err(error) => return Err(error),
        }
    }
}

fn serve(listener: &TcpListener, token: &CancellationToken) -> io::Result<()> {
    thread::scope(|scope| {
        loop {
            let (stream, client) = listener.accept()?;
            if token.is_cancelled() {
                return Ok(()); // the scope waits for the connections
            }
            stream.set_nodelay(true)?;
            scope.spawn(move || match echo(stream, token) {
                Ok(ending) => println!("  {client}: {ending:?}"),
                Err(error) => println!("  {client}: {error}"),
            });
        }
    })
}

/// The smallest executor there is: polls, and parks the thread until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn main() -> io::Result<()> {
    println!("an echo server on threads that closes connections after {IDLE:?} of silence");
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shutdown = CancellationTokenSource::new();
    let token = shutdown.token();
    let clients = tcp_clients::start(address, IDLE, shutdown);
    // A thread that blocks in `accept` is woken by a connection.
    token.register(move || drop(TcpStream::connect(address))).detach();
    let server = thread::spawn({
        let token = token.clone();
        move || serve(&listener, &token)
    });
    block_on(async {
        let begun = Timestamp::now();
        while Delay::new(3 * IDLE / 2).with_token(&token).await.is_ok() {
            println!("  ... still serving after {:.0?}", Timestamp::now() - begun);
        }
        io::Result::Ok(())
    })?;
    server.join().expect("the server does not panic")?;
    println!("{}", clients.join().expect("the clients saw what they should"));
    Ok(())
}
