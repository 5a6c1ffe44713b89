//! The text view: where each surface keeps its prompt, and in which order its pieces are hashed (DESIGN section 3).
//!
//! A body is only looked at. Fields, roles and shapes that are not known here contribute nothing and cause no error.

use std::borrow::Cow;
use std::ops::ControlFlow;

use super::Includes;
use super::json::{Cursor, LongStrings, Malformed, RawString, Token, Value};
use super::surface::Surface;

/// The fields in which the surfaces put the URL, the id or the data of an image, a sound or a file.
const MEDIA_SOURCES: [&str; 8] = ["url", "data", "image_url", "video_url", "audio_url", "file_url", "file_data", "file_id"];

/// The kinds of parts that are no text, on any surface.
const MEDIA: [&str; 10] =
    ["image", "image_url", "input_image", "audio_url", "input_audio", "video_url", "file", "file_url", "input_file", "document"];

/// The fields of a body that routing looks at, found in one pass. Of a field given twice the last counts, as for the engines.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) model: Option<String>,
    pub(super) prompt_cache_key: Option<Cow<'a, str>>,
    pub(super) cache_salt: Option<Cow<'a, str>>,
    /// 0 where there is none, or none that is a whole number: the engine is the judge of that.
    pub(super) priority: i64,
    /// Whether the answer is to come piece by piece.
    pub(super) streams: bool,
    messages: Option<Value<'a>>,
    prompt: Option<Value<'a>>,
    input: Option<Value<'a>>,
    instructions: Option<Value<'a>>,
    system: Option<Value<'a>>,
    tools: Option<Value<'a>>,
    /// How many objects and arrays are open at once where the body is nested deepest; its own braces are the first.
    pub(super) depth: usize,
}

/// What a prompt is given to, piece by piece.
pub(super) trait Sink {
    /// Whether nothing further is of use.
    fn is_full(&self) -> bool;

    /// The border before a message. Whether the message is of use.
    fn role(&mut self, role: &str) -> bool;

    /// A text of the prompt.
    fn text(&mut self, text: RawString<'_>) -> Result<(), Malformed>;

    /// Token ids, in the array that `tokens` steps over unless nothing behind is of use.
    fn token_ids(&mut self, tokens: &mut Cursor<'_>) -> Result<(), Malformed>;

    /// A value that is no text, with white space and ways of escaping left out.
    fn value(&mut self, value: Value<'_>) -> Result<(), Malformed>;

    /// Where a part that is no text comes from, or its data.
    fn medium(&mut self, source: RawString<'_>) -> Result<(), Malformed>;

    /// The end of the tools.
    fn end_of_tools(&mut self);

    /// Whether it is given what is no text to a reader, but is to an engine: tool calls, their results, and whatever else a message has.
    fn wants_all(&self) -> bool {
        false
    }
}

impl<'a> Fields<'a> {
    /// The fields of the JSON object that `text` is; `long` is for the walk through the prompt afterwards.
    pub(super) fn parse(text: &'a str, long: &'a LongStrings) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        let mut cursor = Cursor::with_long(text, long);
        cursor.object(|name, value| {
            let text = |value: Value<'a>| value.string().map(RawString::text).transpose();
            match name.text()?.as_ref() {
                "model" => fields.model = text(value)?.map(Cow::into_owned),
                "prompt_cache_key" => fields.prompt_cache_key = text(value)?,
                "cache_salt" => fields.cache_salt = text(value)?,
                "priority" => fields.priority = whole_number(value).unwrap_or_default(),
                "stream" => fields.streams = value.first() == b't',
                "messages" => fields.messages = Some(value),
                "prompt" => fields.prompt = Some(value),
                "input" => fields.input = Some(value),
                "instructions" => fields.instructions = Some(value),
                "system" => fields.system = Some(value),
                "tools" => fields.tools = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        cursor.end()?;
        fields.depth = 1 + cursor.deepest();
        Ok(fields)
    }

    /// Bytes of the fields that hold the prompt of a body of `surface`, which has a text view.
    pub(super) fn prompt_bytes(&self, surface: Surface) -> usize {
        let fields: &[Option<Value<'_>>] = match surface {
            Surface::Messages => &[self.system, self.messages],
            Surface::Responses => &[self.instructions, self.input],
            Surface::Completions => &[self.prompt],
            Surface::Embeddings => &[self.input, self.messages],
            _ => &[self.messages],
        };
        fields.iter().flatten().map(|value| value.len()).sum()
    }

    /// Gives the prompt of a body of `surface`, which has a text view, to `sink`.
    pub(super) fn read_prompt(&self, surface: Surface, includes: Includes, sink: &mut impl Sink) -> Result<(), Malformed> {
        // Engines render tools before everything else.
        if let (true, Some(tools)) = (includes.tools, present(self.tools)) {
            sink.value(tools)?;
            sink.end_of_tools();
        }
        let mut walk = Walk { sink, includes };
        match surface {
            Surface::Messages => {
                walk.message_of("system", self.system)?;
                walk.messages(self.messages)
            }
            Surface::Responses => {
                walk.message_of("system", self.instructions)?;
                match self.input.map(Value::first) {
                    Some(b'[') => walk.messages(self.input),
                    _ => walk.message_of("user", self.input),
                }
            }
            Surface::Completions => walk.inputs(self.prompt),
            Surface::Embeddings => {
                walk.inputs(self.input)?;
                // vLLM also embeds chats.
                walk.messages(self.messages)
            }
            _ => walk.messages(self.messages),
        }
    }
}

/// The whole number at `value`, also where it is written as vLLM takes it too: `5.0`.
fn whole_number(value: Value<'_>) -> Option<i64> {
    let text = value.cursor().scalar().ok()?;
    // A float becomes an integer by saturation.
    text.parse().ok().or_else(|| text.parse().ok().filter(|number: &f64| number.fract() == 0.0).map(|number| number as i64))
}

/// A prompt on its way into a sink.
struct Walk<'s, S> {
    sink: &'s mut S,
    includes: Includes,
}

impl<S: Sink> Walk<'_, S> {
    /// A list of messages: for each the role, then its text.
    fn messages(&mut self, messages: Option<Value<'_>>) -> Result<(), Malformed> {
        self.each(messages, |walk, message| {
            if message.peek() != Some(b'{') {
                return Ok(());
            }
            let (mut role, mut content, mut others) = (None, None, Vec::new());
            let wants_all = walk.sink.wants_all();
            message.object(|name, value| {
                match name.text()?.as_ref() {
                    "role" => role = value.string(),
                    "content" => content = Some(value),
                    _ => others.extend(wants_all.then_some(value)),
                }
                Ok(())
            })?;
            if !walk.sink.role(&role.map(RawString::text).transpose()?.unwrap_or_default()) {
                return Ok(());
            }
            walk.content(content)?;
            others.into_iter().try_for_each(|other| walk.sink.value(other))
        })
    }

    /// One message that stands in a field of its own, as if it were the next of the list.
    fn message_of(&mut self, role: &str, content: Option<Value<'_>>) -> Result<(), Malformed> {
        if !self.sink.is_full() && present(content).is_some() && self.sink.role(role) { self.content(content) } else { Ok(()) }
    }

    /// The content of a message: a text, or parts in order. Anything else is an empty text.
    fn content(&mut self, content: Option<Value<'_>>) -> Result<(), Malformed> {
        match content.and_then(Value::string) {
            Some(text) => self.sink.text(text),
            None => self.each(content, Self::part),
        }
    }

    /// One part of a message's content.
    fn part(&mut self, part: &mut Cursor<'_>) -> Result<(), Malformed> {
        match part.peek() {
            Some(b'"') => return self.sink.text(part.string()?),
            Some(b'{') => {}
            _ => return Ok(()),
        }
        let mut whole = *part;
        let (mut kind, mut text, mut refusal) = (None, None, None);
        part.object(|name, value| {
            match name.text()?.as_ref() {
                "type" => kind = value.string(),
                "text" => text = value.string(),
                "refusal" => refusal = value.string(),
                _ => {}
            }
            Ok(())
        })?;
        let is = |name| kind.is_some_and(|kind| kind.is(name));
        if is("refusal") {
            refusal.map_or(Ok(()), |refusal| self.sink.text(refusal))
        } else if kind.is_none() || is("text") || is("input_text") || is("output_text") {
            text.map_or(Ok(()), |text| self.sink.text(text))
        } else if self.sink.wants_all() && !MEDIA.iter().any(|medium| is(medium)) {
            self.sink.value(whole.value()?)
        } else if self.includes.media {
            self.media(whole.value()?)
        } else {
            Ok(())
        }
    }

    /// A part that is no text: the values that say which one it is, however the surface nests them.
    fn media(&mut self, part: Value<'_>) -> Result<(), Malformed> {
        let (mut name, mut at_value): (Option<RawString<'_>>, bool) = (None, false);
        part.tokens(|token| {
            let is_source = || name.is_some_and(|name| MEDIA_SOURCES.iter().any(|source| name.is(source)));
            match token {
                Token::String(text) if at_value && is_source() => self.sink.medium(text)?,
                Token::String(text) if !at_value => name = Some(text),
                _ => {}
            }
            at_value = matches!(token, Token::Mark(b':'));
            Ok(())
        })
    }

    /// A prompt or an input to embed: a text, token ids, or a list of such.
    fn inputs(&mut self, inputs: Option<Value<'_>>) -> Result<(), Malformed> {
        let Some(inputs) = inputs else { return Ok(()) };
        if let Some(text) = inputs.string() {
            return self.sink.text(text);
        }
        if begins_with_number(inputs) {
            return self.sink.token_ids(&mut inputs.cursor());
        }
        self.each(Some(inputs), |walk, item| match item.peek() {
            Some(b'"') => walk.sink.text(item.string()?),
            Some(b'[') => walk.sink.token_ids(item),
            _ => Ok(()),
        })
    }

    /// Calls `step` with each element of a list until the prefix is complete; what is no list has no elements.
    fn each(
        &mut self,
        list: Option<Value<'_>>,
        mut step: impl FnMut(&mut Self, &mut Cursor<'_>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let Some(list) = list.filter(|list| list.first() == b'[') else { return Ok(()) };
        // Whether it ended early makes no difference.
        let _ = list.cursor().array::<()>(|item| {
            if self.sink.is_full() {
                return Ok(ControlFlow::Break(()));
            }
            step(self, item)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }
}

/// A value that is there and not `null`.
fn present(value: Option<Value<'_>>) -> Option<Value<'_>> {
    value.filter(|value| value.first() != b'n')
}

fn begins_with_number(list: Value<'_>) -> bool {
    let mut is_number = false;
    // What is no list does not begin with a number either.
    let _ = list.cursor().array::<()>(|first| {
        is_number = first.peek().is_some_and(|byte| byte.is_ascii_digit() || byte == b'-');
        Ok(ControlFlow::Break(()))
    });
    is_number
}
