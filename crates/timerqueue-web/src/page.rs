//! The page as a service.
//!
//! Ground rules. Each request takes the same way: the guard, the route, the scheduler, the view.
//! Nothing here blocks: all that is asked of the scheduler is awaited. A page keeps nothing of a
//! request but counts that took long.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use maud::Markup;
use timerqueue_scheduler::{Counts, Figure, Figures, Scheduler};

use crate::body::{self, Body};
use crate::guard::{Admitted, Guard, Refusal, SHORTEST_TOKEN, is_loopback, random};
use crate::route::{Fields, LONGEST_FORM, Route, Said};
use crate::{act, data, view};

/// Counts that take less are asked for each page.
const SLOW: Duration = Duration::from_millis(20);
/// The greatest age of counts that a page shows.
const OLDEST: Duration = Duration::from_secs(30);
/// What a store that keeps no counts walks for a page, of each index: some milliseconds.
const MOST_COUNTED: u64 = 10_000;
/// The path of the figures, as Prometheus asks for it.
const FIGURES: &str = "/metrics";

/// The address of the caller, which a server puts into the [extensions](http::Request::extensions)
/// of a request. Without a token, a page answers requests of this machine alone, and none that a
/// proxy on this machine says it has passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// A page with the jobs of a scheduler: a `tower_service::Service`.
///
/// A `Page` is a handle: clones are the same page. It holds a handle of the scheduler, so the
/// scheduler goes on while there is a page.
///
/// **Threads.** The service awaits the scheduler, and blocks no thread. It needs no runtime.
/// **Errors** of the store are answered with status 503 and their text.
///
/// # Examples
///
/// In axum, below `/admin`, for callers that have the token:
///
/// ```
/// use timerqueue_scheduler::Scheduler;
/// use timerqueue_web::Page;
///
/// let scheduler = Scheduler::builder().handler("mail", |_: String, _| {}).start()?;
/// let page = Page::builder(&scheduler)
///     .nested_at("/admin")
///     .host("jobs.example.com")
///     .token("correct horse battery staple")
///     .build()?;
/// let app: axum::Router = axum::Router::new().nest_service("/admin", page);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Page {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) scheduler: Scheduler,
    pub(crate) guard: Guard,
    /// Where the page is mounted, as its links have it: empty, or with a slash in front and none
    /// behind.
    pub(crate) prefix: String,
    /// The server takes the prefix away.
    nested: bool,
    pub(crate) title: String,
    pub(crate) read_only: bool,
    counted: Mutex<Option<Counted>>,
    figures: Figures,
}

/// Counts as the store gave them. Each page shows them.
#[derive(Clone)]
struct Counted {
    counts: Arc<Counts>,
    at: Instant,
    took: Duration,
}

impl Counted {
    /// Counts that take long serve for ten times as long. So all tabs together keep the store busy
    /// for a tenth of the time.
    fn serves(&self) -> bool {
        self.took >= SLOW && self.at.elapsed() < (self.took * 10).min(OLDEST)
    }
}

/// Why a page was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A token has at least 16 bytes, and no white space at its ends.
    #[error("a token has at least {SHORTEST_TOKEN} bytes, and no white space at its ends")]
    WeakToken,
    /// The page has a host beyond this machine, and neither a [token](PageBuilder::token) nor
    /// [callers that were checked](PageBuilder::callers_are_checked).
    #[error("a page at {host:?} needs a token, or callers that were checked")]
    NoToken {
        /// The host.
        host: String,
    },
    /// A path to mount at begins with a slash and has letters, digits, `/`, `-`, `_`, `.` and `~`
    /// alone.
    #[error("a page cannot be mounted at {path:?}")]
    InvalidPath {
        /// The path.
        path: String,
    },
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {reason}")]
    NoRandom {
        /// The reason, in English.
        reason: String,
    },
}

/// The settings of a [`Page`]. Made by [`Page::builder`].
#[must_use = "`build` makes the page"]
pub struct PageBuilder {
    scheduler: Scheduler,
    prefix: String,
    nested: bool,
    hosts: Vec<String>,
    token: Option<String>,
    random_token: bool,
    open: bool,
    https: bool,
    title: String,
    read_only: bool,
}

impl Page {
    /// Settings for a page on the jobs of this scheduler, and of all others on its store.
    pub fn builder(scheduler: &Scheduler) -> PageBuilder {
        PageBuilder {
            scheduler: scheduler.clone(),
            prefix: String::new(),
            nested: false,
            hosts: Vec::new(),
            token: None,
            random_token: false,
            open: false,
            https: false,
            title: "timerqueue".to_owned(),
            read_only: false,
        }
    }

    /// Whether callers need a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token().is_some()
    }

    /// The token that callers need, if any. The page is opened with it by a URL that ends in
    /// `/?token=...`.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.inner.guard.token.as_deref()
    }

    /// Answers a request, as the service does.
    pub async fn respond<B: http_body::Body>(&self, request: Request<B>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let head = parts.method == Method::HEAD;
        let mut response = self.inner.answer(&parts, body).await;
        if head {
            *response.body_mut() = Body::default();
        }
        response
    }
}

impl<B> tower_service::Service<Request<B>> for Page
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let page = self.clone();
        Box::pin(async move { Ok(page.respond(request).await) })
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("prefix", &self.inner.prefix)
            .field("token", &self.has_token())
            .finish_non_exhaustive()
    }
}

impl PageBuilder {
    /// Where the page is mounted, in a server that gives it the whole path: `/admin/jobs`. Default:
    /// at the root.
    pub fn at(mut self, path: &str) -> Self {
        (self.prefix, self.nested) = (path.trim_end_matches('/').to_owned(), false);
        self
    }

    /// Where the page is mounted, in a server that takes this part of the path away, as
    /// `nest_service` of axum does.
    pub fn nested_at(mut self, path: &str) -> Self {
        self = self.at(path);
        self.nested = true;
        self
    }

    /// A host by whose name the page may be asked for, without a port. Needs a
    /// [token](Self::token), or [callers that were checked](Self::callers_are_checked), unless it
    /// is a name of the loopback.
    pub fn host(mut self, name: &str) -> Self {
        self.hosts.push(name.trim_end_matches('.').to_ascii_lowercase());
        self
    }

    /// Callers need this token: at least 16 bytes, better random ones.
    pub fn token(mut self, token: &str) -> Self {
        (self.token, self.random_token) = (Some(token.to_owned()), false);
        self
    }

    /// Callers need a token of 32 random hexadecimal digits, which [`Page::token`] tells.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    /// use timerqueue_web::Page;
    ///
    /// let scheduler = Scheduler::builder().start()?;
    /// let page = Page::builder(&scheduler).random_token().build()?;
    /// println!("http://127.0.0.1:8787/?token={}", page.token().unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn random_token(mut self) -> Self {
        (self.token, self.random_token) = (None, true);
        self
    }

    /// The server that mounts the page admits only callers with the right to see and change the
    /// jobs: a page without a token answers each of them. Its own session should have a cookie with
    /// `SameSite`.
    pub fn callers_are_checked(self) -> Self {
        Self { open: true, ..self }
    }

    /// The page is reached by HTTPS alone: its cookie is `Secure`, and forms from `http:` are
    /// refused.
    pub fn https(self) -> Self {
        Self { https: true, ..self }
    }

    /// The title, in the corner and in the tab of the browser. Default: `timerqueue`.
    pub fn title(self, title: &str) -> Self {
        Self { title: title.to_owned(), ..self }
    }

    /// Without actions: each change is refused.
    pub fn read_only(self) -> Self {
        Self { read_only: true, ..self }
    }

    /// Makes the page.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    /// use timerqueue_web::{BuildError, Page};
    ///
    /// let scheduler = Scheduler::builder().start()?;
    /// let page = Page::builder(&scheduler).host("jobs.example.com");
    /// assert!(matches!(page.build(), Err(BuildError::NoToken { .. })));
    /// assert!(Page::builder(&scheduler).host("jobs.example.com").token("0123456789abcdef").build().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build(self) -> Result<Page, BuildError> {
        let Self { scheduler, prefix, nested, hosts, token, random_token, open, https, title, read_only } = self;
        let no_random = |error: getrandom::Error| BuildError::NoRandom { reason: error.to_string() };
        let token = if random_token { Some(random::<16>().map_err(no_random)?) } else { token };
        if token.as_ref().is_some_and(|token| token.len() < SHORTEST_TOKEN || token.trim() != token) {
            return Err(BuildError::WeakToken);
        }
        if let (None, false, Some(host)) = (&token, open, hosts.iter().find(|host| !is_loopback(host))) {
            return Err(BuildError::NoToken { host: host.clone() });
        }
        let in_path = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        let wrong = !prefix.is_empty() && (!prefix.starts_with('/') || prefix.starts_with("//"));
        if wrong || !prefix.chars().all(in_path) {
            return Err(BuildError::InvalidPath { path: prefix });
        }
        let guard = Guard {
            hosts,
            token,
            open,
            https,
            session: random::<32>().map_err(no_random)?,
            form: random::<32>().map_err(no_random)?,
            cookie_path: if prefix.is_empty() { "/".to_owned() } else { prefix.clone() },
        };
        Ok(Page {
            inner: Arc::new(Inner {
                figures: Figures::new(&scheduler),
                scheduler,
                guard,
                prefix,
                nested,
                title,
                read_only,
                counted: Mutex::default(),
            }),
        })
    }
}

impl fmt::Debug for PageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBuilder")
            .field("prefix", &self.prefix)
            .field("hosts", &self.hosts)
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

/// An answer before its headers.
pub(crate) enum Answer {
    Html(StatusCode, Markup),
    /// To a path below the page, after a change.
    SeeOther(String),
    Icon,
    Json(StatusCode, String),
    Figures(String),
}

impl Inner {
    /// The path below the place where the page is mounted.
    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        if self.nested {
            return Some(path);
        }
        path.strip_prefix(&*self.prefix).filter(|below| below.is_empty() || below.starts_with('/'))
    }

    async fn answer<B: http_body::Body>(&self, parts: &Parts, body: B) -> Response<Body> {
        let Ok(nonce) = random::<16>() else { return plain(StatusCode::INTERNAL_SERVER_ERROR, "no random bytes") };
        let below = self.below(parts.uri.path());
        let data = below.and_then(|path| if path == FIGURES { Some(path) } else { Route::of_data(path) });
        let admitted = match self.guard.admit(parts) {
            Ok(admitted) => admitted,
            Err(Refusal::Login) if data.is_some() => return self.refuse(Refusal::Login),
            Err(Refusal::Login) => return self.login(parts, body, &nonce).await,
            Err(refusal) => return self.refuse(refusal),
        };
        if let Some(path) = data {
            return self.finish(self.data(parts, path).await, &nonce);
        }
        let query = Fields::of(parts.uri.query().unwrap_or_default().as_bytes());
        let Some((path, route)) = below.and_then(|path| Some((path, Route::of(path, &query)?))) else {
            let words = "There is no such page, or the job is there no more.";
            let missing = view::bare(self, &nonce, "Not found", words);
            return self.finish(Answer::Html(StatusCode::NOT_FOUND, missing), &nonce);
        };
        let allowed = if route.is_change() { [Method::POST, Method::POST] } else { [Method::GET, Method::HEAD] };
        // A session that has begun meanwhile, in another tab.
        if route == Route::Login {
            return self.finish(Answer::SeeOther(self.link("/")), &nonce);
        }
        if !allowed.contains(&parts.method) {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method");
            let allow = if route.is_change() { "POST" } else { "GET, HEAD" };
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            return response;
        }
        if !route.is_change() && admitted == Admitted::WithToken {
            return self.begin_session(parts, path, &nonce);
        }
        if route.is_change() {
            let form = body::read(body, route.longest_form()).await.map(|form| Fields::of(&form));
            let Some(form) = form else { return plain(StatusCode::PAYLOAD_TOO_LARGE, "the form is too long") };
            if let Err(refusal) = self.guard.admit_change(parts, form.get("form")) {
                return self.refuse(refusal);
            }
            if self.read_only {
                return plain(StatusCode::FORBIDDEN, "this page shows, and changes nothing");
            }
            let answer = act::act(self, route, &form, &nonce).await;
            // The next page shows the change.
            *self.counted() = None;
            return self.finish(self.told(answer, &nonce), &nonce);
        }
        let said = query.get("said").and_then(Said::of);
        let shown = view::show(self, route, said, &nonce).await;
        self.finish(self.told(shown, &nonce), &nonce)
    }

    /// The data of a page. A token in the URL serves for this request alone.
    async fn data(&self, parts: &Parts, path: &str) -> Answer {
        let fail = |status, text: &str| Answer::Json(status, data::failed(text));
        if ![Method::GET, Method::HEAD].contains(&parts.method) {
            return fail(StatusCode::METHOD_NOT_ALLOWED, "this path takes GET and HEAD");
        }
        if path == FIGURES {
            return match self.figures.read().await {
                Ok(figures) => Answer::Figures(Figure::page(&figures)),
                Err(error) => fail(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            };
        }
        let query = Fields::of(parts.uri.query().unwrap_or_default().as_bytes());
        let found = match Route::of(path, &query) {
            Some(route) => data::of(self, route).await,
            None => Ok(None),
        };
        match found {
            Ok(Some(json)) => Answer::Json(StatusCode::OK, json),
            Ok(None) => fail(StatusCode::NOT_FOUND, "there is no such path, or the job is there no more"),
            Err(error) => fail(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }

    /// An answer, or the error of the scheduler.
    fn told(&self, answer: Result<Answer, timerqueue_scheduler::Error>, nonce: &str) -> Answer {
        answer.unwrap_or_else(|error| {
            Answer::Html(
                StatusCode::SERVICE_UNAVAILABLE,
                view::bare(self, nonce, "The jobs cannot be read", &error.to_string()),
            )
        })
    }

    fn counted(&self) -> MutexGuard<'_, Option<Counted>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of the jobs, and the time that the store's clock shows.
    pub(crate) async fn counts(&self) -> Result<(Arc<Counts>, SystemTime), timerqueue_scheduler::Error> {
        if let Some(Counted { counts, at, .. }) = self.counted().clone().filter(Counted::serves) {
            let now = counts.now.map(|now| now + at.elapsed());
            return Ok((counts, now.unwrap_or_else(SystemTime::now)));
        }
        let mut counts = self.scheduler.some_counts(MOST_COUNTED);
        // None while no poll was pending: an answer from memory takes no time.
        let mut begun = None;
        let counts = poll_fn(|context| {
            let polled = Pin::new(&mut counts).poll(context);
            if polled.is_pending() {
                begun.get_or_insert_with(Instant::now);
            }
            polled
        });
        let counts = Arc::new(counts.await?);
        let took = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        *self.counted() = Some(Counted { counts: Arc::clone(&counts), at: Instant::now(), took });
        let now = counts.now.unwrap_or_else(SystemTime::now);
        Ok((counts, now))
    }

    /// A link to a path of the page.
    pub(crate) fn link(&self, below: &str) -> String {
        format!("{}{below}", self.prefix)
    }

    /// The form for the token, and what it sends.
    async fn login<B: http_body::Body>(&self, parts: &Parts, body: B, nonce: &str) -> Response<Body> {
        let is_login = parts.method == Method::POST && parts.uri.path().ends_with("/login");
        if is_login && self.guard.admit_origin(parts).is_ok() {
            let form = body::read(body, LONGEST_FORM).await.map(|form| Fields::of(&form));
            let token = form.as_ref().and_then(|form| form.get("token")).unwrap_or_default();
            if self.guard.is_token(token.trim()) {
                let response = self.finish(Answer::SeeOther(self.link("/")), nonce);
                return self.with_session(parts, response);
            }
        }
        self.finish(Answer::Html(StatusCode::UNAUTHORIZED, view::login(self, nonce, is_login)), nonce)
    }

    fn with_session(&self, parts: &Parts, mut response: Response<Body>) -> Response<Body> {
        if let Some(cookie) = self.guard.set_cookie(parts).and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response
    }

    /// Takes the token out of the URL. A redirect would be part of the navigation that a link of
    /// another site may have begun, and would come without the cookie; a page that goes on by
    /// itself begins one of its own.
    fn begin_session(&self, parts: &Parts, path: &str, nonce: &str) -> Response<Body> {
        let mut rest = form_urlencoded::Serializer::new(String::new());
        let query = parts.uri.query().unwrap_or_default();
        rest.extend_pairs(form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name != "token"));
        let rest = rest.finish();
        // With a single slash in front: two would begin the name of a host.
        let path = format!("/{}", path.trim_start_matches('/'));
        let target = format!("{}{}{rest}", self.link(&path), if rest.is_empty() { "" } else { "?" });
        let response = self.finish(Answer::Html(StatusCode::OK, view::forward(&target)), nonce);
        self.with_session(parts, response)
    }

    fn refuse(&self, refusal: Refusal) -> Response<Body> {
        let status = match refusal {
            Refusal::Host => StatusCode::MISDIRECTED_REQUEST,
            Refusal::Login => StatusCode::UNAUTHORIZED,
            _ => StatusCode::FORBIDDEN,
        };
        let mut response = plain(status, refusal.to_string());
        if refusal == Refusal::Login {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn finish(&self, answer: Answer, nonce: &str) -> Response<Body> {
        let (status, kind, body) = match answer {
            Answer::Html(status, html) => (status, "text/html; charset=utf-8", Body::new(html.into_string())),
            Answer::Figures(page) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", Body::new(page)),
            Answer::Json(status, json) => (status, "application/json", Body::new(json)),
            Answer::Icon => (StatusCode::OK, "image/svg+xml", Body::new(view::ICON)),
            Answer::SeeOther(to) => {
                let mut response = plain(StatusCode::SEE_OTHER, "");
                if let Ok(to) = HeaderValue::try_from(to) {
                    response.headers_mut().insert(LOCATION, to);
                }
                return response;
            }
        };
        let policy = format!(
            "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        );
        let mut response = with_headers(Response::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Ok(policy) = HeaderValue::try_from(policy) {
            headers.insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }
}

/// Headers of all answers.
fn with_headers(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        // With `no-referrer`, browsers send the origin `null` along with forms.
        (REFERRER_POLICY, "same-origin"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = with_headers(Response::new(Body::new(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_serve_for_ten_times_as_long_as_they_took() {
        let counts = Arc::new(Counts::default());
        let serves = |took: u64, ago: u64| {
            let at = Instant::now().checked_sub(Duration::from_millis(ago));
            at.is_none_or(|at| Counted { counts: counts.clone(), at, took: Duration::from_millis(took) }.serves())
        };
        assert!(serves(60_000, 0) && serves(60_000, 1_000));
        assert!(!serves(0, 0) && !serves(19, 0), "an answer that is there at once is asked for again");
        assert!(!serves(20, 200) && !serves(1_000, 10_000) && !serves(60_000, 30_000));
    }
}
