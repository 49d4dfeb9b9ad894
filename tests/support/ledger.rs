//! A ledger of timers that must all fire, once each and never early.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue::{Runtime, Timer, Waited};

use crate::support::{NEVER, eventually};

/// A ledger of timers that must all fire, once each and never early.
pub(crate) struct Ledger {
    fired: Vec<Arc<AtomicU64>>,
    late_ns: Arc<Vec<AtomicI64>>,
    timers: Vec<Timer>,
}

impl Ledger {
    /// `n` one-shots, due evenly over `span`.
    pub(crate) fn spread(runtime: &Runtime, n: u32, span: Duration) -> Self {
        let late_ns: Arc<Vec<AtomicI64>> = Arc::new((0..n).map(|_| AtomicI64::new(i64::MIN)).collect());
        let fired: Vec<Arc<AtomicU64>> = (0..n).map(|_| Arc::default()).collect();
        let timers = (0..n)
            .map(|i| {
                let due = span * i / n;
                let armed = Instant::now();
                let (fired, late_ns) = (Arc::clone(&fired[i as usize]), Arc::clone(&late_ns));
                Timer::on(runtime, due, NEVER, move |_| {
                    let late = armed.elapsed().as_nanos() as i64 - due.as_nanos() as i64;
                    late_ns[i as usize].store(late, Ordering::SeqCst);
                    fired.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        Self { fired, late_ns, timers }
    }

    /// Waits until all timers have fired. Returns the lateness of each, sorted.
    pub(crate) fn settle(self) -> Vec<i64> {
        eventually("all timers fire", || self.fired.iter().all(|fired| fired.load(Ordering::SeqCst) > 0));
        for timer in &self.timers {
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        }
        assert!(self.fired.iter().all(|fired| fired.load(Ordering::SeqCst) == 1), "once each");
        let mut late: Vec<i64> = self.late_ns.iter().map(|ns| ns.load(Ordering::SeqCst)).collect();
        late.sort_unstable();
        assert!(late[0] >= 0, "early by {} ns", -late[0]);
        late
    }
}

/// A runtime whose threads have this name.
pub(crate) fn start(name: &str) -> Runtime {
    Runtime::builder().thread_name(name).start().expect("the system has threads and alarms")
}
