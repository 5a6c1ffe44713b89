//! Makes a small value that a JSON schema accepts, as an engine with guided decoding writes one.
//!
//! It obeys what clients' schemas use: types, constants, choices, references, required properties, and bounds of sizes and numbers. It does
//! not obey `pattern`, `not`, `if` and `uniqueItems`.

use serde_json::{Map, Value};

/// How deep values may be nested. Schemas that refer to themselves and require it have no end.
const MAX_DEPTH: usize = 24;

/// A value for `schema`; nothing is in it that is not required.
pub(super) fn instance(schema: &Value) -> Value {
    Maker { root: schema }.make(schema, 0)
}

struct Maker<'a> {
    root: &'a Value,
}

impl Maker<'_> {
    fn make(&self, schema: &Value, depth: usize) -> Value {
        let Some(schema) = schema.as_object() else { return Value::Object(Map::new()) };
        if depth > MAX_DEPTH {
            return Value::Null;
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| self.resolve(path)) {
            return self.make(target, depth + 1);
        }
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(value) = schema.get("enum").and_then(Value::as_array).and_then(|values| values.first()) {
            return value.clone();
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(first) = schema.get(choice).and_then(Value::as_array).and_then(|choices| choices.first()) {
                return self.make(&merged(schema, choice, [first]), depth + 1);
            }
        }
        if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
            let all: Vec<&Value> = all.iter().map(|part| self.dereferenced(part)).collect();
            return self.make(&merged(schema, "allOf", all), depth + 1);
        }
        match kind(schema) {
            "object" => self.object(schema, depth),
            "array" => self.array(schema, depth),
            "integer" => number(schema, true),
            "number" => number(schema, false),
            "boolean" => Value::Bool(true),
            "null" => Value::Null,
            _ => Value::String(text(schema)),
        }
    }

    fn object(&self, schema: &Map<String, Value>, depth: usize) -> Value {
        let properties = schema.get("properties").and_then(Value::as_object);
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut object = Map::new();
        // In the order of the schema, as guided decoding has them.
        for (name, property) in properties.into_iter().flatten().filter(|(name, _)| required.contains(&name.as_str())) {
            object.insert(name.clone(), self.make(property, depth + 1));
        }
        let other = schema.get("additionalProperties").unwrap_or(&Value::Null);
        for name in required {
            if !object.contains_key(name) {
                object.insert(name.to_owned(), if other.is_object() { self.make(other, depth + 1) } else { Value::String("the".into()) });
            }
        }
        let least = count(schema, "minProperties");
        for (name, property) in properties.into_iter().flatten() {
            if object.len() < least && !object.contains_key(name) {
                object.insert(name.clone(), self.make(property, depth + 1));
            }
        }
        for extra in object.len()..least {
            object.insert(format!("key_{extra}"), self.make(other, depth + 1));
        }
        Value::Object(object)
    }

    fn array(&self, schema: &Map<String, Value>, depth: usize) -> Value {
        let first = schema.get("prefixItems").and_then(Value::as_array);
        let items = schema.get("items").unwrap_or(&Value::Null);
        let make = |at: usize| {
            let item = first.and_then(|first| first.get(at)).unwrap_or(items);
            // What says nothing of its items takes any.
            if item.is_object() { self.make(item, depth + 1) } else { Value::String("the".into()) }
        };
        Value::Array((0..count(schema, "minItems").max(count(schema, "minContains"))).map(make).collect())
    }

    fn resolve(&self, path: &str) -> Option<&Value> {
        self.root.pointer(path.strip_prefix('#')?)
    }

    fn dereferenced<'a>(&'a self, schema: &'a Value) -> &'a Value {
        schema.get("$ref").and_then(Value::as_str).and_then(|path| self.resolve(path)).unwrap_or(schema)
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
    // More would be an attack on memory.
    schema.get(name).and_then(Value::as_u64).map_or(0, |count| usize::try_from(count.min(10_000)).unwrap_or(0))
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

fn text(schema: &Map<String, Value>) -> String {
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
    let least = count(schema, "minLength");
    while text.len() < least {
        text.push('s');
    }
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
        assert_eq!(instance(&json!({"type": "array", "minItems": u64::MAX})).as_array().map(Vec::len), Some(10_000));
    }
}
