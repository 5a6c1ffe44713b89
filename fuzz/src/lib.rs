//! The checks of all targets, as `cargo test` has them too: see `tests/fuzz`.

#[path = "../../tests/fuzz/answer.rs"]
mod answer;
#[path = "../../tests/fuzz/config.rs"]
mod config;
#[path = "../../tests/fuzz/input.rs"]
mod input;
#[path = "../../tests/fuzz/request.rs"]
mod request;
#[path = "../../tests/fuzz/traffic.rs"]
mod traffic;
#[path = "../../tests/fuzz/view.rs"]
mod view;
#[path = "../../tests/fuzz/wire.rs"]
mod wire;

/// What a replica answers.
pub fn answer(data: &[u8]) {
    answer::check(data);
}

/// A configuration.
pub fn config(data: &[u8]) {
    config::check(data);
}

/// What a client sends.
pub fn request(data: &[u8]) {
    request::check(data);
}

/// A body and what is seen of it.
pub fn view(data: &[u8]) {
    view::check(data);
}

/// As in every program of Rust's, but for those that libFuzzer starts: a closed connection is an error, not the end. To be called first.
pub fn expect_closed_connections() {
    // SAFETY: it is called before there are other threads.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}
