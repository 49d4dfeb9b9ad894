//! Timers that wait cost nothing: with a hundred thousand pending and none due, no thread wakes up.
//!
//! ```text
//! cargo run --release --example pending [seconds] [timers]
//! ```
//!
//! Prints how often each thread of the process has been switched to, before and after. Only the
//! main thread moves: it sleeps and comes back.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use timerqueue::{Runtime, Timer};

/// Context switches of one thread.
#[derive(Clone, Copy, Default)]
struct Switches {
    voluntary: u64,
    involuntary: u64,
}

/// Of all threads of this process, by thread id, with their names.
fn switches() -> io::Result<BTreeMap<u64, (String, Switches)>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task")? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let number = |name| field(name).parse().unwrap_or_default();
        let switches = Switches {
            voluntary: number("voluntary_ctxt_switches"),
            involuntary: number("nonvoluntary_ctxt_switches"),
        };
        threads.insert(number("Pid"), (field("Name"), switches));
    }
    Ok(threads)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let seconds = args.next().map_or(Ok(10), |arg| arg.parse())?;
    let timers = args.next().map_or(Ok(100_000), |arg| arg.parse())?;

    let runtime = Runtime::builder().start()?;
    let hour = Duration::from_secs(3600);
    let pending: Vec<_> = (0..timers)
        .map(|_| Timer::on(&runtime, hour, Duration::ZERO, |_| unreachable!("not within the hour")))
        .collect();
    println!("{} timers pending, the next due in {:.0?}", runtime.metrics().active, hour);

    // The pool has been started a moment ago; let it settle.
    std::thread::sleep(Duration::from_millis(200));
    let before = switches()?;
    std::thread::sleep(Duration::from_secs(seconds));
    let after = switches()?;

    println!("\ncontext switches in {seconds} s\n{:<18}{:>12}{:>14}", "thread", "voluntary", "involuntary");
    let main = u64::from(std::process::id());
    let mut woken = 0;
    for (id, (name, now)) in &after {
        let then = before.get(id).map_or(Switches::default(), |(_, then)| *then);
        let (voluntary, involuntary) = (now.voluntary - then.voluntary, now.involuntary - then.involuntary);
        let note = if *id == main { "  (this one slept)" } else { "" };
        println!("{name:<18}{voluntary:>12}{involuntary:>14}{note}");
        if *id != main {
            woken += voluntary + involuntary;
        }
    }
    println!("\nwake-ups of the runtime's {} threads: {woken}", runtime.metrics().threads.alive);
    println!("{} fired, {} still pending", runtime.metrics().fired(), runtime.metrics().active);
    drop(pending);
    Ok(())
}
