//! A tour: timers made, changed and disposed by several threads at once, and a log of what fired
//! when, and how late.
//!
//! ```text
//! cargo run --release --example tour
//! ```
//!
//! Callbacks only note what they saw and send it to the main thread, which prints it: printing
//! takes longer than firing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use timerqueue::{Changed, Runtime, Tick, Timer, TimerBuilder, Timestamp, Waited, error::StartError};

const ONCE: Duration = Duration::ZERO;
const IDLE: Duration = Duration::MAX;

/// Kinds of timers, as the summary lists them.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    OneShot,
    Periodic,
    Exclusive,
    Fast,
}

impl Kind {
    const ALL: [Self; 4] = [Self::OneShot, Self::Periodic, Self::Exclusive, Self::Fast];

    fn title(self) -> &'static str {
        match self {
            Self::OneShot => "one-shot",
            Self::Periodic => "periodic",
            Self::Exclusive => "periodic, no overlap",
            Self::Fast => "periodic, every 500 us",
        }
    }
}

/// Something to print.
enum Entry {
    Fired { kind: Kind, name: String, scheduled: Timestamp, now: Timestamp, missed: u64 },
    Done { at: Timestamp, text: String },
}

/// One firing, as the summary sees it.
struct Firing {
    kind: Kind,
    /// `None`: early.
    late: Option<Duration>,
    missed: u64,
}

/// What the summary counts besides firings.
#[derive(Default)]
struct Counts {
    changed: AtomicUsize,
    disposed: AtomicUsize,
}

/// What each thread of the tour works with.
struct Guide<'a> {
    runtime: &'a Runtime,
    counts: &'a Counts,
    log: Sender<Entry>,
}

impl Guide<'_> {
    /// A callback that reports its ticks under this name.
    fn report(&self, kind: Kind, name: impl Into<String>) -> impl Fn(&Tick<'_>) + Send + Sync + 'static {
        let (log, name) = (self.log.clone(), name.into());
        move |tick| {
            let (now, scheduled) = (tick.now(), tick.scheduled());
            // Nobody listens any more when the tour is over.
            let _ = log.send(Entry::Fired { kind, name: name.clone(), scheduled, now, missed: tick.missed() });
        }
    }

    fn note(&self, text: impl Into<String>) {
        let _ = self.log.send(Entry::Done { at: self.runtime.now(), text: text.into() });
    }

    fn change(&self, name: &str, timer: &Timer, due: Duration, period: Duration) {
        let outcome = match timer.change(due, period) {
            Changed::WasWaiting => "it was waiting",
            Changed::WasIdle => "it was idle",
            _ => "too late",
        };
        self.counts.changed.fetch_add(1, Ordering::Relaxed);
        let when = if due == IDLE { String::from("never") } else { format!("in {due:?}") };
        let then = if period == ONCE { String::new() } else { format!(", then every {period:?}") };
        self.note(format!("'{name}' changed: {when}{then} ({outcome})"));
    }

    fn dispose(&self, name: &str, timer: &Timer) {
        timer.dispose();
        self.counts.disposed.fetch_add(1, Ordering::Relaxed);
        self.note(format!("'{name}' disposed"));
    }
}

/// One-shots near and far, one of them disposed in time.
fn one_shots(guide: &Guide<'_>) {
    let one_shot = |name: &str, due| Timer::on(guide.runtime, due, ONCE, guide.report(Kind::OneShot, name));
    let timers = [
        one_shot("at once", Duration::ZERO),
        one_shot("in 250 us", Duration::from_micros(250)),
        one_shot("in 5 ms, and again", Duration::from_millis(5)),
        one_shot("in 333 ms", Duration::from_millis(333)),
        one_shot("in 1.234567891 s", Duration::from_nanos(1_234_567_891)),
    ];
    let doomed = one_shot("never to be seen", Duration::from_millis(700));
    thread::sleep(Duration::from_millis(600));
    guide.dispose("never to be seen", &doomed);
    thread::sleep(Duration::from_millis(800));
    // Fired, hence idle, and good for another round.
    guide.change("in 5 ms, and again", &timers[2], Duration::from_millis(150), ONCE);
    thread::sleep(Duration::from_millis(400));
}

/// A heartbeat that changes its pace, and one that stops itself.
fn heartbeats(guide: &Guide<'_>) {
    let every = Duration::from_millis(200);
    let heartbeat = Timer::on(guide.runtime, every, every, guide.report(Kind::Periodic, "heartbeat"));

    let report = guide.report(Kind::Exclusive, "three ticks and out");
    let mut left = 3;
    let counting = TimerBuilder::on(guide.runtime).period(Duration::from_millis(40)).start_exclusive(move |tick| {
        report(tick);
        left -= 1;
        if left == 0 {
            tick.dispose();
        }
    });

    thread::sleep(Duration::from_millis(900));
    assert_eq!(counting.change(every, every), Changed::Ended, "it has disposed itself");
    guide.counts.disposed.fetch_add(1, Ordering::Relaxed);
    guide.change("heartbeat", &heartbeat, Duration::from_millis(50), Duration::from_millis(100));
    thread::sleep(Duration::from_millis(500));
    guide.change("heartbeat", &heartbeat, IDLE, ONCE);
    thread::sleep(Duration::from_millis(200));
    guide.change("heartbeat", &heartbeat, Duration::from_millis(100), ONCE);
    thread::sleep(Duration::from_millis(200));
    let waited = heartbeat.dispose_and_wait();
    assert_eq!(waited, Waited::Ended, "not called from its own callback");
    guide.counts.disposed.fetch_add(1, Ordering::Relaxed);
    guide.note("'heartbeat' disposed and waited for: no callback runs any more");
}

/// An idle timeout, pushed back by each activity until there is none.
fn idle_timeout(guide: &Guide<'_>) {
    let limit = Duration::from_millis(450);
    let timeout = Timer::on(guide.runtime, limit, ONCE, guide.report(Kind::OneShot, "connection idle for 450 ms"));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(300));
        guide.change("connection idle for 450 ms", &timeout, limit, ONCE);
    }
    thread::sleep(Duration::from_millis(600));
}

/// What servers do all day: timeouts that are disposed because the answer came. None of them fires.
fn answered_in_time(guide: &Guide<'_>) {
    const REQUESTS: usize = 200_000;
    let began = guide.runtime.now();
    for _ in 0..REQUESTS {
        let timeout = Timer::on(guide.runtime, Duration::from_secs(30), ONCE, |_| unreachable!("answered in time"));
        timeout.dispose();
    }
    let each = (guide.runtime.now() - began) / REQUESTS as u32;
    guide.counts.disposed.fetch_add(REQUESTS, Ordering::Relaxed);
    guide.note(format!("{REQUESTS} timeouts of 30 s created and disposed, {each:?} each"));
}

/// Sub-millisecond periods are periods like any other.
fn fast(guide: &Guide<'_>) {
    let every = Duration::from_micros(500);
    let timer = Timer::on(guide.runtime, every, every, guide.report(Kind::Fast, "every 500 us"));
    thread::sleep(Duration::from_secs(2));
    guide.dispose("every 500 us", &timer);
}

/// Prints entries as they come, but for the ticks of the fast timer, and returns the firings.
fn print(entries: &Receiver<Entry>, start: Timestamp) -> Vec<Firing> {
    println!("{:>12}  {:<32}{:>12}", "at", "what", "late");
    let ms = |at: Timestamp| format!("{:.3} ms", (at - start).as_secs_f64() * 1e3);
    let mut firings = Vec::new();
    for entry in entries {
        match entry {
            Entry::Fired { kind, name, scheduled, now, missed } => {
                let late = (now >= scheduled).then(|| now - scheduled);
                firings.push(Firing { kind, late, missed });
                if kind != Kind::Fast {
                    println!("{:>12}  {name:<32}{:>12}", ms(now), late.map_or(String::from("EARLY"), us));
                }
            }
            Entry::Done { at, text } => println!("{:>12}    - {text}", ms(at)),
        }
    }
    firings
}

fn us(time: Duration) -> String {
    format!("{:.1} us", time.as_secs_f64() * 1e6)
}

fn summary(firings: &[Firing], counts: &Counts) {
    println!("\n{:<24}{:>8}{:>12}{:>12}{:>12}{:>10}", "fired", "count", "late p50", "p99", "max", "missed");
    for kind in Kind::ALL {
        let of_kind = || firings.iter().filter(|firing| firing.kind == kind);
        let mut late: Vec<_> = of_kind().map(|firing| firing.late.unwrap_or_default()).collect();
        late.sort_unstable();
        if late.is_empty() {
            continue;
        }
        let missed: u64 = of_kind().map(|firing| firing.missed).sum();
        let late_at = |q: f64| us(late[((late.len() - 1) as f64 * q) as usize]);
        let (p50, p99, max) = (late_at(0.5), late_at(0.99), late_at(1.0));
        println!("{:<24}{:>8}{p50:>12}{p99:>12}{max:>12}{missed:>10}", kind.title(), late.len());
    }
    let early = firings.iter().filter(|firing| firing.late.is_none()).count();
    let (changed, disposed) = (counts.changed.load(Ordering::Relaxed), counts.disposed.load(Ordering::Relaxed));
    println!("\nchanged {changed}, disposed {disposed}, early {early}");
    assert_eq!(early, 0, "no timer fires early");
}

fn main() -> Result<(), StartError> {
    let runtime = Runtime::builder().start()?;
    let counts = &Counts::default();
    println!("{} queues, {} threads\n", runtime.queues(), runtime.metrics().threads.alive);

    let (log, entries) = channel();
    let start = runtime.now();
    let firings = thread::scope(|scope| {
        for part in [one_shots, heartbeats, idle_timeout, answered_in_time, fast] {
            let guide = Guide { runtime: &runtime, counts, log: log.clone() };
            scope.spawn(move || part(&guide));
        }
        // The log ends when all senders are gone: those of the threads, and those of the callbacks.
        drop(log);
        print(&entries, start)
    });
    summary(&firings, counts);
    Ok(())
}
