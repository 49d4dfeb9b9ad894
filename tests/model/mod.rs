//! A program of random operations, carried out on the crate and on the model side by side, on virtual time.
//!
//! Ground rules. One thread. Every answer must be the model's. What the crate runs by itself on the way (callbacks,
//! wakers) reports here at that moment and must be the one thing that the model expects now; callbacks carry out further
//! operations of the program, with the same checks. No lock is held while the crate is called. After each operation all
//! that can be asked is compared, and what callbacks own must be there or dropped as the model says. The first
//! difference fails the run.

mod cancellation;
mod futures;
pub(crate) mod ops;
pub(crate) mod plan;

use std::collections::BTreeSet;
use std::future::Future as _;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use timerqueue::{
    CancelReason, CancellableDelay, CancellableTimeout, CancellationTokenSource, CancelledOwned, Delay, DropGuard,
    Interval, ManualClock, MissedTicks, OnceTimer, Registration, RunUntilCancelled, Runtime, RuntimeClock, StopHandle,
    Tick, Timeout, TimeoutError, Timer, Timestamp, Waited, WallTick, WallTimer,
};

use ops::{ByWall, FUTURES, GUARDS, Going, GuardEnd, Make, Op, REGISTRATIONS, RUNTIMES, SOURCES, TIMERS, WALLS};
use plan::{CLOCKS, DelayEnd, Event, FutureKind, GRUMPY, Kind, Model, NEVER, Polled, instant};

/// Callbacks that callbacks cause are carried out down to here.
const DEPTH: usize = 3;
/// Callbacks carry out operations for this many events after each operation of the program itself.
const EVENTS: u64 = 400;

/// The payload of panics on purpose.
struct Intended;

enum Handle {
    Many(Timer),
    Once(OnceTimer),
}

/// Ready when its flag is set; polled by hand, so it wakes nobody.
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

/// What a callback owns.
struct Canary {
    lab: Arc<Lab>,
    id: (char, usize),
    /// Panics when it is dropped, where that does not end the process.
    spiteful: bool,
}

impl Drop for Canary {
    fn drop(&mut self) {
        if !lock(&self.lab.alive).remove(&self.id) {
            self.lab.fail(format!("{:?} was dropped twice", self.id));
        }
        if self.spiteful && !std::thread::panicking() {
            if self.id.0 == 't' {
                lock(&self.lab.model).seen.insert("what a timer owned panicked");
            }
            panic_any(Intended);
        }
    }
}

struct Hand {
    lab: Arc<Lab>,
    future: usize,
    waker: u8,
}

impl Wake for Hand {
    fn wake(self: Arc<Self>) {
        self.lab.happened(Event::Woken { future: self.future, waker: self.waker });
        if self.waker == GRUMPY {
            panic_any(Intended);
        }
    }
}

struct Lab {
    program: Vec<Op>,
    model: Mutex<Model>,
    real: Mutex<Real>,
    alive: Mutex<BTreeSet<(char, usize)>>,
    /// The first difference.
    fault: Mutex<Option<String>>,
    /// A callback that is called on the spot, being registered with a cancelled source.
    on_the_spot: Mutex<Option<usize>>,
    depth: AtomicUsize,
    ids: AtomicUsize,
    /// Events after which callbacks do nothing more.
    enough: Mutex<u64>,
}

/// In whose callback an operation is carried out.
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

/// Runs a program: eight bytes for each operation. The situations that came up.
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
    let lab = Arc::new(Lab {
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
        lab.apply(&start, &Inside::Nothing);
    }
    for (at, op) in lab.program.iter().enumerate() {
        *lock(&lab.enough) = lock(&lab.model).events + EVENTS;
        lab.apply(op, &Inside::Nothing);
        lab.compare();
        lab.verdict(at);
    }
    *lock(&lab.enough) = 0;
    lab.end();
    lab.verdict(lab.program.len());
    std::mem::take(&mut lock(&lab.model).seen)
}

impl Lab {
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
        Canary { lab: Arc::clone(self), id: (what, id), spiteful }
    }

    // -------------------------------------------------------------------------------------------------- in callbacks

    /// The operation that a callback carries out, if it is to carry out one.
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

    /// `consumed`: the callback is dropped where it ends, and that panics.
    fn tick(self: &Arc<Self>, node: usize, tick: &Tick<'_>, script: usize, consumed: bool) {
        let scheduled = ns(tick.scheduled());
        self.happened(Event::Tick { node, scheduled, missed: tick.missed() });
        self.same("lateness", tick.lateness(), tick.now() - tick.scheduled());
        self.ticked(node, script, consumed, &Inside::Timer(tick, node));
    }

    fn wall_tick(self: &Arc<Self>, node: usize, tick: &WallTick<'_>, script: usize) {
        self.happened(Event::WallTick { node, scheduled: wall_ns(tick.scheduled()) });
        let clock = self.clock_of(node);
        let shown = lock(&self.model).wall(clock);
        self.same("the wall clock in a callback", wall_ns(tick.now()), shown);
        self.ticked(node, script, false, &Inside::Wall(tick, node));
    }

    fn ticked(self: &Arc<Self>, node: usize, script: usize, consumed: bool, inside: &Inside<'_, '_>) {
        let (runtime, nth) = {
            let model = lock(&self.model);
            (model.nodes[node].runtime, model.nodes[node].ticks)
        };
        let mut panics = false;
        // Every other tick is a quiet one, but the first.
        if let Some(op) = self.script(script).filter(|_| nth % 2 == 1) {
            if matches!(op, Op::Panic) {
                panics = true;
            } else {
                self.carry_out(op, inside);
            }
        }
        let mut model = lock(&self.model);
        model.ended(node);
        model.runtimes[runtime].panics += u64::from(panics || consumed && !std::thread::panicking());
        drop(model);
        if panics {
            panic_any(Intended);
        }
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

    // ---------------------------------------------------------------------------------------------------- operations

    fn runtime(&self, slot: usize) -> Option<(usize, Runtime)> {
        lock(&self.real).runtimes[slot].as_ref().map(|(id, runtime)| (*id, runtime.clone()))
    }

    fn timer(&self, slot: usize) -> Option<(usize, Arc<Handle>)> {
        lock(&self.real).timers[slot].as_ref().map(|(node, handle)| (*node, Arc::clone(handle)))
    }

    fn source(&self, slot: usize) -> Option<(usize, CancellationTokenSource)> {
        lock(&self.real).sources[slot].as_ref().map(|(id, source)| (*id, source.clone()))
    }

    /// A period that a running advance can pass through without ticking for ever.
    fn period(&self, clock: usize, period: Duration) -> Duration {
        let left = lock(&self.model).left(clock).unwrap_or(0);
        if period.is_zero() { period } else { period.max(Duration::from_nanos(left / 24)) }
    }

    fn affordable(&self, clock: usize, by: Duration) -> Duration {
        by.min(Duration::from_nanos(lock(&self.model).affordable(clock)))
    }

    fn apply(self: &Arc<Self>, op: &Op, inside: &Inside<'_, '_>) {
        match *op {
            Op::Panic => {}
            Op::Create { slot, runtime, kind, policy, leeway, due, period, script, spiteful } => {
                self.create(slot, runtime, kind, (policy, leeway), (due, period), (script, spiteful));
            }
            Op::Change { slot, due, period } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                let period = self.period(self.clock_of(node), period);
                let period = if matches!(*handle, Handle::Once(_)) { Duration::ZERO } else { period };
                let want = lock(&self.model).change(node, due, period);
                let is = match &*handle {
                    Handle::Many(timer) => timer.change(due, period),
                    Handle::Once(timer) => timer.change(due),
                };
                self.same("change", is, want);
            }
            Op::ChangeOwn { due, period } => {
                let (is, want) = match *inside {
                    Inside::Timer(tick, node) => {
                        let period = self.period(self.clock_of(node), period);
                        let want = lock(&self.model).change(node, due, period);
                        (tick.change(due, period), want)
                    }
                    Inside::Wall(tick, node) => {
                        let by = ByWall { by: due, back: false };
                        let Some(at) = self.by_wall(self.clock_of(node), by) else { return };
                        let want = lock(&self.model).change_wall(node, wall_ns(at));
                        (tick.change(at), want)
                    }
                    _ => return,
                };
                self.same("change of the own timer", is, want);
            }
            Op::DisposeOwn => {
                let (Inside::Timer(_, node) | Inside::Wall(_, node)) = *inside else { return };
                lock(&self.model).dispose(node);
                match inside {
                    Inside::Timer(tick, _) => tick.dispose(),
                    Inside::Wall(tick, _) => tick.dispose(),
                    _ => {}
                }
            }
            Op::Dispose { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                match &*handle {
                    Handle::Many(timer) => timer.dispose(),
                    Handle::Once(timer) => timer.dispose(),
                }
            }
            Op::DisposeAndWait { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                let waited = match &*handle {
                    Handle::Many(timer) => timer.dispose_and_wait(),
                    Handle::Once(timer) => timer.dispose_and_wait(),
                };
                self.waited(node, waited, inside);
            }
            Op::DisposeAsync { slot } => {
                let Some((node, handle)) = self.timer(slot) else { return };
                lock(&self.model).dispose(node);
                let mut disposal = match &*handle {
                    Handle::Many(timer) => timer.dispose_async(),
                    Handle::Once(timer) => timer.dispose_async(),
                };
                match Pin::new(&mut disposal).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(waited) => self.waited(node, waited, inside),
                    Poll::Pending => self.fail("the end of a timer takes time on virtual time".into()),
                }
            }
            Op::Drop { slot } => self.let_go(slot, false),
            Op::Detach { slot } => self.let_go(slot, true),
            Op::Advance { clock, by } => self.advance(clock, by, inside),
            Op::ToNextDue { clock } => {
                let next = lock(&self.model).next_due(clock);
                let now = lock(&self.model).now(clock);
                self.advance(clock, Duration::from_nanos(next.unwrap_or(now).saturating_sub(now)), inside);
            }
            Op::Stall { clock, by } => {
                let by = self.affordable(clock, by);
                lock(&self.model).stall(clock, by);
                self.clock(clock).stall(by);
            }
            Op::Wall { slot, runtime, at, script, spiteful } => self.create_wall(slot, runtime, at, script, spiteful),
            Op::ChangeWall { slot, at } => {
                let Some((node, handle)) = self.wall(slot) else { return };
                let Some(at) = self.by_wall(self.clock_of(node), at) else { return };
                let want = lock(&self.model).change_wall(node, wall_ns(at));
                self.same("change of a wall timer", handle.change(at), want);
            }
            Op::EndWall { slot, how } => self.end_wall(slot, how, inside),
            Op::SetWall { clock, to } => {
                let Some(to) = self.by_wall(clock, to) else { return };
                lock(&self.model).set_wall(clock, wall_ns(to));
                self.clock(clock).set_wall(to);
            }
            Op::Suspend { clock, by } => {
                let by = self.affordable(clock, by);
                lock(&self.model).suspend(clock, by);
                self.clock(clock).suspend(by);
            }
            Op::Future { slot, runtime, make, after, source } => self.make_future(slot, runtime, make, after, source),
            Op::Poll { slot, waker } => self.poll(slot, waker),
            Op::Reset { slot, after, absolute } => self.reset(slot, after, absolute),
            Op::Finish { slot } => self.finish(slot),
            Op::DropFuture { slot } => {
                let future = lock(&self.real).futures[slot].take();
                if let Some((id, future, _)) = future {
                    lock(&self.model).drop_future(id);
                    drop(future);
                }
            }
            Op::Source { slot, runtime } => {
                let Some((id, runtime)) = self.runtime(runtime) else { return };
                let id = lock(&self.model).source(id);
                self.put_source(slot, id, runtime.cancellation_source());
            }
            Op::Linked { slot, parents } => {
                let parents: Vec<_> = parents.into_iter().filter_map(|parent| self.source(parent)).collect();
                if parents.is_empty() {
                    return;
                }
                let ids: Vec<usize> = parents.iter().map(|(id, _)| *id).collect();
                let tokens: Vec<_> = parents.iter().map(|(_, source)| source.token()).collect();
                let id = lock(&self.model).linked(&ids);
                self.put_source(slot, id, CancellationTokenSource::linked(&tokens));
            }
            Op::Cancel { slot } => self.cancel(slot, CancelReason::Cancelled),
            Op::CancelAfter { slot, after: Duration::ZERO } => self.cancel(slot, CancelReason::Timeout),
            Op::CancelAfter { slot, after } => {
                let Some((id, source)) = self.source(slot) else { return };
                let want = lock(&self.model).cancel_after(id, after);
                self.same("cancel_after", source.cancel_after(after).is_ok(), want);
            }
            Op::TryReset { slot } => {
                let Some((id, source)) = self.source(slot) else { return };
                let want = lock(&self.model).try_reset(id);
                self.same("try_reset", source.try_reset(), want);
            }
            Op::DropSource { slot } => {
                let source = lock(&self.real).sources[slot].take();
                if let Some((id, source)) = source {
                    lock(&self.model).release(id);
                    drop(source);
                }
            }
            Op::Register { slot, source, script, panics, spiteful } => {
                self.register(slot, source, script, panics, spiteful);
            }
            Op::Unregister { slot, how } => self.unregister(slot, how),
            Op::Guard { slot, source } => {
                let Some((id, source)) = self.source(source) else { return };
                self.end_guard(slot, GuardEnd::Drop);
                lock(&self.model).retain(id);
                lock(&self.real).guards[slot] = Some((id, source.drop_guard()));
            }
            Op::EndGuard { slot, how } => self.end_guard(slot, how),
            Op::Shutdown { slot, by_drop } => {
                let Some((id, runtime)) = lock(&self.real).runtimes[slot].take() else { return };
                self.shut_down(id, runtime, by_drop);
            }
            Op::Start { slot, clock, queues, boot } => {
                let old = lock(&self.real).runtimes[slot].take();
                if let Some((id, runtime)) = old {
                    self.shut_down(id, runtime, true);
                }
                let which = if boot { RuntimeClock::Boot } else { RuntimeClock::Monotonic };
                let builder = Runtime::builder().manual_clock(&self.clock(clock)).clock(which);
                let started = builder.queues(queues).start();
                let id = lock(&self.model).start(clock, boot);
                lock(&self.real).runtimes[slot] = Some((id, started.expect("nothing to refuse")));
            }
        }
    }

    fn clock(&self, clock: usize) -> ManualClock {
        lock(&self.real).clocks[clock].clone()
    }

    fn clock_of(&self, node: usize) -> usize {
        let model = lock(&self.model);
        model.runtimes[model.nodes[node].runtime].clock
    }

    fn waited(&self, node: usize, waited: Waited, inside: &Inside<'_, '_>) {
        let own = matches!(*inside, Inside::Timer(_, own) | Inside::Wall(_, own) if own == node);
        if own {
            lock(&self.model).seen.insert("waited for itself");
        }
        let nested = self.depth.load(Ordering::SeqCst) > 1;
        if !nested {
            self.same("wait", waited, if own { Waited::InsideCallback } else { Waited::Ended });
        }
        if waited == Waited::Ended && lock(&self.alive).contains(&('t', node)) {
            self.fail("waited for the end, and what the callback owned is still there".into());
        }
    }

    fn create(
        self: &Arc<Self>,
        slot: usize,
        runtime: usize,
        kind: Kind,
        (policy, leeway): (MissedTicks, Duration),
        (due, period): (Duration, Duration),
        (script, spiteful): (usize, bool),
    ) {
        self.let_go(slot, false);
        let Some((id, runtime)) = self.runtime(runtime) else { return };
        let clock = lock(&self.model).runtimes[id].clock;
        let period = if kind == Kind::Once { Duration::ZERO } else { self.period(clock, period) };
        let manner = if kind == Kind::Once { Default::default() } else { (policy, leeway) };
        let node = lock(&self.model).create(id, kind, manner, due, period);
        let canary = self.canary('t', node, spiteful);
        let consumed = spiteful && kind == Kind::Once;
        let callback = move |tick: &Tick<'_>| canary.lab.tick(canary.id.1, tick, script, consumed);
        let builder = || runtime.timer_builder().due(due).period(period).missed_ticks(policy).leeway(leeway);
        let plain = (MissedTicks::Rebase, Duration::ZERO);
        let handle = match kind {
            Kind::Once => Handle::Once(runtime.once(due, callback)),
            Kind::Overlapping if manner == plain => Handle::Many(runtime.timer(due, period, callback)),
            Kind::Overlapping => Handle::Many(builder().start(callback)),
            Kind::Exclusive if manner == plain => Handle::Many(runtime.exclusive_timer(due, period, callback)),
            Kind::Exclusive => Handle::Many(builder().start_exclusive(callback)),
        };
        lock(&self.real).timers[slot] = Some((node, Arc::new(handle)));
    }

    /// Drops or detaches the handle of a slot.
    fn let_go(&self, slot: usize, detach: bool) {
        let Some((node, handle)) = lock(&self.real).timers[slot].take() else { return };
        let handle = match Arc::try_unwrap(handle) {
            Ok(handle) => handle,
            Err(_) => return self.fail("somebody else has the handle".into()),
        };
        let mut model = lock(&self.model);
        model.nodes[node].handle = false;
        // A fast one would tick for ever.
        if detach && model.is_slow(node) {
            drop(model);
            match handle {
                Handle::Many(timer) => timer.detach(),
                Handle::Once(timer) => timer.detach(),
            }
        } else {
            model.dispose(node);
            drop(model);
            drop(handle);
        }
    }

    // --------------------------------------------------------------------------------------------------- wall timers

    fn wall(&self, slot: usize) -> Option<(usize, Arc<WallTimer>)> {
        lock(&self.real).walls[slot].as_ref().map(|(node, handle)| (*node, Arc::clone(handle)))
    }

    /// `None`: no wall clock shows that.
    fn by_wall(&self, clock: usize, ByWall { by, back }: ByWall) -> Option<SystemTime> {
        let shown = self.clock(clock).wall();
        let at = if back { shown.checked_sub(by) } else { shown.checked_add(by) };
        // Some thousand years, so that the wall clock itself never comes to its end.
        at.filter(|&at| wall_ns(at).unsigned_abs() < 4 * u128::from(u64::MAX))
    }

    fn create_wall(self: &Arc<Self>, slot: usize, runtime: usize, at: ByWall, script: usize, spiteful: bool) {
        self.end_wall(slot, Going::Drop, &Inside::Nothing);
        let Some((id, runtime)) = self.runtime(runtime) else { return };
        let clock = lock(&self.model).runtimes[id].clock;
        let Some(at) = self.by_wall(clock, at) else { return };
        let node = lock(&self.model).create_wall(id, wall_ns(at));
        let canary = self.canary('t', node, spiteful);
        let timer = runtime.wall_timer(at, move |tick| canary.lab.wall_tick(canary.id.1, tick, script));
        lock(&self.real).walls[slot] = Some((node, Arc::new(timer)));
    }

    fn end_wall(&self, slot: usize, how: Going, inside: &Inside<'_, '_>) {
        let Some((node, handle)) = self.wall(slot) else { return };
        if matches!(how, Going::Drop | Going::Detach) {
            let slot = lock(&self.real).walls[slot].take();
            drop(slot);
            let Ok(handle) = Arc::try_unwrap(handle) else { return self.fail("somebody else has the handle".into()) };
            let mut model = lock(&self.model);
            model.nodes[node].handle = false;
            if how == Going::Detach {
                drop(model);
                return handle.detach();
            }
            model.dispose(node);
            drop(model);
            return drop(handle);
        }
        lock(&self.model).dispose(node);
        match how {
            Going::DisposeAndWait => self.waited(node, handle.dispose_and_wait(), inside),
            Going::DisposeAsync => {
                let mut disposal = handle.dispose_async();
                match Pin::new(&mut disposal).poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(waited) => self.waited(node, waited, inside),
                    Poll::Pending => self.fail("the end of a wall timer takes time on virtual time".into()),
                }
            }
            _ => handle.dispose(),
        }
    }

    // -------------------------------------------------------------------------------------------------------- clocks

    fn advance(&self, clock: usize, by: Duration, inside: &Inside<'_, '_>) {
        if matches!(inside, Inside::Registered) {
            return; // the model keeps cancellations within advances, not the other way round
        }
        let by = self.affordable(clock, by);
        let begun = lock(&self.model).begin_advance(clock, by);
        let ran = self.clock(clock).advance(by);
        let want = if begun { lock(&self.model).end_advance(clock) } else { Ok(0) };
        if let Some(want) = self.ok(want) {
            self.same("callbacks run by an advance", ran, want);
        }
    }

    fn shut_down(&self, id: usize, runtime: Runtime, by_drop: bool) {
        lock(&self.model).shutdown(id);
        if by_drop {
            drop(runtime);
        } else {
            self.same("shutdown", runtime.shutdown(Duration::ZERO).is_ok(), true);
            self.same("timers after a shutdown", runtime.active_timers(), 0);
        }
        let outcome = lock(&self.model).all_called_out();
        self.ok(outcome);
    }

    // ---------------------------------------------------------------------------------------------------- comparison

    fn compare_clocks(&self) {
        let (real, model) = (lock(&self.real), lock(&self.model));
        for clock in 0..CLOCKS {
            self.same("the clock", ns(real.clocks[clock].now()), model.now(clock));
            self.same("the wall clock", wall_ns(real.clocks[clock].wall()), model.wall(clock));
        }
        for (id, runtime) in real.runtimes.iter().flatten() {
            self.same("the clock of a runtime", ns(runtime.now()), model.now_of(*id));
        }
    }

    /// All that can be asked.
    fn compare(&self) {
        self.compare_clocks();
        let (real, model) = (lock(&self.real), lock(&self.model));
        for clock in 0..CLOCKS {
            self.same("next due of a clock", real.clocks[clock].next_due().map(ns), model.next_due(clock));
        }
        for (id, runtime) in real.runtimes.iter().flatten() {
            self.same("next due", runtime.next_due().map(ns), model.next_due_of(*id));
            self.same("active timers", runtime.active_timers(), model.active(*id));
            let want = &model.runtimes[*id];
            self.same("callbacks begun", runtime.fired(), want.fired);
            self.same("panics", runtime.panics(), want.panics);
        }
        for (id, source) in real.sources.iter().flatten() {
            self.same("reason", source.token().reason(), model.reason(*id));
        }
        let timers = (0..model.nodes.len()).filter(|&node| model.owns(node)).map(|node| ('t', node));
        let want: BTreeSet<_> = timers.chain(model.registered().map(|callback| ('r', callback))).collect();
        self.same("what callbacks own", &*lock(&self.alive), &want);
    }

    /// Lets go of everything; nothing may be left.
    fn end(self: &Arc<Self>) {
        for slot in 0..RUNTIMES {
            self.apply(&Op::Shutdown { slot, by_drop: slot == 0 }, &Inside::Nothing);
        }
        for slot in 0..TIMERS {
            self.apply(&Op::Drop { slot }, &Inside::Nothing);
        }
        for slot in 0..WALLS {
            self.apply(&Op::EndWall { slot, how: Going::Drop }, &Inside::Nothing);
        }
        for slot in 0..FUTURES {
            self.apply(&Op::DropFuture { slot }, &Inside::Nothing);
        }
        for slot in 0..REGISTRATIONS {
            self.apply(&Op::Unregister { slot, how: slot as u8 % 4 }, &Inside::Nothing);
        }
        for slot in 0..GUARDS {
            self.apply(&Op::EndGuard { slot, how: GuardEnd::Drop }, &Inside::Nothing);
        }
        for slot in 0..SOURCES {
            self.apply(&Op::DropSource { slot }, &Inside::Nothing);
        }
        self.compare();
        self.same("what is left", lock(&self.alive).len(), 0);
    }
}
