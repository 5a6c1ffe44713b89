//! Answers: whatever a replica sends, nobody panics, and the client gets an answer. One that is whole beyond doubt arrives as it is; one that broke
//! never looks whole; and the next request has an answer of its own.

use crate::input::{self, Input};
use crate::traffic::{Client, Ending, LONG, SHORT, Script, World};
use crate::wire::{self, Answer, Head, Part};

const ASKS: [(&str, &str); 12] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/completions"),
    ("POST", "/invocations"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("GET", "/version"),
    ("HEAD", "/version"),
    ("PUT", "/v1/files/1"),
    ("POST", "/v1/audio/speech"),
    ("OPTIONS", "/v1/chat/completions"),
];

const BODIES: [&str; 2] = [
    r#"{"model":"m","messages":[{"role":"user","content":"a"}],"prompt":"a","input":"a"}"#,
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],"prompt":"a","input":"a"}"#,
];

const ENDINGS: [Ending; 4] = [Ending::Keep, Ending::Fin, Ending::Reset, Ending::Stale];

/// Fields of one connection, or of the router.
const NOT_PASSED_ON: [&str; 13] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "upgrade",
    "x-prefix-router-replica",
    "x-prefix-router-reason",
    "x-prefix-router-error",
];

/// One byte each for what is asked, whether a stream is, how the replica ends; where its answer is split behind their number; then the answer.
pub(crate) fn check(data: &[u8]) {
    let mut input = Input(data);
    let (method, target) = input.one_of(&ASKS);
    let body = input.one_of(&BODIES);
    let ending = input.one_of(&ENDINGS);
    let splits = input.short();
    let sent = input.0;
    let pieces = input::pieces(sent, splits).into_iter().map(<[u8]>::to_vec).collect();

    let world = World::get();
    world.set_script(Some(Script { pieces, ending }));
    world.run(async {
        let mut client = world.connect().await;
        let answer = ask(&mut client, method, target, body, ending).await;
        judge(method, sent, ending, &answer);
        world.written().await;
        world.set_script(None);
        world.comes_to_rest().await;

        // Whatever is left of that answer is not taken for the next one.
        let mut client = world.connect().await;
        let Part::Whole(next) = ask(&mut client, "POST", "/v1/chat/completions", "{}", Ending::Fin).await else {
            panic!("the next request has no answer, but {}", client.came.escape_ascii());
        };
        assert_eq!(
            (next.head.status(), next.head.get("x-got"), &next.body[..]),
            (200, Some("POST /v1/chat/completions HTTP/1.1"), &b"{}"[..])
        );
        world.forgets().await;
    });
}

/// Sends a request and reads its answer.
async fn ask(client: &mut Client, method: &str, target: &str, body: &str, ending: Ending) -> Part<Answer> {
    let length = if method == "POST" || method == "PUT" { body.len() } else { 0 };
    let request = format!("{method} {target} HTTP/1.1\r\nhost: r\r\nx-fuzz: 1\r\ncontent-length: {length}\r\n\r\n{}", &body[..length]);
    client.write(&[request.as_bytes()]).await;
    // A replica that says no more is given up after a timeout.
    let mut jumps = if matches!(ending, Ending::Keep | Ending::Stale) { LONG } else { SHORT };
    loop {
        let mut rest = client.came.as_slice();
        let answer = wire::answer(&mut rest, method);
        let is_all = match &answer {
            Part::Whole(answer) => ends_itself(&answer.head, method) || client.is_closed,
            Part::Cut(_) => client.is_closed,
            Part::Odd => panic!("no answer: {}", client.came.escape_ascii()),
        };
        if is_all {
            assert!(
                rest.is_empty() || !matches!(answer, Part::Whole(_)),
                "one answer to one request, and not {}",
                client.came.escape_ascii()
            );
            return answer;
        }
        client.more(&mut jumps).await;
    }
}

/// Whether it ends somewhere, rather than with the connection.
fn ends_itself(head: &Head, method: &str) -> bool {
    let is_framed = head.get("content-length").is_some() || head.get("transfer-encoding").is_some();
    is_framed || method == "HEAD" || matches!(head.status(), 204 | 304)
}

fn judge(method: &str, sent: &[u8], ending: Ending, got: &Part<Answer>) {
    let mut rest = sent;
    let said = match wire::answer(&mut rest, method) {
        // It ends with the connection, which does not end, or breaks.
        Part::Whole(answer) if !ends_itself(&answer.head, method) && ending != Ending::Fin => Part::Cut(answer),
        said => said,
    };
    let told = || format!("{} came of {}", text(got), sent.escape_ascii());
    let is_routers = |answer: &Answer| answer.head.get("x-prefix-router-error").is_some() && answer.head.status() >= 500;
    match (said, got) {
        (_, Part::Odd) => unreachable!("looked at already"),
        // It broke before anything of it was passed on, and so does the client's connection.
        (Part::Cut(_) | Part::Odd, Part::Cut(got)) if !got.begun => {}
        (_, Part::Cut(got)) if !got.begun && ending != Ending::Reset => panic!("no answer: {}", told()),
        // A reset may overtake what was sent before it.
        (Part::Whole(said), Part::Whole(got)) if !(ending == Ending::Reset && is_routers(got)) => {
            assert_eq!(got.head.status(), said.head.status(), "{}", told());
            assert!(got.body == said.body, "byte for byte: {}", told());
            check_fields(&said.head, &got.head);
        }
        (Part::Whole(_), Part::Cut(_)) if ending != Ending::Reset => panic!("whole at the replica, not at the client: {}", told()),
        (Part::Cut(_), Part::Whole(got)) => assert!(is_routers(got), "looks whole: {}", told()),
        (Part::Cut(said) | Part::Whole(said), Part::Cut(got)) => {
            let same = said.body.iter().zip(&got.body).take_while(|(said, got)| said == got).count();
            let added = got.body[same..].trim_ascii_start();
            let is_error = (added.starts_with(b"data: {") || added.starts_with(b"event: error\ndata: {")) && added.ends_with(b"}\n\n");
            // Where what was sent begins as the error does, some of that is taken for it.
            assert!(added.is_empty() || is_error || got.body.ends_with(b"}\n\n"), "neither sent nor an error: {}", told());
        }
        (Part::Odd | Part::Whole(_), _) => {}
    }
}

/// What is no connection's own business passes as it came.
fn check_fields(said: &Head, got: &Head) {
    let named: Vec<String> =
        said.all("connection").iter().flat_map(|list| list.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
    for (name, _) in &said.fields {
        if !NOT_PASSED_ON.contains(&name.as_str()) && !named.contains(name) {
            assert_eq!(got.all(name), said.all(name), "{name}");
        }
    }
}

fn text(part: &Part<Answer>) -> String {
    match part {
        Part::Whole(answer) => format!("whole: {:?} {}", answer.head, answer.body.escape_ascii()),
        Part::Cut(answer) => format!("cut: {:?} {}", answer.head, answer.body.escape_ascii()),
        Part::Odd => "nothing".to_owned(),
    }
}
