//! The pause between two questions of one who asks for ever.
//!
//! It knows neither what is asked nor of whom.

use std::time::Duration;

use rand::RngExt;

/// Waits for a little less than `at_most`, and never longer: so the questions of many routers, and about many replicas, spread over time.
pub async fn pause(at_most: Duration) {
    let share = rand::rng().random_range(0.9..=1.0);
    tokio::time::sleep(at_most.mul_f64(share)).await;
}
