//! Models of the portable backend (leader/followers): setting, waiting, expiry and waking, in pairs
//! (S27, I8).
//!
//! Promise: if an alarm is set or a wake is pending, and threads wait, then a thread leads and
//! waits no longer than until this alarm, or a thread is on its way out of its wait
//! (`src/alarm/leader_followers.rs`). A lost event shows as a deadlock: a thread waits for ever.
//!
//! The bad interleavings:
//!
//! ```text
//!   leads                                 sets an earlier alarm
//!     the earliest is 9
//!                                           a thread leads until 9: notifies no thread
//!     waits until 9: 5 is late
//!
//!   leads, comes back                     sets an alarm              follows
//!     leads no more, takes 1 of 2 events
//!                                                                      waits
//!                                           no leader: notifies
//!                                           no thread
//!     leaves                                                           waits for ever
//! ```
//!
//! The models run the shipped code, with a single event taken at a time, on a clock that a thread
//! of the model sets. A toy of the timed wait records its end: setting the clock to this end or
//! later, or a notification, ends the wait.
//!
//! Seen to fail with: `set` that does not wake the leader, or notifies no follower where no thread
//! leads; `hand_over` that notifies no thread, or looks only at expired alarms, or only at alarms
//! not yet expired, or forgets wakes, or does not wake the leader where no thread follows; `wait`
//! that still leads when it leaves, or counts itself as a follower for ever, or waits longer than
//! until the earliest alarm; `wake` that wakes only the leader, or only a follower; `take` that
//! leaves a taken alarm set, or takes an alarm early.

use std::sync::atomic::{AtomicU64 as Plain, Ordering::Relaxed};
use std::sync::{Arc, Mutex as Record};
use std::time::Duration;

use loom::thread::{self, JoinHandle};

use super::{Backend, Event, LeaderFollowersOn, LeaderWait, State, SystemClock};
use crate::alarm::clock::MODEL_CLOCK;
use crate::loom_models::explore::{explore_all, explore_bounded, explore_few};
use crate::sync::{Condvar, MutexGuard};
use crate::time::NEVER;

const SOON: u64 = 5;
const LATE: u64 = 9;

/// A timed wait that ends when the clock is set to its end or later.
struct Timed {
    comes: Condvar,
    /// Written and read with the lock of the alarms held.
    until: Plain,
}

impl LeaderWait for Timed {
    fn wait(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(NEVER);
        self.until.store(MODEL_CLOCK.get().expect("set").saturating_add(time), Relaxed);
        self.comes.wait(state);
        self.until.store(NEVER, Relaxed);
    }

    fn wake_leader(&self) {
        self.comes.notify_one();
    }
}

struct Stage {
    alarms: LeaderFollowersOn<Timed>,
    reported: Record<Vec<Event>>,
}

impl Stage {
    /// Alarms of two queues, with the clock at zero.
    fn new() -> Arc<Self> {
        MODEL_CLOCK.set(Some(0));
        let lead = Timed { comes: Condvar::new(), until: Plain::new(NEVER) };
        let alarms = LeaderFollowersOn::led_by(lead, SystemClock::MONOTONIC, 2).expect("nothing to refuse");
        // So that two events are for two threads.
        alarms.state.lock().at_once = 1;
        Arc::new(Self { alarms, reported: Record::default() })
    }

    fn pass(&self, now: u64) {
        let _state = self.alarms.state.lock();
        MODEL_CLOCK.set(Some(now));
        if self.alarms.lead.until.load(Relaxed) <= now {
            self.alarms.lead.comes.notify_one();
        }
    }

    fn wait(&self) {
        self.alarms.wait(&mut |event| self.reported.lock().unwrap().push(event));
    }

    /// Called after all threads have been joined. `all`: the events that were reported, in any
    /// order.
    fn end(&self, mut all: Vec<Event>) {
        let mut reported = std::mem::take(&mut *self.reported.lock().unwrap());
        let place = |event: &Event| match event {
            Event::Alarm(queue) => *queue,
            Event::StallCheck => usize::MAX - 1,
            _ => usize::MAX,
        };
        all.sort_by_key(place);
        reported.sort_by_key(place);
        assert_eq!(reported, all);
        let state = self.alarms.state.lock();
        assert!(state.alarms.iter().all(|&at| at == NEVER) && state.wakes == 0, "each event is taken once");
        assert!(state.leader_until.is_none() && state.followers == 0, "no thread waits");
        MODEL_CLOCK.set(None);
    }
}

fn spawn(stage: &Arc<Stage>, action: impl FnOnce(&Stage) + 'static) -> JoinHandle<()> {
    let stage = Arc::clone(stage);
    thread::spawn(move || action(&stage))
}

/// Pollers: each waits until it has taken an event.
fn pollers(stage: &Arc<Stage>) -> [JoinHandle<()>; 2] {
    [spawn(stage, Stage::wait), spawn(stage, Stage::wait)]
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_alarm_set_while_a_thread_waits_is_taken() {
    // Before, no alarm was set, or a later alarm.
    for before in [NEVER, LATE] {
        explore_all(move || {
            let stage = Stage::new();
            stage.alarms.arm(0, before);
            let poller = spawn(&stage, Stage::wait);
            stage.alarms.arm(0, SOON);
            stage.pass(SOON);
            join([poller]);
            stage.end(vec![Event::Alarm(0)]);
        });
    }
}

#[test]
fn an_alarm_that_was_moved_later_is_taken_then() {
    explore_all(|| {
        let stage = Stage::new();
        stage.alarms.arm(0, SOON);
        let poller = spawn(&stage, |stage| {
            stage.wait();
            assert_eq!(MODEL_CLOCK.get(), Some(LATE), "not before");
        });
        stage.alarms.arm(0, LATE);
        stage.pass(SOON);
        stage.pass(LATE);
        join([poller]);
        stage.end(vec![Event::Alarm(0)]);
    });
}

/// The stall check is an alarm like those of the queues.
#[test]
fn alarms_that_expire_together_are_taken_by_two() {
    explore_bounded(|| {
        let stage = Stage::new();
        let pollers = pollers(&stage);
        stage.alarms.arm(1, SOON);
        stage.alarms.arm_stall_check(Duration::from_nanos(SOON));
        stage.pass(SOON);
        join(pollers);
        stage.end(vec![Event::Alarm(1), Event::StallCheck]);
    });
}

#[test]
fn the_next_leader_waits_for_the_next_alarm() {
    explore_bounded(|| {
        let stage = Stage::new();
        let pollers = pollers(&stage);
        stage.alarms.arm(0, SOON);
        stage.alarms.arm(1, LATE);
        stage.pass(SOON);
        stage.pass(LATE);
        join(pollers);
        stage.end(vec![Event::Alarm(0), Event::Alarm(1)]);
    });
}

/// The leader has left with the last event; of two pollers one is left, and has no leader.
#[test]
fn an_alarm_that_is_set_when_no_thread_leads_is_taken() {
    explore_bounded(|| {
        let stage = Stage::new();
        let pollers = pollers(&stage);
        stage.alarms.arm(0, SOON);
        stage.pass(SOON);
        stage.alarms.arm(1, LATE);
        stage.pass(LATE);
        join(pollers);
        stage.end(vec![Event::Alarm(0), Event::Alarm(1)]);
    });
}

#[test]
fn each_wake_is_taken_by_one_thread() {
    // The leader waits for an instant that is never reached, or for ever.
    for far in [NEVER, LATE] {
        explore_bounded(move || {
            let stage = Stage::new();
            stage.alarms.arm(0, far);
            let pollers = pollers(&stage);
            stage.alarms.wake();
            stage.alarms.wake();
            join(pollers);
            stage.alarms.arm(0, NEVER);
            stage.end(vec![Event::Wake, Event::Wake]);
        });
    }
}

#[test]
fn a_wake_and_an_alarm_are_taken_by_two() {
    for wake_first in [true, false] {
        explore_bounded(move || {
            let stage = Stage::new();
            let pollers = pollers(&stage);
            if wake_first {
                stage.alarms.wake();
            }
            stage.alarms.arm(0, SOON);
            if !wake_first {
                stage.alarms.wake();
            }
            stage.pass(SOON);
            join(pollers);
            stage.end(vec![Event::Alarm(0), Event::Wake]);
        });
    }
}

#[test]
fn an_alarm_that_is_set_while_another_thread_wakes_is_taken() {
    explore_few(|| {
        let stage = Stage::new();
        let pollers = pollers(&stage);
        let waker = spawn(&stage, |stage| stage.alarms.wake());
        stage.alarms.arm(0, SOON);
        stage.pass(SOON);
        join(pollers);
        join([waker]);
        stage.end(vec![Event::Alarm(0), Event::Wake]);
    });
}

/// A single poller that waits again and again takes all events.
#[test]
fn a_lone_poller_takes_all_events() {
    explore_all(|| {
        let stage = Stage::new();
        let poller = spawn(&stage, |stage| (0..3).for_each(|_| stage.wait()));
        stage.alarms.arm(0, SOON);
        stage.alarms.wake();
        stage.pass(SOON);
        stage.alarms.arm(1, LATE);
        stage.pass(LATE);
        join([poller]);
        stage.end(vec![Event::Alarm(0), Event::Alarm(1), Event::Wake]);
    });
}
