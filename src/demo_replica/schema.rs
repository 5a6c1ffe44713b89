//! Makes a small value that a JSON schema accepts, as an engine with guided decoding writes one.
//!
//! It obeys what clients' schemas use: types, constants, choices, references, required properties, and bounds of sizes and numbers. It does
//! not obey `pattern`, `not`, `if` and `uniqueItems`. Schemas come from clients, and a short one can ask for any number of values: one budget
//! bounds all that is done for it, and what is left of the value then is as short as can be.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value};

/// How deep values may be nested. Schemas that refer to themselves and require it have no end.
const MAX_DEPTH: usize = 24;

/// What may be done for a schema: so many bytes of it may be gone through, again for each time that a reference leads there.
const BUDGET: usize = 1 << 24;

/// What a value costs that is written: there may be 32,768.
const PER_VALUE: usize = 1 << 9;

/// What a byte of text costs that is written: there may be 256 KiB.
const PER_BYTE: usize = 1 << 6;

/// A value for `schema`; nothing is in it that is not required.
pub(super) fn instance(schema: &Value) -> Value {
    Maker { root: schema, left: Cell::new(BUDGET) }.make(schema, 0)
}

struct Maker<'a> {
    root: &'a Value,
    /// Of the budget.
    left: Cell<usize>,
}

impl Maker<'_> {
    fn make(&self, schema: &Value, depth: usize) -> Value {
        let Some(schema) = schema.as_object() else { return Value::Object(Map::new()) };
        if depth > MAX_DEPTH || !self.pay(PER_VALUE) {
            return Value::Null;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| self.resolve(path)) {
            return self.make(target, depth + 1);
        }
        let fixed = || schema.get("enum").and_then(Value::as_array).and_then(|values| values.first());
        if let Some(value) = schema.get("const").or_else(fixed) {
            return if self.pay(weight(value) * PER_BYTE) { value.clone() } else { Value::Null };
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(first) = schema.get(choice).and_then(Value::as_array).and_then(|choices| choices.first()) {
                return self.make_merged(schema, choice, &[first], depth);
            }
        }
        if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
            let all: Vec<&Value> = all.iter().map(|part| self.dereferenced(part)).collect();
            return self.make_merged(schema, "allOf", &all, depth);
        }
        match kind(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "integer" => number(schema, true),
            "number" => number(schema, false),
            "boolean" => Value::Bool(true),
            "null" => Value::Null,
            _ => {
                let text = text(schema, self.left.get() / PER_BYTE);
                self.pay(text.len() * PER_BYTE);
                Value::String(text)
            }
        }
    }

    /// Of `schema` with `parts` instead of its `without`.
    fn make_merged(&self, schema: &Map<String, Value>, without: &str, parts: &[&Value], depth: usize) -> Value {
        let own: usize = schema.values().map(weight).sum();
        if !self.pay(own + parts.iter().map(|part| weight(part)).sum::<usize>()) {
            return Value::Null;
        }
        self.make(&merged(schema, without, parts.iter().copied()), depth + 1)
    }

    /// Whether so much was left; else nothing is left now.
    fn pay(&self, cost: usize) -> bool {
        let left = self.left.get().checked_sub(cost);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// A name that is written; none when nothing is left.
    fn name(&self, name: &str) -> Option<String> {
        self.pay(name.len() * PER_BYTE).then(|| name.to_owned())
    }

    fn object(&self, schema: &Map<String, Value>, depth: usize) -> Value {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut object = Map::new();
        if !self.pay(properties.map_or(0, Map::len) + required.len()) {
            return Value::Object(object);
        }
        let required: Vec<&str> = required.iter().filter_map(Value::as_str).collect();
        let known: HashSet<&str> = required.iter().copied().collect();
        // In the order of the schema, as guided decoding has them.
        for (name, property) in properties.into_iter().flatten().filter(|(name, _)| known.contains(name.as_str())) {
            let Some(name) = self.name(name) else { break };
            object.insert(name, self.make(property, depth + 1));
        }
        let other = schema.get("additionalProperties").unwrap_or(&Value::Null);
        for name in required {
            if !object.contains_key(name) {
                let Some(name) = self.name(name) else { break };
                object.insert(name, self.make_any(other, depth + 1));
            }
        }
        let least = count(schema, "minProperties");
        for (name, property) in properties.into_iter().flatten() {
            if object.len() < least && !object.contains_key(name) {
                let Some(name) = self.name(name) else { break };
                object.insert(name, self.make(property, depth + 1));
            }
        }
        for extra in object.len()..least {
            let Some(name) = self.name(&format!("key_{extra}")) else { break };
            object.insert(name, self.make(other, depth + 1));
        }
        Value::Object(object)
    }

    fn array(&self, schema: &Map<String, Value>, depth: usize) -> Value {
        let first = schema.get("prefixItems").and_then(Value::as_array);
        let items = schema.get("items").unwrap_or(&Value::Null);
        let make = |at: usize| {
            let item = first.and_then(|first| first.get(at)).unwrap_or(items);
            self.make_any(item, depth + 1)
        };
        let count = count(schema, "minItems").max(count(schema, "minContains"));
        Value::Array((0..count).take_while(|_| self.left.get() > 0).map(make).collect())
    }

    /// What says nothing of its values takes any.
    fn make_any(&self, schema: &Value, depth: usize) -> Value {
        if schema.is_object() {
            return self.make(schema, depth);
        }
        if self.pay(PER_VALUE) { Value::String("the".into()) } else { Value::Null }
    }

    fn resolve(&self, path: &str) -> Option<&Value> {
        // Each part of the path costs as much as the text that it is.
        if !self.pay(path.len()) {
            return None;
        }
        self.root.pointer(path.strip_prefix('#')?)
    }

    fn dereferenced<'a>(&'a self, schema: &'a Value) -> &'a Value {
        schema.get("$ref").and_then(Value::as_str).and_then(|path| self.resolve(path)).unwrap_or(schema)
    }
}

/// About how many bytes it has in JSON.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 8,
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 8,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum::<usize>() + 8,
        _ => 8,
    }
}

/// `schema` without its `without`, and with all that `parts` say.
fn merged<'a>(schema: &Map<String, Value>, without: &str, parts: impl IntoIterator<Item = &'a Value>) -> Value {
    let mut all = schema.clone();
    all.shift_remove(without);
    for (name, value) in parts.into_iter().filter_map(Value::as_object).flatten() {
        match (all.get_mut(name), value) {
            (Some(Value::Object(one)), Value::Object(more)) => one.extend(more.clone()),
            (Some(Value::Array(one)), Value::Array(more)) if name == "required" => one.extend(more.iter().cloned()),
            _ => {
                all.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(all)
}

fn kind(schema: &Map<String, Value>) -> &str {
    let named = match schema.get("type") {
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        _ => None,
    };
    let has = |names: &[&str]| names.iter().any(|name| schema.contains_key(*name));
    match named {
        Some(kind) => kind,
        None if has(&["items", "prefixItems", "minItems"]) => "array",
        None if has(&["minimum", "maximum", "multipleOf"]) => "number",
        None if has(&["minLength", "maxLength", "format"]) => "string",
        None => "object",
    }
}

fn count(schema: &Map<String, Value>, name: &str) -> usize {
    schema.get(name).and_then(Value::as_u64).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

fn number(schema: &Map<String, Value>, whole: bool) -> Value {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    // Half a unit beyond an exclusive bound is inside wherever the bounds are a unit apart; whole numbers are a whole unit beyond.
    let beyond = if whole { 1.0 } else { 0.5 };
    let least = [bound("minimum"), bound("exclusiveMinimum").map(|bound| bound + beyond)].into_iter().flatten().reduce(f64::max);
    let most = [bound("maximum"), bound("exclusiveMaximum").map(|bound| bound - beyond)].into_iter().flatten().reduce(f64::min);
    let mut value = match (least, most) {
        (Some(least), _) => least,
        (None, Some(most)) => most.min(1.0),
        (None, None) => 1.0,
    };
    if let Some(step) = bound("multipleOf").filter(|step| *step > 0.0) {
        value = (value / step).ceil() * step;
        if most.is_some_and(|most| value > most) {
            value -= step;
        }
    }
    if whole {
        // A cast of a number that is too large gives the largest.
        #[expect(clippy::cast_possible_truncation, reason = "a cast of a number that is too large gives the largest")]
        return Value::from(value.ceil() as i64);
    }
    Value::from(value)
}

fn text(schema: &Map<String, Value>, most_bytes: usize) -> String {
    let mut text = match schema.get("format").and_then(Value::as_str) {
        Some("date") => "2026-01-01",
        Some("date-time") => "2026-01-01T00:00:00Z",
        Some("time") => "00:00:00Z",
        Some("duration") => "PT1S",
        Some("email" | "idn-email") => "sun@example.com",
        Some("hostname") => "example.com",
        Some("ipv4") => "192.0.2.1",
        Some("ipv6") => "2001:db8::1",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("uri" | "url" | "iri" | "uri-reference") => "https://example.com/",
        _ => "the sun",
    }
    .to_owned();
    let least = count(schema, "minLength").min(most_bytes);
    text.extend(std::iter::repeat_n('s', least.saturating_sub(text.len())));
    if let Some(most) = schema.get("maxLength").and_then(Value::as_u64) {
        text.truncate(usize::try_from(most).unwrap_or(usize::MAX).max(least));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, expected: Value) {
        assert_eq!(instance(&schema).to_string(), expected.to_string(), "{schema}");
    }

    #[test]
    fn values_satisfy_their_schemas() {
        check(json!({"type": "string"}), json!("the sun"));
        check(json!({"type": "string", "minLength": 9}), json!("the sunss"));
        check(json!({"type": "string", "maxLength": 2}), json!("th"));
        check(json!({"type": ["integer", "null"]}), json!(1));
        check(json!({"type": "integer", "minimum": 3, "multipleOf": 5}), json!(5));
        check(json!({"type": "integer", "exclusiveMinimum": 3}), json!(4));
        check(json!({"type": "integer", "maximum": -3}), json!(-3));
        check(json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), json!(0.5));
        check(json!({"type": "boolean"}), json!(true));
        check(json!({"const": {"a": 1}}), json!({"a": 1}));
        check(json!({"enum": [null, 1]}), json!(null));
        check(json!({"type": "array", "items": {"type": "boolean"}}), json!([]));
        check(json!({"type": "array", "minItems": 2, "items": {"enum": ["b"]}}), json!(["b", "b"]));
        check(json!({"minItems": 2, "prefixItems": [{"type": "null"}, {"const": 7}]}), json!([null, 7]));
        check(json!({}), json!({}));
        check(json!(true), json!({}));
    }

    #[test]
    fn objects_have_what_is_required_in_order() {
        let properties = json!({"b": {"type": "integer"}, "a": {"type": "boolean"}, "c": {"type": "string"}});
        check(json!({"type": "object", "properties": properties, "required": ["a", "b"]}), json!({"b": 1, "a": true}));
        check(json!({"properties": properties, "minProperties": 1}), json!({"b": 1}));
        check(json!({"type": "object", "required": ["x"], "additionalProperties": {"type": "null"}}), json!({"x": null}));
    }

    #[test]
    fn choices_parts_and_references_are_followed() {
        check(json!({"anyOf": [{"type": "null"}, {"type": "string"}]}), json!(null));
        check(json!({"type": "object", "required": ["a"], "oneOf": [{"properties": {"a": {"const": 2}}}]}), json!({"a": 2}));
        check(
            json!({"$defs": {"a": {"required": ["x"], "properties": {"x": {"const": 1}}}},
                "allOf": [{"$ref": "#/$defs/a"}, {"required": ["y"], "properties": {"y": {"const": 2}}}]}),
            json!({"x": 1, "y": 2}),
        );
        check(
            json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "required": ["v"],
                "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}}}),
            json!({"v": 1}),
        );
    }

    #[test]
    fn endless_schemas_end() {
        let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"required": ["a"], "properties": {"a": {"$ref": "#/$defs/a"}}}}});
        assert!(instance(&endless).to_string().len() < 1_000);
        assert_eq!(instance(&json!({"$ref": "#"})), Value::Null);
        assert_eq!(instance(&json!({"type": "array", "minItems": 10_000})).as_array().map(Vec::len), Some(10_000));
    }

    #[test]
    fn no_schema_asks_for_too_much() {
        let many = |schema: Value| json!({"type": "array", "minItems": u64::MAX, "items": schema});
        let node = json!({"required": ["a", "b", "c"], "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/a"},
            "c": {"$ref": "#/$defs/a"}}});
        let names: Vec<String> = (0..20_000).map(|at| format!("name {at}")).collect();
        let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({"type": "null"}))).collect();
        let wide = json!({"properties": properties, "anyOf": [{"minProperties": 1}]});
        for schema in [
            many(many(many(json!({"type": "null"})))),
            many(Value::Null),
            many(json!({"const": "x".repeat(100_000)})),
            many(json!({"minLength": 1_000_000})),
            many(json!({"required": names})),
            many(wide),
            many(json!({"$ref": format!("#/{}", "x/".repeat(100_000))})),
            json!({"minLength": u64::MAX}),
            json!({"minProperties": u64::MAX, "additionalProperties": {"minProperties": u64::MAX}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": node}}),
            json!({"properties": properties, "required": names, "additionalProperties": {"$ref": "#"}, "minProperties": u64::MAX}),
        ] {
            let begun = std::time::Instant::now();
            let written = instance(&schema).to_string();
            assert!(written.len() < 1 << 20, "{} bytes", written.len());
            assert!(begun.elapsed().as_secs() < 60, "without a budget it takes hours, or never ends");
        }
    }
}
