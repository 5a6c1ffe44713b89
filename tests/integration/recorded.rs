//! What real engines sent, replayed byte for byte: status, fields and body arrive as the engine wrote them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::client::End;
use crate::h2::H2;
use crate::replica::{Replica, Step};
use crate::support::Router;
use crate::wire::{Body, Buffer, Head};

/// Fields of one connection: each side has its own.
const OF_THE_CONNECTION: [&str; 3] = ["connection", "keep-alive", "transfer-encoding"];

/// A recorded response: its raw bytes, and what they say.
struct Recording {
    name: String,
    raw: Vec<u8>,
    head: Head,
    body: Body,
}

impl Recording {
    async fn read(path: &Path) -> Self {
        let raw = fs::read(path).unwrap();
        let mut buffer = Buffer::default();
        let mut from = raw.as_slice();
        let mut head = buffer.head(&mut from).await.unwrap();
        // `expect-100.http` has the interim response before the final one.
        while head.status() == 100 {
            head = buffer.head(&mut from).await.unwrap();
        }
        let body = buffer.body(&mut from, head.response_framing("POST")).await;
        let name = path.iter().rev().take(2).map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" of ");
        assert_eq!(body.end, End::Whole, "{name}");
        Self { name, raw, head, body }
    }

    /// Some surface that could have answered so, since errors and streams have a shape of their own there.
    fn target(&self) -> &'static str {
        match self.name.split(['-', '.']).next() {
            Some("messages") => "/v1/messages",
            Some("responses") => "/v1/responses",
            Some("completion") => "/v1/completions",
            Some("invocations") => "/invocations",
            _ => "/v1/chat/completions",
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Write(self.raw.clone())];
        if self.head.get("connection") == Some("close") {
            steps.push(Step::Fin);
        }
        steps
    }

    fn end_to_end(&self) -> impl Iterator<Item = &str> {
        let names: BTreeSet<&str> = self.head.fields.iter().map(|(name, _)| name.as_str()).collect();
        names.into_iter().filter(|name| !OF_THE_CONNECTION.contains(name))
    }
}

async fn recordings() -> Vec<Recording> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engines");
    let mut paths: Vec<PathBuf> = ["vllm", "llama-cpp"]
        .iter()
        .flat_map(|engine| fs::read_dir(root.join(engine)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "http" || extension == "sse"))
        .collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        all.push(Recording::read(&path).await);
    }
    assert!(all.len() > 50, "the recordings are there");
    all
}

#[tokio::test]
async fn over_http1() {
    let replica = Replica::start("a", crate::answers::ok);
    let router = Router::start(&[&replica], &[]).await;
    for recording in recordings().await {
        let name = recording.name.clone();
        let steps = recording.steps();
        replica.script(move |_| steps.clone());
        let response = router.post(recording.target(), r#"{"model":"m","stream":true}"#).await;
        assert_eq!(response.status, recording.head.status(), "{name}");
        for field in recording.end_to_end() {
            assert_eq!(response.head.all(field), recording.head.all(field), "{name}: {field}");
        }
        assert_eq!(response.body.bytes, recording.body.bytes, "{name}");
        assert_eq!(response.body.end, End::Whole, "{name}");
        let borders = response.body.borders();
        let merged: Vec<usize> = recording
            .body
            .borders()
            .into_iter()
            .filter(|border| recording.head.get("content-length").is_none() && !borders.contains(border))
            .collect();
        assert_eq!(merged, Vec::<usize>::new(), "{name}: chunks that ended there were joined to the next");
    }
    assert!(replica.requests().iter().all(|request| request.head.get("expect").is_none()));
}

#[tokio::test]
async fn over_http2() {
    let replica = Replica::start("a", crate::answers::ok);
    let router = Router::start(&[&replica], &[]).await;
    let mut client = H2::connect(&router).await;
    for recording in recordings().await {
        let name = recording.name.clone();
        let steps = recording.steps();
        replica.script(move |_| steps.clone());
        let response = client.request("POST", recording.target(), r#"{"model":"m","stream":true}"#).await;
        assert_eq!(response.head.status, recording.head.status(), "{name}");
        for field in recording.end_to_end() {
            let values: Vec<&[u8]> = response.head.headers.get_all(field).iter().map(hyper::header::HeaderValue::as_bytes).collect();
            let recorded: Vec<&[u8]> = recording.head.all(field).iter().map(|value| value.as_bytes()).collect();
            assert_eq!(values, recorded, "{name}: {field}");
        }
        assert_eq!(response.bytes, recording.body.bytes, "{name}");
        assert_eq!(response.broken, None, "{name}");
    }
}

#[tokio::test]
async fn cut_at_every_piece_the_client_gets_what_came_and_sees_the_cut() {
    let replica = Replica::start("a", crate::answers::ok);
    let router = Router::start(&[&replica], &[]).await;
    for recording in recordings().await.into_iter().filter(|recording| recording.name.contains(".sse of vllm")) {
        let name = recording.name.clone();
        let last_chunk = recording.raw.len() - "0\r\n\r\n".len();
        let body = recording.raw.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        for cut in (body + 10..=last_chunk).step_by(97) {
            let part = recording.raw[..cut].to_vec();
            replica.script(move |_| vec![Step::Write(part.clone()), Step::Fin]);
            let response = router.post(recording.target(), "{}").await;
            let bytes = response.body.bytes;
            let same = bytes.iter().zip(&recording.body.bytes).take_while(|(one, other)| one == other).count();
            // All chunks that came whole are there; whatever follows them is the cut piece and the router's own ending.
            let whole: usize = whole_chunks(&recording.raw[body..cut]);
            assert!(same >= whole, "{name} cut at {cut}: {same} bytes of {whole} are as the engine sent them");
            assert_eq!(response.body.end, End::Cut, "{name} cut at {cut}");
        }
    }
}

/// How many bytes of data the whole chunks of this part of a chunked body carry.
fn whole_chunks(mut raw: &[u8]) -> usize {
    let mut sum = 0;
    while let Some(line) = raw.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(&String::from_utf8_lossy(&raw[..line]), 16).unwrap();
        let next = line + 2 + length + 2;
        if raw.len() < next {
            break;
        }
        sum += length;
        raw = &raw[next..];
    }
    sum
}
