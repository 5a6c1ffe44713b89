//! How a simulated replica is started, and the file that says so.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sim::replica;

/// A replica as it is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The name of the model that it serves.
    pub model: String,
    /// Whether `usage` tells of cached tokens; vLLM's `--enable-prompt-tokens-details`.
    pub prompt_tokens_details: bool,
    /// Whether answers have an `x-request-id`; vLLM's `--enable-request-id-headers`.
    pub request_id_headers: bool,
    /// What requests to `/v1` and other inference paths must bring as bearer token; vLLM's `--api-key`.
    pub api_key: Option<String>,
    /// The engine.
    pub engine: replica::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            model: "demo-model".into(),
            prompt_tokens_details: true,
            request_id_headers: false,
            api_key: None,
            engine: replica::Settings::default(),
        }
    }
}

impl Settings {
    /// Reads a JSON file. An error names the file, what is wrong, where, and what is allowed.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: cannot read it: {error}", file.display()))?;
        // serde_json names the field, what is allowed, line and column.
        let settings: Self = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        match settings.problem() {
            Some(problem) => Err(format!("{}: {problem}", file.display())),
            None => Ok(settings),
        }
    }

    /// What is wrong with these settings, if anything: a name, the value, and what is allowed.
    pub fn problem(&self) -> Option<String> {
        if self.model.is_empty() {
            return Some("model: \"\" is not allowed; allowed: a name".into());
        }
        self.engine.problem().map(|problem| format!("engine.{problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn problem(text: &str) -> String {
        let name = format!("demo-replica-{}-{:?}.json", std::process::id(), std::thread::current().id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, text).expect("it can be written");
        let read = Settings::read(&file);
        std::fs::remove_file(&file).expect("it is there");
        read.map_or_else(|error| error, |settings| format!("{settings:?}"))
    }

    #[test]
    fn the_documented_file_is_the_default() {
        let page = include_str!("../../docs/demo-replica.md");
        let file = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it is there");
        assert_eq!(serde_json::from_str::<Settings>(file).expect("it is a file of settings"), Settings::default());
        let keys = |text: &str| text.matches("\":").count();
        assert_eq!(keys(file), keys(&serde_json::to_string(&Settings::default()).expect("it can be written")), "all keys are shown");
    }

    #[test]
    fn files_are_read_and_their_errors_are_clear() {
        let read = problem(r#"{"model": "m", "engine": {"blocks": 9, "max_model_len": 100, "cost": {"step": 0.5}}}"#);
        assert!(read.contains("model: \"m\"") && read.contains("blocks: 9") && read.contains("step: 0.5"), "{read}");
        let unknown = problem(r#"{"engine": {"block": 9}}"#);
        assert!(unknown.contains(".json: unknown field `block`, expected one of `block_size`, `blocks`"), "{unknown}");
        assert!(unknown.contains("line 1 column"), "{unknown}");
        let range = problem(r#"{"engine": {"blocks": 1}}"#);
        assert!(range.contains("engine.blocks: 1 is out of range; allowed: 2 to"), "{range}");
        assert!(problem(r#"{"model": ""}"#).contains("model: \"\" is not allowed"));
        let none = Settings::read(Path::new("/no/such/file")).expect_err("there is none");
        assert!(none.contains("/no/such/file: cannot read it"), "{none}");
    }
}
