//! Schedules as values: periods, cron lines in named time zones, fixed delays, rules of your own.
//!
//! A [`Schedule`] is a period on an anchor grid, a cron line in a time zone, a fixed delay between
//! runs, a rule of your own, or a union of these. It answers which [`Occurrence`] is next, which
//! was before, and which were missed. It has no threads, no clock and no state: the caller gives
//! the instants, and stores the nominal instant of the last run. The crate `timerqueue-scheduler`,
//! which gives these names on, is one such caller.
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use timerqueue_schedule::Schedule;
//!
//! let nightly = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build()?;
//! let last_run = UNIX_EPOCH + Duration::from_secs(1_774_612_800); // read from a store
//! let next = nightly.next_after(last_run).unwrap();
//! assert_eq!(next.due(), last_run + Duration::from_secs(13 * 3600 + 1800));
//! # Ok::<(), timerqueue_schedule::ScheduleError>(())
//! ```
//!
//! # Cron lines
//!
//! Five fields: minute, hour, day of month, month, day of week. With six, seconds come first; with
//! seven, years come last. Blanks stand between fields; upper and lower case are the same. All that
//! is a cron line:
//!
//! ```text
//! line         = [ second ] minute hour day-of-month month day-of-week [ year ] | nickname
//! nickname     = "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly"
//! second, minute, hour, month, year = values { "," values }
//! day-of-month = month-day { "," month-day }
//! month-day    = values | value "W" | "L" [ "-" number ] [ "W" ]
//! day-of-week  = [ "+" ] weekday { "," weekday }
//! weekday      = values | value "L" | values "#" ( "1" .. "5" | "L" )
//! values       = ( "*" | "?" | value | value "-" value ) [ "/" number ]
//! value        = number | "JAN" .. "DEC" (month) | "SUN" .. "SAT" (day-of-week)
//! ```
//!
//! | syntax | meaning |
//! |---|---|
//! | `*`, `?` | each value; `?` in the day fields only |
//! | `1,15` | each item of the list |
//! | numbers | seconds and minutes 0-59, hours 0-23, days 1-31, months 1-12, years 1-9999; days of the week 0-7: both 0 and 7 are Sunday |
//! | `8-18`, `22-2`, `FRI-MON` | ranges; they wrap around the end of the field, except for years. `SUN` at the end is 7, so `MON-SUN` and `SUN-SUN` are all days; `0-0` is Sunday |
//! | `*/10`, `8-18/2`, `5/15` | each tenth value from the first one; each second of a range; each 15th from 5 to the end of the field. `*/2` as year counts from 1970. A step beyond the end leaves the first value alone |
//! | `L`, `L-3` | last day of the month; three days before it (1 to 30 days) |
//! | `15W`, `LW`, `L-3W` | the day from Monday to Friday nearest to the 15th, to the last day, to three days before, in the same month. `31W` is no day of a shorter month |
//! | `5#2`, `MON-FRI#1`, `5L`, `5#L` | second Friday; the first of each weekday; last Friday, twice. As day of week |
//! | `+5` | as day of week: the day of month must match as well, for all items |
//! | nicknames | `0 0 1 1 *` for the first two, `0 0 1 * *`, `0 0 * * 0`, `0 0 * * *` for the next two, `0 * * * *` |
//!
//! Where neither of the two day fields begins with a star, a day needs to match one of them only,
//! as in Vixie's cron: `0 0 13 * 5` is each Friday and each 13th. Where one begins with a star, a
//! day must match both. A star behind a comma does not begin a field.
//!
//! [`Schedule::cron`] takes a zone in front of a line, as in `CRON_TZ=Europe/Berlin 30 2 * * *`, or
//! `TZ=`. [`ScheduleBuilder::each`] takes each second Monday or each third month,
//! [`ScheduleBuilder::except`] leaves out holidays, and [`Schedule::any`] joins lines.
//!
//! No other text is a cron line: [`CronError`] names the field, the value and what would be right.
//!
//! # Daylight saving
//!
//! As in Vixie's cron, a line whose seconds, minutes or hours begin with a star is a **wildcard**:
//! it counts elapsed time. All other lines name **fixed times**. So `*/30 * * * *` is a wildcard,
//! and `0-59/30 0-23 * * *`, with the same values, is not.
//!
//! | | clock goes forward: civil times are skipped | clock goes back: civil times are repeated |
//! |---|---|---|
//! | fixed times: `30 2 * * *`, `0,30 1-5 * * *` | skipped times run at the first instant after the gap, together once | run the first time only |
//! | wildcards: `*/15 * * * *`, `* 2 * * *` | skipped times do not run | run both times |
//!
//! A gap of a day or more, such as Samoa's missing 2011-12-30, removes calendar dates. Fixed times
//! on such a date do not run.
//!
//! # Time zones
//!
//! Zones have IANA names. Zone data is that of the system, so that an update of the system reaches
//! a program without a new build. Where the system has none, a copy in the binary serves. [`Zones`]
//! chooses another source: for tests that need fixed data, [`Zones::bundled`]. A schedule keeps the
//! data it was built with; [`Schedule::to_builder`] and `build` renew it. To build a schedule with
//! a zone, and to deserialize one, reads zone data; no other method does I/O.
//!
//! # Clock steps and missed occurrences
//!
//! An occurrence is identified by its nominal instant. [`Schedule::next_after`] the nominal instant
//! of the last run repeats none, however the wall clock is set. After a time without runs,
//! [`Schedule::latest_due`] is the last missed occurrence, [`Schedule::missed`] lists the last few,
//! [`Schedule::count_missed`] counts up to a limit: none walks over the rest.
//!
//! Where to go from here: [`Schedule`] for the queries and the serialized form, [`ScheduleBuilder`]
//! for bounds, spread and jitter, [`Rule`] for rules of your own.

#![forbid(unsafe_code)]

mod builder;
mod cron;
mod error;
mod form;
mod grid;
mod instant;
mod missed;
mod occurrence;
mod rule;
mod schedule;
mod spread;
mod visible;
mod zones;

pub use builder::ScheduleBuilder;
pub use cron::{CalendarUnit, CronError, CronField};
pub use error::ScheduleError;
pub use form::Loader;
pub use missed::Missed;
pub use occurrence::{After, Before, Occurrence};
pub use rule::Rule;
pub use schedule::Schedule;
pub use visible::is_visible;
pub use zones::Zones;

/// The examples of the README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
