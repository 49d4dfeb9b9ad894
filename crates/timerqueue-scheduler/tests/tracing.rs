//! The span of a run, with the feature `tracing`.

#[path = "support/bench.rs"]
mod bench;

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use timerqueue_scheduler::store::{Fault, FaultyStore, StoreCallKind, Trouble};
use timerqueue_scheduler::{Outcome, Run, Scheduler};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use bench::Bench;

/// Writes down spans, events and entries; and calls a scheduler, as a subscriber may.
#[derive(Clone, Default)]
struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
    scheduler: Arc<Mutex<Option<Scheduler>>>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if !["run_id", "duration"].contains(&field.name()) {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
}

impl Notes {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        let scheduler = self.scheduler.lock().unwrap().clone();
        if let Some(scheduler) = scheduler {
            let _ = scheduler.stats().wait();
        }
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("timerqueue_scheduler")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(format!("span {}", span.metadata().name()));
        span.record(&mut text);
        self.add(text.0);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{}", event.metadata().level()));
        event.record(&mut text);
        self.add(text.0);
    }

    fn enter(&self, id: &Id) {
        self.add(format!("enter {}", id.into_u64()));
    }

    fn exit(&self, id: &Id) {
        self.add(format!("exit {}", id.into_u64()));
    }
}

#[test]
fn c7_each_run_is_in_a_span_and_failures_are_events() {
    let notes = Notes::default();
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        builder
            .async_handler("mail", |_: (), run: Run| async move {
                smol::future::yield_now().await;
                if run.attempt() == 1 { Err("refused") } else { Ok(Outcome::Done) }
            })
            .handler("bad", |_: (), _: &Run| Outcome::Dead("no user".to_owned()))
            .spawner(move |future| tasks.spawn(future).detach())
    });
    *notes.scheduler.lock().unwrap() = Some(bench.scheduler.clone());
    tracing::subscriber::with_default(notes.clone(), || {
        let _ = bench.to("mail", "m").trace("00-1-2-01").send().wait().unwrap();
        let _ = bench.to("bad", "b").send().wait().unwrap();
        for _ in 0..5 {
            bench.advance(1);
            while executor.try_tick() {}
        }
    });
    let lines = notes.lines.lock().unwrap();
    let has = |part: &str| lines.iter().any(|line| line.contains(part));
    assert!(lines.iter().any(|line| line.contains("attempt=2") && line.contains(r#"trace="00-1-2-01""#)), "{lines:#?}");
    for part in [
        r#"span run handler="mail" key="m" attempt=1"#,
        r#"span run handler="mail" key="m" attempt=2"#,
        r#"span run handler="bad" key="b" attempt=1"#,
        r#"WARN message=attempt failed error="refused""#,
        r#"ERROR message=job is dead error="no user""#,
        "DEBUG message=run ended end=Done",
    ] {
        assert!(has(part), "{part}: {lines:#?}");
    }
    let count = |word: &str| lines.iter().filter(|line| line.starts_with(word)).count();
    assert_eq!(count("enter"), count("exit"));
}

#[test]
fn a_store_that_fails_claims_or_ends_of_runs_is_an_event_once() {
    let (clock, runtime) = bench::clock();
    let store = FaultyStore::new(&runtime, |call| match call.kind {
        StoreCallKind::Claim | StoreCallKind::End if call.number <= 3 => Trouble::Fail(Fault::Full),
        _ => Trouble::None,
    });
    let notes = Notes::default();
    tracing::subscriber::with_default(notes.clone(), || {
        let builder = Scheduler::builder().runtime(&runtime).store(store).handler("mail", |_: (), _: &Run| {});
        let scheduler = builder.start().unwrap();
        *notes.scheduler.lock().unwrap() = Some(scheduler.clone());
        let placed = scheduler.put_to("mail", &()).key("m").send().wait().unwrap();
        assert!(placed.added().is_some());
        clock.advance(bench::HOUR);
        assert_eq!(scheduler.get("m").wait(), Ok(None));
        *notes.scheduler.lock().unwrap() = None;
    });
    let lines = notes.lines.lock().unwrap();
    let told = lines.iter().filter(|line| line.starts_with("WARN message=the store has failed")).count();
    assert_eq!(told, 2, "{lines:#?}");
}
