//! Who belongs to the fleet: the replicas and, for each pool, its members and ring. Immutable; a change makes the next membership out of this
//! one, in which everything that did not change is the same.
//!
//! It knows no states. Rings are costly, so the next membership is made beside the fleet, which then adopts it in no time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use super::snapshot::Members;
use super::{Incarnation, PoolName, Replica, ReplicaSpec, Ring};

/// Replicas and pools between two changes.
#[derive(Debug)]
pub struct Membership {
    pub(super) replicas: Members,
    pub(super) complete: bool,
    pub(super) all: Group,
    pub(super) by_model: HashMap<String, Group>,
    pub(super) any_name: Option<Group>,
    pub(super) nobody: Group,
    /// Who has left, as long as somebody may still count there; so no more of them than are in use, whatever comes and goes.
    departed: Vec<Departed>,
    hash_seed: u64,
    /// The number of the next incarnation.
    next: u64,
}

/// An incarnation that has left.
#[derive(Clone, Debug)]
struct Departed {
    name: String,
    authority: String,
    number: u64,
    incarnation: Weak<Incarnation>,
}

impl Departed {
    fn new(replica: &Replica) -> Self {
        let ReplicaSpec { name, authority, .. } = replica.spec();
        Self { name: name.clone(), authority: authority.clone(), number: replica.incarnation(), incarnation: replica.watch() }
    }

    /// The incarnation, if it is what `spec` describes and has requests in flight.
    fn revived(&self, spec: &ReplicaSpec) -> Option<Arc<Incarnation>> {
        let is_meant = self.name == spec.name && self.authority == spec.authority;
        self.incarnation.upgrade().filter(|incarnation| is_meant && incarnation.outstanding() > 0)
    }
}

/// Members and ring of a pool. Pools with the same members share them.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: Arc<PoolName>,
    pub(super) members: Members,
    pub(super) ring: Arc<Ring>,
}

/// What a ring depends on: names and weights, in the order in which the ring knows them.
type Shape = Vec<(String, u64)>;

impl Membership {
    /// Nobody, as at the beginning. `hash_seed` seeds all rings to come.
    pub fn empty(hash_seed: u64) -> Self {
        let nobody = Group { name: Arc::new(PoolName::All), members: Arc::from([]), ring: Arc::new(Ring::new([].iter(), hash_seed)) };
        Self {
            replicas: Arc::from([]),
            complete: true,
            all: nobody.clone(),
            by_model: HashMap::new(),
            any_name: None,
            nobody,
            departed: Vec::new(),
            hash_seed,
            next: 0,
        }
    }

    /// All replicas, in the order given.
    pub fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The numbers of those who have left, and on whom somebody may still count.
    pub(super) fn departed(&self) -> impl Iterator<Item = u64> + '_ {
        self.departed.iter().map(|departed| departed.number)
    }

    /// The membership of the replicas that `specs` describe, in that order; their names are distinct. `complete` says whether these are all
    /// that there are: only then is a model that nobody lists known to be served by nobody.
    ///
    /// A replica that was there under the same name and address is the same incarnation; one whose spec did not change at all is the same
    /// `Replica`. One that had left and returns is the same incarnation while requests are in flight there. Rings are built for pools whose names
    /// and weights are new, which takes its time.
    pub fn next(&self, specs: Vec<ReplicaSpec>, complete: bool) -> Self {
        self.next_seeded(specs, complete, self.hash_seed)
    }

    /// The same with another seed: where it differs all rings are built anew, and any key may have another home.
    pub fn next_seeded(&self, specs: Vec<ReplicaSpec>, complete: bool, hash_seed: u64) -> Self {
        let mut next = self.next;
        let known: HashMap<&str, &Arc<Replica>> = self.replicas.iter().map(|replica| (replica.name(), replica)).collect();
        let replicas: Members = specs
            .into_iter()
            .map(|spec| match known.get(spec.name.as_str()) {
                Some(replica) if *replica.spec() == spec => Arc::clone(replica),
                Some(replica) if replica.spec().authority == spec.authority => replica.respecified(spec),
                _ => match self.departed.iter().rev().find_map(|departed| departed.revived(&spec)) {
                    Some(incarnation) => Replica::of(incarnation, spec),
                    None => {
                        next += 1;
                        Replica::new(next - 1, spec)
                    }
                },
            })
            .collect();
        let present: HashSet<u64> = replicas.iter().map(|replica| replica.incarnation()).collect();
        let left = self.replicas.iter().map(|replica| Departed::new(replica));
        let departed = self.departed.iter().cloned().chain(left);
        let departed = departed.filter(|one| !present.contains(&one.number) && one.incarnation.strong_count() > 0).collect();

        let known = (hash_seed == self.hash_seed).then(|| self.groups()).into_iter().flatten();
        let mut rings: HashMap<Shape, Arc<Ring>> = known.map(|group| (shape(&group.members), Arc::clone(&group.ring))).collect();
        let mut group = |name: PoolName, serves: &dyn Fn(&ReplicaSpec) -> bool| {
            let members: Members = replicas.iter().filter(|replica| serves(replica.spec())).cloned().collect();
            let new = || Arc::new(Ring::new(members.iter().map(|member| member.spec()), hash_seed));
            let ring = Arc::clone(rings.entry(shape(&members)).or_insert_with(new));
            Group { name: Arc::new(name), members, ring }
        };
        let takes_any = |spec: &ReplicaSpec| spec.models.is_empty();
        let all = group(PoolName::All, &|_| true);
        let any_name = Some(group(PoolName::AnyName, &takes_any)).filter(|any| !any.members.is_empty());
        let models: HashSet<&String> = replicas.iter().flat_map(|replica| &replica.spec().models).collect();
        let by_model = models
            .into_iter()
            .map(|model| {
                let serves = |spec: &ReplicaSpec| takes_any(spec) || spec.models.contains(model);
                (model.clone(), group(PoolName::Model(model.clone()), &serves))
            })
            .collect();
        Self { all, by_model, any_name, nobody: self.nobody.clone(), replicas, complete, departed, hash_seed, next }
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        [&self.all, &self.nobody].into_iter().chain(self.by_model.values()).chain(&self.any_name)
    }
}

fn shape(members: &[Arc<Replica>]) -> Shape {
    members.iter().map(|member| (member.name().to_owned(), member.weight())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;
    use crate::fleet::health::{self, Health, Moment};
    use crate::fleet::{Change, Fleet, Outcome};
    use crate::request::Key;
    use crate::units::Weight;

    fn spec(name: &str, weight: u64, models: &[&str]) -> ReplicaSpec {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        ReplicaSpec { name: name.to_owned(), authority: format!("{name}:80"), weight: Weight::clamped(weight), models, drain: false }
    }

    fn plain(names: &[&str]) -> Membership {
        Membership::empty(0).next(names.iter().map(|name| spec(name, 1, &[])).collect(), true)
    }

    #[test]
    fn who_returns_is_the_same_while_requests_are_in_flight_there() {
        let first = plain(&["a", "b"]);
        let (a, b) = (Arc::clone(&first.replicas[0]), Arc::clone(&first.replicas[1]));
        let lease = a.lease();
        let second = first.next(vec![], true);
        drop(first);
        assert_eq!(second.departed().collect::<Vec<_>>(), [0, 1]);
        // Elsewhere, under another name, or with nothing in flight: another server.
        let elsewhere = ReplicaSpec { authority: "elsewhere:80".to_owned(), ..spec("a", 1, &[]) };
        let renamed = ReplicaSpec { name: "c".to_owned(), ..spec("a", 1, &[]) };
        let others = second.next(vec![elsewhere, renamed, spec("b", 1, &[])], true);
        assert!(others.replicas.iter().all(|other| !other.is(&a) && !other.is(&b)));
        let third = others.next(vec![spec("a", 7, &["m"])], true);
        assert!(third.replicas[0].is(&a));
        assert_eq!((third.replicas[0].weight(), third.replicas[0].outstanding()), (7, 1));
        assert!(third.departed().all(|number| number != 0));
        drop((lease, a, b, second, others));
        let fourth = third.next(vec![], true);
        drop(third);
        assert_eq!(fourth.next(vec![], true).departed().count(), 0, "nobody can count there any more");
    }

    #[test]
    fn who_stays_is_the_same_and_who_returns_is_not() {
        let first = plain(&["a", "b"]);
        let second = first.next(vec![spec("c", 1, &[]), spec("a", 1, &[])], true);
        assert!(Arc::ptr_eq(&first.replicas[0], &second.replicas[1]));
        let third = second.next(vec![spec("b", 1, &[])], true);
        assert!(!third.replicas[0].is(&first.replicas[1]));
        let numbers =
            [&first.replicas[0], &first.replicas[1], &second.replicas[0], &third.replicas[0]].map(|replica| replica.incarnation());
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    #[test]
    fn a_changed_spec_goes_on_as_the_same_incarnation() {
        let first = plain(&["a"]);
        let lease = first.replicas[0].lease();
        let second = first.next(vec![spec("a", 3, &["m"])], true);
        assert!(second.replicas[0].is(&first.replicas[0]));
        assert_eq!((second.replicas[0].weight(), second.replicas[0].outstanding()), (3, 1));
        drop(lease);
        assert_eq!(second.replicas[0].outstanding(), 0);
        // Another address under its name is another server.
        let moved = second.next(vec![ReplicaSpec { authority: "elsewhere:80".to_owned(), ..spec("a", 3, &["m"]) }], true);
        assert!(!moved.replicas[0].is(&second.replicas[0]));
    }

    #[test]
    fn rings_are_built_only_where_names_or_weights_change() {
        let first = Membership::empty(0).next(vec![spec("a", 1, &["x"]), spec("b", 1, &["x", "y"])], true);
        assert!(Arc::ptr_eq(&first.all.ring, &first.by_model["x"].ring), "equal pools share theirs");
        let second = first.next(vec![spec("a", 1, &["x"]), spec("b", 1, &["x", "y"]), spec("c", 1, &["z"])], true);
        assert!(Arc::ptr_eq(&first.by_model["x"].ring, &second.by_model["x"].ring));
        assert!(Arc::ptr_eq(&first.by_model["y"].ring, &second.by_model["y"].ring));
        assert!(!Arc::ptr_eq(&first.all.ring, &second.all.ring));
        // A server that was replaced under its name keeps its place on the ring.
        let third = second.next(vec![spec("a", 1, &["x"]), ReplicaSpec { authority: "z".to_owned(), ..spec("b", 1, &["x", "y"]) }], true);
        assert!(Arc::ptr_eq(&first.all.ring, &third.all.ring));
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// For each of some names, whether it is there, at which address, with which weight; and whether the order is turned around.
        Set(Vec<(bool, bool, u64)>, bool),
        Begin(prop::sample::Index),
        End(prop::sample::Index),
        /// Of any incarnation that ever was.
        Seen(prop::sample::Index, Outcome),
    }

    const NAMES: usize = 5;

    fn any_step() -> impl Strategy<Value = Step> {
        let here = (prop::bool::weighted(0.7), prop::bool::weighted(0.1), prop_oneof![4 => Just(1_u64), 1 => Just(2)]);
        let outcome = prop_oneof![Just(Outcome::CheckPassed), Just(Outcome::CheckFailed), Just(Outcome::ConnectFailed)];
        prop_oneof![
            2 => (prop::collection::vec(here, NAMES), any::<bool>()).prop_map(|(all, turned)| Step::Set(all, turned)),
            3 => any::<prop::sample::Index>().prop_map(Step::Begin),
            2 => any::<prop::sample::Index>().prop_map(Step::End),
            4 => (any::<prop::sample::Index>(), outcome).prop_map(|(which, outcome)| Step::Seen(which, outcome)),
        ]
    }

    fn specs(all: &[(bool, bool, u64)], turned: bool) -> Vec<ReplicaSpec> {
        let one = |(name, &(here, moved, weight)): (usize, &(bool, bool, u64))| {
            let name = name.to_string();
            here.then(|| ReplicaSpec { authority: if moved { format!("moved-{name}") } else { name.clone() }, ..spec(&name, weight, &[]) })
        };
        let mut specs: Vec<_> = all.iter().enumerate().filter_map(one).collect();
        if turned {
            specs.reverse();
        }
        specs
    }

    /// Names in the key's order, those of `among` alone.
    fn order(membership: &Membership, key: Key, among: &HashSet<String>) -> Vec<String> {
        let named = membership.all.ring.order(key).map(|index| membership.all.members[index].name().to_owned());
        named.filter(|name| among.contains(name)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn whatever_comes_and_goes_counts_states_and_homes_are_right(steps in prop::collection::vec(any_step(), 1..60), seed in any::<u64>()) {
            let (settings, now) = (health::Settings::default(), Instant::now());
            let mut fleet = Fleet::new(Vec::new(), settings.clone(), seed);
            // All incarnations that ever were, and what is to be known of those in the fleet.
            let mut ever: Vec<Arc<Replica>> = Vec::new();
            let mut known: HashMap<u64, Health> = HashMap::new();
            // Of those who have left: all, as `ever` holds them.
            let mut departed: HashMap<u64, Health> = HashMap::new();
            let mut leases = Vec::new();
            for step in steps {
                match step {
                    Step::Set(all, turned) => {
                        let wanted = specs(&all, turned);
                        let before = Arc::clone(fleet.membership());
                        let is_new = !known.is_empty();
                        fleet.adopt(Arc::new(before.next(wanted.clone(), true)));
                        let after = Arc::clone(fleet.membership());
                        prop_assert_eq!(after.replicas().iter().map(|replica| replica.spec().clone()).collect::<Vec<_>>(), wanted);
                        let mut health = HashMap::new();
                        for replica in after.replicas() {
                            let earlier = before.replicas().iter().find(|earlier| earlier.name() == replica.name());
                            let stays = earlier.filter(|earlier| earlier.spec().authority == replica.spec().authority);
                            let returns = ever.iter().rev().find(|earlier| {
                                !before.replicas().iter().any(|present| present.is(earlier))
                                    && (earlier.name(), &earlier.spec().authority) == (replica.name(), &replica.spec().authority)
                                    && earlier.outstanding() > 0
                            });
                            match (stays, returns) {
                                (Some(earlier), _) | (None, Some(earlier)) => prop_assert!(earlier.is(replica)),
                                (None, None) => {
                                    prop_assert!(ever.iter().all(|other| !other.is(replica) && other.incarnation() != replica.incarnation()));
                                    prop_assert_eq!(replica.outstanding(), 0);
                                    ever.push(Arc::clone(replica));
                                }
                            }
                            health.insert(replica.incarnation(), known.remove(&replica.incarnation()).unwrap_or_else(|| Health::new(is_new)));
                        }
                        departed.extend(std::mem::replace(&mut known, health));
                        departed.retain(|number, _| !known.contains_key(number));
                        let shape = |membership: &Membership| super::shape(membership.replicas()).into_iter().collect::<HashSet<_>>();
                        let unmoved: HashSet<String> = shape(&before).intersection(&shape(&after)).map(|(name, _)| name.clone()).collect();
                        for key in (0..50_u64).map(|step| Key(step.wrapping_mul(0x9e37_79b9_7f4a_7c15))) {
                            prop_assert_eq!(order(&before, key, &unmoved), order(&after, key, &unmoved));
                        }
                    }
                    Step::Begin(_) if fleet.membership().replicas().is_empty() => {}
                    Step::Begin(which) => leases.push(which.get(fleet.membership().replicas()).lease()),
                    Step::End(_) if leases.is_empty() => {}
                    Step::End(which) => drop(leases.swap_remove(which.index(leases.len()))),
                    Step::Seen(_, _) if ever.is_empty() => {}
                    Step::Seen(which, outcome) => {
                        let replica = which.get(&ever);
                        let number = replica.incarnation();
                        let expected = known.get_mut(&number).or(departed.get_mut(&number)).and_then(|health| {
                            let picture = |health: &Health| (health.state(), health.standing(), health.busy_until());
                            let before = picture(health);
                            health.observe(outcome, Moment { now, answered: 0, chance: 0.5 }, &settings);
                            (before != picture(health)).then(|| Change { before: before.0, after: health.state() })
                        });
                        prop_assert_eq!(fleet.observe(replica, outcome, now, 0.5), expected);
                    }
                }
                let snapshot = fleet.snapshot();
                for replica in &ever {
                    let expected = leases.iter().filter(|lease| lease.replica().is(replica)).count();
                    prop_assert_eq!(replica.outstanding(), expected as u64);
                    let number = replica.incarnation();
                    prop_assert_eq!(snapshot.state(replica), known.get(&number).map(Health::state));
                    let state = known.get(&number).or(departed.get(&number)).map(Health::state);
                    prop_assert_eq!(snapshot.is_out(replica), state == Some(health::State::Down));
                    prop_assert!(!departed.contains_key(&number) || snapshot.all.members().iter().all(|member| !member.is(replica)));
                }
            }
            drop(leases);
            prop_assert!(ever.iter().all(|replica| replica.outstanding() == 0));
        }
    }
}
