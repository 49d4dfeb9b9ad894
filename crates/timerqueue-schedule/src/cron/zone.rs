//! The instants of a cron line in a time zone, with the rules for daylight saving.
//!
//! # Segments
//!
//! The transitions of a zone cut time into segments of one offset. Instants are seconds since the
//! Unix epoch; the civil time of an instant is the instant plus the offset. Let a segment begin at
//! the instant T, with the offset `before` up to T and `offset` from T on:
//!
//! ```text
//!   gap (offset > before): civil times T+before .. T+offset do not exist
//!   repeat (offset < before): civil times T+offset .. T+before exist twice
//! ```
//!
//! Each segment owns a range of civil times, which ends where the clock stands at the segment's
//! end. The two kinds of lines differ in the begin of the range only:
//!
//! * **Wildcard**: T+offset. Civil times in a gap belong to no segment; repeated ones belong to
//!   both.
//! * **Fixed**: T+before. Repeated civil times belong to the segment before T alone. Civil times in
//!   a gap belong to this segment, and their instant is T. A gap of a day or more removes calendar
//!   dates: its civil times belong to no segment.
//!
//! An owned civil time c has the instant `max(c - offset, T)`. A search asks the line for one civil
//! time in the range of the first segment, then of the next. It leaps over segments that a civil
//! time far away makes useless.
//!
//! A line may have all its civil times in gaps, such as `* 2 * 3 SUNL` in Berlin. Dates, days of
//! the week and the rules of zones repeat every 400 years. So the search for a line that repeats as
//! well ends 400 years after the last rule of the data.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::line::Line;

const DAY: i64 = 86_400;

/// Civil times and instants that far apart have the same order in every zone: offsets are less than
/// 26 h.
const ORDERED: i64 = 3 * DAY;

/// 2100-01-01: no zone data has a rule of its own for later years.
const RULES_END: i64 = 4_102_444_800;

/// Dates and days of the week repeat after 400 years.
const REPEAT: i64 = 146_097 * DAY;

/// A span of time with one offset.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The first instant. `None`: since ever.
    start: Option<i64>,
    /// The first instant of the next segment. `None`: for ever.
    end: Option<i64>,
    /// Seconds east of Greenwich.
    offset: i64,
    /// The offset of the segment before.
    before: i64,
}

impl Segment {
    /// The segment that contains the instant.
    fn at(zone: &TimeZone, instant: i64) -> Self {
        let here = timestamp(instant);
        let offset = offset_at(zone, here);
        let start = zone.preceding(timestamp(instant + 1)).map(|change| change.timestamp());
        // The database also lists changes of the abbreviation alone.
        let start = start.map(|at| (at.as_second(), offset_at(zone, timestamp(at.as_second() - 1))));
        let start = start.into_iter().find(|&(_, before)| before != offset);
        Self {
            start: start.map(|(at, _)| at),
            end: end_of(zone, here, offset),
            offset,
            before: start.map_or(offset, |(_, before)| before),
        }
    }

    /// The segment behind this one.
    fn next(&self, zone: &TimeZone) -> Option<Self> {
        let start = self.end?;
        let here = timestamp(start);
        let offset = offset_at(zone, here);
        Some(Self { start: Some(start), end: end_of(zone, here, offset), offset, before: self.offset })
    }

    /// The first civil time that the segment owns.
    fn first(&self, wildcard: bool) -> i64 {
        let Some(start) = self.start else { return i64::MIN };
        let calendar_dates_removed = self.offset - self.before >= DAY;
        start + if wildcard || calendar_dates_removed { self.offset } else { self.before }
    }

    /// The last civil time that the segment owns.
    fn last(&self) -> i64 {
        self.end.map_or(i64::MAX, |end| end + self.offset - 1)
    }

    /// The instant of a civil time that the segment owns.
    fn instant(&self, civil: i64) -> i64 {
        (civil - self.offset).max(self.start.unwrap_or(i64::MIN))
    }
}

/// The first instant from here on with another offset.
fn end_of(zone: &TimeZone, here: Timestamp, offset: i64) -> Option<i64> {
    let end = zone.following(here).find(|change| i64::from(change.offset().seconds()) != offset);
    end.map(|change| change.timestamp().as_second())
}

fn offset_at(zone: &TimeZone, at: Timestamp) -> i64 {
    i64::from(zone.to_offset(at).seconds())
}

/// The nearest instant that the zone library represents. Cron lines have no occurrences beyond
/// these.
pub(super) fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// The first instant of the line at or after `instant`.
pub(super) fn at_or_after(line: &Line, zone: &TimeZone, instant: i64) -> Option<i64> {
    let (wildcard, instant) = (line.is_wildcard(), timestamp(instant).as_second());
    let mut segment = Segment::at(zone, instant);
    // The search for civil times begins at `from`; `found` is the first one. Civil times in a gap
    // have the instant of the segment's start.
    let first = segment.first(wildcard);
    let mut from = if segment.start == Some(instant) { first } else { first.max(instant + segment.offset) };
    let mut found = line.at_or_after(from)?;
    let end = if line.repeats() { instant.max(RULES_END) + REPEAT } else { i64::MAX };
    while found > segment.last() {
        if found > end {
            return None;
        }
        let ordered = segment.last() - from > ORDERED && found - segment.last() > 2 * ORDERED;
        // No segment between here and there owns the civil time.
        segment = if ordered { Segment::at(zone, found - ORDERED) } else { segment.next(zone)? };
        let first = segment.first(wildcard);
        if first < from || first > found {
            found = line.at_or_after(first)?;
        }
        from = first;
    }
    Some(segment.instant(found))
}

/// The last instant of the line at or before `instant`.
pub(super) fn at_or_before(line: &Line, zone: &TimeZone, instant: i64) -> Option<i64> {
    let (wildcard, instant) = (line.is_wildcard(), timestamp(instant).as_second());
    let mut segment = Segment::at(zone, instant);
    // The search for civil times ends at `upto`; `found` is the last one.
    let mut upto = segment.last().min(instant + segment.offset);
    let mut found = line.at_or_before(upto)?;
    while found < segment.first(wildcard) {
        let first = segment.first(wildcard);
        let ordered = upto - first > ORDERED && first - found > 2 * ORDERED;
        let previous = if ordered { found + ORDERED } else { segment.start? - 1 };
        segment = Segment::at(zone, previous);
        let last = segment.last();
        if last > upto || last < found {
            found = line.at_or_before(last)?;
        }
        upto = last;
    }
    Some(segment.instant(found))
}
