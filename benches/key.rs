//! What reading a body's key costs, without any I/O. Run: `benches/run key`, or `cargo bench --bench key`.

#[path = "rig/calibration.rs"]
mod calibration;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use prefix_router::request::{Ask, Includes, Settings, Surface};
use prefix_router::units::{OrAuto, PrefixLength};

/// How the text of a prompt is written. Each is one sentence as it stands between the quotes of a JSON string.
const SCRIPTS: [(&str, &str); 3] = [
    ("escapes", "The system answers with \\\"care\\\" and follows the policy of section four.\\n"),
    ("chinese", "系统谨慎地回答用户的问题，并遵守第四节的规定。\\n"),
    ("\\u", "\\u7cfb\\u7edf\\u8c28\\u614e\\u5730\\u56de\\u7b54\\u7528\\u6237\\u7684\\u95ee\\u9898\\uff0c\\ud83d\\ude00\\n"),
];

const SURFACES: [Surface; 5] =
    [Surface::ChatCompletions, Surface::Completions, Surface::Responses, Surface::Messages, Surface::Invocations];

/// A body of about `size` bytes: a system prompt of nine tenths, then a question; line breaks and quotes as in real prompts.
fn body(surface: Surface, sentence: &str, size: usize) -> String {
    let system = sentence.repeat(size * 9 / 10 / sentence.len());
    let user = sentence.repeat(size / 10 / sentence.len());
    let fields = match surface {
        Surface::Completions => format!(r#""prompt":"{system}{user}""#),
        Surface::Responses => {
            format!(
                r#""instructions":"{system}","input":[{{"type":"message","role":"user","content":[{{"type":"input_text","text":"{user}"}}]}}]"#
            )
        }
        Surface::Messages => {
            format!(r#""system":[{{"type":"text","text":"{system}"}}],"messages":[{{"role":"user","content":"{user}"}}]"#)
        }
        _ => format!(r#""messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}]"#),
    };
    format!(r#"{{"model":"m",{fields},"max_tokens":16,"stream":true}}"#)
}

/// The chat of an agent after 200 steps of about 300 bytes each: its tools, calls with escaped JSON in them, and short answers.
fn agent() -> String {
    let tool = |index: usize| {
        format!(
            r#"{{"type":"function","function":{{"name":"tool_{index}","description":"Reads what is asked for and says \"done\".","parameters":{{"type":"object","properties":{{"path":{{"type":"string"}},"lines":{{"type":"array","items":{{"type":"integer"}},"default":[1,200]}}}},"required":["path"]}}}}}}"#
        )
    };
    let text = "I look at the file first.\\nThen I run the tests and read \\\"what\\\" they say.\\n".repeat(3);
    let step = |index: usize| match index % 4 {
        0 => format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#),
        1 => format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"call_{index}","type":"function","function":{{"name":"tool_1","arguments":"{{\"path\":\"src/request/json.rs\",\"lines\":[1,200],\"why\":\"the next step needs what stands there, and nothing else was read yet\"}}"}}}}]}}"#
        ),
        2 => format!(r#"{{"role":"tool","tool_call_id":"call_{index}","content":"{text}"}}"#),
        _ => format!(r#"{{"role":"assistant","content":"{text}"}}"#),
    };
    let list = |items: Vec<String>| items.join(",");
    let (tools, messages) = (list((0..10).map(tool).collect()), list((0..200).map(step).collect()));
    format!(r#"{{"model":"m","tools":[{tools}],"messages":[{messages}],"stream":true,"temperature":0.2}}"#)
}

fn key(c: &mut Criterion) {
    let mut group = c.benchmark_group("key");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(30);
    let settings = Settings { prefix_length: OrAuto::Fixed(PrefixLength::clamped(4_096)), ..Settings::default() };
    let auto = Settings { prefix_length: OrAuto::Auto, ..Settings::default() };
    let mut measure = |name: String, surface: Surface, body: &str, settings: &Settings| {
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new(name, body.len()), body, |b, body| {
            b.iter(|| Ask::read(surface, black_box(body.as_bytes()), None, settings));
        });
    };
    for (script, sentence) in SCRIPTS {
        for surface in SURFACES {
            for size in [1 << 10, 32 << 10, 256 << 10, 1 << 20] {
                measure(format!("{}, {script}", surface.label()), surface, &body(surface, sentence, size), &settings);
            }
        }
    }
    for (script, sentence) in
        SCRIPTS.into_iter().chain([("plain", "The system answers with care and follows the policy of section four. ")])
    {
        for size in [1 << 10, 32 << 10, 256 << 10, 1 << 20] {
            let body = body(Surface::ChatCompletions, sentence, size);
            if script == "plain" {
                measure(format!("chat_completions, {script}"), Surface::ChatCompletions, &body, &settings);
            }
            measure(format!("chat_completions, {script}, auto"), Surface::ChatCompletions, &body, &auto);
        }
    }
    let with_tools = Settings { includes: Includes { tools: true, media: false }, ..settings.clone() };
    let ids: Vec<String> = (0..40_000).map(|id| (id * 7 % 128_000).to_string()).collect();
    let ids = format!(r#"{{"model":"m","prompt":[{}]}}"#, ids.join(","));
    measure("chat_completions, 200 small messages".to_owned(), Surface::ChatCompletions, &agent(), &settings);
    measure("chat_completions, 200 small messages, auto".to_owned(), Surface::ChatCompletions, &agent(), &auto);
    measure("invocations, auto".to_owned(), Surface::Invocations, &body(Surface::Invocations, SCRIPTS[0].1, 1 << 20), &auto);
    measure("completions, token ids, auto".to_owned(), Surface::Completions, &ids, &auto);
    measure("invocations, 200 small messages".to_owned(), Surface::Invocations, &agent(), &settings);
    measure("chat_completions, 200 small messages, tools included".to_owned(), Surface::ChatCompletions, &agent(), &with_tools);
    measure("completions, token ids".to_owned(), Surface::Completions, &ids, &settings);
}

fn calibration(c: &mut Criterion) {
    c.bench_function("calibration", |b| b.iter(calibration::work));
}

criterion_group!(benches, calibration, key);
criterion_main!(benches);
