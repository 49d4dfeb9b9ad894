//! The programs of `tests/model.rs`, made by a fuzzer: bytes in, and the crate must do what the model says.

#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = model::run(bytes);
});
