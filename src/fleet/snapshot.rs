//! An immutable picture of the fleet: who is there, in which state, in which pools. One is loaded for each choice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::health::Standing;
use super::membership::Group;
use super::{ByIncarnation, Replica, Ring, State};

/// Some replicas, shared by all pictures in which they are the same.
pub(super) type Members = Arc<[Arc<Replica>]>;

/// How a replica may be used, as of a picture: its standing, and until when it wants no more work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usability {
    pub(super) standing: Standing,
    pub(super) busy_until: Option<Instant>,
}

/// The replicas that serve one model, with what a choice among them needs.
#[derive(Clone, Debug)]
pub struct Pool {
    name: Arc<PoolName>,
    members: Members,
    usability: Arc<[Usability]>,
    /// Whether a request may go to a member, where that depends on nothing but the picture.
    usable: Vec<bool>,
    /// Whether it depends on nothing else.
    is_settled: bool,
    /// The members on trial.
    on_trial: Vec<usize>,
    slow_start: Duration,
    ring: Arc<Ring>,
}

/// How good a member is for one more request at one moment, the best first. A choice is among those that share the best rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It takes it.
    Open,
    /// It has its share for as long as it warms up.
    Warming,
    /// It wants no more work now.
    Busy,
    /// Its last check failed, or another request tries it.
    Suspect,
    /// Not checked yet.
    Unknown,
    /// It was ejected. A try may fail; not trying fails surely.
    Ejected,
    /// Its checks fail.
    Down,
    /// Not to be used.
    Never,
}

impl Pool {
    /// `usability` tells how a member may be used.
    pub(super) fn new(group: &Group, slow_start: Duration, usability: impl Fn(&Replica) -> Usability) -> Self {
        let Group { name, members, ring } = group.clone();
        let mut usability: Vec<Usability> = members.iter().map(|member| usability(member)).collect();
        let count = |standing| usability.iter().filter(|one| one.standing == standing).count();
        if count(Standing::Doubtful) > count(Standing::Ready) {
            // Checks that fail at most replicas at one time speak of the network or of this machine; the few others would get it all.
            usability.iter_mut().filter(|one| one.standing == Standing::Doubtful).for_each(|one| one.standing = Standing::Ready);
        }
        let is_ready = |one: &Usability| one.standing == Standing::Ready;
        let plain = |one: &Usability| one.busy_until.is_none() && !matches!(one.standing, Standing::Warming(_) | Standing::OnTrial);
        let is_settled = usability.iter().all(plain) && usability.iter().any(is_ready);
        let usable = usability.iter().map(is_ready).collect();
        let on_trial = (0..).zip(&usability).filter(|(_, one)| one.standing == Standing::OnTrial).map(|(index, _)| index).collect();
        Self { name, members, usability: usability.into(), usable, is_settled, on_trial, slow_start, ring }
    }

    /// Which pool it is; the same from one picture to the next.
    pub fn name(&self) -> &PoolName {
        &self.name
    }

    /// All members, in the order of the membership.
    pub fn members(&self) -> &[Arc<Replica>] {
        &self.members
    }

    /// The ring over the members, by their index here.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// For each member, whether a request that was at none of `tried` may go there at `now`: to those that are best, unless that is nobody who could
    /// answer while somebody tried could.
    pub fn eligible(&self, tried: &[Arc<Replica>], now: Instant) -> Cow<'_, [bool]> {
        if self.is_settled && tried.is_empty() {
            return Cow::Borrowed(&self.usable);
        }
        let is_tried = |member: &Replica| is_among(tried, member);
        let load = (0..self.members.len()).any(|index| self.is_warming(index)).then(|| self.load_of_the_ready()).flatten();
        let ranks: Vec<Rank> = (0..self.members.len()).map(|index| self.rank(index, load, now)).collect();
        let untried = || ranks.iter().zip(self.members.iter()).filter(|(_, member)| !is_tried(member)).map(|(&rank, _)| rank);
        let (best, best_untried) = (ranks.iter().copied().min(), untried().min());
        // Where the one that failed was the last good one, those whose checks fail would fail as well.
        let in_vain = best_untried >= Some(Rank::Down) && best < Some(Rank::Down);
        let best_untried = best_untried.filter(|&rank| rank != Rank::Never && !in_vain);
        ranks.iter().zip(self.members.iter()).map(|(&rank, member)| Some(rank) == best_untried && !is_tried(member)).collect()
    }

    /// What `eligible` says of one member, where that can be told without a look at the others: nobody is better than one who takes a request. So a
    /// choice costs the same in a fleet of any size, even where there is always somebody who is busy or warms up.
    pub fn is_eligible(&self, index: usize, tried: &[Arc<Replica>], now: Instant) -> Option<bool> {
        if self.is_settled && tried.is_empty() {
            return Some(self.usable[index]);
        }
        // How many one that warms up may have depends on all the others.
        let is_open = !self.is_warming(index) && self.rank(index, None, now) == Rank::Open;
        is_open.then(|| !is_among(tried, &self.members[index]))
    }

    /// Whether a request that goes there is a trial.
    pub fn is_on_trial(&self, replica: &Replica) -> bool {
        self.on_trial.iter().any(|&index| self.members[index].is(replica))
    }

    fn is_warming(&self, index: usize) -> bool {
        matches!(self.usability[index].standing, Standing::Warming(_))
    }

    fn rank(&self, index: usize, load: Option<(u64, u64)>, now: Instant) -> Rank {
        let (member, Usability { standing, busy_until }) = (&self.members[index], self.usability[index]);
        let is_busy = busy_until.is_some_and(|until| now < until);
        match standing {
            Standing::Ready | Standing::Warming(_) | Standing::OnTrial if is_busy => Rank::Busy,
            Standing::Ready => Rank::Open,
            Standing::Warming(since) => match load {
                Some(load) if member.outstanding() >= self.share(member, since, load, now) => Rank::Warming,
                _ => Rank::Open,
            },
            Standing::OnTrial if member.is_tried() => Rank::Suspect,
            Standing::OnTrial => Rank::Open,
            Standing::Doubtful => Rank::Suspect,
            Standing::Unknown => Rank::Unknown,
            Standing::Ejected => Rank::Ejected,
            Standing::Down => Rank::Down,
            Standing::Draining => Rank::Never,
        }
    }

    /// Requests in flight on those that are warm, and their weights.
    fn load_of_the_ready(&self) -> Option<(u64, u64)> {
        let ready = self.members.iter().zip(&self.usable).filter(|(_, ready)| **ready);
        ready.map(|(member, _)| (member.outstanding(), member.weight())).reduce(|(a, b), (c, d)| (a + c, b + d))
    }

    /// How many requests a replica takes that warms up: of what the others have, a part that grows with time, and never none.
    fn share(&self, member: &Replica, since: Instant, (outstanding, weight): (u64, u64), now: Instant) -> u64 {
        let warm = now.saturating_duration_since(since).as_secs_f64() / self.slow_start.as_secs_f64().max(f64::MIN_POSITIVE);
        if warm >= 1.0 {
            return u64::MAX;
        }
        let mean = outstanding as f64 * member.weight() as f64 / weight as f64;
        (warm * mean).ceil().max(1.0) as u64
    }
}

fn is_among(tried: &[Arc<Replica>], member: &Replica) -> bool {
    tried.iter().any(|tried| tried.is(member))
}

/// Which pool it is: equal for all requests that can go to the same replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolName {
    /// All replicas.
    All,
    /// Those that take any name.
    AnyName,
    /// Those that list this model or take any name.
    Model(String),
}

impl PoolName {
    /// What it is called in metrics and logs.
    pub fn label(&self) -> &str {
        match self {
            Self::All => "all",
            Self::AnyName => "any_name",
            // It must not pass for one of those above.
            Self::Model(model) if model == "all" => "model all",
            Self::Model(model) if model == "any_name" => "model any_name",
            Self::Model(model) => model,
        }
    }
}

/// The fleet at one moment.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) replicas: Members,
    pub(super) states: ByIncarnation<State>,
    /// How they are, be they in the fleet, draining, or on their way out of it.
    pub(super) health: ByIncarnation<State>,
    /// Whether the picture of who serves what is whole.
    pub(super) complete: bool,
    /// All replicas: for requests that name no model.
    pub(super) all: Pool,
    /// For each model that some replica lists: the replicas that list it or take any name.
    pub(super) by_model: HashMap<String, Pool>,
    /// The replicas that take any name: for models that nobody lists.
    pub(super) any_name: Option<Pool>,
    /// A pool without members.
    pub(super) nobody: Pool,
}

impl Snapshot {
    /// All replicas, in the order of the membership.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The state of a replica; `None` where it is not, or no longer, in the fleet.
    pub fn state(&self, replica: &Replica) -> Option<State> {
        self.states.get(&replica.incarnation()).copied()
    }

    /// Whether a replica is down, be it in the fleet or on its way out of it: who waits there waits in vain.
    pub fn is_out(&self, replica: &Replica) -> bool {
        self.health(replica) == Some(State::Down)
    }

    /// How a replica is, whether or not it is draining; `None` where nobody knows any more.
    pub fn health(&self, replica: &Replica) -> Option<State> {
        self.health.get(&replica.incarnation()).copied()
    }

    /// Whether any replica can be used.
    pub fn can_serve(&self) -> bool {
        self.states.values().any(|&state| matches!(state, State::Up | State::Suspect))
    }

    /// All pools, in no order.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        std::iter::once(&self.all).chain(&self.any_name).chain(self.by_model.values())
    }

    /// Whether some replica lists that model.
    pub fn lists(&self, model: &str) -> bool {
        self.by_model.contains_key(model)
    }

    /// The name of the pool for a request that names `model`.
    pub fn pool_name(&self, model: Option<&str>) -> PoolName {
        match model {
            Some(model) if self.by_model.contains_key(model) => PoolName::Model(model.to_owned()),
            // Where nobody lists a model, both are everybody.
            Some(_) if !self.by_model.is_empty() => PoolName::AnyName,
            _ => PoolName::All,
        }
    }

    /// The pool for a request that names `model`; `None` where all replicas say what they serve and none serves it. As long as replicas may be
    /// missing from the picture, a model that nobody serves has an empty pool.
    pub fn pool(&self, model: Option<&str>) -> Option<&Pool> {
        let Some(model) = model else { return Some(&self.all) };
        let known = self.by_model.get(model).or(self.any_name.as_ref());
        known.or((!self.complete).then_some(&self.nobody))
    }
}
