//! Pages of docs/ that list what the code has: both list the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prefix_router::telemetry::{ACCESS_LOG_FIELDS, Metrics, MetricsSettings};

/// What is in `…` in a cell of a table.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The cells of a page's table rows; `\|` is part of a cell.
fn rows(page: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).unwrap();
    let cells = |line: &str| -> Vec<String> {
        let line = line.replace("\\|", "\0");
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
    };
    text.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

#[test]
fn every_series_is_in_the_table_with_its_labels_and_a_query() {
    let code: BTreeMap<String, Vec<String>> = Metrics::new(&MetricsSettings::default())
        .unwrap()
        .families()
        .iter()
        .map(|family| (family.name.clone(), family.labels.clone()))
        .collect();
    let mut table = BTreeMap::new();
    for cells in rows("metrics.md") {
        let [name, labels, meaning, query] = cells.as_slice() else { panic!("{cells:?} has not four cells") };
        let name = quoted(name).concat();
        assert!(!meaning.is_empty(), "{name} has no meaning");
        assert!(quoted(query).concat().contains(&name), "{name} is not in its query");
        assert!(table.insert(name.clone(), quoted(labels)).is_none(), "{name} is there twice");
    }
    assert!(table.len() > 50, "the table is there");
    assert_eq!(table, code);
}

#[test]
fn every_field_of_the_access_log_is_in_the_table_in_its_order() {
    let fields: Vec<String> =
        rows("access-log.md").iter().filter(|cells| !cells[0].contains(':')).map(|cells| quoted(&cells[0]).concat()).collect();
    assert_eq!(fields, ACCESS_LOG_FIELDS);
}
