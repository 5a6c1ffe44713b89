//! The event loop: routers and engines on virtual time, from the first request to the end of the last.
//!
//! Whole nanoseconds, one event after the other, in an order that nothing but the scenario decides.

mod failure;
mod holding;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission::{self, Hold};
use crate::fleet::{Lease, Outcome, Trial};
use crate::request::{Ask, Boundaries, Placement, Usage};
use crate::routing::{Aim, Chooser, Forecast};
use crate::sim::chance::Chance;
use crate::sim::prompt::Prompt;
use crate::sim::replica::{Progress, ReplicaModel, Request};
use crate::sim::report::Sample;
use crate::sim::router::{Chosen, Router, World};
use crate::sim::rule::{Asked, Engine, Moment, Rule, Seen};
use crate::sim::scenario::{Run, Scenario};
use crate::sim::strategy::How;
use crate::sim::workload::{Starts, Traffic, arrivals};

/// Between a client and an engine, there and back: added to every time that a client measures.
const NETWORK: Duration = Duration::from_millis(15);

/// How old the metrics may get that a router asks for.
const SCRAPED: Duration = Duration::from_secs(1);

/// Between two checks of a replica that failed.
const CHECK: Duration = Duration::from_secs(1);

/// For so long after its return a replica is checked.
const CHECKED: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next turn of a conversation.
    Ask(usize),
    ScaleOut,
    ScaleIn,
    Death,
    Return,
    Check(Moment),
    /// A router looks at the metrics.
    Look(usize),
}

/// A conversation under way.
#[derive(Default)]
struct Live {
    prompt: Option<Prompt>,
    turn: usize,
}

/// A request.
struct Flight {
    conversation: usize,
    router: usize,
    arrived: Moment,
    /// When it was sent last.
    sent: Moment,
    prompt_tokens: usize,
    /// While it is in flight.
    lease: Option<Lease>,
    trial: Option<Trial>,
    aim: Aim,
    replica: usize,
    overflow: bool,
    forecast: Option<Box<Forecast>>,
    cached_tokens: usize,
    first_token: Option<Moment>,
    ended: Option<Moment>,
    output_tokens: usize,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    traffic: &'a Traffic,
    epoch: Instant,
    now: Moment,
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    /// Events so far: of two at one moment the one made first comes first.
    made: u64,
    routers: Vec<Router>,
    /// One for each router, or one for all.
    rules: Vec<Box<dyn Rule>>,
    engines: Vec<Engine>,
    live: Vec<Live>,
    flights: Vec<Flight>,
    /// Which router gets a request.
    chance: Chance,
    /// The next conversation of a closed loop.
    waiting: usize,
    last_start: Moment,
    failed: usize,
    open: usize,
    cold: usize,
    /// All others.
    measured: usize,
    work: Vec<(usize, f64)>,
    late: usize,
    changed: Option<Moment>,
    /// Clears up what a step made.
    progress: Vec<Progress>,
    /// Whom each router holds back, and by what rules.
    held: Vec<Hold<usize>>,
    admission: admission::Settings,
}

/// Simulates `traffic`. What the core takes for the time is counted from `epoch`, which changes nothing.
pub fn run(scenario: &Scenario, traffic: &Traffic, epoch: Instant) -> Run {
    let mut simulation = Simulation::new(scenario, traffic, epoch);
    let gave_up = !simulation.play();
    simulation.end(gave_up)
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, traffic: &'a Traffic, epoch: Instant) -> Self {
        let routers = scenario.routers.max(1);
        let (chooser, peer) = match &scenario.strategy.how {
            How::Production(routing) => (Some(routing), None),
            How::Peer(peer) => (None, Some(*peer)),
        };
        let requests = traffic.requests();
        let cold = (requests as f64 * crate::sim::report::COLD) as usize;
        let rules = peer.map_or(0, |peer| if peer.knows_all() { 1 } else { routers });
        let mut simulation = Self {
            scenario,
            traffic,
            epoch,
            now: 0,
            events: BinaryHeap::new(),
            made: 0,
            routers: (0..routers)
                .map(|number| {
                    let chance = Chance::new(scenario.seed, 1_000 + number as u64);
                    Router::new(scenario.replicas, scenario.seed, chooser.map(Chooser::new), chance, epoch)
                })
                .collect(),
            rules: (0..rules).filter_map(|_| peer.map(|peer| peer.rule(&scenario.engine))).collect(),
            engines: Vec::new(),
            live: Vec::new(),
            flights: Vec::with_capacity(requests),
            chance: Chance::new(scenario.seed, 2),
            waiting: 0,
            last_start: 0,
            failed: 0,
            open: 0,
            cold,
            measured: requests - cold,
            work: Vec::new(),
            late: 0,
            changed: None,
            progress: Vec::new(),
            held: (0..routers).map(|_| Hold::default()).collect(),
            admission: admission::Settings::default(),
        };
        simulation.live.resize_with(traffic.conversations.len(), Live::default);
        (0..scenario.replicas).for_each(|_| simulation.add_engine());
        simulation.schedule();
        if simulation.metrics_age().is_some() {
            (0..routers).for_each(|router| simulation.at(0, Event::Look(router)));
        }
        simulation
    }

    /// Puts down what is known from the start.
    fn schedule(&mut self) {
        let (scenario, traffic) = (self.scenario, self.traffic);
        let count = traffic.conversations.len();
        let rate = scenario.rate * count as f64 / traffic.requests() as f64;
        let starts = arrivals::starts(traffic.starts, count, rate, &mut Chance::new(scenario.seed, 1));
        let moments: Vec<Moment> = starts.iter().map(|&seconds| (seconds * 1e9) as Moment).collect();
        for (conversation, &moment) in moments.iter().enumerate() {
            self.at(moment, Event::Ask(conversation));
        }
        self.waiting = moments.len();
        self.last_start = moments.last().copied().unwrap_or(0);
        if scenario.elastic {
            self.at(self.last_start / 3, Event::ScaleOut);
            self.at(self.last_start / 3 * 2, Event::ScaleIn);
        }
        if let Some(failure) = scenario.failure {
            let death = (self.last_start as f64 * failure.at) as Moment;
            self.at(death, Event::Death);
            self.at(death + nanos(failure.lasts), Event::Return);
            let until = death + nanos(failure.lasts + CHECKED);
            self.at(death + nanos(CHECK), Event::Check(until));
        }
    }

    fn at(&mut self, moment: Moment, event: Event) {
        self.made += 1;
        self.events.push(Reverse((moment, self.made, event)));
    }

    fn add_engine(&mut self) {
        let model = ReplicaModel::new(self.scenario.engine.clone());
        self.engines.push(Engine { model, step_ends: None, is_up: true, requests: 0 });
    }

    fn instant(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.now)
    }

    /// Plays it to its end, or until it is certain that it is too slow: then it says no.
    fn play(&mut self) -> bool {
        loop {
            let step = self.engines.iter().enumerate().filter_map(|(number, engine)| Some((engine.step_ends?, number))).min();
            let next = self.events.peek().map(|Reverse((moment, ..))| *moment);
            match (next, step) {
                (Some(next), step) if step.is_none_or(|(end, _)| next <= end) => {
                    if let Some(Reverse((moment, _, event))) = self.events.pop() {
                        self.now = moment;
                        self.happen(event);
                    }
                }
                (_, Some((end, engine))) => {
                    self.now = end;
                    self.end_step(engine);
                }
                _ => return true,
            }
            if self.is_too_slow() {
                return false;
            }
        }
    }

    /// More than a tenth of all that may be measured had to wait too long.
    fn is_too_slow(&self) -> bool {
        self.late > self.measured / 10 + 1
    }

    fn happen(&mut self, event: Event) {
        let instant = self.instant();
        match event {
            Event::Ask(conversation) => self.ask(conversation),
            Event::ScaleOut => {
                (0..2).for_each(|_| self.add_engine());
                let all: Vec<usize> = (0..self.engines.len()).collect();
                self.routers.iter_mut().for_each(|router| router.adopt(&all, instant));
            }
            Event::ScaleIn => {
                // Not the first, which is where a list begins, nor the newest.
                let leaver = 2.min(self.scenario.replicas - 1);
                let rest: Vec<usize> = (0..self.engines.len()).filter(|&number| number != leaver).collect();
                self.routers.iter_mut().for_each(|router| router.adopt(&rest, instant));
            }
            Event::Death => self.die(),
            Event::Return => {
                if let Some(failure) = self.scenario.failure {
                    self.engines[failure.replica].is_up = true;
                }
            }
            Event::Check(until) => {
                if let Some(failure) = self.scenario.failure {
                    let up = self.engines[failure.replica].is_up;
                    let outcome = if up { Outcome::CheckPassed } else { Outcome::CheckFailed };
                    self.routers.iter_mut().for_each(|router| router.observe(failure.replica, outcome, instant));
                }
                if self.now < until {
                    self.at(self.now + nanos(CHECK), Event::Check(until));
                }
            }
            Event::Look(router) => self.look(router),
        }
    }

    /// A router looks at the engines' metrics; and will again, as long as there is anything to do.
    fn look(&mut self, router: usize) {
        let seen = |engine: &Engine| {
            let counts = engine.model.counts();
            let kv_usage = counts.blocks_held as f64 / counts.blocks as f64;
            Seen { running: counts.running, waiting: counts.waiting, kv_usage, taken_at: self.now }
        };
        self.routers[router].seen = self.engines.iter().map(seen).collect();
        let instant = self.instant();
        self.routers[router].hear(&self.engines, instant);
        self.release(router);
        let goes_on = self.open > 0 || self.events.iter().any(|Reverse((.., event))| matches!(event, Event::Ask(_)));
        if let Some(age) = self.metrics_age().filter(|_| goes_on) {
            self.at(self.now + nanos(age).max(1), Event::Look(router));
        }
    }

    /// How old metrics may get, for a rule that looks at them.
    fn metrics_age(&self) -> Option<Duration> {
        let usual = match &self.scenario.strategy.how {
            How::Peer(peer) => peer.metrics_age(),
            How::Production(_) => (self.scenario.strategy.told.metrics && self.routers.iter().any(Router::wants_chunks)).then_some(SCRAPED),
        };
        usual.map(|usual| self.scenario.metrics_age.unwrap_or(usual))
    }

    /// A conversation's next turn is sent.
    fn ask(&mut self, conversation: usize) {
        let (traffic, block_size) = (self.traffic, self.scenario.engine.block_size);
        let content = &traffic.conversations[conversation];
        let live = &mut self.live[conversation];
        let turn = &content.turns[live.turn];
        let prompt_tokens = match &mut live.prompt {
            Some(prompt) => {
                prompt.extend(&turn.prompt);
                prompt.tokens()
            }
            none => none.insert(Prompt::new(content, block_size)).tokens(),
        };
        let Some(prompt) = &live.prompt else { return };
        let router = self.chance.below(self.routers.len());
        let ask = Ask {
            placement: Placement::ByKey(prompt.boundaries(self.scenario.strategy.prefix_length())),
            chunks: self.routers[router].wants_chunks().then(|| Arc::new(prompt.chunks(block_size))),
            streams: true,
            ..Ask::default()
        };
        let aim = self.routers[router].aim(&ask);
        if traffic.changed_at == Some(conversation) {
            self.changed.get_or_insert(self.now);
        }
        let id = self.flights.len();
        if id == self.cold {
            self.work = self.work_so_far();
        }
        self.flights.push(Flight {
            conversation,
            router,
            arrived: self.now,
            sent: self.now,
            prompt_tokens,
            lease: None,
            trial: None,
            aim,
            replica: 0,
            overflow: false,
            forecast: None,
            cached_tokens: 0,
            first_token: None,
            ended: None,
            output_tokens: turn.answer.tokens,
        });
        self.open += 1;
        self.hold(id);
    }

    /// Sends a request to whom its router chooses, who is none of `tried`.
    fn send(&mut self, id: usize, mut tried: Vec<usize>) {
        self.flights[id].sent = self.now;
        let (instant, block_size) = (self.instant(), self.scenario.engine.block_size);
        loop {
            let flight = &self.flights[id];
            let Some(prompt) = &self.live[flight.conversation].prompt else { return };
            let boundaries =
                if self.rules.is_empty() { Boundaries::new() } else { prompt.boundaries(self.scenario.strategy.prefix_length()) };
            let full = flight.prompt_tokens / block_size;
            let asked = Asked { id, tokens: flight.prompt_tokens, blocks: &prompt.blocks()[..full], block_size, boundaries: &boundaries };
            let rules = self.rules.len().max(1);
            let rule = self.rules.get_mut(flight.router % rules);
            let world = World { engines: &self.engines, routers: self.routers.len(), now: self.now, instant };
            let chosen = self.routers[flight.router].choose(&flight.aim, &asked, rule, &tried, &world);
            let Some(Chosen { lease, trial, replica, overflow, forecast }) = chosen else { return self.fail(id) };
            if self.engines[replica].is_up {
                let flight = &mut self.flights[id];
                (flight.replica, flight.overflow, flight.lease, flight.trial) = (replica, overflow, Some(lease), trial);
                flight.forecast = forecast;
                return self.enqueue(id, replica);
            }
            // Nobody is there: the connection is refused at once.
            drop(lease);
            self.over_for_the_rule(id, replica);
            let router = self.flights[id].router;
            self.routers[router].observe(replica, Outcome::ConnectFailed, instant);
            tried.push(replica);
        }
    }

    fn enqueue(&mut self, id: usize, replica: usize) {
        let flight = &self.flights[id];
        let (turn, output_tokens) = (self.live[flight.conversation].turn, flight.output_tokens);
        let answer = self.traffic.conversations[flight.conversation].turns[turn].answer;
        let Some(prompt) = &mut self.live[flight.conversation].prompt else { return };
        prompt.answer(answer);
        let blocks = prompt.blocks().to_vec();
        let request = Request { id: id as u64, prompt_tokens: flight.prompt_tokens, output_tokens, blocks };
        let engine = &mut self.engines[replica];
        engine.requests += 1;
        if engine.model.enqueue(request).is_err() {
            self.over_for_the_rule(id, replica);
            return self.fail(id);
        }
        if engine.step_ends.is_none() {
            self.start_step(replica);
        }
    }

    fn start_step(&mut self, replica: usize) {
        let engine = &mut self.engines[replica];
        engine.step_ends = engine.model.start_step().map(|step| self.now + nanos(step.length));
    }

    fn end_step(&mut self, replica: usize) {
        let mut progress = std::mem::take(&mut self.progress);
        self.engines[replica].model.finish_step_into(&mut progress);
        let mut began = false;
        for one in progress.drain(..) {
            if one.generated == 1 {
                began = true;
                self.first_token(one.id as usize, one.cached_tokens);
            }
            if one.finished {
                self.finish(one.id as usize);
            }
        }
        self.progress = progress;
        if began {
            (0..self.routers.len()).for_each(|router| self.release(router));
        }
        self.start_step(replica);
    }

    fn first_token(&mut self, id: usize, cached: usize) {
        let instant = self.instant();
        let flight = &mut self.flights[id];
        (flight.first_token, flight.cached_tokens, flight.trial) = (Some(self.now), cached, None);
        if let Some(lease) = &mut flight.lease {
            self.routers[flight.router].first_byte(lease, instant);
        }
        let took = Duration::from_nanos(self.now - flight.arrived) + NETWORK;
        if let Some(forecast) = &flight.forecast {
            let sent = Duration::from_nanos(self.now - flight.sent) + NETWORK;
            self.routers[flight.router].began(forecast, sent);
        }
        let is_measured = id >= self.cold && (flight.arrived <= self.last_start || self.is_closed());
        if is_measured && self.scenario.give_up.is_some_and(|most| took >= most) {
            self.late += 1;
        }
        let (router, replica) = (self.flights[id].router, self.flights[id].replica);
        if let Some(rule) = self.rule(router) {
            rule.first_token(id, replica, cached);
        }
    }

    fn finish(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        flight.ended = Some(self.now);
        if let (Some(forecast), Some(lease), Some(first)) = (&flight.forecast, &flight.lease, flight.first_token) {
            let usage = Usage {
                prompt_tokens: flight.prompt_tokens as u64,
                cached_tokens: self.scenario.strategy.told.usage.then_some(flight.cached_tokens as u64),
                completion_tokens: Some(flight.output_tokens as u64),
            };
            self.routers[flight.router].answered(forecast, &usage, Duration::from_nanos(self.now - first), lease);
        }
        (flight.lease, flight.forecast) = (None, None);
        let (conversation, router, replica) = (flight.conversation, flight.router, flight.replica);
        if let Some(rule) = self.rule(router) {
            rule.ended(id, replica);
        }
        self.open -= 1;
        let turns = &self.traffic.conversations[conversation].turns;
        let live = &mut self.live[conversation];
        live.turn += 1;
        match turns.get(live.turn) {
            Some(next) => self.at(self.now + nanos(next.pause), Event::Ask(conversation)),
            None => self.next_conversation(conversation),
        }
    }

    /// A conversation is over; who was in a closed loop begins the next.
    fn next_conversation(&mut self, over: usize) {
        self.live[over].prompt = None;
        if self.is_closed() && self.waiting < self.traffic.conversations.len() {
            self.waiting += 1;
            self.at(self.now, Event::Ask(self.waiting - 1));
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.traffic.starts, Starts::Closed(_))
    }

    /// A request has no answer, and its conversation no further turn.
    fn fail(&mut self, id: usize) {
        let flight = &mut self.flights[id];
        (flight.lease, flight.forecast) = (None, None);
        let conversation = flight.conversation;
        self.open -= 1;
        self.failed += self.traffic.conversations[conversation].turns.len() - self.live[conversation].turn;
        self.next_conversation(conversation);
    }

    fn over_for_the_rule(&mut self, id: usize, replica: usize) {
        let flight = &self.flights[id];
        let (router, began) = (flight.router, flight.first_token.is_some());
        if let Some(rule) = self.rule(router) {
            if !began {
                rule.first_token(id, replica, 0);
            }
            rule.ended(id, replica);
        }
    }

    fn rule(&mut self, router: usize) -> Option<&mut Box<dyn Rule>> {
        let rules = self.rules.len().max(1);
        self.rules.get_mut(router % rules)
    }

    fn work_so_far(&self) -> Vec<(usize, f64)> {
        self.engines.iter().map(|engine| (engine.requests, engine.model.prefill_seconds())).collect()
    }

    fn end(self, gave_up: bool) -> Run {
        let zero = (0, 0.0);
        let before = |replica: usize| self.work.get(replica).copied().unwrap_or(zero);
        let work = self.work_so_far().into_iter().enumerate();
        let work = work.map(|(replica, (requests, seconds))| (requests - before(replica).0, seconds - before(replica).1)).collect();
        let samples = self.flights.iter().filter_map(|flight| {
            Some(Sample {
                start: Duration::from_nanos(flight.arrived),
                first_token: Duration::from_nanos(flight.first_token? - flight.arrived) + NETWORK,
                total: Duration::from_nanos(flight.ended? - flight.arrived) + NETWORK,
                prompt_tokens: flight.prompt_tokens,
                cached_tokens: flight.cached_tokens,
                replica: flight.replica,
                overflow: flight.overflow,
            })
        });
        let last_start = Duration::from_nanos(self.last_start);
        Run {
            samples: samples.collect(),
            failed: self.failed,
            requests: self.traffic.requests(),
            replicas: self.scenario.replicas,
            last_start: (!self.is_closed()).then_some(last_start),
            work,
            scaled: self.scenario.elastic.then_some([last_start / 3, last_start / 3 * 2]),
            changed: self.changed.map(Duration::from_nanos),
            preemptions: self.engines.iter().map(|engine| engine.model.counts().preemptions).sum(),
            left: if gave_up { 0 } else { self.routers.iter().map(Router::outstanding).sum() },
            gave_up,
        }
    }
}

fn nanos(duration: Duration) -> Moment {
    duration.as_nanos() as Moment
}
