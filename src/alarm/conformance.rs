//! The conformance tests of [`Backend`]. Every backend passes the whole list: each backend's tests
//! call `conformance!(Rig)`.
//!
//! Ground rules. A [`Rig`] is a backend with its clock, and lets time pass, by sleeping or by
//! advancing its clock. The tests assert that an alarm comes and is never early, but not that it is
//! near its instant. A test whose event never comes fails after [`PATIENCE`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Backend, Event, OFF};
use crate::time::LAST;

/// The longest time that an expected event may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A backend under test.
pub(super) trait Rig: Send + Sync + 'static {
    type Backend: Backend;

    fn new(queues: usize) -> Self;
    fn alarms(&self) -> &Self::Backend;
    /// The reading of the alarms' clock.
    fn now(&self) -> u64;
    /// Lets at least this much time pass on the alarms' clock.
    fn pass(&self, time: Duration);

    /// The instant `after` from now.
    fn after(&self, after: Duration) -> u64 {
        self.now() + after.as_nanos() as u64
    }
}

/// The list. Each backend's tests call this once with the type of its rig.
macro_rules! conformance {
    ($rig:ty) => {
        $crate::alarm::conformance::tests_of! { $rig:
            an_alarm_expires_once_and_not_early,
            an_instant_that_has_passed_expires_at_once,
            the_latest_call_wins,
            an_earlier_alarm_wakes_a_poller,
            an_alarm_can_be_set_again_and_again,
            an_expiry_waits_for_a_poller,
            queues_are_told_apart,
            many_alarms_at_one_instant_are_all_reported,
            the_stall_check_is_an_alarm_of_its_own,
            a_wake_wakes_one_poller,
            a_wake_waits_for_a_poller,
            wakes_and_expiries_do_not_hide_each_other,
            each_expiry_goes_to_exactly_one_poller,
            each_wake_goes_to_exactly_one_poller,
            alarms_set_by_many_threads_are_all_reported,
            an_alarm_can_be_set_while_events_are_reported,
            a_busy_poller_does_not_delay_its_peer,
            far_instants_are_taken,
            with_no_due_alarm_no_poller_wakes,
        }
    };
}
pub(super) use conformance;

macro_rules! tests_of {
    ($rig:ty: $($test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            $crate::alarm::conformance::$test::<$rig>();
        })*
    };
}
pub(super) use tests_of;

/// An event reported to a poller, and the clock's reading then.
#[derive(Clone, Copy, Debug)]
struct Report {
    poller: usize,
    event: Event,
    at: u64,
}

/// Threads that poll a rig and pass on each reported event.
struct Pollers<R: Rig> {
    rig: Arc<R>,
    stop: Arc<AtomicBool>,
    reports: Receiver<Report>,
    threads: Vec<JoinHandle<u64>>,
}

impl<R: Rig> Pollers<R> {
    fn of(rig: &Arc<R>, threads: usize) -> Self {
        Self::that(rig, threads, |_, _| {}, |_| {})
    }

    /// As `of`; also calls `during` with each event while it is reported, and `after` with all
    /// events of a `wait`.
    fn that(
        rig: &Arc<R>,
        threads: usize,
        during: impl Fn(&R, Event) + Clone + Send + 'static,
        after: impl Fn(&[Event]) + Clone + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, reports) = channel();
        let poller = |poller| {
            let (rig, stop, tell) = (Arc::clone(rig), Arc::clone(&stop), tell.clone());
            let (during, after) = (during.clone(), after.clone());
            thread::spawn(move || {
                let mut empty = 0;
                while !stop.load(Ordering::SeqCst) {
                    let mut events = Vec::new();
                    rig.alarms().wait(&mut |event| {
                        events.push(event);
                        during(&rig, event);
                        let _ = tell.send(Report { poller, event, at: rig.now() });
                    });
                    empty += u64::from(events.is_empty());
                    after(&events);
                }
                empty
            })
        };
        let threads = (0..threads).map(poller).collect();
        Self { rig: Arc::clone(rig), stop, reports, threads }
    }

    fn next(&self) -> Report {
        self.reports.recv_timeout(PATIENCE).expect("something is reported")
    }

    /// Asserts that the next report is of this event. Returns its instant.
    #[track_caller]
    fn expect(&self, event: Event) -> u64 {
        let report = self.next();
        assert_eq!(report.event, event);
        report.at
    }

    /// Asserts that no event is reported for this time.
    #[track_caller]
    fn expect_nothing(&self, time: Duration) {
        self.rig.pass(time);
        match self.reports.try_recv() {
            Ok(report) => panic!("reported {report:?}"),
            Err(error) => assert_eq!(error, std::sync::mpsc::TryRecvError::Empty),
        }
    }

    /// Ends the threads. Returns how often a `wait` returned without an event.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            self.rig.alarms().wake();
            thread::sleep(ms(1));
        }
        self.threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    }
}

fn rig<R: Rig>(queues: usize) -> (Arc<R>, Pollers<R>) {
    let rig = Arc::new(R::new(queues));
    let pollers = Pollers::of(&rig, 1);
    (rig, pollers)
}

pub(super) fn an_alarm_expires_once_and_not_early<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    for micros in [1, 50, 999, 1_000, 1_001, 7_300] {
        let at = rig.after(Duration::from_micros(micros));
        rig.alarms().arm(0, at);
        rig.pass(Duration::from_micros(micros));
        let told = pollers.expect(Event::Alarm(0));
        assert!(told >= at, "{} ns early", at - told);
    }
    pollers.expect_nothing(ms(30));
    pollers.end();
}

pub(super) fn an_instant_that_has_passed_expires_at_once<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    for at in [rig.now(), rig.now().saturating_sub(1), 1, 0] {
        rig.alarms().arm(0, at);
        rig.pass(ms(0));
        pollers.expect(Event::Alarm(0));
    }
    pollers.expect_nothing(ms(10));
    pollers.end();
}

pub(super) fn the_latest_call_wins<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    let mut later_won = 0;
    for _ in 0..5 {
        // Earlier.
        rig.alarms().arm(0, rig.after(Duration::from_secs(1_000)));
        let at = rig.after(ms(5));
        rig.alarms().arm(0, at);
        rig.pass(ms(5));
        assert!(pollers.expect(Event::Alarm(0)) >= at);
        // Later: the earlier setting is not reported, unless the alarm has expired before the new
        // setting.
        let first = rig.after(ms(40));
        rig.alarms().arm(0, first);
        let second = rig.after(ms(60));
        rig.alarms().arm(0, second);
        let in_time = rig.now() < first;
        rig.pass(ms(60));
        let mut told = pollers.expect(Event::Alarm(0));
        if !in_time && told < second {
            told = pollers.expect(Event::Alarm(0));
        }
        assert!(told >= second, "{} ns early", second - told);
        later_won += u64::from(in_time);
    }
    pollers.expect_nothing(ms(20));
    assert!(later_won > 0, "not once within 40 ms");
    pollers.end();
}

pub(super) fn an_earlier_alarm_wakes_a_poller<R: Rig>() {
    for threads in [1, 3] {
        let rig = Arc::new(R::new(2));
        let pollers = Pollers::of(&rig, threads);
        rig.alarms().arm(0, rig.after(Duration::from_secs(1_000)));
        pollers.expect_nothing(ms(10)); // the pollers have started to wait
        for queue in [1, 0, 1] {
            let at = rig.after(ms(3));
            rig.alarms().arm(queue, at);
            rig.pass(ms(3));
            assert!(pollers.expect(Event::Alarm(queue)) >= at);
        }
        pollers.end();
    }
}

pub(super) fn an_alarm_can_be_set_again_and_again<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    for _ in 0..200 {
        let at = rig.after(Duration::from_micros(200));
        rig.alarms().arm(0, at);
        rig.pass(Duration::from_micros(200));
        assert!(pollers.expect(Event::Alarm(0)) >= at);
    }
    pollers.end();
}

pub(super) fn an_expiry_waits_for_a_poller<R: Rig>() {
    let rig = Arc::new(R::new(3));
    rig.alarms().arm(1, rig.after(ms(1)));
    rig.alarms().arm_stall_check(ms(1));
    rig.pass(ms(15));
    let pollers = Pollers::of(&rig, 1);
    let both = [pollers.next().event, pollers.next().event];
    assert!(both.contains(&Event::Alarm(1)) && both.contains(&Event::StallCheck), "{both:?}");
    pollers.expect_nothing(ms(10));
    pollers.end();
}

pub(super) fn queues_are_told_apart<R: Rig>() {
    const QUEUES: usize = 7;
    let (rig, pollers) = rig::<R>(QUEUES);
    for queue in (0..QUEUES).rev() {
        rig.alarms().arm(queue, rig.after(ms(2)));
        rig.pass(ms(2));
        pollers.expect(Event::Alarm(queue));
    }
    pollers.end();
}

pub(super) fn many_alarms_at_one_instant_are_all_reported<R: Rig>() {
    const QUEUES: usize = 40;
    for threads in [1, 3] {
        let rig = Arc::new(R::new(QUEUES));
        let pollers = Pollers::of(&rig, threads);
        for _ in 0..5 {
            let at = rig.after(ms(5));
            (0..QUEUES).for_each(|queue| rig.alarms().arm(queue, at));
            rig.alarms().arm_stall_check(ms(5));
            rig.pass(ms(5));
            let mut seen = [0; QUEUES + 1];
            for _ in 0..=QUEUES {
                let report = pollers.next();
                match report.event {
                    Event::Alarm(queue) => {
                        assert!(report.at >= at);
                        seen[queue] += 1;
                    }
                    Event::StallCheck => seen[QUEUES] += 1,
                    other => panic!("{other:?}, and nothing of the kind has happened"),
                }
            }
            assert_eq!(seen, [1; QUEUES + 1]);
        }
        pollers.expect_nothing(ms(5));
        pollers.end();
    }
}

pub(super) fn the_stall_check_is_an_alarm_of_its_own<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    rig.alarms().arm(0, rig.after(Duration::from_secs(1_000)));
    for micros in [1, 500, 2_000, 500] {
        let at = rig.after(Duration::from_micros(micros));
        rig.alarms().arm_stall_check(Duration::from_micros(micros));
        rig.pass(Duration::from_micros(micros));
        let told = pollers.expect(Event::StallCheck);
        assert!(told >= at, "{} ns early", at - told);
    }
    // Far enough ahead for a thread delayed in between.
    rig.alarms().arm_stall_check(ms(200));
    rig.alarms().arm_stall_check(OFF);
    rig.pass(ms(200));
    pollers.expect_nothing(ms(10));
    pollers.end();
}

pub(super) fn a_wake_wakes_one_poller<R: Rig>() {
    for threads in [1, 3] {
        let rig = Arc::new(R::new(1));
        let pollers = Pollers::of(&rig, threads);
        rig.alarms().arm(0, rig.after(Duration::from_secs(1_000)));
        for _ in 0..50 {
            rig.alarms().wake();
            pollers.expect(Event::Wake);
        }
        pollers.expect_nothing(ms(10));
        pollers.end();
    }
}

pub(super) fn a_wake_waits_for_a_poller<R: Rig>() {
    let rig = Arc::new(R::new(1));
    rig.alarms().wake();
    let pollers = Pollers::of(&rig, 3);
    pollers.expect(Event::Wake);
    pollers.expect_nothing(ms(10));
    pollers.end();
}

pub(super) fn wakes_and_expiries_do_not_hide_each_other<R: Rig>() {
    for threads in [1, 2, 3] {
        let rig = Arc::new(R::new(2));
        let pollers = Pollers::of(&rig, threads);
        for round in 0..50 {
            let at = rig.after(Duration::from_micros(10 * round));
            rig.alarms().arm(0, at);
            rig.alarms().wake();
            rig.alarms().arm(1, at);
            rig.pass(Duration::from_micros(10 * round));
            let mut seen = [pollers.next().event, pollers.next().event, pollers.next().event];
            seen.sort_by_key(|event| match event {
                Event::Alarm(queue) => *queue,
                _ => 2,
            });
            assert_eq!(seen, [Event::Alarm(0), Event::Alarm(1), Event::Wake]);
        }
        pollers.end();
    }
}

pub(super) fn each_expiry_goes_to_exactly_one_poller<R: Rig>() {
    const QUEUES: usize = 4;
    const THREADS: usize = 5;
    let rig = Arc::new(R::new(QUEUES));
    let pollers = Pollers::of(&rig, THREADS);
    let mut by = [0; THREADS];
    for _ in 0..100 {
        // All instants differ, so pollers start and end their waits in between.
        for queue in 0..QUEUES {
            rig.alarms().arm(queue, rig.after(Duration::from_micros(100 * (1 + queue as u64))));
        }
        rig.pass(Duration::from_micros(100 * QUEUES as u64));
        let mut seen = [0; QUEUES];
        for _ in 0..QUEUES {
            let report = pollers.next();
            by[report.poller] += 1;
            match report.event {
                Event::Alarm(queue) => seen[queue] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [1; QUEUES]);
    }
    pollers.expect_nothing(ms(10));
    assert_eq!(by.iter().sum::<usize>(), 100 * QUEUES, "{by:?}");
    pollers.end();
}

pub(super) fn each_wake_goes_to_exactly_one_poller<R: Rig>() {
    let rig = Arc::new(R::new(1));
    let pollers = Pollers::of(&rig, 4);
    for _ in 0..500 {
        rig.alarms().wake();
        pollers.expect(Event::Wake);
    }
    pollers.expect_nothing(ms(10));
    pollers.end();
}

pub(super) fn alarms_set_by_many_threads_are_all_reported<R: Rig>() {
    const QUEUES: usize = 4;
    const ROUNDS: usize = 100;
    let rig = Arc::new(R::new(QUEUES));
    // After each report, the arming thread may set the shard's alarm again.
    let (hand_back, handed): (Vec<_>, Vec<_>) = (0..QUEUES).map(|_| channel::<u64>()).unzip();
    let hand_back = move |rig: &R, event| {
        if let Event::Alarm(queue) = event {
            let _ = hand_back[queue].send(rig.now());
        }
    };
    let pollers = Pollers::that(&rig, 3, hand_back, |_| {});
    let setters: Vec<_> = handed
        .into_iter()
        .enumerate()
        .map(|(queue, handed)| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let micros = Duration::from_micros(((round * 37 + queue * 11) % 150) as u64);
                    let at = rig.after(micros);
                    rig.alarms().arm(queue, at);
                    rig.pass(micros);
                    match handed.recv_timeout(PATIENCE) {
                        Ok(told) => assert!(told >= at, "{} ns early", at - told),
                        Err(error @ (RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) => {
                            panic!("queue {queue}, round {round}: {error}")
                        }
                    }
                }
            })
        })
        .collect();
    setters.into_iter().for_each(|setter| setter.join().expect("all are reported"));
    pollers.end();
}

pub(super) fn an_alarm_can_be_set_while_events_are_reported<R: Rig>() {
    let rig = Arc::new(R::new(2));
    let sweep = |rig: &R, event| {
        // Each expiry of shard 0 sets the alarm of shard 1.
        if event == Event::Alarm(0) {
            rig.alarms().arm(1, rig.now());
            rig.alarms().arm_stall_check(Duration::from_micros(1));
            rig.alarms().wake();
            rig.pass(Duration::from_micros(1));
        }
    };
    let pollers = Pollers::that(&rig, 2, sweep, |_| {});
    rig.alarms().arm(0, rig.after(ms(1)));
    rig.pass(ms(1));
    let mut seen: Vec<String> = (0..4).map(|_| format!("{:?}", pollers.next().event)).collect();
    seen.sort();
    assert_eq!(seen, ["Alarm(0)", "Alarm(1)", "StallCheck", "Wake"]);
    pollers.end();
}

pub(super) fn a_busy_poller_does_not_delay_its_peer<R: Rig>() {
    let rig = Arc::new(R::new(2));
    let (open, gate) = channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let busy = move |events: &[Event]| {
        if events.contains(&Event::Alarm(0)) {
            let _ = gate.lock().expect("no panic").recv_timeout(PATIENCE);
        }
    };
    let pollers = Pollers::that(&rig, 2, |_, _| {}, busy);
    for _ in 0..10 {
        // An alarm that keeps a poller busy, and a later alarm, set before.
        rig.alarms().arm(1, rig.after(ms(8)));
        rig.alarms().arm(0, rig.after(ms(1)));
        rig.pass(ms(8));
        let mut both = [pollers.next().event, pollers.next().event];
        both.sort_by_key(|event| *event != Event::Alarm(0));
        assert_eq!(both, [Event::Alarm(0), Event::Alarm(1)]);
        // An alarm set while the poller is busy.
        rig.alarms().arm(1, rig.after(ms(1)));
        rig.pass(ms(1));
        pollers.expect(Event::Alarm(1));
        rig.alarms().wake();
        pollers.expect(Event::Wake);
        open.send(()).expect("somebody waits");
    }
    pollers.end();
}

pub(super) fn far_instants_are_taken<R: Rig>() {
    let (rig, pollers) = rig::<R>(1);
    const YEAR_NS: u64 = 365 * 24 * 3_600 * 1_000_000_000;
    for far in [LAST, LAST - 1, rig.now() + 100 * YEAR_NS, rig.now() + YEAR_NS, i64::MAX as u64, 1 << 63] {
        rig.alarms().arm(0, far);
        pollers.expect_nothing(ms(3));
        rig.alarms().arm(0, rig.after(ms(1)));
        rig.pass(ms(1));
        pollers.expect(Event::Alarm(0));
    }
    pollers.end();
}

pub(super) fn with_no_due_alarm_no_poller_wakes<R: Rig>() {
    let rig = Arc::new(R::new(2));
    let pollers = Pollers::of(&rig, 3);
    rig.alarms().arm(0, rig.after(Duration::from_secs(1_000)));
    rig.alarms().arm(1, rig.after(ms(2)));
    rig.pass(ms(2));
    pollers.expect(Event::Alarm(1));
    pollers.expect_nothing(ms(150));
    let empty = pollers.end();
    // Returns without an event are allowed (a signal, say); many of them are a busy loop.
    assert!(empty <= 5, "{empty} times");
}
