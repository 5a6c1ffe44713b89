//! W3C trace context as text: what a `traceparent` says, and how one is written.
//!
//! Pure. Neither who is sampled nor what becomes of a `tracestate` is decided here.

use std::fmt;

/// That a trace is recorded.
const SAMPLED: u8 = 1;

/// That the trace's number is random in its lower part (level 2). Others may rely on it, so it passes on.
const RANDOM: u8 = 2;

/// Characters of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// A place in a trace: the trace, a span of it, and whether the trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// Not 0.
    pub(super) trace: u128,
    /// Not 0.
    pub(super) span: u64,
    flags: u8,
}

impl Context {
    /// A trace that begins.
    pub(super) fn root(trace: u128, span: u64, sampled: bool) -> Self {
        // All zeros say that there is nothing.
        Self { trace: trace.max(1), span: span.max(1), flags: if sampled { SAMPLED } else { 0 } }
    }

    /// What a `traceparent` says; `None` where it is not one.
    ///
    /// Of a version that is not known the beginning is read as that of version 00, which is what its authors promise; what may follow then is nobody's
    /// business here. Upper case is wrong.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let version = hex(&known[..2])? as u8;
        let is_end = match version {
            0xff => false,
            0 => rest.is_empty(),
            _ => matches!(rest.first(), None | Some(b'-')),
        };
        if !is_end || [2, 35, 52].iter().any(|&place| known[place] != b'-') {
            return None;
        }
        let (trace, span, flags) = (hex(&known[3..35])?, hex(&known[36..52])? as u64, hex(&known[53..])? as u8);
        // Flags that are not known are not passed on either.
        (trace != 0 && span != 0).then_some(Self { trace, span, flags: flags & (SAMPLED | RANDOM) })
    }

    /// Another span of the same trace, below this one.
    pub(super) fn child(self, span: u64) -> Self {
        Self { span: span.max(1), ..self }
    }

    /// Whether the trace is recorded.
    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(super) fn flags(self) -> u8 {
        self.flags
    }
}

/// As a `traceparent` of version 00.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// A number of hexadecimal digits, none of them upper case.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn check(text: &str, expected: Option<u8>) {
        let context = Context::parse(text.as_bytes());
        assert_eq!(context.map(Context::flags), expected, "{text:?}");
        if let Some(context) = context {
            assert_eq!(
                (format!("{:032x}", context.trace), format!("{:016x}", context.span)),
                (TRACE.to_owned(), SPAN.to_owned()),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_one() {
        check(&format!("00-{TRACE}-{SPAN}-00"), Some(0));
        check(&format!("00-{TRACE}-{SPAN}-01"), Some(1));
        check(&format!("00-{TRACE}-{SPAN}-03"), Some(3));
        check(&format!("00-{TRACE}-{SPAN}-ff"), Some(3));
        // Of the future.
        check(&format!("01-{TRACE}-{SPAN}-01"), Some(1));
        check(&format!("cc-{TRACE}-{SPAN}-01-what the future will be like"), Some(1));
        check(&format!("fe-{TRACE}-{SPAN}-01-"), Some(1));
    }

    #[test]
    fn what_is_none() {
        let zeros = "0".repeat(32);
        for text in [
            String::new(),
            "-".repeat(LENGTH),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("ff-{TRACE}-{SPAN}-01-more"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}"),
            format!("01-{TRACE}-{SPAN}-01.more"),
            format!("01-{TRACE}-{SPAN}-011"),
            format!("0-{TRACE}-{SPAN}-01-0"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("0X-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00_{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}_{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}_01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "é".repeat(16)),
        ] {
            check(&text, None);
        }
    }

    #[test]
    fn nothing_is_all_zeros() {
        let context = Context::root(0, 0, false);
        assert_eq!(Context::parse(context.to_string().as_bytes()), Some(context));
        assert_eq!(context.child(0).span, 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_reads_back(trace in 1u128.., span in 1u64.., sampled: bool) {
            let context = Context::root(trace, span, sampled);
            let text = context.to_string();
            prop_assert_eq!(text.len(), LENGTH);
            prop_assert_eq!(Context::parse(text.as_bytes()), Some(context));
            prop_assert_eq!(context.is_sampled(), sampled);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Context::parse(&bytes);
        }

        #[test]
        fn what_is_read_is_what_stands_there(text in "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]{0,3})?") {
            if let Some(context) = Context::parse(text.as_bytes()) {
                // The version and unknown flags aside.
                prop_assert_eq!(&context.to_string()[2..53], &text[2..53]);
                prop_assert!(&text[..2] != "ff");
            }
        }
    }
}
