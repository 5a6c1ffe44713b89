//! The description of the admin API, which every answer that a test gets is held against.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// What the router serves as `/api/v1/openapi.json`.
pub(crate) static OPENAPI: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/admin/api/openapi.json")).expect("the description is JSON"));

/// Panics where this answer is not one that is described.
pub(crate) fn check(method: &str, target: &str, status: u16, answer: &Value) {
    let path = target.split('?').next().unwrap_or_default();
    let paths = OPENAPI["paths"].as_object().expect("paths");
    let described = paths.iter().find(|(template, _)| is_of(path, template)).map(|(_, operations)| &operations[method.to_lowercase()]);
    let schema = match described.filter(|operation| operation.is_object()) {
        Some(operation) => {
            let response = &operation["responses"][status.to_string()];
            let response = match response["$ref"].as_str() {
                Some(reference) => OPENAPI.pointer(reference.trim_start_matches('#')).expect("what is referred to is there"),
                None => response,
            };
            let schema = &response["content"]["application/json"]["schema"];
            assert!(schema.is_object(), "{method} {target}: status {status} is not described");
            schema
        }
        None => {
            assert!([404, 405].contains(&status), "{method} {target} is served and not described");
            &json!({"$ref": "#/components/schemas/Error"})
        }
    };
    let mut root = schema.clone();
    root["components"] = OPENAPI["components"].clone();
    let validator = jsonschema::draft202012::new(&root).expect("the schema is one");
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{method} {target}: {errors:#?} in {answer}");
}

fn is_of(path: &str, template: &str) -> bool {
    let (mut path, mut template) = (path.split('/'), template.split('/'));
    loop {
        match (path.next(), template.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if part == name || (name.starts_with('{') && !part.is_empty()) => {}
            _ => return false,
        }
    }
}
