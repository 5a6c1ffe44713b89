//! SageMaker fragments: understood as they stand, and refused with reasons.

use super::*;

#[test]
fn a_fragment_is_understood_as_it_stands() {
    let aware = "{RoutingStrategy: PREFIX_AWARE, PrefixAwareRoutingConfig: {PrefixLength: 2048, ConcurrencyThreshold: 10}}";
    let json = "{\n\t\"RoutingConfig\": {\n\t\t\"RoutingStrategy\": \"PREFIX_AWARE\",\n\t\t\"PrefixAwareRoutingConfig\": \
                {\"PrefixLength\": 2048, \"ConcurrencyThreshold\": 10}\n\t}\n}\n";
    let bare = "RoutingStrategy: PREFIX_AWARE\nPrefixAwareRoutingConfig:\n  PrefixLength: 2048\n  ConcurrencyThreshold: 10\n";
    for yaml in [&format!("RoutingConfig: {aware}"), aware, json, bare, &format!("RoutingConfig:\n  {aware}\nretries: 2\n")] {
        let config = load_str(yaml, "r.yaml").unwrap();
        assert_eq!(config.routing.strategy, StrategyName::PrefixAware);
        assert_eq!(config.key.prefix_length.fixed().unwrap().get(), 2_048);
        assert_eq!(config.routing.concurrency_threshold.fixed().unwrap().get(), 10);
        assert_eq!(config.routing.overflow, crate::units::OrAuto::Auto);
    }
    for (name, strategy) in [("RANDOM", StrategyName::Random), ("LEAST_OUTSTANDING_REQUESTS", StrategyName::LeastOutstanding)] {
        for yaml in [format!("RoutingConfig: {{RoutingStrategy: {name}}}"), format!("strategy: {name}")] {
            assert_eq!(load_str(&yaml, "r.yaml").unwrap().routing.strategy, strategy, "{yaml}");
        }
    }
    // Nothing is nothing.
    assert_eq!(load_str("RoutingConfig: ~\nstrategy: random\n", "r.yaml").unwrap().routing.strategy, StrategyName::Random);
}

#[test]
fn fragments_with_errors() {
    let strategies = "allowed: PREFIX_AWARE, LEAST_OUTSTANDING_REQUESTS, RANDOM";
    wrong("RoutingStrategy: random", &[&format!("r.yaml:1: RoutingStrategy: random is not known here; {strategies}")]);
    wrong("RoutingConfig: {}", &[&format!("r.yaml:1: RoutingConfig.RoutingStrategy: missing; {strategies}")]);
    wrong(
        "RoutingConfig: RANDOM",
        &["r.yaml:1: RoutingConfig: a text is not allowed here; allowed: a map of RoutingStrategy, PrefixAwareRoutingConfig"],
    );
    wrong(
        "RoutingStrategy: PREFIX_AWARE",
        &["r.yaml:1: PrefixAwareRoutingConfig: missing; PREFIX_AWARE needs it, with PrefixLength and ConcurrencyThreshold"],
    );
    wrong(
        "RoutingStrategy: RANDOM\nPrefixAwareRoutingConfig: {}",
        &["r.yaml:2: PrefixAwareRoutingConfig: not allowed with RANDOM; allowed: with PREFIX_AWARE"],
    );
    wrong(
        "RoutingConfig:\n  RoutingStrategy: PREFIX_AWARE\n  RoutingStategy: RANDOM\n  PrefixAwareRoutingConfig:\n    PrefixLenght: 4096\n    ConcurrencyThreshold: 1025\n",
        &[
            "r.yaml:3: RoutingConfig.RoutingStategy: unknown key; the nearest is RoutingStrategy",
            "r.yaml:4: RoutingConfig.PrefixAwareRoutingConfig.PrefixLength: missing; PREFIX_AWARE needs it; allowed: 1024 to 65536",
            "r.yaml:5: RoutingConfig.PrefixAwareRoutingConfig.PrefixLenght: unknown key; the nearest is PrefixLength",
            "r.yaml:6: RoutingConfig.PrefixAwareRoutingConfig.ConcurrencyThreshold: 1025 is out of range; allowed: 1 to 1024",
        ],
    );
    wrong(
        "prefix_length: 4096\nRoutingStrategy: RANDOM\nstrategy: random\n",
        &[
            "r.yaml:1: prefix_length: given on line 1, beside a SageMaker fragment on line 2; allowed: one of the two",
            "r.yaml:3: strategy: given on line 3, beside a SageMaker fragment on line 2; allowed: one of the two",
        ],
    );
    wrong(
        "RoutingStrategy: RANDOM\nRoutingConfig: {RoutingStrategy: RANDOM}\n",
        &["r.yaml:2: RoutingConfig: given on line 2, and RoutingStrategy on line 1; allowed: one fragment"],
    );
}
