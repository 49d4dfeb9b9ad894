//! A ride is rated with five stars 48 hours after its end, unless the passenger has rated it.
//!
//! On virtual time, so that three days take no time; with async handlers on tokio.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Cancel, Job, Placed, Run, Scheduler, State};

const HOUR: Duration = Duration::from_secs(60 * 60);

#[derive(Serialize, Deserialize)]
struct AutoReview {
    ride: u64,
    stars: u8,
}

impl Job for AutoReview {
    const NAME: &'static str = "auto-review";
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let tokio = executor.handle().clone();
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start()?;
    let rated = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&rated);
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .on_async(move |review: AutoReview, run: Run| {
            count.fetch_add(1, Ordering::Relaxed);
            async move { println!("{}: ride {} gets {} stars", run.key(), review.ride, review.stars) }
        })
        .spawner(move |future| drop(tokio.spawn(future)))
        .start()?;

    for ride in [17, 18, 19] {
        let review = AutoReview { ride, stars: 5 };
        let placed = scheduler.put(&review).key(&format!("review/{ride}")).due(48 * HOUR).send().wait()?;
        assert!(placed.added().is_some());
    }
    // The same ride again, also for another time: refused.
    let again = scheduler.put(&AutoReview { ride: 17, stars: 1 }).key("review/17").due(HOUR).send().wait()?;
    assert!(matches!(again, Placed::Refused(_)));
    // A time that has passed can be refused as well.
    let late = scheduler.put(&AutoReview { ride: 20, stars: 5 }).due(clock.wall()).refuse_overdue();
    clock.advance(HOUR);
    assert_eq!(late.send().wait()?, Placed::Overdue);

    // The passenger of ride 18 rates it: the exact answer says that the automatic review will not
    // happen.
    clock.advance(30 * HOUR);
    assert_eq!(scheduler.cancel("review/18").wait()?, Cancel::Cancelled);
    clock.advance(17 * HOUR);

    // Waits for the reviews that run, and says what is left. The executor has threads of its own:
    // virtual time stands still for them.
    clock.set_auto_advance(false);
    let report = scheduler.close(Duration::from_secs(60)).wait()?;
    println!("{} left", report.jobs.of(State::Waiting));
    assert!(report.is_drained() && report.jobs.of(State::Waiting) == 0);
    assert_eq!(rated.load(Ordering::Relaxed), 2);
    Ok(())
}
