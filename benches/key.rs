//! What reading a body's key costs, without any I/O. Run: `benches/run key`, or `cargo bench --bench key`.

#[path = "rig/calibration.rs"]
mod calibration;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use prefix_router::request::{Ask, Settings, Surface};

/// A chat of about `size` bytes: a system prompt of nine tenths, then a question; line breaks and quotes as in real prompts.
fn chat(size: usize) -> String {
    let sentence = "The system answers with \\\"care\\\" and follows the policy of section four.\\n";
    let system = sentence.repeat(size * 9 / 10 / sentence.len());
    let user = sentence.repeat(size / 10 / sentence.len());
    format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{user}"}}],"max_tokens":16,"stream":true}}"#
    )
}

fn key(c: &mut Criterion) {
    let mut group = c.benchmark_group("key");
    let settings = Settings::default();
    for size in [1 << 10, 32 << 10, 1 << 20] {
        let body = chat(size);
        group.throughput(Throughput::Bytes(body.len() as u64));
        for surface in [Surface::ChatCompletions, Surface::Invocations] {
            group.bench_with_input(BenchmarkId::new(surface.label(), body.len()), &body, |b, body| {
                b.iter(|| Ask::read(surface, black_box(body.as_bytes()), None, &settings));
            });
        }
    }
}

fn calibration(c: &mut Criterion) {
    c.bench_function("calibration", |b| b.iter(calibration::work));
}

criterion_group!(benches, calibration, key);
criterion_main!(benches);
