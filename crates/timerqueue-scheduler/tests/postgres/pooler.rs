//! A pooler in transaction mode before a server, for a test program. It ends with its value, or
//! with the program, however that ends.

use std::process::{Child, Stdio};

use crate::server::{Server, free_port, until};

pub(crate) struct Pooler {
    guard: Child,
    port: u16,
}

/// Ends the pooler once its input ends, which the kernel closes with the test program.
const GUARD: &str = r#""$@" >/dev/null 2>&1 & cat >/dev/null; kill -9 $!; wait"#;

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

impl Pooler {
    /// With one connection of the server for all, so that each transaction meets what the others
    /// have left. `None` where PgBouncer is missing.
    pub(crate) fn new(server: &Server) -> Option<Self> {
        Self::with(server, 1)
    }

    /// With this number of connections of the server.
    pub(crate) fn with(server: &Server, connections: usize) -> Option<Self> {
        let programs = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
        let Some(program) = programs.into_iter().find(|path| std::fs::exists(path).unwrap()) else {
            eprintln!("NOT RUN: PgBouncer is not installed (Debian: apt-get install pgbouncer). Nothing was tested.");
            return None;
        };
        let (port, folder) = (free_port(), server.folder().display());
        let text = format!(
            "[databases]\npostgres = host={folder} dbname=postgres user=test\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
             max_client_conn = 1000\n"
        );
        let settings = server.folder().join(format!("pgbouncer{port}.ini"));
        std::fs::write(&settings, text).unwrap();
        let mut guard = server.command("sh");
        guard.args(["-c", GUARD, "sh", program]).arg(settings).stdin(Stdio::piped());
        let pooler = Self { guard: guard.spawn().unwrap(), port };
        until("the pooler listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(pooler)
    }

    pub(crate) fn address(&self) -> String {
        format!("host=127.0.0.1 port={} user=test dbname=postgres", self.port)
    }
}
