//! Jobs that wait for others, as handlers and their callers see them (J36).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue_scheduler::{Handler, JobEnd, PredecessorEnd, Retry, Run, RunEnd, State, Until};

use crate::bench::{Bench, HOUR};

/// The handler of the end of a batch asks which members have died. All of it happens in no time.
#[test]
fn j36_the_end_of_a_batch_knows_its_members_and_a_chain_goes_on_at_once() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    let bench = Bench::with(move |builder, _, _| {
        let member = |fails: bool, _: &Run| if fails { Err("no") } else { Ok(()) };
        let end = move |_: bool, run: &Run| {
            let own = run.scheduler().get(run.key()).wait().unwrap().unwrap();
            let dead = own.predecessors.iter().filter(|job| job.end == Some(PredecessorEnd::Dead));
            log.lock().unwrap().extend(dead.map(|job| format!("{} of {}", job.key, run.key())));
        };
        builder.register(Handler::new("member", member).retry(Retry::never())).handler("end", end)
    });
    let put = |name: &str, key: &str, fails: bool| bench.scheduler.put_to(name, &fails).key(key);
    let members: Vec<String> = (0..50).map(|n| format!("m{n}")).collect();
    let puts = members.iter().enumerate().map(|(n, key)| put("member", key, n % 20 == 7));
    let ends = [
        put("end", "end", false).after(&members, Until::AllEnded),
        put("end", "last", false).after(["end"], Until::AllDone),
        put("end", "never", false).after(&members, Until::AllDone),
    ];
    let placed = bench.scheduler.put_many(puts.chain(ends)).wait().unwrap();
    assert!(placed.into_iter().all(|placed| placed.unwrap().added().is_some()));
    bench.go();
    assert_eq!(*seen.lock().unwrap(), ["m7 of end", "m27 of end", "m47 of end"]);
    assert_eq!((bench.stats().done, bench.get("last"), bench.get("end")), (49, None, None));
    // What waits for success waits for the revival of three.
    assert_eq!(bench.get("never").unwrap().state, State::Queued);
}

#[test]
fn j36_a_job_that_is_blocked_is_told_of_and_its_end_can_be_awaited() {
    let ends: Arc<Mutex<Vec<(String, RunEnd, u32)>>> = Arc::default();
    let log = Arc::clone(&ends);
    let bench = Bench::with(move |builder, _, _| {
        let never = |_: (), run: &Run| -> () { panic!("begun: {run:?}") };
        builder.handler("h", never).on_run_end(move |record| {
            log.lock().unwrap().push((record.key.to_string(), record.run.end, record.run.attempt));
        })
    });
    let put = |key: &str| bench.scheduler.put_to("h", &()).key(key).kept_for(HOUR);
    let add = |put: timerqueue_scheduler::Put<'_>| put.send().wait().unwrap().added().unwrap();
    let _ = add(put("a").due(HOUR));
    let blocked = add(put("blocked").after(["a"], Until::AllDone));
    let behind = add(put("behind").after(["blocked"], Until::AllDoneOrDead));
    let waits = [blocked, behind].map(|id| bench.scheduler.wait_for(id, 3 * HOUR));
    assert_eq!(bench.scheduler.cancel("a").wait().unwrap(), timerqueue_scheduler::Cancel::Cancelled);
    bench.clock.advance(Duration::from_secs(1));
    let begun = bench.runtime.now();
    for wait in waits {
        let end = wait.wait().unwrap();
        assert!(matches!(&end, JobEnd::Dead(job) if job.last.as_ref().unwrap().end == RunEnd::Blocked), "{end:?}");
    }
    assert_eq!(bench.runtime.now(), begun, "both are there");
    let told = ["blocked", "behind"].map(|key| (key.to_owned(), RunEnd::Blocked, 0));
    assert_eq!((ends.lock().unwrap().clone(), bench.stats().blocked), (told.to_vec(), 2));
    // One that leaves without a run.
    let ok = bench.scheduler.put_to("log", &()).key("ok").due(HOUR);
    assert!(ok.send().wait().unwrap().added().is_some());
    let wait = bench.scheduler.wait_for(add(put("left").after(["ok"], Until::AnyDead)), 3 * HOUR);
    bench.clock.advance(HOUR);
    assert_eq!((wait.wait(), bench.get("left")), (Ok(JobEnd::Gone), None));
}
