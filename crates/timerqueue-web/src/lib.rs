//! A page that shows the jobs of a [`Scheduler`](timerqueue_scheduler::Scheduler): what waits,
//! runs, fails and is dead, how many runs end and how late they begin, schedules with their last
//! and next runs, and each job with its payload, attempts and errors. Jobs are searched, put,
//! edited, retried, cancelled, run now, paused and resumed there, one or all of a list. Handlers
//! are paused and resumed.
//!
//! A [`Page`] is a `tower_service::Service` over the types of the crate `http`: mount it in a
//! server of your own. With the feature `server`, `serve` is a server of its own.
//!
//! ```
//! use timerqueue_scheduler::Scheduler;
//! use timerqueue_web::{Body, Page, Peer};
//!
//! # let runtime = timerqueue::Runtime::builder().manual_clock(&timerqueue::ManualClock::new()).start()?;
//! let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: String, _| {}).start()?;
//! let page = Page::builder(&scheduler).build()?;
//!
//! // A request of a server, with the address of its caller.
//! let local = Peer("127.0.0.1:50000".parse()?);
//! let request = http::Request::get("/").header("host", "localhost").extension(local).body(Body::default())?;
//! # let clock = timerqueue::ManualClock::new();
//! # let blocking = timerqueue::Runtime::builder().manual_clock(&clock).start()?;
//! let response = clock.block_on(page.respond(request));
//! assert_eq!(response.status(), 200);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What the page refuses
//!
//! - **Callers.** Without a [token](PageBuilder::token) the page answers callers on this machine
//!   alone, as their [`Peer`] tells. All of these: each user of the machine may see and change the
//!   jobs. A request that a proxy has passed on is refused, if a header of the proxy or HTTP/1.0
//!   tells of it. A tunnel, and a proxy that adds nothing, look like a local caller: where there
//!   may be one, the page needs a token. With a token, the first request needs it, in the URL
//!   (`?token=...`), in the form that the page shows, or as `Authorization: Bearer`. Afterwards a
//!   cookie serves (`HttpOnly`, `SameSite=Strict`), until the process ends.
//! - **Names.** The page answers by `localhost`, by loopback addresses, and by the
//!   [hosts](PageBuilder::host) that were given; with a token by any IP address as well. So a site
//!   whose name is made to lead to this machine (DNS rebinding) gets nothing.
//! - **Pages of other sites.** Each change is a POST with a secret of this process in its form, and
//!   `Origin` and `Sec-Fetch-Site`, where the browser sends them, must name this site. Without a
//!   token there must be an `Origin`.
//! - **Foreign texts.** Keys, names, payloads and errors are escaped wherever they stand.
//!   Characters that a reader does not see, and those that turn the text around them, are shown by
//!   their numbers. A strict `Content-Security-Policy` runs the page's own script and no other.
//!   Nothing is loaded from elsewhere.
//!
//! The page works without scripts; the script keeps it up to date.
//!
//! # JSON
//!
//! The data of each page stand below `/api/v1`, for the same callers, with the words of `timerqueue
//! --json`: the types of the scheduler, serialized. A later version has fields that are not there
//! today, and a field that is gone or has another meaning begins another version of the path.
//!
//! | path | content |
//! |---|---|
//! | `/api/v1?span=hour` | `counts` ([`Counts`]) and `activity` (a list of [`Activity`]) of the last `hour`, `day` or `week` |
//! | `/api/v1/jobs?state=waiting` | 50 `jobs` ([`JobInfo::shown`]): `waiting`, `running`, `failing`, `dead`, `queued` or `all`; with `handler`, `key`, `find`, `since`, `until` and `sort` as on the page |
//! | `/api/v1/done` | 50 done `jobs` ([`FinishedJob`]) that the store keeps, the last ones first; with `handler` and `key` |
//! | `/api/v1/schedules` | 50 recurring `jobs` |
//! | `/api/v1/nodes` | `nodes` (a list of [`Node`]) |
//! | `/api/v1/job/17` | the job with this number: a [`JobInfo`], or a [`FinishedJob`] that its store keeps |
//!
//! `next` of a list is the `after` of its next part, or `null`. A request for `find`, `since` or
//! `until` looks at 1,000 jobs at most, and a list with fewer jobs than 50 may have a `next`. What
//! goes wrong has an `error` beside a status: 401 without the token, 404 for a job that is not
//! there or a field that cannot be read, 503 for a store that fails. Programs give the token as
//! `Authorization: Bearer`.
//!
//! # Prometheus
//!
//! `/metrics` has the [`Figures`](timerqueue_scheduler::Figures) of the scheduler and its store in
//! the text format of Prometheus, for the same callers: jobs by handler and state, the age of the
//! oldest due job, ends of runs, lateness, durations. Prometheus takes the token by
//! `authorization: { credentials: ... }` of its configuration.
//!
//! [`Counts`]: timerqueue_scheduler::Counts
//! [`Activity`]: timerqueue_scheduler::Activity
//! [`JobInfo`]: timerqueue_scheduler::JobInfo
//! [`JobInfo::shown`]: timerqueue_scheduler::JobInfo::shown
//! [`FinishedJob`]: timerqueue_scheduler::FinishedJob
//! [`Node`]: timerqueue_scheduler::Node
//!
//! # Features
//!
//! - `server`: `serve`, with hyper and tokio inside.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod act;
mod body;
mod data;
mod guard;
mod page;
mod plot;
mod route;
#[cfg(feature = "server")]
mod server;
mod text;
mod view;

pub use body::Body;
pub use page::{BuildError, Page, PageBuilder, Peer};
#[cfg(feature = "server")]
pub use server::{ServeError, serve};

/// The examples of the README, as tests.
#[cfg(all(doctest, feature = "server"))]
#[doc = include_str!("../README.md")]
struct Readme;
