//! What handlers return, and what their runs leave to the next attempts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Error, Handler, History, HistoryQuery, Query, Returned, Run, RunEnd, Scheduler, State};

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
    let notes = Arc::clone(&seen);
    let handler = move |closes: bool, run: &Run| {
        notes.lock().unwrap().push(run.progress::<u32>().unwrap());
        assert!(run.progress::<Vec<u32>>().is_err() || run.attempt() == 1);
        if closes {
            drop(run.scheduler().close(Duration::ZERO));
        }
        assert_eq!(run.save_progress(&run.attempt()).wait(), Ok(true));
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
}
