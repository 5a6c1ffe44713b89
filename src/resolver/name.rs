//! One host name as those see it who connect to it: what was found there last, kept fresh beside the requests that need it.
//!
//! Nobody waits for DNS who has an earlier answer, and no lookup ends because somebody who waited for it has gone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Absence, Found, GRACE, LATE, LookupError, Resolver, Settings};

/// The host names in use, each of them once.
pub struct HostNames {
    resolver: Arc<Resolver>,
    settings: watch::Receiver<Settings>,
    known: Mutex<HashMap<String, Weak<HostName>>>,
}

impl HostNames {
    /// Names that are looked up by `resolver`, whose answers hold as `settings` say at the time.
    pub fn new(resolver: Arc<Resolver>, settings: watch::Receiver<Settings>) -> Self {
        Self { resolver, settings, known: Mutex::default() }
    }

    /// The name `host`, shared by all who use it.
    pub fn get(&self, host: &str) -> Arc<HostName> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, name| name.strong_count() > 0);
        if let Some(name) = known.get(host).and_then(Weak::upgrade) {
            return name;
        }
        let (resolver, settings) = (Arc::clone(&self.resolver), self.settings.clone());
        let name = Arc::new(HostName { host: host.to_owned(), resolver, settings, known: watch::Sender::default() });
        known.insert(host.to_owned(), Arc::downgrade(&name));
        name
    }
}

/// A host name, and what is known of it.
pub struct HostName {
    host: String,
    resolver: Arc<Resolver>,
    settings: watch::Receiver<Settings>,
    known: watch::Sender<Known>,
}

#[derive(Default)]
struct Known {
    found: Option<Found>,
    /// Why the last lookup brought nothing, if it did not.
    failure: Option<LookupError>,
    absence: Absence,
    /// Until then nobody asks again.
    until: Option<Instant>,
    /// A lookup is under way.
    asking: bool,
}

/// What a lookup's end is to the log.
enum News {
    None,
    /// It does not resolve any more, or not at all; whether there are addresses from earlier.
    Lost(LookupError, bool),
    /// It is believed to be gone.
    Gone(LookupError),
    Back,
}

impl HostName {
    /// The name itself.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its addresses: those found last, at once, while a lookup that is due goes on beside; where nothing was found yet, what that lookup brings.
    /// Where what was found is long over, as nobody needed it for a while, the lookup gets a moment. A failure holds for `min_ttl`.
    pub async fn addresses(self: &Arc<Self>) -> Result<Vec<IpAddr>, LookupError> {
        let mut news = self.known.subscribe();
        let now = Instant::now();
        let mut is_old = false;
        let begins = self.known.send_if_modified(|known| {
            is_old = known.until.is_some_and(|until| until + LATE < now);
            let is_due = !known.asking && known.until.is_none_or(|until| until <= now);
            known.asking |= is_due;
            is_due
        });
        if begins {
            tokio::spawn(Arc::clone(self).ask());
        }
        if is_old {
            let _ = timeout(GRACE, news.wait_for(|known| !known.asking)).await;
        }
        let known = news.wait_for(|known| known.found.is_some() || !known.asking).await;
        // The sender is this one's own, and is here.
        let known = known.map_err(|_| LookupError::Timeout)?;
        match (&known.found, &known.failure) {
            (Some(found), _) => Ok(found.addresses()),
            (None, failure) => Err(failure.clone().unwrap_or(LookupError::Timeout)),
        }
    }

    async fn ask(self: Arc<Self>) {
        let answer = self.resolver.addresses(&self.host).await;
        let now = Instant::now();
        let mut news = News::None;
        let settings = self.settings.borrow().clone();
        self.known.send_modify(|known| news = known.learn(answer, now, &settings));
        let host = &self.host;
        match news {
            News::None => {}
            News::Lost(error, true) => {
                tracing::warn!(host, error = error.to_string(), "{host} does not resolve, its last addresses are used: {error}");
            }
            News::Lost(error, false) => {
                tracing::warn!(host, error = error.to_string(), "{host} does not resolve, and cannot be reached until it does: {error}");
            }
            News::Gone(error) => {
                let after = settings.forget_after;
                tracing::warn!(
                    host,
                    error = error.to_string(),
                    "{host} is gone for {after:?} (dns_forget_after), its last addresses are used no longer: {error}"
                );
            }
            News::Back => tracing::info!(host, "{host} resolves again"),
        }
    }
}

impl Known {
    fn learn(&mut self, answer: Result<Found, LookupError>, now: Instant, settings: &Settings) -> News {
        self.asking = false;
        match answer {
            Ok(found) => {
                self.until = Some(now + settings.holds(found.ttl));
                self.found = Some(found.or_earlier(self.found.as_ref()));
                self.absence = Absence::default();
                if self.failure.take().is_some() { News::Back } else { News::None }
            }
            Err(error) => {
                self.until = Some(now + settings.min_ttl);
                let is_new = self.failure.replace(error.clone()).is_none();
                if self.absence.is_believed(&error, now.into_std(), settings) && self.found.take().is_some() {
                    return News::Gone(error);
                }
                if is_new { News::Lost(error, self.found.is_some()) } else { News::None }
            }
        }
    }
}
