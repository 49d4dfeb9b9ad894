//! Tests of tokio code on virtual time: retries and limits of minutes, in no time.
//!
//! ```text
//! cargo test --example tokio_tests
//! cargo run --example tokio_tests         # the code itself, in real time
//! ```
//!
//! The code under test names no runtime and no clock. Each test has a clock of its own, so the
//! tests run in parallel.

use std::io;
use std::time::Duration;

use timerqueue::{Delay, TimerFutureExt};

/// Calls `request` until it succeeds: up to five times, a limit of ten seconds for each, and a
/// pause that doubles.
async fn with_retries<T, F>(mut request: impl FnMut(u32) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut pause = Duration::from_secs(1);
    for attempt in 1.. {
        let result = match request(attempt).timeout(Duration::from_secs(10)).await {
            Ok(result) => result,
            Err(elapsed) => Err(elapsed.into()),
        };
        match result {
            Err(error) if attempt < 5 => eprintln!("attempt {attempt}: {error}"),
            result => return result,
        }
        Delay::new(pause).await;
        pause *= 2;
    }
    unreachable!("the fifth attempt returns")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let answer = with_retries(async |attempt| if attempt < 2 { Err(io::Error::other("not yet")) } else { Ok(attempt) });
    println!("attempt {} succeeds", answer.await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use timerqueue::{Interval, ManualClock, Runtime};

    use super::*;

    fn virtual_time() -> (ManualClock, Runtime) {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no threads");
        (clock, runtime)
    }

    #[tokio::test]
    async fn a_request_that_hangs_is_given_up_after_five_limits_and_four_pauses() {
        let (clock, runtime) = virtual_time();
        let hangs = with_retries(|_| pending::<io::Result<()>>());
        let result = clock.run(runtime.scope(hangs)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(clock.now().as_duration(), Duration::from_secs(5 * 10 + 1 + 2 + 4 + 8));
    }

    #[tokio::test]
    async fn the_third_attempt_succeeds() {
        let (clock, runtime) = virtual_time();
        let request = async |attempt| if attempt < 3 { Err(io::Error::other("no")) } else { Ok(attempt) };
        assert_eq!(clock.run(runtime.scope(with_retries(request))).await.unwrap(), 3);
        assert_eq!(clock.now().as_duration(), Duration::from_secs(1 + 2));
    }

    /// A task that is spawned gets the runtime by a scope of its own; tokio's threads know nothing
    /// of the test.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_spawned_task_counts_on_the_clock_of_the_test() {
        let (clock, runtime) = virtual_time();
        let hour = async {
            let mut minutes = Interval::new(Duration::from_secs(60));
            for _ in 0..60 {
                minutes.tick().await;
            }
        };
        let task = tokio::spawn(runtime.scope(hour));
        clock.run(task).await.expect("the task does not panic");
        assert!(clock.now().as_duration() >= Duration::from_secs(59 * 60));
    }
}
