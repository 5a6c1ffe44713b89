//! What is answered: words without meaning that follow from the prompt alone, or JSON where JSON was asked for; and where the answer ends.
//!
//! It waits for nothing: the engine says when each of these tokens is there.

use std::ops::Range;

use serde_json::json;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::prompt;
use super::tokens::{self, END, Pieces};

/// A token each: three letters and the space before them.
const WORDS: [&str; 64] = [
    " the", " sun", " was", " low", " and", " old", " men", " sat", " far", " out", " her", " dog", " ran", " off", " his", " hat", " red",
    " fox", " ate", " one", " hen", " she", " saw", " two", " big", " owl", " all", " day", " you", " can", " see", " our", " sea", " ice",
    " new", " car", " way", " air", " hot", " tea", " pot", " six", " cup", " few", " mud", " hut", " bee", " fly", " ten", " oak", " log",
    " sky", " not", " yet", " dim", " wet", " bay", " bus", " top", " bed", " map", " pen", " ink", " end",
];

/// A natural answer has this many words, and up to [`MORE_WORDS`] more.
const FEWEST_WORDS: u64 = 16;
const MORE_WORDS: u64 = 48;

/// What an answer has to look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Form {
    /// Words.
    #[default]
    Text,
    /// JSON of any form.
    Json,
    /// Exactly this.
    Exactly(String),
    /// A call of a tool.
    Call { name: String, arguments: String },
}

/// How an answer is drawn, as clients say it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sampling {
    /// Tokens at most; none: up to the model's length.
    pub(super) max_tokens: Option<usize>,
    pub(super) min_tokens: usize,
    pub(super) ignore_eos: bool,
    pub(super) stop: Vec<String>,
    pub(super) include_stop: bool,
    pub(super) seed: u64,
}

/// An answer, known before it is generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    /// What each of them adds to the text.
    pub(super) pieces: Pieces,
    /// The tool that is called.
    pub(super) call: Option<Call>,
    /// It ends by itself, not because it may be no longer.
    pub(super) complete: bool,
    /// The text that ended it.
    pub(super) stopped_by: Option<String>,
}

/// A tool call in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
    /// Which tokens its arguments are; the tokens before them bring the name.
    pub(super) written: Range<usize>,
}

impl Answer {
    /// The answer number `which` to a prompt, with at most `room` tokens.
    pub(super) fn new(prompt: &[u32], which: u64, form: &Form, sampling: &Sampling, room: usize) -> Self {
        let most = sampling.max_tokens.unwrap_or(room).min(room);
        let seed = hash(prompt, which, sampling.seed);
        let mut answer = Self::default();
        let mut ends = true;
        match form {
            Form::Text => {
                let natural = usize::try_from(FEWEST_WORDS + seed % (MORE_WORDS + 1)).unwrap_or(0).max(sampling.min_tokens);
                ends = !sampling.ignore_eos;
                answer.tokens = words(seed).take(if ends { natural.min(most) } else { most }).collect();
            }
            Form::Json => {
                let text = tokens::decode(&words(seed).take(6).collect::<Vec<_>>());
                answer.tokens = tokens::encode(&prompt::written(&json!({"answer": text.trim_start()}))).collect();
            }
            Form::Exactly(text) => answer.tokens = tokens::encode(text).take(most.saturating_add(1)).collect(),
            Form::Call { name, arguments } => {
                let [before, within, after] = prompt::call(name, arguments);
                let written = before.len()..before.len() + within.len();
                answer.tokens = [before, within, after].concat();
                answer.call = Some(Call { name: name.clone(), arguments: arguments.clone(), written });
            }
        }
        answer.complete = ends && answer.tokens.len() < most;
        answer.tokens.truncate(most);
        if answer.complete {
            answer.tokens.push(END);
        }
        answer.pieces = Pieces::new(&answer.tokens);
        answer.stop_at(&sampling.stop, sampling.include_stop);
        answer
    }

    /// All of its text.
    pub(super) fn text(&self) -> &str {
        self.pieces.text()
    }

    /// Why it ends, as OpenAI names it.
    pub(super) fn finish_reason(&self) -> &'static str {
        if self.complete { "stop" } else { "length" }
    }

    /// Ends it where one of `stops` is complete. As in vLLM, so much of a stream is held back that no part of a stop text is shown.
    fn stop_at(&mut self, stops: &[String], include: bool) {
        let stops = || stops.iter().filter(|stop| !stop.is_empty());
        let Some(longest) = stops().map(|stop| stop.chars().count()).max() else { return };
        let whole = std::mem::take(&mut self.pieces);
        let (mut text, mut ends) = (whole.text(), whole.ends());
        let found = stops().filter_map(|stop| {
            let begin = text.find(stop.as_str())?;
            let completed_by = ends.partition_point(|end| *end < begin + stop.len());
            Some((completed_by, begin, stop))
        });
        if let Some((token, begin, stop)) = found.min_by_key(|(token, begin, _)| (*token, *begin)) {
            text = &text[..if include { begin + stop.len() } else { begin }];
            ends = &ends[..=token];
            self.tokens.truncate(ends.len());
            (self.complete, self.stopped_by) = (true, Some(stop.clone()));
        }
        let held_back = if include { 0 } else { longest - 1 };
        // In signs; where the sign after those that are shown begins is kept beside it, so that no text is gone through twice.
        let (mut known, mut shown, mut begin) = (0, 0, 0);
        let mut before = 0;
        let mut ends: Vec<usize> = ends
            .iter()
            .map(|&end| {
                known += whole.text()[before..end].chars().count();
                before = end;
                let more = known.saturating_sub(held_back).saturating_sub(shown);
                shown += more;
                begin += text[begin..].chars().take(more).map(char::len_utf8).sum::<usize>();
                begin
            })
            .collect();
        if let Some(last) = ends.last_mut() {
            *last = text.len();
        }
        self.pieces = Pieces::cut(text.to_owned(), ends);
    }
}

/// Follows from all tokens of the prompt, and from nothing else that changes between runs.
fn hash(prompt: &[u32], which: u64, seed: u64) -> u64 {
    let mut hash = Xxh3::with_seed(which ^ seed.rotate_left(32));
    for token in prompt {
        hash.update(&token.to_le_bytes());
    }
    hash.digest()
}

fn words(seed: u64) -> impl Iterator<Item = u32> {
    (0_u64..).map(move |at| {
        let drawn = xxh3_64_with_seed(&at.to_le_bytes(), seed) % WORDS.len() as u64;
        tokens::encode(WORDS[usize::try_from(drawn).unwrap_or(0)]).next().unwrap_or(END)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn text(sampling: &Sampling) -> Answer {
        Answer::new(&[1, 2, 3], 0, &Form::Text, sampling, 1_000)
    }

    #[test]
    fn words_are_tokens_and_come_again() {
        let answer = text(&Sampling::default());
        assert_eq!(answer, text(&Sampling::default()));
        assert_ne!(answer, Answer::new(&[1, 2, 4], 0, &Form::Text, &Sampling::default(), 1_000));
        assert_ne!(answer, Answer::new(&[1, 2, 3], 1, &Form::Text, &Sampling::default(), 1_000));
        assert!(answer.complete && (17..=65).contains(&answer.tokens.len()));
        let mut words: Vec<&str> = answer.pieces.iter().collect();
        assert_eq!(words.pop(), Some(""));
        assert!(words.iter().all(|word| word.len() == 4));
        assert!(tokens::encode(answer.text()).chain([END]).eq(answer.tokens.iter().copied()));
    }

    #[test]
    fn lengths_are_as_asked() {
        let short = text(&Sampling { max_tokens: Some(5), ..Sampling::default() });
        assert_eq!((short.tokens.len(), short.pieces.len(), short.finish_reason()), (5, 5, "length"));
        let long = text(&Sampling { max_tokens: Some(200), ignore_eos: true, ..Sampling::default() });
        assert_eq!((long.tokens.len(), long.finish_reason()), (200, "length"));
        let longer = text(&Sampling { min_tokens: 100, ..Sampling::default() });
        assert_eq!((longer.tokens.len(), longer.finish_reason()), (101, "stop"));
    }

    #[test]
    fn a_stop_text_ends_it_and_is_not_shown() {
        let whole = text(&Sampling::default());
        let stop = whole.text()[9..13].to_owned();
        let begin = whole.text().find(&stop).expect("it is there");
        let sampling = Sampling { stop: vec!["no such".into(), stop.clone()], ..Sampling::default() };
        let answer = text(&sampling);
        assert_eq!(answer.text(), &whole.text()[..begin]);
        assert_eq!((answer.stopped_by.as_deref(), answer.finish_reason()), (Some(stop.as_str()), "stop"));
        assert_eq!(answer.tokens.len(), answer.pieces.len());
        assert_eq!(answer.tokens, whole.tokens[..(begin + 4).div_ceil(4)]);
        assert_eq!(answer.pieces.get(0), "");
        let shown = text(&Sampling { include_stop: true, ..sampling });
        assert_eq!(shown.text(), &whole.text()[..begin + 4]);
        let other = text(&Sampling { stop: vec!["no such".into()], ..Sampling::default() });
        assert_eq!((other.text(), &other.tokens), (whole.text(), &whole.tokens));
    }

    #[test]
    fn a_long_answer_is_searched_for_stop_texts_once() {
        let room = 1 << 21;
        let stop = vec!["no such".to_owned(), "nor this".to_owned()];
        let sampling = Sampling { max_tokens: Some(room), ignore_eos: true, stop, ..Sampling::default() };
        let begun = std::time::Instant::now();
        let answer = Answer::new(&[1], 0, &Form::Text, &sampling, room);
        assert!(begun.elapsed().as_secs() < 60, "searching it at each token takes hours");
        assert_eq!((answer.tokens.len(), answer.text().len()), (room, 4 * room));
        assert_eq!((answer.pieces.get(0), answer.pieces.get(1).len(), answer.pieces.get(2).len()), ("", 1, 4));
        assert_eq!(answer.pieces.get(room - 1).len(), 4 + 7);
    }

    #[test]
    fn the_stop_text_that_is_complete_first_ends_it() {
        let form = Form::Exactly("ä one two three".into());
        let ended = |stops: &[&str], include_stop| {
            let stop = stops.iter().map(|&stop| stop.into()).collect();
            Answer::new(&[1], 0, &form, &Sampling { stop, include_stop, ..Sampling::default() }, 1_000)
        };
        let answer = ended(&["one two three", "wo"], false);
        assert_eq!((answer.text(), answer.stopped_by.as_deref()), ("ä one t", Some("wo")));
        let answer = ended(&["e", "ä"], true);
        assert_eq!((answer.text(), answer.stopped_by.as_deref(), answer.tokens.len()), ("ä", Some("ä"), 1));
    }

    #[test]
    fn calls_name_their_tool_first() {
        let form = Form::Call { name: "get_weather".into(), arguments: r#"{"city": "Zürich"}"#.into() };
        let answer = Answer::new(&[1], 0, &form, &Sampling::default(), 1_000);
        let text = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\"}}\n</tool_call>";
        assert_eq!(answer.text(), text);
        let call = answer.call.clone().expect("it calls");
        assert_eq!((call.name.as_str(), call.arguments.as_str()), ("get_weather", r#"{"city": "Zürich"}"#));
        assert_eq!(answer.pieces.range(call.written), call.arguments);
        let cut = Answer::new(&[1], 0, &form, &Sampling { max_tokens: Some(3), ..Sampling::default() }, 1_000);
        assert_eq!((cut.text(), cut.finish_reason()), ("<tool_call>\n", "length"));
        let json = Answer::new(&[1], 0, &Form::Json, &Sampling::default(), 1_000);
        assert!(serde_json::from_str::<Value>(json.text()).is_ok_and(|value| value["answer"].is_string()));
    }
}
