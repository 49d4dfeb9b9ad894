//! A server of PostgreSQL in a temporary folder, for a test program. It ends with the program,
//! however that ends.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Server {
    folder: PathBuf,
    programs: PathBuf,
    /// The user of the server, if the tests run as root, which the server refuses.
    user: Option<&'static str>,
    /// Further settings of the server.
    settings: String,
    _guard: (Child, Option<ChildStdin>),
}

/// The number of the user `nobody` on Debian, and of the group `nogroup`.
const NOBODY: u32 = 65_534;

/// Ends the server and removes the folder once its input ends, which the kernel closes with the
/// test program.
const GUARD: &str = r#"cat >/dev/null; "$1" -D "$2/data" -m immediate stop >/dev/null 2>&1; rm -rf "$2""#;

impl Server {
    /// The server of the test program. `None` where PostgreSQL is not installed.
    pub(crate) fn shared() -> Option<&'static Self> {
        static SERVER: OnceLock<Option<Server>> = OnceLock::new();
        SERVER.get_or_init(Self::new).as_ref()
    }

    pub(crate) fn new() -> Option<Self> {
        Self::with("", |_| {})
    }

    /// A server with further settings. `prepare` may put files into the folder, which are the
    /// server's then.
    pub(crate) fn with(settings: &str, prepare: impl FnOnce(&Path)) -> Option<Self> {
        let server = Self::empty(settings)?;
        prepare(&server.folder);
        server.own();
        let data = server.data();
        server.run("initdb", &["-D", &data, "-U", "test", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]);
        server.start();
        Some(server)
    }

    /// A standby of this server, which is ready when it has begun to follow.
    #[allow(dead_code, reason = "not all test programs have a standby")]
    pub(crate) fn standby(&self, settings: &str) -> Self {
        let standby = Self::empty("").unwrap();
        let data = standby.data();
        let primary = self.folder.display().to_string();
        standby.run("pg_basebackup", &["-D", &data, "-h", &primary, "-U", "test", "-c", "fast", "-R"]);
        standby.configure(settings);
        standby.start();
        standby
    }

    /// Adds a line to the settings, read at a start or after `pg_reload_conf()`.
    #[allow(dead_code, reason = "not all test programs set up a server")]
    pub(crate) fn configure(&self, line: &str) {
        use std::io::Write;
        let file = std::path::Path::new(&self.data()).join("postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(file).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// A folder with a guard, and no data.
    fn empty(settings: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("NOT RUN: PostgreSQL is not installed (Debian: apt-get install postgresql). Nothing was tested.");
            return None;
        };
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("/tmp/timerqueue-pg-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
        let user = is_root.then_some("nobody");
        if is_root {
            std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut guard = command(user, Path::new("sh"))
            .process_group(0) // a signal to the group of the tests is none for the guard
            .args(["-c", GUARD, "sh"])
            .args([&programs.join("pg_ctl"), &folder])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let input = guard.stdin.take();
        Some(Self { folder, programs, user, settings: settings.to_owned(), _guard: (guard, input) })
    }

    /// Gives the files of the folder to the server, which reads no key of another user's.
    pub(crate) fn own(&self) {
        for file in std::fs::read_dir(&self.folder).unwrap().flatten().filter(|_| self.user.is_some()) {
            std::os::unix::fs::chown(file.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    #[allow(dead_code, reason = "not all test programs use the folder")]
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// As the user of the server.
    #[allow(dead_code, reason = "not all test programs start others")]
    pub(crate) fn command(&self, program: &str) -> Command {
        command(self.user, Path::new(program))
    }

    fn data(&self) -> String {
        self.folder.join("data").display().to_string()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = command(self.user, &self.programs.join(program)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn start(&self) {
        let settings = format!(
            "-k {0} -c listen_addresses= -c fsync=off -c max_connections=300 -c shared_buffers=32MB -c deadlock_timeout=200ms {1}",
            self.folder.display(),
            self.settings
        );
        let (data, log) = (self.data(), self.folder.join("log").display().to_string());
        self.run("pg_ctl", &["-D", &data, "-l", &log, "-o", &settings, "-w", "start"]);
    }

    /// The standby takes writes from now on.
    #[allow(dead_code, reason = "not all test programs have a standby")]
    pub(crate) fn promote(&self) {
        self.run("pg_ctl", &["-D", &self.data(), "-w", "promote"]);
    }

    /// `fast` or `immediate`, which is a crash.
    #[allow(dead_code, reason = "not all test programs stop their server")]
    pub(crate) fn stop(&self, mode: &str) {
        let data = self.data();
        self.run("pg_ctl", &["-D", &data, "-m", mode, "-w", "stop"]);
    }

    pub(crate) fn address(&self) -> String {
        format!("host={} user=test dbname=postgres", self.folder.display())
    }

    /// What a program of PostgreSQL prints that connects to the database `postgres`.
    #[allow(dead_code, reason = "not all test programs need other programs")]
    pub(crate) fn program(&self, name: &str, arguments: &[&str]) -> String {
        let mut program = command(None, &self.programs.join(name));
        program.args(["-U", "test", "-d", "postgres", "-h"]).arg(&self.folder).args(arguments);
        let output = program.stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What `psql` prints.
    #[allow(dead_code, reason = "not all test programs ask in SQL")]
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.psql_on(5432, sql)
    }

    /// What `psql` prints, if the socket of the server has another number.
    #[allow(dead_code, reason = "not all test programs ask in SQL")]
    pub(crate) fn psql_on(&self, port: u16, sql: &str) -> String {
        let mut psql = command(None, &self.programs.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "test", "-d", "postgres", "-c", sql]);
        let output =
            psql.arg("-h").arg(&self.folder).args(["-p", &port.to_string()]).stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
    found.retain(|path| path.join("initdb").exists());
    found.sort();
    found.pop()
}

fn command(user: Option<&str>, program: &Path) -> Command {
    let mut command = match user {
        None => Command::new(program),
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", "nogroup", "--clear-groups"]).arg(program);
            command
        }
    };
    // No output of the server's: a pipe would stay open as long as the server runs.
    command.current_dir("/tmp").stdout(Stdio::null());
    command
}

/// A port of this machine that is free.
#[allow(dead_code, reason = "not all test programs use ports")]
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A name that no other test has.
#[allow(dead_code, reason = "not all test programs need names")]
pub(crate) fn new_schema() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Waits until `true`, for at most two minutes: machines are busy.
#[allow(dead_code, reason = "not all test programs wait")]
#[track_caller]
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within 120 seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
