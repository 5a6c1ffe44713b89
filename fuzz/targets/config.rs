#![no_main]
//! See `tests/fuzz/config.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| prefix_router_fuzz::config(data));
