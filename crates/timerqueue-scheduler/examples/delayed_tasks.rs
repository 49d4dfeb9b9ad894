//! Fire-and-forget tasks with a payload: "do this in a while", without a task or a thread that
//! sleeps.
//!
//! On virtual time, so that a day takes no time. A real program leaves the two lines with the clock
//! out.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Handler, Job, Outcome, Retry, Run, Scheduler};

/// Closes an order that was not paid.
#[derive(Serialize, Deserialize)]
struct CloseUnpaid {
    order: u64,
}

impl Job for CloseUnpaid {
    const NAME: &'static str = "close-unpaid";
}

/// Tells another system of an order.
#[derive(Serialize, Deserialize)]
struct Notify {
    url: String,
    order: u64,
}

impl Job for Notify {
    const NAME: &'static str = "notify";
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start()?;

    // The other system answers at the third attempt.
    let notify = Handler::on(|notify: Notify, run: &Run| {
        println!("{}: attempt {} for order {}", notify.url, run.attempt(), notify.order);
        if run.attempt() < 3 { Err("connection refused") } else { Ok(Outcome::Done) }
    });
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .on(|close: CloseUnpaid, _: &Run| println!("order {} is closed", close.order))
        .register(notify.parallel(4).limit(Duration::from_secs(10)).retry(Retry::new(5)))
        .start()?;

    // Without a key: these jobs are never asked for again.
    for order in 1..=3 {
        let _ = scheduler.put(&CloseUnpaid { order }).due(Duration::from_secs(30 * 60)).send().wait()?;
    }
    let now = Notify { url: "https://example.com/hook".to_owned(), order: 1 };
    let _ = scheduler.put(&now).send().wait()?;

    clock.advance(Duration::from_secs(24 * 60 * 60));
    let stats = scheduler.stats().wait()?;
    println!("{} done, {} attempts repeated", stats.done, stats.retried);
    assert_eq!((stats.done, stats.retried, stats.died), (4, 2, 0));
    Ok(())
}
