//! New timers of the program: in the context of an observer, if there is one.
//!
//! Ground rules. Timers of the crate's own are made by [`entry`] directly, in no context. A timer
//! in a context has a payload of a type of its own: the callback in a box, and the context beside
//! it. So a timer without a context pays nothing when it fires.

use std::time::{Duration, SystemTime};

use super::Engine;
use super::entry::{self, Firing, OwnedEntry};
use super::label::Settings;
use super::observe::Context;
use super::wall_registry::{WallEntry, WallFiring};
use crate::sync::Arc;

/// As [`entry::overlapping`], in the observer's context of the calling thread.
#[inline]
pub(crate) fn overlapping(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    callback: impl Fn(&Firing) + Send + Sync + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine) {
        None => entry::overlapping(engine, settings, when, callback),
        Some(context) => overlapping_in(context, engine, settings, when, Box::new(callback)),
    }
}

/// As [`entry::exclusive`], in the observer's context of the calling thread.
#[inline]
pub(crate) fn exclusive(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    callback: impl FnMut(&Firing) + Send + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine) {
        None => entry::exclusive(engine, settings, when, callback),
        Some(context) => exclusive_in(context, engine, settings, when, Box::new(callback)),
    }
}

/// As [`entry::once`], in the observer's context of the calling thread.
#[inline]
pub(crate) fn once(
    engine: &Engine,
    settings: impl Into<Settings>,
    due: Duration,
    callback: impl FnOnce(&Firing) + Send + 'static,
) -> OwnedEntry {
    let settings = settings.into();
    match Context::here(engine) {
        None => entry::once(engine, settings, due, callback),
        Some(context) => once_in(context, engine, settings, due, Box::new(callback)),
    }
}

/// As [`WallEntry::start`], in the observer's context of the calling thread.
pub(crate) fn wall(
    engine: &Arc<Engine>,
    at: SystemTime,
    settings: impl Into<Settings>,
    mut callback: impl FnMut(&WallFiring<'_>) + Send + 'static,
) -> WallEntry {
    let settings = settings.into();
    let Some(context) = Context::here(engine) else { return WallEntry::start(engine, at, settings, callback) };
    let context = context.of(&settings);
    WallEntry::start(engine, at, settings, move |tick| {
        let late = tick.now().duration_since(tick.at).ok();
        context.run(tick.entry(), late, || callback(tick));
    })
}

// The rarer way. These functions are compiled once, and not with each callback: so the usual way is
// compiled as if there were no other.

#[cold]
#[inline(never)]
fn overlapping_in(
    context: Context,
    engine: &Engine,
    settings: Settings,
    when: (Duration, Duration),
    callback: Box<dyn Fn(&Firing) + Send + Sync>,
) -> OwnedEntry {
    let context = context.of(&settings);
    entry::overlapping(engine, settings, when, move |tick| context.fire(tick, || callback(tick)))
}

#[cold]
#[inline(never)]
fn exclusive_in(
    context: Context,
    engine: &Engine,
    settings: Settings,
    when: (Duration, Duration),
    mut callback: Box<dyn FnMut(&Firing) + Send>,
) -> OwnedEntry {
    let context = context.of(&settings);
    entry::exclusive(engine, settings, when, move |tick| context.fire(tick, || callback(tick)))
}

#[cold]
#[inline(never)]
fn once_in(
    context: Context,
    engine: &Engine,
    settings: Settings,
    due: Duration,
    callback: Box<dyn FnOnce(&Firing) + Send>,
) -> OwnedEntry {
    let context = context.of(&settings);
    entry::once(engine, settings, due, move |tick| context.fire(tick, || callback(tick)))
}
