//! Sources linked to others (S47).

use super::*;

#[test]
fn s47_cancelled_when_any_parent_is_and_not_the_other_way_round() {
    for which in 0..4 {
        let parents: Vec<CancellationTokenSource> = (0..4).map(|_| CancellationTokenSource::new()).collect();
        let tokens: Vec<CancellationToken> = parents.iter().map(CancellationTokenSource::token).collect();
        let linked = CancellationTokenSource::linked(&tokens);
        let alone = CancellationTokenSource::linked(&tokens);
        let called = Count::new();
        linked.token().register(counting(&called)).detach();
        alone.cancel();
        assert!(parents.iter().all(|parent| !parent.is_cancelled()) && !linked.is_cancelled(), "one-way");
        parents[which].cancel();
        assert_eq!((reason(&linked), called.get()), (Some(CancelReason::Parent), 1));
        assert_eq!(parents.iter().filter(|parent| parent.cancel()).count(), 3);
        assert_eq!(called.get(), 1);
        assert_eq!(reason(&alone), Some(CancelReason::Cancelled), "the first reason stays");
    }
}

#[test]
fn s47_cancelled_from_the_start_if_a_parent_already_is() {
    let (living, dead) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    dead.cancel();
    let linked = CancellationTokenSource::linked([&living.token(), &dead.token()]);
    assert_eq!(reason(&linked), Some(CancelReason::Parent));
    assert!(!living.is_cancelled() && !linked.cancel());
    assert!(dead.token().child_source().token().child_source().is_cancelled());
}

#[test]
fn s47_linked_to_nothing_to_none_and_twice_to_the_same() {
    let nothing = CancellationTokenSource::linked([]);
    let none = CancellationTokenSource::linked([&CancellationToken::none(), &CancellationToken::none()]);
    assert!(!nothing.is_cancelled() && !none.is_cancelled());
    assert!(nothing.cancel() && none.cancel());
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    let twice = CancellationTokenSource::linked([&token, &token, &CancellationToken::none()]);
    let called = Count::new();
    twice.token().register(counting(&called)).detach();
    parent.cancel();
    assert_eq!(called.get(), 1);
    drop(twice);
    // A diamond: each source is cancelled once.
    let top = CancellationTokenSource::new();
    let (left, right) = (top.token().child_source(), top.token().child_source());
    let bottom = CancellationTokenSource::linked([&left.token(), &right.token()]);
    let called = Count::new();
    bottom.token().register(counting(&called)).detach();
    top.cancel();
    assert_eq!((called.get(), reason(&bottom)), (1, Some(CancelReason::Parent)));
}

#[test]
fn s47_a_parent_tells_its_own_callbacks_first() {
    let parent = CancellationTokenSource::new();
    let child = parent.token().child_source();
    let grandchild = child.token().child_source();
    let calls = Journal::new();
    for (who, source) in [("grandchild", &grandchild), ("child", &child), ("parent", &parent)] {
        let calls = calls.clone();
        source.token().register(move || calls.push(who)).detach();
    }
    parent.cancel();
    assert_eq!(calls.take(), ["parent", "child", "grandchild"]);
}

#[test]
fn s47_all_linked_sources_are_cancelled_before_any_callback_runs() {
    within(PATIENCE, "a callback that blocks", || {
        let parent = CancellationTokenSource::new();
        let child = parent.token().child_source();
        let other = parent.token().child_source();
        let bottom = CancellationTokenSource::linked([&child.token(), &other.token()]);
        let deep = bottom.token().child_source();
        let calls = Journal::new();
        let (begun, gate) = (Gate::new(), Gate::new());
        parent
            .token()
            .register({
                let (begun, gate) = (begun.clone(), gate.clone());
                move || {
                    begun.open();
                    gate.wait();
                }
            })
            .detach();
        for source in [&child, &bottom, &deep] {
            let (calls, token) = (calls.clone(), deep.token());
            source.token().register(move || calls.push(token.is_cancelled())).detach();
        }
        let canceller = thread::spawn({
            let parent = parent.clone();
            move || parent.cancel()
        });
        begun.wait();
        for source in [&parent, &child, &other, &bottom, &deep] {
            assert!(source.is_cancelled(), "while a callback of the parent blocks");
            assert!(source.token().child_source().is_cancelled(), "and what is linked now is born so");
        }
        assert!(calls.take().is_empty() && !deep.cancel());
        let at_once = Count::new();
        deep.token().register(counting(&at_once)).detach();
        assert_eq!(at_once.get(), 1);
        gate.open();
        assert!(canceller.join().expect("no panic"));
        assert_eq!(calls.take(), [true; 3]);
    });
}

#[test]
fn s47_dropping_a_linked_source_takes_it_out_of_its_parents_at_once() {
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    for _ in 0..100 {
        let child = token.child_source();
        let (canary, fate) = Canary::new();
        child.token().register(move || canary.sing()).detach();
        assert!(!fate.is_dropped());
        drop(child);
        assert!(fate.is_dropped(), "nothing keeps it");
    }
    let child = token.child_source();
    drop((parent, token));
    assert!(child.cancel(), "and a child does without its parents");
}

#[test]
fn s47_a_cancel_passes_through_a_dropped_source() {
    let (clock, runtime) = manual();
    // The parent is cancelled through a middle source without a handle.
    let parent = CancellationTokenSource::on(&runtime);
    let grandchild = parent.token().child_source().token().child_source();
    assert!(!grandchild.is_cancelled());
    parent.cancel();
    assert_eq!(reason(&grandchild), Some(CancelReason::Parent));
    // The middle source has a timed cancel of its own.
    let parent = CancellationTokenSource::on(&runtime);
    let middle = parent.token().child_source();
    middle.try_cancel_after(secs(1)).expect("the runtime of its parent");
    let grandchild = middle.token().child_source();
    drop(middle);
    assert_eq!(runtime.metrics().active, 1, "its child waits for it");
    clock.advance(secs(1));
    assert_eq!((reason(&grandchild), parent.is_cancelled()), (Some(CancelReason::Parent), false));
    // The last child frees the middle source and its timer.
    let middle = parent.token().child_source();
    middle.try_cancel_after(secs(1)).expect("the runtime of its parent");
    let (canary, fate) = Canary::new();
    middle.token().register(move || canary.sing()).detach();
    let children = [middle.token().child_source(), middle.token().child_source()];
    drop(middle);
    let [first, second] = children;
    drop(first);
    assert_eq!((runtime.metrics().active, fate.is_dropped()), (1, false));
    drop(second);
    assert_eq!((runtime.metrics().active, fate.is_dropped()), (0, true));
}

#[test]
fn s47_a_destructor_that_panics_at_the_end_of_a_parent_keeps_no_other_alive() {
    // A chain of sources with a callback each. Only the last source has a handle, so the chain ends
    // with this handle.
    fn chain<const N: usize>(callbacks: [Box<dyn FnOnce() + Send>; N]) -> CancellationTokenSource {
        let mut last = CancellationTokenSource::new();
        for callback in callbacks {
            last.token().register(callback).detach();
            last = CancellationTokenSource::linked([&last.token()]);
        }
        last
    }
    fn holds<T: Send + 'static>(owned: T) -> Box<dyn FnOnce() + Send> {
        Box::new(move || drop(owned))
    }

    let (canary, fate) = Canary::new();
    let bomb = || holds(OnDrop(|| panic!("dropped")));
    let last = chain([holds(canary), bomb(), bomb()]);
    assert!(!fate.is_dropped());
    drop(last);
    assert!(fate.is_dropped(), "the others are let go of all the same");

    let (canary, fate) = Canary::new();
    drop(chain([holds(canary)]));
    assert!(fate.is_dropped(), "and so are later ones on this thread");
}

#[test]
fn s47_the_timed_cancel_of_a_child_goes_with_the_cancel_of_its_parent() {
    let (clock, runtime) = manual();
    let parent = CancellationTokenSource::on(&runtime);
    let child = parent.token().child_source();
    child.try_cancel_after(secs(10)).expect("the runtime of its parent");
    assert_eq!(runtime.metrics().active, 1);
    parent.cancel();
    assert_eq!((runtime.metrics().active, reason(&child)), (0, Some(CancelReason::Parent)));
    child.try_cancel_after(secs(10)).expect("does nothing");
    assert!(!child.try_reset());
    assert_eq!((runtime.metrics().active, clock.advance(secs(60))), (0, 0));
}

#[test]
fn s47_a_chain_of_a_hundred_thousand_is_cancelled_to_its_end() {
    const LONG: usize = 100_000;
    let root = CancellationTokenSource::new();
    let mut chain = vec![root.token().child_source()];
    while chain.len() < LONG {
        chain.push(chain[chain.len() - 1].token().child_source());
    }
    let called = Count::new();
    chain[LONG - 1].token().register(counting(&called)).detach();
    assert!(root.cancel());
    assert!(chain.iter().all(CancellationTokenSource::is_cancelled));
    assert_eq!(called.get(), 1);
    // Drops the last source first, so no source is kept alive by its child.
    while let Some(last) = chain.pop() {
        drop(last);
    }
}

#[test]
fn s47_a_hundred_thousand_children() {
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    let mut children: Vec<CancellationTokenSource> = (0..100_000).map(|_| token.child_source()).collect();
    let mut random = Random(47);
    for _ in 0..50_000 {
        let at = random.below(children.len() as u64) as usize;
        drop(children.swap_remove(at));
    }
    children.extend((0..1_000).map(|_| token.child_source()));
    parent.cancel();
    assert!(children.iter().all(|child| reason(child) == Some(CancelReason::Parent)));
}

#[test]
fn s47_linking_against_cancelling_misses_no_child() {
    for round in 0..2_000 {
        let (parent, other) = (CancellationTokenSource::new(), CancellationTokenSource::new());
        let tokens = [other.token(), parent.token()];
        let called = Count::new();
        let (_, children) = race(
            Duration::from_nanos(round),
            || parent.cancel(),
            || {
                let make = |_| {
                    let child = CancellationTokenSource::linked(&tokens);
                    child.token().register(counting(&called)).detach();
                    (child.token().child_source(), child)
                };
                (0..3).map(make).collect::<Vec<_>>()
            },
        );
        assert!(children.iter().all(|(grandchild, child)| child.is_cancelled() && grandchild.is_cancelled()));
        assert_eq!(called.get(), 3);
    }
}

#[test]
fn s47_dropping_against_cancelling_runs_each_callback_once_or_drops_it() {
    for round in 0..1_500 {
        let parent = CancellationTokenSource::new();
        let (called, dropped) = (Count::new(), Count::new());
        let child = |parent: &CancellationToken| {
            let child = parent.child_source();
            let (called, dropped) = (called.clone(), dropped.clone());
            let owned = OnDrop(counting(&dropped));
            child
                .token()
                .register(move || {
                    owned.hold();
                    called.bump();
                })
                .detach();
            child
        };
        let middle = child(&parent.token());
        let children = [child(&middle.token()), child(&middle.token()), child(&parent.token())];
        race(
            Duration::from_nanos(round),
            || parent.cancel(),
            || {
                drop(middle);
                drop(children);
            },
        );
        assert_eq!(dropped.get(), 4, "nothing leaks, nothing is dropped twice");
        assert!(called.get() <= 4);
    }
}

#[test]
fn s47_children_made_and_dropped_on_all_sides_while_the_parent_is_cancelled() {
    within(PATIENCE, "children against a cancel", || {
        for round in 0..40 {
            let parent = CancellationTokenSource::new();
            let token = parent.token();
            thread::scope(|scope| {
                for who in 0..3 {
                    let token = &token;
                    scope.spawn(move || {
                        let mut random = Random(round * 3 + who);
                        let mut kept: Vec<CancellationTokenSource> = Vec::new();
                        let mut after = 0;
                        while after < 10 {
                            after += usize::from(token.is_cancelled());
                            match random.below(3) {
                                0 if !kept.is_empty() => {
                                    let at = random.below(kept.len() as u64) as usize;
                                    kept.swap_remove(at);
                                }
                                1 if !kept.is_empty() => {
                                    // The middle is dropped at once half of the time.
                                    let at = random.below(kept.len() as u64) as usize;
                                    kept[at] = kept[at].token().child_source();
                                }
                                _ => kept.push(token.child_source()),
                            }
                        }
                        eventually("all are cancelled", || kept.iter().all(CancellationTokenSource::is_cancelled));
                    });
                }
                let until = Instant::now() + us(200 + round * 10);
                while Instant::now() < until {
                    thread::yield_now();
                }
                parent.cancel();
            });
        }
    });
}

#[test]
fn s47_a_chain_of_a_hundred_thousand_is_dropped_from_any_end() {
    within(PATIENCE, "the end of a long chain", || {
        let top = CancellationTokenSource::new();
        let mut last = top.clone();
        for _ in 0..100_000 {
            last = last.token().child_source(); // the previous source lives on for its child
        }
        drop(top);
        drop(last); // now no source of the chain is needed
    });
}

/// Drops its content when its thread ends.
#[derive(Default)]
struct AtThreadEnd(std::cell::RefCell<Vec<CancellationTokenSource>>);

thread_local! {
    static ENDS_FIRST: AtThreadEnd = AtThreadEnd::default();
    static ENDS_THEN: AtThreadEnd = AtThreadEnd::default();
    static ENDS_LAST: AtThreadEnd = AtThreadEnd::default();
}

#[test]
fn s47_a_long_chain_is_dropped_by_destructors_of_thread_locals() {
    let long = || {
        let mut last = CancellationTokenSource::new();
        for _ in 0..100_000 {
            last = last.token().child_source();
        }
        last
    };
    // The system decides which thread ends first.
    let thread = thread::spawn(move || {
        for local in [&ENDS_LAST, &ENDS_THEN, &ENDS_FIRST] {
            local.with(|ends| ends.0.borrow_mut().push(long()));
        }
    });
    thread.join().expect("its destructors have run");
}

#[test]
fn s47_a_parent_has_ended_when_the_drop_of_its_last_child_returns() {
    // A callback of `outer`'s parent owns a child of a second parent, and sees the end of this
    // second parent, all on this thread.
    let (canary, fate) = Canary::new();
    let other = CancellationTokenSource::new();
    other.token().register(move || canary.sing()).detach();
    let inner = other.token().child_source();
    drop(other);
    let seen = Journal::new();
    let owned = OnDrop({
        let seen = seen.clone();
        let mut inner = Some(inner);
        move || {
            drop(inner.take());
            seen.push(fate.is_dropped());
        }
    });
    let parent = CancellationTokenSource::new();
    parent.token().register(move || owned.hold()).detach();
    let outer = parent.token().child_source();
    drop(parent);
    drop(outer);
    assert_eq!(seen.take(), [true], "it does not wait for the outer drop");
}
