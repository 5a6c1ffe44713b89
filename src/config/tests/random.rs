//! Hostile and random texts, and prints that read back.

use proptest::prelude::*;

use super::*;

#[test]
fn aliases_do_not_blow_up() {
    let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..20 {
        bomb += &format!("b{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", "));
    }
    assert!(load_str(&bomb, "r.yaml").is_err());
    for deep in ["[", "{a: ", "- ", "? "] {
        assert!(load_str(&deep.repeat(100_000), "r.yaml").is_err(), "{deep}");
    }
    let steps: String = (0..700).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(load_str(&steps, "r.yaml").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in "[-a-z0-9:?,*&!<>{}\\[\\]|'\"#%@~./; \n\t\u{feff}é]{0,80}") {
        for yaml in [text.clone(), format!("replicas:\n- {text}"), format!("RoutingConfig: {text}"), format!("listen: {text}")] {
            let _ = load_str(&yaml, "r.yaml");
        }
        for key in KEYS {
            let _ = load_settings(sources(None, &[], &[("--flag", key.name, &text)]));
        }
    }

    #[test]
    fn no_time_panics(text in "([0-9]{1,20}(\\.[0-9]{1,20})?(ns|us|ms|s|m|h|d|w|M|y) ?){1,4}") {
        let _ = quantity::time(&text);
    }

    #[test]
    fn what_is_printed_reads_back(
        names in proptest::collection::btree_set("[!-~]{1,12}", 0..5),
        models in proptest::collection::vec("[!-~é]{1,9}", 0..3),
        paths in proptest::collection::vec("/[!-)+->@-~]{0,9}\\*?", 0..3),
        millis in 0u64..86_400_000,
        bytes in 1_024usize..(4 << 30),
        seed: u64,
    ) {
        let mut config = Config::default();
        let models: Vec<&str> = models.iter().map(String::as_str).collect();
        for (i, name) in names.iter().enumerate() {
            config.replicas.push(replica(name, &format!("h{i}:80"), 1 + i as u64, &models));
        }
        config.proxy.expose_paths = paths.into_iter().filter(|path| !path.contains('#')).collect();
        config.proxy.body_timeout = std::time::Duration::from_millis(millis);
        config.proxy.max_body = bytes;
        config.proxy.max_buffered_bytes = bytes;
        config.key.hash_seed = seed;
        let printed = config.render();
        let again = load_str(&printed, "printed").map_err(|errors| errors.to_string());
        prop_assert_eq!(again, Ok(config), "{}", printed);
    }
}
