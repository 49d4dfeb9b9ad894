//! Timeouts that never fire: creates and disposes a million timers of 30 s, and prints what a pair
//! costs.
//!
//! ```text
//! cargo run --release --example churn [pairs]
//! strace -f -c target/release/examples/churn     # how many system calls that took
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use timerqueue::{Runtime, Timer};

const DUE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pairs: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |arg| arg.parse())?;
    let runtime = Runtime::global();

    let start = Instant::now();
    for _ in 0..pairs {
        let timer = Timer::on(runtime, DUE, Duration::ZERO, |_| unreachable!("disposed long before"));
        drop(black_box(timer)); // dropping the handle disposes the timer
    }
    let took = start.elapsed();

    println!(
        "{pairs} timers of {DUE:?} created and disposed, {:.1} ns each",
        took.as_nanos() as f64 / f64::from(pairs)
    );
    println!("{} fired, {} left", runtime.metrics().fired(), runtime.metrics().active);
    Ok(())
}
