//! Q4: of a million sessions that time out, one at random is touched: its time-out moves.
//!
//! Ground rules. A session times out half an hour after it was last touched. At the begin each was
//! touched within the last minute. Sessions are touched in random order, so hardly any is in a
//! cache: what counts is how much memory a move touches. (Q2 moves the same entry again and again.)
//! A single thread owns all sessions. *Keyed* as in [`crate::queues`]: sessions are numbers, found
//! by a hash. Timers and futures stand in a vector, so their owner finds them by index.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::hint::black_box;
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{Delay, DelayQueue, DelayQueueBuilder, OnceTimer, Runtime};
use tokio::time::Instant;
use tokio_util::time::DelayQueue as TheirQueue;

use crate::measure::{Case, Random, Session, repeat};
use crate::place::{HEARTBEAT, Place, Tokio, polled, polled_in_place};
use crate::queues::Quick;

pub(crate) const ID: &str = "Q4";
const SESSIONS: usize = 1_000_000;
const LIMIT: Duration = Duration::from_secs(1_800);

/// Moves the time-out of a session.
type Touch = Box<dyn FnMut(usize) + Send>;

/// Limits of sessions that were touched within the last minute, in random order.
fn limits() -> impl Iterator<Item = (usize, Duration)> {
    let mut random = Random::new(7);
    (0..SESSIONS).map(move |session| (session, random.between(LIMIT - Duration::from_secs(60), LIMIT)))
}

fn case<'a>(name: &'static str, place: Place<'a>, touch: Touch) -> Case<'a> {
    let (touch, random) = (Mutex::new(touch), Mutex::new(Random::new(11)));
    Case::new(name, 1, move |times| {
        place.time(1, |lane| {
            let (mut touch, mut random) = (touch.lock(), random.lock());
            lane.ready();
            repeat(times, || touch(black_box(random.below(SESSIONS as u64) as usize)))
        })
    })
}

fn queue<S: std::hash::BuildHasher + Send + 'static>(queue: DelayQueue<u64, u64, S>) -> Touch {
    limits().for_each(|(session, limit)| queue.insert(session as u64, 0, limit).expect("a new key"));
    Box::new(move |session| assert!(queue.reset(&(session as u64), LIMIT)))
}

fn delays() -> Touch {
    let mut delays: Vec<Delay> = limits().map(|(_, limit)| polled_in_place(Delay::new(limit))).collect();
    Box::new(move |session| delays[session].reset(LIMIT))
}

fn timers(runtime: &Runtime) -> Touch {
    let make = |(session, limit)| {
        OnceTimer::on(runtime, limit, move |_| {
            black_box(session);
        })
    };
    let timers: Vec<OnceTimer> = limits().map(make).collect();
    Box::new(move |session| _ = black_box(timers[session].reset(LIMIT)))
}

fn sleeps() -> Touch {
    let mut sleeps: Vec<_> = limits().map(|(_, limit)| polled(tokio::time::sleep(limit))).collect();
    Box::new(move |session| sleeps[session].as_mut().reset(Instant::now() + LIMIT))
}

fn theirs() -> Touch {
    let mut queue = TheirQueue::new();
    let keys: Vec<_> = limits().map(|(session, limit)| queue.insert(session as u64, limit)).collect();
    Box::new(move |session| queue.reset(&keys[session], LIMIT))
}

fn theirs_keyed() -> Touch {
    let mut queue = TheirQueue::new();
    let insert = |(session, limit)| (session as u64, queue.insert(session as u64, limit));
    let keys: HashMap<u64, _> = limits().map(insert).collect();
    let both = Mutex::new((queue, keys));
    Box::new(move |session| {
        let (queue, keys) = &mut *both.lock();
        queue.reset(&keys[&(session as u64)], LIMIT);
    })
}

/// Runs the workload once.
pub(crate) fn round(session: &mut Session) {
    let tokio = Tokio::new(Some(HEARTBEAT));
    let runtime = Runtime::builder().start().expect("the system has threads");
    let multi = Place::Multi(&tokio.multi);
    let quick = DelayQueueBuilder::on(&runtime).hasher(BuildHasherDefault::<Quick>::default()).build();
    let makes: [(&'static str, Place<'_>, &dyn Fn() -> Touch); 7] = [
        ("timerqueue DelayQueue, keyed", Place::Thread, &|| queue(DelayQueue::on(&runtime))),
        ("timerqueue DelayQueue, keyed, a quick hasher", Place::Thread, &|| queue(quick.clone())),
        ("timerqueue OnceTimer", Place::Thread, &|| timers(&runtime)),
        ("timerqueue Delay, polled", Place::Thread, &delays),
        ("tokio-util DelayQueue, HashMap and a mutex, keyed", multi, &theirs_keyed),
        ("tokio-util DelayQueue, unkeyed", multi, &theirs),
        ("tokio sleep, boxed, polled", multi, &sleeps),
    ];
    let wanted = makes.into_iter().filter(|(name, ..)| session.wants(name));
    let cases: Vec<_> = wanted.map(|(name, place, make)| case(name, place, place.enter(0, make))).collect();
    session.measure(ID, "touch one of a million sessions, at random", &cases);
}
