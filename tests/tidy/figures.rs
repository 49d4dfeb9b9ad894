//! Figures: each stands in one place. The tables of docs/BENCHMARKS.md are made from a run's file,
//! and what other documents repeat is compared with them.
//!
//! `TIMERQUEUE_FIGURES=write cargo test --test tidy figures` writes the tables again, after a run
//! that has written another docs/run.jsonl.

use std::collections::BTreeSet;
use std::fs;

use super::{read, root};

const RUN: &str = "docs/run.jsonl";
const BENCHMARKS: &str = "docs/BENCHMARKS.md";
const PLATFORM: &str = "docs/PLATFORM.md";

/// One figure of a cell: its title in the run (or its contenders, parted by a bar), metric, number
/// of threads, and form.
type Part = (&'static str, &'static str, usize, Form);

#[derive(Clone, Copy)]
enum Form {
    /// A whole number.
    Whole,
    /// One decimal.
    Tenths,
    /// With a unit: the metric's value is in nanoseconds, microseconds or milliseconds.
    Time(f64),
}

use Form::{Tenths, Time, Whole};

struct Table {
    /// Words of the line with the heads of the columns.
    head: &'static str,
    /// Whether a row is a title and a column contenders, or the other way about.
    by_title: bool,
    /// First cell, and the names in the run: the first one that the run has counts.
    rows: &'static [(&'static str, &'static [&'static str])],
    /// Column, and what its cells have.
    columns: &'static [(usize, &'static [Part])],
}

const EACH: &str = "ns per operation";
const CREATED: &str = "create and dispose a timer due in 30 s; a heartbeat pending";
const CREATED_BESIDE: &str = "create and dispose a timer due in 30 s; 1,000,000 pending";
const CHANGED: &str = "change a timer to 30 s from now, later than it was; a heartbeat pending";
const TO_AND_FRO: &str = "change a timer to and fro, to 20 s and to 30 s from now; a heartbeat pending";
const STORM_10: &str = "storm of 10000, due within 1 s";
const STORM_100: &str = "storm of 100000, due within 1 s";
const STORM_1000: &str = "storm of 1000000, due within 1 s";
const AT_ONCE: &str = "storm of 1000000, all due at one instant";
const SHARING: &str = "storm of 1000000, all due at one instant, callbacks that share a counter and a reference";
const FIRE: &str = "CPU ns to fire one";
const MAKE: &str = "CPU ns to make one";
const WAKEUPS: &str = "thread wake-ups per 1,000";
const P50: &str = "late p50, us";
const P99: &str = "late p99, us";
const LAST: &str = "last one ran after the last was due, ms";
const ALONE: &str = "lateness of a timer, 1 to 10 ms ahead, when no other one fires";
const PENDING: &str = "lateness of a timer, 1 to 10 ms ahead, beside 100000 pending";
const TICKING: &str = "lateness of a timer, 1 to 10 ms ahead, beside 10000 periodic ones of 100 ms";
const IDLE: &str = "idle for 10 s with 100000 pending";
const JITTER: &str = "a periodic timer of 10 ms for 1000 ticks";
const JITTER_P50: &str = "jitter p50, us";
const BLOCKED: &str = "64 callbacks block for 2 s; 16 periodic timers of 10 ms beside them";
const INSERT: &str = "insert and remove an entry, 10000 pending";
const MOVE: &str = "move an entry, 10000 pending";
const INSERT_BESIDE: &str = "insert and remove an entry, 1000000 pending";
const SESSIONS: &str = "touch one of a million sessions, at random";
const MEMORY: &str = "resident memory per pending timer, of a million";
const BYTES: &str = "bytes";
const TAKE: &str = "take a due entry, 10000 pending";

const TOKIO: &str = "tokio*multi_thread|tokio-util*";

const STORM_COLUMNS: &[(usize, &[Part])] = &[
    (1, &[(STORM_10, FIRE, 1, Time(1.0)), (STORM_10, P50, 1, Time(1e3))]),
    (2, &[(STORM_100, FIRE, 1, Time(1.0)), (STORM_100, P50, 1, Time(1e3))]),
    (3, &[(STORM_1000, FIRE, 1, Time(1.0)), (STORM_1000, P50, 1, Time(1e3))]),
    (4, &[(AT_ONCE, FIRE, 1, Time(1.0)), (AT_ONCE, LAST, 1, Time(1e6))]),
];

const TABLES: &[Table] = &[
    Table {
        head: "| create + dispose | 1,000,000 pending |",
        by_title: false,
        rows: &[
            ("timerqueue `Timer`", &["timerqueue Timer"]),
            ("timerqueue `Delay`", &["timerqueue Delay, polled", "timerqueue Delay"]),
            ("tokio, current_thread", &["tokio sleep, polled, current_thread", "tokio sleep, current_thread"]),
            ("tokio, multi_thread", &["tokio sleep, polled, multi_thread", "tokio sleep, multi_thread"]),
            ("tokio-util `DelayQueue`, not shared", &["tokio-util DelayQueue, one owner each"]),
            ("async-io", &["async-io Timer, polled", "async-io Timer"]),
            ("hierarchical_hash_wheel_timer, not shared", &["hierarchical_hash_wheel_timer, a wheel each, no clock"]),
            ("Netty, 1 ms ticks", &["Netty HashedWheelTimer, 1 ms ticks"]),
            ("Java", &["Java ScheduledThreadPoolExecutor"]),
            ("Go", &["Go time.AfterFunc"]),
            ("baseline: lock, clock, list", &["baseline: list, lock, clock"]),
            ("baseline with malloc", &["baseline: with malloc and free"]),
        ],
        columns: &[
            (1, &[(CREATED, EACH, 1, Whole), (CREATED, EACH, 2, Whole)]),
            (2, &[(CREATED_BESIDE, EACH, 1, Whole), (CREATED_BESIDE, EACH, 2, Whole)]),
            (3, &[(CHANGED, EACH, 1, Whole), (CHANGED, EACH, 2, Whole)]),
            (4, &[(TO_AND_FRO, EACH, 1, Whole), (TO_AND_FRO, EACH, 2, Whole)]),
        ],
    },
    Table {
        head: "| 10,000 in 1 s |",
        by_title: false,
        rows: &[
            ("timerqueue", &["timerqueue callbacks"]),
            ("timerqueue, 1 ms of leeway", &["timerqueue callbacks, 1 ms of leeway"]),
            ("tokio-util `DelayQueue`", &["tokio-util DelayQueue, owned by a task of multi_thread"]),
            ("hierarchical_hash_wheel_timer", &["hierarchical_hash_wheel_timer, its thread"]),
            ("a thread with a heap", &["one thread with a heap, boxed callbacks"]),
            ("Netty, 1 ms ticks", &["Netty HashedWheelTimer, 1 ms ticks"]),
            ("Go", &["Go time.AfterFunc"]),
            ("baseline", &["baseline: timerfd and epoll"]),
            ("baseline, 1 ms of leeway", &["baseline: timerfd and epoll, 1 ms of leeway"]),
            ("timerqueue, async-executor", &["timerqueue Delay, tasks of async-executor, 2 threads"]),
            ("baseline, async-executor", &["baseline: sorted wakers, tasks of async-executor, 2 threads"]),
            ("timerqueue, tokio multi_thread", &["timerqueue Delay and Interval, tasks of tokio multi_thread"]),
            ("the same, 1 ms of leeway", &["timerqueue Delay, 1 ms of leeway, tasks of tokio multi_thread"]),
            ("tokio multi_thread", &["tokio, tasks of multi_thread"]),
            ("async-io, async-executor", &["async-io, tasks of async-executor, 2 threads"]),
            ("timerqueue, tokio current_thread", &["timerqueue Delay, tasks of tokio current_thread"]),
            ("tokio current_thread", &["tokio, tasks of current_thread"]),
            ("baseline, tokio multi_thread", &["baseline: sorted wakers, tasks of tokio multi_thread"]),
        ],
        columns: STORM_COLUMNS,
    },
    Table {
        head: "| alone | beside 100,000 pending |",
        by_title: false,
        rows: &[
            ("timerqueue", &["timerqueue callbacks"]),
            ("timerqueue, 1 ms of leeway", &["timerqueue callbacks, 1 ms of leeway"]),
            ("tokio, current_thread", &["tokio, tasks of current_thread", "tokio sleep, current_thread, block_on"]),
            ("tokio, multi_thread", &["tokio, tasks of multi_thread"]),
            ("tokio-util `DelayQueue`", &["tokio-util DelayQueue, owned by a task of multi_thread"]),
            ("async-io", &["async-io, tasks of async-executor, 2 threads", "async-io Timer, block_on"]),
            ("a thread with a heap", &["one thread with a heap, boxed callbacks"]),
            ("a thread each", &["std threads, one each", "std::thread::sleep"]),
            ("Netty, 1 ms ticks", &["Netty HashedWheelTimer, 1 ms ticks"]),
            ("Java", &["Java ScheduledThreadPoolExecutor"]),
            ("Go", &["Go time.AfterFunc"]),
            ("baseline: timerfd + epoll", &["baseline: timerfd and epoll"]),
        ],
        columns: &[
            (1, &[(ALONE, P50, 1, Whole), (ALONE, P99, 1, Whole)]),
            (2, &[(PENDING, P50, 1, Whole), (PENDING, P99, 1, Whole)]),
            (3, &[(TICKING, P50, 1, Whole), (TICKING, "CPU ms per second", 1, Whole)]),
            (4, &[(IDLE, "thread wake-ups in 10 s", 1, Whole)]),
            (5, &[(BLOCKED, "excess gap worst, ms", 1, Tenths)]),
        ],
    },
    Table {
        head: "| insert and remove | move | take a due entry |",
        by_title: false,
        rows: &[
            ("timerqueue `DelayQueue`, keyed", &["timerqueue DelayQueue, keyed"]),
            ("tokio-util `DelayQueue`, `HashMap`, keyed", &["tokio-util DelayQueue, HashMap and a mutex, keyed"]),
            ("tokio-util `DelayQueue`, unkeyed", &["tokio-util DelayQueue and a mutex, unkeyed"]),
            ("`BTreeMap`, unkeyed", &["BTreeMap, mutex and condvar, unkeyed"]),
            ("heap and `HashMap`, keyed", &["heap, HashMap, mutex and condvar, keyed"]),
            ("Java `DelayQueue`, unkeyed", &["Java DelayQueue, unkeyed"]),
        ],
        columns: &[
            (1, &[(INSERT, EACH, 1, Whole), (INSERT, EACH, 2, Whole)]),
            (2, &[(MOVE, EACH, 1, Whole), (MOVE, EACH, 2, Whole)]),
            (3, &[(TAKE, EACH, 1, Whole), (TAKE, EACH, 2, Whole)]),
        ],
    },
    Table {
        head: "| timerqueue | tokio, tokio-util |",
        by_title: true,
        rows: &[
            ("create, poll, drop a pending sleep of 30 s", &["create, poll, drop a pending sleep of 30 s"]),
            ("timeout around a ready future", &["timeout of 30 s around a future that is ready: create, poll, drop"]),
            (
                "timeout around a pending future",
                &["timeout of 30 s around a future that is pending: create, poll, drop"],
            ),
            ("reset a pending sleep to later", &["reset a pending sleep to 30 s from now, later than it was"]),
            (
                "take a tick of an interval that is behind",
                &["take a tick of an interval that is behind: one is always due"],
            ),
            (
                "make a source and a second handle, cancel, look, drop",
                &["make a source and a second handle, cancel, read the status, drop"],
            ),
            (
                "register and unregister a waiter of a shared token",
                &["register and unregister a waiter on a token that all threads share"],
            ),
            (
                "have a token cancelled after 30 s; withdraw this",
                &["have a token cancelled after 30 s; withdraw the timed cancel, and drop"],
            ),
            (
                "pending work under a limit and a shared token",
                &["pending work under a limit of 30 s and a token: create, poll, drop"],
            ),
            (
                "make and drop a child of a shared parent",
                &["make and drop a child of a long-lived parent that all threads share"],
            ),
        ],
        columns: &[
            (1, &[("timerqueue*", EACH, 1, Whole), ("timerqueue*", EACH, 2, Whole)]),
            (2, &[(TOKIO, EACH, 1, Whole), (TOKIO, EACH, 2, Whole)]),
            (3, &[("tokio*current_thread", EACH, 1, Whole), ("tokio*current_thread", EACH, 2, Whole)]),
            (4, &[("async-io*", EACH, 1, Whole), ("async-io*", EACH, 2, Whole)]),
        ],
    },
];

/// A row of the run: title, contender, metric, number of threads, and the median of its samples.
type Row = (String, String, String, usize, f64);

/// The value of a key in a line of JSON without nested objects.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!("\"{key}\":"))?.1;
    match rest.strip_prefix('"') {
        Some(text) => text.split_once('"').map(|(text, _)| text),
        None => rest.split([',', '}']).next(),
    }
}

fn rows_of(run: &str) -> Vec<Row> {
    let row = |line: &str| {
        let text = |key| field(line, key).map(str::to_owned);
        (text("kind")? == "row").then_some(())?;
        let number = |key| field(line, key)?.parse::<f64>().ok();
        Some((text("title")?, text("contender")?, text("metric")?, number("threads")? as usize, number("median")?))
    };
    run.lines().filter_map(row).collect()
}

/// The figure of the first row that fits. A pattern with a `*` is a beginning and an end.
fn figure(run: &[Row], title: &str, contender: &str, metric: &str, threads: usize) -> Option<f64> {
    let fits = |name: &str| match contender.split_once('*') {
        Some((begin, end)) => name.starts_with(begin) && name.ends_with(end),
        None => name == contender,
    };
    let found = run.iter().find(|row| row.0 == title && fits(&row.1) && row.2 == metric && row.3 == threads);
    found.map(|row| row.4)
}

fn with_commas(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let digits = whole.bytes().rev().enumerate().map(|(i, digit)| (i, char::from(digit)));
    let marked: String =
        digits.flat_map(|(i, digit)| [(i > 0 && i % 3 == 0).then_some(','), Some(digit)]).flatten().collect();
    marked.chars().rev().chain(rest.chars()).collect()
}

impl Form {
    fn show(self, value: f64) -> String {
        let number = |value: f64| if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
        match self {
            Self::Whole => with_commas(&format!("{value:.0}")),
            Self::Tenths => with_commas(&format!("{value:.1}")),
            Self::Time(unit) => match value * unit {
                ns if ns < 999.5 => format!("{ns:.0} ns"),
                ns if ns < 999_500.0 => format!("{} us", number(ns / 1e3)),
                ns => format!("{} ms", with_commas(&number(ns / 1e6))),
            },
        }
    }
}

/// The cell of a column and a row. `None`: the run has no such figure.
fn made(run: &[Row], by_title: bool, parts: &[Part], names: &[&str]) -> Option<String> {
    let one = |&(first, metric, threads, form): &Part| {
        let mut pairs = names.iter().flat_map(|name| first.split('|').map(move |first| (first, *name)));
        let found = |(first, name)| {
            let (title, contender) = if by_title { (name, first) } else { (first, name) };
            figure(run, title, contender, metric, threads)
        };
        pairs.find_map(found).map(|value| form.show(value))
    };
    let shown: Vec<Option<String>> = parts.iter().map(one).collect();
    shown
        .iter()
        .any(Option::is_some)
        .then(|| shown.into_iter().map(|part| part.unwrap_or_else(|| "-".to_owned())).collect::<Vec<_>>().join("/"))
}

/// The document with the figures of the run in its tables.
fn rewritten(document: &str, run: &[Row]) -> String {
    let mut table: Option<&Table> = None;
    let mut lines = Vec::new();
    for line in document.lines() {
        if !line.starts_with('|') {
            table = None;
        } else if let Some(begun) = TABLES.iter().find(|table| line.contains(table.head)) {
            table = Some(begun);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let row =
            table.and_then(|table| Some((table, table.rows.iter().find(|(name, _)| cells.get(1) == Some(name))?)));
        let Some((table, (_, names))) = row else {
            lines.push(line.to_owned());
            continue;
        };
        let mut cells: Vec<String> = cells.into_iter().map(str::to_owned).collect();
        for &(column, parts) in table.columns {
            cells[column + 1] = made(run, table.by_title, parts, names).unwrap_or_else(|| "-".to_owned());
        }
        lines.push(format!("| {} |", cells[1..cells.len() - 1].join(" | ")));
    }
    lines.join("\n") + "\n"
}

/// A sentence of a document, with `{}` for each figure, and where they come from.
type Sentence = (&'static str, &'static str, &'static [(&'static str, &'static str, &'static str, usize, Form)]);

const IDLE_CALLBACKS: &str = "timerqueue callbacks that do nothing";

const SENTENCES: &[Sentence] = &[
    (
        BENCHMARKS,
        "With callbacks that do nothing, firing takes {} at a million a second (baseline {}) and {} at one instant ({}).",
        &[
            (STORM_1000, IDLE_CALLBACKS, FIRE, 1, Time(1.0)),
            (STORM_1000, "baseline: timerfd and epoll, callbacks that do nothing", FIRE, 1, Time(1.0)),
            (AT_ONCE, IDLE_CALLBACKS, FIRE, 1, Time(1.0)),
            (AT_ONCE, "baseline: timerfd and epoll, callbacks that do nothing", FIRE, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "drop one reference, at one instant: {}, the last after {} (baseline {} and {}; Netty, 1 ms ticks, {} and {}).",
        &[
            (SHARING, "timerqueue callbacks", FIRE, 1, Time(1.0)),
            (SHARING, "timerqueue callbacks", LAST, 1, Time(1e6)),
            (SHARING, "baseline: timerfd and epoll", FIRE, 1, Time(1.0)),
            (SHARING, "baseline: timerfd and epoll", LAST, 1, Time(1e6)),
            (SHARING, "Netty HashedWheelTimer, 1 ms ticks", FIRE, 1, Time(1.0)),
            (SHARING, "Netty HashedWheelTimer, 1 ms ticks", LAST, 1, Time(1e6)),
        ],
    ),
    (
        BENCHMARKS,
        "Making one of a million timers takes {} ({}). Wake-ups per 1,000 timers: {} at 10,000 a second ({}), {} at 100,000 \
         ({}); with leeway {} ({}) and {} ({}).",
        &[
            (STORM_1000, "timerqueue callbacks", MAKE, 1, Time(1.0)),
            (STORM_1000, "baseline: timerfd and epoll", MAKE, 1, Time(1.0)),
            (STORM_10, "timerqueue callbacks", WAKEUPS, 1, Whole),
            (STORM_10, "baseline: timerfd and epoll", WAKEUPS, 1, Whole),
            (STORM_100, "timerqueue callbacks", WAKEUPS, 1, Whole),
            (STORM_100, "baseline: timerfd and epoll", WAKEUPS, 1, Whole),
            (STORM_10, "timerqueue callbacks, 1 ms of leeway", WAKEUPS, 1, Whole),
            (STORM_10, "baseline: timerfd and epoll, 1 ms of leeway", WAKEUPS, 1, Whole),
            (STORM_100, "timerqueue callbacks, 1 ms of leeway", WAKEUPS, 1, Whole),
            (STORM_100, "baseline: timerfd and epoll, 1 ms of leeway", WAKEUPS, 1, Whole),
        ],
    ),
    (
        BENCHMARKS,
        "Wake-ups per 1,000 tasks at 100,000 a second, tokio multi_thread: {}, with leeway {}, tokio's own {}.",
        &[
            (STORM_100, "timerqueue Delay and Interval, tasks of tokio multi_thread", WAKEUPS, 1, Whole),
            (STORM_100, "timerqueue Delay, 1 ms of leeway, tasks of tokio multi_thread", WAKEUPS, 1, Whole),
            (STORM_100, "tokio, tasks of multi_thread", WAKEUPS, 1, Whole),
        ],
    ),
    (
        BENCHMARKS,
        "`Timer` {}, detached {}; `Delay` {}; tokio `sleep` {}, as a task {}; tokio-util `DelayQueue`, without callback or \
         waker, {}; async-io {}; pingora-timeout {}; hierarchical_hash_wheel_timer {}.",
        &[
            (MEMORY, "timerqueue Timer, callback of one word", BYTES, 1, Whole),
            (MEMORY, "timerqueue OnceTimer, detached", BYTES, 1, Whole),
            (MEMORY, "timerqueue Delay, polled", BYTES, 1, Whole),
            (MEMORY, "tokio sleep, boxed, polled", BYTES, 1, Whole),
            (MEMORY, "tokio sleep, tasks of multi_thread", BYTES, 1, Whole),
            (MEMORY, "tokio-util DelayQueue", BYTES, 1, Whole),
            (MEMORY, "async-io Timer, polled", BYTES, 1, Whole),
            (MEMORY, "pingora-timeout sleep, boxed, polled", BYTES, 1, Whole),
            (MEMORY, "hierarchical_hash_wheel_timer, its thread, callback of one word", BYTES, 1, Whole),
        ],
    ),
    (
        BENCHMARKS,
        "With a million entries inserting and removing takes {} on one thread; with tokio-util and a `HashMap` {}.",
        &[
            (INSERT_BESIDE, "timerqueue DelayQueue, keyed", EACH, 1, Time(1.0)),
            (INSERT_BESIDE, "tokio-util DelayQueue, HashMap and a mutex, keyed", EACH, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "{} bytes, with 16 of key and value; {}. (tokio-util's queue and a `HashMap`: {} bytes; {}.)",
        &[
            (MEMORY, "timerqueue DelayQueue, keyed", BYTES, 1, Whole),
            (SESSIONS, "timerqueue DelayQueue, keyed", EACH, 1, Time(1.0)),
            (MEMORY, "tokio-util DelayQueue and HashMap, keyed", BYTES, 1, Whole),
            (SESSIONS, "tokio-util DelayQueue, HashMap and a mutex, keyed", EACH, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "{} bytes and a handle; {}.",
        &[
            (MEMORY, "timerqueue OnceTimer, detached", BYTES, 1, Whole),
            (SESSIONS, "timerqueue OnceTimer", EACH, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "`Delay` in the task, `reset(d)`: {}. (tokio's `Sleep`, boxed: {}.)",
        &[
            (SESSIONS, "timerqueue Delay, polled", EACH, 1, Time(1.0)),
            (SESSIONS, "tokio sleep, boxed, polled", EACH, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "which stores no callback, takes {} instead of {}.",
        &[
            (AT_ONCE, "tokio-util DelayQueue, owned by a task of multi_thread", MAKE, 1, Time(1.0)),
            (AT_ONCE, "timerqueue callbacks", MAKE, 1, Time(1.0)),
        ],
    ),
    (
        BENCHMARKS,
        "{} us for hierarchical_hash_wheel_timer, {} us for a thread each, {} us for a thread with a heap, {} us here.",
        &[
            (JITTER, "hierarchical_hash_wheel_timer, its thread", JITTER_P50, 1, Tenths),
            (JITTER, "std threads, one each", JITTER_P50, 1, Tenths),
            (JITTER, "one thread with a heap, boxed callbacks", JITTER_P50, 1, Tenths),
            (JITTER, "timerqueue callbacks", JITTER_P50, 1, Tenths),
        ],
    ),
    (
        PLATFORM,
        "| Linux | `Alarm::Native`: timerfds in an epoll set | monotonic | {} us |",
        &[(ALONE, "timerqueue callbacks", P50, 1, Whole)],
    ),
    (PLATFORM, "| | | boot | {} us |", &[(ALONE, "timerqueue callbacks, boot clock", P50, 1, Whole)]),
    (
        PLATFORM,
        "| | `Alarm::Portable`: timed waits | monotonic | {} us |",
        &[(ALONE, "timerqueue callbacks, portable alarm", P50, 1, Whole)],
    ),
    (
        PLATFORM,
        "the same | | | | boot | {} us |",
        &[(ALONE, "timerqueue callbacks, portable alarm, boot clock", P50, 1, Whole)],
    ),
];

/// The sentence with its figures. `None`: the run has not all of them.
fn filled((_, template, figures): &Sentence, run: &[Row]) -> Option<String> {
    let mut parts = template.split("{}");
    let mut text = parts.next()?.to_owned();
    for (&(title, contender, metric, threads, form), part) in figures.iter().zip(parts) {
        text += &form.show(figure(run, title, contender, metric, threads)?);
        text += part;
    }
    Some(text)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands in documents and not in the run, or otherwise.
fn other_figures(run: &[Row], read: impl Fn(&str) -> String) -> Vec<String> {
    let mut wrong = Vec::new();
    let benchmarks = read(BENCHMARKS);
    let made = rewritten(&benchmarks, run);
    wrong.extend(benchmarks.lines().zip(made.lines()).filter(|(a, b)| a != b).map(|(_, line)| line.to_owned()));
    for sentence in SENTENCES {
        let text = filled(sentence, run).unwrap_or_else(|| panic!("no figures for {}", sentence.1));
        if !one_line(&read(sentence.0)).contains(&text) {
            wrong.push(format!("{}: {text}", sentence.0));
        }
    }
    wrong
}

/// A run's file is the only source of the figures of these documents. A tree without one has older
/// figures.
#[test]
fn figures_of_the_documents_are_those_of_the_run() {
    if root().join(RUN).exists() {
        let others = format!("took {} % of the processors", field(&read(RUN), "others_percent").unwrap());
        assert!(one_line(&read(BENCHMARKS)).contains(&others), "{others}");
        let run = rows_of(&read(RUN));
        if std::env::var("TIMERQUEUE_FIGURES").is_ok_and(|what| what == "write") {
            fs::write(root().join(BENCHMARKS), rewritten(&read(BENCHMARKS), &run)).unwrap();
        }
        assert_eq!(other_figures(&run, read), [""; 0]);
    }
    let row = |title: &str, contender: &str, metric: &str, median: f64| {
        format!(
            "{{\"kind\":\"row\",\"id\":\"W\",\"title\":\"{title}\",\"contender\":\"{contender}\",\"threads\":1,\"metric\":\"{metric}\",\
             \"samples\":3,\"median\":{median},\"min\":1.0,\"max\":2.0,\"ratio_to_ours\":null}}\n"
        )
    };
    let in_tables = [
        (CREATED, "timerqueue Timer", EACH),
        (AT_ONCE, "timerqueue callbacks", FIRE),
        (AT_ONCE, "timerqueue callbacks", LAST),
    ];
    let in_prose = SENTENCES
        .iter()
        .flat_map(|sentence| sentence.2)
        .map(|&(title, contender, metric, ..)| (title, contender, metric));
    let all: BTreeSet<_> = in_tables.into_iter().chain(in_prose).collect();
    let lines = all.into_iter().zip((1_060..).map(f64::from));
    let run = rows_of(
        &lines.map(|((title, contender, metric), median)| row(title, contender, metric, median)).collect::<String>(),
    );
    let tables = "| ns | create + dispose | 1,000,000 pending | a | b |\n|---|\n| timerqueue `Timer` | 1/2 | 3 | - | - |\n\n\
                  | fire | 10,000 in 1 s | a | b | at once |\n|---|\n| timerqueue | - | - | - | 60 ns/28 ms |\n";
    let made = rewritten(tables, &run);
    let first = figure(&run, CREATED, "timerqueue Timer", EACH, 1).map(|value| Whole.show(value));
    assert!(made.contains(&format!("| timerqueue `Timer` | {}/- | - | - | - |", first.unwrap())), "{made}");
    let prose = SENTENCES.iter().filter_map(|sentence| filled(sentence, &run)).collect::<Vec<_>>().join("\n");
    let documents = |path: &str| if path == BENCHMARKS { format!("{made}{prose}\n") } else { prose.clone() };
    assert_eq!(other_figures(&run, documents), [""; 0]);
    // The rule finds each figure that is another one.
    for other in 0..run.len() {
        let mut run = run.clone();
        run[other].4 *= 2.0;
        assert!(!other_figures(&run, documents).is_empty(), "{:?}", run[other]);
    }
    assert_eq!(with_commas("1234567.5"), "1,234,567.5");
    assert_eq!([0.4, 1_040.0, 12_345.0, 3_477e6].map(|ns| Time(1.0).show(ns)), ["0 ns", "1.0 us", "12 us", "3,477 ms"]);
}

/// The times in the prose of a text, such as `23 us` and `2 s`: outside of code and of tables.
fn times_of(text: &str) -> BTreeSet<String> {
    let prose = text.split("```").step_by(2).collect::<String>();
    let lines = prose.lines().filter(|line| !line.starts_with('|'));
    let words: Vec<&str> = lines
        .flat_map(|line| line.split([' ', '(', ')', ';', ':', ',']))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| !word.is_empty())
        .collect();
    let is_time = |pair: &&[&str]| nanoseconds(&pair.join(" ")).is_some();
    words.windows(2).filter(is_time).map(|pair| pair.join(" ")).collect()
}

/// The value of a text such as `1,095 us`.
fn nanoseconds(time: &str) -> Option<f64> {
    let (number, unit) = time.split_once(' ')?;
    let unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number.replace(',', "").parse::<f64>().ok()? * unit)
}

/// Whether a figure is another one, rounded to the digits that it has.
fn is_rounded(figure: &str, exact: &str) -> bool {
    let (Some(value), Some(exact)) = (nanoseconds(figure), nanoseconds(exact)) else { return false };
    let (number, unit) = figure.split_once(' ').expect("a number and a unit");
    let digits = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    let grain = nanoseconds(&format!("1 {unit}")).expect("a unit") / 10_f64.powi(digits as i32);
    (value - exact).abs() <= grain / 2.0
}

/// A cell of a table: of the section that begins with this heading, and of its only row that
/// begins with these cells.
fn cell<'a>(document: &'a str, heading: &str, row: &str, column: usize) -> &'a str {
    let section = document.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.unwrap_or_else(|| panic!("no section {heading}"));
    let found: Vec<&str> = section.lines().filter(|line| line.starts_with(&format!("| {row} |"))).collect();
    assert_eq!(found.len(), 1, "rows `{row}` in {heading}");
    found[0].split('|').nth(column + 1).unwrap_or_else(|| panic!("no column {column} in {row}")).trim()
}

const W1: &str = "Create, dispose, change";
const W4: &str = "Lateness, rest, blocking";
const BY_SYSTEM: &str = "Which alarm works where";

/// Where each figure in the README's prose comes from: the section of docs/BENCHMARKS.md, row,
/// column, which part of the cell, and its unit.
const FIGURES: &[(&str, &str, &str, usize, usize, &str)] = &[
    ("63 ns", W1, "timerqueue `Timer`", 1, 0, "ns"),
    ("62 ns", W1, "timerqueue `Timer`", 1, 1, "ns"),
    ("61 ns", W1, "timerqueue `Timer`", 2, 0, "ns"),
    ("316 ns", W1, "tokio, multi_thread", 1, 1, "ns"),
    ("50 us", W4, "timerqueue", 1, 0, "us"),
    ("53 us", W4, "baseline: timerfd + epoll", 1, 0, "us"),
    ("1.1 ms", W4, "tokio, multi_thread", 1, 0, "us"),
    ("5.2 ms", W4, "timerqueue", 5, 0, "ms"),
    ("2 s", W4, "tokio, multi_thread", 5, 0, "ms"),
];

/// The figures of a README that are not those of their source.
fn wrong_figures(readme: &str, benchmarks: &str, platform: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut told = times_of(readme);
    for &(figure, heading, row, column, part, unit) in FIGURES {
        let part = cell(benchmarks, heading, row, column).split('/').nth(part).unwrap_or_default().trim();
        if !told.remove(figure) || !is_rounded(figure, &format!("{part} {unit}")) {
            wrong.push(format!("{figure}: {row} has {part} {unit}"));
        }
    }
    wrong.extend(told.into_iter().map(|time| format!("{time} has no source in `FIGURES`")));
    let mut same = |row: &str, column, source: &str| {
        let own = cell(readme, if source.ends_with("us") { "Platforms" } else { "Performance" }, row, column);
        if own != source {
            wrong.push(format!("{row}: {own}, not {source}"));
        }
    };
    for (row, in_w1, in_w4) in [
        ("**timerqueue**", "timerqueue `Timer`", "timerqueue"),
        ("tokio, multi_thread", "tokio, multi_thread", "tokio, multi_thread"),
        ("async-io", "async-io", "async-io"),
        ("Go", "Go", "Go"),
        ("Netty, 1 ms ticks", "Netty, 1 ms ticks", "Netty, 1 ms ticks"),
    ] {
        same(row, 1, cell(benchmarks, W1, in_w1, 1));
        same(row, 2, cell(benchmarks, W4, in_w4, 5));
    }
    same("baseline: lock, clock, list", 1, cell(benchmarks, W1, "baseline: lock, clock, list", 1));
    same("Linux", 2, cell(platform, BY_SYSTEM, "Linux", 3));
    same("Linux, where timerfds are refused", 2, cell(platform, BY_SYSTEM, "| `Alarm::Portable`: timed waits", 3));
    wrong
}

/// A figure is measured once, and stands in the document that says how. The README repeats some.
#[test]
fn figures_of_the_readme_are_those_of_the_documents() {
    let (readme, benchmarks, platform) = (read("README.md"), read("docs/BENCHMARKS.md"), read("docs/PLATFORM.md"));
    assert_eq!(wrong_figures(&readme, &benchmarks, &platform), [""; 0]);
    // The rule finds each figure that is changed on either side, and one without a source.
    for (from, to) in [("61 ns", "65 ns"), ("| 63/62 |", "| 63/61 |"), ("| 101 us |", "| 71 us |"), ("5.2 ms", "5 ms")]
    {
        assert!(readme.contains(from), "{from}");
        assert!(!wrong_figures(&readme.replacen(from, to, 1), &benchmarks, &platform).is_empty(), "{from}");
    }
    assert!(!wrong_figures(&readme, &benchmarks.replace("1,064/1,939", "1,195/1,939"), &platform).is_empty());
    assert_eq!(wrong_figures(&format!("{readme}\nand 7 ms\n"), &benchmarks, &platform).len(), 1);
    let example = times_of("late by 1.1 ms, or (23 us).\n```text\n5 ms\n```\n| 3 ms |\nand 7 tests");
    assert_eq!(Vec::from_iter(example), ["1.1 ms", "23 us"]);
    assert!(is_rounded("1.1 ms", "1,095 us") && is_rounded("2 s", "1,999.2 ms") && !is_rounded("23 us", "24 us"));
}
