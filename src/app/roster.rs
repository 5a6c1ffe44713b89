//! Who is in the fleet: what the configuration lists and what is found behind its names, kept in the fleet as both change; with one watcher for each
//! name, and for each replica one task that probes it and one that asks for its engine's metrics.
//!
//! It reads no configuration; what is listed is sent to it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::discovery::dns::{self, Source, Watcher};
use crate::discovery::{self, Findings};
use crate::fleet::ReplicaSpec;
use crate::live::{self, ChangeError, LiveFleet, View};
use crate::probe;
use crate::resolver::{self, Resolver};
use crate::scrape::Scraper;
use crate::telemetry::Metrics;
use crate::upstream::{Link, Upstream};

/// How long a change of the list waits for the first answers of sources that are new in it, so that a name which takes another's place does not
/// leave the fleet empty for a moment.
const FIRST_ANSWERS: Duration = Duration::from_secs(2);

/// What the configuration says of the fleet.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) replicas: Vec<ReplicaSpec>,
    pub(super) sources: Vec<Source>,
    pub(super) settings: live::Settings,
}

/// A new list, and whom to tell how it went.
pub(super) type Order = (Listed, oneshot::Sender<Result<(), ChangeError>>);

/// The task that keeps the fleet.
pub(super) struct Roster {
    pub(super) fleet: Arc<LiveFleet>,
    pub(super) listed: Listed,
    pub(super) resolver: Arc<Resolver>,
    pub(super) dns: watch::Receiver<resolver::Settings>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) scraper: Scraper,
    pub(super) orders: mpsc::Receiver<Order>,
}

impl Roster {
    /// Keeps the fleet as configuration and discovery have it. Dropping the future ends every watcher and every probe.
    pub(super) async fn run(mut self) {
        let findings = Arc::new(watch::Sender::new(Findings::new()));
        let mut found = findings.subscribe();
        let mut watchers = Watchers { findings, running: HashMap::new(), tasks: JoinSet::new() };
        watchers.follow(&self);
        let (mut probes, mut scrapes) = (ByReplica::default(), ByReplica::default());
        loop {
            self.attend(&mut probes, &mut scrapes);
            tokio::select! {
                // The sender is this one's own, and is here.
                _ = found.changed() => {
                    let (specs, complete) = self.join(&found);
                    if let Err(error) = self.fleet.set(specs, complete).await {
                        tracing::error!(error = error.to_string(), "the fleet stays as it was: {error}");
                    }
                }
                Some((listed, told)) = self.orders.recv() => {
                    let done = self.change(listed, &mut watchers, &mut found).await;
                    // Whoever asked may have gone.
                    let _ = told.send(done);
                }
            }
        }
    }

    /// Sees to it that everybody in the fleet is probed and asked. Who has left with requests in flight is probed until they have ended, and asked no more.
    fn attend(&self, probes: &mut ByReplica, scrapes: &mut ByReplica) {
        let (fleet, view) = (&self.fleet, self.fleet.view());
        probes.follow(&view, |link| link.replica().outstanding() > 0, |upstream| probe::run(upstream, Arc::clone(fleet), fleet.health()));
        // There is room for what engines say before they are asked, and none when nobody asks.
        self.scraper.readings.keep(view.upstreams().map(|upstream| upstream.replica().incarnation()));
        scrapes.follow(&view, |_| false, |upstream| self.scraper.clone().run(upstream, || rand::rng().random()));
    }

    async fn change(&mut self, listed: Listed, watchers: &mut Watchers, found: &mut watch::Receiver<Findings>) -> Result<(), ChangeError> {
        let before = std::mem::replace(&mut self.listed, listed);
        watchers.add(self);
        let is_answered = |findings: &Findings| self.listed.sources.iter().all(|source| findings.contains_key(&source.url));
        let is_new = |source: &Source| before.sources.iter().all(|known| known.url != source.url);
        if self.listed.sources.iter().any(is_new) {
            let _ = timeout(FIRST_ANSWERS, found.wait_for(is_answered)).await;
        }
        let (specs, complete) = self.join(found);
        let done = self.fleet.set_under(self.listed.settings.clone(), specs, complete).await;
        if done.is_err() {
            self.listed = before;
        }
        watchers.follow(self);
        done
    }

    fn join(&self, found: &watch::Receiver<Findings>) -> (Vec<ReplicaSpec>, bool) {
        discovery::join(&self.listed.replicas, &self.listed.sources, &found.borrow())
    }
}

/// One for each source.
struct Watchers {
    findings: Arc<watch::Sender<Findings>>,
    /// By URL.
    running: HashMap<String, AbortHandle>,
    tasks: JoinSet<()>,
}

impl Watchers {
    /// Starts those that are listed, and ends those that are not any more.
    fn follow(&mut self, roster: &Roster) {
        self.add(roster);
        let listed: HashSet<&str> = roster.listed.sources.iter().map(|source| source.url.as_str()).collect();
        self.running.retain(|url, task| {
            let stays = listed.contains(url.as_str());
            if !stays {
                task.abort();
                self.findings.send_if_modified(|findings| {
                    findings.remove(url);
                    // Nobody looks at it any more.
                    false
                });
                roster.metrics.hide_source(url, &dns::results());
            }
            stays
        });
        while self.tasks.try_join_next().is_some() {}
    }

    fn add(&mut self, roster: &Roster) {
        for source in &roster.listed.sources {
            if !self.running.contains_key(&source.url) {
                let watcher = Watcher {
                    source: source.clone(),
                    resolver: Arc::clone(&roster.resolver),
                    settings: roster.dns.clone(),
                    findings: Arc::clone(&self.findings),
                    metrics: Arc::clone(&roster.metrics),
                };
                self.running.insert(source.url.clone(), self.tasks.spawn(watcher.run()));
            }
        }
    }
}

/// One task for each replica.
#[derive(Default)]
struct ByReplica {
    tasks: JoinSet<()>,
    /// By incarnation. The connections tell one stay in the fleet from the next.
    running: HashMap<u64, (Weak<Link>, AbortHandle)>,
}

impl ByReplica {
    /// Starts one for each replica that is new in the fleet, and ends those of replicas that have left, unless they are to `linger`.
    fn follow<F>(&mut self, view: &View, linger: impl Fn(&Link) -> bool, start: impl Fn(Arc<Upstream>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let present: HashMap<u64, &Arc<Link>> =
            view.upstreams().map(|upstream| (upstream.replica().incarnation(), upstream.link())).collect();
        self.running.retain(|incarnation, (known, task)| {
            let stays = match (present.get(incarnation), known.upgrade()) {
                (_, None) => false,
                (Some(link), Some(known)) => Arc::ptr_eq(link, &known),
                (None, Some(known)) => linger(&known),
            };
            if !stays {
                task.abort();
            }
            stays
        });
        for upstream in view.upstreams() {
            let start = || (Arc::downgrade(upstream.link()), self.tasks.spawn(start(Arc::clone(upstream))));
            self.running.entry(upstream.replica().incarnation()).or_insert_with(start);
        }
        while self.tasks.try_join_next().is_some() {}
    }
}
