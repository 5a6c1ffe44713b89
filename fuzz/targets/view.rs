#![no_main]
//! See `tests/fuzz/view.rs`.

#![allow(dead_code, reason = "the other targets use it")]

#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/view.rs"]
mod view;

libfuzzer_sys::fuzz_target!(|data: &[u8]| view::check(data));
