//! A page on a thread of its own, and requests to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use timerqueue::CancellationTokenSource;
use timerqueue_web::{Page, ServeError, serve};

/// A server that ends when this is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    stop: CancellationTokenSource,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Served {
    pub(crate) fn new(page: &Page) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (page, stop) = (page.clone(), CancellationTokenSource::new());
        let token = stop.token();
        let thread = thread::spawn(move || serve(&page, listener, &token));
        Self { address, stop, thread: Some(thread) }
    }

    pub(crate) fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

#[allow(dead_code, reason = "not each test asks without a browser")]
/// A request on a connection of its own: the head and the body of the answer.
pub(crate) fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.to_owned(), body.to_owned())
}
