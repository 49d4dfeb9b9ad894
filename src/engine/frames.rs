//! The code that a thread is inside of: callbacks, destructors, the driving of a manual clock.
//!
//! Ground rules. Frames lie on the stack of their thread, and only that thread sees them. They tell
//! a wait for the end of some code that the waiting thread is inside of that code.

#![allow(unsafe_code)] // frames on the stack of the thread

use std::cell::Cell;

/// Code that the current thread is inside of: the callback of a timer or its payload's destructor;
/// a handed-over callback of an engine; the callbacks of a source; the driving of a manual clock.
/// Frames nest where a callback drives a manual clock or runs another handed-over callback, or a
/// destructor disposes another timer.
struct Frame {
    /// The address of the timer's entry, of the engine, of the source, of the agenda, or, for a
    /// panic handler, the engine's plus 1; compared, never followed. All are alive meanwhile, so no
    /// two are equal.
    of: *const (),
    outer: *const Frame,
}

crate::sync::thread_local! {
    static INNERMOST: Cell<*const Frame> = const { Cell::new(std::ptr::null()) };
}

/// Runs `code` with the thread marked as inside of the code at an address.
#[inline(always)] // a call would pass what `code` has captured through memory, for each firing
pub(crate) fn inside<R>(of: *const (), code: impl FnOnce() -> R) -> R {
    /// Restores the outer frame, also when the code unwinds.
    struct Restore(*const Frame);
    impl Drop for Restore {
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
        }
    }
    let frame = Frame { of, outer: INNERMOST.with(Cell::get) };
    let _restore = Restore(frame.outer);
    INNERMOST.with(|innermost| innermost.set(&frame));
    code()
}

/// Visits the addresses of all the code that the current thread is inside of.
pub(super) fn each_frame(mut visit: impl FnMut(*const ())) {
    let mut at = INNERMOST.with(Cell::get);
    // SAFETY: frames live on this thread's stack, and `Restore` unlinks each frame before its end.
    while let Some(frame) = unsafe { at.as_ref() } {
        visit(frame.of);
        at = frame.outer;
    }
}

/// Whether the current thread is inside of the code at an address.
pub(crate) fn is_inside(of: *const ()) -> bool {
    times_inside(of) > 0
}

/// How many times the current thread is inside of the code at an address.
pub(super) fn times_inside(of: *const ()) -> usize {
    let mut times = 0;
    each_frame(|frame| times += usize::from(frame == of));
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::catch_all;

    #[test]
    fn frames_nest_and_are_left_by_a_panic() {
        let (one, other) = (&raw const *Box::new(1) as *const (), 8 as *const ());
        inside(one, || {
            catch_all(|| inside(other, || panic!("on purpose")));
            assert!(is_inside(one) && !is_inside(other));
            inside(other, || assert!(is_inside(one) && is_inside(other)));
            inside(one, || assert_eq!((times_inside(one), times_inside(other)), (2, 0)));
        });
        assert!(!is_inside(one));
    }
}
