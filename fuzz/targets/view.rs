#![no_main]
//! See `tests/fuzz/view.rs`.

libfuzzer_sys::fuzz_target!(|data: &[u8]| prefix_router_fuzz::view(data));
