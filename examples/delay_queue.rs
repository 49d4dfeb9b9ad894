//! Delay queues in use: fire-and-forget tasks with a payload, and reviews that are due 48 hours
//! after a ride.
//!
//! ```text
//! cargo run --example delay_queue
//! ```
//!
//! The tasks run in real time, some hundred milliseconds. The reviews run on virtual time: two days
//! pass at once.

use std::time::Duration;

use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime, error::Refusal};

/// A task to run later.
enum Task {
    Mail { to: &'static str },
    CloseOrder { order: u64 },
}

/// Fire and forget: threads insert, and two workers run the tasks when they are due. A slow task
/// delays no other worker.
fn tasks() -> Result<(), Box<dyn std::error::Error>> {
    let queue: DelayQueue<String, Task> = DelayQueue::new();
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                while let Some(due) = queue.recv_blocking() {
                    let what = match due.value {
                        Task::Mail { to } => format!("mail to {to}"),
                        Task::CloseOrder { order } => format!("close order {order}"),
                    };
                    println!("worker {worker}: {what} ({}, {:?} late)", due.key, due.lateness);
                }
            })
        })
        .collect();

    queue.insert("welcome".into(), Task::Mail { to: "ann@example.org" }, Duration::from_millis(50))?;
    queue.insert("order/17".into(), Task::CloseOrder { order: 17 }, Duration::from_millis(100))?;
    queue.insert("order/18".into(), Task::CloseOrder { order: 18 }, Duration::from_millis(100))?;

    assert!(queue.remove("order/17").is_some()); // paid: never closed
    assert!(queue.reset("order/18", Duration::from_millis(200))); // the customer got more time

    queue.close(); // deliver what is there, then end
    for worker in workers {
        worker.join().expect("a worker does not panic");
    }
    Ok(())
}

/// 48 hours after a ride, rate it five stars, unless the user has rated it. The due time is a time
/// of the wall clock.
fn reviews() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start()?;
    let reviews: DelayQueue<u64, u8> = DelayQueueBuilder::on(&runtime).refuse_overdue().build();
    let two_days = Duration::from_secs(48 * 60 * 60);

    for ride in [1, 2, 3] {
        reviews.insert(ride, 5, clock.wall() + two_days)?;
    }
    // A second message for the same ride is refused, whatever its due time.
    let twice = reviews.insert(1, 5, clock.wall() + two_days * 2).expect_err("the key is there");
    assert_eq!(twice.reason, Refusal::Occupied);
    // A due time in the past is refused too.
    let late = reviews.insert(9, 5, clock.wall() - two_days).expect_err("overdue");
    assert_eq!(late.reason, Refusal::Overdue);

    clock.advance(two_days / 2);
    assert!(reviews.remove(&2).is_some()); // the user has rated ride 2

    reviews.close();
    clock.block_on(async {
        while let Some(due) = reviews.recv().await {
            println!("ride {}: {} stars, {:?} after its end", due.key, due.value, clock.now().as_duration());
        }
    });
    assert_eq!(clock.now().as_duration(), two_days);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tasks()?;
    reviews()
}
