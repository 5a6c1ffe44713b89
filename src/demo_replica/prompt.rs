//! The chat template: a conversation's tokens, in the same order on all surfaces, so that what was answered is found again as part of the next
//! turn's prompt.
//!
//! It judges nothing: whatever is no text becomes some tokens that tell it apart.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::tokens::{self, CONTENT, END, MEDIA, MESSAGE};

/// Tokens of an image, or of anything else that is no text.
const MEDIA_TOKENS: u64 = 256;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Message {
    pub(super) role: String,
    pub(super) parts: Vec<Part>,
    /// Tools that it calls: names and arguments.
    pub(super) calls: Vec<(String, String)>,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// A kind, and what tells it from others: a URL or the data itself.
    Media(&'static str, String),
}

/// A prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    /// How many of them are of each kind of media.
    pub(super) media: Map<String, Value>,
}

impl Message {
    pub(super) fn text(role: &str, text: &str) -> Self {
        Self { role: role.into(), parts: vec![Part::Text(text.into())], calls: vec![] }
    }

    /// A message as `/v1/chat/completions` and `/tokenize` have it.
    pub(super) fn of_chat(message: &Value) -> Self {
        let field = |name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default();
        let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten().map(|call| {
            let part = |name: &str| call.pointer(&format!("/function/{name}")).and_then(Value::as_str).unwrap_or_default().to_owned();
            (part("name"), part("arguments"))
        });
        Self { role: field("role").into(), parts: parts(message.get("content")), calls: calls.collect() }
    }
}

/// The parts of a message's content: a text, or a list of parts of any surface's form.
pub(super) fn parts(content: Option<&Value>) -> Vec<Part> {
    match content {
        Some(Value::String(text)) => vec![Part::Text(text.clone())],
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => vec![],
    }
}

fn part(part: &Value) -> Part {
    if let Some(text) = part.as_str() {
        return Part::Text(text.into());
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    match kind {
        "text" | "input_text" | "output_text" | "refusal" => {
            let text = part.get(if kind == "refusal" { "refusal" } else { "text" }).and_then(Value::as_str).unwrap_or_default();
            Part::Text(text.into())
        }
        _ => {
            let media = ["image", "audio", "video"].into_iter().find(|media| kind.contains(media)).unwrap_or("file");
            Part::Media(media, part.to_string())
        }
    }
}

/// The prompt that asks for the next message. `tools` come first, as engines render them.
pub(super) fn render(messages: &[Message], tools: &[Value]) -> Prompt {
    let mut prompt = Prompt::default();
    if !tools.is_empty() {
        prompt.begin("tools");
        for tool in tools {
            prompt.tokens.extend(tokens::encode(&written(tool)));
        }
        prompt.tokens.push(END);
    }
    for message in messages {
        prompt.begin(&message.role);
        prompt.add(&message.parts);
        for (name, arguments) in &message.calls {
            prompt.tokens.extend(call(name, arguments).concat());
        }
        prompt.tokens.push(END);
    }
    prompt.begin("assistant");
    prompt
}

/// The tokens of a tool call, in the form of the Hermes models: what is before its arguments, they, and what is after them.
pub(super) fn call(name: &str, arguments: &str) -> [Vec<u32>; 3] {
    let before = format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": ");
    [before.as_str(), arguments, "}\n</tool_call>"].map(|text| tokens::encode(text).collect())
}

/// JSON as Python writes it, with spaces: what is in a prompt is what an engine has written before.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{}: {}", Value::from(name.as_str()), written(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

impl Prompt {
    fn begin(&mut self, role: &str) {
        self.tokens.push(MESSAGE);
        self.tokens.extend(tokens::encode(role));
        self.tokens.push(CONTENT);
    }

    fn add(&mut self, parts: &[Part]) {
        let mut text = String::new();
        let mut texts = 0;
        for part in parts {
            match part {
                // vLLM joins texts by line breaks.
                Part::Text(more) => {
                    text.push_str(if texts > 0 { "\n" } else { "" });
                    text.push_str(more);
                    texts += 1;
                }
                Part::Media(kind, digest) => {
                    self.tokens.extend(tokens::encode(&std::mem::take(&mut text)));
                    texts = 0;
                    self.tokens.push(MEDIA);
                    // Media may be megabytes, so they are read once. Below the tokens that mean something.
                    let media = xxh3_64_with_seed(digest.as_bytes(), 0).to_le_bytes();
                    self.tokens.extend((0..MEDIA_TOKENS).map(|seed| (xxh3_64_with_seed(&media, seed) >> 33) as u32));
                    let count = self.media.get(*kind).and_then(Value::as_u64).unwrap_or(0);
                    self.media.insert((*kind).into(), (count + MEDIA_TOKENS + 1).into());
                }
            }
        }
        self.tokens.extend(tokens::encode(&text));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(messages: &[Value]) -> Vec<u32> {
        let messages: Vec<Message> = messages.iter().map(Message::of_chat).collect();
        render(&messages, &[]).tokens
    }

    #[test]
    fn a_turn_continues_the_one_before() {
        let user = json!({"role": "user", "content": "Good morning"});
        let prompt = chat(std::slice::from_ref(&user));
        let answer: Vec<u32> = tokens::encode(" the sun was up").chain([END]).collect();
        let next = chat(&[user.clone(), json!({"role": "assistant", "content": " the sun was up"}), user.clone()]);
        assert!(next.starts_with(&[prompt.clone(), answer].concat()));
        let called: Vec<u32> = call("get", r#"{"a": 1}"#).concat().into_iter().chain([END]).collect();
        let calls = json!([{"id": "1", "type": "function", "function": {"name": "get", "arguments": "{\"a\": 1}"}}]);
        let next = chat(&[user.clone(), json!({"role": "assistant", "content": null, "tool_calls": calls}), user]);
        assert!(next.starts_with(&[prompt, called].concat()));
    }

    #[test]
    fn borders_and_media_count() {
        let split = |parts: &[&str]| -> Vec<Value> { parts.iter().map(|text| json!({"role": "user", "content": text})).collect() };
        assert_ne!(chat(&split(&["ab"])), chat(&split(&["a", "b"])));
        let image = |url: &str| json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]});
        let (one, other) = (chat(&[image("x")]), chat(&[image("y")]));
        assert_eq!(one.len(), other.len());
        assert_ne!(one, other);
        assert!(one.len() > 257);
        assert!(one.iter().filter(|token| **token == MEDIA).count() == 1);
    }
}
