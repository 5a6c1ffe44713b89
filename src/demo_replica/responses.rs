//! `/v1/responses`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Form;
use super::ask::{self, Ask, Chosen, Fields};
use super::chat::{Delta, Teller, Used, delta};
use super::flight::{Sequence, Step};
use super::http::{Call, hex};
use super::prompt::{self, Message};
use super::refusal::Refusal;
use super::reply::Reply;
use super::story::{Events, Narrator, Story};

/// Answers a request.
pub(super) async fn answer(call: &mut Call, fields: &Fields) -> Result<Reply, Refusal> {
    let app = Arc::clone(&call.app);
    let ask = read(&app, fields)?;
    let mut flight = call.launch(ask.orders(&app, fields)?, ask.salt.as_deref(), ask.max_tokens)?;
    let teller = Teller::new(call, &ask, fields);
    let frame = frame(call, fields, &ask);
    let item = if matches!(ask.form, Form::Call { .. }) { format!("fc_{}", hex()) } else { format!("msg_{}", hex()) };
    let mut narrator = Items { teller, frame, item, called: false, open: false, number: 0 };
    if ask::flag(fields, "stream") {
        let mut events = Events::default();
        for kind in ["response.created", "response.in_progress"] {
            narrator.tell(json!({"response": narrator.frame}), kind, &mut events);
        }
        return Ok(Reply::stream(Story::new(flight, narrator, events)));
    }
    flight.whole().await?;
    Ok(Reply::json(&narrator.response(&flight.sequences)))
}

fn read(app: &super::App, fields: &Fields) -> Result<Ask, Refusal> {
    // vLLM has added an id by then, and counts it.
    let input = fields.get("input").ok_or_else(|| Refusal::missing("body.input", &format!("<dict of {} items>", fields.len() + 1)))?;
    ask::salt(fields)?;
    ask::check_model(app, fields)?;
    if let Some(previous) = ask::text(fields, "previous_response_id") {
        return Err(Refusal::no_response(previous));
    }
    let mut messages = Vec::new();
    if let Some(instructions) = ask::text(fields, "instructions") {
        messages.push(Message::text("system", instructions));
    }
    match input {
        Value::Array(items) => messages.extend(items.iter().filter_map(message)),
        text => messages.push(Message::text("user", text.as_str().unwrap_or_default())),
    }
    let tools: Vec<Value> = ask::list(fields, "tools").iter().map(chat_tool).collect();
    let choice = match fields.get("tool_choice") {
        Some(Value::Object(named)) => json!({"function": {"name": named.get("name")}}),
        other => other.cloned().unwrap_or_default(),
    };
    let format = fields.get("text").map_or(&Value::Null, |text| &text["format"]);
    let form = match format["type"].as_str() {
        Some("json_object") => Form::Json,
        Some("json_schema") => ask::of_schema(&format["schema"]),
        _ => ask::form(fields),
    };
    let form = ask::choose(&tools, &choice, &messages)?.unwrap_or((form, Chosen::Model));
    let prompt = ask::conversation(&messages, &tools)?;
    Ask::new(app, fields, prompt, form, &["max_output_tokens"])
}

/// An item of the input as a chat request has it. Reasoning is left out.
fn message(item: &Value) -> Option<Message> {
    let field = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
    match item["type"].as_str() {
        Some("function_call") => {
            Some(Message { role: "assistant".into(), calls: vec![(field("name"), field("arguments"))], ..Message::default() })
        }
        Some("function_call_output") => Some(Message { role: "tool".into(), parts: prompt::parts(item.get("output")), calls: vec![] }),
        Some("reasoning") => None,
        _ => Some(Message { role: field("role"), parts: prompt::parts(item.get("content")), calls: vec![] }),
    }
}

fn chat_tool(tool: &Value) -> Value {
    json!({"type": "function", "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["parameters"]}})
}

/// The response without its output.
fn frame(call: &Call, fields: &Fields, ask: &Ask) -> Value {
    let given = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let or = |name: &str, default: Value| fields.get(name).filter(|value| !value.is_null()).cloned().unwrap_or(default);
    let float = |name: &str, default: f64| fields.get(name).and_then(Value::as_f64).unwrap_or(default);
    let tools: Vec<Value> = ask::list(fields, "tools").iter().map(tool).collect();
    let choice = if tools.is_empty() { "none".into() } else { choice(fields.get("tool_choice")) };
    json!({
        "id": format!("resp_{}", call.id), "created_at": call.created, "incomplete_details": null, "instructions": given("instructions"),
        "metadata": given("metadata"), "model": call.app.settings.model, "object": "response", "output": [],
        "parallel_tool_calls": or("parallel_tool_calls", true.into()), "temperature": float("temperature", 1.0), "tool_choice": choice,
        "tools": tools, "top_p": float("top_p", 1.0), "background": ask::flag(fields, "background"), "max_output_tokens": ask.max_tokens,
        "max_tool_calls": given("max_tool_calls"), "previous_response_id": given("previous_response_id"), "prompt": given("prompt"),
        "reasoning": given("reasoning"), "service_tier": or("service_tier", "auto".into()), "status": "in_progress",
        "text": text(fields.get("text")), "top_logprobs": null, "truncation": or("truncation", "disabled".into()), "usage": null,
        "user": given("user"), "presence_penalty": float("presence_penalty", 0.0), "frequency_penalty": float("frequency_penalty", 0.0),
        "kv_transfer_params": null, "ec_transfer_params": null, "input_messages": null, "output_messages": null,
    })
}

/// A tool as vLLM repeats it.
fn tool(tool: &Value) -> Value {
    json!({
        "name": tool["name"], "parameters": tool["parameters"], "strict": tool["strict"], "type": "function", "allowed_callers": null,
        "async": null, "defer_loading": null, "description": tool["description"], "output_schema": null,
    })
}

fn choice(choice: Option<&Value>) -> Value {
    match choice {
        Some(Value::Object(named)) => json!({"name": named.get("name"), "type": "function"}),
        Some(Value::String(word)) => word.as_str().into(),
        _ => "auto".into(),
    }
}

fn text(text: Option<&Value>) -> Value {
    let Some(text) = text.filter(|text| text.is_object()) else { return Value::Null };
    let format = &text["format"];
    let format = match format["type"].as_str() {
        Some("json_schema") => json!({
            "name": format["name"], "schema": format["schema"], "type": "json_schema", "description": format["description"],
            "strict": format["strict"],
        }),
        _ => format.clone(),
    };
    json!({"format": format, "verbosity": text["verbosity"]})
}

/// Tells a stream, and what it comes to.
struct Items {
    teller: Teller,
    frame: Value,
    /// The id of the only item.
    item: String,
    called: bool,
    open: bool,
    /// Of the next event.
    number: u64,
}

impl Items {
    fn tell(&mut self, mut data: Value, kind: &str, events: &mut Events) {
        data["sequence_number"] = self.number.into();
        // The field is in the place where the data's text is, which comes between number and type.
        if let Some(text) = data.as_object_mut().and_then(|data| data.shift_remove("text")) {
            data["text"] = text;
        }
        data["type"] = kind.into();
        if let Some(name) = data.as_object_mut().and_then(|data| data.shift_remove("name")) {
            data["name"] = name;
        }
        self.number += 1;
        events.named(&data);
    }

    fn message(&self, text: Option<&str>) -> Value {
        let (content, status) = match text {
            None => (json!([]), "in_progress"),
            Some("") => (json!([]), "completed"),
            Some(text) => (json!([part(text, Value::Null)]), "completed"),
        };
        json!({"id": self.item, "content": content, "role": "assistant", "status": status, "type": "message", "phase": null})
    }

    fn call(&self, name: &str, arguments: Option<&str>) -> Value {
        json!({
            "arguments": arguments.unwrap_or_default(), "call_id": self.teller.tool_call(0), "name": name, "type": "function_call",
            "id": self.item, "async": null, "caller": null, "namespace": null,
            "status": if arguments.is_some() { "completed" } else { "in_progress" },
        })
    }

    /// The whole response.
    fn response(&mut self, sequences: &[Sequence]) -> Value {
        let sequence = &sequences[0];
        let answer = &sequence.answer;
        let output = match answer.call.as_ref().filter(|_| answer.complete) {
            Some(call) => self.call(&call.name, Some(&call.arguments)),
            None => {
                if answer.call.is_some() {
                    self.item = format!("msg_{}", hex());
                }
                self.message(Some(answer.text()))
            }
        };
        self.close(vec![output], answer.complete, self.teller.used(sequences, answer.tokens.len()))
    }

    fn close(&self, output: Vec<Value>, complete: bool, used: Used) -> Value {
        let mut response = self.frame.clone();
        response["output"] = output.into();
        response["status"] = if complete { "completed" } else { "incomplete" }.into();
        if !complete {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["usage"] = json!({
            "input_tokens": used.prompt,
            "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": used.created, "input_tokens_per_turn": [],
                "cached_tokens_per_turn": []},
            "output_tokens": used.output,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": []},
            "total_tokens": used.prompt + used.output,
        });
        response
    }
}

fn part(text: &str, logprobs: Value) -> Value {
    json!({"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs})
}

impl Narrator for Items {
    fn token(&mut self, step: Step, sequences: &[Sequence], events: &mut Events) {
        let answer = &sequences[0].answer;
        match delta(answer, step, &mut self.called) {
            Delta::Text if answer.pieces.get(step.token).is_empty() => {}
            Delta::Text => {
                if !std::mem::replace(&mut self.open, true) {
                    self.tell(json!({"item": self.message(None), "output_index": 0}), "response.output_item.added", events);
                    let part = part("", json!([]));
                    let data = json!({"content_index": 0, "item_id": self.item, "output_index": 0, "part": part});
                    self.tell(data, "response.content_part.added", events);
                }
                let data = json!({
                    "content_index": 0, "delta": answer.pieces.get(step.token), "item_id": self.item, "logprobs": [], "output_index": 0,
                });
                self.tell(data, "response.output_text.delta", events);
            }
            Delta::Name(name) => {
                self.tell(json!({"item": self.call(name, None), "output_index": 0}), "response.output_item.added", events);
            }
            Delta::Arguments(part) => {
                let data = json!({"delta": part, "item_id": self.item, "output_index": 0});
                self.tell(data, "response.function_call_arguments.delta", events);
            }
            Delta::Nothing => {}
        }
    }

    fn end(&mut self, sequences: &[Sequence], events: &mut Events) {
        let answer = &sequences[0].answer;
        let mut output = Vec::new();
        if let Some(call) = answer.call.as_ref().filter(|_| self.called) {
            let arguments = answer.pieces.range(call.written.clone());
            let data = json!({"arguments": arguments, "item_id": self.item, "output_index": 0, "name": call.name});
            self.tell(data, "response.function_call_arguments.done", events);
            output.push(self.call(&call.name, Some(arguments)));
        } else if self.open {
            let text = answer.text();
            let data = json!({"content_index": 0, "item_id": self.item, "logprobs": [], "output_index": 0, "text": text});
            self.tell(data, "response.output_text.done", events);
            let data = json!({"content_index": 0, "item_id": self.item, "output_index": 0, "part": part(text, Value::Null)});
            self.tell(data, "response.content_part.done", events);
            output.push(self.message(Some(text)));
        }
        if let Some(item) = output.first() {
            self.tell(json!({"item": item, "output_index": 0}), "response.output_item.done", events);
        }
        let response = self.close(output, answer.complete, self.teller.used(sequences, answer.tokens.len()));
        self.tell(json!({ "response": response }), "response.completed", events);
    }
}
