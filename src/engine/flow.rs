//! New timers of the program: with the span in which they are made, if there is one.
//!
//! Ground rules. Timers of the crate's own are made by [`entry`] directly, and keep no span. A timer made in a span has a payload of a
//! type of its own: the callback, and the span beside it. So a timer made outside of all spans pays nothing when it fires.

use std::time::{Duration, SystemTime};

use super::Engine;
use super::entry::{self, Firing, OwnedEntry};
use super::label::Settings;
use super::trace::Context;
use super::wall_registry::{WallEntry, WallFiring};
use crate::sync::Arc;

impl Context {
    /// Runs the callback of a timer in the context of its making.
    fn fire(&self, firing: &Firing<'_>, callback: impl FnOnce()) {
        let now = firing.entry.shard().clock.now();
        let late = Duration::from_nanos(now.saturating_sub(firing.scheduled));
        self.run(firing.entry.address(), Some(late), callback);
    }
}

/// As [`entry::overlapping`], in the context of the calling thread.
#[inline]
pub(crate) fn overlapping(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    callback: impl Fn(&Firing<'_>) + Send + Sync + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine, Some(&settings)) {
        None => entry::overlapping(engine, settings, when, callback),
        Some(context) => {
            cold(|| entry::overlapping(engine, settings, when, move |tick| context.fire(tick, || callback(tick))))
        }
    }
}

/// As [`entry::exclusive`], in the context of the calling thread.
#[inline]
pub(crate) fn exclusive(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    mut callback: impl FnMut(&Firing<'_>) + Send + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine, Some(&settings)) {
        None => entry::exclusive(engine, settings, when, callback),
        Some(context) => {
            cold(|| entry::exclusive(engine, settings, when, move |tick| context.fire(tick, || callback(tick))))
        }
    }
}

/// As [`entry::once`], in the context of the calling thread.
#[inline]
pub(crate) fn once(
    engine: &Engine,
    settings: impl Into<Settings>,
    due: Duration,
    callback: impl FnOnce(&Firing<'_>) + Send + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine, Some(&settings)) {
        None => entry::once(engine, settings, due, callback),
        Some(context) => cold(|| entry::once(engine, settings, due, move |tick| context.fire(tick, || callback(tick)))),
    }
}

/// As [`WallEntry::start`], in the context of the calling thread.
pub(crate) fn wall(
    engine: &Arc<Engine>,
    at: SystemTime,
    mut callback: impl FnMut(&WallFiring<'_>) + Send + 'static,
) -> WallEntry {
    match Context::here(engine, None) {
        None => WallEntry::start(engine, at, callback),
        Some(context) => WallEntry::start(engine, at, move |tick| {
            let late = tick.now().duration_since(tick.at).ok();
            context.run(tick.entry().address(), late, || callback(tick));
        }),
    }
}

/// Keeps the rarer way out of the code of the usual one.
#[cold]
#[inline(never)]
fn cold<R>(way: impl FnOnce() -> R) -> R {
    way()
}
