//! Driver of the scheduler on a file and on a server; of a bare loop of SQLite on the same tables;
//! and of a timer without jobs.

mod bare;
#[path = "../../common.rs"]
mod common;

use std::time::{Duration, SystemTime};

use common::{Arguments, Count, DELAYS, FAR, Late, MANY, PLACES};
use timerqueue::{Runtime, WallTimer};
use timerqueue_scheduler::store::PostgresStore;
use timerqueue_scheduler::{Handler, Pending, Placed, Put, Run, Scheduler};

/// A scheduler on the file or the server.
fn open(place: &str, handler: Option<Handler>) -> Scheduler {
    let builder = match place.starts_with("postgres") {
        true => Scheduler::builder().store(PostgresStore::connect(Runtime::global(), place).expect("a server")),
        false => Scheduler::open(place),
    };
    let builder = handler.into_iter().fold(builder, |builder, handler| builder.register(handler));
    builder.start().expect("a scheduler")
}

fn put<'s>(scheduler: &'s Scheduler, key: &str, after: Duration) -> Put<'s> {
    scheduler.put_to("h", &common::payload()).key(key).due(after)
}

fn added(pending: Pending<Placed>) {
    assert!(pending.wait().expect("a put").added().is_some());
}

fn put_many(scheduler: &Scheduler, name: &str, after: Duration) {
    let puts = (0..MANY).map(|n| put(scheduler, &format!("{name}/{n}"), after));
    let placed = scheduler.put_many(puts).wait().expect("puts");
    assert!(placed.iter().all(|placed| placed.as_ref().is_ok_and(|placed| placed.added().is_some())));
}

fn puts(arguments: &Arguments) -> f64 {
    let scheduler = open(&arguments.place, None);
    let run = common::micros_now(); // no key comes twice
    if arguments.number == 0 {
        let call = |_, n| put_many(&scheduler, &format!("{run}/{n}"), FAR);
        return common::call_on_threads(1, arguments.time(), call) * MANY as f64;
    }
    let call = |caller, n| added(put(&scheduler, &format!("{run}/{caller}/{n}"), FAR).send());
    common::call_on_threads(arguments.number, arguments.time(), call)
}

fn fill(place: &str, jobs: usize, after: Duration) {
    let (scheduler, run) = (open(place, None), common::micros_now());
    for n in 0..jobs / MANY {
        put_many(&scheduler, &format!("{run}/{n}"), after);
    }
}

fn runs(arguments: &Arguments) {
    let jobs = common::jobs(arguments);
    fill(&arguments.place, jobs, Duration::ZERO);
    let count = Count::new();
    let _scheduler = counting(arguments, &count);
    common::drained(&count, jobs as u64, arguments.time());
    common::end();
}

fn counting(arguments: &Arguments, count: &Count) -> Scheduler {
    let ran = count.clone();
    let handler = Handler::new("h", move |_: String, _: &Run| ran.add(1)).parallel(arguments.number);
    open(&arguments.place, Some(handler))
}

fn node(arguments: &Arguments) {
    let count = Count::new();
    let _scheduler = counting(arguments, &count);
    common::node(&count, arguments.time());
    common::end();
}

fn late(place: &str) {
    let late = Late::default();
    let ran = late.clone();
    let handler = Handler::new("h", move |due: String, _: &Run| due.parse().into_iter().for_each(|due| ran.ran(due)))
        .parallel(PLACES);
    let scheduler = open(place, Some(handler));
    std::thread::sleep(Duration::from_secs(1));
    for delay in common::delays() {
        let due = common::micros_now() + delay;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(due as u64);
        added(scheduler.put_to("h", &due.to_string()).due(at).send());
    }
    late.report();
}

/// The timers of the core, without jobs.
fn late_timers() {
    let late = Late::default();
    let runtime = Runtime::global();
    let timers: Vec<_> = common::delays()
        .into_iter()
        .map(|delay| {
            let (late, due) = (late.clone(), common::micros_now() + delay);
            WallTimer::on(runtime, SystemTime::UNIX_EPOCH + Duration::from_micros(due as u64), move |_| late.ran(due))
        })
        .collect();
    assert_eq!(timers.len(), DELAYS);
    late.report();
}

fn idle(arguments: &Arguments) {
    let scheduler = open(&arguments.place, Some(Handler::new("h", |_: String, _: &Run| {})));
    added(put(&scheduler, "later", FAR).send());
    common::idle(arguments.time());
}

fn main() {
    let arguments = Arguments::read();
    match (&*arguments.contender, &*arguments.work) {
        ("ours", "put") => common::answer("rate", puts(&arguments)),
        ("ours", "run") => runs(&arguments),
        ("ours", "fill") => fill(&arguments.place, arguments.number, FAR),
        ("ours", "due") => fill(&arguments.place, arguments.number, Duration::ZERO),
        ("ours", "node") => node(&arguments),
        ("ours", "late") => late(&arguments.place),
        ("ours", "idle") => idle(&arguments),
        ("timer", "late") => late_timers(),
        ("bare" | "bare-workers", _) => bare::drive(&arguments),
        _ => println!("none"),
    }
}
