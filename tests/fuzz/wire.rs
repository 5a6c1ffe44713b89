//! HTTP/1.1 read strictly, from bytes that are all there: what is beyond doubt, and no more. It is no part of the product nor of what that is
//! built on, so that both can be held against it.

/// The head of a request or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The first line.
    pub(crate) start: String,
    /// Names in lower case, values without the space around them, each byte a character.
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(field, _)| field == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The second word of the first line.
    pub(crate) fn second(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// Of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.second().parse().unwrap_or_default()
    }
}

/// How a part of a message came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part<T> {
    /// It is all there; then what follows it begins.
    Whole(T),
    /// It begins well, but ends before its end.
    Cut(T),
    /// Nothing that is beyond doubt.
    Odd,
}

/// What tells where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    UntilClosed,
}

/// A whole answer, or what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    /// Whether the head is all there.
    pub(crate) begun: bool,
}

/// A whole request, or what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The method.
    pub(crate) fn method(&self) -> &str {
        self.head.start.split(' ').next().unwrap_or_default()
    }

    /// What it is about, as it was sent.
    pub(crate) fn target(&self) -> &str {
        self.head.second()
    }
}

/// Reads the head that `bytes` begin with; taken off them where it is whole.
pub(crate) fn head(bytes: &mut &[u8]) -> Part<Head> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let text: String = bytes[..end.unwrap_or(bytes.len())].iter().map(|&byte| char::from(byte)).collect();
    let whole = |byte: char| matches!(byte, '\t' | ' '..='~' | '\u{80}'..);
    let mut lines: Vec<&str> = text.split("\r\n").collect();
    let mut odd = false;
    if end.is_none() {
        // The last line may become whatever it likes, but for what it is already.
        let last = lines.pop().unwrap_or_default();
        odd |= !last.strip_suffix('\r').unwrap_or(last).chars().all(whole);
    }
    let mut lines = lines.into_iter();
    let start = lines.next().unwrap_or_default().to_owned();
    odd |= !start.chars().all(whole) || start.starts_with(' ');
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or(("", line));
        odd |= name.is_empty() || !name.bytes().all(is_token) || !value.chars().all(whole);
        fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
    }
    let found = Head { start, fields };
    match end {
        _ if odd => Part::Odd,
        Some(end) => {
            *bytes = &bytes[end + 4..];
            Part::Whole(found)
        }
        None => Part::Cut(found),
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What the fields say of where the body ends; `None` where they leave doubts.
pub(crate) fn framing(head: &Head, otherwise: Framing) -> Option<Framing> {
    match (&head.all("transfer-encoding")[..], &head.all("content-length")[..]) {
        ([], []) => Some(otherwise),
        ([], [length]) if (1..=9).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().ok().map(Framing::Length)
        }
        ([encoding], []) if encoding.eq_ignore_ascii_case("chunked") && head.start.contains("HTTP/1.1") => Some(Framing::Chunked),
        _ => None,
    }
}

/// Reads the body that `bytes` begin with; taken off them where it is whole.
pub(crate) fn body(bytes: &mut &[u8], framing: Framing) -> Part<Vec<u8>> {
    match framing {
        Framing::UntilClosed => Part::Whole(std::mem::take(bytes).to_vec()),
        Framing::Length(length) => match bytes.split_at_checked(length) {
            Some((body, rest)) => {
                *bytes = rest;
                Part::Whole(body.to_vec())
            }
            None => Part::Cut(bytes.to_vec()),
        },
        Framing::Chunked => chunks(bytes),
    }
}

fn chunks(bytes: &mut &[u8]) -> Part<Vec<u8>> {
    let (mut rest, mut body) = (*bytes, Vec::new());
    loop {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = std::str::from_utf8(&rest[..digits]).ok().and_then(|digits| usize::from_str_radix(digits, 16).ok());
        rest = &rest[digits..];
        match size {
            Some(_) if digits > 6 => return Part::Odd,
            None if rest.is_empty() => return Part::Cut(body),
            None => return Part::Odd,
            Some(size) => {
                if let Some(short) = line_end(&mut rest) {
                    return short.map_or(Part::Odd, |()| Part::Cut(body));
                }
                let here = size.min(rest.len());
                body.extend_from_slice(&rest[..here]);
                rest = &rest[here..];
                if here < size {
                    return Part::Cut(body);
                }
                // After the last chunk there may be trailers, which are another matter.
                if let Some(short) = line_end(&mut rest) {
                    return short.map_or(Part::Odd, |()| Part::Cut(body));
                }
                if size == 0 {
                    *bytes = rest;
                    return Part::Whole(body);
                }
            }
        }
    }
}

/// Takes a line end off: nothing where that went well, else whether the bytes ended before it did.
fn line_end(rest: &mut &[u8]) -> Option<Option<()>> {
    if let Some(after) = rest.strip_prefix(b"\r\n") {
        *rest = after;
        return None;
    }
    Some(b"\r\n".starts_with(rest).then_some(()))
}

/// Reads one answer to a request with this method from `bytes`, those of status 1xx before it passed over. Where it is whole it is taken off them.
///
/// It ends with the connection, if nothing else tells where it ends.
pub(crate) fn answer(bytes: &mut &[u8], method: &str) -> Part<Answer> {
    loop {
        let mut rest = *bytes;
        let head = match head(&mut rest) {
            Part::Whole(head) => head,
            Part::Cut(head) => return Part::Cut(Answer { head, body: Vec::new(), begun: false }),
            Part::Odd => return Part::Odd,
        };
        let mut words = head.start.splitn(3, ' ');
        let (version, status, reason) = (words.next(), words.next().unwrap_or_default(), words.next());
        let is_status = status.len() == 3
            && status.bytes().all(|byte| byte.is_ascii_digit())
            && ('1'..='5').contains(&char::from(status.as_bytes()[0]));
        if !matches!(version, Some("HTTP/1.1" | "HTTP/1.0")) || !is_status || reason.is_none() || head.status() == 101 {
            return Part::Odd;
        }
        if head.status() < 200 {
            *bytes = rest;
            continue;
        }
        let bodiless = method == "HEAD" || matches!(head.status(), 204 | 304);
        let Some(framing) = framing(&head, Framing::UntilClosed) else { return Part::Odd };
        return match body(&mut rest, if bodiless { Framing::Length(0) } else { framing }) {
            Part::Whole(body) => {
                *bytes = rest;
                Part::Whole(Answer { head, body, begun: true })
            }
            Part::Cut(body) => Part::Cut(Answer { head, body, begun: true }),
            Part::Odd => Part::Odd,
        };
    }
}

/// Reads one request from `bytes`. Where it is whole it is taken off them.
pub(crate) fn request(bytes: &mut &[u8]) -> Part<Request> {
    let mut rest = *bytes;
    let head = match head(&mut rest) {
        Part::Whole(head) => head,
        Part::Cut(head) => return Part::Cut(Request { head, body: Vec::new() }),
        Part::Odd => return Part::Odd,
    };
    let words: Vec<&str> = head.start.split(' ').collect();
    let is_line = matches!(words[..], [method, target, "HTTP/1.1"]
        if !method.is_empty() && method.bytes().all(is_token) && !target.is_empty());
    let Some(framing) = framing(&head, Framing::Length(0)).filter(|_| is_line && head.all("host").len() == 1) else { return Part::Odd };
    match body(&mut rest, framing) {
        Part::Whole(body) => {
            *bytes = rest;
            Part::Whole(Request { head, body })
        }
        Part::Cut(body) => Part::Cut(Request { head, body }),
        Part::Odd => Part::Odd,
    }
}

/// The bytes of a text that has one character for each.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    text.chars().map(|byte| u8::try_from(u32::from(byte)).expect("one character for each byte")).collect()
}
