//! Test cases of the queue: edges (I5), moved timers (I2, I20), crowded slots, the end of the
//! clock.

use super::*;

/// Due times at every boundary of every level, as seen from `now`.
fn edges(now: u64) -> Vec<u64> {
    let mut all = vec![0, 1, 999, 262_143, 262_144, 262_145, MS, 15 * MS, 332 * MS, 333 * MS, 334 * MS];
    let windows: [u64; 13] = [1, 2, 3, 1023, 1024, 1025, 2046, 2047, 2048, 2049, 3072, 1024 * 1023, 1024 * 1024];
    for w in windows {
        let boundary = (now / WINDOW_NS + w) * WINDOW_NS - now;
        all.extend([boundary - 1, boundary, boundary + 1]);
        all.push(w * WINDOW_NS);
    }
    for g in [1023, 1024, 1025, 1026, 1535, 1536, 2048, 5000] {
        let boundary = (now / WINDOW_NS / 1024 + g) * 1024 * WINDOW_NS - now;
        all.extend([boundary - 1, boundary, boundary + 1]);
    }
    all.extend([1 << 62, LAST - now - 1, LAST - now, LAST - now + 1, NEVER]);
    all
}

#[test]
fn each_edge_of_each_level_fires_alone_and_exactly() {
    for start in [0, 1, WINDOW_NS - 1, WINDOW_NS, 5 * WINDOW_NS + 7, 1024 * WINDOW_NS - 1, 123_456_789_012_345] {
        for due in edges(start) {
            let mut pair = Pair::new(start, 1, 8, MissedTicks::Rebase);
            pair.arm(0, due, NEVER);
            let at = later(start, due);
            if at == NEVER {
                assert_eq!(pair.queue.next_deadline(), NEVER);
                continue;
            }
            let fired = pair.run_until(LAST);
            assert_eq!(fired, [(0, at, at)], "due {due} from {start}");
        }
    }
}

#[test]
fn a_long_timer_stays_where_it_is_unless_it_is_moved_before_the_window_of_its_slot() {
    let start = 7 * WINDOW_NS;
    for window in [1, 2, 90, 2047] {
        let mut pair = Pair::new(start, 2, 8, MissedTicks::Rebase);
        let begins = window * WINDOW_NS;
        assert!(!pair.arm(0, begins + 5 * MS, NEVER), "idle");
        assert!(!pair.arm(1, begins + 5 * MS, NEVER), "idle");
        assert!(pair.arm(0, begins + 105 * MS, NEVER), "later in the window");
        assert!(pair.arm(1, begins, NEVER), "earlier in the window, and in the slot");
        assert_eq!(pair.queue.earliest_due(&mut 10), Some(start + begins));
        for later in [WINDOW_NS, 3 * WINDOW_NS, 2048 * WINDOW_NS, 1 << 60] {
            assert!(pair.arm(0, begins + later, NEVER), "to another window, level, or turn");
        }
        assert!(pair.arm(0, begins + WINDOW_NS - 1, NEVER), "and back");
        assert!(!pair.arm(1, begins - 1, NEVER), "before the window");
        assert!(!pair.arm(0, 5 * MS, NEVER), "the open window");
        let fired = pair.run_until(start + 4096 * WINDOW_NS);
        assert_eq!(fired, [(0, 5 * MS), (1, begins - 1)].map(|(i, due)| (i, start + due, start + due)));
    }
}

/// The same of a timer more than eleven minutes ahead.
#[test]
fn a_far_timer_stays_where_it_is_unless_it_is_moved_before_its_slot() {
    const GROUP_NS: u64 = GROUP * WINDOW_NS;
    for group in [2, 5, 1000] {
        let mut pair = Pair::new(0, 1, 8, MissedTicks::Rebase);
        let begins = group * GROUP_NS;
        assert!(!pair.arm(0, begins + 5 * MS, NEVER), "idle");
        for later in [GROUP_NS, 9 * GROUP_NS, 1024 * GROUP_NS, 1 << 60] {
            assert!(pair.arm(0, begins + later, NEVER), "to another slot, level, or turn");
            assert_eq!(pair.queue.next_deadline(), begins + 5 * MS, "the bound stays");
        }
        assert!(pair.arm(0, begins, NEVER), "and back");
        assert_eq!(pair.queue.earliest_due(&mut 10), Some(begins));
        assert!(pair.arm(0, begins + 7 * GROUP_NS, NEVER));
        assert_eq!(pair.queue.earliest_due(&mut 10), Some(begins + 7 * GROUP_NS), "inserted anew");
        assert!(pair.arm(0, begins + 8 * GROUP_NS, NEVER));
        assert!(!pair.arm(0, begins - 1, NEVER), "before the slot");
        assert_eq!(pair.run_until(1 << 61), [(0, begins - 1, begins - 1)]);
    }
}

/// What leaves a taken chain is not counted in the slot that has been filled anew meanwhile.
#[test]
fn a_slot_filled_anew_counts_its_own_timers_while_its_chain_is_taken() {
    let mut pair = Pair::new(0, 64, 1, MissedTicks::Rebase);
    for i in 0..48 {
        pair.arm(i, 100 + i as u64, NEVER);
    }
    pair.now = 50;
    // A timer moved later: the search for the earliest takes the slot, and stops after one node.
    assert!(pair.arm(0, 5 * MS, NEVER));
    assert_eq!(pair.queue.earliest_due(&mut 1), None);
    for i in 48..64 {
        pair.arm(i, 100 + i as u64, NEVER);
    }
    for i in (0..48).step_by(2).chain(48..56) {
        pair.disarm(i);
    }
    pair.run_until(10 * MS);
}

#[test]
fn a_short_timer_stays_where_it_is_unless_it_is_moved_before_its_slot() {
    const SLOT: u64 = 1 << SLOT_SHIFT;
    let start = 7 * WINDOW_NS.next_multiple_of(SLOT);
    // Few timers in the slot, and enough for the fine levels.
    for others in [0, 40] {
        for slot in [0, 1, 100] {
            let begins = slot * SLOT;
            let mut pair = Pair::new(start, 2 + others, 8, MissedTicks::Rebase);
            for i in 0..2 + others {
                assert!(!pair.arm(i, begins + 1_000 + i as u64, NEVER), "idle");
            }
            for later in [2_000, SLOT, 30 * SLOT, WINDOW_NS, 3 * WINDOW_NS, 3_000 * WINDOW_NS, 1 << 60] {
                assert!(pair.arm(0, begins + later, NEVER), "later, in this slot or not");
            }
            assert!(pair.arm(0, begins + 500, NEVER), "and back");
            if slot > 0 {
                assert!(!pair.arm(0, begins - 1, NEVER), "before the slot");
                assert!(pair.arm(0, begins + 600, NEVER), "later again");
            }
            assert!(!pair.arm(1, NEVER, NEVER), "stopped");
            assert!(!pair.arm(1, begins + WINDOW_NS, NEVER), "idle");
            assert_eq!(pair.queue.earliest_due(&mut 100), Some(start + begins + if slot > 0 { 600 } else { 500 }));
            pair.arm(0, begins + WINDOW_NS / 2, NEVER);
            let fired = pair.run_until(start + 2 * WINDOW_NS);
            let mut due: Vec<u64> = (2..2 + others).map(|i| 1_000 + i as u64).collect();
            due.extend([WINDOW_NS / 2, WINDOW_NS]);
            assert_eq!(fired.iter().map(|&(_, due, _)| due - start - begins).collect::<Vec<_>>(), due);
            assert!(fired.iter().all(|&(_, due, at)| due == at), "on time");
        }
    }
}

/// Timeouts that are moved later again and again, as those of many connections. After a wake-up for
/// which nothing was due, no slot leads to another one. The same for futures, which are postponed
/// without the lock.
#[test]
fn a_sweep_that_finds_nothing_due_passes_over_the_slots_of_moved_timers() {
    const NODES: usize = 60;
    for (due, futures) in [25 * MS, 700 * MS, 2_000 * MS].into_iter().flat_map(|due| [(due, false), (due, true)]) {
        let mut pair = Pair::new(7 * WINDOW_NS, 3 * NODES, 64, MissedTicks::Rebase);
        let mut wake_ups = 0;
        let mut next = NEVER;
        for turn in 0..100 {
            for i in 0..NODES {
                let i = 3 * i + if futures { 2 } else { 0 };
                if !pair.postpone(i, due) {
                    pair.arm_unchecked_later(i, due);
                }
                pair.now += due / 10 / NODES as u64;
                next = next.min(pair.queue.next_deadline());
                if pair.now >= next {
                    wake_ups += 1;
                    assert_eq!(pair.sweep(), []);
                    next = pair.queue.next_deadline();
                    assert!(next > pair.now + due / 2, "turn {turn}: {next} at {}", pair.now);
                }
            }
        }
        assert_eq!(pair.postponed, futures);
        // A tenth of the wait for each turn: ten times the wait in all.
        assert!((5..25).contains(&wake_ups), "{wake_ups} wake-ups");
    }
}

/// A look ahead inserts nothing anew where no timer was moved.
#[test]
#[allow(unsafe_code)] // inserts nodes
fn a_sweep_that_finds_nothing_due_leaves_timers_alone_that_were_not_moved() {
    for due in [5 * MS, 7 * WINDOW_NS] {
        let mut pair = Pair::new(0, 41, 64, MissedTicks::Rebase);
        for i in 0..40 {
            pair.arm(i, due + i as u64, NEVER);
        }
        pair.arm(40, MS, NEVER);
        pair.disarm(40);
        pair.now = MS;
        let mut work = 64;
        assert!(matches!(pair.queue.next_due(pair.now, &mut work), Next::Nothing));
        assert!(pair.queue.look_ahead(&mut work));
        assert_eq!(work, 64, "due after {due}");
    }
}

/// A node of a crowded slot is postponed while it stands in the fine levels, which are for the slot
/// at hand alone.
#[test]
fn a_node_that_is_postponed_leaves_the_fine_levels() {
    let mut pair = Pair::new(0, 120, 64, MissedTicks::Rebase);
    for i in 0..120 {
        pair.arm(i, 50 * MS + 40 * i as u64, NEVER);
    }
    let mut postponed = 0;
    for step in 0..60 {
        pair.now = 50 * MS + 80 * step;
        pair.sweep();
        let key = pair.queue.key();
        let is_fine = |i: usize| pair.ours[i].location(key).as_slot().is_some_and(|slot| level_of(slot) < SHORT);
        // Some of the futures.
        let fine: Vec<_> = (2..120).step_by(6).filter(|&i| is_fine(i)).collect();
        for i in fine {
            let is_first = pair.ours[i].due(pair.queue.key()) < 60 * MS;
            postponed += usize::from(is_first && pair.postpone(i, 3_600_000 * MS));
        }
    }
    assert!(postponed > 3, "{postponed} were postponed");
    pair.now = 60 * MS;
    pair.sweep();
    let key = pair.queue.key();
    for node in pair.ours.iter().filter(|node| node.is_queued(key)) {
        assert!(node.location(key).as_slot().is_none_or(|slot| level_of(slot) >= SHORT), "still in the fine levels");
    }
    assert_eq!(pair.queue.len(), postponed);
}

#[test]
fn a_timer_moved_later_fires_when_due_in_every_level() {
    let start = 77 * WINDOW_NS + 123;
    // In the long level, and in the far level.
    for first in [90 * WINDOW_NS, 5_000 * WINDOW_NS] {
        for later in edges(start).into_iter().filter(|&due| due < 1 << 61 && due > first + WINDOW_NS) {
            let mut pair = Pair::new(start, 2, 8, MissedTicks::Rebase);
            pair.arm(0, first, NEVER);
            pair.arm(1, first + 1, NEVER);
            assert!(pair.arm(0, later, NEVER), "moved to {later}");
            let fired = pair.run_until(1 << 62);
            let at = [start + first + 1, start + later];
            assert_eq!(fired, [(1, at[0], at[0]), (0, at[1], at[1])]);
        }
    }
}

/// Sweeps as an alarm would, until a timer fires: the number of sweeps, and the instant.
fn sweeps_until_one_fires(pair: &mut Pair) -> (u64, u64) {
    for sweeps in 1.. {
        pair.now = pair.queue.next_deadline();
        if !pair.sweep().is_empty() {
            return (sweeps, pair.now);
        }
    }
    unreachable!("one fires")
}

#[test]
fn timers_that_were_moved_later_share_one_wake_up_with_nothing_due() {
    // In slots of the long level, and of the far level.
    for (batch, width) in [(1, WINDOW_NS), (48, WINDOW_NS), (10_000, WINDOW_NS), (48, GROUP * WINDOW_NS)] {
        let mut pair = Pair::new(0, 1_000, batch, MissedTicks::Rebase);
        for i in 0..1_000 {
            pair.arm(i, (3 + i as u64 % 90) * width + i as u64, NEVER);
        }
        for i in 0..1_000 {
            assert!(pair.arm(i, (200 + i as u64 % 40) * width + i as u64, NEVER));
        }
        assert_eq!(sweeps_until_one_fires(&mut pair), (2, 200 * width));
    }
}

/// A sweep does not look ahead if an alarm comes soon anyway, or at a slot with too many nodes.
#[test]
fn no_sweep_looks_ahead_beside_short_timers_or_at_a_crowded_slot() {
    let moved = |crowd: usize| {
        let mut pair = Pair::new(0, crowd + 1, 10_000, MissedTicks::Rebase);
        for i in 0..crowd {
            pair.arm(i, 3 * WINDOW_NS + MS, NEVER);
            assert!(pair.arm(i, 9 * WINDOW_NS + MS, NEVER));
        }
        pair
    };
    let mut few = moved(64);
    assert!(few.sweep().is_empty());
    assert_eq!(few.queue.next_deadline(), 9 * WINDOW_NS + MS, "looked ahead");
    let mut beside = moved(64);
    beside.arm(64, MS, NEVER);
    assert!(beside.sweep().is_empty());
    beside.disarm(64);
    assert_eq!(beside.queue.next_deadline(), 3 * WINDOW_NS + MS, "had another one to wait for");
    let mut many = moved(65);
    assert!(many.sweep().is_empty());
    let woken = many.queue.next_deadline();
    assert!(woken < 3 * WINDOW_NS + MS, "a crowd has its wake-up");
    many.now = woken;
    assert!(many.sweep().is_empty());
    assert!(many.queue.next_deadline() > 8 * WINDOW_NS, "and is cascaded by it");
}

#[test]
fn all_edges_together_fire_in_order_of_due_points() {
    let start = 77 * WINDOW_NS + 123;
    let edges: Vec<u64> = edges(start).into_iter().filter(|&d| d < 1 << 61).collect();
    let mut pair = Pair::new(start, edges.len(), 3, MissedTicks::Rebase);
    for (i, &due) in edges.iter().enumerate() {
        pair.arm(i, due, NEVER);
    }
    let fired = pair.run_until(1 << 62);
    assert_eq!(fired.len(), edges.len());
    for (i, due, now) in fired {
        assert_eq!((due, now), (start + edges[i], start + edges[i]));
    }
}

#[test]
fn periods_around_the_threshold_do_not_drift() {
    for (due, period) in
        [(1, 1), (50, 50), (250, 50), (50, 250), (50, 400), (400, 50), (400, 400), (332, 333), (334, 332), (333, 334)]
    {
        let mut pair = Pair::new(9 * WINDOW_NS - 5, 1, 64, MissedTicks::Rebase);
        let start = pair.now;
        pair.arm(0, due * MS, period * MS);
        let fired = pair.run_until(start + 5_000 * MS);
        let want = (5_000 - due) / period + 1;
        assert_eq!(fired.len() as u64, want, "due {due} period {period}");
        for (k, (_, at, now)) in fired.into_iter().enumerate() {
            assert_eq!((at, now), (start + (due + k as u64 * period) * MS, at));
        }
    }
}

#[test]
#[allow(unsafe_code)] // inserts nodes
fn a_crowded_window_is_opened_early_behind_one_that_is_not() {
    let mut queue = TimerWheel::new(0);
    let nodes: Vec<Node<()>> = (0..10_001).map(|_| Node::new(1, ())).collect();
    for (i, node) in nodes.iter().enumerate() {
        node.set_due(if i == 0 { 3 * WINDOW_NS - 1 } else { 3 * WINDOW_NS + 10 }, queue.key());
        // SAFETY: the nodes outlive the queue.
        unsafe { queue.insert(NonNull::from(node)) };
    }
    let opens = queue.next_deadline();
    assert!(opens <= 3 * WINDOW_NS - 10_000 * 100, "{opens}");
    let mut work = 20_000;
    assert_eq!(queue.next_due(opens, &mut work), Next::Nothing);
    assert_eq!((queue.threshold(), work), (4 * WINDOW_NS - 1, 20_000 - 10_001), "both are cascaded");
    queue.check();
}

/// The short level has room for two windows, however long the cascade of the second takes (I5).
#[test]
#[cfg_attr(miri, ignore = "a million nodes")]
#[allow(unsafe_code)] // inserts nodes
fn no_window_is_opened_before_the_one_in_front_of_it_has_begun() {
    let mut queue = TimerWheel::new(0);
    let nodes: Vec<Node<()>> = (0..1_100_000).map(|_| Node::new(1, ())).collect();
    for node in &nodes {
        node.set_due(5 * WINDOW_NS, queue.key());
        // SAFETY: the nodes outlive the queue.
        unsafe { queue.insert(NonNull::from(node)) };
    }
    let opens = 4 * WINDOW_NS;
    assert_eq!(queue.next_deadline(), opens);
    let mut work = 2_000_000;
    assert_eq!(queue.next_due(opens, &mut work), Next::Nothing);
    assert_eq!((queue.threshold(), work), (6 * WINDOW_NS - 1, 900_000), "all are cascaded");
    queue.check();
}

#[test]
#[allow(unsafe_code)] // inserts nodes
fn never_is_in_no_slot_even_in_the_last_window_of_the_clock() {
    let now = LAST - 1_000 * MS;
    let mut queue = TimerWheel::new(now);
    let node = Node::new(1, ());
    node.set_due(LAST - 100 * MS, queue.key());
    // SAFETY: the node outlives the queue.
    unsafe {
        queue.insert(NonNull::from(&node));
        assert_eq!(queue.reschedule_lazily(NonNull::from(&node), NEVER), None);
        assert!(queue.reschedule_lazily(NonNull::from(&node), LAST).is_some());
    }
}

/// The clock stands in the last window already, or comes there from afar; timers of this window
/// come due at their instants.
#[test]
fn timers_of_the_last_window_of_the_clock_come_due() {
    for begin in [LAST, LAST - 1, LAST - 100 * MS, LAST - 1_000 * MS, LAST - 100_000 * MS, 0] {
        let mut pair = Pair::new(begin, 4, 8, MissedTicks::Rebase);
        pair.now = LAST - 50;
        assert_eq!(pair.sweep(), []);
        for (i, due) in [50, 0, 51, 49].into_iter().enumerate() {
            pair.arm(i, due, NEVER);
        }
        assert_eq!(pair.run_until(LAST), [(1, LAST - 50, LAST - 50), (3, LAST - 1, LAST - 1), (0, LAST, LAST)]);
        assert_eq!((pair.queue.len(), pair.queue.next_deadline()), (0, NEVER), "from {begin}");
    }
}

/// At every reading of the clock, an endless timer can be inserted, unlinked and found at the end,
/// and is never due.
#[test]
#[allow(unsafe_code)] // inserts nodes
fn an_endless_timer_is_queued_and_never_due() {
    for begin in [0, LAST - 100_000 * MS, LAST - 100 * MS, LAST] {
        let nodes: Vec<Node<()>> = (0..60).map(|_| Node::new(1, ())).collect();
        let mut queue = TimerWheel::new(begin);
        for node in &nodes {
            node.set_due(END, queue.key());
            // SAFETY: the nodes outlive the queue.
            let sweep_at = unsafe { queue.insert(NonNull::from(node)) };
            // Near the end of the clock the timer is in the level of the last window.
            assert_eq!(sweep_at, if begin == 0 { NEVER } else { END }, "no sweep is needed");
        }
        for now in [begin, LAST] {
            assert_eq!((queue.next_deadline(), queue.check(), queue.len()), (NEVER, NEVER, 60));
            while queue.next_due(now, &mut 10) == Next::Exhausted {}
        }
        // SAFETY: the nodes outlive the queue.
        assert!(unsafe { queue.unlink(NonNull::from(&nodes[30])) && !queue.unlink(NonNull::from(&nodes[30])) });
        let mut found = 0;
        while queue.pop_any().is_some() {
            found += 1;
            if found == 20 {
                // SAFETY: the nodes outlive the queue. (Some nodes are in a taken chain.)
                nodes.iter().for_each(|node| found += usize::from(unsafe { queue.unlink(NonNull::from(node)) }));
            }
        }
        assert_eq!((found, queue.len()), (59, 0));
    }
}

/// However many timers share a slot, a microsecond or some nanoseconds, each is looked at only a
/// few times on its way.
#[test]
fn s53_a_crowded_slot_is_cascaded_to_the_nanosecond_and_not_again_and_again() {
    const CROWD: usize = 3_000;
    for spread_ns in [200_000, 10_000, 1_000, 60, 1] {
        let mut pair = Pair::new(7 * WINDOW_NS, CROWD, 48, MissedTicks::Rebase);
        for i in 0..CROWD {
            pair.arm_unchecked(i, 262_144 + (i as u64 * 7_919) % spread_ns);
        }
        let (mut fired, mut looked) = (0, 0);
        while pair.queue.len() > 0 {
            let next = pair.queue.next_deadline();
            assert_eq!(pair.queue.earliest_due(&mut 0), Some(next), "known without a walk");
            pair.now = next;
            let mut work = usize::MAX;
            while let Next::Due(_) = pair.queue.next_due(pair.now, &mut work) {
                fired += 1;
            }
            looked += usize::MAX - work;
        }
        assert_eq!(fired, CROWD);
        assert!(looked <= 5 * CROWD, "{looked} looks at {CROWD} timers within {spread_ns} ns");
    }
}

/// Unlinked timers leave bounds behind that are too early. To find the exact earliest due point,
/// nodes are inserted anew, a bounded number in a section, and not again for the next question.
#[test]
fn s30_the_earliest_due_point_is_searched_for_in_sections() {
    const CROWD: usize = 3_000;
    for (begins, apart) in [(1, 50), (3 * WINDOW_NS, 50), (5_000 * WINDOW_NS, 50), (5_000_000 * WINDOW_NS, 50)] {
        let mut pair = Pair::new(0, CROWD, 48, MissedTicks::Rebase);
        for i in 0..CROWD {
            pair.arm_unchecked(i, begins + apart * i as u64);
        }
        pair.disarm(0);
        let mut sections = 0;
        let earliest = loop {
            sections += 1;
            let mut work = 48;
            if let Some(earliest) = pair.queue.earliest_due(&mut work) {
                break earliest;
            }
            pair.queue.check();
        };
        assert_eq!(earliest, begins + apart);
        assert!((CROWD / 48..=2 * CROWD / 48 + 2).contains(&sections), "{sections} sections of 48");
        assert_eq!(pair.queue.earliest_due(&mut 0), Some(earliest), "known from now on");
        pair.disarm(1);
        let again = std::iter::repeat_with(|| pair.queue.earliest_due(&mut 48)).find_map(|answer| answer);
        assert_eq!(again, Some(begins + 2 * apart));
    }
}

#[test]
#[allow(unsafe_code)] // inserts nodes
fn a_window_that_fills_up_is_cascaded_before_its_first_timer_is_due() {
    let mut queue = TimerWheel::new(0);
    let due = 5 * WINDOW_NS + MS;
    let nodes: Vec<Node<()>> = (0..5_000).map(|_| Node::new(1, ())).collect();
    let mut earlier = 0;
    for node in &nodes {
        node.set_due(due, queue.key());
        // SAFETY: the nodes outlive the queue.
        let at = unsafe { queue.insert(NonNull::from(node)) };
        assert!(at <= due);
        earlier += u64::from(at < due);
    }
    assert_eq!(earlier, 1, "looked at now and then");
    assert!(queue.next_deadline() < due);
}

#[test]
#[allow(unsafe_code)] // inserts nodes
fn a_window_is_cascaded_while_there_is_no_end_of_what_is_due() {
    let start = 10 * WINDOW_NS;
    let mut queue = TimerWheel::new(start);
    let nodes: Vec<Node<()>> = (0..200).map(|_| Node::new(1, ())).collect();
    for (i, node) in nodes.iter().enumerate() {
        node.set_due(start + if i < 100 { MS } else { WINDOW_NS + 10_000 }, queue.key());
        // SAFETY: the nodes outlive the queue.
        unsafe { queue.insert(NonNull::from(node)) };
    }
    let now = start + WINDOW_NS - 1;
    let mut work = 10;
    while queue.next_due(now, &mut work) != Next::Exhausted {}
    assert_eq!(queue.threshold(), now);
    queue.cascade_ahead(now, 30);
    assert_eq!(queue.threshold(), now + WINDOW_NS, "it has been opened");
    queue.check();
    let mut work = 1_000;
    while queue.next_due(now, &mut work) != Next::Nothing {}
    assert_eq!(1_000 - work, 90 + 70, "what was due, and what had not been cascaded ahead");
    // A cursor far behind leaves no room.
    queue.cascade_ahead(now + 2 * WINDOW_NS, 1_000);
    assert_eq!(queue.threshold(), now + WINDOW_NS);
}

#[test]
fn a_crowded_window_is_opened_before_its_first_timer_is_due() {
    let mut pair = Pair::new(0, 10_001, 256, MissedTicks::Rebase);
    for i in 0..10_000 {
        pair.arm(i, 3 * WINDOW_NS + i as u64, NEVER);
    }
    pair.arm(10_000, 5 * MS, NEVER);
    pair.now = 5 * MS;
    assert_eq!(pair.sweep().len(), 1);
    let deadline = pair.queue.next_deadline();
    assert!(deadline < 3 * WINDOW_NS - 10_000 * 32, "time to deal 10,000 timers: woken at {deadline}");
    pair.now = deadline;
    assert!(pair.sweep().is_empty(), "opened early, fired none");
    assert_eq!(pair.queue.next_deadline(), 3 * WINDOW_NS);
}

#[test]
fn a_queue_in_which_nothing_fires_keeps_its_threshold_up() {
    let mut pair = Pair::new(0, 2, 8, MissedTicks::Rebase);
    for second in 0..4_000 {
        pair.now = second * 1_000 * MS;
        pair.arm(0, 30_000 * MS, NEVER);
        pair.disarm(0);
        assert!(pair.queue.threshold() >= pair.now, "rolled at {second} s");
    }
}

/// A sweep that leaves no timer but an endless one behind moves the threshold too.
#[test]
#[allow(unsafe_code)] // inserts a node
fn a_sweep_beside_an_endless_timer_keeps_the_threshold_up() {
    let mut queue = TimerWheel::new(0);
    let node = Node::new(1, ());
    node.set_due(END, queue.key());
    // SAFETY: the node outlives the queue.
    unsafe { queue.insert(NonNull::from(&node)) };
    for window in [1, 2, 5_000] {
        assert_eq!(queue.next_due(window * WINDOW_NS, &mut 1), Next::Nothing);
        assert_eq!(queue.threshold(), (window + 1) * WINDOW_NS - 1);
    }
}

/// A sweep has stopped in the middle of a slot, of the short level or of the long one.
#[test]
#[allow(unsafe_code)] // inserts nodes
fn the_threshold_stays_while_a_slot_is_half_swept() {
    const TIMERS: usize = 20;
    for window in [0, 3] {
        let mut queue = TimerWheel::new(0);
        let nodes: Vec<Node<()>> = (0..TIMERS).map(|_| Node::new(1, ())).collect();
        let due = window * WINDOW_NS + 5 * MS;
        for node in &nodes {
            node.set_due(due, queue.key());
            // SAFETY: the nodes outlive the queue.
            unsafe { queue.insert(NonNull::from(node)) };
        }
        assert!(matches!(queue.next_due(due, &mut 1), Next::Due(_)));
        let threshold = queue.threshold();
        queue.advance(due + 9 * WINDOW_NS);
        assert_eq!(queue.threshold(), threshold);
        queue.check();
        let left = std::iter::from_fn(|| matches!(queue.next_due(due, &mut 1), Next::Due(_)).then_some(())).count();
        assert_eq!(left, TIMERS - 1);
        queue.advance(due + 9 * WINDOW_NS);
        assert_eq!(queue.threshold(), (window + 10) * WINDOW_NS - 1, "then it goes on");
    }
}

/// A sweep of an empty queue looks into no level.
#[test]
#[allow(unsafe_code)] // inserts nodes
fn a_sweep_that_leaves_the_queue_empty_moves_threshold_and_cursor_to_now() {
    let mut queue = TimerWheel::new(0);
    let node = Node::new(1, ());
    for window in [1, 2, 5_000, 5_000_000] {
        let (due, now) = (window * WINDOW_NS, window * WINDOW_NS + 100 * MS);
        node.set_due(due, queue.key());
        // SAFETY: the node outlives the queue.
        unsafe { queue.insert(NonNull::from(&node)) };
        let mut work = 10;
        assert_eq!(queue.next_due(now, &mut work), Next::Due(NonNull::from(&node)));
        assert_eq!((queue.next_due(now, &mut work), queue.next_deadline()), (Next::Nothing, NEVER));
        assert_eq!(queue.threshold(), (window + 1) * WINDOW_NS - 1);
        // Due at once: the search finds the timer where it starts.
        node.set_due(now - 1, queue.key());
        // SAFETY: the node outlives the queue.
        unsafe { queue.insert(NonNull::from(&node)) };
        queue.check();
        // A clock that has stepped back moves neither.
        assert_eq!(queue.next_due(due, &mut work), Next::Nothing);
        assert_eq!(queue.next_due(now, &mut work), Next::Due(NonNull::from(&node)));
        assert_eq!(queue.next_due(due - WINDOW_NS, &mut work), Next::Nothing);
        assert_eq!(queue.threshold(), (window + 1) * WINDOW_NS - 1);
    }
}

/// While no sweep looks at the overflow list, timers come to the far level that are due later.
#[test]
fn a_walk_does_not_end_before_the_overflow_list_where_its_first_timer_is_due() {
    const GROUP_NS: u64 = GROUP * WINDOW_NS;
    let mut pair = Pair::new(0, 2, 8, MissedTicks::Rebase);
    pair.arm(0, 1_500 * GROUP_NS, NEVER);
    pair.now = 600 * GROUP_NS;
    pair.arm(1, 1_000 * GROUP_NS, NEVER);
    for limit in [1_500, 1_550] {
        let mut seen = Vec::new();
        let _ = pair.queue.walk(
            |at| at > limit * GROUP_NS,
            |node| {
                seen.push(*node.extra());
                ControlFlow::Continue(())
            },
        );
        assert!(seen.contains(&0), "up to {limit}: {seen:?}");
    }
}

#[test]
fn drained_queues_are_empty() {
    let mut pair = Pair::new(3, 60, 8, MissedTicks::Rebase);
    for (i, due) in edges(3).into_iter().take(60).enumerate() {
        pair.arm(i, due.max(1), NEVER);
    }
    let filed = pair.queue.len();
    let mut popped = 0;
    while pair.queue.pop_any().is_some() {
        popped += 1;
        pair.queue.check();
    }
    assert_eq!(popped, filed);
    assert_eq!(pair.queue.next_deadline(), NEVER);
}

/// A timer due in the past of a clock that has stepped back is emitted at its due point, not when
/// the clock is ahead again.
#[test]
fn a_timer_fires_on_time_after_the_clock_has_stepped_back() {
    for back in [1, 300 * MS, WINDOW_NS, 3 * WINDOW_NS, 5_000 * WINDOW_NS] {
        let start = 9_000 * WINDOW_NS + 7;
        let mut pair = Pair::new(start, 2, 8, MissedTicks::Skip);
        pair.arm(0, 50 * MS, NEVER);
        pair.now = start + 50 * MS;
        assert_eq!(pair.sweep().len(), 1);
        pair.now = start - back;
        for due in [0, MS, 300 * MS] {
            let at = pair.now + due;
            pair.arm(1, due, NEVER);
            assert!(due == 0 || pair.sweep().is_empty(), "not yet");
            assert!(pair.queue.next_deadline() <= at);
            pair.now = at;
            assert_eq!(pair.sweep(), [(1, at)], "back by {back}");
        }
    }
}

#[test]
#[allow(unsafe_code)] // inserts nodes
fn the_last_windows_of_the_clock_are_windows_like_others() {
    let last = LAST / WINDOW_NS;
    for before in [0, 1, 2, 3, 2_047, 2_048, 2_049, 5_000, 3_000_000] {
        let now = (last - before) * WINDOW_NS;
        let mut queue = TimerWheel::new(now);
        let nodes: Vec<Node<()>> = (0..100).map(|_| Node::new(1, ())).collect();
        for (i, node) in nodes.iter().enumerate() {
            let at = NonNull::from(node);
            node.set_due((last - before.min(i as u64 % 4)) * WINDOW_NS + i as u64, queue.key());
            // SAFETY: the nodes outlive the queue.
            unsafe {
                queue.insert(at);
                let _ = queue.reschedule_lazily(at, LAST - i as u64 % 2);
            }
            queue.check();
        }
        let mut now = now;
        let mut fired = 0;
        for _ in 0..1_000 {
            let mut work = 1_000;
            match queue.next_due(now, &mut work) {
                Next::Due(_) => fired += 1,
                _ if queue.len() == 0 => break,
                _ => now = now.max(queue.next_deadline()),
            }
            queue.check();
        }
        assert_eq!((fired, queue.next_deadline()), (100, NEVER), "{before} windows before the last");
    }
}
