#![no_main]
//! See `tests/fuzz/request.rs`.

#![allow(dead_code, reason = "the other targets use it")]

#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/request.rs"]
mod request;
#[path = "../../tests/fuzz/traffic.rs"]
mod traffic;
#[path = "../../tests/fuzz/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(
    init: {
        // As in every program of Rust's, but for those that libFuzzer starts: a closed connection is an error, not the end.
        // SAFETY: it is called before there are other threads.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    },
    |data: &[u8]| request::check(data)
);
