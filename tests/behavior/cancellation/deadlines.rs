//! Deadlines: timed cancels set to an instant, and the deadline that a token tells (S88, S45).

use super::*;

fn told(source: &CancellationTokenSource) -> Option<Duration> {
    source.token().deadline().map(|deadline| deadline.as_duration())
}

#[test]
fn s88_a_cancel_comes_at_its_deadline() {
    let (clock, runtime) = manual();
    clock.advance(secs(10));
    let at = |seconds| clock.now() + secs(seconds);
    let source = CancellationTokenSource::on(&runtime);
    assert_eq!((told(&source), source.token().remaining()), (None, None));
    source.try_cancel_at(at(5)).expect("a runtime of its own");
    assert_eq!((told(&source), source.token().remaining()), (Some(secs(15)), Some(secs(5))));
    clock.advance(secs(1));
    assert_eq!((told(&source), source.token().remaining()), (Some(secs(15)), Some(secs(4))));
    source.try_cancel_after(secs(2)).expect("a runtime of its own"); // moved
    assert_eq!((told(&source), runtime.metrics().active), (Some(secs(13)), 1));
    source.cancel_at(clock.now() + NEVER);
    assert_eq!((told(&source), runtime.metrics().active), (None, 0), "withdrawn");
    source.cancel_at(runtime.instant(at(3)).expect("within the clock"));
    assert_eq!(told(&source), Some(secs(14)), "an instant of the standard library");
    clock.advance(secs(3) - Duration::from_nanos(1));
    assert!(!source.is_cancelled(), "a nanosecond before");
    clock.advance(Duration::from_nanos(1));
    assert_eq!(reason(&source), Some(CancelReason::Timeout));
}

#[test]
fn s88_a_deadline_that_has_passed_cancels_here_and_now() {
    let (clock, runtime) = manual();
    clock.advance(secs(10));
    for passed in [clock.now(), clock.now() - secs(1), clock.now() - NEVER] {
        let source = timed(&runtime, secs(9));
        let seen = Journal::new();
        let noting = seen.clone();
        source.token().register(move || noting.push(thread::current().id())).detach();
        source.try_cancel_at(passed).expect("no timer is needed");
        assert_eq!((reason(&source), seen.take()), (Some(CancelReason::Timeout), vec![thread::current().id()]));
        assert_eq!((source.token().remaining(), runtime.metrics().active), (Some(Duration::ZERO), 0));
    }
    let source = CancellationTokenSource::new();
    source.cancel_at(Instant::now());
    assert!(source.is_cancelled(), "on the default runtime, which need not be started");
}

#[test]
fn s88_a_token_tells_the_earliest_deadline_of_its_own_and_its_parents() {
    let (clock, runtime) = manual();
    let top = CancellationTokenSource::on(&runtime);
    let (left, right) = (top.token().child_source(), top.token().child_source());
    let bottom = CancellationTokenSource::linked([&left.token(), &right.token(), &CancellationToken::none()]);
    let set =
        |source: &CancellationTokenSource, seconds| source.try_cancel_at(clock.now() + secs(seconds)).expect("open");
    assert_eq!(told(&bottom), None);
    set(&bottom, 50);
    assert_eq!(told(&bottom), Some(secs(50)));
    set(&right, 40);
    set(&left, 60);
    assert_eq!((told(&bottom), told(&left), told(&top)), (Some(secs(40)), Some(secs(60)), None));
    set(&top, 30);
    assert_eq!([&bottom, &left, &right, &top].map(told), [Some(secs(30)); 4]);
    top.try_cancel_after(NEVER).expect("open");
    set(&bottom, 10);
    assert_eq!([&bottom, &left, &right].map(told), [10, 60, 40].map(|at| Some(secs(at))));
    assert!(right.try_reset());
    bottom.try_cancel_after(NEVER).expect("open");
    assert_eq!((told(&bottom), told(&right)), (Some(secs(60)), None));
    // Parents without a handle still count; the deadline is that at which the child is cancelled.
    drop((top, left, right));
    assert_eq!(told(&bottom), Some(secs(60)));
    clock.advance(secs(60));
    assert_eq!(bottom.token().root_reason(), Some(CancelReason::Timeout));
}

#[test]
fn s88_a_cancelled_token_has_no_time_left() {
    let (clock, runtime) = manual();
    let source = timed(&runtime, secs(5));
    let child = source.token().child_source();
    let early = source.token().child_source();
    clock.advance(secs(2));
    early.cancel();
    assert_eq!((told(&early), early.token().remaining()), (Some(secs(2)), Some(Duration::ZERO)), "not the parent's");
    clock.advance(secs(3));
    let born = child.token().child_source();
    clock.advance(secs(1));
    assert_eq!([&source, &child].map(told), [Some(secs(5)); 2], "as it was");
    for source in [&source, &child, &early, &born] {
        assert!(told(source) <= Some(secs(6)));
        assert_eq!(source.token().remaining(), Some(Duration::ZERO));
    }
    assert_eq!(CancellationToken::new_cancelled().remaining(), Some(Duration::ZERO));
    assert_eq!((CancellationToken::none().deadline(), CancellationToken::none().remaining()), (None, None));
}

#[test]
fn s88_parents_on_other_clocks_count_by_the_time_that_is_left() {
    let (clock, runtime) = manual();
    let (other_clock, other) = manual();
    clock.advance(secs(100));
    let parent = timed(&runtime, secs(9));
    let foreign = timed(&other, secs(5));
    let child = CancellationTokenSource::linked([&parent.token(), &foreign.token()]);
    assert_eq!((told(&child), child.token().remaining()), (Some(secs(105)), Some(secs(5))));
    other_clock.advance(secs(2));
    assert_eq!(child.token().remaining(), Some(secs(3)));
    clock.advance(secs(7));
    assert_eq!((told(&child), child.token().remaining()), (Some(secs(109)), Some(secs(2))));
    // Runtimes that share a clock share its instants, also of the default clock.
    let sibling = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    let child = CancellationTokenSource::linked([&CancellationTokenSource::on(&sibling).token(), &parent.token()]);
    assert_eq!(told(&child), Some(secs(109)));
    let native = native();
    let deadline = native.now() + secs(1_000);
    let (parent, default) = (CancellationTokenSource::on(&native), CancellationTokenSource::new());
    parent.try_cancel_at(deadline).expect("open");
    let child = CancellationTokenSource::linked([&default.token(), &parent.token()]);
    assert_eq!(child.token().deadline(), Some(deadline), "to the nanosecond");
}

#[test]
fn s88_where_the_runtime_has_ended_there_is_no_deadline_to_set() {
    let (clock, runtime) = manual();
    let source = timed(&runtime, secs(5));
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert!(source.try_cancel_at(clock.now() + secs(1)).is_err());
    assert_eq!((told(&source), source.is_cancelled()), (None, false), "the one before cannot come either");
    source.cancel_at(clock.now() + secs(1)); // as `cancel_after`
    source.cancel_at(clock.now());
    assert_eq!(reason(&source), Some(CancelReason::Timeout));
}

#[test]
fn s88_a_long_chain_and_a_ladder_of_diamonds_tell_their_deadline() {
    within(PATIENCE, "a long way up", || {
        let (_clock, runtime) = manual();
        let top = timed(&runtime, secs(7));
        let mut last = top.token().child_source();
        for _ in 0..100_000 {
            last = last.token().child_source();
        }
        assert_eq!(told(&last), Some(secs(7)));
        let mut sides = [top.token().child_source(), top.token().child_source()];
        for _ in 0..100 {
            let tokens = sides.each_ref().map(CancellationTokenSource::token);
            sides = [(); 2].map(|()| CancellationTokenSource::linked(&tokens));
        }
        assert_eq!(sides.each_ref().map(told), [Some(secs(7)); 2], "each source is asked once");
    });
}

#[test]
fn s88_deadlines_are_asked_for_while_parents_end_and_move() {
    within(PATIENCE, "deadlines of a moving tree", || {
        let runtime = native();
        for round in 0..500 {
            let top = timed(&runtime, secs(1_000));
            let middle = top.token().child_source();
            let bottom = middle.token().child_source();
            let token = bottom.token();
            let (remaining, ()) = race(
                Duration::from_nanos(round * 10),
                || [(); 10].map(|()| token.remaining()),
                || {
                    drop(middle);
                    top.try_cancel_after(secs(2_000)).expect("open");
                    drop((top, bottom));
                },
            );
            for left in remaining {
                assert!(left.expect("a deadline") > secs(900));
            }
        }
    });
}
