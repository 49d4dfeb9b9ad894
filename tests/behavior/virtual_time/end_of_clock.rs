//! The end of a manual clock (S3, S51): an advance returns, and never is never.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use timerqueue::{
    Delay, Interval, ManualClock, MissedTicks, OnceTimer, Runtime, RuntimeClock, Timer, TimerBuilder, Timestamp,
};

use crate::support::{Journal, NEVER, PATIENCE, Random, manual, ns, secs, within};

fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn s51_an_advance_at_the_end_of_the_clock_returns() {
    within(PATIENCE, "an advance at the end of the clock", || {
        let (clock, runtime) = manual();
        assert_eq!(clock.advance(NEVER), 0);
        let timer = OnceTimer::on(&runtime, Duration::ZERO, |_| {});
        assert_eq!((clock.advance(Duration::ZERO), clock.advance(NEVER)), (1, 0));
        drop(timer);
    });
    within(PATIENCE, "an advance to the end of the clock, in two steps, past a delay without end", || {
        let (clock, runtime) = manual();
        let mut delay = Delay::on(&runtime, NEVER);
        assert!(pending(&mut delay));
        assert_eq!(clock.advance(ns(u64::MAX) - secs(100)), 0);
        let timer = Timer::on(&runtime, secs(1), secs(30), |_| {});
        assert_eq!((clock.advance(NEVER), clock.advance(NEVER)), (4, 0));
        assert!(pending(&mut delay));
        drop(timer);
    });
}

#[test]
fn s03_never_is_never_at_the_end_of_the_clock_too() {
    let (clock, runtime) = manual();
    let mut delay = Delay::on(&runtime, NEVER);
    let mut until = runtime.enter(|| Delay::until(clock.now() + NEVER));
    let mut interval = Interval::on(&runtime, NEVER);
    let timer = Timer::on(&runtime, secs(1), NEVER, |_| {});
    assert!(pending(&mut delay) && pending(&mut until) && pending(&mut Box::pin(interval.tick())));
    // The loop of a test.
    let mut fired = 0;
    while let Some(at) = clock.next_due() {
        fired += clock.advance(at - clock.now());
    }
    assert_eq!((fired, clock.now().as_duration(), runtime.next_due()), (1, secs(1), None));
    assert_eq!(clock.advance(NEVER), 0);
    assert!(pending(&mut delay) && pending(&mut until) && pending(&mut Box::pin(interval.tick())));
    assert!(!delay.is_elapsed() && !until.is_elapsed());
    // A timer due after the last instant is never due; a timer due at the last instant fires.
    let mut second = Delay::on(&runtime, secs(1));
    assert!(pending(&mut second) && pending(&mut Box::pin(Interval::on(&runtime, secs(1)).tick())));
    assert!(!pending(&mut Delay::on(&runtime, Duration::ZERO)));
    second.reset(Duration::ZERO);
    assert!(!pending(&mut second));
    let idle = TimerBuilder::on(&runtime).due(ns(1)).leeway(secs(1)).start(|_| {});
    let leeway = TimerBuilder::on(&runtime).due(Duration::ZERO).leeway(secs(1)).start(|_| {});
    assert_eq!((runtime.next_due(), clock.advance(NEVER)), (Some(clock.now()), 1));
    assert_eq!(runtime.metrics().active, 3, "those without end for which a task waits");
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert!(pending(&mut delay) && pending(&mut until), "the end of the runtime is none of a plain delay");
    assert!(!pending(&mut Box::pin(delay.try_wait())) && !pending(&mut Box::pin(until.try_wait())), "it can be asked");
    drop((timer, idle, leeway));
}

#[test]
fn s56_a_wall_clock_whose_time_does_not_fit_stands_still_at_its_end() {
    let clock = ManualClock::new();
    // The last possible time, found by bisection.
    let mut last = SystemTime::UNIX_EPOCH;
    let mut step = Duration::MAX;
    while step > Duration::ZERO {
        match last.checked_add(step) {
            Some(later) => last = later,
            None => step /= 2,
        }
    }
    clock.set_wall(last - secs(10));
    clock.advance(secs(9));
    assert_eq!(clock.wall(), last - secs(1));
    let mut shown = clock.wall();
    for _ in 0..5 {
        clock.advance(secs(1));
        assert!(clock.wall() >= shown, "it does not go back");
        shown = clock.wall();
    }
    assert!(last.duration_since(shown).is_ok_and(|short| short < ns(200)), "{:?}", last.duration_since(shown));
}

// ------------------------------------------------------------------------------------------------------ random programs

/// The last instant that a clock shows.
const LAST: u64 = u64::MAX - 2;

fn later(at: u64, ns: u64) -> Option<u64> {
    at.checked_add(ns).filter(|&at| at <= LAST)
}

/// A timer or delay of the model.
#[derive(Clone, Default)]
struct Item {
    boot: bool,
    due: Option<u64>,
    period: Option<u64>,
    /// The grid on which it fires.
    grid: u64,
}

impl Item {
    fn fires_at(&self) -> Option<u64> {
        self.due.map(|due| if self.grid == 0 { due } else { due.checked_next_multiple_of(self.grid).unwrap_or(due) })
    }
}

/// The model of a clock.
#[derive(Default)]
struct Model {
    now: u64,
    suspended: u64,
    items: Vec<Item>,
}

impl Model {
    fn shown(&self, boot: bool) -> u64 {
        if boot { self.now.saturating_add(self.suspended).min(LAST) } else { self.now }
    }

    /// The instant at which an item fires, on the monotonic clock.
    fn at(&self, item: &Item) -> Option<u64> {
        item.fires_at().map(|at| if item.boot { at.saturating_sub(self.suspended) } else { at })
    }

    fn advance(&mut self, by: u64) -> Vec<(u64, usize)> {
        let target = self.now.saturating_add(by).min(LAST);
        let mut fired = Vec::new();
        loop {
            let first = (0..self.items.len()).filter_map(|id| Some((self.at(&self.items[id])?, id))).min();
            let Some((at, id)) = first.filter(|&(at, _)| at <= target) else { break };
            self.now = self.now.max(at);
            fired.push((self.now, id));
            let now = self.shown(self.items[id].boot);
            let Item { due, period, .. } = self.items[id].clone();
            // `MissedTicks::Delay`.
            self.items[id].due = period.and_then(|period| {
                let due = due.expect("it fires");
                later(if now - due < period { due } else { now }, period)
            });
        }
        self.now = target;
        fired
    }
}

struct Wakes(Journal<(u64, usize)>, ManualClock, usize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.push((instant(self.1.now()), self.2));
    }
}

fn instant(at: Timestamp) -> u64 {
    u64::try_from(at.as_duration().as_nanos()).expect("64 bits")
}

/// A random program: timers, with and without leeway, and delays, on both clocks, are armed and
/// changed while the clock goes to its end.
fn program(seed: u64) {
    let mut random = Random(seed);
    let clock = ManualClock::new();
    let on = |boot| {
        let which = if boot { RuntimeClock::Boot } else { RuntimeClock::Monotonic };
        Runtime::builder().manual_clock(&clock).clock(which).queues(2).start().expect("nothing to refuse")
    };
    let runtimes = [on(false), on(true)];
    let journal: Journal<(u64, usize)> = Journal::new();
    let mut model = Model::default();
    let mut timers: Vec<(usize, Timer)> = Vec::new();
    let mut delays = Vec::new();
    let near = [0, 1, 1_000, 100_000_000, 100_000_000_000][random.below(5) as usize];
    clock.stall(ns(LAST - near));
    model.now = LAST - near;
    let some = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => random.below(10),
        2 => u64::MAX,
        3 => near,
        4 => near.saturating_sub(1),
        5 => near + 1,
        _ => random.below(2 * near + 10),
    };
    for _ in 0..60 {
        let boot = random.below(2) == 1;
        let runtime = &runtimes[usize::from(boot)];
        let (after, shown) = (some(&mut random), model.shown(boot));
        // Few ticks up to the end.
        let period = Some(near / 20 + 1 + random.below(near + 10)).filter(|_| random.below(2) == 0);
        let every = period.map_or(NEVER, ns);
        match random.below(8) {
            0 | 1 => {
                let id = model.items.len();
                let grid = [0, 1_000, 1_000_000_000][random.below(3) as usize];
                let (journal, clock) = (journal.clone(), clock.clone());
                let builder = TimerBuilder::on(runtime).due(ns(after)).period(every).leeway(ns(grid));
                let timer = builder.missed_ticks(MissedTicks::Delay);
                timers.push((id, timer.start(move |_| journal.push((instant(clock.now()), id)))));
                model.items.push(Item { boot, due: later(shown, after), period, grid });
            }
            2 => {
                let id = model.items.len();
                let mut delay = Delay::on(runtime, ns(after));
                let waker = Waker::from(Arc::new(Wakes(journal.clone(), clock.clone(), id)));
                let polled = Pin::new(&mut delay).poll(&mut Context::from_waker(&waker));
                assert_eq!(polled, if after == 0 { Poll::Ready(()) } else { Poll::Pending }, "seed {seed}");
                let due = later(shown, after).filter(|_| polled.is_pending());
                model.items.push(Item { boot, due, ..Item::default() });
                delays.push(delay);
            }
            3 | 4 if !timers.is_empty() => {
                let (id, timer) = &timers[random.below(timers.len() as u64) as usize];
                let _ = timer.change(ns(after), every);
                let due = later(model.shown(model.items[*id].boot), after);
                (model.items[*id].due, model.items[*id].period) = (due, period);
            }
            5 => {
                clock.suspend(ns(after));
                model.suspended = model.suspended.saturating_add(after);
            }
            _ => {
                let fired = clock.advance(ns(after));
                let mut want = model.advance(after);
                let mut got = journal.take();
                assert_eq!(fired, got.len() as u64, "seed {seed}");
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "seed {seed}");
                assert_eq!(instant(clock.now()), model.now, "seed {seed}");
                let next = model.items.iter().filter_map(|item| model.at(item)).min();
                assert_eq!(clock.next_due().map(instant), next, "seed {seed}");
            }
        }
    }
}

#[test]
fn s51_random_programs_at_the_end_of_the_clock_come_to_an_end() {
    within(2 * PATIENCE, "programs at the end of the clock", || (0..200).for_each(program));
}
