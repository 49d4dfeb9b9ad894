//! The address of a server: a URL, or keywords and values, read once.
//!
//! Ground rules. An error says nothing of a password, and of a mistyped address any part may be
//! one. So no error has a part of an address, and no such part gets into the name of a host or a
//! user, which other errors contain. Each server of an address with several gets a configuration of
//! its own, so that one that does not answer takes only its share of the time.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::fs::Metadata;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::error::Failure;
use crate::Error;
use crate::store::Fault;

/// The keywords of an address.
const KEYWORDS: &[&str] = &[
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "options",
    "passfile",
    "password",
    "port",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// What `sslmode` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing: plain inside of this machine, and as `verify-full` over a network.
    Unsaid,
    Disable,
    /// TLS where the server offers it, and no check of its certificate.
    Prefer,
    /// TLS, and a certificate of a known authority, with any name.
    Authority,
    /// TLS, and a certificate of a known authority with the name of the address.
    Full,
}

impl Mode {
    fn of(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "verify-ca" => Self::Authority,
            "require" | "verify-full" => Self::Full,
            _ => return None,
        })
    }
}

/// Why a text is no address of a server. No error contains a part of the address, since a mistyped
/// password may stand anywhere in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is neither a URL nor a list of keywords and values.
    #[error(
        "the address cannot be read: it is `postgres://user:password@host/database` with special characters as `%` and \
         two digits, or a list of `keyword=value` with values in quotes if they have spaces"
    )]
    Unreadable,
    /// A URL has a `@` that does not end the password, or a user with one of `/?&=`: these are
    /// written as `%` and two digits.
    #[error("the address has a `@` too many: in a user, a password or a name write `%40`")]
    Unescaped,
    /// A keyword that is none.
    #[error("value {position} of the address has an unknown keyword")]
    UnknownKeyword {
        /// The number of the keyword, from 1. In a URL, user, password, host, port and database
        /// count where they are given.
        position: usize,
    },
    /// A value that the keyword does not take.
    #[error("the address has an invalid value for `{keyword}`{}", values_of(.keyword))]
    InvalidValue {
        /// The keyword.
        keyword: &'static str,
    },
    /// There is no host.
    #[error("the address names no host")]
    NoHost,
    /// There are other numbers of hosts than of host addresses or ports.
    #[error("the address has other numbers of hosts than of host addresses or ports")]
    UnequalHosts,
    /// Other users may read the password file, so it was left alone.
    #[error("{} is left alone: other users may read it (chmod 600)", .file.display())]
    PasswordFile {
        /// The file.
        file: PathBuf,
    },
}

/// The values of a keyword that has few.
fn values_of(keyword: &str) -> &'static str {
    if keyword == "sslmode" { ": it is disable, prefer, require, verify-ca or verify-full" } else { "" }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::new(Fault::CannotOpen, error.to_string())
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Failure::from(error).error()
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The address of a PostgreSQL server, or of several that are one after another the primary: as
/// `psql` takes it, read once.
///
/// | | |
/// |---|---|
/// | a URL | `postgres://user:password@host:5432,other:5433/database?connect_timeout=3` |
/// | keywords and values | `host=db.example user=app dbname=app options='-c work_mem=64MB'` |
///
/// In a URL special characters are written as `%` and two hexadecimal digits; of a password only
/// `@` and `%` must be, and `?` if a `=` follows. In a list, values with spaces stand in `'`, and a
/// `\` stands before a `'` or a `\`. An empty value means the default, and of a keyword that is
/// given twice the last one counts.
///
/// The keywords are those of libpq: `host`, `hostaddr`, `port` (each with commas for several
/// servers), `user`, `password`, `passfile`, `dbname`, `options`, `application_name`, `sslmode`,
/// `sslrootcert`, `sslnegotiation`, `channel_binding`, `connect_timeout`, `tcp_user_timeout`,
/// `keepalives` and its three times, `load_balance_hosts`, `target_session_attrs`. The last two
/// change nothing: servers are tried in their order, and a store uses the one that takes writes.
/// Service files are not read, and of the environment nothing but what
/// [`password_from_environment`](Self::password_from_environment) names.
///
/// **Secrets.** `Display` and `Debug` show database, hosts and ports, and neither user nor
/// password. Without a database, `Display` shows the user, which is then the database.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::store::{AddressError, PostgresAddress};
///
/// let address: PostgresAddress = "postgres://ann:secret@db.example:5433/app".parse()?;
/// assert_eq!(address.to_string(), "app on db.example:5433");
/// assert!(address.has_password());
/// let wrong = "host=db.example port=secret".parse::<PostgresAddress>();
/// assert_eq!(wrong, Err(AddressError::InvalidValue { keyword: "port" }));
/// # Ok::<(), AddressError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresAddress {
    /// All but hosts and TLS.
    config: Config,
    /// In their order, at least one.
    servers: Vec<Server>,
    mode: Mode,
    /// `sslrootcert`.
    pub(super) roots: Option<PathBuf>,
    passfile: Option<PathBuf>,
}

/// What an address says, decoded.
type Words = Vec<(String, String)>;

impl FromStr for PostgresAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let words = match text.split_once("://") {
            Some((scheme, rest)) if ["postgres", "postgresql"].iter().any(|own| scheme.eq_ignore_ascii_case(own)) => {
                of_url(rest)?
            }
            _ => of_keywords(text)?,
        };
        let (mut mode, mut roots, mut passfile) = (Mode::Unsaid, None, None);
        let (mut config, mut hosts) = (String::new(), String::new());
        for (at, (word, value)) in words.iter().enumerate() {
            let unknown = AddressError::UnknownKeyword { position: at + 1 };
            let keyword = KEYWORDS.iter().find(|keyword| *keyword == word).copied().ok_or(unknown)?;
            let is_last = words[at + 1..].iter().all(|(later, _)| later != word);
            if value.is_empty() || !is_last {
                continue;
            }
            let invalid = || AddressError::InvalidValue { keyword };
            let part = format!("{keyword}='{}' ", value.replace('\\', "\\\\").replace('\'', "\\'"));
            match keyword {
                "sslmode" => mode = Mode::of(value).ok_or_else(invalid)?,
                "sslrootcert" => roots = (value != "system").then(|| value.into()),
                "passfile" => passfile = Some(value.into()),
                _ => {
                    let read: Config = part.parse().map_err(|_| invalid())?;
                    if read.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if !is_name(name))) {
                        return Err(invalid());
                    }
                    let is_place = ["host", "hostaddr", "port"].contains(&keyword);
                    if is_place { &mut hosts } else { &mut config }.push_str(&part);
                }
            }
        }
        let [config, hosts] = [config, hosts].map(|text| text.parse::<Config>().map_err(|_| AddressError::Unreadable));
        Ok(Self { config: config?, servers: Server::all(&hosts?)?, mode, roots, passfile })
    }
}

impl TryFrom<&str> for PostgresAddress {
    type Error = AddressError;

    fn try_from(text: &str) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl TryFrom<&String> for PostgresAddress {
    type Error = AddressError;

    fn try_from(text: &String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<&PostgresAddress> for PostgresAddress {
    fn from(address: &PostgresAddress) -> Self {
        address.clone()
    }
}

impl PostgresAddress {
    /// Whether the address has a password, which was given or found.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Sets the password, such as one of a store of secrets.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.config.password(password);
        self
    }

    /// Looks for the password where libpq does, unless the address has one: in `PGPASSWORD`, or
    /// else in the password file that `passfile` of the address, or else `PGPASSFILE` names, or
    /// else in `~/.pgpass`. Of several hosts the first one counts. Without this call a store looks
    /// in the file of `passfile` alone.
    ///
    /// # Errors
    ///
    /// [`AddressError::PasswordFile`]: the address is of use as it is, without a password.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use timerqueue::Runtime;
    /// use timerqueue_scheduler::store::{PostgresAddress, PostgresStore};
    ///
    /// let mut address: PostgresAddress = "host=db.example user=app dbname=app".parse()?;
    /// address.password_from_environment()?;
    /// let store = PostgresStore::connect(Runtime::global(), &address)?;
    /// # drop(store);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn password_from_environment(&mut self) -> Result<(), AddressError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if self.has_password() {
            return Ok(());
        }
        if let Some(password) = variable("PGPASSWORD") {
            self.config.password(password.as_encoded_bytes());
            return Ok(());
        }
        let of_environment = || variable("PGPASSFILE").map(PathBuf::from);
        let of_home = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
        self.passfile = self.passfile.take().or_else(of_environment).or_else(of_home);
        self.read_passfile()
    }

    /// Reads the password file, once.
    fn read_passfile(&mut self) -> Result<(), AddressError> {
        let Some(file) = self.passfile.take().filter(|_| !self.has_password()) else { return Ok(()) };
        let Some(text) = readable(&file)? else { return Ok(()) };
        let Some(first) = self.servers.first() else { return Ok(()) };
        let host = if first.is_socket() { "localhost".to_owned() } else { first.shown() };
        let port = first.port.unwrap_or(DEFAULT_PORT).to_string();
        let user = self.config.get_user().unwrap_or_default();
        let wanted = [&host, &port, self.config.get_dbname().unwrap_or(user), user];
        let found = text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let fields = fields(line);
            let fits = |(field, wanted): (&String, &&str)| field == "*" || field == wanted;
            let is_it = fields.len() == 5 && fields.iter().zip(&wanted).all(fits);
            is_it.then(|| fields[4].clone())
        });
        if let Some(password) = found {
            self.config.password(password);
        }
        Ok(())
    }

    /// The servers, in their order. Reads the password file.
    pub(super) fn places(&mut self) -> Result<Vec<Place>, AddressError> {
        self.read_passfile()?;
        Ok(self.servers.iter().map(|server| self.place(server)).collect())
    }

    fn place(&self, server: &Server) -> Place {
        let port = server.port.unwrap_or(DEFAULT_PORT);
        let mut config = self.config.clone();
        config.port(port);
        match &server.host {
            Some(Host::Tcp(name)) => _ = config.host(name),
            #[cfg(unix)]
            Some(Host::Unix(path)) => _ = config.host_path(path),
            None => {}
        }
        if let Some(address) = server.address {
            config.hostaddr(address);
        }
        let mode = match self.mode {
            _ if server.is_socket() => Mode::Disable,
            Mode::Unsaid if server.is_this_machine() => Mode::Disable,
            Mode::Unsaid => Mode::Full,
            mode => mode,
        };
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("timerqueue");
        }
        // Only a server that takes writes is of use.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        Place { config, name: format!("{}:{port}", server.shown()), mode }
    }
}

const DEFAULT_PORT: u16 = 5432;

/// Database, hosts and ports.
impl fmt::Display for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("the database");
        write!(f, "{database} on ")?;
        for (at, server) in self.servers.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match (server.port, server.shown()) {
                (None, host) => write!(f, "{comma}{host}")?,
                (Some(port), host) if host.contains(':') => write!(f, "{comma}[{host}]:{port}")?,
                (Some(port), host) => write!(f, "{comma}{host}:{port}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresAddress").field(&self.to_string()).finish()
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-._:%".contains(c))
}

/// `%` and two digits is a byte.
fn decoded(text: &str) -> Result<String, AddressError> {
    let begins_with_digits =
        |part: &str| part.get(..2).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if !text.split('%').skip(1).all(begins_with_digits) {
        return Err(AddressError::Unreadable);
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| AddressError::Unreadable)
}

/// `user:password@host:port,host/database?keyword=value&...`
fn of_url(rest: &str) -> Result<Words, AddressError> {
    // User and password end at the first `@`. A special character in one of them, as itself: what
    // follows it would be taken for a host, a database or a part of the user.
    let (credentials, place) = rest.split_once('@').unwrap_or(("", rest));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let is_query = credentials.split_once('?').is_some_and(|(_, query)| query.contains('='));
    if place.contains('@') || is_query || user.contains(['/', '?', '&', '=']) {
        return Err(AddressError::Unescaped);
    }
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        // An address of IPv6 stands in brackets.
        let end = host.rfind(']').unwrap_or(0);
        let (name, port) = match host[end..].rfind(':') {
            Some(colon) => (&host[..end + colon], &host[end + colon + 1..]),
            None => (host, ""),
        };
        names.push(name.trim_start_matches('[').trim_end_matches(']'));
        ports.push(port);
    }
    let ports = if ports.iter().any(|port| !port.is_empty()) { ports.join(",") } else { String::new() };
    let (names, mut words) = (names.join(","), Words::new());
    let fixed = [("user", user), ("password", password), ("host", &*names), ("port", &*ports), ("dbname", database)];
    for (word, value) in fixed.into_iter().filter(|(_, value)| !value.is_empty()) {
        words.push((word.to_owned(), decoded(value)?));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (word, value) = pair.split_once('=').ok_or(AddressError::Unreadable)?;
        words.push((decoded(word)?, decoded(value)?));
    }
    Ok(words)
}

/// `keyword=value ...`, with values in `'` if they have spaces, and `\` before a `'` or a `\`.
fn of_keywords(text: &str) -> Result<Words, AddressError> {
    let mut words = Words::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.peek().is_none() {
            return Ok(words);
        }
        let mut word = String::new();
        while let Some(c) = chars.next_if(|&c| c != '=' && !c.is_whitespace()) {
            word.push(c);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') {
            return Err(AddressError::Unreadable);
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let is_quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                None if is_quoted => return Err(AddressError::Unreadable),
                None => break,
                Some('\'') if is_quoted => break,
                Some(c) if c.is_whitespace() && !is_quoted => break,
                Some('\\') => value.push(chars.next().ok_or(AddressError::Unreadable)?),
                Some(c) => value.push(c),
            }
        }
        words.push((word, value));
    }
}

/// The text of a password file, unless other users may read it. `None`: there is no such file.
fn readable(file: &Path) -> Result<Option<String>, AddressError> {
    match file.metadata() {
        Ok(found) if found.is_file() && is_readable_by_others(&found) => {
            Err(AddressError::PasswordFile { file: file.to_owned() })
        }
        Ok(found) if found.is_file() => Ok(std::fs::read_to_string(file).ok()),
        _ => Ok(None),
    }
}

#[cfg(unix)]
fn is_readable_by_others(found: &Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o077 != 0
}

#[cfg(not(unix))]
fn is_readable_by_others(_: &Metadata) -> bool {
    false
}

/// The fields of a line of a password file, `host:port:database:user:password`. A `\` stands before
/// a `:` or `\` of a field.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut chars) = (vec![String::new()], line.chars());
    while let Some(c) = chars.next() {
        match c {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().into_iter().for_each(|field| field.extend(chars.next())),
            _ => fields.last_mut().into_iter().for_each(|field| field.push(c)),
        }
    }
    fields
}

/// A server of an address.
#[derive(Clone, PartialEq, Eq)]
struct Server {
    host: Option<Host>,
    address: Option<IpAddr>,
    port: Option<u16>,
}

impl Server {
    /// The servers of hosts, host addresses and ports.
    fn all(of: &Config) -> Result<Vec<Self>, AddressError> {
        let (hosts, addresses, ports) = (of.get_hosts(), of.get_hostaddrs(), of.get_ports());
        let count = hosts.len().max(addresses.len());
        if count == 0 {
            return Err(AddressError::NoHost);
        }
        // One port is that of all.
        let is_unequal = |(number, free): (usize, usize)| number > free && number != count;
        if [(hosts.len(), 0), (addresses.len(), 0), (ports.len(), 1)].into_iter().any(is_unequal) {
            return Err(AddressError::UnequalHosts);
        }
        let server = |at: usize| Self {
            host: hosts.get(at).cloned(),
            address: addresses.get(at).copied(),
            port: ports.get(at).or(ports.first()).copied(),
        };
        Ok((0..count).map(server).collect())
    }

    fn shown(&self) -> String {
        match (&self.host, self.address) {
            (Some(Host::Tcp(name)), _) => name.clone(),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => path.display().to_string(),
            (None, address) => address.map_or_else(String::new, |address| address.to_string()),
        }
    }

    /// A socket of Unix, over which PostgreSQL has no TLS.
    fn is_socket(&self) -> bool {
        matches!(&self.host, Some(host) if !matches!(host, Host::Tcp(_)))
    }

    fn is_this_machine(&self) -> bool {
        match (self.address, &self.host) {
            (Some(address), _) => address.is_loopback(),
            (None, Some(Host::Tcp(name))) => {
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            _ => self.is_socket(),
        }
    }
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) config: Config,
    /// For the texts of failures.
    pub(super) name: String,
    /// Never `Unsaid`.
    pub(super) mode: Mode,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> PostgresAddress {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn modes(text: &str) -> Vec<(String, Mode)> {
        read(text).places().unwrap().into_iter().map(|place| (place.name, place.mode)).collect()
    }

    #[test]
    fn each_form_says_the_same() {
        let list = r"host = h,::1 port=7, user='o\'x' password='p@ \\' sslmode=verify-ca sslrootcert = '/a b' dbname=d connect_timeout=3";
        let url = "postgresql://o'x:p%40%20%5C@h:7,[::1]/d?sslrootcert=%2Fa%20b&connect_timeout=3&&sslmode=verify-ca";
        let address = read(list);
        assert_eq!(address, read(url));
        assert_eq!((address.mode, address.roots.as_deref()), (Mode::Authority, Some(Path::new("/a b"))));
        assert_eq!((address.config.get_user(), address.config.get_dbname()), (Some("o'x"), Some("d")));
        assert_eq!(address.config.get_password(), Some(&b"p@ \\"[..]));
        assert_eq!(address.config.get_connect_timeout(), Some(&std::time::Duration::from_secs(3)));
        assert_eq!(address.servers.iter().map(|server| server.port).collect::<Vec<_>>(), [Some(7), Some(5432)]);
        // As themselves in a password.
        assert_eq!(read("postgres://u:p?&&/@h/d?sslmode=disable").config.get_password(), Some(&b"p?&&/"[..]));
        // Empty values are defaults, and the last of several counts.
        assert_eq!(read("host=a user='' port='' host=b"), read("POSTGRES://b"));
        assert_eq!(read("postgres://a/d?host=b").to_string(), "d on b");
    }

    #[test]
    fn what_is_wrong_has_a_kind() {
        let invalid = |keyword| AddressError::InvalidValue { keyword };
        for (text, wrong) in [
            ("no address", AddressError::Unreadable),
            ("http://h/d", AddressError::Unreadable),
            ("postgres://h/d?x", AddressError::Unreadable),
            ("postgres://ann:p%zz@h/d", AddressError::Unreadable),
            ("host=h password=p\\", AddressError::Unreadable),
            ("postgres://a@b@h/d", AddressError::Unescaped),
            ("host=h user=u service=x", AddressError::UnknownKeyword { position: 3 }),
            ("host=a sslmode=allow", invalid("sslmode")),
            ("host=a,,b", invalid("host")),
            ("host=a hostaddr=b", invalid("hostaddr")),
            ("host=a connect_timeout=x", invalid("connect_timeout")),
            ("host=a target_session_attrs=x", invalid("target_session_attrs")),
            ("user=u", AddressError::NoHost),
            ("host=a,b,c port=1,2", AddressError::UnequalHosts),
            ("host=a,b hostaddr=127.0.0.1", AddressError::UnequalHosts),
        ] {
            assert_eq!(text.parse::<PostgresAddress>(), Err(wrong), "{text}");
        }
        let error = Error::from(AddressError::NoHost);
        assert!(matches!(error, Error::Store { fault: Fault::CannotOpen, .. }), "{error:?}");
    }

    /// Each address has `SECRET` or `WORD` in what was meant as a password, and none of them is in
    /// the error, nor in what is shown of the address.
    #[test]
    fn l10_an_error_has_no_part_of_a_password() {
        for address in [
            "postgres://user:SECRET@WORD@localhost:1/",
            "postgres://user:SECRET@WORD@/x",
            "postgres://user:SECRET@WORD/SECRET@localhost:1/x",
            "postgres://user@mail:SECRET@localhost:1/x",
            "postgres://localhost:1/x?user=u&password=SECRET@WORD",
            "postgres://user:SECRET/WORD",
            "postgres://user:SECRET WORD/x",
            "postgres:/user:SECRET@WORD",
            "postgres:/user:SECRET@WORD?a=b",
            "postgres//user:SECRET=WORD",
            "postgres://ann:SECRET%zz@h/d",
            "postgres://ann:SE?SECRET@h/d",
            "postgres://ann:SE?SECRET=1@h/d",
            "postgresql://[::1]:5433/app?password=SECRET",
            "host=localhost port=1 user=u password=my SECRET=WORD",
            "host=localhost port=1 user=u password='my SECRET WORD",
            "host=localhost port=1 user=u password='it's SECRET=WORD'",
            "host=localhost port=1 password=my SECRET",
            "host=localhost password=SECRET\\",
            "host=SECRET@WORD port=1",
            "host=localhost port=SECRET",
        ] {
            let said = match address.parse::<PostgresAddress>() {
                Err(error) => format!("{error} {error:?}"),
                // What other errors contain: the host, and the user and the database by the server.
                Ok(mut read) => {
                    let place = read.places().unwrap().remove(0);
                    let config = place.config;
                    format!("{} {:?} {:?} {read} {read:?}", place.name, config.get_user(), config.get_dbname())
                }
            };
            assert!(!said.contains("SECRET") && !said.contains("WORD"), "{address}: {said}");
        }
    }

    #[test]
    fn database_hosts_and_ports_are_shown_alone() {
        let shown = |text: &str| read(text).to_string();
        assert_eq!(shown("postgres://ann:secret@db.example:5433/app"), "app on db.example:5433");
        assert_eq!(shown("postgresql://[::1]:5433/app?password=secret"), "app on [::1]:5433");
        assert_eq!(shown("postgres://%2Frun%2Fpg/app"), "app on /run/pg");
        assert_eq!(shown("postgres://a:1,b/app"), "app on a:1,b:5432");
        assert_eq!(shown(r"host=db dbname='my \'app' password = 'se cret\''"), "my 'app on db");
        assert_eq!(shown("host=h user=ann"), "ann on h");
        assert_eq!(shown("hostaddr=::1 password=x"), "the database on ::1");
        assert_eq!(format!("{:?}", read("host=h user=ann dbname=d")), r#"PostgresAddress("d on h")"#);
    }

    #[test]
    fn nothing_goes_over_a_network_in_the_clear_unless_the_address_says_so() {
        let all = modes("host=/tmp,localhost,127.0.0.1,::1,db.example,10.0.0.1 port=1");
        let plain = [true, true, true, true, false, false];
        for ((name, mode), plain) in all.into_iter().zip(plain) {
            assert_eq!(mode, if plain { Mode::Disable } else { Mode::Full }, "{name}");
        }
        assert_eq!(modes("host=db hostaddr=127.0.0.1"), [("db:5432".to_owned(), Mode::Disable)]);
        assert_eq!(modes("host=localhost hostaddr=10.0.0.1"), [("localhost:5432".to_owned(), Mode::Full)]);
        assert_eq!(modes("host=db sslmode=disable"), [("db:5432".to_owned(), Mode::Disable)]);
        assert_eq!(modes("host=localhost sslmode=prefer port=1"), [("localhost:1".to_owned(), Mode::Prefer)]);
        assert_eq!(modes("host=/tmp sslmode=require port=1"), [("/tmp:1".to_owned(), Mode::Disable)]);
    }

    #[test]
    fn each_server_has_its_own_configuration() {
        let found = read("host=a,b port=1,2 user=u target_session_attrs=any").places().unwrap();
        assert_eq!(found[1].config.get_ports(), [2]);
        assert_eq!(found[1].config.get_hosts(), [Host::Tcp("b".into())]);
        assert_eq!(found[1].config.get_user(), Some("u"));
        assert_eq!(found[1].config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(found[1].config.get_application_name(), Some("timerqueue"));
        let named = read("hostaddr=127.0.0.1 application_name=mine").places().unwrap();
        assert_eq!(named[0].config.get_application_name(), Some("mine"));
    }

    #[cfg(unix)]
    #[test]
    fn lines_of_a_password_file() {
        use std::os::unix::fs::PermissionsExt;

        assert_eq!(fields(r"h\:1:5432:*:ann:a\\b:c"), ["h:1", "5432", "*", "ann", r"a\b:c"]);
        let folder = std::env::temp_dir().join(format!("timerqueue-pgpass-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("pass");
        std::fs::write(&file, "# all\nother:*:*:*:no\nh:5432:app:ann:yes\n*:*:*:*:any\n").unwrap();
        let mut address = read(&format!("host=h,i dbname=app user=ann passfile={}", file.display()));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = AddressError::PasswordFile { file: file.clone() };
        assert_eq!(address.clone().places().map(|_| ()), Err(refused), "others may read it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let own = address.clone().password("own").places().unwrap();
        assert_eq!(own[0].config.get_password(), Some(&b"own"[..]));
        let found = address.places().unwrap();
        assert_eq!(found[1].config.get_password(), Some(&b"yes"[..]));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
