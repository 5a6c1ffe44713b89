//! What the fuzzer has found worth keeping, and whatever once broke something, goes through the same checks again. `fuzz/README.md` tells of the fuzzer.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod answer;
mod config;
mod input;
mod request;
mod traffic;
mod view;
mod wire;

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// Every input that is kept for `target`.
fn replay(target: &str, check: fn(&[u8])) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["corpus", "regressions"] {
        let Ok(entries) = fs::read_dir(root.join(folder).join(target)) else { continue };
        files.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()));
    }
    files.sort();
    assert!(files.len() > 20, "the inputs are there");
    for file in files {
        let data = fs::read(&file).unwrap();
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| check(&data))) {
            eprintln!("with {}", file.display());
            panic::resume_unwind(panic);
        }
    }
}

#[test]
fn requests() {
    replay("request", request::check);
}

#[test]
fn views() {
    replay("view", view::check);
}

#[test]
fn configurations() {
    replay("config", config::check);
}

#[test]
fn answers() {
    replay("answer", answer::check);
}
