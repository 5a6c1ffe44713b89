#![no_main]
//! See `tests/fuzz/request.rs`.

#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/request.rs"]
mod request;
#[path = "../../tests/fuzz/traffic.rs"]
mod traffic;
#[path = "../../tests/fuzz/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| request::check(data));
