//! A simulated kqueue, on a clock that the test advances: `kevent` for timers, user events and a
//! readable descriptor, with a personality per system.
//!
//! Ground rules. The simulation is written from the behaviour of the kernels, independently of the
//! backend. It is strict: it refuses each call that a system would refuse, and repeats each
//! system's errors. All state is behind a single lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::abi::{EV_ADD, EV_CLEAR, EV_DELETE, Kevent, KqueueAbi, NOTE_TRIGGER};
use super::{EVENTS_AT_ONCE, Sys};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
const TICK: u64 = 10 * MS;

/// The always readable descriptor.
const PIPE: usize = 77;

/// The effect of a timer's `data` of zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Zero {
    AtOnce,
    OneTick,
    Refused,
}

/// The behaviour of a system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Personality {
    pub(super) name: &'static str,
    pub(super) abi: KqueueAbi,
    /// Knows units besides milliseconds. Otherwise the system ignores the flags for units.
    units: bool,
    has_user: bool,
    /// Expiries are multiples of this, rounded up.
    pub(super) grain_ns: u64,
    /// So many grains more.
    pub(super) extra_grains: u64,
    /// Later by up to this, to fire along with others.
    pub(super) grouped_ns: u64,
    /// Timers without `NOTE_CRITICAL` are later by this.
    lazy_ns: u64,
    zero: Zero,
    /// More than this many grains are refused.
    most_grains: u64,
    /// A second `EV_ADD` leaves a pending timer unchanged.
    add_keeps: bool,
    /// A pending expiry is forgotten when the timer is set anew.
    add_forgets: bool,
    /// A repeating timer starts its next period when its event is taken.
    repeats_when_taken: bool,
    /// Every so many calls are interrupted by a signal.
    pub(super) interrupted_every: u64,
    /// The timers run ahead of the clock by one part in so many.
    fast: u64,
}

impl Personality {
    pub(super) const FREEBSD: Self = Self {
        name: "FreeBSD",
        abi: KqueueAbi::FREEBSD,
        units: true,
        has_user: true,
        grain_ns: 1,
        extra_grains: 0,
        grouped_ns: 40_000,
        lazy_ns: 0,
        zero: Zero::AtOnce,
        most_grains: u64::MAX,
        add_keeps: false,
        add_forgets: true,
        repeats_when_taken: false,
        interrupted_every: u64::MAX,
        fast: u64::MAX,
    };
    pub(super) const MACOS: Self = Self {
        name: "macOS",
        abi: KqueueAbi::APPLE,
        grouped_ns: 0,
        lazy_ns: 100 * MS,
        add_forgets: false,
        repeats_when_taken: true,
        ..Self::FREEBSD
    };
    pub(super) const OPENBSD: Self = Self {
        name: "OpenBSD",
        abi: KqueueAbi::OPENBSD,
        grain_ns: TICK,
        extra_grains: 1,
        grouped_ns: 0,
        zero: Zero::OneTick,
        most_grains: i32::MAX as u64,
        ..Self::FREEBSD
    };
    /// No user events, no units.
    pub(super) const OPENBSD_OLD: Self = Self { name: "old OpenBSD", units: false, has_user: false, ..Self::OPENBSD };
    pub(super) const NETBSD: Self =
        Self { name: "NetBSD", abi: KqueueAbi::NETBSD, extra_grains: 0, zero: Zero::Refused, ..Self::OPENBSD };
    /// No user events either, and a second `EV_ADD` is without effect.
    pub(super) const NETBSD_OLD: Self =
        Self { name: "old NetBSD", units: false, has_user: false, add_keeps: true, ..Self::NETBSD };
    pub(super) const DRAGONFLY: Self =
        Self { name: "DragonFly", abi: KqueueAbi::DRAGONFLY, units: false, add_keeps: true, ..Self::OPENBSD };
    pub(super) const USERSPACE: Self =
        Self { name: "userspace", abi: KqueueAbi::USERSPACE, grouped_ns: 0, add_forgets: false, ..Self::FREEBSD };
    /// No system in particular: signals all the time, and timers that are early.
    pub(super) const HOSTILE: Self =
        Self { name: "hostile", interrupted_every: 3, fast: 16, add_forgets: false, ..Self::FREEBSD };

    pub(super) const ALL: [Self; 8] = [
        Self::FREEBSD,
        Self::MACOS,
        Self::OPENBSD,
        Self::OPENBSD_OLD,
        Self::NETBSD,
        Self::DRAGONFLY,
        Self::USERSPACE,
        Self::HOSTILE,
    ];

    /// The largest delay of a timer set for a time within a day.
    pub(super) fn latest_ns(&self) -> u64 {
        self.abi.unit_ns + (1 + self.extra_grains) * self.grain_ns + self.grouped_ns + super::abi::SHORTEST_NS
    }

    /// The wait of a timer of these units, in nanoseconds.
    fn wait_ns(&self, fflags: u32, data: i64) -> io::Result<u64> {
        let data = u64::try_from(data).map_err(|_| errno(libc::EINVAL))?;
        let critical = if self.lazy_ns > 0 { 0x20 } else { 0 };
        let boot = self.abi.boot.unwrap_or(0);
        let ns = if !self.units || fflags & !(critical | boot) == 0 {
            data.saturating_mul(MS)
        } else if fflags & !(critical | boot) == self.abi.unit & !critical {
            data
        } else {
            return Err(errno(libc::EINVAL));
        };
        let grains = match self.zero {
            Zero::Refused if data == 0 => return Err(errno(libc::EINVAL)),
            Zero::OneTick => ns.div_ceil(self.grain_ns).max(1),
            _ => ns.div_ceil(self.grain_ns),
        };
        if grains > self.most_grains {
            return Err(errno(libc::EINVAL));
        }
        let lazy = if fflags & critical == 0 { self.lazy_ns } else { 0 };
        let ns = (grains + self.extra_grains) * self.grain_ns + lazy;
        Ok(ns - ns / self.fast)
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// A filter attached to a kqueue.
#[derive(Clone, Copy, Debug)]
struct Knote {
    /// The next expiry of a pending timer.
    at: Option<u64>,
    every: u64,
    is_ready: bool,
}

type Key = (i32, usize);

#[derive(Debug, Default)]
struct State {
    now: u64,
    knotes: BTreeMap<Key, Knote>,
    ready: VecDeque<Key>,
    /// With so many attached, a further filter is refused.
    room: Option<usize>,
    changes: u64,
    calls: u64,
    waiting: usize,
    forgotten: bool,
    /// The descriptor has been closed.
    closed: bool,
    boot: bool,
}

impl State {
    fn make_ready(&mut self, key: Key) {
        let knote = self.knotes.get_mut(&key).expect("attached");
        if !knote.is_ready {
            knote.is_ready = true;
            self.ready.push_back(key);
        }
    }

    fn forget_event(&mut self, key: Key) {
        self.knotes.get_mut(&key).expect("attached").is_ready = false;
        self.ready.retain(|&other| other != key);
    }

    fn next_expiry(&self) -> Option<(u64, Key)> {
        self.knotes.iter().filter_map(|(&key, knote)| Some((knote.at?, key))).min()
    }

    fn expire(&mut self, personality: &Personality) {
        while let Some((at, key)) = self.next_expiry().filter(|&(at, _)| at <= self.now) {
            self.make_ready(key);
            let knote = self.knotes.get_mut(&key).expect("attached");
            knote.at = if personality.repeats_when_taken {
                None
            } else {
                // All periods up to now become a single event.
                let every = knote.every.max(1);
                Some(at + ((self.now - at) / every + 1) * every)
            };
        }
    }
}

/// A kqueue. Clones are handles to the same.
#[derive(Clone)]
pub(super) struct Fake {
    pub(super) personality: Personality,
    shared: Arc<(Mutex<State>, Condvar)>,
    /// Whether `wait` blocks. If so, the clock advances a little meanwhile, as real time would.
    blocks: bool,
}

impl Fake {
    pub(super) fn new(personality: Personality, blocks: bool) -> Self {
        let state = State { now: 1_000 * S + 7, ..State::default() };
        Self { personality, shared: Arc::new((Mutex::new(state), Condvar::new())), blocks }
    }

    pub(super) fn on_boot_clock(self) -> Self {
        self.state().boot = true;
        self
    }

    pub(super) fn with_room_for(self, knotes: usize) -> Self {
        self.state().room = Some(knotes);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("nobody panics with it")
    }

    /// Advances the clock.
    pub(super) fn advance(&self, ns: u64) {
        let mut state = self.state();
        state.now += ns;
        state.expire(&self.personality);
        drop(state);
        self.shared.1.notify_all();
    }

    /// The next expiry of a timer.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.state().next_expiry().map(|(at, _)| at)
    }

    pub(super) fn has_events(&self) -> bool {
        !self.state().ready.is_empty()
    }

    /// Changes made so far.
    pub(super) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Closes the descriptor. A blocked thread goes on waiting, as on FreeBSD; timers go on, too.
    pub(super) fn close(&self) {
        self.state().closed = true;
    }

    pub(super) fn was_forgotten(&self) -> bool {
        self.state().forgotten
    }

    /// Lets blocked threads take the pending events.
    pub(super) fn settle(&self) {
        for _ in 0..50 {
            let settled = self.state().ready.is_empty();
            std::thread::sleep(Duration::from_micros(100));
            if settled {
                return;
            }
        }
    }

    fn interrupted(&self, state: &mut State) -> bool {
        state.calls += 1;
        state.calls % self.personality.interrupted_every == 0
    }
}

impl Sys for Fake {
    fn now(&self) -> u64 {
        self.state().now
    }

    fn is_boot(&self) -> bool {
        self.state().boot
    }

    fn change(&self, change: &Kevent) -> io::Result<()> {
        let personality = &self.personality;
        let abi = personality.abi;
        let mut state = self.state();
        if state.closed {
            return Err(errno(libc::EBADF));
        }
        if self.interrupted(&mut state) {
            return Err(errno(libc::EINTR));
        }
        state.changes += 1;
        let key = (change.filter, change.ident);
        let is_timer = change.filter == abi.timer;
        let is_user = change.filter == abi.user && personality.has_user;
        if !is_timer && !is_user && (change.filter, change.ident) != (abi.read, PIPE) {
            return Err(errno(libc::EINVAL));
        }
        assert_eq!(change.flags & !(EV_ADD | EV_DELETE | EV_CLEAR), 0, "nothing else is known here");
        if change.flags & EV_DELETE != 0 {
            if !state.knotes.contains_key(&key) {
                return Err(errno(libc::ENOENT));
            }
            state.forget_event(key);
            state.knotes.remove(&key);
            return Ok(());
        }
        let is_new = !state.knotes.contains_key(&key);
        if is_new {
            if change.flags & EV_ADD == 0 {
                return Err(errno(libc::ENOENT));
            }
            if state.room == Some(state.knotes.len()) {
                return Err(errno(libc::ENOMEM));
            }
        }
        let wait = if is_timer { personality.wait_ns(change.fflags, change.data)? } else { 0 };
        if is_new {
            state.knotes.insert(key, Knote { at: None, every: wait, is_ready: false });
        }
        if is_timer && (is_new || !personality.add_keeps) {
            if personality.add_forgets {
                state.forget_event(key);
            }
            // Grouped with further timers of about the same instant.
            let late = if personality.grouped_ns > 0 { state.changes * 7_919 % personality.grouped_ns } else { 0 };
            let at = state.now + wait + late;
            let knote = state.knotes.get_mut(&key).expect("attached");
            (knote.at, knote.every) = (Some(at), wait);
            state.expire(personality);
        } else if is_timer {
            state.knotes.get_mut(&key).expect("attached").every = wait;
        } else if is_user && change.fflags & NOTE_TRIGGER != 0 {
            assert_eq!(change.flags & EV_CLEAR, 0, "FreeBSD takes a trigger back that comes with it");
            state.make_ready(key);
        } else if !is_user {
            state.make_ready(key);
        }
        drop(state);
        self.shared.1.notify_all();
        Ok(())
    }

    fn wait(&self, events: &mut [Kevent; EVENTS_AT_ONCE]) -> io::Result<usize> {
        let mut state = self.state();
        if state.closed {
            return Err(errno(libc::EBADF));
        }
        while state.ready.is_empty() {
            if !self.blocks {
                return Ok(0);
            }
            state.waiting += 1;
            let (woken, timed_out) =
                self.shared.1.wait_timeout(state, Duration::from_millis(1)).expect("nobody panics with it");
            state = woken;
            state.waiting -= 1;
            if timed_out.timed_out() && state.waiting == 0 {
                state.now += self.personality.grain_ns.max(MS);
                state.expire(&self.personality);
            }
        }
        if self.interrupted(&mut state) {
            return Err(errno(libc::EINTR));
        }
        let mut n = 0;
        while n < EVENTS_AT_ONCE {
            let Some(key) = state.ready.pop_front() else { break };
            let now = state.now;
            let knote = state.knotes.get_mut(&key).expect("attached");
            knote.is_ready = false;
            if self.personality.repeats_when_taken && key.0 == self.personality.abi.timer && knote.at.is_none() {
                knote.at = Some(now + knote.every);
            }
            events[n] = Kevent { ident: key.1, filter: key.0, ..Kevent::default() };
            n += 1;
        }
        Ok(n)
    }

    fn ready_descriptor(&mut self) -> io::Result<usize> {
        Ok(PIPE)
    }

    fn give_up(&self, close: bool) {
        self.state().forgotten = !close;
    }
}
