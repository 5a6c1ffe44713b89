//! How requests count less the longer they are past: a count falls to 1/e in a thousand requests.

/// How many steps of a table stand for one of the other.
const STEPS: usize = 128;

/// What a request counts when one more has come: exp(-1/1000). A count falls to 1/e in a thousand requests: long enough for one that matters to be a dozen
/// or more, short enough to follow the hour.
pub(super) const ONE_STEP: f64 = 0.999_000_499_833_375;

/// `ONE_STEP` to the power of 0, 1, 2, …, and of 0, `STEPS`, 2 `STEPS`, …
const FINE: [f32; STEPS] = powers(ONE_STEP);
const COARSE: [f32; STEPS] = powers(power(ONE_STEP, STEPS));

/// exp(-`requests` / 1000), by multiplication alone: what a system's mathematics come to differs in the last digit from one to the next, and
/// the same traffic must be placed alike on all of them.
pub(super) fn decay(requests: u32) -> f32 {
    let requests = requests as usize;
    // What is left after 16,384 requests is less than a ten-millionth.
    if requests < STEPS * STEPS { COARSE[requests / STEPS] * FINE[requests % STEPS] } else { 0.0 }
}

const fn powers(base: f64) -> [f32; STEPS] {
    let mut powers = [0.0; STEPS];
    let mut exponent = 0;
    while exponent < STEPS {
        powers[exponent] = power(base, exponent) as f32;
        exponent += 1;
    }
    powers
}

const fn power(base: f64, exponent: usize) -> f64 {
    let (mut power, mut left) = (1.0, exponent);
    while left > 0 {
        power *= base;
        left -= 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_decay_over_a_thousand_requests() {
        for (requests, expected) in [(0_u32, 1.0), (1, 0.9990005), (693, 0.500_073_6), (1_000, 0.367_879_4), (4_000, 0.018_315_6)] {
            assert!((f64::from(decay(requests)) - expected).abs() < 1e-6, "{requests}: {}", decay(requests));
        }
        for requests in 0..20_000 {
            let exact = (-f64::from(requests) / 1_000.0).exp();
            assert!((f64::from(decay(requests)) - exact).abs() <= 2e-7, "{requests}");
        }
        assert_eq!(decay(u32::MAX), 0.0);
    }

    /// Bit for bit, on every machine.
    #[test]
    fn decay_is_pinned() {
        assert_eq!([1, 127, 128, 1_000, 9_999].map(|requests| decay(requests).to_bits()), PINNED);
    }

    const PINNED: [u32; 5] = [1_065_336_447, 1_063_352_259, 1_063_337_490, 1_052_531_377, 943_627_412];
}
