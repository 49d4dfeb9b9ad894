//! The instants of a cron line in a time zone, with the rules for daylight saving.
//!
//! # Segments
//!
//! The transitions of a zone cut time into segments of one offset. A transition that changes the
//! abbreviation alone leaves the offset as it is. Instants are seconds since the Unix epoch; the
//! civil time of an instant is the instant plus the offset. Let a segment begin at the instant T,
//! with the offset `before` up to T and `offset` from T on:
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
//! A line may have all its civil times in gaps, such as `* 2 * 3 SUNL` in Berlin. The search for
//! the next one then asks for each gap up to the last year.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::line::Line;

const DAY: i64 = 86_400;

/// Civil times and instants that far apart have the same order in every zone: offsets are less than
/// 26 h.
const ORDERED: i64 = 3 * DAY;

/// A leap asks the zone twice, as much as the two segments of a usual year do.
const LEAP: i64 = 366 * DAY;

/// A span of time with one offset.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The first instant. `None`: since ever.
    start: Option<i64>,
    /// The first instant of the next segment, and the offset there. `None`: for ever.
    end: Option<(i64, i64)>,
    /// Seconds east of Greenwich.
    offset: i64,
    /// The offset of the segment before.
    before: i64,
}

impl Segment {
    /// The segment that contains the second before the instant, without its part more than
    /// [`ORDERED`] before the instant.
    fn from(zone: &TimeZone, instant: i64) -> Self {
        let start = instant - ORDERED;
        let offset = offset_at(zone, start);
        let mut segment = Self { start: Some(start), end: end_of(zone, start), offset, before: offset };
        while segment.end.is_some_and(|(end, _)| end < instant) {
            segment = segment.next(zone).unwrap_or(segment);
        }
        segment
    }

    /// The segment that contains the instant, without its part after the instant.
    fn upto(zone: &TimeZone, instant: i64) -> Self {
        let offset = offset_at(zone, instant);
        let start = zone.preceding(timestamp(instant + 1)).next().map(|change| change.timestamp().as_second());
        let before = start.map_or(offset, |start| offset_at(zone, start - 1));
        Self { start, end: Some((instant + 1, offset)), offset, before }
    }

    /// The segment behind this one.
    fn next(&self, zone: &TimeZone) -> Option<Self> {
        let (start, offset) = self.end?;
        Some(Self { start: Some(start), end: end_of(zone, start), offset, before: self.offset })
    }

    /// The first civil time that the segment owns.
    fn first(&self, wildcard: bool) -> i64 {
        let Some(start) = self.start else { return i64::MIN };
        let calendar_dates_removed = self.offset - self.before >= DAY;
        start + if wildcard || calendar_dates_removed { self.offset } else { self.before }
    }

    /// The last civil time that the segment owns.
    fn last(&self) -> i64 {
        self.end.map_or(i64::MAX, |(end, _)| end + self.offset - 1)
    }

    /// The instant of a civil time that the segment owns.
    fn instant(&self, civil: i64) -> i64 {
        (civil - self.offset).max(self.start.unwrap_or(i64::MIN))
    }
}

/// The first transition after the instant, and the offset from there on.
fn end_of(zone: &TimeZone, instant: i64) -> Option<(i64, i64)> {
    let change = zone.following(timestamp(instant)).next()?;
    Some((change.timestamp().as_second(), change.offset().seconds().into()))
}

fn offset_at(zone: &TimeZone, instant: i64) -> i64 {
    zone.to_offset(timestamp(instant)).seconds().into()
}

/// The nearest instant that the zone library represents. Cron lines have no occurrences beyond
/// these.
pub(super) fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// The first instant of the line at or after `instant`.
pub(super) fn at_or_after(line: &Line, zone: &TimeZone, instant: i64) -> Option<i64> {
    let (wildcard, instant) = (line.is_wildcard(), timestamp(instant).as_second());
    let mut segment = Segment::from(zone, instant);
    // The search for civil times begins at `from`; `found` is the first one. At a transition,
    // `from` is the end of the segment before, and so the begin of a gap.
    let mut from = segment.first(wildcard).max(instant + segment.offset);
    let mut found = line.at_or_after(from)?;
    while found > segment.last() {
        // A leap is over segments that do not own the civil time.
        let leaps = segment.last() - from > ORDERED && found - segment.last() > LEAP;
        segment = if leaps { Segment::from(zone, found - ORDERED) } else { segment.next(zone)? };
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
    let mut segment = Segment::upto(zone, instant);
    // The search for civil times ends at `upto`; `found` is the last one.
    let mut upto = segment.last();
    let mut found = line.at_or_before(upto)?;
    while found < segment.first(wildcard) {
        let first = segment.first(wildcard);
        let ordered = upto - first > ORDERED && first - found > 2 * ORDERED;
        let previous = if ordered { found + ORDERED } else { segment.start? - 1 };
        segment = Segment::upto(zone, previous);
        let last = segment.last();
        if last > upto || last < found {
            found = line.at_or_before(last)?;
        }
        upto = last;
    }
    Some(segment.instant(found))
}
