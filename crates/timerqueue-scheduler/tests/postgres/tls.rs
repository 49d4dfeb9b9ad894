//! TLS: which servers a store talks to.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::Error;
use timerqueue_scheduler::store::{Applied, Fault, Placed, PostgresOptions};

use crate::server::{Server, free_port, new_schema, until};
use crate::{Log, logging, options, put_raw};

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("`openssl` is installed (Debian: apt-get install openssl)");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and a certificate by it for `db.test` in files `NAME.crt` and `NAME.key`.
fn certificates(folder: &Path, name: &str, days: i32) {
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(folder.join("extensions"), "subjectAltName=DNS:db.test\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl(folder, &format!("req -x509 {curve} -keyout {name}-ca.key -out {name}-ca.crt -days 9 -subj /CN={name}-ca"));
    openssl(folder, &format!("req {curve} -keyout {name}.key -out {name}.csr -subj /CN=db.test"));
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {name}-ca.crt -CAkey {name}-ca.key -CAcreateserial -out {name}.crt \
             -days {days} -extfile extensions"
        ),
    );
}

struct Secured {
    server: Server,
    port: u16,
}

impl Secured {
    fn new() -> Option<Self> {
        let port = free_port();
        let settings = format!("-c listen_addresses=127.0.0.1 -p {port}");
        let server = Server::with(&settings, |folder| {
            certificates(folder, "right", 9);
            certificates(folder, "rogue", 9);
            certificates(folder, "old", -1);
        })?;
        let secured = Self { server, port };
        secured.present("right");
        Some(secured)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.server.folder().join(name)
    }

    /// The server shows this certificate to new connections; the others end.
    fn present(&self, name: &str) {
        let file = |end: &str| format!("'{}'", self.file(&format!("{name}.{end}")).display());
        self.server.own();
        for set in
            [format!("ssl_cert_file = {}", file("crt")), format!("ssl_key_file = {}", file("key")), "ssl = on".into()]
        {
            self.psql(&format!("ALTER SYSTEM SET {set}"));
        }
        self.server.stop("fast");
        self.server.start();
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql_on(self.port, sql)
    }

    /// To the server by this name.
    fn address(&self, name: &str, rest: &str) -> String {
        format!("host={name} hostaddr=127.0.0.1 port={} user=test dbname=postgres {rest}", self.port)
    }

    fn options(&self, authority: &str) -> PostgresOptions {
        let file = self.file(&format!("{authority}-ca.crt"));
        options(&new_schema()).authorities(file).patience(Duration::from_secs(5))
    }

    /// Why the store does not connect.
    fn refused(&self, options: &PostgresOptions, address: &str) -> Fault {
        match options.connect(Runtime::global(), address) {
            Ok(_) => panic!("connected by {address}"),
            Err(Error::Store { fault, reason }) => {
                println!("{fault:?}: {reason}");
                fault
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn l13_a_server_with_the_right_certificate_is_trusted_and_no_other() {
    let Some(secured) = Secured::new() else { return };
    let (right, rogue) = (secured.options("right"), secured.options("rogue"));
    for mode in ["require", "verify-full", "verify-ca"] {
        let log = Log::default();
        let address = secured.address("db.test", &format!("sslmode={mode} application_name={mode}"));
        let node = logging(right.clone().schema(&new_schema()).connect(Runtime::global(), &address).unwrap(), &log);
        let _ = node.put_to("log", &1).key("a").send().wait().unwrap();
        until("the job has run", || node.get("a").wait().unwrap().is_none());
        let of_mode = format!("FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{mode}'");
        assert_eq!(secured.psql(&format!("SELECT count(*), bool_and(ssl) {of_mode}")), "3|t");
        assert_eq!(secured.refused(&rogue, &address), Fault::UnknownAuthority);
    }
    for mode in ["require", "verify-full"] {
        let address = secured.address("other.test", &format!("sslmode={mode}"));
        assert_eq!(secured.refused(&right, &address), Fault::WrongName);
    }
    let any_name = secured.address("other.test", "sslmode=verify-ca");
    drop(right.connect(Runtime::global(), &any_name).unwrap());
    let missing = options(&new_schema()).authorities("/nonexistent.pem");
    assert_eq!(secured.refused(&missing, &any_name), Fault::CannotOpen);
    let by_address = format!("{} sslrootcert={}", any_name, secured.file("rogue-ca.crt").display());
    assert_eq!(secured.refused(&options(&new_schema()), &by_address), Fault::UnknownAuthority);
    // Modes that do not protect against a third party on the way: encrypted if the server offers
    // it, and not encrypted.
    for (mode, encrypted) in [("prefer", "t"), ("disable", "f")] {
        let address = secured.address("other.test", &format!("sslmode={mode} application_name={mode}"));
        let store = rogue.connect(Runtime::global(), &address).unwrap();
        let of_mode = format!("FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{mode}'");
        assert_eq!(secured.psql(&format!("SELECT bool_and(ssl) {of_mode}")), encrypted);
        drop(store);
    }
    secured.present("old");
    let old = secured.options("old");
    assert_eq!(secured.refused(&old, &secured.address("db.test", "sslmode=verify-full")), Fault::BadCertificate);
    secured.psql("ALTER SYSTEM SET ssl = off");
    secured.server.stop("fast");
    secured.server.start();
    assert_eq!(secured.refused(&right, &secured.address("db.test", "sslmode=require")), Fault::NoTls);
}

#[test]
fn l13_a_store_that_runs_refuses_another_certificate_until_the_right_one_is_back() {
    let Some(secured) = Secured::new() else { return };
    let address = secured.address("db.test", "sslmode=verify-full");
    let store = secured.options("right").connect(Runtime::global(), &address).unwrap();
    assert!(matches!(put_raw(&store, "a"), Applied::Placed(Placed::Added(_))));
    secured.present("rogue");
    let failed = crate::try_put(&store, "b").unwrap_err();
    assert!(matches!(failed, Error::Store { fault: Fault::UnknownAuthority, .. }), "{failed:?}");
    secured.present("right");
    assert!(matches!(put_raw(&store, "b"), Applied::Placed(Placed::Added(_))));
}
