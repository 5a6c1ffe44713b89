//! The rules that exist only here, one a file. Each was written from what its project publishes of it, none from its code.

mod bounded_load;
mod dynamo;
mod index;
mod llm_d;
mod oracle;
mod sglang;

#[cfg(test)]
mod tests;

use std::time::Duration;

use strum::VariantArray;

use super::replica::Settings;
use super::rule::Rule;

/// Whose rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Peer {
    /// True caches, true queues: the least expected time.
    Oracle,
    /// The same, but what is computed counts twice, since the others wait for it as well.
    UnselfishOracle,
    /// Consistent hashing with bounded loads.
    BoundedLoad,
    /// The cache-aware rule of SGLang's router.
    Sglang,
    /// The scorers of llm-d and the Gateway API inference extension, weighted 3, 2 and 2.
    LlmD,
    /// The cost of Dynamo's router.
    Dynamo,
}

impl Peer {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::UnselfishOracle => "oracle:2",
            Self::BoundedLoad => "bounded_load",
            Self::Sglang => "sglang",
            Self::LlmD => "llm-d",
            Self::Dynamo => "dynamo",
        }
    }

    /// Whether it knows what all routers do, so that there is one of it for all.
    pub fn knows_all(self) -> bool {
        matches!(self, Self::Oracle | Self::UnselfishOracle)
    }

    /// How old the metrics may be that it looks at, if it does.
    pub fn metrics_age(self) -> Option<Duration> {
        (self == Self::LlmD).then_some(Duration::from_millis(50))
    }

    /// A rule that knows nothing yet, for engines that were started with `settings`.
    pub fn rule(self, settings: &Settings) -> Box<dyn Rule> {
        match self {
            Self::Oracle => Box::new(oracle::Oracle::new(1.0, settings)),
            Self::UnselfishOracle => Box::new(oracle::Oracle::new(2.0, settings)),
            Self::BoundedLoad => Box::new(bounded_load::BoundedLoad),
            Self::Sglang => Box::new(sglang::Sglang::new(settings)),
            Self::LlmD => Box::new(llm_d::LlmD::new(settings)),
            Self::Dynamo => Box::new(dynamo::Dynamo::new(settings)),
        }
    }
}
