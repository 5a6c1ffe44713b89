//! `/v1/embeddings`.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::answer::Answer;
use super::ask::{self, Fields};
use super::flight::Order;
use super::http::{Call, Reply};
use super::prompt::Message;
use super::refusal::Refusal;
use super::tokens;

/// How long vectors are where nothing is said.
const DIMENSIONS: usize = 256;

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
    let orders = prompts.into_iter().map(|prompt| Order { prompt: prompt.into(), answer: Answer::default() }).collect();
    let mut flight = call.launch(orders, salt.as_deref(), 0)?;
    flight.whole().await;
    let base64 = ask::text(fields, "encoding_format") == Some("base64");
    let data = flight.sequences.iter().enumerate().map(|(at, sequence)| {
        let vector = vector(&sequence.prompt, dimensions);
        json!({"index": at, "object": "embedding", "embedding": if base64 { encoded(&vector).into() } else { Value::from(vector) }})
    });
    let data: Vec<Value> = data.collect();
    let used: usize = flight.sequences.iter().map(|sequence| sequence.prompt.len()).sum();
    Ok(Reply::json(&json!({
        "id": format!("embd-{}", call.id), "object": "list", "created": call.created, "model": app.settings.model, "data": data,
        "usage": {"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0, "prompt_tokens_details": null,
            "completion_tokens_details": null},
    })))
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
