//! Questions about long texts: ones that come and go, a pool of them, and prompts that nobody shares.

use super::{Conversation, Segment, Texts};
use crate::sim::chance::{Chance, Zipf};

/// Length of a document.
const DOCUMENT: usize = 8_000;
/// Documents in use at one time, where they come and go.
const LIVE: usize = 60;
/// Median of an answer's tokens.
const ANSWER: f64 = 120.0;

/// A question's length.
pub(super) fn question(chance: &mut Chance) -> usize {
    chance.tokens(60.0, 0.5, 10..=400)
}

/// An answer's length.
pub(super) fn answer(median: f64, chance: &mut Chance) -> usize {
    chance.tokens(median, 0.6, 8..=1_024)
}

/// Documents that come and go: each is asked about `uses` times (rounded to one side or the other by chance).
pub(super) fn passing(requests: usize, uses: f64, chance: &mut Chance) -> Vec<Conversation> {
    let mut texts = Texts::default();
    let quota = |chance: &mut Chance| (uses as u32 + u32::from(chance.share() < uses.fract())).max(1);
    // As if it had gone on for ever: what is live at first has some of its uses behind it.
    let mut live: Vec<(Segment, u32)> = Vec::with_capacity(LIVE);
    for _ in 0..LIVE {
        let left = (f64::from(quota(chance)) * chance.share()) as u32 + 1;
        live.push((texts.own(DOCUMENT), left));
    }
    let one = |_| {
        let at = chance.below(LIVE);
        let document = live[at].0;
        live[at].1 -= 1;
        if live[at].1 == 0 {
            live[at] = (texts.own(DOCUMENT), quota(chance));
        }
        about(document, &mut texts, chance)
    };
    (0..requests).map(one).collect()
}

/// A pool of documents, asked about by Zipf's law with exponent `s` (0: all alike); and one more that has the share `hot` of all requests.
pub(super) fn pool(requests: usize, documents: usize, s: f64, hot: f64, chance: &mut Chance) -> Vec<Conversation> {
    let (mut texts, zipf) = (Texts::default(), Zipf::new(documents, s));
    let one = |_| {
        let number = if chance.share() < hot { 0 } else { 1 + zipf.pick(chance) };
        about(Texts::common(1, number, DOCUMENT), &mut texts, chance)
    };
    (0..requests).map(one).collect()
}

/// Prompts of which no two begin alike.
pub(super) fn unique(requests: usize, chance: &mut Chance) -> Vec<Conversation> {
    let mut texts = Texts::default();
    let one = |_| {
        let question = texts.own(2_000 + chance.below(6_001));
        Conversation::single(Vec::new(), question, texts.own(answer(ANSWER, chance)))
    };
    (0..requests).map(one).collect()
}

fn about(document: Segment, texts: &mut Texts, chance: &mut Chance) -> Conversation {
    let question = texts.own(question(chance));
    Conversation::single(vec![document], question, texts.own(answer(ANSWER, chance)))
}
