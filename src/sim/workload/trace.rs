//! Mooncake traces: for each request its length and the hashes of its blocks of 512 tokens. A line of JSON each.
//!
//! Only their order is used: how fast they come is up to whoever simulates.

use std::time::Duration;

use serde::Deserialize;

use super::{Conversation, Segment, Texts, Turn};

/// Tokens that a hash stands for.
const BLOCK: usize = 512;
/// Answers are cut here.
const LONGEST_ANSWER: usize = 2_048;
/// The group of common texts.
const GROUP: u64 = 8;

#[derive(Deserialize)]
struct Line {
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<usize>,
}

/// The first `requests` requests of a trace; or which line cannot be read, and why.
pub fn read(text: &str, requests: usize) -> Result<Vec<Conversation>, String> {
    let mut texts = Texts::default();
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(requests);
    lines
        .enumerate()
        .map(|(number, line)| {
            let line: Line = serde_json::from_str(line).map_err(|error| format!("request {}: {error}", number + 1))?;
            let mut left = line.input_length.max(1);
            let mut prompt: Vec<Segment> = Vec::with_capacity(line.hash_ids.len());
            for hash in line.hash_ids {
                let tokens = left.min(BLOCK);
                if tokens == 0 {
                    break;
                }
                prompt.push(Texts::common(GROUP, hash, tokens));
                left -= tokens;
            }
            if left > 0 {
                prompt.push(texts.own(left));
            }
            let answer = texts.own(line.output_length.clamp(2, LONGEST_ANSWER));
            let turn = Turn { prompt, answer, pause: Duration::ZERO };
            Ok(Conversation { system: 0, has_messages: false, turns: vec![turn] })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_segments_and_what_has_no_hash_is_nobody_elses() {
        let line = |hashes: &str| format!(r#"{{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [{hashes}]}}"#);
        let read = read(&format!("{}\n\n{}\n{}\n", line("7, 8, 9"), line("7, 8"), line("1")), 2).expect("a trace");
        let lengths = |at: usize| read[at].turns[0].prompt.iter().map(|segment| segment.tokens).collect::<Vec<_>>();
        assert_eq!((read.len(), lengths(0), lengths(1)), (2, vec![512, 512, 76], vec![512, 512, 76]));
        let (one, other) = (&read[0].turns[0], &read[1].turns[0]);
        assert_eq!(one.prompt[..2], other.prompt[..2]);
        assert_ne!(one.prompt[2], other.prompt[2]);
        assert_eq!(one.answer.tokens, 2);
    }

    #[test]
    fn what_is_no_trace_is_said() {
        assert!(read("{\"input_length\": 3}", 5).expect_err("no hashes").starts_with("request 1: missing field"));
    }
}
