//! Chance that is the same on every machine: a generator of its own, and distributions that use no mathematics of the platform.

use std::convert::Infallible;

use rand::TryRng;

/// A generator. Equal seeds give equal numbers, everywhere and for ever.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// Seeded. Streams of one seed with different `stream`s have nothing to do with one another.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream)))
    }

    /// Uniform in `0.0..1.0`.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.share() * bound as f64) as usize).min(bound.saturating_sub(1))
    }

    /// Exponential.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.share())
    }

    /// Normal, around 0 with deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.share()));
        radius * libm::cos(std::f64::consts::TAU * self.share())
    }

    /// Log-normal: `sigma` is the deviation of the logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * libm::exp(sigma * self.normal())
    }

    /// A log-normal number of tokens, moved into a range.
    pub fn tokens(&mut self, median: f64, sigma: f64, range: std::ops::RangeInclusive<usize>) -> usize {
        (self.log_normal(median, sigma) as usize).clamp(*range.start(), *range.end())
    }

    /// Puts a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }

    /// SplitMix64.
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

impl TryRng for Chance {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.number() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.number())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.number().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

/// Mixes all bits of a number.
pub fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Ranks from 0 on, of which the n-th comes in proportion to n to the power of -s.
#[derive(Clone, Debug)]
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// So many (at least 1) ranks; all alike where `s` is 0.
    pub fn new(ranks: usize, s: f64) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += libm::pow(rank as f64, -s);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Self(sums)
    }

    /// One of them.
    pub fn pick(&self, chance: &mut Chance) -> usize {
        let share = chance.share();
        self.0.partition_point(|&sum| sum < share).min(self.0.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_these_numbers_everywhere() {
        let mut chance = Chance::new(1, 2);
        let numbers = [chance.share(), chance.exponential(2.0), chance.log_normal(60.0, 0.5)].map(f64::to_bits);
        assert_eq!(numbers, [4_602_957_436_228_616_054, 4_620_027_892_517_281_615, 4_632_686_523_072_943_674]);
        assert_ne!(Chance::new(1, 2).share(), Chance::new(1, 3).share());
        assert_ne!(Chance::new(1, 2).share(), Chance::new(2, 2).share());
    }

    #[test]
    fn distributions_are_what_they_are_called() {
        let mut chance = Chance::new(7, 0);
        let count = 20_000;
        let mean = (0..count).map(|_| chance.exponential(3.0)).sum::<f64>() / f64::from(count);
        assert!((2.9..3.1).contains(&mean), "{mean}");
        let above = (0..count).filter(|_| chance.log_normal(60.0, 0.5) > 60.0).count();
        assert!((9_700..10_300).contains(&above), "{above}");
        let wide = (0..count).filter(|_| chance.log_normal(60.0, 0.5) > 60.0 * libm::exp(0.5)).count();
        assert!((2_900..3_450).contains(&wide), "one deviation above: 15.9 %: {wide}");
        let zipf = Zipf::new(3, 1.0);
        let first = (0..count).filter(|_| zipf.pick(&mut chance) == 0).count();
        assert!((10_600..11_200).contains(&first), "6 of 11: {first}");
        let even = Zipf::new(4, 0.0);
        let last = (0..count).filter(|_| even.pick(&mut chance) == 3).count();
        assert!((4_700..5_300).contains(&last), "{last}");
    }
}
