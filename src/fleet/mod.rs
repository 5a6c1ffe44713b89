//! Who can serve. `Fleet` is the one writer: it takes note of what is seen of the replicas and draws the picture that choices are made on.
//!
//! Pure: it connects to nothing and reads no clock. Whoever has news brings them, with the time.

pub mod health;
mod membership;
mod replica;
mod ring;
mod snapshot;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

pub use health::{Outcome, State};
pub use membership::Membership;
pub use replica::{ByIncarnation, Incarnation, Lease, NumberHasher, Replica, ReplicaSpec, Trial};
pub use ring::{Ring, tag};
pub use snapshot::{Pool, PoolName, Snapshot};

use health::{Health, Moment, Standing};
use membership::Group;
use snapshot::Usability;

/// All replicas, their health and their pools.
#[derive(Debug)]
pub struct Fleet {
    membership: Arc<Membership>,
    /// By incarnation: no later one's is ever in its place.
    health: HashMap<u64, Health>,
    /// That of those who have left, while somebody may wait there. It makes nobody a candidate.
    departed: HashMap<u64, Health>,
    /// The names of those that take no new request, because an operator wants it so.
    drained: HashSet<String>,
    settings: health::Settings,
}

/// What an observation changed in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub before: State,
    /// The state now. The same where only more or less may be asked of the replica.
    pub after: State,
}

impl Fleet {
    /// A fleet of replicas that nothing is known of yet. `hash_seed` seeds the rings.
    pub fn new(specs: Vec<ReplicaSpec>, settings: health::Settings, hash_seed: u64) -> Self {
        let mut fleet = Self {
            membership: Arc::new(Membership::empty(hash_seed)),
            health: HashMap::new(),
            departed: HashMap::new(),
            drained: HashSet::new(),
            settings,
        };
        fleet.adopt(Arc::new(fleet.membership.next(specs, true)));
        fleet
    }

    /// Who belongs to the fleet. The next membership is made out of this one.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Goes on with `next`, which was made out of the present membership: who stays keeps its health, who is new or returns has none, who left is
    /// forgotten when nobody can count there any more.
    pub fn adopt(&mut self, next: Arc<Membership>) {
        let mut known = std::mem::take(&mut self.health);
        // Who is there when the router starts has been at work, as far as anybody knows.
        let is_new = !known.is_empty();
        self.health = next
            .replicas()
            .iter()
            .map(|replica| (replica.incarnation(), known.remove(&replica.incarnation()).unwrap_or_else(|| Health::new(is_new))))
            .collect();
        known.extend(std::mem::take(&mut self.departed));
        self.departed = next.departed().filter_map(|number| known.remove_entry(&number)).collect();
        self.membership = next;
    }

    /// Takes note of `outcome`; what it changed, if anything. What is seen of a replica that has left, and on which nobody counts any more, changes
    /// nothing. `chance` in `0.0..1.0` spreads ejections.
    pub fn observe(&mut self, replica: &Replica, outcome: Outcome, now: Instant, chance: f64) -> Option<Change> {
        let number = replica.incarnation();
        let health = self.health.get_mut(&number).or_else(|| self.departed.get_mut(&number))?;
        let picture = |health: &Health| (health.state(), health.standing(), health.busy_until());
        let before = picture(health);
        health.observe(outcome, Moment { now, answered: replica.answers(), chance }, &self.settings);
        replica.await_answer(health.awaits_answer());
        let after = picture(health);
        if before.0 == State::Down && after.0 != State::Down {
            replica.returned();
        }
        (before != after).then_some(Change { before: before.0, after: after.0 })
    }

    /// Goes on with other rules for health.
    pub fn configure(&mut self, settings: health::Settings) {
        self.settings = settings;
    }

    /// Whether the replica of that name shall take new requests, from now on and whoever bears the name. Whether that changed. One that takes them again
    /// does so as one that returns: it may have been started anew meanwhile.
    pub fn set_draining(&mut self, name: &str, draining: bool, now: Instant) -> bool {
        if draining {
            return self.drained.insert(name.to_owned());
        }
        let was_drained = self.drained.remove(name);
        let replica = self.membership.replicas().iter().find(|replica| was_drained && replica.name() == name);
        if let Some((replica, health)) = replica.and_then(|replica| Some((replica, self.health.get_mut(&replica.incarnation())?))) {
            health.rejoin(now);
            replica.returned();
        }
        was_drained
    }

    fn is_draining(&self, replica: &Replica) -> bool {
        self.drained.contains(replica.name())
    }

    /// The picture as of now.
    pub fn snapshot(&self) -> Snapshot {
        let Membership { replicas, complete, all, by_model, any_name, nobody, .. } = &*self.membership;
        let usability = |replica: &Replica| {
            let health = self.health.get(&replica.incarnation());
            let standing = health.map_or(Standing::Unknown, Health::standing);
            let standing = if self.is_draining(replica) { Standing::Draining } else { standing };
            Usability { standing, busy_until: health.and_then(Health::busy_until) }
        };
        let pool = |group: &Group| Pool::new(group, self.settings.slow_start, usability);
        let state = |replica: &Arc<Replica>| {
            let state = self.health.get(&replica.incarnation()).map_or(State::Unknown, Health::state);
            (replica.incarnation(), if self.is_draining(replica) { State::Draining } else { state })
        };
        Snapshot {
            all: pool(all),
            by_model: by_model.iter().map(|(model, group)| (model.clone(), pool(group))).collect(),
            any_name: any_name.as_ref().map(pool),
            nobody: pool(nobody),
            replicas: Arc::clone(replicas),
            complete: *complete,
            states: replicas.iter().map(state).collect(),
            health: self.health.iter().chain(&self.departed).map(|(&number, health)| (number, health.state())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::units::Weight;

    fn fleet(models: &[&[&str]]) -> Fleet {
        let specs = models.iter().enumerate().map(|(index, models)| ReplicaSpec {
            name: index.to_string(),
            authority: index.to_string(),
            weight: Weight::clamped(1),
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            drain: false,
        });
        Fleet::new(specs.collect(), health::Settings::default(), 0)
    }

    fn members(snapshot: &Snapshot, model: Option<&str>) -> Option<Vec<usize>> {
        snapshot.pool(model).map(|pool| pool.members().iter().map(|member| member.incarnation() as usize).collect())
    }

    #[test]
    fn pools_follow_the_models_that_replicas_list() {
        let check = |models: &[&[&str]], asked: Option<&str>, expected: Option<Vec<usize>>| {
            assert_eq!(members(&fleet(models).snapshot(), asked), expected, "{models:?} {asked:?}");
        };
        check(&[&[], &[]], Some("x"), Some(vec![0, 1]));
        check(&[&[], &[]], None, Some(vec![0, 1]));
        check(&[&["a"], &["a", "b"]], Some("a"), Some(vec![0, 1]));
        check(&[&["a"], &["a", "b"]], Some("b"), Some(vec![1]));
        check(&[&["a"], &["a", "b"]], Some("c"), None);
        check(&[&["a"], &[]], Some("c"), Some(vec![1]));
        check(&[&["a"], &["b"]], None, Some(vec![0, 1]));
    }

    #[test]
    fn a_pool_uses_who_is_up_and_everybody_where_nobody_is() {
        let mut fleet = fleet(&[&[], &[], &[]]);
        let now = Instant::now();
        let usable = |fleet: &Fleet| {
            let snapshot = fleet.snapshot();
            let pool = snapshot.pool(None).expect("there is one");
            pool.eligible(&[], now).into_owned()
        };
        let observe = |fleet: &mut Fleet, replica: &Replica, outcome| {
            fleet.observe(replica, outcome, now, 0.0).map(|change| (change.before, change.after))
        };
        assert_eq!(usable(&fleet), [true, true, true], "nothing known yet");
        let first = Arc::clone(&fleet.snapshot().replicas()[0]);
        assert_eq!(observe(&mut fleet, &first, Outcome::CheckPassed), Some((State::Unknown, State::Up)));
        assert_eq!(usable(&fleet), [true, false, false]);
        assert_eq!(observe(&mut fleet, &first, Outcome::CheckPassed), None);
        assert_eq!(observe(&mut fleet, &first, Outcome::ConnectFailed), Some((State::Up, State::Down)));
        assert_eq!(usable(&fleet), [false, true, true], "those of whom nothing is known are better than one that refuses");
        for replica in fleet.snapshot().replicas() {
            observe(&mut fleet, replica, Outcome::ConnectFailed);
        }
        assert_eq!(usable(&fleet), [true, true, true], "a breaker never empties a pool");
        observe(&mut fleet, &first, Outcome::CheckPassed);
        assert_eq!(usable(&fleet), [true, false, false], "the least bad");
    }

    /// A fleet of so many that are up, its replicas, and who may be chosen by one that was at none of `tried`.
    fn up(replicas: usize) -> (Fleet, Vec<Arc<Replica>>, Instant) {
        let (mut fleet, now) = (fleet(&vec![&[][..]; replicas]), Instant::now());
        let replicas = fleet.snapshot().replicas().to_vec();
        for replica in &replicas {
            fleet.observe(replica, Outcome::CheckPassed, now, 0.0);
        }
        (fleet, replicas, now)
    }

    fn eligible(fleet: &Fleet, tried: &[&Arc<Replica>], now: Instant) -> Vec<usize> {
        let snapshot = fleet.snapshot();
        let tried: Vec<Arc<Replica>> = tried.iter().map(|&tried| Arc::clone(tried)).collect();
        let eligible = snapshot.pool(None).expect("there is one").eligible(&tried, now);
        eligible.iter().enumerate().filter(|(_, eligible)| **eligible).map(|(index, _)| index).collect()
    }

    #[test]
    fn busy_replicas_are_passed_over_while_they_say_so() {
        let (mut fleet, replicas, now) = up(3);
        fleet.observe(&replicas[1], Outcome::Busy(Some(Duration::from_secs(2))), now, 0.0);
        assert_eq!(eligible(&fleet, &[], now), [0, 2]);
        assert_eq!(eligible(&fleet, &[&replicas[0], &replicas[2]], now), [1], "better than nobody");
        assert_eq!(eligible(&fleet, &[], now + Duration::from_secs(2)), [0, 1, 2], "without any further news");
        for replica in &replicas {
            fleet.observe(replica, Outcome::Busy(None), now, 0.0);
        }
        assert_eq!(eligible(&fleet, &[], now), [0, 1, 2], "a breaker never empties a pool");
    }

    #[test]
    fn a_replica_on_trial_has_one_request_at_a_time() {
        let (mut fleet, replicas, now) = up(2);
        fleet.observe(&replicas[0], Outcome::ConnectFailed, now, 0.0);
        let later = now + Duration::from_secs(1);
        assert_eq!(eligible(&fleet, &[], now), [1]);
        fleet.observe(&replicas[0], Outcome::CheckPassed, later, 0.0);
        fleet.observe(&replicas[0], Outcome::CheckPassed, later, 0.0);
        assert_eq!(eligible(&fleet, &[], later), [0, 1]);
        let trial = replicas[0].begin_trial().expect("nobody else tries it");
        assert!(replicas[0].begin_trial().is_none());
        assert_eq!(eligible(&fleet, &[], later), [1]);
        assert_eq!(eligible(&fleet, &[&replicas[1]], later), [0], "better than nobody");
        drop(trial);
        assert_eq!(eligible(&fleet, &[], later), [0, 1]);
        assert!(replicas[0].answered(), "it is waited for");
        fleet.observe(&replicas[0], Outcome::Answered, later, 0.0);
        assert!(!replicas[0].answered());
        assert_eq!(fleet.snapshot().state(&replicas[0]), Some(State::Up));
    }

    #[test]
    fn one_that_returns_gets_a_growing_share_of_what_the_others_have() {
        let (mut fleet, replicas, now) = up(3);
        for _ in 0..3 {
            fleet.observe(&replicas[0], Outcome::CheckFailed, now, 0.0);
        }
        for _ in 0..2 {
            fleet.observe(&replicas[0], Outcome::CheckPassed, now, 0.0);
        }
        assert_eq!(eligible(&fleet, &[], now), [0, 1, 2], "one request in any case");
        let mut leases: Vec<Lease> = (0..40).map(|number| replicas[1 + number % 2].lease()).collect();
        // The others have 20 each. (seconds since it returned, requests it gets)
        for (seconds, share) in [(0, 1), (2, 4), (5, 10), (9, 18)] {
            let now = now + Duration::from_secs(seconds);
            let mut own = Vec::new();
            while eligible(&fleet, &[], now).contains(&0) {
                own.push(replicas[0].lease());
            }
            assert_eq!(own.len(), share, "after {seconds} s");
            assert_eq!(eligible(&fleet, &[&replicas[1], &replicas[2]], now), [0], "better than nobody");
        }
        leases.extend((0..100).map(|_| replicas[0].lease()));
        assert_eq!(eligible(&fleet, &[], now + Duration::from_secs(10)), [0, 1, 2], "without any further news");
    }

    #[test]
    fn who_is_drained_gets_nothing_and_goes_on_being_judged() {
        let (mut fleet, replicas, now) = up(2);
        assert!(fleet.set_draining("0", true, now) && !fleet.set_draining("0", true, now));
        assert_eq!(eligible(&fleet, &[], now), [1]);
        assert_eq!(eligible(&fleet, &[&replicas[1]], now), [] as [usize; 0], "not even where nobody else is left");
        fleet.observe(&replicas[0], Outcome::ConnectFailed, now, 0.0);
        let snapshot = fleet.snapshot();
        assert_eq!(snapshot.state(&replicas[0]), Some(State::Draining));
        assert!(snapshot.is_out(&replicas[0]));
        assert!(fleet.set_draining("0", false, now));
        assert_eq!(fleet.snapshot().state(&replicas[0]), Some(State::Down));
        let leases: Vec<Lease> = (0..9).map(|_| replicas[0].lease()).collect();
        fleet.set_draining("1", true, now);
        fleet.set_draining("1", false, now);
        assert_eq!(eligible(&fleet, &[], now), [1]);
        drop(leases);
        fleet.set_draining("0", true, now);
        fleet.set_draining("1", true, now);
        assert_eq!(eligible(&fleet, &[], now), [] as [usize; 0]);
        assert!(!fleet.snapshot().can_serve());
    }

    #[test]
    fn a_replica_in_doubt_is_passed_over_unless_most_are() {
        let (mut fleet, replicas, now) = up(3);
        fleet.observe(&replicas[0], Outcome::CheckFailed, now, 0.0);
        assert_eq!(eligible(&fleet, &[], now), [1, 2]);
        assert_eq!(eligible(&fleet, &[&replicas[1], &replicas[2]], now), [0]);
        fleet.observe(&replicas[1], Outcome::CheckFailed, now, 0.0);
        assert_eq!(eligible(&fleet, &[], now), [0, 1, 2]);
        assert_eq!(fleet.snapshot().state(&replicas[0]), Some(State::Suspect));
    }

    #[test]
    fn those_that_are_down_are_not_tried_after_the_last_good_one_failed() {
        let (mut fleet, replicas, now) = up(3);
        for replica in &replicas[1..] {
            fleet.observe(replica, Outcome::ConnectFailed, now, 0.0);
        }
        assert_eq!(eligible(&fleet, &[&replicas[0]], now), [] as [usize; 0]);
        fleet.observe(&replicas[0], Outcome::ConnectFailed, now, 0.0);
        assert_eq!(eligible(&fleet, &[&replicas[0]], now), [1, 2], "all are as bad");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin(usize),
        BeginBelow(usize, u64),
        /// Finish, abort and failure are one thing to the count: the lease goes.
        End(prop::sample::Index),
        Seen(usize, bool),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_usize..3).prop_map(Step::Begin),
            (0_usize..3, 0_u64..5).prop_map(|(replica, limit)| Step::BeginBelow(replica, limit)),
            any::<prop::sample::Index>().prop_map(Step::End),
            (0_usize..3, any::<bool>()).prop_map(|(replica, good)| Step::Seen(replica, good)),
        ]
    }

    proptest! {
        #[test]
        fn counts_are_exact_whatever_happens(steps in prop::collection::vec(any_step(), 0..200)) {
            let mut fleet = fleet(&[&[], &[], &[]]);
            let replicas = fleet.snapshot().replicas().to_vec();
            let (mut leases, now) = (Vec::new(), Instant::now());
            for step in steps {
                match step {
                    Step::Begin(replica) => leases.push(replicas[replica].lease()),
                    Step::BeginBelow(replica, limit) => {
                        let before = replicas[replica].outstanding();
                        let lease = replicas[replica].lease_below(limit);
                        prop_assert_eq!(lease.is_some(), before < limit);
                        leases.extend(lease);
                    }
                    Step::End(which) if !leases.is_empty() => drop(leases.swap_remove(which.index(leases.len()))),
                    Step::End(_) => {}
                    Step::Seen(replica, good) => {
                        fleet.observe(&replicas[replica], if good { Outcome::CheckPassed } else { Outcome::ConnectFailed }, now, 0.5);
                    }
                }
                for replica in &replicas {
                    let expected = leases.iter().filter(|lease| lease.replica().is(replica)).count();
                    prop_assert_eq!(replica.outstanding(), expected as u64);
                }
            }
            drop(leases);
            prop_assert!(replicas.iter().all(|replica| replica.outstanding() == 0));
        }
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        let busy = prop::option::of((0_u64..20).prop_map(Duration::from_secs)).prop_map(Outcome::Busy);
        let seldom = prop_oneof![Just(Outcome::ConnectFailed), Just(Outcome::Answered)];
        prop_oneof![4 => Just(Outcome::CheckPassed), 2 => Just(Outcome::CheckFailed), 2 => seldom, 2 => busy]
    }

    proptest! {
        #[test]
        fn one_alone_is_judged_as_among_all(
            seen in prop::collection::vec((0_usize..5, any_outcome(), 0_u64..3), 0..60),
            leases in prop::collection::vec(0_usize..5, 0..20),
            trials in prop::collection::vec(any::<bool>(), 5),
            tried in prop::collection::vec(prop::bool::weighted(0.3), 5),
            drained in prop::option::of(0_usize..5),
        ) {
            let (mut fleet, mut now) = (fleet(&[&[][..]; 5]), Instant::now());
            let replicas = fleet.snapshot().replicas().to_vec();
            for (which, outcome, seconds) in seen {
                now += Duration::from_secs(seconds);
                fleet.observe(&replicas[which], outcome, now, 0.5);
            }
            if let Some(which) = drained {
                fleet.set_draining(&which.to_string(), true, now);
            }
            let _leases: Vec<_> = leases.into_iter().map(|which| replicas[which].lease()).collect();
            let _trials: Vec<_> = replicas.iter().zip(trials).filter(|(_, tries)| *tries).map(|(replica, _)| replica.begin_trial()).collect();
            let tried: Vec<_> = replicas.iter().zip(tried).filter(|(_, tried)| *tried).map(|(replica, _)| Arc::clone(replica)).collect();
            let snapshot = fleet.snapshot();
            let pool = snapshot.pool(None).expect("there is one");
            for tried in [&tried[..], &[]] {
                for (index, &expected) in pool.eligible(tried, now).iter().enumerate() {
                    prop_assert_eq!(pool.is_eligible(index, tried, now).unwrap_or(expected), expected, "{} of {:?}", index, pool);
                }
            }
        }
    }

    #[test]
    fn no_two_threads_slip_through_one_gate() {
        let replica = Arc::clone(&fleet(&[&[]]).snapshot().replicas()[0]);
        let leases: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..100).filter_map(|_| replica.lease_below(50)).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(leases.len(), 50);
        drop(leases);
        assert_eq!(replica.outstanding(), 0);
    }
}
