//! What surfaces have in common in what they are asked: lengths, stops, forms, tools; and vLLM's refusals of what cannot be.
//!
//! Unknown fields are ignored, as in vLLM.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::App;
use super::answer::{Answer, Form, Sampling};
use super::flight::Order;
use super::prompt::{self, Message, Prompt};
use super::refusal::Refusal;
use super::schema;

/// vLLM's default for `VLLM_MAX_N_SEQUENCES`.
const MAX_ANSWERS: i64 = 16_384;

/// Tokens that all sequences of a request may have together, prompts and answers; more only where the model alone takes more.
const MAX_TOKENS: usize = 1 << 20;

/// What a sequence costs beside its tokens, in tokens.
const SEQUENCE: usize = 64;

/// What a token costs that is told with its log probabilities.
const WITH_LOGPROBS: usize = 8;

/// Stop texts: each is looked for in the whole answer.
const MAX_STOPS: usize = 64;

/// A request's body.
pub(super) type Fields = Map<String, Value>;

/// A question to the model, with all that its answers have to keep to.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) prompt: Arc<[u32]>,
    /// How many of its tokens are of each kind of media.
    pub(super) media: Map<String, Value>,
    pub(super) form: Form,
    /// Who wanted a tool to be called.
    pub(super) chosen: Chosen,
    pub(super) sampling: Sampling,
    /// Tokens that an answer may have; at most what the model's length leaves.
    pub(super) max_tokens: usize,
    pub(super) answers: usize,
    pub(super) salt: Option<String>,
}

/// Who wanted a tool to be called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Chosen {
    /// Nobody: the model did so by itself, or no tool is called.
    #[default]
    Model,
    /// The client, any tool.
    Required,
    /// The client, by name.
    Named,
}

impl Ask {
    /// Puts a conversation as a question. `form` is how its answer has to look, `limit` what the surface calls its bound.
    pub(super) fn new(app: &App, fields: &Fields, prompt: Prompt, form: (Form, Chosen), limit: &[&str]) -> Result<Self, Refusal> {
        let mut sampling = sampling(fields, limit)?;
        let most = app.settings.engine.max_model_len;
        let room = room(app, prompt.tokens.len(), true)?;
        if let Some(asked) = sampling.max_tokens.filter(|asked| *asked > most) {
            return Err(too_many(limit[0], asked, most));
        }
        let max_tokens = sampling.max_tokens.unwrap_or(room).min(room);
        sampling.max_tokens = Some(max_tokens);
        Ok(Self {
            prompt: prompt.tokens.into(),
            media: prompt.media,
            form: form.0,
            chosen: form.1,
            sampling,
            max_tokens,
            answers: answers(fields)?,
            salt: salt(fields)?,
        })
    }

    /// The answers, to be generated. Refused where they are too many for this host's memory.
    pub(super) fn orders(&self, app: &App, fields: &Fields) -> Result<Vec<Order>, Refusal> {
        let mut budget = Budget::new(app, fields, "n");
        let order = |which| {
            budget.sequence(self.prompt.len())?;
            let answer = Answer::new(&self.prompt, which, &self.form, &self.sampling, self.max_tokens);
            budget.answer(answer.tokens.len())?;
            Ok(Order { prompt: Arc::clone(&self.prompt), answer })
        };
        (0..self.answers as u64).map(order).collect()
    }
}

/// What one request may cost in memory and time, in tokens. An engine's memory bounds vLLM; a simulated one shares its host's with others.
pub(super) struct Budget {
    most: usize,
    left: usize,
    per_answer_token: usize,
    field: &'static str,
}

impl Budget {
    /// All of it. `field` is to blame where it is too little.
    pub(super) fn new(app: &App, fields: &Fields, field: &'static str) -> Self {
        let most = app.settings.engine.max_model_len.max(MAX_TOKENS);
        let logprobs = fields.get("logprobs").is_some_and(|asked| *asked == true || asked.is_u64());
        let (per_answer_token, field) = if logprobs { (WITH_LOGPROBS, "logprobs") } else { (1, field) };
        // What one sequence costs beside its tokens is never too much.
        Self { most, left: most + SEQUENCE, per_answer_token, field }
    }

    /// For a sequence with so long a prompt.
    pub(super) fn sequence(&mut self, prompt: usize) -> Result<(), Refusal> {
        self.take(prompt + SEQUENCE)
    }

    /// For its answer.
    pub(super) fn answer(&mut self, tokens: usize) -> Result<(), Refusal> {
        self.take(tokens * self.per_answer_token)
    }

    fn take(&mut self, cost: usize) -> Result<(), Refusal> {
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let most = self.most;
                let message = format!(
                    "This simulated replica takes at most {most} tokens in all prompts and answers of a request together, where each \
                     sequence counts as {SEQUENCE} more and a token with log probabilities as {WITH_LOGPROBS}. Please request fewer \
                     sequences or tokens."
                );
                Err(Refusal::parameter(&message, self.field, None))
            }
        }
    }
}

/// Tokens that a prompt leaves for its answer.
pub(super) fn room(app: &App, prompt: usize, text: bool) -> Result<usize, Refusal> {
    let most = app.settings.engine.max_model_len;
    if prompt > most {
        return Err(Refusal::too_long(prompt, most, text));
    }
    match most - prompt {
        0 => Err(Refusal::parameter("max_tokens must be at least 1, got 0.", "max_tokens", Some(&0.into()))),
        room => Ok(room),
    }
}

pub(super) fn too_many(name: &str, asked: usize, most: usize) -> Refusal {
    let message = format!("{name}={asked} cannot be greater than max_model_len={most}. Please request fewer output tokens.");
    Refusal::parameter(&message, name, Some(&asked.into()))
}

/// The model asked for must be the one served; none is as good.
pub(super) fn check_model(app: &App, fields: &Fields) -> Result<(), Refusal> {
    match text(fields, "model") {
        Some(model) if model != app.settings.model => Err(Refusal::no_model(model, &app.settings.model)),
        _ => Ok(()),
    }
}

/// How answers are drawn. `limit` names the fields that bound their length, the first one first.
pub(super) fn sampling(fields: &Fields, limit: &[&str]) -> Result<Sampling, Refusal> {
    if let Some(temperature) = fields.get("temperature").and_then(Value::as_f64).filter(|temperature| *temperature < 0.0) {
        let message = format!("temperature must be non-negative, got {temperature:?}.");
        return Err(Refusal::parameter(&message, "temperature", Some(&temperature.into())));
    }
    let mut max_tokens = None;
    for name in limit {
        max_tokens = max_tokens.or(integer(fields, name)?);
    }
    if let Some(asked) = max_tokens.filter(|asked| *asked < 1) {
        return Err(Refusal::parameter(&format!("max_tokens must be at least 1, got {asked}."), "max_tokens", Some(&asked.into())));
    }
    let stop = match fields.get("stop").or_else(|| fields.get("stop_sequences")) {
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => stops.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => vec![],
    };
    if stop.len() > MAX_STOPS {
        let message = format!("stop list length {} exceeds the maximum allowed count of {MAX_STOPS}.", stop.len());
        return Err(Refusal::parameter(&message, "stop", None));
    }
    let count = |value: Option<i64>| value.and_then(|value| usize::try_from(value).ok());
    Ok(Sampling {
        max_tokens: count(max_tokens),
        min_tokens: count(integer(fields, "min_tokens")?).unwrap_or(0),
        ignore_eos: flag(fields, "ignore_eos"),
        stop,
        include_stop: flag(fields, "include_stop_str_in_output"),
        seed: integer(fields, "seed")?.unwrap_or(0).unsigned_abs(),
    })
}

/// How many answers are asked for.
pub(super) fn answers(fields: &Fields) -> Result<usize, Refusal> {
    match integer(fields, "n")?.unwrap_or(1) {
        few @ ..1 => Err(Refusal::bad(format!("n must be at least 1, got {few}."))),
        many if many > MAX_ANSWERS => Err(Refusal::bad(format!(
            "n must be at most {MAX_ANSWERS}, got {many}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        ))),
        many => Ok(usize::try_from(many).unwrap_or(1)),
    }
}

/// What keeps this request's cache apart from others'.
pub(super) fn salt(fields: &Fields) -> Result<Option<String>, Refusal> {
    match fields.get("cache_salt") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(salt)) if !salt.is_empty() => Ok(Some(salt.clone())),
        _ => Err(Refusal::parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt", None)),
    }
}

/// Whether the answer is to be streamed, and with which figures: usage at the end, usage with each event.
pub(super) fn streaming(fields: &Fields) -> Result<(bool, bool, bool), Refusal> {
    let stream = flag(fields, "stream");
    let options = fields.get("stream_options").and_then(Value::as_object);
    if options.is_some() && !stream {
        return Err(Refusal::parameter("Stream options can only be defined when `stream=True`.", "stream_options", None));
    }
    let usage = options.is_some_and(|options| flag(options, "include_usage"));
    let continuous = usage && options.is_some_and(|options| flag(options, "continuous_usage_stats"));
    Ok((stream, usage, continuous))
}

/// The form of an answer that calls no tool: `response_format` of chat and completions, or `structured_outputs`.
pub(super) fn form(fields: &Fields) -> Form {
    let format = fields.get("response_format").unwrap_or(&Value::Null);
    match format["type"].as_str() {
        Some("json_object") => return Form::Json,
        Some("json_schema") => return of_schema(&format["json_schema"]["schema"]),
        _ => {}
    }
    let Some(structured) = fields.get("structured_outputs") else { return Form::Text };
    if let Some(choice) = structured["choice"].get(0).and_then(Value::as_str) {
        return Form::Exactly(choice.into());
    }
    match &structured["json"] {
        Value::Null if structured["json_object"] == true => Form::Json,
        Value::Null => Form::Text,
        // A schema may come as text.
        Value::String(schema) => serde_json::from_str(schema).map_or(Form::Json, |schema: Value| of_schema(&schema)),
        schema => of_schema(schema),
    }
}

/// A value that `schema` accepts.
pub(super) fn of_schema(schema: &Value) -> Form {
    Form::Exactly(prompt::written(&schema::instance(schema)))
}

/// Which of `tools` an answer calls, if any. `choice` is as in chat requests.
pub(super) fn choose(tools: &[Value], choice: &Value, messages: &[Message]) -> Result<Option<(Form, Chosen)>, Refusal> {
    let call = |tool: &Value, chosen| {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        let arguments = prompt::written(&schema::instance(&function["parameters"]));
        Some((Form::Call { name, arguments }, chosen))
    };
    let first = |chosen| tools.first().and_then(|tool| call(tool, chosen));
    match choice {
        Value::Object(_) => {
            let name = &choice["function"]["name"];
            match tools.iter().find(|tool| tool["function"]["name"] == *name) {
                Some(tool) => Ok(call(tool, Chosen::Named)),
                None => {
                    let message = "The tool specified in `tool_choice` does not match any of the specified `tools`";
                    Err(Refusal::parameter(message, "tool_choice", None))
                }
            }
        }
        Value::String(choice) if choice == "none" => Ok(None),
        Value::String(choice) if choice == "required" => Ok(first(Chosen::Required)),
        // After a tool's result there is something to say; before that, a tool is what an agent needs.
        _ if messages.last().is_some_and(|last| last.role == "user") => Ok(first(Chosen::Model)),
        _ => Ok(None),
    }
}

/// A conversation as a prompt. `messages` must not be empty.
pub(super) fn conversation(messages: &[Message], tools: &[Value]) -> Result<Prompt, Refusal> {
    if messages.is_empty() {
        return Err(Refusal::bad("Cannot apply chat template to an empty conversation. Provide at least one message."));
    }
    Ok(prompt::render(messages, tools))
}

/// A list that must be there.
pub(super) fn required<'a>(fields: &'a Fields, name: &str) -> Result<&'a Value, Refusal> {
    fields.get(name).ok_or_else(|| Refusal::missing(&format!("body.{name}"), &format!("<dict of {} items>", fields.len())))
}

/// A field that is a list; empty without one.
pub(super) fn list<'a>(fields: &'a Fields, name: &str) -> &'a [Value] {
    fields.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}

pub(super) fn flag(fields: &Fields, name: &str) -> bool {
    fields.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// A whole number; as in pydantic, texts of digits are numbers, too.
pub(super) fn integer(fields: &Fields, name: &str) -> Result<Option<i64>, Refusal> {
    let place = format!("body.{name}");
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => text.parse().map(Some).map_err(|_| {
            let details = format!(
                "{{'type': 'int_parsing', 'loc': '{place}', 'msg': 'Input should be a valid integer, unable to parse string as an integer', \
                 'input': '{text}'}}"
            );
            Refusal::invalid(&details, Some(place))
        }),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| {
            let details = format!("{{'type': 'int_type', 'loc': '{place}', 'msg': 'Input should be a valid integer'}}");
            Refusal::invalid(&details, Some(place))
        }),
    }
}
