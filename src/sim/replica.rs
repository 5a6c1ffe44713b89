//! A model of a vLLM engine: its queue, its batches and its prefix cache.
//!
//! It follows vLLM 0.32's scheduler: one queue in the order of arrival, prompts in chunks beside tokens that are generated, a bound on the
//! tokens of a step, and, where blocks run out, the youngest sequence starts again. It has no clock: a step says how long it takes, and ends
//! when the caller says so. It computes no answers; they are given with the request.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::blocks::BlockHash;
use super::cache::{Cache, Place};
use super::cost::{Cost, Work};

/// An engine as it is started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Tokens in a block of the cache.
    pub block_size: usize,
    /// Blocks of the cache; vLLM keeps one of them for itself.
    pub blocks: usize,
    /// Tokens that one step may compute.
    pub step_tokens: usize,
    /// Sequences that run at one time.
    pub max_sequences: usize,
    /// Tokens that a prompt and its answer may have together.
    pub max_model_len: usize,
    /// How long steps take.
    pub cost: Cost,
}

impl Default for Settings {
    fn default() -> Self {
        Self { block_size: 16, blocks: 75_000, step_tokens: 8_192, max_sequences: 256, max_model_len: 131_072, cost: Cost::default() }
    }
}

impl Settings {
    /// Whether a request of that many tokens can ever run: its prompt is not empty, and both together are no longer than the model takes.
    pub fn can_run(&self, prompt_tokens: usize, output_tokens: usize) -> bool {
        prompt_tokens > 0 && prompt_tokens + output_tokens <= self.max_model_len
    }

    /// What is wrong with these settings, if anything: each a name, the value, and what is allowed.
    pub fn problem(&self) -> Option<String> {
        let counts = [
            ("block_size", self.block_size, 1, 1_024),
            ("blocks", self.blocks, 2, 1 << 24),
            ("step_tokens", self.step_tokens, 1, 1 << 24),
            ("max_sequences", self.max_sequences, 1, 1 << 16),
            ("max_model_len", self.max_model_len, 1, 1 << 24),
        ];
        if let Some((name, value, least, most)) = counts.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            return Some(format!("{name}: {value} is out of range; allowed: {least} to {most}"));
        }
        let cache = (self.blocks - 1) * self.block_size;
        if self.max_model_len > cache {
            return Some(format!(
                "max_model_len: {} is more than the cache's {cache} tokens ((blocks - 1) x block_size)",
                self.max_model_len
            ));
        }
        self.cost.problem()
    }
}

/// What an engine is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whoever asks knows it by this. Not used twice.
    pub id: u64,
    /// Tokens of the prompt; at least 1.
    pub prompt_tokens: usize,
    /// Tokens of the answer; none where the prompt alone is to be computed (embeddings).
    pub output_tokens: usize,
    /// The full blocks of prompt and answer.
    pub blocks: Vec<BlockHash>,
}

/// A step under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How long it takes.
    pub length: Duration,
    /// Tokens that it computes.
    pub tokens: usize,
    /// Who left the queue for it, in order; also those who come back after they had to make room.
    pub admitted: Vec<u64>,
}

/// What came of a step, for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whose.
    pub id: u64,
    /// Tokens of the answer so far; no more than one is new.
    pub generated: usize,
    /// Tokens of the prompt that were found in the cache when it was first looked for.
    pub cached_tokens: usize,
    /// That was all.
    pub finished: bool,
}

/// What an engine has counted since it was started, and its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of prompts that were looked up in the cache.
    pub queried_tokens: u64,
    /// Tokens of them that were found.
    pub hit_tokens: u64,
    /// Tokens computed or generated in all steps.
    pub step_tokens: u64,
    /// Steps.
    pub steps: u64,
    /// Sequences that had to start again.
    pub preemptions: u64,
    /// Requests in the batch.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Blocks that running sequences hold.
    pub blocks_held: usize,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whose.
    pub id: u64,
    /// Tokens that it has: its prompt, and of its answer so far.
    pub tokens: usize,
    /// Those of them that are computed, or were found in the cache.
    pub computed: usize,
    /// It is in the batch, not in the queue.
    pub runs: bool,
}

/// An engine's state.
#[derive(Debug)]
pub struct ReplicaModel {
    settings: Settings,
    cache: Cache,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    counts: Counts,
    prefill_seconds: f64,
}

#[derive(Debug)]
struct Sequence {
    request: Request,
    /// Blocks that it holds, from its beginning.
    held: Vec<Place>,
    /// How many of them are known to the cache.
    stored: usize,
    computed: usize,
    generated: usize,
    /// Tokens that the step under way computes.
    scheduled: usize,
    /// Set when it is first admitted.
    cached_tokens: Option<usize>,
}

impl Sequence {
    /// Tokens that are there to be computed.
    fn known(&self) -> usize {
        self.request.prompt_tokens + self.generated
    }
}

impl ReplicaModel {
    /// An idle engine with an empty cache. `settings` must be without problem.
    pub fn new(settings: Settings) -> Self {
        let cache = Cache::new(settings.blocks);
        Self { settings, cache, running: Vec::new(), waiting: VecDeque::new(), counts: Counts::default(), prefill_seconds: 0.0 }
    }

    /// How it was started.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counters and state.
    pub fn counts(&self) -> Counts {
        Counts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks: self.cache.size(),
            blocks_held: self.cache.size() - self.cache.free(),
            ..self.counts
        }
    }

    /// Takes a request into the queue; gives it back where it could never run.
    pub fn enqueue(&mut self, request: Request) -> Result<(), Request> {
        if !self.settings.can_run(request.prompt_tokens, request.output_tokens) {
            return Err(request);
        }
        let tokens = request.prompt_tokens + request.output_tokens;
        let held = Vec::with_capacity(tokens.div_ceil(self.settings.block_size));
        self.waiting.push_back(Sequence { request, held, stored: 0, computed: 0, generated: 0, scheduled: 0, cached_tokens: None });
        Ok(())
    }

    /// Forgets a request, wherever it is; its blocks stay in the cache. Unknown ones are no matter: they have just ended.
    pub fn abort(&mut self, id: u64) {
        // Found from the front: who sent many leaves in order.
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.request.id == id) {
            self.waiting.remove(at);
            return;
        }
        if let Some(at) = self.running.iter().position(|sequence| sequence.request.id == id) {
            let sequence = self.running.remove(at);
            self.cache.give_back(&sequence.held);
        }
    }

    /// Empties the cache. Says no while a sequence runs.
    pub fn reset_cache(&mut self) -> bool {
        self.cache.clear()
    }

    /// Puts the next step together; nothing where nobody waits or runs. [`finish_step`](Self::finish_step) ends it.
    pub fn start_step(&mut self) -> Option<Step> {
        let mut budget = self.settings.step_tokens;
        let mut work = Work::default();
        let preempted = self.continue_running(&mut budget, &mut work);
        let ran_before = self.running.len();
        if !preempted {
            self.admit_waiting(&mut budget, &mut work);
        }
        if self.running.is_empty() {
            return None;
        }
        self.counts.steps += 1;
        let tokens = self.settings.step_tokens - budget;
        self.counts.step_tokens += tokens as u64;
        let admitted = self.running[ran_before..].iter().map(|sequence| sequence.request.id).collect();
        self.prefill_seconds += self.settings.cost.of_prefill(&work);
        Some(Step { length: self.settings.cost.of(&work), tokens, admitted })
    }

    /// Ends the step under way and tells what came of it, in the order of the batch.
    pub fn finish_step(&mut self) -> Vec<Progress> {
        let mut progress = Vec::new();
        self.finish_step_into(&mut progress);
        progress
    }

    /// The same, appended to `progress`: whoever makes many steps needs one list.
    pub fn finish_step_into(&mut self, progress: &mut Vec<Progress>) {
        let (cache, settings) = (&mut self.cache, &self.settings);
        self.running.retain_mut(|sequence| {
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            if sequence.computed < sequence.known() {
                return true;
            }
            sequence.generated += usize::from(sequence.generated < sequence.request.output_tokens);
            let finished = sequence.generated == sequence.request.output_tokens;
            progress.push(Progress {
                id: sequence.request.id,
                generated: sequence.generated,
                cached_tokens: sequence.cached_tokens.unwrap_or(0),
                finished,
            });
            if finished {
                store_full(cache, sequence, settings.block_size);
                cache.give_back(&sequence.held);
            }
            !finished
        });
    }

    /// How many blocks at the front of a prompt with these blocks a request would find, were it admitted now: its last token is always computed.
    pub fn cached(&self, blocks: &[BlockHash]) -> usize {
        self.cache.find(blocks).0
    }

    /// Whether a block is in the cache.
    pub fn holds(&self, block: &BlockHash) -> bool {
        self.cache.contains(block)
    }

    /// Everybody in the batch, then everybody in the queue.
    pub fn everybody(&self) -> impl Iterator<Item = Standing> + '_ {
        let standing =
            |sequence: &Sequence, runs| Standing { id: sequence.request.id, tokens: sequence.known(), computed: sequence.computed, runs };
        let running = self.running.iter().map(move |sequence| standing(sequence, true));
        running.chain(self.waiting.iter().map(move |sequence| standing(sequence, false)))
    }

    /// Seconds of its steps that went into prompts.
    pub fn prefill_seconds(&self) -> f64 {
        self.prefill_seconds
    }

    /// Schedules those that run, oldest first. True where some had to make room.
    fn continue_running(&mut self, budget: &mut usize, work: &mut Work) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let sequence = &self.running[at];
            let tokens = (sequence.known() - sequence.computed).min(*budget);
            let needed = (sequence.computed + tokens).div_ceil(self.settings.block_size) - sequence.held.len();
            if self.cache.free() < needed {
                self.preempt_youngest();
                preempted = true;
                continue;
            }
            let (cache, block_size) = (&mut self.cache, self.settings.block_size);
            schedule(cache, &mut self.running[at], tokens, block_size, work);
            *budget -= tokens;
            at += 1;
        }
        preempted
    }

    fn preempt_youngest(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.cache.give_back(&std::mem::take(&mut sequence.held));
        (sequence.stored, sequence.computed, sequence.scheduled) = (0, 0, 0);
        self.counts.preemptions += 1;
        self.waiting.push_front(sequence);
    }

    /// Admits from the queue, in order, as long as there is room for a whole prompt.
    fn admit_waiting(&mut self, budget: &mut usize, work: &mut Work) {
        let block_size = self.settings.block_size;
        while *budget > 0 && self.running.len() < self.settings.max_sequences {
            let Some(sequence) = self.waiting.front() else { return };
            // The last token is always computed: the next one comes of it.
            let reusable = ((sequence.known() - 1) / block_size).min(sequence.request.blocks.len());
            let (found, of_them_free) = self.cache.find(&sequence.request.blocks[..reusable]);
            if self.cache.free() < of_them_free + sequence.known().div_ceil(block_size) - found {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            for content in &sequence.request.blocks[..found] {
                sequence.held.extend(self.cache.hold(content));
            }
            (sequence.stored, sequence.computed) = (found, found * block_size);
            if sequence.cached_tokens.is_none() {
                sequence.cached_tokens = Some(sequence.computed);
                self.counts.queried_tokens += sequence.known() as u64;
                self.counts.hit_tokens += sequence.computed as u64;
            }
            let tokens = (sequence.known() - sequence.computed).min(*budget);
            schedule(&mut self.cache, &mut sequence, tokens, block_size, work);
            *budget -= tokens;
            self.running.push(sequence);
        }
    }
}

/// Gives a sequence its blocks for `tokens` more tokens. They are in the cache from then on, so that whoever comes later in the same step
/// finds them, as in vLLM.
fn schedule(cache: &mut Cache, sequence: &mut Sequence, tokens: usize, block_size: usize, work: &mut Work) {
    if sequence.computed >= sequence.request.prompt_tokens {
        work.decode(sequence.computed);
    } else {
        work.prefill(sequence.computed, tokens);
    }
    sequence.scheduled = tokens;
    let needed = (sequence.computed + tokens).div_ceil(block_size);
    while sequence.held.len() < needed {
        // The caller has seen that there are enough.
        let Some(place) = cache.take() else { return };
        sequence.held.push(place);
    }
    store_full(cache, sequence, block_size);
}

/// Makes known to the cache which blocks are full.
fn store_full(cache: &mut Cache, sequence: &mut Sequence, block_size: usize) {
    let full = ((sequence.computed + sequence.scheduled) / block_size).min(sequence.request.blocks.len());
    for at in sequence.stored..full {
        cache.store(sequence.held[at], sequence.request.blocks[at]);
    }
    sequence.stored = sequence.stored.max(full);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::blocks::hashes;
    use super::*;

    fn small() -> Settings {
        Settings { blocks: 41, step_tokens: 100, max_sequences: 4, max_model_len: 600, ..Settings::default() }
    }

    fn request(id: u64, prompt: &[u32], output_tokens: usize) -> Request {
        let answer = (0..output_tokens as u32).map(|token| token + 1_000_000);
        let blocks = hashes(prompt.iter().copied().chain(answer), 16, None);
        Request { id, prompt_tokens: prompt.len(), output_tokens, blocks }
    }

    fn prompt(seed: u32, tokens: usize) -> Vec<u32> {
        (0..tokens as u32).map(|at| seed * 1_000 + at).collect()
    }

    /// Steps until nothing is left to do.
    fn run(model: &mut ReplicaModel) -> Vec<Progress> {
        let mut all = Vec::new();
        while model.start_step().is_some() {
            all.extend(model.finish_step());
        }
        all
    }

    #[test]
    fn a_prompt_is_computed_in_chunks_and_answered_token_by_token() {
        let mut model = ReplicaModel::new(small());
        model.enqueue(request(1, &prompt(1, 250), 3)).expect("it fits");
        assert!(model.start_step().is_some());
        assert_eq!(model.finish_step(), []);
        let progress = run(&mut model);
        let generated: Vec<_> = progress.iter().map(|progress| (progress.generated, progress.finished)).collect();
        assert_eq!(generated, [(1, false), (2, false), (3, true)]);
        let counts = model.counts();
        assert_eq!((counts.steps, counts.step_tokens, counts.queried_tokens, counts.hit_tokens), (5, 252, 250, 0));
        assert_eq!((counts.running, counts.waiting, counts.blocks_held, counts.blocks), (0, 0, 0, 40));
    }

    #[test]
    fn what_was_computed_is_found_but_for_the_last_token() {
        let check = |first: &[u32], second: &[u32], expected| {
            let mut model = ReplicaModel::new(small());
            for (id, prompt) in [(1, first), (2, second)] {
                model.enqueue(request(id, prompt, 1)).expect("it fits");
                run(&mut model);
            }
            assert_eq!(model.counts().hit_tokens, expected, "{} {}", first.len(), second.len());
        };
        check(&prompt(1, 100), &prompt(1, 100), 96);
        check(&prompt(1, 96), &prompt(1, 96), 80);
        check(&prompt(1, 97), &prompt(1, 97), 96);
        check(&prompt(1, 15), &prompt(1, 15), 0);
        check(&prompt(1, 100), &prompt(2, 100), 0);
    }

    #[test]
    fn two_that_come_together_share_what_the_first_computes() {
        let mut model = ReplicaModel::new(small());
        for id in [1, 2] {
            model.enqueue(request(id, &prompt(1, 40), 1)).expect("it fits");
        }
        let cached: Vec<_> = run(&mut model).iter().map(|progress| progress.cached_tokens).collect();
        assert_eq!(cached, [0, 32]);
    }

    #[test]
    fn embeddings_end_with_their_prompt() {
        let mut model = ReplicaModel::new(small());
        model.enqueue(request(1, &prompt(1, 20), 0)).expect("it fits");
        assert_eq!(run(&mut model), [Progress { id: 1, generated: 0, cached_tokens: 0, finished: true }]);
    }

    #[test]
    fn what_could_never_run_is_given_back() {
        let mut model = ReplicaModel::new(small());
        assert_eq!(model.enqueue(request(1, &prompt(1, 600), 1)).expect_err("too long").id, 1);
        assert_eq!(model.enqueue(request(2, &[], 1)).expect_err("nothing").id, 2);
        assert!(model.enqueue(request(3, &prompt(1, 599), 1)).is_ok());
    }

    #[test]
    fn where_blocks_run_out_the_youngest_starts_again() {
        let mut model = ReplicaModel::new(small());
        for id in 1..=3 {
            model.enqueue(request(id, &prompt(id as u32, 200), 100)).expect("it fits");
        }
        let ends: Vec<_> = run(&mut model).into_iter().filter(|progress| progress.finished).collect();
        assert_eq!(ends.iter().map(|end| end.id).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(ends.iter().all(|end| end.generated == 100 && end.cached_tokens == 0));
        assert!(model.counts().preemptions > 0);
        assert_eq!(model.counts().queried_tokens, 600, "a second try is not counted");
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        assert_eq!(Settings::default().problem(), None);
        let check = |settings: Settings, name: &str| {
            assert!(settings.problem().is_some_and(|problem| problem.starts_with(name)), "{name}: {:?}", settings.problem());
        };
        check(Settings { block_size: 0, ..small() }, "block_size: 0 is out of range; allowed: 1 to 1024");
        check(Settings { blocks: 1, ..small() }, "blocks");
        check(Settings { max_sequences: 0, ..small() }, "max_sequences");
        check(Settings { max_model_len: 641, ..small() }, "max_model_len: 641 is more than the cache's 640 tokens");
        check(Settings { cost: Cost { step: 0.0, ..Cost::default() }, ..small() }, "cost.step");
    }

    proptest! {
        /// Whatever comes, in whatever order, and whoever leaves: everybody who stays gets the whole answer, and no block is left behind.
        #[test]
        fn nothing_is_lost(
            arrivals in prop::collection::vec((0_u32..5, 1_usize..300, 0_usize..60, 0_usize..12), 1..40),
            leavers in prop::collection::hash_set(0_u64..40, 0..10),
        ) {
            let mut model = ReplicaModel::new(small());
            let mut ends = Vec::new();
            for (id, &(seed, tokens, output, steps)) in arrivals.iter().enumerate() {
                model.enqueue(request(id as u64, &prompt(seed, tokens), output)).expect("it fits");
                for _ in 0..steps {
                    if model.start_step().is_none() {
                        break;
                    }
                    if let Some(&leaver) = leavers.iter().find(|&&leaver| leaver as usize == id / 2) {
                        model.abort(leaver);
                    }
                    ends.extend(model.finish_step());
                }
            }
            ends.extend(run(&mut model));
            for (id, &(_, tokens, output, _)) in arrivals.iter().enumerate() {
                let own: Vec<_> = ends.iter().filter(|progress| progress.id == id as u64).collect();
                prop_assert!(own.windows(2).all(|two| two[1].generated == two[0].generated + 1));
                let finished = own.iter().filter(|progress| progress.finished && progress.generated == output).count();
                prop_assert!(finished == 1 || (finished == 0 && leavers.contains(&(id as u64))), "{} {:?}", id, own);
                prop_assert!(own.iter().all(|progress| progress.cached_tokens < tokens));
            }
            let counts = model.counts();
            prop_assert_eq!((counts.running, counts.waiting, counts.blocks_held), (0, 0, 0));
            prop_assert!(model.reset_cache());
        }
    }
}
