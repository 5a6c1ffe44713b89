//! The text view: where each surface keeps its prompt, and in which order its pieces are hashed (DESIGN section 3).
//!
//! A body is only looked at. Fields, roles and shapes that are not known here contribute nothing and cause no error.

use std::ops::ControlFlow;

use super::Includes;
use super::json::{Cursor, Malformed, RawString, Token};
use super::key::KeyHasher;
use super::surface::Surface;

/// The fields in which the surfaces put the URL, the id or the data of an image, a sound or a file.
const MEDIA_SOURCES: [&str; 8] = ["url", "data", "image_url", "video_url", "audio_url", "file_url", "file_data", "file_id"];

/// The fields of a body that routing looks at, found in one pass. Of a field given twice the last counts, as for the engines.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) model: Option<String>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) cache_salt: Option<String>,
    /// 0 where there is none, or none that is a whole number: the engine is the judge of that.
    pub(super) priority: i64,
    messages: Option<Cursor<'a>>,
    prompt: Option<Cursor<'a>>,
    input: Option<Cursor<'a>>,
    instructions: Option<Cursor<'a>>,
    system: Option<Cursor<'a>>,
    tools: Option<Cursor<'a>>,
    /// How many objects and arrays are open at once where the body is nested deepest; its own braces are the first.
    pub(super) depth: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the JSON object that `text` is.
    pub(super) fn parse(text: &'a str) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        let mut cursor = Cursor::new(text);
        cursor.object(|name, value| {
            let text = |value| string_at(value)?.map(RawString::to_text).transpose();
            match name.text()?.as_ref() {
                "model" => fields.model = text(value)?,
                "prompt_cache_key" => fields.prompt_cache_key = text(value)?,
                "cache_salt" => fields.cache_salt = text(value)?,
                "priority" => fields.priority = whole_number(value).unwrap_or_default(),
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

    /// Hashes the prompt of a body of `surface`, which has a text view.
    pub(super) fn hash_prompt(&self, surface: Surface, includes: Includes, key: &mut KeyHasher) -> Result<(), Malformed> {
        // Engines render tools before everything else.
        if let (true, Some(tools)) = (includes.tools, present(self.tools)) {
            key.value(tools)?;
        }
        let mut walk = Walk { key, includes };
        match surface {
            Surface::Messages => {
                walk.message_of("system", self.system)?;
                walk.messages(self.messages)
            }
            Surface::Responses => {
                walk.message_of("system", self.instructions)?;
                match self.input.and_then(|mut input| input.peek()) {
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
fn whole_number(mut value: Cursor<'_>) -> Option<i64> {
    let text = value.scalar().ok()?;
    // A float becomes an integer by saturation.
    text.parse().ok().or_else(|| text.parse().ok().filter(|number: &f64| number.fract() == 0.0).map(|number| number as i64))
}

/// A prompt on its way into the key.
struct Walk<'k> {
    key: &'k mut KeyHasher,
    includes: Includes,
}

impl Walk<'_> {
    /// A list of messages: for each the role, then its text.
    fn messages(&mut self, messages: Option<Cursor<'_>>) -> Result<(), Malformed> {
        self.each(messages, |walk, message| {
            let Some(mut message) = object_at(message) else { return Ok(()) };
            let (mut role, mut content) = (None, None);
            message.object(|name, value| {
                match name.text()?.as_ref() {
                    "role" => role = string_at(value)?,
                    "content" => content = Some(value),
                    _ => {}
                }
                Ok(())
            })?;
            walk.key.role(&role.map(RawString::to_text).transpose()?.unwrap_or_default());
            walk.content(content)
        })
    }

    /// One message that stands in a field of its own, as if it were the next of the list.
    fn message_of(&mut self, role: &str, content: Option<Cursor<'_>>) -> Result<(), Malformed> {
        if self.key.is_full() || present(content).is_none() {
            return Ok(());
        }
        self.key.role(role);
        self.content(content)
    }

    /// The content of a message: a text, or parts in order. Anything else is an empty text.
    fn content(&mut self, content: Option<Cursor<'_>>) -> Result<(), Malformed> {
        let Some(mut content) = content else { return Ok(()) };
        match content.peek() {
            Some(b'"') => self.key.text(content.string()?),
            Some(b'[') => self.each(Some(content), Self::part),
            _ => Ok(()),
        }
    }

    /// One part of a message's content.
    fn part(&mut self, mut part: Cursor<'_>) -> Result<(), Malformed> {
        if part.peek() == Some(b'"') {
            return self.key.text(part.string()?);
        }
        let Some(mut part) = object_at(part) else { return Ok(()) };
        let whole = part;
        let (mut kind, mut text, mut refusal) = (None, None, None);
        part.object(|name, value| {
            match name.text()?.as_ref() {
                "type" => kind = string_at(value)?,
                "text" => text = string_at(value)?,
                "refusal" => refusal = string_at(value)?,
                _ => {}
            }
            Ok(())
        })?;
        let is = |name| kind.is_some_and(|kind| kind.is(name));
        if is("refusal") {
            refusal.map_or(Ok(()), |refusal| self.key.text(refusal))
        } else if kind.is_none() || is("text") || is("input_text") || is("output_text") {
            text.map_or(Ok(()), |text| self.key.text(text))
        } else if self.includes.media {
            self.media(whole)
        } else {
            Ok(())
        }
    }

    /// A part that is no text: the values that say which one it is, however the surface nests them.
    fn media(&mut self, mut part: Cursor<'_>) -> Result<(), Malformed> {
        let (mut name, mut at_value): (Option<RawString<'_>>, bool) = (None, false);
        part.tokens(|token| {
            let is_source = || name.is_some_and(|name| MEDIA_SOURCES.iter().any(|source| name.is(source)));
            match token {
                Token::String(text) if at_value && is_source() => self.key.medium(text)?,
                Token::String(text) if !at_value => name = Some(text),
                _ => {}
            }
            at_value = matches!(token, Token::Mark(b':'));
            Ok(())
        })
    }

    /// A prompt or an input to embed: a text, token ids, or a list of such.
    fn inputs(&mut self, inputs: Option<Cursor<'_>>) -> Result<(), Malformed> {
        let Some(mut inputs) = inputs else { return Ok(()) };
        match inputs.peek() {
            Some(b'"') => self.key.text(inputs.string()?),
            Some(b'[') if begins_with_number(inputs)? => self.key.token_ids(inputs),
            Some(b'[') => self.each(Some(inputs), |walk, mut item| match item.peek() {
                Some(b'"') => walk.key.text(item.string()?),
                Some(b'[') => walk.key.token_ids(item),
                _ => Ok(()),
            }),
            _ => Ok(()),
        }
    }

    /// Calls `step` with each element of a list until the prefix is complete; what is no list has no elements.
    fn each(
        &mut self,
        list: Option<Cursor<'_>>,
        mut step: impl FnMut(&mut Self, Cursor<'_>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let Some(mut list) = list else { return Ok(()) };
        if list.peek() != Some(b'[') {
            return Ok(());
        }
        // Whether it ended early makes no difference.
        let _ = list.array::<()>(|item| {
            if self.key.is_full() {
                return Ok(ControlFlow::Break(()));
            }
            step(self, item)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }
}

/// A value that is there and not `null`.
fn present(value: Option<Cursor<'_>>) -> Option<Cursor<'_>> {
    value.filter(|value| value.clone().peek() != Some(b'n'))
}

fn object_at(mut value: Cursor<'_>) -> Option<Cursor<'_>> {
    (value.peek() == Some(b'{')).then_some(value)
}

fn string_at(mut value: Cursor<'_>) -> Result<Option<RawString<'_>>, Malformed> {
    if value.peek() == Some(b'"') { value.string().map(Some) } else { Ok(None) }
}

fn begins_with_number(mut list: Cursor<'_>) -> Result<bool, Malformed> {
    let mut is_number = false;
    let _ = list.array::<()>(|mut first| {
        is_number = first.peek().is_some_and(|byte| byte.is_ascii_digit() || byte == b'-');
        Ok(ControlFlow::Break(()))
    })?;
    Ok(is_number)
}
