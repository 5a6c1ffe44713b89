//! Active health checks: one task per replica, so that one that hangs delays no other's check.
//!
//! It reports; what a report means is decided in `fleet`.

use std::io::ErrorKind;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::fleet::{Outcome, State, health};
use crate::live::LiveFleet;
use crate::pause::pause;
use crate::upstream::{SendError, Upstream};

/// An answer to a health check is a few bytes; one that is longer than this is none.
const MAX_ANSWER: usize = 64 * 1_024;

/// Checks one replica as long as it is in the fleet, and then until the last request there has ended: whoever waits there for an answer has nobody
/// else to tell that none will come.
pub async fn run(mut upstream: Arc<Upstream>, fleet: Arc<LiveFleet>, mut settings: watch::Receiver<health::Settings>) {
    loop {
        let (begun, now) = (Instant::now(), settings.borrow_and_update().clone());
        let checked = timeout(now.timeout, check(&upstream, &now.path)).await;
        let checked = checked.unwrap_or_else(|_| Err(Failure::Silent(format!("{} did not answer within {:?}", now.path, now.timeout))));
        match checked {
            Ok(()) => fleet.report(upstream.replica(), Outcome::CheckPassed, ""),
            // One that is being stopped takes nothing new, and still ends what it has begun. That is for those who wait there.
            Err(Failure::Heard(_) | Failure::Refused(_)) if is_on_its_way_out(&upstream, &fleet) => {}
            Err(Failure::Refused(why)) => fleet.report(upstream.replica(), Outcome::ConnectFailed, &why),
            Err(Failure::Silent(why) | Failure::Heard(why)) => fleet.report(upstream.replica(), Outcome::CheckFailed, &why),
        }
        // As good a time as any to let go of connections that nobody came for.
        upstream.close_idle();
        tokio::select! {
            // A check that took all of it is followed by the next one at once.
            () = pause(now.interval.saturating_sub(begun.elapsed())) => {}
            // Without a sender nothing changes any more.
            Ok(()) = settings.changed() => {}
        }
        if let Some(upstream_now) = fleet.view().upstream(upstream.replica()) {
            upstream = Arc::clone(upstream_now);
        }
        if has_left(&upstream, &fleet) && upstream.replica().outstanding() == 0 {
            return;
        }
    }
}

/// How a check failed.
enum Failure {
    /// Nobody answers: not even to refuse.
    Silent(String),
    /// Somebody is there, and says no.
    Heard(String),
    /// The machine is there, and nobody listens.
    Refused(String),
}

fn is_on_its_way_out(upstream: &Arc<Upstream>, fleet: &LiveFleet) -> bool {
    let is_let_go = has_left(upstream, fleet) || fleet.view().state(upstream.replica()) == Some(State::Draining);
    is_let_go && upstream.replica().outstanding() > 0
}

fn has_left(upstream: &Arc<Upstream>, fleet: &LiveFleet) -> bool {
    fleet.view().upstream(upstream.replica()).is_none()
}

async fn check(upstream: &Upstream, path: &str) -> Result<(), Failure> {
    match upstream.get(path, None, MAX_ANSWER).await {
        Ok((status, _)) if status.is_success() => Ok(()),
        Ok((status, _)) => Err(Failure::Heard(format!("{path} answered {status}"))),
        Err(error) => match error.downcast_ref() {
            Some(SendError::Connect(cause)) if cause.kind() == ErrorKind::ConnectionRefused => Err(Failure::Refused(error.to_string())),
            Some(SendError::Connect(_)) => Err(Failure::Silent(error.to_string())),
            _ => Err(Failure::Heard(error.to_string())),
        },
    }
}
