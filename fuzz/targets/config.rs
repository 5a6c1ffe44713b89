#![no_main]
//! See `tests/fuzz/config.rs`.

#[path = "../../tests/fuzz/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::check(data));
