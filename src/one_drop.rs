//! A value that is dropped by a function of its own.
//!
//! Ground rules. The compiler writes the code that drops a value once for each unit of the crate in
//! which such a value may be dropped, also by an unwinding. For a large value in several units that
//! is kilobytes; in a [`OneDrop`] it is a call.

#![allow(unsafe_code)] // the drop of the content

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

#[derive(Default)]
pub(crate) struct OneDrop<T>(ManuallyDrop<T>);

impl<T> OneDrop<T> {
    pub(crate) fn new(content: T) -> Self {
        Self(ManuallyDrop::new(content))
    }
}

impl<T> Deref for OneDrop<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for OneDrop<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for OneDrop<T> {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: called once, and the content is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) }
    }
}
