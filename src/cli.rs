//! The command line: `serve`, `check`, `top`, `explain`, `demo`, `demo-replica`, `simulate`, `healthcheck`, one function each, and what their exit codes mean.
//!
//! 0: as asked. 1: it did not work out. 2: the command line or the configuration is wrong. It has no rule about any
//! setting; flags are handed to [`config`] as texts, like variables.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;

use crate::config::{self, Flag, Sources, help};
use crate::sim::{self, workload::demo::Workload};
use crate::{app, console, demo, demo_replica, healthcheck, simulate, units};

/// Runs the process's command line.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Serve(flags) => serve(flags),
            Command::Check(flags) => check(flags),
            Command::Top(flags) => top(flags),
            Command::Explain(flags) => explain(flags),
            Command::Demo(flags) => demo(flags),
            Command::Simulate(flags) => simulate(*flags),
            Command::Healthcheck { url, flags } => healthcheck(url, flags),
            Command::DemoReplica { listen, model, settings } => demo_replica(listen, model, settings),
        },
        Err(error) => {
            // `--help` and `--version` come here as well, with code 0. If even this cannot be written, the code says it.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(WRONG_USE))
        }
    }
}

/// The work failed.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
const WRONG_USE: u8 = 2;

/// Routes LLM requests so that prompts that begin alike reach the same vLLM replica.
#[derive(Debug, Parser)]
#[command(name = "prefix-router", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve clients until SIGTERM.
    Serve(ConfigFlags),
    /// Check the configuration, and print what is in force.
    Check(ConfigFlags),
    /// Watch a running router: its replicas, what is in flight there, where requests go and why.
    Top(TopFlags),
    /// Ask a running router where a request would go, and why. Nothing is sent, counted or remembered.
    Explain(ExplainFlags),
    /// See what prefix routing does, on simulated replicas: every strategy gets the same requests. It takes a minute and a half.
    Demo(DemoFlags),
    /// Compare strategies on virtual time: modelled replicas, the router's own decisions. Equal seeds give equal figures on any machine.
    Simulate(Box<SimulateFlags>),
    /// Ask a running router whether it is ready; for containers. Exit code 0 if it is.
    Healthcheck {
        /// What to ask; without it, /ready at the admin address of the configuration.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        #[command(flatten)]
        flags: ConfigFlags,
    },
    /// Serve as a simulated vLLM replica, until SIGTERM. It needs no GPU, and its words mean nothing.
    DemoReplica {
        /// Address to serve on; port 0: any that is free.
        #[arg(long, value_name = "ADDRESS", value_parser = config::address)]
        listen: SocketAddr,
        /// Name of the model; wins over the file's.
        #[arg(long, value_name = "NAME")]
        model: Option<String>,
        /// JSON file with the engine's size and speed, see docs/demo-replica.md.
        #[arg(long, value_name = "FILE")]
        settings: Option<PathBuf>,
    },
}

/// The settings one changes most. Every key of the file is also a variable, `prefix_length` as
/// PREFIX_ROUTER_PREFIX_LENGTH. A flag wins over the variable, the variable over the file.
#[derive(Args, Debug, Default)]
struct ConfigFlags {
    /// YAML file with settings; also named by PREFIX_ROUTER_CONFIG.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, value_name = "ADDRESS", help = help("listen"))]
    listen: Option<String>,
    #[arg(long, value_name = "ADDRESS", help = help("admin"))]
    admin: Option<String>,
    /// A replica, as URL or `URL;weight=2;name=a`; repeatable. These take the place of the file's list.
    #[arg(long, value_name = "URL")]
    replica: Vec<String>,
    #[arg(long, value_name = "NAME", help = help("strategy"))]
    strategy: Option<String>,
    #[arg(long, value_name = "N|auto", allow_negative_numbers = true, help = help("prefix_length"))]
    prefix_length: Option<String>,
    #[arg(long, value_name = "N|auto", allow_negative_numbers = true, help = help("concurrency_threshold"))]
    concurrency_threshold: Option<String>,
    #[arg(long, value_name = "NAME", help = help("overflow"))]
    overflow: Option<String>,
    #[arg(long, value_name = "LEVEL", help = help("log_level"))]
    log_level: Option<String>,
    #[arg(long, value_name = "FORMAT", help = help("log_format"))]
    log_format: Option<String>,
    #[arg(long, value_name = "TIME", help = help("drain_timeout"))]
    drain_timeout: Option<String>,
}

/// Which router is asked.
#[derive(Args, Debug)]
struct RouterFlags {
    /// Its admin port, as http://HOST:PORT; without it, the admin address of the configuration.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// YAML file whose admin and admin_token are used; also named by PREFIX_ROUTER_CONFIG. PREFIX_ROUTER_ADMIN and PREFIX_ROUTER_ADMIN_TOKEN win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What `top` shows.
#[derive(Args, Debug)]
struct TopFlags {
    #[command(flatten)]
    router: RouterFlags,
    /// How often it looks: 100ms to 1m.
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    interval: Duration,
    /// Print one picture, and end.
    #[arg(long)]
    once: bool,
    /// Print it as one JSON document: {"overview", "fleet", "hot_keys", "decisions"}, each as the API has it.
    #[arg(long, requires = "once")]
    json: bool,
}

/// What `explain` asks.
#[derive(Args, Debug)]
struct ExplainFlags {
    #[command(flatten)]
    router: RouterFlags,
    /// File with the request's body; - is the standard input.
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// Where the request would be sent.
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions")]
    path: String,
    /// Its header x-amzn-sagemaker-prefix-aware-id, if it has one.
    #[arg(long, value_name = "TEXT")]
    identifier: Option<String>,
    /// Print the API's answer as it is.
    #[arg(long)]
    json: bool,
}

/// What `demo` shows.
#[derive(Args, Debug)]
struct DemoFlags {
    /// Seeds the requests and their times; equal seeds give equal requests.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[arg(long, value_name = "NAME", value_parser = workload, default_value = Workload::Documents.name(), help = workloads())]
    workload: Workload,
    /// Simulated replicas, 1 to 64.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64), default_value_t = 7)]
    replicas: u64,
    /// How long requests arrive, for each strategy: 1 to 600 seconds. Conversations that have begun go on to their end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600), default_value_t = 20)]
    seconds: u64,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
    /// Compare nothing; keep router and replicas up, to be tried by hand.
    #[arg(long, conflicts_with_all = ["seed", "workload", "seconds", "json"])]
    serve: bool,
    #[arg(long, value_name = "ADDRESS", requires = "serve", help = help("listen"))]
    listen: Option<String>,
    #[arg(long, value_name = "ADDRESS", requires = "serve", help = help("admin"))]
    admin: Option<String>,
}

/// What `simulate` compares.
#[derive(Args, Debug)]
struct SimulateFlags {
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', default_value = "aws,pool,zipf,chat,agentic,hot,mixed,unique", help = simulate::workload_help())]
    workload: Vec<sim::workload::Workload>,
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', default_value = "random,least_outstanding,prefix_aware,oracle", help = simulate::strategy_help())]
    strategy: Vec<String>,
    /// Requests offered, as a share of what the fleet takes under `random` with nine of ten first tokens within 2 s: 0.01 to 10.
    #[arg(long, value_name = "SHARE", value_parser = load, default_value = "0.75")]
    load: f64,
    /// Modelled replicas, 1 to 64.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64), default_value_t = 7)]
    replicas: u64,
    /// Routers that share nothing, 1 to 64; each request goes to one of them by chance.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64), default_value_t = 1)]
    routers: u64,
    /// Each run once for each of the seeds 1 to N, 1 to 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100), default_value_t = 5)]
    seeds: u64,
    /// Requests of each run, 100 to 10000000; without it, 8,000 to 36,000 as the workload needs, and more for more than 7 replicas. The first fifth is
    /// not measured.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    requests: Option<u64>,
    /// How old the engines' metrics may get, for rules that look at them; without it, as each of them publishes it.
    #[arg(long, value_name = "TIME", value_parser = metrics_age)]
    metrics_age: Option<Duration>,
    /// Requests come in bursts: 8 s at 2.2 times the rate, then 16 s at 0.4 times.
    #[arg(long)]
    bursty: bool,
    /// Two more replicas from a third of the run on, one less from two thirds on.
    #[arg(long)]
    elastic: bool,
    /// Search also for the highest rate at which nine of ten first tokens come within 2 s.
    #[arg(long)]
    capacity: bool,
    /// Folder with the Mooncake traces.
    #[arg(long, value_name = "DIR", default_value = "data/mooncake")]
    traces: PathBuf,
    /// Conversations for `chat`, in place of those that it is fitted to: a line each, `tokens of message,tokens of answer;…`.
    #[arg(long, value_name = "FILE")]
    sharegpt: Option<PathBuf>,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
    /// Make the tables of docs/placement.md, as Markdown. It takes about an hour and a half on two cores.
    #[arg(long, conflicts_with_all = ["workload", "strategy", "load", "replicas", "routers", "bursty", "elastic", "capacity", "json", "requests", "metrics_age", "sharegpt"])]
    suite: bool,
}

fn load(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.01..=10.0).contains(share)).ok_or("allowed: 0.01 to 10")
}

fn metrics_age(text: &str) -> Result<Duration, &'static str> {
    units::time(text).and_then(|age| if age >= Duration::from_millis(1) { Ok(age) } else { Err("allowed: 1ms and more") })
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    const ALLOWED: &str = "allowed: 100ms to 1m";
    let time = units::time(text).map_err(|_| ALLOWED)?;
    if (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&time) { Ok(time) } else { Err(ALLOWED) }
}

fn workload(name: &str) -> Result<Workload, String> {
    let known = Workload::ALL.iter().copied().find(|workload| workload.name() == name);
    let names = || Workload::ALL.iter().map(|workload| workload.name()).collect::<Vec<_>>().join(", ");
    known.ok_or_else(|| format!("allowed: {}", names()))
}

fn workloads() -> String {
    let all: Vec<_> = Workload::ALL.iter().map(|workload| format!("{}: {}", workload.name(), workload.about())).collect();
    format!("The kind of requests. {}", all.join("; "))
}

impl ConfigFlags {
    /// All sources of settings, the environment being that of the process.
    fn sources(self) -> Sources {
        let one = |name, key, value: Option<String>| value.map(|value| Flag { name, key, values: vec![value] });
        let replicas = (!self.replica.is_empty()).then_some(Flag { name: "--replica", key: "replicas", values: self.replica });
        let flags = [
            one("--listen", "listen", self.listen),
            one("--admin", "admin", self.admin),
            replicas,
            one("--strategy", "strategy", self.strategy),
            one("--prefix-length", "prefix_length", self.prefix_length),
            one("--concurrency-threshold", "concurrency_threshold", self.concurrency_threshold),
            one("--overflow", "overflow", self.overflow),
            one("--log-level", "log_level", self.log_level),
            one("--log-format", "log_format", self.log_format),
            one("--drain-timeout", "drain_timeout", self.drain_timeout),
        ];
        Sources { file: self.config, environment: std::env::vars_os().collect(), flags: flags.into_iter().flatten().collect() }
    }
}

fn serve(flags: ConfigFlags) -> ExitCode {
    let reading = match config::Reading::new(flags.sources()) {
        Ok(reading) => reading,
        Err(errors) => return complain(WRONG_USE, errors),
    };
    match app::run(reading) {
        Ok(()) => ExitCode::SUCCESS,
        // `{:#}` is the whole chain of causes.
        Err(error) => complain(FAILED, format_args!("error: {error:#}")),
    }
}

fn check(flags: ConfigFlags) -> ExitCode {
    match config::load(flags.sources()) {
        Ok(config) => match std::io::stdout().write_all(config.render().as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(FAILED, format_args!("error: cannot print the configuration: {error}")),
        },
        Err(errors) => complain(WRONG_USE, errors),
    }
}

/// Who asks the router that these flags name; else what to end with.
fn client(flags: RouterFlags) -> Result<console::Client, ExitCode> {
    let sources = ConfigFlags { config: flags.config, ..ConfigFlags::default() }.sources();
    let config = config::load_settings(sources).map_err(|errors| complain(WRONG_USE, errors))?;
    let url = match flags.url {
        Some(url) => url,
        None if config.admin.port() == 0 => return Err(complain(WRONG_USE, "error: admin has port 0; give --url")),
        None => healthcheck::ready_url(config.admin).trim_end_matches("/ready").to_owned(),
    };
    console::Client::new(&url, config.access.token).map_err(|error| complain(WRONG_USE, format_args!("error: --url: {error:#}")))
}

fn top(flags: TopFlags) -> ExitCode {
    let show = match (flags.once, flags.json) {
        (false, _) => console::Show::Live(flags.interval),
        (true, false) => console::Show::Once,
        (true, true) => console::Show::Json,
    };
    match client(flags.router).map(|client| console::top(&client, show)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => complain(FAILED, format_args!("error: {error:#}")),
        Err(code) => code,
    }
}

fn explain(flags: ExplainFlags) -> ExitCode {
    let ExplainFlags { router, body, path, identifier, json } = flags;
    match client(router).map(|client| console::explain(&client, &console::Question { body, path, identifier, json })) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => complain(FAILED, format_args!("error: {error:#}")),
        Err(code) => code,
    }
}

fn demo(flags: DemoFlags) -> ExitCode {
    let DemoFlags { seed, workload, replicas, seconds, json, serve, listen, admin } = flags;
    let replicas = replicas as usize;
    let done = if serve {
        // Neither files nor variables: it is the same for everybody.
        let flags = ConfigFlags { listen, admin, ..ConfigFlags::default() }.sources().flags;
        match config::load_settings(Sources { flags, ..Sources::default() }) {
            Ok(config) => demo::serve(replicas, config),
            Err(errors) => return complain(WRONG_USE, errors),
        }
    } else {
        demo::run(&demo::Options { seed, workload, replicas, seconds: seconds as f64 }, json)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(FAILED, format_args!("error: {error:#}")),
    }
}

fn simulate(flags: SimulateFlags) -> ExitCode {
    let read = simulate::modified(flags.workload, flags.bursty, flags.elastic)
        .and_then(|workloads| Ok((workloads, simulate::strategies(&flags.strategy)?)));
    let (workloads, strategies) = match read {
        Ok(read) => read,
        Err(error) => return complain(WRONG_USE, format_args!("error: {error}")),
    };
    let options = simulate::Options {
        workloads,
        strategies,
        load: flags.load,
        replicas: flags.replicas as usize,
        routers: flags.routers as usize,
        seeds: flags.seeds,
        requests: flags.requests.map(|requests| requests as usize),
        metrics_age: flags.metrics_age,
        capacity: flags.capacity,
        traces: flags.traces,
        sharegpt: flags.sharegpt,
    };
    let show = match (flags.suite, flags.json) {
        (true, _) => simulate::Show::Suite,
        (false, true) => simulate::Show::Json,
        (false, false) => simulate::Show::Table,
    };
    match simulate::run(&options, show) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(FAILED, format_args!("error: {error:#}")),
    }
}

fn healthcheck(url: Option<String>, flags: ConfigFlags) -> ExitCode {
    let url = match url {
        Some(url) => url,
        None => match config::load_settings(flags.sources()) {
            // A port that the router chose by itself is not in any configuration.
            Ok(config) if config.admin.port() == 0 => return complain(FAILED, "admin has port 0; give --url"),
            Ok(config) => healthcheck::ready_url(config.admin),
            Err(errors) => return complain(FAILED, errors),
        },
    };
    match healthcheck::ask(&url, healthcheck::PATIENCE) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => complain(FAILED, format_args!("{url}: {why}")),
    }
}

fn demo_replica(listen: SocketAddr, model: Option<String>, file: Option<PathBuf>) -> ExitCode {
    let mut settings = match file.map(|file| demo_replica::Settings::read(&file)).transpose() {
        Ok(settings) => settings.unwrap_or_default(),
        Err(error) => return complain(WRONG_USE, format_args!("error: {error}")),
    };
    if let Some(model) = model {
        settings.model = model;
    }
    if let Some(problem) = settings.problem() {
        return complain(WRONG_USE, format_args!("error: --model: {problem}"));
    }
    let served = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            let mut stop = app::StopSignals::new()?;
            let replica = demo_replica::start(TcpListener::bind(listen).await?, settings)?;
            writeln!(std::io::stdout(), "simulated replica: listening on http://{}", replica.address())?;
            stop.next().await;
            replica.stop().await;
            Ok(())
        })
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(FAILED, format_args!("error: cannot serve on {listen}: {error:#}")),
    }
}

/// Says `what` on stderr. Not by `eprintln!`, which panics where stderr is closed.
fn complain(code: u8, what: impl std::fmt::Display) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{what}");
    ExitCode::from(code)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from([&["prefix-router"], args].concat())
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_sets_a_key_and_has_its_help() {
        let line = "serve --listen a --admin b --replica c --replica d --strategy e --prefix-length -1 \
                    --concurrency-threshold 0 --overflow g --log-level h --log-format i --drain-timeout j";
        let Command::Serve(flags) = parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap().command else {
            panic!("not serve");
        };
        let flags = flags.sources().flags;
        let serve = Cli::command().find_subcommand("serve").unwrap().clone();
        for argument in serve.get_arguments().filter(|argument| !["config", "help"].contains(&argument.get_id().as_str())) {
            assert!(argument.get_help().is_some_and(|help| !help.to_string().is_empty()), "{argument}");
        }
        let sources = Sources { flags: flags.clone(), ..Sources::default() };
        let errors = config::load(sources).unwrap_err().to_string();
        for flag in &flags {
            assert!(errors.contains(&format!("{}: ", flag.name)), "{} is not read:\n{errors}", flag.name);
        }
        assert!(errors.contains("--prefix-length: -1 is out of range; allowed: auto, or 1024 to 65536"), "{errors}");
    }

    #[test]
    fn wrong_use_is_refused() {
        for args in [&["serve", "--prefix-lenght", "4096"][..], &["run"], &[], &["check", "file.yaml"]] {
            assert_eq!(parse(args).unwrap_err().exit_code(), 2, "{args:?}");
        }
    }
}
