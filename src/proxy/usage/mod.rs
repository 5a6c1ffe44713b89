//! Reads in passing what an answer says that its request took: the `usage` of a JSON document, or of a stream's events.
//!
//! It changes and delays nothing, keeps no body, and does not parse one: pieces are searched for the key, and only what follows it is looked at. An
//! answer that is not as expected tells nothing, and is no error.

mod told;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use memchr::{memchr2, memchr3, memmem, memrchr};

use super::events::is_event_stream;
use crate::request::Usage;
use told::Told;

/// The key. Its quotes are JSON's own: one in generated text, which is a string, has a backslash before it.
const KEY: &[u8] = br#""usage""#;

static FINDER: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(KEY));

/// The longest `usage` that is read, in bytes. vLLM's longest, that of `/v1/responses`, has some 350.
const MOST_BYTES: usize = 2 << 10;

/// Looks for `usage` in an answer's pieces.
pub(super) struct UsageReader {
    form: Form,
    /// How many bytes of the key the last piece ended with.
    begun: usize,
    /// The byte before the next one.
    last: u8,
    /// From a key on: what is found, and how deep.
    trace: Option<Trace>,
    /// The beginning of an object whose end is still to come.
    object: Vec<u8>,
    told: Told,
}

/// How the answer is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Lines, each with a whole document or none.
    Events,
    /// One document.
    Document,
}

/// The way from a key to the end of its document, where it shows how deep the key stood: generated JSON that stands in the answer as such (a tool's input)
/// may have this key too, deeper.
#[derive(Default)]
struct Trace {
    step: Step,
    /// How many braces are open now, less those that were open at the key of what was found; at first, at the first key.
    level: i64,
    /// The object that is passing.
    passing: Option<Passing>,
    found: Option<Told>,
}

/// Where in JSON the next byte is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    /// After a string that may be the key.
    #[default]
    Colon,
    /// After the key and its colon.
    Value,
    /// In no string.
    Plain,
    /// In a string that is so many bytes of the key so far.
    Name(usize),
    /// In another string.
    Text,
    /// There, after a backslash.
    Escape,
}

/// The object after a key.
struct Passing {
    /// The level of its key.
    level: i64,
    /// Where it begins in the piece at hand.
    start: usize,
    too_long: bool,
    is_over: bool,
}

impl Form {
    /// How long the line is that these bytes begin with: all of them, where its end is still to come.
    fn line(self, bytes: &[u8]) -> usize {
        match self {
            Self::Events => memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len()),
            Self::Document => bytes.len(),
        }
    }
}

impl UsageReader {
    /// A reader for an answer of that kind; `None` where it cannot be read.
    pub(super) fn of(kind: Option<&[u8]>) -> Option<Self> {
        let form = if is_event_stream(kind) {
            Form::Events
        } else if kind?.eq_ignore_ascii_case(b"application/json") {
            Form::Document
        } else {
            return None;
        };
        Some(Self { form, begun: 0, last: 0, trace: None, object: Vec::new(), told: Told::default() })
    }

    /// Looks at a piece that is passed on; pieces may end anywhere.
    pub(super) fn passed_on(&mut self, piece: &[u8]) {
        let mut at = 0;
        // Looked for once in a line, however many keys are followed there: a client's own text may be sent back in one line.
        let mut line_end = None;
        while at < piece.len() {
            let rest = &piece[at..];
            let seen = match self.trace.take() {
                None => self.seek(rest),
                Some(trace) => {
                    let end = line_end.filter(|&end| end >= at).unwrap_or_else(|| at + self.form.line(rest));
                    line_end = Some(end);
                    self.follow(trace, rest, end - at)
                }
            };
            at += seen;
            self.last = at.checked_sub(1).map_or(self.last, |before| piece[before]);
        }
    }

    /// The answer is whole.
    pub(super) fn end(&mut self) {
        if let Some(trace) = self.trace.take() {
            self.settle(&trace);
        }
    }

    /// What it has told by now. A document tells nothing before its end, an event nothing before that of its line.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.told.usage()
    }

    /// Looks for the key, and returns how far it has looked: behind the key, or to the end.
    fn seek(&mut self, piece: &[u8]) -> usize {
        let begun = std::mem::take(&mut self.begun);
        if begun > 0 {
            let rest = &KEY[begun..];
            if piece.starts_with(rest) {
                self.trace = Some(Trace::default());
                return rest.len();
            }
            if rest.starts_with(piece) {
                self.begun = begun + piece.len();
                return piece.len();
            }
        }
        let is_escaped = |at: usize| at.checked_sub(1).map_or(self.last, |before| piece[before]) == b'\\';
        let mut from = 0;
        while let Some(at) = FINDER.find(&piece[from..]).map(|at| from + at) {
            if !is_escaped(at) {
                self.trace = Some(Trace::default());
                return at + KEY.len();
            }
            from = at + KEY.len() - 1;
        }
        let tail = piece.len().saturating_sub(KEY.len() - 1);
        if let Some(at) = memrchr(b'"', &piece[tail..]).map(|at| tail + at)
            && KEY.starts_with(&piece[at..])
            && !is_escaped(at)
        {
            self.begun = piece.len() - at;
        }
        piece.len()
    }

    /// Goes on from a key, and returns how far: to the end of the piece or of the line, or to where there is nothing to be followed.
    fn follow(&mut self, mut trace: Trace, piece: &[u8], line_end: usize) -> usize {
        let line = &piece[..line_end];
        let mut at = 0;
        while let Some(skipped) = trace.step.skip(&line[at..]) {
            at += skipped;
            if !trace.take(line[at], at) {
                return at + 1;
            }
            at += 1;
            let Some(Passing { start, too_long, .. }) = trace.passing.take_if(|passing| passing.is_over) else { continue };
            let told = if too_long { None } else { self.read(&line[start..at]) };
            self.object.clear();
            if told.is_some() {
                (trace.found, trace.level) = (told, 0);
            } else if trace.found.is_none() {
                return at;
            }
        }
        if line_end < piece.len() {
            self.object.clear();
            self.settle(&trace);
            return line_end + 1;
        }
        if let Some(passing) = &mut trace.passing {
            let part = &line[std::mem::take(&mut passing.start)..];
            passing.too_long |= self.object.len() + part.len() > MOST_BYTES;
            if passing.too_long {
                self.object.clear();
            } else {
                self.object.extend_from_slice(part);
            }
        }
        self.trace = Some(trace);
        piece.len()
    }

    /// What an object says of which this is the last part.
    fn read(&mut self, part: &[u8]) -> Option<Told> {
        if self.object.len() + part.len() > MOST_BYTES {
            return None;
        }
        if self.object.is_empty() {
            return Told::read(part);
        }
        self.object.extend_from_slice(part);
        Told::read(&self.object)
    }

    /// At the end of a document: believes what was found where a `usage` stands, at its top, or in an event's `message` or `response`.
    fn settle(&mut self, trace: &Trace) {
        let deepest = if self.form == Form::Events { 2 } else { 1 };
        if let Some(found) = trace.found
            && trace.step == Step::Plain
            && trace.passing.is_none()
            && (1..=deepest).contains(&-trace.level)
        {
            self.told.add(found);
        }
    }
}

impl Trace {
    /// Takes the next byte that matters, which has this place in the piece at hand. Whether there is something to be followed beyond it.
    fn take(&mut self, byte: u8, at: usize) -> bool {
        self.step = match (self.step, byte) {
            (Step::Colon | Step::Value, b' ' | b'\t' | b'\n' | b'\r') => self.step,
            (Step::Colon, b':') => Step::Value,
            (Step::Value, b'{') => {
                self.passing = Some(Passing { level: self.level, start: at, too_long: false, is_over: false });
                self.level += 1;
                Step::Plain
            }
            // It was no key, or its value is no object.
            (Step::Colon | Step::Value, _) if self.found.is_none() => return false,
            (Step::Escape, _) => Step::Text,
            (Step::Name(length), _) if byte == KEY[length] => match length + 1 {
                // Deeper than what was found it is of no interest.
                length if length == KEY.len() && self.passing.is_none() && self.level <= 0 => Step::Colon,
                length if length == KEY.len() => Step::Plain,
                length => Step::Name(length),
            },
            (Step::Name(_) | Step::Text, b'"') => Step::Plain,
            (Step::Name(_) | Step::Text, b'\\') => Step::Escape,
            (Step::Name(_) | Step::Text, _) => Step::Text,
            (_, b'"') => Step::Name(1),
            (_, b'{') => {
                self.level += 1;
                Step::Plain
            }
            (_, b'}') => {
                self.level -= 1;
                if let Some(passing) = &mut self.passing {
                    passing.is_over = passing.level == self.level;
                }
                Step::Plain
            }
            _ => Step::Plain,
        };
        true
    }
}

impl Step {
    /// How far the next byte is that matters; `None` where none does.
    fn skip(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Plain => memchr3(b'"', b'{', b'}', bytes),
            Self::Text => memchr2(b'"', b'\\', bytes),
            _ if bytes.is_empty() => None,
            _ => Some(0),
        }
    }
}
