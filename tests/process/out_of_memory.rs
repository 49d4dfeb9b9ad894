//! Panics of callbacks without memory (S12).
//!
//! Ground rules. The global allocator of this binary can refuse all allocations of a thread, and
//! counts the live large blocks. Without memory for a panic, Rust ends the process: the test checks
//! this in a child process, and checks that no thread hangs.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // a global allocator

#[path = "../support/mod.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::support::{Count, NEVER, PATIENCE, eventually, ms, native};
use timerqueue::{Runtime, Waited};

/// Blocks of at least this size are counted.
const LARGE: usize = 1 << 20;

thread_local! {
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}
static LARGE_ALIVE: AtomicUsize = AtomicUsize::new(0);
static LARGE_MADE: AtomicUsize = AtomicUsize::new(0);

struct Refusing;

// SAFETY: passes all calls to the system's allocator, or refuses with a null pointer.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if REFUSED.try_with(Cell::get).unwrap_or(false) {
            return std::ptr::null_mut();
        }
        if layout.size() >= LARGE {
            LARGE_ALIVE.fetch_add(1, Ordering::SeqCst);
            LARGE_MADE.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LARGE {
            LARGE_ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// The payload of a panic is freed: with a panic handler, with a handler that panics itself, and
/// without a handler.
#[test]
fn s12_the_payload_of_a_panic_is_freed() {
    let with = |handler: fn(timerqueue::CallbackPanic)| {
        Runtime::builder().queues(1).on_panic(handler).start().expect("it starts")
    };
    let runtimes = [native(), with(drop), with(|panic| std::panic::resume_unwind(panic.into_payload()))];
    for runtime in runtimes {
        let (before, made) = (LARGE_ALIVE.load(Ordering::SeqCst), LARGE_MADE.load(Ordering::SeqCst));
        let timer = runtime.timer(ms(1), ms(1), |_| std::panic::resume_unwind(Box::new([0u8; LARGE])));
        eventually("panics", || runtime.panics() >= 20);
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        assert!(LARGE_MADE.load(Ordering::SeqCst) >= made + 20, "each payload was allocated");
        eventually("all are freed", || LARGE_ALIVE.load(Ordering::SeqCst) == before);
    }
}

const CHILD: &str = "TIMERQUEUE_TEST_WITHOUT_MEMORY";

/// Without memory for a panic the process ends at once, as any Rust program does, and does not
/// hang.
#[test]
fn s12_without_memory_for_a_panic_the_process_ends() {
    if std::env::var_os(CHILD).is_some() {
        let runtime = native();
        let others = Count::new();
        let _other = runtime.timer(ms(1), ms(1), others.callback());
        let _timer = runtime.timer(ms(5), NEVER, |_| {
            REFUSED.set(true);
            panic!("for which there is no memory");
        });
        eventually("the end", || false);
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let mut child = Command::new(own)
        .args(["s12_without_memory_for_a_panic_the_process_ends", "--exact", "--test-threads=1"])
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
