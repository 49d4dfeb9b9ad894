//! The other end of the echo servers in these examples: three clients on threads of their own, with
//! plain sockets.
//!
//! Ground rules. The clients know nothing of timers but how long the server lets a connection be
//! idle. One keeps talking and leaves, one falls silent and must be closed, one talks until the
//! server shuts down. What they saw is the report, and a server that did anything else makes the
//! example fail.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use timerqueue::CancellationTokenSource;

/// What an echo server's connection came to.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The client left.
    Left,
    /// Nothing was read for too long.
    Idle,
    /// The server was shut down.
    ShutDown,
}

/// What the clients saw.
pub(crate) struct Report {
    /// Echoes of the client that left by itself.
    echoes: usize,
    talked: Duration,
    /// From the last word of the silent client to the end of its connection.
    silence: Duration,
    /// From the shutdown to the end of the last connection.
    goodbye: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  one client talked for {:.0?} and heard {} echoes", self.talked, self.echoes)?;
        writeln!(f, "  one fell silent and was closed {:.2?} after its last word", self.silence)?;
        write!(f, "  one talked to the end, and heard of the shutdown after {:.2?}", self.goodbye)
    }
}

/// A client that says something, and hears the echo or the end.
struct Client(TcpStream);

impl Client {
    fn new(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// False: the server has closed the connection.
    fn say(&mut self, word: &[u8]) -> bool {
        let mut echo = vec![0; word.len()];
        self.0.write_all(word).and_then(|()| self.0.read_exact(&mut echo)).is_ok() && echo == word
    }

    /// Hears nothing for so long, or until the server closes the connection: false then.
    fn pause(&mut self, length: Option<Duration>) -> bool {
        self.0.set_read_timeout(length).expect("not zero");
        let open = self.0.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.0.set_read_timeout(None).expect("no limit");
        open
    }
}

/// Starts the clients. When two of them are done, `shutdown` is cancelled; when the third is, the
/// report is there.
pub(crate) fn start(server: SocketAddr, idle: Duration, shutdown: CancellationTokenSource) -> JoinHandle<Report> {
    let pause = idle / 3;
    let talking = thread::spawn(move || {
        let begun = Instant::now();
        let mut client = Client::new(server).expect("the server listens");
        let mut echoes = 0;
        // Longer than the idle limit in all, but never silent for so long.
        while begun.elapsed() < idle * 3 && client.say(b"and another thing") {
            echoes += 1;
            thread::sleep(pause);
        }
        (echoes, begun.elapsed())
    });
    let silent = thread::spawn(move || {
        let mut client = Client::new(server).expect("the server listens");
        let said = Instant::now();
        assert!(client.say(b"that is all I have to say"), "the server echoes");
        client.pause(None);
        said.elapsed()
    });
    let to_the_end = thread::spawn(move || {
        let mut client = Client::new(server).expect("the server listens");
        while client.say(b"go on") && client.pause(Some(pause)) {}
        Instant::now()
    });
    thread::spawn(move || {
        let (echoes, talked) = talking.join().expect("no panic");
        let silence = silent.join().expect("no panic");
        thread::sleep(pause); // the server sees them off
        let stopped = Instant::now();
        shutdown.cancel();
        let goodbye = to_the_end.join().expect("no panic").saturating_duration_since(stopped);
        assert!(talked >= idle * 3, "a client that talks is not idle, however long it stays");
        assert!(silence >= idle, "nobody is closed before the time");
        Report { echoes, talked, silence, goodbye }
    })
}
