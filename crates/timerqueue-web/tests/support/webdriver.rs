//! A browser without a screen, driven through ChromeDriver by its HTTP interface (WebDriver).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    profile: PathBuf,
}

fn found(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))).find(|file| file.is_file())
}

impl Browser {
    /// `None`, with a message: there is no Chromium here, or no ChromeDriver.
    pub(crate) fn start() -> Option<Self> {
        let (browser, driver) = (found(&["chromium", "chromium-browser", "google-chrome"]), found(&["chromedriver"]));
        let (Some(browser), Some(driver)) = (browser, driver) else {
            // Past the capture of the test harness.
            let _ = writeln!(
                std::io::stderr(),
                "\n!!! SKIPPED: no test of the page in a browser. It needs Debian's packages chromium and chromium-driver.\n"
            );
            return None;
        };
        let mut child =
            Command::new(driver).arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines
            .filter_map(|line| line.split("on port ").nth(1)?.trim_end_matches('.').parse().ok())
            .find(|&port: &u16| port != 0);
        let address = SocketAddr::from(([127, 0, 0, 1], port.expect("ChromeDriver tells its port")));
        let profile = std::env::temp_dir().join(format!("timerqueue-web-browser-{}", child.id()));
        let mut browser_of = Self { driver: child, address, session: String::new(), profile };
        let profile = format!("--user-data-dir={}", browser_of.profile.display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1200,900",
            &profile,
        ];
        let options = json!({"binary": browser, "args": arguments});
        let wanted =
            json!({"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}});
        let made = browser_of.send("POST", "/session", &json!({"capabilities": {"alwaysMatch": wanted}}));
        browser_of.session = made["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {made}")).to_owned();
        // A part of the page may come by itself.
        browser_of.command("POST", "/timeouts", &json!({"implicit": 20_000}));
        Some(browser_of)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" || method == "DELETE" { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()["value"].take()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let looks = method == "GET" || path.ends_with("/element") || path == "/execute/sync";
        self.again(looks, method, || format!("/session/{}{path}", self.session), body)
    }

    /// Sends what may meet a page that is about to be another one. What only looks is sent again
    /// after each error; a click or a key after those that say that it had no effect.
    fn again(&self, looks: bool, method: &str, path: impl Fn() -> String, body: &Value) -> Value {
        let begin = Instant::now();
        loop {
            let path = path();
            let value = self.send(method, &path, body);
            let Some(error) = value.get("error").and_then(Value::as_str) else { return value };
            // The second: if the driver has looked at the element already.
            let had_none =
                error == "stale element reference" || value.to_string().contains("does not belong to the document");
            assert!((looks || had_none) && begin.elapsed() < LONG, "{path} {body}: {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({"url": url}));
    }

    pub(crate) fn url(&self) -> String {
        self.command("GET", "/url", &Value::Null).as_str().unwrap().to_owned()
    }

    /// The value of a function body in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    fn find(&self, selector: &str) -> String {
        let found = self.command("POST", "/element", &json!({"using": "css selector", "value": selector}));
        format!("/session/{}/element/{}", self.session, found[ELEMENT].as_str().unwrap())
    }

    /// A command on an element, which the page may replace between the search and the command.
    fn on(&self, selector: &str, method: &str, command: &str, body: &Value) -> Value {
        self.again(method == "GET", method, || self.find(selector) + command, body)
    }

    pub(crate) fn click(&self, selector: &str) {
        self.on(selector, "POST", "/click", &json!({}));
    }

    /// Clicks on what leads to another page, and waits until that page is there: the click alone
    /// may be answered earlier, and what is then looked for would be found on the page before.
    pub(crate) fn follow(&self, selector: &str) {
        let before = self.find("html") + "/name";
        self.click(selector);
        self.until(selector, || self.send("GET", &before, &Value::Null).get("error").is_some());
        self.until("the page is whole", || self.run("return document.readyState") == "complete");
    }

    pub(crate) fn keys(&self, selector: &str, keys: &str) {
        self.on(selector, "POST", "/value", &json!({"text": keys}));
    }

    /// The text that a reader sees.
    pub(crate) fn text(&self, selector: &str) -> String {
        self.on(selector, "GET", "/text", &Value::Null).as_str().unwrap().to_owned()
    }

    /// A command of the browser's own protocol.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// What the browser has complained of since the last call.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", &json!({"type": "browser"}));
        log.as_array().unwrap().iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Writes a picture of the page, if the variable `TIMERQUEUE_SCREENSHOTS` names a folder.
    pub(crate) fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("TIMERQUEUE_SCREENSHOTS") else { return };
        let metrics = self.devtools("Page.getLayoutMetrics", &json!({}));
        let size = &metrics["cssContentSize"];
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let taken = self.devtools("Page.captureScreenshot", &json!({"captureBeyondViewport": true, "clip": clip}));
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), decoded(taken["data"].as_str().unwrap()))
            .unwrap();
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !so() {
            assert!(begin.elapsed() < LONG, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            self.send("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Base64.
fn decoded(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for c in text.bytes().filter(|&c| c != b'=') {
        bits = bits << 6 | u32::from(digit(c));
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}
