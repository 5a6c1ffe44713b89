//! JSON text in blocks of 64 bytes: one bit for each byte, so that a block costs about the same whatever stands in it.
//!
//! A search for the next quote or backslash (`memchr2`) is as fast where there are few. Prompts have many: line breaks and quotes are
//! escaped, one every 25 bytes or so, and each was a call of its own.

use wide::u8x16;

/// The bytes of a block.
const SIZE: usize = 64;

/// 64 bytes of a text.
pub(super) struct Block([u8x16; 4]);

impl Block {
    /// The block that begins at `at`. What is behind the end of `text` reads as spaces.
    #[inline(always)]
    pub(super) fn at(text: &[u8], at: usize) -> Self {
        let rest = &text[at..];
        match rest.first_chunk::<SIZE>() {
            Some(bytes) => Self::of(bytes),
            None => Self::last(rest),
        }
    }

    #[cold]
    fn last(rest: &[u8]) -> Self {
        let mut bytes = [b' '; SIZE];
        bytes[..rest.len()].copy_from_slice(rest);
        Self::of(&bytes)
    }

    #[inline(always)]
    fn of(bytes: &[u8; SIZE]) -> Self {
        let (quarters, _) = bytes.as_chunks::<16>();
        Self([0, 1, 2, 3].map(|quarter| u8x16::new(quarters[quarter])))
    }

    /// Which bytes are such that `is` says so, the first in the lowest bit.
    #[inline(always)]
    fn bits(&self, is: impl Fn(u8x16) -> u8x16) -> u64 {
        let [first, second, third, fourth] = self.0.map(|quarter| u64::from(is(quarter).to_bitmask()));
        first | second << 16 | third << 32 | fourth << 48
    }

    #[inline(always)]
    fn equal(&self, byte: u8) -> u64 {
        let byte = u8x16::splat(byte);
        self.bits(|quarter| quarter.simd_eq(byte))
    }

    /// The quotes that no backslash escapes. `escaped` says whether the first byte is escaped, and then whether the next block's is.
    #[inline(always)]
    fn quotes(&self, escaped: &mut bool) -> u64 {
        let (quotes, backslashes) = (self.equal(b'"'), self.equal(b'\\'));
        if backslashes == 0 && !*escaped { quotes } else { quotes & !escapees(backslashes, escaped) }
    }

    /// The brackets.
    #[inline(always)]
    fn brackets(&self) -> u64 {
        // One bit is between `[` and `{`, and between `]` and `}`.
        let (case, opening, closing) = (u8x16::splat(0x20), u8x16::splat(b'{'), u8x16::splat(b'}'));
        self.bits(|quarter| (quarter | case).simd_eq(opening) | (quarter | case).simd_eq(closing))
    }

    /// The bytes that are in no token but a string, brackets and quotes among them: no comma, colon, white space, or part of a number or word.
    #[inline(always)]
    fn strange(&self) -> u64 {
        let is = |byte: u8| u8x16::splat(byte);
        let within = |bytes: u8x16, first: u8, last: u8| {
            let above = bytes - is(first);
            above.min(is(last - first)).simd_eq(above)
        };
        !self.bits(|bytes| {
            // From `+` to `:` there are the digits, `,`, `-` and `.`; and `/`, which is taken out again.
            let numbers = within(bytes, b'+', b':') & !bytes.simd_eq(is(b'/'));
            let words = within(bytes | is(0x20), b'a', b'z');
            let blank = within(bytes, b'\t', b'\n') | bytes.simd_eq(is(b'\r')) | bytes.simd_eq(is(b' '));
            numbers | words | blank
        })
    }
}

/// Which bytes a backslash before them escapes. A run of backslashes escapes itself in pairs; an odd one's last escapes what follows.
///
/// Adding a run to its first bit carries out of its end; whether that is an odd or an even place tells odd runs from even ones.
#[inline(always)]
fn escapees(backslashes: u64, escaped: &mut bool) -> u64 {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let before = u64::from(*escaped);
    let backslashes = backslashes & !before;
    let follow = backslashes << 1 | before;
    let odd_starts = backslashes & !EVEN & !follow;
    let (ends_of_even_starts, carry) = odd_starts.overflowing_add(backslashes);
    *escaped = carry;
    (EVEN ^ (ends_of_even_starts << 1)) & follow
}

/// For each bit whether the number of bits up to it, itself counted, is odd: what is in strings, of their quotes the opening ones.
#[inline(always)]
fn between(quotes: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].iter().fold(quotes, |bits, shift| bits ^ bits << shift)
}

/// The place of the quote that ends the string whose text begins at `at`.
#[inline]
pub(super) fn end_of_string(text: &[u8], at: usize) -> Option<usize> {
    // Names and roles are short: a quarter of a block is enough for them.
    if let Some(first) = text[at..].first_chunk::<16>() {
        let first = u8x16::new(*first);
        let quotes = first.simd_eq(u8x16::splat(b'"')).to_bitmask();
        let backslashes = first.simd_eq(u8x16::splat(b'\\')).to_bitmask();
        if quotes != 0 && backslashes & (quotes - 1) & !quotes == 0 {
            return Some(at + quotes.trailing_zeros() as usize);
        }
    }
    end_of_long_string(text, at, false)
}

/// The same from the middle of a string on; `escaped` says whether the byte at `at` is.
pub(super) fn end_of_long_string(text: &[u8], mut at: usize, mut escaped: bool) -> Option<usize> {
    while at < text.len() {
        let quotes = Block::at(text, at).quotes(&mut escaped);
        if quotes != 0 {
            return Some(at + quotes.trailing_zeros() as usize);
        }
        at += SIZE;
    }
    None
}

/// The place behind the bracket that closes the one at `at`, and how many were open at once; `None` if there is none, or if something
/// stands on the way that is in no token. `end_of_string` tells where a string ends that begins at its first argument, with [`end_of_long_string`] for
/// the other two; short ones it is not asked for.
pub(super) fn end_of_brackets(
    text: &[u8],
    mut at: usize,
    end_of_string: impl Fn(usize, usize, bool) -> Option<usize>,
) -> Option<(usize, usize)> {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    while at < text.len() {
        // Each block begins outside of strings.
        let block = Block::at(text, at);
        let mut escaped = false;
        let quotes = block.quotes(&mut escaped);
        let strings = between(quotes);
        let outside = !strings & !quotes;
        let mut brackets = block.brackets() & outside;
        let strange = block.strange() & outside & !brackets;
        while brackets != 0 {
            let bracket = brackets.trailing_zeros();
            brackets &= brackets - 1;
            let place = at + bracket as usize;
            if matches!(text[place], b'[' | b'{') {
                depth += 1;
                deepest = deepest.max(depth);
            } else {
                depth -= 1;
                if depth == 0 {
                    return (strange & ((1 << bracket) - 1) == 0).then_some((place + 1, deepest));
                }
            }
        }
        if strange != 0 {
            return None;
        }
        at += SIZE;
        if strings >> (SIZE - 1) != 0 {
            // The block ends in a string; its last quote opened it.
            let start = at - quotes.leading_zeros() as usize;
            at = end_of_string(start, at, escaped)? + 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, byte by byte.
    fn plain_end_of_string(text: &[u8], mut at: usize) -> Option<usize> {
        loop {
            match text.get(at)? {
                b'"' => return Some(at),
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
    }

    /// The same, byte by byte.
    fn plain_end_of_brackets(text: &[u8], mut at: usize) -> Option<(usize, usize)> {
        let (mut depth, mut deepest) = (0_usize, 0);
        loop {
            match text.get(at)? {
                b'"' => at = plain_end_of_string(text, at + 1)?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' | b'+' | b'-' | b'.' => {}
                byte if byte.is_ascii_alphanumeric() => {}
                _ => return None,
            }
            deepest = deepest.max(depth);
            at += 1;
            if depth == 0 {
                return Some((at, deepest));
            }
        }
    }

    /// From every place on, so that everything is somewhere at a border.
    fn check(text: &str) {
        let text = text.as_bytes();
        for at in 0..=text.len() {
            assert_eq!(end_of_string(text, at), plain_end_of_string(text, at), "{} from {at}", text.escape_ascii());
            if matches!(text.get(at), Some(b'{' | b'[')) {
                let known = |start: usize, from, escaped| {
                    let end = plain_end_of_string(text, start);
                    assert_eq!(text[start - 1], b'"', "{}", text.escape_ascii());
                    assert_eq!(end_of_long_string(text, from, escaped), end, "{}", text.escape_ascii());
                    end
                };
                assert_eq!(end_of_brackets(text, at, known), plain_end_of_brackets(text, at), "{} from {at}", text.escape_ascii());
            }
        }
    }

    proptest! {
        #[test]
        fn as_byte_by_byte(text in "([\\[\\]{}\",:0 ]|\\\\\"|\\\\{1,9}|[a-z]{1,70}|\"[\\[{}é]{1,70}\"|\\{\"a\":\\[1, 2\\]\\}){0,40}") {
            check(&text);
            check(&format!("[{text}]"));
        }

        #[test]
        fn as_byte_by_byte_where_it_is_json(value in "[a-z\\\\\"é\n]{0,200}", items in 1..20_usize, pretty in any::<bool>()) {
            let value = serde_json::json!({"a": vec![serde_json::json!([value, {"b": 1.5e-7}, null]); items]});
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.expect("writes");
            prop_assert_eq!(end_of_brackets(text.as_bytes(), 0, |_, at, escaped| end_of_long_string(text.as_bytes(), at, escaped)), Some((text.len(), 4)));
            check(&text);
            check(&text[..text.len() - 1]);
        }
    }

    #[test]
    fn runs_of_backslashes_over_every_border() {
        for before in 0..=SIZE + 2 {
            for run in 0..=2 * SIZE + 2 {
                let text = format!("{}{}\"", "a".repeat(before), "\\".repeat(run));
                let end = (run % 2 == 0).then_some(text.len() - 1);
                assert_eq!(end_of_string(text.as_bytes(), 0), end, "{run} behind {before}");
                let list = format!("[\"{text},\"{{\\\"\"]");
                assert_eq!(
                    end_of_brackets(list.as_bytes(), 0, |_, at, escaped| end_of_long_string(list.as_bytes(), at, escaped)),
                    plain_end_of_brackets(list.as_bytes(), 0),
                    "{run} behind {before}"
                );
            }
        }
    }

    #[test]
    fn every_byte_outside_of_strings() {
        for byte in 0..=u8::MAX {
            for before in [0, 1, 62, 63, 64] {
                let text = [b"[".as_slice(), &b" ".repeat(before), &[byte], b"1]"].concat();
                assert_eq!(
                    end_of_brackets(&text, 0, |_, at, escaped| end_of_long_string(&text, at, escaped)),
                    plain_end_of_brackets(&text, 0),
                    "{byte} behind {before}"
                );
            }
        }
    }
}
