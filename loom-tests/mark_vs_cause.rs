//! Models of the cause and the root reason of a cancellation, against threads that read them and
//! against a second canceller (S85).
//!
//! ```text
//!   cancels with a cause                 reads the token
//!     marks
//!                                          cancelled with a cause, but there is none
//!     stores the cause
//!
//!   cancels with a cause                 cancels with another cause
//!     stores its cause
//!                                          stores its cause
//!                                          marks: the first
//!     too late; its cause has gone
//! ```

use super::*;

fn cause(text: &str) -> Arc<dyn std::error::Error + Send + Sync> {
    Arc::new(std::io::Error::other(text))
}

fn says(token: &CancellationToken) -> Option<String> {
    token.cause().map(|cause| cause.to_string())
}

/// S85. A thread that sees the cancellation, also of a child, finds the cause of the canceller.
///
/// Seen to fail with: `try_mark` that stores the cause after the lock section of the mark, or that
/// stores it also when it is too late.
#[test]
fn a_thread_that_sees_a_cancellation_finds_its_cause() {
    for of_child in [false, true] {
        explore_bounded(move || {
            let source = CancellationTokenSource::new();
            let child = source.token().child_source();
            let token = if of_child { child.token() } else { source.token() };
            let canceller = {
                let source = source.clone();
                thread::spawn(move || source.cancel_with_cause(cause("other")))
            };
            let reader = {
                let token = token.clone();
                thread::spawn(move || token.is_cancelled().then(|| says(&token)))
            };
            let own = source.cancel_with_cause(cause("own"));
            assert_ne!(canceller.join().unwrap(), own);
            let want = Some(if own { "own" } else { "other" }.to_owned());
            assert!(reader.join().unwrap().is_none_or(|read| read == want));
            assert_eq!(says(&token), want);
        });
    }
}

/// S85. A source linked to a source that is cancelled by hand while its own parent times out has
/// the root of its parent, whichever thread marks it.
///
/// ```text
///   cancels the child by hand            cancels the parent, by a timeout
///     marks the child
///                                          the child is marked: marks the grandchild, as timed out
/// ```
///
/// Seen to fail with: `mark_children` that passes on the mark of the canceller.
#[test]
fn a_source_has_the_root_of_its_parent() {
    explore_bounded(|| {
        let parent = CancellationTokenSource::new();
        let child = parent.token().child_source();
        let grandchild = child.token().child_source();
        let canceller = {
            let child = child.clone();
            thread::spawn(move || child.cancel_with_cause(cause("by hand")))
        };
        parent.cancel_after(Duration::ZERO);
        let by_hand = canceller.join().unwrap();
        let root = if by_hand { CancelReason::Cancelled } else { CancelReason::Timeout };
        for source in [&child, &grandchild] {
            assert_eq!(source.token().root_reason(), Some(root));
            assert_eq!(source.token().cause().is_some(), by_hand);
        }
    });
}
