//! ShareGPT's conversations: how many turns they have, and how long messages and answers are. No word of them is here.
//!
//! The tables are quantiles of the 9,436 conversations in ShareGPT_V3_unfiltered_cleaned_split (tokens taken as a quarter of the characters; parts
//! of one conversation joined; messages cut at 12,000 tokens, answers at 2,048, conversations at 40 turns). What they leave out is put together as
//! it is there: lengths within a conversation are alike, with a correlation of 0.4 between the ranks of any two.

use super::chat::{Exchange, is_played};
use crate::sim::chance::Chance;

/// A value for each of some shares of all; straight in between, by the logarithm.
type Quantiles = [(f64, f64)];

/// The share of conversations that have no more turns than 1, 2, 3, …
const TURNS: [f64; 12] = [0.307, 0.461, 0.564, 0.640, 0.699, 0.744, 0.780, 0.809, 0.830, 0.849, 0.863, 0.879];
/// Turns of all others: more than is ever played.
const MANY_TURNS: usize = 40;

/// Tokens of a conversation's first message.
const OPENING: &Quantiles = &[
    (0.0, 1.0),
    (0.01, 1.0),
    (0.05, 5.0),
    (0.1, 8.0),
    (0.2, 12.0),
    (0.3, 16.0),
    (0.4, 22.0),
    (0.5, 29.0),
    (0.6, 41.0),
    (0.7, 68.0),
    (0.8, 123.0),
    (0.9, 305.0),
    (0.95, 647.0),
    (0.99, 2_305.0),
    (0.999, 5_232.0),
    (1.0, 12_000.0),
];

/// Tokens of its further messages.
const MESSAGE: &Quantiles = &[
    (0.0, 1.0),
    (0.01, 1.0),
    (0.05, 3.0),
    (0.1, 6.0),
    (0.2, 9.0),
    (0.3, 12.0),
    (0.4, 15.0),
    (0.5, 19.0),
    (0.6, 25.0),
    (0.7, 34.0),
    (0.8, 53.0),
    (0.9, 117.0),
    (0.95, 290.0),
    (0.99, 1_231.0),
    (0.999, 3_202.0),
    (1.0, 12_000.0),
];

/// Tokens of an answer.
const ANSWER: &Quantiles = &[
    (0.0, 1.0),
    (0.01, 4.0),
    (0.05, 27.0),
    (0.1, 58.0),
    (0.2, 128.0),
    (0.3, 190.0),
    (0.4, 247.0),
    (0.5, 302.0),
    (0.6, 355.0),
    (0.7, 415.0),
    (0.8, 494.0),
    (0.9, 626.0),
    (0.95, 745.0),
    (0.99, 930.0),
    (0.999, 1_088.0),
    (1.0, 2_048.0),
];

/// How much of a length's rank is its conversation's; the rest is its own.
const ALIKE: f64 = 0.4;

/// A conversation like those of ShareGPT.
pub(super) fn exchanges(chance: &mut Chance) -> Vec<Exchange> {
    let share = chance.share();
    let turns = TURNS.iter().position(|&up_to| share < up_to).map_or(MANY_TURNS, |at| at + 1);
    let (terse, brief) = (chance.normal(), chance.normal());
    let ranks = |of: f64, chance: &mut Chance| rank(libm::sqrt(ALIKE) * of + libm::sqrt(1.0 - ALIKE) * chance.normal());
    (0..turns)
        .map(|turn| {
            let message = value(if turn == 0 { OPENING } else { MESSAGE }, ranks(terse, chance));
            (message as usize, value(ANSWER, ranks(brief, chance)) as usize)
        })
        .collect()
}

/// What the share of a normal distribution is that lies below.
fn rank(deviations: f64) -> f64 {
    0.5 * (1.0 + libm::erf(deviations / std::f64::consts::SQRT_2))
}

fn value(quantiles: &Quantiles, share: f64) -> f64 {
    let at = quantiles.partition_point(|&(up_to, _)| up_to < share).clamp(1, quantiles.len() - 1);
    let ((from, low), (to, high)) = (quantiles[at - 1], quantiles[at]);
    low * libm::pow(high / low, (share - from) / (to - from))
}

/// The conversations of a prepared file: a line for each, `user,answer;user,answer;…` in tokens. Or which line is none.
pub fn read(text: &str) -> Result<Vec<Vec<Exchange>>, String> {
    let exchange = |pair: &str| {
        let (user, answer) = pair.split_once(',')?;
        let user: usize = user.trim().parse().ok()?;
        Some((user.max(1), answer.trim().parse().ok()?))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let all: Result<Vec<_>, String> = lines
        .map(|(at, line)| {
            let exchanges: Option<Vec<Exchange>> = line.split(';').map(exchange).collect();
            exchanges.ok_or_else(|| format!("line {} is not `tokens,tokens;tokens,tokens;…`", at + 1))
        })
        .collect();
    let all = all?;
    let is_played = |exchanges: &Vec<Exchange>| exchanges.first().is_some_and(|&opening| is_played(opening));
    if all.iter().any(is_played) {
        Ok(all)
    } else {
        Err("there is no conversation in it that begins with 30,000 tokens or fewer".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_like_the_recorded_ones() {
        let mut chance = Chance::new(3, 0);
        let all: Vec<_> = (0..20_000).map(|_| exchanges(&mut chance)).collect();
        let check = |mut values: Vec<usize>, expected: [usize; 3]| {
            values.sort_unstable();
            let found = [0.1, 0.5, 0.9].map(|share| values[(values.len() as f64 * share) as usize]);
            for (found, expected) in found.into_iter().zip(expected) {
                assert!(found.abs_diff(expected) <= 1 + expected / 12, "{found} {expected}");
            }
        };
        // As counted in the file, whatever the tables say.
        check(all.iter().map(|turns| turns[0].0).collect(), [8, 29, 305]);
        check(all.iter().flat_map(|turns| turns[1..].iter().map(|turn| turn.0)).collect(), [6, 19, 117]);
        check(all.iter().flat_map(|turns| turns.iter().map(|turn| turn.1)).collect(), [58, 302, 626]);
        check(all.iter().map(Vec::len).collect(), [1, 3, 40]);
    }

    #[test]
    fn prepared_files_are_read() {
        assert_eq!(read("1,2;0,4\n\n5,6\n"), Ok(vec![vec![(1, 2), (1, 4)], vec![(5, 6)]]));
        assert!(read("1,2\n3;4\n").expect_err("no pair").starts_with("line 2"));
        assert!(read("\n").is_err());
    }
}
