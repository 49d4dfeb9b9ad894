//! Loads: the timers that come due, the callbacks that they run, and the record of how late they
//! were.
//!
//! Ground rules. All timers were made before, as in `examples/storm.rs`: a load tells when they
//! come due, and on which queue.

/// Numbers that look random: the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, never 0.
    pub(crate) fn part(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// The queues on which the timers stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    Even,
    /// All timers on one queue.
    OneQueue,
    /// Nine tenths of the timers on the first eighth of the queues.
    Uneven,
}

/// What comes due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Timers a second on the whole machine.
    pub(crate) rate: f64,
    /// So many timers at one instant instead.
    pub(crate) at_once: u64,
    pub(crate) spread: Spread,
    /// Each callback computes for so long, in nanoseconds, beside its store.
    pub(crate) work: u64,
    /// This share of the callbacks sleeps, for so many nanoseconds.
    pub(crate) sleeps: (f64, u64),
    /// So many cores submit jobs that are due at once, each with this pause between two.
    pub(crate) submitters: (usize, u64),
    /// Timers come due from zero to this instant; those after the first fifth are counted.
    pub(crate) until: u64,
    /// The place in [`crate::costs::Costs::node`]: few timers, many in order of memory, or many
    /// scattered.
    pub(crate) memory: usize,
    /// The run ends when all timers have fired, instead of at `until`.
    pub(crate) drain: bool,
    pub(crate) seed: u64,
}

impl Load {
    /// So many timers a second, evenly spread, for as long as 1,500,000 take, at most a second.
    pub(crate) fn even(rate: f64) -> Self {
        let until = (1.5e15 / rate).clamp(2e7, 1e9) as u64;
        Self {
            rate,
            at_once: 0,
            spread: Spread::Even,
            work: 0,
            sleeps: (0.0, 0),
            submitters: (0, 0),
            until,
            memory: if rate > 3e5 { 2 } else { 0 },
            drain: false,
            seed: 1,
        }
    }

    /// The share of the timers that stand on this queue.
    fn share(&self, queue: usize, queues: usize) -> f64 {
        let first = queues.div_ceil(8);
        match self.spread {
            Spread::Even => 1.0 / queues as f64,
            Spread::OneQueue => f64::from(u8::from(queue == 0)),
            Spread::Uneven if first == queues => 1.0 / queues as f64,
            Spread::Uneven if queue < first => 0.9 / first as f64,
            Spread::Uneven => 0.1 / (queues - first) as f64,
        }
    }
}

/// The due points of a queue, made one by one.
#[derive(Clone, Debug)]
pub(crate) struct DuePoints {
    /// The earliest; `u64::MAX`: none is left.
    pub(crate) next: u64,
    gap: f64,
    left: u64,
    until: u64,
    random: Random,
}

impl DuePoints {
    pub(crate) fn new(load: &Load, queue: usize, queues: usize) -> Self {
        let share = load.share(queue, queues);
        let random = Random::new(load.seed.wrapping_mul(1_000_003).wrapping_add(queue as u64));
        let at_once = load.at_once > 0;
        let left = if at_once { (load.at_once as f64 * share) as u64 } else { u64::MAX };
        let gap = if at_once { 0.0 } else { 1e9 / (load.rate * share) };
        let mut due = Self { next: if at_once { 1_000_000 } else { 0 }, gap, left, until: load.until, random };
        if at_once && left == 0 {
            due.next = u64::MAX;
        } else if !at_once {
            due.advance();
        }
        due
    }

    fn advance(&mut self) {
        self.left -= 1;
        let gap = if self.gap > 0.0 { -self.gap * self.random.part().ln() } else { 0.0 };
        self.next = if self.left == 0 || !gap.is_finite() { u64::MAX } else { self.next + gap as u64 };
        if self.gap > 0.0 && self.next > self.until {
            self.next = u64::MAX;
        }
    }

    /// Takes the earliest, if it is due.
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        let due = self.next;
        (due <= now).then(|| self.advance()).map(|()| due)
    }
}

/// Counts of values in steps of a 32nd.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    pub(crate) all: u64,
    pub(crate) max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; 64 * 32], all: 0, max: 0 }
    }

    pub(crate) fn add(&mut self, value: u64) {
        let bits = value.max(32).ilog2();
        let place = (bits as usize - 5) * 32 + (value.max(32) >> (bits - 5)) as usize - 32;
        self.counts[place] += 1;
        self.all += 1;
        self.max = self.max.max(value);
    }

    pub(crate) fn at(&self, part: f64) -> u64 {
        let mut left = (self.all as f64 * part) as u64;
        for (place, &count) in self.counts.iter().enumerate() {
            if count > left {
                return ((place % 32 + 32) as u64) << (place / 32);
            }
            left -= count;
        }
        self.max
    }
}
