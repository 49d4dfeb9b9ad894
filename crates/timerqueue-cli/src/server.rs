//! The address of a server of PostgreSQL, as `psql` takes it; its password, and what may be shown
//! of it.
//!
//! Ground rules. A password comes from the environment or from a file, never from the command line,
//! which other users of the machine can read. No text of a failure holds a part of the address but
//! host, port and database.

use std::fmt::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use timerqueue_scheduler::store::PostgresOptions;

use crate::exit::{Fail, note};

const SCHEMA: &str = "timerqueue";

/// The keywords of an address that the store has, and `passfile`. Others are refused here: a part
/// of a password may look like one, and is not shown.
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

pub(crate) struct Server {
    /// As it was given.
    given: String,
    /// As keywords and values, with the password, wherever that came from.
    address: String,
    shown: String,
    secret: Option<String>,
    schema: String,
}

/// What an address says, decoded.
type Words = Vec<(String, String)>;

impl Server {
    /// `is_argument`: the address stands on the command line.
    pub(crate) fn new(text: &str, schema: Option<String>, is_argument: bool) -> Result<Self, Fail> {
        let is_letters = |text: &str| text.bytes().all(|b| b.is_ascii_alphabetic());
        let is_url = text.split_once("://").is_some_and(|(scheme, _)| is_letters(scheme));
        let words = if is_url { of_url(text) } else { of_keywords(text) };
        let wrong = |why: &str| Fail::Usage(format!("the address of the server is wrong: {why}"));
        let mut words = words.map_err(wrong)?;
        if let Some(at) = words.iter().position(|(word, _)| !KEYWORDS.contains(&word.as_str())) {
            return Err(wrong(&format!("value {} has an unknown keyword", at + 1)));
        }
        let find = |name: &str| words.iter().rev().find(|(word, _)| word == name).map(|(_, value)| value.as_str());
        if is_argument && find("password").is_some() {
            return Err(Fail::Usage(
                "a password on the command line can be read by other users: give the whole address in TIMERQUEUE_STORE, \
                 or the password in PGPASSWORD or in a password file (PGPASSFILE, ~/.pgpass)"
                    .to_owned(),
            ));
        }
        let given = find("password").map(str::to_owned);
        let of_environment = || std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty());
        let of_file = || of_file(find("passfile").map(PathBuf::from), &find);
        let password = given.or_else(of_environment).or_else(of_file);
        words.retain(|(word, _)| word != "passfile" && word != "password");
        let mut address = String::new();
        for (word, value) in words
            .iter()
            .map(|(word, value)| (word.as_str(), value))
            .chain(password.as_ref().map(|password| ("password", password)))
        {
            add(&mut address, word, value);
        }
        let word = |name: &str| words.iter().rev().find(|(word, _)| word == name).map(|(_, value)| value.as_str());
        let mut shown = word("dbname").or(word("user")).unwrap_or("the database").to_owned();
        let host = word("host").or(word("hostaddr")).unwrap_or_default();
        let port = word("port").map(|port| format!(":{port}")).unwrap_or_default();
        if !host.is_empty() {
            let _ = write!(shown, " on {host}{port}");
        }
        let schema = schema.unwrap_or_else(|| SCHEMA.to_owned());
        if schema != SCHEMA {
            let _ = write!(shown, ", schema {schema}");
        }
        Ok(Self { given: text.to_owned(), address, shown, secret: password, schema })
    }

    pub(crate) fn given(&self) -> &str {
        &self.given
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions::new().schema(&self.schema)
    }

    /// A text of a library, in which a password would be a surprise.
    pub(crate) fn without_secrets(&self, text: &str) -> String {
        // A shorter password would take letters out of words.
        match self.secret.as_deref().filter(|secret| secret.len() > 2) {
            Some(secret) => text.replace(secret, "***"),
            None => text.to_owned(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = |digit: u8| char::from(digit).to_digit(16);
        let [Some(high), Some(low)] = [rest.first(), rest.get(1)].map(|digit| digit.copied().and_then(hex)) else {
            return Err("two hexadecimal digits are to follow a `%`");
        };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "a value is no UTF-8")
}

/// `postgres://user:password@host:port,host/database?keyword=value&...`
fn of_url(url: &str) -> Result<Words, &'static str> {
    let (_, rest) = url.split_once("://").ok_or("it is no URL")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut words = Words::new();
    let mut say = |word: &str, value: &str| {
        if !value.is_empty() {
            words.push((word.to_owned(), decoded(value)?));
        }
        Ok(())
    };
    let place = match rest.split_once('@') {
        None => rest,
        Some((_, place)) if place.contains('@') => return Err("an `@` in a name or password is written as %40"),
        Some((who, place)) => {
            let (user, password) = who.split_once(':').unwrap_or((who, ""));
            say("user", user)?;
            say("password", password)?;
            place
        }
    };
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
    say("host", &names.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        say("port", &ports.join(","))?;
    }
    say("dbname", database)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (word, value) = pair.split_once('=').ok_or("a parameter has no value")?;
        words.push((decoded(word)?, decoded(value)?));
    }
    Ok(words)
}

/// `keyword=value ...`, with values in `'` if they have spaces, and `\` before a `'` or a `\`.
fn of_keywords(text: &str) -> Result<Words, &'static str> {
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
            return Err("a `=` is missing");
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let is_quoted = chars.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match chars.next() {
                None if is_quoted => return Err("a closing `'` is missing"),
                None => break,
                Some('\'') if is_quoted => break,
                Some(c) if c.is_whitespace() && !is_quoted => break,
                Some('\\') => value.push(chars.next().ok_or("nothing follows a `\\`")?),
                Some(c) => value.push(c),
            }
        }
        words.push((word, value));
    }
}

/// Adds a keyword and its value.
fn add(address: &mut String, word: &str, value: &str) {
    let escaped = value.replace('\\', "\\\\").replace('\'', "\\'");
    let _ = write!(address, "{word}='{escaped}' ");
}

/// The password of a server from a password file: lines of `host:port:database:user:password`.
fn of_file<'a>(file: Option<PathBuf>, word: &impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"));
    let file = file.or_else(|| std::env::var_os("PGPASSFILE").map(PathBuf::from)).or_else(home)?;
    let text = readable(&file)?;
    let first = |name: &str| word(name).map(|value| value.split(',').next().unwrap_or_default());
    let host = first("host").filter(|host| !host.starts_with('/')).unwrap_or("localhost");
    let user = word("user").unwrap_or_default();
    let wanted = [host, first("port").unwrap_or("5432"), word("dbname").unwrap_or(user), user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let fits = |(field, wanted): (&String, &&str)| field == "*" || field == wanted;
        let is_it = fields.len() == 5 && fields.iter().zip(&wanted).all(fits);
        is_it.then(|| fields[4].clone())
    })
}

/// The text of a password file, unless other users may read it.
fn readable(file: &Path) -> Option<String> {
    let mode = file.metadata().ok().filter(std::fs::Metadata::is_file)?.permissions().mode();
    if mode & 0o077 != 0 {
        note(&format!("timerqueue: {} is left alone: other users may read it (chmod 600)", file.display()));
        return None;
    }
    std::fs::read_to_string(file).ok()
}

/// The fields of a line. A `\` stands before a `:` or `\` of a field.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(address: &str) -> String {
        Server::new(address, None, false).map_or_else(|fail| format!("{fail:?}"), |server| server.to_string())
    }

    #[test]
    fn host_and_database_are_shown_alone() {
        assert_eq!(shown("postgres://ann:secret@db.example:5433/app"), "app on db.example:5433");
        assert_eq!(shown("postgresql://[::1]:5433/app?password=secret"), "app on ::1:5433");
        assert_eq!(shown("postgres://%2Frun%2Fpg/app"), "app on /run/pg");
        assert_eq!(shown("postgres://a:1,b:2/app"), "app on a,b:1,2");
        assert_eq!(shown(r"host=db dbname='my \'app' password = 'se cret\''"), "my 'app on db");
        assert_eq!(shown("user=ann"), "ann");
        let server = Server::new("host=h password=secret", Some("jobs".to_owned()), false).map_err(|_| ()).unwrap();
        assert_eq!(server.to_string(), "the database on h, schema jobs");
        assert_eq!(server.without_secrets("wrong: secret"), "wrong: ***");
    }

    #[test]
    fn no_wrong_address_shows_its_password() {
        for wrong in [
            "host=h password=se secret=x",
            "host=h password='secret",
            "host=h password=se secret",
            "postgres://ann:pw@secret@h/d",
            "postgres://ann:secret%zz@h/d",
            "postgres://ann:se?secret@h/d",
            "postgres://ann:se?secret=1@h/d",
            "host=h password=secret\\",
        ] {
            let said = shown(wrong);
            assert!(said.contains("is wrong") && !said.contains("secret"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_password_on_the_command_line_is_refused() {
        for address in ["postgres://ann:secret@h/d", "host=h password=secret", "postgres://h/d?password=secret"] {
            let refused = Server::new(address, None, true).map(|server| server.to_string()).unwrap_err();
            assert!(matches!(&refused, Fail::Usage(said) if said.contains("PGPASSWORD") && !said.contains("secret")));
        }
        assert!(Server::new("postgres://ann@h/d", None, true).is_ok());
    }

    #[test]
    fn a_url_becomes_keywords_and_values() {
        let server = Server::new("postgres://ann:a%27b%5C%20c@[::1]:5433,h/d?connect_timeout=2", None, false);
        let address = server.map_err(|_| ()).unwrap().address;
        let words = of_keywords(&address).unwrap();
        let words: Vec<_> = words.iter().map(|(word, value)| (word.as_str(), value.as_str())).collect();
        let wanted = [("user", "ann"), ("host", "::1,h"), ("port", "5433,"), ("dbname", "d"), ("connect_timeout", "2")];
        assert_eq!(words[..5], wanted);
        assert_eq!(words[5..], [("password", r"a'b\ c")]);
    }

    #[test]
    fn lines_of_a_password_file() {
        assert_eq!(fields(r"h\:1:5432:*:ann:a\\b:c"), ["h:1", "5432", "*", "ann", r"a\b:c"]);
        let folder = std::env::temp_dir().join(format!("timerqueue-pgpass-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("pass");
        std::fs::write(&file, "# all\nother:*:*:*:no\nh:5432:app:ann:yes\n*:*:*:*:any\n").unwrap();
        let words = |name: &str| match name {
            "host" => Some("h,i"),
            "dbname" => Some("app"),
            "user" => Some("ann"),
            _ => None,
        };
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(of_file(Some(file.clone()), &words), None, "others may read it");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(of_file(Some(file), &words).as_deref(), Some("yes"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
