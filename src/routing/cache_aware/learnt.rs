//! What is learnt of all engines together from what they answered: how long a token takes, how many bytes it has, and what other routers leave in the
//! caches. One bad answer moves nothing far.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A token has so many bytes of text until it is known better.
pub(super) const BYTES_PER_TOKEN: f64 = 4.0;

/// Computing a token of a prompt takes so many seconds until it is known better: between a small model's and a large one's.
const SECONDS_PER_TOKEN: f64 = 60e-6;

/// What can be believed of either.
const BELIEVABLE_SECONDS: [f64; 2] = [1e-6, 10e-3];
const BELIEVABLE_BYTES: [f64; 2] = [0.5, 16.0];

/// Weight of one answer.
const WEIGHT: f64 = 0.02;

/// One answer is taken for no more than so many times what is believed, and no less than one so-many-th.
const SURPRISE: f64 = 3.0;

/// Fewer tokens take no time that could be told from everything else's.
const LEAST_TOKENS: f64 = 256.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Learnt(Mutex<Values>);

/// Of one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub(super) seconds_per_token: f64,
    pub(super) bytes_per_token: f64,
    /// Of what this router does not know to be at a key's first choice, the share that is found there: what other routers sent.
    pub(super) credit: f64,
    /// Tokens that are to be computed for a request.
    pub(super) uncached: f64,
}

impl Default for Learnt {
    fn default() -> Self {
        let values = Values { seconds_per_token: SECONDS_PER_TOKEN, bytes_per_token: BYTES_PER_TOKEN, credit: 0.0, uncached: 500.0 };
        Self(Mutex::new(values))
    }
}

impl Learnt {
    pub(super) fn values(&self) -> Values {
        *self.lock()
    }

    /// A first byte took so many seconds, of which `other` were not for tokens of prompts, with so many tokens to compute.
    pub(super) fn first_byte(&self, tokens: f64, seconds: f64, other: f64) {
        if tokens >= LEAST_TOKENS {
            let mut values = self.lock();
            learn(&mut values.seconds_per_token, (seconds - other) / tokens, BELIEVABLE_SECONDS);
        }
    }

    /// A prompt of so many bytes has so many tokens.
    pub(super) fn prompt(&self, bytes: f64, tokens: f64) {
        if tokens >= LEAST_TOKENS {
            learn(&mut self.lock().bytes_per_token, bytes / tokens, BELIEVABLE_BYTES);
        }
    }

    /// Of what was not known to be at the first choice, so much was there.
    pub(super) fn credit(&self, share: f64) {
        let mut values = self.lock();
        values.credit += WEIGHT * (share.clamp(0.0, 1.0) - values.credit);
    }

    /// A request with so many tokens to compute was sent.
    pub(super) fn sent(&self, uncached: f64) {
        let mut values = self.lock();
        values.uncached += WEIGHT * (uncached - values.uncached);
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn learn(value: &mut f64, sample: f64, [least, most]: [f64; 2]) {
    if sample.is_finite() {
        // Less than nothing is what other times were overestimated by: less than was believed.
        let sample = sample.clamp(*value / SURPRISE, *value * SURPRISE);
        *value = (*value + WEIGHT * (sample - *value)).clamp(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_found_from_far_and_outliers_do_not_move_it() {
        for truth in [10e-6, 32e-6, 400e-6] {
            let learnt = Learnt::default();
            for number in 0..600 {
                let seconds = 2_000.0 * truth * if number % 20 == 0 { 1_000.0 } else { 1.0 };
                learnt.first_byte(2_000.0, seconds + 0.02, 0.02);
            }
            let found = learnt.values().seconds_per_token;
            assert!((found / truth - 1.0).abs() < 0.25, "{truth}: {found}");
        }
    }

    #[test]
    fn nonsense_is_not_learnt() {
        let learnt = Learnt::default();
        for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            if !nonsense.is_finite() {
                learnt.first_byte(1_000.0, nonsense, 0.0);
                learnt.prompt(nonsense, 1_000.0);
            }
            learnt.credit(0.0);
        }
        let values = learnt.values();
        assert_eq!((values.seconds_per_token, values.bytes_per_token, values.credit), (SECONDS_PER_TOKEN, BYTES_PER_TOKEN, 0.0));
        for _ in 0..10_000 {
            learnt.first_byte(1_000.0, 1e9, 0.0);
        }
        assert_eq!(learnt.values().seconds_per_token, BELIEVABLE_SECONDS[1]);
    }
}
