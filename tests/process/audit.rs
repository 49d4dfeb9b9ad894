//! How often each operation touches words that threads share: the table of `audit.md` beside this
//! file, measured. Built with `RUSTFLAGS="--cfg timerqueue_audit"` (`.ci/audit`): each atomic and
//! each lock of the crate counts its accesses.
//!
//! A cell is *loads stores updates*; an update is a read-modify-write, and a lock is two of these.
//! What a single thread does is compared exactly, with the median of many rounds. Where several
//! threads take part, the table is a limit, and no more than twice the measured.

#![cfg(timerqueue_audit)]

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use timerqueue::audit::{Place, counts};
use timerqueue::{CancellationTokenSource, Delay, Runtime, Timer};

const HOUR: Duration = Duration::from_secs(3600);
const NEVER: Duration = Duration::MAX;
/// What has no further use for a processor is asleep after this time.
const QUIET: Duration = Duration::from_millis(3);

/// Loads, stores, updates.
type Cell = [f64; 3];

/// The columns of the table, from what one timer owns to what all cores share.
const COLUMNS: [&str; 5] = ["timer", "queue", "token", "own", "shared"];

/// The words of a source file, and its column.
fn column((file, _): Place) -> usize {
    match file {
        "src/queue/state.rs" | "src/queue/node.rs" | "src/engine/waker_entry.rs" => 0,
        "src/engine/shard.rs" | "src/pool/jobs.rs" | "src/engine/waiters.rs" => 1,
        "src/engine/timer_arc.rs" => 2,
        _ if file.starts_with("src/cancellation/") => 2,
        "src/histogram.rs" | "src/pool/metrics.rs" => 3,
        _ => 4,
    }
}

/// The accesses of a run of `op`.
fn accesses(op: impl FnOnce()) -> BTreeMap<Place, Cell> {
    let before = counts();
    op();
    let after = counts();
    after
        .into_iter()
        .map(|(place, now)| {
            let then = before.get(&place).copied().unwrap_or_default();
            let cell = [now.loads - then.loads, now.stores - then.stores, now.updates - then.updates];
            (place, cell.map(|n| n as f64))
        })
        .collect()
}

/// The median of many runs of an operation, for each column, for each of the `times` that a run
/// does it.
fn median(times: f64, runs: usize, mut op: impl FnMut()) -> [Cell; COLUMNS.len()] {
    op(); // what is made once
    let runs: Vec<_> = (0..runs).map(|_| accesses(&mut op)).collect();
    let mut row = [Cell::default(); COLUMNS.len()];
    let mut words = BTreeMap::new();
    for place in runs.last().into_iter().flat_map(BTreeMap::keys).copied() {
        for part in 0..3 {
            let mut all: Vec<f64> = runs.iter().map(|run| run.get(&place).map_or(0.0, |cell| cell[part])).collect();
            all.sort_by(f64::total_cmp);
            let middle = all[all.len() / 2] / times;
            row[column(place)][part] += middle;
            words.entry(place).or_insert(Cell::default())[part] = middle;
        }
    }
    for (place, cell) in words.iter().filter(|(_, cell)| cell.iter().any(|n| *n > 0.0)) {
        println!("    {:<6} {cell:?} {}:{}", COLUMNS[column(*place)], place.0, place.1);
    }
    row
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// The table of the document: the operation, and whether its numbers are limits.
fn promised() -> BTreeMap<String, (bool, [Cell; COLUMNS.len()])> {
    let table = fs::read_to_string("tests/process/audit.md").expect("audit.md");
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default();
        let is_limit = name.ends_with("(at most)");
        let mut row = [Cell::default(); COLUMNS.len()];
        for (cell, text) in row.iter_mut().zip(cells) {
            for (n, word) in cell.iter_mut().zip(text.split(' ')) {
                *n = word.parse().unwrap_or_else(|_| if word == "-" { 0.0 } else { panic!("{line}: {word}") });
            }
        }
        (name.trim_end_matches("(at most)").trim().to_owned(), (is_limit, row))
    })
    .collect()
}

/// Checks each row; all that differ are told together.
#[derive(Default)]
struct Audit {
    measured: BTreeMap<&'static str, [Cell; COLUMNS.len()]>,
}

impl Audit {
    fn row(&mut self, name: &'static str, times: f64, runs: usize, op: impl FnMut()) {
        println!("{name}");
        self.measured.insert(name, median(times, runs, op));
    }

    fn compare(self) {
        let promised = promised();
        let mut wrong = Vec::new();
        assert_eq!(
            promised.keys().map(String::as_str).collect::<Vec<_>>(),
            self.measured.keys().copied().collect::<Vec<_>>(),
            "the operations of the table"
        );
        for (name, measured) in &self.measured {
            let (is_limit, row) = &promised[*name];
            let sum = |row: &[Cell; COLUMNS.len()]| row.iter().flatten().sum::<f64>();
            let within = row.iter().flatten().zip(measured.iter().flatten()).all(|(limit, n)| n <= limit);
            if (*is_limit && !(within && sum(row) <= 2.0 * sum(measured))) || (!is_limit && row != measured) {
                let show = |row: &[Cell; COLUMNS.len()]| {
                    row.map(|cell| {
                        cell.map(|n| format!("{:.4}", n).trim_end_matches('0').trim_end_matches('.').to_owned())
                            .join(" ")
                    })
                    .join(" | ")
                };
                wrong.push(format!("| {name} | {} |", show(measured)));
            }
        }
        assert!(wrong.is_empty(), "audit.md says otherwise; measured:\n{}", wrong.join("\n"));
    }
}

/// A runtime with one queue, whose alarm is set for a timer that does not fire.
fn runtime() -> (Runtime, timerqueue::Timer) {
    let runtime = Runtime::builder().queues(1).workers(2).start().expect("threads and alarms");
    let early = Timer::on(&runtime, Duration::from_secs(60), NEVER, |_| {});
    sleep(10 * QUIET);
    (runtime, early)
}

fn timers(audit: &mut Audit, runtime: &Runtime) {
    let mut timers = Vec::new();
    audit.row("create a timer", 1.0, 30, || timers.push(Timer::on(runtime, HOUR, HOUR, |_| {})));
    audit.row("change a timer", 1.0, 30, || {
        timers[0].change(HOUR, HOUR);
    });
    audit.row("drop a timer", 1.0, 30, || drop(timers.pop()));
    let mut delays = Vec::new();
    audit.row("create a `Delay`", 1.0, 30, || delays.push(Box::pin(Delay::on(runtime, HOUR))));
    let mut waiting = delays.split_off(0).into_iter();
    audit.row("poll a `Delay` first", 1.0, 30, || {
        let mut delay = waiting.next().expect("as many as runs");
        assert!(poll(delay.as_mut()).is_pending());
        delays.push(delay);
    });
    audit.row("reset a waiting `Delay` to later", 1.0, 30, || delays[0].reset(HOUR));
    audit.row("reset a waiting `Delay` to earlier", 1.0, 30, || {
        let deadline = delays[0].deadline();
        delays[0].reset_at(deadline.checked_sub(Duration::from_secs(1)).expect("an hour ahead"));
    });
    audit.row("drop a waiting `Delay`", 1.0, 30, || drop(delays.pop()));
}

fn tokens(audit: &mut Audit) {
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    let (mut children, mut registrations) = (Vec::new(), Vec::new());
    audit.row("look at a token", 1.0, 30, || assert!(!token.is_cancelled()));
    audit.row("link a child", 1.0, 30, || children.push(token.child_source()));
    audit.row("drop a child", 1.0, 30, || drop(children.pop()));
    audit.row("register a callback", 1.0, 30, || registrations.push(token.register(|| {})));
    audit.row("drop a registration", 1.0, 30, || drop(registrations.pop()));
    let mut sources: Vec<_> = (0..40).map(|_| CancellationTokenSource::new()).collect();
    audit.row("cancel a source that has nothing", 1.0, 30, || {
        let source = sources.pop().expect("as many as runs");
        source.cancel();
        std::mem::forget(source);
    });
}

fn firing(audit: &mut Audit, runtime: &Runtime) {
    audit.row("fire a lone timer", 1.0, 60, || {
        let timer = Timer::on(runtime, Duration::from_millis(1), NEVER, |_| {});
        sleep(Duration::from_millis(1) + QUIET);
        std::mem::forget(timer);
    });
    audit.row("submit a job to an idle pool", 1.0, 60, || {
        runtime.execute(|| {});
        sleep(QUIET);
    });
    const STORM: usize = 5_000;
    audit.row("fire one of many timers", STORM as f64, 9, || {
        let start = Instant::now();
        for _ in 0..STORM {
            std::mem::forget(Timer::on(
                runtime,
                Duration::from_millis(300).saturating_sub(start.elapsed()),
                NEVER,
                |_| {},
            ));
        }
        sleep(Duration::from_millis(400));
    });
    audit.row("wake one of many tasks", STORM as f64, 9, || {
        let start = Instant::now();
        let mut delays: Vec<_> = (0..STORM)
            .map(|_| Box::pin(Delay::on(runtime, Duration::from_millis(300).saturating_sub(start.elapsed()))))
            .collect();
        for delay in &mut delays {
            assert!(poll(delay.as_mut()).is_pending());
        }
        sleep(Duration::from_millis(400));
        for delay in &mut delays {
            assert!(poll(delay.as_mut()).is_ready());
        }
    });
}

#[test]
fn operations_touch_the_words_that_the_design_names() {
    let mut audit = Audit::default();
    let (runtime, _early) = runtime();
    timers(&mut audit, &runtime);
    tokens(&mut audit);
    firing(&mut audit, &runtime);
    audit.compare();
}
