//! Numbers, sizes, times and addresses as texts: reading and printing.
//!
//! Sizes: `B`, `KiB`, `MiB`, `GiB` (powers of 1024), `kB`, `MB`, `GB` (powers of 1000); a plain number is bytes.
//! Times: those of `humantime` (`1s 500ms`, `1m30s`), and `0`. Whether a value is allowed is not decided here.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// `true` or `false` as YAML writes them.
pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A whole number, decimal or `0x…`, as YAML has them. One beyond `u64` (or below 0) is a number nonetheless, and out
/// of every range: [`Whole::Beyond`].
pub(super) fn whole(text: &str) -> Option<Whole> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text.strip_prefix(['-', '+']).unwrap_or(text), 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    Some(match u64::from_str_radix(digits, radix) {
        Ok(number) if number == 0 || !text.starts_with('-') => Whole::Number(number),
        _ => Whole::Beyond,
    })
}

/// What [`whole`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Number(u64),
    /// Negative, or too large for `u64`.
    Beyond,
}

/// The number if it lies in the range, else why not; `unreadable` where there is none.
pub(super) fn in_range(found: Option<Whole>, unreadable: &'static str, range: RangeInclusive<u64>) -> Result<u64, &'static str> {
    match found {
        Some(Whole::Number(number)) if range.contains(&number) => Ok(number),
        Some(_) => Err("is out of range"),
        None => Err(unreadable),
    }
}

/// Units of size, the larger before the smaller so that printing takes the largest that fits.
const SIZES: [(&str, u64); 9] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

/// A size in bytes; `None` where the text is none.
pub(super) fn size(text: &str) -> Option<Whole> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = SIZES.iter().find(|(name, _)| *name == unit)?;
    Some(match whole(number.trim_end())? {
        Whole::Number(number) => number.checked_mul(*factor).map_or(Whole::Beyond, Whole::Number),
        Whole::Beyond => Whole::Beyond,
    })
}

/// A size in the largest unit of 1024 that divides it.
pub(super) fn print_size(bytes: u64) -> String {
    let unit = SIZES.iter().take(3).find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    unit.map_or_else(|| bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}

/// A time, or what is wrong with the text.
pub(super) fn time(text: &str) -> Result<Duration, &'static str> {
    let digits = |c: char| c.is_ascii_digit();
    if !text.is_empty() && text.chars().all(digits) {
        let zero = text.chars().all(|c| c == '0');
        return if zero { Ok(Duration::ZERO) } else { Err("has no unit, such as s or ms") };
    }
    crate::units::time(text)
}

/// A time in the largest of h, s, ms, ns that divides it. Not in minutes: timeouts are spoken of in seconds.
pub(super) fn print_time(time: Duration) -> String {
    let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
    match (seconds, nanos) {
        (1.., 0) if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        (_, 0) => format!("{seconds}s"),
        _ if nanos.is_multiple_of(1_000_000) => format!("{}ms", time.as_millis()),
        _ => format!("{}ns", time.as_nanos()),
    }
}

/// A socket address; `:8080` is all IPv4 addresses, `localhost:8080` is 127.0.0.1. No names beyond that: to listen on
/// what a resolver says today would be a different place tomorrow.
pub(super) fn address(text: &str) -> Option<SocketAddr> {
    let port = |rest: &str| {
        let digits = !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit());
        digits.then(|| rest.parse().ok()).flatten()
    };
    if let Some(rest) = text.strip_prefix("localhost:") {
        return Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port(rest)?)));
    }
    match text.strip_prefix(':') {
        Some(rest) => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(rest)?))),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        for (text, expected) in [
            ("0", Some(Whole::Number(0))),
            ("4096", Some(Whole::Number(4_096))),
            ("+5", Some(Whole::Number(5))),
            ("0x1000", Some(Whole::Number(4_096))),
            ("18446744073709551615", Some(Whole::Number(u64::MAX))),
            ("18446744073709551616", Some(Whole::Beyond)),
            ("-1", Some(Whole::Beyond)),
            ("-0", Some(Whole::Number(0))),
            ("", None),
            ("-", None),
            ("+-5", None),
            ("0x", None),
            ("0x-5", None),
            ("4_096", None),
            ("4096.0", None),
            ("1e3", None),
            ("four", None),
            (" 5", None),
            ("٣", None),
        ] {
            assert_eq!(whole(text), expected, "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("0", Some(Whole::Number(0))),
            ("1024", Some(Whole::Number(1_024))),
            ("7B", Some(Whole::Number(7))),
            ("16MiB", Some(Whole::Number(16 << 20))),
            ("16 MiB", Some(Whole::Number(16 << 20))),
            ("4GiB", Some(Whole::Number(4 << 30))),
            ("1kB", Some(Whole::Number(1_000))),
            ("1GB", Some(Whole::Number(1_000_000_000))),
            ("99999999999999GiB", Some(Whole::Beyond)),
            ("-1MiB", Some(Whole::Beyond)),
            ("16M", None),
            ("16mib", None),
            ("1.5MiB", None),
            ("MiB", None),
            ("", None),
            ("0x10", None),
        ] {
            assert_eq!(size(text), expected, "{text:?}");
        }
        for (bytes, expected) in
            [(0, "0"), (1, "1"), (1_000, "1000"), (1_024, "1KiB"), (64 << 10, "64KiB"), (1_536, "1536"), (4 << 30, "4GiB")]
        {
            assert_eq!(print_size(bytes), expected);
            assert_eq!(size(expected), Some(Whole::Number(bytes)));
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Ok(Duration::ZERO)),
            ("0s", Ok(Duration::ZERO)),
            ("30s", Ok(Duration::from_secs(30))),
            ("1m30s", Ok(Duration::from_secs(90))),
            ("1.5s", Ok(Duration::from_millis(1_500))),
            ("100 ms", Ok(Duration::from_millis(100))),
            ("30", Err("has no unit, such as s or ms")),
            ("", Err("is not a time")),
            ("-1s", Err("is not a time")),
            ("soon", Err("is not a time")),
            ("1x", Err("is not a time")),
            ("18446744073709551615s 1000ms", Err("is not a time of sensible length")),
            ("99999999999999999999999s", Err("is not a time of sensible length")),
        ] {
            assert_eq!(time(text), expected, "{text:?}");
        }
        for (value, expected) in [
            (Duration::ZERO, "0s"),
            (Duration::from_secs(600), "600s"),
            (Duration::from_secs(7_200), "2h"),
            (Duration::from_millis(4_900), "4900ms"),
            (Duration::from_micros(1), "1000ns"),
        ] {
            assert_eq!(print_time(value), expected);
            assert_eq!(time(expected), Ok(value));
        }
    }

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("[::1]:80", Some("[::1]:80")),
            (":8080", Some("0.0.0.0:8080")),
            ("localhost:0", Some("127.0.0.1:0")),
            ("8080", None),
            ("0.0.0.0", None),
            (":+80", None),
            (":65536", None),
            ("::1:80", None),
            ("example.com:80", None),
        ] {
            assert_eq!(address(text).map(|a| a.to_string()).as_deref(), expected, "{text:?}");
        }
    }
}
