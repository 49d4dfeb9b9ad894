//! Code of users, which may panic: panics become texts.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the user's: its result, or the text of its panic.
pub(crate) fn caught<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(panic_text)
}

/// Runs code of the user's whose panic would harm the scheduler: callbacks of tokens, wakers,
/// hooks, destructors.
pub(crate) fn quietly(code: impl FnOnce()) {
    let _ = caught(code);
}

/// The text of a panic. Its payload is a value of the user's, whose destructor may panic as well.
fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a value that is no text".to_owned(),
    };
    if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(panic))) {
        std::mem::forget(second);
    }
    format!("panic: {text}")
}
