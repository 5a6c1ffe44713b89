//! Who can serve. `Fleet` is the one writer: it takes note of what is seen of the replicas and draws the picture that choices are made on.
//!
//! Pure: it connects to nothing and reads no clock. Whoever has news brings them, with the time.

pub mod health;
mod replica;
mod ring;
mod snapshot;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

pub use health::{Outcome, State};
pub use replica::{Lease, Replica, ReplicaSpec};
pub use ring::Ring;
pub use snapshot::{Pool, Snapshot};

use health::Health;

/// All replicas, their health and their pools.
#[derive(Debug)]
pub struct Fleet {
    replicas: Vec<Arc<Replica>>,
    health: Vec<Health>,
    settings: health::Settings,
    all: Membership,
    by_model: HashMap<String, Membership>,
    any_name: Option<Membership>,
}

/// Members and ring of a pool. Pools with the same members share them.
type Membership = Arc<(Vec<Arc<Replica>>, Arc<Ring>)>;

impl Fleet {
    /// A fleet of replicas that nothing is known of yet. `hash_seed` seeds the rings.
    pub fn new(specs: Vec<ReplicaSpec>, settings: health::Settings, hash_seed: u64) -> Self {
        let replicas: Vec<_> = specs.into_iter().enumerate().map(|(index, spec)| Replica::new(index, spec)).collect();
        let mut known: HashMap<Vec<usize>, Membership> = HashMap::new();
        let mut membership = |serves: &dyn Fn(&ReplicaSpec) -> bool| {
            let members: Vec<_> = replicas.iter().filter(|replica| serves(replica.spec())).cloned().collect();
            let indices = members.iter().map(|member| member.index()).collect();
            let new = || {
                let ring = Arc::new(Ring::new(members.iter().map(|member| member.spec()), hash_seed));
                Arc::new((members, ring))
            };
            Arc::clone(known.entry(indices).or_insert_with(new))
        };
        let takes_any = |spec: &ReplicaSpec| spec.models.is_empty();
        let all = membership(&|_| true);
        let any_name = Some(membership(&takes_any)).filter(|any| !any.0.is_empty());
        let models: HashSet<&String> = replicas.iter().flat_map(|replica| &replica.spec().models).collect();
        let by_model =
            models.into_iter().map(|model| (model.clone(), membership(&|spec| takes_any(spec) || spec.models.contains(model)))).collect();
        let health = vec![Health::default(); replicas.len()];
        Self { replicas, health, settings, all, by_model, any_name }
    }

    /// Takes note of `outcome`; the state before and after where it changed.
    pub fn observe(&mut self, replica: &Replica, outcome: Outcome, now: Instant) -> Option<(State, State)> {
        let health = &mut self.health[replica.index()];
        let before = health.state();
        health.observe(outcome, now, &self.settings);
        (health.state() != before).then(|| (before, health.state()))
    }

    /// The picture as of now.
    pub fn snapshot(&self) -> Snapshot {
        let states: Vec<State> = self.health.iter().map(Health::state).collect();
        let pool = |membership: &Membership| Pool::new(membership.0.clone(), Arc::clone(&membership.1), &states);
        Snapshot {
            all: pool(&self.all),
            by_model: self.by_model.iter().map(|(model, membership)| (model.clone(), pool(membership))).collect(),
            any_name: self.any_name.as_ref().map(pool),
            replicas: self.replicas.clone(),
            states,
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
        });
        Fleet::new(specs.collect(), health::Settings::default(), 0)
    }

    fn members(snapshot: &Snapshot, model: Option<&str>) -> Option<Vec<usize>> {
        snapshot.pool(model).map(|pool| pool.members().iter().map(|member| member.index()).collect())
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
                    let expected = leases.iter().filter(|lease| Arc::ptr_eq(lease.replica(), replica)).count();
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
