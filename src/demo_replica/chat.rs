//! `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::App;
use super::ask::{self, Ask, Chosen, Fields};
use super::flight::{Flight, Sequence, Step};
use super::http::Call;
use super::prompt::Message;
use super::refusal::Refusal;
use super::reply::Reply;
use super::story::{Events, Narrator, Story};

/// vLLM's `--max-logprobs`.
const MOST_LOGPROBS: i64 = 20;

/// Answers a request.
pub(super) async fn answer(call: &mut Call, fields: &Fields) -> Result<Reply, Refusal> {
    let app = Arc::clone(&call.app);
    let (stream, usage, continuous) = ask::streaming(fields)?;
    let ask = read(&app, fields)?;
    let mut flight = call.launch(ask.orders(&app, fields)?, ask.salt.as_deref(), ask.max_tokens)?;
    let teller = Teller::new(call, &ask, fields);
    if stream {
        let narrator = Chunks { teller, usage, continuous, called: vec![false; ask.answers], chosen: ask.chosen };
        return Ok(Reply::stream(Story::new(flight, narrator, Events::default())));
    }
    flight.whole().await?;
    Ok(Reply::json(&teller.whole(&flight, ask.chosen)).with_load(call))
}

/// Reads a request.
pub(super) fn read(app: &App, fields: &Fields) -> Result<Ask, Refusal> {
    let messages = ask::required(fields, "messages")?;
    let messages: Vec<Message> = messages.as_array().into_iter().flatten().map(Message::of_chat).collect();
    if let Some(at) = messages.iter().position(|message| message.role.is_empty()) {
        return Err(Refusal::missing(&format!("body.messages.{at}.role"), "<dict of 1 items>"));
    }
    ask::salt(fields)?;
    ask::check_model(app, fields)?;
    if let Some(likely) = ask::integer(fields, "top_logprobs")?.filter(|likely| *likely > MOST_LOGPROBS) {
        let message = format!("Requested sample logprobs of {likely}, which is greater than max allowed: {MOST_LOGPROBS}");
        return Err(Refusal::parameter(&message, "logprobs", Some(&likely.into())));
    }
    let tools = ask::list(fields, "tools");
    let chosen = ask::choose(tools, fields.get("tool_choice").unwrap_or(&Value::Null), &messages)?;
    let form = chosen.unwrap_or_else(|| (ask::form(fields), Chosen::Model));
    let prompt = ask::conversation(&messages, tools)?;
    // vLLM names the second in its refusals where both are there.
    let limit: &[&str] = if fields.get("max_completion_tokens").is_some_and(|limit| !limit.is_null()) {
        &["max_completion_tokens"]
    } else {
        &["max_tokens"]
    };
    Ask::new(app, fields, prompt, form, limit)
}

/// What is the same in all that is told of one request.
pub(super) struct Teller {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    details: bool,
    block_size: usize,
    media: Map<String, Value>,
    token_ids: bool,
    /// How many likely tokens are told with each, if any are.
    logprobs: Option<usize>,
    tool_call: String,
}

/// Tokens of a request, as `usage` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) prompt: usize,
    pub(super) output: usize,
    pub(super) cached: usize,
    pub(super) created: usize,
}

impl Teller {
    pub(super) fn new(call: &Call, ask: &Ask, fields: &Fields) -> Self {
        let settings = &call.app.settings;
        let likely = fields.get("top_logprobs").and_then(Value::as_u64).unwrap_or(0);
        Self {
            id: format!("chatcmpl-{}", call.id),
            created: call.created,
            model: settings.model.clone(),
            details: settings.prompt_tokens_details,
            block_size: settings.engine.block_size,
            media: ask.media.clone(),
            token_ids: ask::flag(fields, "return_token_ids"),
            logprobs: ask::flag(fields, "logprobs").then(|| usize::try_from(likely).unwrap_or(0).min(20)),
            tool_call: super::http::tool_call_id(),
        }
    }

    /// What the request has used so far: `told` tokens of its answers.
    pub(super) fn used(&self, sequences: &[Sequence], told: usize) -> Used {
        let Some(first) = sequences.first() else { return Used::default() };
        let (prompt, cached) = (first.prompt.len(), first.cached_tokens);
        let created = (prompt / self.block_size * self.block_size).saturating_sub(cached);
        Used { prompt, output: told, cached, created }
    }

    /// Whether answers tell of cached tokens.
    pub(super) fn details(&self) -> bool {
        self.details
    }

    /// The id of the tool call of answer number `which`.
    pub(super) fn tool_call(&self, which: usize) -> String {
        if which == 0 { self.tool_call.clone() } else { super::http::tool_call_id() }
    }

    fn whole(&self, flight: &Flight, chosen: Chosen) -> Value {
        let choices: Vec<Value> = flight.sequences.iter().enumerate().map(|(at, sequence)| self.choice(at, sequence, chosen)).collect();
        let sequences = &flight.sequences;
        let used = self.used(sequences, sequences.iter().map(|sequence| sequence.answer.tokens.len()).sum());
        let media = if self.media.is_empty() { Value::Null } else { Value::Object(self.media.clone()) };
        let details = json!({"cached_tokens": used.cached, "created_cache_tokens": used.created, "multimodal_tokens": media});
        let usage = json!({
            "prompt_tokens": used.prompt, "total_tokens": used.prompt + used.output, "completion_tokens": used.output,
            "prompt_tokens_details": if self.details { details } else { Value::Null }, "completion_tokens_details": null,
        });
        let prompt = sequences.first().filter(|_| self.token_ids).map(|first| first.prompt.to_vec());
        json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model, "choices": choices,
            "service_tier": null, "system_fingerprint": super::http::FINGERPRINT, "usage": usage, "prompt_logprobs": null,
            "prompt_token_ids": prompt, "prompt_text": null, "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null,
        })
    }

    fn choice(&self, at: usize, sequence: &Sequence, chosen: Chosen) -> Value {
        let answer = &sequence.answer;
        let mut message = json!({
            "role": "assistant", "content": answer.text(), "refusal": null, "annotations": null, "audio": null, "function_call": null,
        });
        let mut finish = answer.finish_reason();
        // A call that is not complete is a text.
        if let Some(called) = answer.call.as_ref().filter(|_| answer.complete) {
            message["content"] = if chosen == Chosen::Model { Value::Null } else { "".into() };
            message["tool_calls"] = json!([{"id": self.tool_call(at), "type": "function",
                "function": {"name": called.name, "arguments": called.arguments}}]);
            finish = if chosen == Chosen::Named { "stop" } else { "tool_calls" };
        }
        message["reasoning"] = Value::Null;
        json!({
            "index": at, "message": message, "logprobs": self.logprobs(answer.pieces.iter()), "finish_reason": finish,
            "stop_reason": answer.stopped_by, "token_ids": self.token_ids.then(|| answer.tokens.clone()), "routed_experts": null,
        })
    }

    /// Every token was as likely as any other.
    fn logprobs<'a>(&self, told: impl Iterator<Item = &'a str>) -> Value {
        let Some(likely) = self.logprobs else { return Value::Null };
        let content = told.map(|piece| {
            let one = json!({"token": piece, "logprob": -0.5, "bytes": piece.as_bytes()});
            let mut with_others = one.clone();
            with_others["top_logprobs"] = vec![one; likely.min(1)].into();
            with_others
        });
        json!({"content": content.collect::<Vec<_>>()})
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model, "choices": choices})
    }
}

/// Tells a stream.
struct Chunks {
    teller: Teller,
    usage: bool,
    continuous: bool,
    /// Which answers have named the tool that they call.
    called: Vec<bool>,
    chosen: Chosen,
}

impl Narrator for Chunks {
    fn token(&mut self, step: Step, sequences: &[Sequence], events: &mut Events) {
        if step.first {
            self.roles(sequences, events);
        }
        let answer = &sequences[step.sequence].answer;
        let delta = match delta(answer, step, &mut self.called[step.sequence]) {
            Delta::Text => json!({"content": answer.pieces.get(step.token)}),
            Delta::Name(name) => {
                let call = json!({"id": self.teller.tool_call(step.sequence), "type": "function", "index": 0, "function": {"name": name}});
                json!({"content": null, "tool_calls": [call]})
            }
            Delta::Arguments(part) => json!({"content": null, "tool_calls": [{"index": 0, "function": {"arguments": part}}]}),
            Delta::Nothing if step.last => json!({}),
            Delta::Nothing => return,
        };
        let told = step.token..=step.token;
        let logprobs = self.teller.logprobs(std::iter::once(answer.pieces.get(step.token)));
        let mut choice = json!({"index": step.sequence, "delta": delta, "logprobs": logprobs, "finish_reason": null});
        if step.last {
            let calls = self.called[step.sequence] && answer.complete && self.chosen != Chosen::Named;
            choice["finish_reason"] = if calls { "tool_calls" } else { answer.finish_reason() }.into();
            choice["stop_reason"] = answer.stopped_by.clone().into();
        }
        choice["token_ids"] = self.teller.token_ids.then(|| answer.tokens[told].to_vec()).into();
        let mut chunk = self.teller.chunk(json!([choice]));
        if self.continuous {
            chunk["usage"] = continuous(sequences[step.sequence].prompt.len(), step.token + 1);
        }
        if step.last && !self.usage {
            chunk["system_fingerprint"] = super::http::FINGERPRINT.into();
        }
        events.data(chunk);
    }

    fn end(&mut self, sequences: &[Sequence], events: &mut Events) {
        if self.usage {
            let used = self.teller.used(sequences, sequences.iter().map(|sequence| sequence.answer.tokens.len()).sum());
            let mut chunk = self.teller.chunk(json!([]));
            chunk["usage"] =
                json!({"prompt_tokens": used.prompt, "total_tokens": used.prompt + used.output, "completion_tokens": used.output});
            if self.teller.details {
                let mut details = json!({"cached_tokens": used.cached, "created_cache_tokens": used.created});
                if !self.teller.media.is_empty() {
                    details["multimodal_tokens"] = Value::Object(self.teller.media.clone());
                }
                chunk["usage"]["prompt_tokens_details"] = details;
            }
            chunk["system_fingerprint"] = super::http::FINGERPRINT.into();
            events.data(chunk);
        }
        events.data("[DONE]");
    }
}

impl Chunks {
    fn roles(&self, sequences: &[Sequence], events: &mut Events) {
        for (at, sequence) in sequences.iter().enumerate() {
            let delta = json!({"role": "assistant", "content": ""});
            let mut chunk = self.teller.chunk(json!([{"index": at, "delta": delta, "logprobs": null, "finish_reason": null}]));
            if self.continuous {
                chunk["usage"] = continuous(sequence.prompt.len(), 0);
            }
            chunk["prompt_token_ids"] = self.teller.token_ids.then(|| sequence.prompt.to_vec()).into();
            chunk["prompt_text"] = Value::Null;
            events.data(chunk);
        }
    }
}

fn continuous(prompt: usize, output: usize) -> Value {
    json!({"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output, "completion_tokens_details": null})
}

/// What a token is to a client.
pub(super) enum Delta<'a> {
    Text,
    /// The tool's name is known.
    Name(&'a str),
    /// A part of its arguments.
    Arguments(&'a str),
    /// Nothing that a client sees.
    Nothing,
}

/// What a step brings. `called` says, and is told, whether the tool's name has been told.
pub(super) fn delta<'a>(answer: &'a super::answer::Answer, step: Step, called: &mut bool) -> Delta<'a> {
    let Some(call) = &answer.call else { return Delta::Text };
    if step.token + 1 == call.written.start {
        *called = true;
        return Delta::Name(&call.name);
    }
    if call.written.contains(&step.token) { Delta::Arguments(answer.pieces.get(step.token)) } else { Delta::Nothing }
}
