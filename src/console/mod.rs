//! A running router's own account of itself, in a terminal: `top` as a picture that lives, or once; `explain` as a story.
//!
//! It knows what the admin API says and nothing else. `picture` is what was said, `state` what a reader has chosen to see of it, `view` how that looks:
//! all three without any terminal; `terminal` has one.

mod client;
mod explain;
mod once;
mod picture;
mod state;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use client::Client;
pub use explain::{Question, explain};

/// How `top` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Until it is left, a picture for each interval.
    Live(Duration),
    /// One picture, as text.
    Once,
    /// What the API says, as one JSON document.
    Json,
}

/// Runs `top`.
pub fn top(client: &Client, show: Show) -> Result<()> {
    if matches!(show, Show::Live(_)) && !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("this is no terminal; --once prints one picture, --once --json the same for programs");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        match show {
            Show::Live(interval) => terminal::run(client, interval).await,
            Show::Once => once::text(client).await,
            Show::Json => once::json(client).await,
        }
    })
}

/// Text from outside for a terminal: what would move its cursor or colour it is replaced.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
