//! Texts for a workload's segments: as many tokens as asked for, equal for equal numbers, and unlike from the first words on otherwise.
//!
//! They mean nothing.

use crate::sim::workload::Segment;

/// Words of three letters: with the space before them, one is a token of a simulated replica.
const WORDS: [&str; 64] = [
    "act", "age", "air", "arm", "art", "bay", "bed", "box", "boy", "bus", "car", "cat", "cow", "cup", "day", "dog", "ear", "egg", "eye",
    "fan", "fig", "fox", "gem", "hat", "hay", "hen", "hut", "ice", "ink", "jam", "jar", "joy", "key", "kid", "lab", "lap", "law", "leg",
    "lid", "log", "man", "map", "mud", "net", "nut", "oak", "oil", "owl", "pan", "pea", "pen", "pie", "pig", "ram", "rug", "sea", "sky",
    "sun", "tea", "tin", "toy", "van", "wax", "zoo",
];

/// The text of `segment`.
pub(super) fn text(segment: Segment) -> String {
    let mut text = String::with_capacity(segment.tokens * 4);
    let mut state = segment.text;
    for _ in 0..segment.tokens {
        // SplitMix64: one number after the other, all bits mixed.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        text.push(' ');
        text.push_str(WORDS[(mixed >> 58) as usize]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_its_tokens_and_no_other_ones() {
        let of = |number| text(Segment { text: number, tokens: 1_000 });
        assert_eq!(of(1).len(), 4_000, "four bytes a token");
        assert_eq!(of(1), of(1));
        for other in 2..50 {
            let alike = of(1).bytes().zip(of(other).bytes()).take_while(|(one, other)| one == other).count();
            assert!(alike < 40, "{other}: {alike}");
        }
    }
}
