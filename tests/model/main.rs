//! Property test of the public API: random programs on virtual time, against a model of sorted
//! maps. Never early, exactly once, no timer lost, exact answers (S1 to S24, S33, S35 to S58).
//!
//! Left out are the parts that need threads or real time: blocking waits, `block_on`, the default
//! runtime.
//!
//! Ground rules. `harness/` has the operations, the model (`reference/`) and the comparison; this
//! file makes programs. A failing program is kept in `tests/model.proptest-regressions`, and is
//! tried first from then on. `TIMERQUEUE_MODEL_CASES` sets the number of programs. `fuzz/` fuzzes
//! the same programs.

mod harness;

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use timerqueue::MissedTicks;

use harness::ops::{ByWall, Make, Op};
use harness::reference::Kind;

/// Programs that failed once.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model.proptest-regressions");

fn cases() -> u32 {
    std::env::var("TIMERQUEUE_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(600)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_crate_does_what_the_model_says(program in vec(any::<[u8; 8]>(), 0..120)) {
        let _ = harness::run(program.as_flattened());
    }
}

/// The situations that every run of the model must have met; otherwise the run proves less than it
/// claims.
const SITUATIONS: &[&str] = &[
    "Burst of exclusive ticks",
    "Burst of overlapping ticks",
    "Delay missed ticks",
    "Rebase missed ticks",
    "Skip missed ticks",
    "a cancel woke",
    "a claimed tick was disposed",
    "a claimed tick was withdrawn by a change",
    "a clock driven by a callback of another",
    "a delay was moved later while it was filed",
    "a delay was moved while a task waited",
    "a delay woke",
    "a drop guard cancelled",
    "a drop guard cancelled while its scope unwound",
    "a future ran until its token was cancelled",
    "a future was not begun under a cancelled token",
    "a leeway put a timer off",
    "a limit came before the token",
    "a panic in a cancel by hand",
    "a panic in a timed cancel",
    "a reset",
    "a reset of a timed cancel on a runtime that had ended",
    "a second panic in a cancel",
    "a suspend in a callback",
    "a timed cancel on a runtime that had ended",
    "a timed cancel told",
    "a timer came due in suspend",
    "a timer slept through a suspend",
    "a timer ticked",
    "a token came before the limit",
    "a tree was cancelled",
    "a waker panicked in a cancel",
    "a waker was called in vain",
    "a waker panicked when a delay was over",
    "a waker panicked when an interval was stopped",
    "a wall timer ticked",
    "a wall timer waited for a time beyond the end of the clock",
    "a wall timer waited when its runtime was shut down",
    "an advance went on for longer",
    "an interval missed ticks",
    "an owed tick was disposed",
    "an owed tick was withdrawn by a change",
    "at the same instant as others",
    "called on the spot",
    "claimed when its runtime was shut down",
    "late",
    "the clock stalled in a callback",
    "the wall clock was set back",
    "the wall clock was set back before a swept wall timer ran",
    "the wall clock was set past the time of a timer",
    "unregistered in time",
    "unregistered too late",
    "waited for itself",
    "what a callback owned panicked at the end of its source",
    "what a callback owned panicked in a cancel",
    "what a callback owned panicked in a reset",
    "what a callback owned panicked when it was unregistered",
    "what a timer owned panicked",
    "woken by a shutdown or a stop",
];

/// Programs for situations that are rare in random programs. Callbacks carry out the last
/// operation.
fn rare() -> Vec<Vec<Op>> {
    const TEN: Duration = Duration::from_millis(10);
    let scripted = |slot, kind, period, script| Op::Create {
        slot,
        runtime: 0,
        kind,
        policy: MissedTicks::Burst,
        leeway: Duration::ZERO,
        due: TEN,
        period,
        script,
        spiteful: false,
    };
    let create = |slot, kind, period| scripted(slot, kind, period, 3);
    // Two timers due together: the callback of the first runs when the second has been claimed.
    let two = |then: Op| {
        let first = create(0, Kind::Overlapping, Duration::MAX);
        vec![first, create(1, Kind::Exclusive, TEN), Op::Advance { clock: 0, by: 5 * TEN }, then]
    };
    // A timer several ticks late: the ticks run in turn.
    let late = |kind, then: Op| {
        vec![create(0, kind, TEN), Op::Stall { clock: 0, by: 5 * TEN }, Op::Advance { clock: 0, by: TEN }, then]
    };
    let change = Op::ChangeOwn { due: TEN, period: Duration::MAX };
    // The same with a wall timer: the clock is set back in between.
    let wall = Op::Wall { slot: 0, runtime: 0, at: ByWall { by: TEN, back: false }, script: 0, spiteful: false };
    let back = Op::SetWall { clock: 0, to: ByWall { by: 2 * TEN, back: true } };
    let swept = vec![create(0, Kind::Overlapping, Duration::MAX), wall, Op::Advance { clock: 0, by: 5 * TEN }, back];
    // A wall timer that no clock of the runtime's will show.
    let age = Duration::from_secs(500 * 365 * 86_400);
    let beyond = vec![
        Op::Wall { slot: 0, runtime: 0, at: ByWall { by: age, back: false }, script: 0, spiteful: false },
        Op::SetWall { clock: 0, to: ByWall { by: age, back: true } },
        Op::Shutdown { slot: 0, by_drop: false },
    ];
    // A program that has failed once.
    let dropped_runtime = vec![
        Op::ToNextDue { clock: 0 },
        Op::Shutdown { slot: 0, by_drop: true },
        create(0, Kind::Overlapping, Duration::ZERO),
        Op::ToNextDue { clock: 0 },
    ];
    // A timer and a future due together: the callback drops the future, whose waker has been taken.
    let in_vain = vec![
        scripted(0, Kind::Overlapping, Duration::MAX, 9), // the fifth operation: see `script`
        Op::Future { slot: 0, runtime: 0, make: Make::Delay, after: TEN, source: 0 },
        Op::Poll { slot: 0, waker: 0 },
        Op::Advance { clock: 0, by: 5 * TEN },
        Op::DropFuture { slot: 0 },
    ];
    // Two registered callbacks of a source panic.
    let register = |slot| Op::Register { slot, source: 0, script: 0, panics: true, spiteful: false };
    let both = vec![Op::Source { slot: 0, runtime: 0 }, register(0), register(1), Op::Cancel { slot: 0 }];
    vec![
        both,
        swept,
        in_vain,
        beyond,
        dropped_runtime,
        two(Op::Change { slot: 1, due: TEN, period: TEN }),
        two(Op::Dispose { slot: 1 }),
        two(Op::Shutdown { slot: 0, by_drop: false }),
        two(Op::Shutdown { slot: 0, by_drop: true }),
        late(Kind::Exclusive, change.clone()),
        late(Kind::Overlapping, change),
        late(Kind::Exclusive, Op::DisposeOwn),
        late(Kind::Exclusive, Op::Shutdown { slot: 0, by_drop: false }),
        late(Kind::Overlapping, Op::Shutdown { slot: 0, by_drop: false }),
    ]
}

/// The same programs each time, and bytes as a fuzzer gives them: bytes of any length are a
/// program.
#[test]
fn all_situations_come_up() {
    let mut random = 0x5eed_u64;
    let mut seen: BTreeSet<_> = rare().into_iter().flat_map(harness::run_program).collect();
    for _ in 0..600 {
        let bytes: Vec<u8> = (0..1 + random as usize % 2_000)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            })
            .collect();
        seen.extend(harness::run(&bytes));
    }
    let missing: Vec<_> = SITUATIONS.iter().filter(|situation| !seen.contains(*situation)).collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
    assert!(seen.iter().all(|situation| SITUATIONS.contains(situation)), "{seen:?}");
}
