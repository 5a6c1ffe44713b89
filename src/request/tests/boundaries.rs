//! Prompts whose key has no given length: where it may end, and that its keys there are those of given lengths.

use super::*;

/// A message: its role and the texts of its parts.
type Message = (&'static str, Vec<String>);

fn read(surface: Surface, body: &str, settings: &Settings) -> Boundaries {
    match Ask::read(surface, body.as_bytes(), None, settings).placement {
        Placement::ByKey(boundaries) => boundaries,
        Placement::ByLoad => panic!("{surface:?} has keys"),
    }
}

fn auto(surface: Surface, body: &str) -> Boundaries {
    read(surface, body, &Settings { prefix_length: OrAuto::Auto, ..Settings::default() })
}

/// Where a prefix of that length ends. What lies behind it are those of twice the length, and so on.
fn at(surface: Surface, body: &str, length: u32) -> Boundary {
    let prefix_length = OrAuto::Fixed(PrefixLength::new(length.into()).expect("is a length"));
    let found = read(surface, body, &Settings { prefix_length, ..Settings::default() });
    assert!(found.iter().zip(0..10).skip(1).all(|(further, doublings)| further.depth == length << doublings), "{:?}", depths(&found));
    found[0]
}

fn depths(boundaries: &Boundaries) -> Vec<u32> {
    boundaries.iter().map(|boundary| boundary.depth).collect()
}

fn conversation(messages: &[Message]) -> Value {
    let content = |texts: &[String]| texts.iter().map(|text| json!({"type": "text", "text": text})).collect::<Value>();
    let message = |(role, texts): &Message| match texts.as_slice() {
        [text] => json!({"role": role, "content": text}),
        texts => json!({"role": role, "content": content(texts)}),
    };
    json!({"model": "m", "messages": messages.iter().map(message).collect::<Value>()})
}

/// The same JSON with all characters of all strings escaped.
fn escaped(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>()),
        Value::Array(items) => format!("[{}]", items.iter().map(escaped).collect::<Vec<_>>().join(" , ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{} :{}", escaped(&key.as_str().into()), escaped(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn length(texts: &[String]) -> u32 {
    texts.iter().map(|text| text.chars().count() as u32).sum()
}

fn length_of(messages: &[Message]) -> u32 {
    messages.iter().map(|(_, texts)| length(texts)).sum()
}

/// Where the system prompt and the first user message end, if anything is in them.
fn ends(messages: &[Message]) -> Vec<u32> {
    let of_system = messages.iter().take_while(|(role, _)| ["system", "developer"].contains(role)).count();
    let user = messages.iter().position(|(role, _)| *role == "user").filter(|user| length(&messages[*user].1) > 0);
    let ends = [Some(of_system), user.map(|user| user + 1)].into_iter().flatten().map(|count| length_of(&messages[..count]));
    ends.filter(|depth| *depth > 0).collect()
}

/// The contract in other words: where a prompt of less than 131,072 characters has boundaries.
fn expected(messages: &[Message]) -> Vec<u32> {
    let total = length_of(messages);
    let mut all: Vec<u32> = (0..8).map(|power| 1_024 << power).filter(|depth| *depth <= total).collect();
    all.extend(ends(messages));
    all.sort_unstable();
    all.dedup();
    if is_one(messages) { vec![total] } else { all }
}

/// Whether the prompt has no boundary of its own, and so ends in its only one.
fn is_one(messages: &[Message]) -> bool {
    ends(messages).is_empty() && (1..1_024).contains(&length_of(messages))
}

/// What is before `depth`, with nothing empty at its end.
fn before(messages: &[Message], depth: u32) -> Vec<Message> {
    let (mut left, mut taken) = (depth as usize, Vec::new());
    for (role, texts) in messages {
        let mut some = Vec::new();
        for text in texts {
            if left == 0 {
                break;
            }
            some.push(text.chars().take(left).collect::<String>());
            left -= length(&some[some.len() - 1..]) as usize;
        }
        taken.push((*role, some));
        if left == 0 {
            break;
        }
    }
    taken
}

fn any_text() -> impl Strategy<Value = String> {
    let units = prop::sample::select(vec!["a", "é", "\n", "\"", "中", "😀", "ab\\c"]);
    let count = prop_oneof![0..20_usize, 1_000..1_050_usize, Just(512), Just(1_024), Just(2_048), Just(4_096), 0..9_000_usize];
    prop_oneof![Just(String::new()), "[a-zé😀\"\\\\\n]{0,12}", (units, count).prop_map(|(unit, count)| unit.repeat(count))]
}

fn any_messages() -> impl Strategy<Value = Vec<Message>> {
    let role = prop::sample::select(vec!["system", "developer", "user", "user", "assistant", "tool"]);
    let messages = prop::collection::vec((role, prop::collection::vec(any_text(), 0..4)), 0..6);
    // Most conversations begin with the system.
    (messages, any::<bool>(), any_text()).prop_map(|(mut messages, begins_with_system, text)| {
        if begins_with_system {
            messages.insert(0, ("system", vec![text]));
        }
        messages
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conversations(messages in any_messages()) {
        let body = conversation(&messages);
        let found = auto(Surface::ChatCompletions, &body.to_string());
        prop_assert_eq!(depths(&found), expected(&messages));
        for boundary in &found {
            match boundary.depth {
                depth @ 1_024..=65_536 => prop_assert_eq!(*boundary, at(Surface::ChatCompletions, &body.to_string(), depth)),
                depth @ ..1_024 if !is_one(&messages) => {
                    let shorter = conversation(&before(&messages, depth)).to_string();
                    prop_assert_eq!(*boundary, at(Surface::ChatCompletions, &shorter, 1_024));
                }
                _ => {}
            }
        }
        prop_assert_eq!(auto(Surface::ChatCompletions, &escaped(&body)), found);
    }

    /// Whoever says at one of them that it is enough gets those up to it, and is asked of no other.
    #[test]
    fn a_prompt_is_read_as_far_as_is_enough(messages in any_messages(), media in any::<bool>()) {
        let settings = Settings { includes: Includes { tools: true, media }, ..Settings::default() };
        let body = conversation(&messages);
        for surface in [Surface::ChatCompletions, Surface::Invocations] {
            let all = read(surface, &body.to_string(), &settings);
            for end in 0..all.len() {
                let mut asked = Vec::new();
                let ask = Ask::read_until(surface, body.to_string().as_bytes(), None, &settings, |model, boundary| {
                    assert_eq!(model, Some("m"));
                    asked.push(*boundary);
                    asked.len() > end
                });
                prop_assert_eq!(ask.placement, Placement::ByKey(all[..=end].iter().copied().collect()));
                prop_assert_eq!(&asked[..], &all[..=end]);
            }
        }
    }

    #[test]
    fn a_conversation_keeps_its_boundaries_while_it_grows(messages in any_messages(), more in any_messages()) {
        let more: Vec<Message> = [vec![("assistant", vec!["x".to_owned()])], more].concat();
        let found = auto(Surface::ChatCompletions, &conversation(&messages).to_string());
        let grown = auto(Surface::ChatCompletions, &conversation(&[messages.clone(), more].concat()).to_string());
        if !is_one(&messages) {
            let kept: Vec<_> = grown.iter().filter(|boundary| found.contains(boundary)).collect();
            prop_assert_eq!(kept, found.iter().collect::<Vec<_>>());
        }
        prop_assert!(grown.is_sorted_by_key(|boundary| boundary.depth));
        for (index, boundary) in grown.iter().enumerate() {
            prop_assert!(grown[..index].iter().all(|other| other.key != boundary.key));
        }
    }

    #[test]
    fn completions_and_raw_bodies(texts in prop::collection::vec(any_text(), 0..6), ids in prop::collection::vec(any::<u32>(), 0..3_000)) {
        let of_texts = json!({"model": "m", "prompt": texts}).to_string();
        let of_ids = json!({"model": "m", "prompt": [texts.concat(), ids]}).to_string();
        for (surface, body, total) in [
            (Surface::Completions, &of_texts, length(&texts)),
            (Surface::Completions, &of_ids, length(&texts) + 4 * ids.len() as u32),
            (Surface::Invocations, &of_texts, of_texts.len() as u32),
            (Surface::Completions, &format!("!{of_texts}"), 1 + of_texts.len() as u32),
        ] {
            let found = auto(surface, body);
            let powers: Vec<u32> = (0..8).map(|power| 1_024 << power).filter(|depth| *depth <= total).collect();
            let short = (powers.is_empty() && total > 0).then_some(total);
            prop_assert_eq!(depths(&found), powers.into_iter().chain(short).collect::<Vec<_>>());
            for boundary in found.iter().filter(|boundary| boundary.depth <= 65_536) {
                prop_assert_eq!(*boundary, at(surface, body, boundary.depth.max(1_024)));
            }
        }
    }

    #[test]
    fn what_a_key_is_made_of_is_in_each_boundary(messages in any_messages(), identifier in "[a-z]{0,9}", salt in "[a-z]{0,9}", seed in 1_u64..) {
        let body = conversation(&messages);
        let plain = auto(Surface::ChatCompletions, &body.to_string());
        let with = |name: &str, value: &str| {
            let mut body = body.clone();
            body[name] = value.into();
            body.to_string()
        };
        let settings = Settings { prefix_length: OrAuto::Auto, hash_seed: seed, ..Settings::default() };
        for other in [
            auto(Surface::ChatCompletions, &with("model", "other")),
            auto(Surface::ChatCompletions, &with("prompt_cache_key", &identifier)),
            auto(Surface::ChatCompletions, &with("cache_salt", &salt)),
            auto(Surface::Embeddings, &body.to_string()),
            read(Surface::ChatCompletions, &body.to_string(), &settings),
        ] {
            prop_assert_eq!(depths(&other), depths(&plain));
            prop_assert!(other.iter().zip(&plain).all(|(one, other)| one.key != other.key));
        }
    }
}

#[test]
fn empty_prompts_have_none() {
    for body in
        ["{}", r#"{"messages":[]}"#, r#"{"messages":[{"role":"system","content":""},{"role":"user"},{"role":"user","content":[]}]}"#]
    {
        assert_eq!(auto(Surface::ChatCompletions, body), Boundaries::new(), "{body}");
    }
    assert_eq!(auto(Surface::Completions, r#"{"prompt":[[],""]}"#), Boundaries::new());
    assert_eq!(auto(Surface::Invocations, ""), Boundaries::new());
}

#[test]
fn one_conversation_has_the_same_boundaries_on_all_chat_like_surfaces() {
    let (system, user) = ("s".repeat(3_000), "u".repeat(100));
    let chat =
        auto(Surface::ChatCompletions, &conversation(&[("developer", vec![system.clone()]), ("user", vec![user.clone()])]).to_string());
    assert_eq!(depths(&chat), [1_024, 2_048, 3_000, 3_100]);
    let of_system = |body: Value, surface| {
        let found = auto(surface, &body.to_string());
        assert_eq!(depths(&found), depths(&chat), "{surface:?}");
        found
    };
    let on_chat = of_system(conversation(&[("system", vec![system.clone()]), ("user", vec![user.clone()])]), Surface::ChatCompletions);
    let on_messages = of_system(
        json!({"model": "m", "system": [{"type": "text", "text": system}], "messages": [{"role": "user", "content": user}]}),
        Surface::Messages,
    );
    let on_responses = of_system(json!({"model": "m", "instructions": system, "input": user}), Surface::Responses);
    let as_items = json!([{"role": "system", "content": system}, {"role": "user", "content": [{"type": "input_text", "text": user}]}]);
    let on_items = of_system(json!({"model": "m", "input": as_items}), Surface::Responses);
    assert_eq!([on_messages, on_responses, on_items], [on_chat.clone(), on_chat.clone(), on_chat]);
    let both =
        json!({"model": "m", "instructions": system, "input": [{"role": "developer", "content": "d"}, {"role": "user", "content": user}]});
    assert_eq!(depths(&auto(Surface::Responses, &both.to_string())), [1_024, 2_048, 3_001, 3_101]);
}

#[test]
fn tools_end_at_depth_0_where_they_count() {
    let body =
        json!({"model": "m", "tools": [{"name": "t"}], "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "x"}]});
    let settings = |tools| Settings { prefix_length: OrAuto::Auto, includes: Includes { tools, media: false }, ..Settings::default() };
    let found = |body: &Value, tools| read(Surface::ChatCompletions, &body.to_string(), &settings(tools));
    assert_eq!(depths(&found(&body, false)), [1]);
    assert_eq!(depths(&found(&body, true)), [0, 1], "an empty system prompt ends where the tools do");
    let mut other = body.clone();
    other["messages"] = json!([{"role": "user", "content": "y"}]);
    assert_eq!(found(&other, true)[0], found(&body, true)[0]);
    assert_ne!(found(&other, true)[1], found(&body, true)[1]);
    other["messages"] = json!([]);
    assert_eq!(found(&other, true)[..], found(&body, true)[..1]);
}

#[test]
fn media_that_count_belong_to_the_message_they_stand_in() {
    let settings = Settings { prefix_length: OrAuto::Auto, includes: Includes { tools: false, media: true }, ..Settings::default() };
    let text = "x".repeat(1_024);
    let found = |url: &str| {
        let content = json!([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]);
        read(Surface::ChatCompletions, &chat(content).to_string(), &settings)
    };
    assert_eq!(depths(&found("a")), [1_024, 1_024]);
    assert_eq!(found("a")[0], found("b")[0]);
    assert_ne!(found("a")[1], found("b")[1]);
    let image =
        |url: &str| read(Surface::ChatCompletions, &chat(json!([{"type": "image_url", "image_url": {"url": url}}])).to_string(), &settings);
    assert_eq!(depths(&image("a")), [0]);
    assert_ne!(image("a"), image("b"));
}

/// Nothing is read behind the place where no boundary can follow: what is wrong there does not matter.
#[test]
fn nothing_is_read_behind_the_last_boundary() {
    const DEEPEST: u32 = 131_072;
    let message = |role: &str, length: u32, end: &str| format!(r#"{{"role":"{role}","content":"{}{end}"}}"#, "x".repeat(length as usize));
    let found = |messages: &[String]| auto(Surface::ChatCompletions, &format!(r#"{{"messages":[{}]}}"#, messages.join(",")));
    let by_length: Vec<u32> = (0..8).map(|power| 1_024 << power).collect();
    let with = |ends: &[u32]| {
        let mut all = [by_length.as_slice(), ends].concat();
        all.sort_unstable();
        all
    };
    let bad = "\\x";
    for (messages, expected) in [
        // A system prompt is read to its end, and the question behind it.
        (vec![message("system", DEEPEST + 9, ""), message("user", 10, ""), message("user", 1, bad)], with(&[DEEPEST + 9, DEEPEST + 19])),
        (vec![message("system", 10, ""), message("user", DEEPEST, ""), message("tool", 1, bad)], with(&[10, DEEPEST + 10])),
        (vec![message("system", DEEPEST, ""), message("user", DEEPEST, ""), message("tool", 1, bad)], with(&[2 * DEEPEST])),
        (vec![message("user", DEEPEST, ""), message("assistant", 1, bad)], with(&[])),
        // A longer question is not.
        (vec![message("system", 10, ""), message("user", DEEPEST + 1, bad)], with(&[10])),
        (vec![message("system", 10, ""), message("user", DEEPEST + 1, ""), message("user", 1, bad)], with(&[10])),
        (vec![message("user", DEEPEST + 1, bad)], with(&[])),
        // What is neither ends at the deepest by length.
        (vec![message("user", 1, ""), message("assistant", DEEPEST - 1, bad)], with(&[1])),
        (vec![message("assistant", DEEPEST, bad), message("user", 1, bad)], with(&[])),
        (vec![message("system", DEEPEST + 9, ""), message("assistant", 1, bad), message("user", 1, bad)], with(&[DEEPEST + 9])),
    ] {
        assert_eq!(depths(&found(&messages)), expected, "{}", messages.join(",").replace("xxxxxxxx", ""));
    }
    let completion = format!(r#"{{"prompt":"{}\x"}}"#, "x".repeat(DEEPEST as usize));
    assert_eq!(depths(&auto(Surface::Completions, &completion)), by_length);
    assert_eq!(depths(&auto(Surface::Invocations, &completion)), by_length);
}
