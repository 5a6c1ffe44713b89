//! `/v1/messages`, which vLLM answers by way of a chat request, and `/v1/messages/count_tokens`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::{Answer, Form};
use super::ask::{self, Ask, Chosen, Fields};
use super::chat::{Delta, Teller, Used, delta};
use super::flight::{Flight, Sequence, Step};
use super::http::Call;
use super::prompt::{self, Message, Part, Prompt};
use super::refusal::Refusal;
use super::reply::Reply;
use super::story::{Events, Narrator, Story};

/// Answers a request.
pub(super) async fn answer(call: &mut Call, fields: &Fields) -> Result<Reply, Refusal> {
    let app = Arc::clone(&call.app);
    ask::required(fields, "messages")?;
    ask::required(fields, "max_tokens")?;
    ask::check_model(&app, fields)?;
    let (prompt, form) = read(fields)?;
    // The chat request that vLLM makes of it calls the bound otherwise, and so do its refusals.
    let mut asked = fields.clone();
    let limit = asked.remove("max_tokens").unwrap_or_default();
    asked.insert("max_completion_tokens".into(), limit);
    let ask = Ask::new(&app, &asked, prompt, form, &["max_completion_tokens"])?;
    let mut flight = call.launch(ask.orders(&app, fields)?, ask.salt.as_deref(), ask.max_tokens)?;
    let teller = Teller::new(call, &ask, fields);
    if ask::flag(fields, "stream") {
        return Ok(Reply::stream(Story::new(flight, Blocks { teller, called: false, block: None, blocks: 0 }, Events::default())));
    }
    flight.whole().await?;
    Ok(Reply::json(&whole(&teller, &flight)))
}

/// How long a prompt would be.
pub(super) fn count_tokens(call: &Call, fields: &Fields) -> Result<Reply, Refusal> {
    ask::required(fields, "messages")?;
    ask::check_model(&call.app, fields)?;
    let tokens = read(fields)?.0.tokens.len();
    Ok(Reply::json(&json!({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})))
}

/// The prompt, and the form of its answer.
fn read(fields: &Fields) -> Result<(Prompt, (Form, Chosen)), Refusal> {
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        messages.push(Message { role: "system".into(), parts: prompt::parts(Some(system)), calls: vec![] });
    }
    for message in ask::list(fields, "messages") {
        add(message, &mut messages);
    }
    let tools: Vec<Value> = ask::list(fields, "tools").iter().map(tool).collect();
    let choice = match fields.get("tool_choice").map(|choice| (choice["type"].as_str(), &choice["name"])) {
        Some((Some("tool"), name)) => json!({"function": {"name": name}}),
        Some((Some("any"), _)) => "required".into(),
        Some((Some("none"), _)) => "none".into(),
        _ => Value::Null,
    };
    let schema = fields.get("output_config").map(|config| &config["format"]["schema"]).filter(|schema| schema.is_object());
    let form = match ask::choose(&tools, &choice, &messages)? {
        Some(called) => called,
        None => (schema.map_or(Form::Text, ask::of_schema), Chosen::Model),
    };
    Ok((ask::conversation(&messages, &tools)?, form))
}

/// A tool as a chat request has it.
fn tool(tool: &Value) -> Value {
    json!({"type": "function", "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}})
}

/// A message as a chat request has it; results of tools become messages of their own.
fn add(message: &Value, messages: &mut Vec<Message>) {
    let mut rest = Message { role: message["role"].as_str().unwrap_or_default().into(), ..Message::default() };
    match &message["content"] {
        Value::Array(blocks) => {
            for block in blocks {
                match block["type"].as_str() {
                    Some("tool_use") => {
                        let name = block["name"].as_str().unwrap_or_default().to_owned();
                        rest.calls.push((name, prompt::written(&block["input"])));
                    }
                    Some("tool_result") => {
                        messages.push(Message { role: "tool".into(), parts: prompt::parts(block.get("content")), calls: vec![] });
                    }
                    Some("thinking" | "redacted_thinking") => {}
                    _ => rest.parts.extend(prompt::parts(Some(&vec![block.clone()].into()))),
                }
            }
        }
        content => rest.parts = prompt::parts(Some(content)),
    }
    // Nothing is left of a message that only brought results.
    if !(rest.parts.is_empty() && rest.calls.is_empty()) || rest.role == "assistant" {
        if rest.calls.is_empty() && rest.parts.is_empty() {
            rest.parts.push(Part::Text(String::new()));
        }
        messages.push(rest);
    }
}

fn whole(teller: &Teller, flight: &Flight) -> Value {
    let sequence = &flight.sequences[0];
    let answer = &sequence.answer;
    let content = match answer.call.as_ref().filter(|_| answer.complete) {
        Some(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({"type": "tool_use", "id": teller.tool_call(0), "name": call.name, "input": input})
        }
        None => json!({"type": "text", "text": answer.text()}),
    };
    let mut message = json!({
        "id": teller.id, "type": "message", "role": "assistant", "content": [content], "model": teller.model,
        "stop_reason": stop_reason(answer),
    });
    // As in vLLM, fields without a value are left out.
    if let Some(stop) = &answer.stopped_by {
        message["stop_sequence"] = stop.as_str().into();
    }
    message["usage"] = usage(teller, teller.used(&flight.sequences, answer.tokens.len()));
    message
}

/// Cached tokens are no part of `input_tokens`, where they are told.
fn usage(teller: &Teller, used: Used) -> Value {
    if !teller.details() {
        return json!({"input_tokens": used.prompt, "output_tokens": used.output});
    }
    json!({
        "input_tokens": used.prompt - used.cached - used.created, "output_tokens": used.output,
        "cache_creation_input_tokens": used.created, "cache_read_input_tokens": used.cached,
    })
}

fn stop_reason(answer: &Answer) -> &'static str {
    match (answer.complete, answer.call.is_some(), answer.stopped_by.is_some()) {
        (false, ..) => "max_tokens",
        (true, true, _) => "tool_use",
        (true, false, true) => "stop_sequence",
        (true, false, false) => "end_turn",
    }
}

/// Tells a stream.
struct Blocks {
    teller: Teller,
    called: bool,
    /// The number of the block under way.
    block: Option<usize>,
    blocks: usize,
}

impl Narrator for Blocks {
    fn token(&mut self, step: Step, sequences: &[Sequence], events: &mut Events) {
        let answer = &sequences[0].answer;
        if step.first {
            let usage = json!({"input_tokens": sequences[0].prompt.len(), "output_tokens": 0});
            let message = json!({
                "id": self.teller.id, "type": "message", "role": "assistant", "content": [], "model": self.teller.model, "stop_reason": null,
                "stop_sequence": null, "usage": usage,
            });
            events.named(&json!({"type": "message_start", "message": message}));
        }
        let delta = match delta(answer, step, &mut self.called) {
            Delta::Text if answer.pieces.get(step.token).is_empty() => return,
            Delta::Text => {
                if self.block.is_none() {
                    self.start(json!({"type": "text", "text": ""}), events);
                }
                json!({"type": "text_delta", "text": answer.pieces.get(step.token)})
            }
            Delta::Name(name) => {
                let block = json!({"type": "tool_use", "id": self.teller.tool_call(0), "name": name, "input": {}});
                return self.start(block, events);
            }
            Delta::Arguments(part) => json!({"type": "input_json_delta", "partial_json": part}),
            Delta::Nothing => return,
        };
        events.named(&json!({"type": "content_block_delta", "delta": delta, "index": self.block}));
    }

    fn end(&mut self, sequences: &[Sequence], events: &mut Events) {
        if let Some(block) = self.block.take() {
            events.named(&json!({"type": "content_block_stop", "index": block}));
        }
        let answer = &sequences[0].answer;
        let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": answer.stopped_by});
        let usage = usage(&self.teller, self.teller.used(sequences, answer.tokens.len()));
        events.named(&json!({"type": "message_delta", "delta": delta, "usage": usage}));
        events.named(&json!({"type": "message_stop"}));
    }
}

impl Blocks {
    fn start(&mut self, block: Value, events: &mut Events) {
        let index = self.blocks;
        self.blocks += 1;
        self.block = Some(index);
        events.named(&json!({"type": "content_block_start", "content_block": block, "index": index}));
    }
}
