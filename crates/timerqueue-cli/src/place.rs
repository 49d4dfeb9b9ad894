//! Where the jobs are: in a file, or on a server of PostgreSQL.
//!
//! Ground rules. A place is told by its text alone. The text of a place may have a password: it is
//! never shown, and [`Place`] has no `Debug`. A password comes from the environment or from a file,
//! never from the command line, which other users of the machine can read.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

#[cfg(feature = "postgres")]
use timerqueue_scheduler::store::{PostgresAddress, PostgresOptions};

use crate::args::Cli;
#[cfg(feature = "postgres")]
use crate::exit::note;
use crate::exit::{DAMAGED, Fail, PLACE};
use crate::text;

const STORE: &str = "TIMERQUEUE_STORE";
#[cfg(feature = "postgres")]
pub(crate) const SCHEMA: &str = "TIMERQUEUE_SCHEMA";

/// A schema of a server.
#[cfg(feature = "postgres")]
pub(crate) struct Server {
    /// The address as it was given.
    given: String,
    /// With its password, wherever that came from.
    pub(crate) address: PostgresAddress,
    schema: Option<String>,
}

#[cfg(feature = "postgres")]
impl Server {
    /// `is_argument`: the address stands on the command line.
    fn new(text: &str, schema: Option<String>, is_argument: bool) -> Result<Self, Fail> {
        let mut address: PostgresAddress = text.parse().map_err(|error| Fail::usage(format!("{error}")))?;
        if is_argument && address.has_password() {
            return Err(Fail::usage(
                "a password on the command line can be read by other users: give the whole address in TIMERQUEUE_STORE, \
                 or the password in PGPASSWORD or in a password file (PGPASSFILE, ~/.pgpass)",
            ));
        }
        if let Err(error) = address.password_from_environment() {
            note(&format!("timerqueue: {error}"));
        }
        Ok(Self { given: text.to_owned(), address, schema })
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        self.schema.as_ref().map_or_else(PostgresOptions::new, |schema| PostgresOptions::new().schema(schema))
    }
}

#[cfg(feature = "postgres")]
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.schema.as_ref().map_or(Ok(()), |schema| write!(f, ", schema {schema}"))
    }
}

pub(crate) enum Place {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Server(Box<Server>),
}

/// Whether a text is an address of a server: a URL, or keywords and values. A file with such a name
/// is written as `./host=x`.
fn is_address(text: &str) -> bool {
    let is_url = |scheme: &str| text.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_url("postgres://")
        || is_url("postgresql://")
        || text.trim_start().split_once('=').is_some_and(|(word, _)| is_word(word.trim_end()))
}

impl Place {
    /// The place that the command line or else the environment names.
    pub(crate) fn of(cli: &Cli) -> Result<Self, Fail> {
        let is_argument = cli.store.is_some();
        let named = cli.store.clone().or_else(|| std::env::var_os(STORE).filter(|store| !store.is_empty()));
        let named = named
            .ok_or_else(|| Fail::usage(format!("which file, or which server? Give it with --store, or in {STORE}")))?;
        match named.to_str() {
            Some(address) if is_address(address) => Self::server(address, cli, is_argument),
            _ if cli.schema.is_some() => Err(Fail::usage("--schema is for servers, and this is a file")),
            _ => Ok(Self::File(named.into())),
        }
    }

    #[cfg(feature = "postgres")]
    fn server(address: &str, cli: &Cli, is_argument: bool) -> Result<Self, Fail> {
        let schema = cli.schema.clone().or_else(|| std::env::var(SCHEMA).ok().filter(|name| !name.is_empty()));
        Server::new(address, schema, is_argument).map(|server| Self::Server(Box::new(server)))
    }

    #[cfg(not(feature = "postgres"))]
    fn server(_: &str, _: &Cli, _: bool) -> Result<Self, Fail> {
        Err(Fail::usage("this program was built without PostgreSQL: the feature `postgres` was off"))
    }

    /// What a command needs in its environment to use the same place.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        match self {
            Self::File(file) => {
                vec![(STORE, std::path::absolute(file).unwrap_or_else(|_| file.clone()).into_os_string())]
            }
            #[cfg(feature = "postgres")]
            Self::Server(server) => {
                let schema = server.schema.iter().map(|schema| (SCHEMA, schema.into()));
                std::iter::once((STORE, OsString::from(&server.given))).chain(schema).collect()
            }
        }
    }

    /// For the title of a page.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::File(file) => text::tame(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy()),
            #[cfg(feature = "postgres")]
            Self::Server(server) => text::tame(&server.to_string()),
        }
    }

    /// The failure, with the place.
    pub(crate) fn named(&self, fail: Fail) -> Fail {
        match fail.code() {
            PLACE | DAMAGED => fail.with(|text| format!("{self}: {text}")),
            _ => fail,
        }
    }
}

/// For people, without user and password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.write_str(&text::tame(&file.to_string_lossy())),
            #[cfg(feature = "postgres")]
            Self::Server(server) => f.write_str(&text::tame(&server.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::USAGE;

    #[test]
    fn addresses_are_told_from_files() {
        for address in ["postgres://h/d", "PostgreSQL://", "host=h dbname=d", " dbname = x", "service=x"] {
            assert!(is_address(address), "{address}");
        }
        for file in ["jobs.db", "./host=x", "/var/lib/a=b", "postgres:", "a b=c", "=", "postgres"] {
            assert!(!is_address(file), "{file}");
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_password_on_the_command_line_is_refused() {
        for address in ["postgres://ann:secret@h/d", "host=h password=secret", "postgres://h/d?password=secret"] {
            let refused = Server::new(address, None, true).map(|server| server.to_string()).unwrap_err();
            let said = format!("{refused:?}");
            assert!(refused.code() == USAGE && said.contains("PGPASSWORD") && !said.contains("secret"));
        }
        let server = Server::new("postgres://ann@h/d", Some("jobs".to_owned()), true).map_err(|_| ()).unwrap();
        assert_eq!(server.to_string(), "d on h, schema jobs");
    }
}
