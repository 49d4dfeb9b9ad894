//! Code of the user's is run with its panics kept in.
//!
//! Ground rules. Callbacks, wakers, handlers and destructors of what callbacks own run through here, never with a lock held.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Panics of payloads in a row that are followed up. One is a curiosity already.
const MOST_PAYLOADS: usize = 4;

/// Runs a destructor, a waker or a handler of the user's. A panic in it ends here.
pub(crate) fn catch_all(action: impl FnOnce()) {
    let Err(mut payload) = catch_unwind(AssertUnwindSafe(action)) else { return };
    // A payload whose own destructor panics gives another one. Where that goes on and on, the last is left alone.
    for _ in 0..MOST_PAYLOADS {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    std::mem::forget(payload);
}

/// Runs code of the user's among other such code that must run all the same. The first panic is kept, for [`resume`]; further ones
/// end here.
pub(crate) fn catch_first(first: &mut Option<Box<dyn Any + Send>>, action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        match first {
            Some(_) => catch_all(|| drop(payload)),
            None => *first = Some(payload),
        }
    }
}

/// All has been run: the first panic goes on, unless this thread panics already; a second one would end the process.
pub(crate) fn resume(first: Option<Box<dyn Any + Send>>) {
    match first {
        Some(payload) if !std::thread::panicking() => resume_unwind(payload),
        first => catch_all(|| drop(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_whose_payload_panics_when_dropped_is_contained() {
        struct Spiteful;
        impl Drop for Spiteful {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        catch_all(|| std::panic::panic_any(Spiteful));

        /// Whose destructor gives another one, so many times.
        struct Again(usize);
        impl Drop for Again {
            fn drop(&mut self) {
                if let Some(fewer) = self.0.checked_sub(1) {
                    std::panic::resume_unwind(Box::new(Again(fewer)));
                }
            }
        }
        catch_all(|| std::panic::panic_any(Again(MOST_PAYLOADS - 1)));
    }
}
