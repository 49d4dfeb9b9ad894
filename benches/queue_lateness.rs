//! The lateness of a delivery from a delay queue. Claim: p50 within 20 % of a `Delay` on the same
//! executor; and for a thread that blocks, of a condition variable that the callback of a timer
//! notifies.
//!
//! The four take turns with the same waits, 1 to 10 ms, sample by sample in the same run, since the
//! lateness of a wake-up varies from day to day. The waiting task or thread reads the
//! lateness as soon as its wait has returned.

#[path = "common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use timerqueue::{Delay, DelayQueue, OnceTimer, Runtime, Timestamp};

use self::common::{Random, is_bench_run, quantile};

const NEAREST: Duration = Duration::from_millis(1);
const FURTHEST: Duration = Duration::from_millis(10);

struct Contenders {
    runtime: Runtime,
    queue: DelayQueue<u32, u32>,
    fired: Arc<(Mutex<bool>, Condvar)>,
}

impl Contenders {
    const NAMES: [&str; 4] =
        ["`Delay`, `.await`", "`DelayQueue`, `.await`", "callback and condition variable", "`DelayQueue`, blocking"];

    fn late(&self, due: Timestamp) -> u64 {
        self.runtime.now().checked_duration_since(due).expect("nothing is early").as_nanos() as u64
    }

    fn sample(&self, contender: usize, wait: Duration) -> u64 {
        let due = self.runtime.now() + wait;
        match contender {
            0 => smol::block_on(self.runtime.enter(|| Delay::until(due))),
            1 => {
                self.queue.insert(1, 1, due).expect("a free key");
                smol::block_on(self.queue.recv()).expect("open");
            }
            2 => {
                *self.fired.0.lock() = false;
                let fired = Arc::clone(&self.fired);
                let notify = move |_: &timerqueue::Tick<'_>| {
                    *fired.0.lock() = true;
                    fired.1.notify_one();
                };
                let timer = OnceTimer::on(&self.runtime, due.saturating_duration_since(self.runtime.now()), notify);
                let mut fired = self.fired.0.lock();
                self.fired.1.wait_while(&mut fired, |fired| !*fired);
                drop(timer);
            }
            _ => {
                self.queue.insert(1, 1, due).expect("a free key");
                self.queue.recv_blocking().expect("open");
            }
        }
        self.late(due)
    }
}

fn main() {
    let n = if is_bench_run() { 1_000 } else { 5 };
    let runtime = Runtime::builder().start().expect("the runtime starts");
    let contenders = Contenders { queue: DelayQueue::on(&runtime), runtime, fired: Arc::default() };
    let mut random = Random::new(17);
    let mut samples: [Vec<u64>; 4] = Default::default();
    for i in 0..n {
        let wait = random.between(NEAREST, FURTHEST);
        for turn in 0..4 {
            let contender = (i + turn) % 4;
            samples[contender].push(contenders.sample(contender, wait));
        }
    }
    println!("{n} samples each; lateness in us.\n");
    println!("| | p50 | p90 | p99 | ratio p50 |");
    println!("|---|--:|--:|--:|--:|");
    samples.iter_mut().for_each(|samples| samples.sort_unstable());
    for (i, sorted) in samples.iter().enumerate() {
        print!("| {} |", Contenders::NAMES[i]);
        for q in [0.5, 0.9, 0.99] {
            print!(" {:.1} |", quantile(sorted, q) as f64 / 1e3);
        }
        let peer = &samples[i & !1];
        println!(" {:.2} |", quantile(sorted, 0.5) as f64 / quantile(peer, 0.5) as f64);
    }
}
