//! The timer wheel of a shard: a hierarchical timing wheel with exact deadlines (Varghese & Lauck
//! 1987).
//!
//! Built for this workload: timers are created and cancelled all the time, mostly due in seconds,
//! and seldom fire; some fire all the time and must be exact. So inserting and unlinking take a
//! handful of instructions, and work on a timer is postponed until the work is certain to be
//! needed.
//!
//! Ground rules. Pure: no clock, no lock, no kernel, no callback. A caller with `&mut` holds the
//! queue's lock. `now` comes from the caller. A `now` older than the last (read before the lock was
//! taken, or of a broken clock) does no harm: cursor and threshold stay where they are, and due
//! timers are found.
//! The queue does not own nodes: the inserting caller keeps a node alive until the node is unlinked
//! or emitted.
//!
//! ```text
//!   window = 333 ms                                threshold = end of the open window
//!                                                          v
//!   fine levels  ||||                                        the slot at the cursor, if crowded
//!   short level  |....|....|....|....|....|....|....|....| |                    4,096 slots of 262 us
//!   long level                                             |  w+1 |  w+2 | ...  2,048 windows (11 min)
//!   far level                                                  groups of 1,024 windows (341 s), 1,024 of them (97 h)
//!   overflow list                                                                   everything later, one slot
//!   endless list                                                                    never due, one slot
//! ```
//!
//! The levels are rows of one table ([`LEVELS`]). A timer is *short* when its due point is at or
//! before the threshold (I2), else *long*. Opening a slot of any level takes the slot's chain out
//! whole and cascades it, a bounded number of nodes at a time. Due timers are emitted to the
//! caller, the rest is inserted again by its due points, into a finer level. A timer moves down a
//! level at most three times (once, if due within eleven minutes), and once more into the fine
//! levels of a crowded slot.
//!
//! *Example: a timer of ten days*, 240 h. It goes into the overflow list (`place`). Sweeps open
//! slots (`open_due`, `open_next`), and the next sweep comes at the earliest due point of the
//! queue:
//!
//! - With no other timer in the queue, the sweep comes in ten days, and emits the timer straight
//!   out of the overflow list.
//! - With others, a sweep opens the overflow list when its first timer is less than 49 h ahead.
//!   Timers beyond the far level go back, the others into the far level. A far slot is opened when
//!   all its windows fit the long level, 6 to 11 min ahead. A window is opened by the first sweep
//!   in it, or ahead of its first due point if it is crowded: now the timer is short. Its short
//!   slot is opened when the bound of the slot has come.
//!
//! A timer that is moved later stays in its slot (`reschedule_lazily`) until the slot cascades,
//! however often the timer was moved.
//!
//! **Fine levels.** Each holds the timers of a single turn: 2^18 ns (a short slot), 2^12 ns, 2^6
//! ns. An empty level may take any turn, and keeps this turn until the level is empty again. So the
//! first occupied slot of a level is its earliest, and the earliest timer of all is in one of three
//! slots. Timers cascade from the short slot to the coarsest level, and from a slot of a level to
//! the level below. No timer is looked at more often than there are levels, however many timers
//! share its microsecond.
//!
//! **Overflow list.** A single slot for all timers beyond the far level. The last slot of the far
//! level could not serve for them: the first occupied slot of a level is the level's earliest only
//! if the bound of each slot lies in the slot's own span. A timer from beyond would have a bound
//! that is too early. That costs an alarm for nothing in each turn of the level (97 h), and
//! [`TimerWheel::earliest_due`] would have to walk the slot for each answer.

#![allow(unsafe_code)] // contract of the lists

use std::ops::ControlFlow;
use std::ptr::NonNull;

use super::level::{
    ENDLESS, FAR, GROUP, LEVELS, LONG, Levels, OVERFLOW, Rows, SHORT, SLOT_SHIFT, WINDOW_NS, is_short_or_fine, level_of,
};
use super::list::{Linked, TakenList};
use super::node::{Key, Location, Node};
use crate::sys::os::Pages;
use crate::time::{END, NEVER};

/// The overflow list is looked at when half of the far level has passed.
const FAR_MARGIN: u64 = LEVELS[FAR].slots / 2;
/// A crowded window is opened ahead of time, this long per node, so the cascade does not make its
/// first timers late.
const CASCADE_NS: u64 = 320;
/// A slot with at most so many nodes cascades in no time: waking up early for such a slot would
/// only be an extra wake-up.
const CROWDED: u64 = 64;

/// After each so many timers in a coarse slot, `insert` computes anew when the cascade of the slot
/// must begin.
const LOOK_EVERY: u64 = 4096;

/// A short slot with more nodes cascades into the fine levels. In a smaller slot, each sweep puts
/// back the nodes not yet due.
const FEW: u64 = 16;

const FINE_LEVELS: Rows = Rows::of(0..SHORT);
const COARSE_LEVELS: Rows = Rows::of(LONG..ENDLESS);
/// All but the endless list.
const ALL_LEVELS: Rows = Rows::of(0..ENDLESS);

/// The end of a window.
fn end_of(window: u64) -> u64 {
    (window + 1).saturating_mul(WINDOW_NS)
}

/// Outcome of [`TimerWheel::next_due`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// This node is due and has been unlinked.
    Due(T),
    /// No further timer is due.
    Nothing,
    /// The work allowed for this batch is used up; more timers may be due.
    Exhausted,
}

/// Outcome of [`TimerWheel::cascade_next`].
enum Cascaded<X> {
    Due(NonNull<Node<X>>),
    /// The node fires at this instant.
    Later(NonNull<Node<X>>, u64),
    /// No node was left.
    Empty,
    /// No work was left.
    Exhausted,
}

/// An occupied slot of a level, and its bound. With the bound [`NEVER`]: no slot is occupied.
#[derive(Clone, Copy, PartialEq, Eq)]
struct First {
    bound: u64,
    level: usize,
    position: u64,
}

/// See the module's ground rules.
pub(crate) struct TimerWheel<X> {
    levels: Pages<Levels<X>>,
    /// For each level the position where the search for its first occupied slot starts; all
    /// occupied positions lie within a turn from there (I5).
    ///
    /// Of the short level: the *cursor*, where the search for due timers starts (I4). Of the long
    /// level: the *open* window; all windows up to there have been opened, and the threshold is its
    /// end. Of the far level: the group of the open window. Of a fine level: the begin of its turn.
    front: [u64; LEVELS.len()],
    /// The end of the open window, so that an insertion divides no further instant.
    open_until: u64,
    /// The taken chain of a short slot, or of a slot of the fine levels: some of its nodes may be
    /// due.
    expiring: TakenList<X>,
    /// The taken chain of a coarser slot, on its way to finer levels. Due timers go first.
    cascading: TakenList<X>,
    /// Nodes of the taken short slot cascade into the fine levels.
    finely: bool,
    /// A node was found in a slot before that of its due point, since the last look ahead: it was
    /// moved later, or postponed.
    found_later: bool,
    len: usize,
    key: Key,
}

impl<X> TimerWheel<X> {
    pub(crate) fn new(now: u64) -> Self {
        let mut front = [0; LEVELS.len()];
        (SHORT..OVERFLOW).for_each(|level| front[level] = LEVELS[level].position_at(now));
        Self {
            levels: Pages::zeroed(),
            front,
            open_until: end_of(front[LONG]),
            expiring: TakenList::new(),
            cascading: TakenList::new(),
            finely: false,
            found_later: false,
            len: 0,
            key: Key::new(),
        }
    }

    /// Timers in the queue.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Proof of the lock for the fields of this queue's nodes.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// The last instant that counts as short.
    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn threshold(&self) -> u64 {
        self.open_until - 1
    }

    #[inline]
    fn cursor(&self) -> u64 {
        self.front[SHORT]
    }

    #[inline]
    fn open(&self) -> u64 {
        self.front[LONG]
    }

    fn set_open(&mut self, window: u64) {
        self.front[LONG] = window;
        self.front[FAR] = window / GROUP;
        self.open_until = end_of(window);
    }

    // ------------------------------------------------------------ inserting, unlinking, moving

    /// Inserts `node` by its due point, which is not [`NEVER`]. Returns the instant of the sweep
    /// that `node` needs: its due point, or, now and then while a coarse slot grows crowded, the
    /// instant at which the slot's cascade must begin.
    ///
    /// # Safety
    /// `node` is alive, is in no queue, and stays alive until this queue has unlinked or emitted
    /// it. Meanwhile no further queue inserts `node`.
    #[inline]
    pub(crate) unsafe fn insert(&mut self, node: NonNull<Node<X>>) -> u64 {
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive until unlinked.
        unsafe { self.insert_at(node, node.as_ref().fires_at(&Key::new())) }
    }

    /// As [`Self::insert`], of a node that fires at `at`, which the caller knows.
    ///
    /// # Safety
    /// As [`Self::insert`].
    #[inline]
    pub(crate) unsafe fn insert_at(&mut self, node: NonNull<Node<X>>, at: u64) -> u64 {
        self.len += 1;
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive until unlinked.
        unsafe { self.place(node, at) }
    }

    /// Inserts a node that has just been unlinked and is still counted, by its due point.
    ///
    /// # Safety
    /// As [`Self::insert`].
    unsafe fn place_again(&mut self, node: NonNull<Node<X>>) {
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive until unlinked.
        let _ = unsafe { self.place(node, node.as_ref().fires_at(&Key::new())) };
    }

    /// Inserts a node that is counted already into the level for its instant. The node fires at
    /// `at`, or, if its owner has just postponed it, later.
    ///
    /// # Safety
    /// As [`Self::insert`].
    unsafe fn place(&mut self, node: NonNull<Node<X>>, at: u64) -> u64 {
        debug_assert_ne!(at, NEVER, "an idle timer is not queued");
        let window = at / WINDOW_NS;
        // SAFETY (all five): the caller says that `node` is alive, in no list, and kept alive until
        // unlinked.
        #[allow(clippy::undocumented_unsafe_blocks)]
        if window <= self.open() {
            // A timer that is due already goes where the search starts (I4).
            let position = (at >> SLOT_SHIFT).max(self.cursor());
            debug_assert!(position - self.cursor() < LEVELS[SHORT].slots, "open windows fit the short level");
            unsafe { self.link(SHORT, position, node, at) }
        } else if window - self.open() < LEVELS[LONG].slots {
            unsafe { self.link(LONG, window, node, at) }
        } else if at == END {
            let _ = unsafe { self.link(ENDLESS, 0, node, at) };
            NEVER
        } else if window / GROUP - self.front[FAR] < LEVELS[FAR].slots {
            unsafe { self.link(FAR, window / GROUP, node, at) }
        } else {
            unsafe { self.link(OVERFLOW, 0, node, at) }
        }
    }

    /// Links `node`, which fires at `at`, into a slot. Returns what [`Self::insert`] does.
    ///
    /// # Safety
    /// As [`Self::insert`].
    #[inline(always)] // so that the level is known
    unsafe fn link(&mut self, level: usize, position: u64, node: NonNull<Node<X>>, at: u64) -> u64 {
        let (key, slot) = (&Key::new(), LEVELS[level].slot(position));
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive until unlinked.
        unsafe {
            self.levels.push(slot, node, at, key);
            node.as_ref().set_location(Location::slot(slot), key);
        }
        let looks = level > SHORT && self.levels.count(slot) % LOOK_EVERY == 0;
        if looks { at.min(self.opens_at(level, position)) } else { at }
    }

    /// Unlinks `node` if queued. True: `node` was in the queue.
    ///
    /// # Safety
    /// `node` is alive and in no queue but this.
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>) -> bool {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        let Some(slot) = shared.location(key).as_slot() else { return false };
        let taken = if is_short_or_fine(slot) { &mut self.expiring } else { &mut self.cascading };
        // SAFETY: `slot` is the slot that the node was inserted into (I1). If the slot's chain has
        // been taken since, the node is in `taken`, where `open_slot` puts the chain of such a
        // slot, and in no further list.
        unsafe { self.levels.unlink(slot, node, taken, key) };
        shared.set_location(Location::IDLE, key);
        self.len -= 1;
        true
    }

    /// Gives `node` a new due point and leaves the node in its slot of the short, long or far
    /// level, if the slot cascades in time for `due`. Returns the instant of the sweep that `node`
    /// needs then. A timer that is moved later each time, like an idle timeout, stays in the slot
    /// of its first insertion.
    ///
    /// # Safety
    /// `node` is alive and in no queue but this.
    #[inline]
    pub(crate) unsafe fn reschedule_lazily(&mut self, node: NonNull<Node<X>>, due: u64) -> Option<u64> {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        let slot = shared.location(key).as_slot()?;
        let begins = |level: usize| LEVELS[level].begins(LEVELS[level].position_of(slot, self.front[level]));
        let begins = match level_of(slot) {
            LONG => begins(LONG),
            SHORT => begins(SHORT),
            FAR => begins(FAR),
            _ => return None,
        };
        let at = shared.tick_policy().fires_at(due);
        if due == NEVER || at < begins {
            return None;
        }
        // The slot's chain may have been taken (by `earliest_due`, or by a sweep that stopped in
        // the middle): the node is then in that chain, and is inserted by its due point when the
        // chain goes on.
        self.levels.stay(slot, at);
        shared.set_due(due, key);
        Some(at)
    }

    /// Advances the threshold to the window of `now` where no slot must cascade for this. Called
    /// before an insertion: a queue in which no timer fires is never swept, and a threshold left
    /// behind would send all timers to coarse slots.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64) {
        if now >= self.open_until {
            self.advance_to(now);
        }
    }

    #[cold]
    fn advance_to(&mut self, now: u64) {
        let window = now / WINDOW_NS;
        let in_the_way = !self.chains_are_done()
            || self.levels.any(const { Rows::of(0..LONG) })
            || self.first_window(COARSE_LEVELS) <= window;
        if !in_the_way {
            self.set_open(window);
            self.front[SHORT] = now >> SLOT_SHIFT;
        }
    }

    /// A timer may come due at this instant: prefetches its slot of the short level, so that the
    /// caller can read the clock meanwhile.
    pub(crate) fn fetch(&self, at: u64) {
        self.levels.fetch(LEVELS[SHORT].slot(at >> SLOT_SHIFT));
    }

    // ------------------------------------------------------------ sweeping

    /// Emits a timer that is due at `now`, or goes on with the cascade; each node looked at costs a
    /// unit of `work`.
    ///
    /// An emitted node is unlinked and still has its due point. The caller may insert the node
    /// again at once, later than `now`.
    #[inline] // the only caller is a loop
    pub(crate) fn next_due(&mut self, now: u64, work: &mut usize) -> Next<NonNull<Node<X>>> {
        loop {
            match Self::cascade_next(&mut self.expiring, now, work) {
                Cascaded::Due(node) => return Next::Due(self.emit(node)),
                // SAFETY: just unlinked, and alive until emitted (promise of the caller of
                // `insert`).
                Cascaded::Later(node, at) => unsafe { self.put_back(node, at) },
                Cascaded::Empty => {
                    if let Some(next) = self.expire_next(now, work) {
                        return next;
                    }
                }
                Cascaded::Exhausted => return Next::Exhausted,
            }
        }
    }

    /// The rest of [`Self::next_due`], where `expiring` is empty. `None`: a chain has been taken
    /// into `expiring`.
    #[inline(never)] // so that the loop over a crowded slot is short
    fn expire_next(&mut self, now: u64, work: &mut usize) -> Option<Next<NonNull<Node<X>>>> {
        loop {
            if self.len == 0 {
                self.front[SHORT] = self.cursor().max(now >> SLOT_SHIFT);
                self.set_open(self.open().max(now / WINDOW_NS));
                return Some(Next::Nothing);
            }
            if self.open_due(now) {
                return None;
            }
            // All due timers of short slots have been emitted. A chain taken ahead of time may be
            // long: when the work is used up, the next batch looks for due timers first.
            loop {
                match Self::cascade_next(&mut self.cascading, now, work) {
                    Cascaded::Due(node) => return Some(Next::Due(self.emit(node))),
                    Cascaded::Later(node, at) => {
                        self.found_later |= at >= self.open_until;
                        // SAFETY: just unlinked, and alive until emitted (promise of the caller of
                        // `insert`).
                        let _ = unsafe { self.place(node, at) };
                    }
                    Cascaded::Empty => break,
                    Cascaded::Exhausted => return Some(Next::Exhausted),
                }
            }
            if !self.open_next(now) {
                return Some(Next::Nothing);
            }
        }
    }

    /// Cascades timers due soon, `work` nodes at most, while the present sweep still finds due
    /// timers. Else the timers of the next window would be late for the burst in this window.
    pub(crate) fn cascade_ahead(&mut self, now: u64, mut work: usize) {
        // With a cursor further behind, the short level has no room for the next window (I5).
        if now.saturating_sub(self.cursor() << SLOT_SHIFT) > WINDOW_NS {
            return;
        }
        while work > 0 {
            match self.cascading.pop(&Key::new()) {
                Some(node) => {
                    work -= 1;
                    // SAFETY: just unlinked, and alive until emitted (promise of the caller of
                    // `insert`).
                    unsafe { self.place_again(node) };
                }
                None if self.open_next(now) => {}
                None => return,
            }
        }
    }

    /// Pops a node, for a unit of work.
    #[inline(always)] // into both loops
    fn cascade_next(chain: &mut TakenList<X>, now: u64, work: &mut usize) -> Cascaded<X> {
        let key = &Key::new();
        if *work == 0 {
            return if chain.is_empty() { Cascaded::Empty } else { Cascaded::Exhausted };
        }
        let Some(node) = chain.pop(key) else { return Cascaded::Empty };
        *work -= 1;
        // SAFETY: linked until now, hence alive (promise of the caller of `insert`).
        let at = unsafe { node.as_ref().fires_at(key) };
        if at <= now { Cascaded::Due(node) } else { Cascaded::Later(node, at) }
    }

    /// Marks a popped node as idle and no longer counts it.
    #[inline]
    fn emit(&mut self, node: NonNull<Node<X>>) -> NonNull<Node<X>> {
        // SAFETY: linked until now, hence alive (promise of the caller of `insert`).
        unsafe { node.as_ref().set_location(Location::IDLE, &Key::new()) };
        self.len -= 1;
        node
    }

    /// Inserts a node popped from the chain of a short slot, or of a slot of the fine levels; it
    /// fires at `at`.
    ///
    /// # Safety
    /// As [`Self::insert`], but the node is counted already.
    unsafe fn put_back(&mut self, node: NonNull<Node<X>>, at: u64) {
        // SAFETY: the caller says that `node` is alive.
        let location = unsafe { node.as_ref() }.location(&Key::new());
        let from = location.as_slot().map_or(SHORT, level_of);
        // The fine levels are for the slot at the cursor alone: no timer comes before them.
        let is_here = at >> SLOT_SHIFT <= self.cursor();
        self.found_later |= !is_here;
        let fine = if is_here && (from < SHORT || self.finely) { self.fine_level(at, from) } else { None };
        let Some(level) = fine else {
            // SAFETY: the caller says that `node` is alive, in no list, and kept alive until
            // unlinked.
            let _ = unsafe { self.place(node, at) };
            return;
        };
        let position = LEVELS[level].position_at(at);
        self.front[level] = LEVELS[level].turn_of(position);
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive until unlinked.
        let _ = unsafe { self.link(level, position, node, at) };
    }

    /// The fine level for a node popped from a slot of level `from`: the level below if possible.
    /// `None`: no level can take the node (the coarsest holds timers of a different short slot).
    fn fine_level(&self, at: u64, from: usize) -> Option<usize> {
        (0..SHORT).find(|&level| {
            let turn = LEVELS[level].turn_of(LEVELS[level].position_at(at));
            let is_empty = self.levels.first(level, turn).is_none();
            if is_empty { level + 1 >= from } else { self.front[level] == turn }
        })
    }

    /// Takes the chain of a slot: from now on its nodes are in the chain, for one of the loops that
    /// cascade, and the slot is empty. The chain before has been used up.
    #[inline(always)] // so that the level is known
    fn open_slot(&mut self, level: usize, position: u64) {
        let slot = LEVELS[level].slot(position);
        if level > SHORT {
            debug_assert!(self.cascading.is_empty());
            self.cascading = self.levels.take(slot);
        } else {
            debug_assert!(self.expiring.is_empty());
            self.finely = self.levels.count(slot) > FEW;
            self.expiring = self.levels.take(slot);
        }
    }

    /// Opens the next slot of the fine levels or the short level, if its bound is at or before
    /// `now`. False: no slot was opened, and the cursor stands at `now`.
    fn open_due(&mut self, now: u64) -> bool {
        let fine = self.first(FINE_LEVELS);
        if fine.bound <= now {
            self.open_slot(fine.level, fine.position);
            return true;
        }
        // The slot at the cursor is looked at even if `now` lies before it: timers inserted when
        // already due are there (I4).
        let now_slot = (now >> SLOT_SHIFT).max(self.cursor());
        if let Some(slot) = self.levels.first(SHORT, self.cursor()).filter(|&slot| slot <= now_slot) {
            self.front[SHORT] = slot;
            if self.levels.earliest(LEVELS[SHORT].slot(slot)) <= now {
                self.open_slot(SHORT, slot);
                return true;
            }
        }
        self.front[SHORT] = now_slot;
        false
    }

    /// Opens the next coarse slot whose cascade must begin. False when there is no such slot; then
    /// all due timers have been emitted, and the threshold stands at `now`.
    fn open_next(&mut self, now: u64) -> bool {
        // Windows are opened in order, and never past a window whose timers still wait in a coarser
        // level (I5).
        let now_window = now / WINDOW_NS;
        if !self.levels.any(COARSE_LEVELS) {
            self.set_open(self.open().max(now_window));
            return false;
        }
        let barrier = self.first_window(const { Rows::of(FAR..ENDLESS) });
        if let Some(window) = self.levels.first(LONG, self.open()).filter(|&window| window < barrier) {
            if window <= now_window || now >= self.opens_at(LONG, window) {
                self.set_open(window);
                self.open_slot(LONG, window);
                return true;
            }
        }
        self.set_open(self.open().max(now_window.min(barrier - 1)));

        let reach = self.open() + LEVELS[LONG].slots;
        if let Some(group) = self.levels.first(FAR, self.front[FAR]).filter(|&group| (group + 1) * GROUP <= reach) {
            self.open_slot(FAR, group);
            return true;
        }
        let beyond = self.first_window(const { Rows::of(OVERFLOW..ENDLESS) });
        if beyond != NEVER && (beyond / GROUP).saturating_sub(self.front[FAR]) < FAR_MARGIN {
            self.open_slot(OVERFLOW, 0);
            return true;
        }
        false
    }

    /// Whether no taken chain has nodes left.
    fn chains_are_done(&self) -> bool {
        self.expiring.is_empty() && self.cascading.is_empty()
    }

    /// Inserts the nodes of the taken chains again, for a unit of `work` each. `None`: the work is
    /// used up.
    fn finish_chains(&mut self, work: &mut usize) -> Option<()> {
        let key = &Key::new();
        while !self.chains_are_done() {
            *work = work.checked_sub(1)?;
            // SAFETY (both): just unlinked, and alive until emitted (promise of the caller of
            // `insert`).
            #[allow(clippy::undocumented_unsafe_blocks)]
            if let Some(node) = self.expiring.pop(key) {
                unsafe { self.put_back(node, node.as_ref().fires_at(key)) };
            } else if let Some(node) = self.cascading.pop(key) {
                unsafe { self.place_again(node) };
            }
        }
        Some(())
    }

    /// Unlinks and returns any node at all: for the end of a queue's life.
    pub(crate) fn pop_any(&mut self) -> Option<NonNull<Node<X>>> {
        let key = &Key::new();
        let node = loop {
            if let Some(node) = self.expiring.pop(key).or_else(|| self.cascading.pop(key)) {
                break node;
            }
            let (level, position) =
                (0..LEVELS.len()).find_map(|level| Some((level, self.levels.first(level, self.front[level])?)))?;
            self.open_slot(level, position);
        };
        Some(self.emit(node))
    }

    // ------------------------------------------------------------ what comes next

    /// Of the first occupied slots of these levels, the one with the earliest bound.
    #[inline(always)] // so that the levels are known
    fn first(&self, levels: Rows) -> First {
        let mut first = First { bound: NEVER, level: 0, position: 0 };
        self.levels.for_each_occupied(levels, |level| {
            let Some(position) = self.levels.first(level, self.front[level]) else { return };
            let bound = self.levels.earliest(LEVELS[level].slot(position));
            if bound < first.bound {
                first = First { bound, level, position };
            }
        });
        first
    }

    /// The first window that may have timers in these levels; [`NEVER`] if there are none.
    #[inline]
    fn first_window(&self, levels: Rows) -> u64 {
        let first = self.first(levels);
        if first.bound == NEVER { NEVER } else { first.bound / WINDOW_NS }
    }

    /// When to open a slot: at its earliest due point, or, of the levels beyond the short level,
    /// earlier if its cascade takes a while, but not before the slot in front has begun (the short
    /// level has room for two windows, I5).
    #[inline]
    fn opens_at(&self, level: usize, position: u64) -> u64 {
        let slot = LEVELS[level].slot(position);
        let (earliest, count) = (self.levels.earliest(slot), self.levels.count(slot));
        if level <= SHORT || count <= CROWDED {
            return earliest;
        }
        let begins = LEVELS[level].begins(position).saturating_sub(LEVELS[level].width_ns);
        earliest.saturating_sub(count * CASCADE_NS).max(begins)
    }

    /// The instant at which this queue must be swept next, [`NEVER`] when no queued timer comes
    /// due.
    ///
    /// At or before the earliest due point (I6). Before it only for slots that are crowded or whose
    /// earliest timer was unlinked or moved later. Meaningful when [`Self::next_due`] has answered
    /// [`Next::Nothing`].
    pub(crate) fn next_deadline(&self) -> u64 {
        if self.len == 0 {
            return NEVER; // without a look into the levels, which lie in memory of their own
        }
        let mut next = NEVER;
        self.levels.for_each_occupied(ALL_LEVELS, |level| {
            let Some(position) = self.levels.first(level, self.front[level]) else { return };
            next = next.min(self.opens_at(level, position));
            if level > SHORT {
                // A crowded slot after the next must perhaps be opened before the first timer of
                // the next is due.
                next = next.min(self.opens_at(level, position + 1));
            }
        });
        if next < END { next } else { NEVER }
    }

    /// Inserts timers anew where the next wake-up would else find no due timer, since the bound of
    /// the next slot is too early. A sweep calls this after [`Self::next_due`] has answered
    /// [`Next::Nothing`]. False: the work is used up, and slots are left.
    ///
    /// No flag tells of nodes that were postponed without the lock. So where a sweep has found a
    /// node in a slot before its due point, any slot may have such nodes, until one has been
    /// inserted anew and is still the first. A crowded slot is worth a wake-up, and cascades in
    /// steps.
    #[must_use]
    pub(crate) fn look_ahead(&mut self, work: &mut usize) -> bool {
        let mut exact = None;
        // Timers of the fine levels are due soon anyway.
        while !self.levels.any(FINE_LEVELS) {
            let First { bound, level, position } = self.first(const { Rows::of(SHORT..OVERFLOW) });
            if bound == NEVER {
                break;
            }
            let slot = LEVELS[level].slot(position);
            let count = self.levels.count(slot);
            if exact == Some(slot) || !(self.levels.is_loose(slot) || self.found_later) || count > CROWDED {
                break;
            }
            if *work == 0 {
                return false;
            }
            *work = work.saturating_sub(count as usize);
            let mut chain = self.levels.take(slot);
            while let Some(node) = chain.pop(&Key::new()) {
                // SAFETY: just unlinked, and alive until emitted (promise of the caller of
                // `insert`).
                unsafe { self.place_again(node) };
            }
            exact = Some(slot);
        }
        self.found_later = false;
        true
    }

    /// The earliest due point, exactly (but for a node that was postponed without the lock: perhaps
    /// its old one); [`NEVER`] when no queued timer comes due. Where the earliest bound may be too
    /// early, the nodes of its slot are inserted anew, for a unit of `work` each. `None`: the work
    /// is used up before the answer is found; the caller may release the lock and ask again.
    pub(crate) fn earliest_due(&mut self, work: &mut usize) -> Option<u64> {
        loop {
            self.finish_chains(work)?;
            let First { bound, level, position } = self.first(ALL_LEVELS);
            if bound >= END {
                return Some(NEVER);
            }
            if !self.levels.is_loose(LEVELS[level].slot(position)) {
                return Some(bound);
            }
            self.open_slot(level, position);
        }
    }

    /// Calls `visit` with the queued timers that come due, until `visit` breaks. Before each slot,
    /// `ends` is called with an instant: no timer that has not been visited is due before it. If
    /// `ends` returns true, the walk is over. Returns whether it came to its end.
    ///
    /// Slots are visited in order of time, so the walk can end early. Within a slot there is no
    /// order. The taken chains and the fine levels come first, although some of their timers may be
    /// due later than others.
    pub(crate) fn walk<'a>(
        &'a self,
        mut ends: impl FnMut(u64) -> bool,
        mut visit: impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> bool {
        let key = &self.key;
        // Since the overflow list was last looked at, timers may have come to the far level that
        // are due later than the first of the list.
        let overflow = self.levels.earliest(LEVELS[OVERFLOW].slot(0));
        let mut walk = || {
            self.expiring.list.visit(key, &mut visit)?;
            self.cascading.list.visit(key, &mut visit)?;
            for (level, row) in LEVELS.iter().enumerate().take(ENDLESS) {
                let front = self.front[level];
                let mut next = self.levels.first(level, front);
                while let Some(position) = next.filter(|position| position.wrapping_sub(front) < row.slots) {
                    let slot = row.slot(position);
                    if level >= SHORT && ends(self.levels.earliest(slot).min(overflow)) {
                        return ControlFlow::Continue(());
                    }
                    self.levels.visit(slot, key, &mut visit)?;
                    next = self.levels.first(level, position.wrapping_add(1));
                }
            }
            ControlFlow::Continue(())
        };
        walk().is_continue()
    }
}

// Nodes pass from thread to thread together with the lock.
// SAFETY: the queue reaches its nodes only through `&self` or `&mut self`, hence under the lock of
// its shard; `X` is shared and sent along with them, and the bound says that `X` allows both.
unsafe impl<X: Send + Sync> Send for TimerWheel<X> {}

#[cfg(any(test, timerqueue_check))]
#[path = "check.rs"]
mod check;
