//! Cancellation: trees of sources, registrations, timed cancels that are moved and withdrawn,
//! resets, races of `cancel` and `unregister`.
//!
//! Ground rules. Each scene is played by the actor that calls it and leaves nothing behind.
//! Callbacks count their calls and, by a guard that they own, their drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{CancelReason, CancellationToken, CancellationTokenSource, Registration};

use crate::ledger::{FIGURES, fault, must, patience};
use crate::random::Random;
use crate::world::World;

/// Calls and drops of one registered callback.
#[derive(Default)]
struct Card {
    calls: AtomicU32,
    drops: AtomicU32,
    /// What the clock of calls within a scene showed.
    place: AtomicU32,
}

struct Guard(Arc<Card>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl Card {
    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    fn drops(&self) -> u32 {
        self.drops.load(Ordering::SeqCst)
    }
}

fn register(token: &CancellationToken, order: &Arc<AtomicU32>) -> (Arc<Card>, Registration) {
    let card = Arc::new(Card::default());
    let (guard, order) = (Guard(Arc::clone(&card)), Arc::clone(order));
    let registration = token.register(move || {
        guard.0.place.store(order.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        guard.0.calls.fetch_add(1, Ordering::SeqCst);
    });
    (card, registration)
}

/// Waits for something that must come.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > patience() {
            return fault(format_args!("{what}: not after {:?}", begun.elapsed()));
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// One random scene.
pub(crate) fn step(world: &World, random: &mut Random) {
    FIGURES.tokens.bump();
    match random.below(6) {
        0 => by_hand(world, random),
        1 => race(world, random),
        2 => timed(world, random),
        3 => reset(world, random),
        4 => tree(world, random),
        _ => children_of_the_root(world, random),
    }
}

/// Cancelled by hand: each callback once, last first, unless it was unregistered (S40 to S44).
fn by_hand(world: &World, random: &mut Random) {
    let source = CancellationTokenSource::on(&world.main);
    let token = source.token();
    let order = Arc::new(AtomicU32::new(0));
    let mut cards: Vec<_> =
        (0..1 + random.below(12)).map(|_| register(&token, &order)).map(|(card, r)| (card, Some(r))).collect();
    for (card, registration) in &mut cards {
        match random.below(4) {
            0 => {
                let in_time = registration.take().is_some_and(Registration::unregister);
                must(in_time && card.drops() == 1, || "an idle registration could not be taken out".into());
            }
            1 => drop(registration.take()),
            2 => registration.take().expect("there still").detach(),
            _ => {}
        }
    }
    let gone: Vec<bool> = cards.iter().map(|(card, _)| card.drops() > 0).collect();
    must(source.cancel() && !source.cancel(), || "the first cancel says so, the second not".into());
    must(token.reason() == Some(CancelReason::Cancelled), || "the reason is wrong".into());
    let mut places = Vec::new();
    for ((card, registration), gone) in cards.into_iter().zip(gone) {
        must(card.calls() == u32::from(!gone) && card.drops() == 1, || "not called exactly once".into());
        must(!registration.is_some_and(Registration::unregister), || "unregistered after its call".into());
        if !gone {
            places.push(card.place.load(Ordering::SeqCst));
        }
    }
    must(places.windows(2).all(|pair| pair[0] > pair[1]), || format!("not last first: {places:?}"));
    let (late, registration) = register(&token, &order);
    must(late.calls() == 1 && late.drops() == 1, || "registering on a cancelled token did not call".into());
    drop(registration);
}

/// A timed cancel against `unregister`, or another cancel: exactly one of the two (S44).
fn race(world: &World, random: &mut Random) {
    let source = CancellationTokenSource::on(&world.main);
    let token = source.token();
    let order = Arc::new(AtomicU32::new(0));
    let cards: Vec<_> = (0..6).map(|_| register(&token, &order)).collect();
    let after = Duration::from_nanos(random.below(400_000));
    let from = world.main.now();
    must(source.try_cancel_after(after).is_ok(), || "cancel_after failed".into());
    let spin = Instant::now() + Duration::from_nanos(random.below(500_000));
    while Instant::now() < spin {
        std::hint::spin_loop();
    }
    let by_hand = random.below(3) == 0 && source.cancel();
    for (i, (card, registration)) in cards.into_iter().enumerate() {
        let in_time = if i % 2 == 0 { registration.unregister() } else { registration.unregister_and_wait() };
        if i % 2 != 0 && !in_time {
            must(card.calls() == 1, || "unregistered too late, and the callback has not run".into());
        }
        if in_time {
            must(card.drops() == 1, || "unregistered, and not dropped".into());
        }
        eventually("a callback ends", || card.drops() == 1);
        must(card.calls() == u32::from(!in_time), || format!("in time {in_time}, called {}", card.calls()));
    }
    eventually("a timed cancel", || source.is_cancelled());
    let want = if by_hand { CancelReason::Cancelled } else { CancelReason::Timeout };
    must(token.reason() == Some(want), || format!("the reason is {:?} and not {want:?}", token.reason()));
    must(by_hand || world.main.now() >= from + after, || "a timed cancel came early".into());
}

/// Set, moved, withdrawn (S45).
fn timed(world: &World, random: &mut Random) {
    let source = CancellationTokenSource::on(&world.main);
    let order = Arc::new(AtomicU32::new(0));
    let (card, registration) = register(&source.token(), &order);
    for _ in 0..random.below(4) {
        let far = [Duration::from_secs(3_600), Duration::MAX, Duration::from_secs(60)][random.below(3) as usize];
        must(source.try_cancel_after(far).is_ok(), || "cancel_after failed".into());
    }
    must(card.calls() == 0 && !source.is_cancelled(), || "cancelled early".into());
    if random.below(3) == 0 {
        drop(source);
        drop(registration);
        return must(card.calls() == 0 && card.drops() == 1, || "a source that was dropped has cancelled".into());
    }
    let after = Duration::from_nanos(random.below(3_000_000));
    let from = world.main.now();
    must(source.try_cancel_after(after).is_ok(), || "cancel_after failed".into());
    let token = source.token();
    match random.below(3) {
        0 => must(token.wait_timeout(patience()).is_err(), || "a timed cancel did not come".into()),
        1 => {
            // Moved while it comes due.
            thread::sleep(after);
            must(source.try_cancel_after(Duration::from_micros(50)).is_ok(), || "cancel_after failed".into());
            eventually("a moved cancel", || token.is_cancelled());
        }
        _ => eventually("a timed cancel", || token.is_cancelled()),
    }
    must(world.main.now() >= from + after.min(Duration::from_micros(50)), || "a timed cancel came early".into());
    eventually("its callback", || card.calls() == 1 && card.drops() == 1);
}

/// Reset, and used again (S46).
fn reset(world: &World, random: &mut Random) {
    let source = CancellationTokenSource::on(&world.main);
    let order = Arc::new(AtomicU32::new(0));
    for _ in 0..1 + random.below(4) {
        let (card, registration) = register(&source.token(), &order);
        if random.below(4) > 0 {
            let after = Duration::from_nanos(random.below(600_000));
            must(source.try_cancel_after(after).is_ok(), || "cancel_after failed".into());
            let spin = Instant::now() + Duration::from_nanos(random.below(600_000));
            while Instant::now() < spin {
                std::hint::spin_loop();
            }
        }
        if source.try_reset() {
            must(card.calls() == 0 && card.drops() == 1, || "reset, and a registration was left or called".into());
            must(!registration.unregister(), || "unregistered after a reset".into());
            thread::sleep(Duration::from_micros(random.below(1_000)));
            must(!source.is_cancelled(), || "cancelled after a reset by a time set before".into());
        } else {
            eventually("the cancel that stood against a reset", || source.is_cancelled());
            eventually("its callback", || card.calls() == 1 && card.drops() == 1);
            must(!source.try_reset(), || "a cancelled source was reset".into());
            return;
        }
    }
}

/// A tree that is cancelled at its root, in its middle, by hand or by time; parts of it were
/// dropped before (S47, S48).
fn tree(world: &World, random: &mut Random) {
    let root = CancellationTokenSource::on(&world.main);
    let order = Arc::new(AtomicU32::new(0));
    let mut sources: Vec<Option<(CancellationTokenSource, usize)>> = vec![Some((root, 0))];
    let mut cards = Vec::new();
    for i in 1..2 + random.below(20) as usize {
        let parent = random.below(i as u64) as usize;
        let child = match &sources[parent] {
            Some((parent, _)) => parent.token().child_source(),
            None => CancellationTokenSource::on(&world.main), // a tree of its own
        };
        cards.push((i, register(&child.token(), &order)));
        let parent = if sources[parent].is_some() { parent } else { i };
        sources.push(Some((child, parent)));
        if random.below(10) == 0 && i > 1 {
            let gone = 1 + random.below(i as u64) as usize;
            sources[gone] = None; // its children stay linked to what it was linked to
        }
    }
    let parents: Vec<Option<usize>> = sources.iter().map(|source| source.as_ref().map(|(_, parent)| *parent)).collect();
    let top = random.below(sources.len() as u64) as usize;
    let Some((canceller, _)) = &sources[top] else { return };
    let by_time = random.below(2) == 0;
    if by_time {
        must(canceller.try_cancel_after(Duration::from_nanos(1 + random.below(300_000))).is_ok(), || "failed".into());
        eventually("a timed cancel", || canceller.is_cancelled());
    } else {
        must(canceller.cancel(), || "the first cancel says so".into());
    }
    for (i, (card, registration)) in cards {
        let Some((source, _)) = &sources[i] else { continue };
        // Cancelled with `top`, if `top` is above it and every source between is still there to
        // tell.
        let mut at = i;
        let below = loop {
            match parents[at] {
                _ if at == top => break Some(true),
                Some(parent) if parent == at => break Some(false),
                Some(parent) => at = parent,
                None => break None,
            }
        };
        if below == Some(true) {
            eventually("a child", || source.is_cancelled() && card.calls() == 1 && card.drops() == 1);
            let want = match (i == top, by_time) {
                (false, _) => CancelReason::Parent,
                (true, false) => CancelReason::Cancelled,
                (true, true) => CancelReason::Timeout,
            };
            must(source.token().reason() == Some(want), || format!("not {want:?}: {:?}", source.token().reason()));
            must(by_time || card.calls() == 1, || "cancelled, and a child's callback has not run".into());
        } else if below == Some(false) {
            must(!source.is_cancelled() && card.calls() == 0, || "cancelled from below or from aside".into());
            must(registration.unregister(), || "an idle registration could not be taken out".into());
        }
    }
}

/// Children of a source that lives long, made and dropped in numbers.
fn children_of_the_root(world: &World, random: &mut Random) {
    let root = world.root.token();
    let order = Arc::new(AtomicU32::new(0));
    let children: Vec<_> = (0..random.below(40)).map(|_| root.child_source()).collect();
    for child in &children {
        let (card, registration) = register(&child.token(), &order);
        match random.below(3) {
            0 => must(child.cancel() && card.calls() == 1, || "a child could not be cancelled".into()),
            1 => must(registration.unregister() && card.drops() == 1, || "could not be taken out".into()),
            _ => drop(child.clone().drop_guard().disarm()),
        }
    }
    must(!world.root.is_cancelled(), || "a child has cancelled its parent".into());
}
