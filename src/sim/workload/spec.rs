//! Workloads by their names: a kind of traffic, and how it comes.

use std::fmt;
use std::sync::Arc;

use super::chat::Exchange;
use super::{Conversation, Starts, Traffic, chat, documents, sharegpt, tenants, trace};
use crate::sim::chance::Chance;

/// A kind of traffic.
#[derive(Clone, Debug, PartialEq)]
pub enum Base {
    /// Questions about documents that come and go after so many uses.
    Aws(f64),
    /// Questions about one of 600 documents.
    Pool,
    /// The same of 3,000, by Zipf's law.
    Zipf,
    /// Conversations like those of ShareGPT.
    Chat,
    /// Agents that call tools.
    Agentic,
    /// A pool of 300 documents, and one more that half of all requests are about.
    Hot,
    /// Many tenants with different habits.
    Mixed,
    /// Prompts of which no two begin alike.
    Unique,
    /// The Mooncake trace of conversations.
    Mooncake,
    /// The Mooncake trace that was made from public data.
    MooncakeSynthetic,
}

/// A workload: its kind, and how it comes.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// What is asked.
    pub base: Base,
    /// When.
    pub starts: Starts,
    /// Whether replicas come and go: two more from a third of the run on, one less from two thirds on.
    pub elastic: bool,
    /// Whether what is common to many prompts is another text from half of the run on.
    pub change: bool,
    /// Whether a replica dies at half of the run, and is back a minute later with an empty cache.
    pub failure: bool,
}

/// What was read from files, for the workloads that need some.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Takes the place of what `chat` is fitted to.
    pub sharegpt: Option<Arc<Vec<Vec<Exchange>>>>,
    /// The texts of the traces.
    pub mooncake: Option<Arc<str>>,
    /// And of the other one.
    pub mooncake_synthetic: Option<Arc<str>>,
}

/// Uses of a document, unless said otherwise.
const USES: f64 = 5.5;

/// The names, and what they stand for.
pub const NAMES: [(&str, &str); 10] = [
    ("aws[:USES]", "documents of 8,000 tokens that come and go, each used 5.5 times"),
    ("pool", "a pool of 600 such documents"),
    ("zipf", "a pool of 3,000, some of them more popular"),
    ("chat", "conversations like those of ShareGPT"),
    ("agentic", "agents that call tools, 10 to 40 turns"),
    ("hot", "a pool of 300 documents, and one that half of all requests are about"),
    ("mixed", "many tenants with different habits"),
    ("unique", "prompts that never repeat"),
    ("mooncake", "the Mooncake trace of conversations"),
    ("mooncake:synthetic", "the Mooncake trace made from public data"),
];

/// What may stand behind a name.
pub const MODIFIERS: [(&str, &str); 5] = [
    ("+bursty", "8 s at 2.2 times the rate, then 16 s at 0.4 times"),
    ("+elastic", "two more replicas from 1/3 of the run on, one less from 2/3 on"),
    ("+change", "all common texts are other ones from 1/2 of the run on"),
    ("+failure", "a replica dies at 1/2 of the run and is back a minute later, with an empty cache"),
    ("+closed:N", "N clients, each with one request at a time"),
];

/// What is wrong with a name that is none.
fn unknown(name: &str) -> String {
    let list = |names: &[(&'static str, &str)]| names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    format!("unknown workload `{name}`; allowed: {}; each with any of {}", list(&NAMES), list(&MODIFIERS))
}

impl std::str::FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut parts = name.trim().split('+');
        let base = parts.next().unwrap_or_default();
        let base = match base.split_once(':') {
            None => match base {
                "aws" => Base::Aws(USES),
                "pool" => Base::Pool,
                "zipf" => Base::Zipf,
                "chat" => Base::Chat,
                "agentic" => Base::Agentic,
                "hot" => Base::Hot,
                "mixed" => Base::Mixed,
                "unique" => Base::Unique,
                "mooncake" => Base::Mooncake,
                _ => return Err(unknown(name)),
            },
            Some(("aws", uses)) => match uses.parse::<f64>() {
                Ok(uses) if (1.0..=1e6).contains(&uses) => Base::Aws(uses),
                _ => return Err(format!("`{name}`: {uses} is not a number of uses; allowed: 1 to 1000000")),
            },
            Some(("mooncake", "synthetic")) => Base::MooncakeSynthetic,
            Some(_) => return Err(unknown(name)),
        };
        let mut workload = Self { base, starts: Starts::Poisson, elastic: false, change: false, failure: false };
        for modifier in parts {
            let is_start = modifier == "bursty" || modifier.starts_with("closed:");
            if is_start && workload.starts != Starts::Poisson {
                return Err(format!("`{name}`: {modifier} is one too many; allowed: one of bursty and closed:CLIENTS"));
            }
            match modifier.split_once(':') {
                None if modifier == "bursty" => workload.starts = Starts::Bursty,
                None if modifier == "elastic" => workload.elastic = true,
                None if modifier == "change" => workload.change = true,
                None if modifier == "failure" => workload.failure = true,
                Some(("closed", clients)) => match clients.parse() {
                    Ok(clients @ 1..=100_000) => workload.starts = Starts::Closed(clients),
                    _ => return Err(format!("`{name}`: {clients} is not a number of clients; allowed: 1 to 100000")),
                },
                _ => return Err(unknown(name)),
            }
        }
        workload.problem().map_or(Ok(workload), Err)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Aws(uses) => write!(f, "aws:{uses}")?,
            Base::Pool => f.write_str("pool")?,
            Base::Zipf => f.write_str("zipf")?,
            Base::Chat => f.write_str("chat")?,
            Base::Agentic => f.write_str("agentic")?,
            Base::Hot => f.write_str("hot")?,
            Base::Mixed => f.write_str("mixed")?,
            Base::Unique => f.write_str("unique")?,
            Base::Mooncake => f.write_str("mooncake")?,
            Base::MooncakeSynthetic => f.write_str("mooncake:synthetic")?,
        }
        match self.starts {
            Starts::Poisson => {}
            Starts::Bursty => f.write_str("+bursty")?,
            Starts::Closed(clients) => write!(f, "+closed:{clients}")?,
        }
        let flags = [(self.elastic, "+elastic"), (self.change, "+change"), (self.failure, "+failure")];
        flags.into_iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

impl Workload {
    /// What cannot be, if anything.
    pub fn problem(&self) -> Option<String> {
        let closed = matches!(self.starts, Starts::Closed(_));
        let timed = self.elastic || self.failure;
        (closed && timed)
            .then(|| format!("`{self}`: how long a closed loop takes nobody knows beforehand, so it cannot be elastic or have a failure"))
    }

    /// The name of its kind alone.
    pub fn base_name(&self) -> String {
        self.plain().to_string()
    }

    /// The same without modifiers.
    pub fn plain(&self) -> Self {
        Self { base: self.base.clone(), starts: Starts::Poisson, elastic: false, change: false, failure: false }
    }

    /// Requests of a run on so many replicas, unless said otherwise: enough for caches to fill and to be measured afterwards.
    pub fn usual_requests(&self, replicas: usize) -> usize {
        let of_seven = match self.base {
            Base::Chat => 36_000,
            Base::Agentic => 20_000,
            Base::Mooncake | Base::MooncakeSynthetic => 8_000,
            _ => 14_000,
        };
        // A larger fleet gets through them sooner, and conversations do not.
        of_seven * replicas.max(7) / 7
    }

    /// The traffic of a seed; or why a file that it needs will not do.
    pub fn traffic(&self, requests: usize, seed: u64, files: &Files) -> Result<Traffic, String> {
        let chance = &mut Chance::new(seed, 0);
        let read = |file: &Option<Arc<str>>| match file {
            Some(text) => trace::read(text, requests).map_err(|error| format!("`{self}`: {error}")),
            None => Err(format!("`{self}`: the trace was not read")),
        };
        let mut conversations = match self.base {
            Base::Aws(uses) => documents::passing(requests, uses, chance),
            Base::Pool => documents::pool(requests, 600, 0.0, 0.0, chance),
            Base::Zipf => documents::pool(requests, 3_000, 0.8, 0.0, chance),
            Base::Hot => documents::pool(requests, 300, 0.0, 0.5, chance),
            Base::Unique => documents::unique(requests, chance),
            Base::Agentic => tenants::agentic(requests, chance),
            Base::Mixed => tenants::mixed(requests, chance),
            Base::Mooncake => read(&files.mooncake)?,
            Base::MooncakeSynthetic => read(&files.mooncake_synthetic)?,
            Base::Chat => match &files.sharegpt {
                None => chat::conversations(requests, sharegpt::exchanges, chance),
                Some(recorded) => chat::conversations(requests, replay(recorded, chance), chance),
            },
        };
        if conversations.is_empty() {
            return Err(format!("`{self}`: there is no request in it"));
        }
        let changed_at = self.change.then_some(conversations.len() / 2);
        conversations.iter_mut().skip(changed_at.unwrap_or(usize::MAX)).for_each(Conversation::change);
        Ok(Traffic { name: self.to_string(), conversations, starts: self.starts, changed_at })
    }
}

/// Each of `recorded` once, by chance, and from the beginning again.
fn replay<'a>(recorded: &'a [Vec<Exchange>], chance: &mut Chance) -> impl FnMut(&mut Chance) -> Vec<Exchange> + use<'a> {
    let mut order: Vec<&Vec<Exchange>> = recorded.iter().collect();
    chance.shuffle(&mut order);
    let mut next = 0;
    move |_| {
        next += 1;
        order[(next - 1) % order.len()].clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn workload(name: &str) -> Workload {
        name.parse().expect(name)
    }

    fn traffic(name: &str, seed: u64) -> Traffic {
        workload(name).traffic(3_000, seed, &Files::default()).expect(name)
    }

    const GENERATED: [&str; 9] = ["aws", "aws:2.5", "pool", "zipf", "chat", "agentic", "hot", "mixed", "unique"];

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["aws:5.5", "mooncake:synthetic", "hot+bursty+elastic", "chat+closed:70+change"] {
            assert_eq!(workload(name).to_string(), name);
        }
        assert_eq!(workload("aws"), workload("aws:5.5"));
        let check = |name: &str, part: &str| {
            let error = name.parse::<Workload>().expect_err(name);
            assert!(error.contains(part), "{name}: {error}");
        };
        check("pol", "unknown workload `pol`; allowed: aws[:USES], pool, zipf, chat");
        check("pool+busty", "+bursty");
        check("aws:0.5", "1 to 1000000");
        check("pool:7", "unknown");
        check("pool+closed:0", "1 to 100000");
        check("pool+closed:7+elastic", "cannot be elastic");
    }

    #[test]
    fn equal_seeds_give_equal_traffic() {
        for name in GENERATED {
            assert_eq!(traffic(name, 1).conversations, traffic(name, 1).conversations, "{name}");
            assert_ne!(traffic(name, 1).conversations, traffic(name, 2).conversations, "{name}");
            assert!((3_000..3_040).contains(&traffic(name, 1).requests()), "{name}");
        }
    }

    #[test]
    fn each_kind_is_what_it_is_called() {
        let uses = |name: &str| {
            let mut uses: HashMap<u64, usize> = HashMap::new();
            for conversation in traffic(name, 1).conversations {
                *uses.entry(conversation.turns[0].prompt[0].text).or_default() += 1;
            }
            uses
        };
        assert!(uses("aws").values().all(|&uses| uses <= 6));
        let mean = 3_000.0 / uses("aws").len() as f64;
        assert!((4.9..5.6).contains(&mean), "{mean}");
        assert_eq!(uses("unique").len(), 3_000);
        assert!((560..=600).contains(&uses("pool").len()));
        let hottest = uses("hot").into_values().max().unwrap_or(0);
        assert!((1_400..1_600).contains(&hottest), "{hottest}");
        assert_eq!(uses("agentic").len(), 8);
        let many = uses("zipf");
        let most = many.values().copied().max().unwrap_or(0);
        assert!(many.len() > 800 && most > 60, "{} {most}", many.len());
    }

    #[test]
    fn a_change_makes_every_common_text_another_one() {
        let (before, after) = (traffic("pool", 1), traffic("pool+change", 1));
        let half = after.changed_at.expect("it changes");
        assert_eq!(before.conversations[..half], after.conversations[..half]);
        let texts =
            |traffic: &Traffic, at: usize| traffic.conversations[at].turns[0].prompt.iter().map(|segment| segment.text).collect::<Vec<_>>();
        for at in half..3_000 {
            assert_ne!(texts(&before, at)[0], texts(&after, at)[0]);
            assert_eq!(texts(&before, at)[1], texts(&after, at)[1]);
        }
    }

    #[test]
    fn traces_that_were_not_read_are_missed() {
        assert!(workload("mooncake").traffic(10, 1, &Files::default()).expect_err("no file").contains("mooncake"));
    }
}
