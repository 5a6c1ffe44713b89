//! `/v1/completions`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::answer::Answer;
use super::ask::{self, Fields};
use super::flight::{Flight, Order, Sequence, Step};
use super::http::{Call, FINGERPRINT};
use super::refusal::Refusal;
use super::reply::Reply;
use super::story::{Events, Narrator, Story};
use super::tokens;

/// vLLM's default for `max_tokens`, as in OpenAI's first API.
const MAX_TOKENS: usize = 16;

/// vLLM's default for `VLLM_MAX_COMPLETION_PROMPTS`.
const MAX_PROMPTS: usize = 1_024;

/// Answers a request.
pub(super) async fn answer(call: &mut Call, fields: &Fields) -> Result<Reply, Refusal> {
    let app = Arc::clone(&call.app);
    let (stream, usage, continuous) = ask::streaming(fields)?;
    let salt = ask::salt(fields)?;
    ask::check_model(&app, fields)?;
    let prompts = prompts(fields.get("prompt"))?;
    let echo = ask::flag(fields, "echo");
    // With an echo, nothing need be generated; vLLM generates one token then, and keeps it.
    let echo_only = echo && fields.get("max_tokens").and_then(Value::as_u64) == Some(0);
    let mut sampling = ask::sampling(fields, if echo_only { &[] } else { &["max_tokens"] })?;
    let asked = if echo_only { 1 } else { sampling.max_tokens.unwrap_or(MAX_TOKENS) };
    let most = app.settings.engine.max_model_len;
    if asked > most {
        return Err(ask::too_many("max_tokens", asked, most));
    }
    sampling.max_tokens = Some(asked);
    let (form, each) = (ask::form(fields), ask::answers(fields)?);
    let mut budget = ask::Budget::new(&app, fields, if each > 1 { "n" } else { "prompt" });
    let mut orders = Vec::new();
    for prompt in &prompts {
        let room = ask::room(&app, prompt.tokens.len(), prompt.is_text)?;
        for which in 0..each as u64 {
            budget.sequence(prompt.tokens.len())?;
            let answer = Answer::new(&prompt.tokens, which, &form, &sampling, room);
            budget.answer(answer.tokens.len())?;
            orders.push(Order { prompt: Arc::clone(&prompt.tokens), answer });
        }
    }
    let mut flight = call.launch(orders, salt.as_deref(), asked)?;
    let teller = Teller {
        id: format!("cmpl-{}", call.id),
        created: call.created,
        model: app.settings.model.clone(),
        details: app.settings.prompt_tokens_details,
        each,
        echo,
        echo_only,
        token_ids: ask::flag(fields, "return_token_ids"),
        logprobs: fields.get("logprobs").is_some_and(Value::is_u64),
        usage,
        continuous,
        told: vec![None; flight.sequences.len()],
    };
    if stream {
        return Ok(Reply::stream(Story::new(flight, teller, Events::default())));
    }
    flight.whole().await?;
    Ok(Reply::json(&teller.whole(&flight)).with_load(call))
}

struct Prompt {
    tokens: Arc<[u32]>,
    is_text: bool,
}

/// A text, a list of texts, token ids, or a list of lists of token ids.
fn prompts(prompt: Option<&Value>) -> Result<Vec<Prompt>, Refusal> {
    let empty = || Refusal::parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt", None);
    let prompts = match prompt {
        None | Some(Value::Null) => return Err(empty()),
        Some(Value::Array(prompts)) if prompts.is_empty() => return Err(Refusal::bad("You must pass at least one prompt")),
        Some(Value::Array(tokens)) if tokens[0].is_number() => vec![ids(tokens)?],
        Some(Value::Array(prompts)) => prompts.iter().map(one).collect::<Result<_, _>>()?,
        Some(one_prompt) => vec![one(one_prompt)?],
    };
    if prompts.len() > MAX_PROMPTS {
        let message = format!(
            "prompt list length {} exceeds the maximum allowed count of {MAX_PROMPTS}. To increase this limit, set the \
             VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            prompts.len()
        );
        return Err(Refusal::parameter(&message, "prompt", None));
    }
    if prompts.iter().any(|prompt| prompt.tokens.is_empty()) { Err(empty()) } else { Ok(prompts) }
}

fn one(prompt: &Value) -> Result<Prompt, Refusal> {
    match prompt {
        Value::Array(tokens) => ids(tokens),
        text => Ok(Prompt { tokens: tokens::encode(text.as_str().unwrap_or_default()).collect(), is_text: true }),
    }
}

fn ids(tokens: &[Value]) -> Result<Prompt, Refusal> {
    let token = |token: &Value| token.as_u64().and_then(|token| u32::try_from(token).ok()).ok_or_else(|| token.clone());
    match tokens.iter().map(token).collect() {
        Ok(tokens) => Ok(Prompt { tokens, is_text: false }),
        Err(token) => Err(Refusal::bad(format!("Token id {token} is out of vocabulary"))),
    }
}

/// What is the same in all that is told of one request.
struct Teller {
    id: String,
    created: u64,
    model: String,
    details: bool,
    /// Answers for each prompt.
    each: usize,
    echo: bool,
    echo_only: bool,
    token_ids: bool,
    logprobs: bool,
    usage: bool,
    continuous: bool,
    /// How many signs of each answer have been told; nothing where not even its prompt has.
    told: Vec<Option<usize>>,
}

impl Teller {
    fn whole(&self, flight: &Flight) -> Value {
        let choice = |(at, sequence): (usize, &Sequence)| {
            let answer = &sequence.answer;
            let mut text = if self.echo_only { String::new() } else { answer.text().to_owned() };
            if self.echo && !self.token_ids {
                text.insert_str(0, &tokens::decode(&sequence.prompt));
            }
            json!({
                "index": at, "text": text, "logprobs": self.logprobs(answer.pieces.iter(), 0), "finish_reason": answer.finish_reason(),
                "stop_reason": answer.stopped_by, "token_ids": self.token_ids.then(|| answer.tokens.clone()), "prompt_logprobs": null,
                "prompt_token_ids": self.token_ids.then(|| sequence.prompt.to_vec()), "routed_experts": null,
            })
        };
        let choices: Vec<Value> = flight.sequences.iter().enumerate().map(choice).collect();
        let (prompt, output) = self.used(&flight.sequences);
        // vLLM tells of the last prompt's cached tokens only.
        let cached = flight.sequences.last().map_or(0, |last| last.cached_tokens);
        let details = json!({"cached_tokens": cached, "created_cache_tokens": null, "multimodal_tokens": null});
        let usage = json!({
            "prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output,
            "prompt_tokens_details": if self.details { details } else { Value::Null }, "completion_tokens_details": null,
        });
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model, "choices": choices,
            "service_tier": null, "system_fingerprint": FINGERPRINT, "usage": usage, "kv_transfer_params": null, "ec_transfer_params": null,
            "metrics": null,
        })
    }

    /// Tokens of all prompts, and of all answers.
    fn used(&self, sequences: &[Sequence]) -> (usize, usize) {
        let prompts = sequences.iter().step_by(self.each).map(|sequence| sequence.prompt.len()).sum();
        (prompts, sequences.iter().map(|sequence| sequence.answer.tokens.len()).sum())
    }

    /// Every token was as likely as any other.
    fn logprobs<'a>(&self, told: impl Iterator<Item = &'a str>, before: usize) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let mut offset = before;
        let (told, mut offsets): (Vec<&str>, Vec<usize>) = (told.collect(), vec![]);
        for piece in &told {
            offsets.push(offset);
            offset += piece.chars().count();
        }
        let likely: Vec<Value> = told.iter().map(|piece| json!({ *piece: -0.5 })).collect();
        json!({"text_offset": offsets, "token_logprobs": vec![-0.5; told.len()], "tokens": told, "top_logprobs": likely})
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({"id": self.id, "object": "text_completion", "created": self.created, "model": self.model, "choices": choices})
    }
}

impl Narrator for Teller {
    fn token(&mut self, step: Step, sequences: &[Sequence], events: &mut Events) {
        let Sequence { answer, prompt, .. } = &sequences[step.sequence];
        let mut text = if self.echo_only { String::new() } else { answer.pieces.get(step.token).to_owned() };
        let piece = answer.pieces.get(step.token);
        let first = self.told[step.sequence].is_none();
        let before = self.told[step.sequence].unwrap_or(0);
        self.told[step.sequence] = Some(before + piece.chars().count());
        if first && self.echo && !self.token_ids {
            text.insert_str(0, &tokens::decode(prompt));
        }
        let finish = step.last.then(|| answer.finish_reason());
        let choice = json!({
            "index": step.sequence, "text": text, "logprobs": self.logprobs(std::iter::once(piece), before),
            "finish_reason": finish, "stop_reason": answer.stopped_by.as_ref().filter(|_| step.last),
            "prompt_token_ids": (first && (self.token_ids || self.echo)).then(|| prompt.to_vec()),
            "token_ids": self.token_ids.then(|| answer.tokens[step.token..=step.token].to_vec()),
        });
        let mut chunk = self.chunk(json!([choice]));
        if self.continuous {
            let (prompt, output) = (prompt.len(), step.token + 1);
            chunk["usage"] = json!({"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output});
        }
        if step.last && !self.usage {
            chunk["system_fingerprint"] = FINGERPRINT.into();
        }
        events.data(chunk);
    }

    fn end(&mut self, sequences: &[Sequence], events: &mut Events) {
        if self.usage {
            let (prompt, output) = self.used(sequences);
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = json!({"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output});
            if self.details {
                let cached = sequences.first().map_or(0, |first| first.cached_tokens);
                chunk["usage"]["prompt_tokens_details"] = json!({ "cached_tokens": cached });
            }
            chunk["system_fingerprint"] = FINGERPRINT.into();
            events.data(chunk);
        }
        events.data("[DONE]");
    }
}
