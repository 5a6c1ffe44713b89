//! The simulated engine at work: the model's steps in real time, and whoever waits for tokens.
//!
//! It speaks no HTTP, and decides nothing about batches and caches: that is `sim::replica`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{Notify, mpsc};
use tokio::time::{Duration, Instant, sleep_until};

use crate::sim::blocks;
use crate::sim::replica::{Counts, Progress, ReplicaModel, Request, Settings};

/// How far the model's time may be behind the clock, where timers are late, before the rest is given up. A step is then longer than the model
/// says, as on a host that is too slow for its engine.
const MOST_LAG: Duration = Duration::from_millis(20);

/// An engine that takes requests. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Somebody has come.
    arrival: Notify,
    /// Steps take another time than before.
    pace: Notify,
}

struct State {
    model: ReplicaModel,
    waiting: HashMap<u64, Waiting>,
    next_id: u64,
    /// How many times as long steps take as the model says.
    slowness: f64,
    /// What drives it has panicked: nobody gets any more tokens.
    broken: bool,
}

struct Waiting {
    admitted: Instant,
    outputs: mpsc::UnboundedSender<Output>,
}

/// What an engine has come up with for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Tokens of the answer so far.
    pub generated: usize,
    /// Tokens of the prompt that were found in the cache.
    pub cached_tokens: usize,
    /// That was all.
    pub finished: bool,
    /// When it left the queue.
    pub admitted: Instant,
    /// When this was ready.
    pub at: Instant,
}

/// A request's way through the engine. Dropping it takes the request out at once.
pub struct Generation {
    id: u64,
    outputs: mpsc::UnboundedReceiver<Output>,
    engine: Engine,
}

impl Engine {
    /// An idle engine, and what drives it: to be spawned, and aborted to stop it. `settings` must be without problem. `on_step` is told of
    /// each step how many tokens it computes.
    pub fn new<F: Fn(usize) + Send>(settings: Settings, on_step: F) -> (Self, impl Future<Output = ()> + Send + use<F>) {
        let state = State { model: ReplicaModel::new(settings), waiting: HashMap::new(), next_id: 0, slowness: 1.0, broken: false };
        let engine = Self { shared: Arc::new(Shared { state: Mutex::new(state), arrival: Notify::new(), pace: Notify::new() }) };
        let driver = engine.clone();
        (engine, async move { driver.run(on_step).await })
    }

    /// Asks for the answer `output` to `prompt`. Nothing where both together are longer than the engine takes, the prompt is empty, or the engine
    /// is broken.
    pub fn submit(&self, prompt: &[u32], output: &[u32], salt: Option<&str>) -> Option<Generation> {
        self.submit_all(&[(prompt, output)], salt)?.pop()
    }

    /// The same for several prompts and their answers, between the same two steps. Nothing where one of them cannot be taken.
    pub fn submit_all(&self, orders: &[(&[u32], &[u32])], salt: Option<&str>) -> Option<Vec<Generation>> {
        let settings = self.settings();
        if !orders.iter().all(|(prompt, output)| settings.can_run(prompt.len(), output.len())) {
            return None;
        }
        // Hashing takes a moment, so it does not hold up the engine.
        let hashed: Vec<_> = orders
            .iter()
            .map(|(prompt, output)| blocks::hashes(prompt.iter().chain(*output).copied(), settings.block_size, salt))
            .collect();
        let mut generations = Vec::with_capacity(orders.len());
        let mut state = self.state();
        if state.broken {
            return None;
        }
        for ((prompt, output), blocks) in orders.iter().zip(hashed) {
            let (sender, outputs) = mpsc::unbounded_channel();
            let id = state.next_id;
            state.model.enqueue(Request { id, prompt_tokens: prompt.len(), output_tokens: output.len(), blocks }).ok()?;
            state.next_id += 1;
            state.waiting.insert(id, Waiting { admitted: Instant::now(), outputs: sender });
            generations.push(Generation { id, outputs, engine: self.clone() });
        }
        drop(state);
        self.shared.arrival.notify_one();
        Some(generations)
    }

    /// How it was started.
    pub fn settings(&self) -> Settings {
        self.state().model.settings().clone()
    }

    /// Its counters and state.
    pub fn counts(&self) -> Counts {
        self.state().model.counts()
    }

    /// Empties its cache. Says no while a request runs.
    pub fn reset_cache(&self) -> bool {
        self.state().model.reset_cache()
    }

    /// From now on, steps take `factor` times as long as the model says; so does what is left of the one under way.
    pub fn slow_down(&self, factor: f64) {
        self.state().slowness = factor;
        self.shared.pace.notify_one();
    }

    /// It has failed, and answers nobody any more.
    pub fn is_broken(&self) -> bool {
        self.state().broken
    }

    async fn run(self, on_step: impl Fn(usize)) {
        let _in_case = InCaseOfPanic(&self);
        let mut now = Instant::now();
        loop {
            let started = {
                let mut state = self.state();
                let step = state.model.start_step();
                for id in step.iter().flat_map(|step| &step.admitted) {
                    if let Some(waiting) = state.waiting.get_mut(id) {
                        waiting.admitted = now;
                    }
                }
                step.map(|step| (step, state.slowness))
            };
            let Some((step, slowness)) = started else {
                self.shared.arrival.notified().await;
                now = Instant::now();
                continue;
            };
            on_step(step.tokens);
            // The model's time, not the timer's: late wake-ups do not add up.
            let due = (now + step.length.mul_f64(slowness)).max(Instant::now() - MOST_LAG);
            now = self.wait(due, slowness).await;
            self.finish_step(now);
        }
    }

    /// Waits for the end of a step that is `due` at this `slowness`, or at the time that comes of it where that changes.
    async fn wait(&self, mut due: Instant, mut slowness: f64) -> Instant {
        loop {
            tokio::select! {
                () = sleep_until(due) => return due,
                () = self.shared.pace.notified() => {
                    let (now, before) = (Instant::now(), slowness);
                    slowness = self.state().slowness;
                    due = due.min(now) + due.saturating_duration_since(now).div_f64(before).mul_f64(slowness);
                }
            }
        }
    }

    fn finish_step(&self, at: Instant) {
        let mut state = self.state();
        for Progress { id, generated, cached_tokens, finished } in state.model.finish_step() {
            let Some(waiting) = state.waiting.get(&id) else { continue };
            // Whoever no longer listens takes the request out by itself.
            let _ = waiting.outputs.send(Output { generated, cached_tokens, finished, admitted: waiting.admitted, at });
            if finished {
                state.waiting.remove(&id);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What panics while it holds this lock breaks the engine, which is told.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells everybody who waits that nothing comes any more, where what drives the engine panics. Where it is aborted, the server goes as well.
struct InCaseOfPanic<'a>(&'a Engine);

impl Drop for InCaseOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state();
            state.broken = true;
            state.waiting.clear();
        }
    }
}

impl Generation {
    /// What is next; nothing after the last, or where the engine is broken.
    pub async fn next(&mut self) -> Option<Output> {
        self.outputs.recv().await
    }

    /// The same, to be polled.
    pub fn poll_next(&mut self, polled: &mut Context<'_>) -> Poll<Option<Output>> {
        self.outputs.poll_recv(polled)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let mut state = self.engine.state();
        if state.waiting.remove(&self.id).is_some() {
            state.model.abort(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::cost::Cost;

    /// Steps of exactly 10 ms, whatever they do.
    fn start() -> Engine {
        let cost = Cost { step: 0.01, prefill_token: 0.0, prefill_context: 0.0, decode_sequence: 0.0, decode_context_token: 0.0 };
        let (engine, driver) =
            Engine::new(Settings { blocks: 100, step_tokens: 64, max_model_len: 1_000, cost, ..Settings::default() }, |_| {});
        tokio::spawn(driver);
        engine
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_come_when_the_model_says() {
        let engine = start();
        let begun = Instant::now();
        let prompt: Vec<u32> = (0..100).collect();
        let mut generation = engine.submit(&prompt, &[1, 2, 3], None).expect("it fits");
        let mut seen = Vec::new();
        while let Some(output) = generation.next().await {
            seen.push((output.generated, output.finished, begun.elapsed().as_millis()));
        }
        // Two steps for the prompt; the second one brings the first token.
        assert_eq!(seen, [(1, false, 20), (2, false, 30), (3, true, 40)]);
        assert!(engine.submit(&[], &[1], None).is_none());
        assert!(engine.submit(&[1; 1_000], &[1], None).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn another_pace_holds_at_once() {
        let engine = start();
        engine.slow_down(1_000.0);
        let begun = Instant::now();
        let mut generation = engine.submit(&[1; 10], &[1, 2], None).expect("it fits");
        // A step of ten seconds, of which half is left.
        tokio::time::sleep(Duration::from_secs(5)).await;
        engine.slow_down(1.0);
        generation.next().await.expect("a token");
        assert_eq!(begun.elapsed().as_millis(), 5_005);
        generation.next().await.expect("a token");
        assert_eq!(begun.elapsed().as_millis(), 5_015);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_broken_engine_is_told() {
        let (engine, driver) = Engine::new(Settings::default(), |_| panic!("as if a step had failed"));
        let mut generation = engine.submit(&[1; 10], &[1, 2], None).expect("it fits");
        assert!(!engine.is_broken());
        assert!(tokio::spawn(driver).await.is_err());
        assert_eq!(generation.next().await, None);
        assert!(engine.is_broken() && engine.submit(&[1; 10], &[1, 2], None).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_is_taken_out_at_once() {
        let engine = start();
        let mut one = engine.submit(&[1; 50], &[1; 500], None).expect("it fits");
        let other = engine.submit(&[2; 50], &[1; 500], None).expect("it fits");
        one.next().await.expect("a token");
        assert_eq!(engine.counts().running, 2);
        drop(one);
        assert_eq!(engine.counts().running, 1);
        drop(other);
        assert_eq!((engine.counts().running, engine.counts().blocks_held), (0, 0));
        assert!(engine.reset_cache());
    }
}
