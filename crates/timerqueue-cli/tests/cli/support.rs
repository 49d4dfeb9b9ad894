//! Folders that go with their test, and the program in them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A folder that goes with its test, with `jobs.db`.
pub(crate) struct Folder {
    path: PathBuf,
    /// The address of the server and the schema, if the jobs are not in `jobs.db`.
    server: Option<(String, String)>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("timerqueue-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self { path, server: None }
    }

    /// A folder whose jobs are on the server of the tests, in a schema of their own. `None` where
    /// PostgreSQL is not installed.
    #[cfg(feature = "postgres")]
    pub(crate) fn on_server() -> Option<Self> {
        let address = crate::server::Server::shared()?.address();
        let mut folder = Self::new();
        folder.server = Some((address, crate::server::new_schema()));
        Some(folder)
    }

    pub(crate) fn is_server(&self) -> bool {
        self.server.is_some()
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn schema(&self) -> &str {
        self.server.as_ref().map_or("", |(_, schema)| schema)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// The program on `jobs.db` of this folder, which is its working folder.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_timerqueue"));
        command.args(arguments).current_dir(&self.path).env("TIMERQUEUE_STORE", "jobs.db").env("TZ", "UTC");
        if let Some((address, schema)) = &self.server {
            command.env("TIMERQUEUE_STORE", address).env("TIMERQUEUE_SCHEMA", schema);
        }
        command.env_remove("PGPASSWORD").env("PGPASSFILE", "/nonexistent").stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }

    /// Runs the program to its end, which is a good one. What it said.
    #[track_caller]
    pub(crate) fn ok<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
        ended.out
    }

    /// The exit code, and that it is explained on the standard error.
    #[track_caller]
    pub(crate) fn fails<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> (i32, String) {
        let ended = self.run(arguments);
        assert!(ended.code != 0 && !ended.err.is_empty(), "{ended:?}");
        assert!(!ended.err.contains("panicked"), "{ended:?}");
        (ended.code, ended.err)
    }

    /// The lines of JSON.
    #[track_caller]
    pub(crate) fn json<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Vec<Value> {
        let mut all = vec![OsStr::new("--json").to_owned()];
        all.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        let said = self.ok(all);
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The job with this key, or null.
    #[track_caller]
    pub(crate) fn job(&self, key: &str) -> Value {
        let ended = self.run(["--json", "show", key]);
        if ended.code == 1 { Value::Null } else { serde_json::from_str(&ended.out).unwrap() }
    }

    /// A worker with these options before `--exec`, and this shell script as its command.
    pub(crate) fn worker(&self, options: &[&str], script: &str) -> Worker {
        // On a server, the jobs of a killed worker are free when its lease has ended.
        let lease: &[&str] = if self.is_server() { &["--lease", "1s"] } else { &[] };
        let mut command = self.command([&["worker"], options, lease, &["--exec", "sh", "-c", script]].concat());
        Worker(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The lines of a file, once it has this number of them.
    #[track_caller]
    pub(crate) fn lines(&self, name: &str, number: usize) -> Vec<String> {
        until(|| self.read(name).lines().count() >= number);
        self.read(name).lines().map(str::to_owned).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// A worker that runs. It is killed at the end of its test.
pub(crate) struct Worker(pub(crate) Child);

impl Worker {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops it by SIGTERM, and waits for its end.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Sends SIGTERM twice. Two signals are one for a process that has not run in between, so a
    /// further one follows late: a third ends the worker before its runs are put back.
    pub(crate) fn stop_by_two(mut self) -> Ended {
        self.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(50));
        let (first, mut more) = (Instant::now(), 0);
        until(|| {
            if first.elapsed() >= Duration::from_secs(3) * more {
                self.signal(Signal::TERM);
                more += 1;
            }
            self.0.try_wait().unwrap().is_some()
        });
        self.ended()
    }

    pub(crate) fn ended(mut self) -> Ended {
        let mut text = (String::new(), String::new());
        use std::io::Read;
        let _ = self.0.stdout.take().map(|mut out| out.read_to_string(&mut text.0));
        let _ = self.0.stderr.take().map(|mut err| err.read_to_string(&mut text.1));
        Ended { code: self.0.wait().unwrap().code().unwrap_or(-1), out: text.0, err: text.1 }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until this is so.
#[track_caller]
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < LONG, "too long");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Whether a process lives. A zombie does not.
pub(crate) fn lives(process: &str) -> bool {
    let ps = Command::new("ps").args(["-o", "stat=", "-p", process.trim()]).output().unwrap();
    let state = String::from_utf8_lossy(&ps.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}
