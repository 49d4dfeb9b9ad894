//! The global allocator of the tests of memory: the system's, which counts by thread and in all.
#![allow(unsafe_code)] // a global allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Allocations so far, bytes alive as asked for, and bytes alive as malloc counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heap {
    pub(crate) allocations: u64,
    pub(crate) asked: i64,
    pub(crate) used: i64,
}

thread_local! {
    static MINE: Cell<Heap> = const { Cell::new(Heap { allocations: 0, asked: 0, used: 0 }) };
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicI64 = AtomicI64::new(0);

/// The header that malloc keeps in front of each block.
const MALLOC_HEADER: i64 = 8;

/// Blocks of at least this size are counted by themselves.
pub(crate) const LARGE: usize = 1 << 20;

static LARGE_ALIVE: AtomicUsize = AtomicUsize::new(0);
static LARGE_MADE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

impl Counting {
    fn note(block: *mut u8, asked: usize, sign: i64) {
        // SAFETY: `block` is a live block of malloc.
        let used = unsafe { libc::malloc_usable_size(block.cast()) } as i64 + MALLOC_HEADER;
        let allocations = u64::from(sign > 0);
        let mut mine = MINE.get();
        mine.allocations += allocations;
        mine.asked += sign * asked as i64;
        mine.used += sign * used;
        MINE.set(mine);
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
        ASKED.fetch_add(sign * asked as i64, Ordering::Relaxed);
        if asked >= LARGE {
            LARGE_MADE.fetch_add(allocations as usize, Ordering::SeqCst);
            LARGE_ALIVE.fetch_add(sign as usize, Ordering::SeqCst); // wraps: minus one
        }
    }
}

// SAFETY: passes all calls to the system's allocator, or refuses with a null pointer; `realloc` is
// the default, which allocates, copies and frees through these.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if REFUSED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            Self::note(block, layout.size(), 1);
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if REFUSED.get() {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's contract.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            Self::note(block, layout.size(), 1);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::note(block, layout.size(), -1);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What the calling thread has allocated and freed.
pub(crate) fn mine() -> Heap {
    MINE.get()
}

/// Allocations that this thread makes in `action`, and what it returns.
pub(crate) fn allocations<T>(action: impl FnOnce() -> T) -> (u64, T) {
    let before = mine().allocations;
    let value = action();
    (mine().allocations - before, value)
}

pub(crate) fn allocations_of_all() -> u64 {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Bytes alive in the whole process, as asked for.
pub(crate) fn in_use() -> i64 {
    ASKED.load(Ordering::SeqCst)
}

pub(crate) fn large_alive() -> usize {
    LARGE_ALIVE.load(Ordering::SeqCst)
}

pub(crate) fn large_made() -> usize {
    LARGE_MADE.load(Ordering::SeqCst)
}

/// From now on, the calling thread is refused each allocation.
pub(crate) fn refuse() {
    REFUSED.set(true);
}
