//! `demo`: what prefix routing does, on a fleet of simulated replicas, over real sockets. Every strategy in turn gets the same requests at
//! the same times, a fresh router and replicas with empty caches.
//!
//! Nothing is made up: what is shown is what a client measures and the replicas report. What is simulated is the engine behind each replica.

mod client;
mod table;
mod texts;
mod traffic;

use std::io::{IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::{Serialize, Serializer};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::app::{self, Running};
use crate::config::Config;
use crate::demo_replica::{self, Replica};
use crate::fleet::ReplicaSpec;
use crate::routing::StrategyName;
use crate::sim;
use crate::sim::cost::Cost;
use crate::sim::report::Report;
use crate::sim::workload::demo::{self as workload, Session, Volume, Workload};
use crate::units::{Bounded, ConcurrencyThreshold, OrAuto, PrefixLength, Weight};
use client::Client;
use traffic::Outcome;

/// What is to be shown.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seeds the requests and their times.
    pub seed: u64,
    /// The kind of requests.
    pub workload: Workload,
    /// Simulated replicas; at least 1.
    pub replicas: usize,
    /// How long requests arrive, for each strategy.
    pub seconds: f64,
}

/// The strategies side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// As on the command line.
    pub workload: &'static str,
    /// What the workload's requests are.
    pub about: &'static str,
    /// As on the command line.
    pub seed: u64,
    /// Simulated replicas.
    pub replicas: usize,
    /// Requests that each strategy got.
    pub requests: usize,
    /// How long requests arrived; turns of conversations that had begun come later.
    pub seconds: f64,
    /// How many times as fast the simulated replicas are as one with the default constants.
    pub replica_speed: f64,
    /// The router's `prefix_length`, in JSON a number or `"auto"`.
    #[serde(serialize_with = "number_or_auto")]
    pub prefix_length: OrAuto<PrefixLength>,
    /// The router's `concurrency_threshold`, likewise.
    #[serde(serialize_with = "number_or_auto")]
    pub concurrency_threshold: OrAuto<ConcurrencyThreshold>,
    /// In the order in which they were run.
    pub strategies: Vec<Measured>,
}

/// A strategy and its figures.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub strategy: &'static str,
    /// Share of the requests that this machine sent late.
    pub late: f64,
    /// Why the first request failed that did.
    pub first_failure: Option<String>,
    /// Its figures.
    #[serde(flatten)]
    pub report: Report,
}

/// The replicas' model.
const MODEL: &str = "demo-model";

/// The simulated engines of the comparison are this much faster than the default constants (a 70B model on eight H100): so each strategy gets
/// through enough documents, in a third of a minute, for chance to even out on the ring. With D documents of 5.5 uses on 7 replicas, a
/// replica's share varies by about sqrt(6 / D): 7 % for the 1,150 documents of 20 seconds.
const SPEED: f64 = 12.0;

/// Requests in a second for each replica: about three quarters of what random routing can take of `documents`.
const PER_REPLICA: f64 = 45.0;

/// Requests in a second for all: what client, router and replicas take together on two cores without waiting for one another.
const MOST_PER_SECOND: f64 = 320.0;

/// How long a fleet may take to be up.
const START_TIME: Duration = Duration::from_secs(10);

/// Between two looks at a run.
const TICK: Duration = Duration::from_millis(250);

/// Where more than this share of the requests was sent late, it is said.
const MOST_LATE: f64 = 0.05;

/// Runs every strategy and shows how it gets on, on stderr; then the table, or JSON, on stdout. Fails where a request did.
pub fn run(options: &Options, json: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let comparison = runtime.block_on(compare(options))?;
    let text = if json { serde_json::to_string_pretty(&comparison)? + "\n" } else { table::render(&comparison) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot print the result")?;
    ensure!(comparison.failed() == 0, "{} requests failed", comparison.failed());
    Ok(())
}

/// What is compared: from what everybody has to what this router does where nothing else is said.
const STRATEGIES: [StrategyName; 4] =
    [StrategyName::Random, StrategyName::RoundRobin, StrategyName::LeastOutstanding, StrategyName::PrefixAware];

/// Runs each of these strategies, and reports progress on stderr.
pub async fn compare(options: &Options) -> Result<Comparison> {
    let per_second = (PER_REPLICA * options.replicas as f64).min(MOST_PER_SECOND);
    let volume = Volume { requests: ((per_second * options.seconds).round() as usize).max(1), per_second };
    let sessions = workload::generate(options.workload, volume, &mut StdRng::seed_from_u64(options.seed));
    let requests = sessions.iter().map(|session| session.turns.len()).sum();
    let mut strategies = Vec::new();
    for strategy in STRATEGIES {
        let outcome = measure(strategy, &sessions, requests, options.replicas).await.with_context(|| strategy.name())?;
        let measured = Measured {
            strategy: strategy.name(),
            late: outcome.late(),
            first_failure: outcome.first_failure(),
            report: outcome.report(options.replicas),
        };
        for problem in measured.problems() {
            let _ = writeln!(std::io::stderr(), "{}: {problem}", measured.strategy);
        }
        strategies.push(measured);
    }
    let config = Config::default();
    Ok(Comparison {
        workload: options.workload.name(),
        about: options.workload.about(),
        seed: options.seed,
        replicas: options.replicas,
        requests,
        seconds: options.seconds,
        replica_speed: SPEED,
        prefix_length: config.key.prefix_length,
        concurrency_threshold: config.routing.concurrency_threshold,
        strategies,
    })
}

fn number_or_auto<const MIN: u64, const MAX: u64, S: Serializer>(
    setting: &OrAuto<Bounded<MIN, MAX>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match setting {
        OrAuto::Auto => serializer.collect_str(setting),
        OrAuto::Fixed(number) => serializer.serialize_u64(number.get()),
    }
}

async fn measure(strategy: StrategyName, sessions: &[Session], requests: usize, replicas: usize) -> Result<Outcome> {
    let mut config = Config { listen: any_port(), admin: any_port(), ..Config::default() };
    config.routing.strategy = strategy;
    let engine = sim::replica::Settings { cost: Cost::default().faster(SPEED), ..sim::replica::Settings::default() };
    let fleet = Fleet::start(replicas, engine, config).await?;
    let client = Client::new(fleet.router.traffic);
    let outcome = Outcome::default();
    let progress = Progress::start(strategy.name(), requests);
    {
        let traffic = traffic::play(&client, MODEL, sessions, &fleet.names, &outcome);
        tokio::pin!(traffic);
        while tokio::time::timeout(TICK, &mut traffic).await.is_err() {
            progress.show(outcome.over(), &outcome.report(replicas));
        }
    }
    drop(client);
    fleet.stop().await;
    progress.end(outcome.over(), &outcome.report(replicas));
    Ok(outcome)
}

impl Measured {
    /// What makes its figures worth less, in sentences.
    fn problems(&self) -> Vec<String> {
        let failed = self.first_failure.as_ref().map(|why| {
            let (failed, all) = (self.report.failed, self.report.failed + self.report.requests);
            format!("{failed} of {all} requests failed; the first: {why}")
        });
        let late = (self.late > MOST_LATE).then(|| {
            let late = self.late * 100.0;
            format!("{late:.0} % of the requests were sent late: this machine was too busy, and the times show that as well; try fewer --replicas")
        });
        failed.into_iter().chain(late).collect()
    }
}

impl Comparison {
    /// Requests that were not answered, of all strategies.
    pub fn failed(&self) -> usize {
        self.strategies.iter().map(|measured| measured.report.failed).sum()
    }
}

/// Keeps a fleet of replicas with the default constants and a router up, until SIGTERM or SIGINT.
pub fn serve(replicas: usize, config: Config) -> Result<()> {
    let _log = crate::telemetry::start(&config.telemetry).context("cannot start the log")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    runtime.block_on(async {
        let mut stop = app::StopSignals::new()?;
        let fleet = Fleet::start(replicas, sim::replica::Settings::default(), config).await?;
        // The log has a writer of its own, which is to be done with the start before anybody reads on.
        sleep(TICK).await;
        std::io::stdout().write_all(table::to_try(&fleet.router, replicas, MODEL).as_bytes()).context("cannot print what to try")?;
        stop.next().await;
        Ok(())
    })
}

/// Simulated replicas and a router in front of them.
struct Fleet {
    router: Running,
    /// The replicas' identities, in order.
    names: Vec<String>,
    replicas: Vec<Replica>,
}

impl Fleet {
    /// Starts both, and waits until every replica is up. `config` needs no replicas.
    async fn start(replicas: usize, engine: sim::replica::Settings, mut config: Config) -> Result<Self> {
        let names: Vec<String> = (1..=replicas).map(|number| format!("replica-{number}")).collect();
        let mut running = Vec::with_capacity(replicas);
        for name in &names {
            let listener = TcpListener::bind(any_port()).await.context("no port is free for a replica")?;
            let settings = demo_replica::Settings { model: MODEL.into(), engine: engine.clone(), ..demo_replica::Settings::default() };
            let replica = demo_replica::start(listener, settings)?;
            let authority = replica.address().to_string();
            config.replicas.push(ReplicaSpec { name: name.clone(), authority, weight: Weight::clamped(1), models: vec![], drain: false });
            running.push(replica);
        }
        let router = app::start(config).await?;
        let admin = Client::new(router.admin);
        let begun = Instant::now();
        loop {
            let metrics = admin.get("/metrics").await.context("the router's admin port")?;
            let up = metrics
                .lines()
                .filter(|line| line.starts_with("prefix_router_replica_state{") && line.ends_with("state=\"up\"} 1"))
                .count();
            if up == replicas {
                return Ok(Self { router, names, replicas: running });
            }
            if begun.elapsed() > START_TIME {
                bail!("only {up} of {replicas} simulated replicas are up after {START_TIME:?}");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends both, so that the next fleet has this host's ports and files for itself.
    async fn stop(mut self) {
        self.router.drain();
        self.router.stopped().await;
        for replica in self.replicas {
            replica.stop().await;
        }
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// How a strategy gets on: a bar on a terminal, else a line at its end.
struct Progress {
    bar: Option<ProgressBar>,
    strategy: &'static str,
}

impl Progress {
    fn start(strategy: &'static str, requests: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(requests as u64);
            if let Ok(style) = ProgressStyle::with_template("{prefix:17} {bar:12} {pos:>5}/{len} {msg}") {
                bar.set_style(style);
            }
            bar.with_prefix(strategy)
        });
        Self { bar, strategy }
    }

    fn show(&self, over: usize, report: &Report) {
        if let Some(bar) = &self.bar {
            bar.set_position(over as u64);
            bar.set_message(table::in_brief(report));
        }
    }

    fn end(&self, over: usize, report: &Report) {
        self.show(over, report);
        match &self.bar {
            Some(bar) => bar.abandon(),
            None => {
                let _ = writeln!(std::io::stderr(), "{:17} {over:>5} requests  {}", self.strategy, table::in_brief(report));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_too_slow_is_told_so() {
        let problems = |late: f64| {
            let report = Report::new(vec![], 0, 1);
            Measured { strategy: "random", late, first_failure: None, report }.problems()
        };
        assert_eq!(problems(0.04), Vec::<String>::new());
        assert!(problems(0.06)[0].starts_with("6 % of the requests were sent late: this machine was too busy"));
    }
}
