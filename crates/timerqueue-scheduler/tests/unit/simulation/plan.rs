//! What a seed decides: the faults of a history, and all random numbers.
//!
//! Ground rules. A plan is a value that depends on the seed alone. Instants are nanoseconds of
//! virtual time since the begin of the history.

use std::time::Duration;

/// The lease of a run, the safety look of a node and its patience with a lost answer: those of a
/// `PostgresStore`.
pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const SAFETY: Duration = Duration::from_secs(20);
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Users and faults act up to this instant.
pub(super) const PROGRAM: u64 = secs(300);
/// From this instant on no fault is left but lost notices.
pub(super) const CALM: u64 = PROGRAM + secs(100);

pub(super) const fn secs(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

pub(super) const fn millis(millis: u64) -> u64 {
    millis * 1_000_000
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// What goes wrong. Times in nanoseconds, steps of clocks in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The link between a node and the server is cut, in one direction or in both.
    Cut { node: usize, up: bool, down: bool, lasts: u64 },
    /// A node does nothing, and goes on later.
    Stop { node: usize, lasts: u64 },
    /// A node is gone, and starts anew later.
    Kill { node: usize, lasts: u64 },
    /// The server refuses some requests of a node, and some answers are lost.
    Flaky { node: usize, lasts: u64 },
    /// Requests and answers of a node take seconds.
    Slow { node: usize, lasts: u64 },
    /// The wall clock of a node is set.
    NodeClock { node: usize, by: i64 },
    /// The server is away. What was committed stays.
    Down { lasts: u64 },
    /// The wall clock of the server is set, as when a standby takes over.
    ServerClock { by: i64 },
    /// All notices are lost.
    Deaf { lasts: u64 },
}

impl Fault {
    /// The node that may lose its leases by the fault, and for how long. `None`: all nodes.
    pub(super) fn disturbs(self) -> Option<(Option<usize>, u64)> {
        match self {
            Self::Cut { node, lasts, .. }
            | Self::Stop { node, lasts }
            | Self::Flaky { node, lasts }
            | Self::Slow { node, lasts } => Some((Some(node), lasts)),
            Self::Kill { node, .. } => Some((Some(node), u64::MAX / 2)),
            Self::Down { lasts } => Some((None, lasts)),
            Self::ServerClock { by } => (by > 0).then_some((None, 0)),
            Self::NodeClock { .. } | Self::Deaf { .. } => None,
        }
    }
}

/// The plan of a history.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The first one has no handlers.
    pub(super) nodes: usize,
    /// How far the wall clock of each node is ahead, in seconds.
    pub(super) skews: Vec<i64>,
    pub(super) faults: Vec<(u64, Fault)>,
    /// Percent of notices that are lost at any time.
    pub(super) loss: u64,
    /// Some jobs end their processes.
    pub(super) poison: bool,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = random.between(3, 4) as usize;
        let skews = (0..nodes).map(|_| random.pick(&[0, 0, 90, -3_600, 1, -1, 86_400])).collect();
        let loss = random.pick(&[0, 0, 5, 50]);
        let steps = random.percent(25);
        let mut faults: Vec<(u64, Fault)> = (0..random.below(9))
            .map(|_| (random.between(secs(5), PROGRAM), fault(&mut random, nodes, steps)))
            .collect();
        faults.sort_by_key(|&(at, _)| at);
        Self { seed, nodes, skews, faults, loss, poison: seed % 3 == 1 }
    }

    /// Whether the server's clock is set.
    pub(super) fn steps(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::ServerClock { .. }))
    }

    /// How far the server's clock is set back in all.
    pub(super) fn back(&self) -> u64 {
        let back = |&(_, fault): &(u64, Fault)| match fault {
            Fault::ServerClock { by } if by < 0 => secs(by.unsigned_abs()),
            _ => 0,
        };
        self.faults.iter().map(back).sum()
    }
}

fn fault(random: &mut Random, nodes: usize, steps: bool) -> Fault {
    let node = random.below(nodes as u64) as usize;
    // Shorter than the patience, shorter than a lease, and longer.
    let lasts = match random.below(3) {
        0 => random.between(millis(100), secs(8)),
        1 => random.between(secs(8), secs(28)),
        _ => random.between(secs(31), secs(90)),
    };
    match random.below(if steps { 20 } else { 18 }) {
        0..=3 => {
            let (up, down) = random.pick(&[(true, true), (true, false), (false, true)]);
            Fault::Cut { node, up, down, lasts }
        }
        4..=6 => Fault::Stop { node, lasts },
        7..=9 => Fault::Kill { node, lasts },
        10..=11 => Fault::Flaky { node, lasts },
        12 => Fault::Slow { node, lasts },
        13..=14 => Fault::NodeClock { node, by: random.pick(&[90, -90, 3_600, -3_600, 1, -1, 40_000_000]) },
        15 => Fault::Down { lasts: random.between(millis(50), secs(40)) },
        16..=17 => Fault::Deaf { lasts },
        _ => Fault::ServerClock { by: random.pick(&[-300, -40, -1, 1, 40, 300]) },
    }
}
