//! The configuration file: reads it, and puts each of its keys in its place. What a key means is in [`super::keys`].

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::errors::{ConfigError, Origin, nearest, shown};
use super::yaml::{Entry, Flaw, Shape};
use super::{Loader, keys, sagemaker, yaml};

/// Far beyond a list of a thousand replicas; what is larger is no configuration but an accident, such as `/dev/zero`.
const LARGEST: u64 = 1 << 20;

/// What a file held at one moment, or why it could not be read. Two that are equal say the same.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents(Result<Vec<u8>, String>);

/// Reads the file at `path`, through links of any kind.
pub(super) fn read(path: &Path) -> Contents {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    Contents(read.map(|_| bytes).map_err(|error| error.to_string()))
}

/// Puts the settings in `contents`, which were read at `path`, into the configuration; `named_by` named the file.
pub(super) fn apply_contents(contents: &Contents, path: &Path, named_by: &str, loader: &mut Loader) {
    let name = path.display().to_string();
    let text = match &contents.0 {
        Err(error) => Err((0, format!("cannot be read (it is named by {named_by}): {error}"))),
        Ok(bytes) if bytes.len() as u64 > LARGEST => Err((0, "is larger than 1MiB; allowed: up to 1MiB".to_owned())),
        Ok(bytes) => std::str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            (line, "is not UTF-8 from here on; allowed: YAML in UTF-8".to_owned())
        }),
    };
    match text {
        Ok(text) => apply(text, &name, loader),
        Err((line, problem)) => {
            let origin = Origin::File(Arc::from(name));
            loader.errors.push(ConfigError { origin, line, key: String::new(), setting: "", problem });
            loader.unread = true;
        }
    }
}

/// Puts the settings of `text`, the contents of the file `name`, into the configuration.
pub(super) fn apply(text: &str, name: &str, loader: &mut Loader) {
    let origin = Origin::File(Arc::from(name));
    let (root, flaws) = yaml::parse(text);
    loader.unread |= !flaws.is_empty();
    for Flaw { line, key, problem } in flaws {
        let setting = keys::find(&key).map_or("", |key| key.name);
        loader.errors.push(ConfigError { origin: origin.clone(), line, key, setting, problem });
    }
    let entries = match root.shape {
        Shape::Map(entries) => entries,
        Shape::Null | Shape::Refused => return,
        Shape::Text(_) | Shape::List(_) => {
            let problem = format!("{} stands at the top level; allowed: lines of the form KEY: VALUE", root.sort());
            loader.errors.push(ConfigError { origin, line: root.line, key: String::new(), setting: "", problem });
            loader.unread = true;
            return;
        }
    };
    let (fragment, own): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(|entry| sagemaker::TOP.contains(&entry.key.as_str()));
    sagemaker::apply(&fragment, &own, &origin, loader);
    for Entry { key: name, line, mut value } in own {
        let Some(key) = keys::find(&name) else {
            let known = keys::KEYS.iter().map(|key| key.name).chain(sagemaker::TOP);
            let problem = format!("unknown key; the nearest is {}", nearest(&name, known).unwrap_or_default());
            loader.errors.push(ConfigError { origin: origin.clone(), line, key: shown(&name), setting: "", problem });
            continue;
        };
        // A list or map may begin below its key; the error that expected a text is about the key.
        if !matches!(value.shape, Shape::Text(_)) {
            value.line = line;
        }
        loader.set(key, &origin, &value);
    }
}
