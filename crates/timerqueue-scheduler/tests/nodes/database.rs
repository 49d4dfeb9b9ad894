//! A server of PostgreSQL on a host of a network.
//!
//! Ground rules. The files of a new server are made once and copied. The test itself asks the
//! server by its local socket, which no network reaches.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::guard::Guard;
use super::network::{Network, address};

/// The number of the user `nobody` on Debian, and of the group `nogroup`. The server refuses to run
/// as root.
const NOBODY: u32 = 65_534;
const AS_NOBODY: [&str; 6] = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"];

/// The files of a new server, and the programs.
struct Template {
    folder: PathBuf,
    programs: PathBuf,
}

pub(crate) struct Database<'a> {
    network: &'a Network,
    host: &'static str,
    folder: PathBuf,
    _guard: Guard,
}

fn as_nobody(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(AS_NOBODY).arg(program).args(arguments).current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn new_folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(format!("/tmp/timerqueue-nodes-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    folder
}

fn template() -> Option<&'static Template> {
    static TEMPLATE: OnceLock<Option<(Template, Guard)>> = OnceLock::new();
    let made = TEMPLATE.get_or_init(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let mut found: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin")).collect();
        found.retain(|path| path.join("initdb").exists());
        found.sort();
        let programs = found.pop()?;
        let folder = new_folder(&format!("{}-new", std::process::id()));
        let guard = Guard::new(r#"rm -rf "$1""#, &[folder.to_str().unwrap()]);
        let data = folder.join("data").display().to_string();
        let mut initdb = as_nobody(&programs.join("initdb"), &["-D", &data, "-U", "test", "-A", "trust", "-N"]);
        assert!(initdb.args(["-E", "UTF8", "--no-locale"]).status().unwrap().success());
        let hosts = "host all all 10.77.0.0/24 trust\nhost replication all 10.77.0.0/24 trust\n";
        let rules = folder.join("data/pg_hba.conf");
        let text = std::fs::read_to_string(&rules).unwrap() + hosts;
        std::fs::write(rules, text).unwrap();
        Some((Template { folder, programs }, guard))
    });
    made.as_ref().map(|(template, _)| template)
}

/// The programs of the server. `None`, with a line that says so: PostgreSQL is not installed.
fn programs() -> Option<&'static Template> {
    let template = template();
    if template.is_none() {
        eprintln!("NOT RUN: PostgreSQL is not installed (Debian: apt-get install postgresql). Nothing was tested.");
    }
    template
}

impl<'a> Database<'a> {
    fn new(network: &'a Network, host: &'static str) -> Self {
        let folder = new_folder(&format!("{}-{host}", network.name()));
        let template = template().unwrap();
        let (stop, path) = (template.programs.join("pg_ctl"), folder.display().to_string());
        let script = r#"setpriv --reuid nobody --regid nogroup --clear-groups -- "$1" -D "$2/data" -m immediate stop; rm -rf "$2""#;
        Self { network, host, _guard: Guard::new(script, &[stop.to_str().unwrap(), &path]), folder }
    }

    /// Starts a server with empty tables.
    pub(crate) fn start(network: &'a Network, host: &'static str) -> Option<Self> {
        let template = programs()?;
        let database = Self::new(network, host);
        let (from, to) = (template.folder.join("data"), database.folder.join("data"));
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
        database.up();
        Some(database)
    }

    /// Starts a standby of another server, which has commits wait for it.
    pub(crate) fn standby_of(primary: &Self, host: &'static str) -> Self {
        let (network, programs) = (primary.network, &template().unwrap().programs);
        let standby = Self::new(network, host);
        let (data, from) = (standby.data(), address(primary.host));
        let mut copy = network.command(host, "setpriv");
        copy.args(AS_NOBODY).arg(programs.join("pg_basebackup")).args(["-h", from, "-U", "test", "-D", &data]);
        assert!(copy.args(["-R", "-X", "stream", "-c", "fast"]).stdout(Stdio::null()).status().unwrap().success());
        standby.up();
        primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.psql("SELECT pg_reload_conf()");
        standby
    }

    fn data(&self) -> String {
        self.folder.join("data").display().to_string()
    }

    fn control(&self, arguments: &[&str]) {
        let program = template().unwrap().programs.join("pg_ctl");
        let mut control = self.network.command(self.host, "setpriv");
        control.args(AS_NOBODY).arg(program).args(["-D", &self.data(), "-w", "-t", "60"]).args(arguments);
        // No output of the server's: a pipe would stay open as long as the server runs.
        let ended = control.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(ended.success(), "pg_ctl {arguments:?} on {}", self.host);
    }

    pub(crate) fn up(&self) {
        let settings = format!(
            "-k {} -c listen_addresses={} -c fsync=off -c max_connections=100 -c shared_buffers=32MB",
            self.folder.display(),
            address(self.host)
        );
        let log = self.folder.join("log").display().to_string();
        self.control(&["-l", &log, "-o", &settings, "start"]);
    }

    /// `fast`, or `immediate`, which is a crash.
    pub(crate) fn down(&self, mode: &str) {
        self.control(&["-m", mode, "stop"]);
    }

    /// A standby becomes the server that takes writes.
    pub(crate) fn promote(&self) {
        self.control(&["promote"]);
    }

    /// A program that asks the server by its local socket.
    pub(crate) fn ask(&self, sql: &str) -> Command {
        let mut psql = Command::new(template().unwrap().programs.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "test", "-d", "postgres", "-c", sql, "-h"]);
        psql.arg(&self.folder).current_dir("/");
        psql
    }

    /// What `psql` prints.
    #[track_caller]
    pub(crate) fn psql(&self, sql: &str) -> String {
        let output = self.ask(sql).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}
