//! The costs of single steps on this machine: what `costs.rs` names `measure`.
//!
//! Ground rules. Needs Linux and two cores. Medians of many rounds; each figure is printed with the
//! name of its cost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Processor time of the calling thread, or of the process without it.
#[allow(unsafe_code)] // system calls
pub(crate) fn cpu(of_others: bool) -> u64 {
    let read = |clock| {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure lives through the call.
        let result = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(result, 0, "processor clocks can be read");
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let own = read(libc::CLOCK_THREAD_CPUTIME_ID);
    if of_others { read(libc::CLOCK_PROCESS_CPUTIME_ID) - own } else { own }
}

/// Pins the calling thread to the core of this place, if the process may use so many.
pub(crate) fn pin(place: usize) {
    // As they were at the first call: a thread inherits the confinement of the thread that started
    // it.
    static CORES: OnceLock<Vec<core_affinity::CoreId>> = OnceLock::new();
    let cores = CORES.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default());
    if let Some(core) = cores.get(place % cores.len().max(1)) {
        core_affinity::set_for_current(*core);
    }
}

pub(crate) fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn say(name: &str, figure: u64, what: &str) {
    println!("{name:<16}{figure:>8} ns  {what}");
}

fn each(rounds: u32, mut act: impl FnMut()) -> u64 {
    let begun = Instant::now();
    (0..rounds).for_each(|_| act());
    begun.elapsed().as_nanos() as u64 / u64::from(rounds)
}

/// A timerfd in an epoll set: lateness of the return of `epoll_wait`, and processor time of a
/// round.
#[allow(unsafe_code)] // system calls
mod kernel {
    pub(super) struct Set {
        epoll: i32,
        timer: i32,
        event: i32,
    }

    impl Set {
        pub(super) fn new() -> Self {
            // SAFETY: no pointers but to a structure that lives through the call.
            unsafe {
                let epoll = libc::epoll_create1(0);
                let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK);
                let event = libc::eventfd(1, libc::EFD_NONBLOCK);
                let mut of = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 1 };
                assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, timer, &mut of), 0);
                let mut of = libc::epoll_event { events: 0, u64: 2 };
                assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, event, &mut of), 0);
                Self { epoll, timer, event }
            }
        }

        pub(super) fn now() -> u64 {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the structure lives through the call.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        }

        pub(super) fn set(&self, at: u64) {
            let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value = libc::timespec { tv_sec: (at / 1_000_000_000) as _, tv_nsec: (at % 1_000_000_000) as _ };
            let spec = libc::itimerspec { it_interval: none, it_value };
            // SAFETY: `spec` lives through the call.
            unsafe { libc::timerfd_settime(self.timer, libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) };
        }

        pub(super) fn wait(&self) {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: `event` lives through the call.
            while unsafe { libc::epoll_wait(self.epoll, &mut event, 1, -1) } != 1 {}
        }

        /// Makes an edge.
        pub(super) fn wake(&self) {
            let mut of = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 2 };
            // SAFETY: `of` lives through the call.
            unsafe { libc::epoll_ctl(self.epoll, libc::EPOLL_CTL_MOD, self.event, &mut of) };
        }
    }

    impl Drop for Set {
        fn drop(&mut self) {
            for fd in [self.epoll, self.timer, self.event] {
                // SAFETY: opened by `new`, and closed only here.
                unsafe { libc::close(fd) };
            }
        }
    }
}

use kernel::Set;

fn alarms(gap_us: u64, rounds: u64) {
    let set = Set::new();
    let mut late = Vec::new();
    let before = cpu(false);
    for _ in 0..rounds {
        let at = Set::now() + gap_us * 1_000;
        set.set(at);
        set.wait();
        late.push(Set::now() - at);
    }
    let each = (cpu(false) - before) / rounds;
    say(
        "alarm_late",
        median(late),
        &format!("after a rest of {gap_us} us; processor time of the round {each} ns (wake_cpu)"),
    );
}

fn unparks(gap_us: u64, rounds: u64) {
    let (sent, heard) = mpsc::channel();
    let woken = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&woken);
    let parked = thread::spawn(move || {
        pin(1);
        loop {
            thread::park();
            match theirs.swap(0, Ordering::Relaxed) {
                0 => {}
                1 => return,
                at => sent.send(Set::now() - at).expect("the channel is open"),
            }
        }
    });
    pin(0);
    let (mut late, mut cost) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let rest = Instant::now();
        while rest.elapsed() < Duration::from_micros(gap_us) {
            std::hint::spin_loop();
        }
        let begun = Set::now();
        woken.store(begun, Ordering::Relaxed);
        parked.thread().unpark();
        cost.push(Set::now() - begun);
        late.push(heard.recv().expect("the thread lives"));
    }
    woken.store(1, Ordering::Relaxed);
    parked.thread().unpark();
    parked.join().expect("no panic");
    say(
        "unpark_late",
        median(late),
        &format!("after a rest of {gap_us} us; the call took {} ns (unpark)", median(cost)),
    );
}

/// A word that two cores write in turn.
fn lines() {
    const ROUNDS: u64 = 200_000;
    let word = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&word);
    let go = Arc::new(AtomicBool::new(false));
    let going = Arc::clone(&go);
    let turn = move |word: &AtomicU64, parity: u64| {
        while word.load(Ordering::Relaxed) < 2 * ROUNDS {
            let now = word.load(Ordering::Acquire);
            if now % 2 == parity {
                word.fetch_add(1, Ordering::AcqRel);
            }
        }
    };
    let other = thread::spawn(move || {
        pin(1);
        while !going.load(Ordering::Relaxed) {}
        turn(&theirs, 1);
    });
    pin(0);
    go.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    turn(&word, 0);
    other.join().expect("no panic");
    let add = || {
        word.fetch_add(1, Ordering::Relaxed);
    };
    say("line", begun.elapsed().as_nanos() as u64 / (2 * ROUNDS), "a line that a near core has written");
    say("line", each(1_000_000, add), "a line that the core has");
    say("look", each(1_000_000, || fence(Ordering::SeqCst)), "a fence");
}

fn spawns() {
    let (mut cost, mut late) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let begun = Set::now();
        let started = thread::spawn(move || Set::now() - begun);
        cost.push(Set::now() - begun);
        late.push(started.join().expect("no panic"));
    }
    say("spawn", median(cost), &format!("the call; the thread runs after {} ns", median(late)));
}

/// Prints all.
pub(crate) fn measure() {
    for (gap_us, rounds) in [(50, 4_000), (100, 4_000), (300, 2_000), (1_000, 1_000), (5_000, 300)] {
        alarms(gap_us, rounds);
    }
    for (gap_us, rounds) in [(50, 4_000), (300, 2_000), (2_000, 400)] {
        unparks(gap_us, rounds);
    }
    let set = Set::new();
    let far = Set::now() + 3_600_000_000_000;
    say("set_alarm", each(200_000, || set.set(far)), "timerfd_settime");
    let both = each(200_000, || {
        set.wake();
        set.wait();
    });
    let wake = each(200_000, || set.wake());
    say("epoll_ctl", wake, "without a thread that waits");
    say("epoll_wait", both.saturating_sub(wake), "with an event");
    lines();
    spawns();
}
