//! What a request asks: its surface, its model, and the key that placement hashes (DESIGN section 3).
//!
//! Pure: it reads a path, one header and a body, and changes none of them.

mod blocks;
mod boundaries;
mod chunks;
mod json;
mod key;
mod prompt;
mod surface;
mod unescape;
mod usage;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::sync::Arc;

use hyper::header::HeaderName;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use boundaries::{Boundaries, Boundary, MAX_BOUNDARIES};
pub use chunks::{Chunks, end_of, next_end};
pub use key::Key;
pub use surface::{Dialect, Refusal, Surface};
pub use usage::Usage;

use crate::units::{OrAuto, PrefixLength};
use chunks::ChunkHasher;
use json::{LongStrings, Malformed};
use key::KeyHasher;
use prompt::Fields;
use surface::Family;

/// The header that carries an identifier. It wins over the body's `prompt_cache_key`.
pub const IDENTIFIER_HEADER: HeaderName = HeaderName::from_static("x-amzn-sagemaker-prefix-aware-id");

/// The header that carries a priority. It wins over the body's `priority`.
pub const PRIORITY_HEADER: HeaderName = HeaderName::from_static("x-prefix-router-priority");

/// The priorities there are; lower goes first.
pub const PRIORITIES: RangeInclusive<i32> = -1_000..=1_000;

/// What makes the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How much of the prompt is hashed.
    pub prefix_length: OrAuto<PrefixLength>,
    /// What is hashed besides text.
    pub includes: Includes,
    /// Seeds every hash, so that outsiders cannot aim at one replica. Routers that shall agree need the same.
    pub hash_seed: u64,
    /// A body that is nested deeper, its own braces counted, is placed by its raw bytes.
    pub max_json_depth: usize,
    /// Whether prompts are read to their ends and divided in chunks, for a strategy that goes by what replicas hold.
    pub chunks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { prefix_length: OrAuto::Auto, includes: Includes::default(), hash_seed: 0, max_json_depth: 256, chunks: false }
    }
}

/// What is hashed besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Includes {
    /// The tool definitions, before everything else.
    pub tools: bool,
    /// Parts that are no text (image, audio, file): their URL or data.
    pub media: bool,
}

/// What one request asks of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The model it names; `None` where it names none or the body is not understood.
    pub model: Option<String>,
    /// How it is placed.
    pub placement: Placement,
    /// Its prompt in chunks, where that is asked for and it has a prompt.
    pub chunks: Option<Arc<Chunks>>,
    /// Whose it is, as far as it says: a hash of its identifier, which is not kept itself. What has to wait is fair between these.
    pub identifier: Option<u64>,
    /// Where it stands among those that wait: lower goes first, 0 where it does not say. The body's, cut to [`PRIORITIES`].
    pub priority: i32,
    /// Whether the answer is to come piece by piece, the first when the prompt is computed.
    pub streams: bool,
    /// Bytes of the body that are its prompt, as it is written there; `None` where its surface has none.
    pub prompt_bytes: Option<usize>,
    /// Whether it has a key of its raw bytes for no other reason than `max_json_depth`.
    pub too_deep: bool,
}

/// How a request is placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// It does no prefill, or none that the router knows of.
    #[default]
    ByLoad,
    /// Its prompt decides.
    ByKey(Boundaries),
}

impl Ask {
    /// Reads what a request on `surface` asks. `identifier` is the header's value, if it was sent.
    ///
    /// There is no wrong body: what cannot be read as the surface's JSON is placed by its raw bytes, and the engine judges it.
    pub fn read(surface: Surface, body: &[u8], identifier: Option<&str>, settings: &Settings) -> Self {
        Self::read_until(surface, body, identifier, settings, |_, _| false)
    }

    /// The same; where the length of the prefix is worked out, the prompt is read no further than to the first boundary that is `enough` for a request
    /// that names that model. So what need not be known of a long prompt costs nothing.
    pub fn read_until(
        surface: Surface,
        body: &[u8],
        identifier: Option<&str>,
        settings: &Settings,
        mut enough: impl FnMut(Option<&str>, &Boundary) -> bool,
    ) -> Self {
        let long = LongStrings::default();
        let understood = simdutf8::basic::from_utf8(body).ok().and_then(|text| Fields::parse(text, &long).ok());
        let family = surface.family().map(|family| if understood.is_some() { family } else { Family::Native });
        let fields = understood.unwrap_or_default();
        let too_deep = fields.depth > settings.max_json_depth && family.is_some_and(|family| family != Family::Native);
        let chunks = match family.filter(|_| settings.chunks) {
            None => None,
            Some(family) => {
                let mut hasher = ChunkHasher::new(settings.hash_seed, fields.model.as_deref(), fields.cache_salt.as_deref());
                // What an engine renders, whatever the key is made of.
                let includes = Includes { tools: true, media: true };
                if family == Family::Native || too_deep {
                    hasher.bytes(body);
                } else if fields.read_prompt(surface, includes, &mut hasher).is_err() {
                    hasher = ChunkHasher::new(settings.hash_seed, fields.model.as_deref(), fields.cache_salt.as_deref());
                    hasher.bytes(body);
                }
                Some(Arc::new(hasher.finish()))
            }
        };
        let mut enough = |boundary: &Boundary| enough(fields.model.as_deref(), boundary);
        let placement = match family {
            None => Placement::ByLoad,
            Some(family) if family == Family::Native || too_deep => {
                Placement::ByKey(native(&fields, body, identifier, settings, &mut enough))
            }
            Some(family) => {
                let mut key = KeyHasher::new(family, settings.prefix_length, settings.hash_seed, &mut enough);
                scope(&mut key, &fields, identifier);
                Placement::ByKey(match fields.read_prompt(surface, settings.includes, &mut key) {
                    Ok(()) => key.finish(),
                    // What lies behind the prefix decides nothing.
                    Err(Malformed) if key.is_settled() => key.finish(),
                    Err(Malformed) => native(&fields, body, identifier, settings, &mut enough),
                })
            }
        };
        let identifier = identifier.or(fields.prompt_cache_key.as_deref());
        Self {
            placement,
            chunks,
            identifier: identifier.map(|identifier| xxh3_64_with_seed(identifier.as_bytes(), settings.hash_seed)),
            priority: i32::try_from(fields.priority.clamp((*PRIORITIES.start()).into(), (*PRIORITIES.end()).into())).unwrap_or_default(),
            streams: fields.streams && !surface.begins_early(),
            prompt_bytes: family.map(|family| if family == Family::Native { body.len() } else { fields.prompt_bytes(surface) }),
            too_deep,
            model: fields.model,
        }
    }
}

/// The key of a body that counts as it stands, byte by byte.
fn native(
    fields: &Fields<'_>,
    body: &[u8],
    identifier: Option<&str>,
    settings: &Settings,
    enough: &mut dyn FnMut(&Boundary) -> bool,
) -> Boundaries {
    let mut key = KeyHasher::new(Family::Native, settings.prefix_length, settings.hash_seed, enough);
    scope(&mut key, fields, identifier);
    key.bytes(body);
    key.finish()
}

fn scope(key: &mut KeyHasher<'_>, fields: &Fields<'_>, identifier: Option<&str>) {
    let identifier = identifier.or(fields.prompt_cache_key.as_deref());
    key.scope(fields.model.as_deref(), identifier, fields.cache_salt.as_deref());
}

/// Whether `value` may be an identifier: 1 to 64 printable ASCII characters, the first not a space.
pub fn is_identifier(value: &[u8]) -> bool {
    (1..=64).contains(&value.len()) && value.iter().all(|byte| (b' '..=b'~').contains(byte)) && value[0] != b' '
}
