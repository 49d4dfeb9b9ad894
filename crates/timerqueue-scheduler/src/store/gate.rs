//! The gate of a process: a suspect runs alone in it.
//!
//! Ground rules. One gate for all schedulers on a store value, whose runs end together with their
//! process. A plain value under a lock of its own: the engine calls it with no other lock held, and
//! listeners are called after unlocking. The protocol:
//!
//! 1. A job whose process has ended during its last two attempts is a *suspect*. A store gives a
//!    suspect to a claim by itself, and to no place of a run that ends.
//! 2. A suspect begins when no other run is under way, and closes the gate: nothing begins beside
//!    it. The end of its run opens the gate, or the end of its time alone ([`alone_for`]): a long
//!    run whose process was killed twice holds up the others for a minute, not for its length.
//! 3. With runs under way the gate closes at once, and the suspect waits inside until the last of
//!    them has ended, up to the *patience*. Then it is put back, the gate is open for at least as
//!    long, and the patience is twice as long.
//! 4. When the gate has opened, each suspect is put behind what is due by then, once. So each
//!    closing is followed by a turn of all others.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::Timestamp;

use super::JobId;
use crate::debug::debug_of;

/// A job is a suspect once its process has ended so often in a row during its run.
pub(crate) const SUSPECT: u32 = 2;

/// A job is dead once its process has ended so often in a row during its run, without another run
/// from the third time on.
pub(crate) const MOST_CRASHES: u32 = 5;

/// How long the gate waits for the end of the runs under way at first.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
const LONGEST_PATIENCE: Duration = Duration::from_secs(3_600);

/// How long others wait for a suspect that runs: twice as long after each further end.
const FIRST_ALONE: Duration = Duration::from_secs(60);
const LONGEST_ALONE: Duration = Duration::from_secs(86_400);

/// How long nothing begins beside a suspect whose process has ended so often during its runs.
pub(crate) fn alone_for(crashes: u32) -> Duration {
    let twice = 2_u32.saturating_pow(crashes.saturating_sub(SUSPECT));
    FIRST_ALONE.saturating_mul(twice).min(LONGEST_ALONE)
}

/// What a listener is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gated {
    /// The gate is open: there may be due jobs.
    Opened,
    /// The suspect with this ticket begins now.
    Begins(u64),
}

pub(crate) type Listener = dyn Fn(Gated) + Send + Sync;

/// The answer to a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It begins, alone, with this ticket.
    Begins(u64),
    /// It waits for the runs under way, for this long at most.
    Waits(u64, Duration),
    /// It is put back for this long.
    Back(Duration),
    /// Another suspect runs or waits.
    Closed,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Door {
    #[default]
    Open,
    /// A suspect waits inside for the end of all runs.
    Closing { ticket: u64, patience: Duration },
    /// A suspect runs.
    Alone { ticket: u64 },
}

#[derive(Default)]
struct State {
    door: Door,
    /// The runs under way, with that of a suspect.
    runs: usize,
    ticket: u64,
    /// The next time that the gate closes while runs are under way, it waits for so long.
    patience: Duration,
    /// And not before this instant.
    closes_from: Option<Timestamp>,
    /// The gate has been closed.
    has_closed: bool,
    /// The suspects that were put behind the others since it has opened.
    behind: HashSet<JobId>,
    listeners: Vec<Weak<Listener>>,
}

type Calls = Vec<Arc<Listener>>;

impl State {
    fn listeners(&mut self) -> Calls {
        self.listeners.retain(|listener| listener.strong_count() > 0);
        self.listeners.iter().filter_map(Weak::upgrade).collect()
    }

    fn open(&mut self) -> Calls {
        (self.door, self.has_closed) = (Door::Open, true);
        self.behind.clear();
        self.listeners()
    }
}

/// A gate.
#[derive(Default)]
pub struct Gate(Mutex<State>);

impl Gate {
    /// Registers a scheduler.
    pub(crate) fn listen(&self, listener: &Arc<Listener>) {
        self.0.lock().listeners.push(Arc::downgrade(listener));
    }

    /// Whether nothing begins.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().door != Door::Open
    }

    /// A run begins. False: it does not.
    #[must_use]
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.0.lock();
        let is_open = state.door == Door::Open;
        state.runs += usize::from(is_open);
        is_open
    }

    /// A suspect comes.
    pub(crate) fn enter_alone(&self, job: JobId, now: Timestamp) -> Entered {
        let mut state = self.0.lock();
        if state.door != Door::Open {
            return Entered::Closed;
        }
        if state.has_closed && state.behind.insert(job) {
            return Entered::Back(Duration::ZERO);
        }
        state.ticket += 1;
        let ticket = state.ticket;
        if state.runs == 0 {
            (state.door, state.runs) = (Door::Alone { ticket }, 1);
            return Entered::Begins(ticket);
        }
        if let Some(from) = state.closes_from.filter(|&from| from > now) {
            return Entered::Back(from - now);
        }
        let patience = state.patience.clamp(FIRST_PATIENCE, LONGEST_PATIENCE);
        state.door = Door::Closing { ticket, patience };
        Entered::Waits(ticket, patience)
    }

    /// Whether the suspect with this ticket may begin.
    pub(crate) fn begins(&self, ticket: u64) -> bool {
        self.0.lock().door == Door::Alone { ticket }
    }

    /// A run has ended.
    pub(crate) fn leave(&self) {
        let (calls, gated) = {
            let mut state = self.0.lock();
            state.runs -= 1;
            match state.door {
                Door::Alone { .. } => (state.open(), Gated::Opened),
                Door::Closing { ticket, .. } if state.runs == 0 => {
                    (state.door, state.runs) = (Door::Alone { ticket }, 1);
                    (state.patience, state.closes_from) = (FIRST_PATIENCE, None);
                    (state.listeners(), Gated::Begins(ticket))
                }
                _ => return,
            }
        };
        calls.into_iter().for_each(|listener| listener(gated));
    }

    /// The time alone of the suspect with this ticket is over: others begin beside its run.
    pub(crate) fn let_others_in(&self, ticket: u64) {
        let calls = {
            let mut state = self.0.lock();
            if state.door != (Door::Alone { ticket }) {
                return;
            }
            state.open()
        };
        calls.into_iter().for_each(|listener| listener(Gated::Opened));
    }

    /// A suspect that has waited does not begin: the patience is over at `now`, or the scheduler
    /// closes. Returns how long it is put back.
    pub(crate) fn give_up(&self, ticket: u64, now: Timestamp) -> Duration {
        let (calls, back) = {
            let mut state = self.0.lock();
            let patience = match state.door {
                Door::Closing { ticket: waits, patience } if waits == ticket => patience,
                // The last run has ended meanwhile.
                Door::Alone { ticket: begins } if begins == ticket => {
                    state.runs -= 1;
                    Duration::ZERO
                }
                _ => return Duration::ZERO,
            };
            (state.patience, state.closes_from) = (patience.saturating_mul(2), Some(now + patience));
            (state.open(), patience)
        };
        calls.into_iter().for_each(|listener| listener(Gated::Opened));
        back
    }
}

debug_of!(Gate);
