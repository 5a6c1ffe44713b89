//! Admission to a fleet to which nothing is sent: who goes when, with timers on paused time and from many threads.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::time::advance;

use super::*;
use crate::fleet::{Outcome, ReplicaSpec, health};
use crate::live;
use crate::resolver::{self, HostNames, Resolver};
use crate::routing;
use crate::units::Weight;
use crate::upstream;

/// Admission to a fleet of replicas "0", "1", …, all up, to which nothing is sent.
struct Scene {
    admission: Arc<Admission>,
    chooser: Arc<Chooser>,
    settings: Settings,
    cut: CancellationToken,
}

/// What a request waits for.
type Admitted<'a> = Pin<Box<dyn Future<Output = Result<Option<Chosen>, ProxyError>> + 'a>>;

impl Scene {
    async fn new(replicas: usize, settings: Settings) -> Self {
        let metrics = Metrics::new(&Default::default()).expect("metrics");
        let resolver = resolver::Settings { servers: vec![([127, 0, 0, 1], 9).into()], ..resolver::Settings::default() };
        let asking = Arc::new(Resolver::new(&resolver).expect("it asks nobody yet"));
        let names = HostNames::new(asking, watch::channel(resolver).1);
        let under = live::Settings { health: health::Settings::default(), upstream: upstream::Settings::default(), hash_seed: 0 };
        let fleet = LiveFleet::new(under, names, Arc::clone(&metrics)).expect("a fleet");
        let specs = (0..replicas).map(|number| ReplicaSpec {
            name: number.to_string(),
            authority: format!("127.0.0.1:{}", number + 1),
            weight: Weight::clamped(1),
            models: Vec::new(),
            drain: false,
        });
        fleet.set(specs.collect(), true).await.expect("replicas");
        for replica in fleet.view().replicas() {
            fleet.report(replica, Outcome::CheckPassed, "");
        }
        let admission = Admission::new(fleet, metrics, settings.clone());
        let chooser = Arc::new(Chooser::new(&routing::Settings::default()));
        Self { admission, chooser, settings, cut: CancellationToken::new() }
    }

    /// A request of `size` bytes that has just come and goes by load.
    fn caller<'a>(&'a self, ask: &'a Ask, size: usize, clients: Option<Patience>) -> Caller<'a> {
        let (chooser, settings, arrived) = (&self.chooser, &self.settings, Instant::now().into_std());
        Caller { ask, aim: &Aim::ByLoad, tried: &[], chooser, settings, size, arrived, clients }
    }

    /// A request that has tried to get in once. It waits no longer when it is dropped.
    fn ask(&self, clients: Option<Patience>) -> Admitted<'_> {
        let mut admitted: Admitted<'_> = Box::pin(async move {
            let ask = Ask::default();
            let caller = self.caller(&ask, 10, clients);
            let mut record = Record::new(
                Arc::clone(&self.admission.metrics),
                crate::routing::StrategyName::PrefixAware,
                hyper::Method::POST,
                "/",
                &hyper::header::HeaderValue::from_static("id"),
            );
            self.admission.admit(caller, &self.cut, &mut record).await
        });
        assert!(poll(&mut admitted).is_none(), "there is room");
        admitted
    }

    /// A request that finds room at once.
    fn get(&self) -> Chosen {
        let ask = Ask::default();
        match self.admission.enter(self.caller(&ask, 10, None)) {
            Ok(Ok(Some(chosen))) => chosen,
            _ => panic!("there is no room"),
        }
    }

    fn limit(&self, max_outstanding: u64, queue_max_requests: usize) {
        self.admission.follow(Settings { max_outstanding, queue_max_requests, ..self.settings.clone() });
    }

    fn waiting(&self) -> usize {
        self.admission.waiting.load(Ordering::Relaxed)
    }

    fn total(&self) -> u64 {
        self.admission.total.load(Ordering::Relaxed)
    }
}

fn poll(admitted: &mut Admitted<'_>) -> Option<Result<Option<Chosen>, ProxyError>> {
    match pin!(admitted).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn one_at_a_time() -> Settings {
    Settings { max_outstanding: 1, ..Settings::default() }
}

#[tokio::test]
async fn a_raised_limit_lets_in_at_once_and_a_lowered_bound_throws_nobody_out() {
    let scene = Scene::new(1, one_at_a_time()).await;
    let _first = scene.get();
    let mut waiting = [scene.ask(None), scene.ask(None), scene.ask(None)];
    scene.limit(1, 0);
    assert_eq!(scene.waiting(), 3);
    scene.limit(3, 0);
    let got = waiting.each_mut().map(|waiting| poll(waiting).map(|result| result.expect("no error").expect("a replica")));
    assert_eq!(got.iter().filter(|got| got.is_some()).count(), 2);
    assert_eq!((scene.waiting(), scene.total()), (1, 3));
    // Off: whoever waits yet goes.
    scene.limit(0, 0);
    assert_eq!((scene.waiting(), scene.total()), (0, 4));
}

#[tokio::test]
async fn a_choice_that_nobody_fetches_is_the_next_ones() {
    let scene = Scene::new(1, one_at_a_time()).await;
    let first = scene.get();
    let (given, mut next) = (scene.ask(None), scene.ask(None));
    drop(first);
    assert_eq!((scene.waiting(), scene.total()), (1, 1), "it is given, and not yet fetched");
    drop(given);
    assert_eq!((scene.waiting(), scene.total()), (0, 1));
    let chosen = poll(&mut next).expect("it is given on").expect("no error").expect("a replica");
    assert_eq!(chosen.slot.replica().outstanding(), 1);
    drop(chosen);
    assert_eq!(scene.total(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_by_the_earlier_of_timeout_and_deadline() {
    let scene = Scene::new(1, Settings { queue_timeout: Duration::from_secs(30), ..one_at_a_time() }).await;
    let _first = scene.get();
    for (clients, expected) in [(None, 30), (Some(10), 10), (Some(60), 30)] {
        let begun = Instant::now();
        let clients = clients.map(Duration::from_secs).map(|limit| Patience::of_client(begun.into_std(), limit));
        match scene.ask(clients).await {
            Err(ProxyError::QueueTimeout { .. }) => assert_eq!(expected, 30),
            Err(ProxyError::TimeoutExceeded(limit)) => assert_eq!((limit.as_secs(), expected), (10, 10)),
            _ => panic!("it got something"),
        }
        assert_eq!(begun.elapsed().as_secs(), expected);
        assert_eq!(scene.waiting(), 0);
    }
    let patient = Scene { settings: Settings { queue_timeout: Duration::ZERO, ..one_at_a_time() }, ..scene };
    let mut waiting = patient.ask(None);
    advance(Duration::from_secs(100_000)).await;
    assert!(poll(&mut waiting).is_none(), "0s is no limit");
    patient.cut.cancel();
    assert!(matches!(waiting.await, Err(ProxyError::Draining)));
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_is_told_when_by_the_pace_of_the_queue() {
    let scene = Scene::new(1, Settings { queue_max_requests: 3, ..one_at_a_time() }).await;
    let mut working = scene.get();
    let mut waiting = std::collections::VecDeque::from([scene.ask(None), scene.ask(None), scene.ask(None)]);
    for _ in 0..20 {
        sleep(Duration::from_secs(2)).await;
        drop(working);
        let mut next = waiting.pop_front().expect("somebody waits");
        working = poll(&mut next).expect("it is its turn").expect("no error").expect("a replica");
        waiting.push_back(scene.ask(None));
    }
    let ask = Ask::default();
    let Err(ProxyError::QueueFull { bound, retry_after }) = scene.admission.enter(scene.caller(&ask, 0, None)) else {
        panic!("there is room")
    };
    assert_eq!((bound, retry_after), ("queue_max_requests", 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_many_threads_limits_hold_and_everybody_is_served() {
    let scene = Arc::new(Scene::new(2, Settings { max_outstanding: 2, max_outstanding_total: 3, ..Settings::default() }).await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let scene = Arc::clone(&scene);
        tasks.spawn(async move {
            let ask = Ask::default();
            for round in 0..500 {
                let caller = scene.caller(&ask, 1, None);
                let mut record = Record::new(
                    Arc::clone(&scene.admission.metrics),
                    crate::routing::StrategyName::PrefixAware,
                    hyper::Method::POST,
                    "/",
                    &hyper::header::HeaderValue::from_static("id"),
                );
                let admitted = scene.admission.admit(caller, &scene.cut, &mut record);
                if round % 5 == 0 {
                    // Leaves somewhere on the way.
                    drop(timeout(Duration::from_micros(round), admitted).await);
                    continue;
                }
                let chosen = admitted.await.expect("no bound").expect("a replica");
                assert!(chosen.slot.replica().outstanding() <= 2 && scene.total() <= 3);
                tokio::task::yield_now().await;
            }
        });
    }
    timeout(Duration::from_secs(60), tasks.join_all()).await.expect("nobody is forgotten");
    assert_eq!((scene.waiting(), scene.total()), (0, 0));
}
