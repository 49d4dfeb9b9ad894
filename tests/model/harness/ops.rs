//! Operations, decoded from bytes: eight for each.
//!
//! Ground rules. Every eight bytes are an operation; equal bytes are equal operations; fewer bytes
//! are fewer operations. So a property test and a fuzzer can make, shrink and keep them.

use std::time::Duration;

use timerqueue::MissedTicks;

use super::reference::{CLOCKS, Kind};

pub(crate) const TIMERS: usize = 8;
pub(crate) const FUTURES: usize = 6;
pub(crate) const SOURCES: usize = 5;
pub(crate) const REGISTRATIONS: usize = 8;
pub(crate) const RUNTIMES: usize = 3;
pub(crate) const WALLS: usize = 4;
pub(crate) const GUARDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Delay,
    Timeout,
    Cancelled,
    Either,
    /// A timeout with a token.
    Both,
    /// The same future, until a token is cancelled.
    Until,
    Interval(MissedTicks),
}

/// A time of the wall clock, relative to its current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByWall {
    pub(crate) by: Duration,
    pub(crate) back: bool,
}

/// The end of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Going {
    Dispose,
    DisposeAndWait,
    DisposeAsync,
    Drop,
    Detach,
}

/// The end of a drop guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardEnd {
    Drop,
    Disarm,
    /// By a panic of the scope that it guards.
    Unwind,
}

/// `script` is the number of another operation of the same program, which the callback carries out.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create {
        slot: usize,
        runtime: usize,
        kind: Kind,
        policy: MissedTicks,
        leeway: Duration,
        due: Duration,
        period: Duration,
        script: usize,
        /// The payload of the callback panics when it is dropped.
        spiteful: bool,
    },
    Change {
        slot: usize,
        due: Duration,
        period: Duration,
    },
    /// Changes the timer of the running callback. A wall timer is changed relative to the wall
    /// clock.
    ChangeOwn {
        due: Duration,
        period: Duration,
    },
    DisposeOwn,
    Dispose {
        slot: usize,
    },
    DisposeAndWait {
        slot: usize,
    },
    DisposeAsync {
        slot: usize,
    },
    Drop {
        slot: usize,
    },
    Detach {
        slot: usize,
    },
    Panic,
    Advance {
        clock: usize,
        by: Duration,
    },
    ToNextDue {
        clock: usize,
    },
    Stall {
        clock: usize,
        by: Duration,
    },
    Wall {
        slot: usize,
        runtime: usize,
        at: ByWall,
        script: usize,
        spiteful: bool,
    },
    ChangeWall {
        slot: usize,
        at: ByWall,
    },
    EndWall {
        slot: usize,
        how: Going,
    },
    SetWall {
        clock: usize,
        to: ByWall,
    },
    Suspend {
        clock: usize,
        by: Duration,
    },
    Future {
        slot: usize,
        runtime: usize,
        make: Make,
        after: Duration,
        source: usize,
    },
    Poll {
        slot: usize,
        waker: u8,
    },
    Reset {
        slot: usize,
        after: Duration,
        absolute: bool,
    },
    /// The flag of a timeout's future is set, or an interval is stopped.
    Finish {
        slot: usize,
    },
    DropFuture {
        slot: usize,
    },
    Source {
        slot: usize,
        runtime: usize,
    },
    Linked {
        slot: usize,
        parents: [usize; 2],
    },
    Cancel {
        slot: usize,
    },
    CancelAfter {
        slot: usize,
        after: Duration,
    },
    TryReset {
        slot: usize,
    },
    DropSource {
        slot: usize,
    },
    Register {
        slot: usize,
        source: usize,
        script: usize,
        panics: bool,
        spiteful: bool,
    },
    Unregister {
        slot: usize,
        how: u8,
    },
    Guard {
        slot: usize,
        source: usize,
    },
    EndGuard {
        slot: usize,
        how: GuardEnd,
    },
    Shutdown {
        slot: usize,
        by_drop: bool,
    },
    Start {
        slot: usize,
        clock: usize,
        queues: usize,
        /// On the clock that goes on in suspend.
        boot: bool,
    },
}

const fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Durations on both sides of every edge of the queue: slots, windows, groups, the overflow list,
/// and the end of the clock.
const SPANS: [Duration; 32] = [
    Duration::ZERO,
    Duration::ZERO,
    ns(1),
    ns(999),
    ns(100_000),
    ns(262_143),
    ns(262_144),
    ns(1_000_000),
    ns(3_000_000),
    ns(10_000_000),
    ns(10_000_000),
    ns(50_000_000),
    ns(332_999_999),
    ns(333_000_000),
    ns(333_000_001),
    ns(700_000_000),
    secs(1),
    secs(5),
    secs(60),
    secs(341),
    secs(660),
    secs(682),
    secs(700),
    secs(3_600),
    secs(96 * 3_600),
    secs(97 * 3_600),
    secs(98 * 3_600),
    secs(500 * 3_600),
    secs(10 * 365 * 86_400),
    secs(500 * 365 * 86_400),
    Duration::MAX,
    Duration::MAX,
];

const PERIODS: [Duration; 16] = [
    Duration::ZERO,
    Duration::MAX,
    Duration::MAX,
    Duration::MAX,
    ns(100_000),
    ns(262_144),
    ns(999_999),
    ns(10_000_000),
    ns(50_000_000),
    ns(333_000_000),
    secs(1),
    secs(60),
    secs(700),
    secs(98 * 3_600),
    secs(10 * 365 * 86_400),
    ns(u64::MAX),
];

const LEEWAYS: [Duration; 8] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::ZERO,
    Duration::ZERO,
    ns(999),
    ns(1_000_000),
    ns(7_000_000),
    secs(3_600),
];

fn span(a: u8, b: u8) -> Duration {
    let jitter = if b % 16 == 15 { ns(u64::from(b)) } else { Duration::ZERO };
    SPANS[usize::from(a) % SPANS.len()].saturating_add(jitter)
}

fn period(a: u8) -> Duration {
    PERIODS[usize::from(a) % PERIODS.len()]
}

fn policy(a: u8) -> MissedTicks {
    [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay][usize::from(a) % 4]
}

fn by_wall(a: u8, b: u8) -> ByWall {
    ByWall { by: span(a, b), back: b % 4 == 3 }
}

impl Op {
    pub(crate) fn decode([code, a, b, c, d, e, f, g]: [u8; 8]) -> Self {
        let at = |byte: u8, of: usize| usize::from(byte) % of;
        let timer = at(a, TIMERS);
        let (clock, runtime, source) = (at(a, CLOCKS), at(b, RUNTIMES), at(b, SOURCES));
        match code % 64 {
            0..8 => Self::Create {
                slot: timer,
                runtime,
                kind: [Kind::Overlapping, Kind::Exclusive, Kind::Once][at(c, 3)],
                policy: policy(g),
                leeway: LEEWAYS[at(c / 3, LEEWAYS.len())],
                due: span(d, e),
                period: period(f),
                script: usize::from(g),
                spiteful: c >= 224,
            },
            8..11 => Self::Change { slot: timer, due: span(b, c), period: period(d) },
            11 => Self::ChangeOwn { due: span(b, c), period: period(d) },
            12 => Self::DisposeOwn,
            13 => Self::Dispose { slot: timer },
            14 => Self::DisposeAndWait { slot: timer },
            15 => Self::DisposeAsync { slot: timer },
            16 => Self::Drop { slot: timer },
            17 => Self::Detach { slot: timer },
            18 => Self::Panic,
            19..22 => Self::Advance { clock, by: span(b, c) },
            22..25 => Self::ToNextDue { clock },
            25 | 48 => Self::Stall { clock, by: span(b, c) },
            26..29 => Self::Future {
                slot: at(a, FUTURES),
                runtime,
                make: [
                    Make::Delay,
                    Make::Delay,
                    Make::Timeout,
                    Make::Cancelled,
                    Make::Either,
                    Make::Both,
                    Make::Until,
                    Make::Interval(policy(e)),
                ][at(c, 8)],
                after: span(d, f),
                source: at(g, SOURCES),
            },
            29..34 => Self::Poll { slot: at(a, FUTURES), waker: b % 3 },
            34 => Self::Reset { slot: at(a, FUTURES), after: span(b, c), absolute: d % 2 == 0 },
            35 => Self::Finish { slot: at(a, FUTURES) },
            36 => Self::DropFuture { slot: at(a, FUTURES) },
            37 => Self::Source { slot: at(a, SOURCES), runtime },
            38 | 39 => Self::Linked { slot: at(a, SOURCES), parents: [source, at(c, SOURCES)] },
            40 => Self::Cancel { slot: at(a, SOURCES) },
            41 => Self::CancelAfter { slot: at(a, SOURCES), after: span(b, c) },
            42 => Self::TryReset { slot: at(a, SOURCES) },
            43 => Self::DropSource { slot: at(a, SOURCES) },
            44 | 45 => Self::Register {
                slot: at(a, REGISTRATIONS),
                source,
                script: usize::from(c),
                panics: d % 8 == 0,
                spiteful: e % 8 == 7,
            },
            46 => Self::Unregister { slot: at(a, REGISTRATIONS), how: b % 4 },
            51..54 => Self::Wall {
                slot: at(a, WALLS),
                runtime,
                at: by_wall(c, d),
                script: usize::from(e),
                spiteful: f >= 224,
            },
            54 => Self::ChangeWall { slot: at(a, WALLS), at: by_wall(b, c) },
            55 => Self::EndWall {
                slot: at(a, WALLS),
                how: [Going::Dispose, Going::DisposeAndWait, Going::DisposeAsync, Going::Drop, Going::Detach][at(b, 5)],
            },
            56 | 57 => Self::SetWall { clock, to: by_wall(b, c) },
            58 => Self::Suspend { clock, by: span(b, c) },
            59 => Self::Guard { slot: at(a, GUARDS), source },
            60 => Self::EndGuard {
                slot: at(a, GUARDS),
                how: [GuardEnd::Drop, GuardEnd::Disarm, GuardEnd::Unwind][at(b, 3)],
            },
            _ if b % 4 == 0 => Self::Shutdown { slot: at(a, RUNTIMES), by_drop: c % 2 == 0 },
            _ => Self::Start { slot: at(a, RUNTIMES), clock: at(c, CLOCKS), queues: 1 + at(d, 4), boot: e % 2 == 1 },
        }
    }
}
