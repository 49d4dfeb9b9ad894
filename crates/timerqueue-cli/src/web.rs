//! `web`: the page with the jobs, on a server of its own.
//!
//! Ground rules. The scheduler of the page has no handlers, so it runs no job: it shows and changes
//! what the workers on the file do. The server runs on the main thread; the thread of the signals
//! ends it.

use std::net::TcpListener;

use serde::Serialize;
use timerqueue::CancellationTokenSource;
use timerqueue_web::{Page, ServeError, serve};

use crate::args;
use crate::exit::{Fail, PLACE, note};
use crate::out::Out;
use crate::place::Place;
use crate::store::open;
use crate::worker;

/// Where the page is.
#[derive(Serialize)]
struct Served {
    url: String,
}

fn failed(what: &str, error: impl std::fmt::Display) -> Fail {
    Fail::new(PLACE, format!("{what}: {error}"))
}

pub(crate) fn web(place: &Place, web: &args::Web, out: &mut Out) -> Result<(), Fail> {
    let scheduler = open(place, false)?;
    let mut page = Page::builder(&scheduler).title(&place.title());
    for host in &web.host {
        page = page.host(host);
    }
    page = match &web.token {
        Some(token) => page.token(token),
        None if web.no_token => page,
        None => page.random_token(),
    };
    if web.read_only {
        page = page.read_only();
    }
    let page = page.build().map_err(|error| Fail::usage(error.to_string()))?;

    let stop = CancellationTokenSource::new();
    let token = stop.token();
    worker::listen(move || {
        stop.cancel();
        false
    })?;

    let listener = TcpListener::bind(web.listen).map_err(|error| failed(&web.listen.to_string(), error))?;
    let address = listener.local_addr().map_err(|error| failed("the socket", error))?;
    if page.has_token() || address.ip().is_loopback() {
        // A token of the user's is not shown: standard output may be kept.
        let token = page.token().filter(|_| web.token.is_none()).map(|token| format!("?token={token}"));
        let url = format!("http://{address}/{}", token.unwrap_or_default());
        out.thing(&Served { url }, |served| served.url.clone())?;
        out.flush()?;
    }
    if page.has_token() && !address.ip().is_loopback() {
        note("HTTP does not hide the token from the network");
    }
    match serve(&page, listener, &token) {
        Ok(()) => Ok(()),
        Err(ServeError::NoToken { address }) => Err(Fail::usage(format!(
            "{address} can be reached from other machines: --no-token is for addresses of this machine"
        ))),
        Err(error) => Err(failed("the server", error)),
    }
}
