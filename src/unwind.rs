//! Panic isolation: running user code, and catching its panics.
//!
//! Ground rules. Callbacks, wakers, hooks, and destructors of values owned by them run through
//! here, never with a lock held. Each panic of theirs surfaces once: in the call of the program
//! that ran the code, or by [`Tell`] at the panic handler of a runtime, which counts it. Only the
//! panics of the panic handler itself are told to no code ([`catch_all`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The value that a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// The limit on panics in a row by destructors of payloads. A single such panic is rare already.
const MOST_PAYLOADS: usize = 4;

/// A runtime, or a way to it.
pub(crate) trait Tell {
    /// Counts a panic and gives it to the panic handler. Where the runtime has gone, or has not
    /// been started, the payload is dropped. Caller: holds no lock.
    fn tell(&self, payload: Payload);
}

/// Runs a destructor, a waker or a hook. `to` is told of a panic, which ends here.
#[inline]
pub(crate) fn contain(to: &impl Tell, action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        tell(to, payload);
    }
}

#[cold]
#[inline(never)] // one copy, off the usual path
fn tell(to: &impl Tell, payload: Payload) {
    to.tell(payload);
}

/// Drops values with destructors of the user's, as [`contain`] does.
#[inline]
pub(crate) fn contain_drop<T>(to: &impl Tell, values: impl IntoIterator<Item = T>) {
    #[inline(never)] // most often there is no value
    fn drop_one<T>(to: &impl Tell, value: T) {
        contain(to, || drop(value));
    }
    values.into_iter().for_each(|value| drop_one(to, value));
}

/// Runs a panic handler. A panic ends here, and no handler is told.
pub(crate) fn catch_all(action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        discard(payload);
    }
}

/// Drops a payload, whose destructor may panic in turn.
#[cold]
#[inline(never)]
pub(crate) fn discard(mut payload: Payload) {
    // A payload whose destructor panics yields a further payload. After the limit, the last payload
    // is leaked.
    for _ in 0..MOST_PAYLOADS {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    std::mem::forget(payload);
}

/// Runs user code after which further user code must run in any case. `first` keeps the payload of
/// the first panic, for [`resume`]; `to` is told of further panics.
pub(crate) fn catch_first(first: &mut Option<Payload>, to: &impl Tell, action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        match first {
            Some(_) => tell(to, payload),
            None => *first = Some(payload),
        }
    }
}

/// Called after all user code has run: resumes the first panic. If this thread panics already, a
/// second panic would abort the process, and `to` is told.
pub(crate) fn resume(first: Option<Payload>, to: &impl Tell) {
    match first {
        Some(payload) if std::thread::panicking() => tell(to, payload),
        Some(payload) => resume_unwind(payload),
        None => {}
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
