//! The page with the jobs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Ended, Folder, Worker};

/// The answer to a request for the first page.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A server with these options, and its address.
fn serve(folder: &Folder, options: &[&str]) -> (Worker, String) {
    let all = [&["--json", "web", "--listen", "127.0.0.1:0"], options].concat();
    let mut server = folder.command(all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let served: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = served["url"].as_str().unwrap().trim_start_matches("http://").trim_end_matches('/').to_owned();
    (Worker(server), address)
}

fn the_page_shows_the_jobs_of_the_file_until_a_signal(folder: Folder) {
    folder.ok(["put", "mail", "--key", "welcome/ann", "--in", "1h"]);
    let (mut server, address) = serve(&folder, &[]);
    let answer = get(&address, "/jobs?state=waiting");
    assert!(answer.contains("welcome/ann"), "{answer}");
    // Of another process, while the page is served.
    folder.ok(["put", "mail", "--key", "welcome/bob", "--in", "1h"]);
    assert!(get(&address, "/jobs?state=waiting").contains("welcome/bob"));
    server.signal(Signal::TERM);
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    assert_eq!(folder.job("welcome/ann")["state"], "waiting");
}

fn a_page_with_a_token_asks_for_it(folder: Folder) {
    folder.ok(["put", "mail", "--key", "welcome/ann", "--in", "1h"]);
    let (_server, address) = serve(&folder, &["--token", "0123456789abcdef"]);
    let answer = get(&address, "/jobs?state=waiting");
    assert!(!answer.starts_with("HTTP/1.1 200") && !answer.contains("welcome/ann"), "{answer}");
}

#[test]
fn a_page_that_cannot_be_served_says_why() {
    let folder = Folder::new();
    assert_eq!(folder.fails(["web"]).0, 4, "no file");
    folder.ok(["put", "mail", "--in", "1h"]);
    let (code, said) = folder.fails(["web", "--listen", "0.0.0.0:0"]);
    assert!(code == 2 && said.contains("--token"), "{said}");
    let (code, said) = folder.fails(["web", "--token", "short"]);
    assert!(code == 2 && said.contains("16 bytes"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let ended = Ended::of(folder.command(["web", "--listen", &taken]).output().unwrap());
    assert!(ended.code == 4 && ended.err.contains(&taken), "{ended:?}");
}

on_each_store! {
    the_page_shows_the_jobs_of_the_file_until_a_signal
    a_page_with_a_token_asks_for_it
}
