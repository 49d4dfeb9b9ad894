//! Shared by the tests: instants by text, and random numbers with a seed.
#![allow(dead_code)] // each test file uses a part of it

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue_schedule::{Occurrence, Schedule, Zones};

/// The instant of a text in RFC 3339.
pub(crate) fn at(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().expect("RFC 3339").into()
}

pub(crate) fn seconds(duration: u64) -> Duration {
    Duration::from_secs(duration)
}

/// The instant with this number of seconds since the Unix epoch.
pub(crate) fn unix(second: i64) -> SystemTime {
    let distance = Duration::from_secs(second.unsigned_abs());
    if second < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Seconds since the Unix epoch, of an instant without a fraction.
pub(crate) fn second(instant: SystemTime) -> i64 {
    jiff::Timestamp::try_from(instant).expect("in range").as_second()
}

/// A cron line in a zone of the bundled data, which is the same on each machine.
pub(crate) fn cron(line: &str, zone: &str) -> Schedule {
    Schedule::cron(line).zone(zone).build_in(&Zones::bundled()).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The nominal instants as civil times of the zone with their offset.
pub(crate) fn civil(occurrences: &[Occurrence], zone: &str) -> Vec<String> {
    let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).expect("a zone");
    let text = |occurrence: &Occurrence| {
        let timestamp = jiff::Timestamp::try_from(occurrence.nominal()).expect("in range");
        timestamp.to_zoned(zone.clone()).strftime("%m-%d %H:%M %:z").to_string()
    };
    occurrences.iter().map(text).collect()
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }
}
