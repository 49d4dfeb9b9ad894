//! Where there is no `mmap`: the allocator's zeroes.

#![allow(unsafe_code)] // memory

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 4096).expect("a few hundred kilobytes")
}

pub(super) fn take(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: not empty.
    NonNull::new(unsafe { alloc_zeroed(layout(size)) })
}

/// # Safety
/// From [`take`] with this size; not used any more.
pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
    // SAFETY: the contract.
    unsafe { dealloc(at.as_ptr(), layout(size)) }
}
