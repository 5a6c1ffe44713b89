//! Conversations between people and a model, fitted to what is published of ShareGPT, or read from the real file.

use std::time::Duration;

use super::{Conversation, Segment, Texts, Turn};
use crate::sim::chance::Chance;

/// Turns of a conversation that are played.
pub(super) const MOST_TURNS: usize = 10;
/// Tokens that a conversation may grow to.
const LONGEST: usize = 30_000;

/// A user's message and the answer, in tokens.
pub type Exchange = (usize, usize);

/// The conversation of these exchanges, below `system`; nothing where even the first is too long.
pub(super) fn conversation(
    exchanges: impl IntoIterator<Item = Exchange>,
    most: usize,
    system: Option<Segment>,
    texts: &mut Texts,
    chance: &mut Chance,
) -> Option<Conversation> {
    let (mut turns, mut tokens) = (Vec::new(), 0);
    for (user, answer) in exchanges.into_iter().take(most) {
        tokens += user.saturating_add(answer);
        if tokens > LONGEST {
            break;
        }
        let mut prompt = Vec::new();
        prompt.extend(system.filter(|_| turns.is_empty()));
        prompt.push(texts.own(user));
        // Time to read and to write.
        let pause = Duration::from_secs_f64(2.0 + chance.log_normal(6.0, 0.7));
        turns.push(Turn { prompt, answer: texts.own(answer.max(2)), pause });
    }
    (!turns.is_empty()).then(|| Conversation { system: usize::from(system.is_some()), has_messages: true, turns })
}

/// Whether anything of a conversation that begins so is played.
pub(super) fn is_played(opening: Exchange) -> bool {
    opening.0.saturating_add(opening.1) <= LONGEST
}

/// Conversations that `source` tells the exchanges of, until there are that many requests.
pub(super) fn conversations(
    requests: usize,
    mut source: impl FnMut(&mut Chance) -> Vec<Exchange>,
    chance: &mut Chance,
) -> Vec<Conversation> {
    let (mut texts, mut all, mut so_far) = (Texts::default(), Vec::new(), 0);
    while so_far < requests {
        let exchanges = source(chance);
        if let Some(conversation) = conversation(exchanges, MOST_TURNS, None, &mut texts, chance) {
            so_far += conversation.turns.len();
            all.push(conversation);
        }
    }
    all
}
