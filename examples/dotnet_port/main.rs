//! A program with .NET's `System.Threading.Timer`, ported: `Program.cs` beside this file is its
//! twin, line by line.
//!
//! ```text
//! cargo run --example dotnet_port
//! ```
//!
//! Two things differ. The callback of a .NET timer reaches the timer through a field; here it
//! reaches its own timer through the tick. And what .NET tests with `FakeTimeProvider` is tested
//! here by the same code on a `ManualClock`: `main` runs it on both clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use timerqueue::{CancellationTokenSource, Delay, ManualClock, Runtime, Timer};

struct Poller {
    polls: Arc<AtomicU32>,
    timer: Timer,
}

impl Poller {
    fn new() -> Self {
        let polls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&polls);
        let timer = Timer::new(Duration::from_millis(100), Duration::from_millis(20), move |tick| {
            let poll = count.fetch_add(1, Ordering::SeqCst) + 1;
            println!("poll {poll}");
            if poll == 5 {
                tick.change(Duration::from_millis(50), Duration::MAX); // one more, and then no more
            }
        });
        Self { polls, timer }
    }

    fn polls(&self) -> u32 {
        self.polls.load(Ordering::SeqCst)
    }

    /// Waits for a callback that runs.
    async fn dispose_async(self) {
        let _ = self.timer.dispose_async().await; // whether it had to wait for itself
    }
}

async fn program() -> u32 {
    let poller = Poller::new();
    let limit = CancellationTokenSource::after(Duration::from_secs(1));
    let registration = limit.token().register(|| println!("time is up"));
    let ended = Delay::new(Duration::MAX).with_token(&limit.token()).await;
    assert!(ended.is_err(), "an OperationCanceledException");
    let polls = poller.polls();
    println!("{polls} polls");
    drop(registration);
    poller.dispose_async().await;
    polls
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("in real time");
    let polls = smol::block_on(program());
    assert!((1..=6).contains(&polls), "at most six, fewer on a machine that is busy: {polls}");

    println!("on virtual time");
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start()?;
    assert_eq!(clock.block_on(runtime.scope(program())), 6);
    Ok(())
}
