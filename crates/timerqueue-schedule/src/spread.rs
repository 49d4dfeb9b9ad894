//! Spread and jitter: by how much later than its nominal instant an occurrence is due.
//!
//! Both are hashes, without state: every node and every restart computes the same delay. The spread
//! depends on the key alone, the jitter on the key and the nominal instant. The hash is FNV-1a with
//! the finalizer of SplitMix64; it is part of the stable behaviour, and a test holds its values.

/// The delays of a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// The hash of the key.
    key: u64,
    /// Nanoseconds.
    spread: i128,
    /// Nanoseconds.
    jitter: i128,
}

impl Spread {
    pub(crate) fn new(key: &str, spread: i128, jitter: i128) -> Self {
        Self { key: hash(key.as_bytes()), spread, jitter }
    }

    /// No delay for any occurrence.
    pub(crate) fn is_none(&self) -> bool {
        self.spread == 0 && self.jitter == 0
    }

    /// The delay of an occurrence: at least 0, less than both windows together, and less than
    /// `gap`, the time until the next nominal instant. Where the gap is shorter than the windows,
    /// the delay shrinks in proportion.
    pub(crate) fn delay(&self, nominal: i128, gap: Option<i128>) -> i128 {
        let windows = self.spread.saturating_add(self.jitter);
        let of_jitter = finish(self.key ^ hash(&nominal.to_le_bytes()));
        let delay = part(self.spread, self.key) + part(self.jitter, of_jitter);
        match gap {
            // Both are below 2^95 ns, which leaves 32 bits for the fraction.
            Some(gap) if gap < windows => ((delay << 32) / windows * gap) >> 32,
            _ => delay,
        }
    }
}

/// The fraction `hash / 2^64` of a window, in steps of `window / 2^32`.
fn part(window: i128, hash: u64) -> i128 {
    (window * i128::from(hash >> 32)) >> 32
}

fn hash(bytes: &[u8]) -> u64 {
    let fnv = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    finish(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
}

/// Spreads the entropy of all bits over all bits.
fn finish(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instant::{SECOND, duration_nanos};

    #[test]
    fn the_hash_is_stable() {
        assert_eq!([hash(b""), hash(b"report/42")], [0xf52a_15e9_a9b5_e89b, 0xcf03_d74f_7c56_5acf]);
    }

    #[test]
    fn keys_fill_the_window_evenly() {
        let mut tenths = [0; 10];
        for key in 0..10_000 {
            let delay = Spread::new(&format!("job/{key}"), 3600 * SECOND, 0).delay(0, None);
            tenths[(delay / (360 * SECOND)) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }

    #[test]
    fn jitter_differs_by_occurrence_and_spread_does_not() {
        let jitter = Spread::new("a", 0, 60 * SECOND);
        let delays: std::collections::BTreeSet<i128> = (0..100).map(|i| jitter.delay(i * SECOND, None)).collect();
        assert_eq!(delays.len(), 100);
        let spread = Spread::new("a", 60 * SECOND, 0);
        assert!((0..100).all(|i| spread.delay(i * SECOND, None) == spread.delay(0, None)));
    }

    #[test]
    fn a_delay_is_shorter_than_the_gap_and_the_windows() {
        let most = duration_nanos(std::time::Duration::MAX);
        for windows in [(0, 0), (1, 0), (0, 1), (SECOND, SECOND), (most, 0), (most, most)] {
            for key in 0..100 {
                let spread = Spread::new(&key.to_string(), windows.0, windows.1);
                for gap in [1, 2, SECOND, 86_400 * SECOND, most] {
                    let delay = spread.delay(key, Some(gap));
                    assert!(delay >= 0 && delay < gap && (delay == 0 || delay < windows.0 + windows.1));
                }
            }
        }
    }
}
