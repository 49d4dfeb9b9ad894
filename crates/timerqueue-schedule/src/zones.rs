//! Sources of time zone data.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::ScheduleError;

/// A source of time zone data, for [`ScheduleBuilder::build_in`](crate::ScheduleBuilder::build_in)
/// and [`Loader::zones`](crate::Loader::zones).
///
/// Zone data is read when a schedule is built, and not afterwards.
/// [`Schedule::to_builder`](crate::Schedule::to_builder) and another `build` take newer data.
///
/// # Examples
///
/// A test that does not depend on the machine's zone data:
///
/// ```
/// use timerqueue_schedule::{Schedule, Zones};
///
/// let schedule = Schedule::cron("30 2 * * *").zone("europe/berlin").build_in(&Zones::bundled())?;
/// assert_eq!(schedule.zone(), Some("Europe/Berlin"));
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone)]
pub struct Zones {
    database: TimeZoneDatabase,
    own: BTreeMap<String, TimeZone>,
}

impl Zones {
    /// The database of the system, and the bundled copy on systems without one (Windows, small
    /// containers). This source is the default. The environment variable `TZDIR` names another
    /// folder. A long-running process sees an update of the system's data some minutes later,
    /// without a restart.
    #[must_use]
    pub fn system() -> Self {
        Self::over(jiff::tz::db().clone())
    }

    /// The copy in the binary: the same on every machine, and as old as the build's dependencies.
    #[must_use]
    pub fn bundled() -> Self {
        Self::over(TimeZoneDatabase::bundled())
    }

    /// A folder with compiled zone files (TZif), such as `/usr/share/zoneinfo`.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::InvalidZoneData`]: the folder cannot be read or holds no zones.
    pub fn folder(path: impl AsRef<Path>) -> Result<Self, ScheduleError> {
        let invalid = || ScheduleError::InvalidZoneData { name: path.as_ref().display().to_string() };
        let database = TimeZoneDatabase::from_dir(&path).map_err(|_| invalid())?;
        if database.is_definitively_empty() { Err(invalid()) } else { Ok(Self::over(database)) }
    }

    /// Adds a zone, or replaces one, by the contents of a compiled zone file (TZif).
    ///
    /// # Errors
    ///
    /// [`ScheduleError::InvalidZoneData`]: the contents are no TZif data.
    ///
    /// # Examples
    ///
    /// A test of a change of the zone data:
    ///
    /// ```no_run
    /// use timerqueue_schedule::{Schedule, Zones};
    ///
    /// let newer = Zones::bundled().with_zone("Europe/Berlin", &std::fs::read("newer/Europe/Berlin")?)?;
    /// let schedule = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build()?;
    /// let schedule = schedule.to_builder().build_in(&newer)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_zone(mut self, name: &str, tzif: &[u8]) -> Result<Self, ScheduleError> {
        let zone = TimeZone::tzif(name, tzif).map_err(|_| ScheduleError::InvalidZoneData { name: name.to_owned() })?;
        self.own.insert(name.to_ascii_lowercase(), zone);
        Ok(self)
    }

    fn over(database: TimeZoneDatabase) -> Self {
        Self { database, own: BTreeMap::new() }
    }

    /// The zone, by a name in any case.
    ///
    /// Files of the database that each machine has with other contents are no zones: a stored
    /// schedule would mean another time on another machine.
    pub(crate) fn get(&self, name: &str) -> Result<TimeZone, ScheduleError> {
        let lower = name.to_ascii_lowercase();
        let of_machine = ["localtime", "posixrules", "factory"].contains(&&*lower) || lower.starts_with("right/");
        let own = self.own.get(&lower).cloned();
        own.or_else(|| self.database.get(name).ok())
            .filter(|zone| !zone.is_unknown() && !of_machine)
            .ok_or_else(|| ScheduleError::UnknownZone { name: name.to_owned() })
    }
}

impl Default for Zones {
    /// [`Zones::system`].
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Zones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zones").field("own", &self.own.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_others_are_refused() {
        let zones = Zones::bundled();
        assert_eq!(zones.get("AMERICA/new_york").unwrap().iana_name(), Some("America/New_York"));
        for name in
            ["", "Etc/Unknown", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "CET-1CEST", "Europe/Berlin\0"]
        {
            assert_eq!(zones.get(name).unwrap_err(), ScheduleError::UnknownZone { name: name.to_owned() });
            assert!(Zones::system().get(name).is_err(), "{name}");
        }
    }

    #[test]
    fn files_that_differ_between_machines_are_no_zones() {
        let folders = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo"].map(Zones::folder).into_iter().flatten();
        for zones in folders.chain([Zones::system(), Zones::bundled()]) {
            for name in ["localtime", "LocalTime", "posixrules", "Factory", "factory", "right/Europe/Berlin"] {
                assert!(zones.get(name).is_err(), "{name} in {zones:?}");
            }
            assert!(zones.get("Etc/UTC").is_ok());
        }
    }

    #[test]
    fn bad_data_is_refused() {
        assert!(Zones::bundled().with_zone("a", b"TZif").is_err());
        assert!(Zones::folder("/nonexistent/zoneinfo").is_err());
    }
}
