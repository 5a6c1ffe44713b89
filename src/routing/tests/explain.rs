//! What is explained is what happens, and asking changes nothing: laws over any traffic.

use proptest::prelude::*;

use super::auto::{Scene, scene};
use super::*;
use crate::request::{self, Ask, Surface};

/// A request about that document; each is longer than the shortest key.
fn ask(document: u8, question: u8, wants_chunks: bool) -> Ask {
    let text = format!("Document {document}. ").repeat(300);
    let body = serde_json::json!({"model": "m", "stream": question.is_multiple_of(2), "messages": [
        {"role": "system", "content": text}, {"role": "user", "content": format!("Question {question}")}]});
    let settings = request::Settings { chunks: wants_chunks, ..request::Settings::default() };
    Ask::read(Surface::ChatCompletions, body.to_string().as_bytes(), None, &settings)
}

/// What a request would be placed by, as far as it decides anything.
fn placed_by(aim: &Aim) -> String {
    match aim {
        Aim::ByKey(sight) => format!("{:?} {:?} {} {:?}", sight.key, sight.depth, sight.hot, sight.seen.reuse()),
        Aim::NoKey => "no key".to_owned(),
        Aim::ByLoad => "load".to_owned(),
    }
}

fn chooser_of(strategy: StrategyName, threshold: Option<u64>) -> Chooser {
    let threshold = threshold.map_or(OrAuto::Auto, |threshold| OrAuto::Fixed(ConcurrencyThreshold::clamped(threshold)));
    Chooser::new(&Settings { strategy, concurrency_threshold: threshold, ..Settings::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_explained_is_chosen_next(
        weights in prop::collection::vec(1_u64..4, 1..6),
        requests in prop::collection::vec((0_u8..5, any::<u8>(), 0_usize..5, 0_usize..9, prop::option::of(0_usize..5)), 1..40),
        strategy in 0..StrategyName::ALL.len(),
        threshold in prop::option::of(1_u64..6),
    ) {
        let strategy = StrategyName::ALL[strategy];
        let mut scene: Scene = scene(&weights);
        let chooser = chooser_of(strategy, threshold);
        for (number, (document, question, busy, load, tried)) in requests.into_iter().enumerate() {
            // Others come and go.
            if load == 0 {
                scene.rest();
            } else {
                scene.add(busy % weights.len(), load / 2, load - load / 2);
            }
            let snapshot = scene.fleet.snapshot();
            let pool = snapshot.pool(None).expect("there is one");
            let counts = || pool.members().iter().map(|member| member.outstanding()).collect::<Vec<_>>();
            let ask = ask(document, question, chooser.wants_chunks());
            let before = counts();
            let peek = chooser.peek(&ask, pool);
            prop_assert_eq!(placed_by(&peek.aim), placed_by(&chooser.peek(&ask, pool).aim), "asking changes nothing");
            let tried: Vec<Arc<Replica>> = tried.iter().map(|&index| Arc::clone(&pool.members()[index % weights.len()])).collect();
            let now = Instant::now();
            let candidates = Candidates::new(pool, &tried, now);
            let explained = chooser.explain(&peek.aim, &candidates);
            prop_assert_eq!(counts(), before);
            prop_assert!(peek.steps.is_empty() || peek.chosen < peek.steps.len());
            prop_assert!(peek.steps.iter().all(|step| step.share.is_none_or(|share| (0.0..=1.0).contains(&share))));

            let aim = chooser.aim(&ask, pool);
            prop_assert_eq!(placed_by(&aim), placed_by(&peek.aim));
            let choice = chooser.choose(&aim, &candidates, &mut SmallRng::seed_from_u64(number as u64));
            match (explained.would, choice) {
                (Would::Go { replica, reason, instead_of }, Some(choice)) => {
                    prop_assert_eq!((replica.name(), reason), (choice.lease.replica().name(), choice.reason));
                    let named = |passed_over: Option<PassedOver>| passed_over.map(|one| (one.replica.name().to_owned(), one.outstanding));
                    prop_assert_eq!(named(instead_of), named(choice.instead_of));
                    prop_assert!(explained.standings.iter().any(|standing| standing.replica.is(&replica)));
                    scene.leases.push(choice.lease);
                }
                (Would::Any(reason), Some(choice)) => {
                    prop_assert_eq!(reason, choice.reason);
                    scene.leases.push(choice.lease);
                }
                (Would::Nobody, None) => {}
                (would, choice) => prop_assert!(false, "{:?} is explained, and {:?} is done", would, choice.map(|choice| choice.reason)),
            }
        }
    }
}
