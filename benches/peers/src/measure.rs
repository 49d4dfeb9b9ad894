//! Tools of all workloads: clocks, random numbers, pinned threads, and side-by-side measurement.
//!
//! Ground rules. A [`Case`] does a contender's operation a given number of times and returns the
//! time taken, without the set-up. The cases of a title are measured in sub-rounds. Each sub-round
//! runs every case once, briefly, in random order, so a disturbance hits a single sample rather
//! than a contender. Ratios are taken within a sub-round. The number of operations per sample is
//! determined once and kept.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::drivers::Drivers;
use crate::report::{Axes, Report, Row};

/// Samples of each case in a round.
pub(crate) const SAMPLES_PER_ROUND: usize = 9;
/// Duration of a sample: short, so few samples are disturbed and the median is undisturbed.
const SAMPLE: Duration = Duration::from_micros(2_500);

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of `Instant`, and of the crate's default runtime.
#[inline]
pub(crate) fn clock_ns() -> u64 {
    clock_of(libc::CLOCK_MONOTONIC)
}

/// Processor time of the whole process.
pub(crate) fn cpu_ns() -> u64 {
    clock_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time of all threads but the calling thread.
pub(crate) fn cpu_of_others_ns() -> u64 {
    cpu_ns() - clock_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The number of times that threads of this process went to sleep.
pub(crate) fn sleeps() -> i64 {
    sleeps_of(libc::RUSAGE_SELF)
}

/// The number of times that threads of this process, but for the calling thread, went to sleep.
pub(crate) fn sleeps_of_others() -> i64 {
    sleeps_of(libc::RUSAGE_SELF) - sleeps_of(libc::RUSAGE_THREAD)
}

fn sleeps_of(whom: libc::c_int) -> i64 {
    usage_of(whom).ru_nvcsw
}

/// Processor time of this process and of its children that have ended.
pub(crate) fn cpu_with_children() -> Duration {
    let of = |whom| {
        let libc::rusage { ru_utime, ru_stime, .. } = usage_of(whom);
        [ru_utime, ru_stime].map(|time| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000))
    };
    [of(libc::RUSAGE_SELF), of(libc::RUSAGE_CHILDREN)].into_iter().flatten().sum()
}

#[allow(unsafe_code)] // a system call
fn usage_of(whom: libc::c_int) -> libc::rusage {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the buffer has the size of the result, and a successful call fills it completely.
    unsafe {
        assert_eq!(libc::getrusage(whom, usage.as_mut_ptr()), 0, "the usage can be asked for");
        usage.assume_init()
    }
}

/// Waits until this process uses hardly any processor time. Gives up after some seconds, since some
/// contenders never rest.
pub(crate) fn until_quiet() {
    const STEP: Duration = Duration::from_millis(50);
    for _ in 0..100 {
        let before = cpu_ns();
        std::thread::sleep(STEP);
        if u128::from(cpu_ns() - before) < STEP.as_nanos() / 50 {
            return;
        }
    }
}

/// The lateness now of a timer due at `due`, in nanoseconds; negative if it is early.
pub(crate) fn late_by(due: u64) -> i64 {
    clock_ns() as i64 - due as i64
}

#[inline]
#[allow(unsafe_code)] // a system call
fn clock_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "clock {clock} can be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn between(&mut self, from: Duration, to: Duration) -> Duration {
        from + Duration::from_nanos(self.below((to - from).as_nanos() as u64))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end as u64 + 1) as usize);
        }
    }
}

/// The median of `sorted`: the middle value, or the mean of the two middle values.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    low.midpoint(high)
}

/// The quantile `q` (0 to 1) of `sorted`.
pub(crate) fn quantile<T: Copy>(sorted: &[T], q: f64) -> T {
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

/// Runs `work` on `threads` threads at once, each pinned to a core of its own. Returns their
/// results, in order.
pub(crate) fn on_cores<T: Send>(threads: usize, work: impl Fn(usize, &Barrier) -> T + Sync) -> Vec<T> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|i| {
                let (core, start, work) = (cores.get(i % cores.len().max(1)), &start, &work);
                scope.spawn(move || {
                    if let Some(&core) = core {
                        core_affinity::set_for_current(core);
                    }
                    work(i, start)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a measuring thread does not panic")).collect()
    })
}

/// An operation of a contender, on a number of threads.
pub(crate) struct Case<'a> {
    contender: &'static str,
    threads: usize,
    run: Box<dyn Fn(u64) -> Duration + 'a>,
}

impl<'a> Case<'a> {
    /// `run` does the operation the given number of times on each thread, and returns the time
    /// taken by a thread.
    pub(crate) fn new(contender: &'static str, threads: usize, run: impl Fn(u64) -> Duration + 'a) -> Self {
        Self { contender, threads, run: Box::new(run) }
    }
}

/// A run of the benchmark: its report, its source of random order, and its options.
pub(crate) struct Session {
    pub(crate) report: Report,
    pub(crate) random: Random,
    /// Measure only contenders with this text in their names; empty for all. For profiling.
    contender: String,
    /// Contenders in processes of other languages.
    pub(crate) drivers: Arc<Drivers>,
    times: HashMap<(String, &'static str, usize), u64>,
}

impl Session {
    pub(crate) fn new(seed: u64, contender: String, drivers: Drivers) -> Self {
        let (random, drivers) = (Random::new(seed), Arc::new(drivers));
        Self { report: Report::default(), random, contender, drivers, times: HashMap::new() }
    }

    pub(crate) fn wants(&self, contender: &str) -> bool {
        contender.contains(&self.contender)
    }

    /// Measures the cases of a title. For each number of threads, the first case is the base of the
    /// ratios.
    pub(crate) fn measure(&mut self, id: &'static str, title: &str, cases: &[Case<'_>]) {
        self.measure_point(id, title, cases, |_| None);
    }

    /// As [`Self::measure`]. `point` maps a number of threads to a curve and an x; the samples are
    /// added to this point as well.
    pub(crate) fn measure_point(
        &mut self,
        id: &'static str,
        title: &str,
        cases: &[Case<'_>],
        point: impl Fn(usize) -> Option<(String, Axes, f64)>,
    ) {
        let row =
            |case: &Case<'_>| Row { contender: case.contender, threads: case.threads, metric: "ns per operation" };
        for case in cases {
            self.report.declare(id, title, row(case));
        }
        let cases: Vec<&Case<'_>> = cases.iter().filter(|case| self.wants(case.contender)).collect();
        let times: Vec<u64> = cases
            .iter()
            .map(|case| {
                let key = (title.to_owned(), case.contender, case.threads);
                *self.times.entry(key).or_insert_with(|| times_per_sample(case))
            })
            .collect();
        let mut order: Vec<usize> = (0..cases.len()).collect();
        for _ in 0..SAMPLES_PER_ROUND {
            self.random.shuffle(&mut order);
            for &i in &order {
                let took = (cases[i].run)(times[i]);
                let each = took.as_nanos() as f64 / times[i] as f64;
                self.report.add(title, row(cases[i]), each);
                if let Some((curve, axes, x)) = point(cases[i].threads) {
                    self.report.add_curve(id, &curve, cases[i].contender, axes, (x, each));
                }
            }
        }
    }
}

/// The number of operations that fill a sample.
fn times_per_sample(case: &Case<'_>) -> u64 {
    let mut times = 4;
    loop {
        let took = (case.run)(times);
        if took >= SAMPLE / 4 {
            return ((times as f64 * SAMPLE.as_secs_f64() / took.as_secs_f64()) as u64).max(1);
        }
        times *= 4;
    }
}

/// Does `operation` `times` times. Returns the time taken.
pub(crate) fn repeat(times: u64, mut operation: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        operation();
    }
    start.elapsed()
}

/// `times` times: makes a value, and ends the value made `lag` operations before. Both closures get
/// `context`.
pub(crate) fn lagged<C, T>(
    context: &mut C,
    lag: usize,
    times: u64,
    mut make: impl FnMut(&mut C) -> T,
    mut end: impl FnMut(&mut C, T),
) -> Duration {
    let mut made: Vec<T> = (0..lag).map(|_| make(context)).collect();
    let mut next = 0;
    let took = repeat(times, || {
        let new = make(context);
        end(context, std::mem::replace(&mut made[next], new));
        next = if next + 1 == lag { 0 } else { next + 1 };
    });
    for old in made {
        end(context, old);
    }
    took
}
