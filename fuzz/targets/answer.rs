#![no_main]
//! See `tests/fuzz/answer.rs`.

libfuzzer_sys::fuzz_target!(init: prefix_router_fuzz::expect_closed_connections(), |data: &[u8]| prefix_router_fuzz::answer(data));
