//! The page with the jobs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Ended, Folder, Worker};

/// The answer to a request, with further lines in its head.
fn get(address: &str, path: &str, lines: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{lines}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A server with these options, its address, and what its URL has behind the address.
fn serve(folder: &Folder, options: &[&str]) -> (Worker, String, String) {
    let all = [&["--json", "web", "--listen", "127.0.0.1:0"], options].concat();
    let mut server = folder.command(all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let served: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = served["url"].as_str().unwrap().trim_start_matches("http://");
    let (address, rest) = url.split_once('/').unwrap();
    (Worker(server), address.to_owned(), rest.to_owned())
}

fn the_page_shows_the_jobs_of_the_file_until_a_signal(folder: Folder) {
    folder.ok(["put", "mail", "--key", "welcome/ann", "--in", "1h"]);
    let (mut server, address, rest) = serve(&folder, &["--no-token"]);
    assert_eq!(rest, "");
    let answer = get(&address, "/jobs?state=waiting", "");
    assert!(answer.contains("welcome/ann"), "{answer}");
    // Of another process, while the page is served.
    folder.ok(["put", "mail", "--key", "welcome/bob", "--in", "1h"]);
    assert!(get(&address, "/jobs?state=waiting", "").contains("welcome/bob"));
    server.signal(Signal::TERM);
    assert_eq!(server.0.wait().unwrap().code(), Some(0));
    assert_eq!(folder.job("welcome/ann")["state"], "waiting");
}

/// Its own, which the URL does not tell, or one that is made up, which the URL tells.
fn a_page_asks_for_its_token(folder: Folder) {
    folder.ok(["put", "mail", "--key", "welcome/ann", "--in", "1h"]);
    for own in [Some("0123456789abcdef"), None] {
        let options: Vec<_> = own.iter().flat_map(|token| ["--token", token]).collect();
        let (_server, address, rest) = serve(&folder, &options);
        let answer = get(&address, "/jobs?state=waiting", "");
        assert!(!answer.starts_with("HTTP/1.1 200") && !answer.contains("welcome/ann"), "{answer}");
        let token = match own {
            Some(own) => own,
            None => rest.strip_prefix("?token=").unwrap(),
        };
        assert!(own.is_none() || rest.is_empty(), "{rest}");
        let bearer = format!("Authorization: Bearer {token}\r\n");
        assert!(get(&address, "/jobs?state=waiting", &bearer).contains("welcome/ann"));
    }
}

#[test]
fn a_page_that_cannot_be_served_says_why() {
    let folder = Folder::new();
    assert_eq!(folder.fails(["web"]).0, 4, "no file");
    folder.ok(["put", "mail", "--in", "1h"]);
    let (code, said) = folder.fails(["web", "--listen", "0.0.0.0:0", "--no-token"]);
    assert!(code == 2 && said.contains("--no-token"), "{said}");
    let (code, said) = folder.fails(["web", "--token", "short"]);
    assert!(code == 2 && said.contains("16 bytes"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let ended = Ended::of(folder.command(["web", "--listen", &taken]).output().unwrap());
    assert!(ended.code == 4 && ended.err.contains(&taken), "{ended:?}");
}

on_each_store! {
    the_page_shows_the_jobs_of_the_file_until_a_signal
    a_page_asks_for_its_token
}
