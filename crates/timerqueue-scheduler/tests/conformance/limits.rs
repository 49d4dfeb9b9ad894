//! Limits, lists and counts.

use super::*;

use timerqueue_scheduler::store::Invalid;

pub(crate) fn limits_of_keys_and_names<R: Rig>() {
    let store = Bench::<R>::new();
    let longest = "ü".repeat(MAX_KEY_BYTES / 2);
    let _ = ADDED(store.put(&longest, When::At(at(0))));
    assert_eq!(store.due(), [longest.as_str()], "bytes count, and text survives");
    for (key, error) in [
        ("", Invalid::EmptyKey),
        (&"k".repeat(MAX_KEY_BYTES + 1), Invalid::KeyTooLong { bytes: MAX_KEY_BYTES + 1 }),
        ("a\0b", Invalid::NulInKey),
    ] {
        assert_eq!(store.put(key, When::At(at(0))), Applied::Invalid(error));
        assert_eq!(store.change(key, Mutation::Cancel), Applied::Invalid(error));
    }
    for (name, error) in [
        ("", Invalid::EmptyName),
        (&"n".repeat(MAX_KEY_BYTES + 1), Invalid::NameTooLong { bytes: MAX_KEY_BYTES + 1 }),
        ("a\0b", Invalid::NulInName),
    ] {
        let new = NewJob { name: name.into(), ..new_job("a", When::At(at(0))) };
        assert_eq!(store.one(Op::Put(Box::new(new))), Applied::Invalid(error));
        assert_eq!(store.one(Op::PauseHandler { name: name.into(), paused: true }), Applied::Invalid(error));
    }
    // Texts that SQL and patterns might take for their own.
    for key in ["'; drop table jobs; --", "%", "_", "\\", "a b\n\t", "\u{1F980}", "\u{FEFF}x"] {
        let _ = ADDED(store.put(key, When::At(at(0))));
        assert_eq!(&*store.get(key).unwrap().key, key);
        assert_eq!(store.list(Query::new().key_prefix(key)).len(), 1, "{key}");
    }
}

pub(crate) fn limits_of_payloads<R: Rig>() {
    let store = Bench::<R>::new();
    let put = |payload: &str| {
        let _ = store.change("a", Mutation::Cancel);
        store.one(Op::Put(Box::new(NewJob { payload: payload.into(), ..new_job("a", When::At(at(0))) })))
    };
    let longest = format!("\"{}\"", "x".repeat(MAX_PAYLOAD_BYTES - 2));
    for payload in [&longest, r#"{"a":[1,2.5,null,"\\u0000 \"é\u0001"]}"#, "\"\u{1F980}\""] {
        let _ = ADDED(put(payload));
        assert_eq!(&*store.get("a").unwrap().payload, payload, "as it was put");
    }
    let longer = format!("\"{}\"", "x".repeat(MAX_PAYLOAD_BYTES - 1));
    assert_eq!(put(&longer), Applied::Invalid(Invalid::PayloadTooLong { bytes: MAX_PAYLOAD_BYTES + 1 }));
    for (payload, error) in [
        (r#""\u0000""#, Invalid::NulInPayload),
        (r#"{"\u0000":1}"#, Invalid::NulInPayload),
        ("\"\0\"", Invalid::PayloadNotJson),
        ("", Invalid::PayloadNotJson),
        ("{", Invalid::PayloadNotJson),
    ] {
        assert_eq!(put(payload), Applied::Invalid(error), "{payload}");
    }
}

pub(crate) fn limits_of_instants<R: Rig>() {
    let store = Bench::<R>::new();
    let _ = ADDED(store.put("first", When::At(Micros::FIRST)));
    let _ = ADDED(store.put("last", When::At(Micros::LAST)));
    assert_eq!(store.get("last").unwrap().due, Some(Micros::LAST.to_system()));
    for after in [Duration::MAX, secs(8_000 * 366 * 86_400)] {
        assert_eq!(store.put("far", When::After(after)), Applied::Invalid(Invalid::InstantOutOfRange));
        assert_eq!(
            store.change("last", Mutation::Move(When::After(after))),
            Applied::Invalid(Invalid::InstantOutOfRange)
        );
    }
    let second = Duration::from_secs(1);
    let (first, last) = (Micros::FIRST.to_system(), Micros::LAST.to_system());
    assert_eq!(Micros::ceil(first - Duration::from_nanos(100)), Err(Invalid::InstantOutOfRange));
    assert_eq!(Micros::ceil(last + second), Err(Invalid::InstantOutOfRange));
    assert_eq!(Micros::ceil(first + Duration::from_nanos(100)), Ok(Micros::new(1)));
    // A job at the end of all instants is never due, nor is another run there.
    let jobs = store.claim().jobs;
    assert_eq!(keys(&jobs), ["first"]);
    assert_eq!(store.settle(&jobs[0], Verdict::Again(When::After(Duration::MAX))), Applied::Held(true));
    assert_eq!(store.get("first").unwrap().due, Some(last));
}

pub(crate) fn lists_are_filtered_and_paged<R: Rig>() {
    let store = Bench::<R>::new();
    for n in 0..600 {
        let name = if n % 2 == 0 { "h" } else { "other" };
        let key = format!("{}/{n}", if n < 300 { "a" } else { "b" });
        let _ = store.one(Op::Put(Box::new(NewJob { name: name.into(), ..new_job(&key, When::At(at(n))) })));
    }
    assert_eq!(store.list(Query::new()).len(), 600);
    assert_eq!(store.list(Query::new().name("h").key_prefix("b/")).len(), 150);
    assert!(store.list(Query::new().name("none")).is_empty());
    let (mut seen, mut query) = (Vec::new(), Query::new().key_prefix("a/").limit(70));
    loop {
        let page = store.list(query);
        let Some(last) = page.last() else { break };
        query = Query::new().key_prefix("a/").limit(70).after(last.id);
        seen.extend(page.iter().map(|job| job.id));
    }
    assert_eq!(seen.len(), 300);
    assert!(seen.is_sorted(), "in the order of the numbers");
    store.clock(3);
    assert_eq!(store.claim().jobs.len(), 2);
    assert_eq!(store.list(Query::new().state(State::Running)).len(), 2);
    assert!(store.list(Query::new().limit(0)).is_empty());
}

pub(crate) fn counts_by_handler_and_state<R: Rig>() {
    let store = Bench::<R>::new();
    assert_eq!(store.counts().of(State::Waiting), 0);
    for n in 0..5 {
        let _ = store.put(&n.to_string(), When::At(at(n)));
    }
    let _ = store.put_recurring("r", Overlap::Skip, 10);
    store.clock(2);
    let jobs = store.claim().jobs;
    let _ = store.settle(&jobs[0], Verdict::Dead);
    let counts = store.counts();
    let kind = counts.kind("h").unwrap();
    let states = [State::Waiting, State::Running, State::Dead, State::Recurring, State::Queued];
    assert_eq!(states.map(|state| kind.of(state)), [2, 2, 1, 1, 0]);
    assert_eq!(counts.oldest_overdue, None);
    store.clock(9);
    let counts = store.counts();
    assert_eq!((counts.oldest_overdue, counts.now), (Some(at(3).to_system()), Some(at(9).to_system())));
    let _ = store.change("3", Mutation::Pause);
    assert_eq!(store.counts().oldest_overdue, Some(at(4).to_system()), "paused jobs do not count");
}
