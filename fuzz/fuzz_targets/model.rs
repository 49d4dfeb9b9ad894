//! The programs of `tests/model`, made by a fuzzer: bytes in, and the crate must do what the model
//! says.

#![no_main]

#[path = "../../tests/model/harness/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = harness::run(bytes);
});
