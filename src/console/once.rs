//! `top --once`: one picture as text, or as JSON.

use std::io::Write;

use anyhow::{Context, Result};
use comfy_table::{Table, presets};

use super::picture::{Picture, look, percent, seconds, take};
use super::{Client, clean};

/// Decisions that are shown.
const MOST: usize = 10;

pub(super) async fn json(client: &Client) -> Result<()> {
    print(&(serde_json::to_string(&look(client).await?)? + "\n"))
}

pub(super) async fn text(client: &Client) -> Result<()> {
    print(&shown(&take(client).await?))
}

pub(super) fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")
}

fn shown(picture: &Picture) -> String {
    let reasons: Vec<String> = picture.reasons().iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let reasons = if reasons.is_empty() { "none".to_owned() } else { reasons.join(", ") };
    let mut lines = vec![picture.headline(), picture.overview.savings.text.clone(), format!("Last ten minutes by reason: {reasons}")];
    lines.extend(picture.hottest());
    let mut text: String = lines.iter().map(|line| clean(line) + "\n").collect();
    let mut table = table();
    table.set_header(["replica", "state", "in flight", "share", "cached", "first byte 50 %", "90 %", "running", "waiting", "KV cache"]);
    for replica in &picture.fleet.replicas {
        let load = replica.threshold.map_or(replica.outstanding.to_string(), |threshold| format!("{} of {threshold}", replica.outstanding));
        let engine = replica.engine.as_ref();
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let cells = [
            replica.name.clone(),
            Picture::state(replica).to_owned(),
            load,
            percent(Some(replica.recent.share)),
            percent(replica.recent.cached_share),
            seconds(replica.recent.first_byte_p50),
            seconds(replica.recent.first_byte_p90),
            number(engine.and_then(|engine| engine.running)),
            number(engine.and_then(|engine| engine.waiting)),
            percent(engine.and_then(|engine| engine.kv_cache_usage)),
        ];
        table.add_row(cells.map(|cell| clean(&cell)));
    }
    text += &format!("\n{table}\nShare, cached and first byte are of the last {} requests.\n", picture.fleet.recent_requests);
    if !picture.decisions.decisions.is_empty() {
        text += "\nThe last requests:\n";
    }
    for one in picture.decisions.decisions.iter().take(MOST) {
        let line = format!("{}  {}  {}  {}  {}", one.request_id, one.status, one.reason, seconds(one.first_byte), one.why);
        text += &format!("  {}\n", clean(&line));
    }
    text
}

/// Cells side by side, without lines.
pub(super) fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}
