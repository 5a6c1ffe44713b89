//! Where replicas come from that the configuration does not list one by one. Each source is asked again and again by a task of its own, and all write
//! what they find to one `watch`.
//!
//! It does not touch the fleet: `app` joins what is found with what is configured.

pub mod dns;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use crate::fleet::ReplicaSpec;
use dns::Source;

/// What each source found last, by its URL; nothing where it has not answered yet.
pub type Findings = HashMap<String, Vec<SocketAddr>>;

/// The whole fleet: the `fixed` replicas, then those found behind `sources`, each address and each name once; and whether every source has
/// answered.
pub fn join(fixed: &[ReplicaSpec], sources: &[Source], findings: &Findings) -> (Vec<ReplicaSpec>, bool) {
    let mut all = fixed.to_vec();
    let mut addresses: HashSet<String> = fixed.iter().map(|spec| plain(&spec.authority)).collect();
    let mut names: HashSet<String> = fixed.iter().map(|spec| spec.name.clone()).collect();
    for source in sources {
        for address in findings.get(&source.url).into_iter().flatten() {
            let identity = address.to_string();
            if addresses.insert(identity.clone()) && names.insert(identity.clone()) {
                let Source { weight, models, drain, .. } = source;
                let (name, models) = (identity.clone(), models.clone());
                all.push(ReplicaSpec { name, authority: identity, weight: *weight, models, drain: *drain });
            }
        }
    }
    (all, sources.iter().all(|source| findings.contains_key(&source.url)))
}

/// An address in the one form that all its spellings have in common.
fn plain(authority: &str) -> String {
    authority.parse::<SocketAddr>().map_or_else(|_| authority.to_ascii_lowercase(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Weight;

    fn spec(name: &str, authority: &str) -> ReplicaSpec {
        ReplicaSpec { name: name.to_owned(), authority: authority.to_owned(), weight: Weight::clamped(1), models: Vec::new(), drain: false }
    }

    fn found(addresses: &[&str]) -> Option<Vec<SocketAddr>> {
        Some(addresses.iter().map(|address| address.parse().expect("an address")).collect())
    }

    #[test]
    fn who_is_found_twice_is_there_once() {
        let check = |fixed: &[ReplicaSpec], answers: Vec<Option<Vec<SocketAddr>>>, names: &[&str], complete: bool| {
            let source = |place: usize| Source {
                url: place.to_string(),
                question: dns::Question::Service(String::new()),
                weight: Weight::clamped(1),
                models: Vec::new(),
                drain: false,
            };
            let sources: Vec<Source> = (0..answers.len()).map(source).collect();
            let answers = answers.into_iter().enumerate();
            let findings: Findings = answers.filter_map(|(place, answer)| Some((place.to_string(), answer?))).collect();
            let (all, whole) = join(fixed, &sources, &findings);
            let found: Vec<_> = all.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!((found.as_slice(), whole), (names, complete), "{fixed:?} {findings:?}");
        };
        let fixed = [spec("a", "10.0.0.1:80"), spec("b", "[0:0::1]:80"), spec("c", "C:80")];
        check(&fixed, vec![], &["a", "b", "c"], true);
        check(&fixed, vec![None], &["a", "b", "c"], false);
        check(&fixed, vec![found(&["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"])], &["a", "b", "c", "10.0.0.2:80"], true);
        check(
            &[],
            vec![found(&["1.1.1.1:1", "2.2.2.2:1"]), None, found(&["2.2.2.2:1", "3.3.3.3:1"])],
            &["1.1.1.1:1", "2.2.2.2:1", "3.3.3.3:1"],
            false,
        );
        // A name is one replica's, whoever has it first.
        check(&[spec("1.1.1.1:1", "elsewhere:1")], vec![found(&["1.1.1.1:1", "2.2.2.2:1"])], &["1.1.1.1:1", "2.2.2.2:1"], true);
    }
}
