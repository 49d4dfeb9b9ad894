//! The serialized form. It is stable: these texts stay readable, and stay the output.

use std::time::Duration;

use serde::de::DeserializeSeed;

use crate::support::{at, seconds, unix};
use timerqueue_schedule::{CalendarUnit, Loader, Schedule, Zones};

#[track_caller]
fn stable(schedule: &Schedule, text: &str) {
    assert_eq!(serde_json::to_string(schedule).unwrap(), text);
    assert_eq!(&serde_json::from_str::<Schedule>(text).unwrap(), schedule);
}

#[test]
fn the_text_is_stable() {
    stable(&Schedule::every(seconds(90)).build().unwrap(), r#"{"every":"90s"}"#);
    stable(&Schedule::fixed_delay(Duration::from_millis(250)).build().unwrap(), r#"{"fixed_delay":"0.25s"}"#);
    let full = Schedule::cron("30 2 * * MON-FRI")
        .zone("Europe/Berlin")
        .from(at("2026-01-01T00:00:00Z"))
        .until(unix(253_402_300_800))
        .times(3)
        .key("report/42")
        .spread(seconds(600))
        .jitter(Duration::from_nanos(1));
    stable(
        &full.build().unwrap(),
        "{\"cron\":\"30 2 * * MON-FRI\",\"zone\":\"Europe/Berlin\",\"from\":\"2026-01-01T00:00:00Z\",\
         \"until\":\"@253402300800\",\"times\":3,\"key\":\"report/42\",\"spread\":\"600s\",\"jitter\":\"0.000000001s\"}",
    );
}

#[test]
fn the_bytes_are_stable() {
    let schedule = Schedule::every(seconds(90)).times(3).from(unix(0)).build().unwrap();
    let bytes = postcard::to_stdvec(&schedule).unwrap();
    let expected = [&[1, 3][..], b"90s", &[0, 0, 0, 0, 1, 20], b"1970-01-01T00:00:00Z", &[0, 1, 3, 0, 0, 0]].concat();
    assert_eq!(bytes, expected);
    assert_eq!(postcard::from_bytes::<Schedule>(&bytes).unwrap(), schedule);
}

#[test]
fn later_parts_have_fields_behind_the_others_and_a_text_in_binary_formats() {
    let schedules = [
        (
            Schedule::cron("0 9 * * MON").zone("Europe/Berlin").from(unix(0)).each(2, CalendarUnit::Week),
            r#"{"cron":"0 9 * * MON","zone":"Europe/Berlin","from":"1970-01-01T00:00:00Z","each":"2 weeks"}"#,
        ),
        (
            Schedule::cron("@daily").key("a").except(["12-25", "2026-12-24"]),
            r#"{"cron":"@daily","key":"a","except":["12-25","2026-12-24"]}"#,
        ),
        (
            Schedule::any([Schedule::cron("@daily").zone("UTC"), Schedule::every(seconds(90))]).times(3).from(unix(0)),
            r#"{"from":"1970-01-01T00:00:00Z","times":3,"any":[{"cron":"@daily","zone":"UTC"},{"every":"90s"}]}"#,
        ),
    ];
    for (builder, text) in schedules {
        let schedule = builder.build().unwrap();
        stable(&schedule, text);
        assert_eq!(schedule.to_string(), text);
        assert_eq!(text.parse::<Schedule>().unwrap(), schedule);
        let bytes = postcard::to_stdvec(&schedule).unwrap();
        assert!(bytes.ends_with(&[text.as_bytes(), &[0; 10]].concat()));
        assert_eq!(postcard::from_bytes::<Schedule>(&bytes).unwrap(), schedule);
    }
    let loader = Loader::new().rule("mine", |_| Some(unix(5)));
    let text = r#"{"any":[{"rule":"mine"},{"cron":"@daily"}]}"#;
    let schedule = loader.deserialize(&mut serde_json::Deserializer::from_str(text)).unwrap();
    assert_eq!(schedule.next_after(unix(0)).unwrap().nominal(), unix(5));
    // No text is as deep as the stack.
    let deep = format!("{}{{\"every\":\"1s\"}}{}", "{\"any\":[".repeat(100_000), "]}".repeat(100_000));
    assert!(deep.parse::<Schedule>().is_err());
}

#[test]
fn other_spellings_are_read() {
    let read = |text| serde_json::from_str::<Schedule>(text).unwrap();
    let schedule = read(r#"{"until":"2030-01-01T01:00:00+01:00","cron":" @daily ","zone":null,"times":null}"#);
    assert_eq!(schedule, read(r#"{"cron":"@daily","until":"2030-01-01T00:00:00Z"}"#));
}

#[test]
fn what_is_wrong_is_named() {
    for (text, error) in [
        ("{}", "exactly one of"),
        (r#"{"every":"1s","cron":"@daily"}"#, "exactly one of"),
        (r#"{"every":"1"}"#, "invalid duration \"1\""),
        (r#"{"every":1}"#, "expected a string"),
        (r#"{"every":"0s"}"#, "too short"),
        (r#"{"every":"1s","form":"2026-01-01T00:00:00Z"}"#, "unknown field `form`"),
        (r#"{"every":"1s","from":"today"}"#, "invalid instant \"today\""),
        (r#"{"every":"1s","from":"@99999999999999999999"}"#, "invalid instant"),
        (r#"{"every":"1s","zone":"UTC"}"#, "only cron lines"),
        (r#"{"cron":"0 0 30 2 *"}"#, "never fires"),
        (r#"{"cron":"@daily","zone":"Europe/Atlantis"}"#, "unknown time zone \"Europe/Atlantis\""),
        (r#"{"cron":"@daily","from":"@0","each":"2 years"}"#, "\"2 years\" is no number of days, weeks or months"),
        (r#"{"cron":"@daily","except":["2026-02-30"]}"#, "\"2026-02-30\" is no date"),
        (r#"{"any":[]}"#, "a union has"),
        (r#"{"any":[{"any":[{"cron":"@daily"}]}]}"#, "a union is no part"),
        (r#"{"any":[{"every":"1s"}],"cron":"@daily"}"#, "exactly one of"),
        (r#"{"rule":"mine"}"#, "unknown rule \"mine\""),
    ] {
        let message = serde_json::from_str::<Schedule>(text).unwrap_err().to_string();
        assert!(message.contains(error), "{text}: {message}");
    }
}

#[test]
fn a_loader_supplies_zone_data() {
    let folder =
        ["/usr/share/zoneinfo", "/usr/lib/zoneinfo"].into_iter().find(|path| std::path::Path::new(path).is_dir());
    let Some(folder) = folder else { return };
    let zone = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap();
    // Tomorrow's data: Berlin has the clock of Tokyo.
    let newer = Zones::folder(folder).unwrap().with_zone("Europe/Berlin", &zone("Asia/Tokyo")).unwrap();
    let schedule = Schedule::cron("@daily").zone("Europe/Berlin").build().unwrap();
    let text = serde_json::to_string(&schedule).unwrap();
    let loader = Loader::new().zones(newer.clone());
    let read = loader.deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
    let tokyo = Schedule::cron("@daily").zone("Asia/Tokyo").build().unwrap();
    let t = at("2026-01-01T00:00:00Z");
    assert_eq!(read.preview(t, 10), tokyo.preview(t, 10));
    assert_eq!(schedule.to_builder().build_in(&newer).unwrap().preview(t, 10), read.preview(t, 10));
}
