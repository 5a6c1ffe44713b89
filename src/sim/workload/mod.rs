//! Traffic as clients send it. A prompt is a list of segments that stand for texts: equal numbers are equal texts.
//!
//! Equal seeds give equal traffic, whatever the router does with it. [`demo`] is what the demo sends over real sockets; everything else is for
//! the simulator, where no text is ever written out.

pub mod arrivals;
mod chat;
pub mod demo;
mod documents;
pub mod sharegpt;
mod spec;
mod tenants;
pub mod trace;

pub use chat::Exchange;
pub use spec::{Base, Files, MODIFIERS, NAMES, Workload};

use std::time::Duration;

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Which text it is.
    pub text: u64,
    /// Its length.
    pub tokens: usize,
}

/// A request, as far as it is new: what came before it in its conversation precedes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What is new in its prompt; never nothing.
    pub prompt: Vec<Segment>,
    /// The answer, at least one token.
    pub answer: Segment,
    /// From the end of the turn before to this one.
    pub pause: Duration,
}

/// Turns that follow one another, each when the one before has its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// How many of the first turn's segments are the system prompt.
    pub system: usize,
    /// Whether the first turn's segments beyond it are a message; else nothing is known of messages.
    pub has_messages: bool,
    /// At least one.
    pub turns: Vec<Turn>,
}

/// What all clients together want.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// As it is written on the command line.
    pub name: String,
    /// In the order in which they begin.
    pub conversations: Vec<Conversation>,
    /// When they begin.
    pub starts: Starts,
    /// From this conversation on, what was a common text before is another one.
    pub changed_at: Option<usize>,
}

/// When conversations begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starts {
    /// As a Poisson process.
    Poisson,
    /// The same, but that 8 seconds at 2.2 times the rate take turns with 16 seconds at 0.4 times.
    Bursty,
    /// Whenever one of so many clients is through with its last one.
    Closed(usize),
}

impl Traffic {
    /// Requests in all.
    pub fn requests(&self) -> usize {
        self.conversations.iter().map(|conversation| conversation.turns.len()).sum()
    }
}

/// Numbers for texts.
#[derive(Debug, Default)]
struct Texts(u64);

impl Texts {
    /// Common ones have numbers below this, in groups.
    const OWN: u64 = 1 << 40;
    const GROUP: u64 = 1 << 20;

    /// A text that nobody else has.
    fn own(&mut self, tokens: usize) -> Segment {
        self.0 += 1;
        Segment { text: Self::OWN + self.0, tokens }
    }

    /// The `number`-th of a group of texts that many have.
    fn common(group: u64, number: usize, tokens: usize) -> Segment {
        Segment { text: group * Self::GROUP + number as u64, tokens }
    }
}

impl Conversation {
    /// Makes its common texts other ones.
    fn change(&mut self) {
        const OTHER: u64 = 1 << 39;
        let segments = self.turns.iter_mut().flat_map(|turn| &mut turn.prompt);
        segments.filter(|segment| segment.text < Texts::OWN).for_each(|segment| segment.text ^= OTHER);
    }

    /// A single request.
    fn single(system: Vec<Segment>, question: Segment, answer: Segment) -> Self {
        let mut prompt = system;
        let system = prompt.len();
        prompt.push(question);
        Self { system, has_messages: true, turns: vec![Turn { prompt, answer, pause: Duration::ZERO }] }
    }
}
