//! How late a lone timer is on each alarm and clock: 300 timers, one after the other, each due 5 ms
//! after the one before has fired.
//!
//! `cargo run --release --example alarms`

use std::sync::mpsc;
use std::time::Duration;

use timerqueue::{Alarm, OnceTimer, Runtime, RuntimeClock, error::StartError};

const TIMERS: usize = 300;
const DUE: Duration = Duration::from_millis(5);

fn main() -> Result<(), StartError> {
    println!("{:<22} {:>9} {:>9} {:>9}   late, microseconds", "", "p50", "p99", "worst");
    for alarm in [Alarm::Native, Alarm::Portable] {
        for clock in [RuntimeClock::Monotonic, RuntimeClock::Boot] {
            let runtime = Runtime::builder().alarm(alarm).clock(clock).start()?;
            let (send, receive) = mpsc::channel();
            let mut late: Vec<Duration> = (0..TIMERS)
                .map(|_| {
                    let send = send.clone();
                    let timer = OnceTimer::on(&runtime, DUE, move |tick| {
                        let _ = send.send(tick.lateness());
                    });
                    let late = receive.recv().expect("it fires");
                    drop(timer);
                    late
                })
                .collect();
            late.sort();
            let us = |at: usize| late[at.min(TIMERS - 1)].as_nanos() as f64 / 1_000.0;
            let name = format!("{alarm:?}, {clock:?}");
            println!("{name:<22} {:>9.1} {:>9.1} {:>9.1}", us(TIMERS / 2), us(TIMERS * 99 / 100), us(TIMERS));
        }
    }
    Ok(())
}
