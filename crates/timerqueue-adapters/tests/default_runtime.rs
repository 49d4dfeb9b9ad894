//! A default runtime that cannot be started: what a program sees that uses adapters all the same.
#![cfg(all(
    target_os = "linux",
    feature = "backon-1",
    feature = "hyper-1",
    feature = "quinn-0_11",
    feature = "tokio-util-0_7",
    feature = "tower-0_5"
))]

use std::panic::catch_unwind;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
use timerqueue_adapters::{backon_1, hyper_1, quinn_0_11, tokio_util_0_7, tower_0_5};
use tokio_util::sync::CancellationToken;

const CHILD: &str = "TIMERQUEUE_ADAPTERS_CHILD";

/// The message of the panic of `code`.
fn panic_of<T>(code: impl FnOnce() -> T + std::panic::UnwindSafe) -> String {
    let payload = catch_unwind(code).err().expect("a panic");
    payload.downcast::<String>().map(|text| *text).expect("a text")
}

/// Runs in a process that may open no further file: a runtime finds no descriptor for its alarms.
fn without_descriptors() {
    let reason = Runtime::try_global().expect_err("no descriptor").to_string();
    let panics = [
        panic_of(hyper_1::HyperTimer::new),
        panic_of(backon_1::BackonSleeper::new),
        panic_of(|| tower_0_5::TimeoutLayer::new(Duration::ZERO)),
        panic_of(|| tower_0_5::HedgeLayer::<()>::new(Duration::ZERO, |_| None)),
        panic_of(|| quinn_0_11::QuinnRuntime::new(Arc::new(quinn::SmolRuntime))),
        panic_of(|| tokio_util_0_7::cancel_source(&CancellationToken::new(), &CancellationTokenSource::new())),
    ];
    for message in panics {
        assert!(message.contains(&reason), "{message:?} does not tell {reason:?}");
    }
    // What needs no default runtime works.
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("a manual clock needs no descriptors");
    let timer = runtime.enter(hyper_1::HyperTimer::new);
    clock.block_on(hyper::rt::Timer::sleep(&timer, Duration::from_secs(1)));
    let (ours, theirs) = (CancellationTokenSource::new(), CancellationToken::new());
    let registration = tokio_util_0_7::cancel_tokio(&ours.token(), &theirs);
    ours.cancel();
    assert!(theirs.is_cancelled());
    drop(registration);
}

#[test]
fn constructors_panic_with_the_reason_and_named_runtimes_work() {
    if std::env::var_os(CHILD).is_some() {
        return without_descriptors();
    }
    let program = std::env::current_exe().expect("the path of this program");
    // Descriptor 3 is for the loader, which closes it.
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 4 && exec \"$0\" --exact --nocapture \"$1\""])
        .arg(program)
        .arg("constructors_panic_with_the_reason_and_named_runtimes_work")
        .env(CHILD, "1")
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
