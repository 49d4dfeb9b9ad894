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
//!   short level  |....|....|....|....|....|....|....|....| |                    4,096 slots of 262 us
//!   long level                                             |  w+1 |  w+2 | ...  2,048 windows (11 min)
//!   far level                                                  groups of 1,024 windows (341 s), 1,024 of them (97 h)
//!   overflow list                                                                   everything later, one list
//! ```
//!
//! A timer is *short* when its due point is at or before the threshold (I2), else *long*. Opening a
//! slot of any level takes the slot's chain out whole and cascades it, a bounded number of nodes at
//! a time. Due timers are emitted to the caller, the rest is inserted again, a level further down.
//! A timer moves down a level at most three times (once, if due within eleven minutes), and once
//! more into the fine levels of a crowded slot.
//!
//! A timer that is moved later stays in its slot (`reschedule_lazily`) until the slot cascades,
//! however often the timer was moved.

use std::ptr::NonNull;

use super::level::{FINE_LEVELS, Fine, Level, Spot};
use super::list::{List, TakenList};
use super::node::{Key, Location, Node};
use crate::sys::os::{Pages, Zeroable};
use crate::time::{END, NEVER};

/// The width of a window: how far the threshold advances each time. .NET's constant.
pub(crate) const WINDOW_NS: u64 = 333_000_000;
/// A short slot is 2^18 ns = 262 us wide: 1,271 slots to a window, so the bitmaps stay within a
/// page and the slots within a second-level cache. Narrower slots gained nothing in the bench.
/// Deadlines inside a slot are exact, and the fine levels order a crowded slot.
pub(super) const SLOT_SHIFT: u32 = 18;
/// Two windows may be open at once (the second ahead of time), and a bit more.
const SHORT_SLOTS: usize = 4096;
/// Twice a group, so a group can cascade while the group before is still in use.
const LONG_SLOTS: usize = 2048;
const GROUP: u64 = 1024;
const FAR_SLOTS: usize = 1024;
/// The overflow list is looked at when half of the far level has passed.
const FAR_MARGIN: u64 = FAR_SLOTS as u64 / 2;
/// A crowded window is opened ahead of time, this long per node, so the cascade does not make its
/// first timers late.
const CASCADE_NS: u64 = 320;
/// A slot with at most so many nodes cascades in no time: waking up early for such a slot would
/// only be an extra wake-up.
const CROWDED: u64 = 64;

/// After each so many timers in a long slot, `insert` computes anew when the cascade of the slot
/// must begin.
const LOOK_EVERY: u64 = 4096;

/// A short slot with more nodes cascades into the fine levels. In a smaller slot, each sweep puts
/// back the nodes not yet due.
const FEW: u64 = 16;

const SHORT: u16 = 0;
const LONG: u16 = 1;
const FAR: u16 = 2;
/// The finest of the fine levels; the coarser levels come after it.
const FINE: u16 = 3;

const _: () = assert!(
    (SHORT_SLOTS as u64) << SLOT_SHIFT > 3 * WINDOW_NS + (2 << SLOT_SHIFT),
    "two open windows, and one that the cursor lags behind, fit the short level without two instants sharing a slot"
);

/// The end of a window.
fn end_of(window: u64) -> u64 {
    (window + 1).saturating_mul(WINDOW_NS)
}

type ShortLevel<X> = Level<X, SHORT_SLOTS>;
type LongLevel<X> = Level<X, LONG_SLOTS>;
type FarLevel<X> = Level<X, FAR_SLOTS>;

/// Of a queue with little use, few pages of these are in memory.
struct Levels<X> {
    short: ShortLevel<X>,
    long: LongLevel<X>,
    far: FarLevel<X>,
    fine: Fine<X>,
}

#[allow(unsafe_code)]
// SAFETY: each field is a `Level` or `Fine`; all zeroes are an empty `Level` and an empty `Fine`
// (documented at both types).
unsafe impl<X> Zeroable for Levels<X> {}

/// Outcome of [`TimerWheel::next_due`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<X> {
    /// This node is due and has been unlinked.
    Due(NonNull<Node<X>>),
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

/// See the module's ground rules.
pub(crate) struct TimerWheel<X> {
    levels: Pages<Levels<X>>,
    overflow: List<X>,
    overflow_earliest: u64,
    /// As for a slot: nodes have left the overflow list, so its bound may be too early.
    overflow_is_loose: bool,
    /// Timers queued for ever, due at [`END`]: found at the end of the runtime, and never looked at
    /// before.
    endless: List<X>,
    /// The taken chain of a short slot, or of a slot of the fine levels: some of its nodes may be
    /// due.
    expiring: TakenList<X>,
    /// Nodes of the taken short slot cascade into the fine levels.
    finely: bool,
    /// A node was found in a slot before that of its due point, since the last look ahead: it was
    /// moved later, or postponed.
    found_later: bool,
    /// The fine levels may hold nodes. (Where they are not used, they are not in memory.)
    fine: bool,
    /// The taken chain of a window, a group or the overflow list, on its way to finer levels. Due
    /// timers go first.
    cascading: TakenList<X>,
    /// Absolute number of the short slot where the search for due timers starts; earlier slots are
    /// empty (I4).
    cursor: u64,
    /// Absolute number of the open window: all windows up to here have been opened. The threshold
    /// is its end.
    open: u64,
    /// The end of the open window, so that an insertion divides no further instant.
    open_until: u64,
    len: usize,
    key: Key,
}

impl<X> TimerWheel<X> {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            levels: Pages::zeroed(),
            overflow: List::new(),
            overflow_earliest: NEVER,
            overflow_is_loose: false,
            endless: List::new(),
            expiring: TakenList::new(),
            finely: false,
            found_later: false,
            fine: false,
            cascading: TakenList::new(),
            cursor: now >> SLOT_SHIFT,
            open: now / WINDOW_NS,
            open_until: end_of(now / WINDOW_NS),
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

    /// Inserts `node` by its due point, which is not [`NEVER`]. Returns the instant of the sweep
    /// that `node` needs: its due point, or, now and then while a long slot grows crowded, the
    /// instant at which the slot's cascade must begin.
    ///
    /// # Safety
    /// `node` is alive, is in no queue, and stays alive until this queue has unlinked or emitted
    /// it. Meanwhile no further queue inserts `node`.
    #[allow(unsafe_code)] // contract of the lists
    #[inline]
    pub(crate) unsafe fn insert(&mut self, node: NonNull<Node<X>>) -> u64 {
        // SAFETY: the caller's promise, which is the same.
        unsafe { self.insert_at(node, node.as_ref().fires_at(&Key::new())) }
    }

    /// As [`Self::insert`], of a node that fires at `at`, which the caller knows.
    ///
    /// # Safety
    /// As [`Self::insert`].
    #[allow(unsafe_code)] // contract of the lists
    #[inline]
    pub(crate) unsafe fn insert_at(&mut self, node: NonNull<Node<X>>, at: u64) -> u64 {
        self.len += 1;
        // SAFETY: alive, in no queue, and kept alive: the caller's promise, which is the same.
        unsafe { self.place(node, at) }
    }

    /// Inserts a node that has just been unlinked and is still counted, by its due point.
    ///
    /// # Safety
    /// As [`Self::insert`].
    #[allow(unsafe_code)] // contract of the lists
    unsafe fn place_again(&mut self, node: NonNull<Node<X>>) {
        // SAFETY: the caller's promise, which is the same.
        let _ = unsafe { self.place(node, node.as_ref().fires_at(&Key::new())) };
    }

    /// Inserts a node that is counted already and fires at `at`, or, if its owner has just put it
    /// off, later.
    ///
    /// # Safety
    /// As [`Self::insert`].
    #[allow(unsafe_code)] // contract of the lists
    unsafe fn place(&mut self, node: NonNull<Node<X>>, at: u64) -> u64 {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        debug_assert_ne!(at, NEVER, "an idle timer is not queued");
        let window = at / WINDOW_NS;
        // SAFETY (all five): the caller says that `node` is alive, in no list, and kept alive until
        // unlinked.
        #[allow(clippy::undocumented_unsafe_blocks)]
        if window <= self.open {
            // A timer that is due already goes where the search starts (I4).
            let slot = (at >> SLOT_SHIFT).max(self.cursor);
            debug_assert!(slot - self.cursor < SHORT_SLOTS as u64, "open windows fit the short level");
            let index = ShortLevel::<X>::index(slot);
            unsafe { self.levels.short.push(index, node, at, key) };
            shared.set_location(Location::slot(SHORT, index), key);
        } else if window - self.open < LONG_SLOTS as u64 {
            let index = LongLevel::<X>::index(window);
            unsafe { self.levels.long.push(index, node, at, key) };
            shared.set_location(Location::slot(LONG, index), key);
            if self.levels.long.count(index) % LOOK_EVERY == 0 {
                return at.min(self.window_opens_at(window));
            }
        } else if window / GROUP - self.open / GROUP < FAR_SLOTS as u64 {
            let index = FarLevel::<X>::index(window / GROUP);
            unsafe { self.levels.far.push(index, node, at, key) };
            shared.set_location(Location::slot(FAR, index), key);
        } else if at == END {
            unsafe { self.endless.push(node, key) };
            shared.set_location(Location::ENDLESS, key);
            return NEVER;
        } else {
            unsafe { self.overflow.push(node, key) };
            self.overflow_earliest = self.overflow_earliest.min(at);
            shared.set_location(Location::OVERFLOW, key);
        }
        at
    }

    /// Unlinks `node` if queued. True: `node` was in the queue.
    ///
    /// # Safety
    /// `node` is alive and in no queue but this.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>) -> bool {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        let location = shared.location(key);
        if !location.is_queued() {
            return false;
        }
        // SAFETY: `location` names the slot that the node was inserted into (I1). If the slot's
        // chain has been taken since, the node is in `expiring` (short and fine slots) or
        // `cascading` (the rest), and in no further list.
        unsafe {
            match location.as_slot() {
                Some((SHORT, index)) => self.levels.short.unlink(index, node, &mut self.expiring, key),
                Some((LONG, index)) => self.levels.long.unlink(index, node, &mut self.cascading, key),
                Some((level, index)) if level >= FINE => {
                    let spot = Spot { level: usize::from(level - FINE), index };
                    self.levels.fine.unlink(spot, node, &mut self.expiring, key);
                }
                Some((_, index)) => self.levels.far.unlink(index, node, &mut self.cascading, key),
                None if self.cascading.unlink_leader(node, key) => {}
                None if location == Location::ENDLESS => _ = self.endless.unlink(node, key),
                None => {
                    self.overflow.unlink(node, key);
                    self.overflow_is_loose = true;
                    if self.overflow.is_empty() {
                        _ = self.take_overflow();
                    }
                }
            }
        }
        shared.set_location(Location::IDLE, key);
        self.len -= 1;
        true
    }

    /// Gives `node` a new due point and leaves the node in its slot of the short or long level, if
    /// the slot cascades in time for `due`. Returns the instant of the sweep that `node` needs
    /// then. A timer that is moved later each time, like an idle timeout, stays in the slot of its
    /// first insertion.
    ///
    /// # Safety
    /// `node` is alive and in no queue but this.
    #[inline]
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn reschedule_lazily(&mut self, node: NonNull<Node<X>>, due: u64) -> Option<u64> {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        let (level, index) = shared.location(key).as_slot()?;
        let at = shared.tick_policy().fires_at(due);
        if due == NEVER {
            return None;
        }
        // The slot's chain may have been taken (by `earliest_due`, or by a sweep that stopped in
        // the middle): the node is then in that chain, and is inserted by its due point when the
        // chain goes on.
        match level {
            LONG => {
                let ahead = LongLevel::<X>::index((index as u64).wrapping_sub(self.open)) as u64;
                let begins = (self.open + ahead) * WINDOW_NS;
                // The slot's window has not been opened.
                if ahead == 0 || at < begins {
                    return None;
                }
                self.levels.long.stay(index, at);
            }
            SHORT => {
                let ahead = ShortLevel::<X>::index((index as u64).wrapping_sub(self.cursor)) as u64;
                let slot = self.cursor + ahead;
                if at >> SLOT_SHIFT < slot {
                    return None;
                }
                self.levels.short.stay(index, at);
            }
            _ => return None,
        }
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
        let in_the_way = !self.levels.short.is_empty()
            || !self.expiring.is_empty()
            || !self.cascading.is_empty()
            || self.first_fine().is_some()
            || self.next_window().is_some_and(|next| next <= window)
            || self.first_unopened_window() <= window;
        if !in_the_way {
            self.set_open(window);
            self.cursor = now >> SLOT_SHIFT;
        }
    }

    fn set_open(&mut self, window: u64) {
        self.open = window;
        self.open_until = end_of(window);
    }

    /// A timer may come due at this instant: prefetches its slot of the short level, so that the
    /// caller can read the clock meanwhile.
    pub(crate) fn fetch(&self, at: u64) {
        self.levels.short.fetch(ShortLevel::<X>::index(at >> SLOT_SHIFT));
    }

    /// Emits a timer that is due at `now`, or goes on with the cascade; each node looked at costs a
    /// unit of `work`.
    ///
    /// An emitted node is unlinked and still has its due point. The caller may insert the node
    /// again at once, later than `now`.
    #[inline] // the only caller is a loop
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn next_due(&mut self, now: u64, work: &mut usize) -> Next<X> {
        loop {
            match Self::cascade_next(&mut self.expiring, now, work) {
                Cascaded::Due(node) => return self.emit(node),
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
    #[allow(unsafe_code)] // contract of the lists
    fn expire_next(&mut self, now: u64, work: &mut usize) -> Option<Next<X>> {
        loop {
            if self.len == 0 {
                self.cursor = self.cursor.max(now >> SLOT_SHIFT);
                self.set_open(self.open.max(now / WINDOW_NS));
                return Some(Next::Nothing);
            }
            if self.take_due_fine(now) || self.take_due_slot(now) {
                return None;
            }
            // All due timers of short slots have been emitted. A chain taken ahead of time may be
            // long: when the work is used up, the next batch looks for due timers first.
            loop {
                match Self::cascade_next(&mut self.cascading, now, work) {
                    Cascaded::Due(node) => return Some(self.emit(node)),
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

    /// Inserts the nodes of a slot again.
    #[allow(unsafe_code)] // contract of the lists
    fn insert_again(&mut self, mut chain: TakenList<X>) {
        while let Some(node) = chain.pop(&Key::new()) {
            // SAFETY: just unlinked, and alive until emitted (promise of the caller of `insert`).
            unsafe { self.place_again(node) };
        }
    }

    /// Inserts the nodes of the taken chains again, for a unit of `work` each. `None`: the work is
    /// used up.
    #[allow(unsafe_code)] // contract of the lists
    fn finish_chains(&mut self, work: &mut usize) -> Option<()> {
        let key = &Key::new();
        while !(self.expiring.is_empty() && self.cascading.is_empty()) {
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

    /// Cascades timers due soon, `work` nodes at most, while the present sweep still finds due
    /// timers. Else the timers of the next window would be late for the burst in this window.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn cascade_ahead(&mut self, now: u64, mut work: usize) {
        // With a cursor further behind, the short level has no room for the next window (I5).
        if now.saturating_sub(self.cursor << SLOT_SHIFT) > WINDOW_NS {
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
    #[allow(unsafe_code)] // contract of the lists
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
    #[allow(unsafe_code)] // contract of the lists
    fn emit(&mut self, node: NonNull<Node<X>>) -> Next<X> {
        // SAFETY: linked until now, hence alive (promise of the caller of `insert`).
        unsafe { node.as_ref().set_location(Location::IDLE, &Key::new()) };
        self.len -= 1;
        Next::Due(node)
    }

    /// Inserts a node popped from the chain of a short slot, or of a slot of the fine levels; it
    /// fires at `at`.
    ///
    /// # Safety
    /// As [`Self::insert`], but the node is counted already.
    #[allow(unsafe_code)] // contract of the lists
    unsafe fn put_back(&mut self, node: NonNull<Node<X>>, at: u64) {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive.
        let shared = unsafe { node.as_ref() };
        let from = match shared.location(key).as_slot() {
            Some((level, _)) if level >= FINE => usize::from(level - FINE),
            _ => FINE_LEVELS,
        };
        // A timer that was moved to a later slot has no place in the fine levels of this slot.
        let is_here = at >> SLOT_SHIFT <= self.cursor;
        self.found_later |= !is_here;
        if is_here && (from < FINE_LEVELS || self.finely) {
            // SAFETY: the caller says that `node` is alive, in no list, and kept alive until
            // unlinked.
            if let Some(spot) = unsafe { self.levels.fine.insert(node, at, from, key) } {
                shared.set_location(Location::slot(FINE + spot.level as u16, spot.index), key);
                self.fine = true;
                return;
            }
        }
        // SAFETY: the caller says that `node` is alive, in no list, and kept alive; `fine` has not
        // linked it.
        let _ = unsafe { self.place(node, at) };
    }

    /// The slot of the fine levels with the earliest bound, and the bound.
    fn first_fine(&self) -> Option<(u64, Spot)> {
        if self.fine { self.levels.fine.first() } else { None }
    }

    /// Takes the chain of the first slot of the fine levels, if its bound is at or before `now`.
    /// False: no slot was taken.
    fn take_due_fine(&mut self, now: u64) -> bool {
        let first = self.first_fine();
        self.fine = first.is_some();
        match first {
            Some((bound, spot)) if bound <= now => {
                self.expiring = self.levels.fine.take(spot);
                true
            }
            _ => false,
        }
    }

    /// Takes the chain of a short slot. Only the slot at the cursor cascades into the fine levels:
    /// no timer comes before it.
    fn take_short(&mut self, slot: u64) {
        let index = ShortLevel::<X>::index(slot);
        self.finely = slot == self.cursor && self.levels.short.count(index) > FEW;
        self.expiring = self.levels.short.take(index);
    }

    fn take_overflow(&mut self) -> TakenList<X> {
        (self.overflow_earliest, self.overflow_is_loose) = (NEVER, false);
        self.overflow.take()
    }

    /// Takes the chain of the next short slot, if its bound is at or before `now`. False: no slot
    /// was taken, and the cursor stands at `now`.
    fn take_due_slot(&mut self, now: u64) -> bool {
        // The slot at the cursor is looked at even if `now` lies before it: timers inserted when
        // already due are there (I4).
        let now_slot = (now >> SLOT_SHIFT).max(self.cursor);
        if let Some(slot) = self.levels.short.first_at_or_after(self.cursor).filter(|&slot| slot <= now_slot) {
            self.cursor = slot;
            if self.levels.short.earliest(ShortLevel::<X>::index(slot)) <= now {
                self.take_short(slot);
                return true;
            }
        }
        self.cursor = now_slot;
        false
    }

    /// Takes the chain of the next coarse slot whose cascade must begin. False when there is no
    /// such slot; then all due timers have been emitted, and the threshold stands at `now`.
    fn open_next(&mut self, now: u64) -> bool {
        // Windows are opened in order, and never past a window whose timers still wait in a coarser
        // level (I5).
        let now_window = now / WINDOW_NS;
        let barrier = self.first_unopened_window();
        if let Some(window) = self.next_window().filter(|&window| window < barrier) {
            if window <= now_window || now >= self.window_opens_at(window) {
                self.set_open(window);
                self.cascading = self.levels.long.take(LongLevel::<X>::index(window));
                return true;
            }
        }
        self.set_open(self.open.max(now_window.min(barrier - 1)));

        if let Some(group) = self.next_group().filter(|&group| (group + 1) * GROUP - self.open <= LONG_SLOTS as u64) {
            self.cascading = self.levels.far.take(FarLevel::<X>::index(group));
            return true;
        }
        let overflow = self.overflow_earliest / WINDOW_NS / GROUP;
        if !self.overflow.is_empty() && overflow.saturating_sub(self.open / GROUP) < FAR_MARGIN {
            self.cascading = self.take_overflow();
            return true;
        }
        false
    }

    /// Unlinks and returns any node at all: for the end of a queue's life.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn pop_any(&mut self) -> Option<NonNull<Node<X>>> {
        let key = &Key::new();
        if self.expiring.is_empty() {
            if let Some((_, spot)) = self.first_fine() {
                self.expiring = self.levels.fine.take(spot);
            } else if let Some(slot) = self.levels.short.first_at_or_after(0) {
                self.expiring = self.levels.short.take(ShortLevel::<X>::index(slot));
            }
        }
        if self.cascading.is_empty() {
            self.cascading = if let Some(window) = self.levels.long.first_at_or_after(0) {
                self.levels.long.take(LongLevel::<X>::index(window))
            } else if let Some(group) = self.levels.far.first_at_or_after(0) {
                self.levels.far.take(FarLevel::<X>::index(group))
            } else if !self.overflow.is_empty() {
                self.take_overflow()
            } else {
                self.endless.take()
            };
        }
        let node = self.expiring.pop(key).or_else(|| self.cascading.pop(key))?;
        // SAFETY: linked until now, hence alive (promise of the caller of `insert`).
        unsafe { node.as_ref().set_location(Location::IDLE, key) };
        self.len -= 1;
        Some(node)
    }
}

// Nodes pass from thread to thread together with the lock.
#[allow(unsafe_code)]
// SAFETY: the queue reaches its nodes only through `&self` or `&mut self`, hence under the lock of
// its shard; `X` is shared and sent along with them, and the bound says that `X` allows both.
unsafe impl<X: Send + Sync> Send for TimerWheel<X> {}

#[path = "look_ahead.rs"]
mod look_ahead;

#[path = "outlook.rs"]
mod outlook;

#[cfg(any(test, timerqueue_check))]
#[path = "check.rs"]
mod check;
