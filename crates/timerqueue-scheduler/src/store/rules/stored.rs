//! The stored form of a schedule with its rules.
//!
//! Ground rules. It never changes, since nodes of older versions read it, and so do nodes of newer
//! ones. The tests of `store::text` hold literal texts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Schedule;
use crate::store::{Catchup, Overlap, Recurrence};

/// Durations as microseconds, or nothing.
mod micros_or_none {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(crate::store::form::micros_of).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_micros))
    }
}

/// A schedule with its rules, as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Recurrence")]
pub(crate) struct StoredRecurrence {
    schedule: Schedule,
    catchup: Catchup,
    #[serde(default, with = "micros_or_none")]
    grace: Option<Duration>,
    overlap: Overlap,
}
