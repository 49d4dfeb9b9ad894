//! Timers of all kinds, in slots that all actors share: made, changed, disposed, dropped, detached,
//! waited for, by threads and by callbacks.
//!
//! Ground rules. A thread that uses a timer holds the lock of its slot, so that calls for one timer
//! follow each other; callbacks only try the locks of other slots and never wait for anything. A
//! timer that changes itself is changed by no other code.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use timerqueue::{Changed, MissedTicks, OnceTimer, Runtime, Tick, Timer, TimerBuilder, Waited};

use crate::ledger::{Call, Canary, FIGURES, Kind, Page, fault, lock, must, nanos};
use crate::random::Random;
use crate::tasks::block_on;
use crate::world::{Intended, World};

const NEVER: Duration = Duration::MAX;
/// A timer with this many ticks has lived long enough.
const ENOUGH_TICKS: usize = 3_000;

enum Handle {
    Many(Timer),
    Once(OnceTimer),
}

/// A timer in its slot.
pub(crate) struct Entry {
    page: Arc<Page>,
    handle: Handle,
    changes_itself: bool,
}

pub(crate) type Slot = Mutex<Option<Entry>>;

/// What the callbacks of one timer do besides being counted.
#[derive(Clone)]
struct Mood {
    world: Arc<World>,
    seed: u64,
    /// The last tick of a timer without a handle, which disposes itself then.
    last: Option<usize>,
    changes_itself: bool,
    panics: Arc<AtomicU64>,
}

/// Times `call` by the clock of the timers.
pub(crate) fn timed<T>(runtime: &Runtime, call: impl FnOnce() -> T) -> (Call, T) {
    let before = nanos(runtime.now());
    let value = call();
    (Call { before, after: nanos(runtime.now()) }, value)
}

/// At once, below the alarm's precision, soon, in the next windows, minutes, hours, days, never.
fn some_due(random: &mut Random) -> Duration {
    match random.below(40) {
        0..4 => Duration::ZERO,
        4..7 => Duration::from_nanos(random.below(1_000)),
        7..14 => Duration::from_nanos(random.below(300_000)),
        14..22 => Duration::from_nanos(random.below(5_000_000)),
        22..30 => Duration::from_nanos(random.below(700_000_000)),
        30..34 => Duration::from_nanos(random.below(5_000_000_000)),
        34 => Duration::from_secs(60 + random.below(1_200)),
        35 => Duration::from_secs(3_600 * (90 + random.below(300))),
        36 => Duration::from_secs(random.next()),
        _ => NEVER,
    }
}

/// Mostly none; fast ones are rare, since they are what the machine is busy with.
fn some_period(random: &mut Random) -> Duration {
    match random.below(60) {
        0 => Duration::from_nanos(300_000 + random.below(3_000_000)),
        1..12 => Duration::from_nanos(5_000_000 + random.below(100_000_000)),
        12..18 => Duration::from_nanos(300_000_000 + random.below(1_500_000_000)),
        18 => Duration::from_secs(10 + random.below(1_000)),
        19 => Duration::from_secs(3_600 * (1 + random.below(200))),
        20..30 => Duration::ZERO,
        _ => NEVER,
    }
}

fn some_policy(random: &mut Random) -> MissedTicks {
    [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay][random.below(4) as usize]
}

impl Mood {
    /// The body of every callback.
    fn run(&self, canary: &Canary, tick: &Tick<'_>) {
        let page = canary.page();
        let (_running, nth) = page.begin(tick);
        let mut random = Random(self.seed.wrapping_add(nth as u64));
        if self.last.is_some_and(|last| nth >= last) {
            let (call, ()) = timed(&self.world.main, || tick.dispose());
            page.ended(call);
            return;
        }
        if self.changes_itself && random.below(3) > 0 {
            let (due, period) = (Duration::from_nanos(random.below(3_000_000)), Duration::ZERO);
            let (call, found) = timed(&self.world.main, || tick.change(due, period));
            page.armed(call, due, period, Some(found));
        }
        match random.below(400) {
            0..4 => thread::sleep(Duration::from_micros(random.below(300))),
            4 => thread::sleep(Duration::from_millis(random.below(40))),
            5 if random.below(8) == 0 => thread::sleep(Duration::from_millis(random.below(500))),
            6..12 => {
                self.panics.fetch_add(1, Ordering::SeqCst);
                FIGURES.panics.bump();
                std::panic::panic_any(Intended);
            }
            12..16 if self.last.is_none() => {
                let (call, ()) = timed(&self.world.main, || tick.dispose());
                page.ended(call);
                must(tick.change(Duration::ZERO, NEVER) == Changed::Ended, || "a disposed timer was changed".into());
            }
            16..24 if !self.world.is_ending() => make_detached(&self.world, &mut random),
            24..40 if !self.world.is_ending() => {
                // A timer of another actor, if no thread uses the timer now; without waiting.
                let slot = self.world.any_slot(&mut random);
                if let Ok(mut slot) = slot.try_lock() {
                    match random.below(3) {
                        0 => end_at_once(&self.world, slot.take(), &mut random),
                        _ => change(&self.world, slot.as_ref(), &mut random),
                    }
                }
            }
            40..44 => thread::yield_now(),
            _ => {}
        }
    }
}

/// Makes a timer of some kind, with its page.
fn make(world: &Arc<World>, random: &mut Random) -> Entry {
    make_on(world, &world.main, &world.panics, random)
}

/// As [`make`], on another runtime.
pub(crate) fn make_on(world: &Arc<World>, runtime: &Runtime, panics: &Arc<AtomicU64>, random: &mut Random) -> Entry {
    let kind = [Kind::Overlapping, Kind::Exclusive, Kind::Once][random.below(3) as usize];
    let policy = if kind == Kind::Once || random.below(3) == 0 { MissedTicks::Rebase } else { some_policy(random) };
    let (page, canary) = Page::new(kind, policy);
    let changes_itself = kind != Kind::Once && random.below(8) == 0;
    let panics = Arc::clone(panics);
    let mood = Mood { world: Arc::clone(world), seed: random.next(), last: None, changes_itself, panics };
    let due = some_due(random);
    let period = if kind == Kind::Once || changes_itself { NEVER } else { some_period(random) };
    let (call, handle) = timed(runtime, || start(runtime, kind, policy, due, period, mood, canary));
    page.armed(call, due, period, None);
    Entry { page, handle, changes_itself }
}

fn start(
    runtime: &Runtime,
    kind: Kind,
    policy: MissedTicks,
    due: Duration,
    period: Duration,
    mood: Mood,
    canary: Canary,
) -> Handle {
    // The plain constructors where they will do.
    let builder = || TimerBuilder::on(runtime).due(due).period(period).missed_ticks(policy);
    match (kind, policy) {
        (Kind::Once, _) => Handle::Once(OnceTimer::on(runtime, due, move |tick| mood.run(&canary, tick))),
        (Kind::Overlapping, MissedTicks::Rebase) => {
            Handle::Many(Timer::on(runtime, due, period, move |tick| mood.run(&canary, tick)))
        }
        (Kind::Overlapping, _) => Handle::Many(builder().start(move |tick| mood.run(&canary, tick))),
        (Kind::Exclusive, MissedTicks::Rebase) => Handle::Many(
            TimerBuilder::on(runtime).due(due).period(period).start_exclusive(move |tick| mood.run(&canary, tick)),
        ),
        (Kind::Exclusive, _) => Handle::Many(builder().start_exclusive(move |tick| mood.run(&canary, tick))),
    }
}

/// Makes a timer without a handle, which ends by itself.
fn make_detached(world: &Arc<World>, random: &mut Random) {
    let kind = [Kind::Overlapping, Kind::Exclusive, Kind::Once][random.below(3) as usize];
    let policy = if kind == Kind::Once { MissedTicks::Rebase } else { some_policy(random) };
    let (page, canary) = Page::new(kind, policy);
    let one_shot = kind == Kind::Once || random.below(2) == 0;
    let last = if one_shot { None } else { Some(1 + random.below(20) as usize) };
    let period = if one_shot { NEVER } else { Duration::from_nanos(1_000_000 + random.below(50_000_000)) };
    let due = Duration::from_nanos(random.below(2_000_000_000));
    let panics = Arc::clone(&world.panics);
    let mood = Mood { world: Arc::clone(world), seed: random.next(), last, changes_itself: false, panics };
    let (call, handle) = timed(&world.main, || start(&world.main, kind, policy, due, period, mood, canary));
    page.armed(call, due, period, None);
    match handle {
        Handle::Many(timer) => timer.detach(),
        Handle::Once(timer) => timer.detach(),
    }
    world.retired.push_detached(page, call.after, Duration::from_secs(10));
}

/// Changes the timer of a slot, if it is one that others may change.
fn change(world: &World, entry: Option<&Entry>, random: &mut Random) {
    let Some(entry) = entry.filter(|entry| !entry.changes_itself) else { return };
    let (due, period) = (some_due(random), some_period(random));
    change_to(world, entry, due, period);
}

fn change_to(world: &World, entry: &Entry, due: Duration, period: Duration) {
    match &entry.handle {
        Handle::Many(timer) => {
            let (call, found) = timed(&world.main, || timer.change(due, period));
            entry.page.armed(call, due, period, Some(found));
        }
        Handle::Once(timer) => {
            let (call, found) = timed(&world.main, || timer.reset(due));
            entry.page.armed(call, due, NEVER, Some(found));
        }
    }
}

/// Ends a timer in one of the ways that do not wait.
fn end_at_once(world: &World, entry: Option<Entry>, random: &mut Random) {
    let Some(Entry { page, handle, .. }) = entry else { return };
    let call = match (handle, random.below(2)) {
        (Handle::Many(timer), 0) => timed(&world.main, || timer.dispose()).0,
        (Handle::Once(timer), 0) => timed(&world.main, || timer.dispose()).0,
        (handle, _) => timed(&world.main, || drop(handle)).0,
    };
    page.ended(call);
    world.retired.push(page);
}

/// Ends a timer in one of all ways.
pub(crate) fn end(world: &World, entry: Entry, random: &mut Random) {
    let way = random.below(6);
    if way < 2 {
        return end_at_once(world, Some(entry), random);
    }
    let Entry { page, handle, .. } = entry;
    let (call, waited) = timed(&world.main, || match (&handle, way) {
        (Handle::Many(timer), 2) => timer.dispose_and_wait(),
        (Handle::Once(timer), 2) => timer.dispose_and_wait(),
        (Handle::Many(timer), 3) => block_on(timer.dispose_async()),
        (Handle::Once(timer), 3) => block_on(timer.dispose_async()),
        (Handle::Many(timer), _) => {
            timer.dispose();
            timer.dispose();
            must(timer.change(Duration::ZERO, Duration::ZERO) == Changed::Ended, || "changed after disposal".into());
            // Two that wait, one of which gives up.
            drop(timer.dispose_async());
            timer.dispose_and_wait()
        }
        (Handle::Once(timer), _) => {
            timer.dispose();
            must(timer.reset(Duration::ZERO) == Changed::Ended, || "changed after disposal".into());
            timer.dispose_and_wait()
        }
    });
    must(waited == Waited::Ended, || format!("waited for the end and got {waited:?}"));
    page.ended(call);
    page.waited();
    world.retired.push(page);
}

/// One random step on one random slot.
pub(crate) fn step(world: &Arc<World>, random: &mut Random) {
    let mut slot = lock(world.any_slot(random));
    let Some(entry) = slot.as_ref() else {
        *slot = Some(make(world, random));
        return;
    };
    let old = entry.page.ticks() > ENOUGH_TICKS;
    match random.below(12) {
        _ if old => end_slot(world, &mut slot, random),
        0..4 => end_slot(world, &mut slot, random),
        4 => make_detached(world, random),
        // Stopped, and then started again at once: a burst of changes.
        5 if !entry.changes_itself => {
            change_to(world, entry, NEVER, NEVER);
            change(world, Some(entry), random);
        }
        _ => change(world, Some(entry), random),
    }
}

fn end_slot(world: &Arc<World>, slot: &mut Option<Entry>, random: &mut Random) {
    if let Some(entry) = slot.take() {
        end(world, entry, random);
    }
}

/// The runtime of this timer was shut down by `call`: it can be disposed, and nothing else.
pub(crate) fn after_shutdown(world: &World, entry: Entry, call: Call, random: &mut Random) {
    let Entry { page, handle, .. } = entry;
    page.ended(call);
    let found = match &handle {
        Handle::Many(timer) => timer.change(Duration::ZERO, Duration::from_millis(1)),
        Handle::Once(timer) => timer.reset(Duration::ZERO),
    };
    must(found == Changed::Ended, || format!("changed after the shutdown of its runtime: {found:?}"));
    if random.below(2) == 0 {
        let waited = match &handle {
            Handle::Many(timer) => timer.dispose_and_wait(),
            Handle::Once(timer) => timer.dispose_and_wait(),
        };
        must(waited == Waited::Ended, || format!("waited for the end and got {waited:?}"));
        page.waited();
    }
    drop(handle);
    world.retired.push(page);
}

/// Ends all timers of all slots.
pub(crate) fn end_all(world: &World, random: &mut Random) {
    for slot in &world.slots {
        let entry = lock(slot).take();
        if let Some(entry) = entry {
            end(world, entry, random);
        }
    }
    if world.slots.iter().any(|slot| lock(slot).is_some()) {
        fault("a slot was filled after the end");
    }
}
