//! The server of its own, over sockets.

#[path = "../../timerqueue-scheduler/tests/postgres/server.rs"]
mod postgres;
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use timerqueue::{CancellationTokenSource, Runtime};
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Builder, Handler, Retry, Run, Scheduler, State};
use timerqueue_web::{Page, ServeError, serve};

use support::{Served, ask};

fn page() -> Page {
    let scheduler = Scheduler::builder().handler("mail", |_: String, _| {}).start().unwrap();
    Page::builder(&scheduler).build().unwrap()
}

#[test]
fn it_answers_until_it_is_stopped() {
    let mut served = Served::new(&page());
    let host = served.address;
    let (head, body) = ask(host, &format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("Overview"), "{head}");
    let (head, _) = ask(host, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 421"), "{head}");
    let (head, _) = ask(host, "GET / HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 421"), "{head}");
    // A connection that says nothing keeps the server from its end for a moment only.
    let idle = TcpStream::connect(host).unwrap();
    let mut kept = TcpStream::connect(host).unwrap();
    write!(kept, "GET /icon.svg HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut begin = [0; 12];
    kept.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    let begun = Instant::now();
    served.end();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop((idle, kept));
    assert!(TcpStream::connect(host).is_err());
}

#[test]
fn it_shows_and_changes_the_jobs_of_a_file() {
    let folder = std::env::temp_dir().join(format!("timerqueue-web-server-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    it_shows_and_changes_the_jobs_of(|| Scheduler::open(folder.join("jobs.db")));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn it_shows_and_changes_the_jobs_of_a_server() {
    let Some(server) = postgres::Server::shared() else { return };
    let options = PostgresOptions::new().schema(&postgres::new_schema());
    it_shows_and_changes_the_jobs_of(|| {
        Scheduler::builder().store(options.connect(Runtime::global(), &server.address()).unwrap())
    });
}

/// A page of a process that has no handlers, on the store of another scheduler.
fn it_shows_and_changes_the_jobs_of(open: impl Fn() -> Builder) {
    let fails = |_: (), _: &Run| Err::<(), _>("no");
    let worker = open().register(Handler::new("dies", fails).retry(Retry::never())).start().unwrap();
    let _ = worker.put_to("dies", &()).key("a").send().wait().unwrap();
    let job = || worker.get("a").wait().unwrap().unwrap();
    until(|| job().state == State::Dead);
    let looker = open().start().unwrap();
    let served = Served::new(&Page::builder(&looker).build().unwrap());
    let host = served.address;
    let get = |path: &str| ask(host, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).1;
    let html = get("/");
    assert!(html.contains("0 done, 0 again, 0 failed, 1 dead"));
    for path in
        ["/jobs?state=running", "/jobs?state=failing", "/jobs?state=dead", "/jobs?state=queued", "/schedules", "/nodes"]
    {
        assert!(get(path).contains("<table>"), "{path}");
    }
    let secret = html.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let (path, form) = (format!("/job/{}/retry", job().id.0), format!("form={secret}&from=job"));
    let post = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{form}",
        form.len()
    );
    let (head, _) = ask(host, &post);
    assert!(head.contains("said=revived"), "{head}");
    until(|| job().failures.len() == 2);
}

#[track_caller]
fn until(so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn many_connections_that_say_nothing_are_bounded() {
    let served = Served::new(&page());
    let idle: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    drop(idle);
    let host = served.address;
    let (head, _) = ask(host, &format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn an_address_of_all_machines_needs_a_token() {
    let page = page();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let stop = CancellationTokenSource::new();
    assert!(matches!(serve(&page, listener, &stop.token()), Err(ServeError::NoToken { .. })));
}
