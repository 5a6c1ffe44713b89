//! Agents that call tools, and the traffic of many tenants with different habits.

use std::time::Duration;

use super::documents::{answer, question};
use super::{Conversation, Texts, Turn, chat, sharegpt};
use crate::sim::chance::{Chance, Zipf, mix};

/// Kinds of agents; each has its tools and its system prompt.
const AGENTS: usize = 8;

/// Agents at work, until there are that many requests.
pub(super) fn agentic(requests: usize, chance: &mut Chance) -> Vec<Conversation> {
    let (mut texts, kinds) = (Texts::default(), Zipf::new(AGENTS, 0.8));
    let (mut all, mut so_far) = (Vec::new(), 0);
    while so_far < requests {
        let agent = agent(&kinds, &mut texts, chance);
        so_far += agent.turns.len();
        all.push(agent);
    }
    all
}

/// 10 to 40 turns: a task, then what the tools say.
fn agent(kinds: &Zipf, texts: &mut Texts, chance: &mut Chance) -> Conversation {
    let kind = kinds.pick(chance);
    let turns = (0..10 + chance.below(31)).map(|turn| {
        let prompt = if turn == 0 {
            let task = texts.own(chance.tokens(150.0, 0.8, 20..=2_000));
            vec![Texts::common(2, kind, 2_000), Texts::common(3, kind, 3_000), task]
        } else {
            vec![texts.own(chance.tokens(350.0, 0.9, 30..=4_000))]
        };
        let answer = texts.own(answer(90.0, chance));
        Turn { prompt, answer, pause: Duration::from_secs_f64(0.5 + chance.log_normal(2.0, 0.9)) }
    });
    Conversation { system: 2, has_messages: true, turns: turns.collect() }
}

/// Conversations under one of 20 system prompts, agents, questions about one of 800 documents under a head that all of them share, and prompts of
/// which no two are alike.
pub(super) fn mixed(requests: usize, chance: &mut Chance) -> Vec<Conversation> {
    let (kinds, tenants, documents) = (Zipf::new(AGENTS, 0.8), Zipf::new(20, 0.9), Zipf::new(800, 0.7));
    let (mut texts, mut all, mut so_far) = (Texts::default(), Vec::new(), 0);
    while so_far < requests {
        let which = chance.share();
        let conversation = if which < 0.12 {
            let tenant = tenants.pick(chance);
            let system = Texts::common(5, tenant, 500 + (mix(tenant as u64 + 1) % 2_500) as usize);
            let exchanges = sharegpt::exchanges(chance);
            let Some(conversation) = chat::conversation(exchanges, 12, Some(system), &mut texts, chance) else { continue };
            conversation
        } else if which < 0.145 {
            agent(&kinds, &mut texts, chance)
        } else if which < 0.70 {
            let document = Texts::common(6, documents.pick(chance), 7_700);
            let question = texts.own(question(chance));
            Conversation::single(vec![Texts::common(7, 0, 300), document], question, texts.own(answer(150.0, chance)))
        } else {
            let question = texts.own(chance.tokens(2_500.0, 0.7, 200..=12_000));
            Conversation::single(Vec::new(), question, texts.own(answer(150.0, chance)))
        };
        so_far += conversation.turns.len();
        all.push(conversation);
    }
    all
}
