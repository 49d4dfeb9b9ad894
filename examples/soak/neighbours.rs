//! Hostile neighbours: other users of what the crate shares with the whole process, and a machine
//! that is busy or out of something.
//!
//! Ground rules. One scene at a time, on the thread of the guests, which count descriptors. The
//! timers of a scene belong to a runtime of the neighbours, so that the ledger need not know them;
//! threads of all runtimes run what a neighbour has left behind. What ends a process is played in a
//! child: this program again, with the name of the scene as its argument.

use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_epoch as epoch;
use timerqueue::{CancellationTokenSource, Runtime, Timer};

use crate::ledger::{FIGURES, fault, must, patience};
use crate::random::Random;
use crate::world::{Intended, World};

const NEVER: Duration = Duration::MAX;

/// The runtime of the neighbours.
pub(crate) fn runtime() -> Runtime {
    let runtime = Runtime::builder().thread_name("neighbour").workers(2).max_threads(8).start();
    runtime.unwrap_or_else(|error| panic!("the neighbours' runtime: {error}"))
}

/// One scene.
pub(crate) fn scene(world: &Arc<World>, runtime: &Runtime, random: &mut Random) {
    match random.below(8) {
        0..3 => leave_with_the_collector(world, runtime, random),
        3..5 => end_threads_with_timers(runtime, random),
        5 => interrupt_all_threads(random),
        6 => keep_the_processors_busy(random),
        _ => in_a_child(["closefrom", "memory"][random.below(2) as usize]),
    }
    FIGURES.neighbours.bump();
}

/// Leaves closures with the epoch collector that the pool's deques use: any thread that pins it may
/// run them.
fn leave_with_the_collector(world: &Arc<World>, runtime: &Runtime, random: &mut Random) {
    for _ in 0..random.below(200) {
        let (act, runtime, world) = (random.below(5), runtime.clone(), Arc::downgrade(world));
        let timer = Timer::on(&runtime, Duration::from_millis(random.below(50)), NEVER, |_| {});
        let leave = move || {
            let guard = epoch::pin();
            guard.defer(move || match act {
                0 => drop(timer),
                1 => drop((Timer::on(&runtime, Duration::ZERO, NEVER, |_| {}), timer)),
                2 => {
                    _ = world.upgrade().map(|world| {
                        (world.main.metrics().fired(), world.main.metrics().threads.alive, world.main.metrics().active)
                    })
                }
                3 => thread::sleep(Duration::from_micros(500)),
                _ => resume_unwind(Box::new(Intended)),
            });
            guard.flush();
        };
        // Pinning runs some of them here, too.
        let _ = catch_unwind(AssertUnwindSafe(leave));
    }
}

/// Ends threads whose thread-local values own timers, delays and linked sources.
fn end_threads_with_timers(runtime: &Runtime, random: &mut Random) {
    type Kept = (Vec<Timer>, Vec<CancellationTokenSource>, Option<Runtime>);
    thread_local! {
        static FIRST: RefCell<Kept> = const { RefCell::new((Vec::new(), Vec::new(), None)) };
        static SECOND: RefCell<Kept> = const { RefCell::new((Vec::new(), Vec::new(), None)) };
    }
    let fill = |slot: &'static thread::LocalKey<RefCell<Kept>>, runtime: &Runtime, n: u64| {
        slot.with_borrow_mut(|(timers, sources, own)| {
            timers.extend((0..n).map(|i| Timer::on(runtime, Duration::from_micros(i * 10), NEVER, |_| {})));
            let mut source = CancellationTokenSource::on(runtime);
            for _ in 0..n * 100 {
                source = source.token().child_source();
            }
            sources.push(source);
            *own = Some(runtime.clone());
        });
    };
    let (n, order) = (random.below(100), random.below(2) == 0);
    let runtime = runtime.clone();
    let thread = thread::spawn(move || {
        let (one, other) = if order { (&FIRST, &SECOND) } else { (&SECOND, &FIRST) };
        fill(one, &runtime, n);
        fill(other, &runtime, n / 2);
    });
    must(thread.join().is_ok(), || "a thread that ended with timers has panicked".into());
}

/// Signals without `SA_RESTART` to all threads of this process.
#[allow(unsafe_code)] // system calls
fn interrupt_all_threads(random: &mut Random) {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, and numbers of threads of this process (a number that
    // has been given to another process meanwhile is refused, since its group is another).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        let (begun, process) = (Instant::now(), libc::getpid());
        while begun.elapsed() < Duration::from_millis(random.below(100)) {
            let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
            for task in tasks.filter_map(|task| task.file_name().to_string_lossy().parse::<libc::pid_t>().ok()) {
                libc::syscall(libc::SYS_tgkill, process, task, libc::SIGUSR1);
            }
        }
    }
}

fn start(scene: &str) -> Option<Child> {
    let own = std::env::current_exe().ok()?;
    Command::new(own).arg(scene).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

fn keep_the_processors_busy(random: &mut Random) {
    let hogs: Vec<Child> = (0..random.below(4)).filter_map(|_| start("hog")).collect();
    thread::sleep(Duration::from_millis(random.below(400)));
    for mut hog in hogs {
        let _ = (hog.kill(), hog.wait());
    }
}

fn in_a_child(scene: &str) {
    let Some(mut child) = start(scene) else { return fault("no child can be had") };
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                // Without memory Rust ends the process, by this signal.
                let aborted = scene == "memory" && status.signal() == Some(libc::SIGABRT);
                must(status.success() || aborted, || format!("the child {scene} ended with {status}"));
                return;
            }
            Ok(None) if begun.elapsed() < patience() => thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = (child.kill(), child.wait());
                return fault("a child did not come to its end");
            }
        }
    }
}

/// What a child plays; `None`: this is no child.
pub(crate) fn child(scene: &str) -> Option<ExitCode> {
    match scene {
        "hog" => loop {
            std::hint::spin_loop();
        },
        "closefrom" => Some(closes_all_descriptors()),
        "memory" => Some(runs_out_of_memory()),
        _ => None,
    }
}

/// All descriptors are closed under a runtime with timers: it ends, and says so; it neither spins
/// nor keeps a thread.
#[allow(unsafe_code)] // a system call
fn closes_all_descriptors() -> ExitCode {
    let (send, receive) = std::sync::mpsc::channel();
    let runtime = Runtime::builder().on_panic(move |_| _ = send.send(())).start().expect("the system has alarms");
    let timers: Vec<Timer> = (1..100).map(|i| Timer::on(&runtime, Duration::from_millis(i), NEVER, |_| {})).collect();
    // SAFETY: none of these descriptors is used by this child again, but by the runtime, which is
    // the point.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    let told = receive.recv_timeout(Duration::from_secs(20)).is_ok();
    drop(timers);
    let ended = runtime.shutdown(Duration::from_secs(20)).is_ok();
    if told && ended { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The address space is used up while timers are made: an error, or the end that Rust gives a
/// process without memory.
#[allow(unsafe_code)] // a system call
fn runs_out_of_memory() -> ExitCode {
    let limit = libc::rlimit { rlim_cur: 256 << 20, rlim_max: 256 << 20 };
    // SAFETY: a structure that lives through the call.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    let mut runtimes = Vec::new();
    while let Ok(runtime) = Runtime::builder().workers(2).start() {
        let timers: Vec<Timer> =
            (0..20_000).map(|i| Timer::on(&runtime, Duration::from_micros(i), NEVER, |_| {})).collect();
        runtimes.push((runtime, timers));
    }
    ExitCode::SUCCESS
}
