//! What system C does wrong: C9 to C20.

use super::*;

#[test]
fn c9_a_fire_leaves_one_entry() {
    let Some(two) = Nodes::new(2) else { return };
    let _ = two.nodes[0].put_to("log", &0).key("tick").schedule(every(TICK)).send().wait().unwrap();
    until("ten runs", || two.keys().len() >= 10);
    let rows: u64 = two.rows().parse().unwrap();
    assert!(rows <= 2, "the recurring job, and a run: {rows}");
}

#[test]
fn c10_a_removed_head_does_not_run_and_its_key_begins_anew() {
    let Some(two) = Nodes::new(2) else { return };
    for _ in 0..5 {
        let _ = two.nodes[0].put_to("log", &0).key("head").due(millis(2_000)).send().wait().unwrap();
        assert_eq!(two.nodes[1].cancel("head").wait(), Ok(Cancel::Cancelled));
    }
    let _ = two.nodes[1].put_to("log", &0).key("head").due(millis(2_500)).send().wait().unwrap();
    until("the new job has run", || two.rows() == "0");
    assert_eq!(two.keys(), ["head"]);
}

#[test]
fn c11_removed_entries_leave_the_table_at_once() {
    let Some(two) = Nodes::new(2) else { return };
    for n in 0..50 {
        let key = n.to_string();
        let far = Duration::from_secs(86_400_000);
        let _ = two.nodes[0].put_to("log", &0).key(&key).due(far).send().wait().unwrap();
        assert_eq!(two.nodes[1].cancel(&key).wait(), Ok(Cancel::Cancelled));
    }
    assert_eq!(two.rows(), "0");
}

#[test]
fn c12_a_removed_schedule_stops_on_all_nodes() {
    let Some(two) = Nodes::new(2) else { return };
    let _ = two.nodes[0].put_to("log", &0).key("tick").schedule(every(TICK)).send().wait().unwrap();
    until("it runs", || two.keys().len() >= 2);
    let _ = two.nodes[1].cancel("tick").wait().unwrap();
    until("its last run has ended", || two.rows() == "0");
    let runs = two.keys().len();
    std::thread::sleep(millis(500));
    assert_eq!(two.keys().len(), runs);
}

#[test]
fn c13_an_overdue_job_runs_at_once() {
    let Some(two) = Nodes::new(2) else { return };
    for overdue in [1, 59, 60, 3_600, 86_400] {
        let due = SystemTime::now() - Duration::from_secs(overdue);
        let _ = two.nodes[0].put_to("log", &0).key(&overdue.to_string()).due(due).send().wait().unwrap();
    }
    until("all have run", || two.keys().len() == 5);
}

#[test]
fn c14_a_job_put_again_by_its_handler_runs_once_more_each_time() {
    let log = Log::default();
    let seen = Arc::clone(&log);
    let Some(two) = Nodes::with(2, move |builder| {
        let log = Arc::clone(&seen);
        builder.handler("again", move |left: u64, run: &Run| {
            note(&log, 0, run);
            if left > 0 {
                let put = run.scheduler();
                let put = put.put_to("again", &(left - 1)).key(run.key()).clash(Clash::Replace);
                let _ = put.due(Duration::from_micros(700)).send().wait().unwrap();
            }
        })
    }) else {
        return;
    };
    let _ = two.nodes[0].put_to("again", &9_u64).key("a").send().wait().unwrap();
    until("no job is left", || two.rows() == "0");
    assert_eq!(log.lock().unwrap().len(), 10);
}

#[test]
fn c15_c16_an_interval_keeps_to_its_grid_whatever_its_period_and_its_handler() {
    let Some(two) = Nodes::with(2, |builder| builder.handler("slow", |_: u64, _: &Run| std::thread::sleep(millis(30))))
    else {
        return;
    };
    // A point of both grids that is to come when both have been put, also on a busy machine.
    let begin = SystemTime::now() + millis(3_000);
    for period in [60, 3_600] {
        let schedule = Schedule::every(Duration::from_secs(period)).from(begin).build().unwrap();
        let put = two.nodes[0].put_to("log", &0).key(&period.to_string()).schedule(schedule);
        let _ = put.catchup(Catchup::RunAll { at_most: 99 }).overlap(Overlap::Allow).send().wait().unwrap();
    }
    let slow = two.nodes[0].put_to("slow", &0).key("slow").schedule(every(TICK));
    let _ = slow.send().wait().unwrap();
    let begun = || ["60", "3600"].map(|key| two.occurrences(key).len());
    until("the first ones", || begun() == [1, 1]);
    // An hour passes on the server: 60 minutes, and one revolution of 3,600 seconds.
    two.set_clock(Duration::from_secs(3_600));
    until("all have run", || begun() == [1 + 60, 1 + 1]);
    let grid = two.occurrences("60");
    assert!(grid.windows(2).all(|pair| pair[1] - pair[0] == 60_000_000), "{grid:?}");
    let long = two.occurrences("3600");
    assert_eq!((long[0], long[1] - long[0]), (grid[0], 3_600_000_000));
}

#[test]
fn c17_missed_occurrences_follow_their_rule_and_are_counted() {
    let Some(two) = Nodes::new(2) else { return };
    let begin = SystemTime::now() - millis(10);
    let hourly = |key: &str, catchup: Catchup| {
        let schedule = Schedule::every(Duration::from_secs(3_600)).from(begin).build().unwrap();
        let put = two.nodes[0].put_to("log", &0).key(key).schedule(schedule).catchup(catchup);
        let _ = put.overlap(Overlap::Allow).send().wait().unwrap();
    };
    hourly("last", Catchup::RunLast);
    hourly("all", Catchup::RunAll { at_most: 9 });
    hourly("skip", Catchup::Skip);
    let waits = |key: &str| two.nodes[1].get(key).wait().unwrap().unwrap().due.is_some();
    until("all wait", || ["last", "all", "skip"].iter().all(|key| waits(key)));
    until("what ran first has ended", || two.rows() == "3");
    let begun = || ["last", "all", "skip"].map(|key| two.occurrences(key).len());
    let [last, all, skip] = begun();
    two.set_clock(Duration::from_secs(5 * 3_600 + 600));
    until("five hours are made up for", || begun() == [last + 1, all + 5, skip]);
    let tally = |key: &str| two.nodes[1].get(key).wait().unwrap().unwrap().tally;
    until("the rows say so", || tally("skip").missed == 5);
    assert_eq!((tally("last").missed, tally("all").missed), (4, 0));
}

#[test]
fn c18_a_job_does_not_overlap_itself_on_several_nodes_and_a_panic_ends_nothing() {
    let (running, overlapped) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_running, saw) = (Arc::clone(&running), Arc::clone(&overlapped));
    let Some(three) = Nodes::with(3, move |builder| {
        let (running, saw) = (Arc::clone(&is_running), Arc::clone(&saw));
        let slow = move |_: u64, _: &Run| {
            saw.fetch_or(running.swap(true, Ordering::SeqCst), Ordering::SeqCst);
            std::thread::sleep(millis(130));
            running.store(false, Ordering::SeqCst);
        };
        let builder = builder.handler("slow", slow);
        let panics = |_: u64, _: &Run| -> () { panic!("no") };
        builder.register(Handler::new("panics", panics).retry(Retry::never()))
    }) else {
        return;
    };
    let _ = three.nodes[0].put_to("slow", &0).key("slow").schedule(every(millis(50))).send().wait().unwrap();
    let _ = three.nodes[1].put_to("panics", &0).key("panics").schedule(every(millis(200))).send().wait().unwrap();
    let tally = |key: &str| three.nodes[2].get(key).wait().unwrap().unwrap().tally;
    until("some runs", || tally("slow").runs >= 6 && tally("panics").runs >= 3);
    assert!(tally("slow").skipped > 0 && !overlapped.load(Ordering::SeqCst));
}

#[test]
fn c19_a_put_during_a_close_is_answered_and_kept() {
    let Some(two) = Nodes::new(2) else { return };
    let accepted = std::thread::scope(|scope| {
        let puts: Vec<_> = (0..3)
            .map(|thread| {
                let scheduler = &two.nodes[0];
                scope.spawn(move || {
                    let mut accepted = 0;
                    for n in 0.. {
                        let far = Duration::from_secs(86_400);
                        match scheduler.put_to("log", &0).key(&format!("{thread}/{n}")).due(far).send().wait() {
                            Ok(placed) => accepted += usize::from(placed.added().is_some()),
                            Err(Error::Closed) => return accepted,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    accepted
                })
            })
            .collect();
        std::thread::sleep(millis(200));
        let _ = two.nodes[0].close(LONG).wait().unwrap();
        puts.into_iter().map(|puts| puts.join().unwrap()).sum::<usize>()
    });
    assert_eq!(two.rows(), accepted.to_string());
    assert_eq!(
        two.nodes[1].stats().wait().unwrap().jobs.of(State::Waiting),
        accepted as u64,
        "the other node has them"
    );
}

#[test]
fn c20_a_slow_handler_causes_no_lag_afterwards() {
    let seen = Log::default();
    let log = Arc::clone(&seen);
    let first = Arc::new(AtomicBool::new(true));
    let Some(two) = Nodes::with(2, move |builder| {
        let (log, first) = (Arc::clone(&log), Arc::clone(&first));
        builder.handler("slow once", move |_: u64, run: &Run| {
            note(&log, 0, run);
            if first.swap(false, Ordering::SeqCst) {
                std::thread::sleep(millis(450));
            }
        })
    }) else {
        return;
    };
    let _ = two.nodes[0].put_to("slow once", &0).key("tick").schedule(every(TICK)).send().wait().unwrap();
    until("some runs", || seen.lock().unwrap().len() >= 6);
    let nominal: Vec<i64> = seen.lock().unwrap().iter().filter_map(|seen| seen.nominal).collect();
    assert!(nominal[1] - nominal[0] >= 400_000, "the runs meanwhile were skipped: {nominal:?}");
    assert!(nominal.iter().all(|nominal| (nominal - nominal_grid(&two)) % 100_000 == 0), "{nominal:?}");
}

/// A point of the grid of the job `tick`.
fn nominal_grid(nodes: &Nodes) -> i64 {
    let job = nodes.nodes[0].get("tick").wait().unwrap().unwrap();
    micros(job.nominal.unwrap_or(UNIX_EPOCH))
}
