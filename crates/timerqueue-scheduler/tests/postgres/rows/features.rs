//! What a user of system C has, on any node: C1 to C7; and B10, many nodes.

use super::*;

#[test]
fn b10_many_nodes_share_the_items_and_each_runs_once() {
    let Some(four) = Nodes::with(4, |builder| builder.parallel(2)) else { return };
    let pending: Vec<_> = (0..200)
        .map(|n: u64| {
            four.nodes[n as usize % 4].put_to("log", &n).key(&format!("sms/{n:03}")).due(millis(n / 4)).send()
        })
        .collect();
    pending.into_iter().for_each(|pending| assert!(pending.wait().unwrap().added().is_some()));
    until("all have run", || four.rows() == "0");
    let mut keys = four.keys();
    keys.sort();
    assert_eq!(keys, (0..200).map(|n| format!("sms/{n:03}")).collect::<Vec<_>>());
    let nodes: BTreeSet<usize> = four.log.lock().unwrap().iter().map(|seen| seen.node).collect();
    assert!(nodes.len() > 1, "more than one node has worked: {nodes:?}");
}

#[test]
fn c1_jobs_are_added_removed_and_counted_by_name_on_any_node() {
    let Some(two) = Nodes::new(2) else { return };
    for key in ["report", "backup", "mail"] {
        let from = Schedule::every(Duration::from_secs(60)).from(SystemTime::now() + Duration::from_secs(3_600));
        let _ = two.nodes[0].put_to("log", &0).key(key).schedule(from.build().unwrap()).send().wait().unwrap();
    }
    assert_eq!(two.nodes[1].stats().wait().unwrap().jobs.of(State::Recurring), 3);
    assert_eq!(two.nodes[1].cancel("backup").wait(), Ok(Cancel::Cancelled));
    let left = two.nodes[0].list(Query::new().state(State::Recurring)).wait().unwrap();
    assert_eq!(left.iter().map(|job| &*job.key).collect::<Vec<_>>(), ["report", "mail"]);
}

#[test]
fn c2_a_rule_that_a_server_cannot_keep_is_refused_in_words() {
    let Some(one) = Nodes::new(1) else { return };
    let rule = Schedule::rule("doubling", |t: SystemTime| Some(t + millis(1))).build().unwrap();
    let refused = one.nodes[0].put_to("log", &0).key("r").schedule(rule).send().wait();
    assert_eq!(refused, Err(Error::Invalid(Invalid::RuleNotStorable)));
    // An instant that code of the user computes for each run is a job that comes again.
    assert_eq!(one.rows(), "0");
}

#[test]
fn c3_once_every_from_and_a_number_of_runs() {
    let Some(two) = Nodes::new(2) else { return };
    // It is put before its first instant, also on a busy machine.
    let from = SystemTime::now() + millis(3_000);
    let thrice = Schedule::every(TICK).from(from).times(3).build().unwrap();
    let _ = two.nodes[0].put_to("log", &0).key("once").due(millis(200)).send().wait().unwrap();
    let put = two.nodes[1].put_to("log", &0).key("thrice").schedule(thrice);
    let _ = put.catchup(Catchup::RunAll { at_most: 9 }).overlap(Overlap::Allow).send().wait().unwrap();
    until("the schedule has ended", || two.rows() == "0");
    let expected: Vec<i64> = (0..3).map(|n| micros(from) + n * 100_000).collect();
    let first = two.nominal("thrice");
    assert_eq!(first.iter().map(|nominal| nominal - first[0]).collect::<Vec<_>>(), [0, 100_000, 200_000]);
    assert!((first[0] - expected[0]).abs() <= 1, "from its instant, rounded up: {first:?} {expected:?}");
    assert_eq!(two.keys().iter().filter(|key| *key == "once").count(), 1);
}

#[test]
fn c4_a_cron_line_in_a_time_zone() {
    let Some(two) = Nodes::new(2) else { return };
    let schedule = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
    let _ = two.nodes[0].put_to("log", &0).key("nightly").schedule(schedule.clone()).send().wait().unwrap();
    until("it waits for its night", || {
        two.nodes[1].get("nightly").wait().unwrap().is_some_and(|job| job.due.is_some())
    });
    let due = two.nodes[1].get("nightly").wait().unwrap().unwrap().due.unwrap();
    assert_eq!(due, schedule.next_after(SystemTime::now()).unwrap().due());
    // A day passes on the server.
    two.set_clock(Duration::from_secs(86_400));
    until("the night has come", || !two.keys().is_empty());
    assert_eq!(two.occurrences("nightly"), [micros(due)]);
}

#[test]
fn c5_a_node_wakes_at_the_head() {
    let Some(server) = Server::shared() else { return };
    let (schema, late) = (new_schema(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&late);
    // No safety look comes during the test.
    let store = options(&schema).safety_look(Duration::from_secs(3_600));
    let store = store.connect(Runtime::global(), &server.address()).unwrap();
    let handler = move |_: u64, run: &Run| {
        seen.lock().unwrap().push(SystemTime::now().duration_since(run.due()).expect("never early"));
    };
    let one = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    for n in 1..=10_u64 {
        let _ = one.put_to("h", &n).due(millis(n * 60)).send().wait().unwrap();
    }
    until("all have run", || late.lock().unwrap().len() == 10);
    let best = late.lock().unwrap().iter().min().copied().unwrap();
    assert!(best < millis(250), "{late:?}");
}

#[test]
fn c6_an_earlier_job_of_another_node_sets_the_timer_of_the_sleeper() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let long = options(&schema).safety_look(Duration::from_secs(3_600));
    let seen = Arc::clone(&log);
    let worker = long.connect(Runtime::global(), &server.address()).unwrap();
    let handler = move |_: u64, run: &Run| note(&seen, 0, run);
    let worker = Scheduler::builder().store(worker).handler("h", handler).start().unwrap();
    let front =
        Scheduler::builder().store(long.connect(Runtime::global(), &server.address()).unwrap()).start().unwrap();
    let _ = worker.put_to("h", &0).key("far").due(Duration::from_secs(86_400)).send().wait().unwrap();
    until("both nodes sleep", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "2");
    let _ = front.put_to("h", &0).key("near").due(millis(100)).send().wait().unwrap();
    until("the earlier job has run", || !log.lock().unwrap().is_empty());
    assert_eq!(log.lock().unwrap()[0].key, "near");
    drop(worker);
}

#[test]
fn c7_run_stop_and_a_log_of_runs() {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&ends);
    let Some(two) = Nodes::with(2, |builder| {
        let told = Arc::clone(&told);
        let fails = |_: u64, _: &Run| Err::<(), _>("no");
        let builder = builder.register(Handler::new("fails", fails).retry(Retry::never()));
        builder.on_run_end(move |record| told.lock().unwrap().push((record.key.to_string(), record.run.end)))
    }) else {
        return;
    };
    let _ = two.nodes[0].put_to("fails", &0).key("bad").send().wait().unwrap();
    until("it is dead", || two.state("bad") == Some(State::Dead));
    let last = two.nodes[1].get("bad").wait().unwrap().unwrap().last.unwrap();
    assert_eq!((last.end, last.error.as_deref()), (RunEnd::Dead, Some("no")));
    assert_eq!(*ends.lock().unwrap(), [("bad".to_owned(), RunEnd::Dead)]);
    for node in &two.nodes {
        assert!(node.close(LONG).wait().unwrap().is_drained());
    }
    two.server.psql(&format!("SELECT {}.put('log', 'later')", two.schema));
    std::thread::sleep(millis(700));
    assert!(two.keys().is_empty(), "stopped nodes run nothing, and lose nothing");
    assert_eq!(two.rows(), "2");
}
