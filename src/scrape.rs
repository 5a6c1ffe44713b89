//! Asks each replica for its engine's metrics: one task per replica, which asks one question at a time.
//!
//! Nothing depends on the answers but what is made of the readings: no health, no request. Where none comes, the last reading stays, and grows old.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::{EngineReadings, Latest, Reading};
use crate::fleet::Replica;
use crate::live::LiveFleet;
use crate::upstream::Upstream;

/// Where engines show their metrics.
const PATH: &str = "/metrics";

/// How engines are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two questions to one replica; zero: nobody is asked.
    pub interval: Duration,
    /// An answer that is not whole by then is none.
    pub timeout: Duration,
    /// Nor is one that is longer than this, in bytes.
    pub max_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), max_bytes: 4 << 20 }
    }
}

/// Is told what an engine has just said, and whether it has begun anew since it spoke before.
pub type Listener = Arc<dyn Fn(&Replica, &Latest, bool) + Send + Sync>;

/// What asking any replica needs.
#[derive(Clone)]
pub struct Scraper {
    /// Says by which settings replicas are connected to.
    pub fleet: Arc<LiveFleet>,
    /// Where answers go.
    pub readings: Arc<EngineReadings>,
    /// Who wants to know at once.
    pub listener: Listener,
    /// How often it asks, and for how long.
    pub settings: watch::Receiver<Settings>,
}

impl Scraper {
    /// Asks one replica for ever; to be ended when it leaves. `chance` gives numbers in `0.0..1.0`, which spread the questions.
    pub async fn run(self, upstream: Arc<Upstream>, chance: impl FnMut() -> f64 + Send) {
        let Self { fleet, readings, listener, settings } = self;
        let replica = Arc::clone(upstream.replica());
        // So it neither takes a connection that a request could use, nor leaves one that a request would find closed.
        let mut apart = upstream.apart();
        let ask = |max_bytes| {
            if let Some(now) = fleet.view().upstream(apart.replica()) {
                apart = apart.under_settings_of(now);
            }
            let apart = Arc::clone(&apart);
            async move { apart.get(PATH, None, max_bytes).await }
        };
        Asking { replica, readings, listener, answered: None, has_warned: false }.repeat(settings, chance, ask).await;
    }
}

type Answer = Result<(StatusCode, Bytes), Box<dyn Error + Send + Sync>>;

/// The questions to one replica.
struct Asking {
    replica: Arc<Replica>,
    readings: Arc<EngineReadings>,
    listener: Listener,
    /// Whether the last question was answered, once there was one.
    answered: Option<bool>,
    /// Whether somebody was told that it caches no prefixes.
    has_warned: bool,
}

impl Asking {
    async fn repeat<F>(
        mut self,
        mut settings: watch::Receiver<Settings>,
        mut chance: impl FnMut() -> f64 + Send,
        mut ask: impl FnMut(usize) -> F + Send,
    ) where
        F: Future<Output = Answer> + Send,
    {
        loop {
            let (begun, now) = (Instant::now(), settings.borrow_and_update().clone());
            if now.interval.is_zero() {
                self.readings.forget(self.replica.incarnation());
                self.answered = None;
                match settings.changed().await {
                    Ok(()) => continue,
                    // Nothing will ever change.
                    Err(_) => return,
                }
            }
            let answer = timeout(now.timeout, ask(now.max_bytes)).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {:?} (engine_metrics_timeout)", now.timeout).into()));
            self.take(answer.map_err(|error| error.to_string()), begun);
            tokio::select! {
                () = sleep(spread(now.interval, chance()).saturating_sub(begun.elapsed())) => {}
                // Without a sender nothing changes any more.
                Ok(()) = settings.changed() => {}
            }
        }
    }

    fn take(&mut self, answer: Result<(StatusCode, Bytes), String>, asked: Instant) {
        let name = self.replica.name();
        let reading = answer.and_then(|(status, page)| match Reading::parse(&page) {
            _ if !status.is_success() => Err(format!("the answer is {status}")),
            reading if reading.is_empty() => Err("the answer says nothing of an engine".to_owned()),
            reading => Ok(reading),
        });
        let was_answered = self.answered.replace(reading.is_ok());
        match reading {
            Ok(reading) => {
                if was_answered != Some(true) {
                    tracing::debug!(replica = name, "replica {name} shows its engine's metrics");
                }
                if reading.prefix_caching == Some(false) && !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        replica = name,
                        "replica {name} says that its engine caches no prefixes: no request is answered sooner there. Start it with --enable-prefix-caching"
                    );
                }
                if let Some((latest, is_reset)) = self.readings.put(self.replica.incarnation(), reading, asked.into_std()) {
                    (self.listener)(&self.replica, &latest, is_reset);
                }
            }
            Err(why) if was_answered != Some(false) => {
                tracing::debug!(replica = name, why, "replica {name} does not show its engine's metrics ({PATH}): {why}");
            }
            Err(_) => {}
        }
    }
}

/// A time of 80 to 120 percent of `interval`, so that the questions of many routers, and to many replicas, spread.
fn spread(interval: Duration, chance: f64) -> Duration {
    interval.mul_f64(0.8 + 0.4 * chance)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;
    use crate::engine::Latest;
    use crate::fleet::{Fleet, ReplicaSpec, health};
    use crate::units::Weight;

    /// What a replica does when it is asked: how long it takes, and what it says then.
    type Step = (Duration, Result<(u16, &'static str), &'static str>);

    /// When questions came, and when they were answered or given up.
    type Asked = Arc<Mutex<Vec<(Duration, Option<Duration>)>>>;

    /// One replica that is asked, by a script that ends with what it goes on doing.
    struct Case {
        settings: watch::Sender<Settings>,
        readings: Arc<EngineReadings>,
        begun: Instant,
        asked: Asked,
    }

    /// Takes note of how a question ended.
    struct Question {
        asked: Asked,
        number: usize,
        begun: Instant,
    }

    impl Drop for Question {
        fn drop(&mut self) {
            self.asked.lock().expect("no panic")[self.number].1 = Some(self.begun.elapsed());
        }
    }

    impl Case {
        fn start(settings: Settings, chance: f64, script: impl IntoIterator<Item = Step>) -> Self {
            let spec = ReplicaSpec { name: "a".into(), authority: "a:1".into(), weight: Weight::clamped(1), models: vec![], drain: false };
            let replica = Arc::clone(&Fleet::new(vec![spec], health::Settings::default(), 0).snapshot().replicas()[0]);
            let readings = Arc::new(EngineReadings::default());
            readings.keep([replica.incarnation()]);
            let (settings, told) = watch::channel(settings);
            let (begun, asked) = (Instant::now(), Asked::default());
            let mut script: VecDeque<Step> = script.into_iter().collect();
            let ask = {
                let asked = Arc::clone(&asked);
                move |_| {
                    let mut all = asked.lock().expect("no panic");
                    assert!(all.iter().all(|(_, ended)| ended.is_some()), "one question at a time");
                    let question = Question { asked: Arc::clone(&asked), number: all.len(), begun };
                    all.push((begun.elapsed(), None));
                    let (takes, says) = if script.len() > 1 { script.pop_front() } else { script.front().copied() }.expect("a script");
                    async move {
                        let _question = question;
                        sleep(takes).await;
                        let (status, page) = says?;
                        Ok((StatusCode::from_u16(status)?, Bytes::from_static(page.as_bytes())))
                    }
                }
            };
            let asking =
                Asking { replica, readings: Arc::clone(&readings), listener: Arc::new(|_, _, _| {}), answered: None, has_warned: false };
            tokio::spawn(asking.repeat(told, move || chance, ask));
            Self { settings, readings, begun, asked }
        }

        fn questions(&self) -> Vec<(u64, Option<u64>)> {
            let millis = |time: Duration| u64::try_from(time.as_millis()).expect("a short time");
            self.asked.lock().expect("no panic").iter().map(|&(at, ended)| (millis(at), ended.map(millis))).collect()
        }

        /// What is known: requests running, and when it was asked for that.
        fn known(&self) -> Option<(u64, u64)> {
            let Latest { reading, asked, .. } = &*self.readings.get(0)?;
            let asked = u64::try_from(asked.duration_since(self.begun.into_std()).as_millis()).expect("a short time");
            Some((reading.running.expect("a number"), asked))
        }
    }

    const ONE: Result<(u16, &str), &str> = Ok((200, "vllm:num_requests_running 1\n"));
    const TWO: Result<(u16, &str), &str> = Ok((200, "vllm:num_requests_running 2\n"));
    const NOW: Duration = Duration::ZERO;

    #[tokio::test(start_paused = true)]
    async fn questions_are_an_interval_apart_more_or_less() {
        for (chance, apart) in [(0.0, 1_600), (0.5, 2_000), (1.0, 2_400)] {
            let case = Case::start(Settings::default(), chance, [(Duration::from_millis(100), ONE)]);
            sleep(Duration::from_secs(60)).await;
            let questions = case.questions();
            assert!(questions.len() >= 25);
            for (at, next) in questions.iter().zip(&questions[1..]) {
                // Timers have a resolution of a millisecond.
                assert!((apart..=apart + 2).contains(&(next.0 - at.0)), "{chance}: {questions:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_late_wrong_or_broken_leaves_the_last_reading() {
        let late = Duration::from_secs(30);
        let script = [
            (NOW, ONE),
            (late, TWO),
            (NOW, Ok((404, "vllm:num_requests_running 2\n"))),
            (NOW, Ok((200, "<html>\n"))),
            (NOW, Ok((200, ""))),
            (NOW, Err("it broke")),
            (NOW, TWO),
        ];
        let case = Case::start(Settings::default(), 0.5, script);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(case.known(), Some((1, 0)));
        for seconds in [2, 4, 6, 8, 10] {
            sleep(Duration::from_secs(2)).await;
            assert_eq!(case.known(), Some((1, 0)), "after {seconds} s");
        }
        sleep(Duration::from_secs(2)).await;
        assert_eq!(case.known().map(|(running, asked)| (running, asked / 100)), Some((2, 120)));
        let given_up = case.questions()[1];
        assert_eq!(given_up.1.map(|ended| ended - given_up.0), Some(1_000), "after its time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_takes_longer_than_an_interval_is_asked_when_it_is_done() {
        let settings = Settings { timeout: Duration::from_secs(60), ..Settings::default() };
        let case = Case::start(settings, 0.5, [(Duration::from_secs(10), ONE)]);
        sleep(Duration::from_secs(45)).await;
        let at: Vec<u64> = case.questions().iter().map(|(at, _)| at / 1_000).collect();
        assert_eq!(at, [0, 10, 20, 30, 40]);
        assert_eq!(case.known().map(|(_, asked)| asked / 1_000), Some(30), "as of when it was asked");
    }

    #[tokio::test(start_paused = true)]
    async fn settings_hold_at_once_and_zero_means_not_at_all() {
        let off = Settings { interval: NOW, ..Settings::default() };
        let case = Case::start(off.clone(), 0.5, [(NOW, ONE)]);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(case.questions(), []);
        case.settings.send_replace(Settings { interval: Duration::from_secs(3_600), ..off.clone() });
        sleep(Duration::from_secs(60)).await;
        let known = case.known().map(|(running, asked)| (running, asked / 1_000));
        assert_eq!((case.questions().len(), known), (1, Some((1, 60))));
        case.settings.send_replace(Settings::default());
        sleep(Duration::from_secs(5)).await;
        assert_eq!(case.questions().len(), 1 + 3, "it does not wait for the end of the hour");
        case.settings.send_replace(off);
        sleep(Duration::from_secs(60)).await;
        assert_eq!((case.questions().len(), case.known()), (4, None), "what would only grow old is forgotten");
    }
}
