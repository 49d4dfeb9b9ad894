//! Values in JSON, as people and programs read them: instants in RFC 3339, durations in seconds.
//!
//! Ground rules. What stores keep has whole microseconds instead: `store::text`, `rules::stored`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// In microseconds, rounded up.
pub(crate) fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// A value that is left out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An instant for people: RFC 3339.
pub(crate) fn rfc3339<S: Serializer>(at: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    match jiff::Timestamp::try_from(*at) {
        Ok(at) => to.collect_str(&at),
        Err(_) => to.collect_str(&format_args!("{at:?}")),
    }
}

pub(crate) fn rfc3339_or_none<S: Serializer>(at: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    at.map(Instant).serialize(to)
}

/// An instant of a list.
#[derive(Serialize)]
pub(crate) struct Instant(#[serde(serialize_with = "rfc3339")] pub(crate) SystemTime);

/// A duration for people: seconds.
pub(crate) fn seconds<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    duration.as_secs_f64().serialize(to)
}

pub(crate) fn seconds_or_none<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(to)
}

pub(crate) fn json_or_none<S: Serializer>(text: &Option<Arc<str>>, to: S) -> Result<S::Ok, S::Error> {
    match text {
        Some(text) => json(text, to),
        None => to.serialize_none(),
    }
}

/// JSON as it is; as a text if a person has spoilt it.
pub(crate) fn json<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(json) => json.serialize(to),
        Err(_) => text.serialize(to),
    }
}
