//! Sends prompts of which no two begin alike, as fast as they are answered.
//!
//!     promptclient PORT COUNT CONNECTIONS BYTES
//!
//! COUNT chats of BYTES characters each, once each. Prints `done N` when a further tenth of them is answered, and at last one line of JSON: how many answers
//! there were of each status, and of each kind of failure. It makes them while it sends, since ten million are more than a disk should hold.
use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{ErrorKind, Write},
    rc::Rc,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const WORDS: [&str; 16] = [
    "the", "system", "should", "answer", "with", "care", "tool", "schema", "returns", "list", "of", "values", "policy", "document", "section",
    "2048",
];
/// Digits of a prompt's number, at its beginning.
const DIGITS: usize = 16;

/// What there is to send, and what came of it.
struct Run {
    count: u64,
    sent: u64,
    answered: u64,
    outcomes: BTreeMap<String, u64>,
}

impl Run {
    fn next(&mut self) -> Option<u64> {
        self.sent += 1;
        (self.sent <= self.count).then_some(self.sent)
    }

    fn note(&mut self, outcome: String) {
        *self.outcomes.entry(outcome).or_default() += 1;
        self.answered += 1;
        let tenth = |answered: u64| answered * 10 / self.count;
        if tenth(self.answered) > tenth(self.answered - 1) {
            println!("done {}", self.answered);
            std::io::stdout().flush().unwrap();
        }
    }
}

/// A request around a text of a fixed length.
struct Frame {
    head: String,
    length: usize,
    text: String,
}

impl Frame {
    fn new(port: u64, bytes: u64) -> Self {
        let length = (bytes as usize).max(DIGITS + 1) - DIGITS - 1;
        let before = r#"{"model":"stub","messages":[{"role":"user","content":""#;
        let body = before.len() + DIGITS + 1 + length + AFTER.len();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {body}\r\n\r\n{before}"
        );
        let mut text = String::new();
        while text.len() < 2 * length + 100_000 {
            text.push_str(WORDS[scattered(text.len() as u64) as usize % WORDS.len()]);
            text.push(' ');
        }
        Self { head, length, text }
    }

    fn fill(&self, number: u64, request: &mut Vec<u8>) {
        let scattered = scattered(number);
        let at = scattered as usize % (self.text.len() - self.length);
        request.clear();
        write!(request, "{}{scattered:016x} {}{AFTER}", self.head, &self.text[at..at + self.length]).unwrap();
    }
}

const AFTER: &str = r#""}],"max_tokens":16}"#;

/// Another number for each number.
fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// Reads an answer to its end, and gives its status.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    buffer.clear();
    let more = async |stream: &mut TcpStream, buffer: &mut Vec<u8>| match stream.read_buf(buffer).await {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        read => read,
    };
    let (head, status, length) = loop {
        more(stream, buffer).await?;
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Response::new(&mut fields);
        if let httparse::Status::Complete(head) = parsed.parse(buffer).map_err(|_| ErrorKind::InvalidData)? {
            let length = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse::<usize>().ok());
            break (head, parsed.code.unwrap_or_default(), length);
        }
    };
    // Without a length it comes in chunks.
    while length.map_or_else(|| !buffer.ends_with(b"0\r\n\r\n"), |length| buffer.len() < head + length) {
        more(stream, buffer).await?;
    }
    Ok(status)
}

async fn exchange(connection: &mut Option<TcpStream>, port: u64, request: &[u8], buffer: &mut Vec<u8>) -> std::io::Result<u16> {
    if connection.is_none() {
        let stream = TcpStream::connect(("127.0.0.1", port as u16)).await?;
        stream.set_nodelay(true)?;
        *connection = Some(stream);
    }
    let stream = connection.as_mut().unwrap();
    stream.write_all(request).await?;
    answer(stream, buffer).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().expect("number")).collect();
    let [port, count, connections, bytes] = numbers[..] else { panic!("promptclient PORT COUNT CONNECTIONS BYTES") };
    let frame = Rc::new(Frame::new(port, bytes));
    let run = Rc::new(RefCell::new(Run { count, sent: 0, answered: 0, outcomes: BTreeMap::new() }));
    let local = tokio::task::LocalSet::new();
    for _ in 0..connections {
        let (frame, run) = (frame.clone(), run.clone());
        local.spawn_local(async move {
            let (mut connection, mut request, mut buffer) = (None, Vec::new(), Vec::new());
            loop {
                let Some(number) = run.borrow_mut().next() else { return };
                frame.fill(number, &mut request);
                let outcome = match exchange(&mut connection, port, &request, &mut buffer).await {
                    Ok(status) => status.to_string(),
                    Err(error) => {
                        connection = None;
                        error.kind().to_string()
                    }
                };
                run.borrow_mut().note(outcome);
            }
        });
    }
    local.await;
    let outcomes: Vec<String> = run.borrow().outcomes.iter().map(|(outcome, times)| format!("\"{outcome}\":{times}")).collect();
    println!("{{{}}}", outcomes.join(","));
}
