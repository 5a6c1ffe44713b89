//! Where replicas come from that the configuration does not list one by one. Each source is asked again and again by a task of its own, and all write
//! what they find to one `watch`.
//!
//! It does not touch the fleet: `app` joins what is found with what is configured.

pub mod dns;

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::fleet::ReplicaSpec;

/// What each source found last, by its place in the configuration; `None` where it has not answered yet.
pub type Findings = Vec<Option<Vec<ReplicaSpec>>>;

/// The whole fleet: the `fixed` replicas, then those found, each address and each name once; and whether every source has answered.
pub fn join(fixed: &[ReplicaSpec], findings: &Findings) -> (Vec<ReplicaSpec>, bool) {
    let mut all = fixed.to_vec();
    let mut addresses: HashSet<String> = fixed.iter().map(|spec| plain(&spec.authority)).collect();
    let mut names: HashSet<String> = fixed.iter().map(|spec| spec.name.clone()).collect();
    for spec in findings.iter().flatten().flatten() {
        if addresses.insert(plain(&spec.authority)) && names.insert(spec.name.clone()) {
            all.push(spec.clone());
        }
    }
    (all, findings.iter().all(Option::is_some))
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
        ReplicaSpec { name: name.to_owned(), authority: authority.to_owned(), weight: Weight::clamped(1), models: Vec::new() }
    }

    fn found(addresses: &[&str]) -> Option<Vec<ReplicaSpec>> {
        Some(addresses.iter().map(|address| spec(address, address)).collect())
    }

    #[test]
    fn who_is_found_twice_is_there_once() {
        let check = |fixed: &[ReplicaSpec], findings: Findings, names: &[&str], complete: bool| {
            let (all, whole) = join(fixed, &findings);
            let found: Vec<_> = all.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!((found.as_slice(), whole), (names, complete), "{fixed:?} {findings:?}");
        };
        let fixed = [spec("a", "10.0.0.1:80"), spec("b", "[0:0::1]:80"), spec("c", "C:80")];
        check(&fixed, vec![], &["a", "b", "c"], true);
        check(&fixed, vec![None], &["a", "b", "c"], false);
        check(&fixed, vec![found(&["10.0.0.1:80", "10.0.0.2:80", "[::1]:80"])], &["a", "b", "c", "10.0.0.2:80"], true);
        check(&[], vec![found(&["x:1", "y:1"]), None, found(&["y:1", "z:1"])], &["x:1", "y:1", "z:1"], false);
        // A name is one replica's, whoever has it first.
        check(&[spec("x:1", "elsewhere:1")], vec![found(&["x:1", "y:1"])], &["x:1", "y:1"], true);
    }
}
