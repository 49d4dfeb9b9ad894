//! Values in JSON: as stores keep them, and as people read them.
//!
//! Ground rules. A stored form never changes: nodes of older versions read it, and so do nodes of
//! newer ones. The tests of `store::text` hold literal texts. Most types have one form for both.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Catchup, Overlap, Recurrence};
use crate::Schedule;

/// In microseconds, rounded up.
pub(crate) fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

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

/// The boxed form of it.
pub(crate) mod recurrence {
    use serde::{Deserializer, Serializer};

    use crate::store::Recurrence;
    use crate::store::form::StoredRecurrence;

    pub(crate) fn serialize<S: Serializer>(recurrence: &Recurrence, to: S) -> Result<S::Ok, S::Error> {
        StoredRecurrence::serialize(recurrence, to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<Recurrence>, D::Error> {
        StoredRecurrence::deserialize(from).map(Box::new)
    }
}
