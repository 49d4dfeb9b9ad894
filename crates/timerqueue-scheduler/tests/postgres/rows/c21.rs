//! C21: the five questions to which the sketch of a coordinator has no answer.

use super::*;
use crate::{end_member, enter};

#[test]
fn c21_a_coordinator_that_dies_is_none() {
    let Some(mut three) = Nodes::new(3) else { return };
    let put = three.nodes[0].put_to("log", &0).key("tick").schedule(every(TICK));
    let _ = put.catchup(Catchup::RunAll { at_most: 99 }).overlap(Overlap::Allow).send().wait().unwrap();
    for _ in 0..2 {
        let runs = three.keys().len();
        until("some runs", || three.keys().len() >= runs + 5);
        // The node that has put the job goes first.
        drop(three.nodes.remove(0));
    }
    let runs = three.keys().len();
    until("the last node goes on", || three.keys().len() >= runs + 5);
    three.each_once("tick", TICK);
}

#[test]
fn c21_of_two_coordinators_one_moves_the_cursor() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let stores: Vec<PostgresStore> =
        (0..2).map(|_| options(&schema).connect(Runtime::global(), &server.address()).unwrap()).collect();
    let front = Scheduler::builder().store(stores[0].clone()).start().unwrap();
    let _ = front.put_to("h", &0).key("tick").schedule(every(Duration::from_secs(3_600))).send().wait().unwrap();
    // Both look at the same occurrence: the second one after the lease of the first look.
    let first = claim(&stores[0], 1).schedules.remove(0);
    assert!(claim(&stores[1], 2).schedules.is_empty(), "a look has a lease");
    server.psql(&format!("UPDATE {schema}.jobs SET lease = 0, wake = 0"));
    let second = claim(&stores[1], 2).schedules.remove(0);
    assert_eq!((first.id, first.version), (second.id, second.version));
    let at = Micros::floor(SystemTime::now());
    let run = Occurrence { nominal: at, due: at };
    let next = Occurrence { nominal: at.saturating_add(LONG), due: at.saturating_add(LONG) };
    let advance = |version| {
        let step = Step::At { next, span: None };
        Op::Advance(Box::new(Advance { id: first.id, version, step, last: Some(at), runs: vec![run], missed: 0 }))
    };
    let answers: Vec<Applied> = std::thread::scope(|scope| {
        let both: Vec<_> =
            stores.iter().map(|store| scope.spawn(|| apply(store, advance(first.version)).unwrap())).collect();
        both.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| **answer == Applied::Held(true)).count(), 1, "{answers:?}");
    let runs = format!("SELECT count(*) FROM {schema}.jobs WHERE parent IS NOT NULL");
    assert_eq!(server.psql(&runs), "1", "the occurrence has one run");
}

#[test]
fn c21_an_old_worker_that_is_still_alive_is_fenced() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let (old, new) = (options(&schema), options(&schema));
    let old = old.connect(Runtime::global(), &server.address()).unwrap();
    let new = new.connect(Runtime::global(), &server.address()).unwrap();
    put_raw(&old, "a");
    enter(&old, 1);
    let first = claim(&old, 1).jobs.remove(0).held;
    end_member(server, &schema, 1);
    let second = claim(&new, 2).jobs.remove(0).held;
    let settle = |held, verdict| Op::Settle(Box::new(Settle { held, verdict, record: None }));
    for verdict in [Verdict::Done, Verdict::Dead, Verdict::Unrun, Verdict::Retry(LONG)] {
        assert_eq!(apply(&old, settle(first, verdict)), Ok(Applied::Held(false)));
    }
    assert_eq!(apply(&new, settle(second, Verdict::Done)), Ok(Applied::Held(true)));
}

#[test]
fn c21_occurrences_missed_during_a_failure_of_the_server_are_made_up_for() {
    let Some(server) = Server::new() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let nodes: Vec<Scheduler> = (0..2).map(|number| node(&server, &schema, &log, number, |builder| builder)).collect();
    let put = nodes[0].put_to("log", &0).key("tick").schedule(every(TICK));
    let _ = put.catchup(Catchup::RunAll { at_most: 99 }).overlap(Overlap::Allow).send().wait().unwrap();
    until("some runs", || log.lock().unwrap().len() >= 5);
    server.stop("immediate");
    let (down, before) = (SystemTime::now(), log.lock().unwrap().len());
    std::thread::sleep(Duration::from_secs(1));
    server.start();
    let missed = usize::try_from(down.elapsed().unwrap().as_millis() / 100).unwrap();
    // Runs of one instant after the other may end in another order, so the last ones may have a gap
    // for a moment.
    let without_gap = || {
        let nominal: BTreeSet<i64> = log.lock().unwrap().iter().map(|seen| seen.nominal.unwrap()).collect();
        let pairs = nominal.iter().zip(nominal.iter().skip(1));
        1 + pairs.take_while(|(one, next)| **next - **one == 100_000).count()
    };
    until("the missed ones and more, none left out", || without_gap() >= before + missed + 5);
    drop(nodes);
    let mut runs: BTreeMap<i64, usize> = BTreeMap::new();
    for seen in log.lock().unwrap().iter() {
        *runs.entry(seen.nominal.unwrap()).or_default() += 1;
    }
    // A run whose settle the crash has undone may be repeated; at most those that were under way.
    assert!(runs.values().filter(|&&times| times > 1).count() <= 2, "{runs:?}");
}

#[test]
fn c21_nodes_whose_clocks_differ_run_each_occurrence_once_and_none_early() {
    let Some(server) = Server::shared() else { return };
    let (schema, log, early) = (new_schema(), Log::default(), Arc::new(AtomicBool::new(false)));
    let now = SystemTime::now();
    let walls = [now - Duration::from_secs(3_600), now + Duration::from_secs(90)];
    let clocks: Vec<(ManualClock, Scheduler)> = walls
        .into_iter()
        .enumerate()
        .map(|(number, wall)| {
            let clock = ManualClock::new();
            clock.set_wall(wall);
            let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
            let store = options(&schema).connect(&runtime, &server.address()).unwrap();
            let (log, early) = (Arc::clone(&log), Arc::clone(&early));
            let handler = move |_: serde_json::Value, run: &Run| {
                // The server's clock is that of this machine.
                early.fetch_or(run.due() > SystemTime::now(), Ordering::SeqCst);
                note(&log, number, run);
            };
            let scheduler = Scheduler::builder().runtime(&runtime).store(store).handler("log", handler);
            (clock, scheduler.start().unwrap())
        })
        .collect();
    let put = clocks[0].1.put_to("log", &0).key("tick").schedule(every(TICK));
    let pending = put.catchup(Catchup::RunAll { at_most: 99 }).overlap(Overlap::Allow).send();
    let mut passed = std::time::Instant::now();
    until("twenty runs", || {
        let now = std::time::Instant::now();
        clocks.iter().for_each(|(clock, _)| _ = clock.advance(now - passed));
        passed = now;
        log.lock().unwrap().len() >= 20
    });
    assert!(pending.wait().unwrap().added().is_some());
    assert!(!early.load(Ordering::SeqCst));
    let nodes = Nodes { server, schema, log, nodes: Vec::new() };
    nodes.each_once("tick", TICK);
}
