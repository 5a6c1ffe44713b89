//! The view of a request: whatever the path and the body are, it does not panic, and says of both what others would say.

use std::fmt::Write as _;

use prefix_router::request::{Ask, Boundaries, Dialect, Includes, Placement, Settings, Surface};
use prefix_router::units::{OrAuto, PrefixLength};
use serde_json::Value;

use crate::input::Input;

const SURFACES: [Surface; 9] = [
    Surface::ChatCompletions,
    Surface::Completions,
    Surface::Responses,
    Surface::Messages,
    Surface::Embeddings,
    Surface::Invocations,
    Surface::Tokenize,
    Surface::OtherInference,
    Surface::Other,
];

/// One byte each for surface and what is included and whether the prefix's length is worked out, two for that length, an identifier or a path behind its length, the body.
pub(crate) fn check(data: &[u8]) {
    let mut input = Input(data);
    let surface = input.one_of(&SURFACES);
    let switches = input.byte();
    let length = OrAuto::Fixed(PrefixLength::clamped(input.number() as u64));
    let settings = Settings {
        prefix_length: if switches & 8 > 0 { OrAuto::Auto } else { length },
        includes: Includes { tools: switches & 1 > 0, media: switches & 2 > 0 },
        hash_seed: u64::from(switches >> 4),
        ..Settings::default()
    };
    let word = std::str::from_utf8(input.short()).unwrap_or("x");
    check_path(word);
    let identifier = (switches & 4 > 0).then_some(word);
    check_body(surface, input.0, &|surface, body| Ask::read(surface, body, identifier, &settings));
    check_boundaries(surface, input.0, &|surface, prefix_length| match Ask::read(
        surface,
        input.0,
        identifier,
        &Settings { prefix_length, ..settings.clone() },
    )
    .placement
    {
        Placement::ByKey(boundaries) => Some(boundaries),
        Placement::ByLoad => None,
    });
}

/// Where the key may end if its length is not given: each boundary once, from the shallowest, and with the key of a prefix of its depth.
fn check_boundaries(surface: Surface, body: &[u8], read: &dyn Fn(Surface, OrAuto<PrefixLength>) -> Option<Boundaries>) {
    let Some(boundaries) = read(surface, OrAuto::Auto) else { return };
    assert!(boundaries.is_sorted_by_key(|boundary| boundary.depth), "{boundaries:?}");
    for (index, boundary) in boundaries.iter().enumerate() {
        assert!(boundaries[..index].iter().all(|other| other.key != boundary.key), "{boundaries:?}");
        assert!(boundary.depth as usize <= body.len() * 4, "a number of one digit counts as four characters: {boundaries:?}");
    }
    // It may be that a body is not understood only far behind a place where a given length would have ended.
    let surface = if Some(&boundaries) == read(Surface::Invocations, OrAuto::Auto).as_ref() { Surface::Invocations } else { surface };
    for boundary in boundaries.iter().filter(|boundary| boundary.depth.is_power_of_two()) {
        if let Some(length) = PrefixLength::new(boundary.depth.into()) {
            let fixed = read(surface, OrAuto::Fixed(length)).unwrap_or_default();
            // Media behind a text that ends there belong to its message, and so to a second boundary there.
            assert!(boundaries.iter().any(|boundary| fixed.last() == Some(boundary)), "{boundaries:?} and {fixed:?}");
        }
    }
}

fn check_path(path: &str) {
    let also = ["/sleep".to_owned(), "/x/*".to_owned()];
    let surface = Surface::of(path, &also);
    let dialect = Dialect::of(path);
    if !path.contains('%') {
        let escaped: String = path.bytes().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "%{byte:02x}");
            text
        });
        assert_eq!(Surface::of(&escaped, &also), surface, "{path:?} means another surface where it is escaped");
        assert_eq!(Dialect::of(&escaped), dialect, "{path:?} means another dialect where it is escaped");
    }
}

fn check_body(surface: Surface, body: &[u8], read: &dyn Fn(Surface, &[u8]) -> Ask) {
    let ask = read(surface, body);
    assert_eq!(read(surface, body), ask, "twice the same is twice the same");
    let by_load = matches!(surface, Surface::Tokenize | Surface::OtherInference | Surface::Other);
    assert_eq!(ask.placement == Placement::ByLoad, by_load, "{surface:?} has keys or has none");
    if body.is_empty() {
        assert!(
            matches!(&ask.placement, Placement::ByLoad) || matches!(&ask.placement, Placement::ByKey(boundaries) if boundaries.is_empty()),
            "no body, no key"
        );
    }

    // No text at all, so that it counts byte by byte: as on /invocations.
    let broken = [b"\xff", body].concat();
    if !by_load {
        assert_eq!(read(surface, &broken), read(Surface::Invocations, &broken), "what is not understood counts by its bytes");
    }

    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    let model = value.get("model").and_then(Value::as_str);
    assert_eq!(ask.model.as_deref(), model, "the model is the one that an engine reads");
    let text = std::str::from_utf8(body).expect("JSON is UTF-8");
    let ways = [rewritten(text, true), rewritten(text, false)];
    for other in &ways {
        assert_eq!(serde_json::from_str::<Value>(other).ok().as_ref(), Some(&value), "the same in other words: {other}");
        assert_eq!(read(surface, other.as_bytes()).model, ask.model, "{other}");
    }
    // Where a prompt has another shape than the surface's, it counts by its bytes, and ways of writing do matter.
    let is_understood = ask.placement != read(Surface::Invocations, body).placement;
    if is_understood {
        for other in &ways {
            assert_eq!(read(surface, other.as_bytes()).placement, ask.placement, "ways of writing do not matter: {other}");
        }
    }
}

/// The same JSON: every character of every string escaped and white space around every token, or as few of both as may be.
fn rewritten(text: &str, long: bool) -> String {
    let mut other = String::with_capacity(text.len() * if long { 8 } else { 1 });
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' { string_length(rest) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        rest = after;
        match first {
            '"' => {
                let string: String = serde_json::from_str(token).expect("a string of a JSON text");
                if long {
                    other.push('"');
                    for unit in string.encode_utf16() {
                        let _ = write!(other, "\\u{unit:04X}");
                    }
                    other.push('"');
                } else {
                    other.push_str(&serde_json::to_string(&string).expect("a string can be written"));
                }
            }
            ' ' | '\t' | '\n' | '\r' => {}
            '{' | '}' | '[' | ']' | ',' | ':' if long => {
                let _ = write!(other, "\r\n\t {first} ");
            }
            _ => other.push(first),
        }
    }
    other
}

/// Of the string that `text` begins with, in bytes, with its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
