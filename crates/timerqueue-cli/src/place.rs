//! Where the jobs are: in a file, or on a server of PostgreSQL.
//!
//! Ground rules. A place is told by its text alone. The text of a place may have a password: it is
//! never shown, and [`Place`] has no `Debug`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::args::Cli;
use crate::exit::Fail;
#[cfg(feature = "postgres")]
use crate::server::Server;
use crate::text;

const STORE: &str = "TIMERQUEUE_STORE";
#[cfg(feature = "postgres")]
pub(crate) const SCHEMA: &str = "TIMERQUEUE_SCHEMA";

pub(crate) enum Place {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Server(Server),
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
            .ok_or_else(|| Fail::Usage(format!("which file, or which server? Give it with --store, or in {STORE}")))?;
        match named.to_str() {
            Some(address) if is_address(address) => Self::server(address, cli, is_argument),
            _ if cli.schema.is_some() => Err(Fail::Usage("--schema is for servers, and this is a file".to_owned())),
            _ => Ok(Self::File(named.into())),
        }
    }

    #[cfg(feature = "postgres")]
    fn server(address: &str, cli: &Cli, is_argument: bool) -> Result<Self, Fail> {
        let schema = cli.schema.clone().or_else(|| std::env::var(SCHEMA).ok().filter(|name| !name.is_empty()));
        Server::new(address, schema, is_argument).map(Self::Server)
    }

    #[cfg(not(feature = "postgres"))]
    fn server(_: &str, _: &Cli, _: bool) -> Result<Self, Fail> {
        Err(Fail::Usage("this program was built without PostgreSQL: the feature `postgres` was off".to_owned()))
    }

    /// What a command needs in its environment to use the same place.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        match self {
            Self::File(file) => {
                vec![(STORE, std::path::absolute(file).unwrap_or_else(|_| file.clone()).into_os_string())]
            }
            #[cfg(feature = "postgres")]
            Self::Server(server) => vec![(STORE, server.given().into()), (SCHEMA, server.schema().into())],
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
        let with = |text: String| match self {
            Self::File(_) => format!("{self}: {text}"),
            #[cfg(feature = "postgres")]
            Self::Server(server) => format!("{self}: {}", server.without_secrets(&text)),
        };
        match fail {
            Fail::Place(text) => Fail::Place(with(text)),
            Fail::Damaged(text) => Fail::Damaged(with(text)),
            other => other,
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

    #[test]
    fn addresses_are_told_from_files() {
        for address in ["postgres://h/d", "PostgreSQL://", "host=h dbname=d", " dbname = x", "service=x"] {
            assert!(is_address(address), "{address}");
        }
        for file in ["jobs.db", "./host=x", "/var/lib/a=b", "postgres:", "a b=c", "=", "postgres"] {
            assert!(!is_address(file), "{file}");
        }
    }
}
