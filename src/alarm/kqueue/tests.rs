//! Tests of the kqueue backend against simulated kqueues: the conformance tests for each
//! personality, and tests of kqueues alone.

#![allow(unsafe_code)] // fork

use std::marker::PhantomData;
use std::time::Duration;

use super::abi::{KqueueAbi, LONGEST_NS, SHORTEST_NS};
use super::fake::{Fake, Personality};
use super::{Event, Kqueue, Sys};
use crate::alarm::Backend;
use crate::alarm::conformance::{Rig, conformance};

/// The personality of a rig.
trait Persona: Send + Sync + 'static {
    const PERSONALITY: Personality;
}

/// A fake whose `wait` blocks, and whose clock jumps.
struct Jumping<P> {
    fake: Fake,
    alarms: Kqueue<Fake>,
    persona: PhantomData<P>,
}

impl<P: Persona> Rig for Jumping<P> {
    type Backend = Kqueue<Fake>;

    fn new(queues: usize) -> Self {
        let fake = Fake::new(P::PERSONALITY, true);
        let alarms = open(&fake, queues);
        Self { fake, alarms, persona: PhantomData }
    }

    fn alarms(&self) -> &Kqueue<Fake> {
        &self.alarms
    }

    fn now(&self) -> u64 {
        self.fake.now()
    }

    fn pass(&self, time: Duration) {
        self.fake.advance(time.as_nanos() as u64 + P::PERSONALITY.latest_ns());
        self.fake.settle();
    }
}

fn open(fake: &Fake, queues: usize) -> Kqueue<Fake> {
    Kqueue::open(fake.clone(), fake.personality.abi, queues).expect("opens")
}

macro_rules! personas {
    ($($module:ident: $persona:ident),* $(,)?) => {
        $(mod $module {
            struct Persona;
            impl super::Persona for Persona {
                const PERSONALITY: super::Personality = super::Personality::$persona;
            }
            super::conformance!(super::Jumping<Persona>);
        })*
    };
}
personas! {
    freebsd: FREEBSD,
    macos: MACOS,
    openbsd: OPENBSD,
    old_openbsd: OPENBSD_OLD,
    netbsd: NETBSD,
    dragonfly: DRAGONFLY,
    userspace: USERSPACE,
    hostile: HOSTILE,
}

/// A fake whose `wait` does not block, with its alarms.
struct Still {
    fake: Fake,
    alarms: Kqueue<Fake>,
    /// Calls of `wait` that returned without a report although an event was pending.
    empty: u64,
    looks: u64,
}

impl Still {
    fn new(personality: Personality, queues: usize) -> Self {
        let fake = Fake::new(personality, false);
        let alarms = open(&fake, queues);
        Self { fake, alarms, empty: 0, looks: 0 }
    }

    fn now(&self) -> u64 {
        self.fake.now()
    }

    /// Takes all pending events.
    fn reports(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.fake.has_events() {
            self.looks += 1;
            assert!(self.looks < 1_000_000, "it goes on for ever");
            let before = events.len();
            self.alarms.wait(&mut |event| events.push(event));
            self.empty += u64::from(events.len() == before);
        }
        events
    }

    /// Lets time pass from expiry to expiry, for `ns`. Returns each report with its instant.
    fn run(&mut self, ns: u64) -> Vec<(u64, Event)> {
        let end = self.now() + ns;
        let mut told = Vec::new();
        loop {
            told.extend(self.reports().into_iter().map(|event| (self.now(), event)));
            let next = self.fake.next_expiry().expect("timers are there for ever");
            let now = self.now();
            if next > end {
                self.fake.advance(end - now);
                return told;
            }
            self.fake.advance(next.saturating_sub(now));
        }
    }
}

fn each(test: impl Fn(Personality)) {
    for personality in Personality::ALL {
        println!("{}", personality.name);
        test(personality);
    }
}

const HOUR_NS: u64 = 3_600 * 1_000_000_000;

#[test]
fn an_alarm_is_reported_once_never_early_and_soon() {
    each(|personality| {
        let mut still = Still::new(personality, 2);
        let lengths = (0..48).flat_map(|bit| [1 << bit, (1 << bit) + 1, 3 << bit]);
        for ns in lengths {
            let at = still.now() + ns;
            still.alarms.arm(1, at);
            let told = still.run(ns + 100 * HOUR_NS);
            assert_eq!(told.len(), 1, "{ns} ns: {told:?}");
            let (when, event) = told[0];
            assert_eq!(event, Event::Alarm(1));
            assert!(when >= at, "{ns} ns, {} ns early", at - when);
            // A wait cut into pieces may be late once for each piece.
            let pieces = 1 + ns / LONGEST_NS;
            // An early timer is set again for the rest, until the rest is too short to be set.
            assert!(when - at <= pieces * personality.latest_ns(), "{ns} ns, {} ns late", when - at);
        }
    });
}

#[test]
fn a_long_wait_is_looked_at_once_a_day() {
    for personality in [Personality::FREEBSD, Personality::MACOS, Personality::NETBSD, Personality::DRAGONFLY] {
        let mut still = Still::new(personality, 1);
        still.alarms.arm(0, still.now() + 1_000 * HOUR_NS);
        let stall_check = still.run(1_001 * HOUR_NS);
        assert_eq!(stall_check.len(), 1);
        // 41 days; the shard's timer, and the timer of the stall check, never set. A single `wait`
        // may take both events.
        assert!((40..=84).contains(&still.empty), "{}: {}", personality.name, still.empty);
    }
}

#[test]
fn a_spent_alarm_that_is_not_set_again_falls_silent() {
    each(|personality| {
        let mut still = Still::new(personality, 1);
        still.alarms.arm(0, still.now() + 5_000_000);
        assert_eq!(still.run(40_000_000).len(), 1);
        let (changes, empty) = (still.fake.changes(), still.empty);
        assert_eq!(still.run(20 * HOUR_NS), []);
        assert!(still.fake.changes() - changes <= 2 && still.empty - empty <= 2, "{}", personality.name);
    });
}

#[test]
fn an_expiry_not_yet_taken_is_reported_for_the_new_instant_only() {
    each(|personality| {
        let mut still = Still::new(personality, 1);
        still.alarms.arm(0, still.now() + 1_000_000);
        still.fake.advance(50_000_000); // and no thread polls
        let at = still.now() + 300_000_000;
        still.alarms.arm(0, at);
        let told = still.run(HOUR_NS);
        assert!(told.len() == 1 && told[0].0 >= at, "{}: {told:?}", personality.name);
    });
}

#[test]
fn wakes_are_reported_with_and_without_user_events() {
    each(|personality| {
        let mut still = Still::new(personality, 1);
        for _ in 0..5 {
            still.alarms.wake();
            still.alarms.wake(); // the first is still pending: both become one
            assert_eq!(still.reports(), [Event::Wake], "{}", personality.name);
            assert_eq!(still.reports(), []);
        }
    });
}

/// Arms and advances at random; a plain list of instants gives the expected reports.
#[test]
fn random_settings_are_kept() {
    each(|personality| {
        for seed in 1..=40u64 {
            const QUEUES: usize = 3;
            let mut random = seed;
            let mut below = |n: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % n
            };
            let mut still = Still::new(personality, QUEUES);
            let mut set: [Option<u64>; QUEUES] = [None; QUEUES];
            for step in 0..200 {
                let queue = below(QUEUES as u64) as usize;
                let ns = 1 << below(36);
                match below(3) {
                    0 => {
                        let at = still.now() + below(ns);
                        still.alarms.arm(queue, at);
                        set[queue] = Some(at);
                    }
                    1 => still.fake.advance(below(ns)), // a stall: no thread polls
                    _ => {
                        for (when, event) in still.run(below(ns)) {
                            let Event::Alarm(queue) = event else { panic!("{event:?}") };
                            let at = set[queue].take().expect("reported once");
                            assert!(when >= at, "{} seed {seed} step {step}", personality.name);
                        }
                    }
                }
            }
            for (when, event) in still.run(2 * LONGEST_NS) {
                let Event::Alarm(queue) = event else { panic!("{event:?}") };
                assert!(when >= set[queue].take().expect("reported once"));
            }
            assert_eq!(set, [None; QUEUES], "{} seed {seed}: all are reported", personality.name);
        }
    });
}

#[test]
fn everything_is_opened_or_nothing() {
    each(|personality| {
        // the wake-up there is attached later
        let knotes = 5 + usize::from(personality.name != "old OpenBSD");
        for room in 0..knotes {
            let fake = Fake::new(personality, false).with_room_for(room);
            assert!(Kqueue::open(fake, personality.abi, 4).is_err(), "{} {room}", personality.name);
        }
        let fake = Fake::new(personality, false).with_room_for(knotes);
        let alarms = Kqueue::open(fake, personality.abi, 4).expect("there is room");
        // A timer is attached only once. (Except where each new setting must first delete the
        // timer.)
        for queue in 0..4 {
            alarms.arm(queue, 0);
            alarms.arm(queue, u64::MAX);
        }
    });
}

#[test]
fn a_netbsd_whose_timers_cannot_be_set_again_is_refused() {
    let fake = Fake::new(Personality::NETBSD_OLD, false);
    let error = Kqueue::open(fake, KqueueAbi::NETBSD, 1).err().expect("too old");
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn timers_follow_the_boot_clock_or_are_refused() {
    each(|personality| {
        let fake = Fake::new(personality, false).on_boot_clock();
        match Kqueue::open(fake, personality.abi, 1) {
            Ok(_) => assert!(["macOS", "userspace"].contains(&personality.name), "{}", personality.name),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{}", personality.name),
        }
    });
    let apple = KqueueAbi::APPLE;
    assert_eq!(apple.set_timer(0, 5_000, true).fflags, apple.set_timer(0, 5_000, false).fflags | 0x80);
}

#[test]
fn waits_are_rounded_up_and_kept_in_range() {
    for (abi, ns, data) in [
        (KqueueAbi::FREEBSD, 0, SHORTEST_NS as i64),
        (KqueueAbi::FREEBSD, 123_456_789, 123_456_789),
        (KqueueAbi::FREEBSD, u64::MAX, LONGEST_NS as i64),
        (KqueueAbi::NETBSD, 0, 1),
        (KqueueAbi::NETBSD, 1_000_000, 1),
        (KqueueAbi::NETBSD, 1_000_001, 2),
        (KqueueAbi::NETBSD, u64::MAX, 86_400_000),
        (KqueueAbi { most: i32::MAX.into(), ..KqueueAbi::APPLE }, u64::MAX, i32::MAX.into()),
    ] {
        assert_eq!(abi.set_timer(3, ns, false).data, data, "{abi:?} {ns}");
    }
}

/// Each call can be the first to meet the loss. Then no call follows, and the number, perhaps a
/// foreign file's, is not closed.
#[test]
fn a_kqueue_that_other_code_has_closed_is_told_of_once_and_left_alone() {
    let meets: [fn(&Kqueue<Fake>); 4] = [
        |alarms| alarms.arm(0, 1),
        |alarms| alarms.arm_stall_check(Duration::from_secs(1)),
        |alarms| alarms.wake(),
        |alarms| alarms.wait(&mut |event| assert_eq!(event, Event::Lost)),
    ];
    each(|personality| {
        for meet in meets {
            let fake = Fake::new(personality, false);
            let alarms = open(&fake, 2);
            let loss = alarms.loss_record().expect("it has a descriptor");
            alarms.wake();
            assert!(!loss.is_noted());
            fake.close();
            meet(&alarms);
            assert!(loss.is_noted() && loss.message().contains("kevent"), "{}", loss.message());
            let mut events = Vec::new();
            alarms.wait(&mut |event| events.push(event));
            alarms.arm(1, 1);
            assert_eq!(events, [Event::Lost], "{}", personality.name);
            drop(alarms);
            assert!(fake.was_forgotten());
        }
        // Or no call meets the loss before the end of the alarms.
        let fake = Fake::new(personality, false);
        let alarms = open(&fake, 2);
        fake.close();
        drop(alarms);
        assert!(fake.was_forgotten());
    });
}

#[test]
fn a_forked_child_touches_nothing() {
    let fake = Fake::new(Personality::FREEBSD, false);
    let alarms = open(&fake, 1);
    let before = fake.changes();
    // SAFETY: of all state that a parent's thread may have left inconsistent at the fork, the child
    // uses only the allocator, and glibc keeps the allocator consistent. The child ends without
    // running further code of the parent.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            alarms.arm(0, 0);
            alarms.arm_stall_check(Duration::ZERO);
            alarms.wake();
            drop(alarms);
            let untouched = fake.changes() == before && fake.was_forgotten();
            libc::_exit(if untouched { 42 } else { 1 });
        }
        assert!(child > 0, "fork");
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 42, "status {status}");
    }
    alarms.arm(0, 0);
    assert!(fake.changes() > before);
    drop(alarms);
    assert!(!fake.was_forgotten());
}
