//! Payloads that a codec writes and reads.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Builder, Codec, Handler, Permanent, Retry, Run, Scheduler, State};

use crate::bench::{clock, secs};

/// Each byte as two digits, in the reverse order; and troubles on request.
#[derive(Clone, Default)]
struct Hex {
    fails: Arc<AtomicBool>,
}

type Coded = Result<String, Box<dyn Error + Send + Sync>>;

impl Codec for Hex {
    fn encode(&self, json: &str) -> Coded {
        match json {
            "\"panic\"" => panic!("the codec"),
            "\"error\"" => Err("no key".into()),
            json => Ok(json.bytes().rev().map(|byte| format!("{byte:02x}")).collect()),
        }
    }

    fn decode(&self, text: &str) -> Coded {
        if self.fails.load(Ordering::SeqCst) {
            return Err("the key server is away".into());
        }
        assert!(!text.is_empty(), "the codec");
        let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2).unwrap_or_default(), 16);
        let bytes: Result<Vec<u8>, _> = (0..text.len()).step_by(2).rev().map(digits).collect();
        Ok(String::from_utf8(bytes.map_err(Permanent::new)?)?)
    }
}

type Seen = Arc<Mutex<Vec<String>>>;

fn builder(runtime: &Runtime, store: &MemoryStore, seen: &Seen) -> Builder {
    let (blocking, later) = (Arc::clone(seen), Arc::clone(seen));
    let retry = || Retry::waits([secs(10)]);
    let see = move |text: String, _: &Run| blocking.lock().unwrap().push(text);
    let see_later = move |text: String, _: Run| {
        later.lock().unwrap().push(text);
        async {}
    };
    Scheduler::builder()
        .runtime(runtime)
        .store(store.clone())
        .register(Handler::new("see", see).retry(retry()))
        .register(Handler::new_async("later", see_later).retry(retry()).spawner(smol::block_on))
}

fn rig() -> (ManualClock, Runtime, MemoryStore, Seen) {
    let (clock, runtime) = clock();
    let store = MemoryStore::new(&runtime);
    (clock, runtime, store, Seen::default())
}

#[test]
fn payloads_are_encoded_in_the_store_and_read_by_handlers() {
    let (clock, runtime, store, seen) = rig();
    let plain = Scheduler::builder().runtime(&runtime).store(store.clone()).start().unwrap();
    let scheduler = builder(&runtime, &store, &seen).codec(Hex::default()).start().unwrap();
    for name in ["see", "later"] {
        let _ = scheduler.put_to(name, "größe").key("secret").due(secs(1)).send().wait().unwrap();
        let _ = plain.put_to(name, "from before").due(secs(2)).send().wait().unwrap();
        let stored = scheduler.get("secret").wait().unwrap().unwrap().payload;
        assert!(stored.starts_with("{\"timerqueue.encoded\":\"22") && !stored.contains("gr"), "{stored}");
        let _ = scheduler.edit("secret").payload("edited").send().wait().unwrap();
        let stored = scheduler.get("secret").wait().unwrap().unwrap().payload;
        assert!(!stored.contains("edited"), "{stored}");
        let many = ["a", "b"].map(|text| scheduler.put_to(name, text).due(secs(3)));
        assert!(scheduler.put_many(many).wait().unwrap().iter().all(Result::is_ok));
        clock.advance(secs(5));
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), ["edited", "from before", "a", "b"]);
    }
    for text in ["panic", "error"] {
        let put = scheduler.put_to("see", text).send().wait();
        assert!(matches!(put, Err(timerqueue_scheduler::Error::NotSerializable { .. })), "{put:?}");
    }
}

#[test]
fn a_payload_that_cannot_be_decoded_is_a_failed_attempt() {
    let (clock, runtime, store, seen) = rig();
    let codec = Hex::default();
    let scheduler = builder(&runtime, &store, &seen).codec(codec.clone()).start().unwrap();
    codec.fails.store(true, Ordering::SeqCst);
    let error = |key: &str| scheduler.get(key).wait().unwrap().unwrap().error.unwrap_or_default().to_string();
    for name in ["see", "later"] {
        let _ = scheduler.put_to(name, "x").key(name).send().wait().unwrap();
    }
    clock.advance(secs(1));
    assert_eq!((error("see"), error("later")), ("the key server is away".into(), "the key server is away".into()));
    codec.fails.store(false, Ordering::SeqCst);
    clock.advance(secs(10));
    assert_eq!(*seen.lock().unwrap(), ["x", "x"]);
    // By hand: a panic of the codec, a permanent error, and an envelope of another form.
    let by_hand = |key: &str, text: serde_json::Value| {
        let plain = Scheduler::builder().runtime(&runtime).store(store.clone()).start().unwrap();
        let _ = plain.put_to("see", &text).key(key).send().wait().unwrap();
        clock.advance(secs(1));
        let job = scheduler.get(key).wait().unwrap().unwrap();
        (job.state, job.error.unwrap_or_default().to_string())
    };
    let (state, text) = by_hand("panic", serde_json::json!({"timerqueue.encoded": ""}));
    assert!(state == State::Waiting && text.contains("panic: the codec"), "{text}");
    assert_eq!(by_hand("permanent", serde_json::json!({"timerqueue.encoded": "zz"})).0, State::Dead);
    assert_eq!(by_hand("form", serde_json::json!({"timerqueue.encoded": 7})).0, State::Dead);
}

#[test]
fn a_scheduler_without_the_codec_fails_and_one_with_it_goes_on() {
    let (clock, runtime, store, seen) = rig();
    let front = Scheduler::builder().runtime(&runtime).store(store.clone()).codec(Hex::default()).start().unwrap();
    let without = builder(&runtime, &store, &seen).start().unwrap();
    let _ = front.put_to("see", "x").key("a").send().wait().unwrap();
    clock.advance(secs(1));
    let error = front.get("a").wait().unwrap().unwrap().error.unwrap();
    assert_eq!(&*error, "the payload is encoded, and the scheduler has no codec");
    drop(without);
    let _with = builder(&runtime, &store, &seen).codec(Hex::default()).start().unwrap();
    clock.advance(secs(10));
    assert_eq!(*seen.lock().unwrap(), ["x"]);
}
