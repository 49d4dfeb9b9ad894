//! Tasks of tokio on the virtual time of the code that spawns them.
#![cfg(feature = "tokio-1")]

use std::rc::Rc;
use std::time::Duration;

use timerqueue::{Delay, ManualClock, Runtime, Timestamp};
use timerqueue_adapters::tokio_1::{spawn, spawn_local};

const HOUR: Duration = Duration::from_secs(3600);

fn manual() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    (clock, runtime)
}

#[tokio::test]
async fn tasks_and_their_tasks_stay_on_virtual_time() {
    let (clock, runtime) = manual();
    let code_under_test = async {
        let outer = spawn(async {
            Delay::new(HOUR).await;
            spawn(async {
                Delay::new(HOUR).await;
                Timestamp::now()
            })
            .await
        });
        outer.await.expect("no panic").expect("no panic")
    };
    let at = clock.run(runtime.scope(code_under_test)).await;
    assert_eq!((at, clock.now().as_duration()), (clock.now(), 2 * HOUR));
}

#[tokio::test]
async fn local_tasks_stay_on_virtual_time() {
    let (clock, runtime) = manual();
    let local = tokio::task::LocalSet::new();
    let code_under_test = async {
        let hours = Rc::new(3);
        let task = async move { Delay::new(HOUR * *hours).await };
        spawn_local(task).await.expect("no panic");
    };
    local.run_until(clock.run(runtime.scope(code_under_test))).await;
    assert_eq!(clock.now().as_duration(), 3 * HOUR);
}
