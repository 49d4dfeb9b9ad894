//! A cache whose entries live for a time: a million keys in a delay queue, on virtual time.
//!
//! ```text
//! cargo run --release --example cache_ttl [keys]       # a million; without `--release` a tenth
//! ```
//!
//! The delay queue holds the values, so that there is no second table to keep in step: a value is
//! in the cache exactly as long as in the queue. One thread removes what has lived long enough.
//! Every second key is read once and lives longer from then on.

use std::hash::Hash;
use std::time::{Duration, Instant};

use timerqueue::{DelayQueue, ManualClock, Runtime};

/// A cache with a time to live for all entries.
struct Cache<K, V> {
    entries: DelayQueue<K, V>,
    time_to_live: Duration,
}

impl<K: Eq + Hash + Send + Sync + 'static, V: Send + 'static> Cache<K, V> {
    fn on(runtime: &Runtime, time_to_live: Duration) -> Self {
        Self { entries: DelayQueue::on(runtime), time_to_live }
    }

    /// Puts a value into the cache, and returns the value that was there.
    fn put(&self, key: K, value: V) -> Option<V> {
        self.entries.replace(key, value, self.time_to_live).ok().flatten()
    }

    /// Whether the key is in the cache; if so, its time to live begins anew.
    fn touch(&self, key: &K) -> bool {
        self.entries.reset(key, self.time_to_live)
    }

    fn take(&self, key: &K) -> Option<V> {
        self.entries.remove(key)
    }

    /// Drops the entries that have lived long enough. Returns their number.
    fn sweep(&self) -> usize {
        std::iter::from_fn(|| self.entries.try_recv().ok()).count()
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}

fn timed<T>(what: &str, keys: u64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    println!("{what}: {:.0} ns a key", begun.elapsed().as_nanos() as f64 / keys.max(1) as f64);
    result
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const MINUTE: Duration = Duration::from_secs(60);
    // `cargo test` runs this without optimisation, and may give a name as argument.
    let usual = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let keys: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(usual);
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start()?;
    let cache = Cache::on(&runtime, MINUTE);

    timed("put", keys, || {
        for key in 0..keys {
            assert!(cache.put(key, key * 2).is_none());
        }
    });
    clock.advance(MINUTE / 2);
    timed("touch every second key", keys / 2, || assert!((0..keys).step_by(2).all(|key| cache.touch(&key))));
    assert_eq!((cache.sweep(), cache.len() as u64), (0, keys), "nothing has lived for a minute");

    clock.advance(MINUTE / 2);
    let gone = timed("sweep the others", keys / 2, || cache.sweep());
    assert_eq!(gone as u64, keys / 2, "those that were not read");
    assert_eq!((cache.take(&0), cache.take(&1)), (Some(0), None));

    clock.advance(MINUTE / 2);
    cache.sweep();
    assert_eq!(cache.len(), 0);
    println!("{keys} keys came and went in {:?} of virtual time", clock.now().as_duration());
    Ok(())
}
