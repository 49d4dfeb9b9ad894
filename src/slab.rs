//! A slab: values addressed by index; freed indices are reused and carry no generation.
//!
//! Ground rules. Pure. A caller with a possibly stale index must itself know whether the index
//! still names the caller's value. Values lie in pages of [`PAGE`] places that never move. A page
//! whose last value is removed frees its memory, except for a spare kept for the next page. So
//! memory follows the number of values, not the peak, and no operation works on more than a page;
//! but the table of pages, less than a byte for each value, is copied when it doubles. A peak
//! leaves the table behind. A caller that holds a lock takes the table out by [`Slab::leftover`],
//! and drops it after releasing the lock.
//!
//! Indices have 32 bits. More than some two billion values, half of the indices, abort the process,
//! as too many references of an `Arc` do.

use std::mem;

/// The number of places of a page, and the most values that a step of [`Slab::scan`] visits.
#[cfg(not(all(test, timerqueue_loom)))]
pub(crate) const PAGE: usize = 64;
/// In a model each value has a page of its own.
#[cfg(all(test, timerqueue_loom))]
pub(crate) const PAGE: usize = 1;
/// The bits of a page without a free place.
const FULL: u64 = u64::MAX >> (u64::BITS as usize - PAGE);

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// The limit on pages, without the first: some two billion values, which would take some hundred
/// gigabytes.
const MOST_PAGES: usize = 1 << 25;

pub(crate) struct Slab<T> {
    /// `None` until the first value, so that the drop of an unused slab costs a look.
    memory: Option<Memory<T>>,
}

struct Memory<T> {
    /// Indices from 0. Never frees its memory: most slabs have no further page.
    first: Page<T>,
    /// Indices from [`PAGE`].
    more: Option<Box<More<T>>>,
}

pub(crate) struct More<T> {
    /// Pages, each with the number of the next page that has a free place.
    pages: Vec<(Page<T>, u32)>,
    /// The first page with a free place; [`NONE`] if all are full.
    room: u32,
    taken: usize,
    /// The memory of a page that became empty, for the next page that needs memory.
    spare: Vec<Option<T>>,
}

struct Page<T> {
    places: Vec<Option<T>>,
    /// A bit for each place with a value.
    taken: u64,
}

impl<T> Page<T> {
    const fn new() -> Self {
        Self { places: Vec::new(), taken: 0 }
    }

    fn is_full(&self) -> bool {
        self.taken == FULL
    }

    /// Puts the value into the first free place, and returns this place. Caller: the page is not
    /// full.
    #[inline]
    fn insert(&mut self, value: T) -> usize {
        let at = self.taken.trailing_ones() as usize;
        debug_assert!(at < PAGE);
        self.taken |= 1 << at;
        match self.places.get_mut(at) {
            Some(place) => *place = Some(value),
            None => self.places.push(Some(value)),
        }
        at
    }

    #[inline]
    fn remove(&mut self, at: usize) -> Option<T> {
        let value = self.places.get_mut(at)?.take()?;
        self.taken &= !(1 << at);
        Some(value)
    }
}

impl<T> More<T> {
    fn insert(&mut self, value: T) -> usize {
        if self.room == NONE {
            self.room = page_number(self.pages.len());
            self.pages.push((Page::new(), NONE));
        }
        let at = self.room as usize;
        let (page, next) = &mut self.pages[at];
        if page.places.capacity() == 0 {
            mem::swap(&mut page.places, &mut self.spare);
            page.places.reserve_exact(PAGE);
        }
        let place = page.insert(value);
        if page.is_full() {
            self.room = *next;
        }
        self.taken += 1;
        at * PAGE + place
    }

    fn remove(&mut self, index: usize) -> Option<T> {
        let at = index / PAGE;
        let (page, next) = self.pages.get_mut(at)?;
        let was_full = page.is_full();
        let value = page.remove(index % PAGE)?;
        self.taken -= 1;
        if was_full {
            *next = mem::replace(&mut self.room, at as u32);
        }
        if page.taken == 0 {
            let mut memory = mem::take(&mut page.places);
            if self.spare.capacity() == 0 {
                memory.clear();
                self.spare = memory;
            }
        }
        Some(value)
    }
}

/// The number of the page after `pages` pages.
fn page_number(pages: usize) -> u32 {
    if pages >= MOST_PAGES {
        std::process::abort();
    }
    pages as u32
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { memory: None }
    }

    /// The number of values.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let len = |Memory { first, more }: &Memory<T>| {
            first.taken.count_ones() as usize + more.as_ref().map_or(0, |more| more.taken)
        };
        self.memory.as_ref().map_or(0, len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.memory
            .as_ref()
            .is_none_or(|Memory { first, more }| first.taken == 0 && more.as_ref().is_none_or(|more| more.taken == 0))
    }

    /// Returns the index of the value.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let Memory { first, more } = self.memory.get_or_insert_with(|| Memory { first: Page::new(), more: None });
        if first.is_full() {
            let new = || Box::new(More { pages: Vec::new(), room: NONE, taken: 0, spare: Vec::new() });
            return (PAGE + more.get_or_insert_with(new).insert(value)) as u32;
        }
        first.insert(value) as u32
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (Memory { first, more }, index) = (self.memory.as_mut()?, index as usize);
        let place = match index.checked_sub(PAGE) {
            None => first.places.get_mut(index),
            Some(index) => more.as_mut()?.pages.get_mut(index / PAGE)?.0.places.get_mut(index % PAGE),
        };
        place?.as_mut()
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let (Memory { first, more }, index) = (self.memory.as_mut()?, index as usize);
        match index.checked_sub(PAGE) {
            None => first.remove(index),
            Some(index) => more.as_mut()?.remove(index),
        }
    }

    /// Removes a value, and takes out what a caller with a lock drops after releasing it: see
    /// [`Self::leftover`].
    #[inline]
    pub(crate) fn take_out(&mut self, index: u32) -> (Option<T>, Option<Box<More<T>>>) {
        (self.remove(index), self.leftover())
    }

    /// Takes out the table left by a peak, once only the first page has values, and at most half
    /// full. (The condition on the first page avoids freeing and allocating the table in turn at
    /// the edge of a page.)
    #[inline]
    pub(crate) fn leftover(&mut self) -> Option<Box<More<T>>> {
        let Memory { first, more } = self.memory.as_mut()?;
        more.take_if(|more| more.taken == 0 && first.taken.count_ones() as usize <= PAGE / 2)
    }

    /// Calls `see` with the values from index `from` on, at most [`PAGE`] values. Returns the index
    /// at which to continue, if any.
    ///
    /// Values keep their index, so the caller may insert and remove values between two steps.
    pub(crate) fn scan(&mut self, from: usize, see: impl FnMut(&mut T)) -> Option<usize> {
        let mut at = from / PAGE;
        let Memory { first, more } = self.memory.as_mut()?;
        let more = more.as_mut().map_or(&mut [][..], |more| &mut more.pages);
        let pages = more.len();
        let page = match at.checked_sub(1) {
            None => first,
            Some(skipped) => {
                // Skips pages without values, at most `PAGE` in a step.
                let empty = more.iter().skip(skipped).take(PAGE).take_while(|(page, _)| page.taken == 0).count();
                at += empty;
                &mut more.get_mut(skipped + empty)?.0
            }
        };
        page.places.iter_mut().flatten().for_each(see);
        (at < pages).then_some((at + 1) * PAGE)
    }

    /// Takes the values out, and calls `see` with each, by index.
    pub(crate) fn take_each(self, see: &mut dyn FnMut(T)) {
        let Some(Memory { first, more }) = self.memory else { return };
        let mut see_page = |page: Page<T>| page.places.into_iter().flatten().for_each(&mut *see);
        see_page(first);
        if let Some(more) = more {
            more.pages.into_iter().for_each(|(page, _)| see_page(page));
        }
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(slab: &mut Slab<u32>) -> Vec<u32> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let before = all.len();
            next = slab.scan(from, |value| all.push(*value));
            assert!(all.len() <= before + PAGE, "a bounded step");
        }
        all
    }

    fn values<T>(slab: Slab<T>) -> Vec<T> {
        let mut values = Vec::new();
        slab.take_each(&mut |value| values.push(value));
        values
    }

    /// The number of places for which the slab has memory.
    fn capacity<T>(slab: &Slab<T>) -> usize {
        let Some(Memory { first, more }) = &slab.memory else { return 0 };
        let more = more.as_ref().map_or(0, |more| {
            more.spare.capacity() + more.pages.iter().map(|(page, _)| page.places.capacity()).sum::<usize>()
        });
        first.places.capacity() + more
    }

    #[test]
    fn places_are_used_again_and_free_ones_are_empty() {
        let mut slab = Slab::new();
        assert_eq!(["a", "b", "c"].map(|name| slab.insert(name)), [0, 1, 2]);
        assert_eq!(
            (slab.remove(1), slab.remove(0), slab.remove(1), slab.remove(9), slab.remove(99)),
            (Some("b"), Some("a"), None, None, None)
        );
        assert!(slab.get_mut(0).is_none() && slab.get_mut(NONE).is_none());
        assert_eq!(slab.get_mut(2), Some(&mut "c"));
        assert_eq!(["d", "e", "f"].map(|name| slab.insert(name)), [0, 1, 3], "the first free place");
        *slab.get_mut(3).expect("taken") = "g";
        let mut seen = Vec::new();
        assert_eq!(slab.scan(0, |name| seen.push(*name)), None);
        assert_eq!(seen, ["d", "e", "c", "g"]);
        assert_eq!((slab.remove(1), slab.len()), (Some("e"), 3));
        assert_eq!(values(slab), ["d", "c", "g"]);
        let mut slab = Slab::new();
        (0..1_000).for_each(|i| _ = slab.insert(i));
        assert!(values(slab).into_iter().eq(0..1_000), "of all pages");
    }

    #[test]
    fn memory_follows_what_stands_in_it_and_not_the_peak() {
        const MANY: u32 = 10_000;
        for keep in [None, Some(0), Some(MANY / 2), Some(MANY - 1)] {
            for backwards in [false, true] {
                let mut slab = Slab::new();
                (0..MANY).for_each(|i| assert_eq!(slab.insert(i), i));
                assert_eq!(all(&mut slab).len(), MANY as usize);
                for i in 0..MANY {
                    let i = if backwards { MANY - 1 - i } else { i };
                    if Some(i) != keep {
                        assert_eq!(slab.remove(i), Some(i));
                    }
                }
                assert!(capacity(&slab) <= 3 * PAGE, "{} places are left", capacity(&slab));
                assert_eq!(all(&mut slab), Vec::from_iter(keep));
                // The slab is usable as before.
                (0..300).for_each(|i| assert!(slab.insert(MANY + i) < MANY));
                assert_eq!(all(&mut slab).len(), 300 + usize::from(keep.is_some()));
                assert_eq!(slab.len(), 300 + usize::from(keep.is_some()));
                let rest: Vec<u32> = (0..MANY).filter_map(|i| slab.remove(i)).collect();
                assert_eq!(rest.len(), 300 + usize::from(keep.is_some()));
                assert!(slab.leftover().is_some() && capacity(&slab) == PAGE, "nothing is left of the peak");
            }
        }
    }

    #[test]
    fn values_are_reached_in_each_page_and_the_last_one_empties_the_slab() {
        let (page, many) = (PAGE as u32, 3 * PAGE as u32);
        let mut slab = Slab::new();
        assert!(slab.is_empty());
        (0..many).for_each(|i| _ = slab.insert(i));
        (0..many).for_each(|i| assert_eq!(slab.get_mut(i).copied(), Some(i)));
        assert!(slab.get_mut(many).is_none() && !slab.is_empty());
        (page..many).for_each(|i| assert_eq!(slab.remove(i), Some(i)));
        assert!(!slab.is_empty(), "the first page has values");
        let over = slab.insert(0);
        assert!(over >= page);
        (0..page).for_each(|i| assert_eq!(slab.remove(i), Some(i)));
        assert!(!slab.is_empty(), "a further page has one");
        assert_eq!((slab.remove(over), slab.is_empty()), (Some(0), true));
        (0..=page / 2).for_each(|i| assert_eq!(slab.insert(i), i));
        assert!(slab.leftover().is_none(), "the first page is more than half full");
        assert!(slab.remove(0).is_some() && slab.leftover().is_some());
    }

    #[test]
    fn at_the_edge_of_a_page_no_memory_comes_and_goes() {
        for full in [PAGE as u32, 2 * PAGE as u32] {
            let mut slab = Slab::new();
            (0..full).for_each(|i| assert_eq!(slab.insert(i), i));
            let over = slab.insert(full);
            slab.remove(over);
            let before = capacity(&slab);
            for _ in 0..10 {
                let over = [slab.insert(0), slab.insert(0)];
                assert_eq!(capacity(&slab), before);
                over.into_iter().for_each(|index| assert_eq!(slab.remove(index), Some(0)));
                assert!(slab.leftover().is_none());
                assert_eq!(capacity(&slab), before);
            }
        }
    }

    #[test]
    fn a_scan_finds_what_stays_whatever_comes_and_goes_meanwhile() {
        let mut slab = Slab::new();
        let mut random = 47_u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % n
        };
        let mut placed: Vec<u32> = (0..5_000).map(|i| slab.insert(i)).collect();
        for _round in 0..20 {
            let kept: Vec<u32> = (0..5_000).filter(|i| placed[*i as usize] != NONE).collect();
            let (mut seen, mut next) = (Vec::new(), Some(0));
            let mut gone = Vec::new();
            while let Some(from) = next {
                next = slab.scan(from, |value| seen.push(*value));
                for _ in 0..4 {
                    let i = below(5_000);
                    if placed[i] != NONE {
                        assert_eq!(slab.remove(placed[i]), Some(i as u32));
                        placed[i] = NONE;
                        gone.push(i as u32);
                    }
                    slab.insert(NONE);
                }
            }
            let missed = kept.iter().filter(|i| !seen.contains(i) && !gone.contains(i)).count();
            assert_eq!(missed, 0);
        }
    }

    #[cfg(not(timerqueue_loom))]
    #[test]
    fn more_values_than_there_are_indices_end_the_process() {
        assert_eq!(page_number(MOST_PAGES - 1), (1 << 25) - 1);
        assert!((MOST_PAGES + 1) * PAGE < NONE as usize, "far below the wrap");
        let test = "slab::tests::more_values_than_there_are_indices_end_the_process";
        crate::sys::assert_aborts(test, || _ = page_number(MOST_PAGES));
    }
}
