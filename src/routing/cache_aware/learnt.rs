//! What is learnt of one engine from its answers: how long a token of a prompt takes, how many bytes it has, what those who generate slow others down, and
//! how far the picture of its cache can be believed. One bad answer moves nothing far.

/// A token has so many bytes of text until it is known better.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Computing a token of a prompt takes so many seconds until it is known better: between a small model's and a large one's.
const SECONDS_PER_TOKEN: f64 = 60e-6;

/// A request in flight makes a step of its batch so much longer, in seconds, until it is known better.
const DECODE_SECONDS: f64 = 140e-6;

/// What can be believed of each.
const BELIEVABLE_SECONDS: [f64; 2] = [5e-6, 10e-3];
const BELIEVABLE_BYTES: [f64; 2] = [0.5, 16.0];
const BELIEVABLE_DECODE: [f64; 2] = [5e-6, 2e-3];

/// Weight of one answer among many.
const WEIGHT: f64 = 0.02;

/// What is taken for known at first counts as much as so many answers.
const PRIOR: f64 = 5.0;

/// One answer is taken for no more than so many times what is believed, and no less than one so-many-th.
const SURPRISE: f64 = 3.0;

/// Fewer tokens take no time that could be told from everything else's.
const LEAST_TOKENS: f64 = 256.0;

/// Fewer generated tokens say nothing of how long one takes.
const LEAST_GENERATED: f64 = 8.0;

/// A request waits for so many steps of its batch, as far as what they cost it is concerned.
const STEPS: f64 = 15.0;

/// A generated token makes a step no longer than so many tokens of a prompt do: what looks like more is prompts that were computed in between.
const MOST_DECODE_TOKENS: f64 = 4.0;

/// However fast prompts are believed to be.
const LEAST_SECONDS: f64 = SECONDS_PER_TOKEN / 4.0;

/// What an engine has told counts so much less each time that another one is chosen: who gets nothing any more is as its fellows in the end.
const FADE: f64 = 0.999;

/// More than any engine has to compute, or takes for it.
const MOST_NUMBER: f64 = 1e9;
const MOST_SECONDS: f64 = 1e5;

/// A slope is learnt as far as what it is over differs: where that has so much of a variance, half of it is taken. Tokens of prompts, requests in flight.
const ENOUGH_TOKENS: f64 = 300.0 * 300.0;
const ENOUGH_REQUESTS: f64 = 2.0 * 2.0;

/// A number that is learnt, and by how many answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub(super) value: f64,
    pub(super) answers: f64,
}

impl Average {
    const fn new(value: f64) -> Self {
        Self { value, answers: 0.0 }
    }

    /// Nearer to `sample`, by no less than `weight`; by more while little is known.
    pub(super) fn learn(&mut self, sample: f64, weight: f64) {
        if sample.is_finite() {
            self.value += weight.max(1.0 / (self.answers + PRIOR)) * (sample - self.value);
            self.answers += 1.0;
        }
    }

    /// The same where a sample that is far off counts as one that is not.
    fn learn_within(&mut self, sample: f64, [least, most]: [f64; 2]) {
        // Less than nothing is what other times were overestimated by: less than was believed.
        self.learn(sample.clamp(self.value / SURPRISE, self.value * SURPRISE), WEIGHT);
        self.value = self.value.clamp(least, most);
    }

    /// The mean of what several have learnt, each by how much it knows, within reason; `None` where nobody has.
    fn mean(all: impl Iterator<Item = Self>) -> Option<f64> {
        let [sum, weights] = all.fold([0.0; 2], |[sum, weights], one| {
            let weight = one.answers.min(1.0 / WEIGHT);
            [sum + weight * one.value, weights + weight]
        });
        (weights > 0.0).then(|| sum / weights)
    }

    /// This, as far as it is known, and `others` for the rest.
    fn or(self, others: f64) -> f64 {
        (self.answers * self.value + PRIOR * others) / (self.answers + PRIOR)
    }
}

/// How a time grows with a number, over the answers of late: a straight line, of which its slope is of interest.
#[derive(Clone, Copy, Debug)]
struct Slope {
    /// What it is taken for; at first, and for as long as the number does not differ, what it was taken for before.
    slope: f64,
    /// So much of the number's variance is enough to learn from.
    enough: f64,
    believable: [f64; 2],
    /// Seconds that pass whatever the number is, until it is known better.
    usual: f64,
    answers: f64,
    number: f64,
    seconds: f64,
    spread: f64,
    common: f64,
}

impl Slope {
    const fn new(slope: f64, enough: f64, believable: [f64; 2], usual: f64) -> Self {
        Self { slope, enough, believable, usual, answers: 0.0, number: 0.0, seconds: 0.0, spread: 0.0, common: 0.0 }
    }

    fn learn(&mut self, number: f64, seconds: f64) {
        if !(0.0..=MOST_NUMBER).contains(&number) || !(0.0..=MOST_SECONDS).contains(&seconds) {
            return;
        }
        // An engine that has just started is slow at first.
        let expected =
            if self.answers < PRIOR { self.usual + self.slope * number } else { self.seconds + self.slope * (number - self.number) };
        let expected = expected.max(self.seconds / SURPRISE);
        let seconds = seconds.min(expected * SURPRISE).max(if self.answers < PRIOR { 0.0 } else { expected / SURPRISE });
        self.answers += 1.0;
        let weight = WEIGHT.max(1.0 / self.answers);
        let off = [number - self.number, seconds - self.seconds];
        self.number += weight * off[0];
        self.seconds += weight * off[1];
        self.spread = (1.0 - weight) * (self.spread + weight * off[0] * off[0]);
        self.common = (1.0 - weight) * (self.common + weight * off[0] * off[1]);
        if self.spread > 0.0 {
            let [least, most] = self.believable;
            let weight = WEIGHT.max(1.0 / (self.answers + PRIOR)) * self.spread / (self.spread + self.enough);
            self.slope += weight * ((self.common / self.spread).clamp(least, most) - self.slope);
        }
    }

    /// The same with what it is worth among others'.
    fn average(&self) -> Average {
        Average { value: self.slope, answers: self.answers }
    }
}

/// Which part of a prompt other routers may have sent to a replica, of which this one knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::routing) enum Beyond {
    /// All of it, since hardly anything is known to be anywhere: what is found at the key's first choice.
    Nothing,
    /// What comes after the part that is known to be there, where most of it is.
    Known,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learnt {
    /// Of the time to the first byte over tokens to compute.
    prefill: Slope,
    pub(super) bytes_per_token: Average,
    /// Tokens that are to be computed for a request.
    pub(super) uncached: Average,
    /// Requests in flight that are this router's, and those of others.
    own: Average,
    others: Average,
    /// Of what is beyond, the share that is found.
    credit: [Average; 2],
    /// Of what is thought to be there, the share that is found.
    pub(super) kept: Average,
    /// Of the time between two tokens of an answer over requests in flight.
    decode: Slope,
}

impl Default for Learnt {
    fn default() -> Self {
        Self {
            prefill: Slope::new(SECONDS_PER_TOKEN, ENOUGH_TOKENS, BELIEVABLE_SECONDS, 0.2),
            bytes_per_token: Average::new(BYTES_PER_TOKEN),
            uncached: Average::new(500.0),
            own: Average::new(0.0),
            others: Average::new(0.0),
            credit: [Average::new(0.0); 2],
            kept: Average::new(1.0),
            decode: Slope::new(DECODE_SECONDS, ENOUGH_REQUESTS, BELIEVABLE_DECODE, 0.05),
        }
    }
}

impl Learnt {
    /// A first byte took so many seconds, with so many tokens to compute.
    pub(super) fn first_byte(&mut self, tokens: f64, seconds: f64) {
        self.prefill.learn(tokens, seconds);
    }

    /// A prompt of so many bytes has so many tokens.
    pub(super) fn prompt(&mut self, bytes: f64, tokens: f64) {
        if tokens >= LEAST_TOKENS {
            self.bytes_per_token.learn_within(bytes / tokens, BELIEVABLE_BYTES);
        }
    }

    /// An answer's tokens came in so many seconds, with so many requests in flight.
    pub(super) fn generated(&mut self, tokens: f64, seconds: f64, requests: f64) {
        if tokens >= LEAST_GENERATED {
            self.decode.learn(requests, seconds / (tokens - 1.0));
        }
    }

    pub(super) fn seconds_per_token(&self) -> f64 {
        self.prefill.slope
    }

    /// A request is sent, maybe elsewhere.
    pub(super) fn fade(&mut self) {
        self.prefill.answers *= FADE;
        self.decode.answers *= FADE;
    }

    /// Its engine was seen with so many requests in flight.
    pub(super) fn in_flight(&mut self, own: f64, others: f64) {
        self.own.learn(own, WEIGHT);
        self.others.learn(others, WEIGHT);
    }

    /// A request with so many tokens to compute was sent.
    pub(super) fn sent(&mut self, uncached: f64) {
        self.uncached.learn(uncached, WEIGHT);
    }

    /// What was found of what was held says nothing any more.
    pub(super) fn forget_kept(&mut self) {
        self.kept = Average::new(1.0);
    }

    /// Nothing of what is thought to be held is there.
    pub(super) fn keeps_nothing(&mut self) {
        self.kept = Average { value: 0.0, answers: f64::from(u16::MAX) };
    }

    /// Of what was beyond, so much was there; it counts as much as so many answers.
    pub(super) fn found_beyond(&mut self, beyond: Beyond, share: f64, answers: f64) {
        self.credit[beyond as usize].learn(share.clamp(0.0, 1.0), WEIGHT * answers);
    }
}

/// What is taken for true of one engine, among its fellows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    /// By its own answers, but no less than its weight promises.
    pub(super) seconds_per_token: f64,
    pub(super) bytes_per_token: f64,
    /// What a request in flight costs the next one, in seconds.
    pub(super) decode_seconds: f64,
    /// Of what is thought to be there, the share that is found.
    pub(super) kept: f64,
}

/// What several engines have learnt together. What one has not learnt yet is as with its fellows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    seconds_per_token: f64,
    bytes_per_token: f64,
    decode_seconds: f64,
    credit: [f64; 2],
    kept: f64,
    /// Tokens that are to be computed for a request.
    pub(super) uncached: f64,
    /// Of all requests in flight, the share that is others'; `None` where that cannot be seen.
    pub(super) others: Option<f64>,
}

impl Together {
    /// Of engines with these weights, relative to their mean.
    pub(super) fn of<'a>(all: impl Iterator<Item = (&'a Learnt, f64)> + Clone) -> Self {
        let start = Learnt::default();
        let mean = |of: fn(&Learnt) -> Average| Average::mean(all.clone().map(|(learnt, _)| of(learnt))).unwrap_or(of(&start).value);
        // At a weight of 1.
        let seconds = |(learnt, weight): (&Learnt, f64)| {
            let Average { value, answers } = learnt.prefill.average();
            Average { value: value * weight, answers }
        };
        Self {
            seconds_per_token: Average::mean(all.clone().map(seconds)).unwrap_or(SECONDS_PER_TOKEN),
            bytes_per_token: mean(|learnt| learnt.bytes_per_token),
            decode_seconds: mean(|learnt| learnt.decode.average()),
            credit: [mean(|learnt| learnt.credit[0]), mean(|learnt| learnt.credit[1])],
            kept: mean(|learnt| learnt.kept),
            uncached: mean(|learnt| learnt.uncached),
            others: {
                let [own, others] =
                    all.clone().fold([0.0; 2], |[own, others], (learnt, _)| [own + learnt.own.value, others + learnt.others.value]);
                (own + others > 0.0).then(|| others / (own + others))
            },
        }
    }

    /// Seconds that a token of a prompt takes, as an engine's weight promises.
    pub(super) fn promised(&self, weight: f64) -> f64 {
        self.seconds_per_token / weight
    }

    /// What is taken for true of one of them.
    pub(super) fn values(&self, own: &Learnt, weight: f64) -> Values {
        let promised = self.promised(weight);
        // Slower than its weight promises counts. Where it is faster the weight is what an operator wants: less than it could take.
        let seconds_per_token = own.prefill.average().or(promised).max(promised);
        Values {
            seconds_per_token,
            bytes_per_token: own.bytes_per_token.or(self.bytes_per_token),
            decode_seconds: STEPS
                * own.decode.average().or(self.decode_seconds).min(MOST_DECODE_TOKENS * seconds_per_token.max(LEAST_SECONDS)),
            kept: own.kept.or(self.kept),
        }
    }

    /// Of what is beyond, the share that is likely to be found.
    pub(super) fn credit(&self, beyond: Beyond) -> f64 {
        self.credit[beyond as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alone(learnt: &Learnt) -> Values {
        Together::of([(learnt, 1.0)].into_iter()).values(learnt, 1.0)
    }

    #[test]
    fn a_rate_is_found_from_far_whatever_else_takes_time_and_outliers_do_not_move_it() {
        for truth in [10e-6, 32e-6, 400e-6] {
            let mut learnt = Learnt::default();
            for number in 0..900 {
                let tokens = f64::from(number * 7 % 10) * 800.0;
                let outlier = if number % 41 == 7 { 1_000.0 } else { 1.0 };
                learnt.first_byte(tokens, (0.1 + tokens * truth) * outlier);
            }
            let found = alone(&learnt).seconds_per_token;
            assert!((found / truth - 1.0).abs() < 0.3, "{truth}: {found}");
        }
    }

    #[test]
    fn what_a_request_in_flight_costs_is_learnt_from_the_time_between_tokens() {
        let mut learnt = Learnt::default();
        for number in 0..900 {
            let requests = f64::from(number % 20);
            learnt.generated(101.0, 100.0 * (12e-3 + 60e-6 * requests), requests);
        }
        let found = alone(&learnt).decode_seconds;
        assert!((found / (STEPS * 60e-6) - 1.0).abs() < 0.2, "{found}");
        // It is no more than prompts' tokens can explain.
        (0..900).for_each(|number| learnt.generated(101.0, 100.0 * 5e-3 * f64::from(number % 20), f64::from(number % 20)));
        let values = alone(&learnt);
        assert!((values.decode_seconds / (STEPS * MOST_DECODE_TOKENS * values.seconds_per_token) - 1.0).abs() < 1e-9, "{values:?}");
    }

    #[test]
    fn who_has_learnt_nothing_is_as_its_fellows_and_who_is_slow_is_slow() {
        let mut slow = Learnt::default();
        let mut usual = Learnt::default();
        for number in 0..900 {
            let tokens = f64::from(number % 10) * 800.0;
            slow.first_byte(tokens, tokens * 200e-6);
            usual.first_byte(tokens, tokens * 50e-6);
        }
        let new = Learnt::default();
        let all = [(&slow, 1.0), (&usual, 1.0), (&usual, 1.0), (&new, 1.0)];
        let together = Together::of(all.into_iter());
        let of = |learnt| together.values(learnt, 1.0).seconds_per_token;
        assert!((of(&new) / 100e-6 - 1.0).abs() < 0.1, "{}", of(&new));
        assert!(of(&slow) > 1.8 * of(&usual), "{} {}", of(&slow), of(&usual));
        // A weight says how much an operator wants there, however fast it is.
        let together = Together::of([(&usual, 0.1), (&usual, 1.9)].into_iter());
        let [little, much] = [0.1, 1.9].map(|weight| together.values(&usual, weight).seconds_per_token);
        assert!(little > 5.0 * much, "{little} {much}");
    }

    proptest! {
        /// Whatever is heard, all that is believed can be.
        #[test]
        fn nothing_unbelievable_is_learnt(
            heard in prop::collection::vec((0_u8..5, prop::num::f64::ANY, prop::num::f64::ANY, prop::num::f64::ANY), 0..60),
        ) {
            let mut learnt = Learnt::default();
            for (what, one, two, three) in heard {
                match what {
                    0 => learnt.first_byte(one, two),
                    1 => learnt.prompt(one, two),
                    2 => learnt.generated(one, two, three),
                    3 => learnt.found_beyond(Beyond::Known, one, 1.0),
                    _ => learnt.in_flight(one.abs().min(1e6), two.abs().min(1e6)),
                }
            }
            let together = Together::of([(&learnt, 1.0), (&Learnt::default(), 1.0)].into_iter());
            let Values { seconds_per_token, bytes_per_token, decode_seconds, kept } = together.values(&learnt, 1.0);
            let within = |value: f64, [least, most]: [f64; 2]| (least * 0.99..=most * 1.01).contains(&value);
            prop_assert!(within(seconds_per_token, BELIEVABLE_SECONDS), "{seconds_per_token}");
            prop_assert!(within(bytes_per_token, BELIEVABLE_BYTES), "{bytes_per_token}");
            prop_assert!(decode_seconds.is_finite() && decode_seconds > 0.0 && decode_seconds <= STEPS * BELIEVABLE_DECODE[1], "{decode_seconds}");
            prop_assert!((0.0..=1.0).contains(&kept) && (0.0..=1.0).contains(&together.credit(Beyond::Known)));
            prop_assert!(together.others.is_none_or(|others| (0.0..=1.0).contains(&others)));
        }
    }
}
