//! The house rules that a compiler does not know: which module may use which, and what the core may not do. It reads `src/` as text and
//! counts no lines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

/// What each module may use. The pure ones come first, each after what it uses; so there are no cycles among them.
const MAY_USE: [(&str, &[&str]); 30] = [
    ("units", &[]),
    ("recent", &[]),
    ("request", &["units"]),
    ("fleet", &["units", "request"]),
    ("engine", &["fleet"]),
    ("routing", &["units", "recent", "request", "fleet"]),
    ("admission", &["routing"]),
    ("sim", &["units", "recent", "request", "fleet", "routing", "admission"]),
    ("telemetry", &["units", "request", "fleet", "engine", "routing"]),
    ("pause", &[]),
    ("resolver", &["units"]),
    ("exchange", &[]),
    ("otlp", &["units", "telemetry", "resolver", "exchange"]),
    ("upstream", &["units", "request", "fleet", "telemetry", "resolver", "exchange"]),
    ("live", &["units", "request", "fleet", "routing", "telemetry", "resolver", "upstream"]),
    ("discovery", &["units", "request", "fleet", "telemetry", "pause", "resolver"]),
    ("probe", &["units", "request", "fleet", "routing", "telemetry", "pause", "live", "upstream"]),
    ("scrape", &["fleet", "engine", "live", "upstream"]),
    ("proxy", &["units", "request", "fleet", "routing", "admission", "telemetry", "live", "upstream", "exchange"]),
    ("admin", &["units", "request", "fleet", "engine", "routing", "telemetry", "live", "upstream", "proxy"]),
    ("server", &["units", "request", "fleet", "routing", "telemetry"]),
    (
        "config",
        &[
            "units",
            "request",
            "fleet",
            "routing",
            "admission",
            "telemetry",
            "resolver",
            "exchange",
            "otlp",
            "upstream",
            "live",
            "discovery",
            "probe",
            "scrape",
            "proxy",
            "admin",
            "server",
        ],
    ),
    ("demo_replica", &["units", "sim", "server"]),
    ("healthcheck", &["units"]),
    ("console", &["units", "request"]),
    ("app", EVERYTHING),
    ("demo", EVERYTHING),
    ("simulate", EVERYTHING),
    ("cli", EVERYTHING),
    ("main", EVERYTHING),
];

const EVERYTHING: &[&str] = &[
    "units",
    "recent",
    "request",
    "fleet",
    "engine",
    "routing",
    "admission",
    "sim",
    "telemetry",
    "pause",
    "resolver",
    "exchange",
    "otlp",
    "upstream",
    "live",
    "discovery",
    "probe",
    "scrape",
    "proxy",
    "admin",
    "server",
    "demo_replica",
    "healthcheck",
    "config",
    "app",
    "demo",
    "simulate",
    "cli",
];

/// Same arguments, same answer: no I/O, no tasks, no log, no clock, no randomness of the system's.
const PURE: [&str; 8] = ["units", "recent", "request", "fleet", "engine", "routing", "admission", "sim"];

/// What would make them impure, as paths begin.
const IMPURE: [&str; 26] = [
    "tokio",
    "hyper",
    "hyper_util",
    "http_body",
    "http_body_util",
    "axum",
    "tower",
    "tracing",
    "tracing_subscriber",
    "prometheus",
    "anyhow",
    "clap",
    "std::fs",
    "std::env",
    "std::io",
    "std::process",
    "std::thread",
    "std::os",
    "std::net::Tcp",
    "std::net::Udp",
    "std::net::ToSocketAddrs",
    "rand::rng",
    "rand::thread_rng",
    "rand::random",
    "rand::rngs::SysRng",
    "std::time::SystemTime",
];

/// And calls, by their end: types may be passed in, but not asked for the time or for chance.
const IMPURE_CALLS: [&str; 12] = [
    "Instant::now",
    "SystemTime::now",
    ".elapsed()",
    "from_os_rng",
    "try_from_os_rng",
    "SysRng",
    "OsRng",
    "RandomState::new",
    "thread_rng",
    "println!",
    "eprintln!",
    "thread::sleep",
];

struct Source {
    path: PathBuf,
    /// The first part of its path below `src`.
    module: String,
    text: String,
    /// The text without comments, text literals and test modules; empty for a file of tests.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&root).unwrap().with_extension("");
                let module = below.iter().next().unwrap().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).unwrap();
                let is_test = below.iter().any(|part| part == "tests");
                let code = if is_test { String::new() } else { code(&text) };
                all.push(Source { path: below, module, text, code });
            }
        }
    }
    assert!(all.len() > 10, "the sources are there");
    all.sort_by(|one, other| one.path.cmp(&other.path));
    all
}

/// Code alone: no comments, no literals, and nothing from `#[cfg(test)]` on, which stands last in a file.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text.split("\n#[cfg(test)]").next().unwrap_or_default();
    while let Some(sign) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some(raw) = raw_literal(rest) {
            raw
        } else if rest.starts_with('"') {
            literal(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with("'\\\"'") {
            4
        } else {
            code.push(sign);
            rest = &rest[sign.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// The length of the quoted text that this begins with.
fn literal(text: &str) -> usize {
    let mut escaped = false;
    for (at, sign) in text.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of `r"…"` or `r#"…"#`, if this begins with one.
fn raw_literal(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let fences = after.len() - after.trim_start_matches('#').len();
    let inner = after[fences..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(fences));
    Some(1 + fences + 1 + inner.find(&end).map_or(inner.len(), |at| at + end.len()))
}

/// Every path that the code names, with the groups of `use` taken apart: `use a::{b, c::d}` names `a::b` and `a::c::d`.
fn paths(code: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut in_use = false;
    for sign in code.chars().chain(";".chars()) {
        if sign.is_alphanumeric() || sign == '_' || sign == ':' {
            word.push(sign);
            continue;
        }
        if word == "use" {
            in_use = true;
        } else if !word.is_empty() {
            let prefix = groups.last().cloned().unwrap_or_default();
            all.push(format!("{prefix}{word}"));
        }
        match sign {
            '{' if in_use => groups.push(format!("{}{word}", groups.last().cloned().unwrap_or_default())),
            '}' if in_use => drop(groups.pop()),
            ';' => {
                in_use = false;
                groups.clear();
            }
            _ => {}
        }
        word.clear();
    }
    all
}

/// The modules of this crate that the code names by a path from its root.
fn used(source: &Source) -> Vec<String> {
    let own = ["crate::", "prefix_router::"];
    let mut all: Vec<String> = paths(&source.code)
        .iter()
        .filter_map(|path| own.iter().find_map(|root| path.strip_prefix(root)))
        .filter_map(|path| path.split("::").next())
        .filter(|module| EVERYTHING.contains(module))
        .map(str::to_owned)
        .collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn every_file_says_first_what_it_is_for() {
    for source in sources() {
        assert!(source.text.starts_with("//! "), "{} does not open with `//! `", source.path.display());
    }
}

#[test]
fn every_module_has_its_place() {
    for source in sources().iter().filter(|source| source.module != "lib") {
        let known = MAY_USE.iter().any(|(module, _)| *module == source.module);
        assert!(known, "{}: say in tests/tidy.rs what `{}` may use", source.path.display(), source.module);
    }
}

#[test]
fn dependencies_point_one_way() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some((_, allowed)) = MAY_USE.iter().find(|(module, _)| *module == source.module) else { continue };
        for module in used(&source) {
            if module != source.module && !allowed.contains(&module.as_str()) {
                wrong.push(format!("{} uses {module}", source.path.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn the_core_is_pure() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| PURE.contains(&source.module.as_str())) {
        for path in paths(&source.code) {
            let begins = |impure: &&&str| {
                path.strip_prefix(**impure)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::") || impure.ends_with("Tcp") || impure.ends_with("Udp"))
            };
            if let Some(impure) = IMPURE.iter().find(begins) {
                wrong.push(format!("{}: {impure} in {path}", source.path.display()));
            }
        }
        for call in IMPURE_CALLS.iter().filter(|call| source.code.contains(**call)) {
            wrong.push(format!("{}: {call}", source.path.display()));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |folder: &str| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = files("docs").filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    pages.extend(files("tests").map(|folder| folder.join("README.md")).filter(|page| page.is_file()));
    pages.extend(["README.md", "benches/README.md"].map(|page| root.join(page)));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text) {
            let file = link.split(['#', '?']).next().unwrap_or_default();
            count += 1;
            if !page.parent().unwrap().join(file).exists() {
                wrong.push(format!("{}: {link}", page.strip_prefix(root).unwrap().display()));
            }
        }
    }
    assert!(pages.len() > 3 && count > 3, "the pages and their links are there");
    assert_eq!(wrong, Vec::<String>::new());
}

/// The targets of a page's relative links and pictures, in Markdown and HTML.
fn links(text: &str) -> Vec<&str> {
    // Every second part is code.
    let prose = text.split("```").step_by(2);
    let all = prose.flat_map(|part| [("](", ')'), ("src=\"", '"'), ("href=\"", '"')].map(|(start, end)| (part, start, end)));
    let all = all.flat_map(|(part, start, end)| part.split(start).skip(1).filter_map(move |rest| rest.split([end, ' ']).next()));
    all.filter(|link| !link.contains(':') && !link.starts_with('#')).collect()
}

#[test]
fn the_reader_of_links_reads_links() {
    let text = "[a](b.md#c) ![d](e/f.svg \"g\") [h](https://i/j) [k](#l)\n```\n[m](n)\n```\n<img src=\"o.svg\"> [p](mailto:q@r)";
    assert_eq!(links(text), ["b.md#c", "e/f.svg", "o.svg"]);
}

#[test]
fn the_reader_of_code_reads_code() {
    let text =
        "use a::{b, c::{d, e}};\n// use x::y;\nlet s = \"use x::y // \\\" \"; f::g(r#\"x::y\"#, '\"'); /* x::y */\n#[cfg(test)]\nuse x::y;";
    let named = paths(&code(text));
    for path in ["a::b", "a::c::d", "a::c::e", "f::g"] {
        assert!(named.iter().any(|known| known == path), "no {path} in {named:?}");
    }
    assert!(named.iter().all(|path| !path.contains('x')), "{named:?}");
}
