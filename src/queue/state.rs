//! The state word of a timer: all of firing and disposal, in a single atomic word.
//!
//! Ground rules. The word is touched with and without the shard's lock. Transitions marked *locked*
//! are called with the lock of the timer's shard held and so exclude each other; unmarked
//! transitions may come between any two locked steps. No code outside this file sees a bit.
//!
//! ```text
//!  bit 0  QUEUED    a job for this timer is in a queue of the pool, or a thread holds it to settle (at most one job, I9)
//!  bit 1  CURRENT   the job belongs to the present schedule; without this bit the job is void (I10)
//!  bit 2  DEFERRED  a tick came due and could not be queued; the timer is in no list until this tick is settled (I11)
//!  bit 3  DISPOSED  no callback starts any more
//!  bit 4  CONSUMED  the callback was consumed (Kind::Once)
//!  bit 5  DROPPED   disposed, no callback runs, and the payload of the callback has been dropped
//!  bit 6  WAITED    a waiter for DROPPED has been listed
//!  7..19  RUNNING   callbacks that run now: one of an exclusive timer, else 4,095 at most
//!  19..64 NUMBER    the last 45 bits of the arming number, which breaks ties between equal due points on virtual time
//! ```
//!
//! Invariants. CURRENT implies QUEUED. QUEUED implies that a further callback may run ([`most`]):
//! only the thread with the job raises RUNNING. DEFERRED implies QUEUED, or that as many callbacks
//! run as may: a thread will take the job, or end a callback, and settle the deferred tick (I11).
//! After DISPOSED is set, RUNNING only falls. DROPPED is set once (I12).
//!
//! Orderings. A callback's effects must be visible to the next callback of an exclusive timer and
//! to a thread that waits for the end. So each transition that lowers RUNNING is a release; each
//! that raises RUNNING, or reads zero, is an acquire. All are read-modify-writes of a single word:
//! `AcqRel` throughout is exactly this, and a weaker ordering gains nothing.
//!
//! Exception: a thread that holds the only reference to a node is *alone* with its word; no further
//! thread can reach the word. A plain load and a plain store suffice then, and the step that passes
//! the reference on publishes them. A read-modify-write would also wait until the thread's earlier
//! stores have reached the cache, which takes a while right after a callback.

use crate::sync::{AtomicU64, Ordering};

use super::node::Kind;

const QUEUED: u64 = 1;
const CURRENT: u64 = 1 << 1;
const DEFERRED: u64 = 1 << 2;
const DISPOSED: u64 = 1 << 3;
const CONSUMED: u64 = 1 << 4;
const DROPPED: u64 = 1 << 5;
const WAITED: u64 = 1 << 6;
const RUN_ONE: u64 = 1 << 7;
const RUN_MASK: u64 = ((1 << RUN_BITS) - 1) << 7;
const RUN_BITS: u32 = 12;
const NUMBER_SHIFT: u32 = 7 + RUN_BITS;
const FLAGS_MASK: u64 = (1 << NUMBER_SHIFT) - 1;

/// The most callbacks of an overlapping timer that run at once: those that the word counts. Threads
/// do not bound them: on an executor of the program's any thread may run a callback, and one inside
/// another.
#[cfg(not(all(test, timerqueue_loom)))]
const MOST_RUNNING: u64 = RUN_MASK;
/// In a model a second callback reaches the end of the count.
#[cfg(all(test, timerqueue_loom))]
const MOST_RUNNING: u64 = 2 * RUN_ONE;

/// The most callbacks of a timer that run at once.
const fn most(kind: Kind) -> u64 {
    if matches!(kind, Kind::Exclusive) { RUN_ONE } else { MOST_RUNNING }
}

/// Whether a further callback may run beside those that do. Asked when some do: a call, so that the
/// usual path is short.
#[cold]
#[inline(never)]
fn may_run_more(word: u64, kind: Kind) -> bool {
    word & RUN_MASK < most(kind)
}

/// See [`StateWord::look`].
pub(crate) struct Look {
    pub(crate) disposed: bool,
    pub(crate) consumed: bool,
    /// A tick of the present schedule waits for a thread, or for the end of a callback.
    pub(crate) queued: bool,
    /// Callbacks that run.
    pub(crate) running: u64,
}

/// Outcome of [`StateWord::claim`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The tick is claimed: queue a job for it.
    Queue,
    /// An earlier job is still queued, or as many callbacks run as may: the tick is deferred.
    Defer,
}

/// Outcome of [`StateWord::begin`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Run the job's tick; `end` must follow.
    Run,
    /// Run the job's tick; a further tick is deferred, to be settled under the lock with
    /// [`StateWord::settle`].
    RunAndSettle,
    /// The job is void, but a tick of a newer schedule is deferred, to be settled under the lock.
    Settle,
    /// The job is void. Drop it.
    Refused,
}

/// Outcome of [`StateWord::end`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The caller has no more to do.
    Done,
    /// A tick is deferred, and QUEUED is set on behalf of the caller: settle the tick under the
    /// lock.
    Settle,
    /// The timer was disposed and this was the last callback: drop its payload, then call
    /// [`StateWord::mark_dropped`].
    DropPayload,
}

/// Outcome of [`StateWord::dispose`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispose {
    /// The timer was disposed before.
    Already,
    /// This call disposed the timer; callbacks still run, and the last of them drops the payload.
    Running,
    /// This call disposed the timer and no callback runs: drop the payload, then call
    /// [`StateWord::mark_dropped`].
    DropPayload,
}

/// Outcome of [`StateWord::rearm`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rearm {
    /// The old schedule is void. `withdrawn`: a due tick of the old schedule had been claimed and
    /// will not start any more.
    Armed { withdrawn: bool },
    /// Disposed, or consumed: the word is unchanged.
    Refused,
}

/// The arming number whose last bits a state word keeps: one of the last 2^45 that were given
/// before `next`.
pub(crate) fn whole_number(kept: u64, next: u64) -> u64 {
    next.wrapping_sub(next.wrapping_sub(kept) & (u64::MAX >> NUMBER_SHIFT))
}

pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The arming number of a new timer. No further thread knows the timer yet, so a plain store
    /// suffices.
    pub(crate) fn first_number(&self, number: u64) {
        self.0.store(number << NUMBER_SHIFT, Ordering::Relaxed);
    }

    /// As [`transition`](Self::transition), by a thread that may be alone with the word:
    /// [`Node`](super::Node) knows.
    #[inline]
    fn transition_by<T>(&self, alone: bool, mut step: impl FnMut(u64) -> (u64, T)) -> T {
        if !alone {
            return self.transition(step);
        }
        let (next, outcome) = step(self.0.load(Ordering::Relaxed));
        self.0.store(next, Ordering::Relaxed);
        outcome
    }

    /// Applies `step` until the exchange succeeds. `step` returns the new word and the outcome; an
    /// unchanged word is not written.
    #[inline]
    fn transition<T>(&self, mut step: impl FnMut(u64) -> (u64, T)) -> T {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (next, outcome) = step(word);
            if next == word {
                return outcome;
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => word = now,
            }
        }
    }

    /// *Locked.* Edge 1: a tick is due; claim it for the pool if no job is queued and a further
    /// callback may run (I9), else defer it.
    pub(super) fn claim(&self, kind: Kind, alone: bool) -> Claim {
        self.transition_by(alone, |word| {
            // Nearly always no job is queued, and no callback runs.
            let free = word & (QUEUED | RUN_MASK) == 0 || word & QUEUED == 0 && may_run_more(word, kind);
            if free { (word | QUEUED | CURRENT, Claim::Queue) } else { (word | DEFERRED, Claim::Defer) }
        })
    }

    /// *Locked.* Edge 2: right after a claim, the next tick is due as well (burst): defer it.
    pub(crate) fn defer(&self) {
        self.transition(|word| {
            debug_assert!(word & (QUEUED | RUN_MASK) != 0, "a job or a callback settles");
            (word | DEFERRED, ())
        });
    }

    /// Edge 3: the pool has taken the job out of its queue.
    ///
    /// QUEUED stays set while a settlement is outstanding, so no further job is queued meanwhile
    /// (I9).
    #[inline(always)] // as `Node::begin`
    pub(super) fn begin(&self, kind: Kind, alone: bool) -> Begin {
        let spent = if kind == Kind::Once { CONSUMED } else { 0 };
        self.transition_by(alone, |word| {
            debug_assert!(word & QUEUED != 0, "a job was queued");
            debug_assert!(may_run_more(word, kind), "claimed while a further callback may run");
            let running = ((word & !(QUEUED | CURRENT)) + RUN_ONE) | spent;
            if word & (DISPOSED | CURRENT | DEFERRED) == CURRENT {
                return (running, Begin::Run); // nearly always
            }
            if word & DISPOSED != 0 {
                return (word & !(QUEUED | CURRENT | DEFERRED), Begin::Refused);
            }
            match word & CURRENT != 0 {
                // No further callback may run: the next to end settles the deferred tick.
                true if !may_run_more(running, kind) => (running, Begin::Run),
                // (No timer that fires once: such a timer has no period, and `rearm` clears
                // CURRENT.)
                true => ((word & !CURRENT) + RUN_ONE, Begin::RunAndSettle),
                false if word & DEFERRED != 0 => (word, Begin::Settle),
                false => (word & !QUEUED, Begin::Refused),
            }
        })
    }

    /// *Locked.* Edge 4: settles a deferred tick on behalf of the caller's job (QUEUED is set).
    ///
    /// True: the tick is claimed and the caller queues a job for it. False: no tick is deferred any
    /// more (a change or a disposal came between) and the caller's job is over.
    #[must_use]
    pub(crate) fn settle(&self) -> bool {
        self.transition(|word| {
            debug_assert!(word & QUEUED != 0, "settled by the holder of the job");
            if word & DEFERRED != 0 && word & DISPOSED == 0 {
                ((word & !DEFERRED) | CURRENT, true)
            } else {
                (word & !(QUEUED | CURRENT | DEFERRED), false)
            }
        })
    }

    /// *Locked.* The runtime has ended, and the holder of the job gives the callback back to the
    /// program. True: the timer was waiting for a tick, of which the job is now. False: a change or
    /// a disposal came between.
    #[must_use]
    pub(crate) fn give_back(&self) -> bool {
        self.transition(|word| {
            debug_assert!(word & QUEUED != 0, "given back by the holder of the job");
            let given = word & DISPOSED == 0 && word & (CURRENT | DEFERRED) != 0;
            ((word & !DEFERRED) | if given { CURRENT } else { 0 }, given)
        })
    }

    /// Edge 5: a callback has returned (or panicked).
    pub(super) fn end(&self, alone: bool) -> End {
        self.transition_by(alone, |word| {
            debug_assert!(word & RUN_MASK != 0, "a callback ends that had begun");
            let after = word - RUN_ONE;
            if after & (RUN_MASK | DISPOSED | DEFERRED) == 0 {
                return (after, End::Done); // nearly always
            }
            if after & (RUN_MASK | DISPOSED) == DISPOSED {
                // A `Kind::Once` has consumed its payload; the waiters must still be told.
                return (after, End::DropPayload);
            }
            if after & (DISPOSED | DEFERRED | QUEUED) == DEFERRED {
                // As many callbacks ran as may, so no job could be queued.
                return (after | QUEUED, End::Settle);
            }
            (after, End::Done)
        })
    }

    /// *Locked.* Edge 6: a new schedule. A job of the old schedule becomes void, and so does a
    /// deferred tick (I10).
    pub(crate) fn rearm(&self, number: u64) -> Rearm {
        self.transition(|word| {
            if word & (DISPOSED | CONSUMED) != 0 {
                return (word, Rearm::Refused);
            }
            let withdrawn = word & (CURRENT | DEFERRED) != 0;
            let flags = word & FLAGS_MASK & !(CURRENT | DEFERRED);
            (flags | (number << NUMBER_SHIFT), Rearm::Armed { withdrawn })
        })
    }

    /// Edge 7: no callback starts any more.
    pub(crate) fn dispose(&self) -> Dispose {
        self.transition(|word| {
            if word & DISPOSED != 0 {
                (word, Dispose::Already)
            } else if word & RUN_MASK != 0 {
                (word | DISPOSED, Dispose::Running)
            } else {
                (word | DISPOSED, Dispose::DropPayload)
            }
        })
    }

    /// Edge 8: the payload has been dropped. True when a waiter has been listed.
    #[must_use]
    pub(crate) fn mark_dropped(&self) -> bool {
        let before = self.0.fetch_or(DROPPED, Ordering::AcqRel);
        debug_assert!(
            before & (DROPPED | RUN_MASK) == 0 && before & DISPOSED != 0,
            "gone once, after the last callback"
        );
        before & WAITED != 0
    }

    /// Edge 9: with the lock of the waiters' lists held, a waiter is about to be listed. True: the
    /// payload is dropped already.
    #[must_use]
    pub(crate) fn wait_for_dropped(&self) -> bool {
        self.0.fetch_or(WAITED, Ordering::AcqRel) & DROPPED != 0
    }

    /// Disposed, no callback runs, and the payload has been dropped.
    pub(crate) fn is_dropped(&self) -> bool {
        self.0.load(Ordering::Acquire) & DROPPED != 0
    }

    pub(crate) fn is_disposed(&self) -> bool {
        self.0.load(Ordering::Acquire) & DISPOSED != 0
    }

    /// The payload is neither consumed nor dropped. For the thread that is to drop it (I12).
    pub(crate) fn has_payload(&self) -> bool {
        self.0.load(Ordering::Acquire) & (CONSUMED | DROPPED) == 0
    }

    /// The word at a moment, in a single reading.
    pub(crate) fn look(&self) -> Look {
        let word = self.0.load(Ordering::Acquire);
        Look {
            disposed: word & DISPOSED != 0,
            consumed: word & CONSUMED != 0,
            queued: word & (CURRENT | DEFERRED) != 0,
            running: (word & RUN_MASK) >> 7,
        }
    }

    #[cfg(test)]
    pub(crate) fn running(&self) -> u64 {
        self.look().running
    }

    /// The arming number of the present schedule, as far as the word keeps it: see
    /// [`whole_number`].
    pub(crate) fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> NUMBER_SHIFT
    }

    /// As if so many callbacks more, or fewer, ran.
    #[cfg(test)]
    pub(crate) fn pretend_running(&self, more: i64) {
        self.0.fetch_add((more as u64).wrapping_mul(RUN_ONE), Ordering::AcqRel);
    }

    /// The number of callbacks that run at once at most.
    #[cfg(test)]
    pub(crate) const MOST: i64 = (most(Kind::Overlapping) / RUN_ONE) as i64;
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn armed() -> StateWord {
        let state = StateWord::new();
        assert_eq!(state.rearm(7), Rearm::Armed { withdrawn: false });
        state
    }

    #[test]
    fn one_job_at_a_time_and_the_next_tick_is_deferred() {
        let state = armed();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::RunAndSettle);
        assert!(state.settle());
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        assert_eq!(state.running(), 2);
        assert_eq!(state.end(false), End::Done);
        assert_eq!(state.end(false), End::Done);
        assert_eq!(state.number(), 7);
    }

    #[test]
    fn a_change_voids_the_queued_job() {
        let state = armed();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.rearm(8), Rearm::Armed { withdrawn: true });
        assert_eq!(state.rearm(9), Rearm::Armed { withdrawn: false });
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Refused);
        assert_eq!(state.number(), 9);
    }

    #[test]
    fn a_new_tick_uses_the_void_job() {
        let state = armed();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.rearm(8), Rearm::Armed { withdrawn: true });
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Settle);
        assert!(state.settle());
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
    }

    #[test]
    fn exclusive_ticks_are_deferred_while_one_runs_and_settled_at_its_end() {
        let state = armed();
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Queue);
        assert_eq!(state.begin(Kind::Exclusive, false), Begin::Run);
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Defer);
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Defer);
        assert_eq!(state.end(false), End::Settle);
        assert!(state.settle());
        assert_eq!(state.begin(Kind::Exclusive, false), Begin::Run);
        assert_eq!(state.end(false), End::Done);
    }

    #[test]
    fn a_deferred_tick_that_was_withdrawn_is_not_settled() {
        let state = armed();
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Queue);
        assert_eq!(state.begin(Kind::Exclusive, false), Begin::Run);
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Defer);
        assert_eq!(state.end(false), End::Settle);
        assert_eq!(state.rearm(8), Rearm::Armed { withdrawn: true });
        assert!(!state.settle());
        assert_eq!(state.claim(Kind::Exclusive, false), Claim::Queue);
    }

    /// As many callbacks run as are counted.
    fn full() -> StateWord {
        let state = armed();
        for _ in 0..StateWord::MOST {
            assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
            assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        }
        state
    }

    #[test]
    fn s09_at_the_end_of_the_count_ticks_are_deferred_until_a_callback_ends() {
        let state = full();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!((state.running(), state.number()), (4_095, 7), "no bit beside has changed");
        assert_eq!(state.end(false), End::Settle);
        assert_eq!(state.end(false), End::Done, "one settles");
        assert!(state.settle());
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::RunAndSettle, "a callback more may run");
        assert!(state.settle());
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.rearm(8), Rearm::Armed { withdrawn: true });
        assert_eq!((state.end(false), state.running(), state.number()), (End::Done, 4_094, 8));
    }

    #[test]
    fn s09_the_last_callback_that_is_counted_leaves_a_deferred_tick_to_the_next_to_end() {
        let state = full();
        assert_eq!(state.end(false), End::Done);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        assert_eq!(state.end(false), End::Settle);
        assert!(state.settle());
    }

    #[test]
    fn s09_a_timer_disposed_at_the_end_of_the_count_is_cleaned_up_by_its_last_callback() {
        let state = full();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(state.dispose(), Dispose::Running);
        (1..StateWord::MOST).for_each(|_| assert_eq!(state.end(false), End::Done));
        assert_eq!(state.end(false), End::DropPayload);
        assert!(!state.mark_dropped());
    }

    #[test]
    fn s14_an_arming_number_of_more_bits_than_are_kept_changes_no_other_bit_and_is_known_as_a_whole() {
        let end = 1 << (u64::BITS - NUMBER_SHIFT);
        for number in [end - 1, end, end + 1, 5 * end - 1, u64::MAX - end] {
            let state = full();
            assert_eq!(state.rearm(number), Rearm::Armed { withdrawn: false });
            assert_eq!((state.running(), state.0.load(Ordering::Relaxed) & (RUN_ONE - 1)), (4_095, 0));
            for later in [1, 2, end / 2, end - 1] {
                assert_eq!(whole_number(state.number(), number + later), number, "{later} later");
            }
        }
    }

    #[test]
    fn a_job_that_is_refused_or_settled_for_nothing_leaves_no_flag() {
        let flags = |state: &StateWord| state.0.load(Ordering::Relaxed) & (QUEUED | CURRENT | DEFERRED);
        let refused = armed();
        assert_eq!(refused.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(refused.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(refused.dispose(), Dispose::DropPayload);
        assert_eq!(refused.begin(Kind::Overlapping, false), Begin::Refused);
        assert_eq!(flags(&refused), 0);
        let settled = armed();
        assert_eq!(settled.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(settled.claim(Kind::Overlapping, false), Claim::Defer);
        assert_eq!(settled.begin(Kind::Overlapping, false), Begin::RunAndSettle);
        assert_eq!(settled.dispose(), Dispose::Running);
        assert!(!settled.settle());
        assert_eq!(flags(&settled), 0);
    }

    #[test]
    fn dispose_is_seen_by_the_job_and_cleaned_up_once() {
        let state = armed();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert!(!state.is_disposed());
        assert_eq!(state.dispose(), Dispose::DropPayload);
        assert!(state.is_disposed());
        assert_eq!(state.dispose(), Dispose::Already);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Refused);
        assert!(!state.mark_dropped());
        assert!(state.is_dropped() && !state.has_payload());
        assert_eq!(state.rearm(9), Rearm::Refused);
    }

    #[test]
    fn the_last_callback_of_a_disposed_timer_cleans_up() {
        let state = armed();
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        assert_eq!(state.claim(Kind::Overlapping, false), Claim::Queue);
        assert_eq!(state.begin(Kind::Overlapping, false), Begin::Run);
        assert_eq!(state.dispose(), Dispose::Running);
        assert!(!state.wait_for_dropped());
        assert_eq!(state.end(false), End::Done);
        assert_eq!(state.end(false), End::DropPayload);
        assert!(state.mark_dropped());
        assert!(state.wait_for_dropped());
    }

    #[test]
    fn once_is_spent_when_it_begins() {
        let state = armed();
        assert_eq!(state.claim(Kind::Once, false), Claim::Queue);
        assert_eq!(state.rearm(8), Rearm::Armed { withdrawn: true });
        assert_eq!(state.begin(Kind::Once, false), Begin::Refused);
        assert_eq!(state.claim(Kind::Once, false), Claim::Queue);
        assert_eq!(state.begin(Kind::Once, false), Begin::Run);
        assert!(!state.has_payload());
        assert_eq!(state.rearm(9), Rearm::Refused);
        assert_eq!(state.end(false), End::Done);
    }
}
