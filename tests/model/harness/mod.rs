//! The harness of the model test: runs a program of random operations on the crate and on the model
//! side by side, on virtual time.
//!
//! Ground rules. A single thread. Every answer of the crate must be the answer of the model.
//! Callbacks and wakers that the crate runs report to the harness, and each must be the event that
//! the model expects next. Callbacks carry out further operations of the program, with the same
//! checks. No lock is held during a call of the crate. After each operation the answers to all
//! queries are compared, and the payloads must be alive or dropped as the model says. The first
//! difference fails the run.

mod apply;
mod compare;
mod futures;
pub(crate) mod ops;
pub(crate) mod reference;
mod timers;
mod tokens;

use std::collections::BTreeSet;
use std::future::Future as _;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use timerqueue::{
    CancelReason, CancellationTokenSource, Delay, DropGuard, Interval, ManualClock, MissedTicks, OnceTimer,
    Registration, Runtime, RuntimeClock, StopHandle, Tick, Timeout, Timer, TimerBuilder, Timestamp, Waited, WallTick,
    WallTimer,
    error::TimeoutError,
    futures::{CancellableDelay, CancellableTimeout, CancelledOwned, RunUntilCancelled},
};

use ops::{ByWall, FUTURES, GUARDS, Going, GuardEnd, Make, Op, REGISTRATIONS, RUNTIMES, SOURCES, TIMERS, WALLS};
use reference::{CLOCKS, DelayEnd, Event, FutureKind, Kind, Model, NEVER, PANICKING, Polled, instant};

/// The greatest depth of callbacks inside callbacks.
const DEPTH: usize = 3;
/// Callbacks carry out operations for this many events after each operation of the program itself.
const EVENTS: u64 = 400;

/// The payload of panics on purpose.
struct Intended;

enum Handle {
    Many(Timer),
    Once(OnceTimer),
}

/// Ready when its flag is set; polled by hand, so it wakes no task.
struct Flag(Arc<AtomicBool>);

impl std::future::Future for Flag {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

enum Future {
    Delay(Delay),
    Timeout(Timeout<Flag>, Arc<AtomicBool>),
    Cancelled(CancelledOwned),
    Either(CancellableDelay),
    Both(CancellableTimeout<Flag>, Arc<AtomicBool>),
    Until(RunUntilCancelled<Flag>, Arc<AtomicBool>),
    Interval(Interval, StopHandle),
}

/// The crate's side.
#[derive(Default)]
struct Real {
    clocks: [ManualClock; CLOCKS],
    runtimes: [Option<(usize, Runtime)>; RUNTIMES],
    timers: [Option<(usize, Arc<Handle>)>; TIMERS],
    walls: [Option<(usize, Arc<WallTimer>)>; WALLS],
    futures: [Option<(usize, Future, [Waker; 3])>; FUTURES],
    sources: [Option<(usize, CancellationTokenSource)>; SOURCES],
    registrations: [Option<(usize, usize, Registration)>; REGISTRATIONS],
    guards: [Option<(usize, DropGuard)>; GUARDS],
}

/// The payload of a callback.
struct Canary {
    harness: Arc<Harness>,
    id: (char, usize),
    /// Panics when dropped, unless the panic would end the process.
    spiteful: bool,
}

impl Drop for Canary {
    fn drop(&mut self) {
        if !lock(&self.harness.alive).remove(&self.id) {
            self.harness.fail(format!("{:?} was dropped twice", self.id));
        }
        if self.spiteful && !std::thread::panicking() {
            if self.id.0 == 't' {
                lock(&self.harness.model).owned_panicked(self.id.1);
            }
            panic_any(Intended);
        }
    }
}

struct ReportingWaker {
    harness: Arc<Harness>,
    future: usize,
    waker: u8,
}

impl Wake for ReportingWaker {
    fn wake(self: Arc<Self>) {
        self.harness.happened(Event::Woken { future: self.future, waker: self.waker });
        if self.waker == PANICKING {
            panic_any(Intended);
        }
    }
}

struct Harness {
    program: Vec<Op>,
    model: Mutex<Model>,
    real: Mutex<Real>,
    alive: Mutex<BTreeSet<(char, usize)>>,
    /// The first difference.
    fault: Mutex<Option<String>>,
    /// A callback registered with a cancelled source, which is called at once.
    on_the_spot: Mutex<Option<usize>>,
    depth: AtomicUsize,
    ids: AtomicUsize,
    /// Events after which callbacks do nothing more.
    enough: Mutex<u64>,
}

/// The callback inside which an operation is carried out.
enum Inside<'a, 'b> {
    Nothing,
    Timer(&'a Tick<'b>, usize),
    Wall(&'a WallTick<'b>, usize),
    Registered,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ns(at: Timestamp) -> u64 {
    at.as_duration().as_nanos() as u64
}

/// In ns since the epoch.
fn wall_ns(at: SystemTime) -> i128 {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// Runs a program of eight bytes per operation. Returns the situations that came up.
pub(crate) fn run(bytes: &[u8]) -> BTreeSet<&'static str> {
    run_program(bytes.chunks_exact(8).map(|chunk| Op::decode(chunk.try_into().expect("eight"))).collect())
}

/// As [`run`].
pub(crate) fn run_program(program: Vec<Op>) -> BTreeSet<&'static str> {
    static SILENT: Once = Once::new();
    SILENT.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Intended>() {
                print(info);
            }
        }));
    });
    let harness = Arc::new(Harness {
        program,
        model: Mutex::default(),
        real: Mutex::default(),
        alive: Mutex::default(),
        fault: Mutex::default(),
        on_the_spot: Mutex::default(),
        depth: AtomicUsize::new(0),
        ids: AtomicUsize::new(0),
        enough: Mutex::new(0),
    });
    for slot in 0..RUNTIMES {
        let start = Op::Start { slot, clock: usize::from(slot == 2), queues: [3, 1, 2][slot], boot: slot == 1 };
        harness.apply(&start, &Inside::Nothing);
    }
    for (at, op) in harness.program.iter().enumerate() {
        *lock(&harness.enough) = lock(&harness.model).events + EVENTS;
        harness.apply(op, &Inside::Nothing);
        harness.compare();
        harness.verdict(at);
    }
    *lock(&harness.enough) = 0;
    harness.end();
    harness.verdict(harness.program.len());
    std::mem::take(&mut lock(&harness.model).seen)
}

impl Harness {
    fn fail(&self, what: String) {
        lock(&self.fault).get_or_insert(what);
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, what: &str, real: T, model: T) {
        if real != model {
            self.fail(format!("{what}: {real:?}, and not {model:?}"));
        }
    }

    fn ok<T>(&self, outcome: Result<T, String>) -> Option<T> {
        outcome.map_err(|what| self.fail(what)).ok()
    }

    fn verdict(&self, at: usize) {
        if let Some(fault) = lock(&self.fault).take() {
            let done: Vec<String> =
                self.program.iter().take(at + 1).enumerate().map(|(i, op)| format!("  {i}: {op:?}\n")).collect();
            panic!("{fault}\nafter\n{}", done.concat());
        }
    }

    fn happened(&self, event: Event) {
        let now = {
            let real = lock(&self.real);
            std::array::from_fn(|clock| ns(real.clocks[clock].now()))
        };
        let outcome = lock(&self.model).happened(event, now);
        self.ok(outcome);
    }

    fn canary(self: &Arc<Self>, what: char, id: usize, spiteful: bool) -> Canary {
        lock(&self.alive).insert((what, id));
        Canary { harness: Arc::clone(self), id: (what, id), spiteful }
    }

    /// The operation that a callback carries out, if any.
    fn script(&self, script: usize) -> Option<&Op> {
        let model = lock(&self.model);
        let over = model.events >= *lock(&self.enough) || lock(&self.fault).is_some();
        if over || model.is_telling_a_tree() || self.depth.load(Ordering::SeqCst) >= DEPTH || script % 4 == 0 {
            return None;
        }
        self.program.get(script % self.program.len().max(1))
    }

    fn carry_out(self: &Arc<Self>, op: &Op, inside: &Inside<'_, '_>) {
        self.depth.fetch_add(1, Ordering::SeqCst);
        self.apply(op, inside);
        self.compare_clocks();
        self.depth.fetch_sub(1, Ordering::SeqCst);
    }

    fn called(self: &Arc<Self>, callback: usize, script: usize, panics: bool) {
        let on_the_spot = lock(&self.on_the_spot).take_if(|on_the_spot| *on_the_spot == callback);
        if on_the_spot.is_some() {
            lock(&self.model).seen.insert("called on the spot");
        } else {
            self.happened(Event::Called { callback });
        }
        if let Some(op) = self.script(script) {
            self.carry_out(op, &Inside::Registered);
        }
        if panics {
            panic_any(Intended);
        }
    }
}
