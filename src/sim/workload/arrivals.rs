//! When conversations begin.

use super::Starts;
use crate::sim::chance::Chance;

/// Of bursts: length in seconds, and the rate as a multiple of the mean; one after the other, again and again.
const BURSTS: [(f64, f64); 2] = [(8.0, 2.2), (16.0, 0.4)];

/// Seconds between the first conversations of a closed loop's clients.
const STAGGER: f64 = 0.05;

/// The moments, in seconds, of `count` conversations at `rate` in a second; of a closed loop, those of its clients' first ones.
pub fn starts(starts: Starts, count: usize, rate: f64, chance: &mut Chance) -> Vec<f64> {
    let mut now = 0.0;
    match starts {
        Starts::Closed(clients) => (0..clients.min(count)).map(|client| client as f64 * STAGGER).collect(),
        Starts::Poisson => (0..count)
            .map(|_| {
                now += chance.exponential(1.0 / rate);
                now
            })
            .collect(),
        Starts::Bursty => {
            // Time runs in phases; in each, what is left to wait passes faster or slower.
            let (mut phase, mut left) = (0, BURSTS[0].0);
            let one = |_| {
                let mut wait = chance.exponential(1.0 / rate);
                while wait > left * BURSTS[phase].1 {
                    wait -= left * BURSTS[phase].1;
                    now += left;
                    phase = (phase + 1) % BURSTS.len();
                    left = BURSTS[phase].0;
                }
                now += wait / BURSTS[phase].1;
                left -= wait / BURSTS[phase].1;
                now
            };
            (0..count).map(one).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_on_the_whole_and_bursts_are_bursts() {
        for how in [Starts::Poisson, Starts::Bursty] {
            let all = starts(how, 24_000, 10.0, &mut Chance::new(1, 0));
            assert!(all.windows(2).all(|two| two[0] <= two[1]));
            let took = all[all.len() - 1];
            assert!((2_350.0..2_450.0).contains(&took), "{how:?}: {took}");
            let in_bursts = all.iter().filter(|&&start| start % 24.0 < 8.0).count() as f64 / 24_000.0;
            let expected = if how == Starts::Bursty { 2.2 / 3.0 } else { 1.0 / 3.0 };
            assert!((in_bursts - expected).abs() < 0.02, "{how:?}: {in_bursts}");
        }
        assert_eq!(starts(Starts::Closed(3), 100, 0.0, &mut Chance::new(1, 0)).len(), 3);
    }
}
