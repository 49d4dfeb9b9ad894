//! What handlers return, and what their runs leave to the next attempts.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{
    Error, Handler, History, HistoryQuery, JobEnd, Query, Retry, Returned, Run, RunEnd, Scheduler, State,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn j31_a_value_is_kept_with_its_done_job_or_the_job_is_dead() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let make = |n: usize, _: &Run| match n {
        0 => Returned("\0".to_owned()),
        n => Returned("x".repeat(n)),
    };
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .history(History::new(HOUR))
        .handler("make", make)
        .handler("map", |_: (), _: &Run| Map)
        .handler("none", |_: (), _: &Run| {})
        .register(Handler::new("unkept", |_: (), _: &Run| Returned(1)).history(None))
        .start()
        .unwrap();
    let put = |name: &str, n: usize| {
        let _ = scheduler.put_to(name, &n).key(&format!("{name}/{n}")).send().wait().unwrap();
    };
    put("make", 3);
    put("make", 0);
    put("make", 300_000);
    for name in ["map", "none", "unkept"] {
        let _ = scheduler.put_to(name, &()).key(name).send().wait().unwrap();
    }
    clock.advance(Duration::ZERO);
    let done = scheduler.history(HistoryQuery::new().oldest_first()).wait().unwrap();
    let mut seen: Vec<_> = done.iter().map(|job| (&*job.key, job.result.as_deref())).collect();
    seen.sort_unstable();
    assert_eq!(seen, [("make/3", Some("\"xxx\"")), ("none", None)]);
    let kept = done.iter().find(|job| &*job.key == "make/3").unwrap();
    assert_eq!(kept.value::<String>().unwrap().unwrap(), "xxx");
    assert!(kept.value::<u32>().unwrap().is_err());
    // Another attempt would have the same value.
    let dead = scheduler.list(Query::new().state(State::Dead)).wait().unwrap();
    let mut seen: Vec<_> = dead.iter().map(|job| (&*job.key, job.attempt)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [("make/0", 1), ("make/300000", 1), ("map", 1)]);
    assert!(dead.iter().all(|job| job.last.as_deref().is_some_and(|run| run.end == RunEnd::Dead)));
    assert_eq!(scheduler.stats().wait().unwrap().done, 3);
}

/// No JSON has a key that is no text.
struct Map;

impl timerqueue_scheduler::IntoOutcome for Map {
    fn into_outcome(self) -> Result<timerqueue_scheduler::Outcome, timerqueue_scheduler::HandlerError> {
        Returned(std::collections::BTreeMap::from([((1, 2), 3)])).into_outcome()
    }
}

#[test]
fn j31_progress_is_there_for_the_next_attempt_also_during_a_close() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::new(Mutex::new(Vec::new()));
    let (notes, saved) = (Arc::clone(&seen), Arc::clone(&answers));
    let handler = move |closes: bool, run: &Run| {
        notes.lock().unwrap().push(run.progress::<u32>().unwrap());
        assert!(run.progress::<Vec<u32>>().is_err() || run.attempt() == 1);
        if closes {
            drop(run.scheduler().close(Duration::ZERO));
        }
        saved.lock().unwrap().push(run.save_progress(&run.attempt()).wait());
        let wide = run.save_progress(&"x".repeat(300_000)).wait();
        assert!(matches!(wide, Err(Error::Invalid(_))), "{wide:?}");
        if run.attempt() < 3 && !closes { Err("again") } else { Ok(()) }
    };
    let scheduler = Scheduler::builder().runtime(&runtime).handler("h", handler).start().unwrap();
    let _ = scheduler.put_to("h", &false).key("a").send().wait().unwrap();
    clock.advance(HOUR);
    assert_eq!(seen.lock().unwrap().drain(..).collect::<Vec<_>>(), [None, Some(1), Some(2)]);
    let _ = scheduler.put_to("h", &true).key("b").send().wait().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(*seen.lock().unwrap(), [None]);
    assert_eq!(*answers.lock().unwrap(), [Ok(true), Ok(true), Ok(true), Ok(true)]);
}

/// Whoever waits, however the job ends, and on whichever scheduler.
#[test]
fn j32_the_end_of_a_job_can_be_awaited_up_to_a_limit() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let store = MemoryStore::new(&runtime);
    let front = Scheduler::builder().runtime(&runtime).store(store.clone()).start().unwrap();
    let handler = |n: u32, _: &Run| if n == 0 { Err("no") } else { Ok(Returned(2 * n)) };
    let double = Handler::new("double", handler).retry(Retry::never());
    let _back = Scheduler::builder().runtime(&runtime).store(store).register(double).start().unwrap();
    let put = |key: &str, n: u32| {
        let put = front.put_to("double", &n).key(key).due(HOUR).kept_for(HOUR);
        put.send().wait().unwrap().added().unwrap()
    };
    let ids = [put("done", 4), put("dead", 0), put("gone", 1)];
    assert_eq!(front.wait_for(ids[0], Duration::ZERO).wait(), Ok(JobEnd::Pending));
    let begun = runtime.now();
    assert_eq!(front.wait_for(ids[0], Duration::from_secs(60)).wait(), Ok(JobEnd::Pending));
    assert_eq!(runtime.elapsed(begun), Duration::from_secs(60));
    // Several wait for each of them, some for longer than the job takes.
    let waits = ids.map(|id| [front.wait_for(id, 2 * HOUR), front.wait_for(id, 3 * HOUR)]);
    drop(front.wait_for(ids[0], HOUR)); // nobody waits for the answer
    let _ = front.cancel("gone").wait().unwrap();
    clock.advance(HOUR);
    let begun = runtime.now();
    let [done, dead, gone] = waits.map(|both| both.map(|wait| wait.wait().unwrap()));
    assert_eq!(runtime.now(), begun, "all of them are there");
    for end in done {
        let JobEnd::Done(job) = end else { panic!("{end:?}") };
        assert_eq!((job.id, job.value::<u32>().unwrap().unwrap()), (ids[0], 8));
    }
    for end in dead {
        assert!(matches!(&end, JobEnd::Dead(job) if job.error.as_deref() == Some("no")), "{end:?}");
    }
    assert_eq!(gone, [JobEnd::Gone, JobEnd::Gone]);
    // Also who comes late, while the job is kept.
    assert!(matches!(front.wait_for(ids[0], HOUR).wait(), Ok(JobEnd::Done(_))));
    assert_eq!(front.wait_for(timerqueue_scheduler::JobId(99), HOUR).wait(), Ok(JobEnd::Gone));
    // A close ends the waits of its scheduler.
    let id = put("later", 1);
    let wait = front.wait_for(id, HOUR);
    let _ = front.close(Duration::ZERO).wait().unwrap();
    assert_eq!(wait.wait(), Ok(JobEnd::Pending));
    assert_eq!(front.wait_for(id, HOUR).wait(), Ok(JobEnd::Pending));
}

#[test]
fn j32_the_end_of_the_runtime_ends_a_wait() {
    let runtime = Runtime::builder().start().unwrap();
    let scheduler = Scheduler::builder().runtime(&runtime).handler("h", |_: (), _: &Run| {}).start().unwrap();
    let put = scheduler.put_to("h", &()).due(HOUR).kept_for(HOUR).send().wait().unwrap();
    let wait = scheduler.wait_for(put.added().unwrap(), HOUR);
    let _ = runtime.shutdown(Duration::from_secs(30));
    let (send, answer) = mpsc::channel();
    std::thread::spawn(move || send.send(wait.wait()));
    assert_eq!(answer.recv_timeout(Duration::from_secs(60)), Ok(Ok(JobEnd::Pending)));
}
