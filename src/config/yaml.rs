//! The file as a tree in which every node knows its line.
//!
//! Built from the parser's events rather than by its loader, for three reasons: duplicate keys are seen with both
//! lines, texts stay as they were written (`name: on` is the text `on`), and no depth or alias can blow it up. It
//! gives no meaning to any key.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::errors::shown;

/// Deeper than any configuration of ours; keeps hostile nesting from the stack.
const DEEPEST: usize = 16;

/// A value and the line it begins on (0 outside a file).
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) shape: Shape,
}

/// What a node is.
#[derive(Debug)]
pub(super) enum Shape {
    /// Nothing, `~` or `null`.
    Null,
    /// A scalar as written, quotes and escapes resolved. It is for the reader to see a number in it.
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Something refused, of which a [`Flaw`] tells.
    Refused,
}

/// One `key: value` of a map. Keys of one map are distinct.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Node,
}

impl Node {
    /// A text from outside a file.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { line: 0, shape: Shape::Text(text.into()) }
    }

    /// Whether nothing was written, so that the default holds.
    pub(super) fn is_null(&self) -> bool {
        matches!(self.shape, Shape::Null)
    }

    /// The node in words, for an error that expected another.
    pub(super) fn sort(&self) -> &'static str {
        match self.shape {
            Shape::Null => "nothing",
            Shape::Text(_) => "a text",
            Shape::List(_) => "a list",
            Shape::Map(_) => "a map",
            Shape::Refused => "something refused",
        }
    }
}

/// Something wrong with the text as YAML.
#[derive(Debug)]
pub(super) struct Flaw {
    pub(super) line: usize,
    /// The key concerned; empty where there is none.
    pub(super) key: String,
    pub(super) problem: String,
}

/// Reads one document. What could be read is returned with the flaws found on the way; after a syntax error that is
/// nothing, since half a file would lead to false errors.
pub(super) fn parse(text: &str) -> (Node, Vec<Flaw>) {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let outcome = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => Err(Flaw {
                line: error.marker().line(),
                key: String::new(),
                problem: format!("column {}: not YAML: {}", error.marker().col() + 1, error.info()),
            }),
        };
        if let Err(fatal) = outcome {
            builder.flaws.push(fatal);
            return (Node { line: 0, shape: Shape::Refused }, builder.flaws);
        }
    }
    (builder.root.unwrap_or(Node { line: 0, shape: Shape::Null }), builder.flaws)
}

#[derive(Default)]
struct Builder {
    documents: usize,
    open: Vec<Open>,
    root: Option<Node>,
    flaws: Vec<Flaw>,
}

/// A list or map whose end has not come yet.
enum Open {
    List {
        line: usize,
        items: Vec<Node>,
    },
    /// `seen` has the line of each key; a search of `entries` would take minutes over a large file of nothing but keys.
    Map {
        line: usize,
        entries: Vec<Entry>,
        seen: HashMap<String, usize>,
        key: Option<Node>,
    },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Flaw> {
        let line = span.start.line();
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let problem = "a second document begins here; allowed: one document";
                    return Err(Flaw { line, key: String::new(), problem: problem.to_owned() });
                }
            }
            Event::Scalar(text, style, _, tag) => {
                let shape = match (&*text, style) {
                    _ if self.refuse_tag(line, tag.as_deref()) => Shape::Refused,
                    ("" | "~" | "null" | "Null" | "NULL", ScalarStyle::Plain) => Shape::Null,
                    _ => Shape::Text(text.into_owned()),
                };
                self.place(Node { line, shape });
            }
            Event::Alias(_) => {
                self.flaw(line, "an alias (*) is not supported; write the value out");
                self.place(Node { line, shape: Shape::Refused });
            }
            Event::SequenceStart(_, tag) => {
                self.refuse_tag(line, tag.as_deref());
                self.open(line, Open::List { line, items: Vec::new() })?;
            }
            Event::MappingStart(_, tag) => {
                self.refuse_tag(line, tag.as_deref());
                self.open(line, Open::Map { line, entries: Vec::new(), seen: HashMap::new(), key: None })?;
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { line, items }) => self.place(Node { line, shape: Shape::List(items) }),
                Some(Open::Map { line, entries, .. }) => self.place(Node { line, shape: Shape::Map(entries) }),
                None => {}
            },
        }
        Ok(())
    }

    fn open(&mut self, line: usize, open: Open) -> Result<(), Flaw> {
        if self.open.len() >= DEEPEST {
            let problem = format!("nested too deeply; allowed: {DEEPEST} levels");
            return Err(Flaw { line, key: String::new(), problem });
        }
        self.open.push(open);
        Ok(())
    }

    /// Puts a finished node where it belongs: into the list or map around it, or at the top.
    fn place(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, seen, key, .. }) => match key.take() {
                None => *key = Some(node),
                Some(name) => {
                    if let Err(flaw) = enter(entries, seen, name, node) {
                        self.flaws.push(flaw);
                    }
                }
            },
        }
    }

    /// Tags of YAML's own (`!!str`) say what we find out anyway; others ask for what we do not know.
    fn refuse_tag(&mut self, line: usize, tag: Option<&Tag>) -> bool {
        let foreign = tag.filter(|tag| !tag.is_yaml_core_schema() && !tag.suffix.is_empty());
        if let Some(tag) = foreign {
            self.flaw(line, format!("the tag {} is not supported; leave it out", shown(&tag.to_string())));
        }
        foreign.is_some()
    }

    fn flaw(&mut self, line: usize, problem: impl Into<String>) {
        self.flaws.push(Flaw { line, key: String::new(), problem: problem.into() });
    }
}

/// Adds `name: value` to the entries of a map, unless `name` is no key or is there already.
fn enter(entries: &mut Vec<Entry>, seen: &mut HashMap<String, usize>, name: Node, value: Node) -> Result<(), Flaw> {
    let line = name.line;
    let key = match name.shape {
        Shape::Text(key) => key,
        Shape::Refused => return Ok(()),
        _ => {
            let problem = format!("{} stands where a key belongs", name.sort());
            return Err(Flaw { line, key: String::new(), problem });
        }
    };
    if key == "<<" {
        let problem = "merge keys are not supported; write the keys out".to_owned();
        return Err(Flaw { line, key, problem });
    }
    if let Some(first) = seen.get(&key) {
        let problem = format!("given twice, on lines {first} and {line}; allowed: once");
        return Err(Flaw { line, key: shown(&key), problem });
    }
    seen.insert(key.clone(), line);
    entries.push(Entry { key, line, value });
    Ok(())
}
