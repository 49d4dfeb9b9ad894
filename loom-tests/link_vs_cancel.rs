//! Models of linked sources: a child is linked, dropped or cancelled while its parent is cancelled
//! (S47).
//!
//! ```text
//!   links a child                        cancels the parent
//!                                          cancelled; no children
//!     inserts the child
//!     reads an old status, not cancelled: the child is never cancelled
//! ```

use super::*;

/// S47. A source linked while its parent is cancelled is cancelled.
///
/// Seen to fail with: `linked` that does not read the status of its parents again, or without its
/// fence; `cancel` without its fence.
#[test]
fn a_child_linked_during_a_cancel_is_cancelled() {
    for first in [true, false] {
        explore_all(move || {
            let parent = CancellationTokenSource::new();
            let token = parent.token();
            let elder = (!first).then(|| token.child_source());
            let canceller = cancel(&parent);
            let child = token.child_source();
            let traces = Traces::new();
            let registration = traces.register(&child.token());
            assert!(canceller.join().unwrap());
            assert_eq!(child.token().reason(), Some(CancelReason::Parent));
            assert!(elder.is_none_or(|elder| elder.is_cancelled()));
            assert_eq!(traces.called(), 1);
            drop(registration);
        });
    }
}

/// S47. The child's parent is cancelled by its own parent.
///
/// Seen to fail with: `cancel` that forgets the children of children; `mark_children` without its
/// fence; `linked` that does not read the status of its parents again.
#[test]
fn a_grandchild_linked_during_a_cancel_is_cancelled() {
    explore_all(|| {
        let grandparent = CancellationTokenSource::new();
        let parent = grandparent.token().child_source();
        let canceller = cancel(&grandparent);
        let child = parent.token().child_source();
        assert!(canceller.join().unwrap());
        assert!(parent.is_cancelled() && child.is_cancelled());
    });
}

/// S47. Two threads link children of a parent and meet at its lock: the parent spreads while it is
/// cancelled.
///
/// Seen to fail with: a canceller that skips the shards by core; a poll and `linked` that do not
/// read the status.
#[test]
fn children_linked_while_their_parent_spreads_are_cancelled() {
    explore_bounded(|| {
        let parent = CancellationTokenSource::new();
        let token = parent.token();
        let elder = token.child_source();
        let canceller = cancel(&parent);
        let linker = {
            let token = token.clone();
            thread::spawn(move || {
                token.spread(); // as after meeting a second thread
                token.child_source()
            })
        };
        let child = token.child_source();
        let other = linker.join().unwrap();
        assert!(canceller.join().unwrap());
        assert!([elder, child, other].iter().all(CancellationTokenSource::is_cancelled));
    });
}

/// S47. All sources linked to a source are cancelled before a callback of the source runs, also
/// sources that a second canceller has just marked or is about to mark.
///
/// ```text
///   cancels the child                    cancels the parent
///     marks the child
///                                          marks the parent; the child is marked already
///                                          calls back: the grandchild is not cancelled
///     marks the grandchild
/// ```
///
/// Seen to fail with: `cancel` that calls back before it marks the children of children;
/// `mark_children` that skips sources marked by a second canceller.
#[test]
fn all_linked_sources_are_cancelled_before_a_callback_runs() {
    for other_canceller in [false, true] {
        explore_bounded(move || {
            let parent = CancellationTokenSource::new();
            let child = parent.token().child_source();
            let grandchild = child.token().child_source();
            let (seen, token) = (Arc::new(Tally::new(0)), grandchild.token());
            let called = Arc::clone(&seen);
            let registration = parent.token().register(move || {
                assert!(token.is_cancelled());
                called.fetch_add(1, Relaxed);
            });
            let canceller = other_canceller.then(|| cancel(&child));
            let linker = {
                let token = child.token();
                thread::spawn(move || token.child_source())
            };
            assert!(parent.cancel());
            canceller.map(|canceller| canceller.join().unwrap());
            assert!(linker.join().unwrap().is_cancelled());
            assert_eq!(seen.load(Relaxed), 1);
            drop(registration);
        });
    }
}

/// S47. A source with two parents, both cancelled at once, is cancelled once.
///
/// Seen to fail with: `cancel` that calls back before it marks.
#[test]
fn two_parents_cancel_a_child_once() {
    explore_bounded(|| {
        let (one, other) = (CancellationTokenSource::new(), CancellationTokenSource::new());
        let child = CancellationTokenSource::linked([&one.token(), &other.token()]);
        let traces = Traces::new();
        let registration = traces.register(&child.token());
        let cancellers = [cancel(&one), cancel(&other)];
        for canceller in cancellers {
            assert!(canceller.join().unwrap());
        }
        assert_eq!((traces.called(), traces.dropped()), (1, 1));
        drop(registration);
    });
}

/// S47. A child dropped while its parent is cancelled is cancelled or not, is freed once, and
/// removes no newer child from its slot.
///
/// Seen to fail with: `linked` that does not read the status of its parents again.
#[test]
fn a_child_dropped_during_a_cancel_is_freed_once() {
    explore_bounded(|| {
        let parent = CancellationTokenSource::new();
        let token = parent.token();
        let (dying, traces) = (token.child_source(), Traces::new());
        traces.register(&dying.token()).detach();
        let canceller = cancel(&parent);
        let linker = {
            let token = token.clone();
            thread::spawn(move || token.child_source())
        };
        drop(dying);
        let young = linker.join().unwrap();
        assert!(canceller.join().unwrap());
        assert_eq!(traces.dropped(), 1);
        assert!(traces.called() <= 1);
        assert!(young.is_cancelled(), "in the slot of the dropped child, or in a new slot");
    });
}

/// S47. The indices of dropped children are reused, each by a single child.
///
/// Seen to fail with: `ParentLink::drop` that does not remove the child; `Page::insert` that does
/// not set the bit of its place.
#[test]
fn the_slot_of_a_child_is_reused_by_one() {
    explore_all(|| {
        let parent = CancellationTokenSource::new();
        let token = parent.token();
        let gone = [token.child_source(), token.child_source()];
        let other = {
            let token = token.clone();
            thread::spawn(move || [token.child_source(), token.child_source()])
        };
        drop(gone);
        let own = token.child_source();
        let others = other.join().unwrap();
        let last = token.child_source();
        assert!(parent.cancel());
        assert!([own, last].iter().chain(&others).all(CancellationTokenSource::is_cancelled));
    });
}

/// The last dropped handle frees the source, once, after all uses of the first handle.
///
/// Seen to fail with: a count of handles that is lowered in two steps.
#[test]
fn the_last_handle_frees_the_source() {
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let traces = Traces::new();
        traces.register(&source.token()).detach();
        let token = source.token();
        let other = thread::spawn(move || drop(token));
        drop(source);
        other.join().unwrap();
        assert_eq!((traces.called(), traces.dropped()), (0, 1));
    });
}

/// S47. A source without handles still links its children to its own parent, and is freed with the
/// last child.
///
/// ```text
///   drops the last handle                drops the last child
///     the shard has a child
///                                          no child is left, and the shard does not keep the source
///     the shard keeps the source: for ever
/// ```
///
/// Seen to fail with: a last handle that makes no shard keep the source; a shard that keeps the
/// source with no child left; a last child that leaves the source kept.
#[test]
fn a_source_without_handles_lives_as_long_as_its_children() {
    explore_all(|| {
        let grandparent = CancellationTokenSource::new();
        let parent = grandparent.token().child_source();
        let traces = Traces::new();
        traces.register(&parent.token()).detach();
        let child = parent.token().child_source();
        let canceller = cancel(&grandparent);
        drop(parent);
        assert!(canceller.join().unwrap());
        assert!(child.is_cancelled());
        assert_eq!(traces.called(), 1);
    });
    explore_all(|| {
        let grandparent = CancellationTokenSource::new();
        let parent = grandparent.token().child_source();
        let traces = Traces::new();
        traces.register(&parent.token()).detach();
        let child = parent.token().child_source();
        let other = thread::spawn(move || drop(child));
        drop(parent);
        other.join().unwrap();
        assert_eq!((traces.dropped(), traces.called()), (1, 0), "freed, and not before");
        assert!(grandparent.cancel());
    });
}
