//! Rules on states made by hand.

use std::sync::Arc;

use super::super::blocks::Chain;
use super::super::chance::Chance;
use super::super::replica::{ReplicaModel, Request, Settings};
use super::super::rule::{Asked, Engine, Pick, Rule, Seen, View};
use super::Peer;
use crate::fleet::{Fleet, Lease, Replica, ReplicaSpec, Snapshot, health};
use crate::request::{Boundaries, Boundary, Key};
use crate::units::Weight;

const BLOCK: usize = 16;

/// A fleet of four, and what its engines are like.
struct Made {
    snapshot: Snapshot,
    replicas: Vec<Option<Arc<Replica>>>,
    engines: Vec<Engine>,
    seen: Vec<Seen>,
    leases: Vec<Lease>,
    chance: Chance,
}

/// A prompt of one text, and after it one of its own.
struct Text {
    chain: Chain,
    tokens: usize,
    boundaries: Boundaries,
}

fn text(common: u64, tokens: usize, own: u64) -> Text {
    let mut chain = Chain::new(BLOCK);
    chain.append(common, tokens);
    chain.append(own, 64);
    let boundaries = [Boundary { depth: 4_096, key: Key(common.wrapping_mul(0x9E37_79B9_7F4A_7C15)) }].into_iter().collect();
    Text { chain, tokens: tokens + 64, boundaries }
}

impl Made {
    fn new() -> Self {
        let spec = |number: usize| ReplicaSpec {
            name: number.to_string(),
            authority: number.to_string(),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        };
        let snapshot = Fleet::new((0..4).map(spec).collect(), health::Settings::default(), 0).snapshot();
        let replicas = snapshot.replicas().iter().cloned().map(Some).collect();
        let engine = |_| Engine { model: ReplicaModel::new(Settings::default()), step_ends: None, is_up: true, requests: 0 };
        Self {
            snapshot,
            replicas,
            engines: (0..4).map(engine).collect(),
            seen: vec![Seen::default(); 4],
            leases: Vec::new(),
            chance: Chance::new(1, 0),
        }
    }

    /// Gives replicas so many requests in flight, as this router counts.
    fn loaded(mut self, loads: [usize; 4]) -> Self {
        for (replica, &load) in self.snapshot.replicas().iter().zip(&loads) {
            self.leases.extend((0..load).map(|_| replica.lease()));
        }
        self
    }

    fn ask(&mut self, rule: &mut dyn Rule, id: usize, text: &Text) -> Pick {
        self.ask_among(rule, id, text, &[0, 1, 2, 3])
    }

    fn ask_among(&mut self, rule: &mut dyn Rule, id: usize, text: &Text, eligible: &[usize]) -> Pick {
        let Text { chain, tokens, boundaries } = text;
        let asked = Asked { id, tokens: *tokens, blocks: &chain.blocks()[..tokens / BLOCK], block_size: BLOCK, boundaries };
        let pool = self.snapshot.pool(None).expect("there is one");
        let view = View { eligible, pool, replicas: &self.replicas, seen: &self.seen, engines: &self.engines, routers: 1, now: 0 };
        rule.choose(&asked, &view, &mut self.chance)
    }

    /// An engine computes a prompt to its end.
    fn compute(&mut self, replica: usize, text: &Text) {
        self.queue(replica, 0, text);
        while self.engines[replica].model.start_step().is_some() {
            self.engines[replica].model.finish_step();
        }
    }

    /// An engine has a prompt in its queue.
    fn queue(&mut self, replica: usize, id: u64, text: &Text) {
        let blocks = text.chain.blocks().to_vec();
        self.engines[replica].model.enqueue(Request { id, prompt_tokens: text.tokens, output_tokens: 1, blocks }).expect("it fits");
    }
}

fn rule(peer: Peer) -> Box<dyn Rule> {
    peer.rule(&Settings::default())
}

#[test]
fn the_oracle_goes_where_the_prompt_is_unless_the_wait_is_longer() {
    for peer in [Peer::Oracle, Peer::UnselfishOracle] {
        let mut made = Made::new();
        let known = text(1, 8_000, 2);
        made.compute(2, &known);
        let mut oracle = rule(peer);
        assert_eq!(made.ask(&mut *oracle, 0, &text(1, 8_000, 3)).replica, 2, "{peer:?}");
        oracle.first_token(0, 2, 8_000);
        // Three prompts in the queue are more than one here; what the unselfish one pays twice is still less.
        let mut queued = rule(peer);
        for (id, own) in [(0, 10), (1, 11), (2, 12)] {
            let text = text(own, 8_000, own);
            assert_eq!(made.ask_among(&mut *queued, id, &text, &[2]).replica, 2);
            made.queue(2, id as u64, &text);
        }
        assert_ne!(made.ask(&mut *queued, 3, &text(1, 8_000, 4)).replica, 2, "{peer:?}");
    }
}

#[test]
fn the_oracle_knows_what_those_ahead_will_have_computed() {
    let mut made = Made::new();
    let mut oracle = rule(Peer::UnselfishOracle);
    let first = text(1, 8_000, 2);
    let home = made.ask(&mut *oracle, 0, &first).replica;
    made.queue(home, 0, &first);
    // Waiting for it costs once what it takes; computing it elsewhere counts twice.
    assert_eq!(made.ask(&mut *oracle, 1, &text(1, 8_000, 3)).replica, home);
    oracle.first_token(0, home, 0);
    oracle.first_token(1, home, 0);
}

#[test]
fn bounded_loads_go_on_along_the_ring() {
    let prompt = text(7, 2_000, 1);
    let order: Vec<usize> = {
        let made = Made::new();
        let pool = made.snapshot.pool(None).expect("there is one");
        pool.ring().order(prompt.boundaries[0].key).collect()
    };
    let check = |load: [usize; 4], expected: usize, overflow: bool| {
        let mut loads = [0; 4];
        order.iter().zip(load).for_each(|(&replica, load)| loads[replica] = load);
        let pick = Made::new().loaded(loads).ask(&mut *rule(Peer::BoundedLoad), 0, &prompt);
        assert_eq!(pick, Pick { replica: order[expected], overflow }, "{load:?}");
    };
    check([0, 0, 0, 0], 0, false);
    // In the key's order. 11 with this one: at most ceil(1.25 x 11 / 4) = 4 on one.
    check([3, 3, 2, 2], 0, false);
    check([4, 2, 2, 2], 1, true);
    check([4, 4, 1, 1], 2, true);
}

#[test]
fn sglang_follows_its_trees_while_the_load_is_in_balance() {
    let mut made = Made::new();
    let mut sglang = rule(Peer::Sglang);
    let first = made.ask(&mut *sglang, 0, &text(1, 2_000, 2)).replica;
    assert_eq!(made.ask(&mut *sglang, 1, &text(1, 2_000, 3)).replica, first, "most of it is there");
    let second = made.ask(&mut *sglang, 2, &text(9, 2_000, 4)).replica;
    assert_ne!(second, first, "to the smallest tree");
    let mut loads = [0; 4];
    loads[first] = 65;
    let mut uneven = made.loaded(loads);
    let pick = uneven.ask(&mut *sglang, 3, &text(1, 2_000, 5));
    assert!(pick.replica != first && pick.overflow, "out of balance: {pick:?}");
    sglang.restarted(first);
    assert_eq!(uneven.ask_among(&mut *sglang, 4, &text(9, 2_000, 6), &[first, second]).replica, second);
}

#[test]
fn llm_d_weighs_prefix_queue_and_cache() {
    let mut made = Made::new();
    let mut llm_d = rule(Peer::LlmD);
    let home = made.ask(&mut *llm_d, 0, &text(1, 2_000, 2)).replica;
    assert_eq!(made.ask(&mut *llm_d, 1, &text(1, 2_000, 3)).replica, home);
    // The longest queue costs 2, a prefix wins 3.
    made.seen[home].waiting = 9;
    assert_eq!(made.ask(&mut *llm_d, 2, &text(1, 2_000, 4)).replica, home);
    // And a full cache 2 more.
    made.seen[home].kv_usage = 1.0;
    assert_ne!(made.ask(&mut *llm_d, 3, &text(1, 2_000, 5)).replica, home);
}

#[test]
fn dynamo_adds_what_is_new_to_what_is_in_use() {
    let mut made = Made::new();
    let mut dynamo = rule(Peer::Dynamo);
    let home = made.ask(&mut *dynamo, 0, &text(1, 2_000, 2)).replica;
    // 2,064 tokens wait there and are in use: as many as twice those of a prompt elsewhere, but for what is new here.
    assert_ne!(made.ask(&mut *dynamo, 1, &text(1, 2_000, 3)).replica, home);
    dynamo.first_token(0, home, 0);
    assert_eq!(
        made.ask_among(&mut *dynamo, 2, &text(1, 2_000, 4), &[home, (home + 1) % 4, (home + 2) % 4]).replica,
        home,
        "what is in use counts once"
    );
    dynamo.ended(0, home);
}
