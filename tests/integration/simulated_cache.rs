//! What the simulated replica's answers have to do with its cache: turns, salts, tools and media; and that it answers alike every time.

use serde_json::{Value, json};

use crate::simulated::{Simulated, settings};

const CHAT: &str = "/v1/chat/completions";

/// Long enough for a few blocks of 16 tokens, 4 bytes each.
fn question(word: &str) -> String {
    format!("{word}: what is the weather going to be in the town by the river? ").repeat(5)
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn message(answer: &Value) -> Value {
    answer["choices"][0]["message"].clone()
}

fn tokens(answer: &Value, kind: &str) -> u64 {
    answer["usage"][kind].as_u64().unwrap()
}

/// Full blocks of these tokens, but for the last one: an answer's last token is not computed, and a prompt's always is.
fn blocks(tokens: u64) -> u64 {
    (tokens - 1) / 16 * 16
}

#[tokio::test]
async fn the_next_turn_finds_question_and_answer() {
    let replica = Simulated::start(settings()).await;
    let mut messages = vec![json!({"role": "system", "content": question("system")}), user(&question("one"))];
    let mut before: Option<u64> = None;
    for _ in 0..3 {
        let answer = replica.post(CHAT, json!({"messages": messages})).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(cached(&answer), before.map_or(0, blocks), "{answer}");
        before = Some(tokens(&answer, "total_tokens"));
        messages.push(message(&answer));
        messages.push(user("And then?"));
    }
}

#[tokio::test]
async fn a_turn_after_a_tool_call_finds_the_call_on_every_surface() {
    let replica = Simulated::start(settings()).await;
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris"]}, "days": {"type": "integer"}}, "required": ["city", "days"]});
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]);
    let asked = user(&question("chat"));
    let called = replica.post(CHAT, json!({"messages": [asked], "tools": tools})).await;
    assert_eq!(called["choices"][0]["finish_reason"], "tool_calls");
    let call = &message(&called)["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], r#"{"city": "Paris", "days": 1}"#);
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "rain"});
    let answer = replica.post(CHAT, json!({"messages": [asked, message(&called), result], "tools": tools})).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(cached(&answer), blocks(tokens(&called, "total_tokens")));

    let tools = json!([{"name": "get_weather", "input_schema": schema}]);
    let asked = user(&question("messages"));
    let called = replica.post("/v1/messages", json!({"max_tokens": 99, "messages": [asked], "tools": tools})).await;
    assert_eq!(called["stop_reason"], "tool_use");
    assert_eq!(called["content"][0]["input"], json!({"city": "Paris", "days": 1}));
    let result = json!([{"type": "tool_result", "tool_use_id": called["content"][0]["id"], "content": "rain"}]);
    let messages = json!([asked, {"role": "assistant", "content": called["content"]}, {"role": "user", "content": result}]);
    let answer = replica.post("/v1/messages", json!({"max_tokens": 99, "messages": messages, "tools": tools})).await;
    assert_eq!(answer["stop_reason"], "end_turn");
    let used = |answer: &Value, kind: &str| answer["usage"][kind].as_u64().unwrap();
    let total = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"];
    let total: u64 = total.iter().map(|kind| used(&called, kind)).sum();
    assert_eq!(used(&answer, "cache_read_input_tokens"), blocks(total));

    let tools = json!([{"type": "function", "name": "get_weather", "parameters": schema}]);
    let asked = user(&question("responses"));
    let called = replica.post("/v1/responses", json!({"input": [asked], "tools": tools})).await;
    let call = called["output"][0].clone();
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_weather")));
    let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "rain"});
    let answer = replica.post("/v1/responses", json!({"input": [asked, call, result], "tools": tools})).await;
    assert_eq!(answer["output"][0]["type"], "message");
    assert_eq!(answer["usage"]["input_tokens_details"]["cached_tokens"], blocks(called["usage"]["total_tokens"].as_u64().unwrap()));
}

#[tokio::test]
async fn one_conversation_has_the_same_tokens_on_all_chat_surfaces() {
    let replica = Simulated::start(settings()).await;
    let (system, asked) = (question("system"), user(&question("one")));
    let chat = replica.post(CHAT, json!({"messages": [{"role": "system", "content": system}, asked]})).await;
    let messages = replica.post("/v1/messages", json!({"max_tokens": 99, "system": system, "messages": [asked]})).await;
    assert_eq!(messages["usage"]["cache_read_input_tokens"], blocks(tokens(&chat, "prompt_tokens")));
    assert_eq!(messages["content"][0]["text"], message(&chat)["content"]);
    let responses = replica.post("/v1/responses", json!({"instructions": system, "input": asked["content"]})).await;
    assert_eq!(responses["usage"]["input_tokens_details"]["cached_tokens"], blocks(tokens(&chat, "prompt_tokens")));
    assert_eq!(responses["output"][0]["content"][0]["text"], message(&chat)["content"]);
    let counted = replica.post("/v1/messages/count_tokens", json!({"system": system, "messages": [asked]})).await;
    assert_eq!(counted["input_tokens"], tokens(&chat, "prompt_tokens"));
    let tokenized = replica.post("/tokenize", json!({"messages": [{"role": "system", "content": system}, asked]})).await;
    assert_eq!(tokenized["count"], tokens(&chat, "prompt_tokens"));
    let text = replica.post("/detokenize", json!({"tokens": replica.post("/tokenize", json!({"prompt": system})).await["tokens"]})).await;
    assert_eq!(text["prompt"], system);
}

#[tokio::test]
async fn salts_and_media_are_kept_apart() {
    let replica = Simulated::start(settings()).await;
    let ask = async |salt: Value, image: &str| {
        let content = json!([{"type": "text", "text": question("one")}, {"type": "image_url", "image_url": {"url": image}}]);
        let mut body = json!({"messages": [user("")], "max_tokens": 2});
        body["messages"][0]["content"] = content;
        body["cache_salt"] = salt;
        cached(&replica.post(CHAT, body).await)
    };
    assert_eq!(ask(Value::Null, "http://a/1.png").await, 0);
    let whole = ask(Value::Null, "http://a/1.png").await;
    assert!(whole > 300, "{whole}: the image is in it");
    let text_alone = ask(Value::Null, "http://a/2.png").await;
    assert!((48..128).contains(&text_alone), "{text_alone}");
    assert_eq!(ask(json!("x"), "http://a/1.png").await, 0);
    assert_eq!(ask(json!("x"), "http://a/1.png").await, whole);
}

#[tokio::test]
async fn token_ids_texts_and_lists_are_prompts() {
    let replica = Simulated::start(settings()).await;
    let ids: Vec<u32> = (1..=64).collect();
    let one = replica.post("/v1/completions", json!({"prompt": ids, "max_tokens": 3, "n": 2})).await;
    assert_eq!((tokens(&one, "prompt_tokens"), tokens(&one, "completion_tokens")), (64, 6));
    assert_ne!(one["choices"][0]["text"], one["choices"][1]["text"]);
    let again = replica.post("/v1/completions", json!({"prompt": [[1, 2], ids], "max_tokens": 3})).await;
    assert_eq!((cached(&again), again["choices"].as_array().unwrap().len()), (48, 2));
    assert_eq!(again["choices"][1]["text"], one["choices"][0]["text"]);
    let echo = replica.post("/v1/completions", json!({"prompt": "Once upon", "max_tokens": 1, "echo": true})).await;
    assert!(echo["choices"][0]["text"].as_str().unwrap().starts_with("Once upon "), "{echo}");
    let default = replica.post("/v1/completions", json!({"prompt": "Once", "ignore_eos": true})).await;
    assert_eq!(tokens(&default, "completion_tokens"), 16);
    let embedded = replica.post("/v1/embeddings", json!({"input": ["a", "b"], "dimensions": 8})).await;
    assert_eq!(embedded["data"][1]["embedding"].as_array().unwrap().len(), 8);
    assert_eq!(replica.post("/invocations", json!({"input": "a"})).await["object"], "list");
    assert_eq!(replica.post("/invocations", json!({"prompt": "a"})).await["object"], "text_completion");
}

#[tokio::test]
async fn json_is_of_the_schema_that_was_asked_for() {
    let replica = Simulated::start(settings()).await;
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]});
    let valid = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    for format in [json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}), json!({"type": "json_object"})] {
        let answer = replica.post(CHAT, json!({"messages": [user("a")], "response_format": format})).await;
        assert!(valid(&message(&answer)["content"]).is_object());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let answer = replica.post("/v1/completions", json!({"prompt": "a", "max_tokens": 50, "structured_outputs": {"json": schema}})).await;
    assert_eq!(valid(&answer["choices"][0]["text"]), json!({"n": 3}));
    let format = json!({"format": {"type": "json_schema", "name": "a", "schema": schema}});
    let answer = replica.post("/v1/responses", json!({"input": "a", "text": format})).await;
    assert_eq!(valid(&answer["output"][0]["content"][0]["text"]), json!({"n": 3}));
}

#[tokio::test]
async fn details_and_keys_are_settings() {
    let mut settings = settings();
    settings.prompt_tokens_details = false;
    settings.api_key = Some("secret".into());
    let replica = Simulated::start(settings).await;
    let refused = replica.send("POST", CHAT, &json!({"messages": [user("a")]})).await;
    assert_eq!((refused.status, refused.text().as_str()), (401, r#"{"error":"Unauthorized"}"#));
    assert_eq!(replica.send("GET", "/v1/models", &Value::Null).await.status, 401);
    assert_eq!(replica.send("GET", "/health", &Value::Null).await.status, 200);
    let mut client = crate::client::Client::connect(replica.address()).await;
    let fields = "content-type: application/json\r\nauthorization: Bearer secret\r\n";
    let answer = client.request("POST", CHAT, fields, json!({"messages": [user("a")], "max_tokens": 1}).to_string()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(r#""prompt_tokens_details":null"#), "{}", answer.text());
}
