//! Admission: hosts, callers, tokens, sessions, forms.
//!
//! Ground rules. Each request passes [`Guard::admit`], and each one that changes something
//! [`Guard::admit_change`] as well. Secrets are compared in a time that does not depend on them.
//! The token itself is in no cookie, and stands in no page.
//!
//! Without a token the address of the caller decides, and a program on this machine that passes
//! requests on has a local address: a proxy, a tunnel, the port of a container. Such a request is
//! refused where a header or the version tells of it. Where nothing tells, only a token helps.

use std::net::{IpAddr, SocketAddr};

use http::Version;
use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq;

use crate::Peer;

/// The fewest bytes of a token.
pub(crate) const SHORTEST_TOKEN: usize = 16;

/// Random bytes as hexadecimal digits.
pub(crate) fn random<const BYTES: usize>() -> Result<String, getrandom::Error> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether two secrets are equal.
fn equal(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}

/// The rules of a page.
pub(crate) struct Guard {
    /// Names beside those of the loopback, in lower case, without ports.
    pub(crate) hosts: Vec<String>,
    pub(crate) token: Option<String>,
    /// The program that mounts the page checks its callers.
    pub(crate) open: bool,
    /// The cookie is for HTTPS only.
    pub(crate) https: bool,
    /// The value of the cookie.
    pub(crate) session: String,
    /// In each form.
    pub(crate) form: String,
    pub(crate) cookie_path: String,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The name by which the page was asked for is not one of its own: a name of another site may
    /// lead to this address.
    #[error(
        "This page is not known by the name it was asked for. By localhost and by loopback addresses it is; other names \
         are given to it when it is made."
    )]
    Host,
    /// The caller is not known to be on this machine, and the page has no token.
    #[error(
        "This page has no token, and answers callers on its own machine alone. The server that mounts it tells the \
         caller's address."
    )]
    Caller,
    /// A proxy has passed the request on, and the page has no token.
    #[error(
        "This page has no token, and a proxy has passed the request on, so the caller may be anywhere. Behind a proxy \
         the page needs a token."
    )]
    Forwarded,
    /// No session yet.
    #[error("This page needs a token.")]
    Login,
    /// The request comes from a page of another site, or does not say where it comes from.
    #[error("The request comes from a page of another site, or has no `Origin` that names this site.")]
    Origin,
    /// The form is not of this process.
    #[error("The form is out of date, since the server was started again. Load the page again.")]
    Form,
}

/// A request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    Known,
    /// With the token in its URL: the answer gives the cookie.
    WithToken,
}

/// Host and port by which the page was asked for.
fn authority(parts: &Parts) -> Option<Authority> {
    let mut named = parts.headers.get_all(HOST).iter();
    let host = match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok()?.parse().ok(),
        (None, None) => parts.uri.authority().cloned(),
        _ => None,
    };
    host.filter(|host: &Authority| !host.as_str().contains('@'))
}

fn ip(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || ip(host).is_some_and(|ip| ip.to_canonical().is_loopback())
}

impl Guard {
    /// Whether a request may be answered.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<Admitted, Refusal> {
        let host = authority(parts).ok_or(Refusal::Host)?;
        let name = host.host().trim_end_matches('.').to_ascii_lowercase();
        // A page by its address cannot be asked for by the name of another site.
        let by_address = self.token.is_some() && ip(&name).is_some();
        if !(is_loopback(&name) || by_address || self.hosts.contains(&name)) {
            return Err(Refusal::Host);
        }
        let Some(token) = &self.token else {
            let local = parts.extensions.get::<Peer>().is_some_and(|Peer(peer)| is_local(peer));
            return match (self.open, local) {
                (true, _) => Ok(Admitted::Known),
                (false, false) => Err(Refusal::Caller),
                (false, true) if was_forwarded(parts) => Err(Refusal::Forwarded),
                (false, true) => Ok(Admitted::Known),
            };
        };
        let cookie = self.cookie_name(&host);
        if cookies(parts, &cookie).any(|value| equal(value, &self.session)) {
            return Ok(if asked(parts).is_some() { Admitted::WithToken } else { Admitted::Known });
        }
        let bearer = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        if bearer.is_some_and(|bearer| equal(bearer.trim(), token)) {
            return Ok(Admitted::Known);
        }
        match asked(parts) {
            Some(asked) if equal(&asked, token) => Ok(Admitted::WithToken),
            _ => Err(Refusal::Login),
        }
    }

    /// Whether a request comes from a page of this site, as far as the browser says so. Each
    /// browser sends the origin with a form. Without a token, other programs must send it too.
    pub(crate) fn admit_origin(&self, parts: &Parts) -> Result<(), Refusal> {
        let site = parts.headers.get("sec-fetch-site");
        let is_own = match parts.headers.get(ORIGIN) {
            None => self.token.is_some() || self.open,
            Some(origin) => {
                let origin = origin.to_str().ok().and_then(|origin| {
                    origin.strip_prefix("http://").filter(|_| !self.https).or_else(|| origin.strip_prefix("https://"))
                });
                let both = origin.zip(authority(parts));
                both.is_some_and(|(origin, own)| origin.eq_ignore_ascii_case(own.as_str()))
            }
        };
        let is_asked_here = site.is_none_or(|site| site == "same-origin" || site == "none");
        if is_asked_here && is_own { Ok(()) } else { Err(Refusal::Origin) }
    }

    /// Whether a request may change something: `form` is what stands in its form.
    pub(crate) fn admit_change(&self, parts: &Parts, form: Option<&str>) -> Result<(), Refusal> {
        self.admit_origin(parts)?;
        if form.is_some_and(|form| equal(form, &self.form)) { Ok(()) } else { Err(Refusal::Form) }
    }

    pub(crate) fn is_token(&self, token: &str) -> bool {
        self.token.as_ref().is_some_and(|own| equal(own, token))
    }

    /// Cookies are those of all ports of a host: so the port is in the name.
    fn cookie_name(&self, host: &Authority) -> String {
        host.port_u16().map_or_else(|| "timerqueue".to_owned(), |port| format!("timerqueue-{port}"))
    }

    /// The header that begins a session.
    pub(crate) fn set_cookie(&self, parts: &Parts) -> Option<String> {
        let name = self.cookie_name(&authority(parts)?);
        let secure = if self.https { "; Secure" } else { "" };
        Some(format!("{name}={}; Path={}; HttpOnly; SameSite=Strict{secure}", self.session, self.cookie_path))
    }
}

/// Whether a proxy or a tunnel has passed the request on, as far as it says so. No browser speaks
/// HTTP/1.0; proxies do.
fn was_forwarded(parts: &Parts) -> bool {
    const NAMES: [&str; 8] = [
        "forwarded",
        "via",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "fastly-client-ip",
    ];
    let told = |name: &str| NAMES.contains(&name) || name.starts_with("x-forwarded") || name.starts_with("x-original-");
    parts.version < Version::HTTP_11 || parts.headers.keys().any(|name| told(name.as_str()))
}

fn is_local(peer: &SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// The token in the URL.
fn asked(parts: &Parts) -> Option<String> {
    let query = parts.uri.query()?;
    form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "token").map(|(_, token)| token.into_owned())
}

fn cookies<'a>(parts: &'a Parts, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = parts.headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(move |pair| {
        let (own, value) = pair.trim().split_once('=')?;
        (own == name).then_some(value)
    })
}
