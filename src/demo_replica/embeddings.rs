//! `/v1/embeddings`.

use std::sync::Arc;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::answer::Answer;
use super::ask::{self, Fields};
use super::flight::Order;
use super::http::Call;
use super::prompt::Message;
use super::refusal::Refusal;
use super::reply::Reply;
use super::tokens;

/// How long vectors are where nothing is said.
const DIMENSIONS: usize = 256;

/// As many inputs as OpenAI takes.
const MAX_INPUTS: usize = 2_048;

/// Numbers in all vectors of an answer.
const MAX_NUMBERS: usize = 1 << 22;

/// One vector, as it is written.
#[derive(Serialize)]
struct Embedding {
    index: usize,
    object: &'static str,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Base64(String),
    Numbers(Vec<f64>),
}

#[derive(Serialize)]
struct Body {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<Embedding>,
    usage: Value,
}

/// Answers a request.
pub(super) async fn answer(call: &mut Call, fields: &Fields) -> Result<Reply, Refusal> {
    let app = Arc::clone(&call.app);
    let salt = ask::salt(fields)?;
    let prompts = match fields.get("messages").and_then(Value::as_array) {
        Some(messages) => {
            let messages: Vec<Message> = messages.iter().map(Message::of_chat).collect();
            vec![ask::conversation(&messages, &[])?.tokens]
        }
        None => inputs(ask::required(fields, "input")?),
    };
    ask::check_model(&app, fields).map_err(|refusal| Refusal {
        message: refusal.message.split(" Valid").next().unwrap_or_default().into(),
        param: None,
        ..refusal
    })?;
    let dimensions = match ask::integer(fields, "dimensions")?.map(usize::try_from) {
        None => DIMENSIONS,
        Some(Ok(dimensions @ 1..=8_192)) => dimensions,
        Some(_) => return Err(Refusal::bad("dimensions must be between 1 and 8192")),
    };
    let most = app.settings.engine.max_model_len;
    if let Some(long) = prompts.iter().find(|prompt| prompt.len() > most) {
        return Err(Refusal::too_long(long.len(), most, true));
    }
    if prompts.iter().any(Vec::is_empty) || prompts.is_empty() {
        return Err(Refusal::bad("You must pass at least one prompt"));
    }
    if prompts.len() > MAX_INPUTS {
        let message = format!("input list length {} exceeds the maximum allowed count of {MAX_INPUTS}.", prompts.len());
        return Err(Refusal::parameter(&message, "input", None));
    }
    if prompts.len() * dimensions > MAX_NUMBERS {
        let message =
            format!("{} inputs with {dimensions} dimensions each exceed the {MAX_NUMBERS} numbers that an answer may have.", prompts.len());
        return Err(Refusal::parameter(&message, "input", None));
    }
    let mut budget = ask::Budget::new(&app, fields, "input");
    prompts.iter().try_for_each(|prompt| budget.sequence(prompt.len()))?;
    let orders = prompts.into_iter().map(|prompt| Order { prompt: prompt.into(), answer: Answer::default() }).collect();
    let mut flight = call.launch(orders, salt.as_deref(), 0)?;
    flight.whole().await?;
    let base64 = ask::text(fields, "encoding_format") == Some("base64");
    let prompts: Vec<Arc<[u32]>> = flight.sequences.iter().map(|sequence| Arc::clone(&sequence.prompt)).collect();
    let used: usize = prompts.iter().map(|prompt| prompt.len()).sum();
    let (id, created, model) = (format!("embd-{}", call.id), call.created, app.settings.model.clone());
    let write = move || {
        let data = prompts.iter().enumerate().map(|(index, prompt)| {
            let vector = vector(prompt, dimensions);
            let embedding =
                if base64 { Vector::Base64(encoded(&vector)) } else { Vector::Numbers(vector.into_iter().map(f64::from).collect()) };
            Embedding { index, object: "embedding", embedding }
        });
        let usage = json!({"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0, "prompt_tokens_details": null,
            "completion_tokens_details": null});
        serde_json::to_string(&Body { id, object: "list", created, model, data: data.collect(), usage })
    };
    // Millions of numbers take a while.
    match spawn_blocking(write).await.map_err(|error| error.to_string()).and_then(|text| text.map_err(|error| error.to_string())) {
        Ok(text) => Ok(Reply::new(StatusCode::OK, Some("application/json"), text.into())),
        Err(error) => Err(Refusal { status: StatusCode::INTERNAL_SERVER_ERROR, kind: "InternalServerError", ..Refusal::bad(error) }),
    }
}

/// A text, a list of texts, token ids, or a list of lists of token ids.
fn inputs(input: &Value) -> Vec<Vec<u32>> {
    let ids = |tokens: &[Value]| tokens.iter().filter_map(Value::as_u64).filter_map(|token| u32::try_from(token).ok()).collect();
    let one = |input: &Value| match input {
        Value::Array(tokens) => ids(tokens),
        text => tokens::encode(text.as_str().unwrap_or_default()).collect(),
    };
    match input {
        Value::Array(tokens) if tokens.first().is_some_and(Value::is_number) => vec![ids(tokens)],
        Value::Array(inputs) => inputs.iter().map(one).collect(),
        input => vec![one(input)],
    }
}

/// A vector of length 1 that follows from the tokens.
fn vector(tokens: &[u32], dimensions: usize) -> Vec<f32> {
    let mut hash = Xxh3::new();
    for token in tokens {
        hash.update(&token.to_le_bytes());
    }
    let seed = hash.digest();
    // From -1 to 1.
    let drawn = |at: usize| (xxh3_64_with_seed(&at.to_le_bytes(), seed) >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
    let vector: Vec<f32> = (0..dimensions).map(drawn).collect();
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.into_iter().map(|value| value / length).collect()
}

fn encoded(vector: &[f32]) -> String {
    BASE64_STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_1_and_come_again() {
        let one = vector(&[1, 2, 3], 64);
        assert_eq!(one, vector(&[1, 2, 3], 64));
        assert_ne!(one, vector(&[1, 2, 4], 64));
        assert!((one.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_eq!(encoded(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
