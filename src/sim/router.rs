//! One of the routers of a run. It shares nothing with the others: the fleet as it sees it, its counts, its strategy and its chance are its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chance::Chance;
use super::rule::{Asked, Engine, Moment, Pick, Rule, Seen, View};
use crate::fleet::{Fleet, Lease, Outcome, Replica, ReplicaSpec, Snapshot, Trial, health};
use crate::request::{Ask, Usage};
use crate::routing::{Aim, Candidates, Chooser, Estimate, Forecast, Reason, Report};
use crate::units::Weight;

/// A router.
pub(super) struct Router {
    fleet: Fleet,
    snapshot: Snapshot,
    /// By their numbers, as far as they are in the fleet.
    replicas: Vec<Option<Arc<Replica>>>,
    chance: Chance,
    chooser: Option<Chooser>,
    /// What the engines' metrics said when it asked last.
    pub(super) seen: Vec<Seen>,
    /// What the engines had counted then: tokens looked up, and found.
    counted: Vec<[u64; 2]>,
}

/// What a router chose.
pub(super) struct Chosen {
    /// Counts there until it is dropped.
    pub(super) lease: Lease,
    /// Held until the first byte, where the request shows whether the replica is well again.
    pub(super) trial: Option<Trial>,
    /// Who.
    pub(super) replica: usize,
    /// Not where the prompt belongs, since that one has too much to do.
    pub(super) overflow: bool,
    /// What was expected of it.
    pub(super) forecast: Option<Box<Forecast>>,
}

/// What there is to choose by, beside what the router knows itself.
pub(super) struct World<'a> {
    pub(super) engines: &'a [Engine],
    pub(super) routers: usize,
    pub(super) now: Moment,
    /// The same as the core wants it.
    pub(super) instant: Instant,
}

impl Router {
    /// A router over the replicas with the numbers below `replicas`, all up. Without a chooser it needs a rule. All routers of a run have one `hash_seed`.
    pub(super) fn new(replicas: usize, hash_seed: u64, chooser: Option<Chooser>, chance: Chance, now: Instant) -> Self {
        let fleet = Fleet::new((0..replicas).map(spec).collect(), health::Settings::default(), hash_seed);
        let snapshot = fleet.snapshot();
        let mut router =
            Self { fleet, snapshot, replicas: Vec::new(), chance, chooser, seen: vec![Seen::default(); replicas], counted: Vec::new() };
        router.take_stock();
        (0..replicas).for_each(|replica| router.observe(replica, Outcome::CheckPassed, now));
        router
    }

    /// Goes on with these replicas; those who are new have been checked already.
    pub(super) fn adopt(&mut self, replicas: &[usize], now: Instant) {
        let known = self.replicas.len();
        self.fleet.adopt(Arc::new(self.fleet.membership().next(replicas.iter().copied().map(spec).collect(), true)));
        self.take_stock();
        self.seen.resize(self.replicas.len().max(self.seen.len()), Seen::default());
        for &replica in replicas.iter().filter(|&&replica| replica >= known) {
            (0..health::Settings::default().rise).for_each(|_| self.observe(replica, Outcome::CheckPassed, now));
        }
    }

    /// Takes note of what was seen of a replica, if it is in the fleet.
    pub(super) fn observe(&mut self, replica: usize, outcome: Outcome, now: Instant) {
        let Some(Some(replica)) = self.replicas.get(replica) else { return };
        if self.fleet.observe(replica, outcome, now, self.chance.share()).is_some() {
            self.snapshot = self.fleet.snapshot();
        }
    }

    /// Whether requests are to be read with their chunks.
    pub(super) fn wants_chunks(&self) -> bool {
        self.chooser.as_ref().is_some_and(Chooser::wants_chunks)
    }

    /// What a request is placed by. Asked once for each.
    pub(super) fn aim(&self, ask: &Ask) -> Aim {
        match (&self.chooser, self.snapshot.pool(None)) {
            (Some(chooser), Some(pool)) => chooser.aim(ask, pool),
            _ => Aim::ByLoad,
        }
    }

    /// Takes note of when an answer began, in a time that was measured.
    pub(super) fn began(&self, forecast: &Forecast, took: Duration) {
        if let Some(chooser) = &self.chooser {
            chooser.began(forecast, Some(took));
        }
    }

    /// Takes note of what an answer says that it took, when it is over.
    pub(super) fn answered(&self, forecast: &Forecast, usage: &Usage, generating: Duration, lease: &Lease) {
        if let Some(chooser) = &self.chooser {
            let _ = chooser.answered(forecast, usage, Some(generating), lease.replica().outstanding());
        }
    }

    /// Takes note of what the engines say of themselves.
    pub(super) fn hear(&mut self, engines: &[Engine], now: Instant) {
        let Some(chooser) = &self.chooser else { return };
        self.counted.resize(engines.len(), [0; 2]);
        for ((replica, engine), before) in self.replicas.iter().zip(engines).zip(&mut self.counted) {
            let (counts, settings) = (engine.model.counts(), engine.model.settings());
            let counted = [counts.queried_tokens, counts.hit_tokens];
            let report = Report {
                running: Some(counts.running as u64),
                waiting: Some(counts.waiting as u64),
                cache_tokens: Some((settings.blocks * settings.block_size) as u64),
                // Less than before is a reset.
                looked_up: counted[0].checked_sub(before[0]).zip(counted[1].checked_sub(before[1])).map(|(queries, hits)| [queries, hits]),
                caches: Some(true),
                shows_restarts: true,
            };
            *before = counted;
            if let Some(replica) = replica {
                if report.looked_up.is_none() {
                    chooser.restarted(replica);
                }
                let _ = chooser.hear(replica, &report, now);
            }
        }
    }

    /// Chooses for a request that was at `tried` in vain; nobody where nobody is left.
    pub(super) fn choose(
        &mut self,
        aim: &Aim,
        asked: &Asked<'_>,
        rule: Option<&mut Box<dyn Rule>>,
        tried: &[usize],
        world: &World<'_>,
    ) -> Option<Chosen> {
        let pool = self.snapshot.pool(None)?;
        let tried: Vec<Arc<Replica>> = tried.iter().filter_map(|&replica| self.replicas[replica].clone()).collect();
        let candidates = Candidates::new(pool, &tried, world.instant);
        let Some(rule) = rule else {
            let choice = self.chooser.as_ref()?.choose(aim, &candidates, &mut self.chance)?;
            let replica = number(choice.lease.replica());
            let overflow = choice.reason == Reason::Overflow;
            return Some(Chosen { lease: choice.lease, trial: choice.trial, replica, overflow, forecast: choice.forecast });
        };
        let eligible: Vec<usize> = candidates.iter().map(|replica| number(replica)).collect();
        if eligible.is_empty() {
            return None;
        }
        let World { engines, routers, now, .. } = *world;
        let view = View { eligible: &eligible, pool, replicas: &self.replicas, seen: &self.seen, engines, routers, now };
        let Pick { replica, overflow } = rule.choose(asked, &view, &mut self.chance);
        let lease = self.replicas[replica].as_ref()?.lease();
        Some(Chosen { lease, trial: None, replica, overflow, forecast: None })
    }

    /// What it would be to send a request where it would go.
    pub(super) fn estimate(&self, aim: &Aim, now: Instant) -> Option<Estimate> {
        self.chooser.as_ref()?.estimate(aim, &Candidates::new(self.snapshot.pool(None)?, &[], now))
    }

    /// Takes note of the first byte of an answer.
    pub(super) fn first_byte(&mut self, lease: &mut Lease, now: Instant) {
        lease.first_byte();
        if lease.replica().answered() {
            self.observe(number(lease.replica()), Outcome::Answered, now);
        }
    }

    /// Requests in flight, of all that it knows.
    pub(super) fn outstanding(&self) -> u64 {
        self.replicas.iter().flatten().map(|replica| replica.outstanding() + replica.waiting()).sum()
    }

    fn take_stock(&mut self) {
        self.snapshot = self.fleet.snapshot();
        let replicas = self.snapshot.replicas();
        let end = replicas.iter().map(|replica| number(replica) + 1).max().unwrap_or(0).max(self.replicas.len());
        self.replicas = vec![None; end];
        for replica in replicas {
            self.replicas[number(replica)] = Some(Arc::clone(replica));
        }
    }
}

/// The fleet numbers incarnations in the order in which they join, and here none joins twice.
fn number(replica: &Replica) -> usize {
    replica.incarnation() as usize
}

fn spec(number: usize) -> ReplicaSpec {
    let name = format!("replica-{}", number + 1);
    ReplicaSpec { authority: format!("{name}:8000"), name, weight: Weight::clamped(1), models: Vec::new(), drain: false }
}
