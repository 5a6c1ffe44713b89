//! The text in which metrics are shown, line by line: Prometheus' text format, and OpenMetrics where it differs.
//!
//! It knows no metric. What it cannot read it leaves out: types, help and other comments, and every line that is wrong.

/// One line that has a value: `name{label="value"} 1.5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample<'p> {
    pub(super) name: &'p str,
    /// What stands between the braces, and the one that closes them; empty where there are none.
    labels: &'p str,
    /// Any number, be it infinite or none.
    pub(super) value: f64,
}

/// The samples of a page, in its order. A last line that does not end may have been cut off within its number: it is left out.
pub(super) fn samples(page: &[u8]) -> impl Iterator<Item = Sample<'_>> {
    let lines = page.split_inclusive(|&byte| byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    lines.filter_map(|line| Sample::read(std::str::from_utf8(line).ok()?))
}

impl<'p> Sample<'p> {
    fn read(line: &'p str) -> Option<Self> {
        let line = line.trim_ascii();
        let end = line.find(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_' || sign == ':'))?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.trim_ascii_start().strip_prefix('{') {
            Some(inside) => inside.split_at(length_of_labels(inside)?),
            None => ("", rest.strip_prefix([' ', '\t'])?),
        };
        // What OpenMetrics gives as an example of what was counted is no business of ours.
        let mut numbers = rest.split(" # ").next()?.split_ascii_whitespace();
        let value = numbers.next()?.parse().ok()?;
        let is_timed = numbers.next().is_none_or(|time| time.parse::<f64>().is_ok());
        let is_named = name.starts_with(|first: char| !first.is_ascii_digit());
        (is_named && is_timed && numbers.next().is_none()).then_some(Self { name, labels, value })
    }

    /// The value of a label as it is written: what is escaped stays so.
    pub(super) fn label(&self, name: &str) -> Option<&'p str> {
        let mut rest = self.labels.trim_ascii_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            let (known, value, after) = label(rest)?;
            if known == name {
                return Some(value);
            }
            rest = after;
        }
        None
    }
}

/// How long labels are, with the brace that closes them.
fn length_of_labels(text: &str) -> Option<usize> {
    let mut rest = text.trim_ascii_start();
    while !rest.starts_with('}') {
        rest = label(rest)?.2;
    }
    Some(text.len() - rest.len() + 1)
}

/// The name and the value of the first label, and what stands behind it: another one, or the closing brace.
fn label(text: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = text.split_once('=')?;
    let name = name.trim_ascii_end();
    let value = rest.trim_ascii_start().strip_prefix('"')?;
    let end = length_of_value(value)?;
    let rest = value[end + 1..].trim_ascii_start();
    let rest = if rest.starts_with('}') { rest } else { rest.strip_prefix(',')?.trim_ascii_start() };
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((name, &value[..end], rest))
}

/// Where a value's closing quote is.
fn length_of_value(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Name and value of the only sample of a page.
    fn only(line: &str) -> Option<(String, String)> {
        let page = format!("{line}\n");
        let all: Vec<Sample<'_>> = samples(page.as_bytes()).collect();
        assert!(all.len() < 2, "{line}");
        all.first().map(|sample| (sample.name.to_owned(), format!("{:?}", sample.value)))
    }

    #[test]
    fn lines_with_a_value() {
        for (line, name, value) in [
            ("a 1", "a", "1.0"),
            ("a:b_c9 -1.5", "a:b_c9", "-1.5"),
            ("  a\t 1.7959745387470472e+09  ", "a", "1795974538.7470472"),
            ("a 1e3\r", "a", "1000.0"),
            ("a{} .5", "a", "0.5"),
            ("a {x=\"1\"}2", "a", "2.0"),
            ("a{ x = \"1\" , y=\"}{,= # \" , } 3", "a", "3.0"),
            ("a{x=\"a\\\"b\\\\\"} 4", "a", "4.0"),
            ("a{x=\"a\\\\\\\"}\"} 5", "a", "5.0"),
            ("a{x=\"é\"} 6 1795974538746", "a", "6.0"),
            ("a_total 7 1795974538.746 # {trace=\"x\"} 0.5 1795974538.7", "a_total", "7.0"),
            ("a NaN", "a", "NaN"),
            ("a +Inf", "a", "inf"),
            ("a -Inf", "a", "-inf"),
        ] {
            assert_eq!(only(line), Some((name.to_owned(), value.to_owned())), "{line}");
        }
    }

    #[test]
    fn lines_without_one() {
        for line in [
            "",
            " ",
            "# HELP a b 1",
            "# TYPE a gauge",
            "# EOF",
            "a",
            "a ",
            "a b",
            "a+5",
            "9a 1",
            "é 1",
            "a{x=\"1\"}",
            "a{x=\"1\" 1",
            "a{x=\"1} 1",
            "a{x=\"1\\\"} 1",
            "a{x=1} 1",
            "a{x} 1",
            "a{=\"1\"} 1",
            "a{,} 1",
            "a{x=\"1\"y=\"2\"} 1",
            "a{x=\"1\"},{y=\"2\"} 1",
            "{\"a\"} 1",
            "a 1 2 3",
            "a 1 b",
            "a 1,5",
            "<html> 1",
        ] {
            assert_eq!(only(line), None, "{line}");
        }
    }

    #[test]
    fn labels_are_found_by_name() {
        let page = b"a{x=\"1\", y=\"a\\\"b, z=\\\"3\" ,z=\"\",} 1\na 1\n";
        let all: Vec<Sample<'_>> = samples(page).collect();
        let found = ["x", "y", "z", "v"].map(|name| all[0].label(name));
        assert_eq!(found, [Some("1"), Some("a\\\"b, z=\\\"3"), Some(""), None]);
        assert_eq!(all[1].label("x"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_page_panics(page in proptest::collection::vec(any::<u8>(), 0..300)) {
            samples(&page).filter_map(|sample| sample.label("x")).count();
        }

        #[test]
        fn no_line_panics(line in "[a:9_]{0,3} ?(\\{[ax=\",\\\\} é]{0,20})?\\}? ?[-+0-9.einfna ]{0,8}") {
            samples(format!("{line}\n").as_bytes()).filter_map(|sample| sample.label("x")).count();
        }

        #[test]
        fn whatever_a_label_holds_it_is_found(value: String, other: String) {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let (value, other) = (escape(&value), escape(&other));
            let page = format!("a{{y=\"{other}\",x=\"{value}\"}} 1\n");
            let found: Vec<Option<&str>> = samples(page.as_bytes()).map(|sample| sample.label("x")).collect();
            prop_assert_eq!(found, [Some(value.as_str())]);
        }
    }
}
