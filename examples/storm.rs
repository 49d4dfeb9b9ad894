//! A storm: many one-shots due close together; what creating one costs, what firing one costs, and
//! how late they are.
//!
//! ```text
//! cargo run --release --example storm [timers] [span_ms] [leeway_us]     # 100,000 over 1,000 ms; a span of 0: all at one instant
//! ```

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{Runtime, TimerBuilder, Timestamp};

const NOT_FIRED: i64 = i64::MIN;

/// Processor time of all threads but this one, so far.
#[allow(unsafe_code)] // system calls
fn cpu_of_others() -> Duration {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure lives through the call.
        let result = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(result, 0, "processor clocks can be read");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    read(libc::CLOCK_PROCESS_CPUTIME_ID) - read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Numbers in no order that a processor could foresee.
fn scattered(i: u32) -> u64 {
    let mut z = (u64::from(i) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let n: u32 = args.next().map_or(Ok(100_000), |arg| arg.parse())?;
    let span = Duration::from_millis(args.next().map_or(Ok(1_000), |arg| arg.parse())?);
    let leeway = Duration::from_micros(args.next().map_or(Ok(0), |arg| arg.parse())?);
    if n == 0 {
        return Err("a storm of no timers".into());
    }

    let runtime = Runtime::builder().start()?;
    // Lives as long as the process: callbacks keep a plain reference, so that the figures are the
    // timers' alone.
    let late: &'static [AtomicI64] = (0..n).map(|_| AtomicI64::new(NOT_FIRED)).collect::<Vec<_>>().leak();
    // The first is due when all have been made.
    let first_due = runtime.now() + Duration::from_millis(100) + Duration::from_micros(1) * n;

    let start = Instant::now();
    for (late, i) in late.iter().zip(0..n) {
        let place = scattered(i) as f64 / u64::MAX as f64;
        let due = first_due + span.mul_f64(place);
        TimerBuilder::on(&runtime)
            .due(due - runtime.now())
            .leeway(leeway)
            .start(|tick| {
                // Signed: an early one would show.
                let ns = |at: Timestamp| at.as_duration().as_nanos() as i64;
                late.store(ns(tick.now()) - ns(tick.scheduled()), Ordering::Relaxed);
            })
            .detach();
    }
    let created = start.elapsed();
    let (cpu_before, mut threads) = (cpu_of_others(), runtime.metrics().threads.alive);

    while late.iter().any(|late| late.load(Ordering::Relaxed) == NOT_FIRED) {
        threads = threads.max(runtime.metrics().threads.alive);
        thread::sleep(Duration::from_millis(5));
    }
    let cpu = cpu_of_others() - cpu_before;

    let mut late: Vec<_> = late.iter().map(|late| late.load(Ordering::Relaxed)).collect();
    late.sort_unstable();
    let us = |q: f64| late[((late.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(n);
    println!("{n} one-shots within {span:?}, {threads} threads");
    println!("creating one     {:>10.0} ns", each(created));
    println!("firing one       {:>10.0} ns of processor time", each(cpu));
    println!(
        "late p50         {:>10.1} us\n     p99         {:>10.1} us\n     max         {:>10.1} us",
        us(0.5),
        us(0.99),
        us(1.0)
    );
    println!("early            {:>10}", late.iter().filter(|&&late| late < 0).count());
    Ok(())
}
