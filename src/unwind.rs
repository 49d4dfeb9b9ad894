//! Panic isolation: running user code, and catching its panics.
//!
//! Ground rules. Callbacks, wakers, handlers, and destructors of values owned by callbacks run through here, never with a lock
//! held.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The limit on panics in a row by destructors of payloads. A single such panic is rare already.
const MOST_PAYLOADS: usize = 4;

/// Runs a destructor, a waker or a handler of the user. A panic ends here.
pub(crate) fn catch_all(action: impl FnOnce()) {
    let Err(mut payload) = catch_unwind(AssertUnwindSafe(action)) else { return };
    // A payload whose destructor panics yields a further payload. After the limit, the last payload is leaked.
    for _ in 0..MOST_PAYLOADS {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    std::mem::forget(payload);
}

/// Runs user code after which further user code must run in any case. `first` keeps the payload of the first panic, for
/// [`resume`]; further panics end here.
pub(crate) fn catch_first(first: &mut Option<Box<dyn Any + Send>>, action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        match first {
            Some(_) => catch_all(|| drop(payload)),
            None => *first = Some(payload),
        }
    }
}

/// Called after all user code has run: resumes the first panic, unless this thread panics already, since a second panic would
/// abort the process.
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

        /// A payload whose destructor panics with a further payload, so many times.
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
