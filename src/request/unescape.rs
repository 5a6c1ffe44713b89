//! The text of a JSON string: its escapes undone, in pieces of some hundred bytes or a few thousand.
//!
//! Whoever hashes or counts the text does so in bulk. Escapes stand so close to each other that a call for each run between them, and
//! one for each escape, cost several times what the text itself costs.

use std::ops::ControlFlow;

use memchr::memchr;
use wide::u8x16;

use super::json::Malformed;

/// How much is copied at once.
const STEP: usize = 16;

/// The longest piece that is put together.
const PIECE: usize = 512;

/// From which length on a run without escapes is passed on where it stands, and how much at once.
const LONG: usize = 64;
const RUN: usize = 2 << 10;

/// Calls `each` with the text that `escaped` stands for, in pieces of whole characters, until it breaks. `escaped` is UTF-8. A lone surrogate
/// counts as U+FFFD. What is wrong behind the place where `each` breaks is not noticed.
pub(super) fn pieces(escaped: &[u8], mut each: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), Malformed> {
    let mut piece = [0; PIECE];
    let (mut at, mut filled) = (0, 0);
    loop {
        if filled == 0 {
            // What has no escapes for long is not copied.
            let run = &escaped[at..escaped.len().min(at + RUN)];
            let clean = memchr(b'\\', run).unwrap_or(run.len());
            if clean >= LONG {
                let whole = whole_characters(&run[..clean]);
                if each(&run[..whole]).is_break() {
                    return Ok(());
                }
                at += whole;
                continue;
            }
        }
        // Room for a step and a character.
        if filled > PIECE - 2 * STEP {
            let whole = whole_characters(&piece[..filled]);
            if each(&piece[..whole]).is_break() {
                return Ok(());
            }
            piece.copy_within(whole..filled, 0);
            filled -= whole;
        }
        let rest = &escaped[at..];
        let clean = match rest.first_chunk::<STEP>() {
            Some(step) => {
                // All of it is copied, whether it counts or not: a copy of fixed length is two instructions.
                piece[filled..filled + STEP].copy_from_slice(step);
                let backslashes = u8x16::new(*step).simd_eq(u8x16::splat(b'\\')).to_bitmask();
                if backslashes == 0 { STEP } else { backslashes.trailing_zeros() as usize }
            }
            None => {
                let clean = rest.iter().position(|byte| *byte == b'\\').unwrap_or(rest.len());
                piece[filled..filled + clean].copy_from_slice(&rest[..clean]);
                clean
            }
        };
        at += clean;
        filled += clean;
        if clean == STEP {
            continue;
        }
        if at == escaped.len() {
            break;
        }
        match unescape(&escaped[at..]) {
            Ok((code, length)) => {
                filled += encode(code, &mut piece, filled);
                at += length;
            }
            Err(Malformed) => {
                // It counts unless what is before it is enough.
                return if each(&piece[..filled]).is_break() { Ok(()) } else { Err(Malformed) };
            }
        }
        // Clients that write ASCII only, as Python's by default, write whole texts in such escapes.
        while filled <= PIECE - STEP
            && let Some(code) = code_unit(&escaped[at..])
            && !is_surrogate(code)
        {
            filled += encode(code, &mut piece, filled);
            at += 6;
        }
    }
    if filled > 0 {
        // The last piece: whether it breaks makes no difference.
        let _ = each(&piece[..filled]);
    }
    Ok(())
}

/// How much of `text` are whole characters: the copying stops anywhere.
fn whole_characters(text: &[u8]) -> usize {
    let start = text.iter().rposition(|byte| is_start(*byte)).unwrap_or(0);
    let length = match text[start] {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if start + length > text.len() { start } else { text.len() }
}

/// Whether a character of UTF-8 begins with `byte`.
pub(super) fn is_start(byte: u8) -> bool {
    // As a signed number, a byte that continues a character is less than -64.
    byte.cast_signed() >= -0x40
}

/// Writes the character with that `code` at `at`, and says how long it is.
///
/// As one number: what `char::encode_utf8` writes byte by byte cannot be read back at once without a stall.
#[inline(always)]
fn encode(code: u32, piece: &mut [u8; PIECE], at: usize) -> usize {
    let continued = |shift: u32| 0x80 | (code >> shift & 0x3f);
    let (number, length) = match code {
        0..0x80 => (code, 1),
        0x80..0x800 => (0xc0 | code >> 6 | continued(0) << 8, 2),
        0x800..0x1_0000 => (0xe0 | code >> 12 | continued(6) << 8 | continued(0) << 16, 3),
        _ => (0xf0 | code >> 18 | continued(12) << 8 | continued(6) << 16 | continued(0) << 24, 4),
    };
    piece[at..at + 4].copy_from_slice(&number.to_le_bytes());
    length
}

/// The code of the character that the escape at the start of `text` stands for, and the escape's length in bytes.
#[inline(always)]
fn unescape(text: &[u8]) -> Result<(u32, usize), Malformed> {
    let kind = *text.get(1).ok_or(Malformed)?;
    if kind != b'u' {
        let code = u32::from(SHORT[usize::from(kind)]);
        return if code == 0 { Err(Malformed) } else { Ok((code, 2)) };
    }
    let first = code_unit(text).ok_or(Malformed)?;
    if !is_surrogate(first) {
        return Ok((first, 6));
    }
    let second = code_unit(&text[6..]).filter(|second| first < 0xdc00 && (0xdc00..0xe000).contains(second));
    Ok(second.map_or((char::REPLACEMENT_CHARACTER.into(), 6), |second| (0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12)))
}

fn is_surrogate(code: u32) -> bool {
    (0xd800..0xe000).contains(&code)
}

/// What stands for what behind a backslash, 0 for nothing.
const SHORT: [u8; 256] = {
    let mut short = [0; 256];
    short[b'"' as usize] = b'"';
    short[b'\\' as usize] = b'\\';
    short[b'/' as usize] = b'/';
    short[b'b' as usize] = 8;
    short[b'f' as usize] = 12;
    short[b'n' as usize] = b'\n';
    short[b'r' as usize] = b'\r';
    short[b't' as usize] = b'\t';
    short
};

/// The number in a `\uXXXX` at the start of `text`.
#[inline(always)]
fn code_unit(text: &[u8]) -> Option<u32> {
    let [b'\\', b'u', digits @ ..] = text.first_chunk::<6>()? else { return None };
    let number = digits.iter().fold(0, |number, digit| number << 4 | DIGITS[usize::from(*digit)]);
    (number <= 0xffff).then_some(number)
}

/// What a byte is worth as a hexadecimal digit; what is none makes every number of four digits too large.
const DIGITS: [u32; 256] = {
    let mut digits = [0x1_0000; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value];
        digits[digit as usize] = value as u32;
        digits[digit.to_ascii_uppercase() as usize] = value as u32;
        value += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(escaped: &str) -> Result<String, Malformed> {
        let mut text = String::new();
        pieces(escaped.as_bytes(), |piece| {
            assert!(piece.len() <= RUN);
            text.push_str(std::str::from_utf8(piece).expect("whole characters"));
            ControlFlow::Continue(())
        })?;
        Ok(text)
    }

    proptest! {
        #[test]
        fn reads_what_serde_json_writes_and_what_is_all_escapes(
            parts in prop::collection::vec("[a-z]{1,40}|[é中😀]{1,20}|\\PC{0,9}", 0..60),
            ways in prop::collection::vec(0..3, 60),
        ) {
            let (mut text, mut escaped) = (String::new(), String::new());
            for (part, way) in parts.iter().zip(ways) {
                text.push_str(part);
                match way {
                    0 => escaped.extend(part.encode_utf16().map(|unit| format!("\\u{unit:04x}"))),
                    _ => {
                        let quoted = serde_json::to_string(part).expect("writes");
                        escaped.push_str(&quoted[1..quoted.len() - 1]);
                    }
                }
            }
            prop_assert_eq!(whole(&escaped), Ok(text));
        }

        #[test]
        fn what_is_wrong_counts_only_if_it_is_reached(before in 0..1_500_usize, enough in 0..1_500_usize) {
            let escaped = "é".repeat(before) + "\\x";
            let mut seen = 0;
            let read = pieces(escaped.as_bytes(), |piece| {
                seen += piece.len() / 2;
                if seen >= enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            prop_assert_eq!(read.is_ok(), before >= enough);
        }
    }

    #[test]
    fn every_escape_at_every_place_of_a_piece() {
        for (escape, text) in [
            ("\\n", "\n"),
            ("\\\\", "\\"),
            ("\\u00e9", "é"),
            ("\\u4E2d", "中"),
            ("\\ud83d\\uDE00", "😀"),
            ("\\ud83d", "\u{fffd}"),
            ("中", "中"),
        ] {
            for before in 0..PIECE + 2 * STEP {
                for times in [1, 2, 40] {
                    // Behind an escape a run is copied, however long it is.
                    for start in ["", "\\t"] {
                        let plain = "a".repeat(before);
                        let escaped = format!("{start}{plain}{}b", escape.repeat(times));
                        let expected = format!("{}{plain}{}b", start.replace("\\t", "\t"), text.repeat(times));
                        assert_eq!(whole(&escaped), Ok(expected), "{escape} behind {before}");
                        assert_eq!(whole(&format!("{escaped}\\")), Err(Malformed), "{escape} behind {before}");
                    }
                }
            }
        }
    }
}
