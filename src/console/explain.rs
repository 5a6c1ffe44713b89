//! `explain`: where a request would go, as a story.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde_json::Value;

use super::client::escaped;
use super::once::{print, table};
use super::picture::{percent, seconds};
use super::{Client, clean};
use crate::request::IDENTIFIER_HEADER;

/// A request that somebody would send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The file with its body; `-`: the standard input.
    pub body: PathBuf,
    /// Where it would be sent.
    pub path: String,
    /// Its header for an identifier.
    pub identifier: Option<String>,
    /// Whether the answer is printed as the API says it.
    pub json: bool,
}

#[derive(Deserialize)]
struct Explained {
    steps: Vec<String>,
    candidates: Vec<Candidate>,
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Candidate {
    name: String,
    state: Option<String>,
    outstanding: u64,
    threshold: Option<u64>,
    gate: Option<String>,
    is_full: bool,
    overlap: Option<f64>,
    cost_seconds: Option<f64>,
    first_token_seconds: Option<f64>,
}

/// Asks the router, and prints what it says.
pub fn explain(client: &Client, question: &Question) -> Result<()> {
    let body = read(&question.body)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let path = format!("explain?path={}", escaped(&question.path));
    let header = IDENTIFIER_HEADER;
    let headers: Vec<(&str, &str)> = question.identifier.iter().map(|value| (header.as_str(), value.as_str())).collect();
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
    let said = runtime.block_on(client.ask(Method::POST, &path, Bytes::from(body), &headers))?;
    if question.json {
        return print(&(said.to_string() + "\n"));
    }
    let note = if is_json { "" } else { "The body is not JSON: it is placed by its bytes as they are.\n" };
    print(&(note.to_owned() + &story(said)?))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut body = Vec::new();
        io::copy(&mut io::stdin().lock(), &mut body).context("cannot read the body from the standard input")?;
        return Ok(body);
    }
    fs::read(file).with_context(|| format!("--body: cannot read {}", file.display()))
}

fn story(said: Value) -> Result<String> {
    let explained: Explained = serde_json::from_value(said).context("the router is of another version, and says something else")?;
    let mut text: String = explained.steps.iter().enumerate().map(|(at, step)| format!("{}. {}\n", at + 1, clean(step))).collect();
    if let Some(reason) = explained.reason {
        text += &format!("Reason: {}\n", clean(&reason));
    }
    if explained.candidates.is_empty() {
        return Ok(text);
    }
    let mut table = table();
    table.set_header(["replica", "state", "in flight", "gate", "expected in cache", "cost", "first token"]);
    for one in &explained.candidates {
        let state = one.state.as_deref().unwrap_or("leaving");
        let cells = [
            one.name.clone(),
            if one.is_full { format!("{state}, full") } else { state.to_owned() },
            one.threshold.map_or(one.outstanding.to_string(), |threshold| format!("{} of {threshold}", one.outstanding)),
            one.gate.clone().unwrap_or("-".to_owned()),
            percent(one.overlap),
            seconds(one.cost_seconds),
            seconds(one.first_token_seconds),
        ];
        table.add_row(cells.map(|cell| clean(&cell)));
    }
    Ok(format!("{text}\n{table}\n"))
}
