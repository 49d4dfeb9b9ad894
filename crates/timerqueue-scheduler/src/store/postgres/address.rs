//! The address of a server: what is read here and not by tokio-postgres.
//!
//! Ground rules. `sslmode` with `verify-ca` and `verify-full`, and `sslrootcert`, are keywords of
//! PostgreSQL that tokio-postgres refuses. They are taken out of the address, and the rest stays as
//! it is. Each server of an address with several gets a configuration of its own, so that one that
//! does not answer takes only its share of the time.
//!
//! An error says nothing of a password, and of a mistyped address any part may be one. So texts of
//! tokio-postgres with parts of an address do not pass, and no such part gets into a name of a host
//! or a user, which other errors contain.

use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::error::Failure;
use crate::store::Fault;

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

/// An address in parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// What tokio-postgres reads.
    pub(super) rest: String,
    pub(super) mode: Mode,
    /// `sslrootcert`.
    pub(super) roots: Option<PathBuf>,
}

impl Address {
    pub(super) fn of(text: &str) -> Result<Self, Failure> {
        let mut address = Self { rest: String::new(), mode: Mode::Unsaid, roots: None };
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            // As tokio-postgres reads it: user and password end at the first `@`.
            let host = text.find('@').map_or(0, |at| at + 1);
            check_credentials(&text[..host], &text[host..])?;
            let query = text[host..].find('?').map_or(text.len(), |at| host + at);
            address.rest.push_str(&text[..query]);
            let query = text.get(query + 1..).unwrap_or_default();
            let mut divider = '?';
            for part in query.split('&').filter(|part| !part.is_empty()) {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                if !address.takes(key, &decoded(value))? {
                    address.rest.extend([divider]);
                    address.rest.push_str(part);
                    divider = '&';
                }
            }
        } else {
            for (key, value, whole) in keywords(text) {
                if !address.takes(key, &value)? {
                    address.rest.push_str(whole);
                    address.rest.push(' ');
                }
            }
        }
        Ok(address)
    }

    /// Whether the keyword is one of this module's.
    fn takes(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        match key {
            "sslmode" => {
                let unknown = || invalid("`sslmode` is disable, prefer, require, verify-ca or verify-full");
                self.mode = Mode::of(value).ok_or_else(unknown)?;
            }
            "sslrootcert" => self.roots = (value != "system").then(|| value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

pub(super) fn invalid(reason: &str) -> Failure {
    Failure::new(Fault::CannotOpen, reason)
}

/// A special character in a user or a password, as itself: what follows it would be taken for a
/// host, a database or a part of the user.
fn check_credentials(before: &str, after: &str) -> Result<(), Failure> {
    let user = before.split_once("://").map_or("", |(_, credentials)| credentials);
    let user = user.split(':').next().unwrap_or_default();
    let is_query = before.split_once('?').is_some_and(|(_, query)| query.contains('='));
    if after.contains('@') || is_query || user.contains(['/', '?', '&', '=']) {
        return Err(invalid("the address has a `@` too many: in a user, a password or a name write `%40`"));
    }
    Ok(())
}

/// What tokio-postgres makes of the rest of an address.
pub(super) fn parsed(rest: &str) -> Result<Config, Failure> {
    let config: Config = rest.parse().map_err(|error| unreadable(&Failure::from(error).reason))?;
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || "-._:%".contains(c));
    if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if !is_name(name))) {
        return Err(invalid("the address has a host with a character that is in no name of a host"));
    }
    Ok(config)
}

/// Of the texts of tokio-postgres only one has no part of the address: the one that names an option
/// of its own.
fn unreadable(reason: &str) -> Failure {
    match reason.split_once("invalid value for option") {
        Some((_, option)) => invalid(&format!("the address has an invalid value for option{option}")),
        None => invalid(
            "the address cannot be read: it is `postgres://user:password@host/database` with special characters as `%` and two digits, or a \
             list of `keyword=value` with values in quotes if they have spaces",
        ),
    }
}

/// `%` and two digits is a byte.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Each `key = value` of a list: key, value without quotes, and the text of both. What is no such
/// pair is left to tokio-postgres, which refuses it.
fn keywords(text: &str) -> Vec<(&str, String, &str)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let begin = rest;
        let key_end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = &rest[..key_end];
        rest = rest[key_end..].trim_start();
        let mut value = String::new();
        if let Some(after) = rest.strip_prefix('=') {
            rest = after.trim_start();
            let is_quoted = rest.starts_with('\'');
            let mut chars = rest.char_indices().skip(usize::from(is_quoted));
            let mut end = rest.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
                    '\'' if is_quoted => {
                        end = at + 1;
                        break;
                    }
                    c if c.is_whitespace() && !is_quoted => {
                        end = at;
                        break;
                    }
                    c => value.push(c),
                }
            }
            rest = &rest[end..];
        }
        found.push((key, value, &begin[..begin.len() - rest.len()]));
        rest = rest.trim_start();
    }
    found
}

/// One server of an address.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) config: Config,
    /// For the texts of failures.
    pub(super) name: String,
    /// Never `Unsaid`.
    pub(super) mode: Mode,
}

/// The servers of an address, in their order.
pub(super) fn places(config: &Config, mode: Mode) -> Result<Vec<Place>, Failure> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    if count == 0 {
        return Err(invalid("the address names no host"));
    }
    if (!hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len())
        || (ports.len() > 1 && ports.len() != count)
    {
        return Err(invalid("the address has other numbers of hosts than of host addresses or ports"));
    }
    let place = |at: usize| {
        let (host, address) = (hosts.get(at), addresses.get(at).copied());
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let mut single = without_hosts(config);
        single.port(port);
        let mut name = address.map_or_else(String::new, |address| address.to_string());
        match host {
            Some(Host::Tcp(host)) => {
                single.host(host);
                name.clone_from(host);
            }
            #[cfg(unix)]
            Some(Host::Unix(path)) => {
                single.host_path(path);
                name = path.display().to_string();
            }
            None => {}
        }
        if let Some(address) = address {
            single.hostaddr(address);
        }
        let mode = match mode {
            _ if is_socket(host) => Mode::Disable,
            Mode::Unsaid if is_this_machine(host, address) => Mode::Disable,
            Mode::Unsaid => Mode::Full,
            mode => mode,
        };
        single.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            _ => SslMode::Require,
        });
        Place { config: single, name: format!("{name}:{port}"), mode }
    };
    Ok((0..count).map(place).collect())
}

/// A socket of Unix, over which PostgreSQL has no TLS.
fn is_socket(host: Option<&Host>) -> bool {
    matches!(host, Some(host) if !matches!(host, Host::Tcp(_)))
}

fn is_this_machine(host: Option<&Host>, address: Option<IpAddr>) -> bool {
    match (address, host) {
        (Some(address), _) => address.is_loopback(),
        (None, Some(Host::Tcp(name))) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        (None, host) => is_socket(host),
    }
}

/// All settings but those of the hosts and of TLS. Only a server that takes writes is of use.
fn without_hosts(config: &Config) -> Config {
    let mut single = Config::new();
    if let Some(user) = config.get_user() {
        single.user(user);
    }
    if let Some(password) = config.get_password() {
        single.password(password);
    }
    if let Some(name) = config.get_dbname() {
        single.dbname(name);
    }
    if let Some(options) = config.get_options() {
        single.options(options);
    }
    if let Some(&time) = config.get_connect_timeout() {
        single.connect_timeout(time);
    }
    if let Some(&time) = config.get_tcp_user_timeout() {
        single.tcp_user_timeout(time);
    }
    if let Some(time) = config.get_keepalives_interval() {
        single.keepalives_interval(time);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        single.keepalives_retries(retries);
    }
    single
        .application_name(config.get_application_name().unwrap_or("timerqueue"))
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(TargetSessionAttrs::ReadWrite);
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(text: &str) -> Vec<(String, Mode)> {
        let address = Address::of(text).unwrap();
        let config: Config = address.rest.parse().unwrap();
        places(&config, address.mode).unwrap().into_iter().map(|place| (place.name, place.mode)).collect()
    }

    #[test]
    fn keywords_of_tls_are_taken_out_and_the_rest_stays() {
        let address = Address::of(r"host = a user='o\'x' sslmode=verify-ca sslrootcert = '/a b' dbname=d").unwrap();
        assert_eq!(address.mode, Mode::Authority);
        assert_eq!(address.roots, Some("/a b".into()));
        assert_eq!(address.rest, r"host = a user='o\'x' dbname=d ");
        let config: Config = address.rest.parse().unwrap();
        assert_eq!(config.get_user(), Some("o'x"));
        let url = "postgresql://u:p%40@h:7,g/d?sslrootcert=%2Fa%20b&connect_timeout=3&sslmode=require";
        let address = Address::of(url).unwrap();
        assert_eq!((address.mode, address.roots), (Mode::Full, Some("/a b".into())));
        assert_eq!(address.rest, "postgresql://u:p%40@h:7,g/d?connect_timeout=3");
        assert!(Address::of("host=a sslmode=allow").is_err());
        assert!(parsed(&Address::of("no address").unwrap().rest).is_err());
        let address = Address::of("postgres://u:p?&&/@h/d?sslmode=disable&&connect_timeout=3").unwrap();
        assert_eq!(parsed(&address.rest).unwrap().get_password(), Some(&b"p?&&/"[..]));
        assert_eq!(address.mode, Mode::Disable);
    }

    /// Each address has `SECRET` or `WORD` in what was meant as a password, and none of them is in
    /// the error.
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
            "host=localhost port=1 user=u password=my SECRET=WORD",
            "host=localhost port=1 user=u password='my SECRET WORD",
            "host=localhost port=1 user=u password='it's SECRET=WORD'",
            "host=localhost port=1 password=my SECRET",
            "host=SECRET@WORD port=1",
            "host=localhost port=SECRET",
        ] {
            let read = Address::of(address).and_then(|address| Ok((parsed(&address.rest)?, address.mode)));
            let reason = match read.and_then(|(config, mode)| places(&config, mode)) {
                Err(failure) => failure.reason,
                // What other errors contain: the host, and the user and the database by the server.
                Ok(places) => {
                    let config = &places[0].config;
                    format!("{} {:?} {:?}", places[0].name, config.get_user(), config.get_dbname())
                }
            };
            assert!(!reason.contains("SECRET") && !reason.contains("WORD"), "{address}: {reason}");
        }
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
    fn hosts_and_ports_belong_together() {
        let config: Config = "host=a,b port=1,2 user=u".parse().unwrap();
        let found = places(&config, Mode::Prefer).unwrap();
        assert_eq!(found[1].config.get_ports(), [2]);
        assert_eq!(found[1].config.get_hosts(), [Host::Tcp("b".into())]);
        assert_eq!(found[1].config.get_user(), Some("u"));
        for wrong in ["user=u", "host=a,b,c port=1,2", "host=a,b hostaddr=127.0.0.1"] {
            assert!(places(&wrong.parse().unwrap(), Mode::Prefer).is_err(), "{wrong}");
        }
    }
}
