//! The timer queue of one core: short and long intrusive lists, split by a threshold that rolls 333 ms at a time.
//!
//! Built for this workload: timers are created and cancelled all the time, mostly due in seconds, and seldom fire; some
//! fire all the time and must be exact. So filing and unlinking are a handful of instructions, and work on a timer is
//! put off until it is certain to be needed.
//!
//! Ground rules. Pure: no clock, no lock, no kernel, no callback. Whoever has `&mut` holds the queue's lock. `now` comes
//! from the caller. One that is older than the one before (read before the lock was taken, or of a broken clock) does no harm: cursor
//! and threshold stay where they are, and what is due is found.
//! The queue does not own nodes: who files one keeps it alive until it is unlinked or handed out.
//!
//! ```text
//!   window = 333 ms                                threshold = end of the open window
//!                                                          v
//!   short ring   |....|....|....|....|....|....|....|....| |                    4,096 slots of 262 us
//!   long ring                                              |  w+1 |  w+2 | ...  2,048 windows (11 min)
//!   far ring                                                   groups of 1,024 windows (341 s), 1,024 of them (97 h)
//!   beyond                                                                          everything later, one list
//! ```
//!
//! A timer is *short* when its due point is at or before the threshold, else *long*. Opening a slot of any ring takes its
//! chain out whole and deals it, a bounded number of nodes at a time: what is due goes to the caller, the rest is filed
//! again, one ring further down. A timer moves at most three times in its life (once, if due within eleven minutes).
//!
//! A long timer that is moved later stays in its slot (`keep`), and moves when that is dealt, however often it was pushed
//! back until then.

use std::ptr::NonNull;

use super::level::{FINE_LEVELS, Fine, Level, Spot};
use super::list::{List, TakenList};
use super::node::{Key, Node, Place};
use crate::sys::os::{Pages, Zeroable};
use crate::time::{END, NEVER};

/// The width of a window: how far the threshold rolls each time. .NET's constant.
pub(crate) const WINDOW_NS: u64 = 333_000_000;
/// A short slot is 2^18 ns = 262 us wide: 1,271 slots to a window, so that the bitmaps stay within a page and the slots
/// within a second-level cache. Narrower slots bought nothing in the bench
/// up to some thousand timers in a queue; with exact deadlines and 10,000 of them or more, a slot is dealt several times
/// and finer ones would be faster. The deadline inside a slot is exact anyway.
pub(super) const SLOT_SHIFT: u32 = 18;
/// Two windows may be open at once (one ahead of time), and a bit more.
const SHORT_SLOTS: usize = 4096;
/// Twice a group, so that a group can be dealt while the one before is still in use.
const LONG_SLOTS: usize = 2048;
const GROUP: u64 = 1024;
const FAR_SLOTS: usize = 1024;
/// Timers beyond the far ring are looked at when half of it has gone by.
const FAR_MARGIN: u64 = FAR_SLOTS as u64 / 2;
/// A crowded window is opened ahead of time, so that dealing it does not make its first timers late: this long per node.
const DEAL_NS: u64 = 320;
/// A slot with fewer nodes is dealt in no time; waking up early for it would only be an extra wake-up.
const CROWDED: u64 = 64;

/// After so many timers in one coarse slot it is looked at again when to begin with it.
const LOOK_EVERY: u64 = 4096;

/// A short slot with more nodes is dealt into the fine rings, else what is not due yet goes back to it: each time that a sweep comes by.
const FEW: u64 = 16;

const SHORT: u16 = 0;
const LONG: u16 = 1;
const FAR: u16 = 2;
/// The finest of the fine rings, and the coarser ones after it.
const FINE: u16 = 3;

const _: () = assert!(
    (SHORT_SLOTS as u64) << SLOT_SHIFT > 3 * WINDOW_NS + (2 << SLOT_SHIFT),
    "two open windows, and one that the cursor lags behind, fit the short ring without two instants sharing a slot"
);

type ShortRing<X> = Level<X, SHORT_SLOTS>;
type LongRing<X> = Level<X, LONG_SLOTS>;
type FarRing<X> = Level<X, FAR_SLOTS>;

/// Of a queue that is hardly used, hardly any of these is in memory.
struct Rings<X> {
    short: ShortRing<X>,
    long: LongRing<X>,
    far: FarRing<X>,
    fine: Fine<X>,
}

#[allow(unsafe_code)]
// SAFETY: rings, of which all zeroes are empty ones.
unsafe impl<X> Zeroable for Rings<X> {}

/// What [`TimerWheel::next_due`] found.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<X> {
    /// This node is due and has been unlinked.
    Due(NonNull<Node<X>>),
    /// Nothing else is due.
    Nothing,
    /// The work allowed for this batch is used up; there may be more.
    Exhausted,
}

/// What became of a node that was dealt.
enum Dealt<X> {
    Due(NonNull<Node<X>>),
    Later(NonNull<Node<X>>),
    /// No work was left.
    Exhausted,
}

/// See the module's ground rules.
pub(crate) struct TimerWheel<X> {
    rings: Pages<Rings<X>>,
    overflow: List<X>,
    overflow_earliest: u64,
    /// As a slot's: nodes have left it.
    beyond_loose: bool,
    /// What is filed for ever, due at [`END`]: to be found at the end of the runtime, and never looked at before.
    endless: List<X>,
    /// The chain of the short slot, or of a slot of the fine rings, that is being dealt: some of it is due.
    expiring: TakenList<X>,
    /// What is dealt from a short slot goes to the fine rings.
    finely: bool,
    /// The fine rings may hold something. (So that they are in memory only where they are used.)
    fine: bool,
    /// The chain of a window, a group, or what lay beyond, that is being dealt into finer rings. Due timers go first.
    cascading: TakenList<X>,
    /// Absolute number of the short slot where the search for due timers starts; earlier ones are empty.
    cursor: u64,
    /// Absolute number of the open window: all windows up to it have been dealt. The threshold is its end.
    open: u64,
    len: usize,
    key: Key,
}

impl<X> TimerWheel<X> {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            rings: Pages::zeroed(),
            overflow: List::new(),
            overflow_earliest: NEVER,
            beyond_loose: false,
            endless: List::new(),
            expiring: TakenList::new(),
            finely: false,
            fine: false,
            cascading: TakenList::new(),
            cursor: now >> SLOT_SHIFT,
            open: now / WINDOW_NS,
            len: 0,
            key: Key::new(),
        }
    }

    /// Timers filed here.
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
        (self.open + 1).saturating_mul(WINDOW_NS) - 1
    }

    /// Files `node` by its due point, which is not [`NEVER`]. Returns the instant to be swept at on its account: its due
    /// point, or, now and then while a coarse slot grows crowded, the instant at which that is to be dealt.
    ///
    /// # Safety
    /// `node` is alive, is filed nowhere, and stays alive until this queue has unlinked it or handed it out. It is filed
    /// with no other queue meanwhile.
    #[allow(unsafe_code)] // contract of the lists
    #[inline]
    pub(crate) unsafe fn file(&mut self, node: NonNull<Node<X>>) -> u64 {
        self.len += 1;
        // SAFETY: the caller's contract.
        unsafe { self.place(node) }
    }

    /// Files a node that is counted already.
    ///
    /// # Safety
    /// As [`Self::file`].
    #[allow(unsafe_code)] // contract of the lists
    unsafe fn place(&mut self, node: NonNull<Node<X>>) -> u64 {
        let key = &Key::new();
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let due = shared.fires_at(key);
        debug_assert_ne!(due, NEVER, "an idle timer is not filed");
        let window = due / WINDOW_NS;
        // SAFETY (all five): alive, filed nowhere, and kept alive, by the contract.
        #[allow(clippy::undocumented_unsafe_blocks)]
        if window <= self.open {
            // What is due already goes where the search starts.
            let slot = (due >> SLOT_SHIFT).max(self.cursor);
            debug_assert!(slot - self.cursor < SHORT_SLOTS as u64, "open windows fit the short ring");
            let index = ShortRing::<X>::index(slot);
            unsafe { self.rings.short.push(index, node, due, key) };
            shared.set_place(Place::slot(SHORT, index), key);
        } else if window - self.open < LONG_SLOTS as u64 {
            let index = LongRing::<X>::index(window);
            unsafe { self.rings.long.push(index, node, due, key) };
            shared.set_place(Place::slot(LONG, index), key);
            if self.rings.long.count(index) % LOOK_EVERY == 0 {
                return due.min(self.window_opens_at(window));
            }
        } else if window / GROUP - self.open / GROUP < FAR_SLOTS as u64 {
            let index = FarRing::<X>::index(window / GROUP);
            unsafe { self.rings.far.push(index, node, due, key) };
            shared.set_place(Place::slot(FAR, index), key);
        } else if due == END {
            unsafe { self.endless.push(node, key) };
            shared.set_place(Place::ENDLESS, key);
            return NEVER;
        } else {
            unsafe { self.overflow.push(node, key) };
            self.overflow_earliest = self.overflow_earliest.min(due);
            shared.set_place(Place::BEYOND, key);
        }
        due
    }

    /// Unlinks `node` if it is filed; says whether it was.
    ///
    /// # Safety
    /// `node` is alive and has been filed with no other queue.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>) -> bool {
        let key = &Key::new();
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let place = shared.place(key);
        if !place.is_filed() {
            return false;
        }
        // SAFETY: `place` says where the node was filed; its chain may have been taken since, to `expiring` if it was short and
        // to `cascading` if not, which is the one other list it can be in.
        unsafe {
            match place.as_slot() {
                Some((SHORT, index)) => self.rings.short.unlink(index, node, &mut self.expiring, key),
                Some((LONG, index)) => self.rings.long.unlink(index, node, &mut self.cascading, key),
                Some((ring, index)) if ring >= FINE => {
                    let spot = Spot { level: usize::from(ring - FINE), index };
                    self.rings.fine.unlink(spot, node, &mut self.expiring, key);
                }
                Some((_, index)) => self.rings.far.unlink(index, node, &mut self.cascading, key),
                None if self.cascading.unlink_leader(node, key) => {}
                None if place == Place::ENDLESS => _ = self.endless.unlink(node, key),
                None => {
                    self.overflow.unlink(node, key);
                    self.beyond_loose = true;
                    if self.overflow.is_empty() {
                        _ = self.take_beyond();
                    }
                }
            }
        }
        shared.set_place(Place::IDLE, key);
        self.len -= 1;
        true
    }

    /// Gives `node` a new due point where it stands, if it is filed in a slot of the long ring that is dealt in time for that one
    /// too; the instant to be swept at if it did. What is pushed back, like an idle timeout, stays where it was filed at first.
    ///
    /// # Safety
    /// `node` is alive and has been filed with no other queue.
    #[inline]
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn keep(&mut self, node: NonNull<Node<X>>, due: u64) -> Option<u64> {
        let key = &Key::new();
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let Some((LONG, index)) = shared.place(key).as_slot() else { return None };
        let at = shared.tick_policy.fires_at(due);
        // Its window has not been opened. (It may be in a chain that was taken to be filed anew.)
        let ahead = LongRing::<X>::index((index as u64).wrapping_sub(self.open)) as u64;
        let begins = (self.open + ahead) * WINDOW_NS;
        let keeps = due != NEVER && ahead > 0 && at >= begins;
        if keeps {
            shared.set_due(due, key);
            self.rings.long.stay(index, at, at - begins >= WINDOW_NS);
        }
        keeps.then_some(at)
    }

    /// Moves the threshold up to the window of `now` where that takes no dealing. Called when a timer is filed, since a
    /// queue in which nothing fires is never swept, and a threshold left behind would send all timers to coarse slots.
    #[inline]
    pub(crate) fn roll(&mut self, now: u64) {
        if now / WINDOW_NS > self.open {
            self.roll_to(now);
        }
    }

    #[cold]
    fn roll_to(&mut self, now: u64) {
        let window = now / WINDOW_NS;
        let in_the_way = !self.rings.short.is_empty()
            || !self.expiring.is_empty()
            || !self.cascading.is_empty()
            || self.first_fine().is_some()
            || self.next_window().is_some_and(|next| next <= window)
            || self.first_undealt_window() <= window;
        if !in_the_way {
            self.open = window;
            self.cursor = now >> SLOT_SHIFT;
        }
    }

    /// Hands out one timer that is due at `now`, or deals on; each node looked at takes one from `work`.
    ///
    /// A node handed out is unlinked and still has its due point. The caller may file it again at once, later than `now`.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn next_due(&mut self, now: u64, work: &mut usize) -> Next<X> {
        loop {
            while !self.expiring.is_empty() {
                match Self::deal(&mut self.expiring, now, work) {
                    Dealt::Due(node) => return self.hand_out(node),
                    // SAFETY: alive, just unlinked, and still under the contract of its first `file`.
                    Dealt::Later(node) => unsafe { self.put_back(node) },
                    Dealt::Exhausted => return Next::Exhausted,
                }
            }
            if self.take_due_fine(now) || self.take_due_slot(now) {
                continue;
            }
            // What is due has been handed out. A chain that is opened ahead of time may be long; when the work is used up the
            // next batch looks for due timers first.
            while !self.cascading.is_empty() {
                match Self::deal(&mut self.cascading, now, work) {
                    Dealt::Due(node) => return self.hand_out(node),
                    // SAFETY: as above.
                    Dealt::Later(node) => _ = unsafe { self.place(node) },
                    Dealt::Exhausted => return Next::Exhausted,
                }
            }
            if !self.open_next(now) {
                return Next::Nothing;
            }
        }
    }

    /// Files anew what has been moved later and would have the next wake-up find nothing due, like the one that calls this when
    /// [`Self::next_due`] has answered [`Next::Nothing`]. False: no work was left, and there is more.
    #[must_use]
    pub(crate) fn look_ahead(&mut self, work: &mut usize) -> bool {
        // Who wakes up soon anyway need not look; a crowd is worth a wake-up, and dealt step by step.
        while self.rings.short.is_empty() && self.first_fine().is_none() {
            let Some(window) = self.next_window() else { break };
            let slot = LongRing::<X>::index(window);
            if !self.rings.long.has_later(slot) || self.rings.long.count(slot) > CROWDED {
                break;
            }
            if *work == 0 {
                return false;
            }
            *work = work.saturating_sub(self.rings.long.count(slot) as usize);
            self.refile(window);
        }
        true
    }

    /// Files anew what stands in a slot of the long ring.
    #[allow(unsafe_code)] // contract of the lists
    fn refile(&mut self, window: u64) {
        let mut chain = self.rings.long.take(LongRing::<X>::index(window));
        while let Some(node) = chain.pop(&Key::new()) {
            // SAFETY: alive, just unlinked, and still under the contract of its first `file`.
            let _ = unsafe { self.place(node) };
        }
    }

    /// Goes on dealing what is to be due soon, `work` nodes at most, while there is no end of what is due already: else the
    /// timers of the next window would pay for the crowd in this one.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn cascade_ahead(&mut self, now: u64, mut work: usize) {
        // A cursor that lags further behind leaves the ring no room for what comes.
        if now.saturating_sub(self.cursor << SLOT_SHIFT) > WINDOW_NS {
            return;
        }
        while work > 0 {
            match self.cascading.pop(&Key::new()) {
                Some(node) => {
                    work -= 1;
                    // SAFETY: alive, just unlinked, and still under the contract of its first `file`.
                    let _ = unsafe { self.place(node) };
                }
                None if self.open_next(now) => {}
                None => return,
            }
        }
    }

    /// Pops one node, for one unit of work. `chain` is not empty.
    #[inline]
    #[allow(unsafe_code)] // contract of the lists
    fn deal(chain: &mut TakenList<X>, now: u64, work: &mut usize) -> Dealt<X> {
        let key = &Key::new();
        if *work == 0 {
            return Dealt::Exhausted;
        }
        *work -= 1;
        let node = chain.pop(key).expect("not empty");
        // SAFETY: it was linked, so it is alive (contract of `file`).
        if unsafe { node.as_ref().fires_at(key) } <= now { Dealt::Due(node) } else { Dealt::Later(node) }
    }

    /// Counts out a node that has been popped.
    #[inline]
    #[allow(unsafe_code)] // contract of the lists
    fn hand_out(&mut self, node: NonNull<Node<X>>) -> Next<X> {
        // SAFETY: it was linked, so it is alive (contract of `file`).
        unsafe { node.as_ref().set_place(Place::IDLE, &Key::new()) };
        self.len -= 1;
        Next::Due(node)
    }

    /// Files a node that was dealt from a short slot, or from a slot of the fine rings.
    ///
    /// # Safety
    /// As [`Self::file`], but the node is counted already.
    #[allow(unsafe_code)] // contract of the lists
    unsafe fn put_back(&mut self, node: NonNull<Node<X>>) {
        let key = &Key::new();
        // SAFETY: alive by the contract.
        let shared = unsafe { node.as_ref() };
        let from = match shared.place(key).as_slot() {
            Some((ring, _)) if ring >= FINE => usize::from(ring - FINE),
            _ => FINE_LEVELS,
        };
        if from < FINE_LEVELS || self.finely {
            // SAFETY: the contract.
            if let Some(spot) = unsafe { self.rings.fine.file(node, shared.fires_at(key), from, key) } {
                shared.set_place(Place::slot(FINE + spot.level as u16, spot.index), key);
                self.fine = true;
                return;
            }
        }
        // SAFETY: the contract.
        let _ = unsafe { self.place(node) };
    }

    /// The slot of the fine rings with the earliest bound, and the bound.
    fn first_fine(&self) -> Option<(u64, Spot)> {
        if self.fine { self.rings.fine.first() } else { None }
    }

    /// Takes the chain of the next slot of the fine rings that holds, or may hold, something due at `now`. False when there is none.
    fn take_due_fine(&mut self, now: u64) -> bool {
        let first = self.first_fine();
        self.fine = first.is_some();
        match first {
            Some((bound, spot)) if bound <= now => {
                self.expiring = self.rings.fine.take(spot);
                true
            }
            _ => false,
        }
    }

    /// Takes the chain of a short slot. Only the slot where the cursor stands is dealt finely: no timer comes before it.
    fn take_short(&mut self, slot: u64) {
        let index = ShortRing::<X>::index(slot);
        self.finely = slot == self.cursor && self.rings.short.count(index) > FEW;
        self.expiring = self.rings.short.take(index);
    }

    fn take_beyond(&mut self) -> TakenList<X> {
        (self.overflow_earliest, self.beyond_loose) = (NEVER, false);
        self.overflow.take()
    }

    /// Takes the chain of the next short slot that holds, or may hold, something due at `now`. False when there is none; then
    /// the cursor stands at `now`.
    fn take_due_slot(&mut self, now: u64) -> bool {
        // The slot at the cursor is looked at even if `now` lies before it: what was due already when it was filed is there.
        let now_slot = (now >> SLOT_SHIFT).max(self.cursor);
        if let Some(slot) = self.rings.short.first_at_or_after(self.cursor).filter(|&slot| slot <= now_slot) {
            self.cursor = slot;
            if self.rings.short.earliest(ShortRing::<X>::index(slot)) <= now {
                self.take_short(slot);
                return true;
            }
        }
        self.cursor = now_slot;
        false
    }

    /// Takes the chain of the next coarse slot whose time to be dealt has come. False when there is none; then everything due
    /// has been handed out, and the threshold stands at `now`.
    fn open_next(&mut self, now: u64) -> bool {
        // Windows are opened in order, and not past one whose timers still wait in a coarser ring.
        let now_window = now / WINDOW_NS;
        let barrier = self.first_undealt_window();
        if let Some(window) = self.next_window().filter(|&window| window < barrier) {
            if window <= now_window || now >= self.window_opens_at(window) {
                self.open = window;
                self.cascading = self.rings.long.take(LongRing::<X>::index(window));
                return true;
            }
        }
        self.open = self.open.max(now_window.min(barrier - 1));

        if let Some(group) = self.next_group().filter(|&group| (group + 1) * GROUP - self.open <= LONG_SLOTS as u64) {
            self.cascading = self.rings.far.take(FarRing::<X>::index(group));
            return true;
        }
        let overflow = self.overflow_earliest / WINDOW_NS / GROUP;
        if !self.overflow.is_empty() && overflow.saturating_sub(self.open / GROUP) < FAR_MARGIN {
            self.cascading = self.take_beyond();
            return true;
        }
        false
    }

    /// The next window of the long ring that holds timers. (An open one has none there.)
    fn next_window(&self) -> Option<u64> {
        self.rings.long.first_at_or_after(self.open)
    }

    /// The next group of the far ring that holds timers.
    fn next_group(&self) -> Option<u64> {
        self.rings.far.first_at_or_after(self.open / GROUP)
    }

    /// The first window that may have timers in the far ring or beyond it.
    fn first_undealt_window(&self) -> u64 {
        let far = self.next_group().map_or(NEVER, |group| group * GROUP);
        // An empty list has no first window: that of `NEVER` is the last one of the clock, which may hold timers.
        let overflow = if self.overflow.is_empty() { NEVER } else { self.overflow_earliest / WINDOW_NS };
        far.min(overflow)
    }

    /// When to open a window: at its earliest due point, or before that if dealing it takes a while, but not before the
    /// window in front of it has begun (the short ring has room for two).
    fn window_opens_at(&self, window: u64) -> u64 {
        let index = LongRing::<X>::index(window);
        cascade_at(self.rings.long.earliest(index), self.rings.long.count(index)).max((window - 1) * WINDOW_NS)
    }

    /// The instant at which this queue wants to be swept next, [`NEVER`] when it holds nothing that comes due.
    ///
    /// At or before the earliest due point; before it only for slots that are crowded or whose earliest timer was unlinked or
    /// moved later. Meaningful when [`Self::next_due`] has answered [`Next::Nothing`].
    pub(crate) fn next_deadline(&self) -> u64 {
        let short = self
            .rings
            .short
            .first_at_or_after(self.cursor)
            .map_or(NEVER, |slot| self.rings.short.earliest(ShortRing::<X>::index(slot)));
        // The window after the next may want to be opened before the next one's first timer is due.
        let long = self
            .next_window()
            .map_or(NEVER, |window| self.window_opens_at(window).min(self.window_opens_at(window + 1)));
        let far = self.next_group().map_or(NEVER, |group| {
            let index = FarRing::<X>::index(group);
            cascade_at(self.rings.far.earliest(index), self.rings.far.count(index))
        });
        let fine = self.first_fine().map_or(NEVER, |(bound, _)| bound);
        let next = short.min(fine).min(long).min(far).min(self.overflow_earliest);
        if next < END { next } else { NEVER }
    }

    /// The earliest due point, exactly; [`NEVER`] when nothing is filed that comes due. Where the earliest bound may be too early,
    /// what it is the bound of is filed anew, one of `work` for each node. `None`: there is more to be filed anew; to be asked again,
    /// perhaps after others have had the lock.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn earliest_due(&mut self, work: &mut usize) -> Option<u64> {
        let key = &Key::new();
        loop {
            while !(self.expiring.is_empty() && self.cascading.is_empty()) {
                *work = work.checked_sub(1)?;
                // SAFETY (both): alive, just unlinked, and still under the contract of its first `file`.
                #[allow(clippy::undocumented_unsafe_blocks)]
                if let Some(node) = self.expiring.pop(key) {
                    unsafe { self.put_back(node) };
                } else if let Some(node) = self.cascading.pop(key) {
                    let _ = unsafe { self.place(node) };
                }
            }
            let (fine, slot) = (self.first_fine(), self.rings.short.first_at_or_after(self.cursor));
            let (window, group) = (self.next_window(), self.next_group());
            let short_at = slot.map_or(NEVER, |slot| self.rings.short.earliest(ShortRing::<X>::index(slot)));
            let long_at = window.map_or(NEVER, |window| self.rings.long.earliest(LongRing::<X>::index(window)));
            let far_at = group.map_or(NEVER, |group| self.rings.far.earliest(FarRing::<X>::index(group)));
            let fine_at = fine.map_or(NEVER, |(bound, _)| bound);
            let earliest = fine_at.min(short_at).min(long_at).min(far_at).min(self.overflow_earliest);
            if earliest >= END {
                return Some(NEVER);
            }
            match (fine, slot, window, group) {
                (Some((_, spot)), ..) if earliest == fine_at && self.rings.fine.is_loose(spot) => {
                    self.expiring = self.rings.fine.take(spot);
                }
                (_, Some(slot), ..)
                    if earliest == short_at && self.rings.short.is_loose(ShortRing::<X>::index(slot)) =>
                {
                    self.take_short(slot);
                }
                (.., Some(window), _)
                    if earliest == long_at && self.rings.long.is_loose(LongRing::<X>::index(window)) =>
                {
                    self.cascading = self.rings.long.take(LongRing::<X>::index(window));
                }
                (.., Some(group)) if earliest == far_at && self.rings.far.is_loose(FarRing::<X>::index(group)) => {
                    self.cascading = self.rings.far.take(FarRing::<X>::index(group));
                }
                _ if earliest == self.overflow_earliest && self.beyond_loose => self.cascading = self.take_beyond(),
                _ => return Some(earliest),
            }
        }
    }

    /// Unlinks and returns any node at all: for the end of a queue's life.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn pop_any(&mut self) -> Option<NonNull<Node<X>>> {
        let key = &Key::new();
        if self.expiring.is_empty() {
            if let Some((_, spot)) = self.first_fine() {
                self.expiring = self.rings.fine.take(spot);
            } else if let Some(slot) = self.rings.short.first_at_or_after(0) {
                self.expiring = self.rings.short.take(ShortRing::<X>::index(slot));
            }
        }
        if self.cascading.is_empty() {
            self.cascading = if let Some(window) = self.rings.long.first_at_or_after(0) {
                self.rings.long.take(LongRing::<X>::index(window))
            } else if let Some(group) = self.rings.far.first_at_or_after(0) {
                self.rings.far.take(FarRing::<X>::index(group))
            } else if !self.overflow.is_empty() {
                self.take_beyond()
            } else {
                self.endless.take()
            };
        }
        let node = self.expiring.pop(key).or_else(|| self.cascading.pop(key))?;
        // SAFETY: it was linked, so it is alive (contract of `file`).
        unsafe { node.as_ref().set_place(Place::IDLE, key) };
        self.len -= 1;
        Some(node)
    }
}

/// When to begin dealing a slot of `count` nodes, the earliest due at `earliest`.
fn cascade_at(earliest: u64, count: u64) -> u64 {
    if count <= CROWDED { earliest } else { earliest.saturating_sub(count * DEAL_NS) }
}

// A node that is handed from one thread to another goes with the lock.
#[allow(unsafe_code)]
// SAFETY: the queue holds pointers to nodes and reaches them under its own lock; `X` is shared and sent with them.
unsafe impl<X: Send + Sync> Send for TimerWheel<X> {}

#[cfg(any(test, timerqueue_check))]
#[path = "check.rs"]
mod check;
