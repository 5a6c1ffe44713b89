#![no_main]
//! See `tests/fuzz/answer.rs`.

#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/answer.rs"]
mod answer;
#[path = "../../tests/fuzz/traffic.rs"]
mod traffic;
#[path = "../../tests/fuzz/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| answer::check(data));
