#![no_main]
//! Paths and bodies: see `tests/fuzz/view.rs`.

#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/view.rs"]
mod view;

libfuzzer_sys::fuzz_target!(|data: &[u8]| view::check(data));
