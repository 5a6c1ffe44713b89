//! The model against a real engine: 100 requests, one after the other, that vLLM 0.32 counted (tests/fixtures/engines/README.md tells how).

use serde::Deserialize;

use super::blocks::hashes;
use super::replica::{ReplicaModel, Request, Settings};

const RECORDED: &str = include_str!("../../tests/fixtures/engines/vllm/prefix-sequence.jsonl");

#[derive(Deserialize)]
struct Engine {
    block_size: usize,
    num_gpu_blocks: usize,
    max_num_batched_tokens: usize,
}

#[derive(Deserialize)]
struct Recorded {
    prompt: Vec<Segment>,
    salt: Option<String>,
    output: Vec<u32>,
    prompt_tokens: usize,
    cached_tokens: usize,
    queries: u64,
    hits: u64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Segment {
    Made { seed: u64, tokens: u64 },
    Turn { turn: usize },
    Plain { ids: Vec<u32> },
}

#[test]
fn the_model_hits_and_misses_as_vllm_did() {
    let mut lines = RECORDED.lines();
    let engine: Engine = serde_json::from_str(lines.next().expect("a head")).expect("the engine");
    let mut model = ReplicaModel::new(Settings {
        block_size: engine.block_size,
        blocks: engine.num_gpu_blocks,
        step_tokens: engine.max_num_batched_tokens,
        max_model_len: (engine.num_gpu_blocks - 1) * engine.block_size,
        ..Settings::default()
    });
    let mut conversations: Vec<Vec<u32>> = Vec::new();
    let (mut evicted, mut wrong) = (0, Vec::new());
    for (id, line) in lines.enumerate() {
        let recorded: Recorded = serde_json::from_str(line).expect("a request");
        let prompt = tokens(&recorded.prompt, &conversations);
        assert_eq!(prompt.len(), recorded.prompt_tokens, "request {id}");
        let whole: Vec<u32> = prompt.iter().chain(&recorded.output).copied().collect();
        let blocks = hashes(whole.iter().copied(), engine.block_size, recorded.salt.as_deref());
        // What would be found if nothing were ever evicted.
        let alike = conversations.iter().map(|before| before.iter().zip(&prompt).take_while(|(one, other)| one == other).count()).max();
        let before = model.counts();
        model
            .enqueue(Request { id: id as u64, prompt_tokens: prompt.len(), output_tokens: recorded.output.len(), blocks })
            .expect("it fits");
        let mut cached_tokens = None;
        while model.start_step().is_some() {
            cached_tokens = model.finish_step().first().map(|progress| progress.cached_tokens).or(cached_tokens);
        }
        let after = model.counts();
        let own = (cached_tokens, after.queried_tokens - before.queried_tokens, after.hit_tokens - before.hit_tokens);
        if own != (Some(recorded.cached_tokens), recorded.queries, recorded.hits) {
            wrong.push((id, own, (recorded.cached_tokens, recorded.queries, recorded.hits)));
        }
        evicted += usize::from(recorded.salt.is_none() && recorded.cached_tokens + 2 * engine.block_size < alike.unwrap_or(0));
        conversations.push(whole);
    }
    assert_eq!(wrong, [], "request, the model's, vLLM's: cached tokens, queries, hits");
    assert_eq!(conversations.len(), 100);
    assert!(evicted >= 10, "the sequence shows what is evicted: {evicted}");
}

fn tokens(segments: &[Segment], conversations: &[Vec<u32>]) -> Vec<u32> {
    let mut all = Vec::new();
    for segment in segments {
        match segment {
            Segment::Made { seed, tokens } => all.extend((0..*tokens).map(|at| token(*seed, at))),
            Segment::Turn { turn } => all.extend_from_slice(&conversations[*turn]),
            Segment::Plain { ids } => all.extend_from_slice(ids),
        }
    }
    all
}

/// As in tests/fixtures/engines/README.md.
fn token(seed: u64, at: u64) -> u32 {
    let mut x = ((seed << 32) + at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 32;
    1_000 + (x % 40_000) as u32
}
