//! The portable backend: leader/followers over a mutex and timed waits, without descriptors or
//! kernel timers.
//!
//! For systems and sandboxes that refuse timers or descriptors. A poller *leads*: it waits until
//! the earliest alarm. All further pollers *follow*: they wait to be told to lead, or to take
//! pending events. Compared to kernel timers, a new earliest alarm costs a wake-up of the leader
//! instead of a system call that sets a timer. An alarm that expires makes a follower the next
//! leader.
//!
//! Ground rules. All state is behind a single mutex, a leaf: [`Backend::arm`] takes it with the
//! lock of an alarm held, and events are reported after its release. A thread on its way out of a
//! wait looks at all state again, so a second notification is not needed. Invariant whenever the
//! mutex is free: *if an alarm is set or a wake is pending, and threads wait, then a thread leads
//! and waits no longer than until this alarm, or a thread is on its way out of its wait.* Three
//! places keep this invariant: `hand_over`, and the notifications in `set` and `wake`.
//!
//! Timed waits go by a clock of the system's choice, which may stand still in suspend while the
//! clock of the runtime goes on: on the boot clock no wait is longer than [`BOOT_RECHECK`]. The
//! runtime's own clock alone decides whether an alarm has expired. `loom-tests/leader_handover.rs`
//! models all of this.

use std::time::{Duration, Instant};
use std::{io, iter};

use super::{Backend, Event, SystemClock};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::sys::fork::ForkGuard;
use crate::time::NEVER;

/// The longest wait on the boot clock. An alarm that comes due in suspend is at most this late
/// after the end of the suspend.
const BOOT_RECHECK: Duration = Duration::from_secs(5);
/// Events that one `wait` takes at most. Small, so alarms that expire together spread over the
/// waiting threads.
const EVENTS_AT_ONCE: usize = 4;

/// The wait of the leader.
pub(crate) trait LeaderWait: Send + Sync {
    /// Waits for `time` (`MAX`: for ever), with the lock released, or until `wake_leader`. May
    /// return earlier.
    fn wait(&self, state: &mut MutexGuard<'_, State>, time: Duration);

    /// Ends the wait of the leader. If no thread waits, the next wait may return at once.
    fn wake_leader(&self);
}

/// A timed wait of the standard kind.
impl LeaderWait for Condvar {
    fn wait(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        match Instant::now().checked_add(time) {
            Some(until) => _ = self.wait_until(state, until),
            None => self.wait(state),
        }
    }

    fn wake_leader(&self) {
        self.notify_one();
    }
}

/// The backend for every system.
pub(crate) type LeaderFollowers = LeaderFollowersOn<Condvar>;

/// The alarms of a runtime.
pub(crate) struct LeaderFollowersOn<L> {
    state: Mutex<State>,
    /// The leader waits here.
    lead: L,
    /// The followers wait here.
    follow: Condvar,
    clock: SystemClock,
    longest_wait: Duration,
    /// Index of the stall check among the alarms.
    stall_check: usize,
    origin: ForkGuard,
}

pub(crate) struct State {
    /// The instant of each alarm, and at the end of the stall check; [`NEVER`] if not set.
    alarms: Box<[u64]>,
    /// The alarm after the last alarm taken, to be looked at first: each alarm has its turn,
    /// however many alarms expire.
    turn: usize,
    /// Events that one `wait` takes: [`EVENTS_AT_ONCE`], fewer in a model.
    at_once: usize,
    wakes: usize,
    /// The instant until which the leader waits; `None` without a leader.
    leader_until: Option<u64>,
    followers: usize,
}

/// The events that a `wait` has taken, in order.
type TakenEvents = [Option<Event>; EVENTS_AT_ONCE];

impl State {
    pub(super) fn new(alarms: usize) -> Self {
        let alarms = vec![NEVER; alarms + 1].into_boxed_slice();
        Self { alarms, turn: 0, at_once: EVENTS_AT_ONCE, wakes: 0, leader_until: None, followers: 0 }
    }

    fn earliest(&self) -> u64 {
        self.alarms.iter().copied().min().unwrap_or(NEVER)
    }

    /// Takes events up to `now`, up to the limit: a wake, the stall check (early, since it must
    /// work under overload), then alarms.
    fn take(&mut self, now: u64) -> TakenEvents {
        let (mut taken, mut n) = ([None; EVENTS_AT_ONCE], 0);
        if self.wakes > 0 {
            self.wakes -= 1;
            (taken[0], n) = (Some(Event::Wake), 1);
        }
        let stall_check = self.alarms.len() - 1;
        for alarm in iter::once(stall_check).chain(self.turn..stall_check).chain(0..self.turn) {
            if n == self.at_once {
                break;
            }
            let at = &mut self.alarms[alarm];
            if *at <= now && *at != NEVER {
                *at = NEVER;
                taken[n] = Some(if alarm == stall_check { Event::StallCheck } else { Event::Alarm(alarm) });
                n += 1;
                if alarm != stall_check {
                    self.turn = alarm + 1;
                }
            }
        }
        taken
    }
}

impl LeaderFollowers {
    pub(crate) fn new(clock: SystemClock, alarms: usize) -> io::Result<Self> {
        Self::led_by(Condvar::new(), clock, alarms)
    }
}

impl<L: LeaderWait> LeaderFollowersOn<L> {
    pub(super) fn led_by(lead: L, clock: SystemClock, alarms: usize) -> io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State::new(alarms)),
            lead,
            follow: Condvar::new(),
            clock,
            longest_wait: if clock == SystemClock::MONOTONIC { Duration::MAX } else { BOOT_RECHECK },
            stall_check: alarms,
            origin: ForkGuard::here()?,
        })
    }

    fn set(&self, alarm: usize, at: u64) {
        let mut state = self.state.lock();
        state.alarms[alarm] = at;
        match state.leader_until {
            Some(until) if at < until => self.lead.wake_leader(),
            None if state.followers > 0 => _ = self.follow.notify_one(),
            _ => {}
        }
    }

    /// The calling thread leaves to report its events: wakes a further thread if events are left,
    /// or if a leader is needed.
    fn hand_over(&self, state: &State, now: u64) {
        let earliest = state.earliest();
        let pending = state.wakes > 0 || earliest <= now;
        let leaderless = state.leader_until.is_none() && earliest != NEVER;
        if (pending || leaderless) && state.followers > 0 {
            self.follow.notify_one();
        } else if pending {
            self.lead.wake_leader();
        }
    }
}

impl<L: LeaderWait> Backend for LeaderFollowersOn<L> {
    fn arm(&self, alarm: usize, at: u64) {
        if self.origin.is_here() {
            self.set(alarm, at);
        }
    }

    fn arm_stall_check(&self, after: Duration) {
        if self.origin.is_here() {
            self.set(self.stall_check, crate::time::instant(self.clock.now(), after));
        }
    }

    fn wait(&self, report: &mut dyn FnMut(Event)) {
        // A forked child that returns from a callback has no alarms to wait for: they are its
        // parent's.
        if !self.origin.is_here() {
            return std::thread::park();
        }
        let mut state = self.state.lock();
        let taken = loop {
            let now = self.clock.now();
            let taken = state.take(now);
            if taken[0].is_some() {
                self.hand_over(&state, now);
                break taken;
            }
            if state.leader_until.is_some() {
                state.followers += 1;
                self.follow.wait(&mut state);
                state.followers -= 1;
                continue;
            }
            let at = state.earliest();
            state.leader_until = Some(at);
            let wait = if at == NEVER {
                Duration::MAX
            } else {
                Duration::from_nanos(at.saturating_sub(now)).min(self.longest_wait)
            };
            self.lead.wait(&mut state, wait);
            state.leader_until = None;
        };
        drop(state);
        taken.into_iter().flatten().for_each(report);
    }

    fn wake(&self) {
        if !self.origin.is_here() {
            return;
        }
        let mut state = self.state.lock();
        state.wakes = state.wakes.saturating_add(1);
        if state.followers > 0 {
            self.follow.notify_one();
        } else {
            self.lead.wake_leader();
        }
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/leader_handover.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::alarm::conformance::Rig;

    struct Real<const BOOT: bool>(LeaderFollowers);

    impl<const BOOT: bool> Rig for Real<BOOT> {
        type Backend = LeaderFollowers;

        fn new(queues: usize) -> Self {
            let clock = SystemClock::BOOT.filter(|_| BOOT).unwrap_or(SystemClock::MONOTONIC);
            Self(LeaderFollowers::new(clock, queues).expect("nothing to refuse"))
        }

        fn alarms(&self) -> &LeaderFollowers {
            &self.0
        }

        fn now(&self) -> u64 {
            self.0.clock.now()
        }

        fn pass(&self, time: Duration) {
            std::thread::sleep(time);
        }
    }

    #[test]
    fn a_count_of_wakes_that_is_at_its_end_stays_there() {
        let alarms = LeaderFollowers::new(SystemClock::MONOTONIC, 1).expect("nothing to refuse");
        alarms.state.lock().wakes = usize::MAX;
        alarms.wake();
        let mut wakes = 0;
        alarms.wait(&mut |event| wakes += usize::from(event == Event::Wake));
        assert_eq!((wakes, alarms.state.lock().wakes), (1, usize::MAX - 1));
    }

    #[test]
    fn each_queue_has_its_turn() {
        const QUEUES: usize = 6;
        let mut state = State::new(QUEUES);
        let mut seen = Vec::new();
        for now in 1..=3 {
            state.alarms[..QUEUES].fill(now);
            seen.extend(state.take(now).into_iter().flatten().map(|event| match event {
                Event::Alarm(queue) => queue,
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn only_a_clock_that_counts_suspend_is_looked_at_from_time_to_time() {
        let longest = |clock| LeaderFollowers::new(clock, 1).expect("nothing to refuse").longest_wait;
        assert_eq!(longest(SystemClock::MONOTONIC), Duration::MAX);
        if let Some(boot) = SystemClock::BOOT {
            assert_eq!(longest(boot), BOOT_RECHECK);
        }
    }

    /// Two pollers in turn: each takes some events and is then busy until its peer has taken some,
    /// too. So a poller that leaves must wake its peer for the events left.
    fn taken_in_turns(total: usize, counts: fn(Event) -> bool, publish: impl Fn(&LeaderFollowers, u64)) {
        const PATIENCE: Duration = Duration::from_secs(20);
        for round in 0..20 {
            let clock = SystemClock::MONOTONIC;
            let alarms = LeaderFollowers::new(clock, total).expect("nothing to refuse");
            // The number of events reported, and the last reporting poller.
            let (reported, news) = (std::sync::Mutex::new((0, 2)), std::sync::Condvar::new());
            std::thread::scope(|scope| {
                for poller in 0..2 {
                    let (alarms, reported, news) = (&alarms, &reported, &news);
                    scope.spawn(move || {
                        let mut last = (0, 2);
                        while last.0 < total {
                            let mut n = 0;
                            alarms.wait(&mut |event| n += usize::from(counts(event)));
                            let mut now = reported.lock().expect("no panic");
                            *now = (now.0 + n, poller);
                            news.notify_all();
                            let busy = |last: &mut (usize, usize)| last.0 < total && last.1 == poller;
                            let (now, outcome) = news.wait_timeout_while(now, PATIENCE, busy).expect("no panic");
                            last = *now;
                            drop(now);
                            if outcome.timed_out() {
                                (0..total).for_each(|_| alarms.wake()); // so that the test ends
                            }
                            assert!(!outcome.timed_out(), "round {round}: nobody takes what was left after {last:?}");
                        }
                        alarms.wake();
                    });
                }
                std::thread::sleep(Duration::from_micros(100 * (round % 4)));
                publish(&alarms, clock.now() + round * 20_000);
            });
        }
    }

    #[test]
    fn alarms_that_one_poller_leaves_another_takes() {
        const QUEUES: usize = 10 * EVENTS_AT_ONCE;
        let publish = |alarms: &LeaderFollowers, soon| (0..QUEUES).for_each(|queue| alarms.arm(queue, soon));
        taken_in_turns(QUEUES, |event| event != Event::Wake, publish);
    }

    #[test]
    fn wakes_that_one_poller_leaves_another_takes() {
        // A distant alarm, for the leader.
        let publish = |alarms: &LeaderFollowers, soon| {
            alarms.arm(0, soon + 1_000_000_000_000);
            (0..40).for_each(|_| alarms.wake());
        };
        taken_in_turns(40, |event| event == Event::Wake, publish);
    }

    #[test]
    fn each_alarm_has_its_turn_however_many_expire() {
        const QUEUES: usize = 10;
        let mut state = State::new(QUEUES);
        let (mut queues, mut stall_checks, mut wakes) = ([0; QUEUES], 0, 0);
        for _ in 0..50 {
            // All alarms taken before have expired again.
            state.alarms.fill(1);
            state.wakes = 1;
            for event in state.take(1).into_iter().flatten() {
                match event {
                    Event::Alarm(queue) => queues[queue] += 1,
                    Event::StallCheck => stall_checks += 1,
                    _ => wakes += 1,
                }
            }
        }
        assert_eq!((queues, stall_checks, wakes), ([10; QUEUES], 50, 50));
    }

    mod monotonic {
        crate::alarm::conformance::conformance!(super::Real<false>);
    }

    mod boot {
        crate::alarm::conformance::conformance!(super::Real<true>);
    }
}
