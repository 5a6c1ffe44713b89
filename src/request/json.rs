//! A forward-only JSON cursor over borrowed text. It finds the few values that routing looks at and steps over the rest.
//!
//! It does not judge: inside a value that nobody looks at, only strings and brackets are followed. The engine is the judge of a body.
//! Nothing here recurses, so no depth of nesting can exhaust the stack.

use std::borrow::Cow;
use std::ops::ControlFlow;

use memchr::memchr2;

/// The text is not JSON in a place that was looked at, or has another shape than expected there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// A string as it stands in the text, between its quotes, escapes not yet undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawString<'a>(&'a str);

/// A place in a JSON text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// How many brackets were open at once in what was stepped over.
    deepest: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, deepest: 0 }
    }

    /// The first byte of the next token, white space skipped; `None` at the end.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.at += blank;
        rest.get(blank).copied()
    }

    /// Calls `each` with every key of the object that begins here, and with a cursor at the key's value.
    pub(super) fn object(&mut self, mut each: impl FnMut(RawString<'a>, Cursor<'a>) -> Result<(), Malformed>) -> Result<(), Malformed> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            self.peek();
            let value = *self;
            self.skip()?;
            each(key, value)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Calls `each` with a cursor at every element of the array that begins here, until it breaks.
    pub(super) fn array<B>(
        &mut self,
        mut each: impl FnMut(Cursor<'a>) -> Result<ControlFlow<B>, Malformed>,
    ) -> Result<ControlFlow<B>, Malformed> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(ControlFlow::Continue(()));
        }
        loop {
            self.peek();
            if let ControlFlow::Break(value) = each(*self)? {
                return Ok(ControlFlow::Break(value));
            }
            self.skip()?;
            if !self.take(b',') {
                self.expect(b']')?;
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// The string that begins here.
    pub(super) fn string(&mut self) -> Result<RawString<'a>, Malformed> {
        self.expect(b'"')?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        loop {
            let step = memchr2(b'"', b'\\', &bytes[self.at..]).ok_or(Malformed)?;
            self.at += step;
            if bytes[self.at] == b'"' {
                self.at += 1;
                // A quote is never inside a UTF-8 sequence, so both ends are borders of characters.
                return Ok(RawString(&self.text[start..self.at - 1]));
            }
            self.at += 2;
            if self.at > bytes.len() {
                return Err(Malformed);
            }
        }
    }

    /// How many brackets were open at once in the deepest value that this cursor itself has stepped over.
    pub(super) fn deepest(&self) -> usize {
        self.deepest
    }

    /// Steps over the value that begins here and returns it as it stands.
    pub(super) fn skip(&mut self) -> Result<&'a str, Malformed> {
        self.peek();
        let start = self.at;
        let mut depth = 0_usize;
        loop {
            match self.peek().ok_or(Malformed)? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.deepest = self.deepest.max(depth);
                    self.at += 1;
                    continue;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.scalar()?;
                }
            }
            if depth == 0 {
                return Ok(&self.text[start..self.at]);
            }
        }
    }

    /// The number or bare word that begins here.
    pub(super) fn scalar(&mut self) -> Result<&'a str, Malformed> {
        self.peek();
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')).count();
        if self.at == start { Err(Malformed) } else { Ok(&self.text[start..self.at]) }
    }

    /// That nothing but white space follows.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        if self.peek().is_none() { Ok(()) } else { Err(Malformed) }
    }

    /// Calls `each` with every token of the value that begins here, white space left out: brackets, commas and colons as
    /// themselves, strings with their escapes, everything else as written.
    pub(super) fn tokens(&mut self, mut each: impl FnMut(Token<'a>) -> Result<(), Malformed>) -> Result<(), Malformed> {
        let mut rest = Cursor::new(self.skip()?);
        while let Some(byte) = rest.peek() {
            match byte {
                b'"' => each(Token::String(rest.string()?))?,
                b'{' | b'}' | b'[' | b']' | b',' | b':' => {
                    rest.at += 1;
                    each(Token::Mark(byte))?;
                }
                _ => each(Token::Scalar(rest.scalar()?))?,
            }
        }
        Ok(())
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.take(byte) { Ok(()) } else { Err(Malformed) }
    }
}

/// One token of a value.
pub(super) enum Token<'a> {
    Mark(u8),
    String(RawString<'a>),
    Scalar(&'a str),
}

impl<'a> RawString<'a> {
    /// Calls `each` with the text in pieces, escapes undone, until it breaks. A lone surrogate, which is no character, counts as U+FFFD.
    pub(super) fn pieces(self, mut each: impl FnMut(&str) -> ControlFlow<()>) -> Result<(), Malformed> {
        let mut rest = self.0;
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            if at > 0 && each(&rest[..at]).is_break() {
                return Ok(());
            }
            let (character, length) = unescape(&rest[at..])?;
            if each(character.encode_utf8(&mut [0; 4])).is_break() {
                return Ok(());
            }
            rest = &rest[at + length..];
        }
        if !rest.is_empty() {
            // The last piece: whether it breaks makes no difference.
            let _ = each(rest);
        }
        Ok(())
    }

    /// The whole text, escapes undone; borrowed where there are none.
    pub(super) fn text(self) -> Result<Cow<'a, str>, Malformed> {
        if memchr::memchr(b'\\', self.0.as_bytes()).is_none() { Ok(Cow::Borrowed(self.0)) } else { self.to_text().map(Cow::Owned) }
    }

    /// The whole text as one's own.
    pub(super) fn to_text(self) -> Result<String, Malformed> {
        let mut text = String::with_capacity(self.0.len());
        self.pieces(|piece| {
            text.push_str(piece);
            ControlFlow::Continue(())
        })?;
        Ok(text)
    }

    /// Whether the text is `other`.
    pub(super) fn is(self, other: &str) -> bool {
        self.text().is_ok_and(|text| text == other)
    }
}

/// The character that the escape at the start of `text` stands for, and the escape's length in bytes.
fn unescape(text: &str) -> Result<(char, usize), Malformed> {
    let character = match text.as_bytes().get(1).ok_or(Malformed)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = code_unit(text).ok_or(Malformed)?;
            if let Some(character) = char::from_u32(first) {
                return Ok((character, 6));
            }
            let second = code_unit(&text[6..]);
            let pair = second.filter(|second| first < 0xdc00 && (0xdc00..0xe000).contains(second));
            let joined = pair.and_then(|second| char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)));
            return Ok(joined.map_or((char::REPLACEMENT_CHARACTER, 6), |character| (character, 12)));
        }
        _ => return Err(Malformed),
    };
    Ok((character, 2))
}

/// The number in a `\uXXXX` at the start of `text`.
fn code_unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    // `from_str_radix` alone would take a sign.
    if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter("JSON has no infinities", |number| number.is_finite()).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..8).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The strings of a value in order, keys among them.
    fn strings(value: &Value, into: &mut Vec<String>) {
        match value {
            Value::String(text) => into.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| strings(item, into)),
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                into.push(key.clone());
                strings(value, into);
            }),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn steps_over_whatever_serde_json_writes(value in any_json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("writes");
            let mut cursor = Cursor::new(&text);
            prop_assert_eq!(cursor.skip().expect("valid"), text.as_str());
            prop_assert_eq!(cursor.end(), Ok(()));
        }

        #[test]
        fn reads_the_same_strings_as_serde_json(value in any_json()) {
            let text = serde_json::to_string(&value).expect("writes");
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            strings(&value, &mut expected);
            Cursor::new(&text).tokens(|token| {
                if let Token::String(raw) = token { found.push(raw.to_text()?) }
                Ok(())
            }).expect("valid");
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn an_escaped_text_reads_as_the_text(text in any::<String>()) {
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(RawString(&escaped).to_text(), Ok(text));
        }

        #[test]
        fn no_input_panics(text in "[\\[\\]{}\",:\\\\u0-9a-fé ]{0,40}") {
            let _ = Cursor::new(&text).skip();
            let _ = Cursor::new(&text).object(|key, mut value| { key.to_text()?; value.skip()?; Ok(()) });
            let _ = Cursor::new(&text).array(|mut value| { value.skip()?; Ok(ControlFlow::<()>::Continue(())) });
            let _ = RawString(&text).to_text();
        }
    }

    #[test]
    fn lone_surrogates_become_one_replacement_character_each() {
        let cases =
            [("\\ud83d", "\u{fffd}"), ("\\ude00x", "\u{fffd}x"), ("\\ud83d\\ud83d\\ude00", "\u{fffd}😀"), ("\\ud83d\\n", "\u{fffd}\n")];
        for (escaped, text) in cases {
            assert_eq!(RawString(escaped).to_text().as_deref(), Ok(text), "{escaped}");
        }
    }

    #[test]
    fn bad_escapes_are_malformed() {
        for escaped in ["\\x", "\\u12", "\\u+123", "\\u12g4", "\\", "\\u00é"] {
            assert_eq!(RawString(escaped).to_text(), Err(Malformed), "{escaped}");
        }
    }

    #[test]
    fn depth_does_not_matter() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        assert_eq!(Cursor::new(&deep).skip(), Ok(deep.as_str()));
    }
}
