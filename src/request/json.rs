//! A forward-only JSON cursor over borrowed text. It finds the few values that routing looks at and steps over the rest.
//!
//! It does not judge: inside a value that nobody looks at, only strings and brackets are followed. The engine is the judge of a body.
//! Nothing here recurses, so no depth of nesting can exhaust the stack.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::ControlFlow;

use super::blocks;
use super::unescape;

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
    long: Option<&'a LongStrings>,
}

/// Where the first long strings end that a cursor has stepped over inside of other values. A prompt is stepped over with its body, then with its
/// message, then with its part; so it is followed to its end but once. (For a chat of 1 MB that is 98 µs rather than 192.)
#[derive(Debug, Default)]
pub(super) struct LongStrings {
    /// Where they begin and end.
    found: [Cell<(usize, usize)>; 8],
    count: Cell<usize>,
}

impl LongStrings {
    /// Shorter ones are sooner followed than found here.
    const LEAST: usize = 1_024;

    fn end(&self, start: usize) -> Option<usize> {
        self.found[..self.count.get()].iter().map(Cell::get).find(|found| found.0 == start).map(|found| found.1)
    }

    fn add(&self, start: usize, end: usize) {
        if let Some(free) = self.found.get(self.count.get()) {
            free.set((start, end));
            self.count.set(self.count.get() + 1);
        }
    }
}

/// A value that was stepped over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    /// At its first byte.
    start: Cursor<'a>,
    /// Behind its last byte.
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, deepest: 0, long: None }
    }

    /// The same, with a place for what it and its copies shall know of long strings.
    pub(super) fn with_long(text: &'a str, long: &'a LongStrings) -> Self {
        Self { long: Some(long), ..Self::new(text) }
    }

    /// The first byte of the next token, white space skipped; `None` at the end.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Calls `each` with every key of the object that begins here, and with the key's value.
    #[inline]
    pub(super) fn object(&mut self, mut each: impl FnMut(RawString<'a>, Value<'a>) -> Result<(), Malformed>) -> Result<(), Malformed> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            let value = self.value()?;
            each(key, value)?;
            if !self.take(b',') {
                return self.expect(b'}');
            }
        }
    }

    /// Calls `each` at every element of the array that begins here, until it breaks. It may step over the element; if it leaves the
    /// cursor where it is, that is done here.
    #[inline]
    pub(super) fn array<B>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<ControlFlow<B>, Malformed>,
    ) -> Result<ControlFlow<B>, Malformed> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(ControlFlow::Continue(()));
        }
        loop {
            self.peek();
            let start = self.at;
            if let ControlFlow::Break(value) = each(self)? {
                return Ok(ControlFlow::Break(value));
            }
            if self.at == start {
                self.skip()?;
            }
            if !self.take(b',') {
                self.expect(b']')?;
                return Ok(ControlFlow::Continue(()));
            }
        }
    }

    /// The string that begins here.
    #[inline]
    pub(super) fn string(&mut self) -> Result<RawString<'a>, Malformed> {
        self.expect(b'"')?;
        let start = self.at;
        let known = self.long.and_then(|long| long.end(start));
        let end = known.or_else(|| blocks::end_of_string(self.text.as_bytes(), start)).ok_or(Malformed)?;
        self.at = end + 1;
        // A quote is never inside a UTF-8 sequence, so both ends are borders of characters.
        Ok(RawString(&self.text[start..end]))
    }

    /// How many brackets were open at once in the deepest value that this cursor itself has stepped over.
    pub(super) fn deepest(&self) -> usize {
        self.deepest
    }

    /// Steps over the value that begins here and returns it.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value<'a>, Malformed> {
        self.peek();
        let start = *self;
        self.skip()?;
        Ok(Value { start, end: self.at })
    }

    /// Steps over the value that begins here.
    #[inline]
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        match self.peek().ok_or(Malformed)? {
            b'"' => self.string().map(drop),
            b'{' | b'[' => {
                let bytes = self.text.as_bytes();
                let end_of_string = |start, at, escaped| {
                    let known = self.long.and_then(|long| long.end(start));
                    known.or_else(|| {
                        let end = blocks::end_of_long_string(bytes, at, escaped)?;
                        if let Some(long) = self.long
                            && end - start >= LongStrings::LEAST
                        {
                            long.add(start, end);
                        }
                        Some(end)
                    })
                };
                let (end, deepest) = blocks::end_of_brackets(bytes, self.at, end_of_string).ok_or(Malformed)?;
                self.at = end;
                self.deepest = self.deepest.max(deepest);
                Ok(())
            }
            _ => self.scalar().map(drop),
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

    #[inline]
    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), Malformed> {
        if self.take(byte) { Ok(()) } else { Err(Malformed) }
    }
}

impl<'a> Value<'a> {
    /// How many bytes it takes.
    pub(super) fn len(self) -> usize {
        self.end - self.start.at
    }

    /// A cursor at its first byte.
    pub(super) fn cursor(self) -> Cursor<'a> {
        self.start
    }

    /// Its first byte.
    pub(super) fn first(self) -> u8 {
        self.start.text.as_bytes()[self.start.at]
    }

    /// The string that it is, if it is one.
    pub(super) fn string(self) -> Option<RawString<'a>> {
        (self.first() == b'"').then(|| RawString(&self.start.text[self.start.at + 1..self.end - 1]))
    }

    /// Calls `each` with every token, white space left out: brackets, commas and colons as themselves, strings with their escapes,
    /// everything else as written.
    pub(super) fn tokens(self, mut each: impl FnMut(Token<'a>) -> Result<(), Malformed>) -> Result<(), Malformed> {
        let mut rest = self.start;
        while rest.at < self.end {
            match rest.peek().ok_or(Malformed)? {
                b'"' => each(Token::String(rest.string()?))?,
                mark @ (b'{' | b'}' | b'[' | b']' | b',' | b':') => {
                    rest.at += 1;
                    each(Token::Mark(mark))?;
                }
                _ => each(Token::Scalar(rest.scalar()?))?,
            }
        }
        Ok(())
    }
}

/// One token of a value.
pub(super) enum Token<'a> {
    Mark(u8),
    String(RawString<'a>),
    Scalar(&'a str),
}

impl<'a> RawString<'a> {
    /// Calls `each` with the text in pieces of whole characters, escapes undone, until it breaks. A lone surrogate, which is no character,
    /// counts as U+FFFD.
    pub(super) fn pieces(self, each: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Malformed> {
        unescape::pieces(self.0.as_bytes(), each)
    }

    /// The text, if it has no escapes.
    #[inline]
    pub(super) fn plain(self) -> Option<&'a str> {
        (!self.0.as_bytes().contains(&b'\\')).then_some(self.0)
    }

    /// The whole text, escapes undone; borrowed where there are none.
    #[inline]
    pub(super) fn text(self) -> Result<Cow<'a, str>, Malformed> {
        self.plain().map_or_else(|| self.to_text().map(Cow::Owned), |plain| Ok(Cow::Borrowed(plain)))
    }

    /// The whole text as one's own.
    pub(super) fn to_text(self) -> Result<String, Malformed> {
        let mut text = Vec::with_capacity(self.0.len());
        self.pieces(|piece| {
            text.extend_from_slice(piece);
            ControlFlow::Continue(())
        })?;
        String::from_utf8(text).map_err(|_| Malformed)
    }

    /// Whether the text is `other`.
    pub(super) fn is(self, other: &str) -> bool {
        self.text().is_ok_and(|text| text == other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_filter("JSON has no infinities", |number| number.is_finite()).prop_map(Json::from),
            any::<String>().prop_map(Json::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Json::from),
                prop::collection::hash_map(any::<String>(), inner, 0..8).prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The strings of a value in order, keys among them.
    fn strings(value: &Json, into: &mut Vec<String>) {
        match value {
            Json::String(text) => into.push(text.clone()),
            Json::Array(items) => items.iter().for_each(|item| strings(item, into)),
            Json::Object(map) => map.iter().for_each(|(key, value)| {
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
            let value = cursor.value().expect("valid");
            prop_assert_eq!((value.start.at, value.end), (0, text.len()));
            prop_assert_eq!(cursor.end(), Ok(()));
        }

        #[test]
        fn reads_the_same_strings_as_serde_json(value in any_json()) {
            let text = serde_json::to_string(&value).expect("writes");
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            strings(&value, &mut expected);
            Cursor::new(&text).value().expect("valid").tokens(|token| {
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
        fn what_is_known_of_long_strings_changes_nothing(lengths in prop::collection::vec(0..3_000_usize, 0..20), escape in "|\\\\\\\\|\\\\\"") {
            let strings: Vec<String> = lengths.iter().map(|length| format!("\"{}{escape}\"", "é".repeat(*length))).collect();
            let text = format!("[[{}]]", strings.join(","));
            let long = LongStrings::default();
            let mut cursor = Cursor::with_long(&text, &long);
            let mut first = cursor;
            prop_assert_eq!((cursor.skip(), cursor.at), (Ok(()), text.len()));
            let mut found = Vec::new();
            first.at += 1;
            let end = first.array::<()>(|item| {
                found.push(format!("\"{}\"", item.string()?.0));
                Ok(ControlFlow::Continue(()))
            });
            prop_assert_eq!((end, found, first.at), (Ok(ControlFlow::Continue(())), strings, text.len() - 1));
        }

        #[test]
        fn no_input_panics(text in "[\\[\\]{}\",:\\\\u0-9a-fé ]{0,40}") {
            let _ = Cursor::new(&text).skip();
            let _ = Cursor::new(&text).object(|key, value| { key.to_text()?; value.cursor().skip()?; Ok(()) });
            let _ = Cursor::new(&text).array(|value| { value.skip()?; Ok(ControlFlow::<()>::Continue(())) });
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
        let mut cursor = Cursor::new(&deep);
        assert_eq!((cursor.skip(), cursor.at, cursor.deepest()), (Ok(()), deep.len(), 1_000_000));
    }
}
