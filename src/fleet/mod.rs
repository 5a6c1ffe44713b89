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
pub use replica::{Incarnation, Lease, Replica, ReplicaSpec};
pub use ring::Ring;
pub use snapshot::{Pool, Snapshot};

use health::Health;
use membership::Group;

/// All replicas, their health and their pools.
#[derive(Debug)]
pub struct Fleet {
    membership: Arc<Membership>,
    /// By incarnation: no later one's is ever in its place.
    health: HashMap<u64, Health>,
    /// That of those who have left, while somebody may wait there. It makes nobody a candidate.
    departed: HashMap<u64, Health>,
    /// The names of those that are to take nothing new.
    draining: HashSet<String>,
    settings: health::Settings,
}

impl Fleet {
    /// A fleet of replicas that nothing is known of yet. `hash_seed` seeds the rings.
    pub fn new(specs: Vec<ReplicaSpec>, settings: health::Settings, hash_seed: u64) -> Self {
        let mut fleet = Self {
            membership: Arc::new(Membership::empty(hash_seed)),
            health: HashMap::new(),
            departed: HashMap::new(),
            draining: HashSet::new(),
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
        self.health = next
            .replicas()
            .iter()
            .map(|replica| (replica.incarnation(), known.remove(&replica.incarnation()).unwrap_or_default()))
            .collect();
        known.extend(std::mem::take(&mut self.departed));
        self.departed = next.departed().filter_map(|number| known.remove_entry(&number)).collect();
        self.membership = next;
    }

    /// Judges by `settings` from the next outcome on. What is known stays.
    pub fn judge_by(&mut self, settings: health::Settings) {
        self.settings = settings;
    }

    /// Says whether the replica `name` is to take nothing new, now and whenever it is in the fleet.
    pub fn set_draining(&mut self, name: &str, draining: bool) {
        if draining {
            self.draining.insert(name.to_owned());
        } else {
            self.draining.remove(name);
        }
    }

    /// Takes note of `outcome`; the state before and after where it changed. What is seen of a replica that has left, and on which nobody counts any
    /// more, changes nothing.
    pub fn observe(&mut self, replica: &Replica, outcome: Outcome, now: Instant) -> Option<(State, State)> {
        let number = replica.incarnation();
        let health = self.health.get_mut(&number).or_else(|| self.departed.get_mut(&number))?;
        let before = health.state();
        health.observe(outcome, now, &self.settings);
        (health.state() != before).then(|| (before, health.state()))
    }

    /// The picture as of now.
    pub fn snapshot(&self) -> Snapshot {
        let state = |replica: &Arc<Replica>| {
            let health = self.health.get(&replica.incarnation()).map_or(State::Unknown, Health::state);
            (replica.incarnation(), if self.draining.contains(replica.name()) { State::Draining } else { health })
        };
        let states: HashMap<u64, State> = self.membership.replicas().iter().map(state).collect();
        let Membership { replicas, complete, all, by_model, any_name, nobody, .. } = &*self.membership;
        let state = |replica: &Replica| states.get(&replica.incarnation()).copied().unwrap_or(State::Unknown);
        let pool = |group: &Group| Pool::new(Arc::clone(&group.members), Arc::clone(&group.ring), state);
        Snapshot {
            all: pool(all),
            by_model: by_model.iter().map(|(model, group)| (model.clone(), pool(group))).collect(),
            any_name: any_name.as_ref().map(pool),
            nobody: pool(nobody),
            replicas: Arc::clone(replicas),
            complete: *complete,
            states,
            down: self
                .departed
                .iter()
                .chain(&self.health)
                .filter(|(_, health)| health.state() == State::Down)
                .map(|(&number, _)| number)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
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
            (0..3).map(|index| pool.is_usable(index)).collect::<Vec<_>>()
        };
        assert_eq!(usable(&fleet), [true, true, true], "nothing known yet");
        let first = Arc::clone(&fleet.snapshot().replicas()[0]);
        assert_eq!(fleet.observe(&first, Outcome::CheckPassed, now), Some((State::Unknown, State::Up)));
        assert_eq!(usable(&fleet), [true, false, false]);
        assert_eq!(fleet.observe(&first, Outcome::CheckPassed, now), None);
        assert_eq!(fleet.observe(&first, Outcome::ConnectFailed, now), Some((State::Up, State::Down)));
        assert_eq!(usable(&fleet), [true, true, true], "a breaker never empties a pool");
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
                        fleet.observe(&replicas[replica], if good { Outcome::CheckPassed } else { Outcome::ConnectFailed }, now);
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
