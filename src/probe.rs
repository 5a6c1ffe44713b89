//! Active health checks: one task per replica, so that one that hangs delays no other's check.
//!
//! It reports; what a report means is decided in `fleet`.

use std::sync::Arc;

use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::fleet::{Outcome, health};
use crate::live::LiveFleet;
use crate::upstream::Upstream;

/// An answer to a health check is a few bytes; one that is longer than this is none.
const MAX_ANSWER: usize = 64 * 1_024;

/// Checks one replica as long as it is in the fleet, and then until the last request there has ended: whoever waits there for an answer has nobody
/// else to tell that none will come.
pub async fn run(upstream: Arc<Upstream>, fleet: Arc<LiveFleet>, settings: health::Settings) {
    loop {
        let (outcome, why) = match timeout(settings.timeout, check(&upstream, &settings.path)).await {
            Ok(Ok(())) => (Outcome::CheckPassed, String::new()),
            Ok(Err(why)) => (Outcome::CheckFailed, why),
            Err(_) => (Outcome::CheckFailed, format!("{} did not answer within {:?}", settings.path, settings.timeout)),
        };
        fleet.report(upstream.replica(), outcome, &why);
        // As good a time as any to let go of connections that nobody came for.
        upstream.close_idle();
        sleep(settings.interval.mul_f64(jitter())).await;
        if is_over(&upstream, &fleet) {
            return;
        }
    }
}

fn is_over(upstream: &Arc<Upstream>, fleet: &LiveFleet) -> bool {
    let replica = upstream.replica();
    fleet.view().upstream(replica).is_none() && replica.outstanding() == 0
}

/// Spreads the checks of many routers and replicas over time, and never waits longer than configured.
fn jitter() -> f64 {
    rand::rng().random_range(0.9..=1.0)
}

async fn check(upstream: &Upstream, path: &str) -> Result<(), String> {
    let (status, _) = upstream.get(path, None, MAX_ANSWER).await.map_err(|error| error.to_string())?;
    if status.is_success() { Ok(()) } else { Err(format!("{path} answered {status}")) }
}
