//! `/tokenize` and `/detokenize`: no work for the engine.

use serde_json::{Value, json};

use super::App;
use super::ask::{self, Fields};
use super::prompt::Message;
use super::refusal::Refusal;
use super::reply::Reply;
use super::tokens;

/// The tokens of a text or a conversation.
pub(super) fn tokenize(app: &App, fields: &Fields) -> Result<Reply, Refusal> {
    ask::check_model(app, fields)?;
    let tokens: Vec<u32> = match fields.get("messages").and_then(Value::as_array) {
        Some(messages) => {
            let messages: Vec<Message> = messages.iter().map(Message::of_chat).collect();
            ask::conversation(&messages, ask::list(fields, "tools"))?.tokens
        }
        None => tokens::encode(ask::required(fields, "prompt")?.as_str().unwrap_or_default()).collect(),
    };
    ask::Budget::new(app, fields, "prompt").sequence(tokens.len())?;
    let texts: Option<Vec<String>> =
        ask::flag(fields, "return_token_strs").then(|| tokens.iter().map(|token| tokens::decode(&[*token])).collect());
    let most = app.settings.engine.max_model_len;
    Ok(Reply::json(&json!({"count": tokens.len(), "max_model_len": most, "tokens": tokens, "token_strs": texts})))
}

/// The text of tokens.
pub(super) fn detokenize(app: &App, fields: &Fields) -> Result<Reply, Refusal> {
    ask::check_model(app, fields)?;
    let tokens = ask::required(fields, "tokens")?.as_array().map_or(&[][..], Vec::as_slice);
    let tokens: Vec<u32> = tokens.iter().filter_map(Value::as_u64).filter_map(|token| u32::try_from(token).ok()).collect();
    Ok(Reply::json(&json!({ "prompt": tokens::decode(&tokens) })))
}
