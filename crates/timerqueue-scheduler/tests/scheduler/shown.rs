//! The serialized forms of what users see: the JSON of `timerqueue --json`.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json, to_value};
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Catchup, Figure, Handler, JobInfo, Overlap, Retry, Run, Schedule, Scheduler};

#[test]
fn the_dashboard_shows_figures_that_there_are() {
    let dashboard = include_str!("../../docs/grafana.json");
    let words = dashboard.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: Vec<_> = words.filter(|word| word.starts_with("timerqueue_")).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(Figure::KINDS.iter().any(|kind| kind.name == name), "{name}");
    }
}

#[test]
fn jobs_and_counts_serialize_for_people_and_programs() {
    let clock = ManualClock::new();
    clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let fails = Handler::new("mail", |_: Value, _: &Run| Err::<(), _>("away")).retry(Retry::new(3).jitter(0.0));
    let scheduler = Scheduler::builder().runtime(&runtime).register(fails).start().unwrap();
    let hourly = Schedule::every(Duration::from_secs(3_600)).build().unwrap();
    let put = scheduler.put_to("mail", &json!({"to": "ann", "n": [1, null]})).key("a");
    let _ = put.due(Duration::from_millis(1_500)).group("x").send().wait().unwrap();
    let put = scheduler.put_to("mail", &()).key("r").schedule(hourly).catchup(Catchup::RunAll { at_most: 3 });
    let _ = put.overlap(Overlap::QueueOne).grace(Duration::from_millis(90_500)).send().wait().unwrap();
    clock.advance(Duration::from_secs(2));
    let job = |key: &str| -> JobInfo { scheduler.get(key).wait().unwrap().unwrap() };
    let run = json!({
        "due": "2026-01-01T00:00:01.5Z", "nominal": null, "started": "2026-01-01T00:00:01.5Z", "seconds": 0.0,
        "attempt": 1, "end": "failed", "error": "away",
    });
    let failing = json!({
        "id": 1, "key": "a", "handler": "mail", "group": "x", "payload": {"to": "ann", "n": [1, null]},
        "state": "waiting", "paused": false, "due": "2026-01-01T00:00:02.5Z", "nominal": null, "parent": null,
        "attempt": 1, "crashes": 0, "error": "away", "last": run, "failures": [run], "added": "2026-01-01T00:00:00Z",
    });
    assert_eq!(to_value(job("a")).unwrap(), failing);
    let recurring = to_value(job("r")).unwrap();
    assert_eq!(
        recurring["recurring"],
        json!({
            "schedule": {"every": "3600s"}, "catchup": {"run_all": 3}, "grace_seconds": 90.5, "overlap": "queue_one",
        })
    );
    assert_eq!((&recurring["state"], &recurring["due"]), (&json!("recurring"), &json!("2026-01-01T01:00:00Z")));
    assert_eq!(recurring["tally"], json!({"runs": 1, "skipped": 0, "missed": 0}));
    assert_eq!(
        to_value(scheduler.stats().wait().unwrap().jobs).unwrap(),
        json!({
            "handlers": [{
                "handler": "mail", "paused": false, "failing": 2,
                "waiting": 2, "queued": 0, "running": 0, "dead": 0, "recurring": 1,
            }],
            "oldest_overdue": null, "overdue_seconds": null, "ahead": 0, "now": "2026-01-01T00:00:02Z",
        })
    );
    let node = to_value(&scheduler.nodes().wait().unwrap()[0]).unwrap();
    assert_eq!(node["handlers"], json!([{"handler": "mail", "parallel": 32, "running": 0}]));
    assert_eq!(node["running"], 0);
    let shown = to_value(job("r").shown(runtime.wall_now())).unwrap();
    assert_eq!((&shown["ahead"], &shown["next"][1]), (&json!(false), &json!("2026-01-01T02:00:00Z")));
    assert_eq!(shown["next"].as_array().unwrap().len(), 5);
    assert_eq!(to_value(job("a").shown(runtime.wall_now())).unwrap(), failing);
    let activity = scheduler.activity(runtime.wall_now(), Duration::from_secs(60)).wait().unwrap();
    assert_eq!(
        to_value(&activity[0]).unwrap(),
        json!({
            "begin": "2026-01-01T00:00:00Z", "handler": "mail", "done": 0, "again": 0, "failed": 3, "died": 0, "expired": 0,
            "lateness": {"count": 3, "p50_seconds": 0.0, "p99_seconds": 0.0, "longest_seconds": 0.0},
        })
    );
}
