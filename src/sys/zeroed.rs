//! Memory straight from the system: zeroes, and no page of it in memory before it is touched.
//!
//! An allocator would hand out zeroes as well, but it clears with its own hands what it has had before, and so touches all.

#![allow(unsafe_code)] // a pointer that is owned

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Types of which all zeroes are a value.
///
/// # Safety
/// They are, and the type is neither empty nor aligned to more than a page.
pub(crate) unsafe trait Zeroable {}

/// A box in pages of its own.
pub(crate) struct Pages<T>(NonNull<T>);

impl<T: Zeroable> Pages<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>());
        size_of::<T>()
    };

    /// All zeroes. Where there is no memory left, this ends the process as allocators do.
    pub(crate) fn zeroed() -> Self {
        let Some(at) = system::take(Self::SIZE) else { std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>()) };
        Self(at.cast())
    }
}

impl<T> Deref for Pages<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: owned, and valid since it was made.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        // SAFETY: taken with this size; nothing in it is to be dropped, and nobody uses it any more.
        unsafe { system::give_back(self.0.cast(), size_of::<T>()) }
    }
}

#[cfg(unix)]
mod system {
    use std::ptr::{NonNull, null_mut};

    pub(super) fn take(size: usize) -> Option<NonNull<u8>> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: asks for new pages; touches no others.
        let at = unsafe { libc::mmap(null_mut(), size, rights, kind, -1, 0) };
        if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
    }

    /// # Safety
    /// From [`take`] with this size; not used any more.
    pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
        // SAFETY: the contract.
        let result = unsafe { libc::munmap(at.as_ptr().cast(), size) };
        debug_assert_eq!(result, 0, "pages that were mapped");
    }
}

#[cfg(not(unix))]
#[path = "zeroed_elsewhere.rs"]
mod system;
