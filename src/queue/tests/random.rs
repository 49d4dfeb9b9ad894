//! Random tests of the queue: each program runs on the wheel and on the two plain lists (I2, I3,
//! I4, I6, I16).

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Arm {
        node: usize,
        due: u64,
        period: u64,
    },
    /// Without the lock.
    Postpone {
        node: usize,
        due: u64,
    },
    Disarm {
        node: usize,
    },
    Wait {
        ns: u64,
    },
    /// The clock goes on, and no sweep comes yet.
    Pass {
        ns: u64,
    },
    /// The clock is broken and steps back.
    Back {
        ns: u64,
    },
    ToDeadline,
    /// A lock section of a sweep, perhaps not the last: other steps come in between.
    Section {
        work: usize,
    },
    /// Some sections of a search for the earliest due point, perhaps left unfinished.
    Ask {
        sections: usize,
    },
}

fn duration() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..2 * MS,
        3 => 300 * MS..400 * MS,
        2 => 0..5_000 * MS,
        2 => (0..64u64, 0..7u64).prop_map(|(w, d)| w * WINDOW_NS + d),
        2 => (0..4000u64, 0..3u64).prop_map(|(w, d)| w * WINDOW_NS + d),
        1 => (0..3000u64, 0..3u64).prop_map(|(g, d)| g * 1024 * WINDOW_NS + d),
        1 => Just(NEVER),
    ]
}

fn step(nodes: usize) -> impl Strategy<Value = Step> {
    let period = prop_oneof![3 => Just(NEVER), 1 => 10 * MS..800 * MS, 1 => (1..2_000u64).prop_map(|w| w * WINDOW_NS)];
    prop_oneof![
        5 => (0..nodes, duration(), period).prop_map(|(node, due, period)| Step::Arm { node, due, period }),
        4 => (0..nodes, duration()).prop_map(|(node, due)| Step::Postpone { node, due }),
        2 => (0..nodes).prop_map(|node| Step::Disarm { node }),
        2 => duration().prop_filter("finite", |&ns| ns != NEVER).prop_map(|ns| Step::Wait { ns }),
        1 => duration().prop_filter("finite", |&ns| ns != NEVER).prop_map(|ns| Step::Pass { ns }),
        1 => duration().prop_filter("finite", |&ns| ns != NEVER).prop_map(|ns| Step::Back { ns }),
        4 => Just(Step::ToDeadline),
        2 => (1..20usize).prop_map(|work| Step::Section { work }),
        1 => (1..60usize).prop_map(|sections| Step::Ask { sections }),
    ]
}

/// As [`step`], with many due points in few slots.
fn dense_step(nodes: usize) -> impl Strategy<Value = Step> {
    let due = || prop_oneof![2 => 0..300_000u64, 2 => 0..5_000u64, 1 => 0..70u64, 1 => 0..40 * MS];
    let period = prop_oneof![3 => Just(NEVER), 1 => 1_000..100_000u64];
    prop_oneof![
        12 => (0..nodes, due(), period).prop_map(|(node, due, period)| Step::Arm { node, due, period }),
        6 => (0..nodes, due()).prop_map(|(node, due)| Step::Postpone { node, due }),
        2 => (0..nodes).prop_map(|node| Step::Disarm { node }),
        1 => due().prop_map(|ns| Step::Wait { ns }),
        1 => due().prop_map(|ns| Step::Pass { ns }),
        4 => Just(Step::ToDeadline),
        2 => (1..20usize).prop_map(|work| Step::Section { work }),
        1 => (1..60usize).prop_map(|sections| Step::Ask { sections }),
    ]
}

/// Same firings at the same instants as the two lists.
fn compare(mut pair: Pair, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Arm { node, due, period } => {
                pair.arm(node, due, period);
            }
            Step::Postpone { node, due } => _ = pair.postpone(node, due),
            Step::Disarm { node } => pair.disarm(node),
            Step::Wait { ns } => {
                pair.now = pair.now.saturating_add(ns).min(LAST);
                pair.sweep();
            }
            Step::Pass { ns } => pair.now = pair.now.saturating_add(ns).min(LAST),
            Step::Back { ns } => {
                pair.now = pair.now.saturating_sub(ns);
                pair.sweep();
            }
            Step::ToDeadline => {
                let next = pair.queue.next_deadline();
                if next != NEVER {
                    pair.now = pair.now.max(next);
                    pair.sweep();
                }
            }
            Step::Section { work } => pair.section(work),
            Step::Ask { sections } => {
                for _ in 0..sections {
                    let answer = pair.queue.earliest_due(&mut { pair.batch });
                    pair.queue.check();
                    if let Some(answer) = answer {
                        assert!(answer <= pair.earliest() && (pair.postponed || answer == pair.earliest()));
                        break;
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random arming, disarming and waiting, late and on time: same firings at the same instants as
    /// the two lists. From the beginning of the clock to its end, and with steps back of the clock.
    #[test]
    fn same_firings_as_the_two_lists(
        start in prop_oneof![Just(0u64), 0..u64::MAX / 4, LAST - 5_000 * WINDOW_NS..=LAST, LAST - 2 * WINDOW_NS..=LAST],
        batch in 1usize..20,
        policy in prop_oneof![Just(MissedTicks::Rebase), Just(MissedTicks::Skip), Just(MissedTicks::Delay)],
        steps in proptest::collection::vec(step(12), 1..120),
    ) {
        // Some timers have leeway: a millisecond, some windows, and enough to change the level.
        let leeway = |i: usize| [0, 0, MS, 3 * WINDOW_NS, 3_600_000 * MS][i % 5];
        compare(Pair::with_leeway(start, 12, batch, policy, leeway), steps);
    }

    /// The same with many timers due in a single slot, near the end of the clock as well.
    #[test]
    fn same_firings_as_the_two_lists_in_crowded_slots(
        start in prop_oneof![Just(0u64), 0..u64::MAX / 4, LAST - 10 * MS..LAST],
        batch in 1usize..20,
        policy in prop_oneof![Just(MissedTicks::Rebase), Just(MissedTicks::Skip), Just(MissedTicks::Delay)],
        steps in proptest::collection::vec(dense_step(60), 1..200),
    ) {
        let leeway = |i: usize| [0, 0, 0, 2_000][i % 4];
        compare(Pair::with_leeway(start, 60, batch, policy, leeway), steps);
    }
}
