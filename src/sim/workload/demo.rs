//! The traffic of the demo: conversations of one or more turns, each with a moment to begin.
//!
//! What the texts are is up to whoever sends them. Equal seeds give equal traffic, whatever the router does with it.

use std::time::Duration;

use rand::{Rng, RngExt};
use strum::VariantArray;

use super::Segment;

/// A kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Workload {
    /// Questions about documents of 8,000 tokens, which come and go: each is asked about five or six times.
    Documents,
    /// Conversations of several turns, under one of a few system prompts.
    Chat,
    /// As `Documents`, but every second question is about one and the same.
    Hot,
    /// Prompts of which no two begin alike.
    Unique,
}

impl Workload {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documents => "documents",
            Self::Chat => "chat",
            Self::Hot => "hot",
            Self::Unique => "unique",
        }
    }

    /// What it stands for, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Documents => "questions about documents of 8,000 tokens, each used about 5.5 times",
            Self::Chat => "conversations of 2 to 8 turns under one of 12 system prompts of 2,000 tokens",
            Self::Hot => "as documents, but every second question is about one and the same",
            Self::Unique => "prompts of 2,000 to 8,000 tokens that never repeat",
        }
    }
}

/// A request, as far as it is new: what came before it in its conversation precedes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// For everybody who asks in this setting (a system prompt, a document); only in a conversation's first turn.
    pub setting: Option<Segment>,
    /// What the user says.
    pub question: Segment,
    /// Length of the answer.
    pub output_tokens: usize,
    /// From the end of the turn before to this one.
    pub pause: Duration,
}

/// Turns that follow one another, each when the one before has its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// From the beginning of the traffic.
    pub start: Duration,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// How much traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volume {
    /// Requests in all; a conversation that has begun is carried to its end.
    pub requests: usize,
    /// Requests in a second, on average; sessions begin as a Poisson process.
    pub per_second: f64,
}

/// The sessions of `workload`, in the order of their starts.
pub fn generate(workload: Workload, volume: Volume, rng: &mut impl Rng) -> Vec<Session> {
    // Other seeds have other texts, not only other times.
    let mut texts = Texts { last: rng.random() };
    let mut documents = Documents::new(rng, &mut texts);
    let hot = texts.new_one();
    let systems: Vec<u64> = (0..SYSTEM_PROMPTS).map(|_| texts.new_one()).collect();
    let (mut sessions, mut requests, mut start) = (Vec::new(), 0, 0.0);
    while requests < volume.requests {
        let turns = match workload {
            Workload::Documents => vec![about(documents.next(rng, &mut texts), rng, &mut texts)],
            Workload::Hot if rng.random_bool(0.5) => vec![about(hot, rng, &mut texts)],
            Workload::Hot => vec![about(documents.next(rng, &mut texts), rng, &mut texts)],
            Workload::Chat => conversation(systems[rng.random_range(0..systems.len())], rng, &mut texts),
            Workload::Unique => {
                let question = Segment { text: texts.new_one(), tokens: rng.random_range(2_000..=8_000) };
                vec![Turn { setting: None, question, output_tokens: answer(rng), pause: Duration::ZERO }]
            }
        };
        requests += turns.len();
        // Conversations bring several requests each, so fewer of them begin.
        start += -(1.0 - rng.random::<f64>()).ln() * turns.len() as f64 / volume.per_second;
        sessions.push(Session { start: Duration::from_secs_f64(start), turns });
    }
    sessions
}

/// Documents that are in use at one time.
const LIVE_DOCUMENTS: usize = 60;
const DOCUMENT_TOKENS: usize = 8_000;
const SYSTEM_PROMPTS: usize = 12;
const SYSTEM_TOKENS: usize = 2_000;

struct Texts {
    last: u64,
}

impl Texts {
    fn new_one(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.last
    }
}

/// Documents in use, and how often each will be asked about yet.
struct Documents {
    live: Vec<(u64, u32)>,
}

impl Documents {
    fn new(rng: &mut impl Rng, texts: &mut Texts) -> Self {
        // As if it had gone on for ever: what is live at first has some of its uses behind it.
        let live = (0..LIVE_DOCUMENTS).map(|_| {
            let uses = uses(rng);
            (texts.new_one(), rng.random_range(1..=uses))
        });
        Self { live: live.collect() }
    }

    fn next(&mut self, rng: &mut impl Rng, texts: &mut Texts) -> u64 {
        let document = &mut self.live[rng.random_range(0..LIVE_DOCUMENTS)];
        let text = document.0;
        document.1 -= 1;
        if document.1 == 0 {
            *document = (texts.new_one(), uses(rng));
        }
        text
    }
}

fn uses(rng: &mut impl Rng) -> u32 {
    rng.random_range(5..=6)
}

fn about(document: u64, rng: &mut impl Rng, texts: &mut Texts) -> Turn {
    Turn {
        setting: Some(Segment { text: document, tokens: DOCUMENT_TOKENS }),
        question: Segment { text: texts.new_one(), tokens: rng.random_range(20..=100) },
        output_tokens: answer(rng),
        pause: Duration::ZERO,
    }
}

fn conversation(system: u64, rng: &mut impl Rng, texts: &mut Texts) -> Vec<Turn> {
    (0..rng.random_range(2..=8))
        .map(|turn| Turn {
            setting: (turn == 0).then_some(Segment { text: system, tokens: SYSTEM_TOKENS }),
            question: Segment { text: texts.new_one(), tokens: rng.random_range(50..=800) },
            output_tokens: answer(rng),
            pause: Duration::from_millis(if turn == 0 { 0 } else { rng.random_range(200..=1_200) }),
        })
        .collect()
}

fn answer(rng: &mut impl Rng) -> usize {
    rng.random_range(8..=32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn traffic(workload: Workload, seed: u64) -> Vec<Session> {
        generate(workload, Volume { requests: 3_000, per_second: 100.0 }, &mut StdRng::seed_from_u64(seed))
    }

    fn first_segments(sessions: &[Session]) -> HashMap<Segment, usize> {
        let mut counts = HashMap::new();
        for session in sessions {
            let first = session.turns[0].setting.unwrap_or(session.turns[0].question);
            *counts.entry(first).or_default() += 1;
        }
        counts
    }

    #[test]
    fn equal_seeds_give_equal_traffic() {
        for &workload in Workload::ALL {
            assert_eq!(traffic(workload, 1), traffic(workload, 1), "{workload:?}");
            assert_ne!(traffic(workload, 1), traffic(workload, 2), "{workload:?}");
        }
    }

    #[test]
    fn documents_are_used_as_often_as_said() {
        let counts = first_segments(&traffic(Workload::Documents, 1));
        assert!(counts.values().all(|&uses| uses <= 6));
        // But for those that were live before the beginning or are still live at the end.
        let mean = 3_000.0 / counts.len() as f64;
        assert!((5.0..5.6).contains(&mean), "{mean}");
    }

    #[test]
    fn arrivals_keep_their_rate_and_order() {
        for &workload in Workload::ALL {
            let sessions = traffic(workload, 3);
            let requests: usize = sessions.iter().map(|session| session.turns.len()).sum();
            assert!((3_000..3_010).contains(&requests), "{workload:?}: {requests}");
            assert!(sessions.windows(2).all(|two| two[0].start <= two[1].start));
            let took = sessions[sessions.len() - 1].start.as_secs_f64();
            assert!((27.0..33.0).contains(&took), "{workload:?}: {took}");
        }
    }

    #[test]
    fn each_kind_is_what_it_is_called() {
        let hot = first_segments(&traffic(Workload::Hot, 1)).into_values().max().unwrap_or(0);
        assert!((1_400..1_600).contains(&hot), "{hot}");
        assert!(first_segments(&traffic(Workload::Unique, 1)).into_values().all(|uses| uses == 1));
        assert_eq!(first_segments(&traffic(Workload::Chat, 1)).len(), SYSTEM_PROMPTS);
    }
}
