//! Panics of callbacks without memory (S12).
//!
//! Ground rules. Without memory for a panic, Rust ends the process: the test checks
//! this in a child process, and checks that no thread hangs.

#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::allocator::{LARGE, large_alive, large_made, refuse};
use crate::support::child::{full_name, in_child};
use crate::support::{Count, NEVER, PATIENCE, eventually, ms, native};
use timerqueue::{Runtime, Timer, Waited};

/// The payload of a panic is freed: with a panic handler, with a handler that panics itself, and
/// without a handler.
#[test]
fn s12_the_payload_of_a_panic_is_freed() {
    in_child(module_path!(), "s12_the_payload_of_a_panic_is_freed", || {
        let with = |handler: fn(timerqueue::observe::CallbackPanic)| {
            Runtime::builder().queues(1).on_panic(handler).start().expect("it starts")
        };
        let runtimes = [native(), with(drop), with(|panic| std::panic::resume_unwind(panic.into_payload()))];
        for runtime in runtimes {
            let (before, made) = (large_alive(), large_made());
            let timer = Timer::on(&runtime, ms(1), ms(1), |_| std::panic::resume_unwind(Box::new([0u8; LARGE])));
            eventually("panics", || runtime.metrics().panics >= 20);
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            assert!(large_made() >= made + 20, "each payload was allocated");
            eventually("all are freed", || large_alive() == before);
        }
    });
}

const CHILD: &str = "TIMERQUEUE_TEST_WITHOUT_MEMORY";

/// Without memory for a panic the process ends at once, as any Rust program does, and does not
/// hang.
#[test]
fn s12_without_memory_for_a_panic_the_process_ends() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = native();
        let others = Count::new();
        let _other = Timer::on(&runtime, ms(1), ms(1), others.callback());
        let _timer = Timer::on(&runtime, ms(5), NEVER, |_| {
            refuse();
            panic!("for which there is no memory");
        });
        eventually("the end", || false);
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let mut child = Command::new(own)
        .args([
            &full_name(module_path!(), "s12_without_memory_for_a_panic_the_process_ends"),
            "--exact",
            "--test-threads=1",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test binary starts again");
    let deadline = Instant::now() + PATIENCE / 2;
    let status = loop {
        match child.try_wait().expect("our own child") {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("the process hangs");
            }
            None => std::thread::sleep(ms(1)),
        }
    };
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
}
